"""Inferred synchronisation held against the truth: how much of it is right, and how much is found.

The oracle's executor knows what waited for what; its files keep none of that (and, here, no flows
between threads). What the converter makes of the calls and times is scored by precision (inferred
edges that the truth implies) and recall (true edges that the inferred ones imply).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from whatif.converters.kineto.comms import find_comms
from whatif.converters.kineto.cpu import complete_waits, keep_consistent, read_main, seen_waits
from whatif.converters.kineto.device import add_device
from whatif.converters.kineto.discover import discover
from whatif.converters.kineto.host import add_host
from whatif.converters.kineto.job import read_job
from whatif.converters.kineto.steps import find_windows
from whatif.converters.kineto.waits import WaitsInput, find_waits
from whatif.converters.nodes import Names, RankNodes

from .oracle.edges import true_edges
from .oracle.executor import execute
from .oracle.kineto_writer import clock_ns, thread_id, write_kineto
from .oracle.programs import hand_over_program, random_program
from .oracle.vocabulary import AUTOGRAD, MAIN
from .test_counterfactual import networks_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from whatif.converters.kineto.events import KinetoTrace

    from .oracle.programs import Profile
    from .oracle.run import HandOver, Run
    from .oracle.vocabulary import Program

#: What a thread may do between being let go and its first recorded operation, and after its last.
UNSEEN_NS = 60_000


@dataclass
class Score:
    """Counts of edges."""

    right: int = 0
    inferred: int = 0
    found: int = 0
    true: int = 0

    def assert_good(self, least: int = 10) -> None:
        """At least nine of ten, both ways, of a number worth counting."""
        assert min(self.inferred, self.true) >= least
        assert self.right / self.inferred >= 0.9
        assert self.found / self.true >= 0.9


def runs_of(profile: Profile, seeds: Iterable[int], folder: Path) -> list[tuple[Run, Path]]:
    """Programs run on the first network, and their files without synchronisation or flows."""
    out = []
    for seed in seeds:
        program = random_program(seed, profile=profile)
        run = execute(program, networks_for(program)[0][0])
        write_kineto(run, folder / str(seed), record="runtime", flows=False)
        out.append((run, folder / str(seed)))
    return out


def read_inputs(run: Run, folder: Path) -> list[WaitsInput]:
    """What the converter knows of the ranks of a device job before it infers waits."""
    out = []
    for trace in read_job(discover(folder), processes=1):
        comms = find_comms(trace, len(run.program.ranks), device_job=True)
        windows = find_windows(trace)
        device = add_device(RankNodes(Names()), trace, comms, windows)
        out.append(WaitsInput(trace, comms, device, windows))
    return out


def pasts(run: Run, rank: int, after: dict[int, list[int]]) -> dict[int, set[int]]:
    """All that each kernel (by correlation) comes after, itself included, given the waits."""
    past: dict[int, set[int]] = {}
    for node in run.device[rank]:
        me = node.correlation
        before = [node.previous.correlation] if node.previous else []
        past[me] = {me}.union(*(past[b] for b in before + after[me]))
    return past


def score_waits(run: Run, folder: Path, streams: Score, hosts: Score) -> None:
    """Count the edges between streams, and from kernels to calls that wait for one of them."""
    truth = true_edges(run)
    inputs = read_inputs(run, folder)
    for source, waits in zip(inputs, find_waits(inputs), strict=True):
        trace, rank = source.trace, source.trace.rank
        assert rank is not None
        assert not waits.recorded
        number = trace.correlation
        edges = [(int(number[w.target]), int(number[w.waiter])) for w in waits.streams]
        given: dict[int, list[int]] = defaultdict(list)
        for producer, consumer in edges:
            given[consumer].append(producer)
        real = {n.correlation: [o.correlation for o in n.after] for n in run.device[rank]}
        true_past, own_past = pasts(run, rank, defaultdict(list, real)), pasts(run, rank, given)
        needed = [(e.producer, e.consumer) for e in truth.streams if e.rank == rank]
        streams.inferred += len(edges)
        streams.right += sum(p in true_past[c] for p, c in edges)
        streams.true += len(needed)
        streams.found += sum(p in own_past[c] for p, c in needed)

        # A device synchronisation waits for all there is: nothing to infer.
        chosen = [h.correlation for h in run.host[rank] if "Synchronize" in h.name]
        whole = {h.correlation for h in run.host[rank] if h.name == "cudaDeviceSynchronize"}
        waited: dict[int, list[int]] = defaultdict(list)
        for edge in truth.hosts:
            if edge.rank == rank and edge.call in chosen and edge.call not in whole:
                waited[edge.call].append(edge.kernel)
        host = {int(number[r]): [int(number[e]) for e in on] for r, on in waits.host.items()}
        # Calls that never waited show nothing of what they waited for; the report says so.
        assumed = {int(number[row]) for row in waits.assumed_calls}
        for call, kernels in host.items():
            implied = set().union(*(true_past[k] for k in waited[call]))
            if call not in assumed:
                hosts.inferred += len(kernels)
                hosts.right += sum(k in implied for k in kernels)
        for call, kernels in waited.items():
            implied = set().union(*(own_past[k] for k in host.get(call, [])))
            hosts.true += len(kernels)
            hosts.found += sum(k in implied for k in kernels)


@pytest.mark.parametrize("profile", ["device", "overlap", "p2p", "host_bound"])
def test_inferred_waits_are_mostly_right_and_mostly_all(profile: Profile, tmp_path: Path) -> None:
    streams, hosts = Score(), Score()
    for run, folder in runs_of(profile, range(200, 208), tmp_path):
        score_waits(run, folder, streams, hosts)
    streams.assert_good()
    hosts.assert_good(least=4)


def true_ns(program: Program, trace: KinetoTrace, time_ns: int) -> int:
    """True time of a moment on the clock of a trace."""
    assert trace.rank is not None
    return trace.base_ns + time_ns - clock_ns(program, trace.rank, 0)


def hand_overs_of(source: WaitsInput, program: Program) -> list[tuple[str, int, int]]:
    """Inferred hand-overs of a rank: thread that goes on, when it may, and when it does."""
    nodes = RankNodes(Names())
    device = add_device(nodes, source.trace, source.comms, source.windows)
    waits = find_waits([source])[0]
    add_host(nodes, source.trace, source.comms, source.windows, device, waits)
    names = {index: name for name, index in nodes.names.table.items()}
    rank = source.trace.rank
    assert rank is not None
    thread = {thread_id(rank, name): name for name in (MAIN, AUTOGRAD)}
    return [
        (
            thread[nodes.lanes[nodes.lane[n]].number],
            true_ns(program, source.trace, nodes.start[n]),
            true_ns(program, source.trace, nodes.end[n]),
        )
        for n in range(len(nodes))
        if names[nodes.name[n]] in ("hand-over", "join")
    ]


def same_hand_over(true: HandOver, inferred: tuple[str, int, int]) -> bool:
    """Whether an inferred hand-over is a true one, but for what no operation shows."""
    thread, may, does = inferred
    return (
        thread == true.target
        and -UNSEEN_NS <= may - true.source_ns <= UNSEEN_NS
        and 0 <= does - true.target_ns <= UNSEEN_NS
    )


def score_hand_overs(
    trues: Sequence[HandOver], inferred: list[tuple[str, int, int]], score: Score
) -> None:
    score.true += len(trues)
    score.inferred += len(inferred)
    score.right += sum(any(same_hand_over(t, i) for t in trues) for i in inferred)
    score.found += sum(any(same_hand_over(t, i) for i in inferred) for t in trues)


def test_inferred_hand_overs_are_mostly_right_and_mostly_all(tmp_path: Path) -> None:
    score = Score()
    runs = runs_of("device", range(200, 206), tmp_path / "device")
    runs += runs_of("host_bound", range(200, 206), tmp_path / "host")
    runs += runs_of("p2p", range(200, 204), tmp_path / "p2p")
    scripted = hand_over_program()
    run = execute(scripted, networks_for(scripted)[0][0])
    write_kineto(run, tmp_path / "scripted", record="runtime", flows=False)
    runs.append((run, tmp_path / "scripted"))
    for run, folder in runs:
        for source in read_inputs(run, folder):
            inferred = hand_overs_of(source, run.program)
            trues = [h for h in run.hand_overs if h.rank == source.trace.rank and h.blocked]
            score_hand_overs(trues, inferred, score)
    score.assert_good()


def score_queue_waits(run: Run, folder: Path, score: Score) -> None:
    """Count the places of the main threads of a CPU job that wait for collectives."""
    traces = read_job(discover(folder), processes=1)
    comms = [find_comms(t, len(traces), device_job=False) for t in traces]
    windows = [find_windows(t) for t in traces]
    mains = [read_main(t, c, w) for t, c, w in zip(traces, comms, windows, strict=True)]
    waits = [seen_waits(*job) for job in zip(traces, comms, mains, windows, strict=True)]
    waits, _ = keep_consistent(traces, comms, mains, waits)
    waits, _, _ = complete_waits(traces, mains, windows, waits)
    for trace, ours, mine in zip(traces, comms, waits, strict=True):
        rank = trace.rank
        began = {span.start_ns: span.comm for span in run.queue[rank]}
        at = {}
        for wait in mine:
            event = ours.ops[wait.op].event
            comm = began[true_ns(run.program, trace, int(trace.start_ns[event]))]
            at[comm] = (true_ns(run.program, trace, wait.resume_ns), wait.seen)
        true = {w.comm: w for w in run.queue_waits if w.rank == rank and w.blocked}
        right = {c for c, w in true.items() if c in at and 0 <= at[c][0] - w.end_ns <= UNSEEN_NS}
        seen = {c for c, (_, was_seen) in at.items() if was_seen}
        score.inferred += len(seen)
        score.right += len(seen & right)
        score.true += len(true)
        score.found += len(right)


def test_inferred_waits_for_queued_collectives_are_mostly_right_and_mostly_all(
    tmp_path: Path,
) -> None:
    score = Score()
    for run, folder in runs_of("cpu", range(200, 212), tmp_path):
        score_queue_waits(run, folder, score)
    score.assert_good()
