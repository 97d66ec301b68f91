"""A directory of Kineto traces to one ExecutionGraph: the order in which things are done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import GraphError, TraceError, UsageError
from ...graph.columns import MOST_RANKS, LaneKind
from ...graph.coverage import Coverage, Dropped, Inference
from ..assemble import RankInput, assemble, measure_transfers
from ..clocks import Alignment, align
from ..match import match, symmetric_members
from ..models import add_markers, make_serial
from ..nodes import Names, RankNodes
from ..reporting import report_clocks, report_edges, report_matches
from ..windows import select_steps
from .comms import find_comms
from .cpu import add_cpu_job, complete_waits, keep_consistent, read_main, seen_waits
from .device import add_device
from .discover import discover
from .events import Category
from .host import add_host
from .job import read_job
from .steps import find_windows
from .waits import WaitsInput, add_stream_waits, find_waits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ...graph.columns import DependencyModel, ExecutionGraph
    from ..match import Matched
    from ..windows import Windows
    from .comms import Comms
    from .device import Device
    from .discover import Discovery
    from .events import KinetoTrace

_DEVICE_ROWS = (int(Category.KERNEL), int(Category.MEMCPY), int(Category.MEMSET))


@dataclass
class _Rank:
    """A rank on its way from events to nodes."""

    rank: int
    trace: KinetoTrace
    windows: Windows
    comms: Comms
    nodes: RankNodes
    device: Device | None = None


def convert_kineto(
    path: Path,
    *,
    model: DependencyModel | None = None,
    steps: Sequence[str] | None = None,
    assume_missing: bool = False,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExecutionGraph:
    """Convert the Kineto traces of a job.

    Parameters
    ----------
    path : Path
        A directory with one trace per rank, or one trace.
    model : str, optional
        Dependency model; the richest that the trace supports by default.
    steps : sequence of str, optional
        Consecutive steps to convert, by name or number; all by default.
    assume_missing : bool
        Assume the members of groups that were not traced to arrive with those that were.
    processes : int, optional
        Processes that read files at the same time.
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
        If the ranks contradict each other.
    UsageError
        If the model or the steps cannot be had from this trace.
    """
    found = discover(path)
    traces = read_job(found, processes=processes, progress=progress)
    on_device = any(bool(np.isin(t.category, _DEVICE_ROWS).any()) for t in traces)
    if not on_device and not any((t.category == int(Category.CPU_OP)).any() for t in traces):
        raise TraceError(
            "the trace has neither device work nor operations: nothing to convert",
            file=path,
            rank=traces[0].rank,
        )
    numbers = [int(t.rank or 0) for t in traces]
    _check_world_sizes(traces)
    world = max([t.world_size or 0 for t in traces] + [number + 1 for number in numbers])
    if world > MOST_RANKS:
        raise TraceError(f"says that the job has {world} ranks, which none has", file=path)
    windows = select_steps([find_windows(t) for t in traces], steps)
    chosen = _choose_model(model, traces, windows, on_device=on_device)
    names = Names()
    ranks = [
        _Rank(n, t, w, find_comms(t, world, device_job=on_device), RankNodes(names))
        for n, t, w in zip(numbers, traces, windows, strict=True)
    ]
    coverage = _coverage_of_files(found, traces)
    if not windows[0].marked:
        coverage.warnings.append("no step annotation: the whole trace is taken as one step")
    if on_device:
        _device_ranks(ranks, chosen, coverage)
    else:
        _cpu_ranks(ranks, coverage)
        if chosen == "serial":
            for rank in ranks:
                make_serial(rank.nodes)
    try:
        matched = match(
            numbers,
            [r.comms.ops for r in ranks],
            world,
            files=[r.trace.path for r in ranks],
            assume_missing=assume_missing,
        )
    except (TraceError, GraphError) as error:
        known = [text for text in coverage.warnings if "distributedInfo" in text][:4]
        if coverage.ignored_files:
            known.append(f"left out of the directory: {'; '.join(coverage.ignored_files[:4])}")
        if not known:
            raise
        raise type(error)(
            f"{error.message} ({'; '.join(known)})",
            file=error.file,
            rank=error.rank,
            place=error.place,
        ) from error
    alignment = _align(ranks, matched)
    inputs = [
        RankInput(
            r.rank,
            r.trace.host_name,
            _device_name(r.trace),
            r.nodes,
            r.comms.ops,
            r.trace.base_ns + offset,
            r.windows.begin_ns,
        )
        for r, offset in zip(ranks, alignment.offset_ns.tolist(), strict=True)
    ]
    transfers = measure_transfers(inputs, matched)
    _report_comms(coverage, ranks, matched)
    report_edges(coverage, (r.nodes for r in ranks))
    report_clocks(coverage, alignment, transfers.clock_errors)
    return assemble(
        inputs,
        matched,
        transfers,
        names,
        model=chosen,
        source="kineto-gpu" if on_device else "kineto-cpu",
        trace=str(path),
        world_size=world,
        step_names=windows[0].names,
        coverage=coverage,
    )


def _choose_model(
    wanted: DependencyModel | None,
    traces: list[KinetoTrace],
    windows: list[Windows],
    *,
    on_device: bool,
) -> DependencyModel:
    """Take the richest model that the trace supports, or the one that is wanted."""
    if wanted not in (None, "host", "stream", "serial"):
        raise UsageError(f"unknown model {wanted!r}; there are host, stream and serial")
    if not on_device:
        if wanted == "stream":
            raise UsageError(
                "the stream model needs device work; in a CPU job host operations are the "
                "compute: use the host model"
            )
        return wanted or "host"
    launches = all(
        bool(
            (
                (t.category == int(Category.RUNTIME))
                & (t.start_ns >= w.begin_ns[0])
                & (t.start_ns < w.end_ns[-1])
            ).any()
        )
        for t, w in zip(traces, windows, strict=True)
    )
    if wanted == "host" and not launches:
        raise UsageError(
            "the host model needs launch calls, which this trace lacks; use the stream model"
        )
    return wanted or ("host" if launches else "stream")


def _device_ranks(ranks: list[_Rank], model: DependencyModel, coverage: Coverage) -> None:
    """Build the nodes of all ranks of a device job."""
    for rank in ranks:
        rank.device = add_device(rank.nodes, rank.trace, rank.comms, rank.windows)
    if model == "serial":
        for rank in ranks:
            _keep_converted(rank)
            add_markers(rank.nodes, rank.windows)
            make_serial(rank.nodes)
        return
    found = find_waits(
        [WaitsInput(r.trace, r.comms, r.device, r.windows) for r in ranks if r.device is not None]
    )
    for rank, waits in zip(ranks, found, strict=True):
        assert rank.device is not None
        _keep_converted(rank)
        add_stream_waits(rank.nodes, rank.device, waits)
        if model == "host":
            add_host(rank.nodes, rank.trace, rank.comms, rank.windows, rank.device, waits)
        else:
            add_markers(rank.nodes, rank.windows)
    assumed = sum(waits.assumed for waits in found)
    if assumed:
        coverage.assumed.append(
            f"{assumed} of {sum(w.choices for w in found)} waits between streams that could be for "
            "several operations, none of which was ever seen to hold anything up: taken in the "
            "order of issue; on other networks another may matter"
        )
    calls = sum(len(waits.assumed_calls) for waits in found)
    if calls and model == "host":
        coverage.assumed.append(
            f"{calls} synchronising calls never had to wait, so that nothing shows what for: for "
            "what was recorded or launched last"
        )


def _keep_converted(rank: _Rank) -> None:
    """Leave only the operations that became nodes, renumbered."""
    used = sorted(set(rank.nodes.op) - {-1})
    number = {old: new for new, old in enumerate(used)}
    rank.comms.ops = [rank.comms.ops[old] for old in used]
    rank.nodes.op = [number.get(op, -1) for op in rank.nodes.op]


def _cpu_ranks(ranks: list[_Rank], coverage: Coverage) -> None:
    """Build the nodes of all ranks of a CPU job."""
    mains = [read_main(r.trace, r.comms, r.windows) for r in ranks]
    waits = [seen_waits(r.trace, r.comms, m, r.windows) for r, m in zip(ranks, mains, strict=True)]
    waits, chance = keep_consistent(
        [r.trace for r in ranks], [r.comms for r in ranks], mains, waits
    )
    seen = sum(len(w) for w in waits)
    waits, elsewhere, assumed = complete_waits(
        [r.trace for r in ranks],
        mains,
        [r.windows for r in ranks],
        waits,
    )
    for rank, main, mine in zip(ranks, mains, waits, strict=True):
        add_cpu_job(rank.nodes, rank.trace, rank.comms, main, rank.windows, mine)
    for count, text in (
        (seen, "the main thread falls silent until just after the collective ends"),
        (elsewhere, "the same wait was seen at the same place in another step or rank"),
    ):
        if count:
            coverage.inferred.append(Inference("waits for collectives", count, text))
    if chance:
        why = "the same place did not wait for it in most steps and ranks"
        coverage.dropped.append(Dropped("silences that ended with a collective", chance, why))
    if assumed:
        coverage.assumed.append(
            f"{assumed} collectives were never seen waited for: waited for no later than the next "
            "one that was, or at the step's end"
        )


def _align(ranks: list[_Rank], matched: Matched) -> Alignment:
    """Find one clock for all ranks."""
    starts, ends, members = [], [], []
    node_of = [{op: node for node, op in enumerate(r.nodes.op) if op >= 0} for r in ranks]
    zero = ranks[0].trace.base_ns
    for instance in symmetric_members(matched, [r.comms.ops for r in ranks]):
        rows = [(ranks[r].nodes, node_of[r][i], ranks[r].trace.base_ns - zero) for r, i in instance]
        starts.append(np.array([nodes.start[n] + base for nodes, n, base in rows]))
        ends.append(np.array([nodes.end[n] + base for nodes, n, base in rows]))
        members.append(np.array([r for r, _ in instance]))
    return align([r.trace.host_name for r in ranks], starts, ends, members)


def _device_name(trace: KinetoTrace) -> str:
    if not trace.devices:
        return ""
    used = trace.device[np.isin(trace.category, _DEVICE_ROWS) & (trace.device >= 0)]
    ordinal = int(np.bincount(used).argmax()) if len(used) else 0
    return trace.devices[ordinal] if ordinal < len(trace.devices) else trace.devices[0]


def _check_world_sizes(traces: list[KinetoTrace]) -> None:
    """Refuse traces of jobs of different sizes, blaming the one that the fewest agree with."""
    votes = Counter(t.world_size for t in traces if t.world_size)
    if len(votes) < 2:
        return
    (usual, _), *_ = votes.most_common()
    agreeing = next(t for t in traces if t.world_size == usual)
    other = next(t for t in reversed(traces) if t.world_size not in (None, usual))
    raise TraceError(
        f"says that the job has {other.world_size} ranks, but {agreeing.path.name} says {usual}",
        file=other.path,
        rank=other.rank,
    )


def _coverage_of_files(found: Discovery, traces: list[KinetoTrace]) -> Coverage:
    """Begin the coverage report with what was read."""
    coverage = Coverage(
        files=len(traces), ignored_files=[f"{name.name}: {why}" for name, why in found.ignored]
    )
    others = [name.name for name, why in found.ignored if name.suffix == ".et" or "XLA" in why]
    if others:
        coverage.warnings.append(
            f"the directory holds traces of other kinds too, which are left out: "
            f"{', '.join(others[:4])}{f' and {len(others) - 4} more' if len(others) > 4 else ''}; "
            "only the Kineto traces count"
        )
    for trace in traces:
        coverage.events_seen += trace.events_seen
        coverage.warnings += [f"rank {trace.rank}: {text}" for text in trace.warnings]
    return coverage


def _report_comms(coverage: Coverage, ranks: list[_Rank], matched: Matched) -> None:
    """Report what became of communication."""
    evidence: Counter[str] = Counter()
    dropped: Counter[tuple[str, str]] = Counter()
    for rank in ranks:
        coverage.events_used += _events_used(rank)
        for op in rank.comms.ops:
            coverage.collectives_seen += 1
            evidence[op.evidence] += 1
            if op.size_bytes >= 0:
                coverage.bytes_known += op.size_bytes
            else:
                coverage.bytes_unknown_nodes += 1
        for _, name in rank.comms.unknown:
            dropped[f"operation of kernel {name}", "its type is not in the trace: guessed"] += 1
        if rank.comms.alone:
            dropped["communication in groups of one rank", "moves no data: kept as compute"] += len(
                rank.comms.alone
            )
        if rank.device is not None:
            for what, count in rank.device.dropped.items():
                dropped[what, "outside the chosen steps"] += count
        coverage.warnings += [f"rank {rank.rank}: {t}" for t in dict.fromkeys(rank.comms.warnings)]
    coverage.assumed += matched.assumptions
    cut = sum(rank.comms.cut_splits for rank in ranks)
    if cut:
        coverage.assumed.append(
            f"{cut} members of all-to-alls whose list of parts is cut short in the trace: equal "
            "parts"
        )
    roots = sum(rank.comms.assumed_roots for rank in ranks)
    if roots:
        coverage.assumed.append(
            f"{roots} broadcasts, reduces, gathers or scatters without a recorded root: the first "
            "member of the group"
        )
    coverage.inferred += [
        Inference("collective type, size and group", count, text)
        for text, count in sorted(evidence.items())
        if text != "kernel metadata"
    ]
    coverage.dropped += [Dropped(what, n, why) for (what, why), n in sorted(dropped.items())]
    report_matches(coverage, matched)


def _events_used(rank: _Rank) -> int:
    """Count the events that nodes stand for: device work, and what host lanes are made of."""
    trace, windows = rank.trace, rank.windows
    if rank.device is not None:
        used = len(rank.device.nodes_of)
        threads = {int(trace.thread[call]) for call in rank.device.call_of.values()}
    else:
        used, threads = len(rank.comms.ops), {windows.thread}
    if any(lane.kind is LaneKind.HOST and lane.number for lane in rank.nodes.lanes):
        used += int(
            (
                np.isin(trace.thread, sorted(threads | {windows.thread}))
                & np.isin(trace.category, [int(Category.CPU_OP), int(Category.RUNTIME)])
                & (trace.start_ns >= windows.begin_ns[0])
                & (trace.start_ns < windows.end_ns[-1])
            ).sum()
        )
    return used
