"""Which algorithm and protocol each operation uses: the one named, or the cheapest of several.

As in communication libraries the choice depends on the size. An operation for which the network
names no algorithm uses the default of its collective; one whose group can use none of those named
does too, with a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .algorithms.layout import shape_of
from .algorithms.plans import costing_of, possible_of, why_not
from .collectives import costs_of, speeds_of, stack
from .operations import Operations

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import Collective
    from .algorithms.names import Algorithm
    from .collectives import Costs, Phases, Speeds, Stack
    from .network import Network

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

# A plan must be cheaper by more than rounding to be taken instead of one named before it.
_CHEAPER = 1 - 1e-12


class Plans(NamedTuple):
    """The plans that operations may follow (O operations, P plans).

    Attributes
    ----------
    first : int64, shape (O + 1,)
        Plans of operation o are ``first[o]:first[o + 1]``, at least one.
    operation : int64, shape (P,)
        Index of the operation of each.
    coll, algorithm : list, length P
        Of each.
    costings : Stack
        Of each.
    warnings : tuple of str
        Which operations cannot use what is named for them.
    """

    first: Int
    operation: Int
    coll: list[Collective]
    algorithm: list[Algorithm]
    costings: Stack
    warnings: tuple[str, ...]


def candidate_plans(network: Network, coordinates: Int, operations: Operations) -> Plans:
    """Find the plans that operations may follow.

    Parameters
    ----------
    network : Network
        Names algorithms.
    coordinates : int64, shape (W, T)
        Place of every rank of the job.
    operations : Operations
        Of the job.
    """
    shape = shape_of(network.tiers)
    algorithms: list[Algorithm] = []
    colls: list[Collective] = []
    costings = []
    counts = []
    misfits: dict[str, int] = {}
    for coll, members, root, weights in zip(
        operations.coll, operations.members, operations.root, operations.weights, strict=True
    ):
        places = coordinates[members]
        possible = possible_of(shape, places, coll, relayed=weights is not None)
        wanted = network.choices(coll)
        names = [name for name in possible if name in wanted] or [possible[0]]
        if wanted and names[0] not in wanted and len(members) > 1:
            text = (
                f"{coll.label} over {len(members)} ranks uses {names[0]}, not "
                f"{' or '.join(wanted)}: {why_not(shape, places, coll, wanted[0])}"
            )
            misfits[text] = misfits.get(text, 0) + 1
        algorithms += names
        colls += [coll] * len(names)
        costings += [costing_of(shape, places, coll, name, root, weights) for name in names]
        counts.append(len(names))
    return Plans(
        first=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        operation=np.repeat(np.arange(len(counts)), np.array(counts, dtype=np.int64)),
        coll=colls,
        algorithm=algorithms,
        costings=stack(costings, len(shape)),
        warnings=tuple(
            text if count == 1 else f"{text} ({count} groups)" for text, count in misfits.items()
        ),
    )


class Choice(NamedTuple):
    """What operations of a size do (R of them).

    Attributes
    ----------
    plan : int64, shape (R,)
        Index into the `Plans`.
    protocol : int64, shape (R,)
        Index into the protocols, -1 where no tier used has any.
    costs : Costs
        What they cost alone.
    phases : Phases
        Time of their stages.
    """

    plan: Int
    protocol: Int
    costs: Costs
    phases: Phases


def protocol_names(network: Network) -> tuple[str, ...]:
    """Names of the protocols that any tier has."""
    return tuple(dict.fromkeys(p.name for tier in network.tiers for p in tier.protocols))


def protocol_speeds(network: Network) -> list[Speeds]:
    """Speed of the tiers with each protocol, or without any where there is none."""
    names: tuple[str | None, ...] = protocol_names(network) or (None,)
    return [
        speeds_of(network.tiers, network.pipeline_chunks, name, network.own_share) for name in names
    ]


def protocols_of(network: Network, plans: Plans) -> NDArray[np.bool_]:
    """Which of the `protocol_speeds` each plan may use, shape (P, L)."""
    names = protocol_names(network) or (None,)
    labels: dict[str | None, set[str]] = {name: set() for name in names}
    for tier in network.tiers:
        for protocol in tier.protocols:
            labels[protocol.name].update(protocol.collectives)
    rows = {}
    for coll in set(plans.coll):
        own = [coll.label in labels[name] for name in names]
        rows[coll] = own if any(own) else [not labels[name] for name in names]
    return np.array([rows[coll] for coll in plans.coll]).reshape(-1, len(names))


def cheapest(network: Network, plans: Plans, operation: Int, size_bytes: Float) -> Choice:
    """Choose the cheapest plan and protocol for operations of some sizes.

    Parameters
    ----------
    network : Network
        Speed of the tiers.
    plans : Plans
        To choose from.
    operation, size_bytes : shape (R,)
        Index of each operation, and input bytes of one rank.
    """
    speeds = protocol_speeds(network)
    allowed = protocols_of(network, plans)
    count = plans.first[operation + 1] - plans.first[operation]
    plan, protocol = plans.first[operation], np.zeros(len(operation), dtype=np.int64)
    best = np.full(len(operation), np.inf)
    if len(speeds) > 1 or count.max(initial=1) > 1:
        for turn in range(int(count.max(initial=0))):
            turns = np.flatnonzero(count > turn)
            for number, speed in enumerate(speeds):
                rows = turns[allowed[plans.first[operation[turns]] + turn, number]]
                index = plans.first[operation[rows]] + turn
                _, phases = costs_of(plans.costings.take(index), size_bytes[rows], speed)
                total = (phases.fixed_ns + phases.work_ns).sum(axis=1)
                better = total < best[rows] * _CHEAPER
                best[rows[better]] = total[better]
                plan[rows[better]], protocol[rows[better]] = index[better], number
    costs, phases = _rows(plans.costings.take(plan), size_bytes, speeds, protocol)
    has = np.array([[p.name for p in tier.protocols] != [] for tier in network.tiers])
    used = (costs.messages > 0) @ has.reshape(-1)
    return Choice(plan, np.where(used, protocol, -1), costs, phases)


class GroupPrices(NamedTuple):
    """What one group pays for an operation of several sizes (R of them).

    Attributes
    ----------
    algorithm : tuple of str, length R
        What each uses.
    protocol : tuple of (str or None), length R
        What each uses, where its tiers have any.
    costs : Costs
        By cause and tier of the network.
    total_ns : float64, shape (R,)
        Transfer time alone.
    """

    algorithm: tuple[Algorithm, ...]
    protocol: tuple[str | None, ...]
    costs: Costs
    total_ns: Float


def price_group(
    network: Network,
    coll: Collective,
    size_bytes: Float,
    places: Int,
    root: int | None = None,
) -> GroupPrices:
    """Price one kind of operation of one group, without a graph.

    Parameters
    ----------
    network : Network
        Any.
    coll : Collective
        For SEND_RECV the first member sends to the second.
    size_bytes : float64, shape (R,)
        Input bytes of one rank.
    places : int64, shape (n, T)
        Coordinates of the members, for example rows of `Placement.coordinates_in`.
    root : int, optional
        Index of the root among the members.

    Examples
    --------
    Two of the eight GPUs of a full mesh have one of seven links:

    >>> import numpy as np
    >>> from whatif.graph.columns import Collective
    >>> from whatif.simulator.network import Network, Tier
    >>> mesh = Tier(topology="fully_connected", size=8, bandwidth_gb_s=448)
    >>> network = Network(name="mesh", tiers=[mesh])
    >>> sizes = np.array([64e6])
    >>> for ranks in (2, 8):
    ...     places = np.arange(ranks)[:, np.newaxis]
    ...     print(price_group(network, Collective.ALL_REDUCE, sizes, places).total_ns)
    [1000000.]
    [250000.]
    """
    everyone = np.arange(len(places))
    operations = Operations([coll], [everyone], [root], [None], np.zeros(1, dtype=np.int64))
    plans = candidate_plans(network, places, operations)
    choice = cheapest(network, plans, np.zeros(len(size_bytes), dtype=np.int64), size_bytes)
    names = (*protocol_names(network), None)
    return GroupPrices(
        tuple(plans.algorithm[plan] for plan in choice.plan.tolist()),
        tuple(names[number] for number in choice.protocol.tolist()),
        choice.costs,
        (choice.phases.fixed_ns + choice.phases.work_ns).sum(axis=1),
    )


def _rows(
    plans: Stack, size_bytes: Float, speeds: list[Speeds], protocol: Int
) -> tuple[Costs, Phases]:
    """Cost operations, each with its protocol."""
    costs, phases = costs_of(plans, size_bytes, speeds[0])
    for number in range(1, len(speeds)):
        here = np.flatnonzero(protocol == number)
        other_costs, other_phases = costs_of(plans.take(here), size_bytes[here], speeds[number])
        for name, values in vars(other_costs).items():
            getattr(costs, name)[here] = values
        phases.fixed_ns[here], phases.work_ns[here] = other_phases
    return costs, phases
