"""The calls of a rank that order its device work, each with its place in the program.

A launch, the recording of an event, a wait of a stream for an event, and a synchronisation of the
host: the runtime's rows say when each was called and from which thread, but neither which stream
nor which event was meant. What can be said of a call by itself is said here. Its *place* is the
same on ranks and steps whose threads make the same calls in the same order, so that what one of
them shows can be used for the others; that is done in `inference`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .names import Call

if TYPE_CHECKING:
    from ..windows import Windows
    from .comms import Comms
    from .device import Device
    from .events import KinetoTrace
    from .streams import LaunchOrder

#: Host scopes in which c10d launches a collective.
_COLLECTIVE_SCOPES = ("record_param_comms", "nccl:", "c10d::")


class What(IntEnum):
    """What a call does; at one moment events are recorded before work is launched."""

    RECORD = 0
    LAUNCH = 1
    WAIT = 2
    SYNC = 3


class Place(NamedTuple):
    """Where in the program a call stands.

    Attributes
    ----------
    program : int
        What its thread does in that step: equal numbers make the same calls in the same order.
    thread : int
        Number of the thread within the rank, by first appearance.
    number : int
        Calls of the thread in that step before it, synchronisations not counted.
    again : int
        Synchronisations since the last other call.
    """

    program: int
    thread: int
    number: int
    again: int


@dataclass(frozen=True)
class OrderingCall:
    """A call that orders device work.

    Attributes
    ----------
    what : What
        What it does.
    item : int
        The device event launched, else the row of the call.
    begin_ns, end_ns : int
        When it was called.
    step : int
        Step that it was called in.
    place : Place
        Where in the program it stands.
    stream : int or None
        Of an event that is recorded, its stream; of a wait that belongs to the launch of a
        collective, the stream of the collective, which waits for `current`; else None.
    current : int or None
        Stream that the thread last launched to.
    waiter : int
        Of any other wait, the device event that comes first after it, -1 if none does.
    collective : bool
        Whether the wait is marked as that for a collective (``Work.wait()``).
    kind : Call
        Of a synchronisation, which.
    """

    what: What
    item: int
    begin_ns: int
    end_ns: int
    step: int
    place: Place
    stream: int | None = None
    current: int | None = None
    waiter: int = -1
    collective: bool = False
    kind: Call = Call.OTHER


@dataclass
class Programs:
    """Numbers for what threads do in a step, shared by all ranks."""

    table: dict[tuple[str, ...], int] = field(default_factory=dict)

    def number(self, labels: tuple[str, ...]) -> int:
        """Number of a sequence of calls, the same for equal ones."""
        return self.table.setdefault(labels, len(self.table))


def ordering_calls(
    trace: KinetoTrace,
    comms: Comms,
    device: Device,
    order: LaunchOrder,
    windows: Windows,
    calls: list[tuple[int, int, Call]],
    programs: Programs,
) -> list[OrderingCall]:
    """Collect the calls of a rank that order device work.

    Parameters
    ----------
    trace, comms, device, order, windows
        The rank's events, communication, device work, its order of launch, and steps.
    calls : list of (int, int, Call)
        Runtime calls (`streams.runtime_calls`).
    programs : Programs
        Shared by all ranks, extended.

    Returns
    -------
    list of OrderingCall
        In order of time.
    """
    return _Collector(trace, comms, device, order).collect(windows, calls, programs)


class _Collector:
    """Says of each call of one rank what can be said of it by itself."""

    def __init__(
        self, trace: KinetoTrace, comms: Comms, device: Device, order: LaunchOrder
    ) -> None:
        self.trace, self.comms, self.device, self.order = trace, comms, device, order
        self.stream_of = {e: s for s, events in device.streams.items() for e in events}
        self.coll_of = {op.event: op.coll.name for op in comms.ops}
        comm_events = set(self.coll_of) | set(comms.alone)
        #: Events of streams that only communicate; the others also run on the current stream.
        self.apart = {
            e
            for events in device.streams.values()
            if comm_events.issuperset(events)
            for e in events
        }
        self.scopes = self._launch_scopes()
        self.launches: dict[int, list[tuple[int, int]]] = {}
        for event, call in device.call_of.items():
            if event not in self.apart:
                rows = self.launches.setdefault(int(trace.thread[call]), [])
                rows.append((int(trace.start_ns[call]), event))
        for rows in self.launches.values():
            rows.sort()

    def _launch_scopes(self) -> dict[int, list[tuple[int, int, int, int]]]:
        """Scopes that launch communication: (begin, end, launch time, device event) by thread."""
        trace, lookup = self.trace, self.comms.scopes
        found: dict[int, list[tuple[int, int, int, int]]] = {}
        for event, call in self.comms.issued_by.items():
            thread, time = int(trace.thread[call]), int(trace.start_ns[call])
            for scope in lookup.enclosing(thread, time):
                if trace.strings[trace.name[scope]].startswith(_COLLECTIVE_SCOPES):
                    begin = int(trace.start_ns[scope])
                    end = begin + int(trace.dur_ns[scope])
                    found.setdefault(thread, []).append((begin, end, time, event))
                    break
        for rows in found.values():
            rows.sort()
        return found

    def _scope_at(self, thread: int, time: int) -> tuple[int, int, int, int] | None:
        scopes = self.scopes.get(thread, [])
        at = bisect_right(scopes, (time, 1 << 62, 0, 0)) - 1
        return scopes[at] if at >= 0 and time < scopes[at][1] else None

    def _marked(self, thread: int, time: int) -> bool:
        """Whether a call stands in the scope of a wait for a collective."""
        trace = self.trace
        return any(
            str(trace.args[scope].get("Collective name")) == "wait"
            for scope in self.comms.scopes.enclosing(thread, time)
        )

    def collect(
        self, windows: Windows, calls: list[tuple[int, int, Call]], programs: Programs
    ) -> list[OrderingCall]:
        """Collect all calls, in order of time."""
        trace, device = self.trace, self.device
        rows: list[tuple[int, int, int, Call]] = []
        for event in self.stream_of:
            row = device.call_of.get(event, event)
            rows.append((int(trace.start_ns[row]), int(What.LAUNCH), event, Call.LAUNCH))
        what_of = {
            Call.RECORD_EVENT: What.RECORD,
            Call.WAIT_EVENT: What.WAIT,
            Call.SYNC_EVENT: What.SYNC,
            Call.SYNC_STREAM: What.SYNC,
            Call.SYNC_DEVICE: What.SYNC,
        }
        rows += [
            (time, int(what_of[kind]), call, kind) for time, call, kind in calls if kind in what_of
        ]
        rows.sort()
        steps = np.searchsorted(windows.end_ns, [r[0] for r in rows], side="right")
        last = len(windows.end_ns) - 1
        steps = np.minimum(steps, last) if windows.marked else np.zeros(len(rows), np.int64)
        places = self._places(rows, steps.tolist(), programs)
        return [
            self._describe(row, step, place)
            for row, step, place in zip(rows, steps.tolist(), places, strict=True)
        ]

    def _thread(self, what: int, item: int) -> int:
        """Thread that made a call, -1 for device work without a launch."""
        row = item
        if what == What.LAUNCH:
            row = self.device.call_of.get(item, -1)
        return int(self.trace.thread[row]) if row >= 0 else -1

    def _places(
        self, rows: list[tuple[int, int, int, Call]], steps: list[int], programs: Programs
    ) -> list[Place]:
        threads: dict[int, int] = {}
        labels: dict[tuple[int, int], list[str]] = {}
        again: dict[tuple[int, int], tuple[int, int]] = {}
        raw: list[tuple[tuple[int, int], int, int]] = []
        for (_, what, item, _), step in zip(rows, steps, strict=True):
            thread = self._thread(what, item)
            role = threads.setdefault(thread, len(threads))
            mine = labels.setdefault((role, step), [])
            if what == What.SYNC:
                at, count = again.get((role, step), (-1, 0))
                count = count + 1 if at == len(mine) else 1
                again[role, step] = (len(mine), count)
                raw.append(((role, step), len(mine), count))
                continue
            raw.append(((role, step), len(mine), 0))
            label = What(what).name
            if what == What.LAUNCH:
                label = self.coll_of.get(item, f"category {int(self.trace.category[item])}")
            mine.append(label)
        number = {key: programs.number(tuple(text)) for key, text in labels.items()}
        return [Place(number[key], key[0], index, count) for key, index, count in raw]

    def _describe(self, row: tuple[int, int, int, Call], step: int, place: Place) -> OrderingCall:
        time, what, item, kind = row
        trace = self.trace
        if what == What.LAUNCH:
            return OrderingCall(What.LAUNCH, item, time, time, step, place)
        end = time + int(trace.dur_ns[item])
        thread = int(trace.thread[item])
        launches = self.launches.get(thread, [])
        at = bisect_left(launches, (time, -1))
        current = self.stream_of[launches[at - 1][1]] if at else None
        scope = self._scope_at(thread, time)
        stream = None
        if what == What.RECORD:
            launched = scope is not None and time > scope[2]
            stream = self.stream_of.get(scope[3]) if scope and launched else current
            return OrderingCall(What.RECORD, item, time, end, step, place, stream, current)
        if what == What.SYNC:
            return OrderingCall(What.SYNC, item, time, end, step, place, current=current, kind=kind)
        if scope is not None:
            # Before its launch the collective's stream waits for the current one; after it
            # follows the library's own bookkeeping.
            stream = self.stream_of.get(scope[3]) if time < scope[2] else None
            return OrderingCall(What.WAIT, item, time, end, step, place, stream, current)
        # The stream made to wait is the current one or the one that the thread goes on with;
        # what it launches next may come from another thread (backward() after a wait).
        following = [launches[at][1]] if at < len(launches) else []
        if current is not None:
            event = self.order.first_after(current, time)
            following += [] if event is None or event in self.apart else [event]
        waiter = min(following, key=self._launched, default=-1)
        return OrderingCall(
            What.WAIT,
            item,
            time,
            end,
            step,
            place,
            None,
            current,
            waiter,
            self._marked(thread, time),
        )

    def _launched(self, event: int) -> int:
        return int(self.trace.start_ns[self.device.call_of.get(event, event)])
