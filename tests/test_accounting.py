"""Time categories against a count nanosecond by nanosecond, and what the headline is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, Flavour, LaneKind
from whatif.graph.compress import compress
from whatif.graph.steps import headline_ns, headline_parts, headline_steps
from whatif.simulator.accounting import CATEGORIES, HIDDEN_COMM
from whatif.simulator.run import simulate

from .programs import Job, Timeline, completions, execute, jobs, to_graph


def category_at(job: Job, timeline: Timeline, rank: int, now: int) -> tuple[str, bool]:
    """Category of the nanosecond from now on, and whether communication is hidden in it."""
    runs = set()
    for op, start, release, end in zip(
        job.ops, timeline.start, timeline.release, timeline.end, strict=True
    ):
        if op.rank != rank or not start <= now < end:
            continue
        if op.coll == Collective.NONE:
            runs.add(op.flavour.name.lower())
        elif release is None or now < release:
            runs.add("wait")
        elif now < release + op.transfer:
            runs.add("exposed_comm")
    hidden = {"compute", "exposed_comm"} <= runs
    for category in ("compute", "exposed_comm", "copy", "wait", "host"):
        if category in runs:
            return category, hidden
    return ("start_offset" if now < max(job.base[rank], 0) else "idle"), hidden


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_categories_are_those_of_every_single_nanosecond(job: Job) -> None:
    timeline = execute(job)
    graph, _ = to_graph(job, timeline)
    wanted = np.zeros((len(job.base), len(job.markers), len(CATEGORIES) + 1), dtype=np.int64)
    for rank in range(len(job.base)):
        begin = 0
        for step, end in enumerate(completions(job, timeline)):
            for now in range(begin, end):
                category, hidden = category_at(job, timeline, rank, now)
                wanted[rank, step, CATEGORIES.index(category)] += 1
                wanted[rank, step, HIDDEN_COMM] += hidden
            begin = end
    simulation = simulate(compress(graph), measured=True)
    assert simulation.categories.tolist() == wanted.tolist()


@settings(max_examples=60, deadline=None)
@given(jobs(), st.floats(0.1, 3))
def test_categories_of_every_rank_sum_to_the_step(job: Job, scale: float) -> None:
    graph, _ = to_graph(job, execute(job))
    simulation = simulate(compress(graph), measured=True, compute_scale=scale, host_scale=scale)
    sums = simulation.categories[:, :, : len(CATEGORIES)].sum(axis=2)
    assert sums.tolist() == [[step.step_ns for step in simulation.steps]] * graph.num_ranks
    for rank in simulation.per_rank:
        total = sum(getattr(rank, f"{category}_ns") for category in CATEGORIES)
        assert total == simulation.step_ns
        assert rank.hidden_comm_ns <= rank.compute_ns


@given(st.lists(st.lists(st.integers(0, 9), min_size=7, max_size=7), min_size=1, max_size=2))
def test_the_mean_of_two_steps_loses_no_nanosecond(steps: list[list[int]]) -> None:
    parts = np.array([steps], dtype=np.int64)
    mean = headline_parts(parts)
    assert mean.sum() == parts.sum() // len(steps)
    assert (np.abs(len(steps) * mean[0] - parts[0].sum(axis=0)) <= 1).all()


@pytest.mark.parametrize(
    ("times", "chosen", "step"),
    [
        ([70], (0,), 70),
        ([70, 50], (1,), 50),
        ([900, 10, 31], (1, 2), 20),
        ([900, 30, 10, 20], (3,), 20),
        ([900, 40, 10, 30, 20], (3, 4), 25),
    ],
)
def test_the_headline_is_the_median_of_the_steady_steps(
    times: list[int], chosen: tuple[int, ...], step: int
) -> None:
    assert headline_steps(np.array(times)) == chosen
    assert headline_ns(np.array(times)) == step


def test_a_late_rank_has_a_start_offset_and_the_other_one_waits() -> None:
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    markers = {}
    for rank, begin in enumerate([0, 40]):
        build.rank(rank, base_ns=begin, start_offset_ns=begin)
        stream = build.lane(rank, LaneKind.STREAM)
        build.node(stream, Flavour.COMPUTE, 10)
        build.collective(stream, Collective.ALL_REDUCE, group, 8, transfer_ns=100, gap_ns=3)
        markers[rank] = build.node(stream, Flavour.GAP, 0)
    build.step("step", markers)
    first, second = simulate(build.build(), measured=True).per_rank
    assert (first.compute_ns, first.idle_ns, first.wait_ns, first.exposed_comm_ns) == (
        *(10, 3, 40, 100),
    )
    assert (second.start_offset_ns, second.compute_ns, second.idle_ns) == (40, 10, 3)
    assert second.exposed_comm_ns == first.exposed_comm_ns
    assert second.wait_ns == first.start_offset_ns == 0


def test_communication_under_compute_is_hidden_and_counted_beside() -> None:
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    compute, comm = build.lane(0, LaneKind.STREAM, 7), build.lane(0, LaneKind.STREAM, 8)
    kernel = build.node(compute, Flavour.COMPUTE, 60)
    build.collective(comm, Collective.ALL_REDUCE, group, 8, transfer_ns=100)
    build.step("step", {0: kernel})
    (rank,) = simulate(build.build(), measured=True).per_rank
    assert (rank.compute_ns, rank.exposed_comm_ns, rank.hidden_comm_ns) == (60, 40, 60)
