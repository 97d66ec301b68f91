"""The parity engine against the cycles that ASTRA-sim's analytical backends print."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.base.errors import GraphError, NetworkError, WhatIfError
from whatif.simulator.astra.experiment import Backend, Experiment
from whatif.simulator.astra.files import (
    NetworkFile,
    SystemFile,
    read_memory,
    read_network,
    read_system,
)
from whatif.simulator.astra.names import CommType, NodeType
from whatif.simulator.astra.parity import run
from whatif.simulator.astra.workload import Builder, read_workload

from .astra_cases import experiment_of, read_cases, workload_of

if TYPE_CHECKING:
    from pathlib import Path

    from whatif.simulator.astra.parity import Outcome
    from whatif.simulator.astra.workload import Workload

    from .astra_cases import Case

COMP, SEND, RECV, COLL = (
    NodeType.COMP_NODE,
    NodeType.COMM_SEND_NODE,
    NodeType.COMM_RECV_NODE,
    NodeType.COMM_COLL_NODE,
)


# Reference cases ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["examples", "public_unaware_1", "large_unaware_1", "public_aware_1"]
)
def test_every_reference_case_gives_the_cycles_of_astra_sim(name: str, shared_data: Path) -> None:
    cases = read_cases(shared_data / "astra" / f"{name}.jsonl")
    assert len(cases) >= 40
    wrong = {}
    for case in cases:
        outcome = run(workload_of(case), experiment_of(case))
        if (outcome.finish, outcome.exposed) != (case["finish"], case["exposed"]):
            wrong[case["name"]] = outcome.finish
    assert not wrong


def test_messages_give_the_same_as_recurrences_on_reference_cases(shared_data: Path) -> None:
    cases = read_cases(shared_data / "astra" / "public_unaware_1.jsonl")
    ties = [case for case in cases if case["tie_sensitive"]]
    assert len(ties) >= 10
    for case in [*ties, *random.Random(4).sample(cases, 100)]:
        outcome = run(workload_of(case), experiment_of(case), recurrences=False)
        assert (outcome.finish, outcome.exposed) == (case["finish"], case["exposed"]), case["name"]


#: Words of the error, by what the case expects or by its name.
REASONS = {
    "zero byte message": "0 bytes: ASTRA-sim aborts",
    "scheduled at t=0": "0 ns at time 0",
    "heap corruption": "",
    "endpoint-delay-0-at-t0": "0 ns at time 0",
    "splits-missing": "preferred-dataset-splits is 0",
    "active-chunks-0": "active-chunks-per-dimension is 0",
    "collective-optimization-missing": "lacks collective-optimization",
    "algorithm-missing": "no algorithm for ALL_TO_ALL",
    "algorithm-list-too-long": "lists 2 algorithms for 1 dimensions",
    "algorithm-unknown": "knows no algorithm",
    "direct0": "direct0",
    "direct-window-negative": "direct-3",
    "npus-count-1": "at least 2 ranks",
    "five-dims": "reads past the end of its mask",
    "mask-short": "involved_dim has 1 values for 3",
    "mask-none": "excludes every dimension",
    "all-gather-smaller-than-splits": "for ever",
    "all-gather-size-0": "0 bytes never completes",
    "halving-allreduce-chunk-below-2n": "0 bytes: ASTRA-sim aborts",
    "halving-all-to-all": "halvingDoubling has no all-to-all",
    "halving-": "halvingDoubling",
    "tree-subgroup": "doubleBinaryTree in communicator 1",
    "tree-n": "doubleBinaryTree over [36] ranks",
    "group-of-one": "one member",
    "group-id-0": "positive",
    "group-unknown": "communicator 9 is not in the file",
    "group-without-file": "communicator 1 is not in the file",
    "group-not-member": "of which it is no member",
    "group-duplicate-rank": "rank [0-9] is given twice",
    "group-rank-out-of-range": "the network does not have",
    "world-after-uneven-groups": "has created 4 chunks before it and rank 2 0",
    "order-mismatch": "in different order",
    "type-mismatch": "it issues REDUCE_SCATTER .* and rank 1 ALL_REDUCE",
    "size-mismatch": "ALL_REDUCE of .* and rank 1 ALL_REDUCE of",
    "missing-participant": "waits for rank 0, which has only 0 collectives",
    "allreduce-3d-localBWAware": "ASTRA-sim deadlocks here",
    "empty-et": "without nodes",
    "dep-missing": "depends on node",
    "cycle-all": "in cycles",
    "metadata-node": "METADATA_NODE",
    "invalid-then-comp": "INVALID_NODE before it completes unseen",
    "invalid-only": "statistics",
    "cpu-comp-then-p2p": "statistics",
    "cpu-coll": "is_cpu_op",
    "coll-": "comm_type [0-9] is not among",
    "p2p-size-mismatch": "0 sends to it of",
    "p2p-tag-mismatch": "0 sends to it of",
    "p2p-to-self": "is its own rank",
    "p2p-bad-rank": "a rank that the network does not have",
    "p2p-size-0": "a message of 0 bytes",
    "p2p-zero-delay-at-t0": "0 ns at time 0",
    "p2p-src-attr-wrong": "is not its own rank",
    "roofline-no-attrs": "lacks the attribute num_ops",
    "roofline-0ns-at-t0": "0 ns at time 0",
    "mem-without-memory": "NO_MEMORY_EXPANSION",
    "track-local-mem": "track-local-mem",
    "shared-bus": "shared memory bus is not modelled",
    "aware-ring-2": "a ring of 2 ranks",
    "aware-2d": "one only",
    "never completes": "deadlocks here|circle|different order|chunks before|sends to it|for rank",
}

#: Cases that ASTRA-sim finishes, but not as anybody meant.
WARNED = {
    "local-mem-bw-missing": "divides by it",
    "algorithm-list-too-short": "do not take part",
    "cycle-part": "silently drops",
    "self-dep": "silently drops",
    "duplicate-id": "given twice",
    "roofline-zero-ops": "no operations",
    "mem-per-node": "memory that it has freed",
    "direct-allreduce-32-heap": "memory that it has freed",
    "world-195": "memory that it has freed",
}


def expected_cycles(case: Case) -> tuple[list[int], list[int]] | None:
    """Cycles that an engine must give; None where it must refuse."""
    if "model_finish" in case:
        return case["model_finish"], case["model_exposed"]
    outcome = case["outcome"]
    if outcome["exit"] == "exit 0" and outcome["all_ranks_finished"]:
        return case["finish"], case["exposed"]
    return None


def test_what_astra_sim_cannot_run_is_refused_with_the_reason(shared_data: Path) -> None:
    cases = read_cases(shared_data / "astra" / "errors.jsonl")
    refused = 0
    for case in cases:
        cycles = expected_cycles(case)
        if case["name"] == "direct-allreduce-32-heap":
            continue  # its cycles are known from the rules only; see WARNED
        if case["name"] != "shared-bus" and cycles is not None:
            outcome = run(workload_of(case), experiment_of(case))
            assert (outcome.finish, outcome.exposed) == cycles, case["name"]
            continue
        with pytest.raises(WhatIfError) as caught:
            run(workload_of(case), experiment_of(case))
        refused += 1
        keys = [key for key in REASONS if key in case["name"]] or [
            key for key in REASONS if key in case["expect"]
        ]
        assert keys, case["name"]
        assert re.search(REASONS[max(keys, key=len)], str(caught.value)), str(caught.value)
        if isinstance(caught.value, GraphError):
            assert caught.value.rank is not None
    assert refused > 100


def test_what_astra_sim_accepts_silently_and_wrongly_is_warned_of(shared_data: Path) -> None:
    cases = {case["name"]: case for case in read_cases(shared_data / "astra" / "errors.jsonl")}
    for name, words in WARNED.items():
        outcome = run(workload_of(cases[name]), experiment_of(cases[name]))
        assert any(words in warning for warning in outcome.warnings), name


# Trace files of others ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ranks", "cycles"),
    [
        ("all_gather", 4, 64744),
        ("all_gather", 8, 151016),
        ("all_reduce", 4, 43000),
        ("all_reduce", 8, 64440),
        ("reduce_scatter", 4, 22240),
        ("reduce_scatter", 8, 33080),
        ("all_to_all", 4, 41560),
        ("all_to_all", 8, 125480),
    ],
)
def test_public_micro_traces(name: str, ranks: int, cycles: int, shared_data: Path) -> None:
    settings = shared_data / "chakra" / "astrasim_cfg"
    experiment = Experiment(
        network=read_network(settings / f"Ring_{ranks}npus.yml"),
        system=read_system(settings / "Ring_4chunks.json"),
        memory=read_memory(settings / "no_memory_expansion.json"),
    )
    traces = shared_data / "chakra" / "astrasim_micro" / f"{name}_{ranks}" / name
    assert run(read_workload(traces), experiment).finish == [cycles] * ranks


def test_a_public_trace_on_the_congestion_aware_backend(shared_data: Path) -> None:
    settings = shared_data / "chakra" / "astrasim_cfg"
    experiment = Experiment(
        network=read_network(settings / "HGX-H100-validated.yml"),
        system=read_system(settings / "HGX-H100-validated.json"),
        backend=Backend.AWARE,
    )
    traces = shared_data / "chakra" / "astrasim_micro" / "all_reduce_8"
    assert run(read_workload(traces), experiment).finish == [57426] * 8


def test_a_real_trace_that_others_converted(shared_data: Path) -> None:
    place = shared_data / "chakra" / "ericding_real_2gpu"
    experiment = Experiment(
        network=read_network(place / "network.yml"),
        system=read_system(place / "system.json"),
        groups={1: (0, 1), 2: (0, 1)},
    )
    outcome = run(read_workload(place), experiment)
    assert outcome.finish == [105775266, 105836266]
    assert outcome.exposed == [1634266, 1778266]


# By hand --------------------------------------------------------------------------------------

Row = tuple[int, NodeType, list[int], dict[str, Any]]


def job(*ranks: list[Row]) -> Workload:
    """Ranks of (id, type, dependencies, attributes); microseconds under `us`."""
    builder = Builder("by hand")
    for rows in ranks:
        builder.add_rank(
            (ident, kind, f"n{ident}", more.get("us", 0), deps, more)
            for ident, kind, deps, more in rows
        )
    return builder.build()


def setting(
    ranks: list[int],
    topology: str = "Ring",
    *,
    algorithm: list[str] | None = None,
    latency: float = 500.0,
    groups: dict[int, tuple[int, ...]] | None = None,
    backend: Backend = Backend.UNAWARE,
    **system: Any,
) -> Experiment:
    """100 GiB/s everywhere, one chunk at a time."""
    names = algorithm or ["ring"] * len(ranks)
    values = {
        "preferred_dataset_splits": 1,
        "local_mem_bw": 2000.0,
        "collective_optimization": "localBWAware",
        "all_reduce_implementation": names,
        "all_gather_implementation": names,
        "reduce_scatter_implementation": names,
        "all_to_all_implementation": names,
    }
    return Experiment(
        network=NetworkFile(
            topology=[topology] * len(ranks),
            npus_count=ranks,
            bandwidth=[100.0] * len(ranks),
            latency=[latency] * len(ranks),
        ),
        system=SystemFile(**(values | system)),
        groups=groups or {},
        backend=backend,
    )


def collective(kind: CommType, size: int, **more: Any) -> dict[str, Any]:
    return {"comm_type": int(kind), "comm_size": size, **more}


def everywhere(kind: CommType, size: int, ranks: int) -> Workload:
    return job(*[[(0, COLL, [], collective(kind, size))] for _ in range(ranks)])


MIB = 1 << 20


@pytest.mark.parametrize("recurrences", [True, False])
@pytest.mark.parametrize(
    ("kind", "size", "cycles"),
    [
        # A message of 256 KiB takes 500 + 262144 / 107.37 = 2941 ns, its reduction 3 * 131 = 393.
        (CommType.ALL_REDUCE, MIB, 10 + 6 * (2941 + 10) + 3 * 393),
        (CommType.REDUCE_SCATTER, MIB, 10 + 3 * (2941 + 10 + 393)),
        (CommType.ALL_GATHER, MIB // 4, 10 + 3 * (2941 + 10)),
        (CommType.ALL_TO_ALL, MIB, 10 + 6 * (2941 + 10)),
    ],
)
def test_a_ring_of_four(kind: CommType, size: int, cycles: int, recurrences: bool) -> None:
    outcome = run(everywhere(kind, size, 4), setting([4]), recurrences=recurrences)
    assert outcome.finish == outcome.exposed == [cycles] * 4


@pytest.mark.parametrize("recurrences", [True, False])
def test_the_double_binary_tree(recurrences: bool) -> None:
    """1 MiB over two links of a switch: 2 * 500 + 9765.6 = 10765; reduction 3 * 524 = 1572."""
    experiment = setting([4], "Switch", algorithm=["doubleBinaryTree"])
    outcome = run(everywhere(CommType.ALL_REDUCE, MIB, 4), experiment, recurrences=recurrences)
    root = 10 + 10765 + 1582 + 10765 + 1582
    inner = root + 10765 + 1582
    assert outcome.finish == [inner + 10765 + 10, inner, inner + 10775, root]


@pytest.mark.parametrize("recurrences", [True, False])
def test_messages_that_cross_two_dimensions_pay_for_the_lowest_only(recurrences: bool) -> None:
    """ASTRA-sim's best known surprise."""
    network = NetworkFile(
        topology=["Ring", "Switch"],
        npus_count=[4, 2],
        bandwidth=[100.0, 25.0],
        latency=[500.0, 1000.0],
    )
    experiment = Experiment(network=network, system=setting([4]).system)
    ranks: list[list[Row]] = [[(0, COMP, [], {"us": 1})] for _ in range(8)]
    for tag, dst in enumerate((4, 5, 6)):
        ranks[0].append(
            (tag + 1, SEND, [tag], {"comm_dst": dst, "comm_size": 1000, "comm_tag": tag})
        )
        ranks[dst] = [(0, RECV, [], {"comm_src": 0, "comm_size": 1000, "comm_tag": tag})]
    outcome = run(job(*ranks), experiment, recurrences=recurrences)
    assert np.diff(outcome.completed_ns[:4]).tolist() == [2037, 509, 1009]


