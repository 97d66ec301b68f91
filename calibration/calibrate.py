"""Calibrate a network on a trace: what its measured transfers and its compute say of it.

The nominal network comes from `nominal`, the choice of transfers is in `observed`, the fit in
`fit`, how sure it is in `uncertainty`. Here the parts meet, and the result becomes a network with
its provenance: every number says whether it was fitted, and what the trace cannot tell stays
exactly as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..base.progress import Progress, silent
from ..base.settings import DEFAULT_LIMIT_PCT
from ..graph.columns import Collective, Worker, collect_instances
from ..simulator.choice import cheapest
from ..simulator.network import Alternative, check_priced
from ..simulator.run import simulate
from .charges import charges_of
from .fit import ACCURACY, fit
from .notes import data_notes, slowdown_note, tier_notes
from .observed import observe
from .parameters import (
    BASE,
    ENDPOINT,
    LATENCY,
    OWN_ENDPOINT,
    OWN_WIRE,
    WIRE,
    Parameters,
    Prior,
    capped,
    without_nominal,
)
from .results import CalibrationResult, FitRow, FittedValue, Slowdown
from .slowdown import estimate_slowdown
from .uncertainty import (
    INTERVAL,
    draw_values,
    drawn_shifts,
    held_out_error,
    leave_one_out_error,
    likeliest_cause,
    readings,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..simulator.network import Network, Tier
    from ..simulator.placement import Placement
    from .charges import Charges
    from .fit import Fit
    from .observed import Observed

    Float = NDArray[np.float64]
    Bool = NDArray[np.bool_]

#: Bootstrap draws of a full calibration.
DRAWS = 400

#: Percentiles of the draws, by the time that they charge the job's transfers, that become
#: alternatives.
ALTERNATIVES = (5.0, 25.0, 75.0, 95.0)

#: Transfers that a type of collective needs to be known to be off the others, and by how many
#: standard errors it must be: what is called very strong evidence.
LEAST_TRANSFERS, EVIDENCE = 10, 3.3


@dataclass(frozen=True)
class Calibration:
    """A network calibrated on a trace.

    Attributes
    ----------
    network : Network
        Its `assumptions` are the nominal network's followed by `notes`.
    placement : Placement
        Where the ranks of the job sit in it.
    notes : tuple of str
        What came from the trace and what did not.
    rows : tuple of FitRow
        The measured transfers it rests on, the most time first.
    slowdown : Slowdown
        Of compute beside transfers.
    fit, charges
        How it was found.
    drawn : float64, shape (D, P)
        Values of the bootstrap draws.
    readings : tuple of Fit
        Other ways to read the same transfers; without draws not worked out.
    """

    network: Network
    placement: Placement
    notes: tuple[str, ...]
    rows: tuple[FitRow, ...]
    slowdown: Slowdown
    fit: Fit
    charges: Charges
    drawn: Float
    readings: tuple[Fit, ...]


def calibrate(
    graph: ExecutionGraph,
    nominal: Network,
    placement: Placement,
    *,
    prior: Prior | None = None,
    draws: int = 0,
) -> Calibration:
    """Fit a network to the measured transfers of a trace, and estimate the slowdown beside them.

    Parameters
    ----------
    graph : ExecutionGraph
        With measured transfer times.
    nominal : Network
        Supplies tiers, shape, algorithms, nominal bandwidth, and whatever the trace cannot tell.
    placement : Placement
        Where the ranks of the job sit in it.
    prior : Prior, optional
        What is known of its links; by default by the kind of job.
    draws : int
        Bootstrap draws; without any the network has no alternatives, which is quick.

    Returns
    -------
    Calibration
        Of the nominal network as it is where no measured transfer can be used.

    Raises
    ------
    NetworkError
        If the network does not fit the job.
    GraphError
        If a group or a peer is not among the ranks of the job.
    """
    check_priced(nominal)
    instances = collect_instances(graph)
    observed = observe(graph, instances, nominal, placement)
    charges = charges_of(graph, instances, observed, placement)
    prior = prior or Prior.of(nominal, by_processor=graph.worker is Worker.PROCESS)
    found = _fit(charges, Parameters.of(nominal, prior))
    slowdown = estimate_slowdown(graph, draws=draws)
    network = _finished(found.parameters, found.values)
    rows = _rows(charges, network)
    drawn = draw_values(found, charges, draws)
    others = tuple(readings(found, charges)) if draws else ()
    crossing = _crossing(observed, nominal)
    notes = (
        *(
            note
            for index, (tier, name) in enumerate(zip(network.tiers, _names(nominal), strict=True))
            for note in tier_notes(found, index, tier, name, int(crossing[index]))
        ),
        *_type_notes(found),
        *data_notes(observed, rows),
        *slowdown_note(slowdown),
    )
    fitted = bool(found.free.any())
    network = msgspec.structs.replace(
        network,
        name=f"{nominal.name} (fitted to the trace)" if fitted else nominal.name,
        overlap=slowdown.overlap,
        alternatives=_alternatives(found, charges, drawn, others, slowdown),
        assumptions=[*nominal.assumptions, *notes],
    )
    return Calibration(network, placement, notes, rows, slowdown, found, charges, drawn, others)


def calibration_result(
    graph: ExecutionGraph,
    nominal: Network,
    placement: Placement,
    *,
    draws: int = DRAWS,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    progress: Progress = silent,
) -> CalibrationResult:
    """Calibrate a network, and say how sure it is and how far the baseline is off on it.

    Parameters
    ----------
    graph, nominal, placement, draws
        As for `calibrate`.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.
    progress : Progress
        Told what is being done.

    Returns
    -------
    CalibrationResult

    Raises
    ------
    NetworkError, GraphError
        As for `calibrate`.
    """
    progress("fitting the network", 0, 0)
    made = calibrate(graph, nominal, placement, draws=draws)
    progress("checking the fit on transfers that it did not see", 0, 0)
    held_out = held_out_error(made.fit, made.charges)
    left_out = leave_one_out_error(made.fit, made.charges)
    progress("simulating the baseline", 0, 0)
    baseline = simulate(graph, network=made.network, placement=placement)
    measured = baseline.measured_step_ns
    error = None if not measured else (baseline.step_ns / measured - 1) * 100
    beyond = None if error is None else abs(error) > limit_pct
    network = made.network
    if error is not None:
        off = f"{error:+.2f} %" + (f", BEYOND THE LIMIT of {limit_pct:g} %" if beyond else "")
        note = f"fitted to {graph.trace}, of which its baseline is off by {off}"
        network = msgspec.structs.replace(network, assumptions=[note, *network.assumptions])
    observed = made.charges.observed
    return CalibrationResult(
        trace=graph.trace,
        ranks=graph.num_ranks,
        network=network,
        placement=placement.description,
        values=_values(made),
        slowdown=made.slowdown,
        rows=list(made.rows),
        transfers=len(observed.kind),
        shared=int(observed.shared[observed.kind].sum()),
        held_out_error_pct=held_out,
        leave_one_out_error_pct=left_out,
        clock_residual_ns=graph.coverage.clock_residual_ns,
        baseline_step_ns=baseline.step_ns,
        measured_step_ns=measured,
        baseline_error_pct=error,
        limit_pct=limit_pct,
        beyond_limit=beyond,
        warnings=list(dict.fromkeys([*graph.coverage.warnings, *baseline.warnings])),
    )


def _fit(charges: Charges, parameters: Parameters) -> Fit:
    """Fit, and give types of collective a value of their own where the data ask for it."""
    found = likeliest_cause(fit(charges, parameters), charges)
    observed = charges.observed
    present = [Collective(coll) for coll in np.unique(observed.coll).tolist()]
    types: list[Collective] = []
    while len(types) + 1 < len(present):
        slowest = _slowest_type(found, charges, [coll for coll in present if coll not in types])
        if slowest is None:
            break
        types.append(slowest)
        own = Parameters.of(parameters.network, parameters.prior, types)
        again = likeliest_cause(fit(charges, own), charges)
        if not again.free[-1]:
            break
        found = again
    return found


def _slowest_type(found: Fit, charges: Charges, types: list[Collective]) -> Collective | None:
    """Type of collective that is slowest for the fit, if any is certainly off the others.

    What makes types differ slows some of them down: the link is the same for all.
    """
    observed = charges.observed
    spread = drawn_shifts(found, charges, DRAWS, np.random.default_rng(0), unexplained=False)
    total = observed.count * observed.transfer_ns
    off: dict[Collective, float] = {}
    for coll in types:
        mine = observed.coll == coll
        share = total[mine] / total[mine].sum()
        error = float(share @ found.error[mine])
        deviation = float((spread[:, mine] @ share).std())
        known = observed.count[mine].sum() >= LEAST_TRANSFERS and deviation > 0
        off[coll] = error / deviation if known and abs(error) > ACCURACY else 0.0
    certain = max(abs(value) for value in off.values()) > EVIDENCE
    return min(off, key=lambda coll: off[coll]) if certain else None


def _finished(parameters: Parameters, values: Float) -> Network:
    """Network of some values: within its nominal bandwidth, and saying where it comes from."""
    nominal = parameters.network
    moved = parameters.network_of(values)
    network = (
        _unknown_nominal(moved, nominal) if parameters.prior.fit_nominal else capped(moved, nominal)
    )
    tiers = [_sourced(tier, old) for tier, old in zip(network.tiers, nominal.tiers, strict=True)]
    return msgspec.structs.replace(nominal, tiers=tiers, alternatives=[])


def _unknown_nominal(moved: Network, nominal: Network) -> Network:
    changed = without_nominal(moved)
    tiers = [
        new if new.effective_gb_s != old.effective_gb_s else kept
        for new, kept, old in zip(changed.tiers, moved.tiers, nominal.tiers, strict=True)
    ]
    return msgspec.structs.replace(moved, tiers=tiers)


def _sourced(tier: Tier, old: Tier) -> Tier:
    """Name the fields of a tier that differ from what they were."""
    changed = [
        name
        for name in tier.__struct_fields__
        if getattr(tier, name) != getattr(old, name) and name not in ("source", "protocols")
    ]
    if not changed and tier.protocols == old.protocols:
        return old
    if tier.protocols != old.protocols:
        changed.append("protocols")
    source = f"{', '.join(changed)}: estimated from the trace; {old.source}".removesuffix("; ")
    return msgspec.structs.replace(tier, source=source)


def _rows(charges: Charges, network: Network) -> tuple[FitRow, ...]:
    observed = charges.observed
    model = charges.kinds_ns(network)
    measured = observed.transfer_ns
    order = np.argsort(-observed.count * measured, kind="stable")
    return tuple(
        FitRow(
            collective=Collective(observed.coll[k]).label,
            size_bytes=int(observed.size_bytes[k]),
            ranks=int(observed.ranks[k]),
            domains=int(observed.domains[k]),
            shared=bool(observed.shared[k]),
            count=int(observed.count[k]),
            median_ns=float(observed.median_ns[k]),
            measured_ns=float(measured[k]),
            model_ns=float(model[k]),
            residual_pct=float(model[k] / measured[k] - 1) * 100,
        )
        for k in order.tolist()
    )


def _crossing(observed: Observed, network: Network) -> NDArray[np.int64]:
    """How many transfers use each tier, shape (T,)."""
    if not len(observed):
        return np.zeros(len(network.tiers), dtype=np.int64)
    size = observed.size_bytes.astype(np.float64)
    costs = cheapest(network, observed.plans, observed.operation, size).costs
    used: NDArray[np.int64] = observed.count @ (costs.messages > 0)
    return used


def _names(network: Network) -> list[str]:
    """Name of every tier; dimensions that are called the same are numbered."""
    names = network.tier_names
    return [
        name if names.count(name) == 1 else f"{name} dimension {names[:index].count(name) + 1}"
        for index, name in enumerate(names)
    ]


def _type_notes(found: Fit) -> list[str]:
    parameters = found.parameters
    own = found.values[len(parameters) - len(parameters.types) :].tolist()
    what = {
        OWN_WIRE: "{} reaches {:.3g} of the bandwidth of other collectives",
        OWN_ENDPOINT: "a byte of {} costs {:.3g} ns more at the ends than of other collectives",
    }[parameters.own]
    return [
        f"{what.format(coll.label, value)}: the measured transfers ask for it"
        for coll, value in zip(parameters.types, own, strict=True)
    ]


def _alternatives(
    found: Fit, charges: Charges, drawn: Float, others: Sequence[Fit], slowdown: Slowdown
) -> list[Alternative]:
    """What the data allow about as well: some draws, the other readings, both ends of the slowdown.

    They differ from what was fitted either in the tiers or in the slowdown.
    """
    usual = slowdown.overlap
    parameters = found.parameters
    chosen = [(one.parameters, one.values, usual) for one in others]
    if len(drawn) and found.free.any():
        # Draws in the order of what they charge, by the slopes of the fit.
        total = charges.observed.count * charges.observed.transfer_ns
        away = np.array([parameters.away(found.values, values) for values in drawn])
        order = np.argsort(away[:, found.free] @ (total @ found.slope), kind="stable")
        places = [int(percent / 100 * (len(drawn) - 1)) for percent in ALTERNATIVES]
        chosen += [(parameters, values, usual) for values in drawn[order[places]]]
    chosen += [(parameters, found.values, end) for end in slowdown.ends]
    made = [Alternative(tiers=_finished(parameters, found.values).tiers, overlap=usual)]
    for of, values, end in chosen:
        one = Alternative(tiers=_finished(of, values).tiers, overlap=end)
        if one not in made:
            made.append(one)
    return made[1:]


def _values(made: Calibration) -> list[FittedValue]:
    """The numbers of the network, with intervals."""
    found = made.fit
    parameters = found.parameters
    nominal = parameters.network
    low, high = np.percentile([found.values, *made.drawn], INTERVAL, axis=0)
    alike = [one for one in made.readings if one.parameters.own == parameters.own]
    others = np.array([found.values, *(one.values for one in alike)])
    low, high = np.minimum(low, others.min(axis=0)), np.maximum(high, others.max(axis=0))
    crossing = _crossing(made.charges.observed, nominal)
    listed = []
    for index, name in enumerate(_names(nominal)):
        at = parameters.group[index] * 4
        tier, old = made.network.tiers[index], nominal.tiers[index]
        fields = [
            (WIRE, "efficiency", 1 / tier.bandwidth_gb_s),
            (LATENCY, "latency_ns", 1.0),
            (BASE, "base_ns", 1.0),
            (ENDPOINT, "endpoint_ns_per_byte", 1.0),
        ]
        if parameters.prior.fit_nominal:
            fields[0] = (WIRE, "bandwidth_gb_s", 1.0)
        for field, label, unit in fields:
            value = at + field
            known = low[value] < high[value]
            listed.append(
                FittedValue(
                    tier=name,
                    name=label,
                    value=float(getattr(tier, label)),
                    low=float(low[value] * unit) if known else None,
                    high=float(high[value] * unit) if known else None,
                    origin=_origin(found, value, used=bool(crossing[index])),
                    nominal=float(getattr(old, label)),
                )
            )
    first = len(parameters) - len(parameters.types)
    for value, coll in enumerate(parameters.types, first):
        listed.append(
            FittedValue(
                tier="all",
                name=coll.label,
                value=float(found.values[value]),
                low=float(low[value]),
                high=float(high[value]),
                origin=_origin(found, value, used=True),
                nominal=float(parameters.start[value]),
            )
        )
    return listed


def _origin(found: Fit, value: int, *, used: bool) -> str:
    if not used:
        return "unused"
    if found.free[value]:
        return "fitted"
    return "limit" if found.at_limit[value] else "held"
