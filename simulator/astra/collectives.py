"""What every collective of a workload does: chunks, phases, rings, messages, reductions.

Collectives of the same communicator, type, size and mask share a plan. A plan cuts the buffer into
chunks; each chunk runs through the same phases, each on the rings of one entry of the logical
shape: the ranks that differ in one coordinate, the whole world, or the members of a communicator.
The engine (`parity_loop`) plays plans; when, is its business. Here is also what ASTRA-sim cannot
do with a collective (the rules in section 14 of the specification of the backends [1]_), each
found before anything runs.

References
----------
.. [1] ASTRA-sim 518bd51, analytical network backend 599a047.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...base.errors import GraphError, WhatIfError
from .experiment import Backend
from .names import IMPLEMENTATIONS, Algorithm, CommType, NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .experiment import Experiment
    from .names import Implementation
    from .workload import Workload

    Int = NDArray[np.int64]

#: A communicator smaller than the world waits this long at its ends, whatever the system says.
GROUP_ENDPOINT_DELAY_NS = 10

# ASTRA-sim's own mask of dimensions, where a collective has none, has this many entries.
_DEFAULT_MASK = 4

#: One phase of a plan (see `collectives` for what the fields mean).
PHASE = np.dtype(
    [
        ("algorithm", np.int64),
        ("comm_type", np.int64),  # of the phase, which of an all-reduce can be another
        ("dim", np.int64),  # whose queues it uses
        ("entry", np.int64),  # place in the logical shape
        ("n", np.int64),  # ranks of a ring
        ("stride", np.int64),  # between neighbours in the world; 0 where members are listed
        ("place_stride", np.int64),  # between neighbours among the members of the plan
        ("backwards", np.int64),  # all-gather of localBWAware
        ("data", np.int64),  # bytes that enter
        ("bytes", np.int64),  # of a message; of halving-doubling see steps
        ("sends", np.int64),  # messages that a rank sends
        ("window", np.int64),  # tokens at the start
        ("period", np.int64),  # of charges, direct
        ("half", np.int64),  # slots of one half, halving-doubling
        ("steps", np.int64),  # first row of the steps
        ("charge", np.int64),  # time of one reduction
        ("endpoint", np.int64),
    ],
    align=True,
)

#: What all collectives of one communicator, type, size and mask do.
PLAN = np.dtype(
    [
        ("comm_type", np.int64),
        ("group", np.int64),  # number that tags come from; 0 where the world counts
        ("count", np.int64),  # chunks
        ("phase", np.int64),  # first phase
        ("phases", np.int64),
        ("small", np.int64),  # 1 for a communicator smaller than the world
        ("optimized", np.int64),  # 1 for an all-reduce under localBWAware
        ("by_events", np.int64),  # 1 where recurrences cannot stand for messages
        ("member", np.int64),  # first row of the members
        ("members", np.int64),  # ranks that take part together
        ("coordinates", np.int64),  # bits of the dimensions in which they differ
    ],
    align=True,
)

#: One message slot of halving-doubling.
STEP = np.dtype([("distance", np.int64), ("bytes", np.int64), ("charge", np.int64)], align=True)


@dataclass(frozen=True, eq=False)
class Collectives:
    """All plans of a workload, for the engine.

    Attributes
    ----------
    plans : PLAN, shape (P,)
    phases : PHASE
    steps : STEP
        A charge of -1 is none, which differs from one of 0 ns in the order of events.
    members : int64
        Offsets of the members of plans from the rank whose coordinates are 0 where they differ;
        of small communicators the ranks, in the order of the ring.
    plan_of : int64, shape (N,)
        Plan of every node, or -1.
    place : int64, shape (N,)
        Place of the node's rank in a small communicator.
    first_node : int64, shape (P,)
        A node of each plan.
    warnings : list of str
    """

    plans: NDArray[np.void]
    phases: NDArray[np.void]
    steps: NDArray[np.void]
    members: Int
    plan_of: Int
    place: Int
    first_node: Int
    warnings: list[str]


class _Entry(NamedTuple):
    """An entry of the logical shape: rings of n ranks that one algorithm serves."""

    place: int
    dim: int
    n: int
    stride: int
    algorithm: Algorithm
    window: int | None
    whole_world: bool


class _Wrong(Exception):  # noqa: N818  (never leaves this module)
    """What ASTRA-sim cannot do with a collective."""


def plan_collectives(
    workload: Workload, experiment: Experiment, used: NDArray[np.bool_]
) -> Collectives:
    """Plan the collectives of a workload.

    Parameters
    ----------
    workload : Workload
    experiment : Experiment
    used : bool, shape (N,)
        Nodes that ever become ready.

    Returns
    -------
    Collectives

    Raises
    ------
    GraphError
        If ASTRA-sim aborts on a collective, or never ends it; with rank, node and rule.
    """
    moves = (
        used
        & (workload.type == NodeType.COMM_COLL_NODE)
        & (workload.comm_type != CommType.BROADCAST)
    )
    nodes = np.flatnonzero(moves)
    planner = _Planner(experiment)
    plan_of = np.full(len(used), -1)
    place = np.zeros(len(used), np.int64)
    first: list[int] = []
    if len(nodes):
        which, representative = _distinct(workload, nodes)
        for node in nodes[representative].tolist():
            try:
                planner.add(
                    int(workload.group[node]),
                    CommType(workload.comm_type[node]),
                    int(workload.size[node]),
                    None if workload.mask[node] < 0 else workload.masks[workload.mask[node]],
                )
            except _Wrong as wrong:
                raise _at(workload, node, str(wrong)) from None
            first.append(node)
        plan_of[nodes] = which
        place[nodes] = _places(workload, experiment, nodes)
    return Collectives(
        plans=_records(planner.plans, PLAN),
        phases=_records(planner.phases, PHASE),
        steps=_records(planner.steps, STEP),
        members=np.array(planner.members, np.int64),
        plan_of=plan_of,
        place=place,
        first_node=np.array(first, np.int64),
        warnings=list(planner.warnings),
    )


def _at(workload: Workload, node: int, message: str) -> WhatIfError:
    return GraphError(
        message,
        file=workload.source,
        rank=workload.rank_of(node),
        place=workload.describe(node),
    )


def _records(rows: list[tuple[int, ...]], dtype: np.dtype[np.void]) -> NDArray[np.void]:
    return np.array(rows, dtype=dtype)


def _distinct(workload: Workload, nodes: Int) -> tuple[Int, Int]:
    """Number collectives by what they do; the numbers, and the first node of each."""
    key = np.zeros(len(nodes), np.int64)
    for column in (workload.group, workload.comm_type, workload.size, workload.mask):
        values, inverse = np.unique(column[nodes], return_inverse=True)
        # Numbered anew each time, so that the product never overflows.
        _, key = np.unique(key * len(values) + inverse.reshape(-1), return_inverse=True)
        key = key.reshape(-1).astype(np.int64)
    _, first = np.unique(key, return_index=True)
    return key, first


def _places(workload: Workload, experiment: Experiment, nodes: Int) -> Int:
    """Place of the rank of each node in its communicator."""
    rank = np.searchsorted(workload.rank_ptr, nodes, side="right") - 1
    group = workload.group[nodes]
    place = np.zeros(len(nodes), np.int64)
    listed = np.flatnonzero(group != 0)
    if not len(listed):
        return place
    used = np.unique(group[listed]).tolist()
    members = [experiment.groups[number] for number in used]
    size = np.array([len(ranks) for ranks in members])
    ranks = np.concatenate([np.array(ranks, np.int64) for ranks in members])
    inside = np.concatenate([np.arange(count) for count in size])
    world = workload.ranks
    key = np.repeat(np.arange(len(used)), size) * world + ranks
    order = np.argsort(key)
    wanted = np.searchsorted(used, group[listed]) * world + rank[listed]
    at = np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)
    missing = np.flatnonzero(key[order][at] != wanted)
    if len(missing):
        node = int(nodes[listed[missing[0]]])
        raise _at(
            workload,
            node,
            f"issues a collective of communicator {workload.group[node]}, of which it is no "
            "member: ASTRA-sim aborts",
        )
    place[listed] = inside[order[at]]
    return place


class _Planner:
    """Makes plans; all rows of all plans."""

    def __init__(self, experiment: Experiment) -> None:
        self.plans: list[tuple[int, ...]] = []
        self.phases: list[tuple[int, ...]] = []
        self.steps: list[tuple[int, ...]] = []
        self.members: list[int] = []
        self.warnings: dict[str, None] = {}
        self._experiment = experiment
        self._counts = experiment.network.npus_count
        self._world = experiment.network.ranks
        self._strides = [math.prod(self._counts[:dim]) for dim in range(len(self._counts))]
        self._member_rows: dict[object, tuple[int, int]] = {}

    def add(
        self, group: int, comm_type: CommType, size: int, mask: tuple[bool, ...] | None
    ) -> None:
        """Plan a collective.

        Raises
        ------
        _Wrong
            If ASTRA-sim cannot run it.
        """
        system = self._experiment.system
        implementations = system.implementations(comm_type)
        if not implementations:
            raise _Wrong(
                f"ASTRA-sim has no algorithm for {comm_type.name}: system.json lacks "
                f"{IMPLEMENTATIONS[comm_type]}"
            )
        if comm_type == CommType.ALL_REDUCE and system.collective_optimization is None:
            raise _Wrong(
                "system.json lacks collective-optimization: ASTRA-sim reads memory that nobody "
                "wrote, ranks may disagree, and it never ends"
            )
        if system.active_chunks_per_dimension <= 0:
            raise _Wrong("active-chunks-per-dimension is 0: in ASTRA-sim no chunk ever starts")
        count, chunk = self._chunks(comm_type, size)
        small = self._is_small(group)
        if small:
            entries = [self._group_entry(group, implementations)]
        else:
            entries = self._masked(
                self._shape(comm_type, implementations), None if group else mask, group
            )
        optimized = (
            comm_type == CommType.ALL_REDUCE and system.collective_optimization == "localBWAware"
        )
        first = len(self.phases)
        member, members, coordinates, places = self._members(group, small, entries)
        event_reasons = self._experiment.queues_per_dim > 1 or self._experiment.rendezvous
        event_reasons |= self._experiment.backend is Backend.AWARE
        event_reasons |= optimized and len(entries) > 2 and count > 1
        for entry, kind, data, backwards in _phases(comm_type, entries, chunk, optimized):
            event_reasons |= self._phase(entry, kind, data, backwards, small, places[entry.place])
        self.plans.append(
            (
                comm_type,
                group,
                count,
                first,
                len(self.phases) - first,
                small,
                optimized,
                event_reasons,
                member,
                members,
                coordinates,
            )
        )

    def _is_small(self, group: int) -> bool:
        if group == 0:
            return False
        members = self._experiment.groups.get(group)
        if members is None:
            raise _Wrong(
                f"communicator {group} is not in the file of groups: ASTRA-sim exits with 1"
            )
        for rank in members:
            if not 0 <= rank < self._world:
                raise _Wrong(
                    f"communicator {group} has rank {rank}, which the network does not have: "
                    "ASTRA-sim aborts"
                )
        if len(members) == 1:
            raise _Wrong(f"communicator {group} has one member: in ASTRA-sim it never completes")
        return len(members) < self._world

    def _chunks(self, comm_type: CommType, size: int) -> tuple[int, int]:
        """Number and bytes of the chunks of a collective; every chunk has the same."""
        splits = self._experiment.system.preferred_dataset_splits
        if splits <= 0:
            raise _Wrong(f"preferred-dataset-splits is {splits}: ASTRA-sim divides by it (SIGFPE)")
        if size < 0:
            raise _Wrong(f"comm_size {size} is negative")
        chunk = size // splits
        if comm_type == CommType.ALL_GATHER:
            if size == 0:
                raise _Wrong("an ALL_GATHER of 0 bytes never completes in ASTRA-sim")
            if chunk == 0:
                raise _Wrong(
                    f"an ALL_GATHER of {size} bytes in {splits} splits: ASTRA-sim cuts it into "
                    "chunks of 0 bytes for ever"
                )
        elif chunk < self._world:
            chunk = self._world
            size = splits * self._world
        return -(-size // chunk), chunk

    def _group_entry(self, group: int, implementations: list[Implementation]) -> _Entry:
        """A communicator smaller than the world is one ring, whatever the network."""
        algorithm, window = Algorithm.RING, None
        if len(implementations) == 1:
            algorithm, window = implementations[0].algorithm, implementations[0].window
        if algorithm is Algorithm.TREE:
            raise _Wrong(
                f"doubleBinaryTree in communicator {group}, smaller than the world: "
                "ASTRA-sim crashes"
            )
        n = len(self._experiment.groups[group])
        return _Entry(0, 0, n, 0, algorithm, window, whole_world=False)

    def _shape(self, comm_type: CommType, implementations: list[Implementation]) -> list[_Entry]:
        """Logical shape of the world: an entry for each algorithm that is listed."""
        dims = len(self._counts)
        key = IMPLEMENTATIONS[comm_type]
        if len(implementations) > dims:
            raise _Wrong(
                f"{key} lists {len(implementations)} algorithms for {dims} dimensions: "
                "ASTRA-sim aborts"
            )
        entries = []
        for dim, (algorithm, window, whole_world) in enumerate(implementations):
            n = self._world if whole_world else self._counts[dim]
            stride = 1 if whole_world else self._strides[dim]
            entries.append(_Entry(dim, dim, n, stride, algorithm, window, whole_world))
            if whole_world:
                break
        last = implementations[-1]
        if len(implementations) < dims and not any(entry.whole_world for entry in entries):
            if last.algorithm is Algorithm.TREE:
                raise _Wrong(
                    f"{key} has fewer names than the network dimensions, the last of them "
                    "doubleBinaryTree: ASTRA-sim crashes on ranks that are not in the tree"
                )
            self.warnings[
                f"{key} lists {len(implementations)} algorithms for {dims} dimensions: as in "
                "ASTRA-sim, the others silently do not take part"
            ] = None
        return entries

    def _masked(
        self, entries: list[_Entry], mask: tuple[bool, ...] | None, group: int
    ) -> list[_Entry]:
        """Take the entries that a collective involves."""
        if group:  # of as many members as the world: no mask, and no default mask either
            return entries
        if mask is None and len(entries) > _DEFAULT_MASK:
            raise _Wrong(
                f"{len(entries)} dimensions and no involved_dim: ASTRA-sim reads past the end of "
                f"its mask of {_DEFAULT_MASK} and never ends"
            )
        if mask is not None and len(mask) < len(entries):
            raise _Wrong(
                f"involved_dim has {len(mask)} values for {len(entries)} dimensions: ASTRA-sim "
                "reads past its end and never ends"
            )
        used = [entry for entry in entries if mask is None or mask[entry.place]]
        if not used:
            raise _Wrong("involved_dim excludes every dimension: in ASTRA-sim it never completes")
        return used

    def _members(
        self, group: int, small: bool, entries: list[_Entry]
    ) -> tuple[int, int, int, dict[int, int]]:
        """Ranks that take part together: first row, number, coordinates, strides by entry."""
        if small:
            row, number = self._store(group, list(self._experiment.groups[group]))
            return row, number, 0, {0: 1}
        if any(entry.whole_world for entry in entries):
            dims = list(range(len(self._counts)))
        else:
            dims = [entry.dim for entry in entries]
        offsets = np.zeros(1, np.int64)
        places = {}
        for dim in dims:
            places[dim] = len(offsets)
            steps = np.arange(self._counts[dim]) * self._strides[dim]
            offsets = (steps[:, None] + offsets[None, :]).reshape(-1)
        places |= {entry.place: 1 for entry in entries if entry.whole_world}
        row, number = self._store(tuple(dims), offsets.tolist())
        return row, number, sum(1 << dim for dim in dims), places

    def _store(self, key: object, offsets: list[int]) -> tuple[int, int]:
        if key not in self._member_rows:
            self._member_rows[key] = len(self.members), len(offsets)
            self.members.extend(offsets)
        return self._member_rows[key]

    def _phase(
        self,
        entry: _Entry,
        kind: CommType,
        data: int,
        backwards: bool,
        small: bool,
        place_stride: int,
    ) -> bool:
        """Add a phase; whether only events can play it."""
        n, algorithm = entry.n, entry.algorithm
        window = sends = period = half = 0
        size = data if kind == CommType.ALL_GATHER else data // n
        first_step = len(self.steps)
        endpoint = GROUP_ENDPOINT_DELAY_NS if small else self._experiment.endpoint_delay_ns
        # Without a delay, things at time 0 happen before the clock runs, which only events show.
        by_events = endpoint == 0
        largest = size
        if algorithm is Algorithm.RING:
            window, sends = 1, _ring_sends(kind, n)
        elif algorithm is Algorithm.DIRECT:
            if entry.window is not None and entry.window <= 0:
                raise _Wrong(
                    f"direct{entry.window}: with such a window ASTRA-sim never sends anything"
                )
            window = n - 1 if entry.window is None else min(entry.window, n - 1)
            sends = 2 * (n - 1) if kind == CommType.ALL_REDUCE else n - 1
            period = n * window if small else 2 * window
            by_events |= window < n - 1
        elif algorithm is Algorithm.HALVING_DOUBLING:
            window = 1
            rows = self._halving(kind, n, data)
            half = int(math.log2(n))
            sends = len(rows)
            self.steps.extend(rows)
            size = min(row[1] for row in rows)
            largest = max(row[1] for row in rows)
            by_events |= n & (n - 1) != 0
        else:
            if n & (n - 1):
                raise _Wrong(f"doubleBinaryTree over {n} ranks, no power of two: ASTRA-sim crashes")
            size = largest = data
        if size <= 0:
            raise _Wrong(
                f"{algorithm.name.lower()} over {n} ranks with {data} bytes sends a message of 0 "
                "bytes: ASTRA-sim aborts"
            )
        if self._experiment.rendezvous and largest >= 1 << 31:
            raise _Wrong("messages of 2 GiB under the rendezvous protocol overflow in ASTRA-sim")
        self.phases.append(
            (
                algorithm,
                kind,
                entry.dim,
                entry.place,
                n,
                entry.stride,
                place_stride,
                backwards,
                data,
                size,
                sends,
                window,
                period,
                half,
                first_step,
                self._cost(size),
                endpoint,
            )
        )
        return by_events

    def _cost(self, size: int) -> int:
        """Time of a reduction: three passes over the memory, each cut to whole ns."""
        bandwidth = self._experiment.system.local_mem_bw
        if not bandwidth:
            self.warnings[
                "local-mem-bw is missing or 0: ASTRA-sim divides by it, which happens to make "
                "reductions free"
            ] = None
            return 0
        return 3 * int(size / (bandwidth * 1e9) * 1e9)

    def _halving(self, kind: CommType, n: int, data: int) -> list[tuple[int, int, int]]:
        """Distance, bytes and charge of every message slot."""
        if kind == CommType.ALL_TO_ALL:
            raise _Wrong("halvingDoubling has no all-to-all: ASTRA-sim exits with 1")
        half = int(math.log2(n))
        if n & (n - 1) and kind != CommType.ALL_GATHER:
            raise _Wrong(
                f"halvingDoubling over {n} ranks, no power of two: in ASTRA-sim it never completes"
            )
        slots: list[tuple[int, int]] = []
        if kind == CommType.ALL_GATHER:
            distance, size = n // 2, data
            for _ in range(half):
                slots.append((distance, size))
                distance, size = distance // 2, size * 2
        else:
            distance, size = 1, data // 2
            for _ in range(half):
                slots.append((distance, size))
                distance, size = distance * 2, size // 2
            if kind == CommType.ALL_REDUCE:
                distance, size = n // 2, size * 2
                for _ in range(half):
                    slots.append((distance, size))
                    distance, size = distance // 2, size * 2
        return [
            (
                distance,
                size,
                self._cost(size)
                if slot % half
                and (
                    kind == CommType.REDUCE_SCATTER
                    or (kind == CommType.ALL_REDUCE and slot // half % 2 == 0)
                )
                else -1,
            )
            for slot, (distance, size) in enumerate(slots)
        ]


def _ring_sends(kind: CommType, n: int) -> int:
    if kind == CommType.ALL_REDUCE:
        return 2 * (n - 1)
    return n * (n - 1) // 2 if kind == CommType.ALL_TO_ALL else n - 1


def _phases(
    comm_type: CommType, entries: list[_Entry], chunk: int, optimized: bool
) -> list[tuple[_Entry, CommType, int, bool]]:
    """Entry, type, bytes and direction of each phase of a chunk."""
    phases = []
    data = chunk
    if optimized:
        for entry in entries[:-1]:
            phases.append((entry, CommType.REDUCE_SCATTER, data, False))
            data = _after(entry, CommType.REDUCE_SCATTER, data)
        phases.append((entries[-1], CommType.ALL_REDUCE, data, False))
        for entry in reversed(entries[:-1]):
            phases.append((entry, CommType.ALL_GATHER, data, True))
            data = _after(entry, CommType.ALL_GATHER, data)
        return phases
    for entry in reversed(entries) if comm_type == CommType.ALL_GATHER else entries:
        phases.append((entry, comm_type, data, False))
        data = _after(entry, comm_type, data)
    return phases


def _after(entry: _Entry, kind: CommType, data: int) -> int:
    """Bytes that leave a phase; a tree leaves them as they are, whatever the phase is called."""
    if entry.algorithm is Algorithm.TREE:
        return data
    if kind == CommType.REDUCE_SCATTER:
        return data // entry.n
    return data * entry.n if kind == CommType.ALL_GATHER else data
