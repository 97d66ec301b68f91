"""Transfers that share ports, against exact fractions, closed forms and laws of nature."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, Flavour, Kind, LaneKind
from whatif.graph.compress import CompressedGraph, compress, uncompressed
from whatif.simulator import event_loop
from whatif.simulator.critical_path import utility_bound
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import Simulation, simulate

from .fluid import (
    Phase,
    Traffic,
    execute_shared,
    shared_prices,
    traffics,
    without_ports,
)
from .programs import Job, execute, jobs, to_graph

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from whatif.simulator.pricing import Prices


@settings(max_examples=300, deadline=None)
@given(jobs(max_ops=36), st.data())
def test_shared_transfers_run_as_exact_fractions_say(job: Job, data: st.DataObject) -> None:
    traffic = data.draw(traffics(job))
    scale = {Flavour.COMPUTE: Fraction(1, 2), Flavour.HOST: Fraction(3)}
    wanted = execute_shared(job, traffic, scale)
    graph, node_of = to_graph(job, execute(job))
    for form in (compress(graph), uncompressed(graph)):
        simulation = simulate(
            form, prices=shared_prices(form, traffic, node_of), compute_scale=0.5, host_scale=3
        )
        node = form.node_of[node_of]
        replay = simulation.replay
        for got, exact in (
            (replay.release[node], wanted.release),
            (replay.transferred[node], wanted.transferred),
        ):
            known = [i for i, t in enumerate(exact) if t is not None]
            assert np.isnan(np.delete(got, known)).all()
            np.testing.assert_allclose(got[known], [float(exact[i]) for i in known], atol=1e-9)
        start, end = simulation.original_intervals()
        assert np.abs(start[node_of] - np.array([float(t) for t in wanted.start])).max() <= 0.5001
        assert np.abs(end[node_of] - np.array([float(t) for t in wanted.end])).max() <= 0.5001
        assert simulation.shares_ports == bool(wanted.slowed)


@settings(max_examples=100, deadline=None)
@given(jobs(max_ops=36), st.data())
def test_transfers_with_ports_of_their_own_take_their_price_to_the_bit(
    job: Job, data: st.DataObject
) -> None:
    """Times that no float holds exactly: any detour over phases would show."""
    traffic = data.draw(traffics(job))
    third = Fraction(1, 3)
    phases, capacity = [], []
    for row in traffic.phases:
        phases.append([Phase(p.fixed * third, p.work * third, {}) for p in row])
        for i, p in enumerate(row):
            ports = {len(capacity) + j: load for j, load in enumerate(p.load.values())}
            capacity += p.load.values()
            phases[-1][i].load.update(ports)
    graph, node_of = to_graph(job, execute(job))
    compressed = compress(graph)
    prices = shared_prices(compressed, Traffic(capacity, phases, traffic.of_op), node_of)
    apart = simulate(compressed, prices=prices)
    alone = simulate(compressed, prices=without_ports(prices))
    for got, wanted in zip(apart.replay, alone.replay, strict=True):
        # Of nodes: there may be as many phases, but not without ports.
        if len(got) == len(wanted) == compressed.graph.num_nodes and got.dtype == np.float64:
            assert np.array_equal(got, wanted, equal_nan=True)
    assert not apart.shares_ports


# --- rates ------------------------------------------------------------------------------------


def rates_of(loads: list[dict[int, float]], capacity: list[float]) -> NDArray[np.float64]:
    """Rates of transfers that are all at work."""
    count = len(loads)
    flows = event_loop.Flows(
        of_node=np.zeros(0, np.int64),
        member_ptr=np.zeros(count + 1, np.int64),
        member=np.zeros(0, np.int64),
        total=np.ones(count),
        phase_ptr=np.arange(count + 1),
        work_at=np.zeros(count),
        done_at=np.ones(count),
        port_set=np.arange(count),
        set_ptr=np.cumsum([0, *map(len, loads)]),
        port=np.array([q for load in loads for q in load], np.int64),
        load=np.array([x for load in loads for x in load.values()], np.float64),
        capacity=np.array(capacity, np.float64),
    )
    types = [np.float64] * 5 + [np.int64] * 2 + [np.int8, np.int64] + [np.float64] * 2
    replay = event_loop.Replay(*(np.zeros(count, dtype) for dtype in types))
    fluid = event_loop._new_fluid(flows)
    for flow in range(count):
        event_loop._begin(flows, fluid, flow, 0.0)
        event_loop._go_on(flows, fluid, replay, flow, 0.0)
    event_loop._rate_anew(fluid, 0.0)
    return fluid.flow["rate"]


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 2**32))
def test_rates_are_max_min_fair(transfers: int, ports: int, seed: int) -> None:
    """No port above its capacity; whoever is slowed has a full port and the highest level there."""
    draw = np.random.default_rng(seed)
    capacity = draw.choice([1e-6, 0.1, 1.0, 3.0, 7.5], ports)
    used = draw.random((transfers, ports)) < draw.choice([0.1, 0.5])
    used[np.arange(transfers), draw.integers(0, ports, transfers)] = True
    load = np.where(
        used, capacity * draw.choice([1.0, 0.5, 0.3, 1e-3, 1e-13, 1e-17], used.shape), 0.0
    )
    rates = rates_of(
        [{int(q): row[q] for q in np.flatnonzero(row)} for row in load], capacity.tolist()
    )
    full = rates @ load >= capacity * (1 - 1e-9)
    assert (rates @ load <= capacity * (1 + 1e-9)).all()
    assert (rates > 0).all()
    assert (rates <= 1).all()
    level = rates * load.max(axis=1)
    highest = np.where(used, level[:, np.newaxis], 0).max(axis=0)
    limits = used & full & (level[:, np.newaxis] >= highest * (1 - 1e-9))
    assert ((rates == 1) | limits.any(axis=1)).all()


# --- one rank, a stream for each transfer -----------------------------------------------------


def side_by_side(
    begins: list[int], phases: list[list[Phase]], capacity: list[Fraction], *, after: int = 0
) -> Simulation:
    """Transfers that begin at given times, each on a stream of its own.

    The step ends `after` a kernel of that length that waits for all of them.
    """
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    ends = []
    for begin in begins:
        stream = build.lane(0, LaneKind.STREAM)
        build.node(stream, Flavour.COPY, begin)
        ends.append(build.collective(stream, Collective.ALL_REDUCE, group, 8))
    last = build.node(build.lane(0, LaneKind.STREAM), Flavour.COMPUTE, after, after=ends)
    build.step("step", {0: last})
    compressed = uncompressed(build.build())
    traffic = Traffic(capacity, phases, {end: i for i, end in enumerate(ends)})
    nodes = list(range(compressed.graph.num_nodes))
    return simulate(compressed, prices=shared_prices(compressed, traffic, nodes))


def ends_of(simulation: Simulation) -> list[float]:
    transferred = simulation.replay.transferred
    return transferred[~np.isnan(transferred)].tolist()


ONE = [Fraction(1)]


def on_port(work: float, load: float = 1, *, port: int = 0, fixed: float = 0) -> Phase:
    return Phase(Fraction(fixed), Fraction(work), {port: Fraction(load)})


def test_two_on_one_port_slow_each_other_and_recover_when_one_ends() -> None:
    simulation = side_by_side([0, 40], [[on_port(100)], [on_port(100)]], ONE)
    # From 40 each moves at half rate; the first has 60 left, which takes 120.
    assert ends_of(simulation) == [160, 200]
    assert simulation.sharing_ns.max() == 60
    assert simulation.shares_ports


def test_transfers_on_different_ports_overlap_fully() -> None:
    phases = [[on_port(100)], [on_port(100, port=1)]]
    simulation = side_by_side([0, 40], phases, [Fraction(1), Fraction(1)])
    assert ends_of(simulation) == [100, 140]
    assert not simulation.shares_ports


def test_latency_is_not_shared() -> None:
    phases = [[on_port(100, fixed=50)], [on_port(100, fixed=10), Phase(Fraction(7))]]
    # At work from 50 and from 10: the second has 60 left, takes 120; the first then has 40.
    assert ends_of(side_by_side([0, 0], phases, ONE)) == [210, 177]


def test_a_port_that_carries_all_slows_nobody() -> None:
    simulation = side_by_side([0, 0, 0], [[on_port(90, 1)] for _ in range(3)], [Fraction(3)])
    assert ends_of(simulation) == [90, 90, 90]


def test_a_small_transfer_keeps_its_rate_and_a_large_one_gets_the_rest() -> None:
    # Of one byte per ns the second can use a quarter only.
    assert ends_of(side_by_side([0, 0], [[on_port(100)], [on_port(50, 0.25)]], ONE)) == [112.5, 50]


def test_what_one_cannot_use_because_of_another_port_goes_to_the_rest() -> None:
    """A takes both ports; B and C one each; C's port is twice as wide, so C takes what A leaves."""
    a = Phase(Fraction(0), Fraction(100), {0: Fraction(1), 1: Fraction(1)})
    phases = [[a], [on_port(100)], [on_port(150, 2, port=1)]]
    # A and B at 1/2, C at 1.5 of its 2: all end together.
    assert ends_of(side_by_side([0, 0, 0], phases, [Fraction(1), Fraction(2)])) == [200, 200, 200]


