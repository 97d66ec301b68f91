"""How long transfers that met others took, whoever was served first.

Ports carry what is sent through them at the same speed whatever the order, but fair shares are
what the simulator gives: real transfers may be served one after the other. Of two equal ones that
begin together, shared fairly, both take twice as long as alone; one after the other, one takes as
long as alone and one twice that. So single times say little. What both orders have in common is
how long the ports are busy; so here each moment is divided equally among the transfers that a
rank has in flight, and what each gets sums to the time that the rank was busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Float = NDArray[np.float64]
    Int = NDArray[np.int64]
    Rank = NDArray[np.int32]


def divided_ns(begin: Float, end: Float, rank: Rank, ptr: Int) -> Float:
    """Time of transfers, each moment divided among those in flight on a rank.

    Parameters
    ----------
    begin, end : float64, shape (M,)
        When the data of each member of a transfer move.
    rank : int32, shape (M,)
        Of the member.
    ptr : int64, shape (T + 1,)
        Members ptr[t]:ptr[t + 1] are those of transfer t.

    Returns
    -------
    float64, shape (T,)
        Mean over the members.
    """
    time = np.zeros(len(begin))
    for one in np.unique(rank):
        here = np.flatnonzero(rank == one)
        moments = np.concatenate([begin[here], end[here]])
        change = np.repeat([1.0, -1.0], len(here))
        order = np.argsort(moments, kind="stable")
        moments, in_flight = moments[order], np.cumsum(change[order])
        each = np.diff(moments) / np.maximum(in_flight[:-1], 1.0)
        until = np.concatenate([[0.0], np.cumsum(each)])
        time[here] = np.interp(end[here], moments, until) - np.interp(begin[here], moments, until)
    mean: Float = np.add.reduceat(time, ptr[:-1]) / np.diff(ptr)
    return mean
