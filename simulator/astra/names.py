"""The names in ASTRA-sim's files and what they mean: topologies, algorithms, collectives.

Numbers stand for them in the compiled engines. Nothing here knows a file or a time; what an
algorithm sends is in `collectives` and `parity_events`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

#: Topologies of a dimension, at the number by which the engines know them.
TOPOLOGIES = ("Ring", "FullyConnected", "Switch")


class Algorithm(IntEnum):
    """How a collective runs on one ring of ranks."""

    RING = 0
    DIRECT = 1
    HALVING_DOUBLING = 2
    TREE = 3


class CommType(IntEnum):
    """`comm_type` of the Chakra schema."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class NodeType(IntEnum):
    """`type` of a node in the Chakra schema."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


#: Collectives that ASTRA-sim moves data for, and the key of system.json with their algorithms.
IMPLEMENTATIONS = {
    CommType.ALL_REDUCE: "all-reduce-implementation",
    CommType.ALL_GATHER: "all-gather-implementation",
    CommType.REDUCE_SCATTER: "reduce-scatter-implementation",
    CommType.ALL_TO_ALL: "all-to-all-implementation",
}


class Implementation(NamedTuple):
    """One name of a list of algorithms.

    Attributes
    ----------
    algorithm : Algorithm
    window : int or None
        Messages in flight of `direct<W>`; None for all, and for other algorithms.
    whole_world : bool
        Of the names ``one...``: one ring over all ranks instead of one dimension.
    """

    algorithm: Algorithm
    window: int | None
    whole_world: bool


_NAMES = {
    "ring": Implementation(Algorithm.RING, None, False),
    "direct": Implementation(Algorithm.DIRECT, None, False),
    "halvingDoubling": Implementation(Algorithm.HALVING_DOUBLING, None, False),
    "doubleBinaryTree": Implementation(Algorithm.TREE, None, False),
    "oneRing": Implementation(Algorithm.RING, None, True),
    "oneDirect": Implementation(Algorithm.DIRECT, None, True),
    "oneHalvingDoubling": Implementation(Algorithm.HALVING_DOUBLING, None, True),
}
_WINDOWED = re.compile(r"(direct|oneDirect)([+-]?[0-9]{1,9})")


def implementation(name: str) -> Implementation | None:
    """Read a name of a list of algorithms; None for one that ASTRA-sim does not know."""
    if (found := _NAMES.get(name)) is not None:
        return found
    match = _WINDOWED.fullmatch(name)
    return _NAMES[match[1]]._replace(window=int(match[2])) if match else None
