"""The network that a result starts from: the one given, or the one the trace was measured on.

Which preset a machine has is in `simulator.network`, how its numbers are moved to the trace's own
transfer times in `estimate`. How far the replay on this network is from the measured step is the
baseline's error, which the caller prints beside every result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..base.errors import NetworkError
from ..graph.columns import Collective
from ..simulator.network import (
    Network,
    check_priced,
    load_network,
    match_preset,
    preset_names,
)
from ..simulator.placement import place
from .estimate import estimate_network

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..graph.columns import ExecutionGraph
    from ..simulator.placement import Placement
    from .estimate import FitRow


@dataclass(frozen=True)
class Baseline:
    """The network of the baseline, and what it rests on.

    Attributes
    ----------
    network : Network
        As given, or the preset of the machine with what the trace says of it.
    placement : Placement
        Where the ranks of the job sit in it.
    assumptions : tuple of str
        Everything that was assumed of network and placement, in plain sentences.
    rows : tuple of FitRow
        Measured transfer times that an estimate rests on, with what the network charges; empty
        for a network that was given.
    """

    network: Network
    placement: Placement
    assumptions: tuple[str, ...]
    rows: tuple[FitRow, ...]


def baseline_network(
    graph: ExecutionGraph,
    network: str | Path | Network | None = None,
    *,
    rank_map: Mapping[int, int] | None = None,
) -> Baseline:
    """Find the network that a job was measured on, or take the one that is given.

    Parameters
    ----------
    graph : ExecutionGraph
        The job.
    network : str, Path or Network, optional
        Name of a preset, a file, or a network: taken as it is. By default the preset that
        matches the trace's device and number of ranks, with effective values from the trace's
        own transfer times; CPU jobs get a loopback fitted to the trace.
    rank_map : mapping of int to int, optional
        Scale-up domain of every rank; see `placement.place`.

    Returns
    -------
    Baseline

    Raises
    ------
    NetworkError
        If the network file is missing or malformed, does not fit the job, or has a topology
        without a price; or if no preset is of the trace's machine.
    GraphError
        If a group or a peer is not among the ranks of the job.
    """
    if network is not None:
        given = network if isinstance(network, Network) else load_network(network)
        check_priced(given)
        placement = place(given, graph.ranks, graph.hosts, graph.world_size, rank_map)
        return _baseline(given, placement, ["the network is taken as given, not fitted"], ())

    device_job = graph.source != "kineto-cpu"
    preset = _preset(graph, device_job=device_job)
    if preset is None and not _communicates(graph):
        preset = load_network("loopback")
    if preset is None:
        raise NetworkError(
            f"no preset is of the machine of this trace ({_machine(graph)}); name one, or a file, "
            f"with --network (presets: {', '.join(preset_names())})",
            file=graph.trace or None,
        )
    placement = place(preset, graph.ranks, graph.hosts, graph.world_size, rank_map)
    if not _communicates(graph):
        # What the preset assumes would only distract: nothing of it matters.
        note = f"the job sends nothing between ranks, so preset {preset.name} plays no part"
        unused = msgspec.structs.replace(preset, assumptions=[note])
        return _baseline(unused, placement, [], ())
    estimate = estimate_network(graph, preset, placement, fit_nominal=not device_job)
    return _baseline(estimate.network, placement, [], estimate.rows)


def _communicates(graph: ExecutionGraph) -> bool:
    """Tell whether any operation joins ranks."""
    joined = graph.instance >= 0
    pair = graph.coll == Collective.SEND_RECV
    groups = np.unique(graph.group[joined & ~pair])
    return bool((joined & pair).any()) or any(len(graph.groups[g].ranks) > 1 for g in groups)


def _preset(graph: ExecutionGraph, *, device_job: bool) -> Network | None:
    devices = set(graph.devices) if device_job else {""}
    if len(devices) != 1 or (device_job and "" in devices):
        return None
    return match_preset(devices.pop(), graph.world_size, graph.hosts)


def _machine(graph: ExecutionGraph) -> str:
    devices = ", ".join(repr(name) for name in sorted(set(graph.devices)) if name)
    hosts = len({host for host in graph.hosts if host})
    return f"{graph.world_size} ranks on {devices or 'devices without a name'}" + (
        f", {hosts} hosts" if hosts > 1 else ""
    )


def _baseline(
    network: Network, placement: Placement, notes: list[str], rows: tuple[FitRow, ...]
) -> Baseline:
    assumptions = (*network.assumptions, *notes, f"placement: {placement.description}")
    return Baseline(network, placement, assumptions, rows)
