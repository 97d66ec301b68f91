"""What a trace says about its network: the transfer times of its operations, aggregated.

Here are chosen the operations whose measured transfer time means what the closed forms price.
What network would explain these times is in `estimate`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import SYMMETRIC, Collective
from ..simulator.collectives import Spread, price_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from ..simulator.collectives import Costs
    from ..simulator.network import Tier
    from ..simulator.placement import Placement


#: A transfer counts for at most this factor more or less than the median of its kind.
_OUTLIER_FACTOR = 2.0


@dataclass(frozen=True)
class Observed:
    """Operations alike in type, size and spread over the scale-up domains, as rows (length K).

    Attributes
    ----------
    coll : int8
        `Collective`.
    size_bytes : int64
        Input bytes of one rank; 0 for barriers.
    spread : Spread
        How the members sit in the domains.
    count : int64
        How many operations there are of the kind.
    transfer_ns : float64
        Mean of their transfer times, each counted as at least half and at most twice the median:
        the replay needs their sum, not the typical one, but not a sum that a stall dominates.
    median_ns : float64
        Median of their transfer times.
    overlapping : int
        Operations, over all rows, during whose transfer one of their ranks has another transfer
        under way.
    left_out : dict of str to int
        Operations that say nothing usable, by what is the matter with them.
    """

    coll: NDArray[np.int8]
    size_bytes: NDArray[np.int64]
    spread: Spread
    count: NDArray[np.int64]
    transfer_ns: NDArray[np.float64]
    median_ns: NDArray[np.float64]
    overlapping: int
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.coll)

    def costs(self, tiers: Sequence[Tier]) -> list[tuple[NDArray[np.intp], Costs]]:
        """Price the rows: for each type of operation its row numbers and their costs."""
        priced = []
        for coll in np.unique(self.coll):
            rows = np.flatnonzero(self.coll == coll)
            size = self.size_bytes[rows].astype(np.float64)
            costs = price_spread(Collective(coll), size, self.spread.take(rows), tiers)
            priced.append((rows, costs))
        return priced


def observe(graph: ExecutionGraph, instances: Instances, placement: Placement) -> Observed:
    """Gather the measured transfers of a graph.

    Used are operations in which all members wait for each other, and pairs of send and receive:
    their transfer time is that of the whole operation. Those with members outside the trace are
    not, because who was not seen may have come last; nor are those without a size or a positive
    transfer time.

    Parameters
    ----------
    graph : ExecutionGraph
        Of a trace.
    instances : Instances
        Of that graph.
    placement : Placement
        Where the ranks of the job sit.

    Returns
    -------
    Observed

    Raises
    ------
    GraphError
        If a group or a peer is not among the ranks of the job.
    """
    spread = _spread(graph, instances, placement)
    transfer = np.zeros(len(instances), dtype=np.int64)
    if len(instances):
        transfer = np.maximum.reduceat(graph.transfer_ns[instances.node], instances.ptr[:-1])
    usable, left_out = _usable(instances, spread, transfer)

    chosen = np.flatnonzero(usable)
    size = np.maximum(instances.size_bytes[chosen], 0)
    of = spread.take(chosen)
    kinds, row, count = np.unique(
        np.stack([instances.coll[chosen], size, of.members, of.domains, of.most, of.fewest]),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    order = np.argsort(row.reshape(-1), kind="stable")
    times = np.split(transfer[chosen][order], np.cumsum(count)[:-1]) if len(chosen) else []
    median = np.array([np.median(time) for time in times])
    mean = np.array(
        [
            np.clip(time, middle / _OUTLIER_FACTOR, middle * _OUTLIER_FACTOR).mean()
            for time, middle in zip(times, median, strict=True)
        ]
    )
    return Observed(
        coll=kinds[0].astype(np.int8),
        size_bytes=kinds[1],
        spread=Spread(kinds[2], kinds[3], kinds[4], kinds[5], np.zeros(len(count), np.int64)),
        count=count,
        transfer_ns=mean,
        median_ns=median,
        overlapping=int(_overlapping(graph, instances)[chosen].sum()),
        left_out=left_out,
    )


def _spread(graph: ExecutionGraph, instances: Instances, placement: Placement) -> Spread:
    """How the members that every instance should have sit in the domains."""
    first = instances.node[instances.ptr[:-1]]
    here = graph.ranks[graph.rank_index[first]]
    there = graph.peer[first].astype(np.int64)
    pair = instances.coll == Collective.SEND_RECV
    keys, row = np.unique(
        np.stack([np.where(pair, here, -1), np.where(pair, there, instances.group)]),
        axis=1,
        return_inverse=True,
    )
    members: list[NDArray[np.int64] | list[int]] = []
    for rank, other in keys.T.tolist():
        if other < 0:
            members.append([0])  # no group, or no peer: as good as alone
        elif rank < 0:
            members.append(placement.domains_of(graph.groups[other].ranks))
        else:
            members.append(placement.domains_of(sorted({rank, other})))
    return Spread.of(members).take(row.reshape(-1))


def _usable(
    instances: Instances, spread: Spread, transfer_ns: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], dict[str, int]]:
    """Choose the instances that `observe` uses, and count the others by reason."""
    coll = instances.coll
    joint = np.isin(coll, [int(c) for c in SYMMETRIC]) | (coll == Collective.SEND_RECV)
    usable = spread.members > 1
    left_out: Counter[str] = Counter()
    for other in np.unique(coll[usable & ~joint]):
        reason = f"{Collective(other).label} (not all members wait for each other)"
        left_out[reason] = int((usable & (coll == other)).sum())
    usable = usable & joint
    for reason, fine in (
        ("with members that were not traced", np.diff(instances.ptr) == spread.members),
        ("without a size", (instances.size_bytes >= 0) | (coll == Collective.BARRIER)),
        ("without a positive transfer time", transfer_ns > 0),
    ):
        left_out[reason] = int((usable & ~fine).sum())
        usable = usable & fine
    return usable, {reason: count for reason, count in left_out.items() if count}


def _overlapping(graph: ExecutionGraph, instances: Instances) -> NDArray[np.bool_]:
    """Instances during whose transfer one of their ranks has another under way, shape (I,)."""
    overlapping = np.zeros(len(instances), dtype=np.bool_)
    node = instances.node[graph.transfer_ns[instances.node] > 0]
    end = graph.end_ns[node] - graph.tail_ns[node]
    begin = end - graph.transfer_ns[node]
    rank = graph.rank_index[node]
    for r in range(graph.num_ranks):
        order = np.flatnonzero(rank == r)
        order = order[np.argsort(begin[order], kind="stable")]
        latest = np.maximum.accumulate(end[order])
        with_earlier = begin[order][1:] < latest[:-1]
        with_later = begin[order][1:] < end[order][:-1]
        overlapping[graph.instance[node[order[1:]][with_earlier]]] = True
        overlapping[graph.instance[node[order[:-1]][with_later]]] = True
    return overlapping
