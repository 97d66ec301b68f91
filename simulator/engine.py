"""The native engine: an event-driven replay of a compressed graph, compiled by Numba.

`program` turns a graph into flat arrays once; `replay` runs it for given durations and transfer
times and says when every node started, was released and ended, and what each of these waited
for. The physics of prices lives in `pricing`, what the times mean in `accounting` and
`critical_path`. Nothing here knows a network.

Time is float64 nanoseconds. Sums of whole numbers below 2**53 are exact in it, so a measured
replay is exact. Events at equal times are taken in the order in which they were planned, so a
replay is deterministic.

Numba compiles at the first call and keeps the result on disk; `is_compiled` tells a user
interface whether that wait is still ahead.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numba
import numpy as np

from ..base.errors import GraphError
from ..graph.columns import SYMMETRIC, Collective, EdgeKind, Kind
from ..graph.validate import describe_node, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..graph.compress import CompressedGraph

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

F = TypeVar("F", bound="Callable[..., Any]")

# What a node waits for between its start and its end.
NEED_NOTHING = 0  # it computes
NEED_ITSELF = 1  # a transfer that starts when the node does
NEED_ROOT = 2  # the root of its instance
NEED_ALL = 3  # all members of its instance

# Why a node of a queue with several servers took its server when it did.
CAUSE_READY = 0  # it was ready then
CAUSE_FREED = 1  # the end of another node freed the server
CAUSE_TURN = 2  # a node before it in the queue was ready then

# Events; the code in the heap is four times the node plus the event.
_READY = 0  # a node of a queue with several servers is ready
_START = 1  # a node starts that somebody waits for: a dependent of its start, or members
_TRANSFERRED = 2  # the transfer of a member is over
_END = 3

_END_EDGE = int(EdgeKind.END)
_START_EDGE = int(EdgeKind.START)


def compiled(function: F) -> F:
    """Compile with Numba, cached on disk where some folder can be written."""
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        return cast("F", numba.njit(nogil=True)(function))


def inlined(function: F) -> F:
    """Compile into the callers; handing a `Program` over costs more than most functions do."""
    return cast("F", numba.njit(inline="always")(function))


class Program(NamedTuple):
    """A graph as the engine wants it (N nodes, E edges, P parts, I instances, Q queues).

    The fields are arrays of fixed types, so that one compilation serves all graphs.
    """

    root_ready: Float  # (N,) when a node is ready that depends on nothing
    pending: NDArray[np.int32]  # (N,) number of dependencies
    next_ptr: Int  # (N + 1,) dependents of node i are next_*[next_ptr[i]:next_ptr[i + 1]]
    next_node: Int  # (E,)
    next_kind: NDArray[np.int8]  # (E,) EdgeKind
    next_lag: Float  # (E,)
    next_edge: Int  # (E,) index of the edge among the dependencies of the graph
    dep_node: Int  # (E,) as in the graph
    dep_kind: NDArray[np.int8]  # (E,)
    start_seen: NDArray[np.bool_]  # (N,) whether a node depends on the start of this one
    gap: Float  # (N,)
    part_ptr: Int  # (N + 1,)
    part_kind: NDArray[np.int8]  # (P,)
    part_ns: Float  # (P,)
    need: NDArray[np.int8]  # (N,) NEED_*
    tail: Float  # (N,)
    instance: Int  # (N,)
    member_ptr: Int  # (I + 1,)
    member: Int  # members of all instances
    root: Int  # (I,) node of the root, or -1
    queue: Int  # (N,) index of the queue, or -1
    queue_ptr: Int  # (Q + 1,)
    queued: Int  # nodes of all queues
    servers: Int  # (Q,)


class Replay(NamedTuple):
    """What happened to every node, and why then (N nodes); NaN or -1 where nothing did."""

    ready: Float  # when the last dependency let it go
    start: Float
    release: Float  # of communication: when the members it needs had arrived
    end: Float
    bound_edge: Int  # dependency that set `ready`; -1 where there is none
    bound_member: Int  # member whose arrival set `release`
    cause: NDArray[np.int8]  # CAUSE_*: why it took its server then
    cause_node: Int  # the node that freed the server, or whose turn it was


def program(compressed: CompressedGraph) -> Program:
    """Lay a graph out for the engine.

    A communication node without an instance is released by itself and runs for its measured
    duration.
    """
    graph, instances = compressed.graph, compressed.instances
    order = np.argsort(graph.dep_node, kind="stable")
    dependent = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    start_seen = np.zeros(graph.num_nodes, dtype=np.bool_)
    start_seen[graph.dep_node[graph.dep_kind == EdgeKind.START]] = True

    owner = graph.rank_index
    root = np.full(len(instances), -1, dtype=np.int64)
    # The root beyond the last instance is that of nodes whose instance is -1.
    is_root = np.append(instances.root, np.int32(-1))[graph.instance] == owner
    root[graph.instance[is_root]] = np.flatnonzero(is_root)

    queues = np.flatnonzero(graph.lanes.servers > 1)
    queue_of_lane = np.full(len(graph.lanes), -1, dtype=np.int64)
    queue_of_lane[queues] = np.arange(len(queues))
    queue = queue_of_lane[graph.lane]
    queued = np.flatnonzero(queue >= 0)
    queued = queued[np.argsort(queue[queued], kind="stable")]

    return Program(
        root_ready=array(graph.base_ns[owner], np.float64),
        pending=array(np.diff(graph.dep_ptr), np.int32),
        next_ptr=array(
            np.searchsorted(graph.dep_node[order], np.arange(graph.num_nodes + 1)), np.int64
        ),
        next_node=array(dependent[order], np.int64),
        next_kind=array(graph.dep_kind[order], np.int8),
        next_lag=array(graph.dep_lag_ns[order], np.float64),
        next_edge=array(order, np.int64),
        dep_node=array(graph.dep_node, np.int64),
        dep_kind=array(graph.dep_kind, np.int8),
        start_seen=start_seen,
        gap=array(graph.gap_ns, np.float64),
        part_ptr=array(compressed.part_ptr, np.int64),
        part_kind=array(compressed.part_kind, np.int8),
        part_ns=array(compressed.part_ns, np.float64),
        need=_needs(compressed, is_root, root),
        tail=array(np.where(graph.instance >= 0, graph.tail_ns, 0), np.float64),
        instance=array(graph.instance, np.int64),
        member_ptr=array(instances.ptr, np.int64),
        member=array(instances.node, np.int64),
        root=root,
        queue=array(queue, np.int64),
        queue_ptr=array(np.searchsorted(queue[queued], np.arange(len(queues) + 1)), np.int64),
        queued=array(queued, np.int64),
        servers=array(graph.lanes.servers[queues], np.int64),
    )


def _needs(compressed: CompressedGraph, is_root: NDArray[np.bool_], root: Int) -> NDArray[np.int8]:
    """Say what each node waits for: the rules of `Collective`."""
    graph = compressed.graph
    coll = graph.coll
    has_root = np.append(root, -1)[graph.instance] >= 0
    need = np.full(graph.num_nodes, NEED_ITSELF, dtype=np.int8)
    need[coll == Collective.NONE] = NEED_NOTHING
    need[np.isin(coll, list(SYMMETRIC))] = NEED_ALL
    need[np.isin(coll, [Collective.BROADCAST, Collective.SCATTER]) & ~is_root & has_root] = (
        NEED_ROOT
    )
    need[np.isin(coll, [Collective.REDUCE, Collective.GATHER]) & is_root] = NEED_ALL
    need[(coll == Collective.SEND_RECV) & ~(graph.eager & (graph.kind == Kind.SEND))] = NEED_ALL
    need[(coll != Collective.NONE) & (graph.instance < 0)] = NEED_ITSELF
    return need


def replay(compressed: CompressedGraph, prog: Program, transfer_ns: Float, scale: Float) -> Replay:
    """Run a program.

    Parameters
    ----------
    compressed : CompressedGraph
        The graph, to name what is stuck.
    prog : Program
        Of that graph.
    transfer_ns : float64, shape (N,)
        From release to the end of the transfer; not read where a node does not communicate.
    scale : float64, shape (NUM_PART_KINDS,)
        What the duration of each kind of part is multiplied by.

    Returns
    -------
    Replay

    Raises
    ------
    GraphError
        If nodes are left that nothing will ever let go; names one, and what it waits for.
    """
    size = len(prog.gap)
    result = Replay(
        ready=np.full(size, -np.inf),
        start=np.full(size, np.nan),
        release=np.full(size, np.nan),
        end=np.full(size, np.nan),
        bound_edge=np.full(size, -1, dtype=np.int64),
        bound_member=np.full(size, -1, dtype=np.int64),
        cause=np.zeros(size, dtype=np.int8),
        cause_node=np.full(size, -1, dtype=np.int64),
    )
    if _run(prog, result, array(transfer_ns, np.float64), array(scale, np.float64)) < size:
        _raise_stuck(compressed, prog, result)
    return result


def is_compiled() -> bool:
    """Whether the next replay starts at once; if not, Numba first compiles for some seconds.

    A hint for user interfaces: a cache on disk that no longer fits this processor or version of
    Numba is taken for a good one.
    """
    dispatcher = cast("Any", _run)
    if dispatcher.signatures:
        return True
    source = Path(__file__)
    folder = Path(dispatcher.stats.cache_path or "")
    found = [entry.stat().st_mtime for entry in folder.glob(f"{source.stem}._run-*.nbi")]
    return bool(found) and max(found) >= source.stat().st_mtime


def array(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Make an array contiguous, writable and of a type; any other would be compiled for anew."""
    return np.require(values, dtype=dtype, requirements=["C", "W"])


