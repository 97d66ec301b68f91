"""One job in both physics, and where they differ: by kind of operation, by rank, in all.

Both simulate the same graph on the same network. Operations are compared alone, so that what
differs is their price; what differs in the run besides (slots, sharing, whole microseconds) is
told by rank. The same in words is in `reasons`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ...graph.chakra_plan import plan_export
from ...graph.columns import Collective, Kind, collect_instances
from ..algorithms.names import ALGORITHMS
from .alone import collective_alone, cycles_alone, send_alone, without_cost
from .compare_results import ComparedOperation, ComparedRank, CompareResult
from .job import astra_job, step_ns
from .names import IMPLEMENTATIONS, CommType, NodeType
from .parity import run
from .reasons import Facts, reasons, summary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...base.progress import Progress
    from ...graph.chakra_plan import ExportPlan
    from ...graph.columns import ExecutionGraph, Instances
    from ..network import Network
    from ..placement import Placement
    from ..pricing import Prices
    from ..run import Simulation
    from .experiment import Experiment
    from .job import AstraJob
    from .parity import Outcome

    Int = NDArray[np.int64]

_GIB_PER_GB = 1e9 / (1 << 30)


class _Operation(NamedTuple):
    """Instances that are alike in both physics, and the npus that take part."""

    coll: Collective
    shown: CommType | None
    group: int
    size_bytes: int
    npus: tuple[int, ...]
    instances: Int


@dataclass(frozen=True, eq=False)
class _Case:
    """What both physics are given, and what came of it."""

    graph: ExecutionGraph
    network: Network
    simulation: Simulation
    job: AstraJob
    outcome: Outcome
    instances: Instances
    plan: ExportPlan
    dimensions: dict[str, list[int]]
    places: Int

    @property
    def prices(self) -> Prices:
        """Of the native engine."""
        assert self.simulation.prices is not None
        return self.simulation.prices


def compare(
    simulation: Simulation, network: Network, placement: Placement, progress: Progress
) -> CompareResult:
    """Compare a native simulation with ASTRA-sim's congestion-unaware backend.

    Parameters
    ----------
    simulation : Simulation
        A job on the network, in the native engine.
    network, placement
        The network, and where the ranks sit in it.
    progress : Progress
        Told what is being done.

    Raises
    ------
    NetworkError
        If ASTRA-sim cannot express the network.
    GraphError
        If ASTRA-sim could not run the job.
    """
    graph = simulation.measured_graph
    progress("simulating under ASTRA-sim's physics", 0, 0)
    job = astra_job(graph, network, placement)
    case = _Case(
        graph=graph,
        network=network,
        simulation=simulation,
        job=job,
        outcome=run(job.workload, job.experiment),
        instances=collect_instances(graph),
        plan=plan_export(graph),
        dimensions=_dimensions(network, job),
        places=placement.coordinates_in(network)[graph.ranks],
    )
    found = _operations(case)
    rows = []
    for done, operation in enumerate(found):
        progress("comparing operations", done, len(found))
        rows.append(_compared(case, operation))
    rows.sort(key=lambda row: -abs(row.astra_ns - row.native_ns) * row.count)
    unconverted = run(job.workload, _unconverted(job.experiment))
    per_rank = _per_rank(case)
    astra_ns = step_ns(graph, job, case.outcome)
    result = CompareResult(
        trace=graph.trace,
        ranks=graph.num_ranks,
        steps=list(graph.steps.names),
        dependency_model=graph.model,
        network=network,
        placement=placement.description,
        native_step_ns=simulation.step_ns,
        astra_step_ns=astra_ns,
        measured_step_ns=simulation.measured_step_ns,
        difference_pct=(astra_ns - simulation.step_ns) / max(simulation.step_ns, 1) * 100,
        unconverted_step_ns=step_ns(graph, job, unconverted),
        sharing_ns=int(simulation.sharing_ns.sum()),
        stretched_ns=_stretched_ns(simulation),
        operations=rows,
        per_rank=per_rank,
        summary=[],
        folded=list(job.inputs.folded),
        lost=list(job.inputs.lost),
        warnings=list(dict.fromkeys([*simulation.warnings, *case.outcome.warnings])),
    )
    return msgspec.structs.replace(result, summary=summary(result))


def _dimensions(network: Network, job: AstraJob) -> dict[str, list[int]]:
    """Dimensions of ASTRA-sim's network that are of each scope of ours."""
    found: dict[str, list[int]] = {}
    for dimension, tier in enumerate(job.inputs.tiers):
        found.setdefault(network.tier_names[tier], []).append(dimension)
    return found


