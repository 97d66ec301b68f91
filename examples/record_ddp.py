"""Record a real trace of your own: a small model under PyTorch DDP over Gloo, CPU only.

Starts a few processes on this machine, trains a multilayer perceptron with
DistributedDataParallel, first without the profiler and then under torch.profiler, and writes

- `rankN_trace.json.gz`: one Kineto trace per rank, as PyTorch writes it, less the names of the
  machine and of its folders;
- `truth.json`: the settings, and the step times that the script's own clock measured, with and
  without the profiler, to hold against what an analysis of the traces says.

This needs PyTorch (its CPU build is enough); nothing else of the repository does, and this
script uses nothing of the package. Run it as

    python examples/record_ddp.py --out my_trace
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule
except ModuleNotFoundError as error:
    sys.exit(
        f"record_ddp.py: no module named {error.name}: recording needs PyTorch "
        "(pip install 'whatif-sim[record]'); reading traces does not"
    )

# The first steps allocate, and DDP rebuilds its buckets after the first of them.
WARMUP_STEPS = 5
PLAIN_STEPS = 20
# The profiler's own first steps are slower: one is skipped, one is traced and thrown away.
PROFILER_WAIT_STEPS = 1
PROFILER_WARMUP_STEPS = 1


@dataclass(frozen=True)
class Settings:
    """What is run; stored beside the result."""

    ranks: int
    steps: int
    width: int
    depth: int
    batch: int
    bucket_mb: float


class Job:
    """The training job of one rank, one step at a time."""

    def __init__(self, rank: int, settings: Settings) -> None:
        torch.manual_seed(rank)
        layers: list[nn.Module] = []
        for _ in range(settings.depth):
            layers += [nn.Linear(settings.width, settings.width), nn.ReLU()]
        self.model = DistributedDataParallel(
            nn.Sequential(*layers), bucket_cap_mb=settings.bucket_mb
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.inputs = torch.randn(settings.batch, settings.width)
        self.targets = torch.randn(settings.batch, settings.width)

    def step(self) -> None:
        """Run forward, backward (in which DDP reduces the gradients) and update once."""
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        loss.backward()
        self.optimizer.step()


def time_plain(job: Job, steps: int) -> list[int]:
    """Durations in ns of steps without the profiler, from end to end."""
    marks = [time.perf_counter_ns()]
    for _ in range(steps):
        job.step()
        marks.append(time.perf_counter_ns())
    return [end - start for start, end in pairwise(marks)]


def time_profiled(job: Job, steps: int, trace: Path) -> list[int]:
    """Durations in ns of the traced steps; writes the trace.

    A step lasts from the end of the step before to its own end, as for steps without the
    profiler; only the first starts where its recording does, since starting costs time.
    """
    skipped = PROFILER_WAIT_STEPS + PROFILER_WARMUP_STEPS
    plan = schedule(wait=PROFILER_WAIT_STEPS, warmup=PROFILER_WARMUP_STEPS, active=steps, repeat=1)
    ends: list[int] = []
    first_start = 0
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        with_stack=False,  # stacks would carry paths of this machine
        on_trace_ready=lambda p: p.export_chrome_trace(str(trace)),
    ) as profiler:
        for step in range(skipped + steps):
            if step == skipped:
                first_start = time.perf_counter_ns()
            job.step()
            ends.append(time.perf_counter_ns())
            profiler.step()
    marks = [first_start, *ends[skipped:]]
    return [end - start for start, end in pairwise(marks)]


def run_rank(rank: int, settings: Settings, scratch: Path) -> None:
    """Run the job as one rank; leaves its trace and its step times in `scratch`."""
    torch.set_num_threads(1)  # a rank's own thread and Gloo's share the cores with the others'
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if platform.system() == "Linux" else "lo0")
    dist.init_process_group(
        "gloo",
        init_method=(scratch / "rendezvous").as_uri(),
        rank=rank,
        world_size=settings.ranks,
    )
    job = Job(rank, settings)
    gc.disable()
    time_plain(job, WARMUP_STEPS)
    dist.barrier()
    plain = time_plain(job, PLAIN_STEPS)
    dist.barrier()
    profiled = time_profiled(job, settings.steps, scratch / f"rank{rank}_trace.json")
    times = {"plain_step_ns": plain, "profiled_step_ns": profiled}
    (scratch / f"times{rank}.json").write_text(json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def write_trace(recorded: Path, out: Path) -> None:
    """Compress a trace, with the names of the machine and of its folders taken out."""
    text = recorded.read_text()
    for key, value in (("host_name", "localhost"), ("traceName", recorded.name)):
        text = re.sub(rf'("{key}":\s*)"[^"]*"', rf'\1"{value}"', text)
    # No time stamp and no file name in the header: the same trace gives the same bytes.
    with (
        out.open("wb") as raw,
        gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as file,
    ):
        file.write(text.encode())


def slowest_median(times_ns: list[list[int]]) -> int:
    """Median step of the slowest rank."""
    return max(round(statistics.median(rank)) for rank in times_ns)


def record(settings: Settings, out: Path) -> None:
    """Run the job and write traces and measured step times into the folder `out`."""
    scratch = Path(tempfile.mkdtemp(prefix="record_ddp_"))
    try:
        mp.spawn(run_rank, args=(settings, scratch), nprocs=settings.ranks)
        times = [
            json.loads((scratch / f"times{rank}.json").read_text())
            for rank in range(settings.ranks)
        ]
        plain = [rank["plain_step_ns"] for rank in times]
        profiled = [rank["profiled_step_ns"] for rank in times]
        truth = {
            "settings": asdict(settings),
            "torch": torch.__version__,
            "plain_step_ns_median": slowest_median(plain),
            "profiled_step_ns_median": slowest_median(profiled),
            "plain_step_ns": plain,
            "profiled_step_ns": profiled,
        }
        out.mkdir(parents=True, exist_ok=True)
        for rank in range(settings.ranks):
            name = f"rank{rank}_trace.json"
            write_trace(scratch / name, out / f"{name}.gz")
        (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    finally:
        shutil.rmtree(scratch)
    print(
        f"{out}: {settings.ranks} ranks, {settings.steps} steps; median step of the slowest rank "
        f"{slowest_median(profiled) / 1e6:.1f} ms, without the profiler "
        f"{slowest_median(plain) / 1e6:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Record Kineto traces of a small DDP job over Gloo on this machine."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--ranks", type=int, default=2, help="processes to start (default 2)")
    parser.add_argument("--steps", type=int, default=5, help="steps to trace (default 5)")
    parser.add_argument("--width", type=int, default=1024, help="width of each layer")
    parser.add_argument("--depth", type=int, default=8, help="number of layers")
    parser.add_argument("--batch", type=int, default=192, help="samples per rank and step")
    parser.add_argument("--bucket-mb", type=float, default=4.0, help="gradient bucket of DDP")
    arguments = vars(parser.parse_args())
    out = arguments.pop("out")
    if arguments["ranks"] < 2:
        parser.error("--ranks must be at least 2: one rank has nobody to talk to")
    for name in ("steps", "width", "depth", "batch", "bucket_mb"):
        if arguments[name] <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    if any(out.glob("*")):
        parser.error(f"--out {out}: the folder is not empty, and its files would get mixed up")
    record(Settings(**arguments), out)


if __name__ == "__main__":
    main()
