"""Every algorithm against its closed form in exact fractions, and the choice between them."""

from __future__ import annotations

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
from whatif.simulator.algorithms.layout import IN, OUT, Layout, port_parts, shape_of
from whatif.simulator.algorithms.names import ALGORITHMS, OF_COLLECTIVE
from whatif.simulator.algorithms.plans import make_plan, possible
from whatif.simulator.algorithms.trees import double_tree
from whatif.simulator.choice import price_group
from whatif.simulator.network import Network, Protocol, Tier, check_priced, load_network

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A, BC, RD = Collective.ALL_TO_ALL, Collective.BROADCAST, Collective.REDUCE
BARRIER = Collective.BARRIER

# Binary fractions, so that the expected values are exact.
UP = Tier(size=64, bandwidth_gb_s=256, latency_ns=1000, base_ns=8000, in_network_reduction=True)
OUT_TIER = Tier(size=64, bandwidth_gb_s=16, latency_ns=12_000, base_ns=500)
B1, A1, B2, A2 = (Fraction(x) for x in (256, 1000, 16, 12_000))
SIZES = [0, 3000, 1 << 20, 5 << 30]
RANKS = [2, 3, 4, 5, 6, 7, 8, 12, 16, 17, 31, 64]
CHUNKS = 4


# What the busiest of few ranks sends in a double tree; of more, one sends twice the data. Of three
# one is the root of a tree, with two children, and a leaf of the other.
TREE_LOAD = {2: Fraction(1), 3: Fraction(3, 2)}


def places(*sizes: int) -> np.ndarray[Any, Any]:
    """Coordinates of all combinations, the first coordinate the fastest."""
    return np.array([p[::-1] for p in product(*map(range, reversed(sizes)))], dtype=np.int64)


def times(
    coll: Collective,
    algorithm: str | list[str],
    where: np.ndarray[Any, Any],
    tiers: list[Tier],
    root: int | None = None,
) -> list[float]:
    network = Network(
        name="t", tiers=tiers, algorithms={coll.label: algorithm}, pipeline_chunks=CHUNKS
    )
    priced = price_group(network, coll, np.array(SIZES, dtype=np.float64), where, root)
    if isinstance(algorithm, str) and algorithm != "auto":
        assert set(priced.algorithm) == {algorithm}
    return priced.total_ns.tolist()


def floor_log2(value: int) -> int:
    return len(bin(value)) - 3


def ceil_log2(value: int) -> int:
    return floor_log2(2 * value - 1)


def one_switch(coll: Collective, algorithm: str, n: int) -> tuple[Fraction, int]:
    """Bytes through the busiest port per byte of size, and messages in a row."""
    part, up, down = Fraction(n - 1, n), floor_log2(n), ceil_log2(n)
    core = 2**up
    fold = core != n
    match coll, algorithm:
        case Collective.BARRIER, "hierarchical":
            return Fraction(0), 2 * down
        case Collective.BARRIER, "halving-doubling":
            return Fraction(0), down
        case Collective.BARRIER, "ring":
            return Fraction(0), 2 * (n - 1)
        case Collective.BARRIER, "tree":
            return Fraction(0), 2 * up
        case Collective.BARRIER, "direct" | "in-switch":
            return Fraction(0), 2
        case Collective.ALL_TO_ALL, _:
            return part, 1
        case ((Collective.BROADCAST | Collective.REDUCE), "tree"):
            return Fraction(1), 1 + floor_log2(n - 1)
        case ((Collective.BROADCAST | Collective.REDUCE), _):
            return Fraction(1), n - 1
        case Collective.ALL_REDUCE, "in-switch":
            return 1 + Fraction(1, n), 2
        case Collective.ALL_REDUCE, "tree":
            return TREE_LOAD.get(n, Fraction(2)), 2 * up
        case Collective.ALL_REDUCE, "halving-doubling":
            return 2 * Fraction(core - 1, core) + 2 * fold, 2 * up + 2 * fold
        case Collective.ALL_REDUCE, "direct":
            return 2 * part, 2
        case Collective.ALL_REDUCE, _:
            return 2 * part, 2 * (n - 1)
        case Collective.ALL_GATHER, "in-switch":
            return Fraction(n), 1
        case Collective.REDUCE_SCATTER, "in-switch":
            return Fraction(1), 1
        case ((Collective.ALL_GATHER | Collective.REDUCE_SCATTER), _):
            messages = {"direct": 1, "halving-doubling": down}.get(algorithm, n - 1)
            return (Fraction(n - 1) if coll == AG else part), messages
    raise AssertionError(coll, algorithm)


