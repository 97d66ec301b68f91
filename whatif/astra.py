"""The function behind `whatif astra export`."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .base.errors import NetworkError, UsageError
from .base.progress import Progress, silent
from .conversion import announce_compilation, holds_chakra, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .calibration.results import AstraConfig
    from .graph.columns import DependencyModel, ExecutionGraph
    from .reports.results import AstraExportResult, AstraVariant
    from .simulations import RankMap, Trace
    from .simulator.astra.files import MemoryFile, NetworkFile, SystemFile
    from .simulator.network import Network
    from .simulator.placement import Placement
    from .sweeps.job import Job

#: What the baseline is called, and its directory.
BASELINE = "baseline"

#: First part of the names of the .et files.
PREFIX = "whatif"


def astra_export(
    trace: Trace,
    out: str | Path,
    *,
    resources: Sequence[str] = (),
    factors: Sequence[float] = (2.0,),
    presets: Sequence[str | Path] = (),
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    overwrite: bool = False,
    processes: int | None = None,
    progress: Progress = silent,
) -> AstraExportResult:
    """Write everything that a stock ASTRA-sim needs to simulate a job and variants of its network.

    Parameters
    ----------
    trace, steps, assume_missing, processes, progress
        As for `load`.
    out : str or Path
        Directory to write: the .et files, a directory of settings for the baseline and each
        variant, and how to run them.
    resources : sequence of str
        Resources of the network to make better, as for `sweep`.
    factors : sequence of float
        How many times better.
    presets : sequence of str or Path
        Further networks, presets or files, with any topology and algorithm.
    network, rank_map
        The baseline, as for `sweep`.
    model : str, optional
        Dependency model; by default ``serial``, because ASTRA-sim runs one computation and one
        communication of a rank at a time. Files that are Chakra already keep theirs.
    overwrite : bool
        Replace what is there of the same names.

    Returns
    -------
    AstraExportResult
        Each variant with what is folded and what is lost.

    Raises
    ------
    TraceError, GraphError
        If the trace or the graph cannot be used.
    NetworkError
        If ASTRA-sim cannot express a network.
    ResourceError
        If the job does not have a resource.
    UsageError
        For a resource that is not of the network, or if the directory holds something already.
        After an error nothing is written.
    """
    from .graph.chakra import export_warnings
    from .rank_map import read_rank_map
    from .reports.astra import GUIDE, astra_guide
    from .reports.results import AstraExportResult
    from .sweeps.job import prepare
    from .sweeps.resources import find_resources
    from .sweeps.run import check_factors

    if resources:
        # What is wrong with the call is said before a long read, not after it.
        find_resources(resources)
        check_factors(factors)
    place = Path(out)
    _check_place(place, overwrite=overwrite)
    graph = load_for_astra(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    announce_compilation(progress)
    domains = read_rank_map(rank_map) if isinstance(rank_map, str | Path) else rank_map
    job = prepare(graph, network=network, rank_map=domains, progress=progress)
    variants = list(_variants(job, resources, factors, presets))
    made = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".whatif-", dir=place) as name:
            work = Path(name)
            exported = _write(work, graph, variants, progress)
            result = AstraExportResult(
                trace=graph.trace,
                out=str(out),
                ranks=graph.num_ranks,
                steps=list(graph.steps.names),
                dependency_model=graph.model,
                baseline_error_pct=job.baseline_error_pct,
                variants=exported,
                assumptions=job.network.assumptions,
                export_warnings=export_warnings(graph),
                warnings=_warnings(graph, job),
            )
            (work / GUIDE).write_text(astra_guide(result), encoding="utf-8")
            _move(work, place)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=place) from error
    finally:
        if made and place.exists() and not any(place.iterdir()):
            place.rmdir()
    return result


def load_for_astra(
    trace: Trace,
    *,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    processes: int | None = None,
    progress: Progress = silent,
) -> ExecutionGraph:
    """Load a job as `load` does, by default with the model that ASTRA-sim can run.

    That is ``serial``: ASTRA-sim runs one computation and one communication of a rank at a time,
    so work of several streams and threads would queue up for them. What is converted already
    keeps the model that it has.
    """
    from .graph.columns import ExecutionGraph

    if model is None and not isinstance(trace, ExecutionGraph) and not holds_chakra(Path(trace)):
        model = "serial"
    return load(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )


class _Variant(NamedTuple):
    """A network to write; `resource` is None for the baseline and other networks."""

    name: str
    network: Network
    placement: Placement
    resource: str | None
    factor: float | None
    shape_change: str | None


def _variants(
    job: Job,
    resources: Sequence[str],
    factors: Sequence[float],
    presets: Sequence[str | Path],
) -> Iterator[_Variant]:
    from .sweeps.architectures import plan, sites
    from .sweeps.resources import find_resources
    from .sweeps.run import check_factors

    yield _Variant(BASELINE, job.network, job.placement, None, None, None)
    for resource in find_resources(resources) if resources else []:
        for factor in check_factors(factors):
            made = resource.vary(job, factor)
            if made.compute_scale != 1 or made.host_scale != 1:
                raise UsageError(
                    f"{resource.name}: is no part of the network, which is all that ASTRA-sim's "
                    "settings describe"
                )
            yield _Variant(
                f"{resource.name}_x{factor:g}",
                made.network,
                made.placement,
                resource.name,
                factor,
                made.shape_change,
            )
    if presets:
        for site in sites(job, plan(presets=presets))[1:]:
            of = site.architecture
            yield _Variant(
                file_name(of.name), of.network, site.placement, None, None, of.shape_change
            )


def file_name(name: str) -> str:
    """Make a name of a directory of the name of a network."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("._") or "network"


