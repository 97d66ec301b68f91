"""The function behind `whatif compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .astra import load_for_astra
from .base.progress import Progress, silent
from .conversion import announce_compilation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph.columns import DependencyModel
    from .simulations import RankMap, Trace
    from .simulator.astra.compare_results import CompareResult


def compare(
    trace: Trace,
    *,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    processes: int | None = None,
    progress: Progress = silent,
) -> CompareResult:
    """Simulate a job once under our physics and once under ASTRA-sim's, and explain the difference.

    ASTRA-sim's is that of its congestion-unaware backend, computed by the parity engine.

    Parameters
    ----------
    trace, steps, assume_missing, processes, progress
        As for `load`.
    network : str or Path, optional
        Preset or file; by default the network the job was traced on, as far as it is known.
    rank_map
        As for `simulate`.
    model : str, optional
        Dependency model of both; by default ``serial``, the only one that ASTRA-sim can run
        without queueing computations of one rank. Files that are Chakra already keep theirs.

    Returns
    -------
    CompareResult

    Raises
    ------
    TraceError, GraphError, NetworkError, UsageError
        If the trace, the graph or the network cannot be used, or ASTRA-sim could not express or
        run them.
    """
    from .rank_map import read_rank_map
    from .simulator.astra.compare import compare as run
    from .sweeps.job import prepare

    domains = read_rank_map(rank_map) if isinstance(rank_map, str | Path) else rank_map
    graph = load_for_astra(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    announce_compilation(progress)
    job = prepare(graph, network=network, rank_map=domains, progress=progress)
    return run(job.baseline, job.network, job.placement, progress)
