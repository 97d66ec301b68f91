"""A sweep as a table: resource by resource, with what the numbers rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import text
from .network import network_report
from .steps import mark, sweep_header

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..sweeps.results import SweepResult


def sweep_report(result: SweepResult) -> list[RenderableType]:
    """Show a sweep of one job.

    Parameters
    ----------
    result : SweepResult
        From `sweeps.run.sweep`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    return [
        *sweep_header(result),
        *result_table(result),
        *network_report(result),
        *text.remarks("Not modelled", result.limits),
    ]


def result_table(result: SweepResult) -> list[RenderableType]:
    """Show the results alone, and below them what they lack and why."""
    table = text.Columns(
        names=["resource"], numbers=["factor", "step", "utility", "over the steps", "bound"]
    )
    unbounded: dict[str, list[str]] = {}
    changed = []
    for row in result.results:
        over = text.NONE
        if row.utility_range_pct is not None:
            over = " to ".join(text.percent(value) for value in row.utility_range_pct)
        table.row(
            row.resource,
            f"{row.factor:g}",
            text.time(row.step_ns),
            text.percent(row.utility_pct),
            over,
            text.percent(row.bound_pct),
        )
        label = f"{row.resource} x{row.factor:g}"
        if row.bound_reason:
            unbounded.setdefault(row.bound_reason, []).append(label)
        if row.shape_change:
            changed.append(f"{label}: {row.shape_change}")
    return [
        *table.titled(f"What a better resource is worth{mark(result)}"),
        *text.remarks("Changes the shape", changed),
        *text.remarks(
            "No bound", (f"{', '.join(names)}: {reason}" for reason, names in unbounded.items())
        ),
        *text.remarks(
            "Not applicable", (f"{one.resource}: {one.reason}" for one in result.refused)
        ),
    ]
