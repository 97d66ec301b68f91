"""The chosen steps of a rank, and choosing the same ones on every rank.

Where the steps of a trace begin and end is worked out by each dialect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ..base.errors import TraceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Windows:
    """The chosen steps of one rank (S of them), in time order.

    Attributes
    ----------
    names : tuple of str
        Annotation of each step; the same on all ranks.
    begin_ns, end_ns : tuple of int
        Its window on the host, on the clock of the trace.
    thread : int
        The thread that carries the annotations, as an index into the trace's threads.
    marked : bool
        False where no annotation was found and the whole trace is one step.
    """

    names: tuple[str, ...]
    begin_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    thread: int
    marked: bool


def select_steps(windows: Sequence[Windows], wanted: Sequence[str] | None) -> list[Windows]:
    """Keep the chosen steps on every rank.

    Parameters
    ----------
    windows : sequence of Windows
        Steps found, one entry per rank.
    wanted : sequence of str or None
        Step names or the numbers in them; None keeps those that all ranks recorded.

    Returns
    -------
    list of Windows
        The same steps on every rank, consecutive.

    Raises
    ------
    TraceError
        If the ranks have no step in common.
    UsageError
        If a wanted step was not recorded, or the wanted steps are not consecutive.
    """
    unmarked = [i for i, w in enumerate(windows) if not w.marked]
    if len(unmarked) == len(windows):
        if wanted:
            raise UsageError("no step annotations were recorded, so no step can be chosen")
        return list(windows)
    if unmarked:
        raise TraceError("has no step annotations, though other ranks have", rank=unmarked[0])
    if (
        len(windows) > 1
        and len({w.names for w in windows}) > 1
        and not all(re.search(r"\d", name) for w in windows for name in w.names)
    ):
        raise TraceError("the ranks recorded different steps, and their names have no numbers")
    shared = [name for name in windows[0].names if all(name in w.names for w in windows)]
    if not shared:
        listing = "; ".join(f"rank {i}: {', '.join(w.names)}" for i, w in enumerate(windows))
        raise TraceError(f"the ranks have no recorded step in common ({listing})")
    for rank, window in enumerate(windows):
        # A step that another rank did not record must not be swallowed by its neighbour.
        places = [window.names.index(name) for name in shared]
        for before, after in pairwise(places):
            if after != before + 1:
                lost = window.names[before + 1]
                lacking = next(i for i, w in enumerate(windows) if lost not in w.names)
                raise TraceError(f"did not record {lost}, which rank {rank} did", rank=lacking)
    if wanted:
        chosen = []
        for step in wanted:
            match = [n for n in shared if n == step or re.search(rf"#{re.escape(step)}$", n)]
            if not match:
                raise UsageError(f"step {step!r} was not recorded; there are {', '.join(shared)}")
            chosen += match
        positions = sorted(shared.index(name) for name in set(chosen))
        if positions != list(range(positions[0], positions[-1] + 1)):
            raise UsageError("the chosen steps must be consecutive: they run as one program")
        shared = [shared[p] for p in positions]
    kept = []
    for window in windows:
        index = [window.names.index(name) for name in shared]
        kept.append(
            Windows(
                tuple(shared),
                tuple(window.begin_ns[i] for i in index),
                tuple(window.end_ns[i] for i in index),
                window.thread,
                marked=True,
            )
        )
    return kept
