"""What a trace says about its network: the transfer times of its operations, by kind.

Here are chosen the operations whose measured transfer time means what prices mean, and those that
had to share ports are told from those that were alone. What a network would charge the same
operations is in `charges`, what network explains the times in `fit`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import SYMMETRIC, Collective
from ..simulator.choice import candidate_plans
from ..simulator.operations import find_operations, sizes_of, unique_rows
from ..simulator.pricing import price
from .in_flight import divided_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from ..simulator.choice import Plans
    from ..simulator.network import Network
    from ..simulator.operations import Operations
    from ..simulator.placement import Placement
    from ..simulator.pricing import Prices

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]
    Bool = NDArray[np.bool_]

#: A transfer counts for at most this factor more or less than the median of its kind.
_OUTLIER_FACTOR = 2.0

#: Transfers that met others and are simulated at most, to fit a network in seconds.
MOST_MEETING = 500

#: Two transfers meet if they overlap by more than this share of the shorter one: clocks that differ
#: a little let neighbours overlap.
_CHANCE = 0.02


@dataclass(frozen=True)
class Observed:
    """Measured transfers (N of them), in kinds that cost the same (K of them).

    Attributes
    ----------
    coll, size_bytes : int64, shape (K,)
        `Collective`, and the input bytes of one rank; 0 for barriers.
    ranks, domains : int64, shape (K,)
        Members of the group, and scale-up domains that hold them.
    operation : int64, shape (K,)
        One operation of the kind, as an index into `plans`.
    shared : bool, shape (K,)
        Whether these transfers met others on their ports, so that how long they took depends on
        when the others were in flight.
    plans : Plans
        What the operations of the graph may do; for every speed of the network.
    instance : int64, shape (N,)
        Instance of each transfer, ascending by its start within a kind.
    kind : int64, shape (N,)
        Its kind, ascending.
    step : int64, shape (N,)
        The step in which it was launched.
    sample_ns : float64, shape (N,)
        How long it took, of those that met others divided among them (`in_flight`); at least half
        and at most twice the median of its kind: a replay needs the sum of transfer times, but
        not one that a single stall dominates.
    median_ns : float64, shape (K,)
        Median transfer time as measured, undivided.
    meeting : int64, shape (L,)
        Instances that met others on their ports, whether they are used or not; of very many the
        first.
    left_out : dict of str to int
        Operations that say nothing usable, by what is the matter with them.
    """

    coll: Int
    size_bytes: Int
    ranks: Int
    domains: Int
    operation: Int
    shared: Bool
    plans: Plans
    instance: Int
    kind: Int
    step: Int
    sample_ns: Float
    median_ns: Float
    meeting: Int
    left_out: dict[str, int]

    def __len__(self) -> int:
        return len(self.coll)

    @property
    def count(self) -> Int:
        """Transfers of each kind, shape (K,)."""
        return np.bincount(self.kind, minlength=len(self))

    @property
    def transfer_ns(self) -> Float:
        """Mean of the samples of each kind, shape (K,)."""
        total = np.bincount(self.kind, self.sample_ns, minlength=len(self))
        mean: Float = total / np.maximum(self.count, 1)
        return mean

    def some(self, chosen: Bool) -> Observed:
        """Some of the transfers, and the kinds that these are of."""
        kinds, kind = np.unique(self.kind[chosen], return_inverse=True)
        return replace(
            self,
            coll=self.coll[kinds],
            size_bytes=self.size_bytes[kinds],
            ranks=self.ranks[kinds],
            domains=self.domains[kinds],
            operation=self.operation[kinds],
            shared=self.shared[kinds],
            median_ns=self.median_ns[kinds],
            instance=self.instance[chosen],
            kind=kind.reshape(-1),
            step=self.step[chosen],
            sample_ns=self.sample_ns[chosen],
        )


def observe(
    graph: ExecutionGraph, instances: Instances, network: Network, placement: Placement
) -> Observed:
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
    network : Network
        Its shape and its algorithms count; its speeds only where algorithms compete for which
        ports they use.
    placement : Placement
        Where the ranks of the job sit in the network.

    Returns
    -------
    Observed

    Raises
    ------
    NetworkError, GraphError
        As `simulator.pricing.price`.
    """
    prices = price(graph, instances, network, placement)
    operations = find_operations(graph, instances, placement)
    plans = candidate_plans(network, placement.coordinates_in(network), operations)
    members, domains = _spread(operations, placement)
    alike = _alike(plans, operations)
    transfer = np.zeros(len(instances), dtype=np.int64)
    if len(instances):
        transfer = np.maximum.reduceat(graph.transfer_ns[instances.node], instances.ptr[:-1])
    usable, left_out = _usable(instances, members[operations.of], transfer)
    meeting = _meeting(graph, instances, prices)
    simulated, complete = _first(graph, instances, meeting)
    beyond = usable & meeting & ~complete
    if beyond.any():
        reason = f"that shared ports, after the first {MOST_MEETING} of these"
        left_out[reason] = int(beyond.sum())

    chosen = np.flatnonzero(usable & ~beyond)
    first = instances.node[instances.ptr[chosen]]
    operation = operations.of[chosen]
    kinds, kind = unique_rows(
        alike[operation], sizes_of(graph, instances)[chosen], meeting[chosen].astype(np.int64)
    )
    order = np.lexsort((graph.start_ns[first], kind))
    chosen, first, kind, operation = chosen[order], first[order], kind[order], operation[order]
    measured = _divided(graph, instances, meeting, transfer)[chosen]
    begin = np.searchsorted(kind, np.arange(len(kinds)))
    median = _medians(measured, begin)
    example = operation[begin] if len(kinds) else np.zeros(0, dtype=np.int64)
    least, most = median[kind] / _OUTLIER_FACTOR, median[kind] * _OUTLIER_FACTOR
    return Observed(
        coll=np.array([operations.coll[o] for o in example.tolist()], dtype=np.int64),
        size_bytes=kinds[:, 1],
        ranks=members[example],
        domains=domains[example],
        operation=example,
        shared=kinds[:, 2].astype(np.bool_),
        plans=plans,
        instance=chosen,
        kind=kind,
        step=graph.step[first].astype(np.int64),
        sample_ns=np.clip(measured, least, most),
        median_ns=_medians(transfer[chosen], begin),
        meeting=np.flatnonzero(simulated),
        left_out=left_out,
    )


