"""What each pattern of messages puts through each port of a group.

Amounts are in units of the size of the operation. Who sends how much follows from the algorithm
and is said in `plans`; which ports that goes through follows from the topology and is said here:
through the ports of both ends on a switch, over all links to the others on a full mesh, over
every link of the way on a ring or torus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import layout as on
from .layout import (
    Layout,
    fabrics,
    nic_place,
    place_in,
    port_number,
    port_parts,
    port_tier,
    uplink_place,
)
from .rings import Pass, ring_pass, torus_traffic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .layout import Shape

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


class Rows(NamedTuple):
    """Bytes through ports (L rows, a port may have several).

    Attributes
    ----------
    port : int64, shape (L,)
        Port number.
    amount : float64, shape (L,)
        Bytes through it.
    owner : int64, shape (L,)
        Member that the port belongs to, -1 where it is that of no member.
    """

    port: Int
    amount: Float
    owner: Int


def join(parts: Iterable[Rows]) -> Rows:
    """Put traffic together."""
    parts = [part for part in parts if len(part.port)]
    if not parts:
        return Rows(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64))
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def scaled(rows: Rows, factor: float) -> Rows:
    """The same traffic with other amounts."""
    return rows._replace(amount=rows.amount * factor)


def exchange(layout: Layout, level: int, out: Float, into: Float) -> Rows:
    """Members of a unit send and receive through a switch, or spread over a full mesh.

    Parameters
    ----------
    layout : Layout
        Of the group.
    level : int
        Tier of a switch or full mesh.
    out, into : float64, shape (n,)
        What each member sends and receives. On a full mesh `out` goes in equal parts to all other
        units of the level (their members of equal place), and `into` follows from it.
    """
    if layout.topology(level) == "fully_connected":
        return _mesh_links(layout, level, out)
    return _through_switch(layout, layout.levels[level][0], out, into)


def _through_switch(layout: Layout, tier: int, out: Float, into: Float) -> Rows:
    shape = layout.shape
    through = port_tier(shape, tier)
    members = np.arange(layout.size)
    nic = nic_place(shape, layout.coordinates, tier)
    parts = [
        Rows(port_number(through, on.OUT, nic), out, members),
        Rows(port_number(through, on.IN, nic), into, members),
    ]
    if shape[tier].oversubscription > 1:
        uplink = uplink_place(shape, layout.coordinates, tier)
        parts += [
            Rows(port_number(tier, on.UPLINK_OUT, uplink), out, members),
            Rows(port_number(tier, on.UPLINK_IN, uplink), into, members),
        ]
    return _moving(join(parts))


def _moving(rows: Rows) -> Rows:
    moving = rows.amount > 0
    return Rows(rows.port[moving], rows.amount[moving], rows.owner[moving])


def _mesh_links(layout: Layout, level: int, out: Float) -> Rows:
    (tier,) = layout.levels[level]
    size = layout.shape[tier].size
    along = layout.coordinates[:, tier]
    place = place_in(layout.shape, layout.coordinates)
    parts = []
    for members in by_unit(layout.unit[level + 1]):
        targets = np.unique(along[members])
        sender, target = (grid.reshape(-1) for grid in np.meshgrid(members, targets, indexing="ij"))
        other = along[sender] != target
        sender, target = sender[other], target[other]
        amount = out[sender] / max(len(targets) - 1, 1)
        parts.append(
            Rows(port_number(tier, on.LINK, place[sender] * size + target), amount, sender)
        )
    return _moving(join(parts))


def by_unit(unit: Int) -> list[Int]:
    """Members of every unit."""
    order = np.argsort(unit, kind="stable")
    return np.split(order, np.cumsum(np.bincount(unit))[:-1])


class Around(NamedTuple):
    """A pass around the rings of a level: its traffic, and the hops of its longest chain."""

    rows: Rows
    hops: int


def around(layout: Layout, level: int, amount: Float, what: Pass) -> Around:
    """Every member takes `amount` in (or gives it) in a pass around the rings of a level.

    There is one ring for each place in the units below. Those of one unit are loaded alike: where
    members are missing in some of them this is more than they carry.
    """
    parts, hops = [], 0
    for members in by_unit(layout.unit[level + 1]):
        if layout.children[level][members[0]] > 1:
            links = _links(layout, level, members, what, members[0])
            rings = _one_a_ring(layout, level, members)
            parts.append(_on_rings(layout, level, links, rings, float(amount[members].max())))
            hops = max(hops, links.hops)
    return Around(join(parts), hops)


def around_from(layout: Layout, level: int, members: Int, source: int) -> Around:
    """Give all that one member has to others that sit on its ring, or one each on rings beside."""
    links = _links(layout, level, members, "spread", source)
    return Around(_on_rings(layout, level, links, np.array([source]), 1.0), links.hops)


class _Links(NamedTuple):
    """Links that a pass uses: where they begin (shape (L, D)), of which tier, and their share."""

    place: Int
    tier: Int
    plus: NDArray[np.bool_]
    share: Float
    hops: int


def _links(layout: Layout, level: int, members: Int, what: Pass, source: int) -> _Links:
    tiers = layout.levels[level]
    places = np.unique(layout.coordinates[members][:, list(tiers)], axis=0)
    if len(tiers) > 1:
        return _winding(layout, tiers, places)
    (tier,) = tiers
    shape = layout.shape[tier]
    index = int(np.searchsorted(places[:, 0], layout.coordinates[source, tier]))
    found = ring_pass(tuple(places[:, 0].tolist()), shape.size, shape.wrap, what, index)
    tier_of = np.full(len(found.place), tier, dtype=np.int64)
    return _Links(found.place[:, np.newaxis], tier_of, found.plus, found.share, found.hops)


def _winding(layout: Layout, tiers: tuple[int, ...], places: Int) -> _Links:
    """Join places of a torus that are no product to one ring, half of everything each way.

    Row follows row, every other one backwards; neighbours reach each other by the shortest way,
    one dimension after the other.
    """
    path = places
    for column in range(1, places.shape[1]):
        backwards = path[:, column] % 2 == 1
        path = path.copy()
        path[backwards, :column] = -1 - path[backwards, :column]
    path = places[np.lexsort(path.T)]
    sizes = tuple(layout.shape[tier].size for tier in tiers)
    wraps = tuple(layout.shape[tier].wrap for tier in tiers)
    one = np.ones(1)
    ways = [
        torus_traffic(sizes, wraps, here[np.newaxis], one, there[np.newaxis], one)
        for nexts in (np.roll(path, -1, axis=0), np.roll(path, 1, axis=0))
        for here, there in zip(path, nexts, strict=True)
    ]
    length = np.array([way.hops.sum() for way in ways])
    steps = len(path) // 2
    around = np.concatenate([[0], np.cumsum(np.tile(length[: len(path)], 2))])
    return _Links(
        np.concatenate([way.place for way in ways]),
        np.array(tiers)[np.concatenate([way.dimension for way in ways])],
        np.concatenate([way.plus for way in ways]),
        np.concatenate([way.amount for way in ways]) / 2,
        int((around[steps:] - around[: len(around) - steps]).max()),
    )


def _one_a_ring(layout: Layout, level: int, members: Int) -> Int:
    """One member of every ring of a unit: they differ in the levels below."""
    inner = [tier for tiers in layout.levels[:level] for tier in tiers]
    below = layout.coordinates[members][:, inner]
    return members[np.unique(below, axis=0, return_index=True)[1]] if inner else members[:1]


def _on_rings(layout: Layout, level: int, links: _Links, rings: Int, amount: float) -> Rows:
    """Put the same load on the rings through some members."""
    at = np.repeat(layout.coordinates[rings], len(links.share), axis=0)
    at[:, list(layout.levels[level])] = np.tile(links.place, (len(rings), 1))
    position = place_in(layout.shape, at)
    kind = np.where(links.plus, on.PLUS, on.MINUS)
    number = port_number(0, 0, position) + np.tile(kind * on.MAX_TIERS + links.tier, len(rings))
    return Rows(number, np.tile(links.share * amount, len(rings)), layout.at(position))


class Messages(NamedTuple):
    """Direct messages: their traffic, what each tier sees of them, and their longest way.

    Attributes
    ----------
    rows : Rows
        Traffic.
    wire : float64, shape (T,)
        Bytes that the busiest member sends or receives in each tier.
    hops : float64, shape (T,)
        Messages or links one after the other in each tier.
    """

    rows: Rows
    wire: Float
    hops: Float


def messages(layout: Layout, sent: Float, wanted: Float) -> Messages:
    """Every member sends to every other, over the outermost fabric in which they differ.

    Parameters
    ----------
    layout : Layout
        Of the group.
    sent, wanted : float64, shape (n,)
        From member a to member b goes ``sent[a] * wanted[b]``.
    """
    wire = np.zeros(len(layout.shape))
    hops = np.zeros(len(layout.shape))
    parts = []
    for fabric in fabrics(layout.shape):
        tier = fabric[0]
        topology = layout.shape[tier].topology
        if topology == "ring":
            parts.append(_torus(layout, fabric, sent, wanted, wire, hops))
            continue
        above, own = layout.unit_above(tier + 1), layout.unit_above(tier)
        out = sent * (_sum_by(above, wanted) - _sum_by(own, wanted))
        into = wanted * (_sum_by(above, sent) - _sum_by(own, sent))
        wire[tier] = max(out.max(), into.max())
        hops[tier] = float(wire[tier] > 0)
        if topology == "switch":
            parts.append(_through_switch(layout, tier, out, into))
        else:
            parts.append(_mesh_messages(layout, tier, sent, wanted))
    return Messages(join(parts), wire, hops)


def matrix_messages(layout: Layout, weights: Float) -> Messages:
    """`messages` where from member a to member b goes ``weights[a, b]``."""
    wire = np.zeros(len(layout.shape))
    hops = np.zeros(len(layout.shape))
    parts = []
    for fabric in fabrics(layout.shape):
        tier = fabric[0]
        topology = layout.shape[tier].topology
        above, own = layout.unit_above(fabric[-1] + 1), layout.unit_above(tier)
        crossing = (above[:, np.newaxis] == above) & (own[:, np.newaxis] != own)
        moved = np.where(crossing, weights, 0.0)
        if topology == "ring":
            for sender in np.flatnonzero(moved.any(axis=1)).tolist():
                sent = np.zeros(layout.size)
                sent[sender] = 1.0
                parts.append(_torus(layout, fabric, sent, moved[sender], wire * 0, hops))
            for index in fabric:
                along = layout.coordinates[:, index]
                passed = np.where(along[:, np.newaxis] != along, moved, 0.0)
                wire[index] = max(passed.sum(axis=1).max(), passed.sum(axis=0).max())
            continue
        out, into = moved.sum(axis=1), moved.sum(axis=0)
        wire[tier] = max(out.max(), into.max())
        hops[tier] = float(wire[tier] > 0)
        if topology == "switch":
            parts.append(_through_switch(layout, tier, out, into))
            continue
        size, along = layout.shape[tier].size, layout.coordinates[:, tier]
        senders, readers = np.nonzero(moved)
        link = place_in(layout.shape, layout.coordinates)[senders] * size + along[readers]
        number = port_number(tier, on.LINK, link)
        parts.append(Rows(number, moved[senders, readers], senders))
    return Messages(join(parts), wire, hops)


def _sum_by(unit: Int, weight: Float) -> Float:
    total: Float = np.bincount(unit, weight).astype(np.float64)[unit]
    return total


def _mesh_messages(layout: Layout, tier: int, sent: Float, wanted: Float) -> Rows:
    size = layout.shape[tier].size
    along = layout.coordinates[:, tier]
    place = place_in(layout.shape, layout.coordinates)
    parts = []
    for members in by_unit(layout.unit_above(tier + 1)):
        senders = members[sent[members] > 0]
        for target in np.unique(along[members]).tolist():
            wants = wanted[members[along[members] == target]].sum()
            there = senders[along[senders] != target]
            link = port_number(tier, on.LINK, place[there] * size + target)
            parts.append(Rows(link, sent[there] * wants, there))
    return _moving(join(parts))


def _torus(
    layout: Layout, fabric: tuple[int, ...], sent: Float, wanted: Float, wire: Float, hops: Float
) -> Rows:
    """Add the messages inside a torus; those of equal place below it share its links."""
    first, last = fabric[0], fabric[-1]
    columns = list(fabric)
    sizes = tuple(layout.shape[tier].size for tier in fabric)
    wraps = tuple(layout.shape[tier].wrap for tier in fabric)
    parts = []
    for members in by_unit(layout.unit_above(last + 1)):
        inner = layout.coordinates[members][:, :first]
        for plane in np.unique(inner, axis=0):
            senders = members[(inner == plane).all(axis=1)]
            senders = senders[sent[senders] > 0]
            readers = members[wanted[members] > 0]
            if not len(senders) or not len(readers):
                continue
            load = torus_traffic(
                sizes,
                wraps,
                layout.coordinates[senders][:, columns],
                sent[senders],
                layout.coordinates[readers][:, columns],
                wanted[readers],
            )
            hops[columns] = np.maximum(hops[columns], load.hops)
            at = np.repeat(layout.coordinates[members[:1]], len(load.amount), axis=0)
            at[:, :first], at[:, columns] = plane, load.place
            position = place_in(layout.shape, at)
            kind = np.where(load.plus, on.PLUS, on.MINUS)
            number = port_number(0, 0, position) + kind * on.MAX_TIERS
            number += np.array(columns)[load.dimension]
            parts.append(Rows(number, load.amount, layout.at(position)))
        for tier in columns:
            # A member that shares its coordinate along the tier needs nothing from it.
            same = layout.coordinates[members, tier]
            far_wanted = wanted[members].sum() - np.bincount(same, wanted[members])[same]
            far_sent = sent[members].sum() - np.bincount(same, sent[members])[same]
            wire[tier] = max(
                wire[tier],
                float((sent[members] * far_wanted).max()),
                float((wanted[members] * far_sent).max()),
            )
    return join(parts)


class PairRows(NamedTuple):
    """Bytes through ports by sends of one byte each (L rows).

    Attributes
    ----------
    pair : int64, shape (L,)
        Index of the send.
    port : int64, shape (L,)
        Port number.
    amount : float64, shape (L,)
        Bytes through it.
    at_end : bool, shape (L,)
        Whether the port is the receiver's; on meshes, rings and tori none is.
    """

    pair: Int
    port: Int
    amount: Float
    at_end: NDArray[np.bool_]


def pair_rows(shape: Shape, start: Int, end: Int) -> PairRows:
    """Traffic of many sends.

    Parameters
    ----------
    shape : Shape
        Of the network.
    start, end : int64, shape (K, T)
        Coordinates of both ends.
    """
    parts: list[PairRows] = []
    pending = np.arange(len(start))
    for fabric in reversed(fabrics(shape)):
        crossing = (start[pending][:, list(fabric)] != end[pending][:, list(fabric)]).any(axis=1)
        here, pending = pending[crossing], pending[~crossing]
        tier = fabric[0]
        if shape[tier].topology == "ring":
            parts += [
                _torus_pair(shape, k, start[k : k + 1], end[k : k + 1]) for k in here.tolist()
            ]
        elif shape[tier].topology == "fully_connected":
            place = place_in(shape, start[here]) * shape[tier].size + end[here, tier]
            parts.append(_pair_ports(here, port_number(tier, on.LINK, place), at_end=False))
        else:
            for at_end, ends, port, uplink in (
                (False, start[here], on.OUT, on.UPLINK_OUT),
                (True, end[here], on.IN, on.UPLINK_IN),
            ):
                nic = port_number(port_tier(shape, tier), port, nic_place(shape, ends, tier))
                parts.append(_pair_ports(here, nic, at_end=at_end))
                if shape[tier].oversubscription > 1:
                    number = port_number(tier, uplink, uplink_place(shape, ends, tier))
                    parts.append(_pair_ports(here, number, at_end=at_end))
    return PairRows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _pair_ports(pair: Int, port: Int, *, at_end: bool) -> PairRows:
    return PairRows(pair, port, np.ones(len(pair)), np.full(len(pair), at_end))


def _torus_pair(shape: Shape, pair: int, start: Int, end: Int) -> PairRows:
    rows = messages(Layout(shape, np.concatenate([start, end])), *_FROM_FIRST_TO_SECOND).rows
    count = len(rows.port)
    return PairRows(np.full(count, pair), rows.port, rows.amount, np.zeros(count, dtype=np.bool_))


_FROM_FIRST_TO_SECOND = (np.array([1.0, 0.0]), np.array([0.0, 1.0]))


def mirrored(shape: Shape, rows: Rows) -> Rows:
    """The same traffic with every message going back."""
    tier, kind, place = port_parts(rows.port)
    opposite = np.array([on.IN, on.OUT, on.UPLINK_IN, on.UPLINK_OUT, on.LINK, on.MINUS, on.PLUS])
    number = port_number(0, 0, place) + opposite[kind] * on.MAX_TIERS + tier
    stride = 1
    for index, of in enumerate(shape):
        here = (tier == index) & (kind == on.LINK)
        position, target = place[here] // of.size, place[here] % of.size
        along = position // stride % of.size
        moved = (position + (target - along) * stride) * of.size + along
        number[here] = port_number(index, on.LINK, moved)
        for direction, step in ((on.PLUS, 1), (on.MINUS, -1)):
            here = (tier == index) & (kind == direction)
            along = place[here] // stride % of.size
            moved = place[here] + ((along + step) % of.size - along) * stride
            number[here] = port_number(index, int(opposite[direction]), moved)
        stride *= of.size
    return rows._replace(port=number)
