"""What other tools must see of a graph, above all ASTRA-sim.

ASTRA-sim knows five collectives, one size per collective, and one communication slot per rank
that holds a single collective or send at a time; it stalls silently on whatever does not fit.
This module decides, before anything is written, which type, size and tag each communication
node shows, which nodes cannot be simulated there and are shown as computation, and in which
order the slot of every rank takes them. The exact values travel beside (`chakra_format`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import GraphError
from .columns import Collective, EdgeKind, Kind, collect_instances
from .validate import describe_node, rank_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .columns import ExecutionGraph, Instances

#: Collectives that ASTRA-sim aborts on, and what stands for them. Each has the bandwidth term of
#: a ring or direct form of the original: reduce S/B and reduce-scatter (n-1)/n S/B; gather and
#: all-gather (n-1) S/B; scatter of parts S, (n-1) S/B, and reduce-scatter of an input of n S.
SUBSTITUTES = {
    Collective.BARRIER: Collective.ALL_REDUCE,
    Collective.REDUCE: Collective.REDUCE_SCATTER,
    Collective.GATHER: Collective.ALL_GATHER,
    Collective.SCATTER: Collective.REDUCE_SCATTER,
    Collective.REDUCE_SCATTER_BLOCK: Collective.REDUCE_SCATTER,
}

#: Bytes shown where the size is unknown or zero, which aborts ASTRA-sim or stalls it.
LEAST_BYTES = 1

#: The same for an all-gather: ASTRA-sim runs for ever on one of fewer bytes than its
#: `preferred-dataset-splits`, for which more than 64 is not usual.
LEAST_ALL_GATHER_BYTES = 64

#: Operations of one size for all members; some may not know it, and only the root of a broadcast
#: has an input of its own.
_EQUAL = (
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.BROADCAST,
    Collective.SEND_RECV,
)

_ROOTED = (Collective.REDUCE, Collective.GATHER, Collective.SCATTER)

#: ASTRA-sim takes tags modulo this number.
TAGS = 500_000_000


@dataclass(frozen=True)
class ExportPlan:
    """Standard view of the communication nodes (of length N unless said otherwise).

    Attributes
    ----------
    joined : bool
        Communication nodes that other tools can simulate; the others are shown as computation.
    comm_type, comm_size, comm_tag : int64
        Values of the standard attributes where `joined`.
    slot_after : int64
        The communication node of the same rank that must have run before, or -1.
    wait_ptr : int64, shape (N + 1,)
    wait_node : int64
        Nodes that must have ended before node i starts are ``wait_node[wait_ptr[i]:wait_ptr[i +
        1]]``: its dependencies, those on a start replaced by whatever that start waits for.
    order : int64
        Nodes in the order of the files, rank by rank.
    notes : dict of int to str
        What the standard attributes of a node simplify.
    warnings : list of str
        The same for the reader of a summary.
    """

    joined: NDArray[np.bool_]
    comm_type: NDArray[np.int64]
    comm_size: NDArray[np.int64]
    comm_tag: NDArray[np.int64]
    slot_after: NDArray[np.int64]
    wait_ptr: NDArray[np.int64]
    wait_node: NDArray[np.int64]
    order: NDArray[np.int64]
    notes: dict[int, str]
    warnings: list[str]


def plan_export(graph: ExecutionGraph) -> ExportPlan:
    """Decide what other tools see of the communication of a graph.

    Parameters
    ----------
    graph : ExecutionGraph
        A graph that `validate` accepts.

    Returns
    -------
    ExportPlan

    Raises
    ------
    GraphError
        If the graph has a cycle across its ranks.
    """
    count = graph.num_nodes
    joined = np.zeros(count, np.bool_)
    comm_type = np.zeros(count, np.int64)
    comm_size = np.zeros(count, np.int64)
    comm_tag = np.zeros(count, np.int64)
    notes: dict[int, str] = {}
    instances = collect_instances(graph)
    present = _present_members(graph)
    rank = graph.ranks[graph.rank_index]
    for i in range(len(instances)):
        nodes = instances.node[instances.ptr[i] : instances.ptr[i + 1]]
        if not _joinable(graph, nodes, set(rank[nodes].tolist()), present):
            continue
        joined[nodes] = True
        coll = Collective(int(instances.coll[i]))
        shown, size, remark = _shown(coll, _size(graph, instances, i), len(nodes))
        comm_type[nodes] = shown
        comm_size[nodes] = size
        comm_tag[nodes] = i % TAGS
        if remark is None and coll not in _EQUAL and np.ptp(graph.size_bytes[nodes]):
            remark = f"members of one {coll.label} differ in size: their mean stands for all"
        if remark is None and (graph.split[nodes] >= 0).any():
            remark = f"{coll.label} of unequal parts shown as one of equal parts"
        if remark is not None:
            notes.update(dict.fromkeys(nodes.tolist(), remark))
    alone = np.flatnonzero((graph.kind != Kind.COMP) & ~joined)
    remark = "not all members are in these files: shown as computation of its measured duration"
    notes.update(dict.fromkeys(alone.tolist(), remark))
    waits = _completions_waited_for(graph)
    try:
        slot_after = _slot_order(graph, instances, joined, comm_type, *waits)
    except GraphError:
        # Whoever need not wait in a rooted collective waits in what stands for it, which may
        # close a circle. ASTRA-sim replays broadcasts by duration, without waiting.
        rooted = np.flatnonzero(joined & np.isin(graph.coll, _ROOTED))
        if not len(rooted):
            raise
        comm_type[rooted] = Collective.BROADCAST
        remark = "reduce, gather or scatter shown as broadcast of its measured duration"
        notes.update(dict.fromkeys(rooted.tolist(), remark))
        slot_after = _slot_order(graph, instances, joined, comm_type, *waits)
    warnings = [f"{number} nodes: {remark}" for remark, number in Counter(notes.values()).items()]
    if graph.world_size > graph.num_ranks:
        warnings.append(
            f"the job has {graph.world_size} ranks and these files {graph.num_ranks}: other tools "
            "see a smaller job"
        )
    return ExportPlan(
        joined=joined,
        comm_type=comm_type,
        comm_size=comm_size,
        comm_tag=comm_tag,
        slot_after=slot_after,
        wait_ptr=waits[0],
        wait_node=waits[1],
        order=_file_order(graph, *waits, slot_after),
        notes=notes,
        warnings=warnings,
    )


def _present_members(graph: ExecutionGraph) -> list[set[int]]:
    traced = set(graph.ranks.tolist())
    return [traced.intersection(group.ranks) for group in graph.groups]


def _joinable(
    graph: ExecutionGraph, nodes: NDArray[np.int64], ranks: set[int], present: list[set[int]]
) -> bool:
    """Whether an instance has two members or more, and all that the files can have."""
    if len(ranks) < 2:
        return False
    collective = graph.kind[nodes[0]] == Kind.COMM_COLL
    return not collective or ranks == present[graph.group[nodes[0]]]


def _size(graph: ExecutionGraph, instances: Instances, i: int) -> int:
    """Bytes per rank of an instance: what any member knows where all must be equal."""
    if instances.coll[i] in _EQUAL:
        members = instances.node[instances.ptr[i] : instances.ptr[i + 1]]
        return int(graph.size_bytes[members].max())
    return int(instances.size_bytes[i])


def _shown(coll: Collective, size: int, members: int) -> tuple[Collective, int, str | None]:
    """Type and size that ASTRA-sim accepts, and what they simplify."""
    if coll == Collective.BARRIER:
        return SUBSTITUTES[coll], LEAST_BYTES, "barrier shown as all-reduce of 1 byte"
    shown = SUBSTITUTES.get(coll, coll)
    if size > 0:
        if shown == coll:
            return coll, size, None
        factor = members if coll == Collective.SCATTER else 1
        return shown, size * factor, f"{coll.label} shown as {shown.label}"
    least = LEAST_ALL_GATHER_BYTES if shown == Collective.ALL_GATHER else LEAST_BYTES
    what = "size unknown" if size < 0 else "zero bytes"
    return shown, least, f"{coll.label} ({what}) shown as {shown.label} of {least} bytes"


def _slot_order(
    graph: ExecutionGraph,
    instances: Instances,
    joined: NDArray[np.bool_],
    comm_type: NDArray[np.int64],
    wait_ptr: NDArray[np.int64],
    wait_node: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Chain what the communication slot of each rank takes, in one order of the whole job.

    The order is a topological one of the graph in which the members of a collective are one
    node, by measured release where dependencies leave a choice and by instance where that ties.
    Because every rank follows the same order, none can hold its slot for a collective that
    waits for another rank whose slot waits for the first. Broadcasts are members of their own:
    ASTRA-sim replays them without the other ranks.
    """
    unit = np.arange(graph.num_nodes)
    release = graph.start_ns.copy()
    messages = []
    for i in range(len(instances)):
        nodes = instances.node[instances.ptr[i] : instances.ptr[i + 1]]
        if not joined[nodes[0]]:
            continue
        if instances.coll[i] == Collective.SEND_RECV:
            sent = graph.kind[nodes] == Kind.SEND
            messages.append((int(nodes[sent][0]), int(nodes[~sent][0])))
        elif comm_type[nodes[0]] != Collective.BROADCAST:
            unit[nodes] = nodes[0]
            release[nodes[0]] = graph.start_ns[nodes].max()
    pairs = np.array(messages, np.int64).reshape(-1, 2)
    before = np.concatenate([wait_node, pairs[:, 0]])
    after = np.concatenate([np.repeat(np.arange(graph.num_nodes), np.diff(wait_ptr)), pairs[:, 1]])
    queued = joined & (graph.kind != Kind.RECV)
    order = _joint_order(graph, unit[before], unit[after], unit, queued, release)
    members: dict[int, list[int]] = {}
    for node in np.flatnonzero(queued).tolist():
        members.setdefault(int(unit[node]), []).append(node)
    slot_after = np.full(graph.num_nodes, -1, np.int64)
    rank = graph.rank_index
    last = [-1] * graph.num_ranks
    for head in order:
        for node in members[head]:
            slot_after[node] = last[rank[node]]
            last[rank[node]] = node
    return slot_after


