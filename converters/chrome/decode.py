"""From the text of events to typed rows, undamaged or not.

`RowDecoder` turns a run of events (``{...}, {...}``) into `Row` objects. Well-formed text takes
the fast, typed way; text whose types drift an untyped one; and text that is no valid JSON is
repaired as far as that goes, event by event if need be, since one unescaped quote in a
gigabyte should cost one event. Cutting a file into such runs is `stream`; what the rows mean is
for the dialects.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
from msgspec import Raw

#: Below this many microseconds the double nearest to a decimal with three places identifies it
#: (its spacing is under half a nanosecond up to 2^42, and just under one up to 2^43).
EXACT_FLOAT_US = float(2**43)

_NO_ARGS = Raw(b"{}")


class Row(msgspec.Struct, gc=False):
    """One event, in the terms of the Chrome trace format; arguments stay text until needed."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    id: int | str = ""
    args: Raw = _NO_ARGS
    ts: int | float | Decimal | None = None
    dur: int | float | Decimal | None = None


class _FastRow(Row, gc=False):
    ts: int | float | None = None
    dur: int | float | None = None


class _ExactRow(Row, gc=False):
    # Decimal accepts JSON numbers, with every digit, and strings.
    ts: Decimal | None = None
    dur: Decimal | None = None


class RowDecoder:
    """Decodes runs of events and counts what it could not decode.

    Attributes
    ----------
    damaged : int
        Events that could not be decoded.
    repaired : int
        Events of which only some fields could be saved.
    """

    def __init__(self) -> None:
        self.damaged = 0
        self.repaired = 0
        self._exact_first = False
        self._fast = msgspec.json.Decoder(list[_FastRow])
        self._exact = msgspec.json.Decoder(list[_ExactRow])
        self._untyped = msgspec.json.Decoder(list[Any], float_hook=Decimal)

    def decode(self, text: bytes) -> list[Row]:
        """Decode well-formed text, whatever the types of its fields.

        Parameters
        ----------
        text : bytes
            Events separated by commas.

        Returns
        -------
        list of Row
            In the order of the text.

        Raises
        ------
        msgspec.DecodeError
            The text is not well-formed: cut in the wrong place, or damaged.
        """
        if self._exact_first:
            return self.decode_exact(text)
        array = b"[" + text + b"]"
        try:
            return self._fast.decode(array)  # type: ignore[return-value]
        except msgspec.ValidationError:
            return self.decode_exact(text)

    def decode_exact(self, text: bytes) -> list[Row]:
        """Decode as `decode` does, with times as exact decimals.

        A producer that needs this once needs it throughout, so `decode` does it from here on.
        """
        self._exact_first = True
        array = b"[" + text + b"]"
        try:
            return self._exact.decode(array)  # type: ignore[return-value]
        except msgspec.ValidationError:
            return self._rows(self._untyped.decode(array))

    def decode_repaired(self, text: bytes) -> list[Row]:
        """Decode text whose damage needs no guess where events begin and end.

        Raises
        ------
        ValueError
            The text is damaged in other ways.
        """
        return self._rows(_load_repaired(b"[" + text + b"]"))

    def salvage(self, text: bytes) -> list[Row]:
        """Decode what can be decoded of damaged text, one event at a time.

        Parameters
        ----------
        text : bytes
            Events separated by commas, or by nothing.

        Returns
        -------
        list of Row
            Those that could be decoded; the others are counted in `damaged`.
        """
        rows: list[Row] = []
        for begin, end in _spans(text, next_event_like_first(text)):
            try:
                rows += self.decode_repaired(text[begin:end])
            except ValueError:
                rows += self._salvage_piece(text[begin:end])
        return rows

    def _salvage_piece(self, text: bytes) -> list[Row]:
        """Decode what can be decoded of a damaged event, and of others that stick to it."""
        rows: list[Row] = []
        pieces = _spans(text, _NEXT_OBJECT)
        i = 0
        while i < len(pieces):
            # An event that holds lists of objects was cut into several pieces: try to rejoin it.
            begin, end = pieces[i]
            # A file with so much damage is no trace with a fault, and need not take minutes.
            most = _MAX_PIECES if self.damaged + self.repaired < _MANY_DAMAGED else 1
            for j in range(i, min(i + most, len(pieces))):
                try:
                    rows += self.decode_repaired(text[begin : pieces[j][1]])
                except ValueError:
                    continue
                i = j + 1
                break
            else:
                row = _row_from_fragments(text[begin:end])
                if row is None:
                    self.damaged += 1
                else:
                    self.repaired += 1
                    rows.append(row)
                i += 1
        return rows

    def _rows(self, events: list[Any]) -> list[Row]:
        rows = [_row_from_dict(event) for event in events if isinstance(event, dict)]
        self.damaged += len(events) - len(rows)
        return rows


def decode_args(text: Raw) -> dict[str, Any]:
    """Decode all arguments of one event.

    Parameters
    ----------
    text : Raw
        The JSON text of the arguments.

    Returns
    -------
    dict
        The arguments; empty if the text is no JSON object.
    """
    try:
        args = msgspec.json.decode(text)
    except msgspec.DecodeError:
        try:
            args = _load_repaired(bytes(text))
        except ValueError:
            return {}
    return args if isinstance(args, dict) else {}


def as_int(value: object) -> int:
    """Read a number that may have been written as a string; -1 if it is none of 64 bits."""
    try:
        number = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if -(1 << 63) <= number < 1 << 63 else -1


