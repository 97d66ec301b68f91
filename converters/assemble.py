"""Laying the ranks side by side: one clock, instances with transfer and tail, explicit gaps."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import TraceError
from ..graph.columns import (
    SYMMETRIC,
    Collective,
    EdgeKind,
    ExecutionGraph,
    Kind,
    LaneKind,
    Lanes,
    Steps,
)
from ..graph.steps import headline_ns, step_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import DependencyModel
    from ..graph.coverage import Coverage
    from .match import Matched
    from .nodes import Names, RankNodes
    from .operations import CommOp

#: Size up to which a send is taken as eager where its times do not tell: NCCL's and Gloo's
#: defaults differ, and nothing larger than this leaves without its receiver in either.
EAGER_BYTES = 64 * 1024
#: Ends of a send and its receive that differ by more than this show an eager send.
TOGETHER_NS = 20_000
#: Times further from zero are no times: 146 years, which a clock of 64 bits still holds.
MOST_NS = 1 << 62


@dataclass(frozen=True)
class RankInput:
    """One rank, ready to be laid beside the others.

    Attributes
    ----------
    rank : int
        Global rank number.
    host, device : str
        Host and device name.
    nodes : RankNodes
        Its nodes, on its own clock.
    ops : list of CommOp
        Its communication, in the order that `Matched` refers to.
    offset_ns : int
        What to add to its times to get the common clock.
    begin_ns : tuple of int
        Begin of each step's annotation, on its own clock.
    """

    rank: int
    host: str
    device: str
    nodes: RankNodes
    ops: list[CommOp]
    offset_ns: int
    begin_ns: tuple[int, ...]


@dataclass
class _Transfers:
    """Transfer and tail of every operation, and what was odd about them."""

    transfer: list[NDArray[np.int64]]
    tail: list[NDArray[np.int64]]
    eager: list[NDArray[np.bool_]]
    clock_errors: int = 0


def _times(rank: RankInput) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start and end of each operation of a rank on the common clock, shape (ops,).

    Raises
    ------
    TraceError
        If a time is further away than a clock of 64 bits reaches: a damaged number.
    """
    latest = max(map(abs, (*rank.nodes.start, *rank.nodes.end)), default=0)
    if latest + abs(rank.offset_ns) > MOST_NS:
        raise TraceError(
            "has times that are centuries apart: a number in it is damaged", rank=rank.rank
        )
    start = np.zeros(len(rank.ops), dtype=np.int64)
    end = np.zeros(len(rank.ops), dtype=np.int64)
    for node, op in enumerate(rank.nodes.op):
        if op >= 0:
            start[op] = rank.nodes.start[node] + rank.offset_ns
            end[op] = rank.nodes.end[node] + rank.offset_ns
    return start, end


