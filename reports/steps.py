"""What stands above every table of numbers: the step, the baseline, and how far it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from ..simulator.results import RankTime
    from ..sweeps.results import JobResult, SimulateResult, StepRow

_CATEGORIES = (
    ("compute", "compute_ns"),
    ("exposed comm", "exposed_comm_ns"),
    ("copy", "copy_ns"),
    ("wait", "wait_ns"),
    ("host", "host_ns"),
    ("idle", "idle_ns"),
    ("start offset", "start_offset_ns"),
)


def mark(result: JobResult | SimulateResult) -> str:
    """Say in a title what is wrong with what the figures rest on, if something is."""
    marks = []
    if result.beyond_limit is None:
        marks.append(" - BASELINE ERROR NOT KNOWN")
    elif result.beyond_limit:
        error = text.percent(result.baseline_error_pct, sign=True)
        marks.append(f" - BEYOND THE LIMIT: baseline error {error}, limit {result.limit_pct:g} %")
    if result.assumed_members:
        marks.append(f" - ASSUMED: {result.assumed_members} members that were not traced")
    return "".join(marks)


def job_line(result: JobResult | SimulateResult) -> str:
    """Say what was simulated."""
    ranks = text.plural(result.ranks, "rank")
    return f"{result.trace}: {ranks}, {result.dependency_model} model"


def sweep_header(result: JobResult) -> list[RenderableType]:
    """Say what the results of a sweep rest on."""
    error = text.percent(result.baseline_error_pct, sign=True)
    worst = text.percent(result.worst_rank_error_pct, sign=True)
    return [
        Text(job_line(result)),
        Text(f"placement  {result.placement}"),
        Text(f"steps      {steps_used(result.steps)}"),
        Text(f"measured   {text.time(result.measured_step_ns)}"),
        Text(f"baseline   {text.time(result.baseline_step_ns)}"),
        Text(f"error      {error}; of the completion on one rank, at worst {worst}"),
        Text(f"path       {path_line(result.critical_path_ns)}"),
    ]


def steps_used(steps: Sequence[StepRow]) -> str:
    """Say which steps the headline is the median of, and how far they spread."""
    used = [step for step in steps if step.used]
    if len(steps) == 1:
        return f"{steps[0].name}, the only one: its window counts"
    times = [step.measured_ns for step in used if step.measured_ns is not None]
    spread = f"; measured {text.time(min(times))} to {text.time(max(times))}" if times else ""
    names = used[0].name if len(used) == 1 else f"{used[0].name} to {used[-1].name}"
    return f"median of {names} ({len(used)} of {len(steps)} recorded{spread})"


def category_table(title: str, per_rank: Sequence[RankTime]) -> list[RenderableType]:
    """Show where the headline step goes on each rank; all but the last two columns sum to it."""
    table = text.Columns(
        names=[],
        numbers=["rank", *(heading for heading, _ in _CATEGORIES), "hidden comm", "finish"],
    )
    for rank in per_rank:
        table.row(
            str(rank.rank),
            *(text.time(getattr(rank, field)) for _, field in _CATEGORIES),
            text.time(rank.hidden_comm_ns),
            text.time(rank.finish_ns),
        )
    return table.titled(title)


def path_line(split: dict[str, int]) -> str:
    """Name what the critical path mostly consists of; all of it is in `critical_path_table`."""
    total = sum(split.values())
    largest = sorted(split.items(), key=lambda item: -item[1])
    named = [
        f"{kind.replace('_', ' ')} {ns / total:.1%}" for kind, ns in largest if ns >= total / 1000
    ]
    return ", ".join(named)


def critical_path_table(title: str, split: dict[str, int]) -> list[RenderableType]:
    """Show what the critical path of the headline step consists of."""
    total = sum(split.values())
    table = text.Columns(names=["kind"], numbers=["time", "share"])
    for kind, ns in sorted(split.items(), key=lambda item: -item[1]):
        if ns:
            table.row(kind.replace("_", " "), text.time(ns), text.percent(ns / total * 100))
    return table.titled(title)
