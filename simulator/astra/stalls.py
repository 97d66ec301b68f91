"""Why a rank never finishes: what ASTRA-sim leaves unsaid when it exits with 0.

After a run in which nothing is left to happen, but ranks have not finished, `explain_stall` looks
at what is in progress and names the first rule of the specification (section 14) that explains it:
members that do not issue the same, or not all of them, or not in the same order; chunks that are
numbered differently; the deadlock of localBWAware; a receive nobody sends to; what waits for an
INVALID_NODE.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import GraphError
from .names import Algorithm, CommType, NodeType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from .collectives import Collectives
    from .workload import Workload

    Int = NDArray[np.int64]
    _Rule = Callable[[int, int], str | None]

# Other ranks that an error lists.
_LISTED = 3

# Hops that an error lists of a circle.
_HOPS = 4

# Phases of an all-reduce under localBWAware over two dimensions; over more it can deadlock.
_SAFE_PHASES = 3

_TAGS = 500_000_000


def explain_stall(
    workload: Workload,
    counts: list[int],
    collectives: Collectives,
    issued: Int,
    completed: Int,
    finish: Int,
) -> GraphError:
    """Say why ranks never finish.

    Parameters
    ----------
    workload : Workload
    counts : list of int
        Ranks along each dimension of the network.
    collectives : Collectives
    issued, completed : int64, shape (N,)
        When each node was issued and completed, -1 where it was not.
    finish : int64, shape (R,)
        -1 of the ranks that never finish.

    Returns
    -------
    GraphError
        With the rank, the node and the rule.
    """
    stall = _Stall(workload, counts, collectives, issued, completed)
    waiting = _waiting(stall, finish)
    rules = (
        stall.different,
        stall.not_a_power_of_two,
        stall.missing,
        stall.numbered_differently,
        stall.other_order,
        stall.deadlock,
        stall.nobody_sends,
        stall.unseen,
        stall.circle,
    )
    found = _first(workload, rules, waiting, finish)
    if found is not None:
        return found
    rank, node = waiting[0]
    return GraphError(
        f"never completes{_others(workload, waiting)} {_missing_lines(finish)}",
        file=workload.source,
        rank=rank,
        place=workload.describe(node),
    )


def explain_certain_stall(
    workload: Workload,
    counts: list[int],
    collectives: Collectives,
    issued: Int,
    completed: Int,
    finish: Int,
) -> GraphError | None:
    """Say why ranks never finish, where no look at messages could change that; else None.

    Parameters and result as of `explain_stall`, of a run in which collectives were played by
    recurrences only. Members that issue different collectives, or number them differently, are no
    certain stall: their messages may happen to agree.
    """
    stall = _Stall(workload, counts, collectives, issued, completed)
    rules = (stall.missing, stall.other_order, stall.nobody_sends, stall.circle)
    return _first(workload, rules, _waiting(stall, finish), finish)


def _waiting(stall: _Stall, finish: Int) -> list[tuple[int, int]]:
    """Ranks that never finish, and the nodes that they are in."""
    stuck = np.flatnonzero(finish < 0).tolist()
    return [(rank, node) for rank in stuck for node in stall.in_progress(rank)]


def _first(
    workload: Workload, rules: tuple[_Rule, ...], waiting: list[tuple[int, int]], finish: Int
) -> GraphError | None:
    for rule in rules:
        for rank, node in waiting:
            if (reason := rule(rank, node)) is not None:
                return GraphError(
                    f"{reason} {_missing_lines(finish)}",
                    file=workload.source,
                    rank=rank,
                    place=workload.describe(node),
                )
    return None


def accepted_mismatches(workload: Workload, collectives: Collectives, issued: Int) -> list[str]:
    """Find collectives that members took for different ones, and ASTRA-sim completed.

    Parameters
    ----------
    workload, collectives, issued
        As for `explain_stall`, of a run in which all ranks finished.

    Returns
    -------
    list of str
        At most one warning.
    """
    nodes = np.flatnonzero((collectives.plan_of >= 0) & (issued >= 0))
    rank = np.searchsorted(workload.rank_ptr, nodes, side="right") - 1
    group = workload.group[nodes]
    order = np.lexsort((nodes, issued[nodes], rank, group))
    nodes, rank, group = nodes[order], rank[order], group[order]
    # The turn of a call is its place among those of its rank on its communicator.
    begins = np.flatnonzero(np.r_[True, (np.diff(rank) != 0) | (np.diff(group) != 0)])
    turn = np.arange(len(nodes)) - np.repeat(begins, np.diff(np.r_[begins, len(nodes)]))
    order = np.lexsort((rank, turn, group))
    nodes, group, turn = nodes[order], group[order], turn[order]
    same = (np.diff(group) == 0) & (np.diff(turn) == 0)
    plans = collectives.plans[collectives.plan_of[nodes]]
    whole = plans["coordinates"] == plans["coordinates"].max(initial=0)
    other = (np.diff(workload.comm_type[nodes]) != 0) | (np.diff(workload.size[nodes]) != 0)
    found = np.flatnonzero(same & other & ((group[1:] != 0) | (whole[1:] & whole[:-1])))
    if not len(found):
        return []
    here, there = int(nodes[found[0]]), int(nodes[found[0] + 1])
    return [
        "members issue different collectives in the same turn, which ASTRA-sim silently accepts "
        "because their messages happen to agree: "
        + " and ".join(
            f"rank {workload.rank_of(node)} {CommType(workload.comm_type[node]).name} of "
            f"{workload.size[node]} bytes ({workload.describe(node)})"
            for node in (here, there)
        )
    ]


def _missing_lines(finish: Int) -> str:
    return (
        f"({(finish < 0).sum()} of {len(finish)} ranks never finish; ASTRA-sim exits with 0 and "
        "leaves out their lines)"
    )


def _others(workload: Workload, waiting: list[tuple[int, int]]) -> str:
    listed = [f"rank {rank} in {workload.describe(node)}" for rank, node in waiting[1:][:_LISTED]]
    return f", and neither do {', '.join(listed)}" if listed else ""


@dataclass(frozen=True, eq=False)
class _Stall:
    """The state in which nothing is left to happen; each rule gives its reason, or None."""

    workload: Workload
    counts: list[int]
    collectives: Collectives
    issued: Int
    completed: Int

    def in_progress(self, rank: int) -> list[int]:
        """Nodes of a rank that were issued and never complete, else what never became ready."""
        nodes = self._nodes(rank)
        running = nodes[(self.issued[nodes] >= 0) & (self.completed[nodes] < 0)]
        if not len(running):
            running = nodes[self.issued[nodes] < 0][:1]
        return [int(node) for node in running]

    def different(self, rank: int, node: int) -> str | None:
        """Members that issue different collectives in the same turn."""
        workload = self.workload
        for _, turn, other, calls in self._partners(rank, node):
            if turn >= len(calls):
                continue
            theirs = calls[turn]
            here, there = self._what(node), self._what(theirs)
            if here != there:
                return (
                    f"waits for ever: as its call number {turn} on {self._communicator(node)} it "
                    f"issues {here}, and rank {other} {there} ({workload.describe(theirs)})."
                )
        return None

    def not_a_power_of_two(self, rank: int, node: int) -> str | None:
        """Halving-doubling that does not pair all ranks."""
        del rank
        for phase in self._phases(node):
            n = int(phase["n"])
            if phase["algorithm"] == Algorithm.HALVING_DOUBLING and n & (n - 1):
                return f"never completes: halvingDoubling does not pair all of {n} ranks."
        return None

    def missing(self, rank: int, node: int) -> str | None:
        """A member that never issues the collective."""
        for group, turn, other, calls in self._partners(rank, node):
            if turn < len(calls):
                continue
            of_rank = self._nodes(other)
            all_calls = of_rank[
                (self.collectives.plan_of[of_rank] >= 0) & (self.workload.group[of_rank] == group)
            ]
            if len(all_calls) <= turn:
                return (
                    f"waits for rank {other}, which has only {len(all_calls)} collectives on "
                    f"{self._communicator(node)} and never issues number {turn}."
                )
        return None

    def numbered_differently(self, rank: int, node: int) -> str | None:
        """Members that have created different numbers of chunks before."""
        if self.collectives.plan_of[node] < 0 or self.issued[node] < 0:
            return None
        own = self._chunks_before(rank, node)
        for _, turn, other, calls in self._partners(rank, node):
            if turn < len(calls):
                theirs = self._chunks_before(other, calls[turn])
                if theirs != own:
                    return (
                        f"waits for ever: rank {rank} has created {own} chunks before it and rank "
                        f"{other} {theirs}, by collectives of communicators that not all share; "
                        "ASTRA-sim numbers the messages of the world by them, so they never match."
                    )
        return None

    def other_order(self, rank: int, node: int) -> str | None:
        """Members that issue the collectives of two communicators in different order."""
        workload = self.workload
        if self.collectives.plan_of[node] < 0:
            return None
        for _, turn, other, calls in self._partners(rank, node):
            if turn < len(calls):
                continue
            for held in self.in_progress(other):
                if self.collectives.plan_of[held] < 0 or self.issued[held] < 0:
                    continue
                if rank in self._members(other, held) and self._turn(other, held) >= len(
                    self._calls(rank, int(workload.group[held]))
                ):
                    return (
                        f"waits on {self._communicator(node)} for rank {other}, which waits on "
                        f"{self._communicator(held)} ({workload.describe(held)}) for rank {rank}: "
                        "they issue the two communicators in different order."
                    )
        return None

    def deadlock(self, rank: int, node: int) -> str | None:
        """The deadlock of an all-reduce under localBWAware."""
        del rank
        plan = self.collectives.plan_of[node]
        if plan < 0:
            return None
        record = self.collectives.plans[plan]
        if record["optimized"] and record["phases"] > _SAFE_PHASES and record["count"] > 1:
            dims = int(record["phases"] + 1) // 2
            return (
                f"ASTRA-sim deadlocks here: under localBWAware over {dims} dimensions the "
                f"reduce-scatter and all-gather phases of {int(record['count'])} chunks share "
                "queues, and ranks serve them in different order. collective-optimization "
                '"baseline" or one split avoids it.'
            )
        return None

    def nobody_sends(self, rank: int, node: int) -> str | None:
        """A receive without a send."""
        workload = self.workload
        if workload.type[node] != NodeType.COMM_RECV_NODE:
            return None
        src = int(workload.src[node])
        key = (int(np.fmod(workload.tag[node], _TAGS)), src, rank, int(workload.size[node]))
        if self._receives[key] > self._sends[key]:
            return (
                f"waits for ever: rank {src} has {self._sends[key]} sends to it of {key[3]} bytes "
                f"with tag {key[0]}, for {self._receives[key]} receives."
            )
        return None

    def unseen(self, rank: int, node: int) -> str | None:
        """A node whose dependencies completed without anybody looking."""
        del rank
        if self.issued[node] >= 0:
            return None
        workload = self.workload
        deps = workload.dep[workload.dep_ptr[node] : workload.dep_ptr[node + 1]]
        if (self.completed[deps] >= 0).all():
            return (
                "is never issued: an INVALID_NODE before it completes unseen, and ASTRA-sim looks "
                "again only when another node of the rank completes."
            )
        return None

    def circle(self, rank: int, node: int) -> str | None:
        """Ranks that wait for each other, with collectives, sends and receives."""
        path: list[tuple[int, int]] = []
        at: tuple[int, int] | None = (rank, node)
        while at is not None and at not in path:
            path.append(at)
            at = self._waits_for(*at)
        if at is None:
            return None
        steps = [
            f"rank {one} in {self.workload.describe(held)}" for one, held in path[path.index(at) :]
        ]
        listed = f"{' waits for '.join(steps[:_HOPS])}{' ...' if len(steps) > _HOPS else ''}"
        return (
            f"waits in a circle of {len(steps)}: {listed}. A rank has one communication in "
            "progress at a time, receives excepted, and ASTRA-sim starts the lowest id that is "
            "ready."
        )

    def _waits_for(self, rank: int, node: int) -> tuple[int, int] | None:
        """Rank, and what it is in, that a node waits for."""
        workload = self.workload
        other = -1
        if workload.type[node] == NodeType.COMM_RECV_NODE:
            other = int(workload.src[node])
        for _, turn, member, calls in self._partners(rank, node):
            if turn >= len(calls):
                other = member
                break
        if other < 0:
            return None
        held = self.in_progress(other)
        # What holds the slot comes before receives, which need none.
        held.sort(key=lambda at: int(workload.type[at] == NodeType.COMM_RECV_NODE))
        return (other, held[0]) if held else None

    def _nodes(self, rank: int) -> Int:
        first, last = self.workload.rank_ptr[rank : rank + 2]
        return np.arange(first, last)

    def _what(self, node: int) -> str:
        plan = self.collectives.plans[self.collectives.plan_of[node]]
        name = CommType(self.workload.comm_type[node]).name
        return f"{name} of {self.workload.size[node]} bytes in {int(plan['count'])} chunks"

    def _communicator(self, node: int) -> str:
        group = int(self.workload.group[node])
        return f"communicator {group}" if group else "the world"

    def _phases(self, node: int) -> NDArray[np.void]:
        plan = self.collectives.plan_of[node]
        if plan < 0:
            return self.collectives.phases[:0]
        record = self.collectives.plans[plan]
        return self.collectives.phases[record["phase"] : record["phase"] + record["phases"]]

    def _calls(self, rank: int, group: int) -> list[int]:
        """Collectives of a communicator that a rank has issued, in their order."""
        return [node for node in self._issued_of(rank) if self.workload.group[node] == group]

    def _issued_of(self, rank: int) -> list[int]:
        if rank not in self._order:
            nodes = self._nodes(rank)
            nodes = nodes[(self.collectives.plan_of[nodes] >= 0) & (self.issued[nodes] >= 0)]
            order = np.argsort(self.issued[nodes], kind="stable")
            self._order[rank] = nodes[order].tolist()
        return self._order[rank]

    @cached_property
    def _order(self) -> dict[int, list[int]]:
        return {}

    def _turn(self, rank: int, node: int) -> int:
        return self._calls(rank, int(self.workload.group[node])).index(node)

    def _members(self, rank: int, node: int) -> list[int]:
        plan = self.collectives.plans[self.collectives.plan_of[node]]
        offsets = self.collectives.members[plan["member"] : plan["member"] + plan["members"]]
        if plan["small"]:
            return [int(member) for member in offsets]
        base, stride = rank, 1
        for dim, count in enumerate(self.counts):
            if plan["coordinates"] >> dim & 1:
                base -= rank // stride % count * stride
            stride *= count
        return [base + int(offset) for offset in offsets]

    def _partners(self, rank: int, node: int) -> Iterator[tuple[int, int, int, list[int]]]:
        """Communicator, turn, other member and the calls that it has issued there."""
        if self.collectives.plan_of[node] < 0 or self.issued[node] < 0:
            return
        group = int(self.workload.group[node])
        turn = self._turn(rank, node)
        for other in self._members(rank, node):
            if other != rank:
                yield group, turn, other, self._calls(other, group)

    def _chunks_before(self, rank: int, node: int) -> int:
        """Chunks that number those of a collective."""
        plans, plan_of = self.collectives.plans, self.collectives.plan_of
        before = self._issued_of(rank)
        before = before[: before.index(node)]
        group = self.workload.group[node]
        return sum(
            int(plans["count"][plan_of[call]])
            for call in before
            if group == 0 or self.workload.group[call] == group
        )

    @cached_property
    def _sends(self) -> Counter[tuple[int, int, int, int]]:
        return self._messages(NodeType.COMM_SEND_NODE)

    @cached_property
    def _receives(self) -> Counter[tuple[int, int, int, int]]:
        return self._messages(NodeType.COMM_RECV_NODE)

    def _messages(self, kind: NodeType) -> Counter[tuple[int, int, int, int]]:
        """Messages by tag, source, destination and bytes."""
        workload = self.workload
        nodes = np.flatnonzero(workload.type == kind)
        rank = np.searchsorted(workload.rank_ptr, nodes, side="right") - 1
        src, dst = rank, workload.dst[nodes]
        if kind == NodeType.COMM_RECV_NODE:
            src, dst = workload.src[nodes], rank
        tag = np.fmod(workload.tag[nodes], _TAGS)
        size = workload.size[nodes]
        return Counter(zip(tag.tolist(), src.tolist(), dst.tolist(), size.tolist(), strict=True))
