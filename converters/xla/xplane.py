"""Reading an xplane.pb: the planes of one host, with all that XLA recorded.

The file is walked plane by plane (`wire`), so its size is no matter: a message of protobuf's own
library may not exceed 2 GB. Only the lines that a conversion uses become columns.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from ...base.errors import TraceError
from ..chrome.text import GZIP_MAGIC, CutShortError, TextBlocks
from .collectives import may_communicate
from .events import ABSENT, LONGEST_PS, Annotation, Device, Line, OpInfo, Platform, Profile
from .hlo import MOST_DEVICES, HloError
from .hlo_proto import parse_program
from .hlo_text import name_of
from .protos import message
from .wire import TEXT_BITS, DamagedError, Fields, fields, head, map_keys, scan_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from .wire import Events

_DEVICE = re.compile(r"/device:(TPU|GPU):(\d{1,6})$")
_SPARSE = re.compile(r"/device:TPU:(\d{1,6}) SparseCore (\d{1,3})$")
#: Lines of a TPU that are read; the others show the same work again or none.
TPU_LINES = ("XLA Modules", "XLA Ops", "Async XLA Ops", "XLA TraceMe", "Steps")
_GPU_STREAM = re.compile(r"Stream #(\d{1,9})")
_EXECUTE = re.compile(r"Execute")
#: Stats of events that become columns.
_DEVICE_STATS = ("device_offset_ps", "device_duration_ps", "run_id", "hlo_op", "hlo_module")
_HOST_STATS = ("hlo_op", "hlo_module", "run_id", "device_ordinal", "step_num", "program_id")
_REPLACEMENT = b"\xef\xbf\xbd"


def read_xplane(path: Path, *, on_bytes: Callable[[int], None] = lambda _: None) -> Profile:
    """Read the profile of one host.

    Parameters
    ----------
    path : Path
        An ``xplane.pb``, plain or gzipped.
    on_bytes : callable
        Told how many bytes of the file have been read.

    Returns
    -------
    Profile

    Raises
    ------
    TraceError
        The file is missing, is no xplane, is damaged, or holds no work of any device.
    """
    data = _open(path, on_bytes)
    try:
        return _Reader(path, data, on_bytes).read()
    except DamagedError as error:
        raise TraceError(
            f"{_why_damaged(data)}no XLA profile can be read from it",
            file=path,
            place=f"byte {error.offset}",
        ) from error


def _open(path: Path, on_bytes: Callable[[int], None]) -> NDArray[np.uint8]:
    """Map a plain file into memory, unpack a packed one."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
            if not packed:
                size = file.seek(0, 2)
                if size == 0:
                    raise TraceError("is empty", file=path)
                view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                return np.frombuffer(view, dtype=np.uint8)
        text = b"".join(TextBlocks(path, 1 << 20, on_bytes))
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", file=path) from error
    except CutShortError as cut:
        raise TraceError(f"truncated: {cut.what}", file=path, place=cut.place) from cut
    if not text:
        raise TraceError("is empty", file=path)
    return np.frombuffer(text, dtype=np.uint8)


def _why_damaged(data: NDArray[np.uint8]) -> str:
    head = data[: 1 << 16].tobytes()
    if head.count(_REPLACEMENT) > len(head) // 256:
        return (
            "was treated as text at some point, which replaced its bytes by U+FFFD "
            "(copy the original file again, as binary): "
        )
    return "damaged, or not an xplane.pb: "


@dataclass
class _Plane:
    """A plane, looked at from outside."""

    name: str
    fields: Fields
    begin: int
    end: int


