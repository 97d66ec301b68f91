"""Transfers and the ports they share: what pricing hands to the engine holds together."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whatif.graph.columns import SYMMETRIC, Collective, Instances, Kind, collect_instances
from whatif.simulator import flows
from whatif.simulator.algorithms.names import ALGORITHMS, OF_COLLECTIVE
from whatif.simulator.choice import price_group
from whatif.simulator.network import Network, Protocol, Tier
from whatif.simulator.placement import Placement, place
from whatif.simulator.ports import Ports, PortSets, fixed_transfers, merge_alike, no_ports
from whatif.simulator.pricing import Prices, price

from .test_pricing import Op, make_graph

ROOTED = (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)
GROUP_OPS = [c for c in Collective if c not in (Collective.NONE, Collective.SEND_RECV)]


@dataclass
class Priced:
    """Operations with their prices."""

    ops: list[Op]
    instances: Instances
    prices: Prices
    eager: list[int] = field(default_factory=list)

    def sets_of(self, instance: int, member: int = 0) -> list[dict[str, float]]:
        """Bytes/ns through each port at full rate, in each phase with work of a transfer."""
        transfers = self.prices.transfers
        assert transfers is not None
        x = int(transfers.of_member[self.instances.ptr[instance] + member])
        return [
            self.loads(int(transfers.phase_set[phase]))
            for phase in range(transfers.ptr[x], transfers.ptr[x + 1])
            if transfers.phase_work_ns[phase] > 0
        ]

    def fullest(self, instance: int, member: int) -> float:
        """Most that a port is filled in the first phase with work; 0 where there is none."""
        transfers, sets = self.prices.transfers, self.prices.sets
        assert transfers is not None
        x = int(transfers.of_member[self.instances.ptr[instance] + member])
        phases = np.arange(transfers.ptr[x], transfers.ptr[x + 1])
        for phase in phases[transfers.phase_work_ns[phases] > 0][:1]:
            index = transfers.phase_set[phase]
            part = slice(sets.ptr[index], sets.ptr[index + 1])
            capacity = self.prices.ports.capacity_gb_s[sets.port[part]]
            return float((sets.load_gb_s[part] / capacity).max(initial=0.0))
        return 0.0

    def loads(self, index: int) -> dict[str, float]:
        sets, ports = self.prices.sets, self.prices.ports
        part = slice(sets.ptr[index], sets.ptr[index + 1])
        named = zip(sets.port[part].tolist(), sets.load_gb_s[part].tolist(), strict=True)
        return {ports.names[port]: load for port, load in named}

    def bytes_through(self, instance: int) -> dict[str, float]:
        """Bytes that all transfers of an instance put through each port."""
        transfers, found = self.prices.transfers, {}
        assert transfers is not None
        mine = slice(self.instances.ptr[instance], self.instances.ptr[instance + 1])
        for x in np.unique(transfers.of_member[mine]).tolist():
            for phase in range(transfers.ptr[x], transfers.ptr[x + 1]):
                for name, load in self.loads(int(transfers.phase_set[phase])).items():
                    moved = load * float(transfers.phase_work_ns[phase])
                    found[name] = found.get(name, 0.0) + moved
        return found


def price_ops(
    network: Network,
    groups: list[tuple[int, ...]],
    ops: list[Op],
    world: int,
    placement: Placement | None = None,
    eager: bool = False,
    merged: bool = False,
) -> Priced:
    """Price operations; unless they are merged, ports that are loaded alike stay apart."""
    graph = make_graph(groups, ops, world_size=world)
    if eager:
        graph = graph.with_(eager=graph.kind == Kind.SEND)
    where = placement or place(network, graph.ranks, graph.hosts, world)
    instances = collect_instances(graph)
    merging = merge_alike if merged else lambda ports, sets: (ports, sets)
    with patch.object(flows, "merge_alike", merging):
        return Priced(ops, instances, price(graph, instances, network, where))


GB = st.sampled_from([10.0, 50.0, 450.0])


@st.composite
def tier(draw: st.DrawFn, inner: bool) -> Tier:
    fields: dict[str, Any] = {}
    topology = draw(st.sampled_from(["switch", "ring", "fully_connected"]))
    if topology == "ring":
        fields["wrap"] = draw(st.booleans())
    if topology == "switch":
        fields["in_network_reduction"] = draw(st.booleans())
        fields["oversubscription"] = draw(st.sampled_from([1.0, 3.0]))
        fields["ranks_per_nic"] = 1 if inner else draw(st.sampled_from([1, 2]))
    if draw(st.booleans()):
        fields["protocols"] = [Protocol(name="low", latency=0.2, efficiency=0.5)]
    return Tier(
        topology=topology,
        size=draw(st.integers(1, 4)),
        bandwidth_gb_s=draw(GB),
        efficiency=draw(st.sampled_from([0.8, 1.0])),
        latency_ns=draw(st.sampled_from([0.0, 1000.0])),
        endpoint_ns_per_byte=draw(st.sampled_from([0.0, 0.01])),
        base_ns=draw(st.sampled_from([0.0, 5000.0, -300.0])),
        **fields,
    )


@st.composite
def placed_networks(draw: st.DrawFn) -> tuple[Network, list[tuple[int, ...]]]:
    """A network, and the places of some ranks in it."""
    count = draw(st.integers(1, 3))
    network = Network(
        name="t",
        tiers=[draw(tier(inner=index == 0)) for index in range(count)],
        algorithm=draw(st.sampled_from([None, "auto", *ALGORITHMS])),
        pipeline_chunks=4,
    )
    everywhere = list(product(*(range(tier.size) for tier in network.tiers)))
    places = draw(st.lists(st.sampled_from(everywhere), min_size=1, max_size=12, unique=True))
    return network, places


@st.composite
def priced_jobs(draw: st.DrawFn) -> Priced:
    network, places = draw(placed_networks())
    world = len(places)
    ranks = st.lists(st.integers(0, world - 1), min_size=1, max_size=world, unique=True)
    groups = [tuple(draw(ranks)) for _ in range(2)]
    sizes = st.sampled_from([0, 100, 1 << 20])
    ops = [
        Op(coll, draw(sizes), group=index, root=draw(st.sampled_from(members)))
        for coll in GROUP_OPS
        for index, members in enumerate(groups)
    ]
    if world > 1:
        ends = draw(st.lists(ranks.filter(lambda found: len(found) > 1), min_size=1, max_size=3))
        ops += [Op(Collective.SEND_RECV, draw(sizes), ends=(e[0], e[1])) for e in ends]
    placement = place(network, range(world), [""] * world, world, dict(enumerate(places)))
    return price_ops(
        network,
        groups,
        ops,
        world,
        placement,
        eager=draw(st.booleans()),
        merged=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(priced_jobs())
def test_transfers_and_ports_hold_together_on_any_network(job: Priced) -> None:
    prices, transfers, sets = job.prices, job.prices.transfers, job.prices.sets
    assert transfers is not None
    count = np.diff(job.instances.ptr)
    instance = np.repeat(np.arange(len(job.instances)), count)
    alone = transfers.alone_ns[transfers.of_member]
    assert alone == pytest.approx(prices.total_ns[instance])
    assert (np.diff(transfers.ptr) >= 1).all()
    assert (transfers.phase_fixed_ns >= 0).all()
    assert (transfers.phase_work_ns >= 0).all()
    assert sets.ptr[0] == sets.ptr[1] == 0
    assert sets.ptr[-1] == len(sets.port) == len(sets.load_gb_s)
    assert transfers.phase_set.min() >= 0
    assert transfers.phase_set.max() < len(sets)
    assert (sets.load_gb_s > 0).all()
    assert (sets.load_gb_s <= prices.ports.capacity_gb_s[sets.port]).all()
    for index in range(len(sets)):
        assert (np.diff(sets.port[sets.ptr[index] : sets.ptr[index + 1]]) > 0).all()
    shared = [op.coll in SYMMETRIC for op in job.ops]
    for i in np.flatnonzero(shared):
        members = transfers.of_member[job.instances.ptr[i] : job.instances.ptr[i + 1]]
        assert len(set(members.tolist())) == 1
    assert len(prices.ports.names) == len(prices.ports)
    assert set(prices.ports.tier.tolist()) <= set(range(len(prices.tiers)))


@settings(max_examples=150, deadline=None)
@given(priced_jobs())
def test_an_operation_alone_is_limited_by_a_port_that_is_full(job: Priced) -> None:
    prices = job.prices
    for i, op in enumerate(job.ops):
        name = ALGORITHMS[prices.algorithm[i]]
        # A chunked algorithm fills no port while the first chunk is on its way.
        if op.coll in ROOTED or name in ("hierarchical-pipelined", "in-switch"):
            continue
        used = [job.fullest(i, member) for member in range(np.diff(job.instances.ptr)[i])]
        if any(used):
            assert max(used) == pytest.approx(1), (op, name)


SIZES = np.array([0.0, 1000.0, float(1 << 20), float(1 << 30)])


@settings(max_examples=60, deadline=None)
@given(placed_networks(), st.sampled_from(GROUP_OPS), st.floats(0.1, 10))
def test_slower_links_and_longer_latencies_by_a_factor_are_longer_times_by_it(
    placed: tuple[Network, list[tuple[int, ...]]], coll: Collective, factor: float
) -> None:
    network, places = placed
    slower = msgspec.structs.replace(
        network,
        tiers=[
            msgspec.structs.replace(
                tier,
                bandwidth_gb_s=tier.bandwidth_gb_s / factor,
                latency_ns=tier.latency_ns * factor,
                base_ns=tier.base_ns * factor,
                endpoint_ns_per_byte=tier.endpoint_ns_per_byte * factor,
            )
            for tier in network.tiers
        ],
    )
    before, after = (price_group(n, coll, SIZES, np.array(places), 0) for n in (network, slower))
    assert after.total_ns == pytest.approx(before.total_ns * factor)


@settings(max_examples=60, deadline=None)
@given(placed_networks(), st.sampled_from(GROUP_OPS), st.data())
def test_an_operation_alone_is_never_slower_on_a_better_tier(
    placed: tuple[Network, list[tuple[int, ...]]], coll: Collective, data: st.DataObject
) -> None:
    network, places = placed
    index = data.draw(st.integers(0, len(network.tiers) - 1))
    old = network.tiers[index]
    for better in ({"bandwidth_gb_s": old.bandwidth_gb_s * 2}, {"latency_ns": old.latency_ns / 2}):
        tiers = list(network.tiers)
        tiers[index] = msgspec.structs.replace(old, **better)
        changed = msgspec.structs.replace(network, tiers=tiers)
        before, after = (
            price_group(n, coll, SIZES, np.array(places), 0).total_ns for n in (network, changed)
        )
        assert (after <= before * (1 + 1e-12) + 1e-9).all()  # a negative base may leave nothing


UP = Tier(size=4, bandwidth_gb_s=300, latency_ns=1000)
OUT = Tier(size=4, bandwidth_gb_s=25, latency_ns=12_000)
TWO = Network(name="t", tiers=[UP, OUT])
ALL = tuple(range(16))


def sent_by_formula(coll: Collective, n: int, size: int) -> float:
    """Bytes that all members together must send on one switch, whatever the algorithm."""
    return float(
        {
            Collective.ALL_REDUCE: 2 * (n - 1) * size,
            Collective.ALL_GATHER: n * (n - 1) * size,
            Collective.REDUCE_SCATTER: (n - 1) * size,
            Collective.REDUCE_SCATTER_BLOCK: (n - 1) * size,
            Collective.ALL_TO_ALL: (n - 1) * size,
            Collective.BROADCAST: (n - 1) * size,
            Collective.REDUCE: size,  # at the root; the others' own parts are counted apart
            Collective.GATHER: (n - 1) * size,
            Collective.SCATTER: (n - 1) * size,
            Collective.BARRIER: 0,
        }[coll]
    )


@pytest.mark.parametrize("coll", GROUP_OPS)
@pytest.mark.parametrize("n", [2, 5, 8])
def test_the_bytes_through_all_ports_are_those_that_the_members_send(
    coll: Collective, n: int
) -> None:
    network = Network(name="t", tiers=[Tier(size=8, bandwidth_gb_s=100, efficiency=0.5)])
    job = price_ops(network, [tuple(range(n))], [Op(coll, 1 << 20, root=1)], n)
    moved = job.bytes_through(0)
    out = sum(value for name, value in moved.items() if "out of" in name)
    into = sum(value for name, value in moved.items() if "into" in name)
    expected = sent_by_formula(coll, n, 1 << 20)
    if coll is Collective.REDUCE:
        expected = float((n - 1) << 20)
    assert out == pytest.approx(expected)
    assert into == pytest.approx(expected)


def test_bytes_are_conserved_in_each_tier() -> None:
    s = 1 << 20
    job = price_ops(TWO, [ALL], [Op(Collective.ALL_REDUCE, s)], 16)
    through = {"scaleup": 0.0, "scaleout": 0.0}
    for name, value in job.bytes_through(0).items():
        through[name.split()[0]] += value
    # Each domain reduces and gathers inside; a quarter each goes around four domains.
    assert through["scaleup"] == pytest.approx(2 * 4 * 2 * 3 * s)
    assert through["scaleout"] == pytest.approx(2 * 4 * 2 * 3 * s / 4)


def test_phases_follow_each_other_through_the_tiers() -> None:
    s = 1 << 20
    job = price_ops(TWO, [ALL], [Op(Collective.ALL_REDUCE, s)], 16)
    transfers = job.prices.transfers
    assert transfers is not None
    assert transfers.ptr.tolist() == [0, 3]
    inside, outside = 0.75 * s / 300, 1.5 * s / 4 / 25
    assert transfers.phase_work_ns == pytest.approx([inside, outside, inside])
    assert transfers.phase_fixed_ns.tolist() == [3000, 72_000, 3000]
    tiers = [{name.split()[0] for name in loads} for loads in job.sets_of(0)]
    assert tiers == [{"scaleup"}, {"scaleout"}, {"scaleup"}]


def test_groups_on_different_tiers_share_no_port_and_those_on_one_do() -> None:
    inside, across = (0, 1, 2, 3), (0, 4, 8, 12)
    ops = [Op(Collective.ALL_REDUCE, 1 << 20, group=group) for group in (0, 1, 0)]
    job = price_ops(TWO, [inside, across], ops, 16)
    first, second, third = (set().union(*job.sets_of(i)) for i in range(3))
    assert not first & second
    assert first == third


def test_direct_messages_use_the_ports_of_both_tiers_at_once() -> None:
    job = price_ops(TWO, [ALL], [Op(Collective.ALL_TO_ALL, 1 << 20)], 16)
    (loads,) = job.sets_of(0)
    by_tier = {name.split()[0]: load for name, load in loads.items()}
    assert by_tier == pytest.approx({"scaleout": 25.0, "scaleup": 25.0 * 3 / 12})


@pytest.mark.parametrize("gives", [True, False])
def test_each_receiver_takes_its_share_of_the_ports_of_the_root(gives: bool) -> None:
    network = Network(name="t", tiers=[Tier(size=4, bandwidth_gb_s=90)])
    coll = Collective.SCATTER if gives else Collective.GATHER
    job = price_ops(network, [(0, 1, 2, 3)], [Op(coll, 1 << 20, root=2)], 4)
    transfers = job.prices.transfers
    assert transfers is not None
    assert len(set(transfers.of_member.tolist())) == 4
    root, own = ("out of", "into") if gives else ("into", "out of")
    for member in (0, 1, 3):
        expected = {f"scaleup {own} rank {member}": 30.0}
        if gives:
            expected[f"scaleup {root} rank 2"] = 30.0
        assert job.sets_of(0, member) == [pytest.approx(expected)]
    at_root = job.loads(int(transfers.phase_set[transfers.of_member[2]]))
    assert at_root == ({} if gives else {"scaleup into rank 2": pytest.approx(90.0)})
    assert transfers.alone_ns == pytest.approx([3 * (1 << 20) / 90] * 4)


def test_a_broadcast_costs_bytes_at_the_root_and_at_everyone() -> None:
    network = Network(name="t", tiers=[Tier(size=4, bandwidth_gb_s=90)])
    job = price_ops(network, [(0, 1, 2, 3)], [Op(Collective.BROADCAST, 1 << 20, root=0)], 4)
    moved = job.bytes_through(0)
    for rank in (1, 2, 3):
        assert moved[f"scaleup into rank {rank}"] == pytest.approx(1 << 20)
    assert moved["scaleup out of rank 0"] == pytest.approx(1 << 20)


def test_a_rendezvous_is_one_transfer_and_an_eager_pair_two() -> None:
    ops = [Op(Collective.SEND_RECV, 1 << 20, ends=ends) for ends in ((0, 1), (5, 2))]
    for eager in (False, True):
        job = price_ops(TWO, [ALL], ops, 16, eager=eager)
        transfers = job.prices.transfers
        assert transfers is not None
        assert len(transfers) == (4 if eager else 2)
        for i, (tier, gb_s, start, end) in enumerate(
            (("scaleup", 300, 0, 1), ("scaleout", 25, 5, 2))
        ):
            out, into = {f"{tier} out of rank {start}": gb_s}, {f"{tier} into rank {end}": gb_s}
            # Members are by rank: of the second pair the receiver comes first.
            by_end = [[out], [into]] if start < end else [[into], [out]]
            got = [job.sets_of(i, member) for member in (0, 1)]
            assert got == (by_end if eager else [[out | into]] * 2)
        assert transfers.alone_ns[transfers.of_member] == pytest.approx(
            np.repeat(job.prices.total_ns, 2)
        )


def test_ranks_of_one_nic_share_its_port() -> None:
    out = msgspec.structs.replace(OUT, ranks_per_nic=2)
    network = Network(name="t", tiers=[UP, out])
    ops = [Op(Collective.SEND_RECV, 8, ends=ends) for ends in ((0, 4), (1, 8), (2, 12))]
    job = price_ops(network, [ALL], ops, 16)
    names = [next(name for name in job.sets_of(i)[0] if "out of" in name) for i in range(3)]
    assert names == ["scaleout out of ranks 0, 1"] * 2 + ["scaleout out of ranks 2, 3"]


def test_what_leaves_an_oversubscribed_domain_shares_its_uplink() -> None:
    out = msgspec.structs.replace(OUT, oversubscription=2)
    network = Network(name="t", tiers=[UP, out])
    ops = [Op(Collective.SEND_RECV, 8, ends=ends) for ends in ((0, 4), (1, 8), (4, 12), (0, 1))]
    job = price_ops(network, [ALL], ops, 16)
    uplinks = [{n for n in job.sets_of(i)[0] if "uplink out" in n} for i in range(4)]
    assert uplinks[0] == uplinks[1] == {"scaleout uplink out of ranks 0 to 3"}
    assert uplinks[2] == {"scaleout uplink out of ranks 4 to 7"}
    assert uplinks[3] == set()
    ports = job.prices.ports
    assert ports.capacity_gb_s[ports.names.index("scaleout uplink out of ranks 0 to 3")] == 50


def test_links_of_meshes_rings_and_tori_are_ports() -> None:
    mesh = Tier(topology="fully_connected", size=4, bandwidth_gb_s=300)
    job = price_ops(Network(name="t", tiers=[mesh]), [(0, 1)], [Op(Collective.ALL_REDUCE, 8)], 4)
    (loads,) = job.sets_of(0)
    assert loads == {
        "scaleup link from rank 0 to rank 1": 100.0,
        "scaleup link from rank 1 to rank 0": 100.0,
    }
    sides = [Tier(topology="ring", size=3, bandwidth_gb_s=50) for _ in range(2)]
    network = Network(name="t", tiers=sides)
    send = [Op(Collective.SEND_RECV, 8, ends=(0, 5))]
    job = price_ops(network, [(0,)], send, 7)
    # From (0, 0) back around to (2, 0) and on to (2, 1).
    assert set(job.sets_of(0)[0]) == {
        "scaleup link from rank 0 to rank 2",
        "scaleup link from rank 2 to rank 5",
    }
    job = price_ops(network, [(0,)], [Op(Collective.SEND_RECV, 8, ends=(6, 2))], 7)
    assert set(job.sets_of(0)[0]) == {
        "scaleup link from rank 6 to empty place 8",
        "scaleup link from empty place 8 to rank 2",
    }


def test_an_operation_without_a_size_uses_no_port() -> None:
    ops = [Op(Collective.ALL_REDUCE, -1, transfer_ns=(900,)), Op(Collective.ALL_REDUCE, 8)]
    job = price_ops(TWO, [ALL], ops, 16)
    transfers = job.prices.transfers
    assert transfers is not None
    assert job.sets_of(0) == []
    assert transfers.alone_ns[transfers.of_member[0]] == 900
    assert job.prices.algorithm.tolist() == [-1, ALGORITHMS.index("hierarchical")]


def test_a_protocol_that_wastes_the_wire_still_fills_the_port() -> None:
    low = Protocol(name="low", latency=0.1, efficiency=0.5)
    network = Network(
        name="t", tiers=[Tier(size=4, bandwidth_gb_s=100, latency_ns=1e6, protocols=[low])]
    )
    job = price_ops(network, [(0, 1)], [Op(Collective.ALL_REDUCE, 1 << 20)], 4)
    assert job.prices.total_ns[0] == pytest.approx(2e5 + (1 << 20) / 50)
    assert set(job.sets_of(0)[0].values()) == {100.0}
    assert job.prices.protocols == ("low",)
    assert job.prices.protocol.tolist() == [0]


def test_a_burst_allowance_takes_its_time_from_the_first_bytes() -> None:
    network = Network(name="t", tiers=[Tier(size=4, bandwidth_gb_s=1, base_ns=-500, latency_ns=10)])
    job = price_ops(network, [(0, 1)], [Op(Collective.BROADCAST, s) for s in (100, 5000)], 4)
    transfers = job.prices.transfers
    assert transfers is not None
    of = transfers.of_member[job.instances.ptr[:-1]]
    assert transfers.phase_fixed_ns[of].tolist() == [0, 0]
    assert transfers.phase_work_ns[of].tolist() == [10, 4510]


def test_ports_that_are_always_loaded_alike_become_one() -> None:
    ports = Ports(np.array([1.0, 1.0, 1.0, 2.0]), np.zeros(4, dtype=np.int64), ("a", "b", "c", "d"))
    sets = PortSets(
        np.array([0, 0, 4, 7]),
        np.array([0, 1, 2, 3, 0, 1, 2]),
        np.array([1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]),
    )
    merged, fewer = merge_alike(ports, sets)
    assert merged.names == ("a (and 1 alike)", "c", "d")
    assert merged.capacity_gb_s.tolist() == [1, 1, 2]
    assert fewer.ptr.tolist() == [0, 0, 3, 5]
    assert fewer.port.tolist() == [0, 1, 2, 0, 1]
    assert fewer.load_gb_s.tolist() == [1, 1, 1, 0.5, 0.25]


def test_a_regular_job_needs_few_ports() -> None:
    groups = [tuple(range(d * 4, d * 4 + 4)) for d in range(4)]
    groups += [tuple(range(c, 16, 4)) for c in range(4)]
    ops = [Op(Collective.ALL_REDUCE, 8, group=group) for group in range(8)]
    job = price_ops(TWO, groups, ops, 16, merged=True)
    assert len(job.prices.ports) == 8
    assert job.prices.ports.names[0] == "scaleup out of rank 0 (and 7 alike)"


def test_without_a_network_every_member_has_a_transfer_that_nothing_slows_down() -> None:
    transfers = fixed_transfers(np.array([5.0, 0.0]))
    assert transfers.alone_ns.tolist() == [5, 0]
    assert transfers.of_member.tolist() == [0, 1]
    ports, sets = no_ports()
    assert len(ports) == 0
    assert len(sets) == 1
    assert fixed_transfers(np.zeros(0)).alone_ns.tolist() == []


def test_a_graph_without_communication_has_no_transfers() -> None:
    job = price_ops(TWO, [ALL], [], 16)
    assert job.prices.transfers is not None
    assert len(job.prices.transfers) == 0
    assert len(job.prices.ports) == 0
    assert len(job.prices.sets) == 1


def test_every_collective_has_a_transfer_for_all_or_for_each_member() -> None:
    ops = [Op(coll, 8, root=0) for coll in GROUP_OPS]
    job = price_ops(TWO, [ALL], ops, 16)
    transfers = job.prices.transfers
    assert transfers is not None
    for i, op in enumerate(ops):
        mine = transfers.of_member[job.instances.ptr[i] : job.instances.ptr[i + 1]]
        assert len(set(mine.tolist())) == (16 if op.coll in ROOTED else 1)
    assert set(OF_COLLECTIVE) >= set(GROUP_OPS)
