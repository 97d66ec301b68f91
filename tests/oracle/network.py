"""Prices of transfers: the closed forms of one and two switch tiers, every transfer alone.

Per rank and direction a tier has a bandwidth, of which large messages reach a fraction, a cost
per byte that does not depend on the link, a latency per message, and a fixed cost once per
operation (of the outermost tier that it uses). The algorithms are the ring for the reducing and
gathering collectives, direct exchange for all-to-all, the pipelined ring for broadcast; with two
tiers they are hierarchical, the phases one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .vocabulary import Comm, CommKind


@dataclass(frozen=True)
class OracleTier:
    """A switch tier; `size` ranks (or domains of the tier below) hang on one switch."""

    size: int
    bandwidth_gb_s: float
    latency_ns: float = 0.0
    efficiency: float = 1.0
    endpoint_ns_per_byte: float = 0.0
    base_ns: float = 0.0

    @property
    def ns_per_byte(self) -> float:
        """Wire and endpoint cost of a byte."""
        return 1.0 / (self.bandwidth_gb_s * self.efficiency) + self.endpoint_ns_per_byte


@dataclass(frozen=True)
class OracleNetwork:
    """One or two switch tiers, priced with closed forms; ranks fill domains in order."""

    tiers: tuple[OracleTier, ...]

    def domain_of(self, rank: int) -> int:
        """Scale-up domain of a rank."""
        return rank // self.tiers[0].size

    def transfer_ns(self, comm: Comm, ranks: tuple[int, ...]) -> int:
        """Time from the moment a transfer may begin until it is done, alone on the network.

        Parameters
        ----------
        comm : Comm
            The operation; its size is the input of one rank.
        ranks : tuple of int
            Members of its group.

        Raises
        ------
        ValueError
            Where the group is no product of coordinate sets, which has no closed form.
        """
        if comm.kind == "send_recv":
            same = self.domain_of(comm.root) == self.domain_of(comm.peer)
            tier = self.tiers[0 if same else 1]
            return round(comm.size_bytes * tier.ns_per_byte + tier.latency_ns + tier.base_ns)
        local, domains = self._shape(ranks)
        bytes_in, bytes_out, messages_in, messages_out = _cost(
            comm.kind, comm.size_bytes, local, domains
        )
        outer = self.tiers[1 if domains > 1 else 0]
        spent_in = bytes_in * self.tiers[0].ns_per_byte
        spent_out = bytes_out * self.tiers[-1].ns_per_byte
        wait_in = messages_in * self.tiers[0].latency_ns
        wait_out = messages_out * self.tiers[-1].latency_ns
        if comm.kind == "all_to_all":
            total = max(spent_in, spent_out) + max(wait_in, wait_out)
        else:
            total = spent_in + spent_out + wait_in + wait_out
        return round(total + outer.base_ns)

    def tiers_of(self, comm: Comm, ranks: tuple[int, ...]) -> frozenset[int]:
        """Tiers that the members' bytes cross."""
        if comm.kind == "send_recv":
            return frozenset({0 if self.domain_of(comm.root) == self.domain_of(comm.peer) else 1})
        local, domains = self._shape(ranks)
        return frozenset(({0} if local > 1 else set()) | ({1} if domains > 1 else set()))

    def _shape(self, ranks: tuple[int, ...]) -> tuple[int, int]:
        """Members per domain, and domains."""
        if len(self.tiers) == 1 and self.domain_of(max(ranks)) > 0:
            raise ValueError(f"ranks {ranks} do not fit into one domain of {self.tiers[0].size}")
        places: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            places[self.domain_of(rank)].append(rank % self.tiers[0].size)
        shapes = {tuple(sorted(place)) for place in places.values()}
        if len(shapes) > 1:
            raise ValueError(f"group {ranks} is no product of domains and positions in them")
        return len(shapes.pop()), len(places)


def _cost(kind: CommKind, size: int, m: int, k: int) -> tuple[float, float, float, float]:
    """Bytes through the inner and outer port of a rank, and messages in sequence on each.

    `m` members in each of `k` domains. With m = 1 or k = 1 the terms of the other tier vanish,
    which leaves the forms of a single switch.
    """
    n = m * k
    inner, outer = float(m - 1), float(k - 1)
    if kind == "all_reduce":
        return 2 * inner / m * size, 2 * outer / k * size / m, 2 * inner, 2 * outer
    if kind == "reduce_scatter":
        return inner / m * size, outer / k * size / m, inner, outer
    if kind == "all_gather":
        return inner * k * size, outer * size, inner, outer
    if kind == "all_to_all":
        return inner / n * size, (n - m) / n * size, float(m > 1), float(k > 1)
    if kind == "broadcast":
        return size * float(m > 1), size * float(k > 1), inner, outer
    raise ValueError(f"no closed form for {kind}")
