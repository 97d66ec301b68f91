"""Build an execution graph node by node.

For graphs made by hand: tests, examples, and programs that no profiler has seen. Nodes may be
added rank after rank or mixed; what matters is that a node is added after those it depends on.
The converters, which hold whole traces, fill the columns directly.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .columns import (
    Collective,
    DependencyModel,
    EdgeKind,
    ExecutionGraph,
    Flavour,
    Group,
    Kind,
    LaneKind,
    Lanes,
    Steps,
)
from .coverage import Coverage
from .steps import step_completions

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from numpy.typing import NDArray


class Dep(NamedTuple):
    """A dependency that is not simply the end of another node."""

    node: int
    kind: EdgeKind = EdgeKind.END
    lag_ns: int = 0


class _Node(NamedTuple):
    """One row of the graph to be; fields as in `ExecutionGraph`."""

    rank: int
    kind: Kind
    flavour: Flavour
    lane: int
    name: int
    step: int
    start_ns: int
    dur_ns: int
    gap_ns: int
    coll: Collective
    size_bytes: int
    group: int
    seq: int
    peer: int
    tag: int
    instance: int
    transfer_ns: int
    tail_ns: int
    eager: bool
    dtype: int = -1
    split: int = -1


class _Rank(NamedTuple):
    base_ns: int
    start_offset_ns: int
    host: str
    device: str


class _Step(NamedTuple):
    name: str
    markers: Mapping[int, int]
    begin_ns: Mapping[int, int]
    completion_ns: int | None


class GraphBuilder:
    """Collects ranks, lanes, groups, nodes and steps and makes them an `ExecutionGraph`.

    Nodes are named by handles: the integers that the methods adding them return. Nothing is
    checked here beyond what cannot be stored; `graph.validate` does that.

    Parameters
    ----------
    model : str
        Dependency model the graph claims.
    world_size : int, optional
        Ranks of the job; by default those added.

    Examples
    --------
    >>> build = GraphBuilder()
    >>> build.rank(0)
    >>> stream = build.lane(0, LaneKind.STREAM, 7)
    >>> first = build.node(stream, Flavour.COMPUTE, 100)
    >>> second = build.node(stream, Flavour.COMPUTE, 50, gap_ns=5)
    >>> build.step("step 0", {0: second})
    >>> graph = build.build()
    >>> graph.dep_node.tolist()
    [0]
    """

    def __init__(self, *, model: DependencyModel = "host", world_size: int | None = None) -> None:
        self._model: DependencyModel = model
        self._world_size = world_size
        self._ranks: dict[int, _Rank] = {}
        self._lanes: list[tuple[int, LaneKind, int, int]] = []
        self._lane_tail: dict[int, int] = {}
        self._groups: list[Group] = []
        self._names: dict[str, int] = {}
        self._splits: dict[tuple[int, ...], int] = {}
        self._nodes: list[_Node] = []
        self._deps: list[list[Dep]] = []
        self._steps: list[_Step] = []
        self._instances: dict[Hashable, int] = {}
        self._next_seq: dict[Hashable, int] = defaultdict(int)

    def rank(
        self,
        rank: int,
        *,
        base_ns: int = 0,
        start_offset_ns: int = 0,
        host: str = "",
        device: str = "",
    ) -> None:
        """Add a rank by its global number."""
        self._ranks[rank] = _Rank(base_ns, start_offset_ns, host, device)

    def lane(self, rank: int, kind: LaneKind, number: int = 0, *, servers: int = 1) -> int:
        """Add a lane of a rank and return its index."""
        self._lanes.append((rank, kind, number, servers))
        return len(self._lanes) - 1

    def group(self, name: str, ranks: Iterable[int], description: str = "") -> int:
        """Add a process group and return its index."""
        self._groups.append(Group(name, tuple(ranks), description))
        return len(self._groups) - 1

    def node(
        self,
        lane: int,
        flavour: Flavour,
        dur_ns: int,
        *,
        name: str = "",
        after: Iterable[int | Dep] | None = None,
        gap_ns: int = 0,
        start_ns: int = 0,
        step: int = 0,
    ) -> int:
        """Add computation, a copy, host work or a gap.

        Parameters
        ----------
        lane : int
            Index of the lane.
        flavour : Flavour
            What the duration is.
        dur_ns, gap_ns, start_ns : int
            Measured duration, gap before the start, measured start.
        name : str
            By default the flavour.
        after : iterable of int or Dep, optional
            Dependencies. By default the node added last to the lane, if any; for a queue with
            several servers, none.
        step : int
            Step in which the node is launched.

        Returns
        -------
        int
            Handle of the node.
        """
        return self._add(
            lane,
            after,
            _Node(
                rank=self._lanes[lane][0],
                kind=Kind.COMP,
                flavour=flavour,
                lane=lane,
                name=self._name(name or flavour.name.lower()),
                step=step,
                start_ns=start_ns,
                dur_ns=dur_ns,
                gap_ns=gap_ns,
                coll=Collective.NONE,
                size_bytes=-1,
                group=-1,
                seq=-1,
                peer=-1,
                tag=-1,
                instance=-1,
                transfer_ns=-1,
                tail_ns=0,
                eager=False,
            ),
        )

    def collective(
        self,
        lane: int,
        coll: Collective,
        group: int,
        size_bytes: int,
        *,
        root: int = -1,
        dtype: str = "",
        split: tuple[int, ...] = (),
        name: str = "",
        after: Iterable[int | Dep] | None = None,
        gap_ns: int = 0,
        start_ns: int = 0,
        dur_ns: int = 0,
        transfer_ns: int = -1,
        tail_ns: int = 0,
        step: int = 0,
    ) -> int:
        """Add one rank's part in a collective.

        The n-th collective of a rank in a group joins the n-th of the other ranks.

        Parameters
        ----------
        coll : Collective
            The operation.
        group : int
            Index of the process group.
        size_bytes : int
            Input bytes of this rank.
        root : int
            Global rank of the root of a rooted collective.
        dtype : str
            Data type, if it is known.
        split : tuple of int
            Bytes to each member of the group, of an all-to-all of unequal parts.
        transfer_ns, tail_ns : int
            Measured transfer and tail.
        lane, name, after, gap_ns, start_ns, dur_ns, step
            As for `node`; `dur_ns` is all of it, waiting included.

        Returns
        -------
        int
            Handle of the node.
        """
        rank = self._lanes[lane][0]
        seq = self._sequence(("collective", group, rank))
        return self._add(
            lane,
            after,
            _Node(
                rank=rank,
                kind=Kind.COMM_COLL,
                flavour=Flavour.COMM,
                lane=lane,
                name=self._name(name or coll.label),
                step=step,
                start_ns=start_ns,
                dur_ns=dur_ns,
                gap_ns=gap_ns,
                coll=coll,
                size_bytes=size_bytes,
                group=group,
                seq=seq,
                peer=root,
                tag=-1,
                instance=self._instance(("collective", group, seq)),
                transfer_ns=transfer_ns,
                tail_ns=tail_ns,
                eager=False,
                dtype=self._name(dtype) if dtype else -1,
                split=self._splits.setdefault(split, len(self._splits)) if split else -1,
            ),
        )

    def point_to_point(
        self,
        lane: int,
        kind: Kind,
        peer: int,
        group: int,
        size_bytes: int,
        *,
        tag: int = 0,
        eager: bool = False,
        name: str = "",
        after: Iterable[int | Dep] | None = None,
        gap_ns: int = 0,
        start_ns: int = 0,
        dur_ns: int = 0,
        transfer_ns: int = -1,
        tail_ns: int = 0,
        step: int = 0,
    ) -> int:
        """Add a send or a receive.

        The n-th send from one rank to another in a group with a tag joins the n-th receive.

        Parameters
        ----------
        kind : Kind
            SEND or RECV.
        peer : int
            Global rank of the other side.
        tag : int
            Tag of the message.
        eager : bool
            Whether a send completes without its receive.
        lane, group, size_bytes, name, after, gap_ns, start_ns, dur_ns, transfer_ns, tail_ns, step
            As for `collective`.

        Returns
        -------
        int
            Handle of the node.
        """
        rank = self._lanes[lane][0]
        pair = (rank, peer) if kind == Kind.SEND else (peer, rank)
        seq = self._sequence((kind, group, pair, tag))
        return self._add(
            lane,
            after,
            _Node(
                rank=rank,
                kind=kind,
                flavour=Flavour.COMM,
                lane=lane,
                name=self._name(name or kind.name.lower()),
                step=step,
                start_ns=start_ns,
                dur_ns=dur_ns,
                gap_ns=gap_ns,
                coll=Collective.SEND_RECV,
                size_bytes=size_bytes,
                group=group,
                seq=seq,
                peer=peer,
                tag=tag,
                instance=self._instance(("pair", group, pair, tag, seq)),
                transfer_ns=transfer_ns,
                tail_ns=tail_ns,
                eager=eager,
            ),
        )

    def step(
        self,
        name: str,
        markers: Mapping[int, int],
        *,
        begin_ns: Mapping[int, int] | None = None,
        completion_ns: int | None = None,
    ) -> None:
        """Add a recorded step.

        Parameters
        ----------
        name : str
            Its annotation.
        markers : mapping of int to int
            Global rank to the handle of the node that ends when the annotation ends.
        begin_ns : mapping of int to int, optional
            Global rank to the measured start of the annotation; by default 0.
        completion_ns : int, optional
            Measured completion; by default from the measured columns.
        """
        self._steps.append(_Step(name, dict(markers), dict(begin_ns or {}), completion_ns))

    def build(self) -> ExecutionGraph:
        """Make the graph: ranks ascending, and in a rank the nodes in the order added."""
        ranks = sorted(self._ranks)
        rank_index = {rank: i for i, rank in enumerate(ranks)}
        owner = np.array([rank_index[node.rank] for node in self._nodes], dtype=np.int64)
        order = np.argsort(owner, kind="stable")
        position = np.empty(len(order), dtype=np.int64)
        position[order] = np.arange(len(order))
        nodes = [self._nodes[i] for i in order]
        deps = [self._deps[i] for i in order]
        edges = [dep for row in deps for dep in row]

        def column(field: str, dtype: type) -> NDArray[Any]:
            return np.array([getattr(node, field) for node in nodes], dtype=dtype)

        graph = ExecutionGraph(
            model=self._model,
            source="hand-made",
            trace="",
            ranks=np.array(ranks, dtype=np.int64),
            rank_ptr=np.searchsorted(owner[order], np.arange(len(ranks) + 1)).astype(np.int64),
            world_size=len(ranks) if self._world_size is None else self._world_size,
            hosts=tuple(self._ranks[rank].host for rank in ranks),
            devices=tuple(self._ranks[rank].device for rank in ranks),
            base_ns=np.array([self._ranks[rank].base_ns for rank in ranks], dtype=np.int64),
            start_offset_ns=np.array(
                [self._ranks[rank].start_offset_ns for rank in ranks], dtype=np.int64
            ),
            names=tuple(self._names),
            kind=column("kind", np.int8),
            flavour=column("flavour", np.int8),
            lane=column("lane", np.int32),
            name=column("name", np.int32),
            step=column("step", np.int32),
            start_ns=column("start_ns", np.int64),
            dur_ns=column("dur_ns", np.int64),
            gap_ns=column("gap_ns", np.int64),
            dep_ptr=np.cumsum([0, *map(len, deps)], dtype=np.int64),
            dep_node=position[np.array([dep.node for dep in edges], dtype=np.int64)],
            dep_kind=np.array([dep.kind for dep in edges], dtype=np.int8),
            dep_lag_ns=np.array([dep.lag_ns for dep in edges], dtype=np.int64),
            coll=column("coll", np.int8),
            size_bytes=column("size_bytes", np.int64),
            group=column("group", np.int32),
            seq=column("seq", np.int64),
            peer=column("peer", np.int32),
            tag=column("tag", np.int32),
            instance=column("instance", np.int32),
            transfer_ns=column("transfer_ns", np.int64),
            tail_ns=column("tail_ns", np.int64),
            eager=column("eager", np.bool_),
            dtype=column("dtype", np.int32),
            split=column("split", np.int32),
            splits=tuple(self._splits),
            lanes=Lanes(
                rank=np.array([rank_index[lane[0]] for lane in self._lanes], dtype=np.int32),
                kind=np.array([lane[1] for lane in self._lanes], dtype=np.int8),
                number=np.array([lane[2] for lane in self._lanes], dtype=np.int64),
                servers=np.array([lane[3] for lane in self._lanes], dtype=np.int32),
            ),
            groups=tuple(self._groups),
            steps=Steps((), *(np.zeros((0, len(ranks)), np.int64),) * 2, np.zeros(0, np.int64)),
            coverage=Coverage(),
        )
        return graph.with_(steps=self._measured_steps(graph, ranks, position))

    def _measured_steps(
        self,
        graph: ExecutionGraph,
        ranks: list[int],
        position: NDArray[Any],
    ) -> Steps:
        shape = (len(self._steps), len(ranks))
        steps = Steps(
            names=tuple(step.name for step in self._steps),
            begin_ns=np.array(
                [[step.begin_ns.get(rank, 0) for rank in ranks] for step in self._steps],
                dtype=np.int64,
            ).reshape(shape),
            marker=np.array(
                [[position[step.markers[rank]] for rank in ranks] for step in self._steps],
                dtype=np.int64,
            ).reshape(shape),
            completion_ns=np.zeros(len(self._steps), dtype=np.int64),
        )
        if self._steps:
            measured = step_completions(graph.with_(steps=steps), graph.end_ns).max(axis=1)
            for k, step in enumerate(self._steps):
                given = step.completion_ns
                steps.completion_ns[k] = measured[k] if given is None else given
        return steps

    def _add(self, lane: int, after: Iterable[int | Dep] | None, node: _Node) -> int:
        if after is None:
            ordered = self._lanes[lane][3] == 1 and lane in self._lane_tail
            after = (self._lane_tail[lane],) if ordered else ()
        self._deps.append([dep if isinstance(dep, Dep) else Dep(dep) for dep in after])
        self._nodes.append(node)
        self._lane_tail[lane] = len(self._nodes) - 1
        return len(self._nodes) - 1

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _sequence(self, key: Hashable) -> int:
        self._next_seq[key] += 1
        return self._next_seq[key] - 1

    def _instance(self, key: Hashable) -> int:
        return self._instances.setdefault(key, len(self._instances))
