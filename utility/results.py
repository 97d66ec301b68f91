"""What `utility` and `clusters` report: plain records with the names that the JSON promises."""

from __future__ import annotations

import msgspec

# msgspec resolves the annotations when it decodes, so these are needed at run time.
from ..sweeps.results import (
    Architecture,
    JobResult,
    Refused,
    ResultRow,
    SweepResult,
)

#: What of an architecture is made better, one at a time, in the order of the tables.
UPGRADES = ("scaleup_domain", "scaleup_bw", "scaleout_bw")


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


class ArchitectureRow(Architecture, frozen=True, kw_only=True):
    """A job in one architecture.

    Attributes
    ----------
    step_ns : int
        The headline step there.
    gain_pct : float
        (baseline step - step) / baseline step x 100.
    exposed_comm_ns, hidden_comm_ns : int
        Communication of the headline step that compute does not cover, and that it does: mean
        over the traced ranks.
    hidden_share_pct : float or None
        hidden / (hidden + exposed) x 100, of all traced ranks together; None where no rank
        communicates.
    upgrades : list of ResultRow
        What making one thing of this architecture better, and nothing else, would give on top:
        `utility_pct` is of this architecture's step.
    refused : list of Refused
        Upgrades that this job would not notice here, and why.
    """

    step_ns: int
    gain_pct: float
    exposed_comm_ns: int
    hidden_comm_ns: int
    hidden_share_pct: float | None
    upgrades: list[ResultRow]
    refused: list[Refused]


class ClustersResult(JobResult, frozen=True, kw_only=True):
    """One job in several cluster architectures.

    Attributes
    ----------
    upgrade_factor : float
        How many times better an upgrade makes its resource.
    architectures : list of ArchitectureRow
        The baseline first, then in the order asked for.
    """

    upgrade_factor: float
    architectures: list[ArchitectureRow]
