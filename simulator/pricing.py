"""The price of every operation of a graph on a network, and the transfers that it consists of.

Pricing looks at what is sent and where its members sit, never at when: waiting for members,
sharing of ports and the order of operations belong to the engine, the formulas to `algorithms`.
The prices are those of an operation that is alone on the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import GraphError, NetworkError
from ..base.units import format_ns
from ..graph.columns import Collective
from ..graph.validate import rank_of
from .algorithms.names import ALGORITHMS
from .choice import candidate_plans, cheapest, protocol_names, protocol_speeds
from .collectives import Phases, costs_of
from .flows import Chosen, Rated, make_traffic
from .network import check_priced
from .operations import (
    find_operations,
    group_of,
    label_of,
    place_of,
    sizes_of,
    unique_rows,
)
from .ports import no_ports

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from .choice import Choice, Plans
    from .network import Network
    from .operations import Operations
    from .placement import Placement
    from .ports import Ports, PortSets, Transfers

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


def _none() -> Int:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Prices:
    """Transfer time of every instance, by cause, alone on the network (I instances).

    Attributes
    ----------
    tiers : tuple of str, length T
        ``scaleup``, and ``scaleout`` where the network has that too. The dimensions of a torus,
        for example, are one of these.
    base_ns : float64, shape (I,)
        Fixed cost; for an instance that keeps its measured transfer time, all of it.
    endpoint_ns : float64, shape (I,)
        Cost of moving bytes at the ends, which no bandwidth scales.
    latency_ns, bandwidth_ns : float64, shape (I, T)
        What is paid to each tier.
    wire_bytes : float64, shape (I, T)
        Bytes that the busiest rank sends or receives in each tier. Where two tiers work at once
        only the slower one is paid, yet both carry bytes.
    messages : float64, shape (I, T)
        Messages (on rings: hops) one after the other in each tier, those of barriers included.
    measured : bool, shape (I,)
        True where the size is unknown and the measured transfer time was kept.
    warnings : tuple of str
        Which instances keep their measured time, or do not use the algorithm named.
    algorithm : int64, shape (I,)
        Index into `ALGORITHMS`; -1 where the measured time is kept or there is nobody to send to.
    protocol : int64, shape (I,)
        Index into `protocols`; -1 where no tier that the instance uses has any.
    protocols : tuple of str
        Names of the protocols.
    ports, sets : Ports, PortSets
        What transfers share.
    transfers : Transfers, optional
        What the instances consist of. Without them each is a time that nothing slows down.
    """

    tiers: tuple[str, ...]
    base_ns: Float
    endpoint_ns: Float
    latency_ns: Float
    bandwidth_ns: Float
    wire_bytes: Float
    messages: Float
    measured: NDArray[np.bool_]
    warnings: tuple[str, ...]
    algorithm: Int = field(default_factory=_none)
    protocol: Int = field(default_factory=_none)
    protocols: tuple[str, ...] = ()
    ports: Ports = field(default_factory=lambda: no_ports()[0])
    sets: PortSets = field(default_factory=lambda: no_ports()[1])
    transfers: Transfers | None = None

    @property
    def total_ns(self) -> Float:
        """Transfer time from release to end, shape (I,)."""
        tiers: Float = (self.latency_ns + self.bandwidth_ns).sum(axis=1)
        total: Float = self.base_ns + self.endpoint_ns + tiers
        return total


def price(
    graph: ExecutionGraph, instances: Instances, network: Network, placement: Placement
) -> Prices:
    """Price every instance of a graph.

    A group is priced with all its members, traced or not. An instance whose size the trace does
    not say keeps its measured transfer time (a barrier has no size, and a group of one costs
    nothing; both are priced). An all-to-all of unequal parts is priced by what each member sends
    to each; where only the sizes differ, by the largest.

    Parameters
    ----------
    graph : ExecutionGraph
        Supplies groups, peers and measured transfer times.
    instances : Instances
        Of that graph.
    network : Network
        Any.
    placement : Placement
        Where the ranks of the job sit in it.

    Returns
    -------
    Prices

    Raises
    ------
    NetworkError
        If the ranks do not fit the network, a group spans domains that no tier joins, or a
        collective can use none of the algorithms named for it.
    GraphError
        If an instance has neither a size nor a measured transfer time, or if its group, peer or
        root is not one of the job's ranks; names rank, group and sequence number.
    """
    check_priced(network)
    operations = find_operations(graph, instances, placement)
    _check_joined(network, placement, operations)
    coordinates = placement.coordinates_in(network)
    lonely = np.array([len(members) == 1 for members in operations.members], dtype=np.bool_)
    alone = lonely[operations.of]
    unknown = (instances.size_bytes < 0) & (instances.coll != Collective.BARRIER) & ~alone
    kept_ns = np.zeros(len(instances))
    kept_ns[unknown] = _measured_transfer(graph, instances, unknown)

    kinds, row = unique_rows(operations.of, sizes_of(graph, instances))
    plans = candidate_plans(network, coordinates, operations)
    choice = cheapest(network, plans, kinds[:, 0], kinds[:, 1].astype(np.float64))
    chosen, follows = _chosen(network, plans, choice)

    def spread(column: Float) -> Float:
        """Give a column of the kinds to the instances that are priced."""
        values = column[row]
        values[unknown] = 0.0
        return values

    fixed, work = spread(choice.phases.fixed_ns), spread(choice.phases.work_ns)
    fixed[:, 0] += kept_ns
    traffic = make_traffic(
        graph,
        instances,
        network,
        coordinates,
        operations,
        chosen,
        Rated(np.where(unknown, -1, follows[row]), Phases(fixed, work)),
    )
    by_scope = np.array(
        [[float(name == scope) for scope in network.scopes] for name in network.tier_names]
    )
    silent = unknown | alone
    names = np.array([ALGORITHMS.index(name) for name in plans.algorithm], dtype=np.int64)
    return Prices(
        tiers=network.scopes,
        base_ns=spread(choice.costs.base_ns) + kept_ns,
        endpoint_ns=spread(choice.costs.endpoint_ns),
        latency_ns=spread(choice.costs.latency_ns) @ by_scope,
        bandwidth_ns=spread(choice.costs.bandwidth_ns) @ by_scope,
        wire_bytes=spread(choice.costs.wire_bytes) @ by_scope,
        messages=spread(choice.costs.messages) @ by_scope,
        measured=unknown,
        warnings=(*plans.warnings, *_warnings(graph, instances, unknown, kept_ns)),
        algorithm=np.where(silent, -1, names[choice.plan][row]),
        protocol=np.where(silent, -1, choice.protocol[row]),
        protocols=protocol_names(network),
        ports=traffic.ports,
        sets=traffic.sets,
        transfers=traffic.transfers,
    )


def _check_joined(network: Network, placement: Placement, operations: Operations) -> None:
    """Refuse groups that no tier joins."""
    if len(network.scopes) > 1:
        return
    for members in operations.members:
        domains = len(np.unique(placement.domains_of(members)))
        if domains > 1:
            raise NetworkError(
                f"a group spans {domains} scale-up domains, and the network has no tier between "
                "them",
                place="tiers",
            )


def _chosen(network: Network, plans: Plans, choice: Choice) -> tuple[Chosen, Int]:
    """Gather the plans that are followed, and say which of them each kind of operation follows."""
    speeds = protocol_speeds(network)
    # Where no protocol counts the first is as good as any.
    number = np.maximum(choice.protocol, 0)
    pairs, follows = np.unique(choice.plan * len(speeds) + number, return_inverse=True)
    plan, number = pairs // len(speeds), pairs % len(speeds)
    costings = plans.costings.take(plan)
    work = np.zeros(costings.worst.shape[:2])
    share = np.ones(costings.worst.shape)
    usual = np.array([tier.effective_gb_s for tier in network.tiers])
    tier = np.arange(len(usual))
    for index, speed in enumerate(speeds):
        # No base, which does not grow with the size.
        bare = speed._replace(base_ns=np.zeros(len(usual)))
        here = np.flatnonzero(number == index)
        some = costings.take(here)
        work[here] = costs_of(some, np.ones(len(here)), bare)[1].work_ns
        share[here] = speed.gb_s[some.in_network, tier] / usual
    chosen = Chosen(
        operation=plans.operation[plan],
        algorithm=[plans.algorithm[index] for index in plan.tolist()],
        work_ns_per_byte=work,
        share=share,
        stages=costings.stages,
    )
    return chosen, follows.reshape(-1)


def used_tiers(prices: Prices) -> set[int]:
    """Tiers over which any instance sends bytes: those whose bandwidth is a resource."""
    return set(np.flatnonzero((prices.wire_bytes > 0).any(axis=0)).tolist())


def message_tiers(prices: Prices) -> set[int]:
    """Tiers over which any instance sends a message: those whose latency is a resource.

    A barrier sends messages without bytes, so these may be more than `used_tiers`.
    """
    return set(np.flatnonzero((prices.messages > 0).any(axis=0)).tolist())


def _measured_transfer(
    graph: ExecutionGraph, instances: Instances, unknown: NDArray[np.bool_]
) -> Int:
    """Longest measured transfer of the members of each instance without a size."""
    if not unknown.any():
        return np.zeros(0, dtype=np.int64)
    longest = np.maximum.reduceat(graph.transfer_ns[instances.node], instances.ptr[:-1])
    lost = np.flatnonzero(unknown & (longest < 0))
    if len(lost):
        raise GraphError(
            f"{label_of(instances, lost[0])} has neither a size nor a measured transfer time, so "
            "it cannot be priced",
            rank=rank_of(graph, int(instances.node[instances.ptr[lost[0]]])),
            place=place_of(graph, instances, lost[0]),
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
        key = (label_of(instances, i), group_of(graph, instances, i))
        kept.setdefault(key, []).append(float(base_ns[i]))
    return tuple(
        f"{len(times)} {label} of group {group} have no size in the trace: their measured transfer "
        f"({format_ns(sum(times))} in all) is kept on every network"
        for (label, group), times in kept.items()
    )
