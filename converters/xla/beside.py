"""What else a profile says about when things ended: other lines, sparse cores, barriers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from .hlo_text import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.columns import Collective
    from .chip import ChipWork, Flight
    from .job import Executed, JobDevice
    from .leaves import Leaf


def without_flying(leaves: list[Leaf], work: ChipWork) -> list[Leaf]:
    """Operations of a sparse core, without those that perform what the core started.

    Where the two are the same collective, the sparse core's event is when it really ran.
    """
    rest = []
    flying: dict[tuple[int, Collective], list[Flight]] = defaultdict(list)
    for flight in work.flights.values():
        if flight.leaf.meaning.spec is not None:
            flying[flight.leaf.run, flight.leaf.meaning.spec.coll].append(flight)
    for leaf in leaves:
        spec = leaf.meaning.spec
        open_ = flying[leaf.run, spec.coll] if spec is not None else []
        while open_ and open_[0].end_ns < leaf.start_ns:
            open_.pop(0)  # both are in the order of time
        same = next(
            (
                f
                for f in open_
                if spec is not None
                and f.leaf.meaning.spec is not None
                and f.leaf.meaning.spec.size_bytes in (spec.size_bytes, -1)
                and f.leaf.start_ns <= leaf.start_ns
                and leaf.end_ns <= f.end_ns
            ),
            None,
        )
        if same is None:
            rest.append(leaf)
            continue
        open_.remove(same)
        same.end_ns, same.seen = leaf.end_ns, True
    return rest


def see_ends(job: JobDevice, work: ChipWork) -> None:
    """Take the end of asynchronous operations from their own line, where it says more."""
    line = job.device.line("Async XLA Ops")
    if line is None or not len(line):
        return
    start, end = job.clock.place(line)
    ends: dict[tuple[str, int], int] = {}
    for op, begin, stop in zip(line.op.tolist(), start.tolist(), end.tolist(), strict=True):
        text = job.device.ops[op].text
        name = name_of(text)
        ends[name, (begin + 500) // 1000] = (stop + 500) // 1000
    for flight in work.flights.values():
        stop = ends.get((flight.leaf.name, flight.leaf.start_ns), flight.end_ns)
        if not flight.seen and flight.leaf.end_ns <= stop < flight.end_ns - 1:
            flight.end_ns, flight.seen = stop, True


def add_barriers(ranks: Sequence[Executed]) -> None:
    """Find the waits for other chips with which some runs begin.

    Only where all chips have them alike: then they end together within microseconds (vLLM on
    v6e: 1.1 us), whichever chip came first.
    """
    per_rank: list[dict[tuple[str, int], tuple[int, int, int]]] = []
    for rank in ranks:
        mine: dict[tuple[str, int], tuple[int, int, int]] = {}
        per_rank.append(mine)
        line = rank.job.device.line("XLA TraceMe")
        if line is None:
            continue
        ops = rank.job.device.ops
        line = line.take(np.array([ops[op].name == "barrier-cores" for op in line.op], np.bool_))
        start, end = rank.job.clock.place(line)
        begins = [run.seen_ps[0] for run in rank.job.runs]
        which = np.searchsorted(begins, line.start_ps, side="right") - 1
        for number, seen, begin, stop in zip(
            which.tolist(), line.start_ps.tolist(), start.tolist(), end.tolist(), strict=True
        ):
            run = rank.job.runs[max(number, 0)]
            if run.kept and run.seen_ps[0] <= seen <= run.seen_ps[1]:
                mine.setdefault(
                    (run.module, run.index), ((begin + 500) // 1000, (stop + 500) // 1000, number)
                )
    shared = set.intersection(*(set(mine) for mine in per_rank))
    for rank, mine in zip(ranks, per_rank, strict=True):
        rank.work.barriers = [mine[key] for key in sorted(shared)]
