"""Each resource scales what it names, says where it is missing, and stays within its bound."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import pytest
from whatif.base.errors import GraphError, UsageError
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.simulator.network import Network, Tier, save_network
from whatif.sweeps.job import Job, prepare
from whatif.sweeps.resources import RESOURCES
from whatif.sweeps.run import sweep
from whatif.sweeps.single import replay_measured, simulate_once
from whatif.sweeps.variant import ResourceError
from whatif.utility.standard import utility

import whatif

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST_NS, COMPUTE_NS = 40_000, 200_000
SIZE = 8_000_000
UP = Tier(size=2, bandwidth_gb_s=100, latency_ns=1_000, efficiency=0.8, base_ns=5_000)
OUT = Tier(size=8, bandwidth_gb_s=20, latency_ns=7_000)


def training(
    ranks: int,
    *,
    model: Literal["host", "stream"] = "host",
    steps: int = 3,
    compute_ns: int = COMPUTE_NS,
    size: int = SIZE,
    transfer_ns: int = 1_000_000,
) -> ExecutionGraph:
    """Each step: host work, then a kernel that waits for it, then an all-reduce."""
    build = GraphBuilder(model=model)
    for rank in range(ranks):
        build.rank(rank, device="NVIDIA A100-SXM4-80GB")
    world = build.group("world", range(ranks))
    last: dict[int, int] = {}
    for step in range(steps):
        markers = {}
        for rank in range(ranks):
            if step == 0:
                build.lane(rank, LaneKind.HOST, 1)
                build.lane(rank, LaneKind.STREAM, 7)
            host, stream = 2 * rank, 2 * rank + 1
            begin = step * (HOST_NS + compute_ns + transfer_ns)
            after = [last[rank]] if step else []
            ready = begin
            if model == "host":
                work = build.node(
                    host, Flavour.HOST, HOST_NS, after=after, start_ns=begin, step=step
                )
                after, ready = [work], begin + HOST_NS
            kernel = build.node(
                stream, Flavour.COMPUTE, compute_ns, after=after, start_ns=ready, step=step
            )
            last[rank] = build.collective(
                stream,
                Collective.ALL_REDUCE,
                world,
                size,
                after=[kernel],
                start_ns=ready + compute_ns,
                dur_ns=transfer_ns,
                transfer_ns=transfer_ns,
                step=step,
            )
            markers[rank] = build.node(
                host, Flavour.GAP, 0, after=[last[rank]], start_ns=ready + compute_ns + transfer_ns,
                step=step,
            )  # fmt: skip
        build.step(f"step {step}", markers)
    return build.build()


@pytest.fixture
def one_tier(tmp_path: Path) -> Path:
    return written(tmp_path, UP)


@pytest.fixture
def two_tiers(tmp_path: Path) -> Path:
    return written(tmp_path, UP, OUT)


def written(folder: Path, *tiers: Tier) -> Path:
    path = folder / "network.yaml"
    save_network(Network(name="test", tiers=list(tiers)), path)
    return path


def job(graph: ExecutionGraph, network: Path, rank_map: Mapping[int, int] | None = None) -> Job:
    return prepare(graph, network=network, rank_map=rank_map)


def step_of(prepared: Job, resource: str, factor: float) -> int:
    (row,) = sweep(prepared, [resource], [factor]).results
    return row.step_ns


def test_every_resource_scales_its_own_term_of_the_step(one_tier: Path) -> None:
    """Two ranks on one tier: host + compute + S/B + 2 a + base."""
    prepared = job(training(2), one_tier)
    wire, latency, base = SIZE / (100 * 0.8), 2 * 1_000, 5_000
    rest = HOST_NS + COMPUTE_NS + base
    assert prepared.baseline.step_ns == rest + wire + latency
    assert step_of(prepared, "scaleup_bw", 4) == rest + wire / 4 + latency
    assert step_of(prepared, "scaleup_latency", 4) == rest + wire + latency / 4
    assert step_of(prepared, "compute", 4) == rest + wire + latency - COMPUTE_NS * 3 // 4
    assert step_of(prepared, "host", 4) == rest + wire + latency - HOST_NS * 3 // 4


def test_scale_out_resources_scale_the_outer_terms(two_tiers: Path) -> None:
    """Four ranks in two domains: the closed form of a two-tier all-reduce."""
    prepared = job(training(4), two_tiers)
    inner = SIZE / 80
    outer = SIZE / (2 * 20)
    fixed = HOST_NS + COMPUTE_NS + 2 * 1_000  # the base is the outermost tier's
    assert prepared.baseline.step_ns == fixed + inner + outer + 2 * 7_000
    assert step_of(prepared, "scaleout_bw", 2) == fixed + inner + outer / 2 + 2 * 7_000
    assert step_of(prepared, "scaleout_latency", 2) == fixed + inner + outer + 7_000
    assert step_of(prepared, "scaleup_bw", 2) == fixed + inner / 2 + outer + 2 * 7_000


def test_utility_is_the_share_of_the_step_that_is_saved(one_tier: Path) -> None:
    result = sweep(job(training(2), one_tier), ["compute"], [2])
    (row,) = result.results
    saved = result.baseline_step_ns - row.step_ns
    assert saved == COMPUTE_NS // 2
    assert row.utility_pct == pytest.approx(saved / result.baseline_step_ns * 100)


@pytest.mark.parametrize("factor", [0.25, 1, 1.5, 2, 8])
def test_results_stay_within_their_bounds(two_tiers: Path, factor: float) -> None:
    names = [name for name in RESOURCES if name != "scaleup_domain"]
    result = sweep(job(training(4), two_tiers), names, [factor])
    assert [row.resource for row in result.results] == names
    for row in result.results:
        assert row.bound_pct is not None
        assert row.bound_reason is None
        assert row.utility_pct <= row.bound_pct
        # Everything is on the critical path here, so the bound is reached.
        assert row.utility_pct == pytest.approx(row.bound_pct, abs=1e-3)


def test_a_factor_of_one_changes_nothing_and_one_below_makes_it_worse(one_tier: Path) -> None:
    result = sweep(job(training(2), one_tier), ["scaleup_bw", "host"], [1, 0.5])
    assert [row.factor for row in result.results] == [1, 0.5, 1, 0.5]
    assert [row.utility_pct for row in result.results][::2] == [0, 0]
    assert all(row.utility_pct < 0 for row in result.results[1::2])


def test_a_larger_domain_can_remove_the_scale_out_tier(tmp_path: Path) -> None:
    prepared = job(training(4), written(tmp_path, UP, OUT))
    (row,) = sweep(prepared, ["scaleup_domain"], [2]).results
    alone = job(training(4), written(tmp_path, msgspec.structs.replace(UP, size=4)))
    assert row.step_ns == alone.baseline.step_ns
    assert row.shape_change is not None
    assert "removes the scale-out tier" in row.shape_change
    assert row.bound_pct is None
    assert row.bound_reason is not None
    assert "shape" in row.bound_reason


def test_a_domain_size_that_leaves_several_domains_says_so(two_tiers: Path) -> None:
    prepared = job(training(8), two_tiers)
    (row,) = sweep(prepared, ["scaleup_domain"], [2]).results
    assert row.shape_change == "2 domains of up to 4 ranks instead of 4 of up to 2"
    assert row.step_ns < prepared.baseline.step_ns


def test_a_smaller_domain_splits_the_old_ones(two_tiers: Path) -> None:
    prepared = job(training(4), two_tiers)
    (row,) = sweep(prepared, ["scaleup_domain"], [0.5]).results
    assert row.shape_change == "4 domains of up to 1 rank instead of 2 of up to 2"
    assert row.step_ns > prepared.baseline.step_ns


def test_a_domain_size_that_moves_no_rank_says_so(two_tiers: Path) -> None:
    each_alone = job(training(4), two_tiers, {0: 0, 1: 1, 2: 2, 3: 3})
    (row,) = sweep(each_alone, ["scaleup_domain"], [0.5]).results
    assert row.shape_change == "domains hold 1 rank instead of 2, which moves none"
    assert row.utility_pct == 0


@pytest.mark.parametrize(
    ("ranks", "tiers", "resource", "factor", "reason"),
    [
        (2, (UP, OUT), "scaleout_bw", 2, "no byte over scale-out: all 2 ranks are in one"),
        (2, (UP, OUT), "scaleout_latency", 2, "no message over scale-out: all 2 ranks"),
        (2, (UP,), "scaleout_bw", 2, "network 'test' has no scale-out tier"),
        (2, (UP, OUT), "scaleup_domain", 2, "already holds all 2 ranks"),
        (2, (UP,), "scaleup_domain", 0.5, "no scale-out tier that could join 2 domains of 1 rank"),
        (4, (UP, OUT), "scaleup_domain", 1.25, "1.25 times 2 ranks is no whole number"),
        (1, (UP, OUT), "scaleup_bw", 2, "the job has a single rank"),
        (1, (UP, OUT), "scaleup_domain", 0.5, "the job has a single rank"),
        (
            2,
            (msgspec.structs.replace(UP, latency_ns=0),),
            "scaleup_latency",
            2,
            "gives scale-up no latency",
        ),
        (
            16,
            (UP, OUT),
            "scaleup_domain",
            0.5,
            "16 domains of 1 rank are more than the 8 that network 'test' joins",
        ),
    ],
)
def test_a_resource_that_is_not_there_is_refused_with_the_reason(
    tmp_path: Path, ranks: int, tiers: tuple[Tier, ...], resource: str, factor: float, reason: str
) -> None:
    prepared = job(training(ranks), written(tmp_path, *tiers))
    with pytest.raises(ResourceError, match=reason) as refused:
        sweep(prepared, ["compute", resource], [factor])
    assert refused.value.exit_code == 1
    listed = sweep(prepared, ["compute", resource], [factor], list_refused=True)
    assert [row.resource for row in listed.results] == ["compute"]
    (one,) = listed.refused
    assert (one.resource, one.factor) == (resource, factor)
    assert reason in one.reason
    assert not one.reason.startswith(resource)


def test_every_rank_alone_sends_nothing_over_scale_up(two_tiers: Path) -> None:
    prepared = job(training(4), two_tiers, {0: 0, 1: 1, 2: 2, 3: 3})
    with pytest.raises(ResourceError, match="every rank is alone in its scale-up domain"):
        sweep(prepared, ["scaleup_bw"], [2])


def test_bytes_of_unknown_size_are_not_a_resource(one_tier: Path) -> None:
    prepared = job(training(2, size=-1), one_tier)
    with pytest.raises(ResourceError, match="no byte over scale-up whose size the trace says"):
        sweep(prepared, ["scaleup_bw"], [2])
    assert any("no size" in warning for warning in sweep(prepared, ["compute"], [2]).warnings)


def test_the_stream_model_has_no_host_to_scale(one_tier: Path) -> None:
    prepared = job(training(2, model="stream"), one_tier)
    with pytest.raises(ResourceError, match="the stream model has no host work"):
        sweep(prepared, ["host"], [2])


def test_compute_of_no_length_is_not_a_resource(one_tier: Path) -> None:
    prepared = job(training(2, compute_ns=0), one_tier)
    with pytest.raises(ResourceError, match="no compute work of any length"):
        sweep(prepared, ["compute"], [2])


def test_an_unknown_resource_is_refused_with_the_list(one_tier: Path) -> None:
    with pytest.raises(UsageError, match=r"'bandwidth'; there are scaleup_bw, .*, host") as wrong:
        sweep(job(training(2), one_tier), ["bandwidth"], [2])
    assert wrong.value.exit_code == 2


@pytest.mark.parametrize("factors", [[], [0], [-1], [float("nan")], [float("inf")]])
def test_a_factor_that_makes_no_sense_is_refused(one_tier: Path, factors: list[float]) -> None:
    with pytest.raises(UsageError, match="factor"):
        sweep(job(training(2), one_tier), ["compute"], factors)


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf")])
def test_a_limit_that_makes_no_sense_is_refused(one_tier: Path, limit: float) -> None:
    with pytest.raises(UsageError, match="limit"):
        sweep(job(training(2), one_tier), ["compute"], [2], limit_pct=limit)


def test_names_and_factors_count_once_in_the_order_given(one_tier: Path) -> None:
    result = sweep(job(training(2), one_tier), ["host", "compute", "host"], [4, 2, 4])
    assert [(row.resource, row.factor) for row in result.results] == [
        ("host", 4),
        ("host", 2),
        ("compute", 4),
        ("compute", 2),
    ]


def test_the_baseline_error_is_measured_and_marked(one_tier: Path) -> None:
    result = sweep(job(training(2), one_tier), ["compute"], [2])
    measured = HOST_NS + COMPUTE_NS + 1_000_000
    assert result.measured_step_ns == measured
    wanted = (result.baseline_step_ns - measured) / measured * 100
    assert result.baseline_error_pct == pytest.approx(wanted)
    assert wanted < -5
    assert result.beyond_limit is True
    assert sweep(job(training(2), one_tier), ["compute"], [2], limit_pct=90).beyond_limit is False


def test_the_fitted_baseline_is_within_its_limit() -> None:
    result = sweep(prepare(training(8)), ["scaleup_bw"], [2])
    assert result.baseline_error_pct == pytest.approx(0, abs=2)
    assert result.beyond_limit is False
    assert any("measured transfers" in text for text in result.network.assumptions)


def test_only_steady_steps_are_used_and_all_are_told(one_tier: Path) -> None:
    result = sweep(job(training(2, steps=3), one_tier), ["compute"], [2])
    assert [step.used for step in result.steps] == [False, True, True]
    assert [step.name for step in result.steps] == ["step 0", "step 1", "step 2"]
    (row,) = result.results
    assert row.utility_range_pct == pytest.approx((row.utility_pct, row.utility_pct))
    single = sweep(job(training(2, steps=1), one_tier), ["compute"], [2])
    assert [step.used for step in single.steps] == [True]
    assert single.results[0].utility_range_pct is None


def without_timeline(graph: ExecutionGraph) -> ExecutionGraph:
    unknown = np.full_like(graph.steps.completion_ns, -1)
    return graph.with_(steps=replace(graph.steps, completion_ns=unknown))


def test_without_a_measured_step_the_error_is_not_known(one_tier: Path) -> None:
    result = sweep(job(without_timeline(training(2)), one_tier), ["compute"], [2])
    assert result.measured_step_ns is None
    assert result.baseline_error_pct is None
    assert result.beyond_limit is None
    assert result.results[0].utility_pct > 0


def test_a_job_that_takes_no_time_has_no_utility(one_tier: Path) -> None:
    build = GraphBuilder()
    build.rank(0)
    build.step("step", {0: build.node(build.lane(0, LaneKind.HOST), Flavour.GAP, 0)})
    with pytest.raises(GraphError, match="takes no time"):
        job(build.build(), one_tier)


def test_utility_lists_what_a_job_lacks_and_keeps_the_jobs_apart(tmp_path: Path) -> None:
    network = written(tmp_path, UP, OUT)
    small, large = job(training(2), network), job(training(4), network)
    result = utility([small, large])
    assert result.factor == 2
    names = [{row.resource for row in each.results} for each in result.jobs]
    assert names[0] == {"scaleup_bw", "scaleup_latency", "compute", "host"}
    assert names[1] == set(RESOURCES)
    assert {one.resource for one in result.jobs[0].refused} == set(RESOURCES) - names[0]
    assert not result.jobs[1].refused


def test_simulating_a_named_network_tells_the_error_of_the_baseline_too(two_tiers: Path) -> None:
    result = simulate_once(training(4), network=two_tiers).result()
    assert result.network is not None
    assert result.network.name == "test"
    assert result.step_ns == job(training(4), two_tiers).baseline.step_ns
    assert result.baseline_step_ns == prepare(training(4)).baseline.step_ns
    assert result.baseline_error_pct == pytest.approx(0, abs=2)
    assert result.change_pct is not None
    assert result.change_pct < -20


def test_an_unknown_machine_can_be_simulated_on_a_named_network_only(one_tier: Path) -> None:
    graph = replace(training(2), devices=("Unknown 3000",) * 2)
    with pytest.raises(whatif.NetworkError, match="no preset"):
        simulate_once(graph)
    result = simulate_once(graph, network=one_tier).result()
    assert result.beyond_limit is None
    assert any("no preset" in warning for warning in result.warnings)


def test_a_measured_replay_gives_the_measured_times() -> None:
    result = replay_measured(training(2)).result()
    assert result.step_ns == result.measured_step_ns
    assert result.baseline_error_pct == 0
    assert result.network is None
    for rank in result.per_rank:
        parts = [rank.compute_ns, rank.exposed_comm_ns, rank.copy_ns, rank.wait_ns, rank.host_ns]
        assert sum(parts) + rank.idle_ns + rank.start_offset_ns == result.step_ns


def test_a_graph_without_a_timeline_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="no measured timeline"):
        replay_measured(without_timeline(training(2)))


def test_megatron_on_one_node(shared_data: Path, tmp_path: Path) -> None:
    trace = shared_data / "traces" / "gpu" / "megatron_tp8_a100x8"
    wanted = ["scaleup_bw", "scaleup_latency", "compute", "host"]
    graph = whatif.load(trace, processes=1)
    result = whatif.sweep(graph, wanted, [2, 4])
    assert [row.resource for row in result.results] == [name for name in wanted for _ in "12"]
    for row in result.results:
        assert row.bound_pct is not None
        assert 0 <= row.utility_pct <= row.bound_pct
    assert result.beyond_limit is False
    with pytest.raises(ResourceError, match="all 8 ranks are in one scale-up domain"):
        whatif.sweep(graph, ["scaleout_bw"])
    whatif.gen_gpu_chakra_et(graph, tmp_path / "et")
    assert whatif.sweep(tmp_path / "et", wanted, [2, 4]) == result


def test_a_scope_of_several_tiers_gets_better_as_a_whole() -> None:
    """On a torus scale-up is all its rings: twice the bandwidth halves the bandwidth part."""
    torus = Network(
        name="torus",
        tiers=[Tier(topology="ring", size=2, bandwidth_gb_s=10) for _ in range(2)],
    )
    build = GraphBuilder(world_size=4)
    lanes = []
    for rank in range(4):
        build.rank(rank)
        lanes.append(build.lane(rank, LaneKind.STREAM, 7))
    group = build.group("0", range(4))
    markers = {}
    for rank, lane in enumerate(lanes):
        node = build.collective(
            lane, Collective.ALL_REDUCE, group, 1 << 24, dur_ns=1000, transfer_ns=1000
        )
        markers[rank] = build.node(lane, Flavour.GAP, 0, start_ns=1000, after=[node])
    build.step("step", markers, completion_ns=1000)
    job = prepare(build.build(), network=torus)
    result = sweep(job, ["scaleup_bw"], [2.0])
    assert result.results[0].step_ns == pytest.approx(result.baseline_step_ns / 2, rel=1e-4)


@pytest.mark.parametrize("factor", [1e-12, 1e300])
def test_factors_that_no_clock_can_count_are_refused(factor: float) -> None:
    with pytest.raises(UsageError, match="must lie between"):
        sweep(prepare(training(2), network=Network(name="net", tiers=[UP])), ["compute"], [factor])
