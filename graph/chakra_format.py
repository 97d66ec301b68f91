"""What a Chakra file of ours looks like: framing, file names, attribute names, job tables.

Shared by `chakra_write`, `chakra_read` and `chakra_foreign`. A set of files is one
``<prefix>.<npu>.et`` per rank, `npu` being the index of the rank, and
``<prefix>.comm_groups.json``. A file is a sequence of length-delimited protobuf messages: one
GlobalMetadata, then Nodes. Attributes that start with ``whatif_`` are ours; other tools ignore
them. What the standard attributes must be for ASTRA-sim is in `chakra_plan`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import re
import zlib
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import msgspec

from ..base.errors import TraceError
from .columns import Collective, Kind
from .coverage import Coverage  # noqa: TC001  (msgspec resolves the annotation)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

#: Version of the ``whatif_`` attributes; a reader refuses a newer one.
FORMAT = 2

#: GlobalMetadata.version, as the generators of mlcommons/chakra write it.
SCHEMA_VERSION = "0.0.4"

#: Longest name of a node. C++ readers keep messages below 16 KiB in a static buffer, and the
#: templates of device kernels easily exceed it.
NAME_LIMIT = 256

#: Columns of an `ExecutionGraph` that every node carries as ``whatif_<column>`` (int64).
ALWAYS = ("start_ns", "dur_ns", "lane", "name")

#: Columns carried only by nodes that differ from the value given here.
DEFAULTS: dict[str, int] = {
    "gap_ns": 0,
    "step": 0,
    "kind": int(Kind.COMP),
    "flavour": 0,
    "coll": int(Collective.NONE),
    "size_bytes": -1,
    "group": -1,
    "seq": -1,
    "peer": -1,
    "tag": -1,
    "instance": -1,
    "transfer_ns": -1,
    "tail_ns": 0,
    "eager": 0,
    "dtype": -1,
    "split": -1,
}

#: Marks a node that only shows time to other tools: ``gap``, ``tail`` or ``offset`` (string).
PART = "whatif_part"

#: Place of a node in its rank where it is not its place in the file (int64).
POSITION = "whatif_position"

#: All dependencies of a node where data_deps say less (string): place in its rank, ``s`` for one
#: on a start, and a lag in ns, for example ``12 15s 17+250``.
DEPS = "whatif_deps"

#: The ctrl_dep that exists only to order ASTRA-sim's communication slot (int64).
SLOT = "whatif_slot"

#: What the standard attributes of a node simplify (string).
NOTE = "whatif_note"

#: Metadata of our files. `JOB` is in the file of npu 0 only, its digest in all of them.
FORMAT_KEY = "whatif_format"
NPU = "whatif_npu"
RANK = "whatif_rank"
NODES = "whatif_nodes"
DIGEST = "whatif_digest"
CHECKSUM = "whatif_checksum"
JOB = "whatif_job"
EXPORT_WARNINGS = "whatif_export_warnings"

#: A message of the Chakra schema, whose classes carry no types.
ProtoMessage: TypeAlias = Any

_FILE_NAME = re.compile(r"(?P<prefix>.+)\.(?P<npu>\d+)\.et(?:\.gz)?")


class LaneTable(msgspec.Struct, frozen=True):
    """`Lanes` as lists."""

    rank: list[int]
    kind: list[int]
    number: list[int]
    servers: list[int]


class GroupRow(msgspec.Struct, frozen=True):
    """A `Group`."""

    name: str
    ranks: list[int]
    description: str


class StepTable(msgspec.Struct, frozen=True):
    """`Steps` as lists; `begin_ns` and `marker` hold one list of R numbers per step."""

    names: list[str]
    begin_ns: list[list[int]]
    marker: list[list[int]]
    completion_ns: list[int]


class JobTables(msgspec.Struct, frozen=True):
    """Everything of an `ExecutionGraph` that is not a column of nodes or dependencies."""

    model: str
    source: str
    trace: str
    ranks: list[int]
    world_size: int
    hosts: list[str]
    devices: list[str]
    base_ns: list[int]
    start_offset_ns: list[int]
    names: list[str]
    lanes: LaneTable
    groups: list[GroupRow]
    steps: StepTable
    coverage: Coverage
    splits: list[list[int]] = []

    def encode(self) -> str:
        """Write as JSON."""
        return msgspec.json.encode(self).decode()


def digest(job: str) -> str:
    """Fingerprint of the job tables, which ties the files of one conversion together."""
    return hashlib.sha256(job.encode()).hexdigest()


#: Stands for the checksum of a file while it is worked out.
NO_CHECKSUM = "0" * 64


class Checksum:
    """Fingerprint of the messages of a file, its metadata as if they held `NO_CHECKSUM`.

    A flipped bit in a duration would otherwise go unnoticed: any number is as good as another.
    """

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, message: bytes) -> None:
        """Go on with the next message."""
        self._sum.update(len(message).to_bytes(4, "little"))
        self._sum.update(message)

    def text(self) -> str:
        """What it has come to, as long as `NO_CHECKSUM`."""
        return self._sum.hexdigest()


def file_name(prefix: str, npu: int) -> str:
    """Name of the file of one rank, as ASTRA-sim looks for it."""
    return f"{prefix}.{npu}.et"


def groups_name(prefix: str) -> str:
    """Name of the file of communicator groups."""
    return f"{prefix}.comm_groups.json"


def files_with_prefix(directory: Path, prefix: str) -> list[tuple[int, Path]]:
    """Files of one set in a directory, by npu; a number can appear twice."""
    found = []
    for path in sorted(directory.iterdir()):
        match = _FILE_NAME.fullmatch(path.name)
        if match and match["prefix"] == prefix and path.is_file():
            found.append((int(match["npu"]), path))
    return sorted(found)


def find_set(path: Path) -> tuple[Path, str, list[Path]]:
    """Find the files of a job.

    Parameters
    ----------
    path : Path
        A directory that holds one set of files, ``directory/prefix``, or one file of a set.

    Returns
    -------
    directory : Path
    prefix : str
    files : list of Path
        The file of npu i at position i.

    Raises
    ------
    TraceError
        If there is no file, more than one set, a number twice, or one missing in between.
    """
    match = _FILE_NAME.fullmatch(path.name)
    if path.is_dir():
        directory = path
        matches = [_FILE_NAME.fullmatch(p.name) for p in path.iterdir() if p.is_file()]
        prefixes = sorted({m["prefix"] for m in matches if m})
        if not prefixes:
            raise TraceError("no Chakra files (<prefix>.<npu>.et) in this directory", file=path)
        if len(prefixes) > 1:
            raise TraceError(
                f"holds several sets of Chakra files ({', '.join(prefixes)}): "
                f"name one, for example {path / prefixes[0]}",
                file=path,
            )
        prefix = prefixes[0]
    else:
        directory = path.parent
        prefix = match["prefix"] if match and path.is_file() else path.name
    found = files_with_prefix(directory, prefix) if directory.is_dir() else []
    if not found:
        raise TraceError("no such directory, and no files <prefix>.<npu>.et", file=path)
    for (npu, first), (other, second) in itertools.pairwise(found):
        if npu == other:
            raise TraceError(f"npu {npu} is given twice, also by {first}", file=second, rank=npu)
    for i, (npu, _) in enumerate(found):
        if npu != i:
            raise TraceError(
                f"the file of npu {i} is missing ({len(found)} files, up to npu {found[-1][0]})",
                file=directory / file_name(prefix, i),
                rank=i,
            )
    return directory, prefix, [file for _, file in found]


def read_messages(path: Path) -> Generator[tuple[int, bytes]]:
    """Read the length-delimited messages of a file, plain or gzip.

    mlc-chakra's own reader ends silently at a truncated message; this one does not.

    Yields
    ------
    offset : int
        Where the message begins in the (decompressed) file.
    message : bytes

    Raises
    ------
    TraceError
        If the file cannot be read or ends inside a message.
    """
    try:
        with _open(path) as file:
            yield from _messages(path, file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"damaged or truncated gzip ({error})", file=path) from error
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", file=path) from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(2)
    if magic == b"\x1f\x8b":
        return io.BufferedReader(gzip.GzipFile(path), 1 << 20)
    return path.open("rb", buffering=1 << 20)


def _messages(path: Path, file: IO[bytes]) -> Generator[tuple[int, bytes]]:
    offset = 0
    while byte := file.read(1):
        size, shift, start = 0, 0, offset
        while True:
            if not byte:
                raise TraceError("ends inside a message", file=path, place=f"byte {start}")
            offset += 1
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
            if shift > 28:  # lengths are 32 bits: five groups of seven
                raise TraceError("not a Chakra file", file=path, place=f"byte {start}")
            byte = file.read(1)
        message = file.read(size)
        if len(message) < size:
            raise TraceError(
                f"ends inside a message of {size} bytes, of which it has {len(message)}",
                file=path,
                place=f"byte {start}",
            )
        offset += size
        yield start, message


def parse(
    kind: Callable[[], ProtoMessage], message: bytes, path: Path, offset: int
) -> ProtoMessage:
    """Decode a message of one class of the Chakra schema."""
    from google.protobuf.message import DecodeError

    decoded = kind()
    try:
        decoded.ParseFromString(message)
    except DecodeError as error:
        raise TraceError("not a Chakra message", file=path, place=f"byte {offset}") from error
    return decoded


def attributes(owner: ProtoMessage) -> dict[str, Any]:
    """Attributes of a node or of the metadata by name, whatever integer type they have.

    The first of a name counts, as in ASTRA-sim. Lists become tuples.
    """
    found: dict[str, Any] = {}
    for attr in owner.attr:
        field = attr.WhichOneof("value")
        if field is None or attr.name in found:
            continue
        value = getattr(attr, field)
        found[attr.name] = tuple(value.values) if field.endswith("_list") else value
    return found
