"""What a simulation reports of steps, ranks and operations: plain records, without the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StepTime(msgspec.Struct, frozen=True):
    """One simulated step.

    Attributes
    ----------
    name : str
        Its annotation.
    measured_ns : int or None
        Its measured time, where the graph has one.
    step_ns, completion_ns : int
        Its simulated time, and when it completes on the graph's clock.
    """

    name: str
    measured_ns: int | None
    step_ns: int
    completion_ns: int


class RankTime(msgspec.Struct, frozen=True):
    """Where the headline step goes on one rank.

    Attributes
    ----------
    rank : int
        Global rank number.
    finish_ns : int
        When this rank alone completes the last step.
    compute_ns, exposed_comm_ns, copy_ns, wait_ns, host_ns, idle_ns, start_offset_ns : int
        The categories; they sum to the headline step.
    hidden_comm_ns : int
        Transfers while compute runs, a part of `compute_ns`.
    measured_finish_ns : int or None
        When it did so in the trace, where that has measured steps.
    """

    rank: int
    finish_ns: int
    compute_ns: int
    exposed_comm_ns: int
    copy_ns: int
    wait_ns: int
    host_ns: int
    idle_ns: int
    start_offset_ns: int
    hidden_comm_ns: int
    measured_finish_ns: int | None = None


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One of the places that the critical path of the headline step goes through.

    Attributes
    ----------
    kind : str
        What the time is spent on: a kind of segment of the critical path.
    rank : int or None
        Global rank number; None where a transfer runs, which belongs to its group.
    lane : str or None
        ``host thread 17``, ``stream 7``, ``queue 3``; None of a transfer and a start offset.
    what : str
        The kernel, the host work and the kernel that it is launched by, what a gap is before;
        of a transfer its type.
    group : str or None
        Process group of a transfer; of a send and receive the two ranks.
    bytes : int or None
        Input bytes of a rank in the transfer, where the trace says.
    beside : str or None
        Of time that transfers lost to others on their ports: whom they met the longest.
    count : float
        How often in a step; of two headline steps the mean.
    time_ns : int
        All of it on the critical path.
    share_pct : float
        The same in percent of the step.
    """

    kind: str
    rank: int | None
    lane: str | None
    what: str
    group: str | None
    bytes: int | None
    beside: str | None
    count: float
    time_ns: int
    share_pct: float


class ExposedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What the communication of a process group costs the ranks that take part in it.

    Times are of the headline step. At every instant the same applies as to the categories of
    `RankTime`; where a rank has several transfers in flight, or waits in several operations, the
    time is divided equally among them, so a rank's times sum to its categories.

    Attributes
    ----------
    group : str
        Name of the process group; of a send and receive the two ranks.
    ranks : int
        Traced ranks that take part.
    count : float
        Operations in a step, each counted once, however many ranks take part.
    exposed_ns : int
        Transfer while the rank does not compute: mean over the ranks.
    exposed_max_ns : int
        The same on the rank where it is longest.
    hidden_ns : int
        Transfer while the rank computes: mean over the ranks.
    wait_ns : int
        Wait for others while nothing else runs: mean over the ranks.
    path_ns : int
        Transfer on the critical path.
    """

    group: str
    ranks: int
    count: float
    exposed_ns: int
    exposed_max_ns: int
    hidden_ns: int
    wait_ns: int
    path_ns: int


class ExposedCollective(ExposedGroup, frozen=True, kw_only=True):
    """The same of the operations of one type and size in a group.

    Attributes
    ----------
    type : str
        ``all-reduce``, ``all-to-all``, ..., ``send-recv``.
    bytes : int or None
        Input bytes of a rank; None where the trace does not say.
    """

    type: str
    bytes: int | None


class Track(NamedTuple):
    """A row of a timeline: a lane of a rank, or one of the whole job where `rank` is None."""

    rank: int | None
    name: str


@dataclass(frozen=True, eq=False)
class Timeline:
    """What ran when, ready to be drawn (K slices on T tracks, A arrows).

    Attributes
    ----------
    ranks : tuple of int
        Global rank numbers.
    tracks : tuple of Track, length T
        Those of the whole job first, then by rank. Slices of one track do not overlap: where
        nodes of a lane do, the lane has several tracks.
    names : tuple of str
        Table that `name` indexes.
    track, name : int64, shape (K,)
        Of each slice.
    kinds : tuple of str
        Table that `kind` indexes: ``compute``, ``copy``, ``host``, ``gap``, ``comm`` of nodes,
        ``step``, and the kinds of segments of the critical path.
    kind : int64, shape (K,)
        Of each slice.
    begin_ns, end_ns : int64, shape (K,)
        On the clock of the graph.
    details : dict of int to dict
        What else is known of a slice, by its index, names with units.
    arrow_from, arrow_to : int64, shape (A,)
        Slices that an arrow joins: of a send and its receive, of the root and a member, of the
        last member that arrives and one that waits for it.
    leave_ns, reach_ns : int64, shape (A,)
        When the arrow leaves the one and reaches the other, inside the slices.
    earliest_ns : int
        Nothing begins before this moment, in any simulation of the graph.
    """

    ranks: tuple[int, ...]
    tracks: tuple[Track, ...]
    names: tuple[str, ...]
    track: NDArray[np.int64]
    name: NDArray[np.int64]
    kinds: tuple[str, ...]
    kind: NDArray[np.int64]
    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    details: dict[int, dict[str, int | str]]
    arrow_from: NDArray[np.int64]
    arrow_to: NDArray[np.int64]
    leave_ns: NDArray[np.int64]
    reach_ns: NDArray[np.int64]
    earliest_ns: int
