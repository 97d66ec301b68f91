"""XLA profiles with known contents become graphs with the right nodes, sizes and waits."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from whatif.base.errors import GraphError, TraceError, UsageError
from whatif.converters.xla import trace_json
from whatif.converters.xla.convert import convert_xla
from whatif.converters.xla.xplane import read_xplane
from whatif.graph.columns import Collective, Flavour, Kind, LaneKind
from whatif.graph.steps import step_times
from whatif.graph.validate import validate
from whatif.simulator.run import simulate

import whatif

from .xla_file import (
    F32,
    Chip,
    Module,
    Op,
    array,
    chips,
    encode,
    hlo_proto,
    instruction,
    write_json,
    write_xplane,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from whatif.graph.columns import ExecutionGraph

ALL = "channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true"


def compute(start: float, dur: float, name: str = "fusion.1") -> Op:
    return Op(
        f"%{name} = f32[8] fusion(f32[8] %p), kind=kLoop, calls=%c", start, dur, "loop fusion"
    )


def comm(text: str, start: float, dur: float, category: str = "all-reduce") -> Op:
    return Op(text, start, dur, category)


def all_reduce(start: float, dur: float, name: str = "all-reduce.1", groups: str = ALL) -> Op:
    text = f"%{name} = f32[1024] all-reduce(f32[1024] %fusion.1), {groups}, to_apply=%add"
    return comm(text, start, dur)


@pytest.fixture(params=["xplane.pb", "trace.json", "xplane.pb.gz", "trace.json.gz"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[list[Chip]], Path]:
    """Write chips in one of the formats."""

    def write(devices: list[Chip]) -> Path:
        path = tmp_path / f"host.{request.param}"
        return (write_xplane if "xplane" in request.param else write_json)(path, devices)

    return write


def checked(path: Path, **options: object) -> ExecutionGraph:
    """Convert, and hold the graph to what every graph must be."""
    graph = convert_xla(path, **options)  # type: ignore[arg-type]
    validate(graph)
    replay = simulate(graph, measured=True)
    assert replay.completion_ns.max(axis=1).tolist() == graph.steps.completion_ns.tolist()
    return graph


def of(graph: ExecutionGraph, coll: Collective) -> np.ndarray:
    return np.flatnonzero(graph.coll == coll)


def name_of(graph: ExecutionGraph, node: int) -> str:
    return graph.names[graph.name[node]]


def test_both_formats_give_the_same_graph(write: Callable[[list[Chip]], Path]) -> None:
    path = write(chips(2, [compute(0, 10), all_reduce(10, 5), compute(15, 3, "fusion.2")]))
    graph = checked(path)
    assert graph.source == "xla-tpu"
    assert graph.model == "stream"
    assert graph.ranks.tolist() == [0, 1]
    assert graph.steps.names == ("jit_step#0",)
    nodes = of(graph, Collective.ALL_REDUCE)
    assert graph.size_bytes[nodes].tolist() == [4096, 4096]
    assert graph.transfer_ns[nodes].tolist() == [5000, 5000]
    assert graph.groups[0].ranks == (0, 1)
    assert step_times(graph.steps.completion_ns).tolist() == [18_000]
    assert (graph.gap_ns == 0).all()


def test_the_wait_of_the_chip_that_came_first_is_no_transfer(
    write: Callable[[list[Chip]], Path],
) -> None:
    late = Chip([Module("jit_step(7)", 0, 20)], [compute(0, 12), all_reduce(12, 3)])
    early = Chip([Module("jit_step(7)", 0, 20)], [compute(0, 5), all_reduce(5, 10)])
    graph = checked(write([early, late]))
    nodes = of(graph, Collective.ALL_REDUCE)
    assert graph.dur_ns[nodes].tolist() == [10_000, 3_000]
    assert graph.transfer_ns[nodes].tolist() == [3_000, 3_000]


# Sizes -----------------------------------------------------------------------------------


def test_synchronous_and_asynchronous_all_gathers_have_the_same_bytes(
    write: Callable[[list[Chip]], Path],
) -> None:
    sync = comm(
        f"%all-gather.1 = f32[2048] all-gather(f32[1024] %p), {ALL}, dimensions={{0}}",
        0,
        5,
        "all-gather",
    )
    start = comm(
        "%all-gather-start.2 = (f32[1024], f32[2048]) all-gather-start(f32[1024] %p), "
        f"{ALL}, dimensions={{0}}",
        5,
        0.002,
        "all-gather-start",
    )
    done = comm(
        "%all-gather-done.2 = f32[2048] all-gather-done((f32[1024], f32[2048]) "
        "%all-gather-start.2)",
        8.002,
        2,
        "all-gather-done",
    )
    graph = checked(write(chips(2, [sync, start, compute(5.002, 3), done])))
    nodes = of(graph, Collective.ALL_GATHER)
    assert graph.size_bytes[nodes].tolist() == [4096] * 4
    assert set(graph.transfer_ns[nodes].tolist()) == {5_000}


def test_a_tuple_all_reduce_and_a_reduce_scatter_count_all_of_their_input(
    write: Callable[[list[Chip]], Path],
) -> None:
    tuple_ = comm(
        f"%ar = (f32[1024], bf16[512]) all-reduce(f32[1024] %a, bf16[512] %b), {ALL}, "
        "to_apply=%add",
        0,
        5,
    )
    scatter = comm(
        f"%rs = f32[512] reduce-scatter(f32[1024] %a), {ALL}, dimensions={{0}}, to_apply=%add",
        5,
        5,
        "reduce-scatter",
    )
    graph = checked(write(chips(2, [tuple_, scatter])))
    assert graph.size_bytes[of(graph, Collective.ALL_REDUCE)].tolist() == [5120] * 2
    assert graph.size_bytes[of(graph, Collective.REDUCE_SCATTER)].tolist() == [4096] * 2


def fused_program(inner: str = "all-reduce") -> bytes:
    """A fusion that holds a collective of 4096 bytes among two devices."""
    groups = {1: [{1: [0, 1]}]}
    return hlo_proto(
        "jit_step",
        {
            "fused": [
                instruction("p", "parameter", array(F32, 1024), 1),
                instruction("inner", inner, array(F32, 1024), 2, operand_ids=[1], channel_id=1,
                            use_global_device_ids=1, collective_device_list=groups),
                instruction("slice", "dynamic-slice", array(F32, 512), 3, operand_ids=[2]),
            ],
            "main": [
                instruction("x", "parameter", array(F32, 1024), 4),
                instruction("fusion.9", "fusion", array(F32, 512), 5, operand_ids=[4],
                            called_computation_ids=[1]),
            ],
        },
        devices=[[0], [1]],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("category", "coll"),
    [
        ("all-reduce fusion", Collective.ALL_REDUCE),
        ("all-reduce-scatter fusion", Collective.REDUCE_SCATTER),
        ("", Collective.REDUCE_SCATTER),
    ],
)
def test_a_collective_inside_a_fusion_is_found_in_the_program(
    category: str, coll: Collective, tmp_path: Path
) -> None:
    fusion = Op(
        "%fusion.9 = f32[512] fusion(f32[1024] %x), kind=kOutput, calls=%fused", 0, 5, category
    )
    path = write_xplane(
        tmp_path / "h.xplane.pb",
        chips(2, [fusion, compute(5, 2)]),
        programs={"jit_step(7)": fused_program()},
    )
    graph = checked(path)
    nodes = of(graph, coll)
    assert graph.size_bytes[nodes].tolist() == [4096, 4096]
    assert graph.groups[0].ranks == (0, 1)


def test_a_collective_that_says_nothing_of_its_group_is_an_error_unless_assumed(
    tmp_path: Path,
) -> None:
    """No text, no program: only the category tells that it communicates."""
    silent = Op("", 0, 5, "all-gather fusion", name="fusion.9")
    path = write_json(tmp_path / "h.trace.json", chips(2, [silent, compute(5, 2)]))
    with pytest.raises(TraceError, match=r"with whom fusion\.9 communicates cannot be told"):
        convert_xla(path)
    graph = checked(path, assume_missing=True)
    assert graph.size_bytes[of(graph, Collective.ALL_GATHER)].tolist() == [-1, -1]
    assert any("all devices" in text for text in graph.coverage.assumed)
    assert graph.coverage.bytes_unknown_nodes == 2


# What ran --------------------------------------------------------------------------------


def test_a_loop_is_not_counted_with_its_body(write: Callable[[list[Chip]], Path]) -> None:
    loop = Op("%while.1 = (f32[8]) while((f32[8]) %t), condition=%c, body=%b", 0, 100, "while")
    body = [compute(at, 50) for at in (0, 50)]
    graph = checked(write(chips(1, [loop, *body])))
    busy = graph.dur_ns[graph.flavour == Flavour.COMPUTE].sum()
    assert busy == 100_000
    assert [d.count for d in graph.coverage.dropped if "loops" in d.what] == [1]


def test_operations_inside_a_loop_are_told_apart_by_their_occurrence(
    write: Callable[[list[Chip]], Path],
) -> None:
    loop = Op("%while.1 = (f32[8]) while((f32[8]) %t), condition=%c, body=%b", 0, 60, "while")
    body = [op for at in (0, 20, 40) for op in (compute(at, 15), all_reduce(at + 15, 5))]
    graph = checked(write(chips(2, [loop, *body])))
    assert graph.coverage.collectives_matched == 6
    assert len(set(graph.instance[of(graph, Collective.ALL_REDUCE)].tolist())) == 3


def test_an_asynchronous_transfer_overlaps_and_its_end_waits(
    write: Callable[[list[Chip]], Path],
) -> None:
    start = comm(
        f"%ars = f32[1024] all-reduce-start(f32[1024] %p), {ALL}, to_apply=%add",
        0,
        0.004,
        "all-reduce-start",
    )
    done = comm("%ard = f32[1024] all-reduce-done(f32[1024] %ars)", 6.004, 4, "all-reduce-done")
    graph = checked(write(chips(2, [start, compute(0.004, 6), done, compute(10.004, 1, "last")])))
    node = of(graph, Collective.ALL_REDUCE)[0]
    assert (graph.start_ns[node], graph.dur_ns[node]) == (4, 10_000)
    assert graph.lane[node] != graph.lane[0]
    replay = simulate(graph, measured=True)
    per_rank = replay.per_rank[0]
    assert per_rank.hidden_comm_ns == 6_000
    assert per_rank.exposed_comm_ns == 4_000


def test_a_transfer_that_nobody_waited_for_is_as_fast_as_the_fastest_seen(
    write: Callable[[list[Chip]], Path],
) -> None:
    def pair(number: int, at: float, flight: float, wait: float) -> list[Op]:
        return [
            comm(
                f"%ars.{number} = f32[1024] all-reduce-start(f32[1024] %p), {ALL}",
                at,
                0.004,
                "all-reduce-start",
            ),
            compute(at + 0.004, flight - wait, f"fusion.{number}"),
            comm(
                f"%ard.{number} = f32[1024] all-reduce-done(f32[1024] %ars.{number})",
                at + 0.004 + flight - wait,
                max(wait, 0.002),
                "all-reduce-done",
            ),
        ]

    graph = checked(write(chips(2, [*pair(1, 0, 10, 4), *pair(2, 20, 50, 0)])))
    nodes = of(graph, Collective.ALL_REDUCE)
    assert graph.transfer_ns[nodes].tolist() == [10_000] * 4


def test_a_start_without_an_end_is_reported(write: Callable[[list[Chip]], Path]) -> None:
    start = comm(
        f"%ars = f32[1024] all-reduce-start(f32[1024] %p), {ALL}", 0, 0.004, "all-reduce-start"
    )
    graph = checked(write(chips(2, [start, compute(0.004, 6)])))
    assert any("end was not recorded" in text for text in graph.coverage.assumed)


def test_copies_of_a_chip_are_copies_and_not_traffic(write: Callable[[list[Chip]], Path]) -> None:
    start = Op(
        "%copy-start = (f32[1024]{0:S(1)}, f32[1024]{0}, u32[]) copy-start(f32[1024] %p)",
        0,
        0.001,
        "copy-start",
    )
    done = Op(
        "%copy-done = f32[1024] copy-done((f32[1024], f32[1024], u32[]) %copy-start)",
        2.001,
        1,
        "copy-done",
    )
    graph = checked(write(chips(1, [start, compute(0.001, 2), done, compute(3.001, 1)])))
    copies = np.flatnonzero(graph.flavour == Flavour.COPY)
    assert graph.dur_ns[copies].tolist() == [3_000]
    assert (graph.kind == Kind.COMP).all()


def test_a_copy_that_nobody_waited_for_takes_the_time_of_its_size(
    write: Callable[[list[Chip]], Path],
) -> None:
    def pair(number: int, at: float, elements: int, end: float, wait: float) -> list[Op]:
        return [
            Op(
                f"%cs.{number} = (f32[{elements}]{{0:S(1)}}, f32[{elements}]{{0}}, u32[]) "
                f"copy-start(f32[{elements}] %p)",
                at,
                0.001,
                "copy-start",
            ),
            compute(at + 0.001, end - wait - at - 0.001, f"fusion.{number}"),
            Op(
                f"%cd.{number} = f32[{elements}] copy-done((f32[4], f32[4], u32[]) %cs.{number})",
                end - wait,
                max(wait, 0.001),
                "copy-done",
            ),
        ]

    graph = checked(write(chips(1, [*pair(1, 0, 1000, 4.001, 1), *pair(2, 10, 500, 40, 0)])))
    copies = np.flatnonzero(graph.flavour == Flavour.COPY)
    assert graph.dur_ns[copies].tolist() == [4_000, 2_000]


def test_a_collective_permute_is_sends_and_receives_by_its_pairs(
    write: Callable[[list[Chip]], Path],
) -> None:
    text = (
        "%cp = f32[256] collective-permute(f32[256] %p), channel_id=3, "
        "source_target_pairs={{0,1},{1,2},{3,3}}"
    )
    graph = checked(write(chips(4, [comm(text, 0, 5, "collective-permute"), compute(5, 1)])))
    moved = (graph.kind == Kind.SEND) | (graph.kind == Kind.RECV)
    assert {graph.names[n] for n in graph.dtype[moved].tolist()} == {"float32"}
    found = {
        (int(graph.ranks[graph.rank_index[n]]), Kind(graph.kind[n]), int(graph.peer[n]))
        for n in of(graph, Collective.SEND_RECV)
    }
    assert found == {(0, Kind.SEND, 1), (1, Kind.RECV, 0), (1, Kind.SEND, 2), (2, Kind.RECV, 1)}
    assert set(graph.size_bytes[of(graph, Collective.SEND_RECV)].tolist()) == {1024}


def test_iota_groups_with_a_transpose_are_the_right_chips(
    write: Callable[[list[Chip]], Path],
) -> None:
    groups = "channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true"
    graph = checked(write(chips(8, [all_reduce(0, 5, groups=groups)])))
    assert [group.ranks for group in graph.groups] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_wait_for_the_other_chips_before_a_run_is_a_barrier(
    write: Callable[[list[Chip]], Path],
) -> None:
    first = Chip([Module("jit_step(7)", 0, 40)], [compute(31, 5)], barriers=[(0, 31)])
    second = Chip([Module("jit_step(7)", 28, 12)], [compute(31, 5)], barriers=[(28, 3)])
    graph = checked(write([first, second]))
    nodes = of(graph, Collective.BARRIER)
    assert graph.transfer_ns[nodes].tolist() == [3_000, 3_000]
    assert graph.start_offset_ns.tolist() == [0, 28_000]


def test_what_a_sparse_core_does_for_the_core_is_counted_once(tmp_path: Path) -> None:
    start = comm(
        f"%ags = (f32[1024], f32[2048]) all-gather-start(f32[1024] %p), {ALL}",
        0,
        0.004,
        "all-gather-start",
    )
    done = comm(
        "%agd = f32[2048] all-gather-done((f32[1024], f32[2048]) %ags)",
        20,
        0.002,
        "all-gather-done",
    )
    made = chips(2, [start, compute(0.004, 19), done])
    for chip in made:
        chip.sparse = [
            comm(f"%ag = f32[2048] all-gather(f32[1024] %p), {ALL}", 1, 8, "all-gather"),
            Op("%gather.1 = f32[8] gather(f32[8] %t)", 10, 4, "gather"),
        ]
    graph = checked(write_xplane(tmp_path / "h.xplane.pb", made))
    nodes = of(graph, Collective.ALL_GATHER)
    assert len(nodes) == 2
    assert (graph.start_ns[nodes] + graph.dur_ns[nodes]).tolist() == [9_000, 9_000]
    lanes = {
        int(graph.lanes.number[graph.lane[n]])
        for n in range(graph.num_nodes)
        if name_of(graph, n) == "gather"
    }
    assert lanes == {400}


# Steps, clocks, hosts --------------------------------------------------------------------


def test_twenty_decode_steps_stay_twenty(write: Callable[[list[Chip]], Path]) -> None:
    graph = checked(write(chips(2, [compute(0, 10), all_reduce(10, 5)], runs=20)))
    assert graph.steps.names == tuple(f"jit_step#{k}" for k in range(20))
    assert step_times(graph.steps.completion_ns)[1:].tolist() == [1_000_000] * 19


def sampled(runs: int) -> list[Chip]:
    """Two chips that run another, smaller program after each run of the main one."""
    made = chips(2, [compute(0, 50)], runs=runs)
    for chip in made:
        for k in range(runs):
            chip.modules.insert(2 * k + 1, Module("jit_sample(9)", k * 1000 + 60, 4))
            chip.ops.insert(2 * k + 1, all_reduce(k * 1000 + 60, 4, "sampling"))
    return made


def test_programs_between_two_steps_belong_to_the_one_after(
    write: Callable[[list[Chip]], Path],
) -> None:
    path = write(sampled(3))
    graph = checked(path)
    assert len(graph.steps) == 3
    # A step ends with its run; what follows the last one is of a step that was not recorded.
    assert graph.steps.completion_ns.tolist() == [50_000, 1_050_000, 2_050_000]
    assert graph.step[of(graph, Collective.ALL_REDUCE)].tolist() == [1, 2] * 2
    assert ("runs of jit_sample", 2, "after the last one") in [
        (d.what, d.count, d.reason) for d in graph.coverage.dropped
    ]
    middle = checked(path, steps=["1"])
    # What ran since the run before is part of it: it is as long as among the others.
    assert step_times(middle.steps.completion_ns).tolist() == [990_000]
    assert middle.start_ns.min() == 0
    assert [
        (d.what, d.count, d.reason) for d in middle.coverage.dropped if d.what[:7] == "runs of"
    ] == [
        ("runs of jit_step", 4, "in steps that are not chosen"),
        ("runs of jit_sample", 2, "in steps that are not chosen"),
        ("runs of jit_sample", 2, "after the last one"),
    ]


def test_steps_that_the_profiler_recorded_are_the_steps(
    write: Callable[[list[Chip]], Path],
) -> None:
    made = chips(2, [compute(0, 10), all_reduce(10, 5)], runs=4)
    for chip in made:
        chip.steps = [("5", 0, 1020), ("6", 2000, 1020)]
    graph = checked(write(made))
    assert graph.steps.names == ("step#5", "step#6")
    chosen = checked(write(made), steps=["6"])
    assert chosen.steps.names == ("step#6",)
    assert chosen.coverage.collectives_seen == 4


def test_runs_that_one_chip_did_not_record_are_left_out_and_reported(
    write: Callable[[list[Chip]], Path],
) -> None:
    made = chips(2, [compute(0, 10), all_reduce(10, 5)], runs=5)
    made[1].modules = made[1].modules[1:]
    made[1].ops = made[1].ops[2:]
    for k, module in enumerate(made[1].modules):
        module.run = 77 + k  # a counter of its own
    graph = checked(write(made))
    assert len(graph.steps) == 4
    assert graph.coverage.collectives_matched == 8
    assert [(d.what, d.count) for d in graph.coverage.dropped if "runs" in d.what] == [
        ("runs of jit_step", 1)
    ]


def test_a_run_that_one_chip_lacks_in_the_middle_is_told_by_its_number(
    write: Callable[[list[Chip]], Path],
) -> None:
    made = chips(2, [compute(0, 10), all_reduce(10, 5)], runs=6)
    del made[1].modules[4]
    del made[1].ops[8:10]
    graph = checked(write(made))
    assert len(graph.steps) == 5
    assert graph.coverage.collectives_matched == 10
    assert step_times(graph.steps.completion_ns)[1:].tolist() == [1e6, 1e6, 1e6, 2e6]


@pytest.mark.parametrize("device", [1 << 18, 99_999_999, 1 << 31, 1 << 40])
@pytest.mark.parametrize(
    "text",
    [
        "all-reduce(f32[8] %p), channel_id=1, replica_groups={{{{0,1,{0}}}}}, to_apply=%add",
        "collective-permute(f32[8] %p), channel_id=1, source_target_pairs={{{{0,1}},{{1,{0}}}}}",
    ],
)
def test_devices_that_no_machine_has_are_refused(tmp_path: Path, text: str, device: int) -> None:
    made = chips(2, [comm(f"%c = f32[8] {text.format(device)}", 0, 5)])
    path = write_json(tmp_path / "h.trace.json", made)
    with pytest.raises(TraceError, match=f"a device {device}, and no machine has so many"):
        convert_xla(path, assume_missing=True)


def test_a_permute_that_does_not_say_between_whom_is_refused(tmp_path: Path) -> None:
    cut = comm("%c = f32[8] collective-permute(f32[8] %p), channel_id=1", 0, 5)
    path = write_json(tmp_path / "h.trace.json", chips(2, [cut]))
    with pytest.raises(TraceError, match=r"rank 0.*no source_target_pairs"):
        convert_xla(path)


def test_an_operation_may_be_shown_by_its_text(tmp_path: Path) -> None:
    """So does the exporter where there is no name to display."""
    op = all_reduce(10, 5)
    shown = Op("", 10, 5, name=op.text)
    graph = checked(write_json(tmp_path / "h.trace.json", chips(2, [compute(0, 10), shown])))
    reduces = of(graph, Collective.ALL_REDUCE)
    assert graph.size_bytes[reduces].tolist() == [4096] * 2
    assert {graph.names[n] for n in graph.name[reduces].tolist()} == {"all-reduce"}


def test_operations_that_say_nothing_of_themselves_are_reported(tmp_path: Path) -> None:
    """Their names may mention collectives; that proves nothing."""
    bare = Op("", 10, 5, name="all-reduce.7")
    graph = checked(write_json(tmp_path / "h.trace.json", chips(2, [compute(0, 10), bare])))
    assert any(
        text.startswith("2 operations of which neither text nor category is recorded")
        for text in graph.coverage.warnings
    )


def test_an_operation_that_one_chip_lacks_is_named(write: Callable[[list[Chip]], Path]) -> None:
    made = chips(
        2, [all_reduce(0, 5, "first"), all_reduce(5, 5, "second"), all_reduce(10, 5, "third")]
    )
    made[1].ops.pop(1)
    with pytest.raises(GraphError, match=r"rank 1, second: has no second .* which rank 0 has"):
        convert_xla(write(made))


def test_events_that_the_profiler_misplaced_follow_the_clock_of_the_chip(tmp_path: Path) -> None:
    """Seen on v6e: events land a tenth of a second late and catch up later."""
    made = chips(1, [compute(0, 100), compute(100, 400, "fusion.2")], runs=40)
    path = write_xplane(tmp_path / "h.xplane.pb", made)
    clean = checked(path)
    shifted = write_xplane_shifted(tmp_path / "s.xplane.pb", made)
    graph = checked(shifted)
    assert (graph.start_ns == clean.start_ns).all()
    assert (graph.dur_ns == clean.dur_ns).all()
    assert any("the device's clock is used" in text for text in graph.coverage.warnings)


def write_xplane_shifted(path: Path, made: list[Chip]) -> Path:
    """Put the second operation of every fifth run 200 us late, its own clock untouched."""
    for chip in made:
        for k in range(0, 40, 5):
            op = chip.ops[2 * k + 1]
            op.start += 200
            op.dur -= 200
            op.device = (op.start - 200, op.dur + 200)
    return write_xplane(path, made)


def test_hosts_whose_clocks_differ_are_aligned(tmp_path: Path) -> None:
    """Two hosts of one chip each; the second's profile says it began 3 ms later."""
    run = tmp_path / "plugins" / "profile" / "2026_01_02_03_04_05"
    run.mkdir(parents=True)
    made = chips(2, [compute(0, 10), all_reduce(10, 5)], runs=3)
    for number, chip in enumerate(made):
        chip.global_id = number
        write_xplane(
            run / f"host{number}.xplane.pb",
            [chip],
            host=f"host{number}",
            base_ns=10**18 + number * 3_000_000,
        )
    graph = checked(tmp_path)
    assert graph.hosts == ("host0", "host1")
    assert graph.transfer_ns[of(graph, Collective.ALL_REDUCE)].tolist() == [5_000] * 6
    assert any(i.what == "clock offsets" for i in graph.coverage.inferred)


