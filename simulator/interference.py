"""Compute that slows down while a transfer of its rank is in flight.

Communication takes something from the compute beside it: processor time where Gloo's threads run
on the same cores, multiprocessors and memory bandwidth where NCCL's kernels do. The measured
durations contain what it took on the traced network; on another network other work is beside
the transfers. Here a slowdown s says that compute which takes w alone takes (1 + s) w while a
transfer of its rank is in flight. It is a property of the machine (`Network.overlap_slowdown`),
estimated in `calibration`; what this module does is take it out of measured durations and put it
into simulated ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Collective, Flavour, LaneKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph

    Float = NDArray[np.float64]


class Busy:
    """When a rank has a transfer in flight: disjoint intervals in order of time."""

    def __init__(self, begin: Float, end: Float) -> None:
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order]) if len(end) else end
        first = np.ones(len(begin), dtype=np.bool_)
        first[1:] = begin[1:] > reach[:-1]
        heads = np.flatnonzero(first)
        tails = np.append(heads[1:], len(begin)) - 1
        self.begin: Float = begin[heads]
        self.end: Float = reach[tails] if len(heads) else begin
        self._before = np.concatenate([[0.0], np.cumsum(self.end - self.begin)])

    def until(self, time: Float) -> Float:
        """Time with a transfer in flight before each moment."""
        if not len(self.begin):
            return np.zeros(len(time))
        at = np.searchsorted(self.begin, time, side="right") - 1
        known = np.maximum(at, 0)
        inside = np.minimum(time, self.end[known]) - self.begin[known]
        return np.where(at >= 0, self._before[known] + inside, 0.0)

    def work_until(self, time: Float, slowdown: float) -> Float:
        """Work that could be done before each moment, up to a constant."""
        return time - self.until(time) * slowdown / (1 + slowdown)

    def finish(self, start: Float, work: Float, slowdown: float) -> Float:
        """When work that begins at given moments is done."""
        if not len(self.begin):
            return start + work
        target = self.work_until(start, slowdown) + work
        # Work grows with time at 1, and at 1 / (1 + slowdown) inside the intervals.
        corners = np.sort(np.concatenate([self.begin, self.end]))
        done = self.work_until(corners, slowdown)
        at = np.searchsorted(done, target, side="right") - 1
        known = np.maximum(at, 0)
        rate = np.where(known % 2 == 0, 1 / (1 + slowdown), 1.0)
        return np.where(at >= 0, corners[known] + (target - done[known]) / rate, target)


def sensitive(graph: ExecutionGraph) -> NDArray[np.bool_]:
    """Nodes that slow down beside a transfer: device compute, or a CPU job's host work."""
    kind = graph.lanes.kind[graph.lane]
    on_device = (graph.flavour == Flavour.COMPUTE) & (kind == LaneKind.STREAM)
    if graph.source != "kineto-cpu":
        return on_device
    host_work = np.isin(graph.flavour, [int(Flavour.COMPUTE), int(Flavour.HOST)])
    return host_work & (kind == LaneKind.HOST)


def measured_busy(graph: ExecutionGraph) -> list[Busy]:
    """When each rank had a transfer in flight, as measured."""
    comm = (graph.coll != Collective.NONE) & (graph.instance >= 0) & (graph.transfer_ns > 0)
    end = graph.end_ns.astype(np.float64)
    begin = end - graph.transfer_ns - graph.tail_ns
    return _per_rank(graph, comm, begin, end)


def simulated_busy(graph: ExecutionGraph, release: Float, end: Float) -> list[Busy]:
    """When each rank has a transfer in flight in a simulation of the graph."""
    comm = (graph.coll != Collective.NONE) & (graph.instance >= 0)
    return _per_rank(graph, comm, release, end)


def _per_rank(
    graph: ExecutionGraph, comm: NDArray[np.bool_], begin: Float, end: Float
) -> list[Busy]:
    out = []
    for low, high in zip(graph.rank_ptr[:-1].tolist(), graph.rank_ptr[1:].tolist(), strict=True):
        rows = low + np.flatnonzero(comm[low:high])
        out.append(Busy(begin[rows], end[rows]))
    return out


def without_slowdown(graph: ExecutionGraph, slowdown: float) -> ExecutionGraph:
    """Durations as they would be without transfers beside them.

    Parameters
    ----------
    graph : ExecutionGraph
        A measured graph.
    slowdown : float
        What compute beside transfers took longer, as a fraction.

    Returns
    -------
    ExecutionGraph
        With shorter durations; `start_ns` stays as measured.
    """
    beside = overlap_ns(graph, measured_busy(graph))
    shorter = graph.dur_ns - beside * slowdown / (1 + slowdown)
    duration = np.where(sensitive(graph), np.rint(shorter).astype(np.int64), graph.dur_ns)
    return graph.with_(dur_ns=duration)


def overlap_ns(graph: ExecutionGraph, busy: Sequence[Busy]) -> Float:
    """Measured time of each node with a transfer of its rank in flight, shape (N,)."""
    start, end = graph.start_ns.astype(np.float64), graph.end_ns.astype(np.float64)
    out = np.zeros(graph.num_nodes)
    for r, (low, high) in enumerate(
        zip(graph.rank_ptr[:-1].tolist(), graph.rank_ptr[1:].tolist(), strict=True)
    ):
        out[low:high] = busy[r].until(end[low:high]) - busy[r].until(start[low:high])
    return out
