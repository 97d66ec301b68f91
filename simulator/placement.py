"""Where the ranks of a job sit: the scale-up domain of each, and its place in every tier.

A rank map that the user gives counts most, then the host names in the trace, then the rank
numbers. What the placement means for the price of a collective is in `algorithms`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..base.errors import GraphError, NetworkError
from .algorithms.layout import MAX_PLACES
from .network import TIER_NAMES
from .torus import axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .network import Network

PlacementKind = Literal["rank map", "host names", "contiguous"]


@dataclass(frozen=True)
class Placement:
    """The scale-up domain of every rank of a job (W ranks, traced or not).

    Attributes
    ----------
    kind : str
        What it was made from: ``rank map``, ``host names`` or ``contiguous``.
    domain : int64, shape (W,)
        Domain of each global rank, numbered from 0.
    size : int
        Ranks that a domain can hold.
    coordinates : int64, shape (W, T), optional
        Place of each rank in every tier, from the inside out, where the rank map gives it. By
        default ranks take the places of their domain by ascending number: see `coordinates_in`.
    """

    kind: PlacementKind
    domain: NDArray[np.int64]
    size: int
    coordinates: NDArray[np.int64] | None = None

    @property
    def num_domains(self) -> int:
        """Number of domains that hold a rank."""
        return len(np.unique(self.domain))

    @property
    def description(self) -> str:
        """One line that says what was assumed, for people."""
        held = np.bincount(np.unique(self.domain, return_inverse=True)[1])
        domains = "1 domain" if len(held) == 1 else f"{len(held)} domains"
        ranks = str(held.max()) if held.min() == held.max() else f"{held.min()} to {held.max()}"
        room = "" if held.min() == self.size else f" (room for {self.size})"
        return f"{self.kind}: {len(self.domain)} ranks in {domains} of {ranks}{room}"

    def domains_of(self, ranks: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Domain of each of some global ranks.

        Raises
        ------
        GraphError
            If the job has no such rank.
        """
        index = np.asarray(ranks, dtype=np.int64)
        outside = index[(index < 0) | (index >= len(self.domain))]
        if len(outside):
            raise GraphError(
                f"the job has ranks 0 to {len(self.domain) - 1} only", rank=int(outside[0])
            )
        return self.domain[index]

    def coordinates_in(self, network: Network) -> NDArray[np.int64]:
        """Place of every rank in every tier of a network, shape (W, T).

        Where the placement does not say it, the ranks of a domain take its places by ascending
        number, and the domains those of the tiers between them; the innermost tier is filled
        first.

        Raises
        ------
        NetworkError
            If the network has not as many places or tiers, or more than fit a number.
        """
        sizes = [tier.size for tier in network.tiers]
        if network.capacity * max(sizes) > MAX_PLACES:
            raise NetworkError(
                f"network {network.name!r} joins {network.capacity} ranks, more than can be "
                "numbered; give the tiers the sizes that they have",
                place="tiers",
            )
        if self.coordinates is not None:
            given = self.coordinates
            if given.shape[1] != len(sizes) or (given >= sizes).any():
                raise NetworkError(
                    f"the rank map does not fit the {len(sizes)} tiers of network {network.name!r}",
                    place="tiers",
                )
            return given
        _, domain = np.unique(self.domain, return_inverse=True)
        inside = network.tier_names.count(TIER_NAMES[0])
        index = _position_in(domain)
        for what, most, room in (
            ("ranks in a domain", index, network.domain_size),
            ("domains", domain, network.num_domains),
        ):
            if len(most) and most.max() >= room:
                raise NetworkError(
                    f"there are {most.max() + 1} {what}, and network {network.name!r} has room "
                    f"for {room}",
                    place="tiers",
                )
        columns = [*_digits(index, sizes[:inside]), *_digits(domain, sizes[inside:])]
        return np.column_stack(columns)

    def regrouped(self, size: int) -> Placement:
        """Place the same ranks in domains of another size.

        A domain that becomes f times as large takes f of the old domains whole, so a domain
        that was partly filled stays as full as it was. A smaller one takes a part of an old
        domain. Where the new size is neither, ranks fill the domains one after the other.

        Parameters
        ----------
        size : int
            Ranks that a domain can hold.
        """
        _, old = np.unique(self.domain, return_inverse=True)
        order = np.argsort(old, kind="stable")
        position = np.empty(len(old), dtype=np.int64)
        position[order] = np.arange(len(old))
        if size < self.size:
            part = _position_in(old) // size
            domain = np.unique(old * len(old) + part, return_inverse=True)[1]
        elif size % self.size == 0:
            domain = old // (size // self.size)
        else:
            domain = position // size
        return replace(self, domain=domain, size=size, coordinates=None)


