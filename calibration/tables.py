"""Published collective benchmarks read into one table: who measured what, in our units.

Read are the logs of nccl-tests and rccl-tests, and tables (CSV, Parquet) with the columns of
aiconfigurator. All of them are time per operation over message size, but "size" means another
thing for each collective; here it becomes the input of one rank, the convention of the graph and
of `simulator.collectives`. What network explains the times is in `table_fit`.

What the benchmarks call size
-----------------------------
nccl-tests prints the larger of the send and the receive buffer of a rank, and rccl-tests, made
from it, does the same [1]_. With n ranks and S the input of one rank:

==============  =======================================  ==============
collective      what the benchmark's size is             S
==============  =======================================  ==============
all-reduce      the send buffer                          size
broadcast       the send buffer                          size
reduce          the send buffer                          size
reduce-scatter  the send buffer, all n shards            size
all-to-all      the send buffer, the own part included   size
send/recv       the send buffer                          size
all-gather      the receive buffer, all n shards         size / n
gather          the receive buffer of the root           size / n
scatter         the send buffer of the root              size / n
==============  =======================================  ==============

Its column "count" is in elements of the part that one rank keeps, so size is n x count x width
in all-gather, reduce-scatter, all-to-all, gather and scatter, and count x width in the others:
rows that contradict this are refused, because then the collective or the ranks are not the ones
that were assumed.

aiconfigurator runs nccl-tests once for each size and writes the size that it asked for divided
by the width of an element, and the out-of-place time in ms [2]_: its `message_size` is
nccl-tests' size in elements. The numbers agree: its all-gather of 512 MiB over 8 A100 takes 2.29
ms, nccl-tests on another such machine 2.27 ms. Were it the shard of one rank, each rank would
receive 1.6 TB/s over links of 0.3 TB/s.

References
----------
.. [1] NVIDIA/nccl-tests a0b82b2 (2.19.6), ``GetCollByteCount`` in src/*.cu and
   ``writeBenchmarkLinePreamble`` in src/util.cu; ROCm/rccl-tests ae3e635, src/common.cu.
.. [2] ai-dynamo/aiconfigurator, collector/collect_nccl.py.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet

from ..base.errors import TraceError
from ..graph.columns import Collective

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Collectives whose benchmark size is that of all ranks' parts together.
_SIZE_OF_ALL = frozenset({Collective.ALL_GATHER, Collective.GATHER, Collective.SCATTER})

#: Collectives whose benchmark count is that of one rank's part.
_COUNT_OF_PART = _SIZE_OF_ALL | {Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL}

# Without the separators, which differ between programs, file names and tables.
_COLLECTIVES = {
    "allreduce": Collective.ALL_REDUCE,
    "allgather": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "broadcast": Collective.BROADCAST,
    "sendrecv": Collective.SEND_RECV,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "reduce": Collective.REDUCE,
}

_WIDTHS = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "float": 4,
    "float32": 4,
    "double": 8,
    "float64": 8,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured collective.

    Attributes
    ----------
    machine : str
        Name of the device, or what the caller calls the machine.
    collective : Collective
        What was run.
    ranks : int
        Ranks that took part.
    nodes : int or None
        Hosts that they ran on; None where the source does not say.
    size_bytes : int
        Input of one rank.
    time_ns : float
        Time of one operation, the mean of the measurements.
    samples : int
        Measurements averaged: 2 where in-place and out-of-place were both timed, else 1.
    element : str
        Type of the elements, as the source names it.
    """

    machine: str
    collective: Collective
    ranks: int
    nodes: int | None
    size_bytes: int
    time_ns: float
    samples: int
    element: str

    @property
    def benchmark_bytes(self) -> int:
        """Size as the benchmark counts it; see the module."""
        return self.size_bytes * (self.ranks if self.collective in _SIZE_OF_ALL else 1)


@dataclass(frozen=True)
class Table:
    """Measured collectives.

    Attributes
    ----------
    rows : tuple of TableRow
        In the order of the sources.
    left_out : dict of str to int
        What was in the sources and is not among the rows, by the reason.
    """

    rows: tuple[TableRow, ...]
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def __add__(self, other: Table) -> Table:
        both = Counter(self.left_out) + Counter(other.left_out)
        return Table(self.rows + other.rows, dict(both))


