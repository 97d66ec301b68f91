"""All-reduce, all-gather and reduce-scatter; barriers that are all-reduces of nothing.

They go level by level from the inside out, scattering parts of the sum, and back, gathering
them. What one level does is a *step*: around a ring, directly, in halves, or in the switch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...graph.columns import Collective
from .layout import Layout
from .rings import Pass
from .stages import Stage, alike, at_once, side_by_side, stage
from .traffic import Rows, around, exchange, join
from .trees import double_tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .names import Algorithm

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: Collectives that scatter a sum.
REDUCE_SCATTER = frozenset({Collective.REDUCE_SCATTER, Collective.REDUCE_SCATTER_BLOCK})


def reduction(layout: Layout, coll: Collective, algorithm: Algorithm) -> list[Stage]:
    """Stages of an all-reduce, all-gather or reduce-scatter, or of a barrier made like the first.

    Parameters
    ----------
    layout : Layout
        Of a group that can use the algorithm.
    coll : Collective
        ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER or BARRIER.
    algorithm : str
        Of these.
    """
    if algorithm == "ring" and len(layout.used) > 1:
        stages = [flat_ring(layout, coll)]
    elif algorithm == "tree":
        stages = [_tree(layout)]
    elif algorithm == "multi-axis":
        ways = [_there_and_back(turned, coll, _ring_step) for turned in layout.turned()]
        scatters, gathers = (
            [side_by_side(parts) for parts in zip(*(way[k] for way in ways), strict=True)]
            for k in range(2)
        )
        stages = _turning(scatters, gathers)
    else:
        step = _STEPS.get(algorithm, _ring_step)
        stages = _turning(*_there_and_back(layout, coll, step))
    if coll == Collective.BARRIER:
        nothing = np.zeros(len(layout.shape))
        stages = [made._replace(rows=join([]), wire=nothing) for made in stages]
    return stages


def _there_and_back(
    layout: Layout, coll: Collective, step: _Step
) -> tuple[list[Stage], list[Stage]]:
    """Scatter from the inside out; gather from the outside in."""
    scatters: list[Stage] = []
    gathers: list[Stage] = []
    for level in layout.used:
        if coll != Collective.ALL_GATHER:
            scatters = [*scatters, *step(layout, level, coll, "scatter")]
        if coll not in REDUCE_SCATTER:
            gathers = [*step(layout, level, coll, "gather"), *gathers]
    return scatters, gathers


def _turning(scatters: list[Stage], gathers: list[Stage]) -> list[Stage]:
    """Let the last scatter and the first gather be one stage where nothing tells them apart."""
    if scatters and gathers and alike(scatters[-1].rows, gathers[0].rows):
        return [*scatters[:-1], at_once([scatters[-1], gathers[0]]), *gathers[1:]]
    return scatters + gathers


def _amount(layout: Layout, level: int, coll: Collective) -> Float:
    """Bytes that each member sends and receives in one pass over a level.

    A unit of the level shares its part of the data among the members that it holds; between
    units goes what they lack (all-gather, reduce-scatter), or equal parts (all-reduce).
    """
    own, all_ = layout.held[level], layout.held[level + 1]
    if coll == Collective.ALL_GATHER:
        return layout.size * (all_ - own) / (own * all_)
    if coll in REDUCE_SCATTER:
        return (all_ - own) / (own * all_)
    units = layout.children[level]
    return (units - 1) / (units * own)


def _ring_step(layout: Layout, level: int, coll: Collective, what: Pass) -> list[Stage]:
    amount = _amount(layout, level, coll)
    tier = layout.levels[level][0]
    if layout.topology(level) == "ring":
        rows, hops = around(layout, level, amount, what)
    else:
        rows, hops = exchange(layout, level, amount, amount), layout.most_children(level) - 1
    return [stage(layout, rows, {tier: amount.max()}, {tier: hops})]


def _direct_step(layout: Layout, level: int, coll: Collective, what: Pass) -> list[Stage]:
    (made,) = _ring_step(layout, level, coll, what)
    return [made._replace(messages=np.minimum(made.messages, 1))]


def _switch_step(layout: Layout, level: int, coll: Collective, what: Pass) -> list[Stage]:
    """One message up and one down; the switch adds up, or copies, what all members send."""
    if not layout.flagged(level):
        return _ring_step(layout, level, coll, what)
    own, all_, units = layout.held[level], layout.held[level + 1], layout.children[level]
    if coll == Collective.ALL_GATHER:
        whole, part = layout.size / own, layout.size / all_
    elif coll in REDUCE_SCATTER:
        whole, part = 1 / own, 1 / all_
    else:
        whole, part = 1 / own, 1 / (own * units)
    busy = units > 1
    out, into = (whole, part) if what == "scatter" else (part, whole)
    rows = exchange(layout, level, out * busy, into * busy)
    tier = layout.levels[level][0]
    made = stage(layout, rows, {tier: float((whole * busy).max())}, {tier: 1})
    made.in_network[tier] = True
    return [made]


def _halving_step(layout: Layout, level: int, coll: Collective, what: Pass) -> list[Stage]:
    """Exchange half, a quarter, ... with partners ever closer, or the other way round."""
    tier = layout.levels[level][0]
    amount = _amount(layout, level, coll)
    rounds = (layout.most_children(level) - 1).bit_length()
    if coll in REDUCE_SCATTER or coll == Collective.ALL_GATHER:
        rows = exchange(layout, level, amount, amount)
        return [stage(layout, rows, {tier: amount.max()}, {tier: rounds})]
    # An all-reduce runs among a power of two of the units; the others fold into these first.
    own, units, index = layout.held[level], layout.children[level], layout.index_in_unit(level)
    core = 2 ** (np.frexp(units)[1].astype(np.int64) - 1)
    folded = index >= core
    partner = index < units - core
    amount = np.where(folded, 0.0, (core - 1) / (core * own))
    rows = exchange(layout, level, amount, amount)
    rounds = int(core.max()).bit_length() - 1
    stages = [stage(layout, rows, {tier: amount.max()}, {tier: rounds})]
    if folded.any():
        out, into = folded / own, partner / own
        if what == "gather":
            out, into = into, out
        rows = exchange(layout, level, out, into)
        extra = stage(layout, rows, {tier: (1 / own[folded]).max()}, {tier: 1})
        stages = [extra, *stages] if what == "scatter" else [*stages, extra]
    return stages


def flat_ring(layout: Layout, coll: Collective) -> Stage:
    """One ring through all members, unit after unit, as often as there are ports to leave by."""
    passes, amount = 1, 1.0
    if coll in (Collective.ALL_REDUCE, Collective.BARRIER):
        passes, amount = 2, 2 * (layout.size - 1) / layout.size
    elif coll == Collective.ALL_GATHER:
        amount = layout.size - 1.0
    elif coll in REDUCE_SCATTER:
        amount = (layout.size - 1) / layout.size
    closed = coll not in (Collective.BROADCAST, Collective.REDUCE)
    parts: list[Rows] = []
    wire: dict[int, float] = {}
    messages: dict[int, float] = {}
    for level in layout.used:
        units, tier = layout.children[level], layout.levels[level][0]
        outermost = level == layout.used[-1]
        # Of the edges that leave a unit all but one stay in the unit around it.
        share = np.ones(layout.size) if outermost else (units - 1) / units
        each = amount * share / layout.held[level] * (units > 1)
        parts.append(exchange(layout, level, each, each))
        edges = len(np.unique(layout.unit[level])) - len(np.unique(layout.unit[level + 1]))
        wire[tier] = float(each.max())
        # A chain has an edge less than the ring; one of the innermost is left out.
        edges += closed * (outermost - (level == layout.used[0]))
        messages[tier] = passes * float(edges)
    return stage(layout, join(parts), wire, messages)


def _tree(layout: Layout) -> Stage:
    """Up and down a double binary tree in every tier, all tiers at once."""
    parts: list[Rows] = []
    wire: dict[int, float] = {}
    messages: dict[int, float] = {}
    for level in layout.used:
        tier = layout.levels[level][0]
        load = np.zeros(layout.size)
        for units in np.unique(layout.children[level]):
            tree = double_tree(int(units))
            here = layout.children[level] == units
            load[here] = (tree.children + tree.parents)[layout.index_in_unit(level)[here]] / 2
        load /= layout.held[level]
        parts.append(exchange(layout, level, load, load))
        wire[tier] = float(load.max())
        messages[tier] = 2 * double_tree(layout.most_children(level)).height
    return stage(layout, join(parts), wire, messages)


_Step = Callable[[Layout, int, Collective, Pass], list[Stage]]

_STEPS: dict[str, _Step] = {
    "direct": _direct_step,
    "halving-doubling": _halving_step,
    "in-switch": _switch_step,
}
