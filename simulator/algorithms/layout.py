"""Where the members of one group sit in the network, and the ports that they have there.

A `Layout` divides the members into the units of each tier, from the inside out, and counts them;
all byte counts of the algorithms are made of these counts. Ports are numbers that say tier, kind
and place, so that groups that share a port name the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..network import Tier

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: Most tiers that a port number has room for.
MAX_TIERS = 5

#: Most places that it has room for, those of the links of a full mesh counted by both ends.
MAX_PLACES = 2**57

# Kinds of ports.
OUT = 0  # from a rank, or from the NIC of several, into a switch
IN = 1  # the other direction
UPLINK_OUT = 2  # from a unit into an oversubscribed switch
UPLINK_IN = 3
LINK = 4  # of a full mesh, from a rank to the unit with a given coordinate
PLUS = 5  # of a ring, from a place to the next
MINUS = 6  # of a ring, from a place to the one before

_KINDS = 8


class TierShape(NamedTuple):
    """What of a tier decides who sends how much where; the fields are those of `Tier`."""

    topology: str
    size: int
    wrap: bool
    ranks_per_nic: int
    oversubscription: float
    shared_ports: bool
    in_network: bool


Shape = tuple[TierShape, ...]


def shape_of(tiers: Sequence[Tier]) -> Shape:
    """Give the shape of a network."""
    return tuple(
        TierShape(
            tier.topology,
            tier.size,
            tier.wrap,
            tier.ranks_per_nic,
            tier.oversubscription,
            tier.shared_ports,
            tier.in_network_reduction,
        )
        for tier in tiers
    )


def fabrics(shape: Shape) -> tuple[tuple[int, ...], ...]:
    """Tiers that a message crosses together: neighbouring rings are one torus, others alone."""
    runs: list[list[int]] = []
    for index, tier in enumerate(shape):
        if runs and tier.topology == "ring" and shape[index - 1].topology == "ring":
            runs[-1].append(index)
        else:
            runs.append([index])
    return tuple(tuple(run) for run in runs)


def port_tier(shape: Shape, tier: int) -> int:
    """Tier whose ports the messages of a tier go through."""
    while shape[tier].shared_ports:
        tier -= 1
    return tier


def nics_per_unit(shape: Shape, tier: int) -> int:
    """Ports that one unit of the tier below has into a switch tier."""
    ranks = 1
    for inner in shape[:tier]:
        ranks *= inner.size
    return -(-ranks // shape[port_tier(shape, tier)].ranks_per_nic)


def port_number(tier: int, kind: int, place: Int) -> Int:
    """Number of the ports of a kind, by their place in the tier."""
    return (place * _KINDS + kind) * MAX_TIERS + tier


def port_parts(port: Int) -> tuple[Int, Int, Int]:
    """Tier, kind and place of ports."""
    return port % MAX_TIERS, port // MAX_TIERS % _KINDS, port // (MAX_TIERS * _KINDS)


def port_width(shape: Shape, port: Int) -> Float:
    """Capacity of ports as a multiple of the bandwidth of their tier."""
    tier, kind, _ = port_parts(port)
    width = np.ones((len(shape), _KINDS))
    for index, of in enumerate(shape):
        width[index, LINK] = 1 / max(of.size - 1, 1)
        if of.topology == "switch":
            uplink = nics_per_unit(shape, index) / of.oversubscription
            width[index, UPLINK_OUT] = width[index, UPLINK_IN] = uplink
    widths: Float = width[tier, kind]
    return widths


def code(shape: Shape, coordinates: Int, tiers: Sequence[int]) -> Int:
    """Write the coordinates in some tiers as one number, the first tier the fastest.

    Parameters
    ----------
    shape : Shape
        Of the network.
    coordinates : int64, shape (..., T)
        In all tiers.
    tiers : sequence of int
        Those that count.

    Returns
    -------
    int64, shape (...)
    """
    number = np.zeros(coordinates.shape[:-1], dtype=np.int64)
    for tier in reversed(tiers):
        number = number * shape[tier].size + coordinates[..., tier]
    return number


def place_in(shape: Shape, coordinates: Int) -> Int:
    """Place in the whole network, as one number; see `code`."""
    return code(shape, coordinates, range(len(shape)))


def nic_place(shape: Shape, coordinates: Int, tier: int) -> Int:
    """Place of the port of each rank into a switch tier; see `code`."""
    tier = port_tier(shape, tier)
    within = code(shape, coordinates, range(tier)) // shape[tier].ranks_per_nic
    return uplink_place(shape, coordinates, tier) * nics_per_unit(shape, tier) + within


def uplink_place(shape: Shape, coordinates: Int, tier: int) -> Int:
    """Place of the uplink of each rank's unit into a switch tier; see `code`."""
    return code(shape, coordinates, range(tier, len(shape)))


