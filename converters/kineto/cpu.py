"""CPU jobs: host operations are the compute, and threads that serve a queue communicate.

The main thread is cut at every operation boundary where nothing nests; its operations are
compute, what lies between them is the interpreter. Each ``gloo:*`` event is an operation of a
queue that several threads serve first come first served; it was enqueued by the ``c10d::*``
operation before it. The main thread waits for a collective where it falls silent until just
after the collective's end; a wait that was seen at one place in one step or rank is there in the
others too, even if it did not have to wait. An operation that computes without calling others is
as silent, and may end with a collective by chance: what is a wait must have waited, and for no
longer, wherever the collective was not done yet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Collective, Flavour, Kind, LaneKind
from .events import Category
from .host import thread_number
from .names import collective_from_op

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..nodes import RankNodes
    from ..windows import Windows
    from .comms import Comms
    from .events import KinetoTrace

#: A silence ends because of a collective if it ends within this of it, or within a tenth of the
#: silence (a thread that shares its core wakes late).
WAKE_NS = 200_000
#: A collective may be done before its event ends, if its thread lost the processor to the one it
#: woke: a silence of this length may end up to a tenth of the event before it.
EARLY_NS = 200_000
#: Shorter silences before a collective's end are not waits, unless they end with it.
SILENCE_NS = 20_000
WITH_NS = 1_000
#: So many silences say whether they end by themselves or with a collective.
STEADY_SEEN = 4


@dataclass(frozen=True)
class Wait:
    """A place where the main thread waits for a collective.

    Attributes
    ----------
    step : int
        Step of the main thread.
    place : int
        How many events the main thread has begun in this step when it goes on.
    name : str
        The event that it goes on with.
    ended : int
        How many events have ended there since the last one began.
    op : int
        Index of the operation waited for.
    begin_ns, resume_ns : int
        The silence; equal where nothing had to be waited for.
    seen : bool
        Whether the silence was seen (else taken from another step or rank).
    """

    step: int
    place: int
    name: str
    ended: int
    op: int
    begin_ns: int
    resume_ns: int
    seen: bool


@dataclass
class MainThread:
    """What the main thread of a CPU job did within the chosen steps.

    Attributes
    ----------
    events : list of int
        Its operations, by start.
    steps : list of int
        Step of each.
    places : list of int
        Position of each within its step.
    enqueued : list of int
        Per communication operation, the event that enqueued it, or -1.
    done_ns : list of int
        Per communication operation, when it was done: the end of its event, or earlier where
        the main thread went on before.
    numbers : list of tuple
        Per communication operation: step and number within the step.
    silences : dict of (int, int, str, int) to (int, int)
        Begin and end of each silence, by step, place, name and number of events ended there.
    """

    events: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    enqueued: list[int] = field(default_factory=list)
    done_ns: list[int] = field(default_factory=list)
    numbers: list[tuple[int, int]] = field(default_factory=list)
    silences: dict[tuple[int, int, str, int], tuple[int, int]] = field(default_factory=dict)


def read_main(trace: KinetoTrace, comms: Comms, windows: Windows) -> MainThread:
    """Collect the main thread's operations and pair collectives with what enqueued them.

    Parameters
    ----------
    trace, comms, windows
        The rank's events, communication and chosen steps. Operations that were enqueued outside
        the steps are taken out of `comms`.
    """
    main = MainThread()
    begin, ends = windows.begin_ns[0], np.array(windows.end_ns, dtype=np.int64)
    rows = np.flatnonzero(
        (trace.thread == windows.thread)
        & (trace.category == int(Category.CPU_OP))
        & (trace.start_ns >= begin)
        & (trace.start_ns < ends[-1])
    )
    main.events = rows.tolist()
    main.steps = np.searchsorted(ends, trace.start_ns[rows], side="right").tolist()
    seen: Counter[int] = Counter()
    for step in main.steps:
        main.places.append(seen[step])
        seen[step] += 1
    enqueuers: dict[Collective, list[int]] = defaultdict(list)
    for event in main.events:
        name = trace.strings[trace.name[event]]
        if name.startswith("c10d::"):
            coll = collective_from_op(name.removeprefix("c10d::"))
            if coll is not Collective.NONE:
                enqueuers[coll].append(event)
    kept, numbers = [], Counter[int]()
    used: set[int] = set()
    for op in sorted(comms.ops, key=lambda o: o.order):
        options = enqueuers[op.coll]
        at = bisect_right([int(trace.start_ns[e]) for e in options], op.order) - 1
        # First come first served: the earliest call not yet paired with an operation.
        free = [e for e in options[: at + 1] if e not in used]
        by = free[0] if free else -1
        when = int(trace.start_ns[by]) if by >= 0 else op.order
        if not begin <= when < int(ends[-1]):
            continue
        used.add(by)
        step = min(int(np.searchsorted(ends, when, side="right")), len(ends) - 1)
        kept.append(op)
        main.enqueued.append(by)
        main.done_ns.append(int(trace.start_ns[op.event] + trace.dur_ns[op.event]))
        main.numbers.append((step, numbers[step]))
        numbers[step] += 1
    comms.ops = kept
    return main


# What happens at a boundary; at one moment operations end before others begin.
_ENDS, _BEGINS, _PASSES = range(3)


def _silences(trace: KinetoTrace, main: MainThread, windows: Windows) -> list[tuple[int, int, int]]:
    """Stretches without any event boundary: (begin, end, ends since an event last began)."""
    boundaries: list[tuple[int, int, int]] = []
    has_child: set[int] = set()
    stack: list[int] = []
    for event in main.events:
        start = int(trace.start_ns[event])
        while stack and int(trace.start_ns[stack[-1]] + trace.dur_ns[stack[-1]]) <= start:
            stack.pop()
        if stack:
            has_child.add(stack[-1])
        stack.append(event)
        if trace.dur_ns[event]:
            boundaries.append((start, _BEGINS, event))
            boundaries.append((start + int(trace.dur_ns[event]), _ENDS, event))
        else:
            boundaries.append((start, _PASSES, event))
    boundaries.sort(key=lambda b: (b[0], b[1]))
    found = []
    open_events: list[int] = []
    previous = windows.begin_ns[0]
    ended = 0
    for time, what, event in [*boundaries, (windows.end_ns[-1], _PASSES, -1)]:
        if time > previous:
            inner = open_events[-1] if open_events else -1
            # A leaf operation computes; an open one with others inside it may be waiting.
            if inner < 0 or inner in has_child:
                found.append((previous, time, ended))
        previous = max(previous, time)
        ended = ended + 1 if what == _ENDS else 0
        if what == _BEGINS:
            open_events.append(event)
        elif what == _ENDS:
            open_events.remove(event)
    return found


def seen_waits(trace: KinetoTrace, comms: Comms, main: MainThread, windows: Windows) -> list[Wait]:
    """Waits that show as silences of the main thread.

    Where the main thread goes on shortly before the event of what it waits for ends, the
    operation was done then: `main.done_ns` is set back.
    """
    ends = sorted((done, i) for i, done in enumerate(main.done_ns))
    times = [t for t, _ in ends]
    silences = _silences(trace, main, windows)
    found: dict[int, int] = {}
    unexplained = []
    for number, (begin, resume, _) in enumerate(silences):
        at = bisect_right(times, resume) - 1
        done, op = ends[at] if at >= 0 else (begin, -1)
        together = resume - done <= WITH_NS if done - begin < SILENCE_NS else True
        prompt = _prompt(begin, done, resume)
        if done > begin and together and prompt and _enqueued_before(trace, main, op, resume):
            found[number] = op
        elif resume - begin >= EARLY_NS:
            unexplained.append(number)
    waited = set(found.values())
    for number in unexplained:
        begin, resume, _ = silences[number]
        for op, done in enumerate(main.done_ns):
            start = int(trace.start_ns[comms.ops[op].event])
            running = start < resume < done and _early(start, done, resume)
            if op not in waited and running and _enqueued_before(trace, main, op, begin + 1):
                found[number] = op
                waited.add(op)
                main.done_ns[op] = resume
                break
    starts = [int(trace.start_ns[e]) for e in main.events]
    waits = []
    for number, (begin, resume, ended) in enumerate(silences):
        index = bisect_left(starts, resume)
        step = min(int(np.searchsorted(windows.end_ns, resume)), len(windows.end_ns) - 1)
        inside = index < len(main.events) and main.steps[index] == step
        place = main.places[index] if inside else -1
        name = trace.strings[trace.name[main.events[index]]] if inside else "step end"
        main.silences[step, place, name, ended] = (begin, resume)
        if number in found:
            op = found[number]
            waits.append(Wait(step, place, name, ended, op, begin, resume, seen=True))
    return waits


def _prompt(begin: int, done: int, resume: int) -> bool:
    """Whether a silence that ends after a collective ends because of it."""
    return resume - done <= max(WAKE_NS, (resume - begin) // 10)


def _early(start: int, done: int, resume: int) -> bool:
    """Whether a silence that ends before a collective's event may end because of it."""
    return done - resume <= max(WAKE_NS, (done - start) // 10)


def keep_consistent(
    traces: list[KinetoTrace],
    comms: list[Comms],
    mains: list[MainThread],
    waits: list[list[Wait]],
) -> tuple[list[list[Wait]], int]:
    """Leave out silences that ended with a collective by chance.

    A place waits for a collective only if, on all ranks and in all steps, it goes on when that is
    done wherever it got there before. Where most of them went on before or much later, it does
    not, and `main.done_ns` is what it was.

    Returns
    -------
    waits : list of list of Wait
        What is left, per rank.
    dropped : int
        How many are not.
    """
    verdicts: dict[tuple[int, str, int, int], bool] = {}
    out, dropped = [], 0
    for main, mine in zip(mains, waits, strict=True):
        kept = []
        for wait in mine:
            key = wait.place, wait.name, wait.ended, main.numbers[wait.op][1]
            if key not in verdicts:
                verdicts[key] = _holds(traces, comms, mains, *key)
            if verdicts[key]:
                kept.append(wait)
        out.append(kept)
        dropped += len(mine) - len(kept)
    for trace, ours, main, kept in zip(traces, comms, mains, out, strict=True):
        believed = {wait.op for wait in kept}
        for op, operation in enumerate(ours.ops):
            if op not in believed:
                end = trace.start_ns[operation.event] + trace.dur_ns[operation.event]
                main.done_ns[op] = int(end)
    return out, dropped


def _holds(
    traces: list[KinetoTrace],
    comms: list[Comms],
    mains: list[MainThread],
    place: int,
    name: str,
    ended: int,
    number: int,
) -> bool:
    """Whether a place goes on when a collective is done more often than not.

    A wait ends at a time after the collective, a computation at a time after its own begin:
    where it shows, the steadier of the two tells them apart.
    """
    silent: list[tuple[int, int, int, int]] = []
    for trace, ours, main in zip(traces, comms, mains, strict=True):
        for op, (step, its_number) in enumerate(main.numbers):
            silence = main.silences.get((step, place, name, ended))
            if its_number == number and silence is not None:
                start = int(trace.start_ns[ours.ops[op].event])
                done = start + int(trace.dur_ns[ours.ops[op].event])
                silent.append((*silence, start, done))
    met = [s for s in silent if s[0] < s[3]]
    fitting = [
        (begin, resume)
        for begin, resume, start, done in met
        if (_prompt(begin, done, resume) if resume >= done else _early(start, done, resume))
    ]
    if len(met) >= STEADY_SEEN:
        alone = np.array([resume - begin for begin, resume, _, _ in met])
        after = np.array([resume - done for _, resume, _, done in met])
        if _spread(after) > _spread(alone):
            return False
    usual = max(SILENCE_NS, int(np.median([b - a for a, b in fitting] or [0])) // 2)
    needless = sum(begin >= done and resume - begin > usual for begin, resume, _, done in silent)
    return len(fitting) > len(met) - len(fitting) + needless


def _spread(values: NDArray[np.int64]) -> float:
    """Median distance from the median."""
    return float(np.median(np.abs(values - np.median(values))))


def _enqueued_before(trace: KinetoTrace, main: MainThread, op: int, time_ns: int) -> bool:
    by = main.enqueued[op]
    return by < 0 or int(trace.start_ns[by]) < time_ns


def complete_waits(
    traces: list[KinetoTrace],
    mains: list[MainThread],
    windows: list[Windows],
    waits: list[list[Wait]],
) -> tuple[list[list[Wait]], int, int]:
    """Add the waits that did not have to wait: seen elsewhere, or in order, or at the step's end.

    Returns
    -------
    waits : list of list of Wait
        All waits of each rank, by time.
    elsewhere, assumed : int
        Waits added because another step or rank has them, and those put before the next wait of
        the rank or at the step's end.
    """
    votes: dict[int, Counter[tuple[int, str]]] = defaultdict(Counter)
    for r, mine in enumerate(waits):
        for wait in mine:
            votes[mains[r].numbers[wait.op][1]][wait.place, wait.name] += 1
    elsewhere = assumed = 0
    out = []
    for r, mine in enumerate(waits):
        have = {wait.op for wait in mine}
        main, trace = mains[r], traces[r]
        index = {(s, p): i for i, (s, p) in enumerate(zip(main.steps, main.places, strict=True))}
        added = list(mine)
        for op, (step, number) in enumerate(main.numbers):
            if op in have:
                continue
            done = main.done_ns[op]
            placed = None
            for (place, name), _ in votes[number].most_common():
                at = index.get((step, place))
                if at is None or trace.strings[trace.name[main.events[at]]] != name:
                    continue
                time = int(trace.start_ns[main.events[at]])
                if time >= done:
                    placed = Wait(step, place, name, 0, op, time, time, seen=False)
                    elsewhere += 1
                    break
            if placed is None:
                # Frameworks wait in the order of issue: no later than for the next one seen.
                later = [
                    w.begin_ns
                    for w in mine
                    if w.begin_ns >= done and main.numbers[w.op] > (step, number)
                ]
                time = min([*later, windows[r].end_ns[step]])
                if time >= done:
                    placed = Wait(step, -1, "in order", 0, op, time, time, seen=False)
                    assumed += 1
            if placed is not None:
                added.append(placed)
        out.append(sorted(added, key=lambda w: (w.resume_ns, w.begin_ns)))
    return out, elsewhere, assumed


class _MainLane:
    """The main thread while it is being cut into nodes."""

    def __init__(self, nodes: RankNodes, trace: KinetoTrace, windows: Windows) -> None:
        self.nodes, self.trace = nodes, trace
        self.lane = nodes.add_lane(LaneKind.HOST, thread_number(trace, windows.thread))
        self.cursor = windows.begin_ns[0]
        self.last = -1
        self.step = 0
        #: Operations that have begun and not ended, outermost first.
        self.open: list[int] = []

    def add(self, start: int, end: int, flavour: Flavour, name: str) -> int:
        """Add the next node of the lane and return it."""
        node = self.nodes.add(start, end, flavour, self.lane, name, self.step)
        if self.last >= 0:
            self.nodes.after(node, self.last, "host order")
        self.cursor, self.last = end, node
        return node

    def advance(self, time_ns: int) -> None:
        """Cover the thread up to a moment with the innermost operation, or the interpreter."""
        if self.cursor < time_ns:
            if self.open:
                name = self.trace.strings[self.trace.name[self.open[-1]]]
                self.add(self.cursor, time_ns, Flavour.COMPUTE, name)
            else:
                self.add(self.cursor, time_ns, Flavour.HOST, "interpreter")

    def begin_step(self, time_ns: int, step: int) -> None:
        """Move on to a step."""
        self.advance(time_ns)
        self.step = step

    def end_step(self, time_ns: int, step: int) -> None:
        """Mark where the annotation of a step ends."""
        self.advance(time_ns)
        at = max(time_ns, self.cursor)
        marker = self.nodes.add(at, at, Flavour.GAP, self.lane, "step end", step)
        if self.last >= 0:
            self.nodes.after(marker, self.last, "host order")
        self.nodes.markers.append(marker)

    def wait(self, wait: Wait, comm: int) -> None:
        """Wait for a collective: what follows starts when it has ended."""
        self.advance(wait.begin_ns)
        start = max(self.cursor, self.nodes.end[comm])
        node = self.add(start, max(wait.resume_ns, start), Flavour.HOST, "wake-up")
        evidence = "seen as silence" if wait.seen else "seen elsewhere or assumed"
        self.nodes.after(node, comm, f"waits for collectives: {evidence}")

    def begin_operation(self, event: int, comm: int | None) -> None:
        """Begin an operation, which may enqueue a collective."""
        start = int(self.trace.start_ns[event])
        end = start + int(self.trace.dur_ns[event])
        self.advance(start)
        self.open.append(event)
        if comm is not None:
            # The call enqueues somewhere inside itself, before the queue can have begun it.
            self.advance(max(start, min(end, self.nodes.start[comm])))
            if self.last >= 0:
                self.nodes.after(comm, self.last, "enqueued by the main thread")

    def end_operation(self, event: int) -> None:
        """End an operation."""
        self.advance(int(self.trace.start_ns[event] + self.trace.dur_ns[event]))
        self.open.remove(event)


def add_cpu_job(
    nodes: RankNodes,
    trace: KinetoTrace,
    comms: Comms,
    main: MainThread,
    windows: Windows,
    waits: list[Wait],
) -> None:
    """Add the nodes of a CPU job's rank: the `host` dependency model.

    Parameters
    ----------
    nodes : RankNodes
        Nodes of the rank, extended.
    trace, comms, main, windows
        The rank's events, communication, main thread and chosen steps.
    waits : list of Wait
        Where the main thread waits for which operation.
    """
    thread = _MainLane(nodes, trace, windows)
    comm_nodes = _add_queues(nodes, trace, comms, main)
    enqueues = {event: comm_nodes[i] for i, event in enumerate(main.enqueued) if event >= 0}
    # In order of time and, at one moment, of sense.
    moments: list[tuple[int, int, Callable[[], None]]] = []
    for event in main.events:
        action = partial(thread.begin_operation, event, enqueues.get(event))
        moments.append((int(trace.start_ns[event]), 4, action))
    # At one moment the innermost operation, which began last, ends first; one without a duration
    # ends after it has begun.
    for event in reversed(main.events):
        end = int(trace.start_ns[event] + trace.dur_ns[event])
        turn = 2 if trace.dur_ns[event] else 4
        moments.append((end, turn, partial(thread.end_operation, event)))
    moments += [(w.begin_ns, 3, partial(thread.wait, w, comm_nodes[w.op])) for w in waits]
    for k, (begin, end) in enumerate(zip(windows.begin_ns, windows.end_ns, strict=True)):
        moments.append((begin, 1, partial(thread.begin_step, begin, k)))
        moments.append((end, 5, partial(thread.end_step, end, k)))
    moments.sort(key=lambda m: (m[0], m[1]))
    for _, _, happen in moments:
        happen()


def _add_queues(nodes: RankNodes, trace: KinetoTrace, comms: Comms, main: MainThread) -> list[int]:
    """Add the communication, one queue a group, and return the node of each operation."""
    queues: dict[str, list[int]] = defaultdict(list)
    for i, op in enumerate(comms.ops):
        queues[op.group.name].append(i)
    lane_of: dict[int, int] = {}
    for mine in queues.values():
        threads = sorted({int(trace.thread[comms.ops[i].event]) for i in mine})
        lane = nodes.add_lane(LaneKind.QUEUE, thread_number(trace, threads[0]), len(threads))
        lane_of.update(dict.fromkeys(mine, lane))
    added = []
    for i, op in enumerate(comms.ops):
        start = int(trace.start_ns[op.event])
        kind = Kind.COMM_COLL
        if op.coll is Collective.SEND_RECV:
            kind = Kind.SEND if op.sends else Kind.RECV
        added.append(
            nodes.add(
                start,
                main.done_ns[i],
                Flavour.COMM,
                lane_of[i],
                trace.strings[trace.name[op.event]],
                main.numbers[i][0],
                kind=kind,
                op=i,
            )
        )
    return added
