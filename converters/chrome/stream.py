"""A trace file as a stream: its events in runs, and its metadata.

`EventStream` finds the ``traceEvents`` array, wherever it stands among the other keys, and cuts
it between events, so that no more than a few blocks of `text` are in memory at a time. How a run
of events is decoded is in `decode`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from ...base.errors import TraceError
from .decode import ends_inside_event, load_object, load_value_at, next_event_like_first
from .text import BLOCK_BYTES, CutShortError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .decode import Row, RowDecoder
    from .text import TextBlocks


class EventStream:
    """The events of a trace in runs, in the order of the file.

    Parameters
    ----------
    blocks : TextBlocks
        The text.
    decoder : RowDecoder
        Decodes the runs.

    Attributes
    ----------
    metadata : dict
        Everything of the top level but the events; complete when the iteration has ended.
    warnings : list of str
        Damage outside the events.
    """

    def __init__(self, blocks: TextBlocks, decoder: RowDecoder) -> None:
        self.metadata: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._source = blocks
        self._blocks = iter(blocks)
        self._decoder = decoder

    def __iter__(self) -> Iterator[tuple[list[Row], bytes | None]]:
        """Iterate over the rows of each run and, unless it was damaged, its text."""
        head, buffer = self._find_array()
        wanted = 1
        while True:
            buffer = buffer.lstrip(b" \t\r\n,") if buffer[:1] != b"{" else buffer
            if buffer[:1] == b"]":
                break
            run = self._next_run(buffer)
            if run is not None:
                rows, text, consumed = run
                yield rows, text
                buffer = buffer[consumed:]
                wanted = 1
                continue
            more = self._read(wanted)
            wanted *= 2  # an event larger than a block must not cost quadratic time
            if more:
                buffer += more
                continue
            rows, consumed = self._last_run(buffer, bare=head is None)
            yield rows, None
            buffer = buffer[consumed:]
        self._read_metadata(head, self._rest(buffer[1:]))

    def _read(self, count: int) -> bytes:
        return b"".join(block for _, block in zip(range(count), self._blocks, strict=False))

    def _find_array(self) -> tuple[bytes | None, bytes]:
        """Return what stands before the array (None if nothing does), and what follows ``[``."""
        text, scanned = b"", 0
        while len(text) < _OUTSIDE_LIMIT_BYTES:
            more = self._read(1 + len(text) // BLOCK_BYTES)
            text = (text + more).removeprefix(_BOM).lstrip() if not scanned else text + more
            if text.startswith(b"["):
                return None, text[1:]
            if match := _ARRAY.search(text, scanned):
                return text[: match.start()], text[match.end() :]
            if not more:
                break
            scanned = max(0, len(text) - _KEY_SPAN)
        raise TraceError(
            "not a Kineto trace: it has no traceEvents array",
            file=self._source.path,
            place=f"in the first {len(text)} bytes",
        )

    def _next_run(self, buffer: bytes) -> tuple[list[Row], bytes | None, int] | None:
        """Decode as many events from the start of the buffer as it holds.

        Returns
        -------
        tuple or None
            The rows, their text (None if it was damaged) and how much of the buffer they take.
            None if more text is needed.
        """
        close = _last_boundary(buffer)
        misplaced = True
        if close:
            try:
                return self._decoder.decode(buffer[:close]), buffer[:close], close
            except msgspec.DecodeError as error:
                misplaced = _TRUNCATED in str(error)
        # The run is not what it seemed: the array ends in it, or what looked like the end of an
        # event is inside one, or it is damaged.
        ends = [match.start() + 1 for match in _ARRAY_END.finditer(buffer)][:_MAX_ENDS]
        run = self._first_that_decodes(buffer, ends)
        if run is not None or not close:
            return run
        closes = [match.start() + 1 for match in next_event_like_first(buffer).finditer(buffer)]
        earlier = [closes[-(1 << i)] for i in range(len(closes).bit_length())]
        if misplaced and (run := self._first_that_decodes(buffer, earlier)) is not None:
            return run
        for end in (closes[-1] if closes else close, *ends):
            try:
                return self._decoder.decode_repaired(buffer[:end]), None, end
            except ValueError:
                continue
        if (misplaced or not closes) and len(buffer) < _EVENT_LIMIT_BYTES:
            return None
        # Where text is damaged, the best guess at the end of an event.
        close = closes[-1] if closes else close
        return self._decoder.salvage(buffer[:close]), None, close

    def _first_that_decodes(
        self, buffer: bytes, ends: list[int]
    ) -> tuple[list[Row], bytes, int] | None:
        for end in ends:
            try:
                return self._decoder.decode(buffer[:end]), buffer[:end], end
            except msgspec.DecodeError:
                continue
        return None

    def _last_run(self, buffer: bytes, *, bare: bool) -> tuple[list[Row], int]:
        """Save what can be saved before the end of the array, with no text left to read."""
        for match in _ARRAY_END.finditer(buffer):
            end, tail = match.start() + 1, buffer[match.end() :]
            closed = not tail.strip() if bare else _is_object(b'{"traceEvents":0' + tail)
            if closed and not ends_inside_event(buffer[:end]):
                return self._decoder.salvage(buffer[:end]), end
        raise CutShortError(
            "it ends inside the traceEvents array", f"byte {self._source.total - len(buffer)}"
        )

    def _rest(self, tail: bytes) -> bytes:
        """Read what follows the array: a few log lines and settings, if the file is whole."""
        while more := self._read(1 + len(tail) // BLOCK_BYTES):
            tail += more
            if len(tail) > _OUTSIDE_LIMIT_BYTES:
                self._refuse_if_events_in(tail)
        return tail

    def _refuse_if_events_in(self, tail: bytes) -> None:
        if count := len(_EVENT_PHASE.findall(tail)):
            raise TraceError(
                f"damaged beyond repair: {count} events follow the end of the array of events",
                file=self._source.path,
                place=f"byte {self._source.total - len(tail)}",
            )

    def _read_metadata(self, head: bytes | None, tail: bytes) -> None:
        if head is None:
            if tail.strip():
                self._refuse_if_events_in(tail)
                self.warnings.append("text after the array of events was ignored")
            return
        text = head + b'"traceEvents":0' + tail
        try:
            self.metadata = load_object(text)
        except ValueError as error:
            self._refuse_if_events_in(tail)
            at_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(
                error.doc.rstrip()
            )
            if at_end or not tail.rstrip().endswith(b"}"):
                what = "it ends inside the top-level object"
                raise CutShortError(what, f"byte {self._source.total}") from error
            self._save_metadata(text)

    def _save_metadata(self, text: bytes) -> None:
        """Pick what a conversion uses out of a damaged top level."""
        self.warnings.append("the top level of the file is damaged; parts of it were read")
        for key in ESSENTIAL_KEYS:
            if match := re.search(rb'"' + key.encode() + rb'"\s*:\s*', text):
                try:
                    self.metadata[key] = load_value_at(text, match.end())
                except ValueError:
                    self.warnings.append(f"{key} could not be read")


#: Keys of the top level that a conversion uses.
ESSENTIAL_KEYS = (
    "distributedInfo",
    "baseTimeNanoseconds",
    "deviceProperties",
    "host_name",
)

_BOM = b"\xef\xbb\xbf"
# Not inside a string, where the quotes are escaped.
_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_KEY_SPAN = 64  # more than the key, its colon, the bracket and their spacing
_OUTSIDE_LIMIT_BYTES = 1 << 28
_EVENT_LIMIT_BYTES = 1 << 24
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_ARRAY_END = re.compile(rb"\}\s*,?\s*\]")
_MAX_ENDS = 64
_TRUNCATED = "truncated"
_EVENT_PHASE = re.compile(rb'"ph"\s*:\s*"')


def _last_boundary(buffer: bytes) -> int:
    """Find the end of the last event that another one seems to follow; 0 if there is none."""
    window = 4096
    while True:
        start = max(0, len(buffer) - window)
        close = 0
        for match in _BOUNDARY.finditer(buffer, start):
            close = match.start() + 1
        if close or start == 0:
            return close
        window *= 8


def _is_object(text: bytes) -> bool:
    try:
        load_object(text)
    except ValueError:
        return False
    return True