class Layout:
    """The members of one group (n) in the units of each level.

    A level is a tier, or a whole torus in which the members are no product of coordinates, from
    the inside out. A unit of level l is what agrees in all coordinates from that level on: of
    level 0 one member, of the level beyond the last the whole group.

    Parameters
    ----------
    shape : Shape
        Of the network.
    coordinates : int64, shape (n, T)
        Place of every member in every tier; no two members have the same.
    levels : tuple of tuple of int, optional
        Tiers of each level. The tiers of a torus may come in any order, by default as in the
        network.

    Attributes
    ----------
    held : list of int64, shape (n,)
        Members in each member's unit of a level, and of the one beyond the last.
    children : list of int64, shape (n,)
        Units of the level in each member's unit of the next level.
    unit : list of int64, shape (n,)
        Number of each member's unit of a level, from 0, and of the one beyond the last.
    used : tuple of int
        Levels over which the group has anything to send.
    """

    def __init__(
        self, shape: Shape, coordinates: Int, levels: tuple[tuple[int, ...], ...] | None = None
    ) -> None:
        self.shape = shape
        self.coordinates = coordinates
        self.size = len(coordinates)
        self.levels = self._default_levels() if levels is None else levels
        self.held: list[Int] = []
        self.unit: list[Int] = []
        self.children: list[Int] = []
        for level in range(len(self.levels) + 1):
            outer = [tier for tiers in self.levels[level:] for tier in tiers]
            _, unit, counts = np.unique(self._code(outer), return_inverse=True, return_counts=True)
            self.unit.append(unit)
            self.held.append(counts[unit])
            if level:
                inner = np.unique(unit * self.size + self.unit[level - 1]) // self.size
                self.children.append(np.bincount(inner)[unit])
        self.used = tuple(
            level for level, children in enumerate(self.children) if (children > 1).any()
        )

    def _default_levels(self) -> tuple[tuple[int, ...], ...]:
        levels: list[tuple[int, ...]] = []
        for fabric in fabrics(self.shape):
            if len(fabric) > 1 and not self._is_product(fabric):
                levels.append(fabric)
            else:
                levels += [(tier,) for tier in fabric]
        return tuple(levels)

    def _is_product(self, fabric: tuple[int, ...]) -> bool:
        """Whether in each torus the members are at all combinations of some coordinates."""
        outer = self.unit_above(fabric[-1] + 1)
        columns = np.column_stack([outer, self.coordinates[:, list(fabric)]])
        places = np.unique(columns, axis=0)
        combinations = np.ones(int(outer.max()) + 1, dtype=np.int64)
        for column in range(1, places.shape[1]):
            combinations *= np.bincount(np.unique(places[:, [0, column]], axis=0)[:, 0])
        return bool((np.bincount(places[:, 0]) == combinations).all())

    def _code(self, tiers: Sequence[int]) -> Int:
        return code(self.shape, self.coordinates, tiers)

    def unit_above(self, tier: int) -> Int:
        """Number of what each member shares with those that differ below a tier, from 0."""
        above = self._code(range(tier, len(self.shape)))
        unit: Int = np.unique(above, return_inverse=True)[1]
        return unit

    def axes(self) -> tuple[int, ...]:
        """Levels of the torus along whose dimensions, two or more, the members differ."""
        for fabric in fabrics(self.shape):
            single = [(tier,) for tier in fabric]
            levels = tuple(level for level in self.used if self.levels[level] in single)
            if len(levels) > 1:
                return levels
        return ()

    def turned(self) -> list[Layout]:
        """Give a layout for each of `axes`, in which the dimensions begin with that one."""
        axes = self.axes()
        layouts = []
        for turn in range(len(axes)):
            levels = list(self.levels)
            for index, level in enumerate(axes):
                levels[level] = self.levels[axes[(index + turn) % len(axes)]]
            layouts.append(Layout(self.shape, self.coordinates, tuple(levels)))
        return layouts

    def index_in_unit(self, level: int) -> Int:
        """Number of each member's unit of a level among those of the same unit of the next."""
        both = self.unit[level + 1] * self.size + self.unit[level]
        found, index = np.unique(both, return_inverse=True)
        first = np.searchsorted(found // self.size, self.unit[level + 1])
        numbers: Int = index - first
        return numbers

    def most_children(self, level: int) -> int:
        """Most units of a level that any unit of the next holds."""
        return int(self.children[level].max())

    def flagged(self, level: int) -> bool:
        """Whether the switches of a level reduce and copy."""
        return self.shape[self.levels[level][0]].in_network

    def topology(self, level: int) -> str:
        """Topology of the tiers of a level."""
        return self.shape[self.levels[level][0]].topology

    def at(self, positions: Int) -> Int:
        """Member at places in the network, -1 where none is."""
        own = place_in(self.shape, self.coordinates)
        order = np.argsort(own)
        index = np.minimum(np.searchsorted(own[order], positions), self.size - 1)
        member = order[index]
        found: Int = np.where(own[member] == positions, member, -1)
        return found
