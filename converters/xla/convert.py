"""XLA profiles to one ExecutionGraph: the order in which things are done."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import TraceError, UsageError
from ...graph.columns import Collective
from ...graph.coverage import Coverage, Dropped
from ..assemble import RankInput, assemble, measure_transfers
from ..clocks import Alignment, align
from ..match import match, symmetric_members
from ..models import add_markers, make_serial
from ..nodes import Names, RankNodes
from ..reporting import report_clocks, report_edges
from ..windows import Windows, select_steps
from .beside import add_barriers, see_ends, without_flying
from .chip import Chip, ChipBuilder, ChipWork, copy_rates, join_flights
from .clock import find_clock
from .events import Platform
from .job import (
    Executed,
    JobDevice,
    check_programs,
    grid_of,
    largest_id,
    number_devices,
    read_profiles,
)
from .join import number_operations, settle_ends
from .leaves import Leaves, Meanings, find_leaves
from .report import report_conversion
from .runs import Runs, join_runs, runs_of_modules, runs_of_numbers, short_name, whole_trace
from .steps import find_steps, steps_of_runs, with_all_of_them
from .streams import device_leaves
from .unlike import missing_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ...graph.columns import DependencyModel, ExecutionGraph
    from ..match import Matched
    from .events import Profile

#: Chips of one host whose collectives end further apart than this have clocks of their own
#: (vLLM on v6e: within 0.2 us).
SAME_HOST_NS = 10_000


def convert_xla(
    path: Path,
    *,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ExecutionGraph:
    """Convert the XLA profiles of a job.

    Parameters
    ----------
    path : Path
        A profile (``xplane.pb`` or ``trace.json``), a directory with one for each host, or the
        directory that was given to the profiler.
    model : str, optional
        Dependency model, ``stream`` or ``serial``; ``stream`` by default.
    steps : sequence of str, optional
        Consecutive steps to convert, by name or number; all by default.
    assume_missing : bool
        Assume the members of groups that were not traced to arrive with those that were.
    progress : callable, optional
        Called with bytes read and bytes to read.

    Returns
    -------
    ExecutionGraph

    Raises
    ------
    TraceError
        If files are damaged or missing, or of no use.
    GraphError
        If the devices contradict each other.
    UsageError
        If the model or the steps cannot be had from this trace.
    """
    if model not in (None, "stream", "serial"):
        raise UsageError(
            f"an XLA profile has no launch calls to build the {model} model from; there are "
            "stream and serial"
            if model == "host"
            else f"unknown model {model!r}; there are stream and serial"
        )
    profiles, ignored = read_profiles(path, progress or (lambda _done, _total: None))
    coverage = Coverage(files=len(profiles), ignored_files=ignored)
    jobs = _devices(profiles, coverage)
    _find_runs(jobs, coverage)
    found = find_steps(
        [j.device for j in jobs],
        [j.clock for j in jobs],
        [j.profile.annotations for j in jobs],
        [[run for run in j.runs if run.kept] for j in jobs],
    )
    coverage.assumed.append(found.what)
    recorded = select_steps(found.windows, None)
    runs = [job.runs for job in jobs]
    step_of = steps_of_runs(runs, recorded, of_host=found.of_host)
    chosen = select_steps(with_all_of_them(recorded, runs, step_of), steps)
    names = Names()
    ranks = [_executed(job, window, names) for job, window in zip(jobs, chosen, strict=True)]
    if jobs[0].device.platform is not Platform.GPU:  # whose devices may choose other kernels
        coverage.warnings += missing_operations(
            [job.rank for job in jobs],
            [[leaf for leaves in rank.found for leaf in leaves.leaves] for rank in ranks],
            [job.runs for job in jobs],
        )
    world = max(
        [
            jobs[-1].rank + 1,
            largest_id([rank.work.leaves for rank in ranks]) + 1,
            *(
                sum(len(row) for row in program.devices)
                for profile in profiles
                for program in profile.programs.values()
            ),
        ]
    )
    numbers = [job.rank for job in jobs]
    if world > 1 and (assume_missing or len(ranks) == world):
        add_barriers(ranks)
    rates = copy_rates([rank.work for rank in ranks])
    _leave_out(jobs, step_of, recorded[0].names, chosen[0].names, coverage)
    for rank, row in zip(ranks, step_of, strict=True):
        rank.step_of = row
        rank.chip = _build(rank, world, set(numbers), rates, assume_missing=assume_missing)
    files = [job.profile.path for job in jobs]
    number_operations(numbers, [rank.chip for rank in ranks], files)
    matched = match(
        numbers,
        [rank.chip.ops for rank in ranks],
        world,
        files=files,
        assume_missing=assume_missing,
    )
    alignment = _align(ranks, matched)
    shift_ns = [
        rank.job.profile.base_ns + offset
        for rank, offset in zip(ranks, alignment.offset_ns.tolist(), strict=True)
    ]
    until_needed = settle_ends(
        [rank.chip for rank in ranks], [rank.nodes for rank in ranks], matched, shift_ns
    )
    for rank in ranks:
        add_markers(rank.nodes, rank.windows)
        if model == "serial":
            make_serial(rank.nodes)
    inputs = [
        RankInput(
            rank.job.rank,
            rank.job.profile.host,
            _device_name(rank.job),
            rank.nodes,
            rank.chip.ops,
            shift,
            rank.windows.begin_ns,
        )
        for rank, shift in zip(ranks, shift_ns, strict=True)
    ]
    # A chip writes into the memory of another, which must have come so far that it is free.
    transfers = measure_transfers(inputs, matched, rendezvous=True)
    report_conversion(coverage, profiles, ranks, matched, until_needed)
    report_edges(coverage, (rank.nodes for rank in ranks))
    report_clocks(coverage, alignment, transfers.clock_errors)
    return assemble(
        inputs,
        matched,
        transfers,
        names,
        model=model or "stream",
        source=f"xla-{jobs[0].device.platform.value}",
        trace=str(path),
        world_size=world,
        step_names=chosen[0].names,
        coverage=coverage,
    )


def _devices(profiles: list[Profile], coverage: Coverage) -> list[JobDevice]:
    """All devices with their clocks, by number."""
    numbered, assumption = number_devices(profiles)
    if assumption:
        coverage.assumed.append(assumption)
    jobs = []
    for number, profile, device in numbered:
        if not any(len(line) for line in device.lines):
            coverage.warnings.append(
                f"device {number} ({profile.host}) recorded no work: it is no rank"
            )
            continue
        clock = find_clock(device)
        if clock.misplaced:
            coverage.warnings.append(
                f"rank {number}: the profiler put {clock.misplaced} events up to "
                f"{clock.worst_ps / 1e9:.1f} ms from where the device's own clock has them; the "
                "device's clock is used"
            )
        meanings = Meanings(device, profile.programs, profile.path, number)
        jobs.append(JobDevice(number, device, profile, clock, meanings))
    return jobs


def _find_runs(jobs: list[JobDevice], coverage: Coverage) -> None:
    """Find the runs of every device, and the same runs on all of them."""
    found = []
    supposed: Counter[str] = Counter()
    for job in jobs:
        runs = Runs([])
        if job.device.platform is Platform.TPU:
            runs = runs_of_modules(job.device, job.clock)
        else:
            runs = runs_of_numbers(job.device)
        if not runs.runs:
            runs = whole_trace(job.device, job.clock)
        supposed += Counter(runs.warnings)
        job.runs = runs.runs
        _cut_capped(job, coverage)
        found.append(runs)
    check_programs(jobs)
    coverage.warnings += [f"{text} ({count} devices)" for text, count in supposed.items()]
    for (what, why), count in join_runs(found).items():
        coverage.dropped.append(Dropped(what, count, why))
    for job in jobs:
        if not any(run.kept for run in job.runs):
            raise TraceError(
                "no run of a program is whole on this device and recorded on the others too",
                file=job.profile.path,
                rank=job.rank,
            )


def _cut_capped(job: JobDevice, coverage: Coverage) -> None:
    """Leave out the runs that the exporter's limit cuts."""
    capped = job.profile.capped_at_ps
    if capped is None:
        return
    cut = [run for run in job.runs if run.seen_ps[1] > capped]
    for run in cut:
        run.kept = False
    text = (
        f"{job.profile.path.name} has {job.profile.events_seen} events: the exporter writes no "
        "more than the earliest million, so the end of the trace is missing; what it cuts is "
        "left out. The xplane.pb that it was exported from has all"
    )
    if text not in coverage.warnings:
        coverage.warnings.append(text)
    if cut:
        coverage.dropped.append(
            Dropped(f"runs of rank {job.rank}", len(cut), "cut by the limit of a million events")
        )
    if len(cut) == len(job.runs):
        raise TraceError(text, file=job.profile.path, rank=job.rank)


