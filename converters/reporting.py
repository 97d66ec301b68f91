"""What all dialects put into the coverage report in the same words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..graph.coverage import Dropped, Inference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..graph.coverage import Coverage
    from .clocks import Alignment
    from .match import Matched
    from .nodes import RankNodes


def report_edges(coverage: Coverage, ranks: Iterable[RankNodes]) -> None:
    """Report the dependencies that were inferred, and those that the times contradict."""
    edges: Counter[str] = Counter()
    for nodes in ranks:
        edges += nodes.counts
    for text, count in sorted(edges.items()):
        what = text.split(":")[0]
        if "contradicted" in text:
            coverage.dropped.append(Dropped(what, count, "contradicted by the measured times"))
        elif "inferred" in text:
            coverage.inferred.append(Inference(what, count, text.split(": ", 1)[1]))
        elif "moved" in text or "cut" in text:
            coverage.warnings.append(f"{count} {text}")


def report_matches(coverage: Coverage, matched: Matched) -> None:
    """Report what was joined across ranks, and which figures rest on what the trace lacks."""
    coverage.collectives_matched = sum(
        len(m) for m, absent in zip(matched.instances, matched.missing, strict=True) if not absent
    )
    coverage.assumed_members = sum(matched.missing)
    if coverage.bytes_unknown_nodes:
        coverage.warnings.append(
            f"{coverage.bytes_unknown_nodes} communication nodes have no size in the trace: they "
            "keep their measured time on every network"
        )
    if coverage.assumed_members:
        coverage.warnings.append(
            f"{coverage.assumed_members} members of groups were not traced: assumed to arrive with "
            "those that were; every figure rests on that"
        )


def report_clocks(coverage: Coverage, alignment: Alignment, clock_errors: int) -> None:
    """Report how the ranks' clocks were brought together."""
    coverage.clock_residual_ns = alignment.residual_ns
    if alignment.hosts > 1:
        coverage.inferred.append(
            Inference("clock offsets", alignment.hosts, "ends of symmetric collectives")
        )
    if clock_errors:
        coverage.warnings.append(
            f"{clock_errors} operations end on one rank before they start on another: clock "
            "error, their transfer time is not used"
        )