def next_event_like_first(text: bytes) -> re.Pattern[bytes]:
    """Pattern of what separates two events if the second begins with the key the text begins with.

    That tells events from objects inside their arguments, since a producer writes the fields of
    all events in one order.
    """
    match = _FIRST_KEY.match(text)
    key = re.escape(match[1]) if match else b""
    return re.compile(rb"\}[\s,]*(?=\{\s*" + key + b")")


def _spans(text: bytes, separator: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """Where the pieces between separators begin and end; a separator's brace is in the piece."""
    between = [match.span() for match in separator.finditer(text)]
    begins = [0, *(end for _, end in between)]
    ends = [*(begin + 1 for begin, _ in between), len(text)]
    return list(zip(begins, ends, strict=True))


def ends_inside_event(text: bytes) -> bool:
    """Whether a run of events stops before its last event does; damage is something else."""
    try:
        _load_repaired(b"[" + text + b"]")
    except json.JSONDecodeError as error:
        return error.pos >= len(error.doc) - 1
    except ValueError:
        return False
    return False


def load_object(text: bytes) -> dict[str, Any]:
    """Decode a JSON object, repairing damage that needs no guess.

    Raises
    ------
    ValueError
        The text is no JSON object, or its damage is of another kind.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        try:
            value = _load_repaired(text)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 (of the text, not of an argument)
    return value


def load_value_at(text: bytes, start: int) -> Any:  # noqa: ANN401 (any JSON value)
    """Decode the JSON value that begins at a place in a text, whatever follows it.

    Raises
    ------
    ValueError
        No value begins there.
    """
    return json.JSONDecoder(strict=False).raw_decode(text[start:].decode("utf-8", "replace"))[0]


# An event of which one piece cannot be decoded is joined with up to this many that follow.
_MAX_PIECES = 8
# After so many damaged events, pieces are not joined any more.
_MANY_DAMAGED = 1_000
_NEXT_OBJECT = re.compile(rb"\}[\s,]*(?=\{)")
_FIRST_KEY = re.compile(rb'\{\s*("[^"\\]{1,40}")\s*:')
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_BARE_NUMBER = re.compile(rb"(?<=:)(\s*)[-+]?(?:nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_TRAILING_COMMA = re.compile(rb",(?=\s*[}\]])")
_DOUBLED_COMMA = re.compile(rb"(?<=[\[,])\s*,(?=\s*\{)")


def _load_repaired(text: bytes) -> Any:  # noqa: ANN401 (any JSON value)
    """Decode JSON with the damage seen in public reports (control characters, bad escapes, ...)."""
    text = text.decode("utf-8", "replace").encode()
    text = _ESCAPE.sub(lambda match: match[0] if match[1] else rb"\\", text)
    text = _BARE_NUMBER.sub(rb"\1null", text)
    text = _TRAILING_COMMA.sub(b"", _DOUBLED_COMMA.sub(b"", text))
    try:
        return json.loads(text, strict=False, parse_float=Decimal)
    except ArithmeticError as error:
        raise ValueError("a number with an exponent beyond all bounds") from error


def _row_from_dict(event: dict[str, Any]) -> Row:
    args = event.get("args")
    return Row(
        ph=_text(event.get("ph")),
        cat=_text(event.get("cat")),
        name=_text(event.get("name")),
        pid=_label(event.get("pid")),
        tid=_label(event.get("tid")),
        id=_label(event.get("id")),
        args=Raw(json.dumps(args, default=float)) if isinstance(args, dict) else _NO_ARGS,
        ts=_time(event.get("ts")),
        dur=_time(event.get("dur")),
    )


def _text(value: object) -> str:
    # A lone surrogate cannot be written to any file later.
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def _label(value: object) -> int | str:
    return value if isinstance(value, int) else _text(value)


def _time(value: object) -> Decimal | None:
    if value is None or isinstance(value, bool):
        return None
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


_FIELD = {
    key: re.compile(rb'"' + key.encode() + rb'"\s*:\s*(?:"([^"]*)"|([^",{}\s]+))')
    for key in ("ph", "cat", "pid", "tid", "id", "ts", "dur")
}
# The name ends where the next field begins, however many quotes it holds.
_NAME = re.compile(
    rb'"name"\s*:\s*"(.*?)"\s*,\s*"(?:ph|cat|pid|tid|id|ts|dur|args)"\s*:', re.DOTALL
)
_INTEGER = re.compile(rb'"([^"\\{}]+)"\s*:\s*"?(-?\d{1,19})"?\s*[,}]')


def _row_from_fragments(text: bytes) -> Row | None:
    """Pick the fields of one damaged event; None unless what it is and when it ran are there."""
    found: dict[str, str] = {}
    for key, pattern in _FIELD.items():
        if match := pattern.search(text):
            found[key] = (match[1] or match[2] or b"").decode("utf-8", "replace")
    name = _NAME.search(text)
    ts, dur = _time(found.get("ts")), _time(found.get("dur"))
    if name is None or ts is None or "ph" not in found or (found["ph"] == "X" and dur is None):
        return None
    numbers = {key.decode("utf-8", "replace"): int(value) for key, value in _INTEGER.findall(text)}
    args = {key: value for key, value in numbers.items() if key not in _FIELD}
    return Row(
        ph=found["ph"],
        cat=found.get("cat", ""),
        name=name[1].decode("utf-8", "replace"),
        pid=_number_or_text(found.get("pid", "")),
        tid=_number_or_text(found.get("tid", "")),
        id=_number_or_text(found.get("id", "")),
        args=Raw(json.dumps(args)),
        ts=ts,
        dur=dur,
    )


def _number_or_text(value: str) -> int | str:
    return int(value) if re.fullmatch(r"-?\d{1,19}", value) else value
