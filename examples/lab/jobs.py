"""The jobs of the lab: one rank of a small PyTorch job over Gloo, on CPU, timed and traced.

run_lab.py starts this file once for each rank, inside that rank's network namespace. It knows
nothing of namespaces and rates: it trains, first without the profiler and then under
torch.profiler, and leaves `rankN_trace.json.gz` and `truth_rankN.json` (the settings, and step
times by its own clock) in a folder.

- `ddp`: a multilayer perceptron under DistributedDataParallel. All-reduces of gradient buckets
  overlap the backward pass and each other.
- `tp`: Megatron-style pairs of column- and row-parallel layers. One blocking all-reduce a pair
  in the forward pass, and one in the backward pass.
- `moe`: every other layer is an expert that lives on one rank. Blocking all-to-alls take copies
  of the tokens to the experts and back; gradients of the other layers are all-reduced, blocking.
- `fsdp`: layers sharded over the ranks. A blocking all-gather brings a layer's weights together
  before each use, and gradients are reduced before each rank keeps its part.
"""

# Methods are those of nn.Module and autograd.Function, whose signatures torch prescribes.
# ruff: noqa: ANN401, ARG004, D102

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import re
import signal
import statistics
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The first steps allocate, DDP rebuilds its buckets after the first of them, and TCP needs a few
# more to find the link's rate.
WARMUP_STEPS = 5
# The profiler's own first steps are slower: one is skipped, one is traced and thrown away.
PROFILER_WAIT_STEPS = 1
PROFILER_WARMUP_STEPS = 1
# A rank whose peer has died says so after this time.
TIMEOUT = timedelta(minutes=5)
# As in routing to the top four experts.
TOKEN_COPIES = 4
LEARNING_RATE = 1e-3

Tensor = torch.Tensor


class CopyToRanks(torch.autograd.Function):
    """Entry of a tensor-parallel pair: nothing forward, an all-reduce backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class SumOverRanks(torch.autograd.Function):
    """End of a tensor-parallel pair: an all-reduce forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        total = inputs.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Exchange(torch.autograd.Function):
    """An all-to-all of equal parts of the first dimension, forward and backward."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        received = torch.empty_like(inputs)
        dist.all_to_all_single(received, inputs)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        received = torch.empty_like(gradients[0])
        dist.all_to_all_single(received, gradients[0].contiguous())
        return received


class GatheredLinear(torch.autograd.Function):
    """A linear layer whose weights are gathered from all ranks for each use."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shard: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, shard)
        return inputs @ gathered(shard).t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        inputs, shard = ctx.saved_tensors
        gradient = gradients[0]
        for_inputs = gradient @ gathered(shard)
        # As PyTorch does it over Gloo, which has no reduce-scatter: each keeps its part of the sum.
        for_weights = gradient.t() @ inputs
        dist.all_reduce(for_weights)
        for_weights /= dist.get_world_size()
        return for_inputs, for_weights.chunk(dist.get_world_size())[dist.get_rank()].clone()


def applied(function: type[torch.autograd.Function], *arguments: Tensor) -> Tensor:
    """Call `function.apply`, which torch leaves untyped."""
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def gathered(shard: Tensor) -> Tensor:
    """All ranks' rows of a weight."""
    rows = torch.empty(dist.get_world_size() * shard.shape[0], shard.shape[1])
    dist.all_gather(list(rows.chunk(dist.get_world_size())), shard)
    return rows


class ParallelPair(nn.Module):
    """A column- and a row-parallel layer with a residual connection around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 4 * width // dist.get_world_size()
        self.columns = nn.Linear(width, hidden)
        self.rows = nn.Linear(hidden, width, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.columns(applied(CopyToRanks, inputs)))
        return inputs + applied(SumOverRanks, self.rows(hidden))


class Expert(nn.Module):
    """A layer on one rank, to which copies of all ranks' tokens travel, evenly routed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = applied(Exchange, inputs.repeat(TOKEN_COPIES, 1))
        results = applied(Exchange, nn.functional.gelu(self.layer(tokens)))
        return results.view(TOKEN_COPIES, *inputs.shape).mean(0)


