"""ASTRA-sim's own files, typed: network.yml, system.json, remote memory, communicator groups.

They are read strictly and written as ASTRA-sim reads them, in its own units: bandwidths of links
in GiB/s (2^30 bytes), of memory in GB/s (1e9), times in ns, sizes in bytes. Keys that have no
effect on ASTRA-sim's analytical backends are dropped. What a key does is told by the engines; how
our networks become these files is in `export`.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from ...base.documents import DocumentError, quoted, read_json, read_yaml
from ...base.errors import NetworkError
from .names import IMPLEMENTATIONS, TOPOLOGIES, CommType, Implementation, implementation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

#: Members of each communicator by its number, in the order that ASTRA-sim makes rings of.
Groups: TypeAlias = "dict[int, tuple[int, ...]]"

T = TypeVar("T")

#: Largest latency or delay that the files may hold, ns: a quarter of an hour. No sum of them in
#: one message leaves 63 bits.
MOST_NS = 1e12

#: Smallest and largest bandwidth that the files may hold, GiB/s or GB/s; and peak performance in
#: TFLOP/s.
LEAST_RATE, MOST_RATE = 1e-6, 1e9

#: Largest number of chunks or queues.
MOST_PIECES = 1_000_000

# Ranks and communicators are 32-bit integers to ASTRA-sim.
_MOST_NUMBER = (1 << 31) - 1

# ASTRA-sim reads a switch of its files as a number, and JSON has truth values, too.
_Flag: TypeAlias = bool | int


class NetworkFile(msgspec.Struct, frozen=True, kw_only=True):
    """network.yml: dimensions from the inside out, dimension 0 varying fastest over the ranks.

    Attributes
    ----------
    topology : list of str
        ``Ring``, ``FullyConnected`` or ``Switch``.
    npus_count : list of int
        Ranks along each dimension, at least two.
    bandwidth : list of float
        Of a link, GiB/s (2^30 bytes) in one direction.
    latency : list of float
        Of a link, ns; a message on a switch passes two.
    """

    topology: list[str]
    npus_count: list[int]
    bandwidth: list[float]
    latency: list[float]

    @property
    def ranks(self) -> int:
        """Ranks of the world."""
        return math.prod(self.npus_count)


class SystemFile(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """system.json, as far as it has an effect on the analytical backends.

    Attributes
    ----------
    preferred_dataset_splits : int
        Chunks of a collective. 0, as if it were absent, kills ASTRA-sim at the first collective.
    active_chunks_per_dimension : int
        Chunks of one collective in progress in one queue.
    endpoint_delay : float
        Before each message and after each receive, ns, of which the fraction is dropped.
    local_mem_bw : float or None
        Memory bandwidth that reductions and the roofline pay, GB/s (1e9 bytes). Absent, ASTRA-sim
        divides by zero, which makes reductions free.
    collective_optimization : str or None
        Absent, ASTRA-sim reads memory that nobody wrote.
    scheduling_policy : str or None
        Checked by ASTRA-sim, but without an effect.
    all_reduce_implementation, all_gather_implementation : list of str or None
    reduce_scatter_implementation, all_to_all_implementation : list of str or None
        An algorithm for each dimension of the network.
    roofline_enabled, replay_only : bool or int
        Compute from operations and bytes; every node just takes its recorded duration.
    peak_perf : float
        For the roofline, TFLOP/s.
    track_local_mem, model_shared_bus : bool or int
        Refused by the parity engine.
    """

    preferred_dataset_splits: int = 0
    active_chunks_per_dimension: int = 1
    endpoint_delay: float = 10.0
    local_mem_bw: float | None = None
    collective_optimization: Literal["baseline", "localBWAware"] | None = None
    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] | None = None
    all_reduce_implementation: list[str] | None = None
    all_gather_implementation: list[str] | None = None
    reduce_scatter_implementation: list[str] | None = None
    all_to_all_implementation: list[str] | None = None
    roofline_enabled: _Flag = False
    peak_perf: float = 0.0
    replay_only: _Flag = False
    track_local_mem: _Flag = False
    model_shared_bus: _Flag = False

    def implementations(self, comm_type: CommType) -> list[Implementation]:
        """Algorithms of a collective, one for each dimension; empty where it has none."""
        names = getattr(self, IMPLEMENTATIONS[comm_type].replace("-", "_")) or []
        return [found for name in names if (found := implementation(name)) is not None]


class MemoryFile(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Remote memory.

    Attributes
    ----------
    memory_type : str
        Who shares a memory: nobody has one, each rank has its own, all share one (which serves one
        access at a time), the ranks of a node share one.
    remote_mem_latency : int
        ns.
    remote_mem_bw : int
        Bytes per ns.
    num_nodes, num_npus_per_node : int
        Of ``PER_NODE_MEMORY_EXPANSION``.
    """

    memory_type: Literal[
        "NO_MEMORY_EXPANSION",
        "PER_NPU_MEMORY_EXPANSION",
        "MEMORY_POOL",
        "PER_NODE_MEMORY_EXPANSION",
    ] = "NO_MEMORY_EXPANSION"
    remote_mem_latency: int = 0
    remote_mem_bw: int = 0
    num_nodes: int = 0
    num_npus_per_node: int = 0


