"""A sweep as a table: resource by resource, with what the numbers rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import text
from .network import network_report
from .steps import mark, sweep_header

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..sweeps.results import ResultRow, SweepResult

# All other verdicts say what is missing, which is the same for all rows: it stands below.
_JUDGED = ("significant", "within noise")


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
        names=["resource"],
        numbers=["factor", "step", "utility", "interval", "verdict", "bound"],
    )
    unbounded: dict[str, list[str]] = {}
    changed = []
    for row in result.results:
        table.row(
            row.resource,
            f"{row.factor:g}",
            text.time(row.step_ns),
            text.percent(row.utility_pct),
            interval(row),
            row.verdict if row.verdict in _JUDGED else text.NONE,
            text.percent(row.bound_pct),
        )
        if row.bound_reason:
            unbounded.setdefault(row.bound_reason, []).append(row.label)
        if row.shape_change:
            changed.append(f"{row.label}: {row.shape_change}")
    return [
        *table.titled(f"What a better resource is worth{mark(result)}"),
        *interval_remarks(result),
        *text.remarks("Changes the shape", changed),
        *text.remarks(
            "No bound", (f"{', '.join(names)}: {reason}" for reason, names in unbounded.items())
        ),
        *text.remarks(
            "Not applicable", (f"{one.resource}: {one.reason}" for one in result.refused)
        ),
    ]


def interval(row: ResultRow) -> str:
    """Write from where to where a utility may be."""
    if row.utility_low_pct is None or row.utility_high_pct is None:
        return text.NONE
    return f"{text.percent(row.utility_low_pct)} to {text.percent(row.utility_high_pct)}"


def interval_remarks(result: SweepResult) -> list[RenderableType]:
    """Say what the intervals rest on, and what the verdicts."""
    lines = [f"interval: {result.interval_basis}"]
    if result.noise_pct is not None:
        lines.append(
            f"noise: {text.percent(result.noise_pct)}, two standard errors of the measured steps"
        )
    missing = dict.fromkeys(row.verdict for row in result.results if row.verdict not in _JUDGED)
    lines += [f"no verdict: {verdict}" for verdict in missing]
    return text.remarks("How sure that is", lines)
