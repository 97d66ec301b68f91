"""What communication costs the ranks that take part: exposed, hidden and waiting time.

The categories of `accounting` say how much of a rank's step is communication; here it is divided
among the operations, so that people see which group and which collective it is. Whether the step
would be shorter without it is for the critical path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..graph.columns import Collective, Flavour
from ..graph.steps import headline_steps
from .communication import communication_kinds
from .explain import time_in_step
from .results import ExposedCollective, ExposedGroup

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .run import Simulation

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

# Segments of the critical path in which a communication node moves no byte.
_IDLE = ("gap", "lag", "start_offset")

# What runs on a rank, in the order in which it is counted.
_COMPUTE, _COPY, _TRANSFER, _WAIT = range(4)


class Exposure(NamedTuple):
    """What each node costs its rank in some window (M compressed nodes); 0 where it computes.

    Attributes
    ----------
    exposed_ns, hidden_ns, wait_ns : float64, shape (M,)
        As in `results.ExposedGroup`, where it says how time is divided.
    """

    exposed_ns: Float
    hidden_ns: Float
    wait_ns: Float


def node_exposure(simulation: Simulation, begin_ns: int, end_ns: int) -> Exposure:
    """Divide the communication of every rank in a window among its nodes.

    Parameters
    ----------
    simulation : Simulation
        Any.
    begin_ns, end_ns : int
        The window, on the clock of the graph.

    Returns
    -------
    Exposure
    """
    compressed, replay = simulation.compressed, simulation.replay
    graph = compressed.graph
    length = simulation.program.part_ns * simulation.scale[compressed.part_kind]
    until = np.concatenate([[0.0], np.cumsum(length)])
    owner = np.repeat(np.arange(graph.num_nodes), np.diff(compressed.part_ptr))
    part = replay.start[owner] - until[compressed.part_ptr[owner]]
    part_begin, part_end = _whole(part + until[:-1]), _whole(part + until[1:])

    result = Exposure(*np.zeros((3, graph.num_nodes)))
    nodes = np.flatnonzero(graph.coll != Collective.NONE)
    start, release, done = (
        np.clip(_whole(moment[nodes]), begin_ns, end_ns)
        for moment in (replay.start, replay.release, replay.transferred)
    )
    first_node = np.searchsorted(nodes, graph.rank_ptr)
    first_part = compressed.part_ptr[graph.rank_ptr]
    kind = compressed.part_kind
    for rank in range(graph.num_ranks):
        own = slice(first_node[rank], first_node[rank + 1])
        if own.start == own.stop:
            continue
        parts = np.arange(first_part[rank], first_part[rank + 1])
        compute, copy = (
            parts[kind[parts] == flavour] for flavour in (Flavour.COMPUTE, Flavour.COPY)
        )
        times, counts = _counts(
            (part_begin[compute], part_end[compute]),
            (part_begin[copy], part_end[copy]),
            (release[own], done[own]),
            (start[own], release[own]),
        )
        computes = counts[_COMPUTE] > 0
        moves = counts[_TRANSFER] > 0
        covered = computes | moves | (counts[_COPY] > 0)
        for total, begin, end, active, count in (
            (result.exposed_ns, release, done, moves & ~computes, counts[_TRANSFER]),
            (result.hidden_ns, release, done, moves & computes, counts[_TRANSFER]),
            (result.wait_ns, start, release, ~covered, counts[_WAIT]),
        ):
            # What one of those in progress gets until each moment.
            each = np.diff(times) * active / np.maximum(count, 1)
            got = np.concatenate([[0.0], np.cumsum(each)])
            total[nodes[own]] = (
                got[np.searchsorted(times, end[own])] - got[np.searchsorted(times, begin[own])]
            )
    return result


def exposures(simulation: Simulation) -> tuple[list[ExposedGroup], list[ExposedCollective]]:
    """Tell what every group and every kind of collective costs in the headline step.

    Parameters
    ----------
    simulation : Simulation
        Any.

    Returns
    -------
    list of ExposedGroup, list of ExposedCollective
        Those that cost most exposed time first; of two headline steps the mean.
    """
    kinds = communication_kinds(simulation.compressed)
    costs = _Costs(simulation, kinds.of_node)
    groups = [
        ExposedGroup(group=name, **costs.of(np.flatnonzero(kinds.group_of == group)))
        for group, name in enumerate(kinds.groups)
    ]
    collectives = [
        ExposedCollective(
            group=kinds.groups[kinds.group_of[kind]],
            type=name,
            bytes=kinds.sizes[kind],
            **costs.of(np.array([kind])),
        )
        for kind, name in enumerate(kinds.types)
    ]
    groups.sort(key=_cost, reverse=True)
    collectives.sort(key=_cost, reverse=True)
    return groups, collectives


def _cost(one: ExposedGroup) -> tuple[int, int, int]:
    return one.exposed_ns, one.wait_ns, one.hidden_ns


class _Costs:
    """Adds up what the operations of some kinds cost in the headline step."""

    def __init__(self, simulation: Simulation, kind_of_node: Int) -> None:
        graph = simulation.compressed.graph
        self._steps = headline_steps(simulation.step_times_ns)
        completion = simulation.completion_ns.max(axis=1).tolist()
        each = [
            node_exposure(simulation, completion[k - 1] if k else 0, completion[k])
            for k in self._steps
        ]
        self._nodes = np.flatnonzero(kind_of_node >= 0)
        self._mean = [np.mean(column, axis=0)[self._nodes] for column in zip(*each, strict=True)]
        kind = kind_of_node[self._nodes]
        self._by_kind = np.argsort(kind, kind="stable")
        self._ptr = np.searchsorted(kind[self._by_kind], np.arange(kind.max(initial=-1) + 2))
        self._rank = graph.rank_index[self._nodes]
        # An operation that was not matched across ranks is one of its own.
        instance = graph.instance[self._nodes].astype(np.int64)
        self._operation = np.where(instance >= 0, instance, -1 - self._nodes)
        self._counted = np.isin(graph.step[self._nodes], self._steps)
        self._path = np.zeros(len(self._ptr) - 1)
        for k in self._steps:
            path = simulation.critical_path(k)
            idle = [path.kinds.index(kind) for kind in _IDLE]
            moves = (kind_of_node[path.node] >= 0) & ~np.isin(path.what, idle)
            np.add.at(self._path, kind_of_node[path.node[moves]], time_in_step(path)[moves])

    def of(self, kinds: Int) -> dict[str, Any]:
        """Give the fields of an `ExposedGroup` but its name."""
        chosen = np.concatenate([self._by_kind[self._ptr[k] : self._ptr[k + 1]] for k in kinds])
        counted = chosen[self._counted[chosen]]
        ranks, rank = np.unique(self._rank[chosen], return_inverse=True)
        exposed, hidden, wait = (
            np.bincount(rank, column[chosen], minlength=len(ranks)) for column in self._mean
        )
        return {
            "ranks": len(ranks),
            "count": len(np.unique(self._operation[counted])) / len(self._steps),
            "exposed_ns": round(exposed.mean()),
            "exposed_max_ns": round(exposed.max()),
            "hidden_ns": round(hidden.mean()),
            "wait_ns": round(wait.mean()),
            "path_ns": round(self._path[kinds].sum() / len(self._steps)),
        }


def _counts(*intervals: tuple[Int, Int]) -> tuple[Int, list[Int]]:
    """Count for each of some kinds of intervals how many are in progress.

    Returns
    -------
    int64, shape (T,)
        All moments at which one begins or ends, ascending, each once.
    list of int64, shape (T - 1,)
        How many of each kind are in progress between a moment and the next.
    """
    times = np.unique(np.concatenate([moment for interval in intervals for moment in interval]))
    counts = []
    for begin, end in intervals:
        change = np.zeros(len(times), dtype=np.int64)
        np.add.at(change, np.searchsorted(times, begin), 1)
        np.add.at(change, np.searchsorted(times, end), -1)
        counts.append(np.cumsum(change)[:-1])
    return times, counts


def _whole(moment: Float) -> Int:
    return np.rint(moment).astype(np.int64)
