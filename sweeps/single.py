"""One simulation of a job, with the error of its baseline beside it.

A network that the user names may be the machine of the trace or another one; only the baseline
can tell how far the model is to be believed, so it is always simulated too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.errors import NetworkError, UsageError
from ..base.progress import Progress, silent
from ..base.settings import DEFAULT_LIMIT_PCT
from ..graph.compress import compress
from ..simulator.run import simulate
from .job import (
    LIMITS,
    beyond_limit,
    check_limit,
    error_pct,
    has_timeline,
    prepare,
)
from .results import SimulateResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..graph.columns import ExecutionGraph
    from ..simulator.run import Simulation
    from .job import Job


#: What a simulation without a network is called.
MEASURED = "measured transfers"


@dataclass(frozen=True, eq=False)
class Single:
    """One simulation of a job, and its baseline.

    Attributes
    ----------
    graph : ExecutionGraph
        The job.
    simulation : Simulation
        What was asked for.
    baseline : Simulation or None
        The job on the network it was traced on; None where that is not known. Where nothing else
        was asked for it is the simulation itself.
    job : Job or None
        The job on the network of the simulation; None for measured transfers.
    warnings : list of str
        What to know before trusting the result.
    """

    graph: ExecutionGraph
    simulation: Simulation
    baseline: Simulation | None
    job: Job | None
    warnings: list[str]

    @property
    def scenarios(self) -> dict[str, Simulation]:
        """The simulations by name, the baseline first."""
        if self.job is None:
            return {MEASURED: self.simulation}
        if self.baseline is self.simulation:
            return {"baseline": self.simulation}
        named = {f"network {self.job.network.name}": self.simulation}
        return named if self.baseline is None else {"baseline": self.baseline, **named}

    def result(self, limit_pct: float = DEFAULT_LIMIT_PCT) -> SimulateResult:
        """Report the simulation.

        Parameters
        ----------
        limit_pct : float
            Largest size of the baseline's error, in percent, that is not marked.

        Raises
        ------
        UsageError
            For a limit that makes no sense.
        """
        check_limit(limit_pct)
        measured = self.simulation.measured_step_ns
        baseline_ns = None if self.baseline is None else self.baseline.step_ns
        error = None if baseline_ns is None else error_pct(baseline_ns, measured)
        return SimulateResult(
            trace=self.graph.trace,
            ranks=self.graph.num_ranks,
            steps=self.simulation.steps,
            dependency_model=self.graph.model,
            network=None if self.job is None else self.job.network,
            placement=None if self.job is None else self.job.placement.description,
            step_ns=self.simulation.step_ns,
            measured_step_ns=measured,
            change_pct=error_pct(self.simulation.step_ns, measured),
            baseline_step_ns=baseline_ns,
            baseline_error_pct=error,
            limit_pct=limit_pct,
            beyond_limit=beyond_limit(error, limit_pct),
            assumed_members=self.graph.coverage.assumed_members,
            per_rank=self.simulation.per_rank,
            critical_path_ns=self.simulation.critical_split,
            warnings=self.warnings,
            limits=list(LIMITS),
        )


def simulate_once(
    graph: ExecutionGraph,
    *,
    network: str | Path | None = None,
    rank_map: Mapping[int, int] | None = None,
    progress: Progress = silent,
) -> Single:
    """Simulate a job on a network, by default its baseline network.

    Parameters
    ----------
    graph : ExecutionGraph
        The job.
    network : str or Path, optional
        Preset or file.
    rank_map : mapping of int to int, optional
        Scale-up domain of every rank.
    progress : Progress
        Told what is being done.

    Returns
    -------
    Single

    Raises
    ------
    NetworkError
        If there is no such network, or it does not fit the job.
    GraphError
        If the graph is unsound or cannot be priced.
    """
    job = prepare(graph, network=network, rank_map=rank_map, progress=progress)
    warnings = list(job.warnings)
    baseline: Simulation | None = job.baseline
    if network is not None:
        try:
            baseline = prepare(graph, rank_map=rank_map, progress=progress).baseline
        except NetworkError as error:
            baseline = None
            warnings.append(f"how far the model is off is not known: {error}")
    return Single(graph, job.baseline, baseline, job, warnings)


def replay_measured(graph: ExecutionGraph) -> Single:
    """Replay the measured transfers of a job: its own timeline, if the conversion is right.

    Raises
    ------
    UsageError
        If the graph has no measured timeline.
    GraphError
        If the graph is unsound.
    """
    if not has_timeline(graph):
        raise UsageError("there is no measured timeline to replay", file=graph.trace)
    replay = simulate(compress(graph), measured=True)
    warnings = list(dict.fromkeys([*graph.coverage.warnings, *replay.warnings]))
    return Single(graph, replay, replay, None, warnings)
