"""Which part of a profile is a step.

The profiler's own step line where there is one, else the steps that the program marked on the
host (where host and device are one, on CPU devices), else the runs of the module that takes most
of the time. Steps of a device end where their window does, so that one recorded run is one step:
other programs that run between two of them belong to the later one, which begins with them, and
those after the last to a step that was not recorded. Of several steps the first, which no headline
uses, begins with all that ran before it; a single one is the window that was recorded. Steps of
the host go by when a run began, as the device works behind the host.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class FoundSteps:
    """The recorded steps.

    Attributes
    ----------
    windows : list of Windows
        Of every device; times in ns on the profile's clock.
    what : str
        What a step is, for the report.
    of_host : bool
        Whether the host marked them.
    """

    windows: list[Windows]
    what: str
    of_host: bool = False


def find_steps(
    devices: Sequence[Device],
    clocks: Sequence[DeviceClock],
    annotations: Sequence[Sequence[Annotation]],
    runs: Sequence[Sequence[Run]],
) -> FoundSteps:
    """Find the recorded steps of every device.

    Parameters
    ----------
    devices, clocks, annotations, runs : sequences of equal length
        Of each device: itself, its clock, the steps marked on its host, its runs (those that
        are kept).

    Returns
    -------
    FoundSteps

    Raises
    ------
    TraceError
        If a device has no run.
    """
    lines = _step_lines(devices, clocks)
    if lines and all(len(w.names) for w in lines):
        return FoundSteps(lines, "a step is what the profiler recorded as one")
    marked = _marked(devices, annotations, runs)
    if marked and all(len(w.names) for w in marked):
        return FoundSteps(marked, "a step is what the program marked as one", of_host=True)
    if not all(runs):
        raise TraceError("a device without any run of a program that all devices ran")
    module = _main_module(runs)
    if module is None:
        span = [(r[0].start_ps, max(x.end_ps for x in r)) for r in runs]
        whole = [Windows(("trace",), (_ns(a),), (_ns(b),), 0, marked=False) for a, b in span]
        return FoundSteps(
            whole, "no program ran on every device: the whole trace is taken as one step"
        )
    rows = [[run for run in mine if run.module == module] for mine in runs]
    windows = [
        Windows(
            tuple(f"{short_name(module) or 'run'}#{run.index}" for run in row),
            tuple(_ns(run.start_ps) for run in row),
            tuple(_ns(run.end_ps) for run in row),
            0,
            marked=True,
        )
        for row in rows
    ]
    name = short_name(module) if module else "a program without a name"
    return FoundSteps(windows, f"a step is a run of {name}, with what ran since the one before")


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


def steps_of_runs(
    runs: Sequence[Sequence[Run]], windows: Sequence[Windows], *, of_host: bool
) -> list[list[int]]:
    """Tell in which step each run is, the same on all devices.

    Parameters
    ----------
    runs : sequence of sequences of Run
        Of every device.
    windows : sequence of Windows
        The steps that all devices recorded.
    of_host : bool
        Whether the host marked them.

    Returns
    -------
    list of lists of int
        Of every run of every device; -1 before a single step, the number of steps after the last.
    """
    steps: list[list[int]] = []
    latest: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)
    for mine, known in zip(runs, windows, strict=True):
        starts = np.array([_ns(run.start_ps) for run in mine], dtype=np.int64)
        begins = np.array(known.begin_ns, dtype=np.int64)
        if not known.marked:
            step = np.zeros(len(mine), dtype=np.int64)
        elif of_host:
            step = np.maximum(np.searchsorted(begins, starts, side="right") - 1, 0)
        else:
            step = np.searchsorted(np.array(known.end_ns, dtype=np.int64), starts, side="right")
        if known.marked and len(begins) == 1:
            step[starts < begins[0]] = -1
        steps.append(step.tolist())
        for run, k in zip(mine, steps[-1], strict=True):
            latest[run.module, run.index] = max(latest[run.module, run.index], k)
    return [
        [latest[run.module, run.index] if run.kept else k for run, k in zip(mine, row, strict=True)]
        for mine, row in zip(runs, steps, strict=True)
    ]


def with_all_of_them(
    windows: Sequence[Windows], runs: Sequence[Sequence[Run]], steps: Sequence[Sequence[int]]
) -> list[Windows]:
    """Let each step begin with the first of the runs that are in it, if that is earlier.

    Parameters
    ----------
    windows, runs
        As for `steps_of_runs`.
    steps : sequence of sequences of int
        Its result.
    """
    whole = []
    for known, mine, row in zip(windows, runs, steps, strict=True):
        begin = list(known.begin_ns)
        for run, k in zip(mine, row, strict=True):
            if run.kept and 0 <= k < len(begin):
                begin[k] = min(begin[k], _ns(run.start_ps))
        whole.append(replace(known, begin_ns=tuple(begin)))
    return whole


def _ns(time_ps: int) -> int:
    return (time_ps + 500) // 1000