def test_congestion_aware_links_carry_one_message_at_a_time() -> None:
    """107374 bytes take 999.998 ns on a link, and 500 more to be there."""
    message = {"comm_size": 107374, "comm_tag": 0}
    workload = job(
        [(0, SEND, [], message | {"comm_dst": 2})],
        [(0, SEND, [], message | {"comm_dst": 2})],
        [
            (0, RECV, [], message | {"comm_src": 0}),
            (1, RECV, [], message | {"comm_src": 1}),
        ],
        [(0, COMP, [], {"us": 1})],
    )
    outcome = run(workload, setting([4], backend=Backend.AWARE))
    assert outcome.finish == [2998, 1499, 2998, 1000]


def test_a_rank_has_one_communication_in_progress_and_starts_the_lowest_id() -> None:
    """Two independent all-reduces take as long as one after the other."""
    one = everywhere(CommType.ALL_REDUCE, MIB, 4)
    rows: list[Row] = [(i, COLL, [], collective(CommType.ALL_REDUCE, MIB)) for i in range(2)]
    two = run(job(*[rows] * 4), setting([4]))
    assert two.finish == [2 * cycles for cycles in run(one, setting([4])).finish]
    assert (two.issued_ns[::2] == 0).all()


def test_zero_microseconds_are_one_nanosecond_and_a_broadcast_is_a_timer() -> None:
    rows: list[Row] = [
        (0, COMP, [], {"us": 0}),
        (1, COLL, [0], collective(CommType.BROADCAST, 1 << 30, us=3)),
        (2, COMP, [1], {"us": 0}),
    ]
    assert run(job(rows, rows), setting([2])).finish == [3002, 3002]


