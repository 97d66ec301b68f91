"""The network that a result starts from: the one given, or the one the trace was measured on.

The machine's preset is in `nominal`, how its numbers are moved to the trace's own transfer times
in `calibrate`. How far the replay on this network is from the measured step is the baseline's
error, which the caller prints beside every result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..graph.columns import Collective
from ..simulator.network import Network, check_priced, load_network
from ..simulator.placement import place
from ..simulator.torus import sized_for
from .calibrate import calibrate
from .nominal import machine_preset, nominal_network
from .parameters import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..graph.columns import ExecutionGraph
    from ..simulator.placement import Placement
    from .results import FitRow


@dataclass(frozen=True)
class Baseline:
    """The network of the baseline, and what it rests on.

    Attributes
    ----------
    network : Network
        As given, or the preset of the machine with what the trace says of it.
    placement : Placement
        Where the ranks of the job sit in it.
    assumptions : tuple of str
        Everything that was assumed of network and placement, in plain sentences.
    rows : tuple of FitRow
        Measured transfer times that a fit rests on, with what the network charges; empty for a
        network that was given.
    """

    network: Network
    placement: Placement
    assumptions: tuple[str, ...]
    rows: tuple[FitRow, ...]


def baseline_network(
    graph: ExecutionGraph,
    network: str | Path | Network | None = None,
    *,
    rank_map: Mapping[int, int] | None = None,
    draws: int = 0,
) -> Baseline:
    """Find the network that a job was measured on, or take the one that is given.

    Parameters
    ----------
    graph : ExecutionGraph
        Of a trace.
    network : str, Path or Network, optional
        Preset, file or network to take as it is. By default the preset that matches device and
        count of the trace supplies the tiers, and the trace's own transfer times supply the
        effective bandwidth, latency and base as far as they determine them; how much compute
        slows down beside transfers comes from the trace, too.
    rank_map : mapping of int to int, optional
        Scale-up domain of every rank of the job.
    draws : int
        Bootstrap draws of the calibration; without any the network has no alternatives.

    Returns
    -------
    Baseline

    Raises
    ------
    NetworkError
        If there is no such network, if none is given and no preset is of the machine, or if the
        network does not fit the job.
    GraphError
        If a group or a peer is not among the ranks of the job.
    """
    if network is not None:
        given = network if isinstance(network, Network) else load_network(network)
        given = sized_for(given, graph.world_size)
        check_priced(given)
        placement = place(given, graph.ranks, graph.hosts, graph.world_size, rank_map)
        return _baseline(given, placement, ["the network is taken as given, not fitted"], ())

    communicates = _communicates(graph)
    if not communicates and machine_preset(graph) is None:
        preset = load_network(LOOPBACK)
    else:
        preset = nominal_network(graph)
    placement = place(preset, graph.ranks, graph.hosts, graph.world_size, rank_map)
    if not communicates:
        # What the preset assumes would only distract: nothing of it matters.
        note = f"the job sends nothing between ranks, so preset {preset.name} plays no part"
        unused = msgspec.structs.replace(preset, assumptions=[note])
        return _baseline(unused, placement, [], ())
    made = calibrate(graph, preset, placement, draws=draws)
    return _baseline(made.network, placement, [], made.rows)


def _communicates(graph: ExecutionGraph) -> bool:
    """Tell whether any operation joins ranks."""
    joined = graph.instance >= 0
    pair = graph.coll == Collective.SEND_RECV
    groups = np.unique(graph.group[joined & ~pair])
    return bool((joined & pair).any()) or any(len(graph.groups[g].ranks) > 1 for g in groups)


def _baseline(
    network: Network, placement: Placement, notes: list[str], rows: tuple[FitRow, ...]
) -> Baseline:
    assumptions = (*network.assumptions, *notes, f"placement: {placement.description}")
    return Baseline(network, placement, assumptions, rows)
