"""A rank's graph as a networkx graph, for inspection and to put cycles into words.

Nothing here is used to simulate. networkx is imported when a function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import UsageError
from .columns import Collective, EdgeKind, Flavour, Kind, LaneKind

if TYPE_CHECKING:
    import networkx as nx

    from .columns import ExecutionGraph


def to_networkx(graph: ExecutionGraph, rank: int) -> nx.DiGraph[int]:
    """Give the nodes and dependencies of one rank.

    Parameters
    ----------
    graph : ExecutionGraph
    rank : int
        Global rank number.

    Returns
    -------
    networkx.DiGraph
        Keys are node numbers of `graph`. Node attributes: `name`, `kind`, `flavour` (lower
        case), `lane` (for example ``stream 7``), `step` (its name, or None), `start_ns`,
        `dur_ns`, `gap_ns`, and for communication `coll`, `size_bytes`, `group`, `seq`, `peer`,
        `tag`, `instance`, `transfer_ns`, `tail_ns`, `eager`, `dtype`, `split`. Edges point from the
        dependency to the node that waits for it, with `kind` (``end`` or ``start``) and `lag_ns`;
        of two between the same nodes, the one that binds in the measured timeline.

    Raises
    ------
    UsageError
        If the graph does not hold the rank.
    """
    import networkx as nx

    matches = np.flatnonzero(graph.ranks == rank)
    if not len(matches):
        raise UsageError(f"no such rank; the graph has {graph.ranks.tolist()}", rank=rank)
    first, last = graph.rank_ptr[matches[0] : matches[0] + 2].tolist()
    result: nx.DiGraph[int] = nx.DiGraph(rank=rank)
    for node in range(first, last):
        lane = int(graph.lane[node])
        step = int(graph.step[node])
        result.add_node(
            node,
            name=graph.names[graph.name[node]],
            kind=Kind(int(graph.kind[node])).name.lower(),
            flavour=Flavour(int(graph.flavour[node])).name.lower(),
            lane=f"{LaneKind(int(graph.lanes.kind[lane])).name.lower()} {graph.lanes.number[lane]}",
            step=graph.steps.names[step] if 0 <= step < len(graph.steps) else None,
            start_ns=int(graph.start_ns[node]),
            dur_ns=int(graph.dur_ns[node]),
            gap_ns=int(graph.gap_ns[node]),
        )
        if graph.kind[node] != Kind.COMP:
            group = int(graph.group[node])
            result.nodes[node].update(
                coll=Collective(int(graph.coll[node])).label,
                group=graph.groups[group].name if group >= 0 else None,
                size_bytes=int(graph.size_bytes[node]),
                seq=int(graph.seq[node]),
                peer=int(graph.peer[node]),
                tag=int(graph.tag[node]),
                instance=int(graph.instance[node]),
                transfer_ns=int(graph.transfer_ns[node]),
                tail_ns=int(graph.tail_ns[node]),
                eager=bool(graph.eager[node]),
                dtype=graph.data_type(node),
                split=graph.split_of(node),
            )
        binding: dict[int, int] = {}
        for edge in range(int(graph.dep_ptr[node]), int(graph.dep_ptr[node + 1])):
            dep, lag = int(graph.dep_node[edge]), int(graph.dep_lag_ns[edge])
            kind = EdgeKind(int(graph.dep_kind[edge]))
            moment = int(graph.start_ns[dep]) + lag
            if kind == EdgeKind.END:
                moment += int(graph.dur_ns[dep])
            if moment >= binding.get(dep, moment):
                binding[dep] = moment
                result.add_edge(dep, node, kind=kind.name.lower(), lag_ns=lag)
    return result


def describe_cycle(digraph: nx.DiGraph[int]) -> str | None:
    """Put one cycle into words, ``node 3 (a) -> node 7 (b) -> node 3 (a)``, or None.

    Parameters
    ----------
    digraph : networkx.DiGraph
        Nodes may have a `name`, of which 60 characters are given.
    """
    import networkx as nx

    try:
        cycle = nx.find_cycle(digraph)
    except nx.NetworkXNoCycle:
        return None
    nodes = [edge[0] for edge in cycle]
    words = [f"node {node} ({digraph.nodes[node].get('name', '')[:60]})" for node in nodes]
    return " -> ".join([*words, words[0]])


def name_cycle(graph: ExecutionGraph, rank: int) -> str | None:
    """Put one cycle among the dependencies of a rank into words, or None where there is none.

    A graph of ours is in topological order and has none; this is for graphs made by hand.
    """
    return describe_cycle(to_networkx(graph, rank))
