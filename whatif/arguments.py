"""What callers of the Python functions may write in place of what the functions take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T", str, "str | Path")


def several(given: T | Sequence[T]) -> list[T]:
    """Make a list of names of a sequence of them, or of one name alone.

    A string is a sequence, too, of its letters, which nobody means.
    """
    if isinstance(given, str | Path):
        return [given]
    return list(given)