def _executed(job: JobDevice, windows: Windows, names: Names) -> Executed:
    """What a device executed, with starts and ends joined."""
    found: list[Leaves] = []
    nodes = RankNodes(names)
    if job.device.platform is not Platform.TPU:
        if not job.profile.programs and not all(op.text for op in job.device.ops):
            raise TraceError(
                "the profile has no compiled programs (/host:metadata), without which what "
                "communicates cannot be told from what computes",
                file=job.profile.path,
                rank=job.rank,
            )
        leaves = device_leaves(job)
        return Executed(job, ChipWork(leaves.leaves), [leaves], nodes, Chip(), windows)
    core = job.device.line("XLA Ops")
    if core is None:
        raise TraceError(
            "has no line of operations (XLA Ops)", file=job.profile.path, rank=job.rank
        )
    found.append(find_leaves(job.device, core, job.clock, job.runs, job.meanings))
    work = join_flights(found[0].leaves)
    for line in job.device.lines:
        if line.name.startswith("Sparse core"):
            sparse = find_leaves(job.device, line, job.clock, job.runs, job.meanings)
            found.append(sparse)
            number = int(line.name.rsplit(" ", 1)[1])
            work.sparse[number] = without_flying(sparse.leaves, work)
    see_ends(job, work)
    return Executed(job, work, found, nodes, Chip(), windows)


