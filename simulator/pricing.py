"""The price of every operation of a graph on a network: transfer times without contention.

Pricing looks at what is sent and where its members sit, never at when: waiting for members and
the order of operations belong to the engine, the formulas to `collectives`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import GraphError
from ..base.units import format_ns
from ..graph.columns import Collective
from .collectives import Spread, price_spread
from .network import TIER_NAMES, check_priced

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from .network import Network
    from .placement import Placement


@dataclass(frozen=True)
class Prices:
    """Transfer time of every instance, by cause (I instances, T tiers).

    Attributes
    ----------
    tiers : tuple of str, length T
        ``scaleup``, and ``scaleout`` where the network has two tiers.
    base_ns : float64, shape (I,)
        Fixed cost; for an instance that keeps its measured transfer time, all of it.
    endpoint_ns : float64, shape (I,)
        Cost of moving bytes at the ends, which no bandwidth scales.
    latency_ns, bandwidth_ns : float64, shape (I, T)
        What is paid to each tier.
    wire_bytes : float64, shape (I, T)
        Bytes through the busiest port of each tier. Where two tiers work at once only the slower
        one is paid, yet both carry bytes.
    messages : float64, shape (I, T)
        Messages one after the other in each tier, those of barriers included.
    measured : bool, shape (I,)
        True where the size is unknown and the measured transfer time was kept.
    warnings : tuple of str
        Which instances keep their measured time.
    """

    tiers: tuple[str, ...]
    base_ns: NDArray[np.float64]
    endpoint_ns: NDArray[np.float64]
    latency_ns: NDArray[np.float64]
    bandwidth_ns: NDArray[np.float64]
    wire_bytes: NDArray[np.float64]
    messages: NDArray[np.float64]
    measured: NDArray[np.bool_]
    warnings: tuple[str, ...]

    @property
    def total_ns(self) -> NDArray[np.float64]:
        """Transfer time from release to end, shape (I,)."""
        tiers: NDArray[np.float64] = (self.latency_ns + self.bandwidth_ns).sum(axis=1)
        total: NDArray[np.float64] = self.base_ns + self.endpoint_ns + tiers
        return total


def price(
    graph: ExecutionGraph, instances: Instances, network: Network, placement: Placement
) -> Prices:
    """Price every instance of a graph.

    A group is priced with all its members, traced or not. An instance whose size the trace does
    not say keeps its measured transfer time (a barrier has no size, and a group of one costs
    nothing; both are priced).

    Parameters
    ----------
    graph : ExecutionGraph
        Supplies groups, peers and measured transfer times.
    instances : Instances
        Of that graph.
    network : Network
        One or two tiers of topology ``switch``.
    placement : Placement
        Where the ranks of the job sit in it.

    Returns
    -------
    Prices

    Raises
    ------
    NetworkError
        If the network has a topology without a price.
    GraphError
        If an instance has neither a size nor a measured transfer time, or if its group, peer or
        root is not one of the job's ranks; names rank, group and sequence number.
    """
    check_priced(network)
    first = instances.node[instances.ptr[:-1]]
    spread = _spread(graph, instances, placement, first)

    count, num_tiers = len(instances), len(network.tiers)
    base, endpoint = np.zeros(count), np.zeros(count)
    latency, bandwidth = np.zeros((count, num_tiers)), np.zeros((count, num_tiers))
    wire, messages = np.zeros((count, num_tiers)), np.zeros((count, num_tiers))
    unknown = (
        (instances.size_bytes < 0) & (instances.coll != Collective.BARRIER) & (spread.members > 1)
    )
    for value in np.unique(instances.coll):
        index = np.flatnonzero((instances.coll == value) & ~unknown)
        # The size of a barrier, or of a group of one, is unknown without being needed.
        sizes = np.maximum(instances.size_bytes[index], 0).astype(np.float64)
        costs = price_spread(Collective(value), sizes, spread.take(index), network.tiers)
        base[index], endpoint[index] = costs.base_ns, costs.endpoint_ns
        latency[index], bandwidth[index] = costs.latency_ns, costs.bandwidth_ns
        wire[index], messages[index] = costs.wire_bytes, costs.messages

    base[unknown] = _measured_transfer(graph, instances, first, unknown)
    return Prices(
        tiers=TIER_NAMES[:num_tiers],
        base_ns=base,
        endpoint_ns=endpoint,
        latency_ns=latency,
        bandwidth_ns=bandwidth,
        wire_bytes=wire,
        messages=messages,
        measured=unknown,
        warnings=_warnings(graph, instances, unknown, base),
    )


def used_tiers(prices: Prices) -> set[int]:
    """Tiers over which any instance sends bytes: those whose bandwidth is a resource."""
    return set(np.flatnonzero((prices.wire_bytes > 0).any(axis=0)).tolist())


def message_tiers(prices: Prices) -> set[int]:
    """Tiers over which any instance sends a message: those whose latency is a resource.

    A barrier sends messages without bytes, so these may be more than `used_tiers`.
    """
    return set(np.flatnonzero((prices.messages > 0).any(axis=0)).tolist())


def _spread(
    graph: ExecutionGraph,
    instances: Instances,
    placement: Placement,
    first: NDArray[np.int64],
) -> Spread:
    """How the members of every instance spread over the domains."""
    pairs = instances.coll == Collective.SEND_RECV
    homeless = np.flatnonzero(~pairs & (instances.group < 0))
    if len(homeless):
        raise GraphError(
            f"{_label(instances, homeless[0])} has no group",
            rank=_rank_of(graph, first[homeless[0]]),
            place=_place(graph, instances, homeless[0], first),
        )
    used = np.unique(instances.group[~pairs])
    members = [_group_domains(graph, placement, int(group)) for group in used]
    groups = Spread.of(members)
    spread = Spread(*(np.zeros(len(instances), dtype=np.int64) for _ in range(5)))
    row = np.searchsorted(used, instances.group[~pairs])
    for column in ("members", "domains", "most", "fewest"):
        getattr(spread, column)[~pairs] = getattr(groups, column)[row]

    directed = np.flatnonzero(np.isin(instances.coll, [Collective.GATHER, Collective.SCATTER]))
    beside: dict[tuple[int, int], int] = {}
    for i in directed:
        group, root = int(instances.group[i]), int(graph.peer[first[i]])
        if root < 0:
            continue
        if (group, root) not in beside:
            if root not in graph.groups[group].ranks:
                raise GraphError(
                    f"the root {root} of {_label(instances, i)} is not in its group",
                    rank=_rank_of(graph, first[i]),
                    place=_place(graph, instances, i, first),
                )
            domains = members[int(np.searchsorted(used, group))]
            home = placement.domains_of([root])[0]
            beside[group, root] = int((domains == home).sum())
        spread.beside_root[i] = beside[group, root]

    index = np.flatnonzero(pairs)
    here = graph.ranks[np.searchsorted(graph.rank_ptr, first[index], side="right") - 1]
    there = graph.peer[first[index]].astype(np.int64)
    lonely = index[there < 0]
    if len(lonely):
        raise GraphError(
            "a send or receive has no peer",
            rank=_rank_of(graph, first[lonely[0]]),
            place=_place(graph, instances, lonely[0], first),
        )
    spread.members[index] = np.where(here == there, 1, 2)
    spread.domains[index] = np.where(
        placement.domains_of(here) == placement.domains_of(there), 1, 2
    )
    spread.most[index] = spread.members[index] // spread.domains[index]
    spread.fewest[index] = spread.most[index]
    return spread


def _group_domains(graph: ExecutionGraph, placement: Placement, group: int) -> NDArray[np.int64]:
    try:
        return placement.domains_of(graph.groups[group].ranks)
    except GraphError as error:
        place = f"group {graph.groups[group].name}"
        raise GraphError(error.message, rank=error.rank, place=place) from error


def _measured_transfer(
    graph: ExecutionGraph,
    instances: Instances,
    first: NDArray[np.int64],
    unknown: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Longest measured transfer of the members of each instance without a size."""
    if not unknown.any():
        return np.zeros(0, dtype=np.int64)
    longest = np.maximum.reduceat(graph.transfer_ns[instances.node], instances.ptr[:-1])
    lost = np.flatnonzero(unknown & (longest < 0))
    if len(lost):
        raise GraphError(
            f"{_label(instances, lost[0])} has neither a size nor a measured transfer time, so it "
            "cannot be priced",
            rank=_rank_of(graph, first[lost[0]]),
            place=_place(graph, instances, lost[0], first),
        )
    return longest[unknown]


