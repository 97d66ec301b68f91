"""Write an execution graph as Chakra files that Chakra's tools and ASTRA-sim accept.

The standard fields hold what other tools can use: whole microseconds, explicit nodes for gaps
and tails, and what `chakra_plan` decided for communication. The exact graph travels beside in
``whatif_`` attributes (`chakra_format`), so that `chakra_read` gives the same numbers back.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from ..base.errors import GraphError, UsageError, WhatIfError
from . import chakra_format as fmt
from .chakra_plan import ExportPlan, plan_export
from .columns import EdgeKind, Flavour, Kind, LaneKind
from .validate import describe_node, rank_of, validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .columns import ExecutionGraph


def write_et(
    graph: ExecutionGraph,
    directory: Path,
    prefix: str = "whatif",
    *,
    overwrite: bool = False,
    order: Sequence[int] | None = None,
) -> list[Path]:
    """Write one ``<prefix>.<npu>.et`` per rank and ``<prefix>.comm_groups.json``.

    Other tools see: nodes in topological order with ids from 1; times on a grid of whole
    microseconds that starts at the earliest node of the job, a duration being the rounded end
    minus the rounded start, so that totals do not drift (ASTRA-sim turns 0 into 1 ns); gaps and
    tails of at least one microsecond on that grid, and the later start of a rank, as nodes of
    their own; the whole measured duration of communication, waiting included; dependencies as
    data_deps, where one on a start becomes one on whatever that start waits for, and what a lag
    or that start adds is part of the gap; and ctrl_deps that only order communication
    (`chakra_plan`). Host work, and gaps of host threads, are CPU operations; all other time
    that is no communication, gaps included, is what ASTRA-sim calls GPU compute, of which a
    rank runs one at a time.

    The files appear together at the end, that of npu 0 last; after an error there are none.

    Parameters
    ----------
    graph : ExecutionGraph
        Ranks become npus 0, 1, ... in their order, unless another is given.
    directory : Path
        Made if it does not exist.
    prefix : str
        First part of the file names.
    overwrite : bool
        Replace a set of the same prefix.
    order : sequence of int, optional
        Index of the rank that becomes each npu.

    Returns
    -------
    list of Path
        The .et files by npu, then the file of groups. Group i has id i + 1 in it.

    Raises
    ------
    GraphError
        If `validate` refuses the graph, or a tail is longer than its node.
    UsageError
        If the files exist already, or the prefix is not a file name.
    """
    if not prefix or Path(prefix).name != prefix:
        raise UsageError(f"the prefix {prefix!r} is not a file name")
    old = _existing(directory, prefix)
    if old and not overwrite:
        raise UsageError("exists already; choose another place or allow overwriting", file=old[0])
    validate(graph)
    plan = plan_export(graph)
    grid = _Grid.of(graph, plan)
    names = [_writable(name) for name in graph.names]
    job = _job_tables(graph, names).encode()
    npu_of = np.argsort(range(graph.num_ranks) if order is None else order).tolist()
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".whatif-", dir=directory))
    except OSError as error:
        raise WhatIfError(f"cannot be written: {error.strerror}", file=directory) from error
    placed: list[Path] = []
    try:
        for index, npu in enumerate(npu_of):
            with (work / fmt.file_name(prefix, npu)).open("wb") as file:
                _RankWriter(graph, plan, grid, names, npu_of, index, file).write(job)
        with (work / fmt.groups_name(prefix)).open("w", encoding="utf-8") as text:
            json.dump(_comm_groups(graph, npu_of), text)
        for path in old:
            path.unlink()
        for name in [
            fmt.groups_name(prefix),
            *(fmt.file_name(prefix, npu) for npu in reversed(range(graph.num_ranks))),
        ]:
            placed.append(directory / name)
            (work / name).replace(directory / name)
    except BaseException:
        for path in placed:
            path.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if made and not any(directory.iterdir()):
            directory.rmdir()
    return [*reversed(placed[1:]), placed[0]]


def export_warnings(graph: ExecutionGraph) -> list[str]:
    """Say what other tools see differently in the files of a graph, one line per kind.

    The same lines are in the metadata of the files. Raises what `write_et` raises.
    """
    validate(graph)
    return plan_export(graph).warnings


def _existing(directory: Path, prefix: str) -> list[Path]:
    if not directory.is_dir():
        return []
    groups = directory / fmt.groups_name(prefix)
    files = [path for _, path in fmt.files_with_prefix(directory, prefix)]
    return files + [groups] * groups.exists()


def _writable(name: str) -> str:
    """Name that protobuf can hold: UTF-8, and short."""
    return name.encode("utf-8", "replace").decode()[: fmt.NAME_LIMIT]


def _job_tables(graph: ExecutionGraph, names: list[str]) -> fmt.JobTables:
    lanes, steps = graph.lanes, graph.steps
    return fmt.JobTables(
        model=graph.model,
        source=graph.source,
        trace=graph.trace,
        ranks=graph.ranks.tolist(),
        world_size=graph.world_size,
        hosts=list(graph.hosts),
        devices=list(graph.devices),
        base_ns=graph.base_ns.tolist(),
        start_offset_ns=graph.start_offset_ns.tolist(),
        names=names,
        lanes=fmt.LaneTable(
            rank=lanes.rank.tolist(),
            kind=lanes.kind.tolist(),
            number=lanes.number.tolist(),
            servers=lanes.servers.tolist(),
        ),
        groups=[fmt.GroupRow(g.name, list(g.ranks), g.description) for g in graph.groups],
        steps=fmt.StepTable(
            names=list(steps.names),
            begin_ns=steps.begin_ns.tolist(),
            marker=steps.marker.tolist(),
            completion_ns=steps.completion_ns.tolist(),
        ),
        coverage=graph.coverage,
        splits=[list(parts) for parts in graph.splits],
    )


def _comm_groups(graph: ExecutionGraph, npu_of: list[int]) -> dict[str, list[int]]:
    """Communicators of ASTRA-sim: npus in group order. One member alone would never complete."""
    npu = dict(zip(graph.ranks.tolist(), npu_of, strict=True))
    members = {
        str(i + 1): [npu[rank] for rank in group.ranks if rank in npu]
        for i, group in enumerate(graph.groups)
    }
    return {key: npus for key, npus in members.items() if len(npus) > 1}


@dataclass(frozen=True)
class _Grid:
    """Whole microseconds, counted from the earliest moment of the job.

    Attributes
    ----------
    ready, start, finish, end : int64, shape (N,)
        Where the last node that a node waits for has ended, and where it starts, ends without its
        tail, and ends.
    base : int64, shape (R,)
        Where the nodes without dependencies become ready.
    """

    ready: NDArray[np.int64]
    start: NDArray[np.int64]
    finish: NDArray[np.int64]
    end: NDArray[np.int64]
    base: NDArray[np.int64]

    @classmethod
    def of(cls, graph: ExecutionGraph, plan: ExportPlan) -> _Grid:
        long_tail = np.flatnonzero(graph.tail_ns > graph.dur_ns)
        if len(long_tail):
            node = int(long_tail[0])
            raise GraphError(
                f"its tail of {graph.tail_ns[node]} ns is longer than itself "
                f"({graph.dur_ns[node]} ns)",
                rank=rank_of(graph, node),
                place=describe_node(graph, node),
            )
        ready = graph.base_ns[graph.rank_index].copy()
        dependent = np.diff(plan.wait_ptr) > 0
        if dependent.any():
            ends = graph.end_ns[plan.wait_node]
            ready[dependent] = np.maximum.reduceat(ends, plan.wait_ptr[:-1][dependent])
        ready = np.minimum(ready, graph.start_ns)  # a timeline that was not measured may differ
        origin = min([*ready.tolist(), *graph.base_ns.tolist()], default=0) // 1000 * 1000

        def whole(moment_ns: NDArray[np.int64]) -> NDArray[np.int64]:
            return (moment_ns - origin + 500) // 1000

        return cls(
            ready=whole(ready),
            start=whole(graph.start_ns),
            finish=whole(graph.end_ns - graph.tail_ns),
            end=whole(graph.end_ns),
            base=whole(graph.base_ns),
        )


def _spelled_out(graph: ExecutionGraph, first: int, last: int) -> list[bool]:
    """Nodes of a range that have a dependency on a start, with a lag, or given twice."""
    edges = slice(int(graph.dep_ptr[first]), int(graph.dep_ptr[last]))
    after = np.repeat(np.arange(last - first), np.diff(graph.dep_ptr[first : last + 1]))
    again = np.ones(len(after), np.bool_)
    pair = after * (last - first) + graph.dep_node[edges] - first
    again[np.unique(pair, return_index=True)[1]] = False
    odd = (graph.dep_kind[edges] != EdgeKind.END) | (graph.dep_lag_ns[edges] != 0) | again
    result = np.zeros(last - first, np.bool_)
    result[after[odd]] = True
    return result.tolist()


class _RankWriter:
    """Writes the file of one rank; ids of the file are 1, 2, ... as they are written."""

    def __init__(
        self,
        graph: ExecutionGraph,
        plan: ExportPlan,
        grid: _Grid,
        names: list[str],
        npu_of: list[int],
        index: int,
        file: IO[bytes],
    ) -> None:
        from chakra.schema.protobuf import et_def_pb2

        self._schema = et_def_pb2
        self._checksum = fmt.Checksum()
        self._graph = graph
        self._plan = plan
        self._names = names
        self._npu_of = npu_of
        self._index = index
        self._npu = npu_of[index]
        self._file = file
        self._first = int(graph.rank_ptr[index])
        nodes = slice(self._first, int(graph.rank_ptr[index + 1]))
        self._order = (plan.order[nodes] - self._first).tolist()
        self._ready, self._start, self._finish, self._end = (
            column[nodes].tolist() for column in (grid.ready, grid.start, grid.finish, grid.end)
        )
        self._base = int(grid.base.min()), int(grid.base[index])
        self._columns = {
            column: getattr(graph, column)[nodes].astype(np.int64).tolist()
            for column in (*fmt.ALWAYS, *fmt.DEFAULTS)
        }
        self._exact = [
            (f"whatif_{column}", fmt.DEFAULTS.get(column), values)
            for column, values in self._columns.items()
        ]
        wait_ptr = plan.wait_ptr[nodes.start : nodes.stop + 1]
        self._wait_node = (plan.wait_node[wait_ptr[0] : wait_ptr[-1]] - self._first).tolist()
        self._wait_ptr = (wait_ptr - wait_ptr[0]).tolist()
        flavour = graph.flavour[nodes]
        on_thread = graph.lanes.kind[graph.lane[nodes]] == LaneKind.HOST
        self._on_cpu = ((flavour == Flavour.HOST) | (on_thread & (flavour == Flavour.GAP))).tolist()
        self._spelled_out = _spelled_out(graph, nodes.start, nodes.stop)
        self._ids = [0] * len(self._order)  # id of a node
        self._ends = [0] * len(self._order)  # id that ends with a node: of its tail, or its own
        self._next_id = 1

    def write(self, job: str) -> None:
        """Write metadata and nodes."""
        offset = self._base[1] > self._base[0]
        gaps = sum(ready < start for ready, start in zip(self._ready, self._start, strict=True))
        tails = sum(finish < end for finish, end in zip(self._finish, self._end, strict=True))
        metadata = self._metadata(job, offset + gaps + len(self._order) + tails)
        message = self._encode(metadata)
        place = self._file.tell() - len(message) + message.index(fmt.NO_CHECKSUM.encode())
        roots = [self._time("offset", "start offset", [], *self._base, cpu=False)] if offset else []
        for position, i in enumerate(self._order):
            self._write_node(i, position, roots)
        self._file.seek(place)
        self._file.write(self._checksum.text().encode())

    def _encode(self, message: fmt.ProtoMessage) -> bytes:
        """Write a message after its length, as a varint of protobuf; its bytes."""
        text: bytes = message.SerializeToString()
        self._checksum.add(text)
        length, size = bytearray(), len(text)
        while size >= 0x80:
            length.append(size & 0x7F | 0x80)
            size >>= 7
        length.append(size)
        self._file.write(bytes(length) + text)
        return text

    def _metadata(self, job: str, messages: int) -> fmt.ProtoMessage:
        metadata = self._schema.GlobalMetadata(version=fmt.SCHEMA_VERSION)
        for key, value in (
            (fmt.FORMAT_KEY, fmt.FORMAT),
            (fmt.NPU, self._npu),
            (fmt.RANK, int(self._graph.ranks[self._index])),
            (fmt.NODES, messages),
        ):
            metadata.attr.add(name=key, int64_val=value)
        metadata.attr.add(name=fmt.DIGEST, string_val=fmt.digest(job))
        metadata.attr.add(name=fmt.CHECKSUM, string_val=fmt.NO_CHECKSUM)
        if self._npu == 0:
            metadata.attr.add(name=fmt.JOB, string_val=job)
            warnings = self._schema.StringList(values=self._plan.warnings)
            metadata.attr.add(name=fmt.EXPORT_WARNINGS, string_list=warnings)
        return metadata

    def _write_node(self, i: int, position: int, roots: list[int]) -> None:
        """Write a node of the graph with the time before and after it."""
        waits = self._wait_node[self._wait_ptr[i] : self._wait_ptr[i + 1]]
        data = [self._ends[dep] for dep in dict.fromkeys(waits)] or roots
        cpu = self._on_cpu[i]
        name = self._names[self._columns["name"][i]]
        if self._ready[i] < self._start[i]:
            data = [self._time("gap", name, data, self._ready[i], self._start[i], cpu=cpu)]
        message = self._message(i, name, data, cpu=cpu)
        add = message.attr.add
        if self._spelled_out[i]:
            add(name=fmt.DEPS, string_val=self._dependencies(self._first + i))
        if position != i:
            add(name=fmt.POSITION, int64_val=i)
        self._ids[i] = self._ends[i] = self._emit(message)
        if self._finish[i] < self._end[i]:
            time = self._finish[i], self._end[i]
            self._ends[i] = self._time("tail", name, [self._ids[i]], *time, cpu=cpu)

    def _dependencies(self, node: int) -> str:
        """Spell out all dependencies of a node."""
        edges = slice(int(self._graph.dep_ptr[node]), int(self._graph.dep_ptr[node + 1]))
        on = (self._graph.dep_node[edges] - self._first).tolist()
        kinds = self._graph.dep_kind[edges].tolist()
        lags = self._graph.dep_lag_ns[edges].tolist()
        return " ".join(
            f"{dep}{'s' if kind == EdgeKind.START else ''}{f'+{lag}' if lag else ''}"
            for dep, kind, lag in zip(on, kinds, lags, strict=True)
        )

    def _time(
        self, part: str, name: str, deps: list[int], begin: int, end: int, *, cpu: bool
    ) -> int:
        """Write a node that only shows time; its id."""
        node = self._schema.Node(
            id=self._next_id,
            name=f"{part}: {name}"[: fmt.NAME_LIMIT],
            type=self._schema.COMP_NODE,
            data_deps=deps,
            start_time_micros=begin,
            duration_micros=end - begin,
        )
        node.attr.add(name="is_cpu_op", bool_val=cpu)
        node.attr.add(name=fmt.PART, string_val=part)
        return self._emit(node)

    def _message(self, i: int, name: str, deps: list[int], *, cpu: bool) -> fmt.ProtoMessage:
        """Make the message of a node, complete but for its exact dependencies."""
        joined = bool(self._plan.joined[self._first + i])
        kind = self._columns["kind"][i]
        node = self._schema.Node(
            id=self._next_id,
            name=name,
            type=self._node_type(kind) if joined else self._schema.COMP_NODE,
            data_deps=deps,
            start_time_micros=self._start[i],
            duration_micros=self._finish[i] - self._start[i],
        )
        add = node.attr.add
        add(name="is_cpu_op", bool_val=cpu)
        if joined:
            self._communication(node, i, kind)
        for key, default, values in self._exact:
            if values[i] != default:
                add(name=key, int64_val=values[i])
        note = self._plan.notes.get(self._first + i)
        if note is not None:
            add(name=fmt.NOTE, string_val=note)
        return node

    def _node_type(self, kind: int) -> int:
        types: dict[int, int] = {
            Kind.COMM_COLL: self._schema.COMM_COLL_NODE,
            Kind.SEND: self._schema.COMM_SEND_NODE,
            Kind.RECV: self._schema.COMM_RECV_NODE,
        }
        return types[kind]

    def _communication(self, message: fmt.ProtoMessage, i: int, kind: int) -> None:
        """Add what ASTRA-sim reads, in the types that its old and new readers both accept."""
        node = self._first + i
        add = message.attr.add
        add(name="comm_size", int64_val=int(self._plan.comm_size[node]))
        if kind == Kind.COMM_COLL:
            add(name="comm_type", int64_val=int(self._plan.comm_type[node]))
            add(name="pg_name", string_val=str(self._columns["group"][i] + 1))
            add(name="comm_priority", int32_val=0)
        else:
            peer = self._npu_of[np.searchsorted(self._graph.ranks, self._columns["peer"][i])]
            source, target = (self._npu, peer) if kind == Kind.SEND else (peer, self._npu)
            add(name="comm_src", int32_val=source)
            add(name="comm_dst", int32_val=target)
            add(name="comm_tag", int32_val=int(self._plan.comm_tag[node]))
        previous = int(self._plan.slot_after[node])
        if previous >= 0 and (slot := self._ids[previous - self._first]) not in message.data_deps:
            message.ctrl_deps.append(slot)
            add(name=fmt.SLOT, int64_val=slot)

    def _emit(self, node: fmt.ProtoMessage) -> int:
        self._encode(node)
        self._next_id += 1
        return self._next_id - 1
