"""`whatif calibrate`: the network that a trace was measured on, as a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    LIMIT_PCT,
    AssumeMissingOption,
    JsonOption,
    LimitOption,
    ModelOption,
    ProcessesOption,
    RankMapOption,
    StepOption,
    StrictOption,
    TraceOption,
    model_name,
    split,
)
from .output import check_files, exit_if_strict, show

if TYPE_CHECKING:
    from ..calibration.results import CalibrationResult


class Target(StrEnum):
    """Whose configuration is written."""

    WHATIF = "whatif"
    ASTRA_SIM = "astra-sim"


def calibrate(
    trace: TraceOption,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="NAME|FILE",
            help="Preset or file with the nominal network. By default the preset of the machine.",
        ),
    ] = None,
    link_gb_s: Annotated[
        float | None,
        typer.Option(
            "--link-gb-s",
            metavar="N",
            help="Nominal speed of the links in GB/s per rank and direction (8 Gbit/s are 1 GB/s).",
        ),
    ] = None,
    scaleup_gb_s: Annotated[
        float | None,
        typer.Option("--scaleup-gb-s", metavar="N", help="The same within scale-up domains."),
    ] = None,
    scaleout_gb_s: Annotated[
        float | None,
        typer.Option("--scaleout-gb-s", metavar="N", help="The same between domains."),
    ] = None,
    rank_map: RankMapOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Network file to write; for ASTRA-sim the directory for network.yml, system.json "
            "and memory.json.",
        ),
    ] = None,
    target: Annotated[
        Target,
        typer.Option("--for", help="Whose configuration to write."),
    ] = Target.WHATIF,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    limit_pct: LimitOption = LIMIT_PCT,
    strict: StrictOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a network to the transfers of a trace, say how sure it is, and write it to a file.

    Effective bandwidth, latency, base and endpoint cost of every tier, and how much compute slows
    down beside transfers. What the trace cannot tell stays as in the nominal network and is marked.
    The file is for --network of every other command; its alternatives are the networks that the
    trace allows about as well.

    \b
    whatif calibrate --trace my_trace -o net.yaml
    whatif calibrate --trace my_trace --link-gb-s 0.125 -o net.yaml
    whatif calibrate --trace my_trace --for astra-sim -o astra_configs
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    if target is Target.ASTRA_SIM and out is None:
        raise typer.BadParameter("needs a directory to write to: -o DIR", param_hint="--for")
    check_files(out if target is Target.WHATIF else None, inputs=[trace])
    from ..fitting import calibrate as run
    from ..reports.astra import astra_fit_report
    from ..reports.calibration import calibration_report
    from ..reports.machine import to_json
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            network=network,
            link_gb_s=link_gb_s,
            scaleup_gb_s=scaleup_gb_s,
            scaleout_gb_s=scaleout_gb_s,
            rank_map=rank_map,
            target=target.value,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            limit_pct=limit_pct,
            processes=processes,
            progress=progress,
        )
    if out is not None:
        _write(result, out)
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: [
            *calibration_report(result),
            *([] if result.astra is None else astra_fit_report(result.astra)),
        ],
        warnings=result.warnings,
    )
    exit_if_strict(strict=strict, beyond=[result.beyond_limit])


def _write(result: CalibrationResult, out: Path) -> None:
    if result.astra is not None:
        from ..astra import write_astra_config

        write_astra_config(result.astra, out)
    else:
        from ..simulator.network import save_network

        save_network(result.network, out)