CASES = [
    (coll, algorithm)
    for coll in (AR, AG, RS, A2A, BC, RD, BARRIER)
    for algorithm in OF_COLLECTIVE[coll]
    if algorithm != "multi-axis"
]


@pytest.mark.parametrize(("coll", "algorithm"), CASES)
def test_on_one_switch_an_algorithm_costs_its_closed_form(coll: Collective, algorithm: str) -> None:
    for n in RANKS:
        moved, messages = one_switch(coll, algorithm, n)
        expected = [float(8000 + messages * A1 + moved * size / B1) for size in SIZES]
        assert times(coll, algorithm, places(n), [UP]) == pytest.approx(expected, rel=1e-12), n


def two_switches(coll: Collective, algorithm: str, m: int, k: int, size: int) -> Fraction:
    """Time of m ranks in each of k domains, without base."""
    n, s = m * k, Fraction(size)
    one, two = Fraction(m - 1, m) * s / B1, Fraction(k - 1, k) * s / m / B2
    if coll == AG:
        one, two = (m - 1) * k * s / B1, (k - 1) * s / B2
    if coll in (BC, RD):
        one, two = s / B1, s / B2
    passes = 2 if coll in (AR, BARRIER) else 1
    if coll == BARRIER:
        one = two = s = Fraction(0)
    if algorithm == "hierarchical" and coll == A2A:
        return Fraction(m - 1, m) * s / B1 + Fraction(k - 1, k) * s / B2 + A1 + A2
    if coll == A2A:
        return max(Fraction(m - 1, n) * s / B1, Fraction(n - m, n) * s / B2) + max(A1, A2)
    ring = passes * ((m - 1) * A1 + (k - 1) * A2)
    match algorithm:
        case "hierarchical":
            if coll == BARRIER:
                ring = 2 * (ceil_log2(m) * A1 + ceil_log2(k) * A2)
            return passes * (one + two) + ring
        case "hierarchical-pipelined":
            one, two = passes * one, passes * two
            return max(one, two) + min(one, two) / CHUNKS + ring
        case "direct":
            return passes * (one + two + A1 + A2)
        case "halving-doubling":
            logs = ceil_log2(m) * A1 + ceil_log2(k) * A2
            if coll != AR:
                return one + two + logs  # a barrier is there only
            time = Fraction(0)
            for units, data, b, a in ((m, s, B1, A1), (k, s / m, B2, A2)):
                core = 2 ** floor_log2(units)
                fold = core != units
                time += 2 * Fraction(core - 1, core) * data / b + 2 * floor_log2(core) * a
                time += fold * 2 * (data / b + a)
            return time
        case "ring":
            x = {AR: 2 * Fraction(n - 1, n), AG: Fraction(n - 1), RS: Fraction(n - 1, n)}.get(
                coll, Fraction(1)
            )
            edges = k * (m - 1) * A1 + k * A2 - A1  # around, less one of the inner edges
            if coll in (BC, RD):
                edges = k * (m - 1) * A1 + (k - 1) * A2
            return max(x * Fraction(m - 1, m) * s / B1, x / m * s / B2) + passes * edges
        case "tree":
            inner, outer = (TREE_LOAD.get(units, Fraction(2)) for units in (m, k))
            up = floor_log2(m) * A1 + floor_log2(k) * A2
            if coll in (BC, RD):
                inner = outer = Fraction(1)
                up = (1 + floor_log2(m - 1)) * A1 + (1 + floor_log2(k - 1)) * A2
            return max(inner * s / B1, outer * s / m / B2) + passes * up
        case "in-switch":
            one = {AR: (1 + Fraction(1, m)) * s, AG: n * s, RS: s, BARRIER: s}[coll] / B1
            two = passes * two
            return max(one, two) + min(one, two) / CHUNKS + passes * (A1 + (k - 1) * A2)
    raise AssertionError(coll, algorithm)


