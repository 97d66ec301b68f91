"""What operations cost on a network, by cause.

The algorithms, their steps and formulas are documented and made in `algorithms`; here they meet
the speed of the tiers. How a graph's operations are priced is in `pricing`, and waiting, sharing
and order of operations are the engine's.

An operation costs ``base_ns`` of the outermost tier that it uses, once; ``endpoint_ns_per_byte``
times the bytes that the busiest rank moves in each tier, in series; and for each stage of its
algorithm the latency of its chain of messages and the time of its busiest port. S, the size, is
the input of one rank (the convention of Chakra): the shard of an all-gather; the whole input of a
reduce-scatter; the send buffer of an all-to-all with the part a rank keeps; in gather and scatter
the part of one rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.errors import NetworkError
from .algorithms.layout import shape_of
from .algorithms.plans import costing_of, possible_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import Collective
    from .algorithms.layout import Shape
    from .algorithms.names import Algorithm
    from .algorithms.plans import Costing
    from .network import Tier

    Float = NDArray[np.float64]


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
        What is paid to each tier. Where tiers work at once only the slowest is paid.
    wire_bytes : float64, shape (I, T)
        Bytes that the busiest rank sends or receives in each tier, paid or not.
    messages : float64, shape (I, T)
        Messages (on rings: hops) one after the other in each tier, paid or not.
    """

    base_ns: Float
    endpoint_ns: Float
    latency_ns: Float
    bandwidth_ns: Float
    wire_bytes: Float
    messages: Float


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


class Speeds(NamedTuple):
    """How fast the tiers are with one protocol (T tiers).

    Attributes
    ----------
    gb_s, latency_ns : float64, shape (2, T)
        Effective bandwidth and latency per message: row 0 as usual, row 1 where switches reduce.
    endpoint_ns_per_byte, base_ns : float64, shape (T,)
        As in `Tier`.
    chunks : int
        Chunks of algorithms that pipeline tiers.
    own_share : float
        As in `Network`.
    """

    gb_s: Float
    latency_ns: Float
    endpoint_ns_per_byte: Float
    base_ns: Float
    chunks: int
    own_share: float = 0.0


def speeds_of(
    tiers: Sequence[Tier], chunks: int, protocol: str | None = None, own_share: float = 0.0
) -> Speeds:
    """Speed of the tiers; those that have the protocol use it."""
    gb_s = np.empty((2, len(tiers)))
    latency = np.empty((2, len(tiers)))
    base = np.array([tier.base_ns for tier in tiers], dtype=np.float64)
    endpoint = np.array([tier.endpoint_ns_per_byte for tier in tiers], dtype=np.float64)
    for index, tier in enumerate(tiers):
        factor = next((p for p in tier.protocols if p.name == protocol), None)
        share, delay = (1.0, 1.0) if factor is None else (factor.efficiency, factor.latency)
        if factor is not None:
            base[index] += factor.base_ns
            endpoint[index] += factor.endpoint_ns_per_byte
        gb_s[0, index], latency[0, index] = tier.effective_gb_s * share, tier.latency_ns * delay
        reducing, slow = tier.in_network_efficiency, tier.in_network_latency_ns
        gb_s[1, index] = tier.bandwidth_gb_s * (tier.efficiency if reducing is None else reducing)
        latency[1, index] = tier.latency_ns if slow is None else slow
    return Speeds(
        gb_s,
        latency,
        endpoint,
        base,
        chunks,
        own_share,
    )


class Stack(NamedTuple):
    """Many `Costing`, filled up with stages that cost nothing (I of them, S stages, T tiers)."""

    worst: Float
    wire: Float
    messages: Float
    kept: Float
    lanes: NDArray[np.int64]
    in_network: NDArray[np.int64]
    chunked: NDArray[np.bool_]
    stages: NDArray[np.int64]  # (I,) of each, those that cost nothing not counted

    def take(self, index: NDArray[np.int64]) -> Stack:
        """Some of them, in the order given."""
        return Stack(
            self.worst[index],
            self.wire[index],
            self.messages[index],
            self.kept[index],
            self.lanes[index],
            self.in_network[index],
            self.chunked[index],
            self.stages[index],
        )


def stack(costings: Sequence[Costing], num_tiers: int) -> Stack:
    """Put costings side by side."""
    most = max([len(one.worst) for one in costings], default=0) or 1
    shape = (len(costings), most, num_tiers)
    filled = Stack(
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.array([one.chunked for one in costings], dtype=np.bool_),
        np.array([len(one.worst) for one in costings], dtype=np.int64),
    )
    for row, one in enumerate(costings):
        for column, values in zip(filled[:-2], one[:-1], strict=True):
            column[row, : len(values)] = values
    return filled


class Phases(NamedTuple):
    """Time of every stage (I operations, S stages): what is fixed, and what its ports take."""

    fixed_ns: Float
    work_ns: Float


