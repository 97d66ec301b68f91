"""The parity engine's event loop, compiled by Numba: nodes, queues, chunks, messages, links.

`run` plays a workload exactly as ASTRA-sim's analytical backends do, to the order of what happens
within one nanosecond (section 13 of the specification of the backends [1]_). Everything compiled
stands in this one file, because Numba's cache on disk notices a change only in the file of the
function that is called. The tables it plays in are in `parity_tables`, what plans of collectives
mean is in `collectives`; who calls is `parity`.

Order
-----
For every ns there is a list of *entries*, run in order; entries added meanwhile for the same ns go
to its end. What a rank itself has timed (the end of a computation, of the wait before a message,
of a reduction) stands on its *agenda* of that ns; the first of them adds one entry, and running
that runs the whole agenda. Arrivals of messages are entries of their own.

Two ways to play a collective
-----------------------------
By its messages, as ASTRA-sim does: each message an entry, each token an action on an agenda. Or,
where nothing shares a link (congestion-unaware), at once when its last member enters: the times of
all its messages then follow from recurrences over members and steps (section 12), at about two
nanoseconds of work a message. The second way knows when a collective ends on each rank, and when
ASTRA-sim would have put that end on the rank's agenda, but not all that happens meanwhile. Where
that could matter, two completions in one ns on one rank that let nodes want the same slot, or
members that do not issue the same, `run` stops with `UNCERTAIN`, and the caller plays the messages
instead. Both ways are needed: messages for the congestion-aware backend and for certainty,
recurrences because they are a hundred times faster.

References
----------
.. [1] ASTRA-sim 518bd51, analytical network backend 599a047.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numba
import numpy as np

from ...base.compiling import compiled, inlined
from .names import Algorithm, CommType

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .parity_tables import Given, Int, Records, State

    Record: TypeAlias = Any

F = TypeVar("F", bound="Callable[..., Any]")


def part(function: F) -> F:
    """Compile for callers in this file only, which saves the code that Python would call it by.

    What has one caller only is `inlined` instead: with every level of calls Numba optimizes all
    that is called once more.
    """
    # numba's own types do not know the last two.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("F", numba.njit(nogil=True, error_model="numpy", **options)(function))


def lean(function: F) -> F:
    """Compile as a `part` that makes no array, and so needs not count who holds which."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    return cast("F", numba.njit(nogil=True, error_model="numpy", **options)(function))


# Constants that functions are called with are int64: for a Python integer Numba would compile the
# function once more.
_i = cast("Callable[[Any], int]", np.int64)
_ZERO, _NO, _YES = _i(0), _i(0), _i(1)
_EVERYBODY = _i(-1)  # instead of the rank of an agenda: the entries of a ns

# What a node does when it is issued.
TIMER = 0  # it takes its duration
SKIP = 1  # it completes at once, unseen until the next completion on its rank
COLLECTIVE = 2
SEND = 3
RECEIVE = 4
POOL = 5  # an access to a memory that serves one at a time

# Slots of a rank; a node in the last needs none.
CPU, GPU, COMM, FREE = range(4)
SLOTS = 4

# How a run ended.
DONE = 0  # nothing is left to happen
FULL = 1  # a table was too small
UNCERTAIN = 2  # recurrences cannot tell
AT_ZERO = 3  # something without a delay at time 0
STATISTICS = 4  # a rank with nodes that ASTRA-sim's statistics do not know ends with a message
OVERFLOW = 5  # the clock would come to its end

#: Times of the clock are less.
CLOCK_END = _i(1 << 62)

# Entries.
_AGENDA, _ARRIVE, _HOP, _LINK_FREE, _RECEIVED = map(_i, range(5))

# Actions on an agenda.
_NODE_ENDS, _WAITED, _REDUCED, _POOL_NEXT, _COLLECTIVE_ENDS = map(_i, range(5))

# Whom the arrival of a message concerns, at the sender or the receiver.
_NOBODY = _i(-1)
_FOR_NODE = _i(0)
_FOR_TOKEN = _i(1)  # a windowed exchange
_FOR_CHILD = _i(2)  # a tree: from below
_FOR_PARENT = _i(3)  # a tree: from above
_FOR_DATA = _i(4)  # rendezvous: the message that may leave now
_FOR_POST = _i(5)  # rendezvous: the receive that is posted now
_ARRIVED = _i(6)  # nobody has posted the receive yet

# Parts of a tree phase, as the token of its actions.
_TREE_UP, _TREE_CHILD, _TREE_END, _TREE_DOWN = map(_i, range(4))

_RING = int(Algorithm.RING)
_DIRECT = int(Algorithm.DIRECT)
_HALVING = int(Algorithm.HALVING_DOUBLING)
_TREE = int(Algorithm.TREE)
_ALL_REDUCE = int(CommType.ALL_REDUCE)
_REDUCE_SCATTER = int(CommType.REDUCE_SCATTER)
_ALL_GATHER = int(CommType.ALL_GATHER)

# Topologies, see `names.TOPOLOGIES`.
_ON_RING, _CONNECTED, _SWITCH = range(3)

_TAGS = 500_000_000
_GROUP_TAGS = 1_000_000
_CONTROL_TAGS = _i(1_000_000_000)
_CONTROL_BYTES = _i(8192)

# Scalars that change.
_NOW, _STATUS, _TIMES = range(3)
FREE_EVENT, FREE_LIST, FREE_MESSAGE, FREE_CHUNK, FREE_JOIN = map(_i, range(3, 8))  # first cells
WHERE_RANK, WHERE_NODE = 8, 9  # of AT_ZERO and STATISTICS
DUE_JOIN = 10  # collectives that all members have entered in this ns
DISORDER = 11  # a collective on whose messages ASTRA-sim writes to memory that it has freed
SCALARS = 12

# Free cells, lists and tables ----------------------------------------------------------------


@lean
def _take(cells: Records, scalars: Int, head: int) -> int:
    """Take a free cell; the first one, which belongs to nobody, where none is left."""
    cell = scalars[head]
    if cell < 0:
        scalars[_STATUS] = FULL
        return 0
    scalars[head] = cells[cell].next
    return cell


@lean
def _give(cells: Records, scalars: Int, head: int, cell: int) -> None:
    if cell > 0:
        cells[cell].next = scalars[head]
        scalars[head] = cell


@lean
def _push_time(s: State, time: int) -> None:
    heap, count = s.times, s.scalars[_TIMES]
    if count >= len(heap):
        s.scalars[_STATUS] = FULL
        return
    s.scalars[_TIMES] = count + 1
    at = count
    while at > 0:
        above = (at - 1) >> 1
        if heap[above] <= time:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = time


