"""A comparison of the two physics as tables: the step, the operations, the ranks, the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text
from .network import network_report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..simulator.astra.compare_results import ComparedOperation, CompareResult

_SHOWN = 12


def compare_report(result: CompareResult) -> list[RenderableType]:
    """Show both physics side by side, and why they differ.

    Parameters
    ----------
    result : CompareResult
        From `simulator.astra.compare`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    return [
        Text(
            f"{result.trace}: {text.plural(result.ranks, 'rank')}, {result.dependency_model} model"
        ),
        Text(f"network    {result.network.name}; {result.placement}"),
        Text(f"measured   {text.time(result.measured_step_ns)}"),
        Text(f"here       {text.time(result.native_step_ns)}"),
        Text(
            f"ASTRA-sim  {text.time(result.astra_step_ns)} "
            f"({text.percent(result.difference_pct, sign=True)})"
        ),
        *_operations(result),
        *text.remarks("Where the step differs", result.summary),
        *_reasons(result),
        *_ranks(result),
        *text.remarks("Folded for ASTRA-sim", result.folded),
        *text.remarks("Lost on the way to ASTRA-sim", result.lost),
        *network_report(result),
    ]


def _operations(result: CompareResult) -> list[RenderableType]:
    shown = result.operations[:_SHOWN]
    table = text.Columns(
        names=["#", "operation", "group"],
        numbers=[
            *("ranks", "bytes", "count", "here", "ASTRA-sim", "difference"),
            *("after last arrival", "slot wait"),
        ],
    )
    scopes = list(dict.fromkeys(scope for row in shown for scope in row.native_tiers_ns))
    paid = text.Columns(
        names=["#"],
        numbers=[
            *(f"{scope} {side}" for scope in scopes for side in ("here", "ASTRA-sim")),
            *("other here", "other ASTRA-sim"),
        ],
    )
    for number, row in enumerate(shown, 1):
        table.row(
            str(number),
            row.type,
            row.group,
            str(row.group_size),
            text.size(row.bytes),
            str(row.count),
            text.time(row.native_ns),
            text.time(row.astra_ns),
            text.percent(_change_pct(row), sign=True),
            text.time(row.astra_after_last_ns),
            text.time(row.slot_wait_ns),
        )
        paid.row(
            str(number),
            *(
                text.time(tiers.get(scope))
                for scope in scopes
                for tiers in (row.native_tiers_ns, row.astra_tiers_ns)
            ),
            text.time(row.native_other_ns),
            text.time(row.astra_other_ns),
        )
    return [
        *table.titled("Operations alone, those that make the most of the difference first"),
        *text.more(len(result.operations) - _SHOWN, "operations"),
        *paid.titled("What they pay to which tier"),
    ]


def _change_pct(row: ComparedOperation) -> float | None:
    return (row.astra_ns - row.native_ns) / row.native_ns * 100 if row.native_ns else None


def _reasons(result: CompareResult) -> list[RenderableType]:
    lines = [
        f"{number}: {reason}"
        for number, row in enumerate(result.operations[:_SHOWN], 1)
        for reason in row.why
    ]
    return text.remarks("Why the operations differ", lines)


def _ranks(result: CompareResult) -> list[RenderableType]:
    table = text.Columns(
        names=["rank"],
        numbers=["measured", "here", "ASTRA-sim", "waits for the slot", "computations queue"],
    )
    for row in result.per_rank[:_SHOWN]:
        table.row(
            str(row.rank),
            text.time(row.measured_ns),
            text.time(row.native_ns),
            text.time(row.astra_ns),
            text.time(row.slot_wait_ns),
            text.time(row.compute_wait_ns),
        )
    return [
        *table.titled("All steps, to the end of each rank"),
        *text.more(len(result.per_rank) - _SHOWN, "ranks"),
    ]
