"""Reading a trace.json that XProf or JAX exported from a profile.

It has less than the xplane.pb beside it: no compiled programs, no interval of asynchronous
operations, and at most a million events, the earliest ones. All arguments are strings.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ...base.errors import TraceError
from ..chrome.decode import Row, RowDecoder, decode_args
from ..chrome.stream import EventStream
from ..chrome.text import BLOCK_BYTES, CutShortError, TextBlocks
from .collectives import may_communicate
from .events import ABSENT, LONGEST_PS, Annotation, Device, Line, OpInfo, Platform, Profile
from .hlo_text import name_of
from .xplane import TPU_LINES, host_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal
    from pathlib import Path

#: The exporter keeps the earliest million (or whatever TF_PROFILER_TRACE_VIEWER_MAX_EVENTS says).
CAP, CAP_SLACK = 1_000_000, 1_000

_PROCESS = re.compile(
    r"(?:(?P<host>.*?)[ :]*)?/device:(?P<kind>TPU|GPU):(?P<ordinal>\d{1,6})"
    r"(?: SparseCore (?P<core>\d{1,3}))?(?: \(pid \d+\))?\s*$"
)
_GPU_STREAM = re.compile(r"Stream #(\d{1,9})")
_VIEWER_KEYS = ("returnedEventsSize", "filteredByVisibility")


class _Args(msgspec.Struct, gc=False, frozen=True):
    """Arguments with a use; strings as a rule."""

    long_name: str = ""
    hlo_category: str = ""
    device_offset_ps: str | int | float = ""
    device_duration_ps: str | int | float = ""
    run_id: str | int | float = ""
    hlo_op: str = ""
    hlo_module: str = ""
    device_ordinal: str | int | float = ""
    step_num: str | int | float = ""


class _Rows:
    """The events of one thread, as columns that grow."""

    def __init__(self) -> None:
        self.op = array("i")
        self.columns = [array("q") for _ in range(6)]

    def add(self, op: int, *values: int) -> None:
        self.op.append(op)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)


def read_trace_json(path: Path, *, on_bytes: Callable[[int], None] = lambda _: None) -> Profile:
    """Read the exported trace of one host.

    Parameters
    ----------
    path : Path
        A ``trace.json``, plain or gzipped.
    on_bytes : callable
        Told how many bytes of the file have been read.

    Returns
    -------
    Profile

    Raises
    ------
    TraceError
        The file is missing, is no such trace, ends early, or was thinned out by the viewer.
    """
    decoder = RowDecoder()
    blocks = TextBlocks(path, BLOCK_BYTES, on_bytes)
    stream = EventStream(blocks, decoder)
    reader = _Reader(path)
    try:
        for rows, _ in stream:
            reader.add(rows)
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", file=path) from error
    except CutShortError as cut:
        raise TraceError(
            f"truncated: {cut.what}; {reader.seen} events were read before that",
            file=path,
            place=cut.place,
        ) from cut
    if any(key in stream.metadata for key in _VIEWER_KEYS):
        raise TraceError(
            "comes from the streaming trace viewer, which leaves out events that would be too "
            "small to see: give the xplane.pb, or the trace.json that was written with it",
            file=path,
        )
    profile = reader.finish(decoder)
    profile.file_bytes = blocks.total
    profile.warnings += [*stream.warnings, *blocks.warnings]
    return profile


class _Reader:
    def __init__(self, path: Path) -> None:
        self.seen = 0
        self._path = path
        self._args = msgspec.json.Decoder(list[_Args])
        self._processes: dict[int | str, str] = {}
        self._threads: dict[tuple[int | str, int | str], str] = {}
        self._rows: dict[tuple[int | str, int | str], _Rows] = defaultdict(_Rows)
        self._ops: dict[tuple[str, str, str, str], int] = {}
        self._annotations: list[tuple[int | str, str, int, int, int]] = []
        self._untimed = 0
        self._lost: list[str] = []
        self._last_ps = 0

    def add(self, rows: list[Row]) -> None:
        """Add the events of one run."""
        timed = []
        for row in rows:
            if row.ph == "X":
                timed.append(row)
            elif row.ph == "M":
                name = decode_args(row.args).get("name")
                if row.name == "process_name":
                    self._processes[row.pid] = str(name)
                elif row.name == "thread_name":
                    self._threads[row.pid, row.tid] = str(name)
        self.seen += len(timed)
        for row, args in zip(timed, self._args_of(timed), strict=True):
            start, duration = _ps(row.ts), _ps(row.dur)
            if start is None or duration is None or duration < 0:
                self._untimed += 1
                if may_communicate(_op(row.name, args.long_name, args.hlo_category, "")):
                    self._lost.append(row.name)
                continue
            self._last_ps = max(self._last_ps, start)
            if args.step_num != "":
                number = _whole(args.step_num)
                self._annotations.append((row.pid, row.name, number, start, start + duration))
            key = (row.name, args.long_name, args.hlo_category, args.hlo_module)
            if not args.long_name and args.hlo_op:
                key = (row.name, f"\0{args.hlo_op}", args.hlo_category, args.hlo_module)
            self._rows[row.pid, row.tid].add(
                self._ops.setdefault(key, len(self._ops)),
                start,
                duration,
                _whole(args.device_offset_ps),
                _whole(args.device_duration_ps),
                _whole(args.run_id),
                _whole(args.device_ordinal) if args.hlo_op else ABSENT,
            )

    def _args_of(self, rows: list[Row]) -> list[_Args]:
        try:
            return self._args.decode(b"[" + b",".join([row.args for row in rows]) + b"]")
        except msgspec.DecodeError:
            return [_one_args(decode_args(row.args)) for row in rows]

    def finish(self, decoder: RowDecoder) -> Profile:
        """Sort the rows into devices."""
        profile = Profile(self._path, host_of(self._path), events_seen=self.seen)
        if CAP - CAP_SLACK <= self.seen <= CAP:
            profile.capped_at_ps = self._last_ps
        ops = [_op(*key) for key in self._ops]
        devices: dict[tuple[str, int], Device] = {}
        hosts = set()
        for (pid, tid), rows in self._rows.items():
            thread = self._threads.get((pid, tid), "")
            process = self._processes.get(pid, "")
            line = _line(thread, tid, rows)
            match = _PROCESS.match(process)
            if match is None:
                self._add_host(profile, devices, ops, line, rows)
                continue
            hosts.add(match["host"] or "")
            platform = Platform(match["kind"].lower())
            key = (match["kind"], int(match["ordinal"]))
            if match["core"] is not None:
                kept = thread.endswith("Ops")
                line.name = f"Sparse core {match['core']}"
            else:
                kept = (
                    thread in TPU_LINES
                    if platform is Platform.TPU
                    else bool(_GPU_STREAM.match(thread))
                )
            if stream := _GPU_STREAM.match(thread):
                line.number = int(stream[1])
            device = devices.setdefault(key, Device(platform, key[1], match["kind"], ops))
            if kept:
                device.lines.append(line)
            else:
                what = f"events of line {thread or tid}"
                profile.skip(what, "not used by any conversion", len(line))
        if len(hosts) > 1:
            raise TraceError(
                f"holds the devices of several hosts ({', '.join(sorted(hosts)[:4])}): give the "
                "files of the hosts, one each",
                file=self._path,
            )
        with_device = any(kind != "CPU" for kind, _ in devices)
        profile.devices = [
            devices[key] for key in sorted(devices) if not with_device or key[0] != "CPU"
        ]
        for _, name, number, start, end in self._annotations:
            profile.annotations.append(Annotation(name, number, start, end))
        if not any(len(line) for device in profile.devices for line in device.lines):
            names = ", ".join(dict.fromkeys(self._processes.values())) or "none"
            raise TraceError(
                f"holds no work of any device (its processes: {names})", file=self._path
            )
        if decoder.damaged:
            profile.warnings.append(f"{decoder.damaged} damaged events were left out")
        if decoder.repaired:
            profile.warnings.append(f"{decoder.repaired} damaged events were read in part")
        profile.skip("events", "no time", self._untimed)
        if self._lost:
            profile.warnings.append(
                f"{len(self._lost)} events that are or may be communication ({self._lost[0]} for "
                "one) have no time that can be read and are left out: no other network changes "
                "what they took"
            )
        return profile

    def _add_host(
        self,
        profile: Profile,
        devices: dict[tuple[str, int], Device],
        ops: list[OpInfo],
        line: Line,
        rows: _Rows,
    ) -> None:
        """Find the operations of CPU devices among the events of a host thread."""
        ordinal = np.frombuffer(rows.columns[5], dtype=np.int64)
        found = (ordinal >= 0) & (ordinal < 1 << 20)
        why = "what the host does is not modelled"
        profile.skip("events of host threads", why, int((~found).sum()))
        for number in np.unique(ordinal[found]).tolist():
            device = devices.setdefault(("CPU", number), Device(Platform.CPU, number, "CPU", ops))
            device.lines.append(line.take(ordinal == number))


def _line(thread: str, tid: int | str, rows: _Rows) -> Line:
    columns = [np.array(column, dtype=np.int64) for column in rows.columns]
    start, duration, device_start, device_duration, run, _ = columns
    number = tid if isinstance(tid, int) else 0
    return Line(
        thread,
        np.array(rows.op, dtype=np.int32),
        start,
        duration,
        device_start,
        np.where(device_start == ABSENT, ABSENT, device_duration),
        run,
        number,
    )


def _op(name: str, long_name: str, category: str, module: str) -> OpInfo:
    if long_name.startswith("\0"):
        return OpInfo(name, category=category, module=module, instruction=long_name[1:])
    if not long_name and name.startswith("%") and " = " in name:
        # An operation without a display name is shown by its text.
        return OpInfo(name_of(name), name, category, module)
    return OpInfo(name, long_name if " = " in long_name else "", category, module)


def _one_args(args: dict[str, Any]) -> _Args:
    fields = {f.name: args[f.name] for f in msgspec.structs.fields(_Args) if f.name in args}
    return _Args(
        **{key: value if isinstance(value, str) else str(value) for key, value in fields.items()}
    )


def _ps(value: float | Decimal | None) -> int | None:
    """Microseconds to picoseconds, None if there is no such time."""
    try:
        if value is None or not -1e12 < value < 1e12:  # also what is not a number
            return None
    except ArithmeticError:  # how decimals compare that are none
        return None
    result = round(value * 1_000_000)
    return result if abs(result) <= LONGEST_PS else None


def _whole(value: str | float) -> int:
    """An integer that may be written as a string, ABSENT if it is none of 64 bits."""
    if value == "":
        return ABSENT
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return ABSENT
    return number if abs(number) < 1 << 63 else ABSENT
