"""The resources that a sweep can make better, each turning a baseline into a variant.

A resource knows what it scales and when it is not there to be scaled: a job that sends no byte
over scale-out has no scale-out bandwidth, and is told so instead of a utility of 0. To add one,
write its class here and put it into `RESOURCES`; the command line, `utility` and the reports
find it there. What only a torus has is in `torus`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from ..base.errors import NetworkError, UsageError
from ..graph.columns import Flavour
from ..simulator.network import TIER_NAMES
from ..simulator.pricing import message_tiers, used_tiers
from ..simulator.torus import axes
from .torus import (
    TORUS_SHAPE,
    IciBandwidth,
    IciLatency,
    TorusShape,
    Wrap,
    other_slices,
    torus_shape,
)
from .variant import Resource, ResourceError, Variant, check_several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..simulator.network import Tier
    from ..simulator.placement import Placement
    from .job import Job


# What people call the scopes, from the inside out.
_SPOKEN = dict(zip(TIER_NAMES, ("scale-up", "scale-out"), strict=True))


@dataclass(frozen=True)
class Bandwidth:
    """Nominal bandwidth of all tiers of a scope; what a byte costs at its ends stays."""

    scope: str

    @property
    def name(self) -> str:
        """`scaleup_bw` or `scaleout_bw`."""
        return f"{self.scope}_bw"

    def vary(self, job: Job, factor: float) -> Variant:
        """Multiply the bandwidth of the tiers."""
        column = _column(self.name, job, self.scope)
        if column not in used_tiers(job.prices):
            raise ResourceError(_unused(self.name, job, self.scope, "byte"))
        return _with_tiers(
            job,
            self.scope,
            lambda tier: replace(tier, bandwidth_gb_s=tier.bandwidth_gb_s * factor),
        )


@dataclass(frozen=True)
class Latency:
    """Latency per message of all tiers of a scope, that of in-switch reduction included."""

    scope: str

    @property
    def name(self) -> str:
        """`scaleup_latency` or `scaleout_latency`."""
        return f"{self.scope}_latency"

    def vary(self, job: Job, factor: float) -> Variant:
        """Divide the latency of the tiers."""
        column = _column(self.name, job, self.scope)
        if column not in message_tiers(job.prices):
            raise ResourceError(_unused(self.name, job, self.scope, "message"))
        if not any(
            tier.latency_ns or tier.in_network_latency_ns
            for tier, name in zip(job.network.tiers, job.network.tier_names, strict=True)
            if name == self.scope
        ):
            raise ResourceError(
                f"{self.name}: network {job.network.name!r} gives {_SPOKEN[self.scope]} no latency"
            )

        def faster(tier: Tier) -> Tier:
            reducing = tier.in_network_latency_ns
            return replace(
                tier,
                latency_ns=tier.latency_ns / factor,
                in_network_latency_ns=None if reducing is None else reducing / factor,
            )

        return _with_tiers(job, self.scope, faster)


@dataclass(frozen=True)
class DomainSize:
    """How many ranks a scale-up domain holds."""

    name: str = "scaleup_domain"

    def vary(self, job: Job, factor: float) -> Variant:
        """Multiply the size of the domains and fill them with the ranks of the old ones."""
        old, network = job.placement, job.network
        check_several(self.name, job)
        if axes(network):
            return other_slices(self.name, job, factor)
        if len(network.tiers) > len(network.scopes):
            raise ResourceError(
                f"{self.name}: the domains of network {network.name!r} are made of several tiers; "
                "name the network of the shape you want"
            )
        if old.num_domains == 1 and factor >= 1:
            raise ResourceError(
                f"{self.name}: one scale-up domain already holds all {len(old.domain)} ranks"
            )
        size = round(network.tiers[0].size * factor)
        if size < 1 or not math.isclose(size, network.tiers[0].size * factor):
            raise ResourceError(
                f"{self.name}: {factor:g} times {network.tiers[0].size} ranks is no whole number"
            )
        new = old.regrouped(size)
        if new.num_domains > 1 and len(network.tiers) == 1:
            raise ResourceError(
                f"{self.name}: network {network.name!r} has no scale-out tier that could join "
                f"{new.num_domains} domains of {_ranks(size)}"
            )
        if len(network.tiers) > 1 and new.num_domains > network.tiers[1].size:
            raise ResourceError(
                f"{self.name}: {new.num_domains} domains of {_ranks(size)} are more than the "
                f"{network.tiers[1].size} that network {network.name!r} joins"
            )
        tiers = [replace(network.tiers[0], size=size), *network.tiers[1:]]
        return Variant(replace(network, tiers=tiers), new, shape_change=_shape_change(old, new))


@dataclass(frozen=True)
class Duration:
    """How fast something that is no transfer runs."""

    name: str
    flavour: Flavour

    def vary(self, job: Job, factor: float) -> Variant:
        """Divide the durations."""
        compute, host = self.scales(job.graph, factor)
        return Variant(job.network, job.placement, compute, host)

    def scales(self, graph: ExecutionGraph, factor: float) -> tuple[float, float]:
        """Give what durations of computation and of host work are multiplied by.

        Raises
        ------
        ResourceError
            If the graph has no such durations.
        """
        if self.flavour is Flavour.HOST and graph.model != "host":
            raise ResourceError(
                f"{self.name}: the {graph.model} model has no host work; it needs the host model"
            )
        if not (graph.dur_ns[graph.flavour == self.flavour] > 0).any():
            raise ResourceError(
                f"{self.name}: the graph has no {self.flavour.name.lower()} work of any length"
            )
        return (1.0, 1 / factor) if self.flavour is Flavour.HOST else (1 / factor, 1.0)


#: The resources that need no network.
DURATIONS = (Duration("compute", Flavour.COMPUTE), Duration("host", Flavour.HOST))

_ALL: tuple[Resource, ...] = (
    *(Bandwidth(scope) for scope in TIER_NAMES),
    DomainSize(),
    *(Latency(scope) for scope in TIER_NAMES),
    *DURATIONS,
)

#: Every standard resource by its name, in the order of the tables.
RESOURCES: dict[str, Resource] = {resource.name: resource for resource in _ALL}

_ON_A_TORUS: tuple[Resource, ...] = (IciBandwidth(), IciLatency(), Wrap())

#: What a torus has besides, by its name. `torus_shape` reads the names of other shapes.
TORUS_RESOURCES: dict[str, Resource] = {resource.name: resource for resource in _ON_A_TORUS}


def find_resources(names: Iterable[str]) -> list[Resource]:
    """Look resources up by name; one that is named twice counts once.

    Raises
    ------
    UsageError
        For a name that is no resource, with the list of those that are.
    """
    known = RESOURCES | TORUS_RESOURCES
    there_are = f"there are {', '.join(known)}, and {TORUS_SHAPE}2x4 for a torus of that shape"
    found: dict[str, Resource] = {}
    for name in names:
        if name.startswith(TORUS_SHAPE):
            try:
                found[name] = torus_shape(name)
            except NetworkError as error:
                raise UsageError(error.message) from error
        elif name in known:
            found[name] = known[name]
        else:
            raise UsageError(f"unknown resource {name!r}; {there_are}")
    if not found:
        raise UsageError(f"no resource named; {there_are}")
    return list(found.values())


def factors_of(resource: Resource, factors: Sequence[float]) -> Sequence[float]:
    """Factors by which a resource is varied: those asked for, or 1 for what is a choice."""
    return [1.0] if isinstance(resource, TorusShape) else factors


def _column(resource: str, job: Job, scope: str) -> int:
    """Column of a scope in the prices."""
    check_several(resource, job)
    if scope not in job.network.scopes:
        raise ResourceError(
            f"{resource}: network {job.network.name!r} has no {_SPOKEN[scope]} tier"
        )
    return job.network.scopes.index(scope)


def _unused(resource: str, job: Job, scope: str, what: str) -> str:
    """Why no operation of the job uses the tiers of a scope."""
    placement = job.placement
    text = f"{resource}: the job sends no {what} over {_SPOKEN[scope]}"
    if scope == "scaleout" and placement.num_domains == 1:
        return f"{text}: all {len(placement.domain)} ranks are in one scale-up domain"
    if scope == "scaleup" and placement.num_domains == len(placement.domain):
        return f"{text}: every rank is alone in its scale-up domain"
    if job.prices.measured.any():
        return f"{text} whose size the trace says"
    return text


def _with_tiers(job: Job, scope: str, change: Callable[[Tier], Tier]) -> Variant:
    tiers = [
        change(tier) if name == scope else tier
        for tier, name in zip(job.network.tiers, job.network.tier_names, strict=True)
    ]
    return Variant(replace(job.network, tiers=tiers), job.placement)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _shape_change(old: Placement, new: Placement) -> str:
    def same_domain(placement: Placement) -> NDArray[np.int64]:
        # Numbered by first appearance, so that equal divisions compare equal.
        _, first, index = np.unique(placement.domain, return_index=True, return_inverse=True)
        return first[index]

    if new.num_domains == 1:
        return (
            f"removes the scale-out tier for this job: one domain holds all {len(new.domain)} ranks"
        )
    if np.array_equal(same_domain(old), same_domain(new)):
        return f"domains hold {_ranks(new.size)} instead of {old.size}, which moves none"
    return (
        f"{new.num_domains} domains of up to {_ranks(new.size)} instead of {old.num_domains} of "
        f"up to {old.size}"
    )
