"""Run a real job on networks of chosen bandwidths, and record what whatif should have predicted.

    sudo python examples/lab/run_lab.py record --out my_lab --job ddp --mbit 500,1000,2000

starts a PyTorch job of a few processes on this machine, each in its own network namespace, joined
by links of the first bandwidth, then of the next, and so on, all of it twice. For each bandwidth
it writes

- `OUT/NAME/MBITmbit/rankN_trace.json.gz`: a Kineto trace of each rank;
- `OUT/NAME/MBITmbit/truth_rankN.json`: the settings, and step times by the job's own clock;
- a row of `OUT/truth.csv`: the median step of the slowest rank in both runs.

So for each trace the answer to "what if the network were twice as fast" is known: it was done.

    python examples/lab/run_lab.py predict --out my_lab

predicts every step from every trace at another bandwidth, and shows how far it is off.

Recording needs Linux, root, iproute2 and PyTorch, and uses nothing of the package. The links are
made in links.py, processes run in machine.py, the jobs are in jobs.py; here is what is run, in
which order, and what is kept of it.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from links import DEVICE, MIN_MBIT, Command, Links
from machine import (
    LabError,
    Machine,
    OtherWork,
    Printer,
    StoppedError,
    check_machine,
    check_platform,
    signals_held_back,
    usable_cores,
)

RUNS = (1, 2)
TRUTH_COLUMNS = (
    "job",
    "mbit",
    "step_ms_run1",
    "step_ms_run2",
    "traced_step_ms_run1",
    "traced_step_ms_run2",
    "traced_step_ms",
    "noise_pct",
)
# Enough to slow one rank by a tenth. What this script and the kernel take is below 0.05.
MANY_CORES = 0.1


@dataclass(frozen=True)
class Size:
    """Size of a job; `bucket_mb` matters to ddp only."""

    width: int
    depth: int
    batch: int
    bucket_mb: float = 8.0


# Steps of 0.1 to 0.7 s on a 3 GHz core at 500 to 4000 Mbit/s, a third to nine tenths of them
# communication. All but tp's sizes divide by 2, 3 and 4 ranks where they must.
DEFAULT_SIZES = {
    "ddp": Size(width=1024, depth=8, batch=192),
    "tp": Size(width=256, depth=8, batch=3072),
    "moe": Size(width=768, depth=8, batch=240),
    "fsdp": Size(width=768, depth=6, batch=384),
}


@dataclass(frozen=True)
class Plan:
    """Everything that is asked for."""

    out: Path
    name: str
    job: str
    ranks: int
    mbits: list[int]
    size: Size
    steps: int
    plain_steps: int

    def folder(self, mbit: int) -> Path:
        """Where the traces of a bandwidth go."""
        return self.out / self.name / f"{mbit}mbit"


@dataclass(frozen=True)
class StepTimes:
    """Median step of the slowest rank in one run, in ms, without and with the profiler."""

    plain_ms: float
    traced_ms: float


def rank_commands(plan: Plan, links: Links, cores: list[int], folder: Path) -> list[Command]:
    """Build the command of each rank; ranks are pinned where each can have a core."""
    pinned = len(cores) >= plan.ranks
    commands = []
    for rank in range(plan.ranks):
        words = {
            "job": plan.job,
            "rank": rank,
            "ranks": plan.ranks,
            "width": plan.size.width,
            "depth": plan.size.depth,
            "batch": plan.size.batch,
            "bucket-mb": plan.size.bucket_mb,
            "steps": plan.steps,
            "plain-steps": plan.plain_steps,
            "device": DEVICE,
            "folder": folder,
            **({"core": cores[rank]} if pinned else {}),
        }
        options = [f"--{name}={value}" for name, value in words.items()]
        script = str(Path(__file__).resolve().parent / "jobs.py")
        commands.append(links.inside(rank, [sys.executable, script, *options]))
    return commands


def slowest(ranks: list[dict[str, Any]]) -> StepTimes:
    """Sum up one run."""
    return StepTimes(
        max(rank["step_ms_median"] for rank in ranks),
        max(rank["profiled_step_ms_median"] for rank in ranks),
    )


def truth_row(name: str, mbit: int, first: StepTimes, second: StepTimes) -> dict[str, Any]:
    """Build the row of truth.csv for two runs."""
    mean = statistics.mean((first.traced_ms, second.traced_ms))
    noise_pct = abs(first.traced_ms - second.traced_ms) / mean * 100
    values = (
        first.plain_ms,
        second.plain_ms,
        first.traced_ms,
        second.traced_ms,
        mean,
        noise_pct,
    )
    return dict(
        zip(TRUTH_COLUMNS, (name, mbit, *(round(value, 2) for value in values)), strict=True)
    )


def append_row(table: Path, row: dict[str, Any]) -> None:
    """Add a row to truth.csv, which is made if need be."""
    new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, TRUTH_COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def keep(scratch: Path, folder: Path) -> None:
    """Move traces and step times of a run to where they belong."""
    folder.mkdir(parents=True)
    for file in sorted([*scratch.glob("*_trace.json.gz"), *scratch.glob("truth_*.json")]):
        shutil.move(file, folder / file.name)


def record(plan: Plan, machine: Machine | Printer) -> None:
    """Run the job at each bandwidth, all bandwidths twice, and keep what was measured.

    The two runs of a bandwidth lie apart in time, so that their difference shows how the
    machine drifts too. Traces and step times of the second are kept, each bandwidth's as soon
    as it is there.
    """
    # No two processes have one number at a time; of a namespace left by an earlier one,
    # `ip netns add` says that it exists.
    links = Links(f"whatif-lab-{os.getpid()}", plan.ranks)
    cores = usable_cores()
    if len(cores) < plan.ranks:
        print(
            f"note: {plan.ranks} ranks share {len(cores)} cores, unpinned: they will disturb "
            "each other",
            file=sys.stderr,
        )
    scratch = Path(tempfile.mkdtemp(prefix="whatif-lab-"))
    times: dict[tuple[int, int], StepTimes] = {}
    try:
        with links.opened(machine.execute):
            for run in RUNS:
                for mbit in plan.mbits:
                    for command in links.shaping(mbit):
                        machine.execute(command)
                    folder = scratch / f"{mbit}mbit_run{run}"
                    others = OtherWork()
                    ranks = machine.run_ranks(rank_commands(plan, links, cores, folder), folder)
                    if not ranks:
                        continue
                    times[mbit, run] = measured = slowest(ranks)
                    print(
                        f"{plan.name} at {mbit} Mbit/s, run {run}: step {measured.plain_ms:.2f} ms"
                        f", with the profiler {measured.traced_ms:.2f} ms",
                        flush=True,
                    )
                    if (busy := others.cores()) > MANY_CORES:
                        print(
                            f"note: other work took {busy:.2f} cores meanwhile: this truth is "
                            "too slow; repeat it when the machine is idle",
                            file=sys.stderr,
                        )
                    if run == RUNS[-1]:
                        keep(folder, plan.folder(mbit))
                        row = truth_row(plan.name, mbit, times[mbit, 1], times[mbit, 2])
                        append_row(plan.out / "truth.csv", row)
    finally:
        shutil.rmtree(scratch)


def bandwidths(text: str) -> list[int]:
    """Parse a list such as 500,1000."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole Mbit/s such as 500,1000"
        ) from None
    if min(values) < MIN_MBIT:
        raise argparse.ArgumentTypeError(f"{min(values)} Mbit/s is below {MIN_MBIT}, the lowest")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"{text!r} names a bandwidth twice")
    return values


