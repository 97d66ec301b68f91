"""Host threads of a device job: segments that launch, calls that block, work that changes hands.

A host lane is cut where a launch call begins, around each blocking call, at step boundaries and
where threads hand work to each other. Between cuts the main thread is busy: what no operation
covers is the interpreter. A blocking call is its own time after the later of its begin and the
end of what it waits for, so only the wait can shrink. The forward thread that calls backward()
sleeps while the autograd thread runs: seen as a gap on the one that contains all activity of the
other, or recorded as flows.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Flavour, LaneKind
from .events import Category
from .inference import BOUND_NS, CLOCK_NS
from .names import Call, blocks_until_copied

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..nodes import RankNodes
    from ..windows import Windows
    from .comms import Comms
    from .device import Device
    from .events import KinetoTrace
    from .waits import Waits

#: Idle time of a thread other than the main one up to which it is still at work between two
#: operations (the autograd engine picking its next node); beyond it, a gap.
BETWEEN_OPS_NS = 200_000
#: A sleep of the main thread shorter than this is never a hand-over.
HANDOVER_NS = 5_000
#: Share of another thread's activity during which the main thread may record operations of its
#: own and still count as asleep.
AWAKE_SHARE = 0.05
#: A launch blocks while the device has this many launches pending (CUDA: 1,022 seen on A100). A
#: trace in which no call met more pending launches than the second figure never filled the queue.
QUEUE_SHARE, QUEUE_SEEN = 0.95, 500
#: A launch call this long did not just hand its work over.
LONG_LAUNCH_NS = 50_000


@dataclass(frozen=True)
class Handover:
    """The main thread sleeps while others work for it."""

    begin_ns: int
    resume_ns: int
    #: Per thread: index, begin and end of its activity.
    workers: tuple[tuple[int, int, int], ...]
    recorded: bool


@dataclass
class _Thread:
    """A host lane while it is being cut into nodes: up to `cursor`, ending with node `last`."""

    lane: int
    cursor: int
    last: int = -1
    asleep_until: int = 0

    def wake(self, time_ns: int) -> None:
        """Begin a burst of activity: what lies before it is idle."""
        self.cursor = max(self.cursor, time_ns)


def busy_intervals(
    trace: KinetoTrace, thread: int, begin_ns: int, end_ns: int
) -> NDArray[np.int64]:
    """Union of the operations and runtime calls of a thread within a window, shape (B, 2)."""
    rows = np.flatnonzero(
        (trace.thread == thread)
        & np.isin(trace.category, [int(Category.CPU_OP), int(Category.RUNTIME)])
        & (trace.start_ns < end_ns)
        & (trace.start_ns + trace.dur_ns > begin_ns)
    )
    if not len(rows):
        return np.zeros((0, 2), dtype=np.int64)
    start = trace.start_ns[rows]
    reach = np.maximum.accumulate(start + trace.dur_ns[rows])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    heads = np.flatnonzero(first)
    tails = np.concatenate([heads[1:] - 1, [len(rows) - 1]])
    return np.stack([start[heads], reach[tails]], axis=1)


def find_handovers(
    main: NDArray[np.int64],
    others: dict[int, NDArray[np.int64]],
    flows: dict[int, list[int]],
    end_ns: int,
) -> list[Handover]:
    """Stretches in which the main thread sleeps while other threads are at work.

    Parameters
    ----------
    main : int64, shape (B, 2)
        Busy intervals of the main thread.
    others : dict of int to int64 array
        Busy intervals of the threads that work for it.
    flows : dict of int to list of int
        Times at which recorded flows end on each thread.
    end_ns : int
        End of the window.

    Returns
    -------
    list of Handover
        By time; they do not overlap.
    """
    found: list[tuple[int, int, int, int, int]] = []
    for thread, busy in others.items():
        for begin, end in _bursts(busy, main):
            # The few operations that a sleeping thread still records do not wake it.
            low = int(np.searchsorted(main[:, 0], begin, side="right"))
            high = int(np.searchsorted(main[:, 0], end, side="left"))
            awake = int((main[low:high, 1] - main[low:high, 0]).sum())
            if awake > AWAKE_SHARE * (end - begin):
                continue
            asleep = min(int(main[low - 1, 1]), begin) if low else begin
            resume = int(main[high, 0]) if high < len(main) else end_ns
            if resume - asleep >= HANDOVER_NS:
                found.append((asleep, resume, thread, begin, end))
    merged: list[list[tuple[int, int, int, int, int]]] = []
    reach = -1
    for row in sorted(found):
        if merged and row[0] < reach:
            merged[-1].append(row)
        else:
            merged.append([row])
        reach = max(reach, row[1])
    out = []
    for rows in merged:
        workers: dict[int, tuple[int, int]] = {}
        for _, _, thread, begin, end in rows:
            a, b = workers.get(thread, (begin, end))
            workers[thread] = (min(a, begin), max(b, end))
        recorded = any(
            bisect_left(flows.get(t, []), a) < bisect_left(flows.get(t, []), b + 1)
            for t, (a, b) in workers.items()
        )
        out.append(
            Handover(
                min(row[0] for row in rows),
                max(row[1] for row in rows),
                tuple((t, a, b) for t, (a, b) in sorted(workers.items())),
                recorded,
            )
        )
    return out


class _Builder:
    """Cuts the host threads of one rank into nodes, in the order things happened."""

    def __init__(
        self,
        nodes: RankNodes,
        trace: KinetoTrace,
        comms: Comms,
        windows: Windows,
        device: Device,
        waits: Waits,
    ) -> None:
        self.nodes, self.trace, self.windows = nodes, trace, windows
        self.device, self.waits = device, waits
        self.comm_events = {op.event for op in comms.ops}
        self.threads: dict[int, _Thread] = {}
        self.ends = np.array(windows.end_ns, dtype=np.int64)
        #: Device event whose end made room for each launch call.
        self.slot_of: dict[int, int] = {}

    def step(self, time_ns: int) -> int:
        """Step that a host moment belongs to."""
        at = int(np.searchsorted(self.ends, time_ns, side="left"))
        return min(at, len(self.ends) - 1)

    def advance(self, thread: _Thread, time_ns: int, name: str = "host") -> None:
        """End the running segment of a thread at a moment."""
        if time_ns <= thread.cursor:
            return
        node = self.nodes.add(
            thread.cursor, time_ns, Flavour.HOST, thread.lane, name, self.step(time_ns)
        )
        if thread.last >= 0:
            self.nodes.after(node, thread.last, "host order")
        thread.cursor, thread.last = time_ns, node

    def find_queue(self) -> None:
        """Find what each launch call had to wait for, if the launch queue was ever full."""
        trace, device = self.trace, self.device
        launched = sorted(device.call_of, key=lambda e: (int(trace.start_ns[device.call_of[e]]), e))
        if len(launched) <= QUEUE_SEEN:
            return
        events = np.array(launched, dtype=np.int64)
        calls = np.array([device.call_of[e] for e in launched], dtype=np.int64)
        done = np.sort(trace.start_ns[events] + trace.dur_ns[events])
        begun = trace.start_ns[calls]
        pending = np.arange(len(events)) - np.searchsorted(done, begun, side="right")
        depth = int(pending.max())
        long = trace.dur_ns[calls] >= LONG_LAUNCH_NS
        if depth < QUEUE_SEEN or not (long & (pending >= QUEUE_SHARE * depth)).any():
            return
        self.slot_of = dict(zip(calls[depth:].tolist(), launched[:-depth], strict=True))

    def take_slot(self, thread: _Thread, call: int) -> None:
        """Wait in a launch call for the queue to have room."""
        event = self.slot_of.get(call)
        if event is None or event not in self.device.nodes_of:
            return
        begin = int(self.trace.start_ns[call])
        end = begin + int(self.trace.dur_ns[call])
        nodes = self.nodes
        freed = max(nodes.end[n] for n in self.device.nodes_of[event])
        what = "host waits: full launch queue, inferred from pending launches"
        if freed > end:
            nodes.counts[f"{what}: contradicted by the measured times"] += 1
            return
        at = max(begin, freed)
        node = nodes.add(at, at, Flavour.HOST, thread.lane, "launch queue", self.step(at))
        if thread.last >= 0:
            nodes.after(node, thread.last, "host order")
        for on in self.device.nodes_of[event]:
            nodes.after(node, on, what)
        thread.cursor, thread.last = at, node

    def launch(self, thread: _Thread, call: int, events: list[int]) -> None:
        """Cut at a launch call and tie the device work to the segment that ends there."""
        self.advance(thread, int(self.trace.start_ns[call]))
        self.take_slot(thread, call)
        if thread.last < 0:
            return
        first_of_stream: set[int] = set()
        for event in events:
            stream = int(self.trace.stream[event])
            if stream in first_of_stream:  # the rest of a graph launch follows in stream order
                continue
            first_of_stream.add(stream)
            for node in self.device.nodes_of[event]:
                self.nodes.after(node, thread.last, "launches", self.device.launch_lag_ns)

    def block(self, thread: _Thread, begin: int, end: int, targets: list[int], what: str) -> None:
        """A blocking call: its own time starts when what it waits for has ended."""
        self.advance(thread, begin)
        nodes = self.nodes
        waited = [n for event in targets for n in self.device.nodes_of[event]]
        kept = []
        for node in waited:
            late = nodes.end[node] - end
            if late > CLOCK_NS:
                nodes.counts[f"{what}: contradicted by the measured times"] += 1
            else:
                kept.append((node, late > 0))
        own = max([begin] + [nodes.end[n] for n, late in kept if not late])
        if any(late for _, late in kept):
            own = end
        node = nodes.add(own, end, Flavour.HOST, thread.lane, "blocking call", self.step(end))
        if thread.last >= 0:
            nodes.after(node, thread.last, "host order")
        for on, late in kept:
            if late and nodes.start[on] <= own:
                nodes.overlapping(node, on, what)
            elif not late:
                nodes.after(node, on, what)
        thread.cursor, thread.last = end, node

    def sync_targets(self, call: int, kind: Call) -> tuple[list[int], str]:
        """Device events that a synchronising call waits for, and the evidence."""
        if call in self.waits.host:
            what = "host waits: inferred from calls and times"
            if self.waits.recorded:
                what = "host waits: recorded"
            elif call in self.waits.assumed_calls:
                what = "host waits: assumed"
            return self.waits.host[call], what
        if kind is Call.SYNC_DEVICE:
            begin = int(self.trace.start_ns[call])
            order = self.waits.order
            latest = [order.last_before(stream, begin) for stream in order.times]
            return [e for e in latest if e is not None], "host waits: synchronising calls"
        return [], ""

    def inferred_wait(self, begin: int, end: int) -> int | None:
        """Collective whose end is what a long stall of the host was waiting for."""
        best = None
        for stream in self.waits.order.times:
            event = self.waits.order.last_before(stream, begin)
            if event is None or event not in self.comm_events:
                continue
            done = int(self.trace.start_ns[event] + self.trace.dur_ns[event])
            if begin < done <= end and end - done <= BOUND_NS:
                best = event
        return best

    def build(self) -> None:
        """Add all host nodes and the step markers."""
        self.find_queue()
        trace, windows = self.trace, self.windows
        begin, end = windows.begin_ns[0], windows.end_ns[-1]
        by_call: dict[int, list[int]] = {}
        for event in sorted(self.device.nodes_of):
            call = self.device.call_of.get(event)
            if call is not None:
                by_call.setdefault(call, []).append(event)
        main = windows.thread
        active = {main} | {int(trace.thread[c]) for c in by_call if trace.start_ns[c] >= begin}
        busy = {t: busy_intervals(trace, t, begin, end) for t in sorted(active)}
        # What happens to the threads, in order of time and, at one moment, of sense: sleepers
        # wake and hand-overs happen before calls, and a step ends after what it contains.
        moments: list[tuple[int, int, Callable[[], None]]] = []
        for t, rows in busy.items():
            lane = self.nodes.add_lane(LaneKind.HOST, thread_number(trace, t))
            thread = self.threads[t] = _Thread(lane, begin)
            if t != main:
                for a, b in _bursts(rows, busy[main]):
                    moments.append((a, 0, partial(thread.wake, a)))
                    moments.append((b, 6, partial(self.advance, thread, b)))
        first = self.threads[main]
        workers = {t: rows for t, rows in busy.items() if t != main and len(rows)}
        for h in find_handovers(busy[main], workers, _flow_ends(trace), end):
            starts = min(a for _, a, _ in h.workers)
            ends = max(b for _, _, b in h.workers)
            moments.append((starts, 1, partial(self.hand_over, first, h)))
            moments.append((ends, 5, partial(self.join, first, h)))
        for k, (a, b) in enumerate(zip(windows.begin_ns, windows.end_ns, strict=True)):
            moments.append((a, 2, partial(self.advance, first, a)))
            moments.append((b, 4, partial(self.end_step, first, b, k)))
        for time, call, kind in self.waits.calls:
            at = self.threads.get(int(trace.thread[call]))
            if at is not None and begin <= time < end:
                action = partial(self.call, at, call, kind, by_call.get(call, []))
                moments.append((time, 3, action))
        moments.sort(key=lambda m: (m[0], m[1]))
        for _, _, happen in moments:
            happen()

    def end_step(self, thread: _Thread, time_ns: int, step: int) -> None:
        """Mark where the annotation of a step ends."""
        self.advance(thread, time_ns)
        marker = self.nodes.add(time_ns, time_ns, Flavour.GAP, thread.lane, "step end", step)
        if thread.last >= 0:
            self.nodes.after(marker, thread.last, "host order")
        self.nodes.markers.append(marker)

    def call(self, thread: _Thread, call: int, kind: Call, events: list[int]) -> None:
        """A runtime call: a launch, something that blocks, or neither."""
        trace = self.trace
        begin = int(trace.start_ns[call])
        if begin < thread.asleep_until:
            return
        end = begin + int(trace.dur_ns[call])
        name = trace.strings[trace.name[call]]
        if events:
            self.launch(thread, call, events)
            own = [
                e
                for e in events
                if int(trace.category[e]) == int(Category.MEMCPY)
                and blocks_until_copied(name, trace.strings[trace.name[e]])
                and int(trace.start_ns[e] + trace.dur_ns[e]) <= end + CLOCK_NS
            ]
            if own:
                self.block(thread, begin, end, own, "host waits: blocking copies")
        elif kind in (Call.SYNC_DEVICE, Call.SYNC_EVENT, Call.SYNC_STREAM):
            targets, what = self.sync_targets(call, kind)
            known = [e for e in targets if e in self.device.nodes_of]
            self.block(thread, begin, end, known, what)
        elif end - begin > 10 * BOUND_NS:
            target = self.inferred_wait(begin, end)
            if target is not None:
                self.block(thread, begin, end, [target], "host waits: inferred from times")

    def hand_over(self, main: _Thread, handover: Handover) -> None:
        """Start the workers of a hand-over from where the main thread has got to."""
        self.advance(main, min(a for _, a, _ in handover.workers))
        main.asleep_until = handover.resume_ns
        kind = "recorded" if handover.recorded else "inferred from activity"
        for t, begin, _ in handover.workers:
            worker = self.threads[t]
            worker.cursor = begin
            if main.last < 0:
                continue
            # An empty node joins the two threads: the worker's next segment follows it.
            node = self.nodes.add(
                begin, begin, Flavour.HOST, worker.lane, "hand-over", self.step(begin)
            )
            self.nodes.after(node, main.last, f"hand-overs: {kind}")
            if worker.last >= 0:
                self.nodes.after(node, worker.last, "host order")
            worker.last = node

    def join(self, main: _Thread, handover: Handover) -> None:
        """Resume the main thread after its workers."""
        last = max(b for _, _, b in handover.workers)
        node = self.nodes.add(
            last, handover.resume_ns, Flavour.HOST, main.lane, "join", self.step(last)
        )
        if main.last >= 0:
            self.nodes.after(node, main.last, "host order")
        kind = "recorded" if handover.recorded else "inferred from activity"
        for t, _, end in handover.workers:
            worker = self.threads[t]
            self.advance(worker, end)
            if worker.last >= 0:
                self.nodes.after(node, worker.last, f"joins: {kind}")
        main.cursor, main.last = handover.resume_ns, node


def _bursts(busy: NDArray[np.int64], main: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Busy intervals of a thread with its short pauses closed, unless the main thread used them."""
    out: list[tuple[int, int]] = []
    for begin, end in busy.tolist():
        if out and begin - out[-1][1] <= BETWEEN_OPS_NS:
            after = int(np.searchsorted(main[:, 1], out[-1][1], side="right"))
            if after == len(main) or main[after, 0] >= begin:
                out[-1] = (out[-1][0], end)
                continue
        out.append((begin, end))
    return out


def thread_number(trace: KinetoTrace, thread: int) -> int:
    """Id of a thread as in the trace, or its index where the id is not a number."""
    tid = trace.threads[thread][1]
    return tid if isinstance(tid, int) else thread


def _flow_ends(trace: KinetoTrace) -> dict[int, list[int]]:
    """Times at which flows end, per thread."""
    ends: dict[int, list[int]] = {}
    rows = np.flatnonzero(trace.flows.finish)
    times = trace.flows.time_ns[rows].tolist()
    for thread, time in zip(trace.flows.thread[rows].tolist(), times, strict=True):
        ends.setdefault(thread, []).append(time)
    return {thread: sorted(times) for thread, times in ends.items()}


def add_host(
    nodes: RankNodes,
    trace: KinetoTrace,
    comms: Comms,
    windows: Windows,
    device: Device,
    waits: Waits,
) -> None:
    """Add the host threads of a device job: the `host` dependency model.

    Parameters
    ----------
    nodes : RankNodes
        Nodes of the rank, extended; its device nodes get their launch edges.
    trace, comms, windows, device
        The rank's events, communication, chosen steps and device work.
    waits : Waits
        What streams and the host waited for.
    """
    _Builder(nodes, trace, comms, windows, device, waits).build()
