"""An explanation accounts for every nanosecond of the step, and its verdict is what happens."""

from __future__ import annotations

import io
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from rich.console import Console
from whatif.base.errors import GraphError, UsageError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import Collective, EdgeKind, ExecutionGraph, Flavour, Kind, LaneKind
from whatif.graph.compress import compress
from whatif.reports.explain import explain_report
from whatif.simulator.explain import path_places
from whatif.simulator.exposure import exposures, node_exposure
from whatif.simulator.network import Network, Tier, save_network
from whatif.simulator.results import ExposedCollective, ExposedGroup, Place, RankTime
from whatif.simulator.run import Simulation, simulate
from whatif.simulator.timeline import timeline
from whatif.sweeps.explain import IRRELEVANT_PCT, explain
from whatif.sweeps.resources import DURATIONS, RESOURCES
from whatif.sweeps.results import ExplainResult, Worth
from whatif.sweeps.run import simulate_variant
from whatif.sweeps.single import Single, replay_measured, simulate_once
from whatif.sweeps.verdict import verdict

import whatif
from whatif.cli.main import run

from .programs import Job, execute, jobs, to_graph

# All-reduce of two ranks: 2 (n - 1) / n S / B = 100 ns of 1000 bytes, 2 (n - 1) a = 14.
TIER = Tier(size=2, bandwidth_gb_s=10.0, latency_ns=7, base_ns=11, endpoint_ns_per_byte=0.01)
NETWORK = Network(name="any", tiers=[TIER])


def training(
    *,
    steps: int = 1,
    host_ns: int = 20,
    compute_ns: int = 100,
    growth_ns: int = 0,
    late_ns: int = 0,
    trace_ns: int = 135,
) -> ExecutionGraph:
    """Two ranks, each: host work, a lag, a kernel, a gap, an all-reduce, a copy.

    The kernel of rank 1 is a nanosecond shorter, so rank 0 is the last to arrive unless rank 1
    begins late.
    """
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    lanes: list[tuple[int, int]] = []
    for rank in (0, 1):
        begin = late_ns * rank
        build.rank(rank, base_ns=begin, start_offset_ns=begin)
        lanes.append((build.lane(rank, LaneKind.HOST, 100), build.lane(rank, LaneKind.STREAM, 7)))
    last = [-1, -1]
    now = 0
    for step in range(steps):
        markers = {}
        length = compute_ns + growth_ns * step
        for rank in (0, 1):
            host, stream = lanes[rank]
            begin = now + late_ns * rank * (step == 0)
            after = [last[rank]] if step else []
            work = build.node(
                host, Flavour.HOST, host_ns, name="python", after=after, start_ns=begin, step=step
            )
            begin += host_ns + 3
            kernel = build.node(
                stream,
                Flavour.COMPUTE,
                length - rank,
                name="gemm",
                after=[Dep(work, EdgeKind.END, 3)],
                start_ns=begin,
                step=step,
            )
            arrival = now + late_ns + host_ns + 3 + length + 5 - (late_ns > 0)
            reduce = build.collective(
                stream,
                Collective.ALL_REDUCE,
                group,
                1000,
                gap_ns=5,
                after=[kernel],
                start_ns=begin + length - rank + 5,
                dur_ns=arrival + trace_ns - (begin + length - rank + 5),
                transfer_ns=trace_ns,
                step=step,
            )
            last[rank] = build.node(
                stream, Flavour.COPY, 30, after=[reduce], start_ns=arrival + trace_ns, step=step
            )
            markers[rank] = build.node(
                host, Flavour.GAP, 0, after=[last[rank]], start_ns=arrival + trace_ns + 30,
                step=step,
            )  # fmt: skip
        build.step(f"step {step}", markers)
        now = arrival + trace_ns + 30
    return build.build()


def on_network(graph: ExecutionGraph, **changes: float) -> Simulation:
    return simulate(compress(graph), network=NETWORK, **changes)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "network.yaml"
    save_network(NETWORK, path)
    return path


