"""An explanation as tables: the verdict, the places, what communication costs, what is worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from . import text
from .network import network_report
from .simulation import simulation_header
from .steps import category_table, critical_path_table, mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from ..simulator.results import ExposedCollective, ExposedGroup, Place
    from ..sweeps.results import Anatomy, ExplainResult, Worth

_SHOWN = 10

# Longer names of kernels are cut in tables; --json has all of them.
_WIDTH = 72


def explain_report(result: ExplainResult) -> list[RenderableType]:
    """Show why a step takes as long as it does.

    Parameters
    ----------
    result : ExplainResult
        From `sweeps.explain`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    return [
        *simulation_header(result),
        Text(f"explained  {' and '.join(result.headline_steps)}"),
        Text(f"\nWhat limits the step{mark(result)}", style="bold"),
        *(Padding(Text(sentence), (0, 0, 0, 2), expand=False) for sentence in result.verdict),
        *_anatomy(result.against),
        *_places(result),
        *critical_path_table("The critical path by kind", result.critical_path_ns),
        *_worths(result.resources),
        *_remarks(result),
        *_communication(result.groups, result.collectives),
        *category_table("Where the step goes on each rank", result.per_rank),
        *network_report(result),
        *text.remarks("Not modelled", result.limits),
    ]


def _anatomy(found: Anatomy | None) -> list[RenderableType]:
    if found is None:
        return []
    table = text.Columns(names=["of", "part"], numbers=["predicted", "true", "of the step"])
    for of, parts in (("critical path", found.path), ("average rank", found.ranks)):
        for part in parts:
            table.row(
                of,
                part.part.replace("_", " "),
                text.time(part.predicted_ns),
                text.time(part.true_ns),
                text.percent(part.difference_pct, sign=True),
            )
    error = text.percent(found.error_pct, sign=True)
    steps = f"{text.time(found.predicted_step_ns)} against {text.time(found.true_step_ns)}"
    return table.titled(f"What the error of {error} consists of: {steps} of {found.truth}")


def _places(result: ExplainResult) -> list[RenderableType]:
    table = text.Columns(names=["kind", "where", "what"], numbers=["count", "time", "share"])
    for place in result.places:
        table.row(
            place.kind.replace("_", " "),
            _where(place),
            _what(place),
            _count(place.count),
            text.time(place.time_ns),
            text.percent(place.share_pct),
        )
    if result.other_places:
        share = result.other_places_ns / result.step_ns * 100
        number = text.plural(result.other_places, "more place")
        table.row(number, "", "", "", text.time(result.other_places_ns), text.percent(share))
    return table.titled("Where the critical path spends the step")


def _where(place: Place) -> str:
    if place.rank is None:
        return f"group {place.group}"
    return f"rank {place.rank}" + (f", {place.lane}" if place.lane else "")


def _what(place: Place) -> str:
    if place.rank is None:
        size = "" if place.bytes is None else f" of {text.size(place.bytes)}"
        beside = "" if place.beside is None else f", beside {place.beside}"
        return f"{place.what}{size}{beside}"
    return place.what if len(place.what) <= _WIDTH else f"{place.what[: _WIDTH - 1]}…"


def _count(count: float) -> str:
    return f"{count:g}"


def _worths(resources: Sequence[Worth]) -> list[RenderableType]:
    table = text.Columns(
        names=["resource"],
        numbers=["owns of the path", "twice as good", "bound", "unlimited", "bound", "verdict"],
    )
    for one in resources:
        table.row(
            one.resource,
            text.percent(one.owned_pct),
            text.percent(one.utility_pct),
            text.percent(one.bound_pct),
            text.percent(one.unlimited_utility_pct),
            text.percent(one.unlimited_bound_pct),
            "irrelevant" if one.irrelevant else "",
        )
    return table.titled("What each resource could give back, in percent of the step")


def _remarks(result: ExplainResult) -> list[RenderableType]:
    unbounded: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for one in result.resources:
        if one.bound_reason:
            unbounded.setdefault(one.bound_reason, []).append(one.resource)
    for row in result.refused:
        refused.setdefault(row.reason, []).append(row.resource)
    changed = [one for one in result.resources if one.shape_change]
    return [
        *text.remarks("Changes the shape", (f"{o.resource}: {o.shape_change}" for o in changed)),
        *text.remarks("No bound", (f"{', '.join(n)}: {why}" for why, n in unbounded.items())),
        *text.remarks("Not applicable", (f"{', '.join(n)}: {why}" for why, n in refused.items())),
    ]


def _communication(
    groups: Sequence[ExposedGroup], collectives: Sequence[ExposedCollective]
) -> list[RenderableType]:
    costs = ["ranks", "count", "exposed", "at most", "hidden", "wait", "on the path"]
    by_type = text.Columns(names=["type", "group"], numbers=["bytes a rank", *costs])
    for one in collectives[:_SHOWN]:
        size = text.NONE if one.bytes is None else f"{one.bytes:,}"
        by_type.row(one.type, one.group, size, *_costs(one))
    by_group = text.Columns(names=["group"], numbers=costs)
    for group in groups[:_SHOWN]:
        by_group.row(group.group, *_costs(group))
    shown: list[RenderableType] = []
    if len(groups) > 1:
        shown += by_group.titled("What each group costs its ranks, on average in a step")
        shown += text.more(len(groups) - _SHOWN, "groups")
    if collectives:
        shown += by_type.titled("What each collective costs its ranks, on average in a step")
        shown += text.more(len(collectives) - _SHOWN, "kinds")
    return shown


def _costs(one: ExposedGroup) -> list[str]:
    return [
        str(one.ranks),
        _count(one.count),
        text.time(one.exposed_ns),
        text.time(one.exposed_max_ns),
        text.time(one.hidden_ns),
        text.time(one.wait_ns),
        text.time(one.path_ns),
    ]
