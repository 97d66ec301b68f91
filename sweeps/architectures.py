"""Cluster architectures: domain size, scale-up and scale-out bandwidth, all changed together.

Here a wish ("domains of 32 at 900 GB/s, 50 GB/s between them") or a preset becomes a network with
the ranks of a job placed in it, and the job is moved there. Resources made better one at a time
are in `resources`; what a study reports of its architectures is in `utility.clusters`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from ..base.errors import GraphError, NetworkError, UsageError
from ..base.units import format_ns
from ..simulator.network import TIER_NAMES, check_priced, load_network
from ..simulator.run import simulate
from ..simulator.torus import sized_for
from .results import Architecture

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..simulator.network import Network
    from ..simulator.placement import Placement
    from .job import Job

#: Name of the architecture that the job was traced on.
BASELINE = "baseline"


@dataclass(frozen=True)
class Plan:
    """Which architectures to compare; made by `plan`, which checks it.

    Attributes
    ----------
    domains : tuple of int
        Ranks that a scale-up domain holds.
    scaleup_gb_s, scaleout_gb_s : tuple of float
        Nominal bandwidths inside and between the domains.
    like : Network or None
        Supplies what is not varied; None for the baseline network.
    presets : tuple of Network
        Taken as they are.
    """

    domains: tuple[int, ...]
    scaleup_gb_s: tuple[float, ...]
    scaleout_gb_s: tuple[float, ...]
    like: Network | None
    presets: tuple[Network, ...]


@dataclass(frozen=True)
class Site:
    """An architecture with the ranks of a job placed in it."""

    architecture: Architecture
    placement: Placement


def plan(
    *,
    domains: Sequence[int] = (),
    scaleup_gb_s: Sequence[float] = (),
    scaleout_gb_s: Sequence[float] = (),
    presets: Sequence[str | Path] = (),
    like: str | Path | None = None,
) -> Plan:
    """Check what is to be compared and load the networks it names; needs no job.

    Parameters
    ----------
    domains, scaleup_gb_s, scaleout_gb_s : sequence of numbers
        Values that are combined, each with each; what is not given stays as it is in `like`.
    presets : sequence of str or Path
        Presets or files that are architectures of their own.
    like : str or Path, optional
        Preset or file that the combinations take everything else from, instead of the baseline
        network.

    Returns
    -------
    Plan
        Values that are given twice are there once.

    Raises
    ------
    UsageError
        If there is nothing to compare, or a number makes no sense.
    NetworkError
        If there is no such network, or it is malformed.
    """
    if not (domains or scaleup_gb_s or scaleout_gb_s or presets):
        raise UsageError(
            "no architecture given; name domain sizes, scale-up or scale-out bandwidths, or presets"
        )
    if like is not None and not (domains or scaleup_gb_s or scaleout_gb_s):
        raise UsageError(f"nothing is to be varied that could be like {str(like)!r}")
    for size in domains:
        if not (size >= 1 and float(size).is_integer()):
            raise UsageError(f"a domain holds a whole number of ranks from 1, not {size}")
    for value in (*scaleup_gb_s, *scaleout_gb_s):
        if not (math.isfinite(value) and value > 0):
            raise UsageError(f"a bandwidth must be a positive number of GB/s, is {value:g}")
    return Plan(
        domains=tuple(dict.fromkeys(int(size) for size in domains)),
        scaleup_gb_s=tuple(dict.fromkeys(scaleup_gb_s)),
        scaleout_gb_s=tuple(dict.fromkeys(scaleout_gb_s)),
        like=None if like is None else _load(like),
        presets=tuple(_load(name) for name in dict.fromkeys(presets)),
    )


def sites(job: Job, wanted: Plan) -> list[Site]:
    """Place a job in every architecture of a plan.

    Parameters
    ----------
    job : Job
        From `job.prepare`.
    wanted : Plan
        What to compare.

    Returns
    -------
    list of Site
        The baseline; the combinations, of which the last value listed changes fastest; the
        presets in the order given. Ranks sit as `Placement.regrouped` says: domains that grow by
        a whole factor hold the ranks of so many old ones.

    Raises
    ------
    NetworkError
        If the job does not fit into an architecture, or if what a combination takes from
        another network is not there.
    """
    found = [
        Site(_described(BASELINE, job.network, job.placement, shape_change=None), job.placement)
    ]
    if wanted.domains or wanted.scaleup_gb_s or wanted.scaleout_gb_s:
        found += _grid(job, wanted)
    return found + [_preset(job, network) for network in wanted.presets]


def moved(job: Job, site: Site) -> Job:
    """Simulate a job in an architecture, and make that what its resources are varied from.

    Parameters
    ----------
    job : Job
        On its baseline.
    site : Site
        From `sites`.

    Returns
    -------
    Job
        Its `baseline` is the job in this architecture. Its errors mean nothing: only the job on
        its true baseline can be compared with what was measured.

    Raises
    ------
    NetworkError, GraphError
        If the job cannot be simulated there.
    """
    network, placement = site.architecture.network, site.placement
    if network is job.network and placement is job.placement:
        return job
    simulation = simulate(job.compressed, network=network, placement=placement)
    if simulation.step_ns <= 0:
        raise GraphError(
            f"its step takes no time in architecture {site.architecture.name}",
            file=job.graph.trace or None,
        )
    return dataclasses.replace(job, network=network, placement=placement, baseline=simulation)


def _load(name: str | Path) -> Network:
    network = load_network(name)
    check_priced(network)
    return network


def _grid(job: Job, wanted: Plan) -> list[Site]:
    template = job.network if wanted.like is None else wanted.like
    _check_template(template, wanted)
    inner, *outer = template.tiers
    placements = {size: job.placement.regrouped(size) for size in wanted.domains or (inner.size,)}
    found = []
    for size, up, out in product(
        placements,
        wanted.scaleup_gb_s or (inner.bandwidth_gb_s,),
        wanted.scaleout_gb_s or tuple(tier.bandwidth_gb_s for tier in outer) or (None,),
    ):
        placement = placements[size]
        tiers = [replace(inner, size=size, bandwidth_gb_s=up)]
        notes = _kept(template)
        name = f"{size}/{up:g}"
        if out is not None:
            # How many domains there are follows from their size; a smaller one needs more.
            room = max(outer[0].size, placement.num_domains)
            tiers.append(replace(outer[0], size=room, bandwidth_gb_s=out))
            name += f"/{out:g}"
            if room > outer[0].size:
                notes.append(
                    f"scale-out joins {placement.num_domains} domains of {size} ranks, though it "
                    f"joins at most {outer[0].size} in network {template.name!r}"
                )
        elif placement.num_domains > 1:
            raise _no_scaleout(
                template, f"{placement.num_domains} domains of {size} ranks need one"
            )
        # The template's alternatives are of its own sizes and bandwidths.
        network = replace(template, tiers=tiers, alternatives=[], assumptions=notes)
        change = _shape_change(job.placement, placement)
        found.append(Site(_described(name, network, placement, shape_change=change), placement))
    return found


def _preset(job: Job, network: Network) -> Site:
    network = sized_for(network, len(job.placement.domain))
    placement = job.placement.regrouped(network.domain_size)
    if placement.num_domains > network.num_domains:
        raise NetworkError(
            f"{placement.description}; network {network.name!r} joins at most "
            f"{network.num_domains} of them",
            place="tiers",
        )
    note = "taken as it is, not fitted to the trace"
    network = replace(network, assumptions=[note, *network.assumptions])
    change = _shape_change(job.placement, placement)
    return Site(_described(network.name, network, placement, shape_change=change), placement)


def _described(
    name: str, network: Network, placement: Placement, *, shape_change: str | None
) -> Architecture:
    tier = dict(zip(reversed(network.tier_names), reversed(network.tiers), strict=True))
    out = tier.get(TIER_NAMES[1])
    return Architecture(
        name=name,
        network=network,
        placement=placement.description,
        domain=network.domain_size,
        scaleup_gb_s=tier[TIER_NAMES[0]].bandwidth_gb_s,
        scaleout_gb_s=None if out is None else out.bandwidth_gb_s,
        shape_change=shape_change,
    )


def _check_template(template: Network, wanted: Plan) -> None:
    if template.tier_names not in (TIER_NAMES[:1], TIER_NAMES):
        raise NetworkError(
            f"network {template.name!r} has {len(template.tiers)} tiers; architectures are varied "
            "on one tier of scale-up and one of scale-out. Name each as a preset or file instead",
            place="tiers",
        )
    if wanted.scaleout_gb_s and len(template.tiers) == 1:
        raise _no_scaleout(template, "a bandwidth alone does not make one")


def _no_scaleout(template: Network, why: str) -> NetworkError:
    return NetworkError(
        f"network {template.name!r} has no scale-out tier, and {why}: name a network to take its "
        "latency and efficiency from (--like)",
        place="tiers",
    )


def _kept(template: Network) -> list[str]:
    """Say of each tier what does not change with its size and bandwidth."""
    notes = []
    for name, tier in zip(template.tier_names, template.tiers, strict=True):
        values = [
            f"efficiency {tier.efficiency:.3g}",
            f"latency {format_ns(tier.latency_ns)}",
            f"base {format_ns(tier.base_ns)}",
        ]
        if tier.endpoint_ns_per_byte:
            values.append(f"endpoint {tier.endpoint_ns_per_byte:.3g} ns/byte")
        notes.append(
            f"{name}: {', '.join(values)} as in network {template.name}, at any size and bandwidth"
        )
    return notes


def _shape_change(old: Placement, new: Placement) -> str | None:
    """Say what the domains of a job become; None where they stay as they are."""
    if new.num_domains == 1 and old.num_domains > 1:
        text = f"removes the scale-out tier for this job: {_domains(new)}"
    elif new.num_domains > 1 and old.num_domains == 1:
        text = f"adds the scale-out tier for this job: {_domains(new)} instead of one"
    elif _same_domains(old, new):
        if new.size == old.size:
            return None
        text = f"domains have room for {new.size} ranks instead of {old.size}, which moves none"
    else:
        text = f"{_domains(new)} instead of {_domains(old)}"
    held = _held(new)
    if held[0] == new.size:
        return text
    filled = str(held[0]) if held[0] == held[1] else f"{held[0]} to {held[1]}"
    return f"{text}; domains partly filled, with {filled} of {new.size} ranks"


def _same_domains(old: Placement, new: Placement) -> bool:
    pairs = len(np.unique(np.stack([old.domain, new.domain]), axis=1).T)
    return pairs == old.num_domains == new.num_domains


def _held(placement: Placement) -> tuple[int, int]:
    """Fewest and most ranks in a domain that holds any."""
    held = np.unique(placement.domain, return_counts=True)[1]
    return int(held.min()), int(held.max())


def _domains(placement: Placement) -> str:
    fewest, most = _held(placement)
    if placement.num_domains == 1:
        return f"one domain holds all {most} ranks"
    ranks = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{placement.num_domains} domains of {ranks}"