def _write(
    work: Path, graph: ExecutionGraph, variants: Sequence[_Variant], progress: Progress
) -> list[AstraVariant]:
    """Write traces and settings, and play each variant once: what stalls is not written.

    Ranks that sit in another order need traces of their own.
    """
    from dataclasses import replace

    from .graph.chakra import write_et
    from .reports.results import AstraVariant
    from .simulator.astra.export import astra_inputs
    from .simulator.astra.job import AstraJob, astra_job, step_ns
    from .simulator.astra.parity import run

    traces: dict[tuple[int, ...], tuple[str, AstraJob]] = {}
    exported: list[AstraVariant] = []
    for done, variant in enumerate(variants):
        progress("writing files for ASTRA-sim", done, len(variants))
        directory = work / variant.name
        if directory.exists():
            raise UsageError(f"two networks are called {variant.name!r}")
        try:
            inputs = astra_inputs(graph, variant.network, variant.placement)
        except NetworkError as error:
            place = ", ".join(filter(None, (variant.name, error.place)))
            raise NetworkError(error.message, rank=error.rank, place=place) from error
        directory.mkdir()
        notes = [
            *(f"folded: {line}" for line in inputs.folded),
            *(f"lost: {line}" for line in inputs.lost),
        ]
        _write_settings(directory, inputs.network, inputs.system, inputs.memory, notes)
        if inputs.order not in traces:
            # A number and no name: ASTRA-sim takes groups for none if "empty" is in their path.
            prefix = f"et_{len(traces)}" if traces else "et"
            write_et(graph, work / prefix, PREFIX, order=inputs.order)
            made = astra_job(graph, variant.network, variant.placement)
            traces[inputs.order] = prefix, made
        prefix, job = traces[inputs.order]
        settings = replace(job.experiment, network=inputs.network, system=inputs.system)
        outcome = run(job.workload, settings)
        step = step_ns(graph, job, outcome)
        baseline = exported[0].step_ns if exported else step
        exported.append(
            AstraVariant(
                name=variant.name,
                resource=variant.resource,
                factor=variant.factor,
                shape_change=variant.shape_change,
                traces=f"{prefix}/{PREFIX}",
                ranks_by_npu=graph.ranks[list(inputs.order)].tolist(),
                topology=inputs.network.topology,
                npus_count=inputs.network.npus_count,
                bandwidth_gib_s=inputs.network.bandwidth,
                latency_ns=inputs.network.latency,
                all_reduce=inputs.system.all_reduce_implementation or [],
                finish_cycles=max(outcome.finish),
                step_ns=step,
                utility_pct=(baseline - step) / max(baseline, 1) * 100,
                folded=list(inputs.folded),
                lost=list(inputs.lost),
            )
        )
    return exported


def write_astra_config(config: AstraConfig, directory: Path) -> None:
    """Write what `calibrate` fitted for ASTRA-sim: network.yml, system.json and memory.json.

    Parameters
    ----------
    config : AstraConfig
        Its notes become comments in network.yml.
    directory : Path
        Made if it does not exist.

    Raises
    ------
    UsageError, NetworkError
        If they cannot be written, or one of them is there already. After an error nothing is
        written.
    """
    from .reports.astra import MEMORY_FILE, NETWORK_FILE, SYSTEM_FILE

    for name in (NETWORK_FILE, SYSTEM_FILE, MEMORY_FILE):
        if (directory / name).exists():
            raise UsageError("is there already; choose another directory", file=directory / name)
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".whatif-", dir=directory) as name:
            work = Path(name)
            _write_settings(work, config.network, config.system, config.memory, config.notes)
            _move(work, directory)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=directory) from error
    finally:
        if made and directory.exists() and not any(directory.iterdir()):
            directory.rmdir()


def _write_settings(
    directory: Path,
    network: NetworkFile,
    system: SystemFile,
    memory: MemoryFile,
    notes: Sequence[str],
) -> None:
    from .reports.astra import MEMORY_FILE, NETWORK_FILE, SYSTEM_FILE
    from .simulator.astra.files import write_memory, write_network, write_system

    write_network(directory / NETWORK_FILE, network, notes)
    write_system(directory / SYSTEM_FILE, system)
    write_memory(directory / MEMORY_FILE, memory)


def _warnings(graph: ExecutionGraph, job: Job) -> list[str]:
    warnings = list(job.warnings)
    if graph.model != "serial":
        warnings.append(
            f"the {graph.model} model has more than one thing at a time, and ASTRA-sim runs one "
            "computation and one communication of a rank at a time: its baseline will be longer"
        )
    return warnings


def _check_place(place: Path, *, overwrite: bool) -> None:
    if place.exists() and not place.is_dir():
        raise UsageError("is no directory", file=place)
    if not overwrite and place.is_dir() and any(place.iterdir()):
        raise UsageError("is not empty; choose another place or allow overwriting", file=place)


def _move(work: Path, place: Path) -> None:
    """Move what is complete to where it is to be, in place of what was there before."""
    for entry in sorted(work.iterdir()):
        target = place / entry.name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        entry.replace(target)
