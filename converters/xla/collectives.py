"""What an operation means: computation, a loop, a copy, communication, the end of something.

Decided by opcode, and by what a fusion or an asynchronous wrapper calls; where neither is in the
trace, by the category that the profiler gives. Never by a name: names are the compiler's or the
user's, and operands mention collectives too.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ...graph.columns import Collective
from .hlo import MOST_DEVICES, HloError, common_dtype
from .hlo_text import parse_instruction, parse_opcode

if TYPE_CHECKING:
    from .events import OpInfo
    from .hlo import Groups, Instruction, Program, Shape

#: Collectives of HLO; what is appended with ``-start`` and ``-done`` is the same, asynchronously.
OPCODES = {
    "all-reduce": Collective.ALL_REDUCE,
    "all-gather": Collective.ALL_GATHER,
    "reduce-scatter": Collective.REDUCE_SCATTER,
    "all-to-all": Collective.ALL_TO_ALL,
    "ragged-all-to-all": Collective.ALL_TO_ALL,
    "collective-permute": Collective.SEND_RECV,
    "collective-broadcast": Collective.BROADCAST,
}
#: Operations that run others and are recorded around them.
CONTAINERS = frozenset({"while", "call", "conditional"})
_HOST_COPIES = frozenset({"infeed", "outfeed"})
_MOVES = frozenset(
    {"copy", "slice", "dynamic-slice", "dynamic-update-slice", "copy-start", "bitcast"}
)
#: All other opcodes of HLO (xla/hlo/ir/hlo_opcode.h), which compute or do nothing.
_COMPUTE_TEXT = """
abs acos acosh add add-dependency after-all and asin asinh async-update atan2 atanh batch-
norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast cbrt
ceil cholesky clamp compare complex concatenate constant convert convolution copy cosine
cosh count-leading-zeros custom-call divide domain dot dynamic-reshape dynamic-slice
dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather get-
dimension-size get-tuple-element imag iota is-finite log log-plus-one logistic map maximum
minimum multiply negate not optimization-barrier or pad parameter partition-id popcnt power
ragged-dot real reduce reduce-precision reduce-window remainder replica-id reshape reverse
rng rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt
scaled-dot scan scatter select select-and-scatter set-dimension-size shift-left shift-right-
arithmetic shift-right-logical sign sine sinh slice sort sqrt stochastic-convert subtract
tan tanh topk transpose triangular-solve tuple xor
"""
_COMPUTE = frozenset(_COMPUTE_TEXT.split())
_CATEGORY = re.compile(
    r"(all-reduce-scatter|ragged-all-to-all|all-reduce|all-gather|reduce-scatter|all-to-all|"
    r"collective-permute|collective-broadcast)(?: fusion)?(-start|-done)?"
)


class Role(Enum):
    """What an operation does to the schedule of its device."""

    COMPUTE = "compute"
    CONTAINER = "container"
    COMM = "communication"
    COMM_START = "start of communication"
    COPY = "copy"
    COPY_START = "start of a copy"
    WORK_START = "start of asynchronous work"
    DONE = "end of what was started"
    UPDATE = "continuation of what was started"


class Ids(Enum):
    """What the numbers in replica groups and pairs are."""

    FLAT = "replica * partitions + partition"
    REPLICA = "replicas, among the devices of one partition"
    PARTITION = "partitions, among the devices of one replica"
    REPLICA_ALL = "replicas, with all their partitions"


@dataclass(frozen=True, slots=True)
class CommSpec:
    """A collective, as one device's program states it.

    Attributes
    ----------
    coll : Collective
        Operation.
    size_bytes : int
        Input bytes of one device, -1 if unknown.
    groups : tuple of tuple of int or None
        Replica groups, empty for one group of all, None where the trace does not say.
    ids : Ids
        What their numbers are.
    pairs : tuple of (int, int)
        Sources and targets of a SEND_RECV.
    sends, receives : bool
        Which sides of its pairs the operation performs.
    evidence : str
        Where this is from.
    dtype : str
        Data type by PyTorch's names, empty if unknown or if there are several.
    """

    coll: Collective
    size_bytes: int
    groups: Groups | None
    ids: Ids
    pairs: tuple[tuple[int, int], ...] = ()
    sends: bool = True
    receives: bool = True
    evidence: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one operation means.

    Attributes
    ----------
    role : Role
        What it does.
    spec : CommSpec or None
        Of communication and its start.
    waits_for : str
        Of DONE and UPDATE: the instruction that started it.
    copy_bytes : int
        Of a copy's start: bytes moved, -1 if unknown.
    copy_kind : tuple of int
        Of a copy's start: memory spaces it goes between.
    calls : tuple of str
        Of a container: what it runs.
    doubt : str
        What had to be taken for granted, for the report.
    """

    role: Role
    spec: CommSpec | None = None
    waits_for: str = ""
    copy_bytes: int = -1
    copy_kind: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()
    doubt: str = ""


