"""How far the fitted values may be off: bootstrap draws, other readings, and held-out errors.

Draws
-----
What varies is drawn anew: steps with replacement where there are enough of them (transfers of one
step are alike in what disturbs them), else transfers within their kind; and on top what the model
leaves unexplained of each kind beyond that. Each draw moves the measured times, and the values
follow by the linearised fit. With few steps the spread of a bootstrap is too small; it is widened
as Student's t is over the normal distribution.

Readings
--------
One bandwidth does not tell the wire from the ends (`parameters`), so values from one trace come
with the other ways to read them: all that transfers need beyond the nominal speed is the wire's,
or the ends', or, where the efficiency of a link is well known beforehand, chance in this trace.
Where no nominal speed is known, the ends may have what they plausibly need. What was put down to
latency may be the wire's or the ends' too, as long as the sizes do not tell.
What one type of collective of a CPU job needs beyond the others may likewise be a share of the
wire. And a latency or base that is held because the data say little of it may be elsewhere, with
the other values as they are then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from .fit import fit
from .parameters import (
    BASE,
    COSTS,
    ENDPOINT,
    LATENCY,
    OWN_ENDPOINT,
    OWN_WIRE,
    PRESET_SPREAD,
    WIRE,
    Parameters,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .charges import Charges
    from .fit import Fit
    from .observed import Observed

    Float = NDArray[np.float64]
    Bool = NDArray[np.bool_]

#: Percentiles of the draws between which a value is said to be.
INTERVAL = (5.0, 95.0)

#: Steps from which on these, and not single transfers, are drawn.
LEAST_STEPS = 3

#: Relative scatter of transfers where none of a kind is repeated.
UNKNOWN_SCATTER = 0.05

#: Kinds that are left out in turn, those with the most time.
MOST_LEFT_OUT = 10

#: How much larger the information criterion must be for a reading to be given up: what is called
#: very strong evidence.
EVIDENCE = 10.0

#: How much larger the squared errors may be, in units of the accuracy of the data: two standard
#: deviations.
PLAUSIBLE = 4.0

#: Share of the time of a byte that may be at the ends where no nominal speed is known.
MOST_AT_ENDS = 0.9

_SAME = 1e-4
_EXACT = 1e-6  # variance of logarithms that is none: times are whole nanoseconds
_TINY = 1e-3  # of a prior, so that undetermined directions stay where they are


def draw_values(found: Fit, charges: Charges, count: int, seed: int = 0) -> Float:
    """Draw values that would explain other measurements of the same job.

    Parameters
    ----------
    found : Fit
        The fit to all transfers.
    charges : Charges
        Prices them.
    count : int
        How many draws.
    seed : int
        Of the random numbers.

    Returns
    -------
    float64, shape (count, P)
    """
    parameters, free = found.parameters, np.flatnonzero(found.free)
    drawn = np.tile(found.values, (count, 1))
    if not len(free) or not count:
        return drawn
    random = np.random.default_rng(seed)
    shift = drawn_shifts(found, charges, count, random)
    weighted = found.slope.T * found.weight
    curvature = weighted @ found.slope + _TINY * np.eye(len(free))
    moved = np.linalg.solve(curvature, weighted @ shift.T).T
    for row, x in zip(drawn, moved, strict=True):
        far = np.zeros(len(parameters))
        far[free] = x
        row[:] = np.minimum(parameters.moved(found.values, far), parameters.nominal)
    costs = np.isin(parameters.field, COSTS)
    drawn[:, costs] = np.maximum(drawn[:, costs], 0.0)
    return drawn


def drawn_shifts(
    found: Fit,
    charges: Charges,
    count: int,
    random: np.random.Generator,
    *,
    unexplained: bool = True,
) -> Float:
    """How far the logarithm of the measured time of each kind moves, shape (count, K).

    With what the model leaves unexplained, or without.
    """
    observed = charges.observed
    kinds = len(observed)
    model = charges.samples_ns(found.network)
    ratio = observed.sample_ns / model
    usual = observed.transfer_ns / (
        np.bincount(observed.kind, model, minlength=kinds) / observed.count
    )
    steps, step = np.unique(observed.step, return_inverse=True)
    shift = np.zeros((count, kinds))
    if len(steps) >= LEAST_STEPS:
        times = random.multinomial(len(steps), np.full(len(steps), 1 / len(steps)), size=count)
        code = observed.kind * len(steps) + step.reshape(-1)
        shape = (kinds, len(steps))
        took = np.bincount(code, observed.sample_ns, minlength=kinds * len(steps)).reshape(shape)
        should = np.bincount(code, model, minlength=kinds * len(steps)).reshape(shape)
        there = times @ should.T
        shift = np.log(np.where(there > 0, times @ took.T / np.maximum(there, 1e-9), usual) / usual)
        shift *= _widened(len(steps))
    else:
        for kind in range(kinds):
            mine = np.flatnonzero(observed.kind == kind)
            times = random.multinomial(len(mine), np.full(len(mine), 1 / len(mine)), size=count)
            now = times @ observed.sample_ns[mine] / (times @ model[mine])
            shift[:, kind] = np.log(now / usual[kind]) * _widened(len(mine))
    single = observed.count == 1
    if single.any():
        off = np.log(ratio / usual[observed.kind])[~single[observed.kind]]
        degrees = len(off) - int((~single).sum())
        scatter = np.sqrt((off**2).sum() / degrees) if degrees > 0 else 0.0
        if not scatter and kinds <= len(found.slope.T):
            scatter = UNKNOWN_SCATTER
        shift[:, single] = random.normal(0, scatter, (count, int(single.sum())))
    left = kinds - len(found.slope.T)
    if unexplained and left > 0:
        excess = np.maximum(found.error**2 - shift.var(axis=0), 0) * kinds / left
        shift = shift + random.normal(size=shift.shape) * np.sqrt(excess) * _students(left)
    return shift


def _widened(count: int) -> float:
    """What the spread of a bootstrap over few samples is too small by."""
    if count < 2:
        return 0.0
    return _students(count - 1) * float(np.sqrt(count / (count - 1)))


def _students(degrees: int) -> float:
    """How much wider Student's t is than the normal distribution."""
    quantile = INTERVAL[1] / 100
    return float(stats.t.ppf(quantile, degrees) / stats.norm.ppf(quantile))


