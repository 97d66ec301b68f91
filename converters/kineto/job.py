"""Reading all ranks of a job, and telling which rank each file is.

Files are read in parallel processes where that pays. A rank is taken from where it is surest:
what the trace says of itself, what its communication says, and last the name of the file.
Whether all ranks are there is for the converter, which knows the groups.
"""

from __future__ import annotations

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...base.errors import TraceError
from ..chrome.text import GZIP_MAGIC
from .reader import read_kineto

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from multiprocessing.sharedctypes import SynchronizedArray
    from pathlib import Path

    from .discover import Discovery
    from .events import KinetoTrace

    Progress = Callable[[int, int], None]


def read_job(
    found: Discovery,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    keep_host_ops: bool = True,
) -> list[KinetoTrace]:
    """Read the traces of all ranks of a job.

    Parameters
    ----------
    found : Discovery
        Its traces (`discover`).
    processes : int, optional
        How many processes read at a time; by default one per core, and none besides this one
        where the files are small. A script that calls this needs the usual
        ``if __name__ == "__main__"`` around its main part, since processes are spawned.
    progress : callable, optional
        Called with the bytes of the files read so far and their sum.
    keep_host_ops : bool
        See `read_kineto`.

    Returns
    -------
    list of KinetoTrace
        By ascending rank, each with `rank` set, and how it was found out where the trace does
        not say it among its warnings.

    Raises
    ------
    TraceError
        A file that cannot be used, two files of one rank, or a file among
        several whose rank nothing tells.
    """
    return assign_ranks(read_traces(found.traces, processes, progress, keep_host_ops))


def read_traces(
    files: Sequence[Path],
    processes: int | None = None,
    progress: Progress | None = None,
    keep_host_ops: bool = True,
) -> list[KinetoTrace]:
    """Read several traces, in parallel where that pays, in the order of `files`.

    Raises
    ------
    TraceError
        A file cannot be used.
    """
    sizes = [file.stat().st_size for file in files]
    if processes is None:
        text_bytes = sum(_text_bytes(file, size) for file, size in zip(files, sizes, strict=True))
        processes = (os.cpu_count() or 1) if text_bytes > _WORTH_PROCESSES_BYTES else 1
    processes = min(processes, len(files))
    report = progress or (lambda _done, _total: None)
    # A daemonic process, such as a worker of a pool, may not have children.
    if processes > 1 and not multiprocessing.current_process().daemon:
        return _read_in_processes(files, sizes, processes, report, keep_host_ops)
    traces, before, total = [], 0, sum(sizes)
    for file, size in zip(files, sizes, strict=True):

        def on_bytes(done: int, before: int = before) -> None:
            report(before + done, total)

        traces.append(read_kineto(file, keep_host_ops=keep_host_ops, on_bytes=on_bytes))
        before += size
    return traces


#: Starting a process and importing what it needs takes as long as reading about this much.
_WORTH_PROCESSES_BYTES = 100_000_000
_POLL_S = 0.1
# JSON traces shrink to about a fifteenth (trace-like text of data/traces: 11 to 19).
_GZIP_RATIO = 15


def _text_bytes(file: Path, size: int) -> int:
    with file.open("rb") as opened:
        return size * (_GZIP_RATIO if opened.read(2) == GZIP_MAGIC else 1)


_done_bytes: SynchronizedArray[int] | None = None


def _start_worker(done_bytes: SynchronizedArray[int]) -> None:
    global _done_bytes
    _done_bytes = done_bytes


def _read_in_worker(number: int, file: Path, keep_host_ops: bool) -> KinetoTrace:
    def on_bytes(done: int) -> None:
        if _done_bytes is not None:
            _done_bytes[number] = done

    return read_kineto(file, keep_host_ops=keep_host_ops, on_bytes=on_bytes)


