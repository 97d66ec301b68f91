"""`whatif calibrate`: from a trace to a network file that the other commands take."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from whatif.base.errors import NetworkError, UsageError
from whatif.calibration.nominal import nominal_network
from whatif.graph.columns import Collective
from whatif.simulator.network import load_network

import whatif
from whatif.cli.main import run

from .transfers import program

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLE = Path(__file__).parent.parent / "examples" / "ddp_gloo_2ranks"
TRACE = ("--trace", str(EXAMPLE), "--processes", "1")


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line; its exit code, stdout and stderr."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whatif", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            run()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return called


def test_the_file_is_the_baseline_of_other_commands(call: Any, tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    code, out, _ = call("calibrate", *TRACE, "--link-gb-s", 1.25, "-o", file, "--json")
    assert code == 0
    result = json.loads(out)
    network = load_network(file)
    assert network.alternatives
    assert result["network"]["tiers"][0]["efficiency"] == network.tiers[0].efficiency
    assert network.tiers[0].bandwidth_gb_s == 1.25
    assert "estimated from the trace" in network.tiers[0].source
    assert abs(result["baseline_error_pct"]) < 5
    code, out, _ = call("simulate", *TRACE, "--network", file, "--json")
    assert code == 0
    assert json.loads(out)["step_ns"] == result["baseline_step_ns"]


def test_the_table_has_values_transfers_and_errors(call: Any) -> None:
    code, out, _ = call("calibrate", *TRACE)
    assert code == 0
    for word in ("bandwidth_gb_s", "all-reduce", "held-out", "left out", "baseline", "loopback"):
        assert word in out or word.replace("-", " ") in out
    assert "fitted" in out
    assert "held" in out


def test_the_function_gives_what_the_command_prints(call: Any) -> None:
    result = whatif.calibrate(EXAMPLE, processes=1)
    code, out, _ = call("calibrate", *TRACE, "--json")
    assert code == 0
    assert json.loads(out)["values"] == json.loads(json.dumps([
        {name: getattr(value, name) for name in value.__struct_fields__} for value in result.values
    ]))  # fmt: skip


def test_a_baseline_beyond_the_limit_is_marked_and_3_under_strict(call: Any) -> None:
    code, out, err = call("calibrate", *TRACE, "--limit-pct", 0, "--strict")
    assert code == 3
    assert "BEYOND THE LIMIT of 0 %" in out
    assert "strict" in err


def test_configurations_for_astra_sim(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "astra"
    assert call("calibrate", *TRACE, "--for", "astra-sim", "-o", out)[0] == 0
    assert yaml.safe_load((out / "network.yml").read_text())["npus_count"] == [2]
    assert "all-reduce-implementation" in json.loads((out / "system.json").read_text())
    code, _, err = call("calibrate", *TRACE, "--for", "astra-sim")
    assert code == 2
    assert "-o DIR" in err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--link-gb-s", 0), 2, "must be from 1e-06 to 1e+06, is 0"),
        (("--link-gb-s", 1e-308), 2, "must be from 1e-06"),
        (("--link-gb-s", 1, "--scaleup-gb-s", 1), 2, "not both"),
        (("--network", "dgx_a100", "--link-gb-s", 1), 2, "two kinds of links"),
        (("--network", "missing.yaml"), 1, "no such file"),
        (("-o", "missing/net.yaml"), 2, "directory does not exist"),
    ],
)
def test_what_makes_no_sense_is_said(
    call: Any, options: tuple[str | float, ...], code: int, words: str
) -> None:
    found, out, err = call("calibrate", *TRACE, *options)
    assert (found, out) == (code, "")
    assert words in err


def test_files_without_a_timeline_cannot_be_calibrated(call: Any, tmp_path: Path) -> None:
    whatif.gen_gpu_chakra_et(EXAMPLE, tmp_path / "et", processes=1)
    for file in (tmp_path / "et").glob("*.et"):
        assert file.stat().st_size
    graph = whatif.load(tmp_path / "et")
    with pytest.raises(UsageError, match="no measured transfers"):
        whatif.calibrate(graph.with_(transfer_ns=graph.transfer_ns * 0 - 1))


# The nominal network.


def device_job(device: str, hosts: list[str] | None = None) -> Any:
    operations = [(tuple(range(8)), (Collective.ALL_REDUCE, 1 << 20, 0))]
    return program(operations, ranks=8, steps=1, device=device, hosts=hosts)


def test_a_given_speed_replaces_that_of_the_preset() -> None:
    graph = device_job("NVIDIA A100-SXM4-80GB")
    network = nominal_network(graph, scaleup_gb_s=200, scaleout_gb_s=12.5)
    preset = load_network("dgx_a100")
    assert [tier.bandwidth_gb_s for tier in network.tiers] == [200, 12.5]
    assert [t.latency_ns for t in network.tiers] == [t.latency_ns for t in preset.tiers]
    assert any("scaleup 200 GB/s" in note for note in network.assumptions)


def test_a_machine_without_a_preset_needs_speeds_only() -> None:
    hosts = [f"host{rank // 4}" for rank in range(8)]
    graph = device_job("Quantum 9000", hosts)
    with pytest.raises(NetworkError, match="no preset is of the machine"):
        nominal_network(graph)
    with pytest.raises(NetworkError, match="within domains must be given"):
        nominal_network(graph, scaleout_gb_s=10)
    network = nominal_network(graph, scaleup_gb_s=100, scaleout_gb_s=10)
    assert [(tier.size, tier.bandwidth_gb_s) for tier in network.tiers] == [(4, 100), (1024, 10)]
    one = nominal_network(graph, link_gb_s=40)
    assert [(tier.size, tier.bandwidth_gb_s) for tier in one.tiers] == [(8, 40)]
    with pytest.raises(UsageError, match="has no scaleout tier"):
        nominal_network(graph, one, scaleout_gb_s=10)


def test_links_of_a_cpu_job_are_ethernet() -> None:
    graph = device_job("", ["a"] * 4 + ["b"] * 4).with_(source="kineto-cpu")
    (tier,) = nominal_network(graph, link_gb_s=1.25).tiers
    assert (tier.bandwidth_gb_s, tier.efficiency) == (1.25, 0.95)
    inner, outer = nominal_network(graph, scaleout_gb_s=1.25).tiers
    assert (inner.size, inner.bandwidth_gb_s) == (
        4,
        load_network("loopback").tiers[0].bandwidth_gb_s,
    )
    assert (outer.bandwidth_gb_s, outer.efficiency) == (1.25, 0.95)


def test_alternatives_of_another_shape_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(
        "name: net\ntiers: [{size: 8, bandwidth_gb_s: 1}]\n"
        "alternatives:\n- tiers: [{size: 8, bandwidth_gb_s: 2}]\n"
        "- tiers: [{size: 4, bandwidth_gb_s: 1}]\n"
    )
    with pytest.raises(
        NetworkError, match=r"net\.yaml, alternatives\[1\]\.tiers: must have the topol"
    ):
        load_network(file)
    file.write_text(file.read_text().replace("size: 4", "size: 8"))
    assert len(load_network(file).alternatives) == 2
