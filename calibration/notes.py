"""What a calibration rests on, in plain sentences: the assumptions that every result prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..base.units import format_bytes, format_ns
from ..simulator.network import preset_names
from .parameters import BASE, ENDPOINT, LATENCY, WIRE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..simulator.network import Tier
    from .fit import Fit
    from .observed import Observed
    from .results import FitRow, Slowdown

#: Residual of a kind (log of model over measured) from which it is named.
POOR_FIT = 0.25

_MAX_NAMED = 3


def tier_notes(found: Fit, index: int, tier: Tier, name: str, crossing: int) -> list[str]:
    """Say where the numbers of a tier come from.

    Parameters
    ----------
    found : Fit
        The fit.
    index : int
        Of the tier.
    tier : Tier
        As it is in the result.
    name : str
        What the tier is called.
    crossing : int
        Transfers that use it.
    """
    parameters = found.parameters
    old = parameters.network.tiers[index]
    known = parameters.network.name in preset_names()
    preset = f"preset {parameters.network.name}" if known else "the nominal network"
    if not crossing:
        return [f"{name}: no measured transfer uses it; all of it as in {preset}"]
    at = parameters.group[index] * 4
    fitted = [bool(found.free[at + field]) for field in range(4)]
    limit = [bool(found.at_limit[at + field]) for field in range(4)]
    notes = []
    if fitted[WIRE] and parameters.prior.fit_nominal:
        notes.append(
            f"{name}: the nominal speed of its links is unknown; bandwidth "
            f"{tier.bandwidth_gb_s:.4g} GB/s is what {crossing} measured transfers reach, and "
            "efficiency is taken as 1"
        )
    elif fitted[WIRE]:
        notes.append(
            f"{name}: efficiency {tier.efficiency:.3g} of {tier.bandwidth_gb_s:g} GB/s is what "
            f"{crossing} measured transfers reach ({preset}: {old.efficiency:.3g})"
        )
    elif limit[WIRE]:
        notes.append(
            f"{name}: the measured transfers ask for {found.wanted[at + WIRE]:.4g} GB/s, more than "
            f"the nominal {tier.bandwidth_gb_s:g} GB/s of {preset}; efficiency is capped at 1"
        )
    for field, label, new, before in (
        (LATENCY, "latency", format_ns(tier.latency_ns), format_ns(old.latency_ns)),
        (BASE, "base", format_ns(tier.base_ns), format_ns(old.base_ns)),
        (
            ENDPOINT,
            "endpoint cost",
            f"{tier.endpoint_ns_per_byte:.3g} ns/byte",
            f"{old.endpoint_ns_per_byte:.3g}",
        ),
    ):
        if fitted[field]:
            notes.append(
                f"{name}: {label} {new} is fitted to the measured transfers ({preset}: {before})"
            )
    kept = [
        text
        for field, text in (
            (WIRE, f"bandwidth {old.bandwidth_gb_s:g} GB/s and efficiency {old.efficiency:g}"),
            (LATENCY, f"latency {format_ns(old.latency_ns)}"),
            (BASE, f"base {format_ns(old.base_ns)}"),
        )
        if not fitted[field] and not limit[field]
    ]
    if kept:
        notes.append(
            f"{name}: {', '.join(kept)} {'are' if len(kept) > 1 else 'is'} as in {preset}, because "
            f"the measured transfers do not determine {'them' if len(kept) > 1 else 'it'} "
            "(operations of too few sizes and shapes)"
        )
    if fitted[WIRE] and parameters.prior.fit_nominal:
        notes.append(
            f"{name}: how much of that is at the ends, which no faster link would change, is not "
            "known either; all of it is put down to the wire, and alternatives put down to the "
            "ends what they may plausibly need"
        )
    elif fitted[WIRE] != fitted[ENDPOINT]:
        cause, other = ("the wire", "the ends") if fitted[WIRE] else ("the ends", "the wire")
        notes.append(
            f"{name}: transfers at one bandwidth do not tell the wire from the ends; what they "
            f"need is put down to {cause}, and alternatives put it down to {other}"
        )
    return notes


def data_notes(observed: Observed, rows: Sequence[FitRow]) -> list[str]:
    """Say what the transfers were, and which of them the network explains poorly."""
    notes = []
    if observed.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in observed.left_out.items())
        notes.append(f"operations not used to estimate the network: {reasons}")
    shared = int(observed.shared[observed.kind].sum())
    if shared:
        notes.append(
            f"{shared} of {len(observed.kind)} measured transfers overlap others on the same "
            "ports; the estimate takes into account that they share them"
        )
    poor = [row for row in rows if abs(math.log(row.model_ns / row.measured_ns)) > POOR_FIT]
    if poor:
        named = "; ".join(
            f"{row.count} {row.collective} of {format_bytes(row.size_bytes)} over {row.ranks} "
            f"ranks ({format_ns(row.measured_ns)} measured, {format_ns(row.model_ns)} modelled)"
            for row in poor[:_MAX_NAMED]
        )
        more = f"; and {len(poor) - _MAX_NAMED} more kinds" if len(poor) > _MAX_NAMED else ""
        notes.append(f"the estimated network explains these transfers poorly: {named}{more}")
    return notes


def slowdown_note(slowdown: Slowdown) -> list[str]:
    """Say what compute beside transfers rests on, where there is evidence."""
    if slowdown.overlap is None:
        return []
    samples = sum(one.count for one in slowdown.operations)
    work = sum(one.count * one.alone_ns for one in slowdown.operations)
    longer = sum(one.count * one.alone_ns * one.slowdown for one in slowdown.operations) / work
    exponent = slowdown.overlap.exponent
    elsewhere = (
        "the share of that time that compute loses is taken to grow with power "
        f"{exponent:g} of how long transfers take; it may stay, or grow in proportion"
    )
    return [
        (
            f"compute takes {slowdown.overlap.slowdown:.0%} longer while a transfer of its rank is "
            f"in flight: {samples} operations beside transfers took {longer:.0%} longer than their "
            "work alone"
        ),
        *([elsewhere] if exponent else []),
    ]
