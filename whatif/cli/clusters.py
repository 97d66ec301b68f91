"""`whatif clusters`: one job in several cluster architectures."""

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
    NetworkOption,
    ParquetOption,
    ProcessesOption,
    RankMapOption,
    StepOption,
    StrictOption,
    TraceOption,
    model_name,
    numbers,
    split,
)
from .output import check_files, exit_if_strict, show


def clusters(
    trace: TraceOption,
    domain: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="RANKS",
            help="Sizes of a scale-up domain, comma-separated, repeatable.",
        ),
    ] = None,
    scaleup_gb_s: Annotated[
        list[str] | None,
        typer.Option(
            "--scaleup-gb-s",
            metavar="GB/S",
            help="Bandwidths inside a domain, per rank and direction, comma-separated, repeatable.",
        ),
    ] = None,
    scaleout_gb_s: Annotated[
        list[str] | None,
        typer.Option(
            "--scaleout-gb-s",
            metavar="GB/S",
            help="Bandwidths between domains, per rank and direction, comma-separated, repeatable.",
        ),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            metavar="NAMES|FILES",
            help="Networks that are architectures as they are, comma-separated, repeatable.",
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="NAME|FILE",
            help="Network whose latency, efficiency and fixed costs the combinations have. By "
            "default the one the job was traced on.",
        ),
    ] = None,
    network: NetworkOption = None,
    rank_map: RankMapOption = None,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    limit_pct: LimitOption = LIMIT_PCT,
    strict: StrictOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
    csv: CsvOption = None,
    parquet: ParquetOption = None,
) -> None:
    """Compare cluster architectures for a job: domain size and both bandwidths together.

    Every domain size is combined with every bandwidth given; what is not given stays as it is.
    Each architecture is compared with the one the job was traced on, and each is also simulated
    with its domain, its scale-up and its scale-out bandwidth doubled, one at a time.

    \b
    whatif clusters --trace my_trace --domain 4,8,32 --scaleup-gb-s 300,900
    whatif clusters --trace my_trace --domain 8,72 --scaleout-gb-s 25,50 --like dgx_h100
    whatif clusters --trace my_trace --preset dgx_h100,dgx_b200 --json
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, inputs=[trace, network])
    domains = _whole(domain or [], "--domain")
    up = numbers(scaleup_gb_s or [], "--scaleup-gb-s")
    out = numbers(scaleout_gb_s or [], "--scaleout-gb-s")
    from ..reports.clusters import clusters_report
    from ..reports.machine import clusters_frame, to_json
    from ..simulations import clusters as run
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            domains=domains,
            scaleup_gb_s=up,
            scaleout_gb_s=out,
            presets=split(preset or []),
            like=like,
            network=network,
            rank_map=rank_map,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            limit_pct=limit_pct,
            processes=processes,
            progress=progress,
        )
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: clusters_report(result),
        frame=lambda: clusters_frame(result),
        csv=csv,
        parquet=parquet,
        warnings=result.warnings,
    )
    exit_if_strict(strict=strict, beyond=[result.beyond_limit])


def _whole(values: list[str], option: str) -> list[int]:
    found = []
    for value in numbers(values, option):
        if not value.is_integer():
            raise typer.BadParameter(f"{value:g} is no whole number", param_hint=option)
        found.append(int(value))
    return found