def _raise_stuck(compressed: CompressedGraph, prog: Program, result: Replay) -> None:
    graph, instances = compressed.graph, compressed.instances
    arrived = ~np.isnan(result.start)
    held = np.flatnonzero(arrived & np.isnan(result.end) & (prog.need >= NEED_ROOT))
    for node in held.tolist():
        i = int(prog.instance[node])
        members = instances.node[instances.ptr[i] : instances.ptr[i + 1]]
        absent = int(prog.root[i])
        if prog.need[node] == NEED_ALL:
            absent = int(members[~arrived[members]][0])
        raise GraphError(
            f"waits forever for rank {rank_of(graph, absent)}, which never comes to "
            f"{describe_node(graph, absent)}",
            rank=rank_of(graph, node),
            place=describe_node(graph, node),
        )
    node = int(np.flatnonzero(np.isnan(result.end))[0])
    raise GraphError(
        "never becomes ready", rank=rank_of(graph, node), place=describe_node(graph, node)
    )


class _Heap(NamedTuple):
    """Planned events; each node has at most one at a time."""

    time: Float  # (N,)
    number: Int  # (N,) when it was planned, to break ties
    code: Int  # (N,)
    counts: Int  # (2,) events in the heap, events ever planned


class _State(NamedTuple):
    """What changes during a replay and is of no use afterwards."""

    pending: NDArray[np.int32]  # (N,)
    is_ready: NDArray[np.bool_]  # (N,) of the nodes of queues
    arrived: Int  # (I,) members that have started
    head: Int  # (Q,) position of the next node to take a server
    free: Int  # (Q,) servers


