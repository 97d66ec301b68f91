"""The function behind `whatif calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from .base.errors import UsageError
from .base.progress import Progress, silent
from .base.settings import DEFAULT_LIMIT_PCT
from .conversion import announce_compilation, holds_chakra, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .calibration.results import CalibrationResult
    from .graph.columns import DependencyModel
    from .simulations import RankMap, Trace

Target = Literal["whatif", "astra-sim"]


def calibrate(
    trace: Trace,
    *,
    network: str | Path | None = None,
    link_gb_s: float | None = None,
    scaleup_gb_s: float | None = None,
    scaleout_gb_s: float | None = None,
    rank_map: RankMap | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    target: Target = "whatif",
    limit_pct: float = DEFAULT_LIMIT_PCT,
    processes: int | None = None,
    progress: Progress = silent,
) -> CalibrationResult:
    """Fit a network to the transfers of a trace, and say how sure it is.

    Parameters
    ----------
    trace, model, steps, assume_missing, processes, progress
        As for `load`.
    network : str or Path, optional
        Preset or file with the nominal network: its shape, its link speeds, and starting values.
        By default the preset of the machine.
    link_gb_s : float, optional
        Nominal speed of the links in GB/s per rank and direction, where all are alike.
    scaleup_gb_s, scaleout_gb_s : float, optional
        The same within scale-up domains, and between them.
    rank_map : mapping of int to int, str or Path, optional
        Scale-up domain of every rank, or a file of it.
    target : str
        ``astra-sim`` to fit the files of ASTRA-sim under its own physics, too.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.

    Returns
    -------
    CalibrationResult
        Its `network` is what `save_network` writes and every other command takes.

    Raises
    ------
    TraceError, GraphError, NetworkError, UsageError
        If the trace, the graph or the network cannot be used.
    """
    from .calibration.astra import astra_config
    from .calibration.calibrate import calibration_result
    from .calibration.nominal import nominal_network
    from .rank_map import read_rank_map
    from .simulator.placement import place

    graph = load(
        trace,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    if not (graph.transfer_ns > 0).any():
        raise UsageError("there are no measured transfers to fit a network to", file=graph.trace)
    nominal = nominal_network(
        graph,
        network,
        link_gb_s=link_gb_s,
        scaleup_gb_s=scaleup_gb_s,
        scaleout_gb_s=scaleout_gb_s,
    )
    domains = read_rank_map(rank_map) if isinstance(rank_map, str | Path) else rank_map
    placement = place(nominal, graph.ranks, graph.hosts, graph.world_size, domains)
    announce_compilation(progress)
    result = calibration_result(graph, nominal, placement, limit_pct=limit_pct, progress=progress)
    if target == "astra-sim":
        serial = graph if graph.model == "serial" else None
        if serial is None and isinstance(trace, str | Path) and not holds_chakra(Path(trace)):
            serial = load(
                trace,
                model="serial",
                steps=steps,
                assume_missing=assume_missing,
                processes=processes,
                progress=progress,
            )
        config = astra_config(graph, result.network, placement, serial, progress)
        result = msgspec.structs.replace(result, astra=config)
    return result
