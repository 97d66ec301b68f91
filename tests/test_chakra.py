"""Chakra files: exact return, what other tools see, and what is refused by name."""

from __future__ import annotations

import contextlib
import gzip
import heapq
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.jsonizer import jsonizer
from chakra.src.third_party.utils.protolib import decodeMessage, encodeMessage, openFileRd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whatif.base.errors import GraphError, TraceError, UsageError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.chakra import export_warnings, read_et, write_et
from whatif.graph.chakra_format import Checksum
from whatif.graph.chakra_plan import plan_export
from whatif.graph.columns import Collective, EdgeKind, ExecutionGraph, Flavour, Kind, LaneKind
from whatif.graph.coverage import Coverage, Dropped, Inference
from whatif.graph.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Messages and attribute values, for which mlc-chakra has no types.
Untyped: TypeAlias = Any

COLL, SEND, RECV = schema.COMM_COLL_NODE, schema.COMM_SEND_NODE, schema.COMM_RECV_NODE


# ------------------------------------------------------------------ graphs


@st.composite
def graphs(draw: st.DrawFn) -> ExecutionGraph:
    """Jobs with every kind of node, dependency and lane; times are arbitrary."""
    ranks = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).map(sorted))
    build = GraphBuilder(
        model=draw(st.sampled_from(["host", "stream", "serial"])),
        world_size=draw(st.integers(len(ranks), 20)),
    )
    lanes: dict[int, list[int]] = {}
    nodes: dict[int, list[int]] = {rank: [] for rank in ranks}
    time = st.integers(0, 10_000_000)
    for rank in ranks:
        build.rank(
            rank,
            base_ns=draw(st.integers(-5000, 100_000)),
            start_offset_ns=draw(st.integers(0, 5000)),
            host=draw(st.text(max_size=3)),
            device="A100",
        )
        lanes[rank] = [
            build.lane(rank, LaneKind.HOST, 4711),
            build.lane(rank, LaneKind.STREAM, 7),
            build.lane(rank, LaneKind.QUEUE, 2**40, servers=draw(st.integers(1, 2))),
        ]
    groups = [build.group("world", ranks, "default_pg")]
    groups += [
        build.group(f"sub{i}", draw(st.permutations(ranks))[: draw(st.integers(1, len(ranks)))])
        for i in range(draw(st.integers(0, 2)))
    ]

    def common(rank: int) -> dict[str, Any]:
        dep = st.builds(
            Dep,
            st.sampled_from(nodes[rank]) if nodes[rank] else st.nothing(),
            st.sampled_from(EdgeKind),
            st.sampled_from([0, 0, 1, 12_345]),
        )
        return {
            "name": draw(st.sampled_from(["a", "b" * 300, "void kernel<float>", "λ"])),
            "after": draw(st.lists(dep, max_size=3)) if nodes[rank] else [],
            "gap_ns": draw(st.sampled_from([0, 0, 499, 1_500, 77_777])),
            "start_ns": draw(st.integers(-100_000, 10_000_000)),
            "step": draw(st.integers(-1, 1)),
        }

    def communication(rank: int) -> dict[str, Any]:
        tail = draw(st.sampled_from([0, 0, 3, 2_600]))
        return common(rank) | {
            "tail_ns": tail,
            "dur_ns": tail + draw(time),
            "transfer_ns": draw(st.one_of(st.just(-1), time)),
        }

    def compute(rank: int) -> None:
        lane = draw(st.sampled_from(lanes[rank]))
        flavour = draw(st.sampled_from([f for f in Flavour if f != Flavour.COMM]))
        nodes[rank].append(build.node(lane, flavour, draw(time), **common(rank)))

    for rank in ranks:
        compute(rank)
    group_ranks = [build._groups[group].ranks for group in groups]
    for what in draw(st.lists(st.sampled_from(["compute", "collective", "pair"]), max_size=14)):
        if what == "compute":
            compute(draw(st.sampled_from(ranks)))
        elif what == "collective":
            group = draw(st.sampled_from(groups))
            coll = draw(st.sampled_from([c for c in Collective if 0 <= c < Collective.SEND_RECV]))
            root = draw(st.sampled_from(group_ranks[group]))
            size = draw(st.sampled_from([-1, 0, 1, 4096, 2**40]))
            for rank in group_ranks[group]:
                own, split = size, ()
                if coll == Collective.ALL_TO_ALL:
                    own += draw(st.integers(0, 2))
                    if draw(st.booleans()):
                        split = draw(st.tuples(*[st.integers(0, 99)] * len(group_ranks[group])))
                        own = sum(split)
                node = build.collective(
                    draw(st.sampled_from(lanes[rank])),
                    coll,
                    group,
                    own,
                    root=root,
                    split=split,
                    dtype=draw(st.sampled_from(["", "float32", "bfloat16"])),
                    **communication(rank),
                )
                nodes[rank].append(node)
        elif len(ranks) > 1:
            source, target = draw(st.permutations(ranks))[:2]
            tag, eager = draw(st.integers(0, 1)), draw(st.booleans())
            for rank, peer, kind in (
                (source, target, Kind.SEND),
                (target, source, Kind.RECV),
            ):
                node = build.point_to_point(
                    draw(st.sampled_from(lanes[rank])),
                    kind,
                    peer,
                    0,
                    100,
                    tag=tag,
                    eager=eager and kind == Kind.SEND,
                    **communication(rank),
                )
                nodes[rank].append(node)
    for name in ("ProfilerStep#1", "ProfilerStep#2"):
        markers = {rank: draw(st.sampled_from(nodes[rank])) for rank in ranks}
        build.step(name, markers, begin_ns={rank: draw(time) for rank in ranks})
    coverage = Coverage(
        files=len(ranks),
        gap_share_pct=draw(st.floats(0, 100)),
        inferred=[Inference("host wait", 3, "ends 4 us after the kernel")],
        dropped=[Dropped("flow", 1, "no end")],
        warnings=[draw(st.text(st.characters(codec="utf-8"), max_size=5))],
    )
    return build.build().with_(coverage=coverage, trace="some/where", source="kineto-gpu")


