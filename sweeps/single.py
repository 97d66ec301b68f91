"""One simulation of a job, with the error of its baseline beside it.

A network that the user names may be the machine of the trace or another one; only the baseline
can tell how far the model is to be believed, so it is always simulated too.
"""

from __future__ import annotations

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


def simulate_once(
    graph: ExecutionGraph,
    *,
    network: str | Path | None = None,
    rank_map: Mapping[int, int] | None = None,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    progress: Progress = silent,
) -> SimulateResult:
    """Simulate a job on a network, by default its baseline network.

    Parameters
    ----------
    graph : ExecutionGraph
        The job.
    network : str or Path, optional
        Preset or file.
    rank_map : mapping of int to int, optional
        Scale-up domain of every rank.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.
    progress : Progress
        Told what is being done.

    Returns
    -------
    SimulateResult

    Raises
    ------
    NetworkError
        If there is no such network, or it does not fit the job.
    GraphError
        If the graph is unsound or cannot be priced.
    """
    check_limit(limit_pct)
    job = prepare(graph, network=network, rank_map=rank_map, progress=progress)
    warnings = list(job.warnings)
    baseline: Simulation | None = job.baseline
    if network is not None:
        try:
            baseline = prepare(graph, rank_map=rank_map, progress=progress).baseline
        except NetworkError as error:
            baseline = None
            warnings.append(f"how far the model is off is not known: {error}")
    return _result(graph, job.baseline, baseline, limit_pct, warnings, job=job)


def replay_measured(
    graph: ExecutionGraph, *, limit_pct: float = DEFAULT_LIMIT_PCT
) -> SimulateResult:
    """Replay the measured transfers of a job: its own timeline, if the conversion is right.

    Raises
    ------
    UsageError
        If the graph has no measured timeline.
    GraphError
        If the graph is unsound.
    """
    check_limit(limit_pct)
    if not has_timeline(graph):
        raise UsageError("there is no measured timeline to replay", file=graph.trace)
    replay = simulate(compress(graph), measured=True)
    warnings = list(dict.fromkeys([*graph.coverage.warnings, *replay.warnings]))
    return _result(graph, replay, replay, limit_pct, warnings)


def _result(
    graph: ExecutionGraph,
    simulation: Simulation,
    baseline: Simulation | None,
    limit_pct: float,
    warnings: list[str],
    *,
    job: Job | None = None,
) -> SimulateResult:
    measured = simulation.measured_step_ns
    baseline_ns = None if baseline is None else baseline.step_ns
    error = None if baseline_ns is None else error_pct(baseline_ns, measured)
    return SimulateResult(
        trace=graph.trace,
        ranks=graph.num_ranks,
        steps=simulation.steps,
        dependency_model=graph.model,
        network=None if job is None else job.network,
        placement=None if job is None else job.placement.description,
        step_ns=simulation.step_ns,
        measured_step_ns=measured,
        change_pct=error_pct(simulation.step_ns, measured),
        baseline_step_ns=baseline_ns,
        baseline_error_pct=error,
        limit_pct=limit_pct,
        beyond_limit=beyond_limit(error, limit_pct),
        per_rank=simulation.per_rank,
        critical_path_ns=simulation.critical_split,
        warnings=warnings,
        limits=list(LIMITS),
    )
