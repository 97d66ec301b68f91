"""Who sends how much to whom in an all-to-all of unequal parts.

A trace may carry the parts of every member (`ExecutionGraph.split`); together they are a matrix,
bytes from member to member. Matrices are kept as shares of the size that the operation is priced
by, the input of the member that has most, so that equal shares of other sizes are one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Collective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


def part_matrices(
    graph: ExecutionGraph, instances: Instances, size_bytes: Int
) -> tuple[list[Float], Int]:
    """Find the all-to-alls of unequal parts.

    Parameters
    ----------
    graph, instances
        The job (I instances).
    size_bytes : int64, shape (I,)
        Size that each is priced by.

    Returns
    -------
    matrices : list of float64, shape (n, n)
        Different ones, in the order of the group's members: from the member of the row to that of
        the column, over the size. A member whose parts are not known, or that was not traced,
        sends equal ones.
    index : int64, shape (I,)
        Matrix of each instance; -1 where all parts are equal or unknown.
    """
    index = np.full(len(instances), -1, dtype=np.int64)
    found: list[Float] = []
    known: dict[bytes, int] = {}
    if not graph.splits or not len(instances):
        return found, index
    has = np.maximum.reduceat(graph.split[instances.node], instances.ptr[:-1]) >= 0
    rank = graph.ranks[graph.rank_index]
    chosen = has & (instances.coll == Collective.ALL_TO_ALL) & (size_bytes > 0)
    for i in np.flatnonzero(chosen).tolist():
        members = graph.groups[int(instances.group[i])].ranks
        place = {member: at for at, member in enumerate(members)}
        even = max(int(instances.size_bytes[i]), 0) / len(members)
        matrix = np.full((len(members), len(members)), even)
        for node in instances.node[instances.ptr[i] : instances.ptr[i + 1]].tolist():
            at = place[int(rank[node])]
            split = int(graph.split[node])
            size = int(graph.size_bytes[node])
            if split >= 0:
                matrix[at] = graph.splits[split]
            elif size >= 0:
                matrix[at] = size / len(members)
        matrix /= size_bytes[i]
        key = matrix.tobytes()
        if key not in known:
            known[key] = len(found)
            found.append(matrix)
        index[i] = known[key]
    return found, index
