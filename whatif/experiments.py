"""The function behind `whatif simulate --semantics astra` and `--engine astra-sim`."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from .base.errors import NetworkError, UsageError
from .base.progress import Progress, silent
from .conversion import announce_compilation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .graph.columns import DependencyModel, ExecutionGraph
    from .simulations import RankMap, Trace
    from .simulator.astra.experiment import Experiment
    from .simulator.astra.external import ExperimentFiles
    from .simulator.astra.job import AstraJob
    from .simulator.astra.parity import Outcome
    from .simulator.astra.results import AstraResult
    from .simulator.astra.workload import Workload

Engine = Literal["whatif", "astra-sim"]

#: Options of ASTRA-sim's command line that have an effect, and what they are in an experiment.
_OPTIONS = ("num-queues-per-dim", "injection-scale", "rendezvous-protocol")

# With it the longest delay of a file still fits into the clock.
_MOST_SCALE = 100_000


def simulate_astra(
    trace: Trace | None = None,
    *,
    et: str | Path | None = None,
    astra_network: str | Path | None = None,
    astra_system: str | Path | None = None,
    astra_groups: str | Path | None = None,
    astra_memory: str | Path | None = None,
    options: Mapping[str, str] | None = None,
    backend: str = "congestion_unaware",
    engine: Engine = "whatif",
    astra_sim_bin: str | Path | None = None,
    time_limit_s: float | None = None,
    silence_limit_s: float | None = None,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    processes: int | None = None,
    progress: Progress = silent,
) -> AstraResult:
    """Simulate under the physics of ASTRA-sim: a job of ours, or an experiment of its own files.

    Parameters
    ----------
    trace, steps, assume_missing, processes, progress
        As for `load`: a job, whose network is written in the terms of ASTRA-sim.
    et : str or Path, optional
        Prefix of the .et files of an experiment, instead of a trace.
    astra_network, astra_system : str or Path, optional
        Its network.yml and system.json.
    astra_groups, astra_memory : str or Path, optional
        Its communicator groups and remote memory; none by default.
    options : mapping of str to str, optional
        Of ASTRA-sim's command line: ``num-queues-per-dim``, ``injection-scale`` and
        ``rendezvous-protocol``.
    backend : str
        ``congestion_unaware`` or ``congestion_aware``.
    engine : str
        ``whatif`` for our own parity engine, ``astra-sim`` for a real binary.
    astra_sim_bin : str or Path, optional
        The binary, or where it is; by default as third_party/astra-sim/README.md says.
    time_limit_s, silence_limit_s : float, optional
        How long a binary may run, and say nothing.
    network, rank_map, model
        Of a trace, as for `compare`.

    Returns
    -------
    AstraResult
        The same whoever computed it, but for the step, which a binary does not tell.

    Raises
    ------
    TraceError, GraphError, NetworkError, UsageError
        If the inputs cannot be used, or ASTRA-sim could not run them.
    EngineError
        If a binary fails, with what in the inputs caused it, where that is known.
    """
    from .simulator.astra.binary import find_binary
    from .simulator.astra.external import SILENCE_LIMIT_S, TIME_LIMIT_S, Limits, run_external
    from .simulator.astra.parity import run

    given = (et, astra_network, astra_system, astra_groups, astra_memory)
    if engine == "whatif" and astra_sim_bin is not None:
        raise UsageError("--astra-sim-bin goes with --engine astra-sim")
    for option, value in (
        ("--network", network),
        ("--rank-map", rank_map),
        ("--model", model),
        ("--step", steps),
    ):
        if et is not None and value is not None:
            raise UsageError(f"{option} goes with a trace; .et files are taken as they are")
    if (trace is None) == (et is None):
        raise UsageError("name either a trace or the .et files of an experiment")
    if trace is not None and any(value is not None for value in given):
        raise UsageError("settings of ASTRA-sim are for .et files; those of a trace are made")
    binary = None if engine == "whatif" else find_binary(astra_sim_bin, backend)
    limits = Limits(
        TIME_LIMIT_S if time_limit_s is None else time_limit_s,
        SILENCE_LIMIT_S if silence_limit_s is None else silence_limit_s,
    )
    if et is None:
        assert trace is not None
        case = _of_trace(
            trace,
            network=network,
            rank_map=rank_map,
            model=model,
            steps=steps,
            assume_missing=assume_missing,
            processes=processes,
            progress=progress,
        )
    else:
        case = _of_files(Path(et), given[1:], progress)
    case = case.with_options(backend, options or {})
    if binary is None:
        announce_compilation(progress)
        progress("simulating under ASTRA-sim's physics", 0, 0)
        with case.naming_files():
            outcome = run(case.workload, case.experiment)
        step_ns = case.step_ns(outcome)
        return _result(case, outcome.finish, outcome.exposed, outcome.warnings, step_ns=step_ns)
    with tempfile.TemporaryDirectory(prefix="whatif-") as name:
        files = case.files or case.write(Path(name))
        with case.naming_files():
            told = run_external(
                binary, files, case.workload, case.experiment, limits=limits, progress=progress
            )
    warnings = [*case.workload.warnings, *told.warnings]
    return _result(case, told.finish_cycles, told.exposed_cycles, warnings, binary=str(binary))


class _Case(NamedTuple):
    """What is simulated: an experiment, of its own files or of a job."""

    name: str
    workload: Workload
    experiment: Experiment
    files: ExperimentFiles | None = None
    graph: ExecutionGraph | None = None
    job: AstraJob | None = None
    warnings: tuple[str, ...] = ()

    @contextmanager
    def naming_files(self) -> Iterator[None]:
        """Name the file of a setting that only turns out to be wrong beside the trace."""
        from .simulator.astra.files import NetworkFile

        try:
            yield
        except NetworkError as error:
            if error.file is not None or error.place is None or self.files is None:
                raise
            file: Path | None = self.files.system
            if error.place in NetworkFile.__struct_fields__:
                file = self.files.network
            elif error.place in _OPTIONS:
                file = None
            raise NetworkError(
                error.message, file=file, rank=error.rank, place=error.place
            ) from error

    def with_options(self, backend: str, options: Mapping[str, str]) -> _Case:
        """Choose the backend, and take options of ASTRA-sim's command line.

        Raises
        ------
        UsageError
            If there is no such backend or option, or a value makes no sense.
        """
        from dataclasses import replace

        from .simulator.astra.experiment import Backend
        from .simulator.astra.files import MOST_PIECES

        if backend not in list(Backend):
            raise UsageError(f"there is no backend {backend!r}; there are {', '.join(Backend)}")
        unknown = next((name for name in options if name not in _OPTIONS), None)
        if unknown is not None:
            raise UsageError(
                f"ASTRA-sim has no option {unknown!r} of effect; it has {', '.join(_OPTIONS)}"
            )
        given_queues, given_scale, rendezvous = (options.get(name) for name in _OPTIONS)
        try:
            queues, scale = int(given_queues or 1), float(given_scale or 1)
            experiment = replace(
                self.experiment,
                backend=Backend(backend),
                queues_per_dim=queues,
                injection_scale=scale,
                rendezvous={"true": True, "false": False}[(rendezvous or "false").lower()],
            )
        except (ValueError, KeyError) as error:
            raise UsageError(f"a value of ASTRA-sim's options makes no sense: {error}") from error
        for name, value, least, most in (
            (_OPTIONS[0], queues, 1, MOST_PIECES),
            (_OPTIONS[1], scale, 0, _MOST_SCALE),
        ):
            if not least <= value <= most:  # which NaN is not, either
                raise UsageError(f"{name} is not between {least} and {most:,}")
        return self._replace(experiment=experiment)

    def step_ns(self, outcome: Outcome) -> int | None:
        """Headline step of a job."""
        from .simulator.astra.job import step_ns

        if self.graph is None or self.job is None:
            return None
        return step_ns(self.graph, self.job, outcome)

    def write(self, place: Path) -> ExperimentFiles:
        """Write the files of a job."""
        from .graph.chakra import write_et
        from .simulator.astra.external import ExperimentFiles
        from .simulator.astra.files import write_memory, write_network, write_system

        assert self.graph is not None
        assert self.job is not None
        given = self.experiment
        *_, groups = write_et(self.graph, place, "job", order=self.job.inputs.order)
        write_network(place / "network.yml", given.network)
        write_system(place / "system.json", given.system)
        write_memory(place / "memory.json", given.memory)
        return ExperimentFiles(
            workload=place / "job",
            network=place / "network.yml",
            system=place / "system.json",
            memory=place / "memory.json",
            groups=groups,
        )


def _of_trace(
    trace: Trace,
    *,
    network: str | Path | None,
    rank_map: RankMap | None,
    model: DependencyModel | None,
    steps: Sequence[str] | None,
    assume_missing: bool,
    processes: int | None,
    progress: Progress,
) -> _Case:
    from .astra import load_for_astra
    from .calibration.baseline import baseline_network
    from .rank_map import read_rank_map
    from .simulator.astra.job import astra_job

    domains = read_rank_map(rank_map) if isinstance(rank_map, str | Path) else rank_map
    graph = load_for_astra(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    found = baseline_network(graph, network, rank_map=domains)
    job = astra_job(graph, found.network, found.placement)
    return _Case(
        graph.trace,
        job.workload,
        job.experiment,
        graph=graph,
        job=job,
    )


def _of_files(et: Path, settings: Sequence[str | Path | None], progress: Progress) -> _Case:
    from .graph import chakra_format as fmt
    from .simulator.astra.experiment import Experiment
    from .simulator.astra.external import ExperimentFiles
    from .simulator.astra.files import (
        MemoryFile,
        NetworkFile,
        SystemFile,
        read_groups,
        read_memory,
        read_network,
        read_system,
        unknown_keys,
    )
    from .simulator.astra.workload import read_workload

    network, system, groups, memory = (None if one is None else Path(one) for one in settings)
    if network is None or system is None:
        raise UsageError("the .et files need --astra-network and --astra-system")
    experiment = Experiment(
        network=read_network(network),
        system=read_system(system),
        groups={} if groups is None else read_groups(groups),
        memory=MemoryFile() if memory is None else read_memory(memory),
    )
    unknown = [*unknown_keys(network, NetworkFile), *unknown_keys(system, SystemFile)]
    if memory is not None:
        unknown += unknown_keys(memory, MemoryFile)
    directory, prefix, _ = fmt.find_set(et)
    files = ExperimentFiles(directory / prefix, network, system, memory, groups)
    return _Case(
        str(et),
        read_workload(et, ranks=experiment.network.ranks, progress=progress),
        experiment,
        files,
        warnings=tuple(unknown),
    )


def _result(
    case: _Case,
    finish: Sequence[int],
    exposed: Sequence[int],
    warnings: Sequence[str],
    *,
    step_ns: int | None = None,
    binary: str | None = None,
) -> AstraResult:
    from .graph.steps import headline_ns, step_times
    from .simulator.astra.results import AstraRank, AstraResult

    given, graph, job = case.experiment, case.graph, case.job
    ranks = list(range(len(finish)))
    measured = None
    if graph is not None and job is not None:
        ranks = graph.ranks[list(job.inputs.order)].tolist()
        if (graph.steps.completion_ns >= 0).all():
            measured = headline_ns(step_times(graph.steps.completion_ns))
    error = None if step_ns is None or not measured else (step_ns - measured) / measured * 100
    rows = [
        AstraRank(rank=rank, finish_cycles=end, exposed_cycles=shown)
        for rank, end, shown in zip(ranks, finish, exposed, strict=True)
    ]
    return AstraResult(
        trace=case.name,
        engine="whatif" if binary is None else "astra-sim",
        binary=binary,
        backend=given.backend.value,
        ranks=len(finish),
        topology=given.network.topology,
        npus_count=given.network.npus_count,
        bandwidth_gib_s=given.network.bandwidth,
        latency_ns=given.network.latency,
        finish_cycles=max(finish),
        per_rank=sorted(rows, key=lambda row: row.rank),
        step_ns=step_ns,
        measured_step_ns=measured,
        error_pct=error,
        folded=[] if job is None else list(job.inputs.folded),
        lost=[] if job is None else list(job.inputs.lost),
        warnings=[*case.warnings, *warnings],
    )
