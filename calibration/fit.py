"""Fit the values of a network to measured transfers, as far as these determine them.

Residuals are log(model / measured) of each kind, weighted mostly by the kind's share of the time
of all transfers, so that the baseline is right where the job spends its time, and a little
evenly, so that small messages can say what the latency is. Bounded least squares with a soft-l1
loss keep a kind that the model does not describe from bending the rest. A prior holds each value
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

from .parameters import BASE, ENDPOINT

if TYPE_CHECKING:
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
    """
    chosen = charges.observed if observed is None else observed
    size = len(parameters)
    free = np.ones(size, dtype=np.bool_) if held is None else ~held
    if not len(chosen):
        free[:] = False
    start, at_limit, wanted = parameters.start.copy(), np.zeros(size, np.bool_), np.zeros(size)
    while True:
        found = _fit_determined(charges, parameters, chosen, start, free, at_limit)
        over = found.free & (found.values > parameters.nominal)
        if not over.any():
            break
        # Held at nominal, the other values may have to explain more: start over.
        wanted[over] = found.values[over]
        start[over] = parameters.nominal[over]
        free &= ~over
        at_limit |= over
    return Fit(
        parameters,
        found.values,
        found.free,
        found.at_limit,
        wanted,
        found.error,
        found.slope,
        found.weight,
    )


@dataclass(frozen=True)
class _Solution:
    """Values found, for some of them free."""

    values: Float
    free: Bool
    at_limit: Bool
    from_data: Float
    error: Float
    slope: Float
    weight: Float


def _fit_determined(
    charges: Charges,
    parameters: Parameters,
    observed: Observed,
    start: Float,
    free: Bool,
    at_limit: Bool,
) -> _Solution:
    """Fit, hold what the data say least about, and repeat until they determine the rest."""
    start, free, at_limit = start.copy(), free.copy(), at_limit.copy()
    while free.any():
        found = _solve(charges, parameters, observed, start, free, at_limit, iterations=1)
        # Of several values that explain the same, one has at least this share.
        lost = found.from_data < min(DETERMINED, 1 / (2 * free.sum()))
        none_left = (
            free & (parameters.field == ENDPOINT) & (found.values <= _AT_LIMIT * parameters.scale)
        )
        if lost.any():
            free[np.flatnonzero(free)[lost]] = False
        elif none_left.any():
            start[none_left] = 0.0
            at_limit |= none_left
            free &= ~none_left
        elif found.from_data.min() < DETERMINED:
            free[np.flatnonzero(free)[np.argmin(found.from_data)]] = False
        else:
            break
    return _solve(charges, parameters, observed, start, free, at_limit, iterations=_ITERATIONS)


def _solve(
    charges: Charges,
    parameters: Parameters,
    observed: Observed,
    start: Float,
    free: Bool,
    at_limit: Bool,
    *,
    iterations: int,
) -> _Solution:
    """Fit the free values; `from_data` is the share of what is known of each from the data."""
    field, scale = parameters.field, parameters.scale
    measured = observed.transfer_ns
    total = observed.count * measured
    weight = (1 - EVENLY) * total / max(total.sum(), 1.0) + EVENLY / max(len(observed), 1)
    weight /= ACCURACY**2

    def values_of(x: Float) -> Float:
        moved = np.zeros(len(parameters))
        moved[free] = x
        return parameters.moved(start, moved)

    def errors(x: Float) -> Float:
        model = charges.kinds_ns(parameters.network_of(values_of(x)), observed)
        error: Float = np.log(model) - np.log(measured)
        return error

    def residuals(x: Float, prior: Float) -> Float:
        error = errors(x)
        # The square of this is the soft-l1 loss 2 (sqrt(1 + z) - 1) of z = (error / OUTLIER)^2.
        robust = error * np.sqrt(2 / (1 + np.sqrt(1 + (error / OUTLIER) ** 2)))
        return np.concatenate([np.sqrt(weight) * robust, x - prior])

    lower, upper = np.full(len(start), -np.inf), np.full(len(start), np.inf)
    amounts = np.isin(field, (BASE, ENDPOINT))
    lower[~amounts], upper[~amounts] = (sign * _FARTHEST / scale[~amounts] for sign in (-1.0, 1.0))
    lower[field == ENDPOINT] = -start[field == ENDPOINT] / scale[field == ENDPOINT]
    # A negative base counts only up to what the wire takes, so beyond that the fit has no slope
    # to follow back. Only from the best base that is not negative may it go below zero.
    is_base = field == BASE
    least = np.minimum(start[is_base], 0.0)
    prior = np.zeros(int(free.sum()))
    # The solver makes no headway from a bound, so what begins at one begins a little inside.
    x = np.where(amounts, _INSIDE, 0.0)[free]
    from_data = prior
    for iteration in range(iterations if free.any() else 0):
        lower[is_base] = (least - start[is_base]) / scale[is_base]
        solution = least_squares(
            residuals,
            np.clip(x, lower[free], upper[free]),
            bounds=(lower[free], upper[free]),
            diff_step=np.full(len(x), _STEP),
            args=(prior,),
        )
        x = prior = solution.x
        least = np.minimum(least, -measured.min())
        if iteration == 0:
            # The rows of the prior add the identity, so this is always invertible.
            jacobian = np.asarray(solution.jac, dtype=np.float64)
            from_data = 1 - np.diag(np.linalg.inv(jacobian.T @ jacobian))
    error = errors(x) if len(observed) else np.zeros(0)
    slope = np.zeros((len(observed), len(x)))
    for column in range(len(x)):
        step = np.zeros(len(x))
        step[column] = _STEP
        slope[:, column] = (errors(x + step) - error) / _STEP
    softened = 1 / np.sqrt(1 + (error / OUTLIER) ** 2)
    return _Solution(values_of(x), free, at_limit, from_data, error, slope, weight * softened)
