"""What a network charges the transfers that were measured.

Transfers that were alone cost what their price says. Those that met others on their ports are
simulated with them, *open loop*: each begins when it was measured to begin, whatever became of
the others, so that one that is priced wrongly does not move the rest of the job. Of these the
time in flight is divided among those in flight together, as it is in what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import LaneKind, Lanes, Steps
from ..graph.compress import uncompressed
from ..simulator.choice import cheapest
from ..simulator.run import simulate
from .in_flight import divided_ns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances
    from ..graph.compress import CompressedGraph
    from ..simulator.network import Network
    from ..simulator.placement import Placement
    from .observed import Observed

    Float = NDArray[np.float64]


# Columns of the transfers that meet, as they are in the job.
_KEPT = (
    *("kind", "flavour", "name", "dur_ns", "coll", "size_bytes", "group", "seq", "peer", "tag"),
    *("transfer_ns", "eager", "dtype", "split"),
)


@dataclass(frozen=True)
class Charges:
    """Prices the transfers of an `Observed` on any network of the same shape and algorithms.

    Attributes
    ----------
    observed : Observed
        The transfers.
    together : CompressedGraph or None
        Those that met on their ports, as a graph without dependencies.
    place : int64, shape (I,)
        Which instance of that graph each instance of the job is, or -1.
    placement : Placement
        Where the ranks of the job sit.
    """

    observed: Observed
    together: CompressedGraph | None
    place: NDArray[np.int64]
    placement: Placement

    def samples_ns(self, network: Network, observed: Observed | None = None) -> Float:
        """Time of every sample, at least the 1 ns that measured times resolve.

        Parameters
        ----------
        network : Network
            Any of the shape and algorithms of the first.
        observed : Observed, optional
            Some of the transfers, by default all; all are in flight.
        """
        chosen = observed or self.observed
        if not len(chosen):
            return np.zeros(0)
        choice = cheapest(
            network, chosen.plans, chosen.operation, chosen.size_bytes.astype(np.float64)
        )
        time = (choice.phases.fixed_ns + choice.phases.work_ns).sum(axis=1)[chosen.kind]
        shared = np.flatnonzero(chosen.shared[chosen.kind])
        if self.together is not None and len(shared):
            happened = simulate(self.together, network=network, placement=self.placement).replay
            node, ptr = self.together.instances.node, self.together.instances.ptr
            rank = self.together.graph.rank_index[node]
            took = divided_ns(happened.release[node], happened.transferred[node], rank, ptr)
            time[shared] = took[self.place[chosen.instance[shared]]]
        charged: Float = np.maximum(time, 1.0)
        return charged

    def kinds_ns(self, network: Network, observed: Observed | None = None) -> Float:
        """Mean transfer time of every kind; parameters as `samples_ns`."""
        chosen = observed or self.observed
        total = np.bincount(chosen.kind, self.samples_ns(network, chosen), minlength=len(chosen))
        mean: Float = total / np.maximum(chosen.count, 1)
        return mean


def charges_of(
    graph: ExecutionGraph, instances: Instances, observed: Observed, placement: Placement
) -> Charges:
    """Prepare to price the transfers of a graph again and again.

    Parameters
    ----------
    graph, instances
        Of a trace.
    observed : Observed
        Of that graph.
    placement : Placement
        Where the ranks of the job sit.
    """
    place = np.full(len(instances), -1, dtype=np.int64)
    if not observed.shared.any():
        return Charges(observed, None, place, placement)
    place[observed.meeting] = np.arange(len(observed.meeting))
    together = _open_loop(graph, instances, observed.meeting, place)
    return Charges(observed, uncompressed(together), place, placement)


def _open_loop(
    graph: ExecutionGraph,
    instances: Instances,
    chosen: NDArray[np.int64],
    place: NDArray[np.int64],
) -> ExecutionGraph:
    """Make a graph of some instances, whose nodes begin when they were measured to begin."""
    member = np.zeros(len(instances), dtype=np.bool_)
    member[chosen] = True
    node = np.flatnonzero((graph.instance >= 0) & member[graph.instance])
    owners, rank = np.unique(graph.rank_index[node], return_inverse=True)
    rank = rank.reshape(-1).astype(np.int32)
    ranks, count = len(owners), len(node)
    ptr = np.searchsorted(rank, np.arange(ranks + 1)).astype(np.int64)
    first = int(graph.start_ns[node].min())
    return graph.with_(
        **{name: getattr(graph, name)[node] for name in _KEPT},
        ranks=graph.ranks[owners],
        hosts=tuple(graph.hosts[owner] for owner in owners.tolist()),
        devices=tuple(graph.devices[owner] for owner in owners.tolist()),
        rank_ptr=ptr,
        base_ns=np.zeros(ranks, dtype=np.int64),
        start_offset_ns=np.zeros(ranks, dtype=np.int64),
        lane=rank,
        lanes=Lanes(
            rank=np.arange(ranks, dtype=np.int32),
            kind=np.full(ranks, LaneKind.STREAM, dtype=np.int8),
            number=np.zeros(ranks, dtype=np.int64),
            servers=np.ones(ranks, dtype=np.int32),
        ),
        step=np.zeros(count, dtype=np.int32),
        # Relative to the first, so that times keep their precision.
        start_ns=graph.start_ns[node] - first,
        gap_ns=graph.start_ns[node] - first,
        tail_ns=np.zeros(count, dtype=np.int64),
        dep_ptr=np.zeros(count + 1, dtype=np.int64),
        dep_node=np.zeros(0, dtype=np.int64),
        dep_kind=np.zeros(0, dtype=np.int8),
        dep_lag_ns=np.zeros(0, dtype=np.int64),
        instance=place[graph.instance[node]].astype(np.int32),
        # The engine wants a step; nobody asks for its time.
        steps=Steps(
            names=("transfers",),
            begin_ns=np.zeros((1, ranks), dtype=np.int64),
            marker=(ptr[1:] - 1)[np.newaxis],
            completion_ns=np.full(1, -1, dtype=np.int64),
        ),
    )
