"""Small Kineto files with right answers that can be worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from whatif.base.errors import GraphError, TraceError, UsageError
from whatif.converters.kineto.convert import convert_kineto
from whatif.graph.columns import (
    Collective,
    EdgeKind,
    ExecutionGraph,
    Flavour,
    Kind,
    collect_instances,
)
from whatif.simulator.run import simulate

from .kineto_file import KinetoFile, comm

if TYPE_CHECKING:
    from pathlib import Path

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def nodes_named(graph: ExecutionGraph, part: str) -> list[int]:
    wanted = {i for i, name in enumerate(graph.names) if part in name}
    return [int(n) for n in np.flatnonzero(np.isin(graph.name, list(wanted)))]


def edges(graph: ExecutionGraph, node: int) -> list[int]:
    return graph.dep_node[graph.dep_ptr[node] : graph.dep_ptr[node + 1]].tolist()


def overlap_job(folder: Path, *, ids: tuple[int, int] = (10, 10)) -> Path:
    """All-reduce 10-110 us beside a GEMM 20-110 us on another stream, on two ranks."""
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 120)
        meta = comm("allreduce", 250_000, "0", [0, 1])
        # External ids are counters of each process: they agree across ranks only by chance.
        meta["External id"] = ids[rank]
        file.kernel(NCCL, 10, 100, stream=20, launched=2, call="cudaLaunchKernelExC", **meta)
        file.kernel("gemm", 20, 90, stream=7, launched=6)
        file.row("gpu_user_annotation", "nccl:all_reduce", 9.9, 100.3, pid=0, tid=20)
        file.write(folder)
    return folder


@pytest.mark.parametrize("model", ["host", "stream"])
def test_overlapping_streams_stay_parallel(tmp_path: Path, model: str) -> None:
    graph = convert_kineto(overlap_job(tmp_path), model=model)  # type: ignore[arg-type]
    gemm, reduce = nodes_named(graph, "gemm"), nodes_named(graph, "AllReduce")
    assert not set(edges(graph, gemm[0])) & set(reduce)
    assert not set(edges(graph, reduce[0])) & set(gemm)
    assert simulate(graph, measured=True).step_ns == 120_000


def test_external_ids_that_differ_between_ranks_do_not_matter(tmp_path: Path) -> None:
    graph = convert_kineto(overlap_job(tmp_path, ids=(10, 4711)))
    instances = collect_instances(graph)
    assert len(instances) == 1
    assert instances.coll[0] == Collective.ALL_REDUCE
    assert instances.size_bytes[0] == 1_000_000
    assert graph.coverage.collectives_matched == 2


def test_annotations_are_never_nodes(tmp_path: Path) -> None:
    graph = convert_kineto(overlap_job(tmp_path))
    comm_nodes = np.flatnonzero(graph.kind == Kind.COMM_COLL)
    assert len(comm_nodes) == 2
    assert not nodes_named(graph, "nccl:all_reduce")


def test_the_serial_model_destroys_overlap_and_says_so(tmp_path: Path) -> None:
    graph = convert_kineto(overlap_job(tmp_path), model="serial")
    assert simulate(graph, measured=True).step_ns == 200_000  # 10 + 100 + 90
    assert any("moved after" in text for text in graph.coverage.warnings)
    assert any(
        "timeline, 0.200 ms, against 0.120 ms in the trace" in text
        for text in graph.coverage.warnings
    )
    stream = convert_kineto(tmp_path, model="stream")
    assert not any("serial" in text for text in stream.coverage.warnings)


def test_waiting_is_not_transfer(tmp_path: Path) -> None:
    """Rank 1 arrives 80 us late: of rank 0's 100 us, 20 are transfer."""
    for rank, start in ((0, 10), (1, 90)):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 120)
        meta = comm("allreduce", 1000, "0", [0, 1])
        file.kernel(NCCL, start, 110 - start, stream=20, launched=2 + start - 10, **meta)
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    nodes = np.flatnonzero(graph.kind == Kind.COMM_COLL)
    assert graph.transfer_ns[nodes].tolist() == [20_000, 20_000]
    simulation = simulate(graph, measured=True)
    assert simulation.per_rank[0].wait_ns == 80_000
    assert simulation.per_rank[0].exposed_comm_ns == 20_000
    assert simulation.per_rank[1].wait_ns == 0


