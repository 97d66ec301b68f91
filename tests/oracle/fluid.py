"""Transfers that fight for ports: a fluid model of its own, in plain Python.

A transfer is a list of stages. A stage waits (latency and other costs that nobody shares) and
then moves bytes through ports, all of them in proportion and as fast as the ports allow. Where
several want the same port they get equal shares, except those that cannot use theirs because
another port, or the network's speed for them alone, holds them back. Rates are found by looking
for the port that holds its users back most, giving these what it allows, and going on with what
is left of the other ports.

Moments inside the model are floating point numbers; what it tells others happens at the next
whole nanosecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Rank, tier, direction (``in`` or ``out``).
Port: TypeAlias = "tuple[int, int, str]"

#: Less is left of a stage than rounding can make, in ns at full speed.
_NOTHING_NS = 1e-6


@dataclass(frozen=True)
class Stage:
    """A part of a transfer: `wait_ns`, then bytes through ports, for `move_ns` at full speed."""

    wait_ns: float
    move_ns: float = 0.0
    bytes_of: Mapping[Port, float] = field(default_factory=dict)


class Clock(Protocol):
    """The loop that the model lives in."""

    now: int

    def at(self, time: int, action: Callable[[], None]) -> None:
        """Act at a whole nanosecond to come."""


@dataclass(eq=False)
class _Transfer:
    stages: list[Stage]
    done: Callable[[], None]
    begins_ns: float  # when the bytes of the first stage left begin to move
    left_ns: float = 0.0  # of the bytes of that stage, at full speed
    moving: bool = False


class Fabric:
    """All ports of a network, and the transfers on them.

    Parameters
    ----------
    clock : Clock
        Gives whole nanoseconds.
    gb_s : callable
        Bandwidth of a port.
    """

    def __init__(self, clock: Clock, gb_s: Callable[[Port], float]) -> None:
        self._clock = clock
        self._gb_s = gb_s
        self._active: list[_Transfer] = []
        self._time = 0.0
        self._planned = math.inf

    def begin(self, stages: Sequence[Stage], done: Callable[[], None]) -> None:
        """Start a transfer now; `done` is called when it is over."""
        self._advance()
        transfer = _Transfer(list(stages), done, 0.0)
        self._active.append(transfer)
        self._enter(transfer)
        self._plan()

    def _enter(self, transfer: _Transfer) -> None:
        transfer.moving = False
        if transfer.stages:
            transfer.begins_ns = self._time + transfer.stages[0].wait_ns
            transfer.left_ns = transfer.stages[0].move_ns

    def _speeds(self) -> dict[int, float]:
        """Share of its full speed that each moving transfer gets, by its place in the list."""
        wants: dict[int, dict[Port, float]] = {}
        for i, transfer in enumerate(self._active):
            if transfer.moving:
                stage = transfer.stages[0]
                wants[i] = {p: n / stage.move_ns for p, n in stage.bytes_of.items() if n}
        free = {port: self._gb_s(port) for load in wants.values() for port in load}
        speeds = {i: 1.0 for i, load in wants.items() if not load}
        while len(speeds) < len(wants):
            # A transfer's rate is what goes through its busiest port.
            peaks = {i: max(load.values()) for i, load in wants.items() if i not in speeds}
            users = {
                port: sum(wants[i].get(port, 0.0) / peak for i, peak in peaks.items())
                for port in free
            }
            worst, at = min((free[port] / n, port) for port, n in users.items() if n > 0)
            if min(peaks.values()) <= worst:
                settled = {i: 1.0 for i, peak in peaks.items() if peak <= worst}
            else:
                settled = {i: worst / peak for i, peak in peaks.items() if at in wants[i]}
            for i, speed in settled.items():
                speeds[i] = speed
                for port, load in wants[i].items():
                    free[port] = max(free[port] - load * speed, 0.0)
        return speeds

    def _next(self, speeds: Mapping[int, float]) -> float:
        coming = math.inf
        for i, transfer in enumerate(self._active):
            if not transfer.moving:
                coming = min(coming, transfer.begins_ns)
            else:
                coming = min(coming, self._time + transfer.left_ns / speeds[i])
        return coming

    def _advance(self) -> None:
        """Let everything happen up to the clock's time."""
        now = float(self._clock.now)
        self._happen()
        while self._active and self._time < now:
            speeds = self._speeds()
            until = min(self._next(speeds), now)
            for i, speed in speeds.items():
                self._active[i].left_ns -= (until - self._time) * speed
            self._time = until
            self._happen()
        self._time = now

    def _happen(self) -> None:
        """Begin and end the stages that begin and end now."""
        again = True
        while again:
            again = False
            for transfer in list(self._active):
                if not transfer.stages:
                    self._active.remove(transfer)
                    transfer.done()
                elif not transfer.moving and transfer.begins_ns <= self._time:
                    transfer.moving = True
                    again = True
                elif transfer.moving and transfer.left_ns <= _NOTHING_NS:
                    transfer.stages.pop(0)
                    self._enter(transfer)
                    again = True

    def _plan(self) -> None:
        if not self._active:
            return
        coming = math.ceil(self._next(self._speeds()) - _NOTHING_NS)
        coming = max(coming, self._clock.now)
        if coming < self._planned:
            self._planned = coming
            self._clock.at(coming, self._wake)

    def _wake(self) -> None:
        self._planned = math.inf
        self._advance()
        self._plan()
