"""The same operation on all devices: by program, run, instruction and occurrence.

Every device runs the same compiled program, so an operation needs no counting of events to be
found on the others. What a device lacks is therefore seen, named and refused, not shifted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ...base.errors import GraphError
from ...graph.columns import SYMMETRIC, Collective
from .runs import short_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..match import Matched
    from ..nodes import RankNodes
    from .chip import Chip, Place


def number_operations(ranks: Sequence[int], chips: Sequence[Chip], files: Sequence[Path]) -> None:
    """Number the operations of each group alike on all its devices.

    Parameters
    ----------
    ranks : sequence of int
        Global numbers of the devices.
    chips : sequence of Chip
        Their communication; `seq` of the operations is set.
    files : sequence of Path
        Where each was read from, for errors.

    Raises
    ------
    GraphError
        If a device lacks an operation that others of its group have.
    """
    traced = set(ranks)
    order: dict[tuple[object, ...], dict[Place, int]] = defaultdict(dict)
    users: dict[tuple[object, ...], dict[Place, set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank, chip in zip(ranks, chips, strict=True):
        for op, place in zip(chip.ops, chip.places, strict=True):
            key: tuple[object, ...] = (op.group.ranks,)
            if op.coll is Collective.SEND_RECV:
                key = ("pair", *((rank, op.peer) if op.sends else (op.peer, rank)))
            op.seq = order[key].setdefault(place, len(order[key]))
            users[key][place].add(rank)
    for key, places in users.items():
        wanted = set(key[1:]) if key[0] == "pair" else set(key[0] or ())  # type: ignore[call-overload]
        wanted &= traced
        for (module, run, name, occurrence), there in places.items():
            lacking = wanted - there
            if lacking:
                raise GraphError(
                    f"has no {name} (occurrence {occurrence} in run {run} of "
                    f"{short_name(module) or 'the trace'}), which rank {min(there)} has and "
                    f"which the ranks {', '.join(map(str, sorted(wanted)[:8]))} do together",
                    file=files[ranks.index(min(lacking))],
                    rank=min(lacking),
                    place=name,
                )


def settle_ends(
    chips: Sequence[Chip],
    nodes: Sequence[RankNodes],
    matched: Matched,
    shift_ns: Sequence[int],
) -> int:
    """Work out when transfers ended that not every member waited for.

    A symmetric operation ends everywhere at about the same time, so one member that waited tells
    it for all. Where none did, it is taken to have been as fast as the fastest of the same type,
    size and group that was seen; where there is none, to have lasted until it was needed.

    Parameters
    ----------
    chips : sequence of Chip
        Their communication; of each rank.
    nodes : sequence of RankNodes
        Their nodes, whose ends are set.
    matched : Matched
        The operations, joined.
    shift_ns : sequence of int
        What to add to the times of each rank to get the common clock.

    Returns
    -------
    int
        Operations (of one rank) that are taken to have lasted until they were needed.
    """
    node_of = [{op: n for n, op in enumerate(r.op) if op >= 0} for r in nodes]

    def start_of(r: int, i: int) -> int:
        return nodes[r].start[node_of[r][i]] + shift_ns[r]

    def end_of(r: int, i: int) -> int:
        return nodes[r].end[node_of[r][i]] + shift_ns[r]

    fastest: dict[tuple[int, int, int], int] = {}
    unseen: list[tuple[tuple[int, int, int], list[tuple[int, int]]]] = []
    for members in matched.instances:
        r0, i0 = members[0]
        op = chips[r0].ops[i0]
        if op.coll not in SYMMETRIC:
            continue
        key = (int(op.coll), op.size_bytes, matched.group_of[r0][i0])
        seen = [(r, i) for r, i in members if i not in chips[r].latest]
        if len(seen) < len(members):
            unseen.append((key, members))
        if seen:
            end = min(end_of(r, i) for r, i in seen)
            span = end - max(start_of(r, i) for r, i in members)
            if span > 0:
                fastest[key] = min(span, fastest.get(key, span))
    unknown = sum(
        len([i for i in chip.latest if chip.ops[i].coll not in SYMMETRIC]) for chip in chips
    )
    for key, members in unseen:
        begin = max(start_of(r, i) for r, i in members)
        seen_ends = [end_of(r, i) for r, i in members if i not in chips[r].latest]
        late = [(r, i) for r, i in members if i in chips[r].latest]
        if not seen_ends and key not in fastest:
            unknown += len(late)
            # All of them end with the first that needed it.
            seen_ends = [min(chips[r].latest[i] + shift_ns[r] for r, i in late)]
        end = min(seen_ends) if seen_ends else begin + fastest[key]
        for r, i in late:
            node = node_of[r][i]
            own_end = min(end - shift_ns[r], chips[r].latest[i])
            nodes[r].end[node] = max(own_end, nodes[r].start[node])
    return unknown
