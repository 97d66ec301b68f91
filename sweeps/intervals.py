"""How sure a utility is: its interval, and whether it stands out of the noise.

Several things make a utility uncertain. The measured transfers allow other networks about as well,
and what they show of compute beside transfers other slowdowns (`Network.alternatives`); a
resource is worth more on one than on another. A link of another speed may reach another share of
it. And no step is like the next. None knows of the others, so what they do to a utility is added
in quadrature, above it and below it on their own. The interval so covers the utility itself,
those on all alternatives and those of all steady steps.

Whether anybody would notice a gain is another question: the measured steps scatter, whatever the
model says. A gain within two standard errors of them is noise.

Nothing is simulated here but the baselines of the alternatives; the variants are in `run`.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..base.errors import GraphError
from ..calibration.parameters import ETHERNET_SPREAD
from ..simulator.run import simulate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..simulator.network import Alternative, Network
    from ..simulator.run import Simulation
    from .job import Job

SIGNIFICANT = "significant"
WITHIN_NOISE = "within noise"

#: Verdicts where there is nothing to judge by.
ONE_STEP = "one step recorded: spread unknown"
ONE_STEADY_STEP = "one steady step: spread unknown"
NOT_MEASURED = "no measured steps: noise unknown"

#: By how much more or less than its nominal speed says a link of another speed may be faster: as
#: far as the efficiency of Ethernet is known beforehand.
OTHER_SPEED = math.exp(ETHERNET_SPREAD)

#: Standard errors that a gain must be larger than: about 95 % of normal errors are smaller.
_ERRORS = 2


def without_alternatives(job: Job) -> Job:
    """Take the network of a job as certain, which spares the simulations of the others."""
    return dataclasses.replace(job, network=replace(job.network, alternatives=[]))


def on_alternative(job: Job, other: Alternative) -> Job:
    """Simulate a job on another network that its measurements allow.

    Parameters
    ----------
    job : Job
        On its baseline.
    other : Alternative
        One of those of its network.

    Returns
    -------
    Job
        Its `baseline` is the job on it; all else of the network stays.

    Raises
    ------
    NetworkError, GraphError
        If the job cannot be simulated so.
    """
    network = job.network.alternative(other)
    baseline = simulate(job.compressed, network=network, placement=job.placement)
    if baseline.step_ns <= 0:
        raise GraphError(
            f"its step takes no time on an alternative of network {network.name!r}",
            file=job.graph.trace or None,
        )
    return dataclasses.replace(job, network=network, baseline=baseline)


def sources(network: Network, results: Sequence[float]) -> list[Sequence[float]]:
    """Sort results on the alternatives of a network by what they are uncertain of.

    Parameters
    ----------
    network : Network
        Its alternatives differ in their tiers, or in how compute slows down beside transfers.
    results : sequence of float
        One for each alternative.

    Returns
    -------
    list of sequence of float
        Those that have nothing to do with each other are apart.
    """
    others = network.alternatives
    of_tiers = [other.overlap == network.overlap for other in others]
    return [
        [result for result, mine in zip(results, of_tiers, strict=True) if mine == tiers]
        for tiers in (True, False)
    ]


def interval(value: float, ranges: Iterable[Sequence[float]]) -> tuple[float, float] | None:
    """Combine what is uncertain for reasons that have nothing to do with each other.

    With v the value and c_i the least for reason i, ``low = v - sqrt(sum max(v - c_i, 0)^2)``;
    ``high`` likewise with the most.

    Parameters
    ----------
    value : float
        What is given.
    ranges : iterable of sequence of float
        For each reason the values that are possible as well; an empty one says nothing.

    Returns
    -------
    (float, float) or None
        None where no reason is known.
    """
    known = [(min(one), max(one)) for one in ranges if len(one)]
    if not known:
        return None
    below = math.hypot(*(max(value - low, 0.0) for low, _ in known))
    above = math.hypot(*(max(high - value, 0.0) for _, high in known))
    return value - below, value + above


def noise_pct(baseline: Simulation) -> float | None:
    """Two standard errors of the mean of the measured steady steps, in percent of their median.

    With n steady steps that have the sample standard deviation s, ``2 s / sqrt(n)``. None where
    fewer than two steady steps were measured.
    """
    times = [step.measured_ns for step in baseline.steps[1:] if step.measured_ns is not None]
    if len(times) < 2:
        return None
    error = statistics.stdev(times) / math.sqrt(len(times))
    return _ERRORS * error / statistics.median(times) * 100


def judge(
    utility_pct: float,
    span_pct: tuple[float, float] | None,
    noise: float | None,
    recorded_steps: int,
) -> str:
    """Say whether a utility is significant.

    Parameters
    ----------
    utility_pct : float
        Of the headline step.
    span_pct : (float, float) or None
        Its interval.
    noise : float or None
        From `noise_pct`.
    recorded_steps : int
        Steps of the trace, with the first, which is not a steady one unless it is alone.

    Returns
    -------
    str
        ``significant`` if the interval excludes 0 and the utility, gain or loss, is larger than
        the noise; ``within noise`` if not; what is missing where that cannot be told.
    """
    if recorded_steps < 3 or span_pct is None:
        return ONE_STEP if recorded_steps == 1 else ONE_STEADY_STEP
    if noise is None:
        return NOT_MEASURED
    excludes_zero = span_pct[0] > 0 or span_pct[1] < 0
    return SIGNIFICANT if excludes_zero and abs(utility_pct) > noise else WITHIN_NOISE


def basis(alternatives: int, recorded_steps: int) -> str:
    """Say in words what the intervals of a job rest on.

    Parameters
    ----------
    alternatives : int
        How many its network has.
    recorded_steps : int
        As for `judge`.
    """
    steady = recorded_steps - 1
    spread = f"the spread over {steady} steady steps"
    unknown = "the spread over steps is unknown"
    if alternatives:
        networks = (
            "the other network that the measurements allow"
            if alternatives == 1
            else f"{alternatives} other networks that the measurements allow"
        )
        return f"{networks}; {unknown}" if steady < 2 else f"{networks}, and {spread}"
    need = "`whatif calibrate` gives a network some"
    if steady < 2:
        return f"none: {unknown}, and no other network was simulated ({need})"
    return f"{spread} alone: no other network was simulated ({need})"
