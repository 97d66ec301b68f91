"""Networks fitted to benchmark tables: what is recovered, what is not, and how well it predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from whatif.base.errors import NetworkError, TraceError
from whatif.calibration import table_fit
from whatif.calibration.table_fit import fit_tables, predict_ns
from whatif.calibration.table_model import PricedRows
from whatif.calibration.tables import TableRow, alternate_sizes, read_tables
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, LaneKind, collect_instances
from whatif.simulator.network import Network, Protocol, Tier, load_network, save_network
from whatif.simulator.placement import place
from whatif.simulator.pricing import price

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REDUCE, GATHER = Collective.ALL_REDUCE, Collective.ALL_GATHER
EXCHANGE, BROADCAST = Collective.ALL_TO_ALL, Collective.BROADCAST
SIZES = tuple(1 << k for k in range(10, 31, 2))

ONE_TIER = Network(
    name="truth",
    tiers=[
        Tier(
            size=8,
            bandwidth_gb_s=300,
            latency_ns=800,
            base_ns=6000,
            efficiency=0.8,
            protocols=[
                Protocol(name="LL", efficiency=0.2),
                Protocol(name="Simple", latency=5.0, base_ns=4000),
            ],
        )
    ],
    algorithms=table_fit.LIBRARY_ALGORITHMS,
    own_share=0.4,
)
TWO_TIERS = msgspec.structs.replace(
    ONE_TIER,
    tiers=[
        *ONE_TIER.tiers,
        Tier(size=64, bandwidth_gb_s=50, efficiency=0.9, latency_ns=9000, base_ns=15_000),
    ],
)


def table_row(
    coll: Collective,
    size: int,
    ranks: int,
    nodes: int | None = None,
    time_ns: float = 1.0,
    element: str = "float",
) -> TableRow:
    return TableRow(
        machine="m",
        collective=coll,
        ranks=ranks,
        nodes=nodes,
        size_bytes=size,
        time_ns=time_ns,
        samples=1,
        element=element,
    )


def measured(
    truth: Network,
    colls: Sequence[Collective] = (REDUCE, GATHER, BROADCAST),
    shapes: Sequence[tuple[int, int | None]] = ((2, None), (4, None), (8, None)),
    sizes: Sequence[int] = SIZES,
    element: str = "float",
) -> list[TableRow]:
    """Time collectives on a network, each off by up to 2 %."""
    rows = [
        table_row(coll, size, ranks, nodes, element=element)
        for coll in colls
        for ranks, nodes in shapes
        for size in sizes
    ]
    noise = np.random.default_rng(1).uniform(0.98, 1.02, len(rows))
    times = predict_ns(rows, truth) * noise
    return [
        msgspec.structs.replace(row, time_ns=float(time))
        for row, time in zip(rows, times, strict=True)
    ]


def preset_of(truth: Network) -> Network:
    """Forget what is fitted: other speeds, no protocols, no algorithms."""
    tiers = [
        msgspec.structs.replace(
            tier,
            latency_ns=tier.latency_ns * 1.7,
            base_ns=tier.base_ns * 0.6,
            efficiency=0.7,
            protocols=[],
        )
        for tier in truth.tiers
    ]
    return Network(name="preset", tiers=tiers, assumptions=["from a data sheet"])


def worst_pct(network: Network, rows: Sequence[TableRow]) -> float:
    times = np.array([row.time_ns for row in rows])
    return float(np.abs(predict_ns(rows, network) / times - 1).max() * 100)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search less: made-up times are easy to fit."""
    monkeypatch.setattr(table_fit, "_STARTS", 4)
    monkeypatch.setattr(table_fit, "_HOPS", 4)
    monkeypatch.setattr(table_fit, "_TRIAL_HOPS", 2)


@pytest.mark.usefixtures("quick")
def test_one_tier_is_recovered_from_its_times() -> None:
    rows = measured(ONE_TIER)
    fitted, held_out = alternate_sizes(rows)
    fit = fit_tables(fitted, preset_of(ONE_TIER))
    assert worst_pct(fit.network, held_out) < 5
    (tier,) = fit.network.tiers
    assert tier.effective_gb_s == pytest.approx(240, rel=0.03)
    assert tier.base_ns == pytest.approx(6000, rel=0.1)
    assert tier.latency_ns == pytest.approx(800, rel=0.1)
    large = max(tier.protocols, key=lambda protocol: protocol.efficiency)
    assert tier.latency_ns * large.latency == pytest.approx(4000, rel=0.2)
    assert fit.network.own_share == pytest.approx(0.4, abs=0.1)
    assert fit.own_protocols == ()


