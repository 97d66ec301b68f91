"""What the dependency models without host operations add to the nodes of a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Flavour, LaneKind

if TYPE_CHECKING:
    from .nodes import RankNodes
    from .windows import Windows


def add_markers(nodes: RankNodes, windows: Windows) -> None:
    """Step ends without a host lane: each follows what ended last before it."""
    ends = np.array(nodes.end, dtype=np.int64)
    steps = np.array(nodes.step, dtype=np.int64)
    lane = nodes.add_lane(LaneKind.HOST, 0)
    for k, end in enumerate(windows.end_ns):
        marker = nodes.add(end, end, Flavour.GAP, lane, "step end", k)
        if nodes.markers:
            nodes.after(marker, nodes.markers[-1], "step order")
        rows = np.flatnonzero((ends <= end) & (steps <= k))
        if len(rows):
            nodes.after(marker, int(rows[np.argmax(ends[rows])]), "step order")
        nodes.markers.append(marker)


def make_serial(nodes: RankNodes) -> None:
    """Replace all dependencies by one chain in order of start: the `serial` model.

    What overlapped is moved; where it ended in the trace is kept in `recorded_end`.
    """
    order = sorted(range(len(nodes)), key=lambda n: (nodes.start[n], nodes.end[n], n))
    lane = nodes.add_lane(LaneKind.STREAM, 0)
    markers = set(nodes.markers)
    before = -1
    nodes.recorded_end = list(nodes.end)
    for node in order:
        nodes.deps[node] = []
        duration = nodes.end[node] - nodes.start[node]
        if before >= 0 and nodes.end[before] > nodes.start[node]:
            # What overlapped runs one after the other, later than measured: that is the model.
            nodes.counts["serial: nodes moved after what they overlapped"] += 1
            nodes.start[node] = nodes.end[before]
            nodes.end[node] = nodes.start[node] + duration
        if node not in markers:
            nodes.lane[node] = lane
        if before >= 0:
            nodes.after(node, before, "serial order")
        before = node