def test_the_slower_end_of_a_collective_is_a_tail(tmp_path: Path) -> None:
    for rank, end in ((0, 100), (1, 112)):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 90)
        file.kernel(NCCL, 10, end - 10, launched=2, **comm("allreduce", 1000, "0", [0, 1]))
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    nodes = np.flatnonzero(graph.kind == Kind.COMM_COLL)
    assert graph.transfer_ns[nodes].tolist() == [90_000, 90_000]
    assert graph.tail_ns[nodes].tolist() == [0, 12_000]
    assert graph.steps.completion_ns.tolist() == [112_000]


def test_sends_and_receives_are_matched_per_pair(tmp_path: Path) -> None:
    size = 1 << 20
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 500)
        if rank == 0:
            sent = comm("send", size, "0", [0, 1], **{"Dst Rank": 1})
            file.kernel(SENDRECV, 100, 200, stream=20, launched=90, **sent)
        else:
            got = comm("recv", size, "0", [0, 1], **{"Src Rank": 0})
            file.kernel(SENDRECV, 20, 280, stream=20, launched=10, **got)
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert sorted(graph.kind[graph.coll == Collective.SEND_RECV].tolist()) == [Kind.SEND, Kind.RECV]
    instances = collect_instances(graph)
    assert len(instances) == 1
    receive = int(np.flatnonzero(graph.kind == Kind.RECV)[0])
    assert graph.transfer_ns[receive] == 200_000  # the receiver's other 80 us are waiting
    assert graph.size_bytes[receive] == 4 * size


def test_batched_sends_and_receives_share_one_kernel(tmp_path: Path) -> None:
    """batch_isend_irecv launches one kernel outside every record_param_comms scope."""
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        peer = 1 - rank
        file.step(1, 0, 500)
        file.op(
            "record_param_comms", 10, 2, **comm("send", 1000, "0", [0, 1], **{"Dst Rank": peer})
        )
        file.op(
            "record_param_comms", 14, 2, **comm("recv", 1000, "0", [0, 1], **{"Src Rank": peer})
        )
        file.kernel(SENDRECV, 30, 50, stream=20, launched=20)
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    kinds = graph.kind[graph.coll == Collective.SEND_RECV].tolist()
    assert sorted(kinds) == [Kind.SEND, Kind.SEND, Kind.RECV, Kind.RECV]
    assert len(collect_instances(graph)) == 2
    assert simulate(graph, measured=True).step_ns == 500_000


def test_old_traces_take_type_and_size_from_the_host_events(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 100)
        inputs = ["", "7", "9382", "0", "", "[]", "[]", "2"]
        dims = {"Input Dims": [[[4, 2048]], [], [], [], [], [], [], []]}
        file.op("c10d::allreduce_", 4, 20)
        file.op("record_param_comms", 5, 18, **dims, **{"Concrete Inputs": inputs})
        file.row(
            "user_annotation", "nccl:all_reduce", 6, 16, pid=100, tid=100,
            **{"Input Dims": [[4, 2048]], "Input type": ["c10::Half"]},
        )  # fmt: skip
        file.kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL(x)", 12, 40, 24, launched=8)
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    instances = collect_instances(graph)
    assert instances.size_bytes.tolist() == [4 * 2048 * 2]
    assert graph.groups[instances.group[0]].ranks == (0, 1)
    assert any("host events" in item.evidence for item in graph.coverage.inferred)


