"""The function behind `whatif explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .base.errors import UsageError
from .base.progress import Progress, silent
from .base.settings import DEFAULT_LIMIT_PCT, DEFAULT_PLACES
from .conversion import load
from .simulations import simulate_single

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph.columns import DependencyModel
    from .simulations import RankMap, Trace
    from .sweeps.results import ExplainResult


def explain(
    trace: Trace,
    *,
    top: int = DEFAULT_PLACES,
    network: str | Path | None = None,
    rank_map: RankMap | None = None,
    measured: bool = False,
    against: str | Path | None = None,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    processes: int | None = None,
    progress: Progress = silent,
) -> ExplainResult:
    """Say why the step of a job takes as long as it does, and what could make it shorter.

    Parameters
    ----------
    trace, model, steps, assume_missing, processes, progress
        As for `load`.
    top : int
        How many of the places where the critical path spends the step to list.
    network, rank_map, limit_pct
        As for `simulate`.
    measured : bool
        Explain the measured timeline instead of a simulation on a network.
    against : str or Path, optional
        A trace of the job on the network that is simulated, for a baseline the trace itself: says
        what the error consists of.

    Returns
    -------
    ExplainResult

    Raises
    ------
    TraceError, GraphError, NetworkError, UsageError
        If the trace, the graph or the network cannot be used.
    """
    from .sweeps.explain import check_top
    from .sweeps.explain import explain as run

    # What is wrong with the call is said before a long read, not after it.
    check_top(top)
    if measured and against is not None:
        raise UsageError("measured transfers are what was measured: there is no error to explain")
    single = simulate_single(
        trace,
        network=network,
        rank_map=rank_map,
        measured=measured,
        model=model,
        steps=steps,
        assume_missing=assume_missing,
        processes=processes,
        progress=progress,
    )
    truth = None
    if against is not None:
        same = isinstance(trace, str | Path) and Path(against) == Path(trace)
        truth = (
            single.graph
            if same
            else load(
                against,
                model=model,
                assume_missing=assume_missing,
                processes=processes,
                progress=progress,
            )
        )
    return run(single, top=top, against=truth, limit_pct=limit_pct, progress=progress)
