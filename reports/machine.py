"""Results for programs: JSON on stdout, tables as CSV and Parquet files.

Column names carry their units. Files appear whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..utility.results import UPGRADES
from .files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd

    from ..simulator.astra.compare_results import CompareResult
    from ..simulator.astra.results import AstraResult
    from ..sweeps.results import SimulateResult, SweepResult
    from ..utility.results import ClustersResult, UtilityResult
    from .results import InspectResult


def to_json(result: msgspec.Struct) -> str:
    """Write a result as one JSON object."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def utility_json(result: UtilityResult) -> str:
    """Write the object of a sweep for one job; for several an object with the list `jobs`."""
    return to_json(result.jobs[0] if len(result.jobs) == 1 else result)


def sweep_frame(jobs: Sequence[SweepResult]) -> pd.DataFrame:
    """One row for each result of each job; refused resources have no step but a reason."""
    rows = []
    for job in jobs:
        common = {
            "trace": job.trace,
            "ranks": job.ranks,
            "dependency_model": job.dependency_model,
            "network": job.network.name,
            "measured_step_ns": job.measured_step_ns,
            "baseline_step_ns": job.baseline_step_ns,
            "baseline_error_pct": job.baseline_error_pct,
            "beyond_limit": job.beyond_limit,
            "assumed_members": job.assumed_members,
            "noise_pct": job.noise_pct,
        }
        for row in job.results:
            fields = msgspec.structs.asdict(row)
            low, high = fields.pop("utility_range_pct") or (None, None)
            rows.append(
                common
                | fields
                | {"utility_min_pct": low, "utility_max_pct": high, "refused_reason": None}
            )
        rows += [
            common | {"resource": one.resource, "factor": one.factor, "refused_reason": one.reason}
            for one in job.refused
        ]
    columns = [
        *("trace", "ranks", "dependency_model", "network", "measured_step_ns"),
        *("baseline_step_ns", "baseline_error_pct", "beyond_limit", "assumed_members"),
        *("resource", "factor"),
        *("step_ns", "utility_pct", "utility_min_pct", "utility_max_pct", "bound_pct"),
        *("bound_reason", "shape_change", "refused_reason"),
        *("utility_low_pct", "utility_high_pct", "verdict", "noise_pct"),
    ]
    return _frame(rows, columns)


def clusters_frame(result: ClustersResult) -> pd.DataFrame:
    """One row for each architecture; an upgrade that the job would not notice has no gain."""
    plain = [
        *("name", "domain", "scaleup_gb_s", "scaleout_gb_s", "placement", "shape_change"),
        *("step_ns", "gain_pct", "exposed_comm_ns", "hidden_comm_ns", "hidden_share_pct"),
    ]
    common = {
        "trace": result.trace,
        "ranks": result.ranks,
        "dependency_model": result.dependency_model,
        "measured_step_ns": result.measured_step_ns,
        "baseline_step_ns": result.baseline_step_ns,
        "baseline_error_pct": result.baseline_error_pct,
        "beyond_limit": result.beyond_limit,
        "assumed_members": result.assumed_members,
    }
    rows = []
    for row in result.architectures:
        gains = {f"{one.resource}_gain_pct": one.utility_pct for one in row.upgrades}
        fields = {name: getattr(row, name) for name in plain}
        rows.append(common | fields | {"network": row.network.name} | gains)
    return _frame(rows, [*common, "network", *plain, *(f"{name}_gain_pct" for name in UPGRADES)])


def simulation_frame(result: SimulateResult) -> pd.DataFrame:
    """One row for each rank."""
    common = {
        "trace": result.trace,
        "dependency_model": result.dependency_model,
        "network": None if result.network is None else result.network.name,
        "step_ns": result.step_ns,
        "measured_step_ns": result.measured_step_ns,
        "baseline_error_pct": result.baseline_error_pct,
        "beyond_limit": result.beyond_limit,
        "assumed_members": result.assumed_members,
    }
    rows = [common | msgspec.structs.asdict(rank) for rank in result.per_rank]
    return _frame(rows, list(rows[0]))


def comparison_frame(result: CompareResult) -> pd.DataFrame:
    """One row for each kind of operation, with a column for what each tier is paid."""
    rows = []
    for operation in result.operations:
        fields = msgspec.structs.asdict(operation)
        native, astra = fields.pop("native_tiers_ns"), fields.pop("astra_tiers_ns")
        unpaid, why = fields.pop("unpaid"), fields.pop("why")
        fields |= {f"native_{tier}_ns": ns for tier, ns in native.items()}
        fields |= {f"astra_{tier}_ns": ns for tier, ns in astra.items()}
        fields |= {"unpaid": ", ".join(unpaid), "why": "; ".join(why)}
        rows.append({"trace": result.trace, "network": result.network.name} | fields)
    return _frame(rows, list(dict.fromkeys(name for row in rows for name in row)))


def astra_frame(result: AstraResult) -> pd.DataFrame:
    """One row for each rank; cycles as text, because they may need 64 bits without a sign."""
    common = {"trace": result.trace, "engine": result.engine, "backend": result.backend}
    rows = [
        common
        | {
            "rank": row.rank,
            "finish_cycles": str(row.finish_cycles),
            "exposed_cycles": str(row.exposed_cycles),
        }
        for row in result.per_rank
    ]
    return _frame(rows, [*common, "rank", "finish_cycles", "exposed_cycles"])


def inspection_frame(result: InspectResult) -> pd.DataFrame:
    """One row for each kind of communication."""
    rows = [{"trace": result.trace} | msgspec.structs.asdict(one) for one in result.collectives]
    columns = ["trace", "type", "group", "group_size", "bytes", "count", "transfer_ns_median"]
    columns += ["wait_ns_median", "wait_ns_mean", "wait_ns_max"]
    columns += ["duration_ns_median", "bus_gb_s_median"]
    return _frame(rows, columns)


def write_frame(frame: pd.DataFrame, *, csv: Path | None, parquet: Path | None) -> None:
    """Write a table as CSV, as Parquet, or both.

    Raises
    ------
    WhatIfError
        If a file cannot be written; it is then as it was before.
    """
    if csv is not None:
        write_whole(csv, lambda path: frame.to_csv(path, index=False))
    if parquet is not None:
        write_whole(parquet, lambda path: frame.to_parquet(path, index=False))


# Whole numbers stay whole where some are missing.
_WHOLE = (
    *("ranks", "rank", "domain", "group_size", "bytes", "count", "neighbours"),
    "assumed_members",
)


def _dtype(column: str) -> str:
    if column in _WHOLE or column.endswith(("_ns", "_bytes")) or "_ns_" in column:
        return "Int64"
    if column == "factor" or column.endswith("_pct") or "_gb_s" in column:
        return "float64"
    return "boolean" if column == "beyond_limit" else "string"


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({column: _dtype(column) for column in columns})
