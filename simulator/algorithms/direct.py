"""Messages from member to member: all-to-all, gather and scatter, send; and the barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Collective
from .layout import fabrics
from .stages import Stage, stage
from .traffic import around, exchange, join, messages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .layout import Layout

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
    found = messages(layout, sent, wanted)
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


def barrier(layout: Layout, passes: int) -> list[Stage]:
    """A dissemination between the units of every level, there and back."""
    needed: dict[int, float] = {}
    for level in layout.used:
        rounds = (layout.most_children(level) - 1).bit_length()
        if layout.topology(level) == "ring":
            rounds = around(layout, level, np.zeros(layout.size), "gather").hops
        needed[layout.levels[level][0]] = passes * rounds
    return [stage(layout, join([]), {}, needed)]
