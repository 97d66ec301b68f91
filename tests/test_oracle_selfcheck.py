"""The oracle against timings worked out by hand: who tests the truth.

Also: what the writer stores is what happened, in the form of real Kineto files.
"""

from __future__ import annotations

import ast
import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .oracle.executor import Deadlock, OracleNetwork, OracleTier, execute, true_edges
from .oracle.kineto_writer import (
    EPOCH_NS,
    clock_ns,
    process_id,
    queue_thread_id,
    thread_id,
    write_kineto,
)
from .oracle.programs import (
    Comm,
    Group,
    Profile,
    Program,
    hand_over_program,
    host_bound_program,
    host_sync_program,
    overlap_program,
    pipeline_program,
    queue_program,
    random_program,
)
from .oracle.spelling import world_group
from .oracle.vocabulary import (
    MAIN,
    US,
    Await,
    BlockingCopy,
    HostThread,
    Instruction,
    Kernel,
    Launch,
    Post,
    RankProgram,
    RecordEvent,
    Scope,
    Step,
    Sync,
    WaitEvent,
    Work,
)

if TYPE_CHECKING:
    from .oracle.run import Run

PROFILES: tuple[Profile, ...] = get_args(Profile)


def flat(size: int, bandwidth_gb_s: float, latency_ns: float = 0.0) -> OracleNetwork:
    """One switch."""
    return OracleNetwork((OracleTier(size, bandwidth_gb_s, latency_ns),))


def two_tier(domain: int, inner: float, outer: float, latency_ns: float = 0.0) -> OracleNetwork:
    """Domains of `domain` ranks, joined by a second switch."""
    return OracleNetwork(
        (OracleTier(domain, inner, latency_ns), OracleTier(64, outer, 2 * latency_ns))
    )


def job(*bodies: tuple[Instruction, ...], comms: tuple[Comm, ...] = (), **changes: Any) -> Program:
    """Build a job of one main thread per rank, each doing one step; launches take 5 us to act."""
    size = len(bodies)
    settings: dict[str, Any] = {
        "name": "job",
        "dialect": "gpu",
        "ranks": tuple(RankProgram(0, (HostThread(MAIN, (Step(1, body),)),)) for body in bodies),
        "groups": (world_group(size),),
        "comms": comms,
        "domain_size": size,
        "host_of": (0,) * size,
        "clock_offset_ns": (0,),
    }
    return Program(**(settings | changes))


def launch(name: str, us: int, stream: int = 7) -> Launch:
    """Launch a kernel of `us` microseconds with a call of 2 us."""
    return Launch(Kernel(name, us * US), stream, 2 * US)


def part(comm: int, stream: int = 40) -> Launch:
    """Launch a rank's part in a communication with a call of 2 us."""
    return Launch(Kernel(f"comm {comm}", comm=comm), stream, 2 * US)


def kernels(run: Run, rank: int = 0) -> dict[str, tuple[float, float]]:
    """Start and end of each kernel in us."""
    return {node.kernel.name: (node.start_ns / US, node.end_ns / US) for node in run.device[rank]}


def calls(run: Run, name: str, rank: int = 0) -> list[tuple[float, float]]:
    """Start and end of the calls of a name, in us."""
    return [(span.start_ns / US, span.end_ns / US) for span in run.host[rank] if span.name == name]


# --- prices -----------------------------------------------------------------------------------

# 8 ranks, 800,000 bytes each, 100 GB/s: a byte takes 0.01 ns, all of it 8 us; a message 1 us.
FLAT = {
    "all_reduce": 2 * 7 / 8 * 8_000 + 14 * 1_000,
    "all_gather": 7 * 8_000 + 7 * 1_000,
    "reduce_scatter": 7 / 8 * 8_000 + 7 * 1_000,
    "all_to_all": 7 / 8 * 8_000 + 1_000,
    "broadcast": 8_000 + 7 * 1_000,
}
# The same in two domains of 4: inside 8 us and 1 us a message, between 80 us and 2 us.
TWO = {
    "all_reduce": 2 * 3 / 4 * 8_000 + 2 * 1 / 2 * 80_000 / 4 + 6 * 1_000 + 2 * 2_000,
    "all_gather": 3 * 2 * 8_000 + 1 * 80_000 + 3 * 1_000 + 2_000,
    "reduce_scatter": 3 / 4 * 8_000 + 1 / 2 * 80_000 / 4 + 3 * 1_000 + 2_000,
    "all_to_all": max(4 / 8 * 80_000, 3 / 8 * 8_000) + 2_000,
    "broadcast": 80_000 + 2_000 + 8_000 + 3 * 1_000,
}


