"""Runs of programs on each device, and the same runs on all devices.

A chip records each run of a module as one event; what it executes lies inside. Run numbers are
counters of one chip (on v6e those of two chips differ by the programs that only one of them ran),
so runs are the same by their order, and where some chips recorded more of them than others, by
time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .events import ABSENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .clock import DeviceClock
    from .events import Device, Line

#: Starts of what follows each other are rounded separately; a start this much early is none.
ROUNDING_PS = 2_000


@dataclass
class Run:
    """One run of a module on one device.

    Attributes
    ----------
    module : str
        Name of the module, with its fingerprint.
    number : int
        What the profile calls the run, ABSENT if nothing.
    start_ps, end_ps : int
        When, on the even clock of the device.
    seen_ps : tuple of (int, int)
        The same on the clock of the profile, where events are told apart by it.
    index : int
        Which run of the module it is, the same on all devices.
    kept : bool
        Whether it is converted.
    """

    module: str
    number: int
    start_ps: int
    end_ps: int
    seen_ps: tuple[int, int]
    index: int = -1
    kept: bool = True


@dataclass
class Runs:
    """Runs of one device by time, and what had to be supposed to find them."""

    runs: list[Run]
    warnings: list[str] = field(default_factory=list)


def short_name(module: str) -> str:
    """Name of a module without its fingerprint."""
    return module.split("(", 1)[0] or module


def runs_of_modules(device: Device, clock: DeviceClock) -> Runs:
    """Find the runs that a device recorded as events of their own."""
    line = device.line("XLA Modules")
    if line is None or not len(line):
        return Runs([])
    start, end = clock.place(line)
    order = np.argsort(line.start_ps, kind="stable").tolist()
    found = [
        Run(
            device.ops[line.op[i]].name,
            int(line.run[i]),
            int(start[i]),
            int(end[i]),
            (int(line.start_ps[i]), int(line.start_ps[i] + line.dur_ps[i])),
        )
        for i in order
    ]
    operations = device.line("XLA Ops")
    if clock.misplaced and operations is not None and len(operations):
        _follow(found, operations, clock)
    return Runs(found)


def _follow(runs: list[Run], line: Line, clock: DeviceClock) -> None:
    """Move runs, which have no device time, with the first and last of their operations."""
    start, end = clock.place(line)
    which, _ = run_of_events(line, runs, start)
    before = -(1 << 62)
    for number, run in enumerate(runs):
        mine = np.flatnonzero(which == number)
        if len(mine):
            head, tail = mine[np.argmin(start[mine])], mine[np.argmax(end[mine])]
            ahead = max(0, int(line.start_ps[head]) - run.seen_ps[0])
            run.start_ps = max(before, int(start[head]) - ahead)
            run.end_ps = max(int(end[tail]), run.start_ps)
        before = run.end_ps


def runs_of_numbers(device: Device) -> Runs:
    """Find runs by the numbers that operations carry, where a device has no line of modules.

    Operations without numbers are told apart by the recurrence of what their module did first.
    """
    events: dict[tuple[str, int], list[tuple[int, int, str]]] = defaultdict(list)
    for line in device.lines:
        for op, number, start, duration in zip(
            line.op.tolist(),
            line.run.tolist(),
            line.start_ps.tolist(),
            line.dur_ps.tolist(),
            strict=True,
        ):
            info = device.ops[op]
            if info.module:
                name = info.instruction or info.name
                events[info.module, number].append((start, start + duration, name))
    found, warnings = [], []
    for (module, number), mine in events.items():
        mine.sort()
        parts = [mine] if number != ABSENT else _recurring(mine)
        if len(parts) > 1:
            warnings.append(
                f"{len(parts)} runs of {short_name(module)} are told by what recurs in it: its "
                "operations carry no number of a run"
            )
        for part in parts:
            low, high = part[0][0], max(end for _, end, _ in part)
            found.append(Run(module, number, low, high, (low, high)))
    return Runs(sorted(found, key=lambda run: run.start_ps), warnings)


def _recurring(events: list[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    """Cut events where what came first comes again after something else."""
    first = events[0][2]
    parts: list[list[tuple[int, int, str]]] = []
    before = ""
    for event in events:
        if not parts or (event[2] == first and before != first):
            parts.append([])
        parts[-1].append(event)
        before = event[2]
    return parts


def whole_trace(device: Device, clock: DeviceClock) -> Runs:
    """Take all that a device did as one run, where nothing tells of runs."""
    seen = [
        (int(x.start_ps.min()), int((x.start_ps + x.dur_ps).max())) for x in device.lines if len(x)
    ]
    placed = [clock.place(line) for line in device.lines if len(line)]
    run = Run(
        "",
        ABSENT,
        min(int(start.min()) for start, _ in placed),
        max(int(end.max()) for _, end in placed),
        (min(low for low, _ in seen), max(high for _, high in seen)),
    )
    return Runs([run], ["no record of which program ran when: all of it is taken as one run"])


def run_of_events(
    line: Line, runs: Sequence[Run], even_ps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int]:
    """Which run each event of a line lies in, and how many lie in none.

    Parameters
    ----------
    line : Line
        Events, told apart by their times on the clock of the profile.
    runs : sequence of Run
        By time.
    even_ps : int64, shape (N,)
        Starts of the events on the even clock of the device: in that order runs follow each
        other, even where the profiler misplaced some of the events.

    Returns
    -------
    int64, shape (N,)
        Index into `runs`. What lies between two belongs to the one before.
    int
        Events that lie in none.
    """
    begins = np.array([run.seen_ps[0] for run in runs], dtype=np.int64)
    ends = np.array([run.seen_ps[1] for run in runs], dtype=np.int64)
    which = np.searchsorted(begins - ROUNDING_PS, line.start_ps, side="right") - 1
    inside = (which >= 0) & (line.start_ps <= ends[np.maximum(which, 0)] + ROUNDING_PS)
    which = np.maximum(which, 0)
    order = np.argsort(even_ps, kind="stable")
    which[order] = _in_order(which[order])
    return which, int((~inside).sum())


def _in_order(which: NDArray[np.int64]) -> NDArray[np.int64]:
    """Make numbers ascend by changing the fewest of them, pair of runs by pair of runs."""
    if not len(which) or (np.diff(which) >= 0).all():
        return which
    result = which.copy()
    highest = np.maximum.accumulate(which)
    lowest = np.minimum.accumulate(which[::-1])[::-1]
    # Where all that follows is no lower than all before, one stretch ends and the next begins.
    cuts = np.flatnonzero(highest[:-1] <= lowest[1:]) + 1
    for part in np.split(np.arange(len(which)), cuts):
        values = which[part]
        low, high = int(values.min()), int(values.max())
        if low == high:
            continue
        if set(values.tolist()) <= {low, high}:
            above = np.concatenate([[0], np.cumsum(values == high)])
            below = np.concatenate([[0], np.cumsum(values == low)])
            split = int(np.argmin(above + below[-1] - below))
            result[part[:split]], result[part[split:]] = low, high
        else:
            result[part] = np.maximum.accumulate(values)
    return result


def join_runs(devices: Sequence[Runs]) -> dict[tuple[str, str], int]:
    """Number the runs of each module alike on all devices that have it.

    Parameters
    ----------
    devices : sequence of Runs
        Of every device; `index` and `kept` of their runs are set.

    Returns
    -------
    dict of (str, str) to int
        Runs that are not kept: what, why, how many.
    """
    by_module: dict[str, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for i, device in enumerate(devices):
        for run in device.runs:
            if run.kept:
                by_module[run.module][i].append(run)
    dropped: dict[tuple[str, str], int] = defaultdict(int)
    for module, rows in by_module.items():
        kept = _common(list(rows.values()))
        for mine, chosen in zip(rows.values(), kept, strict=True):
            for run in mine:
                run.kept = False
            for index, run in enumerate(chosen):
                run.index, run.kept = index, True
            lost = len(mine) - len(chosen)
            if lost:
                dropped[f"runs of {short_name(module)}", "not recorded on every device"] += lost
    return dict(dropped)


def _common(rows: list[list[Run]]) -> list[list[Run]]:
    """Keep the runs that every device recorded."""
    if len({len(row) for row in rows}) == 1:
        return rows
    fewest = min(rows, key=len)
    by_time = [_nearest(row, fewest) for row in rows]
    shared = set.intersection(*({run.number for run in row} for row in rows)) - {ABSENT}
    if not shared or any(len({run.number for run in row}) < len(row) for row in rows):
        return by_time
    # Numbers are counters of each chip: what they join must also have run at the same time.
    by_number = [[run for run in row if run.number in shared] for row in rows]
    return by_number if _misfit(by_number) < _misfit(by_time) else by_time


def _misfit(rows: list[list[Run]]) -> float:
    """How far apart the starts of what are taken for the same runs lie.

    The mean, since one that is missing in the middle moves only those behind it.
    """
    starts = np.array([[run.start_ps for run in row] for row in rows], dtype=np.float64)
    return float(np.mean(np.ptp(starts, axis=0)))


def _nearest(row: list[Run], reference: list[Run]) -> list[Run]:
    """Those consecutive runs that lie closest to a reference of fewer."""
    n = len(reference)
    wanted = np.array([run.start_ps for run in reference], dtype=np.float64)
    starts = np.array([run.start_ps for run in row], dtype=np.float64)
    shifts = range(len(row) - n + 1)
    best = min(shifts, key=lambda s: float(np.median(np.abs(starts[s : s + n] - wanted))))
    return row[best : best + n]
