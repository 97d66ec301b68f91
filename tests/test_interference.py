"""Compute beside transfers, and tails that belong to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind, collect_instances
from whatif.simulator.interference import Busy, comparisons, without_slowdown
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import simulate
from whatif.simulator.tails import stretching_tails

MB = 1_000_000


def network(gb_s: float, slowdown: float = 0.0) -> Network:
    return Network(
        name="test", tiers=[Tier(size=2, bandwidth_gb_s=gb_s)], overlap_slowdown=slowdown
    )


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
def test_the_slowdown_of_the_machine_is_found_and_taken_out(slowdown: float) -> None:
    graph = overlap_job(6, slowdown)
    found = comparisons(graph)
    assert [c.name for c in found] == ["work", "work"]
    assert all(c.slowdown == pytest.approx(slowdown) for c in found)
    work = without_slowdown(graph, slowdown).dur_ns[graph.flavour == Flavour.COMPUTE]
    assert set(work.tolist()) == {400_000}


def test_operations_of_one_name_that_never_agree_show_nothing() -> None:
    graph = overlap_job(6, 0.25)
    duration = graph.dur_ns.copy()
    compute = np.flatnonzero(graph.flavour == Flavour.COMPUTE)
    duration[compute] *= np.arange(1, len(compute) + 1)
    assert comparisons(graph.with_(dur_ns=duration)) == []


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


def test_tails_that_are_always_long_scale_with_their_transfer() -> None:
    graph = overlap_job(4, 0.0, tail_ns=0)
    assert not stretching_tails(graph, collect_instances(graph)).any()
    turns = overlap_job(4, 0.0, tail_ns=600_000)
    stretched = stretching_tails(turns, collect_instances(turns))
    assert stretched.sum() == 8
    # 0.4 ms of work, then 1 ms of transfer and 0.6 ms for the other's turn; half of both at 2 GB/s.
    assert simulate(turns, network=network(2.0)).step_ns == 4 * (400_000 + 500_000 + 300_000)


def test_a_chance_tail_stays_as_it_was() -> None:
    graph = overlap_job(4, 0.0, tail_ns=50_000)
    assert simulate(graph, network=network(2.0)).step_ns == 4 * (400_000 + 500_000 + 50_000)