@lean
def _pop_time(s: State) -> int:
    heap, count = s.times, s.scalars[_TIMES] - 1
    s.scalars[_TIMES] = count
    top, last = heap[0], heap[count]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= last:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = last
    return top


@lean
def _mixed(a: int, b: int) -> int:
    """Spread keys over a table."""
    x = np.uint64(a) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F)
    x ^= x >> np.uint64(29)
    return _i(x & np.uint64(0x7FFFFFFFFFFFFFFF))


@lean
def _find_list(s: State, time: int, rank: int) -> int:
    at = s.list_table[_mixed(time, rank + 1) & (len(s.list_table) - 1)]
    while at >= 0 and (s.lists[at].time != time or s.lists[at].rank != rank):
        at = s.lists[at].next
    return at


@lean
def _add_list(s: State, time: int, rank: int) -> int:
    at = _take(s.lists, s.scalars, FREE_LIST)
    slot = _mixed(time, rank + 1) & (len(s.list_table) - 1)
    cell = s.lists[at]
    cell.time = time
    cell.rank = rank
    cell.first = -1
    cell.last = -1
    cell.next = s.list_table[slot]
    if at > 0:
        s.list_table[slot] = at
    return at


@lean
def _drop_list(s: State, at: int) -> None:
    slot = _mixed(s.lists[at].time, s.lists[at].rank + 1) & (len(s.list_table) - 1)
    here = s.list_table[slot]
    if here == at:
        s.list_table[slot] = s.lists[at].next
    else:
        while s.lists[here].next != at:
            here = s.lists[here].next
        s.lists[here].next = s.lists[at].next
    _give(s.lists, s.scalars, FREE_LIST, at)


@lean
def _new_event(s: State, kind: int, subject: int, token: int, since: int) -> int:
    at = _take(s.events, s.scalars, FREE_EVENT)
    cell = s.events[at]
    cell.kind = kind
    cell.subject = subject
    cell.token = token
    cell.since = since
    cell.next = -1
    return at


@lean
def _entry(s: State, time: int, kind: int, subject: int) -> None:
    """Add an entry for a ns, at the end."""
    at = _find_list(s, time, _EVERYBODY)
    if at < 0:
        at = _add_list(s, time, _EVERYBODY)
        _push_time(s, time)
    event = _new_event(s, kind, subject, _ZERO, s.scalars[_NOW])
    if s.lists[at].last < 0:
        s.lists[at].first = event
    else:
        s.events[s.lists[at].last].next = event
    s.lists[at].last = event


@lean
def _agenda(s: State, rank: int, time: int) -> int:
    """Find or begin the agenda of a rank for a ns."""
    at = _find_list(s, time, rank)
    if at < 0:
        at = _add_list(s, time, rank)
        _entry(s, time, _AGENDA, at)
    return at


@lean
def _act(s: State, rank: int, time: int, kind: int, subject: int, token: int) -> None:
    """Put an action on an agenda, at the end."""
    at = _agenda(s, rank, time)
    since = s.scalars[_NOW]
    event = _new_event(s, kind, subject, token, since)
    last = s.lists[at].last
    if last < 0:
        s.lists[at].first = event
        s.lists[at].last = event
    elif s.events[last].since < since or s.events[last].kind != _COLLECTIVE_ENDS:
        s.events[last].next = event
        s.lists[at].last = event
    else:
        _act_before_end(s, at, event)


@lean
def _act_before_end(s: State, at: int, event: int) -> None:
    """Put an action in its place on an agenda that has the end of a collective.

    That was put there when it became known, with the time at which ASTRA-sim would have. Where that
    is the same for both, their order is not certain.
    """
    since = s.events[event].since
    before = -1
    here = s.lists[at].first
    while here >= 0 and s.events[here].since <= since:
        ends = s.events[here].kind == _COLLECTIVE_ENDS or s.events[event].kind == _COLLECTIVE_ENDS
        if s.events[here].since == since and ends:
            s.ranks[s.lists[at].rank].doubt_ns = s.lists[at].time
        before = here
        here = s.events[here].next
    s.events[event].next = here
    if before < 0:
        s.lists[at].first = event
    else:
        s.events[before].next = event
    if here < 0:
        s.lists[at].last = event


# Nodes ---------------------------------------------------------------------------------------


@lean
def _make_ready(g: Given, s: State, node: int) -> None:
    """Let a node wait for its slot."""
    rank, slot = g.nodes[node].rank, g.nodes[node].slot
    heap = g.ready_ptr[SLOTS * rank + slot]
    at = s.ready_count[rank, slot]
    s.ready_count[rank, slot] = at + 1
    s.ranks[rank].ready += 1
    while at > 0:
        above = (at - 1) >> 1
        if s.ready[heap + above] <= node:
            break
        s.ready[heap + at] = s.ready[heap + above]
        at = above
    s.ready[heap + at] = node


@lean
def _pop_ready(g: Given, s: State, rank: int, slot: int) -> int:
    heap = g.ready_ptr[SLOTS * rank + slot]
    count = s.ready_count[rank, slot] - 1
    s.ready_count[rank, slot] = count
    s.ranks[rank].ready -= 1
    top, last = s.ready[heap], s.ready[heap + count]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count:
            break
        if below + 1 < count and s.ready[heap + below + 1] < s.ready[heap + below]:
            below += 1
        if s.ready[heap + below] >= last:
            break
        s.ready[heap + at] = s.ready[heap + below]
        at = below
    s.ready[heap + at] = last
    return top


@lean
def _release(g: Given, s: State, node: int) -> int:
    """Make dependants ready that waited for a node alone; the slots they need, as bits."""
    slots = 0
    for at in range(g.next_ptr[node], g.next_ptr[node + 1]):
        dependant = g.next_node[at]
        s.pending[dependant] -= 1
        if s.pending[dependant] == 0:
            _make_ready(g, s, dependant)
            slots |= 1 << g.nodes[dependant].slot
    return slots


@lean
def _issue_ready(g: Given, s: State, rank: int, by_message: int) -> None:
    """Issue what is ready and finds its slot free, by ascending id; then see if all is done."""
    while True:
        best, chosen = np.int64(1 << 62), -1
        for slot in range(SLOTS):
            free = slot == FREE or s.busy[rank, slot] < 0
            if free and s.ready_count[rank, slot] > 0:
                node = s.ready[g.ready_ptr[SLOTS * rank + slot]]
                if node < best:
                    best, chosen = node, slot
        if chosen < 0:
            break
        _issue(g, s, _pop_ready(g, s, rank, chosen))
    node = s.ranks[rank].unseen
    s.ranks[rank].unseen = -1
    while node >= 0:
        _release(g, s, node)
        node = s.unseen[node]
    if s.ranks[rank].ready == 0 and s.ranks[rank].running == 0 and s.ranks[rank].finish < 0:
        now = s.scalars[_NOW]
        s.ranks[rank].finish = now
        if s.ranks[rank].odd and (by_message or now == 0) and s.scalars[_STATUS] == DONE:
            s.scalars[_STATUS] = STATISTICS
            s.scalars[WHERE_RANK] = rank


