"""How much compute slows down beside transfers, from operations whose work is known.

Which operations these are, and what simulations do with the number, is in
`simulator.interference`. All that they took beyond their work, over the time that they spent
beside transfers, is the share of that time that compute loses.

What becomes of it on links of another speed depends on what took it. On a device the kernel of a
collective holds the same multiprocessors on every link, so the share stays. On a host it is the
processor's work for the data, for packets and wake-ups. Were that as much for every moment that
a transfer lasts, the share would stay as well; but slow links are served in smaller pieces with
more work for each, and the share may fall as transfers get faster. Nothing in a trace of one
speed says how far. So a CPU job's share goes with the root of the time of transfers, and all
between no change and proportion is said to be possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Worker
from ..simulator.interference import MOST_LOST, alike, measured_busy, overlap_ns
from ..simulator.network import Overlap
from .results import Slowdown, SlowedOperation
from .uncertainty import INTERVAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..simulator.interference import Alike

    Float = NDArray[np.float64]

#: How the share that a host loses goes with the time of transfers: what is taken, and the ends.
HOST_EXPONENT, HOST_EXPONENTS = 0.5, (1.0, 0.0)


def estimate_slowdown(graph: ExecutionGraph, *, draws: int = 0, seed: int = 0) -> Slowdown:
    """Estimate how much longer compute takes while a transfer of its rank is in flight.

    Parameters
    ----------
    graph : ExecutionGraph
        With its measured timeline.
    draws : int
        Bootstrap draws over operations, for the interval; 0 for none.
    seed : int
        Of the draws.

    Returns
    -------
    Slowdown
    """
    found = alike(graph)
    if not len(found.node):
        return Slowdown(overlap=None, ends=[], operations=[])
    beside_ns = overlap_ns(graph, measured_busy(graph))[found.node]
    excess_ns = graph.dur_ns[found.node] - found.work_ns
    beside = np.bincount(found.same, beside_ns).astype(np.float64)
    excess = np.bincount(found.same, excess_ns).astype(np.float64)
    lost = float(_lost(excess, beside))
    random = np.random.default_rng(seed)
    chosen = random.integers(len(beside), size=(draws, len(beside)))
    drawn = _lost(excess[chosen], beside[chosen]).tolist()
    ends = np.percentile([lost, *drawn], INTERVAL).tolist() if draws else []
    exponent, exponents = 0.0, (0.0, 0.0)
    if graph.worker is not Worker.DEVICE:
        exponent, exponents = HOST_EXPONENT, HOST_EXPONENTS
    return Slowdown(
        overlap=_overlap(lost, exponent),
        ends=[_overlap(*end) for end in zip(ends, exponents, strict=False)],
        operations=_by_name(graph, found, beside_ns),
    )


def _lost(excess: Float, beside: Float) -> Float:
    """Share of the time beside transfers that operations lose, over the last axis."""
    total = np.maximum(beside.sum(axis=-1), 1.0)
    share: Float = np.clip(excess.sum(axis=-1) / total, 0.0, MOST_LOST)
    return share


def _overlap(lost: float, exponent: float) -> Overlap:
    """What a share of the time that compute loses is as a slowdown."""
    return Overlap(slowdown=lost / (1 - lost), exponent=exponent)


def _by_name(graph: ExecutionGraph, found: Alike, beside_ns: Float) -> list[SlowedOperation]:
    """Add up what operations of one name take, most time beside transfers first."""
    rank, name = graph.rank_index[found.node], graph.name[found.node]
    keys, of = np.unique(np.stack([rank, name]), axis=1, return_inverse=True)
    of = of.reshape(-1)
    count, work = np.bincount(of), np.bincount(of, found.work_ns)
    took = np.bincount(of, graph.dur_ns[found.node])
    return [
        SlowedOperation(
            rank=int(graph.ranks[keys[0, i]]),
            name=graph.names[keys[1, i]],
            count=int(count[i]),
            alone_ns=float(work[i] / count[i]),
            slowdown=float(took[i] / work[i] - 1) if work[i] else 0.0,
        )
        for i in np.argsort(-np.bincount(of, beside_ns), kind="stable").tolist()
    ]
