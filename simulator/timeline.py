"""A simulation as a timeline: slices on tracks, and arrows between ranks.

Every node of the graph as it was before compression, on a track of its lane; beside them the steps
and the critical path. How a timeline is written for a viewer is in `reports.perfetto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..graph.columns import SYMMETRIC, Collective, Flavour, Kind
from .communication import communication_kinds
from .explain import PathTracer, lane_name, time_in_step
from .results import Timeline, Track

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .run import Simulation

    Int = NDArray[np.int64]

_KINDS = tuple(flavour.name.lower() for flavour in Flavour)
_STEP = len(_KINDS)

# Tracks of the whole job.
_STEPS, _PATH = range(2)
_JOB_TRACKS = (Track(None, "steps"), Track(None, "critical path"))

_FROM_ROOT = (Collective.BROADCAST, Collective.SCATTER)
_TO_ROOT = (Collective.REDUCE, Collective.GATHER)


def timeline(simulation: Simulation) -> Timeline:
    """Lay a simulation out in time.

    Parameters
    ----------
    simulation : Simulation
        Any.

    Returns
    -------
    Timeline
        Nodes that take no time are left out. An operation that takes none has no arrows.
    """
    graph = simulation.compressed.original
    begin, end = simulation.original_intervals()
    nodes = np.flatnonzero(end > begin)
    track, tracks = _lane_tracks(simulation, nodes, begin[nodes], end[nodes])
    slice_of = np.full(graph.num_nodes, -1, dtype=np.int64)
    slice_of[nodes] = np.arange(len(nodes))
    job = _job_slices(simulation)
    arrows = _arrows(simulation, slice_of, end)
    details = _operations(simulation, nodes)
    details.update({len(nodes) + i: detail for i, detail in enumerate(job.details)})
    return Timeline(
        ranks=tuple(graph.ranks.tolist()),
        tracks=(*_JOB_TRACKS, *tracks),
        names=(*graph.names, *job.names),
        track=np.concatenate([track + len(_JOB_TRACKS), job.track]),
        name=np.concatenate([graph.name[nodes], len(graph.names) + job.name]),
        kinds=(*_KINDS, "step", *job.kinds),
        kind=np.concatenate([graph.flavour[nodes].astype(np.int64), _STEP + job.kind]),
        begin_ns=np.concatenate([begin[nodes], job.begin]),
        end_ns=np.concatenate([end[nodes], job.end]),
        details={i: detail for i, detail in details.items() if detail},
        arrow_from=arrows.source,
        arrow_to=arrows.target,
        leave_ns=arrows.leave,
        reach_ns=arrows.reach,
        earliest_ns=int(graph.base_ns.min(initial=0)),
    )


def _lane_tracks(
    simulation: Simulation, nodes: Int, begin: Int, end: Int
) -> tuple[Int, list[Track]]:
    """Put the nodes of every lane on as few tracks as they need not to overlap."""
    graph = simulation.compressed.original
    lanes = graph.lanes
    lane = graph.lane[nodes].astype(np.int64)
    order = np.lexsort((end, begin, lane))
    ptr = np.searchsorted(lane[order], np.arange(len(lanes) + 1))
    track = np.empty(len(nodes), dtype=np.int64)
    tracks: list[Track] = []
    for index in np.lexsort((lanes.number, lanes.kind, lanes.rank)).tolist():
        own = order[ptr[index] : ptr[index + 1]]
        if len(own) == 0:
            continue
        row = _rows(begin[own], end[own])
        track[own] = len(tracks) + row
        rank, name = int(graph.ranks[lanes.rank[index]]), lane_name(graph, index)
        tracks.append(Track(rank, name))
        tracks += [Track(rank, f"{name} ({i + 1})") for i in range(1, int(row.max()) + 1)]
    return track, tracks


def _rows(begin: Int, end: Int) -> Int:
    """Give intervals, by ascending begin, the first row in which nothing is in their way."""
    row = np.zeros(len(begin), dtype=np.int64)
    if (begin[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return row
    free: list[int] = []
    for i, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        chosen = next((k for k, since in enumerate(free) if since <= first), len(free))
        free[chosen : chosen + 1] = [last]
        row[i] = chosen
    return row


class _JobSlices(NamedTuple):
    """Slices of the whole job; `kind` counts from the kind of steps."""

    track: Int
    name: Int
    names: list[str]
    kind: Int
    kinds: tuple[str, ...]
    begin: Int
    end: Int
    details: list[dict[str, int | str]]


def _job_slices(simulation: Simulation) -> _JobSlices:
    """Steps and their critical paths."""
    tracer = PathTracer(simulation)
    names = list(simulation.compressed.original.steps.names)
    known: dict[tuple[int, ...], tuple[int, dict[str, int | str]]] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    details: list[dict[str, int | str]] = []
    kinds: tuple[str, ...] = ()
    for k in range(len(names)):
        path = simulation.critical_path(k)
        kinds = path.kinds
        begin_of_step, end_of_step = path.begin_of_step_ns, path.end_of_step_ns
        if end_of_step <= begin_of_step:
            continue
        rows.append((_STEPS, k, 0, begin_of_step, end_of_step))
        details.append({})
        segments = np.flatnonzero(time_in_step(path))
        begins = np.maximum(path.begin_ns[segments], begin_of_step).tolist()
        ends = np.minimum(path.end_ns[segments], end_of_step).tolist()
        traced = map(tuple, tracer.trace(path, segments)[0].tolist())
        for row, begin, end in zip(traced, begins, ends, strict=True):
            if row not in known:
                place = tracer.describe(row)._asdict()
                names.append(f"{kinds[row[0]].replace('_', ' ')}: {place.pop('what')}")
                said = {name: value for name, value in place.items() if value is not None}
                known[row] = len(names) - 1, said
            index, said = known[row]
            rows.append((_PATH, index, 1 + row[0], begin, end))
            details.append(said)
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return _JobSlices(
        track=table[:, 0],
        name=table[:, 1],
        names=names,
        kind=table[:, 2],
        kinds=kinds,
        begin=table[:, 3],
        end=table[:, 4],
        details=details,
    )


def _operations(simulation: Simulation, nodes: Int) -> dict[int, dict[str, int | str]]:
    """What is known of communication, by index into `nodes`."""
    compressed, replay = simulation.compressed, simulation.replay
    kinds = communication_kinds(compressed)
    index = np.flatnonzero(compressed.original.coll[nodes] != Collective.NONE)
    node = compressed.node_of[nodes[index]]
    start, release, done = (
        np.rint(moment[node]).astype(np.int64)
        for moment in (replay.start, replay.release, replay.transferred)
    )
    sharing = np.rint(simulation.sharing_ns[node]).astype(np.int64)
    peer = compressed.graph.peer[node]
    details: dict[int, dict[str, int | str]] = {}
    for i, kind, wait, transfer, shared, other in zip(
        index.tolist(),
        kinds.of_node[node].tolist(),
        (release - start).tolist(),
        (done - release).tolist(),
        sharing.tolist(),
        peer.tolist(),
        strict=True,
    ):
        detail: dict[str, int | str] = {"type": kinds.types[kind]}
        size = kinds.sizes[kind]
        if size is not None:
            detail["bytes"] = size
        detail["group"] = kinds.groups[kinds.group_of[kind]]
        if other >= 0:
            detail["peer"] = other
        detail |= {"wait_ns": wait, "transfer_ns": transfer}
        if shared > 0:
            detail["sharing_ns"] = shared
        details[i] = detail
    return details


class _Arrows(NamedTuple):
    source: Int
    target: Int
    leave: Int
    reach: Int


def _arrows(simulation: Simulation, slice_of: Int, end: Int) -> _Arrows:
    """Join the members of every operation that one waits for with the one that waits."""
    compressed, replay = simulation.compressed, simulation.replay
    instances, graph = compressed.instances, compressed.graph
    member = instances.node
    instance = np.repeat(np.arange(len(instances)), np.diff(instances.ptr))
    coll, root = instances.coll[instance], simulation.program.root[instance]
    pairs = coll == Collective.SEND_RECV
    send = np.full(len(instances), -1, dtype=np.int64)
    sends = pairs & (graph.kind[member] == Kind.SEND)
    send[instance[sends]] = member[sends]

    source, target = np.full(len(member), -1, dtype=np.int64), member.copy()
    waits = np.isin(coll, list(SYMMETRIC))
    source[waits] = replay.bound_member[member[waits]]
    waits = np.isin(coll, _FROM_ROOT)
    source[waits] = root[waits]
    waits = pairs & ~sends
    source[waits] = send[instance[waits]]
    waits = np.isin(coll, _TO_ROOT)
    source[waits], target[waits] = member[waits], root[waits]
    joined = (source >= 0) & (target >= 0) & (source != target)
    source, target = source[joined], target[joined]

    original = np.unique(compressed.node_of, return_index=True)[1]
    leave = np.rint(replay.start[source]).astype(np.int64)
    reach = np.rint(replay.release[target]).astype(np.int64)
    source, target = original[source], original[target]
    # A node that keeps its measured duration waits for nobody. And a viewer could not tell to
    # which of two slices an arrow at their border belongs.
    drawn = (slice_of[source] >= 0) & (leave <= reach) & (reach < end[target])
    return _Arrows(slice_of[source[drawn]], slice_of[target[drawn]], leave[drawn], reach[drawn])
