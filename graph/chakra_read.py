"""Read Chakra files back into an execution graph.

Files of ours give exactly the numbers that were written (`chakra_format` says where they are);
files by others go to `chakra_foreign`.
"""

from __future__ import annotations

import re
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from ..base.documents import DocumentError, read_json
from ..base.errors import GraphError, TraceError
from . import chakra_format as fmt
from .chakra_foreign import read_foreign
from .columns import EdgeKind, ExecutionGraph, Group, Lanes, Steps
from .validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .columns import DependencyModel

_DTYPES: dict[str, Any] = {
    "start_ns": np.int64,
    "dur_ns": np.int64,
    "lane": np.int32,
    "name": np.int32,
    "gap_ns": np.int64,
    "step": np.int32,
    "kind": np.int8,
    "flavour": np.int8,
    "coll": np.int8,
    "size_bytes": np.int64,
    "group": np.int32,
    "seq": np.int64,
    "peer": np.int32,
    "tag": np.int32,
    "instance": np.int32,
    "transfer_ns": np.int64,
    "tail_ns": np.int64,
    "eager": np.bool_,
    "dtype": np.int32,
    "split": np.int32,
}

_ALWAYS = [f"whatif_{column}" for column in fmt.ALWAYS]
_DEFAULTS = [(f"whatif_{column}", default) for column, default in fmt.DEFAULTS.items()]

_DEP = re.compile(r"(\d+)(s?)(?:\+(\d+))?")


def read_et(path: Path, *, comm_groups: Path | None = None) -> ExecutionGraph:
    """Read the Chakra files of a job.

    Parameters
    ----------
    path : Path
        A directory with one set of files ``<prefix>.<npu>.et`` (or ``.et.gz``),
        ``directory/prefix``, or one file of the set.
    comm_groups : Path, optional
        Communicator groups of files by others; by default a ``*comm_group*.json`` beside them.

    Returns
    -------
    ExecutionGraph
        For files of ours the graph that was written, except that names are cut to 256
        characters. For files by others what they hold, with warnings in the coverage.

    Raises
    ------
    TraceError
        If a file is missing, given twice, damaged, not Chakra, or of another conversion.
    GraphError
        If dependencies or communication do not fit together.
    """
    directory, prefix, files = fmt.find_set(path)
    readers = [_RankReader(file, npu) for npu, file in enumerate(files)]
    ours = [fmt.FORMAT_KEY in reader.metadata for reader in readers]
    if not any(ours):
        messages = [(reader.file, reader.nodes()) for reader in readers]
        return read_foreign(path, prefix, messages, comm_groups)
    if not all(ours):
        raise TraceError(
            f"was not written by whatif, unlike {files[ours.index(True)].name}",
            file=files[ours.index(False)],
            rank=ours.index(False),
        )
    return _read_ours(readers, directory / fmt.groups_name(prefix))


class _RankReader:
    """One file: its metadata at once, its nodes on request."""

    def __init__(self, file: Path, npu: int) -> None:
        from chakra.schema.protobuf import et_def_pb2
        from google.protobuf.unknown_fields import UnknownFieldSet

        self.file = file
        self.npu = npu
        self._schema = et_def_pb2
        # Opened again for the nodes: a job may have more files than a process may hold open.
        messages = fmt.read_messages(file)
        first = next(messages, None)
        messages.close()
        if first is None:
            raise TraceError("is empty", file=file, rank=npu)
        metadata = fmt.parse(et_def_pb2.GlobalMetadata, first[1], file, 0)
        if len(UnknownFieldSet(metadata)):
            raise TraceError("does not begin with Chakra metadata", file=file, rank=npu)
        self.metadata = fmt.attributes(metadata)

    def check(self) -> None:
        """Refuse a file that is not as it was written."""
        stated = str(self.metadata.get(fmt.CHECKSUM, ""))
        found = fmt.Checksum()
        for offset, message in fmt.read_messages(self.file):
            if offset == 0 and stated:
                message = message.replace(stated.encode(), fmt.NO_CHECKSUM.encode(), 1)
            found.add(message)
        if found.text() != stated:
            raise TraceError(
                "has changed since it was written: its checksum is another",
                file=self.file,
                rank=self.npu,
            )

    def nodes(self) -> Iterator[fmt.ProtoMessage]:
        """Yield the Node messages."""
        known = frozenset(self._schema.NodeType.values())
        for offset, message in islice(fmt.read_messages(self.file), 1, None):
            node = fmt.parse(self._schema.Node, message, self.file, offset)
            if node.type not in known:
                raise TraceError(
                    f"node {node.id} has the unknown type {node.type}",
                    file=self.file,
                    rank=self.npu,
                    place=f"byte {offset}",
                )
            yield node


