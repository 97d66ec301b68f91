"""The function behind `whatif inspect`: what is in a trace, from its own measured times.

No network is involved: transfers are as measured, and where time goes is read off a replay of
the measured timeline.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from .base.progress import Progress, silent
from .conversion import announce_compilation, load
from .graph.columns import Collective, collect_instances
from .graph.compress import compress
from .graph.steps import step_completions, step_times
from .reports.results import (
    InspectedCollective,
    InspectedGroup,
    InspectedRank,
    InspectedStep,
    InspectedStepOfRank,
    InspectResult,
)
from .simulator.run import simulate
from .sweeps.job import has_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .graph.columns import DependencyModel, ExecutionGraph


def inspect(
    trace: str | Path | ExecutionGraph,
    *,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    processes: int | None = None,
    progress: Progress = silent,
) -> InspectResult:
    """Summarise a trace, or Chakra files, without writing anything.

    Members of groups that were not traced are assumed to arrive with those that were, since a
    trace of a few ranks is worth looking at too; the warnings say so.

    Parameters
    ----------
    trace, model, steps, processes, progress
        As for `load`.

    Returns
    -------
    InspectResult

    Raises
    ------
    TraceError, GraphError, UsageError
        As for `load`.
    """
    graph = load(
        trace,
        model=model,
        steps=steps,
        assume_missing=True,
        processes=processes,
        progress=progress,
    )
    replay = None
    if has_timeline(graph):
        announce_compilation(progress)
        replay = simulate(compress(graph), measured=True)
    groups, collectives = _communication(graph)
    return InspectResult(
        trace=graph.trace,
        source=graph.source,
        dependency_model=graph.model,
        ranks=graph.num_ranks,
        world_size=graph.world_size,
        nodes=graph.num_nodes,
        rank_table=[
            InspectedRank(rank=rank, host=host, device=device, start_offset_ns=offset)
            for rank, host, device, offset in zip(
                graph.ranks.tolist(),
                graph.hosts,
                graph.devices,
                graph.start_offset_ns.tolist(),
                strict=True,
            )
        ],
        steps=_steps(graph),
        measured_step_ns=replay.measured_step_ns if replay else None,
        groups=groups,
        collectives=collectives,
        per_rank=replay.per_rank if replay else [],
        critical_path_ns=replay.critical_split if replay else {},
        coverage=graph.coverage,
        warnings=list(
            dict.fromkeys([*graph.coverage.warnings, *(replay.warnings if replay else [])])
        ),
    )


def _steps(graph: ExecutionGraph) -> list[InspectedStep]:
    table = graph.steps
    if not has_timeline(graph):
        return [
            InspectedStep(name=name, measured_ns=None, used=k > 0 or len(table) == 1, per_rank=[])
            for k, name in enumerate(table.names)
        ]
    completion = step_completions(graph, graph.end_ns)
    annotation = graph.end_ns[table.marker] - table.begin_ns
    return [
        InspectedStep(
            name=name,
            measured_ns=int(time),
            used=k > 0 or len(table) == 1,
            per_rank=[
                InspectedStepOfRank(
                    rank=int(rank),
                    annotation_ns=int(annotation[k, r]),
                    completion_ns=int(completion[k, r]),
                )
                for r, rank in enumerate(graph.ranks)
            ],
        )
        for k, (name, time) in enumerate(
            zip(table.names, step_times(table.completion_ns), strict=True)
        )
    ]


def _communication(
    graph: ExecutionGraph,
) -> tuple[list[InspectedGroup], list[InspectedCollective]]:
    """Process groups and their operations, alike ones together."""
    kinds: dict[tuple[int, tuple[int, ...], int, int, int], list[NDArray[np.int64]]]
    kinds = defaultdict(list)
    instances = collect_instances(graph)
    operations = np.split(instances.node, instances.ptr[1:-1]) if len(instances) else []
    sizes = instances.size_bytes.tolist()
    # What was not joined across ranks is still an operation of its rank.
    alone = np.flatnonzero((graph.coll != Collective.NONE) & (graph.instance < 0))
    operations += [alone[i : i + 1] for i in range(len(alone))]
    sizes += graph.size_bytes[alone].tolist()
    per_group: dict[int, int] = defaultdict(int)
    for members, size in zip(operations, sizes, strict=True):
        coll, group = int(graph.coll[members[0]]), int(graph.group[members[0]])
        pair: tuple[int, ...] = ()
        if coll == Collective.SEND_RECV:
            pair, group = _ends(graph, int(members[0])), -1
        else:
            per_group[group] += 1
        # Not all members need say what they communicate.
        kinds[group, pair, coll, size, int(graph.dtype[members].max())].append(members)
    groups = [
        InspectedGroup(
            name=graph.groups[group].name,
            description=graph.groups[group].description,
            size=len(graph.groups[group].ranks),
            ranks=list(graph.groups[group].ranks),
            operations=count,
        )
        for group, count in sorted(per_group.items())
        if group >= 0
    ]
    rows = [
        _collective(graph, group, pair, coll, size, found)
        for (group, pair, coll, size, _), found in kinds.items()
    ]
    rows.sort(key=lambda row: (-(row.bytes or 0) * row.count, row.type, row.group))
    return groups, rows


def _ends(graph: ExecutionGraph, node: int) -> tuple[int, int]:
    rank = int(graph.ranks[np.searchsorted(graph.rank_ptr, node, side="right") - 1])
    peer = int(graph.peer[node])
    return min(rank, peer), max(rank, peer)


def _collective(
    graph: ExecutionGraph,
    group: int,
    pair: tuple[int, ...],
    coll: int,
    size: int,
    found: list[NDArray[np.int64]],
) -> InspectedCollective:
    nodes = np.concatenate(found)
    measured = nodes[graph.transfer_ns[nodes] >= 0]
    # The longest of a member is that of the operation where members differ (broadcast, send).
    transfer = [
        int(graph.transfer_ns[members].max())
        for members in found
        if graph.transfer_ns[members].max() >= 0
    ]
    waits = graph.dur_ns[measured] - graph.transfer_ns[measured] - graph.tail_ns[measured]
    name = graph.groups[group].name if group >= 0 else ""
    members = len(graph.groups[group].ranks) if group >= 0 else 0
    if pair:
        name, members = f"{pair[0]} and {pair[1]}", 2
    median = int(np.median(transfer)) if transfer else None
    moved = _bus_bytes(Collective(coll), size, members)
    return InspectedCollective(
        type=Collective(coll).label,
        group=name,
        group_size=members,
        bytes=size if size >= 0 else None,
        dtype=graph.data_type(int(nodes[np.argmax(graph.dtype[nodes])])),
        count=len(found),
        transfer_ns_median=median,
        wait_ns_median=int(np.median(waits)) if len(measured) else None,
        wait_ns_mean=int(waits.mean()) if len(measured) else None,
        wait_ns_max=int(waits.max()) if len(measured) else None,
        duration_ns_median=int(np.median(graph.dur_ns[nodes])),
        bus_gb_s_median=moved / median if moved is not None and median else None,
    )


def _bus_bytes(coll: Collective, size: int, ranks: int) -> float | None:
    """Bytes whose time is the bus bandwidth of nccl-tests (doc/PERFORMANCE.md there).

    `size` is the input of one rank, so that of an all-gather is multiplied by the ranks.
    """
    if size < 0 or ranks < 2:
        return None
    match coll:
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks * size
        case Collective.ALL_GATHER | Collective.GATHER | Collective.SCATTER:
            return (ranks - 1) * float(size)
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_BLOCK | Collective.ALL_TO_ALL:
            return (ranks - 1) / ranks * size
        case Collective.BROADCAST | Collective.REDUCE | Collective.SEND_RECV:
            return float(size)
        case _:
            return None
