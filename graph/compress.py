"""Contract chains of nodes, so that a simulation visits few nodes and still knows every part.

Two nodes become one where nothing else can tell them apart: the second depends on the first
alone and nothing else depends on the first. The contracted node keeps its ordered parts, each
with its kind and its nanoseconds, so scaling, time categories and the identity of the measured
replay stay exact, and the interval of every original node can be rebuilt. A graph that is not
compressed takes the same form, with one part per node (`uncompressed`).

Both functions validate the graph first, so whoever holds a `CompressedGraph` holds a sound one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .columns import EdgeKind, Flavour, Instances, Kind, collect_instances
from .steps import device_work
from .validate import validate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .columns import ExecutionGraph

#: Columns that a contracted node has from the last member of its chain.
_FROM_LAST = (
    "kind",
    "flavour",
    "lane",
    "name",
    "step",
    "coll",
    "size_bytes",
    "group",
    "seq",
    "peer",
    "tag",
    "instance",
    "transfer_ns",
    "tail_ns",
    "eager",
    "dtype",
    "split",
)

#: Kind of a part that is the lag of a dependency inside a chain; the other kinds are flavours.
LAG = 5

#: How many kinds of parts there are: the flavours and `LAG`.
NUM_PART_KINDS = 6


@dataclass(frozen=True, eq=False)
class CompressedGraph:
    """A graph whose chains are contracted (M nodes made of P parts, from N original nodes).

    A node that stands for a chain has the dependencies and the gap of its first member and the
    lane, name and flavour of its last; its parts are what happens from its start to its end, one
    after the other. Communication nodes have no parts.

    Attributes
    ----------
    graph : ExecutionGraph
        The graph of contracted nodes; `dur_ns` is the sum of the parts.
    original : ExecutionGraph
        The graph before.
    part_ptr : int64, shape (M + 1,)
        Parts of node i are ``part_ptr[i]:part_ptr[i + 1]``.
    part_kind : int8, shape (P,)
        A `Flavour`, or `LAG`. Lags and gaps that end up inside a node are never scaled.
    part_ns : int64, shape (P,)
        Measured duration of the part.
    node_of : int64, shape (N,)
        Contracted node that an original node became part of.
    part_of : int64, shape (N,)
        The part that is the duration of an original node; -1 for communication.
    """

    graph: ExecutionGraph
    original: ExecutionGraph
    part_ptr: NDArray[np.int64]
    part_kind: NDArray[np.int8]
    part_ns: NDArray[np.int64]
    node_of: NDArray[np.int64]
    part_of: NDArray[np.int64]

    @property
    def ratio(self) -> float:
        """Original nodes per contracted node (1.0 for an empty graph)."""
        return len(self.node_of) / self.graph.num_nodes if self.graph.num_nodes else 1.0

    @cached_property
    def instances(self) -> Instances:
        """The operations that join ranks, with contracted nodes as members."""
        return collect_instances(self.graph)


def compress(graph: ExecutionGraph) -> CompressedGraph:
    """Contract the chains of a graph.

    Node b joins node a when both are computation of one rank and step, b's only dependency is
    the end of a, and b is all that depends on a. Left alone are step markers, nodes of queues
    with several servers (they hold a server), nodes on whose start another one depends, and host
    work after device work (whose end must stay visible to `steps.step_completions`).

    Parameters
    ----------
    graph : ExecutionGraph
        Any graph.

    Returns
    -------
    CompressedGraph

    Raises
    ------
    GraphError
        If `validate` finds the graph unsound.
    """
    validate(graph)
    return _contract(graph, _predecessor_in_chain(graph))


def uncompressed(graph: ExecutionGraph) -> CompressedGraph:
    """Give a graph the form of a compressed one without contracting anything.

    Raises
    ------
    GraphError
        If `validate` finds the graph unsound.
    """
    validate(graph)
    return _contract(graph, np.full(graph.num_nodes, -1, dtype=np.int64))


def _predecessor_in_chain(graph: ExecutionGraph) -> NDArray[np.int64]:
    """Find the node that each node joins, or -1, shape (N,)."""
    joined = np.full(graph.num_nodes, -1, dtype=np.int64)
    second = np.flatnonzero(np.diff(graph.dep_ptr) == 1)
    edge = graph.dep_ptr[second]
    first = graph.dep_node[edge]

    dependents = np.bincount(graph.dep_node, minlength=graph.num_nodes)
    by_start = graph.dep_node[graph.dep_kind == EdgeKind.START]
    single = (graph.lanes.servers[graph.lane] == 1) & (graph.kind == Kind.COMP)
    single[graph.steps.marker.reshape(-1)] = False
    start_seen = np.zeros(graph.num_nodes, dtype=np.bool_)
    start_seen[by_start] = True
    device = device_work(graph)

    chained = (
        (graph.dep_kind[edge] == EdgeKind.END)
        & (dependents[first] == 1)
        & single[first]
        & single[second]
        & ~start_seen[second]
        & (graph.step[first] == graph.step[second])
        & (device[second] | ~device[first])
    )
    joined[second[chained]] = first[chained]
    return joined


def _contract(graph: ExecutionGraph, joined: NDArray[np.int64]) -> CompressedGraph:
    inside = joined >= 0
    # A chain is in node order, so following predecessors finds its head; doubling the stride
    # each time takes the logarithm of the longest chain.
    head = np.where(inside, joined, np.arange(graph.num_nodes))
    while not np.array_equal(head, further := head[head]):
        head = further
    node_of = (np.cumsum(~inside) - 1)[head]
    first = np.flatnonzero(~inside)

    in_chains = np.argsort(node_of, kind="stable")
    chain_ptr = np.searchsorted(node_of[in_chains], np.arange(len(first) + 1))
    last = in_chains[chain_ptr[1:] - 1]
    parts = _Parts(graph, inside, in_chains)
    part_ptr = parts.ptr[chain_ptr]
    length = np.add.reduceat(np.append(parts.ns, 0), part_ptr[:-1]) if len(first) else parts.ns

    counts = np.diff(graph.dep_ptr)[first]
    dep_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    kept = np.arange(dep_ptr[-1]) + np.repeat(graph.dep_ptr[first] - dep_ptr[:-1], counts)
    contracted = graph.with_(
        rank_ptr=np.searchsorted(first, graph.rank_ptr).astype(np.int64),
        dep_ptr=dep_ptr,
        dep_node=node_of[graph.dep_node[kept]],
        dep_kind=graph.dep_kind[kept],
        dep_lag_ns=graph.dep_lag_ns[kept],
        start_ns=graph.start_ns[first],
        gap_ns=graph.gap_ns[first],
        dur_ns=np.where(np.diff(part_ptr) > 0, length, graph.dur_ns[first]),
        steps=replace(graph.steps, marker=node_of[graph.steps.marker]),
        **{column: getattr(graph, column)[last] for column in _FROM_LAST},
    )
    return CompressedGraph(
        graph=contracted,
        original=graph,
        part_ptr=part_ptr,
        part_kind=parts.kind,
        part_ns=parts.ns,
        node_of=node_of,
        part_of=parts.of,
    )


class _Parts:
    """The parts of all nodes, with the nodes in the order given."""

    def __init__(
        self, graph: ExecutionGraph, inside: NDArray[np.bool_], order: NDArray[np.int64]
    ) -> None:
        computes = graph.kind == Kind.COMP
        lag = np.zeros(graph.num_nodes, dtype=np.int64)
        lag[inside] = graph.dep_lag_ns[graph.dep_ptr[:-1][inside]]
        # Only inside a chain are lag and gap parts; those of its head come before its start.
        has_lag = inside & (lag > 0)
        has_gap = inside & (graph.gap_ns > 0)
        counts = has_lag.astype(np.int64) + has_gap + computes
        self.ptr = np.concatenate([[0], np.cumsum(counts[order])]).astype(np.int64)
        at = np.empty(graph.num_nodes, dtype=np.int64)
        at[order] = self.ptr[:-1]
        self.kind = np.empty(self.ptr[-1], dtype=np.int8)
        self.ns = np.empty(self.ptr[-1], dtype=np.int64)
        for chosen, kind, ns in (
            (has_lag, LAG, lag),
            (has_gap, Flavour.GAP, graph.gap_ns),
            (computes, graph.flavour, graph.dur_ns),
        ):
            self.kind[at[chosen]] = kind[chosen] if isinstance(kind, np.ndarray) else kind
            self.ns[at[chosen]] = ns[chosen]
            at[chosen] += 1
        self.of = np.where(computes, at - 1, -1)
