"""Runs a program on a network and knows when everything happened.

The physics assumed, all in integer nanoseconds:

*Hosts.* A thread does its instructions one after the other. A thread that blocks goes on at the
moment it may, plus `Program.wake_ns` if it really had to wait.

*Launches.* A kernel starts no earlier than the start of its launch call plus
`launch_latency_ns`, than the end of its predecessor on the stream plus `kernel_gap_ns`, and than
the end of everything its stream was told to wait for. Nothing else delays it: streams do not
compete for the device.

*Events.* An event stands for what its stream had been given when it was recorded: the last
kernel, and also whatever the stream had been told to wait for after that kernel (so waits are
transitive, as in CUDA).

*Synchronisation.* A call that begins at s and waits for device work that ends at w ends at
max(s, w) plus its own cost.

*Communication.* A member arrives when its kernel starts. A symmetric collective ends on all its
members at max(arrivals) + T, plus each member's own tail. In a broadcast the root ends at its
arrival + T and a receiver at the later of its own and the root's arrival + T. A message arrives
at max(both starts) + T; a large one is sent by rendezvous and ends on both sides then, a small one
eagerly, so that the sender ends at its own start + T.

*Transfer times* T are the closed forms of one and two switch tiers (`OracleNetwork`), every
transfer priced as if it were alone. Only with `contention` do those that use a port at the same
time share it (`fluid`), and T is what a transfer takes in their company. The members of a
symmetric collective, and the two of a rendezvous, move their bytes together; elsewhere each
member moves its own.

*CPU jobs.* Operations are the compute. The communications of a rank stand in one queue served
by `queue_threads` threads, first come first served; a member arrives when a thread takes it.

*Steps.* completion(k) is when, on all ranks, the annotation of step k has ended and the device
work (or queued communication) launched in steps up to k is done.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .edges import HostEdge, StreamEdge, TrueEdges, true_edges
from .fluid import Fabric
from .network import OracleNetwork, OracleTier
from .run import (
    CommRecord,
    DeviceSpan,
    HandOver,
    HostSpan,
    QueueSpan,
    QueueWait,
    RecordedEvent,
    Run,
)
from .vocabulary import (
    Await,
    AwaitComm,
    BlockingCopy,
    Call,
    Enqueue,
    HostThread,
    Instruction,
    Kernel,
    Launch,
    Post,
    Program,
    RecordEvent,
    Scope,
    Step,
    Sync,
    WaitEvent,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = [
    "Deadlock",
    "HostEdge",
    "OracleNetwork",
    "OracleTier",
    "Run",
    "StreamEdge",
    "TrueEdges",
    "execute",
    "true_edges",
]

#: Correlation ids begin above all ids of operations, so that the two are never confused.
FIRST_CORRELATION = 100_000


class _Signal:
    """A moment that others wait for; it fires once."""

    def __init__(self) -> None:
        self.time: int | None = None
        self.waiters: list[Callable[[], None]] = []


_Wish: TypeAlias = "int | _Signal"  # a time to sleep until, or a signal to wait for
_Process: TypeAlias = "Generator[_Wish, None, None]"


class _Loop:
    """Virtual time: callbacks in order of time, ties in order of their making."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: int, action: Callable[[], None]) -> None:
        if time < self.now:
            raise ValueError(f"an event at {time} ns cannot be made at {self.now} ns")
        heapq.heappush(self._heap, (time, self._count, action))
        self._count += 1

    def fire(self, signal: _Signal, time: int) -> None:
        """Let a signal fire at a time to come."""

        def now() -> None:
            signal.time = self.now
            for waiter in signal.waiters:
                waiter()
            signal.waiters.clear()

        self.at(time, now)

    def when(self, signal: _Signal, action: Callable[[], None]) -> None:
        """Act when a signal fires, at once if it has."""
        if signal.time is None:
            signal.waiters.append(action)
        else:
            action()

    def start(self, process: _Process, time: int) -> None:
        def go_on() -> None:
            wish = next(process, None)
            if isinstance(wish, _Signal):
                self.when(wish, lambda: self.at(self.now, go_on))
            elif wish is not None:
                self.at(wish, go_on)

        self.at(time, go_on)

    def run(self) -> None:
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()


class Deadlock(Exception):  # noqa: N818
    """The program never ends: some threads or communications wait for ever."""


@dataclass(eq=False)
class _Stream:
    """The tail of a stream: its last kernel, and what it was told to wait for since."""

    last: DeviceSpan | None = None
    pending: list[DeviceSpan] = field(default_factory=list)

    def nodes(self) -> list[DeviceSpan]:
        return ([self.last] if self.last else []) + self.pending


