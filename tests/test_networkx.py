"""A rank's graph for inspection, and cycles in words."""

from __future__ import annotations

import numpy as np
import pytest
from whatif.base.errors import UsageError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import Collective, EdgeKind, ExecutionGraph, Flavour, LaneKind
from whatif.graph.nx import name_cycle, to_networkx


def small_graph() -> ExecutionGraph:
    build = GraphBuilder()
    last = {}
    for rank in (2, 5):
        build.rank(rank)
    world = build.group("dp", (2, 5))
    for rank in (2, 5):
        host = build.lane(rank, LaneKind.HOST, 11)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        launch = build.node(host, Flavour.HOST, 100, name="launch")
        kernel = build.node(
            stream,
            Flavour.COMPUTE,
            50,
            name="gemm",
            start_ns=30,
            gap_ns=10,
            after=[Dep(launch, EdgeKind.START, 20), Dep(launch, EdgeKind.END)],
        )
        last[rank] = build.collective(
            stream, Collective.ALL_REDUCE, world, 64, start_ns=80, dur_ns=40, after=[kernel]
        )
    build.step("ProfilerStep#0", last)
    return build.build()


def test_nodes_and_edges_carry_what_the_columns_say() -> None:
    digraph = to_networkx(small_graph(), 5)
    assert list(digraph.nodes) == [3, 4, 5]
    assert digraph.nodes[4] == {
        "name": "gemm",
        "kind": "comp",
        "flavour": "compute",
        "lane": "stream 7",
        "step": "ProfilerStep#0",
        "start_ns": 30,
        "dur_ns": 50,
        "gap_ns": 10,
    }
    assert digraph.nodes[5]["coll"] == "all-reduce"
    assert digraph.nodes[5]["group"] == "dp"
    assert digraph.nodes[5]["size_bytes"] == 64
    # Of two edges between the same nodes, the one that binds.
    assert dict(digraph.edges) == {
        (3, 4): {"kind": "end", "lag_ns": 0},
        (4, 5): {"kind": "end", "lag_ns": 0},
    }


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the graph has \[2, 5\]"):
        to_networkx(small_graph(), 0)


def test_a_cycle_is_named() -> None:
    graph = small_graph()
    assert name_cycle(graph, 2) is None
    turned = graph.dep_node.copy()
    turned[:2] = 2  # gemm now waits for the all-reduce that waits for it
    looped = graph.with_(dep_node=np.array(turned))
    assert name_cycle(looped, 2) in (
        "node 2 (all-reduce) -> node 1 (gemm) -> node 2 (all-reduce)",
        "node 1 (gemm) -> node 2 (all-reduce) -> node 1 (gemm)",
    )
    assert name_cycle(looped, 5) is None