def two_streams() -> ExecutionGraph:
    """Two ranks and two streams; on rank 0 the collective `a` is ready first, on rank 1 `b`."""
    build = GraphBuilder()
    for rank in (0, 1):
        build.rank(rank)
    a, b = build.group("a", (0, 1)), build.group("b", (0, 1))
    streams = {rank: [build.lane(rank, LaneKind.STREAM, i) for i in (7, 20)] for rank in (0, 1)}

    def all_reduce(rank: int, group: int, start_ns: int, dur_ns: int, gap_ns: int = 0) -> int:
        return build.collective(
            streams[rank][group],
            Collective.ALL_REDUCE,
            group,
            4096,
            start_ns=start_ns,
            dur_ns=dur_ns,
            gap_ns=gap_ns,
        )

    all_reduce(0, a, 0, 6000)
    all_reduce(0, b, 6000, 1000, gap_ns=6000)
    all_reduce(1, b, 0, 7000)
    build.node(streams[1][a], Flavour.COMPUTE, 5000)
    last = all_reduce(1, a, 5000, 1000)
    build.step("step", {0: 1, 1: last})
    return build.build()


def assert_equal(left: Untyped, right: Untyped, where: str = "graph") -> None:
    """Compare two graphs column by column, with types."""
    for column in fields(left):
        a, b = getattr(left, column.name), getattr(right, column.name)
        place = f"{where}.{column.name}"
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, place
            np.testing.assert_array_equal(a, b, err_msg=place)
        elif hasattr(a, "__dataclass_fields__"):
            assert_equal(a, b, place)
        elif column.name == "names" and where == "graph":
            assert tuple(name[:256] for name in a) == b
        else:
            assert a == b, place


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def decode(path: Path) -> tuple[Any, list[Any]]:
    """Metadata and nodes of a file, by mlc-chakra's own reader."""
    with contextlib.closing(openFileRd(path)) as file:
        metadata = schema.GlobalMetadata()
        assert decodeMessage(file, metadata)
        nodes = []
        while decodeMessage(file, node := schema.Node()):
            nodes.append(node)
    return metadata, nodes


def attributes(node: Untyped) -> dict[str, Any]:
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


# ------------------------------------------------------------------ exact return


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_reading_our_own_files_gives_the_same_numbers(graph: ExecutionGraph) -> None:
    validate(graph)
    with folder() as path:
        files = write_et(graph, path)
        assert [file.name for file in files] == [
            *(f"whatif.{i}.et" for i in range(graph.num_ranks)),
            "whatif.comm_groups.json",
        ]
        assert_equal(graph, read_et(path))


def test_a_set_is_found_by_directory_prefix_or_file(tmp_path: Path) -> None:
    graph = two_streams()
    write_et(graph, tmp_path, "one")
    write_et(graph, tmp_path, "two")
    assert_equal(graph, read_et(tmp_path / "two"))
    assert_equal(graph, read_et(tmp_path / "one.1.et"))
    with pytest.raises(TraceError, match="several sets of Chakra files \\(one, two\\)"):
        read_et(tmp_path)


def test_gzip_files_are_read(tmp_path: Path) -> None:
    graph = two_streams()
    for file in write_et(graph, tmp_path)[:2]:
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert_equal(graph, read_et(tmp_path))


