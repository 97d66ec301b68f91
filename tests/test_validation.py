"""Validation tells evidence that holds from evidence that does not, and says what it left out."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from whatif.sweeps.lab import TRUTH_COLUMNS, read_truth

import whatif
from whatif.cli.main import run

from .oracle.executor import execute
from .oracle.kineto_writer import write_kineto
from .oracle.network import OracleNetwork, OracleTier
from .oracle.programs import random_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from whatif.sweeps.evidence_results import Check, ValidationResult

EXAMPLE = Path(__file__).parent.parent / "examples" / "ddp_gloo_2ranks"
MBITS = (500, 1000, 2000)
JOB = "made-up"


def write_truth(file: Path, rows: list[dict[str, Any]]) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, TRUTH_COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def truth(mbit: int, traced_ms: float, noise_pct: float = 0.0, job: str = JOB) -> dict[str, Any]:
    runs = {"step_ms_run1": 0.9 * traced_ms, "step_ms_run2": traced_ms}
    common = {"job": job, "mbit": mbit, "noise_pct": noise_pct}
    return common | runs | {"traced_step_ms": traced_ms}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU job that an independent model ran on links of three bandwidths; two were traced."""
    folder = tmp_path_factory.mktemp("data") / "lab"
    program = random_program(0, profile="cpu")
    rows = []
    for mbit in MBITS:
        tier = OracleTier(
            len(program.ranks), mbit / 8000, latency_ns=1e5, base_ns=1e5, efficiency=0.95
        )
        happened = execute(program, OracleNetwork((tier,)), contention=True)
        rows.append(truth(mbit, happened.median_step_ns / 1e6))
        if mbit < MBITS[-1]:
            write_kineto(happened, folder / JOB / f"{mbit}mbit", record="runtime")
    write_truth(folder / "truth.csv", rows)
    return folder


@pytest.fixture(scope="module")
def validated(lab: Path) -> ValidationResult:
    return whatif.validate(lab=lab, processes=1)


def check(result: ValidationResult, words: str) -> Check:
    (found,) = [one for one in result.checks if words in one.evidence]
    return found


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; its exit code, stdout and stderr."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(
            sys, "argv", ["whatif", "validate", *map(str, arguments), "--processes", "1"]
        )
        with pytest.raises(SystemExit) as left:
            run()
        return int(left.value.code or 0), *capsys.readouterr()

    return called


# Predictions of a lab.


def test_steps_of_an_independent_model_are_predicted_at_other_bandwidths(
    validated: ValidationResult,
) -> None:
    # The noise of this truth is zero, so nothing is forgiven.
    assert [(one.from_mbit, one.to_mbit) for one in validated.pairs] == [
        (traced, mbit) for traced in MBITS[:2] for mbit in MBITS
    ]
    assert max(abs(pair.error_pct) for pair in validated.pairs) < 0.5
    assert all(pair.low_ns <= pair.predicted_ns <= pair.high_ns for pair in validated.pairs)
    assert [one.from_mbit for one in validated.doublings] == list(MBITS[:2])
    assert min(one.measured_pct for one in validated.doublings) > 20
    assert max(abs(one.error_points) for one in validated.doublings) < 0.5
    assert check(validated, "mean error").cases == 4  # a baseline is no prediction
    assert validated.passed
    assert not validated.unused


def test_untraced_truth_stands_beside_the_traced_one(validated: ValidationResult) -> None:
    for pair in validated.pairs:
        assert pair.untraced_ns == pytest.approx(0.95 * pair.traced_ns)


def test_the_measured_replay_is_exact_and_the_baseline_is_known(
    validated: ValidationResult,
) -> None:
    assert [job.worst_identity_ns for job in validated.jobs] == [0, 0]
    job = validated.jobs[0]
    assert len(job.identity) == job.ranks * len({one.step for one in job.identity})
    assert job.baseline_error_pct == pytest.approx(0, abs=1)
    assert check(validated, "measured replay").bar == 0


def changed(lab: Path, folder: Path, **changes: float) -> Path:
    """Copy the lab with other numbers in the row of the highest bandwidth."""
    shutil.copytree(lab, folder)
    with (lab / "truth.csv").open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    rows[-1] |= changes
    write_truth(folder / "truth.csv", rows)
    return folder


def test_a_truth_that_is_not_met_misses_the_bars_except_for_its_noise(
    lab: Path, validated: ValidationResult, tmp_path: Path
) -> None:
    true_ms = validated.pairs[-1].traced_ns / 1e6
    slower = changed(lab, tmp_path / "slower", traced_step_ms=1.25 * true_ms)
    missed = whatif.validate(lab=slower, processes=1)
    assert not missed.passed
    worst = check(missed, "another bandwidth, worst")
    assert worst.plain == worst.value == pytest.approx(20, abs=0.5)
    assert [one.evidence for one in missed.checks if not one.passed] == [
        one.evidence for one in missed.checks if "bandwidth" in one.evidence
    ]
    noisy = changed(lab, tmp_path / "noisy", traced_step_ms=1.25 * true_ms, noise_pct=15.0)
    allowed = whatif.validate(lab=noisy, processes=1)
    worst = check(allowed, "another bandwidth, worst")
    assert (worst.plain, worst.value) == pytest.approx((20, 5), abs=0.5)
    assert allowed.passed


