"""The errors a user can cause, each naming the file, the rank and the place.

Everything that is wrong with an input is raised as a `WhatIfError`; the command line catches
it once, prints one line and exits with its `exit_code`. Any other exception is a bug of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class WhatIfError(Exception):
    """Base of all errors that a user's input can cause.

    Parameters
    ----------
    message : str
        What is wrong, and where it helps, what to do about it.
    file : Path or str, optional
        The file that is at fault.
    rank : int, optional
        The rank that is at fault.
    place : str, optional
        Where in the file or graph: a byte offset, an event, a node, a group.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        file: Path | str | None = None,
        rank: int | None = None,
        place: str | None = None,
    ) -> None:
        self.message = message
        self.file = str(file) if file is not None else None
        self.rank = rank
        self.place = place
        super().__init__(message)

    def __str__(self) -> str:
        where = []
        if self.file is not None:
            where.append(self.file)
        if self.rank is not None:
            where.append(f"rank {self.rank}")
        if self.place is not None:
            where.append(self.place)
        return f"{', '.join(where)}: {self.message}" if where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling between processes.
        return (_rebuild, (type(self), self.message, self.file, self.rank, self.place))


def _rebuild(
    cls: type[WhatIfError], message: str, file: str | None, rank: int | None, place: str | None
) -> WhatIfError:
    return cls(message, file=file, rank=rank, place=place)


class TraceError(WhatIfError):
    """A trace file is missing, damaged, of the wrong kind, or inconsistent with the others."""


class GraphError(WhatIfError):
    """An execution graph is cyclic, incomplete, or its ranks do not fit together."""


class NetworkError(WhatIfError):
    """A network description is malformed or does not fit the job."""


class EngineError(WhatIfError):
    """An engine that is not ours crashed, was stopped at a limit, or left ranks out."""


class UsageError(WhatIfError):
    """The command line or the arguments of a public function make no sense."""

    exit_code = 2