def plan_of(arguments: argparse.Namespace) -> Plan:
    """Check what was asked for.

    Raises
    ------
    LabError
        Of sizes that make no job, and of results that are already there.
    """
    default = DEFAULT_SIZES[arguments.job]
    given = {name: getattr(arguments, name) for name in ("width", "depth", "batch", "bucket_mb")}
    size = Size(**{name: value or getattr(default, name) for name, value in given.items()})
    ranks = arguments.ranks
    if arguments.job in ("tp", "moe") and size.depth < 2:
        raise LabError(f"--depth {size.depth}: {arguments.job} needs 2 layers or more")
    if arguments.job == "moe" and size.batch % ranks:
        raise LabError(f"--batch {size.batch}: moe deals it out evenly, to {ranks} ranks")
    if arguments.job == "fsdp" and size.width % ranks:
        raise LabError(f"--width {size.width}: fsdp deals it out evenly, to {ranks} ranks")
    plan = Plan(
        out=arguments.out,
        name=arguments.name or f"{arguments.job}-w{ranks}",
        job=arguments.job,
        ranks=ranks,
        mbits=arguments.mbit,
        size=size,
        steps=arguments.steps,
        plain_steps=arguments.plain_steps,
    )
    if Path(plan.name).name != plan.name or plan.name in (".", ".."):
        raise LabError(f"--name {plan.name}: a plain name of a folder within --out")
    table = plan.out / "truth.csv"
    known = set()
    if table.exists():
        with table.open(newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != TRUTH_COLUMNS:
                raise LabError(f"{table}: not a table of this script; name another --out")
            known = {(row["job"], row["mbit"]) for row in rows}
    for mbit in plan.mbits:
        if plan.folder(mbit).exists() or (plan.name, str(mbit)) in known:
            raise LabError(
                f"{plan.folder(mbit)} or its row of truth.csv is already there; "
                "name another --out or --name"
            )
    return plan


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def positive_float(text: str) -> float:
    """Parse a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(description="Real jobs on networks of chosen bandwidths.")
    commands = top.add_subparsers(dest="command", required=True)
    command = commands.add_parser("record", help="run a job and record traces and step times")
    command.add_argument("--out", type=Path, required=True, help="folder to write, or add to")
    command.add_argument("--job", choices=list(DEFAULT_SIZES), required=True)
    command.add_argument(
        "--ranks", type=int, choices=[2, 3, 4], default=2, help="processes (default 2)"
    )
    command.add_argument(
        "--mbit",
        type=bandwidths,
        default=[500, 1000, 2000, 4000],
        help="bandwidths in Mbit/s (default 500,1000,2000,4000)",
    )
    command.add_argument("--name", help="folder within --out (default: as in ddp-w2)")
    for name, of in (("width", "layer width"), ("depth", "layers"), ("batch", "samples or tokens")):
        command.add_argument(f"--{name}", type=positive, help=f"{of} (default: by job)")
    command.add_argument("--bucket-mb", type=positive_float, help="gradient bucket of ddp")
    command.add_argument("--steps", type=positive, default=5, help="steps to trace (default 5)")
    command.add_argument(
        "--plain-steps", type=positive, default=20, help="steps without profiler (default 20)"
    )
    command.add_argument("--dry-run", action="store_true", help="print the commands only")
    command = commands.add_parser("predict", help="predict each step from the other traces")
    command.add_argument("--out", type=Path, required=True, help="folder that was recorded")
    return top


def predict(out: Path) -> None:
    """Hold the predictions of `whatif` against the truth; it exits by itself if it cannot."""
    try:
        from whatif.cli.main import run
    except ImportError:
        raise LabError("predicting needs whatif: pip install . in its repository") from None
    sys.argv = ["whatif", "validate", "--lab", str(out)]
    run()


def main() -> None:
    arguments = parser().parse_args()
    try:
        if arguments.command == "predict":
            predict(arguments.out)
            return
        check_platform()
        plan = plan_of(arguments)
        if not arguments.dry_run:
            check_machine()
        with signals_held_back():
            record(plan, Printer() if arguments.dry_run else Machine())
    except LabError as error:
        sys.exit(f"run_lab.py: {error}")
    except StoppedError as error:
        print("run_lab.py: stopped; namespaces and processes are gone", file=sys.stderr)
        sys.exit(128 + error.args[0])


if __name__ == "__main__":
    main()