@pytest.mark.parametrize("kind", list(FLAT))
def test_prices_on_one_and_two_switches(kind: Any) -> None:
    comm = Comm(kind, 0, 800_000)
    everyone = tuple(range(8))
    assert flat(8, 100, 1_000).transfer_ns(comm, everyone) == round(FLAT[kind])
    assert two_tier(4, 100, 10, 1_000).transfer_ns(comm, everyone) == round(TWO[kind])


def test_a_group_pays_only_the_tiers_it_crosses() -> None:
    network = two_tier(4, 100, 10, 1_000)
    comm = Comm("all_reduce", 0, 800_000)
    assert network.transfer_ns(comm, (4, 5, 6, 7)) == round(2 * 3 / 4 * 8_000 + 6 * 1_000)
    assert network.transfer_ns(comm, (1, 5)) == round(2 * 1 / 2 * 80_000 + 2 * 2_000)
    assert network.tiers_of(comm, (4, 5, 6, 7)) == {0}
    assert network.tiers_of(comm, (1, 5)) == {1}
    assert network.tiers_of(comm, tuple(range(8))) == {0, 1}


def test_a_message_pays_the_tier_between_its_ends() -> None:
    network = two_tier(4, 100, 10, 1_000)
    ranks = tuple(range(8))
    near = Comm("send_recv", 0, 800_000, root=1, peer=2)
    far = Comm("send_recv", 0, 800_000, root=3, peer=4)
    assert network.transfer_ns(near, ranks) == 9_000
    assert network.transfer_ns(far, ranks) == 82_000


def test_efficiency_endpoint_and_base_add_as_defined() -> None:
    tier = OracleTier(2, 100, efficiency=0.5, endpoint_ns_per_byte=0.01, base_ns=3_000)
    # 1 MB each way once: 20 us on the wire, 10 us at the endpoint, 3 us to begin with.
    assert OracleNetwork((tier,)).transfer_ns(Comm("all_reduce", 0, 1_000_000), (0, 1)) == 33_000


def test_groups_without_a_closed_form_are_refused() -> None:
    comm = Comm("all_reduce", 0, 1_000)
    with pytest.raises(ValueError, match="no product"):
        two_tier(4, 100, 10).transfer_ns(comm, (0, 1, 4))
    with pytest.raises(ValueError, match="do not fit"):
        flat(4, 100).transfer_ns(comm, (0, 4))


# --- device and host --------------------------------------------------------------------------


def test_a_kernel_waits_for_its_launch_and_for_its_stream() -> None:
    run = execute(
        job((launch("a", 20), launch("b", 10), Work(100 * US), launch("c", 1)), kernel_gap_ns=500),
        flat(1, 1),
    )
    assert kernels(run) == {"a": (5, 25), "b": (25.5, 35.5), "c": (109, 110)}


def test_an_event_orders_two_streams_from_the_kernel_before_its_record() -> None:
    body = (
        launch("a", 50),
        RecordEvent(1, 7, US),
        launch("late", 100),
        WaitEvent(1, 20, US),
        launch("b", 5, stream=20),
        launch("free", 5, stream=21),
    )
    run = execute(job(body), flat(1, 1))
    # "late" was launched after the record, so "b" does not wait for it.
    assert kernels(run)["b"] == (55, 60)
    assert kernels(run)["free"] == (8 + 5, 18)


def test_waits_are_transitive_through_a_stream_without_a_kernel() -> None:
    body = (
        launch("a", 50),
        RecordEvent(1, 7, US),
        WaitEvent(1, 20, US),
        RecordEvent(2, 20, US),
        WaitEvent(2, 30, US),
        launch("b", 5, stream=30),
    )
    run = execute(job(body), flat(1, 1))
    assert kernels(run)["b"] == (55, 60)
    assert [(e.producer, e.consumer) for e in true_edges(run).streams] == [(100_000, 100_005)]


@pytest.mark.parametrize("kind", ["stream", "device", "event"])
@pytest.mark.parametrize(("busy_us", "expected"), [(0, (3, 58)), (200, (203, 206))])
def test_a_synchronising_call_ends_when_both_sides_are_there_plus_its_cost(
    kind: Any, busy_us: int, expected: tuple[float, float]
) -> None:
    target = {"stream": 7, "device": 0, "event": 1}[kind]
    body = (
        launch("a", 50),
        RecordEvent(1, 7, US),
        Work(busy_us * US),
        Sync(kind, target, 3 * US),
    )
    run = execute(job(body), flat(1, 1))
    name = {"stream": "Stream", "device": "Device", "event": "Event"}[kind]
    assert calls(run, f"cuda{name}Synchronize") == [expected]
    edge = true_edges(run).hosts[0]
    assert (edge.call, edge.kernel) == (100_002, 100_000)
    assert edge.blocked_ns == (52 * US if busy_us == 0 else 0)


