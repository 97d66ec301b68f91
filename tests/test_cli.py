"""The command line keeps its contract: exit codes, one object on stdout, nothing half written."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from rich.console import Console
from whatif.sweeps.resources import RESOURCES

import whatif
from whatif.cli import display
from whatif.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = Path(__file__).parent.parent / "examples" / "ddp_gloo_2ranks"
TRACE = ("--trace", str(EXAMPLE), "--processes", "1")


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; its exit code, stdout, and stderr without progress."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whatif", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            run()
        out, err = capsys.readouterr()
        # How much progress there is depends on the machine, and on what is compiled already.
        said = [row for row in err.splitlines(keepends=True) if not row.endswith(" ...\n")]
        return int(left.value.code or 0), out, "".join(said)

    return called


@pytest.fixture(scope="module")
def chakra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "et"
    whatif.gen_gpu_chakra_et(EXAMPLE, folder, processes=1)
    return folder


def of_trace(path: Path) -> tuple[str, str]:
    return "--trace", str(path)


SWEEP_FIELDS = {
    *("trace", "ranks", "steps", "dependency_model", "network", "measured_step_ns"),
    *("baseline_step_ns", "baseline_error_pct", "worst_rank_error_pct", "warnings", "results"),
}
RESULT_FIELDS = {"resource", "factor", "step_ns", "utility_pct", "bound_pct", "bound_reason"}
CATEGORIES = (
    *("compute_ns", "exposed_comm_ns", "copy_ns", "wait_ns", "host_ns", "idle_ns"),
    "start_offset_ns",
)


def test_sweep_json_is_one_object_with_the_promised_names(call: Any, chakra: Path) -> None:
    code, out, _ = call(
        "sweep", *of_trace(chakra), "--resource", "scaleup_bw,host", "--factor", "2,4", "--json"
    )
    assert code == 0
    result = json.loads(out)
    assert result.keys() >= SWEEP_FIELDS
    assert result["ranks"] == 2
    assert isinstance(result["steps"], list)
    assert result["network"].keys() >= {"name", "tiers", "assumptions"}
    error = (result["baseline_step_ns"] - result["measured_step_ns"]) / result["measured_step_ns"]
    assert result["baseline_error_pct"] == pytest.approx(error * 100)
    assert [(row["resource"], row["factor"]) for row in result["results"]] == [
        *[("scaleup_bw", 2), ("scaleup_bw", 4)],
        *[("host", 2), ("host", 4)],
    ]
    for row in result["results"]:
        assert row.keys() >= RESULT_FIELDS
        assert (row["bound_pct"] is None) != (row["bound_reason"] is None)


def test_utility_json_is_the_same_object_and_lists_what_is_refused(call: Any, chakra: Path) -> None:
    code, out, _ = call("utility", *of_trace(chakra), "--json")
    assert code == 0
    result = json.loads(out)
    assert result.keys() >= SWEEP_FIELDS
    refused = {row["resource"] for row in result["refused"]}
    assert refused == {"scaleout_bw", "scaleup_domain", "scaleout_latency"}
    assert {row["resource"] for row in result["results"]} == set(RESOURCES) - refused
    assert {row["factor"] for row in result["results"]} == {2}


def test_simulate_json_has_categories_that_sum_to_the_step(call: Any, chakra: Path) -> None:
    code, out, _ = call("simulate", *of_trace(chakra), "--json")
    assert code == 0
    result = json.loads(out)
    assert result["measured_step_ns"] > 0
    assert [row["rank"] for row in result["per_rank"]] == [0, 1]
    for row in result["per_rank"]:
        assert row.keys() >= {"finish_ns", "hidden_comm_ns", *CATEGORIES}
        assert row["measured_finish_ns"] == pytest.approx(row["finish_ns"], rel=0.1)
        assert sum(row[name] for name in CATEGORIES) == result["step_ns"]


def test_a_measured_simulation_is_the_measured_step(call: Any, chakra: Path) -> None:
    code, out, _ = call("simulate", *of_trace(chakra), "--measured", "--json", "--strict")
    assert code == 0
    result = json.loads(out)
    assert result["step_ns"] == result["measured_step_ns"]
    assert result["network"] is None
    for row in result["per_rank"]:
        assert row["measured_finish_ns"] == row["finish_ns"]
    wrong, _, err = call("simulate", *of_trace(chakra), "--measured", "--network", "loopback")
    assert wrong == 2
    assert "without a network" in err


def test_inspect_json_has_the_promised_names(call: Any, chakra: Path) -> None:
    code, out, _ = call("inspect", *of_trace(chakra), "--json")
    assert code == 0
    result = json.loads(out)
    assert result.keys() >= {"ranks", "steps", "groups", "collectives", "coverage"}
    (collective,) = result["collectives"]
    truth = json.loads((EXAMPLE / "truth.json").read_text())["settings"]
    assert collective["type"] == "all-reduce"
    assert collective["bytes"] == 4 * 1024 * 1025
    assert collective["count"] == truth["depth"] * truth["steps"]
    assert 0 < collective["transfer_ns_median"] <= collective["duration_ns_median"]
    assert collective["wait_ns_median"] >= 0
    assert len(result["steps"]) == truth["steps"]
    for step in result["steps"]:
        assert [row["rank"] for row in step["per_rank"]] == [0, 1]


@pytest.mark.parametrize("command", ["inspect", "simulate", "utility"])
def test_tables_go_to_stdout_and_need_no_stderr(call: Any, chakra: Path, command: str) -> None:
    code, out, err = call(command, *of_trace(chakra))
    assert code == 0
    assert "host model" in out
    assert err == ""


def test_the_files_give_the_same_numbers_as_the_trace(call: Any, chakra: Path) -> None:
    from_trace = json.loads(call("utility", *TRACE, "--json")[1])
    assert json.loads(call("utility", *of_trace(chakra), "--json")[1]) == from_trace


def test_the_python_functions_give_what_the_commands_print(call: Any, chakra: Path) -> None:
    row = json.loads(call("sweep", *of_trace(chakra), "--resource", "compute", "--json")[1])
    result = whatif.sweep(chakra, ["compute"])
    assert row["results"][0]["step_ns"] == result.results[0].step_ns
    assert whatif.utility(chakra).jobs[0].baseline_step_ns == result.baseline_step_ns
    assert whatif.simulate(chakra).step_ns == result.baseline_step_ns
    assert whatif.inspect(chakra).measured_step_ns == result.measured_step_ns


def test_resources_and_factors_are_comma_separated_and_repeatable(call: Any, chakra: Path) -> None:
    together = call("sweep", *of_trace(chakra), "--resource", "host, compute", "--factor", "2,3")
    repeated = call(
        *("sweep", *of_trace(chakra), "--resource", "host", "--resource", "compute"),
        *("--factor", "2", "--factor", "3"),
    )
    assert together[0] == 0
    assert together == repeated


def test_several_jobs_share_one_table_and_one_object(
    call: Any, chakra: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    shutil.copytree(chakra, second)
    both = (*of_trace(chakra), *of_trace(second))
    code, out, _ = call("utility", *both, "--json")
    assert code == 0
    first, other = json.loads(out)["jobs"]
    assert first.keys() >= SWEEP_FIELDS
    assert first["results"] == other["results"]
    csv = tmp_path / "utility.csv"
    code, out, _ = call("utility", *both, "--csv", csv)
    assert code == 0
    assert out.count("\nUtility of each resource") == 1
    assert len(pd.read_csv(csv)) == 2 * len(RESOURCES)


def test_a_result_beyond_the_limit_is_printed_marked_and_is_3_under_strict(
    call: Any, chakra: Path
) -> None:
    sweep = ("sweep", *of_trace(chakra), "--resource", "host", "--limit-pct", "0.0001")
    code, out, _ = call(*sweep)
    assert code == 0
    assert "BEYOND THE LIMIT" in out
    code, out, err = call(*sweep, "--strict", "--json")
    assert code == 3
    assert json.loads(out)["beyond_limit"] is True
    assert "strict" in err
    code, out, _ = call("sweep", *of_trace(chakra), "--resource", "host", "--strict")
    assert code == 0
    assert "BEYOND" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sweep", "--resource", "host", "--trace", "no/such"], 1, "no such file or directory"),
        (["sweep", *TRACE, "--resource", "bandwidth"], 2, "unknown resource 'bandwidth'"),
        (["sweep", *TRACE, "--resource", "host", "--factor", "two"], 2, "'two' is not a number"),
        (["sweep", *TRACE, "--resource", "host", "--factor", "0"], 2, "positive number"),
        (["sweep", *TRACE, "--resource", ","], 2, "no resource named"),
        (["sweep", *TRACE], 2, "--resource"),
        (["sweep", *TRACE, "--resource", "scaleout_bw"], 1, "no scale-out tier"),
        (["sweep", *TRACE, "--resource", "host", "--network", "nowhere"], 1, "no such file"),
        (["sweep", *TRACE, "--resource", "host", "--model", "magic"], 2, "--model"),
        (["simulate", *TRACE, "--step", "77"], 2, "'77' was not recorded"),
        (["simulate", *TRACE, "--limit-pct", "-1"], 2, "--limit-pct"),
        (["simulate", *TRACE, "--csv", "no/such/folder/x.csv"], 2, "directory does not exist"),
        (["simulate", *TRACE, "--rank-map", "no/such"], 1, "cannot be read"),
        (["inspect", "--trace", str(EXAMPLE / "truth.json")], 1, "not a Kineto trace"),
        (["explain"], 2, "explain"),
    ],
)
def test_errors_are_said_on_stderr_with_their_code(
    call: Any, arguments: list[str], code: int, message: str
) -> None:
    got, out, err = call(*arguments)
    assert got == code
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    if code == 1:
        assert err.count("\n") == 1


def test_convert_writes_a_set_and_will_not_replace_it_unasked(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "et"
    code, printed, _ = call("convert", *TRACE, "--out", out, "--json")
    assert code == 0
    result = json.loads(printed)
    names = {"whatif.0.et", "whatif.1.et", "whatif.comm_groups.json"}
    assert {path.name for path in out.iterdir()} == names
    assert {Path(file).name for file in result["files"]} == names
    assert result["coverage"]["collectives_matched"] == result["coverage"]["collectives_seen"]
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    code, printed, err = call("convert", *TRACE, "--out", out, "--step", "3")
    assert code == 2
    assert printed == ""
    assert "exists already" in err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    code, _, _ = call("convert", *TRACE, "--out", out, "--step", "3", "--overwrite")
    assert code == 0
    assert {path.name for path in out.iterdir()} == names
    assert {path.name: path.read_bytes() for path in out.iterdir()} != before


def test_a_failed_conversion_writes_nothing(call: Any, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(EXAMPLE / "rank0_trace.json.gz", alone)
    code, _, err = call("convert", *of_trace(alone), "--processes", "1", "--out", tmp_path / "et")
    assert code == 1
    assert "--assume-missing" in err
    assert not (tmp_path / "et").exists()


def test_a_trace_with_missing_ranks_can_be_looked_at_and_says_so(call: Any, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "rank0_trace.json.gz", tmp_path)
    code, out, err = call("inspect", *of_trace(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["ranks"] == 1
    assert json.loads(out)["world_size"] == 2
    assert "not traced" in err


def test_what_was_chosen_at_conversion_cannot_be_chosen_again(call: Any, chakra: Path) -> None:
    code, _, err = call("simulate", *of_trace(chakra), "--model", "serial")
    assert code == 2
    assert "convert the trace again" in err
    code, _, err = call("simulate", *of_trace(chakra), "--step", "3")
    assert code == 2
    assert call("simulate", *of_trace(chakra), "--model", "host")[0] == 0


def test_traces_count_where_a_directory_holds_both(chakra: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(EXAMPLE, both)
    for file in chakra.iterdir():
        shutil.copy(file, both)
    assert whatif.load(both, processes=1).trace == str(both)
    assert whatif.load(both / "whatif").trace == str(EXAMPLE)
    assert whatif.load(both / "whatif.0.et").trace == str(EXAMPLE)


def test_tables_are_written_as_csv_and_parquet_with_units(
    call: Any, chakra: Path, tmp_path: Path
) -> None:
    for command, more, column in (
        ("sweep", ("--resource", "host,compute"), "utility_pct"),
        ("simulate", (), "exposed_comm_ns"),
        ("inspect", (), "transfer_ns_median"),
    ):
        csv, parquet = tmp_path / f"{command}.csv", tmp_path / f"{command}.parquet"
        code, _, _ = call(command, *of_trace(chakra), *more, "--csv", csv, "--parquet", parquet)
        assert code == 0
        frame = pd.read_csv(csv)
        assert column in frame
        assert list(pd.read_parquet(parquet).columns) == list(frame.columns)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv"] * 3 + [".parquet"] * 3


def test_a_rank_map_places_the_ranks(call: Any, chakra: Path, tmp_path: Path) -> None:
    network = tmp_path / "network.yaml"
    network.write_text(
        "name: two\ntiers:\n- {size: 2, bandwidth_gb_s: 2}\n- {size: 2, bandwidth_gb_s: 1}\n"
    )
    apart = tmp_path / "map.yaml"
    common = ("utility", *of_trace(chakra), "--network", network, "--json")
    together = json.loads(call(*common)[1])
    for text in ("[0, 1]", "{0: left, 1: right}", '{"1": 4, "0": 7}'):
        apart.write_text(text)
        code, out, _ = call(*common, "--rank-map", apart)
        assert code == 0
        result = json.loads(out)
        assert result["placement"].startswith("rank map")
        assert result["baseline_step_ns"] > together["baseline_step_ns"]
    for text in (
        "[0]",
        "nonsense",
        "[0, -1]",
        "{0: 1, zero: 2}",
        "[0, 1.5]",
        "{",
        "{0: 0, '0': 1}",
    ):
        apart.write_text(text)
        code, out, err = call(*common, "--rank-map", apart)
        assert (code, out) == (1, "")
        assert err.count("\n") == 1


def test_help_names_every_command_exit_code_and_resource(call: Any) -> None:
    code, out, _ = call("--help")
    assert code == 0
    for command in ("inspect", "convert", "simulate", "sweep", "utility"):
        assert f"\n  {command} " in out
        assert f"\n  whatif {command} --trace" in call(command, "--help")[1]
    assert all(f"{number} " in out for number in range(4))
    assert all(name in " ".join(call("sweep", "--help")[1].split()) for name in RESOURCES)


def test_help_imports_nothing_slow() -> None:
    script = (
        "import sys; sys.argv = ['whatif', 'sweep', '--help']\n"
        "from whatif.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "slow = {'numpy', 'numba', 'pandas', 'scipy', 'pyarrow', 'chakra', 'networkx', 'yaml'}\n"
        "sys.exit(sorted(slow & set(sys.modules)) or None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_is_no_error() -> None:
    script = "from whatif.cli.main import run; run()"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script, "sweep", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (0, 1)


def test_one_name_may_stand_for_a_list_of_names(chakra: Path) -> None:
    alone, listed = whatif.sweep(chakra, "host"), whatif.sweep(chakra, ["host"])
    assert [row.step_ns for row in alone.results] == [row.step_ns for row in listed.results]
    graph = whatif.load(EXAMPLE, steps="ProfilerStep#3", processes=1)
    assert graph.steps.names == ("ProfilerStep#3",)
    compared = whatif.clusters(chakra, presets="dgx_a100")
    assert len(compared.architectures) == 2


def test_every_public_name_is_there_and_loads_nothing_before_it_is_used() -> None:
    assert set(whatif.__all__) <= set(dir(whatif))
    for name in whatif.__all__:
        assert getattr(whatif, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        whatif.nothing  # type: ignore[attr-defined]  # noqa: B018
    script = "import sys, whatif; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False).returncode == 0


def test_the_subpackage_utility_does_not_hide_the_function() -> None:
    script = (
        "from whatif.utility.results import UtilityResult\n"
        "import whatif\n"
        "assert callable(whatif.utility)\n"
    )
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False).returncode == 0


def test_outputs_do_not_overwrite_what_is_read(call: Any, tmp_path: Path) -> None:
    trace = tmp_path / "job"
    shutil.copytree(EXAMPLE, trace)
    inside = trace / "rank0_trace.json.gz"
    before = inside.read_bytes()
    code, out, err = call("simulate", "--trace", trace, "--csv", inside)
    assert (code, out) == (2, "")
    assert "is an input, which would be overwritten" in err
    assert inside.read_bytes() == before
    table = trace / "table.csv"
    for _ in range(2):
        assert call("simulate", "--trace", trace, "--csv", table)[0] == 0


README = Path(__file__).parent.parent / "README.md"
SHOWN = re.compile(r"```console\n\$ whatif ([^\n]+)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("command", [found[1] for found in SHOWN.finditer(README.read_text())])
def test_the_readme_shows_what_the_commands_print(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """WHATIF_WRITE_README=1 writes what they print into the README instead."""
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*command.split(), "--processes", "1")
    assert code == 0
    # What goes to stderr is not shown; of the serial model, ASTRA-sim's, there is something to say.
    assert all(line.startswith("whatif: warning: ") for line in err.splitlines())
    printed = "".join(f"{row.rstrip()}\n" for row in out.splitlines())
    readme = README.read_text()
    (shown,) = (found for found in SHOWN.finditer(readme) if found[1] == command)
    if os.environ.get("WHATIF_WRITE_README"):
        README.write_text(readme[: shown.start(2)] + printed + readme[shown.end(2) :])
    else:
        assert shown[2] == printed


def test_the_readme_names_every_command_option_preset_and_field(call: Any, chakra: Path) -> None:
    readme = README.read_text()
    for used in re.findall(r"whatif ([a-z]+) (--.+)", readme):
        known = call(used[0], "--help")[1]
        assert all(option in known for option in re.findall(r"--[\w-]+", used[1]))
    assert all(f"`{name}`" in readme for name in [*RESOURCES, *whatif.preset_names()])
    results = (
        whatif.sweep(chakra, ["host"]),
        whatif.simulate(chakra),
        whatif.inspect(chakra).collectives[0],
    )
    for result in results:
        promised = set(result.__struct_fields__) - {"limits"}
        assert {name for name in promised if f"`{name}`" not in readme} == set()


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_only_of_what_takes_long(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr(display, "PATIENCE_S", 0.05)

    def shown(work_s: float) -> str:
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        with display.Display(console) as progress:
            progress("reading the trace", 1, 4)
            time.sleep(work_s)
            progress("reading the trace", 4, 4)
        return console.file.getvalue()  # type: ignore[attr-defined]

    assert shown(0) == ""
    assert "whatif: reading the trace" in shown(0.3)
    assert terminal or shown(0.3) == "whatif: reading the trace ...\n"
