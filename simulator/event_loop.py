"""The event loop of the native engine, compiled by Numba: nodes, queues, transfers, ports.

`run` replays a `Program` for given durations and transfer times and fills a `Replay`. Everything
compiled stands in this one file, because Numba's cache on disk notices a change only in the file
of the function that is called. How a graph becomes a `Program` and what a user is told when it
hangs is in `engine`; nothing here knows a graph or a network.

Time is float64 nanoseconds. Sums of whole numbers below 2**53 are exact in it, so a measured
replay is exact. Events at equal times are taken in the order in which they were planned, those of
transfers first and by their index, so a replay is deterministic.

Sharing
-------
A transfer goes through phases. Each takes its fixed time and then its *work*, which ports carry:
at the full rate of 1 in the time that it takes alone. Transfers at work that share a port share
it max-min fairly [1]_. The level of a transfer is the bytes per nanosecond that it moves through
its busiest port, at full rate its *peak*; the common level of all that are at work rises until
one of them reaches its peak or a port is full, which settles those concerned; the others rise
on. So of two transfers that meet in a port neither gets more than the other unless the other
cannot use it. Rates change only when work begins or ends, and then only of transfers that are
joined, port by port, to the place of the change. Ports that could carry all that is at work on
them at full rate join nobody: they never fill.

All that happens at one moment happens before rates are settled, so that two transfers of which
one begins when the other ends do not meet. A transfer that was never slowed ends exactly when it
would have ended alone: its moments are then its release plus what was planned, to the bit.

References
----------
.. [1] D. Bertsekas, R. Gallager, "Data Networks", 2nd edition, section 6.5.2, 1992.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ..base.compiling import compiled, inlined
from ..graph.columns import EdgeKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


# What a node waits for between its start and its end.
NEED_NOTHING = 0  # it computes
NEED_ITSELF = 1  # a transfer that starts when the node does
NEED_ROOT = 2  # the root of its instance
NEED_ALL = 3  # all members of its instance

# Why a node of a queue with several servers took its server when it did.
CAUSE_READY = 0  # it was ready then
CAUSE_FREED = 1  # the end of another node freed the server
CAUSE_TURN = 2  # a node before it in the queue was ready then

# Events of nodes; the code in the heap is four times the node plus the event.
_READY = 0  # a node of a queue with several servers is ready
_START = 1  # a node starts that somebody waits for: a dependent of its start, or members
_TRANSFERRED = 2  # the transfer of a member is over
_END = 3

_END_EDGE = int(EdgeKind.END)
_START_EDGE = int(EdgeKind.START)

# Rates and levels closer than this are the same: they differ by rounding alone.
_SAME = 1e-12


def array(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """Make an array contiguous, writable and of a type; any other would be compiled for anew."""
    return np.require(values, dtype=dtype, requirements=["C", "W"])


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


class Flows(NamedTuple):
    """Transfers with work that ports carry (X transfers, P phases with work, S sets, Q ports).

    What a transfer does before the first work, between two and after the last takes a fixed time
    and is known by the moments at which work begins and ends.
    """

    of_node: Int  # (N,) transfer of a node; -1 where it has none, or none with such work
    member_ptr: Int  # (X + 1,)
    member: Int  # nodes whose transfer it is
    total: Float  # (X,) how long it takes alone
    phase_ptr: Int  # (X + 1,)
    work_at: Float  # (P,) when the work of a phase begins after the release, alone
    done_at: Float  # (P,) when it ends
    port_set: Int  # (P,)
    set_ptr: Int  # (S + 1,)
    port: Int
    load: Float  # bytes per nanosecond through that port at full rate
    capacity: Float  # (Q,)


class Replay(NamedTuple):
    """What happened to every node, and why then (N nodes); NaN or -1 where nothing did."""

    ready: Float  # when the last dependency let it go
    start: Float
    release: Float  # of communication: when the members it needs had arrived
    transferred: Float  # of communication: when its transfer was over
    end: Float
    bound_edge: Int  # dependency that set `ready`; -1 where there is none
    bound_member: Int  # member whose arrival set `release`
    cause: NDArray[np.int8]  # CAUSE_*: why it took its server then
    cause_node: Int  # the node that freed the server, or whose turn it was
    work_begin: Float  # (P,) when the work of each phase of `Flows` began
    work_end: Float  # (P,)


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


# What a transfer is doing.
_FLOW = np.dtype(
    [
        ("anchor", np.float64),  # its release, later by how much it was slowed
        ("time", np.float64),  # when its next event is planned
        ("rate", np.float64),  # while it is at work
        ("share", np.float64),  # its new rate; 0 while that is not settled
        ("peak", np.float64),  # bytes per nanosecond through its busiest port at full rate
        ("phase", np.int64),  # the one it is in, or beyond its last
        ("uses", np.int64),  # the first of the ports that it is at work on, in `Flows.port`
        ("slot", np.int64),  # the first of its slots
        ("width", np.int64),  # how many of both there are
        ("place", np.int64),  # where in the heap of transfers it is, or -1
        ("rating", np.int64),  # the last that it was part of
        ("begun", np.bool_),
        ("working", np.bool_),
    ],
    align=True,
)

# What is going on at a port.
_PORT = np.dtype(
    [
        ("capacity", np.float64),
        ("wanted", np.float64),  # load of all that are at work on it, at full rate
        ("room", np.float64),  # what settled transfers leave of it
        ("level", np.float64),  # at which those not settled fill it
        ("first", np.int64),  # the slot that came last, or -1
        ("rating", np.int64),
        ("changed", np.bool_),  # whether its users must be rated anew
        ("stale", np.bool_),  # whether its level must be found anew
    ],
    align=True,
)

# The part of a transfer in a port: one of the list of all that are at work on it.
_SLOT = np.dtype(
    [
        ("flow", np.int64),
        ("load", np.float64),
        ("next", np.int64),
        ("before", np.int64),
    ],
    align=True,
)


class _Fluid(NamedTuple):
    """The transfers in progress: what each is doing, and which are at work on which port."""

    flow: NDArray[Any]  # (X,) of _FLOW
    port: NDArray[Any]  # (Q,) of _PORT
    slot: NDArray[Any]  # of _SLOT
    uses: Int  # `Flows.port`
    order: Int  # (X,) a heap of transfers by the time of their next event, then by index
    joined: Int  # (X,) transfers that are rated together
    full: Int  # (Q,) the ports that join them
    changed: Int  # (Q,) ports whose users must be rated anew
    counts: Int  # (3,) how many are in `order` and in `changed`, and how often was rated


_PLANNED, _CHANGED, _RATINGS = 0, 1, 2


def _new_fluid(flows: Flows) -> _Fluid:
    size, ports = len(flows.total), len(flows.capacity)
    widest = np.zeros(size, dtype=np.int64)
    owner = np.repeat(np.arange(size), np.diff(flows.phase_ptr))
    np.maximum.at(widest, owner, np.diff(flows.set_ptr)[flows.port_set])
    flow, port = np.zeros(size, _FLOW), np.zeros(ports, _PORT)
    slot = np.zeros(widest.sum(), _SLOT)
    flow["place"] = port["first"] = -1
    flow["slot"] = np.cumsum(widest) - widest
    slot["flow"] = np.repeat(np.arange(size), widest)
    port["capacity"] = flows.capacity
    order, joined = np.zeros((2, size), np.int64)
    full, changed = np.zeros((2, ports), np.int64)
    counts = np.zeros(3, np.int64)
    return _Fluid(flow, port, slot, flows.port, order, joined, full, changed, counts)


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
    result: Replay,
    heap: _Heap,
    flows: Flows,
    fluid: _Fluid,
    transfer: Float,
    node: int,
    member: int,
    now: float,
) -> None:
    """Begin the transfer of a node: the members that it needs have arrived."""
    result.release[node] = now
    result.bound_member[node] = member
    flow = flows.of_node[node]
    if flow < 0:
        _push(heap, now + transfer[node], 4 * node + _TRANSFERRED)
    elif not fluid.flow[flow].begun:
        _begin(flows, fluid, flow, now)


@inlined
def _arrive(
    prog: Program,
    result: Replay,
    state: _State,
    heap: _Heap,
    flows: Flows,
    fluid: _Fluid,
    transfer: Float,
    node: int,
    now: float,
) -> None:
    """Count a member that has come to its operation, and release whom it completes."""
    need = prog.need[node]
    instance = prog.instance[node]
    root = prog.root[instance] if instance >= 0 else -1
    if need == NEED_ITSELF or (need == NEED_ROOT and not np.isnan(result.start[root])):
        _release(result, heap, flows, fluid, transfer, node, node, now)
    if instance < 0:
        return
    state.arrived[instance] += 1
    first, last = prog.member_ptr[instance], prog.member_ptr[instance + 1]
    complete = state.arrived[instance] == last - first
    if node == root or complete:
        for i in range(first, last):
            other = prog.member[i]
            kind = prog.need[other]
            if (kind == NEED_ALL and complete) or (
                kind == NEED_ROOT and node == root and not np.isnan(result.start[other])
            ):
                _release(result, heap, flows, fluid, transfer, other, node, now)


@compiled
def _plan(fluid: _Fluid, flow: int, time: float) -> None:
    """Plan the next event of a transfer, or move it to another time."""
    fluid.flow[flow].time = time
    i = fluid.flow[flow].place
    if i < 0:
        i = fluid.counts[_PLANNED]
        fluid.counts[_PLANNED] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        other = fluid.order[parent]
        if not _earlier(fluid, flow, other):
            break
        fluid.order[i] = other
        fluid.flow[other].place = i
        i = parent
    _sink(fluid, flow, i)


@compiled
def _unplan(fluid: _Fluid) -> int:
    """Take the transfer whose event comes first out of the heap."""
    flow = int(fluid.order[0])
    top = fluid.flow[flow].place
    fluid.flow[flow].place = -1
    size = fluid.counts[_PLANNED] - 1
    fluid.counts[_PLANNED] = size
    if size > 0:
        _sink(fluid, fluid.order[size], top)
    return flow


@compiled
def _sink(fluid: _Fluid, flow: int, i: int) -> None:
    """Put a transfer where its time belongs, at or below a place that is free."""
    size = fluid.counts[_PLANNED]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _earlier(fluid, fluid.order[child + 1], fluid.order[child]):
            child += 1
        other = fluid.order[child]
        if not _earlier(fluid, other, flow):
            break
        fluid.order[i] = other
        fluid.flow[other].place = i
        i = child
    fluid.order[i] = flow
    fluid.flow[flow].place = i


@compiled
def _earlier(fluid: _Fluid, flow: int, other: int) -> bool:
    time, since = fluid.flow[flow].time, fluid.flow[other].time
    return time < since or (time == since and flow < other)


@compiled
def _begin(flows: Flows, fluid: _Fluid, flow: int, now: float) -> None:
    fluid.flow[flow].begun = True
    fluid.flow[flow].anchor = now
    fluid.flow[flow].phase = flows.phase_ptr[flow]
    _plan(fluid, flow, now + flows.work_at[flows.phase_ptr[flow]])


@compiled
def _go_on(flows: Flows, fluid: _Fluid, result: Replay, flow: int, now: float) -> bool:
    """Begin or end the work of a transfer; returns whether the transfer is over."""
    state = fluid.flow[flow]
    phase = state.phase
    if state.working:
        state.working = False
        result.work_end[phase] = now
        _leave_ports(fluid, flow)
        alone = max(result.work_begin[phase], state.anchor + flows.done_at[phase])
        if now != alone:
            state.anchor += now - alone
        phase += 1
        state.phase = phase
        last = phase == flows.phase_ptr[flow + 1]
        wait = flows.total[flow] if last else flows.work_at[phase]
        _plan(fluid, flow, max(now, state.anchor + wait))
        return False
    if phase == flows.phase_ptr[flow + 1]:
        return True
    result.work_begin[phase] = now
    used = flows.port_set[phase]
    first, last = flows.set_ptr[used], flows.set_ptr[used + 1]
    state.uses, state.width = first, last - first
    # As if it were alone; if it is not, it is rated before time goes on.
    state.rate, state.working = 1.0, True
    _take_ports(flows, fluid, flow)
    _plan(fluid, flow, max(now, state.anchor + flows.done_at[phase]))
    return False


@compiled
def _take_ports(flows: Flows, fluid: _Fluid, flow: int) -> None:
    state = fluid.flow[flow]
    state.peak = 0.0
    for i in range(state.width):
        index, load = state.slot + i, flows.load[state.uses + i]
        state.peak = max(state.peak, load)
        slot, port = fluid.slot[index], fluid.port[fluid.uses[state.uses + i]]
        slot.load, slot.next, slot.before = load, port.first, -1
        if port.first >= 0:
            fluid.slot[port.first].before = index
        port.first = index
        port.wanted += load
        _note_change(fluid, fluid.uses[state.uses + i])


@compiled
def _leave_ports(fluid: _Fluid, flow: int) -> None:
    state = fluid.flow[flow]
    for i in range(state.width):
        slot, port = fluid.slot[state.slot + i], fluid.port[fluid.uses[state.uses + i]]
        _note_change(fluid, fluid.uses[state.uses + i])
        if slot.next >= 0:
            fluid.slot[slot.next].before = slot.before
        if slot.before >= 0:
            fluid.slot[slot.before].next = slot.next
        else:
            port.first = slot.next
        # Added up anew, so that no rounding stays behind.
        port.wanted = 0.0
        user = port.first
        while user >= 0:
            port.wanted += fluid.slot[user].load
            user = fluid.slot[user].next


@inlined
def _can_fill(fluid: _Fluid, port: int) -> bool:
    """Whether those at work on a port want more than it carries."""
    return bool(fluid.port[port].wanted > fluid.port[port].capacity * (1 + _SAME))


@compiled
def _note_change(fluid: _Fluid, port: int) -> None:
    """Have the users of a port rated anew, if it could fill with the one that comes or goes."""
    if _can_fill(fluid, port) and not fluid.port[port].changed:
        fluid.port[port].changed = True
        fluid.changed[fluid.counts[_CHANGED]] = port
        fluid.counts[_CHANGED] += 1


@compiled
def _rate_anew(fluid: _Fluid, now: float) -> None:
    """Settle the rates of all whose ports have changed, and move their ends."""
    fluid.counts[_RATINGS] += 1
    rating = fluid.counts[_RATINGS]
    for i in range(fluid.counts[_CHANGED]):
        port = fluid.changed[i]
        fluid.port[port].changed = False
        slot = fluid.port[port].first
        while slot >= 0:
            flow = fluid.slot[slot].flow
            if fluid.flow[flow].rating != rating:
                transfers, ports = _join(fluid, flow, rating)
                _settle(fluid, transfers, ports, rating)
                _apply(fluid, transfers, now)
            slot = fluid.slot[slot].next
    fluid.counts[_CHANGED] = 0


@compiled
def _join(fluid: _Fluid, flow: int, rating: int) -> tuple[int, int]:
    """Find all that ports which may fill join with a transfer; returns how many of each."""
    fluid.flow[flow].rating = rating
    fluid.joined[0] = flow
    transfers, ports = 1, 0
    done = 0
    while done < transfers:
        state = fluid.flow[fluid.joined[done]]
        state.share = 0.0
        done += 1
        for i in range(state.uses, state.uses + state.width):
            index = fluid.uses[i]
            port = fluid.port[index]
            if port.rating == rating or not _can_fill(fluid, index):
                continue
            port.rating = rating
            fluid.full[ports] = index
            ports += 1
            port.room, port.stale = port.capacity, True
            slot = port.first
            while slot >= 0:
                other = fluid.slot[slot].flow
                if fluid.flow[other].rating != rating:
                    fluid.flow[other].rating = rating
                    fluid.joined[transfers] = other
                    transfers += 1
                slot = fluid.slot[slot].next
    return transfers, ports


@compiled
def _settle(fluid: _Fluid, transfers: int, ports: int, rating: int) -> None:
    """Share the ports that join some transfers max-min fairly: fill all to a common level."""
    left = transfers
    while left > 0:
        level = np.inf
        for i in range(transfers):
            state = fluid.flow[fluid.joined[i]]
            if state.share == 0.0:
                level = min(level, state.peak)
        for i in range(ports):
            port = fluid.port[fluid.full[i]]
            if port.stale:
                _find_level(fluid, fluid.full[i])
            level = min(level, port.level)
        reached = level * (1 + _SAME)
        for i in range(ports):
            port = fluid.port[fluid.full[i]]
            if port.level <= reached:
                slot = port.first
                while slot >= 0:
                    flow = fluid.slot[slot].flow
                    if fluid.flow[flow].share == 0.0:
                        _settle_one(fluid, flow, level, rating)
                        left -= 1
                    slot = fluid.slot[slot].next
        for i in range(transfers):
            flow = fluid.joined[i]
            if fluid.flow[flow].share == 0.0 and fluid.flow[flow].peak <= reached:
                _settle_one(fluid, flow, level, rating)
                left -= 1


@compiled
def _find_level(fluid: _Fluid, index: int) -> None:
    """Find the level at which the transfers that are not settled fill a port."""
    port = fluid.port[index]
    port.stale = False
    # Added up anew: of a sum from which larger numbers were taken nothing may be left.
    weight = 0.0
    slot = port.first
    while slot >= 0:
        state = fluid.flow[fluid.slot[slot].flow]
        if state.share == 0.0:
            weight += fluid.slot[slot].load / state.peak
        slot = fluid.slot[slot].next
    port.level = max(port.room, 0.0) / weight if weight > 0 else np.inf


@compiled
def _settle_one(fluid: _Fluid, flow: int, level: float, rating: int) -> None:
    state = fluid.flow[flow]
    # Never 0, which rounding could make of what is left of a port.
    state.share = max(level / state.peak, _SAME) if level < state.peak * (1 - _SAME) else 1.0
    for i in range(state.width):
        port = fluid.port[fluid.uses[state.uses + i]]
        if port.rating == rating:
            port.room -= fluid.slot[state.slot + i].load * state.share
            port.stale = True


@compiled
def _apply(fluid: _Fluid, transfers: int, now: float) -> None:
    """Move the ends of transfers to where their new rates put them."""
    for i in range(transfers):
        flow = fluid.joined[i]
        state = fluid.flow[flow]
        # One whose rate stays keeps its end to the bit.
        if abs(state.share - state.rate) > _SAME * state.rate:
            left = (state.time - now) * state.rate
            state.rate = state.share
            _plan(fluid, flow, now + left / state.share)


def run(prog: Program, flows: Flows, result: Replay, transfer: Float, scale: Float) -> int:
    """Replay until nothing is planned; returns the number of nodes that ended.

    Parameters
    ----------
    prog : Program
        The graph.
    flows : Flows
        The transfers whose time depends on others.
    result : Replay
        Filled.
    transfer : float64, shape (N,)
        From release to the end of the transfer, alone; not read where a node does not
        communicate.
    scale : float64, shape (NUM_PART_KINDS,)
        What the duration of each kind of part is multiplied by.
    """
    return int(_run(prog, flows, _new_fluid(flows), result, transfer, scale))


@compiled
def _run(
    prog: Program, flows: Flows, fluid: _Fluid, result: Replay, transfer: Float, scale: Float
) -> int:
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
    now = -np.inf
    while True:
        node_time = heap.time[0] if heap.counts[0] > 0 else np.inf
        flow_time = fluid.flow[fluid.order[0]].time if fluid.counts[_PLANNED] > 0 else np.inf
        if fluid.counts[_CHANGED] > 0 and min(node_time, flow_time) > now:
            _rate_anew(fluid, now)
            continue
        if flow_time <= node_time:
            if flow_time == np.inf:
                break
            now = flow_time
            flow = _unplan(fluid)
            if _go_on(flows, fluid, result, flow, now):
                for i in range(flows.member_ptr[flow], flows.member_ptr[flow + 1]):
                    _push(heap, now, 4 * flows.member[i] + _TRANSFERRED)
            continue
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
                _arrive(prog, result, state, heap, flows, fluid, transfer, node, now)
        elif event == _TRANSFERRED:
            result.transferred[node] = now
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
