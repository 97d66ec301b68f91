"""What contracts, what must not, and that the original nodes can be found again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from whatif.base.errors import GraphError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import Collective, EdgeKind, ExecutionGraph, Flavour, LaneKind
from whatif.graph.compress import LAG, CompressedGraph, compress, uncompressed
from whatif.simulator.run import simulate

from .programs import Job, execute, jobs, to_graph


class OneRank:
    """A rank with a host lane, a stream and a queue, and what is needed to finish its graph."""

    def __init__(self) -> None:
        self.build = GraphBuilder()
        self.build.rank(0)
        self.host = self.build.lane(0, LaneKind.HOST)
        self.stream = self.build.lane(0, LaneKind.STREAM)
        self.queue = self.build.lane(0, LaneKind.QUEUE, servers=2)
        self.marker = self.build.node(self.host, Flavour.GAP, 0, after=())

    def graph(self) -> ExecutionGraph:
        self.build.step("step", {0: self.marker})
        return self.build.build()

    def compressed(self) -> CompressedGraph:
        return compress(self.graph())


def parts(compressed: CompressedGraph, node: int) -> list[tuple[int, int]]:
    inside = slice(compressed.part_ptr[node], compressed.part_ptr[node + 1])
    return list(
        zip(compressed.part_kind[inside].tolist(), compressed.part_ns[inside].tolist(), strict=True)
    )


def test_a_chain_becomes_one_node_with_its_parts_in_order() -> None:
    rank = OneRank()
    first = rank.build.node(rank.host, Flavour.HOST, 10, after=(), gap_ns=4)
    second = rank.build.node(
        rank.stream, Flavour.COMPUTE, 20, after=[Dep(first, lag_ns=3)], gap_ns=2
    )
    rank.build.node(rank.stream, Flavour.COPY, 30, after=[second])
    compressed = rank.compressed()
    assert compressed.node_of.tolist() == [0, 1, 1, 1]
    assert parts(compressed, 1) == [
        (Flavour.HOST, 10),
        (LAG, 3),
        (Flavour.GAP, 2),
        (Flavour.COMPUTE, 20),
        (Flavour.COPY, 30),
    ]
    assert compressed.part_kind[compressed.part_of].tolist() == [
        *(Flavour.GAP, Flavour.HOST, Flavour.COMPUTE, Flavour.COPY)
    ]
    assert compressed.graph.dur_ns.tolist() == [0, 65]
    assert compressed.graph.gap_ns.tolist() == [0, 4]
    assert compressed.graph.lane[1] == rank.stream
    assert compressed.ratio == 2


def fork(rank: OneRank) -> None:
    first = rank.build.node(rank.stream, Flavour.COMPUTE, 1)
    for _ in range(2):
        rank.build.node(rank.stream, Flavour.COMPUTE, 1, after=[first])


def join(rank: OneRank) -> None:
    both = [rank.build.node(rank.stream, Flavour.COMPUTE, 1, after=()) for _ in range(2)]
    rank.build.node(rank.stream, Flavour.COMPUTE, 1, after=both)


def other_step(rank: OneRank) -> None:
    for step in (0, 1):
        rank.build.node(rank.stream, Flavour.COMPUTE, 1, step=step)


def start_edge(rank: OneRank) -> None:
    first = rank.build.node(rank.stream, Flavour.COMPUTE, 1)
    rank.build.node(rank.stream, Flavour.COMPUTE, 1, after=[Dep(first, EdgeKind.START)])


def seen_start(rank: OneRank) -> None:
    for _ in range(2):
        last = rank.build.node(rank.stream, Flavour.COMPUTE, 1)
    rank.build.node(rank.host, Flavour.HOST, 1, after=[Dep(last, EdgeKind.START)])


def server(rank: OneRank) -> None:
    first = rank.build.node(rank.queue, Flavour.GAP, 1)
    rank.build.node(rank.queue, Flavour.GAP, 1, after=[first])


def host_after_device(rank: OneRank) -> None:
    first = rank.build.node(rank.stream, Flavour.COMPUTE, 1)
    rank.build.node(rank.host, Flavour.HOST, 1, after=[first])


def after_marker(rank: OneRank) -> None:
    rank.build.node(rank.host, Flavour.HOST, 1, after=[rank.marker])


def communication(rank: OneRank) -> None:
    group = rank.build.group("alone", [0])
    rank.build.node(rank.stream, Flavour.COMPUTE, 1)
    rank.build.collective(rank.stream, Collective.BARRIER, group, -1, transfer_ns=1)
    rank.build.node(rank.stream, Flavour.COMPUTE, 1)


@pytest.mark.parametrize(
    "add",
    [
        *(fork, join, other_step, start_edge, seen_start, server, host_after_device),
        *(after_marker, communication),
    ],
)
def test_what_can_be_told_apart_from_outside_is_left_alone(add: object) -> None:
    rank = OneRank()
    add(rank)  # type: ignore[operator]
    compressed = rank.compressed()
    assert compressed.ratio == 1
    assert compressed.node_of.tolist() == list(range(compressed.original.num_nodes))


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_contraction_keeps_the_sum_of_every_kind_of_duration(job: Job) -> None:
    graph, _ = to_graph(job, execute(job))
    small, large = compress(graph), uncompressed(graph)
    for flavour in (Flavour.COMPUTE, Flavour.COPY, Flavour.HOST):
        of_small = small.part_ns[small.part_kind == flavour].sum()
        of_large = large.part_ns[large.part_kind == flavour].sum()
        assert of_small == of_large == graph.dur_ns[graph.flavour == flavour].sum()
    assert (np.diff(small.node_of[graph.steps.marker], axis=0) >= 0).all()
    assert small.graph.num_nodes <= graph.num_nodes
    before = small.graph.dep_node
    dependent = np.repeat(np.arange(small.graph.num_nodes), np.diff(small.graph.dep_ptr))
    assert (before < dependent).all()


def test_original_nodes_are_found_again_at_their_scaled_times() -> None:
    rank = OneRank()
    first = rank.build.node(rank.host, Flavour.HOST, 10, after=(), gap_ns=4)
    second = rank.build.node(
        rank.stream, Flavour.COMPUTE, 20, after=[Dep(first, lag_ns=3)], gap_ns=2
    )
    rank.build.node(rank.stream, Flavour.COPY, 30, after=[second])
    simulation = simulate(rank.compressed(), measured=True, compute_scale=0.5, host_scale=2)
    start, end = simulation.original_intervals()
    assert start.tolist() == [0, 4, 29, 39]
    assert end.tolist() == [0, 24, 39, 69]


def test_compression_refuses_an_unsound_graph() -> None:
    graph = OneRank().graph()
    for form in (compress, uncompressed):
        with pytest.raises(GraphError, match="dur_ns is negative"):
            form(graph.with_(dur_ns=np.array([-1])))
