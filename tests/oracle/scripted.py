"""Scripted programs with round numbers, one for each claim that a test makes."""

from __future__ import annotations

import random

from .spelling import (
    KERNEL_ARGS,
    SPELLING,
    RankBuilder,
    autograd_numbers,
    comm_metadata,
    world_group,
)
from .vocabulary import (
    AUTOGRAD,
    COMPUTE_STREAM,
    FIRST_COMM_STREAM,
    MAIN,
    US,
    Await,
    AwaitComm,
    BlockingCopy,
    Comm,
    Dialect,
    Enqueue,
    Group,
    HostThread,
    Instruction,
    Kernel,
    Launch,
    Post,
    Program,
    RankProgram,
    RecordEvent,
    Scope,
    Step,
    Sync,
    WaitEvent,
    Work,
)


def _midpoint(low_us: float, high_us: float) -> int:
    return round((low_us + high_us) / 2 * US)


def _scripted(
    name: str,
    threads: list[list[HostThread]],
    comms: list[Comm],
    *,
    groups: tuple[Group, ...] | None = None,
    domain_size: int | None = None,
    dialect: Dialect = "gpu",
    start_ns: tuple[int, ...] | None = None,
    wake_ns: int = 0,
) -> Program:
    size = len(threads)
    domain = domain_size or size
    hosts = tuple(rank // domain for rank in range(size))
    return Program(
        name=name,
        dialect=dialect,
        ranks=tuple(
            RankProgram(start_ns[rank] if start_ns else 0, tuple(items))
            for rank, items in enumerate(threads)
        ),
        groups=groups or (world_group(size),),
        comms=tuple(comms),
        domain_size=domain,
        host_of=hosts,
        clock_offset_ns=(0,) * (hosts[-1] + 1),
        wake_ns=wake_ns,
    )


def _kernel_op(name: str, kernel: str, dur_us: float, stream: int = COMPUTE_STREAM) -> Scope:
    """Spell out an operation of 10 us whose launch call begins 2 us into it."""
    launch = Launch(Kernel(kernel, round(dur_us * US)), stream, 5 * US)
    return Scope(name, (Work(2 * US), launch, Work(3 * US)))


def overlap_program(steps: int = 3) -> Program:
    """Two ranks gather 1 MB while a GEMM runs beside it on the compute stream.

    With a transfer of 100 us the all-gather runs from 0 to 100 us and the GEMM from 10 to
    100 us: a faster network changes nothing, a slower one delays the kernel that needs both.
    """
    comms = [Comm("all_gather", 0, 1_000_000) for _ in range(steps)]
    threads: list[list[HostThread]] = []
    for rank in range(2):
        body: list[Instruction] = []
        for step in range(steps):
            stream = FIRST_COMM_STREAM
            gather = Kernel(SPELLING["all_gather"].kernel + KERNEL_ARGS, comm=step)
            meta = comm_metadata((world_group(2),), comms[step], rank)
            launch = Launch(gather, stream, 2 * US, "cudaLaunchKernelExC")
            end, joined = 10 * step + 1, 10 * step + 2
            body.append(
                Step(
                    step + 3,
                    (
                        Scope(
                            "c10d::_allgather_base_",
                            (
                                Scope(
                                    "record_param_comms",
                                    (
                                        Scope(
                                            "nccl:_all_gather_base",
                                            (launch, RecordEvent(end, stream, US)),
                                            "user_annotation",
                                        ),
                                    ),
                                    args=meta | {"Rank": rank},
                                ),
                            ),
                        ),
                        Work(5 * US),
                        _kernel_op("aten::mm", "ampere_fp16_s16816gemm_fp16_128x128", 90),
                        WaitEvent(end, COMPUTE_STREAM, US),
                        _kernel_op("aten::add", "void at::native::elementwise_kernel", 10),
                        Work(29 * US),
                        # The next gather may only begin when this step's work is done.
                        RecordEvent(joined, COMPUTE_STREAM, US),
                        WaitEvent(joined, stream, US),
                        Sync("device", 0, 5 * US),
                        Work(10 * US),
                    ),
                )
            )
        threads.append([HostThread(MAIN, tuple(body))])
    return _scripted("overlap", threads, comms)


def expert_program(seed: int, *, meet: bool = False, steps: int = 2) -> Program:
    """Four ranks in two domains send unequal parts to experts and back, and sum up gradients.

    With `meet` the way back and the sum are under way at the same time, over the same ports.
    """
    rng = random.Random(seed)
    groups = (world_group(4), Group("1", "data", (0, 2)), Group("2", "data", (1, 3)))
    comms: list[Comm] = []
    for _ in range(steps):
        there = tuple(tuple(8 * rng.randint(0, 150_000) for _ in range(4)) for _ in range(4))
        back = tuple(zip(*there, strict=True))
        comms += [Comm("all_to_all", 0, 0, parts=there), Comm("all_to_all", 0, 0, parts=back)]
        comms += [Comm("all_reduce", group, 840_000) for group in (1, 2)]
    threads: list[list[HostThread]] = []
    for rank in range(4):
        build = RankBuilder(rank, groups, comms, 2, _midpoint)
        body: list[Instruction] = []
        for step in range(steps):
            tokens = sum(row[rank] for row in comms[4 * step].parts)
            own: list[Instruction] = [_kernel_op("aten::mm", "ampere_gate", rng.randint(20, 60))]
            own.append(build.issue(4 * step))
            own += build.wait_for()
            own.append(_kernel_op("aten::mm", "ampere_expert", tokens / 40_000))
            own.append(build.issue(4 * step + 1))
            own += [] if meet else build.wait_for()
            own.append(build.issue(4 * step + 2 + rank % 2))
            own += build.wait_for()
            own.append(_kernel_op("aten::add", "void at::native::elementwise_kernel", 10))
            body.append(Step(step + 3, (*own, Sync("device", 0, 5 * US))))
        threads.append([HostThread(MAIN, tuple(body))])
    return _scripted("experts", threads, comms, groups=groups, domain_size=2)


def host_bound_program(steps: int = 3, layers: int = 10) -> Program:
    """Two ranks whose kernels are shorter than the host work that launches them.

    A layer costs the host 70 us and the device 2 us of compute plus an all-reduce of 50 kB, so
    on any decent network the host is the critical path and the network is worth nothing.
    """
    comms: list[Comm] = []
    threads = []
    for rank in range(2):
        builder = RankBuilder(rank, (world_group(2),), comms, 2, _midpoint)
        body: list[Instruction] = []
        for step in range(steps):
            inner: list[Instruction] = []
            for layer in range(layers):
                index = step * layers + layer
                if rank == 0:
                    comms.append(Comm("all_reduce", 0, 50_000))
                inner += [
                    _kernel_op("aten::mm", "ampere_fp16_s16816gemm_fp16_64x64", 2),
                    Work(20 * US),
                    builder.issue(index),
                    *builder.wait_for(),
                ]
            body += [Step(step + 3, tuple(inner)), Work(5 * US)]
        threads.append([HostThread(MAIN, tuple(body))])
    return _scripted("host-bound", threads, comms)


def pipeline_program(
    steps: int = 2, microbatches: int = 2, size_bytes: int = 4_000_000, stages: int = 2
) -> Program:
    """A forward and backward pipeline of one rank per stage and domain, sent point to point."""
    comms: list[Comm] = []
    wires: dict[tuple[int, str, int, int], int] = {}
    groups = (world_group(stages),)

    def wire(step: int, way: str, batch: int, source: int, target: int) -> int:
        key = (step, way, batch, source)
        if key not in wires:
            wires[key] = len(comms)
            comms.append(Comm("send_recv", 0, size_bytes, root=source, peer=target))
        return wires[key]

    threads = []
    for rank in range(stages):
        builder = RankBuilder(rank, groups, comms, 1, _midpoint)
        body: list[Instruction] = []
        for step in range(steps):
            inner: list[Instruction] = []
            for way, before, after in (("forward", -1, 1), ("backward", 1, -1)):
                for batch in range(microbatches):
                    if 0 <= rank + before < stages:
                        index = wire(step, way, batch, rank + before, rank)
                        inner += [*builder.apart(index), builder.issue(index)]
                        inner += builder.wait_for([index])
                    inner.append(_kernel_op("aten::mm", "ampere_fp16_s16816gemm", 300))
                    if 0 <= rank + after < stages:
                        index = wire(step, way, batch, rank, rank + after)
                        inner += [*builder.apart(index), builder.issue(index)]
            inner += [*builder.wait_for(), _kernel_op("aten::add_", "multi_tensor_apply", 50)]
            body += [Step(step + 3, tuple(inner)), Work(5 * US)]
        threads.append([HostThread(MAIN, tuple(body))])
    return _scripted("pipeline", threads, comms, groups=groups, domain_size=1)


def hand_over_program(steps: int = 2) -> Program:
    """Two ranks whose backward pass runs on a second thread while the main thread waits.

    The backward pass all-reduces 10 MB and then reads a number back, so the join, and with it
    the optimizer's launches, move with the network.
    """
    comms = [Comm("all_reduce", 0, 10_000_000, dtype="Float") for _ in range(steps)]
    threads = []
    for rank in range(2):
        builder = RankBuilder(rank, (world_group(2),), comms, 2, _midpoint)
        main: list[Instruction] = []
        autograd: list[Instruction] = []
        for step in range(steps):
            flow = builder.flow()
            forward = _kernel_op("aten::addmm", "ampere_sgemm_128x64_tn", 40)
            forward = Scope(forward.name, forward.body, args=autograd_numbers(flow, 0), flow=flow)
            main.append(
                Step(
                    step + 3,
                    (
                        forward,
                        Work(10 * US),
                        Post(f"backward {step}"),
                        Await(f"done {step}"),
                        Work(5 * US),
                        _kernel_op("aten::add_", "multi_tensor_apply", 20),
                    ),
                )
            )
            main.append(Work(5 * US))
            copy = Kernel("Memcpy DtoH (Device -> Pageable)", 2 * US, "memcpy", 4)
            back = autograd_numbers(flow, 1)
            autograd += [
                Await(f"backward {step}"),
                Scope(
                    "autograd::engine::evaluate_function: AddmmBackward0",
                    (
                        Scope(
                            "AddmmBackward0",
                            (_kernel_op("aten::mm", "ampere_sgemm_128x64_nt", 80),),
                            args=back,
                            flow=flow,
                            flow_finish=True,
                        ),
                        builder.issue(step),
                        *builder.wait_for(),
                        Scope(
                            "aten::_local_scalar_dense",
                            (Work(US), BlockingCopy(copy, COMPUTE_STREAM, 3 * US)),
                        ),
                    ),
                    args=back,
                ),
                Post(f"done {step}"),
            ]
        threads.append([HostThread(MAIN, tuple(main)), HostThread(AUTOGRAD, tuple(autograd))])
    return _scripted("hand-over", threads, comms, wake_ns=15 * US)


def host_sync_program(steps: int = 3) -> Program:
    """Two ranks that read the loss back (``.item()``) at the end of every step.

    The host cannot run ahead: the next step's host work begins when the all-reduce is done, so
    a step is host time plus device time.
    """
    comms = [Comm("all_reduce", 0, 5_000_000) for _ in range(steps)]
    threads = []
    for rank in range(2):
        builder = RankBuilder(rank, (world_group(2),), comms, 2, _midpoint)
        body: list[Instruction] = []
        for step in range(steps):
            copy = Kernel("Memcpy DtoH (Device -> Pageable)", US, "memcpy", 4)
            item = Scope(
                "aten::item",
                (
                    Work(US),
                    Launch(copy, COMPUTE_STREAM, 5 * US, "cudaMemcpyAsync"),
                    Sync("stream", COMPUTE_STREAM, 2 * US),
                    Work(US),
                ),
            )
            body.append(
                Step(
                    step + 3,
                    (
                        Work(100 * US),
                        _kernel_op("aten::mm", "ampere_fp16_s16816gemm", 50),
                        builder.issue(step),
                        *builder.wait_for(),
                        item,
                    ),
                )
            )
            body.append(Work(5 * US))
        threads.append([HostThread(MAIN, tuple(body))])
    return _scripted("host-sync", threads, comms)


def queue_program(collectives: int = 3, size_bytes: int = 1_000_000) -> Program:
    """Two ranks of a CPU job that queue several all-reduces at once for two threads.

    The transfers share the ports of their rank, so the times hold only without contention.
    """
    comms = [Comm("all_reduce", 0, size_bytes, dtype="Float") for _ in range(collectives)]
    threads = []
    for _ in range(2):
        body = (
            Step(
                2,
                (
                    Scope("aten::addmm", (Work(500 * US),)),
                    *(
                        Scope("c10d::allreduce_", (Work(10 * US), Enqueue(i), Work(10 * US)))
                        for i in range(collectives)
                    ),
                    *(AwaitComm(i) for i in range(collectives)),
                    Scope("aten::add_", (Work(200 * US),)),
                ),
            ),
        )
        threads.append([HostThread(MAIN, body)])
    return _scripted("queue", threads, comms, dialect="cpu")