# ------------------------------------------------------------------ what other tools see


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_files_obey_what_chakra_and_astra_sim_require(graph: ExecutionGraph) -> None:
    types = {"comm_type": "int64_val", "comm_size": "int64_val", "pg_name": "string_val"}
    types |= dict.fromkeys(("comm_src", "comm_dst", "comm_tag", "comm_priority"), "int32_val")
    types |= {"is_cpu_op": "bool_val"}
    with folder() as path:
        *files, groups_file = write_et(graph, path)
        groups = json.loads(groups_file.read_text())
        assert all(int(key) >= 1 and len(npus) > 1 for key, npus in groups.items())
        for npu, file in enumerate(files):
            metadata, nodes = decode(file)
            assert metadata.version == "0.0.4"
            assert [node.id for node in nodes] == list(range(1, len(nodes) + 1))
            for node in nodes:
                deps = [*node.data_deps, *node.ctrl_deps]
                assert len(set(deps)) == len(deps)
                assert all(0 < dep < node.id for dep in deps)
                assert len(node.name) <= 256
                assert node.type in (
                    schema.COMP_NODE,
                    schema.COMM_COLL_NODE,
                    schema.COMM_SEND_NODE,
                    schema.COMM_RECV_NODE,
                )
                found = attributes(node)
                for attr in node.attr:
                    if attr.name in types:
                        assert attr.WhichOneof("value") == types[attr.name]
                    else:
                        assert attr.name.startswith("whatif_")
                        assert attr.WhichOneof("value") in ("int64_val", "string_val")
                if node.type == schema.COMP_NODE:
                    assert "comm_size" not in found
                    continue
                assert not found["is_cpu_op"]
                assert found["comm_size"] > 0
                if node.type == schema.COMM_COLL_NODE:
                    assert found["comm_type"] in (0, 2, 5, 6, 7)
                    assert npu in groups[found["pg_name"]]
                else:
                    own = "comm_src" if node.type == schema.COMM_SEND_NODE else "comm_dst"
                    assert found[own] == npu
                    assert found["comm_tag"] >= 0


def stuck_npus(files: list[Path], groups_file: Path, *, ignore_ctrl: bool = False) -> set[int]:
    """Run files under the issue rules of ASTRA-sim: three slots, lowest id first.

    Receives use no slot; a send completes without its receive; a broadcast is a local timer;
    any other collective completes when all members have entered it.
    """
    groups = json.loads(groups_file.read_text())
    nodes = [{node.id: node for node in decode(file)[1]} for file in files]
    waits = [
        {i: set(n.data_deps) | (set() if ignore_ctrl else set(n.ctrl_deps)) for i, n in x.items()}
        for x in nodes
    ]
    busy: list[set[str]] = [set() for _ in files]
    issued: list[set[int]] = [set() for _ in files]
    done: list[set[int]] = [set() for _ in files]
    calls: dict[tuple[int, str], int] = defaultdict(int)
    entered: dict[tuple[str, int], list[tuple[int, int, Any]]] = defaultdict(list)
    sent: dict[Any, int] = defaultdict(int)
    posted: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    agenda: list[tuple[int, int, int]] = []

    def slot(node: Untyped) -> str | None:
        if node.type == schema.COMM_RECV_NODE:
            return None
        if node.type != schema.COMP_NODE:
            return "comm"
        return "cpu" if attributes(node)["is_cpu_op"] else "gpu"

    def issue(npu: int, now: int) -> None:
        for i in sorted(nodes[npu]):
            node = nodes[npu][i]
            place = slot(node)
            if i in issued[npu] or waits[npu][i] - done[npu] or place in busy[npu]:
                continue
            issued[npu].add(i)
            if place:
                busy[npu].add(place)
            found = attributes(node)
            replayed = node.type == schema.COMP_NODE or (
                node.type == schema.COMM_COLL_NODE and found["comm_type"] == 5
            )
            if replayed:
                heapq.heappush(agenda, (now + max(node.duration_micros * 1000, 1), npu, i))
            elif node.type == schema.COMM_COLL_NODE:
                key = found["pg_name"], calls[npu, found["pg_name"]]
                calls[npu, found["pg_name"]] += 1
                entered[key].append((npu, i, (found["comm_type"], found["comm_size"])))
                assert len({what for _, _, what in entered[key]}) == 1
                if len(entered[key]) == len(groups[key[0]]):
                    for member, k, _ in entered[key]:
                        heapq.heappush(agenda, (now + 1, member, k))
            else:
                key = tuple(found[f"comm_{k}"] for k in ("src", "dst", "tag", "size"))
                if node.type == schema.COMM_SEND_NODE:
                    heapq.heappush(agenda, (now + 1, npu, i))
                elif sent[key]:
                    heapq.heappush(agenda, (now, npu, i))
                else:
                    posted[key].append((npu, i))

    for npu in range(len(files)):
        issue(npu, 0)
    while agenda:
        now, npu, i = heapq.heappop(agenda)
        node = nodes[npu][i]
        done[npu].add(i)
        busy[npu].discard(slot(node) or "")
        if node.type == schema.COMM_SEND_NODE:
            key = tuple(attributes(node)[f"comm_{k}"] for k in ("src", "dst", "tag", "size"))
            sent[key] += 1
            for receiver, k in posted.pop(key, []):
                heapq.heappush(agenda, (now, receiver, k))
        issue(npu, now)
    return {npu for npu, ids in enumerate(done) if len(ids) < len(nodes[npu])}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_the_single_communication_slot_cannot_deadlock(graph: ExecutionGraph) -> None:
    with folder() as path:
        *files, groups = write_et(graph, path)
        assert stuck_npus(files, groups) == set()


