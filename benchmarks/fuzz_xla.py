"""Damages XLA profiles in thousands of ways and holds every outcome against three promises.

Whatever a file holds, reading it ends in a graph or in one of the package's errors (no
traceback), within ten seconds of work (no hang), and what is missing from the graph that the
intact file has is said in the coverage report (no silent loss). Damage is drawn from a seed: bits
flipped, blocks dropped, repeated, zeroed or cut off, in the file or in its compressed form; fields
of the messages of an xplane.pb dropped, repeated, or given other types and values, with the
lengths around them put right so that a reader gets as far as them; values of a JSON file given
other types; HLO text cut, or with characters changed.

A value that another plausible value replaced is no loss: nobody could tell. So what counts as lost
are steps, operations and, where some of these communicate, ranks: of devices that never do nothing
says how many there were, and neither do they say what others did.

    python benchmarks/fuzz_xla.py --files shared/traces/tpu/* examples/jax_cpu_8devices/*.gz
    python benchmarks/fuzz_xla.py --files my.xplane.pb --count 1 --seed 1234 --keep damaged/

It prints each broken promise with its seed and a summary, and exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection

    from whatif.graph.columns import ExecutionGraph

LIMIT_S = 10.0

# --- damage -----------------------------------------------------------------------------------


def damaged(name: str, content: bytes, seed: int) -> tuple[str, bytes]:
    """Damage a file.

    Parameters
    ----------
    name : str
        Its name, which says of which kind it is and whether it is compressed.
    content : bytes
        As it is on disk.
    seed : int
        The same seed gives the same damage.

    Returns
    -------
    str, bytes
        What was done, and the new content.
    """
    rng = random.Random(f"{name} {seed}")
    zipped = name.endswith(".gz")
    if zipped and rng.random() < 0.1:
        how = rng.choice((_flip, _drop, _cut))
        return f"{how.__name__[1:]} compressed", how(rng, content)
    plain = gzip.decompress(content) if zipped else content
    ways: list[Callable[[random.Random, bytes], bytes]] = [_flip, _drop, _cut, _repeat, _zero]
    deep = [_json_values, _json_texts] if ".json" in name else [_fields, _proto_texts]
    how = rng.choice(ways) if rng.random() < 0.4 else rng.choice(deep)
    changed = how(rng, plain)
    return how.__name__[1:], gzip.compress(changed, 1, mtime=0) if zipped else changed


def _flip(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 16)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _block(rng: random.Random, data: bytes) -> tuple[int, int]:
    size = max(1, round(len(data) * 10 ** rng.uniform(-4, -0.7)))
    start = rng.randrange(max(len(data) - size, 1))
    return start, min(start + size, len(data))


def _drop(rng: random.Random, data: bytes) -> bytes:
    start, end = _block(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = _block(rng, data)
    return data[:end] + data[start:]


def _zero(rng: random.Random, data: bytes) -> bytes:
    start, end = _block(rng, data)
    return data[:start] + bytes(end - start) + data[end:]


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


_JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, 1 << 62, 1 << 70, -(1 << 63)),
    *("", "x", "0", "-1", "1e999", "nan", "\ud800", "all-reduce", [], [1], {}, {"a": {}}),
)


def _json_values(rng: random.Random, data: bytes) -> bytes:
    """Give values other types, take keys away, put events where none belong."""
    trace = json.loads(data)
    events = trace["traceEvents"]
    for _ in range(rng.choice((1, 3, 30, 300))):
        index = rng.randrange(len(events))
        event = events[index]
        chance = rng.random()
        if chance < 0.05:
            events[index] = rng.choice(_JUNK)
        elif chance < 0.1:
            del events[index]
        elif isinstance(event, dict) and event:
            into = event
            if isinstance(event.get("args"), dict) and event["args"] and rng.random() < 0.6:
                into = event["args"]
            key = rng.choice(list(into))
            if rng.random() < 0.3:
                del into[key]
            else:
                into[key] = rng.choice(_JUNK)
    return json.dumps(trace).encode("utf-8", "surrogatepass")


def _json_texts(rng: random.Random, data: bytes) -> bytes:
    trace = json.loads(data)
    texts = [
        event["args"]
        for event in trace["traceEvents"]
        if isinstance(event.get("args"), dict) and "long_name" in event["args"]
    ]
    for args in rng.sample(texts, min(len(texts), rng.choice((1, 10, 1000)))):
        args["long_name"] = _text(rng, args["long_name"])
    return json.dumps(trace).encode()


_TOKENS = ("{", "}", "(", ")", ",", "[", "]", "<=", "T(1,0)", "all-reduce(", "%", "=", "f32[-1]")


def _text(rng: random.Random, text: str) -> str:
    """Cut HLO text, take something out of it, or put something in."""
    if not text:
        return "x"
    at = rng.randrange(len(text))
    way = rng.randrange(5)
    if way == 0:
        return text[:at]
    if way == 1:
        return text[:at] + text[at + rng.randint(1, 20) :]
    if way == 2:
        return text[:at] + rng.choice(_TOKENS) + text[at:]
    if way == 3:
        return "".join(rng.choice("0123456789") if c.isdigit() else c for c in text)
    return text[:at] + rng.choice("0123456789{}[](),x<=é") + text[at + 1 :]


@dataclass
class _Field:
    """A field of a message: number, wire type, and where its value lies."""

    number: int
    wire: int
    start: int
    end: int


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number without an end")


def _message(data: bytes) -> list[_Field] | None:
    """Fields of a message; None of what is none."""
    found, at = [], 0
    try:
        while at < len(data):
            key, at = _varint(data, at)
            number, wire = key >> 3, key & 7
            start = at
            if wire == 0:
                _, at = _varint(data, at)
            elif wire == 2:
                size, start = _varint(data, at)
                at = start + size
            elif wire in (1, 5):
                at += 8 if wire == 1 else 4
            else:
                return None
            if not number or at > len(data):
                return None
            found.append(_Field(number, wire, start, at))
    except (IndexError, ValueError):
        return None
    return found


def _encoded(number: int, wire: int, value: bytes) -> bytes:
    size = _encoded_number(len(value)) if wire == 2 else b""
    return _encoded_number(number << 3 | wire) + size + value


def _encoded_number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _rebuilt(data: bytes, fields: Iterable[_Field], changed: dict[int, bytes]) -> bytes:
    """Put a message together with other encodings of some of its fields."""
    return b"".join(
        changed[i] if i in changed else _encoded(one.number, one.wire, data[one.start : one.end])
        for i, one in enumerate(fields)
    )


def _descend(
    rng: random.Random, data: bytes, depth: int, change: Callable[[bytes, list[_Field]], bytes]
) -> bytes:
    """Change a message that lies at most so deep in another, lengths put right."""
    fields = _message(data)
    if not fields:
        return change(data, [])
    inner = [i for i, one in enumerate(fields) if one.wire == 2 and one.end - one.start > 1]
    if depth and inner and rng.random() < 0.85:
        index = rng.choice(inner)
        one = fields[index]
        value = data[one.start : one.end]
        if _message(value):
            new = _descend(rng, value, depth - 1, change)
            return _rebuilt(data, fields, {index: _encoded(one.number, 2, new)})
    return change(data, fields)


def _fields(rng: random.Random, data: bytes) -> bytes:
    """Drop, repeat and exchange fields of a message, or give them other types and values."""

    def change(message: bytes, fields: list[_Field]) -> bytes:
        if not fields:
            return _flip(rng, message) if message else b"\x08"
        share = rng.choice((0.0, 0.02, 0.3))
        chosen = [i for i in range(len(fields)) if rng.random() < share]
        changed = {}
        for index in chosen or [rng.randrange(len(fields))]:
            one = fields[index]
            value = message[one.start : one.end]
            whole = _encoded(one.number, one.wire, value)
            number = _encoded_number(rng.choice((0, 1, 127, 1 << 31, 1 << 62, (1 << 64) - 1)))
            changed[index] = rng.choice(
                (
                    b"",
                    whole * 2,
                    _encoded(one.number, 0, number),
                    _encoded(one.number, 2, rng.randbytes(rng.randint(0, 20))),
                    _encoded(one.number, 1, rng.randbytes(8)),
                    _encoded(rng.randint(1, 12), one.wire, value),
                    _encoded(one.number, 2, value[: len(value) // 2]),
                )
            )
        return _rebuilt(message, fields, changed)

    for _ in range(rng.choice((1, 1, 5))):
        data = _descend(rng, data, rng.randint(0, 6), change)
    return data


def _proto_texts(rng: random.Random, data: bytes) -> bytes:
    """Change HLO text and other text, in the metadata of events and elsewhere."""

    def change(message: bytes, fields: list[_Field]) -> bytes:
        texts = [
            i
            for i, one in enumerate(fields)
            if one.wire == 2 and message[one.start : one.end].isascii()
        ]
        changed = {}
        for index in rng.sample(texts, min(len(texts), rng.choice((1, 100)))):
            one = fields[index]
            text = message[one.start : one.end].decode("ascii")
            changed[index] = _encoded(one.number, 2, _text(rng, text).encode())
        return _rebuilt(message, fields, changed) if fields else message

    for _ in range(rng.choice((1, 10))):
        data = _descend(rng, data, rng.randint(2, 5), change)
    return data


# --- outcome ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """What of a graph must not get lost unsaid, and all that its report says."""

    ranks: int
    steps: int
    communicating: int
    computing: int
    said: tuple[str, ...]

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Content:
        from whatif.graph.columns import Collective, Flavour

        cover = graph.coverage
        said = [
            *cover.warnings,
            *cover.assumed,
            *cover.ignored_files,
            *(f"{one.what}: {one.reason} ({one.count})" for one in cover.dropped),
            *(f"{one.what}: {one.evidence} ({one.count})" for one in cover.inferred),
        ]
        return cls(
            graph.num_ranks,
            len(graph.steps),
            int((graph.coll != Collective.NONE).sum()),
            int((graph.flavour == Flavour.COMPUTE).sum()),
            tuple(sorted(said)),
        )

    def lost(self, intact: Content) -> str:
        """What the intact file has, this graph has not, and its report is silent about."""
        alone = not intact.communicating
        missing = [
            f"{before - after} {what}"
            for what, before, after in (
                ("ranks", 0 if alone else intact.ranks, self.ranks),
                ("steps", intact.steps, self.steps),
                ("communicating nodes", intact.communicating, self.communicating),
                ("computing nodes", 0 if alone else intact.computing, self.computing),
            )
            if after < before
        ]
        return "" if self.said != intact.said else ", ".join(missing)


@dataclass(frozen=True)
class Outcome:
    """What came of reading a file: ``graph``, ``refused``, or a broken promise."""

    kind: str
    detail: str = ""
    content: Content | None = None

    @property
    def broken(self) -> bool:
        return self.kind not in ("graph", "refused")


def outcome(path: Path, intact: Content | None) -> Outcome:
    """Read a file, and say what came of it."""
    import whatif

    try:
        graph = whatif.load(path, processes=1, assume_missing=True)
    except whatif.WhatIfError as error:
        text = str(error)
        return Outcome("refused", text) if text else Outcome("silent", "an error without words")
    except Exception as error:  # noqa: BLE001 (that is what is looked for)
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
        return Outcome("traceback", said)
    content = Content.of(graph)
    lost = content.lost(intact) if intact else ""
    return Outcome("loss", lost) if lost else Outcome("graph", content=content)


def check_file(
    source: Path, content: bytes, seed: int, folder: Path, intact: Content
) -> tuple[str, Outcome]:
    """Damage a file with a seed, read it, and say what was done and what came of it."""
    how, changed = damaged(source.name, content, seed)
    path = folder / source.name
    path.write_bytes(changed)
    return how, outcome(path, intact)


# --- thousands of them ------------------------------------------------------------------------


@dataclass
class _Worker:
    """A process that reads files, one at a time; started anew after one that never ended."""

    files: list[Path]
    process: multiprocessing.Process | None = None
    pipe: Connection | None = None

    def ask(self, *task: object) -> tuple[str, Outcome]:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_serve, args=(theirs, self.files), daemon=True)
            self.process.start()
            self.pipe.recv()
        assert self.pipe is not None
        began_s, sent_s = self.busy_s(), time.monotonic()
        self.pipe.send(task)
        while not self.pipe.poll(1):
            asleep = time.monotonic() - sent_s > 20 * LIMIT_S
            if asleep or self.busy_s() - began_s > LIMIT_S:
                self.stop()
                return "", Outcome("hang", f"more than {LIMIT_S:g} s")
            if not self.process.is_alive():
                break
        try:
            return self.pipe.recv()  # type: ignore[no-any-return]
        except EOFError:
            self.stop()
            return "", Outcome("crash", "the process died")

    def busy_s(self) -> float:
        """Time since it started, or what of that it had a core, where the system says it."""
        assert self.process is not None
        try:
            row = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return time.monotonic()
        ticks = sum(map(int, row.rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def _serve(pipe: Connection, files: list[Path]) -> None:
    for path in files:
        outcome(path, None)  # so that everything is compiled before the clock runs
    pipe.send("ready")
    while True:
        pipe.send(check_file(*pipe.recv()))


@dataclass
class Tally:
    """How many files ended how, and the broken promises."""

    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


def run(files: list[Path], count: int, seed: int, keep: Path | None) -> Tally:
    """Damage and read files in turn, with seeds from one on."""
    tally, worker = Tally(), _Worker(files)
    contents = {path: path.read_bytes() for path in files}
    intact: dict[Path, Content] = {}
    for path in files:
        whole = outcome(path, None)
        if whole.kind != "graph" or whole.content is None:
            print(f"{path.name} is refused as it is: {whole.detail.splitlines()[-1]}")
        # What cannot be read whole has nothing to lose.
        intact[path] = whole.content or Content(0, 0, 0, 0, ())
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        for number in range(seed, seed + count):
            path = files[number % len(files)]
            how, found = worker.ask(path, contents[path], number, Path(scratch), intact[path])
            how = how or damaged(path.name, contents[path], number)[0]
            tally.kinds[how, found.kind] += 1
            if found.broken:
                line = f"{path.name} seed {number} ({how}): {found.kind}: {found.detail.strip()}"
                tally.broken.append(line)
                print(line, flush=True)
            if keep is not None and (found.broken or count == 1):
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{number}-{path.name}").write_bytes(
                    damaged(path.name, contents[path], number)[1]
                )
            if number % 100 == 99:
                done = number - seed + 1
                print(f"{done} of {count}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    worker.stop()
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage XLA profiles and read them.")
    parser.add_argument("--files", type=Path, nargs="+", required=True, help="profiles to damage")
    parser.add_argument("--count", type=int, default=2000, help="damaged files (default 2000)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--keep", type=Path, help="folder for files that break a promise")
    arguments = parser.parse_args()
    tally = run(arguments.files, arguments.count, arguments.seed, arguments.keep)
    kinds = sorted({kind for _, kind in tally.kinds})
    print(f"{'damage':22}" + "".join(f"{kind:>12}" for kind in kinds))
    for how in sorted({how for how, _ in tally.kinds}):
        print(f"{how:22}" + "".join(f"{tally.kinds[how, kind]:12}" for kind in kinds))
    print(
        f"{arguments.count} files, seeds {arguments.seed} to "
        f"{arguments.seed + arguments.count - 1}: {len(tally.broken)} broken promises"
    )
    sys.exit(bool(tally.broken))


if __name__ == "__main__":
    main()
