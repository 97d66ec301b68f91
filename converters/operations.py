"""What a converter says of one rank's communication, whatever profiler saw it.

Finding the operations is the business of each dialect; joining those of different ranks is done
in `match`, from what is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..graph.columns import Collective


@dataclass(frozen=True)
class GroupKey:
    """What one rank's trace says of a process group.

    Attributes
    ----------
    name : str
        Name of the group, or its address where the trace has no names: the same within a rank.
    ranks : tuple of int or None
        Members as global ranks, or None where the trace does not say.
    size : int
        Number of members, 0 where the trace does not say.
    description : str
        What the framework calls it.
    named : bool
        Whether `name` means the same on other ranks.
    """

    name: str
    ranks: tuple[int, ...] | None
    size: int
    description: str = ""
    named: bool = True


@dataclass
class CommOp:
    """One operation of one rank: a collective, a send or a receive.

    Attributes
    ----------
    event : int
        The event that performs it (device kernel, or ``gloo:*`` event).
    coll : Collective
        Operation.
    size_bytes : int
        Input bytes of this rank, -1 if unknown.
    group : GroupKey
        Process group.
    seq : int
        Recorded sequence number in the group, -1 if not recorded.
    peer : int
        Global rank of the other side or of the root, -1 if none.
    sends : bool
        Whether a SEND_RECV operation is the send.
    order : int
        Time of the host call that issued it, for ordering within the rank.
    evidence : str
        Where type, size and group come from.
    dtype : str
        Data type, empty if unknown.
    split : tuple of int
        Bytes to each member of the group, of an all-to-all of unequal parts; else empty.
    """

    event: int
    coll: Collective
    size_bytes: int
    group: GroupKey
    seq: int
    peer: int
    sends: bool
    order: int
    evidence: str
    dtype: str = ""
    split: tuple[int, ...] = ()
