"""Stores a run as Kineto files, one per rank, as PyTorch's profiler would have recorded it.

Names, arguments, nesting and oddities follow real files: an operation's External id also marks
the runtime calls and kernels under it (a call outside any operation carries its own correlation
id instead), ``ac2g`` flows start at launches and at cudaStreamWaitEvent and also finish on other
runtime calls, ``user_annotation`` ranges have copies on the streams of their kernels, rows come
thread by thread rather than by time, and a strided group is only known by its list of ranks.

What is recorded can be varied. ``full`` adds the rows that PyTorch's ``enable_cuda_sync_events``
adds: ``cuda_sync`` (what a stream or the host waited for) and ``cuda_event``. ``runtime`` leaves
only the runtime calls, which do not say which stream or event they mean. Times are either
microseconds with three decimals since ``baseTimeNanoseconds`` or, as before PyTorch 2.4, whole
microseconds since the epoch, starts and durations both rounded down.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from .spelling import comm_metadata, gloo_annotation
from .vocabulary import AUTOGRAD, MAIN, Scope, Sync, WaitEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .run import DeviceSpan, HostSpan, Run
    from .vocabulary import Program

Record = Literal["full", "runtime"]
TimeFormat = Literal["ns", "us"]

#: True time zero of every run, as a wall clock.
EPOCH_NS = 1_755_000_123_456_789_012
#: Kineto's base is a multiple of this many seconds since the epoch.
BASE_PERIOD_S = 7_889_238
#: Annotations on streams begin this much before their first kernel and end as much after the last.
ANNOTATION_MARGIN_NS = 1

_CBID = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaStreamSynchronize": 131,
    "cudaEventSynchronize": 137,
    "cudaDeviceSynchronize": 165,
    "cudaStreamIsCapturing": 317,
}
_SYNC_NAME = {"stream": "Stream Sync", "device": "Context Sync", "event": "Event Sync"}
_DEVICE_CATEGORY = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_GLOO_THREAD_NAME = "pt_gloo_runloop"
_THREAD_NAME = {MAIN: "pt_main_thread", AUTOGRAD: "pt_autograd_0"}
_THREAD_OFFSET = {MAIN: 0, AUTOGRAD: 57}
_FIRST_QUEUE_OFFSET = 5


def process_id(rank: int) -> int:
    """Process id of a rank."""
    return 20_000 + 101 * rank


def thread_id(rank: int, thread: str) -> int:
    """Row (``tid``) of a host thread in the rank's file."""
    return process_id(rank) + _THREAD_OFFSET[thread]


def queue_thread_id(rank: int, server: int) -> int:
    """Row (``tid``) of a thread that serves the rank's queue (CPU jobs)."""
    return process_id(rank) + _FIRST_QUEUE_OFFSET + 3 * server


def clock_ns(program: Program, rank: int, time_ns: int, *, skew: bool = True) -> int:
    """What the rank's wall clock shows, since the epoch, at a true time."""
    offset = program.clock_offset_ns[program.host_of[rank]] if skew else 0
    return EPOCH_NS + time_ns + offset


