"""A validation as tables: the bars first, then the evidence behind each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..sweeps.evidence_results import Check, ValidationResult

_SHOWN = 20


def validation_report(result: ValidationResult) -> list[RenderableType]:
    """Show what a validation found.

    Parameters
    ----------
    result : ValidationResult
        From `whatif.validate`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    missed = sum(not one.passed for one in result.checks)
    verdict = f"{text.plural(missed, 'bar')} MISSED" if missed else "all bars are met"
    return [
        Text(f"{text.plural(len(result.checks), 'check')}: {verdict}"),
        *_checks(result),
        *_jobs(result),
        *_tables(result),
        *_pairs(result),
        *_doublings(result),
        *text.remarks("Not used", (f"{one.path}: {one.reason}" for one in result.unused[:_SHOWN])),
        *text.more(len(result.unused) - _SHOWN, "files and directories"),
    ]


def _number(value: float | None, check: Check) -> str:
    if value is None:
        return text.NONE
    if check.unit == "ns":
        return text.time(value)
    return text.percent(value) if check.unit == "%" else f"{value:.2f} {check.unit}"


def _checks(result: ValidationResult) -> list[RenderableType]:
    table = text.Columns(
        names=["evidence"], numbers=["cases", "value", "without allowance", "bar", "verdict"]
    )
    for one in result.checks:
        table.row(
            one.evidence,
            str(one.cases),
            _number(one.value, one),
            _number(one.plain, one),
            _number(one.bar, one),
            "met" if one.passed else "MISSED",
        )
    return table.titled("Evidence")


def _jobs(result: ValidationResult) -> list[RenderableType]:
    if not result.jobs:
        return []
    table = text.Columns(
        names=["job", "network"],
        numbers=["ranks", "steps", "identity", "measured", "baseline", "error", ""],
    )
    for job in result.jobs:
        error = job.baseline_error_pct
        beyond = error is None or abs(error) > result.limit_pct
        table.row(
            job.trace,
            job.network or job.no_baseline_reason or text.NONE,
            str(job.ranks),
            str(len({one.step for one in job.identity})),
            text.time(job.worst_identity_ns),
            text.time(job.measured_step_ns),
            text.time(job.baseline_step_ns),
            text.percent(error, sign=True),
            "BEYOND" if beyond else "",
        )
    return table.titled("Jobs (identity: largest error of a step on a rank, transfers as measured)")


def _tables(result: ValidationResult) -> list[RenderableType]:
    if not result.tables:
        return []
    table = text.Columns(
        names=["measured on", "collective", "sizes"],
        numbers=["rows", "median error", "worst", "bar", ""],
    )
    for one in result.tables:
        table.row(
            one.machine,
            one.collective,
            one.band,
            str(one.count),
            text.percent(one.median_error_pct),
            text.percent(one.worst_error_pct, sign=True),
            text.percent(one.bar_pct),
            "BEYOND" if one.median_error_pct > one.bar_pct else "",
        )
    return table.titled("Collectives (every other size is fitted, these are the rest)")


def _pairs(result: ValidationResult) -> list[RenderableType]:
    if not result.pairs:
        return []
    table = text.Columns(
        names=["job"],
        numbers=[
            *("trace at", "step at", "predicted", "from", "to", "traced", "untraced"),
            *("error", "noise", "beyond noise", "in interval"),
        ],
    )
    for one in result.pairs:
        table.row(
            one.job,
            str(one.from_mbit),
            str(one.to_mbit),
            *(text.time(ns) for ns in (one.predicted_ns, one.low_ns, one.high_ns)),
            *(text.time(round(ns)) for ns in (one.traced_ns, one.untraced_ns)),
            text.percent(one.error_pct, sign=True),
            text.percent(one.noise_pct),
            text.percent(one.beyond_noise_pct),
            "yes" if one.held else "NO",
        )
    others = [one for one in result.pairs if one.from_mbit != one.to_mbit]
    held = sum(one.held for one in others)
    return [
        *table.titled(
            "Lab (Mbit/s; errors are of the traced step; from-to: other networks that the trace "
            "allows)"
        ),
        Text(f"  {held} of {len(others)} true steps at another bandwidth are in the interval"),
    ]


def _doublings(result: ValidationResult) -> list[RenderableType]:
    if not result.doublings:
        return []
    table = text.Columns(
        names=["job"],
        numbers=[
            *("trace at", "predicted", "from", "to", "measured"),
            *("error in points", "noise", "beyond noise", "in interval"),
        ],
    )
    for one in result.doublings:
        table.row(
            one.job,
            str(one.from_mbit),
            *(text.percent(value) for value in (one.predicted_pct, one.low_pct, one.high_pct)),
            text.percent(one.measured_pct),
            f"{one.error_points:+.2f}",
            text.percent(one.noise_pct),
            f"{one.beyond_noise_points:.2f}",
            "yes" if one.held else "NO",
        )
    held = sum(one.held for one in result.doublings)
    return [
        *table.titled("Lab: utility of twice the bandwidth, predicted and measured (Mbit/s)"),
        Text(f"  {held} of {len(result.doublings)} measured utilities are in the interval"),
    ]
