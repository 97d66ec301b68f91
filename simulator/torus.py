"""Slices of a torus: which shape a job gets, which axes are closed, and how to give it another.

TPU chips are joined by ICI to a torus, of which a job gets a *slice*: a part in the form of a
box, with some axes closed (wrap-around) and some not. A slice is a scale-up domain, and slices are
joined by the data center network (DCN), which is scale-out. Here is how networks with rings are
cut and turned; what a collective costs on one is in `algorithms`, where ranks sit in `placement`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ..base.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .network import Network, Tier


class Slices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slices in which a torus is given to jobs.

    Attributes
    ----------
    shapes : list of str
        Chips along each axis of the slices that there are, such as ``2x4``, the smallest first.
        The last is the largest that a job can get.
    closed_multiple : int
        An axis is closed where its length is a multiple of this: optical switches close axes of
        whole cubes, and the cables of a pod those of full length.
    closed_together : bool
        Whether that counts only where it is so of all axes: a slice is then made of whole cubes.
    chosen : bool
        Whether the rings of the network have the shape of a slice. Else they are the largest, and
        a job gets the smallest that holds it.

    Raises
    ------
    NetworkError
        If there is no shape, or one is malformed.
    """

    shapes: list[str]
    closed_multiple: int
    closed_together: bool = False
    chosen: bool = False

    def __post_init__(self) -> None:
        if not self.shapes:
            raise NetworkError("there must be a shape", place="slices.shapes")
        if len({len(parse_shape(shape)) for shape in self.shapes}) > 1:
            raise NetworkError("must all have as many axes", place="slices.shapes")
        if self.closed_multiple < 1:
            raise NetworkError(
                f"must be at least 1, is {self.closed_multiple}", place="slices.closed_multiple"
            )

    def closed(self, lengths: Sequence[int]) -> list[bool]:
        """Tell for each axis of a slice whether it is closed."""
        whole = [length % self.closed_multiple == 0 for length in lengths]
        return [all(whole)] * len(whole) if self.closed_together else whole


def parse_shape(text: str) -> tuple[int, ...]:
    """Read the lengths of the axes of a torus, such as ``2x4``.

    Raises
    ------
    NetworkError
        If it is something else.
    """
    parts = text.split("x")
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 31 for part in parts):
        raise NetworkError(
            f"{text!r} is no shape of a torus: write the lengths of its axes, such as 2x4"
        )
    return tuple(int(part) for part in parts)


def axes(network: Network) -> tuple[int, ...]:
    """Tiers that are the axes of the torus inside a scale-up domain; none where there is none."""
    inside = network.tier_names[0]
    return tuple(
        index
        for index, (name, tier) in enumerate(zip(network.tier_names, network.tiers, strict=True))
        if name == inside and tier.topology == "ring"
    )


def shape(network: Network) -> str:
    """Write the lengths of the axes, the innermost first, such as ``2x4``."""
    return "x".join(str(network.tiers[axis].size) for axis in axes(network))


def described(network: Network) -> str:
    """Write the shape, and which axes are closed, for people."""
    rings = [network.tiers[axis] for axis in axes(network)]
    long = [ring for ring in rings if ring.size > 2]
    closed = [str(ring.size) for ring in long if ring.wrap]
    if len(closed) == len(long):
        how = "every axis closed" if closed else "no axis long enough to be closed"
    else:
        how = f"closed along {' and '.join(closed)} only" if closed else "no axis closed"
    return f"{shape(network)} ({how})"


def ranks_per_chip(network: Network) -> int:
    """Ranks at one place of the torus."""
    found = axes(network)
    return math.prod(tier.size for tier in network.tiers[: found[0]]) if found else 1


def reshaped(network: Network, lengths: Sequence[int]) -> Network:
    """Give the torus of a network other axes.

    Parameters
    ----------
    network : Network
        With a torus.
    lengths : sequence of int
        Of the axes, the innermost first. Where they are fewer than the rings of the network,
        the others are left out, as far as one stays; where they are more, the last ring serves
        for them, too.

    Returns
    -------
    Network
        Axes are closed as the slices of the network are, where it says how; else where the axis
        was that it comes from. Alternatives get the same shape.

    Raises
    ------
    NetworkError
        If the network has no torus, or no room for so many axes.
    """
    old = axes(network)
    if not old:
        raise NetworkError(
            f"network {network.name!r} has no torus inside a scale-up domain", place="tiers"
        )
    slices = network.slices
    wraps = None if slices is None else slices.closed(lengths)

    def turned(tiers: Sequence[Tier]) -> list[Tier]:
        rings = [tiers[old[min(axis, len(old) - 1)]] for axis in range(len(lengths))]
        cut = [
            replace(ring, size=length, wrap=ring.wrap if wraps is None else wraps[axis])
            for axis, (ring, length) in enumerate(zip(rings, lengths, strict=True))
        ]
        return [*tiers[: old[0]], *cut, *tiers[old[-1] + 1 :]]

    return replace(
        network,
        tiers=turned(network.tiers),
        alternatives=[replace(one, tiers=turned(one.tiers)) for one in network.alternatives],
        slices=None if slices is None else replace(slices, chosen=True),
    )


def slice_of(network: Network, num_chips: int) -> tuple[int, ...] | None:
    """Find the smallest slice that holds some chips; None where none does, or none is known."""
    if network.slices is None:
        return None
    offered = [parse_shape(text) for text in network.slices.shapes]
    fitting = [lengths for lengths in offered if math.prod(lengths) >= num_chips]
    return min(fitting, key=math.prod, default=None)


def sized_for(network: Network, num_ranks: int) -> Network:
    """Cut the slice of a job out of a network whose torus is that of a whole pod.

    Parameters
    ----------
    network : Network
        Any; one without slices, or whose slice is chosen, stays as it is.
    num_ranks : int
        Ranks of the job, traced or not.

    Returns
    -------
    Network
        With the smallest slice that holds all ranks, or else with the largest slices that there
        are; what was taken is in the assumptions.
    """
    slices = network.slices
    if slices is None or slices.chosen or not axes(network):
        return network
    per_chip = ranks_per_chip(network)
    chips = -(-num_ranks // per_chip)
    lengths = slice_of(network, chips)
    cut = reshaped(network, parse_shape(slices.shapes[-1]) if lengths is None else lengths)
    held = math.prod(cut.tiers[axis].size for axis in axes(cut))
    why = f"the smallest that holds {num_ranks} ranks"
    if lengths is None:
        why = f"the largest; {num_ranks} ranks need {-(-chips // held)} slices, joined by DCN"
    ranks = "" if per_chip == 1 else f", {per_chip} ranks a chip"
    note = (
        f"a slice of {described(cut)} chips{ranks}: {why}. Ranks take its places in their order, "
        f"the first axis fastest; name another as {network.name}:{shape(cut)}"
    )
    return replace(cut, assumptions=[*cut.assumptions, note])
