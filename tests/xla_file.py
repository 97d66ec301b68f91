"""Small XLA profiles with known contents, written as trace.json and as xplane.pb.

The protobuf encoder is written here from the wire format, apart from what reads it.
"""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Message = dict[int, Any]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def encode(message: Message) -> bytes:
    """Encode a message given as {field number: int, float, str, bytes, message or a list}."""
    out = b""
    for number, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, bool | int):
                out += varint(number << 3) + varint(int(item))
            elif isinstance(item, float):
                out += varint(number << 3 | 1) + struct.pack("<d", item)
            else:
                data = item if isinstance(item, bytes) else b""
                if isinstance(item, str):
                    data = item.encode()
                elif isinstance(item, dict):
                    data = encode(item)
                out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


@dataclass
class Op:
    """One event of a device line, microseconds; `device` is start and duration on its clock."""

    text: str
    start: float
    dur: float
    category: str = ""
    name: str = ""
    device: tuple[float, float] | None = None

    @property
    def shown(self) -> str:
        return self.name or self.text.split(" = ")[0].lstrip("%")


@dataclass
class Module:
    """One run of a program."""

    name: str
    start: float
    dur: float
    run: int = 1


@dataclass
class Chip:
    """What one chip recorded; `clock_us` is what its own clock shows when the profile's is 0."""

    modules: list[Module] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    barriers: list[tuple[float, float]] = field(default_factory=list)
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    asyncs: list[Op] = field(default_factory=list)
    sparse: list[Op] = field(default_factory=list)
    clock_us: float | None = 5_000.0
    global_id: int | None = None


def chips(count: int, ops: list[Op], *, module: str = "jit_step(7)", runs: int = 1) -> list[Chip]:
    """Chips that all ran the same operations, once in each of so many runs 1 ms apart."""
    end = max(op.start + op.dur for op in ops)
    made = []
    for _ in range(count):
        chip = Chip()
        for k in range(runs):
            at = k * 1000.0
            chip.modules.append(Module(module, at, end, run=k + 1))
            chip.ops += [Op(o.text, o.start + at, o.dur, o.category, o.name) for o in ops]
        made.append(chip)
    return made