def find_meaning(op: OpInfo, program: Program | None) -> Meaning:
    """Tell what an operation means.

    Parameters
    ----------
    op : OpInfo
        What its events show.
    program : Program or None
        The compiled module, where the profile has it.

    Returns
    -------
    Meaning

    Raises
    ------
    HloError
        If it communicates, and what it says of that cannot be understood.
    """
    name = op.instruction or op.name
    instruction = program.instructions.get(name) if program else None
    opcode = ""
    if op.text:
        with suppress(HloError):
            opcode = parse_opcode(op.text)[1]
        if instruction is None or (opcode and instruction.opcode != opcode):
            instruction = _from_text(op.text, opcode)
            if instruction is None and opcode:
                return _by_opcode(opcode, op)
    if instruction is None:
        if op.category:
            return _by_category(op, "category alone, its HLO text is cut" if op.text else "")
        doubt = ""
        if op.text:
            doubt = "operations whose HLO text is cut before the opcode: taken as computation"
        elif op.instruction or op.module:
            doubt = "operations of programs that the profile lacks: taken as computation"
        elif op.name:
            doubt = (
                "operations of which neither text nor category is recorded: taken as computation"
            )
        return Meaning(Role.COMPUTE, doubt=doubt)
    evidence = "Hlo Proto" if program and name in program.instructions else "HLO text"
    return _meaning(instruction, op, program, evidence)


def may_communicate(op: OpInfo) -> bool:
    """Whether what an event shows is a collective, or cannot be understood and may be one."""
    opcode = ""
    if op.text:
        with suppress(HloError):
            opcode = parse_opcode(op.text)[1]
    base, _ = _suffix(opcode)
    if base in OPCODES or base in ("send", "recv"):
        return True
    if op.category:
        return _CATEGORY.fullmatch(op.category) is not None
    known = base in _COMPUTE | _MOVES | _HOST_COPIES | CONTAINERS
    return bool(op.text) and not known


def has_details(opcode: str) -> bool:
    """Whether more of an instruction counts than its opcode."""
    base, _ = _suffix(opcode)
    return base in OPCODES or base in ("send", "recv") or opcode in _DETAILED | _PASSING


def _from_text(text: str, opcode: str) -> Instruction | None:
    """Read an instruction of which more than the opcode counts; None if less will do.

    Raises
    ------
    HloError
        If the text of communication is cut. What else is cut is known by its opcode.
    """
    base, _ = _suffix(opcode)
    communicates = base in OPCODES or base in ("send", "recv")
    if not communicates and opcode not in _DETAILED:
        return None
    try:
        return parse_instruction(text)
    except HloError:
        if communicates and not opcode.endswith("-done"):
            raise
        return None


#: Opcodes besides those of communication whose operands or calls count.
_DETAILED = frozenset(
    {
        "async-start", "async-update", "async-done", "copy-start", "copy-done", "fusion",
        *CONTAINERS,
    }
)  # fmt: skip


