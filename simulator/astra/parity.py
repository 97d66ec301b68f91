"""ASTRA-sim's physics without ASTRA-sim: a workload and an experiment in, its cycles out.

`run` checks (`checks`, `collectives`), lays out tables, lets the compiled loop (`parity_loop`)
play them and explains what never ended (`stalls`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import GraphError
from . import parity_loop as loop
from . import parity_tables as tables
from .checks import check_experiment, check_nodes
from .collectives import Collectives, plan_collectives
from .experiment import Backend
from .names import TOPOLOGIES, CommType, NodeType
from .stalls import accepted_mismatches, explain_certain_stall, explain_stall
from .workload import ABSENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .experiment import Experiment
    from .parity_tables import State
    from .workload import Workload

    Int = NDArray[np.int64]
    Bool = NDArray[np.bool_]

# A duration of 2**63 ns, which ASTRA-sim makes of a roofline without operations, stands in the
# engine, whose clock has 63 bits, for one that is added again to what it reports.
_GARBAGE_NS = 1 << 61
_GARBAGE_CYCLES = 1 << 63

# What one thing may take, ns; twice the garbage and this still fit into 63 bits.
_MOST_NS = 1 << 60


@dataclass(frozen=True, eq=False)
class Outcome:
    """What ASTRA-sim would print, and what it would not.

    Attributes
    ----------
    finish, exposed : list of int, length R
        Cycles (ns) of every rank, 64 bits without a sign.
    issued_ns, completed_ns : int64, shape (N,)
        When every node was issued and completed; -1 where it never was.
    warnings : list of str
        What ASTRA-sim accepts silently and wrongly.
    """

    finish: list[int]
    exposed: list[int]
    issued_ns: Int
    completed_ns: Int
    warnings: list[str]


def check(workload: Workload, experiment: Experiment) -> None:
    """Find what ASTRA-sim would abort on or play for ever, without simulating anything.

    Raises
    ------
    NetworkError
        If the settings are not what ASTRA-sim takes.
    GraphError
        Naming rank, node and rule.
    """
    _plan(workload, experiment)


def run(workload: Workload, experiment: Experiment, *, recurrences: bool = True) -> Outcome:
    """Give the cycles that ASTRA-sim would print.

    Parameters
    ----------
    workload : Workload
    experiment : Experiment
    recurrences : bool
        False plays every collective by its messages; the result is the same.

    Returns
    -------
    Outcome

    Raises
    ------
    NetworkError
        If the settings are not what ASTRA-sim takes.
    GraphError
        Where ASTRA-sim aborts, or exits as if all were well although a rank never finished.
    """
    used, collectives, longest_ns = _plan(workload, experiment)
    warnings = [
        *workload.warnings,
        *collectives.warnings,
        *_dropped(workload, used),
        *_garbage(workload, experiment, used),
        *_shared_memory(
            experiment,
            used & np.isin(workload.type, (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE)),
        ),
    ]
    layout = _Layout(workload, experiment, collectives)
    recurrences &= layout.can_recur and _fits_recurrences(collectives, longest_ns, workload.ranks)
    state, how = layout.play(recurrences=recurrences)
    if recurrences and (how != loop.DONE or (state.ranks["finish"] < 0).any()):
        if how == loop.DONE:
            certain = explain_certain_stall(*_stuck(workload, experiment, collectives, state))
            if certain is not None:
                raise certain
        # Of all else that went wrong the messages decide what ASTRA-sim makes of it.
        recurrences = False
        state, how = layout.play(recurrences=False)
    finish = state.ranks["finish"]
    _refuse_abort(workload, state, how)
    if how == loop.OVERFLOW or (finish >= layout.clock_end).any():
        raise GraphError(
            "the cycles of ASTRA-sim's clock, which has 64 bits, overflow",
            file=workload.source,
            rank=int(np.argmax(finish)),
        )
    if (finish < 0).any():
        raise explain_stall(*_stuck(workload, experiment, collectives, state))
    warnings += _disorder(workload, state)
    if not recurrences:
        warnings += accepted_mismatches(workload, collectives, state.issued)
    return Outcome(
        finish=[_cycles(ns) for ns in finish.tolist()],
        exposed=[
            (_cycles(end) - _cycles(computed)) % (1 << 64)
            for end, computed in zip(finish.tolist(), state.ranks["computed"].tolist(), strict=True)
        ],
        issued_ns=state.issued,
        completed_ns=state.completed,
        warnings=warnings,
    )


def _stuck(
    workload: Workload, experiment: Experiment, collectives: Collectives, state: State
) -> tuple[Workload, list[int], Collectives, Int, Int, Int]:
    return (
        workload,
        experiment.network.npus_count,
        collectives,
        state.issued,
        state.completed,
        state.ranks["finish"],
    )


def _shared_memory(experiment: Experiment, nodes: Bool) -> list[str]:
    if experiment.memory.memory_type != "PER_NODE_MEMORY_EXPANSION" or not nodes.any():
        return []
    return [
        (
            "PER_NODE_MEMORY_EXPANSION: ASTRA-sim reads memory that it has freed; these are the "
            "cycles that it gives where that happens to work"
        )
    ]


def _disorder(workload: Workload, state: State) -> list[str]:
    node = int(state.scalars[loop.DISORDER])
    if node < 0:
        return []
    return [
        (
            "ASTRA-sim writes to memory that it has freed where a direct exchange of the world is "
            "out of step, and may crash; these are the cycles that it gives when it survives (the "
            f"first: rank {workload.rank_of(node)}, {workload.describe(node)})"
        )
    ]


def _cycles(ns: int) -> int:
    """Put back the durations that the clock of the engine is too short for."""
    return ns % _GARBAGE_NS + ns // _GARBAGE_NS * _GARBAGE_CYCLES


def _plan(workload: Workload, experiment: Experiment) -> tuple[Bool, Collectives, float]:
    """Check everything; what ever becomes ready, what its collectives do, the longest message."""
    check_experiment(experiment, workload.ranks)
    used = _reachable(workload)
    check_nodes(workload, experiment, used)
    longest_ns = _longest_ns(workload, experiment, used)
    # In a replay collectives just take their time, as every node does.
    moving = np.zeros_like(used) if experiment.system.replay_only else used
    return used, plan_collectives(workload, experiment, moving), longest_ns


def _longest_ns(workload: Workload, experiment: Experiment, used: Bool) -> float:
    """Bound the time of one message with its reduction, from above.

    Raises
    ------
    GraphError
        If it could leave the integers of the engine, naming the node.
    """
    if experiment.system.replay_only:
        return 0.0
    network, memory = experiment.network, experiment.system.local_mem_bw
    moving = used & np.isin(
        workload.type,
        (NodeType.COMM_COLL_NODE, NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE),
    )
    sizes = np.where(moving & (workload.size != ABSENT), workload.size, 0)
    node = int(np.argmax(sizes))
    # An all-gather ends with the bytes of all ranks.
    most = float(sizes[node]) * workload.ranks
    longest = (
        max(network.latency) * workload.ranks
        + most / min(network.bandwidth) / (1073741824 / 1000000000)
        + (3 * most / memory if memory else 0.0)
        + experiment.endpoint_delay_ns
    )
    if max(longest, most) >= _MOST_NS:
        raise GraphError(
            f"a message of {sizes[node]} bytes on this network takes longer than the engine counts "
            f"({_MOST_NS:.0e} ns)",
            file=workload.source,
            rank=workload.rank_of(node),
            place=workload.describe(node),
        )
    return longest


def _fits_recurrences(collectives: Collectives, longest_ns: float, ranks: int) -> bool:
    """Whether no collective can leave 63 bits, which only the clock of the events notices.

    No phase of a chunk has more than four messages per rank one after the other.
    """
    pieces = (collectives.plans["count"] * collectives.plans["phases"]).max(initial=0)
    return 4.0 * ranks * float(pieces) * longest_ns < _GARBAGE_NS


def _dependants(workload: Workload) -> tuple[Int, Int]:
    """Nodes that wait for each node, as CSR."""
    count = len(workload.id)
    owner = np.repeat(np.arange(count), np.diff(workload.dep_ptr))
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(workload.dep, minlength=count), out=ptr[1:])
    return ptr, owner[np.argsort(workload.dep, kind="stable")]


def _reachable(workload: Workload) -> Bool:
    """Find the nodes that ever become ready; ASTRA-sim drops the others.

    Raises
    ------
    GraphError
        If none of a rank does.
    """
    used = loop.reachable(np.diff(workload.dep_ptr), *_dependants(workload))
    first = np.add.reduceat(used, workload.rank_ptr[:-1])
    if (first == 0).any():
        raise GraphError(
            "every node waits for another, in cycles: ASTRA-sim aborts where nothing is ready",
            file=workload.source,
            rank=int(np.argmin(first)),
        )
    return used


def _dropped(workload: Workload, used: Bool) -> list[str]:
    lost = np.flatnonzero(~used)
    if not len(lost):
        return []
    node = int(lost[0])
    return [
        (
            f"{len(lost)} nodes wait for themselves, in cycles, and never run: ASTRA-sim silently "
            f"drops them (the first: rank {workload.rank_of(node)}, {workload.describe(node)})"
        )
    ]


def _garbage(workload: Workload, experiment: Experiment, used: Bool) -> list[str]:
    if not experiment.system.roofline_enabled or experiment.system.replay_only:
        return []
    lost = np.flatnonzero(
        used
        & (workload.type == NodeType.COMP_NODE)
        & (workload.num_ops == 0)
        & (workload.tensor_size > 0)
    )
    if not len(lost):
        return []
    node = int(lost[0])
    return [
        (
            f"{len(lost)} compute nodes have no operations, for which ASTRA-sim's roofline takes "
            f"2^63 ns (the first: rank {workload.rank_of(node)}, {workload.describe(node)})"
        )
    ]


def _refuse_abort(workload: Workload, state: State, how: int) -> None:
    rank = int(state.scalars[loop.WHERE_RANK])
    node = int(state.scalars[loop.WHERE_NODE])
    if how == loop.AT_ZERO:
        raise GraphError(
            "something takes 0 ns at time 0, before ASTRA-sim's clock runs, which aborts",
            file=workload.source,
            rank=rank,
            place=None if node < 0 else workload.describe(node),
        )
    if how == loop.STATISTICS:
        raise GraphError(
            "has CPU, memory or INVALID nodes, on which ASTRA-sim's statistics throw, and ends "
            "with a message or at time 0, where that aborts the whole simulation",
            file=workload.source,
            rank=rank,
        )


class _Layout:
    """A workload as the compiled loop wants it.

    Attributes
    ----------
    can_recur : bool
        Whether any collective can be played by recurrences.
    clock_end : int
        Times of ranks that finish are less, ns: only garbage is as long as garbage.
    """

    def __init__(
        self, workload: Workload, experiment: Experiment, collectives: Collectives
    ) -> None:
        self._experiment = experiment
        self._collectives = collectives
        self._ranks = workload.ranks
        self._pending = np.diff(workload.dep_ptr)
        nodes = _nodes(workload, experiment, collectives)
        # Where ranks share a memory, or look only later at what is ready, the order of all that
        # happens in a ns matters.
        self.can_recur = bool((collectives.plans["by_events"] == 0).any()) and not bool(
            np.isin(nodes["kind"], (loop.POOL, loop.SKIP)).any()
        )
        garbage = bool((nodes["duration"] == _GARBAGE_NS).any())
        self.clock_end = 2 * _GARBAGE_NS if garbage else _GARBAGE_NS
        network = experiment.network
        next_ptr, next_node = _dependants(workload)
        ready_ptr = np.zeros(loop.SLOTS * workload.ranks + 1, np.int64)
        slots = nodes["rank"] * loop.SLOTS + nodes["slot"]
        np.cumsum(np.bincount(slots, minlength=len(ready_ptr) - 1), out=ready_ptr[1:])
        self._given = tables.Given(
            nodes=nodes,
            next_ptr=next_ptr,
            next_node=next_node,
            ready_ptr=ready_ptr,
            plans=collectives.plans,
            phases=collectives.phases,
            steps=collectives.steps,
            members=collectives.members,
            counts=np.array(network.npus_count, np.int64),
            topology=np.array([TOPOLOGIES.index(name) for name in network.topology], np.int64),
            # In this order, as ASTRA-sim's doubles round.
            bandwidth=np.array(network.bandwidth, np.float64) * 1073741824 / 1000000000,
            latency=np.array(network.latency, np.float64),
            ranks=workload.ranks,
            queues_per_dim=experiment.queues_per_dim,
            queue_limit=experiment.queue_limit,
            aware=experiment.backend is Backend.AWARE,
            rendezvous=experiment.rendezvous,
            recurrences=False,
        )
        # Counters of chunks of each communicator.
        self._group_at = np.zeros(len(collectives.plans), np.int64)
        at: dict[int, int] = {}
        room = 1
        for plan, group in enumerate(collectives.plans["group"].tolist()):
            if group and group not in at:
                at[group] = room
                room += len(experiment.groups[group])
            self._group_at[plan] = at.get(group, 0)
        self._group_room = room

    def play(self, *, recurrences: bool) -> tuple[State, int]:
        """Play, with larger tables where they are too small; what is left, and how it ended."""
        room = 64 * self._ranks
        while True:
            state = self._state(room, recurrences)
            how = int(loop.run(self._given._replace(recurrences=recurrences), state))
            if how != loop.FULL:
                return state, how
            room *= 4

    def _state(self, room: int, recurrences: bool) -> State:
        given, plans = self._given, self._collectives.plans
        ranks, dims, queues = self._ranks, len(given.counts), given.queues_per_dim
        played = plans[plans["by_events"] != 0] if recurrences else plans
        chunks = 1 + ranks * int(played["count"].max(initial=0))
        state = tables.State(
            scalars=np.zeros(loop.SCALARS, np.int64),
            pending=self._pending.copy(),
            issued=np.full(len(given.nodes), -1),
            completed=np.full(len(given.nodes), -1),
            unseen=np.full(len(given.nodes), -1),
            ranks=np.zeros(ranks, tables.RANK),
            busy=np.full((ranks, loop.SLOTS), -1),
            ready=np.zeros(len(given.nodes), np.int64),
            ready_count=np.zeros((ranks, loop.SLOTS), np.int64),
            queues=_empty_queues(ranks * dims * queues, tables.QUEUE),
            turns=np.zeros((ranks, dims, 3), np.int64),
            trees=np.zeros((ranks, len(CommType), dims), np.int64),
            group_chunks=np.zeros(self._group_room, np.int64),
            group_at=self._group_at,
            chunk_queues=np.zeros((chunks, int(plans["phases"].max(initial=1))), np.int64),
            chunks=_cells(chunks, tables.CHUNK),
            events=_cells(room, tables.EVENT),
            lists=_cells(room, tables.LIST),
            messages=_cells(room, tables.MESSAGE),
            list_table=np.full(_power_of_two(2 * room), -1),
            message_table=np.full(_power_of_two(2 * room), -1),
            times=np.zeros(room, np.int64),
            links=_empty_queues(self._links(), tables.LINK),
            memories=_empty_queues(ranks, tables.MEMORY),
            joins=_cells(ranks + 1, tables.JOIN),
            join_table=np.full(_power_of_two(2 * ranks), -1),
        )
        state.ranks["finish"] = -1
        state.ranks["unseen"] = -1
        state.ranks["last_ns"] = -1
        state.ranks["doubt_ns"] = -1
        for head, cells in (
            (loop.FREE_EVENT, state.events),
            (loop.FREE_LIST, state.lists),
            (loop.FREE_MESSAGE, state.messages),
            (loop.FREE_CHUNK, state.chunks),
            (loop.FREE_JOIN, state.joins),
        ):
            state.scalars[head] = 1 if len(cells) > 1 else -1
        state.scalars[loop.DUE_JOIN] = -1
        state.scalars[loop.DISORDER] = -1
        return state

    def _links(self) -> int:
        if self._experiment.backend is not Backend.AWARE:
            return 1
        connected = self._experiment.network.topology[0] == "FullyConnected"
        return self._ranks * (self._ranks if connected else 2)


def _cells(count: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Free cells, each leading to the next; the first is never given away."""
    cells = np.zeros(count, dtype)
    cells["next"] = np.arange(1, count + 1)
    cells["next"][-1] = -1
    return cells


