"""Tori of TPUs: collectives against closed forms and messages, slices, and what ICI is worth."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import pytest
from whatif.base.errors import NetworkError, UsageError
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Collective, ExecutionGraph, Flavour, LaneKind
from whatif.graph.compress import uncompressed
from whatif.simulator.choice import price_group
from whatif.simulator.network import (
    Network,
    Tier,
    load_network,
    match_preset,
    save_network,
)
from whatif.simulator.run import simulate
from whatif.simulator.torus import Slices, axes, described, parse_shape, reshaped, shape, sized_for
from whatif.sweeps.job import Job, prepare
from whatif.sweeps.run import sweep
from whatif.sweeps.variant import ResourceError

import whatif

from .torus_model import Torus, all_gather, all_to_all, multi_axis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A = Collective.ALL_TO_ALL

GB_S = 10
HOP_NS = 700


def network_of(torus: Torus) -> Network:
    tiers = [
        Tier(
            topology="ring",
            size=length,
            wrap=closed,
            bandwidth_gb_s=float(torus.bandwidth),
            latency_ns=float(torus.hop_ns),
        )
        for length, closed in zip(torus.lengths, torus.closed, strict=True)
    ]
    return Network(name="torus", tiers=tiers)


def price(network: Network, coll: Collective, size: float) -> float:
    lengths = [tier.size for tier in network.tiers]
    where = np.array([p[::-1] for p in product(*map(range, reversed(lengths)))], dtype=np.int64)
    return float(price_group(network, coll, np.array([size]), where, None).total_ns[0])


def torus(*lengths: int, closed: bool = True, hop_ns: int = HOP_NS) -> Torus:
    return Torus(lengths, (closed,) * len(lengths), Fraction(GB_S), Fraction(hop_ns))


CUBES = [(2,), (3,), (4,), (8,), (2, 2), (3, 3), (4, 4), (2, 2, 2), (3, 3, 3), (4, 4, 4)]
BOXES = [(2, 4), (3, 6), (4, 8), (2, 2, 4), (2, 4, 4), (3, 4, 5)]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("lengths", CUBES + BOXES)
def test_gathers_and_reductions_on_tori_take_what_their_messages_take(
    lengths: tuple[int, ...], *, closed: bool
) -> None:
    """Bytes, to the last of them, played message by message on every link; and hops."""
    model, chips, size = torus(*lengths, closed=closed, hop_ns=0), prod(lengths), 1 << 20
    network = network_of(model)
    played = all_gather(model, Fraction(size), multi_axis(model))
    assert price(network, AG, size) == pytest.approx(float(played))
    # A reduce-scatter is an all-gather of its result played backwards; an all-reduce is both.
    assert price(network, RS, size * chips) == pytest.approx(float(played))
    assert price(network, AR, size * chips) == pytest.approx(float(2 * played))
    # However it is done, a chip takes all that it lacks through its links (at its worst place).
    links = sum(2 if closed and length > 2 else 1 for length in lengths)
    assert played >= Fraction(size * (chips - 1), links * GB_S)

    model = torus(*lengths, closed=closed)
    played = all_gather(model, Fraction(size), multi_axis(model))
    late = price(network_of(model), AG, size) - float(played)
    # Where axes differ, the most bytes and the most hops of a stage count, though not of one axis.
    hops = 0 if lengths in CUBES else sum(lengths)
    assert -1e-3 <= late <= hops * HOP_NS + 1e-3


@pytest.mark.parametrize(
    ("lengths", "closed"),
    [
        *[((n,), closed) for n in (2, 3, 4, 5, 8) for closed in (True, False)],
        *[(lengths, closed) for lengths in [(2, 2), (2, 4), (3, 3)] for closed in (True, False)],
        ((4, 4), True),
        ((2, 2, 2), True),
        ((2, 2, 4), True),
    ],
)
def test_an_all_to_all_takes_what_its_flows_take_when_they_share_links_fairly(
    lengths: tuple[int, ...], *, closed: bool
) -> None:
    model = torus(*lengths, closed=closed, hop_ns=0)
    flows = all_to_all(model, Fraction(1 << 20))
    assert price(network_of(model), A2A, 1 << 20) == pytest.approx(float(flows))


@pytest.mark.parametrize("lengths", [(8,), (16,), (4, 4), (8, 8), (16, 16), (4, 4, 4), (8, 8, 8)])
def test_closed_forms_of_tori_of_equal_axes(lengths: tuple[int, ...]) -> None:
    """All links of a chip at work: 2(N-1)/N S over two links of each axis, all-to-all by bisection.

    Without wrap-around an axis has one link at its end, and half the bisection.
    """
    size, n, chips, dims = 1e9, lengths[0], prod(lengths), len(lengths)
    for closed in (True, False):
        network = network_of(torus(*lengths, closed=closed, hop_ns=0))
        links = 2 * dims if closed else dims
        share = (chips - 1) / chips
        assert price(network, AR, size) == pytest.approx(2 * share * size / (links * GB_S))
        assert price(network, RS, size) == pytest.approx(share * size / (links * GB_S))
        assert price(network, AG, size) == pytest.approx((chips - 1) * size / (links * GB_S))
        # Half of all data crosses the middle of an axis, through as many links as there are lines.
        assert price(network, A2A, size) == pytest.approx(size * n / (8 if closed else 4) / GB_S)
    latency = network_of(torus(*lengths, hop_ns=HOP_NS))
    hops = dims * (n // 2) * HOP_NS
    assert price(latency, AR, 0) == pytest.approx(2 * hops)
    assert price(latency, A2A, 0) == pytest.approx(hops)


def test_eight_chips_as_a_ring_and_as_two_by_four_differ_as_theory_says() -> None:
    size = 64 * 2**20
    ring, grid = network_of(torus(8, hop_ns=0)), network_of(torus(2, 4, hop_ns=0))
    unit = size / GB_S
    # Ring: 7/8 of the data there and back, over two links.
    assert price(ring, AR, size) == pytest.approx(2 * 7 / 8 / 2 * unit)
    # Two by four: half of the data begins on each axis. First max(1/2 of it over one link, 3/4 of
    # it over two), then max(3/4 of 1/2 of it over two, 1/2 of 1/4 of it over one).
    first, second = max(1 / 4, 3 / 16), max(3 / 32, 1 / 16)
    assert price(grid, AR, size) == pytest.approx(2 * (first + second) * unit)
    # All-to-all: half of everything crosses the middle, over 4 links of a ring (each way), or
    # over 4 pairs of links of the axis of four or 4 links of the axis of two.
    assert price(ring, A2A, size) == pytest.approx(unit)
    assert price(grid, A2A, size) == pytest.approx(unit / 2)
    # Hops: 4 of the ring; 1 and 2 of the two axes, or 2 and 2 while a part is on each.
    for coll, around, along in ((AR, 8, 8), (AG, 4, 4), (A2A, 4, 3)):
        assert price(network_of(torus(8)), coll, 0) == around * HOP_NS
        assert price(network_of(torus(2, 4)), coll, 0) == along * HOP_NS


@pytest.mark.parametrize("lengths", [(8,), (2, 4), (4, 4), (2, 2, 2)])
@pytest.mark.parametrize("coll", [AR, AG, RS, A2A])
def test_twice_the_bandwidth_halves_the_bandwidth_part_exactly(
    lengths: tuple[int, ...], coll: Collective
) -> None:
    network, size = network_of(torus(*lengths)), 1 << 20
    faster = network_of(
        Torus(lengths, (True,) * len(lengths), Fraction(2 * GB_S), Fraction(HOP_NS))
    )
    latency = price(network, coll, 0)
    before, after = (price(one, coll, size) - latency for one in (network, faster))
    assert after == before / 2


# --- slices -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "ranks", "preset", "slice_"),
    [
        ("TPU v4", 4, "tpu_v4", "2x2x1 (no axis long enough to be closed)"),
        ("TPU v4", 64, "tpu_v4", "4x4x4 (every axis closed)"),
        ("TPU v5 lite", 1, "tpu_v5e", "1x1 (no axis long enough to be closed)"),
        ("TPU v5 Lite", 8, "tpu_v5e", "2x4 (no axis closed)"),
        ("TPU v5e", 256, "tpu_v5e", "16x16 (every axis closed)"),
        ("TPU v5", 32, "tpu_v5p", "2x4x4 (no axis closed)"),
        ("TPU v5p", 128, "tpu_v5p", "4x4x8 (every axis closed)"),
        ("TPU v6 Lite", 2, "tpu_v6e", "2x2 (no axis long enough to be closed)"),
        ("TPU v6 lite", 100, "tpu_v6e", "8x16 (closed along 16 only)"),
        ("TPU v6e", 600, "tpu_v6e", "16x16 (every axis closed)"),
        ("TPU7x", 2, "tpu_v7x", "2x2x1 (no axis long enough to be closed)"),
        ("TPU v7x", 16, "tpu_v7x", "2x2x2 (no axis long enough to be closed)"),
        ("TPU", 2, "tpu", "2x2 (no axis long enough to be closed)"),
    ],
)
def test_device_and_count_choose_the_slice(
    device: str, ranks: int, preset: str, slice_: str
) -> None:
    network = match_preset(device, ranks, [f"host{rank // 4}" for rank in range(ranks)])
    assert network is not None
    assert network.name == preset
    assert described(network) == slice_
    assert network.slices is not None
    assert network.slices.chosen
    assert any(f"a slice of {slice_} chips" in note for note in network.assumptions)
    assert sized_for(network, 1) is network
    if ranks == 600:
        assert "600 ranks need 3 slices, joined by DCN" in network.assumptions[-1]


@pytest.mark.parametrize("device", ["TPU v2", "TPU v3", "TPU8t", "TPU v5x", "NVIDIA TPU v4"])
def test_other_tpus_have_no_preset(device: str) -> None:
    assert match_preset(device, 8, []) is None


def test_a_preset_may_name_its_slice(tmp_path: Path) -> None:
    network = load_network("tpu_v5e:4x8")
    assert described(network) == "4x8 (no axis closed)"
    assert sized_for(network, 8) is network
    assert "slices of 4x8 (no axis closed) chips, as named" in network.assumptions[-1]
    save_network(network, tmp_path / "saved.yaml")
    assert load_network(tmp_path / "saved.yaml") == network
    assert described(load_network("tpu_v5p:4x4")) == "4x4 (every axis closed)"
    assert [t.topology for t in load_network("tpu_v7x:8").tiers] == ["switch", "ring", "switch"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tpu_v5e:2by4", "'2by4' is no shape of a torus"),
        ("tpu_v5e:2x0", "'2x0' is no shape"),
        ("tpu_v5e:", "'' is no shape"),
        ("tpu_v5e:2x2x2x2x2", "one to 5 tiers, this one has 6"),
        ("dgx_h100:2x4", "'dgx_h100' has no torus inside a scale-up domain"),
        ("tpu_v5f:2x4", "no such file"),
    ],
)
def test_a_slice_that_cannot_be_is_refused(name: str, problem: str) -> None:
    with pytest.raises(NetworkError, match=problem):
        load_network(name)


@pytest.mark.parametrize(
    ("slices", "problem"),
    [
        ({"shapes": []}, "there must be a shape"),
        ({"shapes": ["2x2", "4"]}, "must all have as many axes"),
        ({"shapes": ["two"]}, "'two' is no shape"),
        ({"shapes": ["2"], "closed_multiple": 0}, "must be at least 1, is 0"),
    ],
)
def test_slices_that_make_no_sense_are_refused(slices: dict[str, object], problem: str) -> None:
    with pytest.raises(NetworkError, match=problem):
        Slices(**{"closed_multiple": 4, **slices})  # type: ignore[arg-type]


def test_shapes_are_written_and_read_alike() -> None:
    network = load_network("tpu_v5p")
    assert shape(network) == "16x16x24"
    assert parse_shape(shape(network)) == tuple(network.tiers[a].size for a in axes(network))
    fewer = reshaped(network, (4,))
    assert [tier.topology for tier in fewer.tiers] == ["ring", "switch"]
    plain = Network(name="t", tiers=[Tier(topology="ring", size=8, bandwidth_gb_s=1, wrap=False)])
    assert described(reshaped(plain, (4, 4))) == "4x4 (no axis closed)"


# --- resources --------------------------------------------------------------------------------


def job(
    groups: Sequence[Sequence[Sequence[int]]],
    network: Network,
    coll: Collective = AR,
    size: int = 1 << 24,
) -> Job:
    """Ranks that take part in one collective after the other, in one group of each list."""
    world = 1 + max(rank for division in groups for group in division for rank in group)
    return prepare(graph_of(groups, world, coll, size), network=network)  # type: ignore[arg-type]


def graph_of(
    groups: Sequence[Sequence[Sequence[int]]], world: int, coll: Collective, size: int
) -> ExecutionGraph:
    build = GraphBuilder(world_size=world)
    lanes, last = [], []
    for rank in range(world):
        build.rank(rank)
        lanes.append(build.lane(rank, LaneKind.STREAM, 7))
        last.append(build.node(lanes[rank], Flavour.COMPUTE, 1000, start_ns=0))
    for number, division in enumerate(groups):
        for index, members in enumerate(division):
            group = build.group(f"{number}.{index}", members)
            for rank in members:
                last[rank] = build.collective(
                    lanes[rank],
                    coll,
                    group,
                    size,
                    start_ns=1000 * (number + 1),
                    dur_ns=1000,
                    transfer_ns=1000,
                    after=[last[rank]],
                )
    end = 1000 * (len(groups) + 1)
    markers = {
        rank: build.node(lanes[rank], Flavour.GAP, 0, start_ns=end, after=[last[rank]])
        for rank in range(world)
    }
    build.step("step", markers, completion_ns=end)
    return build.build()


def test_ici_is_the_scaleup_of_a_torus() -> None:
    made = job([[range(8)]], load_network("tpu_v5e:2x4"))
    rows = sweep(made, ["ici_bw", "scaleup_bw", "ici_latency", "scaleup_latency"], [2.0]).results
    by_name = {row.resource: row for row in rows}
    for what in ("bw", "latency"):
        ici, scaleup = by_name[f"ici_{what}"], by_name[f"scaleup_{what}"]
        assert ici.step_ns == scaleup.step_ns
        assert ici.bound_pct == scaleup.bound_pct is not None
        assert 0 < ici.utility_pct <= ici.bound_pct
    # Twice the bandwidth takes exactly half of the bandwidth part off the step.
    split = made.baseline.critical_split
    saved = made.baseline.step_ns - by_name["ici_bw"].step_ns
    assert saved == pytest.approx(split["scaleup_bw"] / 2, abs=1)


def test_of_chips_with_two_ranks_ici_is_what_joins_the_chips() -> None:
    network = load_network("tpu_v7x:2x2x1")
    apart = job([[range(8)]], network)
    rows = {row.resource: row for row in sweep(apart, ["ici_bw", "scaleup_bw"], [2.0]).results}
    assert 0 < rows["ici_bw"].utility_pct < rows["scaleup_bw"].utility_pct
    assert rows["ici_bw"].bound_pct is None
    inside = job([[(0, 1), (2, 3)]], network)
    with pytest.raises(ResourceError, match=r"nothing over the links of its torus, 2x2x1"):
        sweep(inside, ["ici_bw"], [2.0])
    assert sweep(inside, ["scaleup_bw"], [2.0]).results[0].utility_pct > 0


def test_a_job_can_be_put_on_another_torus() -> None:
    made = job([[range(8)]], load_network("tpu_v5e:2x4"), size=1 << 26)
    result = sweep(made, ["torus:8", "torus:2x2x2", "torus_wrap"], [2.0, 4.0], list_refused=True)
    rows = {row.resource: row for row in result.results}
    assert [(row.resource, row.factor) for row in result.results] == [
        ("torus:8", 1),
        ("torus:2x2x2", 1),
        ("torus_wrap", 2),
    ]
    assert rows["torus:8"].shape_change == "8 (no axis closed) instead of 2x4 (no axis closed)"
    assert (
        rows["torus_wrap"].shape_change == "2x4 (every axis closed) instead of 2x4 (no axis closed)"
    )
    assert rows["torus:8"].utility_pct < 0 < rows["torus_wrap"].utility_pct
    assert rows["torus:2x2x2"].utility_pct > 0
    assert all(row.bound_pct is None for row in rows.values())
    (refused,) = result.refused
    assert "a factor of 4 means nothing" in refused.reason
    # The same as a job that was on that torus to begin with.
    line = job([[range(8)]], load_network("tpu_v5e:8"), size=1 << 26)
    assert rows["torus:8"].step_ns == line.baseline.step_ns


def test_closing_axes_doubles_the_bisection() -> None:
    opened = job([[range(16)]], load_network("tpu_v5e:4x4"), A2A, 1 << 26)
    row = sweep(opened, ["torus_wrap"], [2.0]).results[0]
    split = opened.baseline.critical_split
    saved = opened.baseline.step_ns - row.step_ns
    # Half of the bandwidth, and of 3 + 3 hops 2 + 2 are left.
    assert saved == pytest.approx(split["scaleup_bw"] / 2 + split["scaleup_latency"] / 3, abs=2)
    with pytest.raises(ResourceError, match=r"every axis of 4x4 .* that can be is open"):
        sweep(opened, ["torus_wrap"], [0.5])


def test_domains_of_a_torus_are_slices() -> None:
    network = load_network("tpu_v5e:2x4")
    made = job([[range(16)]], network)
    assert made.placement.num_domains == 2
    result = sweep(made, ["scaleup_domain"], [0.5, 2.0], list_refused=True)
    fewer, more = result.results
    assert fewer.shape_change == (
        "4 slices of 2x2 (no axis long enough to be closed) instead of 2x4 (no axis closed) in 2"
    )
    assert (
        more.shape_change == "1 slice of 4x4 (no axis closed) instead of 2x4 (no axis closed) in 2"
    )
    assert fewer.utility_pct < 0 < more.utility_pct
    with pytest.raises(ResourceError, match=r"knows no slices of 24 chips; .*torus:2x4"):
        sweep(made, ["scaleup_domain"], [3.0])
    with pytest.raises(ResourceError, match=r"a slice of 4x4 .*, already holds all 16 ranks"):
        sweep(job([[range(16)]], load_network("tpu_v5e:4x4")), ["scaleup_domain"], [2.0])
    rows = sweep(made, ["scaleout_bw", "ici_bw"], [2.0]).results
    assert all(row.utility_pct > 0 for row in rows)


@pytest.mark.parametrize("resource", ["ici_bw", "ici_latency", "torus_wrap", "torus:2x4"])
def test_what_only_a_torus_has_is_refused_elsewhere(resource: str) -> None:
    made = job([[range(8)]], load_network("dgx_h100"))
    with pytest.raises(ResourceError, match=rf"{resource}: .*'dgx_h100' has no torus"):
        sweep(made, [resource], [2.0])
    alone = job([[range(1)]], load_network("tpu_v5e:1x1"))
    with pytest.raises(ResourceError, match=rf"{resource}: the job has a single rank"):
        sweep(alone, [resource], [2.0])


def test_links_over_which_no_byte_goes_are_refused() -> None:
    alone = job([[(rank,) for rank in range(4)]], load_network("tpu_v5e:2x2"))
    for resource in ("ici_bw", "ici_latency"):
        with pytest.raises(
            ResourceError, match=rf"{resource}: the job sends nothing over the links"
        ):
            sweep(alone, [resource], [2.0])
    slices = job([[(0, 1), (2, 3)]], load_network("tpu_v5e:1x1"))
    with pytest.raises(ResourceError, match="ici_bw: the job sends nothing over the links"):
        sweep(slices, ["ici_bw"], [2.0])
    assert sweep(slices, ["scaleout_bw"], [2.0]).results[0].utility_pct > 0


def test_a_torus_that_does_not_hold_the_job_or_makes_no_sense_is_refused() -> None:
    made = job([[range(8)]], load_network("tpu_v5e:2x4"))
    with pytest.raises(ResourceError, match="torus:2x2x2x2x2: a network has one to 5 tiers"):
        sweep(made, ["torus:2x2x2x2x2"], [2.0])
    with pytest.raises(UsageError, match="'2y4' is no shape of a torus"):
        whatif.sweep("nowhere", ["torus:2y4"])
    with pytest.raises(UsageError, match=r"unknown resource 'torus'; .*ici_bw, .*torus:2x4"):
        whatif.sweep("nowhere", ["torus"])
    crowded = network_of(torus(8))
    with pytest.raises(ResourceError, match=r"needs 2 slices of 4 .*, and network 'torus' joins 1"):
        sweep(job([[range(8)]], crowded), ["torus:4"], [2.0])


# --- reality ----------------------------------------------------------------------------------


def test_pairs_two_hops_apart_share_a_link_as_they_were_measured_to() -> None:
    """All-reduces of f32[5,1024,1024,256] between chips (0,4), (1,5), (2,6), (3,7) of a v6e-8.

    121.69 to 121.72 ms each in a recorded trace: two such pairs cross every link in the middle of
    the axis of four, so that the link alone explains 107 ms at its nominal speed.
    """
    pairs = [(0, 4), (1, 5), (2, 6), (3, 7)]
    size = 5 * 1024 * 1024 * 256 * 4
    together = job([pairs], load_network("tpu_v6e:2x4"), size=size).baseline
    assert together.shares_ports
    assert together.step_ns / 1e6 == pytest.approx(121.7, rel=0.01)
    alone = job([pairs[:1]], load_network("tpu_v6e:2x4"), size=size).baseline
    assert alone.step_ns / 1e6 == pytest.approx(121.7 / 2, rel=0.01)


def test_the_recorded_pairs_of_a_v6e_take_on_its_preset_what_they_took(shared_data: Path) -> None:
    """The same from the trace itself: 4 of the 8 chips were recorded, each with an absent peer."""
    trace = shared_data / "traces" / "tpu" / "xprof_v6e_4tpu_of8.xplane.pb.gz"
    graph = whatif.load(trace, processes=1, assume_missing=True)
    replay = simulate(uncompressed(graph), network=load_network("tpu_v6e:2x4"))
    nodes = np.flatnonzero(replay.compressed.graph.coll == AR)
    assert len(nodes) == 4 * 3
    took_ms = (replay.replay.end - replay.replay.release)[nodes] / 1e6
    assert took_ms == pytest.approx(replay.compressed.graph.transfer_ns[nodes] / 1e6, rel=0.005)
    assert took_ms == pytest.approx(121.7, rel=0.005)