def _unconverted(experiment: Experiment) -> Experiment:
    """Take the numbers of our GB/s for ASTRA-sim's, which are GiB/s."""
    given = experiment.network
    bandwidth = [value / _GIB_PER_GB for value in given.bandwidth]
    return replace(experiment, network=msgspec.structs.replace(given, bandwidth=bandwidth))


def _stretched_ns(simulation: Simulation) -> int:
    """Time by which tails that scale with their transfers are longer than measured."""
    graph, replay = simulation.compressed.graph, simulation.replay
    nodes = np.flatnonzero(simulation.moving_ns > 0)
    tails = replay.end[nodes] - replay.transferred[nodes] - graph.tail_ns[nodes]
    return round(float(tails.sum()))


def _operations(case: _Case) -> list[_Operation]:
    """Tell the kinds of operations apart by group, type and size in both physics."""
    graph, instances = case.graph, case.instances
    npu_of = np.argsort(case.job.inputs.order)
    rows: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(instances)):
        nodes = instances.node[instances.ptr[i] : instances.ptr[i + 1]]
        first = int(nodes[0])
        if instances.coll[i] == Collective.SEND_RECV:
            ends = graph.rank_index[nodes[np.argsort(graph.kind[nodes])]]
            who: tuple[int, ...] = (-1, *ends.tolist())
        else:
            who = (int(instances.group[i]),)
        joined = bool(case.plan.joined[first])
        key = (
            int(instances.coll[i]),
            int(case.plan.comm_type[first]) if joined else -1,
            int(case.plan.comm_size[first]) if joined else int(instances.size_bytes[i]),
            *who,
        )
        rows.setdefault(key, []).append(i)
    position = {int(rank): index for index, rank in enumerate(graph.ranks)}
    found = []
    for (coll, shown, size, group, *pair), members in rows.items():
        ranks = (
            pair if group < 0 else [position[r] for r in graph.groups[group].ranks if r in position]
        )
        if len(ranks) < 2:
            continue
        found.append(
            _Operation(
                coll=Collective(coll),
                shown=None if shown < 0 or coll == Collective.SEND_RECV else CommType(shown),
                group=group,
                size_bytes=size,
                npus=tuple(npu_of[ranks].tolist()),
                instances=np.array(members, np.int64),
            )
        )
    return found


def _compared(case: _Case, operation: _Operation) -> ComparedOperation:
    prices, some = case.prices, operation.instances
    of = int(some[0])
    tiers = prices.latency_ns[of] + prices.bandwidth_ns[of]
    native = dict(zip(prices.tiers, np.rint(tiers).astype(int).tolist(), strict=True))
    native_ns = round(float(prices.total_ns[some].mean()))
    astra_ns, astra, gib_ns = _astra(case, operation)
    unpaid, neighbours = _unpaid(case, operation)
    row = ComparedOperation(
        type=operation.coll.label,
        shown_as=_shown_as(operation),
        group=_group_name(case, operation),
        group_size=len(operation.npus),
        bytes=operation.size_bytes,
        count=len(some),
        native_ns=native_ns,
        native_tiers_ns=native,
        native_other_ns=native_ns - sum(native.values()),
        astra_ns=astra_ns,
        astra_tiers_ns=astra,
        astra_other_ns=astra_ns - sum(astra.values()),
        astra_after_last_ns=_after_last_ns(case, operation, astra_ns),
        rounding_bytes=_rounding_bytes(case, operation),
        gib_ns=gib_ns,
        slot_wait_ns=round(float(_slot_wait_ns(case, _members(case, operation)).mean())),
        unpaid=unpaid,
        neighbours=neighbours,
        why=[],
    )
    return msgspec.structs.replace(row, why=reasons(row, _facts(case, operation)))


def _moves_data(operation: _Operation) -> bool:
    """Whether ASTRA-sim sends anything for an operation."""
    return operation.coll == Collective.SEND_RECV or (
        operation.shown is not None and operation.shown != CommType.BROADCAST
    )


