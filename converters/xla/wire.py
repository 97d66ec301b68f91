"""The protobuf wire format, as far as a profile of millions of events needs it.

`fields` lists what a message consists of without decoding it, so that a file of any size is
walked plane by plane; `scan_events` turns the events of one line into columns in compiled code.
The meaning of the fields is in `xplane`, small messages are left to protobuf itself (`protos`).

Reference: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...base.compiling import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Bits of a packed place of text that hold its length; longer text is cut.
TEXT_BITS = 20


class DamagedError(Exception):
    """The bytes are no protobuf message; `offset` is where that shows."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"no protobuf at byte {offset}")
        self.offset = offset


class Fields(NamedTuple):
    """The fields of one message, in the order of the bytes, shape (F,).

    Attributes
    ----------
    number, wire : int64
        Field number and wire type.
    value : int64
        Of a varint or fixed number its bits; of bytes where they begin in the buffer.
    length : int64
        Length of bytes, 0 otherwise.
    """

    number: NDArray[np.int64]
    wire: NDArray[np.int64]
    value: NDArray[np.int64]
    length: NDArray[np.int64]


@compiled
def _varint(data: NDArray[np.uint8], at: int, end: int) -> Any:  # noqa: ANN401
    """Decode a varint: its 64 bits and the offset after it, which is -1 if it is damaged."""
    result = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = data[at]
        at += 1
        if shift < np.uint64(64):
            result |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += np.uint64(7)
    return result, -1


@compiled
def _fixed(data: NDArray[np.uint8], at: int, count: int) -> Any:  # noqa: ANN401
    result = np.uint64(0)
    for i in range(count):
        result |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return result


@compiled
def _field(data: NDArray[np.uint8], at: int, end: int) -> Any:  # noqa: ANN401
    """Decode one field: number, wire type, value, length and the offset after it.

    The offset is -1 if the field is damaged.
    """
    key, after = _varint(data, at, end)
    number = np.int64(key >> np.uint64(3))
    wire = np.int64(key & np.uint64(7))
    if after < 0 or number == 0:
        return number, wire, np.int64(0), np.int64(0), -1
    if wire == 0:
        value, after = _varint(data, after, end)
        return number, wire, np.int64(value), np.int64(0), after
    if wire == 2:
        length, after = _varint(data, after, end)
        if after < 0 or length > np.uint64(end - after):
            return number, wire, np.int64(0), np.int64(0), -1
        size = np.int64(length)
        return number, wire, np.int64(after), size, after + size
    if wire == 1 and after + 8 <= end:
        return number, wire, np.int64(_fixed(data, after, 8)), np.int64(0), after + 8
    if wire == 5 and after + 4 <= end:
        return number, wire, np.int64(_fixed(data, after, 4)), np.int64(0), after + 4
    return number, wire, np.int64(0), np.int64(0), -1


@compiled
def _count_fields(data: NDArray[np.uint8], begin: int, end: int, wanted: int) -> Any:  # noqa: ANN401
    """Count all fields and those with one number; the second result is -1 - offset if damaged."""
    at = begin
    count = 0
    found = 0
    while at < end:
        number, _, _, _, after = _field(data, at, end)
        if after < 0:
            return count, -1 - at
        count += 1
        if number == wanted:
            found += 1
        at = after
    return count, found


@compiled
def _fill_fields(
    data: NDArray[np.uint8],
    begin: int,
    end: int,
    number: NDArray[np.int64],
    wire: NDArray[np.int64],
    value: NDArray[np.int64],
    length: NDArray[np.int64],
) -> None:
    at = begin
    i = 0
    while at < end:
        number[i], wire[i], value[i], length[i], at = _field(data, at, end)
        i += 1


def fields(data: NDArray[np.uint8], begin: int, end: int) -> Fields:
    """List the fields of the message at ``data[begin:end]``.

    Parameters
    ----------
    data : uint8, shape (B,)
        The file.
    begin, end : int
        Where the message is.

    Returns
    -------
    Fields

    Raises
    ------
    DamagedError
        The bytes are no message.
    """
    count, found = _count_fields(data, begin, end, 0)
    if found < 0:
        raise DamagedError(-1 - found)
    columns = [np.empty(count, dtype=np.int64) for _ in range(4)]
    _fill_fields(data, begin, end, *columns)
    return Fields(*columns)


@compiled
def _first_varints(
    data: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    keys: NDArray[np.int64],
) -> int:
    """Fill the keys; the result is -1, or the offset of the damage."""
    for i in range(len(begins)):
        at = begins[i]
        stop = at + lengths[i]
        while at < stop:
            number, wire, value, _, after = _field(data, at, stop)
            if after < 0:
                return int(at)
            if number == 1 and wire == 0:
                keys[i] = value
            at = after
    return -1


