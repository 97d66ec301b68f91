"""The critical path is a chain without holes, and the bound made from it is never passed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.graph.compress import CompressedGraph, compress
from whatif.simulator.critical_path import KINDS, utility_bound
from whatif.simulator.network import Network, Tier
from whatif.simulator.pricing import Prices
from whatif.simulator.run import Simulation, simulate

from .programs import Job, execute, jobs, to_graph


def random_prices(compressed: CompressedGraph, seed: int, *, base: int = 0) -> Prices:
    count = len(compressed.instances)
    draw = np.random.default_rng(seed)
    costs = draw.integers(0, 30, (count, 2, 2)).astype(np.float64)
    return Prices(
        tiers=("scaleup", "scaleout"),
        base_ns=np.full(count, float(base)),
        endpoint_ns=np.full(count, 3.0),
        latency_ns=costs[:, 0],
        bandwidth_ns=costs[:, 1],
        wire_bytes=costs[:, 1],
        messages=costs[:, 0],
        measured=np.zeros(count, dtype=np.bool_),
        warnings=(),
    )


def better(prices: Prices, resource: str, factor: float) -> Prices:
    tier, _, what = resource.partition("_")
    column = "latency_ns" if what == "latency" else "bandwidth_ns"
    values = getattr(prices, column).copy()
    values[:, prices.tiers.index(tier)] /= factor
    return Prices(**{**vars(prices), column: values})


@settings(max_examples=80, deadline=None)
@given(jobs(), st.integers(0, 2**32), st.sampled_from([-2, 0, 4]), st.booleans())
def test_the_path_is_a_chain_to_the_completion_that_sums_to_the_step(
    job: Job, seed: int, base: int, measured: bool
) -> None:
    compressed = compress(to_graph(job, execute(job))[0])
    simulation = (
        simulate(compressed, measured=True)
        if measured
        else simulate(compressed, prices=random_prices(compressed, seed, base=base))
    )
    start, end = simulation.replay.start, simulation.replay.end
    for k, step in enumerate(simulation.steps):
        path = simulation.critical_path(k)
        assert path.begin_ns[1:].tolist() == path.end_ns[:-1].tolist()
        assert path.begin_ns[0] <= 0
        assert path.end_ns[-1] == step.completion_ns
        split = path.split()
        assert sum(split.values()) == step.step_ns
        assert sum(simulation.critical_split.values()) == simulation.step_ns
        assert min(split.values()) >= 0
        # What runs on the path runs inside its node.
        inside = ~np.isin(path.what, [KINDS.index(k) for k in ("gap", "lag", "start_offset")])
        node = path.node[inside]
        assert (path.begin_ns[inside] >= np.rint(start[node])).all()
        assert (path.end_ns[inside] <= np.rint(end[node])).all()


@settings(max_examples=150, deadline=None)
@given(
    jobs(),
    st.integers(0, 2**32),
    st.sampled_from(
        [*("compute", "host", "scaleup_bw", "scaleout_bw", "scaleup_latency", "scaleout_latency")]
    ),
    st.sampled_from([1.5, 2.0, 8.0, math.inf]),
)
def test_no_utility_is_above_its_bound(job: Job, seed: int, resource: str, factor: float) -> None:
    compressed = compress(to_graph(job, execute(job))[0])
    prices = random_prices(compressed, seed)
    baseline = simulate(compressed, prices=prices)
    if resource in ("compute", "host"):
        variant = simulate(compressed, prices=prices, **{f"{resource}_scale": 1 / factor})
    else:
        variant = simulate(compressed, prices=better(prices, resource, factor))
    bound, reason = utility_bound(baseline, variant, resource, factor)
    if reason == "the step takes no time":
        assert (bound, baseline.step_ns) == (None, 0)
    elif bound is None:
        assert any(baseline.critical_path(k).freed_by_server for k in range(len(job.markers)))
        assert "queue" in reason
    else:
        step = max(baseline.step_ns, 0.5)  # half of a nanosecond counts as 0
        utility = (baseline.step_ns - variant.step_ns) / step * 100
        assert utility <= bound + 2 / step * 100  # completions are whole nanoseconds


def chain(*, start_offset: int = 0, steps: int = 1) -> ExecutionGraph:
    """Host, launch lag, kernel, all-reduce, copy: all on the critical path of two ranks."""
    build = GraphBuilder()
    group = build.group("world", [0, 1])
    markers: list[dict[int, int]] = [{} for _ in range(steps)]
    for rank in (0, 1):
        build.rank(rank, base_ns=start_offset, start_offset_ns=start_offset)
        stream = build.lane(rank, LaneKind.STREAM)
        for k in range(steps):
            build.node(stream, Flavour.HOST, 20, step=k)
            build.node(stream, Flavour.COMPUTE, 100 + 2 * k, gap_ns=5, step=k)
            build.collective(stream, Collective.ALL_REDUCE, group, 1000, step=k)
            build.node(stream, Flavour.COPY, 30, step=k)
            markers[k][rank] = build.node(stream, Flavour.GAP, 0, step=k)
    for k in range(steps):
        build.step(f"step {k}", markers[k])
    return build.build()


NETWORK = Network(
    name="any",
    tiers=[Tier(size=2, bandwidth_gb_s=10.0, latency_ns=7, base_ns=11, endpoint_ns_per_byte=0.01)],
)


def on_network(graph: ExecutionGraph, **changes: float) -> Simulation:
    return simulate(graph, network=NETWORK, **changes)


def test_the_path_names_what_each_nanosecond_was_spent_on() -> None:
    # All-reduce of two: 2 (n - 1) / n S / B = 100, 2 (n - 1) a = 14; the endpoint takes as many
    # bytes as the wire.
    assert on_network(chain(start_offset=9)).critical_path(0).split() == {
        "compute": 100,
        "copy": 30,
        "host": 20,
        "gap": 5,
        "lag": 0,
        "transfer": 0,
        "start_offset": 9,
        "sharing": 0,
        "base": 11,
        "endpoint": 10,
        "scaleup_latency": 14,
        "scaleup_bw": 100,
    }


@pytest.mark.parametrize(("steps", "compute", "total"), [(1, 100, 290), (3, 103, 293)])
def test_the_bound_of_a_chain_is_what_it_gains(steps: int, compute: int, total: int) -> None:
    graph = chain(steps=steps)
    baseline, variant = on_network(graph), on_network(graph, compute_scale=0.5)
    bound, _ = utility_bound(baseline, variant, "compute", 2)
    assert bound == pytest.approx(compute / 2 / total * 100)
    assert (baseline.step_ns - variant.step_ns) / total * 100 == pytest.approx(bound, abs=0.4)


def test_the_split_of_the_headline_is_that_of_its_steps() -> None:
    simulation = on_network(chain(steps=3))
    assert simulation.critical_split["compute"] == 103  # of 102 and 104
    assert simulation.critical_split["scaleup_bw"] == 100


def test_a_resource_that_is_no_part_of_the_path_has_no_bound() -> None:
    baseline = on_network(chain())
    for resource in ("scaleup_domain", "scaleout_bw", "transfer"):
        bound, reason = utility_bound(baseline, baseline, resource, 2)
        assert bound is None
        assert resource in reason


def test_no_bound_holds_where_the_path_waits_for_a_server() -> None:
    build = GraphBuilder()
    build.rank(0)
    group = build.group("alone", [0])
    queue = build.lane(0, LaneKind.QUEUE, servers=2)
    for transfer in (100, 50, 70):
        last = build.collective(queue, Collective.BARRIER, group, -1, transfer_ns=transfer)
    build.step("step", {0: last})
    simulation = simulate(build.build(), measured=True)
    bound, reason = utility_bound(simulation, simulation, "compute", 2)
    assert bound is None
    assert "server" in reason
