"""Finding the same operation in other steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whatif.graph.repeats import aligned

SHORT = st.lists(st.integers(0, 3), max_size=12)


def longest_common(one: list[int], other: list[int]) -> int:
    """Length of a longest common subsequence, by the textbook's table."""
    row = [0] * (len(other) + 1)
    for mine in one:
        above = row
        row = [0]
        for j, theirs in enumerate(other):
            row.append(above[j] + 1 if mine == theirs else max(above[j + 1], row[j]))
    return row[-1]


@given(SHORT, SHORT)
def test_an_alignment_is_a_longest_common_subsequence(one: list[int], other: list[int]) -> None:
    ours, theirs = aligned(one, other)
    assert [one[i] for i in ours] == [other[j] for j in theirs]
    assert ours == sorted(set(ours))
    assert theirs == sorted(set(theirs))
    assert len(ours) == longest_common(one, other)


def test_sequences_that_differ_too_much_are_not_aligned() -> None:
    assert aligned([1, 2, 3], [4, 5, 6], most=5) == ([], [])
    assert aligned([1, 2, 3], [1, 5, 3], most=2) == ([0, 2], [0, 2])


def test_a_long_sequence_is_aligned_around_what_one_of_them_lacks() -> None:
    one = [i % 7 for i in range(20_000)]
    other = one[:5_000] + one[5_001:15_000] + [9] + one[15_000:]
    ours, theirs = aligned(one, other)
    assert len(ours) == len(one) - 1
    assert [one[i] for i in ours] == [other[j] for j in theirs]
