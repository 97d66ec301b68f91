"""`whatif utility`: the standard resources at factor 2, for one or several jobs."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from .options import (
    LIMIT_PCT,
    AssumeMissingOption,
    CsvOption,
    IntervalsOption,
    JsonOption,
    LimitOption,
    ModelOption,
    NetworkOption,
    ParquetOption,
    ProcessesOption,
    RankMapOption,
    StepOption,
    StrictOption,
    model_name,
    split,
)
from .output import check_files, exit_if_strict, show


def utility(
    trace: Annotated[
        list[Path],
        typer.Option(
            "--trace",
            metavar="PATH",
            help="Directory with one Kineto trace per rank, XLA profile, or Chakra .et files; "
            "repeatable, one for each job.",
            show_default=False,
        ),
    ],
    network: NetworkOption = None,
    rank_map: RankMapOption = None,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    intervals: IntervalsOption = True,
    limit_pct: LimitOption = LIMIT_PCT,
    strict: StrictOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
) -> None:
    """Show what making each resource twice as good is worth, for one or several jobs.

    Utility(r) = (T - T with r twice as good) / T, of the step T on the baseline network.
    Resources that a job does not have are listed with the reason. Several jobs share one table;
    with --json they are the list `jobs` of one object.

    \b
    whatif utility --trace my_trace
    whatif utility --trace job_a --trace job_b --csv utility.csv
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, inputs=[*trace, network])
    from ..reports.machine import sweep_frame, utility_json
    from ..reports.utility import utility_report
    from ..simulations import utility as run
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            network=network,
            rank_map=rank_map,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            intervals=intervals,
            limit_pct=limit_pct,
            processes=processes,
            progress=progress,
        )
    several = len(result.jobs) > 1
    show(
        as_json=as_json,
        json=lambda: utility_json(result),
        tables=lambda: utility_report(result),
        frame=lambda: sweep_frame(result.jobs),
        csv=csv,
        parquet=parquet,
        warnings=[
            f"{job.trace}: {warning}" if several else warning
            for job in result.jobs
            for warning in job.warnings
        ],
    )
    exit_if_strict(strict=strict, beyond=[job.beyond_limit for job in result.jobs])
