"""Predictions against reality: jobs that were run on links of several bandwidths.

A lab is a directory with ``truth.csv`` and ``JOB/MBITmbit/rankN_trace.json.gz``, as
``examples/lab`` records it. A network is calibrated on the trace at one bandwidth, its links get
the bandwidth of every other one whose step was measured, and the job is simulated on it. Nothing
but the link speed is taken from the names of the folders, and nothing at all from the truth.
Traces are found and read elsewhere.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ..base.errors import TraceError
from ..calibration.calibrate import DRAWS, calibrate
from ..calibration.nominal import nominal_network
from ..graph.compress import compress
from ..simulator.placement import place
from ..simulator.run import simulate
from .evidence_results import LabDoubling, LabPair
from .intervals import OTHER_SPEED, interval, sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ..graph.columns import ExecutionGraph
    from ..simulator.network import Network
    from ..simulator.run import Simulation

#: Columns of the truth that are used; step times are in ms.
TRUTH_COLUMNS = (
    *("job", "mbit", "step_ms_run1", "step_ms_run2"),
    *("traced_step_ms", "noise_pct"),
)

_MBIT_PER_GB_S = 8000.0
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Truth:
    """The true step of a job at one bandwidth.

    Attributes
    ----------
    job : str
        Name of its directory.
    mbit : int
        Bandwidth of the links.
    untraced_ns, traced_ns : float
        Mean of two runs without the profiler, and with it.
    noise_pct : float
        Difference of the two traced runs over their mean.
    """

    job: str
    mbit: int
    untraced_ns: float
    traced_ns: float
    noise_pct: float


def read_truth(file: Path) -> list[Truth]:
    """Read the true steps of a lab.

    Parameters
    ----------
    file : Path
        A table with at least the columns `TRUTH_COLUMNS`.

    Returns
    -------
    list of Truth

    Raises
    ------
    TraceError
        If the file cannot be read, lacks a column, holds something else than numbers above 0
        (noise may be 0), or has two rows for one job and bandwidth.
    """
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(opened)
            missing = [name for name in TRUTH_COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise TraceError(f"is no truth of a lab: no column {missing[0]}", file=file)
            truths = [_truth(row, file, reader.line_num) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"cannot be read: {error}", file=file) from error
    seen: set[tuple[str, int]] = set()
    for one in truths:
        if (one.job, one.mbit) in seen:
            raise TraceError(f"has two rows for {one.job} at {one.mbit} Mbit/s", file=file)
        seen.add((one.job, one.mbit))
    return truths


def _truth(row: dict[str, str], file: Path, line: int) -> Truth:
    numbers = {}
    for name in TRUTH_COLUMNS[1:]:
        try:
            numbers[name] = float(row[name])
        except (TypeError, ValueError):
            numbers[name] = math.nan
        least = 0.0 if name == "noise_pct" else math.ulp(0.0)
        if not least <= numbers[name] < math.inf:
            raise TraceError(
                f"{name} is {row[name]!r}, not a number above 0", file=file, place=f"line {line}"
            )
    return Truth(
        job=row["job"],
        mbit=round(numbers["mbit"]),
        untraced_ns=(numbers["step_ms_run1"] + numbers["step_ms_run2"]) / 2 * _NS_PER_MS,
        traced_ns=numbers["traced_step_ms"] * _NS_PER_MS,
        noise_pct=numbers["noise_pct"],
    )


@dataclass(frozen=True)
class Predictions:
    """What the trace of a job at one bandwidth says of the others.

    Attributes
    ----------
    pairs : list of LabPair
        One for each bandwidth with a truth, that of the trace included if it has one.
    doubling : LabDoubling or None
        Where the bandwidth of the trace and its double have a truth.
    """

    pairs: list[LabPair]
    doubling: LabDoubling | None


@dataclass(frozen=True)
class _Outcome:
    """A prediction, and the steps that are possible as well, by why they are."""

    simulation: Simulation
    ranges_ns: list[Sequence[float]]


def predict(
    graph: ExecutionGraph, name: str, mbit: int, truths: Iterable[Truth], *, draws: int = DRAWS
) -> Predictions:
    """Calibrate on a trace, and predict the step at every bandwidth that has a truth.

    Parameters
    ----------
    graph : ExecutionGraph
        Of the trace.
    name : str
        What to call the job.
    mbit : int
        Nominal bandwidth of its links in Mbit/s.
    truths : iterable of Truth
        Of this job.
    draws : int
        Bootstrap draws of the calibration, from which the intervals come.

    Returns
    -------
    Predictions

    Raises
    ------
    NetworkError, GraphError, UsageError
        If no network of that speed can be calibrated on the trace.
    """
    nominal = nominal_network(graph, link_gb_s=mbit / _MBIT_PER_GB_S)
    placement = place(nominal, graph.ranks, graph.hosts, graph.world_size)
    network = calibrate(graph, nominal, placement, draws=draws).network
    allowed = [network.alternative(other) for other in network.alternatives]
    compressed = compress(graph)

    def simulated(one: Network, to: float) -> Simulation:
        return simulate(compressed, network=_faster(one, to / mbit), placement=placement)

    def outcome(to: int) -> _Outcome:
        others = [simulated(one, to).step_ns for one in allowed]
        speeds = [] if to == mbit else [to / OTHER_SPEED, to * OTHER_SPEED]
        return _Outcome(
            simulated(network, to),
            [*sources(network, others), [simulated(network, speed).step_ns for speed in speeds]],
        )

    by_mbit = {one.mbit: one for one in truths}
    outcomes = {to: outcome(to) for to in sorted({mbit, *by_mbit})}
    baseline = outcomes[mbit].simulation
    misfit = abs(baseline.step_ns / measured - 1) if (measured := baseline.measured_step_ns) else 0
    pairs = [
        _pair(name, mbit, truth, outcomes[to], misfit) for to, truth in sorted(by_mbit.items())
    ]
    doubling = None
    if mbit in by_mbit and 2 * mbit in by_mbit:
        doubling = _doubling(
            name, outcomes[mbit], outcomes[2 * mbit], by_mbit[mbit], by_mbit[2 * mbit]
        )
    return Predictions(pairs, doubling)


def _faster(network: Network, factor: float) -> Network:
    tiers = [
        msgspec.structs.replace(tier, bandwidth_gb_s=tier.bandwidth_gb_s * factor)
        for tier in network.tiers
    ]
    return msgspec.structs.replace(network, tiers=tiers)


def _pair(name: str, mbit: int, truth: Truth, outcome: _Outcome, misfit: float) -> LabPair:
    predicted = outcome.simulation.step_ns
    steady = outcome.simulation.step_times_ns[1:].tolist()
    # What is off on the network of the trace is no nearer on another.
    wrong = [predicted * (1 - misfit), predicted * (1 + misfit)]
    low, high = interval(predicted, [*outcome.ranges_ns, steady, wrong]) or (predicted, predicted)
    error = (predicted / truth.traced_ns - 1) * 100
    return LabPair(
        job=name,
        from_mbit=mbit,
        to_mbit=truth.mbit,
        predicted_ns=predicted,
        low_ns=round(low),
        high_ns=round(high),
        traced_ns=truth.traced_ns,
        untraced_ns=truth.untraced_ns,
        error_pct=error,
        noise_pct=truth.noise_pct,
        beyond_noise_pct=max(0.0, abs(error) - truth.noise_pct),
    )


def _doubling(
    name: str, before: _Outcome, after: _Outcome, truth: Truth, doubled: Truth
) -> LabDoubling:
    base = before.simulation
    predicted = _utility_pct(base.step_ns, after.simulation.step_ns)
    ranges = [
        [
            _utility_pct(*both)
            for both in zip(one or [base.step_ns] * len(other), other, strict=True)
        ]
        for one, other in zip(before.ranges_ns, after.ranges_ns, strict=True)
    ]
    steps = zip(base.step_times_ns[1:], after.simulation.step_times_ns[1:], strict=True)
    steady = [_utility_pct(*both) for both in steps]
    low, high = interval(predicted, [*ranges, steady]) or (predicted, predicted)
    measured = _utility_pct(truth.traced_ns, doubled.traced_ns)
    error = predicted - measured
    return LabDoubling(
        job=name,
        from_mbit=truth.mbit,
        predicted_pct=predicted,
        low_pct=low,
        high_pct=high,
        measured_pct=measured,
        error_points=error,
        noise_pct=doubled.noise_pct,
        beyond_noise_points=max(0.0, abs(error) - doubled.noise_pct),
    )


def _utility_pct(before_ns: float, after_ns: float) -> float:
    return float(1 - after_ns / before_ns) * 100
