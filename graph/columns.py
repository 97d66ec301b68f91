"""The execution graph of a whole job, as columns.

One `ExecutionGraph` holds every node of every rank in numpy columns, ordered by rank and, within
a rank, topologically. Dependencies stay inside a rank; what joins ranks are the *instances* of
collectives and of send/receive pairs. How a graph is made from a trace is in `converters`, how
it is written as Chakra .et in `graph.chakra`, and how it is replayed in `simulator`.

The time a node starts after everything it depends on is a gap, explicit and never negative. It
is stored in `gap_ns` of the node that it precedes (a Chakra file shows it as a node of its own),
so a node runs::

    ready = max over dependencies of (end or start of the dependency, plus its lag)
    start = ready + gap_ns
    end   = start + dur_ns                          (COMP)
    end   = released + transfer_ns + tail_ns        (communication, see `Collective`)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .coverage import Coverage


DependencyModel = Literal["host", "stream", "serial"]

#: No job has more ranks; a larger number is damage, and tables of that size fill the memory.
MOST_RANKS = 10_000_000


class Worker(Enum):
    """What a rank is."""

    DEVICE = "device"  # with queues, kernels and links of its own
    PROCESS = "process"  # of a host: operations of the host are its compute, sockets its network
    THREADS = "threads"  # of one process, as the CPU devices of XLA: all share its cores and memory


class Kind(IntEnum):
    """What a node is in Chakra terms."""

    COMP = 0
    COMM_COLL = 1
    SEND = 2
    RECV = 3


class Flavour(IntEnum):
    """What the duration of a node is, which decides the resource that scales it."""

    COMPUTE = 0  # a non-communication device kernel; in a CPU job a host operation
    COPY = 1  # device memory copies and sets
    HOST = 2  # host work that feeds a device, or the interpreter between operations
    GAP = 3  # time that no dependency explains; step markers
    COMM = 4  # a collective, a send or a receive


class LaneKind(IntEnum):
    """What runs the nodes of a lane, one after the other."""

    HOST = 0  # a host thread
    STREAM = 1  # a device queue
    QUEUE = 2  # communication threads that serve one queue, first come first served


class EdgeKind(IntEnum):
    """Which moment of the dependency a node waits for."""

    END = 0
    START = 1


class Collective(IntEnum):
    """Operation of a communication node; 0 to 9 are the numbers of the Chakra schema.

    A member is *released* when all members that it needs have arrived (started): all of them in
    all-reduce, all-gather, reduce-scatter, all-to-all and barrier; itself and the root in
    broadcast and scatter; in reduce and gather the root needs all and the others only
    themselves; a receive needs its send and itself; an eager send needs only itself and a
    rendezvous send its receive too.
    """

    NONE = -1
    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9
    SEND_RECV = 10

    @property
    def label(self) -> str:
        """Name used in tables and files: lower case with hyphens."""
        return self.name.lower().replace("_", "-")


#: Collectives in which every member waits for every other.
SYMMETRIC = frozenset(
    {
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.REDUCE_SCATTER_BLOCK,
        Collective.ALL_TO_ALL,
        Collective.BARRIER,
    }
)


@dataclass(frozen=True)
class Group:
    """A process group (communicator).

    Attributes
    ----------
    name : str
        Name in the trace; two groups with the same members are different groups.
    ranks : tuple of int
        Members, in group order, as global rank numbers.
    description : str
        What the framework calls it, or an empty string.
    """

    name: str
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True)
class Lanes:
    """The lanes of all ranks; a node's `lane` is an index into these columns (length L).

    Attributes
    ----------
    rank : int32
        Index of the rank in `ExecutionGraph.ranks`.
    kind : int8
        A `LaneKind`.
    number : int64
        Thread id, stream number, or id of the first thread that serves a queue.
    servers : int32
        How many nodes may run at a time: 1, or the number of threads of a queue.
    """

    rank: NDArray[np.int32]
    kind: NDArray[np.int8]
    number: NDArray[np.int64]
    servers: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True)
class Steps:
    """The recorded steps (S of them), on every rank (R).

    Attributes
    ----------
    names : tuple of str
        Annotation of each step, for example ``ProfilerStep#3``.
    begin_ns : int64, shape (S, R)
        Measured start of the annotation.
    marker : int64, shape (S, R)
        Node that ends when the annotation ends.
    completion_ns : int64, shape (S,)
        Measured completion: when on all ranks the annotation has ended and the device work
        launched in this step and those before it is done.
    """

    names: tuple[str, ...]
    begin_ns: NDArray[np.int64]
    marker: NDArray[np.int64]
    completion_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)


def _not_said() -> NDArray[np.int32]:
    """Make a column that is not given."""
    return np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, eq=False)
class ExecutionGraph:
    """Everything a job did in its recorded steps (N nodes, E dependencies, R ranks).

    Times are integer nanoseconds on one clock whose zero is the earliest start of the first
    step on any rank; a node that was launched before that may start earlier.

    Attributes
    ----------
    model : str
        Dependency model: ``host``, ``stream`` or ``serial``.
    source : str
        Dialect the graph was made from, for example ``kineto-gpu`` or ``kineto-cpu``.
    trace : str
        Path that the graph was made from.
    ranks : int64, shape (R,)
        Global rank numbers, ascending.
    rank_ptr : int64, shape (R + 1,)
        Nodes of rank index i are ``rank_ptr[i]:rank_ptr[i + 1]``.
    world_size : int
        Ranks of the job, which may be more than were traced.
    hosts, devices : tuple of str, length R
        Host name (or an empty string) and device name of each rank.
    base_ns : int64, shape (R,)
        When the nodes without dependencies of a rank become ready.
    start_offset_ns : int64, shape (R,)
        How much later than the first rank a rank began its first step.
    names : tuple of str
        Table that `name` and `dtype` index.
    kind, flavour, lane, name, step : shape (N,)
        `Kind`, `Flavour`, index into `lanes`, index into `names`, and the step in which the
        node was launched (index into `steps`).
    start_ns, dur_ns, gap_ns : int64, shape (N,)
        Measured start, measured duration (for communication: all of it, waiting included), and
        the gap before the start.
    dep_ptr : int64, shape (N + 1,)
        Dependencies of node i are ``dep_ptr[i]:dep_ptr[i + 1]``.
    dep_node, dep_kind, dep_lag_ns : shape (E,)
        The node depended on (of the same rank, with a smaller index), an `EdgeKind` and a lag.
    coll : int8, shape (N,)
        `Collective` of communication nodes, NONE elsewhere. The columns down to `eager` mean
        nothing where it is NONE.
    size_bytes : int64, shape (N,)
        Input bytes of this rank (the Chakra convention): the shard of an all-gather, the whole
        input of a reduce-scatter. -1 where the trace does not say.
    group, seq : int32, int64, shape (N,)
        Index into `groups`, and the number of the operation in it.
    peer, tag : int32, shape (N,)
        Other rank of a send or receive, root of a rooted collective (global rank), else -1.
    instance : int32, shape (N,)
        Joins the members of one operation across ranks; -1 where there is none.
    transfer_ns, tail_ns : int64, shape (N,)
        Measured transfer time (from this member's release) and what this member's end exceeds
        it by. -1 and 0 where no transfer time could be measured.
    eager : bool, shape (N,)
        A send that completes without its receive.
    dtype : int32, shape (N,)
        Data type of communication, as an index into `names`; -1 where there is none or the trace
        does not say. Need not be given.
    split : int32, shape (N,)
        Parts of an all-to-all that are not equal, as an index into `splits`; -1 where they are, or
        where the trace does not say. Need not be given.
    splits : tuple of tuple of int
        Bytes that a rank sends to each member of the group, in group order, itself included.
    lanes, groups, steps
        Tables.
    coverage : Coverage
        What the conversion saw, matched, inferred, assumed and dropped.
    """

    model: DependencyModel
    source: str
    trace: str
    ranks: NDArray[np.int64]
    rank_ptr: NDArray[np.int64]
    world_size: int
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    base_ns: NDArray[np.int64]
    start_offset_ns: NDArray[np.int64]
    names: tuple[str, ...]
    kind: NDArray[np.int8]
    flavour: NDArray[np.int8]
    lane: NDArray[np.int32]
    name: NDArray[np.int32]
    step: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    gap_ns: NDArray[np.int64]
    dep_ptr: NDArray[np.int64]
    dep_node: NDArray[np.int64]
    dep_kind: NDArray[np.int8]
    dep_lag_ns: NDArray[np.int64]
    coll: NDArray[np.int8]
    size_bytes: NDArray[np.int64]
    group: NDArray[np.int32]
    seq: NDArray[np.int64]
    peer: NDArray[np.int32]
    tag: NDArray[np.int32]
    instance: NDArray[np.int32]
    transfer_ns: NDArray[np.int64]
    tail_ns: NDArray[np.int64]
    eager: NDArray[np.bool_]
    lanes: Lanes
    groups: tuple[Group, ...]
    steps: Steps
    coverage: Coverage
    dtype: NDArray[np.int32] = field(default_factory=_not_said)
    split: NDArray[np.int32] = field(default_factory=_not_said)
    splits: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Fill the columns that a source has nothing to say in."""
        for column in ("dtype", "split"):
            if not len(getattr(self, column)):
                object.__setattr__(self, column, np.full(len(self.kind), -1, dtype=np.int32))

    @property
    def num_nodes(self) -> int:
        """Number of nodes on all ranks."""
        return len(self.kind)

    @property
    def num_ranks(self) -> int:
        """Number of ranks that the graph holds."""
        return len(self.ranks)

    @property
    def rank_index(self) -> NDArray[np.int32]:
        """Index of the rank of every node, shape (N,)."""
        return np.repeat(
            np.arange(self.num_ranks, dtype=np.int32), np.diff(self.rank_ptr).astype(np.int64)
        )

    @property
    def worker(self) -> Worker:
        """What a rank is, by the dialect that the graph was made from."""
        of_host = {"kineto-cpu": Worker.PROCESS, "xla-cpu": Worker.THREADS}
        return of_host.get(self.source, Worker.DEVICE)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """Measured end of every node, shape (N,)."""
        return self.start_ns + self.dur_ns

    def data_type(self, node: int) -> str | None:
        """Name of the data type that a node communicates, or None."""
        index = int(self.dtype[node])
        return self.names[index] if index >= 0 else None

    def split_of(self, node: int) -> tuple[int, ...] | None:
        """Bytes that a node sends to each member of its group, where they are not equal."""
        index = int(self.split[node])
        return self.splits[index] if index >= 0 else None

    def with_(self, **columns: Any) -> ExecutionGraph:  # noqa: ANN401
        """Copy with some columns replaced."""
        return replace(self, **columns)


@dataclass(frozen=True)
class Instances:
    """The operations that join ranks (I of them), derived from a graph's `instance` column.

    Attributes
    ----------
    ptr : int64, shape (I + 1,)
        Members of instance i are ``node[ptr[i]:ptr[i + 1]]``, by ascending rank.
    node : int64, shape (M,)
        Member nodes.
    coll : int8, shape (I,)
        `Collective`; SEND_RECV for a send and its receive.
    group : int32, shape (I,)
        Index into the graph's groups.
    size_bytes : int64, shape (I,)
        Input bytes per rank; the mean over members where they differ (rounded), -1 if unknown.
    root : int32, shape (I,)
        Rank index of the root of a rooted collective, else -1.
    """

    ptr: NDArray[np.int64]
    node: NDArray[np.int64]
    coll: NDArray[np.int8]
    group: NDArray[np.int32]
    size_bytes: NDArray[np.int64]
    root: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.coll)


