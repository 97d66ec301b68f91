"""The nodes of a chip: its program in order, and what runs beside it.

A core executes one operation after the other. An operation that starts a transfer or a copy
takes no time; what it starts runs beside the core until the operation that ends it, which waits.
When a transfer that nobody had to wait for ended is not recorded: copies are given the time that
their size takes at the fastest rate seen, transfers that of the fastest instance seen (`join`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from ...base.errors import TraceError
from ...graph.columns import Collective, Flavour, Kind, LaneKind
from ..operations import CommOp, GroupKey
from .collectives import Role
from .hlo import HloError
from .streams import LastEnded, lanes_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..nodes import RankNodes
    from .collectives import CommSpec
    from .ids import DeviceGrid
    from .leaves import Leaf
    from .runs import Run

#: An operation that ends something and takes longer than this had to wait (on v6e and in vLLM's
#: traces those that need not take 1 to 7 ns).
WAITED_NS = 100
#: Neighbours on a core that overlap by no more than this were rounded apart.
ROUNDING_NS = 2
#: Numbers of the lanes for what runs beside the core.
TRANSFER_LANE, COPY_LANE, WORK_LANE, SPARSE_LANE = 100, 200, 300, 400

Place = tuple[str, int, str, int]


@dataclass(slots=True)
class Flight:
    """Something asynchronous between its start and its end.

    Attributes
    ----------
    leaf : Leaf
        The operation that started it.
    end_ns : int
        When it ended, or at the latest.
    seen : bool
        Whether its end was seen: something waited for it.
    """

    leaf: Leaf
    end_ns: int = -1
    seen: bool = False


@dataclass
class ChipWork:
    """What a chip executed, with starts and ends joined.

    Attributes
    ----------
    leaves : list of Leaf
        Operations of its core in order.
    flights : dict of int to Flight
        What each operation started, by its position in `leaves`.
    ends : dict of int to Flight
        What each operation ended.
    sparse : dict of int to list of Leaf
        Operations of each sparse core.
    barriers : list of (int, int, int)
        Start, end and run of each wait for the other chips before a run.
    unended, unstarted : int
        Starts without end, and the reverse.
    """

    leaves: list[Leaf]
    flights: dict[int, Flight] = field(default_factory=dict)
    ends: dict[int, Flight] = field(default_factory=dict)
    sparse: dict[int, list[Leaf]] = field(default_factory=dict)
    barriers: list[tuple[int, int, int]] = field(default_factory=list)
    unended: int = 0
    unstarted: int = 0


def join_flights(leaves: list[Leaf]) -> ChipWork:
    """Join what starts something with what ends it.

    Parameters
    ----------
    leaves : list of Leaf
        Operations of a core in order.

    Returns
    -------
    ChipWork
    """
    work = ChipWork(leaves)
    flying: dict[tuple[int, str], deque[Flight]] = defaultdict(deque)
    last_end: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        last_end[leaf.run] = max(leaf.end_ns, last_end.get(leaf.run, leaf.end_ns))
        role = leaf.meaning.role
        if role in (Role.COMM_START, Role.COPY_START, Role.WORK_START):
            flight = Flight(leaf)
            work.flights[i] = flight
            flying[leaf.run, leaf.name].append(flight)
        elif role in (Role.DONE, Role.UPDATE):
            waiting = flying.get((leaf.run, leaf.meaning.waits_for))
            if not waiting:
                work.unstarted += role is Role.DONE
            elif role is Role.UPDATE:
                flying[leaf.run, leaf.name].append(waiting.popleft())
            else:
                flight = waiting.popleft()
                work.ends[i] = flight
                flight.seen = leaf.end_ns - leaf.start_ns > WAITED_NS
                # What nobody waited for had ended when the core came here; a gap before the
                # operation that ends it is the core's own.
                came = min(leaf.start_ns, max(leaves[i - 1].end_ns, flight.leaf.end_ns))
                flight.end_ns = leaf.end_ns if flight.seen else came
                flight.end_ns = max(flight.end_ns, flight.leaf.end_ns)
    for queue in flying.values():
        for flight in queue:
            work.unended += 1
            flight.end_ns = max(last_end[flight.leaf.run], flight.leaf.end_ns)
    return work


def copy_rates(chips: Sequence[ChipWork]) -> dict[tuple[int, ...], float]:
    """Fastest rate of copies between two memories, bytes per ns, from those waited for."""
    rates: dict[tuple[int, ...], float] = {}
    for chip in chips:
        for flight in chip.flights.values():
            meaning = flight.leaf.meaning
            took = flight.end_ns - flight.leaf.end_ns
            if meaning.role is Role.COPY_START and flight.seen and meaning.copy_bytes > 0 < took:
                rate = meaning.copy_bytes / took
                rates[meaning.copy_kind] = max(rate, rates.get(meaning.copy_kind, 0.0))
    return rates


@dataclass
class Chip:
    """Communication of a chip and what was supposed about it, beside its nodes.

    Attributes
    ----------
    ops : list of CommOp
        Its communication in the order of issue.
    places : list of tuple
        Of each: program, run, instruction and occurrence, which name it on all chips.
    latest : dict of int to int
        Operations whose end was not seen, with the latest it can have been.
    alone : int
        Communication in groups of one.
    assumed : Counter
        What was assumed, by text.
    """

    ops: list[CommOp] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    latest: dict[int, int] = field(default_factory=dict)
    alone: int = 0
    assumed: Counter[str] = field(default_factory=Counter)


class ChipBuilder:
    """Adds the nodes of one chip.

    Parameters
    ----------
    nodes : RankNodes
        Extended.
    rank : int
        Global number of the device.
    runs : sequence of Run
        Its runs.
    steps : sequence of int
        Step of each run; -1 where it is not converted.
    grids : sequence of DeviceGrid
        Of each run, which device runs which part of its program.
    path : Path
        The file, for errors.
    assume_missing : bool
        Take all devices where an operation does not say which take part.
    """

    def __init__(
        self,
        nodes: RankNodes,
        rank: int,
        runs: Sequence[Run],
        steps: Sequence[int],
        grids: Sequence[DeviceGrid],
        path: Path,
        *,
        assume_missing: bool,
    ) -> None:
        self.chip = Chip()
        self._nodes = nodes
        self._rank = rank
        self._runs = runs
        self._steps = steps
        self._grids = grids
        self._path = path
        self._assume_missing = assume_missing
        self._lanes: dict[int, int] = {}
        self._free: dict[int, int] = {}

    def add(self, work: ChipWork, rates: dict[tuple[int, ...], float], hbm_gb_s: float) -> None:
        """Add what a chip executed.

        Raises
        ------
        TraceError
            If an operation does not say with whom it communicates.
        """
        core = self._lane(0)
        before: list[int] = []
        flying: dict[int, list[int]] = {}
        barriers = {run: (start, end) for start, end, run in work.barriers}
        for i, leaf in enumerate(work.leaves):
            step = self._steps[leaf.run]
            if step < 0:
                continue
            if leaf.run in barriers:
                before = self._barrier(barriers.pop(leaf.run), leaf, core, before)
            if i in work.ends:
                before = self._end(leaf, work.ends[i], core, before, flying)
            elif leaf.meaning.role is Role.COMM:
                before = self._transfer(leaf, leaf.start_ns, leaf.end_ns, core, before)
            else:
                flavour = Flavour.COMPUTE
                if leaf.meaning.role is Role.COPY:
                    flavour = Flavour.COPY
                elif leaf.meaning.role is Role.DONE:
                    flavour = Flavour.GAP  # a wait for something unknown
                before = [self._next(leaf.start_ns, leaf.end_ns, flavour, core, leaf, before)]
            if i in work.flights:
                flight = work.flights[i]
                flying[id(flight)] = self._start(flight, before, rates, hbm_gb_s)
        for number, leaves in work.sparse.items():
            self._sparse(number, leaves)

    def add_streams(self, leaves: list[Leaf]) -> None:
        """Add what a GPU or CPU device executed, by start.

        Raises
        ------
        TraceError
            If an operation does not say with whom it communicates.
        """
        nodes = self._nodes
        chosen = [leaf for leaf in leaves if self._steps[leaf.run] >= 0]
        last: dict[int, list[int]] = {}
        ended = LastEnded()
        for leaf, number in zip(chosen, lanes_of(chosen), strict=True):
            lane = self._lane(number)
            before = list(last.get(number, []))
            latest = ended.before(leaf.start_ns)
            mine = max((nodes.end[n] for n in before), default=-(1 << 62))
            if latest >= 0 and nodes.end[latest] > mine:
                before.append(latest)
                nodes.counts[
                    "waits between lanes: inferred from what ended last before the start"
                ] += 1
            if leaf.meaning.role in (Role.COMM, Role.COMM_START):
                added = self._transfer(leaf, leaf.start_ns, leaf.end_ns, lane, before)
            else:
                copies = leaf.meaning.role in (Role.COPY, Role.COPY_START)
                flavour = Flavour.COPY if copies else Flavour.COMPUTE
                added = [self._next(leaf.start_ns, leaf.end_ns, flavour, lane, leaf, before)]
            last[number] = added
            for node in added:
                ended.add(node, nodes.end[node])

    # The core ---------------------------------------------------------------------------

    def _next(
        self,
        start: int,
        end: int,
        flavour: Flavour,
        lane: int,
        leaf: Leaf,
        before: list[int],
        *,
        kind: Kind = Kind.COMP,
        op: int = -1,
    ) -> int:
        """Add a node that follows others in the order of the program."""
        nodes = self._nodes
        node = nodes.add(
            start,
            max(end, start),
            flavour,
            lane,
            shown_name(leaf.name),
            self._steps[leaf.run],
            kind=kind,
            op=op,
        )
        for on in before:
            late = nodes.end[on] - start
            if 0 < late <= ROUNDING_NS and nodes.start[on] <= start:
                nodes.end[on] = start
            if nodes.end[on] > start and nodes.start[on] <= start:
                nodes.overlapping(node, on, "program order: operations that overlap")
            else:
                nodes.after(node, on, "program order")
        return node

    def _barrier(
        self, span: tuple[int, int], leaf: Leaf, lane: int, before: list[int]
    ) -> list[int]:
        """Add the wait for the other chips with which a run begins."""
        grid = self._grids[leaf.run]
        members = tuple(sorted(d for row in grid.devices for d in row))
        run = self._runs[leaf.run]
        op = self._op(Collective.BARRIER, 0, members, -1, leaf, "barrier-cores event")
        self.chip.places[op] = (run.module, run.index, "barrier-cores", 0)
        end = min(span[1], leaf.start_ns)
        named = type(leaf)(span[0], end, "barrier-cores", leaf.meaning, leaf.run)
        node = self._next(
            min(span[0], end), end, Flavour.COMM, lane, named, before, kind=Kind.COMM_COLL, op=op
        )
        return [node]

    def _end(
        self,
        leaf: Leaf,
        flight: Flight,
        core: int,
        before: list[int],
        flying: dict[int, list[int]],
    ) -> list[int]:
        """Add the operation that ends something: a wait, then next to nothing."""
        started = flying.pop(id(flight), [])
        ends = [self._nodes.end[n] for n in started]
        start = min(max([leaf.start_ns, *ends]), leaf.end_ns)
        came = leaf.start_ns
        if ends and came > max(self._nodes.end[n] for n in before):
            # The gap is before the wait, if there is one: the core comes as late on any network.
            before = [self._next(came, came, Flavour.COMPUTE, core, leaf, before)]
        return [self._next(start, leaf.end_ns, Flavour.COMPUTE, core, leaf, [*before, *started])]

    def _start(
        self,
        flight: Flight,
        before: list[int],
        rates: dict[tuple[int, ...], float],
        hbm_gb_s: float,
    ) -> list[int]:
        """Add what an operation started, beside the core."""
        leaf = flight.leaf
        start, end = self._nodes.end[before[0]], max(flight.end_ns, self._nodes.end[before[0]])
        if leaf.meaning.role is Role.COMM_START:
            lane = self._beside(TRANSFER_LANE, start, end)
            first = len(self.chip.ops)
            added = self._transfer(leaf, start, end, lane, before, quiet=True)
            if not flight.seen:
                for op in range(first, len(self.chip.ops)):
                    self.chip.latest[op] = end
            return added
        if leaf.meaning.role is Role.COPY_START:
            end = self._copy_end(flight, start, end, rates, hbm_gb_s)
            lane, flavour = self._beside(COPY_LANE, start, end), Flavour.COPY
        else:
            lane, flavour = self._beside(WORK_LANE, start, end), Flavour.COMPUTE
        return [self._next(start, end, flavour, lane, leaf, before)]

    def _copy_end(
        self,
        flight: Flight,
        start: int,
        end: int,
        rates: dict[tuple[int, ...], float],
        hbm_gb_s: float,
    ) -> int:
        """When a copy that nobody waited for ended, as far as that can be told."""
        meaning = flight.leaf.meaning
        if flight.seen:
            return end
        rate, text = rates.get(meaning.copy_kind, 0.0), "the fastest rate of those waited for"
        if not rate and meaning.copy_kind and _HOST_SPACE not in meaning.copy_kind:
            # Between two memories of the device: as fast as between two others, or its memory.
            rate = max((r for kind, r in rates.items() if _HOST_SPACE not in kind), default=0.0)
            text = "the fastest rate between other memories"
            if not rate:
                rate, text = hbm_gb_s, "the bandwidth of the device's memory"
        if not rate or meaning.copy_bytes < 0:
            self.chip.assumed["copies that nobody waited for: until they were needed"] += 1
            return end
        self.chip.assumed[f"copies that nobody waited for: at {text}"] += 1
        return min(end, start + round(meaning.copy_bytes / rate))

    # Communication ----------------------------------------------------------------------

    def _transfer(
        self,
        leaf: Leaf,
        start: int,
        end: int,
        lane: int,
        before: list[int],
        *,
        quiet: bool = False,
    ) -> list[int]:
        """Add the nodes of a collective, or of the sends and receives of a permutation."""
        spec = leaf.meaning.spec
        if spec is None:
            raise AssertionError("communication without a description")
        grid = self._grids[leaf.run]
        try:
            if spec.coll is Collective.SEND_RECV:
                return self._permute(leaf, spec, grid, start, end, lane, before, quiet=quiet)
            members = grid.members(spec, self._rank)
        except HloError as error:
            raise self._unclear(leaf, str(error)) from error
        if spec.groups is None:
            if not self._assume_missing:
                raise self._unclear(
                    leaf, "neither its HLO text nor the compiled program is in the trace"
                )
            members = tuple(d for row in grid.devices for d in row)
            self.chip.assumed["collectives that do not say who takes part: all devices"] += 1
        if len(members) < 2:
            self.chip.alone += 1
            return [self._next(start, end, Flavour.COMPUTE, lane, leaf, before)]
        peer = members[0] if spec.coll is Collective.BROADCAST else -1
        op = self._op(
            spec.coll, spec.size_bytes, members, peer, leaf, spec.evidence, dtype=spec.dtype
        )
        return [
            self._next(start, end, Flavour.COMM, lane, leaf, before, kind=Kind.COMM_COLL, op=op)
        ]

    def _permute(
        self,
        leaf: Leaf,
        spec: CommSpec,
        grid: DeviceGrid,
        start: int,
        end: int,
        lane: int,
        before: list[int],
        *,
        quiet: bool,
    ) -> list[int]:
        targets, sources = grid.pairs(spec, self._rank)
        added = []
        everyone = tuple(sorted(d for row in grid.devices for d in row))
        for kind, peers, wanted in (
            (Kind.SEND, targets, spec.sends),
            (Kind.RECV, sources, spec.receives),
        ):
            for peer in peers if wanted else ():
                op = self._op(
                    Collective.SEND_RECV,
                    spec.size_bytes,
                    everyone,
                    peer,
                    leaf,
                    spec.evidence,
                    dtype=spec.dtype,
                )
                self.chip.ops[op].sends = kind is Kind.SEND
                added.append(
                    self._next(start, end, Flavour.COMM, lane, leaf, before, kind=kind, op=op)
                )
        if added:
            return added
        self.chip.alone += 1
        if quiet:
            end = start
        return [self._next(start, end, Flavour.COMPUTE, lane, leaf, before)]

    def _op(
        self,
        coll: Collective,
        size: int,
        members: tuple[int, ...],
        peer: int,
        leaf: Leaf,
        evidence: str,
        *,
        dtype: str = "",
    ) -> int:
        run = self._runs[leaf.run]
        self.chip.ops.append(
            CommOp(
                event=len(self.chip.ops),
                coll=coll,
                size_bytes=size,
                group=GroupKey(group_name(members), members, len(members)),
                seq=-1,
                peer=peer,
                sends=False,
                order=leaf.start_ns,
                evidence=evidence,
                dtype=dtype,
            )
        )
        self.chip.places.append((run.module, run.index, leaf.name, leaf.occurrence))
        return len(self.chip.ops) - 1

    def _unclear(self, leaf: Leaf, why: str) -> TraceError:
        return TraceError(
            f"with whom {leaf.name} communicates cannot be told: {why}",
            file=self._path,
            rank=self._rank,
            place=f"program {self._runs[leaf.run].module}",
        )

    # Lanes ------------------------------------------------------------------------------

    def _lane(self, number: int) -> int:
        if number not in self._lanes:
            self._lanes[number] = self._nodes.add_lane(LaneKind.STREAM, number)
        return self._lanes[number]

    def _beside(self, first: int, start: int, end: int) -> int:
        """Find a lane that is free from a time on."""
        number = first
        while self._free.get(number, start) > start:
            number += 1
        self._free[number] = end
        return self._lane(number)

    def _sparse(self, number: int, leaves: list[Leaf]) -> None:
        """Add what a sparse core executed: in its own order, after what the core had done."""
        nodes = self._nodes
        core = [n for n in range(len(nodes)) if nodes.lane[n] == self._lane(0)]
        lane = self._lane(SPARSE_LANE + number)
        before: list[int] = []
        at = 0
        for leaf in leaves:
            if self._steps[leaf.run] < 0:
                continue
            while at < len(core) and nodes.end[core[at]] <= leaf.start_ns:
                at += 1
            started_by = [core[at - 1]] if at else []
            if leaf.meaning.role is Role.COMM:
                before = self._transfer(
                    leaf, leaf.start_ns, leaf.end_ns, lane, [*before, *started_by]
                )
            else:
                before = [
                    self._next(
                        leaf.start_ns, leaf.end_ns, Flavour.COMPUTE, lane, leaf,
                        [*before, *started_by],
                    )
                ]  # fmt: skip
            if started_by:
                nodes.counts["starts of sparse cores: inferred from the core's last operation"] += 1


#: Memory space of the host in TPU layouts (seen on v6e: host offload copies between 5 and 0).
_HOST_SPACE = 5


@cache
def shown_name(instruction: str) -> str:
    """Name of a node: that of its instruction without the number that the compiler appends.

    The same layer, compiled many times over, is then one thing in tables, as a kernel is.

    Examples
    --------
    >>> shown_name("add_rsqrt_fusion.128")
    'add_rsqrt_fusion'
    """
    return _NUMBER.sub("", instruction) or instruction


_NUMBER = re.compile(r"(?:\.\d+)+$")


def group_name(members: tuple[int, ...]) -> str:
    """Name of a group by its members, short where there are many.

    Examples
    --------
    >>> group_name((0, 4)), group_name(tuple(range(0, 64, 2)))
    ('0,4', '0,2..62')
    """
    if len(members) <= 8:
        return ",".join(map(str, members))
    stride = members[1] - members[0]
    even = all(b - a == stride for a, b in pairwise(members))
    if even:
        return f"{members[0]},{members[1]}..{members[-1]}"
    return f"{members[0]},{members[1]},..,{members[-1]} ({len(members)})"
