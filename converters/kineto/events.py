"""Columns of one Kineto trace: what the reader produces and the converter consumes.

Only what a conversion needs is kept: complete (``X``) events and the flows between host threads.
The arguments of an event are kept only where they describe communication; of the others only
the few numbers with a column of their own survive, so a trace of tens of gigabytes fits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class Category(IntEnum):
    """Categories of events, with the older spellings folded in.

    Events of category OTHER or PYTHON are counted by the reader and not kept.
    """

    OTHER = 0
    CPU_OP = 1
    USER_ANNOTATION = 2
    GPU_ANNOTATION = 3
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    RUNTIME = 7  # cuda_runtime, cuda_driver and their HIP and XPU equivalents
    SYNC = 8  # cuda_sync: what a stream or the host waited for
    EVENT_RECORD = 9  # cuda_event
    PYTHON = 10
    OVERHEAD = 11


@dataclass(frozen=True)
class Flows:
    """Flow events between host threads (``fwdbwd`` and ``async``), F of them.

    Attributes
    ----------
    flow_id : int64
        Joins the two ends.
    finish : bool
        Whether this is the end of the flow that depends on the other.
    thread : int32
        Index into `KinetoTrace.threads`.
    time_ns : int64
        On the same clock as the events.
    """

    flow_id: NDArray[np.int64]
    finish: NDArray[np.bool_]
    thread: NDArray[np.int32]
    time_ns: NDArray[np.int64]


@dataclass(frozen=True)
class KinetoTrace:
    """The events of one file, ordered by start and, at equal starts, longest first.

    Attributes
    ----------
    path : Path
        The file.
    rank : int or None
        ``distributedInfo.rank``, if the file has it.
    world_size : int or None
        ``distributedInfo.world_size``, if the file has it.
    base_ns : int
        ``baseTimeNanoseconds``; `start_ns` is relative to it.
    host_name : str
        Host of the process, or an empty string.
    devices : tuple of str
        Names of the visible devices (empty for a CPU job).
    backend : str
        ``distributedInfo.backend``, or an empty string.
    process_groups : list of dict
        ``distributedInfo.pg_config`` as it stands.
    strings : list of str
        Table that `name` indexes.
    threads : list of tuple
        ``(pid, tid)`` of each row, as in the file; on a device row tid is the stream.
    name, category, thread : int32, int8, int32, shape (N,)
        Index into `strings`, `Category`, index into `threads`.
    start_ns, dur_ns : int64, shape (N,)
        Time, relative to `base_ns`.
    correlation, external_id : int64, shape (N,)
        Join a kernel with its launch call, and an event with its CPU operation; -1 if absent.
    device, stream : int64, shape (N,)
        Of device events and of runtime calls that carry them; -1 if absent.
    size_bytes : int64, shape (N,)
        ``bytes`` of memory copies and sets; -1 if absent.
    wait_stream, wait_correlation, event_id : int64, shape (N,)
        Of SYNC rows: the stream waited on, the correlation of the cudaEventRecord waited for and
        the event; of EVENT_RECORD rows the event; -1 if absent.
    args : dict of int to dict
        All arguments of the events that describe communication, by event index.
    flows : Flows
        Flows between host threads.
    file_bytes, events_seen, events_damaged : int
        Size read (uncompressed), complete events found, and events that could not be decoded.
    events_skipped : dict of str to int
        Complete events that were found and not kept because no conversion uses them, by category
        as spelled in the file.
    warnings : list of str
        Damage survived and oddities seen.
    """

    path: Path
    rank: int | None
    world_size: int | None
    base_ns: int
    host_name: str
    devices: tuple[str, ...]
    backend: str
    process_groups: list[dict[str, Any]]
    strings: list[str]
    threads: list[tuple[int | str, int | str]]
    name: NDArray[np.int32]
    category: NDArray[np.int8]
    thread: NDArray[np.int32]
    start_ns: NDArray[np.int64]
    dur_ns: NDArray[np.int64]
    correlation: NDArray[np.int64]
    external_id: NDArray[np.int64]
    device: NDArray[np.int64]
    stream: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    wait_stream: NDArray[np.int64]
    wait_correlation: NDArray[np.int64]
    event_id: NDArray[np.int64]
    args: dict[int, dict[str, Any]]
    flows: Flows
    file_bytes: int
    events_seen: int
    events_damaged: int
    events_skipped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.name)
