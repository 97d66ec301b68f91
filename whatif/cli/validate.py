"""`whatif validate`: what the package says, held against what was measured."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from .options import LIMIT_PCT, JsonOption, LimitOption, ProcessesOption
from .output import say, show


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Directory that is searched for traces, tables of collectives and labs.",
        ),
    ] = None,
    lab: Annotated[
        Path | None,
        typer.Option(
            "--lab",
            metavar="DIR",
            help="A lab: truth.csv, and JOB/MBITmbit directories with the traces of all ranks.",
        ),
    ] = None,
    limit_pct: LimitOption = LIMIT_PCT,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with code 3, after the output, if a bar is missed."),
    ] = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold replays, fits and predictions against what was measured, and say which bars are met.

    Every job: measured transfers must give the measured steps, and the calibrated network the
    measured step within the limit. Tables of collectives: sizes that the fit has not seen. Labs:
    the step at every other bandwidth, predicted from one trace, beside the true one.

    \b
    whatif validate --data examples
    whatif validate --lab my_lab --strict
    whatif validate --data my_data --json | jq .checks
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    from ..reports.machine import to_json
    from ..reports.validation import validation_report
    from ..validation import validate as run
    from .display import Display

    with Display() as progress:
        result = run(data, lab=lab, limit_pct=limit_pct, processes=processes, progress=progress)
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: validation_report(result),
    )
    if strict and not result.passed:
        say("strict: a bar is missed")
        raise typer.Exit(3)
