"""What a command shows, and where: one object or tables on stdout, the rest on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pandas as pd
    from rich.console import RenderableType

# Where stdout is no terminal nothing says how wide it is, and tables must not lose columns.
_WIDTH = 160

_TABLES = (".csv", ".parquet")


def check_files(*paths: Path | None, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse files that cannot be written before the work is done, not after it.

    Parameters
    ----------
    *paths : Path, optional
        Files that will be written.
    inputs : iterable of str or Path, optional
        Files and directories that are read.

    Raises
    ------
    UsageError
        If the directory does not exist, the file is a directory or a device, two are the same, or
        one is an input, or is there already in a directory of inputs and is no table.
    """
    given = [path.resolve() for path in paths if path is not None]
    if len(set(given)) < len(given):
        raise UsageError("two outputs cannot go to the same file", file=given[0])
    for path in paths:
        if path is not None and not path.parent.is_dir():
            raise UsageError("its directory does not exist", file=path)
        if path is not None and path.exists() and not path.is_file():
            raise UsageError("is no regular file", file=path)
        if path is not None and path.exists() and _is_input(path.resolve(), inputs):
            raise UsageError("is an input, which would be overwritten", file=path)


def _is_input(path: Path, inputs: Iterable[str | Path | None]) -> bool:
    read = [Path(one).resolve() for one in inputs if one is not None]
    # Tables of an earlier call are no traces, wherever they are.
    return path in read or (path.parent in read and path.suffix not in _TABLES)


def show(
    *,
    as_json: bool,
    json: Callable[[], str],
    tables: Callable[[], Iterable[RenderableType]],
    frame: Callable[[], pd.DataFrame] | None = None,
    csv: Path | None = None,
    parquet: Path | None = None,
    warnings: Iterable[str] = (),
) -> None:
    """Write files, then stdout, then warnings to stderr.

    Parameters
    ----------
    as_json : bool
        Whether stdout gets the object or the tables.
    json, tables, frame : callable
        Make the object, the tables, and the table of the files; only what is needed is made.
    csv, parquet : Path, optional
        Files.
    warnings : iterable of str
        What to know before trusting the result.

    Raises
    ------
    WhatIfError
        If a file cannot be written.
    """
    if frame is not None and (csv is not None or parquet is not None):
        from ..reports.machine import write_frame

        write_frame(frame(), csv=csv, parquet=parquet)
    if as_json:
        sys.stdout.write(json() + "\n")
    else:
        from rich.console import Console

        console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)
        for table in tables():
            console.print(table, soft_wrap=False)
    sys.stdout.flush()
    for warning in warnings:
        say(f"warning: {warning}")


def say(message: str) -> None:
    """Write one line to stderr."""
    typer.echo(f"whatif: {' '.join(message.split())}", err=True)


def exit_if_strict(*, strict: bool, beyond: Iterable[bool | None]) -> None:
    """Leave with code 3 if a baseline is not known to be within the limit.

    Raises
    ------
    typer.Exit
        Under `strict`, if any is beyond the limit or unknown.
    """
    if strict and any(value is not False for value in beyond):
        say("strict: a baseline error is beyond the limit or not known")
        raise typer.Exit(3)