@inlined
def _issue(g: Given, s: State, index: int) -> None:
    node = g.nodes[index]
    rank, now = node.rank, s.scalars[_NOW]
    s.issued[index] = now
    s.ranks[rank].odd |= node.odd
    if node.kind == SKIP:
        s.completed[index] = now
        s.unseen[index] = s.ranks[rank].unseen
        s.ranks[rank].unseen = index
        return
    if node.slot != FREE:
        s.busy[rank, node.slot] = index
    s.ranks[rank].running += 1
    if node.computes:
        s.ranks[rank].computed += node.duration
    if node.kind == TIMER:
        _act(s, rank, now + node.duration, _NODE_ENDS, index, _ZERO)
    elif node.kind == COLLECTIVE:
        _issue_collective(g, s, index)
    elif node.kind == SEND:
        _send(g, s, rank, node.peer, node.tag, node.bytes, _FOR_NODE, index)
    elif node.kind == RECEIVE:
        _post(g, s, node.peer, rank, node.tag, node.bytes, _FOR_NODE, index)
    else:
        _access(g, s, index)


@lean
def _complete(g: Given, s: State, index: int, by_message: int) -> None:
    """A node is over: its slot is free, and its rank looks at what is ready."""
    node = g.nodes[index]
    rank, now = node.rank, s.scalars[_NOW]
    s.completed[index] = now
    if node.slot != FREE:
        s.busy[rank, node.slot] = -1
    s.ranks[rank].running -= 1
    released = _release(g, s, index)
    if g.recurrences:
        held = 0 if node.slot == FREE else 1 << node.slot
        _note_completion(s, rank, held, released, by_message)
    _issue_ready(g, s, rank, by_message)


@lean
def _note_completion(s: State, rank: int, held: int, released: int, by_message: int) -> None:
    """See whether the order of the completions of a rank in one ns is certain, or makes no odds.

    It makes none unless what two of them release, or one holds and the other releases, wants the
    same slot; receives want none.
    """
    own, now = s.ranks[rank], s.scalars[_NOW]
    if own.last_ns != now:
        own.last_ns = now
        own.held = 0
        own.released = 0
        own.by_message = 0
    elif by_message or own.by_message or own.doubt_ns == now:
        meets = (released & (own.released | own.held)) | (held & own.released)
        if own.odd or meets & ((1 << FREE) - 1):
            s.scalars[_STATUS] = UNCERTAIN
    own.held |= held
    own.released |= released
    own.by_message |= by_message


@inlined
def _access(g: Given, s: State, index: int) -> None:
    """Access a memory that serves one at a time."""
    memory = s.memories[g.nodes[index].pool]
    if memory.busy:
        s.unseen[index] = -1
        if memory.first < 0:
            memory.first = index
        else:
            s.unseen[memory.last] = index
        memory.last = index
    else:
        memory.busy = 1
        _serve(g, s, index)


@lean
def _serve(g: Given, s: State, index: int) -> None:
    rank, end = g.nodes[index].rank, s.scalars[_NOW] + g.nodes[index].duration
    _act(s, rank, end, _NODE_ENDS, index, _ZERO)
    _act(s, rank, end, _POOL_NEXT, g.nodes[index].pool, _ZERO)


@inlined
def _serve_next(g: Given, s: State, pool: int) -> None:
    memory = s.memories[pool]
    index = memory.first
    if index < 0:
        memory.busy = 0
        return
    memory.first = s.unseen[index]
    _serve(g, s, index)


# Messages ------------------------------------------------------------------------------------


@lean
def _delay(g: Given, src: int, dst: int, size: int) -> int:
    """Time of a message that shares no link: the lowest dimension in which both differ."""
    a, b = src, dst
    for dim in range(len(g.counts)):
        n = g.counts[dim]
        x, y = a % n, b % n
        if x != y:
            hops = 1
            if g.topology[dim] == _ON_RING:
                hops = min((x - y) % n, (y - x) % n)
            elif g.topology[dim] == _SWITCH:
                hops = 2
            return _i(hops * g.latency[dim] + size / g.bandwidth[dim])
        a //= n
        b //= n
    return 0


@lean
def _new_message(s: State, src: int, dst: int, tag: int, size: int, kind: int, subject: int) -> int:
    at = _take(s.messages, s.scalars, FREE_MESSAGE)
    cell = s.messages[at]
    cell.src = src
    cell.dst = dst
    cell.tag = tag
    cell.bytes = size
    cell.kind = kind
    cell.subject = subject
    cell.device = src
    cell.next = -1
    return at


@lean
def _send(
    g: Given, s: State, src: int, dst: int, tag: int, size: int, kind: int, subject: int
) -> None:
    """Send; `kind` and `subject` are whom it concerns at the sender when it has arrived."""
    message = _new_message(s, src, dst, tag, size, kind, subject)
    if g.rendezvous:
        _await(
            s, _new_message(s, dst, src, tag + _CONTROL_TAGS, _CONTROL_BYTES, _FOR_DATA, message)
        )
    else:
        _launch(g, s, message)


@lean
def _post(
    g: Given, s: State, src: int, dst: int, tag: int, size: int, kind: int, subject: int
) -> None:
    """Post a receive; `kind` and `subject` are whom it concerns at the receiver."""
    receive = _new_message(s, src, dst, tag, size, kind, subject)
    if g.rendezvous:
        control = _new_message(s, dst, src, tag + _CONTROL_TAGS, _CONTROL_BYTES, _FOR_POST, receive)
        _launch(g, s, control)
    else:
        _await(s, receive)


@lean
def _slot_of(s: State, message: int) -> int:
    cell = s.messages[message]
    key = _mixed(cell.tag, cell.src)
    return _mixed(key ^ cell.dst, cell.bytes) & (len(s.message_table) - 1)


@lean
def _take_match(s: State, message: int, arrived: int) -> int:
    """Take the first that belongs to a message or a receive out of the table; -1 if none is."""
    cell = s.messages[message]
    slot = _slot_of(s, message)
    before, at = -1, s.message_table[slot]
    while at >= 0:
        other = s.messages[at]
        if (
            (other.kind == _ARRIVED) == (arrived == _YES)
            and other.tag == cell.tag
            and other.src == cell.src
            and other.dst == cell.dst
            and other.bytes == cell.bytes
        ):
            if before < 0:
                s.message_table[slot] = other.next
            else:
                s.messages[before].next = other.next
            return at
        before, at = at, other.next
    return -1