def read_network(path: Path) -> NetworkFile:
    """Read network.yml.

    Raises
    ------
    NetworkError
        If it cannot be read, or is not what ASTRA-sim takes.
    """
    return check_network(_load(path, read_yaml, "YAML"), file=path)


def check_network(data: object, *, file: Path | None = None) -> NetworkFile:
    """Make a network of what network.yml holds.

    Raises
    ------
    NetworkError
        If a key is missing or of the wrong type, lists differ in length, or a value makes no
        sense.
    """
    network = _convert(data, NetworkFile, file, strict=False)
    for name, values in msgspec.structs.asdict(network).items():
        if len(values) != len(network.topology):
            raise NetworkError(
                f"{len(values)} values, but {len(network.topology)} topologies",
                file=file,
                place=name,
            )
    if not network.topology:
        raise NetworkError("has no dimension", file=file, place="topology")
    for topology in network.topology:
        if topology not in TOPOLOGIES:
            raise NetworkError(
                f"{topology!r} is none of {', '.join(TOPOLOGIES)}", file=file, place="topology"
            )
    for count in network.npus_count:
        if count < 2:
            raise NetworkError(
                f"{count}: ASTRA-sim wants at least 2 ranks in every dimension",
                file=file,
                place="npus_count",
            )
        _check_number(count, _MOST_NUMBER, "", file, "npus_count")
    for bandwidth in network.bandwidth:
        _check_rate(bandwidth, "GiB/s", file, "bandwidth")
    for latency in network.latency:
        _check_number(latency, MOST_NS, " ns", file, "latency")
    return network


