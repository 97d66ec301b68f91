"""The steps of every algorithm for a group, as traffic and messages: the formulas as code.

What the steps are and what they cost in closed form is said in the documentation of this
subpackage. A plan knows sizes only as factors and networks only as shapes, so it holds for every
size of the operation and for every speed of the links.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...graph.columns import Collective
from .direct import all_to_all, barrier, hops_over, relayed, star, uneven_all_to_all
from .layout import Layout, port_parts, port_width
from .names import OF_COLLECTIVE
from .reductions import reduction
from .spreads import spread
from .stages import Stage, at_once, per_port
from .traffic import mirrored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .layout import Shape
    from .names import Algorithm

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


class Plan(NamedTuple):
    """An algorithm for one group: stages one after the other.

    Where it is `chunked` there is one stage for all tiers, and the data go through them in chunks.
    """

    stages: tuple[Stage, ...]
    chunked: bool


class Costing(NamedTuple):
    """What a plan costs on any network of its shape (S stages, T tiers).

    Attributes
    ----------
    worst : float64, shape (S, T)
        Bytes through the busiest port of each tier, as if that port had the bandwidth of the
        tier: a link of a full mesh counts size - 1 times.
    wire, messages, lanes, in_network : shape (S, T)
        As in `Stage`.
    kept : float64, shape (S, T)
        What a member keeps, over what it sends, where it handles both alike; see `kept_parts`.
    chunked : bool
        As in `Plan`.
    """

    worst: Float
    wire: Float
    messages: Float
    kept: Float
    lanes: Int
    in_network: NDArray[np.bool_]
    chunked: bool


#: What needs a link of its own to every partner.
_ON_LINKS = {
    ("hierarchical", Collective.ALL_TO_ALL),
    ("direct", Collective.ALL_REDUCE),
    ("direct", Collective.ALL_GATHER),
    ("direct", Collective.REDUCE_SCATTER),
    ("direct", Collective.REDUCE_SCATTER_BLOCK),
    ("direct", Collective.BARRIER),
}


def obstacle(layout: Layout, coll: Collective, algorithm: Algorithm) -> str | None:
    """Why a group cannot use an algorithm that exists for the collective; None if it can."""
    topologies = {layout.topology(level) for level in layout.used}
    switches = topologies <= {"switch"}
    links = topologies <= {"switch", "fully_connected"}
    reason = None
    if algorithm in ("tree", "halving-doubling") and not switches:
        reason = "it needs switches"
    elif (algorithm, coll) in _ON_LINKS and not links:
        reason = "it needs switches or full meshes"
    elif algorithm == "ring" and not links and len(layout.used) > 1:
        reason = "it needs switches or full meshes, or one ring"
    elif algorithm == "in-switch" and not any(map(layout.flagged, layout.used)):
        reason = "no tier that the group uses has in_network_reduction"
    elif algorithm == "multi-axis" and not layout.axes():
        reason = "the group uses no two dimensions of a torus"
    return reason


def possible(layout: Layout, coll: Collective) -> tuple[Algorithm, ...]:
    """Algorithms that a group can use for a collective, the default first."""
    found = [name for name in OF_COLLECTIVE[coll] if obstacle(layout, coll, name) is None]
    if "multi-axis" in found:
        found.remove("multi-axis")
        found.insert(0, "multi-axis")
    return tuple(found)


def possible_somewhere(shape: Shape, coll: Collective) -> tuple[Algorithm, ...]:
    """Algorithms that at least one group on a network can use: it may span any of its tiers."""
    found: set[Algorithm] = set()
    for spanned in range(1, 2 ** len(shape)):
        ends = [range(1 + (spanned >> tier & 1)) for tier in range(len(shape))]
        found.update(possible(Layout(shape, np.array(list(product(*ends)))), coll))
    return tuple(name for name in OF_COLLECTIVE[coll] if name in found)


def make_plan(
    layout: Layout,
    coll: Collective,
    algorithm: Algorithm,
    root: int | None,
    weights: Float | None = None,
) -> Plan:
    """Lay out the stages of an algorithm for a group.

    Parameters
    ----------
    layout : Layout
        Of the group.
    coll : Collective
        For SEND_RECV the first member sends to the second.
    algorithm : str
        One of `possible`.
    root : int, optional
        Index of the member that is the root. In broadcast and reduce the first by default; gather
        and scatter need one.
    weights : float64, shape (n, n), optional
        Parts of an all-to-all, from member to member, over its size; equal ones by default.
    """
    if layout.size == 1:
        return Plan((), chunked=False)
    if coll == Collective.ALL_TO_ALL:
        if weights is None:
            stages = all_to_all(layout) if algorithm == "direct" else relayed(layout)
        else:
            stages = uneven_all_to_all(layout, weights, relayed=algorithm != "direct")
    elif coll in (Collective.GATHER, Collective.SCATTER, Collective.SEND_RECV):
        stages = star(layout, coll, 0 if root is None else root)
    elif coll in (Collective.BROADCAST, Collective.REDUCE):
        stages = spread(layout, algorithm, 0 if root is None else root)
        if coll == Collective.REDUCE:
            stages = [
                made._replace(rows=mirrored(layout.shape, made.rows)) for made in reversed(stages)
            ]
    elif coll == Collective.BARRIER and algorithm in ("hierarchical", "halving-doubling"):
        stages = barrier(layout, passes=2 if algorithm == "hierarchical" else 1)
    else:
        stages = reduction(layout, coll, algorithm)
    if algorithm in ("hierarchical-pipelined", "in-switch"):
        return Plan((at_once(stages),), chunked=True)
    return Plan(tuple(stages), chunked=False)


def costing(shape: Shape, plan: Plan) -> Costing:
    """Reduce a plan to what its price depends on."""
    count = len(shape)
    worst = np.zeros((len(plan.stages), count))
    for index, stage in enumerate(plan.stages):
        port, amount = per_port(stage.rows)
        np.maximum.at(worst[index], port_parts(port)[0], amount / port_width(shape, port))

    def column(name: str) -> NDArray[Any]:
        values = [getattr(made, name) for made in plan.stages]
        return np.array(values).reshape(len(values), count)

    return Costing(
        worst=worst,
        wire=column("wire").astype(np.float64),
        messages=column("messages").astype(np.float64),
        kept=np.zeros_like(worst),
        lanes=column("lanes").astype(np.int64),
        in_network=column("in_network").astype(np.bool_),
        chunked=plan.chunked,
    )


#: What is made of rings that pass on parts, one for each member or unit.
_OF_RINGS = frozenset({"hierarchical", "hierarchical-pipelined", "ring"})
_IN_PARTS = frozenset(
    {
        Collective.ALL_REDUCE,
        Collective.ALL_GATHER,
        Collective.REDUCE_SCATTER,
        Collective.REDUCE_SCATTER_BLOCK,
    }
)


def kept_parts(layout: Layout, coll: Collective, algorithm: Algorithm, messages: Float) -> Float:
    """Part of the data that a member keeps, over those that it sends, shape (S, T).

    In a ring it is one part to as many as there are messages one after the other, in a direct
    all-to-all one to n - 1. Rings that are a topology send both ways at once and are left out.
    """
    if coll == Collective.ALL_TO_ALL and algorithm == "direct":
        return np.full(messages.shape, 1 / max(layout.size - 1, 1))
    if coll not in _IN_PARTS or algorithm not in _OF_RINGS:
        return np.zeros(messages.shape)
    sent = messages.sum(axis=1, keepdims=True) if algorithm == "ring" else messages
    one_way = np.array([tier.topology != "ring" for tier in layout.shape])
    return np.divide(1.0, sent, out=np.zeros(messages.shape), where=(sent > 0) & one_way)


def costing_of(
    shape: Shape,
    coordinates: Int,
    coll: Collective,
    algorithm: Algorithm,
    root: int | None,
    weights: Float | None = None,
) -> Costing:
    """Cost a group; groups that differ in nothing that counts are worked out once.

    Parameters
    ----------
    shape : Shape
        Of the network.
    coordinates : int64, shape (n, T)
        Place of every member.
    coll, algorithm, root, weights
        As for `make_plan`; gather and scatter without a root are charged the worst root in each
        tier.
    """
    if weights is None:
        return _costing_of(shape, _canonical(shape, coordinates), coll, algorithm, root)
    # Parts that differ seldom come again.
    layout = Layout(shape, coordinates)
    found = costing(shape, make_plan(layout, coll, algorithm, root, weights))
    kept = np.zeros_like(found.worst)
    if algorithm == "direct":
        own = np.diag(weights)
        busiest = int(np.argmax(weights.sum(axis=1) - own))
        sent = weights[busiest].sum() - own[busiest]
        kept[:] = own[busiest] / sent if sent > 0 else 0.0
    return found._replace(kept=kept)


def possible_of(
    shape: Shape, coordinates: Int, coll: Collective, *, relayed: bool = False
) -> tuple[Algorithm, ...]:
    """Algorithms that a group can use, the default first; see `possible`.

    With `relayed` those are left out that pass on parts of unequal size and find, somewhere on
    the way, no member to pass them on.
    """
    found = _possible_of(shape, _canonical(shape, coordinates), coll)
    if relayed and "hierarchical" in found:
        layout = Layout(shape, coordinates)
        if any((hops_over(layout, level) < 0).any() for level in layout.used):
            found = tuple(name for name in found if name != "hierarchical")
    return found


def why_not(shape: Shape, coordinates: Int, coll: Collective, algorithm: Algorithm) -> str | None:
    """Why a group cannot use an algorithm; None if it can. See `obstacle`."""
    return obstacle(Layout(shape, coordinates), coll, algorithm)


def _canonical(shape: Shape, coordinates: Int) -> bytes:
    """Coordinates of a group that is like this one, the same for all that are."""
    shared = any(tier.ranks_per_nic > 1 for tier in shape)
    columns = []
    for index, tier in enumerate(shape):
        column = coordinates[:, index]
        if tier.topology == "ring":
            column = column - column.min(initial=0)
        elif not shared or index == len(shape) - 1:
            # The order of the units of a switch or mesh is of no account, unless NICs are shared.
            column = np.unique(column, return_inverse=True)[1]
        columns.append(column)
    return np.column_stack(columns).astype(np.int64).tobytes()


def _layout(shape: Shape, coordinates: bytes) -> Layout:
    return Layout(shape, np.frombuffer(coordinates, dtype=np.int64).reshape(-1, len(shape)))


@lru_cache(maxsize=4096)
def _possible_of(shape: Shape, coordinates: bytes, coll: Collective) -> tuple[Algorithm, ...]:
    return possible(_layout(shape, coordinates), coll)


@lru_cache(maxsize=4096)
def _costing_of(
    shape: Shape, coordinates: bytes, coll: Collective, algorithm: Algorithm, root: int | None
) -> Costing:
    layout = _layout(shape, coordinates)
    if root is not None or coll not in (Collective.GATHER, Collective.SCATTER):
        found = costing(shape, make_plan(layout, coll, algorithm, root))
        return found._replace(kept=kept_parts(layout, coll, algorithm, found.messages))
    worst = [
        costing(shape, make_plan(layout, coll, algorithm, member))
        for member in _unlike_members(layout)
    ]
    found = worst[0]
    return found._replace(
        worst=np.max([one.worst for one in worst], axis=0),
        wire=np.max([one.wire for one in worst], axis=0),
        messages=np.max([one.messages for one in worst], axis=0),
    )


def _unlike_members(layout: Layout) -> list[int]:
    """Members of which some other sees another group; on rings all of them."""
    if any(tier.topology == "ring" for tier in layout.shape):
        return list(range(layout.size))
    first = np.unique(np.column_stack(layout.held), axis=0, return_index=True)[1]
    return [int(member) for member in first]
