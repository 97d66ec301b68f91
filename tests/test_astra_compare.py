"""A comparison shows which tier each physics charges, and accounts for what differs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from whatif.base.progress import silent
from whatif.graph.columns import Collective
from whatif.simulator.astra.compare import compare
from whatif.simulator.network import Network, Tier, save_network
from whatif.simulator.placement import place
from whatif.simulator.run import simulate

import whatif

from .test_cli import call
from .transfers import program, traced

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from whatif.simulator.astra.compare_results import ComparedOperation, CompareResult

    from .transfers import Operation

__all__ = ["call"]

INNER = Tier(size=4, bandwidth_gb_s=300, latency_ns=1010)
OUTER = Tier(size=4, bandwidth_gb_s=25, latency_ns=5010, base_ns=3000)
NODES = Network(name="four nodes of four", tiers=[INNER, OUTER])
SIZE = 1 << 26


def compared(
    operations: Sequence[Operation], network: Network = NODES, ranks: int = 16
) -> CompareResult:
    graph = traced(program(operations, ranks=ranks, steps=2), network)
    placement = place(network, range(ranks), [""] * ranks, ranks)
    simulation = simulate(graph, network=network, placement=placement)
    return compare(simulation, network, placement, silent)


def only(
    members: tuple[int, ...], coll: Collective, size: int = SIZE, network: Network = NODES
) -> ComparedOperation:
    (row,) = compared([(members, (coll, size, 0))], network).operations
    return row


def test_a_contiguous_group_over_two_nodes_is_charged_the_inner_tier_only() -> None:
    row = only(tuple(range(8)), Collective.ALL_REDUCE)
    # Here: two passes within a node, one between nodes with a quarter of the data each way.
    assert row.native_tiers_ns["scaleup"] == pytest.approx(
        2 * 3 / 4 * SIZE / 300 + 6 * 1010, rel=1e-3
    )
    assert row.native_tiers_ns["scaleout"] == pytest.approx(
        2 / 2 * SIZE / 4 / 25 + 2 * 5010, rel=1e-3
    )
    # There: one ring of eight, every message of which moves at the speed within a node.
    assert row.astra_tiers_ns["scaleout"] == 0
    message = int(1000 + SIZE // 8 / 300)
    assert row.astra_ns == pytest.approx(10 + 14 * (message + 10), abs=14)
    assert (row.unpaid, row.neighbours) == ({"scaleout": 2}, 8)
    assert any("2 of 8 neighbours of its ring are across scaleout" in why for why in row.why)
    faster = replace(OUTER, bandwidth_gb_s=8 * OUTER.bandwidth_gb_s)
    network = Network(name="fast between nodes", tiers=[INNER, faster])
    assert only(tuple(range(8)), Collective.ALL_REDUCE, network=network).astra_ns == row.astra_ns


def test_a_strided_group_is_charged_the_outer_tier() -> None:
    row = only((0, 4, 8, 12), Collective.ALL_REDUCE)
    assert row.astra_tiers_ns["scaleup"] == 0
    assert row.astra_tiers_ns["scaleout"] == pytest.approx(
        row.native_tiers_ns["scaleout"], rel=1e-3
    )
    assert row.unpaid == {}
    assert any("base of 3 us here" in why for why in row.why)


@pytest.mark.parametrize(
    "coll", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
)
def test_the_world_pays_both_tiers_as_here(coll: Collective) -> None:
    row = only(tuple(range(16)), coll)
    for tier in ("scaleup", "scaleout"):
        assert row.astra_tiers_ns[tier] == pytest.approx(row.native_tiers_ns[tier], rel=2e-3)
    assert row.native_other_ns == pytest.approx(3000, abs=1)
    assert 0 <= row.astra_other_ns < 1000
    # GiB are 7.37 % more than GB, so the same numbers would be faster links.
    bandwidth = row.astra_ns - row.gib_ns
    assert 0.93 < bandwidth / row.astra_ns < 0.95


def test_small_operations_are_rounded_up_to_a_byte_for_each_rank_of_the_job() -> None:
    row = only((0, 1), Collective.ALL_REDUCE, 4)
    assert row.rounding_bytes == 12
    assert any("12 B more there" in why for why in row.why)


def test_one_slot_makes_operations_of_different_groups_wait() -> None:
    result = compared(
        [
            ((0, 1, 2, 3), (Collective.ALL_REDUCE, SIZE, 0)),
            ((0, 4, 8, 12), (Collective.ALL_REDUCE, SIZE, 1)),
        ]
    )
    waits = {row.group: row.slot_wait_ns for row in result.operations}
    assert max(waits.values()) > 0
    assert result.per_rank[0].slot_wait_ns > 0
    assert result.per_rank[5].slot_wait_ns == 0
    assert any(line.startswith("slots: ") for line in result.summary)
    # Computations beside them share a slot of their own; of one stream none waits for another.
    assert all(rank.compute_wait_ns == 0 for rank in result.per_rank)
    alone = compared([((0, 1, 2, 3), (Collective.ALL_REDUCE, SIZE, 0))])
    assert all(rank.slot_wait_ns == 0 for rank in alone.per_rank)


def test_the_step_is_the_same_where_the_physics_are() -> None:
    """Nothing overlaps, no base, links of one tier, whole microseconds of computation."""
    network = Network(name="one node", tiers=[INNER])
    result = compared([((0, 1, 2, 3), (Collective.ALL_REDUCE, SIZE, 0))], network, ranks=4)
    assert result.astra_step_ns == pytest.approx(result.native_step_ns, abs=100)
    for rank in result.per_rank:
        assert rank.astra_ns == pytest.approx(rank.native_ns, abs=200)


def test_the_command_prints_one_object_or_tables(
    call: Any,
    tmp_path: Path,
) -> None:
    graph = traced(
        program([(tuple(range(8)), (Collective.ALL_REDUCE, SIZE, 0))], ranks=16, steps=2), NODES
    )
    whatif.gen_gpu_chakra_et(graph, tmp_path / "et")
    save_network(NODES, tmp_path / "net.yaml")
    common = ("compare", "--trace", tmp_path / "et", "--network", tmp_path / "net.yaml")
    code, out, _ = call(*common, "--json", "--csv", tmp_path / "rows.csv")
    assert code == 0
    result = json.loads(out)
    assert result["operations"][0]["astra_tiers_ns"]["scaleout"] == 0
    assert "astra_scaleout_ns" in (tmp_path / "rows.csv").read_text()
    code, out, _ = call(*common)
    assert code == 0
    assert "2 of 8 neighbours of its ring are across scaleout" in " ".join(out.split())
    twin = whatif.compare(tmp_path / "et", network=tmp_path / "net.yaml")
    assert twin.operations[0].astra_ns == result["operations"][0]["astra_ns"]
