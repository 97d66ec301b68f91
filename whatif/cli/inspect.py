"""`whatif inspect`: what is in a trace."""

from __future__ import annotations

from .options import (
    CsvOption,
    JsonOption,
    ModelOption,
    ParquetOption,
    ProcessesOption,
    StepOption,
    TraceOption,
    model_name,
    split,
)
from .output import check_files, show


def inspect(
    trace: TraceOption,
    model: ModelOption = None,
    step: StepOption = None,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
) -> None:
    """Look at a trace: ranks, steps, groups, communication, where time goes, what is missing.

    Times are as measured and no network is involved. Ranks that were not traced are assumed to
    arrive with those that were, and a warning says so. --csv and --parquet hold the table of
    communication.

    \b
    whatif inspect --trace examples/ddp_gloo_2ranks
    whatif inspect --trace my_trace --json | jq .collectives
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, inputs=[trace])
    from ..inspection import inspect as run
    from ..reports.inspection import inspection_report
    from ..reports.machine import inspection_frame, to_json
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            model=model_name(model),
            steps=split(step) if step else None,
            processes=processes,
            progress=progress,
        )
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: inspection_report(result),
        frame=lambda: inspection_frame(result),
        csv=csv,
        parquet=parquet,
        warnings=result.warnings,
    )