def _by_opcode(opcode: str, op: OpInfo) -> Meaning:
    """Decide by the opcode alone, where the rest of the text does not count or is cut."""
    if opcode in CONTAINERS:
        return Meaning(Role.CONTAINER)
    if opcode == "fusion":
        return _by_category(op)
    if opcode == "copy-start":
        return Meaning(Role.COPY_START)
    if opcode == "async-start":
        return Meaning(Role.COPY_START, doubt=_UNKNOWN_ASYNC)
    if opcode.endswith("-done"):
        return Meaning(Role.DONE)
    return _plain(opcode)


_UNKNOWN_ASYNC = "asynchronous operations whose computation is not in the trace: copies"


def _plain(opcode: str) -> Meaning:
    if opcode in _HOST_COPIES:
        return Meaning(Role.COPY)
    doubt = "" if opcode in _COMPUTE else f"opcode {opcode!r} is unknown: taken as computation"
    return Meaning(Role.COMPUTE, doubt=doubt)


def _meaning(
    instruction: Instruction, op: OpInfo, program: Program | None, evidence: str
) -> Meaning:
    opcode = instruction.opcode
    if opcode in CONTAINERS:
        return Meaning(Role.CONTAINER, calls=instruction.calls)
    base, suffix = _suffix(opcode)
    if base in OPCODES:
        if suffix == "-done":
            return Meaning(Role.DONE, waits_for=_started(instruction, program))
        spec = communication(instruction, evidence)
        return Meaning(Role.COMM_START if suffix else Role.COMM, spec)
    if base in ("send", "recv"):
        return _point_to_point(instruction, base, suffix, program, evidence)
    if base == "copy" and suffix:
        if suffix == "-done":
            return Meaning(Role.DONE, waits_for=_started(instruction, program))
        return _copy(instruction)
    if base == "async" and suffix == "-done":
        return Meaning(Role.DONE, waits_for=_started(instruction, program))
    if opcode == "async-update":
        return Meaning(Role.UPDATE, waits_for=_started(instruction, program))
    if base == "async":
        return _async_start(instruction, program)
    if opcode == "fusion":
        return _fusion(instruction, op, program)
    return _plain(opcode)


def _suffix(opcode: str) -> tuple[str, str]:
    for suffix in ("-start", "-done"):
        if opcode.endswith(suffix):
            return opcode.removesuffix(suffix), suffix
    return opcode, ""


def _started(instruction: Instruction, program: Program | None) -> str:
    """Name of the instruction whose result a done takes, seen through tuples and bitcasts."""
    name = instruction.operands[0] if instruction.operands else ""
    for _ in range(_DEEPEST):
        inner = program.instructions.get(name) if program else None
        if inner is None or not inner.operands or inner.opcode not in _PASSING:
            break
        name = inner.operands[0]
    return name


_PASSING = frozenset({"get-tuple-element", "bitcast", "optimization-barrier", "tuple"})
_DEEPEST = 20


def communication(instruction: Instruction, evidence: str) -> CommSpec:
    """What a collective instruction says of its traffic.

    The input of one device is what its operands hold. Where the text gives no operand shapes it
    follows from the result: all of it in all-reduce, all-to-all and collective-permute, one part
    of an all-gather, all parts of a reduce-scatter.

    Raises
    ------
    HloError
        If sizes or groups cannot be understood, or no machine has such devices.
    """
    _check_devices(instruction)
    base, suffix = _suffix(instruction.opcode)
    coll = OPCODES[base]
    dtype = common_dtype(_input_shapes(instruction, base, suffix))
    if coll is Collective.SEND_RECV:
        ids = Ids.PARTITION if instruction.channel else Ids.REPLICA
        return CommSpec(
            coll, _input_bytes(instruction, base, suffix), None, ids, instruction.pairs,
            evidence=evidence, dtype=dtype,
        )  # fmt: skip
    if instruction.global_ids:
        ids = Ids.FLAT
    elif not instruction.channel:
        ids = Ids.REPLICA
    elif base in ("all-to-all", "ragged-all-to-all", "collective-broadcast"):
        ids = Ids.PARTITION
    else:
        ids = Ids.REPLICA_ALL
    groups = () if instruction.groups is None else instruction.groups
    size = _input_bytes(instruction, base, suffix)
    return CommSpec(coll, size, groups, ids, evidence=evidence, dtype=dtype)


