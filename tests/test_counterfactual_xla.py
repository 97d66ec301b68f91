"""XLA programs recorded on one network and predicted on others, against their truth there."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING

import pytest
from whatif.graph.columns import Collective
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import simulate

import whatif

from .oracle.executor import execute
from .oracle.network import OracleNetwork
from .oracle.xla_programs import random_xla_program
from .oracle.xla_writer import write_xla
from .test_counterfactual import Case, networks_for
from .torus_model import Torus, all_gather, all_to_all, multi_axis

if TYPE_CHECKING:
    from pathlib import Path

    from .oracle.vocabulary import Comm
    from .oracle.xla_programs import XlaProfile
    from .oracle.xla_writer import Form

PROFILES: tuple[XlaProfile, ...] = ("sync", "async", "permute", "loops", "shared")
FORMS: tuple[Form, ...] = ("xplane", "json")
SEEDS = range(2)


def make_case(seed: int, profile: XlaProfile, folder: Path, *, form: Form, hosts: int = 1) -> Case:
    job = random_xla_program(seed, profile=profile, hosts=hosts)
    pairs = networks_for(job.program)
    runs = [execute(job.program, oracle, contention=True) for oracle, _ in pairs]
    graph = whatif.load(write_xla(job, runs[0], folder, form=form), processes=1)
    return Case(graph, runs, [network for _, network in pairs])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("seed", SEEDS)
def test_xla_programs_are_predicted_on_other_networks_to_the_microsecond(
    profile: XlaProfile, seed: int, form: Form, tmp_path: Path
) -> None:
    case = make_case(seed, profile, tmp_path, form=form)
    measured = simulate(case.graph, measured=True)
    assert measured.step_ns == pytest.approx(case.runs[0].median_step_ns, abs=1)
    assert max(abs(error) for error in case.errors_ns()) <= 1_000


class OnTorus(OracleNetwork):
    """Prices of collectives of all chips of a torus, each played message by message."""

    def __init__(self, torus: Torus) -> None:
        super().__init__(())
        object.__setattr__(self, "torus", torus)

    def transfer_ns(self, comm: Comm, ranks: tuple[int, ...]) -> int:
        torus: Torus = self.torus  # type: ignore[attr-defined]
        chips = prod(torus.lengths)
        assert len(ranks) == chips
        size = Fraction(comm.size_bytes)
        if comm.kind == "all_to_all":
            hops = sum(length // 2 for length in torus.lengths)
            return round(all_to_all(torus, size) + hops * torus.hop_ns)
        if comm.kind != "all_gather":
            size /= chips
        passes = 2 if comm.kind == "all_reduce" else 1
        return round(passes * all_gather(torus, size, multi_axis(torus)))


@pytest.mark.parametrize(
    ("lengths", "hop_ns"), [((8,), 900), ((2, 4), 0), ((2, 2, 2), 900), ((4,), 900), ((2, 2), 900)]
)
@pytest.mark.parametrize("profile", ["sync", "async"])
def test_programs_recorded_on_a_switch_are_predicted_on_a_torus_to_the_microsecond(
    lengths: tuple[int, ...], hop_ns: int, profile: XlaProfile, tmp_path: Path
) -> None:
    chips = prod(lengths)
    jobs = (random_xla_program(seed, profile=profile) for seed in range(100))
    job = next(j for j in jobs if len(j.program.ranks) == j.program.domain_size == chips)
    recorded = execute(job.program, networks_for(job.program)[0][0])
    graph = whatif.load(write_xla(job, recorded, tmp_path, form="xplane"), processes=1)
    torus = Torus(lengths, (True,) * len(lengths), Fraction(9, 2), Fraction(hop_ns))
    truth = execute(job.program, OnTorus(torus))
    tiers = [
        Tier(topology="ring", size=n, bandwidth_gb_s=5, efficiency=0.9, latency_ns=hop_ns)
        for n in lengths
    ]
    predicted = simulate(graph, network=Network(name="torus", tiers=tiers))
    assert predicted.step_ns == pytest.approx(truth.median_step_ns, abs=1_000)
    assert abs(truth.median_step_ns - recorded.median_step_ns) > 20_000


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", PROFILES)
def test_clocks_of_hosts_are_aligned(profile: XlaProfile, form: Form, tmp_path: Path) -> None:
    case = make_case(20, profile, tmp_path, form=form, hosts=2)
    assert max(abs(error) for error in case.errors_ns()) <= 1_000


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_transfer_of_the_program_is_there_with_its_size_and_members(
    profile: XlaProfile, form: Form, tmp_path: Path
) -> None:
    case = make_case(11, profile, tmp_path, form=form)
    graph, program = case.graph, case.runs[0].program
    kinds = {
        "all_reduce": Collective.ALL_REDUCE,
        "all_gather": Collective.ALL_GATHER,
        "reduce_scatter": Collective.REDUCE_SCATTER,
        "all_to_all": Collective.ALL_TO_ALL,
        "send_recv": Collective.SEND_RECV,
    }
    wanted = []
    for comm in program.comms:
        members = program.groups[comm.group].ranks
        if comm.kind == "send_recv":
            members = (comm.root, comm.peer)
        if len(members) > 1:
            wanted += [(rank, kinds[comm.kind], comm.size_bytes) for rank in members]
    found = [
        (int(rank), Collective(coll), int(size))
        for rank, coll, size in zip(
            graph.ranks[graph.rank_index], graph.coll, graph.size_bytes, strict=True
        )
        if coll != Collective.NONE
    ]
    assert sorted(found) == sorted(wanted)