def collect_instances(graph: ExecutionGraph) -> Instances:
    """Gather the members of every instance of a graph.

    Parameters
    ----------
    graph : ExecutionGraph
        A graph whose instance ids are 0..I-1 without holes.

    Returns
    -------
    Instances
        Members by ascending rank, with the columns the members share.
    """
    members = np.flatnonzero(graph.instance >= 0)
    ids = graph.instance[members]
    order = np.lexsort((members, ids))
    node = members[order]
    count = int(ids.max()) + 1 if len(ids) else 0
    ptr = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(ids, minlength=count), out=ptr[1:])
    first = node[ptr[:-1]]
    coll = graph.coll[first].copy()
    sizes = graph.size_bytes[node]
    total = np.add.reduceat(np.maximum(sizes, 0), ptr[:-1]) if count else np.zeros(0, np.int64)
    known = np.minimum.reduceat(sizes, ptr[:-1]) >= 0 if count else np.zeros(0, np.bool_)
    mean = np.rint(total / np.maximum(np.diff(ptr), 1)).astype(np.int64)
    root = np.full(count, -1, dtype=np.int32)
    rooted = np.isin(
        coll, [Collective.BROADCAST, Collective.SCATTER, Collective.REDUCE, Collective.GATHER]
    )
    position = {int(rank): i for i, rank in enumerate(graph.ranks)}
    for i in np.flatnonzero(rooted):
        root[i] = position.get(int(graph.peer[first[i]]), -1)
    return Instances(
        ptr=ptr,
        node=node,
        coll=coll,
        group=graph.group[first].copy(),
        size_bytes=np.where(known, mean, -1),
        root=root,
    )