def test_a_copy_to_pageable_memory_blocks_until_it_is_done() -> None:
    copy = Kernel("copy", 4 * US, "memcpy", 64)
    run = execute(job((launch("a", 50), BlockingCopy(copy, 7, 3 * US), Work(US))), flat(1, 1))
    assert kernels(run)["copy"] == (55, 59)
    assert calls(run, "cudaMemcpyAsync") == [(2, 62)]


def test_only_a_thread_that_had_to_wait_pays_the_wake_up() -> None:
    main = (Work(10 * US), Post("go"), Await("done"), Scope("after", (Work(US),)))
    other = (Await("go"), Scope("work", (Work(30 * US),)), Post("done"), Post("unused"))
    program = job((), wake_ns=4 * US)
    threads = (HostThread(MAIN, (Step(1, main),)), HostThread("autograd", other))
    program = Program(**(vars(program) | {"ranks": (RankProgram(0, threads),)}))
    run = execute(program, flat(1, 1))
    assert calls(run, "work") == [(14, 44)]
    assert calls(run, "after") == [(48, 49)]
    assert [(h.source, h.target, h.blocked) for h in run.hand_overs] == [
        (MAIN, "autograd", True),
        ("autograd", MAIN, True),
    ]
    late = Program(
        **(
            vars(program)
            | {
                "ranks": (
                    RankProgram(
                        0,
                        (
                            HostThread(MAIN, (Step(1, (Post("go"), Work(90 * US), *main[2:])),)),
                            HostThread("autograd", other),
                        ),
                    ),
                )
            }
        )
    )
    assert calls(execute(late, flat(1, 1)), "after") == [(90, 91)]


# --- communication ----------------------------------------------------------------------------


def test_a_symmetric_collective_ends_for_all_after_the_last_arrival() -> None:
    comm = Comm("all_reduce", 0, 1_000_000, tail_ns={1: 7 * US})
    early, late = (part(0),), (Work(40 * US), part(0))
    run = execute(job(early, late, comms=(comm,)), flat(2, 10))
    assert kernels(run, 0)["comm 0"] == (5, 145)
    assert kernels(run, 1)["comm 0"] == (45, 152)
    assert run.comms[0].released_ns == {0: 45 * US, 1: 45 * US}


def test_a_broadcast_waits_only_for_its_root() -> None:
    comm = Comm("broadcast", 0, 1_000_000, root=1)
    bodies = ((part(0),), (Work(20 * US), part(0)), (Work(300 * US), part(0)))
    run = execute(job(*bodies, comms=(comm,)), flat(3, 10))
    # Root: 25 + 100; a receiver from the later of itself and the root.
    assert [kernels(run, rank)["comm 0"] for rank in range(3)] == [
        (5, 125),
        (25, 125),
        (305, 405),
    ]


@pytest.mark.parametrize(
    ("size", "send_first", "sender", "receiver"),
    [
        (100_000, True, (5, 55), (45, 55)),  # rendezvous: both end together
        (100_000, False, (45, 55), (5, 55)),
        (10_000, True, (5, 6), (45, 46)),  # eager: the sender is done at once
        (10_000, False, (45, 46), (5, 46)),
    ],
)
def test_messages_are_rendezvous_when_large_and_eager_when_small(
    size: int,
    send_first: bool,
    sender: tuple[float, float],
    receiver: tuple[float, float],
) -> None:
    comm = Comm("send_recv", 0, size, root=0, peer=1)
    now, later = (part(0),), (Work(40 * US), part(0))
    bodies = (now, later) if send_first else (later, now)
    run = execute(job(*bodies, comms=(comm,)), flat(2, 10))
    assert kernels(run, 0)["comm 0"] == sender
    assert kernels(run, 1)["comm 0"] == receiver


def test_what_waits_for_ever_is_named() -> None:
    comms = (Comm("all_reduce", 0, 100), Comm("all_reduce", 0, 100))
    crossed = job((part(0), part(1)), (part(1), part(0)), comms=comms)
    with pytest.raises(Deadlock, match=r"communication 0 has \[0\] of \(0, 1\)"):
        execute(crossed, flat(2, 1))
    with pytest.raises(Deadlock, match="rank 0 main at Await"):
        execute(job((Await("never"),)), flat(1, 1))


# --- scripted programs ------------------------------------------------------------------------


