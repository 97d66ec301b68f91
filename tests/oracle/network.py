"""Prices of transfers: the closed forms of one and two switch tiers, every transfer alone.

`stages` says the same of transfers that may meet: what each waits for, and then moves through
which ports.

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

from .fluid import Stage

if TYPE_CHECKING:
    from .fluid import Port
    from .vocabulary import Comm, CommKind

    #: Tier, messages one after the other, bytes of the busiest port, bytes through each.
    _Part = tuple[int, float, float, dict[Port, float]]


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
        if comm.parts:
            return round(sum(s.wait_ns + s.move_ns for s in self.stages(comm, ranks, ranks)))
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

    def gb_s(self, port: Port) -> float:
        """Bytes per nanosecond that a port carries."""
        tier = self.tiers[port[1]]
        return tier.bandwidth_gb_s * tier.efficiency

    def stages(self, comm: Comm, ranks: tuple[int, ...], movers: tuple[int, ...]) -> list[Stage]:
        """What a transfer does on its way: `transfer_ns` in parts.

        Parameters
        ----------
        comm : Comm
            The operation.
        ranks : tuple of int
            Members of its group.
        movers : tuple of int
            The members whose bytes these are: all, or one of an operation in which each moves
            its own.
        """
        if comm.parts:
            return [self._uneven(comm, ranks)]
        if comm.kind == "send_recv":
            tier = 0 if self.domain_of(comm.root) == self.domain_of(comm.peer) else 1
            moved = {
                (comm.root, tier, "out"): comm.size_bytes,
                (comm.peer, tier, "in"): comm.size_bytes,
            }
            parts = [
                (
                    tier,
                    1.0,
                    float(comm.size_bytes),
                    {p: n for p, n in moved.items() if p[0] in movers},
                )
            ]
        elif comm.kind == "broadcast":
            parts = self._broadcast(comm, ranks, movers[0])
        else:
            parts = self._symmetric(comm, ranks)
        base_ns = self.tiers[max(self.tiers_of(comm, ranks))].base_ns
        out = []
        for tier, messages, amount, moved in parts:
            own = self.tiers[tier]
            wait_ns = messages * own.latency_ns + amount * own.endpoint_ns_per_byte
            move_ns = amount / (own.bandwidth_gb_s * own.efficiency)
            out.append(Stage(wait_ns + (0 if out else base_ns), move_ns, moved))
        if comm.kind == "all_to_all" and len(out) > 1:
            # Direct messages use both tiers at once.
            waits = [stage.wait_ns - (0 if i else base_ns) for i, stage in enumerate(out)]
            moves = max(stage.move_ns for stage in out)
            out = [Stage(max(waits) + base_ns, moves, out[0].bytes_of | out[1].bytes_of)]
        return out

    def _uneven(self, comm: Comm, ranks: tuple[int, ...]) -> Stage:
        """All messages at once: the busiest port of all, after the slowest tier's latency."""
        moved: dict[Port, float] = defaultdict(float)
        for source, row in zip(ranks, comm.parts, strict=True):
            for target, part in zip(ranks, row, strict=True):
                if source != target and part:
                    tier = 0 if self.domain_of(source) == self.domain_of(target) else 1
                    moved[source, tier, "out"] += part
                    moved[target, tier, "in"] += part
        used = {tier for _, tier, _ in moved}
        busiest = {
            tier: max(amount for (_, t, _), amount in moved.items() if t == tier) for tier in used
        }
        wait = max(self.tiers[tier].latency_ns for tier in used) + self.tiers[max(used)].base_ns
        wait += sum(busiest[tier] * self.tiers[tier].endpoint_ns_per_byte for tier in used)
        return Stage(wait, max(n / self.gb_s(port) for port, n in moved.items()), dict(moved))

    def _symmetric(self, comm: Comm, ranks: tuple[int, ...]) -> list[_Part]:
        local, domains = self._shape(ranks)
        bytes_in, bytes_out, messages_in, messages_out = _cost(
            comm.kind, comm.size_bytes, local, domains
        )

        def part(tier: int, messages: float, amount: float) -> _Part:
            ports = [(r, tier, way) for r in ranks for way in ("in", "out")]
            return tier, messages, amount, dict.fromkeys(ports, amount)

        inner, outer = part(0, messages_in, bytes_in), part(1, messages_out, bytes_out)
        half = part(0, messages_in / 2, bytes_in / 2)
        if local == 1:
            return [outer]
        if domains == 1:
            return [inner]
        if comm.kind == "all_reduce":  # scatter inside, all of it between, gather inside
            return [half, outer, half]
        return [outer, inner] if comm.kind == "all_gather" else [inner, outer]

    def _broadcast(self, comm: Comm, ranks: tuple[int, ...], mover: int) -> list[_Part]:
        """The root to one member of each domain, these to the others; each passes it on.

        What leaves the root is counted, in equal parts, with those that it is for.
        """
        size, place = float(comm.size_bytes), comm.root % self.tiers[0].size
        local, domains = self._shape(ranks)
        leaders = [r for r in ranks if r % self.tiers[0].size == place]
        chains = [(1, leaders)] if domains > 1 else []
        for leader in leaders if local > 1 else ():
            home = self.domain_of(leader)
            chains.append((0, [r for r in ranks if self.domain_of(r) == home]))
        parts: dict[int, dict[Port, float]] = {}
        for tier, members in chains:
            first = next(
                i for i, r in enumerate(members) if r in leaders and (tier == 0 or r == comm.root)
            )
            chain = members[first:] + members[:first]
            moved = parts.setdefault(tier, {})
            if mover == comm.root:
                continue
            if mover in chain[1:]:
                moved[mover, tier, "in"] = size
            if mover in chain[:-1]:
                moved[mover, tier, "out"] = size
            if comm.root in chain:
                moved[comm.root, tier, "out"] = size / (len(ranks) - 1)
        chained = {0: local - 1.0, 1: domains - 1.0}
        return [(tier, chained[tier], size, moved) for tier, moved in parts.items()]

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
