"""A utility says how sure it is: calibration and steps in quadrature, judged by measured noise."""

from __future__ import annotations

from dataclasses import replace
from math import hypot, sqrt
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from rich.console import Console
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.reports.machine import sweep_frame
from whatif.reports.sweep import result_table
from whatif.reports.utility import utility_report
from whatif.simulator.network import Alternative, Network, Overlap, Tier, save_network
from whatif.sweeps.explain import explain
from whatif.sweeps.intervals import OTHER_SPEED, interval, judge, noise_pct, sources
from whatif.sweeps.job import Job, prepare
from whatif.sweeps.resources import RESOURCES
from whatif.sweeps.run import sweep
from whatif.sweeps.single import simulate_once
from whatif.utility.results import UtilityResult

import whatif

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from whatif.sweeps.results import ResultRow, SweepResult

# An all-reduce of two ranks takes SIZE / bandwidth: 100, 200 and 50 us on these.
SIZE = 8_000_000
BASE, SLOW, FAST = (Tier(size=2, bandwidth_gb_s=gb_s) for gb_s in (80, 40, 160))
TRANSFER_NS = 100_000

# With the transfer, steady steps of 400, 500 and 300 us; the median is the first.
COMPUTE_US = (300, 300, 400, 200)
NOISE = 2 * 100 / sqrt(3) / 400 * 100


def training(
    compute_us: Sequence[int] = COMPUTE_US, ranks: int = 2, size: int = SIZE
) -> ExecutionGraph:
    """Each step a kernel, then an all-reduce."""
    build = GraphBuilder(model="stream")
    for rank in range(ranks):
        build.rank(rank, device="NVIDIA A100-SXM4-80GB")
    world = build.group("world", range(ranks))
    lanes = [
        (build.lane(rank, LaneKind.HOST, 1), build.lane(rank, LaneKind.STREAM, 7))
        for rank in range(ranks)
    ]
    last: list[list[int]] = [[] for _ in range(ranks)]
    begin = 0
    for step, microseconds in enumerate(compute_us):
        compute_ns = microseconds * 1_000
        end = begin + compute_ns + TRANSFER_NS
        markers = {}
        for rank, (host, stream) in enumerate(lanes):
            kernel = build.node(
                stream, Flavour.COMPUTE, compute_ns, after=last[rank], start_ns=begin, step=step
            )
            sent = build.collective(
                stream,
                Collective.ALL_REDUCE,
                world,
                size,
                after=[kernel],
                start_ns=begin + compute_ns,
                dur_ns=TRANSFER_NS,
                transfer_ns=TRANSFER_NS,
                step=step,
            )
            last[rank] = [sent]
            markers[rank] = build.node(host, Flavour.GAP, 0, after=[sent], start_ns=end, step=step)
        build.step(f"step {step}", markers)
        begin = end
    return build.build()


def written(folder: Path, *tiers: Tier, alternatives: Sequence[list[Tier]] = ()) -> Path:
    path = folder / "network.yaml"
    others = [Alternative(tiers=one) for one in alternatives]
    save_network(Network(name="test", tiers=list(tiers), alternatives=others), path)
    return path


def job(folder: Path, graph: ExecutionGraph, *alternatives: Tier) -> Job:
    path = written(folder, BASE, alternatives=[[tier] for tier in alternatives])
    return prepare(graph, network=path)


def swept(prepared: Job, resource: str) -> tuple[SweepResult, ResultRow]:
    result = sweep(prepared, [resource], [2])
    (row,) = result.results
    return result, row


def test_calibration_and_steps_are_added_in_quadrature_on_each_side() -> None:
    """3-4-5 below, 5-12-13 above."""
    assert interval(10, [[7, 15, 9], (6, 22)]) == pytest.approx((5, 23))


def test_the_interval_covers_what_is_known_and_nothing_else() -> None:
    assert interval(10, [[], (6, 22)]) == (6, 22)
    assert interval(10, [[12, 11], ()]) == (10, 12)
    assert interval(10, [[8], (11, 12)]) == (8, 12)
    assert interval(10, [[], ()]) is None


@pytest.mark.parametrize(
    ("utility", "span", "noise", "steps", "wanted"),
    [
        (5, (3, 7), 4.9, 4, "significant"),
        (-5, (-7, -3), 4.9, 4, "significant"),
        (5, (3, 7), 5.1, 4, "within noise"),
        (-5, (-7, -3), 5.1, 4, "within noise"),
        (5, (-0.1, 10), 1, 4, "within noise"),
        (-5, (-10, 0), 1, 4, "within noise"),
        (0, (0, 0), 0, 4, "within noise"),
        (5, (3, 7), None, 4, "no measured steps: noise unknown"),
        (5, (3, 7), None, 2, "one steady step: spread unknown"),
        (5, (3, 7), None, 1, "one step recorded: spread unknown"),
        (5, None, None, 1, "one step recorded: spread unknown"),
    ],
)
def test_significant_excludes_zero_and_exceeds_the_noise(
    utility: float, span: tuple[float, float] | None, noise: float | None, steps: int, wanted: str
) -> None:
    assert judge(utility, span, noise, steps) == wanted


