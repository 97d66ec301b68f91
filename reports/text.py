"""How numbers and remarks are written in every report: one way for one thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from ..base.units import format_bytes, format_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

#: Stands where there is no number.
NONE = "-"


def time(ns: float | None) -> str:
    """Write a duration, or that there is none."""
    return NONE if ns is None else format_ns(ns)


def size(number: int | None) -> str:
    """Write a size, or that it is not known."""
    return "unknown" if number is None else format_bytes(number)


def percent(value: float | None, *, sign: bool = False) -> str:
    """Write a percentage with two decimals, without a negative zero."""
    if value is None:
        return NONE
    text = f"{value:+.2f}" if sign else f"{value:.2f}"
    return f"{text.replace('-0.00', '0.00') if float(text) == 0 else text} %"


def plural(count: int, word: str) -> str:
    """Write a count with its word."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def span(numbers: Sequence[int]) -> str:
    """Write ascending integers with runs joined: 0-3,8."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(str(end) for end in run) for run in runs)


class Columns:
    """A table in the making: a heading for each column, then rows of plain text.

    Names out of a trace are never taken for markup. Numbers are to the right and never broken.
    """

    def __init__(self, *, names: Iterable[str], numbers: Iterable[str] = ()) -> None:
        self._table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for heading in names:
            self._table.add_column(heading, overflow="fold")
        for heading in numbers:
            self._table.add_column(heading, justify="right", no_wrap=True)

    def row(self, *cells: str) -> None:
        """Add a row: names, then numbers."""
        self._table.add_row(*(Text(cell) for cell in cells))

    def titled(self, title: str) -> list[RenderableType]:
        """Give the table under its title."""
        return [Text(f"\n{title}", style="bold"), self._table]


def remarks(heading: str, lines: Iterable[str]) -> list[RenderableType]:
    """List some remarks under a heading; nothing if there are none."""
    written = [Text(f"  {line}") for line in lines]
    return [Text(f"\n{heading}", style="bold"), *written] if written else []


def more(left: int, word: str) -> list[RenderableType]:
    """Say how many rows a table leaves out; nothing if it leaves out none."""
    return [Text(f"  and {left} more {word}, all of them in --json")] if left > 0 else []
