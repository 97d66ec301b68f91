"""Telling a Kineto trace from everything else that lies beside one, by its first bytes.

Names prove nothing: execution traces, logs, memory snapshots and pointers of version control
carry the same suffixes. Only the opening of a file is looked at here; reading it is `reader`.
"""

from __future__ import annotations

import re

from ..chrome.text import GZIP_MAGIC

_BINARY = (
    (b"SQLite format 3\0", "an SQLite database (Nsight Systems or rocprof), not a JSON trace"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (b"\x80", "a Python pickle (such as a memory snapshot)"),
)
_EXECUTION_TRACE = re.compile(rb'"schema"\s*:\s*"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_XLA_PROCESS = re.compile(rb'"name"\s*:\s*"/(?:device|host):')
_KINETO_KEY = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
)
_BARE_ARRAY_OF_EVENTS = re.compile(rb'\[\s*\{.{0,4000}?"ph"\s*:', re.DOTALL)
_TEXT_CONTROL = frozenset(b"\t\n\r\f\x1b")


def why_not_kineto(opening: bytes) -> str | None:
    """Say what a file is if its opening shows that it is no Kineto trace.

    Parameters
    ----------
    opening : bytes
        First bytes of the file, unpacked (see `read_opening`).

    Returns
    -------
    str or None
        What the file is, as the end of a sentence that starts with "it is"; None if it may be a
        Kineto trace.
    """
    text = opening.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        return "empty"
    if text.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the file it stands for: fetch it with `git lfs pull`"
    if text.startswith((b"{", b"[")):
        return _why_not_kineto_json(text)
    for magic, reason in _BINARY:
        if opening.startswith(magic):
            return reason
    if opening.startswith(GZIP_MAGIC):
        return "damaged gzip data"
    if any(byte < 0x20 and byte not in _TEXT_CONTROL for byte in opening[:4096]):
        return _what_binary(opening)
    line = text.rstrip()
    if b"\n" not in line and b"/" in line and re.search(rb"\.(?:json|gz|pt|tgz|pb)$", line):
        return "the text of a symbolic link, not the file it points to"
    return f"not JSON: it begins with {_quote(text)}"


def is_kineto(opening: bytes) -> bool:
    """Whether the opening of a file shows what only Kineto traces have.

    Parameters
    ----------
    opening : bytes
        First bytes of the file, unpacked (see `read_opening`).

    Returns
    -------
    bool
        False also where it cannot be told.
    """
    text = opening.removeprefix(b"\xef\xbb\xbf").lstrip()
    if why_not_kineto(opening) is not None:
        return False
    if text.startswith(b"["):
        return _BARE_ARRAY_OF_EVENTS.match(text) is not None
    return _KINETO_KEY.search(text) is not None


def _why_not_kineto_json(text: bytes) -> str | None:
    if text.startswith(b"{") and _EXECUTION_TRACE.search(text) and _NODES.search(text):
        return "a PyTorch ExecutionTrace: give the Kineto trace of the same run"
    if _XLA_PROCESS.search(text):
        return "an XLA trace (TPU, or JAX on GPU), not a Kineto trace"
    if re.match(rb"\[\s*\[", text):
        return "a JSON table, not a trace"
    return None


def _what_binary(opening: bytes) -> str:
    # Perfetto's Trace and XLA's XSpace are both protobufs whose first field is number 1.
    if opening.startswith(b"\x0a"):
        if b"/host:" in opening or b"/device:" in opening or b"/job:" in opening:
            return "an XLA profile (xplane.pb), not a Kineto trace"
        return "a Perfetto protobuf trace (pftrace): export the Chrome JSON trace instead"
    return f"binary data, not JSON: it begins with {_quote(opening)}"


def _quote(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace"))