def test_a_group_of_strided_ranks_longer_than_the_truncated_list(tmp_path: Path) -> None:
    members = list(range(0, 128, 4))
    text = str(members[:29])[:-1] + ", ..., 124]"
    file = KinetoFile(0, 128)
    file.step(1, 0, 100)
    meta = comm("allreduce", 1000, "5", members)
    meta["Process Group Ranks"] = text
    file.kernel(NCCL, 10, 50, launched=2, **meta)
    file.write(tmp_path)
    with pytest.raises(TraceError, match="not traced"):
        convert_kineto(tmp_path)
    graph = convert_kineto(tmp_path, assume_missing=True)
    assert graph.groups[0].ranks == tuple(members)
    assert graph.coverage.assumed_members == 31
    assert any("every figure rests" in text for text in graph.coverage.warnings)


def test_skewed_host_clocks_are_aligned(tmp_path: Path) -> None:
    """Rank 1's clock is 3 ms ahead; its collectives end together with rank 0's."""
    for rank, skew in ((0, 0), (1, 3000)):
        file = KinetoFile(rank, 2, host=f"node{rank}")
        file.step(1, skew, 400)
        for i, begin in enumerate((10, 110, 210)):
            late = 15 * rank * (i + 1)
            meta = comm("allreduce", 1000, "0", [0, 1])
            file.kernel(
                NCCL, skew + begin + late, 80 - late, launched=skew + begin + late - 5, **meta
            )
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert graph.start_offset_ns.tolist() == [0, 0]
    nodes = np.flatnonzero((graph.kind == Kind.COMM_COLL) & (graph.rank_index == 0))
    assert graph.transfer_ns[nodes].tolist() == [65_000, 50_000, 35_000]


def test_kernels_that_overlap_on_one_stream_start_after_a_lag(tmp_path: Path) -> None:
    """Programmatic dependent launch: the second kernel starts before the first ends."""
    file = KinetoFile(0, 1)
    file.step(1, 0, 100)
    file.kernel("first", 10, 30, launched=2)
    file.kernel("second", 38, 20, launched=4)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    (second,) = nodes_named(graph, "second")
    first = nodes_named(graph, "first")[0]
    rows = slice(graph.dep_ptr[second], graph.dep_ptr[second + 1])
    edge = graph.dep_node[rows].tolist().index(first)
    assert graph.dep_kind[rows][edge] == EdgeKind.START
    assert graph.dep_lag_ns[rows][edge] == 28_000
    assert (graph.gap_ns >= 0).all()


def test_a_row_that_overlaps_the_next_by_far_is_cut_and_counted(tmp_path: Path) -> None:
    """ROCm rows can last seconds too long."""
    file = KinetoFile(0, 1)
    file.step(1, 0, 300)
    file.kernel("too_long", 10, 5_000_000, launched=2)
    file.kernel("next", 60, 20, launched=4)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    (node,) = nodes_named(graph, "too_long")
    assert graph.dur_ns[node] == 50_000
    assert graph.steps.completion_ns.tolist() == [300_000]
    assert any("cut" in text for text in graph.coverage.warnings)


def test_a_synchronising_call_waits_only_for_the_device(tmp_path: Path) -> None:
    """The host sleeps 20..200 us in a synchronisation; of it only the wait may shrink."""
    file = KinetoFile(0, 1)
    file.step(1, 0, 260)
    file.kernel("slow", 15, 180, launched=10)
    file.call("cudaStreamSynchronize", 20, 180)
    file.kernel("after", 210, 20, launched=205)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert simulate(graph, measured=True).step_ns == 260_000
    # With kernels twice as fast: slow ends at 105, the call 5 us later, "after" follows.
    assert simulate(graph, measured=True, compute_scale=0.5).step_ns == 260_000 - 90_000


