"""Why a rank never finishes: what ASTRA-sim leaves unsaid when it exits with 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import GraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .collectives import Collectives
    from .experiment import Experiment
    from .workload import Workload

    Int = NDArray[np.int64]
    Bool = NDArray[np.bool_]


def explain_stall(
    workload: Workload,
    experiment: Experiment,
    collectives: Collectives,
    issued: Int,
    completed: Int,
    used: Bool,
) -> GraphError:
    return GraphError("stall")
