"""The double binary tree: two trees over the same ranks, each carrying half of the data.

The ranks 1 to n of the first tree hang by their lowest set bit, as in the in-order numbering of a
binary tree: odd ones are leaves, the others have a child on each side. The second tree is the
same with the ranks mirrored (n even) or moved by one (n odd), so that who is inside one tree is a
leaf of the other and no rank has more than two children in all [1]_.

References
----------
.. [1] P. Sanders, J. Speck, J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast,
   reduction and scan", Parallel Computing 35(12), 2009.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DoubleTree(NamedTuple):
    """Two binary trees over n ranks.

    Attributes
    ----------
    children, parents : int64, shape (n,)
        Of every rank, in both trees together.
    height : int
        Messages on the way from the farthest leaf to the root of either tree.
    """

    children: NDArray[np.int64]
    parents: NDArray[np.int64]
    height: int


@lru_cache(maxsize=1024)
def double_tree(count: int) -> DoubleTree:
    """Make the two trees over some ranks, at least one."""
    children = np.zeros(count, dtype=np.int64)
    parents = np.zeros(count, dtype=np.int64)
    for number in range(1, count + 1):
        parent = _parent(number, count)
        if parent:
            for rename in (_same, _other_tree):
                children[rename(parent - 1, count)] += 1
                parents[rename(number - 1, count)] += 1
    return DoubleTree(children, parents, count.bit_length() - 1)


def _parent(number: int, count: int) -> int:
    """Parent of one of 1..count; 0 for the root, which is the highest power of two."""
    while True:
        bit = number & -number
        if bit > count:
            return 0
        number = (number & ~bit) | (bit << 1)
        if number <= count:
            return number


def _same(rank: int, count: int) -> int:  # noqa: ARG001
    return rank


def _other_tree(rank: int, count: int) -> int:
    return count - 1 - rank if count % 2 == 0 else (rank + 1) % count
