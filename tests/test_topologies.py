"""Rings, tori, meshes, shared NICs and uplinks, against routing of single messages."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.base.errors import NetworkError
from whatif.graph.columns import Collective
from whatif.simulator.algorithms.layout import LINK, MINUS, PLUS, Layout, port_parts, shape_of
from whatif.simulator.algorithms.plans import make_plan
from whatif.simulator.algorithms.stages import Stage, per_port
from whatif.simulator.choice import GroupPrices, price_group
from whatif.simulator.network import Network, Tier

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A, BC, RD = Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.REDUCE
GATHER, SCATTER, SEND = Collective.GATHER, Collective.SCATTER, Collective.SEND_RECV

Places = np.ndarray[Any, Any]
Coordinates = tuple[int, ...]
#: A directed link: where it begins, the dimension it is of, and which way it goes.
Link = tuple[Coordinates, int, int]


def ring(size: int, gb_s: float = 1.0, latency_ns: float = 0.0, *, wrap: bool = True) -> Tier:
    return Tier(topology="ring", size=size, bandwidth_gb_s=gb_s, latency_ns=latency_ns, wrap=wrap)


def mesh(size: int, gb_s: float, latency_ns: float = 0.0) -> Tier:
    return Tier(topology="fully_connected", size=size, bandwidth_gb_s=gb_s, latency_ns=latency_ns)


def grid(*sizes: int) -> Places:
    return np.array([p[::-1] for p in product(*map(range, reversed(sizes)))], dtype=np.int64)


def priced(
    coll: Collective,
    where: Places | list[Coordinates],
    tiers: list[Tier],
    size: float = 1.0,
    *,
    root: int | None = None,
    algorithm: str | None = None,
) -> GroupPrices:
    chosen = {} if algorithm is None else {coll.label: algorithm}
    network = Network(name="t", tiers=tiers, algorithms=chosen)
    return price_group(network, coll, np.array([float(size)]), np.array(where), root)


def time_of(*args: Any, **kwargs: Any) -> float:
    return float(priced(*args, **kwargs).total_ns[0])


def ways(
    start: Coordinates, end: Coordinates, tiers: list[Tier]
) -> list[tuple[Fraction, list[Link]]]:
    """Shortest ways, one dimension after the other, each with its share of the message."""
    found: list[tuple[Fraction, list[Link]]] = [(Fraction(1), [])]
    at = list(start)
    for d, tier in enumerate(tiers):
        ahead = end[d] - at[d]
        if tier.wrap and tier.size > 2:
            ahead %= tier.size
            steps = [ahead] if 2 * ahead < tier.size else [ahead - tier.size]
            if 2 * ahead == tier.size:
                steps = [ahead, -ahead]
        else:
            steps = [ahead]
        here = []
        for share, links in found:
            for step in steps:
                sign = 1 if step > 0 else -1
                path = [
                    ((*at[:d], (at[d] + sign * i) % tier.size, *at[d + 1 :]), d, sign)
                    for i in range(abs(step))
                ]
                here.append((share / len(steps), links + path))
        found = here
        at[d] = end[d]
    return found


def routed(pairs: list[tuple[Coordinates, Coordinates]], tiers: list[Tier]) -> Counter[Link]:
    """Bytes through every link when each pair sends one byte."""
    load: Counter[Link] = Counter()
    for start, end in pairs:
        for share, links in ways(start, end, tiers):
            for link in links:
                load[link] += share  # type: ignore[assignment]
    return load


def link_loads(
    coll: Collective, where: Places, tiers: list[Tier], root: int | None = None
) -> dict[Link, float]:
    """Bytes through every link in the plan of the default algorithm."""
    shape = shape_of(tiers)
    (stage,) = make_plan(Layout(shape, where), coll, "direct", root).stages
    return link_loads_of(stage, tiers)


def link_loads_of(stage: Stage, tiers: list[Tier]) -> dict[Link, float]:
    """Bytes through every link in a stage."""
    port, amount = per_port(stage.rows)
    tier, kind, place = port_parts(port)
    assert set(kind.tolist()) <= {PLUS, MINUS}
    loads = {}
    for t, k, at, value in zip(*(x.tolist() for x in (tier, kind, place, amount)), strict=True):
        coordinates = []
        for of in tiers:
            coordinates.append(at % of.size)
            at //= of.size
        loads[tuple(coordinates), t, 1 if k == PLUS else -1] = value
    return loads


small_rings = st.builds(ring, st.integers(1, 5), wrap=st.booleans())


@st.composite
def torus_groups(draw: st.DrawFn) -> tuple[list[Tier], Places]:
    tiers = draw(st.lists(small_rings, min_size=1, max_size=3))
    everywhere = grid(*(tier.size for tier in tiers))
    chosen = draw(
        st.lists(st.integers(0, len(everywhere) - 1), min_size=1, max_size=12, unique=True)
    )
    return tiers, everywhere[chosen]


@settings(max_examples=100, deadline=None)
@given(torus_groups(), st.data())
def test_direct_messages_load_the_links_of_their_shortest_ways(
    group: tuple[list[Tier], Places], data: st.DataObject
) -> None:
    tiers, where = group
    members = [tuple(row) for row in where.tolist()]
    n = len(members)
    root = data.draw(st.integers(0, n - 1))
    for coll, pairs, size in (
        (A2A, [(a, b) for a in members for b in members if a != b], Fraction(1, n)),
        (GATHER, [(a, members[root]) for a in members if a != members[root]], Fraction(1)),
        (SCATTER, [(members[root], b) for b in members if b != members[root]], Fraction(1)),
    ):
        expected = {k: float(v * size) for k, v in routed(pairs, tiers).items()}
        if n == 1:
            continue
        assert link_loads(coll, where, tiers, root) == pytest.approx(expected), coll
        worst = max(expected.values())
        assert time_of(coll, where, tiers, root=root) == pytest.approx(worst)


@settings(max_examples=50, deadline=None)
@given(torus_groups())
def test_the_price_of_a_torus_does_not_depend_on_where_it_is_turned_to(
    group: tuple[list[Tier], Places],
) -> None:
    tiers, where = group
    sizes = np.array([tier.size for tier in tiers])
    turned = np.where([tier.wrap for tier in tiers], (where + 1) % sizes, where)
    mirrored = sizes - 1 - where
    # The ring through members that are no product begins at the first.
    is_product = len(where) == np.prod([len(set(column)) for column in where.T.tolist()])
    for coll in (AR, AG, RS, A2A) if is_product else (A2A,):
        here = time_of(coll, where, tiers)
        assert time_of(coll, mirrored, tiers) == pytest.approx(here)
        assert time_of(coll, turned, tiers) == pytest.approx(here)


def test_all_to_all_on_a_full_ring_or_torus_is_bounded_by_its_worst_link() -> None:
    for n in range(3, 20):
        bound = (n * n - n % 2) / 8 / n
        assert time_of(A2A, grid(n), [ring(n)], 1e9) == pytest.approx(bound * 1e9)
        half = (n // 2) * (n - n // 2) / n
        line = time_of(A2A, grid(n), [ring(n, wrap=False)], 1e9)
        assert line == pytest.approx(half * 1e9)
    assert time_of(A2A, grid(4, 8), [ring(4), ring(8)]) == pytest.approx(8 / 8)
    assert time_of(A2A, grid(4, 8), [ring(4), ring(8, 4.0)]) == pytest.approx(4 / 8)


def test_all_to_all_on_a_torus_of_256_takes_no_time_to_price_and_its_link_load() -> None:
    tiers = [ring(16, 100.0), ring(16, 100.0)]
    assert time_of(A2A, grid(16, 16), tiers, 1e9) == pytest.approx(16 / 8 * 1e9 / 100)


def test_a_send_on_a_torus_crosses_every_hop_of_every_dimension() -> None:
    tiers = [ring(8, 10.0, 100), ring(4, 5.0, 1000)]
    one = priced(SEND, [(0, 0), (3, 1)], tiers, 1e6)
    assert one.costs.latency_ns.tolist() == [[300.0, 1000.0]]
    assert one.costs.bandwidth_ns.tolist() == [[0.0, 1e6 / 5]]
    # Half way around it goes both ways, and one step the other way is one hop.
    assert time_of(SEND, [(0, 0), (4, 0)], tiers, 1e6) == pytest.approx(400 + 1e6 / 20)
    assert time_of(SEND, [(0, 0), (7, 0)], tiers, 1e6) == pytest.approx(100 + 1e6 / 10)


def test_a_ring_of_two_has_one_link() -> None:
    for wrap in (True, False):
        pair = [ring(2, 10.0, 50, wrap=wrap)]
        assert time_of(AG, grid(2), pair, 1e6) == pytest.approx(50 + 1e6 / 10)
        assert time_of(AR, grid(2), pair, 1e6) == pytest.approx(100 + 1e6 / 10)
        assert time_of(A2A, grid(2), pair, 1e6) == pytest.approx(50 + 1e6 / 20)
        assert time_of(SEND, grid(2), pair, 1e6) == pytest.approx(50 + 1e6 / 10)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16])
def test_collectives_on_a_ring_use_both_directions_and_pay_its_hops(n: int) -> None:
    s, tiers, where = 1 << 20, [ring(n, 10.0, 100)], grid(n)
    half, part = n // 2 * 100, (n - 1) / n
    assert time_of(AG, where, tiers, s) == pytest.approx((n - 1) * s / 20 + half)
    assert time_of(RS, where, tiers, s) == pytest.approx(part * s / 20 + half)
    assert time_of(AR, where, tiers, s) == pytest.approx(2 * part * s / 20 + 2 * half)
    for coll in (BC, RD):
        assert time_of(coll, where, tiers, s, root=1) == pytest.approx(s / 20 + (n - 1) * 100)
    assert time_of(Collective.BARRIER, where, tiers, s) == pytest.approx(2 * half)


@pytest.mark.parametrize("n", [3, 4, 7])
def test_without_wrap_around_the_end_of_the_line_takes_all_through_one_link(n: int) -> None:
    s, tiers, where = 1 << 20, [ring(n, 10.0, 100, wrap=False)], grid(n)
    length = (n - 1) * 100
    assert time_of(AG, where, tiers, s) == pytest.approx((n - 1) * s / 10 + length)
    assert time_of(RS, where, tiers, s) == pytest.approx((n - 1) / n * s / 10 + length)
    assert time_of(AR, where, tiers, s) == pytest.approx(2 * ((n - 1) / n * s / 10 + length))
    middle = n // 2
    far = max(middle, n - 1 - middle) * 100
    assert time_of(BC, where, tiers, s, root=0) == pytest.approx(s / 10 + length)
    assert time_of(BC, where, tiers, s, root=middle) == pytest.approx(s / 10 + far)


def shards_crossing(places: list[int], what: Collective) -> Counter[tuple[int, int]]:
    """Shards over every link of a line: each has to get from where it is to where it is not."""
    crossing: Counter[tuple[int, int]] = Counter()
    first, last = min(places), max(places)
    for shard in places:
        for at in range(first, last):
            on_the_right = shard > at
            # A gathered shard goes away from its owner; partial sums come together at it.
            crossing[at, (-1 if on_the_right else 1) * (1 if what == AG else -1)] += 1
    return crossing


@given(st.sets(st.integers(0, 9), min_size=2).map(sorted))
def test_on_a_line_every_link_carries_the_shards_that_must_cross_it(chosen: list[int]) -> None:
    tiers = [ring(10, wrap=False)]
    where = np.array(chosen)[:, np.newaxis]
    for coll, unit in ((AG, 1.0), (RS, 1 / len(chosen))):
        (stage,) = make_plan(Layout(shape_of(tiers), where), coll, "hierarchical", None).stages
        port, amount = per_port(stage.rows)
        _, kind, place = port_parts(port)
        got = {
            (int(p) if k == PLUS else int(p) - 1, 1 if k == PLUS else -1): float(a)
            for k, p, a in zip(kind, place, amount, strict=True)
        }
        expected = {k: v * unit for k, v in shards_crossing(chosen, coll).items()}
        assert got == pytest.approx(expected)
        assert stage.messages[0] == chosen[-1] - chosen[0]


def test_ranks_on_a_part_of_a_ring_go_around_only_if_that_is_no_detour() -> None:
    eight = [ring(8, 10.0, 100)]
    for chosen, both_ways, hops in (
        ([0, 1, 2, 3], False, 3),
        ([5, 6, 7, 0], False, 3),
        ([0, 2, 4, 6], True, 4),
        ([0, 4], True, 4),
        ([0, 1, 4, 5], True, 4),
        ([0, 1, 2, 3, 4, 5], True, 5),
        ([0, 1, 2, 3, 4], True, 5),
    ):
        where = np.array(sorted(chosen))[:, np.newaxis]
        taken = (len(chosen) - 1) * 1e6 / (20 if both_ways else 10)
        assert time_of(AG, where, eight, 1e6) == pytest.approx(taken + hops * 100), chosen


def test_a_torus_goes_dimension_by_dimension_or_along_all_at_once() -> None:
    tiers, where, s = [ring(4, 10.0, 100), ring(8, 10.0, 100)], grid(4, 8), 1e9
    one = {4: 3 / 4, 8: 7 / 8}
    bucket = one[4] * s / 20 + one[8] * s / 4 / 20 + (2 + 4) * 100
    assert time_of(RS, where, tiers, s, algorithm="hierarchical") == pytest.approx(bucket)
    assert time_of(AR, where, tiers, s, algorithm="hierarchical") == pytest.approx(2 * bucket)
    # Half of the data begins with each dimension.
    first = max(one[4] * s / 2, one[8] * s / 2) / 20
    second = max(one[8] * s / 2 / 4, one[4] * s / 2 / 8) / 20
    both = first + second + 2 * 4 * 100
    for algorithm in (None, "multi-axis"):
        assert time_of(RS, where, tiers, s, algorithm=algorithm) == pytest.approx(both)
        assert time_of(AR, where, tiers, s, algorithm=algorithm) == pytest.approx(2 * both)
        assert time_of(AG, where, tiers, s / 32, algorithm=algorithm) == pytest.approx(both)
    spread = 2 * s / 2 / 20 + 2 * 7 * 100
    assert time_of(BC, where, tiers, s, root=5) == pytest.approx(spread)
    in_one = time_of(AR, where[:4], tiers, s)
    assert in_one == pytest.approx(2 * (one[4] * s / 20 + 200))


def test_an_even_torus_uses_every_link_all_the_time() -> None:
    # Bus bandwidth of an all-reduce on 16 x 16: the four links of a chip together.
    tiers = [ring(16, 100.0), ring(16, 100.0)]
    bus = 2 * 255 / 256 * 1e9 / time_of(AR, grid(16, 16), tiers, 1e9)
    assert bus == pytest.approx(400)
    cube = [ring(4, 45.0) for _ in range(3)]
    bus = 2 * 63 / 64 * 1e9 / time_of(AR, grid(4, 4, 4), cube, 1e9)
    assert bus == pytest.approx(6 * 45)


def test_members_of_a_torus_that_are_no_product_pass_data_around_one_ring() -> None:
    tiers = [ring(4, 10.0, 100), ring(4, 10.0, 100)]
    # Two diagonal neighbours: two hops, over one link of each dimension in each direction.
    diagonal = priced(AG, [(0, 0), (1, 1)], tiers, 1e6)
    assert diagonal.total_ns[0] == pytest.approx(200 + 1e6 / 10)
    corner = time_of(AG, [(0, 0), (1, 0), (0, 1)], tiers, 1e6)
    assert corner >= 2 * 1e6 / 20  # both links that a corner's chip could use
    full = time_of(AG, grid(4, 4), tiers, 1e6)
    odd = time_of(AG, grid(4, 4)[:-1], tiers, 1e6)
    assert full < odd < 15 * 1e6 / 10 + 15 * 200


def test_a_pair_of_a_full_mesh_has_its_link_and_all_have_the_total() -> None:
    for size in (2, 4, 8):
        tier = [mesh(size, 448, 100)]
        pair = time_of(SEND, grid(2), tier, 1e6)
        assert pair == pytest.approx(100 + 1e6 * (size - 1) / 448)
        assert time_of(AR, grid(2), tier, 1e6) == pytest.approx(pair + 100)
        switch = [Tier(size=size, bandwidth_gb_s=448, latency_ns=100)]
        for coll in (AR, AG, RS, A2A):
            full, plain = (time_of(coll, grid(size), t, 1e6) for t in (tier, switch))
            assert full == pytest.approx(plain), coll


@pytest.mark.parametrize("k", [2, 3, 5, 8])
def test_a_part_of_a_full_mesh_uses_the_links_between_its_members(k: int) -> None:
    size, s, where = 8, 1e6, grid(k)
    link = 448 / 7
    tier = [mesh(size, 448)]
    assert time_of(AG, where, tier, s) == pytest.approx(s / link)
    assert time_of(RS, where, tier, s) == pytest.approx(s / k / link)
    assert time_of(AR, where, tier, s) == pytest.approx(2 * s / k / link)
    assert time_of(AR, where, tier, s, algorithm="direct") == pytest.approx(2 * s / k / link)
    assert time_of(A2A, where, tier, s) == pytest.approx(s / k / link)
    for coll in (BC, RD):
        assert time_of(coll, where, tier, s, root=1) == pytest.approx(s / (k - 1) / link)
    for coll in (GATHER, SCATTER):
        assert time_of(coll, where, tier, s, root=1) == pytest.approx(s / link)
    (stage,) = make_plan(Layout(shape_of(tier), where), AG, "hierarchical", None).stages
    port, amount = per_port(stage.rows)
    assert set(port_parts(port)[1].tolist()) == {LINK}
    assert len(port) == k * (k - 1)
    assert amount == pytest.approx(np.ones(k * (k - 1)))


def test_a_mesh_of_nodes_has_a_link_from_every_rank_to_its_like_in_each_node() -> None:
    tiers = [Tier(size=2, bandwidth_gb_s=100), mesh(4, 30)]
    # Eight ranks, three links of 10 each.
    assert time_of(AG, grid(2, 4), tiers, 1e6) == pytest.approx(3 * 1e6 / 30 + 4 * 1e6 / 100)
    assert time_of(A2A, grid(2, 4), tiers, 8e6) == pytest.approx(2e6 / 10)


NICS = [
    Tier(size=8, bandwidth_gb_s=512),
    Tier(size=4, bandwidth_gb_s=32, ranks_per_nic=4, latency_ns=100),
]


def test_ranks_that_share_a_nic_share_its_bandwidth_and_one_alone_has_it_all() -> None:
    s = float(1 << 20)
    across = [(0, 0), (0, 1)]
    assert time_of(SEND, across, NICS, s) == pytest.approx(100 + s / 32)
    assert time_of(AG, across, NICS, s) == pytest.approx(100 + s / 32)
    # Ranks 0 to 3 have one NIC, 4 to 7 the other.
    same = [(c, d) for d in range(2) for c in (0, 1)]
    apart = [(c, d) for d in range(2) for c in (0, 4)]
    assert priced(AG, same, NICS, s).costs.bandwidth_ns[0, 1] == pytest.approx(2 * s / 32)
    assert priced(AG, apart, NICS, s).costs.bandwidth_ns[0, 1] == pytest.approx(s / 32)
    everyone = grid(8, 4)
    shared = priced(AR, everyone, NICS, s).costs.bandwidth_ns[0, 1]
    own = msgspec.structs.replace(NICS[1], ranks_per_nic=1, bandwidth_gb_s=8)
    assert shared == pytest.approx(priced(AR, everyone, [NICS[0], own], s).costs.bandwidth_ns[0, 1])
    assert priced(A2A, everyone, NICS, s).total_ns[0] == pytest.approx(100 + s * 24 / 32 * 4 / 32)


def test_an_oversubscribed_switch_is_limited_by_the_uplink_of_a_unit() -> None:
    up = Tier(size=8, bandwidth_gb_s=512)
    for factor, limited in ((1.0, False), (4.0, True)):
        out = Tier(size=4, bandwidth_gb_s=16, oversubscription=factor)
        s = 1e6
        everyone = priced(A2A, grid(8, 4), [up, out], s).costs.bandwidth_ns[0, 1]
        assert everyone == pytest.approx(s * 24 / 32 / 16 * factor)
        # Two of the eight ranks need no more than a quarter of what all of them could use.
        few = priced(A2A, grid(2, 4), [up, out], s).costs.bandwidth_ns[0, 1]
        assert few == pytest.approx(s * 6 / 8 / 16)
        three = priced(A2A, grid(3, 4), [up, out], s).costs.bandwidth_ns[0, 1]
        assert three == pytest.approx(s * 9 / 12 / 16 * (1.5 if limited else 1))


def test_pods_are_reached_through_the_same_ports_and_a_tapered_uplink() -> None:
    # Nodes of 8, pods of 4 nodes with one NIC a rank, pods joined one to seven.
    tiers = [
        Tier(size=8, bandwidth_gb_s=450),
        Tier(size=4, bandwidth_gb_s=50, latency_ns=10),
        Tier(size=2, bandwidth_gb_s=50, latency_ns=20, oversubscription=7, shared_ports=True),
    ]
    network = Network(name="t", tiers=tiers)
    assert network.tier_names == ("scaleup", "scaleout", "scaleout")
    assert network.domain_size == 8
    assert network.num_domains == 8
    s = 64e6
    everyone = grid(8, 4, 2)
    (time,) = price_group(network, A2A, np.array([s]), everyone).total_ns
    # Half of what 32 ranks have goes through an uplink of 32 x 50 / 7.
    assert time == pytest.approx(20 + 32 * s / 2 / (32 * 50 / 7))
    full = Network(
        name="t", tiers=[*tiers[:2], msgspec.structs.replace(tiers[2], oversubscription=1)]
    )
    (time,) = price_group(full, A2A, np.array([s]), everyone).total_ns
    # The NIC carries what leaves the node, to whichever pod.
    assert time == pytest.approx(20 + s * 56 / 64 / 50)
    alone = price_group(network, SEND, np.array([s]), np.array([[0, 0, 0], [0, 0, 1]])).total_ns
    assert alone[0] == pytest.approx(20 + s / 50)


def test_a_torus_below_a_switch_pays_links_inside_and_ports_outside() -> None:
    tiers = [ring(4, 100.0, 10), ring(4, 100.0, 10), Tier(size=8, bandwidth_gb_s=10, latency_ns=99)]
    network = Network(name="pods", tiers=tiers)
    assert network.tier_names == ("scaleup", "scaleup", "scaleout")
    assert network.domain_size == 16
    s = 1e8
    where = grid(4, 4, 2)
    inside = 15 / 16 * s / 400 * 2 + 2 * 2 * 2 * 10
    outside = s / 16 / 10 + 2 * 99
    (time,) = price_group(network, AR, np.array([s]), where).total_ns
    assert time == pytest.approx(inside + outside)
    (time,) = price_group(network, A2A, np.array([s]), where).total_ns
    assert time == pytest.approx(99 + s / 2 / 10)
    near, far = [(0, 0, 0), (1, 1, 0)], [(0, 0, 0), (1, 1, 1)]
    near_costs = price_group(network, SEND, np.array([s]), np.array(near)).costs
    far_costs = price_group(network, SEND, np.array([s]), np.array(far)).costs
    assert near_costs.messages.tolist() == [[1, 1, 0]]
    assert far_costs.messages.tolist() == [[0, 0, 1]]
    assert far_costs.bandwidth_ns[0].tolist() == [0, 0, s / 10]


def test_four_tiers_reduce_level_by_level() -> None:
    tiers = [
        Tier(size=2, bandwidth_gb_s=b, latency_ns=a)
        for b, a in ((800, 1), (400, 10), (100, 100), (20, 1000))
    ]
    s = 1e6
    expected = sum(
        2 * (s / 2 / 2**level / tier.bandwidth_gb_s + tier.latency_ns)
        for level, tier in enumerate(tiers)
    )
    assert time_of(AR, grid(2, 2, 2, 2), tiers, s) == pytest.approx(expected)


def test_a_partly_filled_domain_is_priced_by_those_that_are_there() -> None:
    up, out = Tier(size=72, bandwidth_gb_s=900), Tier(size=4, bandwidth_gb_s=50)
    where = [(c, 0) for c in range(64)]
    assert time_of(AR, where, [up, out], 1e9) == pytest.approx(2 * 63 / 64 * 1e9 / 900)
    ragged = [*((c, 0) for c in range(72)), *((c, 1) for c in range(8))]
    priced_ragged = priced(AR, ragged, [up, out], 1e9).costs.bandwidth_ns[0]
    assert priced_ragged == pytest.approx([2 * 71 / 72 * 1e9 / 900, 1e9 / 8 / 50])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"topology": "switch", "wrap": False}, "wrap: only a ring"),
        ({"topology": "ring", "ranks_per_nic": 2}, "ranks_per_nic: goes with a switch only"),
        ({"topology": "fully_connected", "oversubscription": 2}, "oversubscription: goes with"),
        ({"topology": "ring", "in_network_reduction": True}, "in_network_reduction: goes with"),
        ({"topology": "ring", "shared_ports": True}, "shared_ports: goes with"),
        ({"ranks_per_nic": 0}, "ranks_per_nic: must be at least 1"),
        ({"oversubscription": 0.5}, "oversubscription: must be at least 1"),
        ({"oversubscription": float("nan")}, "oversubscription: must be at least 1"),
        ({"in_network_efficiency": 1.2}, "in_network_efficiency: must be above 0"),
        ({"in_network_latency_ns": -1}, "in_network_latency_ns: must be finite"),
        ({"shared_ports": True, "ranks_per_nic": 2}, "shared_ports: a tier reached through"),
    ],
)
def test_a_field_that_does_not_go_with_the_topology_is_refused(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NetworkError, match=problem):
        Tier(size=4, bandwidth_gb_s=1, **fields)


def test_ports_can_be_shared_only_where_there_are_some_below() -> None:
    plain = Tier(size=4, bandwidth_gb_s=1)
    shares = Tier(size=4, bandwidth_gb_s=1, shared_ports=True)
    with pytest.raises(NetworkError, match=r"tiers\[0\]: there is no tier below"):
        Network(name="t", tiers=[shares, plain])
    with pytest.raises(NetworkError, match=r"tiers\[0\]: there is no tier below"):
        Network(name="t", tiers=[Tier(size=4, bandwidth_gb_s=1, ranks_per_nic=2)])
    with pytest.raises(
        NetworkError, match=r"tiers\[1\].shared_ports: only the ports into a switch"
    ):
        Network(name="t", tiers=[ring(4), shares])


@pytest.mark.parametrize(
    ("topologies", "names"),
    [
        (["switch"], ["scaleup"]),
        (["switch", "switch"], ["scaleup", "scaleout"]),
        (["ring", "ring"], ["scaleup", "scaleup"]),
        (["ring", "ring", "ring", "switch"], ["scaleup", "scaleup", "scaleup", "scaleout"]),
        (["switch", "switch", "switch"], ["scaleup", "scaleup", "scaleout"]),
        (["fully_connected", "switch"], ["scaleup", "scaleout"]),
        (["switch", "ring", "ring"], ["scaleup", "scaleout", "scaleout"]),
    ],
)
def test_the_outermost_fabric_is_scale_out(topologies: list[Any], names: list[str]) -> None:
    tiers = [Tier(topology=topology, size=4, bandwidth_gb_s=1) for topology in topologies]
    network = Network(name="t", tiers=tiers)
    assert list(network.tier_names) == names
    assert network.scopes == tuple(dict.fromkeys(names))
    assert network.domain_size * network.num_domains == network.capacity
