"""How PyTorch spells things: names, metadata and the calls that an operation is made of.

A c10d all-reduce is an operation around ``record_param_comms`` around an annotation around the
launch, with an event recorded on the compute stream and waited for on the communication stream,
and events between NCCL's own stream and that one before and after the launch. `RankBuilder`
writes such operations as instructions; what a program does with them is in `scripted` and
`programs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .vocabulary import (
    COMPUTE_STREAM,
    ELEMENT_BYTES,
    FIRST_COMM_STREAM,
    FIRST_PAIR_STREAM,
    AwaitComm,
    Call,
    Comm,
    CommKind,
    Enqueue,
    Group,
    Instruction,
    Kernel,
    Launch,
    RecordEvent,
    Scope,
    WaitEvent,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True)
class _Spelling:
    """Names of a collective in c10d, in annotations, in metadata and as a kernel."""

    c10d: str
    annotation: str
    metadata: str
    kernel: str


SPELLING: dict[CommKind, _Spelling] = {
    "all_reduce": _Spelling(
        "c10d::allreduce_", "all_reduce", "allreduce", "ncclDevKernel_AllReduce_Sum_{}_RING_LL"
    ),
    "all_gather": _Spelling(
        "c10d::_allgather_base_",
        "_all_gather_base",
        "_allgather_base",
        "ncclDevKernel_AllGather_RING_LL",
    ),
    "reduce_scatter": _Spelling(
        "c10d::_reduce_scatter_base_",
        "_reduce_scatter_base",
        "_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL",
    ),
    "all_to_all": _Spelling(
        "c10d::alltoall_base_", "all_to_all", "all_to_allv", "ncclDevKernel_SendRecv"
    ),
    "broadcast": _Spelling(
        "c10d::broadcast_", "broadcast", "broadcast", "ncclDevKernel_Broadcast_RING_LL"
    ),
}
_GLOO_ANNOTATION: dict[CommKind, str] = {
    "all_reduce": "gloo:all_reduce",
    "all_gather": "gloo:all_gather",
    "reduce_scatter": "gloo:reduce_scatter",
    "all_to_all": "gloo:all_to_all",
    "broadcast": "gloo:broadcast",
}
_KERNEL_DTYPE = {"Float": "f32", "BFloat16": "bf16", "Half": "f16"}
_INPUT_TYPE = {"Float": "float", "BFloat16": "c10::BFloat16", "Half": "c10::Half"}
KERNEL_ARGS = "(ncclDevKernelArgsStorage<4096ul>)"


def output_elements(comm: Comm, group_size: int) -> int:
    """Elements of the output of one rank."""
    elements = comm.size_bytes // ELEMENT_BYTES[comm.dtype]
    if comm.kind == "all_gather":
        return elements * group_size
    if comm.kind == "reduce_scatter":
        return elements // group_size
    return elements


def gloo_annotation(comm: Comm) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the annotation on a Gloo thread."""
    elements = comm.size_bytes // ELEMENT_BYTES[comm.dtype]
    return _GLOO_ANNOTATION[comm.kind], {
        "Concrete Inputs": [""],
        "Input type": [_INPUT_TYPE[comm.dtype]],
        "Input Strides": [[1]],
        "Input Dims": [[elements]],
    }