def test_sizes_of_attributes_do_not_matter_but_fractions_are_refused() -> None:
    rows: list[Row] = [(0, COLL, [], collective(CommType.ALL_REDUCE, MIB, is_cpu_op=False))]
    assert run(job(rows, rows), setting([2])).finish
    with pytest.raises(GraphError, match=r"comm_size is 0\.5"):
        job([(0, COLL, [], {"comm_type": 0, "comm_size": 0.5})])


def test_too_many_ranks_for_the_network_are_refused() -> None:
    with pytest.raises(NetworkError, match="has 4 ranks and the trace 2"):
        run(everywhere(CommType.ALL_REDUCE, MIB, 2), setting([4]))


def test_an_error_names_rank_node_and_rule() -> None:
    rows: list[Row] = [(0, COMP, [], {"us": 1}), (7, COLL, [0], {"comm_type": 9, "comm_size": 1})]
    with pytest.raises(GraphError, match="comm_type 9 is not among") as caught:
        run(job([(0, COMP, [], {"us": 1})], rows), setting([2]))
    assert caught.value.rank == 1
    assert caught.value.place == "node 7 (n7, COMM_COLL_NODE)"


def test_collectives_that_differ_but_whose_messages_agree_are_flagged() -> None:
    """An all-gather of s and a ring reduce-scatter of n * s send the same messages."""
    gather: list[Row] = [(0, COLL, [], collective(CommType.ALL_GATHER, MIB))]
    scatter: list[Row] = [(0, COLL, [], collective(CommType.REDUCE_SCATTER, 2 * MIB))]
    outcome = run(job(gather, scatter), setting([2]))
    assert any("different collectives in the same turn" in text for text in outcome.warnings)