def test_only_the_phase_that_uses_a_port_is_slowed() -> None:
    phases = [[on_port(30), on_port(30, port=1)], [on_port(30), on_port(30, port=1)]]
    simulation = side_by_side([0, 60], phases, [Fraction(1), Fraction(1)])
    assert not simulation.shares_ports
    # They meet in the first port from 20 to 40 and in the second from 60 to 80.
    simulation = side_by_side([0, 20], phases, [Fraction(1), Fraction(1)])
    assert ends_of(simulation) == [80, 100]


def test_one_that_begins_when_another_ends_does_not_meet_it() -> None:
    third = Fraction(100, 3)
    simulation = side_by_side([0, 100], [[on_port(third), on_port(2 * third)], [on_port(50)]], ONE)
    assert ends_of(simulation) == [100, 150]
    assert not simulation.shares_ports


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 90)), min_size=1, max_size=30))
def test_a_port_is_never_idle_while_somebody_wants_it(arrivals: list[tuple[int, int]]) -> None:
    """Whoever goes first, all that came is through when a queue of one server would be empty."""
    begins, works = zip(*sorted(arrivals), strict=True)
    simulation = side_by_side(list(begins), [[on_port(work)] for work in works], ONE)
    empty = 0
    for begin, work in zip(begins, works, strict=True):
        empty = max(empty, begin) + work
    assert max(ends_of(simulation)) == pytest.approx(empty, abs=1e-9)


