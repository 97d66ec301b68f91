"""The counterfactual oracle: a trace from network A, replayed on B, must give B's own step.

Programs are executed by an independent model on three networks; only the files of the first are
converted. Where the files record what waited for what, the predicted steps must be exact; where
it has to be inferred, close, and the inferred edges are scored against the true ones.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from whatif.converters.kineto.comms import find_comms
from whatif.converters.kineto.convert import convert_kineto
from whatif.converters.kineto.device import add_device
from whatif.converters.kineto.job import read_job
from whatif.converters.kineto.steps import find_windows
from whatif.converters.kineto.streams import add_stream_waits
from whatif.converters.nodes import Names, RankNodes
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import simulate

from .oracle.edges import true_edges
from .oracle.executor import execute
from .oracle.kineto_writer import write_kineto
from .oracle.network import OracleNetwork, OracleTier
from .oracle.programs import (
    hand_over_program,
    host_bound_program,
    host_sync_program,
    overlap_program,
    pipeline_program,
    queue_program,
    random_program,
)

if TYPE_CHECKING:
    from pathlib import Path

    from whatif.graph.columns import DependencyModel, ExecutionGraph

    from .oracle.programs import Profile
    from .oracle.run import Run
    from .oracle.vocabulary import Program

    Speeds = tuple[tuple[float, float, float], tuple[float, float, float]]

DEVICE_PROFILES: tuple[Profile, ...] = ("device", "host_bound", "overlap", "p2p")
SEEDS = range(6)

#: Scale-up and scale-out of three networks: GB/s, latency and base in ns.
SPEEDS = (
    ((100.0, 1_000.0, 2_000.0), (12.0, 5_000.0, 2_000.0)),
    ((300.0, 500.0, 1_500.0), (25.0, 3_000.0, 1_500.0)),
    ((30.0, 2_000.0, 2_000.0), (5.0, 8_000.0, 2_000.0)),
)


@dataclass(frozen=True)
class Case:
    """A program converted from its run on the first network, and its runs on all of them."""

    graph: ExecutionGraph
    runs: list[Run]
    networks: list[Network]

    def errors_ns(self) -> list[float]:
        """Predicted minus true step on each network."""
        return [
            simulate(self.graph, network=network).step_ns - run.median_step_ns
            for run, network in zip(self.runs, self.networks, strict=True)
        ]

    def errors_pct(self) -> list[float]:
        return [
            100 * error / run.median_step_ns
            for error, run in zip(self.errors_ns(), self.runs, strict=True)
        ]


def networks_for(
    program: Program, all_speeds: tuple[Speeds, ...] = SPEEDS
) -> list[tuple[OracleNetwork, Network]]:
    ranks, domain = len(program.ranks), program.domain_size
    sizes = [domain] if ranks == domain else [domain, ranks // domain]
    out = []
    for speeds in all_speeds:
        tiers = list(zip(sizes, speeds, strict=False))
        out.append(
            (
                OracleNetwork(
                    tuple(
                        OracleTier(n, bandwidth_gb_s=b, latency_ns=a, base_ns=base)
                        for n, (b, a, base) in tiers
                    )
                ),
                Network(
                    name="test",
                    tiers=[
                        Tier(size=n, bandwidth_gb_s=b, latency_ns=a, base_ns=base)
                        for n, (b, a, base) in tiers
                    ],
                ),
            )
        )
    return out


def make_case(
    program: Program,
    folder: Path,
    *,
    record: str,
    model: DependencyModel | None = None,
    speeds: tuple[Speeds, ...] = SPEEDS,
    contention: bool = True,
    **how: object,
) -> Case:
    pairs = networks_for(program, speeds)
    runs = [execute(program, oracle, contention=contention) for oracle, _ in pairs]
    write_kineto(runs[0], folder, record=record, **how)  # type: ignore[arg-type]
    graph = convert_kineto(folder, model=model, processes=1)
    return Case(graph, runs, [network for _, network in pairs])


@pytest.mark.parametrize("profile", DEVICE_PROFILES)
@pytest.mark.parametrize("seed", SEEDS)
def test_recorded_synchronisation_predicts_other_networks_to_the_microsecond(
    profile: Profile, seed: int, tmp_path: Path
) -> None:
    case = make_case(random_program(seed, profile=profile), tmp_path, record="full")
    assert max(abs(e) for e in case.errors_ns()) <= 1_000
    measured = simulate(case.graph, measured=True)
    assert measured.step_ns == pytest.approx(case.runs[0].median_step_ns, abs=0.51)


@pytest.mark.parametrize("profile", DEVICE_PROFILES)
@pytest.mark.parametrize("seed", SEEDS)
def test_inferred_synchronisation_predicts_other_networks_within_two_percent(
    profile: Profile, seed: int, tmp_path: Path
) -> None:
    program = random_program(seed + 100, profile=profile)
    case = make_case(program, tmp_path, record="runtime", flows=seed % 2 == 0)
    assert max(abs(e) for e in case.errors_pct()) <= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_cpu_jobs_predict_other_networks_within_two_percent(seed: int, tmp_path: Path) -> None:
    case = make_case(random_program(seed, profile="cpu"), tmp_path, record="runtime")
    assert max(abs(e) for e in case.errors_pct()) <= 2


def test_whole_microseconds_of_old_traces_are_enough(tmp_path: Path) -> None:
    program = random_program(1, profile="overlap")
    case = make_case(program, tmp_path, record="runtime", time_format="us", skew=False)
    assert max(abs(e) for e in case.errors_pct()) <= 2


def score_stream_edges(run: Run, folder: Path) -> tuple[int, int, int, int]:
    """Right and all inferred edges, found and all true ones.

    An inferred edge is right if the truth implies it; a true one is found if the inferred ones
    imply it.
    """
    write_kineto(run, folder, record="runtime")
    inferred: set[tuple[int, int, int]] = set()
    for trace in read_job(folder, processes=1):
        nodes = RankNodes(Names())
        comms = find_comms(trace, len(run.program.ranks), device_job=True)
        device = add_device(nodes, trace, comms, find_windows(trace))
        add_stream_waits(nodes, trace, comms, device)
        assert trace.rank is not None
        for node, event in device.event_of.items():
            for on, _, _ in nodes.deps[node]:
                if nodes.lane[on] != nodes.lane[node]:
                    source = device.event_of[on]
                    inferred.add(
                        (trace.rank, int(trace.correlation[source]), int(trace.correlation[event]))
                    )
    truth = {(e.rank, e.producer, e.consumer) for e in true_edges(run).streams}
    right = found = 0
    for rank, nodes_ in enumerate(run.device):
        given: dict[int, list[int]] = defaultdict(list)
        for r, producer, consumer in inferred:
            if r == rank:
                given[consumer].append(producer)
        true_past: dict[int, set[int]] = {}
        own_past: dict[int, set[int]] = {}
        for node in nodes_:
            previous = [node.previous.correlation] if node.previous else []
            me = node.correlation
            before = previous + [n.correlation for n in node.after]
            true_past[me] = {me}.union(*(true_past[b] for b in before))
            own_past[me] = {me}.union(*(own_past[b] for b in previous + given[me]))
        right += sum(p in true_past[c] for r, p, c in inferred if r == rank)
        found += sum(p in own_past[c] for r, p, c in truth if r == rank)
    return right, len(inferred), found, len(truth)


@pytest.mark.parametrize("profile", ["device", "overlap", "p2p"])
def test_inferred_stream_waits_are_mostly_right_and_mostly_all(
    profile: Profile, tmp_path: Path
) -> None:
    totals = [0, 0, 0, 0]
    for seed in range(200, 206):
        program = random_program(seed, profile=profile)
        run = execute(program, networks_for(program)[0][0])
        scores = score_stream_edges(run, tmp_path / str(seed))
        totals = [a + b for a, b in zip(totals, scores, strict=True)]
    right, inferred, found, true = totals
    assert right / inferred >= 0.9
    assert found / true >= 0.9


def test_the_stream_model_is_wrong_on_host_bound_programs_and_the_host_model_right(
    tmp_path: Path,
) -> None:
    """The gaps that the host makes hide what happens between them: only `host` knows it."""
    worst = {"host": 0.0, "stream": 0.0}
    for seed in range(4):
        program = random_program(seed, profile="host_bound")
        for model in ("host", "stream"):
            folder = tmp_path / f"{seed}-{model}"
            case = make_case(program, folder, record="full", model=model)  # type: ignore[arg-type]
            worst[model] = max(worst[model], *(abs(e) for e in case.errors_pct()))
    assert worst["host"] <= 0.01
    assert worst["stream"] >= 1


def test_faster_kernels_do_not_help_a_step_that_the_host_sets(tmp_path: Path) -> None:
    program = host_bound_program()
    run = execute(program, networks_for(program)[0][0])
    write_kineto(run, tmp_path, record="full")
    gain: dict[str, float] = {}
    for model in ("host", "stream"):
        graph = convert_kineto(tmp_path, model=model, processes=1)  # type: ignore[arg-type]
        base = simulate(graph, measured=True).step_ns
        assert base == pytest.approx(run.median_step_ns, rel=1e-6)
        gain[model] = base - simulate(graph, measured=True, compute_scale=0.5).step_ns
    assert gain["host"] == 0
    assert gain["stream"] > 0


@pytest.mark.parametrize(
    "make",
    [
        overlap_program,
        pipeline_program,
        host_sync_program,
        host_bound_program,
        hand_over_program,
        queue_program,
    ],
)
def test_scripted_programs_are_predicted_to_the_microsecond(make: object, tmp_path: Path) -> None:
    case = make_case(make(), tmp_path, record="full")  # type: ignore[operator]
    assert max(abs(e) for e in case.errors_ns()) <= 1_000


def test_skewed_clocks_come_back_to_one(tmp_path: Path) -> None:
    """Offsets of up to 5 ms between hosts are found from the ends of collectives."""
    offsets = []
    for seed in range(8):
        program = random_program(seed, profile="device")
        if len(set(program.clock_offset_ns)) < 2:
            continue
        run = execute(program, networks_for(program)[0][0])
        write_kineto(run, tmp_path / str(seed), record="full", skew=True)
        graph = convert_kineto(tmp_path / str(seed), processes=1)
        first = min(run.begin_ns[0])
        truth = [begin - first for begin in run.begin_ns[0]]
        offsets.append(max(abs(a - b) for a, b in zip(graph.start_offset_ns, truth, strict=True)))
    assert len(offsets) >= 2
    assert statistics.median(offsets) <= 1