@pytest.mark.parametrize(("coll", "algorithm"), CASES)
def test_on_two_switches_an_algorithm_costs_its_closed_form(
    coll: Collective, algorithm: str
) -> None:
    for m, k in ((2, 2), (4, 3), (8, 4), (5, 7), (3, 16)):
        expected = [float(500 + two_switches(coll, algorithm, m, k, size)) for size in SIZES]
        got = times(coll, algorithm, places(m, k), [UP, OUT_TIER])
        assert got == pytest.approx(expected, rel=1e-12), (m, k)


def test_busy_switches_reduce_above_the_bus_bandwidth_of_the_wire_but_never_faster_than_it() -> (
    None
):
    # Bus bandwidth counts a ring's bytes: 2 (n - 1)/n S. NVLS sends and receives S (1 + 1/n).
    h100 = load_network("dgx_h100")
    network = msgspec.structs.replace(h100, algorithms={"all-reduce": "in-switch"})
    (time,) = price_group(network, AR, np.array([16e9]), places(8, 1)).total_ns
    bus = 2 * 7 / 8 * 16e9 / time
    tier = h100.tiers[0]
    assert bus > tier.bandwidth_gb_s
    assert bus == pytest.approx(482, rel=0.03)  # measured on 8 H100
    for n, coll in product((2, 4, 8), (AR, AG, RS)):
        plan = make_plan(Layout(shape_of([tier]), places(n)), coll, "in-switch", None)
        kind = port_parts(plan.stages[0].rows.port)[1]
        assert {OUT, IN} == set(kind.tolist())
        moved = float(plan.stages[0].wire[0])
        fast = price_group(
            Network(name="t", tiers=[tier], algorithm="in-switch"), coll, np.array([1e9]), places(n)
        )
        assert moved * 1e9 / fast.costs.bandwidth_ns[0, 0] <= tier.bandwidth_gb_s
    ring = price_group(h100, AG, np.array([16e9]), places(8, 1)).total_ns[0]
    assert 7 * 16e9 / ring < tier.bandwidth_gb_s


def test_switches_reduce_in_some_tiers_and_rings_run_in_the_others() -> None:
    plain = msgspec.structs.replace(UP, in_network_reduction=False)
    spine = msgspec.structs.replace(OUT_TIER, in_network_reduction=True)
    m, k, s = 4, 3, SIZES[-1]
    one, two = 2 * Fraction(m - 1, m) * s / B1, (1 + Fraction(1, k)) * s / m / B2
    latency = 2 * (m - 1) * A1 + 2 * A2
    expected = 500 + max(one, two) + min(one, two) / CHUNKS + latency
    got = times(AR, "in-switch", places(m, k), [plain, spine])[-1]
    assert got == pytest.approx(float(expected), rel=1e-12)


def test_reduction_in_the_network_has_an_efficiency_and_a_latency_of_its_own() -> None:
    tier = msgspec.structs.replace(
        UP, efficiency=0.75, in_network_efficiency=0.5, in_network_latency_ns=9000, base_ns=0
    )
    got = times(AR, "in-switch", places(4), [tier])
    assert got == pytest.approx([2 * 9000 + 1.25 * size / 128 for size in SIZES], rel=1e-12)
    ring = times(AR, "ring", places(4), [tier])
    assert ring == pytest.approx([6 * 1000 + 1.5 * size / 192 for size in SIZES], rel=1e-12)