@dataclass(eq=False)
class _Flag:
    signal: _Signal = field(default_factory=_Signal)
    source: str = ""
    step: int = -1


class _Exchange:
    """One communication in progress: collects arrivals and tells members when they end."""

    def __init__(
        self,
        loop: _Loop,
        program: Program,
        network: OracleNetwork,
        index: int,
        fabric: Fabric | None,
    ) -> None:
        self.comm = program.comms[index]
        self.ranks = program.groups[self.comm.group].ranks
        self.members = (
            (self.comm.root, self.comm.peer) if self.comm.kind == "send_recv" else self.ranks
        )
        alone_ns = network.transfer_ns(self.comm, self.ranks)
        self.record = CommRecord(index, alone_ns, {}, {}, {})
        self._loop = loop
        self._network = network
        self._fabric = fabric
        self._eager = self.comm.size_bytes <= program.eager_limit_bytes
        self._ends: dict[int, Callable[[int], None]] = {}

    @property
    def _one_by_one(self) -> bool:
        """Whether members move their bytes each for itself."""
        comm = self.comm
        return comm.kind == "broadcast" or (comm.kind == "send_recv" and self._eager)

    def _needs(self, rank: int) -> tuple[int, ...]:
        """Members whose arrival a member waits for."""
        return (rank, self.comm.root) if self._one_by_one else self.members

    def arrive(self, rank: int, end: Callable[[int], None]) -> None:
        """Take part, now; `end` is called, then or before, with the time at which it is done."""
        if rank not in self.members or rank in self.record.arrived_ns:
            raise ValueError(f"rank {rank} has no (second) part in communication {self.comm}")
        arrived, released = self.record.arrived_ns, self.record.released_ns
        arrived[rank] = self._loop.now
        self._ends[rank] = end
        going = [
            member
            for member in self._ends
            if member not in released and all(other in arrived for other in self._needs(member))
        ]
        for member in going:
            released[member] = max(arrived[other] for other in self._needs(member))
        if self._fabric is None:
            for member in going:
                self._end(member, released[member] + self.record.transfer_ns)
        elif self._one_by_one:
            for member in going:
                self._move((member,), going=(member,))
        elif going:
            self._move(self.members, going=tuple(going))

    def _move(self, movers: tuple[int, ...], going: tuple[int, ...]) -> None:
        assert self._fabric is not None
        stages = self._network.stages(self.comm, self.ranks, movers)

        def done() -> None:
            for member in going:
                self._end(member, self._loop.now)

        self._fabric.begin(stages, done)

    def _end(self, member: int, transferred_ns: int) -> None:
        done = transferred_ns + self.comm.tail_ns.get(member, 0)
        self.record.ended_ns[member] = done
        self._ends.pop(member)(done)


