"""The functions behind `whatif simulate`, `sweep`, `utility` and `clusters`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import several
from .base.errors import UsageError
from .base.progress import Progress, silent
from .base.settings import DEFAULT_LIMIT_PCT
from .conversion import announce_compilation, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .graph.columns import DependencyModel, ExecutionGraph
    from .simulator.run import Simulation
    from .sweeps.job import Job
    from .sweeps.results import SimulateResult, SweepResult
    from .sweeps.single import Single
    from .utility.results import ClustersResult, UtilityResult

    Trace = str | Path | ExecutionGraph
    RankMap = Mapping[int, int] | str | Path


def simulate(
    trace: Trace,
    *,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    measured: bool = False,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    timeline: str | Path | None = None,
    processes: int | None = None,
    progress: Progress = silent,
) -> SimulateResult:
    """Simulate a job once.

    Parameters
    ----------
    trace, model, steps, assume_missing, processes, progress
        As for `load`.
    network : str or Path, optional
        Preset or file; by default the network the job was traced on, as far as it is known.
    rank_map : mapping of int to int, str or Path, optional
        Scale-up domain of every rank, or a file of it (see `rank_map.read_rank_map`).
    measured : bool
        Replay the measured transfers instead of a network.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.
    timeline : str or Path, optional
        File to write for ui.perfetto.dev, compressed if it ends in ``.gz``: the simulation, and
        beside it the baseline where that is another one.

    Returns
    -------
    SimulateResult

    Raises
    ------
    TraceError, GraphError, NetworkError, UsageError
        If the trace, the graph or the network cannot be used.
    WhatIfError
        If the timeline cannot be written.
    """
    single = simulate_single(
        trace,
        network=network,
        rank_map=rank_map,
        measured=measured,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    result = single.result(limit_pct)
    if timeline is not None:
        _write_timeline(timeline, single.scenarios.items(), result, progress)
    return result


def simulate_single(
    trace: Trace,
    *,
    network: str | Path | None,
    rank_map: RankMap | None,
    measured: bool,
    model: DependencyModel | None,
    steps: Sequence[str] | None,
    assume_missing: bool,
    processes: int | None,
    progress: Progress,
) -> Single:
    """Load and simulate a job once, for what is reported of it afterwards; as `simulate`."""
    from .sweeps.single import replay_measured, simulate_once

    if measured and (network is not None or rank_map is not None):
        raise UsageError("measured transfers are replayed without a network or a rank map")
    domains = _read(rank_map)
    graph = load(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    announce_compilation(progress)
    if measured:
        return replay_measured(graph)
    return simulate_once(graph, network=network, rank_map=domains, progress=progress)


def sweep(
    trace: Trace,
    resources: Sequence[str],
    factors: Sequence[float] = (2.0,),
    *,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    intervals: bool = True,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    timeline: str | Path | None = None,
    processes: int | None = None,
    progress: Progress = silent,
) -> SweepResult:
    """Make resources of a job better, one at a time, and tell what that does to the step.

    Parameters
    ----------
    trace, model, steps, assume_missing, processes, progress
        As for `load`.
    resources : sequence of str
        Any of `sweeps.resources.RESOURCES`, or one of them alone; on a torus also of
        `TORUS_RESOURCES` there, or a shape such as ``torus:2x4``.
    factors : sequence of float
        How many times better; below 1 is worse.
    network : str or Path, optional
        Preset or file of the network the job was traced on; by default the preset that matches
        the trace, with what the trace's own transfers say.
    rank_map, limit_pct
        As for `simulate`.
    intervals : bool
        Simulate on whatever other networks the measurements allow, too, to say how sure the
        results are; without, that is left out, which is several times faster.
    timeline : str or Path, optional
        File to write for ui.perfetto.dev, compressed if it ends in ``.gz``: the baseline and
        every variant, side by side.

    Returns
    -------
    SweepResult

    Raises
    ------
    TraceError, GraphError, NetworkError
        If the trace, the graph or the network cannot be used.
    ResourceError
        If the job does not have a resource.
    UsageError
        For an unknown resource, or a factor that makes no sense.
    WhatIfError
        If the timeline cannot be written.
    """
    from .sweeps.resources import find_resources
    from .sweeps.run import check_factors, scenarios
    from .sweeps.run import sweep as run

    # What is wrong with the call is said before a long read, not after it.
    resources = several(resources)
    find_resources(resources)
    check_factors(factors)
    graph = load(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    job = _swept(graph, network, _read(rank_map), progress, intervals=intervals)
    result = run(job, resources, factors, limit_pct=limit_pct, progress=progress)
    if timeline is not None:
        _write_timeline(timeline, scenarios(job, resources, factors), result, progress)
    return result


def utility(
    traces: Trace | Sequence[Trace],
    *,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    intervals: bool = True,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    processes: int | None = None,
    progress: Progress = silent,
) -> UtilityResult:
    """Make every standard resource of one or several jobs twice as good, one at a time.

    Parameters
    ----------
    traces : str, Path, ExecutionGraph, or a sequence of them
        The jobs, each as for `load`.
    network, rank_map, intervals, limit_pct
        As for `sweep`; the same for all jobs.
    model, steps, assume_missing, processes, progress
        As for `load`; the same for all jobs.

    Returns
    -------
    UtilityResult
        A resource that a job does not have is listed as refused.

    Raises
    ------
    TraceError, GraphError, NetworkError, UsageError
        If a trace, a graph or the network cannot be used.
    """
    from .graph.columns import ExecutionGraph
    from .utility.standard import utility as run

    several = [traces] if isinstance(traces, str | Path | ExecutionGraph) else list(traces)
    if not several:
        raise UsageError("no trace given")
    domains = _read(rank_map)

    def jobs() -> Iterator[Job]:
        for trace in several:
            graph = load(
                trace,
                model=model,
                steps=steps,
                assume_missing=assume_missing,
                processes=processes,
                progress=progress,
            )
            yield _swept(graph, network, domains, progress, intervals=intervals)

    return run(jobs(), limit_pct=limit_pct, progress=progress)


def clusters(
    trace: Trace,
    *,
    domains: Sequence[int] = (),
    scaleup_gb_s: Sequence[float] = (),
    scaleout_gb_s: Sequence[float] = (),
    presets: Sequence[str | Path] = (),
    like: str | Path | None = None,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    processes: int | None = None,
    progress: Progress = silent,
) -> ClustersResult:
    """Compare cluster architectures for a job: domain size and both bandwidths together.

    Parameters
    ----------
    trace, model, steps, assume_missing, processes, progress
        As for `load`.
    domains : sequence of int
        Ranks that a scale-up domain holds.
    scaleup_gb_s, scaleout_gb_s : sequence of float
        Nominal bandwidths in GB/s per rank and direction. All combinations with `domains` are
        simulated; what is not given stays as it is in `like`.
    presets : sequence of str or Path
        Presets or files that are architectures of their own.
    like : str or Path, optional
        Preset or file from which the combinations take latency, efficiency and fixed costs, by
        default the baseline network.
    network, rank_map, limit_pct
        As for `sweep`.

    Returns
    -------
    ClustersResult
        The baseline first.

    Raises
    ------
    TraceError, GraphError, NetworkError
        If the trace, the graph or a network cannot be used, or the job does not fit into an
        architecture.
    UsageError
        If there is nothing to compare, or a number makes no sense.
    """
    from .sweeps.architectures import plan
    from .utility.clusters import clusters as run

    # What is wrong with the call is said before a long read, not after it.
    wanted = plan(
        domains=domains,
        scaleup_gb_s=scaleup_gb_s,
        scaleout_gb_s=scaleout_gb_s,
        presets=several(presets),
        like=like,
    )
    graph = load(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    job = _prepare(graph, network, _read(rank_map), progress)
    return run(job, wanted, limit_pct=limit_pct, progress=progress)


def _write_timeline(
    path: str | Path,
    scenarios: Iterable[tuple[str, Simulation]],
    result: SimulateResult | SweepResult,
    progress: Progress,
) -> None:
    from .reports.perfetto import write_timelines
    from .reports.steps import mark
    from .simulator.timeline import timeline

    progress("writing the timeline", 0, 0)
    marked = ((f"{name}{mark(result)}", timeline(one)) for name, one in scenarios)
    write_timelines(path, marked)


def _swept(
    graph: ExecutionGraph,
    network: str | Path | None,
    rank_map: Mapping[int, int] | None,
    progress: Progress,
    *,
    intervals: bool,
) -> Job:
    """Prepare a job whose utilities come with intervals, or without."""
    from .calibration.calibrate import DRAWS
    from .sweeps.intervals import without_alternatives

    draws = DRAWS if intervals else 0
    job = _prepare(graph, network, rank_map, progress, draws)
    return job if intervals else without_alternatives(job)


def _prepare(
    graph: ExecutionGraph,
    network: str | Path | None,
    rank_map: Mapping[int, int] | None,
    progress: Progress,
    draws: int = 0,
) -> Job:
    from .sweeps.job import prepare

    announce_compilation(progress)
    return prepare(graph, network=network, rank_map=rank_map, draws=draws, progress=progress)


def _read(rank_map: RankMap | None) -> Mapping[int, int] | None:
    if isinstance(rank_map, str | Path):
        from .rank_map import read_rank_map

        return read_rank_map(rank_map)
    return rank_map