def readings(found: Fit, charges: Charges) -> list[Fit]:
    """Other ways to read the same transfers: see the module."""
    made = [
        *_causes(found, charges),
        *_without_delays(found, charges),
        *_types_by_wire(found, charges),
        *_held_elsewhere(found, charges),
    ]
    return [one for one in made if not np.allclose(one.values, found.values, rtol=_SAME)]


def likeliest_cause(found: Fit, charges: Charges) -> Fit:
    """Put what transfers need down to the other of wire and ends, if they say so clearly.

    They can where they met others on their ports: the wire is shared then, the ends are not.
    """
    if not charges.observed.shared.any():
        return found
    parameters = found.parameters
    both = _pairs(found)
    for field in (WIRE, ENDPOINT):
        held = ~(found.free | both) | (parameters.field == field)
        other = fit(charges, _loosened(parameters), held=held, near=found)
        if other.free.any() and _evidence(found, other, charges) > EVIDENCE:
            found = other
    return found


def _causes(found: Fit, charges: Charges) -> list[Fit]:
    """What transfers need beyond the nominal speed, put down to the wire, the ends, or chance."""
    parameters = found.parameters
    wire, ends = parameters.field == WIRE, parameters.field == ENDPOINT
    both = _pairs(found)
    if not both.any():
        return []
    others = ~(found.free | both)
    loose = _loosened(parameters)
    made = [fit(charges, loose, held=others | ends, near=found)]
    if parameters.prior.fit_nominal:
        # No speed is known that could be all of it, but what a processor needs is (`parameters`).
        per_byte = 1 / found.values[wire & both]
        start = parameters.start.copy()
        start[ends & both] = np.minimum(parameters.scale[ends & both], MOST_AT_ENDS * per_byte)
        plausible = replace(loose, start=start)
        made.append(fit(charges, plausible, held=others | ends))
    else:
        start = np.where(wire & both, parameters.nominal, parameters.start)
        ends_only = replace(loose, start=start)
        made.append(fit(charges, ends_only, held=others | wire, near=found))
    made = [one for one in made if _evidence(one, found, charges) < EVIDENCE]
    if parameters.prior.wire < PRESET_SPREAD:
        made.append(fit(charges, parameters, held=others | wire | ends, near=found))
    return made


def _pairs(found: Fit) -> Bool:
    """Wire and ends of the tiers of which either was fitted."""
    field = found.parameters.field
    wire, ends = field == WIRE, field == ENDPOINT
    moved = found.free | found.at_limit
    pairs = np.zeros(len(field), dtype=np.bool_)
    pairs[wire] = pairs[ends] = moved[wire] | moved[ends]
    return pairs


def _loosened(parameters: Parameters) -> Parameters:
    """Let either of wire and ends have all of it, whatever is plausible beforehand."""
    wire, ends = parameters.field == WIRE, parameters.field == ENDPOINT
    scale = parameters.scale.copy()
    scale[wire] = PRESET_SPREAD
    scale[ends] = np.maximum(scale[ends], 1 / parameters.start[wire])
    return replace(parameters, scale=scale)


