"""Reading one Kineto trace into columns.

`read_kineto` streams a file of any size through `chrome` and keeps only what a
conversion needs, as `KinetoTrace` describes. Which files of a directory are traces is
`discover`, and reading all ranks of a job is `job`. What the events mean together (steps,
launches, collectives) is for the converter.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import TraceError
from ..chrome.decode import EXACT_FLOAT_US, Row, RowDecoder, as_int, decode_args
from ..chrome.stream import EventStream
from ..chrome.text import BLOCK_BYTES, CutShortError, TextBlocks, read_opening
from ..kernels import is_communication_kernel
from .arguments import Args, args_of
from .events import Category, Flows, KinetoTrace
from .sniff import why_not_kineto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray


def read_kineto(
    path: Path,
    *,
    keep_host_ops: bool = True,
    on_bytes: Callable[[int], None] = lambda _: None,
    _block_bytes: int = BLOCK_BYTES,
) -> KinetoTrace:
    """Read a Kineto trace.

    Plain or gzipped, a JSON object or a bare array, times as integers, decimals or strings.
    Times come out exact to the nanosecond. Damaged events are repaired or skipped and reported;
    a file that ends early is refused, since nobody could tell what is missing.

    Parameters
    ----------
    path : Path
        The file.
    keep_host_ops : bool
        Whether to keep CPU operations that do not describe communication.
    on_bytes : callable
        Told now and then how many bytes of the file have been read.

    Returns
    -------
    KinetoTrace
        Its events, ordered by start and, at equal starts, longest first.

    Raises
    ------
    TraceError
        The file is missing, is no Kineto trace (and then what it is), or ends early.
    """
    _require_kineto(path)
    decoder = RowDecoder()
    blocks = TextBlocks(path, _block_bytes, on_bytes)
    stream = EventStream(blocks, decoder)
    columns = _Columns(decoder, keep_host_ops=keep_host_ops)
    try:
        for rows, text in stream:
            columns.add(rows, text)
    except CutShortError as cut:
        raise TraceError(
            f"truncated: {cut.what}; {columns.seen} complete events were read before that",
            file=path,
            place=cut.place,
        ) from cut
    return columns.finish(path, stream.metadata, blocks, stream.warnings)


def _require_kineto(path: Path) -> None:
    try:
        reason = why_not_kineto(read_opening(path))
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", file=path) from error
    if reason is not None:
        raise TraceError(f"not a Kineto trace: it is {reason}", file=path)


class _Numbering(dict[Any, int]):
    """Numbers values in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:  # noqa: ANN401 (any hashable)
        number = self[key] = len(self)
        return number


class _HostComm(dict[str, bool]):
    """Whether a host event of a name describes communication."""

    def __missing__(self, key: str) -> bool:
        describes = self[key] = _HOST_COMM.search(key) is not None
        return describes


class _Names(_Numbering):
    """Numbers names, and notes which of them tell of communication."""

    def __init__(self, host_comm: _HostComm) -> None:
        super().__init__()
        self._host_comm = host_comm
        self._on_host = bytearray()
        self._on_device = bytearray()

    def __missing__(self, key: str) -> int:
        self._on_host.append(self._host_comm[key])
        self._on_device.append(is_communication_kernel(key))
        return super().__missing__(key)

    def tell_of_communication(
        self, name: NDArray[np.int32], category: NDArray[np.int8]
    ) -> NDArray[np.bool_]:
        """Whether rows of these names and categories do."""
        # Copies: an array that looks into a bytearray would stop it from growing.
        on_host = np.array(self._on_host, dtype=np.bool_)
        on_device = np.array(self._on_device, dtype=np.bool_)
        told: NDArray[np.bool_] = on_host[name] & _MAY_TELL_OF_COMM[category]
        told |= on_device[name] & (category == _KERNEL)
        return told


class _Categories(dict[str, int]):
    """Category of each spelling, case ignored; OTHER for those unknown."""

    def __missing__(self, key: str) -> int:
        # A plain int: numpy converts those of an IntEnum slowly.
        category = self[key] = int(_SPELLINGS.get(key.lower(), Category.OTHER))
        return category