def _empty_queues(count: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    queues = np.zeros(count, dtype)
    queues["first"] = queues["last"] = -1
    return queues


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _nodes(
    workload: Workload, experiment: Experiment, collectives: Collectives
) -> NDArray[np.void]:
    """What each node does, in which slot, and for how long."""
    kind, system = workload.type, experiment.system
    on_cpu = (workload.on_cpu != 0) & (workload.on_cpu != ABSENT)
    nodes = np.zeros(len(kind), tables.NODE)
    nodes["rank"] = np.repeat(np.arange(workload.ranks), np.diff(workload.rank_ptr))
    nodes["slot"] = np.select(
        [kind == NodeType.COMM_RECV_NODE, on_cpu, kind == NodeType.COMP_NODE],
        [loop.FREE, loop.CPU, loop.GPU],
        loop.COMM,
    )
    memory = (kind == NodeType.MEM_LOAD_NODE) | (kind == NodeType.MEM_STORE_NODE)
    nodes["odd"] = on_cpu | memory | (kind == NodeType.INVALID_NODE)
    nodes["duration"] = np.maximum(workload.duration_us * 1000, 1)
    nodes["plan"], nodes["place"] = collectives.plan_of, collectives.place
    nodes["kind"] = loop.TIMER
    if system.replay_only:
        nodes["computes"] = ~on_cpu
        return nodes
    nodes["computes"] = nodes["slot"] == loop.GPU
    nodes["kind"][kind == NodeType.INVALID_NODE] = loop.SKIP
    nodes["kind"][collectives.plan_of >= 0] = loop.COLLECTIVE
    for which, what, peer in (
        (kind == NodeType.COMM_SEND_NODE, loop.SEND, workload.dst),
        (kind == NodeType.COMM_RECV_NODE, loop.RECEIVE, workload.src),
    ):
        nodes["kind"][which] = what
        nodes["peer"][which] = peer[which]
        # The remainder has the sign of the tag, as in C++.
        nodes["tag"][which] = np.fmod(workload.tag[which], 500_000_000)
        nodes["bytes"][which] = workload.size[which]
    if memory.any() and experiment.memory.remote_mem_bw:
        remote = experiment.memory
        size = workload.tensor_size[memory]
        nodes["duration"][memory] = remote.remote_mem_latency + size // remote.remote_mem_bw
        _refuse_long(workload, memory & (nodes["duration"] >= _MOST_NS), "in remote memory")
        if remote.memory_type == "MEMORY_POOL":
            nodes["kind"][memory] = loop.POOL
        elif remote.memory_type == "PER_NODE_MEMORY_EXPANSION":
            nodes["kind"][memory] = loop.POOL
            nodes["pool"] = nodes["rank"] // remote.num_npus_per_node
    if system.roofline_enabled:
        _roofline(nodes, workload, experiment, (kind == NodeType.COMP_NODE) & ~on_cpu)
    return nodes


def _refuse_long(workload: Workload, long: Bool, why: str) -> None:
    if long.any():
        node = int(np.argmax(long))
        raise GraphError(
            f"takes longer {why} than the engine counts ({_MOST_NS:.0e} ns)",
            file=workload.source,
            rank=workload.rank_of(node),
            place=workload.describe(node),
        )


def _roofline(
    nodes: NDArray[np.void], workload: Workload, experiment: Experiment, which: Bool
) -> None:
    empty = which & (workload.tensor_size == 0)
    nodes["kind"][empty] = loop.SKIP
    timed = which & ~empty
    ops = workload.num_ops[timed].astype(np.float64)
    intensity = ops / workload.tensor_size[timed]
    memory = (experiment.system.local_mem_bw or 0.0) * 1e9
    perf = np.minimum(memory * intensity, experiment.system.peak_perf * 1e12)
    with np.errstate(divide="ignore", invalid="ignore"):
        time = ops / perf * 1e9
    sound = np.isfinite(time)
    long = np.zeros_like(timed)
    long[timed] = sound & (time >= _MOST_NS)
    _refuse_long(workload, long, "by the roofline")
    nodes["duration"][timed] = np.where(sound, np.where(sound, time, 0), _GARBAGE_NS)