@compiled
def _push(heap: _Heap, time: float, code: int) -> None:
    i = heap.counts[0]
    number = heap.counts[1]
    heap.counts[0] = i + 1
    heap.counts[1] = number + 1
    while i > 0:
        parent = (i - 1) >> 1
        # The new event has the highest number, so it never passes one of equal time.
        if heap.time[parent] <= time:
            break
        heap.time[i] = heap.time[parent]
        heap.number[i] = heap.number[parent]
        heap.code[i] = heap.code[parent]
        i = parent
    heap.time[i] = time
    heap.number[i] = number
    heap.code[i] = code


@compiled
def _pop(heap: _Heap) -> tuple[float, int]:
    time, code = heap.time[0], heap.code[0]
    size = heap.counts[0] - 1
    heap.counts[0] = size
    last_time, last_number, last_code = heap.time[size], heap.number[size], heap.code[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            heap.time[right] < heap.time[child]
            or (heap.time[right] == heap.time[child] and heap.number[right] < heap.number[child])
        ):
            child = right
        if last_time < heap.time[child] or (
            last_time == heap.time[child] and last_number < heap.number[child]
        ):
            break
        heap.time[i] = heap.time[child]
        heap.number[i] = heap.number[child]
        heap.code[i] = heap.code[child]
        i = child
    heap.time[i] = last_time
    heap.number[i] = last_number
    heap.code[i] = last_code
    return time, code


@inlined
def _compute(prog: Program, scale: Float, node: int, start: float) -> float:
    """Add up the parts of a node, in order, so that contraction changes no bit."""
    time = start
    for part in range(prog.part_ptr[node], prog.part_ptr[node + 1]):
        time += prog.part_ns[part] * scale[prog.part_kind[part]]
    return time


@inlined
def _take(prog: Program, result: Replay, heap: _Heap, scale: Float, node: int, now: float) -> None:
    """Let a node that is ready, and has its server if it needs one, begin its gap."""
    start = now + prog.gap[node]
    if prog.need[node] == NEED_NOTHING and not prog.start_seen[node]:
        result.start[node] = start
        _push(heap, _compute(prog, scale, node, start), 4 * node + _END)
    else:
        _push(heap, start, 4 * node + _START)


@inlined
def _signal(
    prog: Program,
    result: Replay,
    state: _State,
    heap: _Heap,
    scale: Float,
    node: int,
    kind: int,
    now: float,
) -> None:
    """Tell the dependents of a node's start or end that it has come."""
    for i in range(prog.next_ptr[node], prog.next_ptr[node + 1]):
        if prog.next_kind[i] != kind:
            continue
        other = prog.next_node[i]
        time = now + prog.next_lag[i]
        if time > result.ready[other]:
            result.ready[other] = time
            result.bound_edge[other] = prog.next_edge[i]
        state.pending[other] -= 1
        if state.pending[other] == 0:
            _become_ready(prog, result, heap, scale, other)


