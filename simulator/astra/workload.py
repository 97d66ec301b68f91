"""The nodes of all ranks as columns: what ASTRA-sim reads from .et files, and nothing more.

`read_workload` takes a set of .et files, whatever integer types its attributes have; a `Builder`
takes nodes one by one. Both apply ASTRA-sim's own rules of reading (of a node id given twice the
later counts, dependencies are the union of both lists), where it would abort they raise. Whether
ASTRA-sim could run the nodes is the business of `checks`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import GraphError, TraceError
from ...base.progress import Progress, silent
from ...graph import chakra_format as fmt
from .names import NodeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    Int = NDArray[np.int64]

#: An attribute that a node does not have.
ABSENT = -(1 << 62)

# Numbers that columns hold beside it; ids, sizes and durations of real jobs are far smaller.
_MOST = (1 << 62) - 1

#: Largest duration of a node, us: eleven days. In ns many of them fit into 63 bits.
_MOST_DURATION_US = 10**12

#: Integer attributes, at the columns that hold them.
_ATTRIBUTES = {
    "comm_type": "comm_type",
    "comm_size": "size",
    "comm_src": "src",
    "comm_dst": "dst",
    "comm_tag": "tag",
    "num_ops": "num_ops",
    "tensor_size": "tensor_size",
    "is_cpu_op": "on_cpu",
}
_COLUMNS = ("id", "type", "duration_us", "group", "mask", "tracked", *_ATTRIBUTES.values())

_INTEGERS = frozenset((int, bool))
_TYPES = len(NodeType)
_NUMBER = re.compile(r"\s*[+-]?\d+")


@dataclass(frozen=True, eq=False)
class Workload:
    """Nodes of R ranks (N nodes, E dependencies); those of a rank by ascending id.

    Attributes
    ----------
    source : str
        What was read.
    rank_ptr : int64, shape (R + 1,)
        Nodes of rank r are ``rank_ptr[r]:rank_ptr[r + 1]``.
    id, type, duration_us : int64, shape (N,)
        As in the schema; `type` is a `NodeType`.
    on_cpu : int64, shape (N,)
        `ABSENT` is as 0.
    comm_type, size, src, dst, tag, num_ops, tensor_size : int64, shape (N,)
        Attributes, or `ABSENT`.
    group : int64, shape (N,)
        Communicator of a collective, 0 for the world.
    mask : int64, shape (N,)
        Index into `masks` of `involved_dim`, or -1.
    masks : tuple of tuple of bool
    tracked : int64, shape (N,)
        1 where a node says which tensors it reads and writes.
    names : list of str, length N
    dep_ptr : int64, shape (N + 1,)
    dep : int64, shape (E,)
        Nodes that must complete before a node; it can be itself.
    warnings : list of str
        What ASTRA-sim accepts but surely nobody meant.
    """

    source: str
    rank_ptr: Int
    id: Int
    type: Int
    duration_us: Int
    on_cpu: Int
    comm_type: Int
    size: Int
    src: Int
    dst: Int
    tag: Int
    num_ops: Int
    tensor_size: Int
    group: Int
    mask: Int
    masks: tuple[tuple[bool, ...], ...]
    tracked: Int
    names: list[str]
    dep_ptr: Int
    dep: Int
    warnings: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_ptr) - 1

    def rank_of(self, node: int) -> int:
        """Rank of a node."""
        return int(np.searchsorted(self.rank_ptr, node, side="right")) - 1

    def describe(self, node: int) -> str:
        """Name a node in a message."""
        return f"node {self.id[node]} ({self.names[node]}, {NodeType(self.type[node]).name})"


class Builder:
    """Collects the nodes of a job rank by rank.

    Parameters
    ----------
    source : str
        What they are from, for messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._rank_ptr = [0]
        self._tables: list[Int] = []
        self._names: list[str] = []
        self._dep_ptr = [0]
        self._dep: list[int] = []
        self._masks: dict[tuple[bool, ...], int] = {}
        self._warnings: list[str] = []

    def add_rank(
        self,
        nodes: Iterable[tuple[int, int, str, int, Iterable[int], Mapping[str, Any]]],
        file: Path | str | None = None,
    ) -> None:
        """Add the nodes of the next rank.

        Parameters
        ----------
        nodes : iterable of (id, type, name, duration_us, dependencies, attributes)
        file : Path or str, optional
            For messages.

        Raises
        ------
        GraphError
            If there is no node, a type or a dependency is unknown, a duration is longer than
            1e12 us, or an attribute cannot be read.
        """
        rank = len(self._rank_ptr) - 1
        rows: dict[int, tuple[str, list[int]]] = {}
        deps: dict[int, dict[int, None]] = {}
        for ident, kind, name, duration_us, on, attributes in nodes:
            place = f"node {ident} ({name})"
            try:
                row = self._row(ident, kind, duration_us, attributes)
            except ValueError as error:
                raise GraphError(str(error), file=file, rank=rank, place=place) from None
            if ident in rows:
                self._warnings.append(
                    f"rank {rank}: node id {ident} is given twice, and ASTRA-sim silently takes "
                    f"the later ({name}) with the dependencies of both"
                )
            rows[ident] = name, row
            deps.setdefault(ident, {}).update(dict.fromkeys(on))
        if not rows:
            raise GraphError("ASTRA-sim aborts on a trace without nodes", file=file, rank=rank)
        order = sorted(rows)
        position = {ident: self._rank_ptr[-1] + place for place, ident in enumerate(order)}
        self._tables.append(np.array([rows[ident][1] for ident in order], np.int64))
        for ident in order:
            name = rows[ident][0]
            self._names.append(name)
            for dep in deps[ident]:
                if dep not in position:
                    raise GraphError(
                        f"depends on node {dep}, which the rank does not have: ASTRA-sim aborts",
                        file=file,
                        rank=rank,
                        place=f"node {ident} ({name})",
                    )
                self._dep.append(position[dep])
            self._dep_ptr.append(len(self._dep))
        self._rank_ptr.append(len(self._names))

    def warn(self, warning: str) -> None:
        """Say what of the input is left out."""
        self._warnings.append(warning)

    def build(self) -> Workload:
        """Make the columns."""
        columns = np.concatenate(self._tables).T
        return Workload(
            source=self._source,
            rank_ptr=np.array(self._rank_ptr, np.int64),
            masks=tuple(self._masks),
            names=self._names,
            dep_ptr=np.array(self._dep_ptr, np.int64),
            dep=np.array(self._dep, np.int64),
            warnings=self._warnings,
            **{
                name: np.ascontiguousarray(values)
                for name, values in zip(_COLUMNS, columns, strict=True)
            },
        )

    def _row(
        self, ident: int, kind: int, duration_us: int, attributes: Mapping[str, Any]
    ) -> list[int]:
        if not 0 <= kind < _TYPES:
            raise ValueError(f"node type {kind} is none of the schema's")
        if duration_us > _MOST_DURATION_US:
            raise ValueError(
                f"duration_micros is {duration_us}, more than the {_MOST_DURATION_US:,} us that "
                "are the most"
            )
        mask = attributes.get("involved_dim")
        if mask is not None and not (
            isinstance(mask, tuple | list) and _INTEGERS.issuperset(map(type, mask))
        ):
            raise ValueError(f"attribute involved_dim is {mask!r}, no list of truth values")
        tracked = "inputs" in attributes and "outputs" in attributes
        row = [
            ident,
            kind,
            duration_us,
            _group(attributes.get("pg_name", "")) if kind == NodeType.COMM_COLL_NODE else 0,
            -1 if mask is None else self._masks.setdefault(tuple(mask), len(self._masks)),
            int(tracked),
        ]
        values = [attributes.get(name, ABSENT) for name in _ATTRIBUTES]
        # Truth values are integers to Python and to ASTRA-sim alike.
        if not _INTEGERS.issuperset(map(type, values)):
            name, value = next(
                (name, value)
                for name, value in zip(_ATTRIBUTES, values, strict=True)
                if type(value) not in _INTEGERS
            )
            raise ValueError(
                f"attribute {name} is {value!r}, and ASTRA-sim takes nothing but integers"
            )
        row += values
        if max(row) > _MOST or min(row) < ABSENT:
            raise ValueError("has a number that needs more than 62 bits")
        return row