@lean
def _keep(s: State, message: int) -> None:
    """Keep a message or a receive in the table until the other comes."""
    if message == 0:
        return
    slot = _slot_of(s, message)
    s.messages[message].next = -1
    at = s.message_table[slot]
    if at < 0:
        s.message_table[slot] = message
        return
    while s.messages[at].next >= 0:
        at = s.messages[at].next
    s.messages[at].next = message


@lean
def _await(s: State, receive: int) -> None:
    found = _take_match(s, receive, _YES)
    if found < 0:
        _keep(s, receive)
    else:
        _give(s.messages, s.scalars, FREE_MESSAGE, found)
        _entry(s, s.scalars[_NOW], _RECEIVED, receive)


@lean
def _launch(g: Given, s: State, message: int) -> None:
    if g.aware:
        _onto_link(g, s, message)
    else:
        cell = s.messages[message]
        delay = _delay(g, cell.src, cell.dst, cell.bytes)
        _entry(s, s.scalars[_NOW] + delay, _ARRIVE, message)


@lean
def _onto_link(g: Given, s: State, message: int) -> None:
    """Let a message wait for its next link, or take it."""
    cell = s.messages[message]
    here, dst, n = cell.device, cell.dst, g.ranks
    if g.topology[0] == _ON_RING:
        clockwise = (dst - here) % n
        if clockwise <= n - clockwise:
            link, cell.device = here, (here + 1) % n
        else:
            link, cell.device = n + here, (here - 1) % n
    elif g.topology[0] == _CONNECTED:
        link, cell.device = here * n + dst, dst
    elif here < n:
        link, cell.device = here, n
    else:
        link, cell.device = n + dst, dst
    if s.links[link].busy:
        cell.next = -1
        if s.links[link].first < 0:
            s.links[link].first = message
        else:
            s.messages[s.links[link].last].next = message
        s.links[link].last = message
    else:
        _start_link(g, s, link, message)


@lean
def _start_link(g: Given, s: State, link: int, message: int) -> None:
    now, wire = s.scalars[_NOW], s.messages[message].bytes / g.bandwidth[0]
    s.links[link].busy = 1
    _entry(s, now + np.int64(g.latency[0] + wire), _HOP, message)
    _entry(s, now + np.int64(wire), _LINK_FREE, link)


@inlined
def _free_link(g: Given, s: State, link: int) -> None:
    message = s.links[link].first
    if message < 0:
        s.links[link].busy = 0
        return
    s.links[link].first = s.messages[message].next
    _start_link(g, s, link, message)


@inlined
def _arrive(g: Given, s: State, message: int) -> None:
    """A message is there: its sender knows first."""
    kind, subject = s.messages[message].kind, s.messages[message].subject
    if kind == _FOR_NODE:
        _complete(g, s, subject, _YES)
    elif kind == _FOR_POST:
        _await(s, subject)
    receive = _take_match(s, message, _NO)
    if receive < 0:
        s.messages[message].kind = _ARRIVED
        _keep(s, message)
        return
    _give(s.messages, s.scalars, FREE_MESSAGE, message)
    _received(g, s, receive)


@lean
def _received(g: Given, s: State, receive: int) -> None:
    """A receive is over."""
    kind, subject = s.messages[receive].kind, s.messages[receive].subject
    _give(s.messages, s.scalars, FREE_MESSAGE, receive)
    if kind == _FOR_NODE:
        _complete(g, s, subject, _YES)
    elif kind == _FOR_TOKEN:
        s.chunks[subject].received += 1
        _make_token(g, s, subject)
    elif kind == _FOR_CHILD:
        _wait(g, s, subject, _TREE_CHILD)
    elif kind == _FOR_PARENT:
        _wait(g, s, subject, _TREE_END if s.chunks[subject].role == 0 else _TREE_DOWN)
    elif kind == _FOR_DATA:
        _launch(g, s, subject)


# Collectives by messages ---------------------------------------------------------------------


@inlined
def _number_chunks(g: Given, s: State, index: int) -> int:
    """Number the chunks of a collective; the number of the first."""
    node = g.nodes[index]
    plan = g.plans[node.plan]
    number = s.ranks[node.rank].chunks
    s.ranks[node.rank].chunks += plan.count
    if plan.group:
        at = s.group_at[node.plan] + node.place
        number = plan.group * _GROUP_TAGS + s.group_chunks[at]
        s.group_chunks[at] += plan.count
    return number


@inlined
def _issue_collective(g: Given, s: State, index: int) -> None:
    node = g.nodes[index]
    plan = g.plans[node.plan]
    number = _number_chunks(g, s, index)
    rank = node.rank
    if g.recurrences and not plan.by_events:
        _join(g, s, index, number)
        return
    s.ranks[rank].left = plan.count
    for place in range(plan.count):
        at = _take(s.chunks, s.scalars, FREE_CHUNK)
        chunk = s.chunks[at]
        chunk.node = index
        chunk.first_phase = plan.phase
        chunk.phase = plan.phase
        chunk.last_phase = plan.phase + plan.phases - 1
        chunk.tag = _tag(number + place)
        _build_phases(g, s, at)
        _enqueue(s, at)
        _fill(g, s, chunk.queue)


@lean
def _tag(number: int) -> int:
    """Tag of a chunk number, which ASTRA-sim keeps in 32 bits and divides towards zero."""
    wrapped = ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
    rest = abs(wrapped) % _TAGS
    return (rest if wrapped >= 0 else -rest) + _TAGS


@inlined
def _build_phases(g: Given, s: State, at: int) -> None:
    """Choose the queue, the direction and the tree of every phase of a chunk."""
    chunk = s.chunks[at]
    node = g.nodes[chunk.node]
    plan = g.plans[node.plan]
    rank, dims, q = node.rank, len(g.counts), g.queues_per_dim
    for step in range(plan.phases):
        phase = g.phases[plan.phase + step]
        which, sign = 0, -1 if phase.backwards else 1
        if q > 1:
            half = q // 2
            turn = 0
            if plan.optimized:
                turn = 2 if phase.backwards else 1
            at_turn = s.turns[rank, phase.dim, turn]
            if turn == 0:
                which, sign = at_turn % q, 1 if at_turn % q < half else -1
            elif turn == 1:
                which, sign = at_turn % half, 1
            else:
                which, sign = half + at_turn % (q - half), -1
            s.turns[rank, phase.dim, turn] = at_turn + 1
        choice = 0
        if phase.algorithm == _TREE:
            choice = s.trees[rank, plan.comm_type, phase.entry] & 1
            s.trees[rank, plan.comm_type, phase.entry] += 1
        s.chunk_queues[at, step] = (((rank * dims + phase.dim) * q + which) << 2) | (
            (1 if sign < 0 else 0) | (choice << 1)
        )


