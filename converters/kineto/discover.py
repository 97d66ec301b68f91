"""Which files of a directory are Kineto traces, and why the others are not.

Profilers leave their traces among execution traces, logs and leftovers. Each file is judged by
its content (`sniff`); which rank a trace belongs to is decided after reading it, in `job`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...base.errors import TraceError
from ..chrome.text import read_opening
from .sniff import is_kineto, why_not_kineto

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Discovery:
    """What a path holds.

    Attributes
    ----------
    traces : list of Path
        Kineto traces, in the order of the numbers in their names.
    ignored : list of (Path, str)
        The other files, each with what it is.
    """

    traces: list[Path] = field(default_factory=list)
    ignored: list[tuple[Path, str]] = field(default_factory=list)


def holds_kineto(path: Path) -> bool:
    """Whether Kineto traces lie in a directory itself, not only in directories within it."""
    try:
        return any(file.parent == path for file in discover(path).traces)
    except TraceError:
        return False


def discover(path: Path) -> Discovery:
    """Find the Kineto traces that a path names.

    Parameters
    ----------
    path : Path
        A trace, which is returned without being looked at, or a directory of traces. The
        directories in it are searched, one level deep, only if it holds no trace itself.

    Returns
    -------
    Discovery
        At least one trace, and the files that are none.

    Raises
    ------
    TraceError
        There is no such path, or no trace in it.
    """
    if path.is_file():
        return Discovery(traces=[path])
    if not path.is_dir():
        raise TraceError("no such file or directory", file=path)
    found = Discovery()
    folders = _search(path, found)
    if not found.traces:
        for folder in folders:
            _search(folder, found)
    else:
        found.ignored += [(folder, "a directory beside the traces") for folder in folders]
    if not found.traces:
        raise TraceError(f"no Kineto trace in this directory{_examples(found.ignored)}", file=path)
    return found


def _search(directory: Path, found: Discovery) -> list[Path]:
    """Sort the files of one directory, and return the directories in it."""
    folders = []
    for path in sorted(directory.iterdir(), key=_by_numbers):
        if path.is_dir():
            if not path.name.startswith("."):
                folders.append(path)
        elif reason := _why_ignored(path):
            found.ignored.append((path, reason))
        else:
            found.traces.append(path)
    return folders


def _why_ignored(path: Path) -> str | None:
    if path.name.startswith("."):
        return "a hidden file"
    if path.suffix == ".tmp":
        return "a temporary file: the profiler did not finish it"
    if not path.is_file():
        return "not a regular file"
    try:
        opening = read_opening(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if reason := why_not_kineto(opening):
        return reason
    return None if is_kineto(opening) else "JSON without the keys of a Kineto trace"


def _by_numbers(path: Path) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts rank 10 after rank 9."""
    parts = re.split(r"(\d+)", path.name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part)


def _examples(ignored: list[tuple[Path, str]]) -> str:
    if not ignored:
        return ": it is empty"
    shown = "; ".join(f"{path.name} is {reason}" for path, reason in ignored[:3])
    rest = len(ignored) - 3
    return f" ({shown}{f'; and {rest} other files' if rest > 0 else ''})"
