"""Joining the operations of all ranks: process groups with global names, and instances.

Ranks number their operations independently, so an operation is known across ranks by its group
and its place in it: the recorded sequence number where there is one, else the order of issue.
External ids are counters of one process and join nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.errors import GraphError, TraceError
from ..graph.columns import SYMMETRIC, Collective, Group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .operations import CommOp, GroupKey


@dataclass(frozen=True)
class Matched:
    """Groups of the job and the place of every operation in them.

    Attributes
    ----------
    groups : list of Group
        All groups that any operation uses.
    group_of : list of list of int
        Per rank and operation, the index of its group.
    seq_of : list of list of int
        Per rank and operation, its number within the group.
    instance_of : list of list of int
        Per rank and operation, the instance.
    instances : list of list of tuple
        Per instance, its members as (rank index, operation index), by ascending rank.
    missing : list of int
        Per instance, the number of members that were not traced.
    assumptions : list of str
        What had to be assumed of groups.
    """

    groups: list[Group]
    group_of: list[list[int]]
    seq_of: list[list[int]]
    instance_of: list[list[int]]
    instances: list[list[tuple[int, int]]]
    missing: list[int]
    assumptions: list[str]


def _resolve_groups(
    ranks: Sequence[int], ops: Sequence[Sequence[CommOp]], world_size: int, *, assume_missing: bool
) -> tuple[list[Group], list[list[int]], list[str]]:
    """Give every rank's group keys a global identity."""
    users: dict[tuple[str, int], set[int]] = defaultdict(set)
    for rank, mine in zip(ranks, ops, strict=True):
        for op in mine:
            if op.group.ranks is None and op.group.named:
                users[op.group.name, op.group.size].add(rank)
    groups: list[Group] = []
    index: dict[tuple[str, tuple[int, ...]], int] = {}
    group_of: list[list[int]] = []
    assumptions: dict[str, None] = {}
    for rank, mine in zip(ranks, ops, strict=True):
        unnamed: dict[GroupKey, str] = {}
        ordinals: dict[tuple[int, ...], int] = defaultdict(int)
        row = []
        for op in mine:
            key = op.group
            members = key.ranks
            if members is None and len(users.get((key.name, key.size), ())) == key.size:
                members = tuple(sorted(users[key.name, key.size]))
                assumptions[
                    f"group {key.name!r}: members are the {key.size} ranks that use the name"
                ] = None
            if members is None and assume_missing and key.size:
                first = rank - rank % key.size
                members = tuple(range(first, first + key.size))
                assumptions[f"group {key.name!r} of {key.size}: members taken as consecutive"] = (
                    None
                )
            if members is None:
                raise TraceError(
                    f"the members of process group {key.name!r} ({key.size} ranks) are not in the "
                    "trace",
                    rank=rank,
                )
            if rank not in members:
                raise TraceError(
                    f"process group {key.name!r} with members {_short(members)} is used by a rank "
                    "that is not a member",
                    rank=rank,
                )
            name = key.name
            if not key.named:
                if key not in unnamed:
                    unnamed[key] = f"#{ordinals[members]}"
                    ordinals[members] += 1
                name = unnamed[key]
                if len(members) == world_size:
                    assumptions[f"group {name} is the world of {world_size} ranks"] = None
            place = (name, members)
            if place not in index:
                index[place] = len(groups)
                groups.append(Group(name, members, key.description))
            row.append(index[place])
        group_of.append(row)
    return groups, group_of, list(assumptions)


def _short(ranks: Sequence[int]) -> str:
    if len(ranks) <= 8:
        return str(list(ranks))
    return f"[{ranks[0]}, {ranks[1]}, ..., {ranks[-1]}] ({len(ranks)} ranks)"


def _described(op: CommOp) -> str:
    """Operation and size, for a message."""
    if op.size_bytes >= 0:
        return f"{op.coll.label} of {op.size_bytes} bytes"
    return f"{op.coll.label} of unknown size (all that is known of it: {op.evidence})"


def _signature(op: CommOp) -> tuple[int, int]:
    # Splits may be unequal in all-to-all, and shards in all-gather and reduce-scatter.
    fixed = op.coll in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
    return int(op.coll), op.size_bytes if fixed else 0


def _check_equal(
    group: Group,
    rows: dict[int, list[int]],
    ops: Sequence[Sequence[CommOp]],
    ranks: Sequence[int],
    files: Sequence[Path],
) -> None:
    """Refuse ranks of one group that issued different sequences of collectives."""
    reference_rank, reference = next(iter(rows.items()))
    for other_rank, other in rows.items():
        for place, (a, b) in enumerate(zip(reference, other, strict=False)):
            left, right = ops[reference_rank][a], ops[other_rank][b]
            if _signature(left) != _signature(right):
                unknown = left.size_bytes < 0 <= right.size_bytes
                blamed = reference_rank if unknown else other_rank
                raise GraphError(
                    f"collective {place} of group {group.name!r} {_short(group.ranks)} is "
                    f"{_described(left)} on rank {ranks[reference_rank]} but {_described(right)} "
                    f"on rank {ranks[other_rank]}",
                    file=files[blamed],
                    rank=ranks[blamed],
                    place=f"group {group.name!r}, position {place}",
                )
        if len(reference) != len(other):
            fewer, more = sorted((reference_rank, other_rank), key=lambda r: len(rows[r]))
            place = len(rows[fewer])
            lone = ops[more][rows[more][place]]
            raise GraphError(
                f"group {group.name!r} {_short(group.ranks)} has {len(rows[more])} collectives on "
                f"rank {ranks[more]} but {place} on rank {ranks[fewer]}: the first without a "
                f"partner is {_described(lone)}",
                file=files[more],
                rank=ranks[more],
                place=f"group {group.name!r}, position {place}",
            )


