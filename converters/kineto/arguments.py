"""The arguments of events that Kineto gives columns of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..chrome.decode import as_int, decode_args

if TYPE_CHECKING:
    from ..chrome.decode import Row


class Args(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "external_id": "External id",
        "external_id_old": "external id",
        "wait_correlation": "wait_on_cuda_event_record_corr_id",
        "wait_event": "wait_on_cuda_event_id",
        "wait_stream": "wait_on_stream",
        "size": "bytes",
        "collective": "Collective name",
    },
):
    """The arguments that have a column of their own; -1 where absent.

    ROCm writes some of these numbers as strings.
    """

    external_id: int | str = -1
    correlation: int | str = -1
    external_id_old: int | str = -1
    device: int | str = -1
    stream: int | str = -1
    size: int | str = -1
    wait_stream: int | str = -1
    wait_correlation: int | str = -1
    wait_event: int | str = -1
    event_id: int | str = -1
    collective: str | None = None


_ARGS_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Args)}
_DECODER = msgspec.json.Decoder(list[Args])


def args_of(rows: list[Row]) -> list[Args]:
    """Decode the arguments that have columns, of many rows at once."""
    try:
        return _DECODER.decode(b"[" + b",".join([row.args for row in rows]) + b"]")
    except msgspec.DecodeError:
        return [_args_from_dict(decode_args(row.args)) for row in rows]


def _args_from_dict(args: dict[str, Any]) -> Args:
    known = {name: args[key] for key, name in _ARGS_FIELDS.items() if key in args}
    collective = known.pop("collective", None)
    numbers = {name: as_int(value) for name, value in known.items()}
    return Args(**numbers, collective=None if collective is None else str(collective))
