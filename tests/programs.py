"""Random jobs, and an executor of them in plain Python that shares nothing with the engine.

The executor walks through time nanosecond by nanosecond and lets happen what may happen. It is
slow and obvious, which is what a reference should be.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import (
    SYMMETRIC,
    Collective,
    EdgeKind,
    ExecutionGraph,
    Flavour,
    Kind,
    LaneKind,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST, STREAM, COPIES, QUEUE = range(4)
LANE_KINDS = (LaneKind.HOST, LaneKind.STREAM, LaneKind.STREAM, LaneKind.QUEUE)
TO_ROOT = (Collective.REDUCE, Collective.GATHER)
FROM_ROOT = (Collective.BROADCAST, Collective.SCATTER)


@dataclass
class Op:
    """One node of a job."""

    rank: int
    lane: int
    flavour: Flavour
    step: int
    dur: int
    gap: int
    deps: list[tuple[int, EdgeKind, int]]
    coll: Collective = Collective.NONE
    kind: Kind = Kind.COMP
    members: list[int] = field(default_factory=list)  # ops, this one included
    instance: int = -1
    peer: int = -1
    transfer: int = 0
    tail: int = 0
    eager: bool = False
    group: int = -1

    def tail_of(self, transfer: int | Fraction) -> int | Fraction:
        """Its tail where the transfer takes so long: of it scales what is no longer than this."""
        moving = min(self.tail, self.transfer)
        return self.tail - moving + (Fraction(moving, self.transfer) * transfer if moving else 0)


@dataclass
class Job:
    """Ranks with the lanes HOST, STREAM, COPIES and QUEUE each, and their nodes."""

    base: list[int]
    servers: int
    ops: list[Op] = field(default_factory=list)
    groups: list[list[int]] = field(default_factory=list)
    markers: list[list[int]] = field(default_factory=list)  # by step and rank
    instances: int = 0


@dataclass
class Timeline:
    """When everything happened; release is None for computation."""

    start: list[int]
    release: list[int | None]
    end: list[int]


@st.composite
def jobs(draw: st.DrawFn, max_ops: int = 24) -> Job:
    """A job of up to three ranks and three steps."""
    num_ranks = draw(st.integers(1, 3))
    num_steps = draw(st.integers(1, 3))
    per_step = draw(st.integers(0, max_ops // num_steps))
    return random_job(random.Random(draw(st.integers(0, 2**32))), num_ranks, num_steps, per_step)


def random_job(rng: random.Random, num_ranks: int, num_steps: int, per_step: int) -> Job:
    job = Job(
        base=[rng.choice([-3, 0, 0, 4]) for _ in range(num_ranks)], servers=rng.choice([1, 2, 2, 3])
    )
    for step in range(num_steps):
        for _ in range(per_step):
            _add_operation(rng, job, num_ranks, step)
        job.markers.append(
            [_add(rng, job, rank, HOST, Flavour.GAP, step) for rank in range(num_ranks)]
        )
        for marker in job.markers[0]:
            # The zero of the clock is a start of the first annotation, so it ends later.
            job.ops[marker].dur = 5
    return job


def _add_operation(rng: random.Random, job: Job, num_ranks: int, step: int) -> None:
    what = rng.choice(["host", "compute", "compute", "copy", "gap", "collective", "pair"])
    rank = rng.randrange(num_ranks)
    if what == "host":
        _add(rng, job, rank, HOST, rng.choice([Flavour.HOST, Flavour.COMPUTE]), step)
    elif what == "compute":
        _add(rng, job, rank, STREAM, Flavour.COMPUTE, step)
    elif what == "copy":
        _add(rng, job, rank, COPIES, Flavour.COPY, step)
    elif what == "gap":
        _add(rng, job, rank, rng.choice([HOST, STREAM, QUEUE]), Flavour.GAP, step)
    elif what == "collective":
        ranks = sorted(rng.sample(range(num_ranks), rng.randint(1, num_ranks)))
        coll = rng.choice([*SYMMETRIC, *TO_ROOT, *FROM_ROOT])
        root = rng.choice(ranks) if coll in (*TO_ROOT, *FROM_ROOT) else -1
        _add_members(rng, job, [(rank, Kind.COMM_COLL, root) for rank in ranks], coll, step)
    elif num_ranks > 1:
        source, target = rng.sample(range(num_ranks), 2)
        sides = [(source, Kind.SEND, target), (target, Kind.RECV, source)]
        _add_members(rng, job, sides, Collective.SEND_RECV, step)


def _add_members(
    rng: random.Random, job: Job, sides: list[tuple[int, Kind, int]], coll: Collective, step: int
) -> None:
    transfer, eager = rng.randint(0, 9), rng.random() < 0.5
    ranks = [rank for rank, _, _ in sides]
    if ranks not in job.groups:
        job.groups.append(ranks)
    members = []
    for rank, kind, peer in sides:
        lane = rng.choice([STREAM, COPIES, QUEUE, QUEUE])
        members.append(_add(rng, job, rank, lane, Flavour.COMM, step))
        op = job.ops[members[-1]]
        op.coll, op.kind, op.peer, op.members = coll, kind, peer, members
        op.instance, op.group = job.instances, job.groups.index(ranks)
        op.transfer = transfer if coll in SYMMETRIC else rng.randint(0, 9)
        # As long as the transfer or longer, so that all moments are whole numbers.
        op.tail = rng.choice([0, 0, op.transfer, op.transfer + 2])
        op.eager = kind == Kind.SEND and eager
    job.instances += 1


def _add(rng: random.Random, job: Job, rank: int, lane: int, flavour: Flavour, step: int) -> int:
    own = [i for i, op in enumerate(job.ops) if op.rank == rank]
    deps = []
    before = [i for i in own if job.ops[i].lane == lane]
    if before and (lane != QUEUE or job.servers == 1):
        deps.append((before[-1], EdgeKind.END, rng.choice([0, 0, 0, 2])))
    if own and rng.random() < 0.4:
        deps.append((rng.choice(own), rng.choice(list(EdgeKind)), rng.choice([0, 0, 3])))
    job.ops.append(
        Op(rank, lane, flavour, step, rng.randint(0, 9), rng.choice([0, 0, 0, 1, 5]), deps)
    )
    return len(job.ops) - 1


def needed(job: Job, index: int) -> list[int]:
    """Members whose start lets a communication node go."""
    op = job.ops[index]
    if op.coll in SYMMETRIC or (op.coll == Collective.SEND_RECV and not op.eager):
        return op.members
    root = [m for m in op.members if job.ops[m].rank == op.peer]
    if op.coll in FROM_ROOT:
        return [index, *root]
    if op.coll in TO_ROOT and op.peer == op.rank:
        return op.members
    return [index]


def execute(
    job: Job,
    scale: Mapping[Flavour, int] | None = None,
    prices: Mapping[int, int] | None = None,
) -> Timeline:
    """Run a job.

    Parameters
    ----------
    job : Job
        Any.
    scale : mapping, optional
        Factors on the durations of flavours.
    prices : mapping, optional
        Transfer time of each instance; by default each node's own.
    """
    ops = job.ops
    unset = [None] * len(ops)
    ready: list[int | None] = list(unset)
    taken: list[int | None] = list(unset)
    start: list[int | None] = list(unset)
    release: list[int | None] = list(unset)
    end: list[int | None] = list(unset)

    def happened(i: int, kind: EdgeKind, lag: int, now: int) -> bool:
        moment = end[i] if kind == EdgeKind.END else start[i]
        return moment is not None and moment + lag <= now

    def has_server(i: int) -> bool:
        op = ops[i]
        if op.lane != QUEUE or job.servers == 1:
            return True
        queue = [j for j, o in enumerate(ops) if (o.rank, o.lane) == (op.rank, op.lane)]
        busy = [j for j in queue if taken[j] is not None and end[j] is None]
        return len(busy) < job.servers and all(taken[j] is not None for j in queue if j < i)

    def advance(i: int, now: int) -> bool:
        op = ops[i]
        if ready[i] is None:
            if op.deps and not all(happened(*dep, now) for dep in op.deps):
                return False
            if not op.deps and now < job.base[op.rank]:
                return False
            ready[i] = now
        elif taken[i] is None:
            if not has_server(i):
                return False
            taken[i] = now
        elif start[i] is None:
            if now < taken[i] + op.gap:
                return False
            start[i] = now
        elif op.coll == Collective.NONE:
            if now < start[i] + op.dur * (scale or {}).get(op.flavour, 1):
                return False
            end[i] = now
        elif release[i] is None:
            if any(start[m] is None for m in needed(job, i)):
                return False
            release[i] = now
        else:
            transfer = op.transfer if prices is None else prices[op.instance]
            if now < release[i] + transfer + op.tail_of(transfer):
                return False
            end[i] = now
        return True

    now = min(job.base)
    while None in end:
        moved = [advance(i, now) for i in range(len(ops)) if end[i] is None]
        if not any(moved):
            now += 1
            assert now < 100_000, "the job hangs"
    return Timeline([*map(int, start)], release, [*map(int, end)])


def to_graph(job: Job, timeline: Timeline) -> tuple[ExecutionGraph, list[int]]:
    """Make the graph of a job that ran; also gives the node of every op."""
    build = GraphBuilder()
    lanes = []
    for rank, base in enumerate(job.base):
        build.rank(rank, base_ns=base, start_offset_ns=max(base, 0))
        lanes.append(
            [
                build.lane(rank, kind, n, servers=job.servers if n == QUEUE else 1)
                for n, kind in enumerate(LANE_KINDS)
            ]
        )
    groups = [build.group(f"group {i}", ranks) for i, ranks in enumerate(job.groups)]
    # Handles of the builder are numbers in the order added: rank by rank here.
    order = sorted(range(len(job.ops)), key=lambda i: job.ops[i].rank)
    node_of = [0] * len(order)
    for node, i in enumerate(order):
        node_of[i] = node
        op = job.ops[i]
        common = {
            "after": [Dep(node_of[d], kind, lag) for d, kind, lag in op.deps],
            "gap_ns": op.gap,
            "start_ns": timeline.start[i],
            "step": op.step,
        }
        lane, dur = lanes[op.rank][op.lane], timeline.end[i] - timeline.start[i]
        size = 64 + op.instance
        if op.kind == Kind.COMP:
            build.node(lane, op.flavour, dur, **common)
            continue
        common |= {"dur_ns": dur, "transfer_ns": op.transfer, "tail_ns": op.tail}
        if op.kind == Kind.COMM_COLL:
            build.collective(lane, op.coll, groups[op.group], size, root=op.peer, **common)
        else:
            build.point_to_point(
                lane, op.kind, op.peer, groups[op.group], size, eager=op.eager, **common
            )
    for step, markers in enumerate(job.markers):
        build.step(
            f"step {step}",
            {rank: node_of[i] for rank, i in enumerate(markers)},
            completion_ns=completions(job, timeline)[step],
        )
    return build.build(), node_of


def completions(job: Job, timeline: Timeline) -> list[int]:
    """When each step completes over all ranks, by the words of the definition."""
    return [
        max(
            [timeline.end[i] for markers in job.markers[: step + 1] for i in markers]
            + [
                timeline.end[i]
                for i, op in enumerate(job.ops)
                if op.step <= step and op.lane != HOST
            ]
        )
        for step in range(len(job.markers))
    ]
