"""The coverage report: what a conversion saw, matched, inferred, assumed and dropped."""

from __future__ import annotations

import msgspec


class Inference(msgspec.Struct, frozen=True):
    """Something the trace does not say and the converter worked out, with its evidence."""

    what: str
    count: int
    evidence: str


class Dropped(msgspec.Struct, frozen=True):
    """Something the trace has and the graph lacks, with the reason."""

    what: str
    count: int
    reason: str


class Coverage(msgspec.Struct):
    """What became of everything in the trace.

    Attributes
    ----------
    files : int
        Trace files read; `ignored_files` lists the others of the directory with the reason.
    events_seen, events_used : int
        Complete events in the files, and those that became (part of) a node.
    collectives_seen, collectives_matched : int
        Communication kernels (or CPU communication events) on all ranks, and those joined with
        all other members of their group.
    bytes_known : int
        Input bytes of the communication nodes whose size is known.
    bytes_unknown_nodes : int
        Communication nodes without a size: they cannot be priced on another network.
    assumed_members : int
        Members of groups that were not traced and were assumed to behave like those that were.
    inferred, assumed, dropped : list
        What was worked out, what was taken for granted, and what was left out and why.
    clock_residual_ns : int
        How far apart the ends of symmetric collectives remain after clock alignment (median).
    gap_share_pct : float
        Share of the steps that no dependency explains, over ranks (lane of the device or, in a
        CPU job, the main thread).
    critical_gap_pct : float
        Share of the critical path of the measured replay that is unexplained gap.
    warnings : list of str
        What a user should know before trusting a result.
    """

    files: int = 0
    ignored_files: list[str] = []
    events_seen: int = 0
    events_used: int = 0
    collectives_seen: int = 0
    collectives_matched: int = 0
    bytes_known: int = 0
    bytes_unknown_nodes: int = 0
    assumed_members: int = 0
    inferred: list[Inference] = []
    assumed: list[str] = []
    dropped: list[Dropped] = []
    clock_residual_ns: int = 0
    gap_share_pct: float = 0.0
    critical_gap_pct: float = 0.0
    warnings: list[str] = []
