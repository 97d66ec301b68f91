"""How much compute slows down beside transfers, from operations that run both with and without.

Which operations these are, and what simulations do with the number, is in
`simulator.interference`. Here the durations of each beside transfers are compared with those
without by their lower quartiles: a stall makes an operation longer by many times its work, and
half of the samples may have one; what is left below is the slowdown that all have. The ratios are
averaged, weighted by the time that operations spend beside transfers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..simulator.interference import comparisons
from .results import Slowdown, SlowedOperation
from .uncertainty import INTERVAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph

    Float = NDArray[np.float64]

_QUARTILE = 25


def estimate_slowdown(graph: ExecutionGraph, *, draws: int = 0, seed: int = 0) -> Slowdown:
    """Estimate how much longer compute takes while a transfer of its rank is in flight.

    Parameters
    ----------
    graph : ExecutionGraph
        With its measured timeline.
    draws : int
        Bootstrap draws for the interval, over operations and how often they ran; 0 for none.
    seed : int
        Of the draws.

    Returns
    -------
    Slowdown
        At least 0; exactly 0 without evidence.
    """
    found = comparisons(graph)
    alone = [graph.dur_ns[one.alone].astype(np.float64) for one in found]
    beside = [graph.dur_ns[one.beside].astype(np.float64) for one in found]
    slower = [_slower(*both) for both in zip(alone, beside, strict=True)]
    weight = np.array([samples.sum() for samples in beside])
    random = np.random.default_rng(seed)
    averages = []
    for _ in range(draws if found else 0):
        chosen = random.integers(len(found), size=len(found))
        again = [
            _slower(*(random.choice(both[i], len(both[i])) for both in (alone, beside)))
            for i in chosen.tolist()
        ]
        averages.append(max(float(np.average(again, weights=weight[chosen])), 0.0))
    low, high = np.percentile(averages, INTERVAL).tolist() if averages else (None, None)
    value = max(float(np.average(slower, weights=weight)), 0.0) if found else 0.0
    return Slowdown(
        value=value,
        low=None if low is None else min(low, value),
        high=None if high is None else max(high, value),
        operations=[
            SlowedOperation(
                rank=int(graph.ranks[found[i].rank]),
                name=found[i].name,
                count=len(beside[i]),
                alone_ns=found[i].alone_ns,
                slowdown=slower[i],
            )
            for i in np.argsort(-weight, kind="stable").tolist()
        ],
    )


def _slower(alone: Float, beside: Float) -> float:
    """How much longer an operation takes beside transfers, as a fraction."""
    return float(np.percentile(beside, _QUARTILE) / np.percentile(alone, _QUARTILE)) - 1