def _divided(graph: ExecutionGraph, instances: Instances, meeting: Bool, transfer_ns: Int) -> Float:
    """Transfer time of every instance, of those that met others divided among these."""
    time = transfer_ns.astype(np.float64)
    members = np.diff(instances.ptr)
    node = instances.node[np.repeat(meeting, members)]
    if len(node):
        end = (graph.end_ns - graph.tail_ns)[node].astype(np.float64)
        begin = end - np.maximum(graph.transfer_ns[node], 0)
        ptr = np.concatenate([[0], np.cumsum(members[meeting])])
        time[meeting] = divided_ns(begin, end, graph.rank_index[node], ptr)
    return time


def _medians(times: Float | Int, begin: Int) -> Float:
    """Median of each kind, which begin at given places."""
    parts = np.split(times, begin[1:]) if len(begin) else []
    return np.array([float(np.median(part)) for part in parts])


def _spread(operations: Operations, placement: Placement) -> tuple[Int, Int]:
    """Members of each operation, and domains that hold them."""
    members = np.array([len(ranks) for ranks in operations.members], dtype=np.int64)
    domains = [len(np.unique(placement.domains_of(ranks))) for ranks in operations.members]
    return members, np.array(domains, dtype=np.int64)


def _alike(plans: Plans, operations: Operations) -> Int:
    """Number the operations so that those that cost the same have the same number."""
    numbers: dict[tuple[object, ...], int] = {}
    columns = plans.costings
    found = []
    for index, coll in enumerate(operations.coll):
        rows = slice(plans.first[index], plans.first[index + 1])
        key = (coll, len(operations.members[index]), *(c[rows].tobytes() for c in columns))
        found.append(numbers.setdefault(key, len(numbers)))
    return np.array(found, dtype=np.int64)


