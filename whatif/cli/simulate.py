"""`whatif simulate`: one simulation of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import (
    LIMIT_PCT,
    AssumeMissingOption,
    CsvOption,
    JsonOption,
    LimitOption,
    ModelOption,
    ParquetOption,
    ProcessesOption,
    RankMapOption,
    StepOption,
    StrictOption,
    TimelineOption,
    TraceOption,
    model_name,
    split,
)
from .output import check_files, exit_if_strict, show


def simulate(
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
    measured: Annotated[
        bool,
        typer.Option("--measured", help="Replay the measured transfers instead of a network."),
    ] = False,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    limit_pct: LimitOption = LIMIT_PCT,
    strict: StrictOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
    timeline: TimelineOption = None,
) -> None:
    """Simulate a job once, and say where its step goes on each rank.

    The baseline, the same job on the network it was traced on, is simulated beside and its error
    printed. --measured replays the trace's own transfers and must give the trace's own times.
    --csv and --parquet hold the table of ranks, --timeline every kernel and transfer of the
    simulation; with --network the baseline lies beside it.

    \b
    whatif simulate --trace my_trace
    whatif simulate --trace my_trace --network dgx_h100 --timeline h100.json.gz
    whatif simulate --trace my_trace --measured
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, timeline)
    from ..reports.machine import simulation_frame, to_json
    from ..reports.simulation import simulation_report
    from ..simulations import simulate as run
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            network=network,
            rank_map=rank_map,
            measured=measured,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            limit_pct=limit_pct,
            timeline=timeline,
            processes=processes,
            progress=progress,
        )
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: simulation_report(result),
        frame=lambda: simulation_frame(result),
        csv=csv,
        parquet=parquet,
        warnings=result.warnings,
    )
    exit_if_strict(strict=strict, beyond=[result.beyond_limit])