def after_init(runs: int) -> list[Chip]:
    made = chips(2, [compute(0, 50)], runs=runs)
    for chip in made:
        for module, op in zip(chip.modules, chip.ops, strict=True):
            module.start += 500
            op.start += 500
        chip.modules.insert(0, Module("jit_init(3)", 100, 20))
        chip.ops.insert(0, all_reduce(100, 20, "init"))
    return made


def test_the_first_of_several_steps_begins_with_what_ran_before_it(
    write: Callable[[list[Chip]], Path],
) -> None:
    graph = checked(write(after_init(runs=2)))
    assert step_times(graph.steps.completion_ns).tolist() == [450_000, 1_000_000]
    assert graph.start_ns.min() == 0
    assert graph.coverage.collectives_seen == 2


def test_a_single_step_is_the_run_that_was_recorded(write: Callable[[list[Chip]], Path]) -> None:
    """Whatever ran before it, and however long before."""
    graph = checked(write(after_init(runs=1)))
    assert step_times(graph.steps.completion_ns).tolist() == [50_000]
    assert graph.start_ns.min() == 0
    assert ("runs of jit_init", 2, "before the recorded step") in [
        (d.what, d.count, d.reason) for d in graph.coverage.dropped
    ]


def test_devices_agree_on_the_step_of_a_run_though_one_lacks_the_first(
    write: Callable[[list[Chip]], Path],
) -> None:
    made = chips(2, [compute(0, 10), all_reduce(10, 5)], runs=4)
    for chip in made:
        chip.steps = [(str(k), k * 1000, 20) for k in range(4)]
    del made[1].steps[0]
    graph = checked(write(made))
    assert graph.steps.names == ("step#1", "step#2", "step#3")
    assert graph.coverage.collectives_matched == 8
    assert step_times(graph.steps.completion_ns)[1:].tolist() == [1_000_000] * 2