@inlined
def _become_ready(prog: Program, result: Replay, heap: _Heap, scale: Float, node: int) -> None:
    if prog.queue[node] >= 0:
        _push(heap, result.ready[node], 4 * node + _READY)
    else:
        _take(prog, result, heap, scale, node, result.ready[node])


@inlined
def _serve(
    prog: Program,
    result: Replay,
    state: _State,
    heap: _Heap,
    scale: Float,
    queue: int,
    now: float,
    cause: int,
    cause_node: int,
) -> None:
    """Give free servers to the nodes at the head of a queue, as long as they are ready."""
    while state.free[queue] > 0 and state.head[queue] < prog.queue_ptr[queue + 1]:
        node = prog.queued[state.head[queue]]
        if not state.is_ready[node]:
            break
        state.head[queue] += 1
        state.free[queue] -= 1
        if result.ready[node] < now:
            result.cause[node] = cause
            result.cause_node[node] = cause_node
        _take(prog, result, heap, scale, node, now)


@inlined
def _release(
    result: Replay, heap: _Heap, transfer: Float, node: int, member: int, now: float
) -> None:
    """Begin the transfer of a node: the members that it needs have arrived.

    Each transfer has its own duration here. Transfers that share a port would be re-rated at
    this event and at `_TRANSFERRED`, the only two at which the set of those in flight changes.
    """
    result.release[node] = now
    result.bound_member[node] = member
    _push(heap, now + transfer[node], 4 * node + _TRANSFERRED)


@inlined
def _arrive(
    prog: Program,
    result: Replay,
    state: _State,
    heap: _Heap,
    transfer: Float,
    node: int,
    now: float,
) -> None:
    """Count a member that has come to its operation, and release whom it completes."""
    need = prog.need[node]
    instance = prog.instance[node]
    if need == NEED_ITSELF:
        _release(result, heap, transfer, node, node, now)
    if instance < 0:
        return
    state.arrived[instance] += 1
    first, last = prog.member_ptr[instance], prog.member_ptr[instance + 1]
    root = prog.root[instance]
    if need == NEED_ROOT and not np.isnan(result.start[root]):
        _release(result, heap, transfer, node, node, now)
    if node == root:
        for i in range(first, last):
            other = prog.member[i]
            if prog.need[other] == NEED_ROOT and not np.isnan(result.start[other]):
                _release(result, heap, transfer, other, node, now)
    if state.arrived[instance] == last - first:
        for i in range(first, last):
            other = prog.member[i]
            if prog.need[other] == NEED_ALL:
                _release(result, heap, transfer, other, node, now)


@compiled
def _run(prog: Program, result: Replay, transfer: Float, scale: Float) -> int:
    """Replay until nothing is planned; returns the number of nodes that ended."""
    size = len(prog.gap)
    heap = _Heap(
        np.empty(size, np.float64),
        np.empty(size, np.int64),
        np.empty(size, np.int64),
        np.zeros(2, np.int64),
    )
    state = _State(
        prog.pending.copy(),
        np.zeros(size, np.bool_),
        np.zeros(len(prog.root), np.int64),
        prog.queue_ptr[:-1].copy(),
        prog.servers.copy(),
    )
    for node in range(size):
        if state.pending[node] == 0:
            result.ready[node] = prog.root_ready[node]
            _become_ready(prog, result, heap, scale, node)
    done = 0
    while heap.counts[0] > 0:
        now, code = _pop(heap)
        node = code >> 2
        event = code & 3
        ended = event == _END
        if event == _READY:
            state.is_ready[node] = True
            _serve(prog, result, state, heap, scale, prog.queue[node], now, CAUSE_TURN, node)
        elif event == _START:
            result.start[node] = now
            if prog.start_seen[node]:
                _signal(prog, result, state, heap, scale, node, _START_EDGE, now)
            if prog.need[node] == NEED_NOTHING:
                _push(heap, _compute(prog, scale, node, now), 4 * node + _END)
            else:
                _arrive(prog, result, state, heap, transfer, node, now)
        elif event == _TRANSFERRED:
            if prog.tail[node] > 0:
                _push(heap, now + prog.tail[node], 4 * node + _END)
            else:
                ended = True
        if ended:
            done += 1
            result.end[node] = now
            _signal(prog, result, state, heap, scale, node, _END_EDGE, now)
            if prog.queue[node] >= 0:
                state.free[prog.queue[node]] += 1
                _serve(prog, result, state, heap, scale, prog.queue[node], now, CAUSE_FREED, node)
    return done
