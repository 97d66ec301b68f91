"""The native engine: lays a graph and its transfers out for the event loop, and runs them.

`program` turns a graph into flat arrays once; `flows` does so with the transfers that ports
carry, for given prices; `replay` runs both and says when every node started, was released and
ended, and what each of these waited for. What happens meanwhile is in `event_loop`, the physics
of prices in `pricing`, what the times mean in `accounting` and `critical_path`. Nothing here
knows a network.

Numba compiles at the first replay and keeps the result on disk; `is_compiled` tells a user
interface whether that wait is still ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..base.errors import GraphError
from ..graph.columns import SYMMETRIC, Collective, EdgeKind, Kind
from ..graph.validate import describe_node, rank_of
from .event_loop import (
    NEED_ALL,
    NEED_ITSELF,
    NEED_NOTHING,
    NEED_ROOT,
    Flows,
    Program,
    Replay,
    array,
    run,
)
from .event_loop import is_compiled as is_compiled
from .ports import fixed_transfers, no_ports

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.compress import CompressedGraph
    from .ports import Ports, PortSets, Transfers

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]


def program(compressed: CompressedGraph) -> Program:
    """Lay a graph out for the engine.

    A communication node without an instance is released by itself and runs for its measured
    duration.
    """
    graph, instances = compressed.graph, compressed.instances
    order = np.argsort(graph.dep_node, kind="stable")
    dependent = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    start_seen = np.zeros(graph.num_nodes, dtype=np.bool_)
    start_seen[graph.dep_node[graph.dep_kind == EdgeKind.START]] = True

    owner = graph.rank_index
    root = np.full(len(instances), -1, dtype=np.int64)
    # The root beyond the last instance is that of nodes whose instance is -1.
    is_root = np.append(instances.root, np.int32(-1))[graph.instance] == owner
    root[graph.instance[is_root]] = np.flatnonzero(is_root)

    queues = np.flatnonzero(graph.lanes.servers > 1)
    queue_of_lane = np.full(len(graph.lanes), -1, dtype=np.int64)
    queue_of_lane[queues] = np.arange(len(queues))
    queue = queue_of_lane[graph.lane]
    queued = np.flatnonzero(queue >= 0)
    queued = queued[np.argsort(queue[queued], kind="stable")]

    return Program(
        root_ready=array(graph.base_ns[owner], np.float64),
        pending=array(np.diff(graph.dep_ptr), np.int32),
        next_ptr=array(
            np.searchsorted(graph.dep_node[order], np.arange(graph.num_nodes + 1)), np.int64
        ),
        next_node=array(dependent[order], np.int64),
        next_kind=array(graph.dep_kind[order], np.int8),
        next_lag=array(graph.dep_lag_ns[order], np.float64),
        next_edge=array(order, np.int64),
        dep_node=array(graph.dep_node, np.int64),
        dep_kind=array(graph.dep_kind, np.int8),
        start_seen=start_seen,
        gap=array(graph.gap_ns, np.float64),
        part_ptr=array(compressed.part_ptr, np.int64),
        part_kind=array(compressed.part_kind, np.int8),
        part_ns=array(compressed.part_ns, np.float64),
        need=_needs(compressed, is_root, root),
        tail=array(np.where(graph.instance >= 0, graph.tail_ns, 0), np.float64),
        instance=array(graph.instance, np.int64),
        member_ptr=array(instances.ptr, np.int64),
        member=array(instances.node, np.int64),
        root=root,
        queue=array(queue, np.int64),
        queue_ptr=array(np.searchsorted(queue[queued], np.arange(len(queues) + 1)), np.int64),
        queued=array(queued, np.int64),
        servers=array(graph.lanes.servers[queues], np.int64),
    )


def _needs(compressed: CompressedGraph, is_root: NDArray[np.bool_], root: Int) -> NDArray[np.int8]:
    """Say what each node waits for: the rules of `Collective`."""
    graph = compressed.graph
    coll = graph.coll
    has_root = np.append(root, -1)[graph.instance] >= 0
    need = np.full(graph.num_nodes, NEED_ITSELF, dtype=np.int8)
    need[coll == Collective.NONE] = NEED_NOTHING
    need[np.isin(coll, list(SYMMETRIC))] = NEED_ALL
    need[np.isin(coll, [Collective.BROADCAST, Collective.SCATTER]) & ~is_root & has_root] = (
        NEED_ROOT
    )
    need[np.isin(coll, [Collective.REDUCE, Collective.GATHER]) & is_root] = NEED_ALL
    need[(coll == Collective.SEND_RECV) & ~(graph.eager & (graph.kind == Kind.SEND))] = NEED_ALL
    need[(coll != Collective.NONE) & (graph.instance < 0)] = NEED_ITSELF
    return need


def flows(
    compressed: CompressedGraph,
    transfers: Transfers,
    ports: Ports,
    sets: PortSets,
    transfer_ns: Float,
) -> Flows:
    """Lay out the transfers that ports carry.

    Parameters
    ----------
    compressed : CompressedGraph
        The graph.
    transfers : Transfers
        Of its instances. Members that share one are released together.
    ports, sets
        What the transfers use.
    transfer_ns : float64, shape (N,)
        Transfer time of every communication node, alone. The phases of a transfer sum to it but
        for rounding.

    Returns
    -------
    Flows
    """
    size, nodes = len(transfers), compressed.instances.node
    total = np.zeros(size)
    total[transfers.of_member] = transfer_ns[nodes]
    work_at, done_at = _moments(transfers, total)
    widths = np.diff(sets.ptr)
    kept = (transfers.phase_work_ns > 0) & (widths[transfers.phase_set] > 0)
    owner = np.repeat(np.arange(size), np.diff(transfers.ptr))
    phases = np.bincount(owner[kept], minlength=size)

    carried = phases > 0
    index = np.where(carried, np.cumsum(carried) - 1, -1)
    of_member = index[transfers.of_member]
    of_node = np.full(compressed.graph.num_nodes, -1, dtype=np.int64)
    of_node[nodes] = of_member
    order = np.argsort(of_member, kind="stable")
    return Flows(
        of_node=of_node,
        member_ptr=np.searchsorted(of_member[order], np.arange(carried.sum() + 1)),
        member=array(nodes[order], np.int64),
        total=array(total[carried], np.float64),
        phase_ptr=_pointers(phases[carried]),
        work_at=array(work_at[kept], np.float64),
        done_at=array(done_at[kept], np.float64),
        port_set=array(transfers.phase_set[kept], np.int64),
        set_ptr=array(sets.ptr, np.int64),
        port=array(sets.port, np.int64),
        load=array(sets.load_gb_s, np.float64),
        capacity=array(ports.capacity_gb_s, np.float64),
    )


def no_flows(compressed: CompressedGraph) -> Flows:
    """Say that every transfer takes its time whatever else is in flight."""
    ports, sets = no_ports()
    none = fixed_transfers(np.zeros(len(compressed.instances.node)))
    return flows(compressed, none, ports, sets, np.zeros(compressed.graph.num_nodes))


def _moments(transfers: Transfers, total: Float) -> tuple[Float, Float]:
    """When the work of each phase begins and ends after the release of its transfer, alone."""
    count = np.diff(transfers.ptr)
    work_at, done_at = np.zeros(transfers.ptr[-1]), np.zeros(transfers.ptr[-1])
    until = np.zeros(len(transfers))
    for i in range(count.max(initial=0)):
        going = np.flatnonzero(count > i)
        phase = transfers.ptr[going] + i
        # A transfer is over at its total to the bit, however its phases round.
        until[going] += transfers.phase_fixed_ns[phase]
        work_at[phase] = np.minimum(until[going], total[going])
        until[going] += transfers.phase_work_ns[phase]
        done_at[phase] = np.minimum(until[going], total[going])
    return work_at, done_at


def _pointers(counts: Int) -> Int:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def replay(
    compressed: CompressedGraph, prog: Program, carried: Flows, transfer_ns: Float, scale: Float
) -> Replay:
    """Run a program.

    Parameters
    ----------
    compressed : CompressedGraph
        The graph, to name what is stuck.
    prog, carried
        Of that graph.
    transfer_ns : float64, shape (N,)
        From release to the end of the transfer, alone; not read where a node does not
        communicate.
    scale : float64, shape (NUM_PART_KINDS,)
        What the duration of each kind of part is multiplied by.

    Returns
    -------
    Replay

    Raises
    ------
    GraphError
        If nodes are left that nothing will ever let go; names one, and what it waits for.
    """
    size, phases = len(prog.gap), len(carried.work_at)
    result = Replay(
        ready=np.full(size, -np.inf),
        start=np.full(size, np.nan),
        release=np.full(size, np.nan),
        transferred=np.full(size, np.nan),
        end=np.full(size, np.nan),
        bound_edge=np.full(size, -1, dtype=np.int64),
        bound_member=np.full(size, -1, dtype=np.int64),
        cause=np.zeros(size, dtype=np.int8),
        cause_node=np.full(size, -1, dtype=np.int64),
        work_begin=np.full(phases, np.nan),
        work_end=np.full(phases, np.nan),
    )
    ended = run(prog, carried, result, array(transfer_ns, np.float64), array(scale, np.float64))
    if ended < size:
        _raise_stuck(compressed, prog, result)
    return result


def _raise_stuck(compressed: CompressedGraph, prog: Program, result: Replay) -> NoReturn:
    graph, instances = compressed.graph, compressed.instances
    arrived = ~np.isnan(result.start)
    held = np.flatnonzero(arrived & np.isnan(result.end) & (prog.need >= NEED_ROOT))
    for node in held.tolist():
        i = int(prog.instance[node])
        members = instances.node[instances.ptr[i] : instances.ptr[i + 1]]
        absent = int(prog.root[i])
        if prog.need[node] == NEED_ALL:
            absent = int(members[~arrived[members]][0])
        raise GraphError(
            f"waits forever for rank {rank_of(graph, absent)}, which never comes to "
            f"{describe_node(graph, absent)}",
            rank=rank_of(graph, node),
            place=describe_node(graph, node),
        )
    node = int(np.flatnonzero(np.isnan(result.end))[0])
    raise GraphError(
        "never becomes ready", rank=rank_of(graph, node), place=describe_node(graph, node)
    )
