"""Every fault of a graph is found before a simulation, and named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from whatif.base.errors import GraphError
from whatif.graph.build import Dep, GraphBuilder
from whatif.graph.columns import Collective, EdgeKind, ExecutionGraph, Flavour, Kind, LaneKind
from whatif.graph.coverage import Coverage
from whatif.graph.validate import validate

from .programs import Job, execute, jobs, to_graph

if TYPE_CHECKING:
    from collections.abc import Callable


class TwoRanks:
    """Two ranks with a host lane, a stream and a queue each, in one group."""

    def __init__(self) -> None:
        self.build = GraphBuilder()
        self.group = self.build.group("dp", [0, 1])
        self.other = self.build.group("tp", [0, 1])
        self.stream, self.queue = [], []
        self.markers = {}
        for rank in (0, 1):
            self.build.rank(rank)
            host = self.build.lane(rank, LaneKind.HOST)
            self.stream.append(self.build.lane(rank, LaneKind.STREAM))
            self.queue.append(self.build.lane(rank, LaneKind.QUEUE, servers=2))
            self.markers[rank] = self.build.node(host, Flavour.GAP, 0)

    def all_reduce(self, rank: int, group: int, size: int = 8, **options: Any) -> int:
        return self.build.collective(
            self.stream[rank], Collective.ALL_REDUCE, group, size, **options
        )

    def graph(self) -> ExecutionGraph:
        self.build.step("step", self.markers)
        return self.build.build()


def sound() -> ExecutionGraph:
    """Rank 0 holds nodes 0 to 3, rank 1 nodes 4 to 7: marker, kernel, all-reduce, send/receive."""
    job = TwoRanks()
    for rank, kind in enumerate((Kind.SEND, Kind.RECV)):
        job.build.node(job.stream[rank], Flavour.COMPUTE, 5, name="gemm")
        job.all_reduce(rank, job.group, transfer_ns=3)
        job.build.point_to_point(job.stream[rank], kind, 1 - rank, job.group, 8, transfer_ns=3)
    return job.graph()


def changed(column: str, node: int, value: int) -> ExecutionGraph:
    graph = sound()
    values = getattr(graph, column).copy()
    values[node] = value
    return graph.with_(**{column: values})


def test_a_sound_graph_passes() -> None:
    validate(sound())


@settings(max_examples=50, deadline=None)
@given(jobs())
def test_every_job_that_ran_passes(job: Job) -> None:
    validate(to_graph(job, execute(job))[0])


KERNEL = r"rank 0, node 1 'gemm': "
REDUCE = r"rank 1, node 6 'all-reduce' \(number 0 in group 'dp'\): "
RECEIVE = r"rank 1, node 7 'recv' \(number 0 in group 'dp'\): "


@pytest.mark.parametrize(
    ("column", "at", "value", "message"),
    [
        ("dur_ns", 1, -1, KERNEL + "dur_ns is negative"),
        ("gap_ns", 1, -1, KERNEL + "gap_ns is negative"),
        ("tail_ns", 6, -1, REDUCE + "tail_ns is negative"),
        ("transfer_ns", 6, -2, REDUCE + "transfer_ns is negative"),
        ("dep_lag_ns", 0, -1, r"rank 0, node 2 .*lag after its dependency is negative: node 1"),
        ("dep_node", 0, 2, r"rank 0, node 2 .*not before it: node 2"),
        ("dep_node", 0, 3, r"rank 0, node 2 .*not before it: node 3"),
        ("dep_node", 2, 1, r"rank 1, node 6 .*of another rank: node 1"),
        ("dep_node", 2, -1, r"rank 1, node 6 .*of another rank: node -1"),
        ("dep_kind", 0, 7, r"rank 0, node 2 .*unknown kind"),
        ("lane", 1, 99, r"rank 0, node 1: lane is 99, outside 0 to 5"),
        ("lane", 1, 4, KERNEL + "its lane belongs to another rank"),
        ("name", 1, 99, r"rank 0, node 1: name is 99"),
        ("flavour", 1, 9, r"rank 0, node 1: flavour is 9"),
        ("step", 1, 2, r"rank 0, node 1: step is 2, outside -1 to 1"),
        ("flavour", 1, Flavour.COMM, KERNEL + "its kind and its flavour disagree"),
        ("coll", 1, Collective.BARRIER, KERNEL + "is computation with a collective"),
        ("coll", 6, Collective.NONE, r"rank 1, node 6 .*communication without an operation"),
        ("coll", 6, Collective.SEND_RECV, REDUCE + "is a collective whose operation is send"),
        ("coll", 7, Collective.BARRIER, RECEIVE + "is a send or receive with a collective"),
        ("group", 6, 5, r"rank 1, node 6 'all-reduce': belongs to no group"),
        ("group", 6, -1, r"rank 1, node 6 'all-reduce': belongs to no group"),
        ("instance", 6, -3, REDUCE + "instance is negative"),
        ("instance", 6, 7, r"instance 2: numbers without members"),
        ("coll", 6, Collective.BARRIER, REDUCE + r"is not the operation of rank 0 node 2"),
        ("group", 6, 1, r"rank 1, node 6 .*is not in the group of rank 0 node 2"),
        ("size_bytes", 6, 9, r"rank 0, node 2 .*moves another number of bytes .*rank 0"),
        ("kind", 7, Kind.SEND, r"rank 0, node 3 .*a send with rank 1 is joined with rank 1 node 7"),
        ("peer", 7, 1, RECEIVE + r"a recv with rank 1 is joined with rank 0 node 3"),
        ("instance", 6, -1, r"rank 1: has no part in all-reduce number 0 of group 'dp', which"),
    ],
)  # fmt: skip
def test_a_fault_in_a_column_is_named(column: str, at: int, value: int, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        validate(changed(column, at, value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: {"dur_ns": g.dur_ns[1:]}, "column dur_ns: has 7 entries instead of 8"),
        (lambda _: {"hosts": ("a",)}, "column hosts: has 1 entries instead of 2"),
        (lambda _: {"ranks": np.array([1, 1])}, "column ranks: .*one is there twice"),
        (lambda _: {"rank_ptr": np.array([0, 9, 8])}, "column rank_ptr: does not rise"),
        (lambda g: {"dep_ptr": g.dep_ptr + 1}, "column dep_ptr: does not rise from 0 to 4"),
        (
            lambda g: {"lanes": replace(g.lanes, servers=g.lanes.servers * 0)},
            "lane 0: has no servers",
        ),
        (
            lambda g: {"steps": replace(g.steps, marker=np.array([[0, 0]]))},
            "rank 1: step 'step' has no marker on this rank",
        ),
        (
            lambda g: {"steps": replace(g.steps, marker=np.zeros((2, 2), np.int64))},
            r"steps: the tables are not of shape \(1, 2\)",
        ),
        (
            lambda g: {
                "steps": replace(
                    g.steps,
                    names=(),
                    marker=np.zeros((0, 2), np.int64),
                    completion_ns=np.zeros(0, np.int64),
                )
            },
            "graph: has no step",
        ),
    ],
)
def test_a_fault_in_a_table_is_named(
    change: Callable[[ExecutionGraph], dict[str, Any]], message: str
) -> None:
    graph = sound()
    with pytest.raises(GraphError, match=message):
        validate(graph.with_(**change(graph)))


def test_a_rank_with_two_parts_in_one_operation_is_named() -> None:
    job = TwoRanks()
    job.all_reduce(0, job.group)
    job.all_reduce(0, job.group)
    job.all_reduce(1, job.group)
    graph = job.graph()
    with pytest.raises(GraphError, match=r"rank 0, node 2 .*is the second part of this rank"):
        validate(graph.with_(instance=np.where(graph.instance >= 0, 0, -1).astype(np.int32)))


def test_a_rank_outside_the_group_is_named() -> None:
    graph = sound()
    groups = (replace(graph.groups[0], ranks=(0,)), graph.groups[1])
    with pytest.raises(GraphError, match=r"rank 1, node 6 .*the rank is no member of the group"):
        validate(graph.with_(groups=groups))


def test_a_member_that_was_not_traced_is_an_error_unless_it_was_assumed() -> None:
    graph = sound()
    groups = (replace(graph.groups[0], ranks=(0, 1, 2)), graph.groups[1])
    graph = graph.with_(groups=groups, world_size=3)
    with pytest.raises(GraphError, match=r"rank 2: has no part in all-reduce number 0"):
        validate(graph)
    validate(graph.with_(coverage=Coverage(assumed_members=1)))


def test_a_receive_without_its_send_is_named_unless_the_sender_was_assumed() -> None:
    graph = sound()
    peer = graph.peer.copy()
    peer[7] = 2
    graph = graph.with_(
        instance=np.where(np.arange(8) == 3, -1, graph.instance).astype(np.int32), peer=peer
    )
    with pytest.raises(GraphError, match=RECEIVE + "a recv with rank 2 is joined with 0 others"):
        validate(graph)
    validate(graph.with_(coverage=Coverage(assumed_members=1)))


@pytest.mark.parametrize(
    ("roots", "message"),
    [
        ([-1, -1], "the root is not known"),
        ([0, 1], "has another root than rank 0"),
        ([3, 3], "its root, rank 3, is no member of the group"),
    ],
)
def test_the_root_of_a_broadcast_must_be_one_member(roots: list[int], message: str) -> None:
    job = TwoRanks()
    for rank, root in enumerate(roots):
        job.build.collective(job.stream[rank], Collective.BROADCAST, job.group, 8, root=root)
    with pytest.raises(GraphError, match=r"'broadcast' \(number 0 in group 'dp'\): " + message):
        validate(job.graph())


def test_uneven_shards_of_an_all_to_all_are_no_fault() -> None:
    job = TwoRanks()
    for rank, size in enumerate((8, 24)):
        job.build.collective(job.stream[rank], Collective.ALL_TO_ALL, job.group, size)
    validate(job.graph())


def test_ranks_that_run_collectives_in_different_orders_are_named() -> None:
    job = TwoRanks()
    for rank, groups in enumerate(((job.group, job.other), (job.other, job.group))):
        for group in groups:
            job.all_reduce(rank, group)
    with pytest.raises(GraphError, match="wait for each other in a circle") as caught:
        validate(job.graph())
    for part in ("rank 0", "rank 1", "group 'dp'", "group 'tp'", "number 0"):
        assert part in str(caught.value)


def test_members_in_a_queue_with_several_servers_may_cross() -> None:
    job = TwoRanks()
    for rank, groups in enumerate(((job.group, job.other), (job.other, job.group))):
        for group in groups:
            job.build.collective(job.queue[rank], Collective.ALL_REDUCE, group, 8)
    validate(job.graph())


def test_a_circle_through_the_order_of_a_queue_is_found() -> None:
    """The second in rank 0's queue stands behind one that waits for what comes after it."""
    job = TwoRanks()
    third = job.build.group("pp", [0, 1])
    waited = job.all_reduce(0, job.group)
    job.build.node(job.queue[0], Flavour.GAP, 1, after=[waited])
    job.build.collective(job.queue[0], Collective.ALL_REDUCE, third, 8)
    job.all_reduce(1, third)
    job.all_reduce(1, job.group)
    with pytest.raises(GraphError, match=r"'pp'.*'dp'|'dp'.*'pp'"):
        validate(job.graph())


