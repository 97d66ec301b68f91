"""Reports show what results say: marks, reasons, units, and names as they are."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pytest
from msgspec.structs import replace
from rich.console import Console
from whatif.base.errors import WhatIfError
from whatif.graph.coverage import Coverage, Dropped, Inference
from whatif.reports import text
from whatif.reports.conversion import conversion_report
from whatif.reports.inspection import inspection_report
from whatif.reports.machine import (
    inspection_frame,
    simulation_frame,
    sweep_frame,
    to_json,
    utility_json,
    write_frame,
)
from whatif.reports.results import (
    ConversionResult,
    InspectedCollective,
    InspectedGroup,
    InspectedRank,
    InspectedStep,
    InspectedStepOfRank,
    InspectResult,
)
from whatif.reports.simulation import simulation_report
from whatif.reports.sweep import sweep_report
from whatif.reports.utility import utility_report
from whatif.simulator.network import Network, Tier
from whatif.simulator.results import RankTime, StepTime
from whatif.sweeps.results import Refused, ResultRow, SimulateResult, StepRow, SweepResult
from whatif.utility.results import UtilityResult

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.console import RenderableType

NETWORK = Network(
    name="test [b]net[/b]",
    tiers=[Tier(size=4, bandwidth_gb_s=300, efficiency=0.7, latency_ns=1_200, base_ns=-800)],
    assumptions=["the links are straight"],
)
ROW = ResultRow(
    resource="scaleup_bw",
    factor=2,
    step_ns=80_000_000,
    utility_pct=20,
    utility_range_pct=(19.5, 21.25),
    utility_low_pct=18.0,
    utility_high_pct=22.5,
    verdict="significant",
    bound_pct=25,
    bound_reason=None,
    shape_change=None,
)
SWEEP = SweepResult(
    trace="jobs/one",
    ranks=4,
    steps=[
        StepRow(name="s#1", measured_ns=99_000_000, baseline_ns=98_000_000, used=False),
        StepRow(name="s#2", measured_ns=98_000_000, baseline_ns=100_000_000, used=True),
        StepRow(name="s#3", measured_ns=102_000_000, baseline_ns=100_000_000, used=True),
    ],
    dependency_model="host",
    network=NETWORK,
    placement="contiguous: 4 ranks in 1 domain of 4",
    measured_step_ns=100_000_000,
    baseline_step_ns=100_000_000,
    baseline_error_pct=0.0,
    worst_rank_error_pct=-1.5,
    critical_path_ns={"compute": 75_000_000, "scaleup_bw": 25_000_000, "gap": 0},
    limit_pct=5,
    beyond_limit=False,
    assumed_members=0,
    warnings=[],
    limits=["the weather"],
    noise_pct=4.0,
    interval_basis="a hunch",
    results=[
        ROW,
        replace(ROW, resource="scaleup_domain", bound_pct=None, bound_reason="other shape",
                shape_change="2 domains"),
    ],
    refused=[Refused(resource="scaleout_bw", factor=2, reason="all on one node")],
)  # fmt: skip
RANK = RankTime(
    rank=3,
    finish_ns=300_000_000,
    compute_ns=60_000_000,
    exposed_comm_ns=25_000_000,
    copy_ns=0,
    wait_ns=10_000_000,
    host_ns=4_000_000,
    idle_ns=1_000_000,
    start_offset_ns=0,
    hidden_comm_ns=2_000_000,
)
SIMULATION = SimulateResult(
    trace="jobs/one",
    ranks=1,
    steps=[StepTime("s#1", None, 100_000_000, 100_000_000)],
    dependency_model="host",
    network=NETWORK,
    placement="contiguous: 4 ranks in 1 domain of 4",
    step_ns=100_000_000,
    measured_step_ns=None,
    change_pct=None,
    baseline_step_ns=None,
    baseline_error_pct=None,
    limit_pct=5,
    beyond_limit=None,
    assumed_members=0,
    per_rank=[RANK],
    critical_path_ns={"compute": 100_000_000},
    warnings=[],
    limits=[],
)
COLLECTIVE = InspectedCollective(
    type="all-reduce",
    group="tp",
    group_size=4,
    bytes=67_108_864,
    dtype="float16",
    count=81,
    transfer_ns_median=582_000,
    wait_ns_median=1_000_000,
    wait_ns_mean=3_000_000,
    wait_ns_max=42_000_000,
    duration_ns_median=1_600_000,
    bus_gb_s_median=201.8,
)
INSPECTION = InspectResult(
    trace="jobs/one",
    source="kineto-gpu",
    dependency_model="host",
    ranks=3,
    world_size=4,
    nodes=10,
    rank_table=[
        InspectedRank(rank=rank, host="h", device="GPU", start_offset_ns=1_000 * rank)
        for rank in (0, 1, 3)
    ],
    steps=[
        InspectedStep(
            name="s#1",
            measured_ns=100_000_000,
            used=True,
            per_rank=[
                InspectedStepOfRank(rank=0, annotation_ns=90_000_000, completion_ns=100_000_000),
                InspectedStepOfRank(rank=1, annotation_ns=70_000_000, completion_ns=99_000_000),
            ],
        )
    ],
    measured_step_ns=100_000_000,
    groups=[
        InspectedGroup(name="tp", description="tensor", size=4, ranks=[0, 1, 2, 3], operations=81)
    ],
    collectives=[COLLECTIVE],
    per_rank=[RANK],
    critical_path_ns={"compute": 100_000_000},
    coverage=Coverage(
        files=3,
        inferred=[Inference("waits", 7, "silence")],
        dropped=[Dropped("kernels", 2, "outside the steps")],
        ignored_files=["et_0.json: an ExecutionTrace", "et_1.json: an ExecutionTrace"],
        critical_gap_pct=1.25,
    ),
    warnings=[],
)


def shown(report: Iterable[RenderableType], width: int = 160) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    for part in report:
        console.print(part)
    return console.file.getvalue()  # type: ignore[attr-defined]


def line(output: str, start: str) -> str:
    """The line that begins with a word, with single spaces."""
    (found,) = (row for row in output.splitlines() if row.startswith(start))
    return " ".join(found.split())


def test_a_sweep_shows_results_reasons_network_and_assumptions() -> None:
    output = shown(sweep_report(SWEEP))
    wanted = "scaleup_bw 2 80 ms 20.00 % 18.00 % to 22.50 % significant 25.00 %"
    assert line(output, "scaleup_bw") == wanted
    assert line(output, "scaleup_domain")[-1] == text.NONE
    for wanted in (
        "scaleup_domain x2: other shape",
        "scaleup_domain x2: 2 domains",
        "scaleout_bw: all on one node",
        "the links are straight",
        "the weather",
        "median of s#2 to s#3 (2 of 3 recorded; measured 98 ms to 102 ms)",
        "compute 75.0%, scaleup bw 25.0%",
    ):
        assert wanted in output
    assert "gap" not in output
    assert line(output, "scale-up") == "scale-up switch 4 300 0.7 1.2 us -800 ns 0"


@pytest.mark.parametrize(
    ("error", "beyond", "wanted"),
    [
        (0.0, False, "What a better resource is worth\n"),
        (7.5, True, "worth - BEYOND THE LIMIT: baseline error +7.50 %, limit 5 %"),
        (None, None, "worth - BASELINE ERROR NOT KNOWN"),
    ],
)
def test_the_title_says_what_is_wrong_with_the_baseline(
    error: float | None, beyond: bool | None, wanted: str
) -> None:
    result = replace(SWEEP, baseline_error_pct=error, beyond_limit=beyond)
    assert wanted in shown(sweep_report(result))


def test_the_title_says_that_members_are_assumed() -> None:
    result = replace(SWEEP, assumed_members=24)
    assert "worth - ASSUMED: 24 members that were not traced" in shown(sweep_report(result))
    assert sweep_frame([result])["assumed_members"].tolist() == [24] * len(sweep_frame([result]))


def test_names_out_of_a_trace_are_not_markup() -> None:
    output = shown(sweep_report(replace(SWEEP, trace="[red]trace[/red]")))
    assert "[red]trace[/red]" in output
    assert "test [b]net[/b]" in output


def test_no_number_is_cut_where_the_console_is_narrow() -> None:
    output = shown(sweep_report(SWEEP), width=90)
    assert "..." not in output
    assert "…" not in output


def test_several_jobs_are_told_apart_and_marked() -> None:
    other = replace(
        SWEEP, trace="jobs/two", beyond_limit=True, baseline_error_pct=-9.0, results=[ROW]
    )
    output = shown(utility_report(UtilityResult(factor=2, jobs=[SWEEP, other])))
    assert line(output, "one").endswith("20.00 % 20.00 % -")
    assert line(output, "two (!)").endswith("-9.00 % 20.00 % - -")
    assert "two - BEYOND THE LIMIT: baseline error -9.00 %" in output
    assert "one, scaleout_bw: all on one node" in output


def test_jobs_whose_folders_have_the_same_name_are_told_apart() -> None:
    jobs = [replace(SWEEP, trace=trace) for trace in ("a/x/job", "a/y/job")]
    output = shown(utility_report(UtilityResult(factor=2, jobs=jobs)))
    assert line(output, "x/job")
    assert line(output, "y/job")


def test_one_job_gets_the_report_of_a_sweep() -> None:
    alone = UtilityResult(factor=2, jobs=[SWEEP])
    assert shown(utility_report(alone)) == shown(sweep_report(SWEEP))
    assert utility_json(alone) == to_json(SWEEP)


def test_a_simulation_shows_every_category_of_every_rank() -> None:
    output = shown(simulation_report(SIMULATION))
    row = "3 60 ms 25 ms 0 ns 10 ms 4 ms 1 ms 0 ns 2 ms 300 ms"
    assert any(" ".join(found.split()) == row for found in output.splitlines())
    assert "BASELINE ERROR NOT KNOWN" in output


def test_a_measured_replay_has_no_network() -> None:
    output = shown(simulation_report(replace(SIMULATION, network=None, placement=None)))
    assert "measured transfers" in output
    assert "Network" not in output


def test_an_inspection_shows_ranks_steps_groups_communication_and_coverage() -> None:
    output = shown(inspection_report(INSPECTION))
    assert "kineto-gpu, 3 of 4 ranks" in output
    assert line(output, "0-1,3") == "0-1,3 h GPU 0 ns to 3 us"
    assert line(output, "s#1") == "s#1 yes 100 ms 70 ms 90 ms"
    assert line(output, "tp ").startswith("tp 0-3 tensor 4 81")
    assert line(output, "all-reduce") == (
        "all-reduce tp float16 4 67,108,864 81 1.6 ms 582 us 1 ms 3 ms 42 ms 201.8"
    )
    assert "7 waits: silence" in output
    assert "2 kernels: outside the steps" in output
    assert "et_0.json and 1 more: an ExecutionTrace" in output
    assert "1.25 %" in output


def test_without_a_timeline_nothing_claims_to_be_measured() -> None:
    step = replace(INSPECTION.steps[0], measured_ns=None, per_rank=[])
    unknown = replace(
        COLLECTIVE, bytes=None, transfer_ns_median=None, wait_ns_median=None,
        wait_ns_mean=None, wait_ns_max=None, bus_gb_s_median=None,
    )  # fmt: skip
    output = shown(
        inspection_report(
            replace(
                INSPECTION, steps=[step], measured_step_ns=None, per_rank=[],
                critical_path_ns={}, collectives=[unknown],
            )
        )
    )  # fmt: skip
    assert line(output, "s#1") == "s#1 yes - - -"
    assert line(output, "all-reduce") == "all-reduce tp float16 4 - 81 1.6 ms - - - - -"
    assert "as measured" not in output
    assert "unexplained" not in output
    assert "clocks" not in output


def test_long_tables_say_how_much_they_leave_out() -> None:
    many = [replace(COLLECTIVE, bytes=size) for size in range(100)]
    assert "and 70 more kinds" in shown(inspection_report(replace(INSPECTION, collectives=many)))


def test_a_conversion_shows_files_coverage_and_what_other_tools_see() -> None:
    result = ConversionResult(
        trace="jobs/one",
        out="et",
        files=["et/whatif.0.et", "et/whatif.comm_groups.json"],
        ranks=1,
        nodes=100,
        steps=["s#1"],
        dependency_model="host",
        compression=12.5,
        coverage=INSPECTION.coverage,
        export_warnings=["less"],
    )
    output = shown(conversion_report(result))
    assert "100 nodes, 12.5 times as many as are simulated; written as 2 files in et" in output
    assert "  less" in output


@pytest.mark.parametrize("result", [SWEEP, SIMULATION, INSPECTION])
def test_json_can_be_read_back(result: msgspec.Struct) -> None:
    assert msgspec.json.decode(to_json(result), type=type(result)) == result


def test_columns_keep_whole_numbers_where_some_are_missing(tmp_path: Path) -> None:
    frame = sweep_frame([SWEEP])
    assert " ".join(frame.resource) == "scaleup_bw scaleup_domain scaleout_bw"
    assert frame.refused_reason.tolist()[2] == "all on one node"
    write_frame(frame, csv=tmp_path / "t.csv", parquet=tmp_path / "t.parquet")
    assert ",80000000,20.0,19.5,21.25,25.0," in (tmp_path / "t.csv").read_text()
    back = pd.read_parquet(tmp_path / "t.parquet")
    assert back.step_ns.tolist()[:2] == [80_000_000, 80_000_000]
    assert back.step_ns.isna().tolist() == [False, False, True]
    assert back.bound_reason.isna().tolist() == [True, False, True]


def test_frames_of_simulations_and_inspections() -> None:
    assert simulation_frame(SIMULATION).wait_ns.tolist() == [10_000_000]
    assert simulation_frame(SIMULATION).measured_step_ns.isna().all()
    assert inspection_frame(INSPECTION).transfer_ns_median.tolist() == [582_000]
    assert len(inspection_frame(replace(INSPECTION, collectives=[]))) == 0


def test_a_file_that_cannot_be_written_is_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t.csv"
    target.write_text("old")

    def full(self: pd.DataFrame, path: str, **options: Any) -> None:
        del self, options
        with open(path, "w") as file:  # noqa: PTH123
            file.write("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(WhatIfError, match=r"t\.csv: cannot be written: No space left"):
        write_frame(sweep_frame([SWEEP]), csv=target, parquet=None)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(12.345, "12.35 %"), (-0.0, "0.00 %"), (-0.001, "0.00 %"), (None, "-"), (-3, "-3.00 %")],
)
def test_percentages(value: float | None, wanted: str) -> None:
    assert text.percent(value) == wanted


def test_signed_percentages() -> None:
    assert text.percent(1.5, sign=True) == "+1.50 %"
    assert text.percent(-0.001, sign=True) == "0.00 %"


@pytest.mark.parametrize(
    ("numbers", "wanted"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8")]
)
def test_runs_of_ranks_are_joined(numbers: list[int], wanted: str) -> None:
    assert text.span(numbers) == wanted
