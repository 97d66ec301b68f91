"""`whatif explain`: why the step takes as long as it does."""

from __future__ import annotations

from typing import Annotated

import typer

from ..base.settings import DEFAULT_PLACES
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
from .output import exit_if_strict, show


def explain(
    trace: TraceOption,
    top: Annotated[
        int,
        typer.Option("--top", metavar="N", min=1, help="How many places of the path to list."),
    ] = DEFAULT_PLACES,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="NAME|FILE",
            help="Preset or file to explain. By default the network the job was traced on.",
        ),
    ] = None,
    rank_map: RankMapOption = None,
    measured: Annotated[
        bool,
        typer.Option("--measured", help="Explain the measured transfers instead of a network."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="TRACE",
            help="Say what the error consists of against this trace of the job on that network; "
            "of a baseline, the trace itself.",
        ),
    ] = None,
    model: ModelOption = None,
    step: StepOption = None,
    assume_missing: AssumeMissingOption = False,
    limit_pct: LimitOption = LIMIT_PCT,
    strict: StrictOption = False,
    processes: ProcessesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why the step takes as long as it does, and what each resource could give back.

    Follows the critical path across ranks and lanes: the largest places it goes through, what it
    consists of, what communication costs the ranks off the path, and what the step becomes with
    each resource twice as good and unlimited. A resource is called irrelevant if the step changes
    by less than 0.1 % either way.

    \b
    whatif explain --trace my_trace
    whatif explain --trace my_trace --measured --top 30
    whatif explain --trace my_trace --against my_trace
    whatif explain --trace my_trace --network dgx_h100 --json | jq .verdict
    """  # noqa: D301 (an escape, which keeps the examples from being wrapped)
    from ..explanation import explain as run
    from ..reports.explain import explain_report
    from ..reports.machine import to_json
    from .display import Display

    with Display() as progress:
        result = run(
            trace,
            top=top,
            network=network,
            rank_map=rank_map,
            measured=measured,
            against=against,
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
        tables=lambda: explain_report(result),
        warnings=result.warnings,
    )
    exit_if_strict(strict=strict, beyond=[result.beyond_limit])
