"""`whatif compare`: one job under both physics."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import (
    AssumeMissingOption,
    CsvOption,
    JsonOption,
    ModelOption,
    ParquetOption,
    ProcessesOption,
    RankMapOption,
    StepOption,
    TraceOption,
    model_name,
    split,
)
from .output import check_files, show


def compare(
    trace: TraceOption,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="NAME|FILE",
            help="Preset or file to simulate. By default the network the job was traced on.",
        ),
    ] = None,
    rank_map: RankMapOption = None,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
) -> None:
    """Simulate a job under our physics and ASTRA-sim's, and explain the difference.

    For every kind of operation: what it costs alone in both, which tiers it pays, and why that
    differs; for every rank where it ends in both. ASTRA-sim's side is its congestion-unaware
    backend, cycle for cycle, without a binary. --csv and --parquet hold the table of operations.

    \b
    whatif compare --trace my_trace
    whatif compare --trace my_trace --network dgx_h100 --json
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, inputs=[trace, network])
    from ..comparison import compare as run
    from ..reports.compare import compare_report
    from ..reports.machine import comparison_frame, to_json
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            network=network,
            rank_map=rank_map,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            processes=processes,
            progress=progress,
        )
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: compare_report(result),
        frame=lambda: comparison_frame(result),
        csv=csv,
        parquet=parquet,
        warnings=result.warnings,
    )