@pytest.mark.usefixtures("quick")
def test_the_scale_out_tier_is_told_from_the_scale_up_tier() -> None:
    shapes = ((4, 1), (8, 1), (4, 4), (16, 2), (32, 4))
    rows = measured(TWO_TIERS, (REDUCE, GATHER, EXCHANGE), shapes)
    fit = fit_tables(rows, preset_of(TWO_TIERS))
    up, out = fit.network.tiers
    assert up.effective_gb_s == pytest.approx(240, rel=0.05)
    assert out.effective_gb_s == pytest.approx(45, rel=0.03)
    assert worst_pct(fit.network, measured(TWO_TIERS, (REDUCE, GATHER), ((64, 8),))) < 15


def test_a_rack_of_many_hosts_is_one_domain() -> None:
    rack = msgspec.structs.replace(
        ONE_TIER, tiers=[msgspec.structs.replace(ONE_TIER.tiers[0], size=72)]
    )
    rows = [table_row(REDUCE, 1 << 20, 72, nodes=18)]
    assert predict_ns(rows, rack, hosts_per_domain=18) == pytest.approx(
        predict_ns([table_row(REDUCE, 1 << 20, 72)], rack)
    )
    with pytest.raises(NetworkError):
        predict_ns(rows, rack)
    two_racks = msgspec.structs.replace(rack, tiers=[*rack.tiers, TWO_TIERS.tiers[1]])
    far = [table_row(REDUCE, 1 << 20, 144, nodes=36)]
    (outside,) = predict_ns(far, two_racks, hosts_per_domain=18)
    assert outside > predict_ns(rows, rack, hosts_per_domain=18)[0]


@pytest.mark.usefixtures("quick")
def test_a_bus_bandwidth_above_the_wire_is_an_algorithm_not_a_faster_link() -> None:
    tier = msgspec.structs.replace(
        ONE_TIER.tiers[0],
        in_network_reduction=True,
        in_network_efficiency=0.75,
        in_network_latency_ns=9000,
    )
    truth = msgspec.structs.replace(ONE_TIER, tiers=[tier])
    rows = measured(truth, (REDUCE, GATHER)) + measured(truth, (REDUCE,), element="int8")
    largest = next(r for r in rows if r.ranks == 8 and r.size_bytes == SIZES[-1])
    assert largest.collective == REDUCE
    bus_gb_s = 2 * 7 / 8 * largest.size_bytes / largest.time_ns
    assert bus_gb_s > 300  # nominal
    preset = preset_of(truth)
    unknown = msgspec.structs.replace(
        preset.tiers[0], in_network_efficiency=None, in_network_latency_ns=None
    )
    fit = fit_tables(rows, msgspec.structs.replace(preset, tiers=[unknown]))
    (found,) = fit.network.tiers
    assert found.effective_gb_s == pytest.approx(240, rel=0.05)
    assert found.in_network_efficiency == pytest.approx(0.75, rel=0.05)
    assert worst_pct(fit.network, rows) < 10
    # A switch does not add up bytes: those all-reduces are rings on the same network.
    whole, byte = (
        predict_ns([table_row(REDUCE, SIZES[-1], 8, element=element)], fit.network)[0]
        for element in ("float", "int8")
    )
    assert byte > 1.2 * whole


@pytest.mark.usefixtures("quick")
def test_a_collective_gets_protocols_of_its_own_only_where_its_times_ask_for_it() -> None:
    colls = (REDUCE, GATHER, EXCHANGE)
    assert fit_tables(measured(ONE_TIER, colls), preset_of(ONE_TIER)).own_protocols == ()
    tier = ONE_TIER.tiers[0]
    slow = Protocol(
        name="slow", latency=20.0, efficiency=0.6, base_ns=9000, collectives=["all-to-all"]
    )
    truth = msgspec.structs.replace(
        ONE_TIER, tiers=[msgspec.structs.replace(tier, protocols=[*tier.protocols, slow])]
    )
    rows = measured(truth, colls)
    fit = fit_tables(rows, preset_of(truth))
    assert fit.own_protocols == (EXCHANGE,)
    assert any("all-to-all" in note for note in fit.notes)
    assert worst_pct(fit.network, rows) < 8
    labels = [protocol.collectives for protocol in fit.network.tiers[0].protocols]
    assert labels == [[], [], [], ["all-to-all"], ["all-to-all"]]


