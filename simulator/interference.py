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

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Collective, Flavour, LaneKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..graph.compress import CompressedGraph
    from .event_loop import Program, Replay

    Float = NDArray[np.float64]


STREAM = LaneKind.STREAM
#: Operations are compared with themselves from this duration and number of samples on, if the
#: quartiles of those alone lie within this share of their median.
LEAST_NS, LEAST_SAMPLES, SPREAD = 50_000, 5, 0.3
#: Rounds of replaying until the ends of all nodes move by less than this share of the last end.
MOST_ROUNDS, SETTLED = 25, 1e-6


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
    on_device: NDArray[np.bool_] = (graph.flavour == Flavour.COMPUTE) & (kind == LaneKind.STREAM)
    if graph.source != "kineto-cpu":
        return on_device
    host_work: NDArray[np.bool_] = np.isin(graph.flavour, [int(Flavour.COMPUTE), int(Flavour.HOST)])
    on_host: NDArray[np.bool_] = host_work & (kind == LaneKind.HOST)
    return on_host


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


@dataclass(frozen=True)
class Comparison:
    """The same operation of a rank, alone and beside transfers.

    Attributes
    ----------
    rank : int
        Index of the rank.
    name : str
        The operation.
    alone_ns : float
        Its median duration without a transfer in flight.
    alone : int64
        Nodes that ran without one.
    beside : int64
        Nodes that ran beside a transfer.
    slowdown : float
        How much longer they took in the median, as a fraction.
    """

    rank: int
    name: str
    alone_ns: float
    alone: NDArray[np.int64]
    beside: NDArray[np.int64]
    slowdown: float


def comparisons(graph: ExecutionGraph) -> list[Comparison]:
    """Find operations that show what a transfer beside them costs.

    Nodes of one name are comparable where those that ran alone agree among themselves and the
    fastest of the others agree with them: the same work, sometimes disturbed. Medians are
    compared, since single stalls of many times the duration make means misleading.
    """
    beside_ns = overlap_ns(graph, measured_busy(graph))
    enqueues = np.zeros(graph.num_nodes, dtype=np.bool_)
    dependent = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    enqueues[graph.dep_node[graph.coll[dependent] != Collective.NONE]] = True
    usable = sensitive(graph) & (graph.flavour == Flavour.COMPUTE)
    usable &= (graph.dur_ns >= LEAST_NS) & (~enqueues | (graph.lanes.kind[graph.lane] == STREAM))
    rows = np.flatnonzero(usable)
    if not len(rows):
        return []
    key = graph.rank_index[rows].astype(np.int64) * len(graph.names) + graph.name[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    share = beside_ns[rows] / graph.dur_ns[rows]
    found = []
    heads = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
    for low, high in zip(heads, np.append(heads[1:], len(key)), strict=True):
        nodes, part = rows[low:high], share[low:high]
        duration = graph.dur_ns[nodes].astype(np.float64)
        alone, beside = duration[part < 0.1], duration[part > 0.5]
        if min(len(alone), len(beside)) < LEAST_SAMPLES:
            continue
        first, median, third = np.percentile(alone, [25, 50, 75])
        fastest = float(np.percentile(beside, 10)) / median
        if third - first <= SPREAD * median and 1 / (1 + SPREAD) <= fastest <= 1 + SPREAD:
            rank, name = divmod(int(key[low]), len(graph.names))
            slowdown = max(0.0, float(np.median(beside)) / median - 1)
            found.append(
                Comparison(
                    rank=rank,
                    name=graph.names[name],
                    alone_ns=float(median),
                    alone=nodes[part < 0.1],
                    beside=nodes[part >= 0.1],
                    slowdown=slowdown,
                )
            )
    return found


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
        With other durations; `start_ns` stays as measured. Operations that are comparable with
        themselves alone get that duration; of the others the slowdown is taken out of the part
        that ran beside a transfer.
    """
    beside = overlap_ns(graph, measured_busy(graph))
    duration = graph.dur_ns - beside * slowdown / (1 + slowdown)
    for same in comparisons(graph):
        duration[same.beside] = same.alone_ns
    changed = np.where(sensitive(graph), np.rint(duration).astype(np.int64), graph.dur_ns)
    return graph.with_(dur_ns=changed)


def overlap_ns(graph: ExecutionGraph, busy: Sequence[Busy]) -> Float:
    """Measured time of each node with a transfer of its rank in flight, shape (N,)."""
    start, end = graph.start_ns.astype(np.float64), graph.end_ns.astype(np.float64)
    out = np.zeros(graph.num_nodes)
    for r, (low, high) in enumerate(
        zip(graph.rank_ptr[:-1].tolist(), graph.rank_ptr[1:].tolist(), strict=True)
    ):
        out[low:high] = busy[r].until(end[low:high]) - busy[r].until(start[low:high])
    return out


def disturbed(
    compressed: CompressedGraph,
    program: Program,
    first: Replay,
    rerun: Callable[[Program], Replay],
    scale: Float,
    slowdown: float,
) -> tuple[Program, Replay, bool]:
    """Slow compute down beside the simulated transfers.

    Compute changes when transfers begin, and transfers change how long compute takes, so the
    graph is replayed until both agree.

    Parameters
    ----------
    compressed : CompressedGraph
        The graph, with undisturbed durations.
    program : Program
        Of that graph.
    first : Replay
        Its replay with these durations.
    rerun : callable
        Replays a program with other durations.
    scale : float64, shape (NUM_PART_KINDS,)
        What each kind of part is multiplied by.
    slowdown : float
        How much longer compute takes beside a transfer, as a fraction.

    Returns
    -------
    program : Program
        With the durations found (before scaling).
    replay : Replay
        With them.
    settled : bool
        Whether durations and transfers agree.
    """
    graph = compressed.graph
    kind_scale = scale[program.part_kind]
    parts = np.flatnonzero(_sensitive_parts(compressed) & (program.part_ns > 0) & (kind_scale > 0))
    node = np.repeat(np.arange(graph.num_nodes), np.diff(program.part_ptr))[parts]
    rank = graph.rank_index[node]
    work = (program.part_ns * kind_scale)[parts]
    happened = first
    for _ in range(MOST_ROUNDS):
        length = program.part_ns * kind_scale
        until = np.concatenate([[0.0], np.cumsum(length)])
        begin = happened.start[node] + until[parts] - until[program.part_ptr[node]]
        busy = simulated_busy(graph, happened.release, happened.end)
        finish = np.empty(len(parts))
        for r, intervals in enumerate(busy):
            mine = rank == r
            finish[mine] = intervals.finish(begin[mine], work[mine], slowdown)
        changed = program.part_ns.copy()
        changed[parts] = (finish - begin) / kind_scale[parts]
        before = happened.end
        program = program._replace(part_ns=changed)
        happened = rerun(program)
        if np.abs(happened.end - before).max(initial=0.0) <= SETTLED * happened.end.max(initial=1):
            return program, happened, True
    return program, happened, False


def _sensitive_parts(compressed: CompressedGraph) -> NDArray[np.bool_]:
    """Parts that stand for the work of sensitive nodes."""
    original = compressed.original
    out = np.zeros(len(compressed.part_ns), dtype=np.bool_)
    nodes = np.flatnonzero(sensitive(original) & (compressed.part_of >= 0))
    out[compressed.part_of[nodes]] = True
    return out
