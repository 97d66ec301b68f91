"""Random programs, and the door to the others.

A program is drawn in two parts: a plan, which all ranks follow step by step, and each rank's own
durations. Everything a test needs of programs can be imported from here.

Ports
-----
The executor prices every transfer alone. A program whose transfers share a port (same rank, same
tier, same direction, same time) would take longer on a network with contention, so the generator
keeps transfers apart unless asked not to: before it issues an operation it makes the compute
stream wait for all outstanding ones that could use the same tier. `Run.shares_ports` says
whether it mattered in a run (on a network with other domains it can). Programs that may share
ports also use all groups for everything, and have an all-reduce under way beside the messages of
a pipeline, so that transfers do meet.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .scripted import (
    expert_program,
    hand_over_program,
    host_bound_program,
    host_sync_program,
    overlap_program,
    pipeline_program,
    queue_program,
)
from .spelling import RankBuilder, autograd_numbers, world_group
from .vocabulary import (
    AUTOGRAD,
    COMPUTE_STREAM,
    COPY_STREAM,
    MAIN,
    SIDE_STREAM,
    US,
    Await,
    BlockingCopy,
    Comm,
    CommKind,
    Group,
    HostThread,
    Instruction,
    Kernel,
    Post,
    Program,
    RankProgram,
    Scope,
    Step,
    Sync,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Comm",
    "Group",
    "Profile",
    "Program",
    "expert_program",
    "hand_over_program",
    "host_bound_program",
    "host_sync_program",
    "overlap_program",
    "pipeline_program",
    "queue_program",
    "random_program",
]

Profile = Literal["device", "host_bound", "overlap", "p2p", "cpu"]

_GEMMS = (
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
    "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize192x128x32_stage4",
    "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>",
)
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>",
    "triton_poi_fused_add_0",
)


@dataclass(frozen=True)
class _Layer:
    """One layer as all ranks run it: durations in us before the jitter of ranks and steps."""

    kernels: tuple[tuple[str, float], ...]
    host_us: float
    blocking: tuple[CommKind, int] | None
    side: bool
    read_back: bool
    gradient: tuple[CommKind, int] | None
    prefetch: int


@dataclass(frozen=True)
class _Plan:
    """What every step of every rank does."""

    layers: tuple[_Layer, ...]
    steps: int
    gradient_family: Literal["data", "world"]
    hand_over: bool
    load_data: bool
    on_compute: bool
    step_end: Literal["none", "item", "blocking_copy", "device", "event"]
    broadcast_bytes: int
    microbatches: int
    message_bytes: tuple[int, int]
    wrap_wait: bool
    keep_apart: bool
    mix: str


@dataclass(frozen=True)
class _Scale:
    """Typical sizes of a profile: kernels and host operations in us, collectives in bytes."""

    kernel_us: tuple[float, float]
    host_us: tuple[float, float]
    comm_bytes: tuple[int, int]


_SCALES: dict[Profile, _Scale] = {
    "device": _Scale((20, 300), (4, 15), (1 << 18, 1 << 25)),
    "host_bound": _Scale((1, 4), (15, 45), (1 << 10, 1 << 16)),
    "overlap": _Scale((80, 400), (4, 12), (1 << 21, 1 << 26)),
    "p2p": _Scale((50, 400), (4, 15), (1 << 16, 1 << 22)),
    "cpu": _Scale((200, 2_000), (5, 30), (1 << 16, 1 << 22)),
}


def _size(rng: random.Random, low: int, high: int, multiple: int) -> int:
    """Draw from a log-uniform distribution, rounded up to a multiple that all groups divide."""
    value = low * math.exp(math.log(high / low) * rng.random())
    return max(1, round(value / multiple)) * multiple


def _draw_plan(rng: random.Random, profile: Profile, shared_ports: bool) -> _Plan:
    scale = _SCALES[profile]
    multiple = 4 * 840  # 840 = lcm(1..8): every group size divides the elements

    def size() -> int:
        return _size(rng, *scale.comm_bytes, multiple)

    layers = []
    for _ in range(rng.randint(2, 4)):
        kernels = tuple(
            (rng.choice(_GEMMS if i == 0 else _ELEMENTWISE), rng.uniform(*scale.kernel_us))
            for i in range(rng.randint(1, 3))
        )
        blocking: tuple[CommKind, int] | None = None
        if rng.random() < 0.5:
            kinds: tuple[CommKind, ...] = ("all_reduce", "all_gather", "reduce_scatter")
            blocking = (rng.choice((*kinds, "all_to_all", "all_reduce")), size())
        gradient: tuple[CommKind, int] | None = None
        if rng.random() < (1.0 if profile == "overlap" else 0.6):
            gradient = (rng.choice(("all_reduce", "reduce_scatter")), size())
        layers.append(
            _Layer(
                kernels=kernels,
                host_us=rng.uniform(*scale.host_us),
                blocking=blocking,
                side=profile in ("device", "overlap") and rng.random() < 0.35,
                read_back=profile == "device" and rng.random() < 0.15,
                gradient=gradient,
                prefetch=size() if profile == "overlap" and rng.random() < 0.6 else 0,
            )
        )
    small, large = 2_048, 1 << 18
    message = [
        _size(rng, large, 1 << 24, 4) if rng.random() < 0.75 else _size(rng, small // 4, small, 4)
        for _ in range(2)
    ]
    ends: tuple[Literal["none", "item", "blocking_copy", "device", "event"], ...]
    ends = ("none", "none", "item", "blocking_copy", "device", "event")
    return _Plan(
        layers=tuple(layers),
        steps=rng.randint(1, 4),
        gradient_family="world" if rng.random() < 0.3 else "data",
        hand_over=profile != "cpu" and rng.random() < 0.6,
        load_data=rng.random() < 0.4,
        on_compute=rng.random() < 0.25,
        step_end=rng.choice(("none", "event") if profile == "host_bound" else ends),
        broadcast_bytes=size() if rng.random() < 0.3 else 0,
        microbatches=rng.randint(2, 4),
        message_bytes=(message[0], message[1]),
        wrap_wait=rng.random() < 0.5,
        keep_apart=not shared_ports,
        mix=f"{profile} {rng.random()}" if shared_ports else "",
    )


class _Comms:
    """Communications of a program, created when the first member reaches them."""

    def __init__(self, groups: tuple[Group, ...], rng: random.Random, tails: bool) -> None:
        self.groups = groups
        self.items: list[Comm] = []
        self._rng = rng
        self._tails = tails
        self._index: dict[tuple[object, ...], int] = {}

    def collective(
        self, key: tuple[object, ...], kind: CommKind, group: int, size_bytes: int, dtype: str
    ) -> int:
        full = (*key, group)
        if full not in self._index:
            ranks = self.groups[group].ranks
            tails: dict[int, int] = {}
            # Few enough that the typical end of a host's members stays that of the transfer.
            if self._tails and kind != "broadcast" and self._rng.random() < 0.25:
                late = self._rng.sample(ranks, self._rng.randint(1, len(ranks) - 1))
                tails = {rank: self._rng.randint(0, 30 * US) for rank in late}
            root = self._rng.choice(ranks) if kind == "broadcast" else -1
            self._index[full] = len(self.items)
            self.items.append(Comm(kind, group, size_bytes, dtype, root=root, tail_ns=tails))
        return self._index[full]

    def message(self, key: tuple[object, ...], source: int, target: int, size_bytes: int) -> int:
        full = (*key, source, target)
        if full not in self._index:
            self._index[full] = len(self.items)
            self.items.append(Comm("send_recv", 0, size_bytes, root=source, peer=target))
        return self._index[full]


class _RankGenerator:
    """Spells out a plan for one rank, with durations of its own."""

    def __init__(
        self,
        plan: _Plan,
        rank: int,
        rng: random.Random,
        comms: _Comms,
        domain_size: int,
        families: dict[str, int],
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.rng = rng
        self.comms = comms
        self.families = families
        self.build = RankBuilder(rank, comms.groups, comms.items, domain_size, self._cost)
        self.main: list[Instruction] = []
        self.autograd: list[Instruction] = []
        self._last_event: int | None = None

    def _cost(self, low_us: float, high_us: float) -> int:
        return self.rng.randint(round(low_us * US), round(high_us * US))

    def _jitter(self, us: float) -> int:
        return max(1, round(us * US * self.rng.uniform(0.85, 1.2)))

    def _python(self) -> Work:
        return self.build.work(2, 25)

    # Device jobs

    def _issue(self, out: list[Instruction], index: int, *, on_compute: bool = False) -> None:
        if self.plan.keep_apart:
            out += self.build.apart(index)
        out.append(self.build.issue(index, on_compute=on_compute))

    def _collective(
        self, key: tuple[object, ...], family: str, what: tuple[CommKind, int]
    ) -> int | None:
        if self.plan.mix and len(self.families) > 1:
            family = random.Random(f"{self.plan.mix} {key}").choice(("world", "tensor", "data"))
        group = self.families.get(family)
        if group is None:
            return None
        kind, size_bytes = what
        return self.comms.collective(key, kind, group, size_bytes, "BFloat16")

    def _operation(
        self, name: str, kernels: Iterable[tuple[str, float]], layer: _Layer
    ) -> list[Instruction]:
        out: list[Instruction] = []
        for kernel, us in kernels:
            host = layer.host_us / 2
            launch = self.build.launch(Kernel(kernel, self._jitter(us)))
            out.append(
                Scope(
                    name,
                    (Work(self._jitter(host)), launch, Work(self._jitter(host / 2))),
                )
            )
            if self.rng.random() < 0.5:
                out.append(self._python())
        return out

    def _side_branch(self, layer: _Layer) -> list[Instruction]:
        """Work on a second stream, beside the compute stream and joined after a kernel."""
        fork, join = self.build.event(), self.build.event()
        side = Kernel(_ELEMENTWISE[0], self._jitter(layer.kernels[0][1] * 1.5))
        beside = Kernel(_GEMMS[0], self._jitter(layer.kernels[0][1]))
        return [
            self.build.op(
                "aten::mul",
                self.build.record(fork, COMPUTE_STREAM),
                self.build.wait(fork, SIDE_STREAM),
                self.build.launch(side, SIDE_STREAM),
                self.build.record(join, SIDE_STREAM),
            ),
            self.build.op("aten::mm", self.build.launch(beside)),
            self.build.op("aten::add", self.build.wait(join, COMPUTE_STREAM)),
        ]

    def _forward_layer(self, step: int, batch: int, index: int, layer: _Layer) -> int:
        """Append the forward pass of a layer to the main thread; return its flow number."""
        flow = self.build.flow()
        key = (step, batch, index)
        if layer.prefetch:
            gather: tuple[CommKind, int] = ("all_gather", layer.prefetch // 8)
            comm = self._collective((*key, "prefetch"), "data", gather)
            if comm is not None:
                self._issue(self.main, comm)
        first, *rest = self._operation("aten::addmm", layer.kernels, layer)
        assert isinstance(first, Scope)
        self.main += [
            Scope(first.name, first.body, args=autograd_numbers(flow, 0), flow=flow),
            *rest,
        ]
        if layer.side:
            self.main += self._side_branch(layer)
        if layer.prefetch:
            self.main += self.build.wait_for()
        if layer.blocking:
            self._blocking(self.main, (*key, "forward"), layer.blocking)
        if layer.read_back:
            copy = Kernel("Memcpy DtoH (Device -> Pageable)", self._cost(1, 2), "memcpy", 8)
            self.main.append(
                self.build.op(
                    "aten::nonzero", BlockingCopy(copy, COMPUTE_STREAM, self._cost(1, 10))
                )
            )
        self.main.append(self._python())
        return flow

    def _blocking(
        self, out: list[Instruction], key: tuple[object, ...], what: tuple[CommKind, int]
    ) -> None:
        """Issue a tensor-parallel collective whose result the next kernel needs."""
        comm = self._collective(key, "tensor", what)
        if comm is not None:
            self._issue(out, comm, on_compute=self.plan.on_compute)
            out += self.build.wait_for([comm])

    def _backward_layer(
        self,
        out: list[Instruction],
        step: int,
        batch: int,
        index: int,
        layer: _Layer,
        flow: int,
        last: bool,
    ) -> None:
        key = (step, batch, index)
        kernels = [(name, us * 1.6) for name, us in layer.kernels]
        numbers = autograd_numbers(flow, 1)
        inner = Scope(
            "AddmmBackward0",
            tuple(self._operation("aten::mm", kernels, layer)),
            args=numbers,
            flow=flow,
            flow_finish=True,
        )
        body: list[Instruction] = [self.build.work(1, 4), inner]
        if layer.blocking:
            self._blocking(body, (*key, "backward"), layer.blocking)
        out.append(
            Scope("autograd::engine::evaluate_function: AddmmBackward0", tuple(body), args=numbers)
        )
        out.append(self.build.work(0.5, 3))
        if last and layer.gradient:
            comm = self._collective((*key, "gradient"), self.plan.gradient_family, layer.gradient)
            if comm is not None:
                hook: list[Instruction] = [self.build.work(1, 4)]
                self._issue(hook, comm)
                out.append(
                    Scope(
                        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
                        (*hook, self.build.work(1, 4)),
                    )
                )

    def _backward(self, step: int, batch: int, flows: list[int], last: bool) -> None:
        """Append a backward pass, on the second thread where the plan has one."""
        out = self.autograd if self.plan.hand_over else self.main
        if self.plan.hand_over:
            flag = f"{step}.{batch}"
            self.main += [Post(f"backward {flag}"), Await(f"done {flag}")]
            out.append(Await(f"backward {flag}"))
        for index in reversed(range(len(flows))):
            layer = self.plan.layers[index]
            self._backward_layer(out, step, batch, index, layer, flows[index], last)
        if last:
            out += self.build.wait_for()
        if self.plan.hand_over:
            out.append(Post(f"done {flag}"))

    def _load_data(self) -> None:
        ready = self.build.event()
        size = 1 << 20
        copy = Kernel("Memcpy HtoD (Pinned -> Device)", self._cost(30, 90), "memcpy", size)
        fill = Kernel("Memset (Device)", self._cost(1, 3), "memset", 4096)
        self.main += [
            self.build.op(
                "aten::to",
                self.build.launch(copy, COPY_STREAM),
                self.build.record(ready, COPY_STREAM),
                self.build.wait(ready, COMPUTE_STREAM),
            ),
            self.build.op("aten::zero_", self.build.launch(fill)),
        ]

    def _step_end(self) -> None:
        end = self.plan.step_end
        copy = Kernel("Memcpy DtoH (Device -> Pageable)", self._cost(1, 2), "memcpy", 4)
        if end == "item":
            self.main.append(
                self.build.op(
                    "aten::item",
                    self.build.launch(copy),
                    Sync("stream", COMPUTE_STREAM, self._cost(1, 10)),
                )
            )
        elif end == "blocking_copy":
            self.main.append(
                self.build.op("aten::item", BlockingCopy(copy, COMPUTE_STREAM, self._cost(1, 10)))
            )
        elif end == "device":
            self.main.append(Sync("device", 0, self._cost(1, 10)))
        elif end == "event":
            # The host may run one step ahead: it waits for the end of the step before.
            event = self.build.event()
            self.main += [self.build.record(event, COMPUTE_STREAM), self._python()]
            if self._last_event is not None:
                self.main.append(Sync("event", self._last_event, self._cost(1, 10)))
            self._last_event = event

    def _world_end(self, step: int) -> None:
        # A step always has a symmetric collective of all ranks, so that clocks can be aligned.
        ends: list[tuple[CommKind, int]] = [("all_reduce", 3360)]
        if self.plan.broadcast_bytes:
            ends.append(("broadcast", self.plan.broadcast_bytes))
        for kind, size in ends:
            comm = self.comms.collective((step, "end", kind), kind, 0, size, "Float")
            self._issue(self.main, comm)
            self.main += [self._python(), *self.build.wait_for()]

    def _optimizer(self) -> None:
        for _ in range(2):
            kernel = Kernel("void at::native::multi_tensor_apply_kernel", self._cost(5, 40))
            self.main.append(self.build.op("aten::_foreach_add_", self.build.launch(kernel)))
            self.main.append(self._python())

    def device_step(self, step: int) -> None:
        """Append one step of a data- and tensor-parallel job."""
        if self.plan.load_data:
            self._load_data()
        flows = [
            self._forward_layer(step, 0, index, layer)
            for index, layer in enumerate(self.plan.layers)
        ]
        self._backward(step, 0, flows, last=True)
        self._world_end(step)
        self._optimizer()
        self._step_end()

    def pipeline_step(self, step: int) -> None:
        """Append one step of a pipeline: all forward passes, then all backward passes."""
        stages = len(self.comms.groups[0].ranks)
        flows: list[list[int]] = []
        for way, before in (("forward", -1), ("backward", 1)):
            if self.plan.mix:
                beside = self.plan.message_bytes[0] // 840 * 840
                comm = self.comms.collective((step, way), "all_reduce", 0, beside, "BFloat16")
                self._issue(self.main, comm)
            size = self.plan.message_bytes[0 if way == "forward" else 1]
            source, target = self.rank + before, self.rank - before
            for batch in range(self.plan.microbatches):
                if 0 <= source < stages:
                    comm = self.comms.message((step, way, batch), source, self.rank, size)
                    self._issue(self.main, comm)
                    self.main += self.build.wait_for([comm])
                if way == "forward":
                    layers = enumerate(self.plan.layers[:2])
                    flows.append([self._forward_layer(step, batch, i, x) for i, x in layers])
                else:
                    self._backward(step, batch, flows[batch], last=False)
                if 0 <= target < stages:
                    comm = self.comms.message((step, way, batch), self.rank, target, size)
                    self._issue(self.main, comm)
                self.main.append(self._python())
        self.main += self.build.wait_for()
        self._world_end(step)
        self._optimizer()
        self._step_end()

    # CPU jobs

    def _queue(self, out: list[Instruction], comm: int, *, blocking: bool) -> None:
        if self.plan.keep_apart:
            out += self.build.await_queue()
        out.append(self.build.enqueue(comm))
        if blocking:
            out += self.build.await_queue()

    def _compute(self, name: str, us: float) -> Scope:
        parts = [self._jitter(us / 3) for _ in range(3)]
        inner = Scope("aten::copy_", (Work(parts[1]),))
        return Scope(name, (Work(parts[0]), inner, Work(parts[2])))

    def cpu_step(self, step: int) -> None:
        """Append one step of a CPU job over Gloo."""
        for index, layer in enumerate(self.plan.layers):
            for _, us in layer.kernels:
                self.main += [self._compute("aten::addmm", us), self._python()]
            if layer.blocking:
                kind, size = layer.blocking
                comm = self.comms.collective((step, index, "forward"), kind, 0, size, "Float")
                call: list[Instruction] = [self.build.work(5, 20)]
                self._queue(call, comm, blocking=True)
                call.append(self.build.work(5, 20))
                self.main += [Scope("Reduce", tuple(call))] if self.plan.wrap_wait else call
        for index, layer in reversed(list(enumerate(self.plan.layers))):
            for _, us in layer.kernels:
                self.main += [self._compute("AddmmBackward0", us * 1.6), self._python()]
            if layer.gradient:
                size = layer.gradient[1]
                comm = self.comms.collective(
                    (step, index, "gradient"), "all_reduce", 0, size, "Float"
                )
                self._queue(self.main, comm, blocking=False)
        self.main += self.build.await_queue()
        comm = self.comms.collective((step, "end"), "all_reduce", 0, 3360, "Float")
        self._queue(self.main, comm, blocking=True)
        self.main += [self._compute("aten::_foreach_add_", 100), self._python()]

    def threads(self, profile: Profile) -> tuple[HostThread, ...]:
        """All steps, as the threads of the rank."""
        spell = {"p2p": self.pipeline_step, "cpu": self.cpu_step}.get(profile, self.device_step)
        outer: list[Instruction] = []
        for step in range(self.plan.steps):
            self.main = []
            spell(step)
            outer += [Step(step + 3, tuple(self.main)), self.build.work(2, 60)]
        threads = [HostThread(MAIN, tuple(outer))]
        if self.autograd:
            threads.append(HostThread(AUTOGRAD, tuple(self.autograd)))
        return tuple(threads)


def _families(rank: int, groups: tuple[Group, ...]) -> dict[str, int]:
    """Map the world, tensor- and data-parallel to the rank's groups (of more than one rank)."""
    return {"world": 0} | {
        group.description: index
        for index, group in enumerate(groups)
        if index > 0 and rank in group.ranks
    }


