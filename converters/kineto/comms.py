"""Finding the communication of one rank: which events are operations, and what each one moves.

A device kernel is described by its own arguments where they exist, and otherwise by the host
events around its launch (``record_param_comms``, ``nccl:*`` and ``c10d::*``); in a CPU job the
``gloo:*`` events on the communication threads are the operations. Joining the operations of
different ranks is done in `match`.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import TraceError
from ...graph.columns import Collective
from ..kernels import collective_from_kernel, is_communication_kernel
from ..operations import CommOp, GroupKey
from .device import launch_calls
from .events import Category
from .names import (
    collective_from_op,
    dtype_bytes,
    dtype_name,
    is_send,
)

if TYPE_CHECKING:
    from .events import KinetoTrace


@dataclass
class Comms:
    """All communication of one rank, by issue order, and what could not be understood."""

    #: Host events that describe communication.
    scopes: HostScopes
    ops: list[CommOp] = field(default_factory=list)
    unknown: list[tuple[int, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    issued_by: dict[int, int] = field(default_factory=dict)
    #: Communication kernels on groups of one rank: no traffic.
    alone: list[int] = field(default_factory=list)
    #: Rooted collectives whose root is not in the trace: the first member is taken.
    assumed_roots: int = 0
    #: All-to-alls whose list of parts the trace cuts short.
    cut_splits: int = 0


class HostScopes:
    """Host events that describe communication, to be looked up by thread and time."""

    def __init__(self, trace: KinetoTrace) -> None:
        self._trace = trace
        host = (int(Category.CPU_OP), int(Category.USER_ANNOTATION))
        by_thread: dict[int, list[int]] = {}
        for event in sorted(trace.args):
            if int(trace.category[event]) in host:
                by_thread.setdefault(int(trace.thread[event]), []).append(event)
        self._events = by_thread
        self._starts = {
            thread: [int(trace.start_ns[e]) for e in events] for thread, events in by_thread.items()
        }

    def enclosing(self, thread: int, time_ns: int) -> list[int]:
        """Events of a thread that are open at a time, outermost first."""
        trace, events = self._trace, self._events.get(thread, [])
        at = bisect_right(self._starts.get(thread, []), time_ns)
        # Communication scopes nest at most a few deep and do not overlap otherwise.
        return [
            event
            for event in events[max(0, at - 12) : at]
            if int(trace.start_ns[event] + trace.dur_ns[event]) > time_ns
        ]

    def between(self, thread: int, begin_ns: int, end_ns: int) -> list[int]:
        """Events of a thread that start in ``[begin_ns, end_ns)``."""
        starts = self._starts.get(thread, [])
        low, high = bisect_right(starts, begin_ns - 1), bisect_right(starts, end_ns - 1)
        return self._events.get(thread, [])[low:high]


def parse_ranks(text: object, size: int) -> tuple[int, ...] | None:
    """Members of a group from the text of ``Process Group Ranks``.

    PyTorch cuts lists of more than 30 entries, old versions to the first 30 and an ellipsis, new
    ones to the first 29, an ellipsis and the last. The text is made from start and stride, so a
    list with its last element is rebuilt exactly; an empty list says nothing.

    Parameters
    ----------
    text : object
        Text (or list) such as ``[0, 2, ..., 62]``.
    size : int
        Number of members, 0 if unknown.

    Returns
    -------
    tuple of int or None
        None where the list cannot be known.
    """
    if isinstance(text, list):
        return tuple(int(rank) for rank in text) or None
    if not isinstance(text, str):
        return None
    numbers = [int(number) for number in re.findall(r"-?\d+", text)]
    if "..." not in text:
        return tuple(numbers) if numbers and (not size or len(numbers) == size) else None
    if len(numbers) < 2:
        return None
    step = numbers[1] - numbers[0]
    if step <= 0 or any(b - a != step for a, b in pairwise(numbers[:-1])):
        return None
    if text.rstrip().endswith("...]"):
        last = numbers[0] + step * (size - 1) if size else -1
    else:
        last = numbers[-1]
    ranks = tuple(range(numbers[0], last + 1, step)) if last >= 0 else ()
    return ranks if ranks and (not size or len(ranks) == size) else None


def _int(value: object, default: int = -1) -> int:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]
    except (TypeError, ValueError):
        return default


def _numel(dims: Any) -> int:  # noqa: ANN401
    """Elements of a tensor, or of a list of tensors, from its ``Input Dims`` entry."""
    if not isinstance(dims, list):
        return -1
    if dims and all(isinstance(d, list) for d in dims):
        parts = [_numel(d) for d in dims]
        return -1 if any(p < 0 for p in parts) else sum(parts)
    total = 1
    for d in dims:
        if not isinstance(d, int):
            return -1
        total *= d
    return total


class _Reader:
    """Extracts the operations of one trace."""

    def __init__(self, trace: KinetoTrace, world_size: int) -> None:
        self.trace = trace
        self.world_size = world_size
        self.scopes = HostScopes(trace)
        self.out = Comms(self.scopes)
        self.config = {
            str(entry.get("pg_name")): entry for entry in trace.process_groups if "pg_name" in entry
        }
        self.unnamed: dict[str, GroupKey] = {}

    # -- groups -------------------------------------------------------------------------------

    def group(self, args: dict[str, Any]) -> GroupKey:
        """Group named by communication metadata."""
        name = str(args.get("Process Group Name", ""))
        size = _int(args.get("Group size"), 0)
        entry = self.config.get(name, {})
        ranks = parse_ranks(entry.get("ranks"), 0) if entry else None
        if ranks is None or (size and len(ranks) != size):
            start = _int(args.get("Global rank start"))
            stride = _int(args.get("Global rank stride"), 0)
            if start >= 0 and stride > 0 and size:
                ranks = tuple(range(start, start + stride * size, stride))
            else:
                ranks = parse_ranks(args.get("Process Group Ranks"), size)
        if ranks is None and size == self.world_size:
            ranks = tuple(range(self.world_size))
        description = str(args.get("Process Group Description", entry.get("pg_desc", "")))
        return GroupKey(name, ranks, size or len(ranks or ()), description, named=bool(name))

    def unnamed_group(self, scope_args: dict[str, Any]) -> GroupKey:
        """Group of an old ``record_param_comms``, known by its address and size only."""
        inputs = scope_args.get("Concrete Inputs")
        pointer, size = "", 0
        if isinstance(inputs, list) and len(inputs) >= 8:
            pointer, size = str(inputs[2]), _int(inputs[-1], 0)
        if not size:
            size = self.world_size
        if pointer not in self.unnamed:
            ranks = tuple(range(self.world_size)) if size == self.world_size else None
            self.unnamed[pointer] = GroupKey(pointer, ranks, size, named=False)
        return self.unnamed[pointer]

    # -- one operation ------------------------------------------------------------------------

    def from_metadata(
        self, event: int, args: dict[str, Any], order: int, evidence: str
    ) -> CommOp | None:
        """Operation described by ``Collective name`` and its companions, if it moves data."""
        name = str(args.get("Collective name", ""))
        coll = collective_from_op(name)
        if coll is Collective.NONE:
            return None
        dtype = str(args.get("dtype", ""))
        width = dtype_bytes(dtype)
        # An all-gather's input is its shard, a reduce-scatter's and a scatter's the whole:
        # "In msg nelems" is input elements, except that of a scatter, which is n x output.
        elements = _int(args.get("In msg nelems"))
        if coll is Collective.SCATTER:
            elements = _int(args.get("Out msg nelems"))
        size = elements * width if width is not None and elements >= 0 else -1
        if coll is Collective.BARRIER:
            size, dtype = 0, ""
        if width is None and elements >= 0:
            self.out.warnings.append(f"unknown data type {args.get('dtype')!r} of {name}")
        group = self.group(args)
        peer, sends = -1, False
        if coll is Collective.SEND_RECV:
            sends = is_send(name)
            peer = _int(args.get("Dst Rank" if sends else "Src Rank"))
            if peer < 0 and group.ranks is not None:
                local = _int(args.get("Rank"))
                peer = group.ranks[local] if 0 <= local < len(group.ranks) else -1
        elif coll in (
            Collective.BROADCAST,
            Collective.REDUCE,
            Collective.GATHER,
            Collective.SCATTER,
        ):
            root = _int(args.get("Rank"))
            if root < 0:
                root = 0
                self.out.assumed_roots += 1
            if group.ranks is not None and root < len(group.ranks):
                peer = group.ranks[root]
        seq = _int(args.get("Seq"))
        dtype = dtype_name(dtype)
        split: tuple[int, ...] = ()
        if coll is Collective.ALL_TO_ALL:
            split = self.split(args.get("In split size"), size, group.size, event)
        return CommOp(event, coll, size, group, seq, peer, sends, order, evidence, dtype, split)

    def split(self, text: object, size: int, members: int, event: int) -> tuple[int, ...]:
        """Bytes to each member of the group, where the trace says that they are not equal.

        "In split size" counts elements, or rows of as many elements, so only shares count.
        PyTorch cuts long lists, with an ellipsis; what is left says nothing.
        """
        shown = [str(part) for part in text] if isinstance(text, list) else []
        if not isinstance(text, list):
            shown = re.findall(r"[^\s,\[\]()]+", str(text or ""))
        if not shown or size < 0:
            return ()
        whole = [re.fullmatch(r"\d{1,18}", part) is not None for part in shown]
        if not all(ok or "..." in part for ok, part in zip(whole, shown, strict=True)):
            trace = self.trace
            self.out.warnings.append(
                f"the parts of all-to-all {trace.strings[trace.name[event]]} are damaged "
                f"({', '.join(shown[:8])[:80]}): taken as equal"
            )
            return ()
        if not all(whole) or len(shown) != members:
            self.out.cut_splits += 1
            return ()
        ends = list(accumulate(int(part) for part in shown))
        if not ends[-1]:
            return ()
        # Whole bytes that sum up to the size.
        at = [size * end // ends[-1] for end in ends]
        parts = tuple(b - a for a, b in pairwise([0, *at]))
        return () if max(parts) - min(parts) <= 1 else parts

    def from_scopes(
        self, event: int, scopes: list[int], order: int, evidence: str
    ) -> CommOp | None:
        """Operation described by the host events around its launch."""
        trace = self.trace
        names = [trace.strings[trace.name[s]] for s in scopes]
        params = next(
            (s for s, n in zip(scopes, names, strict=True) if n == "record_param_comms"), None
        )
        if params is not None and "Collective name" in trace.args[params]:
            return self.from_metadata(event, trace.args[params], order, evidence)
        coll, size, dtype, sends = Collective.NONE, -1, "", False
        # Innermost first: nccl:* has the plain tensor, record_param_comms a list, c10d:: output.
        for scope, name in zip(reversed(scopes), reversed(names), strict=True):
            if coll is Collective.NONE:
                coll = collective_from_op(re.sub(r"^c10d::", "", name))
                sends = is_send(name)
            if size < 0 and not name.startswith("c10d::"):
                size, dtype = self.tensor(trace.args[scope])
        if coll is Collective.NONE:
            return None
        group = self.unnamed_group(trace.args[params] if params is not None else {})
        return CommOp(event, coll, size, group, -1, -1, sends, order, evidence, dtype)

    def tensor(self, args: dict[str, Any]) -> tuple[int, str]:
        """Bytes and data type of the first tensor of a host event; -1 where there is no shape."""
        dims, types = args.get("Input Dims"), args.get("Input type")
        if not (isinstance(dims, list) and isinstance(types, list)):
            return -1, ""
        # Custom all-reduces take a handle first: the first input of a known type is the tensor.
        for shape, kind in zip(dims, types, strict=False):
            width = dtype_bytes(str(kind))
            if width is not None:
                elements = _numel(shape)
                return -1 if elements < 0 else elements * width, dtype_name(str(kind))
        return -1, ""

    # -- whole trace --------------------------------------------------------------------------

    def device(self) -> Comms:
        """Operations of a device job: its communication kernels."""
        trace = self.trace
        comm_names = np.array([is_communication_kernel(s) for s in trace.strings], dtype=np.bool_)
        kernel = trace.category == int(Category.KERNEL)
        by_name = kernel & comm_names[trace.name] if len(trace.name) else kernel
        marked = [
            e
            for e, args in trace.args.items()
            if kernel[e]
            and collective_from_op(str(args.get("Collective name", ""))) is not Collective.NONE
        ]
        events = np.unique(np.concatenate([np.flatnonzero(by_name), np.array(marked, np.int64)]))
        call_of = dict(zip(events.tolist(), launch_calls(trace, events).tolist(), strict=True))
        by_external = {
            int(trace.external_id[e]): e
            for e, args in trace.args.items()
            if not kernel[e] and "Collective name" in args and trace.external_id[e] >= 0
        }
        order_of = {e: int(trace.start_ns[c if c >= 0 else e]) for e, c in call_of.items()}
        previous_launch: dict[int, int] = {}
        for event in sorted(call_of, key=lambda e: (order_of[e], e)):
            call = call_of[event]
            thread = int(trace.thread[call]) if call >= 0 else -1
            for op in self.kernel(event, call, by_external, previous_launch.get(thread, 0)):
                if op.group.size == 1 or (op.group.ranks is not None and len(op.group.ranks) == 1):
                    self.out.alone.append(event)
                else:
                    self.out.ops.append(op)
            if call >= 0:
                previous_launch[thread] = int(trace.start_ns[call])
                self.out.issued_by[event] = call
        return self.out

    def kernel(
        self, event: int, call: int, by_external: dict[int, int], after_ns: int
    ) -> list[CommOp]:
        """Operations that one communication kernel performs."""
        trace = self.trace
        time = int(trace.start_ns[call if call >= 0 else event])
        own = trace.args.get(event, {})
        scopes = self.scopes.enclosing(int(trace.thread[call]), time) if call >= 0 else []
        if "Collective name" in own:
            # The kernel's copy of the metadata lacks the root, which the host event may have.
            around = [trace.args[s]["Rank"] for s in scopes if "Rank" in trace.args[s]]
            given = {"Rank": around[0], **own} if around else own
            op = self.from_metadata(event, given, time, "kernel metadata")
            if op is not None:
                return [op]
        if call >= 0:
            op = self.from_scopes(event, scopes, time, "host events around the launch")
            if op is not None:
                return [op]
            batch = self.coalesced(event, int(trace.thread[call]), after_ns, time)
            if batch:
                return batch
        scope = by_external.get(int(trace.external_id[event]))
        if scope is not None:
            op = self.from_metadata(event, trace.args[scope], time, "host event by External id")
            if op is not None:
                return [op]
        return self.fallback(event, time)

    def coalesced(self, event: int, thread: int, after_ns: int, time_ns: int) -> list[CommOp]:
        """Operations batched into one kernel: those issued since the thread's last launch."""
        trace = self.trace
        found = []
        for scope in self.scopes.between(thread, after_ns + 1, time_ns):
            args = trace.args[scope]
            if trace.strings[trace.name[scope]] == "record_param_comms" and (
                "Collective name" in args
            ):
                op = self.from_metadata(event, args, time_ns, "batched host events")
                if op is not None:
                    found.append(op)
        return found

    def fallback(self, event: int, time: int) -> list[CommOp]:
        """What the kernel name alone can tell: the type, never the size."""
        trace = self.trace
        name = trace.strings[trace.name[event]]
        coll = collective_from_kernel(name)
        if coll is Collective.NONE:
            self.out.unknown.append((event, name[:80]))
            coll = Collective.ALL_TO_ALL if "sendrecv" in name.lower() else Collective.ALL_REDUCE
        group = GroupKey("", tuple(range(self.world_size)), self.world_size, named=False)
        return [CommOp(event, coll, -1, group, -1, -1, False, time, "kernel name only")]

    def cpu(self) -> Comms:
        """Operations of a CPU job: its ``gloo:*`` events on communication threads."""
        trace = self.trace
        names = np.array(
            [bool(re.match(r"(gloo|mpi|ucc):", s)) for s in trace.strings], dtype=np.bool_
        )
        host = np.isin(trace.category, [int(Category.USER_ANNOTATION), int(Category.CPU_OP)])
        hits = host & names[trace.name] if len(trace.name) else host
        for event in np.flatnonzero(hits).tolist():
            name = trace.strings[trace.name[event]]
            coll = collective_from_op(name)
            if coll is Collective.NONE:
                continue
            args = trace.args.get(event, {})
            order = int(trace.start_ns[event])
            op = None
            if "Collective name" in args:
                op = self.from_metadata(event, args, order, "event metadata")
            if op is None:
                nothing = coll is Collective.BARRIER
                size, dtype = (0, "") if nothing else self.tensor(args)
                group, sends = self.gloo_group(args), is_send(name)
                evidence = "event shape and type"
                op = CommOp(event, coll, size, group, -1, -1, sends, order, evidence, dtype)
            if op.group.size != 1:
                self.out.ops.append(op)
        return self.out

    def gloo_group(self, args: dict[str, Any]) -> GroupKey:
        """Group of a Gloo event without metadata: the only one there is, or the world."""
        if len(self.config) == 1:
            (entry,) = self.config.values()
            ranks = parse_ranks(entry.get("ranks"), 0) or tuple(range(self.world_size))
            name, text = str(entry["pg_name"]), str(entry.get("pg_desc", ""))
            return GroupKey(name, ranks, len(ranks), text)
        return self.unnamed_group(args)


def find_comms(trace: KinetoTrace, world_size: int, *, device_job: bool) -> Comms:
    """Find every communication operation of a rank.

    Parameters
    ----------
    trace : KinetoTrace
        Events of the rank.
    world_size : int
        Ranks of the job.
    device_job : bool
        Whether operations are device kernels (else host events of a CPU job).

    Returns
    -------
    Comms
        Operations by issue order.

    Raises
    ------
    TraceError
        If ``pg_config`` is malformed.
    """
    try:
        reader = _Reader(trace, world_size)
        return reader.device() if device_job else reader.cpu()
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(
            f"communication metadata cannot be understood: {json.dumps(str(error))}",
            file=trace.path,
            rank=trace.rank,
        ) from error
