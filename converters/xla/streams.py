"""Devices that are not TPUs: the streams of a GPU, the threads of a CPU device.

A GPU's streams run in order, each for itself. A CPU device executes its program on the threads of
a pool, nearly in order; what runs at the same time is on lanes of its own. Neither records what
waits for what between lanes, so a wait is inferred where an operation starts after a pause: for
what ended last before it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ...base.errors import TraceError
from ..kernels import is_communication_kernel, is_copy_kernel
from .collectives import Meaning, Role
from .events import Platform
from .hlo import HloError
from .leaves import Leaf, Leaves, find_leaves

if TYPE_CHECKING:
    from .job import JobDevice


def device_leaves(job: JobDevice) -> Leaves:
    """Find the operations that a GPU or CPU device executed, by start.

    Parameters
    ----------
    job : JobDevice
        The device.

    Returns
    -------
    Leaves
        Of all its lines; `occurrence` counts by start over all of them.

    Raises
    ------
    TraceError
        See `Meanings.of`.
    """
    total = Leaves()
    for line in job.device.lines:
        found = find_leaves(job.device, line, job.clock, job.runs, job.meanings)
        for leaf in found.leaves:
            leaf.lane = line.number if job.device.platform is Platform.GPU else 0
        total.leaves += found.leaves
        total.containers += found.containers
        total.outside += found.outside
        total.unnamed += found.unnamed
        total.hidden += found.hidden
    total.leaves.sort(key=lambda leaf: (leaf.start_ns, leaf.end_ns))
    if job.device.platform is Platform.GPU:
        try:
            total.leaves = _kernels(total.leaves)
        except HloError as error:
            raise TraceError(str(error), file=job.profile.path, rank=job.rank) from error
    seen: Counter[tuple[int, str]] = Counter()
    for leaf in total.leaves:
        leaf.occurrence = seen[leaf.run, leaf.name]
        seen[leaf.run, leaf.name] += 1
    return total


def _kernels(leaves: list[Leaf]) -> list[Leaf]:
    """Let one kernel stand for each collective, and the others be what they are."""
    plain = Meaning(Role.COMPUTE)
    last: dict[tuple[int, str], Leaf] = {}
    for leaf in leaves:
        copy = is_copy_kernel(leaf.kernel) or leaf.kernel.lower().startswith("memcpy")
        if leaf.meaning.role in (Role.COMM, Role.COMM_START):
            known = is_communication_kernel(leaf.kernel)
            if known or not copy:
                before = last.get((leaf.run, leaf.name))
                if before is not None and not known and is_communication_kernel(before.kernel):
                    leaf.meaning = plain
                else:
                    leaf.meaning = Meaning(Role.COMM, leaf.meaning.spec)
                    last[leaf.run, leaf.name] = leaf
                continue
        if is_communication_kernel(leaf.kernel):
            raise HloError(
                f"kernel {leaf.kernel[:80]} communicates, but no instruction of a compiled "
                "program says with whom"
            )
        leaf.meaning = Meaning(Role.COPY) if copy else plain
    return leaves


def lanes_of(leaves: list[Leaf]) -> list[int]:
    """Give each operation a lane on which it is alone: its stream, or one beside that.

    Returns
    -------
    list of int
        Number of the lane, for operations by start.
    """
    free: dict[int, list[int]] = defaultdict(list)
    lanes = []
    for leaf in leaves:
        ends = free[leaf.lane]
        beside = next((i for i, end in enumerate(ends) if end <= leaf.start_ns), len(ends))
        if beside == len(ends):
            ends.append(0)
        ends[beside] = leaf.end_ns
        lanes.append(leaf.lane + beside * BESIDE)
    return lanes


#: Distance between the numbers of a stream's lane and of the lanes beside it.
BESIDE = 1_000_000


class LastEnded:
    """The operation that ended last before a time, while time goes on."""

    def __init__(self) -> None:
        self._running: list[tuple[int, int]] = []
        self._latest = (-(1 << 62), -1)

    def add(self, node: int, end_ns: int) -> None:
        """Note an operation that has started."""
        heappush(self._running, (end_ns, node))

    def before(self, start_ns: int) -> int:
        """Node that ended last, no later than a time; -1 if none has."""
        while self._running and self._running[0][0] <= start_ns:
            self._latest = max(self._latest, heappop(self._running))
        return self._latest[1]
