"""Rows of benchmark tables priced as the simulator does, with the slopes that a fit follows.

The formulas are those of `simulator.algorithms` and the sums those of `simulator.collectives`;
here each row is laid out on the tiers once for each algorithm that it may use, and can then be
priced again and again at other speeds. Since every part of a price is proportional to a latency
or to one over a bandwidth, the parts are the slopes. Which speeds explain the measured times is
the matter of `table_fit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.errors import NetworkError
from ..graph.columns import Collective
from ..simulator.algorithms.layout import shape_of
from ..simulator.algorithms.plans import costing_of, possible_of
from ..simulator.choice import Plans, cheapest
from ..simulator.collectives import Speeds, costs_of, stack
from ..simulator.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..simulator.algorithms.names import Algorithm
    from ..simulator.algorithms.plans import Costing
    from ..simulator.network import Network
    from .tables import TableRow

    Float = NDArray[np.float64]
    Int = NDArray[np.int64]

#: Element types that NVLink SHARP adds up; NVIDIA/nccl 5067397c, ncclNvlsSupported in
#: src/include/device.h. Rows of unnamed elements are taken to be of these.
_REDUCED_IN_SWITCH = frozenset(
    {"", "int32", "uint32", "int64", "uint64", "half", "float16", "bfloat16"}
    | {"float", "float32", "double", "float64"}
)


class Knobs(NamedTuple):
    """Speeds of the tiers (F lists of protocols, P protocols at most, T tiers).

    Attributes
    ----------
    base_ns, latency_ns, gb_s : float64, shape (F, P, T)
        Base, latency per message and effective bandwidth of every protocol; a list that has fewer
        protocols repeats its last.
    in_switch_ns, in_switch_gb_s : float64, shape (T,)
        Latency and effective bandwidth where a switch reduces.
    own_share : float
        As in `Network`.
    """

    base_ns: Float
    latency_ns: Float
    gb_s: Float
    in_switch_ns: Float
    in_switch_gb_s: Float
    own_share: float


@dataclass(frozen=True)
class Prices:
    """What rows cost (R rows), and how that changes when a knob is turned.

    Attributes
    ----------
    time_ns : float64, shape (R,)
        Transfer time with the cheapest algorithm and protocol.
    protocol : int64, shape (R,)
        The protocol that is cheapest.
    latency_ns, bandwidth_ns : float64, shape (R, T)
        What of the time is the latency, and the wire, of each tier; apart from
        `in_switch_latency_ns` and `in_switch_bandwidth_ns`.
    has_base : bool, shape (R, T)
        Whose tier's base is in the time.
    per_share_ns : float64, shape (R,)
        How much the time grows with `own_share`.
    """

    time_ns: Float
    protocol: Int
    latency_ns: Float
    bandwidth_ns: Float
    in_switch_latency_ns: Float
    in_switch_bandwidth_ns: Float
    has_base: NDArray[np.bool_]
    per_share_ns: Float


class PricedRows:
    """Benchmark rows on the tiers of a network, to be priced at any speed (R rows).

    A row is priced once for each algorithm that it may use: these are its entries.

    Parameters
    ----------
    rows : sequence of TableRow
        Of two or more ranks.
    network : Network
        Its shape, algorithms and chunks count, its speeds do not.
    hosts_per_domain : int
        Hosts that share a scale-up domain.

    Attributes
    ----------
    measured_ns : float64, shape (R,)
        Time of every row.
    tiers : bool, shape (R, T)
        Tiers that a row uses with any of its algorithms.
    outermost : int64, shape (R,)
        The outermost of them.
    may_reduce : bool, shape (R, T)
        Whether a row may be reduced in the switch of a tier.

    Raises
    ------
    NetworkError
        If the ranks of a row do not fit the tiers, or cannot use the algorithms of the network.
    """

    def __init__(self, rows: Sequence[TableRow], network: Network, hosts_per_domain: int) -> None:
        count = len(network.tiers)
        self.rows = rows
        self.measured_ns = np.array([row.time_ns for row in rows])
        self.endpoint_ns_per_byte = np.array([t.endpoint_ns_per_byte for t in network.tiers])
        self.chunks = network.pipeline_chunks
        costings: list[Costing] = []
        known: dict[tuple[object, ...], list[tuple[Algorithm, int]]] = {}
        owner: list[int] = []
        index: list[int] = []
        names: list[Algorithm] = []
        for number, row in enumerate(rows):
            key = (row.collective, row.ranks, row.nodes, row.element in _REDUCED_IN_SWITCH)
            if key not in known:
                found = _algorithms(row, network, hosts_per_domain)
                known[key] = [(name, len(costings) + i) for i, (name, _) in enumerate(found)]
                costings += [one for _, one in found]
            for name, costing in known[key]:
                owner.append(number)
                index.append(costing)
                names.append(name)
        self._owner = np.array(owner, dtype=np.int64)
        self._names = names
        self._plans = stack(costings, count).take(np.array(index, dtype=np.int64))
        self._size = np.array([row.size_bytes for row in rows], dtype=np.float64)[self._owner]
        self._in_switch: NDArray[np.bool_] = self._plans.in_network.max(axis=1) > 0
        self.tiers = np.zeros((len(rows), count), dtype=np.bool_)
        np.logical_or.at(self.tiers, self._owner, self._plans.messages.max(axis=1) > 0)
        self.outermost = count - 1 - np.argmax(self.tiers[:, ::-1], axis=1)
        self.may_reduce = np.zeros((len(rows), count), dtype=np.bool_)
        np.logical_or.at(self.may_reduce, self._owner, self._in_switch)

    def __len__(self) -> int:
        return len(self.rows)

    def price(self, knobs: Knobs, family: Int) -> Prices:
        """Price all rows.

        Parameters
        ----------
        knobs : Knobs
            Speeds of the tiers.
        family : int64, shape (R,)
            Which list of protocols each row uses.
        """
        of_entry = family[self._owner]
        lists, protocols, count = knobs.latency_ns.shape
        entries = len(self._owner)
        time = np.full((entries, protocols), np.inf)
        latency, bandwidth = np.zeros((2, entries, protocols, count))
        kept = np.zeros((entries, protocols))
        for f in range(lists):
            here = np.flatnonzero(of_entry == f)
            mine = self._plans.take(here)
            for p in range(protocols):
                if p and all((one[f, p] == one[f, p - 1]).all() for one in knobs[:3]):
                    continue  # one that repeats the last is no cheaper
                costs, phases = costs_of(mine, self._size[here], self._speeds(knobs, f, p))
                time[here, p] = (
                    costs.base_ns
                    + costs.endpoint_ns
                    + costs.latency_ns.sum(axis=1)
                    + costs.bandwidth_ns.sum(axis=1)
                )
                latency[here, p], bandwidth[here, p] = costs.latency_ns, costs.bandwidth_ns
                part = mine.kept.max(axis=2)
                kept[here, p] = (phases.work_ns * part / (1 + knobs.own_share * part)).sum(axis=1)
        best = np.argmin(time, axis=1)
        each = np.arange(entries)
        cheapest = time[each, best]
        # Of the entries of a row, which stand next to each other, the cheapest.
        order = np.lexsort((each, cheapest, self._owner))
        chosen = order[np.searchsorted(self._owner[order], np.arange(len(self)))]
        p = best[chosen]
        reduced = self._in_switch[chosen]
        paid_latency, paid_bandwidth = latency[chosen, p], bandwidth[chosen, p]
        return Prices(
            time_ns=cheapest[chosen],
            protocol=p,
            latency_ns=np.where(reduced, 0.0, paid_latency),
            bandwidth_ns=np.where(reduced, 0.0, paid_bandwidth),
            in_switch_latency_ns=np.where(reduced, paid_latency, 0.0),
            in_switch_bandwidth_ns=np.where(reduced, paid_bandwidth, 0.0),
            has_base=np.arange(count) == self.outermost[:, np.newaxis],
            per_share_ns=kept[chosen, p],
        )

    def choose(self, network: Network) -> tuple[Float, tuple[str, ...]]:
        """Price all rows at the speeds of a network.

        Returns
        -------
        time_ns : float64, shape (R,)
            With the cheapest algorithm and protocol.
        algorithm : tuple of str, length R
            The algorithm that is cheapest.
        """
        every = np.arange(len(self))
        plans = Plans(
            first=np.searchsorted(self._owner, np.arange(len(self) + 1)),
            operation=self._owner,
            coll=[self.rows[row].collective for row in self._owner.tolist()],
            algorithm=self._names,
            costings=self._plans,
            warnings=(),
        )
        size = np.array([row.size_bytes for row in self.rows], dtype=np.float64)
        choice = cheapest(network, plans, every, size)
        time: Float = (choice.phases.fixed_ns + choice.phases.work_ns).sum(axis=1)
        return time, tuple(self._names[plan] for plan in choice.plan.tolist())

    def _speeds(self, knobs: Knobs, family: int, protocol: int) -> Speeds:
        return Speeds(
            np.stack([knobs.gb_s[family, protocol], knobs.in_switch_gb_s]),
            np.stack([knobs.latency_ns[family, protocol], knobs.in_switch_ns]),
            self.endpoint_ns_per_byte,
            knobs.base_ns[family, protocol],
            self.chunks,
            knobs.own_share,
        )


def _algorithms(
    row: TableRow, network: Network, hosts_per_domain: int
) -> list[tuple[Algorithm, Costing]]:
    """What a row may use, and what that costs on the tiers."""
    shape = shape_of(network.tiers)
    coordinates = _places(row, network, hosts_per_domain)
    possible = possible_of(shape, coordinates, row.collective)
    allowed = network.choices(row.collective)
    names = [name for name in possible if name in allowed] if allowed else list(possible[:1])
    if row.element not in _REDUCED_IN_SWITCH:
        names = [name for name in names if name != "in-switch"]
    if not names:
        raise NetworkError(
            f"{row.collective.label} of {row.ranks} ranks can use none of the algorithms that "
            f"network {network.name!r} allows",
            place="algorithms",
        )
    return [(name, costing_of(shape, coordinates, row.collective, name, None)) for name in names]


def _places(row: TableRow, network: Network, hosts_per_domain: int) -> Int:
    """Place of every member, shape (n, T): domains are filled evenly.

    nccl-tests sends from each rank to the next, which takes as long as the slowest message: one
    to another domain, if there is one.
    """
    room = network.domain_size
    domains = -(-row.ranks // room)
    if row.nodes is not None:
        domains = -(-row.nodes // hosts_per_domain)
    domain = np.arange(row.ranks) * domains // row.ranks
    placement = Placement("contiguous", domain, room)
    coordinates = placement.coordinates_in(network)
    if row.collective == Collective.SEND_RECV:
        return coordinates[[0, int(np.argmax(domain == 1)) or 1]]
    return coordinates
