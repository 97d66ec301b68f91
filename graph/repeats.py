"""Which nodes are the same operation in another step.

A job does in every step the same as in the one before, so operations that stand at the same place
of two steps are the same work, whatever they took. The order on a lane is what is compared, since
profilers give operations no identity; steps that differ in a few operations are aligned around
these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .columns import ExecutionGraph

#: Operations that two steps of a lane may differ by; steps that differ more are not aligned.
MOST_DIFFERENT = 500


def repeated(graph: ExecutionGraph, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Number nodes so that the same operation has one number in every step.

    Parameters
    ----------
    graph : ExecutionGraph
        With several steps, or nothing is repeated.
    chosen : bool, shape (N,)
        Nodes that count.

    Returns
    -------
    int64, shape (N,)
        -1 for nodes that were not chosen or are the same as no other.
    """
    number = np.full(graph.num_nodes, -1, dtype=np.int64)
    rows = np.flatnonzero(chosen & (graph.step >= 0) & (graph.step < len(graph.steps)))
    rows = rows[np.lexsort((graph.start_ns[rows], graph.step[rows], graph.lane[rows]))]
    key = graph.lane[rows].astype(np.int64) * len(graph.steps) + graph.step[rows]
    runs = np.split(rows, np.flatnonzero(np.diff(key)) + 1) if len(rows) else []
    of_lane: dict[int, list[NDArray[np.int64]]] = {}
    for run in runs:
        of_lane.setdefault(int(graph.lane[run[0]]), []).append(run)
    first = 0
    for steps in of_lane.values():
        reference = max(steps, key=len)
        names = graph.name[reference].tolist()
        places = first + np.arange(len(reference))
        matched = np.zeros(len(reference), dtype=np.bool_)
        for step in steps:
            if step is reference:
                continue
            ours, theirs = aligned(names, graph.name[step].tolist())
            number[step[theirs]] = places[ours]
            matched[ours] = True
        number[reference[matched]] = places[matched]
        first += len(reference)
    return number


def aligned(
    one: Sequence[int], other: Sequence[int], most: int = MOST_DIFFERENT
) -> tuple[list[int], list[int]]:
    """Find a longest common subsequence of two sequences that differ little.

    By the greedy algorithm of Myers (An O(ND) Difference Algorithm and Its Variations,
    Algorithmica 1, 1986): of all ways to reach each diagonal with d insertions and deletions the
    furthest is kept, for d = 0, 1, ...

    Parameters
    ----------
    one, other : sequence of int
        The sequences.
    most : int
        Insertions and deletions after which the search is given up.

    Returns
    -------
    list of int, list of int
        Places in each that hold the same, ascending; empty where they differ by more.
    """
    furthest = {1: 0}
    history = []
    for edits in range(min(len(one) + len(other), most) + 1):
        history.append(furthest.copy())
        for diagonal in range(-edits, edits + 1, 2):
            if _comes_from_above(furthest, diagonal, edits):
                x = furthest[diagonal + 1]
            else:
                x = furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(one) and y < len(other) and one[x] == other[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(one) and y >= len(other):
                return _traced_back(history, len(one), len(other))
    return [], []


def _comes_from_above(furthest: dict[int, int], diagonal: int, edits: int) -> bool:
    """Whether a diagonal is reached by an insertion, rather than by a deletion."""
    return diagonal == -edits or (
        diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
    )


def _traced_back(history: Sequence[dict[int, int]], x: int, y: int) -> tuple[list[int], list[int]]:
    ours: list[int] = []
    theirs: list[int] = []
    for edits in range(len(history) - 1, -1, -1):
        furthest, diagonal = history[edits], x - y
        way = 1 if _comes_from_above(furthest, diagonal, edits) else -1
        before = furthest[diagonal + way] if edits else 0
        begin = before if way == 1 else before + 1
        while x > begin:
            x, y = x - 1, y - 1
            ours.append(x)
            theirs.append(y)
        x, y = before, before - diagonal - way
    return ours[::-1], theirs[::-1]