class _Reader:
    def __init__(
        self, path: Path, data: NDArray[np.uint8], on_bytes: Callable[[int], None]
    ) -> None:
        self._data = data
        self._on_bytes = on_bytes
        self._profile = Profile(path, host_of(path), file_bytes=len(data))
        self._chips: dict[int, Device] = {}

    def read(self) -> Profile:
        profile = self._profile
        top = fields(self._data, 0, len(self._data))
        planes = []
        for number, wire, begin, length in zip(*(c.tolist() for c in top), strict=True):
            if number == 1 and wire == 2:
                inner = fields(self._data, begin, begin + length)
                planes.append(_Plane(self._name(inner), inner, begin, begin + length))
            elif number == 4 and wire == 2:
                profile.host = self._text(begin, length) or profile.host
            elif number in (2, 3) and wire == 2:
                what = "error" if number == 2 else "warning"
                profile.warnings.append(
                    f"the profiler recorded an {what}: {self._text(begin, min(length, 300))}"
                    if what == "error"
                    else f"the profiler warned: {self._text(begin, min(length, 300))}"
                )
        if not planes:
            raise TraceError("holds no planes: not an xplane.pb", file=profile.path)
        for plane in planes:
            if plane.name == "Task Environment":
                stats = self._plane_stats(plane, self._stat_names(plane))
                profile.base_ns = int(stats.get("profile_start_time", 0))
        with_device = any(_DEVICE.match(plane.name) for plane in planes)
        for plane in planes:
            self._read_plane(plane, with_device=with_device)
            self._forget(plane.begin, plane.end)
            self._on_bytes(plane.end)
        profile.devices += [self._chips[n] for n in sorted(self._chips)]
        if not any(len(line) for device in profile.devices for line in device.lines):
            names = ", ".join(plane.name or "unnamed" for plane in planes[:6])
            raise TraceError(
                f"holds no work of any device (its planes: {names})", file=profile.path
            )
        return profile

    def _read_plane(self, plane: _Plane, *, with_device: bool) -> None:
        if match := _DEVICE.match(plane.name):
            self._read_device(plane, Platform(match[1].lower()), int(match[2]))
        elif match := _SPARSE.match(plane.name):
            self._read_sparse(plane, int(match[1]), int(match[2]))
        elif plane.name == "/host:metadata":
            self._read_programs(plane)
        elif plane.name == "/host:CPU":
            self._read_host(plane, with_device=with_device)
        elif plane.name != "Task Environment":
            self._skip(plane, plane.name or "an unnamed plane", "not used by any conversion")

    def _forget(self, begin: int, end: int) -> None:
        """Give the pages of what was read back, so that memory does not grow with the file."""
        view = self._data.base
        if isinstance(view, memoryview):
            view = view.obj
        if isinstance(view, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            if end > begin:
                view.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    # Pieces of a plane ------------------------------------------------------------------

    def _text(self, begin: int, length: int) -> str:
        return self._data[begin : begin + length].tobytes().decode("utf-8", "replace")

    def _name(self, inner: Fields) -> str:
        found = np.flatnonzero((inner.number == 2) & (inner.wire == 2))
        if not len(found):
            return ""
        return self._text(int(inner.value[found[-1]]), min(int(inner.length[found[-1]]), 200))

    def _parse(self, name: str, begin: int, length: int) -> Any:  # noqa: ANN401
        proto = message(name)()
        try:
            proto.ParseFromString(self._data[begin : begin + length].tobytes())
        except DecodeError as error:
            raise DamagedError(begin) from error
        return proto

    def _pieces(self, plane: _Plane, number: int) -> list[tuple[int, int]]:
        found = (plane.fields.number == number) & (plane.fields.wire == 2)
        return list(
            zip(
                plane.fields.value[found].tolist(), plane.fields.length[found].tolist(), strict=True
            )
        )

    def _stat_names(self, plane: _Plane) -> dict[int, str]:
        names = {}
        for begin, length in self._pieces(plane, 5):
            entry = self._parse("StatMetadataEntry", begin, length)
            names[entry.key] = entry.value.name.decode("utf-8", "replace")
        return names

    def _plane_stats(self, plane: _Plane, names: dict[int, str]) -> dict[str, Any]:
        stats = [self._parse("Stat", *piece) for piece in self._pieces(plane, 6)]
        return {names.get(s.metadata_id, ""): _value(s, names) for s in stats}

    def _metadata(self, plane: _Plane) -> dict[int, tuple[int, int]]:
        """Where the metadata of each event id is."""
        found = (plane.fields.number == 4) & (plane.fields.wire == 2)
        begins, lengths = plane.fields.value[found], plane.fields.length[found]
        keys = map_keys(self._data, begins, lengths)
        return dict(
            zip(keys.tolist(), zip(begins.tolist(), lengths.tolist(), strict=True), strict=True)
        )

    def _lines(self, plane: _Plane) -> list[tuple[str, int, int, int, int]]:
        """Name, id, start in ps, begin and end of each line."""
        found = []
        for begin, length in self._pieces(plane, 3):
            inner = head(self._data, begin, begin + length, 4)
            numbers = {
                int(n): int(v)
                for n, w, v in zip(inner.number, inner.wire, inner.value, strict=True)
                if w == 0 and n in (1, 3)
            }
            start_ns = numbers.get(3, 0)
            if start_ns > 10**15:  # nanoseconds of the epoch
                start_ns -= self._profile.base_ns or start_ns
            if not 0 <= start_ns <= LONGEST_PS // 1000:
                raise DamagedError(begin)
            found.append(
                (self._name(inner), numbers.get(1, 0), start_ns * 1000, begin, begin + length)
            )
        return found

    def _scan(
        self, start_ps: int, begin: int, end: int, wanted: list[int]
    ) -> tuple[Events, NDArray[np.int64], NDArray[np.int64]]:
        events = scan_events(self._data, begin, end, np.array(wanted, dtype=np.int64))
        low = min(int(events.offset_ps.min(initial=0)), int(events.duration_ps.min(initial=0)))
        high = max(int(events.offset_ps.max(initial=0)), int(events.duration_ps.max(initial=0)))
        if low < -LONGEST_PS or high > LONGEST_PS:
            raise TraceError(
                "an event lasts or is away more than a day: the file is damaged",
                file=self._profile.path,
                place=f"line at byte {begin}",
            )
        self._profile.events_seen += len(events.metadata)
        self._forget(begin, end)
        return events, events.offset_ps + start_ps, events.duration_ps

    # Devices ----------------------------------------------------------------------------

    def _read_device(self, plane: _Plane, platform: Platform, ordinal: int) -> None:
        device = self._chips.setdefault(ordinal, Device(platform, ordinal))
        names = self._stat_names(plane)
        stats = self._plane_stats(plane, names)
        device.kind = str(stats.get("device_type_string") or stats.get("device_vendor") or "")
        device.global_id = self._global_id(stats)
        device.hbm_gb_s = float(stats.get("peak_hbm_bw_gigabytes_per_second") or 0)
        if platform is Platform.TPU:
            kept = [(*line, line[0]) for line in self._lines(plane) if line[0] in TPU_LINES]
        else:
            kept = [(*line, line[0]) for line in self._lines(plane) if _GPU_STREAM.match(line[0])]
        self._add_lines(device, plane, names, kept)

    def _global_id(self, stats: dict[str, Any]) -> int:
        """Which device of the job a plane is of, -1 if it does not say."""
        details = message("CoreDetails")()
        try:
            details.ParseFromString(stats["core_details"])
        except (KeyError, TypeError, DecodeError):
            return -1
        number = details.global_chip_id if stats.get("has_megacore") else details.global_core_id
        return int(number) if 0 <= number < MOST_DEVICES else -1

    def _read_sparse(self, plane: _Plane, ordinal: int, core: int) -> None:
        device = self._chips.setdefault(ordinal, Device(Platform.TPU, ordinal))
        kept = [
            (*line, f"Sparse core {core}") for line in self._lines(plane) if line[0].endswith("Ops")
        ]
        self._add_lines(device, plane, self._stat_names(plane), kept)

    def _add_lines(
        self,
        device: Device,
        plane: _Plane,
        names: dict[int, str],
        kept: list[tuple[str, int, int, int, int, str]],
    ) -> None:
        places = self._metadata(plane)
        ids = {name: number for number, name in names.items()}
        table: dict[tuple[int, ...], int] = {}
        begins = {line[3] for line in kept}
        for name, _, _, begin, end in self._lines(plane):
            if begin not in begins:
                self._skip_line(name, begin, end)
        for _, number, start_ps, begin, end, name in kept:
            wanted = [ids.get(stat, -1) for stat in _DEVICE_STATS]
            events, start, duration = self._scan(start_ps, begin, end, wanted)
            own_start, own_dur, run = (_numbers(events, i) for i in range(3))
            hlo = module = np.full(len(start), ABSENT, dtype=np.int64)
            if device.platform is Platform.GPU:
                # The kernel is one thing and the operation that launched it another.
                hlo, module = _references(events, 3), _references(events, 4)
            keys, codes = _distinct(events.metadata, hlo, module)
            numbers = np.empty(len(keys), dtype=np.int32)
            for i, key in enumerate(keys):
                numbers[i] = table.setdefault(key, len(device.ops))
                if table[key] == len(device.ops):
                    device.ops.append(self._op(places, names, key))
            op = numbers[codes]
            match = _GPU_STREAM.match(name)
            stream = int(match[1]) if match else number
            line = Line(name, op, start, duration, own_start, own_dur, run, stream)
            bad = line.dur_ps < 0
            if bad.any():
                self._profile.skip(f"events of {name}", "negative duration", int(bad.sum()))
                lost = [o for o in line.op[bad].tolist() if may_communicate(device.ops[o])]
                if lost:
                    self._profile.warnings.append(
                        f"{len(lost)} events that are or may be communication "
                        f"({device.ops[lost[0]].name} for one) have a negative duration and are "
                        "left out: no other network changes what they took"
                    )
                line = line.take(~bad)
            device.lines.append(line)

    def _op(
        self,
        places: dict[int, tuple[int, int]],
        names: dict[int, str],
        key: tuple[int, ...],
    ) -> OpInfo:
        metadata, hlo, module = key
        place = places.get(metadata)
        if place is None:
            return OpInfo("")
        proto = self._parse("EventMetadataEntry", *place).value
        stats = {names.get(s.metadata_id, ""): _value(s, names) for s in proto.stats}
        text = proto.name.decode("utf-8", "replace")
        display = proto.display_name.decode("utf-8", "replace")
        name = display or text
        if " = " in text and not display:
            name = name_of(text)
        return OpInfo(
            name=name,
            text=text if " = " in text else "",
            category=str(stats.get("hlo_category", "")),
            module=self._refer(module, names),
            instruction=self._refer(hlo, names),
        )

    def _refer(self, reference: int, names: dict[int, str]) -> str:
        """Text of a stat that a key holds: a reference, or where the text is."""
        if reference == ABSENT:
            return ""
        if reference >= 0:
            return names.get(reference, "")
        place = -1 - reference
        return self._text(place >> TEXT_BITS, place & ((1 << TEXT_BITS) - 1))

    # Programs and the host --------------------------------------------------------------

    def _read_programs(self, plane: _Plane) -> None:
        names = self._stat_names(plane)
        wanted = [number for number, name in names.items() if name == "Hlo Proto"]
        for begin, length in self._pieces(plane, 4):
            entry = self._parse("EventMetadataEntry", begin, length).value
            for stat in entry.stats:
                if stat.metadata_id not in wanted:
                    continue
                name = entry.name.decode("utf-8", "replace")
                try:
                    self._profile.programs[name] = parse_program(stat.bytes_value)
                except HloError as error:
                    self._profile.warnings.append(f"program {name} was not read: {error}")

    def _read_host(self, plane: _Plane, *, with_device: bool) -> None:
        """Read operations of CPU devices, and steps; all else on the host is skipped."""
        names = self._stat_names(plane)
        ids = {name: number for number, name in names.items()}
        wanted = [ids.get(stat, -1) for stat in _HOST_STATS]
        places = self._metadata(plane)
        devices: dict[int, Device] = {}
        tables: dict[int, dict[tuple[int, ...], int]] = {}
        for name, number, start_ps, begin, end in self._lines(plane):
            events, start, duration = self._scan(start_ps, begin, end, wanted)
            steps = np.flatnonzero(events.kind[4] > 0)
            for row in steps.tolist():
                info = self._op(places, names, (int(events.metadata[row]), ABSENT, ABSENT))
                self._profile.annotations.append(
                    Annotation(
                        info.name,
                        int(events.value[4, row]),
                        int(start[row]),
                        int(start[row] + duration[row]),
                    )
                )
            rows = np.flatnonzero((events.kind[0] > 0) & (events.kind[3] > 0))
            if with_device:
                rows = rows[:0]
            self._profile.skip(
                "events of host threads",
                "what the host does is not modelled",
                len(start) - len(rows) - len(steps),
            )
            hlo, module = _references(events, 0), _references(events, 1)
            runs, ordinals = _numbers(events, 2), _numbers(events, 3)
            for ordinal in np.unique(ordinals[rows]).tolist():
                if not 0 <= ordinal < 1 << 20:
                    raise TraceError(
                        f"an operation of device {ordinal}: the file is damaged",
                        file=self._profile.path,
                    )
                device = devices.setdefault(ordinal, Device(Platform.CPU, ordinal, "CPU"))
                table = tables.setdefault(ordinal, {})
                mine = rows[ordinals[rows] == ordinal]
                keys, codes = _distinct(hlo[mine], module[mine])
                numbers = np.empty(len(keys), dtype=np.int32)
                for i, key in enumerate(keys):
                    if key not in table:
                        table[key] = len(device.ops)
                        device.ops.append(
                            OpInfo(self._refer(key[0], names), module=self._refer(key[1], names))
                        )
                    numbers[i] = table[key]
                op = numbers[codes]
                none = np.full(len(mine), ABSENT, dtype=np.int64)
                device.lines.append(
                    Line(name, op, start[mine], duration[mine], none, none, runs[mine], number)
                )
        self._profile.devices += [devices[n] for n in sorted(devices)]

    # What is left out -------------------------------------------------------------------

    def _skip_line(self, name: str, begin: int, end: int) -> None:
        inner = fields(self._data, begin, end)
        count = int(((inner.number == 4) & (inner.wire == 2)).sum())
        self._profile.events_seen += count
        self._profile.skip(f"events of line {name}", "not used by any conversion", count)

    def _skip(self, plane: _Plane, what: str, why: str) -> None:
        for _, _, _, begin, end in self._lines(plane):
            inner = fields(self._data, begin, end)
            count = int(((inner.number == 4) & (inner.wire == 2)).sum())
            self._profile.events_seen += count
            self._profile.skip(f"events of {what}", why, count)


def host_of(path: Path) -> str:
    """Name of the host from the name of its file."""
    return re.sub(r"(\.xplane\.pb|\.trace\.json)(\.gz)?$", "", path.name)


def _value(stat: Any, names: dict[int, str]) -> Any:  # noqa: ANN401
    if stat.str_value:
        return stat.str_value.decode("utf-8", "replace")
    if stat.bytes_value:
        return stat.bytes_value
    if stat.ref_value:
        return names.get(stat.ref_value, "")
    return stat.int64_value or stat.uint64_value or stat.double_value


def _numbers(events: Events, which: int) -> NDArray[np.int64]:
    """Integers of one stat, ABSENT where it is not there or is no integer."""
    kind, value = events.kind[which], events.value[which]
    whole: NDArray[np.int64] = value.copy()
    rest = (kind != 3) & (kind != 4)
    if rest.any():
        whole[rest] = ABSENT
        doubles = np.flatnonzero(kind == 2)
        whole[doubles] = [
            _whole(struct.unpack("<d", struct.pack("<q", v))[0]) for v in value[doubles].tolist()
        ]
    return whole


def _whole(number: float) -> int:
    return int(number) if abs(number) < 1 << 62 else ABSENT  # also what is not a number


def _references(events: Events, which: int) -> NDArray[np.int64]:
    """Texts of one stat as numbers: references as they are, places of texts below zero."""
    kind, value = events.kind[which], events.value[which]
    texts = (kind == 5) | (kind == 6)
    found: NDArray[np.int64] = np.where(kind == 7, value, np.where(texts, -1 - value, ABSENT))
    return found


def _distinct(
    *columns: NDArray[np.int64],
) -> tuple[list[tuple[int, ...]], NDArray[np.int64]]:
    """Distinct combinations of the values of some columns, and which of them each row has."""
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    if not len(codes):
        return [], codes
    for column in columns:
        if (column == column[0]).all():
            continue
        low, high = int(column.min()), int(column.max())
        if high - low < 4 * len(column):  # numbers of a table: no need to sort
            own, count = column - low, high - low + 1
        else:
            unique, own = np.unique(column, return_inverse=True)
            own, count = own.reshape(-1), len(unique)
        codes = _dense(codes * count + own)
    row = np.empty(int(codes.max()) + 1, dtype=np.int64)
    row[codes] = np.arange(len(codes))
    return list(zip(*(column[row].tolist() for column in columns), strict=True)), codes


def _dense(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Renumber non-negative codes without holes."""
    high = int(codes.max())
    if high < 8 * len(codes) + 1024:
        present = np.zeros(high + 1, dtype=np.bool_)
        present[codes] = True
        packed: NDArray[np.int64] = (np.cumsum(present) - 1)[codes]
        return packed
    sparse: NDArray[np.int64] = np.unique(codes, return_inverse=True)[1].reshape(-1)
    return sparse