def _read_in_processes(
    files: Sequence[Path],
    sizes: list[int],
    processes: int,
    report: Progress,
    keep_host_ops: bool,
) -> list[KinetoTrace]:
    # Spawned, since a fork of a process that runs threads (numba's, a caller's) may hang.
    context = multiprocessing.get_context("spawn")
    done_bytes = context.Array("q", len(files), lock=True)
    pool = ProcessPoolExecutor(processes, context, _start_worker, (done_bytes,))
    largest_first = sorted(range(len(files)), key=lambda i: -sizes[i])
    try:
        futures: dict[int, Future[KinetoTrace]] = {
            i: pool.submit(_read_in_worker, i, files[i], keep_host_ops) for i in largest_first
        }
        pending = set(futures.values())
        while pending:
            finished, pending = wait(pending, _POLL_S)
            for future in finished:
                future.result()  # fail at the first bad file, not after reading all others
            report(sum(done_bytes[:]), sum(sizes))
        return [futures[i].result() for i in range(len(files))]
    except BrokenProcessPool as error:
        raise TraceError(
            "a reading process died: out of memory, or a script without "
            '`if __name__ == "__main__"`; processes=1 reads in this process'
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def assign_ranks(traces: Sequence[KinetoTrace]) -> list[KinetoTrace]:
    """Find the rank of every trace.

    Parameters
    ----------
    traces : sequence of KinetoTrace
        All traces of a job.

    Returns
    -------
    list of KinetoTrace
        The same traces with `rank` (and, if communication tells it, `world_size`) set, by
        ascending rank.

    Raises
    ------
    TraceError
        Two traces of one rank, or a trace among several whose rank nothing tells.
    """
    ranked: dict[int, KinetoTrace] = {}
    for trace in traces:
        rank, evidence = _rank_of(trace)
        warnings = list(trace.warnings)
        if rank is None:
            if len(traces) > 1:
                raise TraceError(
                    "which rank this is cannot be told: no distributedInfo.rank, no rank in its "
                    "communication, none in its name (rename it to rank<N>.json)",
                    file=trace.path,
                )
            rank, evidence = 0, "taken for rank 0: nothing in the trace or its name tells"
        if evidence:
            warnings.append(evidence)
        if rank in ranked:
            raise TraceError(f"the same rank as {ranked[rank].path}", file=trace.path, rank=rank)
        world_size = trace.world_size if trace.world_size is not None else _world_size(trace)
        ranked[rank] = replace(trace, rank=rank, world_size=world_size, warnings=warnings)
    return [ranked[rank] for rank in sorted(ranked)]


def _rank_of(trace: KinetoTrace) -> tuple[int | None, str]:
    """Return the rank, and how it was told if not by the trace's own statement."""
    if trace.rank is not None:
        return trace.rank, ""
    ranks = {
        args["Rank"]
        for args in _default_group_records(trace)
        if isinstance(args.get("Rank"), int) and _own_rank(args)
    }
    if len(ranks) == 1:
        return ranks.pop(), "rank taken from its collectives on the default process group"
    rank = rank_in_name(trace.path.name)
    if rank is None:
        rank = rank_in_name(trace.path.resolve().parent.name)
    return rank, "rank taken from the file's name"


def _default_group_records(trace: KinetoTrace) -> list[dict[str, Any]]:
    return [
        args
        for args in trace.args.values()
        if args.get("Process Group Description") == "default_pg"
        or args.get("Process Group Name") in ("0", "default_pg")
    ]


def _own_rank(args: dict[str, Any]) -> bool:
    # For the others "Rank" is the root or the peer (facts of ProcessGroupNCCL).
    name = str(args.get("Collective name", "")).lower().replace("_", "")
    return name.startswith(("allreduce", "allgather", "reducescatter", "alltoall", "barrier"))


def _world_size(trace: KinetoTrace) -> int | None:
    sizes = {
        args["Group size"]
        for args in _default_group_records(trace)
        if isinstance(args.get("Group size"), int) and _own_rank(args)
    }
    return sizes.pop() if len(sizes) == 1 else None


# Names that PyTorch, its trainers and its servers give to traces. A date, a process id, a step
# or a batch is never a rank, so a number counts only beside one of these words.
_RANK_PATTERNS = (
    re.compile(r"(?<![a-z])rank[_\-=.\[(]?(\d+)", re.IGNORECASE),
    re.compile(r"-TP-(\d+)(?:-DP-0)?(?:-PP-0)?(?:-EP-\d+)?\.trace"),
    re.compile(r"^worker_?(\d+)(?=[._])"),
    re.compile(r"^kineto_(\d+)(?=[._])"),
)


def rank_in_name(name: str) -> int | None:
    """Read the rank from the name of a trace or of its directory, if it has one.

    Examples
    --------
    >>> rank_in_name("rank-12.20240131.5121.pt.trace.json.gz")
    12
    >>> rank_in_name("host_5121.1706850123.pt.trace.json") is None
    True
    """
    for pattern in _RANK_PATTERNS:
        if match := pattern.search(name):
            return int(match[1])
    return None