def place(
    network: Network,
    ranks: Sequence[int] | NDArray[np.int64],
    hosts: Sequence[str],
    world_size: int,
    rank_map: Mapping[int, int | Sequence[int]] | None = None,
) -> Placement:
    """Place the ranks of a job in the scale-up domains of a network.

    Parameters
    ----------
    network : Network
        Says how many ranks a domain holds and how many domains there are.
    ranks : sequence of int, length R
        The traced ranks, as global numbers.
    hosts : sequence of str, length R
        Host of each traced rank, or an empty string.
    world_size : int
        Ranks of the job, traced or not.
    rank_map : mapping of int to (int or sequence of int), optional
        Domain of every rank of the job, or its coordinates: one for each tier, from the inside
        out.

    Returns
    -------
    Placement
        From the rank map if there is one. Else, where every traced rank has a host and the
        network has tiers between domains that are no torus (which spans hosts), the ranks of a
        host are a domain (split by ascending rank where they are more than a domain holds), and
        a rank that was not traced joins the ranks next to it by number. Else ranks fill the
        domains by ascending number.

    Raises
    ------
    NetworkError
        If the network is too small for the job, or the rank map does not fit either.
    """
    size, domains = network.domain_size, network.num_domains
    traced = np.asarray(ranks, dtype=np.int64)
    world = max(world_size, int(traced.max(initial=-1)) + 1)
    by_host = TIER_NAMES[1] in network.tier_names and not axes(network)
    if rank_map is not None:
        placement = _from_map(rank_map, world, network)
    elif by_host and len(hosts) > 0 and all(hosts):
        placement = Placement("host names", _from_hosts(traced, hosts, world, size), size)
    else:
        placement = Placement("contiguous", np.arange(world, dtype=np.int64) // size, size)
    held = np.bincount(np.unique(placement.domain, return_inverse=True)[1])
    if held.max(initial=0) > size:
        raise NetworkError(
            f"the {placement.kind} puts {held.max()} ranks in one domain, and a domain of network "
            f"{network.name!r} holds {size}",
            place="tiers[0].size",
        )
    if len(held) > domains:
        raise NetworkError(
            f"{placement.description}; network {network.name!r} joins at most {domains} of them",
            place="tiers[1].size" if len(network.tiers) > 1 else "tiers",
        )
    return placement


def _from_map(
    rank_map: Mapping[int, int | Sequence[int]], world: int, network: Network
) -> Placement:
    missing = next((rank for rank in range(world) if rank not in rank_map), None)
    if missing is not None:
        raise NetworkError("the rank map gives no domain", rank=missing)
    places = [rank_map[rank] for rank in range(world)]
    if all(isinstance(place, int) for place in places):
        domain = np.array(places, dtype=np.int64)
        negative = np.flatnonzero(domain < 0)
        if len(negative):
            raise NetworkError(
                f"the rank map gives the negative domain {domain[negative[0]]}",
                rank=int(negative[0]),
            )
        return Placement("rank map", domain, network.domain_size)
    sizes = [tier.size for tier in network.tiers]
    taken: dict[tuple[int, ...], int] = {}
    for rank, place in enumerate(places):
        at = () if isinstance(place, int) else tuple(place)
        if len(at) != len(sizes) or not all(0 <= c < n for c, n in zip(at, sizes, strict=True)):
            raise NetworkError(
                f"the rank map gives {place}, which is no place in tiers of "
                f"{' x '.join(map(str, sizes))}",
                rank=rank,
            )
        if taken.setdefault(at, rank) != rank:
            raise NetworkError(
                f"the rank map gives it the place {at} of rank {taken[at]}", rank=rank
            )
    coordinates = np.array(list(taken), dtype=np.int64).reshape(world, len(sizes))
    outside = np.array([name != TIER_NAMES[0] for name in network.tier_names])
    domain = np.zeros(world, dtype=np.int64)
    for tier in reversed(np.flatnonzero(outside)):
        domain = domain * sizes[tier] + coordinates[:, tier]
    return Placement("rank map", domain, network.domain_size, coordinates)


def _position_in(unit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number of each rank among those of its unit, by ascending rank."""
    order = np.argsort(unit, kind="stable")
    index = np.empty(len(unit), dtype=np.int64)
    index[order] = np.arange(len(unit)) - np.searchsorted(unit[order], unit[order])
    return index


def _digits(number: NDArray[np.int64], sizes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Write numbers with a digit for each size, the first the fastest."""
    digits = []
    for size in sizes:
        digits.append(number % size)
        number = number // size
    return digits


def _from_hosts(
    traced: NDArray[np.int64], hosts: Sequence[str], world: int, size: int
) -> NDArray[np.int64]:
    """Domains from host names, numbered by their first rank; `place` says the rule."""
    keys: dict[int, tuple[object, int]] = {}
    seen: dict[str, int] = {}
    held: dict[tuple[object, int], int] = {}
    beside: dict[int, tuple[object, int]] = {}
    for index in np.argsort(traced, kind="stable"):
        rank, host = int(traced[index]), hosts[index]
        key = (host, seen.get(host, 0) // size)
        seen[host] = seen.get(host, 0) + 1
        held[key] = held.get(key, 0) + 1
        keys[rank] = key
        beside.setdefault(rank // size, key)
    for rank in range(world):
        if rank not in keys:
            block = rank // size
            key = beside.get(block, (block, 0))
            # A full host cannot take more; what is left over shares a domain of its own.
            if held.get(key, 0) >= size:
                key = (block, 0)
            held[key] = held.get(key, 0) + 1
            keys[rank] = key
    number: dict[tuple[object, int], int] = {}
    return np.array(
        [number.setdefault(keys[rank], len(number)) for rank in range(world)], dtype=np.int64
    )
