"""Run a real ASTRA-sim and watch it: limits, ranks that do not report, and what it said last.

ASTRA-sim's usual failure is silence: exit status 0, and some ranks missing from its output. So a
run counts only when every rank has reported; a binary that says nothing for too long, or takes
too long, is stopped with everything it started. Where the binary is found is in `binary`; what
in the inputs was at fault is told by the parity engine, which knows the same rules.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ...base.errors import EngineError, GraphError, NetworkError, TraceError, UsageError
from ...base.progress import Progress, silent
from .files import MemoryFile, write_memory
from .parity import check, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .experiment import Experiment
    from .workload import Workload

#: Seconds that a run may take, and that it may say nothing: ranks report at their end only, so
#: the second must cover whole simulations.
TIME_LIMIT_S, SILENCE_LIMIT_S = 3600.0, 600.0

# Seconds for a binary to end after it has closed its output.
_LAST_BREATH_S = 10.0

# Lines kept of what is neither routine nor a rank's report: the first tell the cause.
_KEPT_LINES = 50

_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles, exposed communication (\d+) cycles")
# What it says at its end of a rank that waits for ever, and of what the rank was doing.
_STUCK = re.compile(r"sys\.id=(\d+) has unreleased nodes")
_IN_PROGRESS = re.compile(r"\] ((?:CPU|GPU comp|GPU comm|GPU)\b.*) node id: (\d+)")
# What it says in every run.
_ROUTINE = re.compile(
    r"ring of node|custom ring, id|\[statistics\]|\[system\] \[warning\] Exiting|^\s*$"
    # Of every rank with nodes of the processor, once it has reported.
    r"|removed before call Only GPU and COMM types"
)
# Time and level in front of what it says.
_PREFIX = re.compile(r"^\[\d[^]]*\] (?=\[)")


@dataclass(frozen=True)
class ExperimentFiles:
    """The files of an experiment.

    Attributes
    ----------
    workload : Path
        Prefix of the traces: ``<prefix>.<rank>.et``, or the same compressed with ``.gz``.
    network, system : Path
        network.yml and system.json.
    memory : Path or None
        Remote memory; without a file there is none, and one that says so is made.
    groups : Path or None
        Communicator groups.
    """

    workload: Path
    network: Path
    system: Path
    memory: Path | None = None
    groups: Path | None = None


@dataclass(frozen=True)
class Limits:
    """How long a run may take, in seconds of wall time.

    Attributes
    ----------
    time_s : float
        In all.
    silence_s : float
        Without a word.

    Raises
    ------
    UsageError
        If one is not positive.
    """

    time_s: float = TIME_LIMIT_S
    silence_s: float = SILENCE_LIMIT_S

    def __post_init__(self) -> None:
        for name, value in (("time", self.time_s), ("silence", self.silence_s)):
            if not value > 0:
                raise UsageError(f"the limit of {name} must be more than 0 s, is {value:g}")


@dataclass(frozen=True)
class ExternalRun:
    """What a real ASTRA-sim reported.

    Attributes
    ----------
    finish_cycles, exposed_cycles : tuple of int, length R
        Of each rank; a cycle is a nanosecond. Exposed may be close to 2^64 where ASTRA-sim
        subtracts more compute than there was time.
    wall_s : float
        How long the binary ran.
    warnings : list of str
        What it said, or did at its end, that is not routine.
    """

    finish_cycles: tuple[int, ...]
    exposed_cycles: tuple[int, ...]
    wall_s: float
    warnings: list[str]


@dataclass
class _Heard:
    """What a binary has said so far."""

    ranks: int
    finish: dict[int, int] = field(default_factory=dict)
    exposed: dict[int, int] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    stuck: dict[int, str] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    _stuck_rank: int = -1

    def take(self, line: str) -> None:
        """Take in one line of output."""
        if (match := _FINISHED.search(line)) is not None:
            rank, finish, exposed = map(int, match.groups())
            if rank >= self.ranks:
                self.contradictions.append(f"rank {rank} of {self.ranks} reported")
            elif rank in self.finish:
                self.contradictions.append(f"rank {rank} reported twice")
            self.finish[rank], self.exposed[rank] = finish, exposed
        elif (match := _STUCK.search(line)) is not None:
            self._stuck_rank = int(match[1])
        elif self._stuck_rank >= 0 and (match := _IN_PROGRESS.search(line)) is not None:
            self.stuck.setdefault(self._stuck_rank, f"{match[1]} node {match[2]}")
        elif not _ROUTINE.search(line) and len(self.remarks) < _KEPT_LINES:
            self.remarks[_PREFIX.sub("", line.strip())] = None

    @property
    def missing(self) -> list[int]:
        """Ranks that have not reported."""
        return [rank for rank in range(self.ranks) if rank not in self.finish]


def run_binary(
    binary: Path,
    files: ExperimentFiles,
    ranks: int,
    *,
    options: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    progress: Progress = silent,
) -> ExternalRun:
    """Run an experiment in a real ASTRA-sim.

    Parameters
    ----------
    binary : Path
        From `binary.find_binary`.
    files : ExperimentFiles
        What it is given. They are checked for being there, no more.
    ranks : int
        How many must report: the ranks of the network.
    options : mapping of str to str, optional
        Further options by name, without dashes: ``num-queues-per-dim``, ``injection-scale``,
        ``rendezvous-protocol``.
    limits : Limits, optional
        By default an hour, and ten minutes of silence.
    progress : Progress
        Told how many ranks have reported.

    Returns
    -------
    ExternalRun

    Raises
    ------
    TraceError
        If the trace of a rank is missing.
    UsageError
        If another file is missing, or the binary cannot be started.
    EngineError
        If it crashes, is stopped at a limit, or ends while ranks are missing; says which, and
        what it said last.
    """
    limits = limits or Limits()
    for path in (files.network, files.system, files.memory, files.groups):
        if path is not None and not path.is_file():
            raise UsageError("there is no such file", file=path)
    with _workplace(files, ranks) as (place, prefix):
        command = [str(binary), *_arguments(files, prefix, place), *_further(options)]
        heard = _Heard(ranks)
        began = time.monotonic()
        status, stopped = _supervise(command, place, heard, limits, progress)
        wall_s = time.monotonic() - began
    return _judged(binary, heard, status, stopped, wall_s)


def run_external(
    binary: Path,
    files: ExperimentFiles,
    workload: Workload,
    experiment: Experiment,
    *,
    limits: Limits | None = None,
    progress: Progress = silent,
) -> ExternalRun:
    """Run an experiment in a real ASTRA-sim, and trace what goes wrong back to its inputs.

    Nothing is started on nodes that ASTRA-sim would abort on, or play for ever. Where a run fails,
    the parity engine, which follows the same rules, is asked which rank and node are at fault.

    Parameters
    ----------
    binary, files, limits, progress
        As for `run_binary`.
    workload, experiment
        What the files hold.

    Raises
    ------
    GraphError
        If ASTRA-sim cannot run the nodes.
    TraceError, UsageError, EngineError
        As `run_binary`; with the cause in the inputs, where it is known.
    """
    check(workload, experiment)
    options = {
        "num-queues-per-dim": str(experiment.queues_per_dim),
        "injection-scale": repr(experiment.injection_scale),
        "rendezvous-protocol": str(experiment.rendezvous).lower(),
    }
    try:
        return run_binary(
            binary,
            files,
            experiment.network.ranks,
            options=options,
            limits=limits,
            progress=progress,
        )
    except EngineError as error:
        try:
            run(workload, experiment)
        except (GraphError, NetworkError) as cause:
            raise EngineError(
                f"{error.message}; the cause in the inputs: {cause.message}",
                file=error.file,
                rank=error.rank if cause.rank is None else cause.rank,
                place=cause.place,
            ) from error
        raise EngineError(
            f"{error.message}; by the rules of the verified revision these inputs finish, as "
            "--semantics astra does without a binary",
            file=error.file,
            rank=error.rank,
        ) from error


@contextlib.contextmanager
def _workplace(files: ExperimentFiles, ranks: int) -> Iterator[tuple[Path, Path]]:
    """Make a directory to run in, and find the traces in it or where they are.

    ASTRA-sim writes logs to where it runs, and reads plain files only.
    """
    plain = [Path(f"{files.workload}.{rank}.et") for rank in range(ranks)]
    packed = [path.with_name(f"{path.name}.gz") for path in plain]
    for rank in range(ranks):
        if not plain[rank].is_file() and not packed[rank].is_file():
            raise TraceError(
                f"the trace of this rank is missing; the network has {ranks} ranks",
                file=plain[rank],
                rank=rank,
            )
    with tempfile.TemporaryDirectory(prefix="whatif-astra-") as name:
        place = Path(name)
        prefix = files.workload.absolute()
        if not all(path.is_file() for path in plain):
            prefix = place / "workload"
            for rank in range(ranks):
                _unpack(plain[rank], packed[rank], Path(f"{prefix}.{rank}.et"))
        yield place, prefix


def _unpack(plain: Path, packed: Path, target: Path) -> None:
    if plain.is_file():
        target.symlink_to(plain.absolute())
        return
    try:
        with gzip.open(packed) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
    except (EOFError, OSError) as error:
        raise TraceError(f"damaged or truncated gzip ({error})", file=packed) from error


def _arguments(files: ExperimentFiles, prefix: Path, place: Path) -> list[str]:
    memory = place / "memory.json"
    if files.memory is None:
        write_memory(memory, MemoryFile())
    else:
        memory = files.memory.absolute()
    given = {
        "workload-configuration": prefix,
        "system-configuration": files.system.absolute(),
        "network-configuration": files.network.absolute(),
        "remote-memory-configuration": memory,
    }
    if files.groups is not None:
        groups = files.groups.absolute()
        if "empty" in str(groups):
            # To ASTRA-sim a path with this word means that there are none.
            groups = place / "groups.json"
            shutil.copyfile(files.groups, groups)
        given["comm-group-configuration"] = groups
    return [f"--{name}={path}" for name, path in given.items()]


def _further(options: Mapping[str, str] | None) -> list[str]:
    return [f"--{name}={value}" for name, value in (options or {}).items()]


def _supervise(
    command: Sequence[str], place: Path, heard: _Heard, limits: Limits, progress: Progress
) -> tuple[int, str | None]:
    """Run a command to its end or a limit; its exit status, and the limit that stopped it."""
    try:
        process = subprocess.Popen(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that all of it can be stopped
        )
    except OSError as error:
        raise UsageError(f"cannot be started: {error.strerror}", file=command[0]) from error
    assert process.stdout is not None
    try:
        stopped = _listen(process.stdout, heard, limits, progress)
        if stopped is None:
            # Its output is closed, so nothing more can come of it.
            return process.wait(_LAST_BREATH_S), None
    except subprocess.TimeoutExpired:
        stopped = "closed its output and went on"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    return process.returncode, stopped


def _listen(output: IO[bytes], heard: _Heard, limits: Limits, progress: Progress) -> str | None:
    """Read output until its end, None, or until a limit is reached, which is named."""
    began = spoke = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if now - began >= limits.time_s:
                return f"took longer than {limits.time_s:g} s"
            if now - spoke >= limits.silence_s:
                return f"said nothing for {limits.silence_s:g} s"
            progress("running ASTRA-sim", len(heard.finish), heard.ranks)
            left = min(began + limits.time_s, spoke + limits.silence_s) - now
            if not selector.select(min(left, 1.0)):
                continue
            data = os.read(output.fileno(), 1 << 16)
            if not data:
                heard.take(rest.decode(errors="replace"))
                return None
            spoke = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                heard.take(line.decode(errors="replace"))


def _judged(
    binary: Path, heard: _Heard, status: int, stopped: str | None, wall_s: float
) -> ExternalRun:
    """Accept a run in which each rank reported once, and say what went wrong with any other."""
    missing = heard.missing
    if stopped is not None or missing or heard.contradictions:
        how = f"{stopped} and was stopped" if stopped else _ending(status)
        parts = [f"ASTRA-sim {how}", *heard.contradictions, _reported(heard)]
        parts += [f"rank {rank} waits in its {what}" for rank, what in [*heard.stuck.items()][:4]]
        if heard.remarks:
            parts.append(f"it said: {next(iter(heard.remarks))}")
        raise EngineError("; ".join(parts), file=binary, rank=missing[0] if missing else None)
    warnings = [f"ASTRA-sim said: {remark}" for remark in heard.remarks]
    if status:
        warnings.append(f"all ranks had reported before ASTRA-sim {_ending(status)}")
    ranks = range(heard.ranks)
    return ExternalRun(
        finish_cycles=tuple(heard.finish[rank] for rank in ranks),
        exposed_cycles=tuple(heard.exposed[rank] for rank in ranks),
        wall_s=wall_s,
        warnings=warnings,
    )


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"


def _reported(heard: _Heard) -> str:
    missing = heard.missing
    if not missing:
        return f"all {heard.ranks} ranks had reported"
    listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return (
        f"{heard.ranks - len(missing)} of {heard.ranks} ranks had reported, not "
        f"{'rank' if len(missing) == 1 else 'ranks'} {listed}"
    )
