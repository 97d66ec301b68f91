"""A calibration as tables: the values with their intervals, and how well they explain the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..calibration.results import CalibrationResult, FittedValue

_SHOWN = 20


def calibration_report(result: CalibrationResult) -> list[RenderableType]:
    """Show what a calibration found.

    Parameters
    ----------
    result : CalibrationResult
        From `calibration.calibrate`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    error = text.percent(result.baseline_error_pct, sign=True)
    beyond = f" - BEYOND THE LIMIT of {result.limit_pct:g} %" if result.beyond_limit else ""
    return [
        Text(f"{result.trace}: {text.plural(result.ranks, 'rank')}"),
        Text(f"network    {result.network.name}; {result.placement}"),
        Text(
            f"transfers  {result.transfers}, of which {result.shared} shared ports with others; "
            f"clocks agree within {text.time(result.clock_residual_ns)}"
        ),
        Text(
            f"fit error  {text.percent(result.held_out_error_pct)} on the half that was held out, "
            f"{text.percent(result.leave_one_out_error_pct)} on kinds left out one at a time"
        ),
        Text(
            f"baseline   {text.time(result.baseline_step_ns)}, measured "
            f"{text.time(result.measured_step_ns)} (error {error}){beyond}"
        ),
        *_values(result),
        *_transfers(result),
        *_slowdown(result),
        *text.remarks("Assumed", result.network.assumptions),
    ]


def _values(result: CalibrationResult) -> list[RenderableType]:
    table = text.Columns(
        names=["tier", "value", "origin"], numbers=["fitted", "from", "to", "nominal"]
    )
    for value in result.values:
        if value.origin != "unused":
            table.row(
                value.tier,
                value.name,
                value.origin,
                *(_number(value, one) for one in (value.value, value.low, value.high)),
                _number(value, value.nominal),
            )
    return table.titled(
        "Values (from-to: 90 of 100 bootstrap draws, and other readings of the same transfers)"
    )


def _number(value: FittedValue, number: float | None) -> str:
    if number is None:
        return text.NONE
    return text.time(number) if value.name in ("latency_ns", "base_ns") else f"{number:.4g}"


def _transfers(result: CalibrationResult) -> list[RenderableType]:
    table = text.Columns(
        names=["collective"],
        numbers=["size", "ranks", "domains", "count", "median", "measured", "model", "residual"],
    )
    for row in result.rows[:_SHOWN]:
        table.row(
            row.collective + (" (shared)" if row.shared else ""),
            text.size(row.size_bytes),
            str(row.ranks),
            str(row.domains),
            str(row.count),
            text.time(row.median_ns),
            text.time(row.measured_ns),
            text.time(row.model_ns),
            text.percent(row.residual_pct, sign=True),
        )
    left = len(result.rows) - _SHOWN
    more = f", the first {_SHOWN} of {len(result.rows)} kinds by time" if left > 0 else ""
    return table.titled(f"Transfers (measured: mean without stalls{more})")


def _slowdown(result: CalibrationResult) -> list[RenderableType]:
    found = result.slowdown
    if found.overlap is None:
        return [Text("\nCompute beside transfers: no operation beside them is known to be alike")]
    ends = [f"{end.slowdown:.0%}" for end in found.ends]
    interval = f" ({' to '.join(ends)})" if ends else ""
    table = text.Columns(names=["rank", "operation"], numbers=["count", "alone", "slower by"])
    for one in found.operations[:_SHOWN]:
        slower = text.percent(one.slowdown * 100, sign=True)
        table.row(str(one.rank), one.name, str(one.count), text.time(one.alone_ns), slower)
    return table.titled(
        f"Compute beside transfers takes {found.overlap.slowdown:.0%} longer{interval}"
    )
