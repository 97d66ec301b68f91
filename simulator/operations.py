"""The distinct operations of a graph: what, between whom, from which root.

A job repeats few of them many times. Here they are told apart, and an operation that names a rank
or group that is not there is refused; what they cost is worked out in `pricing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.errors import GraphError
from ..graph.columns import Collective, Kind
from .parts import part_matrices

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from .placement import Placement

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: Collectives in which members do not all do the same.
ROOTED = (Collective.BROADCAST, Collective.SCATTER, Collective.REDUCE, Collective.GATHER)


class Operations(NamedTuple):
    """The operations that instances are of (O of them; I instances).

    Attributes
    ----------
    coll : list of Collective, length O
        What each is.
    members : list of int64 arrays, length O
        Global ranks, in the order of the group; of a send first its start, then its end.
    root : list of (int or None), length O
        Index of the root among the members, where there is one and it is known.
    weights : list of (float64 of shape (n, n), or None), length O
        Parts of an all-to-all where they are not equal: from member to member, over the size.
    of : int64, shape (I,)
        Operation of every instance.
    """

    coll: list[Collective]
    members: list[Int]
    root: list[int | None]
    weights: list[Float | None]
    of: Int


def find_operations(
    graph: ExecutionGraph, instances: Instances, placement: Placement
) -> Operations:
    """Tell the operations of a graph apart.

    Raises
    ------
    GraphError
        If an operation has no group or no peer, or if a member, peer or root is not one of the
        job's ranks; names rank, group and sequence number.
    """
    first = instances.node[instances.ptr[:-1]]
    rank = graph.ranks[graph.rank_index[first]]
    peer = graph.peer[first].astype(np.int64)
    pair = instances.coll == Collective.SEND_RECV
    for missing, what in (
        (~pair & (instances.group < 0), "{} has no group"),
        (pair & (peer < 0), "a send or receive has no peer"),
    ):
        bad = np.flatnonzero(missing)
        if len(bad):
            raise GraphError(
                what.format(label_of(instances, bad[0])),
                rank=int(rank[bad[0]]),
                place=place_of(graph, instances, bad[0]),
            )
    sends = graph.kind[first] != Kind.RECV
    start, end = np.where(sends, rank, peer), np.where(sends, peer, rank)
    rooted = np.isin(instances.coll, ROOTED)
    matrices, matrix = part_matrices(graph, instances, sizes_of(graph, instances))
    kinds, of = unique_rows(
        instances.coll.astype(np.int64),
        np.where(pair, start, instances.group),
        np.where(pair, end, np.where(rooted, np.maximum(peer, -1), -1)),
        matrix,
    )
    example = np.zeros(len(kinds), dtype=np.int64)
    example[of[::-1]] = np.arange(len(of))[::-1]

    found = Operations([], [], [], [], of)
    members: dict[int, Int] = {}
    for (coll, group, root, parts), i in zip(kinds.tolist(), example.tolist(), strict=True):
        found.coll.append(Collective(coll))
        found.weights.append(matrices[parts] if parts >= 0 else None)
        if coll == Collective.SEND_RECV:
            ends = np.array([group, root] if group != root else [group])
            placement.domains_of(ends)
            found.members.append(ends)
            found.root.append(None)
            continue
        if group not in members:
            members[group] = _members(graph, placement, group)
        found.members.append(members[group])
        found.root.append(_root(graph, instances, i, members[group], root))
    return found


def sizes_of(graph: ExecutionGraph, instances: Instances) -> Int:
    """Input bytes of one rank, by which instances are priced; 0 where it is unknown."""
    size = np.maximum(instances.size_bytes, 0)
    uneven = np.flatnonzero(instances.coll == Collective.ALL_TO_ALL)
    if len(uneven):
        largest = np.maximum.reduceat(graph.size_bytes[instances.node], instances.ptr[:-1])
        size[uneven] = np.maximum(largest[uneven], size[uneven])
    return size


def unique_rows(*columns: Int) -> tuple[Int, Int]:
    """Tell rows of integers apart, each at least -1; faster than `numpy.unique` along an axis.

    Returns
    -------
    rows : int64, shape (K, C)
        The different rows.
    index : int64, shape (I,)
        Which of them each row is.
    """
    index = np.zeros(len(columns[0]), dtype=np.int64)
    rows = np.zeros((min(len(index), 1), 0), dtype=np.int64)
    for column in columns:
        values, number = np.unique(column, return_inverse=True)
        code = index * max(len(values), 1) + number.reshape(-1)
        kinds, index = np.unique(code, return_inverse=True)
        index = index.reshape(-1)
        rows = np.column_stack([rows[kinds // max(len(values), 1)], values[kinds % len(values)]])
    return rows, index


def _members(graph: ExecutionGraph, placement: Placement, group: int) -> Int:
    ranks = np.array(graph.groups[group].ranks, dtype=np.int64)
    try:
        placement.domains_of(ranks)
    except GraphError as error:
        place = f"group {graph.groups[group].name}"
        raise GraphError(error.message, rank=error.rank, place=place) from error
    return ranks


def _root(
    graph: ExecutionGraph, instances: Instances, index: int, members: Int, root: int
) -> int | None:
    if root < 0:
        return None
    found = np.flatnonzero(members == root)
    if not len(found):
        raise GraphError(
            f"the root {root} of {label_of(instances, index)} is not in its group",
            rank=int(graph.ranks[graph.rank_index[instances.node[instances.ptr[index]]]]),
            place=place_of(graph, instances, index),
        )
    return int(found[0])


def label_of(instances: Instances, index: int | np.int64) -> str:
    """What an instance is, in the words of tables and files."""
    return Collective(instances.coll[index]).label


def group_of(graph: ExecutionGraph, instances: Instances, index: int | np.int64) -> str:
    """Name of the group of an instance."""
    group = int(instances.group[index])
    return graph.groups[group].name if group >= 0 else "(none)"


def place_of(graph: ExecutionGraph, instances: Instances, index: int | np.int64) -> str:
    """Where an instance is, for an error."""
    seq = int(graph.seq[instances.node[instances.ptr[index]]])
    return f"group {group_of(graph, instances, index)}, sequence number {seq}"
