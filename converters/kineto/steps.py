"""Which part of a trace is converted: the recorded steps and their windows on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import TraceError
from ..windows import Windows
from .events import Category
from .names import STEP_PATTERNS

if TYPE_CHECKING:
    import re

    from .events import KinetoTrace


def _annotations(trace: KinetoTrace, pattern: re.Pattern[str]) -> list[int]:
    wanted = [i for i, text in enumerate(trace.strings) if pattern.search(text)]
    if not wanted:
        return []
    rows = (trace.category == int(Category.USER_ANNOTATION)) & np.isin(trace.name, wanted)
    events = np.flatnonzero(rows).tolist()
    # A nested marker (or one on a second thread) belongs to the step around it.
    kept: list[int] = []
    for event in events:
        if not kept or trace.start_ns[event] >= trace.start_ns[kept[-1]] + trace.dur_ns[kept[-1]]:
            kept.append(event)
    return kept


def _main_thread(trace: KinetoTrace) -> int:
    host = np.isin(trace.category, [int(Category.CPU_OP), int(Category.RUNTIME)])
    if not host.any():
        return -1
    return int(np.bincount(trace.thread[host]).argmax())


def find_windows(trace: KinetoTrace) -> Windows:
    """Find the recorded steps of one rank.

    Parameters
    ----------
    trace : KinetoTrace
        Events of the rank.

    Returns
    -------
    Windows
        The steps found, or the whole trace as one step named ``trace``.

    Raises
    ------
    TraceError
        If the trace has no events.
    """
    for pattern in STEP_PATTERNS:
        events = _annotations(trace, pattern)
        if events:
            return Windows(
                tuple(trace.strings[trace.name[e]] for e in events),
                tuple(int(trace.start_ns[e]) for e in events),
                tuple(int(trace.start_ns[e] + trace.dur_ns[e]) for e in events),
                int(trace.thread[events[0]]),
                marked=True,
            )
    if len(trace) == 0:
        raise TraceError("the trace has no events", file=trace.path, rank=trace.rank)
    begin = int(trace.start_ns.min())
    end = int((trace.start_ns + trace.dur_ns).max())
    return Windows(("trace",), (begin,), (end,), _main_thread(trace), marked=False)
