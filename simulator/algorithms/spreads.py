"""Broadcast, and reduce as its mirror image: from one member to all, or from all to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Collective
from .layout import port_parts
from .reductions import flat_ring
from .stages import Stage, side_by_side, stage
from .traffic import Rows, around_from, by_unit, exchange, join
from .trees import double_tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .layout import Layout
    from .names import Algorithm

    Int = NDArray[np.int64]


def spread(layout: Layout, algorithm: Algorithm, root: int) -> list[Stage]:
    """Stages of a broadcast from one member.

    Parameters
    ----------
    layout : Layout
        Of a group that can use the algorithm.
    algorithm : str
        Of broadcasts.
    root : int
        Index of the member.
    """
    if algorithm == "ring" and len(layout.used) > 1:
        return [flat_ring(layout, Collective.BROADCAST)]
    if algorithm == "tree":
        return [_tree(layout, root)]
    if algorithm == "multi-axis":
        ways = [_down(turned, root) for turned in layout.turned()]
        return [side_by_side(stages) for stages in zip(*ways, strict=True)]
    return _down(layout, root)


def _down(layout: Layout, root: int) -> list[Stage]:
    """From the root to one member of every outermost unit, from these to the units inside."""
    leaders = {int(layout.unit[-1][root]): root}
    stages = []
    for level in reversed(range(len(layout.levels))):
        below: dict[int, int] = {}
        parts, hops = [], 0
        for members in by_unit(layout.unit[level + 1]):
            source = leaders[int(layout.unit[level + 1][members[0]])]
            chosen = _leaders(layout, level, members, source)
            below.update(zip(layout.unit[level][chosen].tolist(), chosen.tolist(), strict=True))
            if len(chosen) > 1:
                rows, length = _chain(layout, level, chosen, source)
                parts.append(rows)
                hops = max(hops, length)
        leaders = below
        tier = layout.levels[level][0]
        if hops:
            stages.append(stage(layout, join(parts), {tier: 1.0}, {tier: hops}))
    return stages


def _leaders(layout: Layout, level: int, members: Int, source: int) -> Int:
    """One member of every unit: the one beside the source, or else the first."""
    inner = [tier for tiers in layout.levels[:level] for tier in tiers]
    beside = (layout.coordinates[members][:, inner] == layout.coordinates[source, inner]).all(
        axis=1
    )
    order = np.lexsort((~beside, layout.unit[level][members]))
    unit = layout.unit[level][members][order]
    first = np.flatnonzero(np.diff(unit, prepend=-1))
    return members[order][first]


def _chain(layout: Layout, level: int, members: Int, source: int) -> tuple[Rows, int]:
    """One member gives all that it has to others, each passing on what comes in."""
    if layout.topology(level) == "ring":
        return around_from(layout, level, members, source)
    out = np.zeros(layout.size)
    into = np.zeros(layout.size)
    at = int(np.flatnonzero(members == source)[0])
    order = np.roll(members, -at)
    out[order[:-1]], into[order[1:]] = 1.0, 1.0
    if layout.topology(level) == "fully_connected":
        # As many chains as the source has links; each passes through all others.
        out[order] = 1.0
        rows = exchange(layout, level, out, into)
        tier = layout.levels[level][0]
        place = port_parts(rows.port)[2]
        kept = place % layout.shape[tier].size != layout.coordinates[source, tier]
        rows = Rows(rows.port[kept], rows.amount[kept], rows.owner[kept])
    else:
        rows = exchange(layout, level, out, into)
    return rows, len(members) - 1


def _tree(layout: Layout, root: int) -> Stage:
    """The root gives half of the data to the root of each of two trees over the others."""
    parts: list[Rows] = []
    wire: dict[int, float] = {}
    messages: dict[int, float] = {}
    for level in layout.used:
        tier = layout.levels[level][0]
        out, into = np.zeros(layout.size), np.zeros(layout.size)
        for members in by_unit(layout.unit[level + 1]):
            unit = layout.unit[level][members]
            first = layout.unit[level][root] if root in members else unit.min()
            others = np.unique(unit[unit != first])
            if not len(others):
                continue
            tree = double_tree(len(others))
            index = np.minimum(np.searchsorted(others, unit), len(others) - 1)
            out[members] = np.where(unit == first, 1.0, tree.children[index] / 2)
            into[members] = np.where(unit == first, 0.0, 1.0)
        parts.append(exchange(layout, level, out / layout.held[level], into / layout.held[level]))
        wire[tier] = float((np.maximum(out, into) / layout.held[level]).max())
        messages[tier] = 1 + double_tree(layout.most_children(level) - 1).height
    return stage(layout, join(parts), wire, messages)
