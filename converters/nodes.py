"""Nodes of one rank while its graph is being made, before times become gaps.

Builders append nodes with measured start and end and name what each waits for. What the
measurement then leaves unexplained becomes the gap of the node, when `assemble` lays the ranks
side by side. An edge that the measurement contradicts never makes a negative gap: it becomes
start-plus-lag where the two overlap, or is dropped, and is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ..graph.columns import EdgeKind, Flavour, Kind, LaneKind

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class Names:
    """Table of node names shared by all ranks."""

    table: dict[str, int] = field(default_factory=dict)

    def index(self, name: str) -> int:
        """Index of a name, added if new."""
        return self.table.setdefault(name, len(self.table))


@dataclass
class Lane:
    """A lane of one rank."""

    kind: LaneKind
    number: int
    servers: int = 1


@dataclass
class RankNodes:
    """Nodes of one rank, in the order they were added.

    Attributes
    ----------
    names : Names
        Shared table of names.
    start, end : list of int
        Measured times on the rank's own clock.
    kind, flavour, lane, name, step, op : list of int
        As in `ExecutionGraph`; `op` is the index of the communication operation or -1.
    deps : list of list of tuple
        Per node: (node, EdgeKind, lag in ns).
    lanes : list of Lane
        Lanes of the rank.
    markers : list of int
        Node that ends with the annotation of each step.
    counts : Counter
        Edges by kind and fate, for the coverage report.
    recorded_end : list of int
        Ends in the trace, where a dependency model moved nodes; else empty.
    """

    names: Names
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    flavour: list[int] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    op: list[int] = field(default_factory=list)
    deps: list[list[tuple[int, int, int]]] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    markers: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    recorded_end: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.start)

    def add_lane(self, kind: LaneKind, number: int, servers: int = 1) -> int:
        """Add a lane and return its index."""
        self.lanes.append(Lane(kind, number, servers))
        return len(self.lanes) - 1

    def add(
        self,
        start: int,
        end: int,
        flavour: Flavour,
        lane: int,
        name: str,
        step: int,
        *,
        kind: Kind = Kind.COMP,
        op: int = -1,
    ) -> int:
        """Add a node and return its index."""
        self.start.append(start)
        self.end.append(end)
        self.kind.append(int(kind))
        self.flavour.append(int(flavour))
        self.lane.append(lane)
        self.name.append(self.names.index(name))
        self.step.append(step)
        self.op.append(op)
        self.deps.append([])
        return len(self.start) - 1

    def after(self, node: int, on: int, what: str, lag_ns: int = 0) -> bool:
        """Make a node wait for the end of another, as far as the measurement allows.

        Parameters
        ----------
        node, on : int
            The node that waits, and what for.
        what : str
            Kind of edge, for the report.
        lag_ns : int
            Time between the end and the start that always passes.

        Returns
        -------
        bool
            False if the measurement contradicts the edge, which is then dropped and counted.
        """
        if self.end[on] + lag_ns <= self.start[node]:
            self.deps[node].append((on, int(EdgeKind.END), lag_ns))
        elif self.end[on] <= self.start[node]:
            self.deps[node].append((on, int(EdgeKind.END), 0))
        else:
            self.counts[f"{what}: contradicted by the measured times"] += 1
            return False
        self.counts[what] += 1
        return True

    def overlapping(self, node: int, on: int, what: str) -> None:
        """Make a node start a fixed time after the start of another that it overlaps."""
        self.deps[node].append((on, int(EdgeKind.START), self.start[node] - self.start[on]))
        self.counts[what] += 1

    def order(self) -> NDArray[np.int64]:
        """Topological order: by measured start, then as added.

        Raises
        ------
        ValueError
            If the dependencies are cyclic (a mistake of a builder).
        """
        count = len(self)
        waiting = [len(d) for d in self.deps]
        children: list[list[int]] = [[] for _ in range(count)]
        for node, deps in enumerate(self.deps):
            for on, _, _ in deps:
                children[on].append(node)
        ready = [(self.start[n], n) for n in range(count) if not waiting[n]]
        heapify(ready)
        found = np.empty(count, dtype=np.int64)
        done = 0
        while ready:
            _, node = heappop(ready)
            found[done] = node
            done += 1
            for child in children[node]:
                waiting[child] -= 1
                if not waiting[child]:
                    heappush(ready, (self.start[child], child))
        if done != count:
            raise ValueError("cyclic dependencies")
        return found