def _group(name: object) -> int:
    """Communicator that `pg_name` means; only "" and "0" are the world."""
    if name in ("", "0"):
        return 0
    if not isinstance(name, str) or not _NUMBER.fullmatch(name):
        raise ValueError(f"pg_name {name!r} is no number in a string, on which ASTRA-sim aborts")
    number = int(name)
    if number == 0:
        raise ValueError(f"pg_name {name!r} is communicator 0, which ASTRA-sim does not find")
    return number


def read_workload(path: Path, *, ranks: int | None = None, progress: Progress = silent) -> Workload:
    """Read a set of .et files as ASTRA-sim's feeder does.

    Parameters
    ----------
    path : Path
        ``directory/prefix``, a directory with one set, or one file of the set; plain or gzip.
    ranks : int, optional
        Read the files of so many ranks only; ASTRA-sim opens no others than its network has.
    progress : callable
        Told of every file.

    Returns
    -------
    Workload

    Raises
    ------
    TraceError
        If a file is missing, damaged or not Chakra.
    GraphError
        If a rank has no node, a dependency is unknown, or an attribute cannot be read.
    """
    _, _, files = fmt.find_set(path)
    builder = Builder(str(path))
    for npu, file in enumerate(files[:ranks]):
        progress("reading Chakra files", npu, len(files))
        builder.add_rank(_nodes(file), file)
    if ranks is not None and len(files) > ranks:
        builder.warn(
            f"{len(files) - ranks} of {len(files)} .et files are left out: the network has "
            f"{ranks} ranks"
        )
    return builder.build()


def _nodes(
    file: Path,
) -> Iterable[tuple[int, int, str, int, Iterable[int], Mapping[str, Any]]]:
    from chakra.schema.protobuf import et_def_pb2

    messages = fmt.read_messages(file)
    if next(messages, None) is None:
        raise TraceError("is empty", file=file)
    for offset, message in messages:
        node = fmt.parse(et_def_pb2.Node, message, file, offset)
        yield (
            node.id,
            node.type,
            node.name[: fmt.NAME_LIMIT],
            node.duration_micros,
            [*node.ctrl_deps, *node.data_deps],
            fmt.attributes(node),
        )
