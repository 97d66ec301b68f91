"""The coverage report as a table: what a conversion saw, worked out, assumed and left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..graph.coverage import Coverage


def coverage_report(coverage: Coverage, *, timeline: bool = True) -> list[RenderableType]:
    """Show what became of everything in the trace.

    Clocks and gaps are shown only where there is a measured `timeline` to have them.

    Warnings are not among it: they go where the caller shows warnings.
    """
    table = text.Columns(names=["what", "remark"], numbers=["number"])
    for what, remark, number in (
        ("trace files", "read", str(coverage.files)),
        ("other files", "ignored", str(len(coverage.ignored_files))),
        ("events", "in the traces", str(coverage.events_seen)),
        ("events", "in the graph", str(coverage.events_used)),
        ("communication", "in the graph", str(coverage.collectives_seen)),
        (
            "communication",
            "joined with all other ranks of its group",
            str(coverage.collectives_matched),
        ),
        (
            "communication",
            "without a size: keeps its measured time",
            str(coverage.bytes_unknown_nodes),
        ),
        ("communication", "input of all ranks", text.size(coverage.bytes_known)),
        ("ranks", "not traced, assumed, counted per operation", str(coverage.assumed_members)),
    ):
        table.row(what, remark, number)
    if timeline:
        residual = text.time(coverage.clock_residual_ns)
        table.row("clocks", "apart after alignment (median)", residual)
        gaps, critical = coverage.gap_share_pct, coverage.critical_gap_pct
        table.row("unexplained", "gaps, of the time of all ranks", text.percent(gaps))
        table.row("unexplained", "gaps, of the critical path", text.percent(critical))
    return [
        *table.titled("Coverage"),
        *text.remarks("Inferred", (f"{i.count} {i.what}: {i.evidence}" for i in coverage.inferred)),
        *text.remarks("Assumed", coverage.assumed),
        *text.remarks("Left out", (f"{d.count} {d.what}: {d.reason}" for d in coverage.dropped)),
        *text.remarks("Ignored files", _grouped(coverage.ignored_files)),
    ]


def _grouped(ignored: list[str]) -> list[str]:
    """One line for each reason; a job has as many execution traces as ranks."""
    names: dict[str, list[str]] = {}
    for line in ignored:
        name, _, reason = line.partition(": ")
        names.setdefault(reason, []).append(name)
    return [
        f"{files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}: {reason}"
        for reason, files in names.items()
    ]
