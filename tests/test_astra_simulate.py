"""`simulate --semantics astra` takes an experiment of ASTRA-sim as it is, and jobs of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from whatif.base.errors import UsageError

import whatif

from .test_astra_external import EXAMPLE, write_case
from .test_cli import call

__all__ = ["call"]

#: A ring all-reduce of 1 MiB over four ranks at 100 GiB/s and 500 ns, which takes 18,895 cycles
#: (specification of the backends, section 9.4).
RING = {
    "backend": "congestion_unaware",
    "network": {
        "topology": ["Ring"],
        "npus_count": [4],
        "bandwidth": [100.0],
        "latency": [500.0],
    },
    "system": {
        "scheduling-policy": "LIFO",
        "endpoint-delay": 10,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        "collective-optimization": "localBWAware",
        "local-mem-bw": 2000,
        "all-reduce-implementation": ["ring"],
    },
    "ranks": [[{"id": 0, "type": "COMM_COLL_NODE", "comm_type": "ALL_REDUCE", "size": 1 << 20}]]
    * 4,
}


def experiment(place: Path) -> tuple[str, ...]:
    files = write_case(RING, place)
    return (
        *("simulate", "--et", str(files["et"])),
        *("--astra-network", str(files["astra_network"])),
        *("--astra-system", str(files["astra_system"])),
    )


def test_an_experiment_gives_the_cycles_of_astra_sim(call: Any, tmp_path: Path) -> None:
    common = (*experiment(tmp_path), "--semantics", "astra")
    code, out, err = call(*common, "--json", "--csv", tmp_path / "rows.csv")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["per_rank"] == [
        {"rank": rank, "finish_cycles": 18895, "exposed_cycles": 18895} for rank in range(4)
    ]
    assert (result["engine"], result["backend"]) == ("whatif", "congestion_unaware")
    assert (tmp_path / "rows.csv").read_text().count("18895") == 8
    code, out, _ = call(*common, "--astra-backend", "congestion_aware")
    assert code == 0
    assert "18895" in out


def test_options_of_astra_sim_are_taken(call: Any, tmp_path: Path) -> None:
    common = (*experiment(tmp_path), "--semantics", "astra", "--json")
    code, out, _ = call(*common, "--astra-option", "injection-scale=2")
    # Twice the wait of 10 ns before the first message and after each of six.
    assert (code, json.loads(out)["finish_cycles"]) == (0, 18895 + 7 * 10)
    code, _, err = call(*common, "--astra-option", "--injection-scale=x")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = call(*common, "--astra-option", "comm-scale=2")
    assert code == 2
    assert "no option 'comm-scale' of effect" in err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "goes with --semantics astra"),
        (("--semantics", "astra", "--measured"), "goes with our own physics only"),
        (("--semantics", "astra", "--trace", "somewhere"), "either a trace or the .et files"),
    ],
)
def test_what_does_not_go_together_is_refused(
    call: Any, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    code, out, err = call(*experiment(tmp_path), *more)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--network", "dgx_h100"), "--network goes with a trace"),
        (("--rank-map", "map.json"), "--rank-map goes with a trace"),
        (("--model", "serial"), "--model goes with a trace"),
        (("--step", "1"), "--step goes with a trace"),
        (("--astra-sim-bin", "bin"), "--astra-sim-bin goes with --engine astra-sim"),
        (("--astra-option", "injection-scale=nan"), "injection-scale is not between"),
        (("--astra-option", "injection-scale=inf"), "injection-scale is not between"),
        (("--astra-option", "injection-scale=1e300"), "injection-scale is not between"),
        (("--astra-option", "injection-scale=-1"), "injection-scale is not between"),
        (("--astra-option", "num-queues-per-dim=100000000"), "num-queues-per-dim is not between"),
        (("--astra-option", f"num-queues-per-dim={'9' * 20}"), "num-queues-per-dim is not between"),
        (("--astra-option", f"num-queues-per-dim={'9' * 5000}"), "makes no sense"),
    ],
)
def test_options_without_effect_or_sense_are_refused(
    call: Any, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    code, out, err = call(*experiment(tmp_path), "--semantics", "astra", *more)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


def test_misspelt_keys_are_warned_of_and_settings_name_their_file(
    call: Any, tmp_path: Path
) -> None:
    arguments = (*experiment(tmp_path), "--semantics", "astra", "--json")
    system, network = Path(arguments[6]), Path(arguments[4])
    told = json.loads(system.read_text())
    system.write_text(json.dumps(told | {"endpoint_delay": 5}))
    code, out, _ = call(*arguments)
    assert code == 0
    assert any("'endpoint_delay'" in line for line in json.loads(out)["warnings"])
    system.write_text(json.dumps(told | {"endpoint-delay": -10}))
    code, _, err = call(*arguments)
    assert code == 1
    assert "endpoint-delay: -10.0 is negative" in " ".join(err.split())
    assert "json" in err
    system.write_text(json.dumps(told))
    network.write_text(network.read_text().replace("4", "8", 1))
    code, _, err = call(*arguments)
    assert code == 1
    assert f"{network.name}, npus_count: the network has 8 ranks" in " ".join(err.split())


def test_files_of_an_experiment_are_named_where_they_lack(call: Any, tmp_path: Path) -> None:
    arguments = experiment(tmp_path)
    code, _, err = call(*arguments[:5], "--semantics", "astra")
    assert code == 2
    assert "need --astra-network and --astra-system" in err
    (tmp_path / "case.3.et").unlink()
    code, _, err = call(*arguments, "--semantics", "astra")
    assert code == 1
    assert "rank" in err


def test_a_binary_that_is_not_there_is_named(call: Any, tmp_path: Path) -> None:
    code, _, err = call(
        *experiment(tmp_path), "--engine", "astra-sim", "--astra-sim-bin", tmp_path / "none"
    )
    assert code == 2
    assert "none: does not exist (from --astra-sim-bin)" in err


def test_a_job_of_ours_has_a_step_and_what_was_lost(call: Any) -> None:
    code, out, _ = call(
        *("simulate", "--trace", EXAMPLE, "--processes", "1", "--semantics", "astra", "--json")
    )
    assert code == 0
    result = json.loads(out)
    error = (result["step_ns"] - result["measured_step_ns"]) / result["measured_step_ns"] * 100
    assert result["error_pct"] == pytest.approx(error)
    assert any("base of a collective" in line for line in result["lost"])
    with pytest.raises(UsageError, match=r"settings of ASTRA-sim are for \.et files"):
        whatif.simulate_astra(EXAMPLE, astra_network="network.yml")