def measure_transfers(
    ranks: Sequence[RankInput], matched: Matched, *, rendezvous: bool = False
) -> _Transfers:
    """Split the measured time of each operation into waiting, transfer and tail.

    Parameters
    ----------
    ranks : sequence of RankInput
        All ranks.
    matched : Matched
        Their operations, joined.
    rendezvous : bool
        Whether no send leaves without its receiver, whatever its size, unless it was done before
        the receiver came.

    Returns
    -------
    _Transfers
        Per rank, arrays over its operations. A transfer that would not be positive is a clock
        error: it is counted and stored as -1.
    """
    times = [_times(rank) for rank in ranks]
    out = _Transfers(
        [np.full(len(r.ops), -1, dtype=np.int64) for r in ranks],
        [np.zeros(len(r.ops), dtype=np.int64) for r in ranks],
        [np.zeros(len(r.ops), dtype=np.bool_) for r in ranks],
    )
    fastest: dict[tuple[int, int, int], int] = {}
    eager_sizes: Counter[int] = Counter()
    for members, absent in zip(matched.instances, matched.missing, strict=True):
        r0, i0 = members[0]
        op = ranks[r0].ops[i0]
        if absent and op.coll in SYMMETRIC:
            key = (int(op.coll), op.size_bytes, matched.group_of[r0][i0])
            span = min(times[r][1][i] for r, i in members) - max(times[r][0][i] for r, i in members)
            if span > 0:
                fastest[key] = min(fastest.get(key, 1 << 62), int(span))
        elif op.coll is Collective.SEND_RECV and len(members) == 2:
            send, recv = sorted(members, key=lambda m: not ranks[m[0]].ops[m[1]].sends)
            if times[recv[0]][1][recv[1]] - times[send[0]][1][send[1]] > TOGETHER_NS:
                eager_sizes[op.size_bytes] += 1
    for members, absent in zip(matched.instances, matched.missing, strict=True):
        r0, i0 = members[0]
        op = ranks[r0].ops[i0]
        starts = np.array([times[r][0][i] for r, i in members], dtype=np.int64)
        ends = np.array([times[r][1][i] for r, i in members], dtype=np.int64)
        tails = np.zeros(len(members), dtype=np.int64)
        root = next((m for m, (r, _) in enumerate(members) if ranks[r].rank == op.peer), -1)
        if op.coll in SYMMETRIC:
            span = int(ends.min() - starts.max())
            if absent:
                key = (int(op.coll), op.size_bytes, matched.group_of[r0][i0])
                span = min(span, fastest.get(key, span))
            transfer = np.full(len(members), span, dtype=np.int64)
            if span > 0:
                tails = ends - (starts.max() + span)
        elif op.coll in (Collective.BROADCAST, Collective.SCATTER):
            release = np.maximum(starts, starts[root]) if root >= 0 else starts
            transfer = ends - release
        elif op.coll in (Collective.REDUCE, Collective.GATHER):
            transfer = ends - starts
            if root >= 0:
                transfer[root] = ends[root] - starts.max()
        elif len(members) == 2:
            both = int(starts.max())
            sender = 0 if op.sends else 1
            size = op.size_bytes
            eager = not rendezvous and (eager_sizes[size] > 0 or 0 <= size <= EAGER_BYTES)
            if ends[sender] <= starts[1 - sender]:
                eager = True
            transfer = ends - both
            if eager:
                transfer[sender] = ends[sender] - starts[sender]
            r, i = members[sender]
            out.eager[r][i] = eager
        else:
            transfer = ends - starts
            out.eager[r0][i0] = True
        bad = transfer <= 0
        if bad.any():
            out.clock_errors += 1
            transfer = np.where(bad, -1, transfer)
            if op.coll in SYMMETRIC:
                tails[:] = 0
        for m, (r, i) in enumerate(members):
            out.transfer[r][i] = transfer[m]
            out.tail[r][i] = tails[m]
    return out


def _queue_takes(
    ready: NDArray[np.int64], end: NDArray[np.int64], servers: int
) -> NDArray[np.int64]:
    """When each node of a queue took a server, first come first served, on measured times."""
    free = [-(1 << 62)] * servers
    heapify(free)
    taken = np.empty(len(ready), dtype=np.int64)
    before = -(1 << 62)
    for j in range(len(ready)):
        before = max(before, int(ready[j]), free[0])
        taken[j] = before
        heapreplace(free, int(end[j]))
    return taken


def _completions(
    end: NDArray[np.int64],
    on_device: NDArray[np.bool_],
    step: NDArray[np.int32],
    marker: NDArray[np.int64],
) -> NDArray[np.int64]:
    """When each step was complete: its markers, and all that devices did until then."""
    return np.array(
        [
            max(
                int(end[marker[: k + 1]].max()),
                int(end[on_device & (step <= k)].max(initial=-(1 << 62))),
            )
            for k in range(len(marker))
        ],
        dtype=np.int64,
    )


