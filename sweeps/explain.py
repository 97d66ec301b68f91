"""Why a step takes as long as it does, and what each resource could give back.

The simulator says where the critical path goes and what communication costs off it; here every
resource is made twice as good and as good as can be, on its own, so that what the path promises
stands beside what a simulation gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from ..base.errors import GraphError, UsageError
from ..base.progress import Progress, silent
from ..base.settings import DEFAULT_LIMIT_PCT, DEFAULT_PLACES
from ..graph.steps import headline_steps
from ..simulator.explain import path_places
from ..simulator.exposure import exposures
from ..simulator.run import simulate
from .anatomy import anatomy
from .intervals import without_alternatives
from .resources import DURATIONS, RESOURCES
from .results import ExplainResult, Refused, Worth
from .run import result_row, sweep
from .variant import ResourceError
from .verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..graph.columns import ExecutionGraph
    from ..simulator.run import Simulation
    from .results import ResultRow
    from .single import Single

#: Percent of the step below which a resource is called irrelevant.
IRRELEVANT_PCT = 0.1

#: A resource this many times as good costs nothing any more: less than a nanosecond of a second.
UNLIMITED = 1e9

_FACTORS = (2.0, UNLIMITED)


def explain(
    single: Single,
    *,
    top: int = DEFAULT_PLACES,
    against: ExecutionGraph | None = None,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    progress: Progress = silent,
) -> ExplainResult:
    """Explain a simulation.

    Parameters
    ----------
    single : Single
        From `single.simulate_once` or `single.replay_measured`. Of measured transfers only the
        resources that need no network can be made better.
    top : int
        How many places to list.
    against : ExecutionGraph, optional
        The job as measured on the network that is simulated; see `anatomy`.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.
    progress : Progress
        Told how many variants are done.

    Returns
    -------
    ExplainResult

    Raises
    ------
    UsageError
        If `top` is less than 1, or for a limit that makes no sense.
    GraphError
        If the step takes no time.
    UsageError, GraphError, NetworkError
        If `against` cannot be compared with, as `anatomy`.
    """
    check_top(top)
    simulation = single.simulation
    if simulation.step_ns <= 0:
        raise GraphError("its step takes no time", file=single.graph.trace)
    result = single.result(limit_pct)
    compared = None if against is None else anatomy(single, against)
    rows, refused = _variants(single, progress)
    places = path_places(simulation)
    groups, collectives = exposures(simulation)
    resources = _worths(rows, result.critical_path_ns, result.step_ns)
    chosen = headline_steps(simulation.step_times_ns)
    return ExplainResult(
        **asdict(result),
        headline_steps=[simulation.steps[k].name for k in chosen],
        verdict=verdict(result, places, resources),
        places=places[:top],
        other_places=len(places[top:]),
        other_places_ns=sum(place.time_ns for place in places[top:]),
        groups=groups,
        collectives=collectives,
        resources=resources,
        refused=refused,
        against=compared,
    )


def check_top(top: int) -> None:
    """Refuse a number of places that makes no sense.

    Raises
    ------
    UsageError
        If it is less than 1.
    """
    if top < 1:
        raise UsageError(f"the number of places must be at least 1, is {top}")


def _variants(single: Single, progress: Progress) -> tuple[list[ResultRow], list[Refused]]:
    """Simulate every resource that the job has at every factor."""
    if single.job is None:
        return _measured_variants(single.simulation)
    # What is reported has no intervals.
    job = without_alternatives(single.job)
    swept = sweep(job, list(RESOURCES), _FACTORS, list_refused=True, progress=progress)
    return swept.results, [one for one in swept.refused if one.factor == _FACTORS[0]]


def _measured_variants(baseline: Simulation) -> tuple[list[ResultRow], list[Refused]]:
    rows, refused = [], []
    for resource in DURATIONS:
        for factor in _FACTORS:
            try:
                compute, host = resource.scales(baseline.compressed.original, factor)
            except ResourceError as error:
                reason = error.message.removeprefix(f"{resource.name}: ")
                refused.append(Refused(resource=resource.name, factor=factor, reason=reason))
                break
            variant = simulate(
                baseline.compressed, measured=True, compute_scale=compute, host_scale=host
            )
            rows.append(result_row(baseline, variant, resource.name, factor))
    networks = set(RESOURCES) - {resource.name for resource in DURATIONS}
    refused += [
        Refused(resource=name, factor=_FACTORS[0], reason="measured transfers know no network")
        for name in RESOURCES
        if name in networks
    ]
    return rows, refused


def _worths(rows: Iterable[ResultRow], split: dict[str, int], step_ns: int) -> list[Worth]:
    by_factor: dict[str, dict[float, ResultRow]] = {}
    for row in rows:
        by_factor.setdefault(row.resource, {})[row.factor] = row
    worths = [_worth(name, found, split.get(name), step_ns) for name, found in by_factor.items()]
    return sorted(worths, key=lambda worth: -(worth.utility_pct or 0))


def _worth(name: str, rows: dict[float, ResultRow], owned_ns: int | None, step_ns: int) -> Worth:
    twice, unlimited = (rows.get(factor) for factor in _FACTORS)
    known = [rows[factor] for factor in _FACTORS if factor in rows]
    return Worth(
        resource=name,
        owned_ns=owned_ns,
        owned_pct=None if owned_ns is None else owned_ns / step_ns * 100,
        utility_pct=None if twice is None else twice.utility_pct,
        bound_pct=None if twice is None else twice.bound_pct,
        unlimited_utility_pct=None if unlimited is None else unlimited.utility_pct,
        unlimited_bound_pct=None if unlimited is None else unlimited.bound_pct,
        bound_reason=next((row.bound_reason for row in known if row.bound_reason), None),
        shape_change=next((row.shape_change for row in known if row.shape_change), None),
        irrelevant=all(abs(row.utility_pct) < IRRELEVANT_PCT for row in known),
    )
