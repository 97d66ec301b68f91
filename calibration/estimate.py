"""A first estimate of the network that a trace was measured on, from its own transfer times.

The tiers and their shape come from a preset; the effective bandwidth, latency and base of each
tier are moved to where the closed forms of `simulator.collectives` explain the measured times
best. What the data cannot tell stays exactly as the preset has it, and every number says where it
came from. Choosing the preset is in `baseline`, choosing the measured times in `observed`.

How
---
Residuals are log(model / measured) of each row, weighted mostly by the row's share of the time of
all transfers, so that the baseline is right where the job spends its time, and a little evenly, so
that small messages can say what the latency is. Bounded least squares with
a soft-l1 loss keep a kind of operation that the closed forms do not describe from bending the
rest. A weak prior holds each parameter near the preset: within a factor e (bandwidth, latency) or
within the preset's own base or latency, whichever is larger (base). From the curvature at the
solution follows how much the data add to the prior; the parameter that they say least about is
put back to the preset and held there, until the data determine all that remain. Solving again
with the prior moved to the solution (iterated Tikhonov regularisation) then takes the pull of the
preset off what the data determine well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from scipy.optimize import least_squares

from ..base.units import format_bytes, format_ns
from ..graph.columns import Collective, collect_instances
from ..simulator.network import TIER_NAMES, check_priced
from .observed import observe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..simulator.network import Network, Tier
    from ..simulator.placement import Placement
    from .observed import Observed

#: Relative accuracy that a row of measured times is trusted to, against the priors.
ACCURACY = 0.02

#: Part of the weight that is spread evenly over the rows; the rest follows their time.
EVENLY = 0.2

#: Residual of a row (log of model over measured) beyond which its pull no longer grows.
OUTLIER = 0.2

#: Share of the knowledge of a parameter that must come from the data for it to be fitted.
DETERMINED = 0.5

#: Residual of a row (log of model over measured) from which it is named among the assumptions.
POOR_FIT = 0.25

_MAX_NAMED = 3
_ITERATIONS = 3
_FASTER = 1e4  # bound on the factors by which bandwidth and latency may move


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """How well the estimate explains one kind of operation.

    Attributes
    ----------
    collective : str
        Label of the `Collective`.
    size_bytes : int
        Input bytes of one rank.
    ranks, domains : int
        Members of the group, and scale-up domains that hold them.
    count : int
        Operations of the kind.
    median_ns, measured_ns : float
        Median of the measured transfer times, and their mean with outliers clipped
        (`observed.Observed`), which is what the network is fitted to.
    model_ns : float
        What the estimated network charges.
    """

    collective: str
    size_bytes: int
    ranks: int
    domains: int
    count: int
    median_ns: float
    measured_ns: float
    model_ns: float

    @property
    def residual_pct(self) -> float:
        """Model against measured, in percent of the measured time."""
        return (self.model_ns / self.measured_ns - 1) * 100


@dataclass(frozen=True)
class Estimate:
    """An estimated network.

    Attributes
    ----------
    network : Network
        Its `assumptions` are the preset's followed by those below.
    assumptions : tuple of str
        What came from the trace and what from the preset.
    rows : tuple of FitRow
        The measured times it rests on, the most time first.
    """

    network: Network
    assumptions: tuple[str, ...]
    rows: tuple[FitRow, ...]


def estimate_network(
    graph: ExecutionGraph, preset: Network, placement: Placement, *, fit_nominal: bool
) -> Estimate:
    """Estimate effective bandwidth, latency and base of each tier from measured transfers.

    Parameters
    ----------
    graph : ExecutionGraph
        With measured transfer times.
    preset : Network
        Supplies tiers, shape, nominal bandwidth, and whatever the trace cannot tell.
    placement : Placement
        Where the ranks of the job sit in the preset.
    fit_nominal : bool
        Whether the links have no known speed, as in loopback: what transfers reach is then taken
        for the nominal bandwidth, with an efficiency of 1.

    Returns
    -------
    Estimate
        Of the preset as it is where no measured transfer can be used.

    Raises
    ------
    NetworkError
        If a topology has no price, or if a group spans domains that no tier joins.
    GraphError
        If a group or a peer is not among the ranks of the job.
    """
    check_priced(preset)
    observed = observe(graph, collect_instances(graph), placement)
    fit = _fit(observed, preset.tiers, fit_nominal=fit_nominal)
    tiers = [
        _tier(tier, fit.values[t], fit.fitted[t], fit_nominal=fit_nominal)
        for t, tier in enumerate(preset.tiers)
    ]
    rows = _rows(observed, tiers)
    notes = [
        note
        for t, tier in enumerate(tiers)
        for note in _tier_notes(t, tier, preset, observed, fit, fit_nominal=fit_nominal)
    ]
    notes += _data_notes(observed, rows)
    network = msgspec.structs.replace(
        preset,
        name=f"{preset.name} (fitted to the trace)" if fit.fitted.any() else preset.name,
        tiers=tiers,
        assumptions=[*preset.assumptions, *notes],
    )
    return Estimate(network, tuple(notes), rows)


# Parameters of a tier, in the order of the columns of `_Fit`.
_BANDWIDTH, _LATENCY, _BASE = range(3)
_FIELDS = ("bandwidth", "latency", "base")


@dataclass(frozen=True)
class _Fit:
    """Values of effective bandwidth, latency and base of every tier, shape (T, 3).

    `fitted` says which were moved by the data, `capped` (T,) which tiers are at their nominal
    bandwidth because the data ask for `wanted_gb_s`, which is more.
    """

    values: NDArray[np.float64]
    fitted: NDArray[np.bool_]
    capped: NDArray[np.bool_]
    wanted_gb_s: NDArray[np.float64]


def _fit(observed: Observed, tiers: Sequence[Tier], *, fit_nominal: bool) -> _Fit:
    start = np.array([[tier.effective_gb_s, tier.latency_ns, tier.base_ns] for tier in tiers])
    capped = np.zeros(len(tiers), dtype=np.bool_)
    wanted = np.zeros(len(tiers))
    nominal = np.array([tier.bandwidth_gb_s for tier in tiers])
    while True:
        values, fitted = _fit_determined(observed, tiers, start, capped)
        over = fitted[:, _BANDWIDTH] & (values[:, _BANDWIDTH] > nominal)
        if fit_nominal or not over.any():
            return _Fit(values, fitted, capped, wanted)
        # Held at nominal, the other parameters may have to explain more: start over.
        wanted[over] = values[over, _BANDWIDTH]
        start[over, _BANDWIDTH] = nominal[over]
        capped |= over


def _fit_determined(
    observed: Observed,
    tiers: Sequence[Tier],
    start: NDArray[np.float64],
    capped: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Fit, hold what the data say least about, and repeat until they determine the rest."""
    free = np.ones(start.shape, dtype=np.bool_)
    free[capped, _BANDWIDTH] = False
    if not len(observed):
        free[:] = False
    while free.any():
        values, from_data = _solve(observed, tiers, start, free)
        worst = int(np.argmin(from_data))
        if from_data[worst] >= DETERMINED:
            return values, free
        free[tuple(np.argwhere(free)[worst])] = False
    return start.copy(), free


