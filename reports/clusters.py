"""Cluster architectures as a table: a row for each, and below it what a row cannot say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..utility.results import UPGRADES
from . import text
from .network import network_report
from .steps import mark, sweep_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from ..sweeps.results import Architecture
    from ..utility.results import ClustersResult

# Headings of the upgrades.
_HEADING = {"scaleup_domain": "domain", "scaleup_bw": "scale-up", "scaleout_bw": "scale-out"}


def clusters_report(result: ClustersResult) -> list[RenderableType]:
    """Show one job in several architectures.

    Parameters
    ----------
    result : ClustersResult
        From `utility.clusters`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    rows = result.architectures
    presets = [row for row in rows if row.name == row.network.name]
    varied = [row for row in rows[1:] if row not in presets]
    return [
        *sweep_header(result),
        *_table(result),
        *text.remarks("Bandwidth of one link, of which a rank has several", _on_rings(rows)),
        *text.remarks(
            "Changes the shape",
            _grouped(("domain", row.domain, row.shape_change) for row in rows),
        ),
        *text.remarks("Not applicable", _grouped(_refusals(result))),
        *network_report(result),
        *text.remarks(
            "Assumed of the varied architectures",
            dict.fromkeys(note for row in varied for note in row.network.assumptions),
        ),
        *(part for row in presets for part in network_report(row)),
        *text.remarks("Not modelled", result.limits),
    ]


def _table(result: ClustersResult) -> list[RenderableType]:
    table = text.Columns(
        names=["architecture"],
        numbers=[
            *("domain", "scale-up", "scale-out", "step", "gain"),
            *("exposed comm", "hidden comm", "hidden"),
            *(f"{_HEADING[name]} x{result.upgrade_factor:g}" for name in UPGRADES),
        ],
    )
    for row in result.architectures:
        upgrades = {one.resource: one.utility_pct for one in row.upgrades}
        table.row(
            row.name,
            str(row.domain),
            _gb_s(row.scaleup_gb_s),
            _gb_s(row.scaleout_gb_s),
            text.time(row.step_ns),
            text.percent(row.gain_pct),
            text.time(row.exposed_comm_ns),
            text.time(row.hidden_comm_ns),
            text.percent(row.hidden_share_pct),
            *(text.percent(upgrades.get(resource)) for resource in UPGRADES),
        )
    return table.titled(
        f"Architectures (GB/s per rank and direction), and the marginal gain of each upgrade"
        f"{mark(result)}"
    )


def _on_rings(rows: Iterable[Architecture]) -> list[str]:
    names = [row.name for row in rows if row.network.tiers[0].topology == "ring"]
    return [f"scale-up of {', '.join(names)}"] if names else []


def _gb_s(value: float | None) -> str:
    return text.NONE if value is None else f"{value:.4g}"


def _refusals(result: ClustersResult) -> Iterator[tuple[str, int, str]]:
    for row in result.architectures:
        for one in row.refused:
            upgrade = f"{_HEADING[one.resource]} x{one.factor:g}"
            yield f"{upgrade} of domain", row.domain, one.reason


def _grouped(remarks: Iterable[tuple[str, int, str | None]]) -> list[str]:
    """Write each remark once, after the domain sizes that it applies to."""
    sizes: dict[tuple[str, str], set[int]] = {}
    for subject, size, remark in remarks:
        if remark is not None:
            sizes.setdefault((subject, remark), set()).add(size)
    return [
        f"{subject} {', '.join(map(str, sorted(of)))}: {remark}"
        for (subject, remark), of in sizes.items()
    ]
