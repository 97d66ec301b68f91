"""`whatif astra`: what is for ASTRA-sim alone."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from .options import (
    AssumeMissingOption,
    JsonOption,
    ModelOption,
    NetworkOption,
    ProcessesOption,
    RankMapOption,
    StepOption,
    TraceOption,
    model_name,
    numbers,
    split,
)
from .output import show

app = typer.Typer(
    help="Files for ASTRA-sim.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _astra() -> None:
    """Files for ASTRA-sim."""


@app.command()
def export(
    trace: TraceOption,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="DIR",
            help="Directory to write; made if needed.",
            show_default=False,
        ),
    ],
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            metavar="NAME",
            help="Resources of the network to make better, each a variant of its own: scaleup_bw, "
            "scaleout_bw, scaleup_domain, scaleup_latency, scaleout_latency. Takes commas.",
        ),
    ] = None,
    factor: Annotated[
        list[str] | None,
        typer.Option("--factor", metavar="N", help="How many times better; 2 by default."),
    ] = None,
    preset: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            metavar="NAME|FILE",
            help="A further network, of any topology and algorithm; repeatable.",
        ),
    ] = None,
    network: NetworkOption = None,
    rank_map: RankMapOption = None,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is there of the same names.")
    ] = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what a stock ASTRA-sim needs for a job, its baseline network and variants of it.

    The .et files of all ranks with their groups, and network.yml, system.json and memory.json of
    each network; README.txt says how to run them, and what of the networks is folded or lost.
    A network that ASTRA-sim cannot express is refused with the reason. The model is serial by
    default: ASTRA-sim runs one computation and one communication of a rank at a time.

    \b
    whatif astra export --trace my_trace --resource scaleup_bw --factor 2 -o my_astra
    whatif astra export --trace my_trace --preset dgx_h100 --preset torus.yaml -o my_astra
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    if factor and not resource:
        raise typer.BadParameter("goes with --resource", param_hint="--factor")
    from ..astra import astra_export as run
    from ..reports.astra import astra_export_report
    from ..reports.machine import to_json
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            out,
            resources=split(resource or []),
            factors=numbers(factor or ["2"], "--factor"),
            presets=preset or [],
            network=network,
            rank_map=rank_map,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            overwrite=overwrite,
            processes=processes,
            progress=progress,
        )
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: astra_export_report(result),
        warnings=result.warnings,
    )