def read_tables(
    files: Iterable[Path | str], *, machine: str = "", collective: Collective | None = None
) -> Table:
    """Read benchmark files of any supported kind into one table.

    Parameters
    ----------
    files : iterable of Path or str
        Those that end in ``.csv`` or ``.parquet`` are read by `read_columns`, others by
        `read_nccl_log`.
    machine : str, optional
        What to call the machine instead of the name of its device.
    collective : Collective, optional
        What logs measured that do not say it themselves.

    Returns
    -------
    Table

    Raises
    ------
    TraceError
        As the readers; naming the file.
    """
    table = Table(())
    for file in files:
        if Path(file).suffix.lower() in {".csv", ".parquet"}:
            table += read_columns(file, machine=machine)
        else:
            table += read_nccl_log(file, machine=machine, collective=collective)
    return table


def alternate_sizes(rows: Sequence[TableRow]) -> tuple[list[TableRow], list[TableRow]]:
    """Split rows into those of every other size, beginning with the smallest, and the rest.

    Sizes are told apart within each machine, collective, number of ranks and number of nodes,
    whatever the type of the elements: the same size is never on both sides.

    Returns
    -------
    fit, held_out : list of TableRow
    """

    def kind(row: TableRow) -> tuple[str, int, int, int | None]:
        return row.machine, row.collective, row.ranks, row.nodes

    sizes: dict[tuple[str, int, int, int | None], set[int]] = {}
    for row in rows:
        sizes.setdefault(kind(row), set()).add(row.size_bytes)
    chosen = {key: set(sorted(of_kind)[::2]) for key, of_kind in sizes.items()}
    fit = [row for row in rows if row.size_bytes in chosen[kind(row)]]
    return fit, [row for row in rows if row.size_bytes not in chosen[kind(row)]]


def read_nccl_log(
    file: Path | str, *, machine: str = "", collective: Collective | None = None
) -> Table:
    """Read the output of nccl-tests or rccl-tests.

    The file may hold several runs, and whatever launchers and libraries wrote between the lines:
    tags of mpirun (also in the middle of a line) and of other launchers before it, warnings.
    Columns are found by the header of each run, since versions differ in them.

    Parameters
    ----------
    file : Path or str
        Text of one or more runs.
    machine : str, optional
        What to call the machine instead of the name of its device.
    collective : Collective, optional
        What was measured where neither the log nor the name of the file says it.

    Returns
    -------
    Table
        Left out are rows that moved no data, had wrong results, were cut in two by other output
        or belong to an operation without a price, and runs that ended before their first row.

    Raises
    ------
    TraceError
        If the file cannot be read or no run in it has a row; if no row of a run fits its header,
        or one does not fit its collective and ranks; if a run does not say which collective it
        measured or with which ranks.
    """
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", file=file) from error
    rows: list[TableRow] = []
    left_out: Counter[str] = Counter()
    runs = list(_runs(text, file))
    for run in runs:
        rows += run.rows(machine, collective, left_out)
    if not any(run.lines for run in runs):
        trouble = next((run.trouble for run in runs if run.trouble), "")
        raise TraceError(
            "no measurements of nccl-tests or rccl-tests"
            + (f"; the run failed: {trouble}" if trouble else ""),
            file=file,
        )
    return Table(tuple(rows), dict(left_out))


# mpirun marks each piece of output that it forwards, wherever in a line the piece begins.
_MPI_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err|diag)>:?")
_STARTS = re.compile(r"# *Collective test starting: *(\S+?)_perf\b")
_SETTINGS = re.compile(r"# *nThread \d")
_DEVICE = re.compile(
    r"# *Rank +(\d+) +(?:Group +(\d+) +)?Pid +\d+ +on +(\S+) +device +\d+ +\[[^\]]*\] *(.*?) *$"
)
_HEADER = re.compile(r"# *size +count +type +(.*)$")
# Launchers put words, brackets and colons before a line; the numbers that follow begin a row.
_ROW = re.compile(r"(?:^|[\s:\]>|])(\d+ +\d+ +[a-z]\w* .*)$")
_TROUBLE = re.compile(r"failure|failed|error", re.IGNORECASE)
_TIMES = ("time", "cputime")


