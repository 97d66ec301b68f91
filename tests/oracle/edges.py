"""The true dependencies of a run, in the terms of its trace, to score inferred ones by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import DeviceSpan, HandOver, QueueWait, Run


@dataclass(frozen=True)
class StreamEdge:
    """A kernel that had to wait for a kernel of another stream (correlation ids).

    `slack_ns` is by how much the edge could have been later; at 0 it set the start.
    """

    rank: int
    producer: int
    consumer: int
    slack_ns: int


@dataclass(frozen=True)
class HostEdge:
    """A host call that had to wait for a kernel (correlation ids); `blocked_ns` 0: it did not."""

    rank: int
    call: int
    kernel: int
    blocked_ns: int


@dataclass(frozen=True)
class TrueEdges:
    """What really depended on what, beyond launches and the order of streams and threads.

    Attributes
    ----------
    streams : list of StreamEdge
        Dependencies between streams of a rank, as the fewest that imply them all (the
        transitive reduction, given the order within streams).
    hosts : list of HostEdge
        Synchronising calls and the last kernels that each waits for, reduced likewise.
    hand_overs : list of HandOver
        Threads that were let go on by other threads.
    queue_waits : list of QueueWait
        Host threads and the queued communications they waited for (CPU jobs).
    """

    streams: list[StreamEdge]
    hosts: list[HostEdge]
    hand_overs: list[HandOver]
    queue_waits: list[QueueWait]


def true_edges(run: Run) -> TrueEdges:
    """Find the true dependencies of a run, in the terms of its trace."""
    streams: list[StreamEdge] = []
    hosts: list[HostEdge] = []
    for rank, nodes in enumerate(run.device):
        past = _past(nodes)
        for node in nodes:
            for other in _latest(node.after, past):
                implied = node.previous is not None and other in past[node.previous]
                if other.stream != node.stream and not implied:
                    slack = node.start_ns - other.end_ns
                    streams.append(StreamEdge(rank, other.correlation, node.correlation, slack))
        for call in run.host[rank]:
            for node in _latest(call.waited_for, past):
                blocked = max(0, node.end_ns - call.start_ns)
                hosts.append(HostEdge(rank, call.correlation, node.correlation, blocked))
    return TrueEdges(streams, hosts, list(run.hand_overs), list(run.queue_waits))


def _past(nodes: list[DeviceSpan]) -> dict[DeviceSpan, set[DeviceSpan]]:
    """Everything on the device that a kernel comes after, itself included."""
    past: dict[DeviceSpan, set[DeviceSpan]] = {}
    for node in nodes:
        before = ([node.previous] if node.previous else []) + node.after
        past[node] = {node}.union(*(past[other] for other in before))
    return past


def _latest(nodes: list[DeviceSpan], past: dict[DeviceSpan, set[DeviceSpan]]) -> list[DeviceSpan]:
    """Those of some kernels that none of the others comes after."""
    unique = list(dict.fromkeys(nodes))
    return [
        node
        for node in unique
        if not any(node in past[other] for other in unique if other is not node)
    ]
