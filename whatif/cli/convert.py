"""`whatif convert`: a trace as Chakra .et files."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import Annotated

import typer

from .options import (
    AssumeMissingOption,
    JsonOption,
    ModelOption,
    ProcessesOption,
    StepOption,
    TraceOption,
    model_name,
    split,
)
from .output import show


def convert(
    trace: TraceOption,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Directory to write; made if needed.", show_default=False
        ),
    ],
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="NAME", help="First part of the file names.")
    ] = "whatif",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files of the same prefix.")
    ] = False,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a trace as Chakra execution traces, and say what became of everything in it.

    One PREFIX.N.et per rank and PREFIX.comm_groups.json, for Chakra's tools and ASTRA-sim. All
    other commands read them too and give the same numbers as from the trace. After an error
    nothing is written.

    \b
    whatif convert --trace my_trace --out my_et
    whatif convert --trace my_trace --out my_et --model stream --step 3 --overwrite
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    from ..conversion import load, write_chakra
    from ..reports.conversion import conversion_report
    from ..reports.machine import to_json
    from .display import Display

    with Display() as progress:
        graph = load(
            trace,
            model=model_name(model),
            steps=split(step) if step else None,
            assume_missing=assume_missing,
            processes=processes,
            progress=progress,
        )
        result = write_chakra(graph, out, prefix=prefix, overwrite=overwrite, progress=progress)
    show(
        as_json=as_json,
        json=lambda: to_json(result),
        tables=lambda: conversion_report(result),
        warnings=result.coverage.warnings,
    )