# Members that are not there --------------------------------------------------------------


def test_a_group_with_chips_that_were_not_captured_is_an_error_unless_assumed(
    write: Callable[[list[Chip]], Path],
) -> None:
    groups = "channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true"
    made = chips(2, [all_reduce(0, 9, groups=groups), all_reduce(20, 5, "b", groups=groups)])
    path = write(made)
    with pytest.raises(TraceError, match=r"group '0,2' \[0, 2\] has members that were not traced"):
        convert_xla(path)
    with pytest.raises(
        TraceError, match=r"as 2 groups in all have .*not traced: \[2, 3\]"
    ) as raised:
        convert_xla(path)
    assert raised.value.rank == 0
    assert raised.value.file == str(path)
    graph = checked(path, assume_missing=True)
    assert graph.world_size == 4
    assert graph.coverage.assumed_members == 4
    assert any("every figure rests on that" in text for text in graph.coverage.warnings)
    # The fastest of the same type, size and group is the transfer; the rest is waiting.
    assert graph.transfer_ns[of(graph, Collective.ALL_REDUCE)].tolist() == [5_000] * 4


def test_the_profile_says_which_devices_of_the_job_its_planes_are(tmp_path: Path) -> None:
    groups = "channel_id=1, replica_groups={{0,2},{1,3}}, use_global_device_ids=true"
    made = chips(2, [all_reduce(0, 9, groups=groups)])
    made[0].global_id, made[1].global_id = 2, 3
    path = write_xplane(tmp_path / "h.xplane.pb", made)
    graph = convert_xla(path, assume_missing=True)
    assert graph.ranks.tolist() == [2, 3]
    assert [g.ranks for g in graph.groups] == [(0, 2), (1, 3)]


