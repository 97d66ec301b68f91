"""All-to-alls in which members send unequal parts: prices, ports, sharing, and their traces."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.base.errors import GraphError
from whatif.converters.kineto.convert import convert_kineto
from whatif.graph.build import GraphBuilder
from whatif.graph.chakra import read_et, write_et
from whatif.graph.columns import Collective, Flavour, LaneKind, collect_instances
from whatif.graph.validate import validate
from whatif.simulator.algorithms.layout import Layout, shape_of
from whatif.simulator.algorithms.plans import make_plan
from whatif.simulator.algorithms.stages import per_port
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import simulate

from .kineto_file import KinetoFile, comm
from .oracle.programs import expert_program
from .test_counterfactual import make_case
from .test_topologies import grid, link_loads_of, mesh, ring, routed, torus_groups

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from whatif.graph.columns import ExecutionGraph

    Matrix = list[list[int]]

A2A = Collective.ALL_TO_ALL


def matrix_of(n: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(0, 9), min_size=n, max_size=n)
    return st.lists(row, min_size=n, max_size=n)


def job_of(matrix: Matrix, *, beside: int = 0) -> ExecutionGraph:
    """One all-to-all of all ranks; at the same time ranks 0 and 1 gather so much, `beside`."""
    n = len(matrix)
    build = GraphBuilder()
    for rank in range(n):
        build.rank(rank)
    everyone, pair = build.group("0", range(n)), build.group("pair", (0, 1))
    done = {}
    for rank in range(n):
        lanes = [build.lane(rank, LaneKind.STREAM, number) for number in range(3)]
        parts = tuple(matrix[rank])
        ends = [build.collective(lanes[0], A2A, everyone, sum(parts), split=parts)]
        if beside and rank < 2:
            ends.append(build.collective(lanes[1], Collective.ALL_GATHER, pair, beside))
        done[rank] = build.node(lanes[2], Flavour.COMPUTE, 0, after=ends)
    build.step("step", done)
    return build.build()


def step_of(graph: ExecutionGraph, *tiers: Tier, **options: object) -> float:
    return float(simulate(graph, network=Network(name="t", tiers=list(tiers), **options)).step_ns)  # type: ignore[arg-type]


def time_of(matrix: Matrix, *tiers: Tier, **options: object) -> float:
    return step_of(job_of(matrix), *tiers, **options)


def busiest(matrix: Matrix, apart: list[int]) -> tuple[int, int]:
    """Bytes of the busiest port between members of one domain, and of different ones."""
    n = len(matrix)
    ports: Counter[tuple[bool, str, int]] = Counter()
    for a in range(n):
        for b in range(n):
            if a != b:
                outer = apart[a] != apart[b]
                ports[outer, "out", a] += matrix[a][b]
                ports[outer, "in", b] += matrix[a][b]
    return tuple(max([v for (o, *_), v in ports.items() if o == w] or [0]) for w in (False, True))  # type: ignore[return-value]


# --- alone on the network ---------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6).flatmap(matrix_of))
def test_a_switch_is_held_up_by_whoever_sends_or_receives_most(matrix: Matrix) -> None:
    scaled = [[part * 1_000 for part in row] for row in matrix]
    worst, _ = busiest(scaled, [0] * len(matrix))
    if not worst:
        return
    tier = Tier(size=len(matrix), bandwidth_gb_s=10, latency_ns=700, base_ns=300)
    assert time_of(scaled, tier) == pytest.approx(worst / 10 + 1_000, abs=1)


@settings(max_examples=40, deadline=None)
@given(matrix_of(6))
def test_two_tiers_work_at_once_each_by_its_busiest_port(matrix: Matrix) -> None:
    scaled = [[part * 1_000 for part in row] for row in matrix]
    inner, outer = busiest(scaled, [0, 0, 0, 1, 1, 1])
    if not inner or not outer:
        return
    up, out = Tier(size=3, bandwidth_gb_s=20, latency_ns=100), Tier(size=2, bandwidth_gb_s=5)
    assert time_of(scaled, up, out) == pytest.approx(max(inner / 20, outer / 5) + 100, abs=1)


@settings(max_examples=60, deadline=None)
@given(torus_groups(), st.data())
def test_rings_and_tori_carry_every_part_over_its_shortest_way(
    group: tuple[list[Tier], np.ndarray[tuple[int, int], np.dtype[np.int64]]], data: st.DataObject
) -> None:
    tiers, where = group
    members = [tuple(row) for row in where.tolist()]
    n = len(members)
    if n == 1:
        return
    matrix = np.array(data.draw(matrix_of(n)), dtype=np.float64)
    expected: Counter[object] = Counter()
    for a in range(n):
        for b in range(n):
            if a != b and matrix[a, b]:
                for link, share in routed([(members[a], members[b])], tiers).items():
                    expected[link] += share * Fraction(int(matrix[a, b]))  # type: ignore[assignment]
    layout = Layout(shape_of(tiers), where)
    (stage,) = make_plan(layout, A2A, "direct", None, matrix).stages
    assert link_loads_of(stage, tiers) == pytest.approx({k: float(v) for k, v in expected.items()})


def test_a_ring_is_as_slow_as_its_worst_link() -> None:
    """Places 0 and 1 both send to 2: the link from 1 to 2 carries both."""
    matrix = [[0, 0, 4_000, 0], [0, 0, 6_000, 0], [0, 0, 0, 0], [2_000, 0, 0, 0]]
    # From 0 to 2 are two hops either way: half each way around.
    assert time_of(matrix, ring(4, 1.0)) == 6_000 + 2_000
    assert time_of(matrix, ring(4, 1.0, wrap=False)) == 6_000 + 4_000


def test_a_full_mesh_has_a_link_for_every_pair() -> None:
    matrix = [[0, 9_000, 1_000], [0, 0, 2_000], [3_000, 0, 0]]
    assert time_of(matrix, mesh(3, 2.0)) == 9_000 / 1.0  # of two links of 1 GB/s each


SHAPES = [
    [Tier(size=8, bandwidth_gb_s=10)],
    [Tier(size=4, bandwidth_gb_s=10), Tier(size=2, bandwidth_gb_s=3, oversubscription=2)],
    [Tier(size=2, bandwidth_gb_s=10), Tier(size=4, bandwidth_gb_s=3, ranks_per_nic=2)],
    [mesh(8, 10)],
    [ring(8, 10)],
    [ring(2, 10), ring(4, 10, wrap=False)],
    [ring(4, 10), Tier(size=2, bandwidth_gb_s=3)],
    [Tier(size=2, bandwidth_gb_s=10), mesh(4, 3)],
]


#: Relayed all-to-alls need switches or meshes.
RELAYING = [s for s in SHAPES if all(tier.topology != "ring" for tier in s)]


@pytest.mark.parametrize(
    ("algorithm", "tiers"),
    [*(("direct", s) for s in SHAPES), *(("hierarchical", s) for s in RELAYING)],
)
def test_equal_parts_given_one_by_one_cost_what_equal_parts_cost(
    algorithm: str, tiers: list[Tier]
) -> None:
    shape = shape_of(tiers)
    layout = Layout(shape, grid(*(tier.size for tier in tiers)))
    equal = make_plan(layout, A2A, algorithm, None)  # type: ignore[arg-type]
    given_ = make_plan(layout, A2A, algorithm, None, np.full((8, 8), 1 / 8))  # type: ignore[arg-type]
    assert len(equal.stages) == len(given_.stages)
    for one, other in zip(equal.stages, given_.stages, strict=True):
        ports, amounts = per_port(one.rows)
        again, same = per_port(other.rows)
        assert ports.tolist() == again.tolist()
        assert amounts == pytest.approx(same)
        assert one.wire == pytest.approx(other.wire)
        assert one.messages.tolist() == other.messages.tolist()


def test_relayed_parts_go_to_the_like_in_the_own_domain_first() -> None:
    """Two domains of two. Rank 0 has 6 kB for rank 3 only: 1 takes it, and sends it over."""
    matrix = [[0, 0, 0, 6_000], [0, 0, 0, 2_000], [0, 0, 0, 0], [0, 0, 0, 0]]
    up, out = Tier(size=2, bandwidth_gb_s=10), Tier(size=2, bandwidth_gb_s=1)
    relayed = time_of(matrix, up, out, algorithms={"all-to-all": "hierarchical"})
    assert relayed == 6_000 / 10 + 8_000 / 1
    # Straight, rank 3 is the bottleneck as well, but nothing goes over scale-up.
    assert time_of(matrix, up, out) == 8_000


def test_parts_that_find_nobody_on_the_way_are_sent_straight() -> None:
    """Three ranks in domains of two: rank 2 has no neighbour to relay for."""
    matrix = [[0, 1_000, 2_000], [3_000, 0, 4_000], [5_000, 0, 0]]
    tiers = [Tier(size=2, bandwidth_gb_s=10), Tier(size=2, bandwidth_gb_s=1)]
    graph = job_of(matrix)
    network = Network(name="t", tiers=tiers, algorithms={"all-to-all": "hierarchical"})
    assert simulate(graph, network=network).step_ns == 6_000


# --- beside other transfers -------------------------------------------------------------------


def test_only_the_ports_that_parts_go_through_are_shared() -> None:
    """Rank 2 sends 8 kB to 3 while 0 and 1 exchange 8 kB each: they never meet, or all do."""
    alone = [[0] * 4, [0] * 4, [0, 0, 0, 8_000], [0] * 4]
    tier = Tier(size=4, bandwidth_gb_s=1)
    assert step_of(job_of(alone, beside=8_000), tier) == 8_000
    meeting = [[0, 0, 8_000, 0], [0] * 4, [0] * 4, [0] * 4]
    assert step_of(job_of(meeting, beside=8_000), tier) == 16_000
    # A part of 2 kB beside 8: at half rate for 4 us, then the other goes on alone for 6.
    short = [[0, 0, 2_000, 0], [0] * 4, [0] * 4, [0] * 4]
    assert step_of(job_of(short, beside=8_000), tier) == 10_000


SPEEDS = (
    ((30.0, 1_000.0, 2_000.0), (4.0, 5_000.0, 2_000.0)),
    ((300.0, 500.0, 1_500.0), (25.0, 3_000.0, 1_500.0)),
    ((10.0, 2_000.0, 2_000.0), (1.0, 8_000.0, 2_000.0)),
)


@pytest.mark.parametrize("meet", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_experts_are_predicted_on_other_networks_to_the_microsecond(
    seed: int, meet: bool, tmp_path: Path
) -> None:
    program = expert_program(seed, meet=meet)
    case = make_case(program, tmp_path, record="full", speeds=SPEEDS)
    assert any(run.shares_ports for run in case.runs) == meet
    assert max(abs(e) for e in case.errors_ns()) <= 1_000
    without = case.graph.with_(split=np.full(case.graph.num_nodes, -1, np.int32))
    network = case.networks[2]
    assert (
        simulate(without, network=network).step_ns != simulate(case.graph, network=network).step_ns
    )


# --- in graphs and traces ---------------------------------------------------------------------


def test_parts_survive_chakra_files(tmp_path: Path) -> None:
    matrix = [[0, 9_000, 1_000], [0, 0, 2_000], [3_000, 0, 0]]
    graph = job_of(matrix)
    write_et(graph, tmp_path)
    back = read_et(tmp_path)
    assert [back.split_of(int(n)) for n in collect_instances(back).node] == [
        tuple(row) for row in matrix
    ]
    tier = Tier(size=3, bandwidth_gb_s=1)
    assert step_of(back, tier) == step_of(graph, tier) == 10_000


@pytest.mark.parametrize("parts", [(1_000, 2_000), (1_000, 2_000, 4_000), (-1, 3_001, 0)])
def test_parts_that_are_not_those_of_the_operation_are_refused(parts: tuple[int, ...]) -> None:
    graph = job_of([[0, 1_000, 2_000], [0, 0, 0], [0, 0, 0]])
    with pytest.raises(GraphError, match="parts"):
        validate(graph.with_(splits=(parts,) * len(graph.splits)))


def write_job(folder: Path, splits: Sequence[object], elements: list[int]) -> None:
    for rank, (split, count) in enumerate(zip(splits, elements, strict=True)):
        file = KinetoFile(rank, len(splits))
        file.step(3, 0, 1_000)
        meta = comm(
            "all_to_allv",
            count,
            "0",
            list(range(len(splits))),
            "BFloat16",
            **{"In split size": split, "Out split size": split},
        )
        file.kernel("ncclDevKernel_SendRecv", 100, 300, 40, launched=50, **meta)
        file.write(folder)


def parts_of(graph: ExecutionGraph) -> list[tuple[int, ...] | None]:
    return [graph.split_of(int(node)) for node in collect_instances(graph).node]


def test_parts_are_read_from_the_metadata_of_kernels(tmp_path: Path) -> None:
    """Splits count rows; here a row has 4 elements of 2 bytes."""
    write_job(tmp_path, ["[3, 1]", "[0, 2]"], [16, 8])
    graph = convert_kineto(tmp_path, processes=1)
    assert parts_of(graph) == [(24, 8), (0, 16)]


def test_without_parts_or_with_equal_ones_they_are_equal(tmp_path: Path) -> None:
    write_job(tmp_path, ["[]", "[2, 2]"], [16, 16])
    assert parts_of(convert_kineto(tmp_path, processes=1)) == [None, None]


@pytest.mark.parametrize(
    "split",
    ["[-3, 1]", "[null, 1]", f"[{2**62}, {2**62}]", "[3.5, 1]", [-3, 1], [None, 1], [2**62, 1]],
)
def test_parts_that_no_all_to_all_has_are_ignored_and_named(
    tmp_path: Path, split: str | list[int | None]
) -> None:
    write_job(tmp_path, [split, "[0, 2]"], [16, 8])
    graph = convert_kineto(tmp_path, processes=1)
    assert parts_of(graph) == [None, (0, 16)]
    told = [text for text in graph.coverage.warnings if "are damaged" in text]
    assert len(told) == 1
    assert told[0].startswith("rank 0: the parts of all-to-all ncclDevKernel_SendRecv")


def test_a_list_of_parts_that_is_cut_short_is_reported(tmp_path: Path) -> None:
    write_job(tmp_path, ["[3, 1]", "[1, ...]"], [16, 8])
    graph = convert_kineto(tmp_path, processes=1)
    assert parts_of(graph) == [(24, 8), None]
    assert any("cut short" in text for text in graph.coverage.assumed)
