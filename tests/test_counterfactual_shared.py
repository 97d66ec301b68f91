"""The counterfactual oracle with transfers that fight for ports.

As in `test_counterfactual`, but the programs let transfers meet, and the executor has them share
what they use. The trace of network A then holds transfers that others slowed; what must be right
is the step on networks where they meet at other times, and differently.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from whatif.simulator.pricing import price
from whatif.simulator.run import simulate

from .oracle.executor import execute
from .oracle.network import OracleNetwork, OracleTier
from .oracle.programs import Comm, Profile, Program, random_program
from .oracle.spelling import world_group
from .oracle.vocabulary import MAIN, US, HostThread, Kernel, Launch, RankProgram, Step
from .test_counterfactual import SEEDS, make_case, networks_for

if TYPE_CHECKING:
    from pathlib import Path

#: Scale-up and scale-out of three networks, slow enough that transfers meet.
SPEEDS = (
    ((30.0, 1_000.0, 2_000.0), (4.0, 5_000.0, 2_000.0)),
    ((300.0, 500.0, 1_500.0), (25.0, 3_000.0, 1_500.0)),
    ((10.0, 2_000.0, 2_000.0), (1.0, 8_000.0, 2_000.0)),
)

#: Programs whose transfers meet on one of these networks at least.
MEETING: list[tuple[Profile, int]] = [
    *(("device", seed) for seed in (4, 6, 10, 16, 21)),
    *(("overlap", seed) for seed in (1, 3, 9, 11, 14, 16, 20)),
    *(("p2p", seed) for seed in (2, 5, 6, 14, 20)),
    ("host_bound", 8),
]


@pytest.mark.parametrize(("profile", "seed"), MEETING)
def test_recorded_synchronisation_predicts_other_networks_to_the_microsecond(
    profile: Profile, seed: int, tmp_path: Path
) -> None:
    program = random_program(seed, profile=profile, shared_ports=True)
    case = make_case(program, tmp_path, record="full", speeds=SPEEDS)
    assert any(run.shares_ports for run in case.runs)
    assert max(abs(e) for e in case.errors_ns()) <= 1_000
    measured = simulate(case.graph, measured=True)
    assert measured.step_ns == pytest.approx(case.runs[0].median_step_ns, abs=0.51)


@pytest.mark.parametrize(("profile", "seed"), [("overlap", 3), ("overlap", 20), ("p2p", 5)])
def test_without_sharing_the_prediction_would_be_wrong(
    profile: Profile, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = random_program(seed, profile=profile, shared_ports=True)
    case = make_case(program, tmp_path, record="full", speeds=SPEEDS)
    price_alone(monkeypatch)
    assert max(abs(e) for e in case.errors_pct()) > 5


def price_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every transfer take its time whatever else is in flight."""
    monkeypatch.setattr(
        "whatif.simulator.run.price", lambda *job: replace(price(*job), transfers=None)
    )


@pytest.mark.parametrize(
    ("profile", "seed"),
    [*MEETING, *(("device", seed) for seed in SEEDS), *(("overlap", seed) for seed in SEEDS)],
)
def test_inferred_synchronisation_predicts_other_networks_within_two_percent(
    profile: Profile, seed: int, tmp_path: Path
) -> None:
    program = random_program(seed, profile=profile, shared_ports=True)
    case = make_case(program, tmp_path, record="runtime", speeds=SPEEDS)
    assert max(abs(e) for e in case.errors_pct()) <= 2


# --- the executor's own fluid model -----------------------------------------------------------


@pytest.mark.parametrize("profile", ["device", "overlap", "p2p", "cpu"])
def test_transfers_kept_apart_take_as_long_as_alone(profile: Profile) -> None:
    for seed in range(4):
        program = random_program(seed, profile=profile)
        network = networks_for(program)[0][0]
        alone, shared = (execute(program, network, contention=c) for c in (False, True))
        # The end of each transfer is rounded to a whole nanosecond in another way.
        slack = len(program.comms)
        for early, late in zip(alone.completion_ns, shared.completion_ns, strict=True):
            assert early - slack <= late <= early + slack


def test_stages_are_the_price_in_parts() -> None:
    network = OracleNetwork(
        (
            OracleTier(4, 100, 1_000, base_ns=500),
            OracleTier(64, 10, 3_000, efficiency=0.5, base_ns=700),
        )
    )
    for ranks in ((0, 1, 2, 3), (1, 5), tuple(range(8))):
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
            comm = Comm(kind, 0, 840_000, root=ranks[0])
            for mover in ranks:
                movers = (mover,) if kind == "broadcast" else ranks
                stages = network.stages(comm, ranks, movers)
                total = sum(stage.wait_ns + stage.move_ns for stage in stages)
                assert round(total) == network.transfer_ns(comm, ranks)
                for stage in stages:
                    for port, amount in stage.bytes_of.items():
                        assert amount <= stage.move_ns * network.gb_s(port) * (1 + 1e-9)


def test_two_all_reduces_at_once_take_twice_as_long_and_a_later_one_its_share() -> None:
    """Two ranks; 8 us each alone, the third 4 us from 12 us on."""
    comms = tuple(Comm("all_reduce", 0, size) for size in (800_000, 800_000, 400_000))
    body = tuple(Launch(Kernel(f"comm {i}", comm=i), 40 + i, 6 * US) for i in range(3))
    program = Program(
        name="three",
        dialect="gpu",
        ranks=tuple(RankProgram(0, (HostThread(MAIN, (Step(1, body),)),)) for _ in range(2)),
        groups=(world_group(2),),
        comms=comms,
        domain_size=2,
        host_of=(0, 0),
        clock_offset_ns=(0,),
        launch_latency_ns=5 * US,
    )
    run = execute(program, OracleNetwork((OracleTier(2, 100),)), contention=True)
    # Released at 5, 11 and 17 us. From 11 us the first two move at half rate: 2 us of the first
    # are left, so it ends at 15; the second has 6 left then, 4 of them at 17, and the third 4.
    ended = [record.ended_ns[0] for record in run.comms]
    assert ended == [15 * US, 25 * US, 25 * US]