class _Growing:
    """Columns of equal length that grow in place; `codes` are the type codes of `array`."""

    def __init__(self, **codes: str) -> None:
        self._columns = {name: array(code) for name, code in codes.items()}
        self._first = next(iter(self._columns.values()))

    def __len__(self) -> int:
        return len(self._first)

    def append(self, **columns: NDArray[Any]) -> None:
        """Add rows to every column."""
        for name, values in columns.items():
            self._columns[name].frombytes(values.data.cast("B"))

    def view(self, name: str) -> NDArray[Any]:
        """Look at one column; nothing may be appended while the view lives."""
        return _as_numpy(self._columns[name])

    def drain(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Hand out the columns one by one, so that each can be freed before the next."""
        for name in list(self._columns):
            yield name, _as_numpy(self._columns.pop(name))


def _as_numpy(column: array[int]) -> NDArray[Any]:
    return np.frombuffer(column, dtype=f"i{column.itemsize}")


class _Columns:
    """The events of a file, as columns that grow run by run."""

    def __init__(self, decoder: RowDecoder, *, keep_host_ops: bool) -> None:
        self.seen = 0
        self._decoder = decoder
        self._keep_host_ops = keep_host_ops
        self._rows = _Growing(
            name="i", category="b", thread="i", start_ns="q", dur_ns="q", external_id="q"
        )
        # What only some categories have; `row` says which rows these are.
        self._of_device = _Growing(row="q", correlation="q", device="q", stream="q")
        self._of_copy = _Growing(row="q", size_bytes="q")
        self._of_sync = _Growing(row="q", wait_stream="q", wait_correlation="q", event_id="q")
        self._host_comm = _HostComm()
        self._names = _Names(self._host_comm)
        self._threads = _Numbering()
        self._categories = _Categories()
        self._args: dict[int, dict[str, Any]] = {}
        self._texts: dict[str, str] = {}
        self._skipped: Counter[str] = Counter()
        self._without_time = 0
        self._negative = 0
        self._open: dict[tuple[int | str, int | str], list[Row]] = {}
        self._unmatched = 0
        self._flow_ids = _Numbering()
        self._flows: list[tuple[int, bool, int, int, bool]] = []

    def add(self, rows: list[Row], text: bytes | None) -> None:
        """Add the events of one run."""
        complete = [row for row in rows if row.ph == "X"]
        others = [row for row in rows if row.ph in _OTHER_PHASES and row.cat != "ac2g"]
        start_ns = _to_ns([row.ts for row in complete])
        dur_ns = _to_ns([row.dur for row in complete])
        other_ns = _to_ns([row.ts for row in others])
        if start_ns is None or dur_ns is None or other_ns is None:
            if text is None:
                raise AssertionError("rows of damaged text have exact times")
            self.add(self._decoder.decode_exact(text), None)
            return
        if others:
            pairs = self._add_others(others, other_ns)
            if pairs:
                complete += [row for row, _, _ in pairs]
                start_ns = np.append(start_ns, [start for _, start, _ in pairs])
                dur_ns = np.append(dur_ns, [dur for _, _, dur in pairs])
        if complete:
            self._add_complete(complete, start_ns, dur_ns)

    def _add_others(
        self, rows: list[Row], times_ns: NDArray[np.int64]
    ) -> list[tuple[Row, int, int]]:
        """Note flows, and return the events that pairs of begin and end rows make."""
        pairs = []
        for row, time in zip(rows, times_ns.tolist(), strict=True):
            thread = (row.pid, row.tid)
            if time == _NO_TIME:
                self._without_time += 1
            elif row.ph == "B":
                row.id = time  # a begin row has no id of its own
                self._open.setdefault(thread, []).append(row)
            elif row.ph == "E":
                if opened := self._open.get(thread):
                    begin = opened.pop()
                    started = as_int(begin.id)
                    pairs.append((begin, started, time - started))
                else:
                    self._unmatched += 1
            elif row.cat in _HOST_FLOWS and row.name not in _LAUNCH_FLOW_NAMES:
                self._flows.append(
                    (
                        self._flow_ids[row.cat, row.id],
                        row.ph == "f",
                        self._threads[thread],
                        time,
                        row.cat == "async",
                    )
                )
        return pairs

    def _add_complete(
        self, rows: list[Row], start_ns: NDArray[np.int64], dur_ns: NDArray[np.int64]
    ) -> None:
        self.seen += len(rows)
        category = np.array([self._categories[row.cat] for row in rows], dtype=np.int8)
        kept = self._kept(rows, category, start_ns, dur_ns)
        if not kept.all():
            index = np.flatnonzero(kept)
            rows = [rows[i] for i in index.tolist()]
            start_ns, dur_ns, category = start_ns[index], dur_ns[index], category[index]
        if not rows:
            return
        name = np.array([self._names[row.name] for row in rows], dtype=np.int32)
        comm = self._names.tell_of_communication(name, category)
        args = args_of(rows)
        for i in np.flatnonzero(category == _KERNEL).tolist():
            comm[i] |= args[i].collective is not None
        for i in np.flatnonzero(comm).tolist():
            self._args[len(self._rows) + i] = self._shared(decode_args(rows[i].args))
        threads = zip([row.pid for row in rows], [row.tid for row in rows], strict=True)
        self._add_device_args(args, category)
        self._rows.append(
            name=name,
            category=category,
            thread=np.array([self._threads[key] for key in threads], dtype=np.int32),
            start_ns=start_ns,
            dur_ns=dur_ns,
            external_id=_external_ids(args),
        )

    def _kept(
        self,
        rows: list[Row],
        category: NDArray[np.int8],
        start_ns: NDArray[np.int64],
        dur_ns: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Choose the events to keep, and count the others by what is the matter with them."""
        known = _IS_KEPT[category]
        if not self._keep_host_ops:
            operations = np.flatnonzero(category == _CPU_OP)
            known[operations] = [self._host_comm[rows[i].name] for i in operations.tolist()]
        timed = (start_ns != _NO_TIME) & (dur_ns != _NO_TIME)
        kept: NDArray[np.bool_] = known & timed & (dur_ns >= 0)
        if not kept.all():
            self._skipped.update([rows[i].cat for i in np.flatnonzero(~known).tolist()])
            self._without_time += int((known & ~timed).sum())
            self._negative += int((known & timed & (dur_ns < 0)).sum())
        return kept

    def _shared(self, args: dict[str, Any]) -> dict[str, Any]:
        """Use one string for all equal ones: names of groups and lists of ranks repeat."""
        return {
            key: self._texts.setdefault(value, value) if isinstance(value, str) else value
            for key, value in args.items()
        }

    def _add_device_args(self, args: list[Args], category: NDArray[np.int8]) -> None:
        first = len(self._rows)
        index = np.flatnonzero(_HAS_DEVICE_ARGS[category])
        some = [args[i] for i in index.tolist()]
        self._of_device.append(
            row=index + first,
            correlation=_numbers([a.correlation for a in some]),
            device=_numbers([a.device for a in some]),
            stream=_numbers([a.stream for a in some]),
        )
        index = np.flatnonzero(_HAS_SIZE[category])
        some = [args[i] for i in index.tolist()]
        self._of_copy.append(row=index + first, size_bytes=_numbers([a.size for a in some]))
        index = np.flatnonzero(_IS_SYNC[category])
        some = [args[i] for i in index.tolist()]
        self._of_sync.append(
            row=index + first,
            wait_stream=_numbers([a.wait_stream for a in some]),
            wait_correlation=_numbers([a.wait_correlation for a in some]),
            event_id=_numbers([a.wait_event if a.event_id == -1 else a.event_id for a in some]),
        )

    def finish(
        self, path: Path, metadata: dict[str, Any], blocks: TextBlocks, warnings: list[str]
    ) -> KinetoTrace:
        """Order the events and put the trace together."""
        warnings = [*blocks.warnings, *warnings, *self._warnings()]
        order = _order(self._rows.view("start_ns"), self._rows.view("dur_ns"))
        lost = _lost_starts(self._rows.view("start_ns")[order])
        if lost:
            warnings.append(f"{lost} events that start at time 0, long before all others, left out")
            order = order[self._rows.view("start_ns")[order] != 0]
        count = len(order)
        place = np.full(len(self._rows), -1, dtype=np.int64)
        place[order] = np.arange(count)
        args = {int(place[i]): args for i, args in self._args.items() if place[i] >= 0}
        columns = {name: column[order] for name, column in self._rows.drain()}
        del order
        for some in (self._of_device, self._of_copy, self._of_sync):
            rows = place[some.view("row")]
            for name, values in some.drain():
                if name != "row":
                    columns[name] = np.full(count, -1, dtype=np.int64)
                    columns[name][rows[rows >= 0]] = values[rows >= 0]
        threads = list(self._threads)
        _fill_from_rows(columns, threads)
        base_ns = _base_ns(metadata, columns["start_ns"], warnings)
        distributed = metadata.get("distributedInfo", {})
        if not isinstance(distributed, dict):
            warnings.append(f"distributedInfo is {_shown(distributed)}, no object, and was ignored")
            distributed = {}
        if not count:
            warnings.append("the trace holds no events")
        if processes := _merged_processes(columns, threads):
            warnings.append(
                f"device rows of {processes} named processes are read as one rank: "
                "the file seems to be several traces merged"
            )
        return KinetoTrace(
            path=path,
            rank=_number(distributed, "rank", 0, warnings),
            world_size=_number(distributed, "world_size", 1, warnings),
            base_ns=base_ns,
            host_name=_host_name(metadata),
            devices=_devices(metadata),
            backend=str(distributed.get("backend", "")),
            process_groups=_process_groups(distributed, warnings),
            strings=list(self._names),
            threads=threads,
            args=args,
            flows=self._finish_flows(columns),
            file_bytes=blocks.total,
            events_seen=self.seen,
            events_damaged=self._decoder.damaged + self._without_time,
            events_skipped=dict(self._skipped),
            warnings=warnings,
            **columns,
        )

    def _warnings(self) -> list[str]:
        unclosed = sum(map(len, self._open.values()))
        counts = (
            (self._decoder.damaged, "events could not be decoded and were left out"),
            (self._decoder.repaired, "damaged events were repaired"),
            (self._without_time, "events without a usable time were left out"),
            (self._negative, "events of negative duration were left out"),
            (unclosed + self._unmatched, "begin or end events without their partner left out"),
        )
        return [f"{count} {what}" for count, what in counts if count]

    def _finish_flows(self, columns: dict[str, NDArray[Any]]) -> Flows:
        # The first Kineto versions gave launches the category of flows between threads.
        on_device = np.unique(columns["thread"][_IS_DEVICE_ROW[columns["category"]]])
        device_threads = set(on_device.tolist())
        launches = {f[0] for f in self._flows if f[4] and f[2] in device_threads}
        flows = sorted((f for f in self._flows if f[0] not in launches), key=lambda f: f[3])
        return Flows(
            flow_id=np.array([f[0] for f in flows], dtype=np.int64),
            finish=np.array([f[1] for f in flows], dtype=np.bool_),
            thread=np.array([f[2] for f in flows], dtype=np.int32),
            time_ns=np.array([f[3] for f in flows], dtype=np.int64),
        )


_SPELLINGS = {
    "cpu_op": Category.CPU_OP,
    "operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "xpu_driver": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "privateuse1_driver": Category.RUNTIME,
    "cuda_sync": Category.SYNC,
    "xpu_sync": Category.SYNC,
    "cuda_event": Category.EVENT_RECORD,
    "python_function": Category.PYTHON,
    "python": Category.PYTHON,
    "overhead": Category.OVERHEAD,
}


def _category_mask(*categories: Category) -> NDArray[np.bool_]:
    return np.isin(np.arange(len(Category)), categories)


# Frames of the interpreter are most of a trace recorded with stacks, and no conversion uses them.
_IS_KEPT = ~_category_mask(Category.OTHER, Category.PYTHON)
_MAY_TELL_OF_COMM = _category_mask(
    Category.CPU_OP, Category.USER_ANNOTATION, Category.GPU_ANNOTATION
)
_IS_DEVICE_ROW = _category_mask(
    Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.GPU_ANNOTATION
)
_HAS_DEVICE_ARGS = ~_category_mask(
    Category.OTHER, Category.CPU_OP, Category.USER_ANNOTATION, Category.PYTHON, Category.OVERHEAD
)
_HAS_SIZE = _category_mask(Category.MEMCPY, Category.MEMSET)
_IS_SYNC = _category_mask(Category.SYNC, Category.EVENT_RECORD)
# Plain ints: numpy compares with members of an IntEnum slowly.
_CPU_OP, _KERNEL = int(Category.CPU_OP), int(Category.KERNEL)

_OTHER_PHASES = frozenset("sfBE")
_HOST_FLOWS = frozenset({"fwdbwd", "forward_backward", "async"})
_LAUNCH_FLOW_NAMES = frozenset({"launch", "ac2g", "async_gpu", "async_cpu_to_gpu"})

_COLLECTIVE_WORDS = (
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send|recv|barrier"
)
# Which events describe communication: generous, since it only decides whose arguments are kept.
_HOST_COMM = re.compile(
    r"^(?:record_param_comms$|_?c10d|(?:nccl|rccl|gloo|mpi|ucc|xccl|hccl|ccl):|symm_mem::|"
    r"_C_custom_ar::|_quickreduce|deep_?ep|nvshmem|pplx|dlslime)|"
    rf"^(?!aten::|autograd::|torch::|prim::)\w+::.*(?:{_COLLECTIVE_WORDS}|qr_|dispatch|combine)",
    re.IGNORECASE,
)

_NO_TIME = np.iinfo(np.int64).min
_TIME_LIMIT_US = 1 << 52  # 142 years; in nanoseconds it fits 64 bits


def _to_ns(values: list[Any]) -> NDArray[np.int64] | None:
    """Convert microseconds to the exact nanosecond.

    Returns
    -------
    int64 array or None
        `_NO_TIME` where there is no usable time. None if doubles are too coarse for the values,
        which then have to be decoded as decimals.
    """
    if not values:
        return np.zeros(0, dtype=np.int64)
    us = np.array(values)
    if us.dtype == np.int64 and np.abs(us).max() < _TIME_LIMIT_US:
        exact: NDArray[np.int64] = us * 1000
        return exact
    if us.dtype == np.float64:
        if np.abs(us).max() >= EXACT_FLOAT_US:
            return None
        # The product of a large double with 1000 can land half a nanosecond off; the whole part
        # and the fraction are exact.
        whole = np.floor(us)
        exact = whole.astype(np.int64) * 1000
        exact += np.rint((us - whole) * 1000).astype(np.int64)
        return exact
    if any(isinstance(value, float) and abs(value) >= EXACT_FLOAT_US for value in values):
        return None
    return np.array([_scalar_ns(value) for value in values], dtype=np.int64)


def _scalar_ns(value: float | Decimal | None) -> int:
    if value is None:
        return _NO_TIME
    us = Decimal(value)
    if not us.is_finite() or abs(us) >= _TIME_LIMIT_US:
        return _NO_TIME
    return int((us * 1000).to_integral_value())


def _numbers(values: list[Any]) -> NDArray[np.int64]:
    try:
        return np.array(values, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([as_int(value) for value in values], dtype=np.int64)


def _external_ids(args: list[Args]) -> NDArray[np.int64]:
    ids = _numbers([a.external_id for a in args])
    missing = np.flatnonzero(ids == -1)
    if len(missing):
        ids[missing] = _numbers([args[i].external_id_old for i in missing.tolist()])
    return ids


def _order(start_ns: NDArray[np.int64], dur_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order by start, longest first at equal starts, else as in the file."""
    order = np.argsort(start_ns, kind="stable")
    ordered = start_ns[order]
    same = ordered[1:] == ordered[:-1]
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    if tied.any():
        # Few events share their start, so a sort by both keys is only paid for those.
        members = order[tied]
        order[tied] = members[np.lexsort((-dur_ns[members], start_ns[members]))]
    return order


def _lost_starts(ordered_ns: NDArray[np.int64]) -> int:
    """Count events at time 0 when all others start much later: their start was not recorded."""
    zeros = int(np.searchsorted(ordered_ns, 0, side="right") - np.searchsorted(ordered_ns, 0))
    if not zeros or ordered_ns[0] < 0 or zeros == len(ordered_ns):
        return 0
    return zeros if ordered_ns[zeros] > _MUCH_LATER_NS else 0


_MUCH_LATER_NS = 60_000_000_000
_ABSOLUTE_NS = 10**17  # three years: times relative to Kineto's base stay under three months


def _base_ns(metadata: dict[str, Any], start_ns: NDArray[np.int64], warnings: list[str]) -> int:
    base = as_int(metadata.get("baseTimeNanoseconds", 0))
    if base < 0:
        warnings.append("baseTimeNanoseconds is no usable number and was ignored")
        return 0
    if base > _ABSOLUTE_NS and len(start_ns) and start_ns[0] > _ABSOLUTE_NS:
        warnings.append("times are absolute although baseTimeNanoseconds is given: it was ignored")
        return 0
    return base


def _fill_from_rows(
    columns: dict[str, NDArray[Any]], threads: list[tuple[int | str, int | str]]
) -> None:
    """Take device and stream from the row of a device event that does not carry them."""
    if not threads:
        return
    pids = np.array([pid if isinstance(pid, int) else -1 for pid, _ in threads], dtype=object)
    tids = np.array([_stream_of_row(tid) for _, tid in threads], dtype=object)
    device_rows = _IS_DEVICE_ROW[columns["category"]]
    for key, of_thread in (("device", pids), ("stream", tids)):
        index = np.flatnonzero(device_rows & (columns[key] == -1))
        if len(index):
            columns[key][index] = _numbers(of_thread.tolist())[columns["thread"][index]]


def _stream_of_row(tid: int | str) -> int:
    """Number of the stream that a device row shows; the first Kineto wrote ``stream 7``."""
    return tid if isinstance(tid, int) else as_int(tid.strip().removeprefix("stream "))


def _merged_processes(
    columns: dict[str, NDArray[Any]], threads: list[tuple[int | str, int | str]]
) -> int:
    """Count the named processes that device events belong to, if they are several."""
    rows = np.unique(columns["thread"][columns["category"] == Category.KERNEL])
    named = {threads[i][0] for i in rows.tolist() if isinstance(threads[i][0], str)}
    return len(named) if len(named) > 1 else 0


def _number(distributed: dict[str, Any], key: str, least: int, warnings: list[str]) -> int | None:
    """Read a number of ``distributedInfo``; what is there and no such number is reported."""
    value = distributed.get(key)
    if value is None:
        return None
    number = -1 if isinstance(value, bool) else as_int(value)
    if number < least:
        warnings.append(
            f"distributedInfo.{key} is {_shown(value)}, no number from {least}, and was ignored"
        )
        return None
    return number


def _shown(value: object) -> str:
    """Show a value as in the file, but no more than a line of it."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _host_name(metadata: dict[str, Any]) -> str:
    name = metadata.get("host_name")
    return name if isinstance(name, str) else ""


def _devices(metadata: dict[str, Any]) -> tuple[str, ...]:
    devices = metadata.get("deviceProperties")
    devices = devices if isinstance(devices, list) else []
    return tuple(str(device.get("name", "")) for device in devices if isinstance(device, dict))


def _process_groups(distributed: dict[str, Any], warnings: list[str]) -> list[dict[str, Any]]:
    groups = distributed.get("pg_config", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        warnings.append(
            f"distributedInfo.pg_config is {_shown(groups)}, no list of groups, and was ignored"
        )
        return []
    return groups
