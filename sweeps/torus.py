"""The resources that only a torus has: its links, its shape, and whether its axes are closed.

A TPU slice is a scale-up domain, so `scaleup_bw`, `scaleup_latency` and `scaleup_domain` of
`resources` count for it as for any other: they are all that ranks of a slice are joined by, and
how many chips it holds. ICI is the part of that which is rings: where a chip is one rank the two
are one thing, and where a chip is two (TPU7x) ICI is what joins the chips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from ..base.errors import NetworkError
from ..simulator.pricing import message_tiers, used_tiers
from ..simulator.torus import axes, described, parse_shape, ranks_per_chip, reshaped, slice_of
from .variant import ResourceError, Variant, check_several

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from ..simulator.network import Network, Tier
    from .job import Job

#: What the names of `TorusShape` begin with.
TORUS_SHAPE = "torus:"


@dataclass(frozen=True)
class IciBandwidth:
    """Nominal bandwidth of the links of a torus."""

    name: str = "ici_bw"

    def vary(self, job: Job, factor: float) -> Variant:
        """Multiply the bandwidth of the links."""
        _check_crossed(self.name, job, used_tiers(job.prices))
        return _with_axes(
            job, lambda tier: replace(tier, bandwidth_gb_s=tier.bandwidth_gb_s * factor)
        )


@dataclass(frozen=True)
class IciLatency:
    """Latency of a hop on a torus."""

    name: str = "ici_latency"

    def vary(self, job: Job, factor: float) -> Variant:
        """Divide the latency of the links."""
        _check_crossed(self.name, job, message_tiers(job.prices))
        if not any(job.network.tiers[axis].latency_ns for axis in axes(job.network)):
            raise ResourceError(
                f"{self.name}: network {job.network.name!r} gives its links no latency"
            )
        return _with_axes(job, lambda tier: replace(tier, latency_ns=tier.latency_ns / factor))


@dataclass(frozen=True)
class Wrap:
    """Wrap-around: a closed axis has twice the bisection of an open one.

    So the only factors are 2, which closes every axis, and 1/2, which opens every one.
    """

    name: str = "torus_wrap"

    def vary(self, job: Job, factor: float) -> Variant:
        """Close the axes, or open them."""
        found = _check_torus(self.name, job)
        if factor not in (2.0, 0.5):
            raise ResourceError(
                f"{self.name}: axes are closed (factor 2) or open (0.5); a factor of {factor:g} "
                "means nothing"
            )
        closed = factor == 2.0
        tiers = [job.network.tiers[axis] for axis in found]
        changed = [tier for tier in tiers if tier.size > 2 and tier.wrap != closed]
        if not changed:
            what = "closed" if closed else "open"
            raise ResourceError(
                f"{self.name}: every axis of {described(job.network)} that can be is {what}"
            )
        variant = _with_axes(job, lambda tier: replace(tier, wrap=closed))
        change = f"{described(variant.network)} instead of {described(job.network)}"
        return Variant(variant.network, job.placement, shape_change=change)


@dataclass(frozen=True)
class TorusShape:
    """A torus of other axes, for the same ranks; a choice, which has no factor."""

    lengths: tuple[int, ...]

    @property
    def name(self) -> str:
        """The lengths of the axes, as users write them: ``torus:2x4``."""
        return TORUS_SHAPE + "x".join(map(str, self.lengths))

    def vary(self, job: Job, factor: float) -> Variant:  # noqa: ARG002 (a choice)
        """Put the ranks into slices of this shape, in their order."""
        _check_torus(self.name, job)
        return in_slices(self.name, job, self.lengths)


def torus_shape(name: str) -> TorusShape:
    """Read a name such as ``torus:2x4``.

    Raises
    ------
    NetworkError
        If it names no shape.
    """
    return TorusShape(parse_shape(name.removeprefix(TORUS_SHAPE)))


def other_slices(resource: str, job: Job, factor: float) -> Variant:
    """Put a job into slices of f times as many chips: there are 1/f as many.

    Raises
    ------
    ResourceError
        If there are no such slices, or one already holds the job.
    """
    network, placement = job.network, job.placement
    chips = network.domain_size / ranks_per_chip(network) * factor
    if placement.num_domains == 1 and factor >= 1:
        raise ResourceError(
            f"{resource}: one scale-up domain, a slice of {described(network)}, already holds all "
            f"{len(placement.domain)} ranks"
        )
    lengths = slice_of(network, math.ceil(chips))
    if lengths is None or math.prod(lengths) != chips:
        raise ResourceError(
            f"{resource}: network {network.name!r} knows no slices of {chips:g} chips; name the "
            f"shape ({TORUS_SHAPE}2x4)"
        )
    return in_slices(resource, job, lengths)


def in_slices(resource: str, job: Job, lengths: Sequence[int]) -> Variant:
    """Put the ranks of a job into slices of another shape.

    Raises
    ------
    ResourceError
        If the slices do not hold the job, or the network cannot have that shape.
    """
    old = job.network
    try:
        network = reshaped(old, lengths)
    except NetworkError as error:
        raise ResourceError(f"{resource}: {error.message}") from error
    placement = job.placement
    if network.domain_size != placement.size:
        placement = placement.regrouped(network.domain_size)
    elif placement.coordinates is not None:
        raise ResourceError(
            f"{resource}: the rank map says where on {described(old)} each rank sits, and not "
            "where on another torus"
        )
    if placement.num_domains > network.num_domains:
        raise ResourceError(
            f"{resource}: the job needs {placement.num_domains} slices of {described(network)}, "
            f"and network {old.name!r} joins {network.num_domains}"
        )
    return Variant(network, placement, shape_change=_change(job, network, placement.num_domains))


def _change(job: Job, network: Network, slices: int) -> str:
    text = f"{described(network)} instead of {described(job.network)}"
    before = job.placement.num_domains
    if before != slices:
        text = f"{slices} {'slice' if slices == 1 else 'slices'} of {text} in {before}"
    return text


def _check_torus(resource: str, job: Job) -> tuple[int, ...]:
    """Axes of the torus that a job is on."""
    check_several(resource, job)
    found = axes(job.network)
    if not found:
        raise ResourceError(
            f"{resource}: network {job.network.name!r} has no torus inside a scale-up domain"
        )
    return found


def _check_crossed(resource: str, job: Job, scopes: Container[int]) -> None:
    """Refuse what no operation uses: all stay within a chip, or cross slices, or have no size.

    `scopes` are those that operations of a known price use, from the inside out.
    """
    found = _check_torus(resource, job)
    graph, network = job.graph, job.network
    coordinates = job.placement.coordinates_in(network)
    outside = coordinates[:, found[-1] + 1 :]
    used = graph.group[(graph.instance >= 0) & (0 in scopes)]
    for number in np.unique(used).tolist():
        ranks = np.asarray(graph.groups[number].ranks, dtype=np.int64)
        along = np.unique(coordinates[ranks][:, list(found)], axis=0)
        slices = np.unique(outside[ranks], axis=0)
        if len(along) > 1 and len(slices) < len(ranks):
            return
    raise ResourceError(
        f"{resource}: the job sends nothing over the links of its torus, {described(network)}"
    )


def _with_axes(job: Job, change: Callable[[Tier], Tier]) -> Variant:
    found = axes(job.network)
    tiers = [
        change(tier) if index in found else tier for index, tier in enumerate(job.network.tiers)
    ]
    return Variant(replace(job.network, tiers=tiers), job.placement)


def segment(resource: str, network: Network) -> str:
    """Kind of segment of a critical path that a resource scales, where it scales a whole one."""
    if resource.startswith("ici_") and ranks_per_chip(network) == 1:
        return resource.replace("ici_", "scaleup_")
    return resource
