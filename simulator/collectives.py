"""What a collective costs on a network of one or two switch tiers: the closed forms.

This module is the one place of the formulas. Its input is how the members of a group spread over
the scale-up domains; how a graph's operations are priced with it is in `pricing`, and waiting,
sharing and order of operations are the engine's.

The forms
---------
n ranks in k domains, m ranks in each (n = mk), S bytes, B1 and B2 the effective bandwidth of
scale-up and scale-out (bytes/ns per rank and direction), a1 and a2 their latency per message.
A group inside one domain has k = 1, one with a rank in each domain has m = 1; the terms of the
tier that it does not use are then 0 by themselves (or are left out, marked [k > 1] or [m > 1]).

==============  ===================================================  ============================
collective      bandwidth                                            latency
==============  ===================================================  ============================
all-reduce      2(m-1)/m S/B1 + 2(k-1)/k S/(m B2)                    2(m-1) a1 + 2(k-1) a2
all-gather      (m-1)k S/B1 + (k-1) S/B2                             (m-1) a1 + (k-1) a2
reduce-scatter  (m-1)/m S/B1 + (k-1)/k S/(m B2)                      (m-1) a1 + (k-1) a2
all-to-all      max((m-1)/n S/B1, (n-m)/n S/B2)                      max(a1 [m > 1], a2 [k > 1])
broadcast       S/B1 [m > 1] + S/B2 [k > 1]                          (m-1) a1 + (k-1) a2
reduce          as broadcast                                         as broadcast
gather          max((m-1) S/B1, (n-m) S/B2), at the root's ports     max(a1 [m > 1], a2 [k > 1])
scatter         as gather                                            as gather
barrier         0                                                    2 ceil(log2 m) a1
                                                                     + 2 ceil(log2 k) a2
send            S/B of the tier that it crosses                      a of that tier
==============  ===================================================  ============================

To these come `base_ns` of the outermost tier used, once, and `endpoint_ns_per_byte` times the
bytes that the busiest rank moves in each tier, in series.

S is the input of one rank (the convention of Chakra): the shard of an all-gather; the whole
input of a reduce-scatter; the send buffer of an all-to-all with the part a rank keeps; in gather
and scatter the part of one rank.

The algorithms are ring (all-reduce, all-gather, reduce-scatter), pipelined ring (broadcast,
reduce), direct (all-to-all, gather, scatter) and dissemination there and back (barrier). On one
tier these are the usual alpha-beta costs [1]_ [2]_, and their bytes are those that nccl-tests
divides by for its bus bandwidth [3]_. On two tiers the phases of the rings follow each other:
reduce-scatter inside the domains, the same operation between ranks of equal place in theirs,
all-gather inside. Direct messages use both tiers at once, so only the slower one is paid.

Uneven groups
-------------
Where the domains hold different numbers of members (m_max at most, m_min at least) each phase
takes as long as its worst port: scale-up phases have m = m_max, and in scale-out phases the
domain with the fewest members has the largest share for each of its ports:

==============  =============================  =====================================
collective      scale-up bytes                 scale-out bytes
==============  =============================  =====================================
all-reduce      2 (m_max-1)/m_max S            2 (k-1)/k S/m_min
all-gather      (m_max-1)/m_max n S            (n-m_min)/m_min S
reduce-scatter  (m_max-1)/m_max S              (n-m_min)/n S/m_min
all-to-all      (m_max-1)/n S                  (n-m_min)/n S
broadcast       S                              S
gather          (m_root-1) S                   (n-m_root) S
==============  =============================  =====================================

The latency is that of the longest chain, with m_max for m. m_root is the number of members in
the root's domain; if the root is unknown each tier is charged its worst case. With
m_max = m_min = m these are the forms above.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
   in MPICH", Int. J. High Performance Computing Applications 19(1), 2005.
.. [2] E. Chan, M. Heimlich, A. Purkayastha, R. van de Geijn, "Collective communication: theory,
   practice, and experience", Concurrency and Computation 19(13), 2007.
.. [3] NVIDIA nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import NetworkError
from ..graph.columns import Collective

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from .network import Tier

#: Collectives whose messages use all tiers at once, so that only the slower tier is paid.
DIRECT = frozenset({Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER})


@dataclass(frozen=True)
class Spread:
    """How the members of groups spread over scale-up domains (I groups).

    Attributes
    ----------
    members, domains : int64, shape (I,)
        Members (n) and the domains that hold them (k).
    most, fewest : int64, shape (I,)
        Members in the fullest and in the emptiest of those domains (m_max, m_min).
    beside_root : int64, shape (I,)
        Members in the root's domain (m_root), or 0 where there is no root or it is unknown.
    """

    members: NDArray[np.int64]
    domains: NDArray[np.int64]
    most: NDArray[np.int64]
    fewest: NDArray[np.int64]
    beside_root: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[Sequence[int] | NDArray[np.int64]]) -> Spread:
        """Spread of groups that are given as the domain of each member; roots unknown."""
        held = [np.unique(np.asarray(group), return_counts=True)[1] for group in groups]
        return cls(
            members=np.array([counts.sum() for counts in held], dtype=np.int64),
            domains=np.array([len(counts) for counts in held], dtype=np.int64),
            most=np.array([counts.max() for counts in held], dtype=np.int64),
            fewest=np.array([counts.min() for counts in held], dtype=np.int64),
            beside_root=np.zeros(len(held), dtype=np.int64),
        )

    def take(self, index: NDArray[np.int64]) -> Spread:
        """Spread of some of the groups, in the order given."""
        return Spread(
            self.members[index],
            self.domains[index],
            self.most[index],
            self.fewest[index],
            self.beside_root[index],
        )


@dataclass(frozen=True)
class Costs:
    """What operations cost, by cause (I operations, T tiers).

    Attributes
    ----------
    base_ns, endpoint_ns : float64, shape (I,)
        Fixed cost, and cost of moving bytes at the ends.
    latency_ns, bandwidth_ns : float64, shape (I, T)
        What is paid to each tier. Where both tiers work at once only the slower is paid.
    wire_bytes : float64, shape (I, T)
        Bytes through the busiest port of each tier, paid or not.
    messages : float64, shape (I, T)
        Messages one after the other in each tier, paid or not.
    """

    base_ns: NDArray[np.float64]
    endpoint_ns: NDArray[np.float64]
    latency_ns: NDArray[np.float64]
    bandwidth_ns: NDArray[np.float64]
    wire_bytes: NDArray[np.float64]
    messages: NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """What one operation costs, by cause; the fields of `Costs` for one operation."""

    base_ns: float
    endpoint_ns: float
    latency_ns: tuple[float, ...]
    bandwidth_ns: tuple[float, ...]
    wire_bytes: tuple[float, ...]
    messages: tuple[float, ...]

    @property
    def total_ns(self) -> float:
        """Transfer time: from the release of the last member needed to the end."""
        return self.base_ns + self.endpoint_ns + sum(self.latency_ns) + sum(self.bandwidth_ns)


def cost(
    coll: Collective,
    size_bytes: float,
    members: Sequence[int],
    tiers: Sequence[Tier],
    root: int | None = None,
) -> Cost:
    """Cost of one operation; see the module for the formulas.

    Parameters
    ----------
    coll : Collective
        For SEND_RECV, `members` are the two ends.
    size_bytes : float
        Input bytes of one rank, not negative.
    members : sequence of int
        Scale-up domain of each member.
    tiers : sequence of Tier
        One or two, from the inside out.
    root : int, optional
        Domain of the root of a gather or scatter.

    Returns
    -------
    Cost

    Raises
    ------
    NetworkError
        If the members are in several domains and there is only one tier.

    Examples
    --------
    Eight ranks in two domains of four reduce 8 MB at 100 and 10 GB/s:

    >>> from whatif.simulator.network import Tier
    >>> tiers = [Tier(size=4, bandwidth_gb_s=100), Tier(size=2, bandwidth_gb_s=10)]
    >>> cost(Collective.ALL_REDUCE, 8e6, [0, 0, 0, 0, 1, 1, 1, 1], tiers).bandwidth_ns
    (120000.0, 200000.0)
    """
    spread = Spread.of([members])
    if root is not None:
        spread.beside_root[:] = sum(domain == root for domain in members)
    costs = price_spread(coll, np.array([size_bytes], dtype=np.float64), spread, tiers)
    return Cost(
        base_ns=float(costs.base_ns[0]),
        endpoint_ns=float(costs.endpoint_ns[0]),
        latency_ns=tuple(costs.latency_ns[0].tolist()),
        bandwidth_ns=tuple(costs.bandwidth_ns[0].tolist()),
        wire_bytes=tuple(costs.wire_bytes[0].tolist()),
        messages=tuple(costs.messages[0].tolist()),
    )


def price_spread(
    coll: Collective, size_bytes: NDArray[np.float64], spread: Spread, tiers: Sequence[Tier]
) -> Costs:
    """Cost of many operations of one type; see `cost`.

    Parameters
    ----------
    coll : Collective
        Type of all operations.
    size_bytes : float64, shape (I,)
        Input bytes of one rank of each, not negative.
    spread : Spread
        How the members of each spread over the domains.
    tiers : sequence of Tier
        One or two, from the inside out.

    Raises
    ------
    NetworkError
        If members are in several domains and there is only one tier.
    """
    if len(tiers) == 1 and (spread.domains > 1).any():
        raise NetworkError(
            f"a group spans {int(spread.domains.max())} scale-up domains, and the network has no "
            "tier between them",
            place="tiers",
        )
    up_bytes, out_bytes, up_messages, out_messages = _FORMS[coll](size_bytes, spread)
    count = len(size_bytes)
    wire = np.zeros((count, 2))
    wire[:, 0], wire[:, 1] = up_bytes, out_bytes
    messages = np.zeros((count, 2))
    messages[:, 0], messages[:, 1] = up_messages, out_messages
    wire, messages = wire[:, : len(tiers)], messages[:, : len(tiers)]

    bandwidth = wire / np.array([tier.effective_gb_s for tier in tiers])
    latency = messages * np.array([tier.latency_ns for tier in tiers])
    if coll in DIRECT:
        bandwidth, latency = _slower(bandwidth), _slower(latency)
    endpoint = wire @ np.array([tier.endpoint_ns_per_byte for tier in tiers])
    base = np.zeros(count)
    for index, tier in enumerate(tiers):
        base = np.where(messages[:, index] > 0, tier.base_ns, base)
    # A negative base is a burst allowance: it cannot give back more than the wire took.
    base = np.maximum(base, -bandwidth.sum(axis=1))
    return Costs(base, endpoint, latency, bandwidth, wire, messages)


def _slower(paid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keep the largest of the tiers, the outer one where they tie."""
    last = paid.shape[1] - 1
    kept = last - np.argmax(paid[:, ::-1], axis=1)
    return np.where(np.arange(paid.shape[1]) == kept[:, np.newaxis], paid, 0.0)