def test_without_the_tagged_order_the_slot_deadlocks(tmp_path: Path) -> None:
    *files, groups = write_et(two_streams(), tmp_path)
    assert stuck_npus(files, groups, ignore_ctrl=True) == {0, 1}
    assert stuck_npus(files, groups) == set()
    # Group a is released first, so b comes after it on rank 1 too, where it is ready first.
    _, first, second = decode(files[1])[1]
    assert (attributes(first)["pg_name"], attributes(second)["pg_name"]) == ("1", "2")
    assert not first.ctrl_deps
    assert list(second.ctrl_deps) == [first.id]
    assert attributes(second)["whatif_slot"] == first.id


def test_rooted_collectives_that_would_wait_in_a_circle_are_replayed(tmp_path: Path) -> None:
    build = GraphBuilder()
    for rank in (0, 1):
        build.rank(rank)
    a, b = build.group("a", (0, 1)), build.group("b", (0, 1))
    lane = [build.lane(rank, LaneKind.STREAM, 7) for rank in (0, 1)]
    # Rank 1 leaves the reduce at once; the root only gets there after the all-reduce.
    build.collective(lane[1], Collective.REDUCE, a, 4096, root=0, dur_ns=3000)
    end1 = build.collective(lane[1], Collective.ALL_REDUCE, b, 4096, start_ns=3000, dur_ns=5000)
    build.collective(lane[0], Collective.ALL_REDUCE, b, 4096, start_ns=5000, dur_ns=3000)
    end0 = build.collective(lane[0], Collective.REDUCE, a, 4096, root=0, start_ns=8000, dur_ns=3000)
    build.step("step", {0: end0, 1: end1})
    graph = build.build()
    *files, groups = write_et(graph, tmp_path)
    assert stuck_npus(files, groups) == set()
    assert attributes(decode(files[1])[1][0])["comm_type"] == Collective.BROADCAST
    assert any("broadcast of its measured duration" in line for line in export_warnings(graph))
    assert_equal(graph, read_et(tmp_path))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 5000), st.integers(0, 900)), min_size=1
    ),
    st.integers(-5000, 5000),
)
def test_rounding_does_not_drift(parts: list[tuple[int, int, int]], base: int) -> None:
    build = GraphBuilder(model="serial")
    build.rank(0, base_ns=base)
    lane = build.lane(0, LaneKind.STREAM)
    world = build.group("world", (0,))
    now = base
    for gap, dur, tail in parts:
        node = build.collective(
            lane,
            Collective.ALL_REDUCE,
            world,
            8,
            gap_ns=gap,
            start_ns=now + gap,
            dur_ns=dur + tail,
            tail_ns=tail,
        )
        now += gap + dur + tail
    build.step("step", {0: node})
    with folder() as path:
        _, nodes = decode(write_et(build.build(), path)[0])
    origin = base // 1000 * 1000
    whole = (now - origin + 500) // 1000 - (base - origin + 500) // 1000
    assert sum(node.duration_micros for node in nodes) == whole
    ends = [node.start_time_micros + node.duration_micros for node in nodes]
    assert [node.start_time_micros for node in nodes[1:]] == ends[:-1]


def measured_pair() -> ExecutionGraph:
    """A kernel that starts inside its launch call, a gap, a tail, and a rank that starts late."""
    build = GraphBuilder(world_size=3)
    build.rank(0)
    build.rank(4, base_ns=7000, start_offset_ns=7000)
    world = build.group("world", (0, 4))
    last = {}
    for rank, base in ((0, 0), (4, 7000)):
        host = build.lane(rank, LaneKind.HOST, 1)
        stream = build.lane(rank, LaneKind.STREAM, 7)
        launch = build.node(host, Flavour.HOST, 10_000, name="launch", start_ns=base)
        kernel = build.node(
            stream,
            Flavour.COMPUTE,
            20_000,
            name="kernel",
            start_ns=base + 4000,
            after=[Dep(launch, EdgeKind.START, 4000)],
        )
        last[rank] = build.collective(
            stream,
            Collective.BARRIER,
            world,
            -1,
            start_ns=base + 27_000,
            gap_ns=3000,
            dur_ns=50_000 - base,
            tail_ns=2000 if rank == 0 else 0,
            transfer_ns=5000,
            after=[kernel],
        )
    build.step("step", last)
    return build.build()