class _Device(NamedTuple):
    """What one rank ran on, and in which of the communicators that ran at once."""

    group: str
    host: str
    name: str


class _Cells(NamedTuple):
    """A row of a log: sizes as the benchmark counts them."""

    size: int
    elements: int
    element: str
    times_us: list[float]
    wrong: bool


@dataclass
class _Run:
    """Lines of a log that belong to one run of one program, tags removed."""

    file: Path | str
    program: str = ""
    columns: list[str] = field(default_factory=list)
    devices: dict[int, _Device] = field(default_factory=dict)
    lines: list[tuple[int, str]] = field(default_factory=list)
    trouble: str = ""

    def rows(
        self, machine: str, collective: Collective | None, left_out: Counter[str]
    ) -> Iterator[TableRow]:
        """Rows of the table; what is not among them is counted in `left_out`."""
        if not self.lines:
            left_out["runs without a row"] += 1
            return
        coll = self._collective(collective)
        if coll is None:
            left_out[f"{self.program}, which has no price"] += len(self.lines)
            return
        if not self.devices:
            raise self._error(self.lines[0][0], "the log does not list the ranks of these rows")
        if len({device.group for device in self.devices.values()}) > 1:
            raise self._error(
                self.lines[0][0], "several communicators ran at once and shared the links"
            )
        whole = 0
        for number, line in self.lines:
            cells = self._cells(number, line)
            if cells is None:
                left_out["rows that other output cut in two"] += 1
                continue
            whole += 1
            size = self._input_bytes(number, cells, coll)
            if cells.wrong:
                left_out["rows with wrong results"] += 1
            elif size == 0:
                left_out["rows that moved no data"] += 1
            else:
                yield TableRow(
                    machine=machine or " + ".join(sorted({d.name for d in self.devices.values()})),
                    collective=coll,
                    ranks=len(self.devices),
                    nodes=len({device.host for device in self.devices.values()}),
                    size_bytes=size,
                    time_ns=sum(cells.times_us) / len(cells.times_us) * 1e3,
                    samples=len(cells.times_us),
                    element=cells.element,
                )
        if not whole:
            raise self._error(self.lines[0][0], "rows do not have the columns of their header")

    def _collective(self, given: Collective | None) -> Collective | None:
        """What was run; None if it is an operation without a price."""
        if self.program:
            return _COLLECTIVES.get(self.program.replace("_", ""))
        # The longest name first: "allreduce" contains "reduce".
        stem = re.sub(r"[^a-z]", "", Path(self.file).stem.lower())
        for name in sorted(_COLLECTIVES, key=len, reverse=True):
            if name in stem:
                return _COLLECTIVES[name]
        if given is None:
            raise TraceError(
                "neither the log nor the name of the file says which collective it measured; "
                "name it",
                file=self.file,
            )
        return given

    def _cells(self, number: int, line: str) -> _Cells | None:
        """Take a row apart; None if it has not the columns of its header."""
        cells = line.split()
        first = next((i for i, name in enumerate(self.columns) if name in _TIMES), None)
        if first is None:
            raise self._error(number, "a row before the header that names its columns")
        # The columns redop and root may be blank, so the others are counted from the right.
        names = self.columns[first:]
        if names[-1] == "timestamp":
            names, cells = names[:-1], cells[:-2]
        if not 3 <= len(cells) - len(names) <= 3 + first:
            return None
        values = list(zip(names, cells[-len(names) :], strict=True))
        try:
            times = [float(cell) for name, cell in values if name in _TIMES and cell != "N/A"]
            wrong = any(name == "#wrong" and cell != "N/A" and float(cell) for name, cell in values)
        except ValueError:
            return None
        if not times or min(times) <= 0:
            raise self._error(number, "has no time above 0")
        return _Cells(int(cells[0]), int(cells[1]), cells[2], times, wrong)

    def _input_bytes(self, number: int, cells: _Cells, coll: Collective) -> int:
        """Input of one rank, after checking that the row is one of that collective and ranks."""
        width = _WIDTHS.get(cells.element.lower())
        if width is None:
            raise self._error(number, f"elements of the unknown type {cells.element!r}")
        parts = len(self.devices) if coll in _COUNT_OF_PART else 1
        if cells.size != parts * cells.elements * width:
            raise self._error(
                number,
                f"{cells.elements} elements of {cells.element} are not {cells.size} bytes in "
                f"{coll.label} of {len(self.devices)} ranks",
            )
        return cells.size // len(self.devices) if coll in _SIZE_OF_ALL else cells.size

    def _error(self, number: int, problem: str) -> TraceError:
        return TraceError(problem, file=self.file, place=f"line {number}")


