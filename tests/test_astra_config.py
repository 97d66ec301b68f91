"""A calibrated network in the terms of ASTRA-sim."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml
from whatif.base.errors import NetworkError, UsageError
from whatif.calibration.astra import astra_config
from whatif.graph.columns import Collective
from whatif.reports.astra import write_astra_config
from whatif.simulator.choice import price_group
from whatif.simulator.network import Network, Tier
from whatif.simulator.placement import place

if TYPE_CHECKING:
    from pathlib import Path

    from whatif.calibration.results import AstraConfig
    from whatif.simulator.placement import Placement

NVLINK = Tier(size=8, bandwidth_gb_s=300, efficiency=0.8, latency_ns=1000)
ENDPOINT_DELAY_NS = 10


def placed(network: Network, ranks: int) -> Placement:
    return place(network, range(ranks), [""] * ranks, ranks)


def ring_all_reduce_ns(config: AstraConfig, size: int) -> float:
    """A ring on a switch in the congestion-unaware backend, reductions free; see its sources.

    Every one of 2 (n - 1) messages of size/n bytes pays the latency twice and the endpoint delay
    once, and the first is preceded by another delay.
    """
    ranks, gib_s, latency = (
        config.network[key][0] for key in ("npus_count", "bandwidth", "latency")
    )
    message = int(2 * latency + size / ranks / (gib_s * 2**30 / 1e9))
    return ENDPOINT_DELAY_NS + 2 * (ranks - 1) * (message + ENDPOINT_DELAY_NS)


@pytest.mark.parametrize("size", [1 << 16, 1 << 26])
def test_a_ring_takes_as_long_there_as_here(size: int) -> None:
    network = Network(name="nvlink", tiers=[NVLINK])
    config = astra_config(network, placed(network, 8))
    assert config.network["topology"] == ["Switch"]
    assert config.network["npus_count"] == [8]
    here = price_group(
        network, Collective.ALL_REDUCE, np.array([float(size)]), np.arange(8)[:, np.newaxis]
    )
    assert ring_all_reduce_ns(config, size) == pytest.approx(here.total_ns[0], abs=30)


def test_the_cost_of_the_ends_is_in_the_bandwidth() -> None:
    slow = Tier(size=8, bandwidth_gb_s=1, efficiency=0.5, endpoint_ns_per_byte=2)
    network = Network(name="slow", tiers=[slow])
    gib_s = astra_config(network, placed(network, 4)).network["bandwidth"][0]
    # 2 ns a byte on the wire and 2 at the ends.
    assert gib_s == pytest.approx(0.25 * 1e9 / 2**30, rel=1e-5)


def test_only_the_places_in_use_are_simulated() -> None:
    outer = Tier(topology="ring", size=64, bandwidth_gb_s=25, latency_ns=2010)
    network = Network(name="two", tiers=[NVLINK, outer])
    config = astra_config(network, placed(network, 32))
    assert config.network["topology"] == ["Switch", "Ring"]
    assert config.network["npus_count"] == [8, 4]
    # A hop of a ring pays its latency once.
    assert config.network["latency"] == [495, 2000]
    assert config.system["all-reduce-implementation"] == ["ring", "ring"]
    assert config.system["all-to-all-implementation"] == ["direct", "direct"]


def test_links_of_a_full_mesh_are_single() -> None:
    mesh = Tier(topology="fully_connected", size=4, bandwidth_gb_s=300)
    network = Network(name="mesh", tiers=[mesh])
    config = astra_config(network, placed(network, 4))
    assert config.network["bandwidth"][0] == pytest.approx(100 * 1e9 / 2**30, rel=1e-5)
    assert config.system["all-reduce-implementation"] == ["direct"]


@pytest.mark.parametrize("ranks", [1, 12])
def test_what_is_no_full_grid_is_refused(ranks: int) -> None:
    outer = Tier(size=64, bandwidth_gb_s=25)
    network = Network(name="two", tiers=[NVLINK, outer])
    with pytest.raises(NetworkError, match=f"{ranks} ranks sit in"):
        astra_config(network, placed(network, ranks))


def test_what_has_no_place_is_listed(tmp_path: Path) -> None:
    fixed = Tier(size=8, bandwidth_gb_s=300, base_ns=8200)
    network = Network(name="nvlink", tiers=[fixed])
    write_astra_config(astra_config(network, placed(network, 8)), tmp_path / "new")
    text = (tmp_path / "new" / "network.yml").read_text()
    assert "# left out, because it has no place: the base of a collective (8200 ns)" in text
    assert "not with ASTRA-sim" in text
    assert yaml.safe_load(text)["npus_count"] == [8]
    system = json.loads((tmp_path / "new" / "system.json").read_text())
    assert system["preferred-dataset-splits"] == 1


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    network = Network(name="nvlink", tiers=[NVLINK])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        write_astra_config(astra_config(network, placed(network, 8)), tmp_path / "file" / "new")