def map_keys(
    data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Keys of the entries of a map with numbers for keys.

    Parameters
    ----------
    data : uint8, shape (B,)
        The file.
    begins, lengths : int64, shape (M,)
        Where the entries are.

    Returns
    -------
    int64, shape (M,)

    Raises
    ------
    DamagedError
        An entry is no message.
    """
    keys = np.zeros(len(begins), dtype=np.int64)
    damage = _first_varints(data, begins, lengths, keys)
    if damage >= 0:
        raise DamagedError(int(damage))
    return keys


def head(data: NDArray[np.uint8], begin: int, end: int, last: int) -> Fields:
    """List the fields of a message before the first of a number, which protobuf writes in order.

    Parameters
    ----------
    data, begin, end
        As for `fields`.
    last : int
        Number of the first field that is not listed.

    Returns
    -------
    Fields

    Raises
    ------
    DamagedError
        The bytes are no message.
    """
    at = _first_of(data, begin, end, last)
    if at < 0:
        raise DamagedError(-1 - at)
    return fields(data, begin, at)


@compiled
def _first_of(data: NDArray[np.uint8], begin: int, end: int, last: int) -> int:
    """Where the first field of a number begins; -1 - offset if the message is damaged."""
    at = begin
    while at < end:
        number, _, _, _, after = _field(data, at, end)
        if after < 0:
            return int(-1 - at)
        if number == last:
            return int(at)
        at = after
    return int(end)


class Events(NamedTuple):
    """The events of one line, in the order of the file, shape (N,); W stats are looked for.

    Attributes
    ----------
    metadata : int64
        Id of the event's metadata.
    offset_ps, duration_ps : int64
        Time from the start of the line, and duration.
    kind : int8, shape (W, N)
        Field number in which the value of a stat is stored (3 and 4 integers, 2 double, 5 text,
        6 bytes, 7 reference); 0 where the event does not have it.
    value : int64, shape (W, N)
        The integer or reference; of text and bytes the offset in the file and, in the lowest
        TEXT_BITS bits, the length.
    """

    metadata: NDArray[np.int64]
    offset_ps: NDArray[np.int64]
    duration_ps: NDArray[np.int64]
    kind: NDArray[np.int8]
    value: NDArray[np.int64]


@compiled
def _scan_events(
    data: NDArray[np.uint8],
    begin: int,
    end: int,
    wanted: NDArray[np.int64],
    metadata: NDArray[np.int64],
    offset: NDArray[np.int64],
    duration: NDArray[np.int64],
    kind: NDArray[np.int8],
    value: NDArray[np.int64],
) -> int:
    """Fill the columns; the result is -1, or the offset of the damage."""
    at = begin
    event = 0
    while at < end:
        number, wire, start, length, after = _field(data, at, end)
        if number != 4 or wire != 2:
            at = after
            continue
        inner = start
        stop = start + length
        while inner < stop:
            f, w, v, n, inner_after = _field(data, inner, stop)
            if inner_after < 0:
                return int(inner)
            if w == 0:
                if f == 1:
                    metadata[event] = v
                elif f == 2:
                    offset[event] = v
                elif f == 3:
                    duration[event] = v
            elif f == 4 and w == 2 and len(wanted):
                stat = v
                stat_stop = v + n
                which = -1
                stat_kind = 0
                stat_value = np.int64(0)
                while stat < stat_stop:
                    sf, sw, sv, sn, stat_after = _field(data, stat, stat_stop)
                    if stat_after < 0:
                        return int(stat)
                    if sf == 1 and sw == 0:
                        for i in range(len(wanted)):
                            if wanted[i] == sv:
                                which = i
                    elif 2 <= sf <= 7:
                        stat_kind = sf
                        stat_value = sv
                        if sw == 2:
                            stat_value = (sv << TEXT_BITS) | min(sn, (1 << TEXT_BITS) - 1)
                    stat = stat_after
                if which >= 0:
                    kind[which, event] = stat_kind
                    value[which, event] = stat_value
            inner = inner_after
        event += 1
        at = after
    return -1


def scan_events(data: NDArray[np.uint8], begin: int, end: int, wanted: NDArray[np.int64]) -> Events:
    """Read the events of the XLine at ``data[begin:end]``.

    Parameters
    ----------
    data : uint8, shape (B,)
        The file.
    begin, end : int
        Where the line is.
    wanted : int64, shape (W,)
        Ids of the stats to look for.

    Returns
    -------
    Events

    Raises
    ------
    DamagedError
        The bytes are no line.
    """
    _, count = _count_fields(data, begin, end, 4)
    if count < 0:
        raise DamagedError(-1 - count)
    width = len(wanted)
    events = Events(
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros((width, count), dtype=np.int8),
        np.zeros((width, count), dtype=np.int64),
    )
    damage = _scan_events(data, begin, end, wanted, *events)
    if damage >= 0:
        raise DamagedError(int(damage))
    return events