def rows(places: list[Place]) -> list[tuple[Any, ...]]:
    return [(p.kind, p.rank, p.lane, p.what, p.group, p.bytes, p.count, p.time_ns) for p in places]


PLACES = [
    ("compute", 0, "stream 7", "gemm", None, None, 1.0, 100),
    ("scaleup_bw", None, None, "all-reduce", "world", 1000, 1.0, 100),
    ("copy", 0, "stream 7", "copy", None, None, 1.0, 30),
    ("host", 0, "host thread 100", "python before the launch of gemm", None, None, 1.0, 20),
    ("scaleup_latency", None, None, "all-reduce", "world", 1000, 1.0, 14),
    ("base", None, None, "all-reduce", "world", 1000, 1.0, 11),
    ("endpoint", None, None, "all-reduce", "world", 1000, 1.0, 10),
    ("gap", 0, "stream 7", "before all-reduce", None, None, 1.0, 5),
    ("lag", 0, "stream 7", "before gemm", None, None, 1.0, 3),
]


def test_every_place_says_who_does_what_and_for_how_long() -> None:
    found = path_places(on_network(training()))
    assert sorted(rows(found)) == sorted(PLACES)
    assert [place.time_ns for place in found] == sorted((row[-1] for row in PLACES), reverse=True)
    assert sum(place.share_pct for place in found) == pytest.approx(100)


def test_places_of_contracted_chains_are_those_of_their_nodes() -> None:
    """Host, lag, kernel, gap and kernel become one node; the path still tells them apart."""
    build = GraphBuilder()
    build.rank(0)
    stream = build.lane(0, LaneKind.STREAM, 7)
    build.node(stream, Flavour.COMPUTE, 40, name="first")
    build.node(stream, Flavour.COMPUTE, 50, name="second", gap_ns=6)
    last = build.node(stream, Flavour.COMPUTE, 60, name="first", after=[Dep(1, lag_ns=9)])
    build.node(stream, Flavour.GAP, 8, name="pause")
    mark = build.lane(0, LaneKind.HOST)
    build.step("step", {0: build.node(mark, Flavour.GAP, 0, after=[last + 1])})
    graph = build.build()
    compressed = compress(graph)
    assert compressed.graph.num_nodes == 2
    wanted = [
        ("compute", 0, "stream 7", "first", None, None, 2.0, 100),
        ("compute", 0, "stream 7", "second", None, None, 1.0, 50),
        ("gap", 0, "stream 7", "pause", None, None, 1.0, 8),
        ("gap", 0, "stream 7", "before second", None, None, 1.0, 6),
        ("lag", 0, "stream 7", "before first", None, None, 1.0, 9),
    ]
    for simulated in (compressed, graph):
        assert sorted(rows(path_places(simulate(simulated, measured=True)))) == sorted(wanted)
    slow = path_places(simulate(compressed, measured=True, compute_scale=3.0))
    assert sum(place.time_ns for place in slow if place.kind == "compute") == 450


def test_a_late_rank_and_a_tail_are_places_of_their_own() -> None:
    build = GraphBuilder()
    group = build.group("pair", [0, 1])
    markers = {}
    for rank, begin in enumerate([0, 40]):
        build.rank(rank, base_ns=begin, start_offset_ns=begin)
        stream = build.lane(rank, LaneKind.QUEUE, 9)
        markers[rank] = build.collective(
            stream, Collective.ALL_REDUCE, group, -1, transfer_ns=100, tail_ns=2 * rank
        )
    build.step("step", markers)
    assert rows(path_places(simulate(build.build(), measured=True))) == [
        ("transfer", None, None, "all-reduce", "pair", None, 1.0, 100),
        ("start_offset", 1, None, "begins its first step later than the first rank", None, None,
         1.0, 40),
        ("gap", 1, "queue 9", "after all-reduce", None, None, 1.0, 2),
    ]  # fmt: skip


