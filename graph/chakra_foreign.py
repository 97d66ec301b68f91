"""Chakra files that others wrote, as an execution graph.

They hold durations in microseconds, dependencies and communication, and neither a measured
timeline nor steps nor lanes. So nodes start as soon as their own rank allows, the whole trace
is one step, lanes are the three slots that ASTRA-sim gives a rank, and the coverage says all
of it. What ASTRA-sim would hang on is refused by name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.documents import quoted, read_json
from ..base.errors import GraphError, TraceError
from . import chakra_format as fmt
from .chakra_plan import topological_order
from .columns import (
    Collective,
    EdgeKind,
    ExecutionGraph,
    Flavour,
    Group,
    Kind,
    LaneKind,
    Lanes,
    Steps,
)
from .coverage import Coverage, Dropped, Inference
from .nx import describe_cycle
from .validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# Numbers of the node types in the Chakra schema.
_INVALID, _METADATA, _MEM_LOAD, _MEM_STORE, _COMP, _SEND, _RECV, _COLL = range(8)

#: Node types that a graph does not know: they take no time.
_EMPTY = (_INVALID, _METADATA)

#: Attributes that are kept; traces carry others, such as operator schemas, on every node.
_USED = frozenset(
    {"is_cpu_op", "comm_type", "comm_size", "pg_name", "comm_src", "comm_dst", "comm_tag"}
    | {"num_ops", "involved_dim"}
)

#: Values of `pg_name` that mean all ranks.
_WORLD = ("", "0")


@dataclass
class _Node:
    """What a graph can use of one Chakra node."""

    id: int
    name: str
    type: int
    data: list[int]
    ctrl: list[int]
    dur_ns: int
    attributes: dict[str, Any]

    def number(self, key: str, default: int = -1) -> int:
        """Attribute of any integer type."""
        value = self.attributes.get(key, default)
        return int(value)

    @property
    def on_cpu(self) -> bool:
        return bool(self.attributes.get("is_cpu_op", False))

    @property
    def kind(self) -> Kind:
        if self.type == _SEND:
            return Kind.SEND
        if self.type == _RECV:
            return Kind.RECV
        # A collective on the CPU is the call that launches one.
        return Kind.COMM_COLL if self.type == _COLL and not self.on_cpu else Kind.COMP

    @property
    def flavour(self) -> Flavour:
        if self.kind != Kind.COMP:
            return Flavour.COMM
        if self.type in _EMPTY:
            return Flavour.GAP
        if self.type in (_MEM_LOAD, _MEM_STORE):
            return Flavour.COPY
        return Flavour.HOST if self.on_cpu else Flavour.COMPUTE

    @property
    def collective(self) -> Collective:
        if self.kind == Kind.COMP:
            return Collective.NONE
        if self.kind != Kind.COMM_COLL:
            return Collective.SEND_RECV
        return Collective(self.number("comm_type"))

    @property
    def size(self) -> int:
        return self.number("comm_size") if self.kind != Kind.COMP else -1


@dataclass
class _Job:
    """Everything that is gathered from the files of a job."""

    files: list[Path]
    ranks: list[list[_Node]] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0])
    deps: list[list[int]] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)
    group: dict[int, int] = field(default_factory=dict)
    seq: dict[int, int] = field(default_factory=dict)
    peer: dict[int, int] = field(default_factory=dict)
    instance: dict[int, int] = field(default_factory=dict)
    instances: int = 0
    groups: list[Group] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def at(self, npu: int, position: int) -> dict[str, Any]:
        """Where a node is, for an error."""
        node = self.ranks[npu][position]
        return {"file": self.files[npu], "rank": npu, "place": f"node {node.id} ({node.name})"}

    def add_group(self, name: str, npus: Iterable[int]) -> int:
        """Add a process group; its index."""
        self.groups.append(Group(name, tuple(npus)))
        return len(self.groups) - 1

    def world(self) -> int:
        """Index of the group of all ranks, which is made when it is first needed."""
        for index, group in enumerate(self.groups):
            if group.name == "world":
                return index
        return self.add_group("world", range(len(self.ranks)))

    def join(self, members: Iterable[int]) -> None:
        """Make nodes one instance."""
        for node in members:
            self.instance[node] = self.instances
        self.instances += 1


def read_foreign(
    path: Path,
    prefix: str,
    files: list[tuple[Path, Iterator[fmt.ProtoMessage]]],
    comm_groups: Path | None,
) -> ExecutionGraph:
    """Make a graph of Chakra files that carry no attributes of ours.

    Parameters
    ----------
    path : Path
        What the user named.
    prefix : str
        First part of the file names.
    files : list of (Path, iterator of Node messages)
        By npu.
    comm_groups : Path, optional
        Communicator groups; by default a ``*comm_group*.json`` beside the files. Without one,
        the members of a group are the ranks whose nodes name it.

    Returns
    -------
    ExecutionGraph
        Deps are the union of ctrl_deps and data_deps. Durations are duration_micros, starts as
        early as the dependencies on the rank itself allow, and transfer times unknown. The k-th
        collective of a group on one rank is the k-th on all; sends and receives match by
        source, destination, tag and bytes in order, and sends are eager, as in ASTRA-sim.

    Raises
    ------
    TraceError
        If the file of groups is damaged.
    GraphError
        If ids repeat, data dependencies are missing or cyclic, or communication does not match.
    """
    job = _Job([file for file, _ in files])
    ctrl_missing = 0
    for npu, (_, messages) in enumerate(files):
        ctrl_missing += _add_rank(job, npu, messages)
    if ctrl_missing:
        job.coverage.dropped.append(
            Dropped("ctrl_deps", ctrl_missing, "they name nodes that the files do not have")
        )
    _join_collectives(job, _read_groups(job, prefix, comm_groups))
    _join_messages(job)
    _describe(job)
    graph = _assemble(job, path)
    validate(graph)
    return graph


def _add_rank(job: _Job, npu: int, messages: Iterator[fmt.ProtoMessage]) -> int:
    """Append the nodes of a rank in topological order; the number of missing ctrl_deps."""
    nodes: dict[int, _Node] = {}
    for message in messages:
        node = _Node(
            id=message.id,
            name=message.name[: fmt.NAME_LIMIT],
            type=message.type,
            data=list(message.data_deps),
            ctrl=list(message.ctrl_deps),
            dur_ns=message.duration_micros * 1000 if message.type not in _EMPTY else 0,
            attributes={k: v for k, v in fmt.attributes(message).items() if k in _USED},
        )
        if node.id in nodes:
            raise GraphError(
                f"node id {node.id} is given twice ({nodes[node.id].name} and {node.name})",
                file=job.files[npu],
                rank=npu,
            )
        nodes[node.id] = node
    missing = 0
    deps: dict[int, list[int]] = {}
    for node in nodes.values():
        for dep in node.data:
            if dep not in nodes:
                raise GraphError(
                    f"depends on node {dep}, which the file does not have",
                    file=job.files[npu],
                    rank=npu,
                    place=f"node {node.id} ({node.name})",
                )
        missing += sum(dep not in nodes for dep in node.ctrl)
        deps[node.id] = list(
            dict.fromkeys([*node.data, *(dep for dep in node.ctrl if dep in nodes)])
        )
    order = _topological(job, npu, nodes, deps)
    first = job.first[-1]
    position = {node: first + i for i, node in enumerate(order)}
    job.ranks.append([nodes[ident] for ident in order])
    job.first.append(first + len(order))
    for ident in order:
        on = [position[dep] for dep in deps[ident]]
        job.deps.append(on)
        ends = [job.start_ns[dep] + job.ranks[npu][dep - first].dur_ns for dep in on]
        job.start_ns.append(max(ends, default=0))
    return missing


def _topological(
    job: _Job, npu: int, nodes: dict[int, _Node], deps: dict[int, list[int]]
) -> list[int]:
    """Ids in an order that dependencies allow, the lowest first, as ASTRA-sim issues them."""
    order = topological_order(deps)
    if len(order) < len(nodes):
        import networkx as nx

        stuck = nodes.keys() - set(order)
        digraph: nx.DiGraph[int] = nx.DiGraph()
        digraph.add_nodes_from((ident, {"name": nodes[ident].name}) for ident in stuck)
        digraph.add_edges_from(
            (dep, ident) for ident in stuck for dep in deps[ident] if dep in stuck
        )
        raise GraphError(
            f"dependencies form a cycle: {describe_cycle(digraph)}",
            file=job.files[npu],
            rank=npu,
        )
    return order


def _read_groups(job: _Job, prefix: str, given: Path | None) -> dict[str, tuple[int, ...]]:
    directory = job.files[0].parent
    path = given
    if path is None:
        candidates = sorted(directory.glob("*comm_group*.json"))
        exact = directory / fmt.groups_name(prefix)
        path = exact if exact in candidates else candidates[0] if len(candidates) == 1 else None
    if path is None:
        return {}
    try:
        return _groups(read_json(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise TraceError(
            f'is not a file of communicator groups {{"1": [npus], ...}} ({error})', file=path
        ) from error


def _groups(table: object) -> dict[str, tuple[int, ...]]:
    if not isinstance(table, dict):
        raise TypeError(f"{quoted(table)} is no table")
    return {_number(key): _members(npus) for key, npus in table.items()}


def _number(key: str) -> str:
    """Take numbers only as everybody writes them; as text they are what nodes name."""
    if str(int(key)) != key:
        raise ValueError(f"group {key!r} is not written as {int(key)}")
    return key


def _members(npus: object) -> tuple[int, ...]:
    if not isinstance(npus, list):
        raise TypeError(f"{npus!r} is no list")
    for npu in npus:
        if type(npu) is not int:
            raise TypeError(f"{npu!r} is no rank")
    return tuple(npus)


def _join_collectives(job: _Job, table: dict[str, tuple[int, ...]]) -> None:
    """Match the k-th collective of a group on every member."""
    calls: dict[str, dict[int, list[int]]] = {}
    for npu, nodes in enumerate(job.ranks):
        for position, node in enumerate(nodes):
            if node.kind == Kind.COMM_COLL:
                if not Collective.NONE < node.number("comm_type") < Collective.SEND_RECV:
                    raise GraphError(
                        f"comm_type {node.attributes.get('comm_type')} is none of the schema's",
                        **job.at(npu, position),
                    )
                name = str(node.attributes.get("pg_name", ""))
                name = "0" if name in _WORLD else name
                calls.setdefault(name, {}).setdefault(npu, []).append(position)
    guessed = 0
    for name in sorted(calls, key=lambda text: (len(text), text)):
        if name == "0":
            index = job.world()
        elif name in table:
            index = job.add_group(name, table[name])
        else:
            index = job.add_group(name, sorted(calls[name]))
            guessed += 1
        _join_group(job, index, calls[name])
    if guessed:
        job.coverage.inferred.append(
            Inference("members of groups", guessed, "the ranks whose nodes name the group")
        )


def _join_group(job: _Job, index: int, calls: dict[int, list[int]]) -> None:
    group = job.groups[index]
    for npu, positions in calls.items():
        if npu not in group.ranks:
            raise GraphError(
                f"a collective of group {group.name}, of which it is no member "
                f"({list(group.ranks)})",
                **job.at(npu, positions[0]),
            )
    absent = [npu for npu in group.ranks if npu >= len(job.ranks)]
    if absent:
        raise GraphError(f"group {group.name} has npus {absent} whose files are missing")
    counts = {npu: len(calls.get(npu, ())) for npu in group.ranks}
    if len(set(counts.values())) > 1:
        raise GraphError(
            f"the members of group {group.name} have different numbers of collectives: "
            + ", ".join(f"npu {npu} has {count}" for npu, count in sorted(counts.items()))
        )
    for k in range(len(calls[group.ranks[0]])):
        members = {npu: calls[npu][k] for npu in sorted(group.ranks)}
        types = {npu: job.ranks[npu][p].collective for npu, p in members.items()}
        npu, other = min(types), max(types, key=lambda n: types[n] != types[min(types)])
        if types[npu] != types[other]:
            raise GraphError(
                f"collective {k} of group {group.name} is {types[other].label} here and "
                f"{types[npu].label} on npu {npu}",
                **job.at(other, members[other]),
            )
        rooted = types[npu] in (
            Collective.BROADCAST,
            Collective.SCATTER,
            Collective.REDUCE,
            Collective.GATHER,
        )
        for member, position in members.items():
            node = job.first[member] + position
            job.group[node], job.seq[node] = index, k
            if rooted:
                job.peer[node] = group.ranks[0]
        job.join(job.first[member] + position for member, position in members.items())


def _join_messages(job: _Job) -> None:
    """Match the k-th send and the k-th receive of the same ends, tag and bytes."""
    sides: dict[Kind, dict[tuple[int, int, int, int], list[tuple[int, int]]]] = {
        Kind.SEND: {},
        Kind.RECV: {},
    }
    for npu, nodes in enumerate(job.ranks):
        for position, node in enumerate(nodes):
            if node.kind not in sides:
                continue
            far = "comm_dst" if node.kind == Kind.SEND else "comm_src"
            near = "comm_src" if node.kind == Kind.SEND else "comm_dst"
            peer = node.number(far)
            if not 0 <= peer < len(job.ranks) or node.number(near, npu) != npu or peer == npu:
                raise GraphError(
                    f"{far} {node.attributes.get(far)}, {near} {node.attributes.get(near)} "
                    f"on npu {npu} of {len(job.ranks)}",
                    **job.at(npu, position),
                )
            source, target = (npu, peer) if node.kind == Kind.SEND else (peer, npu)
            key = (source, target, node.number("comm_tag"), node.size)
            sides[node.kind].setdefault(key, []).append((npu, position))
            job.peer[job.first[npu] + position] = peer
    for key in sorted(sides[Kind.SEND].keys() | sides[Kind.RECV].keys()):
        sends, receives = (sides[kind].get(key, []) for kind in (Kind.SEND, Kind.RECV))
        if len(sends) != len(receives):
            alone = max(sends, receives, key=len)[min(len(sends), len(receives))]
            source, target, tag, size = key
            raise GraphError(
                f"npu {source} sends {len(sends)} messages of {size} bytes with tag {tag} to npu "
                f"{target}, which receives {len(receives)}",
                **job.at(*alone),
            )
        for k, pair in enumerate(zip(sends, receives, strict=True)):
            ends = [job.first[npu] + position for npu, position in pair]
            job.group.update(dict.fromkeys(ends, job.world()))
            job.seq.update(dict.fromkeys(ends, k))
            job.join(ends)


def _describe(job: _Job) -> None:
    """Say in the coverage what the files hold and what they lack."""
    nodes = [node for rank in job.ranks for node in rank]
    kinds = Counter(node.kind for node in nodes)
    sizes = [node.size for node in nodes if node.kind != Kind.COMP]
    coverage = job.coverage
    coverage.files = len(job.files)
    coverage.events_seen = coverage.events_used = len(nodes)
    coverage.collectives_seen = coverage.collectives_matched = kinds[Kind.COMM_COLL]
    coverage.bytes_known = sum(size for size in sizes if size >= 0)
    coverage.bytes_unknown_nodes = sum(size < 0 for size in sizes)
    coverage.warnings.append(
        "the .et files carry no measured times, steps or lanes: nodes start as soon as their own "
        "rank allows, the whole trace is one step, durations are whole microseconds, and there "
        "is no measured step to compare with"
    )
    if kinds[Kind.SEND]:
        coverage.assumed.append("sends complete without their receive, as in ASTRA-sim")
    rooted = (Collective.BROADCAST, Collective.SCATTER, Collective.REDUCE, Collective.GATHER)
    for count, remark in (
        (
            sum(node.collective in rooted for node in nodes),
            "rooted collectives have no root in Chakra: taken to be the first of the group",
        ),
        (
            sum(node.type == _COLL and node.on_cpu for node in nodes),
            "collectives marked as CPU operations are taken for the calls that launch them",
        ),
        (
            sum(node.type in (_MEM_LOAD, _MEM_STORE) for node in nodes),
            "memory nodes take duration_micros: their tensor_size is not priced",
        ),
        (
            sum(
                node.type == _COMP and node.dur_ns == 0 and "num_ops" in node.attributes
                for node in nodes
            ),
            "compute nodes have num_ops and no duration: they take no time",
        ),
        (
            sum(not all(node.attributes.get("involved_dim", (True,))) for node in nodes),
            "nodes exclude dimensions with involved_dim: all dimensions are used",
        ),
        (sum(node.type in _EMPTY for node in nodes), "metadata and invalid nodes take no time"),
    ):
        if count:
            coverage.warnings.append(f"{count} x {remark}")


def _assemble(job: _Job, path: Path) -> ExecutionGraph:
    nodes = [node for rank in job.ranks for node in rank]
    total, ranks = len(nodes), len(job.ranks)
    names = list(dict.fromkeys(node.name for node in nodes))
    number = {name: i for i, name in enumerate(names)}
    start = np.array(job.start_ns, np.int64)
    dur = np.array([node.dur_ns for node in nodes], np.int64)
    kind = np.array([node.kind for node in nodes], np.int8)
    flavour = np.array([node.flavour for node in nodes], np.int8)
    # The lanes of a rank, three each: host, compute stream, communication stream.
    slot = np.where(flavour == Flavour.HOST, 0, np.where(flavour == Flavour.COMM, 2, 1))
    rank = np.repeat(np.arange(ranks), np.diff(job.first))
    end = start + dur
    markers = [
        first + int(np.argmax(end[first:last])) if last > first else -1
        for first, last in zip(job.first, job.first[1:], strict=False)
    ]
    dep_count = [len(on) for on in job.deps]
    dep_node = [dep for on in job.deps for dep in on]

    def sparse(values: dict[int, int]) -> NDArray[np.int32]:
        column = np.full(total, -1, np.int32)
        column[list(values)] = list(values.values())
        return column

    return ExecutionGraph(
        model="host" if (flavour == Flavour.HOST).any() else "stream",
        source="chakra",
        trace=str(path),
        ranks=np.arange(ranks, dtype=np.int64),
        rank_ptr=np.array(job.first, np.int64),
        world_size=ranks,
        hosts=("",) * ranks,
        devices=("",) * ranks,
        base_ns=np.zeros(ranks, np.int64),
        start_offset_ns=np.zeros(ranks, np.int64),
        names=tuple(names),
        kind=kind,
        flavour=flavour,
        lane=(3 * rank + slot).astype(np.int32),
        name=np.array([number[node.name] for node in nodes], np.int32),
        step=np.zeros(total, np.int32),
        start_ns=start,
        dur_ns=dur,
        gap_ns=np.zeros(total, np.int64),
        dep_ptr=np.concatenate([[0], np.cumsum(dep_count)]).astype(np.int64),
        dep_node=np.array(dep_node, np.int64),
        dep_kind=np.full(len(dep_node), EdgeKind.END, np.int8),
        dep_lag_ns=np.zeros(len(dep_node), np.int64),
        coll=np.array([node.collective for node in nodes], np.int8),
        size_bytes=np.array([node.size for node in nodes], np.int64),
        group=sparse(job.group),
        seq=sparse(job.seq).astype(np.int64),
        peer=sparse(job.peer),
        tag=np.array(
            [
                node.number("comm_tag") if node.kind in (Kind.SEND, Kind.RECV) else -1
                for node in nodes
            ],
            np.int32,
        ),
        instance=sparse(job.instance),
        transfer_ns=np.full(total, -1, np.int64),
        tail_ns=np.zeros(total, np.int64),
        eager=kind == Kind.SEND,
        lanes=Lanes(
            rank=np.repeat(np.arange(ranks, dtype=np.int32), 3),
            kind=np.tile(
                np.array([LaneKind.HOST, LaneKind.STREAM, LaneKind.STREAM], np.int8), ranks
            ),
            number=np.tile(np.array([0, 0, 1], np.int64), ranks),
            servers=np.ones(3 * ranks, np.int32),
        ),
        groups=tuple(job.groups),
        steps=Steps(
            names=("trace",),
            begin_ns=np.zeros((1, ranks), np.int64),
            marker=np.array([markers], np.int64),
            completion_ns=np.array([end.max(initial=0)], np.int64),
        ),
        coverage=job.coverage,
    )
