"""The function behind `whatif validate`: the standing evidence, on whatever data there is.

Jobs are replayed as measured and on their calibrated network, tables of collectives are fitted on
every other size, labs are predicted from one bandwidth to the others. Here the data are found and
the bars are applied; what is measured where is in the subpackages.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .base.errors import TraceError, UsageError, WhatIfError
from .base.progress import Progress, silent
from .base.settings import DEFAULT_LIMIT_PCT
from .conversion import announce_compilation, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .calibration.tables import TableRow
    from .graph.columns import ExecutionGraph
    from .sweeps.evidence_results import (
        Check,
        JobEvidence,
        LabDoubling,
        LabPair,
        TableEvidence,
        Unused,
        ValidationResult,
    )
    from .sweeps.lab import Truth

#: Largest median error, in percent, of a collective in a band of sizes that were held out. Small
#: messages are measured by loops that differ between sources by far more than that.
TABLE_BARS_PCT = {
    "below 64 KiB": 20.0,
    "64 KiB to 1 MiB": 25.0,
    "1 to 64 MiB": 15.0,
    "64 MiB and above": 10.0,
}

#: Largest mean and worst error of a predicted step, in percent, and of the utility of doubling, in
#: percentage points; what two runs of the truth differ by is allowed on top.
LAB_MEAN_PCT, LAB_WORST_PCT, LAB_UTILITY_POINTS = 5.0, 12.0, 4.0

_TRUTH = "truth.csv"
_FOLDER = re.compile(r"([1-9]\d*)mbit")
_TABLES = (".log", ".csv", ".parquet")


def validate(
    data: str | Path | None = None,
    *,
    lab: str | Path | None = None,
    limit_pct: float = DEFAULT_LIMIT_PCT,
    processes: int | None = None,
    progress: Progress = silent,
) -> ValidationResult:
    """Hold what the package says against what was measured.

    Parameters
    ----------
    data : str or Path, optional
        Directory that is searched, with all directories in it, for traces, for tables of
        collectives (nccl-tests and rccl-tests logs, CSV, Parquet), and for labs.
    lab : str or Path, optional
        A lab: a directory with ``truth.csv`` and ``JOB/MBITmbit`` directories of traces.
    limit_pct : float
        Largest size of a baseline's error, in percent.
    processes, progress
        As for `load`.

    Returns
    -------
    ValidationResult
        What cannot be used (incomplete or damaged traces, machines without a preset) is listed
        with the reason.

    Raises
    ------
    UsageError
        If no directory is given, or the limit makes no sense.
    TraceError
        If a directory does not exist or holds nothing to validate with, or if the truth of `lab`
        is malformed.
    """
    from .sweeps.job import check_limit

    given = [Path(one) for one in (data, lab) if one is not None]
    if not given:
        raise UsageError("nothing to validate with: give a directory of data, or a lab")
    check_limit(limit_pct)
    for folder in given:
        if not folder.is_dir():
            raise TraceError("no such directory", file=folder)
    found = _Found()
    if lab is not None:
        # Malformed, the lab that was asked for is an error; one that was merely found is not.
        found.add_lab(Path(lab))
    for folder in given:
        progress("looking for traces and tables", 0, 0)
        found.search(folder)
    evidence = _Evidence(unused=found.unused)
    if found.jobs:
        announce_compilation(progress)
    for done, folder in enumerate(found.jobs):
        progress("replaying jobs and predicting them", done, len(found.jobs))
        evidence.add_job(folder, found.labs, processes)
    evidence.add_unpredicted(found.labs)
    for done, (folder, files) in enumerate(found.tables.items()):
        progress("fitting tables of collectives", done, len(found.tables))
        evidence.add_tables(folder, files)
    if not (evidence.jobs or evidence.tables):
        reasons = [f"{one.path}: {one.reason}" for one in evidence.unused[:3]]
        raise TraceError(
            f"nothing to validate with{': ' if reasons else ''}{'; '.join(reasons)}",
            file=given[0],
        )
    return evidence.result(limit_pct)


@dataclass
class _Found:
    """Directories of traces, benchmark files by directory, and truths by directory of the lab."""

    jobs: list[Path] = field(default_factory=list)
    tables: dict[Path, list[Path]] = field(default_factory=dict)
    labs: dict[Path, list[Truth]] = field(default_factory=dict)
    unused: list[Unused] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def add_lab(self, folder: Path) -> None:
        from .sweeps.lab import read_truth

        self.labs[folder.resolve()] = read_truth(folder / _TRUTH)

    def search(self, top: Path) -> None:
        from .sweeps.evidence_results import Unused

        for folder, files in _folders(top):
            # A lab may lie within the data, and be given on top.
            if folder.resolve() in self.seen:
                continue
            self.seen.add(folder.resolve())
            if _TRUTH in files and folder.resolve() not in self.labs:
                try:
                    self.add_lab(folder)
                except TraceError as error:
                    self.unused.append(Unused(path=str(folder / _TRUTH), reason=error.message))
            tables = [folder / name for name in files if name != _TRUTH and _is_table(name)]
            if tables:
                self.tables[folder] = tables
            if _holds_traces(folder):
                self.jobs.append(folder)


def _folders(top: Path) -> Iterator[tuple[Path, list[str]]]:
    """Walk through a directory in the order of names and of the numbers they begin with."""
    for folder, inner, files in os.walk(top):
        inner[:] = sorted((name for name in inner if not name.startswith(".")), key=_by_number)
        yield Path(folder), sorted(files)


def _by_number(name: str) -> tuple[float, str]:
    number = re.match(r"\d+", name)
    return (float(number[0]) if number else math.inf), name


def _is_table(name: str) -> bool:
    return name.lower().endswith(_TABLES)


def _holds_traces(folder: Path) -> bool:
    """Whether traces are in a directory itself."""
    from .converters.kineto.discover import holds_kineto
    from .converters.xla.discover import kind_of

    return holds_kineto(folder) or any(kind_of(file) for file in folder.iterdir() if file.is_file())


def _lab_of(pair: LabPair) -> Path:
    return Path(pair.job).resolve().parent


@dataclass
class _Evidence:
    """What was found out so far."""

    jobs: list[JobEvidence] = field(default_factory=list)
    tables: list[TableEvidence] = field(default_factory=list)
    pairs: list[LabPair] = field(default_factory=list)
    doublings: list[LabDoubling] = field(default_factory=list)
    unused: list[Unused] = field(default_factory=list)
    labs: list[Path] = field(default_factory=list)

    def add_job(self, folder: Path, labs: dict[Path, list[Truth]], processes: int | None) -> None:
        """Take a directory of traces: identity, baseline, and the lab that it is part of."""
        try:
            graph = load(folder, processes=processes)
            self.jobs.append(_job_evidence(folder, graph))
        except WhatIfError as error:
            self._leave_out(folder, error.message)
            return
        truths = labs.get(folder.resolve().parent.parent)
        speed = _FOLDER.fullmatch(folder.name)
        if truths is not None and speed is not None:
            self._add_lab(folder, graph, int(speed[1]), truths)

    def _add_lab(self, folder: Path, graph: ExecutionGraph, mbit: int, all_of: list[Truth]) -> None:
        from .sweeps.lab import predict

        truths = [one for one in all_of if one.job == folder.resolve().parent.name]
        if not truths:
            self._leave_out(folder, f"its job has no row in {_TRUTH}")
            return
        try:
            found = predict(graph, str(folder.parent), mbit, truths)
        except WhatIfError as error:
            self._leave_out(folder, error.message)
            return
        self.pairs += found.pairs
        if found.doubling is not None:
            self.doublings.append(found.doubling)

    def add_unpredicted(self, labs: dict[Path, list[Truth]]) -> None:
        """Take the truths that no trace predicted."""
        for folder, truths in labs.items():
            jobs = {Path(pair.job).name for pair in self.pairs if _lab_of(pair) == folder}
            self.labs.append(folder)
            for job in dict.fromkeys(one.job for one in truths if one.job not in jobs):
                reason = f"no trace in {job}/<number>mbit predicts its rows"
                self._leave_out(folder / _TRUTH, reason)

    def add_tables(self, folder: Path, files: Iterable[Path]) -> None:
        """Fit the benchmark tables of a directory on half of their sizes, one machine each."""
        from .calibration.tables import read_tables

        machines: dict[str, list[TableRow]] = {}
        for file in files:
            try:
                rows = read_tables([file]).rows
            except TraceError as error:
                self._leave_out(file, error.message)
                continue
            for row in rows:
                if row.ranks > 1:
                    machines.setdefault(row.machine, []).append(row)
        for machine, of_machine in machines.items():
            try:
                self.tables += _table_evidence(folder, machine, of_machine)
            except WhatIfError as error:
                self._leave_out(folder, f"{machine}: {error.message}")

    def _leave_out(self, path: Path, reason: str) -> None:
        from .sweeps.evidence_results import Unused

        self.unused.append(Unused(path=str(path), reason=reason))

    def result(self, limit_pct: float) -> ValidationResult:
        """Apply the bars."""
        from .sweeps.evidence_results import ValidationResult

        checks = [*self._job_checks(limit_pct), *self._table_checks(), *self._lab_checks()]
        return ValidationResult(
            checks=checks,
            passed=all(one.passed for one in checks),
            limit_pct=limit_pct,
            jobs=self.jobs,
            tables=self.tables,
            pairs=self.pairs,
            doublings=self.doublings,
            unused=self.unused,
        )

    def _job_checks(self, limit_pct: float) -> Iterator[Check]:
        from .sweeps.evidence_results import Check

        if not self.jobs:
            return
        worst = max(job.worst_identity_ns for job in self.jobs)
        yield Check(
            evidence="measured replay gives the measured steps, worst of each rank",
            cases=len(self.jobs),
            value=worst,
            bar=0,
            unit="ns",
            passed=worst == 0,
        )
        errors = [
            abs(job.baseline_error_pct) for job in self.jobs if job.baseline_error_pct is not None
        ]
        yield Check(
            evidence="baseline on the calibrated network, worst job",
            cases=len(errors),
            value=max(errors, default=0.0),
            bar=limit_pct,
            unit="%",
            # A baseline that is not known is as good as one beyond the limit.
            passed=len(errors) == len(self.jobs) and max(errors) <= limit_pct,
        )

    def _table_checks(self) -> Iterator[Check]:
        from .sweeps.evidence_results import Check

        for band, bar in TABLE_BARS_PCT.items():
            medians = [one.median_error_pct for one in self.tables if one.band == band]
            if medians:
                yield Check(
                    evidence=f"collectives of sizes held out, {band}, worst median",
                    cases=len(medians),
                    value=max(medians),
                    bar=bar,
                    unit="%",
                    passed=max(medians) <= bar,
                )

    def _lab_checks(self) -> Iterator[Check]:
        from .sweeps.evidence_results import Check

        unpredicted = set(self.labs) - {_lab_of(pair) for pair in self.pairs}
        if unpredicted:
            yield Check(
                evidence="labs of which no step was predicted",
                cases=len(self.labs),
                value=len(unpredicted),
                bar=0,
                unit="",
                passed=False,
            )
        pairs = [pair for pair in self.pairs if pair.from_mbit != pair.to_mbit]
        beyond = [pair.beyond_noise_pct for pair in pairs]
        plain = [abs(pair.error_pct) for pair in pairs]
        if pairs:
            mean, worst = sum(beyond) / len(beyond), max(beyond)
            for name, value, raw, bar in (
                ("mean", mean, sum(plain) / len(plain), LAB_MEAN_PCT),
                ("worst", worst, max(plain), LAB_WORST_PCT),
            ):
                yield Check(
                    evidence=f"step at another bandwidth, {name} error beyond noise",
                    cases=len(pairs),
                    value=value,
                    plain=raw,
                    bar=bar,
                    unit="%",
                    passed=value <= bar,
                )
        if self.doublings:
            worst = max(one.beyond_noise_points for one in self.doublings)
            yield Check(
                evidence="utility of doubling the bandwidth, worst error beyond noise",
                cases=len(self.doublings),
                value=worst,
                plain=max(abs(one.error_points) for one in self.doublings),
                bar=LAB_UTILITY_POINTS,
                unit="points",
                passed=worst <= LAB_UTILITY_POINTS,
            )


def _job_evidence(folder: Path, graph: ExecutionGraph) -> JobEvidence:
    from msgspec.structs import replace

    from .base.errors import NetworkError
    from .graph.compress import compress
    from .graph.steps import step_completions
    from .simulator.run import simulate
    from .sweeps.evidence_results import IdentityError, JobEvidence
    from .sweeps.job import prepare

    replay = simulate(compress(graph), measured=True)
    off = replay.completion_ns - step_completions(graph, graph.end_ns)
    made = JobEvidence(
        trace=str(folder),
        ranks=graph.num_ranks,
        identity=[
            IdentityError(step=step, rank=rank, error_ns=error)
            for step, row in zip(graph.steps.names, off.tolist(), strict=True)
            for rank, error in zip(graph.ranks.tolist(), row, strict=True)
        ],
        measured_step_ns=replay.measured_step_ns,
    )
    try:
        job = prepare(graph)
    except NetworkError as error:
        return replace(made, no_baseline_reason=error.message)
    return replace(
        made,
        network=job.network.name,
        baseline_step_ns=job.baseline.step_ns,
        baseline_error_pct=job.baseline_error_pct,
    )


def _table_evidence(folder: Path, machine: str, rows: list[TableRow]) -> list[TableEvidence]:
    from .base.errors import NetworkError
    from .calibration.table_fit import fit_tables
    from .calibration.tables import alternate_sizes
    from .simulator.network import match_preset
    from .sweeps.evidence_results import TableEvidence

    preset = match_preset(machine, max(row.ranks for row in rows), []) if machine else None
    if preset is None:
        raise NetworkError("no preset is of this machine")
    seen, held_out = alternate_sizes(rows)
    if not held_out:
        raise TraceError("one size only: none is left to hold out")
    return [
        TableEvidence(
            folder=str(folder),
            machine=machine,
            network=preset.name,
            collective=one.collective,
            band=one.band,
            count=one.count,
            median_error_pct=one.median_pct,
            worst_error_pct=one.worst_pct,
            bar_pct=TABLE_BARS_PCT[one.band],
        )
        for one in fit_tables(seen, preset).residuals(held_out)
    ]