def costs_of(plans: Stack, size_bytes: Float, speeds: Speeds) -> tuple[Costs, Phases]:
    """Cost of operations alone on the network.

    Parameters
    ----------
    plans : Stack
        Of each operation.
    size_bytes : float64, shape (I,)
        Input bytes of one rank of each, not negative.
    speeds : Speeds
        Of the tiers.
    """
    tier = np.arange(plans.worst.shape[2])
    size = size_bytes[:, np.newaxis, np.newaxis]
    handled = plans.worst * (1 + speeds.own_share * plans.kept)
    time = handled * size / speeds.gb_s[plans.in_network, tier]
    slowest = _slowest(time)
    others = np.where(plans.chunked, 1 / speeds.chunks, 0.0)[:, np.newaxis, np.newaxis]
    paid = np.where(slowest, time, time * others)

    delay = plans.messages * speeds.latency_ns[plans.in_network, tier]
    lane = np.stack([np.where(plans.lanes == lane, delay, 0).sum(axis=2) for lane in tier], axis=2)
    longest = np.argmax(_slowest(lane), axis=2)[:, :, np.newaxis]
    delay = np.where(plans.lanes == longest, delay, 0.0)

    wire = plans.wire * size
    endpoint = wire @ speeds.endpoint_ns_per_byte
    messages = plans.messages.sum(axis=1)
    bandwidth = paid.sum(axis=1)
    base = np.zeros(len(size_bytes))
    for index, base_ns in enumerate(speeds.base_ns):
        base = np.where(messages[:, index] > 0, base_ns, base)
    # A negative base is a burst allowance: it cannot give back more than the wire took.
    base = np.maximum(base, -bandwidth.sum(axis=1))
    costs = Costs(
        base, endpoint.sum(axis=1), delay.sum(axis=1), bandwidth, wire.sum(axis=1), messages
    )
    fixed, work = delay.sum(axis=2) + endpoint, paid.sum(axis=2)
    fixed[:, 0] += base
    for stage in range(fixed.shape[1]):
        # What a negative base gives back it takes from the first bytes.
        back = np.minimum(fixed[:, stage], 0)
        fixed[:, stage] -= back
        work[:, stage] += back
        back = np.minimum(work[:, stage], 0)
        work[:, stage] -= back
        if stage + 1 < fixed.shape[1]:
            fixed[:, stage + 1] += back
    return costs, Phases(fixed, work)


def _slowest(time: Float) -> NDArray[np.bool_]:
    """Mark the largest of the tiers, the outer one where they tie."""
    last = time.shape[2] - 1
    kept = last - np.argmax(time[:, :, ::-1], axis=2)
    marked: NDArray[np.bool_] = np.arange(time.shape[2]) == kept[:, :, np.newaxis]
    return marked


def cost(
    coll: Collective,
    size_bytes: float,
    members: Sequence[int],
    tiers: Sequence[Tier],
    root: int | None = None,
) -> Cost:
    """Cost of one operation with the default algorithm; see `algorithms` for the formulas.

    Parameters
    ----------
    coll : Collective
        For SEND_RECV, `members` are the two ends.
    size_bytes : float
        Input bytes of one rank, not negative.
    members : sequence of int
        Scale-up domain of each member. They take the places of it by their order.
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
        If the members are in several domains and there is only one tier, or are more than a ring
        or full mesh has places.

    Examples
    --------
    Eight ranks in two domains of four reduce 8 MB at 100 and 10 GB/s:

    >>> from whatif.graph.columns import Collective
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
    coll: Collective, size_bytes: Float, spread: Spread, tiers: Sequence[Tier]
) -> Costs:
    """Cost of many operations of one type with the default algorithm; see `cost`.

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
        As `cost`.
    """
    if len(tiers) == 1 and (spread.domains > 1).any():
        raise NetworkError(
            f"a group spans {int(spread.domains.max())} scale-up domains, and the network has no "
            "tier between them",
            place="tiers",
        )
    shape = shape_of(tiers)
    rows = np.column_stack(
        [spread.members, spread.domains, spread.most, spread.fewest, spread.beside_root]
    )
    kinds, index = np.unique(rows, axis=0, return_inverse=True)
    costings = [_costing_of_spread(shape, coll, *kind) for kind in kinds.tolist()]
    plans = stack(costings, len(tiers)).take(index.reshape(-1))
    return costs_of(plans, size_bytes, speeds_of(tiers, chunks=1))[0]


@lru_cache(maxsize=4096)
def _costing_of_spread(
    shape: Shape, coll: Collective, members: int, domains: int, most: int, fewest: int, root: int
) -> Costing:
    """Cost a group of which only the counts are known that matter."""
    held = np.full(domains, fewest, dtype=np.int64)
    held[0] = most
    beside = 0 if root in (0, most) else min(domains - 1, 1)
    held[beside] = root or held[beside]
    missing = members - int(held.sum())
    for domain in range(2, domains):
        more = min(missing, most - fewest)
        held[domain] += more
        missing -= more
    columns = [np.arange(members) - np.repeat(np.cumsum(held) - held, held)]
    if len(shape) > 1:
        columns.append(np.repeat(np.arange(domains), held))
    if len(columns) != len(shape):
        raise NetworkError(f"{len(shape)} tiers need the places of the members", place="tiers")
    roomy = []
    for tier, column in zip(shape, columns, strict=True):
        needed = int(column.max()) + 1
        if needed > tier.size and tier.topology != "switch":
            raise NetworkError(
                f"{needed} ranks or domains do not fit a {tier.topology} of {tier.size}",
                place="tiers",
            )
        roomy.append(tier._replace(size=max(tier.size, needed)))
    coordinates = np.column_stack(columns)
    chosen: Algorithm = possible_of(tuple(roomy), coordinates, coll)[0]
    at = None if root == 0 else int(held[:beside].sum())
    return costing_of(tuple(roomy), coordinates, coll, chosen, at)
