"""Tails: what the members of a collective end later than the first of them.

A tail is measured; what it would be on another network depends on what it is. Data that still move
belong to the network: where a member receives after the others have sent (Gloo serves one
direction after the other, one direction of a link is slower) its tail takes as long again as the
data need, and no longer than the transfer itself. So that much of a tail scales with the transfer.
What is longer is something else, a stall for example, and stays as measured.

CPU devices of XLA are threads of one process, which wait for each other's cores at the end of every
operation: their tails are not the network's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..graph.columns import ExecutionGraph

    Float = NDArray[np.float64]


def moving_ns(graph: ExecutionGraph, transfer_ns: Float) -> Float:
    """Tell how much of each tail is data that still move, on a network.

    Parameters
    ----------
    graph : ExecutionGraph
        With measured transfers and tails.
    transfer_ns : float64, shape (N,)
        Transfer time of every node on the network, alone.

    Returns
    -------
    float64, shape (N,)
        0 where no transfer was measured.
    """
    if graph.worker is Worker.THREADS:
        return np.zeros(graph.num_nodes)
    measured = np.maximum(graph.transfer_ns, 0).astype(np.float64)
    share = np.minimum(graph.tail_ns, measured) / np.maximum(measured, 1)
    return share * transfer_ns


def tails_ns(graph: ExecutionGraph, transfer_ns: Float) -> Float:
    """Tail of every node on a network, shape (N,); parameters as `moving_ns`."""
    rest = graph.tail_ns - moving_ns(graph, np.maximum(graph.transfer_ns, 0).astype(np.float64))
    return moving_ns(graph, transfer_ns) + rest