def _read_ours(readers: list[_RankReader], groups_file: Path) -> ExecutionGraph:
    job = _job(readers)
    _check_groups(job, readers, groups_file)
    # Npus may be numbered by their place in a network, and not as the ranks are.
    position = {rank: index for index, rank in enumerate(job.ranks)}
    readers = sorted(
        readers, key=lambda reader: position.get(reader.metadata.get(fmt.RANK, -1), -1)
    )
    columns: dict[str, list[int]] = {column: [] for column in _DTYPES}
    deps = _Deps()
    rank_ptr = [0]
    for reader in readers:
        _read_rank(reader, columns, deps)
        rank_ptr.append(len(columns["kind"]))
    try:
        graph = ExecutionGraph(
            model=cast("DependencyModel", job.model),
            source=job.source,
            trace=job.trace,
            ranks=np.array(job.ranks, np.int64),
            rank_ptr=np.array(rank_ptr, np.int64),
            world_size=job.world_size,
            hosts=tuple(job.hosts),
            devices=tuple(job.devices),
            base_ns=np.array(job.base_ns, np.int64),
            start_offset_ns=np.array(job.start_offset_ns, np.int64),
            names=tuple(job.names),
            dep_ptr=np.array(deps.ptr, np.int64),
            dep_node=np.array(deps.node, np.int64),
            dep_kind=np.array(deps.kind, np.int8),
            dep_lag_ns=np.array(deps.lag_ns, np.int64),
            lanes=Lanes(
                rank=np.array(job.lanes.rank, np.int32),
                kind=np.array(job.lanes.kind, np.int8),
                number=np.array(job.lanes.number, np.int64),
                servers=np.array(job.lanes.servers, np.int32),
            ),
            groups=tuple(Group(g.name, tuple(g.ranks), g.description) for g in job.groups),
            steps=_steps(job.steps, len(job.ranks)),
            coverage=job.coverage,
            splits=tuple(tuple(parts) for parts in job.splits),
            **{column: np.array(values, _DTYPES[column]) for column, values in columns.items()},
        )
    except (OverflowError, ValueError) as error:
        raise GraphError(
            f"a value is out of range ({error})", file=readers[0].file.parent
        ) from error
    validate(graph)
    return graph


def _job(readers: list[_RankReader]) -> fmt.JobTables:
    """Read the tables of the job, and make sure that all files belong to it."""
    for reader in readers:
        version = reader.metadata[fmt.FORMAT_KEY]
        if version != fmt.FORMAT:
            raise TraceError(
                f"format {version} of whatif's attributes; this version reads {fmt.FORMAT}",
                file=reader.file,
                rank=reader.npu,
            )
        reader.check()
        held = reader.metadata.get(fmt.NPU)
        if held != reader.npu:
            raise TraceError(
                f"holds npu {held} (rank {reader.metadata.get(fmt.RANK)}), not the npu of its name",
                file=reader.file,
                rank=reader.npu,
            )
    head = readers[0]
    text = head.metadata.get(fmt.JOB, "")
    for reader in readers:
        if reader.metadata.get(fmt.DIGEST) != fmt.digest(text):
            raise TraceError(
                f"is of another conversion than {head.file.name}", file=reader.file, rank=reader.npu
            )
    try:
        job = msgspec.json.decode(text, type=fmt.JobTables)
    except msgspec.MsgspecError as error:
        raise TraceError(f"damaged job tables ({error})", file=head.file) from error
    held = {reader.metadata.get(fmt.RANK) for reader in readers}
    missing = next((rank for rank in job.ranks if rank not in held), None)
    if missing is not None:
        raise TraceError(
            f"the file of rank {missing} (npu {len(readers)}) is missing",
            file=head.file.parent,
            rank=missing,
        )
    return job


