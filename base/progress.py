"""How long work reports that it is under way, without knowing who listens.

Library code calls a `Progress` it was given; what is shown, and where, is up to the caller. The
command line draws bars on stderr, a program gets silence unless it asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Progress(Protocol):
    """Called when work begins and as it goes on."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take note of the state of a stage.

        Parameters
        ----------
        what : str
            The stage, in words that a user understands: "reading the trace".
        done, total : int
            How much is done and how much there is, in any unit. A total of 0 says that nobody
            knows how long it takes.
        """


def silent(what: str, done: int, total: int) -> None:
    """Show nothing."""
    del what, done, total


def stage(progress: Progress, what: str) -> Callable[[int, int], None]:
    """Give one stage of a progress to code that knows only done and total."""

    def report(done: int, total: int) -> None:
        progress(what, done, total)

    return report
