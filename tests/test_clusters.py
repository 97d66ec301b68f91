"""Cluster architectures: hand-computed steps, what hides behind compute, labels, the command."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from rich.console import Console
from whatif.base.errors import NetworkError, UsageError
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.reports.clusters import clusters_report
from whatif.simulator.network import Network, Tier, save_network
from whatif.sweeps.architectures import plan, sites
from whatif.sweeps.job import Job, prepare
from whatif.sweeps.run import sweep
from whatif.utility.clusters import clusters as study
from whatif.utility.results import ArchitectureRow, ClustersResult

import whatif
from whatif.cli.main import run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

README = Path(__file__).parent.parent / "README.md"

# The job: 32 ranks, tensor parallel 4 (neighbours), data parallel 8 (every fourth rank). A step is
# forward, all-reduce of the tensor group, half of the backward pass, then the other half beside the
# all-reduce of the gradients, then the optimizer, which needs both.
RANKS, TP = 32, 4
FORWARD_NS, FIRST_NS, SECOND_NS, OPTIMIZER_NS = 2_000_000, 1_500_000, 3_000_000, 400_000
COMPUTE_NS = FORWARD_NS + FIRST_NS + SECOND_NS + OPTIMIZER_NS
TENSOR_BYTES, GRADIENT_BYTES = 48_000_000, 60_000_000

# The machine it was traced on: domains of 4. Effective are 0.8 x 300 = 240 and 0.8 x 25 = 20 GB/s.
UP = Tier(size=4, bandwidth_gb_s=300, efficiency=0.8, latency_ns=1_000, base_ns=8_000)
OUT = Tier(size=8, bandwidth_gb_s=25, efficiency=0.8, latency_ns=5_000, base_ns=2_000)

# All-reduce of a group with m ranks in each of k domains, phases one after the other:
# 2(m-1)/m S/B1 + 2(k-1)/k S/(m B2) + 2(m-1) a1 + 2(k-1) a2, and the base of the outermost tier.
#
# Domains of 4, 300 and 25 GB/s. Tensor group: m = 4, k = 1.
#   3/2 x 48 MB / 240 = 300 us, 6 x 1 us, base 8 us
# Gradients: m = 1, k = 8.
#   7/4 x 60 MB / 20 = 5,250 us, 14 x 5 us, base 2 us
TENSOR_A, GRADIENTS_A = 300_000 + 6_000 + 8_000, 5_250_000 + 70_000 + 2_000
# Domains of 16, 600 and 50 GB/s (480 and 40 effective). Tensor group: m = 4, k = 1.
#   3/2 x 48 MB / 480 = 150 us, 6 x 1 us, base 8 us
# Gradients: four members in each of two domains, m = 4, k = 2.
#   3/2 x 60 MB / 480 = 187.5 us, 1 x 60 MB / (4 x 40) = 375 us, 6 x 1 us, 2 x 5 us, base 2 us
TENSOR_B, GRADIENTS_B = 150_000 + 6_000 + 8_000, 187_500 + 375_000 + 6_000 + 10_000 + 2_000
# Domains of 64, 300 and 25 GB/s: one, half filled. Tensor group as in A; gradients m = 8, k = 1.
#   7/4 x 60 MB / 240 = 437.5 us, 14 x 1 us, base 8 us
TENSOR_C, GRADIENTS_C = TENSOR_A, 437_500 + 14_000 + 8_000


def step_of(tensor_ns: int, gradients_ns: int) -> int:
    """Gradients have the second half of the backward pass to hide behind, the tensor group none."""
    return FORWARD_NS + tensor_ns + FIRST_NS + max(SECOND_NS, gradients_ns) + OPTIMIZER_NS


STEP_A, STEP_B, STEP_C = (
    step_of(TENSOR_A, GRADIENTS_A),
    step_of(TENSOR_B, GRADIENTS_B),
    step_of(TENSOR_C, GRADIENTS_C),
)


def groups(build: GraphBuilder) -> tuple[list[int], list[int]]:
    """Add the tensor groups and the data groups."""
    tensor = [build.group(f"tp{g}", range(g * TP, g * TP + TP)) for g in range(RANKS // TP)]
    return tensor, [build.group(f"dp{g}", range(g, RANKS, TP)) for g in range(TP)]


def hybrid(*, steps: int = 3) -> ExecutionGraph:
    """Build the job, measured on domains of 4."""
    build = GraphBuilder(model="host")
    for rank in range(RANKS):
        build.rank(rank, device="NVIDIA A100-SXM4-80GB")
    tensor, data = groups(build)
    compute = [build.lane(rank, LaneKind.STREAM, 7) for rank in range(RANKS)]
    communication = [build.lane(rank, LaneKind.STREAM, 20) for rank in range(RANKS)]

    for step in range(steps):
        at = step * STEP_A
        markers = {}
        for rank in range(RANKS):
            lane = compute[rank]
            build.node(lane, Flavour.COMPUTE, FORWARD_NS, start_ns=at, step=step)
            now = at + FORWARD_NS
            build.collective(
                lane, Collective.ALL_REDUCE, tensor[rank // TP], TENSOR_BYTES,
                start_ns=now, dur_ns=TENSOR_A, transfer_ns=TENSOR_A, step=step,
            )  # fmt: skip
            now += TENSOR_A
            first = build.node(lane, Flavour.COMPUTE, FIRST_NS, start_ns=now, step=step)
            now += FIRST_NS
            gradients = build.collective(
                communication[rank], Collective.ALL_REDUCE, data[rank % TP], GRADIENT_BYTES,
                after=[first], start_ns=now, dur_ns=GRADIENTS_A, transfer_ns=GRADIENTS_A, step=step,
            )  # fmt: skip
            second = build.node(
                lane, Flavour.COMPUTE, SECOND_NS, after=[first], start_ns=now, step=step
            )
            markers[rank] = build.node(
                lane, Flavour.COMPUTE, OPTIMIZER_NS, after=[second, gradients],
                start_ns=now + max(SECOND_NS, GRADIENTS_A), step=step,
            )  # fmt: skip
        build.step(f"step {step}", markers)
    return build.build()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("network"), "machine", UP, OUT)


@pytest.fixture(scope="module")
def job(machine: Path) -> Job:
    return prepare(hybrid(), network=machine)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job as Chakra files."""
    folder = tmp_path_factory.mktemp("job") / "et"
    whatif.gen_gpu_chakra_et(hybrid(), folder)
    return folder


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command; its exit code, stdout, and stderr without progress."""

    def called(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whatif", "clusters", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            run()
        out, err = capsys.readouterr()
        said = [row for row in err.splitlines(keepends=True) if not row.endswith(" ...\n")]
        return int(left.value.code or 0), out, "".join(said)

    return called


def written(folder: Path, name: str, *tiers: Tier) -> Path:
    path = folder / f"{name}.yaml"
    save_network(Network(name=name, tiers=list(tiers)), path)
    return path


def rows_of(result: ClustersResult) -> dict[str, ArchitectureRow]:
    return {row.name: row for row in result.architectures}


def printed(result: ClustersResult) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False)
    for part in clusters_report(result):
        console.print(part)
    return out.getvalue()


def labels(prepared: Job, **wanted: Any) -> list[str | None]:
    """Shape changes of the architectures besides the baseline."""
    return [site.architecture.shape_change for site in sites(prepared, plan(**wanted))[1:]]


def on(network: Network, tmp_path: Path, rank_map: Mapping[int, int] | None = None) -> Job:
    path = written(tmp_path, network.name, *network.tiers)
    return prepare(hybrid(steps=1), network=path, rank_map=rank_map)


def test_three_architectures_have_the_steps_that_a_hand_computes(job: Job) -> None:
    assert job.baseline_error_pct == 0
    result = study(job, plan(domains=[4, 16, 64], scaleup_gb_s=[300, 600], scaleout_gb_s=[25, 50]))
    rows = rows_of(result)
    assert len(rows) == 1 + 3 * 2 * 2
    for name, step_ns in (
        ("baseline", STEP_A),
        ("4/300/25", STEP_A),
        ("16/600/50", STEP_B),
        ("64/300/25", STEP_C),
    ):
        assert rows[name].step_ns == step_ns
        assert rows[name].gain_pct == pytest.approx((STEP_A - step_ns) / STEP_A * 100)
    assert (rows["16/600/50"].domain, rows["16/600/50"].scaleup_gb_s) == (16, 600)
    assert rows["16/600/50"].scaleout_gb_s == 50
    assert "2 domains of 16" in rows["16/600/50"].placement


def test_groups_that_overlap_on_two_tiers_share_the_ports_of_one(machine: Path) -> None:
    """Both all-reduces at once: in domains of 4 the longer one counts, in one domain all bytes.

    There the ports carry 72 MB and 105 MB at 240 bytes/ns from when the first has paid its latency
    and base (14 us) until both are done.
    """
    build = GraphBuilder()
    for rank in range(RANKS):
        build.rank(rank)
    tensor, data = groups(build)
    markers = {}
    for rank in range(RANKS):
        compute, *others = (build.lane(rank, LaneKind.STREAM, number) for number in (7, 20, 21))
        both = [
            build.collective(others[0], Collective.ALL_REDUCE, tensor[rank // TP], TENSOR_BYTES),
            build.collective(others[1], Collective.ALL_REDUCE, data[rank % TP], GRADIENT_BYTES),
        ]
        markers[rank] = build.node(compute, Flavour.COMPUTE, 1_000, after=both)
    build.step("step", markers)
    rows = rows_of(study(prepare(build.build(), network=machine), plan(domains=[4, 64])))
    assert rows["4/300/25"].step_ns == GRADIENTS_A + 1_000
    assert rows["64/300/25"].step_ns == 14_000 + (72_000_000 + 105_000_000) // 240 + 1_000


def test_the_hidden_share_is_hidden_over_hidden_and_exposed(job: Job) -> None:
    """Hidden is what runs beside the second half of the backward pass, exposed all the rest."""
    wanted = plan(domains=[4, 16, 64], scaleup_gb_s=[300, 600], scaleout_gb_s=[25, 50])
    rows = rows_of(study(job, wanted))
    for name, tensor_ns, gradients_ns in (
        ("4/300/25", TENSOR_A, GRADIENTS_A),
        ("16/600/50", TENSOR_B, GRADIENTS_B),
        ("64/300/25", TENSOR_C, GRADIENTS_C),
    ):
        hidden = min(SECOND_NS, gradients_ns)
        exposed = tensor_ns + gradients_ns - hidden
        row = rows[name]
        assert (row.hidden_comm_ns, row.exposed_comm_ns) == (hidden, exposed)
        assert row.hidden_share_pct == pytest.approx(hidden / (hidden + exposed) * 100)
        assert row.step_ns == COMPUTE_NS + exposed


def test_the_hidden_share_is_of_all_ranks_together(machine: Path) -> None:
    """Of two pairs one hides 100 us and the other exposes 300 us: a quarter, not a half."""
    build = GraphBuilder()
    markers = {}
    for rank in range(4):
        build.rank(rank)
    groups = [build.group("hides", [0, 1]), build.group("exposes", [2, 3])]
    for rank in range(4):
        lane, other = (build.lane(rank, LaneKind.STREAM, number) for number in (7, 20))
        hides = rank < 2
        compute = build.node(lane, Flavour.COMPUTE, 1_000_000)
        wire = 92_000 if hides else 292_000  # to which comes 2 x 1 us and the base of 8 us
        transfer = build.collective(
            other, Collective.ALL_REDUCE, groups[rank // 2], (wire - 2_000) * 240,
            after=[] if hides else [compute],
        )  # fmt: skip
        markers[rank] = build.node(lane, Flavour.COMPUTE, 1_000, after=[compute, transfer])
    build.step("step", markers)
    (row, _) = study(
        prepare(build.build(), network=machine), plan(scaleup_gb_s=[300])
    ).architectures
    assert (row.hidden_comm_ns, row.exposed_comm_ns) == (50_000, 150_000)
    assert row.hidden_share_pct == pytest.approx(25)


def test_a_job_without_communication_has_no_hidden_share(machine: Path) -> None:
    build = GraphBuilder()
    build.rank(0)
    kernel = build.node(build.lane(0, LaneKind.STREAM, 7), Flavour.COMPUTE, 1_000)
    build.step("step", {0: kernel})
    result = study(prepare(build.build(), network=machine), plan(domains=[8]))
    for row in result.architectures:
        assert row.hidden_share_pct is None
        assert row.upgrades == []
        assert {one.reason for one in row.refused} == {"the job has a single rank"}
    assert "baseline" in printed(result)


def test_the_marginal_gain_is_what_doubling_one_thing_alone_saves(job: Job) -> None:
    """Domains of 8: gradients have m = 2, k = 4.

    60 MB / 240 + 3/2 x 60 MB / (2 x 20) + 2 x 1 us + 6 x 5 us + 2 us = 250 + 2,250 + 34 us, which
    hides. Doubled scale-out: 2,625 + 72 us, which hides too. Doubled scale-up: 150 us of the
    tensor group's 300 us are saved.
    """
    rows = rows_of(study(job, plan(domains=[4, 64])))
    saved = GRADIENTS_A - SECOND_NS
    expected = {"scaleup_domain": saved, "scaleup_bw": 150_000, "scaleout_bw": saved}
    upgrades = {one.resource: one for one in rows["4/300/25"].upgrades}
    assert upgrades.keys() == expected.keys()
    for resource, less in expected.items():
        assert upgrades[resource].factor == 2
        assert upgrades[resource].step_ns == STEP_A - less
        assert upgrades[resource].utility_pct == pytest.approx(less / STEP_A * 100)
    assert "8 ranks instead of 8" in str(upgrades["scaleup_domain"].shape_change)

    (one,) = rows["64/300/25"].upgrades
    assert one.resource == "scaleup_bw"
    # Half the wire of the tensor group; that of the gradients hides. Per cent of this step.
    assert one.utility_pct == pytest.approx(150_000 / STEP_C * 100)
    reasons = {refused.resource: refused.reason for refused in rows["64/300/25"].refused}
    assert reasons.keys() == {"scaleup_domain", "scaleout_bw"}
    assert "all 32 ranks" in reasons["scaleup_domain"]
    assert "no byte over scale-out" in reasons["scaleout_bw"]


def test_upgrades_of_the_baseline_are_its_utility(job: Job) -> None:
    (baseline, _) = study(job, plan(scaleup_gb_s=[600])).architectures
    alone = sweep(job, ["scaleup_domain", "scaleup_bw", "scaleout_bw"], [2])
    assert baseline.upgrades == alone.results


def test_combinations_keep_all_else_of_the_baseline(job: Job) -> None:
    result = study(job, plan(domains=[16], scaleout_gb_s=[50]))
    network = rows_of(result)["16/300/50"].network
    up, out = network.tiers
    assert (up.size, up.bandwidth_gb_s, out.bandwidth_gb_s) == (16, 300, 50)
    assert (up.latency_ns, up.efficiency, up.base_ns) == (1_000, 0.8, 8_000)
    assert (out.latency_ns, out.efficiency, out.base_ns) == (5_000, 0.8, 2_000)
    inner, outer = network.assumptions
    assert "scaleup: efficiency 0.8, latency 1 us, base 8 us as in network machine" in inner
    assert "scaleout: efficiency 0.8, latency 5 us, base 2 us as in network machine" in outer
    assert printed(result).count(inner) == 1


def test_combinations_can_be_like_another_network(job: Job, tmp_path: Path) -> None:
    other = written(
        tmp_path, "other", Tier(size=16, bandwidth_gb_s=600, efficiency=0.8, latency_ns=1_000,
                                base_ns=8_000),
        Tier(size=2, bandwidth_gb_s=50, efficiency=0.8, latency_ns=5_000, base_ns=2_000),
    )  # fmt: skip
    result = study(job, plan(scaleout_gb_s=[50], like=other, presets=[other]))
    varied, preset = result.architectures[1:]
    assert varied.name == "16/600/50"
    assert preset.name == "other"
    assert varied.step_ns == preset.step_ns == STEP_B
    assert "network other" in varied.network.assumptions[0]
    assert "not fitted" in preset.network.assumptions[0]
    assert "\nNetwork: other" in printed(result)


def test_more_domains_than_the_network_joins_are_said(job: Job) -> None:
    (row,) = study(job, plan(domains=[2])).architectures[1:]
    assert row.network.tiers[1].size == 16
    assert any("at most 8 in network 'machine'" in note for note in row.network.assumptions)


def test_a_missing_scale_out_tier_is_not_made_up(tmp_path: Path) -> None:
    prepared = on(Network(name="one", tiers=[Tier(size=64, bandwidth_gb_s=300)]), tmp_path)
    assert study(prepared, plan(domains=[32])).architectures[1].scaleout_gb_s is None
    for wanted in (plan(domains=[8]), plan(scaleout_gb_s=[25])):
        with pytest.raises(NetworkError, match=r"'one' has no scale-out tier.*--like"):
            study(prepared, wanted)
    like = plan(domains=[4], scaleout_gb_s=[25], like="dgx_a100")
    assert study(prepared, like).architectures[1].scaleout_gb_s == 25


def test_a_preset_that_is_too_small_is_an_error(job: Job) -> None:
    with pytest.raises(NetworkError, match=r"4 domains of 8.*'v100x8' joins at most 1"):
        study(job, plan(presets=["v100x8"]))


def test_what_becomes_of_the_shape_is_labelled(job: Job, tmp_path: Path) -> None:
    one = "removes the scale-out tier for this job: one domain holds all 32 ranks"
    partly = "domains partly filled"
    assert labels(job, domains=[4, 16, 24, 32, 64, 2], presets=["perlmutter_a100"]) == [
        None,
        "2 domains of 16 instead of 8 domains of 4",
        f"2 domains of 8 to 24 instead of 8 domains of 4; {partly}, with 8 to 24 of 24 ranks",
        one,
        f"{one}; {partly}, with 32 of 64 ranks",
        "16 domains of 2 instead of 8 domains of 4",
        None,
    ]
    roomy = Network(name="roomy", tiers=[Tier(size=64, bandwidth_gb_s=300), OUT])
    assert labels(on(roomy, tmp_path), domains=[16, 32]) == [
        "adds the scale-out tier for this job: 2 domains of 16 instead of one",
        "domains have room for 32 ranks instead of 64, which moves none",
    ]


def test_domains_grow_from_where_the_ranks_sit(tmp_path: Path) -> None:
    """Ranks of a rank map move together: domains of 8 take two old ones whole.

    Neighbours are two and two in a domain then. Tensor group, m = 2, k = 2:
    48 MB / 240 + 48 MB / (2 x 20) + 2 x 1 us + 2 x 5 us + 2 us. Gradients, m = 4, k = 2:
    3/2 x 60 MB / 240 + 60 MB / (4 x 20) + 6 x 1 us + 2 x 5 us + 2 us.
    """
    apart = {rank: rank % 8 for rank in range(RANKS)}
    prepared = on(Network(name="test", tiers=[UP, OUT]), tmp_path, apart)
    (site,) = sites(prepared, plan(domains=[8]))[1:]
    assert site.placement.domain.tolist() == [rank % 8 // 2 for rank in range(RANKS)]
    (row,) = study(prepared, plan(domains=[8])).architectures[1:]
    assert row.placement.startswith("rank map")
    tensor_ns = 200_000 + 1_200_000 + 2_000 + 10_000 + 2_000
    assert row.step_ns == step_of(tensor_ns, 375_000 + 750_000 + 6_000 + 10_000 + 2_000)


def test_values_that_are_given_twice_are_there_once(job: Job) -> None:
    names = [
        site.architecture.name
        for site in sites(job, plan(domains=[8, 4, 8], scaleout_gb_s=[50, 25, 50.0]))
    ]
    assert names == ["baseline", "8/300/50", "8/300/25", "4/300/50", "4/300/25"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "no architecture given"),
        ({"domains": [0]}, "whole number"),
        ({"domains": [2.5]}, "whole number"),
        ({"domains": [float("inf")]}, "whole number"),
        ({"scaleup_gb_s": [0]}, "positive number"),
        ({"scaleout_gb_s": [float("nan")]}, "positive number"),
        ({"presets": ["dgx_a100"], "like": "dgx_a100"}, "nothing is to be varied"),
    ],
)
def test_plans_that_make_no_sense_are_refused(wanted: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**wanted)


def test_tori_are_architectures_but_are_not_varied(job: Job, tmp_path: Path) -> None:
    ring = Tier(topology="ring", size=8, bandwidth_gb_s=100)
    torus = written(tmp_path, "torus", ring, ring)
    with pytest.raises(NetworkError, match="'torus' has 2 tiers"):
        study(job, plan(domains=[16], like=torus))


def test_the_report_has_a_row_for_each_and_each_remark_once(job: Job) -> None:
    text = printed(study(job, plan(domains=[4, 64], scaleup_gb_s=[300, 600])))
    assert "error      0.00 %" in text.replace("+", "")
    (row,) = [line.split() for line in text.splitlines() if line.startswith("64/300/25")]
    assert row[1:4] == ["64", "300", "25"]
    assert row[-1] == "-"
    assert text.count("removes the scale-out tier") == 1
    assert "  domain x2 of domain 64: one scale-up domain already holds all 32 ranks" in text
    assert "compute durations are as measured" in text
    assert "divided among them" in text


def test_the_command_gives_what_the_function_gives(
    call: Any, files: Path, machine: Path, tmp_path: Path
) -> None:
    csv, parquet = tmp_path / "clusters.csv", tmp_path / "clusters.parquet"
    code, out, err = call(
        *("--trace", files, "--network", machine, "--domain", "4, 16", "--domain", "64"),
        *("--scaleup-gb-s", "300,600", "--scaleout-gb-s", "25", "--preset", "dgx_h100"),
        *("--json", "--strict", "--csv", csv, "--parquet", parquet),
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result.keys() == set(ClustersResult.__struct_fields__)
    assert result["baseline_error_pct"] == 0
    assert result["upgrade_factor"] == 2
    names = [row["name"] for row in result["architectures"]]
    assert names[:3] == ["baseline", "4/300/25", "4/600/25"]
    assert names[-1] == "dgx_h100"
    steps = dict(zip(names, (row["step_ns"] for row in result["architectures"]), strict=True))
    assert (steps["4/300/25"], steps["64/300/25"]) == (STEP_A, STEP_C)
    same = whatif.clusters(
        files,
        domains=[4, 16, 64],
        scaleup_gb_s=[300, 600],
        scaleout_gb_s=[25],
        presets=["dgx_h100"],
        network=machine,
    )
    assert [row.step_ns for row in same.architectures] == list(steps.values())

    frame = pd.read_csv(csv)
    assert frame.name.tolist() == names
    assert frame.step_ns.tolist() == list(steps.values())
    assert frame.scaleout_bw_gain_pct.isna().tolist() == [name.startswith("64") for name in names]
    stored = pd.read_parquet(parquet)
    assert list(stored.columns) == list(frame.columns)
    assert str(stored.domain.dtype) == "Int64"
    assert str(stored.scaleup_gb_s.dtype) == "float64"


def test_a_table_beyond_the_limit_is_marked_and_is_3_under_strict(
    call: Any, files: Path, tmp_path: Path
) -> None:
    slow = written(tmp_path, "slow", UP, Tier(size=8, bandwidth_gb_s=10, efficiency=0.8))
    command = ("--trace", files, "--network", slow, "--domain", "16")
    code, out, err = call(*command)
    assert (code, err) == (0, "")
    assert "BEYOND THE LIMIT" in out
    code, out, err = call(*command, "--strict", "--json")
    assert code == 3
    assert json.loads(out)["beyond_limit"] is True
    assert "strict" in err
    assert call(*command, "--strict", "--limit-pct", "1000")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no architecture given"),
        (["--domain", "four"], 2, "'four' is not a number"),
        (["--domain", "4.5"], 2, "4.5 is no whole number"),
        (["--domain", "0"], 2, "whole number"),
        (["--scaleup-gb-s", "-1"], 2, "positive number"),
        (["--preset", "nowhere"], 1, "no preset of that name"),
        (["--preset", "v100x8"], 1, "joins at most 1"),
        (["--domain", "4", "--like", "v100x8"], 1, "has no scale-out tier"),
        (["--domain", "8", "--csv", "no/such/folder/x.csv"], 2, "directory does not exist"),
    ],
)
def test_errors_are_said_on_stderr_with_their_code(
    call: Any, files: Path, machine: Path, arguments: list[str], code: int, message: str
) -> None:
    got, out, err = call("--trace", files, "--network", machine, *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_what_is_wrong_with_the_call_is_said_before_the_trace_is_read(call: Any) -> None:
    assert call("--trace", "no/such", "--preset", "nowhere")[2].count("no/such") == 0


def test_help_and_readme_name_every_option_and_field(call: Any) -> None:
    known = call("--help")[1]
    assert "\n  whatif clusters --trace" in known
    readme = README.read_text()
    for name in ("--domain", "--scaleup-gb-s", "--scaleout-gb-s", "--preset", "--like"):
        assert name in known
        assert name in readme
    promised = {*ClustersResult.__struct_fields__, *ArchitectureRow.__struct_fields__}
    assert {name for name in promised - {"limits"} if f"`{name}`" not in readme} == set()


def test_a_real_job_costs_at_least_as_much_on_slower_scale_out(shared_data: Path) -> None:
    """Eight ranks of a tensor group, no two transfers at once: a slower tier cannot help."""
    trace = shared_data / "traces" / "gpu" / "megatron_tp8_a100x8"
    result = whatif.clusters(
        trace, domains=[2, 8], scaleout_gb_s=[1, 5, 50], processes=1, limit_pct=5
    )
    assert result.beyond_limit is False
    rows = rows_of(result)
    two = [rows[f"2/300/{speed}"] for speed in (1, 5, 50)]
    assert two[0].step_ns > two[1].step_ns > two[2].step_ns
    assert two[0].exposed_comm_ns > two[1].exposed_comm_ns > two[2].exposed_comm_ns
    assert "adds the scale-out tier" in str(two[0].shape_change)
    assert {rows[f"8/300/{speed}"].step_ns for speed in (1, 5, 50)} == {result.baseline_step_ns}
