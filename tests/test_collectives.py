"""The closed forms, against the same formulas written out here in exact fractions."""

from __future__ import annotations

import doctest
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.base.errors import NetworkError
from whatif.graph.columns import Collective
from whatif.simulator import collectives
from whatif.simulator.choice import price_group
from whatif.simulator.collectives import Spread, cost, price_spread
from whatif.simulator.network import Network, Tier

ALL = [coll for coll in Collective if coll is not Collective.NONE]
GROUP = [coll for coll in ALL if coll is not Collective.SEND_RECV]
# All tiers work at once, so that only the slower one is paid.
DIRECT = frozenset({Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER})
SIZES = [0, 1, 4096, 1_000_003, 64 << 20, 5 << 30]

# Binary fractions, so that the expected values are exact.
UP = Tier(size=64, bandwidth_gb_s=300, efficiency=0.75, latency_ns=1000, base_ns=8000)
OUT = Tier(size=64, bandwidth_gb_s=25, efficiency=0.5, latency_ns=12_000, base_ns=500)
B1, A1 = Fraction(225), Fraction(1000)
B2, A2 = Fraction(25, 2), Fraction(12_000)


def log2_up(value: int) -> int:
    rounds = 0
    while 2**rounds < value:
        rounds += 1
    return rounds


def one_tier(coll: Collective, n: int, s: int, b: Fraction, a: Fraction) -> Fraction:
    """Time on one switch without base, as in the design."""
    size, ranks = Fraction(s), Fraction(n)
    match coll:
        case Collective.ALL_REDUCE:
            return 2 * (ranks - 1) / ranks * size / b + 2 * (n - 1) * a
        case Collective.ALL_GATHER:
            return (n - 1) * size / b + (n - 1) * a
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_BLOCK:
            return (ranks - 1) / ranks * size / b + (n - 1) * a
        case Collective.ALL_TO_ALL:
            return (ranks - 1) / ranks * size / b + a
        case Collective.BROADCAST | Collective.REDUCE:
            return size / b + (n - 1) * a
        case Collective.GATHER | Collective.SCATTER:
            return (n - 1) * size / b + a
        case Collective.BARRIER:
            return 2 * log2_up(n) * a
        case Collective.SEND_RECV:
            return size / b + a
    raise AssertionError(coll)


def two_tiers(coll: Collective, m: int, k: int, s: int) -> Fraction:
    """Time of m ranks in each of k domains without base, as in the design."""
    size, n = Fraction(s), m * k
    match coll:
        case Collective.ALL_REDUCE:
            return (
                Fraction(2 * (m - 1), m) * size / B1
                + Fraction(2 * (k - 1), k) * size / (m * B2)
                + 2 * (m - 1) * A1
                + 2 * (k - 1) * A2
            )
        case Collective.ALL_GATHER:
            return (k - 1) * size / B2 + (m - 1) * k * size / B1 + (k - 1) * A2 + (m - 1) * A1
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_BLOCK:
            return (
                Fraction(m - 1, m) * size / B1
                + Fraction(k - 1, k) * size / (m * B2)
                + (m - 1) * A1
                + (k - 1) * A2
            )
        case Collective.ALL_TO_ALL:
            return max(Fraction(n - m, n) * size / B2, Fraction(m - 1, n) * size / B1) + max(A1, A2)
        case Collective.BROADCAST | Collective.REDUCE:
            return size / B2 + (k - 1) * A2 + size / B1 + (m - 1) * A1
        case Collective.GATHER | Collective.SCATTER:
            return max((n - m) * size / B2, (m - 1) * size / B1) + max(A1, A2)
        case Collective.BARRIER:
            return 2 * log2_up(m) * A1 + 2 * log2_up(k) * A2
    raise AssertionError(coll)