class ShardedLinear(nn.Module):
    """A layer of which each rank holds some rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        rows = width // dist.get_world_size()
        self.shard = nn.Parameter(torch.randn(rows, width) / width**0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.gelu(applied(GatheredLinear, inputs, self.shard))


class Job:
    """The training job of one rank, one step at a time."""

    def __init__(self, settings: argparse.Namespace) -> None:
        width, depth = settings.width, settings.depth
        self.reduced: Iterable[nn.Parameter] = ()
        torch.manual_seed(settings.rank)
        self.model: nn.Module
        if settings.job == "ddp":
            layers = [module for _ in range(depth) for module in dense(width)]
            self.model = DistributedDataParallel(
                nn.Sequential(*layers), bucket_cap_mb=settings.bucket_mb
            )
        elif settings.job == "tp":
            self.model = nn.Sequential(*[ParallelPair(width) for _ in range(depth // 2)])
            torch.manual_seed(0)  # all ranks of a tensor-parallel job see the same samples
        elif settings.job == "moe":
            plain = [nn.Sequential(*dense(width)) for _ in range(depth - depth // 2)]
            experts = [Expert(width) for _ in range(depth // 2)]
            layers = [module for pair in zip(plain, experts, strict=False) for module in pair]
            self.model = nn.Sequential(*layers, *plain[len(experts) :])
            self.reduced = [weight for module in plain for weight in module.parameters()]
        else:
            self.model = nn.Sequential(*[ShardedLinear(width) for _ in range(depth)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.inputs = torch.randn(settings.batch, width)
        self.targets = torch.randn(settings.batch, width)

    def step(self) -> None:
        """Run forward, backward and update once, with the communication that they need."""
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        for weight in self.reduced:
            gradient = weight.grad
            assert gradient is not None
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        self.optimizer.step()


def dense(width: int) -> list[nn.Module]:
    """Layer and activation."""
    return [nn.Linear(width, width), nn.GELU()]


def time_plain(step: Callable[[], None], steps: int) -> list[float]:
    """Durations in ms of steps without the profiler, from end to end."""
    marks = [time.perf_counter_ns()]
    for _ in range(steps):
        step()
        marks.append(time.perf_counter_ns())
    return durations_ms(marks)


def time_profiled(step: Callable[[], None], steps: int, trace: Path) -> list[float]:
    """Durations in ms of the traced steps; writes the trace.

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
        for number in range(skipped + steps):
            if number == skipped:
                first_start = time.perf_counter_ns()
            step()
            ends.append(time.perf_counter_ns())
            profiler.step()
    return durations_ms([first_start, *ends[skipped:]])


def durations_ms(marks_ns: list[int]) -> list[float]:
    """Time from each mark to the next."""
    return [(end - start) / 1e6 for start, end in pairwise(marks_ns)]


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
    recorded.unlink()


def run(settings: argparse.Namespace) -> None:
    """Run the job as one rank; leaves its trace and its step times in the folder."""
    # run_lab.py holds Ctrl-C and its like back, and that is inherited.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if settings.core is not None:
        os.sched_setaffinity(0, {settings.core})
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = settings.device
    dist.init_process_group(
        "gloo",
        init_method=(settings.folder / "rendezvous").as_uri(),
        rank=settings.rank,
        world_size=settings.ranks,
        timeout=TIMEOUT,
    )
    job = Job(settings)
    gc.disable()
    time_plain(job.step, WARMUP_STEPS)
    dist.barrier()
    plain = time_plain(job.step, settings.plain_steps)
    dist.barrier()
    trace = settings.folder / f"rank{settings.rank}_trace.json"
    profiled = time_profiled(job.step, settings.steps, trace)
    dist.barrier()
    dist.destroy_process_group()
    write_trace(trace, trace.with_name(f"{trace.name}.gz"))
    truth = {
        "rank": settings.rank,
        "world": settings.ranks,
        "mode": settings.job,
        "steps_ms": plain,
        "step_ms_median": statistics.median(plain),
        "profiled_steps_ms": profiled,
        "profiled_step_ms_median": statistics.median(profiled),
        "width": settings.width,
        "depth": settings.depth,
        "batch": settings.batch,
        "bucket_mb": settings.bucket_mb,
        "torch": torch.__version__,
    }
    (settings.folder / f"truth_rank{settings.rank}.json").write_text(json.dumps(truth))


def main() -> None:
    parser = argparse.ArgumentParser(description="One rank of a job; started by run_lab.py.")
    parser.add_argument("--job", choices=["ddp", "tp", "moe", "fsdp"], required=True)
    for name in ("rank", "ranks", "width", "depth", "batch", "steps", "plain-steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--bucket-mb", type=float, required=True)
    parser.add_argument("--core", type=int, help="the one core to run on")
    parser.add_argument("--device", required=True, help="network device for Gloo to use")
    parser.add_argument("--folder", type=Path, required=True, help="where ranks meet and write")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
