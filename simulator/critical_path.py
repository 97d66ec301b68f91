"""The chain of causes behind a step, and what it says about the most a resource can be worth.

From the node that completes a step the path goes back through whatever let each node go: the
dependency that came last, the last member to arrive, the node whose end freed a server. Its
segments join without holes, so the times of the kinds of segments sum exactly to the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.compiling import compiled
from ..graph.columns import EdgeKind, Flavour
from ..graph.compress import LAG as _LAG_PART
from ..graph.steps import device_work
from .event_loop import (
    CAUSE_FREED,
    CAUSE_TURN,
    NEED_NOTHING,
    Program,
    Replay,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .pricing import Prices
    from .run import Simulation

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: Kinds of segments; after these come the latencies of the tiers and then their bandwidths.
KINDS = (
    "compute",
    "copy",
    "host",
    "gap",
    "lag",
    "transfer",
    "start_offset",
    "sharing",
    "base",
    "endpoint",
)
_COMPUTE, _COPY, _HOST, _GAP, _LAG, _TRANSFER, _START_OFFSET, _SHARING, _BASE, _ENDPOINT = range(
    len(KINDS)
)
_TIERS = len(KINDS)
_TAIL = -1  # until it is known what of it belongs to the transfer

_OF_PART = np.full(len(Flavour) + 1, _GAP, dtype=np.int64)
_OF_PART[Flavour.COMPUTE] = _COMPUTE
_OF_PART[Flavour.COPY] = _COPY
_OF_PART[Flavour.HOST] = _HOST
_OF_PART[_LAG_PART] = _LAG

_END_EDGE = int(EdgeKind.END)


@dataclass(frozen=True)
class CriticalPath:
    """What led to the completion of one step (G segments, in order of time).

    Attributes
    ----------
    step : int
        Index of the step.
    begin_of_step_ns, end_of_step_ns : int
        The step itself; the path goes back further, to its origin.
    kinds : tuple of str
        Names that `what` indexes: ``compute``, ``copy``, ``host``, ``gap`` (and what is left of
        tails), ``lag`` (after a launch, for example), ``start_offset``; of priced transfers, and
        of what
        belongs to them of their tails, ``base``, ``endpoint``, of each tier the latency and the
        bandwidth under the name of the resource that scales it (``scaleup_latency``,
        ``scaleup_bw``, ...), and ``sharing``, what it took longer than alone because others used
        its ports; ``transfer`` where a transfer is as measured.
    node : int64, shape (G,)
        Node of the compressed graph.
    what : int64, shape (G,)
        Kind of segment.
    begin_ns, end_ns : int64, shape (G,)
        Each segment begins where the one before it ended.
    freed_by_server : bool
        Whether the path waits for a server of a queue with several.
    owned : dict of str to float
        Nanoseconds of the whole path, from its origin, that scale with a resource: compute,
        host, copy, and the latency and bandwidth of each tier.
    """

    step: int
    begin_of_step_ns: int
    end_of_step_ns: int
    kinds: tuple[str, ...]
    node: Int
    what: Int
    begin_ns: Int
    end_ns: Int
    freed_by_server: bool
    owned: dict[str, float]

    def split(self) -> dict[str, int]:
        """Time of each kind within the step; the values sum exactly to the step."""
        begin = np.maximum(self.begin_ns, self.begin_of_step_ns)
        inside = np.maximum(np.minimum(self.end_ns, self.end_of_step_ns) - begin, 0)
        total = np.zeros(len(self.kinds), dtype=np.int64)
        np.add.at(total, self.what, inside)
        return dict(zip(self.kinds, total.tolist(), strict=True))


def critical_path(simulation: Simulation, step: int) -> CriticalPath:
    """Walk back from the completion of a step.

    Parameters
    ----------
    simulation : Simulation
        Any.
    step : int
        Index of the step.

    Returns
    -------
    CriticalPath
    """
    segments, freed = _walk_back(simulation, step)
    of_tails = _split_tails(simulation, segments)
    length = np.bincount(segments.what, segments.end - segments.begin, minlength=_TRANSFER)
    owned = {kind: float(length[i]) for i, kind in enumerate(KINDS[:_GAP])}
    of_transfers = _split_transfers(simulation, segments)
    owned |= {kind: time + of_tails[kind] for kind, time in of_transfers.items()}
    _split_start_offset(simulation, segments)
    begin, end = (np.rint(t).astype(np.int64) for t in (segments.begin, segments.end))
    kept = end > begin
    completion = simulation.completion_ns.max(axis=1)
    return CriticalPath(
        step=step,
        begin_of_step_ns=int(completion[step - 1]) if step else 0,
        end_of_step_ns=int(completion[step]),
        kinds=_kinds(simulation),
        node=segments.node[kept],
        what=segments.what[kept],
        begin_ns=begin[kept],
        end_ns=end[kept],
        freed_by_server=freed,
        owned=owned,
    )


def utility_bound(
    baseline: Simulation, variant: Simulation, resource: str, factor: float
) -> tuple[float | None, str]:
    """Give the most that making a resource better can be worth, in percent of the step.

    The critical path of the baseline is still a chain of causes in the variant, shorter only by
    what the resource owns of it. So if R_k is what the resource owns of the path from its origin
    to the completion of step k, T_k the step and D_k how much earlier the variant completes it,
    the step of the variant takes at least ``L_k = T_k - (1 - 1/factor) R_k + D_(k-1)``, and the
    utility is at most ``(median T - median L) / median T`` over the steady steps. For a single
    step that is (1 - 1/factor) times the resource's share of the path.

    Parameters
    ----------
    baseline, variant : Simulation
        Of the same graph, on the same network but for the resource.
    resource : str
        A kind of segment of `CriticalPath`: ``compute``, ``host``, ``scaleup_bw``, ...
    factor : float
        How many times better the variant is in it.

    Returns
    -------
    bound_pct : float or None
        None where no bound holds. It is rigorous but for the rounding of completions to whole
        nanoseconds.
    reason : str
        Why none holds; else empty.
    """
    for simulation, which in ((baseline, "baseline"), (variant, "variant")):
        if simulation.shares_ports:
            return None, f"transfers share ports in the {which}"
        if simulation.slows_down:
            return None, "compute runs slower beside transfers, so that one changes the other"
    if not _same_algorithms(baseline.prices, variant.prices):
        return None, "transfers use other algorithms or protocols in the variant"
    times = baseline.step_times_ns
    earlier = baseline.completion_ns.max(axis=1) - variant.completion_ns.max(axis=1)
    steady = range(1, len(times)) if len(times) > 1 else range(1)
    median = float(np.median(times[list(steady)]))
    if median <= 0:
        return None, "the step takes no time"
    least = []
    for k in steady:
        path = baseline.critical_path(k)
        if resource not in path.owned:
            return None, f"{resource} owns no part of a critical path of fixed shape"
        if path.freed_by_server:
            return None, (
                "the critical path waits for a server of a communication queue with several, "
                "and another node may free it first"
            )
        saved = (1 - 1 / factor) * path.owned[resource]
        least.append(times[k] - saved + (earlier[k - 1] if k else 0))
    return (median - float(np.median(least))) / median * 100, ""


def _same_algorithms(one: Prices | None, other: Prices | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.algorithm, other.algorithm) and np.array_equal(
        one.protocol, other.protocol
    )


@dataclass
class _Segments:
    node: Int
    what: Int
    begin: Float
    end: Float

    def divide(self, index: Int, bounds: Float, what: Int) -> None:
        """Replace some segments by K pieces each.

        Parameters
        ----------
        index : int64, shape (D,)
            The segments, ascending.
        bounds : float64, shape (D, K + 1)
            Where the pieces begin and end.
        what : int64, shape (K,)
            Kinds of the pieces.
        """
        counts = np.ones(len(self.node), dtype=np.int64)
        counts[index] = len(what)
        first = (np.cumsum(counts) - counts)[index]
        for name in ("node", "what", "begin", "end"):
            setattr(self, name, np.repeat(getattr(self, name), counts))
        for j, kind in enumerate(what):
            self.what[first + j] = kind
            self.begin[first + j] = bounds[:, j]
            self.end[first + j] = bounds[:, j + 1]


def _kinds(simulation: Simulation) -> tuple[str, ...]:
    tiers = simulation.prices.tiers if simulation.prices is not None else ()
    return (*KINDS, *(f"{t}_latency" for t in tiers), *(f"{t}_bw" for t in tiers))


def _walk_back(simulation: Simulation, step: int) -> tuple[_Segments, bool]:
    """Segments from the origin to the completion, and whether a server was waited for."""
    graph, replay = simulation.compressed.graph, simulation.replay
    candidate = device_work(graph) & (graph.step <= step)
    candidate[graph.steps.marker[: step + 1].reshape(-1)] = True
    nodes = np.flatnonzero(candidate)
    last = nodes[np.argmax(replay.end[nodes])]
    room = 1024
    while True:
        nodes, what = np.empty(room, np.int64), np.empty(room, np.int64)
        begin, end = np.empty(room), np.empty(room)
        count, freed = _walk(
            simulation.program,
            replay,
            simulation.scale,
            _OF_PART,
            last,
            nodes,
            what,
            begin,
            end,
        )
        if count <= room:
            forward = slice(count - 1, None, -1)
            return _Segments(nodes[forward], what[forward], begin[forward], end[forward]), freed
        room = count


def _split_transfers(simulation: Simulation, segments: _Segments) -> dict[str, float]:
    """Divide priced transfers by cause, and return what each tier owns of them.

    What a tier owns is the price itself: the segments of a transfer with a negative base are
    shorter than the prices of its tiers.
    """
    prices = simulation.prices
    if prices is None:
        return {}
    index = np.flatnonzero(segments.what == _TRANSFER)
    index, instance = _priced(simulation, segments, index)
    paid = np.cumsum(_causes(prices, instance), axis=1)[:, :-1]
    release, end = segments.begin[index, None], segments.end[index, None]
    alone = release + simulation.transfer_ns[segments.node[index], None]
    bounds = np.hstack([release, np.clip(release + paid, release, alone), alone, end])
    kinds = _kinds(simulation)
    segments.divide(index, bounds, np.append(np.arange(_BASE, len(kinds)), _SHARING))
    return _owned_by_tiers(simulation, _causes(prices, instance))


def _split_tails(simulation: Simulation, segments: _Segments) -> dict[str, float]:
    """Divide what belongs to the transfers of their tails by cause; the rest are gaps.

    Returns what each tier owns of them.
    """
    tails = segments.what == _TAIL
    segments.what[tails] = _GAP
    index = np.flatnonzero(tails & (segments.end > segments.begin))
    prices = simulation.prices
    if prices is None:
        return {}
    index, instance = _priced(simulation, segments, index)
    node = segments.node[index]
    share = simulation.moving_ns[node] / np.maximum(simulation.transfer_ns[node], 1.0)
    causes = _causes(prices, instance) * share[:, None]
    begin, end = segments.begin[index, None], segments.end[index, None]
    until = np.clip(begin + np.cumsum(causes, axis=1), begin, end)
    kinds = _kinds(simulation)
    pieces = np.append(np.arange(_BASE, len(kinds)), _GAP)
    segments.divide(index, np.hstack([begin, until, end]), pieces)
    return _owned_by_tiers(simulation, causes)


def _priced(simulation: Simulation, segments: _Segments, index: Int) -> tuple[Int, Int]:
    """Choose the segments whose transfers have a price, and name their instances."""
    instance = simulation.compressed.graph.instance[segments.node[index]].astype(np.int64)
    priced = instance >= 0
    if simulation.prices is not None:
        priced[priced] = ~simulation.prices.measured[instance[priced]]
    return index[priced], instance[priced]


def _causes(prices: Prices, instance: Int) -> Float:
    """Price of instances by cause: base, endpoint, latencies and bandwidths of the tiers."""
    return np.column_stack(
        [
            prices.base_ns[instance],
            prices.endpoint_ns[instance],
            prices.latency_ns[instance],
            prices.bandwidth_ns[instance],
        ]
    )


def _owned_by_tiers(simulation: Simulation, causes: Float) -> dict[str, float]:
    """Add up what each tier owns of some causes."""
    tiers = causes[:, _ENDPOINT - _BASE + 1 :].sum(axis=0)
    return dict(zip(_kinds(simulation)[_TIERS:], tiers.tolist(), strict=True))


def _split_start_offset(simulation: Simulation, segments: _Segments) -> None:
    """Call the gaps before a rank began its first step what they are."""
    graph = simulation.compressed.graph
    rank = np.searchsorted(graph.rank_ptr, segments.node, side="right") - 1
    begun = graph.start_offset_ns[rank].astype(np.float64)
    unexplained = (segments.what == _GAP) | (segments.what == _LAG)
    index = np.flatnonzero(unexplained & (segments.begin < begun) & (segments.end > 0))
    begin, end = segments.begin[index], segments.end[index]
    zero = np.clip(0.0, begin, end)
    bounds = np.column_stack([begin, zero, np.clip(begun[index], zero, end), end])
    segments.divide(index, bounds, np.array([_GAP, _START_OFFSET, _GAP]))


@compiled
def _walk(
    prog: Program,
    replay: Replay,
    scale: Float,
    of_part: Int,
    node: int,
    nodes: Int,
    what: Int,
    begins: Float,
    ends: Float,
) -> tuple[int, bool]:
    """Fill the segments from the end of a node back to its origin.

    Returns how many there are, which may be more than there was room for, and whether a server
    was waited for.
    """
    room, count, freed = len(nodes), 0, False
    from_end = True
    while True:
        start = replay.start[node]
        if from_end and prog.need[node] == NEED_NOTHING:
            parts = prog.part_ptr[node + 1] - prog.part_ptr[node]
            time = start
            for j in range(parts):
                part = prog.part_ptr[node] + j
                begin = time
                time += prog.part_ns[part] * scale[prog.part_kind[part]]
                at = count + parts - 1 - j
                if at < room:
                    nodes[at], what[at] = node, of_part[prog.part_kind[part]]
                    begins[at], ends[at] = begin, time
            count += parts
        elif from_end:
            release = replay.release[node]
            if count + 1 < room:
                nodes[count], what[count] = node, _TAIL
                begins[count], ends[count] = replay.transferred[node], replay.end[node]
                nodes[count + 1], what[count + 1] = node, _TRANSFER
                begins[count + 1], ends[count + 1] = release, replay.transferred[node]
            count += 2
            node = replay.bound_member[node]
            start = replay.start[node]

        waiting = node
        taken = replay.ready[node]
        if replay.cause[node] == CAUSE_FREED:
            freed = True
            taken = replay.end[replay.cause_node[node]]
        elif replay.cause[node] == CAUSE_TURN:
            waiting = replay.cause_node[node]
            taken = replay.ready[waiting]
        if count < room:
            nodes[count], what[count] = node, _GAP
            begins[count], ends[count] = taken, start
        count += 1
        if replay.cause[node] == CAUSE_FREED:
            node, from_end = replay.cause_node[node], True
            continue

        node = waiting
        edge = replay.bound_edge[node]
        if edge < 0:
            if count < room:
                nodes[count], what[count] = node, _GAP
                begins[count], ends[count] = min(0.0, taken), taken
            return count + 1, freed
        other = prog.dep_node[edge]
        from_end = prog.dep_kind[edge] == _END_EDGE
        if count < room:
            nodes[count], what[count] = node, _LAG
            begins[count], ends[count] = replay.end[other], taken
            if not from_end:
                begins[count] = replay.start[other]
        count += 1
        node = other
