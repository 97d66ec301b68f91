"""What a simulation and a sweep report: plain records with the names that the JSON promises.

How they come about is in `single`, `run` and `architectures`, how they look as a table in
`reports`.
"""

from __future__ import annotations

import msgspec

# msgspec resolves the annotations when it decodes, so these are needed at run time.
from ..simulator.network import Network  # noqa: TC001
from ..simulator.results import (  # noqa: TC001
    ExposedCollective,
    ExposedGroup,
    Place,
    RankTime,
    StepTime,
)


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
        How many times better; 1 of a choice such as ``torus:2x4``.
    step_ns : int
        The headline step then.
    utility_pct : float
        (baseline step - step) / baseline step x 100.
    utility_range_pct : (float, float) or None
        The least and the most of the same over the steady steps; None for a single step.
    utility_low_pct, utility_high_pct : float or None
        Where the utility is, as far as the calibration and the spread over steps tell
        (`intervals.interval`); None where neither does.
    verdict : str
        ``significant``, ``within noise``, or what is missing to tell (`intervals.judge`).
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
    utility_low_pct: float | None
    utility_high_pct: float | None
    verdict: str
    bound_pct: float | None
    bound_reason: str | None
    shape_change: str | None

    @property
    def label(self) -> str:
        """Resource and factor, for people."""
        return variant_label(self.resource, self.factor)


def variant_label(resource: str, factor: float) -> str:
    """Name a variant for people; of a choice, which has no factor, the name is all."""
    return resource if ":" in resource else f"{resource} x{factor:g}"


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that this job, its dependency model or its network lacks, and why."""

    resource: str
    factor: float
    reason: str


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its baseline: what every comparison of a job begins with.

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
    assumed_members : int
        Members of groups, counted for each operation, that were not traced and are assumed to
        arrive with those that were: every figure rests on them.
    warnings : list of str
        What to know before trusting the numbers.
    limits : list of str
        What the model leaves out.
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
    assumed_members: int
    warnings: list[str]
    limits: list[str]


class SweepResult(JobResult, frozen=True, kw_only=True):
    """One job, resource by resource.

    Attributes
    ----------
    noise_pct : float or None
        How far the measured step may be off by chance (`intervals.noise_pct`); None where fewer
        than two steady steps were measured.
    interval_basis : str
        What the intervals of the results rest on, in words.
    results : list of ResultRow
        By resource, then factor, in the order asked for.
    refused : list of Refused
        Resources that do not apply.
    """

    noise_pct: float | None
    interval_basis: str
    results: list[ResultRow]
    refused: list[Refused]


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster architecture with a job placed in it.

    Attributes
    ----------
    name : str
        ``baseline``, the name of a preset, or domain and bandwidths: ``32/900/50``.
    domain : int
        Ranks that a scale-up domain can hold.
    scaleup_gb_s : float
        Nominal bandwidth per rank and direction inside a domain; on a ring of one link.
    scaleout_gb_s : float or None
        The same between domains; None where the network has no scale-out tier.
    network : Network
        All of it, with what was assumed.
    placement : str
        Where the ranks sit in it.
    shape_change : str or None
        What is different in the shape of the network, seen from the baseline.
    """

    name: str
    domain: int
    scaleup_gb_s: float
    scaleout_gb_s: float | None
    network: Network
    placement: str
    shape_change: str | None


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
    limit_pct, beyond_limit, assumed_members
        As in `JobResult`.
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
    assumed_members: int
    per_rank: list[RankTime]
    critical_path_ns: dict[str, int]
    warnings: list[str]
    limits: list[str]


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What a resource owns of the step, and what it could give back.

    Attributes
    ----------
    resource : str
        Name of the resource.
    owned_ns : int or None
        Time on the critical path of the headline step that scales with it; None of a domain
        size, which owns no time.
    owned_pct : float or None
        The same in percent of the step.
    utility_pct : float or None
        (step - step with the resource twice as good) / step x 100, simulated; None where twice
        as good cannot be simulated.
    bound_pct : float or None
        The most that `utility_pct` can be.
    unlimited_utility_pct, unlimited_bound_pct : float or None
        The same with the resource so good that it costs nothing any more.
    bound_reason : str or None
        Why there are no bounds.
    shape_change : str or None
        What twice as good changes in the shape of the network, where it does.
    irrelevant : bool
        Whether it changes the step by less than 0.1 %, twice as good and unlimited.
    """

    resource: str
    owned_ns: int | None
    owned_pct: float | None
    utility_pct: float | None
    bound_pct: float | None
    unlimited_utility_pct: float | None
    unlimited_bound_pct: float | None
    bound_reason: str | None
    shape_change: str | None
    irrelevant: bool


class ErrorPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of an error.

    Attributes
    ----------
    part : str
        A kind of segment of the critical path, or a category of the time of ranks.
    predicted_ns, true_ns : float
        What it is of the step in the simulation, and as measured.
    difference_pct : float
        (predicted - true) in percent of the true step.
    """

    part: str
    predicted_ns: float
    true_ns: float
    difference_pct: float


class Anatomy(msgspec.Struct, frozen=True, kw_only=True):
    """What the error of a simulated step consists of.

    Attributes
    ----------
    truth : str
        The trace of what was measured.
    predicted_step_ns, true_step_ns : int
        The step.
    error_pct : float
        (predicted - true) / true x 100.
    path : list of ErrorPart
        By kinds of segments of the critical paths, the largest difference first; they sum to the
        error.
    ranks : list of ErrorPart
        By categories, of the average rank; they sum to the error too.
    """

    truth: str
    predicted_step_ns: int
    true_step_ns: int
    error_pct: float
    path: list[ErrorPart]
    ranks: list[ErrorPart]


class ExplainResult(SimulateResult, frozen=True, kw_only=True):
    """One simulation of a job, and why its headline step takes as long as it does.

    Attributes
    ----------
    headline_steps : list of str
        The one or two steps whose mean is explained.
    verdict : list of str
        The same in plain words, from the numbers below.
    places : list of Place
        Where the critical path spends most of the step.
    other_places : int
        How many more there are.
    other_places_ns : int
        Their time: with that of `places` it sums to the step.
    groups : list of ExposedGroup
        What each process group costs its ranks.
    collectives : list of ExposedCollective
        The same by type and size.
    resources : list of Worth
        What each resource could give back, the most first.
    refused : list of Refused
        Resources that do not apply.
    against : Anatomy or None
        What its error consists of, where a truth was given.
    """

    headline_steps: list[str]
    verdict: list[str]
    places: list[Place]
    other_places: int
    other_places_ns: int
    groups: list[ExposedGroup]
    collectives: list[ExposedCollective]
    resources: list[Worth]
    refused: list[Refused]
    against: Anatomy | None = None
