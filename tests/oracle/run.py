"""What a run leaves behind: ranges, kernels, communications, steps; all in true time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .network import OracleNetwork
    from .vocabulary import Instruction, Kernel, Program


@dataclass(eq=False)
class HostSpan:
    """A recorded range of a host thread.

    Attributes
    ----------
    thread : str
        Name of the thread.
    name, category : str
        As recorded: ``cpu_op``, ``user_annotation`` or ``cuda_runtime``.
    start_ns, end_ns : int
        True time.
    parent : HostSpan or None
        The range around this one.
    source : Instruction
        What it came from.
    correlation : int
        Of runtime calls, else -1.
    waited_for : list of DeviceSpan
        Device work that a synchronising call waited for.
    record : int
        Of a wait for an event, the correlation of the call that recorded it, else -1.
    event_stream : int
        Stream on which that event was recorded, else -1.
    """

    thread: str
    name: str
    category: str
    start_ns: int
    parent: HostSpan | None
    source: Instruction
    end_ns: int = -1
    correlation: int = -1
    waited_for: list[DeviceSpan] = field(default_factory=list)
    record: int = -1
    event_stream: int = -1


@dataclass(eq=False)
class DeviceSpan:
    """A kernel or copy on a stream, with what it really depended on.

    `after` is what the stream was told to wait for since its previous kernel (`previous`).
    """

    rank: int
    stream: int
    kernel: Kernel
    correlation: int
    launch: HostSpan
    step: int
    previous: DeviceSpan | None
    after: list[DeviceSpan]
    start_ns: int = -1
    end_ns: int = -1


@dataclass(eq=False)
class QueueSpan:
    """A communication on a thread of a rank's queue (CPU jobs)."""

    rank: int
    thread: int
    comm: int
    step: int
    start_ns: int
    end_ns: int = -1


@dataclass(frozen=True)
class RecordedEvent:
    """A cudaEventRecord: its call, and when what the event stands for was done."""

    call: HostSpan
    stream: int
    event: int
    nodes: tuple[DeviceSpan, ...]


@dataclass(frozen=True)
class HandOver:
    """A thread that went on because another thread let it.

    `source_ns` is when the other thread raised the flag, `target_ns` when this one went on;
    `blocked` says whether it had to wait.
    """

    rank: int
    source: str
    source_ns: int
    target: str
    target_ns: int
    blocked: bool


@dataclass(frozen=True)
class QueueWait:
    """A host thread that blocked (or would have) on a queued communication (CPU jobs)."""

    rank: int
    comm: int
    begin_ns: int
    end_ns: int
    blocked: bool


@dataclass(frozen=True)
class CommRecord:
    """What became of a communication: when each member arrived, was released, and ended."""

    comm: int
    transfer_ns: int
    arrived_ns: dict[int, int]
    released_ns: dict[int, int]
    ended_ns: dict[int, int]


@dataclass(frozen=True)
class Run:
    """Everything that happened when a program ran on a network (true time).

    Attributes
    ----------
    program, network
        What was run.
    host, device, queue, recorded : tuple of lists, by rank
        Host ranges in order of their starts, kernels in order of their launches, queued
        communications in order of their starts, and event records.
    comms : tuple of CommRecord
        By index of the communication.
    hand_overs, queue_waits : list
        Threads that waited for threads, and for queued communications.
    begin_ns : list of list of int
        Start of each step's annotation, by step and rank.
    completion_by_rank_ns : list of list of int
        When a rank's annotation of step k has ended and its work launched in steps up to k is
        done, by step and rank.
    """

    program: Program
    network: OracleNetwork
    host: tuple[list[HostSpan], ...]
    device: tuple[list[DeviceSpan], ...]
    queue: tuple[list[QueueSpan], ...]
    recorded: tuple[list[RecordedEvent], ...]
    comms: tuple[CommRecord, ...]
    hand_overs: list[HandOver]
    queue_waits: list[QueueWait]
    begin_ns: list[list[int]]
    completion_by_rank_ns: list[list[int]]

    @property
    def completion_ns(self) -> list[int]:
        """completion(k) of every step."""
        return [max(ranks) for ranks in self.completion_by_rank_ns]

    @property
    def step_times_ns(self) -> list[int]:
        """Time of every step whose predecessor was run; of a lone step, its window."""
        done = self.completion_ns
        if len(done) == 1:
            return [done[0] - min(self.begin_ns[0])]
        return [late - early for early, late in pairwise(done)]

    @property
    def median_step_ns(self) -> float:
        """Median over `step_times_ns`."""
        return statistics.median(self.step_times_ns)

    @property
    def window_ns(self) -> int:
        """From the earliest start of the first step to the completion of the last."""
        return self.completion_ns[-1] - min(self.begin_ns[0])

    @property
    def shares_ports(self) -> bool:
        """Whether two transfers used one port of a rank at the same time."""
        busy: dict[tuple[int, int, str], list[tuple[int, int]]] = defaultdict(list)
        for record in self.comms:
            comm = self.program.comms[record.comm]
            tiers = self.network.tiers_of(comm, self.program.groups[comm.group].ranks)
            for rank, begin in record.released_ns.items():
                ways = ("in", "out")
                if comm.kind == "send_recv":
                    ways = ("out", "out") if rank == comm.root else ("in", "in")
                for tier in tiers:
                    for way in set(ways):
                        busy[rank, tier, way].append((begin, begin + record.transfer_ns))
        for spans in busy.values():
            spans.sort()
            if any(b[0] < a[1] for a, b in pairwise(spans)):
                return True
        return False
