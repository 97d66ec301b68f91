"""`whatif sweep`: named resources of one job over factors."""

from __future__ import annotations

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
    TimelineOption,
    TraceOption,
    model_name,
    numbers,
    split,
)
from .output import check_files, exit_if_strict, show


def sweep(
    trace: TraceOption,
    resource: Annotated[
        list[str],
        typer.Option(
            "--resource",
            metavar="NAMES",
            help="Comma-separated, repeatable: scaleup_bw, scaleout_bw, scaleup_domain, "
            "scaleup_latency, scaleout_latency, compute, host. On a torus also ici_bw, "
            "ici_latency, torus_wrap, and a shape such as torus:2x4.",
            show_default=False,
        ),
    ],
    factor: Annotated[
        list[str],
        typer.Option(
            "--factor",
            metavar="NUMBERS",
            help="How many times better, comma-separated, repeatable; below 1 is worse.",
        ),
    ] = ["2"],  # noqa: B006 (typer copies it)
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
    timeline: TimelineOption = None,
) -> None:
    """Make named resources of a job better, one at a time, and show what the step becomes.

    A factor of 2 means twice the bandwidth, half the latency, domains of twice as many ranks,
    compute or host work in half the time. On a torus, domains are slices, torus_wrap closes the
    axes (0.5 opens them), and torus:2x4 puts the job on a torus of that shape, whatever the factor.
    A resource that the job does not have is an error.
    --timeline shows the baseline and every variant side by side.

    \b
    whatif sweep --trace my_trace --resource scaleup_bw
    whatif sweep --trace my_trace --resource scaleup_bw,host --factor 0.5,2,4
    whatif sweep --trace my_trace --resource compute --json --strict
    whatif sweep --trace my_trace --network tpu_v5e --resource ici_bw,torus:8,torus:2x2x2
    whatif sweep --trace my_trace --resource scaleup_bw --timeline bw.json.gz
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, timeline, inputs=[trace, network, rank_map])
    factors = numbers(factor, "--factor")
    from ..reports.machine import sweep_frame, to_json
    from ..reports.sweep import sweep_report
    from ..simulations import sweep as run
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            split(resource),
            factors,
            network=network,
            rank_map=rank_map,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            intervals=intervals,
            limit_pct=limit_pct,
            timeline=timeline,
            processes=processes,
            progress=progress,
        )
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: sweep_report(result),
        frame=lambda: sweep_frame([result]),
        csv=csv,
        parquet=parquet,
        warnings=result.warnings,
    )
    exit_if_strict(strict=strict, beyond=[result.beyond_limit])