# --- laws -------------------------------------------------------------------------------------


def drawn(job: Job, data: st.DataObject) -> tuple[CompressedGraph, Prices]:
    graph, node_of = to_graph(job, execute(job))
    compressed = compress(graph)
    return compressed, shared_prices(compressed, data.draw(traffics(job)), node_of)


def times(compressed: CompressedGraph, k: int) -> CompressedGraph:
    """The same job with everything k times as long, transfers only as measured."""
    graph = compressed.graph
    columns = ("base_ns", "gap_ns", "dep_lag_ns", "tail_ns", "transfer_ns")
    longer = {column: getattr(graph, column) * k for column in columns}
    return replace(compressed, graph=graph.with_(**longer), part_ns=compressed.part_ns * k)


@settings(max_examples=100, deadline=None)
@given(jobs(max_ops=36), st.data(), st.sampled_from([2, 3, 10]))
def test_everything_k_times_slower_takes_k_times_as_long(
    job: Job, data: st.DataObject, k: int
) -> None:
    compressed, prices = drawn(job, data)
    simulation = simulate(compressed, prices=prices)
    transfers, sets, ports = prices.transfers, prices.sets, prices.ports
    scaled = simulate(
        times(compressed, k),
        prices=replace(
            prices,
            base_ns=prices.base_ns * k,
            transfers=replace(
                transfers,
                phase_fixed_ns=transfers.phase_fixed_ns * k,
                phase_work_ns=transfers.phase_work_ns * k,
            ),
            ports=replace(ports, capacity_gb_s=ports.capacity_gb_s / k),
            sets=replace(sets, load_gb_s=sets.load_gb_s / k),
        ),
    )
    np.testing.assert_allclose(scaled.replay.end, simulation.replay.end * k, rtol=1e-9)
    np.testing.assert_allclose(scaled.replay.start, simulation.replay.start * k, rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(jobs(max_ops=36), st.data())
def test_no_port_carries_more_than_its_capacity_and_nobody_waits_longer_than_for_all_others(
    job: Job, data: st.DataObject
) -> None:
    """Max-min fairness is not monotone, but these hold whatever meets."""
    compressed, prices = drawn(job, data)
    shared = simulate(compressed, prices=prices)
    alone = simulate(compressed, prices=without_ports(prices))
    assert (shared.replay.end >= alone.replay.end - 1e-9).all()

    flows, begin, end = shared.flows, shared.replay.work_begin, shared.replay.work_end
    load = np.zeros((len(flows.port_set), len(flows.capacity)))
    for phase, ports in enumerate(flows.port_set):
        entries = slice(flows.set_ptr[ports], flows.set_ptr[ports + 1])
        load[phase, flows.port[entries]] = flows.load[entries]
    work = flows.done_at - flows.work_at
    for first in begin:
        for last in end[end > first]:
            inside = (begin >= first) & (end <= last)
            moved = work[inside] @ load[inside]
            assert (moved <= flows.capacity * (last - first) + 1e-6).all()
    # Of a port with n users each gets an n-th or all that it can use.
    users = (load > 0).sum(axis=0)
    for phase, row in enumerate(load):
        used = row > 0
        share = (flows.capacity[used] / (users[used] * row.max())).min()
        assert end[phase] - begin[phase] <= work[phase] / min(share, 1) + 1e-6


@settings(max_examples=100, deadline=None)
@given(jobs(max_ops=36), st.data())
def test_without_shared_ports_a_cheaper_transfer_delays_nothing(
    job: Job, data: st.DataObject
) -> None:
    compressed, prices = drawn(job, data)
    dear = simulate(compressed, prices=without_ports(prices))
    less = data.draw(
        st.lists(st.floats(0, 1), min_size=len(prices.base_ns), max_size=len(prices.base_ns))
    )
    cheap = replace(prices, base_ns=prices.base_ns * less)
    cheaper = simulate(compressed, prices=without_ports(cheap))
    assert (cheaper.replay.end <= dear.replay.end + 1e-9).all()
    assert (cheaper.replay.start <= dear.replay.start + 1e-9).all()


# --- what it means ----------------------------------------------------------------------------


def test_the_critical_path_calls_the_extra_time_sharing() -> None:
    simulation = side_by_side([0, 40], [[on_port(100)], [on_port(100, fixed=5)]], ONE, after=10)
    # At work from 45: the first has 55 left and ends at 155, the second has 45 left.
    assert simulation.step_ns == 210
    split = simulation.critical_path(0).split()
    assert {kind: ns for kind, ns in split.items() if ns} == {
        "copy": 40,
        "base": 105,
        "sharing": 55,
        "compute": 10,
    }


@settings(max_examples=80, deadline=None)
@given(jobs(max_ops=36), st.data())
def test_the_split_of_a_shared_step_sums_to_it(job: Job, data: st.DataObject) -> None:
    compressed, prices = drawn(job, data)
    simulation = simulate(compressed, prices=prices)
    for k, step in enumerate(simulation.steps):
        path = simulation.critical_path(k)
        assert path.begin_ns[1:].tolist() == path.end_ns[:-1].tolist()
        split = path.split()
        assert sum(split.values()) == step.step_ns
        assert min(split.values()) >= 0
    sums = simulation.categories[:, :, :-1].sum(axis=2)
    assert (sums == [step.step_ns for step in simulation.steps]).all()


def test_a_transfer_knows_whom_it_met_and_for_how_long() -> None:
    phases = [[on_port(100), on_port(10, port=1)], [on_port(100)], [on_port(5, port=1)]]
    simulation = side_by_side([0, 40, 165], phases, [Fraction(1), Fraction(1)])
    # The first is in its first port to 160 and in its second to 175, the last there to 175.
    assert ends_of(simulation) == [175, 200, 175]
    first, second, third = np.flatnonzero(simulation.flows.of_node >= 0).tolist()
    assert simulation.met(first) == [(second, 120), (third, 10)]
    assert simulation.met(second) == [(first, 120)]
    assert simulation.met(third) == [(first, 10)]
    assert simulation.met(0) == []


def test_exposed_communication_includes_the_time_that_sharing_adds() -> None:
    simulation = side_by_side([0, 0], [[on_port(100)], [on_port(100)]], ONE)
    assert simulation.per_rank[0].exposed_comm_ns == 200


def test_no_bound_holds_where_ports_are_shared() -> None:
    apart = side_by_side([0, 100], [[on_port(100)], [on_port(100)]], ONE)
    meeting = side_by_side([0, 40], [[on_port(100)], [on_port(100)]], ONE)
    for pair, which in (((meeting, apart), "baseline"), ((apart, meeting), "variant")):
        bound, reason = utility_bound(*pair, "copy", 2)
        assert bound is None
        assert reason == f"transfers share ports in the {which}"
    assert utility_bound(apart, apart, "copy", 2)[0] is not None


def test_a_replay_is_the_same_every_time() -> None:
    draw = random.Random(1)
    phases = [
        [
            Phase(
                Fraction(3),
                Fraction(draw.randint(1, 99)),
                {q: Fraction(1, 3) for q in draw.sample(range(6), 3)},
            )
        ]
        for _ in range(60)
    ]
    begins = [draw.randint(0, 200) for _ in phases]
    runs = [side_by_side(begins, phases, [Fraction(1)] * 6) for _ in range(3)]
    assert ends_of(runs[0]) == ends_of(runs[1]) == ends_of(runs[2])


# --- on networks ------------------------------------------------------------------------------

#: Two domains of two ranks. An all-reduce of two ranks takes S/B and two messages.
TWO_TIERS = Network(
    name="two tiers",
    tiers=[
        Tier(size=2, bandwidth_gb_s=100.0, latency_ns=10, base_ns=30),
        Tier(size=2, bandwidth_gb_s=10.0, latency_ns=20, base_ns=50),
    ],
)
INSIDE, ACROSS = ((0, 1), (2, 3)), ((0, 2), (1, 3))


def all_reduces(*calls: tuple[tuple[tuple[int, ...], ...], int, int]) -> Simulation:
    """Groups that reduce a number of bytes from a time on, each call on a stream of its own."""
    build = GraphBuilder()
    groups = {
        (i, ranks): build.group(f"{i} {ranks}", ranks)
        for i, (members, _, _) in enumerate(calls)
        for ranks in members
    }
    markers = {}
    for rank in range(4):
        build.rank(rank)
        ends = []
        for i, (members, size, begin) in enumerate(calls):
            stream = build.lane(rank, LaneKind.STREAM, i)
            build.node(stream, Flavour.COPY, begin)
            group = groups[i, next(ranks for ranks in members if rank in ranks)]
            ends.append(build.collective(stream, Collective.ALL_REDUCE, group, size))
        markers[rank] = build.node(build.lane(rank, LaneKind.HOST), Flavour.GAP, 0, after=ends)
    build.step("step", markers)
    return simulate(build.build(), network=TWO_TIERS)


def durations(simulation: Simulation) -> list[int]:
    """Transfer of each call on the first rank."""
    replay = simulation.replay
    took = (replay.transferred - replay.release)[: simulation.compressed.graph.rank_ptr[1]]
    return np.rint(took[~np.isnan(took)]).astype(int).tolist()


def test_groups_on_different_tiers_overlap_fully() -> None:
    simulation = all_reduces((INSIDE, 100_000, 0), (ACROSS, 10_000, 0))
    assert durations(simulation) == [1_050, 1_090]
    assert not simulation.shares_ports


@pytest.mark.parametrize("begin", [0, 400])
def test_groups_on_the_same_tier_slow_each_other_while_both_are_under_way(begin: int) -> None:
    """Both move 1000 ns of bytes after 90 ns; those of the second begin `begin` later."""
    simulation = all_reduces((ACROSS, 10_000, 0), (ACROSS, 10_000, begin))
    # Each loses what it shares with the other: the first all that is left of it.
    assert durations(simulation) == [1_090 + 1_000 - begin] * 2
    assert simulation.step_ns == 90 + 2_000


def test_a_group_over_both_tiers_meets_others_in_one_of_them_at_a_time() -> None:
    everyone = ((0, 1, 2, 3),)
    alone = durations(all_reduces((everyone, 100_000, 0)))[0]
    # Scatter inside (10 + 500 ns), across (40 + 5000), gather inside (10 + 500), base 50.
    assert alone == 6_110
    # Inside from 4000 to 5000: only the stage across is under way.
    apart = all_reduces((everyone, 100_000, 0), (INSIDE, 100_000, 3_950))
    assert durations(apart) == [alone, 1_050]
    # Across from 3000 on: 1000 bytes of its own take 100 ns alone.
    meets = all_reduces((everyone, 100_000, 0), (ACROSS, 1_000, 2_910))
    assert durations(meets) == [alone + 100, 90 + 200]


def test_messages_to_and_from_a_rank_do_not_meet() -> None:
    """Ports have two directions."""
    build = GraphBuilder()
    world = build.group("world", range(4))
    markers = {}
    for rank in range(4):
        build.rank(rank)
        ends = [
            build.point_to_point(build.lane(rank, LaneKind.STREAM, i), kind, peer, world, 10_000)
            for i, (kind, peer) in enumerate(
                [(Kind.SEND, (rank + 2) % 4), (Kind.RECV, (rank + 2) % 4)]
            )
        ]
        markers[rank] = build.node(build.lane(rank, LaneKind.HOST), Flavour.GAP, 0, after=ends)
    build.step("step", markers)
    simulation = simulate(build.build(), network=TWO_TIERS)
    assert simulation.step_ns == 1_070
    assert not simulation.shares_ports


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Two tiers of room for more ranks than jobs have."""
    inner, outer = (
        Tier(
            topology=draw(st.sampled_from(topologies)),
            size=size,
            bandwidth_gb_s=draw(st.sampled_from([0.5, 2.0, 30.0])),
            latency_ns=draw(st.sampled_from([0.0, 2.0, 11.0])),
            base_ns=draw(st.sampled_from([0.0, 3.0])),
            endpoint_ns_per_byte=draw(st.sampled_from([0.0, 0.125])),
            ranks_per_nic=1 if size == 2 else draw(st.sampled_from([1, 2])),
        )
        for size, topologies in ((2, ("switch", "ring", "fully_connected")), (4, ("switch",)))
    )
    algorithm = draw(st.sampled_from([None, "auto"]))
    return Network(name="drawn", tiers=[inner, outer], algorithm=algorithm)


def scaled_network(network: Network, k: float) -> Network:
    return msgspec.structs.replace(
        network,
        tiers=[
            msgspec.structs.replace(
                tier,
                bandwidth_gb_s=tier.bandwidth_gb_s / k,
                latency_ns=tier.latency_ns * k,
                base_ns=tier.base_ns * k,
                endpoint_ns_per_byte=tier.endpoint_ns_per_byte * k,
            )
            for tier in network.tiers
        ],
    )


@settings(max_examples=80, deadline=None)
@given(jobs(max_ops=36), networks(), st.sampled_from([4, 10]))
def test_a_network_and_a_job_k_times_slower_take_k_times_as_long(
    job: Job, network: Network, k: int
) -> None:
    compressed = compress(to_graph(job, execute(job))[0])
    simulation = simulate(compressed, network=network)
    slower = simulate(times(compressed, k), network=scaled_network(network, k))
    np.testing.assert_allclose(slower.replay.end, simulation.replay.end * k, rtol=1e-9)


@settings(max_examples=80, deadline=None)
@given(jobs(max_ops=36), networks(), st.sampled_from(["bandwidth_gb_s", "latency_ns"]))
def test_a_better_tier_delays_no_step_in_which_no_port_is_shared(
    job: Job, network: Network, what: str
) -> None:
    compressed = compress(to_graph(job, execute(job))[0])
    inner, outer = network.tiers
    factor = 2 if what == "bandwidth_gb_s" else 0.5
    faster = msgspec.structs.replace(outer, **{what: getattr(outer, what) * factor})
    before, after = (
        simulate(compressed, network=msgspec.structs.replace(network, tiers=[inner, tier]))
        for tier in (outer, faster)
    )
    if not (before.shares_ports or after.shares_ports):
        assert (after.replay.end <= before.replay.end + 1e-9).all()


def test_no_bound_holds_where_the_variant_chooses_other_algorithms() -> None:
    simulation = all_reduces((INSIDE, 100_000, 0))
    prices = simulation.prices
    assert prices is not None
    other = replace(simulation, prices=replace(prices, algorithm=prices.algorithm + 1))
    assert utility_bound(simulation, simulation, "scaleup_bw", 2)[0] is not None
    bound, reason = utility_bound(simulation, other, "scaleup_bw", 2)
    assert bound is None
    assert "other algorithms" in reason


def test_variants_of_one_graph_run_in_threads_as_they_run_alone() -> None:
    simulation = all_reduces((ACROSS, 10_000, 0), (ACROSS, 30_000, 300), (INSIDE, 90_000, 0))
    variants = [scaled_network(TWO_TIERS, 1 + i / 7) for i in range(40)]

    def step(network: Network) -> int:
        return simulate(simulation.compressed, network=network).step_ns

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(step, variants)) == [step(network) for network in variants]
