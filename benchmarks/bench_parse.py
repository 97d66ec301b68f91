"""How fast a Kineto trace becomes columns, and in how much memory, beside `orjson.loads`.

Each reader runs in a fresh process on the same file, which is brought into the page cache
first. What orjson gives is a tree of Python objects, which is where most readers of traces start;
ours are the sorted columns that a conversion uses.

    python benchmarks/bench_parse.py                  # generates 200 MB
    python benchmarks/bench_parse.py --size-mb 2000   # memory check; orjson would need 15 GB
    python benchmarks/bench_parse.py --trace my_trace.json.gz
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from make_trace import make_trace

ORJSON_LIMIT_MB = 1000


def memory_mb(field: str) -> float:
    """Read a size from the kernel's account of this process (VmHWM: the peak of VmRSS)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit(f"/proc/self/status has no {field}: this benchmark needs Linux")


def read_whatif(path: Path) -> dict[str, Any]:
    import numpy as np
    from whatif.converters.kineto.reader import read_kineto

    before_mb = memory_mb("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    trace = read_kineto(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    arrays = [*vars(trace).values(), *vars(trace.flows).values()]
    columns = sum(value.nbytes for value in arrays if isinstance(value, np.ndarray))
    return {
        "events": trace.events_seen,
        "text_mb": trace.file_bytes / 1e6,
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": memory_mb("VmHWM"),
        "before_mb": before_mb,
        "columns_mb": columns / 1e6,
    }


def read_orjson(path: Path) -> dict[str, Any]:
    import orjson

    before_mb = memory_mb("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    data = path.read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    trace = orjson.loads(data)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    return {
        "events": sum(event.get("ph") == "X" for event in events),
        "text_mb": len(data) / 1e6,
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": memory_mb("VmHWM"),
        "before_mb": before_mb,
        "columns_mb": 0.0,
    }


READERS = {"whatif": read_whatif, "orjson": read_orjson}


def measure(reader: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--reader", reader, "--trace", str(path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def report(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass  # into the page cache, for both alike
    print(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
    header = ("reader", "events", "MB/s", "MB/s CPU", "peak MB", "columns MB", "beyond MB")
    print(("{:<8}" + "{:>12}" * 6).format(*header))
    for reader in READERS:
        if reader == "orjson" and path.stat().st_size > ORJSON_LIMIT_MB * 1e6:
            print(f"orjson   left out above {ORJSON_LIMIT_MB} MB: it needs 7 times the file")
            continue
        result = measure(reader, path)
        beyond = result["peak_mb"] - result["columns_mb"]
        print(
            f"{reader:<8}{result['events']:>12}"
            f"{result['text_mb'] / result['wall_s']:>12.0f}"
            f"{result['text_mb'] / result['cpu_s']:>12.0f}"
            f"{result['peak_mb']:>12.0f}{result['columns_mb']:>12.0f}{beyond:>12.0f}"
        )
    print("MB/s: of JSON text per second of wall time; per second of processor time.")
    print("beyond: peak memory of the process, the interpreter included, less the columns kept.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", type=Path, help="measure this file instead of a generated one")
    parser.add_argument("--size-mb", type=int, default=200, help="size to generate")
    parser.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        print(json.dumps(READERS[options.reader](options.trace)))
    elif options.trace:
        report(options.trace)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rank0.json"
            make_trace(path, options.size_mb * 1_000_000)
            report(path)


if __name__ == "__main__":
    main()