def write_json(path: Path, devices: list[Chip], **extra: Any) -> Path:
    """Write a trace.json as XProf exports it."""
    events: list[dict[str, Any]] = []
    for number, chip in enumerate(devices):
        pid = number + 3
        events.append(
            {
                "ph": "M",
                "pid": pid,
                "name": "process_name",
                "args": {"name": f"/device:TPU:{number}"},
            }
        )
        names = {1: "Steps", 2: "XLA Modules", 3: "XLA Ops", 6: "XLA TraceMe"}
        events += [
            {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
            for tid, name in names.items()
        ]
        event = partial(_add_event, events, pid, chip.clock_us)
        for m in chip.modules:
            event(2, m.name, m.start, m.dur, run_id=str(m.run))
        for name, start, dur in chip.steps:
            event(1, name, start, dur)
        for o in chip.ops:
            event(3, o.shown, o.start, o.dur, long_name=o.text, hlo_category=o.category)
        for start, dur in chip.barriers:
            event(6, "barrier-cores", start, dur)
    text = json.dumps(
        {
            "displayTimeUnit": "ns",
            "metadata": {"highres-ticks": True},
            **extra,
            "traceEvents": [*events, {}],
        }
    )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _add_event(
    events: list[dict[str, Any]],
    pid: int,
    clock: float | None,
    tid: int,
    name: str,
    start: float,
    dur: float,
    **args: str,
) -> None:
    if clock is not None:
        args |= {
            "device_offset_ps": str(round((start + clock) * 1e6)),
            "device_duration_ps": str(round(dur * 1e6)),
        }
    events.append(
        {"ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": dur, "name": name, "args": args}
    )


STATS = {
    "device_offset_ps": 1,
    "device_duration_ps": 2,
    "run_id": 3,
    "hlo_category": 4,
    "Hlo Proto": 5,
    "profile_start_time": 6,
    "core_details": 7,
    "device_type_string": 8,
}
_STAT_TABLE = [{1: number, 2: {1: number, 2: name}} for name, number in STATS.items()]


class Plane:
    """One plane of an XSpace."""

    def __init__(self, name: str, **stats: Any) -> None:
        self._metadata: dict[tuple[str, str, str], int] = {}
        self._lines: list[Message] = []
        self._name = name
        self._stats = [_stat(key, value) for key, value in stats.items()]
        self.entries: list[Message] = []

    def op(self, name: str, display: str = "", category: str = "") -> int:
        key = (name, display, category)
        if key not in self._metadata:
            number = self._metadata[key] = len(self._metadata) + 1
            value: Message = {1: number, 2: name}
            if display:
                value[4] = display
            if category:
                value[5] = [_stat("hlo_category", category)]
            self.entries.append({1: number, 2: value})
        return self._metadata[key]

    def line(self, name: str, events: list[Message], start_ns: int = 0) -> None:
        self._lines.append({1: len(self._lines) + 1, 2: name, 3: start_ns, 4: events})

    def message(self) -> Message:
        return {2: self._name, 3: self._lines, 4: self.entries, 5: _STAT_TABLE, 6: self._stats}


def _stat(name: str, value: Any) -> Message:
    kind = 5 if isinstance(value, str) else 6 if isinstance(value, bytes) else 4
    return {1: STATS[name], kind: value}


def _event(
    metadata: int,
    start: float,
    dur: float,
    clock: float | None,
    device: tuple[float, float] | None = None,
    **stats: int,
) -> Message:
    message: Message = {1: metadata, 2: round(start * 1e6), 3: round(dur * 1e6)}
    rows = [_stat(key, value) for key, value in stats.items()]
    if clock is not None:
        own_start, own_dur = device or (start, dur)
        rows += [
            _stat("device_offset_ps", round((own_start + clock) * 1e6)),
            _stat("device_duration_ps", round(own_dur * 1e6)),
        ]
    message[4] = rows
    return message


def write_xplane(
    path: Path,
    devices: list[Chip],
    *,
    host: str = "",
    programs: dict[str, bytes] | None = None,
    base_ns: int = 1_700_000_000_000_000_000,
) -> Path:
    """Write an xplane.pb as the profiler does."""
    planes = []
    for number, chip in enumerate(devices):
        stats: dict[str, Any] = {"device_type_string": "TPU v6 Lite"}
        if chip.global_id is not None:
            stats["core_details"] = encode({5: chip.global_id, 6: chip.global_id})
        plane = Plane(f"/device:TPU:{number}", **stats)
        plane.line(
            "XLA Modules",
            [_event(plane.op(m.name), m.start, m.dur, None, run_id=m.run) for m in chip.modules],
        )
        if chip.steps:
            plane.line(
                "Steps",
                [_event(plane.op(name), start, dur, None) for name, start, dur in chip.steps],
            )
        plane.line(
            "XLA Ops",
            [
                _event(
                    plane.op(o.text, o.shown, o.category), o.start, o.dur, chip.clock_us, o.device
                )
                for o in chip.ops
            ],
        )
        plane.line(
            "Async XLA Ops",
            [
                _event(plane.op(o.text, "async-op", o.category), o.start, o.dur, None)
                for o in chip.asyncs
            ],
        )
        plane.line(
            "XLA TraceMe",
            [_event(plane.op("barrier-cores"), start, dur, None) for start, dur in chip.barriers],
        )
        planes.append(plane)
        if chip.sparse:
            core = Plane(f"/device:TPU:{number} SparseCore 0")
            core.line(
                "Sparse Core Ops",
                [
                    _event(core.op(o.text, o.shown, o.category), o.start, o.dur, chip.clock_us)
                    for o in chip.sparse
                ],
            )
            planes.append(core)
    if programs:
        plane = Plane("/host:metadata")
        for number, (name, hlo) in enumerate(programs.items(), 1):
            value: Message = {1: number, 2: name, 5: [{1: STATS["Hlo Proto"], 6: hlo}]}
            plane.entries.append({1: number, 2: value})
        planes.append(plane)
    planes.append(Plane("Task Environment", profile_start_time=base_ns))
    space: Message = {1: [plane.message() for plane in planes]}
    if host:
        space[4] = host
    data = encode(space)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# Compiled programs -----------------------------------------------------------------------

F32, BF16, U32, TUPLE = 11, 16, 8, 13


def array(dtype: int, *dims: int) -> Message:
    return {2: dtype, 3: list(dims)}


def instruction(name: str, opcode: str, shape: Message, number: int, **fields: Any) -> Message:
    """One HloInstructionProto; `fields` by the names of hlo.proto."""
    numbers = {
        "channel_id": 26,
        "operand_ids": 36,
        "called_computation_ids": 38,
        "replica_groups": 49,
        "source_target_pairs": 52,
        "use_global_device_ids": 71,
        "collective_device_list": 87,
        "iota": 92,
        "mesh": 93,
    }
    return {
        1: name,
        2: opcode,
        3: shape,
        35: number,
        **{numbers[key]: value for key, value in fields.items()},
    }


def hlo_proto(
    name: str, computations: dict[str, list[Message]], devices: list[list[int]] | None = None
) -> bytes:
    """One HloProto; `devices` by partition and replica."""
    module: Message = {
        1: name,
        3: [
            {1: computation, 2: rows, 5: number}
            for number, (computation, rows) in enumerate(computations.items(), 1)
        ],
    }
    if devices is not None:
        module[15] = {1: len(devices[0]), 2: len(devices), 3: [{1: row} for row in devices]}
    return encode({1: module})