@given(n=st.integers(1, 300))
def test_both_trees_reach_all_ranks_and_none_works_in_both(n: int) -> None:
    trees = double_tree(n)
    assert trees.children.sum() == trees.parents.sum() == 2 * (n - 1)
    assert trees.children.max() <= 2
    assert (trees.parents >= 1).all() or n == 1
    assert trees.height == floor_log2(n)
    # Each of the two sends half of the data: no rank sends more than twice the data in all.
    assert ((trees.children + trees.parents) / 2).max() <= 2


GB = st.sampled_from([1.0, 12.5, 100.0, 450.0])
LATENCY = st.sampled_from([0.0, 500.0, 20_000.0])
SWITCHES = st.builds(
    Tier,
    size=st.just(8),
    bandwidth_gb_s=GB,
    latency_ns=LATENCY,
    in_network_reduction=st.booleans(),
)


@settings(max_examples=60)
@given(
    tiers=st.lists(SWITCHES, min_size=1, max_size=3),
    coll=st.sampled_from([AR, AG, RS, A2A, BC, RD, BARRIER]),
    data=st.data(),
)
def test_auto_is_the_cheapest_of_all_at_every_size(
    tiers: list[Tier], coll: Collective, data: st.DataObject
) -> None:
    everywhere = places(*(4 for _ in tiers))
    chosen = data.draw(st.sets(st.integers(0, len(everywhere) - 1), min_size=2))
    where = everywhere[sorted(chosen)]
    each = [
        times(coll, name, where, tiers, 0)
        for name in possible(Layout(shape_of(tiers), where), coll)
    ]
    assert times(coll, "auto", where, tiers, 0) == pytest.approx(np.min(each, axis=0).tolist())


def test_a_list_of_algorithms_is_a_choice_between_these() -> None:
    tiers = [msgspec.structs.replace(UP, base_ns=0)]
    some = times(AR, ["ring", "tree"], places(8), tiers)
    ring, tree = (times(AR, name, places(8), tiers) for name in ("ring", "tree"))
    assert some == np.minimum(ring, tree).tolist()
    assert some[0] == tree[0] < ring[0]
    assert some[-1] == ring[-1] < tree[-1]


def test_the_default_is_hierarchical_or_direct_as_without_a_choice() -> None:
    for coll in OF_COLLECTIVE:
        network = Network(name="t", tiers=[UP, OUT_TIER])
        where = places(2, 1) if coll is Collective.SEND_RECV else places(4, 2)
        priced = price_group(network, coll, np.array([1e6]), where, 0)
        assert priced.algorithm[0] == OF_COLLECTIVE[coll][0]
        assert priced.algorithm[0] in ("hierarchical", "direct")
        assert priced.protocol == (None,)


def test_a_network_wide_algorithm_counts_where_it_exists() -> None:
    network = Network(name="t", tiers=[UP], algorithm="tree", algorithms={"broadcast": "ring"})
    used = {
        coll: price_group(network, coll, np.array([1e6]), places(4), 0).algorithm[0]
        for coll in (AR, AG, A2A, BC, RD)
    }
    assert used == {AR: "tree", AG: "hierarchical", A2A: "direct", BC: "ring", RD: "tree"}


def test_the_block_form_of_reduce_scatter_follows_its_plain_form() -> None:
    block = Collective.REDUCE_SCATTER_BLOCK
    network = Network(name="t", tiers=[UP], algorithms={"reduce-scatter": "direct"})
    assert price_group(network, block, np.array([1e6]), places(4)).algorithm == ("direct",)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"algorithm": "best"}, r"algorithm: there is no algorithm 'best'; there are auto, hier"),
        ({"algorithm": ["ring", "x"]}, r"there is no algorithm 'x'"),
        ({"algorithms": {"allreduce": "ring"}}, r"no collective 'allreduce'; there are all-reduce"),
        (
            {"algorithms": {"all-to-all": "ring"}},
            r"algorithms\.all-to-all: .* 'ring' for all-to-all; .* auto, direct, hierarchical$",
        ),
        ({"algorithms": {"gather": ["direct", "tree"]}}, r"no algorithm 'tree' for gather"),
        ({"algorithms": {"send-recv": "ring"}}, r"no algorithm 'ring' for send-recv"),
        ({"pipeline_chunks": 0}, r"pipeline_chunks: must be at least 1"),
    ],
)
def test_an_algorithm_that_does_not_exist_is_refused_with_the_list(
    fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NetworkError, match=problem):
        Network(name="t", tiers=[UP], **fields)


