"""Time of transfers divided among those in flight together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whatif.calibration.in_flight import divided_ns


def of(*spans: tuple[float, float]) -> list[float]:
    """Of transfers of one member each, all of one rank."""
    begin, end = np.array(spans).T
    rank = np.zeros(len(spans), dtype=np.int32)
    return divided_ns(begin, end, rank, np.arange(len(spans) + 1)).tolist()


def test_two_that_share_and_two_that_take_turns_keep_their_port_busy_as_long() -> None:
    assert of((0, 20), (0, 20)) == [10, 10]
    assert of((0, 10), (0, 20)) == [5, 15]
    assert of((0, 10), (10, 20)) == [10, 10]
    assert of((0, 30), (10, 20)) == [25, 5]


def test_members_count_on_their_own_ranks_and_a_transfer_is_their_mean() -> None:
    """On rank 0 it shares all of its time, on rank 1 none."""
    begin, end = np.array([0.0, 0.0, 0.0]), np.array([10.0, 10.0, 10.0])
    ranks = np.array([0, 1, 0], dtype=np.int32)
    assert divided_ns(begin, end, ranks, np.array([0, 2, 3])).tolist() == [7.5, 5]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), min_size=1, max_size=12))
def test_what_transfers_get_sums_to_the_time_that_any_is_in_flight(
    spans: list[tuple[int, int]],
) -> None:
    moments = {t for start, length in spans for t in range(start, start + length)}
    got = of(*((start, start + length) for start, length in spans))
    assert sum(got) == pytest.approx(len(moments))
