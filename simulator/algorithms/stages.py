"""The stages that plans are made of: what happens at once, in which tiers, with which messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .layout import IN, OUT, port_parts
from .traffic import Rows, join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .layout import Layout

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


class Stage(NamedTuple):
    """What happens at once (T tiers).

    Attributes
    ----------
    rows : Rows
        Traffic, in units of the size of the operation.
    wire : float64, shape (T,)
        Bytes that the busiest member sends or receives in each tier, in the same units; what is
        only passed on for others is not in it.
    messages : float64, shape (T,)
        Messages (on rings: hops) one after the other.
    lanes : int64, shape (T,)
        Tiers of one number wait for each other's messages; of the others only the slowest counts.
    in_network : bool, shape (T,)
        Whether the switches of the tier reduce or copy.
    """

    rows: Rows
    wire: Float
    messages: Float
    lanes: Int
    in_network: NDArray[np.bool_]


def stage(
    layout: Layout, rows: Rows, wire: Mapping[int, float], messages: Mapping[int, float]
) -> Stage:
    """Fill in the tiers; all wait for each other's messages."""
    count = len(layout.shape)
    made = Stage(
        rows, np.zeros(count), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.bool_)
    )
    for tier, value in wire.items():
        made.wire[tier] = value
    for tier, value in messages.items():
        made.messages[tier] = value
    return made


def at_once(stages: Sequence[Stage]) -> Stage:
    """Stages that all run at the same time, on successive parts of the data; of equal lanes."""
    rows = join(stage.rows for stage in stages)
    in_network = np.logical_or.reduce([stage.in_network for stage in stages])
    wire = np.sum([stage.wire for stage in stages], axis=0)
    # What goes up into a switch that reduces is much when little comes down, and vice versa.
    tier, kind, _ = port_parts(rows.port)
    for index in np.flatnonzero(in_network):
        wire[index] = max(
            np.bincount(rows.owner[here], rows.amount[here]).max(initial=0.0)
            for here in ((tier == index) & (kind == OUT), (tier == index) & (kind == IN))
        )
    messages = np.sum([stage.messages for stage in stages], axis=0)
    return Stage(rows, wire, messages, stages[0].lanes, in_network)


def side_by_side(stages: Sequence[Stage]) -> Stage:
    """Stages of equal parts of the data that run at the same time, each in its own tiers."""
    part = 1 / len(stages)
    messages = np.max([stage.messages for stage in stages], axis=0)
    return Stage(
        join(stage.rows._replace(amount=stage.rows.amount * part) for stage in stages),
        np.sum([stage.wire for stage in stages], axis=0) * part,
        messages,
        np.arange(len(messages)),
        np.zeros(len(messages), np.bool_),
    )


def per_port(rows: Rows) -> tuple[Int, Float]:
    """Add up traffic by port."""
    port, index = np.unique(rows.port, return_inverse=True)
    amount = np.zeros(len(port))
    np.add.at(amount, index, rows.amount)
    return port, amount


def alike(one: Rows, other: Rows) -> bool:
    """Whether two stages put the same through the same ports, so that one is as good as both."""
    return all(np.array_equal(*pair) for pair in zip(per_port(one), per_port(other), strict=True))