def write_kineto(
    run: Run,
    directory: Path,
    *,
    record: Record = "full",
    flows: bool = True,
    time_format: TimeFormat = "ns",
    skew: bool = True,
) -> list[Path]:
    """Write the trace files of a run.

    Parameters
    ----------
    run : Run
        What happened.
    directory : Path
        Where ``rankN_trace.json.gz`` go; made if need be.
    record : str
        ``full`` or ``runtime`` (see the module).
    flows : bool
        Whether forward-to-backward flows are recorded.
    time_format : str
        ``ns`` or ``us`` (see the module).
    skew : bool
        Whether the clocks of the hosts disagree as the program says.

    Returns
    -------
    list of Path
        By rank.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(len(run.program.ranks)):
        path = directory / f"rank{rank}_trace.json.gz"
        text = _RankFile(run, rank, record, flows, time_format, skew).text()
        # A fixed time stamp makes the bytes depend on the run only.
        path.write_bytes(gzip.compress(text.encode(), compresslevel=1, mtime=0))
        paths.append(path)
    return paths


@dataclass
class _RankFile:
    """The events of one rank, in the making."""

    run: Run
    rank: int
    record: Record
    flows: bool
    time_format: TimeFormat
    skew: bool
    lines: list[str] = field(default_factory=list)
    rows: dict[tuple[int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.run.program
        host = program.host_of[self.rank]
        self.pid = process_id(self.rank)
        self.device = self.rank - program.host_of.index(host)
        self.devices_of_host = program.host_of.count(host)
        self.base_ns = EPOCH_NS // (BASE_PERIOD_S * 10**9) * BASE_PERIOD_S * 10**9
        ranges = [s for s in self.run.host[self.rank] if s.category != "cuda_runtime"]
        self.external = {span: number for number, span in enumerate(ranges, start=1)}

    def text(self) -> str:
        self._host_ranges()
        self._queue()
        self._runtime_and_device()
        if self.record == "full":
            self._synchronisation()
        if self.time_format == "ns":
            self._stream_annotations()
        self._metadata()
        head = json.dumps(self._head(), indent=2)[:-2]
        name = json.dumps(f"rank{self.rank}_trace.json")
        events = ",\n  ".join(self.lines)
        return f'{head},\n  "traceEvents": [\n  {events}\n  ],\n  "traceName": {name}\n}}\n'

    # Rows

    def _time(self, time_ns: int) -> str:
        clock = clock_ns(self.run.program, self.rank, time_ns, skew=self.skew)
        if self.time_format == "us":
            return str(clock // 1_000)
        return _decimal_us(clock - self.base_ns)

    def _duration(self, dur_ns: int) -> str:
        return str(dur_ns // 1_000) if self.time_format == "us" else _decimal_us(dur_ns)

    def _event(
        self,
        category: str,
        name: str,
        where: tuple[int, int],
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Any],
    ) -> None:
        self.lines.append(
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, '
            f'"pid": {where[0]}, "tid": {where[1]}, "ts": {self._time(start_ns)}, '
            f'"dur": {self._duration(end_ns - start_ns)}, "args": {json.dumps(args)}}}'
        )

    def _flow(
        self, phase: str, name: str, number: int, where: tuple[int, int], time_ns: int
    ) -> None:
        binding = ', "bp": "e"' if phase == "f" else ""
        self.lines.append(
            f'{{"ph": "{phase}", "id": {number}, "pid": {where[0]}, "tid": {where[1]}, '
            f'"ts": {self._time(time_ns)}, "cat": "{name}", "name": "{name}"{binding}}}'
        )

    def _thread(self, thread: str) -> tuple[int, int]:
        where = (self.pid, thread_id(self.rank, thread))
        self.rows[where] = f"thread {where[1]} ({_THREAD_NAME[thread]})"
        return where

    def _stream(self, stream: int) -> tuple[int, int]:
        where = (self.device, stream)
        self.rows[where] = f"stream {stream} "
        return where

    # Host

    def _host_ranges(self) -> None:
        index = 0
        for thread in (AUTOGRAD, MAIN):
            for span in self.run.host[self.rank]:
                if span.thread != thread or span.category == "cuda_runtime":
                    continue
                where = self._thread(thread)
                args: dict[str, Any] = {
                    "External id": self.external[span],
                    "Record function id": 0,
                }
                if isinstance(span.source, Scope):
                    args |= span.source.args
                args["Ev Idx"] = index
                index += 1
                self._event(span.category, span.name, where, span.start_ns, span.end_ns, args)
                if self.flows and isinstance(span.source, Scope) and span.source.flow:
                    phase = "f" if span.source.flow_finish else "s"
                    self._flow(phase, "fwdbwd", span.source.flow, where, span.start_ns)
        self.next_index = index

    def _queue(self) -> None:
        for number, span in enumerate(self.run.queue[self.rank]):
            where = (self.pid, queue_thread_id(self.rank, span.thread))
            self.rows[where] = f"thread {where[1]} ({_GLOO_THREAD_NAME})"
            name, inputs = gloo_annotation(self.run.program.comms[span.comm])
            args = {
                "External id": len(self.external) + 1 + number,
                "Record function id": 0,
                **inputs,
                "Ev Idx": self.next_index + number,
            }
            self._event("user_annotation", name, where, span.start_ns, span.end_ns, args)

    # Device

    def _external(self, call: HostSpan) -> int:
        """Id of the operation around a runtime call, or the call's own correlation id."""
        span = call.parent
        while span is not None and span.category != "cpu_op":
            span = span.parent
        return call.correlation if span is None else self.external[span]

    def _runtime_and_device(self) -> None:
        launched = {node.correlation: node for node in self.run.device[self.rank]}
        for call in self.run.host[self.rank]:
            if call.category != "cuda_runtime":
                continue
            where = self._thread(call.thread)
            number = call.correlation
            args = {
                "External id": self._external(call),
                "cbid": _CBID[call.name],
                "correlation": number,
            }
            self._event("cuda_runtime", call.name, where, call.start_ns, call.end_ns, args)
            starts = number in launched or isinstance(call.source, WaitEvent)
            self._flow("s" if starts else "f", "ac2g", number, where, call.start_ns)
            if number in launched:
                self._device(launched[number])

    def _device(self, node: DeviceSpan) -> None:
        kernel = node.kernel
        where = self._stream(node.stream)
        place = {
            "device": self.device,
            "context": 1,
            "stream": node.stream,
            "correlation": node.correlation,
        }
        args: dict[str, Any] = {"External id": self._external(node.launch)}
        if kernel.kind == "kernel":
            program = self.run.program
            args |= {"queued": 0, **place, **_LAUNCH_SHAPE}
            if kernel.comm >= 0:
                args |= comm_metadata(program.groups, program.comms[kernel.comm], self.rank)
        else:
            rate = kernel.size_bytes / max(1, node.end_ns - node.start_ns)
            args |= {**place, "bytes": kernel.size_bytes, "memory bandwidth (GB/s)": rate}
        category = _DEVICE_CATEGORY[kernel.kind]
        self._event(category, kernel.name, where, node.start_ns, node.end_ns, args)
        self._flow("f", "ac2g", node.correlation, where, node.start_ns)

    def _synchronisation(self) -> None:
        used = {node.stream for node in self.run.device[self.rank]}
        for call in self.run.host[self.rank]:
            source = call.source
            if isinstance(source, WaitEvent) and source.stream in used:
                # Kineto drops waits of streams on which nothing ever ran.
                self._sync_row(call, "Stream Wait Event", source.stream, source.event)
            elif isinstance(source, Sync):
                stream = source.target if source.kind == "stream" else -1
                event = source.target if source.kind == "event" else -1
                self._sync_row(call, _SYNC_NAME[source.kind], stream, event)
        for item in self.run.recorded[self.rank]:
            done = max([item.call.start_ns, *(node.end_ns for node in item.nodes)])
            args = {
                "External id": self._external(item.call),
                "event_id": item.event,
                "stream": item.stream,
                "correlation": item.call.correlation,
                "device": self.device,
                "context": 1,
            }
            where = self._stream(item.stream)
            self._event("cuda_event", "cudaEvent", where, done, done + 1, args)

    def _sync_row(self, call: HostSpan, kind: str, stream: int, event: int) -> None:
        args: dict[str, Any] = {
            "External id": self._external(call),
            "cuda_sync_kind": kind,
        }
        if event >= 0:
            args |= {
                "wait_on_stream": call.event_stream,
                "wait_on_cuda_event_record_corr_id": call.record,
                "wait_on_cuda_event_id": event,
            }
        args |= {
            "stream": stream,
            "correlation": call.correlation,
            "device": self.device,
            "context": 1,
        }
        where = (self.device, stream) if stream < 0 else self._stream(stream)
        self._event("cuda_sync", kind, where, call.start_ns, call.end_ns, args)

    def _stream_annotations(self) -> None:
        covered: dict[tuple[HostSpan, int], list[DeviceSpan]] = defaultdict(list)
        for node in self.run.device[self.rank]:
            span: HostSpan | None = node.launch
            while span is not None:
                if span.category == "user_annotation":
                    covered[span, node.stream].append(node)
                span = span.parent
        for (span, stream), nodes in covered.items():
            begin = min(node.start_ns for node in nodes) - ANNOTATION_MARGIN_NS
            end = max(node.end_ns for node in nodes) + ANNOTATION_MARGIN_NS
            args = {"External id": self.external[span]}
            where = self._stream(stream)
            self._event("gpu_user_annotation", span.name, where, begin, end, args)

    # Head and rows

    def _metadata(self) -> None:
        begin = min(span.start_ns for span in self.run.host[self.rank])
        end = max(span.end_ns for span in self.run.host[self.rank])
        at = self._time(begin)

        def row(name: str, pid: int, tid: int, args: dict[str, Any]) -> None:
            self.lines.append(
                f'{{"name": "{name}", "ph": "M", "ts": {at}, "pid": {pid}, "tid": {tid}, '
                f'"args": {json.dumps(args)}}}'
            )

        processes = [(self.pid, "CPU", self.pid)]
        if self.run.program.dialect == "gpu":
            processes += [
                (device, f"GPU {device}", 16_777_216 + device)
                for device in range(self.devices_of_host)
            ]
        for pid, label, order in processes:
            row("process_name", pid, 0, {"name": "python3"})
            row("process_labels", pid, 0, {"labels": label})
            row("process_sort_index", pid, 0, {"sort_index": order})
        for (pid, tid), name in self.rows.items():
            row("thread_name", pid, tid, {"name": name})
            row("thread_sort_index", pid, tid, {"sort_index": tid})
        self.lines.append(
            f'{{"ph": "X", "cat": "Trace", "ts": {at}, "dur": {self._duration(end - begin)}, '
            '"pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", '
            '"args": {"Op count": 0}}'
        )
        for name, row_name, process, time in (
            ("Iteration Start: PyTorch Profiler", "Trace PyTorch Profiler", "Traces", at),
            ("Record Window End", "", "", self._time(end)),
        ):
            self.lines.append(
                f'{{"name": "{name}", "ph": "i", "s": "g", "pid": "{process}", '
                f'"tid": "{row_name}", "ts": {time}}}'
            )

    def _head(self) -> dict[str, Any]:
        program = self.run.program
        gpu = program.dialect == "gpu"
        backend = "cuda:nccl" if gpu else "cpu:gloo,cuda:gloo"
        configs = [
            {
                "pg_name": group.name,
                "pg_desc": group.description,
                "backend_config": backend,
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in program.groups
            if self.rank in group.ranks
        ]
        distributed: dict[str, Any] = {
            "backend": "nccl" if gpu else "gloo",
            "rank": self.rank,
            "world_size": len(program.ranks),
            "pg_count": len(configs),
            "pg_config": configs,
        }
        if gpu:
            distributed["nccl_version"] = "2.21.5"
        devices = [
            {"id": device, "name": program.device_name, **_DEVICE_PROPERTIES}
            for device in range(self.devices_of_host if gpu else 0)
        ]
        head: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": devices,
            "distributedInfo": distributed,
            "record_shapes": 1,
            "host_name": f"node{program.host_of[self.rank]}",
        }
        if self.time_format == "ns":
            head |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": self.base_ns}
        return head


_LAUNCH_SHAPE = {
    "registers per thread": 32,
    "shared memory": 0,
    "blocks per SM": 1.0,
    "warps per SM": 4.0,
    "grid": [108, 1, 1],
    "block": [128, 1, 1],
    "est. achieved occupancy %": 50,
}
_DEVICE_PROPERTIES = {
    "totalGlobalMem": 85_174_583_296,
    "computeMajor": 8,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65_536,
    "warpSize": 32,
    "sharedMemPerBlock": 49_152,
    "numSms": 108,
}


def _decimal_us(ns: int) -> str:
    """Microseconds with three decimals, exactly."""
    return f"{ns // 1_000}.{ns % 1_000:03d}"
