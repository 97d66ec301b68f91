"""The text of a file, plain or gzipped: its opening, or all of it in blocks."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from ...base.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
OPENING_BYTES = 1 << 16
_SMALLEST_GZIP_BYTES = 20

#: Blocks that fit the second-level cache decode fastest (benchmarks/bench_parse.py).
BLOCK_BYTES = 1 << 17


def read_opening(path: Path) -> bytes:
    """Read the first `OPENING_BYTES` of a file, unpacked if it is gzipped.

    Parameters
    ----------
    path : Path
        A regular file.

    Returns
    -------
    bytes
        The opening; shorter where the file (or what can be unpacked of it) is shorter, and still
        packed where nothing can be unpacked.
    """
    with path.open("rb") as file:
        data = file.read(OPENING_BYTES)
    packed, text = data, b""
    while packed.startswith(GZIP_MAGIC) and len(text) < OPENING_BYTES:
        inflater = zlib.decompressobj(wbits=31)
        try:
            text += inflater.decompress(packed, OPENING_BYTES - len(text))
        except zlib.error:
            break
        packed = inflater.unused_data.lstrip(b"\0")
    # An empty file packs into twenty bytes; nothing from fewer means that the header is cut.
    empty = data.startswith(GZIP_MAGIC) and len(data) >= _SMALLEST_GZIP_BYTES and packed != data
    return text if text or empty else data


class CutShortError(Exception):
    """The file ends before its content does; `place` says where."""

    def __init__(self, what: str, place: str) -> None:
        super().__init__(what)
        self.what = what
        self.place = place


class TextBlocks:
    """The text of a file, unpacked, in blocks.

    Parameters
    ----------
    path : Path
        Plain or gzipped (told by its magic, never its name; several members may follow each
        other).
    block_bytes : int
        Largest size of a block.
    on_bytes : callable
        Told how many bytes of the file have been read.

    Attributes
    ----------
    total : int
        Bytes of text given so far.
    warnings : list of str
        Oddities of the packing.
    """

    def __init__(self, path: Path, block_bytes: int, on_bytes: Callable[[int], None]) -> None:
        self.path = path
        self.total = 0
        self.warnings: list[str] = []
        self._block_bytes = block_bytes
        self._on_bytes = on_bytes

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            for block in self._inflated(file) if packed else self._plain(file):
                self.total += len(block)
                yield block

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        while block := file.read(self._block_bytes):
            self._on_bytes(file.tell())
            yield block

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        inflater = zlib.decompressobj(wbits=31)
        data = file.read(self._block_bytes)
        while data:
            self._on_bytes(file.tell())
            try:
                block = inflater.decompress(data, self._block_bytes)
            except zlib.error as error:
                raise TraceError(
                    f"damaged gzip data ({error})",
                    file=self.path,
                    place=f"compressed byte {file.tell() - len(data)}",
                ) from error
            if block:
                yield block
            if not inflater.eof:
                data = inflater.unconsumed_tail or file.read(self._block_bytes)
                continue
            data = self._next_member(inflater.unused_data, file)
            if data:
                inflater = zlib.decompressobj(wbits=31)
        if not inflater.eof:
            raise CutShortError("the gzip data ends early", f"compressed byte {file.tell()}")

    def _next_member(self, data: bytes, file: BinaryIO) -> bytes:
        """Find where the next gzip member begins; nothing if there is none."""
        while len(data := data.lstrip(b"\0")) < len(GZIP_MAGIC):  # tapes pad with zeros
            more = file.read(self._block_bytes)
            if not more:
                break
            data += more
        if data and not data.startswith(GZIP_MAGIC):
            self.warnings.append("what follows the gzip data is no gzip data and was ignored")
            return b""
        return data