def _astra(case: _Case, operation: _Operation) -> tuple[int, dict[str, int], int]:
    """Time of an operation alone in ASTRA-sim, what each scope has of it, and the unit's part."""
    experiment = case.job.experiment
    if not _moves_data(operation):
        measured = case.graph.dur_ns[_members(case, operation)].mean()
        return round(float(measured)), dict.fromkeys(case.dimensions, 0), 0
    world = case.graph.num_ranks
    if operation.shown is None:
        workload = send_alone(world, operation.size_bytes, *operation.npus)
    else:
        workload, groups = collective_alone(
            world, operation.shown, operation.size_bytes, operation.npus
        )
        experiment = replace(experiment, groups=groups)
    alone = cycles_alone(workload, experiment)
    paid = {
        scope: alone - cycles_alone(workload, without_cost(experiment, dimensions))
        for scope, dimensions in case.dimensions.items()
    }
    return alone, paid, alone - cycles_alone(workload, _unconverted(experiment))


def _after_last_ns(case: _Case, operation: _Operation, alone_ns: int) -> int:
    """Time in the run from the entry of the last member to the end of each, on average."""
    if operation.coll == Collective.SEND_RECV or not _moves_data(operation):
        return alone_ns
    ptr, outcome = case.instances.ptr, case.outcome
    spans = []
    for i in operation.instances.tolist():
        nodes = case.job.node[case.instances.node[ptr[i] : ptr[i + 1]]]
        spans.append(float(outcome.completed_ns[nodes].mean() - outcome.issued_ns[nodes].max()))
    return round(float(np.mean(spans)))


def _members(case: _Case, operation: _Operation) -> Int:
    """Nodes of all instances of an operation."""
    ptr = case.instances.ptr
    return np.concatenate(
        [case.instances.node[ptr[i] : ptr[i + 1]] for i in operation.instances.tolist()]
    )


def _coordinates(case: _Case, npus: tuple[int, ...]) -> Int:
    """Coordinates of npus in ASTRA-sim's network, shape (n, D)."""
    number = np.array(npus, np.int64)
    columns = []
    for count in case.job.inputs.network.npus_count:
        columns.append(number % count)
        number = number // count
    return np.column_stack(columns)


def _unpaid(case: _Case, operation: _Operation) -> tuple[dict[str, int], int]:
    """Neighbours that differ in a tier that their messages do not pay, and all neighbours."""
    if not _moves_data(operation):
        return {}, 0
    places = _coordinates(case, operation.npus)
    if operation.shown is None:
        pairs = [(0, 1)]
    elif len(operation.npus) < case.graph.num_ranks:
        pairs = [(i, (i + 1) % len(places)) for i in range(len(places))]
    else:
        return {}, 0
    scope_of = {d: scope for scope, dimensions in case.dimensions.items() for d in dimensions}
    unpaid: dict[str, int] = {}
    for here, there in pairs:
        _, *others = np.flatnonzero(places[here] != places[there]).tolist()
        for scope in dict.fromkeys(scope_of[dimension] for dimension in others):
            unpaid[scope] = unpaid.get(scope, 0) + 1
    return unpaid, len(pairs)


