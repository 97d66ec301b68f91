"""What a step is: when it completes, how long it takes, and which of several is the headline.

Hosts run ahead of devices, so the annotation of a step is not the step. Here is the one
definition that measured and simulated timelines share; the converter and the simulator both
call it with the ends of the nodes that they know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .columns import LaneKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .columns import ExecutionGraph


def device_work(graph: ExecutionGraph) -> NDArray[np.bool_]:
    """Mark the nodes whose end a step must see: those of streams and queues, shape (N,)."""
    device: NDArray[np.bool_] = (graph.lanes.kind != LaneKind.HOST)[graph.lane]
    return device


def step_completions(graph: ExecutionGraph, end_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Tell when each step is complete on each rank alone.

    A step is complete when its annotation and those before it have ended and the work of
    streams and queues launched in it and before it is done. The completion of the job is the
    maximum over ranks.

    Parameters
    ----------
    graph : ExecutionGraph
        The graph, for its steps, lanes and ranks.
    end_ns : int64, shape (N,)
        End of every node, measured (`ExecutionGraph.end_ns`) or simulated.

    Returns
    -------
    int64, shape (S, R)
        Completion of step k on rank index r.
    """
    num_steps, num_ranks = len(graph.steps), graph.num_ranks
    completion = end_ns[graph.steps.marker].reshape(num_steps, num_ranks).astype(np.int64)
    chosen = np.flatnonzero(device_work(graph) & (graph.step < num_steps))
    cell = np.maximum(graph.step[chosen], 0).astype(np.int64) * num_ranks
    cell += graph.rank_index[chosen]
    np.maximum.at(completion.reshape(-1), cell, end_ns[chosen])
    result: NDArray[np.int64] = np.maximum.accumulate(completion, axis=0)
    return result


def step_times(completion_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the durations of consecutive steps, shape (S,).

    The first counts from the zero of the graph's clock, the earliest start of its annotation on
    any rank; it is a window rather than a steady step.
    """
    return np.diff(completion_ns, prepend=np.int64(0))


def headline_steps(times_ns: NDArray[np.int64]) -> tuple[int, ...]:
    """Choose the steps that define the headline: the middle one or two of the steady ones.

    Steady are all but the first; a single step stands for itself.

    Returns
    -------
    tuple of int
        One or two step indices, ascending; their mean time is the median.
    """
    if len(times_ns) < 2:
        return tuple(range(len(times_ns)))
    order = np.argsort(times_ns[1:], kind="stable") + 1
    middle = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    return tuple(sorted(int(k) for k in middle))


def headline_ns(times_ns: NDArray[np.int64]) -> int:
    """Median time of the steady steps in whole nanoseconds (rounded down)."""
    chosen = headline_steps(times_ns)
    return int(times_ns[list(chosen)].sum()) // len(chosen)


def headline_parts(parts_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Average what the headline steps consist of, without losing a nanosecond.

    Parameters
    ----------
    parts_ns : int64, shape (..., H, C)
        Parts of the one or two headline steps, which sum to the steps over the last axis.

    Returns
    -------
    int64, shape (..., C)
        Means in whole nanoseconds that sum exactly to the headline.
    """
    count = parts_ns.shape[-2]
    total = parts_ns.sum(axis=-2)
    mean: NDArray[np.int64] = total // count
    # The halves that were cut off make up whole nanoseconds; they go to the first so cut.
    half = total % count
    owed = half.sum(axis=-1, keepdims=True) // count
    mean += (half > 0) & (np.cumsum(half, axis=-1) <= owed)
    return mean
