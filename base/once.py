"""Working something out once for each object that it is asked of."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

_Thing = TypeVar("_Thing")
_Result = TypeVar("_Result")


def once_for_each(work: Callable[[_Thing], _Result]) -> Callable[[_Thing], _Result]:
    """Keep what a function of one object returns for as long as that object lives.

    The object must be told by its identity and must not change; nor may the result be changed,
    or refer back to the object, which would then live forever.
    """
    known: WeakKeyDictionary[Any, _Result] = WeakKeyDictionary()

    @wraps(work)
    def looked_up(thing: _Thing) -> _Result:
        if thing not in known:
            known[thing] = work(thing)
        return known[thing]

    return looked_up