def irregular(coll: Collective, counts: list[int], s: int, root: int) -> Fraction:
    """Time of any group, as the worst port of each phase found by looking at every domain."""
    size, n, k = Fraction(s), sum(counts), len(counts)
    up_chain = max(counts) - 1
    match coll:
        case Collective.ALL_REDUCE:
            up = max(2 * (size - size / m) for m in counts)
            out = max(2 * (size - size / k) / m for m in counts)
            latency = 2 * up_chain * A1 + 2 * (k - 1) * A2
        case Collective.ALL_GATHER:
            # A domain takes in what it lacks through all its ports, then shares it out inside.
            up = max(n * size - n * size / m for m in counts)
            out = max((n - m) * size / m for m in counts)
            latency = up_chain * A1 + (k - 1) * A2
        case Collective.REDUCE_SCATTER | Collective.REDUCE_SCATTER_BLOCK:
            up = max(size - size / m for m in counts)
            out = max(size * (n - m) / n / m for m in counts)
            latency = up_chain * A1 + (k - 1) * A2
        case Collective.ALL_TO_ALL:
            up = max(size * (m - 1) / n for m in counts)
            out = max(size * (n - m) / n for m in counts)
            return max(up / B1, out / B2) + max(A1 if up_chain else 0, A2 if k > 1 else 0)
        case Collective.BROADCAST | Collective.REDUCE:
            up = size if up_chain else Fraction(0)
            out = size if k > 1 else Fraction(0)
            latency = up_chain * A1 + (k - 1) * A2
        case Collective.GATHER | Collective.SCATTER:
            near, far = counts[root] - 1, n - counts[root]
            hop = max(A1 if near else 0, A2 if far else 0)
            return max(near * size / B1, far * size / B2) + hop
        case Collective.BARRIER:
            return 2 * log2_up(max(counts)) * A1 + 2 * log2_up(k) * A2
        case _:
            raise AssertionError(coll)
    return up / B1 + out / B2 + latency


def exactly(expected: Fraction) -> object:
    return pytest.approx(float(expected), rel=1e-12, abs=1e-9)


def totals(
    coll: Collective, members: list[int], tiers: list[Tier], *, beside_root: int = 0
) -> list[float]:
    """Time of operations of all `SIZES`."""
    spread = Spread.of([members] * len(SIZES))
    spread.beside_root[:] = beside_root
    costs = price_spread(coll, np.array(SIZES, dtype=np.float64), spread, tiers)
    paid = costs.latency_ns.sum(axis=1) + costs.bandwidth_ns.sum(axis=1)
    return (costs.base_ns + costs.endpoint_ns + paid).tolist()


def all_exactly(expected: list[Fraction]) -> object:
    return pytest.approx([float(value) for value in expected], rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("coll", GROUP)
def test_one_domain_pays_the_one_tier_form_of_scale_up(coll: Collective) -> None:
    for n in range(2, 65):
        expected = all_exactly([one_tier(coll, n, size, B1, A1) + 8000 for size in SIZES])
        assert totals(coll, [3] * n, [UP, OUT]) == expected, n
        assert totals(coll, [3] * n, [UP, OUT], beside_root=n) == expected, n
        assert totals(coll, [0] * n, [UP]) == expected, n


@pytest.mark.parametrize("coll", GROUP)
def test_one_rank_a_domain_pays_the_one_tier_form_of_scale_out(coll: Collective) -> None:
    for n in range(2, 65):
        expected = all_exactly([one_tier(coll, n, size, B2, A2) + 500 for size in SIZES])
        assert totals(coll, list(range(5, 5 + 2 * n, 2)), [UP, OUT]) == expected, n


@pytest.mark.parametrize("coll", GROUP)
@pytest.mark.parametrize("order", ["contiguous", "strided"])
def test_product_groups_pay_the_two_tier_form(coll: Collective, order: str) -> None:
    for m, k in product(range(2, 33), range(2, 33)):
        if m * k > 64:
            continue
        members = [d for d in range(k) for _ in range(m)]
        if order == "strided":
            members = list(range(k)) * m
        expected = all_exactly([two_tiers(coll, m, k, size) + 500 for size in SIZES])
        assert totals(coll, members, [UP, OUT]) == expected, (m, k)
        assert totals(coll, members, [UP, OUT], beside_root=m) == expected, (m, k)
        one = cost(coll, SIZES[3], members, [UP, OUT], root=1).total_ns
        assert one == exactly(two_tiers(coll, m, k, SIZES[3]) + 500)


@given(
    counts=st.lists(st.integers(1, 9), min_size=2, max_size=9),
    size=st.integers(0, 1 << 34),
    coll=st.sampled_from(GROUP),
    data=st.data(),
)
def test_irregular_groups_pay_the_worst_port_of_each_phase(
    counts: list[int], size: int, coll: Collective, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, len(counts) - 1))
    members = data.draw(st.permutations([d for d, m in enumerate(counts) for _ in range(m)]))
    priced = cost(coll, size, members, [UP, OUT], root=root)
    assert priced.total_ns == exactly(irregular(coll, counts, size, root) + 500)


