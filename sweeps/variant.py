"""A variant of a baseline, and what makes one: the form that every resource has.

The resources themselves are in `resources` and `torus`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..base.errors import WhatIfError

if TYPE_CHECKING:
    from ..simulator.network import Network
    from ..simulator.placement import Placement
    from .job import Job


class ResourceError(WhatIfError):
    """A job, its dependency model or its network does not have a resource."""


@dataclass(frozen=True)
class Variant:
    """A baseline with one resource changed.

    Attributes
    ----------
    network : Network
        Prices the transfers.
    placement : Placement
        Where the ranks sit.
    compute_scale, host_scale : float
        Multiply the durations of computation and of host work.
    shape_change : str or None
        What is different in the shape of the network.
    """

    network: Network
    placement: Placement
    compute_scale: float = 1.0
    host_scale: float = 1.0
    shape_change: str | None = None


class Resource(Protocol):
    """Something that can be made better by a factor."""

    @property
    def name(self) -> str:
        """What users call it."""

    def vary(self, job: Job, factor: float) -> Variant:
        """Make it `factor` times better.

        Raises
        ------
        ResourceError
            If the job does not have it, saying why.
        """


def check_several(resource: str, job: Job) -> None:
    """Refuse a resource of the network to a job that does not use any.

    Raises
    ------
    ResourceError
        If it has a single rank.
    """
    if len(job.placement.domain) == 1:
        raise ResourceError(f"{resource}: the job has a single rank")