def test_gaps_tails_lags_and_late_starts_are_explicit_for_other_tools(tmp_path: Path) -> None:
    graph = measured_pair()
    files = write_et(graph, tmp_path)

    def view(npu: int) -> list[tuple[str, int, int, list[int]]]:
        return [
            (node.name, node.start_time_micros, node.duration_micros, list(node.data_deps))
            for node in decode(files[npu])[1]
        ]

    assert view(0) == [
        ("launch", 0, 10, []),
        ("gap: kernel", 0, 4, []),  # the lag, after what the launch itself waits for
        ("kernel", 4, 20, [2]),
        ("gap: barrier", 24, 3, [3]),
        ("barrier", 27, 48, [4]),
        ("tail: barrier", 75, 2, [5]),
    ]
    assert view(1)[:3] == [
        ("offset: start offset", 0, 7, []),
        ("launch", 7, 10, [1]),
        ("gap: kernel", 7, 4, [1]),
    ]
    launch, _, kernel, _, barrier, _ = (attributes(node) for node in decode(files[0])[1])
    assert launch["is_cpu_op"]
    assert not kernel["is_cpu_op"]
    assert (barrier["comm_type"], barrier["comm_size"]) == (Collective.ALL_REDUCE, 1)
    assert barrier["whatif_coll"] == Collective.BARRIER
    assert barrier["whatif_note"] == "barrier shown as all-reduce of 1 byte"
    assert export_warnings(graph) == [
        "2 nodes: barrier shown as all-reduce of 1 byte",
        "the job has 3 ranks and these files 2: other tools see a smaller job",
    ]
    assert json.loads(files[2].read_text()) == {"1": [0, 1]}
    assert_equal(graph, read_et(tmp_path))


@pytest.mark.parametrize(
    ("coll", "sizes", "shown", "size"),
    [
        (Collective.REDUCE, (600, 600, 600), Collective.REDUCE_SCATTER, 600),
        (Collective.GATHER, (600, 600, 600), Collective.ALL_GATHER, 600),
        (Collective.SCATTER, (600, 600, 600), Collective.REDUCE_SCATTER, 1800),
        (Collective.REDUCE_SCATTER_BLOCK, (600, 600, 600), Collective.REDUCE_SCATTER, 600),
        (Collective.BROADCAST, (600, 0, 0), Collective.BROADCAST, 600),
        (Collective.ALL_TO_ALL, (600, 300, 0), Collective.ALL_TO_ALL, 300),
        (Collective.ALL_REDUCE, (-1, -1, -1), Collective.ALL_REDUCE, 1),
        (Collective.ALL_GATHER, (-1, -1, -1), Collective.ALL_GATHER, 64),
        (Collective.ALL_GATHER, (8, 8, 8), Collective.ALL_GATHER, 8),
    ],
)
def test_astra_sim_sees_types_and_sizes_that_it_accepts(
    tmp_path: Path, coll: Collective, sizes: tuple[int, ...], shown: Collective, size: int
) -> None:
    build = GraphBuilder()
    for rank in range(3):
        build.rank(rank)
    world = build.group("world", range(3))
    nodes = {
        rank: build.collective(build.lane(rank, LaneKind.STREAM), coll, world, sizes[rank], root=0)
        for rank in range(3)
    }
    build.step("step", nodes)
    for file in write_et(build.build(), tmp_path)[:3]:
        found = attributes(decode(file)[1][0])
        assert (found["comm_type"], found["comm_size"]) == (shown, size)
    np.testing.assert_array_equal(read_et(tmp_path).size_bytes, sizes)


def test_members_that_no_file_has_are_not_waited_for(tmp_path: Path) -> None:
    build = GraphBuilder(world_size=2)
    build.rank(0)
    world = build.group("world", (0, 1))
    node = build.collective(build.lane(0, LaneKind.STREAM), Collective.ALL_REDUCE, world, 8)
    build.step("step", {0: node})
    graph = build.build().with_(coverage=Coverage(assumed_members=1))
    *files, groups = write_et(graph, tmp_path)
    assert decode(files[0])[1][0].type == schema.COMP_NODE
    assert json.loads(groups.read_text()) == {}
    assert "shown as computation of its measured duration" in export_warnings(graph)[0]
    assert_equal(graph, read_et(tmp_path))


def test_chakra_jsonizer_prints_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_et(measured_pair(), tmp_path)[0]
    out = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv", ["x", "--input_filename", str(file), "--output_filename", str(out)]
    )
    jsonizer.main()
    text, objects, at = out.read_text(), [], 0
    while at < len(text):
        value, at = json.JSONDecoder().raw_decode(text, at)
        objects.append(value)
    assert objects[0]["version"] == "0.0.4"
    assert [node["name"] for node in objects[1:]] == [node.name for node in decode(file)[1]]


# ------------------------------------------------------------------ refusals


