"""The lab script takes down what it made, touches nothing else, and says what it lacks.

Neither root nor PyTorch is needed here: commands are printed or counted, not run.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LAB = Path(__file__).parent.parent / "examples" / "lab"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


@pytest.fixture(scope="module")
def lab() -> Iterator[Any]:
    """The module run_lab, found as Python finds it for the script."""
    sys.path.insert(0, str(LAB))
    try:
        yield importlib.import_module("run_lab")
    finally:
        sys.path.remove(str(LAB))
        for name in ("run_lab", "machine", "links"):
            sys.modules.pop(name, None)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, LAB / "run_lab.py", "record", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def dry_run(tmp_path: Path, *arguments: str) -> list[list[str]]:
    done = run("--out", tmp_path / "out", "--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines()]


def test_dry_run_deletes_exactly_the_namespaces_it_adds(tmp_path: Path) -> None:
    commands = dry_run(tmp_path, "--job", "tp", "--ranks", "3", "--mbit", "500")
    added = [c[3] for c in commands if c[:3] == ["ip", "netns", "add"]]
    deleted = [c[3] for c in commands if c[:3] == ["ip", "netns", "delete"]]
    assert len(set(added)) == 4  # ranks and the bridge
    assert deleted == added[::-1]
    assert commands[-4:] == [["ip", "netns", "delete", name] for name in deleted]


def test_dry_run_stays_within_its_namespaces(tmp_path: Path) -> None:
    commands = dry_run(tmp_path, "--job", "ddp", "--ranks", "4", "--mbit", "500,1000")
    own = {c[3] for c in commands if c[:3] == ["ip", "netns", "add"]}
    for command in commands:
        if command[0] in ("ip", "tc") and command[1] == "-n":
            assert command[2] in own
        elif command[0] == "ip":
            assert command[1] == "netns"
            assert command[2] in ("add", "delete", "exec")
            assert command[3] in own
        else:
            assert command[0] in ("mkdir", "wait")
    others_ends = [c[c.index("netns") + 1] for c in commands if "veth" in c]
    assert len(others_ends) == 4
    assert set(others_ends) <= own


def test_both_directions_of_every_link_get_the_rate_with_a_bucket_of_a_millisecond(
    tmp_path: Path,
) -> None:
    commands = dry_run(tmp_path, "--job", "ddp", "--ranks", "2", "--mbit", "2000")
    filters = [c for c in commands if c[0] == "tc"]
    ends = {(c[2], c[c.index("dev") + 1]) for c in filters}
    assert len(ends) == 4
    assert {c[c.index("rate") + 1] for c in filters} == {"2000mbit"}
    # 2000e6 bits a second for 1e-3 s.
    assert {c[c.index("burst") + 1] for c in filters} == {"250000"}


def test_every_bandwidth_is_run_twice_by_one_process_a_rank(tmp_path: Path) -> None:
    commands = dry_run(
        tmp_path, "--job", "moe", "--ranks", "2", "--mbit", "500,1000", "--width=96", "--depth=4"
    )
    jobs = [c for c in commands if c[:3] == ["ip", "netns", "exec"]]
    assert len(jobs) == 2 * 2 * 2
    order = [c[c.index("rate") + 1] for c in commands if c[0] == "tc"][::4]
    assert order == ["500mbit", "1000mbit", "500mbit", "1000mbit"]
    for number, job in enumerate(jobs):
        assert f"--rank={number % 2}" in job
        assert job[3].endswith(f"-r{number % 2}")
        assert {"--job=moe", "--ranks=2", "--width=96", "--depth=4", "--batch=240"} <= set(job)


def test_ranks_are_pinned_to_cores_of_their_own_or_not_at_all(lab: Any, tmp_path: Path) -> None:
    arguments = lab.parser().parse_args(
        ["record", "--out", str(tmp_path), "--job", "ddp", "--ranks", "3"]
    )
    plan, links = lab.plan_of(arguments), lab.Links("lab", 3)
    enough = lab.rank_commands(plan, links, [4, 6, 8, 5], tmp_path)
    assert [[w for w in c if "--core" in w] for c in enough] == [
        ["--core=4"],
        ["--core=6"],
        ["--core=8"],
    ]
    short = lab.rank_commands(plan, links, [0, 1], tmp_path)
    assert not [w for c in short for w in c if "--core" in w]


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    dry_run(tmp_path, "--job", "fsdp")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mbit", "fast"], "'fast' is not a list of whole Mbit/s"),
        (["--mbit", "500,19"], "19 Mbit/s is below 20"),
        (["--mbit", "500,500"], "names a bandwidth twice"),
        (["--ranks", "5"], "invalid choice"),
        (["--width", "0"], "not a whole number above 0"),
        (["--bucket-mb", "nan"], "'nan' is not a number above 0"),
        (["--job", "moe", "--batch", "9"], "--batch 9: moe deals it out evenly, to 2 ranks"),
        (["--job", "fsdp", "--width", "9"], "--width 9: fsdp deals it out evenly, to 2 ranks"),
        (["--job", "tp", "--depth", "1"], "--depth 1: tp needs 2 layers or more"),
        (["--name", "../elsewhere"], "--name ../elsewhere: a plain name"),
        (["--name", ".."], "--name ..: a plain name"),
    ],
)
def test_arguments_that_make_no_job_are_refused(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run("--out", tmp_path, "--job", "ddp", "--dry-run", *arguments)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_results_that_are_there_are_not_mixed_with_new_ones(lab: Any, tmp_path: Path) -> None:
    arguments = lab.parser().parse_args(
        ["record", "--out", str(tmp_path), "--job", "ddp", "--mbit", "500,1000"]
    )
    (tmp_path / "ddp-w2" / "500mbit").mkdir(parents=True)
    with pytest.raises(lab.LabError, match="500mbit or its row of truth"):
        lab.plan_of(arguments)
    (tmp_path / "ddp-w2" / "500mbit").rmdir()
    lab.plan_of(arguments)
    times = lab.StepTimes(1.0, 1.0)
    lab.append_row(tmp_path / "truth.csv", lab.truth_row("ddp-w2", 1000, times, times))
    with pytest.raises(lab.LabError, match="1000mbit or its row of truth"):
        lab.plan_of(arguments)
    (tmp_path / "truth.csv").write_text("job,mbit\n")
    with pytest.raises(lab.LabError, match="not a table of this script"):
        lab.plan_of(arguments)


def test_what_the_machine_lacks_is_named(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(lab.LabError, match="needs root"):
        lab.check_machine()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tc" else name)
    with pytest.raises(lab.LabError, match="no command tc: install iproute2"):
        lab.check_machine()
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("importlib.util.find_spec", {}.get)
    with pytest.raises(lab.LabError, match=r"pip install 'whatif-sim\[record\]'"):
        lab.check_machine()


def test_a_kernel_without_the_filter_is_told_from_other_failures(lab: Any) -> None:
    script = "echo 'Error: Specified qdisc kind is unknown.' >&2; exit 2"
    with pytest.raises(lab.LabError, match="modprobe sch_tbf"):
        lab.Machine().execute(["sh", "-c", script])
    with pytest.raises(lab.LabError, match=r"exit code 2$"):
        lab.Machine().execute(["sh", "-c", "exit 2"])


def test_a_namespace_of_somebody_else_is_left_alone(lab: Any) -> None:
    """Adding it fails; what had been added before goes, it and those never added do not."""
    ran: list[list[str]] = []

    def execute(command: list[str]) -> None:
        ran.append(command)
        if command == ["ip", "netns", "add", "mine-r1"]:
            raise lab.LabError("File exists")

    with pytest.raises(lab.LabError, match="File exists"), lab.Links("mine", 3).opened(execute):
        pytest.fail("must not get here")
    assert [c[3] for c in ran if c[2] == "delete"] == ["mine-r0", "mine-hub"]


def test_a_failed_deletion_does_not_keep_the_others(lab: Any) -> None:
    deleted: list[str] = []

    def execute(command: list[str]) -> None:
        if command[2] == "delete":
            deleted.append(command[3])
            if command[3] == "mine-r1":
                raise lab.LabError("busy")

    with pytest.raises(lab.LabError, match="busy"), lab.Links("mine", 2).opened(execute):
        pass
    assert deleted == ["mine-r1", "mine-r0", "mine-hub"]


def test_a_rank_that_fails_is_quoted_and_ends_the_others(lab: Any, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    waiting = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    failing = (
        "import os, sys, time\n"
        f"while not os.path.exists({str(mark)!r}) or not os.path.getsize({str(mark)!r}):\n"
        "    time.sleep(0.01)\n"
        "sys.exit('no such peer')"
    )
    commands = [[sys.executable, "-c", waiting], [sys.executable, "-c", failing]]
    started = time.monotonic()
    with pytest.raises(lab.LabError, match=r"(?s)rank 1 ended with exit code 1.*no such peer"):
        lab.Machine().run_ranks(commands, tmp_path / "run")
    assert time.monotonic() - started < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_signal_to_stop_waits_for_the_ranks_and_ends_them(lab: Any, tmp_path: Path) -> None:
    with lab.signals_held_back():
        # To this thread: in a process of the tests another thread could get it and end them all.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        with pytest.raises(lab.StoppedError) as stopped:
            lab.Machine().run_ranks([["sleep", "60"]], tmp_path / "run")
    assert stopped.value.args == (signal.SIGTERM,)


def test_truth_is_the_median_of_the_slowest_rank(lab: Any) -> None:
    ranks = [
        {"step_ms_median": 10.0, "profiled_step_ms_median": 13.0},
        {"step_ms_median": 11.0, "profiled_step_ms_median": 12.0},
    ]
    first, second = lab.slowest(ranks), lab.StepTimes(11.123, 12.0)
    assert lab.truth_row("a", 500, first, second) == {
        "job": "a",
        "mbit": 500,
        "step_ms_run1": 11.0,
        "step_ms_run2": 11.12,
        "traced_step_ms_run1": 13.0,
        "traced_step_ms_run2": 12.0,
        "traced_step_ms": 12.5,
        "noise_pct": 8.0,
    }


def test_rows_come_out_as_the_lab_s_data_has_them(
    lab: Any, tmp_path: Path, shared_data: Path
) -> None:
    """From the second run's files and the first run's medians, each stored row follows."""
    with (shared_data / "lab" / "truth.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    compared = 0
    for row in rows:
        files = (shared_data / "lab" / row["job"] / f"{row['mbit']}mbit").glob("truth_*.json")
        ranks = [json.loads(path.read_text()) for path in files]
        if not ranks:
            continue
        first = lab.StepTimes(float(row["step_ms_run1"]), float(row["traced_step_ms_run1"]))
        made = lab.truth_row(row["job"], int(row["mbit"]), first, lab.slowest(ranks))
        lab.append_row(tmp_path / "truth.csv", made)
        assert list(made) == list(row)
        for column, value in row.items():
            if column != "job":  # the first run is known to two digits only
                assert float(value) == pytest.approx(made[column], abs=0.0101)
        compared += 1
    assert compared
    assert len((tmp_path / "truth.csv").read_text().splitlines()) == compared + 1


def test_predictions_are_held_against_the_truth(shared_data: Path, tmp_path: Path) -> None:
    for rate in ("1000mbit", "2000mbit"):
        shutil.copytree(shared_data / "lab/tp-w2" / rate, tmp_path / "tp-w2" / rate)
    rows = (shared_data / "lab/truth.csv").read_text().splitlines()
    wanted = [row for row in rows[1:] if row.startswith(("tp-w2,1000", "tp-w2,2000"))]
    (tmp_path / "truth.csv").write_text("\n".join([rows[0], *wanted]) + "\n")
    command = [sys.executable, LAB / "run_lab.py", "predict", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 true steps at another bandwidth are in the interval" in done.stdout


def test_a_folder_that_is_no_lab_is_said_to_be_none(tmp_path: Path) -> None:
    command = [sys.executable, LAB / "run_lab.py", "predict", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "truth.csv" in done.stderr
    assert "Traceback" not in done.stderr