@lean
def _enqueue(s: State, at: int) -> None:
    """Put a chunk at the end of the queue of its phase."""
    chunk = s.chunks[at]
    code = s.chunk_queues[at, chunk.phase - chunk.first_phase]
    chunk.queue = code >> 2
    chunk.sign = -1 if code & 1 else 1
    chunk.role = code >> 1 & 1
    chunk.next = -1
    queue = s.queues[chunk.queue]
    if queue.first < 0:
        queue.first = at
    else:
        s.chunks[queue.last].next = at
    queue.last = at


@lean
def _fill(g: Given, s: State, index: int) -> None:
    queue = s.queues[index]
    while queue.running < g.queue_limit and queue.first >= 0:
        at = queue.first
        queue.first = s.chunks[at].next
        queue.running += 1
        _start_phase(g, s, at)


@inlined
def _start_phase(g: Given, s: State, at: int) -> None:
    chunk = s.chunks[at]
    phase = g.phases[chunk.phase]
    node = g.nodes[chunk.node]
    chunk.place = node.place if phase.stride == 0 else node.rank // phase.stride % phase.n
    chunk.made = 0
    chunk.latest = 0
    chunk.credits = 0
    chunk.sent = 0
    chunk.received = 0
    if phase.algorithm == _TREE:
        _start_tree(g, s, at)
        return
    for _ in range(phase.window):
        _make_token(g, s, at)


@lean
def _wait(g: Given, s: State, at: int, token: int) -> None:
    """Wait for the endpoint delay."""
    chunk = s.chunks[at]
    endpoint = g.phases[chunk.phase].endpoint
    _act(s, g.nodes[chunk.node].rank, s.scalars[_NOW] + endpoint, _WAITED, at, token)


@lean
def _make_token(g: Given, s: State, at: int) -> None:
    token = s.chunks[at].made
    s.chunks[at].made = token + 1
    _wait(g, s, at, token)


@lean
def _charge(g: Given, phase: Record, token: int) -> int:
    """Reduction that a token pays before it is ready; -1 for none."""
    if phase.algorithm == _RING:
        reduces = phase.comm_type == _ALL_REDUCE or phase.comm_type == _REDUCE_SCATTER
        return phase.charge if reduces and 1 <= token < phase.n else -1
    if phase.algorithm == _DIRECT:
        if token % phase.period < phase.window:
            return -1
        if phase.comm_type == _REDUCE_SCATTER:
            return phase.charge
        if phase.comm_type == _ALL_REDUCE and token // phase.period % 2 == 0:
            return phase.charge
        return -1
    if phase.algorithm == _HALVING:
        return g.steps[phase.steps + token].charge if token < phase.sends else -1
    return phase.charge if token in (_TREE_CHILD, _TREE_DOWN) else -1


@inlined
def _waited(g: Given, s: State, at: int, token: int) -> None:
    """The endpoint delay of a token is over; what it must reduce comes next."""
    chunk = s.chunks[at]
    charge = _charge(g, g.phases[chunk.phase], token)
    if charge < 0:
        _token_ready(g, s, at, token)
    else:
        _act(s, g.nodes[chunk.node].rank, s.scalars[_NOW] + charge, _REDUCED, at, token)


@lean
def _peer(g: Given, chunk: Record, phase: Record, node: Record, by: int) -> int:
    """Rank that is some places further on the ring."""
    place = (chunk.place + by) % phase.n
    if phase.stride == 0:
        return g.members[g.plans[node.plan].member + place]
    return node.rank + (place - chunk.place) * phase.stride


@lean
def _token_ready(g: Given, s: State, at: int, token: int) -> None:
    chunk = s.chunks[at]
    phase = g.phases[chunk.phase]
    if phase.algorithm == _TREE:
        _tree_ready(g, s, at, token)
        return
    chunk.credits += 1
    if token >= chunk.latest:
        chunk.latest = token
    elif phase.stride != 0 and s.scalars[DISORDER] < 0:
        s.scalars[DISORDER] = chunk.node
    most = 1
    if phase.algorithm == _DIRECT and phase.comm_type == _ALL_REDUCE and chunk.sent >= phase.n - 1:
        most = 0 if chunk.received < phase.n - 1 else phase.window
    while most > 0 and chunk.credits > 0 and chunk.sent < phase.sends:
        most -= 1
        _exchange(g, s, at)
    if chunk.sent == phase.sends and chunk.credits >= phase.window:
        _phase_over(g, s, at)


@lean
def _exchange(g: Given, s: State, at: int) -> None:
    """Send the next message, and post the receive that goes with it."""
    chunk = s.chunks[at]
    phase = g.phases[chunk.phase]
    node = g.nodes[chunk.node]
    size = phase.bytes
    if phase.algorithm == _RING:
        to, back = chunk.sign, -chunk.sign
    elif phase.algorithm == _DIRECT:
        to = chunk.sign * (1 + chunk.sent % (phase.n - 1))
        back = -to
    else:
        step = g.steps[phase.steps + chunk.sent]
        size = step.bytes
        to = step.distance if chunk.place // step.distance % 2 == 0 else -step.distance
        back = to
    dst, src = _peer(g, chunk, phase, node, to), _peer(g, chunk, phase, node, back)
    chunk.credits -= 1
    chunk.sent += 1
    _send(g, s, node.rank, dst, chunk.tag, size, _NOBODY, _ZERO)
    _post(g, s, src, node.rank, chunk.tag, size, _FOR_TOKEN, at)


@lean
def _phase_over(g: Given, s: State, at: int) -> None:
    chunk = s.chunks[at]
    old = chunk.queue
    if chunk.phase < chunk.last_phase:
        chunk.phase += 1
        _enqueue(s, at)
        new = chunk.queue
        s.queues[old].running -= 1
        _fill(g, s, old)
        _fill(g, s, new)
        return
    index = chunk.node
    rank = g.nodes[index].rank
    _give(s.chunks, s.scalars, FREE_CHUNK, at)
    s.ranks[rank].left -= 1
    if s.ranks[rank].left == 0:
        _complete(g, s, index, _NO)
    s.queues[old].running -= 1
    _fill(g, s, old)


