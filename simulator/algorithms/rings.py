"""Load of the links of rings and tori: who passes where.

A ring of N places has a link in each direction between neighbours, and with wrap-around between
the last and the first; a ring of two has one link. Everything here is about one ring of places 0
to N - 1, in units of what one member sends; `torus_loads` puts rings together to tori.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int = NDArray[np.int64]
    Float = NDArray[np.float64]

#: What a pass around a ring does: every member collects from all, every member gives to all (a
#: reduction in its mirror image), or one member gives to all.
Pass = Literal["gather", "scatter", "spread"]


class RingPass(NamedTuple):
    """Load of the links that a pass uses (L of them).

    Attributes
    ----------
    place : int64, shape (L,)
        Where the link begins.
    plus : bool, shape (L,)
        Whether it goes to the next place, or to the one before.
    share : float64, shape (L,)
        Its bytes, as a share of what one member takes in.
    hops : int
        Links on the longest chain.
    """

    place: Int
    plus: NDArray[np.bool_]
    share: Float
    hops: int


@lru_cache(maxsize=4096)
def ring_pass(
    places: tuple[int, ...], size: int, wrap: bool, what: Pass, source: int = 0
) -> RingPass:
    """Route a pass between members at some places of a ring.

    Neighbouring members exchange along the shortest way. Where that closes the ring (no arc
    without members is longer than half of it) both directions carry half of everything;
    otherwise the members form a line, whose last link carries what its end takes in.

    Parameters
    ----------
    places : tuple of int, length k
        Ascending.
    size : int
        Places of the ring.
    wrap : bool
        Whether it is closed; one of two places never is.
    what : str
        The pass. A gather takes what k - 1 others have, a spread what the source has.
    source : int
        Index of the member that a spread starts from.
    """
    count = len(places)
    at = np.array(places, dtype=np.int64)
    arcs = np.roll(at, -1) - at
    arcs[-1] += size
    if wrap and size > 2 and 2 * arcs.max() <= size:
        return _closed(at, arcs, size, what, source)
    last = int(np.argmax(arcs)) if wrap and size > 2 else count - 1
    turned = np.roll(np.arange(count), -(last + 1))
    rank = np.arange(count - 1)
    before = (rank + 1) / (count - 1)  # members on this side of an arc, of the others
    after = (count - 1 - rank) / (count - 1)
    if what == "spread":
        start = int(np.flatnonzero(turned == source)[0])
        before, after = (rank >= start).astype(np.float64), (rank < start).astype(np.float64)
        length = arcs[turned[:-1]]
        hops = max(int(length[start:].sum()), int(length[:start].sum()))
    else:
        if what == "scatter":
            before, after = after, before
        hops = int(arcs[turned[:-1]].sum())
    arc = np.repeat(rank, arcs[turned[:-1]])
    step = np.arange(len(arc)) + at[turned[0]]
    place = np.concatenate([step % size, (step + 1) % size])
    share = np.concatenate([before[arc], after[arc]])
    plus = np.arange(len(place)) < len(arc)
    kept = share > 0
    return RingPass(place[kept], plus[kept], share[kept], hops)


def _closed(at: Int, arcs: Int, size: int, what: Pass, source: int) -> RingPass:
    place = np.concatenate([np.arange(size), np.arange(size)])
    plus = np.arange(2 * size) < size
    used = np.ones(2 * size, dtype=np.bool_)
    if what == "spread":
        # Nothing comes back to the source: the arcs that end there stay idle.
        before, after = int(arcs[source - 1]), int(arcs[source])
        used[(at[source] - 1 - np.arange(before)) % size] = False
        used[size + (at[source] + 1 + np.arange(after)) % size] = False
        hops = size - min(before, after)
    else:
        steps = len(at) // 2
        around = np.concatenate([[0], np.cumsum(np.concatenate([arcs, arcs]))])
        hops = int((around[steps:] - around[: len(around) - steps]).max())
    return RingPass(place[used], plus[used], np.full(int(used.sum()), 0.5), hops)


class RingTraffic(NamedTuple):
    """Load of the links of a ring by messages: ``plus[p]`` goes on from p, ``minus[p]`` back."""

    plus: Float
    minus: Float
    hops: int


def ring_traffic(sent: Float, wanted: Float, *, wrap: bool) -> RingTraffic:
    """Route messages along the shortest way, half each way where both are as short.

    Parameters
    ----------
    sent, wanted : float64, shape (N,)
        From place a to place b, unless they are the same, goes ``sent[a] * wanted[b]``.
    wrap : bool
        Whether the ring is closed; one of two places never is.
    """
    return _ring_traffic(sent.tobytes(), wanted.tobytes(), wrap)


@lru_cache(maxsize=4096)
def _ring_traffic(sent: bytes, wanted: bytes, wrap: bool) -> RingTraffic:
    amount = np.outer(np.frombuffer(sent), np.frombuffer(wanted))
    size = len(amount)
    start, end = np.nonzero(amount)
    apart = start != end
    start, end = start[apart], end[apart]
    amount = amount[start, end]
    if wrap and size > 2:
        ahead = (end - start) % size
        share = np.where(2 * ahead < size, 1.0, np.where(2 * ahead == size, 0.5, 0.0))
        back = size - ahead
    else:
        ahead, back = np.maximum(end - start, 0), np.maximum(start - end, 0)
        share = (end > start).astype(np.float64)
    hops = np.where(share > 0, ahead, back).max(initial=0)
    plus = _covered(start, ahead, amount * share, size)
    # A message that goes back from its start is one that goes on from its mirror image.
    minus = _covered(size - 1 - start, back, amount * (1 - share), size)[::-1]
    return RingTraffic(plus, minus, int(hops))


def _covered(start: Int, length: Int, amount: Float, size: int) -> Float:
    """Load of every link by messages that go on from a place over some links."""
    change = np.zeros(2 * size + 1)
    used = amount > 0
    np.add.at(change, start[used], amount[used])
    np.add.at(change, start[used] + length[used], -amount[used])
    load = np.cumsum(change)[:-1]
    both: Float = load[:size] + load[size:]
    # What is left of the cancelled sums is no load.
    return np.where(both > amount.sum() * 1e-12, both, 0.0)


class TorusTraffic(NamedTuple):
    """Load of the links of a torus by messages (L links; D dimensions).

    Attributes
    ----------
    dimension : int64, shape (L,)
        Of the link.
    place : int64, shape (L, D)
        Where it begins.
    plus : bool, shape (L,)
        Whether it goes to the next place, or to the one before.
    amount : float64, shape (L,)
        What it carries.
    hops : int64, shape (D,)
        Links of each dimension on the longest way.
    """

    dimension: Int
    place: Int
    plus: NDArray[np.bool_]
    amount: Float
    hops: Int


def torus_traffic(
    sizes: tuple[int, ...],
    wraps: tuple[bool, ...],
    start: Int,
    sent: Float,
    end: Int,
    wanted: Float,
) -> TorusTraffic:
    """Route messages through a torus, one dimension after the other from the first.

    Where all places of `start` send to all of `end`, the ring of dimension d that a message goes
    through is given by the coordinates that it already has of its end (dimensions before d) and
    still has of its start (after d). So the messages on each ring are again a product.

    Parameters
    ----------
    sizes, wraps : tuple, length D
        Places of each dimension, and whether it is closed.
    start, end : int64, shape (A, D), (B, D)
        Places that send and that receive.
    sent, wanted : float64, shape (A,), (B,)
        From a to b goes ``sent[a] * wanted[b]``.
    """
    found: list[tuple[int, Int, bool, Float]] = []
    hops = np.zeros(len(sizes), dtype=np.int64)
    for d, (size, wrap) in enumerate(zip(sizes, wraps, strict=True)):
        kept, from_ = _on_ring(start[:, d + 1 :], start[:, d], sent, size)
        reached, to = _on_ring(end[:, :d], end[:, d], wanted, size)
        for x, row in enumerate(reached):
            for y, column in enumerate(kept):
                load = ring_traffic(from_[y], to[x], wrap=wrap)
                hops[d] = max(hops[d], load.hops)
                for plus, amount in ((True, load.plus), (False, load.minus)):
                    at = np.flatnonzero(amount)
                    place = np.empty((len(at), len(sizes)), dtype=np.int64)
                    place[:, :d], place[:, d], place[:, d + 1 :] = row, at, column
                    found.append((d, place, plus, amount[at]))
    return TorusTraffic(
        dimension=np.repeat([d for d, *_ in found], [len(f[1]) for f in found]).astype(np.int64),
        place=np.concatenate([place for _, place, _, _ in found]),
        plus=np.repeat([plus for _, _, plus, _ in found], [len(f[1]) for f in found]),
        amount=np.concatenate([amount for *_, amount in found]),
        hops=hops,
    )


def _on_ring(others: Int, along: Int, weight: Float, size: int) -> tuple[Int, Float]:
    """Add up weights by the coordinates that choose the ring, and the place on it."""
    rings, which = np.unique(others, axis=0, return_inverse=True)
    total = np.zeros((len(rings), size))
    np.add.at(total, (which.reshape(-1), along), weight)
    return rings, total