def match(
    ranks: Sequence[int],
    ops: Sequence[Sequence[CommOp]],
    world_size: int,
    *,
    files: Sequence[Path],
    assume_missing: bool,
) -> Matched:
    """Match the operations of all ranks.

    Parameters
    ----------
    ranks : sequence of int
        Global rank numbers.
    ops : sequence of sequence of CommOp
        Operations of each rank, by issue order.
    world_size : int
        Ranks of the job.
    files : sequence of Path
        The trace of each rank, to be named where it does not fit the others.
    assume_missing : bool
        Whether members of a group that were not traced may be assumed.

    Returns
    -------
    Matched

    Raises
    ------
    TraceError
        If the members of a group are unknown, or were not traced and may not be assumed.
    GraphError
        If ranks of one group issued different operations.
    """
    groups, group_of, assumptions = _resolve_groups(
        ranks, ops, world_size, assume_missing=assume_missing
    )
    position = {rank: i for i, rank in enumerate(ranks)}
    collectives: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    pairs: dict[tuple[int, int, int], tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    for r, mine in enumerate(ops):
        for i, op in enumerate(mine):
            g = group_of[r][i]
            if op.coll is Collective.SEND_RECV:
                ends = (ranks[r], op.peer) if op.sends else (op.peer, ranks[r])
                pairs.setdefault((g, *ends), ([], []))[0 if op.sends else 1].append((r, i))
            else:
                collectives[g][r].append(i)
    seq_of = [[-1] * len(mine) for mine in ops]
    instance_of = [[-1] * len(mine) for mine in ops]
    instances: list[list[tuple[int, int]]] = []
    missing: list[int] = []

    def add(members: list[tuple[int, int]], seq: int, absent: int) -> None:
        for r, i in members:
            seq_of[r][i] = seq
            instance_of[r][i] = len(instances)
        instances.append(sorted(members))
        missing.append(absent)

    partial = [g for g in sorted(collectives) if any(r not in position for r in groups[g].ranks)]
    for g in sorted(collectives):
        rows = dict(sorted(collectives[g].items()))
        group = groups[g]
        absent = [rank for rank in group.ranks if rank not in position]
        silent = [rank for rank in group.ranks if rank in position and position[rank] not in rows]
        if absent and not assume_missing:
            more = ""
            if len(partial) > 1:
                gone = {r for p in partial for r in groups[p].ranks if r not in position}
                more = (
                    f", as {len(partial)} groups in all have (ranks that were not traced: "
                    f"{_short(sorted(gone))})"
                )
            first = min(rows)
            raise TraceError(
                f"group {group.name!r} {_short(group.ranks)} has members that were not traced: "
                f"{_short(absent)}{more}; add their files, or assume them (--assume-missing)",
                file=files[first],
                rank=ranks[first],
            )
        if silent:
            first = min(rows)
            lone = ops[first][rows[first][0]]
            raise GraphError(
                f"group {group.name!r} {_short(group.ranks)}: {_described(lone)} on rank "
                f"{ranks[first]} has no partner on this rank",
                file=files[position[silent[0]]],
                rank=silent[0],
                place=f"group {group.name!r}, position 0",
            )
        if all(ops[r][i].seq >= 0 for r, row in rows.items() for i in row):
            for row_rank, row in rows.items():
                row.sort(key=lambda i, r=row_rank: ops[r][i].seq)  # type: ignore[misc]
        _check_equal(group, rows, ops, ranks, files)
        for place in range(len(next(iter(rows.values())))):
            add([(r, row[place]) for r, row in rows.items()], place, len(absent))
    for (g, source, target), (sends, recvs) in sorted(pairs.items()):
        known = source in position and target in position
        if not known and not assume_missing:
            lost, there = (source, target) if source not in position else (target, source)
            raise TraceError(
                f"send/receive {source} -> {target} of group {groups[g].name!r}: rank {lost} was "
                "not traced; add its file, or assume it (--assume-missing)",
                file=files[position[there]],
                rank=there,
            )
        if known and len(sends) != len(recvs):
            raise GraphError(
                f"{len(sends)} sends from rank {source} to rank {target} in group "
                f"{groups[g].name!r} meet {len(recvs)} receives",
                rank=source if len(sends) > len(recvs) else target,
                place=f"group {groups[g].name!r}, pair {source} -> {target}",
            )
        for side in (sends, recvs):
            if all(ops[r][i].seq >= 0 for r, i in side):
                side.sort(key=lambda member: ops[member[0]][member[1]].seq)
        if known:
            for place, (send, recv) in enumerate(zip(sends, recvs, strict=True)):
                a, b = ops[send[0]][send[1]], ops[recv[0]][recv[1]]
                if a.size_bytes != b.size_bytes and min(a.size_bytes, b.size_bytes) >= 0:
                    raise GraphError(
                        f"send {place} from rank {source} has {a.size_bytes} bytes but its receive "
                        f"on rank {target} has {b.size_bytes}",
                        rank=target,
                        place=f"group {groups[g].name!r}, position {place}",
                    )
                add([send, recv], place, 0)
        else:
            for place, member in enumerate(sends or recvs):
                add([member], place, 1)
    return Matched(groups, group_of, seq_of, instance_of, instances, missing, assumptions)


def symmetric_members(
    matched: Matched, ops: Sequence[Sequence[CommOp]]
) -> list[list[tuple[int, int]]]:
    """Members of the instances in which all wait for all, which clocks can be aligned by."""
    return [
        members
        for members in matched.instances
        if len(members) > 1 and ops[members[0][0]][members[0][1]].coll in SYMMETRIC
    ]