def test_a_group_of_one_moves_nothing(write: Callable[[list[Chip]], Path]) -> None:
    alone = "channel_id=1, replica_groups={{0},{1}}, use_global_device_ids=true"
    graph = checked(write(chips(2, [all_reduce(0, 9, groups=alone)])))
    assert not len(of(graph, Collective.ALL_REDUCE))
    assert [d.count for d in graph.coverage.dropped if "itself" in d.what] == [2]
    assert "no communication between devices in this trace" in graph.coverage.warnings


# Files -----------------------------------------------------------------------------------


def test_a_capped_file_is_explained_and_its_cut_end_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = chips(2, [compute(0, 10), all_reduce(10, 5), compute(15, 900, "long")], runs=5)
    for chip in made:
        chip.ops.pop()  # the exporter stopped inside the last run
    path = write_json(tmp_path / "h.trace.json", made)
    assert len(convert_xla(path).steps) == 5
    monkeypatch.setattr(trace_json, "CAP", 40)
    monkeypatch.setattr(trace_json, "CAP_SLACK", 5)
    graph = convert_xla(path)
    assert len(graph.steps) == 4
    assert any(
        "earliest million" in text and "xplane.pb" in text for text in graph.coverage.warnings
    )
    assert sum(d.count for d in graph.coverage.dropped if "limit" in d.reason) == 2


