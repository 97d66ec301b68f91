"""What is exported runs in ASTRA-sim, means the same network, and says what does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from msgspec.structs import replace
from whatif.base.errors import NetworkError, UsageError
from whatif.graph.chakra import read_et
from whatif.graph.columns import Collective
from whatif.simulator.astra.alone import collective_alone, cycles_alone
from whatif.simulator.astra.experiment import Experiment
from whatif.simulator.astra.export import astra_inputs
from whatif.simulator.astra.files import read_network, read_system
from whatif.simulator.astra.job import astra_job
from whatif.simulator.astra.names import CommType
from whatif.simulator.astra.parity import run
from whatif.simulator.choice import price_group
from whatif.simulator.network import Network, Overlap, Protocol, Tier, save_network
from whatif.simulator.placement import place

import whatif

from .test_cli import call
from .transfers import program, traced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from whatif.graph.columns import ExecutionGraph
    from whatif.simulator.astra.export import AstraInputs

__all__ = ["call"]

INNER = Tier(size=4, bandwidth_gb_s=300, latency_ns=1010)
OUTER = Tier(size=4, bandwidth_gb_s=25, latency_ns=5010)
NODES = Network(name="four nodes of four", tiers=[INNER, OUTER])
SIZE = 1 << 24


def job(
    ranks: int, coll: Collective = Collective.ALL_REDUCE, size: int = SIZE, group: int = 0
) -> ExecutionGraph:
    members = tuple(range(group or ranks))
    return traced(
        program([(members, (coll, size, 0))], ranks=ranks, steps=2),
        Network(name="any", tiers=[replace(INNER, size=ranks)]),
    )


def inputs(
    network: Network,
    ranks: int = 16,
    rank_map: Mapping[int, int | Sequence[int]] | None = None,
    graph: ExecutionGraph | None = None,
) -> AstraInputs:
    graph = job(ranks) if graph is None else graph
    placement = place(network, range(ranks), [""] * ranks, ranks, rank_map)
    return astra_inputs(graph, network, placement)


def alone_ns(given: AstraInputs, comm_type: CommType, size: int) -> int:
    ranks = given.network.ranks
    workload, groups = collective_alone(ranks, comm_type, size, range(ranks))
    experiment = Experiment(network=given.network, system=given.system, groups=groups)
    return cycles_alone(workload, experiment)


TORUS = Network(
    name="torus",
    tiers=[Tier(topology="ring", size=2, bandwidth_gb_s=50, latency_ns=510)] * 2,
)
MESH = Network(
    name="mesh",
    # Latencies of a mesh are not alike, so there is none but the wait before a message.
    tiers=[Tier(topology="fully_connected", size=4, bandwidth_gb_s=300, latency_ns=10)],
)


@pytest.mark.parametrize(
    ("network", "ranks"),
    [(Network(name="one", tiers=[replace(INNER, size=8)]), 8), (NODES, 16), (MESH, 4)],
)
@pytest.mark.parametrize(
    "coll", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]
)
def test_a_collective_of_the_world_takes_as_long_there_as_here(
    network: Network, ranks: int, coll: Collective
) -> None:
    given = inputs(network, ranks)
    placement = place(network, range(ranks), [""] * ranks, ranks)
    here = price_group(network, coll, np.array([float(SIZE)]), placement.coordinates_in(network))
    there = alone_ns(given, CommType(int(coll)), SIZE)
    assert there == pytest.approx(here.total_ns[0], rel=2e-3)


@pytest.mark.parametrize(
    ("network", "ranks"), [(Network(name="one", tiers=[replace(INNER, size=8)]), 8), (MESH, 4)]
)
def test_an_all_to_all_has_no_more_than_the_ports_of_a_rank(network: Network, ranks: int) -> None:
    """All messages at once would each have the whole bandwidth of a switch port."""
    placement = place(network, range(ranks), [""] * ranks, ranks)
    here = price_group(
        network, Collective.ALL_TO_ALL, np.array([1e9]), placement.coordinates_in(network)
    )
    there = alone_ns(inputs(network, ranks), CommType.ALL_TO_ALL, 10**9)
    assert there == pytest.approx(here.total_ns[0], rel=5e-3)


def test_units_are_those_of_astra_sim() -> None:
    tier = Tier(
        size=8, bandwidth_gb_s=300, latency_ns=1010, efficiency=0.5, endpoint_ns_per_byte=1 / 150
    )
    given = inputs(Network(name="one", tiers=[tier]), 8)
    # 1/150 ns a byte on the wire and as much at the ends; 2^30 bytes a second are its unit.
    assert given.network.bandwidth == pytest.approx([75e9 / 2**30])
    # Two links of a switch, and 10 ns before each message.
    assert given.network.latency == [500]
    assert given.system.endpoint_delay == 10
    assert any("efficiency 0.5, 0.00667 ns per byte at the ends" in line for line in given.folded)


def test_doubling_a_resource_doubles_what_is_scaled_and_nothing_else(tmp_path: Path) -> None:
    network = Network(name="nodes", tiers=[replace(INNER, endpoint_ns_per_byte=1 / 300), OUTER])
    save_network(network, tmp_path / "net.yaml")
    result = whatif.astra_export(
        job(16),
        tmp_path / "out",
        resources=["scaleup_bw", "scaleout_latency", "scaleup_domain"],
        network=tmp_path / "net.yaml",
    )
    base, bandwidth, latency, domain = result.variants
    # The cost of the ends stays: 1/300 + 1/300 ns a byte become 1/600 + 1/300.
    assert bandwidth.bandwidth_gib_s[0] == pytest.approx(base.bandwidth_gib_s[0] * 4 / 3)
    assert bandwidth.bandwidth_gib_s[1] == base.bandwidth_gib_s[1]
    assert base.latency_ns == [500, 2500]
    assert latency.latency_ns == [500, pytest.approx((5010 / 2 - 10) / 2)]
    assert domain.npus_count == [8, 2]
    assert "8 ranks" in (domain.shape_change or "")
    for variant in result.variants:
        written = tmp_path / "out" / variant.name
        network_file = read_network(written / "network.yml")
        assert network_file.bandwidth == variant.bandwidth_gib_s
        system = read_system(written / "system.json")
        # A dimension without an algorithm would silently not take part.
        for names in (
            system.all_reduce_implementation,
            system.all_gather_implementation,
            system.reduce_scatter_implementation,
            system.all_to_all_implementation,
        ):
            assert len(names or []) == len(network_file.npus_count)


def test_a_torus_is_a_ring_in_every_dimension() -> None:
    given = inputs(TORUS, 4)
    assert (given.network.topology, given.network.npus_count) == (["Ring", "Ring"], [2, 2])
    assert given.network.latency == [500, 500]
    assert any("dimensions of a torus work at once" in line for line in given.lost)


@pytest.mark.parametrize(
    ("algorithm", "names", "optimization"),
    [
        ("ring", "ring", "localBWAware"),
        ("direct", "direct", "localBWAware"),
        ("halving-doubling", "halvingDoubling", "localBWAware"),
        ("tree", "doubleBinaryTree", "baseline"),
        (["in-switch", "tree"], "doubleBinaryTree", "baseline"),
        ("auto", "ring", "localBWAware"),
    ],
)
def test_algorithms_have_the_names_of_astra_sim(
    algorithm: str | list[str], names: str, optimization: str
) -> None:
    tiers = [replace(INNER, in_network_reduction=True), OUTER]
    given = inputs(Network(name="n", tiers=tiers, algorithms={"all-reduce": algorithm}))
    assert given.system.all_reduce_implementation == [names, names]
    assert given.system.collective_optimization == optimization
    assert alone_ns(given, CommType.ALL_REDUCE, SIZE) > 0


def test_pipelined_tiers_are_chunks() -> None:
    network = replace(NODES, algorithm="hierarchical-pipelined", pipeline_chunks=4)
    given = inputs(network)
    assert given.system.preferred_dataset_splits == 4
    assert alone_ns(given, CommType.ALL_REDUCE, 1 << 28) < alone_ns(
        inputs(NODES), CommType.ALL_REDUCE, 1 << 28
    )


@pytest.mark.parametrize(
    ("network", "ranks", "message"),
    [
        (NODES, 12 + 2, "full grids of ranks only, and 14 ranks sit in 4 x 4 places"),
        (NODES, 1, "at least two ranks"),
        (
            Network(name="l", tiers=[Tier(topology="ring", size=4, bandwidth_gb_s=1, wrap=False)]),
            4,
            "is a line",
        ),
        (
            Network(name="r", tiers=[Tier(topology="ring", size=8, bandwidth_gb_s=1)]),
            4,
            "4 of the 8 places of a ring",
        ),
        (
            Network(
                name="s",
                tiers=[replace(INNER, in_network_reduction=True)],
                algorithms={"all-reduce": "in-switch"},
            ),
            4,
            "no reduction in the switch",
        ),
        (
            Network(name="h", tiers=[replace(INNER, size=6)], algorithm="halving-doubling"),
            6,
            "halvingDoubling needs powers of two, and 6 units of a tier has 6",
        ),
    ],
)
def test_what_astra_sim_cannot_express_is_refused(
    network: Network, ranks: int, message: str
) -> None:
    with pytest.raises(NetworkError, match=message):
        inputs(network, ranks)


def test_what_would_kill_astra_sim_is_refused() -> None:
    tree = Network(name="t", tiers=[replace(INNER, size=8)], algorithms={"all-reduce": "tree"})
    assert inputs(tree, 8).system.all_reduce_implementation == ["doubleBinaryTree"]
    with pytest.raises(NetworkError, match="crashes on a tree in a group smaller than the job"):
        inputs(tree, 8, graph=job(8, group=4))
    halving = replace(tree, algorithms={"all-reduce": "halving-doubling"})
    with pytest.raises(NetworkError, match=r"aborts on an all-reduce .* of 8 bytes"):
        inputs(halving, 8, graph=job(8, size=8))
    chunks = replace(tree, algorithms={"all-gather": "hierarchical-pipelined"}, pipeline_chunks=8)
    with pytest.raises(NetworkError, match="never ends on an all-gather of 4 bytes in 8 chunks"):
        inputs(chunks, 8, graph=job(8, Collective.ALL_GATHER, 4))


def test_what_has_no_place_is_said() -> None:
    network = Network(
        name="n",
        tiers=[
            replace(INNER, base_ns=8200, protocols=[Protocol(name="ll", latency=0.5)]),
            replace(OUTER, ranks_per_nic=2, oversubscription=2),
        ],
        overlap=Overlap(slowdown=0.15),
        own_share=0.5,
    )
    given = inputs(network, graph=job(16, group=8))
    lost = "\n".join(given.lost)
    for what in (
        "scaleup: the base of a collective (8.2 us)",
        "scaleup: protocols (ll)",
        "scaleout: oversubscription 2",
        "compute beside transfers is 15% slower",
        "the part that a rank keeps (own_share 0.5)",
        "1 groups smaller than the job span several tiers",
    ):
        assert what in lost
    assert any("a NIC that 2 ranks share" in line for line in given.folded)
    assert given.network.bandwidth[1] == pytest.approx(12.5e9 / 2**30)


def test_npus_are_numbered_by_place_and_read_back_as_ranks(tmp_path: Path) -> None:
    """Ranks that alternate between two nodes become neighbours on their node."""
    graph = traced(
        program(
            [
                ((0, 2), (Collective.ALL_REDUCE, SIZE, 0)),
                ((0, 1, 2, 3), (Collective.ALL_GATHER, SIZE, 0)),
            ],
            ranks=4,
            steps=2,
        ),
        Network(name="any", tiers=[INNER]),
    )
    network = Network(name="n", tiers=[replace(INNER, size=2), OUTER])
    save_network(network, tmp_path / "net.yaml")
    result = whatif.astra_export(
        graph, tmp_path / "out", network=tmp_path / "net.yaml", rank_map={0: 0, 1: 1, 2: 0, 3: 1}
    )
    (variant,) = result.variants
    assert variant.ranks_by_npu == [0, 2, 1, 3]
    groups = json.loads((tmp_path / "out" / "et" / "whatif.comm_groups.json").read_text())
    assert groups["1"] == [0, 1]
    assert groups["2"] == [0, 2, 1, 3]
    back = read_et(tmp_path / "out" / "et")
    assert back.ranks.tolist() == [0, 1, 2, 3]
    for column in ("kind", "dur_ns", "instance", "group", "rank_ptr", "dep_node"):
        assert (getattr(back, column) == getattr(graph, column)).all()
    placement = place(network, range(4), [""] * 4, 4, {0: 0, 1: 1, 2: 0, 3: 1})
    made = astra_job(graph, network, placement)
    finish = run(made.workload, made.experiment)
    assert len(finish.finish) == 4
    # The pair on one node is charged the inner tier: one message of half the data, twice.
    pair = np.flatnonzero((graph.group == 0) & (graph.rank_index == 0))[0]
    took = finish.completed_ns[made.node[pair]] - finish.issued_ns[made.node[pair]]
    assert took == pytest.approx(10 + 2 * (1000 + SIZE / 2 / 300 + 10), rel=1e-3)


def test_nothing_is_written_after_an_error_and_nothing_replaced_unasked(tmp_path: Path) -> None:
    save_network(NODES, tmp_path / "net.yaml")
    line = Tier(topology="ring", size=4, bandwidth_gb_s=25, wrap=False)
    save_network(Network(name="bad line", tiers=[INNER, line]), tmp_path / "bad.yaml")
    graph = job(16)
    with pytest.raises(NetworkError, match=r"bad_line, tiers\[1\]: is a line"):
        whatif.astra_export(
            graph,
            tmp_path / "out",
            network=tmp_path / "net.yaml",
            presets=[tmp_path / "bad.yaml"],
        )
    assert not (tmp_path / "out").exists()
    whatif.astra_export(graph, tmp_path / "out", network=tmp_path / "net.yaml")
    with pytest.raises(UsageError, match="is not empty"):
        whatif.astra_export(graph, tmp_path / "out", network=tmp_path / "net.yaml")
    (tmp_path / "out" / "mine.txt").write_text("kept")
    whatif.astra_export(graph, tmp_path / "out", network=tmp_path / "net.yaml", overwrite=True)
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.txt",
        "baseline",
        "et",
        "mine.txt",
    ]


def test_compute_is_no_variant_of_a_network(tmp_path: Path) -> None:
    save_network(NODES, tmp_path / "net.yaml")
    with pytest.raises(UsageError, match="compute: is no part of the network"):
        whatif.astra_export(
            job(16), tmp_path / "out", resources=["compute"], network=tmp_path / "net.yaml"
        )


def test_the_command_writes_a_guide(call: Any, tmp_path: Path) -> None:
    whatif.gen_gpu_chakra_et(job(16), tmp_path / "et")
    save_network(NODES, tmp_path / "net.yaml")
    save_network(TORUS, tmp_path / "torus.yaml")
    common = ("astra", "export", "--trace", tmp_path / "et", "--network", tmp_path / "net.yaml")
    code, out, _ = call(*common, "-o", tmp_path / "out", "--resource", "scaleup_bw", "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)["variants"]] == ["baseline", "scaleup_bw_x2"]
    guide = (tmp_path / "out" / "README.txt").read_text()
    for path in ("et/whatif", "et/whatif.comm_groups.json", "scaleup_bw_x2/network.yml"):
        assert f"configuration={path}" in guide
    assert yaml.safe_load((tmp_path / "out" / "baseline" / "network.yml").read_text())[
        "npus_count"
    ] == [4, 4]
    code, out, err = call(*common, "-o", tmp_path / "more", "--preset", tmp_path / "torus.yaml")
    assert (code, out) == (1, "")
    assert "torus" in err
    code, out, err = call(*common, "-o", tmp_path / "none", "--factor", "3")
    assert (code, out) == (2, "")
    assert "goes with --resource" in err
    code, out, _ = call(*common, "-o", tmp_path / "third")
    assert code == 0
    assert "Switch 4 x Switch 4" in out
    (tmp_path / "et" / "whatif.comm_groups.json").write_text("[" * 100_000)
    code, out, err = call(*common, "-o", tmp_path / "deep")
    assert (code, out) == (1, "")
    assert "is not a file of communicator groups" in " ".join(err.split())
