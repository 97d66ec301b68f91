"""Simulated nodes per second: how fast the native engine replays a job on a network.

The job is made up: on every rank a host thread launches kernels on one stream, an all-reduce
follows on another stream after every few of them, and the step ends when all is done. Ranks
form one group, so every collective waits for all of them.

    python benchmarks/bench_simulate.py --ranks 128 --collectives 256 --kernels 1000

The first simulation of an installation includes compilation by Numba; it is timed apart.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import TYPE_CHECKING

from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.graph.compress import compress, uncompressed
from whatif.simulator import engine
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

NETWORK = Network(
    name="two tiers",
    tiers=[
        Tier(size=8, bandwidth_gb_s=450.0, latency_ns=1_000, base_ns=5_000),
        Tier(size=1 << 20, bandwidth_gb_s=50.0, latency_ns=3_000, base_ns=10_000),
    ],
)


def make_job(ranks: int, collectives: int, kernels: int) -> ExecutionGraph:
    """Make a data-parallel step with collectives spread evenly over its kernels."""
    build = GraphBuilder()
    group = build.group("world", range(ranks))
    markers = {}
    for rank in range(ranks):
        build.rank(rank)
        host = build.lane(rank, LaneKind.HOST)
        compute = build.lane(rank, LaneKind.STREAM, 7)
        comm = build.lane(rank, LaneKind.STREAM, 8)
        launch = build.node(host, Flavour.HOST, 3_000)
        kernel = build.node(compute, Flavour.COMPUTE, 20_000, after=[launch])
        sent: list[int] = []
        for i in range(1, kernels):
            duration = 20_000 + (i * 7919 + rank * 104_729) % 5_000
            kernel = build.node(compute, Flavour.COMPUTE, duration, gap_ns=i % 3)
            while len(sent) * kernels < i * collectives:
                reduced = build.collective(
                    comm,
                    Collective.ALL_REDUCE,
                    group,
                    1 << 22,
                    after=[kernel, *sent[-1:]],
                )
                sent.append(reduced)
        markers[rank] = build.node(host, Flavour.GAP, 0)
    build.step("step", markers)
    return build.build()


def best_of(runs: int, action: Callable[[], object]) -> float:
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--collectives", type=int, default=256)
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()

    graph = make_job(options.ranks, options.collectives, options.kernels)
    print(f"{options.ranks} ranks, {graph.num_nodes:,} nodes, {len(graph.dep_node):,} edges")
    begin = time.perf_counter()
    compressed = compress(graph)
    seconds = time.perf_counter() - begin
    print(f"validated and compressed in {seconds:.2f} s, {compressed.ratio:.2f} to 1")

    known = engine.is_compiled()
    begin = time.perf_counter()
    simulate(compressed, network=NETWORK)
    what = "loaded from the cache" if known else "compiled"
    print(f"first simulation, {what}: {time.perf_counter() - begin:.2f} s")

    for name, form in (("compressed", compressed), ("not compressed", uncompressed(graph))):
        seconds = best_of(options.runs, lambda form=form: simulate(form, network=NETWORK))
        print(
            f"{name}: {seconds * 1e3:.0f} ms a simulation, "
            f"{graph.num_nodes / seconds:,.0f} original nodes/s"
        )
    simulation = simulate(compressed, network=NETWORK)
    for name, action in (
        ("time categories", lambda: simulation.per_rank),
        ("critical path", lambda: simulation.critical_path(0)),
    ):
        print(f"{name}: {best_of(1, action) * 1e3:.0f} ms")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"step {simulation.step_ns / 1e6:.1f} ms, peak RSS {peak:.0f} MiB")


if __name__ == "__main__":
    main()