def assemble(
    ranks: Sequence[RankInput],
    matched: Matched,
    transfers: _Transfers,
    names: Names,
    *,
    model: DependencyModel,
    source: str,
    trace: str,
    world_size: int,
    step_names: tuple[str, ...],
    coverage: Coverage,
) -> ExecutionGraph:
    """Build the columns of the graph.

    Parameters
    ----------
    ranks : sequence of RankInput
        All ranks, by ascending number.
    matched, transfers
        Their operations, joined and measured.
    names : Names
        Table of node names.
    model, source, trace, world_size, step_names, coverage
        As in `ExecutionGraph`.

    Returns
    -------
    ExecutionGraph
    """
    zero = min(r.begin_ns[0] + r.offset_ns for r in ranks)
    columns: dict[str, list[NDArray[np.generic]]] = defaultdict(list)
    rank_ptr = [0]
    dep_counts: list[NDArray[np.int64]] = []
    base: list[int] = []
    lanes: list[tuple[int, int, int, int]] = []
    marker = np.zeros((len(step_names), len(ranks)), dtype=np.int64)
    begin = np.zeros((len(step_names), len(ranks)), dtype=np.int64)
    lane_base = 0
    splits: dict[tuple[int, ...], int] = {}
    recorded_end: list[NDArray[np.int64]] = []
    for r, rank in enumerate(ranks):
        nodes, shift = rank.nodes, rank.offset_ns - zero
        order = nodes.order()
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        start = np.array(nodes.start, dtype=np.int64)[order] + shift
        end = np.array(nodes.end, dtype=np.int64)[order] + shift
        first = min(rank.begin_ns[0] + shift, int(start.min(initial=1 << 62)))
        base.append(first)
        lane = np.array(nodes.lane, dtype=np.int32)[order]
        op = np.array(nodes.op, dtype=np.int64)[order]
        deps = [nodes.deps[n] for n in order.tolist()]
        counts = np.array([len(d) for d in deps], dtype=np.int64)
        dep_node = place[np.array([on for d in deps for on, _, _ in d], dtype=np.int64)]
        dep_kind = np.array([k for d in deps for _, k, _ in d], dtype=np.int8)
        dep_lag = np.array([lag for d in deps for _, _, lag in d], dtype=np.int64)
        moment = np.where(dep_kind == int(EdgeKind.START), start[dep_node], end[dep_node]) + dep_lag
        ready = np.full(len(order), first, dtype=np.int64)
        has = np.flatnonzero(counts)
        ptr = np.concatenate([[0], np.cumsum(counts)])
        if len(has):
            ready[has] = np.maximum.reduceat(moment, ptr[has])
        for number, info in enumerate(nodes.lanes):
            if info.kind is LaneKind.QUEUE:
                rows = np.flatnonzero(lane == number)
                ready[rows] = _queue_takes(ready[rows], end[rows], info.servers)
        gap = start - ready
        if (gap < 0).any():  # a mistake of a builder, not of the trace
            raise AssertionError(f"negative gap on rank {rank.rank}")
        comm = op >= 0
        ops = [rank.ops[i] for i in op[comm].tolist()]
        where = op[comm]

        def fill(
            values: Sequence[object] | NDArray[np.generic],
            default: object,
            dtype: type[np.generic],
            comm: NDArray[np.bool_] = comm,
        ) -> NDArray[np.generic]:
            column = np.full(len(comm), default, dtype=dtype)
            column[comm] = np.asarray(values, dtype=dtype)
            return column

        kind = np.array(nodes.kind, dtype=np.int8)[order]
        columns["kind"].append(kind)
        columns["flavour"].append(np.array(nodes.flavour, dtype=np.int8)[order])
        columns["lane"].append(lane + np.int32(lane_base))
        columns["name"].append(np.array(nodes.name, dtype=np.int32)[order])
        columns["step"].append(np.array(nodes.step, dtype=np.int32)[order])
        columns["start_ns"].append(start)
        columns["dur_ns"].append(end - start)
        recorded_end.append(
            np.array(nodes.recorded_end or nodes.end, dtype=np.int64)[order] + shift
        )
        columns["gap_ns"].append(gap)
        columns["dep_node"].append(dep_node + rank_ptr[-1])
        columns["dep_kind"].append(dep_kind)
        columns["dep_lag_ns"].append(dep_lag)
        dep_counts.append(counts)
        columns["coll"].append(fill([int(o.coll) for o in ops], -1, np.int8))
        columns["size_bytes"].append(fill([o.size_bytes for o in ops], -1, np.int64))
        columns["peer"].append(fill([o.peer for o in ops], -1, np.int32))
        dtypes = [names.index(o.dtype) if o.dtype else -1 for o in ops]
        parts = [splits.setdefault(o.split, len(splits)) if o.split else -1 for o in ops]
        columns["split"].append(fill(parts, -1, np.int32))
        columns["dtype"].append(fill(dtypes, -1, np.int32))
        columns["tag"].append(fill([0] * len(ops), -1, np.int32))
        for name, per_rank, default, dtype in (
            ("group", matched.group_of[r], -1, np.int32),
            ("seq", matched.seq_of[r], -1, np.int64),
            ("instance", matched.instance_of[r], -1, np.int32),
            ("transfer_ns", transfers.transfer[r], -1, np.int64),
            ("tail_ns", transfers.tail[r], 0, np.int64),
            ("eager", transfers.eager[r], False, np.bool_),
        ):
            columns[name].append(fill(np.asarray(per_rank, dtype=dtype)[where], default, dtype))
        is_p2p = (kind == int(Kind.SEND)) | (kind == int(Kind.RECV))
        columns["tag"][-1] = np.where(is_p2p, np.int32(0), columns["tag"][-1])
        lanes += [(r, int(x.kind), x.number, x.servers) for x in nodes.lanes]
        lane_base += len(nodes.lanes)
        for k in range(len(step_names)):
            marker[k, r] = place[nodes.markers[k]] + rank_ptr[-1]
            begin[k, r] = rank.begin_ns[k] + shift
        rank_ptr.append(rank_ptr[-1] + len(order))
    flat = {name: np.concatenate(parts) for name, parts in columns.items()}
    table = np.array(lanes, dtype=np.int64).reshape(-1, 4)
    lane_table = Lanes(
        table[:, 0].astype(np.int32),
        table[:, 1].astype(np.int8),
        table[:, 2].copy(),
        table[:, 3].astype(np.int32),
    )
    end = flat["start_ns"] + flat["dur_ns"]
    on_device = table[flat["lane"], 1] != int(LaneKind.HOST)
    done = on_device, flat["step"], marker
    completion = _completions(end, *done)
    recorded = np.concatenate(recorded_end)
    if (recorded != end).any():
        became, was = (
            headline_ns(step_times(c)) / 1e6 for c in (completion, _completions(recorded, *done))
        )
        coverage.warnings.append(
            f"serial order moves {int((recorded != end).sum())} nodes: the step that is called "
            f"measured is that of the moved timeline, {became:.3f} ms, against {was:.3f} ms in "
            "the trace"
        )
    return ExecutionGraph(
        model=model,
        source=source,
        trace=trace,
        ranks=np.array([r.rank for r in ranks], dtype=np.int64),
        rank_ptr=np.array(rank_ptr, dtype=np.int64),
        world_size=world_size,
        hosts=tuple(r.host for r in ranks),
        devices=tuple(r.device for r in ranks),
        base_ns=np.array(base, dtype=np.int64),
        start_offset_ns=begin[0].copy(),
        names=tuple(names.table),
        dep_ptr=np.concatenate([[0], np.cumsum(np.concatenate(dep_counts))]).astype(np.int64),
        lanes=lane_table,
        groups=tuple(matched.groups),
        steps=Steps(step_names, begin, marker, completion),
        coverage=coverage,
        splits=tuple(splits),
        **flat,
    )
