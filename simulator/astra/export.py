"""Our networks in the terms of ASTRA-sim: the values of network.yml and system.json for a job.

This is the border of units: GB/s (1e9 bytes) become GiB/s (2^30), and a latency per message
becomes one per link. ASTRA-sim knows full grids of ranks, one algorithm per dimension and
collective, and no more of a link than bandwidth and latency. What of a network it can take in
another form is *folded*, what has no place is *lost*, both said in words; what would be another
network, or would abort or stall ASTRA-sim, is refused. The facts about ASTRA-sim are those of its
analytical backends [1]_; nothing here runs anything.

References
----------
.. [1] ASTRA-sim 518bd51, analytical network backend 599a047.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import NetworkError
from ...base.units import format_ns
from ...graph.columns import Collective, Kind
from ..algorithms.layout import fabrics, shape_of
from ..algorithms.names import AUTO, OF_COLLECTIVE
from .files import MemoryFile, NetworkFile, SystemFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ...graph.columns import ExecutionGraph
    from ..algorithms.names import Algorithm
    from ..network import Network, Tier
    from ..placement import Placement

    Int = NDArray[np.int64]

_GIB = float(1 << 30)

#: What ASTRA-sim waits before every message and after every receive, ns. Communicators smaller
#: than the world always have 10, so the world gets the same.
ENDPOINT_DELAY_NS = 10

#: Memory bandwidth in GB/s (1e9 bytes) at which reductions of any size are free: measured
#: transfers contain them.
FREE_MEMORY_GB_S = 1_000_000_000

_TOPOLOGY = {"switch": "Switch", "ring": "Ring", "fully_connected": "FullyConnected"}

#: Collectives that ASTRA-sim has lists of algorithms for.
COLLECTIVES = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)

# Algorithms that are passes around the ranks of one dimension after the other.
_PASSES = ("hierarchical", "multi-axis", "hierarchical-pipelined", "ring")


@dataclass(frozen=True)
class AstraInputs:
    """What ASTRA-sim is to be given beside the .et files of a job of R ranks.

    Attributes
    ----------
    network, system, memory
        The files.
    tiers : tuple of int, length D
        Tier of the network that each dimension is.
    order : tuple of int, length R
        Index of the rank that becomes each npu: npus count through dimension 0 first.
    folded : tuple of str
        What ASTRA-sim gets in another form, in words.
    lost : tuple of str
        What it does not get at all, or cannot do like our networks.
    """

    network: NetworkFile
    system: SystemFile
    memory: MemoryFile
    tiers: tuple[int, ...]
    order: tuple[int, ...]
    folded: tuple[str, ...]
    lost: tuple[str, ...]


class _Remarks:
    """Collects what is folded and what is lost."""

    def __init__(self) -> None:
        self.folded: list[str] = []
        self.lost: list[str] = []


def astra_inputs(graph: ExecutionGraph, network: Network, placement: Placement) -> AstraInputs:
    """Express a network for ASTRA-sim.

    Parameters
    ----------
    graph : ExecutionGraph
        The job whose .et files it is for.
    network : Network
        Any.
    placement : Placement
        Which of its places the job uses: ASTRA-sim simulates these only, and all of them.

    Returns
    -------
    AstraInputs

    Raises
    ------
    NetworkError
        If the ranks do not fill their places evenly or sit in one place only; if a ring is open
        or partly used; if only algorithms are named that ASTRA-sim does not have or would not
        survive.
    """
    used, places = _grid(graph, network, placement)
    tiers = [network.tiers[index] for index in used]
    counts = [int(column.max()) + 1 for column in places.T]
    remarks = _Remarks()
    for index, tier, count in zip(used, tiers, counts, strict=True):
        _check_ring(placement, network, index, tier, count)
    _remark_units(remarks, network, used)
    _remark_tiers(remarks, network, used)
    algorithms = {coll: _algorithm(network, coll, used, remarks) for coll in COLLECTIVES}
    system = _system(network, tiers, algorithms, remarks)
    _check_survives(graph, system, counts)
    _remark_job(remarks, graph, tiers, places)
    npu = _codes(places, counts)
    return AstraInputs(
        network=NetworkFile(
            topology=[_TOPOLOGY[tier.topology] for tier in tiers],
            npus_count=counts,
            bandwidth=[link_gib_s(tier) for tier in tiers],
            latency=[link_latency_ns(tier) for tier in tiers],
        ),
        system=system,
        memory=MemoryFile(),
        tiers=tuple(used),
        order=tuple(np.argsort(npu).tolist()),
        folded=tuple(remarks.folded),
        lost=tuple(remarks.lost),
    )


def link_gib_s(tier: Tier) -> float:
    """Bandwidth of a link of a tier as transfers see it, GiB/s.

    On a full mesh a link is that of one pair. A port that several ranks share gives each its
    part, and what a byte costs at its ends is added to its time on the wire.
    """
    gb_s = tier.effective_gb_s / tier.ranks_per_nic
    if tier.topology == "fully_connected":
        gb_s /= max(tier.size - 1, 1)
    return 1 / (1 / gb_s + tier.endpoint_ns_per_byte) * 1e9 / _GIB


def link_latency_ns(tier: Tier) -> float:
    """Latency of a link of a tier, ns: with the endpoint delay a message pays what it does here.

    A message passes two links of a switch, and one of a mesh or of a ring per hop.
    """
    alone = max(tier.latency_ns - ENDPOINT_DELAY_NS, 0.0)
    return alone / 2 if tier.topology == "switch" else alone


def _grid(graph: ExecutionGraph, network: Network, placement: Placement) -> tuple[list[int], Int]:
    """Tiers in which the ranks differ, and the places of the ranks in these, from 0, (R, D)."""
    coordinates = placement.coordinates_in(network)[graph.ranks]
    counts = [len(np.unique(column)) for column in coordinates.T]
    used = [index for index, count in enumerate(counts) if count > 1]
    if not used:
        raise NetworkError("ASTRA-sim needs at least two ranks, and there is one", place="tiers")
    if math.prod(counts) != len(coordinates):
        held = " x ".join(str(counts[index]) for index in used)
        raise NetworkError(
            f"ASTRA-sim knows full grids of ranks only, and {len(coordinates)} ranks sit in "
            f"{held} places of network {network.name!r}, some of which stay empty "
            f"({placement.description})",
            place="tiers",
        )
    columns = [np.unique(coordinates[:, index], return_inverse=True)[1] for index in used]
    return used, np.column_stack(columns).astype(np.int64)


def _codes(places: Int, counts: Sequence[int]) -> Int:
    """Number of each place, the first dimension the fastest, shape (R,)."""
    code = np.zeros(len(places), dtype=np.int64)
    for dimension in reversed(range(len(counts))):
        code = code * counts[dimension] + places[:, dimension]
    return code


def _check_ring(placement: Placement, network: Network, index: int, tier: Tier, count: int) -> None:
    """Refuse a ring that is not closed: ASTRA-sim closes all of them."""
    if tier.topology != "ring":
        return
    place = f"tiers[{index}]"
    if count == 2:
        at = np.unique(placement.coordinates_in(network)[:, index])
        hops = int(at[-1] - at[0])
        if tier.wrap:
            hops = min(hops, tier.size - hops)
        if hops == 1:
            return
        raise NetworkError(
            f"the two places in use of a ring of {tier.size} are {hops} hops apart, and ASTRA-sim "
            "knows neighbours only",
            place=place,
        )
    if not tier.wrap:
        raise NetworkError("is a line (wrap: false), and ASTRA-sim closes all rings", place=place)
    if count < tier.size:
        raise NetworkError(
            f"the job uses {count} of the {tier.size} places of a ring, a line, and ASTRA-sim "
            "closes all rings",
            place=place,
        )


def _remark_units(remarks: _Remarks, network: Network, used: Sequence[int]) -> None:
    """Say how bandwidth and latency became those of links."""
    names = network.tier_names
    for index in used:
        tier = network.tiers[index]
        parts = []
        if tier.efficiency != 1:
            parts.append(f"efficiency {tier.efficiency:.3g}")
        if tier.endpoint_ns_per_byte:
            parts.append(f"{tier.endpoint_ns_per_byte:.3g} ns per byte at the ends")
        if tier.ranks_per_nic > 1:
            parts.append(f"a NIC that {tier.ranks_per_nic} ranks share, each with its part")
        if tier.topology == "fully_connected":
            parts.append(f"one of {tier.size - 1} links of a rank")
        text = (
            f"{names[index]}: {tier.bandwidth_gb_s:g} GB/s are {link_gib_s(tier):.4f} of "
            "ASTRA-sim's GB/s (2^30 bytes)"
        )
        remarks.folded.append(f"{text}, with {', '.join(parts)}" if parts else text)
        if tier.latency_ns < ENDPOINT_DELAY_NS:
            latency = f"less than the {ENDPOINT_DELAY_NS} ns before each message, which stay"
        elif tier.topology == "switch":
            latency = (
                f"{ENDPOINT_DELAY_NS} ns before each message and {link_latency_ns(tier):g} ns on "
                "each of two links"
            )
        else:
            latency = (
                f"{ENDPOINT_DELAY_NS} ns before each message and {link_latency_ns(tier):g} ns on "
                f"{'each hop' if tier.topology == 'ring' else 'its link'}"
            )
        remarks.folded.append(f"{names[index]}: latency {format_ns(tier.latency_ns)} is {latency}")
    remarks.folded.append("reductions are free, as measured transfers contain them")


def _remark_tiers(remarks: _Remarks, network: Network, used: Sequence[int]) -> None:
    """Say what of the tiers and of the network has no place."""
    lost = remarks.lost
    for index in used:
        tier, name = network.tiers[index], network.tier_names[index]
        if tier.base_ns:
            lost.append(f"{name}: the base of a collective ({format_ns(tier.base_ns)})")
        if tier.protocols:
            protocols = ", ".join(protocol.name for protocol in tier.protocols)
            lost.append(f"{name}: protocols ({protocols}); what they change is left out")
        if tier.oversubscription > 1:
            lost.append(f"{name}: oversubscription {tier.oversubscription:g}")
        if tier.shared_ports:
            lost.append(f"{name}: its ports are those of the tier below; there they are its own")
        if tier.in_network_reduction:
            lost.append(f"{name}: reduction in the switch")
        if tier.topology == "fully_connected" and tier.size > 2:
            lost.append(
                f"{name}: a pass of a mesh of n pays n - 1 latencies one after the other; there it "
                "pays one"
            )
        if tier.topology == "ring" and tier.size > 2:
            lost.append(f"{name}: a pass of a ring goes both ways at once; there it goes one way")
    if network.own_share:
        lost.append(f"the time for the part that a rank keeps (own_share {network.own_share:g})")
    if network.overlap is not None:
        lost.append(
            f"compute beside transfers is {network.overlap.slowdown:.0%} slower; there it keeps "
            "the duration it was measured with"
        )


def _algorithm(network: Network, coll: Collective, used: Sequence[int], remarks: _Remarks) -> str:
    """Name of our algorithm that ASTRA-sim is to run in its way."""
    wanted = network.choices(coll)
    if not wanted:
        torus = any(len(set(tiers) & set(used)) > 1 for tiers in fabrics(shape_of(network.tiers)))
        default: Algorithm = "multi-axis" if torus else "hierarchical"
        wanted = ("direct",) if coll == Collective.ALL_TO_ALL else (default,)
    found = [name for name in wanted if name != "in-switch"]
    if not found:
        raise NetworkError(
            f"ASTRA-sim has no reduction in the switch, and {coll.label} is to use only that",
            place=f"algorithms.{coll.label}",
        )
    if len(wanted) > 1:
        listed = AUTO if wanted == OF_COLLECTIVE[coll] else ", ".join(wanted)
        remarks.folded.append(f"{coll.label}: of {listed} ASTRA-sim runs {found[0]} at every size")
    return found[0]


def _system(
    network: Network,
    tiers: Sequence[Tier],
    algorithms: dict[Collective, str],
    remarks: _Remarks,
) -> SystemFile:
    names = {
        coll: [_implementation(coll, algorithm, tier) for tier in tiers]
        for coll, algorithm in algorithms.items()
    }
    reducing = algorithms[Collective.ALL_REDUCE]
    several = len(tiers) > 1
    for coll, algorithm in algorithms.items():
        if several and algorithm == "ring":
            remarks.folded.append(f"{coll.label}: one ring through all tiers is a ring in each")
        if several and algorithm == "multi-axis":
            remarks.lost.append(
                f"{coll.label}: the dimensions of a torus work at once; there one after the other"
            )
    if several and algorithms[Collective.ALL_TO_ALL] == "direct":
        remarks.folded.append(
            "all-to-all: straight to every rank is one dimension after the other, each with all "
            "of the data"
        )
    splits = 1
    if "hierarchical-pipelined" in algorithms.values():
        if len(tiers) > 2 and reducing != "tree":
            remarks.lost.append(
                "chunks that are pipelined through the tiers: with three or more ASTRA-sim "
                "deadlocks on several"
            )
        else:
            splits = network.pipeline_chunks
            remarks.folded.append(
                f"{splits} chunks are pipelined through the tiers, each with all of the latency, "
                "and in every collective"
            )
    return SystemFile(
        scheduling_policy="LIFO",
        endpoint_delay=ENDPOINT_DELAY_NS,
        active_chunks_per_dimension=1,
        preferred_dataset_splits=splits,
        all_reduce_implementation=names[Collective.ALL_REDUCE],
        all_gather_implementation=names[Collective.ALL_GATHER],
        reduce_scatter_implementation=names[Collective.REDUCE_SCATTER],
        all_to_all_implementation=names[Collective.ALL_TO_ALL],
        # A tree does a whole all-reduce in every phase, so it must not be split into more.
        collective_optimization="baseline" if reducing == "tree" else "localBWAware",
        local_mem_bw=FREE_MEMORY_GB_S,
    )


def _implementation(coll: Collective, algorithm: str, tier: Tier) -> str:
    """Algorithm of ASTRA-sim for one dimension.

    A full mesh has a link for every pair, so all messages go at once. Elsewhere a rank sends its
    messages of an all-to-all one after the other (``direct1``), because all at once would each
    have the whole bandwidth of its port.
    """
    mesh = tier.topology == "fully_connected"
    if coll == Collective.ALL_TO_ALL:
        return "direct" if mesh else "direct1"
    if algorithm in _PASSES:
        return "direct" if mesh else "ring"
    return {
        "direct": "direct",
        "halving-doubling": "halvingDoubling",
        "tree": "doubleBinaryTree",
    }[algorithm]


def _check_survives(graph: ExecutionGraph, system: SystemFile, counts: Sequence[int]) -> None:
    """Refuse algorithms on which this job would stall or kill ASTRA-sim."""
    world = graph.num_ranks
    for coll in COLLECTIVES:
        names = {
            Collective.ALL_REDUCE: system.all_reduce_implementation,
            Collective.ALL_GATHER: system.all_gather_implementation,
            Collective.REDUCE_SCATTER: system.reduce_scatter_implementation,
            Collective.ALL_TO_ALL: system.all_to_all_implementation,
        }[coll]
        name = (names or [""])[0]
        place = f"algorithms.{coll.label}"
        if name not in ("halvingDoubling", "doubleBinaryTree"):
            continue
        rings = {f"{count} units of a tier": count for count in counts}
        if len(counts) == 1:
            rings |= {f"group {group!r}": size for group, size in _small_groups(graph, coll)}
            if name == "doubleBinaryTree" and len(rings) > 1:
                raise NetworkError(
                    f"ASTRA-sim crashes on a tree in a group smaller than the job: "
                    f"{list(rings)[1]} has {list(rings.values())[1]} of {world} ranks",
                    place=place,
                )
        for what, size in rings.items():
            if size & (size - 1):
                raise NetworkError(
                    f"ASTRA-sim's {name} needs powers of two, and {what} has {size}", place=place
                )
        least = _least_bytes(graph, coll)
        if name == "halvingDoubling" and coll == Collective.ALL_REDUCE and least < 2 * world:
            raise NetworkError(
                f"ASTRA-sim aborts on an all-reduce by halving and doubling of {least:.0f} bytes, "
                f"fewer than two for each of {world} ranks",
                place=place,
            )
    splits = system.preferred_dataset_splits
    least = _least_bytes(graph, Collective.ALL_GATHER)
    if splits > least:
        raise NetworkError(
            f"ASTRA-sim never ends on an all-gather of {least:.0f} bytes in {splits} chunks",
            place="pipeline_chunks",
        )


def _small_groups(graph: ExecutionGraph, coll: Collective) -> list[tuple[str, int]]:
    """Names and traced sizes of the groups, smaller than the job, that use a collective."""
    traced = set(graph.ranks.tolist())
    groups = np.unique(graph.group[_shown_as(graph, coll)]).tolist()
    sizes = [
        (graph.groups[g].name, len(traced.intersection(graph.groups[g].ranks))) for g in groups
    ]
    return [(name, size) for name, size in sizes if 1 < size < graph.num_ranks]


def _shown_as(graph: ExecutionGraph, coll: Collective) -> NDArray[np.bool_]:
    """Nodes that the .et files show as a collective."""
    from ...graph.chakra_plan import SUBSTITUTES

    kinds = [coll, *(kind for kind, shown in SUBSTITUTES.items() if shown == coll)]
    shown: NDArray[np.bool_] = (graph.kind == Kind.COMM_COLL) & np.isin(graph.coll, kinds)
    return shown


def _least_bytes(graph: ExecutionGraph, coll: Collective) -> float:
    """Bytes of the smallest collective of a kind; infinite where there is none."""
    from ...graph.chakra_plan import LEAST_ALL_GATHER_BYTES, LEAST_BYTES

    sizes = graph.size_bytes[_shown_as(graph, coll)]
    least = LEAST_ALL_GATHER_BYTES if coll == Collective.ALL_GATHER else LEAST_BYTES
    return float(np.where(sizes > 0, sizes, float(least)).min(initial=np.inf))


def _remark_job(
    remarks: _Remarks, graph: ExecutionGraph, tiers: Sequence[Tier], places: Int
) -> None:
    """Say what ASTRA-sim does with the groups of this job that our networks do not."""
    if graph.world_size > graph.num_ranks:
        remarks.lost.append(
            f"{graph.world_size - graph.num_ranks} of {graph.world_size} ranks, which were not "
            "traced"
        )
    if len(tiers) == 1:
        return
    position = {int(rank): index for index, rank in enumerate(graph.ranks)}
    crossing = 0
    for group in graph.groups:
        members = [position[rank] for rank in group.ranks if rank in position]
        if 1 < len(members) < graph.num_ranks:
            crossing += int((np.ptp(places[members], axis=0) > 0).sum() > 1)
    if crossing:
        remarks.lost.append(
            f"{crossing} groups smaller than the job span several tiers: ASTRA-sim runs each as "
            "one ring, whose messages pay the innermost tier in which they differ and no other"
        )
    small = _small_groups(graph, Collective.ALL_TO_ALL)
    if small:
        remarks.lost.append(
            f"all-to-all of {len(small)} groups smaller than the job: ASTRA-sim passes the data "
            "around a ring, n/2 times as many bytes"
        )