def _warnings(
    graph: ExecutionGraph,
    instances: Instances,
    unknown: NDArray[np.bool_],
    base_ns: NDArray[np.float64],
) -> tuple[str, ...]:
    kept: dict[tuple[str, str], list[float]] = {}
    for i in np.flatnonzero(unknown):
        key = (_label(instances, i), _group_name(graph, instances, i))
        kept.setdefault(key, []).append(float(base_ns[i]))
    return tuple(
        f"{len(times)} {label} of group {group} have no size in the trace: their measured transfer "
        f"({format_ns(sum(times))} in all) is kept on every network"
        for (label, group), times in kept.items()
    )


def _label(instances: Instances, index: int | np.int64) -> str:
    return Collective(instances.coll[index]).label


def _group_name(graph: ExecutionGraph, instances: Instances, index: int | np.int64) -> str:
    group = int(instances.group[index])
    return graph.groups[group].name if group >= 0 else "(none)"


def _place(
    graph: ExecutionGraph,
    instances: Instances,
    index: int | np.int64,
    first: NDArray[np.int64],
) -> str:
    group = _group_name(graph, instances, index)
    return f"group {group}, sequence number {int(graph.seq[first[index]])}"


def _rank_of(graph: ExecutionGraph, node: np.int64) -> int:
    return int(graph.ranks[np.searchsorted(graph.rank_ptr, node, side="right") - 1])
