"""Fit the values of a network to measured transfers, as far as these determine them.

Residuals are log(model / measured) of each kind, weighted mostly by the kind's share of the time
of all transfers, so that the baseline is right where the job spends its time, and a little
evenly, so that small messages can say what the latency is, as far as they do not scatter. Bounded
least squares with a soft-l1 loss keep a kind that the model does not describe from bending the
rest. A prior holds each value
near its start, within its scale (`parameters`). From the curvature at the solution follows how
much the data add to the prior; the value that they say least about is put back to its start and
held there, until the data determine all that remain. Solving again with the prior moved to the
solution (iterated Tikhonov regularisation) then takes the pull of the prior off what the data
determine well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import least_squares

from .parameters import AMOUNTS, BASE, COSTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ..simulator.network import Network
    from .charges import Charges
    from .observed import Observed
    from .parameters import Parameters

    Float = NDArray[np.float64]
    Bool = NDArray[np.bool_]

#: Relative accuracy that the transfers of a job are trusted to together, against the priors.
ACCURACY = 0.02

#: Part of the weight that is spread evenly over the kinds; the rest follows their time.
EVENLY = 0.2

#: Residual of a kind (log of model over measured) beyond which its pull no longer grows.
OUTLIER = 0.2

#: Share of the knowledge of a value that must come from the data for it to be fitted.
DETERMINED = 0.5

_ITERATIONS = 3
_FARTHEST = float(np.log(1e4))  # by which bandwidth and latency may move, as a logarithm
_STEP = 1e-6  # of the numerical derivatives: simulated times are exact to about 1e-12
_TOLERANCE = 1e-6  # of the solver, relative: well below what the data determine
_AT_LIMIT = 1e-3  # scales from a limit that count as none
_INSIDE = 0.1


@dataclass(frozen=True)
class Fit:
    """Values that explain measured transfers.

    Attributes
    ----------
    parameters : Parameters
        What was fitted.
    values : float64, shape (P,)
        The values found.
    free : bool, shape (P,)
        Which of them the data determined.
    at_limit : bool, shape (P,)
        Which the data would have moved beyond what is possible.
    wanted : float64, shape (P,)
        Where they would have moved a bandwidth to that is above nominal, else 0.
    error : float64, shape (K,)
        log(model / measured) of every kind.
    slope : float64, shape (K, F)
        How the error grows with each free value, in scales.
    weight : float64, shape (K,)
        Of the squared errors, with what the robust loss takes off outliers.
    """

    parameters: Parameters
    values: Float
    free: Bool
    at_limit: Bool
    wanted: Float
    error: Float
    slope: Float
    weight: Float

    @property
    def network(self) -> Network:
        """The network that has these values, above its nominal bandwidth too."""
        return self.parameters.network_of(self.values)


def fit(
    charges: Charges,
    parameters: Parameters,
    observed: Observed | None = None,
    *,
    held: Bool | None = None,
    near: Fit | None = None,
) -> Fit:
    """Fit values to measured transfers.

    Parameters
    ----------
    charges : Charges
        Prices the transfers.
    parameters : Parameters
        Where the values start.
    observed : Observed, optional
        Some of the transfers, by default all.
    held : bool, shape (P,), optional
        Values that stay where they start.
    near : Fit, optional
        Another fit whose values are not far off, which is where the search begins.
    """
    problem = _Problem(charges, parameters, charges.observed if observed is None else observed)
    size = len(parameters)
    state = _State(
        start=parameters.start.copy(),
        free=np.ones(size, dtype=np.bool_) if held is None else ~held,
        at_limit=np.zeros(size, dtype=np.bool_),
        x=np.zeros(size) if near is None else parameters.away(parameters.start, near.values),
    )
    if not len(problem.observed):
        state.free[:] = False
    wanted = np.zeros(size)
    while True:
        found = state.copy()
        _fit_determined(problem, found)
        values = problem.values(found, found.x)
        over = found.free & (values > parameters.nominal)
        if not over.any():
            return problem.finished(found, wanted)
        # Held at nominal, the other values may have to explain more: start over.
        wanted[over] = values[over]
        state.start[over] = parameters.nominal[over]
        state.free &= ~over
        state.at_limit |= over


@dataclass
class _State:
    """Where the values start, which may move and which are at a limit, and by how many scales."""

    start: Float
    free: Bool
    at_limit: Bool
    x: Float

    def copy(self) -> _State:
        return _State(self.start.copy(), self.free.copy(), self.at_limit.copy(), self.x.copy())

    def at(self, x: Float) -> Float:
        """Scales of all values, where those of the free ones are given."""
        full = np.zeros(len(self.free))
        full[self.free] = x
        return full

    def hold(self, values: Bool) -> None:
        """Let some values stay where they start."""
        self.free &= ~values
        self.x[values] = 0.0


class _Problem:
    """Transfers to be explained, and how far off they are with some values."""

    def __init__(self, charges: Charges, parameters: Parameters, observed: Observed) -> None:
        self.charges, self.parameters, self.observed = charges, parameters, observed
        self.measured = observed.transfer_ns
        total = observed.count * self.measured
        share = (1 - EVENLY) * total / max(total.sum(), 1.0)
        evenly = EVENLY / max(len(observed), 1)
        known = ACCURACY**2 + _variance_of_mean(observed)
        self.weight: Float = share / ACCURACY**2 + evenly / known

    def values(self, state: _State, x: Float) -> Float:
        """Values that are some scales away from where they start."""
        return self.parameters.moved(state.start, np.where(state.free, x, 0.0))

    def errors(self, state: _State, x: Float) -> Float:
        """log(model / measured) of every kind."""
        network = self.parameters.network_of(self.values(state, x))
        error: Float = np.log(self.charges.kinds_ns(network, self.observed)) - np.log(self.measured)
        return error

    def finished(self, state: _State, wanted: Float) -> Fit:
        """Describe a solution."""
        error = self.errors(state, state.x) if len(self.observed) else np.zeros(0)
        slope = np.zeros((len(error), 0))
        if state.free.any():
            slope = _slopes(lambda x: self.errors(state, state.at(x)), state.x[state.free])
        softened = 1 / np.sqrt(1 + (error / OUTLIER) ** 2)
        values = self.values(state, state.x)
        return Fit(
            self.parameters,
            values,
            state.free,
            state.at_limit,
            wanted,
            error,
            slope,
            self.weight * softened,
        )


def _slopes(function: Callable[[Float], Float], x: Float, upper: Float | float = np.inf) -> Float:
    """How the values of a function grow with each argument, by steps that stay below a bound.

    The steps do not shrink with x, as the solver's do: near zero those drown in rounding.
    """
    usual = function(x)
    step = np.where(x + _STEP <= upper, _STEP, -_STEP)
    columns = [(function(x + aside) - usual) / aside.sum() for aside in np.diag(step)]
    return np.stack(columns, axis=1)


def _variance_of_mean(observed: Observed) -> Float:
    """Square of the relative standard error of the mean time of each kind; 0 of single ones."""
    count = np.maximum(observed.count, 1)
    deviation = np.log(observed.sample_ns)
    mean = np.bincount(observed.kind, deviation, minlength=len(observed)) / count
    spread = (deviation - mean[observed.kind]) ** 2
    variance: Float = np.bincount(observed.kind, spread, minlength=len(observed)) / count**2
    return variance


def _fit_determined(problem: _Problem, state: _State) -> None:
    """Fit, hold what the data say least about, and repeat until they determine the rest."""
    parameters = problem.parameters
    while state.free.any():
        from_data = _solve(problem, state, iterations=1)
        free = np.flatnonzero(state.free)
        # Of several values that explain the same, one has at least this share.
        lost = np.zeros(len(parameters), dtype=np.bool_)
        lost[free] = from_data < min(DETERMINED, 1 / (2 * len(free)))
        values = problem.values(state, state.x)
        spare = _AT_LIMIT * parameters.scale
        costs = np.isin(parameters.field, COSTS)
        none_left = state.free & costs & (values <= spare) & ~lost
        # First, since a cost that there is none of hides what the data say of the others.
        if none_left.any():
            state.start[none_left] = 0.0
            state.at_limit |= none_left
            state.hold(none_left)
        elif lost.any():
            state.hold(lost)
        elif from_data.min() < DETERMINED:
            lost[free[np.argmin(from_data)]] = True
            state.hold(lost)
        else:
            break
    _solve(problem, state, iterations=_ITERATIONS)


def _solve(problem: _Problem, state: _State, *, iterations: int) -> Float:
    """Fit the free values from where they are.

    Returns
    -------
    float64, shape (F,)
        For each of them the share of what is known about it that comes from the data.
    """
    free, start, scale = state.free, state.start, problem.parameters.scale
    field = problem.parameters.field

    def residuals(x: Float, prior: Float) -> Float:
        error = problem.errors(state, state.at(x))
        # The square of this is the soft-l1 loss 2 (sqrt(1 + z) - 1) of z = (error / OUTLIER)^2.
        robust = error * np.sqrt(2 / (1 + np.sqrt(1 + (error / OUTLIER) ** 2)))
        return np.concatenate([np.sqrt(problem.weight) * robust, x - prior])

    def slopes(x: Float, prior: Float) -> Float:
        return _slopes(lambda moved: residuals(moved, prior), x, upper[free])

    amounts, costs = np.isin(field, AMOUNTS), np.isin(field, COSTS)
    lower, upper = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    lower[~amounts], upper[~amounts] = (sign * _FARTHEST / scale[~amounts] for sign in (-1.0, 1.0))
    lower[costs] = -start[costs] / scale[costs]
    # A negative base counts only up to what the wire takes, so beyond that the fit has no slope
    # to follow back. Only from the best base that is not negative may it go below zero.
    is_base = field == BASE
    least = np.minimum(start[is_base], 0.0)
    prior = np.zeros(int(free.sum()))
    from_data = prior
    for iteration in range(iterations if free.any() else 0):
        lower[is_base] = (least - start[is_base]) / scale[is_base]
        # The solver makes no headway from a bound, so what is at one begins a little inside.
        inside = np.where(amounts, lower + _INSIDE, lower)
        solution = least_squares(
            residuals,
            np.clip(state.x, inside, upper)[free],
            jac=slopes,
            bounds=(lower[free], upper[free]),
            ftol=_TOLERANCE,
            xtol=_TOLERANCE,
            args=(prior,),
        )
        prior = solution.x
        state.x = state.at(prior)
        least = np.minimum(least, -problem.measured.min())
        if iteration == 0:
            # The rows of the prior add the identity, so this is always invertible.
            jacobian = np.asarray(solution.jac, dtype=np.float64)
            from_data = 1 - np.diag(np.linalg.inv(jacobian.T @ jacobian))
    return from_data