def _solve(
    observed: Observed,
    tiers: Sequence[Tier],
    start: NDArray[np.float64],
    free: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit the free parameters.

    Returns
    -------
    values : float64, shape (T, 3)
        All parameters.
    from_data : float64, shape (F,)
        For each free one the share of what is known about it that comes from the data.
    """
    origin = start.copy()
    origin[:, _LATENCY] = np.maximum(origin[:, _LATENCY], 1.0)  # a logarithm needs some latency
    base_scale = np.maximum(np.abs(start[:, _BASE]), origin[:, _LATENCY])
    measured = np.log(observed.transfer_ns)
    total = observed.count * observed.transfer_ns
    weight = (1 - EVENLY) * total / total.sum() + EVENLY / len(observed)

    def values_of(x: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = np.zeros(start.shape)
        moved[free] = x
        values = start.copy()
        for column in (_BANDWIDTH, _LATENCY):
            tier = free[:, column]
            values[tier, column] = origin[tier, column] * np.exp(moved[tier, column])
        values[:, _BASE] += base_scale * moved[:, _BASE]
        return values

    def residuals(x: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
        model = _model_ns(observed, _with_values(tiers, values_of(x)))
        error = np.log(model) - measured
        # The square of this is the soft-l1 loss 2 (sqrt(1 + z) - 1) of z = (error / OUTLIER)^2.
        robust = error * np.sqrt(2 / (1 + np.sqrt(1 + (error / OUTLIER) ** 2)))
        return np.concatenate([np.sqrt(weight) * robust / ACCURACY, x - prior])

    limit = np.log(_FASTER)
    lower, upper = np.full(start.shape, -limit), np.full(start.shape, limit)
    upper[:, _BASE] = np.inf
    # A negative base counts only up to what the wire takes, so beyond that the fit has no slope
    # to follow back. Only from the best base that is not negative may it go below zero.
    least = np.minimum(start[:, _BASE], 0.0)
    x = np.zeros(int(free.sum()))
    from_data = x
    for iteration in range(_ITERATIONS):
        lower[:, _BASE] = (least - start[:, _BASE]) / base_scale
        solution = least_squares(residuals, x, bounds=(lower[free], upper[free]), args=(x,))
        x = solution.x
        least = np.minimum(least, -observed.transfer_ns.min())
        if iteration == 0:
            # The rows of the prior add the identity, so this is always invertible.
            jacobian = np.asarray(solution.jac, dtype=np.float64)
            from_data = 1 - np.diag(np.linalg.inv(jacobian.T @ jacobian))
    return values_of(x), from_data


def _with_values(tiers: Sequence[Tier], values: NDArray[np.float64]) -> list[Tier]:
    """Tiers that have these effective values, above nominal bandwidth too."""
    return [
        msgspec.structs.replace(
            tier, bandwidth_gb_s=bandwidth, efficiency=1.0, latency_ns=latency, base_ns=base
        )
        for tier, (bandwidth, latency, base) in zip(tiers, values.tolist(), strict=True)
    ]


def _model_ns(observed: Observed, tiers: Sequence[Tier]) -> NDArray[np.float64]:
    """Transfer time of every row, at least the 1 ns that measured times resolve."""
    model = np.zeros(len(observed))
    for rows, costs in observed.costs(tiers):
        paid = costs.latency_ns.sum(axis=1) + costs.bandwidth_ns.sum(axis=1)
        model[rows] = costs.base_ns + costs.endpoint_ns + paid
    return np.maximum(model, 1.0)


def _tier(
    preset: Tier, values: NDArray[np.float64], fitted: NDArray[np.bool_], *, fit_nominal: bool
) -> Tier:
    """Put the fitted values into a tier; what was not fitted stays bit for bit."""
    bandwidth, latency, base = values.tolist()
    changes: dict[str, float] = {}
    if bandwidth != preset.effective_gb_s:
        if fit_nominal:
            changes |= {"bandwidth_gb_s": bandwidth, "efficiency": 1.0}
        else:
            changes["efficiency"] = min(bandwidth / preset.bandwidth_gb_s, 1.0)
    if fitted[_LATENCY]:
        changes["latency_ns"] = latency
    if fitted[_BASE]:
        changes["base_ns"] = base
    if not changes:
        return preset
    source = f"{', '.join(changes)}: estimated from the trace; {preset.source}"
    return msgspec.structs.replace(preset, **changes, source=source)


def _rows(observed: Observed, tiers: Sequence[Tier]) -> tuple[FitRow, ...]:
    model = _model_ns(observed, tiers)
    order = np.argsort(-observed.count * observed.transfer_ns, kind="stable")
    return tuple(
        FitRow(
            collective=Collective(observed.coll[k]).label,
            size_bytes=int(observed.size_bytes[k]),
            ranks=int(observed.spread.members[k]),
            domains=int(observed.spread.domains[k]),
            count=int(observed.count[k]),
            median_ns=float(observed.median_ns[k]),
            measured_ns=float(observed.transfer_ns[k]),
            model_ns=float(model[k]),
        )
        for k in order.tolist()
    )


def _tier_notes(
    index: int,
    tier: Tier,
    preset: Network,
    observed: Observed,
    fit: _Fit,
    *,
    fit_nominal: bool,
) -> list[str]:
    """Say in plain sentences where the numbers of a tier come from."""
    name, old = TIER_NAMES[index], preset.tiers[index]
    crossing = sum(
        int(observed.count[rows[costs.messages[:, index] > 0]].sum())
        for rows, costs in observed.costs(preset.tiers)
    )
    if not crossing:
        return [f"{name}: no measured transfer uses it; all of it as in preset {preset.name}"]
    fitted = fit.fitted[index]
    notes = []
    if fitted[_BANDWIDTH] and fit_nominal:
        notes.append(
            f"{name}: the nominal speed of its links is unknown; bandwidth "
            f"{tier.bandwidth_gb_s:.4g} GB/s is what {crossing} measured transfers reach, and "
            "efficiency is taken as 1"
        )
    elif fitted[_BANDWIDTH]:
        notes.append(
            f"{name}: efficiency {tier.efficiency:.3g} of {tier.bandwidth_gb_s:g} GB/s is what "
            f"{crossing} measured transfers reach (preset {preset.name}: {old.efficiency:.3g})"
        )
    elif fit.capped[index]:
        notes.append(
            f"{name}: the measured transfers ask for {fit.wanted_gb_s[index]:.4g} GB/s, more than "
            f"the nominal {tier.bandwidth_gb_s:g} GB/s of preset {preset.name}; efficiency is "
            "capped at 1"
        )
    notes += [
        f"{name}: {_FIELDS[field]} {format_ns(new)} is fitted to the measured transfers (preset "
        f"{preset.name}: {format_ns(preset_value)})"
        for field, new, preset_value in (
            (_LATENCY, tier.latency_ns, old.latency_ns),
            (_BASE, tier.base_ns, old.base_ns),
        )
        if fitted[field]
    ]
    kept = [
        text
        for field, text in (
            (
                _BANDWIDTH,
                f"bandwidth {old.bandwidth_gb_s:g} GB/s and efficiency {old.efficiency:g}",
            ),
            (_LATENCY, f"latency {format_ns(old.latency_ns)}"),
            (_BASE, f"base {format_ns(old.base_ns)}"),
        )
        if not fitted[field] and not (field == _BANDWIDTH and fit.capped[index])
    ]
    if kept:
        notes.append(
            f"{name}: {', '.join(kept)} {'are' if len(kept) > 1 else 'is'} as in preset "
            f"{preset.name}, because the measured transfers do not determine "
            f"{'them' if len(kept) > 1 else 'it'} (operations of too few sizes and shapes)"
        )
    return notes


def _data_notes(observed: Observed, rows: Sequence[FitRow]) -> list[str]:
    notes = []
    if observed.left_out:
        reasons = ", ".join(f"{count} {reason}" for reason, count in observed.left_out.items())
        notes.append(f"operations not used to estimate the network: {reasons}")
    if observed.overlapping:
        notes.append(
            f"{observed.overlapping} of {int(observed.count.sum())} measured transfers overlap "
            "another one of the same rank; the estimate includes that they share its links"
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