@pytest.mark.usefixtures("quick")
def test_whether_all_reduces_use_a_tree_is_fitted() -> None:
    shapes = [(4 * k, k) for k in (1, 2, 8, 32)]
    for algorithms in (["ring"], ["ring", "tree"]):
        truth = msgspec.structs.replace(TWO_TIERS, algorithms={"all-reduce": algorithms})
        fit = fit_tables(measured(truth, (REDUCE,), shapes), preset_of(truth))
        assert ("tree" in fit.network.algorithms["all-reduce"]) == ("tree" in algorithms)


@pytest.mark.usefixtures("quick")
def test_the_algorithms_of_a_preset_are_kept() -> None:
    preset = msgspec.structs.replace(preset_of(ONE_TIER), algorithm="halving-doubling")
    fit = fit_tables(measured(ONE_TIER, sizes=SIZES[::3]), preset)
    assert (fit.network.algorithm, fit.network.algorithms) == ("halving-doubling", {})


@pytest.mark.usefixtures("quick")
def test_rows_that_stalled_do_not_bend_the_rest() -> None:
    rows = measured(ONE_TIER)
    stalled = [
        msgspec.structs.replace(row, time_ns=row.time_ns * 5) if index % 15 == 7 else row
        for index, row in enumerate(rows)
    ]
    fit = fit_tables(stalled, preset_of(ONE_TIER))
    good = [row for row, kept in zip(rows, stalled, strict=True) if row is kept]
    error = np.abs(predict_ns(good, fit.network) / [row.time_ns for row in good] - 1)
    assert np.median(error) < 0.03
    assert fit.network.tiers[0].effective_gb_s == pytest.approx(240, rel=0.05)


@pytest.mark.usefixtures("quick")
def test_what_the_rows_do_not_determine_is_named_and_stays_near_the_preset() -> None:
    preset = preset_of(TWO_TIERS)
    rows = measured(TWO_TIERS, sizes=[1 << 27, 1 << 28, 1 << 29, 1 << 30])
    fit = fit_tables(rows, preset)
    assert any(note.startswith("scaleout: no measured collective uses it") for note in fit.notes)
    assert fit.network.tiers[1] == preset.tiers[1]
    (note,) = [note for note in fit.notes if "do not determine" in note]
    assert "latency of LL" in note
    assert fit.network.tiers[0].effective_gb_s == pytest.approx(240, rel=0.03)
    assert fit.network.assumptions[0] == "from a data sheet"
    assert list(fit.notes) == fit.network.assumptions[1:]


@pytest.mark.usefixtures("quick")
def test_the_share_of_the_endpoint_is_an_interval() -> None:
    fit = fit_tables(measured(ONE_TIER, sizes=SIZES[-4:]), preset_of(ONE_TIER))
    (most,) = fit.most_endpoint_ns_per_byte
    assert most == pytest.approx(1 / 240 - 1 / 300, rel=0.2)
    # All of it could be: bytes at nominal speed and the rest at the ends cost the same.
    tier = fit.network.tiers[0]
    ends = msgspec.structs.replace(tier, efficiency=1.0, endpoint_ns_per_byte=most, protocols=[])
    plain = msgspec.structs.replace(tier, protocols=[])
    rows = [table_row(BROADCAST, size, 8) for size in SIZES]
    bare = {"algorithms": fit.network.algorithms, "own_share": 0.0}
    assert predict_ns(rows, Network(name="ends", tiers=[ends], **bare)) == pytest.approx(
        predict_ns(rows, Network(name="plain", tiers=[plain], **bare))
    )


def test_slopes_are_the_derivatives_of_the_errors() -> None:
    tier = msgspec.structs.replace(TWO_TIERS.tiers[0], in_network_reduction=True)
    network = msgspec.structs.replace(TWO_TIERS, tiers=[tier, TWO_TIERS.tiers[1]])
    shapes = ((2, 1), (8, 1), (4, 4), (16, 2))
    rows = measured(network, (REDUCE, GATHER, EXCHANGE), shapes)
    problem = table_fit._Problem(PricedRows(rows, network, 1), network, (EXCHANGE,))
    kinds = {one.kind for one in problem.values}
    assert len(kinds) == 7
    # The priors of latencies and bases are such that no protocol is cheapest everywhere.
    x = np.random.default_rng(3).normal(0, 0.1, len(problem.values))
    for index, one in enumerate(problem.values):
        if one.kind == "added base":
            x[index] += one.protocol - 3
    step = 1e-6
    numeric = np.column_stack(
        [
            (problem.errors(x + step * one) - problem.errors(x - step * one)) / (2 * step)
            for one in np.eye(len(x))
        ]
    )
    slopes = problem.slopes(x)
    assert np.abs(slopes).max(axis=0).min() > 1e-3  # every value matters to some row
    assert slopes == pytest.approx(numeric, abs=1e-4)