# Bytes through the busiest port and messages in a row: scale-up bytes, scale-out bytes, scale-up
# messages, scale-out messages.
if TYPE_CHECKING:
    _Column = NDArray[np.float64] | NDArray[np.int64]
    _Traffic = tuple[_Column, _Column, _Column, _Column]


def _all_reduce(size: NDArray[np.float64], on: Spread) -> _Traffic:
    return (
        2 * (on.most - 1) / on.most * size,
        2 * (on.domains - 1) / on.domains * size / on.fewest,
        2 * (on.most - 1),
        2 * (on.domains - 1),
    )


def _all_gather(size: NDArray[np.float64], on: Spread) -> _Traffic:
    return (
        (on.most - 1) / on.most * on.members * size,
        (on.members - on.fewest) / on.fewest * size,
        on.most - 1,
        on.domains - 1,
    )


def _reduce_scatter(size: NDArray[np.float64], on: Spread) -> _Traffic:
    return (
        (on.most - 1) / on.most * size,
        (on.members - on.fewest) / on.members * size / on.fewest,
        on.most - 1,
        on.domains - 1,
    )


def _all_to_all(size: NDArray[np.float64], on: Spread) -> _Traffic:
    return (
        (on.most - 1) / on.members * size,
        (on.members - on.fewest) / on.members * size,
        np.minimum(on.most - 1, 1),
        np.minimum(on.domains - 1, 1),
    )