@pytest.mark.parametrize("key", ["returnedEventsSize", "filteredByVisibility"])
def test_a_thinned_out_file_of_the_viewer_is_refused(key: str, tmp_path: Path) -> None:
    path = write_json(tmp_path / "h.trace.json", chips(1, [compute(0, 10)]), **{key: 12})
    with pytest.raises(TraceError, match="streaming trace viewer"):
        convert_xla(path)


def test_the_directory_of_the_profiler_is_searched_and_the_better_file_taken(
    tmp_path: Path,
) -> None:
    run = tmp_path / "plugins" / "profile" / "2026_01_02_03_04_05"
    run.mkdir(parents=True)
    made = chips(2, [compute(0, 10), all_reduce(10, 5)])
    write_xplane(run / "h.xplane.pb", made)
    write_json(run / "h.trace.json.gz", made)
    (run / "h.op_stats.pb").write_bytes(b"\x0a\x02hi")
    graph = whatif.load(tmp_path)
    assert graph.source == "xla-tpu"
    assert sorted(text.split(":")[0] for text in graph.coverage.ignored_files) == [
        "h.op_stats.pb",
        "h.trace.json.gz",
    ]
    (run.parent / "2026_01_02_03_04_06").mkdir()
    write_xplane(run.parent / "2026_01_02_03_04_06" / "h.xplane.pb", made)
    with pytest.raises(TraceError, match="holds 2 runs of the profiler"):
        whatif.load(tmp_path)


