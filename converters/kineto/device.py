"""Device work of one rank: one node per kernel and copy, in stream order.

Which stream waits for which is worked out in `streams`; what the host contributes in `host`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Collective, Flavour, Kind, LaneKind
from ..kernels import is_copy_kernel
from .events import Category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..nodes import RankNodes
    from ..windows import Windows
    from .comms import Comms
    from .events import KinetoTrace

#: Kernels of one stream that overlap by less than this do so by design (programmatic dependent
#: launch; B200: 3.7 us at most); by more, the earlier row is too long (ROCm) and is cut.
OVERLAP_NS = 10_000
#: No device takes longer from a launch call to the start of its kernel if nothing is in the way
#: (CUDA: some 5 us, which is taken where the trace never shows an idle stream).
LAUNCH_LAG_MAX_NS, LAUNCH_LAG_NS = 20_000, 5_000
#: Nor from one kernel of a stream to the next (CUDA: about 1 us); where the trace never shows
#: two back to back nothing is added.
STREAM_LAG_MAX_NS = 3_000


@dataclass
class Device:
    """Device nodes of a rank and how they were launched.

    Attributes
    ----------
    nodes_of : dict of int to list of int
        Nodes of each device event (several for batched sends and receives).
    event_of : dict of int to int
        Event of each node.
    call_of : dict of int to int
        Runtime call that launched each event, where it is in the trace.
    streams : dict of int to list of int
        Events of each stream in the order they ran.
    launch_lag_ns, stream_lag_ns : int
        What always passes from a launch call's begin to the kernel's start, and between two
        kernels of a stream: the shortest seen.
    dropped : dict of str to int
        Events outside the chosen steps, by reason.
    """

    nodes_of: dict[int, list[int]] = field(default_factory=dict)
    event_of: dict[int, int] = field(default_factory=dict)
    call_of: dict[int, int] = field(default_factory=dict)
    streams: dict[int, list[int]] = field(default_factory=dict)
    launch_lag_ns: int = 0
    stream_lag_ns: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


def launch_calls(trace: KinetoTrace, events: NDArray[np.int64]) -> NDArray[np.int64]:
    """Runtime call that launched each device event, -1 where there is none.

    Parameters
    ----------
    trace : KinetoTrace
        Events of the rank.
    events : int64, shape (K,)
        Device events.

    Returns
    -------
    int64, shape (K,)
    """
    calls = np.flatnonzero((trace.category == int(Category.RUNTIME)) & (trace.correlation >= 0))
    if not len(calls) or not len(events):
        return np.full(len(events), -1, dtype=np.int64)
    order = calls[np.argsort(trace.correlation[calls], kind="stable")]
    keys = trace.correlation[order]
    wanted = trace.correlation[events]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where((keys[at] == wanted) & (wanted >= 0), order[at], -1)


def _steps_of(
    trace: KinetoTrace,
    windows: Windows,
    events: NDArray[np.int64],
    calls: NDArray[np.int64],
    device: Device,
) -> NDArray[np.int64]:
    """Step of each device event, by its launch; -1 where it belongs to none of them."""
    begin, ends = windows.begin_ns[0], np.array(windows.end_ns, dtype=np.int64)
    count = len(ends)
    start = trace.start_ns[events]
    launched = calls >= 0
    when = np.where(launched, trace.start_ns[calls], start)
    step = np.searchsorted(ends, when, side="right")
    if not windows.marked:
        return np.zeros(len(events), dtype=np.int64)
    early = when < begin
    finished = early & (start + trace.dur_ns[events] <= begin)
    late = step >= count
    for what, rows in (
        ("device work that ended before the chosen steps", finished),
        ("device work launched after the chosen steps", late),
    ):
        if rows.any():
            device.dropped[what] = int(rows.sum())
    return np.where(finished | late, -1, np.minimum(step, count - 1))


def add_device(nodes: RankNodes, trace: KinetoTrace, comms: Comms, windows: Windows) -> Device:
    """Add the device work of the chosen steps, chained by stream.

    Parameters
    ----------
    nodes : RankNodes
        Nodes of the rank, extended.
    trace : KinetoTrace
        Events of the rank.
    comms : Comms
        Its communication; operations whose kernels are outside the steps are left out.
    windows : Windows
        The chosen steps.

    Returns
    -------
    Device
    """
    device = Device()
    wanted = [int(Category.KERNEL), int(Category.MEMCPY), int(Category.MEMSET)]
    events = np.flatnonzero(np.isin(trace.category, wanted))
    calls = launch_calls(trace, events)
    steps = _steps_of(trace, windows, events, calls, device)
    ops_of: dict[int, list[int]] = {}
    for i, op in enumerate(comms.ops):
        ops_of.setdefault(op.event, []).append(i)
    copies = np.array([is_copy_kernel(s) for s in trace.strings], dtype=np.bool_)
    lanes: dict[int, int] = {}
    keep = steps >= 0
    events, calls, steps = events[keep], calls[keep], steps[keep]
    linked = calls >= 0
    waits = trace.start_ns[events[linked]] - trace.start_ns[calls[linked]]
    shortest = int(waits[waits >= 0].min(initial=1 << 62))
    device.launch_lag_ns = shortest if shortest <= LAUNCH_LAG_MAX_NS else LAUNCH_LAG_NS
    stream_of = np.where(trace.stream[events] >= 0, trace.stream[events], 0)
    end = (trace.start_ns + trace.dur_ns).copy()
    device.stream_lag_ns = _stream_lag(trace, events, stream_of, end)
    previous: dict[int, int] = {}
    for event, call, step, stream in zip(
        events.tolist(), calls.tolist(), steps.tolist(), stream_of.tolist(), strict=True
    ):
        begin = int(trace.start_ns[event])
        name = trace.strings[trace.name[event]]
        if stream not in lanes:
            lanes[stream] = nodes.add_lane(LaneKind.STREAM, stream)
        lane = lanes[stream]
        before = previous.get(stream)
        if before is not None and int(end[before]) - begin > OVERLAP_NS:
            # The row cannot still run: kernels of a stream start in order and overlap briefly.
            end[before] = begin
            for node in device.nodes_of[before]:
                nodes.end[node] = begin
            nodes.counts["device rows cut where the next of their stream starts"] += 1
        added = []
        if event in ops_of:
            for i in ops_of[event]:
                op = comms.ops[i]
                kind = Kind.COMM_COLL
                if op.coll is Collective.SEND_RECV:
                    kind = Kind.SEND if op.sends else Kind.RECV
                added.append(
                    nodes.add(
                        begin, int(end[event]), Flavour.COMM, lane, name, step, kind=kind, op=i
                    )
                )
        else:
            copy = int(trace.category[event]) != int(Category.KERNEL) or copies[trace.name[event]]
            flavour = Flavour.COPY if copy else Flavour.COMPUTE
            added.append(nodes.add(begin, int(end[event]), flavour, lane, name, step))
        device.nodes_of[event] = added
        for node in added:
            device.event_of[node] = event
            for on in device.nodes_of.get(before, []) if before is not None else []:
                if nodes.end[on] > begin:
                    nodes.overlapping(node, on, "stream order: kernels that overlap")
                else:
                    nodes.after(node, on, "stream order", device.stream_lag_ns)
        if call >= 0:
            device.call_of[event] = call
        device.streams.setdefault(stream, []).append(event)
        previous[stream] = event
    return device


def _stream_lag(
    trace: KinetoTrace,
    events: NDArray[np.int64],
    stream_of: NDArray[np.int64],
    end: NDArray[np.int64],
) -> int:
    """Shortest time between two neighbours of a stream that do not overlap."""
    shortest = STREAM_LAG_MAX_NS + 1
    for stream in np.unique(stream_of).tolist():
        rows = events[stream_of == stream]
        gaps = trace.start_ns[rows[1:]] - end[rows[:-1]]
        shortest = min(shortest, int(gaps[gaps >= 0].min(initial=shortest)))
    return shortest if shortest <= STREAM_LAG_MAX_NS else 0
