"""Benchmark files as they occur: each value lands in its row, in our units, or is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.base.errors import TraceError
from whatif.calibration.tables import (
    Table,
    TableRow,
    alternate_sizes,
    read_nccl_log,
    read_tables,
)
from whatif.graph.columns import Collective

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SETTINGS = "# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20"
OLD_HEADER = """\
#                                           out-of-place                  in-place
#       size  count  type   redop   time   algbw   busbw  error   time   algbw   busbw  error
#        (B)    (elements)          (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)
"""
HEADER = """\
#                                             out-of-place                    in-place
#       size  count  type  redop  root   time   algbw   busbw #wrong   time   algbw   busbw #wrong
#        (B)    (elements)               (us)  (GB/s)  (GB/s)          (us)  (GB/s)  (GB/s)
"""


def devices(ranks: int, nodes: int = 1, name: str = "NVIDIA H100 80GB HBM3") -> str:
    """List the ranks of a run, spread evenly over its hosts."""
    return "# Using devices\n" + "".join(
        f"#  Rank {rank:2d} Group  0 Pid {4000 + rank} on node-{rank * nodes // ranks} device "
        f"{rank % 8:2d} [0000:1b:00] {name}\n"
        for rank in range(ranks)
    )


def run(
    rows: str, ranks: int = 4, nodes: int = 1, program: str = "all_reduce", header: str = HEADER
) -> str:
    """Write what one run prints."""
    return (
        f"# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902\n"
        f"# Collective test starting: {program}_perf\n{SETTINGS}\n#\n{devices(ranks, nodes)}#\n"
        f"{header}{rows}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.0\n#\n"
    )


REDUCED = "  1048576  262144  float  sum  -1   70.0  14.9  22.4  0   72.0  14.5  21.8  0\n"


@pytest.fixture
def log(tmp_path: Path) -> Any:  # a function that writes text into a file
    def write(text: str, name: str = "run.log") -> Path:
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def error_of(file: Path, **given: Any) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read_tables([file], **given)
    assert caught.value.file == str(file)
    return caught.value


def test_both_times_are_averaged_and_the_ranks_and_hosts_counted(log: Any) -> None:
    table = read_nccl_log(log(run(REDUCED, ranks=4, nodes=2)))
    assert table == Table(
        (
            TableRow(
                machine="NVIDIA H100 80GB HBM3",
                collective=Collective.ALL_REDUCE,
                ranks=4,
                nodes=2,
                size_bytes=1 << 20,
                time_ns=71_000.0,
                samples=2,
                element="float",
            ),
        ),
        {},
    )


@pytest.mark.parametrize(
    ("program", "count", "redop", "root", "expected", "size_bytes"),
    [
        ("all_reduce", 262144, "sum", "-1", Collective.ALL_REDUCE, 1 << 20),
        ("broadcast", 262144, "none", "0", Collective.BROADCAST, 1 << 20),
        ("reduce", 262144, "sum", "0", Collective.REDUCE, 1 << 20),
        ("sendrecv", 262144, "sum", "-1", Collective.SEND_RECV, 1 << 20),
        ("reduce_scatter", 65536, "sum", "-1", Collective.REDUCE_SCATTER, 1 << 20),
        ("alltoall", 65536, "none", "-1", Collective.ALL_TO_ALL, 1 << 20),
        ("all_gather", 65536, "none", "-1", Collective.ALL_GATHER, 1 << 18),
        ("gather", 65536, "none", "0", Collective.GATHER, 1 << 18),
        ("scatter", 65536, "none", "0", Collective.SCATTER, 1 << 18),
    ],
)
def test_sizes_become_the_input_of_one_rank(
    log: Any,
    program: str,
    count: int,
    redop: str,
    root: str,
    expected: Collective,
    size_bytes: int,
) -> None:
    line = f" 1048576 {count} float {redop} {root} 70.0 14.9 11.2 0 72.0 14.5 11.0 N/A\n"
    (row,) = read_nccl_log(log(run(line, program=program))).rows
    assert (row.collective, row.size_bytes, row.benchmark_bytes) == (expected, size_bytes, 1 << 20)
    assert row.time_ns == 71_000.0


@pytest.mark.parametrize("tag", ["[1,0]<stdout>:", "[1,17]<stderr>: ", "0: ", "node7: ", "[0] "])
def test_tags_of_launchers_do_not_matter(log: Any, tag: str) -> None:
    plain = run(REDUCED)
    tagged = "".join(f"{tag}{line}\n" for line in plain.splitlines())
    assert read_nccl_log(log(tagged, "b.log")) == read_nccl_log(log(plain))


def test_a_tag_in_the_middle_of_a_line_is_removed(log: Any) -> None:
    text = run(REDUCED, nodes=1).replace("on node-0", "on node-[1,0]<stdout>:0", 1)
    (row,) = read_nccl_log(log(text)).rows
    assert row.nodes == 1


def test_warnings_between_and_within_rows_are_stepped_over(log: Any) -> None:
    rows = (
        "node-0:4000:4000 [0] NCCL INFO Launch mode Parallel\n"
        + REDUCED
        + "\n[2026-01-01 00:00:01] node-0:4000:4031 [0] misc/socket.cc:50 NCCL WARN retry 2 of 3\n"
        + "  2097152  524288  float  sum  -1 node-0:4000:4000 [0] NCCL WARN slow\n"
        + "  99.0  14.9  22.4  0  101.0  14.5  21.8  0\n"
        + "  4194304 1048576  float  sum  -1   200  14.9  22.4  0   200  14.5  21.8  0\n"
    )
    table = read_nccl_log(log(run(rows)))
    assert [row.size_bytes for row in table.rows] == [1 << 20, 1 << 22]
    assert table.left_out == {"rows that other output cut in two": 1}


def test_headers_of_several_versions_are_understood(log: Any) -> None:
    old = f"{SETTINGS}\n#\n{devices(8)}#\n"
    line = "  32  1  float       89.0  0.0  0.0  N/A  85.0  0.0  0.0  N/A\n"
    (row,) = read_nccl_log(log(old + OLD_HEADER + line, "nccl_alltoall.log")).rows
    assert (row.size_bytes, row.time_ns) == (32, 87_000.0)

    only_in_place = HEADER.replace("   time   algbw   busbw #wrong\n", "\n")
    line = "  1048576  262144  float  sum  -1   70.0  14.9  22.4  0\n"
    (row,) = read_nccl_log(log(run(line, header=only_in_place))).rows
    assert (row.time_ns, row.samples) == (70_000.0, 1)

    extra = " i_min i_max i_p99 i_cv%"
    each = HEADER.replace("#wrong", "#wrong" + extra, 2).replace("time", "cputime")
    each = each.replace(f"#wrong{extra}\n", f"#wrong{extra}  timestamp\n")
    line = (
        "  1048576  262144  float  sum  -1   70.0  14.9  22.4  0  60 80 79 5.0"
        "   72.0  14.5  21.8  0  61 82 80 5.5  2026-07-09 16:03:21\n"
    )
    (row,) = read_nccl_log(log(run(line, header=each))).rows
    assert (row.time_ns, row.samples) == (71_000.0, 2)


def test_several_runs_in_one_file_keep_their_own_ranks_and_collective(log: Any) -> None:
    gathered = "  1048576  131072  float  none  -1  50.0  1.0  1.0  0  50.0  1.0  1.0  0\n"
    text = run(REDUCED, ranks=4) + "\n" + run(gathered, ranks=2, nodes=2, program="all_gather")
    first, second = read_nccl_log(log(text)).rows
    assert (first.collective, first.ranks, first.nodes) == (Collective.ALL_REDUCE, 4, 1)
    assert (second.collective, second.ranks, second.nodes) == (Collective.ALL_GATHER, 2, 2)
    assert second.size_bytes == 1 << 19


def test_what_is_no_measurement_is_counted(log: Any) -> None:
    rows = (
        "  0  0  float  sum  -1   30.0  0.0  0.0  0   31.0  0.0  0.0  0\n"
        + REDUCED
        + "  2097152  524288  float  sum  -1   70.0  14.9  22.4  7   72.0  14.5  21.8  0\n"
    )
    unpriced = run(REDUCED, program="hypercube")
    failed = run("", program="broadcast")
    table = read_nccl_log(log(run(rows) + failed + unpriced))
    assert len(table) == 1
    assert table.left_out == {
        "rows that moved no data": 1,
        "rows with wrong results": 1,
        "runs without a row": 1,
        "hypercube, which has no price": 1,
    }


def test_a_failed_run_is_an_error_that_says_what_failed(log: Any) -> None:
    trouble = "node-0: Test NCCL failure common.cu:958 'unhandled system error / '"
    error = error_of(log(run("") + trouble + "\n"))
    assert trouble in str(error)
    assert "no measurements" in str(error_of(log("hello\n")))


def test_contradictions_name_the_line(log: Any) -> None:
    # 262144 floats are the whole 1 MiB: the row is of no all-gather over 4 ranks.
    text = run(REDUCED, program="all_gather")
    line = text.splitlines().index(REDUCED.rstrip()) + 1
    assert error_of(log(text)).place == f"line {line}"
    for damaged in (
        REDUCED.replace("float", "float7"),
        REDUCED.replace("70.0", "0.00"),
        REDUCED.replace("70.0", "N/A").replace("72.0", "N/A"),
        REDUCED.replace("70.0", "??"),
    ):
        assert error_of(log(run(damaged))).place == f"line {line}"


def test_a_run_without_its_ranks_or_header_is_refused(log: Any) -> None:
    assert "ranks" in str(error_of(log(run(REDUCED).replace("#  Rank", "#  Rang"))))
    assert "header" in str(error_of(log(run(REDUCED).replace("size ", "length "))))


def test_communicators_side_by_side_are_refused(log: Any) -> None:
    text = run(REDUCED).replace("Rank  3 Group  0", "Rank  3 Group  1")
    assert "several communicators" in str(error_of(log(text)))


def test_the_collective_comes_from_the_log_then_the_name_then_the_caller(log: Any) -> None:
    silent = f"{SETTINGS}\n{devices(4)}{HEADER}{REDUCED}"
    for name, collective in (
        ("nccl_allreduce.log", Collective.ALL_REDUCE),
        ("all-reduce_4.txt", Collective.ALL_REDUCE),
        ("Reduce.log", Collective.REDUCE),
        ("send_recv.log", Collective.SEND_RECV),
    ):
        (row,) = read_nccl_log(log(silent, name), collective=Collective.BROADCAST).rows
        assert row.collective == collective
    (row,) = read_nccl_log(log(silent), collective=Collective.BROADCAST, machine="mine").rows
    assert (row.collective, row.machine) == (Collective.BROADCAST, "mine")
    assert "which collective" in str(error_of(log(silent)))
    (row,) = read_nccl_log(log(run(REDUCED), "broadcast.log")).rows
    assert row.collective == Collective.ALL_REDUCE


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("a.log", "a.csv", "a.parquet"):
        error_of(tmp_path / name)


RECORD = {
    "device": "NVIDIA A100-SXM4-80GB",
    "op_name": "all_gather",
    "nccl_dtype": "half",
    "num_gpus": 8,
    "message_size": 512,
    "latency": 0.015,
}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_are_read_from_csv_and_parquet(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"nccl_perf.{suffix}"
    frame = pd.DataFrame([RECORD, {**RECORD, "op_name": "alltoall", "nccl_dtype": "int8"}])
    frame.to_csv(file, index=False) if suffix == "csv" else frame.to_parquet(file)
    gathered, exchanged = read_tables([file]).rows
    assert (gathered.size_bytes, gathered.benchmark_bytes) == (128, 1024)
    assert (exchanged.collective, exchanged.size_bytes) == (Collective.ALL_TO_ALL, 512)
    assert gathered.time_ns == pytest.approx(15_000)
    assert (gathered.machine, gathered.nodes, gathered.samples) == (RECORD["device"], None, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("op_name", "all_gatherer"),
        ("nccl_dtype", "quarter"),
        ("num_gpus", 0),
        ("message_size", -1),
        ("latency", "soon"),
        ("latency", "nan"),
    ],
)
def test_a_bad_value_names_its_row(tmp_path: Path, field: str, value: Any) -> None:
    file = tmp_path / "t.csv"
    pd.DataFrame([RECORD, {**RECORD, field: value}]).to_csv(file, index=False)
    assert error_of(file).place == "row 2"


def test_a_table_without_the_columns_or_rows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    pd.DataFrame([RECORD]).drop(columns="latency").to_csv(file, index=False)
    assert "lacks the columns latency" in str(error_of(file))
    pd.DataFrame([RECORD]).head(0).to_csv(file, index=False)
    assert "no rows" in str(error_of(file))
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really")
    assert "damaged" in str(error_of(tmp_path / "t.parquet"))


@given(
    st.lists(
        st.tuples(st.sampled_from([2, 8]), st.sampled_from([None, 1, 2]), st.integers(1, 9)),
        max_size=40,
    )
)
def test_alternate_sizes_share_no_size(kinds: Sequence[tuple[int, int | None, int]]) -> None:
    rows = [
        TableRow(
            machine="m",
            collective=Collective.ALL_REDUCE,
            ranks=ranks,
            nodes=nodes,
            size_bytes=size,
            time_ns=1.0,
            samples=1,
            element=element,
        )
        for ranks, nodes, size in kinds
        for element in ("half", "int8")
    ]
    fit, held_out = alternate_sizes(rows)
    assert sorted(map(repr, fit + held_out)) == sorted(map(repr, rows))
    sizes = [{(r.ranks, r.nodes, r.size_bytes) for r in part} for part in (fit, held_out)]
    assert not sizes[0] & sizes[1]
    for ranks, nodes in {(r.ranks, r.nodes) for r in rows}:
        of_kind = sorted({r.size_bytes for r in rows if (r.ranks, r.nodes) == (ranks, nodes)})
        assert {size for n, k, size in sizes[0] if (n, k) == (ranks, nodes)} == set(of_kind[::2])


def test_the_published_logs_are_read_whole(shared_data: Path) -> None:
    folder = shared_data / "collectives"
    a100 = read_tables(sorted((folder / "a100_40g_x8_superbench").glob("*.log")))
    assert len(a100) == 3 * 32 + 3 * 29
    assert a100.left_out == {"rows that moved no data": 3 * 2 + 3 * 5}
    assert {row.ranks for row in a100.rows} == {8}

    echo = read_tables(
        sorted((folder / "a100_40g_1to128_echo").glob("*.log")), collective=Collective.ALL_REDUCE
    )
    shapes = sorted({(row.ranks, row.nodes) for row in echo.rows})
    assert shapes == [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4), (64, 8), (128, 16)]
    assert echo.left_out == {}

    h100 = read_tables(sorted((folder / "h100_clusters").glob("*.log")))
    assert len(h100) == 4 * 5 * 10
    assert {(row.ranks, row.nodes) for row in h100.rows} == {(10, 10), (40, 10), (4, 1), (8, 1)}


def test_the_published_tables_count_sizes_as_nccl_tests_does(shared_data: Path) -> None:
    folder = shared_data / "collectives"
    table = read_tables(sorted((folder / "nccl_perf_parquet").glob("*.parquet")))
    assert len(table) == 504 + 504 + 336
    # Large messages take as long as in the log of another machine of the same kind, and the
    # links do not carry more than they can.
    log = read_tables(sorted((folder / "a100_40g_x8_superbench").glob("*.log")))
    for coll in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        times = {
            (row.machine, row.benchmark_bytes): row.time_ns
            for row in (*table.rows, *log.rows)
            if row.collective == coll and row.ranks == 8 and row.element in {"half", "float"}
        }
        size = 512 << 20
        assert times["NVIDIA A100-SXM4-80GB", size] == pytest.approx(
            times["A100-SXM4-40GB", size], rel=0.1
        )
    for row in table.rows:
        if row.collective == Collective.ALL_GATHER and "A100" in row.machine:
            received = row.size_bytes * (row.ranks - 1)
            assert received / row.time_ns < 300
