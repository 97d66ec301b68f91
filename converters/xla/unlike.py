"""Operations that some devices recorded in a run of a program and others did not.

All devices execute the same program, so an operation that is missing on one of them is most
likely lost: a trace that was cut or damaged, or a device that the profiler could not keep up with.
In its place the graph has a gap, which no other network shortens; so it has to be said.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .leaves import Leaf
    from .runs import Run


def missing_operations(
    ranks: Sequence[int], leaves: Sequence[Iterable[Leaf]], runs: Sequence[Sequence[Run]]
) -> list[str]:
    """Say which devices lack operations that another recorded in the same run.

    Parameters
    ----------
    ranks : sequence of int
        Number of each device.
    leaves : sequence of iterable of Leaf
        What each executed.
    runs : sequence of sequence of Run
        The runs of each.

    Returns
    -------
    list of str
        A warning for each device that lacks any.
    """
    counts: list[Counter[tuple[str, int, str]]] = []
    most: Counter[tuple[str, int, str]] = Counter()
    for mine, own in zip(leaves, runs, strict=True):
        counted = Counter((leaf.run, leaf.name) for leaf in mine)
        count = Counter(
            {
                (own[run].module, own[run].index, name): times
                for (run, name), times in counted.items()
                if own[run].kept
            }
        )
        counts.append(count)
        most |= count
    warnings = []
    for rank, count, own in zip(ranks, counts, runs, strict=True):
        here = {(run.module, run.index) for run in own if run.kept}
        lost = {key: times for key, times in (most - count).items() if key[:2] in here}
        if lost:
            module, _, name = min(lost, key=lambda key: (key[1], key[2]))
            warnings.append(
                f"rank {rank}: {sum(lost.values())} operations are missing that other devices "
                f"recorded in the same runs ({name} of {module} for one); gaps stand for them"
            )
    return warnings
