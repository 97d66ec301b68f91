"""What a simulation reports about steps and ranks: plain records, without the engine."""

from __future__ import annotations

import msgspec


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
