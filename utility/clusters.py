"""Cluster architectures compared: what a job's step would be in each, and what to upgrade next.

Domain size, scale-up and scale-out bandwidth change together here, since a machine is bought with
all three. For each architecture the study tells how much of the communication compute hides, and
what doubling one of the three alone would give on top: the marginal gain of that upgrade. How an
architecture becomes a network is in `sweeps.architectures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..base.progress import Progress, silent
from ..base.settings import DEFAULT_LIMIT_PCT
from ..sweeps.architectures import moved, sites
from ..sweeps.results import JobResult
from ..sweeps.run import sweep
from .results import UPGRADES, ArchitectureRow, ClustersResult
from .standard import FACTOR

if TYPE_CHECKING:
    from ..sweeps.architectures import Plan, Site
    from ..sweeps.job import Job
    from ..sweeps.results import SweepResult

#: What a study of architectures leaves out, beyond what every simulation does.
LIMITS = (
    "ranks, and how the job is divided among them, are as traced, however large the domains become",
)


def clusters(
    job: Job,
    wanted: Plan,
    *,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    progress: Progress = silent,
) -> ClustersResult:
    """Simulate a job in every architecture of a plan, and in each with one thing doubled.

    Parameters
    ----------
    job : Job
        From `sweeps.job.prepare`.
    wanted : Plan
        From `sweeps.architectures.plan`.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.
    progress : Progress
        Told how many architectures are done.

    Returns
    -------
    ClustersResult

    Raises
    ------
    UsageError
        For a limit that makes no sense.
    NetworkError, GraphError
        If the job does not fit into an architecture, or cannot be simulated there.
    """
    first, *others = sites(job, wanted)
    baseline = _upgrade(job, limit_pct)
    rows = [_row(job, first, job, baseline)]
    for done, site in enumerate(others):
        progress("simulating architectures", done, len(others))
        there = moved(job, site)
        rows.append(_row(job, site, there, _upgrade(there, limit_pct)))
    facts = {
        name: getattr(baseline, name) for name in JobResult.__struct_fields__ if name != "limits"
    }
    return ClustersResult(
        **facts,
        limits=[*baseline.limits, *LIMITS],
        upgrade_factor=FACTOR,
        architectures=rows,
    )


def _upgrade(there: Job, limit_pct: float) -> SweepResult:
    return sweep(there, UPGRADES, [FACTOR], limit_pct=limit_pct, list_refused=True)


def _row(job: Job, site: Site, there: Job, upgraded: SweepResult) -> ArchitectureRow:
    """Compare a job in one place with the job on its baseline."""
    base_ns, step_ns = job.baseline.step_ns, there.baseline.step_ns
    per_rank = there.baseline.per_rank
    exposed = sum(rank.exposed_comm_ns for rank in per_rank)
    hidden = sum(rank.hidden_comm_ns for rank in per_rank)
    return ArchitectureRow(
        **msgspec.structs.asdict(site.architecture),
        step_ns=step_ns,
        gain_pct=(base_ns - step_ns) / base_ns * 100,
        exposed_comm_ns=round(exposed / len(per_rank)),
        hidden_comm_ns=round(hidden / len(per_rank)),
        hidden_share_pct=hidden / (hidden + exposed) * 100 if hidden + exposed else None,
        upgrades=upgraded.results,
        refused=upgraded.refused,
    )