def _leave_out(
    jobs: list[JobDevice],
    step_of: list[list[int]],
    recorded: tuple[str, ...],
    chosen: tuple[str, ...],
    coverage: Coverage,
) -> None:
    """Number the steps of runs as they were chosen; -1 for those that are left out, reported."""
    place = {recorded.index(name): k for k, name in enumerate(chosen)}
    left: Counter[tuple[str, str]] = Counter()
    for job, row in zip(jobs, step_of, strict=True):
        for number, run in enumerate(job.runs):
            step = row[number]
            row[number] = place.get(step, -1) if run.kept else -1
            if run.kept and row[number] < 0:
                why = {-1: "before the recorded step", len(recorded): "after the last one"}
                what = f"runs of {short_name(run.module)}" if run.module else "runs of programs"
                left[what, why.get(step, "in steps that are not chosen")] += 1
    coverage.dropped += [Dropped(what, count, why) for (what, why), count in left.items()]


def _build(
    rank: Executed,
    world: int,
    ranks: set[int],
    rates: dict[tuple[int, ...], float],
    *,
    assume_missing: bool,
) -> Chip:
    """Add the nodes of a device."""
    job = rank.job
    builder = ChipBuilder(
        rank.nodes,
        job.rank,
        job.runs,
        rank.step_of,
        [grid_of(job.meanings.program(run.module), world, ranks) for run in job.runs],
        job.profile.path,
        assume_missing=assume_missing,
    )
    if job.device.platform is Platform.TPU:
        builder.add(rank.work, rates, job.device.hbm_gb_s)
    else:
        builder.add_streams(rank.work.leaves)
    if not len(rank.nodes):
        raise TraceError(
            "executed nothing in the chosen steps", file=job.profile.path, rank=job.rank
        )
    return builder.chip


def _align(ranks: list[Executed], matched: Matched) -> Alignment:
    """Find one clock for all devices: one for each host, or for each device if that misfits."""
    starts, ends, members = [], [], []
    node_of = [{op: n for n, op in enumerate(r.nodes.op) if op >= 0} for r in ranks]
    zero = ranks[0].job.profile.base_ns
    ops = [rank.chip.ops for rank in ranks]
    for instance in symmetric_members(matched, ops):
        r0, i0 = instance[0]
        unseen = any(i in ranks[r].chip.latest for r, i in instance)
        if ops[r0][i0].coll is Collective.BARRIER or unseen:
            continue
        rows = [
            (ranks[r].nodes, node_of[r][i], ranks[r].job.profile.base_ns - zero)
            for r, i in instance
        ]
        starts.append(np.array([nodes.start[n] + base for nodes, n, base in rows]))
        ends.append(np.array([nodes.end[n] + base for nodes, n, base in rows]))
        members.append(np.array([r for r, _ in instance]))
    hosts = [rank.job.profile.host for rank in ranks]
    by_host = align(hosts, starts, ends, members)
    if by_host.residual_ns <= SAME_HOST_NS and not by_host.violations:
        return by_host
    if ranks[0].job.device.platform is not Platform.TPU:
        return by_host  # one process, one clock: collectives there end as they please
    by_device = align(
        [f"{host}/{rank.job.rank}" for host, rank in zip(hosts, ranks, strict=True)],
        starts,
        ends,
        members,
    )
    better = (by_device.violations, by_device.residual_ns) < (
        by_host.violations,
        by_host.residual_ns,
    )
    return by_device if better else by_host


def _device_name(job: JobDevice) -> str:
    # A CPU device is a thread pool of the host: like any CPU job, it has no device name.
    return "" if job.device.platform is Platform.CPU else job.device.kind