def test_backward_on_another_thread_moves_with_the_forward_pass(tmp_path: Path) -> None:
    """Main works 0..100, the autograd thread 102..200, main goes on at 205."""
    file = KinetoFile(0, 1)
    file.step(1, 0, 300)
    file.op("forward", 0, 100)
    file.op("autograd::engine::evaluate_function: MulBackward0", 102, 98, tid=200)
    file.kernel("backward", 160, 20, launched=150, tid=200)
    file.op("optimizer", 205, 95)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    # 102 us of main, 98 of the other thread, 100 of main again: all of it is host time.
    assert simulate(graph, measured=True, host_scale=0.5).step_ns == 150_000


def test_work_outside_the_chosen_steps_is_left_out_and_counted(tmp_path: Path) -> None:
    file = KinetoFile(0, 1)
    for number, begin in ((1, 0), (2, 100), (3, 200)):
        file.step(number, begin, 95)
        file.kernel(f"work{number}", begin + 20, 50, launched=begin + 10)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path, steps=["2"])
    assert graph.steps.names == ("ProfilerStep#2",)
    assert nodes_named(graph, "work2")
    assert not nodes_named(graph, "work1") + nodes_named(graph, "work3")
    assert {item.count for item in graph.coverage.dropped} == {1}
    with pytest.raises(UsageError, match="consecutive"):
        convert_kineto(tmp_path, steps=["1", "3"])
    with pytest.raises(UsageError, match="was not recorded"):
        convert_kineto(tmp_path, steps=["9"])


def test_consecutive_steps_are_one_program_with_their_own_completions(tmp_path: Path) -> None:
    """The host runs ahead: step 1's device work ends in step 2's window."""
    file = KinetoFile(0, 1)
    file.step(1, 0, 50)
    file.kernel("one", 20, 100, launched=10)
    file.step(2, 50, 50)
    file.kernel("two", 120, 100, launched=60)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert graph.steps.completion_ns.tolist() == [120_000, 220_000]
    assert simulate(graph, measured=True).step_ns == 100_000


def test_ranks_that_issue_different_collectives_are_refused_by_name(tmp_path: Path) -> None:
    for rank, elements in ((0, 1000), (1, 2000)):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 100)
        file.kernel(NCCL, 10, 50, launched=2, **comm("allreduce", elements, "0", [0, 1]))
        file.write(tmp_path)
    with pytest.raises(GraphError, match="4000 bytes on rank 0 but all-reduce of 8000") as error:
        convert_kineto(tmp_path)
    assert error.value.rank == 1
    assert error.value.place == "group '0', position 0"


def test_a_collective_without_a_partner_is_refused_by_name(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 300)
        for i in range(2 - rank):
            begin = 10 + 100 * i
            file.kernel(NCCL, begin, 50, launched=begin - 5, **comm("allreduce", 10, "0", [0, 1]))
        file.write(tmp_path)
    with pytest.raises(GraphError, match="2 collectives on rank 0 but 1 on rank 1"):
        convert_kineto(tmp_path)


def test_a_rank_that_was_not_traced_is_named(tmp_path: Path) -> None:
    file = KinetoFile(0, 4)
    file.step(1, 0, 100)
    file.kernel(NCCL, 10, 50, launched=2, **comm("allreduce", 10, "0", [0, 1, 2, 3]))
    file.write(tmp_path)
    with pytest.raises(TraceError, match=r"not traced: \[1, 2, 3\]") as raised:
        convert_kineto(tmp_path)
    assert raised.value.rank == 0
    assert raised.value.file is not None


def test_traces_of_other_kinds_beside_kineto_traces_are_named_as_left_out(tmp_path: Path) -> None:
    overlap_job(tmp_path)
    alone = convert_kineto(tmp_path)
    (tmp_path / "job.0.et").write_bytes(b"\x0a\x02ab")
    (tmp_path / "h.xplane.pb").write_bytes(b"\x0a\x20\x12\x0b/host:CPU" + b"a" * 21)
    both = convert_kineto(tmp_path)
    told = [text for text in both.coverage.warnings if text not in alone.coverage.warnings]
    assert len(told) == 1
    assert "left out: h.xplane.pb, job.0.et; only the Kineto traces count" in told[0]


