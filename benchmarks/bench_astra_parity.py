"""How fast the parity engine gives ASTRA-sim's cycles, beside ASTRA-sim's own binary.

The jobs are made up, as .et files. On the first, 128 ranks in two process groups of 64, every rank
issues 128 ring all-reduces in 4 splits, with a computation of its own length before each. On the
second they are, in turn, on its tensor-parallel group of 8 and its data-parallel group of 16. On
the third, 1,024 ranks, 16 layers forward and backward reduce in tensor-parallel groups of 8, and at
the end the data-parallel groups of 128.

    python benchmarks/bench_astra_parity.py
    WHATIF_ASTRA_SIM=... python benchmarks/bench_astra_parity.py    # beside the real one

A real binary is looked for as third_party/astra-sim/README.md says; it runs each job once, and must
print the same cycles. Of the engine the best of several runs counts: checks, plan and simulation of
nodes that are in memory; reading the .et files is timed apart, and again by messages instead of
recurrences. Compilation by Numba, once for an installation, is not in it.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chakra.schema.protobuf import et_def_pb2
from google.protobuf.internal.encoder import _VarintBytes as varint
from whatif.base.errors import UsageError
from whatif.simulator.astra.binary import find_binary
from whatif.simulator.astra.experiment import Experiment
from whatif.simulator.astra.external import ExperimentFiles, run_binary
from whatif.simulator.astra.files import (
    NetworkFile,
    SystemFile,
    write_groups,
    write_network,
    write_system,
)
from whatif.simulator.astra.parity import run
from whatif.simulator.astra.workload import read_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from whatif.simulator.astra.files import Groups

TENSOR = 8
RING = ["ring"]
SYSTEM = SystemFile(
    preferred_dataset_splits=4,
    local_mem_bw=2000,
    collective_optimization="baseline",
    scheduling_policy="LIFO",
    all_reduce_implementation=RING,
    all_gather_implementation=RING,
    reduce_scatter_implementation=RING,
    all_to_all_implementation=RING,
)
#: (microseconds of computation, communicator, bytes); 0 microseconds is none.
Call = tuple[int, int, int]


def halves(ranks: int) -> Groups:
    return {1: tuple(range(ranks // 2)), 2: tuple(range(ranks // 2, ranks))}


def groups_of(ranks: int) -> Groups:
    """Tensor-parallel groups from 1 on, then data-parallel ones."""
    tensor = {1 + i: tuple(range(i * TENSOR, (i + 1) * TENSOR)) for i in range(ranks // TENSOR)}
    data = {1 + len(tensor) + i: tuple(range(i, ranks, TENSOR)) for i in range(TENSOR)}
    return tensor | data


def on_halves(rank: int, ranks: int) -> Iterator[Call]:
    """128 collectives on half of the ranks."""
    for i in range(128):
        micros = 20 + (rank * 7919 + i * 104_729) % 13
        yield micros, 1 + rank // (ranks // 2), (1 << 22) + 1024 * (i % 5)


def alternating(rank: int, ranks: int) -> Iterator[Call]:
    """128 collectives, in turn on both groups."""
    for i in range(128):
        group = 1 + rank // TENSOR if i % 2 == 0 else 1 + ranks // TENSOR + rank % TENSOR
        yield 20 + (rank * 7919 + i * 104_729) % 13, group, (1 << 22) + 1024 * (i % 5)


def layered(rank: int, ranks: int) -> Iterator[Call]:
    """Layers, of which each reduces twice forward and twice backward."""
    for i in range(16 * 4):
        yield 50 + (rank * 7919 + i * 104_729) % 7, 1 + rank // TENSOR, 1 << 24
    yield 0, 1 + ranks // TENSOR + rank % TENSOR, 1 << 28


def write_job(place: Path, ranks: int, calls: Callable[[int, int], Iterator[Call]]) -> None:
    for rank in range(ranks):
        with (place / f"job.{rank}.et").open("wb") as file:
            for message in messages(calls(rank, ranks)):
                data = message.SerializeToString()
                file.write(varint(len(data)) + data)


def messages(calls: Iterator[Call]) -> Iterator[Any]:
    yield et_def_pb2.GlobalMetadata(version="0.0.4")
    ident = 0
    for micros, group, size in calls:
        kinds = [et_def_pb2.COMP_NODE] if micros else []
        for kind in (*kinds, et_def_pb2.COMM_COLL_NODE):
            node = et_def_pb2.Node(id=ident, name=f"node {ident}", type=kind)
            if ident:
                node.data_deps.append(ident - 1)
            node.attr.add(name="is_cpu_op", bool_val=False)
            if kind == et_def_pb2.COMP_NODE:
                node.duration_micros = micros
            else:
                node.attr.add(name="comm_type", int64_val=et_def_pb2.ALL_REDUCE)
                node.attr.add(name="comm_size", int64_val=size)
                node.attr.add(name="pg_name", string_val=str(group))
            yield node
            ident += 1


def best(action: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(
    name: str,
    ranks: int,
    groups: Groups,
    calls: Callable[[int, int], Iterator[Call]],
    runs: int,
    *,
    real: bool,
) -> bool:
    """Measure a job; whether the real one agrees, as far as it was asked."""
    experiment = Experiment(
        network=NetworkFile(
            topology=["Ring"], npus_count=[ranks], bandwidth=[100.0], latency=[500.0]
        ),
        system=SYSTEM,
        groups=groups,
    )
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_job(place, ranks, calls)
        start = time.perf_counter()
        workload = read_workload(place / "job")
        reading = time.perf_counter() - start
        run(workload, experiment)  # compiles
        outcome = run(workload, experiment)
        engine = best(lambda: run(workload, experiment), runs)
        by_messages = best(lambda: run(workload, experiment, recurrences=False), 1)
        print(f"{name}: {len(workload.id)} nodes, finish {max(outcome.finish)} cycles")
        print(f"  parity engine            {engine:9.4f} s")
        print(f"  the same by messages     {by_messages:9.4f} s")
        print(f"  reading the .et files    {reading:9.4f} s")
        try:
            binary = find_binary(None, experiment.backend) if real else None
        except UsageError as reason:
            print(f"  ASTRA-sim                not measured: {reason}")
            return True
        if binary is None:
            return True
        files = ExperimentFiles(place / "job", place / "n.yml", place / "s.json", None, place / "g")
        write_network(files.network, experiment.network)
        write_system(files.system, experiment.system)
        write_groups(place / "g", experiment.groups)
        told = run_binary(binary, files, ranks)
    same = list(told.finish_cycles) == outcome.finish
    same &= list(told.exposed_cycles) == outcome.exposed
    print(f"  ASTRA-sim ({binary.name})")
    print(f"                           {told.wall_s:9.4f} s, {told.wall_s / engine:.0f} times")
    print(f"  cycles of all ranks      {'the same' if same else 'DIFFERENT'}")
    return same


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="of the engine, of which the best counts"
    )
    parser.add_argument(
        "--large-real", action="store_true", help="1,024 ranks in the real one, too"
    )
    options = parser.parse_args()
    runs = options.runs
    same = measure("128 ranks, groups of 64", 128, halves(128), on_halves, runs, real=True)
    same &= measure(
        "128 ranks, groups of 8 and 16", 128, groups_of(128), alternating, runs, real=True
    )
    same &= measure(
        "1,024 ranks, 16 layers", 1024, groups_of(1024), layered, runs, real=options.large_real
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")
    sys.exit(not same)


if __name__ == "__main__":
    main()
