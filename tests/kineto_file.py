"""Small hand-written Kineto files, in the words of the format.

Times are microseconds; each call adds what PyTorch's profiler would have recorded for it.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class KinetoFile:
    """The trace of one rank."""

    def __init__(
        self, rank: int, world_size: int, *, pg_config: Any = None, host: str = ""
    ) -> None:
        self.rank = rank
        self.events: list[dict[str, Any]] = []
        self.correlation = 0
        self.top: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        }
        if pg_config is not None:
            self.top["distributedInfo"]["pg_config"] = pg_config
        if host:
            self.top["host_name"] = host

    def row(
        self, cat: str, name: str, ts: float, dur: float, *, pid: int, tid: int, **args: Any
    ) -> dict[str, Any]:
        event = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "dur": dur,
            "args": {key.replace("_", " "): value for key, value in args.items()},
        }
        self.events.append(event)
        return event

    def step(self, number: int, ts: float, dur: float, tid: int = 100) -> None:
        self.row("user_annotation", f"ProfilerStep#{number}", ts, dur, pid=100, tid=tid)

    def op(self, name: str, ts: float, dur: float, tid: int = 100, **args: Any) -> dict[str, Any]:
        event = self.row("cpu_op", name, ts, dur, pid=100, tid=tid)
        event["args"].update(args)
        return event

    def call(self, name: str, ts: float, dur: float = 1, tid: int = 100) -> int:
        self.correlation += 1
        self.row(
            "cuda_runtime", name, ts, dur, pid=100, tid=tid, correlation=self.correlation, cbid=1
        )
        return self.correlation

    def kernel(
        self,
        name: str,
        ts: float,
        dur: float,
        stream: int = 7,
        *,
        launched: float | None = None,
        tid: int = 100,
        cat: str = "kernel",
        call: str = "cudaLaunchKernel",
        **args: Any,
    ) -> dict[str, Any]:
        correlation = -1
        if launched is not None:
            correlation = self.call(call, launched, tid=tid)
        event = self.row(cat, name, ts, dur, pid=0, tid=stream, device=0, stream=stream)
        if correlation >= 0:
            event["args"]["correlation"] = correlation
        event["args"].update(args)
        return event

    def write(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True, parents=True)
        path = folder / f"rank{self.rank}_trace.json.gz"
        with gzip.open(path, "wt") as file:
            json.dump({**self.top, "traceEvents": self.events}, file)
        return path


def comm(
    name: str, elements: int, group: str, ranks: list[int], dtype: str = "Float", **more: Any
) -> dict[str, Any]:
    """Communication metadata as PyTorch writes it."""
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": len(ranks),
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(ranks),
        **more,
    }