def test_the_fastest_of_its_kind_gives_the_transfer_where_members_are_missing(
    tmp_path: Path,
) -> None:
    file = KinetoFile(0, 2)
    file.step(1, 0, 400)
    for begin, dur in ((10, 100), (150, 40), (250, 90)):
        meta = comm("allreduce", 10, "0", [0, 1])
        file.kernel(NCCL, begin, dur, launched=begin - 5, **meta)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path, assume_missing=True)
    nodes = np.flatnonzero(graph.kind == Kind.COMM_COLL)
    assert graph.transfer_ns[nodes].tolist() == [40_000] * 3
    assert graph.tail_ns[nodes].tolist() == [60_000, 0, 50_000]
    assert simulate(graph, measured=True).step_ns == 400_000


def test_two_groups_with_the_same_members_stay_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 300)
        file.kernel(NCCL, 10, 50, 20, launched=2, **comm("allreduce", 10, "0", [0, 1]))
        file.kernel(NCCL, 20, 50, 21, launched=4, **comm("allreduce", 20, "1", [0, 1]))
        file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert [g.name for g in graph.groups] == ["0", "1"]
    assert sorted(collect_instances(graph).size_bytes.tolist()) == [40, 80]


def test_copies_are_their_own_category(tmp_path: Path) -> None:
    file = KinetoFile(0, 1)
    file.step(1, 0, 100)
    copy = {"cat": "gpu_memcpy", "call": "cudaMemcpyAsync"}
    file.kernel("Memcpy HtoD (Pinned -> Device)", 10, 30, launched=2, **copy)  # type: ignore[arg-type]
    file.kernel("__amd_rocclr_copyBuffer.kd", 50, 20, launched=5)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert graph.dur_ns[graph.flavour == Flavour.COPY].tolist() == [30_000, 20_000]


def test_no_model_can_be_had_that_the_trace_does_not_support(tmp_path: Path) -> None:
    file = KinetoFile(0, 1)
    file.step(1, 0, 100)
    file.kernel("unlaunched", 10, 30)
    file.write(tmp_path)
    assert convert_kineto(tmp_path).model == "stream"
    with pytest.raises(UsageError, match="launch calls"):
        convert_kineto(tmp_path, model="host")


def queue_of_launches(kernel_us: float, count: int = 900, depth: int = 600) -> list[list[float]]:
    """Launch times, their ends, kernel starts and ends, with room for so many pending launches."""
    rows: list[list[float]] = []
    host = 2.0
    for i in range(count):
        begin = host
        granted = max(begin, rows[i - depth][3]) if i >= depth else begin
        start = max(granted + 4, rows[-1][3] if rows else 0)
        host = granted + 2
        rows.append([begin, host, start, start + kernel_us])
    return rows


def test_a_full_launch_queue_holds_the_host_back_only_as_long_as_the_device_does(
    tmp_path: Path,
) -> None:
    """Once 600 launches are pending each further one waits for a kernel to end."""
    rows = queue_of_launches(100)
    file = KinetoFile(0, 1)
    file.step(1, 0, rows[-1][1])
    for begin, end, start, stop in rows:
        event = file.kernel("k", start, stop - start, launched=begin)
        file.events[-2]["dur"] = end - begin
        assert event["args"]["correlation"] == file.correlation
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert simulate(graph, measured=True).step_ns == round(rows[-1][3] * 1000)
    faster = queue_of_launches(50)
    assert simulate(graph, measured=True, compute_scale=0.5).step_ns == round(faster[-1][3] * 1000)
    assert any("full launch queue" in item.evidence for item in graph.coverage.inferred)