@given(counts=st.lists(st.integers(1, 9), min_size=2, max_size=9), size=st.integers(1, 1 << 30))
def test_an_unknown_root_is_priced_as_no_cheaper_than_any_root(
    counts: list[int], size: int
) -> None:
    members = [d for d, m in enumerate(counts) for _ in range(m)]
    unknown = cost(Collective.GATHER, size, members, [UP, OUT]).total_ns
    known = [
        cost(Collective.GATHER, size, members, [UP, OUT], root=root).total_ns
        for root in range(len(counts))
    ]
    assert unknown >= max(known) * (1 - 1e-12)


@given(
    members=st.lists(st.integers(0, 5), min_size=2, max_size=40),
    size=st.integers(1, 1 << 32),
    coll=st.sampled_from(GROUP),
    up_gb_s=st.sampled_from([1.0, 30.0, 225.0]),
)
def test_a_collective_responds_to_a_tier_iff_it_sends_bytes_over_it_or_is_limited_by_it(
    members: list[int], size: int, coll: Collective, up_gb_s: float
) -> None:
    root = members[0]
    counts = [members.count(domain) for domain in set(members)]
    crossing = [max(counts) > 1, len(counts) > 1]
    if coll in (Collective.GATHER, Collective.SCATTER):
        crossing[0] = members.count(root) > 1
    if coll is Collective.BARRIER:
        crossing = [False, False]
    up = Tier(size=40, bandwidth_gb_s=up_gb_s, latency_ns=1000)
    priced = cost(coll, size, members, [up, OUT], root=root)
    assert [wire > 0 for wire in priced.wire_bytes] == crossing

    faster = [
        cost(coll, size, members, [Tier(size=40, bandwidth_gb_s=2 * up_gb_s), OUT], root=root),
        cost(coll, size, members, [up, Tier(size=9, bandwidth_gb_s=25)], root=root),
    ]
    rates = (up_gb_s, 12.5)
    slower = max(wire / rate for wire, rate in zip(priced.wire_bytes, rates, strict=True))
    for tier in (0, 1):
        limits = math.isclose(priced.wire_bytes[tier] / rates[tier], slower)
        responds = sum(faster[tier].bandwidth_ns) < sum(priced.bandwidth_ns) * (1 - 1e-12)
        pays = priced.bandwidth_ns[tier] > 0
        if coll in DIRECT:
            assert pays == responds or math.isclose(
                *(wire / rate for wire, rate in zip(priced.wire_bytes, rates, strict=True))
            )
            assert not pays or limits
        else:
            assert pays == responds == crossing[tier]


def test_send_pays_the_tier_that_it_crosses_only() -> None:
    for size in SIZES:
        near = cost(Collective.SEND_RECV, size, [2, 2], [UP, OUT])
        far = cost(Collective.SEND_RECV, size, [2, 7], [UP, OUT])
        assert near.total_ns == exactly(one_tier(Collective.SEND_RECV, 2, size, B1, A1) + 8000)
        assert far.total_ns == exactly(one_tier(Collective.SEND_RECV, 2, size, B2, A2) + 500)
        assert near.messages == (1, 0)
        assert far.messages == (0, 1)
    assert far.wire_bytes == (0, SIZES[-1])


def test_contiguous_group_of_eight_on_two_nodes_of_four_pays_scale_out() -> None:
    # A simulator that charges only the innermost differing tier takes 456 us whatever the NIC.
    members = [0] * 4 + [1] * 4
    times = [
        cost(
            Collective.ALL_REDUCE,
            64 << 20,
            members,
            [Tier(size=4, bandwidth_gb_s=300), Tier(size=2, bandwidth_gb_s=gb_s)],
        ).total_ns
        for gb_s in (5, 25, 50, 1000)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] - times[1] == pytest.approx((64 << 20) / 4 * (1 / 5 - 1 / 25))