@inlined
def _start_tree(g: Given, s: State, at: int) -> None:
    chunk = s.chunks[at]
    phase = g.phases[chunk.phase]
    node = g.nodes[chunk.node]
    # The tree stands over all places but the root's: the last, or the first.
    root, first = (0, 1) if chunk.role == 1 else (phase.n - 1, 0)
    top = first + (phase.n - 1) // 2
    chunk.left = chunk.right = -1
    if chunk.place == root:
        chunk.role = -1
        chunk.left = _peer(g, chunk, phase, node, top - chunk.place)
        _post(g, s, chunk.left, node.rank, chunk.tag, phase.data, _FOR_CHILD, at)
        return
    inside = chunk.place - first + 1  # in order, from 1
    low = inside & -inside
    above = (inside - low) | (2 * low)
    parent = root if chunk.place == top else first + above - 1
    chunk.parent = _peer(g, chunk, phase, node, parent - chunk.place)
    chunk.role = 0 if low == 1 else 1
    if low == 1:
        _wait(g, s, at, _TREE_UP)
        return
    chunk.left = _peer(g, chunk, phase, node, -(low >> 1))
    chunk.right = _peer(g, chunk, phase, node, low >> 1)
    _post(g, s, chunk.left, node.rank, chunk.tag, phase.data, _FOR_CHILD, at)
    _post(g, s, chunk.right, node.rank, chunk.tag, phase.data, _FOR_CHILD, at)


@inlined
def _tree_ready(g: Given, s: State, at: int, token: int) -> None:
    chunk = s.chunks[at]
    rank, size = g.nodes[chunk.node].rank, g.phases[chunk.phase].data
    up = token == _TREE_UP
    if token == _TREE_CHILD:
        chunk.made += 1
        if chunk.role < 0:
            _send(g, s, rank, chunk.left, chunk.tag, size, _NOBODY, _ZERO)
            _phase_over(g, s, at)
            return
        up = chunk.made == 2
    if up:
        _send(g, s, rank, chunk.parent, chunk.tag, size, _NOBODY, _ZERO)
        _post(g, s, chunk.parent, rank, chunk.tag, size, _FOR_PARENT, at)
    elif token == _TREE_END:
        _phase_over(g, s, at)
    elif token == _TREE_DOWN:
        _send(g, s, rank, chunk.left, chunk.tag, size, _NOBODY, _ZERO)
        _send(g, s, rank, chunk.right, chunk.tag, size, _NOBODY, _ZERO)
        _phase_over(g, s, at)


# Collectives by recurrences ------------------------------------------------------------------


@inlined
def _join(g: Given, s: State, index: int, number: int) -> None:
    """Enter a collective, which is due when its last member enters."""
    node = g.nodes[index]
    plan = g.plans[node.plan]
    s.ranks[node.rank].entered = s.scalars[_NOW]
    base = _ZERO if plan.small else _base(g, node.rank, plan.coordinates)
    slot = _mixed(number, node.plan * g.ranks + base) & (len(s.join_table) - 1)
    before, at = -1, s.join_table[slot]
    while at >= 0:
        join = s.joins[at]
        if join.plan == node.plan and join.base == base and join.number == number:
            break
        before, at = at, join.next
    if at < 0:
        at = _take(s.joins, s.scalars, FREE_JOIN)
        join = s.joins[at]
        join.plan = node.plan
        join.base = base
        join.number = number
        join.count = 0
        join.next = s.join_table[slot]
        s.join_table[slot] = at
        before = -1
    s.joins[at].count += 1
    if s.joins[at].count < plan.members:
        return
    if before < 0:
        s.join_table[slot] = s.joins[at].next
    else:
        s.joins[before].next = s.joins[at].next
    s.joins[at].next = s.scalars[DUE_JOIN]
    s.scalars[DUE_JOIN] = at


@inlined
def _base(g: Given, rank: int, coordinates: int) -> int:
    """Rank of which some coordinates are 0 and the others those of a rank."""
    base, stride = rank, _i(1)
    for dim in range(len(g.counts)):
        if coordinates >> dim & 1:
            base -= rank // stride % g.counts[dim] * stride
        stride *= g.counts[dim]
    return base


@part
def _recur(g: Given, s: State, plan: Record, base: int) -> None:
    """Find when a collective ends on each member, all of which have entered."""
    count, members, steps = plan.count, plan.members, plan.phases
    ranks = np.empty(members, np.int64)
    limit = min(g.queue_limit, count)
    arrival = np.empty((count, members), np.int64)
    # Of each queue the latest ends so far, as many as may run at once.
    latest = np.empty((len(g.counts), limit, members), np.int64)
    entered = np.zeros(len(g.counts), np.int64)
    start = np.empty(members, np.int64)
    end = np.empty(members, np.int64)
    lag = np.empty(members, np.int64)
    other = np.empty(members, np.int64)
    source = np.empty(members, np.int64)
    delay = np.empty(members, np.int64)
    before = np.empty(members, np.int64)
    over = np.empty(members, np.int64)
    since = np.empty(members, np.int64)
    for m in range(members):
        ranks[m] = base + g.members[plan.member + m]
        over[m] = -1
        for place in range(count):
            arrival[place, m] = s.ranks[ranks[m]].entered
    for step in range(steps):
        row = plan.phase + step
        dim = g.phases[row].dim
        if g.phases[row].algorithm == _RING:
            _find_sources(g, g.phases[row], ranks, source, delay)
        for place in range(count):
            for m in range(members):
                start[m] = arrival[place, m]
                if step > 0 and place > 0 and before[m] > start[m]:
                    s.scalars[_STATUS] = UNCERTAIN  # a chunk overtakes another
                    return
                before[m] = start[m]
                if entered[dim] >= limit:
                    free = latest[dim, 0, m]
                    for k in range(1, limit):
                        free = min(free, latest[dim, k, m])
                    start[m] = max(start[m], free)
            if g.phases[row].algorithm == _RING:
                _recur_ring(g.phases[row], source, delay, start, end, lag, other)
            else:
                _recur_phase(g, s, row, ranks, place, start, end, lag)
            for m in range(members):
                arrival[place, m] = end[m]
                if entered[dim] < limit:
                    latest[dim, entered[dim], m] = end[m]
                else:
                    least = 0
                    for k in range(1, limit):
                        if latest[dim, k, m] < latest[dim, least, m]:
                            least = k
                    latest[dim, least, m] = max(latest[dim, least, m], end[m])
            entered[dim] += 1
            if step == steps - 1:
                for m in range(members):
                    if end[m] > over[m]:
                        over[m], since[m] = end[m], end[m] - lag[m]
                    elif end[m] == over[m]:
                        since[m] = max(since[m], end[m] - lag[m])
    _count_trees(g, s, plan, ranks)
    for m in range(members):
        if over[m] <= s.scalars[_NOW]:
            s.scalars[_STATUS] = UNCERTAIN  # it ended before all had entered
            return
        at = _agenda(s, ranks[m], over[m])
        event = _new_event(s, _COLLECTIVE_ENDS, s.busy[ranks[m], COMM], _ZERO, since[m])
        if s.lists[at].last < 0:
            s.lists[at].first = event
            s.lists[at].last = event
        else:
            _act_before_end(s, at, event)