def test_operations_without_a_duration_begin_and_end(tmp_path: Path) -> None:
    """Whole microseconds round short operations of old traces to nothing."""
    file = KinetoFile(0, 1)
    file.top["deviceProperties"] = []
    file.step(1, 0, 100)
    file.op("outer", 10, 50)
    file.op("nothing", 10, 0)
    file.op("nothing", 30, 0)
    file.op("next", 60, 0)
    file.write(tmp_path)
    graph = convert_kineto(tmp_path)
    assert graph.source == "kineto-cpu"
    compute = graph.dur_ns[graph.flavour == Flavour.COMPUTE]
    assert compute.sum() == 50_000
    assert simulate(graph, measured=True).step_ns == 100_000


def test_a_step_that_one_rank_did_not_record_is_not_swallowed(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = KinetoFile(rank, 2)
        for number in (1, 2, 3):
            if (rank, number) != (1, 2):
                file.step(number, 100 * number, 90)
            file.kernel("work", 100 * number + 20, 30, launched=100 * number + 10)
        file.write(tmp_path)
    with pytest.raises(TraceError, match="did not record ProfilerStep#2") as error:
        convert_kineto(tmp_path)
    assert error.value.rank == 1


def test_ranks_that_disagree_about_the_size_of_the_job_are_refused(tmp_path: Path) -> None:
    for rank, world in ((0, 3), (1, 2)):
        file = KinetoFile(rank, world)
        file.step(1, 0, 100)
        file.kernel("work", 20, 30, launched=10)
        file.write(tmp_path)
    with pytest.raises(TraceError, match="2 ranks, but rank0_trace"):
        convert_kineto(tmp_path)


def test_a_job_larger_than_any_is_damage(tmp_path: Path) -> None:
    file = KinetoFile(0, 1_000_000_000)
    file.step(1, 0, 100)
    file.kernel("work", 20, 30, launched=10)
    file.write(tmp_path)
    with pytest.raises(TraceError, match="1000000000 ranks"):
        convert_kineto(tmp_path)


def two_ranks(folder: Path, **info: object) -> Path:
    """Two ranks of one all-reduce; `info` changes ``distributedInfo`` of the second."""
    for rank in range(2):
        file = KinetoFile(rank, 2)
        file.step(1, 0, 100)
        reduce = comm("allreduce", 1024, "0", [0, 1])
        file.kernel("ncclDevKernel_AllReduce", 20, 30, 40, launched=10, **reduce)
        if rank:
            file.top["distributedInfo"] |= info
        file.write(folder)
    return folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rank", "one"), ("rank", -3), ("rank", [1]), ("rank", True)),
        *(("world_size", "two"), ("world_size", 0), ("world_size", True)),
        *(("pg_config", "x"), ("pg_config", [1])),
    ],
)
def test_what_distributed_info_says_amiss_is_reported_of_its_own_rank(
    key: str, value: object, tmp_path: Path
) -> None:
    graph = convert_kineto(two_ranks(tmp_path, **{key: value}))
    assert graph.num_ranks == 2
    assert any(
        text.startswith(f"rank 1: distributedInfo.{key} is") for text in graph.coverage.warnings
    )


def test_a_failure_to_match_says_what_was_ignored_before(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path, pg_config="x")
    file = KinetoFile(1, 2)
    file.step(1, 0, 100)
    file.kernel("work", 20, 30, launched=10)
    file.top["distributedInfo"]["pg_config"] = "x"
    file.write(folder)
    with pytest.raises((GraphError, TraceError), match=r"rank 1: distributedInfo.pg_config is"):
        convert_kineto(folder)


def test_of_three_ranks_the_one_that_disagrees_about_the_size_is_blamed(tmp_path: Path) -> None:
    for rank, world in ((0, 5), (1, 3), (2, 3)):
        file = KinetoFile(rank, world)
        file.step(1, 0, 100)
        file.kernel("work", 20, 30, launched=10)
        file.write(tmp_path)
    with pytest.raises(TraceError, match="5 ranks, but rank1_trace") as error:
        convert_kineto(tmp_path)
    assert error.value.rank == 0
