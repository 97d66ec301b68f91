"""How fast an xplane.pb becomes columns, and in how much memory.

Writes a profile of as many events as wanted, shaped like a TPU's (device clock and duration on
every event, thousands of instructions with their HLO text), and reads it in a fresh process.
The file is mapped, so its pages count as shared memory and can be given back at any time.

    python benchmarks/bench_xplane.py                            # two million events
    python benchmarks/bench_xplane.py --host-events 60000000     # over 2 GB, most of it the host's
    python benchmarks/bench_xplane.py --trace my.xplane.pb
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHIPS = 4
INSTRUCTIONS = 5000
EVENTS_PER_RUN = 5000


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(number_: int, value: int) -> bytes:
    return varint(number_ << 3) + varint(value)


def metadata(key: int, name: str, display: str) -> bytes:
    value = number(1, key) + field(2, name.encode()) + field(4, display.encode())
    return field(4, number(1, key) + field(2, value))


def make_profile(path: Path, events: int, host_events: int) -> None:
    """Write a profile of about so many events of chips and of host threads."""
    tables = b"".join(
        metadata(
            i + 1,
            f"%fusion.{i} = bf16[1024,5120]{{1,0:T(8,128)(2,1)S(1)}} fusion(bf16[1024,5120]{{1,0}} "
            f"%copy.{i}, bf16[5120]{{0}} %param.{i}), kind=kLoop, calls=%fused_computation.{i}",
            f"fusion.{i}",
        )
        for i in range(INSTRUCTIONS)
    )
    tables += metadata(INSTRUCTIONS + 1, "jit_step(123)", "")
    for key, name in ((1, b"device_offset_ps"), (2, b"device_duration_ps"), (3, b"run_id")):
        tables += field(5, number(1, key) + field(2, number(1, key) + field(2, name)))
    runs = max(1, events // CHIPS // EVENTS_PER_RUN)
    modules, ops = [], []
    for run in range(runs):
        begin = run * EVENTS_PER_RUN * 2_000_000
        event = number(1, INSTRUCTIONS + 1) + number(2, begin)
        event += number(3, EVENTS_PER_RUN * 2_000_000 - 1000)
        modules.append(field(4, event + field(4, number(1, 3) + number(4, run + 1))))
        for k in range(EVENTS_PER_RUN):
            start = begin + k * 2_000_000
            event = number(1, k % INSTRUCTIONS + 1) + number(2, start) + number(3, 1_900_000)
            event += field(4, number(1, 1) + number(3, start + 77_000_000))
            ops.append(field(4, event + field(4, number(1, 2) + number(3, 1_900_000))))
    lines = field(3, number(1, 2) + field(2, b"XLA Modules") + b"".join(modules))
    lines += field(3, number(1, 3) + field(2, b"XLA Ops") + b"".join(ops))
    thread = field(3, number(1, 4) + field(2, b"python") + b"".join(ops))
    with path.open("wb") as file:
        for chip in range(CHIPS):
            name = field(2, f"/device:TPU:{chip}".encode())
            file.write(field(1, name + lines + tables))
        threads = host_events // (runs * EVENTS_PER_RUN)
        if threads:
            body = len(field(2, b"/host:CPU")) + threads * len(thread) + len(tables)
            file.write(varint(1 << 3 | 2) + varint(body) + field(2, b"/host:CPU"))
            for _ in range(threads):
                file.write(thread)
            file.write(tables)


def memory_mb(name: str) -> float:
    """Read a size from the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"/proc/self/status has no {name}: this benchmark needs Linux")


def read(path: Path) -> dict[str, Any]:
    from whatif.converters.xla.xplane import read_xplane

    before = memory_mb("RssAnon")
    wall = time.perf_counter()
    profile = read_xplane(path)
    wall = time.perf_counter() - wall
    lines = [line for device in profile.devices for line in device.lines]
    columns = sum(
        value.nbytes for line in lines for value in vars(line).values() if hasattr(value, "nbytes")
    )
    return {
        "events": profile.events_seen,
        "mb": profile.file_bytes / 1e6,
        "s": wall,
        "own_mb": memory_mb("RssAnon"),
        "before_mb": before,
        "columns_mb": columns / 1e6,
        "peak_mb": memory_mb("VmHWM"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--host-events", type=int, default=0)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.trace
        if path is None:
            path = Path(folder, "made.xplane.pb")
            make_profile(path, options.events, options.host_events)
        for label in ("first", "again"):
            done = subprocess.run(
                [sys.executable, __file__, "--read", str(path)],
                check=True,
                capture_output=True,
                text=True,
            )
            r = json.loads(done.stdout)
            print(
                f"{label}: {r['events']:,} events, {r['mb']:.0f} MB in {r['s']:.2f} s "
                f"({r['events'] / r['s'] / 1e6:.2f} M events/s); own memory {r['own_mb']:.0f} MB "
                f"(before {r['before_mb']:.0f}, columns {r['columns_mb']:.0f}), peak with file "
                f"pages {r['peak_mb']:.0f} MB"
            )


if __name__ == "__main__":
    main()
