"""How long one operation takes in ASTRA-sim when nothing else happens.

Members issue it at the same moment, the other ranks do nothing. What an operation pays to a tier
is what it would save if the links of that tier cost nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from .names import CommType, NodeType
from .parity import run
from .workload import Builder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from .experiment import Experiment
    from .workload import Workload

# A microsecond of computation before: ASTRA-sim aborts on what takes no time at its very start.
_BEFORE_US = 1
_BEFORE_NS = 1000 * _BEFORE_US

# So fast that no message takes a nanosecond: 2^60 GiB/s.
_FREE_GIB_S = float(1 << 60)

_GROUP = 1


def collective_alone(
    world: int, comm_type: CommType, size_bytes: int, members: Sequence[int]
) -> tuple[Workload, dict[int, tuple[int, ...]]]:
    """Make a workload of one collective, and its communicator.

    Parameters
    ----------
    world : int
        Ranks of the network.
    comm_type : CommType
        One that ASTRA-sim moves data for.
    size_bytes : int
        `comm_size`.
    members : sequence of int
        Npus, in the order of the communicator.
    """
    attributes = {
        "comm_type": int(comm_type),
        "comm_size": size_bytes,
        "pg_name": str(_GROUP),
    }
    node = (1, int(NodeType.COMM_COLL_NODE), comm_type.name, 0, [0], attributes)
    inside = set(members)
    builder = Builder("a collective alone")
    for rank in range(world):
        builder.add_rank([_before(), node] if rank in inside else [_before()])
    return builder.build(), {_GROUP: tuple(members)}


def send_alone(world: int, size_bytes: int, source: int, target: int) -> Workload:
    """Make a workload of one message from npu to npu."""
    attributes = {
        "comm_size": size_bytes,
        "comm_src": source,
        "comm_dst": target,
        "comm_tag": 0,
    }
    kinds = {source: NodeType.COMM_SEND_NODE, target: NodeType.COMM_RECV_NODE}
    builder = Builder("a message alone")
    for rank in range(world):
        nodes = [_before()]
        if rank in kinds:
            nodes.append((1, int(kinds[rank]), "message", 0, [0], attributes))
        builder.add_rank(nodes)
    return builder.build()


def cycles_alone(workload: Workload, experiment: Experiment) -> int:
    """Cycles from the start of an operation alone to its end on the last rank.

    Raises
    ------
    NetworkError, GraphError
        If ASTRA-sim cannot run it.
    """
    return max(run(workload, experiment).finish) - _BEFORE_NS


def without_cost(experiment: Experiment, dimensions: Collection[int]) -> Experiment:
    """Make the links of some dimensions cost nothing."""
    network = experiment.network

    def changed(values: list[float], free: float) -> list[float]:
        return [free if index in dimensions else value for index, value in enumerate(values)]

    free = msgspec.structs.replace(
        network,
        bandwidth=changed(network.bandwidth, _FREE_GIB_S),
        latency=changed(network.latency, 0.0),
    )
    return replace(experiment, network=free)


def _before() -> tuple[int, int, str, int, Sequence[int], dict[str, Any]]:
    return 0, int(NodeType.COMP_NODE), "before", _BEFORE_US, [], {}
