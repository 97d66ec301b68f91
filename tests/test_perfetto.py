"""A timeline that is written can be read by viewers: no overlap, arrows that end, exact times."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from whatif.base.errors import WhatIfError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import Collective, EdgeKind, ExecutionGraph, Flavour, Kind, LaneKind
from whatif.graph.compress import compress
from whatif.reports.perfetto import microseconds, write_timelines
from whatif.simulator.network import Network, Tier, save_network
from whatif.simulator.run import Simulation, simulate
from whatif.simulator.timeline import timeline

import whatif
from whatif.cli.main import run

from .programs import Job, execute, jobs, to_graph

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]


def whole_ns(event: Event, field: str = "ts") -> int:
    """Read a time as viewers do that cut off what is behind the point."""
    read = int(event[field] * 1000)
    assert read == round(event[field] * 1000)
    return read


class Viewer:
    """Reads a file and holds it to the rules of its format.

    Attributes
    ----------
    processes : dict of str to int
        Process by its name.
    tracks : dict of (str, str) to list of events
        Slices by names of process and thread, by time.
    arrows : list of (event, event)
        The slices that each arrow joins.
    """

    def __init__(self, path: Path) -> None:
        with (gzip.open if path.suffix == ".gz" else open)(path) as file:
            events: list[Event] = json.load(file)["traceEvents"]
        assert {event["ph"] for event in events} <= {"M", "X", "s", "f"}
        labels = {
            (event["name"], event["pid"], event["tid"]): next(iter(event["args"].values()))
            for event in events
            if event["ph"] == "M"
        }
        process = {pid: name for (what, pid, _), name in labels.items() if what == "process_name"}
        thread = {
            (pid, tid): name for (what, pid, tid), name in labels.items() if what == "thread_name"
        }
        self.processes = {name: pid for pid, name in process.items()}
        assert len(self.processes) == len(process)
        # Some viewers know threads by their number alone, or take one for the main thread.
        assert len({tid for _, tid in thread}) == len(thread)
        assert not {tid for _, tid in thread} & set(process)
        names = Counter((process[pid], name) for (pid, _), name in thread.items())
        assert max(names.values()) == 1

        by_track: dict[tuple[int, int], list[Event]] = defaultdict(list)
        for event in events:
            if event["ph"] == "X":
                assert whole_ns(event) >= 0
                assert whole_ns(event, "dur") > 0
                by_track[event["pid"], event["tid"]].append(event)
        assert by_track.keys() <= thread.keys()
        for slices in by_track.values():
            slices.sort(key=whole_ns)
            for one, following in pairwise(slices):
                assert whole_ns(one) + whole_ns(one, "dur") <= whole_ns(following)
        self.tracks = {
            (process[pid], name): by_track.get((pid, tid), [])
            for (pid, tid), name in thread.items()
        }
        self.arrows = self._joined(events, by_track)

    def _joined(
        self, events: list[Event], by_track: dict[tuple[int, int], list[Event]]
    ) -> list[tuple[Event, Event]]:
        ends: dict[int, dict[str, Event]] = defaultdict(dict)
        for event in events:
            if event["ph"] in "sf":
                # Readers keep the order of the file at equal times, and need the begin first.
                assert event["ph"] == "s" or "s" in ends[event["id"]]
                assert event["ph"] not in ends[event["id"]]
                ends[event["id"]][event["ph"]] = event
        arrows = []
        for both in ends.values():
            assert both["s"]["cat"] == both["f"]["cat"]
            assert both["s"]["name"] == both["f"]["name"]
            assert both["f"]["bp"] == "e"
            assert whole_ns(both["s"]) <= whole_ns(both["f"])
            slices = []
            for event in (both["s"], both["f"]):
                now = whole_ns(event)
                (one,) = (
                    one
                    for one in by_track[event["pid"], event["tid"]]
                    if whole_ns(one) <= now < whole_ns(one) + whole_ns(one, "dur")
                )
                slices.append(one)
            arrows.append((slices[0], slices[1]))
        return arrows

    def intervals(self, process: str, track: str) -> list[tuple[str, int, int]]:
        return [
            (event["name"], whole_ns(event), whole_ns(event) + whole_ns(event, "dur"))
            for event in self.tracks[process, track]
        ]


def written(folder: Path, *scenarios: tuple[str, Simulation]) -> Viewer:
    path = folder / "timeline.json"
    write_timelines(path, ((name, timeline(simulation)) for name, simulation in scenarios))
    return Viewer(path)


@settings(max_examples=60, deadline=None)
@given(jobs(), st.floats(0.3, 3))
def test_timelines_of_any_job_are_valid_and_complete(
    tmp_path_factory: pytest.TempPathFactory, job: Job, scale: float
) -> None:
    graph = to_graph(job, execute(job))[0]
    baseline = simulate(compress(graph), measured=True)
    variant = simulate(compress(graph), measured=True, compute_scale=scale)
    folder = tmp_path_factory.getbasetemp()
    viewer = written(folder, ("baseline", baseline), ("variant", variant))
    shift = -min(int(graph.base_ns.min()), 0)
    for scenario, simulation in (("baseline", baseline), ("variant", variant)):
        begin, end = simulation.original_intervals()
        wanted: Counter[tuple[Any, ...]] = Counter(
            (int(rank), graph.names[name], b + shift, e + shift)
            for rank, name, b, e in zip(
                graph.ranks[graph.rank_index], graph.name, begin.tolist(), end.tolist(), strict=True
            )
            if e > b
        )
        found: Counter[tuple[Any, ...]] = Counter(
            (rank, *interval)
            for rank in graph.ranks.tolist()
            for process, track in viewer.tracks
            if process == f"{scenario}: rank {rank}"
            for interval in viewer.intervals(process, track)
        )
        assert found == wanted
        total = simulation.steps[-1].completion_ns
        for track in ("steps", "critical path"):
            intervals = viewer.intervals(scenario, track)
            assert sum(e - b for _, b, e in intervals) == total
            assert [e for _, _, e in intervals[:-1]] == [b for _, b, _ in intervals[1:]]
    for source, target in viewer.arrows:
        assert source["pid"] != target["pid"]


def test_an_arrow_joins_who_is_waited_for_with_everyone_who_waits(tmp_path: Path) -> None:
    """Rank 1 is the last to come to the all-reduce, rank 0 the root of broadcast and reduce."""
    build = GraphBuilder()
    world = build.group("world", [0, 1, 2])
    markers = {}
    for rank in (0, 1, 2):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        build.node(stream, Flavour.COMPUTE, [10, 50, 20][rank])
        for coll, root in (
            (Collective.ALL_REDUCE, -1),
            (Collective.BROADCAST, 0),
            (Collective.REDUCE, 0),
        ):
            markers[rank] = build.collective(
                stream, coll, world, 800, root=root, transfer_ns=100, tail_ns=2 * rank
            )
    build.step("step", markers)
    viewer = written(tmp_path, ("baseline", simulate(build.build(), measured=True)))
    rank_of = {pid: int(name[-1]) for name, pid in viewer.processes.items() if "rank" in name}
    joined = Counter(
        (source["args"]["type"], rank_of[source["pid"]], rank_of[target["pid"]])
        for source, target in viewer.arrows
    )
    assert joined == Counter(
        [
            *(("all-reduce", 1, 0), ("all-reduce", 1, 2)),
            *(("broadcast", 0, 1), ("broadcast", 0, 2)),
            *(("reduce", 1, 0), ("reduce", 2, 0)),
        ]
    )
    first = viewer.tracks["baseline: rank 2", "stream 7"][1]
    assert first["args"] == {
        "type": "all-reduce",
        "bytes": 800,
        "group": "world",
        "wait_ns": 30,
        "transfer_ns": 100,
    }
    # 30 of wait, 100 of transfer, 4 of tail.
    assert (whole_ns(first), whole_ns(first, "dur")) == (20, 134)


def batched() -> ExecutionGraph:
    """Each rank sends to and receives from the other in one kernel, so at the same time."""
    build = GraphBuilder()
    group = build.group("pp", [0, 1])
    markers = {}
    for rank in (0, 1):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        before = build.node(stream, Flavour.COMPUTE, 10 + 30 * rank)
        for kind in (Kind.SEND, Kind.RECV):
            markers[rank] = build.point_to_point(
                stream, kind, 1 - rank, group, 100, after=[before], transfer_ns=60, name="SendRecv"
            )
    build.step("step", markers)
    return build.build()


def test_batched_sends_and_receives_get_a_track_each_and_arrows_both_ways(tmp_path: Path) -> None:
    viewer = written(tmp_path, ("baseline", simulate(batched(), measured=True)))
    for rank, begin in ((0, 10), (1, 40)):
        first = viewer.intervals(f"baseline: rank {rank}", "stream 7")
        second = viewer.intervals(f"baseline: rank {rank}", "stream 7 (2)")
        assert first == [("compute", 0, begin), ("SendRecv", begin, 100)]
        assert second == [("SendRecv", begin, 100)]
    ways = [
        (source["args"]["peer"], target["args"]["peer"], source["pid"] != target["pid"])
        for source, target in viewer.arrows
    ]
    assert sorted(ways) == [(0, 1, True), (1, 0, True)]


def test_kernels_that_overlap_on_a_stream_get_tracks_of_their_own(tmp_path: Path) -> None:
    """Programmatic dependent launch: the second begins 40 ns after the begin of the first."""
    build = GraphBuilder()
    build.rank(0)
    stream = build.lane(0, LaneKind.STREAM, 7)
    first = build.node(stream, Flavour.COMPUTE, 100, name="a")
    second = build.node(
        stream, Flavour.COMPUTE, 100, name="b", after=[Dep(first, EdgeKind.START, 40)]
    )
    third = build.node(stream, Flavour.COMPUTE, 10, name="c", after=[Dep(second, EdgeKind.END, 0)])
    build.step("step", {0: third})
    viewer = written(tmp_path, ("baseline", simulate(build.build(), measured=True)))
    assert viewer.intervals("baseline: rank 0", "stream 7") == [("a", 0, 100), ("c", 140, 150)]
    assert viewer.intervals("baseline: rank 0", "stream 7 (2)") == [("b", 40, 140)]


def test_a_queue_has_as_many_tracks_as_servers_are_busy(tmp_path: Path) -> None:
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    queue = build.lane(0, LaneKind.QUEUE, 5, servers=2)
    for transfer in (100, 30, 50, 70):
        last = build.collective(queue, Collective.BARRIER, group, -1, transfer_ns=transfer)
    build.step("step", {0: last})
    viewer = written(tmp_path, ("baseline", simulate(build.build(), measured=True)))
    first, second = (viewer.intervals("baseline: rank 0", f"queue 5{n}") for n in ("", " (2)"))
    assert first == [("barrier", 0, 30), ("barrier", 30, 80), ("barrier", 80, 150)]
    assert second == [("barrier", 0, 100)]


def training() -> ExecutionGraph:
    """Two ranks, three steps: a kernel, then an all-reduce; rank 1 begins 7 ns before the zero."""
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    lanes = []
    for rank in (0, 1):
        build.rank(rank, base_ns=-7 * rank)
        lanes.append(build.lane(rank, LaneKind.STREAM, 7))
    for step in range(3):
        markers = {}
        for rank, lane in enumerate(lanes):
            begin = 300 * step - 7 * rank * (step == 0)
            build.node(lane, Flavour.COMPUTE, 100, name="gemm", start_ns=begin, step=step)
            markers[rank] = build.collective(
                lane,
                Collective.ALL_REDUCE,
                group,
                1000,
                start_ns=begin + 100,
                dur_ns=300 * step + 300 - begin - 100,
                transfer_ns=200,
                step=step,
            )
        build.step(f"step {step}", markers)
    return build.build()


NETWORK = Network(name="two", tiers=[Tier(size=2, bandwidth_gb_s=10.0)])


def test_nothing_begins_before_zero_and_scenarios_share_a_clock(tmp_path: Path) -> None:
    """Rank 0 begins at the zero of the clock, 7 ns after rank 1, in both scenarios."""
    graph = compress(training())
    viewer = written(
        tmp_path,
        ("measured", simulate(graph, measured=True)),
        ("fast", simulate(graph, network=NETWORK)),
    )
    for scenario, transfer in (("measured", 200), ("fast", 100)):
        assert viewer.intervals(f"{scenario}: rank 1", "stream 7")[0] == ("gemm", 0, 100)
        reduced = 107 + transfer
        assert viewer.intervals(f"{scenario}: rank 0", "stream 7")[:2] == [
            ("gemm", 7, 107),
            ("all-reduce", 107, reduced),
        ]
        assert viewer.intervals(scenario, "steps")[0] == ("step 0", 7, reduced)
        assert viewer.intervals(scenario, "steps")[2][0] == "step 2"
    path = [event["name"] for event in viewer.tracks["fast", "critical path"]]
    assert path == ["compute: gemm", "scaleup bw: all-reduce"] * 3
    first = viewer.tracks["fast", "critical path"][0]
    assert first["args"] == {"rank": 0, "lane": "stream 7"}
    assert first["cat"] == "compute"
    assert len(viewer.processes) == 2 * (1 + 2)


@pytest.mark.parametrize("tail", [0, 4])
def test_a_transfer_that_takes_no_time_has_no_arrow(tmp_path: Path, tail: int) -> None:
    """Rank 0 waits a nanosecond for rank 1, which waits for nobody and has a tail, or nothing."""
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    markers = {}
    for rank in (0, 1):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        build.node(stream, Flavour.COMPUTE, 10 + rank)
        build.collective(stream, Collective.BARRIER, group, -1, transfer_ns=0, tail_ns=tail * rank)
        markers[rank] = build.node(stream, Flavour.COMPUTE, 5)
    build.step("step", markers)
    viewer = written(tmp_path, ("baseline", simulate(build.build(), measured=True)))
    assert [name for name, _, _ in viewer.intervals("baseline: rank 0", "stream 7")] == [
        *("compute", "barrier", "compute"),
    ]
    assert [name for name, _, _ in viewer.intervals("baseline: rank 1", "stream 7")] == [
        *("compute", *(["barrier"] if tail else []), "compute"),
    ]
    assert viewer.arrows == []


def test_who_waits_for_nobody_has_no_arrow(tmp_path: Path) -> None:
    """A pair without a measured transfer keeps its durations: the receive ends before the send."""
    build = GraphBuilder()
    group = build.group("pp", [0, 1])
    markers = {}
    for rank, kind, before in ((0, Kind.SEND, 60), (1, Kind.RECV, 10)):
        build.rank(rank)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        build.node(stream, Flavour.COMPUTE, before)
        markers[rank] = build.point_to_point(stream, kind, 1 - rank, group, 100, dur_ns=30)
    build.step("step", markers)
    viewer = written(tmp_path, ("baseline", simulate(build.build(), measured=True)))
    assert viewer.intervals("baseline: rank 1", "stream 7")[1] == ("recv", 10, 40)
    assert viewer.arrows == []


@example([1001, 1003, 1005])  # 1000 times the nearest float is less
@given(st.lists(st.integers(0, 10**15), min_size=1))
def test_times_are_exact_for_readers_that_round_and_for_those_that_cut(ns: list[int]) -> None:
    for value, wanted in zip(microseconds(np.array(ns)).tolist(), ns, strict=True):
        read = json.loads(repr(value))
        assert int(read * 1000) == round(read * 1000) == wanted


def test_names_out_of_a_trace_are_written_as_they_are(tmp_path: Path) -> None:
    build = GraphBuilder()
    build.rank(0)
    stream = build.lane(0, LaneKind.STREAM, 7)
    name = 'void "k"<4>\\ \n\x00 ä'
    build.step("step", {0: build.node(stream, Flavour.COMPUTE, 5, name=name)})
    viewer = written(tmp_path, ('a "b"', simulate(build.build(), measured=True)))
    assert viewer.intervals('a "b": rank 0', "stream 7") == [(name, 0, 5)]


def test_a_compressed_file_depends_on_its_content_alone(tmp_path: Path) -> None:
    drawn = timeline(simulate(training(), measured=True))
    paths = [tmp_path / "a.json.gz", tmp_path / "b.json.gz", tmp_path / "c.json"]
    for path in paths:
        write_timelines(path, [("baseline", drawn)])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes()[3:8] == bytes(5)  # neither name nor time in the header
    assert gzip.decompress(paths[0].read_bytes()) == paths[2].read_bytes()


def test_a_timeline_that_cannot_be_finished_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json.gz"
    path.write_text("old")
    drawn = timeline(simulate(training(), measured=True))

    def scenarios() -> Any:
        yield "baseline", drawn
        raise OSError(28, "No space left on device")

    with pytest.raises(WhatIfError, match=r"timeline\.json\.gz: cannot be written: No space left"):
        write_timelines(path, scenarios())
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["timeline.json.gz"]


def test_commands_write_what_they_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    et, network, path = tmp_path / "et", tmp_path / "n.yaml", tmp_path / "t.json.gz"
    whatif.gen_gpu_chakra_et(training(), et)
    save_network(NETWORK, network)
    capsys.readouterr()

    def scenarios(*arguments: str) -> set[str]:
        command, *rest = arguments
        line = ["whatif", command, "--trace", str(et), "--timeline", str(path), *rest]
        monkeypatch.setattr(sys, "argv", line)
        with pytest.raises(SystemExit) as left:
            run()
        assert left.value.code in (0, None)
        capsys.readouterr()
        return {name for name in Viewer(path).processes if "rank" not in name}

    assert scenarios("simulate", "--measured") == {"measured transfers"}
    assert scenarios("simulate", "--network", str(network)) == {
        "network two - BASELINE ERROR NOT KNOWN"
    }
    swept = scenarios(
        *("sweep", "--network", str(network), "--resource", "scaleup_bw,compute"),
        *("--factor", "2,0.5"),
    )
    names = ("baseline", "scaleup_bw x2", "scaleup_bw x0.5", "compute x2", "compute x0.5")
    mark = " - BEYOND THE LIMIT: baseline error -33.33 %, limit 5 %"
    assert swept == {name + mark for name in names}
    monkeypatch.setattr(
        sys, "argv", ["whatif", "simulate", "--trace", "x", "--timeline", "no/such/t.json"]
    )
    with pytest.raises(SystemExit) as left:
        run()
    assert left.value.code == 2
    assert "directory does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("trace", ["megatron_tp8_a100x8", "dlrm_v100x8"])
def test_timelines_of_real_jobs_are_valid(shared_data: Path, tmp_path: Path, trace: str) -> None:
    graph = whatif.load(shared_data / "traces" / "gpu" / trace, processes=1)
    path = tmp_path / "timeline.json.gz"
    result = whatif.sweep(graph, ["host"], [2], timeline=path)
    viewer = Viewer(path)
    for scenario, step_ns in (
        ("baseline", result.baseline_step_ns),
        ("host x2", result.results[0].step_ns),
    ):
        (step,) = viewer.intervals(scenario, "steps")
        assert step[2] - step[1] == step_ns
        processes = {name for name in viewer.processes if name.startswith(f"{scenario}: rank")}
        assert len(processes) == 8
    members = [
        event
        for (process, _), events in viewer.tracks.items()
        if process.startswith("baseline: rank")
        for event in events
        if event["cat"] == "comm"
    ]
    operations = len(members) // 8
    # All but the last member of every operation wait for it.
    assert len(viewer.arrows) == 2 * 7 * operations
    for event in members:
        assert event["args"].keys() >= {"type", "bytes", "group", "wait_ns", "transfer_ns"}
        assert event["args"]["wait_ns"] + event["args"]["transfer_ns"] <= whole_ns(event, "dur")