def _rounding_bytes(case: _Case, operation: _Operation) -> int:
    """Bytes that chunks hold beyond the size; section 8.1 of the specification."""
    if operation.shown is None or not _moves_data(operation):
        return 0
    size, splits = operation.size_bytes, case.job.experiment.system.preferred_dataset_splits
    chunk = size // splits
    if operation.shown == CommType.ALL_GATHER:
        return -(-size // chunk) * chunk - size
    if chunk < case.graph.num_ranks:
        return splits * case.graph.num_ranks - size
    return -(-size // chunk) * chunk - size


def _slot_wait_ns(case: _Case, nodes: Int) -> Int:
    """Time that nodes of the graph were ready in ASTRA-sim and not issued.

    Ready is what has all its dependencies; those that only order the slot are none.
    """
    workload, outcome = case.job.workload, case.outcome
    waited = np.zeros(len(nodes), np.int64)
    for row, node in enumerate(nodes.tolist()):
        here = int(case.job.node[node])
        deps = workload.dep[workload.dep_ptr[here] : workload.dep_ptr[here + 1]]
        previous = int(case.plan.slot_after[node])
        if previous >= 0 and not _depends(case, node, previous):
            deps = deps[deps != case.job.node[previous]]
        ready = int(outcome.completed_ns[deps].max(initial=0))
        waited[row] = outcome.issued_ns[here] - ready
    return waited


def _compute_wait_ns(case: _Case) -> Int:
    """Time that computations and gaps of each npu were ready and not issued, shape (R,).

    ASTRA-sim runs one of them at a time, those of the processor apart from the others.
    """
    workload, outcome = case.job.workload, case.outcome
    ready = np.zeros(len(workload.id), np.int64)
    dependent = np.diff(workload.dep_ptr) > 0
    if dependent.any():
        starts = workload.dep_ptr[:-1][dependent]
        ready[dependent] = np.maximum.reduceat(outcome.completed_ns[workload.dep], starts)
    waited = np.where(workload.type == NodeType.COMP_NODE, outcome.issued_ns - ready, 0)
    total: Int = np.add.reduceat(waited, workload.rank_ptr[:-1])
    return total


def _depends(case: _Case, node: int, previous: int) -> bool:
    """Whether a node needs another for more than the order of the slot."""
    plan, job = case.plan, case.job
    waits = plan.wait_node[plan.wait_ptr[node] : plan.wait_ptr[node + 1]]
    return bool((waits == previous).any()) and job.end[previous] == job.node[previous]


def _shown_as(operation: _Operation) -> str:
    if operation.coll == Collective.SEND_RECV:
        return operation.coll.label
    if operation.shown is None:
        return "computation"
    return Collective(int(operation.shown)).label


def _group_name(case: _Case, operation: _Operation) -> str:
    if operation.group >= 0:
        return case.graph.groups[operation.group].name
    order = case.job.inputs.order
    ranks = [int(case.graph.ranks[order[npu]]) for npu in operation.npus]
    return f"{ranks[0]} -> {ranks[1]}"


def _facts(case: _Case, operation: _Operation) -> Facts:
    """Gather what the reasons of a difference need besides the numbers."""
    of = int(operation.instances[0])
    number = int(case.prices.algorithm[of])
    here = "the measured time" if number < 0 else ALGORITHMS[number]
    n = len(operation.npus)
    there = "its measured duration"
    if operation.coll == Collective.SEND_RECV:
        there = "one message"
    elif operation.shown is not None and _moves_data(operation):
        key = IMPLEMENTATIONS[operation.shown].replace("-", "_")
        names: list[str] = getattr(case.job.experiment.system, key)
        if n == case.graph.num_ranks:
            there = " then ".join(names)
        else:
            there = f"one {names[0] if len(names) == 1 else 'ring'} of {n} in group order"
    return Facts(
        note=case.plan.notes.get(int(case.instances.node[case.instances.ptr[of]])),
        here=here,
        there=there,
        base_ns=float(case.prices.base_ns[of]),
        endpoint_ns=float(case.prices.endpoint_ns[of]),
    )


def _per_rank(case: _Case) -> list[ComparedRank]:
    graph, simulation, job = case.graph, case.simulation, case.job
    npu_of = np.argsort(job.inputs.order).tolist()
    compressed = simulation.compressed.graph
    measured = bool((graph.steps.completion_ns >= 0).all())
    queued = (graph.instance >= 0) & case.plan.joined & (graph.kind != Kind.RECV)
    computing = _compute_wait_ns(case)
    rows = []
    for index, rank in enumerate(graph.ranks.tolist()):
        nodes = slice(int(graph.rank_ptr[index]), int(graph.rank_ptr[index + 1]))
        inside = slice(int(compressed.rank_ptr[index]), int(compressed.rank_ptr[index + 1]))
        waits = _slot_wait_ns(case, nodes.start + np.flatnonzero(queued[nodes]))
        end_ns = int(graph.end_ns[nodes].max(initial=0)) - job.origin_ns
        rows.append(
            ComparedRank(
                rank=rank,
                native_ns=round(float(simulation.replay.end[inside].max())) - job.origin_ns,
                astra_ns=case.outcome.finish[npu_of[index]],
                measured_ns=end_ns if measured else None,
                slot_wait_ns=int(waits.sum()),
                compute_wait_ns=int(computing[npu_of[index]]),
            )
        )
    return rows
