"""What a validation found, as plain records: for JSON and for tables.

The predictions of a lab are made in `lab`, everything is brought together in `whatif.validate`,
what it looks like is in `reports`.
"""

from __future__ import annotations

import msgspec


class IdentityError(msgspec.Struct, frozen=True, kw_only=True):
    """How far the replay of the measured transfers is off on one rank at the end of one step.

    Attributes
    ----------
    step : str
        Its annotation.
    rank : int
        The rank.
    error_ns : int
        Replayed minus measured completion.
    """

    step: str
    rank: int
    error_ns: int


class JobEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One traced job: replayed as measured, and on the network that it was traced on.

    Attributes
    ----------
    trace : str
        Directory of its traces.
    ranks : int
        Traced ranks.
    identity : list of IdentityError
        One of each step and rank.
    network : str or None
        Name of the calibrated network; None where there is none.
    measured_step_ns, baseline_step_ns : int or None
        The headline step, as measured and on that network.
    baseline_error_pct : float or None
        (baseline - measured) / measured x 100.
    no_baseline_reason : str or None
        Why there is no baseline.
    """

    trace: str
    ranks: int
    identity: list[IdentityError]
    network: str | None = None
    measured_step_ns: int | None = None
    baseline_step_ns: int | None = None
    baseline_error_pct: float | None = None
    no_baseline_reason: str | None = None

    @property
    def worst_identity_ns(self) -> int:
        """Largest size of an identity error."""
        return max((abs(one.error_ns) for one in self.identity), default=0)


class TableEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One collective in one band of sizes that a fit to the sizes between them has not seen.

    Attributes
    ----------
    folder : str
        Where the benchmark files are.
    machine : str
        Name of the device.
    network : str
        Preset that was fitted.
    collective, band : str
        What was measured; sizes are as the benchmark counts them.
    count : int
        Rows held out.
    median_error_pct : float
        Median of the absolute errors.
    worst_error_pct : float
        The error that is largest in absolute value, with its sign.
    bar_pct : float
        What the median must not exceed.
    """

    folder: str
    machine: str
    network: str
    collective: str
    band: str
    count: int
    median_error_pct: float
    worst_error_pct: float
    bar_pct: float


class LabPair(msgspec.Struct, frozen=True, kw_only=True):
    """The step at one bandwidth, predicted from the trace at another, and what it really was.

    Attributes
    ----------
    job : str
        Directory of the job.
    from_mbit, to_mbit : int
        Bandwidth of the trace, and of the prediction; where they are the same it is a baseline.
    predicted_ns : int
        The step with the link bandwidth changed and everything else as calibrated.
    low_ns, high_ns : int
        Between which it may be, by all that is uncertain.
    traced_ns, untraced_ns : float
        The true step, with the profiler and without.
    error_pct : float
        (predicted - traced) / traced x 100.
    noise_pct : float
        What two runs of the truth differ by.
    beyond_noise_pct : float
        What of the error's size the noise does not cover.
    """

    job: str
    from_mbit: int
    to_mbit: int
    predicted_ns: int
    low_ns: int
    high_ns: int
    traced_ns: float
    untraced_ns: float
    error_pct: float
    noise_pct: float
    beyond_noise_pct: float

    @property
    def held(self) -> bool:
        """Whether the interval holds the truth, give or take its noise."""
        noise = self.noise_pct / 100 * self.traced_ns
        return self.low_ns - noise <= self.traced_ns <= self.high_ns + noise


class LabDoubling(msgspec.Struct, frozen=True, kw_only=True):
    """What a link of twice the bandwidth is worth: predicted from one trace, and measured.

    Attributes
    ----------
    job : str
        Directory of the job.
    from_mbit : int
        Bandwidth that is doubled.
    predicted_pct, low_pct, high_pct : float
        Utility of doubling, and its least and most over the networks that the trace allows.
    measured_pct : float
        The same from the true traced steps.
    error_points : float
        Predicted minus measured.
    noise_pct : float
        What two runs of the doubled truth differ by.
    beyond_noise_points : float
        What of the error's size the noise does not cover.
    """

    job: str
    from_mbit: int
    predicted_pct: float
    low_pct: float
    high_pct: float
    measured_pct: float
    error_points: float
    noise_pct: float
    beyond_noise_points: float

    @property
    def held(self) -> bool:
        """Whether the interval holds what was measured, give or take its noise."""
        low, high = self.low_pct - self.noise_pct, self.high_pct + self.noise_pct
        return low <= self.measured_pct <= high


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One bar, and what the evidence gives for it.

    Attributes
    ----------
    evidence : str
        What was looked at.
    cases : int
        How often.
    value : float
        What must not exceed the bar.
    plain : float or None
        The same without the allowance for noise, where there is one.
    bar : float
        The bar.
    unit : str
        Of all three: ``ns``, ``%`` or ``points``.
    passed : bool
        Whether the value is within the bar, of every case.
    """

    evidence: str
    cases: int
    value: float
    plain: float | None = None
    bar: float
    unit: str
    passed: bool


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was found and could not be used.

    Attributes
    ----------
    path : str
        File or directory.
    reason : str
        Why.
    """

    path: str
    reason: str


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a validation found.

    Attributes
    ----------
    checks : list of Check
        One line for each kind of evidence that there is.
    passed : bool
        Whether all of them are within their bars.
    limit_pct : float
        Largest size of a baseline's error.
    jobs, tables, pairs, doublings
        The evidence.
    unused : list of Unused
        What was found and is part of no evidence.
    """

    checks: list[Check]
    passed: bool
    limit_pct: float
    jobs: list[JobEvidence]
    tables: list[TableEvidence]
    pairs: list[LabPair]
    doublings: list[LabDoubling]
    unused: list[Unused]