def test_two_headline_steps_are_explained_by_their_mean() -> None:
    """Of three steps the last two are steady; their kernels take 102 and 104 ns."""
    simulation = on_network(training(steps=3, growth_ns=2))
    found = {(p.kind, p.what): (p.count, p.time_ns) for p in path_places(simulation)}
    assert found["compute", "gemm"] == (1.0, 103)
    assert found["scaleup_bw", "all-reduce"] == (1.0, 100)
    assert sum(time for _, time in found.values()) == simulation.step_ns


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_places_sum_to_the_step_and_by_kind_to_its_split(job: Job) -> None:
    simulation = simulate(compress(to_graph(job, execute(job))[0]), measured=True)
    found = path_places(simulation)
    assert sum(place.time_ns for place in found) == simulation.step_ns
    by_kind: dict[str, int] = dict.fromkeys(simulation.critical_split, 0)
    for place in found:
        assert place.count > 0
        by_kind[place.kind] += place.time_ns
    for kind, time in simulation.critical_split.items():
        # The halves of two headline steps are rounded place by place, or kind by kind.
        assert abs(by_kind[kind] - time) <= len(found)


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_communication_is_divided_nanosecond_by_nanosecond(job: Job) -> None:
    timeline = execute(job)
    graph, node_of = to_graph(job, timeline)
    simulation = simulate(graph, measured=True)
    horizon = simulation.steps[-1].completion_ns
    wanted = {name: [Fraction(0)] * len(job.ops) for name in ("exposed", "hidden", "wait")}
    for now in range(horizon):
        for rank in range(len(job.base)):
            running, moving, waiting = set(), [], []
            for i, op in enumerate(job.ops):
                if op.rank != rank or not timeline.start[i] <= now < timeline.end[i]:
                    continue
                release = timeline.release[i]
                if op.coll == Collective.NONE:
                    running.add(op.flavour)
                elif release is None or now < release:
                    waiting.append(i)
                elif now < release + op.transfer:
                    moving.append(i)
            hidden = Flavour.COMPUTE in running
            for i in moving:
                wanted["hidden" if hidden else "exposed"][i] += Fraction(1, len(moving))
            if not (hidden or moving or Flavour.COPY in running):
                for i in waiting:
                    wanted["wait"][i] += Fraction(1, len(waiting))
    got = node_exposure(simulation, 0, horizon)
    for name, values in wanted.items():
        column = getattr(got, f"{name}_ns")[node_of]
        assert column == pytest.approx([float(value) for value in values], abs=1e-6)


def test_groups_and_collectives_share_what_overlaps() -> None:
    """Two transfers of 100 ns, the second 40 ns later; compute covers the first 20 ns."""
    build = GraphBuilder()
    build.rank(0)
    build.rank(1)
    groups = [build.group(name, [0, 1]) for name in ("tp", "dp")]
    markers = {}
    for rank in (0, 1):
        compute, *streams = (build.lane(rank, LaneKind.STREAM, n) for n in (7, 8, 9))
        build.node(compute, Flavour.COMPUTE, 20)
        for group, stream, gap, size in zip(groups, streams, (0, 40), (8, 16), strict=True):
            late = 10 * rank * (group == groups[1])
            markers[rank] = build.collective(
                stream, Collective.ALL_REDUCE, group, size, gap_ns=gap + late, transfer_ns=100
            )
    build.step("step", markers)
    simulation = simulate(build.build(), measured=True)
    groups_found, collectives = exposures(simulation)
    # tp from 0 to 100, dp from 50 to 150: 20 hidden, 30 alone, 50 shared, 50 alone.
    dp, tp = ((one.group, one.exposed_ns, one.hidden_ns, one.wait_ns) for one in groups_found)
    assert dp == ("dp", 75, 0, 0)
    assert tp == ("tp", 55, 20, 0)
    assert [(one.type, one.bytes, one.group) for one in collectives] == [
        *[("all-reduce", 16, "dp"), ("all-reduce", 8, "tp")]
    ]
    assert [one.path_ns for one in collectives] == [100, 0]
    assert {one.ranks for one in collectives} == {2}
    assert {one.count for one in collectives} == {1.0}


