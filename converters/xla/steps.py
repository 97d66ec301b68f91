"""Which part of a profile is a step.

The profiler's own step line where there is one, else the steps that the program marked on the
host (where host and device are one, on CPU devices), else the runs of the module that takes most
of the time: other modules that run between two of its runs belong to the step before. A step's
window ends with that run; what runs after it delays the step's completion, not its window.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import TraceError
from ..windows import Windows
from .events import Platform
from .runs import short_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .clock import DeviceClock
    from .events import Annotation, Device
    from .runs import Run


def find_steps(
    devices: Sequence[Device],
    clocks: Sequence[DeviceClock],
    annotations: Sequence[Sequence[Annotation]],
    runs: Sequence[Sequence[Run]],
) -> tuple[list[Windows], str]:
    """Find the recorded steps of every device.

    Parameters
    ----------
    devices, clocks, annotations, runs : sequences of equal length
        Of each device: itself, its clock, the steps marked on its host, its runs (those that
        are kept).

    Returns
    -------
    list of Windows
        Times in ns on the profile's clock.
    str
        What a step is, for the report.

    Raises
    ------
    TraceError
        If a device has no run.
    """
    for found, what in (
        (_step_lines(devices, clocks), "a step is what the profiler recorded as one"),
        (_marked(devices, annotations, runs), "a step is what the program marked as one"),
    ):
        if found and all(len(w.names) for w in found):
            return found, what
    if not all(runs):
        raise TraceError("a device without any run of a program that all devices ran")
    module = _main_module(runs)
    if module is None:
        span = [(r[0].start_ps, max(x.end_ps for x in r)) for r in runs]
        whole = [Windows(("trace",), (_ns(a),), (_ns(b),), 0, marked=False) for a, b in span]
        return whole, "no program ran on every device: the whole trace is taken as one step"
    rows = [[run for run in mine if run.module == module] for mine in runs]
    return [
        Windows(
            tuple(f"{short_name(module)}#{run.index}" for run in row),
            tuple(_ns(run.start_ps) for run in row),
            tuple(_ns(run.end_ps) for run in row),
            0,
            marked=True,
        )
        for row in rows
    ], f"a step is a run of {short_name(module)}, and what runs between it and the next"


def _step_lines(devices: Sequence[Device], clocks: Sequence[DeviceClock]) -> list[Windows] | None:
    windows = []
    for device, clock in zip(devices, clocks, strict=True):
        line = device.line("Steps")
        if line is None or not len(line):
            return None
        start, end = clock.place(line)
        order = np.argsort(start, kind="stable").tolist()
        names = [device.ops[line.op[i]].name for i in order]
        if len(set(names)) != len(names):
            return None
        windows.append(
            Windows(
                tuple(f"step#{name}" for name in names),
                tuple(_ns(int(start[i])) for i in order),
                tuple(_ns(int(end[i])) for i in order),
                0,
                marked=True,
            )
        )
    return windows


def _marked(
    devices: Sequence[Device],
    annotations: Sequence[Sequence[Annotation]],
    runs: Sequence[Sequence[Run]],
) -> list[Windows] | None:
    windows = []
    for device, marks, mine in zip(devices, annotations, runs, strict=True):
        if device.platform is not Platform.CPU or not marks:
            return None
        common = Counter(mark.name for mark in marks).most_common(1)[0][0]
        chosen = sorted((m for m in marks if m.name == common), key=lambda m: m.start_ps)
        begins = [m.start_ps for m in chosen]
        inside = Counter(
            int(np.searchsorted(begins, run.start_ps, side="right")) - 1 for run in mine
        )
        # A step in which a device ran nothing is none.
        chosen = [m for i, m in enumerate(chosen) if inside[i]]
        windows.append(
            Windows(
                tuple(f"{m.name}#{m.number}" for m in chosen),
                tuple(_ns(m.start_ps) for m in chosen),
                tuple(_ns(m.end_ps) for m in chosen),
                0,
                marked=True,
            )
        )
    return windows


def _main_module(runs: Sequence[Sequence[Run]]) -> str | None:
    """Module that takes most of the time of those that run on every device."""
    everywhere = set.intersection(*({run.module for run in mine} for mine in runs))
    time: Counter[str] = Counter()
    for mine in runs:
        for run in mine:
            if run.module in everywhere:
                time[run.module] += run.end_ps - run.start_ps
    return max(sorted(time), key=lambda m: time[m]) if time else None


def step_of_runs(runs: Sequence[Run], windows: Windows) -> list[int]:
    """Step of each run: the last that had begun; what came before the first belongs to it."""
    begins = np.array(windows.begin_ns, dtype=np.int64)
    starts = np.array([_ns(run.start_ps) for run in runs], dtype=np.int64)
    steps: list[int] = np.maximum(np.searchsorted(begins, starts, side="right") - 1, 0).tolist()
    return steps


def _ns(time_ps: int) -> int:
    return (time_ps + 500) // 1000