def test_a_lab_of_which_nothing_is_predicted_does_not_pass(lab: Path, tmp_path: Path) -> None:
    folder = tmp_path / "misspelt"
    shutil.copytree(lab, folder)
    (folder / JOB).rename(folder / "other")
    result = whatif.validate(lab=folder, processes=1)
    assert not result.passed
    assert not check(result, "labs of which no step").passed
    said = {one.path: one.reason for one in result.unused}
    assert said[str(folder.resolve() / "truth.csv")].startswith(f"no trace in {JOB}/")


def test_jobs_on_tpus_are_found_too(tmp_path: Path) -> None:
    source = EXAMPLE.parent / "jax_cpu_8devices"
    shutil.copytree(source, tmp_path / "jax")
    result = whatif.validate(tmp_path, processes=1)
    assert [Path(job.trace).name for job in result.jobs] == ["jax"]


def test_a_missed_bar_is_exit_code_3_under_strict_only(
    lab: Path, validated: ValidationResult, tmp_path: Path, call: Any
) -> None:
    slower = changed(lab, tmp_path / "slower", traced_step_ms=validated.pairs[-1].traced_ns / 5e5)
    assert call("--lab", slower)[0] == 0
    code, out, err = call("--lab", slower, "--strict")
    assert code == 3
    assert "MISSED" in out
    assert "a bar is missed" in err
    assert call("--lab", lab, "--strict")[0] == 0


# What is found.


def test_the_example_and_a_lab_within_the_data_are_found(
    lab: Path, tmp_path: Path, call: Any
) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "data" / "example")
    shutil.copytree(lab, tmp_path / "data" / "lab")
    (tmp_path / "data" / "lab" / JOB / "1000mbit" / "rank0_trace.json.gz").unlink()
    code, out, _ = call("--data", tmp_path / "data", "--json")
    assert code == 0
    result = json.loads(out)
    assert [Path(job["trace"]).name for job in result["jobs"]] == ["example", "500mbit"]
    assert {pair["from_mbit"] for pair in result["pairs"]} == {500}
    # Half a job is no evidence, and is not passed over in silence.
    (unused,) = result["unused"]
    assert Path(unused["path"]).name == "1000mbit"
    assert "not traced" in unused["reason"]


def test_a_lab_given_twice_counts_once(lab: Path, validated: ValidationResult) -> None:
    again = whatif.validate(lab.parent, lab=lab, processes=1)
    assert len(again.pairs) == len(validated.pairs)
    assert len(again.jobs) == len(validated.jobs)


def test_tables_are_judged_on_sizes_held_out(tmp_path: Path) -> None:
    lines = ["op_name,nccl_dtype,num_gpus,message_size,latency,device"]
    for power in range(12, 29):
        time_ms = 0.03 + (1 << power) * 2 * 7 / 8 * 2 / 230e6
        lines.append(f"all_reduce,half,8,{1 << power},{time_ms},NVIDIA A100-SXM4-80GB")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    result = whatif.validate(tmp_path)
    assert {one.collective for one in result.tables} == {"all-reduce"}
    assert {one.network for one in result.tables} == {"dgx_a100"}
    assert sum(one.count for one in result.tables) == 8
    assert [Path(one.path).name for one in result.unused] == ["notes.csv"]
    assert result.passed


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "nothing to validate with"),
        (("--data", "missing"), 1, "no such directory"),
        (("--data", "."), 1, "nothing to validate with"),
        (("--lab", "."), 1, "truth.csv"),
    ],
)
def test_nothing_to_validate_with_is_an_error(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    call: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    left, out, err = call(*arguments)
    assert (left, out) == (code, "")
    assert words in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"traced_step_ms": "fast"}, "traced_step_ms is 'fast'"),
        ({"traced_step_ms": 0}, "not a number above 0"),
        ({"noise_pct": "nan"}, "noise_pct"),
    ],
)
def test_a_malformed_truth_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_truth(tmp_path / "truth.csv", [truth(500, 10), truth(1000, 5) | changes])
    with pytest.raises(whatif.TraceError, match=words) as caught:
        read_truth(tmp_path / "truth.csv")
    assert caught.value.place == "line 3"


def test_a_truth_without_a_column_or_with_a_row_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "truth.csv"
    file.write_text("job,mbit\nx,500\n")
    with pytest.raises(whatif.TraceError, match="no column step_ms_run1"):
        read_truth(file)
    write_truth(file, [truth(500, 10), truth(500, 11)])
    with pytest.raises(whatif.TraceError, match="two rows"):
        read_truth(file)


# Real jobs on links of four bandwidths.


def test_real_jobs_are_predicted_within_the_bars(shared_data: Path) -> None:
    result = whatif.validate(lab=shared_data / "lab", processes=1)
    assert not result.unused
    pairs = [pair for pair in result.pairs if pair.from_mbit != pair.to_mbit]
    assert {Path(pair.job).name for pair in pairs} == {"ddp-w2", "tp-w2", "moe-w2"}
    assert len(pairs) == 3 * len(result.jobs)
    beyond = [max(0, abs(pair.error_pct) - pair.noise_pct) for pair in pairs]
    assert sum(beyond) / len(beyond) <= 5
    assert max(beyond) <= 12
    assert result.doublings
    for one in result.doublings:
        assert abs(one.predicted_pct - one.measured_pct) <= 4 + one.noise_pct
    assert max(job.worst_identity_ns for job in result.jobs) == 0
    assert max(abs(job.baseline_error_pct or 100) for job in result.jobs) <= 3
    assert result.passed