@inlined
def _count_trees(g: Given, s: State, plan: Record, ranks: Int) -> None:
    """Count the trees that a collective has built, one for each chunk and phase."""
    for step in range(plan.phases):
        phase = g.phases[plan.phase + step]
        if phase.algorithm == _TREE:
            for m in range(len(ranks)):
                s.trees[ranks[m], plan.comm_type, phase.entry] += plan.count


@inlined
def _recur_phase(
    g: Given, s: State, row: int, ranks: Int, place: int, start: Int, end: Int, lag: Int
) -> None:
    """Play a phase of a chunk on all its rings: its ends, and how long they were on an agenda."""
    phase = g.phases[row]
    if phase.algorithm == _HALVING:
        _recur_halving(g, row, ranks, start, end, lag)
    elif phase.algorithm == _DIRECT:
        first = np.empty(phase.n, np.int64)
        for m in range(len(ranks)):
            if m // phase.place_stride % phase.n == 0:
                for x in range(phase.n):
                    first[x] = m + x * phase.place_stride
                _recur_direct(g, s, row, ranks, first, start, end, lag)
    else:
        _recur_tree(g, s, row, ranks, place, start, end, lag)


@lean
def _find_sources(g: Given, phase: Record, ranks: Int, source: Int, delay: Int) -> None:
    """Find from which member each receives in a ring, and how long that takes."""
    sign = -1 if phase.backwards else 1
    for m in range(len(ranks)):
        x = m // phase.place_stride % phase.n
        source[m] = m + ((x - sign) % phase.n - x) * phase.place_stride
        delay[m] = _delay(g, ranks[source[m]], ranks[m], phase.bytes)


@part
def _recur_ring(
    phase: Record, source: Int, delay: Int, start: Int, end: Int, lag: Int, other: Int
) -> None:
    """Play a ring; `lag` and `other` are room for the times of two steps."""
    members = len(start)
    reduces = phase.comm_type == _ALL_REDUCE or phase.comm_type == _REDUCE_SCATTER
    sent, ready = lag, other
    for m in range(members):
        sent[m] = start[m] + phase.endpoint
    charged = _NO
    for k in range(1, phase.sends + 1):
        charged = _YES if reduces and k < phase.n else _NO
        cost = phase.endpoint + (phase.charge if charged else 0)
        for m in range(members):
            ready[m] = max(sent[m], sent[source[m]] + delay[m]) + cost
        sent, ready = ready, sent
    for m in range(members):
        end[m] = sent[m]
    for m in range(members):
        lag[m] = phase.charge if charged else phase.endpoint


@part
def _recur_halving(g: Given, row: int, ranks: Int, start: Int, end: Int, lag: Int) -> None:
    phase = g.phases[row]
    members = len(ranks)
    sent = np.empty(members, np.int64)
    ready = np.empty(members, np.int64)
    for m in range(members):
        sent[m] = start[m] + phase.endpoint
    for k in range(phase.sends):
        step = g.steps[phase.steps + k]
        cost = phase.endpoint
        if k + 1 < phase.sends:
            cost += max(_ZERO, g.steps[phase.steps + k + 1].charge)
        for m in range(members):
            x = m // phase.place_stride % phase.n
            by = step.distance if x // step.distance % 2 == 0 else -step.distance
            other = m + by * phase.place_stride
            arrives = sent[other] + _delay(g, ranks[other], ranks[m], step.bytes)
            ready[m] = max(sent[m], arrives) + cost
        sent, ready = ready, sent
    for m in range(members):
        end[m] = sent[m]
        lag[m] = phase.endpoint


@part
def _recur_direct(
    g: Given, s: State, row: int, ranks: Int, ring: Int, start: Int, end: Int, lag: Int
) -> None:
    """Play a direct exchange with all messages in flight, on one ring."""
    phase = g.phases[row]
    n, sign = phase.n, -1 if phase.backwards else 1
    others = n - 1
    reduces = phase.comm_type == _ALL_REDUCE or phase.comm_type == _REDUCE_SCATTER
    cost = phase.endpoint + (phase.charge if reduces else 0)
    twice = phase.comm_type == _ALL_REDUCE
    received = np.empty(others, np.int64)
    again = np.empty((n, others), np.int64)  # when the messages of the second half leave
    last = np.empty(n, np.int64)
    for x in range(n):
        m = ring[x]
        own = start[m] + phase.endpoint
        latest = _ZERO
        for j in range(others):
            other = ring[(x - sign * (1 + j)) % n]
            arrives = start[other] + phase.endpoint
            arrives += _delay(g, ranks[other], ranks[m], phase.bytes)
            received[j] = max(own, arrives)
            latest = max(latest, received[j])
        if not twice:
            end[m] = latest + cost
            lag[m] = phase.charge if reduces else phase.endpoint
            continue
        received.sort()
        # No message of the second half leaves before all of the first half are received.
        barrier = latest
        sent = 0
        for i in range(others):
            at = received[i] + cost
            if at == barrier:
                s.scalars[_STATUS] = UNCERTAIN
            if at > barrier:
                for _ in range(min(others, i + 1 - sent)):
                    again[x, sent] = at
                    sent += 1
        last[x] = barrier + cost
    if not twice:
        return
    charged = phase.period > 2 * others
    cost = phase.endpoint + (phase.charge if charged else 0)
    for x in range(n):
        m = ring[x]
        latest = _ZERO
        for j in range(others):
            y = (x - sign * (1 + j)) % n
            arrives = again[y, j] + _delay(g, ranks[ring[y]], ranks[m], phase.bytes)
            arrives = max(again[x, j], arrives)
            latest = max(latest, arrives)
            if arrives + cost <= last[x]:
                s.scalars[_STATUS] = UNCERTAIN  # it may let a message leave early
        end[m] = latest + cost
        lag[m] = phase.charge if charged else phase.endpoint


