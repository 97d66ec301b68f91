"""A calibrated network in the terms of ASTRA-sim: the values of network.yml and system.json.

They are derived from a fit under this package's own engine, whose collectives on a switch are the
rings and direct exchanges that ASTRA-sim's analytical backends also have; what those cannot
express is listed. Facts about the files are in the specification of the backends [1]_: a GB is
2^30 bytes, a message on a switch pays the latency twice, every message waits for the endpoint
delay (10 ns, and always 10 in groups smaller than the world), reductions cost time by the memory
bandwidth, and several chunks in flight at a time would each have the whole bandwidth.

References
----------
.. [1] ASTRA-sim 518bd51, analytical network backend 599a047.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import NetworkError
from .results import AstraConfig

if TYPE_CHECKING:
    from ..simulator.network import Network, Tier
    from ..simulator.placement import Placement

_GIB = float(1 << 30)
_ENDPOINT_DELAY_NS = 10
# Fitted transfer times contain the reductions; this makes them free (3 bytes per byte and pass).
_MEMORY_GB_S = 1_000_000
_TOPOLOGY = {"switch": "Switch", "ring": "Ring", "fully_connected": "FullyConnected"}


def astra_config(network: Network, placement: Placement) -> AstraConfig:
    """Express a network for ASTRA-sim.

    Parameters
    ----------
    network : Network
        Usually calibrated.
    placement : Placement
        Which of its places the job uses: ASTRA-sim simulates these only, and all of them.

    Returns
    -------
    AstraConfig

    Raises
    ------
    NetworkError
        If the ranks do not fill their places evenly, or sit in one place only.
    """
    coordinates = placement.coordinates_in(network)
    counts = [len(np.unique(column)) for column in coordinates.T]
    used = [index for index, count in enumerate(counts) if count > 1]
    if int(np.prod(counts)) != len(coordinates) or not used:
        raise NetworkError(
            f"ASTRA-sim knows full grids of at least two ranks only, and {len(coordinates)} ranks "
            f"sit in {' x '.join(map(str, counts))} places",
            place="tiers",
        )
    tiers = [network.tiers[index] for index in used]
    direct = ["direct"] * len(tiers)
    rings = ["direct" if tier.topology == "fully_connected" else "ring" for tier in tiers]
    return AstraConfig(
        network={
            "topology": [_TOPOLOGY[tier.topology] for tier in tiers],
            "npus_count": [counts[index] for index in used],
            "bandwidth": [_link_gib_s(tier) for tier in tiers],
            "latency": [_latency_ns(tier) for tier in tiers],
        },
        system={
            "scheduling-policy": "LIFO",
            "endpoint-delay": _ENDPOINT_DELAY_NS,
            "active-chunks-per-dimension": 1,
            "preferred-dataset-splits": 1,
            "all-reduce-implementation": rings,
            "all-gather-implementation": rings,
            "reduce-scatter-implementation": rings,
            "all-to-all-implementation": direct,
            "collective-optimization": "localBWAware",
            "local-mem-bw": _MEMORY_GB_S,
        },
        notes=_notes(network, tiers, max(counts)),
    )


def _link_gib_s(tier: Tier) -> float:
    """Bandwidth of a link as transfers see it, the ends included."""
    gb_s = tier.effective_gb_s / tier.ranks_per_nic
    if tier.topology == "fully_connected":
        gb_s /= tier.size - 1
    return round(1 / (1 / gb_s + tier.endpoint_ns_per_byte) * 1e9 / _GIB, 6)


def _latency_ns(tier: Tier) -> float:
    alone = max(tier.latency_ns - _ENDPOINT_DELAY_NS, 0.0)
    return round(alone / 2 if tier.topology == "switch" else alone, 3)


def _notes(network: Network, tiers: list[Tier], most: int) -> list[str]:
    notes = [
        f"network {network.name}, fitted with the engine of whatif and not with ASTRA-sim",
        (
            "bandwidth is in GiB/s and includes efficiency and endpoint cost; latency is per link, "
            "of which a message on a switch passes two"
        ),
    ]
    bases = [tier.base_ns for tier in tiers if tier.base_ns]
    if bases:
        listed = ", ".join(f"{base:.0f} ns" for base in bases)
        notes.append(f"left out, because it has no place: the base of a collective ({listed})")
    if any(tier.protocols for tier in tiers):
        notes.append("left out, because they have no place: protocols")
    if any(tier.oversubscription > 1 for tier in tiers):
        notes.append("left out, because links are not shared: oversubscription")
    if most > 2:
        notes.append(
            "all-to-all is direct, which in the congestion-unaware backend sends to all ranks at "
            "full bandwidth at once: too fast by the number of partners"
        )
    if len(tiers) > 1:
        notes.append("a message that crosses several dimensions pays the innermost only")
    return notes
