"""The vocabulary of programs: instructions, kernels, communications, threads, jobs.

Instructions carry only what the host and the device need *by themselves* (durations, costs,
sizes); when things happen is up to the executor, whose module describes the physics. All times
are integer nanoseconds, sizes are bytes, and the size of a collective is the input of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

CommKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]
Dialect = Literal["gpu", "cpu"]

US = 1_000
COMPUTE_STREAM = 7
SIDE_STREAM = 20
COPY_STREAM = 24
#: The communication stream of group g; the stream after it is NCCL's own and never has a kernel.
FIRST_COMM_STREAM = 40
#: The stream on which a rank exchanges messages with peer p, as c10d keeps one per pair.
FIRST_PAIR_STREAM = 100

MAIN = "main"
AUTOGRAD = "autograd"


@dataclass(frozen=True)
class Comm:
    """One communication operation, joining the ranks that take part in it.

    Attributes
    ----------
    kind : str
        Which operation; ``send_recv`` is one message.
    group : int
        Index into `Program.groups`.
    size_bytes : int
        Input of one rank: the shard of an all-gather, the whole input of a reduce-scatter.
    dtype : str
        Name that PyTorch records, of `ELEMENT_BYTES`.
    root : int
        Root of a broadcast, source of a message; -1 elsewhere.
    peer : int
        Destination of a message; -1 elsewhere.
    tail_ns : mapping of int to int
        What each rank's end exceeds the end of the transfer by; at least one member of a
        symmetric collective has none, else part of the transfer could not be told from it.
    parts : tuple of tuple of int
        Bytes from member to member of an all-to-all, if they are not all equal.
    """

    kind: CommKind
    group: int
    size_bytes: int
    dtype: str = "BFloat16"
    root: int = -1
    peer: int = -1
    tail_ns: Mapping[int, int] = field(default_factory=dict)
    parts: tuple[tuple[int, ...], ...] = ()

    def input_bytes(self, member: int) -> int:
        """Input of a member, by its place in the group."""
        return sum(self.parts[member]) if self.parts else self.size_bytes


ELEMENT_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2}


@dataclass(frozen=True)
class Kernel:
    """Work for a device: a kernel, a memory copy or set, or a part in a communication."""

    name: str
    dur_ns: int = 0
    kind: Literal["kernel", "memcpy", "memset"] = "kernel"
    size_bytes: int = 0
    comm: int = -1


@dataclass(frozen=True)
class Work:
    """The thread is busy: inside a scope its own time, outside one the interpreter's."""

    ns: int


@dataclass(frozen=True)
class Scope:
    """A recorded range of a host thread: a ``cpu_op`` or a ``user_annotation``.

    `flow` is the number of a forward-to-backward flow that starts (forward) or finishes here.
    """

    name: str
    body: tuple[Instruction, ...] = ()
    category: Literal["cpu_op", "user_annotation"] = "cpu_op"
    args: Mapping[str, Any] = field(default_factory=dict)
    flow: int = 0
    flow_finish: bool = False


@dataclass(frozen=True)
class Step:
    """A training step of the main thread; its annotation is ``ProfilerStep#<number>``."""

    number: int
    body: tuple[Instruction, ...]


@dataclass(frozen=True)
class Call:
    """A runtime call that neither launches nor waits."""

    api: str
    ns: int


@dataclass(frozen=True)
class Launch:
    """An asynchronous launch of device work on a stream; the call takes `call_ns`."""

    kernel: Kernel
    stream: int
    call_ns: int
    api: str = "cudaLaunchKernel"


@dataclass(frozen=True)
class RecordEvent:
    """cudaEventRecord: the event now stands for all that the stream has been given so far."""

    event: int
    stream: int
    call_ns: int


@dataclass(frozen=True)
class WaitEvent:
    """cudaStreamWaitEvent: later work of the stream waits for what the event stands for."""

    event: int
    stream: int
    call_ns: int


@dataclass(frozen=True)
class Sync:
    """The host waits for a stream, the device or an event (`target`: stream or event)."""

    kind: Literal["stream", "device", "event"]
    target: int
    cost_ns: int


@dataclass(frozen=True)
class BlockingCopy:
    """cudaMemcpyAsync to pageable memory: launches the copy and returns when it is done."""

    kernel: Kernel
    stream: int
    cost_ns: int


@dataclass(frozen=True)
class Post:
    """Raise a flag of this rank, which lets the thread that awaits it go on."""

    flag: str


@dataclass(frozen=True)
class Await:
    """Block until the flag is raised."""

    flag: str


@dataclass(frozen=True)
class Enqueue:
    """Give a communication to the rank's queue (CPU jobs)."""

    comm: int


@dataclass(frozen=True)
class AwaitComm:
    """Block until a queued communication is done (CPU jobs)."""

    comm: int


Instruction: TypeAlias = (
    Work
    | Scope
    | Step
    | Call
    | Launch
    | RecordEvent
    | WaitEvent
    | Sync
    | BlockingCopy
    | Post
    | Await
    | Enqueue
    | AwaitComm
)


@dataclass(frozen=True)
class HostThread:
    """A host thread and all that it does."""

    name: str
    body: tuple[Instruction, ...]


@dataclass(frozen=True)
class RankProgram:
    """The threads of a rank, which begin `start_ns` after time zero."""

    start_ns: int
    threads: tuple[HostThread, ...]


@dataclass(frozen=True)
class Group:
    """A process group, with the names PyTorch would give it."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A job.

    Attributes
    ----------
    name : str
        For messages.
    dialect : str
        ``gpu``, or ``cpu``: operations are the compute and collectives run on the two threads
        of a queue.
    ranks : tuple of RankProgram
        By rank number.
    groups : tuple of Group
        Process groups; 0 is the world.
    comms : tuple of Comm
        Communications; the order within a group is the same on all ranks.
    domain_size : int
        Ranks per scale-up domain that the program was written for.
    host_of : tuple of int
        Host of each rank; ranks of one host share its clock.
    clock_offset_ns : tuple of int
        What the clock of each host shows at time zero.
    launch_latency_ns : int
        From the start of a launch call to the earliest start of its kernel.
    kernel_gap_ns : int
        From the end of a kernel to the earliest start of the next of its stream.
    wake_ns : int
        From the moment that a blocked thread may go on until it does.
    eager_limit_bytes : int
        Messages up to this size are sent eagerly. (NCCL sends messages of up to 16 KiB through
        its low-latency buffers: ``NCCL_P2P_LL_THRESHOLD``.)
    queue_threads : int
        Threads that serve the queue of a rank in a CPU job; Gloo has two.
    device_name : str
        Name of every device.
    """

    name: str
    dialect: Dialect
    ranks: tuple[RankProgram, ...]
    groups: tuple[Group, ...]
    comms: tuple[Comm, ...]
    domain_size: int
    host_of: tuple[int, ...]
    clock_offset_ns: tuple[int, ...]
    launch_latency_ns: int = 5 * US
    kernel_gap_ns: int = 0
    wake_ns: int = 0
    eager_limit_bytes: int = 16_384
    queue_threads: int = 2
    device_name: str = "NVIDIA A100-SXM4-80GB"