def test_computations_without_operations_overflow_the_clock_the_second_time() -> None:
    """ASTRA-sim takes each for 2^63 ns, of which two do not fit into its 64 bits."""
    empty = {"num_ops": 0, "tensor_size": 8}
    other: list[Row] = [(0, COMP, [], {"num_ops": 1000, "tensor_size": 1})]
    experiment = setting([2], roofline_enabled=True, peak_perf=1.0)
    once = run(job([(0, COMP, [], empty)], other), experiment)
    assert once.finish == [1 << 63, 1]
    assert "no operations" in once.warnings[0]
    with pytest.raises(GraphError, match="64 bits, overflow"):
        run(job([(0, COMP, [], empty), (1, COMP, [0], empty)], other), experiment)


def test_what_is_longer_than_the_clock_is_refused_not_wrapped() -> None:
    """Neither one message, nor the sum of many nodes that are short enough each."""
    with pytest.raises(GraphError, match="takes longer than the engine counts") as caught:
        run(everywhere(CommType.ALL_REDUCE, 1 << 60, 2), setting([2]))
    assert (caught.value.rank, caught.value.place) == (0, "node 0 (n0, COMM_COLL_NODE)")
    longest = 10**12
    rows: list[Row] = [(i, COMP, [i - 1] if i else [], {"us": longest}) for i in range(10_000)]
    few = run(job(rows[:2000], rows[:1]), setting([2]))
    assert few.finish == [2000 * longest * 1000, longest * 1000]
    for count in (2500, 5000, 10_000):
        with pytest.raises(GraphError, match="64 bits, overflow"):
            run(job(rows[:count], rows[:1]), setting([2]))
    ops: list[Row] = [(0, COMP, [], {"num_ops": 1 << 61, "tensor_size": 1})]
    with pytest.raises(GraphError, match="longer by the roofline") as caught:
        run(job(ops, ops), setting([2], roofline_enabled=True, peak_perf=1e-6))
    assert caught.value.place == "node 0 (n0, COMP_NODE)"


