"""From the plans that operations follow to the ports and transfers that the engine shares out.

Ports are numbered anew, from those that any transfer uses, and ports that are always loaded alike
become one. Where several members of an operation have a transfer each, a member's own ports carry
its own; what goes through the root's ports, or through links that are no member's, is divided
among those that it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graph.columns import SYMMETRIC, Collective, Kind
from .algorithms import layout as on
from .algorithms.layout import Layout, nic_place, place_in, port_parts, port_width, uplink_place
from .algorithms.plans import make_plan
from .algorithms.traffic import pair_rows
from .operations import ROOTED
from .ports import Ports, PortSets, Transfers, merge_alike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from .algorithms.layout import Shape
    from .algorithms.names import Algorithm
    from .algorithms.traffic import Rows
    from .collectives import Phases
    from .network import Network
    from .operations import Operations

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

# Who of a pair a transfer belongs to.
_BOTH, _START, _END = range(3)


class Chosen(NamedTuple):
    """The plans that operations follow (K of them; S stages, T tiers).

    Attributes
    ----------
    operation : int64, shape (K,)
        Index into the `Operations`.
    algorithm : list of str, length K
        Of each.
    work_ns_per_byte : float64, shape (K, S)
        Time that the ports of each stage take.
    share : float64, shape (K, S, T)
        Part of the bandwidth of a tier's ports that its bytes reach: less than 1 with protocols
        that spend bytes on the wire for something else.
    stages : int64, shape (K,)
        How many stages each has.
    """

    operation: Int
    algorithm: list[Algorithm]
    work_ns_per_byte: Float
    share: Float
    stages: Int


class Rated(NamedTuple):
    """What every instance follows (I instances, S stages).

    Attributes
    ----------
    chosen : int64, shape (I,)
        Index into the `Chosen`; -1 where the measured time is kept.
    phases : Phases
        Time of its stages, shape (I, S); a measured time is all in the first.
    """

    chosen: Int
    phases: Phases


class Traffic(NamedTuple):
    """What the engine shares out."""

    ports: Ports
    sets: PortSets
    transfers: Transfers


def make_traffic(
    graph: ExecutionGraph,
    instances: Instances,
    network: Network,
    coordinates: Int,
    operations: Operations,
    chosen: Chosen,
    rated: Rated,
) -> Traffic:
    """Make the transfers of all instances, and the ports that they use.

    Parameters
    ----------
    graph, instances
        The job.
    network : Network
        Whose ports they are.
    coordinates : int64, shape (W, T)
        Place of every rank.
    operations, chosen, rated
        What the instances do, and how.
    """
    count = np.diff(instances.ptr)
    apart = _apart(graph, instances)
    ptr = np.concatenate([[0], np.cumsum(np.where(apart, count, 1))])
    instance = np.repeat(np.arange(len(instances)), count)
    within = np.arange(len(instances.node)) - instances.ptr[instance]
    of_member = ptr[instance] + np.where(apart[instance], within, 0)
    of_transfer = np.repeat(np.arange(len(instances)), np.diff(ptr))

    part = np.zeros(len(of_transfer), dtype=np.int64)
    alone = apart[instance]
    part[of_member[alone]] = _parts(graph, instances, operations, instance)[alone]
    plan = rated.chosen[of_transfer]
    stages = np.where(plan >= 0, chosen.stages[plan], 0) if len(chosen.stages) else plan * 0
    phases = np.maximum(stages, 1)
    start = np.concatenate([[0], np.cumsum(phases)])
    transfer = np.repeat(np.arange(len(phases)), phases)
    stage = np.arange(start[-1]) - start[transfer]
    row = of_transfer[transfer]
    fixed = rated.phases.fixed_ns[row, stage]
    work = rated.phases.work_ns[row, stage]

    shared = (stages[transfer] > 0) & (work > 0)
    sets, index = _SetTable.of(plan[transfer][shared], part[transfer][shared], stage[shared])
    phase_set = np.zeros(len(transfer), dtype=np.int64)
    phase_set[shared] = index + 1
    ports, port_sets = _ports(network, coordinates, operations, chosen, sets)
    return Traffic(ports, port_sets, Transfers(start, fixed, work, phase_set, of_member))


def _apart(graph: ExecutionGraph, instances: Instances) -> NDArray[np.bool_]:
    """Instances whose members have a transfer each, shape (I,)."""
    apart = ~np.isin(instances.coll, [int(coll) for coll in SYMMETRIC])
    eager = graph.eager[instances.node] & (graph.kind[instances.node] == Kind.SEND)
    has_eager = np.zeros(len(instances), dtype=np.bool_)
    has_eager[np.repeat(np.arange(len(instances)), np.diff(instances.ptr))[eager]] = True
    eager_pair: NDArray[np.bool_] = (instances.coll != Collective.SEND_RECV) | has_eager
    return apart & eager_pair


def _parts(
    graph: ExecutionGraph,
    instances: Instances,
    operations: Operations,
    instance: Int,
) -> Int:
    """Say which part of its operation each member does: its index in the group, or the end."""
    part = np.zeros(len(instances.node), dtype=np.int64)
    pair = instances.coll[instance] == Collective.SEND_RECV
    sends = graph.kind[instances.node] == Kind.SEND
    part[pair] = np.where(sends[pair], _START, _END)
    rooted = np.flatnonzero(np.isin(instances.coll[instance], ROOTED))
    rank = graph.ranks[graph.rank_index[instances.node[rooted]]]
    operation = operations.of[instance[rooted]]
    for index in np.unique(operation).tolist():
        here = operation == index
        members = operations.members[index]
        order = np.argsort(members)
        part[rooted[here]] = order[np.searchsorted(members[order], rank[here])]
    return part


class _SetTable(NamedTuple):
    """The sets that are needed: a stage of a part of a plan (G of them)."""

    plan: Int
    part: Int
    stage: Int

    @classmethod
    def of(cls, plan: Int, part: Int, stage: Int) -> tuple[_SetTable, Int]:
        """Tell them apart; also says which each was."""
        parts, stages = int(part.max(initial=0)) + 1, int(stage.max(initial=0)) + 1
        code, index = np.unique((plan * parts + part) * stages + stage, return_inverse=True)
        table = cls(code // stages // parts, code // stages % parts, code % stages)
        return table, index.reshape(-1)


class _SetRows(NamedTuple):
    """Bytes through ports, by set (L rows)."""

    of: Int
    port: Int
    amount: Float


def _ports(
    network: Network,
    coordinates: Int,
    operations: Operations,
    chosen: Chosen,
    sets: _SetTable,
) -> tuple[Ports, PortSets]:
    """Load the ports of every set; the first set is empty."""
    shape = on.shape_of(network.tiers)
    coll = np.array([operations.coll[k] for k in chosen.operation], dtype=np.int64)
    is_pair = coll[sets.plan] == Collective.SEND_RECV if len(coll) else sets.plan < 0
    found = [_pair_sets(shape, coordinates, operations, chosen, sets, np.flatnonzero(is_pair))]
    first = np.searchsorted(sets.plan, np.arange(len(coll) + 1))
    for plan in np.unique(sets.plan[~is_pair]).tolist():
        here = np.arange(first[plan], first[plan + 1])
        operation = int(chosen.operation[plan])
        layout = Layout(shape, coordinates[operations.members[operation]])
        root, weights = operations.root[operation], operations.weights[operation]
        made = make_plan(layout, operations.coll[operation], chosen.algorithm[plan], root, weights)
        for index in here.tolist():
            rows = made.stages[sets.stage[index]].rows
            if coll[plan] in ROOTED:
                gives = coll[plan] in (Collective.BROADCAST, Collective.SCATTER)
                rows = _own_rows(rows, int(sets.part[index]), root or 0, layout.size, gives=gives)
            found.append(_SetRows(np.full(len(rows.port), index), rows.port, rows.amount))
    rows = _SetRows(*(np.concatenate(column) for column in zip(*found, strict=True)))

    number, port = np.unique(rows.port, return_inverse=True)
    tier = port_parts(number)[0]
    plan, stage = sets.plan[rows.of], sets.stage[rows.of]
    amount = rows.amount / chosen.share[plan, stage, tier[port]]
    code, which = np.unique(rows.of * len(number) + port, return_inverse=True)
    total = np.zeros(len(code))
    np.add.at(total, which, amount)
    owner, port = code // max(len(number), 1), code % max(len(number), 1)
    speed = np.array([tier.effective_gb_s for tier in network.tiers])
    capacity = port_width(shape, number) * speed[tier]
    load = total / chosen.work_ns_per_byte[sets.plan[owner], sets.stage[owner]]
    ptr = np.concatenate([[0, 0], np.searchsorted(owner, np.arange(1, len(sets.plan) + 1))])
    scope = np.array([network.scopes.index(name) for name in network.tier_names])
    ports = Ports(
        capacity,
        scope[tier],
        _names(network, shape, coordinates, number),
    )
    return merge_alike(ports, PortSets(ptr, port, np.minimum(load, capacity[port])))


def _own_rows(rows: Rows, member: int, root: int, size: int, *, gives: bool) -> Rows:
    """Traffic of one member of a rooted operation."""
    of_root = (rows.owner == root) | (rows.owner < 0)
    if not gives:
        return _some(rows, of_root if member == root else rows.owner == member)
    if member == root:
        return _some(rows, np.zeros(len(rows.port), dtype=np.bool_))
    divided = np.where(of_root, rows.amount / (size - 1), rows.amount)
    return _some(rows._replace(amount=divided), of_root | (rows.owner == member))


def _some(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    return type(rows)(rows.port[chosen], rows.amount[chosen], rows.owner[chosen])


def _pair_sets(
    shape: Shape,
    coordinates: Int,
    operations: Operations,
    chosen: Chosen,
    sets: _SetTable,
    index: Int,
) -> _SetRows:
    """Load the ports of sends and receives, all at once since there may be very many."""
    if not len(index):
        return _SetRows(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    plans, pair = np.unique(sets.plan[index], return_inverse=True)
    ends = np.array([operations.members[k] for k in chosen.operation[plans]])
    rows = pair_rows(shape, coordinates[ends[:, 0]], coordinates[ends[:, 1]])
    order = np.argsort(rows.pair, kind="stable")
    begin = np.searchsorted(rows.pair[order], pair)
    count = np.searchsorted(rows.pair[order], pair, side="right") - begin
    which = np.repeat(np.arange(len(index)), count)
    within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    row = order[begin[which] + within]
    part = sets.part[index][which]
    used = (part == _BOTH) | (rows.at_end[row] == (part == _END))
    row = row[used]
    return _SetRows(index[which[used]], rows.port[row], rows.amount[row])


def _names(network: Network, shape: Shape, coordinates: Int, number: Int) -> tuple[str, ...]:
    """What ports are, for people."""
    tier, kind, place = (column.tolist() for column in port_parts(number))
    names = []
    ranks = _RankNames(shape, coordinates)
    scopes = network.tier_names
    for t, k, at in zip(tier, kind, place, strict=True):
        scope = scopes[t]
        if k in (on.OUT, on.IN):
            names.append(f"{scope} {'out of' if k == on.OUT else 'into'} {ranks.of_nic(t, at)}")
        elif k in (on.UPLINK_OUT, on.UPLINK_IN):
            way = "out of" if k == on.UPLINK_OUT else "into"
            names.append(f"{scope} uplink {way} {ranks.of_unit(t, at)}")
        else:
            begin, end = ranks.ends(t, k, at)
            names.append(f"{scope} link from {begin} to {end}")
    return tuple(names)


class _RankNames:
    """Names of the ranks at places of the network."""

    def __init__(self, shape: Shape, coordinates: Int) -> None:
        self.shape = shape
        self.coordinates = coordinates
        places = place_in(shape, coordinates)
        self.at = {int(place): rank for rank, place in enumerate(places)}
        self.nics: dict[int, dict[int, list[int]]] = {}
        self.units: dict[int, dict[int, list[int]]] = {}

    def of_nic(self, tier: int, place: int) -> str:
        if tier not in self.nics:
            self.nics[tier] = _by_place(nic_place(self.shape, self.coordinates, tier))
        return _ranks(self.nics[tier][place])

    def of_unit(self, tier: int, place: int) -> str:
        if tier not in self.units:
            self.units[tier] = _by_place(uplink_place(self.shape, self.coordinates, tier))
        return _ranks(self.units[tier][place])

    def ends(self, tier: int, kind: int, place: int) -> tuple[str, str]:
        size = self.shape[tier].size
        stride = int(np.prod([inner.size for inner in self.shape[:tier]], dtype=np.int64))
        if kind == on.LINK:
            place, target = divmod(place, size)
        along = place // stride % size
        if kind != on.LINK:
            target = (along + (1 if kind == on.PLUS else -1)) % size
        return self._name(place), self._name(place + (target - along) * stride)

    def _name(self, place: int) -> str:
        rank = self.at.get(place)
        return f"empty place {place}" if rank is None else f"rank {rank}"


def _by_place(places: Int) -> dict[int, list[int]]:
    ranks: dict[int, list[int]] = {}
    for rank, place in enumerate(places.tolist()):
        ranks.setdefault(place, []).append(rank)
    return ranks


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {ranks[0]} to {ranks[-1]}" if len(ranks) > 2 else f"ranks {ranks[0]}, {ranks[1]}"
