"""What ASTRA-sim cannot run, found before anything runs (specification, section 14).

Where the real program would abort, throw an exception that stops one node for ever, or stall, a
check raises a `GraphError` (or, of the settings, a `NetworkError`) with rank, node and rule. Nodes
that never become ready are not looked at: ASTRA-sim drops them silently, which is a warning.
Collectives are checked in `collectives`, what only shows in a run in `stalls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import GraphError, NetworkError
from .experiment import Backend
from .names import CommType, NodeType
from .workload import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .experiment import Experiment
    from .workload import Workload

    Bool = NDArray[np.bool_]

_SUPPORTED = (
    CommType.ALL_REDUCE,
    CommType.ALL_GATHER,
    CommType.BROADCAST,
    CommType.ALL_TO_ALL,
    CommType.REDUCE_SCATTER,
)

#: Most queues, and chunks of one collective, of all ranks together: they are kept in memory.
_MOST_CELLS = 20_000_000


def check_experiment(experiment: Experiment, ranks: int) -> None:
    """Refuse settings that ASTRA-sim does not take, or whose physics nobody specified.

    Raises
    ------
    NetworkError
    """
    network, system = experiment.network, experiment.system
    if ranks != network.ranks:
        raise NetworkError(
            f"the network has {network.ranks} ranks and the trace {ranks}",
            place="npus_count",
        )
    if system.model_shared_bus:
        raise NetworkError("a shared memory bus is not modelled", place="model-shared-bus")
    if system.endpoint_delay < 0:
        raise NetworkError(f"{system.endpoint_delay} is negative", place="endpoint-delay")
    if experiment.queues_per_dim < 1:
        raise NetworkError(f"{experiment.queues_per_dim} queues per dimension")
    for place, cells in (
        ("num-queues-per-dim", experiment.queues_per_dim * len(network.topology)),
        ("preferred-dataset-splits", system.preferred_dataset_splits),
    ):
        if cells * ranks > _MOST_CELLS:
            raise NetworkError(
                f"{cells} for each of {ranks} ranks are more than {_MOST_CELLS:,} in all",
                place=place,
            )
    if experiment.backend is Backend.AWARE:
        if len(network.topology) > 1:
            raise NetworkError(
                f"{len(network.topology)} dimensions: ASTRA-sim's congestion-aware backend takes "
                "one only",
                place="topology",
            )
        if network.topology[0] == "Ring" and ranks == 2:
            raise NetworkError(
                "a ring of 2 ranks: ASTRA-sim's congestion-aware backend aborts",
                place="npus_count",
            )


def check_nodes(workload: Workload, experiment: Experiment, used: Bool) -> None:
    """Refuse nodes that ASTRA-sim cannot run.

    Parameters
    ----------
    workload : Workload
    experiment : Experiment
    used : bool, shape (N,)
        Nodes that ever become ready.

    Raises
    ------
    GraphError
        Of the first rule that a node breaks.
    """
    for broken, reason in _rules(workload, experiment):
        found = np.flatnonzero(broken & used)
        if len(found):
            node = int(found[0])
            raise GraphError(
                reason.format(
                    **{
                        name: int(getattr(workload, name)[node])
                        for name in ("src", "dst", "comm_type", "size")
                    }
                ),
                file=workload.source,
                rank=workload.rank_of(node),
                place=workload.describe(node),
            )


def _rules(workload: Workload, experiment: Experiment) -> Iterator[tuple[Bool, str]]:
    kind = workload.type
    rank = np.repeat(np.arange(workload.ranks), np.diff(workload.rank_ptr))
    yield kind == NodeType.METADATA_NODE, "ASTRA-sim aborts on a METADATA_NODE"
    if experiment.system.track_local_mem:
        yield (
            workload.tracked == 0,
            (
                "track-local-mem is on, and the node lacks the attributes inputs and outputs: "
                "ASTRA-sim throws, and the node never completes"
            ),
        )
    if experiment.system.replay_only:
        return
    collective = kind == NodeType.COMM_COLL_NODE
    send, receive = kind == NodeType.COMM_SEND_NODE, kind == NodeType.COMM_RECV_NODE
    on_cpu = (workload.on_cpu != 0) & (workload.on_cpu != ABSENT)
    yield (
        on_cpu & (collective | send | receive),
        "communication with is_cpu_op: ASTRA-sim throws, and the node never completes",
    )
    memory = (kind == NodeType.MEM_LOAD_NODE) | (kind == NodeType.MEM_STORE_NODE)
    roofline = (kind == NodeType.COMP_NODE) & ~on_cpu & bool(experiment.system.roofline_enabled)
    for nodes, column, attribute in (
        (collective, workload.comm_type, "comm_type"),
        (
            (collective & (workload.comm_type != CommType.BROADCAST)) | send | receive,
            workload.size,
            "comm_size",
        ),
        (send, workload.dst, "comm_dst"),
        (receive, workload.src, "comm_src"),
        (send | receive, workload.tag, "comm_tag"),
        (memory, workload.tensor_size, "tensor_size"),
        (roofline, workload.num_ops, "num_ops"),
        (roofline, workload.tensor_size, "tensor_size"),
    ):
        yield (
            nodes & (column == ABSENT),
            f"lacks the attribute {attribute}: ASTRA-sim throws, and the node never completes",
        )
    yield (
        collective & ~np.isin(workload.comm_type, _SUPPORTED),
        (
            "comm_type {comm_type} is not among the collectives that ASTRA-sim runs (ALL_REDUCE, "
            "ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST): it throws, and the node never "
            "completes"
        ),
    )
    for nodes, own, attribute in (
        (send, workload.src, "comm_src {src}"),
        (receive, workload.dst, "comm_dst {dst}"),
    ):
        yield (
            nodes & (own != ABSENT) & (own != rank),
            f"{attribute} is not its own rank: ASTRA-sim throws, and the node never completes",
        )
    for nodes, peer, attribute in (
        (send, workload.dst, "comm_dst {dst}"),
        (receive, workload.src, "comm_src {src}"),
    ):
        yield nodes & (peer == rank), f"{attribute} is its own rank: ASTRA-sim aborts"
        yield (
            nodes & ((peer < 0) | (peer >= workload.ranks)),
            f"{attribute} is a rank that the network does not have: ASTRA-sim aborts",
        )
    yield (
        (send | receive) & (workload.size <= 0),
        "a message of {size} bytes: ASTRA-sim aborts",
    )
    if experiment.rendezvous:
        yield (
            (send | receive) & (workload.size >= 1 << 31),
            "a message of {size} bytes under the rendezvous protocol overflows in ASTRA-sim",
        )
    if experiment.memory.memory_type == "NO_MEMORY_EXPANSION":
        yield (
            memory,
            "accesses remote memory under NO_MEMORY_EXPANSION: ASTRA-sim exits with 1",
        )
