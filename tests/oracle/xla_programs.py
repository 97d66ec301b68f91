"""Random XLA programs: what every chip of a TPU slice does, one operation after the other.

A compiled program is one list of instructions for all chips: computation, collectives that block
(synchronous) or have a start and a done with work between them, permutations, loops, copies to
and from other memories. Chips run it in order, run after run, each a little faster or slower.

It is written in the words of `vocabulary`, so that the executor runs it: a chip is a host thread
that works (computation), gives a communication to a queue with threads for all (a start) and
awaits it (a done). What each range is in HLO stands beside, in `Op`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from .vocabulary import (
    MAIN,
    US,
    AwaitComm,
    Comm,
    CommKind,
    Enqueue,
    Group,
    HostThread,
    Instruction,
    Program,
    RankProgram,
    Scope,
    Step,
    Work,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

XlaProfile = Literal["sync", "async", "permute", "loops", "shared"]
GroupForm = Literal["list", "iota", "mesh"]

#: Name of the compiled program, with its fingerprint as the profiler writes it.
MODULE = "jit_train_step"
PROGRAM_ID = 9_646_411_105_960_254_074
DEVICE = "TPU v5 Lite"

_BYTES = {"bf16": 2, "f32": 4, "f8e4m3fn": 1}
_OPCODE: dict[CommKind, str] = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}
#: Elements of an input are a multiple of this, so that every group divides them.
_MULTIPLE = 128 * 8


@dataclass(frozen=True)
class Op:
    """An instruction, as the profiler shows it: name, category and HLO text.

    `asynchronous` says which instruction's line of asynchronous work a start has: the done's.
    """

    name: str
    category: str
    text: str
    asynchronous: str = ""


@dataclass(frozen=True)
class XlaProgram:
    """A job, and the instructions that its ranges (by `args["op"]`) and transfers are of."""

    program: Program
    ops: tuple[Op, ...]
    async_op: dict[int, int]  # start of a communication that has one


# What the program does: the same on all chips.


@dataclass(frozen=True)
class _Compute:
    op: int
    us: float


@dataclass(frozen=True)
class _Collective:
    """Starts (one blocks, or two with the done), what is between, and who takes part."""

    ops: tuple[int, ...]
    kind: CommKind
    family: str
    size: int
    between: tuple[_Item, ...] = ()


@dataclass(frozen=True)
class _Permute:
    ops: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    size: int
    between: tuple[_Item, ...] = ()


@dataclass(frozen=True)
class _Loop:
    op: int
    trips: int
    body: tuple[_Item, ...]


@dataclass(frozen=True)
class _Copy:
    """A copy between memories, done before the program asks whether it is."""

    ops: tuple[int, int]
    between: tuple[_Item, ...]


_Item: TypeAlias = "_Compute | _Collective | _Permute | _Loop | _Copy"


@dataclass
class _Compiler:
    """Draws the instructions of a program."""

    rng: random.Random
    families: dict[str, list[tuple[int, ...]]]
    ranks: int
    domain: int
    ops: list[Op] = field(default_factory=list)
    number: int = 0

    def name(self, stem: str) -> str:
        self.number += 1
        return f"{stem}.{self.number}"

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def compute(self) -> _Compute:
        kind = self.rng.choice(("loop fusion", "convolution fusion", "custom-call", "non-fusion"))
        # Operands and names that mention collectives do not make an operation one.
        operand = self.rng.choice(("%param.1", "%all-reduce.77", "%all-gather-done.3"))
        if kind == "non-fusion":
            name = self.name("all-reduce-scatter-add")
            text = f"%{name} = f32[256]{{0:T(256)}} add(f32[256]{{0:T(256)}} {operand}, {operand})"
        else:
            name = self.name("psum_fusion")
            text = (
                f"%{name} = bf16[8,128]{{1,0:T(8,128)(2,1)}} fusion(bf16[8,128]{{1,0}} "
                f"{operand}), kind=kLoop, calls=%fused_computation.{self.number}"
            )
        return _Compute(self.add(Op(name, kind, text)), self.rng.uniform(5, 200))

    def computes(self, least: int, most: int) -> tuple[_Compute, ...]:
        return tuple(self.compute() for _ in range(self.rng.randint(least, most)))

    def size(self, dtype: str) -> int:
        elements = _MULTIPLE * int(2 ** self.rng.uniform(3, 12))
        return elements * _BYTES[dtype]

    def groups(self, family: str) -> str:
        """Spell the replica groups of a family in one of the forms that there are."""
        found = self.families[family]
        across, d = self.ranks // self.domain, self.domain
        iota = {
            "world": f"[1,{self.ranks}]<=[{self.ranks}]",
            "tensor": f"[{across},{d}]<=[{self.ranks}]",
            "data": f"[{d},{across}]<=[{across},{d}]T(1,0)",
        }
        mesh = {
            "world": "{'data','model'}",
            "tensor": "{'model'}",
            "data": "{'data'}",
        }
        form = self.rng.choice(("list", "iota", "mesh"))
        if form == "iota":
            return iota[family]
        if form == "mesh":
            return f"mesh['data'={across},'model'={d}] {mesh[family]}"
        return "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in found) + "}"

    def collective(self, *, asynchronous: bool, between: tuple[_Item, ...] = ()) -> _Collective:
        # Starts and dones of their own have only these.
        kinds: tuple[CommKind, ...] = ("all_reduce", "all_gather")
        if not asynchronous:
            kinds += ("reduce_scatter", "all_to_all")
        kind = self.rng.choice(kinds)
        family = self.rng.choice(list(self.families))
        members = len(self.families[family][0])
        dtype = self.rng.choice(list(_BYTES))
        size = self.size(dtype)
        n = size // _BYTES[dtype]
        out = {"all_gather": n * members, "reduce_scatter": n // members}.get(kind, n)
        given, made = (
            f"{dtype}[{n // 128},128]{{1,0:T(8,128)}}",
            f"{dtype}[{out // 128},128]{{1,0}}",
        )
        if kind == "all_to_all":
            made = given
        opcode = _OPCODE[kind]
        tail = f", channel_id={self.number + 1}, replica_groups={self.groups(family)}"
        if kind in ("all_gather", "reduce_scatter", "all_to_all"):
            tail += ", dimensions={0}"
        tail += ", use_global_device_ids=true"
        if kind in ("all_reduce", "reduce_scatter"):
            tail += ", to_apply=%add.1.clone"
        stem = self.rng.choice((opcode, "psum", "fancy_user_name"))
        if not asynchronous:
            name = self.name(stem)
            text = f"%{name} = {made} {opcode}({given} %fusion.9){tail}"
            if kind == "all_reduce" and self.rng.random() < 0.3:
                # Several arrays at once: half of the rows each.
                half = f"{dtype}[{n // 256},128]{{1,0}}"
                text = f"%{name} = ({half}, /*index=1*/{half}) {opcode}({half} %a, {half} %b){tail}"
            return _Collective((self.add(Op(name, opcode, text)),), kind, family, size)
        start, done = self.name(f"{stem}-start"), self.name(f"{stem}-done")
        pair = made if kind == "all_reduce" else f"({given}, {made})"
        texts = (
            f"%{start} = {pair} {opcode}-start({given} %fusion.9){tail}",
            f"%{done} = {made} {opcode}-done({pair} %{start})",
        )
        ops = (
            self.add(Op(start, f"{opcode}-start", texts[0], asynchronous=done)),
            self.add(Op(done, f"{opcode}-done", texts[1])),
        )
        return _Collective(ops, kind, family, size, between)

    def permute(self, *, asynchronous: bool, between: tuple[_Item, ...] = ()) -> _Permute:
        shift = self.rng.randint(1, self.ranks - 1)
        pairs = [(i, (i + shift) % self.ranks) for i in range(self.ranks)]
        if self.rng.random() < 0.5:
            pairs = [(i, j) for i, j in pairs if i < j]  # a pipeline: the last gives to nobody
        size = self.size("bf16")
        shape = f"bf16[{size // 256},128]{{1,0}}"
        tail = (
            f", channel_id={self.number + 1}, source_target_pairs="
            f"{{{','.join(f'{{{i},{j}}}' for i, j in pairs)}}}"
        )
        if not asynchronous:
            name = self.name("collective-permute")
            text = f"%{name} = {shape} collective-permute({shape} %fusion.9){tail}"
            op = self.add(Op(name, "collective-permute", text))
            return _Permute((op,), tuple(pairs), size)
        start, done = self.name("collective-permute-start"), self.name("collective-permute-done")
        four = f"({shape}, {shape}, u32[]{{:S(2)}}, u32[]{{:S(2)}})"
        texts = (
            f"%{start} = {four} collective-permute-start({shape} %fusion.9){tail}",
            f"%{done} = {shape} collective-permute-done({four} %{start})",
        )
        ops = (
            self.add(Op(start, "collective-permute-start", texts[0], asynchronous=done)),
            self.add(Op(done, "collective-permute-done", texts[1])),
        )
        return _Permute(ops, tuple(pairs), size, between)

    def copy(self) -> _Copy:
        start, done = self.name("copy-start"), self.name("copy-done")
        three = "(bf16[1024]{0:S(1)}, bf16[1024]{0}, u32[]{:S(2)})"
        texts = (
            f"%{start} = {three} copy-start(bf16[1024]{{0}} %param.3)",
            f"%{done} = bf16[1024]{{0:S(1)}} copy-done({three} %{start})",
        )
        ops = (
            self.add(Op(start, "copy-start", texts[0], asynchronous=done)),
            self.add(Op(done, "copy-done", texts[1])),
        )
        return _Copy(ops, self.computes(1, 2))

    def loop(self, body: tuple[_Item, ...]) -> _Loop:
        name = self.name("while")
        text = f"%{name} = (s32[], bf16[8,128]) while((s32[], bf16[8,128]) %tuple.4), "
        text += "condition=%cond, body=%body"
        return _Loop(self.add(Op(name, "while", text)), self.rng.randint(2, 4), body)


def _draw_items(compiler: _Compiler, profile: XlaProfile) -> tuple[_Item, ...]:
    rng = compiler.rng
    items: list[_Item] = []
    for _ in range(rng.randint(2, 4)):
        items += compiler.computes(1, 3)
        hidden = compiler.computes(1, 3)
        if profile == "sync":
            items.append(compiler.collective(asynchronous=False))
        elif profile == "async":
            items.append(compiler.collective(asynchronous=True, between=hidden))
            items.append(compiler.collective(asynchronous=False))
        elif profile == "permute":
            items.append(compiler.permute(asynchronous=rng.random() < 0.5, between=hidden))
        elif profile == "loops":
            body = (
                *compiler.computes(1, 2),
                compiler.collective(asynchronous=False),
                compiler.permute(asynchronous=True, between=hidden),
            )
            items.append(compiler.loop(body))
        else:
            inner = compiler.collective(asynchronous=True, between=hidden)
            items.append(
                compiler.collective(
                    asynchronous=True, between=(*compiler.computes(1, 2), inner, *hidden)
                )
            )
        if rng.random() < 0.5:
            items.append(compiler.copy())
    # A collective of all, so that clocks of hosts can be aligned.
    compiler.families = {"world": compiler.families["world"]}
    return (*items, compiler.collective(asynchronous=False), *compiler.computes(1, 2))


@dataclass
class _Comms:
    """Communications in progress of being numbered: one for each time that a group meets."""

    groups: tuple[Group, ...]
    items: list[Comm] = field(default_factory=list)
    known: dict[object, int] = field(default_factory=dict)

    def number(self, key: object, comm: Comm) -> int:
        if key not in self.known:
            self.known[key] = len(self.items)
            self.items.append(comm)
        return self.known[key]


@dataclass
class _Chip:
    """Writes what one chip does."""

    rank: int
    rng: random.Random
    comms: _Comms
    async_op: dict[int, int]
    step: int = -1
    times: dict[int, int] = field(default_factory=dict)

    def scope(self, op: int, *body: Instruction) -> Scope:
        return Scope("op", body, args={"op": op})

    def body(self, items: Sequence[_Item]) -> list[Instruction]:
        out: list[Instruction] = []
        for item in items:
            out += self.item(item)
            if self.rng.random() < 0.2:
                out.append(Work(self.rng.randint(1, 2 * US)))
        return out

    def item(self, item: _Item) -> list[Instruction]:
        match item:
            case _Compute(op, us):
                return [self.scope(op, Work(round(us * US * self.rng.uniform(0.8, 1.3))))]
            case _Loop(op, trips, body):
                turns = [one for _ in range(trips) for one in self.body(body)]
                return [self.scope(op, *turns)]
            case _Copy((start, done), between):
                return [self.scope(start), *self.body(between), self.scope(done)]
            case _Collective(ops, kind, family, size, between):
                group = next(
                    index
                    for index, one in enumerate(self.comms.groups)
                    if one.description == family and self.rank in one.ranks
                )
                comm = Comm(kind, group, size)
                key = (self.step, self.turn(ops[0]), ops[0], group)
                numbers = [self.comms.number(key, comm)]
            case _Permute(ops, pairs, size, between):
                turn = self.turn(ops[0])
                numbers = [
                    self.comms.number(
                        (self.step, turn, ops[0], pair),
                        Comm("send_recv", 0, size, root=pair[0], peer=pair[1]),
                    )
                    for pair in pairs
                    if self.rank in pair
                ]
        starts = [Enqueue(number) for number in numbers]
        waits = [AwaitComm(number) for number in numbers]
        if len(ops) == 1:
            return [self.scope(ops[0], *starts, *waits)]
        self.async_op |= dict.fromkeys(numbers, ops[0])
        return [
            self.scope(ops[0], *starts),
            *self.body(between),
            self.scope(ops[1], *waits),
        ]

    def turn(self, op: int) -> int:
        """How often an instruction has run in this step before."""
        self.times[op] = self.times.get(op, -1) + 1
        return self.times[op]


def random_xla_program(seed: int, *, profile: XlaProfile, hosts: int = 1) -> XlaProgram:
    """Draw a program.

    Parameters
    ----------
    seed : int
        The same seed gives the same program.
    profile : str
        ``sync``: collectives that block; ``async``: also such as work goes on beside;
        ``permute``: permutations of both kinds; ``loops``: all of that in loops; ``shared``:
        two transfers under way at once, which share ports.
    hosts : int
        Of the chips, with clocks of their own.
    """
    rng = random.Random(f"xla {profile} {seed}")
    ranks = rng.choice((2, 4, 8))
    domain = rng.choice([n for n in (1, 2, 4, 8) if n <= ranks])
    families = {"world": [tuple(range(ranks))]}
    if domain > 1:
        families["tensor"] = [tuple(range(f, f + domain)) for f in range(0, ranks, domain)]
    if domain < ranks:
        families["data"] = [tuple(range(f, ranks, domain)) for f in range(domain)]
    groups = tuple(
        Group(str(number), family, members)
        for number, (family, members) in enumerate(
            (family, members) for family, found in families.items() for members in found
        )
    )
    compiler = _Compiler(rng, dict(families), ranks, domain)
    items = _draw_items(compiler, profile)
    comms, async_op = _Comms(groups), {}
    chips = []
    steps = rng.randint(1, 4)
    for rank in range(ranks):
        chip = _Chip(rank, random.Random(f"xla {profile} {seed} {rank}"), comms, async_op)
        outer: list[Instruction] = []
        for step in range(steps):
            chip.step, chip.times = step, {}
            outer += [Step(step, tuple(chip.body(items))), Work(chip.rng.randint(2, 60) * US)]
        chips.append(RankProgram(chip.rng.randint(0, 500 * US), (HostThread(MAIN, tuple(outer)),)))
    program = Program(
        name=f"xla-{profile}-{seed}",
        dialect="cpu",
        ranks=tuple(chips),
        groups=groups,
        comms=tuple(comms.items),
        domain_size=domain,
        host_of=tuple(rank * hosts // ranks for rank in range(ranks)),
        clock_offset_ns=tuple(rng.randint(-5_000 * US, 5_000 * US) for _ in range(hosts)),
        eager_limit_bytes=0,
        queue_threads=256,
        device_name=DEVICE,
    )
    return XlaProgram(program, tuple(compiler.ops), async_op)
