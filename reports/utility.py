"""Utility as a table: one job in full, several jobs side by side."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from . import text
from .steps import mark
from .sweep import sweep_report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..sweeps.results import SweepResult
    from ..utility.results import UtilityResult


def utility_report(result: UtilityResult) -> list[RenderableType]:
    """Show the utility of the standard resources.

    One job gets the report of a sweep; several get a row each, and what does not fit into it
    below.
    """
    if len(result.jobs) == 1:
        return sweep_report(result.jobs[0])
    resources = list(
        dict.fromkeys(
            name
            for job in result.jobs
            for name in (*(row.resource for row in job.results), *(r.resource for r in job.refused))
        )
    )
    table = text.Columns(names=["job"], numbers=["measured", "baseline", "error", *resources])
    names = _short_names([job.trace for job in result.jobs])
    for name, job in zip(names, result.jobs, strict=True):
        table.row(*_cells(name, job, resources))
    return [
        *table.titled(f"Utility of each resource made {result.factor:g} times as good"),
        *text.remarks(
            "Marked",
            (f"{n}{mark(j)}" for n, j in zip(names, result.jobs, strict=True) if mark(j)),
        ),
        *text.remarks(
            "Not significant",
            (
                f"{name}, {', '.join(unsure)}: {verdict}"
                for name, job in zip(names, result.jobs, strict=True)
                for verdict, unsure in _not_significant(job).items()
            ),
        ),
        *text.remarks(
            "Not applicable",
            (
                f"{name}, {one.resource}: {one.reason}"
                for name, job in zip(names, result.jobs, strict=True)
                for one in job.refused
            ),
        ),
        *text.remarks(
            "Networks",
            (
                f"{name}: {job.network.name}; {job.placement}"
                for name, job in zip(names, result.jobs, strict=True)
            ),
        ),
        *text.remarks("Not modelled", result.jobs[0].limits),
    ]


def _cells(name: str, job: SweepResult, resources: list[str]) -> list[str]:
    utility = {row.resource: row.utility_pct for row in job.results}
    return [
        f"{name} (!)" if mark(job) else name,
        text.time(job.measured_step_ns),
        text.time(job.baseline_step_ns),
        text.percent(job.baseline_error_pct, sign=True),
        *(text.percent(utility.get(resource)) for resource in resources),
    ]


def _not_significant(job: SweepResult) -> dict[str, list[str]]:
    """Resources whose utility does not stand out, by what the verdict says of them."""
    found: dict[str, list[str]] = {}
    for row in job.results:
        if row.verdict != "significant":
            found.setdefault(row.verdict, []).append(row.resource)
    return found


def _short_names(traces: list[str]) -> list[str]:
    """Last parts of the paths, as many as tell them apart."""
    parts = [PurePath(trace).parts for trace in traces]
    for count in range(1, max(map(len, parts))):
        short = ["/".join(each[-count:]) for each in parts]
        if len(set(short)) == len(short):
            return short
    return traces
