"""Messages from member to member: all-to-all, gather and scatter, send; and the barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Collective
from .layout import fabrics, place_in
from .stages import Stage, stage
from .traffic import around, exchange, join, matrix_messages, messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .layout import Layout
    from .traffic import Messages

    Float = NDArray[np.float64]


def all_to_all(layout: Layout) -> list[Stage]:
    """Every member sends a part to every other."""
    one = np.ones(layout.size)
    return [_messages(layout, one, one, 1 / layout.size)]


def star(layout: Layout, coll: Collective, root: int) -> list[Stage]:
    """Between one member and all others."""
    is_root = (np.arange(layout.size) == root).astype(np.float64)
    others = 1 - is_root
    sent, wanted = (others, is_root) if coll == Collective.GATHER else (is_root, others)
    return [_messages(layout, sent, wanted, 1.0)]


def _messages(layout: Layout, sent: Float, wanted: Float, size: float) -> Stage:
    return _stage_of(layout, messages(layout, sent, wanted), size)


def _stage_of(layout: Layout, found: Messages, size: float = 1.0) -> Stage:
    lanes = np.zeros(len(layout.shape), dtype=np.int64)
    for index, fabric in enumerate(fabrics(layout.shape)):
        lanes[list(fabric)] = index
    return Stage(
        found.rows._replace(amount=found.rows.amount * size),
        found.wire * size,
        found.hops,
        lanes,
        np.zeros(len(layout.shape), np.bool_),
    )


def relayed(layout: Layout) -> list[Stage]:
    """All-to-all level by level: a member of the own unit passes on what goes to its likes."""
    stages = []
    for level in layout.used:
        tier = layout.levels[level][0]
        amount = 1 - layout.held[level] / layout.held[level + 1]
        rows = exchange(layout, level, amount, amount)
        stages.append(stage(layout, rows, {tier: float(amount.max())}, {tier: 1}))
    return stages


def uneven_all_to_all(layout: Layout, weights: Float, *, relayed: bool) -> list[Stage]:
    """All-to-all of unequal parts, straight or level by level.

    Parameters
    ----------
    layout : Layout
        Of the group.
    weights : float64, shape (n, n)
        From member to member.
    relayed : bool
        Whether members of the own unit pass on what goes to their likes.
    """
    if not relayed:
        return [_stage_of(layout, matrix_messages(layout, weights))]
    stages = []
    held = weights
    for level in layout.used:
        hop = hops_over(layout, level)
        member = np.broadcast_to(np.arange(layout.size)[:, np.newaxis], hop.shape)
        moved, now = np.zeros_like(held), np.zeros_like(held)
        np.add.at(moved, (member, hop), held)
        np.add.at(now, (hop, np.broadcast_to(np.arange(layout.size), hop.shape)), held)
        stages.append(_stage_of(layout, matrix_messages(layout, moved)))
        held = now
    return stages


def hops_over(layout: Layout, level: int) -> NDArray[np.int64]:
    """Who takes what a member has for another over a level, shape (n, n); -1 where nobody is.

    It is in all other coordinates like the member, and in those of the level like the other.
    """
    tiers = list(layout.levels[level])
    at = np.repeat(layout.coordinates[:, np.newaxis], layout.size, axis=1)
    at[:, :, tiers] = layout.coordinates[np.newaxis][:, :, tiers]
    return layout.at(place_in(layout.shape, at))


def barrier(layout: Layout, passes: int) -> list[Stage]:
    """A dissemination between the units of every level, there and back."""
    needed: dict[int, float] = {}
    for level in layout.used:
        rounds = (layout.most_children(level) - 1).bit_length()
        if layout.topology(level) == "ring":
            rounds = around(layout, level, np.zeros(layout.size), "gather").hops
        needed[layout.levels[level][0]] = passes * rounds
    return [stage(layout, join([]), {}, needed)]
