"""The network before it is fitted: a preset, a file, or link speeds that the user knows.

What is known of links beforehand, and how far, is in `parameters`. Here tiers are put together
from that: the shape of the machine, the nominal speeds, and starting values for the rest.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ..base.errors import NetworkError, UsageError
from ..graph.columns import Worker
from ..simulator.network import (
    TIER_NAMES,
    Network,
    load_network,
    match_preset,
    preset_names,
)
from ..simulator.torus import sized_for
from .parameters import ETHERNET_EFFICIENCY, LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from ..graph.columns import ExecutionGraph

#: No link is slower or faster, in GB/s: a kilobyte and a petabyte per second.
_SLOWEST, _FASTEST = 1e-6, 1e6

#: Starting values for devices that no preset is of.
_DEVICE_LIKE = "dgx_a100"

#: Preset of CPU devices of XLA, which share a process and its memory.
_IN_ONE_PROCESS = "host_memory"


def nominal_network(
    graph: ExecutionGraph,
    network: str | Path | Network | None = None,
    *,
    link_gb_s: float | None = None,
    scaleup_gb_s: float | None = None,
    scaleout_gb_s: float | None = None,
) -> Network:
    """Find or make the network of a trace as it is before the trace's transfers are looked at.

    Parameters
    ----------
    graph : ExecutionGraph
        Of the trace.
    network : str, Path or Network, optional
        Preset, file or network; by default the preset of the trace's device.
    link_gb_s : float, optional
        Nominal speed per rank and direction of the links, where they are all alike.
    scaleup_gb_s, scaleout_gb_s : float, optional
        The same within domains, and between them.

    Returns
    -------
    Network

    Raises
    ------
    NetworkError
        If there is no such network, or if neither it nor any speed is given and no preset is of
        the machine.
    UsageError
        For a speed that makes no sense, or for a tier that the network does not have.
    """
    speeds = {"link": link_gb_s, "scaleup": scaleup_gb_s, "scaleout": scaleout_gb_s}
    for name, speed in speeds.items():
        if speed is not None and not _SLOWEST <= speed <= _FASTEST:
            raise UsageError(f"{name}_gb_s must be from {_SLOWEST:g} to {_FASTEST:g}, is {speed}")
    if link_gb_s is not None and (scaleup_gb_s is not None or scaleout_gb_s is not None):
        raise UsageError("links are all alike (link_gb_s), or of two tiers, not both")
    known = {name: speed for name, speed in speeds.items() if speed is not None}
    if isinstance(network, Network):
        found: Network | None = network
    elif network is not None:
        found = sized_for(load_network(network), graph.world_size)
    else:
        found = machine_preset(graph)
    if not known:
        if found is None:
            raise NetworkError(
                f"no preset is of the machine of this trace ({machine(graph)}); name one, or a "
                f"file, with --network (presets: {', '.join(preset_names())})",
                file=graph.trace or None,
            )
        return found
    if network is None and graph.worker is not Worker.DEVICE:
        return _ethernet(graph, known)
    if found is None and set(known) == {TIER_NAMES[1]}:
        raise NetworkError(
            f"no preset is of the machine of this trace ({machine(graph)}); the speed within "
            "domains must be given, too",
            file=graph.trace or None,
        )
    return _with_speeds(found or _unknown_machine(graph, known), known)


def machine_preset(graph: ExecutionGraph) -> Network | None:
    """Preset of the machine of a trace, if there is one."""
    if graph.worker is Worker.THREADS:
        note = f"preset {_IN_ONE_PROCESS} chosen because the devices are CPU devices of XLA"
        preset = load_network(_IN_ONE_PROCESS)
        return msgspec.structs.replace(preset, assumptions=[note, *preset.assumptions])
    on_devices = graph.worker is Worker.DEVICE
    devices = set(graph.devices) if on_devices else {""}
    if len(devices) != 1 or (on_devices and "" in devices):
        return None
    return match_preset(devices.pop(), graph.world_size, graph.hosts)


def machine(graph: ExecutionGraph) -> str:
    """What a trace says of its machine, for people."""
    devices = ", ".join(repr(name) for name in sorted(set(graph.devices)) if name)
    hosts = len({host for host in graph.hosts if host})
    return f"{graph.world_size} ranks on {devices or 'devices without a name'}" + (
        f", {hosts} hosts" if hosts > 1 else ""
    )


def _with_speeds(network: Network, known: dict[str, float]) -> Network:
    """Give the tiers of a network other nominal speeds; the rest stays."""
    if "link" in known and len(network.scopes) > 1:
        raise UsageError(
            f"network {network.name!r} has two kinds of links: give scaleup_gb_s or scaleout_gb_s"
        )
    speeds = {TIER_NAMES[0]: known["link"]} if "link" in known else known
    for scope in speeds:
        if scope not in network.scopes:
            raise UsageError(f"network {network.name!r} has no {scope} tier")
    tiers = [
        msgspec.structs.replace(
            tier,
            bandwidth_gb_s=speeds[scope],
            source=f"bandwidth_gb_s: given; {tier.source}".removesuffix("; "),
        )
        if scope in speeds
        else tier
        for tier, scope in zip(network.tiers, network.tier_names, strict=True)
    ]
    note = f"nominal speed given: {_written(speeds)}"
    return msgspec.structs.replace(network, tiers=tiers, assumptions=[*network.assumptions, note])


def _ethernet(graph: ExecutionGraph, known: dict[str, float]) -> Network:
    """Ethernet links of given speeds between the processes of a CPU job."""
    loopback = load_network(LOOPBACK).tiers[0]
    inner = max(_ranks_of_a_host(graph), 1) if "scaleout" in known else loopback.size
    speeds = {scope: known.get(scope, known.get("link")) for scope in TIER_NAMES}
    source = f"latency and base: preset {LOOPBACK}; efficiency: headers of TCP/IP on Ethernet"
    tiers = [
        msgspec.structs.replace(
            loopback,
            size=size,
            bandwidth_gb_s=speed,
            efficiency=ETHERNET_EFFICIENCY,
            source=f"bandwidth_gb_s: given; {source}",
        )
        for size, speed in (
            (inner, speeds[TIER_NAMES[0]]),
            (loopback.size, known.get(TIER_NAMES[1])),
        )
        if speed is not None
    ]
    if "scaleout" in known and "scaleup" not in known:
        # Between processes of a host bytes never leave it.
        tiers.insert(0, msgspec.structs.replace(loopback, size=inner))
    return Network(
        name="links of given speed",
        tiers=tiers,
        assumptions=[f"nominal speed given: {_written(known)}; taken for a switch of Ethernet"],
    )


def _unknown_machine(graph: ExecutionGraph, known: dict[str, float]) -> Network:
    """Tiers for devices that no preset is of, with the starting values of one."""
    like = load_network(_DEVICE_LIKE)
    inner = like.tiers[0]
    size = max(graph.world_size, 1)
    tiers = [msgspec.structs.replace(inner, size=size)]
    if "scaleout" in known:
        size = max(_ranks_of_a_host(graph), 1)
        tiers = [msgspec.structs.replace(inner, size=size), like.tiers[1]]
    source = f"all but bandwidth as in preset {_DEVICE_LIKE}"
    return Network(
        name="links of given speed",
        tiers=[msgspec.structs.replace(tier, source=source) for tier in tiers],
        assumptions=[
            (
                f"no preset is of the machine of this trace ({machine(graph)}); latency, base and "
                f"efficiency start from preset {_DEVICE_LIKE}"
            )
        ],
    )


def _ranks_of_a_host(graph: ExecutionGraph) -> int:
    per_host = Counter(host for host in graph.hosts if host)
    return max(per_host.values(), default=0)


def _written(speeds: dict[str, float]) -> str:
    return ", ".join(f"{scope} {speed:g} GB/s" for scope, speed in speeds.items())