def _check_groups(job: fmt.JobTables, readers: list[_RankReader], file: Path) -> None:
    """Refuse a file of groups that says something else than the files of the ranks.

    It is for other tools; who simulates the same files with one of them must get the same groups.
    """
    if not file.is_file():
        return
    npu = {reader.metadata.get(fmt.RANK): reader.npu for reader in readers}
    wanted = {
        str(i + 1): [npu[rank] for rank in group.ranks if rank in npu]
        for i, group in enumerate(job.groups)
    }
    try:
        found = read_json(file.read_bytes())
    except (OSError, DocumentError) as error:
        raise TraceError(f"is not a file of communicator groups ({error})", file=file) from error
    if found != {key: npus for key, npus in wanted.items() if len(npus) > 1}:
        raise TraceError("has other groups than the files of the ranks beside it", file=file)


def _steps(table: fmt.StepTable, ranks: int) -> Steps:
    shape = (len(table.names), ranks)
    return Steps(
        names=tuple(table.names),
        begin_ns=np.array(table.begin_ns, np.int64).reshape(shape),
        marker=np.array(table.marker, np.int64).reshape(shape),
        completion_ns=np.array(table.completion_ns, np.int64),
    )


class _Deps:
    """Dependencies of all nodes read so far, as growing CSR lists."""

    def __init__(self) -> None:
        self.ptr = [0]
        self.node: list[int] = []
        self.kind: list[int] = []
        self.lag_ns: list[int] = []

    def add(self, row: list[tuple[int, EdgeKind, int]]) -> None:
        """Append the dependencies of one node."""
        for node, kind, lag_ns in row:
            self.node.append(node)
            self.kind.append(kind)
            self.lag_ns.append(lag_ns)
        self.ptr.append(len(self.node))


def _read_rank(reader: _RankReader, columns: dict[str, list[int]], deps: _Deps) -> None:
    """Append the nodes of a file, folding explicit gaps and tails back into them."""
    first = len(columns["kind"])
    index: dict[int, int] = {}  # file id of a node or its tail -> node
    waits: dict[int, list[int]] = {}  # file id of a gap or offset -> what it waits for
    rows: list[tuple[int, list[int], list[tuple[int, EdgeKind, int]]]] = []
    messages = 0
    for node in reader.nodes():
        messages += 1
        attributes = fmt.attributes(node)
        part = attributes.get(fmt.PART)
        data = [dep for d in node.data_deps for dep in waits.get(d, (d,))]
        try:
            if part == "tail":
                index[node.id] = index[node.data_deps[0]]
            elif part is not None:
                waits[node.id] = data
            else:
                place = first + attributes.get(fmt.POSITION, len(rows))
                values = [attributes[key] for key in _ALWAYS]
                values += [attributes.get(key, default) for key, default in _DEFAULTS]
                exact = attributes.get(fmt.DEPS)
                if exact is None:
                    row = [(index[dep], EdgeKind.END, 0) for dep in data]
                else:
                    row = _dependencies(exact, first)
                rows.append((place, values, row))
                index[node.id] = place
        except (KeyError, IndexError, ValueError) as error:
            raise GraphError(
                f"a dependency or an attribute is missing ({error})",
                file=reader.file,
                rank=reader.metadata.get(fmt.RANK),
                place=f"node {node.id} ({node.name})",
            ) from error
    if messages != reader.metadata.get(fmt.NODES):
        raise TraceError(
            f"ends after {messages} of {reader.metadata.get(fmt.NODES)} nodes",
            file=reader.file,
            rank=reader.metadata.get(fmt.RANK),
        )
    rows.sort(key=itemgetter(0))
    for expected, (place, values, row) in enumerate(rows, first):
        if place != expected:
            raise GraphError(
                f"place {place - first} is given twice, or one before it is not given",
                file=reader.file,
                rank=reader.metadata.get(fmt.RANK),
            )
        for column, value in zip((*fmt.ALWAYS, *fmt.DEFAULTS), values, strict=True):
            columns[column].append(value)
        deps.add(row)


def _dependencies(exact: str, first: int) -> list[tuple[int, EdgeKind, int]]:
    """Dependencies as (node, kind, lag) that a node spells out; `first` is the rank's first."""
    row = []
    for word in exact.split():
        match = _DEP.fullmatch(word)
        if match is None:
            raise ValueError(f"malformed dependency {word!r}")
        kind = EdgeKind.START if match[2] else EdgeKind.END
        row.append((first + int(match[1]), kind, int(match[3] or 0)))
    return row