def _check_devices(instruction: Instruction) -> None:
    listed = (*(instruction.groups or ()), *instruction.pairs)
    largest = max((max(ids, default=0) for ids in listed), default=0)
    if largest >= MOST_DEVICES:
        raise HloError(f"a device {largest}, and no machine has so many")


def _input_shapes(instruction: Instruction, base: str, suffix: str) -> tuple[Shape, ...]:
    """Shapes of what is moved, or of the result where the text does not give those."""
    shapes = instruction.operand_shapes
    if shapes:
        # The others of these two are offsets and sizes, or where to write.
        return shapes[:1] if base in ("collective-permute", "ragged-all-to-all") else shapes
    result = instruction.shape
    if suffix and base != "all-reduce" and result.dtype == "tuple" and result.parts:
        # (operands, results, ...) of what was started.
        return result.parts[:1]
    return (result,)


def _input_bytes(instruction: Instruction, base: str, suffix: str) -> int:
    shapes = _input_shapes(instruction, base, suffix)
    result = instruction.shape
    if instruction.operand_shapes or shapes[0] is not result:
        return sum(shape.num_bytes for shape in shapes)
    if base == "collective-permute":
        return result.num_bytes
    members = len(instruction.groups[0]) if instruction.groups else 0
    if base in ("all-gather", "reduce-scatter") and not members:
        return -1
    if base == "all-gather":
        return result.num_bytes // members
    if base == "reduce-scatter":
        return result.num_bytes * members
    return result.num_bytes


def _point_to_point(
    instruction: Instruction, base: str, suffix: str, program: Program | None, evidence: str
) -> Meaning:
    if suffix == "-done":
        return Meaning(Role.DONE, waits_for=_started(instruction, program))
    if instruction.to_host:
        return Meaning(Role.COPY_START)
    if not instruction.pairs:
        return Meaning(Role.COPY_START, doubt=f"{base} without pairs of devices: kept as a copy")
    _check_devices(instruction)
    data = instruction.operand_shapes if base == "send" else instruction.shape.parts
    size = data[0].num_bytes if data else -1
    return Meaning(
        Role.COMM_START,
        CommSpec(
            Collective.SEND_RECV,
            size,
            None,
            Ids.PARTITION if instruction.channel else Ids.REPLICA,
            instruction.pairs,
            sends=base == "send",
            receives=base == "recv",
            evidence=evidence,
            dtype=common_dtype(data[:1]),
        ),
    )


def _copy(instruction: Instruction) -> Meaning:
    """Read ``copy-start``: its result is (destination, source, context)."""
    parts = instruction.shape.parts
    if len(parts) < 2:
        return Meaning(Role.COPY_START)
    return Meaning(
        Role.COPY_START,
        copy_bytes=parts[0].num_bytes,
        copy_kind=(parts[1].space, parts[0].space),
    )


def _async_start(instruction: Instruction, program: Program | None) -> Meaning:
    """Read ``async-start``, a wrapper: what it calls says what it is."""
    inside = _inside(instruction, program)
    for inner in inside:
        if _suffix(inner.opcode)[0] in OPCODES:
            return Meaning(Role.COMM_START, communication(inner, "Hlo Proto"))
    moved = -1
    kind: tuple[int, ...] = ()
    parts = instruction.shape.parts
    if len(parts) >= 2:
        # The operands (as a tuple), the result, and a context.
        first = parts[0].parts[0] if parts[0].parts else parts[0]
        moved, kind = parts[1].num_bytes, (first.space, parts[1].space)
    work = [i for i in inside if i.opcode not in ("parameter", "tuple", "constant")]
    if work and any(i.opcode not in _MOVES for i in work):
        return Meaning(Role.WORK_START)
    return Meaning(
        Role.COPY_START,
        copy_bytes=moved,
        copy_kind=kind,
        doubt="" if work else _UNKNOWN_ASYNC,
    )


