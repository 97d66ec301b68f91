"""A conversion as a table: what was written, and the coverage report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text
from .coverage import coverage_report

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .results import ConversionResult


def conversion_report(result: ConversionResult) -> list[RenderableType]:
    """Show what a conversion wrote and what it knows."""
    return [
        Text(
            f"{result.trace}: {text.plural(result.ranks, 'rank')}, {len(result.steps)} "
            f"steps ({', '.join(result.steps)}), {result.dependency_model} model"
        ),
        Text(
            f"{result.nodes} nodes, {result.compression:.1f} times as many as are simulated; "
            f"written as {text.plural(len(result.files), 'file')} in {result.out}"
        ),
        *coverage_report(result.coverage),
        *text.remarks("What other tools see differently", result.export_warnings),
    ]
