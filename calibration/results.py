"""What a calibration found, as plain records: for JSON, for tables, and for the notes of a network.

How it is found is in `calibrate`, what it looks like as a table in `reports`.
"""

from __future__ import annotations

import msgspec

# msgspec resolves the annotations when it decodes, so these are needed at run time.
from ..simulator.astra.files import MemoryFile, NetworkFile, SystemFile  # noqa: TC001
from ..simulator.network import Network, Overlap  # noqa: TC001


class FitRow(msgspec.Struct, frozen=True, kw_only=True):
    """How well the network explains one kind of operation.

    Attributes
    ----------
    collective : str
        Label of the `Collective`.
    size_bytes : int
        Input bytes of one rank.
    ranks, domains : int
        Members of the group, and scale-up domains that hold them.
    shared : bool
        Whether these operations met others on their ports; the model then includes sharing.
    count : int
        Operations of the kind.
    median_ns, measured_ns : float
        Median of the measured transfer times, and their mean with outliers clipped
        (`observed.Observed`), which is what the network is fitted to.
    model_ns : float
        What the network charges.
    residual_pct : float
        Model against measured, in percent of the measured time.
    """

    collective: str
    size_bytes: int
    ranks: int
    domains: int
    shared: bool = False
    count: int
    median_ns: float
    measured_ns: float
    model_ns: float
    residual_pct: float


class FittedValue(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the network.

    Attributes
    ----------
    tier : str
        Name of the tier, or of the dimension where several are called the same.
    name : str
        ``efficiency`` (or ``bandwidth_gb_s`` where no nominal one is known), ``latency_ns``,
        ``base_ns``, ``endpoint_ns_per_byte``, or the label of a collective: its bandwidth over
        that of the tier, or in CPU jobs what a byte costs it more at the ends, in ns.
    value : float
        What the network has.
    low, high : float or None
        Interval that holds 90 of 100 bootstrap draws, and the other readings that the data
        allow; None where the value is not from the data and they allow no other.
    origin : str
        ``fitted``, ``held`` (as in the nominal network, because the transfers do not determine
        it), ``limit`` (they ask for more than is possible) or ``unused`` (none uses it).
    nominal : float
        What the nominal network has.
    """

    tier: str
    name: str
    value: float
    low: float | None
    high: float | None
    origin: str
    nominal: float


class SlowedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one name whose work is known, and what they take beside transfers.

    Attributes
    ----------
    rank : int
        Where.
    name : str
        Of the operation.
    count : int
        How often they ran beside one.
    alone_ns : float
        What they take alone, in the mean.
    slowdown : float
        How much longer they took, all together, as a fraction.
    """

    rank: int
    name: str
    count: int
    alone_ns: float
    slowdown: float


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer compute takes beside transfers.

    Attributes
    ----------
    overlap : Overlap or None
        None without evidence, and durations then stay as measured.
    ends : list of Overlap
        Between which it may be, the least first; empty without evidence or draws.
    operations : list of SlowedOperation
        The evidence, most time beside transfers first.
    """

    overlap: Overlap | None
    ends: list[Overlap]
    operations: list[SlowedOperation]


class AstraFitRow(msgspec.Struct, frozen=True, kw_only=True):
    """How well ASTRA-sim explains one kind of operation, with the fitted files.

    Attributes
    ----------
    collective : str
        Label of the `Collective`.
    size_bytes : int
        Input bytes of one rank, as the .et files show them.
    ranks, domains : int
        Members of the group, and scale-up domains that hold them.
    count : int
        Operations of the kind.
    measured_ns : float
        Measured transfer time, the mean without stalls.
    simulated_ns : float
        The same in ASTRA-sim with the arrivals that were measured: from the last arrival to the
        mean end.
    alone_ns : int
        In ASTRA-sim with all members arriving at once, to the last end.
    residual_pct : float
        Simulated against measured, in percent of the measured time.
    """

    collective: str
    size_bytes: int
    ranks: int
    domains: int
    count: int
    measured_ns: float
    simulated_ns: float
    alone_ns: int
    residual_pct: float


class AstraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A network for ASTRA-sim's analytical backends, fitted under their physics.

    Attributes
    ----------
    network, system, memory
        The files.
    rows : list of AstraFitRow
        The measured transfers and what ASTRA-sim makes of them.
    step_ns, measured_step_ns : int or None
        Step of the job in ASTRA-sim, with the serial model, and as measured; None where the job
        was not simulated.
    step_error_pct : float or None
        Their difference in percent of the measured step.
    notes : list of str
        How the values came about, what is folded into them and what they cannot express.
    """

    network: NetworkFile
    system: SystemFile
    memory: MemoryFile
    rows: list[AstraFitRow]
    step_ns: int | None
    measured_step_ns: int | None
    step_error_pct: float | None
    notes: list[str]


class CalibrationResult(msgspec.Struct, frozen=True, kw_only=True):
    """A network calibrated on a trace.

    Attributes
    ----------
    trace : str
        Where the job was read from.
    ranks : int
        Ranks that were traced.
    network : Network
        The network, with its `alternatives` and everything that was assumed of it.
    placement : str
        Where the ranks sit in it.
    values : list of FittedValue
        Its numbers, tier by tier.
    slowdown : Slowdown
        Of compute beside transfers.
    rows : list of FitRow
        The measured transfers and what the network charges, most time first.
    transfers, shared : int
        Transfers that were used, and those of them that met others on their ports.
    held_out_error_pct : float or None
        Error on the half of the transfers that a fit to the other half did not see; None where
        there are too few.
    leave_one_out_error_pct : float or None
        Error on each kind of operation that a fit to the other kinds did not see; None where
        there is one kind only.
    clock_residual_ns : int
        How far apart the ends of symmetric collectives remain after clocks were aligned.
    baseline_step_ns, measured_step_ns : int or None
        Step on the network, and as measured.
    baseline_error_pct : float or None
        Their difference in percent of the measured step.
    limit_pct : float
        Largest size of `baseline_error_pct` that is still believed.
    beyond_limit : bool or None
        Whether it is larger; None without a measured step.
    warnings : list of str
        What to know before trusting the numbers.
    astra : AstraConfig or None
        The same network for ASTRA-sim, where that was asked for.
    """

    trace: str
    ranks: int
    network: Network
    placement: str
    values: list[FittedValue]
    slowdown: Slowdown
    rows: list[FitRow]
    transfers: int
    shared: int
    held_out_error_pct: float | None
    leave_one_out_error_pct: float | None
    clock_residual_ns: int
    baseline_step_ns: int | None
    measured_step_ns: int | None
    baseline_error_pct: float | None
    limit_pct: float
    beyond_limit: bool | None
    warnings: list[str]
    astra: AstraConfig | None = None