def _completions_waited_for(graph: ExecutionGraph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Nodes that must end before a node starts, as other tools see them, in CSR form.

    A dependency on a start becomes dependencies on whatever that start waits for.
    """
    after = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    on_start = graph.dep_kind == EdgeKind.START
    if not on_start.any():
        return graph.dep_ptr, graph.dep_node
    expanded: dict[int, set[int]] = {}
    for node in np.unique(after[on_start]).tolist():
        waits: set[int] = set()
        for edge in range(graph.dep_ptr[node], graph.dep_ptr[node + 1]):
            dep = int(graph.dep_node[edge])
            if not on_start[edge]:
                waits.add(dep)
            elif dep in expanded:
                waits |= expanded[dep]
            else:
                waits.update(graph.dep_node[graph.dep_ptr[dep] : graph.dep_ptr[dep + 1]].tolist())
        expanded[node] = waits
    kept = ~np.isin(after, np.fromiter(expanded, np.int64, len(expanded)))
    extra = np.array(
        [(dep, node) for node, waits in expanded.items() for dep in sorted(waits)], np.int64
    ).reshape(-1, 2)
    before = np.concatenate([graph.dep_node[kept], extra[:, 0]])
    after = np.concatenate([after[kept], extra[:, 1]])
    order = np.argsort(after, kind="stable")
    ptr = np.searchsorted(after[order], np.arange(graph.num_nodes + 1))
    return ptr, before[order]


def _file_order(
    graph: ExecutionGraph,
    wait_ptr: NDArray[np.int64],
    wait_node: NDArray[np.int64],
    slot_after: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Nodes of each rank in an order that the slot allows too, else as in the graph."""
    order = np.arange(graph.num_nodes)
    backward = np.unique(graph.rank_index[slot_after > order])
    for npu in backward.tolist():
        first, last = graph.rank_ptr[npu : npu + 2].tolist()
        waits = {n: wait_node[wait_ptr[n] : wait_ptr[n + 1]].tolist() for n in range(first, last)}
        for node in (first + np.flatnonzero(slot_after[first:last] >= 0)).tolist():
            waits[node].append(int(slot_after[node]))
        order[first:last] = topological_order(waits)
    return order


def topological_order(waits: dict[int, list[int]]) -> list[int]:
    """Order keys after those that they wait for, the lowest first where there is a choice.

    Keys on a cycle, and those that wait for them, are left out.
    """
    waiting = {key: len(on) for key, on in waits.items()}
    successors: dict[int, list[int]] = {}
    for key, on in waits.items():
        for dep in on:
            successors.setdefault(dep, []).append(key)
    ready = [key for key, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        key = heapq.heappop(ready)
        order.append(key)
        for other in successors.get(key, ()):
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, other)
    return order


def _joint_order(
    graph: ExecutionGraph,
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    unit: NDArray[np.int64],
    queued: NDArray[np.bool_],
    release: NDArray[np.int64],
) -> list[int]:
    """Order the queued units of a job topologically, the earliest released first.

    Parameters
    ----------
    graph : ExecutionGraph
    before, after : int64, shape (K,)
        Units of which the second cannot start before the end of the first.
    unit : int64, shape (N,)
        Unit of every node: the first member of its instance, or the node itself.
    queued : bool, shape (N,)
        Nodes whose units are ordered; the others only carry dependencies.
    release : int64, shape (N,)
        When a unit was released, at the index of the unit.

    Returns
    -------
    list of int
        The queued units in order.

    Raises
    ------
    GraphError
        If there is a cycle, naming the first node that it stops.
    """
    by_before = np.argsort(before, kind="stable")
    pointers = np.searchsorted(before[by_before], np.arange(graph.num_nodes + 1)).tolist()
    successors = after[by_before].tolist()
    waiting = np.bincount(after, minlength=graph.num_nodes).tolist()
    in_slot = np.zeros(graph.num_nodes, np.bool_)
    in_slot[unit[queued]] = True
    slot, instance, released = in_slot.tolist(), graph.instance.tolist(), release.tolist()
    free = [u for u in np.unique(unit).tolist() if waiting[u] == 0]
    heap: list[tuple[int, int, int]] = []
    order: list[int] = []
    done = np.zeros(graph.num_nodes, np.bool_)
    while free or heap:
        if free:
            head = free.pop()
            if slot[head]:
                heapq.heappush(heap, (released[head], instance[head], head))
                continue
        else:
            head = heapq.heappop(heap)[2]
            order.append(head)
        done[head] = True
        for other in successors[pointers[head] : pointers[head + 1]]:
            waiting[other] -= 1
            if waiting[other] == 0:
                free.append(other)
    stuck = np.flatnonzero(~done & (unit == np.arange(graph.num_nodes)))
    if len(stuck):
        node = int(stuck[0])
        raise GraphError(
            f"waits in a circle across ranks, {len(stuck)} nodes in all",
            rank=rank_of(graph, node),
            place=describe_node(graph, node),
        )
    return order