@inlined
def _recur_tree(
    g: Given, s: State, row: int, ranks: Int, place: int, start: Int, end: Int, lag: Int
) -> None:
    phase = g.phases[row]
    n, size, e = phase.n, phase.data, phase.endpoint
    cost = e + phase.charge
    up = np.empty(n + 1, np.int64)
    plan = g.plans[g.nodes[s.busy[ranks[0], COMM]].plan]
    # Trees of this entry that a chunk builds, and those before this one.
    each = before = 0
    for step in range(plan.phases):
        other = g.phases[plan.phase + step]
        if other.algorithm == _TREE and other.entry == phase.entry:
            each += 1
            before += plan.phase + step < row
    for m in range(len(ranks)):
        built = s.trees[ranks[m], plan.comm_type, phase.entry]
        if built != s.trees[ranks[0], plan.comm_type, phase.entry]:
            s.scalars[_STATUS] = UNCERTAIN
            return
    turn = s.trees[ranks[0], plan.comm_type, phase.entry] + place * each + before
    root, first = (0, 1) if turn & 1 else (n - 1, 0)
    # Places in the tree, in order, from 1; member of place y is at + (first + y - 1) * stride.
    stride = phase.place_stride
    for m in range(len(ranks)):
        if m // stride % n:
            continue
        low = 1
        while low < n:
            for y in range(low, n, 2 * low):
                v = m + (first + y - 1) * stride
                up[y] = start[v] + e
                if low > 1:
                    up[y] = 0
                    for child in (y - low // 2, y + low // 2):
                        w = m + (first + child - 1) * stride
                        arrives = up[child] + _delay(g, ranks[w], ranks[v], size)
                        up[y] = max(up[y], max(start[v], arrives) + cost)
            low *= 2
        top = n // 2
        v, w = m + root * stride, m + (first + top - 1) * stride
        end[v] = max(start[v], up[top] + _delay(g, ranks[w], ranks[v], size)) + cost
        lag[v] = phase.charge
        low = n // 2
        while low >= 1:
            for y in range(low, n, 2 * low):
                v = m + (first + y - 1) * stride
                above = (y - low) | (2 * low)
                w = m + (root if y == top else first + above - 1) * stride
                sent = end[w]
                arrives = max(up[y], sent + _delay(g, ranks[w], ranks[v], size))
                end[v] = arrives + (e if low == 1 else cost)
                lag[v] = e if low == 1 else phase.charge
            low //= 2


# The loop ------------------------------------------------------------------------------------


@inlined
def _run_agenda(g: Given, s: State, at: int) -> None:
    while True:
        event = s.lists[at].first
        if event < 0 or s.scalars[_STATUS] != DONE:
            break
        s.lists[at].first = s.events[event].next
        if s.lists[at].first < 0:
            s.lists[at].last = -1
        kind, subject, token = s.events[event].kind, s.events[event].subject, s.events[event].token
        _give(s.events, s.scalars, FREE_EVENT, event)
        if kind == _WAITED:
            _waited(g, s, subject, token)
        elif kind == _REDUCED:
            _token_ready(g, s, subject, token)
        elif kind == _POOL_NEXT:
            _serve_next(g, s, subject)
        else:
            _complete(g, s, subject, _NO)
    _drop_list(s, at)


@inlined
def _where(g: Given, s: State) -> None:
    """Find whose is the first entry at time 0."""
    entry = s.events[s.lists[_find_list(s, _ZERO, _EVERYBODY)].first]
    node = -1
    if entry.kind == _AGENDA:
        action = s.events[s.lists[entry.subject].first]
        node = action.subject
        if action.kind == _WAITED:
            node = s.chunks[action.subject].node
        s.scalars[WHERE_RANK] = s.lists[entry.subject].rank
    elif entry.kind == _LINK_FREE:
        # The link is the sender's own, or one of a switch that the sender's message took.
        s.scalars[WHERE_RANK] = entry.subject % g.ranks
        if g.topology[0] == _CONNECTED:
            s.scalars[WHERE_RANK] = entry.subject // g.ranks
    else:
        message = s.messages[entry.subject]
        s.scalars[WHERE_RANK] = message.src
        if message.kind == _FOR_NODE:
            node = message.subject
    s.scalars[WHERE_NODE] = node


@compiled
def run(g: Given, s: State) -> int:
    """Play a workload from time 0 until nothing is left to happen.

    Returns
    -------
    int
        How it ended: `DONE`, whether or not all ranks finished, or another of those constants.
    """
    for node in range(len(g.nodes)):
        if s.pending[node] == 0:
            _make_ready(g, s, node)
    for rank in range(g.ranks):
        _issue_ready(g, s, rank, _NO)
    if s.scalars[_STATUS] == DONE and s.scalars[_TIMES] > 0 and s.times[0] == 0:
        _where(g, s)
        return AT_ZERO
    while s.scalars[_STATUS] == DONE:
        at = s.scalars[DUE_JOIN]
        while at >= 0:
            _recur(g, s, g.plans[s.joins[at].plan], s.joins[at].base)
            after = s.joins[at].next
            _give(s.joins, s.scalars, FREE_JOIN, at)
            at = after
        s.scalars[DUE_JOIN] = -1
        if s.scalars[_TIMES] == 0:
            break
        now = _pop_time(s)
        # Whatever a single thing takes is shorter than what is left above (see `parity`).
        if now >= CLOCK_END:
            return OVERFLOW
        s.scalars[_NOW] = now
        entries = _find_list(s, now, _EVERYBODY)
        while s.scalars[_STATUS] == DONE:
            event = s.lists[entries].first
            if event < 0:
                break
            s.lists[entries].first = s.events[event].next
            if s.lists[entries].first < 0:
                s.lists[entries].last = -1
            kind, subject = s.events[event].kind, s.events[event].subject
            _give(s.events, s.scalars, FREE_EVENT, event)
            if kind == _AGENDA:
                _run_agenda(g, s, subject)
            elif kind == _HOP and s.messages[subject].device != s.messages[subject].dst:
                _onto_link(g, s, subject)
            elif kind in (_ARRIVE, _HOP):
                _arrive(g, s, subject)
            elif kind == _LINK_FREE:
                _free_link(g, s, subject)
            else:
                _received(g, s, subject)
        _drop_list(s, entries)
    return s.scalars[_STATUS]


@compiled
def reachable(pending: Int, next_ptr: Int, next_node: Int) -> NDArray[np.bool_]:
    """Find the nodes that become ready if all that are ready complete.

    Parameters
    ----------
    pending : int64, shape (N,)
        Number of dependencies.
    next_ptr, next_node : int64
        Dependants, as in `Given`.

    Returns
    -------
    bool, shape (N,)
    """
    left = pending.copy()
    seen = left == 0
    stack = np.empty(len(left), np.int64)
    count = 0
    for node in range(len(left)):
        if seen[node]:
            stack[count] = node
            count += 1
    while count > 0:
        count -= 1
        node = stack[count]
        for at in range(next_ptr[node], next_ptr[node + 1]):
            dependant = next_node[at]
            left[dependant] -= 1
            if left[dependant] == 0:
                seen[dependant] = True
                stack[count] = dependant
                count += 1
    return seen
