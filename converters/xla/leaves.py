"""What a device really executed: operations without those that only contain others.

A profile shows a loop as one event and its body as events inside it; counted both, everything in
a loop counts twice. Loops, calls and conditionals are known by their opcode, and where an event
of another kind lies around others, by time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import TraceError
from .collectives import Meaning, Role, find_meaning
from .hlo import HloError
from .runs import run_of_events, short_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .clock import DeviceClock
    from .events import Device, Line
    from .hlo import Program
    from .runs import Run

#: Starts and ends are rounded to a few picoseconds one by one; containment is no finer.
_ROUNDING_PS = 5_000
_COMM = (Role.COMM, Role.COMM_START)


@dataclass(slots=True)
class Leaf:
    """One operation that ran.

    Attributes
    ----------
    start_ns, end_ns : int
        When, on the device's even clock.
    name : str
        Instruction.
    meaning : Meaning
        What it means.
    run : int
        Index of its run on the device.
    occurrence : int
        How many of the same instruction ran before it in the run.
    lane : int
        Stream that it ran on, where a device has several.
    kernel : str
        On a GPU, what the instruction launched.
    """

    start_ns: int
    end_ns: int
    name: str
    meaning: Meaning
    run: int
    occurrence: int = 0
    lane: int = 0
    kernel: str = ""


class Meanings:
    """What the operations of a device mean, each found once."""

    def __init__(self, device: Device, programs: dict[str, Program], path: Path, rank: int) -> None:
        self.doubts: Counter[str] = Counter()
        self._device = device
        self._programs = programs
        self._by_short = Counter(short_name(name) for name in programs)
        self._path = path
        self._rank = rank
        self._found: dict[tuple[int, str], Meaning] = {}
        self._inside: dict[tuple[int, str], bool] = {}

    def of(self, op: int, module: str) -> Meaning:
        """Meaning of an operation of the device in a module.

        Raises
        ------
        TraceError
            If it communicates and what it says of that cannot be understood.
        """
        key = (op, module)
        meaning = self._found.get(key)
        if meaning is None:
            info = self._device.ops[op]
            try:
                meaning = find_meaning(info, self.program(info.module or module))
            except HloError as error:
                raise TraceError(
                    f"what {info.name or 'an operation'} moves cannot be told: {error}",
                    file=self._path,
                    rank=self._rank,
                    place=f"program {short_name(module)}" if module else None,
                ) from error
            self._found[key] = meaning
        if meaning.doubt:
            self.doubts[meaning.doubt] += 1
        return meaning

    def recorded_inside(self, op: int, module: str) -> bool:
        """Whether what a loop runs has events too, be it elsewhere (as on CPU devices)."""
        key = (op, module)
        if key not in self._inside:
            program = self.program(self._device.ops[op].module or module)
            calls = self.of(op, module).calls if program else ()
            inside = (
                {n for c in calls for n in program.computations.get(c, ())} if program else set()
            )
            names = {info.instruction or info.name for info in self._device.ops}
            self._inside[key] = bool(inside & names)
        return self._inside[key]

    def program(self, module: str) -> Program | None:
        """Compiled module of a name, with its fingerprint or (if that is enough) without."""
        if module in self._programs:
            return self._programs[module]
        if module and "(" not in module and self._by_short[module] == 1:
            return next(p for name, p in self._programs.items() if short_name(name) == module)
        return None


@dataclass
class Leaves:
    """Leaves of one line in the order they ran, and what became of the other events."""

    leaves: list[Leaf] = field(default_factory=list)
    containers: int = 0
    outside: int = 0
    unnamed: int = 0
    hidden: int = 0


def find_leaves(
    device: Device,
    line: Line,
    clock: DeviceClock,
    runs: Sequence[Run],
    meanings: Meanings,
) -> Leaves:
    """Find the leaves of a line.

    Parameters
    ----------
    device, line : Device, Line
        Where the events are.
    clock : DeviceClock
        The device's clock.
    runs : sequence of Run
        Its runs, by time.
    meanings : Meanings
        Of its operations.

    Returns
    -------
    Leaves

    Raises
    ------
    TraceError
        See `Meanings.of`.
    """
    found = Leaves()
    start_ps, end_ps = clock.place(line)
    which, found.outside = run_of_events(line, runs, start_ps)
    kept = np.array([run.kept for run in runs], dtype=np.bool_)[which]
    # In the order of the program: by start, and at equal starts as recorded; but where the
    # recorder put several at one instant, what takes no time came first.
    rows = np.flatnonzero(kept)
    length = end_ps[rows] - start_ps[rows]
    rows = rows[np.lexsort((np.arange(len(rows)), length > 0, start_ps[rows]))]
    ops, lows, highs = line.op[rows].tolist(), start_ps[rows].tolist(), end_ps[rows].tolist()
    meant, leaf = [], np.ones(len(rows), dtype=np.bool_)
    for op, run in zip(ops, which[rows].tolist(), strict=True):
        meant.append(meanings.of(op, runs[run].module))
        found.unnamed += not device.ops[op].name
    around = _around(lows, highs)
    for i, outer in enumerate(around):
        if outer < 0:
            continue
        if meant[outer].role in _COMM:
            leaf[i] = False  # a part of the communication that it lies in
            found.hidden += 1
        elif leaf[outer]:
            leaf[outer] = False
            found.containers += 1
    seen: Counter[tuple[int, str]] = Counter()
    for i, (op, run) in enumerate(zip(ops, which[rows].tolist(), strict=True)):
        if not leaf[i]:
            continue
        name = device.ops[op].instruction or device.ops[op].name
        if meant[i].role is Role.CONTAINER and meanings.recorded_inside(op, runs[run].module):
            found.containers += 1
            continue
        found.leaves.append(
            Leaf(
                (lows[i] + 500) // 1000,
                (highs[i] + 500) // 1000,
                name,
                meant[i],
                run,
                seen[run, name],
                kernel=device.ops[op].name,
            )
        )
        seen[run, name] += 1
    return found


def _around(lows: list[int], highs: list[int]) -> list[int]:
    """Index of the innermost event that each one lies in, -1 if in none."""
    outer = [-1] * len(lows)
    stack: list[int] = []
    for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
        while stack and highs[stack[-1]] <= low + _ROUNDING_PS:
            stack.pop()
        while stack and high > highs[stack[-1]] + _ROUNDING_PS:
            stack.pop()  # it outlives that one: they overlap
        if stack and high > low:
            outer[i] = stack[-1]
        stack.append(i)
    return outer