class _Rank:
    """Threads, streams and queue of one rank."""

    def __init__(
        self, program: Program, rank: int, loop: _Loop, exchanges: list[_Exchange]
    ) -> None:
        self.program = program
        self.rank = rank
        self.loop = loop
        self.exchanges = exchanges
        self.host: list[HostSpan] = []
        self.device: list[DeviceSpan] = []
        self.queue: list[QueueSpan] = []
        self.recorded: list[RecordedEvent] = []
        self.hand_overs: list[HandOver] = []
        self.queue_waits: list[QueueWait] = []
        self.unfinished: dict[str, Instruction | None] = {}
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self._done: dict[DeviceSpan, _Signal] = {}
        self._streams: dict[int, _Stream] = defaultdict(_Stream)
        self._events: dict[int, RecordedEvent] = {}
        self._flags: dict[str, _Flag] = defaultdict(_Flag)
        self._step: dict[str, int] = {}
        self._correlation = FIRST_CORRELATION
        self._waiting: list[QueueSpan] = []
        self._idle = list(range(program.queue_threads))
        self._queued: dict[int, _Signal] = {}

    # Host threads

    def thread(self, thread: HostThread) -> _Process:
        self._step[thread.name] = -1
        self.unfinished[thread.name] = None
        yield from self._body(thread.name, thread.body, None)
        del self.unfinished[thread.name]

    def _body(
        self, thread: str, body: tuple[Instruction, ...], parent: HostSpan | None
    ) -> _Process:
        for item in body:
            self.unfinished[thread] = item
            match item:
                case Work(ns=ns):
                    yield self.loop.now + ns
                case Scope():
                    span = self._open(thread, item.name, item.category, parent, item)
                    yield from self._body(thread, item.body, span)
                    span.end_ns = self.loop.now
                case Step():
                    yield from self._one_step(thread, item, parent)
                case Post():
                    flag = self._flags[item.flag]
                    flag.source, flag.step = thread, self._step[thread]
                    self.loop.fire(flag.signal, self.loop.now)
                case Await():
                    yield from self._await(thread, item)
                case Enqueue():
                    self._enqueue(item.comm, self._step[thread])
                case AwaitComm():
                    yield from self._await_comm(item.comm)
                case _:
                    yield from self._call(thread, item, parent)

    def _one_step(self, thread: str, item: Step, parent: HostSpan | None) -> _Process:
        index = len(self.begin)
        name = f"ProfilerStep#{item.number}"
        span = self._open(thread, name, "user_annotation", parent, item)
        self._step[thread] = index
        self.begin[index] = self.loop.now
        yield from self._body(thread, item.body, span)
        self.end[index] = span.end_ns = self.loop.now

    def _open(
        self,
        thread: str,
        name: str,
        category: str,
        parent: HostSpan | None,
        source: Instruction,
    ) -> HostSpan:
        span = HostSpan(thread, name, category, self.loop.now, parent, source)
        if category == "cuda_runtime":
            span.correlation = self._correlation
            self._correlation += 1
        self.host.append(span)
        return span

    def _await(self, thread: str, item: Await) -> _Process:
        flag = self._flags[item.flag]
        begin = self.loop.now
        yield flag.signal
        posted = flag.signal.time
        assert posted is not None
        blocked = posted > begin
        if blocked:
            yield self.loop.now + self.program.wake_ns
        self._step[thread] = flag.step
        self.hand_overs.append(
            HandOver(self.rank, flag.source, posted, thread, self.loop.now, blocked)
        )

    # Runtime calls

    def _call(self, thread: str, item: Instruction, parent: HostSpan | None) -> _Process:
        match item:
            case Call(api=api, ns=ns):
                span = self._open(thread, api, "cuda_runtime", parent, item)
                yield self.loop.now + ns
            case Launch():
                span = self._open(thread, item.api, "cuda_runtime", parent, item)
                self._launch(item.kernel, item.stream, span, self._step[thread])
                yield self.loop.now + item.call_ns
            case RecordEvent():
                span = self._open(thread, "cudaEventRecord", "cuda_runtime", parent, item)
                nodes = tuple(self._streams[item.stream].nodes())
                record = RecordedEvent(span, item.stream, item.event, nodes)
                self._events[item.event] = record
                self.recorded.append(record)
                yield self.loop.now + item.call_ns
            case WaitEvent():
                span = self._open(thread, "cudaStreamWaitEvent", "cuda_runtime", parent, item)
                record = self._events[item.event]
                self._refer(span, record)
                self._streams[item.stream].pending += record.nodes
                yield self.loop.now + item.call_ns
            case Sync():
                span = self._open(thread, _SYNC_CALL[item.kind], "cuda_runtime", parent, item)
                if item.kind == "event":
                    self._refer(span, self._events[item.target])
                yield from self._block(span, self._sync_nodes(item), item.cost_ns)
            case BlockingCopy():
                span = self._open(thread, "cudaMemcpyAsync", "cuda_runtime", parent, item)
                copy = self._launch(item.kernel, item.stream, span, self._step[thread])
                yield from self._block(span, [copy], item.cost_ns)
            case _:
                raise TypeError(f"no such instruction: {item}")
        span.end_ns = self.loop.now

    def _refer(self, span: HostSpan, record: RecordedEvent) -> None:
        span.record = record.call.correlation
        span.event_stream = record.stream

    def _sync_nodes(self, item: Sync) -> list[DeviceSpan]:
        if item.kind == "event":
            return list(self._events[item.target].nodes)
        streams = [item.target] if item.kind == "stream" else list(self._streams)
        return [node for stream in streams for node in self._streams[stream].nodes()]

    def _block(self, span: HostSpan, nodes: list[DeviceSpan], cost_ns: int) -> _Process:
        span.waited_for = nodes
        for node in nodes:
            yield self._done[node]
        yield self.loop.now + cost_ns

    # Device

    def _launch(self, kernel: Kernel, stream: int, call: HostSpan, step: int) -> DeviceSpan:
        tail = self._streams[stream]
        node = DeviceSpan(
            self.rank, stream, kernel, call.correlation, call, step, tail.last, tail.pending
        )
        self._streams[stream] = _Stream(last=node)
        self._done[node] = _Signal()
        self.device.append(node)
        self.loop.start(self._device_work(node), self.loop.now)
        return node

    def _device_work(self, node: DeviceSpan) -> _Process:
        earliest = node.launch.start_ns + self.program.launch_latency_ns
        if node.previous is not None:
            yield self._done[node.previous]
            earliest = max(earliest, node.previous.end_ns + self.program.kernel_gap_ns)
        for other in node.after:
            yield self._done[other]
            earliest = max(earliest, other.end_ns)
        yield earliest
        node.start_ns = self.loop.now

        def end(time: int) -> None:
            node.end_ns = time
            self.loop.fire(self._done[node], time)

        if node.kernel.comm >= 0:
            self.exchanges[node.kernel.comm].arrive(self.rank, end)
        else:
            end(self.loop.now + node.kernel.dur_ns)

    # Queue of a CPU job

    def _enqueue(self, comm: int, step: int) -> None:
        self._queued[comm] = _Signal()
        self._waiting.append(QueueSpan(self.rank, -1, comm, step, -1))
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._idle:
            span = self._waiting.pop(0)
            span.thread = self._idle.pop(0)
            span.start_ns = self.loop.now
            self.queue.append(span)
            self.exchanges[span.comm].arrive(self.rank, self._ender(span))

    def _ender(self, span: QueueSpan) -> Callable[[int], None]:
        signal = self._queued[span.comm]

        def free() -> None:
            self._idle.append(span.thread)
            self._idle.sort()
            self._serve()

        def end(time: int) -> None:
            span.end_ns = time
            self.loop.when(signal, free)
            self.loop.fire(signal, time)

        return end

    def _await_comm(self, comm: int) -> _Process:
        begin = self.loop.now
        signal = self._queued[comm]
        yield signal
        assert signal.time is not None
        blocked = signal.time > begin
        if blocked:
            yield self.loop.now + self.program.wake_ns
        self.queue_waits.append(QueueWait(self.rank, comm, begin, self.loop.now, blocked))


