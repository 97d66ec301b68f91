"""What would the step time of a traced job be on another network?

Every command of the command line has its function here, under the same name:

>>> import whatif
>>> graph = whatif.load("examples/ddp_gloo_2ranks")  # doctest: +SKIP
>>> table = whatif.sweep(graph, ["scaleup_bw"], [2, 4])  # doctest: +SKIP
>>> whatif.gen_gpu_chakra_et("my_trace", "my_et")  # doctest: +SKIP

Functions are imported when they are first used, so that ``import whatif`` (and ``whatif --help``)
costs nothing. The folders beside this one are its subpackages, ``whatif.graph`` and so on.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .astra import astra_export
    from .base.errors import (
        EngineError,
        GraphError,
        NetworkError,
        TraceError,
        UsageError,
        WhatIfError,
    )
    from .comparison import compare
    from .conversion import gen_gpu_chakra_et, gen_tpu_chakra_et, load
    from .experiments import simulate_astra
    from .explanation import explain
    from .fitting import calibrate
    from .inspection import inspect
    from .simulations import clusters, simulate, sweep, utility
    from .simulator.network import load_network, preset_names, save_network
    from .sweeps.variant import ResourceError
    from .validation import validate

__all__ = [
    "EngineError",
    "GraphError",
    "NetworkError",
    "ResourceError",
    "TraceError",
    "UsageError",
    "WhatIfError",
    "astra_export",
    "calibrate",
    "clusters",
    "compare",
    "explain",
    "gen_gpu_chakra_et",
    "gen_tpu_chakra_et",
    "inspect",
    "load",
    "load_network",
    "preset_names",
    "save_network",
    "simulate",
    "simulate_astra",
    "sweep",
    "utility",
    "validate",
]

_WHERE = {
    "astra": ("astra_export",),
    "comparison": ("compare",),
    "conversion": ("gen_gpu_chakra_et", "gen_tpu_chakra_et", "load"),
    "experiments": ("simulate_astra",),
    "explanation": ("explain",),
    "fitting": ("calibrate",),
    "inspection": ("inspect",),
    "simulations": ("clusters", "simulate", "sweep", "utility"),
    "base.errors": (
        *("EngineError", "GraphError", "NetworkError", "TraceError", "UsageError"),
        "WhatIfError",
    ),
    "simulator.network": ("load_network", "preset_names", "save_network"),
    "sweeps.variant": ("ResourceError",),
    "validation": ("validate",),
}
_MODULE = {name: module for module, names in _WHERE.items() for name in names}

# Where Python runs in a checkout it finds this folder before the installed package; there the
# subpackages lie beside it.
if not os.path.isdir(os.path.join(__path__[0], "base")):  # noqa: PTH112, PTH118
    __path__.append(os.path.dirname(__path__[0]))  # noqa: PTH120

# The subpackage `utility` has the name of a function. Python puts a subpackage into its parent
# once, when it is first imported; done now and taken out again, it cannot cover the function.
importlib.import_module(".utility", __name__)
globals().pop("utility")


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
