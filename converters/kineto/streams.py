"""Which stream waits for which: recorded where the trace says so, otherwise inferred.

Three levels of evidence, best first: ``cuda_sync`` rows name the event that a stream waited for;
runtime calls show that some stream was made to wait at that moment, and their place says which
(a wait inside the host scope that launches a collective is that of the collective's stream);
without either, only a kernel that starts just as one on another stream ends shows it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .comms import HostScopes
from .events import Category
from .names import Call, classify_call

if TYPE_CHECKING:
    from ..nodes import RankNodes
    from .comms import Comms
    from .device import Device
    from .events import KinetoTrace

#: A kernel that starts within this of another's end is taken to have waited for it, if nothing
#: else explains its start.
BOUND_NS = 10_000
#: A start is explained by its stream or launch if it comes within this after them.
EXPLAINED_NS = 3_000


@dataclass
class LaunchOrder:
    """Device events by launch time, per stream (unlaunched ones by start)."""

    times: dict[int, list[int]] = field(default_factory=dict)
    events: dict[int, list[int]] = field(default_factory=dict)

    def last_before(self, stream: int, time_ns: int) -> int | None:
        """Event of a stream launched last before a time."""
        at = bisect_left(self.times.get(stream, []), time_ns)
        return self.events[stream][at - 1] if at else None

    def first_after(self, stream: int, time_ns: int) -> int | None:
        """Event of a stream launched first after a time."""
        at = bisect_right(self.times.get(stream, []), time_ns)
        found = self.events.get(stream, [])
        return found[at] if at < len(found) else None


def launch_order(trace: KinetoTrace, device: Device) -> LaunchOrder:
    """Order the device events of every stream by launch."""
    out = LaunchOrder()
    for stream, events in device.streams.items():
        rows = sorted(
            (int(trace.start_ns[device.call_of.get(e, e)]), i, e) for i, e in enumerate(events)
        )
        out.times[stream] = [t for t, _, _ in rows]
        out.events[stream] = [e for _, _, e in rows]
    return out


@dataclass(frozen=True)
class StreamWait:
    """A device event that waits for another on a different stream."""

    waiter: int
    target: int


class Frontiers:
    """What a new kernel of each stream would have to wait for.

    An event stands for everything before it on its stream, waits included: a stream that was
    made to wait but has run nothing since passes that wait on to whoever waits for it.
    """

    def __init__(self) -> None:
        self._of: dict[int, list[int]] = {}
        self._events: dict[int, list[int]] = {}

    def now(self, stream: int) -> list[int]:
        """Device events that the next kernel of a stream comes after."""
        return list(self._of.get(stream, ()))

    def launch(self, stream: int, event: int) -> list[int]:
        """Launch a kernel; returns what it comes after."""
        before = self._of.get(stream, [])
        self._of[stream] = [event]
        return before

    def wait(self, stream: int, targets: list[int]) -> None:
        """Make a stream wait for device events."""
        frontier = self._of.setdefault(stream, [])
        frontier += [t for t in targets if t not in frontier]

    def everything(self) -> list[int]:
        """What a synchronisation with the whole device waits for."""
        return [event for frontier in self._of.values() for event in frontier]


def _name_table(trace: KinetoTrace) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    return np.array([int(classify_call(s)) for s in trace.strings], dtype=np.int8)


def runtime_calls(trace: KinetoTrace) -> list[tuple[int, int, Call]]:
    """Runtime calls that order work, as (start, event, Call), by time."""
    table = _name_table(trace)
    rows = np.flatnonzero(trace.category == int(Category.RUNTIME))
    kinds = table[trace.name[rows]] if len(rows) else np.zeros(0, np.int8)
    keep = kinds != int(Call.OTHER)
    return [
        (int(trace.start_ns[e]), int(e), Call(k))
        for e, k in zip(rows[keep].tolist(), kinds[keep].tolist(), strict=True)
    ]


def recorded_waits(
    trace: KinetoTrace, order: LaunchOrder
) -> tuple[list[StreamWait], dict[int, list[int]]]:
    """Waits that ``cuda_sync`` rows describe.

    Returns
    -------
    waits : list of StreamWait
        Streams that wait for streams.
    host : dict of int to list of int
        Device events that each blocking host call (by correlation) waited for.
    """
    rows = np.flatnonzero(trace.category == int(Category.SYNC)).tolist()
    runtime = np.flatnonzero(trace.category == int(Category.RUNTIME))
    call_at = dict(
        zip(trace.correlation[runtime].tolist(), trace.start_ns[runtime].tolist(), strict=True)
    )
    records = {
        int(trace.wait_correlation[row]): int(trace.wait_stream[row])
        for row in rows
        if int(trace.wait_correlation[row]) in call_at
    }
    # Launches, records, waits and synchronisations, as the host issued them.
    moments = [
        (time, 1, stream, event)
        for stream, events in order.events.items()
        for time, event in zip(order.times[stream], events, strict=True)
    ]
    moments += [(int(call_at[c]), 0, stream, c) for c, stream in records.items()]
    moments += [
        (int(call_at.get(int(trace.correlation[row]), trace.start_ns[row])), 2, -1, row)
        for row in rows
    ]
    stream_of = {event: s for s, events in order.events.items() for event in events}
    frontiers = Frontiers()
    snapshots: dict[int, list[int]] = {}
    waits: list[StreamWait] = []
    host: dict[int, list[int]] = {}
    for _, what, stream, item in sorted(moments):
        if what == 1:
            before = frontiers.launch(stream, item)
            waits += [StreamWait(item, on) for on in before if stream_of[on] != stream]
        elif what == 0:
            snapshots[item] = frontiers.now(stream)
        else:
            name = trace.strings[trace.name[item]].lower()
            recorded = snapshots.get(int(trace.wait_correlation[item]), [])
            own = int(trace.stream[item])
            if "stream wait" in name:
                frontiers.wait(own, recorded)
                continue
            if "event" in name:
                targets = recorded
            elif "stream" in name:
                source = int(trace.wait_stream[item])
                targets = frontiers.now(source if source >= 0 else own)
            else:
                targets = frontiers.everything()
            host.setdefault(int(trace.correlation[item]), []).extend(targets)
    return waits, host


class _Inference:
    """Works out stream waits from runtime calls and measured times."""

    def __init__(
        self, trace: KinetoTrace, comms: Comms, device: Device, order: LaunchOrder
    ) -> None:
        self.trace = trace
        self.comms = comms
        self.device = device
        self.order = order
        self.stream_of = {e: s for s, events in device.streams.items() for e in events}
        self.place = {e: i for events in device.streams.values() for i, e in enumerate(events)}
        self.comm_events = {op.event for op in comms.ops} | set(comms.alone)
        #: Events of streams that only communicate; the others also run on the current stream.
        self.apart = {
            e
            for events in device.streams.values()
            if self.comm_events.issuperset(events)
            for e in events
        }
        #: Furthest place of a stream that another already waited for.
        self.joined: dict[tuple[int, int], int] = {}
        self.frontiers = Frontiers()
        #: What the last event recorded on each stream stands for.
        self.recorded: dict[int, list[int]] = {}
        self.found: list[StreamWait] = []
        self.contradicted = 0

    def end(self, event: int) -> int:
        """Measured end of a device event."""
        return int(self.trace.start_ns[event] + self.trace.dur_ns[event])

    def launched(self, event: int) -> int:
        """When an event was launched (or started, if no launch is known)."""
        return int(self.trace.start_ns[self.device.call_of.get(event, event)])

    def next_compute(self, stream: int, time: int) -> list[int]:
        """The event of a stream launched next after a time, unless that only communicates."""
        event = self.order.first_after(stream, time)
        return [] if event is None or event in self.apart else [event]

    def explained_by_itself(self, event: int) -> bool:
        """Whether stream order or launch explains when an event started."""
        start = int(self.trace.start_ns[event])
        events = self.device.streams[self.stream_of[event]]
        at = self.place[event]
        latest = self.end(events[at - 1]) + self.device.stream_lag_ns if at else -(1 << 62)
        call = self.device.call_of.get(event)
        if call is not None:
            latest = max(latest, int(self.trace.start_ns[call]) + self.device.launch_lag_ns)
        return start - latest <= EXPLAINED_NS

    def is_new(self, stream: int, target: int) -> bool:
        """Whether a stream has not yet waited for an event, or for a later one of its stream."""
        other = self.stream_of[target]
        return stream != other and self.joined.get((stream, other), -1) < self.place[target]

    def accept(self, waiter: int, target: int) -> None:
        """Keep a wait unless the times contradict it or an earlier one implies it."""
        stream = self.stream_of[waiter]
        if not self.is_new(stream, target):
            return
        if self.end(target) > int(self.trace.start_ns[waiter]):
            self.contradicted += 1
            return
        self.joined[stream, self.stream_of[target]] = self.place[target]
        self.found.append(StreamWait(waiter, target))

    def from_calls(self, calls: list[tuple[int, int, Call]]) -> None:
        """Find the waits that runtime calls hint at."""
        trace, device = self.trace, self.device
        scopes = _launch_scopes(trace, self.comms)
        launches: dict[int, list[tuple[int, int]]] = {}
        for event, call in device.call_of.items():
            if event not in self.apart:
                launches.setdefault(int(trace.thread[call]), []).append(
                    (int(trace.start_ns[call]), event)
                )
        for rows in launches.values():
            rows.sort()
        has_records = any(kind is Call.RECORD_EVENT for _, _, kind in calls)
        moments: list[tuple[int, int, int]] = [
            (self.launched(event), 1, event) for event in self.stream_of
        ]
        moments += [
            (time, 0 if kind is Call.RECORD_EVENT else 2, call)
            for time, call, kind in calls
            if kind in (Call.RECORD_EVENT, Call.WAIT_EVENT)
        ]
        for time, what, item in sorted(moments):
            if what == 1:
                for target in self.frontiers.launch(self.stream_of[item], item):
                    self.accept(item, target)
                continue
            thread = int(trace.thread[item])
            rows = launches.get(thread, [])
            at = bisect_left(rows, (time, -1))
            current = self.stream_of[rows[at - 1][1]] if at else None
            scope = _scope_at(scopes.get(thread, []), time)
            if what == 0:
                launched = scope is not None and time > scope[2]
                stream = self.stream_of.get(scope[3]) if scope and launched else current
                if stream is not None:
                    self.recorded[stream] = self.frontiers.now(stream)
            elif scope is not None:
                # In the scope of a collective, before its launch: its stream waits for the
                # current one; after it, the library's own bookkeeping.
                if time < scope[2] and current is not None and scope[3] in self.stream_of:
                    self.frontiers.wait(self.stream_of[scope[3]], self.frontiers.now(current))
            else:
                # The stream made to wait is the current one or the one that the thread goes on
                # with; what it launches next may come from another thread (backward() after a
                # wait).
                following = [rows[at][1]] if at < len(rows) else []
                if current is not None:
                    following += self.next_compute(current, time)
                if following:
                    waiter = min(following, key=self.launched)
                    targets = self.choose(waiter, by_record=has_records)
                    self.frontiers.wait(self.stream_of[waiter], targets)

    def choose(self, waiter: int, *, by_record: bool) -> list[int]:
        """Pick what a compute stream was made to wait for just before it launches an event."""
        stream = self.stream_of[waiter]
        start = int(self.trace.start_ns[waiter])
        options = []
        for other in self.order.times:
            targets = self.recorded.get(other, []) if by_record else self.frontiers.now(other)
            if other != stream and any(self.is_new(stream, t) for t in targets):
                options.append(targets)
        possible = [o for o in options if all(self.end(e) <= start for e in o)]
        if not possible:
            self.contradicted += bool(options)
            return []
        if not self.explained_by_itself(waiter):
            binding = [o for o in possible if start - max(self.end(e) for e in o) <= BOUND_NS]
            if binding:
                return max(binding, key=lambda o: max(self.end(e) for e in o))
        # Unbinding: what was issued last and not yet waited for, communication first.
        return max(
            possible,
            key=lambda o: max((e in self.comm_events, self.launched(e)) for e in o),
        )

    def from_times(self) -> None:
        """Find the waits that only the measured times show."""
        trace = self.trace
        self.joined.clear()  # it stands at the end of the trace after `from_calls`
        explained = {
            wait.waiter
            for wait in self.found
            if int(trace.start_ns[wait.waiter]) - self.end(wait.target) <= BOUND_NS
        }
        ends = sorted((self.end(e), e) for e in self.stream_of)
        for event in sorted(self.stream_of, key=lambda e: int(trace.start_ns[e])):
            if event in explained or self.explained_by_itself(event):
                continue
            start = int(trace.start_ns[event])
            at = bisect_right(ends, (start, 1 << 62))
            for end, other in reversed(ends[max(0, at - 16) : at]):
                if start - end > BOUND_NS:
                    break
                on_other_stream = self.stream_of[other] != self.stream_of[event]
                if on_other_stream and {event, other} & self.comm_events:
                    self.accept(event, other)
                    break


def _launch_scopes(trace: KinetoTrace, comms: Comms) -> dict[int, list[tuple[int, int, int, int]]]:
    """Host scopes that launch communication: (begin, end, launch time, device event) by thread."""
    lookup = HostScopes(trace)
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for event, call in comms.issued_by.items():
        thread, time = int(trace.thread[call]), int(trace.start_ns[call])
        for scope in lookup.enclosing(thread, time):
            name = trace.strings[trace.name[scope]]
            if name.startswith(("record_param_comms", "nccl:", "c10d::")):
                begin = int(trace.start_ns[scope])
                found.setdefault(thread, []).append(
                    (begin, begin + int(trace.dur_ns[scope]), time, event)
                )
                break
    for rows in found.values():
        rows.sort()
    return found


def _scope_at(
    scopes: list[tuple[int, int, int, int]], time: int
) -> tuple[int, int, int, int] | None:
    at = bisect_right(scopes, (time, 1 << 62, 0, 0)) - 1
    if at >= 0 and time < scopes[at][1]:
        return scopes[at]
    return None


def add_stream_waits(
    nodes: RankNodes, trace: KinetoTrace, comms: Comms, device: Device
) -> tuple[LaunchOrder, dict[int, list[int]]]:
    """Add the edges between streams.

    Parameters
    ----------
    nodes : RankNodes
        Nodes of the rank, whose dependencies are extended.
    trace : KinetoTrace
        Events of the rank.
    comms : Comms
        Its communication.
    device : Device
        Its device work.

    Returns
    -------
    order : LaunchOrder
        Device events by launch.
    host : dict of int to list of int
        Device events that recorded blocking calls (by correlation) waited for.
    """
    order = launch_order(trace, device)
    calls = runtime_calls(trace)
    waits, host = recorded_waits(trace, order)
    if waits or host:
        what = "waits between streams: recorded"
    else:
        inference = _Inference(trace, comms, device, order)
        if any(kind is Call.WAIT_EVENT for _, _, kind in calls):
            inference.from_calls(calls)
            what = "waits between streams: inferred from runtime calls and times"
        else:
            what = "waits between streams: inferred from times"
        inference.from_times()
        waits = inference.found
        if inference.contradicted:
            nodes.counts[f"{what}: contradicted by the measured times"] += inference.contradicted
    for wait in waits:
        for waiter in device.nodes_of[wait.waiter]:
            for target in device.nodes_of[wait.target]:
                nodes.after(waiter, target, what)
    return order, host
