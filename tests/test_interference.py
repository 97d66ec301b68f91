"""Compute beside transfers, and tails that belong to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.simulator.critical_path import utility_bound
from whatif.simulator.interference import Busy, alike, measured_busy, without_slowdown
from whatif.simulator.network import Network, Overlap, Tier
from whatif.simulator.run import simulate

MB = 1_000_000


def network(gb_s: float, slowdown: float | None = None, exponent: float = 0.0) -> Network:
    overlap = None if slowdown is None else Overlap(slowdown=slowdown, exponent=exponent)
    return Network(name="test", tiers=[Tier(size=2, bandwidth_gb_s=gb_s)], overlap=overlap)


def overlap_job(rounds: int, slowdown: float, *, tail_ns: int = 0) -> ExecutionGraph:
    """Two ranks that compute 0.4 ms alone and then as much beside a 1 MB all-reduce of 1 ms.

    The traced machine slows compute down beside transfers, by at most 1.5.
    """
    build = GraphBuilder(world_size=2)
    for rank in (0, 1):
        build.rank(rank)
    compute = [build.lane(rank, LaneKind.STREAM, 7) for rank in (0, 1)]
    comm = [build.lane(rank, LaneKind.STREAM, 20) for rank in (0, 1)]
    group = build.group("0", (0, 1))
    now, work, beside = 0, 400_000, round(400_000 * (1 + slowdown))
    ready: list[list[int]] = [[], []]
    for _ in range(rounds):
        for r in (0, 1):
            alone = build.node(
                compute[r], Flavour.COMPUTE, work, start_ns=now, name="work", after=ready[r]
            )
            tail = tail_ns if r else 0
            reduce = build.collective(
                comm[r], Collective.ALL_REDUCE, group, MB, start_ns=now + work, after=[alone],
                dur_ns=MB + tail, transfer_ns=MB, tail_ns=tail,
            )  # fmt: skip
            side = build.node(
                compute[r], Flavour.COMPUTE, beside, start_ns=now + work, name="work", after=[alone]
            )
            ready[r] = [reduce, side]
        now += work + MB
    markers = {
        r: build.node(compute[r], Flavour.GAP, 0, start_ns=now, name="step end", after=ready[r])
        for r in (0, 1)
    }
    build.step("step", markers, completion_ns=now)
    return build.build()


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(1, 60)), max_size=6),
    st.integers(0, 500),
    st.integers(0, 300),
    st.floats(0, 3),
)
def test_work_is_done_at_full_speed_outside_and_slower_inside(
    spans: list[tuple[int, int]], start: int, work: int, slowdown: float
) -> None:
    begin = np.array([a for a, _ in spans], dtype=np.float64)
    busy = Busy(begin, begin + np.array([b for _, b in spans], dtype=np.float64))
    end = busy.finish(np.array([float(start)]), np.array([float(work)]), slowdown)[0]
    inside = (busy.until(np.array([end])) - busy.until(np.array([float(start)])))[0]
    outside = end - start - inside
    assert inside / (1 + slowdown) + outside == pytest.approx(work, abs=1e-6)


@pytest.mark.parametrize("slowdown", [0.0, 0.1, 0.25])
def test_what_work_takes_alone_is_known_from_others_of_its_name(slowdown: float) -> None:
    graph = overlap_job(6, slowdown)
    found = alike(graph)
    assert np.bincount(found.same).tolist() == [6, 6]  # an operation on each rank
    assert {graph.names[graph.name[node]] for node in found.node} == {"work"}
    assert set(found.work_ns.tolist()) == {400_000}
    work = without_slowdown(graph, slowdown).dur_ns[graph.flavour == Flavour.COMPUTE]
    assert set(work.tolist()) == {400_000}


def test_operations_of_one_name_that_never_agree_show_nothing() -> None:
    graph = overlap_job(6, 0.25)
    duration = graph.dur_ns.copy()
    compute = np.flatnonzero(graph.flavour == Flavour.COMPUTE)
    duration[compute] *= np.arange(1, len(compute) + 1)
    assert not len(alike(graph.with_(dur_ns=duration)).node)


def steps_job(took: list[int], alone: list[int]) -> ExecutionGraph:
    """One operation beside an all-reduce of 10 ms in every step, and one without.

    They take as given in microseconds, a number for each step.
    """
    build = GraphBuilder(world_size=2)
    group = build.group("0", (0, 1))
    for rank in (0, 1):
        build.rank(rank)
    host = [build.lane(rank, LaneKind.HOST, 1) for rank in (0, 1)]
    comm = [build.lane(rank, LaneKind.STREAM, 20) for rank in (0, 1)]
    now = 0
    after: list[list[int]] = [[], []]
    for step, (beside, single) in enumerate(zip(took, alone, strict=True)):
        markers = {}
        for r in (0, 1):
            build.collective(
                comm[r], Collective.ALL_REDUCE, group, MB, start_ns=now, after=after[r],
                dur_ns=10 * MB, transfer_ns=10 * MB, step=step,
            )  # fmt: skip
            work = build.node(
                host[r],
                Flavour.COMPUTE,
                beside * 1000,
                start_ns=now,
                name="a",
                after=after[r],
                step=step,
            )
            # Not in every step: what is aligned is what stands around it.
            extra = single % 2
            if extra:
                work = build.node(
                    host[r],
                    Flavour.COMPUTE,
                    0,
                    start_ns=now + 9 * MB,
                    name="b",
                    after=[work],
                    step=step,
                )
            other = build.node(
                host[r], Flavour.COMPUTE, single * 1000, start_ns=now + 10 * MB, name="a",
                after=[work], step=step,
            )  # fmt: skip
            markers[r] = build.node(
                host[r],
                Flavour.GAP,
                0,
                start_ns=now + 12 * MB,
                name="end",
                after=[other],
                step=step,
            )
            after[r] = [markers[r]]
        now += 12 * MB
        build.step("step", markers, completion_ns=now)
    return build.build().with_(source="kineto-cpu")


def test_the_same_operation_in_other_steps_shows_what_it_takes_alone() -> None:
    """Beside transfers the fastest took 300 us; alone the median is 1.1 of the fastest."""
    graph = steps_job([900, 300, 500, 1200], [201, 220, 220, 200])
    found = alike(graph)
    assert np.bincount(found.same).tolist() == [4, 4]
    assert found.work_ns == pytest.approx(300_000 * 210.5 / 200)
    changed = without_slowdown(graph, 0.5)
    first = graph.rank_index == 0
    named = first & (graph.name == graph.names.index("a")) & (graph.flavour == Flavour.COMPUTE)
    assert changed.dur_ns[named].tolist() == [
        number for single in (201, 220, 220, 200) for number in (315_750, single * 1000)
    ]


def test_a_host_works_on_until_the_last_member_has_its_data_and_a_device_does_not() -> None:
    graph = overlap_job(1, 0.0, tail_ns=300_000)
    busy = measured_busy(graph)
    assert [one.end.tolist() for one in busy] == [[1_400_000], [1_700_000]]
    busy = measured_busy(graph.with_(source="kineto-cpu"))
    assert [one.end.tolist() for one in busy] == [[1_700_000], [1_700_000]]


def test_compute_slows_down_only_as_long_as_a_transfer_lasts() -> None:
    """At 1 GB/s 0.4 ms of work take 0.5 ms beside the transfer; at 5 GB/s it ends after 0.2."""
    graph = overlap_job(4, 0.25)
    same = simulate(graph, network=network(1.0, 0.25))
    assert same.step_ns == pytest.approx(4 * 1.4e6, rel=1e-6)
    # 0.2 ms beside the transfer do 0.16 of work; the other 0.24 ms come after it.
    faster = simulate(graph, network=network(5.0, 0.25))
    assert faster.step_ns == pytest.approx(4 * (0.4e6 + 0.2e6 + 0.24e6), rel=1e-6)
    # Without knowing of the slowdown the whole 0.5 ms would stay.
    unaware = simulate(graph, network=network(5.0))
    assert unaware.step_ns == pytest.approx(4 * (0.4e6 + 0.5e6), rel=1e-6)


def test_the_share_that_is_lost_may_fall_with_faster_transfers() -> None:
    """At 4 GB/s transfers take a quarter, and of the fifth that is lost a half is left.

    0.25 ms beside the transfer do 0.225 of work; the other 0.175 ms of 0.4 come after it.
    """
    same = simulate(overlap_job(4, 0.25), network=network(1.0, 0.25, 0.5))
    assert same.step_ns == pytest.approx(4 * 1.4e6, rel=1e-6)
    faster = simulate(overlap_job(4, 0.25), network=network(4.0, 0.25, 0.5))
    assert faster.step_ns == pytest.approx(4 * (0.4e6 + 0.25e6 + 0.175e6), rel=1e-6)


@pytest.mark.parametrize("tail", [0, 50_000, 600_000])
def test_tails_scale_with_their_transfer(tail: int) -> None:
    """0.4 ms of work, then 1 ms of transfer and what the other needs longer: half at 2 GB/s."""
    graph = overlap_job(4, 0.0, tail_ns=tail)
    assert simulate(graph, network=network(2.0)).step_ns == 4 * (400_000 + 500_000 + tail // 2)


def test_a_tail_longer_than_its_transfer_is_something_else_as_well() -> None:
    graph = overlap_job(4, 0.0, tail_ns=5 * MB)
    assert simulate(graph, network=network(2.0)).step_ns == 4 * (400_000 + MB + 4 * MB)


def test_what_scales_of_a_tail_belongs_to_the_bandwidth_and_is_bounded() -> None:
    graph = overlap_job(4, 0.0, tail_ns=600_000)
    baseline = simulate(graph, network=network(1.0))
    split = baseline.critical_split
    assert split["scaleup_bw"] == 4 * 1_600_000
    assert split["gap"] == 0
    variant = simulate(graph, network=network(2.0))
    bound, reason = utility_bound(baseline, variant, "scaleup_bw", 2)
    assert reason == ""
    assert bound == pytest.approx((1 - variant.step_ns / baseline.step_ns) * 100)
    longer = overlap_job(4, 0.0, tail_ns=5 * MB)
    split = simulate(longer, network=network(1.0)).critical_split
    assert (split["scaleup_bw"], split["gap"]) == (4 * 2 * MB, 4 * 4 * MB)
