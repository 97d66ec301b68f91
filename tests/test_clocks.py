"""One clock for all ranks: offsets are what they were made to be, within the stated residual."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.converters.clocks import align

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Int = NDArray[np.int64]

US = 1000


@given(
    skew=st.lists(st.integers(-(10**12), 10**12), min_size=1, max_size=5),
    late=st.lists(st.integers(0, 5_000 * US), min_size=8, max_size=20),
    seed=st.integers(0, 2**32 - 1),
)
def test_skewed_clocks_are_found_within_the_residual(
    skew: list[int], late: list[int], seed: int
) -> None:
    """Members end within 20 us of each other, and one of them arrives late."""
    ranks = len(skew) + 1
    clock = np.array([0, *skew])
    random = np.random.default_rng(seed)
    starts, ends, members = [], [], []
    for position, delay in enumerate(late):
        begin = np.full(ranks, position * 20_000 * US)
        begin[position % ranks] += delay
        end = begin.max() + 600 * US + random.integers(0, 20 * US, size=ranks)
        starts.append(begin - clock)
        ends.append(end - clock)
        members.append(np.arange(ranks))
    found = align([f"host{rank}" for rank in range(ranks)], starts, ends, members)
    assert found.hosts == ranks
    assert found.violations == 0
    assert np.abs(found.offset_ns - found.offset_ns[0] - clock).max() <= 20 * US
    for begin, end in zip(starts, ends, strict=True):
        assert (end + found.offset_ns).min() > (begin + found.offset_ns).max()


def exchanges(file: Path) -> tuple[Int, Int]:
    """Start and end of the kernels on stream 203, of which sampling left both ranks the same."""
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    chosen = [
        event
        for event in events
        if event.get("cat") == "kernel" and event["args"].get("stream") == 203
    ]
    start = np.array(sorted(round(event["ts"] * US) for event in chosen))
    length = {round(event["ts"] * US): round(event["dur"] * US) for event in chosen}
    return start, start + np.array([length[at] for at in start.tolist()])


@pytest.mark.parametrize("skew_ns", [0, 5_000_000_000, -86_400_000_000_000])
def test_two_sampled_ranks_of_many_hosts_are_aligned(shared_data: Path, skew_ns: int) -> None:
    """Of 128 ranks 2 were kept, thinned: two exchanges are in both, which end 0.1 to 0.4 ms apart.

    How far the offset is from the skew can be no better than that, nor may it be worse.
    """
    folder = shared_data / "traces/gpu/sampled_2of128"
    first, second = (exchanges(folder / f"rank{rank}.json.gz") for rank in (0, 1))
    assert [len(first[0]), len(second[0])] == [2, 2]
    second = (second[0] - skew_ns, second[1] - skew_ns)
    found = align(
        ["a", "b"],
        [np.array(pair) for pair in zip(first[0], second[0], strict=True)],
        [np.array(pair) for pair in zip(first[1], second[1], strict=True)],
        [np.array([0, 1])] * 2,
    )
    apart = np.abs(first[1] - second[1] - skew_ns).max()
    assert 100 * US < apart < 500 * US
    assert found.violations == 0
    assert found.residual_ns <= apart
    assert abs(int(found.offset_ns[1] - found.offset_ns[0]) - skew_ns) <= apart
    # On the clock that was found, every exchange has a positive transfer.
    for k in range(2):
        last_start = max(first[0][k], second[0][k] + found.offset_ns[1])
        assert min(first[1][k], second[1][k] + found.offset_ns[1]) > last_start