@pytest.mark.parametrize("recurrences", [True, False])
def test_the_slowest_network_that_is_taken_does_not_wrap(recurrences: bool) -> None:
    """Six messages of 1e12 ns each and 0.2 ms on the wire."""
    experiment = setting([4], latency=1e12)
    outcome = run(everywhere(CommType.ALL_REDUCE, MIB, 4), experiment, recurrences=recurrences)
    wire = 262144 * 1000000000 // (100 * 1073741824)
    assert outcome.finish == [10 + 6 * (10**12 + wire + 10) + 3 * 393] * 4


def test_tables_that_no_memory_holds_are_refused() -> None:
    experiment = setting([64], preferred_dataset_splits=1_000_000)
    with pytest.raises(NetworkError, match="more than 20,000,000 in all") as caught:
        run(everywhere(CommType.ALL_REDUCE, 1 << 30, 64), experiment)
    assert caught.value.place == "preferred-dataset-splits"


def test_what_a_cycle_keeps_from_running_is_warned_of_and_not_checked() -> None:
    lost = {"comm_type": 9}
    rows: list[Row] = [(0, COMP, [], {"us": 1}), (1, COLL, [2], lost), (2, COMP, [1], {})]
    outcome = run(job(rows, rows), setting([2]))
    assert outcome.finish == [1000, 1000]
    assert "4 nodes wait for themselves" in outcome.warnings[0]
    assert (outcome.issued_ns[[1, 2, 4, 5]] == -1).all()