_SYNC_CALL = {
    "stream": "cudaStreamSynchronize",
    "device": "cudaDeviceSynchronize",
    "event": "cudaEventSynchronize",
}


def execute(program: Program, network: OracleNetwork, *, contention: bool = False) -> Run:
    """Run a program on a network.

    Parameters
    ----------
    program : Program
        What the hosts do.
    network : OracleNetwork
        Prices the transfers.
    contention : bool
        Whether transfers that use the same port at the same time share it.

    Returns
    -------
    Run
        All that happened; the same inputs always give the same run.

    Raises
    ------
    Deadlock
        If something waits for ever.
    ValueError
        If the program is malformed or a group has no closed form on this network.
    """
    loop = _Loop()
    fabric = Fabric(loop, network.gb_s) if contention else None
    exchanges = [_Exchange(loop, program, network, i, fabric) for i in range(len(program.comms))]
    ranks = [_Rank(program, rank, loop, exchanges) for rank in range(len(program.ranks))]
    for rank, spec in zip(ranks, program.ranks, strict=True):
        for thread in spec.threads:
            loop.start(rank.thread(thread), spec.start_ns)
    loop.run()
    stuck = [
        f"rank {rank.rank} {thread} at {item}"
        for rank in ranks
        for thread, item in rank.unfinished.items()
    ]
    stuck += [
        f"communication {i} has {sorted(exchange.record.arrived_ns)} of {exchange.members}"
        for i, exchange in enumerate(exchanges)
        if len(exchange.record.ended_ns) < len(exchange.members)
    ]
    if stuck:
        raise Deadlock("; ".join(stuck))
    steps = len(ranks[0].begin)
    return Run(
        program=program,
        network=network,
        host=tuple(rank.host for rank in ranks),
        device=tuple(rank.device for rank in ranks),
        queue=tuple(rank.queue for rank in ranks),
        recorded=tuple(rank.recorded for rank in ranks),
        comms=tuple(exchange.record for exchange in exchanges),
        hand_overs=[item for rank in ranks for item in rank.hand_overs],
        queue_waits=[item for rank in ranks for item in rank.queue_waits],
        begin_ns=[[rank.begin[k] for rank in ranks] for k in range(steps)],
        completion_by_rank_ns=[[_completion(rank, k) for rank in ranks] for k in range(steps)],
    )


def _completion(rank: _Rank, step: int) -> int:
    work = [node.end_ns for node in rank.device if node.step <= step]
    work += [span.end_ns for span in rank.queue if span.step <= step]
    return max([rank.end[step], *work])
