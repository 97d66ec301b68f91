"""How fast the native engine replays a Megatron-like job, and a sweep of it, and in what memory.

The job is made up. Tensor-parallel groups of 8 ranks reduce after every few kernels, and the next
kernel waits for them; data-parallel groups of 16 reduce beside the backward pass, on a stream of
their own, and the step ends when all is done. So on every rank two groups of different ranks are
in flight at once. On the first network each has a tier of its own; on the second all ranks are in
one domain, where they share ports all the time.

    python benchmarks/bench_simulate.py                    # 128 and 1,024 ranks, 64 variants
    python benchmarks/bench_simulate.py --ranks 256 --variants 0

The first simulation of an installation includes compilation by Numba; it is timed apart.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec.structs import replace
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.graph.compress import compress, uncompressed
from whatif.simulator import engine
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from whatif.graph.compress import CompressedGraph
    from whatif.simulator.run import Simulation

TENSOR, DATA = 8, 16
#: Of the collectives of a rank, how many are those of its data-parallel group.
DATA_SHARE = 1 / 4

SCALE_UP = Tier(size=8, bandwidth_gb_s=450.0, latency_ns=1_000, base_ns=5_000)
SCALE_OUT = Tier(size=1 << 20, bandwidth_gb_s=50.0, latency_ns=3_000, base_ns=10_000)
NETWORKS = (
    Network(name="domains of 8", tiers=[SCALE_UP, SCALE_OUT]),
    Network(name="domains of 128", tiers=[replace(SCALE_UP, size=128), SCALE_OUT]),
)


def make_job(ranks: int, collectives: int, kernels: int) -> ExecutionGraph:
    """Make one step of a job; the number of ranks is a multiple of 128 or smaller."""
    build = GraphBuilder()
    block = min(ranks, TENSOR * DATA)
    tensor = [build.group(f"tensor {i}", range(i, i + TENSOR)) for i in range(0, ranks, TENSOR)]
    data = {
        (first, i): build.group(f"data {first + i}", range(first + i, first + block, TENSOR))
        for first in range(0, ranks, block)
        for i in range(TENSOR)
    }
    reductions = round(collectives * DATA_SHARE)
    blocking = collectives - reductions
    markers = {}
    for rank in range(ranks):
        build.rank(rank)
        host = build.lane(rank, LaneKind.HOST)
        compute, beside = (build.lane(rank, LaneKind.STREAM, stream) for stream in (7, 8))
        behind = build.lane(rank, LaneKind.STREAM, 9)
        last = [build.node(host, Flavour.HOST, 3_000)]
        inner: list[int] = []
        outer: list[int] = []
        for i in range(kernels):
            duration = 20_000 + (i * 7919 + rank * 104_729) % 5_000
            last = [build.node(compute, Flavour.COMPUTE, duration, gap_ns=i % 3, after=last)]
            while len(inner) * kernels < i * blocking:
                after = [*last, *inner[-1:]]
                group = tensor[rank // TENSOR]
                inner.append(
                    build.collective(beside, Collective.ALL_REDUCE, group, 1 << 22, after=after)
                )
                last = [*last, inner[-1]]
            backward = i - kernels / 2
            while len(outer) < 2 * backward * reductions / kernels:
                after = [last[0], *outer[-1:]]
                group = data[rank // block * block, rank % TENSOR]
                outer.append(
                    build.collective(behind, Collective.ALL_REDUCE, group, 1 << 24, after=after)
                )
        markers[rank] = build.node(host, Flavour.GAP, 0)
    build.step("step", markers)
    return build.build()


def timed(action: Callable[[], object], *, runs: int = 1) -> float:
    """Give the shortest time of some runs, in seconds."""
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(ranks: int, options: argparse.Namespace) -> CompressedGraph:
    """Print how long a job of some ranks takes."""
    graph = make_job(ranks, options.collectives, options.kernels)
    members = int((graph.coll >= 0).sum())
    print(
        f"\n{ranks} ranks, {graph.num_nodes:,} nodes, {members / ranks:.0f} collectives a rank; "
        f"peak RSS with the graph {peak_mib():.0f} MiB"
    )
    forms: dict[str, CompressedGraph] = {}
    seconds = timed(lambda: forms.update(compressed=compress(graph)))
    compressed = forms["compressed"]
    print(f"validated and compressed in {seconds:.2f} s, {compressed.ratio:.2f} to 1")
    known = engine.is_compiled()
    seconds = timed(lambda: simulate(compressed, network=NETWORKS[0]))
    print(f"first simulation, {'with the cache of' if known else 'and'} Numba: {seconds:.2f} s")

    for network in NETWORKS:
        seconds = timed(lambda on=network: simulate(compressed, network=on), runs=options.runs)
        simulation: Simulation = simulate(compressed, network=network)
        prices = simulation.prices
        engine_s = timed(lambda p=prices: simulate(compressed, prices=p), runs=options.runs)
        slowed = (simulation.sharing_ns > 1).sum() / members
        print(
            f"{network.name}: {seconds:.3f} s a simulation, of which the engine {engine_s:.3f}; "
            f"{graph.num_nodes / seconds / 1e6:.1f} million nodes/s; step "
            f"{simulation.step_ns / 1e6:.1f} ms, {slowed:.0%} of the transfers slowed by others"
        )
    for name, action in (
        ("time categories", lambda: simulation.per_rank),
        ("critical path", lambda: simulation.critical_path(0)),
        ("not compressed", lambda: simulate(uncompressed(graph), network=NETWORKS[0])),
    ):
        print(f"{name}: {timed(action):.2f} s")
    print(f"peak RSS {peak_mib():.0f} MiB")
    return compressed


def measure_sweep(compressed: CompressedGraph, variants: int) -> None:
    """Print how long variants of one job take on all cores, compiled and loaded before."""
    side = max(1, round(variants**0.5))
    networks = [
        replace(
            NETWORKS[1],
            tiers=[
                replace(SCALE_UP, size=128, bandwidth_gb_s=450.0 * (1 + i % side)),
                replace(SCALE_UP, size=1 << 20, latency_ns=1_000 / (1 + i // side)),
            ],
        )
        for i in range(variants)
    ]
    cores = len(os.sched_getaffinity(0))
    for threads in sorted({1, cores}):
        with ThreadPoolExecutor(threads) as pool:

            def run() -> list[int]:
                return list(pool.map(lambda n: simulate(compressed, network=n).step_ns, networks))

            print(f"sweep of {variants} variants with {threads} threads: {timed(run):.2f} s")
    print(f"peak RSS {peak_mib():.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--collectives", type=int, default=256)
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--variants", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for i, ranks in enumerate(options.ranks):
        compressed = measure(ranks, options)
        if i == 0 and options.variants:
            measure_sweep(compressed, options.variants)


if __name__ == "__main__":
    main()