def test_time_lost_on_shared_ports_names_who_was_met() -> None:
    """Two all-reduces of 100 ns alone, the second 40 ns later, through the same ports.

    They meet at 40 with 60 of the first and 100 of the second to do; at half the speed the first
    ends at 160 and the second, alone then, at 200: the path to the end is 100 of transfer and 60
    of sharing.
    """
    build = GraphBuilder()
    groups = [build.group(name, [0, 1]) for name in ("tp", "dp")]
    markers = {}
    for rank in (0, 1):
        build.rank(rank)
        for group, number, gap in zip(groups, (8, 9), (0, 40), strict=True):
            stream = build.lane(rank, LaneKind.STREAM, number)
            markers[rank] = build.collective(stream, Collective.ALL_REDUCE, group, 1000, gap_ns=gap)
    build.step("step", markers)
    wire = Network(name="wire", tiers=[Tier(size=2, bandwidth_gb_s=10.0)])
    lost = simulate(compress(build.build()), network=wire)
    found = {(p.kind, p.group): (p.time_ns, p.beside) for p in path_places(lost)}
    assert found == {
        ("scaleup_bw", "dp"): (100, None),
        ("sharing", "dp"): (60, "all-reduce of group tp"),
        ("gap", None): (40, None),
    }
    drawn = timeline(lost)
    assert sorted(d.get("sharing_ns", 0) for d in drawn.details.values() if "type" in d) == [60] * 4


def test_sends_belong_to_the_two_ranks_and_waits_to_who_waits() -> None:
    build = GraphBuilder()
    group = build.group("pp", [0, 1])
    markers = {}
    for rank, kind, before in ((0, Kind.SEND, 60), (1, Kind.RECV, 10)):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        build.node(stream, Flavour.COMPUTE, before)
        markers[rank] = build.point_to_point(
            stream, kind, 1 - rank, group, 100, transfer_ns=30, name="ncclSendRecv"
        )
    build.step("step", markers)
    ((one,), (same,)) = exposures(simulate(build.build(), measured=True))
    assert (one.group, one.exposed_ns, one.wait_ns) == ("0 and 1", 30, 25)
    assert (same.type, same.bytes, same.count, same.path_ns) == ("send-recv", 100, 1.0, 30)


def test_an_explanation_sums_to_the_step_and_keeps_within_its_bounds(network: Path) -> None:
    result = explain(simulate_once(training(steps=4), network=network), top=3)
    assert len(result.places) == 3
    assert result.other_places == len(PLACES) - 3
    listed = sum(place.time_ns for place in result.places)
    assert listed + result.other_places_ns == result.step_ns
    assert sum(result.critical_path_ns.values()) == result.step_ns
    # Host 20, kernel 100, all-reduce 135, copy 30, gap and lag 8.
    assert result.step_ns == 293
    assert result.headline_steps == ["step 2"]  # the middle one of three equal steady steps
    worth = {one.resource: one for one in result.resources}
    owned = {"host": 20, "compute": 100, "scaleup_bw": 100, "scaleup_latency": 14}
    assert {name: one.owned_ns for name, one in worth.items()} == owned
    for name, one in worth.items():
        assert one.owned_pct == pytest.approx(owned[name] / 293 * 100)
        # Nothing else runs beside this chain, so twice as good gives half of what is owned.
        assert one.utility_pct == pytest.approx(owned[name] / 2 / 293 * 100)
        assert one.unlimited_utility_pct == pytest.approx(owned[name] / 293 * 100, abs=0.4)
        assert one.bound_pct is not None
        assert one.unlimited_bound_pct is not None
        assert one.utility_pct <= one.bound_pct
        assert one.unlimited_utility_pct <= one.unlimited_bound_pct
        assert not one.irrelevant
    refused = {"scaleout_bw", "scaleup_domain", "scaleout_latency"}
    assert {one.resource for one in result.refused} == refused


