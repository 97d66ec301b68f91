"""Which files of a directory are read as a job's traces, and as which rank."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from whatif.base.errors import TraceError
from whatif.converters.kineto.discover import discover
from whatif.converters.kineto.job import rank_in_name, read_job

if TYPE_CHECKING:
    from pathlib import Path


def kineto(
    path: Path, rank: int | None = None, args: dict[str, Any] | None = None, **top: object
) -> Path:
    """Write a trace with one event; its rank, if given, is in distributedInfo."""
    event = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1}
    event |= {"ts": 1.5, "dur": 2, "args": args or {}}
    document: dict[str, object] = {"schemaVersion": 1, "traceEvents": [event], **top}
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 4}
    text = json.dumps(document).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


EXECUTION_TRACE = b'{"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": [{"id": 1}]}'


def test_files_are_judged_by_their_content(tmp_path: Path) -> None:
    traces = [kineto(tmp_path / name) for name in ("a.txt", "rank9.json", "rank10.json.gz")]
    bare = tmp_path / "zz_legacy.json"
    bare.write_text('[{"name": "aten::add", "args": {"a": [1]}, "ph": "X", "ts": 1, "dur": 1}]')
    others = {
        ".hidden.json": (b"{}", "hidden"),
        "rank3.json.tmp": (b'{"traceEvents": [', "temporary"),
        "et_rank0.json": (EXECUTION_TRACE, "ExecutionTrace"),
        "linked_et_rank0.json.gz": (gzip.compress(EXECUTION_TRACE), "ExecutionTrace"),
        "truth_rank0.json": (b'{"job": "ddp", "step_ms": [1, 2]}', "JSON without"),
        "rank0_memory.json": (b"[[1, 2], [3, 4]]", "table"),
        "memory.pickle": (b"\x80\x04\x95", "pickle"),
        "train.log": (b"step 1 of 10\n", "not JSON"),
        "rank4.json": (b"", "empty"),
        "rank5.json": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "LFS"),
        "tpu.trace.json": (b'{"traceEvents":[{"args":{"name":"/device:TPU:0"}}]}', "XLA"),
    }
    for name, (content, _) in others.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "plots").mkdir()
    found = discover(tmp_path)
    assert found.traces == [*traces, bare]
    reasons = {path.name: reason for path, reason in found.ignored}
    assert set(reasons) == {*others, "plots"}
    for name, (_, word) in others.items():
        assert word in reasons[name]


def test_directories_are_searched_only_where_the_top_has_no_trace(tmp_path: Path) -> None:
    inner = [kineto(tmp_path / f"rank_{rank}" / "trace.json", rank) for rank in (0, 1)]
    (tmp_path / "notes.md").write_text("# notes")
    (tmp_path / "rank_0" / "deeper").mkdir()
    kineto(tmp_path / "rank_0" / "deeper" / "trace.json", 0)
    assert discover(tmp_path).traces == inner
    top = kineto(tmp_path / "rank0.json", 0)
    assert discover(tmp_path).traces == [top]


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "anything"
    path.write_bytes(b"")
    assert discover(path).traces == [path]


def test_nothing_to_read_is_an_error_that_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file or directory"):
        discover(tmp_path / "none")
    with pytest.raises(TraceError, match="no Kineto trace in this directory: it is empty"):
        discover(tmp_path)
    (tmp_path / "et_rank0.json").write_bytes(EXECUTION_TRACE)
    with pytest.raises(TraceError, match=r"et_rank0.json is a PyTorch ExecutionTrace"):
        discover(tmp_path)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0_trace.json", 0),
        ("rank-7.json.gz", 7),
        ("rank-3.20240131-2101.5121.pt.trace.json.gz", 3),
        ("trace_rank_12.json", 12),
        ("kineto.rank_0_step_4.json", 0),
        ("kineto_rank5.json.gz", 5),
        ("kineto_11.json", 11),
        ("worker3.1694128201545.pt.trace.json", 3),
        ("worker0_step_12.1694128201545.pt.trace.json", 0),
        ("bs_32_rank6.json.gz", 6),
        ("dp0_pp0_tp0_dcp0_ep0_rank2.1767189.pt.trace.json.gz", 2),
        ("1767189312.5-TP-3.trace.json.gz", 3),
        ("exp[model]-rank[4].1778305199219479945.pt.trace.json.gz", 4),
        ("node7_5121.1706850123449.pt.trace.json.gz", None),
        ("libkineto_activities_1074.json", None),
        ("trace_2024_01_31.json", None),
        ("step_3.json", None),
        ("bs_32.json", None),
        ("1767189312.5-TP-3-DP-1.trace.json.gz", None),
        ("crank3.json", None),
    ],
)
def test_only_a_rank_in_a_name_is_taken_for_one(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_ranks_come_sorted_whatever_the_files_are_called(tmp_path: Path) -> None:
    for name, rank in (("rank1.json", 2), ("b.json", 0), ("c.json.gz", 1)):
        kineto(tmp_path / name, rank)
    traces = read_job(discover(tmp_path))
    assert [trace.rank for trace in traces] == [0, 1, 2]
    assert [trace.path.name for trace in traces] == ["b.json", "c.json.gz", "rank1.json"]
    assert [trace.world_size for trace in traces] == [4, 4, 4]
    assert [trace.warnings for trace in traces] == [[], [], []]


def test_the_rank_may_come_from_communication_on_the_default_group(tmp_path: Path) -> None:
    group = {"Process Group Name": "0", "Process Group Description": "default_pg"}
    own = {"Collective name": "allreduce", "Rank": 5, "Group size": 8, **group}
    trace = read_job(discover(kineto(tmp_path / "rank1.json", args=own)))[0]
    assert (trace.rank, trace.world_size) == (5, 8)
    assert any("default process group" in warning for warning in trace.warnings)
    # Here "Rank" is the root, or counts within another group.
    for changed in ({"Collective name": "broadcast"}, {"Process Group Name": "3"}):
        args = {**own, "Process Group Description": "", **changed}
        assert read_job(discover(kineto(tmp_path / "rank1.json", args=args)))[0].rank == 1


def test_the_rank_may_come_from_the_name_of_file_or_directory(tmp_path: Path) -> None:
    kineto(tmp_path / "rank1" / "trace.json")
    kineto(tmp_path / "rank0" / "trace.json")
    traces = read_job(discover(tmp_path))
    assert [trace.rank for trace in traces] == [0, 1]
    assert all("name" in trace.warnings[0] for trace in traces)


def test_a_single_trace_of_unknown_rank_is_rank_0_with_a_warning(tmp_path: Path) -> None:
    trace = read_job(discover(kineto(tmp_path / "trace.json")))[0]
    assert trace.rank == 0
    assert any("rank 0" in warning for warning in trace.warnings)


def test_several_traces_of_unknown_rank_are_refused(tmp_path: Path) -> None:
    kineto(tmp_path / "rank0.json")
    unknown = kineto(tmp_path / "trace.json")
    with pytest.raises(TraceError, match="cannot be told") as refusal:
        read_job(discover(tmp_path))
    assert refusal.value.file == str(unknown)


def test_a_rank_given_twice_is_refused_naming_both_files(tmp_path: Path) -> None:
    first, second = kineto(tmp_path / "a.json", 3), kineto(tmp_path / "b.json", 3)
    with pytest.raises(TraceError) as refusal:
        read_job(discover(tmp_path))
    assert refusal.value.rank == 3
    assert str(first) in str(refusal.value)
    assert str(second) in str(refusal.value)


def test_parallel_reading_gives_the_same_and_reports_progress(tmp_path: Path) -> None:
    sizes = [kineto(tmp_path / f"rank{rank}.json", rank).stat().st_size for rank in (0, 1)]
    calls: list[tuple[int, int]] = []
    traces = read_job(discover(tmp_path), processes=2, progress=lambda *call: calls.append(call))
    alone = read_job(discover(tmp_path), processes=1)
    assert [trace.rank for trace in traces] == [0, 1]
    for one, other in zip(traces, alone, strict=True):
        assert one.path == other.path
        assert one.start_ns.tolist() == other.start_ns.tolist() == [1500]
    assert calls[-1] == (sum(sizes), sum(sizes))
    calls.clear()
    read_job(discover(tmp_path), progress=lambda *call: calls.append(call))
    assert [done for done, _ in calls] == [sizes[0], sum(sizes)]


def test_an_error_in_a_reading_process_names_the_file(tmp_path: Path) -> None:
    kineto(tmp_path / "rank0.json", 0)
    bad = kineto(tmp_path / "rank1.json", 1)
    bad.write_bytes(bad.read_bytes()[:-40])
    with pytest.raises(TraceError, match="truncated") as refusal:
        read_job(discover(tmp_path), processes=2)
    assert refusal.value.file == str(bad)


@pytest.mark.parametrize(
    ("job", "ranks", "ignored"),
    [
        ("traces/gpu/megatron_tp8_a100x8", 8, 8),
        ("traces/gpu/dlrm_v100x8", 8, 16),
        ("lab/tp-w2/1000mbit", 2, 2),
    ],
)
def test_real_jobs_are_found_among_their_other_files(
    shared_data: Path, job: str, ranks: int, ignored: int
) -> None:
    found = discover(shared_data / job)
    assert len(found.traces) == ranks
    assert len(found.ignored) == ignored
    traces = read_job(discover(shared_data / job))
    assert [trace.rank for trace in traces] == list(range(ranks))
    assert {trace.world_size for trace in traces} == {ranks}
