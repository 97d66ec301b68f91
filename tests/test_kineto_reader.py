"""The Kineto reader: every form and every damage that traces come in, exact to the nanosecond."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whatif.base.errors import TraceError
from whatif.converters.chrome.decode import RowDecoder
from whatif.converters.chrome.stream import EventStream
from whatif.converters.chrome.text import TextBlocks
from whatif.converters.kineto.events import Category, KinetoTrace
from whatif.converters.kineto.reader import read_kineto

if TYPE_CHECKING:
    from pathlib import Path

BASE_NS = 1_767_189_312_000_000_000

# ---------------------------------------------------------------- writing traces


@dataclass
class Event:
    """A complete event with exact times, before any form has been chosen for it."""

    name: str
    cat: str
    pid: int
    tid: int
    start_ns: int
    dur_ns: int
    args: dict[str, Any]


def time_text(ns: int, form: str) -> str:
    if form == "int":
        assert ns % 1000 == 0
        return str(ns // 1000)
    text = f"{ns // 1000}.{ns % 1000:03d}"
    return f'"{text}"' if form == "string" else text


def event_text(event: Event, form: str = "float", indent: int | None = None) -> str:
    fields = {"cat": event.cat, "name": event.name, "pid": event.pid, "tid": event.tid}
    texts = ['"ph": "X"']
    texts += [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items()]
    texts.append(f'"ts": {time_text(event.start_ns, form)}')
    texts.append(f'"dur": {time_text(event.dur_ns, form)}')
    texts.append(f'"args": {json.dumps(event.args, indent=indent)}')
    return "{" + ",\n ".join(texts) + "}"


def write(path: Path, events: str, head: str = "", tail: str = "", *, pack: bool = False) -> Path:
    text = f'{{{head}"traceEvents": [{events}]{tail}}}'.encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(text) if pack else text)
    return path


def simple(name: str = "aten::add", start_ns: int = 1000, **changes: Any) -> Event:
    fields = {"cat": "cpu_op", "pid": 1, "tid": 1, "dur_ns": 500, "args": {"External id": 7}}
    return Event(name=name, start_ns=start_ns, **{**fields, **changes})


def names_of(trace: KinetoTrace) -> list[str]:
    return [trace.strings[i] for i in trace.name]


# ---------------------------------------------------------------- any form reads back exactly

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
CATEGORY = {
    "cpu_op": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME,
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["},{", '"},\n  {', "}]", '}], "x": [', "\\", '"', '"traceEvents": [', "ünï", "a\nb", "record_"]
)
numbers = st.integers(0, 2**40)
other_args = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | st.integers(0, 2**64 - 1) | texts,
        lambda child: st.lists(child, max_size=3) | st.dictionaries(texts, child, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)


@st.composite
def event_lists(draw: st.DrawFn) -> tuple[list[Event], str, int]:
    """Events, the form of their times and the base they are relative to (0: absolute)."""
    form = draw(st.sampled_from(["int", "float", "string"]))
    absolute = draw(st.booleans())
    unit = 1000 if form == "int" else 1
    # Absolute times are too large for a double to hold their nanoseconds.
    low, high = (BASE_NS, BASE_NS + 10**12) if absolute else (1, 7_889_238_000_000_000)
    starts = st.integers(low // unit + 1, high // unit).map(lambda n: n * unit)
    few_starts = draw(st.lists(starts, min_size=1, max_size=4))
    events = draw(
        st.lists(
            st.builds(
                Event,
                name=texts,
                cat=st.sampled_from(list(CATEGORY)),
                pid=st.integers(0, 9),
                tid=st.integers(0, 9),
                start_ns=st.sampled_from(few_starts) | starts,
                dur_ns=st.integers(0, 10**7).map(lambda n: n * unit),
                args=st.fixed_dictionaries(
                    {},
                    optional={
                        "External id": numbers,
                        "correlation": numbers,
                        "device": st.integers(0, 7),
                        "stream": st.integers(0, 99) | st.integers(0, 99).map(str),
                        "bytes": numbers | numbers.map(str),
                        "more": other_args,
                    },
                ),
            ),
            max_size=8,
        )
    )
    return events, form, 0 if absolute else BASE_NS


def check(trace: KinetoTrace, events: list[Event]) -> None:
    expected = sorted(events, key=lambda event: (event.start_ns, -event.dur_ns))

    def column(key: str, cats: tuple[str, ...], row: str = "") -> list[int]:
        return [
            int(event.args.get(key, getattr(event, row) if row and event.cat in DEVICE else -1))
            if not cats or event.cat in cats
            else -1
            for event in expected
        ]

    on_device = (*DEVICE, "cuda_runtime")
    assert names_of(trace) == [event.name for event in expected]
    assert trace.category.tolist() == [CATEGORY[event.cat] for event in expected]
    assert [trace.threads[i] for i in trace.thread] == [(e.pid, e.tid) for e in expected]
    assert trace.start_ns.tolist() == [event.start_ns for event in expected]
    assert trace.dur_ns.tolist() == [event.dur_ns for event in expected]
    assert trace.external_id.tolist() == column("External id", ())
    assert trace.correlation.tolist() == column("correlation", on_device)
    assert trace.device.tolist() == column("device", on_device, "pid")
    assert trace.stream.tolist() == column("stream", on_device, "tid")
    assert trace.size_bytes.tolist() == column("bytes", ("gpu_memcpy", "gpu_memset"))
    assert trace.events_seen == len(events)
    assert trace.events_damaged == 0


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    case=event_lists(),
    block_bytes=st.integers(1, 300),
    indent=st.none() | st.integers(0, 2),
    bare=st.booleans(),
    first=st.sampled_from(
        ["", '"schemaVersion": 1, ', '"notes": ["},{", "\\"traceEvents\\": ["], ']
    ),
    last=st.sampled_from(["", ', "traceName": "a"', ', "INFO": [{"a": [1]}, {"b": 2}]']),
    members=st.integers(0, 3),
    spaces=st.sampled_from(["", "\n", " \n\t"]),
    bom=st.booleans(),
)
def test_every_form_reads_back_exactly(
    tmp_path: Path,
    case: tuple[list[Event], str, int],
    block_bytes: int,
    indent: int | None,
    bare: bool,
    first: str,
    last: str,
    members: int,
    spaces: str,
    bom: bool,
) -> None:
    events, form, base_ns = case
    rows = [event_text(event, form, indent) for event in events]
    array = f"[{spaces}" + f",{spaces}".join(rows) + f"{spaces}]"
    base = f', "baseTimeNanoseconds": {base_ns}' if base_ns else ""
    text = array if bare else f'{spaces}{{{first}"traceEvents" :{array}{last}{base}}}{spaces}'
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    if members:
        size = len(data) // members + 1
        parts = [data[i : i + size] for i in range(0, len(data), size)]
        data = b"".join(gzip.compress(part) for part in parts) + b"\0" * 5
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    trace = read_kineto(path, _block_bytes=block_bytes)
    check(trace, events)
    assert trace.base_ns == (0 if bare else base_ns)
    assert [w for w in trace.warnings if w != "the trace holds no events"] == []


@pytest.mark.parametrize(
    "start_ns", [4_458_676_388_068_751, 4_499_999_999_999_999, 8_796_093_022_207_999]
)
def test_doubles_of_three_months_keep_their_nanoseconds(tmp_path: Path, start_ns: int) -> None:
    # Around 2^42 microseconds a plain product with 1000 is half a nanosecond off.
    starts = range(start_ns - 3000, start_ns + 1)
    rows = ",".join(event_text(simple(start_ns=ns)) for ns in starts)
    assert read_kineto(write(tmp_path / "a.json", rows)).start_ns.tolist() == list(starts)


def test_events_are_ordered_with_the_enclosing_one_first(tmp_path: Path) -> None:
    events = [simple("inner", 2000), simple("outer", 2000, dur_ns=900), simple("before", 1500)]
    trace = read_kineto(write(tmp_path / "a.json", ",".join(map(event_text, events))))
    assert names_of(trace) == ["before", "outer", "inner"]


# ---------------------------------------------------------------- what is kept of an event


def test_old_spellings_are_understood(tmp_path: Path) -> None:
    rows = """
    {"ph": "X", "cat": "Operator", "name": "aten::mm", "pid": 9, "tid": "12", "ts": 5, "dur": 9,
     "args": {"external id": 3}},
    {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": "12", "ts": 6,
     "dur": 1, "args": {"external id": "3", "correlation": 44}},
    {"ph": "X", "cat": "Kernel", "name": "sgemm", "pid": 0, "tid": "stream 7", "ts": 8, "dur": 3,
     "args": {"external id": 3, "correlation": 44, "device": 0}},
    {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": "stream 7", "ts": 12,
     "dur": 3, "args": {"external id": 4, "bytes": "512"}}
    """
    trace = read_kineto(write(tmp_path / "a.json", rows))
    expected = [Category.CPU_OP, Category.RUNTIME, Category.KERNEL, Category.MEMCPY]
    assert trace.category.tolist() == expected
    assert trace.external_id.tolist() == [3, 3, 3, 4]
    assert trace.correlation.tolist() == [-1, 44, 44, -1]
    assert trace.stream.tolist() == [-1, -1, 7, 7]
    assert trace.size_bytes.tolist() == [-1, -1, -1, 512]


def test_synchronisation_rows_say_what_was_waited_for(tmp_path: Path) -> None:
    rows = """
    {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 7, "ts": 5,
     "dur": 2, "args": {"stream": 7, "correlation": 50, "wait_on_stream": 20,
     "wait_on_cuda_event_record_corr_id": 40, "wait_on_cuda_event_id": 3}},
    {"ph": "X", "cat": "cuda_event", "name": "cuda_event", "pid": 0, "tid": 20, "ts": 9, "dur": 1,
     "args": {"stream": 20, "event_id": 3, "correlation": 40}}
    """
    trace = read_kineto(write(tmp_path / "a.json", rows))
    assert trace.wait_stream.tolist() == [20, -1]
    assert trace.wait_correlation.tolist() == [40, -1]
    assert trace.event_id.tolist() == [3, 3]


def test_arguments_are_kept_where_they_describe_communication(tmp_path: Path) -> None:
    metadata = {"Collective name": "allreduce", "Comms Id": 2**64 - 1, "Process Group Name": "0"}
    events = [
        simple("record_param_comms", 1000, args=metadata),
        simple("c10d::allreduce_", 2000, args={"Input Dims": [[[4, 2]]]}),
        simple("gloo:all_reduce", 3000, cat="user_annotation"),
        simple("symm_mem::multimem_all_reduce_", 4000),
        simple("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", 5000, cat="kernel"),
        simple("void vllm::cross_device_reduce_1stage<float, 8>()", 6000, cat="kernel"),
        simple("some_new_kernel", 7000, cat="kernel", args=metadata),
        simple("aten::broadcast_tensors", 8000),
        simple("void at::native::reduce_kernel<512, 1>()", 9000, cat="kernel"),
        simple("triton_poi_fused_add_all_reduce_4", 10000, cat="kernel"),
        simple("cudaLaunchKernel", 11000, cat="cuda_runtime"),
    ]
    trace = read_kineto(write(tmp_path / "a.json", ",".join(map(event_text, events))))
    assert sorted(trace.args) == [0, 1, 2, 3, 4, 5, 6]
    assert trace.args[0] == trace.args[6] == metadata
    assert trace.args[1] == {"Input Dims": [[[4, 2]]]}


def test_host_operations_can_be_left_out_but_not_their_communication(tmp_path: Path) -> None:
    events = [
        simple("aten::add", 1000),
        simple("record_param_comms", 2000, args={"dtype": "Float"}),
        simple("ProfilerStep#1", 3000, cat="user_annotation"),
        simple("sgemm", 4000, cat="kernel"),
    ]
    path = write(tmp_path / "a.json", ",".join(map(event_text, events)))
    trace = read_kineto(path, keep_host_ops=False)
    assert names_of(trace) == ["record_param_comms", "ProfilerStep#1", "sgemm"]
    assert trace.args[0] == {"dtype": "Float"}
    assert (trace.events_seen, trace.events_skipped) == (4, {"cpu_op": 1})


def test_what_no_conversion_uses_is_counted_and_not_kept(tmp_path: Path) -> None:
    events = [
        simple("nn.Module: Linear_0", cat="python_function"),
        simple("forward", cat="python_function"),
        simple("PyTorch Profiler (0)", cat="Trace"),
        simple(),
    ]
    trace = read_kineto(write(tmp_path / "a.json", ",".join(map(event_text, events))))
    assert len(trace) == 1
    assert trace.events_skipped == {"python_function": 2, "Trace": 1}


def test_flows_between_threads_are_kept_and_those_of_launches_are_not(tmp_path: Path) -> None:
    rows = """
    {"ph": "X", "cat": "cpu_op", "name": "f", "pid": 1, "tid": 1, "ts": 1.001, "dur": 9},
    {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1.001, "cat": "fwdbwd", "name": "fwdbwd"},
    {"ph": "s", "id": 2, "pid": 1, "tid": 1, "ts": 2, "cat": "forward_backward", "name": "x"},
    {"ph": "f", "id": 1, "pid": 1, "tid": 2, "ts": 9.002, "cat": "fwdbwd", "name": "fwdbwd",
     "bp": "e"},
    {"ph": "f", "id": 2, "pid": 1, "tid": 2, "ts": 8, "cat": "forward_backward", "name": "x"},
    {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 3, "cat": "ac2g", "name": "ac2g"},
    {"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 4, "cat": "async", "name": "handover"},
    {"ph": "f", "id": 5, "pid": 1, "tid": 2, "ts": 5, "cat": "async", "name": "handover"},
    {"ph": "s", "id": 6, "pid": 1, "tid": 1, "ts": 6, "cat": "async", "name": "gpu"},
    {"ph": "f", "id": 6, "pid": 0, "tid": 7, "ts": 7, "cat": "async", "name": "gpu"},
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 7, "dur": 1}
    """
    trace = read_kineto(write(tmp_path / "a.json", rows))
    flows = trace.flows
    assert flows.time_ns.tolist() == [1001, 2000, 4000, 5000, 8000, 9002]
    assert flows.finish.tolist() == [False, False, False, True, True, True]
    assert [trace.threads[i][1] for i in flows.thread] == [1, 1, 1, 2, 2, 2]
    ids = flows.flow_id.tolist()
    assert (ids[0], ids[1], ids[2]) == (ids[5], ids[4], ids[3])
    assert len(set(ids)) == 3


def test_begin_and_end_pairs_become_complete_events(tmp_path: Path) -> None:
    rows = """
    {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 1.5},
    {"ph": "B", "cat": "cpu_op", "name": "other", "pid": 1, "tid": 2, "ts": 2},
    {"ph": "B", "cat": "cpu_op", "name": "inner", "pid": 1, "tid": 1, "ts": 3,
     "args": {"External id": 8}},
    {"ph": "E", "pid": 1, "tid": 1, "ts": 4.001},
    {"ph": "E", "pid": 1, "tid": 1, "ts": 9},
    {"ph": "E", "pid": 1, "tid": 3, "ts": 9}
    """
    trace = read_kineto(write(tmp_path / "a.json", rows), _block_bytes=50)
    assert names_of(trace) == ["outer", "inner"]
    assert trace.start_ns.tolist() == [1500, 3000]
    assert trace.dur_ns.tolist() == [7500, 1001]
    assert trace.external_id.tolist() == [-1, 8]
    assert trace.warnings == ["2 begin or end events without their partner left out"]


def test_what_the_file_says_of_the_job_is_read(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    metadata = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}, {"id": 1, "name": "NVIDIA A100"}],
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": groups},
        "host_name": "node7",
    }
    head = json.dumps(metadata)[1:-1] + ", "
    trace = read_kineto(write(tmp_path / "a.json", event_text(simple()), head))
    assert (trace.rank, trace.world_size, trace.backend) == (1, 2, "nccl")
    assert trace.devices == ("NVIDIA A100", "NVIDIA A100")
    assert trace.host_name == "node7"
    assert trace.process_groups == groups


def test_absolute_times_are_not_counted_from_the_base(tmp_path: Path) -> None:
    event = event_text(simple(start_ns=BASE_NS + 5), "string")
    base = f', "baseTimeNanoseconds": {BASE_NS}'
    trace = read_kineto(write(tmp_path / "a.json", event, tail=base))
    assert (trace.base_ns, trace.start_ns.tolist()) == (0, [BASE_NS + 5])
    assert any("absolute" in warning for warning in trace.warnings)


# ---------------------------------------------------------------- oddities, survived and reported


def test_events_whose_start_was_lost_are_left_out(tmp_path: Path) -> None:
    events = [simple("lost", 0), simple("late", 10**14)]
    trace = read_kineto(write(tmp_path / "a.json", ",".join(map(event_text, events))))
    assert names_of(trace) == ["late"]
    assert any("1 events that start at time 0" in warning for warning in trace.warnings)


def test_a_trace_that_really_begins_at_zero_is_whole(tmp_path: Path) -> None:
    events = [simple("first", 0), simple("second", 10**9)]
    trace = read_kineto(write(tmp_path / "a.json", ",".join(map(event_text, events))))
    assert names_of(trace) == ["first", "second"]
    assert trace.warnings == []


GOOD = [event_text(simple(f"op{i}", 1000 * (i + 1))) for i in range(6)]
DAMAGE = {
    "unescaped quotes": GOOD[2].replace("op2", 'op"2" of "x"'),
    "raw newline": GOOD[2].replace("op2", "op\n2"),
    "Windows path": GOOD[2].replace("op2", r"C:\path\op2"),
    "not UTF-8": GOOD[2].replace("op2", "op\udcff2"),
    "lone surrogate": GOOD[2].replace("op2", r"op\ud800"),
    "bare nan": GOOD[2].replace('"External id": 7', '"External id": 7, "GB/s": nan'),
    "bare infinity": GOOD[2].replace('"External id": 7', '"External id": 7, "GB/s": -inf'),
    "trailing comma in arguments": GOOD[2].replace('"External id": 7', '"External id": 7,'),
    "text for a number": GOOD[2].replace('"External id": 7', '"External id": "7"'),
    "null arguments": GOOD[2].replace('{"External id": 7}', "null"),
    "duplicate key": GOOD[2].replace('"External id": 7', '"External id": 7, "External id": 7'),
}


@pytest.mark.parametrize("block_bytes", [40, 300, 1 << 17])
@pytest.mark.parametrize("damage", list(DAMAGE))
def test_damage_costs_no_event(tmp_path: Path, damage: str, block_bytes: int) -> None:
    rows = [*GOOD[:2], DAMAGE[damage], *GOOD[3:]]
    trace = read_kineto(write(tmp_path / "a.json", ",\n".join(rows)), _block_bytes=block_bytes)
    assert trace.start_ns.tolist() == [1000, 2000, 3000, 4000, 5000, 6000]
    assert trace.dur_ns.tolist() == [500] * 6
    expected = -1 if damage == "null arguments" else 7
    assert trace.external_id.tolist() == [7, 7, expected, 7, 7, 7]
    assert trace.events_damaged == 0
    assert "".join(names_of(trace)).encode() is not None  # can be written to a file


@pytest.mark.parametrize("block_bytes", [40, 300, 1 << 17])
@pytest.mark.parametrize(
    ("events", "lost"),
    [
        (",".join(GOOD) + ",", 0),
        (",".join(GOOD[:3]) + ",," + ",".join(GOOD[3:]), 0),
        ("," + ",".join(GOOD), 0),
        ("\n".join(GOOD), 0),
        (",".join([*GOOD[:3], "null", *GOOD[3:]]), 1),
        (",".join([*GOOD[:3], '{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 5}', *GOOD[3:]]), 1),
        (",".join([*GOOD[:3], '{"ph": "X", "name": "x" "ts": }', *GOOD[3:]]), 1),
        (
            ",".join(
                [*GOOD[:3], '{"ph": "X", "name": "\\q", "ts": 1e9999999999999999999}', *GOOD[3:]]
            ),
            1,
        ),
        (",".join([*GOOD[:5], GOOD[5][:-2] + "}", '{"ph: X}']), 1),
    ],
    ids=[
        "trailing comma",
        "doubled comma",
        "leading comma",
        "missing commas",
        "null instead of an event",
        "event without a time",
        "event beyond repair",
        "number beyond all bounds",
        "last event beyond repair",
    ],
)
def test_damage_between_events_costs_none_of_the_others(
    tmp_path: Path, events: str, lost: int, block_bytes: int
) -> None:
    trace = read_kineto(write(tmp_path / "a.json", events), _block_bytes=block_bytes)
    kept = names_of(trace)
    assert kept[:5] == ["op0", "op1", "op2", "op3", "op4"]
    assert trace.events_damaged == lost
    assert bool(trace.warnings) == bool(lost)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    count=st.integers(1, 12),
    data=st.data(),
    block_bytes=st.integers(1, 600),
    wrong=st.sampled_from(['"', "\n", "\\", "\\q", "\udcfe", '"},{"', "\x00"]),
)
def test_one_damaged_name_never_costs_another_event(
    tmp_path: Path, count: int, data: st.DataObject, block_bytes: int, wrong: str
) -> None:
    bad = data.draw(st.integers(0, count - 1))
    events = [simple(f"op{i}", 1000 * (i + 1)) for i in range(count)]
    rows = [event_text(event) for event in events]
    rows[bad] = rows[bad].replace(f"op{bad}", f"op{wrong}{bad}")
    trace = read_kineto(write(tmp_path / "a.json", ",\n".join(rows)), _block_bytes=block_bytes)
    others = [event.start_ns for i, event in enumerate(events) if i != bad]
    assert [ns for ns in trace.start_ns.tolist() if ns != events[bad].start_ns] == others
    if len(trace) < count:
        assert trace.events_damaged >= 1


@pytest.mark.parametrize("bare", [True, False])
def test_events_after_the_end_of_the_array_are_never_lost_silently(
    tmp_path: Path, bare: bool
) -> None:
    path = tmp_path / "a.json"
    array = f"[{GOOD[0]}, {GOOD[1]}]], {GOOD[2]}, {GOOD[3]}]"
    path.write_text(array if bare else f'{{"traceEvents": {array}}}')
    with pytest.raises(TraceError, match="2 events follow the end"):
        read_kineto(path)


@pytest.mark.parametrize("block_bytes", [40, 2000, 1 << 17])
def test_damage_among_events_that_hold_lists_of_objects_costs_one_event(
    tmp_path: Path, block_bytes: int
) -> None:
    shapes = [{"dims": [i, i]} for i in range(30)]
    events = [simple(f"op{i}", 1000 * (i + 1), args={"x": shapes}) for i in range(20)]
    rows = [event_text(event) for event in events]
    rows[7] = rows[7].replace('"op7"', '"the "op7" of old"').replace('"ts": 8.000', '"ts": ?')
    trace = read_kineto(write(tmp_path / "a.json", ",".join(rows)), _block_bytes=block_bytes)
    assert names_of(trace) == [event.name for event in events if event.name != "op7"]
    assert trace.events_damaged >= 1


def test_a_damaged_top_level_still_tells_the_rank(tmp_path: Path) -> None:
    head = '"distributedInfo": {"rank": 3}, "INFO": ["said "hello""], '
    tail = f', "baseTimeNanoseconds": {BASE_NS}'
    trace = read_kineto(write(tmp_path / "a.json", GOOD[0], head, tail))
    assert (trace.rank, trace.base_ns) == (3, BASE_NS)
    assert any("damaged" in warning for warning in trace.warnings)


def test_an_event_larger_than_many_blocks_is_read(tmp_path: Path) -> None:
    shapes = [{"dims": [i, i], "name": "},{"} for i in range(20_000)]
    events = [simple("small", 1000), simple("large", 2000, args={"External id": 5, "x": shapes})]
    events.append(simple("after", 3000))
    path = write(tmp_path / "a.json", ",".join(map(event_text, events)))
    trace = read_kineto(path, _block_bytes=1 << 12)
    assert names_of(trace) == ["small", "large", "after"]
    assert trace.external_id.tolist() == [7, 5, 7]
    assert trace.warnings == []


def test_runs_stay_small_where_events_hold_lists_of_objects(tmp_path: Path) -> None:
    # Most of what looks like the end of an event is then inside one.
    shapes = [{"dims": [i, i]} for i in range(40)]
    events = [simple(f"op{i}", 1000 * (i + 1), args={"x": shapes}) for i in range(300)]
    path = write(tmp_path / "a.json", ",".join(map(event_text, events)))
    stream = EventStream(TextBlocks(path, 2000, lambda _: None), RowDecoder())
    runs = list(stream)
    assert [row.name for rows, _ in runs for row in rows] == [event.name for event in events]
    assert max(len(text or b"") for _, text in runs) < 6000


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("block_bytes", [13, 1 << 17])
@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_a_file_that_ends_early_is_refused_wherever_it_was_cut(
    tmp_path: Path, bare: bool, pack: bool, block_bytes: int
) -> None:
    nested = event_text(simple("nested", 9000, args={"x": [{"a": 1}], "b": {"c": [{"d": 2}]}}))
    array = f"[{GOOD[0]}, {nested}]"
    text = array if bare else f'{{"schemaVersion": 1, "traceEvents": {array}, "a": [{{}}]}}'
    data = gzip.compress(text.encode()) if pack else text.encode()
    path = tmp_path / "a.json"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(TraceError) as refusal:
            read_kineto(path, _block_bytes=block_bytes)
        assert str(path) in str(refusal.value)


def test_a_truncated_gzip_says_what_was_read_before_the_cut(tmp_path: Path) -> None:
    rows = [event_text(simple(f"op{i}", 1000 * i, args={"External id": i})) for i in range(1, 9000)]
    path = write(tmp_path / "rank0.json.gz", ",\n".join(rows), pack=True)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match=r"truncated: .* [34]\d\d\d complete events") as refusal:
        read_kineto(path)
    assert refusal.value.file == str(path)
    assert refusal.value.place == f"compressed byte {len(data) // 2}"


def test_a_truncated_json_says_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(write(path, ",".join(GOOD)).read_text()[:-30])
    with pytest.raises(TraceError, match=r"truncated: .* 5 complete events") as refusal:
        read_kineto(path)
    assert refusal.value.place is not None
    assert refusal.value.place.startswith("byte ")


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", ",".join(GOOD), pack=True)
    data = bytearray(path.read_bytes())
    data[-6] ^= 0xFF  # the checksum
    path.write_bytes(data)
    with pytest.raises(TraceError, match="damaged gzip data"):
        read_kineto(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (gzip.compress(b""), "empty"),
        (b" \n", "empty"),
        (b"\x1f\x8b\x08\x00", "damaged gzip data"),
        (b"hello", "not JSON: it begins with 'hello'"),
        (b'{"schema": "1.0.1", "pid": 1, "nodes": [{"id": 1}]}', "ExecutionTrace"),
        (b'{"traceEvents":[{"ph":"M","pid":3,"args":{"name":"/device:TPU:0"}}]}', "XLA trace"),
        (b"\x0a\x05\x08\x01\x10\x02", "Perfetto"),
        (b"\x0a\x20\x12\x09/host:CPU\x08\x01", "xplane"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"[[1, 2], [3, 4]]", "table"),
        (b'{"a": 1}', "no traceEvents array"),
        (b"../rank0.pt.trace.json.gz", "symbolic link"),
    ],
)
def test_what_is_no_kineto_trace_is_named(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=what):
        read_kineto(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_kineto(tmp_path / "none.json")


# ---------------------------------------------------------------- real files

REAL = [
    "traces/gpu/megatron_tp8_a100x8/kineto_rank[06].json.gz",
    "traces/gpu/dlrm_v100x8/kineto_rank*.json.gz",
    "traces/gpu/sampled_2of128/*",
    "traces/gpu/single/*",
    "traces/bad/hta_*",
    "lab/*/*/rank*_trace.json.gz",
]


@pytest.mark.parametrize("pattern", REAL)
def test_real_files_read_as_a_plain_json_reader_counts_them(
    shared_data: Path, pattern: str
) -> None:
    paths = [path for path in shared_data.glob(pattern) if "_et" not in path.name]
    assert paths
    for path in paths:
        trace = read_kineto(path)
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        rows = [row for row in json.loads(text)["traceEvents"] if row.get("ph") == "X"]
        skipped = {"Trace", "python_function"}
        kept = [row for row in rows if row["cat"] not in skipped]
        assert trace.events_seen == len(rows), path
        assert len(trace) == len(kept), path
        assert sum(trace.events_skipped.values()) == len(rows) - len(kept)
        assert int(trace.dur_ns.sum()) == sum(round(row["dur"] * 1000) for row in kept), path
        assert (trace.events_damaged, trace.warnings) == (0, []), path
        assert np.all(np.diff(trace.start_ns) >= 0)
        kernels = [row for row in rows if row["cat"] == "kernel"]
        found = trace.category == Category.KERNEL
        assert int(found.sum()) == len(kernels)
        links = sorted(row.get("args", {}).get("correlation", -1) for row in kernels)
        assert sorted(trace.correlation[found].tolist()) == links
        described = sum("Collective name" in row.get("args", {}) for row in rows)
        assert sum("Collective name" in args for args in trace.args.values()) == described


BAD = {
    "hta_distinfo_without_rank.json.gz": None,
    "hta_large_integer_rank70.json.gz": None,
    "hta_no_distinfo.json.gz": None,
    "hta_non_gpu.json.gz": None,
    "lfs_pointer.tgz": "Git LFS pointer",
    "nccltests_failed_run_no_rows.log": "not JSON",
    "symlink_text.pt.trace.json.gz": "symbolic link",
    "utf8_mangled.xplane.pb.gz": "XLA profile",
}


def test_bad_files_have_the_outcome_that_their_content_deserves(shared_data: Path) -> None:
    folder = shared_data / "traces" / "bad"
    assert {path.name for path in folder.iterdir()} == set(BAD)
    for name, refusal in BAD.items():
        if refusal is None:
            assert len(read_kineto(folder / name)) > 0
        else:
            with pytest.raises(TraceError, match=refusal):
                read_kineto(folder / name)


def test_64_bit_identifiers_survive(shared_data: Path) -> None:
    trace = read_kineto(shared_data / "traces" / "bad" / "hta_large_integer_rank70.json.gz")
    (record,) = (args for args in trace.args.values() if args)
    assert record == {"Comms Id": 10159970886766084423}


def test_nanoseconds_of_absolute_times_survive(shared_data: Path) -> None:
    path = shared_data / "traces" / "gpu" / "single" / "ns_resolution_ws1.json.gz"
    trace = read_kineto(path)
    assert trace.base_ns == 0
    # Written as 1712195495607290.317, which a double rounds to a quarter of a microsecond.
    everything = np.concatenate([trace.start_ns, trace.flows.time_ns])
    assert len(np.unique(everything % 1000)) > 900