@pytest.mark.usefixtures("quick")
def test_simulations_give_the_times_that_were_fitted(tmp_path: Path) -> None:
    shapes = ((8, 1), (16, 2))
    rows = measured(TWO_TIERS, (REDUCE, GATHER, EXCHANGE), shapes, SIZES[::3])
    fit = fit_tables(rows, preset_of(TWO_TIERS))
    file = tmp_path / "network.yaml"
    save_network(fit.network, file)
    network = load_network(file)
    assert network == fit.network
    for row, predicted in zip(rows, fit.predict_ns(rows), strict=True):
        assert simulated_ns(network, row) == pytest.approx(predicted)


def simulated_ns(network: Network, row: TableRow) -> float:
    """Price of a collective in a graph."""
    build = GraphBuilder(world_size=row.ranks)
    group = build.group("world", range(row.ranks))
    for rank in range(row.ranks):
        build.rank(rank)
        build.collective(
            build.lane(rank, LaneKind.STREAM, 1), row.collective, group, row.size_bytes
        )
    graph = build.build()
    hosts = [f"host{rank * (row.nodes or 1) // row.ranks}" for rank in range(row.ranks)]
    placement = place(network, graph.ranks, hosts, row.ranks)
    (total,) = price(graph, collect_instances(graph), network, placement).total_ns
    return float(total)


