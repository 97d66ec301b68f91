"""Jobs made of transfers, and their timelines on a known network with noise and skewed clocks.

What a calibration is tested on: the network is known exactly, and what a trace would show of it
is worked out by the simulator, which is tested on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import ExecutionGraph, Flavour, LaneKind, collect_instances
from whatif.simulator.run import simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whatif.graph.columns import Collective
    from whatif.simulator.network import Network

#: A group's ranks, and what they do: type, input bytes, and the lane of communication.
Operation = tuple[tuple[int, ...], tuple["Collective", int, int]]


def program(
    operations: Sequence[Operation],
    *,
    ranks: int,
    steps: int,
    device: str = "NVIDIA A100-SXM4-80GB",
    hosts: Sequence[str] | None = None,
) -> ExecutionGraph:
    """Make a job: 20 us of computation before each operation, which is in flight beside it.

    Operations of a lane follow each other; a step ends when all of its operations have.
    """
    build = GraphBuilder(world_size=ranks)
    lanes = 1 + max(lane for _, (_, _, lane) in operations)
    compute, comm = {}, {}
    for rank in range(ranks):
        build.rank(rank, device=device, host=hosts[rank] if hosts else "")
        compute[rank] = build.lane(rank, LaneKind.STREAM, 7)
        for lane in range(lanes):
            comm[rank, lane] = build.lane(rank, LaneKind.STREAM, 20 + lane)
    groups = {
        (members, lane): build.group(f"{members} {lane}", members)
        for members, (_, _, lane) in dict.fromkeys(operations)
    }
    last: dict[int, list[int]] = {rank: [] for rank in range(ranks)}
    tail: dict[tuple[int, int], list[int]] = {}
    for step in range(steps):
        for members, (coll, size, lane) in operations:
            for rank in members:
                work = build.node(
                    compute[rank], Flavour.COMPUTE, 20_000, step=step, after=last[rank]
                )
                last[rank] = [work]
                after = [work, *tail.get((rank, lane), [])]
                group = groups[members, lane]
                tail[rank, lane] = [
                    build.collective(comm[rank, lane], coll, group, size, after=after, step=step)
                ]
        markers = {}
        for rank in range(ranks):
            done = [node for lane in range(lanes) for node in tail.get((rank, lane), [])]
            after = [*last[rank], *done]
            markers[rank] = build.node(compute[rank], Flavour.GAP, 0, step=step, after=after)
            last[rank] = [markers[rank]]
        build.step(f"step {step}", markers)
    return build.build()


def traced(
    graph: ExecutionGraph,
    network: Network,
    *,
    noise: float = 0.0,
    skew_ns: float = 0.0,
    seed: int = 0,
) -> ExecutionGraph:
    """Fill in what a trace of a run on a network would show.

    Parameters
    ----------
    graph : ExecutionGraph
        The job.
    network : Network
        Where it runs.
    noise : float
        Standard deviation of the logarithm of a transfer's time about what the network takes.
    skew_ns : float
        Standard deviation of what the clocks of ranks are off after alignment.
    seed : int
        Of noise and skew.
    """
    random = np.random.default_rng(seed)
    instances = collect_instances(graph)
    alone = simulate(graph, network=network).replay
    took = np.zeros(graph.num_nodes)
    factor = np.exp(random.normal(0, noise, len(instances)))
    member = np.repeat(factor, np.diff(instances.ptr))
    took[instances.node] = (alone.transferred - alone.release)[instances.node] * member
    # What takes longer by chance keeps the others waiting, so the job runs again with these times.
    replay = simulate(
        graph.with_(transfer_ns=np.where(graph.instance >= 0, np.rint(took), -1).astype(np.int64)),
        measured=True,
    ).replay
    off = random.normal(0, skew_ns, graph.num_ranks)[graph.rank_index]
    start, end = (np.rint(time + off).astype(np.int64) for time in (replay.start, replay.end))
    transfer = np.full(graph.num_nodes, -1, dtype=np.int64)
    tail = np.zeros(graph.num_nodes, dtype=np.int64)
    for low, high in zip(instances.ptr[:-1], instances.ptr[1:], strict=True):
        node = instances.node[low:high]
        transfer[node] = end[node].min() - start[node].max()
        tail[node] = end[node] - end[node].min()
    first = start.min()
    return graph.with_(
        start_ns=start - first, dur_ns=end - start, transfer_ns=transfer, tail_ns=tail
    )