def test_an_all_gather_hidden_behind_a_gemm_is_worth_nothing() -> None:
    """The all-gather runs from 0 to 100 us, the GEMM from 10 to 100 us beside it."""
    as_traced = execute(overlap_program(), flat(2, 10))
    gather, gemm, both = as_traced.device[0][:3]
    zero = gather.start_ns
    assert [(n.start_ns - zero, n.end_ns - zero) for n in (gather, gemm, both)] == [
        (0, 100 * US),
        (10 * US, 100 * US),
        (100 * US, 110 * US),
    ]
    assert as_traced.step_times_ns == [130 * US, 130 * US]
    assert execute(overlap_program(), flat(2, 20)).step_times_ns == [130 * US, 130 * US]
    assert execute(overlap_program(), flat(2, 5)).step_times_ns == [230 * US, 230 * US]


def test_a_host_bound_job_does_not_notice_the_network() -> None:
    times = [execute(host_bound_program(), flat(2, gb_s)).step_times_ns for gb_s in (5, 10, 20)]
    assert times[0] == times[1] == times[2]
    # Ten layers whose operations and calls take 65.35 us, and 5 us between steps.
    assert times[0] == [658_500, 658_500]
    assert execute(host_bound_program(), flat(2, 0.25)).median_step_ns > 2 * 658_500


@pytest.mark.parametrize("transfer_us", [100, 200, 400])
def test_a_two_stage_pipeline_exposes_its_messages(transfer_us: int) -> None:
    """300 us forward and backward, two microbatches: the second message waits for its receiver.

    Forward: F0 on stage 0, message, F0 on stage 1 (which only then asks for the second),
    message, F1, B0 and B1 on stage 1; backward the same way round, and 50 us of optimizer.
    """
    run = execute(pipeline_program(), two_tier(1, 1, 4_000_000 / transfer_us / US))
    expected = 4 * transfer_us + 6 * 300 + 50
    assert run.step_times_ns == [expected * US]


def test_a_backward_pass_on_another_thread_moves_the_optimizer() -> None:
    """Kernels 40 and 80 us, all-reduce, copy 2 + 3 us; both wake-ups and the host between."""
    for transfer_us, gb_s in ((1_000, 10), (500, 20)):
        run = execute(hand_over_program(), flat(2, gb_s))
        # First step: launch at 2, kernels from 7 to 127, all-reduce, copy until + 5, wake-up
        # 15, host 5 + 2, latency 5, kernel 20.
        assert run.completion_ns[0] == (127 + transfer_us + 5 + 15 + 7 + 5 + 20) * US
        # The next begins 12 us before that, and its first kernel finds the stream busy for 5 us.
        assert run.step_times_ns == [(172 + transfer_us) * US]


def test_reading_the_loss_back_keeps_the_host_from_running_ahead() -> None:
    for transfer_us, gb_s in ((500, 10), (250, 20)):
        run = execute(host_sync_program(), flat(2, gb_s))
        # Host 102, latency 5, kernel 50, all-reduce, copy 1, synchronise 2, host 1 and 5.
        expected = (102 + 5 + 50 + transfer_us + 1 + 2 + 1 + 5) * US
        assert run.step_times_ns == [expected, expected]


