"""Networks as files and presets, the preset of a trace, and the placement of ranks."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.base.errors import GraphError, NetworkError
from whatif.simulator.network import (
    Network,
    Protocol,
    Tier,
    check_priced,
    load_network,
    match_preset,
    preset_names,
    save_network,
)
from whatif.simulator.placement import Placement, place
from whatif.simulator.torus import axes, ranks_per_chip

if TYPE_CHECKING:
    from pathlib import Path

# Domain, then allowed GB/s per chip and direction of scale-up and scale-out (a row of the
# plausibility table collected from vendors and measurements; Gb/s / 8 for scale-out). The lower
# ends allow effective values, the upper ends are nominal.
PLAUSIBLE = {
    "v100x8": (8, (110, 150), None),
    "dgx_a100": (8, (200, 300), (6 / 8, 200 / 8)),
    "perlmutter_a100": (4, (200, 300), (100 / 8, 200 / 8)),
    "dgx_h100": (8, (340, 450), (100 / 8, 400 / 8)),
    "dgx_b200": (8, (600, 900), (200 / 8, 400 / 8)),
    "gb200_nvl72": (72, (560, 900), (200 / 8, 400 / 8)),
    "mi300x": (8, (300, 448), (100 / 8, 400 / 8)),
}


# Axes, chips of a pod, links of a chip, and allowed GB/s per chip and direction as above. Of
# TPU7x the pod has 9216 chips and the links are shared by the two devices of a chip.
TORI = {
    "tpu_v4": (3, 4096, 6, (240, 300), (25 / 8, 50 / 8)),
    "tpu_v5e": (2, 256, 4, (160, 200), (12.5 / 8, 25 / 8)),
    "tpu_v5p": (3, 6144, 6, (480, 600), (25 / 8, 50 / 8)),
    "tpu_v6e": (2, 256, 4, (220, 400), (0.33 * 100 / 8, 100 / 8)),
    "tpu_v7x": (3, 9216, 6, (480, 600), (50 / 8, 100 / 8)),
}


def test_every_preset_for_devices_has_a_row_to_check_it() -> None:
    assert set(PLAUSIBLE) | set(TORI) | {"loopback", "host_memory", "tpu"} == set(preset_names())


@pytest.mark.parametrize("name", TORI)
def test_presets_of_tori_are_plausible(name: str) -> None:
    count, pod, links, up, out = TORI[name]
    network = load_network(name)
    rings = [network.tiers[axis] for axis in axes(network)]
    per_chip = ranks_per_chip(network)
    assert len(rings) == count == links / 2
    assert np.prod([ring.size for ring in rings]) == pod
    assert network.tier_names == (*["scaleup"] * (len(network.tiers) - 1), "scaleout")
    for ring in rings:
        assert ring.bandwidth_gb_s * links * per_chip == up[1]
        assert up[0] <= ring.effective_gb_s * links * per_chip <= up[1]
    assert network.tiers[-1].bandwidth_gb_s * per_chip == out[1]
    assert out[0] <= network.tiers[-1].effective_gb_s * per_chip <= out[1]


@pytest.mark.parametrize("name", PLAUSIBLE)
def test_presets_are_plausible(name: str) -> None:
    domain, up, out = PLAUSIBLE[name]
    network = load_network(name)
    assert network.tiers[0].size == domain
    # Nominal is the upper end exactly: a bidirectional or aggregate figure would exceed it.
    assert network.tiers[0].bandwidth_gb_s == up[1]
    assert up[0] <= network.tiers[0].effective_gb_s <= up[1]
    assert (len(network.tiers) > 1) == (out is not None)
    if out is not None:
        assert network.tiers[1].bandwidth_gb_s == out[1]
        assert out[0] <= network.tiers[1].effective_gb_s <= out[1]


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_complete(name: str) -> None:
    network = load_network(name)
    assert network.name == name
    assert all(tier.source and tier.latency_ns > 0 for tier in network.tiers)
    assert network.assumptions
    check_priced(network)


def test_tier_bandwidths_are_gb_per_second_not_gib() -> None:
    assert Tier(size=2, bandwidth_gb_s=3, efficiency=0.5).effective_gb_s == 1.5


positive = st.floats(1e-6, 1e6)
tiers = st.builds(
    Tier,
    topology=st.sampled_from(["switch", "ring", "fully_connected"]),
    size=st.integers(1, 1 << 20),
    bandwidth_gb_s=positive,
    latency_ns=st.floats(0, 1e9),
    efficiency=st.floats(1e-6, 1),
    endpoint_ns_per_byte=st.floats(0, 1e3),
    base_ns=st.floats(-1e9, 1e9),
    in_network_efficiency=st.none() | st.floats(1e-6, 1),
    protocols=st.just([]) | st.just([Protocol(name="LL", latency=0.3, efficiency=0.5)]),
    source=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
)


@given(
    network=st.builds(
        Network,
        name=st.just("a: b"),
        tiers=st.lists(tiers, min_size=1, max_size=4),
        algorithm=st.sampled_from([None, "auto", ["ring", "tree"]]),
        algorithms=st.sampled_from([{}, {"all-reduce": "tree", "barrier": ["ring", "direct"]}]),
    )
)
def test_a_saved_network_is_read_back_unchanged(
    network: Network, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "network.yaml"
    save_network(network, path)
    assert load_network(path) == network


GOOD: dict[str, Any] = {"size": 8, "bandwidth_gb_s": 100.0}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"bandwidth_gb_s": "nan"}, r"tiers\[1\]\.bandwidth_gb_s"),
        ({"bandwidth_gb_s": math.inf}, r"tiers\[1\]\.bandwidth_gb_s"),
        ({"bandwidth_gb_s": -1}, r"tiers\[1\]\.bandwidth_gb_s"),
        ({"bandwidth_gb_s": 0}, r"tiers\[1\]\.bandwidth_gb_s"),
        ({"bandwidth_gb_s": "fast"}, r"tiers\[1\]\.bandwidth_gb_s"),
        ({"efficiency": 0}, r"tiers\[1\]\.efficiency"),
        ({"efficiency": 1.01}, r"tiers\[1\]\.efficiency"),
        ({"efficiency": math.nan}, r"tiers\[1\]\.efficiency"),
        ({"size": 0}, r"tiers\[1\]\.size"),
        ({"size": 2.5}, r"tiers\[1\]\.size"),
        ({"latency_ns": -1}, r"tiers\[1\]\.latency_ns"),
        ({"endpoint_ns_per_byte": -1}, r"tiers\[1\]\.endpoint_ns_per_byte"),
        ({"base_ns": math.nan}, r"tiers\[1\]\.base_ns"),
        ({"topology": "torus"}, r"tiers\[1\]\.topology"),
        ({"bandwith": 3}, r"tiers\[1\]: .*bandwith"),
        ({"oversubscription": 0}, r"tiers\[1\]\.oversubscription"),
        ({"ranks_per_nic": 0}, r"tiers\[1\]\.ranks_per_nic"),
        ({"wrap": "maybe"}, r"tiers\[1\]\.wrap"),
        ({"protocols": [{"name": "LL", "efficiency": 0}]}, r"tiers\[1\]\.protocols\.efficiency"),
        ({"protocols": [{"latency": 1}]}, r"tiers\[1\]\.protocols\[0\]: .*name"),
    ],
)
def test_a_malformed_tier_is_refused_by_file_and_field(
    tmp_path: Path, change: dict[str, Any], field: str
) -> None:
    path = tmp_path / "mine.yaml"
    content = {"name": "mine", "tiers": [GOOD, {**GOOD, **change}]}
    path.write_bytes(msgspec.yaml.encode(content))
    with pytest.raises(NetworkError, match=rf"mine\.yaml, {field}"):
        load_network(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "expected a mapping"),
        (b"- 1", "expected a mapping"),
        (b"name: x\ntiers: [", "not YAML"),
        (b"name: \x80", "not YAML"),
        (b"name: x", "missing required field `tiers`"),
        (b"name: x\ntiers: 3", "tiers: Expected `array`"),
        (b"name: x\ntiers: []", "one to 5 tiers, this one has 0"),
        (b"name: x\ntiers:\n- {size: 2, bandwidth_gb_s: 1}\nnics: 3", "unknown field `nics`"),
    ],
)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    with pytest.raises(NetworkError, match=rf"mine\.yaml.*{problem}"):
        load_network(path)


def test_a_number_with_an_exponent_and_no_point_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: x\ntiers:\n- {size: 2, bandwidth_gb_s: 1e3}")
    assert load_network(path).tiers[0].bandwidth_gb_s == 1000


def test_an_unknown_name_lists_the_presets() -> None:
    with pytest.raises(NetworkError, match="presets: dgx_a100, "):
        load_network("dgx_a10")


def test_a_network_that_cannot_be_written_or_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="cannot be written"):
        save_network(load_network("loopback"), tmp_path / "missing" / "x.yaml")
    with pytest.raises(NetworkError, match="cannot be read"):
        load_network(tmp_path)


@pytest.mark.parametrize(
    ("device", "num_ranks", "hosts", "preset"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, ["a"] * 8, "dgx_a100"),
        ("A100-SXM4-40GB", 16, [""] * 16, "dgx_a100"),
        ("NVIDIA A100-PG509-200", 8, [""], "dgx_a100"),
        ("NVIDIA A100-SXM4-40GB", 8, ["nid1"] * 4 + ["nid2"] * 4, "perlmutter_a100"),
        ("Tesla V100-SXM2-32GB", 8, ["a"] * 8, "v100x8"),
        ("NVIDIA H100 80GB HBM3", 16, ["a"] * 8 + ["b"] * 8, "dgx_h100"),
        ("NVIDIA H200", 8, [], "dgx_h100"),
        ("NVIDIA B200", 8, [], "dgx_b200"),
        ("NVIDIA GB200", 144, [], "gb200_nvl72"),
        ("AMD Instinct MI300X", 8, [], "mi300x"),
        ("", 4, ["me"] * 4, "loopback"),
        ("", 2, ["me", "you"], "loopback"),
    ],
)
def test_the_preset_follows_from_device_count_and_hosts(
    device: str, num_ranks: int, hosts: list[str], preset: str
) -> None:
    network = match_preset(device, num_ranks, hosts)
    assert network is not None
    assert network.name == preset
    assert network.assumptions[0].startswith(f"preset {preset} chosen because")
    assert network.assumptions[1:] == load_network(preset).assumptions


@pytest.mark.parametrize(
    ("device", "num_ranks", "hosts"),
    [
        ("Tesla V100-SXM2-32GB", 16, [""] * 16),  # more than the node of the preset
        ("Tesla V100-SXM2-32GB", 8, ["a"] * 4 + ["b"] * 4),
        ("Tesla V100-PCIE-16GB", 2, [""]),  # other links from here on
        ("NVIDIA A100 80GB PCIe", 2, [""]),
        ("NVIDIA A800-SXM4-80GB", 8, [""]),
        ("NVIDIA H100 PCIe", 2, [""]),
        ("NVIDIA H100 NVL", 2, [""]),
        ("NVIDIA H20", 8, [""]),
        ("NVIDIA GH200 480GB", 4, [""]),
        ("NVIDIA GB300", 4, [""]),
        ("AMD Instinct MI250X", 8, [""]),
        ("NVIDIA GeForce RTX 4090", 2, [""]),
    ],
)
def test_a_device_without_a_preset_gets_none(device: str, num_ranks: int, hosts: list[str]) -> None:
    assert match_preset(device, num_ranks, hosts) is None


def two_tiers(size: int, domains: int = 1024) -> Network:
    up = Tier(size=size, bandwidth_gb_s=100)
    return Network(name="t", tiers=[up, Tier(size=domains, bandwidth_gb_s=10)])


def test_a_rank_map_counts_more_than_hosts() -> None:
    placed = place(two_tiers(2), range(4), ["a", "a", "b", "b"], 4, {0: 7, 1: 2, 2: 7, 3: 2})
    assert placed.kind == "rank map"
    assert placed.domain.tolist() == [7, 2, 7, 2]
    assert placed.num_domains == 2


@pytest.mark.parametrize(
    ("rank_map", "problem"),
    [
        ({0: 0, 1: 0, 3: 1}, "rank 2: .*no domain"),
        ({0: 0, 1: 0, 2: -1, 3: 1}, "rank 2: .*negative"),
        ({0: 0, 1: 0, 2: 0, 3: 1}, "3 ranks in one domain"),
        ({0: 0, 1: 1, 2: 2, 3: 3}, "at most 3"),
    ],
)
def test_a_rank_map_that_does_not_fit_is_refused(rank_map: dict[int, int], problem: str) -> None:
    with pytest.raises(NetworkError, match=problem):
        place(two_tiers(2, 3), range(4), [""] * 4, 4, rank_map)


def test_the_ranks_of_a_host_are_a_domain() -> None:
    placed = place(two_tiers(4), range(6), ["a", "b", "a", "b", "a", "b"], 6)
    assert placed.kind == "host names"
    assert placed.domain.tolist() == [0, 1, 0, 1, 0, 1]
    assert placed.description == "host names: 6 ranks in 2 domains of 3 (room for 4)"


def test_a_host_with_more_ranks_than_a_domain_holds_is_split() -> None:
    placed = place(two_tiers(2), range(6), ["a"] * 5 + ["b"], 6)
    assert placed.domain.tolist() == [0, 0, 1, 1, 2, 3]
    assert placed.description == "host names: 6 ranks in 4 domains of 1 to 2 (room for 2)"


def test_ranks_fill_domains_by_number_where_a_host_is_unknown() -> None:
    placed = place(two_tiers(4), range(6), ["a", "b", "a", "b", "a", ""], 6)
    assert placed.kind == "contiguous"
    assert placed.domain.tolist() == [0, 0, 0, 0, 1, 1]


TORUS = Network(
    name="torus",
    tiers=[
        Tier(topology="ring", size=4, bandwidth_gb_s=100),
        Tier(topology="ring", size=2, bandwidth_gb_s=100),
        Tier(size=3, bandwidth_gb_s=10),
    ],
)


def test_ranks_take_the_places_of_a_torus_by_number() -> None:
    placed = place(TORUS, range(20), [f"host{rank // 4}" for rank in range(20)], 20)
    # A slice of a torus spans hosts.
    assert placed.kind == "contiguous"
    assert placed.description == "contiguous: 20 ranks in 3 domains of 4 to 8 (room for 8)"
    coordinates = placed.coordinates_in(TORUS)
    assert coordinates[[0, 3, 4, 7, 8, 19]].tolist() == [
        [0, 0, 0],
        [3, 0, 0],
        [0, 1, 0],
        [3, 1, 0],
        [0, 0, 1],
        [3, 0, 2],
    ]


def test_domains_take_places_by_number_and_their_ranks_too() -> None:
    network = two_tiers(4)
    placed = place(network, range(5), [""] * 5, 5, {0: 9, 1: 2, 2: 9, 3: 2, 4: 2})
    assert placed.coordinates_in(network).tolist() == [[0, 1], [0, 0], [1, 1], [1, 0], [2, 0]]


def test_a_rank_map_can_give_the_place_in_every_tier() -> None:
    given_ = {0: (3, 1, 2), 1: [0, 0, 2], 2: (1, 1, 0)}
    placed = place(TORUS, range(3), ["a"] * 3, 3, given_)
    assert placed.kind == "rank map"
    assert placed.coordinates_in(TORUS).tolist() == [[3, 1, 2], [0, 0, 2], [1, 1, 0]]
    assert placed.domain.tolist() == [2, 2, 0]
    assert placed.regrouped(16).coordinates is None
    with pytest.raises(NetworkError, match="rank map does not fit the 2 tiers of network 't'"):
        placed.coordinates_in(two_tiers(4))


@pytest.mark.parametrize(
    ("place_of_two", "problem"),
    [
        ((4, 0, 0), r"rank 2: .*\(4, 0, 0\), which is no place in tiers of 4 x 2 x 3"),
        ((0, 0), "rank 2: .*no place"),
        (1, "rank 2: .*1, which is no place"),
        ((0, 1, -1), "rank 2: .*no place"),
        ((1, 0, 0), r"rank 2: .*the place \(1, 0, 0\) of rank 1"),
    ],
)
def test_a_place_that_is_not_there_or_taken_is_refused(place_of_two: Any, problem: str) -> None:
    given_ = {0: (0, 0, 0), 1: (1, 0, 0), 2: place_of_two}
    with pytest.raises(NetworkError, match=problem):
        place(TORUS, range(3), [""] * 3, 3, given_)


def test_ranks_that_a_network_has_no_place_for_are_refused() -> None:
    crowded = Placement("contiguous", np.zeros(9, dtype=np.int64), 9)
    with pytest.raises(NetworkError, match=r"9 ranks in a domain, .* 'torus' has room for 8"):
        crowded.coordinates_in(TORUS)
    vast = Network(name="v", tiers=[Tier(size=1 << 20, bandwidth_gb_s=1)] * 3)
    with pytest.raises(NetworkError, match="more than can be numbered"):
        crowded.coordinates_in(vast)
    spread = Placement("contiguous", np.arange(4), 1)
    with pytest.raises(NetworkError, match=r"4 domains, .* 'torus' has room for 3"):
        spread.coordinates_in(TORUS)


def test_one_tier_holds_all_ranks_whatever_their_host() -> None:
    one = Network(name="t", tiers=[Tier(**GOOD)])
    assert place(one, range(2), ["a", "b"], 2).domain.tolist() == [0, 0]
    with pytest.raises(NetworkError, match=r"9 ranks in 2 domains .* at most 1"):
        place(one, range(2), ["a", "b"], 9)


def test_an_untraced_rank_joins_the_traced_ranks_next_to_it() -> None:
    placed = place(two_tiers(4), [0, 5], ["a", "b"], 12)
    assert placed.domain.tolist() == [0] * 4 + [1] * 4 + [2] * 4


@given(
    world=st.integers(1, 40),
    size=st.integers(1, 9),
    data=st.data(),
)
def test_no_domain_is_ever_overfull(world: int, size: int, data: st.DataObject) -> None:
    traced = sorted(data.draw(st.sets(st.integers(0, world - 1))))
    hosts = [data.draw(st.sampled_from("abc")) for _ in traced]
    placed = place(two_tiers(size), traced, hosts, world)
    assert len(placed.domain) == world
    assert np.bincount(placed.domain).max() <= size
    for left, right in pairwise(traced):
        if hosts[traced.index(left)] != hosts[traced.index(right)]:
            assert placed.kind == "contiguous" or placed.domain[left] != placed.domain[right]
    other = data.draw(st.integers(1, 30))
    moved = placed.regrouped(other)
    assert np.bincount(moved.domain).max() <= other
    if other >= size:
        assert moved.num_domains <= placed.num_domains


def test_a_larger_domain_takes_old_domains_whole() -> None:
    hosts = [host for host in "abcd" for _ in range(4)]
    placed = place(two_tiers(8), range(16), hosts, 16)
    assert placed.regrouped(16).domain.tolist() == [0] * 8 + [1] * 8
    assert placed.regrouped(8).domain.tolist() == placed.domain.tolist()


def test_a_smaller_domain_takes_part_of_an_old_one() -> None:
    strided = Placement("rank map", np.array([0, 1, 0, 1, 0, 1, 0, 1]), 4)
    assert strided.regrouped(2).domain.tolist() == [0, 2, 0, 2, 1, 3, 1, 3]
    assert strided.regrouped(3).num_domains == 4


def test_a_domain_of_no_multiple_is_filled_rank_by_rank() -> None:
    placed = place(two_tiers(4), range(12), [""] * 12, 12)
    assert placed.regrouped(6).domain.tolist() == [0] * 6 + [1] * 6


def test_a_rank_that_the_job_lacks_has_no_domain() -> None:
    placed = place(two_tiers(4), range(4), [""] * 4, 4)
    assert placed.domains_of([3, 0]).tolist() == [0, 0]
    for rank in (4, -1):
        with pytest.raises(GraphError, match=rf"rank {rank}: .*0 to 3 only"):
            placed.domains_of([0, rank])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\ntiers: []\ntiers: []\n", "'tiers' is given twice"),
        ("name: 2001-02-30\n", "cannot be read"),
        ("[" * 20_000, "nested too deeply"),
        ("name: " + "9" * 5_000, "cannot be read"),
        ("name: a\ntiers: [{size: " + "9" * 25 + ", bandwidth_gb_s: 1}]", "size"),
        (
            "name: a\ntiers: [{size: 2, bandwidth_gb_s: 1}]\noverlap: {slowdown: 1e300}",
            r"overlap\.slowdown",
        ),
    ],
)
def test_slips_of_the_pen_in_network_files_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "net.yaml"
    file.write_text(text)
    with pytest.raises(NetworkError, match=said) as caught:
        load_network(file)
    assert str(file) in str(caught.value)