def test_what_is_off_the_path_is_called_irrelevant(network: Path) -> None:
    """Each rank's host takes 100 times as long as its kernel, which runs beside it."""
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    markers = {}
    for rank in (0, 1):
        build.rank(rank)
        host, stream = build.lane(rank, LaneKind.HOST, 1), build.lane(rank, LaneKind.STREAM, 7)
        build.node(host, Flavour.HOST, 100_000)
        build.node(stream, Flavour.COMPUTE, 1_000)
        build.collective(stream, Collective.ALL_REDUCE, group, 1000)
        markers[rank] = build.node(host, Flavour.GAP, 0)
    build.step("step", markers)
    result = explain(simulate_once(build.build(), network=network))
    assert [one.resource for one in result.resources if not one.irrelevant] == ["host"]
    assert "However good, scaleup_bw, scaleup_latency or compute alone" in result.verdict[-1]
    assert result.verdict[0].startswith("The host work of rank 0 sets the step: 100 us (100.00 %)")


def test_what_gives_back_more_the_better_it_gets_is_not_called_irrelevant() -> None:
    """99,930 ns of copies and 140 of computation: 0.07 % at twice as good, 0.14 % unlimited."""
    build = GraphBuilder()
    build.rank(0)
    stream = build.lane(0, LaneKind.STREAM, 7)
    build.node(stream, Flavour.COPY, 99_930)
    build.step("step", {0: build.node(stream, Flavour.COMPUTE, 140, start_ns=99_930)})
    (compute,) = explain(replay_measured(build.build())).resources
    assert compute.utility_pct == pytest.approx(70 / 100_070 * 100)
    assert compute.unlimited_utility_pct == pytest.approx(140 / 100_070 * 100)
    assert not compute.irrelevant


def test_measured_transfers_are_explained_without_a_network() -> None:
    single = replay_measured(training(steps=4, trace_ns=235))
    result = explain(single)
    assert result.step_ns == result.measured_step_ns == 393
    assert result.critical_path_ns["transfer"] == 235
    assert {one.resource: one.owned_ns for one in result.resources} == {"host": 20, "compute": 100}
    assert [one.resource for one in result.resources] == ["compute", "host"]
    assert result.resources[0].utility_pct == pytest.approx(50 / 393 * 100)
    assert {one.resource for one in result.refused} == set(RESOURCES) - {"host", "compute"}
    stream = replay_measured(training().with_(model="stream"))
    refused = {one.resource: one.reason for one in explain(stream).refused}
    assert "needs the host model" in refused["host"]


def test_a_step_that_takes_no_time_cannot_be_explained() -> None:
    build = GraphBuilder()
    build.rank(0)
    build.step("step", {0: build.node(build.lane(0, LaneKind.HOST), Flavour.GAP, 0)})
    with pytest.raises(GraphError, match="takes no time"):
        explain(replay_measured(build.build()))


