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
And a latency or base that is held because the data say little of it may be elsewhere, with the
other values as they are then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from .fit import fit
from .parameters import BASE, ENDPOINT, LATENCY, PRESET_SPREAD, WIRE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .charges import Charges
    from .fit import Fit
    from .observed import Observed
    from .parameters import Parameters

    Float = NDArray[np.float64]
    Bool = NDArray[np.bool_]

#: Percentiles of the draws between which a value is said to be.
INTERVAL = (5.0, 95.0)

#: Steps from which on these, and not single transfers, are drawn.
LEAST_STEPS = 3

#: Relative scatter of transfers where none of a kind is repeated.
UNKNOWN_SCATTER = 0.05

#: Kinds that are left out in turn, those with the most time.
MOST_LEFT_OUT = 12

#: How much larger the information criterion must be for a reading to be given up: what is called
#: very strong evidence.
EVIDENCE = 10.0

#: How much larger the squared errors may be, in units of the accuracy of the data: two standard
#: deviations.
PLAUSIBLE = 4.0

_SAME = 1e-4
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
    if not len(free):
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
    ends = parameters.field == ENDPOINT
    drawn[:, ends] = np.maximum(drawn[:, ends], 0.0)
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
    made = [*_causes(found, charges), *_held_elsewhere(found, charges)]
    return [one for one in made if not np.allclose(one.values, found.values, rtol=_SAME)]


def _causes(found: Fit, charges: Charges) -> list[Fit]:
    """What transfers need beyond the nominal speed, put down to the wire, the ends, or chance."""
    parameters = found.parameters
    wire, ends = parameters.field == WIRE, parameters.field == ENDPOINT
    moved = found.free | found.at_limit
    # Wire and ends of a tier are one pair.
    touched = np.zeros(len(parameters), dtype=np.bool_)
    touched[wire] = touched[ends] = moved[wire] | moved[ends]
    if not touched.any():
        return []
    others = ~(found.free | touched)

    def reading(start: Float, held: Bool, scale: Float = parameters.scale) -> Fit:
        again = replace(parameters, start=start, scale=scale)
        return fit(charges, again, held=others | held)

    first, wide = parameters.start, parameters.scale.copy()
    wide[wire] = PRESET_SPREAD
    made = [reading(first, ends, wide)]
    if not parameters.prior.fit_nominal:
        start = np.where(wire & touched, parameters.nominal, first)
        # The ends may have all of it.
        wide = parameters.scale.copy()
        wide[ends] = np.maximum(wide[ends], 1 / found.values[wire])
        made.append(reading(start, wire, wide))
    made = [one for one in made if _as_likely(one, found, charges)]
    if parameters.prior.wire < PRESET_SPREAD:
        made.append(reading(first, wire | ends))
    return made


def _held_elsewhere(found: Fit, charges: Charges) -> list[Fit]:
    """Hold the latencies and bases that the data leave open one scale away, either way."""
    parameters = found.parameters
    open_ = np.isin(parameters.field, (LATENCY, BASE)) & ~found.free & ~found.at_limit
    made = []
    for value in np.flatnonzero(open_).tolist():
        for way in (-1.0, 1.0):
            x = np.zeros(len(parameters))
            x[value] = way
            start = parameters.moved(parameters.start, x)
            again = fit(charges, replace(parameters, start=start), held=~found.free)
            if np.array_equal(again.error, found.error):
                break  # no transfer depends on it
            if _loss(again) - _loss(found) < PLAUSIBLE:
                made.append(again)
    return made


def _loss(found: Fit) -> float:
    return float(found.weight @ found.error**2)


def _as_likely(other: Fit, found: Fit, charges: Charges) -> bool:
    """Whether transfers scatter about one fit not much more than about another.

    Those that met others on their ports may tell the wire, which is shared, from the ends, which
    are not. Compared is the Bayesian information criterion of normal errors.
    """
    measured = charges.observed.sample_ns
    scatter = [
        float(np.log(charges.samples_ns(one.network) / measured).var()) for one in (found, other)
    ]
    if not min(scatter):
        return True
    return len(measured) * float(np.log(scatter[1] / scatter[0])) < EVIDENCE


def held_out_error(found: Fit, charges: Charges) -> float | None:
    """Error on every second transfer of each kind of a fit to the others, in percent.

    The mean of the sizes of the errors of kinds, weighted by their time; None where no kind has
    two transfers.
    """
    observed = charges.observed
    number = np.arange(len(observed.kind)) - np.searchsorted(observed.kind, observed.kind)
    seen = number % 2 == 0
    if seen.all():
        return None
    again = fit(charges, found.parameters, observed.some(seen))
    return _error_pct(charges, again, observed.some(~seen))


def leave_one_out_error(found: Fit, charges: Charges) -> float | None:
    """Error on each kind of a fit to the other kinds, in percent, weighted by their time.

    None where there is one kind only.
    """
    observed = charges.observed
    if len(observed) < 2:
        return None
    total = observed.count * observed.transfer_ns
    chosen = np.argsort(-total, kind="stable")[:MOST_LEFT_OUT]
    errors = list(_left_out(found.parameters, charges, observed, chosen.tolist()))
    return float(np.average(errors, weights=total[chosen]))


def _left_out(
    parameters: Parameters, charges: Charges, observed: Observed, kinds: list[int]
) -> Iterator[float]:
    for kind in kinds:
        mine = observed.kind == kind
        again = fit(charges, parameters, observed.some(~mine))
        yield _error_pct(charges, again, observed.some(mine))


def _error_pct(charges: Charges, found: Fit, observed: Observed) -> float:
    model = charges.kinds_ns(found.network, observed)
    measured = observed.transfer_ns
    return float(np.average(np.abs(model / measured - 1), weights=observed.count * measured) * 100)