def test_noise_is_two_standard_errors_of_the_measured_steady_steps(tmp_path: Path) -> None:
    """400, 500 and 300 us have a standard deviation of 100 us and a median of 400 us."""
    assert noise_pct(job(tmp_path, training()).baseline) == pytest.approx(NOISE)
    assert noise_pct(job(tmp_path, training((300, 300))).baseline) is None


def test_without_alternatives_the_interval_is_the_spread_of_the_steps(tmp_path: Path) -> None:
    result, row = swept(job(tmp_path, training()), "scaleup_bw")
    assert row.utility_pct == pytest.approx(50 / 400 * 100)
    assert row.utility_range_pct == pytest.approx((50 / 500 * 100, 50 / 300 * 100))
    assert (row.utility_low_pct, row.utility_high_pct) == pytest.approx(row.utility_range_pct)
    assert "3 steady steps alone" in result.interval_basis
    assert "`whatif calibrate`" in result.interval_basis


def test_alternatives_widen_the_interval_with_baselines_of_their_own(tmp_path: Path) -> None:
    """Twice the bandwidth saves 100 of 500 us on the slow one, 25 of 350 us on the fast one."""
    prepared = job(tmp_path, training(), SLOW, FAST)
    result, row = swept(prepared, "scaleup_bw")
    point, slow, fast = 50 / 400 * 100, 100 / 500 * 100, 25 / 350 * 100
    # Twice the speed may be 5 % more or less than that.
    less, more = (100 / 400 * 100 * (1 - 1 / (2 * by)) for by in (1 / OTHER_SPEED, OTHER_SPEED))
    assert row.utility_pct == pytest.approx(point)
    low, high = hypot(point - fast, point - 10, point - less), hypot(slow - point, 50 / 3 - point)
    assert row.utility_low_pct == pytest.approx(point - low, abs=1e-3)
    assert row.utility_high_pct == pytest.approx(point + hypot(high, more - point), abs=1e-3)
    assert result.noise_pct == pytest.approx(NOISE)
    assert point < NOISE
    assert row.verdict == "within noise"
    assert result.interval_basis.startswith("2 other networks")
    assert result.interval_basis.endswith("3 steady steps")


def test_a_resource_that_is_no_part_of_the_network_is_worth_less_on_a_slow_one(
    tmp_path: Path,
) -> None:
    """Half the compute saves 150 us of 400, of 500 on the slow one and of 350 on the fast one."""
    _, row = swept(job(tmp_path, training(), SLOW, FAST), "compute")
    point, slow, fast = 37.5, 30, 150 / 350 * 100
    assert row.utility_pct == pytest.approx(point)
    assert row.utility_low_pct == pytest.approx(point - hypot(point - slow, point - 100 / 3))
    assert row.utility_high_pct == pytest.approx(point + hypot(fast - point, 40 - point))
    assert point > NOISE
    assert row.verdict == "significant"


def test_a_latency_that_may_be_nothing_may_be_worth_nothing(tmp_path: Path) -> None:
    slow = msgspec.structs.replace(BASE, latency_ns=20_000)
    path = written(tmp_path, slow, alternatives=[[BASE]])
    _, row = swept(prepare(training((300, 300, 300)), network=path), "scaleup_latency")
    assert row.utility_pct == pytest.approx(20 / 440 * 100)
    assert (row.utility_low_pct, row.utility_high_pct) == pytest.approx((0, row.utility_pct))
    assert row.verdict == "within noise"


@pytest.mark.parametrize("resource", [name for name in RESOURCES if name != "host"])
def test_an_alternative_is_worth_what_a_network_of_its_own_would_be(
    tmp_path: Path, resource: str
) -> None:
    up = Tier(size=2, bandwidth_gb_s=100, latency_ns=1_000)
    out = Tier(size=8, bandwidth_gb_s=20, latency_ns=7_000)
    other = [
        msgspec.structs.replace(up, latency_ns=9_000, efficiency=0.5),
        msgspec.structs.replace(out, efficiency=0.3, endpoint_ns_per_byte=0.02),
    ]
    graph = training((300, 300), ranks=4)  # a single steady step, so the rest is the alternative's
    own = swept(prepare(graph, network=written(tmp_path, *other)), resource)[1].utility_pct
    path = written(tmp_path, up, out, alternatives=[other])
    _, row = swept(prepare(graph, network=path), resource)
    assert abs(own - row.utility_pct) > 0.1
    speeds = []
    if resource.endswith("_bw"):
        found = sweep(prepare(graph, network=path), [resource], [2 / OTHER_SPEED, 2 * OTHER_SPEED])
        speeds = [one.utility_pct for one in found.results]
    wanted = interval(row.utility_pct, [[own], speeds])
    assert (row.utility_low_pct, row.utility_high_pct) == pytest.approx(wanted)


