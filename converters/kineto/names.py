"""What the names in a Kineto trace mean: runtime calls, collectives, data types, steps.

Every function here looks at one string. Names are hints (NCCL's maintainers say so of kernel
names), so recorded metadata goes first wherever it exists; see `comms`.
"""

from __future__ import annotations

import re
from enum import IntEnum

from ...graph.columns import Collective
from ..kernels import collective_from_kernel

#: Bytes per element of the data types that PyTorch prints, in both spellings: that of the
#: communication metadata (``BFloat16``) and that of ``Input type`` (``c10::BFloat16``).
DTYPE_BYTES: dict[str, int] = {
    **dict.fromkeys(("double", "long", "longint", "int64", "uint64", "unsignedlong"), 8),
    **dict.fromkeys(("complexfloat", "c10::complex<float>"), 8),
    **dict.fromkeys(("complexdouble", "c10::complex<double>"), 16),
    **dict.fromkeys(("float", "int", "int32", "uint32", "unsignedint", "complexhalf"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "shortint", "int16", "uint16"), 2),
    **dict.fromkeys(("char", "byte", "bool", "signedchar", "unsignedchar", "int8", "uint8"), 1),
}


def dtype_bytes(name: str) -> int | None:
    """Bytes per element of a data type, or None where it is unknown.

    Parameters
    ----------
    name : str
        Such as ``BFloat16``, ``c10::Half``, ``long int`` or ``Float8_e4m3fn``.
    """
    key = name.lower().replace(" ", "").removeprefix("c10::").removeprefix("torch.")
    if key.startswith("float8"):
        return 1
    return DTYPE_BYTES.get(key, DTYPE_BYTES.get(f"c10::{key}"))


#: One name for the spellings of a type; others keep that of PyTorch (``float8_e4m3fn``).
_DTYPE_NAMES = {
    **dict.fromkeys(("double", "float64"), "float64"),
    **dict.fromkeys(("float", "float32"), "float32"),
    **dict.fromkeys(("half", "float16"), "float16"),
    **dict.fromkeys(("long", "longint", "int64"), "int64"),
    **dict.fromkeys(("int", "int32"), "int32"),
    **dict.fromkeys(("short", "shortint", "int16"), "int16"),
    **dict.fromkeys(("char", "signedchar", "int8"), "int8"),
    **dict.fromkeys(("byte", "unsignedchar", "uint8"), "uint8"),
    **dict.fromkeys(("complexfloat", "complex<float>"), "complex64"),
    **dict.fromkeys(("complexdouble", "complex<double>"), "complex128"),
}


def dtype_name(name: str) -> str:
    """One spelling of a data type, whatever part of a trace it is from.

    Parameters
    ----------
    name : str
        As for `dtype_bytes`.

    Examples
    --------
    >>> dtype_name("c10::Half"), dtype_name("Half"), dtype_name("Float8_e4m3fn")
    ('float16', 'float16', 'float8_e4m3fn')
    """
    key = name.lower().replace(" ", "").removeprefix("c10::").removeprefix("torch.")
    return _DTYPE_NAMES.get(key, key)


_COLLECTIVES: dict[str, Collective] = {
    "allreduce": Collective.ALL_REDUCE,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
    "allgather": Collective.ALL_GATHER,
    "allgatherv": Collective.ALL_GATHER,
    "reducescatter": Collective.REDUCE_SCATTER,
    "reducescatterv": Collective.REDUCE_SCATTER,
    "alltoall": Collective.ALL_TO_ALL,
    "alltoallv": Collective.ALL_TO_ALL,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "barrier": Collective.BARRIER,
    "send": Collective.SEND_RECV,
    "recv": Collective.SEND_RECV,
    "recvanysource": Collective.SEND_RECV,
}


def collective_from_op(name: str) -> Collective:
    """Operation of a ``Collective name`` or of an annotation such as ``nccl:_all_gather_base``.

    Returns
    -------
    Collective
        NONE for names that move no data (wait, init) or are unknown.
    """
    key = name.lower().rsplit(":", 1)[-1].strip()
    key = re.sub(r"[_\-]|tensor|coalesced|base|into|single", "", key)
    found = _COLLECTIVES.get(key)
    if found is None and "::" in name:  # custom operators, such as symm_mem::multimem_all_reduce_
        found = collective_from_kernel(key)
    return Collective.NONE if found is None else found


def is_send(name: str) -> bool:
    """Whether the name of a point-to-point operation is that of a send."""
    return "send" in name.lower().rsplit(":", 1)[-1]


class Call(IntEnum):
    """What a runtime call does, as far as it orders work."""

    OTHER = 0
    LAUNCH = 1
    RECORD_EVENT = 2
    WAIT_EVENT = 3  # makes a stream wait for an event
    SYNC_STREAM = 4
    SYNC_EVENT = 5
    SYNC_DEVICE = 6


_CALLS: tuple[tuple[re.Pattern[str], Call], ...] = tuple(
    (re.compile(pattern), call)
    for pattern, call in (
        (r"^(cuda|hip|cu)StreamWaitEvent", Call.WAIT_EVENT),
        (r"^(cuda|hip|cu)EventRecord", Call.RECORD_EVENT),
        (r"^(cuda|hip|cu)StreamSynchronize", Call.SYNC_STREAM),
        (r"^(cuda|hip|cu)EventSynchronize", Call.SYNC_EVENT),
        (r"^(cuda|hip)DeviceSynchronize|^cuCtxSynchronize", Call.SYNC_DEVICE),
        (r"Launch(?!HostFunc)|Mem(cpy|set)", Call.LAUNCH),
    )
)


def classify_call(name: str) -> Call:
    """What a runtime or driver call does."""
    for pattern, call in _CALLS:
        if pattern.search(name):
            return call
    return Call.OTHER


def blocks_until_copied(call: str, copy: str) -> bool:
    """Whether a memory copy returns only when it is done.

    Synchronous copies do, and so do copies to pageable host memory (CUDA Runtime API, "API
    synchronization behavior").

    Parameters
    ----------
    call, copy : str
        Names of the runtime call and of the device row it caused.
    """
    return "-> Pageable" in copy or (
        "Memcpy" in call and "Async" not in call and "Batch" not in call and "Peer" not in call
    )


#: Step markers, best first: each pattern is tried on all annotations before the next.
STEP_PATTERNS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        r"^ProfilerStep#\d+$",
        r"^execute_(context_\d|\d+_context|new_)",
        r"^step\[",
        r"^(Iteration|iteration|train|train_step)[ #_]?\d+$",
        r"^train_step$",
        r"^\[pl\]\[profile\]run_training_batch$",
    )
)
