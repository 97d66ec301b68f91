"""Kinds of communication: operations of one type and size in one group, or between two ranks.

A job repeats few kinds many times, and people ask about the kind. What an operation costs is in
`pricing`, what it costs the ranks that take part in `exposure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Collective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..graph.compress import CompressedGraph

    Int = NDArray[np.int64]


@dataclass(frozen=True)
class CommunicationKinds:
    """The kinds of communication of a graph (K of them, in G groups; M compressed nodes).

    Attributes
    ----------
    of_node : int64, shape (M,)
        Kind of every node; -1 where it does not communicate.
    types : tuple of str, length K
        ``all-reduce``, ..., ``send-recv``.
    sizes : tuple of (int or None), length K
        Input bytes of a rank, where the trace says.
    group_of : int64, shape (K,)
        Index into `groups`.
    groups : tuple of str, length G
        Names of the process groups; of sends and receives the two ranks.
    """

    of_node: Int
    types: tuple[str, ...]
    sizes: tuple[int | None, ...]
    group_of: Int
    groups: tuple[str, ...]


def communication_kinds(compressed: CompressedGraph) -> CommunicationKinds:
    """Tell the kinds of communication of a graph apart."""
    graph = compressed.graph
    nodes = np.flatnonzero(graph.coll != Collective.NONE)
    instance = graph.instance[nodes]
    size = graph.size_bytes[nodes].copy()
    size[instance >= 0] = compressed.instances.size_bytes[instance[instance >= 0]]
    pair = graph.coll[nodes] == Collective.SEND_RECV
    ranks = np.stack([graph.ranks[graph.rank_index[nodes]], graph.peer[nodes].astype(np.int64)])
    where = np.stack(
        [
            np.where(pair, -1, graph.group[nodes]),
            np.where(pair, ranks.min(axis=0), -1),
            np.where(pair, ranks.max(axis=0), -1),
        ],
        axis=1,
    )
    groups, group = np.unique(where, axis=0, return_inverse=True)
    rows = np.stack([group.reshape(-1), graph.coll[nodes], size], axis=1)
    kinds, kind = np.unique(rows, axis=0, return_inverse=True)
    of_node = np.full(graph.num_nodes, -1, dtype=np.int64)
    of_node[nodes] = kind.reshape(-1)
    return CommunicationKinds(
        of_node=of_node,
        types=tuple(Collective(coll).label for coll in kinds[:, 1].tolist()),
        sizes=tuple(bytes_ if bytes_ >= 0 else None for bytes_ in kinds[:, 2].tolist()),
        group_of=kinds[:, 0].astype(np.int64),
        groups=tuple(_group_name(graph, *row) for row in groups.tolist()),
    )


def _group_name(graph: ExecutionGraph, group: int, low: int, high: int) -> str:
    if group >= 0:
        return graph.groups[group].name
    return "(none)" if high < 0 else f"{low} and {high}"