@pytest.mark.parametrize("top", [0, -1])
def test_a_number_of_places_below_one_makes_no_sense(network: Path, top: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        explain(simulate_once(training(), network=network), top=top)
    with pytest.raises(UsageError, match="at least 1"):
        whatif.explain("no/such/trace", top=top)


# --- the verdict ------------------------------------------------------------------------------

PLACE = Place(
    kind="compute", rank=0, lane="stream 7", what="gemm", group=None, bytes=None, beside=None,
    count=1.0, time_ns=0, share_pct=0.0,
)  # fmt: skip
RANK = RankTime(0, 1000, *(0,) * 8)
WORTH = Worth(
    resource="host",
    owned_ns=600,
    owned_pct=60.0,
    utility_pct=30.0,
    bound_pct=30.0,
    unlimited_utility_pct=60.0,
    unlimited_bound_pct=60.0,
    bound_reason=None,
    shape_change=None,
    irrelevant=False,
)


SHORT = (
    "What compute owns of the path would allow 30.00 % at twice as good, but then another chain of "
    "causes is the longest."
)


def sentences(
    places: list[Place], worths: list[Worth] | None = None, rank: RankTime = RANK
) -> list[str]:
    """Verdict over a step of 1000 ns."""
    single = replay_measured(training())
    result = replace(single.result(), step_ns=1000, per_rank=[rank])
    return verdict(result, places, worths or [])


def place(kind: str, time_ns: int, rank: int | None = 0, group: str | None = None) -> Place:
    return replace(PLACE, kind=kind, time_ns=time_ns, rank=rank, group=group)


def test_what_takes_half_the_step_sets_it() -> None:
    assert sentences([place("host", 500), place("compute", 500)])[0] == (
        "The host work of rank 0 sets the step: 500 ns (50.00 %) of the critical path."
    )
    shared = [place("compute", time, rank) for rank, time in enumerate([300, 250, 200, 150, 100])]
    assert sentences(shared)[0] == (
        "Computation sets the step: 1 us (100.00 %) of the critical path (rank 0: 30.00 %, "
        "rank 1: 25.00 %, rank 2: 20.00 %, 2 more: 25.00 %)."
    )
    transfers = [place("scaleup_bw", 400, None, "tp"), place("base", 200, None, "tp")]
    assert sentences([*transfers, place("host", 400)])[0] == (
        "The transfers of group tp set the step: 600 ns (60.00 %) of the critical path."
    )


def test_where_nothing_takes_half_the_largest_are_named() -> None:
    parts = [place("host", 450), place("compute", 400), place("gap", 145), place("lag", 5)]
    first, gap = sentences(parts)
    assert first == (
        "No one thing sets the step: the critical path is host work 45.00 %, computation 40.00 % "
        "and gaps 14.50 %."
    )
    assert gap == "145 ns (14.50 %) are gaps of rank 0: time that no dependency explains."


def test_what_no_resource_shrinks_is_said() -> None:
    lost = "are added to transfers of group dp by others in flight on their ports"
    shared = replace(place("sharing", 100, None, "dp"), beside="all-gather of group tp")
    parts = [place("host", 800), place("start_offset", 100, 3), shared]
    assert sentences(parts)[1:] == [
        "100 ns (10.00 %) pass until rank 3 begins its first step, later than the first rank.",
        f"100 ns (10.00 %) {lost}, mostly all-gather of group tp.",
    ]


def test_exposed_time_stands_beside_what_of_it_is_on_the_path() -> None:
    rank = replace(RANK, exposed_comm_ns=80, wait_ns=300)
    assert sentences([place("host", 1000)], rank=rank)[1] == (
        "The average rank spends 80 ns (8.00 %) of the step in exposed transfers and waits 300 ns "
        "(30.00 %) for other ranks; transfers are 0 ns (0.00 %) of the critical path."
    )


def test_what_resources_are_worth_is_what_was_simulated() -> None:
    short = replace(WORTH, resource="compute", utility_pct=20.0)
    slower = replace(WORTH, resource="scaleup_domain", utility_pct=-3.0, bound_pct=None,
                     unlimited_utility_pct=None)  # fmt: skip
    nothing = [replace(WORTH, resource=name, irrelevant=True) for name in ("a", "b")]
    assert sentences([place("host", 1000)], [WORTH, short, slower, *nothing])[1:] == [
        "Twice as good, host shortens the step by 30.00 %; unlimited, by 60.00 %.",
        "Twice as good, compute shortens the step by 20.00 %; unlimited, by 60.00 %.",
        SHORT,
        "Twice as good, scaleup_domain lengthens the step by 3.00 %.",
        "However good, a or b alone changes the step by less than 0.1 %.",
    ]


# --- the report and the command line ------------------------------------------------------------


def shown(single: Single, **changes: Any) -> str:
    console = Console(width=160, file=io.StringIO(), highlight=False)
    for part in explain_report(replace(explain(single), **changes)):
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_report_shows_the_places_and_what_is_left_out(network: Path) -> None:
    single = simulate_once(training(), network=network)
    result = explain(single, top=2)
    long = replace(PLACE, what="k" * 100, time_ns=100)
    output = shown(
        single, places=[*result.places, long], other_places=8, other_places_ns=93,
        headline_steps=["step 0"], groups=[*result.groups, replace(result.groups[0], group="dp")],
    )  # fmt: skip
    assert "explained  step 0" in output
    assert "8 more places" in output
    assert f"{'k' * 71}…" in output
    assert "group world" in output
    assert "all-reduce of 1 kB" in output
    assert output.count("What each group costs") == 1
    assert "scaleout_bw, scaleout_latency: network 'any' has no scale-out tier" in output


def test_the_report_says_why_there_is_no_bound(network: Path) -> None:
    single = simulate_once(training(), network=network)
    worths = [
        replace(WORTH, resource="scaleup_bw", bound_pct=None, bound_reason="ports are shared"),
        replace(WORTH, resource="scaleup_domain", owned_ns=None, owned_pct=None,
                shape_change="one domain", irrelevant=True),
    ]  # fmt: skip
    output = shown(single, resources=worths)
    assert "scaleup_bw: ports are shared" in output
    assert "scaleup_domain: one domain" in output
    assert "irrelevant" in output


def test_the_command_prints_one_object_with_the_promised_names(
    network: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    folder = tmp_path / "et"
    whatif.gen_gpu_chakra_et(training(steps=2), folder)
    base = ["whatif", "explain", "--trace", str(folder)]
    for extra, code in (
        (["--network", str(network), "--top", "2", "--json"], 0),
        (["--measured", "--json"], 0),
        (["--measured", "--network", str(network)], 2),
        (["--top", "0"], 2),
    ):
        monkeypatch.setattr(sys, "argv", [*base, *extra])
        with pytest.raises(SystemExit) as left:
            run()
        out = capsys.readouterr().out
        assert int(left.value.code or 0) == code
        if code:
            assert out == ""
            continue
        result = json.loads(out)
        assert result.keys() >= {
            *("step_ns", "measured_step_ns", "baseline_error_pct", "beyond_limit", "verdict"),
            *("critical_path_ns", "places", "other_places", "other_places_ns", "headline_steps"),
            *("groups", "collectives", "resources", "refused", "per_rank", "warnings", "limits"),
        }
        listed = sum(place["time_ns"] for place in result["places"])
        assert listed + result["other_places_ns"] == result["step_ns"]
        assert sum(result["critical_path_ns"].values()) == result["step_ns"]
        assert result["step_ns"] == whatif.explain(folder, measured="--measured" in extra,
            network=None if "--measured" in extra else network).step_ns  # fmt: skip


def test_the_readme_names_every_field_and_the_help_shows_how(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    for record in (ExplainResult, Place, ExposedGroup, ExposedCollective, Worth):
        assert {f for f in record.__struct_fields__ if f"`{f}`" not in readme} == set()
    monkeypatch.setattr(sys, "argv", ["whatif", "explain", "--help"])
    with pytest.raises(SystemExit):
        run()
    assert "\n  whatif explain --trace" in capsys.readouterr().out


# --- real jobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["megatron_tp8_a100x8", "dlrm_v100x8"])
def test_real_jobs_are_explained_and_what_is_irrelevant_changes_nothing(
    shared_data: Path, trace: str
) -> None:
    graph = whatif.load(shared_data / "traces" / "gpu" / trace, processes=1)
    single = simulate_once(graph)
    result = explain(single)
    step_ns = result.step_ns
    assert abs(sum(result.critical_path_ns.values()) - step_ns) <= step_ns / 1000
    listed = sum(place.time_ns for place in result.places) + result.other_places_ns
    assert abs(listed - step_ns) <= step_ns / 1000
    assert single.job is not None
    irrelevant = [one.resource for one in result.resources if one.irrelevant]
    assert irrelevant
    for name in irrelevant:
        twice = simulate_variant(single.job, RESOURCES[name].vary(single.job, 2))
        assert abs(twice.step_ns - step_ns) < step_ns * IRRELEVANT_PCT / 100
    # What the path says the network owns is nothing; both jobs are bound by a host.
    assert "host work" in result.verdict[0].lower()
    groups, _ = exposures(single.simulation)
    mean = np.mean([rank.exposed_comm_ns for rank in result.per_rank])
    assert sum(group.exposed_ns for group in groups) == pytest.approx(mean, abs=2)
    assert {resource.name for resource in DURATIONS} <= {one.resource for one in result.resources}
