"""What `utility` reports: one sweep over the standard resources for each job."""

from __future__ import annotations

import msgspec

# msgspec resolves the annotation when it decodes, so this is needed at run time.
from ..sweeps.results import SweepResult  # noqa: TC001


class UtilityResult(msgspec.Struct, frozen=True, kw_only=True):
    """Utility of the standard resources for one or several jobs.

    Attributes
    ----------
    factor : float
        How many times better each resource is made.
    jobs : list of SweepResult
        One for each job, in the order given; resources that a job does not have are under its
        `refused`.
    """

    factor: float
    jobs: list[SweepResult]