def _broadcast(size: NDArray[np.float64], on: Spread) -> _Traffic:
    return (
        np.where(on.most > 1, size, 0.0),
        np.where(on.domains > 1, size, 0.0),
        on.most - 1,
        on.domains - 1,
    )


def _gather(size: NDArray[np.float64], on: Spread) -> _Traffic:
    known = on.beside_root > 0
    near = np.where(known, on.beside_root, on.most) - 1
    far = on.members - np.where(known, on.beside_root, on.fewest)
    return near * size, far * size, np.minimum(near, 1), np.minimum(far, 1)


def _barrier(size: NDArray[np.float64], on: Spread) -> _Traffic:
    nothing = np.zeros(len(size))
    return nothing, nothing, 2 * _ceil_log2(on.most), 2 * _ceil_log2(on.domains)


def _send(size: NDArray[np.float64], on: Spread) -> _Traffic:
    crosses = on.domains - 1
    stays = (on.members - 1) - crosses
    return stays * size, crosses * size, stays, crosses


def _ceil_log2(value: NDArray[np.int64]) -> NDArray[np.int64]:
    # The binary exponent of value - 1 is exact where a logarithm may be off by one bit.
    return np.frexp((value - 1).astype(np.float64))[1].astype(np.int64)


_FORMS: dict[Collective, Callable[[NDArray[np.float64], Spread], _Traffic]] = {
    Collective.ALL_REDUCE: _all_reduce,
    Collective.REDUCE: _broadcast,
    Collective.ALL_GATHER: _all_gather,
    Collective.GATHER: _gather,
    Collective.SCATTER: _gather,
    Collective.BROADCAST: _broadcast,
    Collective.ALL_TO_ALL: _all_to_all,
    Collective.REDUCE_SCATTER: _reduce_scatter,
    Collective.REDUCE_SCATTER_BLOCK: _reduce_scatter,
    Collective.BARRIER: _barrier,
    Collective.SEND_RECV: _send,
}