def test_a_circle_through_local_work_and_eager_sends_is_told_from_one_that_is_none() -> None:
    """Each rank sends, then receives: a circle with rendezvous sends, none with eager ones."""
    for eager in (False, True):
        job = TwoRanks()
        for rank in (0, 1):
            stream = job.stream[rank]
            job.build.point_to_point(stream, Kind.SEND, 1 - rank, job.group, 8, eager=eager)
            job.build.node(stream, Flavour.COMPUTE, 1)
            job.build.point_to_point(stream, Kind.RECV, 1 - rank, job.group, 8)
        if eager:
            validate(job.graph())
        else:
            with pytest.raises(GraphError, match=r"'send'.*'recv'"):
                validate(job.graph())


def test_a_broadcast_makes_a_circle_only_through_its_root() -> None:
    """Ranks 1 and 2 receive in opposite orders, which their root does not mind."""
    for roots, is_circle in (((0, 0), False), ((2, 0), True)):
        build = GraphBuilder()
        groups = [build.group(name, [0, 1, 2]) for name in ("dp", "tp")]
        markers = {}
        for rank, order in enumerate(((0, 1), (0, 1), (1, 0))):
            build.rank(rank)
            stream = build.lane(rank, LaneKind.STREAM)
            for g in order:
                markers[rank] = build.collective(
                    stream, Collective.BROADCAST, groups[g], 8, root=roots[g]
                )
        build.step("step", markers)
        if is_circle:
            with pytest.raises(GraphError, match="circle"):
                validate(build.build())
        else:
            validate(build.build())


def test_a_dependency_on_the_start_of_a_member_does_not_wait_for_its_end() -> None:
    job = TwoRanks()
    for rank, groups in enumerate(((job.group, job.other), (job.other, job.group))):
        first = job.all_reduce(rank, groups[0])
        job.all_reduce(rank, groups[1], after=[Dep(first, EdgeKind.START)])
    validate(job.graph())
