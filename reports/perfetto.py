"""Timelines as Chrome JSON, for ui.perfetto.dev and chrome://tracing.

The format is the one of [1]_: complete events (``X``) on threads of processes, flow events (``s``
and ``f``) between them. Each rank of each scenario is a process, each track a thread, so that
scenarios lie one below the other on one clock. How a timeline comes about is in
`simulator.timeline`.

References
----------
.. [1] "Trace Event Format", N. Duca and D. Sinclair,
   https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import gzip
import io
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import msgspec
import numpy as np

from .files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from ..simulator.results import Timeline


def write_timelines(path: str | Path, scenarios: Iterable[tuple[str, Timeline]]) -> None:
    """Write timelines of one job side by side.

    Parameters
    ----------
    path : str or Path
        File to write, compressed if it ends in ``.gz``.
    scenarios : iterable of (str, Timeline)
        Names and timelines. One is held at a time.

    Raises
    ------
    WhatIfError
        If the file cannot be written; it is then as it was before.
    """
    target = Path(path)

    def save(name: str) -> None:
        with open(name, "wb") as file:  # noqa: PTH123 (a path would be made of it for nothing)
            if target.suffix != ".gz":
                _save(file, scenarios)
                return
            # Without name and time in its header the file depends on nothing but its content.
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                _save(packed, scenarios)

    write_whole(target, save)


def _save(
    file: io.BufferedWriter | gzip.GzipFile, scenarios: Iterable[tuple[str, Timeline]]
) -> None:
    with io.TextIOWrapper(file, encoding="utf-8", newline="\n") as text:
        _write(text, scenarios)


def _write(text: TextIO, scenarios: Iterable[tuple[str, Timeline]]) -> None:
    # Processes and threads must not share numbers: a thread of the number of its process is
    # taken for the main one, and some viewers know threads by their number alone.
    number, arrow = count(1), count(1)
    text.write('{"traceEvents":[\n')
    before = ""
    for name, timeline in scenarios:
        for event in _events(name, timeline, number, arrow):
            text.write(before + event)
            before = ",\n"
    text.write("\n]}\n")


def _events(
    scenario: str, timeline: Timeline, number: Iterator[int], arrow: Iterator[int]
) -> Iterator[str]:
    processes: dict[int | None, int] = {}
    threads = []
    for rank in (None, *timeline.ranks):
        process = processes[rank] = next(number)
        title = scenario if rank is None else f"{scenario}: rank {rank}"
        yield _label("process_name", process, process, "name", title)
        yield _label("process_sort_index", process, process, "sort_index", process)
    for track in timeline.tracks:
        thread = next(number)
        threads.append((processes[track.rank], thread))
        yield _label("thread_name", *threads[-1], "name", track.name)
        yield _label("thread_sort_index", *threads[-1], "sort_index", thread)
    where = [f'"pid":{process},"tid":{thread}' for process, thread in threads]
    yield from _slices(timeline, where)
    yield from _arrows(timeline, where, arrow)


def _label(what: str, process: int, thread: int, field: str, value: str | int) -> str:
    said = _json({field: value})
    return f'{{"ph":"M","name":"{what}","pid":{process},"tid":{thread},"args":{said}}}'


def _slices(timeline: Timeline, where: list[str]) -> Iterator[str]:
    names = [_json(name) for name in timeline.names]
    kinds = [_json(kind) for kind in timeline.kinds]
    order = np.lexsort((timeline.end_ns, timeline.begin_ns, timeline.track))
    begin, end = timeline.begin_ns[order], timeline.end_ns[order]
    for i, name, kind, ts, dur, track in zip(
        order.tolist(),
        timeline.name[order].tolist(),
        timeline.kind[order].tolist(),
        microseconds(begin - timeline.earliest_ns).tolist(),
        microseconds(end - begin).tolist(),
        timeline.track[order].tolist(),
        strict=True,
    ):
        detail = timeline.details.get(i)
        said = "" if detail is None else f',"args":{_json(detail)}'
        yield (
            f'{{"ph":"X","name":{names[name]},"cat":{kinds[kind]},"ts":{ts},"dur":{dur},'
            f"{where[track]}{said}}}"
        )


def _arrows(timeline: Timeline, where: list[str], arrow: Iterator[int]) -> Iterator[str]:
    # Beginnings come first: at equal times viewers keep the order of the file.
    numbers = [next(arrow) for _ in timeline.arrow_from]
    for phase, ends, times in (
        ('"s"', timeline.arrow_from, timeline.leave_ns),
        ('"f","bp":"e"', timeline.arrow_to, timeline.reach_ns),
    ):
        for i, ts, track in zip(
            numbers,
            microseconds(times - timeline.earliest_ns).tolist(),
            timeline.track[ends].tolist(),
            strict=True,
        ):
            said = f'"name":"waits for","cat":"arrow","id":{i},"ts":{ts}'
            yield f'{{"ph":{phase},{said},{where[track]}}}'


def microseconds(ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Turn whole nanoseconds into microseconds that every reader turns back into the same.

    Some readers multiply by 1000 and cut off what is behind the point, so that 8.001 would become
    8000 ns, and a slice would begin before the one before it ended. Where that happens the next
    larger number is taken, which is the same to all others.

    Parameters
    ----------
    ns : int64, shape (K,)
        Moments or durations, not negative.

    Returns
    -------
    float64, shape (K,)
    """
    value = ns / 1000
    low = (value * 1000).astype(np.int64) < ns
    value[low] = np.nextafter(value[low], np.inf)
    return value


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
