"""The network of a result as a table, with everything that was assumed of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..simulator.astra.compare_results import CompareResult
    from ..sweeps.results import Architecture, JobResult, SimulateResult

_SPOKEN = {"scaleup": "scale-up", "scaleout": "scale-out"}


def network_report(
    result: JobResult | SimulateResult | Architecture | CompareResult,
) -> list[RenderableType]:
    """Show tiers and assumptions; nothing where measured transfers were replayed."""
    network = result.network
    if network is None:
        return []
    table = text.Columns(
        names=["tier", "topology"],
        numbers=["size", "GB/s", "efficiency", "latency", "base", "endpoint ns/byte"],
    )
    for name, tier in zip(network.tier_names, network.tiers, strict=True):
        table.row(
            _SPOKEN[name],
            tier.topology if tier.wrap or tier.size <= 2 else "ring, open",
            str(tier.size),
            f"{tier.bandwidth_gb_s:.4g}",
            f"{tier.efficiency:.3g}",
            text.time(tier.latency_ns),
            text.time(tier.base_ns),
            f"{tier.endpoint_ns_per_byte:.3g}",
        )
    return [
        *table.titled(f"Network: {network.name}"),
        *text.remarks("Assumed", network.assumptions),
    ]
