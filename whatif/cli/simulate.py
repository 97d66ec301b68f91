"""`whatif simulate`: one simulation of a job, or of an experiment in ASTRA-sim's own files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated

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
    model_name,
    split,
)
from .output import check_files, exit_if_strict, show

if TYPE_CHECKING:
    from ..simulator.astra.results import AstraResult


class Semantics(StrEnum):
    """Whose physics."""

    NATIVE = "native"
    ASTRA = "astra"


class Engine(StrEnum):
    """What computes it."""

    WHATIF = "whatif"
    ASTRA_SIM = "astra-sim"


class Backend(StrEnum):
    """Analytical network backends of ASTRA-sim."""

    UNAWARE = "congestion_unaware"
    AWARE = "congestion_aware"


def simulate(
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="PATH",
            help="Directory with one Kineto trace per rank, XLA profile, or Chakra .et files.",
            show_default=False,
        ),
    ] = None,
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
    semantics: Annotated[
        Semantics,
        typer.Option(
            help="Whose physics: ours, or cycle for cycle that of ASTRA-sim's analytical backends.",
        ),
    ] = Semantics.NATIVE,
    et: Annotated[
        Path | None,
        typer.Option(
            "--et",
            metavar="PREFIX",
            help="Instead of a trace: prefix of the .et files of an ASTRA-sim experiment.",
        ),
    ] = None,
    astra_network: Annotated[
        Path | None,
        typer.Option("--astra-network", metavar="FILE", help="Its network.yml."),
    ] = None,
    astra_system: Annotated[
        Path | None,
        typer.Option("--astra-system", metavar="FILE", help="Its system.json."),
    ] = None,
    astra_groups: Annotated[
        Path | None,
        typer.Option("--astra-groups", metavar="FILE", help="Its communicator groups."),
    ] = None,
    astra_memory: Annotated[
        Path | None,
        typer.Option("--astra-memory", metavar="FILE", help="Its remote memory."),
    ] = None,
    astra_option: Annotated[
        list[str] | None,
        typer.Option(
            "--astra-option",
            metavar="NAME=VALUE",
            help="An option of ASTRA-sim's command line: num-queues-per-dim, injection-scale, "
            "rendezvous-protocol; repeatable.",
        ),
    ] = None,
    astra_backend: Annotated[
        Backend, typer.Option("--astra-backend", help="Backend of ASTRA-sim.")
    ] = Backend.UNAWARE,
    engine: Annotated[
        Engine,
        typer.Option(help="What computes it: we ourselves, or a real ASTRA-sim that you have."),
    ] = Engine.WHATIF,
    astra_sim_bin: Annotated[
        Path | None,
        typer.Option(
            "--astra-sim-bin",
            metavar="PATH",
            help="The real ASTRA-sim: a binary or a checkout. By default WHATIF_ASTRA_SIM, then "
            "third_party/astra-sim.",
        ),
    ] = None,
    time_limit_s: Annotated[
        float | None,
        typer.Option(
            "--time-limit-s", metavar="S", help="Stop the real ASTRA-sim after that long: 3600."
        ),
    ] = None,
    silence_limit_s: Annotated[
        float | None,
        typer.Option(
            "--silence-limit-s", metavar="S", help="And when it says nothing that long: 600."
        ),
    ] = None,
) -> None:
    """Simulate a job once, and say where its step goes on each rank.

    The baseline, the same job on the network it was traced on, is simulated beside and its error
    printed. --measured replays the trace's own transfers and must give the trace's own times.
    --csv and --parquet hold the table of ranks, --timeline every kernel and transfer of the
    simulation; with --network the baseline lies beside it.

    --semantics astra gives the cycles of ASTRA-sim's analytical backends: of a trace, whose network
    is expressed for it, or of an experiment in ASTRA-sim's own files. --engine astra-sim lets a real
    one compute the same.

    \b
    whatif simulate --trace my_trace
    whatif simulate --trace my_trace --network dgx_h100 --timeline h100.json.gz
    whatif simulate --trace my_trace --measured
    whatif simulate --et my_et/job --astra-network network.yml --astra-system system.json --semantics astra
    """  # noqa: D301, E501 (an escape, which keeps the examples from being wrapped)
    check_files(csv, parquet, timeline, inputs=[trace, network, rank_map])
    for_astra = {
        "--et": et,
        "--astra-network": astra_network,
        "--astra-system": astra_system,
        "--astra-groups": astra_groups,
        "--astra-memory": astra_memory,
        "--astra-option": astra_option,
        "--astra-sim-bin": astra_sim_bin,
        "--time-limit-s": time_limit_s,
        "--silence-limit-s": silence_limit_s,
    }
    under_astra = semantics is Semantics.ASTRA or engine is Engine.ASTRA_SIM
    given = next((name for name, value in for_astra.items() if value is not None), None)
    if not under_astra and given is not None:
        raise typer.BadParameter("goes with --semantics astra", param_hint=given)
    if under_astra and (measured or timeline is not None):
        raise typer.BadParameter(
            "goes with our own physics only",
            param_hint="--measured" if measured else "--timeline",
        )
    if trace is None and et is None:
        raise typer.BadParameter("is missing", param_hint="--trace")
    from ..reports.machine import astra_frame, simulation_frame, to_json
    from .display import Display

    if under_astra:
        from ..experiments import simulate_astra
        from ..reports.astra import astra_report

        with Display() as progress:
            told: AstraResult = simulate_astra(
                trace,
                et=et,
                astra_network=astra_network,
                astra_system=astra_system,
                astra_groups=astra_groups,
                astra_memory=astra_memory,
                options=_options(astra_option or []),
                backend=astra_backend.value,
                engine=engine.value,
                astra_sim_bin=astra_sim_bin,
                time_limit_s=time_limit_s,
                silence_limit_s=silence_limit_s,
                network=network,
                rank_map=rank_map,
                model=model_name(model),
                steps=split(step) if step else None,
                assume_missing=assume_missing,
                processes=processes,
                progress=progress,
            )
        show(
            as_json=as_json,
            json=lambda: to_json(told),
            tables=lambda: astra_report(told),
            frame=lambda: astra_frame(told),
            csv=csv,
            parquet=parquet,
            warnings=told.warnings,
        )
        error = told.error_pct
        exit_if_strict(strict=strict, beyond=[None if error is None else abs(error) > limit_pct])
        return
    from ..reports.simulation import simulation_report
    from ..simulations import simulate as run

    assert trace is not None
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


def _options(given: list[str]) -> dict[str, str]:
    """Read options of ASTRA-sim's command line, with or without their dashes."""
    found = {}
    for one in given:
        name, equals, value = one.removeprefix("--").partition("=")
        if not equals:
            raise typer.BadParameter(f"{one!r} is not NAME=VALUE", param_hint="--astra-option")
        found[name] = value
    return found
