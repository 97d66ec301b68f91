"""Ports, and the transfers that share them: what pricing hands to the engine.

A *port* is what transfers in flight at the same time share: one direction of the attachment of a
rank to a tier (or of a NIC that several ranks have in common), a directed link of a ring or of a
full mesh, the uplink of a domain where a tier is oversubscribed. A *transfer* is a flow of bytes
that starts at one moment; it goes through phases, each with a part that nothing slows down
(latency, base, endpoint) and a part that its ports carry. How much of a port a transfer gets when
others want it too is the engine's matter; where the numbers come from is in `pricing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Ports:
    """The ports that any transfer uses (Q of them).

    Attributes
    ----------
    capacity_gb_s : float64, shape (Q,)
        Bytes per nanosecond that large messages reach through it.
    tier : int64, shape (Q,)
        Index of its tier in `Prices.tiers`.
    names : tuple of str, length Q
        What it is, for people. A port that stands for others says so.
    """

    capacity_gb_s: NDArray[np.float64]
    tier: NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.capacity_gb_s)


@dataclass(frozen=True)
class PortSets:
    """The sets of ports that phases use at a time (G sets of L ports in all); set 0 is empty.

    Attributes
    ----------
    ptr : int64, shape (G + 1,)
        Ports of set g are ``port[ptr[g]:ptr[g + 1]]``, ascending.
    port : int64, shape (L,)
        Index into `Ports`.
    load_gb_s : float64, shape (L,)
        Bytes per nanosecond that a transfer at its full rate puts through that port: above 0 and
        at most the capacity of the port.
    """

    ptr: NDArray[np.int64]
    port: NDArray[np.int64]
    load_gb_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ptr) - 1


@dataclass(frozen=True)
class Transfers:
    """The flows of all instances (X transfers with P phases in all; M members).

    One for each instance in which all members wait for each other, and for each pair of a
    rendezvous send and its receive; one for each member of the other instances.

    Attributes
    ----------
    ptr : int64, shape (X + 1,)
        Phases of transfer x are ``ptr[x]:ptr[x + 1]``, one after the other.
    phase_fixed_ns : float64, shape (P,)
        First part of the phase: takes this long whatever else is in flight.
    phase_work_ns : float64, shape (P,)
        Second part: how long it takes at full rate; 0 where there is none.
    phase_set : int64, shape (P,)
        Index of the `PortSets` that the second part uses.
    of_member : int64, shape (M,)
        Transfer of every member, aligned with `Instances.node`.
    """

    ptr: NDArray[np.int64]
    phase_fixed_ns: NDArray[np.float64]
    phase_work_ns: NDArray[np.float64]
    phase_set: NDArray[np.int64]
    of_member: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @property
    def alone_ns(self) -> NDArray[np.float64]:
        """How long each transfer takes alone on the network, shape (X,)."""
        alone = np.zeros(len(self))
        transfer = np.repeat(np.arange(len(self)), np.diff(self.ptr))
        np.add.at(alone, transfer, self.phase_fixed_ns + self.phase_work_ns)
        return alone


def no_ports() -> tuple[Ports, PortSets]:
    """Give a table without ports and the one set of none."""
    nothing = np.zeros(0)
    ports = Ports(nothing, np.zeros(0, dtype=np.int64), ())
    return ports, PortSets(np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64), nothing)


def fixed_transfers(member_ns: NDArray[np.float64]) -> Transfers:
    """Transfers that no other slows down: one for each member, of that length.

    Parameters
    ----------
    member_ns : float64, shape (M,)
        Transfer time of every member.
    """
    count = len(member_ns)
    return Transfers(
        ptr=np.arange(count + 1, dtype=np.int64),
        phase_fixed_ns=np.array(member_ns, dtype=np.float64),
        phase_work_ns=np.zeros(count),
        phase_set=np.zeros(count, dtype=np.int64),
        of_member=np.arange(count, dtype=np.int64),
    )


def merge_alike(ports: Ports, sets: PortSets) -> tuple[Ports, PortSets]:
    """Let one port stand for all that are loaded alike.

    Ports of equal capacity that the same sets load equally are always shared by the same
    transfers in the same proportion, so one of them says all that the engine must know. In a
    job whose groups are regular few are left.

    Returns
    -------
    Ports, PortSets
        The same sets, by index, over fewer ports.
    """
    owner = np.repeat(np.arange(len(sets)), np.diff(sets.ptr))
    order = np.lexsort((owner, sets.port))
    first = np.searchsorted(sets.port[order], np.arange(len(ports) + 1))
    column = np.stack([owner[order].astype(np.float64), sets.load_gb_s[order]], axis=1)
    seen: dict[tuple[float, bytes], int] = {}
    kept: list[int] = []
    alike: list[int] = []
    stands_for = np.full(len(ports), -1, dtype=np.int64)
    for port, capacity in enumerate(ports.capacity_gb_s.tolist()):
        key = (capacity, column[first[port] : first[port + 1]].tobytes())
        index = seen.setdefault(key, len(kept))
        if index == len(kept):
            kept.append(port)
            alike.append(0)
            stands_for[port] = index
        else:
            alike[index] += 1
    chosen = stands_for[sets.port]
    stays = chosen >= 0
    names = tuple(
        ports.names[port] + (f" (and {others} alike)" if others else "")
        for port, others in zip(kept, alike, strict=True)
    )
    ptr = np.concatenate([[0], np.cumsum(np.bincount(owner[stays], minlength=len(sets)))])
    return (
        Ports(ports.capacity_gb_s[kept], ports.tier[kept], names),
        PortSets(ptr.astype(np.int64), chosen[stays], sets.load_gb_s[stays]),
    )