def _make_groups(ranks: int, domain: int) -> tuple[Group, ...]:
    """World, contiguous tensor-parallel groups, strided data-parallel groups."""
    groups = [world_group(ranks)]
    if 1 < domain <= ranks:
        for first in range(0, ranks, domain):
            members = tuple(range(first, first + domain))
            groups.append(Group(str(len(groups)), "tensor", members))
    if domain < ranks:
        for first in range(domain):
            members = tuple(range(first, ranks, domain))
            groups.append(Group(str(len(groups)), "data", members))
    return tuple(groups)


def random_program(
    seed: int, *, profile: Profile, shared_ports: bool = False, tails: bool = False
) -> Program:
    """Draw a program.

    Parameters
    ----------
    seed : int
        The same seed gives the same program.
    profile : str
        ``device``: kernels longer than their launches, tensor- and data-parallel collectives,
        side streams, synchronisations; ``host_bound``: kernels shorter than their launches;
        ``overlap``: large collectives beside large kernels; ``p2p``: a pipeline of messages;
        ``cpu``: no device, collectives over Gloo's queue.
    shared_ports : bool
        Let transfers share ports (see the module). Only then are several collectives of a CPU
        job queued at once.
    tails : bool
        Let some members of some symmetric collectives end up to 30 us after the others.

    Returns
    -------
    Program
        Of two to eight ranks in domains of equal size, one to four steps.
    """
    rng = random.Random(f"{profile} {seed}")
    size = rng.choice((2, 4, 6, 8) if profile != "p2p" else (2, 3, 4))
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    domain = rng.choice(divisors)
    groups = (world_group(size),) if profile in ("cpu", "p2p") else _make_groups(size, domain)
    plan = _draw_plan(rng, profile, shared_ports)
    comms = _Comms(groups, rng, tails)
    ranks = []
    for rank in range(size):
        own = random.Random(f"{profile} {seed} {rank}")
        generator = _RankGenerator(plan, rank, own, comms, domain, _families(rank, groups))
        ranks.append(RankProgram(own.randint(0, 2_000 * US), generator.threads(profile)))
    hosts = tuple(rank // domain for rank in range(size))
    return Program(
        name=f"{profile}-{seed}",
        dialect="cpu" if profile == "cpu" else "gpu",
        ranks=tuple(ranks),
        groups=groups,
        comms=tuple(comms.items),
        domain_size=domain,
        host_of=hosts,
        clock_offset_ns=tuple(rng.randint(-5_000 * US, 5_000 * US) for _ in range(hosts[-1] + 1)),
        launch_latency_ns=rng.randint(3 * US, 8 * US),
        kernel_gap_ns=rng.choice((0, rng.randint(0, US))),
        wake_ns=rng.randint(0, 20 * US),
    )