def write_network(path: Path, network: NetworkFile, notes: Sequence[str] = ()) -> None:
    """Write network.yml.

    Parameters
    ----------
    path : Path
    network : NetworkFile
    notes : sequence of str
        Comments above it.

    Raises
    ------
    NetworkError
        If it cannot be written.
    """
    fields = msgspec.structs.asdict(network)
    lines = [f"# {' '.join(note.split())}" for note in notes]
    lines += [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    _write(path, "".join(f"{line}\n" for line in lines))


#: Keys of system.json that change the physics in ways that nobody specified.
_REFUSED_KEYS = (
    "all-reduce-implementation-custom",
    "all-gather-implementation-custom",
    "reduce-scatter-implementation-custom",
    "all-to-all-implementation-custom",
    "per-node-custom-implementation",
)

# Keys of system.json that ASTRA-sim reads, and that have no effect on the analytical backends.
_IDLE_KEYS = (
    "boost-mode",
    "intra-dimension-scheduling",
    "inter-dimension-scheduling",
    "seed",
    "L",
    "o",
    "g",
    "G",
    "trace-enabled",
    "local-mem-trace-filename",
)


def read_system(path: Path) -> SystemFile:
    """Read system.json.

    Raises
    ------
    NetworkError
        If it cannot be read, or is not what ASTRA-sim takes.
    """
    return check_system(_load(path, read_json, "JSON"), file=path)


def check_system(data: object, *, file: Path | None = None) -> SystemFile:
    """Make system settings of what system.json holds; other keys are ignored, as ASTRA-sim does.

    Raises
    ------
    NetworkError
        If a value is of the wrong type or beyond its limit, an algorithm has an unknown name
        (which ASTRA-sim refuses even if it is never used), or algorithms are the user's own graphs.
    """
    system = _convert(data, SystemFile, file)
    _check_number(system.endpoint_delay, MOST_NS, " ns", file, "endpoint-delay")
    for place, pieces in (
        ("preferred-dataset-splits", system.preferred_dataset_splits),
        ("active-chunks-per-dimension", system.active_chunks_per_dimension),
    ):
        _check_number(pieces, MOST_PIECES, "", file, place)
    # Without them ASTRA-sim divides by zero, which the engine does as well.
    if system.local_mem_bw:
        _check_rate(system.local_mem_bw, "GB/s", file, "local-mem-bw")
    if system.peak_perf:
        _check_rate(system.peak_perf, "TFLOP/s", file, "peak-perf")
    for key in _REFUSED_KEYS:
        if isinstance(data, dict) and data.get(key):
            raise NetworkError(
                "collectives given as graphs of the user's are not modelled", file=file, place=key
            )
    for key in IMPLEMENTATIONS.values():
        for name in getattr(system, key.replace("-", "_")) or []:
            if implementation(name) is None:
                raise NetworkError(
                    f"ASTRA-sim knows no algorithm {quoted(name)}; it knows ring, direct, "
                    "direct<W>, halvingDoubling, doubleBinaryTree, oneRing, oneDirect, "
                    "oneDirect<W>, oneHalvingDoubling",
                    file=file,
                    place=key,
                )
    return system


def write_system(path: Path, system: SystemFile) -> None:
    """Write system.json.

    Raises
    ------
    NetworkError
        If it cannot be written.
    """
    fields = msgspec.to_builtins(system)
    kept = {key: _whole(value) for key, value in fields.items() if value is not None}
    _write(path, json.dumps(kept, indent=2) + "\n")


def read_memory(path: Path) -> MemoryFile:
    """Read the file of the remote memory.

    Raises
    ------
    NetworkError
        If it cannot be read, or is not what ASTRA-sim takes.
    """
    return check_memory(_load(path, read_json, "JSON"), file=path)


def check_memory(data: object, *, file: Path | None = None) -> MemoryFile:
    """Make a remote memory of what its file holds.

    Raises
    ------
    NetworkError
        If a value is of the wrong type or makes no sense.
    """
    memory = _convert(data, MemoryFile, file)
    for place, value, most, unit in (
        ("remote-mem-latency", memory.remote_mem_latency, MOST_NS, " ns"),
        ("remote-mem-bw", memory.remote_mem_bw, MOST_RATE, " bytes/ns"),
        ("num-nodes", memory.num_nodes, _MOST_NUMBER, ""),
        ("num-npus-per-node", memory.num_npus_per_node, _MOST_NUMBER, ""),
    ):
        _check_number(value, most, unit, file, place)
    if memory.memory_type != "NO_MEMORY_EXPANSION" and not memory.remote_mem_bw:
        raise NetworkError("0 is not positive", file=file, place="remote-mem-bw")
    if memory.memory_type == "PER_NODE_MEMORY_EXPANSION" and memory.num_npus_per_node <= 0:
        raise NetworkError(
            f"{memory.num_npus_per_node} is not positive", file=file, place="num-npus-per-node"
        )
    return memory


def write_memory(path: Path, memory: MemoryFile) -> None:
    """Write the file of the remote memory.

    Raises
    ------
    NetworkError
        If it cannot be written.
    """
    _write(path, json.dumps(msgspec.to_builtins(memory), indent=2) + "\n")


def read_groups(path: Path) -> Groups:
    """Read communicator groups.

    Raises
    ------
    NetworkError
        If the file cannot be read, or is not what ASTRA-sim takes.
    """
    return check_groups(_load(path, read_json, "JSON"), file=path)


def check_groups(data: Mapping[str, Any] | object, *, file: Path | None = None) -> Groups:
    """Make communicator groups of what their file holds.

    Raises
    ------
    NetworkError
        If it is no mapping of numbers to lists of ranks, a number is not positive (0 is the world,
        and ASTRA-sim aborts if a file gives it) or not written plainly, so that it could be
        another's, a group is empty, or a rank is given twice.
    """
    table = _convert(data, dict[str, list[int]], file)
    groups: Groups = {}
    for key, members in table.items():
        place = f"group {quoted(key)[1:-1]}"
        try:
            number = int(key)
        except ValueError:
            raise NetworkError("is not a number", file=file, place=place) from None
        if str(number) != key:
            raise NetworkError(f"is not written as {number}", file=file, place=place)
        if number > _MOST_NUMBER:
            raise NetworkError(f"is more than {_MOST_NUMBER}", file=file, place=place)
        if number <= 0:
            raise NetworkError(
                "ASTRA-sim aborts unless the number of a group is positive: 0 is the world, which "
                "needs no entry",
                file=file,
                place=place,
            )
        if not members:
            raise NetworkError("has no member", file=file, place=place)
        for rank in members:
            if not 0 <= rank <= _MOST_NUMBER:
                raise NetworkError(
                    f"rank {quoted(rank)} is one that the network does not have",
                    file=file,
                    place=place,
                )
        for first, second in pairwise(sorted(members)):
            if first == second:
                raise NetworkError(
                    f"rank {first} is given twice, and ASTRA-sim would never end",
                    file=file,
                    place=place,
                )
        groups[number] = tuple(members)
    return groups


def write_groups(path: Path, groups: Groups) -> None:
    """Write communicator groups.

    Raises
    ------
    NetworkError
        If the file cannot be written.
    """
    table = {str(number): list(members) for number, members in groups.items()}
    _write(path, json.dumps(table) + "\n")


def _whole(value: object) -> object:
    """Write numbers without a fraction, and truth values, as the integers ASTRA-sim expects."""
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value


def _convert(data: object, kind: type[T], file: Path | None, *, strict: bool = True) -> T:
    try:
        return msgspec.convert(data, kind, strict=strict)
    except OverflowError as error:
        raise NetworkError(f"has a number that is too large ({error})", file=file) from None
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        place = place.strip("`").removeprefix("$").removeprefix(".")
        raise NetworkError(message, file=file, place=place or None) from None


def unknown_keys(path: Path, kind: type[NetworkFile | SystemFile | MemoryFile]) -> list[str]:
    """Warn of keys that ASTRA-sim does not know, and ignores: they may be misspelt.

    Parameters
    ----------
    path : Path
        A file that could be read.
    kind : type
        What it holds.

    Raises
    ------
    NetworkError
        If it cannot be read any more.
    """
    data = _load(path, read_yaml, "YAML") if kind is NetworkFile else _load(path, read_json, "JSON")
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    if kind is SystemFile:
        known.update(_REFUSED_KEYS, _IDLE_KEYS)
    keys = data if isinstance(data, dict) else {}
    return [
        f"{path}: ASTRA-sim ignores the key {quoted(key)}, which it does not know"
        for key in keys
        if key not in known
    ]


def _check_rate(value: float, unit: str, file: Path | None, place: str) -> None:
    if value == 0:
        raise NetworkError(f"{value:g} is not positive", file=file, place=place)
    if 0 < value < LEAST_RATE:
        raise NetworkError(
            f"{value:g} is less than the {LEAST_RATE:g} {unit} that are the least",
            file=file,
            place=place,
        )
    _check_number(value, MOST_RATE, f" {unit}", file, place)


def _check_number(value: float, most: float, unit: str, file: Path | None, place: str) -> None:
    """Refuse what is no number between 0 and `most`."""
    if value != value:  # NaN
        reason = "is no number"
    elif value in (math.inf, -math.inf):
        reason = "is not finite"
    elif value < 0:
        reason = "is negative"
    elif value > most:
        reason = f"is more than the {most:,.0f}{unit} that are the most"
    else:
        return
    raise NetworkError(f"{quoted(value)} {reason}", file=file, place=place)


def _load(path: Path, read: Callable[[bytes], object], language: str) -> object:
    try:
        return read(path.read_bytes())
    except DocumentError as error:
        raise NetworkError(
            f"is not {language} that can be used ({error})", file=path, place=error.place
        ) from error
    except OSError as error:
        raise NetworkError(f"cannot be read ({error.strerror or error})", file=path) from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NetworkError(f"cannot be written ({error.strerror or error})", file=path) from error
