"""Streams and what orders them: launches, the runtime's calls, and waits that the trace records.

Where ``cuda_sync`` rows name the event that a stream or the host waited for, that is what it waited
for. What only the runtime's calls and the times tell is worked out in `inference`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .events import Category
from .names import Call, classify_call

if TYPE_CHECKING:
    from .device import Device
    from .events import KinetoTrace


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
        Device events that each blocking host call (by row) waited for.
    """
    rows = np.flatnonzero(trace.category == int(Category.SYNC)).tolist()
    runtime = np.flatnonzero(trace.category == int(Category.RUNTIME))
    row_of = dict(zip(trace.correlation[runtime].tolist(), runtime.tolist(), strict=True))
    call_at = {c: int(trace.start_ns[row]) for c, row in row_of.items()}
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
            call = row_of.get(int(trace.correlation[item]))
            if call is not None:
                host.setdefault(call, []).extend(targets)
    return waits, host
