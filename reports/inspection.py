"""An inspection as tables: ranks, steps, groups, collectives, where time goes, coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text
from .coverage import coverage_report
from .steps import category_table, critical_path_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .results import InspectedCollective, InspectResult

_SHOWN = 30


def inspection_report(result: InspectResult) -> list[RenderableType]:
    """Show what is in a trace."""
    of = f" of {result.world_size}" if result.world_size != result.ranks else ""
    header = Text(
        f"{result.trace}: {result.source}, {result.ranks}{of} "
        f"{'rank' if result.ranks == 1 and not of else 'ranks'}, {result.nodes} nodes in the "
        f"{result.dependency_model} model; step {text.time(result.measured_step_ns)}"
    )
    where: list[RenderableType] = []
    if result.per_rank:
        where = [
            *category_table("Where the step goes, as measured", result.per_rank),
            *critical_path_table("On the critical path, as measured", result.critical_path_ns),
        ]
    return [
        header,
        *_ranks(result),
        *_steps(result),
        *_groups(result),
        *_collectives(result.collectives),
        *where,
        *coverage_report(result.coverage, timeline=bool(result.per_rank)),
    ]


def _ranks(result: InspectResult) -> list[RenderableType]:
    table = text.Columns(names=["ranks", "host", "device"], numbers=["starts later by"])
    unnamed = "none" if result.source.endswith("-cpu") else "not said"
    alike: dict[tuple[str, str], list[int]] = {}
    for one in result.rank_table:
        alike.setdefault((one.host, one.device), []).append(one.rank)
    offset = {one.rank: one.start_offset_ns for one in result.rank_table}
    for (host, device), ranks in alike.items():
        offsets = [offset[rank] for rank in ranks]
        later = text.time(max(offsets))
        if len(ranks) > 1:
            later = f"{text.time(min(offsets))} to {later}"
        table.row(text.span(ranks), host or "not said", device or unnamed, later)
    return table.titled("Ranks")


def _steps(result: InspectResult) -> list[RenderableType]:
    table = text.Columns(
        names=["step", "in the median"], numbers=["measured", "annotation, shortest", "longest"]
    )
    for step in result.steps:
        lengths = [rank.annotation_ns for rank in step.per_rank]
        table.row(
            step.name,
            "yes" if step.used else "no, the first",
            text.time(step.measured_ns),
            text.time(min(lengths, default=None)),
            text.time(max(lengths, default=None)),
        )
    return table.titled("Steps")


def _groups(result: InspectResult) -> list[RenderableType]:
    table = text.Columns(names=["group", "members", "description"], numbers=["ranks", "operations"])
    for group in result.groups[:_SHOWN]:
        members = text.span(sorted(group.ranks))
        table.row(group.name, members, group.description, str(group.size), str(group.operations))
    return [*table.titled("Process groups"), *text.more(len(result.groups) - _SHOWN, "groups")]


def _collectives(rows: list[InspectedCollective]) -> list[RenderableType]:
    table = text.Columns(
        names=["type", "group", "data"],
        numbers=[
            *("ranks", "bytes a rank", "count", "as traced", "transfer"),
            *("wait", "mean wait", "longest wait", "bus GB/s"),
        ],
    )
    for one in rows[:_SHOWN]:
        table.row(
            one.type,
            one.group,
            one.dtype or text.NONE,
            str(one.group_size),
            text.NONE if one.bytes is None else f"{one.bytes:,}",
            str(one.count),
            text.time(one.duration_ns_median),
            text.time(one.transfer_ns_median),
            text.time(one.wait_ns_median),
            text.time(one.wait_ns_mean),
            text.time(one.wait_ns_max),
            text.NONE if one.bus_gb_s_median is None else f"{one.bus_gb_s_median:.4g}",
        )
    title = "Communication, largest first (medians unless said otherwise)"
    return [*table.titled(title), *text.more(len(rows) - _SHOWN, "kinds")]