def test_the_host_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = write_json(tmp_path / "h.trace.json", chips(1, [compute(0, 10)]))
    with pytest.raises(UsageError, match="no launch calls to build the host model from"):
        convert_xla(path, model="host")
    graph = convert_xla(path, model="serial")
    assert graph.model == "serial"


def test_files_are_written_for_each_device_and_say_the_same(tmp_path: Path) -> None:
    path = write_xplane(tmp_path / "h.xplane.pb", chips(2, [compute(0, 10), all_reduce(10, 5)]))
    result = whatif.gen_tpu_chakra_et(path, tmp_path / "et")
    assert len(result.files) == 3
    again = whatif.load(tmp_path / "et")
    assert again.size_bytes[of(again, Collective.ALL_REDUCE)].tolist() == [4096, 4096]
    assert again.steps.completion_ns.tolist() == [15_000]
    with pytest.raises(UsageError, match="use gen_tpu_chakra_et"):
        whatif.gen_gpu_chakra_et(path, tmp_path / "et2")
    assert not (tmp_path / "et2").exists()


# Damage ----------------------------------------------------------------------------------


def test_hlo_text_that_is_cut_off_is_an_error_that_names_the_operation(
    write: Callable[[list[Chip]], Path],
) -> None:
    cut = all_reduce(0, 5)
    cut.text = cut.text[: cut.text.index("replica_groups") + 18]
    with pytest.raises(TraceError, match=r"rank 0, program jit_step: what all-reduce.1 moves"):
        convert_xla(write(chips(2, [cut])))


def test_text_that_is_cut_is_no_matter_where_the_program_is_there(tmp_path: Path) -> None:
    op = Op("%inner = f32[1024] all-reduce(f32[10", 0, 5, "all-reduce", name="inner")
    path = write_xplane(
        tmp_path / "h.xplane.pb", chips(2, [op]), programs={"jit_step(7)": fused_program()}
    )
    graph = checked(path)
    assert graph.size_bytes[of(graph, Collective.ALL_REDUCE)].tolist() == [4096, 4096]


def test_an_unknown_opcode_is_reported(write: Callable[[list[Chip]], Path]) -> None:
    odd = Op("%x = f32[4] warp-drive(f32[4] %y)", 0, 5)
    graph = checked(write(chips(1, [odd])))
    assert "1 opcode 'warp-drive' is unknown: taken as computation" in graph.coverage.assumed
    told = [text for text in graph.coverage.warnings if "warp-drive" in text]
    assert len(told) == 1
    assert "if it communicates, no other network changes what it takes" in told[0]


@pytest.mark.parametrize(
    ("text", "category", "told"),
    [
        (all_reduce(0, 5).text, "", True),
        ("%x = f32[10", "all-reduce", True),
        ("%x = f32[10", "", True),
        ("%x = f32[10", "loop fusion", False),
        ("%x = f32[4] warp-drive(f32[4] %y)", "", True),
        ("%x = f32[4] add(f32[4] %y, f32[4] %y)", "", False),
    ],
)
def test_communication_whose_time_cannot_be_read_is_warned_of(
    tmp_path: Path, text: str, category: str, *, told: bool
) -> None:
    lost = Op(text, 20, 5, category, name="lost")
    path = write_json(tmp_path / "h.trace.json", chips(2, [compute(0, 30), lost]))
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("name") == "lost":
            event["dur"] = "long"
    path.write_text(json.dumps(document))
    graph = checked(path)
    assert [d.count for d in graph.coverage.dropped if d.reason == "no time"] == [2]
    warned = [w for w in graph.coverage.warnings if "2 events that are or may be" in w]
    assert bool(warned) == told
    assert all("(lost for one)" in text for text in warned)


def test_communication_of_negative_duration_is_warned_of(
    write: Callable[[list[Chip]], Path],
) -> None:
    graph = checked(write(chips(2, [compute(0, 30), all_reduce(20, -5)])))
    assert not len(of(graph, Collective.ALL_REDUCE))
    assert any(
        "are or may be communication (all-reduce.1 for one)" in w for w in graph.coverage.warnings
    )


