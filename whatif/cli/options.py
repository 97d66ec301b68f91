"""The options that several commands share, each written once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..base.settings import DEFAULT_LIMIT_PCT

if TYPE_CHECKING:
    from ..graph.columns import DependencyModel


class Model(StrEnum):
    """Dependency models, richest first."""

    HOST = "host"
    STREAM = "stream"
    SERIAL = "serial"


TraceOption = Annotated[
    Path,
    typer.Option(
        "--trace",
        metavar="PATH",
        help=(
            "Directory with one Kineto trace per rank, XLA profile (xplane.pb, trace.json, or "
            "the profiler's directory), or Chakra .et files."
        ),
        show_default=False,
    ),
]
ModelOption = Annotated[
    Model | None,
    typer.Option(
        "--model", help="Dependency model; by default the richest that the trace supports."
    ),
]
StepOption = Annotated[
    list[str] | None,
    typer.Option(
        "--step",
        metavar="STEP",
        help="Recorded steps to use, by name or number; repeatable. All by default.",
    ),
]
AssumeMissingOption = Annotated[
    bool,
    typer.Option(
        "--assume-missing",
        help="Assume ranks that were not traced to arrive with those that were.",
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Processes that read traces; by default one for each core.",
    ),
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME|FILE",
        help="Preset or file of the network the job was traced on. By default the preset that "
        "matches the trace, with what its own transfers say. A preset of TPUs may name the slice: "
        "tpu_v5e:2x4.",
    ),
]
RankMapOption = Annotated[
    Path | None,
    typer.Option(
        "--rank-map",
        metavar="FILE",
        help="Scale-up domain of each rank, as a YAML or JSON list or mapping.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Write one JSON object to stdout instead of tables.")
]
CsvOption = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", help="Write the table as CSV, too.")
]
ParquetOption = Annotated[
    Path | None,
    typer.Option("--parquet", metavar="FILE", help="Write the table as Parquet, too."),
]
LimitOption = Annotated[
    float,
    typer.Option(
        "--limit-pct",
        metavar="PCT",
        min=0,
        help="Baseline error beyond which results are marked.",
    ),
]
IntervalsOption = Annotated[
    bool,
    typer.Option(
        "--intervals/--no-intervals",
        help="Say how sure utilities are, by simulating on whatever other networks the "
        "measurements allow; without, a sweep is several times faster.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Exit with code 3, after the output, where the baseline error is beyond the limit or "
        "not known.",
    ),
]
TimelineOption = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Write what was simulated as a timeline for ui.perfetto.dev, too; compressed if the "
        "name ends in .gz.",
    ),
]

LIMIT_PCT = DEFAULT_LIMIT_PCT


def model_name(model: Model | None) -> DependencyModel | None:
    """Give the model under the name that the rest of the package knows."""
    return None if model is None else model.value


def split(values: list[str]) -> list[str]:
    """Take comma-separated values and repeated options for the same thing."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def numbers(values: list[str], option: str) -> list[float]:
    """Read comma-separated and repeated numbers.

    Raises
    ------
    typer.BadParameter
        Naming what is no number.
    """
    found = []
    for part in split(values):
        try:
            found.append(float(part))
        except ValueError:
            raise typer.BadParameter(f"{part!r} is not a number", param_hint=option) from None
    return found