def test_one_step_has_no_verdict_but_an_interval_where_there_are_alternatives(
    tmp_path: Path,
) -> None:
    single = training((300,))
    result, row = swept(job(tmp_path, single), "scaleup_bw")
    assert (row.utility_low_pct, row.utility_high_pct) == (None, None)
    assert row.verdict == "one step recorded: spread unknown"
    assert result.noise_pct is None
    assert result.interval_basis.startswith("none: the spread over steps is unknown")
    result, row = swept(job(tmp_path, single, SLOW), "scaleup_bw")
    assert row.utility_low_pct == pytest.approx(25 * (1 - OTHER_SPEED / 2), abs=1e-3)
    more = 25 * (1 - 1 / (2 * OTHER_SPEED)) - 12.5
    assert row.utility_high_pct == pytest.approx(12.5 + hypot(20 - 12.5, more), abs=1e-3)
    assert row.verdict == "one step recorded: spread unknown"
    assert result.interval_basis.startswith("the other network")
    _, row = swept(job(tmp_path, training((300, 300))), "scaleup_bw")
    assert row.verdict == "one steady step: spread unknown"


def test_an_uncertain_slowdown_and_uncertain_tiers_are_added_in_quadrature() -> None:
    others = [
        Alternative(tiers=[SLOW], overlap=Overlap(slowdown=0.1)),
        Alternative(tiers=[BASE], overlap=Overlap(slowdown=0.0)),
        Alternative(tiers=[BASE], overlap=Overlap(slowdown=0.3)),
    ]
    network = Network(name="test", tiers=[BASE], overlap=Overlap(slowdown=0.1), alternatives=others)
    assert sources(network, [7, 6, 22]) == [[7], [6, 22]]


def test_without_measured_steps_nothing_is_called_significant(tmp_path: Path) -> None:
    graph = training()
    unknown = np.full_like(graph.steps.completion_ns, -1)
    graph = graph.with_(steps=replace(graph.steps, completion_ns=unknown))
    _, row = swept(job(tmp_path, graph), "compute")
    assert row.utility_low_pct == pytest.approx(100 / 3)
    assert row.verdict == "no measured steps: noise unknown"


def test_explaining_takes_the_network_as_it_is(tmp_path: Path) -> None:
    graph = training()
    plain = explain(simulate_once(graph, network=written(tmp_path, BASE)))
    path = written(tmp_path, BASE, alternatives=[[SLOW]])
    assert explain(simulate_once(graph, network=path)).resources == plain.resources


def test_other_architectures_do_not_inherit_alternatives(tmp_path: Path) -> None:
    path = written(tmp_path, BASE, alternatives=[[SLOW]])
    result = whatif.clusters(training(), scaleup_gb_s=[400], network=path)
    baseline, varied = result.architectures
    assert baseline.network.alternatives == [Alternative(tiers=[SLOW])]
    assert varied.network.alternatives == []
    (row,) = varied.upgrades
    assert (row.utility_low_pct, row.utility_high_pct) == row.utility_range_pct


def text_of(result: SweepResult) -> str:
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        for part in result_table(result):
            console.print(part)
    return " ".join(capture.get().split())


def test_tables_and_files_show_interval_verdict_and_what_they_rest_on(tmp_path: Path) -> None:
    result, row = swept(job(tmp_path, training(), SLOW, FAST), "compute")
    shown = text_of(result)
    assert f"37.50 % {row.utility_low_pct:.2f} % to {row.utility_high_pct:.2f} % sign" in shown
    assert "interval: 2 other networks" in shown
    assert "noise: 28.87 %" in shown
    (cells,) = sweep_frame([result]).to_dict("records")
    assert cells["utility_low_pct"] == row.utility_low_pct
    assert cells["utility_high_pct"] == row.utility_high_pct
    assert cells["verdict"] == "significant"
    assert cells["noise_pct"] == pytest.approx(NOISE)


def test_tables_say_why_there_is_no_verdict(tmp_path: Path) -> None:
    single, _ = swept(job(tmp_path, training((300,))), "compute")
    shown = text_of(single)
    assert "no verdict: one step recorded: spread unknown" in shown
    assert "noise:" not in shown


def test_several_jobs_tell_which_utilities_do_not_stand_out(tmp_path: Path) -> None:
    prepared = job(tmp_path, training())
    result = sweep(prepared, ["scaleup_bw", "compute"], [2])
    jobs = [msgspec.structs.replace(result, trace=trace) for trace in ("one", "two")]
    console = Console(width=120, highlight=False)
    with console.capture() as capture:
        for part in utility_report(UtilityResult(factor=2, jobs=jobs)):
            console.print(part)
    assert "  two, scaleup_bw: within noise\n" in capture.get()
