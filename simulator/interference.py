"""Compute that slows down while a transfer of its rank is in flight.

Communication takes something from the compute beside it: processor time where Gloo's threads and
the kernel's sockets run on the same cores, multiprocessors and memory bandwidth where NCCL's
kernels do. The measured durations contain what it took on the traced network; on another network
other work is beside the transfers. Here a slowdown s says that compute which takes w alone takes
(1 + s) w while a transfer of its rank is in flight (`Network.overlap`). What it
is on links of another speed depends on what takes the time, see `carried_over`.

What an operation takes alone is learnt from the same operation at other times (`alike`): in the
other steps, or where the trace has few, from others of its name. How much is lost beside transfers
is estimated from the difference in `calibration`; what this module does is take it out of measured
durations and put it into simulated ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.once import once_for_each
from ..graph.columns import Collective, Flavour, LaneKind, Worker
from ..graph.repeats import repeated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..graph.compress import CompressedGraph
    from .event_loop import Program, Replay
    from .network import Overlap

    Float = NDArray[np.float64]


#: Share of an operation beside transfers up to which it ran alone, and from which it was beside.
ALONE, BESIDE = 0.1, 0.5
#: Steps in which an operation must be found to say what it takes, and of these how many alone are
#: enough to need no others.
LEAST_STEPS, LEAST_ALONE = 3, 2
#: Without steps, operations of one name are compared from this duration and number of samples on,
#: if the quartiles of those alone lie within this share of their median.
LEAST_NS, LEAST_SAMPLES, SPREAD = 50_000, 5, 0.3
#: No more than this share of the time is said to be lost: a slowdown of 9.
MOST_LOST = 0.9

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
    if graph.worker is not Worker.PROCESS:
        return on_device
    host_work: NDArray[np.bool_] = np.isin(graph.flavour, [int(Flavour.COMPUTE), int(Flavour.HOST)])
    on_host: NDArray[np.bool_] = host_work & (kind == LaneKind.HOST)
    return on_host


@once_for_each
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
    if graph.worker is Worker.PROCESS and comm.any():
        # A rank that has all its data still sends to those that have not: its kernel does, after
        # the operation has ended. A device does no work for others beyond its own kernel.
        last = np.full(int(graph.instance.max()) + 1, -np.inf)
        np.maximum.at(last, graph.instance[comm], end[comm])
        end = np.where(comm, last[graph.instance], end)
    out = []
    for low, high in zip(graph.rank_ptr[:-1].tolist(), graph.rank_ptr[1:].tolist(), strict=True):
        rows = low + np.flatnonzero(comm[low:high])
        out.append(Busy(begin[rows], end[rows]))
    return out


@dataclass(frozen=True)
class Alike:
    """Nodes that ran beside transfers and whose work is known from others (B of them).

    Attributes
    ----------
    node : int64, shape (B,)
        The nodes, for more than `ALONE` of their time beside a transfer.
    same : int64, shape (B,)
        Those that are the same operation have the same number; from 0 on.
    work_ns : float64, shape (B,)
        What the operation takes alone.
    """

    node: NDArray[np.int64]
    same: NDArray[np.int64]
    work_ns: Float


@once_for_each
def alike(graph: ExecutionGraph) -> Alike:
    """Find operations that show what a transfer beside them costs.

    The same operation in several steps is the same work. It takes alone what it took in the
    median where it ran alone; where it never did, what it took in the fastest step, times what
    the median is above the fastest of as many steps where operations did run alone. Of a trace of
    few steps the operations of one name are taken to be the same work where those that ran alone
    agree among themselves and the fastest of the others agree with them.
    """
    chosen = sensitive(graph)
    beside = overlap_ns(graph, measured_busy(graph)) / np.maximum(graph.dur_ns, 1)
    if len(graph.steps) >= LEAST_STEPS:
        return _over_steps(graph, repeated(graph, chosen), beside)
    return _by_name(graph, chosen, beside)


def _over_steps(graph: ExecutionGraph, number: NDArray[np.int64], beside: Float) -> Alike:
    node = np.flatnonzero(number >= 0)
    alone = beside[node] <= ALONE
    # Of each operation those alone first, and these by how long they took.
    order = np.lexsort((graph.dur_ns[node], ~alone, number[node]))
    node, alone = node[order], alone[order]
    duration = graph.dur_ns[node].astype(np.float64)
    head = np.flatnonzero(np.diff(number[node], prepend=-1))
    if not len(head):
        return Alike(node, node, duration)
    count, singles = np.diff(np.append(head, len(node))), np.add.reduceat(alone.astype(int), head)
    middle = head + np.maximum(singles - 1, 0) // 2
    median = (duration[middle] + duration[head + np.maximum(singles, 1) // 2]) / 2
    median = np.where(singles > 1, median, duration[head])
    # What the median of operations that ran alone is above the fastest of them.
    known = singles >= LEAST_STEPS
    fastest = float(duration[head[known]].sum())
    above = float(median[known].sum()) / fastest if fastest > 0 else 1.0
    work = np.where(singles >= LEAST_ALONE, median, np.minimum.reduceat(duration, head) * above)
    kept = (count >= LEAST_STEPS) & (np.maximum.reduceat(duration, head) > 0) & (singles < count)
    rows = np.flatnonzero(np.repeat(kept, count) & ~alone)
    return Alike(
        node=node[rows],
        same=np.repeat(np.cumsum(kept) - 1, count)[rows],
        work_ns=np.repeat(work, count)[rows],
    )


def _by_name(graph: ExecutionGraph, chosen: NDArray[np.bool_], beside: Float) -> Alike:
    enqueues = np.zeros(graph.num_nodes, dtype=np.bool_)
    dependent = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    enqueues[graph.dep_node[graph.coll[dependent] != Collective.NONE]] = True
    on_device = graph.lanes.kind[graph.lane] == LaneKind.STREAM
    chosen = chosen & (graph.flavour == Flavour.COMPUTE) & (~enqueues | on_device)
    rows = np.flatnonzero(chosen & (graph.dur_ns >= LEAST_NS))
    key = graph.rank_index[rows].astype(np.int64) * len(graph.names) + graph.name[rows]
    order = np.argsort(key, kind="stable")
    found, works = [], []
    for nodes in np.split(rows[order], np.flatnonzero(np.diff(key[order])) + 1):
        duration = graph.dur_ns[nodes].astype(np.float64)
        alone, others = duration[beside[nodes] <= ALONE], duration[beside[nodes] > BESIDE]
        if min(len(alone), len(others)) < LEAST_SAMPLES:
            continue
        first, median, third = np.percentile(alone, [25, 50, 75])
        fastest = float(np.percentile(others, 10)) / median
        if third - first <= SPREAD * median and 1 / (1 + SPREAD) <= fastest <= 1 + SPREAD:
            found.append(nodes[beside[nodes] > ALONE])
            works.append(float(median))
    sizes = [len(nodes) for nodes in found]
    return Alike(
        node=np.concatenate([np.zeros(0, dtype=np.int64), *found]),
        same=np.repeat(np.arange(len(found)), sizes),
        work_ns=np.repeat(np.array(works), sizes),
    )


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
        With other durations; `start_ns` stays as measured. Operations that are `alike` others
        take what these take alone; of the rest the slowdown is taken out of the part that ran
        beside a transfer.
    """
    beside = overlap_ns(graph, measured_busy(graph))
    duration = graph.dur_ns - beside * slowdown / (1 + slowdown)
    known = alike(graph)
    duration[known.node] = known.work_ns
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


def carried_over(graph: ExecutionGraph, replay: Replay, overlap: Overlap) -> float:
    """Give the slowdown that holds in a simulation.

    With r the time that ranks have transfers in flight there, in units of what was measured, the
    share of that time which compute loses is ``r ** exponent`` times the one measured.

    Parameters
    ----------
    graph : ExecutionGraph
        With measured transfers; without, the slowdown is as it stands.
    replay : Replay
        Of the simulation, with undisturbed durations.
    overlap : Overlap
        Of the network.
    """
    lost = overlap.slowdown / (1 + overlap.slowdown)
    measured = sum(float((busy.end - busy.begin).sum()) for busy in measured_busy(graph))
    if measured > 0:
        here = simulated_busy(graph, replay.release, replay.end)
        simulated = sum(float((busy.end - busy.begin).sum()) for busy in here)
        lost = min(lost * (simulated / measured) ** overlap.exponent, MOST_LOST)
    return lost / (1 - lost)


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