def comm_metadata(program_groups: tuple[Group, ...], comm: Comm, rank: int) -> dict[str, Any]:
    """Communication arguments that a kernel and its ``record_param_comms`` share."""
    group = program_groups[comm.group]
    width = ELEMENT_BYTES[comm.dtype]
    elements = comm.size_bytes // width
    meta: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": output_elements(comm, len(group.ranks)),
        "Group size": len(group.ranks),
        "dtype": comm.dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": "[" + ", ".join(map(str, group.ranks)) + "]",
    }
    if comm.parts:
        me = group.ranks.index(rank)
        sent = [part // width for part in comm.parts[me]]
        taken = [row[me] // width for row in comm.parts]
        meta |= {
            "In msg nelems": sum(sent),
            "Out msg nelems": sum(taken),
            "In split size": str(sent),
            "Out split size": str(taken),
        }
    if comm.kind != "send_recv":
        meta["Collective name"] = SPELLING[comm.kind].metadata
    elif rank == comm.root:
        meta |= {"Collective name": "send", "Dst Rank": comm.peer}
    else:
        meta |= {"Collective name": "recv", "Src Rank": comm.root}
    return meta


def _group_rank(group: Group, comm: Comm, rank: int) -> int:
    # "Rank" of record_param_comms: the peer of a message, the root of a rooted collective.
    if comm.kind == "send_recv":
        return group.ranks.index(comm.peer if rank == comm.root else comm.root)
    return group.ranks.index(comm.root if comm.root >= 0 else rank)


def autograd_numbers(flow: int, forward_thread: int) -> dict[str, int]:
    """Arguments that tie a backward operation to its forward operation."""
    return {"Sequence number": 300 + flow, "Fwd thread id": forward_thread}


@dataclass
class _Outstanding:
    """An operation issued and not yet waited for."""

    comm: int
    event: int
    uses: frozenset[tuple[int, str]]


class RankBuilder:
    """Spells out the operations of one rank; `cost` draws a host duration from a range in us."""

    def __init__(
        self,
        rank: int,
        groups: tuple[Group, ...],
        comms: list[Comm],
        domain_size: int,
        cost: Callable[[float, float], int],
    ) -> None:
        self.rank = rank
        self.groups = groups
        self.comms = comms
        self.domain_size = domain_size
        self.cost = cost
        self.outstanding: list[_Outstanding] = []
        self._event = 1_000
        self._flow = 0

    def event(self) -> int:
        self._event += 1
        return self._event

    def flow(self) -> int:
        """Next number of a flow from a forward to a backward operation."""
        self._flow += 1
        return self._flow

    def work(self, low_us: float, high_us: float) -> Work:
        return Work(self.cost(low_us, high_us))

    def launch(self, kernel: Kernel, stream: int = COMPUTE_STREAM, api: str = "") -> Launch:
        default = "cudaMemcpyAsync" if kernel.kind == "memcpy" else "cudaLaunchKernel"
        default = "cudaMemsetAsync" if kernel.kind == "memset" else default
        return Launch(kernel, stream, self.cost(3, 7), api or default)

    def record(self, event: int, stream: int) -> RecordEvent:
        return RecordEvent(event, stream, self.cost(0.5, 1.5))

    def wait(self, event: int, stream: int) -> WaitEvent:
        return WaitEvent(event, stream, self.cost(0.5, 1.5))

    def op(
        self, name: str, *body: Instruction, pad: tuple[float, float] = (1, 4), **args: object
    ) -> Scope:
        return Scope(name, (self.work(*pad), *body, self.work(*pad)), args=args)

    def uses(self, comm: Comm) -> frozenset[tuple[int, str]]:
        """Tiers and directions of this rank's ports that a communication uses."""
        if comm.kind == "send_recv":
            same = comm.root // self.domain_size == comm.peer // self.domain_size
            return frozenset({(0 if same else 1, "out" if comm.root == self.rank else "in")})
        ranks = self.groups[comm.group].ranks
        domains = {r // self.domain_size for r in ranks}
        tiers = ({1} if len(domains) > 1 else set()) | ({0} if len(domains) < len(ranks) else set())
        return frozenset((tier, way) for tier in tiers for way in ("in", "out"))

    def comm_stream(self, comm: Comm) -> int:
        if comm.kind == "send_recv":
            return FIRST_PAIR_STREAM + 2 * (comm.peer if comm.root == self.rank else comm.root)
        return FIRST_COMM_STREAM + 2 * comm.group

    def apart(self, index: int) -> list[Instruction]:
        """Wait for the outstanding operations that could share a port with this one."""
        comm = self.comms[index]
        mine = self.uses(comm)
        ordered = self.comm_stream(comm)
        clash = [
            o.comm
            for o in self.outstanding
            if o.uses & mine and self.comm_stream(self.comms[o.comm]) != ordered
        ]
        return self.wait_for(clash)

    def issue(self, index: int, *, on_compute: bool = False) -> Scope:
        """Spell out a c10d call; `on_compute` launches on the compute stream itself."""
        comm = self.comms[index]
        group = self.groups[comm.group]
        stream = COMPUTE_STREAM if on_compute else self.comm_stream(comm)
        internal = self.comm_stream(comm) + 1
        begin, end, inner = self.event(), self.event(), 10 + internal
        mine = comm.input_bytes(group.ranks.index(self.rank)) if comm.parts else comm.size_bytes
        dims = [mine // ELEMENT_BYTES[comm.dtype]]
        inputs = {
            "Concrete Inputs": [""],
            "Input type": [_INPUT_TYPE[comm.dtype]],
            "Input Dims": [dims],
        }
        meta = comm_metadata(self.groups, comm, self.rank)
        if comm.kind == "send_recv":
            sends = comm.root == self.rank
            name = "c10d::send" if sends else "c10d::recv_"
            arrow = f"->{comm.peer}" if sends else f"<-{comm.root}"
            annotation = f"nccl:{meta['Collective name']} {self.rank}{arrow}"
            kernel_name = "ncclDevKernel_SendRecv"
        else:
            spelling = SPELLING[comm.kind]
            name, annotation = spelling.c10d, f"nccl:{spelling.annotation}"
            kernel_name = spelling.kernel.format(_KERNEL_DTYPE[comm.dtype])
        inner_body: list[Instruction] = [self.work(2, 4)]
        if not on_compute:
            inner_body += [self.record(inner, internal), self.wait(inner, stream)]
        inner_body.append(
            self.launch(
                Kernel(kernel_name + KERNEL_ARGS, comm=index), stream, "cudaLaunchKernelExC"
            )
        )
        if not on_compute:
            inner_body += [
                self.record(inner, stream),
                self.wait(inner, internal),
                self.record(end, stream),
            ]
        before: list[Instruction] = [self.work(1, 3), Call("cudaStreamIsCapturing", 600)]
        if not on_compute:
            before += [self.record(begin, COMPUTE_STREAM), self.wait(begin, stream)]
        params = Scope(
            "record_param_comms",
            (
                *before,
                Scope(annotation, (*inner_body, self.work(1, 2)), "user_annotation", inputs),
                self.work(1, 3),
            ),
            args=meta
            | {
                "Rank": _group_rank(group, comm, self.rank),
                "Global rank start": group.ranks[0],
                "Global rank stride": group.ranks[1] - group.ranks[0],
            },
        )
        if not on_compute:
            self.outstanding.append(_Outstanding(index, end, self.uses(comm)))
        return self.op(name, params, pad=(3, 8), **inputs)

    def wait_for(self, comms: Iterable[int] | None = None) -> list[Instruction]:
        """Make the compute stream wait for outstanding operations (all of them by default)."""
        chosen = set(comms) if comms is not None else {o.comm for o in self.outstanding}
        body: list[Instruction] = []
        for item in [o for o in self.outstanding if o.comm in chosen]:
            self.outstanding.remove(item)
            body.append(
                Scope(
                    "record_param_comms",
                    (
                        self.work(1, 2),
                        self.wait(item.event, COMPUTE_STREAM),
                        self.work(0.5, 1),
                    ),
                    args={
                        "Collective name": "wait",
                        "dtype": "Byte",
                        "In msg nelems": 0,
                        "Out msg nelems": 0,
                        "Group size": 1,
                        "In split size": "[]",
                        "Out split size": "[]",
                        "Process Group Ranks": "[]",
                    },
                )
            )
        return body

    def enqueue(self, index: int) -> Scope:
        """Spell out a c10d call of a CPU job."""
        comm = self.comms[index]
        dims = [comm.size_bytes // ELEMENT_BYTES[comm.dtype]]
        self.outstanding.append(_Outstanding(index, 0, self.uses(comm)))
        return self.op(
            SPELLING[comm.kind].c10d,
            self.work(20, 60),
            Enqueue(index),
            pad=(10, 40),
            **{
                "Concrete Inputs": ["", "", "", "", "True", "-1"],
                "Input type": ["TensorList", "", "", "", "Scalar", "Scalar"],
                "Input Dims": [[dims], [], [], [], [], []],
            },
        )

    def await_queue(self) -> list[Instruction]:
        """Block until all queued communications are done."""
        done: list[Instruction] = [AwaitComm(o.comm) for o in self.outstanding]
        self.outstanding.clear()
        return done


def world_group(ranks: int) -> Group:
    """Build the group that every job has."""
    return Group("0", "default_pg", tuple(range(ranks)))