# Recurrences and messages ---------------------------------------------------------------------

KINDS = [
    CommType.ALL_REDUCE,
    CommType.ALL_GATHER,
    CommType.REDUCE_SCATTER,
    CommType.ALL_TO_ALL,
]
SHAPES = [[2], [3], [4], [8], [2, 2], [3, 2], [4, 2], [2, 2, 2]]


def shift(rows: list[list[Row]], by: int, size: int, tag: int) -> None:
    """Let every rank send to another, and compute when it has received."""
    for rank, mine in enumerate(rows):
        after = [len(mine) - 1] if mine else []
        message = {"comm_size": size, "comm_tag": tag}
        dst, src = (rank + by) % len(rows), (rank - by) % len(rows)
        mine.append((len(mine), SEND, after, message | {"comm_dst": dst}))
        mine.append((len(mine), RECV, after, message | {"comm_src": src}))
        mine.append((len(mine), COMP, [len(mine) - 1], {"us": 1}))


@st.composite
def random_jobs(draw: st.DrawFn) -> tuple[Workload, Experiment]:
    """Ranks that compute for different times between collectives of the world and of groups."""
    shape = draw(st.sampled_from(SHAPES))
    names = [
        draw(
            st.sampled_from(["ring", "direct", *(["halvingDoubling"] if n & (n - 1) == 0 else [])])
        )
        for n in shape
    ]
    ranks = int(np.prod(shape))
    cut = draw(st.integers(1, ranks - 1))
    order = draw(st.permutations(range(ranks)))
    groups = {
        number: tuple(part)
        for number, part in ((1, order[:cut]), (2, order[cut:]))
        if len(part) > 1
    }
    experiment = setting(
        shape,
        draw(st.sampled_from(["Ring", "Switch", "FullyConnected"])),
        algorithm=names,
        latency=draw(st.sampled_from([0.0, 0.5, 500.0])),
        groups=groups,
        preferred_dataset_splits=draw(st.integers(1, 5)),
        active_chunks_per_dimension=draw(st.integers(1, 3)),
        local_mem_bw=draw(st.sampled_from([1.0, 2000.0])),
        collective_optimization=draw(st.sampled_from(["baseline", "localBWAware"])),
        all_to_all_implementation=["ring"] * len(shape),
    )
    rows: list[list[Row]] = [[] for _ in range(ranks)]
    for turn in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        size = draw(st.integers(5, 5000)) * draw(st.sampled_from([1, 64, 4096]))
        by_group = draw(st.booleans())
        if draw(st.integers(0, 2)) == 0:
            shift(rows, draw(st.integers(1, ranks - 1)), size, turn)
        for rank in range(ranks):
            member = [number for number, members in groups.items() if rank in members]
            if by_group and not member:
                continue
            mine = rows[rank]
            spare = draw(st.integers(0, 3))
            mine.append((len(mine), COMP, [len(mine) - 1] if mine else [], {"us": 1 + spare}))
            name = str(member[0]) if by_group else ""
            mine.append((len(mine), COLL, [len(mine) - 1], collective(kind, size, pg_name=name)))
            if spare == 2:  # beside what follows
                mine.append((len(mine), COMP, [len(mine) - 2], {"us": 7}))
    for mine in rows:
        if not mine:
            mine.append((0, COMP, [], {"us": 1}))
    return job(*rows), experiment


def outcome_or_error(workload: Workload, experiment: Experiment, way: bool) -> Outcome | str:
    try:
        return run(workload, experiment, recurrences=way)
    except WhatIfError as error:
        return str(error)


@settings(max_examples=150, deadline=None)
@given(random_jobs())
def test_recurrences_give_what_messages_give(case: tuple[Workload, Experiment]) -> None:
    fast = outcome_or_error(*case, True)
    slow = outcome_or_error(*case, False)
    if isinstance(fast, str) or isinstance(slow, str):
        assert fast == slow
        return
    assert (fast.finish, fast.exposed) == (slow.finish, slow.exposed)
    assert np.array_equal(fast.issued_ns, slow.issued_ns)
    assert np.array_equal(fast.completed_ns, slow.completed_ns)
