"""Progress on stderr, for whatever takes longer than a person waits without wondering."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

#: Seconds of work before anything is shown.
PATIENCE_S = 2.0


class Display:
    """A `base.progress.Progress` that draws a bar on a terminal and writes lines elsewhere.

    Used as a context manager. What takes less than `PATIENCE_S` in all (on a terminal), or in one
    stage (elsewhere), is not shown.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("whatif: {task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._stage = ""
        self._timer = self._later(self._bars.start) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._timer:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer.join()
        if self._console.is_terminal:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show a stage."""
        if what != self._stage:
            self._begin(what)
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total or None)

    def _begin(self, what: str) -> None:
        self._stage = what
        if self._console.is_terminal:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task = self._bars.add_task(what, total=None)
            return
        if self._timer:
            self._timer.cancel()
        self._timer = self._later(lambda: self._console.print(f"whatif: {what} ...", style="dim"))
        self._timer.start()

    @staticmethod
    def _later(action: Callable[[], None]) -> threading.Timer:
        timer = threading.Timer(PATIENCE_S, action)
        timer.daemon = True
        return timer
