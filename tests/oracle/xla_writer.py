"""Stores a run of an XLA program as XProf would have: an xplane.pb or a trace.json.gz per host.

Names, lines, statistics and oddities follow real files of TPUs: lines ``XLA Modules`` (the runs of
the program, with their ``run_id``), ``XLA Ops`` and, in xplane.pb only, ``Async XLA Ops``; the
HLO text of an instruction is the name of its event metadata in xplane.pb and the argument
``long_name`` in JSON, where all arguments are text and the array ends with an empty object. Times
are picoseconds from the start of the profile, whose wall clock time xplane.pb has in the plane
``Task Environment`` and JSON has not.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .vocabulary import Step
from .xla_programs import MODULE, PROGRAM_ID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .run import HostSpan, Run
    from .xla_programs import Op, XlaProgram

Form = Literal["xplane", "json"]

#: True time zero of every run, as a wall clock.
EPOCH_NS = 1_768_000_123_456_789_012
#: The profile of each host begins this much before true time zero on its clock, and another time.
BEFORE_NS = 20_000_000
_FIRST_PID = 3
_LINES = {"XLA Modules": 2, "XLA Ops": 3, "Async XLA Ops": 4}
_FIRST_RUN = 850


@dataclass(frozen=True)
class _Event:
    """An event of a device, in true time."""

    line: str
    op: int  # -1: a run of the program
    start_ns: int
    end_ns: int
    run: int


def write_xla(job: XlaProgram, run: Run, directory: Path, *, form: Form) -> Path:
    """Write the profile of a run.

    Parameters
    ----------
    job : XlaProgram
        The program.
    run : Run
        What happened when it ran.
    directory : Path
        A log directory: the files go to ``plugins/profile/<date>/`` in it.
    form : str
        Which files.

    Returns
    -------
    Path
        The directory.
    """
    folder = directory / "plugins" / "profile" / "2026_01_09_23_08_43"
    folder.mkdir(parents=True, exist_ok=True)
    for host in sorted(set(run.program.host_of)):
        ranks = [r for r, h in enumerate(run.program.host_of) if h == host]
        events = {rank: list(_events(job, run, rank)) for rank in ranks}
        # When the profiler was started on the clock of the host, and by true time.
        began_ns = -BEFORE_NS - 1_000_000 * host
        clock_ns = EPOCH_NS + began_ns + run.program.clock_offset_ns[host]
        if form == "xplane":
            path = folder / f"host{host}.xplane.pb"
            path.write_bytes(_xspace(job, events, began_ns, clock_ns, host))
        else:
            path = folder / f"host{host}.trace.json.gz"
            text = _json(job, events, began_ns)
            path.write_bytes(gzip.compress(text.encode(), compresslevel=1, mtime=0))
    return directory


def _events(job: XlaProgram, run: Run, rank: int) -> Iterable[_Event]:
    number = _FIRST_RUN - 1
    started: dict[str, HostSpan] = {}
    for span in run.host[rank]:
        if isinstance(span.source, Step):
            number += 1
            yield _Event("XLA Modules", -1, span.start_ns, span.end_ns, number)
            continue
        index = _op(span)
        op = job.ops[index]
        yield _Event("XLA Ops", index, span.start_ns, span.end_ns, number)
        if op.category == "copy-start":
            started[op.asynchronous] = span
        elif op.category == "copy-done":
            start = started.pop(op.name)
            done_ns = start.start_ns + (span.start_ns - start.start_ns) * 7 // 10
            yield _Event("Async XLA Ops", _op(start), start.start_ns, done_ns, number)
    # A permutation sends and receives: one event, until both are done.
    ends: dict[tuple[int, int], int] = {}
    for queued in run.queue[rank]:
        if queued.comm in job.async_op:
            key = (job.async_op[queued.comm], queued.start_ns)
            ends[key] = max(queued.end_ns, ends.get(key, queued.end_ns))
    for (index, start_ns), end_ns in ends.items():
        yield _Event("Async XLA Ops", index, start_ns, end_ns, -1)


def _op(span: HostSpan) -> int:
    return int(span.source.args["op"])  # type: ignore[union-attr]


# --- xplane.pb --------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


class _Plane:
    """A plane in the making: names of statistics are numbered as they come."""

    def __init__(self, name: str) -> None:
        self.head = _text(2, name)
        self.names: dict[str, int] = {}
        self.parts: list[bytes] = []

    def stat(self, name: str, value: int | str, *, signed: bool = False) -> bytes:
        number = self.names.setdefault(name, len(self.names) + 1)
        body = _number(1, number)
        body += _text(5, value) if isinstance(value, str) else _number(4 if signed else 3, value)
        return body

    def bytes(self) -> bytes:
        stats = [
            _text(5, _number(1, number) + _text(2, _number(1, number) + _text(2, name)))
            for name, number in self.names.items()
        ]
        return self.head + b"".join(self.parts + stats)


def _xspace(
    job: XlaProgram, events: dict[int, list[_Event]], began_ns: int, clock_ns: int, host: int
) -> bytes:
    planes = [
        _device(job, local, found, began_ns)
        for local, found in enumerate(found for _, found in sorted(events.items()))
    ]
    last_ns = max(event.end_ns for found in events.values() for event in found)
    environment = _Plane("Task Environment")
    for name, value in (
        ("profile_start_time", clock_ns),
        ("profile_stop_time", clock_ns + last_ns - began_ns),
    ):
        environment.parts.append(_text(6, environment.stat(name, value)))
    planes.append(environment)
    return b"".join(_text(1, plane.bytes()) for plane in planes) + _text(4, f"host{host}")


def _device(job: XlaProgram, local: int, events: list[_Event], began_ns: int) -> _Plane:
    plane = _Plane(f"/device:TPU:{local}")
    plane.parts.append(_text(6, plane.stat("device_type_string", job.program.device_name)))
    metadata = {-1: _text(2, f"{MODULE}({PROGRAM_ID})")}
    for index, op in enumerate(job.ops):
        metadata[index] = _text(2, op.text) + _text(4, op.name)
        metadata[index] += _text(5, plane.stat("hlo_category", op.category))
        metadata[index] += _text(5, plane.stat("program_id", PROGRAM_ID))
    for index, body in metadata.items():
        body = _number(1, index + 2) + body
        plane.parts.append(_text(4, _number(1, index + 2) + _text(2, body)))
    for line, number in _LINES.items():
        rows = [_xevent(plane, job, event, began_ns) for event in events if event.line == line]
        plane.parts.append(_text(3, _number(1, number) + _text(2, line) + b"".join(rows)))
    return plane


def _xevent(plane: _Plane, job: XlaProgram, event: _Event, began_ns: int) -> bytes:
    start_ps, dur_ps = (event.start_ns - began_ns) * 1000, (event.end_ns - event.start_ns) * 1000
    body = _number(1, event.op + 2) + _number(2, start_ps) + _number(3, dur_ps)
    stats = [plane.stat("device_offset_ps", start_ps), plane.stat("device_duration_ps", dur_ps)]
    if event.line == "XLA Modules":
        stats = [plane.stat("run_id", event.run), plane.stat("replica_id", 0, signed=True)]
    elif event.line == "Async XLA Ops":
        stats = [plane.stat("hlo_op", _async_name(job.ops[event.op]))]
    return _text(4, body + b"".join(_text(4, stat) for stat in stats))


def _async_name(op: Op) -> str:
    return op.asynchronous


# --- trace.json.gz ----------------------------------------------------------------------------


def _us(picoseconds: int) -> str:
    return f"{picoseconds // 1_000_000}.{picoseconds % 1_000_000:06d}"


def _json(job: XlaProgram, events: dict[int, list[_Event]], began_ns: int) -> str:
    rows = []
    for local, (_, found) in enumerate(sorted(events.items())):
        pid = _FIRST_PID + local
        head: dict[str, Any] = {"ph": "M", "pid": pid}
        rows.append(
            json.dumps(head | {"name": "process_name", "args": {"name": f"/device:TPU:{local}"}})
        )
        rows += [
            json.dumps(head | {"tid": tid, "name": "thread_name", "args": {"name": line}})
            for line, tid in _LINES.items()
        ]
        # The row of asynchronous operations is there, and its events are not.
        rows += [
            _row(job, event, pid, began_ns) for event in found if event.line != "Async XLA Ops"
        ]
    return (
        '{"displayTimeUnit":"ns","metadata":{"highres-ticks":true}, "traceEvents":[\n'
        + ",\n".join([*rows, "{}"])
        + "]}"
    )


def _row(job: XlaProgram, event: _Event, pid: int, began_ns: int) -> str:
    start_ps, dur_ps = (event.start_ns - began_ns) * 1000, (event.end_ns - event.start_ns) * 1000
    args = {"device_offset_ps": str(start_ps), "device_duration_ps": str(dur_ps)}
    if event.op < 0:
        name = f"{MODULE}({PROGRAM_ID})"
        args |= {"run_id": str(event.run), "replica_id": "0"}
    else:
        op = job.ops[event.op]
        name = op.name
        args |= {"hlo_category": op.category, "long_name": op.text}
    return (
        f'{{"ph":"X","pid":{pid},"tid":{_LINES[event.line]},"ts":{_us(start_ps)},'
        f'"dur":{_us(max(dur_ps, 1))},"name":{json.dumps(name)},"args":{json.dumps(args)}}}'
    )
