"""What an error consists of: a simulated step against a measured one, part by part.

Two views, each of which sums to the whole error. The critical paths: what each kind of segment is
longer or shorter than on the path of the measured timeline, whose transfers are divided by the
prices that the network of the simulation gives them. What a measured transfer took beyond its
price is put down to sharing, and what it took less, to bandwidth. And the ranks: what of their
time goes into each category, on average, waiting for each other included.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import GraphError, UsageError
from ..graph.columns import Collective
from ..graph.compress import compress
from ..simulator.accounting import CATEGORIES
from ..simulator.pricing import price
from ..simulator.run import simulate
from ..simulator.tails import moving_ns
from .job import error_pct, has_timeline
from .results import Anatomy, ErrorPart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..graph.columns import ExecutionGraph
    from ..simulator.run import Simulation
    from .job import Job
    from .single import Single


#: Share of the operations of a step that two traces of one job have in common at least.
LEAST_ALIKE = 0.5


def anatomy(single: Single, truth: ExecutionGraph) -> Anatomy:
    """Compare a simulation with what was measured.

    Parameters
    ----------
    single : Single
        A simulation on a network.
    truth : ExecutionGraph
        The same job, measured on that network: for a baseline its own trace.

    Returns
    -------
    Anatomy

    Raises
    ------
    UsageError
        If no network was simulated.
    GraphError
        If the truth has other ranks, no measured timeline, or mostly other communication.
    NetworkError
        If the network does not fit it.
    """
    if single.job is None:
        raise UsageError("measured transfers are what was measured: there is no error to explain")
    file = truth.trace or None
    if truth.ranks.tolist() != single.graph.ranks.tolist():
        raise GraphError(
            f"has ranks {_listed(truth)}, the job has {_listed(single.graph)}", file=file
        )
    if not has_timeline(truth):
        raise GraphError("has no measured timeline to compare with", file=file)
    if _alike(single.graph, truth) < LEAST_ALIKE:
        raise GraphError(
            f"communicates otherwise than {single.graph.trace}: it is of another job", file=file
        )
    measured = _priced(simulate(compress(truth), measured=True), single.job)
    predicted_ns, true_ns = single.simulation.step_ns, measured.step_ns
    if true_ns <= 0:
        raise GraphError("its step takes no time", file=file)
    return Anatomy(
        truth=truth.trace,
        predicted_step_ns=predicted_ns,
        true_step_ns=true_ns,
        error_pct=error_pct(predicted_ns, true_ns) or 0.0,
        path=_parts(single.simulation.critical_split, measured.critical_split, true_ns),
        ranks=_parts(_mean_rank(single.simulation), _mean_rank(measured), true_ns),
    )


def _alike(graph: ExecutionGraph, truth: ExecutionGraph) -> float:
    """Share of the operations of a step, by type and size, that two jobs have in common."""
    counts = [_operations(one) for one in (graph, truth)]
    most = max(sum(one.values()) for one in counts)
    common = sum(min(count, counts[1][key]) for key, count in counts[0].items())
    return common / most if most else 1.0


def _operations(graph: ExecutionGraph) -> Counter[tuple[int, int]]:
    rows = np.flatnonzero(graph.coll != Collective.NONE)
    kinds = zip(graph.coll[rows].tolist(), graph.size_bytes[rows].tolist(), strict=True)
    counted = Counter(kinds)
    steps = max(len(graph.steps), 1)
    # Of a whole trace; of one that has another number of steps, as many a step.
    return Counter({kind: -(-count // steps) for kind, count in counted.items()})


def _listed(graph: ExecutionGraph) -> str:
    ranks = graph.ranks.tolist()
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if ranks[8:] else "")


def _priced(measured: Simulation, job: Job) -> Simulation:
    """Let the transfers of a measured replay be divided by the prices of a network."""
    compressed = measured.compressed
    graph = compressed.graph
    prices = price(graph, compressed.instances, job.network, job.placement)
    transfer = measured.transfer_ns.copy()
    joined = graph.instance >= 0
    instance = graph.instance[joined]
    total = np.where(prices.measured[instance], np.inf, prices.total_ns[instance])
    transfer[joined] = np.minimum(transfer[joined], total)
    moving = np.where(joined, moving_ns(graph, transfer), 0.0)
    return dataclasses.replace(measured, prices=prices, transfer_ns=transfer, moving_ns=moving)


def _mean_rank(simulation: Simulation) -> dict[str, float]:
    per_rank = simulation.per_rank
    return {
        category: sum(getattr(rank, f"{category}_ns") for rank in per_rank) / len(per_rank)
        for category in CATEGORIES
    }


def _parts(
    predicted: Mapping[str, float], true: Mapping[str, float], step_ns: int
) -> list[ErrorPart]:
    """What differs, most first."""
    parts = [
        ErrorPart(
            part=name,
            predicted_ns=predicted.get(name, 0),
            true_ns=true.get(name, 0),
            difference_pct=(predicted.get(name, 0) - true.get(name, 0)) / step_ns * 100,
        )
        for name in dict.fromkeys([*predicted, *true])
        if predicted.get(name) or true.get(name)
    ]
    return sorted(parts, key=lambda part: -abs(part.difference_pct))
