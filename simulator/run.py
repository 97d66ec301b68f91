"""Simulate a graph: the one call that the rest of the package makes, and its result.

`simulate` prices the transfers, runs the engine and wraps what happened; the tables of a
`Simulation` are worked out when they are asked for, since a sweep mostly wants the step alone.
The compiled parts are imported on the first simulation, so that importing this module is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import NetworkError, UsageError
from ..base.once import once_for_each
from ..graph.columns import Collective, ExecutionGraph, Flavour
from ..graph.compress import NUM_PART_KINDS, CompressedGraph, compress, uncompressed
from ..graph.steps import (
    headline_ns,
    headline_parts,
    headline_steps,
    step_completions,
    step_times,
)
from ..graph.validate import describe_node, rank_of
from .interference import carried_over, disturbed, without_slowdown
from .placement import place
from .pricing import price
from .results import RankTime, StepTime
from .tails import moving_ns, tails_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .critical_path import CriticalPath
    from .event_loop import Flows, Program, Replay
    from .network import Network
    from .placement import Placement
    from .pricing import Prices


#: No single transfer may take longer: 11 days, of which a job of many still fits the clock.
MOST_NS = 1e15

# Two transfers that only touch, one ending as the other begins, may meet for a rounding error.
_NOTICEABLE_NS = 1e-3


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened in a simulation.

    Attributes
    ----------
    compressed : CompressedGraph
        The graph that ran.
    program : Program
        The same for the engine.
    flows : Flows
        The transfers that ports carry, for the engine.
    replay : Replay
        Start, release and end of every compressed node, and what it waited for.
    transfer_ns : float64, shape (N,)
        Transfer time of every communication node, alone.
    scale : float64, shape (NUM_PART_KINDS,)
        What each kind of part was multiplied by.
    prices : Prices or None
        Prices of the instances; None for a measured replay.
    completion_ns : int64, shape (S, R)
        Completion of each step on each rank alone.
    moving_ns : float64, shape (N,)
        What of each tail belongs to the transfer (see `tails`); 0 in a measured replay.
    measured_graph : ExecutionGraph
        The graph with its measured durations, before compression.
    slows_down : bool
        Whether compute took longer beside transfers (see `interference`).
    warnings : list of str
        What to know before trusting the result.
    """

    compressed: CompressedGraph
    program: Program
    flows: Flows
    replay: Replay
    transfer_ns: NDArray[np.float64]
    scale: NDArray[np.float64]
    prices: Prices | None
    completion_ns: NDArray[np.int64]
    moving_ns: NDArray[np.float64]
    measured_graph: ExecutionGraph
    slows_down: bool = False
    warnings: list[str] = field(default_factory=list)

    @cached_property
    def steps(self) -> list[StepTime]:
        """The steps in order; the first is a window from the zero of the clock."""
        graph = self.compressed.graph
        measured = _measured_times(graph)
        completion = self.completion_ns.max(axis=1).tolist()
        return [
            StepTime(name, None if measured is None else int(measured[k]), time, completion[k])
            for k, (name, time) in enumerate(
                zip(graph.steps.names, self.step_times_ns.tolist(), strict=True)
            )
        ]

    @property
    def step_times_ns(self) -> NDArray[np.int64]:
        """Time of every step, shape (S,)."""
        return step_times(self.completion_ns.max(axis=1))

    @property
    def step_ns(self) -> int:
        """The headline: median time of the steady steps, or the time of a single one."""
        return headline_ns(self.step_times_ns)

    @property
    def measured_step_ns(self) -> int | None:
        """The same of the measured steps, where the graph has them."""
        measured = _measured_times(self.compressed.graph)
        return None if measured is None else headline_ns(measured)

    @cached_property
    def sharing_ns(self) -> NDArray[np.float64]:
        """How much longer the transfer of every node took because of others, shape (N,).

        0 where a node does not communicate.
        """
        alone = self.replay.release + self.transfer_ns
        return np.nan_to_num(self.replay.transferred - alone, nan=0.0)

    @property
    def shares_ports(self) -> bool:
        """Whether any transfer was slowed by another that used the same port."""
        return bool((self.sharing_ns > _NOTICEABLE_NS).any())

    def met(self, node: int) -> list[tuple[int, float]]:
        """Find the transfers that used a port of a node's transfer at the same time.

        Returns
        -------
        list of (int, float)
            A node of each and for how many nanoseconds they met, longest first.
        """
        from .sharing import met

        return met(self.flows, self.replay, node)

    @cached_property
    def categories(self) -> NDArray[np.int64]:
        """Time categories of every rank and step, shape (R, S, 8): see `accounting.account`."""
        from .accounting import account

        graph = self.compressed.graph
        return account(
            graph.rank_ptr,
            graph.start_offset_ns,
            self.completion_ns.max(axis=1),
            self.program,
            self.replay,
            self.scale,
        )

    @cached_property
    def per_rank(self) -> list[RankTime]:
        """Where the headline step goes on each rank."""
        from .accounting import CATEGORIES

        chosen = list(headline_steps(self.step_times_ns))
        middle = self.categories[:, chosen]
        hidden = middle[:, :, len(CATEGORIES) :]
        table = np.hstack(
            [headline_parts(middle[:, :, : len(CATEGORIES)]), headline_parts(hidden)]
        ).tolist()
        fields = [f"{category}_ns" for category in CATEGORIES] + ["hidden_comm_ns"]
        ranks = self.compressed.graph.ranks.tolist()
        finish = self.completion_ns[-1].tolist()
        original = self.measured_graph
        measured: list[int] | list[None] = [None] * len(ranks)
        if _measured_times(original) is not None:
            measured = step_completions(original, original.end_ns)[-1].tolist()
        return [
            RankTime(rank, end, **dict(zip(fields, row, strict=True)), measured_finish_ns=seen)
            for rank, end, row, seen in zip(ranks, finish, table, measured, strict=True)
        ]

    @property
    def worst_rank_error_pct(self) -> float | None:
        """Simulated against measured completion of a step on a rank, where they differ most.

        In percent of the measured completion on the graph's clock, with its sign; None where
        the graph has no measured steps.
        """
        original = self.measured_graph
        if _measured_times(original) is None:
            return None
        measured = step_completions(original, original.end_ns)
        error = (self.completion_ns - measured) / np.maximum(measured, 1) * 100
        return float(error.reshape(-1)[np.argmax(np.abs(error))])

    def original_intervals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end of every node of the graph before compression, in nanoseconds."""
        compressed, start, end = self.compressed, self.replay.start, self.replay.end
        length = self.program.part_ns * self.scale[compressed.part_kind]
        until = np.concatenate([[0.0], np.cumsum(length)])
        node, part = compressed.node_of, compressed.part_of
        inside = part >= 0
        begin, finish = start[node], end[node]
        first = begin[inside] - until[compressed.part_ptr[node[inside]]]
        begin[inside] = first + until[part[inside]]
        finish[inside] = first + until[part[inside] + 1]
        return np.rint(begin).astype(np.int64), np.rint(finish).astype(np.int64)

    def critical_path(self, step: int) -> CriticalPath:
        """Give what led to the completion of a step."""
        from .critical_path import critical_path

        if step not in self._paths:
            self._paths[step] = critical_path(self, step)
        return self._paths[step]

    @cached_property
    def _paths(self) -> dict[int, CriticalPath]:
        return {}

    @property
    def critical_split(self) -> dict[str, int]:
        """Where the headline step goes on the critical path.

        The mean of the one or two steps that define the median; the values sum exactly to it.
        """
        chosen = headline_steps(self.step_times_ns)
        splits = [self.critical_path(k).split() for k in chosen]
        mean = headline_parts(np.array([list(split.values()) for split in splits]))
        return dict(zip(splits[0], mean.tolist(), strict=True))


def simulate(
    graph: ExecutionGraph | CompressedGraph,
    *,
    network: Network | None = None,
    placement: Placement | None = None,
    measured: bool = False,
    compute_scale: float = 1.0,
    host_scale: float = 1.0,
    prices: Prices | None = None,
) -> Simulation:
    """Simulate a graph on a network, or replay its measured transfers.

    Parameters
    ----------
    graph : ExecutionGraph or CompressedGraph
        The job. Compress a graph that is simulated more than once.
    network : Network, optional
        Prices the transfers.
    placement : Placement, optional
        Where the ranks sit; by default from host names, else contiguous.
    measured : bool
        Transfers take as long as they did in the trace, without a network.
    compute_scale, host_scale : float
        Multiply the durations of computation and of host work. Copies and gaps keep theirs.
    prices : Prices, optional
        Already worked out, on the network if one is given.

    Returns
    -------
    Simulation

    Raises
    ------
    UsageError
        If a network or prices are given for a measured replay, or neither without it; or for a
        scale that is negative or not finite.
    GraphError
        If the graph is unsound, or cannot be priced.
    NetworkError
        If the network does not fit the job, or a price comes out negative.
    """
    if (network is not None or prices is not None) == measured:
        raise UsageError("give either a network or prices, or ask for measured transfers")
    scale = np.ones(NUM_PART_KINDS)
    scale[Flavour.COMPUTE], scale[Flavour.HOST] = compute_scale, host_scale
    if not (np.isfinite(scale) & (scale >= 0)).all():
        raise UsageError("compute_scale and host_scale must be finite and not negative")
    compressed = graph if isinstance(graph, CompressedGraph) else uncompressed(graph)
    if network is not None and prices is None:
        where = placement or _default_placement(compressed.graph, network)
        prices = price(compressed.graph, compressed.instances, network, where)
    measured_graph = compressed.original
    overlap = network.overlap if network is not None else None
    if overlap is not None:
        compressed = _undisturbed(compressed, overlap.slowdown)

    from .engine import flows, no_flows, replay
    from .event_loop import NEED_ITSELF

    program = _program(compressed)
    transfer, alone = _transfers(compressed, prices)
    warnings = list(prices.warnings) if prices is not None else []
    if alone.any():
        program = program._replace(
            need=np.where(alone, np.int8(NEED_ITSELF), program.need),
            tail=np.where(alone, 0.0, program.tail),
        )
        reason = "operation was not matched across ranks"
        reason += " or has no measured transfer" if measured else ""
        warnings.append(
            f"{int(alone.sum())} communication nodes wait for nobody and keep their measured "
            f"duration: their {reason}"
        )
    moving = np.zeros(compressed.graph.num_nodes)
    if prices is not None:
        # Of nodes that wait for others; the rest keep what they were measured with.
        ends = compressed.graph.instance >= 0
        moving = np.where(ends, moving_ns(compressed.graph, transfer), 0.0)
        tail = np.where(ends, tails_ns(compressed.graph, transfer), program.tail)
        program = program._replace(tail=tail)
    carried = (
        no_flows(compressed)
        if prices is None or prices.transfers is None
        else flows(compressed, prices.transfers, prices.ports, prices.sets, transfer)
    )
    happened = replay(compressed, program, carried, transfer, scale)
    slowdown = 0.0 if overlap is None else carried_over(compressed.graph, happened, overlap)
    if slowdown:
        program, happened, settled = disturbed(
            compressed,
            program,
            happened,
            lambda changed: replay(compressed, changed, carried, transfer, scale),
            scale,
            slowdown,
        )
        if not settled:
            warnings.append(
                "compute and the transfers that slow it down did not settle: the step is uncertain "
                "by a little"
            )
    return Simulation(
        compressed=compressed,
        program=program,
        flows=carried,
        replay=happened,
        transfer_ns=transfer,
        scale=scale,
        prices=prices,
        completion_ns=step_completions(compressed.graph, np.rint(happened.end).astype(np.int64)),
        moving_ns=moving,
        measured_graph=measured_graph,
        slows_down=slowdown > 0,
        warnings=warnings,
    )


@once_for_each
def _program(compressed: CompressedGraph) -> Program:
    """Lay out a graph once for all its simulations."""
    from .engine import program

    return program(compressed)


@once_for_each
def _undisturbed_of(_: CompressedGraph) -> dict[float, CompressedGraph]:
    """A graph with slowdowns taken out, as far as they were asked for."""
    return {}


def _undisturbed(compressed: CompressedGraph, slowdown: float) -> CompressedGraph:
    """Take a slowdown out of the measured durations, once for all simulations of a graph."""
    known = _undisturbed_of(compressed)
    if slowdown not in known:
        graph = without_slowdown(compressed.original, slowdown)
        contracted = compressed.graph.num_nodes < compressed.original.num_nodes
        known[slowdown] = compress(graph) if contracted else uncompressed(graph)
    return known[slowdown]


def _default_placement(graph: ExecutionGraph, network: Network) -> Placement:
    return place(network, graph.ranks, graph.hosts, graph.world_size)


def _transfers(
    compressed: CompressedGraph, prices: Prices | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Transfer time of every node, and which nodes just keep their measured duration."""
    graph = compressed.graph
    communicates = graph.coll != Collective.NONE
    alone = communicates & (graph.instance < 0)
    if prices is None:
        transfer = graph.transfer_ns.astype(np.float64)
        alone |= communicates & (graph.transfer_ns < 0)
    else:
        total = prices.total_ns
        _check_prices(compressed, total)
        transfer = np.zeros(graph.num_nodes)
        transfer[graph.instance >= 0] = total[graph.instance[graph.instance >= 0]]
    transfer[alone] = graph.dur_ns[alone]
    return transfer, alone


def _check_prices(compressed: CompressedGraph, total_ns: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(~((total_ns >= 0) & (total_ns <= MOST_NS)))
    if len(bad):
        graph, instances = compressed.graph, compressed.instances
        node = int(instances.node[instances.ptr[bad[0]]])
        raise NetworkError(
            f"its transfer would take {total_ns[bad[0]]:.1f} ns on this network",
            rank=rank_of(graph, node),
            place=describe_node(graph, node),
        )


def _measured_times(graph: ExecutionGraph) -> NDArray[np.int64] | None:
    completion = graph.steps.completion_ns
    return None if (completion < 0).any() else step_times(completion)