def _inside(instruction: Instruction, program: Program | None) -> list[Instruction]:
    """Instructions of the computations that an instruction calls, at any depth."""
    if program is None:
        return []
    found: list[Instruction] = []
    waiting = list(instruction.calls)
    seen: set[str] = set()
    while waiting:
        computation = waiting.pop()
        if computation in seen:
            continue
        seen.add(computation)
        for name in program.computations.get(computation, ()):
            inner = program.instructions[name]
            found.append(inner)
            if _suffix(inner.opcode)[0] not in OPCODES:
                waiting += inner.calls
    return found


def _fusion(instruction: Instruction, op: OpInfo, program: Program | None) -> Meaning:
    """Look for a collective inside a fusion."""
    inside = [i for i in _inside(instruction, program) if _suffix(i.opcode)[0] in OPCODES]
    if not inside:
        return _by_category(op)
    starts = [i for i in inside if not i.opcode.endswith("-done")]
    if not starts:
        return Meaning(Role.DONE, waits_for=_started(instruction, program))
    inner = starts[0]
    spec = communication(inner, "Hlo Proto, inside a fusion")
    if len(starts) > 1:
        same = all(_suffix(i.opcode)[0] == _suffix(inner.opcode)[0] for i in starts)
        specs = [communication(i, spec.evidence) for i in starts]
        if not same or any(s.groups != spec.groups or s.pairs != spec.pairs for s in specs):
            raise HloError(
                f"{instruction.name} holds {len(starts)} collectives that differ in operation or "
                "groups"
            )
        sizes = [s.size_bytes for s in specs]
        spec = CommSpec(
            spec.coll, sum(sizes) if min(sizes) >= 0 else -1, spec.groups, spec.ids, spec.pairs,
            evidence=spec.evidence, dtype=spec.dtype if len({s.dtype for s in specs}) == 1 else "",
        )  # fmt: skip
    if spec.coll is Collective.ALL_REDUCE and _scatters(instruction, op, spec):
        # An all-reduce of which each device keeps its part: a reduce-scatter on the wire.
        spec = CommSpec(
            Collective.REDUCE_SCATTER, spec.size_bytes, spec.groups, spec.ids,
            evidence=spec.evidence, dtype=spec.dtype,
        )  # fmt: skip
    start = inner.opcode.endswith("-start") and not any(i.opcode.endswith("-done") for i in inside)
    return Meaning(Role.COMM_START if start else Role.COMM, spec)


def _scatters(instruction: Instruction, op: OpInfo, spec: CommSpec) -> bool:
    if op.category:
        return op.category.startswith("all-reduce-scatter")
    members = len(spec.groups[0]) if spec.groups else 0
    return members > 1 and instruction.shape.num_bytes * members == spec.size_bytes


def _by_category(op: OpInfo, evidence: str = "") -> Meaning:
    """Decide by what the profiler says, where the instruction itself is not there."""
    match = _CATEGORY.fullmatch(op.category)
    if match is None:
        if op.category == "copy-start":
            return Meaning(Role.COPY_START)
        return Meaning(Role.COMPUTE)
    if match[2] == "-done":
        return Meaning(Role.DONE)
    coll = Collective.REDUCE_SCATTER if match[1] == "all-reduce-scatter" else OPCODES[match[1]]
    spec = CommSpec(coll, -1, None, Ids.FLAT, evidence=evidence or "category alone")
    return Meaning(Role.COMM_START if match[2] else Role.COMM, spec)
