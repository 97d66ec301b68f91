"""Find what would make a graph hang or lie, before anything simulates it.

Every fault is one `GraphError` that names the rank, the node, and for communication the group,
the peer and the position. What is merely unusual (a collective whose members were not matched,
an unknown size) is no fault here: the converters report it, and the simulator says what it does
about it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..base.errors import GraphError
from .columns import SYMMETRIC, Collective, EdgeKind, Flavour, Kind, collect_instances

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .columns import ExecutionGraph, Instances

#: Every member waits for all others; the release rules are those of `Collective`.
_ALL = frozenset({*SYMMETRIC, Collective.SEND_RECV})
_TO_ROOT = frozenset({Collective.REDUCE, Collective.GATHER})
_FROM_ROOT = frozenset({Collective.BROADCAST, Collective.SCATTER})

# Uneven shards are legal in all-gather, reduce-scatter, all-to-all, gather and scatter.
_SAME_SIZE = (
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.BROADCAST,
    Collective.SEND_RECV,
)

_NODE_COLUMNS = (
    *("kind", "flavour", "lane", "name", "step", "start_ns", "dur_ns", "gap_ns", "coll"),
    *("size_bytes", "group", "seq", "peer", "tag", "instance", "transfer_ns", "tail_ns", "eager"),
    *("dtype", "split"),
)


def validate(graph: ExecutionGraph) -> None:
    """Check that a graph is sound.

    Raises
    ------
    GraphError
        For columns of unequal length, indices out of range, negative times, dependencies that
        are not earlier nodes of the same rank, operations that lack a member, have one twice or
        whose members disagree on operation, size, group, root or peer, and operations that wait
        for each other in a circle.
    """
    _check_columns(graph)
    _check_steps(graph)
    _check_nodes(graph)
    _check_dependencies(graph)
    _check_communication(graph)
    _check_splits(graph)
    _check_ids(graph)
    if (graph.instance >= 0).any():
        members = _Members(graph, collect_instances(graph))
        _check_agreement(members)
        _check_pairs(members)
        _check_membership(members)
        _check_roots(members)
        _check_order(members)


def rank_of(graph: ExecutionGraph, node: int) -> int:
    """Global rank number of a node."""
    return int(graph.ranks[np.searchsorted(graph.rank_ptr, node, side="right") - 1])


def describe_node(graph: ExecutionGraph, node: int) -> str:
    """Name a node for an error message: its number and name, and for communication the group."""
    text = f"node {node} {graph.names[graph.name[node]]!r}"
    group = int(graph.group[node])
    if graph.coll[node] != Collective.NONE and 0 <= group < len(graph.groups):
        text += f" (number {graph.seq[node]} in group {graph.groups[group].name!r})"
    return text


def _fail(graph: ExecutionGraph, node: int, message: str) -> NoReturn:
    raise GraphError(message, rank=rank_of(graph, node), place=describe_node(graph, node))


def _refuse(graph: ExecutionGraph, bad: NDArray[np.bool_], message: str) -> None:
    """Raise for the first node that is bad."""
    found = np.flatnonzero(bad)
    if len(found):
        _fail(graph, int(found[0]), message)


def _check_columns(graph: ExecutionGraph) -> None:
    nodes, ranks = graph.num_nodes, graph.num_ranks
    lengths = {name: (len(getattr(graph, name)), nodes) for name in _NODE_COLUMNS}
    lengths |= {
        name: (len(getattr(graph, name)), ranks)
        for name in ("hosts", "devices", "base_ns", "start_offset_ns")
    }
    lengths["rank_ptr"] = (len(graph.rank_ptr), ranks + 1)
    lengths["dep_ptr"] = (len(graph.dep_ptr), nodes + 1)
    lengths["dep_kind"] = (len(graph.dep_kind), len(graph.dep_node))
    lengths["dep_lag_ns"] = (len(graph.dep_lag_ns), len(graph.dep_node))
    for column in fields(graph.lanes):
        lengths[f"lanes.{column.name}"] = (
            len(getattr(graph.lanes, column.name)),
            len(graph.lanes),
        )
    for name, (length, wanted) in lengths.items():
        if length != wanted:
            raise GraphError(f"has {length} entries instead of {wanted}", place=f"column {name}")
    if ranks == 0 or nodes == 0:
        raise GraphError("has no nodes" if ranks else "has no ranks", place="graph")
    if (np.diff(graph.ranks) <= 0).any():
        raise GraphError("ranks are not ascending, or one is there twice", place="column ranks")
    for name, last in (("rank_ptr", nodes), ("dep_ptr", len(graph.dep_node))):
        pointer = getattr(graph, name)
        if pointer[0] != 0 or pointer[-1] != last or (np.diff(pointer) < 0).any():
            raise GraphError(f"does not rise from 0 to {last}", place=f"column {name}")
    if (graph.lanes.servers < 1).any():
        lane = int(np.flatnonzero(graph.lanes.servers < 1)[0])
        raise GraphError("has no servers", place=f"lane {lane}")


def _check_steps(graph: ExecutionGraph) -> None:
    steps = graph.steps
    if len(steps) == 0:
        raise GraphError("has no step", place="graph")
    shape = (len(steps), graph.num_ranks)
    if steps.marker.shape != shape or steps.completion_ns.shape != shape[:1]:
        raise GraphError(f"the tables are not of shape {shape}", place="steps")
    low, high = graph.rank_ptr[:-1], graph.rank_ptr[1:]
    for k, r in np.argwhere((steps.marker < low) | (steps.marker >= high)):
        raise GraphError(
            f"step {steps.names[k]!r} has no marker on this rank", rank=int(graph.ranks[r])
        )


def _check_nodes(graph: ExecutionGraph) -> None:
    for column, low, high in (
        ("kind", 0, len(Kind)),
        ("flavour", 0, len(Flavour)),
        ("lane", 0, len(graph.lanes)),
        ("name", 0, len(graph.names)),
        ("step", -1, len(graph.steps) + 1),
        ("coll", -1, len(Collective) - 1),
        ("dtype", -1, len(graph.names)),
        ("split", -1, len(graph.splits)),
    ):
        values = getattr(graph, column)
        found = np.flatnonzero((values < low) | (values >= high))
        if len(found):
            node = int(found[0])
            raise GraphError(
                f"{column} is {values[node]}, outside {low} to {high - 1}",
                rank=rank_of(graph, node),
                place=f"node {node}",
            )
    _refuse(
        graph,
        graph.lanes.rank[graph.lane] != graph.rank_index,
        "its lane belongs to another rank",
    )
    for column in ("dur_ns", "gap_ns", "tail_ns"):
        _refuse(graph, getattr(graph, column) < 0, f"{column} is negative")
    _refuse(graph, graph.transfer_ns < -1, "transfer_ns is negative")


def _check_splits(graph: ExecutionGraph) -> None:
    """Parts of an all-to-all are one for each member, and together the size."""
    for node in np.flatnonzero(graph.split >= 0).tolist():
        parts = graph.splits[int(graph.split[node])]
        group, size = int(graph.group[node]), int(graph.size_bytes[node])
        if graph.coll[node] != Collective.ALL_TO_ALL:
            _fail(graph, node, "has parts, but is no all-to-all")
        if not 0 <= group < len(graph.groups) or len(parts) != len(graph.groups[group].ranks):
            _fail(graph, node, f"has {len(parts)} parts, not one for each member of its group")
        if min(parts) < 0 or sum(parts) != size:
            _fail(graph, node, f"its parts are {sum(parts)} bytes, not its {size}, or negative")


def _check_dependencies(graph: ExecutionGraph) -> None:
    node = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    first = graph.rank_ptr[:-1][graph.rank_index[node]]
    for bad, message in (
        (graph.dep_node >= node, "depends on a node that is not before it: {}"),
        (graph.dep_node < first, "depends on a node of another rank: {}"),
        (graph.dep_lag_ns < 0, "the lag after its dependency is negative: {}"),
        (~np.isin(graph.dep_kind, list(EdgeKind)), "unknown kind of dependency: {}"),
    ):
        found = np.flatnonzero(bad)
        if len(found):
            edge = int(found[0])
            _fail(graph, int(node[edge]), message.format(f"node {graph.dep_node[edge]}"))


def _check_communication(graph: ExecutionGraph) -> None:
    none, pair = graph.coll == Collective.NONE, graph.coll == Collective.SEND_RECV
    _refuse(
        graph,
        (graph.kind == Kind.COMP) != (graph.flavour != Flavour.COMM),
        "its kind and its flavour disagree on whether it communicates",
    )
    compute, collective = graph.kind == Kind.COMP, graph.kind == Kind.COMM_COLL
    _refuse(graph, compute & (~none | (graph.instance >= 0)), "is computation with a collective")
    _refuse(graph, ~compute & none, "is communication without an operation")
    _refuse(graph, collective & pair, "is a collective whose operation is send and receive")
    _refuse(graph, ~compute & ~collective & ~pair, "is a send or receive with a collective")
    needed = (graph.instance >= 0) & collective
    outside = (graph.group >= len(graph.groups)) | (needed & (graph.group < 0))
    _refuse(graph, ~none & outside, "belongs to no group of the graph")


def _check_ids(graph: ExecutionGraph) -> None:
    if (graph.instance < -1).any():
        _refuse(graph, graph.instance < -1, "instance is negative")
    used = np.bincount(graph.instance[graph.instance >= 0])
    if (used == 0).any():
        raise GraphError(
            "numbers without members; they must run from 0 without holes",
            place=f"instance {int(np.flatnonzero(used == 0)[0])}",
        )


class _Members:
    """The members of all instances with the columns that the checks compare."""

    def __init__(self, graph: ExecutionGraph, instances: Instances) -> None:
        self.graph = graph
        self.ptr = instances.ptr
        self.node = instances.node
        self.count = np.diff(instances.ptr)
        self.instance = np.repeat(np.arange(len(instances)), self.count)
        self.coll = graph.coll[self.node]
        self.rank = graph.ranks[graph.rank_index[self.node]]
        self.first = instances.ptr[:-1][self.instance]
        # A job whose missing ranks are assumed to behave like the traced ones.
        self.complete = graph.coverage.assumed_members == 0

    def refuse(self, bad: NDArray[np.bool_], message: str) -> None:
        """Raise for the first member that is bad, naming the first member of its instance."""
        found = np.flatnonzero(bad)
        if len(found):
            at = int(found[0])
            other = int(self.first[at])
            _fail(
                self.graph,
                int(self.node[at]),
                message.format(other=f"rank {self.rank[other]} {self._short(other)}"),
            )

    def _short(self, member: int) -> str:
        return describe_node(self.graph, int(self.node[member]))


def _check_agreement(members: _Members) -> None:
    graph, node = members.graph, members.node
    for column, message in (
        ("coll", "is not the operation of {other}, which it is joined with"),
        ("group", "is not in the group of {other}, which it is joined with"),
    ):
        values = getattr(graph, column)[node]
        members.refuse(values != values[members.first], message)
    sizes = graph.size_bytes[node]
    # Only the root of a broadcast has an input of its own; others may say 0.
    known = np.where(members.coll == Collective.BROADCAST, sizes > 0, sizes >= 0)
    largest = np.maximum.reduceat(np.where(known, sizes, -1), members.ptr[:-1])[members.instance]
    comparable = np.isin(members.coll, _SAME_SIZE) & known
    members.refuse(
        comparable & (sizes != largest),
        "moves another number of bytes than the other members, among them {other}",
    )
    twice = np.zeros(len(node), dtype=np.bool_)
    twice[1:] = (members.rank[1:] == members.rank[:-1]) & (
        members.instance[1:] == members.instance[:-1]
    )
    members.refuse(
        twice & (members.coll != Collective.SEND_RECV),
        "is the second part of this rank in one operation, with {other}",
    )


def _check_pairs(members: _Members) -> None:
    graph = members.graph
    pair = np.flatnonzero(members.coll == Collective.SEND_RECV)
    count = members.count[members.instance[pair]]
    peer = graph.peer[members.node[pair]]
    alone = (count == 1) & ~np.isin(peer, graph.ranks) & (not members.complete)
    for at in pair[(count != 2) & ~alone]:
        node = int(members.node[at])
        _fail(
            graph,
            node,
            f"a {Kind(graph.kind[node]).name.lower()} with rank {graph.peer[node]} is joined with "
            f"{members.count[members.instance[at]] - 1} others instead of 1",
        )
    pair = pair[~alone]
    peer = graph.peer[members.node[pair]]
    other = 2 * members.first[pair] + 1 - pair
    same = graph.kind[members.node[pair]] == graph.kind[members.node[other]]
    for i in np.flatnonzero(same | (peer != members.rank[other])):
        node = int(members.node[pair[i]])
        _fail(
            graph,
            node,
            f"a {Kind(graph.kind[node]).name.lower()} with rank {peer[i]} is joined with "
            f"rank {members.rank[other[i]]} {describe_node(graph, int(members.node[other[i]]))}",
        )


def _check_membership(members: _Members) -> None:
    graph = members.graph
    collective = members.coll != Collective.SEND_RECV
    if not collective.any():  # pairs need no group
        return
    width = int(max(graph.ranks.max(), *(max(g.ranks, default=0) for g in graph.groups), 0)) + 1
    needed = [
        [r for r in group.ranks if members.complete or r in graph.ranks] for group in graph.groups
    ]
    keys = np.array([g * width + r for g, ranks in enumerate(needed) for r in ranks], np.int64)
    group = graph.group[members.node].astype(np.int64)
    members.refuse(
        collective & ~np.isin(group * width + members.rank, keys),
        "the rank is no member of the group",
    )
    wanted = np.array([len(ranks) for ranks in needed])[group]
    short = np.flatnonzero(collective & (members.count[members.instance] < wanted))
    if len(short):
        at = int(short[0])
        there = set(members.rank[members.instance == members.instance[at]].tolist())
        missing = next(r for r in needed[int(group[at])] if r not in there)
        node = int(members.node[at])
        raise GraphError(
            f"has no part in {Collective(members.coll[at]).label} number {graph.seq[node]} of "
            f"group {graph.groups[int(group[at])].name!r}, which rank {members.rank[at]} waits in "
            f"({describe_node(graph, node)})",
            rank=missing,
        )


def _check_roots(members: _Members) -> None:
    graph = members.graph
    rooted = np.isin(members.coll, [*_TO_ROOT, *_FROM_ROOT])
    root = graph.peer[members.node]
    members.refuse(rooted & (root < 0), "the root is not known")
    members.refuse(rooted & (root != root[members.first]), "has another root than {other}")
    for at in np.flatnonzero(rooted & (np.arange(len(root)) == members.first)):
        node = int(members.node[at])
        group = graph.groups[graph.group[node]]
        if int(root[at]) not in group.ranks:
            _fail(graph, node, f"its root, rank {root[at]}, is no member of the group")


def _check_order(members: _Members) -> None:
    """Refuse operations that wait for each other in a circle.

    A vertex stands for the start of each node, one more for the end of each communication node
    and one for each instance; an edge says what must happen first. Any strongly connected
    component of more than one vertex is a circle.
    """
    # SciPy is slow to import and no use to a reader of a graph.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    first, then = _happens_before(members)
    size = int(max(first.max(), then.max())) + 1
    count, label = connected_components(
        csr_array((np.ones(len(first), np.int8), (first, then)), shape=(size, size)),
        directed=True,
        connection="strong",
    )
    if count == size:
        return
    largest = np.bincount(label)
    inside = label == np.flatnonzero(largest > 1)[0]
    kept = inside[first] & inside[then]
    before = dict(zip(then[kept].tolist(), first[kept].tolist(), strict=True))
    vertex = int(then[kept][0])
    walk: dict[int, int] = {}
    while vertex not in walk:
        walk[vertex] = len(walk)
        vertex = before[vertex]
    _fail_circle(members, list(walk)[walk[vertex] :][::-1])


def _fail_circle(members: _Members, circle: list[int]) -> NoReturn:
    graph = members.graph
    starts = {int(node) for node in members.node}
    ends = {graph.num_nodes + i: int(node) for i, node in enumerate(members.node)}
    nodes: list[int] = []
    for vertex in circle:
        node = ends.get(vertex, vertex)
        if node in starts and (not nodes or nodes[-1] != node):
            nodes.append(node)
    if len(nodes) > 1 and nodes[0] == nodes[-1]:
        nodes.pop()
    text = ", then ".join(f"rank {rank_of(graph, n)} {describe_node(graph, n)}" for n in nodes)
    raise GraphError(
        f"operations wait for each other in a circle; each can only go on after the one before "
        f"it: {text}, then the first again. The ranks run them in different orders",
        rank=rank_of(graph, nodes[0]),
        place=describe_node(graph, nodes[0]),
    )


def _happens_before(members: _Members) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    graph = members.graph
    size = graph.num_nodes
    member = np.arange(len(members.node))
    end = np.arange(size)
    end[members.node] = size + member
    hub = size + len(member) + members.instance

    dependent = np.repeat(np.arange(size), np.diff(graph.dep_ptr))
    by_end = graph.dep_kind == EdgeKind.END
    is_root = graph.peer[members.node] == members.rank
    needs_all = np.isin(members.coll, list(_ALL)) & ~(
        graph.eager[members.node] & (graph.kind[members.node] == Kind.SEND)
    )
    needs_all |= np.isin(members.coll, list(_TO_ROOT)) & is_root
    # In a broadcast or scatter the hub is the arrival of the root alone.
    from_root = np.isin(members.coll, list(_FROM_ROOT))
    to_hub = ~from_root | is_root
    from_hub = needs_all | (from_root & ~is_root)
    edges = [
        (np.where(by_end, end[graph.dep_node], graph.dep_node), dependent),
        (members.node, end[members.node]),
        (members.node[to_hub], hub[to_hub]),
        (hub[from_hub], end[members.node[from_hub]]),
        _queue_order(graph),
    ]
    return (
        np.concatenate([edge[0] for edge in edges]),
        np.concatenate([edge[1] for edge in edges]),
    )


def _queue_order(graph: ExecutionGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Nodes of a queue with several servers start in order."""
    queued = np.flatnonzero(graph.lanes.servers[graph.lane] > 1)
    queued = queued[np.argsort(graph.lane[queued], kind="stable")]
    follows = graph.lane[queued[1:]] == graph.lane[queued[:-1]]
    return queued[:-1][follows], queued[1:][follows]
