"""The engine against an executor in plain Python, and the rules of `Collective` one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.base.errors import GraphError, NetworkError, UsageError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import Collective, EdgeKind, Flavour, Kind, LaneKind
from whatif.graph.compress import CompressedGraph, compress, uncompressed
from whatif.simulator import engine
from whatif.simulator.network import Network, Tier
from whatif.simulator.pricing import Prices
from whatif.simulator.run import Simulation, simulate

from .programs import Job, completions, execute, jobs, to_graph


def fixed_prices(compressed: CompressedGraph, total: dict[int, int]) -> Prices:
    """Prices by instance of the graph, all of it base."""
    count = len(compressed.instances)
    zero = np.zeros((count, 1))
    return Prices(
        tiers=("scaleup",),
        base_ns=np.array([total[i] for i in range(count)], dtype=np.float64),
        endpoint_ns=np.zeros(count),
        latency_ns=zero,
        bandwidth_ns=zero,
        wire_bytes=zero,
        messages=zero,
        measured=np.zeros(count, dtype=np.bool_),
        warnings=(),
    )


@settings(max_examples=150, deadline=None)
@given(jobs())
def test_measured_replay_is_the_measured_timeline_to_the_nanosecond(job: Job) -> None:
    graph, _ = to_graph(job, execute(job))
    for form in (compress(graph), uncompressed(graph)):
        simulation = simulate(form, measured=True)
        start, end = simulation.original_intervals()
        assert start.tolist() == graph.start_ns.tolist()
        assert end.tolist() == graph.end_ns.tolist()
        assert simulation.completion_ns.max(axis=1).tolist() == graph.steps.completion_ns.tolist()
        assert simulation.step_ns == simulation.measured_step_ns
        assert simulation.worst_rank_error_pct == 0
        assert not simulation.warnings


@settings(max_examples=150, deadline=None)
@given(jobs(), st.data())
def test_a_changed_job_runs_as_the_plain_executor_runs_it(job: Job, data: st.DataObject) -> None:
    graph, node_of = to_graph(job, execute(job))
    price = {
        i: data.draw(st.integers(0, 20), label=f"price of instance {i}")
        for i in range(job.instances)
    }
    wanted = execute(job, {Flavour.COMPUTE: 2, Flavour.HOST: 3}, price)
    instance = {
        int(graph.instance[node_of[i]]): price[op.instance]
        for i, op in enumerate(job.ops)
        if op.instance >= 0
    }
    # Durations of local nodes are what the executor was given, not what the graph measured.
    for form in (compress(graph), uncompressed(graph)):
        simulation = simulate(
            form, prices=fixed_prices(form, instance), compute_scale=2, host_scale=3
        )
        start, end = simulation.original_intervals()
        assert [int(start[node]) for node in node_of] == wanted.start
        assert [int(end[node]) for node in node_of] == wanted.end
        release = simulation.replay.release[form.node_of[node_of]]
        assert [None if np.isnan(r) else int(r) for r in release] == wanted.release
        assert simulation.completion_ns.max(axis=1).tolist() == completions(job, wanted)


@settings(max_examples=50, deadline=None)
@given(jobs(), st.floats(0.1, 3), st.floats(0.1, 3))
def test_compression_changes_no_bit_of_a_scaled_replay(
    job: Job, compute: float, host: float
) -> None:
    graph, _ = to_graph(job, execute(job))
    small, large = (
        simulate(form, measured=True, compute_scale=compute, host_scale=host)
        for form in (compress(graph), uncompressed(graph))
    )
    assert small.completion_ns.tolist() == large.completion_ns.tolist()
    assert small.categories.tolist() == large.categories.tolist()
    last = small.compressed.part_of < 0
    assert np.array_equal(small.replay.end[small.compressed.node_of[last]], large.replay.end[last])


def two_ranks(
    coll: Collective, arrivals: list[int], *, root: int = -1, transfer: int = 100
) -> Simulation:
    """Ranks that come to one collective at given times, replayed."""
    build = GraphBuilder()
    group = build.group("world", range(len(arrivals)))
    markers = {}
    for rank, arrival in enumerate(arrivals):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM)
        build.node(stream, Flavour.COMPUTE, arrival)
        build.collective(stream, coll, group, 8, root=root, transfer_ns=transfer)
        markers[rank] = build.node(stream, Flavour.GAP, 0)
    build.step("step", markers)
    return simulate(build.build(), measured=True)


@pytest.mark.parametrize("coll", sorted(engine.SYMMETRIC))
def test_members_of_symmetric_collectives_wait_for_all(coll: Collective) -> None:
    assert two_ranks(coll, [10, 30, 20]).completion_ns.tolist() == [[130, 130, 130]]


@pytest.mark.parametrize("coll", [Collective.BROADCAST, Collective.SCATTER])
def test_receivers_of_a_broadcast_wait_for_its_root_alone(coll: Collective) -> None:
    assert two_ranks(coll, [10, 30, 20], root=2).completion_ns.tolist() == [[120, 130, 120]]


@pytest.mark.parametrize("coll", [Collective.REDUCE, Collective.GATHER])
def test_only_the_root_of_a_reduce_waits(coll: Collective) -> None:
    assert two_ranks(coll, [10, 30, 20], root=2).completion_ns.tolist() == [[110, 130, 130]]


@pytest.mark.parametrize(("eager", "sent", "received"), [(False, 150, 150), (True, 110, 150)])
def test_an_eager_send_waits_for_nobody_and_a_rendezvous_for_its_receive(
    eager: bool, sent: int, received: int
) -> None:
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    markers = {}
    for rank, (kind, arrival) in enumerate([(Kind.SEND, 10), (Kind.RECV, 50)]):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM)
        build.node(stream, Flavour.COMPUTE, arrival)
        build.point_to_point(
            stream, kind, 1 - rank, group, 8, eager=eager and rank == 0, transfer_ns=100
        )
        markers[rank] = build.node(stream, Flavour.GAP, 0)
    build.step("step", markers)
    simulation = simulate(build.build(), measured=True)
    assert simulation.completion_ns.tolist() == [[sent, received]]


def queue_job(*, servers: int) -> Simulation:
    """Three transfers of 10, 100 and 1 ns, ready at 0, 0 and 5, of one queue."""
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    queue = build.lane(0, LaneKind.QUEUE, servers=servers)
    host = build.lane(0, LaneKind.HOST)
    ready = build.node(host, Flavour.HOST, 5)
    for transfer, after in ((100, ()), (10, ()), (1, (ready,))):
        build.collective(
            queue, Collective.BARRIER, group, -1, transfer_ns=transfer, after=after, gap_ns=2
        )
    build.step("step", {0: ready})
    return simulate(build.build(), measured=True)


def test_a_queue_starts_a_node_when_one_of_its_servers_is_free() -> None:
    replay = queue_job(servers=2).replay
    assert replay.start.tolist() == [0, 2, 2, 14]
    assert replay.end.tolist() == [5, 102, 12, 15]
    assert queue_job(servers=3).replay.start.tolist() == [0, 2, 2, 7]


def test_a_server_is_not_given_to_a_node_before_its_turn() -> None:
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    queue = build.lane(0, LaneKind.QUEUE, servers=2)
    host = build.lane(0, LaneKind.HOST)
    late = build.node(host, Flavour.HOST, 50)
    for after in ((late,), ()):
        build.collective(queue, Collective.BARRIER, group, -1, transfer_ns=1, after=after)
    build.step("step", {0: late})
    assert simulate(build.build(), measured=True).replay.start.tolist() == [0, 50, 50]


def test_a_node_may_start_a_lag_after_the_start_of_another() -> None:
    build = GraphBuilder()
    build.rank(0)
    host, stream = build.lane(0, LaneKind.HOST), build.lane(0, LaneKind.STREAM)
    launch = build.node(host, Flavour.HOST, 100, gap_ns=7)
    kernel = build.node(stream, Flavour.COMPUTE, 10, after=[Dep(launch, EdgeKind.START, 3)])
    build.step("step", {0: launch})
    replay = simulate(build.build(), measured=True).replay
    assert replay.start[kernel] == 10
    assert replay.end[kernel] == 20


def test_unmatched_communication_keeps_its_measured_duration_and_says_so() -> None:
    build = GraphBuilder()
    build.rank(0)
    group = build.group("world", [0, 1])
    stream = build.lane(0, LaneKind.STREAM)
    node = build.collective(stream, Collective.ALL_REDUCE, group, 8, dur_ns=70)
    build.step("step", {0: node})
    graph = build.build().with_(instance=np.array([-1], np.int32))
    network = Network(name="any", tiers=[Tier(size=8, bandwidth_gb_s=1.0)])
    for simulation in (simulate(graph, measured=True), simulate(graph, network=network)):
        assert simulation.step_ns == 70
        assert "1 communication nodes wait for nobody" in simulation.warnings[0]


def test_a_transfer_that_could_not_be_measured_does_not_become_zero() -> None:
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    stream = build.lane(0, LaneKind.STREAM)
    node = build.collective(stream, Collective.ALL_REDUCE, group, 8, dur_ns=70, transfer_ns=-1)
    build.step("step", {0: node})
    simulation = simulate(build.build(), measured=True)
    assert simulation.step_ns == 70
    assert "no measured transfer" in simulation.warnings[0]


def test_a_network_prices_the_transfers() -> None:
    simulation = two_ranks(Collective.ALL_REDUCE, [10, 30])
    network = Network(name="any", tiers=[Tier(size=2, bandwidth_gb_s=2.0, latency_ns=5)])
    # 2 (n - 1) / n S / B + 2 (n - 1) a, with n = 2, S = 8, B = 2, a = 5.
    assert simulate(simulation.compressed, network=network).step_ns == 30 + 4 + 10


def test_what_hangs_in_queues_is_named_and_does_not_hang() -> None:
    """Both servers of each rank hold operations that the other rank has further back."""
    build = GraphBuilder()
    groups = [build.group(name, [0, 1]) for name in ("a", "b", "c", "d")]
    for rank, order in enumerate([[0, 1, 2, 3], [2, 3, 0, 1]]):
        build.rank(rank)
        queue = build.lane(rank, LaneKind.QUEUE, servers=2)
        for g in order:
            last = build.collective(queue, Collective.ALL_REDUCE, groups[g], 8, transfer_ns=1)
    build.step("step", {0: 3, 1: last})
    with pytest.raises(GraphError, match=r"rank 0.*'a'.*waits forever for rank 1.*'a'"):
        simulate(build.build(), measured=True)


def test_a_replay_is_either_priced_or_measured() -> None:
    compressed = two_ranks(Collective.BARRIER, [1, 2]).compressed
    network = Network(name="any", tiers=[Tier(size=2, bandwidth_gb_s=1.0)])
    with pytest.raises(UsageError, match="either"):
        simulate(compressed)
    with pytest.raises(UsageError, match="either"):
        simulate(compressed, network=network, measured=True)


@pytest.mark.parametrize("scale", [-1.0, float("nan"), float("inf")])
def test_scales_must_be_sensible(scale: float) -> None:
    with pytest.raises(UsageError, match="finite"):
        simulate(two_ranks(Collective.BARRIER, [1]).compressed, measured=True, host_scale=scale)


def test_a_negative_price_is_refused_and_named() -> None:
    compressed = two_ranks(Collective.ALL_REDUCE, [1, 2]).compressed
    with pytest.raises(NetworkError, match=r"rank 0.*'world'.*-5\.0 ns"):
        simulate(compressed, prices=fixed_prices(compressed, {0: -5}))


def test_the_engine_says_that_it_is_compiled() -> None:
    two_ranks(Collective.BARRIER, [1])
    assert engine.is_compiled()