def test_world_size_collectives_use_both_tiers() -> None:
    members = [rank // 8 for rank in range(64)]
    for coll in set(GROUP) - DIRECT - {Collective.BARRIER}:
        priced = cost(coll, 1 << 20, members, [UP, OUT])
        assert min(priced.bandwidth_ns) > 0, coll
        assert min(priced.latency_ns) > 0, coll


def test_all_to_all_is_neither_ring_slow_nor_free() -> None:
    # Ideal, limited by what a rank can send: 167.8, 195.7 and 216.7 us.
    tiers = [Tier(size=32, bandwidth_gb_s=300)]
    for n, ideal_us in ((4, 167.8), (8, 195.7), (32, 216.7)):
        priced = cost(Collective.ALL_TO_ALL, 64 << 20, [0] * n, tiers).total_ns
        assert priced == pytest.approx(ideal_us * 1000, rel=1e-3)


def test_all_to_all_across_nodes_is_limited_by_the_slower_tier() -> None:
    members = [0] * 4 + [1] * 4
    out_limited = cost(Collective.ALL_TO_ALL, 16 << 20, members, [UP, OUT])
    assert out_limited.bandwidth_ns == pytest.approx((0, (16 << 20) / 2 / 12.5))
    slow_up = Tier(size=4, bandwidth_gb_s=1)
    up_limited = cost(Collective.ALL_TO_ALL, 16 << 20, members, [slow_up, OUT])
    assert up_limited.bandwidth_ns == pytest.approx(((16 << 20) * 3 / 8, 0))


def test_broadcast_costs_its_bytes() -> None:
    gib = 1 << 30
    assert cost(Collective.BROADCAST, gib, [0] * 8, [UP]).total_ns > gib / 225


def test_base_is_paid_once_and_of_the_outermost_tier_used() -> None:
    for coll in GROUP:
        assert cost(coll, 1, [0, 0], [UP, OUT]).base_ns == 8000
        assert cost(coll, 1, [0, 0, 1, 1], [UP, OUT]).base_ns == 500
        assert cost(coll, 1, [0, 1], [UP, OUT]).base_ns == 500


def test_endpoint_cost_is_in_series_and_no_bandwidth_scales_it() -> None:
    members = [0, 0, 1, 1]
    for coll in GROUP:
        plain = cost(coll, 1000, members, [UP, OUT])
        for up, out in ((300, 25), (600, 25), (300, 50)):
            tiers = [
                Tier(size=2, bandwidth_gb_s=up, endpoint_ns_per_byte=0.5),
                Tier(size=2, bandwidth_gb_s=out, endpoint_ns_per_byte=2.0),
            ]
            expected = 0.5 * plain.wire_bytes[0] + 2 * plain.wire_bytes[1]
            assert cost(coll, 1000, members, tiers).endpoint_ns == pytest.approx(expected)


def test_a_burst_allowance_gives_back_no_more_than_the_wire_took() -> None:
    burst = Tier(size=8, bandwidth_gb_s=1, latency_ns=10, base_ns=-1000)
    large = cost(Collective.BROADCAST, 5000, [0, 0], [burst])
    small = cost(Collective.BROADCAST, 300, [0, 0], [burst])
    assert large.total_ns == 5000 + 10 - 1000
    assert small.total_ns == 10


def test_a_group_of_one_costs_nothing() -> None:
    for coll in GROUP:
        priced = cost(coll, 1 << 20, [4], [UP, OUT], root=4)
        assert priced.total_ns == 0
        assert priced.wire_bytes == priced.messages == (0, 0)


def test_a_spread_says_enough_of_any_group_on_switches_and_meshes() -> None:
    # The counts that a spread keeps stand for the group itself.
    mesh = Tier(topology="fully_connected", size=8, bandwidth_gb_s=300, latency_ns=1000)
    for up, counts in product((UP, mesh), ([3, 8, 5], [8, 2], [2, 7, 7, 2], [4])):
        places = np.array([(c, d) for d, m in enumerate(counts) for c in range(m)])
        members = [d for d, m in enumerate(counts) for _ in range(m)]
        network = Network(name="t", tiers=[up, OUT])
        for coll in GROUP:
            real = price_group(network, coll, np.array(SIZES, dtype=np.float64), places).total_ns
            assert totals(coll, members, [up, OUT]) == pytest.approx(real.tolist()), (coll, counts)


def test_more_ranks_than_a_mesh_has_places_are_refused() -> None:
    mesh = Tier(topology="fully_connected", size=4, bandwidth_gb_s=300)
    with pytest.raises(NetworkError, match="5 ranks or domains do not fit a fully_connected of 4"):
        cost(Collective.ALL_REDUCE, 1, [0] * 5, [mesh])


def test_a_group_across_domains_needs_a_second_tier() -> None:
    with pytest.raises(NetworkError, match="spans 2 scale-up domains"):
        cost(Collective.ALL_REDUCE, 1, [0, 1], [UP])


def test_the_example_in_the_documentation_holds() -> None:
    assert doctest.testmod(collectives) == (0, 4)
