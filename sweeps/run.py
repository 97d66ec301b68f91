"""Run a sweep: every named resource of a job at every factor.

The job comes prepared (`job.prepare`), so each variant costs one pricing and one replay, and as
much again on every alternative of the network.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..base.errors import GraphError, UsageError
from ..base.progress import Progress, silent
from ..base.settings import DEFAULT_LIMIT_PCT
from ..graph.steps import headline_ns
from ..simulator.critical_path import utility_bound
from ..simulator.run import simulate
from .intervals import (
    OTHER_SPEED,
    basis,
    interval,
    judge,
    noise_pct,
    on_alternative,
    sources,
)
from .job import LIMITS, beyond_limit, check_limit, job_step_times
from .resources import Bandwidth, factors_of, find_resources
from .results import Refused, ResultRow, SweepResult, variant_label
from .torus import IciBandwidth, segment
from .variant import ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..simulator.run import Simulation
    from .job import Job
    from .variant import Resource, Variant


# A bound is of exact times, and a utility of whole nanoseconds: two completions before, two
# after and the median are each off by half a one at most.
_ROUNDING_NS = 2.5


def sweep(
    job: Job,
    resources: Sequence[str],
    factors: Sequence[float],
    *,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    list_refused: bool = False,
    progress: Progress = silent,
) -> SweepResult:
    """Make each resource better by each factor.

    Parameters
    ----------
    job : Job
        From `job.prepare`.
    resources : sequence of str
        Names that `resources.find_resources` knows.
    factors : sequence of float
        How many times better: any positive numbers; below 1 is worse.
    limit_pct : float
        Largest size of the baseline's error, in percent, that is not marked.
    list_refused : bool
        List resources that the job does not have instead of raising.
    progress : Progress
        Told how many variants are done.

    Returns
    -------
    SweepResult

    Raises
    ------
    UsageError
        For an unknown resource, or a factor or limit that makes no sense.
    ResourceError
        For a resource that the job does not have, unless they are listed.
    NetworkError, GraphError
        If a variant cannot be simulated.
    """
    check_limit(limit_pct)
    chosen = find_resources(resources)
    chosen_factors = check_factors(factors)
    variants: list[tuple[Resource, float, Variant]] = []
    refused = []
    for resource in chosen:
        for factor in factors_of(resource, chosen_factors):
            try:
                variants.append((resource, factor, resource.vary(job, factor)))
            except ResourceError as error:
                if not list_refused:
                    raise
                reason = error.message.removeprefix(f"{resource.name}: ")
                refused.append(Refused(resource=resource.name, factor=factor, reason=reason))
    baseline = job.baseline
    critical_path_ns = baseline.critical_split  # before the threads, which all need its parts

    def other_speeds(resource: Resource, factor: float) -> list[float]:
        if not (others and isinstance(resource, Bandwidth | IciBandwidth)):
            return []
        return [utility_on(job, resource, factor * by) for by in (1 / OTHER_SPEED, OTHER_SPEED)]

    def row(of: tuple[Resource, float, Variant]) -> ResultRow:
        resource, factor, variant = of
        simulation = simulate_variant(job, variant)
        return result_row(
            baseline,
            simulation,
            resource.name,
            factor,
            variant.shape_change,
            [
                *sources(job.network, [utility_on(other, resource, factor) for other in others]),
                other_speeds(resource, factor),
            ],
            segment(resource.name, job.network),
        )

    results = []
    # Threads are enough: the compiled engine works without the interpreter's lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        others = list(pool.map(lambda other: on_alternative(job, other), job.network.alternatives))
        for done, result in enumerate(pool.map(row, variants)):
            results.append(result)
            progress("simulating variants", done + 1, len(variants))
    return SweepResult(
        trace=job.graph.trace,
        ranks=job.graph.num_ranks,
        steps=job.steps,
        dependency_model=job.graph.model,
        network=job.network,
        placement=job.placement.description,
        measured_step_ns=baseline.measured_step_ns,
        baseline_step_ns=baseline.step_ns,
        baseline_error_pct=job.baseline_error_pct,
        worst_rank_error_pct=baseline.worst_rank_error_pct,
        critical_path_ns=critical_path_ns,
        limit_pct=limit_pct,
        beyond_limit=beyond_limit(job.baseline_error_pct, limit_pct),
        assumed_members=job.graph.coverage.assumed_members,
        warnings=job.warnings,
        limits=list(LIMITS),
        noise_pct=noise_pct(baseline),
        interval_basis=basis(len(others), len(baseline.steps)),
        results=results,
        refused=refused,
    )


#: Factors beyond this make times that no clock of ours can count.
LEAST_FACTOR, MOST_FACTOR = 1e-6, 1e12


def check_factors(factors: Sequence[float]) -> list[float]:
    """Leave each factor once.

    Raises
    ------
    UsageError
        If there is none, or one is not positive.
    """
    if not factors:
        raise UsageError("no factor given")
    for factor in factors:
        if not (math.isfinite(factor) and factor > 0):
            raise UsageError(f"a factor must be a positive number, is {factor:g}")
        if not LEAST_FACTOR <= factor <= MOST_FACTOR:
            raise UsageError(
                f"a factor must lie between {LEAST_FACTOR:g} and {MOST_FACTOR:g}, is {factor:g}"
            )
    return list(dict.fromkeys(factors))


def scenarios(
    job: Job, resources: Sequence[str], factors: Sequence[float]
) -> Iterator[tuple[str, Simulation]]:
    """Simulate the baseline and every variant of a sweep, one at a time, for who wants them whole.

    Parameters
    ----------
    job, resources, factors
        As for `sweep`.

    Yields
    ------
    str, Simulation
        ``baseline`` first, then ``scaleup_bw x2`` and so on.

    Raises
    ------
    UsageError, ResourceError, NetworkError, GraphError
        As `sweep`.
    """
    yield "baseline", job.baseline
    for resource in find_resources(resources):
        for factor in factors_of(resource, check_factors(factors)):
            variant = resource.vary(job, factor)
            yield variant_label(resource.name, factor), simulate_variant(job, variant)


def simulate_variant(job: Job, variant: Variant) -> Simulation:
    """Simulate a job with one resource changed.

    Raises
    ------
    NetworkError, GraphError
        If the job cannot be simulated so.
    """
    same_prices = variant.network is job.network and variant.placement is job.placement
    return simulate(
        job.compressed,
        network=variant.network,
        placement=None if same_prices else variant.placement,
        prices=job.prices if same_prices else None,
        compute_scale=variant.compute_scale,
        host_scale=variant.host_scale,
    )


def utility_on(other: Job, resource: Resource, factor: float) -> float:
    """Simulate the utility of a resource on an alternative of a job's network, in percent.

    Where the resource plays no part on it, as a latency does that is 0 there, it is worth 0.

    Raises
    ------
    NetworkError, GraphError
        If the variant cannot be simulated.
    """
    try:
        variant = resource.vary(other, factor)
    except ResourceError:
        return 0.0
    return _utility_pct(other.baseline.step_ns, simulate_variant(other, variant).step_ns)


def result_row(
    baseline: Simulation,
    simulation: Simulation,
    resource: str,
    factor: float,
    shape_change: str | None = None,
    ranges_pct: Iterable[Sequence[float]] = (),
    owned: str | None = None,
) -> ResultRow:
    """Compare a variant with its baseline.

    Parameters
    ----------
    baseline, simulation : Simulation
        Of one graph.
    resource : str
        What is better in `simulation`.
    factor : float
        How many times.
    shape_change : str, optional
        What is different in the shape of the network.
    ranges_pct : iterable of sequence of float
        For each thing that makes it uncertain the utilities that are possible as well.
    owned : str, optional
        Kind of segment of the critical path that the resource scales; by default its name.

    Raises
    ------
    GraphError
        If the only step of the variant would end before it begins.
    """
    if shape_change is not None:
        bound, reason = None, "the variant changes the shape of the network"
    else:
        bound, reason = utility_bound(baseline, simulation, owned or resource, factor)
    before, after = job_step_times(baseline), job_step_times(simulation)
    base_ns, step_ns = headline_ns(before), headline_ns(after)
    if step_ns < 0:
        raise GraphError(
            f"with {resource} x{factor:g} its step would be over before its window begins: what it "
            "does lies before the window",
            file=baseline.measured_graph.trace or None,
        )
    if bound is not None:
        bound = min(bound + _ROUNDING_NS / base_ns * 100, 100.0)
    utility, over_steps = _utility_pct(base_ns, step_ns), _range(before, after)
    span = interval(utility, [*ranges_pct, over_steps or ()])
    return ResultRow(
        resource=resource,
        factor=factor,
        step_ns=step_ns,
        utility_pct=utility,
        utility_range_pct=over_steps,
        utility_low_pct=None if span is None else span[0],
        utility_high_pct=None if span is None else span[1],
        verdict=judge(utility, span, noise_pct(baseline), len(before)),
        bound_pct=bound,
        bound_reason=reason or None,
        shape_change=shape_change,
    )


def _utility_pct(base_ns: int, step_ns: int) -> float:
    return (base_ns - step_ns) / base_ns * 100


def _range(
    before: NDArray[np.int64],
    after: NDArray[np.int64],
) -> tuple[float, float] | None:
    """Least and most utility of the steady steps."""
    if len(before) < 3:
        return None
    each = (before[1:] - after[1:]) / before[1:] * 100
    return float(each.min()), float(each.max())