def test_a_collective_whose_text_is_cut_inside_its_shape_has_an_unknown_size(
    write: Callable[[list[Chip]], Path],
) -> None:
    made = chips(2, [all_reduce(0, 5)])
    made[1].ops = [comm("%all-reduce.1 = f32[10", 0, 5)]
    path = write(made)
    with pytest.raises(GraphError) as raised:
        convert_xla(path, assume_missing=True)
    assert raised.value.file == str(path)
    assert raised.value.rank == 1
    assert (
        "of 4096 bytes on rank 0 but all-reduce of unknown size (all that is known of it: "
        "category alone, its HLO text is cut) on rank 1"
    ) in raised.value.message
    assert "-1 bytes" not in raised.value.message


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("bf16[8] all-reduce(bf16[8] %p)", "bfloat16"),
        ("f8e4m3fn[8] all-reduce(f8e4m3fn[8] %p)", "float8_e4m3fn"),
        ("(f32[8], f32[4]) all-reduce(f32[8] %p, f32[4] %q)", "float32"),
        ("(f32[8], s32[4]) all-reduce(f32[8] %p, s32[4] %q)", ""),
        # Without shapes of operands the result says it.
        ("pred[8] all-reduce(%p)", "bool"),
    ],
)
def test_data_types_have_the_names_that_traces_of_gpus_have(
    write: Callable[[list[Chip]], Path], text: str, dtype: str
) -> None:
    graph = checked(write(chips(2, [comm(f"%a = {text}, {ALL}", 0, 5)])))
    found = graph.dtype[of(graph, Collective.ALL_REDUCE)]
    assert {graph.names[n] if n >= 0 else "" for n in found.tolist()} == {dtype}


def test_a_damaged_program_is_reported_and_the_text_used(tmp_path: Path) -> None:
    path = write_xplane(
        tmp_path / "h.xplane.pb",
        chips(2, [all_reduce(0, 5)]),
        programs={"jit_step(7)": b"\xff\xff\xff"},
    )
    graph = checked(path)
    assert any("program jit_step(7) was not read" in text for text in graph.coverage.warnings)
    assert len(of(graph, Collective.ALL_REDUCE)) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x0a\x05ab", "damaged, or not an xplane.pb"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "damaged"),
        (encode({1: [{2: "/host:CPU"}]}), "holds no work of any device"),
        (encode({1: [{2: "/device:TPU:0"}]}), "holds no work of any device"),
        (encode({4: "host"}), "holds no planes"),
        (("\ufffd" * 400).encode(), "was treated as text at some point"),
    ],
)
def test_what_is_no_profile_is_refused_with_the_reason(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message) as caught:
        read_xplane(path)
    assert str(path) in str(caught.value)


def test_a_file_that_ends_early_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    whole = write_xplane(tmp_path / "a.xplane.pb", chips(2, [compute(0, 10), all_reduce(10, 5)]))
    data = whole.read_bytes()
    path = tmp_path / "b.xplane.pb"
    for size in range(1, len(data), 37):
        path.write_bytes(data[:size])
        with pytest.raises((TraceError, GraphError)):
            convert_xla(path)
    path = tmp_path / "c.trace.json.gz"
    text = gzip.decompress(
        write_json(tmp_path / "d.trace.json.gz", chips(1, [compute(0, 10)])).read_bytes()
    )
    path.write_bytes(gzip.compress(text[:-40]))
    with pytest.raises(TraceError, match="truncated"):
        convert_xla(path)


def test_events_without_a_description_are_reported(tmp_path: Path) -> None:
    made = chips(1, [compute(0, 10), compute(10, 5, "x")])
    path = write_json(tmp_path / "h.trace.json", made)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("tid") == 3 and event.get("ph") == "X":
            event["name"] = ""
            del event["args"]
    path.write_text(json.dumps(document))
    graph = checked(path)
    assert "2 events without a name: taken as computation" in graph.coverage.assumed


def test_what_runs_beside_the_core_is_on_lanes_of_its_own(tmp_path: Path) -> None:
    start = comm(
        f"%ars = f32[1024] all-reduce-start(f32[1024] %p), {ALL}", 0, 0.004, "all-reduce-start"
    )
    second = comm(
        f"%ars2 = f32[1024] all-reduce-start(f32[1024] %p), {ALL}", 0.004, 0.004, "all-reduce-start"
    )
    ends = [
        comm(
            f"%ard{k} = f32[1024] all-reduce-done(f32[1024] %ars{k})",
            10 + 2 * i,
            2,
            "all-reduce-done",
        )
        for i, k in enumerate(("", "2"))
    ]
    path = write_xplane(
        tmp_path / "h.xplane.pb", chips(2, [start, second, compute(0.008, 9.992), *ends])
    )
    graph = checked(path)
    numbers = graph.lanes.number[graph.lane[of(graph, Collective.ALL_REDUCE)]].tolist()
    assert numbers == [100, 101, 100, 101]
    assert set(graph.lanes.kind.tolist()) == {LaneKind.STREAM, LaneKind.HOST}


# Devices that are no TPUs ----------------------------------------------------------------


