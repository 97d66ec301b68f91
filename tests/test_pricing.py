"""The price of the operations of a graph: every instance costs what its group's formula says."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from whatif.base.errors import GraphError, NetworkError
from whatif.graph.columns import (
    Collective,
    ExecutionGraph,
    Flavour,
    Group,
    Kind,
    Lanes,
    Steps,
    collect_instances,
)
from whatif.graph.coverage import Coverage
from whatif.simulator.algorithms.names import ALGORITHMS
from whatif.simulator.collectives import cost
from whatif.simulator.network import Network, Tier
from whatif.simulator.placement import Placement, place
from whatif.simulator.pricing import Prices, message_tiers, price, used_tiers

UP = Tier(size=4, bandwidth_gb_s=300, efficiency=0.75, latency_ns=1000, base_ns=8000)
OUT = Tier(size=64, bandwidth_gb_s=25, efficiency=0.5, latency_ns=12_000, endpoint_ns_per_byte=0.01)
NETWORK = Network(name="t", tiers=[UP, OUT])


@dataclass(frozen=True)
class Op:
    """One operation; for a send and its receive `ends` names the two ranks."""

    coll: Collective
    size: int
    group: int = 0
    root: int = -1
    ends: tuple[int, int] | None = None
    transfer_ns: tuple[int, ...] = (-1,)


def make_graph(
    groups: list[tuple[int, ...]],
    ops: list[Op],
    traced: tuple[int, ...] | None = None,
    world_size: int = 16,
) -> ExecutionGraph:
    """Graph of communication nodes only, on the traced ranks (all by default)."""
    ranks = tuple(range(world_size)) if traced is None else traced
    rows: list[tuple[int, ...]] = []
    for rank in ranks:
        for instance, op in enumerate(ops):
            members = op.ends if op.ends is not None else groups[op.group]
            if rank not in members:
                continue
            place_in_group = members.index(rank)
            peer = op.root if op.ends is None else op.ends[1 - place_in_group]
            kind = Kind.COMM_COLL
            if op.ends is not None:
                kind = (Kind.SEND, Kind.RECV)[place_in_group]
            transfer = op.transfer_ns[place_in_group % len(op.transfer_ns)]
            group = op.group if op.ends is None else -1
            row = (rank, kind, op.coll, op.size, group, 100 + instance, peer, instance, transfer)
            rows.append(row)
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), 9).T
    count = len(rows)
    zeros = np.zeros(count, dtype=np.int64)
    return ExecutionGraph(
        model="stream",
        source="test",
        trace="test",
        ranks=np.array(ranks, dtype=np.int64),
        rank_ptr=np.searchsorted(columns[0], [*ranks, ranks[-1] + 1]).astype(np.int64),
        world_size=world_size,
        hosts=("",) * len(ranks),
        devices=("",) * len(ranks),
        base_ns=np.zeros(len(ranks), dtype=np.int64),
        start_offset_ns=np.zeros(len(ranks), dtype=np.int64),
        names=("op",),
        kind=columns[1].astype(np.int8),
        flavour=np.full(count, Flavour.COMM, dtype=np.int8),
        lane=zeros.astype(np.int32),
        name=zeros.astype(np.int32),
        step=zeros.astype(np.int32),
        start_ns=zeros,
        dur_ns=zeros,
        gap_ns=zeros,
        dep_ptr=np.zeros(count + 1, dtype=np.int64),
        dep_node=np.zeros(0, dtype=np.int64),
        dep_kind=np.zeros(0, dtype=np.int8),
        dep_lag_ns=np.zeros(0, dtype=np.int64),
        coll=columns[2].astype(np.int8),
        size_bytes=columns[3],
        group=columns[4].astype(np.int32),
        seq=columns[5],
        peer=columns[6].astype(np.int32),
        tag=zeros.astype(np.int32),
        instance=columns[7].astype(np.int32),
        transfer_ns=columns[8],
        tail_ns=zeros,
        eager=np.zeros(count, dtype=np.bool_),
        lanes=Lanes(zeros.astype(np.int32), zeros.astype(np.int8), zeros, zeros.astype(np.int32)),
        groups=tuple(Group(f"pg{i}", members) for i, members in enumerate(groups)),
        steps=Steps((), np.zeros((0, 1), np.int64), np.zeros((0, 1), np.int64), zeros[:0]),
        coverage=Coverage(),
    )


def price_of(
    graph: ExecutionGraph, network: Network = NETWORK, placement: Placement | None = None
) -> Prices:
    if placement is None:
        placement = place(network, graph.ranks, graph.hosts, graph.world_size)
    return price(graph, collect_instances(graph), network, placement)


# Contiguous in a domain, over two domains, strided, uneven, the world, and one rank.
GROUPS = [
    (0, 1, 2, 3),
    tuple(range(8)),
    (0, 4, 8, 12),
    (1, 2, 3, 4, 5, 9),
    tuple(range(16)),
    (6,),
]


def every_op() -> list[Op]:
    ops = [
        Op(coll, size, group=group, root=members[0])
        for coll in Collective
        if coll not in (Collective.NONE, Collective.SEND_RECV)
        for group, members in enumerate(GROUPS)
        for size in (0, 4096, 64 << 20)
    ]
    ops += [Op(Collective.SEND_RECV, 1 << 20, ends=ends) for ends in ((0, 3), (3, 4), (15, 2))]
    return ops


def assert_priced_by_formula(ops: list[Op], prices: Prices) -> None:
    for i, op in enumerate(ops):
        members = [rank // 4 for rank in (op.ends or GROUPS[op.group])]
        expected = cost(op.coll, op.size, members, NETWORK.tiers, root=members[0])
        assert prices.base_ns[i] == expected.base_ns
        assert prices.endpoint_ns[i] == expected.endpoint_ns
        assert tuple(prices.latency_ns[i]) == expected.latency_ns
        assert tuple(prices.bandwidth_ns[i]) == expected.bandwidth_ns
        assert prices.total_ns[i] == pytest.approx(expected.total_ns)


def test_every_instance_costs_what_the_formula_of_its_group_says() -> None:
    ops = every_op()
    prices = price_of(make_graph(GROUPS, ops))
    assert prices.tiers == ("scaleup", "scaleout")
    assert_priced_by_formula(ops, prices)
    assert not prices.measured.any()
    assert prices.warnings == ()


def test_a_group_is_priced_with_its_untraced_members_too() -> None:
    ops = [op for op in every_op() if 3 in (op.ends or GROUPS[op.group])]
    graph = make_graph(GROUPS, ops, traced=(3,))
    assert graph.num_ranks == 1
    assert_priced_by_formula(ops, price_of(graph))


def test_the_root_counts_where_its_domain_holds_fewer_members() -> None:
    # Members 1, 2, 3 | 4, 5 | 9: the root's own ports carry what the others send.
    for root, near, far in ((1, 2, 3), (4, 1, 4), (9, 0, 5)):
        graph = make_graph(GROUPS, [Op(Collective.GATHER, 1000, group=3, root=root)])
        assert price_of(graph).wire_bytes.tolist() == [[near * 1000, far * 1000]]


def test_placement_decides_the_tier() -> None:
    graph = make_graph([(0, 1)], [Op(Collective.ALL_REDUCE, 1 << 20)], world_size=2)
    together = price_of(graph)
    apart = price_of(graph, placement=Placement("rank map", np.array([0, 1]), 4))
    assert together.bandwidth_ns[0, 1] == apart.bandwidth_ns[0, 0] == 0
    assert together.bandwidth_ns[0, 0] < apart.bandwidth_ns[0, 1]


def test_an_operation_without_a_size_keeps_its_measured_transfer() -> None:
    ops = [
        Op(Collective.ALL_REDUCE, -1, group=1, transfer_ns=(700, 900)),
        Op(Collective.ALL_REDUCE, -1, group=1, transfer_ns=(-1, 100)),
        Op(Collective.ALL_REDUCE, 1 << 20, group=1, transfer_ns=(5,)),
    ]
    slow = msgspec.structs.replace(OUT, bandwidth_gb_s=0.1)
    graph = make_graph(GROUPS, ops)
    for tiers in ([UP, OUT], [UP, slow]):
        prices = price_of(graph, Network(name="t", tiers=tiers))
        assert prices.total_ns[:2].tolist() == [900, 100]
        assert prices.measured.tolist() == [True, True, False]
        assert not prices.wire_bytes[:2].any()
        assert len(prices.warnings) == 1
        assert prices.warnings[0].startswith("2 all-reduce of group pg1 have no size")


def test_an_operation_with_neither_size_nor_measurement_is_named() -> None:
    ops = [Op(Collective.ALL_REDUCE, 8, group=1), Op(Collective.ALL_GATHER, -1, group=3)]
    with pytest.raises(GraphError, match=r"rank 1, group pg3, sequence number 101: all-gather"):
        price_of(make_graph(GROUPS, ops))


def test_a_barrier_and_a_group_of_one_need_no_size() -> None:
    ops = [Op(Collective.BARRIER, -1, group=2), Op(Collective.ALL_REDUCE, -1, group=5)]
    prices = price_of(make_graph(GROUPS, ops))
    assert prices.total_ns.tolist() == [2 * 2 * 12_000, 0]
    assert not prices.measured.any()


def test_used_tiers_are_those_that_carry_bytes() -> None:
    inside = make_graph(GROUPS, [Op(Collective.ALL_REDUCE, 8, group=0)])
    assert used_tiers(price_of(inside)) == {0}
    across = make_graph(GROUPS, [Op(Collective.ALL_REDUCE, 8, group=2)])
    assert used_tiers(price_of(across)) == {1}
    # Scale-out limits this one, and scale-up is not paid but carries bytes.
    both = price_of(make_graph(GROUPS, [Op(Collective.ALL_TO_ALL, 8000, group=1)]))
    assert both.bandwidth_ns[0, 0] == 0
    assert used_tiers(both) == {0, 1}
    barrier = price_of(make_graph(GROUPS, [Op(Collective.BARRIER, 0, group=2)]))
    assert used_tiers(barrier) == set()
    assert message_tiers(barrier) == {1}


def test_a_graph_without_communication_has_no_prices() -> None:
    prices = price_of(make_graph(GROUPS, []))
    assert prices.total_ns.shape == (0,)
    assert used_tiers(prices) == set()


def test_an_all_to_all_of_unequal_parts_costs_what_its_largest_does() -> None:
    graph = make_graph(GROUPS, [Op(Collective.ALL_TO_ALL, 1 << 20, group=0)])
    uneven = graph.with_(size_bytes=np.array([1000, 4000, 2000, 0]))
    even = graph.with_(size_bytes=np.full(4, 4000))
    assert price_of(uneven).total_ns == price_of(even).total_ns
    # What others gather is all that there is, so their mean counts.
    gather = make_graph(GROUPS, [Op(Collective.ALL_GATHER, 1 << 20, group=0)])
    mean = price_of(gather.with_(size_bytes=np.full(4, 1750))).total_ns
    assert price_of(gather.with_(size_bytes=uneven.size_bytes)).total_ns == mean


def test_an_algorithm_that_is_impossible_on_the_network_is_refused() -> None:
    network = Network(name="t", tiers=[UP, OUT], algorithms={"all-reduce": "in-switch"})
    with pytest.raises(NetworkError, match="all-reduce cannot use in-switch on network 't'"):
        price_of(make_graph(GROUPS, every_op()), network)


def test_a_group_that_cannot_use_an_algorithm_keeps_the_default_and_says_so() -> None:
    nvls = msgspec.structs.replace(UP, in_network_reduction=True)
    network = Network(name="t", tiers=[nvls, OUT], algorithms={"all-reduce": "in-switch"})
    ops = [Op(Collective.ALL_REDUCE, 1 << 20, group=group) for group in (0, 2, 5)]
    prices = price_of(make_graph(GROUPS, ops), network)
    used = [ALGORITHMS[index] for index in prices.algorithm[:2]]
    assert used == ["in-switch", "hierarchical"]
    assert prices.algorithm[2] == -1  # alone in its group
    (warning,) = prices.warnings
    assert warning == (
        "all-reduce over 4 ranks uses hierarchical, not in-switch: no tier that the group uses "
        "has in_network_reduction"
    )


def test_prices_say_the_algorithm_that_is_cheapest_at_the_size() -> None:
    network = Network(name="t", tiers=[UP, OUT], algorithms={"all-reduce": ["ring", "tree"]})
    ops = [Op(Collective.ALL_REDUCE, size, group=2) for size in (8, 1 << 30)]
    prices = price_of(make_graph(GROUPS, ops), network)
    assert [ALGORITHMS[index] for index in prices.algorithm] == ["tree", "ring"]
    assert prices.warnings == ()


def test_the_dimensions_of_a_torus_are_priced_together_as_scale_up() -> None:
    sides = [Tier(topology="ring", size=2, bandwidth_gb_s=100, latency_ns=10) for _ in range(2)]
    graph = make_graph(GROUPS, [Op(Collective.ALL_REDUCE, 1 << 20, group=g) for g in (0, 2)])
    prices = price_of(graph, Network(name="t", tiers=[*sides, OUT]))
    assert prices.tiers == ("scaleup", "scaleout")
    assert (prices.bandwidth_ns > 0).tolist() == [[True, False], [False, True]]
    assert used_tiers(prices) == {0, 1}
    whole = price_of(graph, Network(name="t", tiers=[*sides, *sides]))
    assert whole.tiers == ("scaleup",)


def test_one_tier_cannot_price_a_group_across_domains() -> None:
    graph = make_graph(GROUPS, [Op(Collective.ALL_REDUCE, 8, group=1)])
    placement = place(NETWORK, graph.ranks, graph.hosts, graph.world_size)
    with pytest.raises(NetworkError, match="spans 2 scale-up domains"):
        price_of(graph, Network(name="t", tiers=[UP]), placement)


def test_inconsistent_operations_are_named() -> None:
    stranger = make_graph([(0, 99)], [Op(Collective.ALL_REDUCE, 8)])
    with pytest.raises(GraphError, match=r"rank 99, group pg0: .*0 to 15 only"):
        price_of(stranger)
    root = make_graph(GROUPS, [Op(Collective.GATHER, 8, group=0, root=9)])
    with pytest.raises(GraphError, match="group pg0, sequence number 100: the root 9 of gather"):
        price_of(root)
    groupless = make_graph(GROUPS, [Op(Collective.ALL_REDUCE, 8, group=0)])
    groupless = groupless.with_(group=np.full_like(groupless.group, -1))
    with pytest.raises(GraphError, match=r"rank 0, group .*: all-reduce has no group"):
        price_of(groupless)
    lonely = make_graph(GROUPS, [Op(Collective.SEND_RECV, 8, ends=(2, 3))])
    lonely = lonely.with_(peer=np.full_like(lonely.peer, -1))
    with pytest.raises(GraphError, match=r"rank 2, .*no peer"):
        price_of(lonely)


def test_the_order_of_instances_does_not_matter() -> None:
    generator = np.random.default_rng(7)
    ops = generator.permutation(np.array(every_op() * 2, dtype=object)).tolist()
    assert_priced_by_formula(ops, price_of(make_graph(GROUPS, ops)))
