"""The numbers of a network that a fit may move, what is known of them beforehand, and back.

A fit moves effective bandwidth, latency, base and endpoint cost of every tier, and where the data
ask for it how much slower than the others one type of collective is. Here they are laid out as
values, with a scale for each: how far it may plausibly be from where it starts. How they are moved
is in `fit`.

What one bandwidth cannot tell
------------------------------
On a link of one speed the time of a byte on the wire and its cost at the ends grow together. How
far the efficiency of the wire and how far the endpoint cost may plausibly be off decides which of
them moves; the other is held. On devices the wire is taken to be the cause. Where a processor
moves the bytes (CPU jobs over TCP) either may be:

- TCP/IP leaves 94 % of Ethernet to the data with frames of 1500 bytes, 99 % with 9000 (1448 of
  1538 and 8948 of 9038 bytes on the wire), and around 91 % in a tunnel. So the efficiency of a
  link whose nominal speed is known is known within about `ETHERNET_SPREAD`.
- What a processor needs for a byte is bounded by what it needs without any link, which is what the
  preset ``loopback`` was measured with: that is the scale of the endpoint cost.

So slow links are fitted by efficiency, and fast ones, where the processor counts, by endpoint
cost.

Types of collective
-------------------
The link is the same for all types, and no type is faster than it. What one type needs beyond the
others is on devices a share of the bandwidth that its kernels do not reach, and in CPU jobs what
the processor does with each byte, such as adding up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..simulator.network import Protocol, load_network

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ..graph.columns import Collective
    from ..simulator.network import Network, Tier

    Float = NDArray[np.float64]
    Int = NDArray[np.int64]

#: Share of an Ethernet link that TCP/IP leaves to the data, and how far (as a logarithm) it may be
#: off: see the module.
ETHERNET_EFFICIENCY = 0.95
ETHERNET_SPREAD = 0.05

#: How far, as a logarithm, an efficiency or a latency may be off that is only taken from a preset.
PRESET_SPREAD = 1.0

#: Endpoint cost that a device may plausibly have, as a share of the time of a byte on its link.
DEVICE_ENDPOINT = 0.1

#: Preset of the processes of a host, which have no links and so no nominal speed.
LOOPBACK = "loopback"

#: Presets of links whose nominal speed is not known, or that are none.
_UNKNOWN_SPEED = (LOOPBACK, "host_memory", "tpu")

#: The values of a tier, in order, and the value of a type of collective: its bandwidth over that
#: of the others, or its endpoint cost beyond that of the others.
WIRE, LATENCY, BASE, ENDPOINT = range(4)
OWN_WIRE, OWN_ENDPOINT = 4, 5

#: Values that are off by amounts, and those of them that are not negative; the others are off by
#: logarithms.
AMOUNTS, COSTS = (BASE, ENDPOINT, OWN_ENDPOINT), (ENDPOINT, OWN_ENDPOINT)


@dataclass(frozen=True)
class Prior:
    """What is known of the links before their transfers are looked at.

    Attributes
    ----------
    fit_nominal : bool
        Whether they have no known nominal speed, as in loopback: what transfers reach is then
        taken for it.
    wire : float
        How far, as a logarithm, the effective bandwidth may be off.
    endpoint_ns_per_byte : float or None
        How far the endpoint cost may be off; by default `DEVICE_ENDPOINT`.
    """

    fit_nominal: bool
    wire: float = PRESET_SPREAD
    endpoint_ns_per_byte: float | None = None

    @classmethod
    def of(cls, network: Network, *, by_processor: bool) -> Prior:
        """Say what is known of the links of a network that a job used.

        Parameters
        ----------
        network : Network
            The network before it is fitted.
        by_processor : bool
            Whether the processors of hosts move the bytes, over sockets.
        """
        unknown = network.name in _UNKNOWN_SPEED
        if not by_processor:
            return cls(fit_nominal=unknown)
        processor_ns = 1 / load_network(LOOPBACK).tiers[0].effective_gb_s
        if unknown:
            return cls(fit_nominal=True, endpoint_ns_per_byte=processor_ns)
        return cls(fit_nominal=False, wire=ETHERNET_SPREAD, endpoint_ns_per_byte=processor_ns)


@dataclass(frozen=True)
class Parameters:
    """The values of a network (G groups of tiers that are alike, F types with their own).

    Attributes
    ----------
    network : Network
        Where the values start, and everything that no fit moves.
    prior : Prior
        What is known of them.
    types : tuple of Collective, length F
        Types of collective that have a value of their own.
    own : int
        Which: OWN_WIRE or OWN_ENDPOINT.
    group : tuple of int
        Group of every tier. The dimensions of a torus that are alike are moved together.
    start, scale : float64, shape (G * 4 + F,)
        Where every value starts, and how far it may plausibly be off. Bandwidths (effective, in
        GB/s), latencies and factors are off by logarithms, base and endpoint cost by amounts.
    """

    network: Network
    prior: Prior
    types: tuple[Collective, ...]
    own: int
    group: tuple[int, ...]
    start: Float
    scale: Float

    @classmethod
    def of(
        cls,
        network: Network,
        prior: Prior,
        types: Sequence[Collective] = (),
        own: int | None = None,
    ) -> Parameters:
        """Lay out the values of a network; by default types differ in what is likely."""
        group = _groups(network.tiers)
        rows, scales = [], []
        for index in range(max(group) + 1):
            tier = network.tiers[group.index(index)]
            endpoint = prior.endpoint_ns_per_byte
            if endpoint is None:
                endpoint = DEVICE_ENDPOINT / tier.bandwidth_gb_s
            latency = max(tier.latency_ns, 1.0)  # a logarithm needs some latency
            rows.append([tier.effective_gb_s, latency, tier.base_ns, tier.endpoint_ns_per_byte])
            base = max(abs(tier.base_ns), latency)
            scales.append([prior.wire, PRESET_SPREAD, base, endpoint])
        processor_ns = prior.endpoint_ns_per_byte
        if own is None:
            own = OWN_WIRE if processor_ns is None else OWN_ENDPOINT
        usual, spread = (1.0, PRESET_SPREAD) if own == OWN_WIRE else (0.0, processor_ns)
        return cls(
            network=network,
            prior=prior,
            types=tuple(types),
            own=own,
            group=group,
            start=np.array([*np.ravel(rows), *np.full(len(types), usual)]),
            scale=np.array([*np.ravel(scales), *np.full(len(types), spread)]),
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def field(self) -> Int:
        """WIRE, LATENCY, BASE or ENDPOINT of every value of a tier; `own` for those of types."""
        tiers = max(self.group) + 1
        return np.array([*np.tile(np.arange(4), tiers), *np.full(len(self.types), self.own)])

    @property
    def nominal(self) -> Float:
        """Most that a value can be; infinity where nothing else bounds it."""
        most = np.full(len(self), np.inf)
        if not self.prior.fit_nominal:
            for tier, group in zip(self.network.tiers, self.group, strict=True):
                most[group * 4 + WIRE] = tier.bandwidth_gb_s
        return most

    def moved(self, start: Float, x: Float) -> Float:
        """Values that are x scales away from others."""
        amounts = np.isin(self.field, AMOUNTS)
        far = start + self.scale * x
        return np.where(amounts, far, start * np.exp(np.where(amounts, 0.0, self.scale * x)))

    def away(self, start: Float, values: Float) -> Float:
        """How many scales values are away from others: the inverse of `moved`."""
        amounts = np.isin(self.field, AMOUNTS)
        ratio = np.where(amounts, 1.0, values / np.where(amounts, 1.0, start))
        far: Float = np.where(amounts, values - start, np.log(ratio)) / self.scale
        return far

    def tier_values(self, values: Float, tier: int) -> Float:
        """Bandwidth, latency, base and endpoint cost of a tier."""
        return values[self.group[tier] * 4 :][:4]

    def own_values(self, values: Float, tier: int) -> dict[Collective, float]:
        """Value on a tier of the types that have their own.

        None is faster than nominal, though the bandwidth of all of them may be during a fit.
        """
        mine = values[len(values) - len(self.types) :]
        if self.own == OWN_WIRE:
            wire = self.group[tier] * 4 + WIRE
            mine = np.minimum(mine, max(self.nominal[wire] / values[wire], 1.0))
        return dict(zip(self.types, mine.tolist(), strict=True))

    def network_of(self, values: Float) -> Network:
        """Give the network that has some values, above its nominal bandwidth too."""
        change = _reaching if self.own == OWN_WIRE else _costing
        tiers = []
        for index, old in enumerate(self.network.tiers):
            own = self.own_values(values, index)
            # Efficiencies are at most 1, so the fastest type of collective sets that of the tier.
            fastest = max([1.0, *own.values()]) if self.own == OWN_WIRE else 1.0
            tier = _tier(old, self.tier_values(values, index), fastest)
            if own:
                usual = [_reaching(one, 1 / fastest) for one in old.protocols or [_USUAL]]
                made = _with_own(usual, own, change)
                tier = msgspec.structs.replace(tier, protocols=made)
            tiers.append(tier)
        return msgspec.structs.replace(self.network, tiers=tiers, overlap=None)


def _groups(tiers: Sequence[Tier]) -> tuple[int, ...]:
    """Number the tiers; rings that differ in nothing but their size have the same number."""
    groups: list[int] = []
    seen: dict[bytes, int] = {}
    for index, tier in enumerate(tiers):
        alike = msgspec.structs.replace(tier, size=1, source="")
        key = msgspec.msgpack.encode((alike, index if tier.topology != "ring" else -1))
        groups.append(seen.setdefault(key, len(seen)))
    return tuple(groups)


def _tier(tier: Tier, values: Float, fastest: float) -> Tier:
    """Move a tier to some values; its wire is as fast as the fastest type of collective."""
    wire, latency, base, endpoint = values.tolist()
    reached = wire * fastest
    changes: dict[str, object] = {}
    if reached != tier.effective_gb_s:
        nominal = max(reached, tier.bandwidth_gb_s)
        changes |= {"bandwidth_gb_s": nominal, "efficiency": min(reached / nominal, 1.0)}
        if tier.in_network_efficiency is not None:
            moved = tier.in_network_efficiency * wire / tier.effective_gb_s
            changes["in_network_efficiency"] = min(moved, 1.0)
    if latency != max(tier.latency_ns, 1.0):
        changes["latency_ns"] = latency
        if tier.in_network_latency_ns is not None:
            moved = tier.in_network_latency_ns * latency / max(tier.latency_ns, 1.0)
            changes["in_network_latency_ns"] = moved
    return msgspec.structs.replace(
        tier, base_ns=base, endpoint_ns_per_byte=max(endpoint, 0.0), **changes
    )


#: What collectives use where the network names no protocols.
_USUAL = Protocol(name="usual")


def _reaching(protocol: Protocol, factor: float) -> Protocol:
    efficiency = min(protocol.efficiency * factor, 1.0)
    return msgspec.structs.replace(protocol, efficiency=efficiency)


def _costing(protocol: Protocol, cost: float) -> Protocol:
    more = protocol.endpoint_ns_per_byte + max(cost, 0.0)
    return msgspec.structs.replace(protocol, endpoint_ns_per_byte=more)


def _with_own(
    protocols: Sequence[Protocol],
    own: dict[Collective, float],
    change: Callable[[Protocol, float], Protocol],
) -> list[Protocol]:
    """Give some types of collective protocols of their own, changed by their values."""
    labels = {coll.label for coll in own}
    made = []
    for one in protocols:
        others = [label for label in one.collectives if label not in labels]
        if others or not one.collectives:
            made.append(msgspec.structs.replace(one, collectives=others))
    for coll, value in own.items():
        theirs = [one for one in protocols if coll.label in one.collectives]
        for one in theirs or [one for one in protocols if not one.collectives]:
            name = coll.label if one.name == _USUAL.name else f"{one.name} {coll.label}"
            changed = change(one, value)
            made.append(msgspec.structs.replace(changed, name=name, collectives=[coll.label]))
    return made


def capped(network: Network, nominal: Network) -> Network:
    """Take what is above the nominal bandwidth off a network; its sizes and the rest stay."""
    tiers = []
    for tier, limit in zip(network.tiers, nominal.tiers, strict=True):
        efficiency = min(tier.effective_gb_s / limit.bandwidth_gb_s, 1.0)
        tiers.append(
            msgspec.structs.replace(
                tier, bandwidth_gb_s=limit.bandwidth_gb_s, efficiency=efficiency
            )
        )
    return msgspec.structs.replace(network, tiers=tiers)


def without_nominal(network: Network) -> Network:
    """Take what transfers reach for the nominal bandwidth."""
    tiers = [
        msgspec.structs.replace(tier, bandwidth_gb_s=tier.effective_gb_s, efficiency=1.0)
        for tier in network.tiers
    ]
    return msgspec.structs.replace(network, tiers=tiers)