def gpu_profile(
    path: Path, *, program: bool = True, kernel: str = "ncclDevKernel_AllReduce"
) -> Path:
    """Two GPUs that each ran a matrix multiplication and an all-reduce twice."""
    table = {"hlo_op": 1, "hlo_module": 2, "Hlo Proto": 3, "gemm": 4, "ar": 5, "jit_step": 6}
    stats = [{1: number, 2: {1: number, 2: name}} for name, number in table.items()]

    def event(metadata: int, start: int, dur: int, op: str) -> dict[int, object]:
        return {
            1: metadata,
            2: start * 10**6,
            3: dur * 10**6,
            4: [{1: 1, 7: table[op]}, {1: 2, 7: table["jit_step"]}],
        }

    names = [{1: 1, 2: {1: 1, 2: "gemm_kernel"}}, {1: 2, 2: {1: 2, 2: kernel}}]
    planes: list[dict[int, object]] = [
        {2: f"/device:GPU:{gpu}", 4: names, 5: stats, 3: [
            {1: 7, 2: "Stream #7(Kernel)", 4: [event(1, at, 40, "gemm") for at in (0, 100)]},
            {1: 9, 2: "Stream #9(Kernel)",
             4: [event(2, at + gpu, 20 - gpu, "ar") for at in (40, 140)]},
        ]}
        for gpu in range(2)
    ]  # fmt: skip
    if program:
        hlo = hlo_proto("jit_step", {"main": [
            instruction("x", "parameter", array(F32, 1024), 1),
            instruction("gemm", "custom-call", array(F32, 1024), 2, operand_ids=[1]),
            instruction("ar", "all-reduce-start", array(F32, 1024), 3, operand_ids=[2],
                        channel_id=1, use_global_device_ids=1,
                        collective_device_list={1: [{1: [0, 1]}]}),
        ]}, devices=[[0], [1]])  # fmt: skip
        planes.append(
            {
                2: "/host:metadata",
                5: stats,
                4: [{1: 1, 2: {1: 1, 2: "jit_step(6)", 5: [{1: table["Hlo Proto"], 6: hlo}]}}],
            }
        )
    path.write_bytes(encode({1: planes, 4: "box"}))
    return path


def test_kernels_of_a_gpu_are_the_collectives_of_the_program(tmp_path: Path) -> None:
    graph = checked(gpu_profile(tmp_path / "h.xplane.pb"))
    assert graph.source == "xla-gpu"
    nodes = of(graph, Collective.ALL_REDUCE)
    assert graph.size_bytes[nodes].tolist() == [4096] * 4
    assert graph.transfer_ns[nodes].tolist() == [19_000] * 4
    assert len(graph.steps) == 2
    assert any("told by what recurs" in text for text in graph.coverage.warnings)
    # The all-reduce waits for the multiplication on the other stream.
    replay = simulate(graph, measured=True)
    assert replay.completion_ns.max(axis=1).tolist() == [60_000, 160_000]
    first = next(n for n in nodes.tolist())
    waits_for = graph.dep_node[graph.dep_ptr[first] : graph.dep_ptr[first + 1]]
    assert "gemm" in {name_of(graph, n) for n in waits_for.tolist()}


def test_without_compiled_programs_gpus_and_cpus_are_refused(tmp_path: Path) -> None:
    path = gpu_profile(tmp_path / "h.xplane.pb", program=False)
    with pytest.raises(TraceError, match="has no compiled programs"):
        convert_xla(path)


def test_a_profile_of_tpus_needs_no_compiled_programs(tmp_path: Path) -> None:
    """Without /host:metadata the text of the operations says the same."""
    path = write_xplane(tmp_path / "h.xplane.pb", chips(2, [compute(0, 10), all_reduce(10, 5)]))
    assert checked(path).coverage.collectives_matched == 2


def test_exported_traces_of_several_hosts_are_one_job(tmp_path: Path) -> None:
    """Nothing but the names says which host is which, and every clock starts anew."""
    groups = "channel_id=1, replica_groups=[1,24]<=[24], use_global_device_ids=true"
    made = chips(24, [compute(0, 10), all_reduce(10, 5, groups=groups)], runs=3)
    for worker in range(12):
        mine = made[2 * worker : 2 * worker + 2]
        for chip in mine:
            for event in (*chip.modules, *chip.ops):
                event.start += 777.0 * worker
            chip.ops[0].dur -= 0.5 * worker  # recognisable, and early in the all-reduce
            chip.ops[1].start -= 0.5 * worker
            chip.ops[1].dur += 0.5 * worker
        write_json(tmp_path / f"t1v-n-1234-w-{worker}.trace.json.gz", mine)
    graph = checked(tmp_path)
    assert graph.ranks.tolist() == list(range(24))
    assert graph.groups[0].ranks == tuple(range(24))
    first = [int(graph.rank_ptr[r]) for r in range(24)]
    assert graph.dur_ns[first].tolist() == [10_000 - 500 * (r // 2) for r in range(24)]
    assert set(graph.transfer_ns[of(graph, Collective.ALL_REDUCE)].tolist()) == {5_000}
    assert any("worker numbers in their names" in text for text in graph.coverage.assumed)


@pytest.mark.parametrize("other", ["jit_train(9)", "jit_step(8)"])
def test_profiles_of_different_jobs_are_refused_by_their_programs(
    tmp_path: Path, other: str
) -> None:
    """What both ran beside, and be it the same, does not make one job of two."""
    for name, main in (("a", "jit_step(7)"), ("b", other)):
        made = chips(1, [compute(0, 100)], module=main)
        made[0].modules.append(Module("jit_select(3)", 200, 5))
        made[0].ops.append(compute(200, 5))
        write_xplane(tmp_path / f"{name}.xplane.pb", made, host=name)
    with pytest.raises(TraceError, match="is of another job") as raised:
        convert_xla(tmp_path)
    assert "main program is jit_step(7), which did not run in b.xplane.pb" in raised.value.message
    assert other in raised.value.message
    assert str(raised.value.file).endswith("a.xplane.pb")


def test_hosts_that_spent_their_time_in_different_programs_of_one_job_are_one(
    tmp_path: Path,
) -> None:
    for name, spent in (("a", 60), ("b", 40)):
        made = chips(1, [compute(0, spent)])
        made[0].modules.append(Module("jit_eval(3)", 200, 100 - spent))
        made[0].ops.append(compute(200, 100 - spent))
        write_xplane(tmp_path / f"{name}.xplane.pb", made, host=name)
    assert checked(tmp_path).hosts == ("a", "b")


def test_two_profiles_of_one_host_are_refused(tmp_path: Path) -> None:
    made = chips(1, [compute(0, 10)])
    write_xplane(tmp_path / "a.xplane.pb", made, host="box")
    write_xplane(tmp_path / "b.xplane.pb", made, host="box")
    with pytest.raises(TraceError, match="two profiles of host box"):
        convert_xla(tmp_path)