def _without_delays(found: Fit, charges: Charges) -> list[Fit]:
    """What was put down to latency and base, put down to the wire or the ends instead.

    Transfers of one size do not tell what is once for each from what is for each byte.
    """
    parameters = found.parameters
    field = parameters.field
    delays = np.isin(field, (LATENCY, BASE)) & found.free
    wire, ends = field == WIRE, field == ENDPOINT
    both = np.zeros(len(field), dtype=np.bool_)
    both[wire] = both[ends] = delays[field == LATENCY] | delays[field == BASE]
    if not both.any():
        return []
    loose = _loosened(parameters)
    held = ~(found.free | both) | delays
    made = [fit(charges, loose, held=held | cause) for cause in (ends, wire)]
    return [one for one in made if _evidence(one, found, charges) < EVIDENCE]


def _types_by_wire(found: Fit, charges: Charges) -> list[Fit]:
    """What types of collective need beyond the others, put down to the wire instead of the ends."""
    usual = found.parameters
    if not usual.types or usual.own != OWN_ENDPOINT:
        return []
    parameters = Parameters.of(usual.network, usual.prior, usual.types, own=OWN_WIRE)
    tiers = np.arange(len(usual)) < len(usual) - len(usual.types)
    start = np.where(tiers, found.values, parameters.start)
    return [fit(charges, replace(parameters, start=start), held=tiers)]


def _held_elsewhere(found: Fit, charges: Charges) -> list[Fit]:
    """Hold the latencies and bases that the data leave open one scale away, either way."""
    parameters = found.parameters
    open_ = np.isin(parameters.field, (LATENCY, BASE)) & ~found.free & ~found.at_limit
    usual = charges.kinds_ns(found.network)
    made = []
    for value in np.flatnonzero(open_).tolist():
        for way in (-1.0, 1.0):
            x = np.zeros(len(parameters))
            x[value] = way
            start = parameters.moved(parameters.start, x)
            aside = np.where(x == 0, found.values, start)
            if np.array_equal(charges.kinds_ns(parameters.network_of(aside)), usual):
                break  # no transfer depends on it
            moved = replace(parameters, start=start)
            again = fit(charges, moved, held=~found.free, near=found)
            if _loss(again) - _loss(found) < PLAUSIBLE:
                made.append(again)
    return made


def _loss(found: Fit) -> float:
    return float(found.weight @ found.error**2)


def _evidence(found: Fit, other: Fit, charges: Charges) -> float:
    """How much more transfers scatter about one fit than about another.

    The difference of the Bayesian information criterion for normal errors. Transfers of one step
    are alike in what disturbs them, so where there are enough steps, each counts once.
    """
    measured = charges.observed.sample_ns
    steps = len(np.unique(charges.observed.step))
    count = steps if steps >= LEAST_STEPS else len(measured)
    scatter = [
        max(float(np.log(charges.samples_ns(one.network) / measured).var()), _EXACT)
        for one in (found, other)
    ]
    return count * float(np.log(scatter[0] / scatter[1]))


def held_out_error(found: Fit, charges: Charges, seed: int = 0) -> float | None:
    """Error on half of the transfers of each kind of a fit to the other half, in percent.

    The mean of the sizes of the errors of kinds, weighted by their time, of both halves; None
    where no kind has two transfers. The halves are drawn, since transfers may alternate.
    """
    observed = charges.observed
    order = np.random.default_rng(seed).permutation(len(observed.kind))
    order = order[np.argsort(observed.kind[order], kind="stable")]
    first = np.searchsorted(observed.kind, observed.kind)
    half = np.zeros(len(order), dtype=np.bool_)
    half[order] = (np.arange(len(order)) - first) % 2 == 1
    if not half.any():
        return None
    return (_left_out(found, charges, half) + _left_out(found, charges, ~half)) / 2


def leave_one_out_error(found: Fit, charges: Charges) -> float | None:
    """Error on each kind of a fit to the other kinds, in percent, weighted by their time.

    None where there is one kind only.
    """
    observed = charges.observed
    if len(observed) < 2:
        return None
    total = observed.count * observed.transfer_ns
    chosen = np.argsort(-total, kind="stable")[:MOST_LEFT_OUT]
    errors = [_left_out(found, charges, observed.kind == kind) for kind in chosen.tolist()]
    return float(np.average(errors, weights=total[chosen]))


def _left_out(found: Fit, charges: Charges, mine: Bool) -> float:
    """Error on some transfers of a fit to the others."""
    others = charges.observed.some(~mine)
    again = fit(charges, found.parameters, others, held=~found.free, near=found)
    return _error_pct(charges, again, charges.observed.some(mine))


def _error_pct(charges: Charges, found: Fit, observed: Observed) -> float:
    model = charges.kinds_ns(found.network, observed)
    measured = observed.transfer_ns
    return float(np.average(np.abs(model / measured - 1), weights=observed.count * measured) * 100)