@pytest.mark.usefixtures("quick")
def test_bands_begin_at_their_edge() -> None:
    sizes = [(64 << 10) - 4, 64 << 10, 1 << 20, 64 << 20]
    rows = [table_row(GATHER, size // 4, 4, time_ns=1e6) for size in sizes]
    bands = [one.band for one in fit_tables(rows, preset_of(ONE_TIER)).residuals(rows)]
    assert bands == ["below 64 KiB", "64 KiB to 1 MiB", "1 to 64 MiB", "64 MiB and above"]


@pytest.mark.usefixtures("quick")
def test_residuals_name_the_worst_row() -> None:
    rows = measured(ONE_TIER, sizes=SIZES[::2])
    fit = fit_tables(rows, preset_of(ONE_TIER))
    doubled = msgspec.structs.replace(rows[0], time_ns=rows[0].time_ns * 2)
    residual = next(r for r in fit.residuals([doubled, *rows[1:]]) if r.worst is doubled)
    assert residual.worst_pct == pytest.approx(-50, abs=3)
    assert residual.median_pct < 5
    assert residual.collective == "all-reduce"


def test_rows_that_cannot_be_fitted_are_refused() -> None:
    preset = preset_of(ONE_TIER)
    with pytest.raises(TraceError, match="no rows"):
        fit_tables([], preset)
    with pytest.raises(TraceError, match="1 of 2 rows are of a single rank"):
        fit_tables([table_row(REDUCE, 1, 1), table_row(REDUCE, 1, 2)], preset)
    with pytest.raises(NetworkError):
        fit_tables([table_row(REDUCE, 1 << 20, 16, nodes=2)], preset)
    only = msgspec.structs.replace(preset, algorithm="in-switch")
    with pytest.raises(NetworkError, match="none of the algorithms"):
        fit_tables([table_row(REDUCE, 1 << 20, 8)], only)


# What tables ask of the network beyond the closed forms.


def test_protocols_of_a_collective_are_used_by_it_alone() -> None:
    tier = ONE_TIER.tiers[0]
    own = Protocol(name="own", latency=3.0, efficiency=0.5, base_ns=500, collectives=["broadcast"])
    network = msgspec.structs.replace(
        ONE_TIER, tiers=[msgspec.structs.replace(tier, protocols=[*tier.protocols, own])]
    )
    rows = [table_row(BROADCAST, size, 8) for size in SIZES]
    expected = [6000 + 500 + 7 * 2400 + size / 120 for size in SIZES]
    assert predict_ns(rows, network) == pytest.approx(expected)
    others = [table_row(GATHER, size, 8) for size in SIZES]
    assert predict_ns(others, network) == pytest.approx(predict_ns(others, ONE_TIER))


def test_a_kept_part_costs_its_share_of_a_sent_one() -> None:
    tier = Tier(size=8, bandwidth_gb_s=100)
    size, ring = 8_000_000, {"algorithm": "ring", "own_share": 0.5}
    network = Network(name="t", tiers=[tier], **ring)
    parts = {REDUCE: (14, 8), GATHER: (7, 1), Collective.REDUCE_SCATTER: (7, 8), EXCHANGE: (7, 8)}
    for coll, (sent, of) in parts.items():
        (time,) = predict_ns([table_row(coll, size, 8)], network)
        assert time == pytest.approx((sent + 0.5) * size / of / 100)
    for coll in (BROADCAST, Collective.SEND_RECV):
        (time,) = predict_ns([table_row(coll, size, 8)], network)
        assert time == pytest.approx(size / 100)
    # One ring through both domains has one kept part as well.
    far = Tier(size=2, bandwidth_gb_s=10)
    (time,) = predict_ns(
        [table_row(REDUCE, size, 16, nodes=2)], Network(name="t", tiers=[tier, far], **ring)
    )
    assert time == pytest.approx((30 + 0.5) / 16 * size / 8 / 10)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"collectives": ["all-reduced"]}, "protocols.collectives"),
        ({"base_ns": float("inf")}, "protocols.base_ns"),
    ],
)
def test_a_malformed_protocol_is_refused(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(NetworkError) as caught:
        Protocol(name="p", **changes)
    assert caught.value.place == place


def test_protocols_for_some_collectives_only_are_refused() -> None:
    own = Protocol(name="own", collectives=["broadcast"])
    with pytest.raises(NetworkError, match="none is for the other collectives"):
        Tier(size=8, bandwidth_gb_s=1, protocols=[own])


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_an_own_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(NetworkError, match="must be from 0 to 1"):
        Network(name="t", tiers=[Tier(size=8, bandwidth_gb_s=1)], own_share=share)


# Measured tables: the bars of the project, on sizes that the fit has not seen.

BARS = {"64 KiB to 1 MiB": 25.0, "1 to 64 MiB": 15.0, "64 MiB and above": 10.0}
GB200 = Network(
    name="gb200",
    tiers=[
        Tier(
            size=72,
            bandwidth_gb_s=900,
            latency_ns=1300,
            efficiency=0.63,
            base_ns=8300,
            in_network_reduction=True,
        )
    ],
)
TABLES: dict[str, tuple[str, Network | str]] = {
    "A100 80 GB": ("nccl_perf_parquet/a100*", "dgx_a100"),
    "A100 40 GB": ("a100_40g_x8_superbench/*", "dgx_a100"),
    "H100": ("nccl_perf_parquet/h100*", "dgx_h100"),
    "GB200": ("nccl_perf_parquet/gb200*", GB200),
    "H100 nodes": ("h100_clusters/*", "dgx_h100"),
}


def published(folder: Path, machine: str) -> tuple[list[TableRow], Network]:
    pattern, preset = TABLES[machine]
    rows = read_tables(sorted((folder / "collectives").glob(pattern))).rows
    return list(rows), preset if isinstance(preset, Network) else load_network(preset)


@pytest.mark.parametrize("machine", TABLES)
def test_measured_tables_are_explained_on_sizes_held_out(shared_data: Path, machine: str) -> None:
    rows, preset = published(shared_data, machine)
    fitted, held_out = alternate_sizes(rows)
    fit = fit_tables(fitted, preset)
    residuals = fit.residuals(held_out)
    assert {one.collective for one in residuals} == {row.collective.label for row in rows}
    over = [one for one in residuals if one.median_pct > BARS.get(one.band, 20.0)]
    assert not over
    for tier in fit.network.tiers:
        assert tier.effective_gb_s <= tier.bandwidth_gb_s


@pytest.mark.parametrize("machine", ["A100 80 GB", "H100"])
def test_other_numbers_of_ranks_are_predicted(shared_data: Path, machine: str) -> None:
    rows, preset = published(shared_data, machine)
    fit = fit_tables([row for row in rows if row.ranks in (2, 8)], preset)
    residuals = fit.residuals([row for row in rows if row.ranks == 4])
    assert not [one for one in residuals if one.median_pct > BARS.get(one.band, 20.0)]
