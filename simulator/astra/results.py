"""What a simulation under ASTRA-sim's physics reports, as plain records, whoever computed it."""

from __future__ import annotations

import msgspec


class AstraRank(msgspec.Struct, frozen=True, kw_only=True):
    """What ASTRA-sim prints of a rank.

    Attributes
    ----------
    rank : int
        Of the experiment: the number of the .et file. Of a trace: the global rank.
    finish_cycles : int
        When it has nothing left to do; a cycle is a nanosecond.
    exposed_cycles : int
        The same without its computations, modulo 2^64.
    """

    rank: int
    finish_cycles: int
    exposed_cycles: int


class AstraResult(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment under the physics of ASTRA-sim's analytical backends.

    Attributes
    ----------
    trace : str
        What was simulated: the trace, or the prefix of the .et files.
    engine : str
        ``whatif`` for our own parity engine, ``astra-sim`` for a real binary.
    binary : str or None
        The real binary.
    backend : str
        ``congestion_unaware`` or ``congestion_aware``.
    ranks : int
        Ranks of the network.
    topology : list of str
        Of each dimension.
    npus_count : list of int
        Ranks along each dimension.
    bandwidth_gib_s, latency_ns : list of float
        Of a link of each dimension.
    finish_cycles : int
        Of the last rank.
    per_rank : list of AstraRank
        All ranks.
    step_ns : int or None
        The headline step of a trace, which only our own engine knows; None for an experiment.
    measured_step_ns : int or None
        The same as it was measured.
    error_pct : float or None
        Their difference in percent of the measured step.
    folded, lost : list of str
        Of a trace: what of its network ASTRA-sim gets in another form, or does not get.
    warnings : list of str
        What ASTRA-sim accepts silently and wrongly, and what a real one said.
    """

    trace: str
    engine: str
    binary: str | None
    backend: str
    ranks: int
    topology: list[str]
    npus_count: list[int]
    bandwidth_gib_s: list[float]
    latency_ns: list[float]
    finish_cycles: int
    per_rank: list[AstraRank]
    step_ns: int | None
    measured_step_ns: int | None
    error_pct: float | None
    folded: list[str]
    lost: list[str]
    warnings: list[str]
