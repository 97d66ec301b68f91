"""A network for ASTRA-sim, fitted under ASTRA-sim's own physics to the transfers of a trace.

The start is the network calibrated under the native engine, expressed for ASTRA-sim; from there
bandwidth and latency of every dimension are moved until the parity engine reproduces the measured
transfers. Collectives of ASTRA-sim have no barrier, and members that come early exchange before
the last has come; so each transfer is simulated with the arrivals that were measured, and what
counts is how long after the last arrival its members end, on average. (What a member ends later
than the first is its tail, which the .et files hold on their own.) Sizes that need not be told
apart cannot tell latency from bandwidth; a weak prior then keeps both near where they began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..base.errors import NetworkError
from ..base.progress import Progress, silent
from ..graph.chakra_plan import plan_export
from ..graph.columns import Collective, Kind, collect_instances
from ..graph.steps import headline_ns, step_times
from ..simulator.astra.alone import collective_alone, cycles_alone, send_alone
from ..simulator.astra.experiment import Experiment
from ..simulator.astra.export import ENDPOINT_DELAY_NS, astra_inputs
from ..simulator.astra.job import astra_job, step_ns
from ..simulator.astra.names import CommType, NodeType
from ..simulator.astra.parity import run
from ..simulator.astra.workload import Builder
from .observed import observe
from .results import AstraConfig, AstraFitRow

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..simulator.astra.export import AstraInputs
    from ..simulator.astra.files import NetworkFile
    from ..simulator.astra.workload import Workload
    from ..simulator.network import Network
    from ..simulator.placement import Placement

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: Transfers of a kind that are simulated, spread over the trace.
_SAMPLES = 16

#: A value may move by so much, as a logarithm (a factor of 20), and by the prior rather not by
#: more than a factor of e without a reason: half a percent in one kind outweighs it.
_MOST_SHIFT, _PRIOR = 3.0, 0.005

# Relative step of derivatives, above the rounding of the engine to whole nanoseconds.
_STEP = 2e-3

# Deviations beyond 10 % count by their size and no longer by its square.
_ROBUST = 0.1

# Between simulated transfers, so that even one 20 times as long as measured meets no other.
_SPACING, _LEAST_SPACING_US = 60, 1000


@dataclass(frozen=True)
class _Kind:
    """Transfers that cost the same.

    Attributes
    ----------
    coll : Collective
    shown : CommType or None
        What the .et files show; None for a message.
    size_bytes : int
        What they show as its size.
    npus : tuple of int
        Members of the first, in the order of the group; of a message the sender first.
    domains, count : int
        Domains that hold members, and transfers in the trace.
    samples : list of (tuple of int, list of int)
        Members of the simulated ones, and when they arrive, us after the first of them.
    measured_ns : float
        Mean of what was measured of the simulated ones.
    share : float
        Of the measured time of all kinds.
    """

    coll: Collective
    shown: CommType | None
    size_bytes: int
    npus: tuple[int, ...]
    domains: int
    count: int
    samples: list[tuple[tuple[int, ...], list[int]]]
    measured_ns: float
    share: float


def astra_config(
    graph: ExecutionGraph,
    network: Network,
    placement: Placement,
    serial: ExecutionGraph | None = None,
    progress: Progress = silent,
) -> AstraConfig:
    """Fit network.yml and system.json under the parity engine.

    Parameters
    ----------
    graph : ExecutionGraph
        With the measured transfers.
    network : Network
        Usually calibrated: the start.
    placement : Placement
        Where the ranks sit in it.
    serial : ExecutionGraph, optional
        The same job with the model that ASTRA-sim can run, to compare its step with the measured.
    progress : Progress
        Told of the fit.

    Raises
    ------
    NetworkError
        If ASTRA-sim cannot express the network, or none of the transfers can be simulated there.
    """
    inputs = astra_inputs(graph, network, placement)
    kinds = _kinds(graph, network, placement, inputs)
    progress("fitting under ASTRA-sim's physics", 0, 0)
    problem = _Problem(inputs, kinds)
    shift, moves = problem.solve()
    fitted = problem.network(shift)
    simulated = problem.simulated_ns(shift)
    experiment = Experiment(network=fitted, system=inputs.system)
    step = measured = error = None
    if serial is not None and (serial.steps.completion_ns >= 0).all():
        progress("simulating the job under ASTRA-sim's physics", 0, 0)
        job = astra_job(serial, network, placement)
        step = step_ns(serial, job, run(job.workload, replace(job.experiment, network=fitted)))
        measured = headline_ns(step_times(serial.steps.completion_ns))
        error = (step - measured) / max(measured, 1) * 100
    return AstraConfig(
        network=fitted,
        system=inputs.system,
        memory=inputs.memory,
        rows=[
            _row(kind, float(ns), experiment, graph.num_ranks)
            for kind, ns in zip(kinds, simulated, strict=True)
        ],
        step_ns=step,
        measured_step_ns=measured,
        step_error_pct=error,
        notes=[
            *_notes(network, inputs, fitted, moves),
            *(f"start: {line}" for line in inputs.folded),
            *(f"lost: {line}" for line in inputs.lost),
        ],
    )


def _kinds(
    graph: ExecutionGraph, network: Network, placement: Placement, inputs: AstraInputs
) -> list[_Kind]:
    """Choose the transfers to fit to: those that met no others, if there are any."""
    instances = collect_instances(graph)
    observed = observe(graph, instances, network, placement)
    plan = plan_export(graph)
    npu_of = np.argsort(inputs.order)
    wanted = np.flatnonzero(~observed.shared)
    if not len(wanted):
        wanted = np.arange(len(observed))
    kinds = []
    total = float((observed.count * observed.transfer_ns)[wanted].sum())
    for number in wanted.tolist():
        rows = np.flatnonzero(observed.kind == number)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, _SAMPLES).astype(int))]
        samples = []
        for instance in observed.instance[rows].tolist():
            nodes = instances.node[instances.ptr[instance] : instances.ptr[instance + 1]]
            if plan.joined[nodes[0]]:
                samples.append(_sample(graph, nodes, npu_of))
        if not samples:
            continue
        coll = Collective(int(observed.coll[number]))
        kinds.append(
            _Kind(
                coll=coll,
                shown=None
                if coll == Collective.SEND_RECV
                else CommType(int(plan.comm_type[nodes[0]])),
                size_bytes=int(plan.comm_size[nodes[0]]),
                npus=samples[0][0],
                domains=int(observed.domains[number]),
                count=int(observed.count[number]),
                samples=samples,
                measured_ns=float(observed.sample_ns[rows].mean()),
                share=float(observed.count[number] * observed.transfer_ns[number]) / total,
            )
        )
    if not kinds:
        raise NetworkError(
            "none of the measured transfers is one that ASTRA-sim could simulate", place="tiers"
        )
    return kinds


def _sample(graph: ExecutionGraph, nodes: Int, npu_of: Int) -> tuple[tuple[int, ...], list[int]]:
    """Members of an operation in the order of its group, and when each arrives, in us.

    A message of ASTRA-sim waits for no receiver, so its ends are taken to arrive together.
    """
    if graph.coll[nodes[0]] == Collective.SEND_RECV:
        ends = graph.rank_index[nodes[np.argsort(graph.kind[nodes] == Kind.RECV)]]
        return tuple(npu_of[ends].tolist()), [0, 0]
    rank = graph.ranks[graph.rank_index[nodes]]
    node_of = dict(zip(rank.tolist(), nodes.tolist(), strict=True))
    ranks = [r for r in graph.groups[graph.group[nodes[0]]].ranks if r in node_of]
    start = graph.start_ns[[node_of[r] for r in ranks]]
    npus = npu_of[np.searchsorted(graph.ranks, ranks)]
    return tuple(npus.tolist()), np.rint((start - start.min()) / 1000).astype(int).tolist()


class _Problem:
    """Bandwidths and latencies against measured transfers, all simulated in one run.

    Values are shifts of logarithms from the start: of the bandwidth of each dimension, then of
    its latency with the wait before a message.
    """

    def __init__(self, inputs: AstraInputs, kinds: list[_Kind]) -> None:
        self._start = inputs.network
        self._measured = np.log([kind.measured_ns for kind in kinds])
        share = np.array([kind.share for kind in kinds])
        # Half by time, because that makes the step, and half alike, so that small sizes count.
        self._weight = np.sqrt(share / 2 + 0.5 / len(kinds))
        self._workload, groups, self._nodes = _samples_apart(inputs.network.ranks, kinds)
        self._experiment = Experiment(network=inputs.network, system=inputs.system, groups=groups)

    def network(self, shift: Float) -> NetworkFile:
        """Move the network by a shift."""
        count = len(self._start.bandwidth)
        latency = np.array(self._start.latency) + ENDPOINT_DELAY_NS
        moved = np.maximum(latency * np.exp(shift[count:]) - ENDPOINT_DELAY_NS, 0)
        bandwidth = np.array(self._start.bandwidth) * np.exp(shift[:count])
        return msgspec.structs.replace(
            self._start, bandwidth=bandwidth.tolist(), latency=moved.tolist()
        )

    def simulated_ns(self, shift: Float) -> Float:
        """Time after the last arrival to the mean end, shape (K,): the mean over the samples."""
        experiment = replace(self._experiment, network=self.network(shift))
        outcome = run(self._workload, experiment)
        return np.array(
            [
                np.mean(
                    [
                        outcome.completed_ns[nodes].mean() - outcome.issued_ns[nodes].max()
                        for nodes in samples
                    ]
                )
                for samples in self._nodes
            ]
        )

    def solve(self) -> tuple[Float, NDArray[np.bool_]]:
        """Find the shift that explains the transfers best, and which values they depend on."""
        from scipy.optimize import least_squares

        count = len(self._start.bandwidth)
        least = np.log(ENDPOINT_DELAY_NS / (np.array(self._start.latency) + ENDPOINT_DELAY_NS))
        lower = np.concatenate([np.full(count, -_MOST_SHIFT), np.maximum(least, -_MOST_SHIFT)])

        def residuals(value: Float) -> Float:
            off = np.log(np.maximum(self.simulated_ns(value - 1), 1)) - self._measured
            # Beyond a limit deviations grow by their root, so that an odd kind does not decide.
            size = _ROBUST * (np.sqrt(1 + 2 * np.abs(off) / _ROBUST) - 1)
            weighted = self._weight * np.where(np.abs(off) > _ROBUST, np.sign(off) * size, off)
            return np.concatenate([weighted, _PRIOR * (value - 1)])

        # SciPy's steps are relative, so values are moved away from 0.
        found = least_squares(
            residuals,
            np.ones(2 * count),
            bounds=(1 + np.minimum(lower, -1e-9), np.full(2 * count, 1 + _MOST_SHIFT)),
            diff_step=np.full(2 * count, _STEP),
            xtol=1e-5,
            ftol=1e-8,
            max_nfev=60,
        )
        moves = np.zeros(2 * count, np.bool_)
        for index in range(2 * count):
            aside = found.x - 1
            aside[index] += 10 * _STEP
            change = np.abs(self.simulated_ns(aside) / self.simulated_ns(found.x - 1) - 1)
            moves[index] = change.max() > _STEP / 10
        return found.x - 1, moves


def _samples_apart(
    world: int, kinds: list[_Kind]
) -> tuple[Workload, dict[int, tuple[int, ...]], list[list[Int]]]:
    """Make one workload of all samples, so far apart in time that none meets another.

    Returns
    -------
    workload : Workload
    groups : dict of int to tuple of int
        Communicators.
    nodes : list of list of int64
        Nodes of the members of each sample of each kind.
    """
    rows: list[list[tuple[int, int, str, int, list[int], dict[str, Any]]]]
    rows = [[_timer(0, 1, [])] for _ in range(world)]
    ready = [1] * world  # when the timers of each rank end, us
    groups: dict[tuple[int, ...], int] = {}
    where: list[list[list[tuple[int, int]]]] = []
    moment = 1 + _LEAST_SPACING_US
    for kind in kinds:
        where.append([])
        for npus, arrivals in kind.samples:
            tag = sum(map(len, where))
            group = groups.setdefault(npus, len(groups) + 1)
            placed = []
            for place, (npu, arrival) in enumerate(zip(npus, arrivals, strict=True)):
                timers = [row[0] for row in rows[npu] if row[1] == NodeType.COMP_NODE]
                number = len(rows[npu])
                at = moment + arrival
                rows[npu].append(_timer(number, at - ready[npu], timers[-1:]))
                ready[npu] = at
                rows[npu].append(_operation(kind, number + 1, [number], npus, place, group, tag))
                placed.append((npu, number + 1))
            where[-1].append(placed)
            took_us = int(kind.measured_ns / 1000) + 1
            moment += max(arrivals) + max(_SPACING * took_us, _LEAST_SPACING_US)
    builder = Builder("measured transfers")
    for of_rank in rows:
        builder.add_rank(of_rank)
    workload = builder.build()
    nodes = [
        [
            np.array([workload.rank_ptr[npu] + number for npu, number in placed])
            for placed in of_kind
        ]
        for of_kind in where
    ]
    return workload, {number: npus for npus, number in groups.items()}, nodes


def _timer(
    number: int, duration_us: int, after: list[int]
) -> tuple[int, int, str, int, list[int], dict[str, Any]]:
    return number, int(NodeType.COMP_NODE), "timer", duration_us, after, {}


def _operation(
    kind: _Kind,
    number: int,
    after: list[int],
    npus: tuple[int, ...],
    place: int,
    group: int,
    tag: int,
) -> tuple[int, int, str, int, list[int], dict[str, Any]]:
    attributes: dict[str, Any] = {"comm_size": kind.size_bytes}
    if kind.shown is None:
        node = (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE)[place]
        attributes |= {"comm_src": npus[0], "comm_dst": npus[1], "comm_tag": tag}
    else:
        node = NodeType.COMM_COLL_NODE
        attributes |= {"comm_type": int(kind.shown), "pg_name": str(group)}
    return number, int(node), kind.coll.label, 0, after, attributes


def _row(kind: _Kind, simulated_ns: float, experiment: Experiment, world: int) -> AstraFitRow:
    if kind.shown is None:
        workload = send_alone(world, kind.size_bytes, *kind.npus)
    else:
        workload, groups = collective_alone(world, kind.shown, kind.size_bytes, kind.npus)
        experiment = replace(experiment, groups=groups)
    return AstraFitRow(
        collective=kind.coll.label,
        size_bytes=kind.size_bytes,
        ranks=len(kind.npus),
        domains=kind.domains,
        count=kind.count,
        measured_ns=kind.measured_ns,
        simulated_ns=simulated_ns,
        alone_ns=cycles_alone(workload, experiment),
        residual_pct=(simulated_ns - kind.measured_ns) / kind.measured_ns * 100,
    )


def _notes(
    network: Network, inputs: AstraInputs, fitted: NetworkFile, moves: NDArray[np.bool_]
) -> list[str]:
    """Say of each value where it comes from."""
    how = "fitted under ASTRA-sim's physics to measured transfers, with their arrivals"
    notes = [f"network {network.name}, {how}"]
    count = len(inputs.tiers)
    before = inputs.network
    for dimension, tier in enumerate(inputs.tiers):
        name = f"dimension {dimension} ({network.tier_names[tier]})"
        values = (
            ("bandwidth", before.bandwidth, fitted.bandwidth, "GiB/s", dimension),
            ("latency", before.latency, fitted.latency, "ns", count + dimension),
        )
        for what, old, new, unit, index in values:
            if moves[index]:
                notes.append(
                    f"{name}: {what} {new[dimension]:.6g} {unit}, from {old[dimension]:.6g} as "
                    "fitted with the native engine"
                )
            else:
                notes.append(f"{name}: {what} as before, because no transfer depends on it")
    return notes
