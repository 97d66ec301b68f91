"""Load a job from whatever holds it, and write it as Chakra files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import several
from .base.errors import UsageError
from .base.progress import Progress, silent, stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph.columns import DependencyModel, ExecutionGraph
    from .reports.results import ConversionResult

_ET = re.compile(r".*\.\d+\.et(\.gz)?")


def load(
    trace: str | Path | ExecutionGraph,
    *,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    processes: int | None = None,
    progress: Progress = silent,
) -> ExecutionGraph:
    """Load a job.

    Parameters
    ----------
    trace : str, Path or ExecutionGraph
        A directory with one Kineto trace per rank, one Kineto trace; an XLA profile
        (``xplane.pb`` or ``trace.json``), a directory with one for each host, or the directory
        that was given to the XLA profiler; or Chakra files (a directory with one set of
        ``<prefix>.<npu>.et``, ``directory/prefix``, or one file of a set). What it is is told
        from the content. A graph is returned as it is. Where a directory holds Kineto traces
        too, they count.
    model : str, optional
        Dependency model: ``host``, ``stream`` or ``serial``; the richest that the trace supports
        by default (for XLA profiles ``stream``).
    steps : sequence of str, optional
        Consecutive steps to use, by name or number (or one step alone); all by default.
    assume_missing : bool
        Assume the members of groups that were not traced to arrive with those that were.
    processes : int, optional
        Processes that read files at the same time; by default as many as there are cores.
        Whatever is not 1 needs the caller's script to be guarded by
        ``if __name__ == "__main__"``.
    progress : Progress
        Told what is being done.

    Returns
    -------
    ExecutionGraph

    Raises
    ------
    TraceError
        If files are damaged, missing, or of no use.
    GraphError
        If the ranks contradict each other.
    UsageError
        If the model or the steps cannot be had from this trace.
    """
    from .graph.columns import ExecutionGraph

    steps = None if steps is None else several(steps)
    if isinstance(trace, ExecutionGraph):
        _check_converted(trace, model, steps)
        return trace
    path = Path(trace)
    if holds_chakra(path):
        from .graph.chakra import read_et

        progress("reading Chakra files", 0, 0)
        graph = read_et(path)
        _check_converted(graph, model, steps)
        return _without_timeline(graph) if graph.source == "chakra" else graph

    reading = stage(progress, "reading the trace")
    if _holds_xla(path):
        from .converters.xla.convert import convert_xla

        graph = convert_xla(
            path, model=model, steps=steps, assume_missing=assume_missing, progress=reading
        )
    else:
        from .converters.kineto.convert import convert_kineto

        graph = convert_kineto(
            path,
            model=model,
            steps=steps,
            assume_missing=assume_missing,
            processes=processes,
            progress=reading,
        )
    _measure_gaps(graph, progress)
    return graph


def gen_gpu_chakra_et(
    trace: str | Path | ExecutionGraph,
    out: str | Path,
    *,
    prefix: str = "whatif",
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    overwrite: bool = False,
    processes: int | None = None,
    progress: Progress = silent,
) -> ConversionResult:
    """Convert a measured trace of GPUs (or CPUs) to Chakra execution traces, one per rank.

    Parameters
    ----------
    trace, model, steps, assume_missing, processes, progress
        As for `load`.
    out : str or Path
        Directory to write; made if it does not exist.
    prefix : str
        First part of the file names.
    overwrite : bool
        Replace a set of the same prefix.

    Returns
    -------
    ConversionResult
        The files, and the coverage report.

    Raises
    ------
    TraceError, GraphError, UsageError
        As for `load`; and if the files exist already, or the trace is of TPUs. Nothing is
        written then.
    """
    graph = load(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    if graph.source == "xla-tpu":
        raise UsageError("is of TPUs: use gen_tpu_chakra_et", file=graph.trace)
    return write_chakra(graph, out, prefix=prefix, overwrite=overwrite, progress=progress)


def gen_tpu_chakra_et(
    trace: str | Path | ExecutionGraph,
    out: str | Path,
    *,
    prefix: str = "whatif",
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> ConversionResult:
    """Convert an XLA profile (of TPUs, or of JAX elsewhere) to Chakra execution traces.

    Parameters
    ----------
    trace, model, steps, assume_missing, progress
        As for `load`.
    out, prefix, overwrite
        As for `gen_gpu_chakra_et`.

    Returns
    -------
    ConversionResult
        The files, one for each device, and the coverage report.

    Raises
    ------
    TraceError, GraphError, UsageError
        As for `load`; and if the files exist already, or the trace is no XLA profile. Nothing is
        written then.
    """
    graph = load(trace, model=model, steps=steps, assume_missing=assume_missing, progress=progress)
    if not graph.source.startswith("xla-"):
        raise UsageError("is no XLA profile: use gen_gpu_chakra_et", file=graph.trace)
    return write_chakra(graph, out, prefix=prefix, overwrite=overwrite, progress=progress)


def write_chakra(
    graph: ExecutionGraph,
    out: str | Path,
    *,
    prefix: str,
    overwrite: bool,
    progress: Progress,
) -> ConversionResult:
    """Write a graph as Chakra execution traces.

    Raises
    ------
    GraphError, UsageError
        If it cannot be written as such, or the files exist already.
    """
    from .graph.chakra import export_warnings, write_et
    from .graph.compress import compress
    from .reports.results import ConversionResult

    progress("writing Chakra files", 0, 0)
    files = write_et(graph, Path(out), prefix, overwrite=overwrite)
    return ConversionResult(
        trace=graph.trace,
        out=str(out),
        files=[str(file) for file in files],
        ranks=graph.num_ranks,
        nodes=graph.num_nodes,
        steps=list(graph.steps.names),
        dependency_model=graph.model,
        compression=compress(graph).ratio,
        coverage=graph.coverage,
        export_warnings=export_warnings(graph),
    )


def announce_compilation(progress: Progress) -> None:
    """Say so where the engine is about to be compiled, which takes a while."""
    from .simulator.engine import is_compiled

    if not is_compiled():
        progress("compiling the engine (first use, cached afterwards)", 0, 0)


def holds_chakra(path: Path) -> bool:
    """Whether a path stands for Chakra files: a directory, a prefix or one file of a set."""
    if path.is_file():
        return bool(_ET.fullmatch(path.name))
    if not path.is_dir():
        # A prefix: directory/prefix stands for directory/prefix.0.et and so on.
        return path.parent.is_dir() and any(
            file.name.startswith(f"{path.name}.") and _ET.fullmatch(file.name)
            for file in path.parent.iterdir()
        )
    if not any(_ET.fullmatch(file.name) for file in path.iterdir()):
        return False
    from .converters.kineto.discover import holds_kineto

    return not holds_kineto(path)


def _holds_xla(path: Path) -> bool:
    from .converters.kineto.discover import holds_kineto
    from .converters.xla.discover import holds_xla

    return holds_xla(path) and (path.is_file() or not holds_kineto(path))


def _without_timeline(graph: ExecutionGraph) -> ExecutionGraph:
    """Files by others hold durations and no timeline, so nothing to compare a simulation with."""
    import numpy as np

    unknown = np.full_like(graph.steps.completion_ns, -1)
    return graph.with_(steps=replace(graph.steps, completion_ns=unknown))


def _check_converted(
    graph: ExecutionGraph, model: DependencyModel | None, steps: Sequence[str] | None
) -> None:
    """Refuse to choose again what was chosen when the trace was converted."""
    if model is not None and model != graph.model:
        raise UsageError(
            f"was converted with the {graph.model} model; convert the trace again for the {model} "
            "model",
            file=graph.trace,
        )
    if steps is not None and list(steps) != list(graph.steps.names):
        raise UsageError(
            f"holds the steps {', '.join(graph.steps.names)}; convert the trace again for others",
            file=graph.trace,
        )


#: More of the critical path than this without an explanation is worth a warning.
MOST_GAP_PCT = 10.0


def _measure_gaps(graph: ExecutionGraph, progress: Progress) -> None:
    """Fill in the coverage what a replay of the measured transfers tells about gaps."""
    from .graph.compress import compress
    from .simulator.accounting import CATEGORIES
    from .simulator.run import simulate

    announce_compilation(progress)
    replay = simulate(compress(graph), measured=True)
    finish = replay.completion_ns[-1]
    if finish.max() <= 0:
        return
    # A rank that is done while others are not is idle for a reason.
    idle = replay.categories[:, :, CATEGORIES.index("idle")].sum(axis=1) - (finish.max() - finish)
    graph.coverage.gap_share_pct = float(idle.sum() / (finish.max() * graph.num_ranks) * 100)
    split = replay.critical_split
    graph.coverage.critical_gap_pct = split["gap"] / max(sum(split.values()), 1) * 100
    if graph.coverage.critical_gap_pct > MOST_GAP_PCT:
        graph.coverage.warnings.append(
            f"{graph.coverage.critical_gap_pct:.0f} % of the critical path is time that no "
            "dependency explains; on another network it stays as it was"
        )