def _usable(instances: Instances, members: Int, transfer_ns: Int) -> tuple[Bool, dict[str, int]]:
    """Choose the instances that `observe` uses, and count the others by reason."""
    coll = instances.coll
    joint = np.isin(coll, [int(c) for c in SYMMETRIC]) | (coll == Collective.SEND_RECV)
    usable = members > 1
    left_out: Counter[str] = Counter()
    for other in np.unique(coll[usable & ~joint]):
        reason = f"{Collective(other).label} (not all members wait for each other)"
        left_out[reason] = int((usable & (coll == other)).sum())
    usable = usable & joint
    for reason, fine in (
        ("with members that were not traced", np.diff(instances.ptr) == members),
        ("without a size", (instances.size_bytes >= 0) | (coll == Collective.BARRIER)),
        ("without a positive transfer time", transfer_ns > 0),
    ):
        left_out[reason] = int((usable & ~fine).sum())
        usable = usable & fine
    return usable, {reason: count for reason, count in left_out.items() if count}


def _meeting(graph: ExecutionGraph, instances: Instances, prices: Prices) -> Bool:
    """Instances whose measured transfer was in flight with another on the same port, shape (I,)."""
    found = np.zeros(len(instances), dtype=np.bool_)
    transfers = prices.transfers
    if transfers is None:
        return found
    member = np.flatnonzero(graph.transfer_ns[instances.node] > 0)
    node = instances.node[member]
    end = graph.end_ns[node] - graph.tail_ns[node]
    begin = end - graph.transfer_ns[node]

    # A row for each port of each member; members of one operation do not meet each other.
    transfer = transfers.of_member[member]
    phases = transfers.ptr[transfer + 1] - transfers.ptr[transfer]
    of, phase = _ranges(transfers.ptr[transfer], phases)
    used = transfers.phase_set[phase]
    at, place = _ranges(prices.sets.ptr[used], np.diff(prices.sets.ptr)[used])
    instance = np.repeat(np.arange(len(instances)), np.diff(instances.ptr))[member]
    rows, index = unique_rows(
        prices.sets.port[place], instance[of[at]], begin[of[at]] - begin.min(initial=0)
    )
    until = np.zeros(len(rows), dtype=np.int64)
    np.maximum.at(until, index, end[of[at]] - begin.min(initial=0))
    for port in range(len(prices.ports)):
        here = np.arange(*np.searchsorted(rows[:, 0], [port, port + 1]))
        here = here[np.argsort(rows[here, 2], kind="stable")]
        found[rows[here, 1]] |= _overlaps(rows[here, 1], rows[here, 2], until[here])
    return found


def _first(graph: ExecutionGraph, instances: Instances, meeting: Bool) -> tuple[Bool, Bool]:
    """Which instances that met others are simulated, and which of them with all that they met."""
    chosen = np.flatnonzero(meeting)
    if len(chosen) <= MOST_MEETING:
        return meeting, meeting
    end = (graph.end_ns - graph.tail_ns)[instances.node]
    begin = end - np.maximum(graph.transfer_ns[instances.node], 0)
    first = np.minimum.reduceat(begin, instances.ptr[:-1])
    last = np.maximum.reduceat(end, instances.ptr[:-1])
    order = chosen[np.argsort(first[chosen], kind="stable")]
    simulated = np.zeros(len(instances), dtype=np.bool_)
    simulated[order[:MOST_MEETING]] = True
    # Whatever it met begins before its end.
    return simulated, simulated & (last <= first[order[MOST_MEETING]])


def _overlaps(owner: Int, begin: Int, end: Int) -> Bool:
    """Which intervals, by ascending begin, overlap one of another owner by more than chance."""
    overlaps = np.zeros(len(owner), dtype=np.bool_)
    if not (begin[1:] < np.maximum.accumulate(end)[:-1]).any():
        return overlaps
    active: list[tuple[int, int, int, int]] = []
    for row, (who, start, stop) in enumerate(
        zip(owner.tolist(), begin.tolist(), end.tolist(), strict=True)
    ):
        active = [one for one in active if one[1] > start]
        for first, last, whose, other in active:
            least = _CHANCE * min(stop - start, last - first)
            if whose != who and min(stop, last) - start > least:
                overlaps[[row, other]] = True
        active.append((start, stop, who, row))
    return overlaps


def _ranges(first: Int, count: Int) -> tuple[Int, Int]:
    """Concatenate ranges: which each number is of, and the numbers."""
    of = np.repeat(np.arange(len(count)), count)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count) + first[of]
