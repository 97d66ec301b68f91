"""The places that the critical path of the headline step goes through, largest first.

A place is what one lane of one rank, or one group, does again and again: kernels of one name, host
work that leads to launches of one kernel, transfers of one type and size. The path itself is in
`critical_path`, what communication costs off the path in `exposure`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graph.columns import Collective, EdgeKind, Flavour, LaneKind
from ..graph.steps import headline_parts, headline_steps
from .communication import communication_kinds
from .results import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..graph.compress import CompressedGraph
    from .communication import CommunicationKinds
    from .critical_path import CriticalPath
    from .run import Simulation

    Int = NDArray[np.int64]

_LANES = {
    LaneKind.HOST: "host thread",
    LaneKind.STREAM: "stream",
    LaneKind.QUEUE: "queue",
}

# How a segment relates to the node whose name it bears.
_DURING, _BEFORE, _AFTER, _TRANSFER, _UNNAMED = range(5)

# Of how many transfers that lost time to others these are looked up: those that lost most.
_ASKED = 20

#: Columns of a place while it is made: kind of segment, relation, rank, lane, name or kind of
#: communication, and of host work the name of what it launches (-1 where there is none).
_COLUMNS = 6


def path_places(simulation: Simulation) -> list[Place]:
    """Add up what the critical path of the headline step goes through.

    Parameters
    ----------
    simulation : Simulation
        Any.

    Returns
    -------
    list of Place
        Largest first. Their times sum exactly to the headline step; of two headline steps they
        are the mean.
    """
    chosen = headline_steps(simulation.step_times_ns)
    if not chosen:
        return []
    tracer = PathTracer(simulation)
    paths = [simulation.critical_path(step) for step in chosen]
    times = [time_in_step(path) for path in paths]
    inside = [np.flatnonzero(time) for time in times]
    traced = [tracer.trace(*each) for each in zip(paths, inside, strict=True)]

    rows, row_of = np.unique(
        np.concatenate([row for row, _ in traced]), axis=0, return_inverse=True
    )
    row_of = row_of.reshape(-1)
    step_of = np.repeat(np.arange(len(chosen)), [len(each) for each in inside])
    parts = np.zeros((len(chosen), len(rows)), dtype=np.int64)
    spent = [time[each] for time, each in zip(times, inside, strict=True)]
    np.add.at(parts, (step_of, row_of), np.concatenate(spent))
    time_ns = headline_parts(parts)
    # A node that the path enters twice, or whose transfer has several pieces, counts once.
    nodes = np.concatenate([node for _, node in traced])
    visits = np.unique(np.stack([step_of, row_of, nodes]), axis=1)
    count = np.bincount(visits[1], minlength=len(rows)) / len(chosen)
    kinds = paths[0].kinds
    return [
        Place(
            kind=kinds[rows[i, 0]],
            **tracer.describe(rows[i].tolist())._asdict(),
            beside=(
                tracer.beside(np.unique(nodes[row_of == i]))
                if kinds[rows[i, 0]] == "sharing"
                else None
            ),
            count=float(count[i]),
            time_ns=int(time_ns[i]),
            share_pct=float(time_ns[i] / simulation.step_ns * 100),
        )
        for i in np.argsort(-time_ns, kind="stable")
        if time_ns[i] > 0
    ]


def time_in_step(path: CriticalPath) -> Int:
    """Give what of each segment of a path lies in the step itself, shape (G,)."""
    begin = np.clip(path.begin_ns, path.begin_of_step_ns, path.end_of_step_ns)
    return np.clip(path.end_ns, path.begin_of_step_ns, path.end_of_step_ns) - begin


class Described(NamedTuple):
    """A place in words; fields as in `results.Place`."""

    rank: int | None
    lane: str | None
    what: str
    group: str | None
    bytes: int | None


class PathTracer:
    """Finds the original nodes behind the segments of critical paths, and puts them into words.

    Parameters
    ----------
    simulation : Simulation
        Whose paths.
    """

    def __init__(self, simulation: Simulation) -> None:
        compressed = simulation.compressed
        self._simulation = simulation
        self._graph: ExecutionGraph = compressed.original
        self._compressed: CompressedGraph = compressed
        self._start = simulation.replay.start
        self._communicates = compressed.graph.coll != Collective.NONE
        self._kinds: CommunicationKinds = communication_kinds(compressed)
        # The first member of a chain; the others follow it.
        self._head = np.unique(compressed.node_of, return_index=True)[1]
        length = simulation.program.part_ns * simulation.scale[compressed.part_kind]
        self._until = np.concatenate([[0.0], np.cumsum(length)])
        self._owner = _owners(compressed)
        self._launched = _launched(self._graph)

    def trace(self, path: CriticalPath, segments: Int) -> tuple[Int, Int]:
        """Say of some segments what place they belong to.

        Parameters
        ----------
        path : CriticalPath
            Of the simulation.
        segments : int64, shape (D,)
            Indices of its segments.

        Returns
        -------
        int64, shape (D, C)
            Rows that are equal where the place is the same, for `describe`.
        int64, shape (D,)
            Original node of each.
        """
        graph = self._graph
        node, what = path.node[segments], path.what[segments]
        middle = (path.begin_ns[segments] + path.end_ns[segments]) / 2
        ptr = self._compressed.part_ptr
        at = self._until[ptr[node]] + middle - self._start[node]
        part = np.searchsorted(self._until, at, side="right") - 1
        part = np.clip(part, ptr[node], ptr[node + 1] - 1)

        started = middle > self._start[node]
        computes = started & ~self._communicates[node]
        original = self._head[node]
        original[computes] = self._owner[part[computes]]

        idle = np.isin(what, [path.kinds.index(kind) for kind in ("gap", "lag")])
        relation = np.where(idle, _BEFORE, _DURING)
        relation[started & self._communicates[node]] = _TRANSFER
        relation[started & self._communicates[node] & idle] = _AFTER
        # A gap that is a node of its own has a name of its own.
        named = computes & idle & (self._compressed.part_of[original] == part)
        relation[named] = _DURING
        relation[what == path.kinds.index("start_offset")] = _UNNAMED

        lane = graph.lane[original].astype(np.int64)
        rows = np.full((len(segments), _COLUMNS), -1, dtype=np.int64)
        rows[:, 0], rows[:, 1] = what, relation
        rows[:, 2], rows[:, 3] = graph.lanes.rank[lane], lane
        rows[:, 4] = graph.name[original]
        host = (relation == _DURING) & (graph.flavour[original] == Flavour.HOST)
        rows[host, 5] = self._launched[original[host]]
        transfer = relation == _TRANSFER
        rows[transfer, 2:4] = -1
        rows[transfer, 4] = self._kinds.of_node[node[transfer]]
        rows[relation == _UNNAMED, 3:5] = -1
        return rows, original

    def describe(self, row: Sequence[int]) -> Described:
        """Put a row of `trace` into words."""
        _, relation, rank, lane, name, launched = row
        graph, known = self._graph, self._kinds
        group = size = None
        if relation == _TRANSFER:
            what, size = known.types[name], known.sizes[name]
            group = known.groups[known.group_of[name]]
        elif relation == _UNNAMED:
            what = "begins its first step later than the first rank"
        else:
            what = {_DURING: "", _BEFORE: "before ", _AFTER: "after "}[relation] + graph.names[name]
            if launched >= 0:
                what += f" before the launch of {graph.names[launched]}"
        return Described(
            rank=int(graph.ranks[rank]) if rank >= 0 else None,
            lane=lane_name(graph, lane) if lane >= 0 else None,
            what=what,
            group=group,
            bytes=size,
        )

    def beside(self, nodes: Int) -> str | None:
        """Name the kind of transfer that transfers met the longest on their ports.

        Parameters
        ----------
        nodes : int64, shape (D,)
            Original nodes.
        """
        simulation = self._simulation
        node = self._compressed.node_of[nodes]
        slowest = node[np.argsort(-simulation.sharing_ns[node], kind="stable")[:_ASKED]]
        together: dict[int, float] = defaultdict(float)
        for one in slowest.tolist():
            for other, ns in simulation.met(one):
                together[int(self._kinds.of_node[other])] += ns
        if not together:
            return None
        kind = max(together, key=lambda kind: together[kind])
        known = self._kinds
        return f"{known.types[kind]} of group {known.groups[known.group_of[kind]]}"


def lane_name(graph: ExecutionGraph, lane: int) -> str:
    """Say what a lane is, for people."""
    return f"{_LANES[LaneKind(graph.lanes.kind[lane])]} {graph.lanes.number[lane]}"


def _owners(compressed: CompressedGraph) -> Int:
    """Original node of every part: its own duration, or the gap or lag before it."""
    owner = np.full(len(compressed.part_ns), -1, dtype=np.int64)
    computes = np.flatnonzero(compressed.part_of >= 0)
    owner[compressed.part_of[computes]] = computes
    # Gaps and lags stand right before the part of the node that they belong to.
    following = np.where(owner >= 0, np.arange(len(owner)), len(owner))
    following = np.minimum.accumulate(following[::-1])[::-1]
    return owner[following]


def _launched(graph: ExecutionGraph) -> Int:
    """Name of what each node launches: the first that waits for its end on a device lane."""
    launched = np.full(graph.num_nodes, -1, dtype=np.int64)
    dependent = np.repeat(np.arange(graph.num_nodes), np.diff(graph.dep_ptr))
    on_host = graph.lanes.kind[graph.lane] == LaneKind.HOST
    launches = (graph.dep_kind == EdgeKind.END) & on_host[graph.dep_node] & ~on_host[dependent]
    edges = np.flatnonzero(launches)[::-1]
    launched[graph.dep_node[edges]] = graph.name[dependent[edges]]
    return launched
