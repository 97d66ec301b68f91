"""One time line of a device: the profile's clock, as even as the device's own.

A device's events carry its own clock, and the profiler places them on the clock of the profile
again and again. Where it misplaces them, they jump by up to a tenth of a second (seen on v6e),
which no program does. So the device's own clock is taken, with one offset and one rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .events import ABSENT, Line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .events import Device

#: Events this close to where the device's clock puts them are where they belong: clocks wander
#: from an even rate by some 10 us (v6e, over 100 s), misplaced events are off by milliseconds.
CLOSE_PS = 20_000_000
#: Where events stay this close to one offset there is no rate and no wander to find.
EXACT_PS = 1_000_000
#: The wander is found at steps of this length, and between them in proportion.
KNOT_PS = 100_000_000_000
#: Rates of clocks differ by parts in a hundred thousand; a larger difference is damage.
LARGEST_DRIFT = 1e-3
_SAMPLES = 400


@dataclass(frozen=True)
class DeviceClock:
    """How times of a device become times of the profile.

    Attributes
    ----------
    offset_ps, rate : float
        ``profile = device * (1 + rate) + offset``; not used where the device has no clock.
    origin_ps : int
        Device time that the rate counts from, which keeps the arithmetic exact.
    knots : tuple of float64 arrays
        The wander: time from the origin, and what to add.
    known_ps : int64, shape (K,)
        Places on the profile's clock at which events of the device's own clock start, ascending.
    excess_ps : int64, shape (K,)
        How much later than the device's clock says the profiler put them.
    """

    offset_ps: float
    rate: float
    origin_ps: int
    knots: tuple[NDArray[np.float64], NDArray[np.float64]]
    known_ps: NDArray[np.int64]
    excess_ps: NDArray[np.int64]

    @property
    def misplaced(self) -> int:
        """Events that the profiler put more than CLOSE_PS from where they belong."""
        return int((np.abs(self.excess_ps) > CLOSE_PS).sum())

    @property
    def worst_ps(self) -> int:
        """How far the worst of them is off."""
        return int(np.abs(self.excess_ps).max(initial=0))

    def place(self, line: Line) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end of the events of a line, ps on the even clock."""
        own = line.device_start_ps != ABSENT
        start, end = line.start_ps.copy(), line.start_ps + line.dur_ps
        if own.any():
            begin = line.device_start_ps[own]
            length = np.maximum(line.device_dur_ps[own], 0)
            start[own] = self.map(begin)
            end[own] = np.maximum(self.map(begin + length), start[own])
        rest = ~own
        if rest.any() and len(self.known_ps) and self.misplaced:
            # What has no device time is as late as the next thing that has; an end, as the last.
            after = np.searchsorted(self.known_ps, start[rest], side="left")
            before = np.searchsorted(self.known_ps, end[rest], side="right") - 1
            top = len(self.known_ps) - 1
            start[rest] -= self.excess_ps[np.clip(after, 0, top)]
            end[rest] -= self.excess_ps[np.clip(np.maximum(before, after), 0, top)]
            end = np.maximum(end, start)
        return start, end

    def map(self, device_ps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Device time on the clock of the profile, ps."""
        away = device_ps - self.origin_ps
        moved = away * self.rate + self.offset_ps
        if len(self.knots[0]):
            moved = moved + np.interp(away, *self.knots)
        moved = np.rint(moved).astype(np.int64)
        placed: NDArray[np.int64] = device_ps + moved
        return placed


def find_clock(device: Device) -> DeviceClock:
    """Fit the clock of a device to that of the profile.

    Parameters
    ----------
    device : Device
        A device with its lines.

    Returns
    -------
    DeviceClock
        The offset and rate that most events agree with.
    """
    starts, owns = [], []
    for line in device.lines:
        own = (line.device_start_ps != ABSENT) & (line.device_dur_ps != ABSENT)
        starts.append(line.start_ps[own])
        owns.append(line.device_start_ps[own])
    start = np.concatenate([np.empty(0, np.int64), *starts])
    own_time = np.concatenate([np.empty(0, np.int64), *owns])
    if not len(start):
        nothing = np.empty(0, np.int64)
        return DeviceClock(0.0, 0.0, 0, (np.empty(0), np.empty(0)), nothing, nothing)
    order = np.argsort(start, kind="stable")
    start, own_time = start[order], own_time[order]
    origin = int(own_time[0])
    away = own_time - origin
    delta = start - own_time
    offset, rate = _agree(away, delta)
    residual = delta - (away * rate + offset)
    knots = _wander(away, residual)
    clock = DeviceClock(offset, rate, origin, knots, start, np.empty(0, np.int64))
    return replace(clock, excess_ps=start - clock.map(own_time))


def _wander(
    away: NDArray[np.int64], residual: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median residual of the events in place, at steps of time."""
    close = np.abs(residual) <= CLOSE_PS
    if np.abs(residual).max() <= EXACT_PS or not close.any():
        return np.empty(0), np.empty(0)
    _, where = np.unique(away[close] // KNOT_PS, return_inverse=True)
    order = np.argsort(where, kind="stable")
    parts = np.split(np.flatnonzero(close)[order], np.cumsum(np.bincount(where))[:-1])
    times = np.array([np.median(away[part]) for part in parts])
    return times, np.array([np.median(residual[part]) for part in parts])


def _agree(away: NDArray[np.int64], delta: NDArray[np.int64]) -> tuple[float, float]:
    """Line ``delta = offset + rate * away`` that most points agree with."""
    median = float(np.median(delta))
    if np.abs(delta - median).max() <= EXACT_PS:
        return median, 0.0
    pick = np.unique(np.linspace(0, len(away) - 1, _SAMPLES).astype(np.int64))
    x, y = away[pick].astype(np.float64), delta[pick].astype(np.float64)
    best, found = (median, 0.0), int((np.abs(y - median) <= CLOSE_PS).sum())
    for i in range(0, len(x), 4):
        dx = x - x[i]
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = np.where(dx != 0, (y - y[i]) / dx, np.inf)
        rates = rates[np.abs(rates) <= LARGEST_DRIFT]
        if not len(rates):
            continue
        off = np.abs(y[None, :] - y[i] - rates[:, None] * dx[None, :])
        agreeing = (off <= CLOSE_PS).sum(axis=1)
        top = int(agreeing.argmax())
        if agreeing[top] > found:
            found = int(agreeing[top])
            best = (float(y[i] - rates[top] * x[i]), float(rates[top]))
    offset, rate = best
    close = np.abs(delta - (offset + rate * away)) <= CLOSE_PS
    if close.sum() >= 2 and np.ptp(away[close]) > 0:
        fit = np.polyfit(away[close].astype(np.float64), delta[close] - offset, 1)
        offset, rate = offset + float(fit[1]), float(fit[0])
    return offset, rate
