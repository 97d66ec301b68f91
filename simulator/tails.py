"""Tails that are part of the transfer: members that always end late by a share of it.

A tail is what a member's end exceeds the earliest end of its collective by. Mostly it is chance
and stays as measured. But where one member regularly ends late by a good part of the transfer
the data move in turns (Gloo's all-to-all serves one direction after the other), and on a faster
network the wait for the turn shrinks too. CPU devices of XLA are threads of one process, which
wait for each other's cores at the end of every operation: their turns are not the network's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph, Instances

#: Operations of a kind that must agree, and the share of the transfer that their longest tail
#: must reach in the median: well above the spread of ends that chance makes (5 % of 582 us on
#: eight A100, 7 % of 9 ms over Gloo).
LEAST_OPERATIONS, LEAST_SHARE = 3, 0.25


def stretching_tails(graph: ExecutionGraph, instances: Instances) -> NDArray[np.bool_]:
    """Find the nodes whose tails scale with the transfer.

    Parameters
    ----------
    graph : ExecutionGraph
        With measured transfers and tails.
    instances : Instances
        Of that graph.

    Returns
    -------
    bool, shape (N,)
    """
    found = np.zeros(graph.num_nodes, dtype=np.bool_)
    if not len(instances) or graph.source == "xla-cpu":
        return found
    tail = np.maximum.reduceat(graph.tail_ns[instances.node], instances.ptr[:-1])
    transfer = graph.transfer_ns[instances.node[instances.ptr[:-1]]]
    share = np.where(transfer > 0, tail / np.maximum(transfer, 1), np.nan)
    kinds = np.stack([instances.coll, instances.group, instances.size_bytes], axis=1)
    _, kind = np.unique(kinds, axis=0, return_inverse=True)
    of_kind = np.zeros(int(kind.max()) + 1, dtype=np.bool_)
    for number in range(len(of_kind)):
        shares = share[(kind == number) & ~np.isnan(share)]
        of_kind[number] = len(shares) >= LEAST_OPERATIONS and np.median(shares) >= LEAST_SHARE
    member_kind = np.repeat(kind, np.diff(instances.ptr))
    found[instances.node] = of_kind[member_kind] & (graph.transfer_ns[instances.node] > 0)
    return found
