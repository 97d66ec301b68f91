"""Collectives on a torus, message by message in exact fractions, to hold prices against.

Nothing here is taken from the package: a torus is a set of directed links between neighbours, and
a collective is the messages that chips send over them. All-gathers are played hop by hop: a link
sends one message at a time, at its bandwidth, and a chip passes on what has arrived; a
reduce-scatter is one played backwards. All-to-alls are flows that share links max-min fairly,
with the rates of `fluid`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count, product

from .fluid import fair_rates

Chip = tuple[int, ...]
#: A directed link: the chip it leaves, its axis, and the way it goes.
Link = tuple[Chip, int, int]
Time = Fraction


@dataclass(frozen=True)
class Torus:
    """Lengths of the axes, which of them are closed, bytes per ns of a link, and ns of a hop."""

    lengths: tuple[int, ...]
    closed: tuple[bool, ...]
    bandwidth: Fraction = Fraction(1)
    hop_ns: Fraction = Fraction(0)

    @property
    def chips(self) -> list[Chip]:
        return list(product(*map(range, self.lengths)))

    def rings(self, axis: int) -> bool:
        """Two chips have one link between them, closed or not."""
        return self.closed[axis] and self.lengths[axis] > 2

    def neighbour(self, chip: Chip, axis: int, way: int) -> Chip | None:
        place = chip[axis] + way
        if not 0 <= place < self.lengths[axis] and not self.rings(axis):
            return None
        return (*chip[:axis], place % self.lengths[axis], *chip[axis + 1 :])


@dataclass(frozen=True)
class _Block:
    """A block on its way along an axis: which way, how many hops are left, and its bytes."""

    axis: int
    way: int
    hops: int
    size: Fraction


def all_gather(torus: Torus, size: Fraction, orders: list[list[int]]) -> Time:
    """Time until every chip has everything, each chip putting in `size` bytes.

    The data are cut into as many parts as there are `orders`, and each part is gathered along the
    axes in its order; no part begins its next axis before all have done with theirs. Along an
    axis, a chip's block goes both ways to the chips that are nearer that way; to the one that is
    as far both ways, half of it each way.
    """
    blocks = [size / len(orders)] * len(orders)
    time = Fraction(0)
    for stage in zip(*orders, strict=True):
        time = _gather_along(torus, time, list(zip(stage, blocks, strict=True)))
        blocks = [b * torus.lengths[axis] for axis, b in zip(stage, blocks, strict=True)]
    return time


def _gather_along(torus: Torus, time: Time, parts: list[tuple[int, Fraction]]) -> Time:
    """Gather blocks of a size along an axis, for several parts at once; gives the time after."""
    free: dict[Link, Time] = {}
    arriving: list[tuple[Time, int, Chip, int, _Block]] = []
    number = count()
    got: Counter[tuple[Chip, int]] = Counter()

    def send(now: Time, chip: Chip, part: int, block: _Block) -> None:
        to = torus.neighbour(chip, block.axis, block.way)
        assert to is not None
        if block.hops == 1 and torus.rings(block.axis) and torus.lengths[block.axis] % 2 == 0:
            block = replace(block, size=block.size / 2)
        link = (chip, block.axis, block.way)
        free[link] = max(now, free.get(link, now)) + block.size / torus.bandwidth
        heapq.heappush(arriving, (free[link] + torus.hop_ns, next(number), to, part, block))

    for chip, (part, (axis, block)) in product(torus.chips, enumerate(parts)):
        length = torus.lengths[axis]
        far = {1: length - 1 - chip[axis], -1: chip[axis]}
        if torus.rings(axis):
            far = {1: length // 2, -1: length // 2}
        for way, hops in far.items():
            if hops:
                send(time, chip, part, _Block(axis, way, hops, block))
    while arriving:
        time, _, chip, part, block = heapq.heappop(arriving)
        got[chip, part] += block.size  # type: ignore[assignment]
        if block.hops > 1:
            send(time, chip, part, replace(block, hops=block.hops - 1))
    for chip, (part, (axis, block)) in product(torus.chips, enumerate(parts)):
        assert got[chip, part] == block * (torus.lengths[axis] - 1)
    return time


def multi_axis(torus: Torus) -> list[list[int]]:
    """As many parts as axes, each ending with another one.

    A sum that is scattered from that axis on to the next ones is gathered the other way round.
    """
    axes = list(range(len(torus.lengths)))
    return [(axes[turn:] + axes[:turn])[::-1] for turn in axes]


def all_to_all(torus: Torus, size: Fraction) -> Time:
    """Time until every chip has sent its share of `size` bytes to every other.

    A message goes the shortest way, one axis after the other, half each way where both are as
    short; all share the links fairly until the last is there.
    """
    chips = torus.chips
    ports: dict[Link, int] = {}
    flows: list[tuple[Fraction, dict[int, Fraction]]] = []
    for start, end in product(chips, chips):
        if start != end:
            for share, way in _ways(torus, start, end):
                load = {ports.setdefault(link, len(ports)): torus.bandwidth for link in way}
                flows.append((share * size / len(chips) / torus.bandwidth, load))
    capacity = [torus.bandwidth] * len(ports)
    # Flows of one kind of path have one rate; what is left of each is all that is kept.
    left = {index: work for index, (work, _) in enumerate(flows)}
    now = Fraction(0)
    while left:
        rates = fair_rates({index: flows[index][1] for index in left}, capacity)
        step = min(left[index] / rates[index] for index in left)
        now += step
        left = {i: w - rates[i] * step for i, w in left.items() if w > rates[i] * step}
    return now


def _ways(torus: Torus, start: Chip, end: Chip) -> list[tuple[Fraction, list[Link]]]:
    found: list[tuple[Fraction, Chip, list[Link]]] = [(Fraction(1), start, [])]
    for axis, length in enumerate(torus.lengths):
        steps = [end[axis] - start[axis]]
        if torus.rings(axis):
            ahead = steps[0] % length
            steps = [ahead - length if 2 * ahead > length else ahead]
            if 2 * ahead == length:
                steps.append(-ahead)
        further = []
        for share, chip, links in found:
            for step in steps:
                at, path, way = chip, list(links), 1 if step > 0 else -1
                for _ in range(abs(step)):
                    path.append((at, axis, way))
                    there = torus.neighbour(at, axis, way)
                    assert there is not None
                    at = there
                further.append((share / len(steps), at, path))
        found = further
    return [(share, links) for share, _, links in found]