def test_existing_files_are_kept_unless_overwriting(tmp_path: Path) -> None:
    write_et(measured_pair(), tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="exists already"):
        write_et(two_streams(), tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    # A set of fewer ranks leaves no file of the larger one.
    (tmp_path / "whatif.2.et").write_bytes(b"stale")
    write_et(two_streams(), tmp_path, overwrite=True)
    assert_equal(two_streams(), read_et(tmp_path))


def test_nothing_stays_behind_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    add = Checksum.add

    def fails_late(checksum: Checksum, message: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OSError("no space left on device")
        add(checksum, message)

    monkeypatch.setattr(Checksum, "add", fails_late)
    with pytest.raises(OSError, match="no space"):
        write_et(two_streams(), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    """A duration is as good as another, so only the checksum can tell.

    Where the flip makes the file one of another program or format, that is the answer.
    """
    path = write_et(measured_pair(), tmp_path)[1]
    whole = path.read_bytes()
    read_et(tmp_path)
    for at in range(0, len(whole), 11):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(bytes(damaged))
        with pytest.raises((TraceError, GraphError)) as caught:
            read_et(tmp_path)
        assert caught.value.file == str(path)
    path.write_bytes(whole)
    assert_equal(read_et(tmp_path), read_et(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"), [('{"1": [1, 0]}', "other groups"), ("{}", "other"), ("{[", "not a file")]
)
def test_a_file_of_groups_that_does_not_fit_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    groups = write_et(measured_pair(), tmp_path)[-1]
    assert json.loads(groups.read_text()) == {"1": [0, 1]}
    groups.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        read_et(tmp_path)
    assert caught.value.file == str(groups)
    groups.unlink()
    read_et(tmp_path)


def test_inconsistent_graphs_are_not_written(tmp_path: Path) -> None:
    graph = measured_pair()
    with pytest.raises(GraphError, match="tail of 2000 ns is longer") as caught:
        write_et(graph.with_(dur_ns=np.minimum(graph.dur_ns, 1000)), tmp_path)
    assert caught.value.rank == 0
    with pytest.raises(GraphError, match="not before it"):
        write_et(graph.with_(dep_node=graph.dep_node[::-1].copy()), tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="not a file name"):
        write_et(graph, tmp_path, "a/b")


def test_the_slot_order_refuses_a_circle() -> None:
    build = GraphBuilder()
    for rank in (0, 1):
        build.rank(rank)
    groups = [build.group("a", (0, 1)), build.group("b", (0, 1))]
    for rank, order in ((0, groups), (1, groups[::-1])):
        lane = build.lane(rank, LaneKind.STREAM)
        for group in order:
            build.collective(lane, Collective.ALL_REDUCE, group, 8)
    with pytest.raises(GraphError, match="waits in a circle across ranks"):
        plan_export(build.build())


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    file = write_et(two_streams(), tmp_path)[1]
    whole = file.read_bytes()
    for length in range(0, len(whole), 3):
        file.write_bytes(whole[:length])
        with pytest.raises(TraceError) as caught:
            read_et(tmp_path)
        assert caught.value.file == str(file)
    packed = gzip.compress(whole)
    for length in range(2, len(packed), 7):
        file.write_bytes(packed[:length])
        with pytest.raises(TraceError, match=r"truncated gzip|empty|ends"):
            read_et(tmp_path)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second, _ = write_et(two_streams(), tmp_path)
    third = tmp_path / "whatif.2.et"

    def refused(match: str) -> None:
        with pytest.raises(TraceError, match=match):
            read_et(tmp_path)

    kept = second.read_bytes()
    second.unlink()
    refused("the file of rank 1 \\(npu 1\\) is missing")
    shutil.copy(first, third)
    refused("the file of npu 1 is missing")
    third.unlink()
    shutil.copy(first, second)
    refused("holds npu 0 \\(rank 0\\), not the npu of its name")
    second.write_bytes(kept)
    first.rename(third)
    refused("the file of npu 0 is missing")
    third.rename(first)
    twin = tmp_path / "whatif.1.et.gz"
    twin.write_bytes(gzip.compress(kept))
    refused("npu 1 is given twice")
    twin.unlink()
    write_et(measured_pair(), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "whatif.1.et", second)
    refused("is of another conversion than whatif.0.et")
    write_foreign(tmp_path, [[foreign("x")]], prefix="foreign")
    shutil.copy(tmp_path / "foreign.0.et", second)
    with pytest.raises(TraceError, match=r"was not written by whatif, unlike whatif\.0\.et"):
        read_et(tmp_path / "whatif")


@pytest.mark.parametrize(
    "content", [b"", b'{"traceEvents": []}', b"\xff" * 64, b"PK\x03\x04" + b"x" * 40, b"\x08\x01"]
)
def test_what_is_no_chakra_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.0.et").write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_et(tmp_path)
    assert caught.value.file == str(tmp_path / "x.0.et")


def test_a_place_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no Chakra files"):
        read_et(tmp_path)
    with pytest.raises(TraceError, match="no such directory"):
        read_et(tmp_path / "nowhere")


# ------------------------------------------------------------------ files by others


def foreign(name: str, kind: int = schema.COMP_NODE, **values: Untyped) -> Untyped:
    """Node as other tools write them; attributes of the right type by their Python type."""
    node = schema.Node(
        id=values.pop("id", 0),
        name=name,
        type=kind,
        duration_micros=values.pop("duration", 0),
        data_deps=values.pop("data", []),
        ctrl_deps=values.pop("ctrl", []),
    )
    for key, value in values.items():
        fieldname = {bool: "bool_val", str: "string_val"}.get(type(value), "int64_val")
        node.attr.add(name=key, **{fieldname: value})
    return node


def write_foreign(directory: Path, ranks: list[list[Any]], prefix: str = "job") -> Path:
    for npu, nodes in enumerate(ranks):
        with (directory / f"{prefix}.{npu}.et").open("wb") as file:
            encodeMessage(file, schema.GlobalMetadata())
            for node in nodes:
                encodeMessage(file, node)
    return directory


def test_files_by_others_become_a_graph(tmp_path: Path) -> None:
    all_reduce = {"comm_type": 0, "comm_size": 4096, "id": 2, "data": [1], "duration": 5}
    ranks = [
        [
            foreign("late", id=3, data=[2], ctrl=[1], duration=4),
            foreign("early", id=1, duration=10 + npu),
            foreign("reduce", COLL, **all_reduce),
            foreign("cpu", id=4, is_cpu_op=True, duration=2),
        ]
        for npu in (0, 1)
    ]
    # The other dialect: uint64 sizes and int32 flags.
    ranks[1][2].attr[1].uint64_val = 4096
    ranks[1][3].attr[0].int32_val = 1
    graph = read_et(write_foreign(tmp_path, ranks))
    validate(graph)
    assert [graph.names[i] for i in graph.name[:4]] == ["early", "reduce", "late", "cpu"]
    assert graph.start_ns.tolist() == [0, 10_000, 15_000, 0, 0, 11_000, 16_000, 0]
    assert graph.dep_node.tolist() == [0, 1, 0, 4, 5, 4]
    assert graph.flavour.tolist() == 2 * [
        Flavour.COMPUTE,
        Flavour.COMM,
        Flavour.COMPUTE,
        Flavour.HOST,
    ]
    assert graph.size_bytes[[1, 5]].tolist() == [4096, 4096]
    assert graph.instance.tolist() == [-1, 0, -1, -1, -1, 0, -1, -1]
    assert (graph.transfer_ns == -1).all()
    assert graph.groups[0].ranks == (0, 1)
    assert graph.steps.completion_ns.tolist() == [20_000]
    assert "no measured times, steps or lanes" in graph.coverage.warnings[0]
    (tmp_path / "ours").mkdir()
    write_et(graph, tmp_path / "ours")
    assert_equal(graph, read_et(tmp_path / "ours"))


def test_groups_of_files_by_others_come_from_the_table_or_from_use(tmp_path: Path) -> None:
    def nodes(group: str) -> list[Any]:
        return [foreign("c", COLL, comm_type=0, comm_size=8, pg_name=group)]

    write_foreign(tmp_path, [nodes("5"), nodes("5"), [foreign("alone")]])
    graph = read_et(tmp_path)
    assert graph.groups[0].ranks == (0, 1)
    assert graph.coverage.inferred[0].evidence == "the ranks whose nodes name the group"
    table = tmp_path / "comm_group.json"
    table.write_text('{"5": [1, 0]}')
    assert read_et(tmp_path).groups[0].ranks == (1, 0)
    table.write_text('{"5": [0, 1, 2]}')
    with pytest.raises(GraphError, match="npu 0 has 1, npu 1 has 1, npu 2 has 0"):
        read_et(tmp_path)
    table.write_text('{"5": [0, 2]}')
    with pytest.raises(GraphError, match="of which it is no member") as caught:
        read_et(tmp_path)
    assert caught.value.rank == 1
    table.write_text('["nonsense"]')
    with pytest.raises(TraceError, match="not a file of communicator groups"):
        read_et(tmp_path)


def send(to: int, **values: Untyped) -> Untyped:
    return foreign("s", SEND, **{"comm_dst": to, "comm_tag": 1, "comm_size": 8} | values)


def receive(source: int, **values: Untyped) -> Untyped:
    return foreign("r", RECV, **{"comm_src": source, "comm_tag": 1, "comm_size": 8} | values)


def coll(**values: Untyped) -> Untyped:
    return foreign("c", COLL, **{"comm_type": 0, "comm_size": 8} | values)


@pytest.mark.parametrize(
    ("ranks", "match"),
    [
        (
            [[foreign("a", id=1, data=[2]), foreign("b", id=2, ctrl=[1])]],
            r"cycle: node . \([ab]\) -> node . \([ab]\) -> node",
        ),
        ([[foreign("a", id=1, data=[1])]], r"cycle: node 1 \(a\) -> node 1"),
        ([[foreign("a", id=1, data=[7])]], "depends on node 7"),
        ([[foreign("a", id=1), foreign("b", id=1)]], "id 1 is given twice"),
        ([[foreign("a", 42)]], "unknown type 42"),
        ([[coll()], [foreign("a")]], "different numbers of collectives: npu 0 has 1, npu 1 has 0"),
        ([[coll()], [coll(comm_type=6)]], "is all-to-all here and all-reduce on npu 0"),
        ([[coll()], [coll(comm_size=9)]], "another number of bytes"),
        ([[foreign("c", COLL, comm_size=8)]], "comm_type None is none of the schema's"),
        ([[send(1)], [foreign("a")]], "sends 1 messages of 8 bytes with tag 1 to npu 1"),
        ([[send(1)], [receive(0, comm_size=9)]], "which receives"),
        ([[send(0)]], "comm_dst 0"),
        ([[send(1)]], "comm_dst 1, comm_src None on npu 0 of 1"),
        (
            # Two groups in opposite order on the two ranks.
            [
                [coll(id=1, pg_name="1"), coll(id=2, data=[1], pg_name="2")],
                [coll(id=1, pg_name="2"), coll(id=2, data=[1], pg_name="1")],
            ],
            "circle",
        ),
        (
            [
                [receive(1, id=1), send(1, id=2, data=[1])],
                [receive(0, id=1), send(0, id=2, data=[1])],
            ],
            "circle",
        ),
    ],
)  # fmt: skip
def test_what_would_hang_or_lie_is_refused_by_name(
    tmp_path: Path, ranks: list[list[Any]], match: str
) -> None:
    with pytest.raises((GraphError, TraceError), match=match):
        read_et(write_foreign(tmp_path, ranks))


def test_a_ring_of_sends_is_no_circle(tmp_path: Path) -> None:
    ranks = [
        [
            send((i + 1) % 3, id=1),
            receive((i - 1) % 3, id=2, data=[1]),
            foreign("x", id=3, data=[2]),
        ]
        for i in range(3)
    ]
    graph = read_et(write_foreign(tmp_path, ranks))
    assert graph.eager.tolist() == [True, False, False] * 3
    assert graph.coverage.assumed == ["sends complete without their receive, as in ASTRA-sim"]


def test_what_files_by_others_leave_open_is_reported(tmp_path: Path) -> None:
    nodes = [
        foreign("launch", COLL, id=1, is_cpu_op=True, ctrl=[99]),
        foreign("load", schema.MEM_LOAD_NODE, id=2, tensor_size=8),
        foreign("roofline", id=3, num_ops=5),
        foreign("meta", schema.METADATA_NODE, id=4, duration=9),
        foreign("b", COLL, id=5, comm_type=5),
    ]
    graph = read_et(write_foreign(tmp_path, [nodes]))
    assert graph.flavour.tolist() == [
        Flavour.HOST,
        Flavour.COPY,
        Flavour.COMPUTE,
        Flavour.GAP,
        Flavour.COMM,
    ]
    assert graph.dur_ns.tolist() == [0] * 5
    assert graph.coverage.bytes_unknown_nodes == 1
    assert graph.coverage.dropped[0].what == "ctrl_deps"
    remarks = " ".join(graph.coverage.warnings)
    for part in ("no root in Chakra", "calls that launch", "tensor_size", "num_ops", "metadata"):
        assert part in remarks


def test_the_astra_sim_micro_traces_are_read(shared_data: Path) -> None:
    sets = sorted((shared_data / "chakra" / "astrasim_micro").iterdir())
    assert len(sets) == 8
    for directory in sets:
        graph = read_et(directory)
        name, npus = directory.name.rsplit("_", 1)
        assert graph.num_ranks == graph.num_nodes == int(npus)
        assert Collective(int(graph.coll[0])).label == name.replace("_", "-")
        assert (graph.size_bytes == 1 << 20).all()


def test_a_collective_of_sends_and_receives_is_read(shared_data: Path) -> None:
    graph = read_et(shared_data / "chakra" / "astrasim_custom_ring_ar_8")
    assert np.bincount(graph.kind).tolist() == [8 * 7, 0, 8 * 14, 8 * 14]
    assert graph.coverage.bytes_known == 8 * 28 * 131_072


def test_a_real_trace_converted_by_others_has_the_compute_time_that_astra_sim_prints(
    shared_data: Path,
) -> None:
    graph = read_et(shared_data / "chakra" / "ericding_real_2gpu")
    assert graph.num_nodes == 2 * 1634
    assert [group.name for group in graph.groups] == ["1", "2"]
    assert (graph.size_bytes[graph.kind == Kind.COMM_COLL] == 4 << 30).all()
    compute = [
        int(graph.dur_ns[(graph.rank_index == rank) & (graph.flavour == Flavour.COMPUTE)].sum())
        for rank in (0, 1)
    ]
    # ASTRA-sim: finish minus exposed communication (README of the data).
    assert compute == [105_775_266 - 1_634_266, 105_836_266 - 1_778_266]