@pytest.mark.parametrize(
    ("tier", "name"),
    [
        (Tier(topology="ring", size=8, bandwidth_gb_s=1), "tree"),
        (Tier(topology="ring", size=8, bandwidth_gb_s=1), "direct"),
        (Tier(topology="fully_connected", size=8, bandwidth_gb_s=1), "halving-doubling"),
        (Tier(size=8, bandwidth_gb_s=1), "in-switch"),
        (Tier(size=8, bandwidth_gb_s=1), "multi-axis"),
    ],
)
def test_an_algorithm_that_no_group_could_use_on_the_network_is_refused(
    tier: Tier, name: str
) -> None:
    network = Network(name="n", tiers=[tier], algorithms={"all-reduce": name})
    message = rf"algorithms.all-reduce: all-reduce cannot use {name} on network 'n'; possible: hier"
    with pytest.raises(NetworkError, match=message):
        check_priced(network)
    check_priced(msgspec.structs.replace(network, algorithms={"all-reduce": [name, "ring"]}))


LOW = Protocol(name="LL", latency=0.25, efficiency=0.5)
HIGH = Protocol(name="Simple")


def test_every_operation_uses_the_cheapest_protocol() -> None:
    tier = Tier(size=8, bandwidth_gb_s=100, latency_ns=4000, base_ns=10, protocols=[LOW, HIGH])
    network = Network(name="t", tiers=[tier])
    sizes = np.array([0.0, 1e4, 1e6, 1e7])
    priced = price_group(network, AR, sizes, places(8))
    low = 10 + 14 * 1000 + 1.75 * sizes / 50
    high = 10 + 14 * 4000 + 1.75 * sizes / 100
    assert priced.total_ns == pytest.approx(np.minimum(low, high))
    assert priced.protocol == ("LL", "LL", "LL", "Simple")
    assert priced.costs.latency_ns[:, 0] == pytest.approx([14e3, 14e3, 14e3, 56e3])


def test_a_protocol_is_the_same_in_all_tiers_that_have_it() -> None:
    up = Tier(size=8, bandwidth_gb_s=100, latency_ns=1000, protocols=[LOW, HIGH])
    out = Tier(size=8, bandwidth_gb_s=10, latency_ns=9000, protocols=[HIGH])
    network = Network(name="t", tiers=[up, out])
    for size in (1e3, 1e6, 1e9):
        priced = price_group(network, AR, np.array([size]), places(2, 2))
        two = 2 * 9000 + size / 2 / 10
        assert priced.total_ns[0] == pytest.approx(
            two + min(2 * 250 + size / 50, 2 * 1000 + size / 100)
        )
    far = price_group(Network(name="t", tiers=[up, OUT_TIER]), AR, np.array([1e3]), places(1, 4))
    assert far.protocol == (None,)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "x", "latency": -1.0}, "protocols.latency"),
        ({"name": "x", "latency": float("nan")}, "protocols.latency"),
        ({"name": "x", "efficiency": 0.0}, "protocols.efficiency"),
        ({"name": "x", "efficiency": 1.5}, "protocols.efficiency"),
    ],
)
def test_a_protocol_that_makes_no_sense_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(NetworkError, match=problem):
        Protocol(**fields)
    with pytest.raises(NetworkError, match="'x' is there twice"):
        Tier(size=2, bandwidth_gb_s=1, protocols=[Protocol(name="x"), Protocol(name="x")])


def test_every_algorithm_is_there_for_some_collective() -> None:
    assert {name for names in OF_COLLECTIVE.values() for name in names} == set(ALGORITHMS)
    assert set(OF_COLLECTIVE) == set(Collective) - {Collective.NONE}