def test_two_threads_serve_the_queue_of_a_cpu_job_in_order() -> None:
    run = execute(queue_program(), flat(2, 10))
    # Queued at 510, 530 and 550 us; the third waits for the thread of the first.
    assert [(q.thread, q.start_ns // US, q.end_ns // US) for q in run.queue[0]] == [
        (0, 510, 610),
        (1, 530, 630),
        (0, 610, 710),
    ]
    assert run.completion_ns == [910 * US]
    assert run.shares_ports
    assert not execute(queue_program(collectives=1), flat(2, 10)).shares_ports


def test_steps_complete_when_all_ranks_and_their_devices_are_done() -> None:
    body = (launch("a", 100),)
    rank = RankProgram(0, (HostThread(MAIN, (Step(1, body), Work(10 * US), Step(2, body))),))
    late = RankProgram(30 * US, rank.threads)
    run = execute(Program(**(vars(job(body, body)) | {"ranks": (rank, late)})), flat(2, 1))
    assert run.begin_ns == [[0, 30 * US], [12 * US, 42 * US]]
    assert run.completion_by_rank_ns == [[105 * US, 135 * US], [205 * US, 235 * US]]
    assert run.step_times_ns == [100 * US]
    assert run.window_ns == 235 * US
    # What outlasts a later step of its own rank still holds that step up.
    long = RankProgram(
        0, (HostThread(MAIN, (Step(1, (launch("b", 400, stream=20),)), Step(2, body))),)
    )
    run = execute(Program(**(vars(job(body)) | {"ranks": (long,)})), flat(1, 1))
    assert run.completion_ns == [405 * US, 405 * US]
    alone = execute(job(body, (Work(200 * US),)), flat(2, 1))
    assert alone.step_times_ns == [200 * US]


# --- true edges -------------------------------------------------------------------------------


def test_true_edges_are_the_fewest_that_imply_all() -> None:
    body = (
        launch("a1", 10, 7),  # 100000
        launch("a2", 10, 7),  # 100001
        RecordEvent(1, 7, US),
        WaitEvent(1, 20, US),
        launch("b1", 10, 20),  # 100004: after a2
        RecordEvent(2, 20, US),
        WaitEvent(1, 30, US),
        WaitEvent(2, 30, US),
        launch("c1", 10, 30),  # 100008: after b1, which implies a2
        WaitEvent(1, 20, US),
        launch("b2", 10, 20),  # 100010: a2 again, implied by b1 on its own stream
        Sync("device", 0, US),  # 100011: b2 and c1; a2 is implied
    )
    edges = true_edges(execute(job(body), flat(1, 1)))
    assert {(e.producer, e.consumer) for e in edges.streams} == {
        (100_001, 100_004),
        (100_004, 100_008),
    }
    assert all(e.slack_ns == 0 for e in edges.streams)
    assert {(e.call, e.kernel) for e in edges.hosts} == {(100_011, 100_008), (100_011, 100_010)}


@given(st.sampled_from(PROFILES), st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_true_edges_and_stream_order_imply_every_wait(profile: Profile, seed: int) -> None:
    run = execute(*random_case(seed, profile))
    edges = true_edges(run)
    for rank, nodes in enumerate(run.device):
        direct: dict[int, set[int]] = {node.correlation: set() for node in nodes}
        for edge in edges.streams:
            if edge.rank == rank:
                direct[edge.consumer].add(edge.producer)
                assert edge.slack_ns >= 0
        past: dict[int, set[int]] = {}
        for node in nodes:
            before = set(direct[node.correlation])
            if node.previous is not None:
                before.add(node.previous.correlation)
            past[node.correlation] = before.union(*(past[b] for b in before))
            assert {other.correlation for other in node.after} <= past[node.correlation]


# --- random programs --------------------------------------------------------------------------


def random_case(seed: int, profile: Profile, faster: float = 1.0) -> tuple[Program, OracleNetwork]:
    """Draw a program, with a network for it."""
    program = random_program(seed, profile=profile)
    return program, two_tier(program.domain_size, 100 * faster, 10 * faster, 2_000 / faster)


@pytest.mark.parametrize("profile", PROFILES)
def test_random_programs_are_the_same_again_for_the_same_seed(profile: Profile) -> None:
    first, again = random_program(5, profile=profile), random_program(5, profile=profile)
    assert first == again
    assert first != random_program(6, profile=profile)
    network = two_tier(first.domain_size, 100, 10)
    one, two = execute(first, network), execute(again, network)
    assert one.completion_by_rank_ns == two.completion_by_rank_ns
    assert one.comms == two.comms


@given(st.sampled_from(PROFILES), st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_random_runs_obey_the_physics(profile: Profile, seed: int) -> None:
    program, network = random_case(seed, profile)
    run = execute(program, network)
    assert not run.shares_ports
    for rank in range(len(program.ranks)):
        for span in run.host[rank]:
            assert span.end_ns >= span.start_ns
            if span.parent is not None:
                assert span.parent.start_ns <= span.start_ns
                assert span.end_ns <= span.parent.end_ns
        for node in run.device[rank]:
            assert node.start_ns >= node.launch.start_ns + program.launch_latency_ns
            before = node.previous
            assert before is None or node.start_ns >= before.end_ns + program.kernel_gap_ns
            assert all(node.start_ns >= other.end_ns for other in node.after)
    for record in run.comms:
        if program.comms[record.comm].kind not in ("broadcast", "send_recv"):
            last = max(record.arrived_ns.values())
            assert set(record.released_ns.values()) == {last}
            assert set(record.ended_ns.values()) == {last + record.transfer_ns}


@given(st.sampled_from(PROFILES), st.integers(0, 10_000))
@settings(max_examples=12, deadline=None)
def test_a_better_network_never_makes_a_step_complete_later(profile: Profile, seed: int) -> None:
    """But for the wake-up, which only who had to wait pays: with a better network others do."""
    slow, fast = (
        execute(replace(program, wake_ns=0), network)
        for program, network in (random_case(seed, profile), random_case(seed, profile, faster=4.0))
    )
    assert all(f <= s for f, s in zip(fast.completion_ns, slow.completion_ns, strict=True))


def test_every_profile_does_what_it_says() -> None:
    gain: dict[str, list[float]] = {}
    for profile in PROFILES:
        for seed in range(8):
            slow = execute(*random_case(seed, profile))
            fast = execute(*random_case(seed, profile, faster=2.0))
            gain.setdefault(profile, []).append(1 - fast.median_step_ns / slow.median_step_ns)
    for profile in ("device", "overlap", "p2p"):
        assert max(gain[profile]) > 0.05
    assert sorted(gain["host_bound"])[4] < 0.02
    kinds = {
        comm.kind
        for profile in PROFILES
        for seed in range(12)
        for comm in random_program(seed, profile=profile).comms
    }
    assert kinds == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "send_recv",
    }


def test_shared_ports_and_tails_come_only_when_asked_for() -> None:
    for profile in ("cpu", "overlap"):
        for shared_ports in (False, True):
            programs = [
                random_program(seed, profile=profile, shared_ports=shared_ports)
                for seed in range(20)
            ]
            found = [execute(p, two_tier(p.domain_size, 5, 0.5)).shares_ports for p in programs]
            assert any(found) == shared_ports
    plain = random_program(1, profile="device")
    assert not any(comm.tail_ns for comm in plain.comms)
    tailed = [random_program(seed, profile="device", tails=True) for seed in range(6)]
    tails = [(p, comm) for p in tailed for comm in p.comms if comm.tail_ns]
    assert tails
    for program, comm in tails:
        members = program.groups[comm.group].ranks
        assert any(comm.tail_ns.get(rank, 0) == 0 for rank in members)


# --- the writer -------------------------------------------------------------------------------


def load(path: Path) -> dict[str, Any]:
    """Read a trace file with decimal text for times."""
    loaded: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
    return loaded


def to_ns(text: str | int) -> int:
    """Exact nanoseconds of a time in microseconds."""
    if isinstance(text, int):
        return text * 1_000
    whole, fraction = text.split(".")
    return int(whole) * 1_000 + int(fraction)


def of(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    """Complete events of a category."""
    return [e for e in trace["traceEvents"] if e.get("ph") == "X" and e["cat"] == category]


@pytest.mark.parametrize("time_format", ["ns", "us"])
def test_files_hold_every_kernel_at_its_time_on_its_skewed_clock(
    tmp_path: Path, time_format: Any
) -> None:
    program = random_program(1, profile="device")
    assert len(set(program.host_of)) > 1
    run = execute(program, two_tier(program.domain_size, 100, 10))
    paths = write_kineto(run, tmp_path, time_format=time_format)
    assert [path.name for path in paths] == [f"rank{r}_trace.json.gz" for r in range(4)]
    for rank, path in enumerate(paths):
        trace = load(path)
        base = trace.get("baseTimeNanoseconds", 0)
        found = {
            event["args"]["correlation"]: (base + to_ns(event["ts"]), to_ns(event["dur"]))
            for category in ("kernel", "gpu_memcpy", "gpu_memset")
            for event in of(trace, category)
        }
        offset = program.clock_offset_ns[program.host_of[rank]]
        unit = 1 if time_format == "ns" else 1_000
        assert found == {
            node.correlation: (
                (EPOCH_NS + offset + node.start_ns) // unit * unit,
                (node.end_ns - node.start_ns) // unit * unit,
            )
            for node in run.device[rank]
        }
        assert clock_ns(program, rank, 0) == EPOCH_NS + offset
        assert ("baseTimeNanoseconds" in trace) == (time_format == "ns")
        steps = [e for e in of(trace, "user_annotation") if e["name"].startswith("ProfilerStep#")]
        assert [e["name"] for e in steps] == [f"ProfilerStep#{3 + k}" for k in range(3)]


def test_without_skew_all_clocks_agree(tmp_path: Path) -> None:
    run = execute(overlap_program(), flat(2, 10))
    skewed = Program(**(vars(run.program) | {"host_of": (0, 1), "clock_offset_ns": (0, 4 * US)}))
    run = execute(skewed, flat(2, 10))

    def first(path: Path) -> str:
        return str(of(load(path), "kernel")[0]["ts"])

    apart = [to_ns(first(p)) for p in write_kineto(run, tmp_path / "skew")]
    assert apart[1] - apart[0] == 4 * US
    together = [first(p) for p in write_kineto(run, tmp_path / "plain", skew=False)]
    assert together[0] == together[1]


def test_a_collective_is_nested_as_pytorch_nests_it(tmp_path: Path) -> None:
    run = execute(host_bound_program(), flat(2, 10))
    trace = load(write_kineto(run, tmp_path)[1])
    ops = of(trace, "cpu_op")
    outer = next(e for e in ops if e["name"] == "c10d::allreduce_")
    params = next(e for e in ops if e["args"].get("Collective name") == "allreduce")
    annotation = next(e for e in of(trace, "user_annotation") if e["name"] == "nccl:all_reduce")
    call = next(e for e in of(trace, "cuda_runtime") if e["name"] == "cudaLaunchKernelExC")
    inside = [outer, params, annotation, call]
    for around, within in pairwise(inside):
        assert to_ns(around["ts"]) < to_ns(within["ts"])
        assert to_ns(within["ts"]) + to_ns(within["dur"]) < to_ns(around["ts"]) + to_ns(
            around["dur"]
        )
    kernel = next(e for e in of(trace, "kernel") if "nccl" in e["name"])
    # Runtime calls and kernels carry the id of the operation, not of the annotation.
    assert call["args"]["External id"] == params["args"]["External id"]
    assert kernel["args"]["External id"] == params["args"]["External id"]
    assert kernel["args"]["correlation"] == call["args"]["correlation"]
    assert kernel["args"]["In msg nelems"] == 25_000
    assert kernel["args"]["Process Group Ranks"] == "[0, 1]"
    assert params["args"]["Rank"] == 1
    names = [e["name"] for e in sorted(of(trace, "cuda_runtime"), key=lambda e: to_ns(e["ts"]))]
    assert names[1:10] == [
        "cudaStreamIsCapturing",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaLaunchKernelExC",
        "cudaEventRecord",
        "cudaStreamWaitEvent",
        "cudaEventRecord",
    ]


def test_recorded_synchronisation_names_what_was_waited_for(tmp_path: Path) -> None:
    body = (
        launch("a", 50),
        RecordEvent(1, 7, US),
        WaitEvent(1, 20, US),
        launch("b", 5, stream=20),
        Sync("event", 1, US),
        Sync("stream", 20, US),
        Sync("device", 0, US),
        WaitEvent(1, 33, US),
    )
    run = execute(job(body), flat(1, 1))
    full = load(write_kineto(run, tmp_path / "full")[0])
    rows = {e["name"]: e for e in of(full, "cuda_sync")}
    assert len(of(full, "cuda_sync")) == 4  # nothing ever ran on stream 33
    wait = rows["Stream Wait Event"]
    assert (wait["pid"], wait["tid"]) == (0, 20)
    assert wait["args"] == {
        "External id": 100_002,  # in no operation: the call's own correlation id
        "cuda_sync_kind": "Stream Wait Event",
        "wait_on_stream": 7,
        "wait_on_cuda_event_record_corr_id": 100_001,
        "wait_on_cuda_event_id": 1,
        "stream": 20,
        "correlation": 100_002,
        "device": 0,
        "context": 1,
    }
    assert rows["Event Sync"]["args"]["wait_on_cuda_event_record_corr_id"] == 100_001
    assert rows["Event Sync"]["tid"] == -1
    assert rows["Stream Sync"]["args"]["stream"] == 20
    assert rows["Context Sync"]["args"]["stream"] == -1
    record = of(full, "cuda_event")[0]
    assert record["args"]["event_id"] == 1
    assert record["args"]["correlation"] == 100_001
    zero = to_ns(of(full, "kernel")[0]["ts"]) - 5 * US
    assert to_ns(record["ts"]) - zero == 55 * US

    bare = load(write_kineto(run, tmp_path / "bare", record="runtime")[0])
    assert not of(bare, "cuda_sync")
    assert not of(bare, "cuda_event")
    waits = [e for e in of(bare, "cuda_runtime") if e["name"] == "cudaStreamWaitEvent"]
    assert set(waits[0]["args"]) == {"External id", "cbid", "correlation"}


def test_flows_join_launches_with_kernels_and_forward_with_backward(tmp_path: Path) -> None:
    run = execute(hand_over_program(), flat(2, 10))
    trace = load(write_kineto(run, tmp_path / "with")[0])

    def flows(trace: dict[str, Any], name: str, phase: str) -> list[dict[str, Any]]:
        return [e for e in trace["traceEvents"] if e["name"] == name and e["ph"] == phase]

    starts = {e["id"]: e for e in flows(trace, "ac2g", "s")}
    kernel_ids = {e["args"]["correlation"] for e in of(trace, "kernel") + of(trace, "gpu_memcpy")}
    assert kernel_ids <= set(starts)
    assert kernel_ids <= {e["id"] for e in flows(trace, "ac2g", "f") if e["pid"] == 0}
    forward, backward = flows(trace, "fwdbwd", "s")[0], flows(trace, "fwdbwd", "f")[0]
    assert forward["id"] == backward["id"] == 1
    assert forward["tid"] == thread_id(0, MAIN) == process_id(0)
    assert backward["tid"] == thread_id(0, "autograd")
    assert backward["bp"] == "e"
    without = load(write_kineto(run, tmp_path / "without", flows=False)[0])
    assert not flows(without, "fwdbwd", "s")
    assert flows(without, "ac2g", "s")


def test_a_cpu_job_has_no_device_and_its_collectives_on_the_queue_threads(tmp_path: Path) -> None:
    run = execute(queue_program(), flat(2, 10))
    trace = load(write_kineto(run, tmp_path)[0])
    assert trace["deviceProperties"] == []
    assert trace["distributedInfo"]["backend"] == "gloo"
    assert {e["cat"] for e in trace["traceEvents"] if e["ph"] == "X"} == {
        "cpu_op",
        "user_annotation",
        "Trace",
    }
    gloo = [e for e in of(trace, "user_annotation") if e["name"] == "gloo:all_reduce"]
    assert [e["tid"] for e in gloo] == [queue_thread_id(0, server) for server in (0, 1, 0)]
    assert all(e["args"]["Input Dims"] == [[250_000]] for e in gloo)


def test_groups_are_listed_only_where_the_rank_is_a_member(tmp_path: Path) -> None:
    program = random_program(1, profile="device")
    assert program.groups[1] == Group("1", "tensor", (0, 1))
    run = execute(program, two_tier(2, 100, 10))
    traces = [load(path) for path in write_kineto(run, tmp_path)]
    configs = [t["distributedInfo"]["pg_config"] for t in traces]
    assert [[c["ranks"] for c in rank] for rank in configs] == [
        [[0, 1, 2, 3], [0, 1], [0, 2]],
        [[0, 1, 2, 3], [0, 1], [1, 3]],
        [[0, 1, 2, 3], [2, 3], [0, 2]],
        [[0, 1, 2, 3], [2, 3], [1, 3]],
    ]
    assert [t["host_name"] for t in traces] == ["node0", "node0", "node1", "node1"]
    assert [t["distributedInfo"]["rank"] for t in traces] == [0, 1, 2, 3]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for profile in PROFILES:
        one = write_kineto(execute(*random_case(2, profile)), tmp_path / profile / "a")
        two = write_kineto(execute(*random_case(2, profile)), tmp_path / profile / "b")
        assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


def test_files_look_like_those_that_pytorch_writes(tmp_path: Path, shared_data: Path) -> None:
    """Arguments of our rows against a real DDP trace (A100) and a real Gloo one."""
    real = load(shared_data / "traces/gpu/single/ddp_a100_rank0of2_full_metadata.json.gz")
    ours = load(write_kineto(execute(host_bound_program(), flat(2, 10)), tmp_path / "gpu")[0])
    tests: list[tuple[str, str]] = [
        ("cpu_op", "record_param_comms"),
        ("cuda_runtime", "cudaStreamWaitEvent"),
        ("cuda_runtime", "cudaLaunchKernelExC"),
        ("kernel", "nccl"),
        ("kernel", "gemm"),
        ("user_annotation", "ProfilerStep"),
        ("gpu_user_annotation", "nccl:all_reduce"),
    ]
    for category, name in tests:

        def example(trace: dict[str, Any], category: str = category, name: str = name) -> Any:
            return next(e for e in of(trace, category) if name in e["name"])

        missing = set(example(real)["args"]) - set(example(ours)["args"])
        assert not missing, (category, name)
        assert set(example(real)) == set(example(ours))
        assert type(example(real)["ts"]) is type(example(ours)["ts"])
    heads = ("schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds")
    assert all(key in ours and key in real for key in heads)
    assert set(real["distributedInfo"]["pg_config"][0]) == set(
        ours["distributedInfo"]["pg_config"][0]
    )
    gloo = load(shared_data / "lab/ddp-w2/2000mbit/rank0_trace.json.gz")
    cpu = load(write_kineto(execute(queue_program(), flat(2, 10)), tmp_path / "cpu")[0])
    rows = [next(e for e in of(t, "user_annotation") if "gloo" in e["name"]) for t in (gloo, cpu)]
    assert set(rows[0]["args"]) == set(rows[1]["args"])


def test_the_oracle_shares_nothing_with_the_package() -> None:
    """Agreement is evidence only between independent models."""
    folder = Path(__file__).parent / "oracle"
    files = sorted(folder.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1, file
                names = [node.module or ""] if node.level == 0 else []
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            assert not any(name.split(".")[0] in ("whatif", "numpy", "numba") for name in names)
