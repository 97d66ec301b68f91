"""Compiling hot loops with Numba, the same way everywhere. Importing this imports Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def compiled(function: F) -> F:
    """Compile with Numba, cached on disk where some folder can be written."""
    try:
        return cast("F", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        return cast("F", numba.njit(nogil=True)(function))


def inlined(function: F) -> F:
    """Compile into the callers; handing a `Program` over costs more than most functions do."""
    return cast("F", numba.njit(inline="always")(function))
