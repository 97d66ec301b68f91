"""Whom a transfer met: the others that were at work on its ports while it was.

What they cost each other is decided in `event_loop` while it happens; this looks back at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .event_loop import Flows, Replay


def met(flows: Flows, replay: Replay, node: int) -> list[tuple[int, float]]:
    """Find the transfers that used a port of a node's transfer at the same time.

    Parameters
    ----------
    flows, replay
        What ran.
    node : int
        Any node.

    Returns
    -------
    list of (int, float)
        A node of each of these transfers, and for how many nanoseconds both were at work on some
        port; longest first. Empty where the node has no transfer that ports carry.
    """
    mine = int(flows.of_node[node])
    if mine < 0:
        return []
    owner = np.repeat(np.arange(len(flows.total)), np.diff(flows.phase_ptr))
    filled = np.diff(flows.set_ptr) > 0
    together = np.zeros(len(flows.total))
    for phase in range(flows.phase_ptr[mine], flows.phase_ptr[mine + 1]):
        ports = flows.port_set[phase]
        used = np.zeros(len(flows.capacity), dtype=np.bool_)
        used[flows.port[flows.set_ptr[ports] : flows.set_ptr[ports + 1]]] = True
        touches = np.zeros(len(filled), dtype=np.bool_)
        touches[filled] = np.logical_or.reduceat(used[flows.port], flows.set_ptr[:-1][filled])
        begin = np.maximum(replay.work_begin, replay.work_begin[phase])
        end = np.minimum(replay.work_end, replay.work_end[phase])
        both = np.where(touches[flows.port_set], np.maximum(end - begin, 0.0), 0.0)
        together += np.bincount(owner, both, minlength=len(together))
    together[mine] = 0.0
    others = np.flatnonzero(together)
    others = others[np.argsort(-together[others], kind="stable")]
    first = flows.member[flows.member_ptr[others]]
    return list(zip(first.tolist(), together[others].tolist(), strict=True))
