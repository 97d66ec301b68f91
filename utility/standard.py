"""Utility(r): the standard resources, each made twice as good, for one or several jobs.

``Utility(r) = (T - T_2x(r)) / T x 100 %`` with T the step on the baseline network. What a
resource is and how one is run is in `sweeps`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.progress import Progress, silent
from ..base.settings import DEFAULT_LIMIT_PCT
from ..sweeps.resources import RESOURCES
from ..sweeps.run import sweep
from .results import UtilityResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..sweeps.job import Job

#: How many times better a resource is in Utility(r).
FACTOR = 2.0


def utility(
    jobs: Iterable[Job],
    *,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    progress: Progress = silent,
) -> UtilityResult:
    """Make every resource of each job twice as good, one at a time.

    Parameters
    ----------
    jobs : iterable of Job
        From `sweeps.job.prepare`; taken one after the other, so a generator keeps only one in
        memory.
    limit_pct : float
        Largest size of a baseline's error, in percent, that is not marked.
    progress : Progress
        Told how many variants of a job are done.

    Returns
    -------
    UtilityResult
        A resource that a job does not have is listed as refused, never as 0.

    Raises
    ------
    NetworkError, GraphError
        If a variant cannot be simulated.
    """
    return UtilityResult(
        factor=FACTOR,
        jobs=[
            sweep(
                job,
                list(RESOURCES),
                [FACTOR],
                limit_pct=limit_pct,
                list_refused=True,
                progress=progress,
            )
            for job in jobs
        ],
    )