def _runs(text: str, file: Path | str) -> Iterator[_Run]:
    """Take a log apart into the runs in it."""
    run = _Run(file)
    named = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _MPI_TAG.sub("", raw).rstrip()
        if match := _STARTS.search(line):
            named = match[1]
        elif _SETTINGS.search(line):
            # The first thing that every version prints, but for its name.
            if run.devices or run.lines or run.trouble:
                yield run
            run, named = _Run(file, program=named), ""
        elif match := _DEVICE.search(line):
            run.devices[int(match[1])] = _Device(match[2] or "", match[3], match[4])
        elif match := _HEADER.search(line):
            run.columns = match[1].split()
        elif match := _ROW.search(line):
            run.lines.append((number, match[1]))
        elif _TROUBLE.search(line) and not line.lstrip().startswith("#"):
            run.trouble = run.trouble or line.strip()
    yield run


_COLUMNS = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")


def read_columns(file: Path | str, *, machine: str = "") -> Table:
    """Read a CSV or Parquet table with the columns of aiconfigurator.

    Parameters
    ----------
    file : Path or str
        With the columns ``op_name``, ``nccl_dtype``, ``num_gpus``, ``message_size`` (elements)
        and ``latency`` (ms), and optionally ``device``; see the module for what they mean.
    machine : str, optional
        What to call the machine instead of what the column ``device`` says.

    Returns
    -------
    Table

    Raises
    ------
    TraceError
        If the file cannot be read, lacks a column or has no rows, or if a value in it is no
        known name or no number above 0.
    """
    records = list(_records(Path(file)))
    if not records:
        raise TraceError("has no rows", file=file)
    missing = [name for name in _COLUMNS if name not in records[0]]
    if missing:
        raise TraceError(
            f"lacks the columns {', '.join(missing)}; it has {', '.join(records[0])}", file=file
        )
    rows = []
    for index, record in enumerate(records, start=1):
        try:
            rows.append(_from_record(record, machine))
        except ValueError as error:
            raise TraceError(str(error), file=file, place=f"row {index}") from error
    return Table(tuple(rows))


def _records(file: Path) -> Iterator[dict[str, Any]]:
    try:
        if file.suffix.lower() == ".parquet":
            yield from parquet.read_table(file).to_pylist()
        else:
            with file.open(encoding="utf-8", newline="") as lines:
                yield from csv.DictReader(lines)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=file) from error
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"is damaged: {error}", file=file) from error


def _from_record(record: dict[str, Any], machine: str) -> TableRow:
    operation = str(record["op_name"])
    coll = _COLLECTIVES.get(operation.lower().replace("_", ""))
    if coll is None:
        raise ValueError(f"unknown operation {operation!r}")
    element = str(record["nccl_dtype"])
    width = _WIDTHS.get(element.lower())
    if width is None:
        raise ValueError(f"elements of the unknown type {element!r}")
    ranks, count = (_positive(record, name) for name in ("num_gpus", "message_size"))
    size = int(count) * width
    return TableRow(
        machine=machine or str(record.get("device") or "unknown machine"),
        collective=coll,
        ranks=int(ranks),
        nodes=None,
        size_bytes=size // int(ranks) if coll in _SIZE_OF_ALL else size,
        time_ns=_positive(record, "latency") * 1e6,
        samples=1,
        element=element,
    )


def _positive(record: dict[str, Any], name: str) -> float:
    try:
        value = float(record[name])
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {record[name]!r}, not a number") from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be above 0, is {value:g}")
    return value
