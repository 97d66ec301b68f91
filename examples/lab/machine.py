"""Commands and a job's processes on this machine, and what else it is busy with.

Whatever a process leaves behind on an error or on Ctrl-C would be in the way of the next one, so
here is also what ends them all. Which commands to run is decided in links.py and run_lab.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from links import Command

# What the kernel or iproute2 says, and what it means here.
HINTS = {
    "qdisc kind is unknown": "the kernel has no token bucket filter (try: modprobe sch_tbf)",
    "Unknown device type": "the kernel has no veth or bridge (try: modprobe veth bridge)",
    "Operation not permitted": "root is not enough here: a container needs CAP_SYS_ADMIN and "
    "CAP_NET_ADMIN (docker run --privileged)",
}
LOG_LINES = 12
POLL_S = 0.05
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class LabError(Exception):
    """What keeps the lab from running, in words for its user."""


class StoppedError(Exception):
    """Ctrl-C or its like; holds the signal's number."""


class Machine:
    """Runs commands, and the processes of a job, on this machine."""

    def execute(self, command: Command) -> None:
        """Run a command to its end; what goes wrong is told with what it says of it."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip() or f"exit code {done.returncode}"
            hints = [f"\n{hint}" for words, hint in HINTS.items() if words in said]
            raise LabError(f"{shlex.join(command)}: {said}{''.join(hints)}")

    def run_ranks(self, commands: list[Command], folder: Path) -> list[dict[str, Any]]:
        """Run one process a rank to their ends; returns what each says of its step times."""
        folder.mkdir()
        logs = [folder / f"rank{rank}.log" for rank in range(len(commands))]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for command, log in zip(commands, logs, strict=True):
                with log.open("wb") as output:
                    processes.append(
                        subprocess.Popen(
                            command,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,  # a terminal's Ctrl-C is for this script
                        )
                    )
            await_all(processes, logs)
        finally:
            for process in processes:
                process.kill()  # nothing where it has ended
            for process in processes:
                process.wait()
        return [
            json.loads((folder / f"truth_rank{rank}.json").read_text())
            for rank in range(len(commands))
        ]


class Printer:
    """Stands in for the machine: prints what would be run."""

    def execute(self, command: Command) -> None:
        """Print a command."""
        print(shlex.join(command))

    def run_ranks(self, commands: list[Command], folder: Path) -> list[dict[str, Any]]:
        """Print the commands of all ranks as a shell would run them; nothing is measured."""
        print(shlex.join(["mkdir", "-p", str(folder)]))
        for command in commands:
            print(f"{shlex.join(command)} &")
        print("wait")
        return []


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Let signals to stop wait until they are asked for, so that none can tear a teardown."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def await_all(processes: Sequence[subprocess.Popen[bytes]], logs: list[Path]) -> None:
    """Wait until all have ended well.

    Raises
    ------
    LabError
        At once when a process ends with an error.
    StoppedError
        When a signal to stop has come, now or since signals were held back.
    """
    while True:
        codes = [process.poll() for process in processes]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:  # all of them: the first to be seen may only have lost its peer
            raise LabError("\n".join(last_words(rank, codes[rank], logs[rank]) for rank in failed))
        if all(code == 0 for code in codes):
            return
        received = signal.sigtimedwait(STOP_SIGNALS, POLL_S)
        if received is not None:
            raise StoppedError(received.si_signo)


class OtherWork:
    """How much of the processors everything but the children that have ended by then takes.

    Two runs that were slowed alike agree, so `noise_pct` alone does not show it. On a virtual
    machine the time that its host keeps for others counts too. Interrupts are left out: most of
    them are the links' own work.
    """

    def __init__(self) -> None:
        self.start = self.now()

    def cores(self) -> float:
        """Mean number of cores since the start."""
        busy_s, ours_s, clock_s = (
            after - before for after, before in zip(self.now(), self.start, strict=True)
        )
        return (busy_s - ours_s) / clock_s

    @staticmethod
    def now() -> tuple[float, float, float]:
        """Seconds: all processors at work or taken, our children's share of that, and the clock."""
        fields = Path("/proc/stat").read_text().split()
        user, nice, system, stolen = (int(fields[column]) for column in (1, 2, 3, 8))
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy_s = (user + nice + system + stolen) / os.sysconf("SC_CLK_TCK")
        return busy_s, ours.ru_utime + ours.ru_stime, time.monotonic()


def last_words(rank: int, code: int | None, log: Path) -> str:
    """Tell how a rank ended, with the end of what it printed."""
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return "\n    ".join(
        [f"rank {rank} ended with exit code {code}; it printed last:", *(lines or ["nothing"])]
    )


def check_platform() -> None:
    """Say so where not even a dry run makes sense."""
    if sys.platform != "linux":
        raise LabError("network namespaces are a feature of Linux, and this is another system")


def check_machine() -> None:
    """Say what is missing before anything is made."""
    if os.geteuid() != 0:
        raise LabError(
            f"making network namespaces needs root; try: sudo {shlex.quote(sys.executable)} "
            f"{shlex.join(sys.argv)}"
        )
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise LabError(f"no command {tool}: install iproute2 (apt-get install iproute2)")
    if importlib.util.find_spec("torch") is None:
        raise LabError(
            f"{sys.executable} has no module torch: recording needs PyTorch "
            "(pip install 'whatif-sim[record]')"
        )


def usable_cores() -> list[int]:
    """Processors that this process may use, the first thread of each core before the others."""
    cores = sorted(os.sched_getaffinity(0))
    seen: set[str] = set()
    first: list[int] = []
    second: list[int] = []
    for core in cores:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        key = siblings.read_text() if siblings.exists() else str(core)
        (second if key in seen else first).append(core)
        seen.add(key)
    return [*first, *second]
