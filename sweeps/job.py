"""A job on its baseline: the network it was traced on, simulated once.

Everything that asks what another network would do starts here, so that the graph is compressed
and the baseline simulated once, and its error known before anything hypothetical is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..base.errors import GraphError, UsageError
from ..base.progress import Progress, silent
from ..calibration.baseline import baseline_network
from ..graph.compress import compress
from ..graph.steps import step_times
from ..simulator.run import simulate
from .results import StepRow

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph
    from ..graph.compress import CompressedGraph
    from ..simulator.network import Network
    from ..simulator.placement import Placement
    from ..simulator.pricing import Prices
    from ..simulator.run import Simulation

#: What every simulation leaves out, said with every result.
LIMITS = (
    "compute durations are as measured, with whatever slowdown overlap with communication caused",
    "transfers share ports fairly; what happens inside the fabric beyond ports is not modelled",
)


@dataclass(frozen=True, eq=False)
class Job:
    """A job, its baseline network and the baseline.

    Attributes
    ----------
    compressed : CompressedGraph
        The job.
    network : Network
        The network it was traced on, as far as it is known, with all assumptions.
    placement : Placement
        Where its ranks sit.
    baseline : Simulation
        The job on that network.
    warnings : list of str
        From the conversion, the baseline network and the simulation.
    """

    compressed: CompressedGraph
    network: Network
    placement: Placement
    baseline: Simulation
    warnings: list[str]

    @property
    def graph(self) -> ExecutionGraph:
        """The graph as it was converted."""
        return self.compressed.original

    @property
    def prices(self) -> Prices:
        """What every transfer costs on the baseline network."""
        prices = self.baseline.prices
        assert prices is not None
        return prices

    @property
    def baseline_error_pct(self) -> float | None:
        """(baseline - measured) / measured x 100, where there is a measured step."""
        return error_pct(self.baseline.step_ns, self.baseline.measured_step_ns)

    @property
    def steps(self) -> list[StepRow]:
        """The recorded steps, measured and in the baseline."""
        rows = self.baseline.steps
        return [
            StepRow(
                name=row.name,
                measured_ns=row.measured_ns,
                baseline_ns=row.step_ns,
                used=k > 0 or len(rows) == 1,
            )
            for k, row in enumerate(rows)
        ]


def prepare(
    graph: ExecutionGraph,
    *,
    network: str | Path | None = None,
    rank_map: Mapping[int, int] | None = None,
    draws: int = 0,
    progress: Progress = silent,
) -> Job:
    """Find the baseline network of a job and simulate the job on it.

    Parameters
    ----------
    graph : ExecutionGraph
        The job.
    network : str or Path, optional
        Preset or file of the network it was traced on; by default the preset that matches the
        trace, with what the trace's own transfers say.
    rank_map : mapping of int to int, optional
        Scale-up domain of every rank.
    draws : int
        Bootstrap draws of the calibration on the trace, for what else its network may be.
    progress : Progress
        Told what is being done.

    Returns
    -------
    Job

    Raises
    ------
    NetworkError
        If there is no such network, or it does not fit the job.
    GraphError
        If the graph is unsound or cannot be priced.
    """
    compressed = compress(graph)
    if network is None:
        progress("calibrating on the trace", 0, 0)
    found = baseline_network(graph, network, rank_map=rank_map, draws=draws)
    progress("simulating the baseline", 0, 0)
    baseline = simulate(compressed, network=found.network, placement=found.placement)
    if baseline.step_ns <= 0:
        raise GraphError("its step takes no time", file=graph.trace)
    return Job(
        compressed=compressed,
        network=replace(found.network, assumptions=list(found.assumptions)),
        placement=found.placement,
        baseline=baseline,
        warnings=list(dict.fromkeys([*graph.coverage.warnings, *baseline.warnings])),
    )


def error_pct(simulated_ns: int, measured_ns: int | None) -> float | None:
    """(simulated - measured) / measured x 100; None without a measurement."""
    return (simulated_ns - measured_ns) / measured_ns * 100 if measured_ns else None


def beyond_limit(error: float | None, limit_pct: float) -> bool | None:
    """Whether an error is beyond a limit; None where it is not known."""
    return None if error is None else abs(error) > limit_pct


def check_limit(limit_pct: float) -> None:
    """Refuse a limit that makes no sense.

    Raises
    ------
    UsageError
        For one that is negative or no number.
    """
    if not (math.isfinite(limit_pct) and limit_pct >= 0):
        raise UsageError(f"the limit must be 0 % or more, is {limit_pct:g}")


def has_timeline(graph: ExecutionGraph) -> bool:
    """Whether a graph knows when its steps really ended."""
    return bool((graph.steps.completion_ns >= 0).all())


def job_step_times(simulation: Simulation) -> NDArray[np.int64]:
    """Time of every step of the job, shape (S,)."""
    return step_times(simulation.completion_ns.max(axis=1))
