"""Where the time of each step goes on each rank.

At every instant one category applies, the first of those listed in `CATEGORIES` that is true, so
the categories of a rank sum exactly to the step. What a step and the headline are is defined in
`graph.steps`; which chain of causes made the step that long is for `critical_path`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.compiling import compiled
from ..graph.columns import Flavour
from .event_loop import NEED_NOTHING, Program, Replay, array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: The categories that sum to the step; the first five in order of precedence.
CATEGORIES = (
    "compute",
    "exposed_comm",
    "copy",
    "wait",
    "host",
    "idle",
    "start_offset",
)

#: Transfers that run while compute does: a part of compute, counted beside the categories.
HIDDEN_COMM = len(CATEGORIES)

_COMPUTE, _COMM, _COPY, _WAIT, _HOST, _IDLE, _START_OFFSET = range(len(CATEGORIES))
_COVERING = 5  # the categories that something running brings about

# Category of a part by its kind; -1 where nothing runs (gaps and lags).
_OF_PART = np.full(len(Flavour) + 1, -1, dtype=np.int64)
_OF_PART[Flavour.COMPUTE] = _COMPUTE
_OF_PART[Flavour.COPY] = _COPY
_OF_PART[Flavour.HOST] = _HOST


def account(
    rank_ptr: Int,
    start_offset_ns: Int,
    completion_ns: Int,
    prog: Program,
    replay: Replay,
    scale: Float,
) -> Int:
    """Divide the steps of every rank into categories.

    *Compute*, *copy* and *host* are where such a part runs; *communication* where a transfer of
    this rank is between its release and its end; *wait* where a communication node of this rank
    has started and is not released. What is left is *start_offset* before the rank began its
    first step, and *idle* after (gaps, lags, tails).

    Parameters
    ----------
    rank_ptr : int64, shape (R + 1,)
        Nodes of each rank.
    start_offset_ns : int64, shape (R,)
        When each rank began its first step.
    completion_ns : int64, shape (S,)
        Completion of each step over all ranks: step k is what lies between the completions of
        step k - 1 (for the first, the zero of the clock) and k.
    prog, replay, scale
        As for `engine.replay`, and its result.

    Returns
    -------
    int64, shape (R, S, 8)
        Nanoseconds of `CATEGORIES` and, last, `HIDDEN_COMM`. Moments are rounded to whole
        nanoseconds before they are compared, so the sums are exact.
    """
    room = int(2 * prog.part_ptr[-1] + 4 * rank_ptr[-1])
    times, codes = np.empty(room, np.int64), np.empty(room, np.int64)
    ptr = np.zeros(len(rank_ptr), dtype=np.int64)
    _collect(array(rank_ptr, np.int64), prog, replay, scale, _OF_PART, times, codes, ptr)
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    order = np.lexsort((times[: ptr[-1]], owner))
    table = np.zeros((len(ptr) - 1, len(completion_ns), len(CATEGORIES) + 1), dtype=np.int64)
    offset, completion = (array(t, np.int64) for t in (start_offset_ns, completion_ns))
    _sweep(ptr, times[order], codes[order], offset, completion, table)
    return table


@compiled
def _whole(time: float) -> int:
    return int(np.rint(time))


@compiled
def _add(times: Int, codes: Int, count: int, begin: float, end: float, category: int) -> int:
    """Note an interval by its two moments; returns the new number of moments."""
    first, last = _whole(begin), _whole(end)
    if last <= first:
        return count
    times[count], codes[count] = first, 2 * category
    times[count + 1], codes[count + 1] = last, 2 * category + 1
    return count + 2


@compiled
def _collect(
    rank_ptr: Int,
    prog: Program,
    replay: Replay,
    scale: Float,
    of_part: Int,
    times: Int,
    codes: Int,
    ptr: Int,
) -> None:
    """Note the moments at which something begins or ends to run, rank by rank."""
    count = 0
    for rank in range(len(rank_ptr) - 1):
        for node in range(rank_ptr[rank], rank_ptr[rank + 1]):
            if prog.need[node] == NEED_NOTHING:
                time = replay.start[node]
                for part in range(prog.part_ptr[node], prog.part_ptr[node + 1]):
                    begin = time
                    kind = prog.part_kind[part]
                    time += prog.part_ns[part] * scale[kind]
                    if of_part[kind] >= 0:
                        count = _add(times, codes, count, begin, time, of_part[kind])
            else:
                release = replay.release[node]
                count = _add(times, codes, count, replay.start[node], release, _WAIT)
                count = _add(times, codes, count, release, replay.transferred[node], _COMM)
        ptr[rank + 1] = count


@compiled
def _attribute(table: Int, step: int, begin: int, end: int, completion: Int, category: int) -> None:
    """Add an interval that begins in a step to a category of it and the next; table is (S, 8)."""
    while begin < end and step < len(completion):
        until = min(end, completion[step])
        if until > begin:
            table[step, category] += until - begin
            begin = until
        step += 1


@compiled
def _sweep(
    ptr: Int, times: Int, codes: Int, start_offset: Int, completion: Int, tables: Int
) -> None:
    """Go through the moments of every rank with a count of what runs of each category."""
    for rank in range(len(ptr) - 1):
        table = tables[rank]
        running = np.zeros(_COVERING, np.int64)
        now, step = 0, 0
        for i in range(ptr[rank], ptr[rank + 1] + 1):
            time = times[i] if i < ptr[rank + 1] else completion[-1]
            if time > now:
                while step < len(completion) and completion[step] <= now:
                    step += 1
                category = 0
                while category < _COVERING and running[category] == 0:
                    category += 1
                if category == _COVERING:
                    begun = min(max(start_offset[rank], now), time)
                    _attribute(table, step, now, begun, completion, _START_OFFSET)
                    _attribute(table, step, begun, time, completion, _IDLE)
                else:
                    _attribute(table, step, now, time, completion, category)
                if running[_COMPUTE] > 0 and running[_COMM] > 0:
                    _attribute(table, step, now, time, completion, HIDDEN_COMM)
                now = time
            if i < ptr[rank + 1]:
                running[codes[i] >> 1] += 1 - 2 * (codes[i] & 1)
