"""Names of the algorithms, and which of them exist for which collective.

What they do and cost stands in the documentation of this subpackage; where in a network each can
be used is decided in `plans`.
"""

from __future__ import annotations

from typing import Literal, get_args

from ...graph.columns import Collective

Algorithm = Literal[
    "hierarchical",
    "multi-axis",
    "hierarchical-pipelined",
    "ring",
    "tree",
    "direct",
    "halving-doubling",
    "in-switch",
]

#: All algorithms; `Prices.algorithm` is an index into this.
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

#: Stands for all algorithms of a collective.
AUTO = "auto"

_GATHERS: tuple[Algorithm, ...] = (
    "hierarchical",
    "multi-axis",
    "hierarchical-pipelined",
    "ring",
    "direct",
    "halving-doubling",
    "in-switch",
)
_SPREADS: tuple[Algorithm, ...] = (
    "hierarchical",
    "multi-axis",
    "hierarchical-pipelined",
    "ring",
    "tree",
)

#: The algorithms that exist for each collective; where two cost the same the first is taken.
OF_COLLECTIVE: dict[Collective, tuple[Algorithm, ...]] = {
    Collective.ALL_REDUCE: ALGORITHMS,
    Collective.ALL_GATHER: _GATHERS,
    Collective.REDUCE_SCATTER: _GATHERS,
    Collective.REDUCE_SCATTER_BLOCK: _GATHERS,
    Collective.ALL_TO_ALL: ("direct", "hierarchical"),
    Collective.BROADCAST: _SPREADS,
    Collective.REDUCE: _SPREADS,
    Collective.GATHER: ("direct",),
    Collective.SCATTER: ("direct",),
    Collective.BARRIER: (
        "hierarchical",
        "ring",
        "tree",
        "direct",
        "halving-doubling",
        "in-switch",
    ),
    Collective.SEND_RECV: ("direct",),
}

#: Collectives by the label that files use for them.
BY_LABEL = {coll.label: coll for coll in OF_COLLECTIVE}
