"""Write a large GPU Kineto trace that looks like the ones PyTorch writes.

The rows of a data-parallel training job: host operations with shapes, launches on two host
threads, kernels, copies, flows, all-reduces with full metadata, in the text layout and the order
of a real file. The times are made up and nothing is learnt from simulating it; it is for
measuring how fast a trace of a given size is read.

    python benchmarks/make_trace.py trace.json --size-mb 200
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from pathlib import Path
from typing import IO

KERNELS = (
    "ampere_sgemm_128x64_tn",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>()",
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>)"
    ),
    (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
        "(int, float, float const*, float const*, float const*, float*, float*, float*)"
    ),
    (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>"
        "(float*, float const*, int, int, int, bool const*, int, bool)"
    ),
)
# Name, shapes and types of the inputs.
OPERATIONS = (
    ("aten::linear", [[64, 512, 4096], [4096, 4096], [4096]], ["float"] * 3),
    ("aten::addmm", [[4096], [32768, 4096], [4096, 4096], [], []], ["float"] * 3 + ["Scalar"] * 2),
    ("aten::layer_norm", [[64, 512, 4096], [], [4096], [4096], []], ["float"] * 4 + ["Scalar"]),
    ("aten::add_", [[64, 512, 4096], [64, 512, 4096], []], ["float", "float", "Scalar"]),
    ("aten::_softmax", [[64, 16, 512, 512], [], []], ["float", "Scalar", "Scalar"]),
)

PID = 2910249
MAIN, AUTOGRAD = 2910249, 2919752
COMPUTE_STREAM, COMM_STREAM = 7, 40
LAYERS_PER_BUCKET = 6


class TraceWriter:
    """Rows of one process, written one layer of the model at a time."""

    def __init__(self, file: IO[bytes], seed: int) -> None:
        self.file = file
        self.random = random.Random(seed)
        self.rows: list[str] = []
        self.count = 0  # rows of any phase
        self.complete = 0  # complete (X) events
        self.written = 0
        self.external = 1
        self.correlation = 1000
        self.sequence = 1
        self.host_ns = 4_100_000_000_000_123
        self.device_ns = self.host_ns

    def row(self, text: str) -> None:
        self.rows.append("  {\n    " + text + "\n  }")
        self.count += 1

    def event(self, cat: str, name: str, tid: int, start_ns: int, dur_ns: int, args: str) -> None:
        pid = 0 if cat in ("kernel", "gpu_memcpy", "gpu_user_annotation") else PID
        self.row(
            f'"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {_us(start_ns)}, "dur": {_us(dur_ns)},\n'
            f'    "args": {{\n      "External id": {self.external}{args}\n    }}'
        )
        self.complete += 1

    def flow(self, ph: str, cat: str, flow: int, pid: int, tid: int, ns: int) -> None:
        end = ', "bp": "e"' if ph == "f" else ""
        self.row(
            f'"ph": "{ph}", "id": {flow}, "pid": {pid}, "tid": {tid}, "ts": {_us(ns)},\n'
            f'    "cat": "{cat}", "name": "{cat}"{end}'
        )

    def launch(self, tid: int, stream: int, kernel: str, metadata: str = "") -> None:
        call, dur = self.host_ns + 2_000, self.random.randrange(4_000, 9_000)
        self.correlation += 1
        link = f',      "cbid": 211, "correlation": {self.correlation}'
        self.event("cuda_runtime", "cudaLaunchKernel", tid, call, dur, link)
        self.flow("s", "ac2g", self.correlation, PID, tid, call)
        start = max(self.device_ns, call + 3_000)
        length = self.random.randrange(3_000, 400_000)
        self.event(
            "kernel", kernel, stream, start, length,
            f',      "queued": 0, "device": 0, "context": 1,      "stream": {stream}, '
            f'"correlation": {self.correlation},      "registers per thread": 32,      '
            f'"shared memory": 4224,      "blocks per SM": 66.370369,      '
            f'"warps per SM": 530.962952,      "grid": [7, 32, 32],      "block": [256, 1, 1],'
            f'      "est. achieved occupancy %": 100{metadata}',
        )  # fmt: skip
        self.flow("f", "ac2g", self.correlation, 0, stream, start)
        self.device_ns = start + length
        self.host_ns = call + dur

    def operation(self, tid: int) -> None:
        name, dims, types = self.random.choice(OPERATIONS)
        start = self.host_ns
        self.external += 1
        args = (
            f',"Record function id": {self.external}, "Input type": {json.dumps(types)}, '
            f'"Input Dims": {dims}, "Ev Idx": {self.external}'
        )
        self.event("cpu_op", name, tid, start, 30_500, args)
        for inner in ("aten::empty", "aten::as_strided", "aten::copy_"):
            self.external += 1
            args = (
                f',"Record function id": {self.external}, "Sequence number": {self.sequence}, '
                f'"Fwd thread id": 0, "Ev Idx": {self.external}'
            )
            self.host_ns += 1_500
            self.event("cpu_op", inner, tid, self.host_ns, 900, args)
        self.host_ns += 1_000
        self.correlation += 1
        args = f',      "cbid": 135, "correlation": {self.correlation}'
        self.event("cuda_runtime", "cudaEventQuery", tid, self.host_ns, 700, args)
        self.flow("f", "ac2g", self.correlation, PID, tid, self.host_ns)
        self.launch(tid, COMPUTE_STREAM, self.random.choice(KERNELS))
        self.host_ns = start + 31_000

    def all_reduce(self, tid: int) -> None:
        elements = self.random.choice([6_637_568, 7_875_584])
        metadata = (
            f'"Collective name": "allreduce", "In msg nelems": {elements}, '
            f'"Out msg nelems": {elements}, "Group size": 8, "dtype": "Float", '
            '"In split size": "[]", "Out split size": "[]", "Process Group Name": "0", '
            '"Process Group Description": "default_pg", '
            '"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"'
        )
        self.external += 1
        record = f',"Record function id": {self.external}, "Rank": 0, {metadata}'
        self.event("cpu_op", "record_param_comms", tid, self.host_ns, 60_000, record)
        annotation = f',"Record function id": {self.external}'
        self.event(
            "user_annotation", "nccl:all_reduce", tid, self.host_ns + 900, 50_000, annotation
        )
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.launch(tid, COMM_STREAM, kernel, ", " + metadata)

    def layer(self, tid: int) -> None:
        for _ in range(12):
            self.operation(tid)
        self.sequence += 1

    def step(self, number: int, layers: int = 24) -> None:
        start = self.host_ns
        for layer in range(layers):
            self.flow("s", "fwdbwd", self.sequence + layer, PID, MAIN, self.host_ns)
            self.layer(MAIN)
        for layer in range(layers):
            self.flow("f", "fwdbwd", self.sequence - layer - 1, PID, AUTOGRAD, self.host_ns)
            self.layer(AUTOGRAD)
            if layer % LAYERS_PER_BUCKET == 0:
                self.all_reduce(AUTOGRAD)
        self.external += 1
        args = f',"Record function id": {self.external}'
        name = f"ProfilerStep#{number}"
        self.event("user_annotation", name, MAIN, start, self.host_ns - start, args)
        self.flush()

    def flush(self) -> None:
        text = ",\n".join(self.rows).encode()
        self.written += self.file.write(b",\n" + text if self.written else text)
        self.rows.clear()


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def make_trace(path: Path, size_bytes: int, rank: int = 0, seed: int = 0) -> int:
    """Write a trace of about `size_bytes` of JSON, gzipped if the name ends in ``.gz``.

    Parameters
    ----------
    path : Path
        File to write.
    size_bytes : int
        JSON written before the trace ends at the next whole step.
    rank, seed : int
        Rank that the file says it is (of 8), and seed of the made-up times.

    Returns
    -------
    int
        How many complete events it holds.
    """
    device = '{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "totalGlobalMem": 85174583296}'
    head = (
        f'{{\n  "schemaVersion": 1,\n  "deviceProperties": [{device}],\n'
        f'  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 8}},\n'
        '  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": 1767189312000000000,\n'
        '  "traceEvents": [\n'
    )
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(head.encode())
        writer = TraceWriter(file, seed)
        number = 1
        while writer.written < size_bytes:
            writer.step(number)
            number += 1
        file.write(f'\n  ],\n  "traceName": "{path.name}"\n}}\n'.encode())
    return writer.complete


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--size-mb", type=int, default=200)
    options = parser.parse_args()
    events = make_trace(options.path, options.size_mb * 1_000_000)
    print(f"{options.path}: {options.path.stat().st_size / 1e6:.0f} MB, {events} complete events")


if __name__ == "__main__":
    main()
