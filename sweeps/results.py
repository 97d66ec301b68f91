"""What a simulation and a sweep report: plain records with the names that the JSON promises.

How they come about is in `single` and `run`, how they look as a table in `reports`.
"""

from __future__ import annotations

import msgspec

# msgspec resolves the annotations when it decodes, so these are needed at run time.
from ..simulator.network import Network  # noqa: TC001
from ..simulator.results import RankTime, StepTime  # noqa: TC001


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded step.

    Attributes
    ----------
    name : str
        Its annotation.
    measured_ns : int or None
        Its measured time; None where the files carry no measured timeline.
    baseline_ns : int
        Its time in the baseline.
    used : bool
        Whether it is one of the steady steps whose median is the headline.
    """

    name: str
    measured_ns: int | None
    baseline_ns: int
    used: bool


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One resource made better by one factor.

    Attributes
    ----------
    resource : str
        Name of the resource.
    factor : float
        How many times better.
    step_ns : int
        The headline step then.
    utility_pct : float
        (baseline step - step) / baseline step x 100.
    utility_range_pct : (float, float) or None
        The least and the most of the same over the steady steps; None for a single step.
    bound_pct : float or None
        The most that `utility_pct` can be: from what the resource owns of the baseline's
        critical path.
    bound_reason : str or None
        Why there is no bound.
    shape_change : str or None
        What the variant changes in the shape of the network, where it does.
    """

    resource: str
    factor: float
    step_ns: int
    utility_pct: float
    utility_range_pct: tuple[float, float] | None
    bound_pct: float | None
    bound_reason: str | None
    shape_change: str | None


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that this job, its dependency model or its network lacks, and why."""

    resource: str
    factor: float
    reason: str


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
    """One job, resource by resource.

    Attributes
    ----------
    trace : str
        Where the job was read from.
    ranks : int
        Ranks that were traced.
    steps : list of StepRow
        The recorded steps.
    dependency_model : str
        ``host``, ``stream`` or ``serial``.
    network : Network
        The baseline network, with all that was assumed of it.
    placement : str
        Where the ranks sit in it.
    measured_step_ns : int or None
        The headline of the measured steps.
    baseline_step_ns : int
        The headline of the same graph on the baseline network.
    baseline_error_pct : float or None
        (baseline - measured) / measured x 100; None without a measured step.
    worst_rank_error_pct : float or None
        The same of the completion of a step on one rank, where it is largest.
    critical_path_ns : dict of str to int
        Where the baseline's headline step goes along its critical path.
    limit_pct : float
        Largest size of `baseline_error_pct` that is still believed.
    beyond_limit : bool or None
        Whether it is larger; None without a measured step.
    warnings : list of str
        What to know before trusting the numbers.
    limits : list of str
        What the model leaves out.
    results : list of ResultRow
        By resource, then factor, in the order asked for.
    refused : list of Refused
        Resources that do not apply.
    """

    trace: str
    ranks: int
    steps: list[StepRow]
    dependency_model: str
    network: Network
    placement: str
    measured_step_ns: int | None
    baseline_step_ns: int
    baseline_error_pct: float | None
    worst_rank_error_pct: float | None
    critical_path_ns: dict[str, int]
    limit_pct: float
    beyond_limit: bool | None
    warnings: list[str]
    limits: list[str]
    results: list[ResultRow]
    refused: list[Refused]


class SimulateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation of a job.

    Attributes
    ----------
    trace : str
        Where the job was read from.
    ranks : int
        Ranks that were traced.
    steps : list of StepTime
        The recorded steps.
    dependency_model : str
        ``host``, ``stream`` or ``serial``.
    network : Network or None
        What was simulated; None for measured transfers.
    placement : str or None
        Where the ranks sit in it.
    step_ns : int
        The headline step.
    measured_step_ns : int or None
        The headline of the measured steps.
    change_pct : float or None
        (step - measured) / measured x 100.
    baseline_step_ns : int or None
        The headline on the baseline network: of a job without a named network the same run.
        None where no baseline network is known.
    baseline_error_pct : float or None
        (baseline - measured) / measured x 100.
    limit_pct, beyond_limit
        As in `SweepResult`.
    per_rank : list of RankTime
        Where the headline step goes on each rank.
    critical_path_ns : dict of str to int
        Where it goes along the critical path.
    warnings, limits : list of str
        What to know before trusting the numbers, and what the model leaves out.
    """

    trace: str
    ranks: int
    steps: list[StepTime]
    dependency_model: str
    network: Network | None
    placement: str | None
    step_ns: int
    measured_step_ns: int | None
    change_pct: float | None
    baseline_step_ns: int | None
    baseline_error_pct: float | None
    limit_pct: float
    beyond_limit: bool | None
    per_rank: list[RankTime]
    critical_path_ns: dict[str, int]
    warnings: list[str]
    limits: list[str]
