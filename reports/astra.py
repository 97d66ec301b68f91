"""What is written for ASTRA-sim: names of files, how to run them, and tables of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..calibration.results import AstraConfig
    from ..simulator.astra.results import AstraResult
    from .results import AstraExportResult, AstraVariant

#: Names of the files.
NETWORK_FILE, SYSTEM_FILE, MEMORY_FILE = "network.yml", "system.json", "memory.json"

#: Name of the text that says how to run them.
GUIDE = "README.txt"

_SHOWN = 16


def astra_command(variant: AstraVariant) -> list[str]:
    """Give the command that runs a variant in a stock ASTRA-sim, from the directory written."""
    return [
        '"$ASTRA_SIM"',
        f"--workload-configuration={variant.traces}",
        f"--comm-group-configuration={variant.traces}.comm_groups.json",
        f"--network-configuration={variant.name}/{NETWORK_FILE}",
        f"--system-configuration={variant.name}/{SYSTEM_FILE}",
        f"--remote-memory-configuration={variant.name}/{MEMORY_FILE}",
    ]


def astra_guide(result: AstraExportResult) -> str:
    """Say in plain text what an export holds, how to run it, and what it is not."""
    first = result.variants[0]
    what = (
        f"{result.trace} for ASTRA-sim's analytical backends: "
        f"{text.plural(result.ranks, 'rank')}, {result.dependency_model} model, one after the "
        f"other the steps {', '.join(result.steps)}"
    )
    lines = [
        what,
        "",
        "How to run it",
        "-------------",
        "From this directory, with ASTRA_SIM the path of a stock analytical binary",
        "(congestion_unaware; congestion_aware knows networks of one dimension only):",
        "",
        *("  " + " \\\n    ".join(astra_command(variant)) + "\n" for variant in result.variants),
        'Each rank must print "finished" with its cycles, which are nanoseconds. ASTRA-sim ends',
        "with exit status 0 even if some do not. The same cycles without a binary:",
        "",
        f"  whatif simulate --et {first.traces} --astra-network {first.name}/{NETWORK_FILE} \\",
        f"    --astra-system {first.name}/{SYSTEM_FILE} \\",
        f"    --astra-groups {first.traces}.comm_groups.json --semantics astra",
        "",
    ]
    for variant in result.variants:
        title = f"{variant.name}: {_dimensions(variant)}"
        lines += [title, "-" * len(title)]
        lines.append(f"congestion_unaware prints {variant.finish_cycles} cycles for the last rank")
        if variant.shape_change:
            lines.append(variant.shape_change)
        if variant.ranks_by_npu != sorted(variant.ranks_by_npu):
            lines.append(
                f"npus 0, 1, ... are the ranks {', '.join(map(str, variant.ranks_by_npu))}"
            )
        lines += [f"folded: {remark}" for remark in variant.folded]
        lines += [f"lost: {remark}" for remark in variant.lost]
        lines.append("")
    for heading, remarks in (
        ("Assumed of the baseline network", result.assumptions),
        ("What the .et files simplify", result.export_warnings),
        ("Warnings", result.warnings),
    ):
        if remarks:
            lines += [heading, "-" * len(heading), *remarks, ""]
    return "\n".join(lines)


def astra_export_report(result: AstraExportResult) -> list[RenderableType]:
    """Show what was written, and what ASTRA-sim gets of each network."""
    table = text.Columns(
        names=["variant", "topology", "all-reduce"],
        numbers=["GiB/s of a link", "its latency ns", "finish cycles", "step there", "utility"],
    )
    for variant in result.variants:
        table.row(
            variant.name,
            _dimensions(variant),
            ", ".join(variant.all_reduce),
            ", ".join(f"{value:.6g}" for value in variant.bandwidth_gib_s),
            ", ".join(f"{value:.6g}" for value in variant.latency_ns),
            str(variant.finish_cycles),
            text.time(variant.step_ns),
            text.NONE if variant is result.variants[0] else text.percent(variant.utility_pct),
        )
    baseline, *others = result.variants
    shown = [
        Text(
            f"{result.trace}: {text.plural(result.ranks, 'rank')}, "
            f"{text.plural(len(result.steps), 'step')}, {result.dependency_model} model"
        ),
        Text(f"written    {result.out}; {result.out}/{GUIDE} says how to run it"),
        Text(f"baseline   error {text.percent(result.baseline_error_pct, sign=True)} (our engine)"),
        *table.titled("For ASTRA-sim"),
        *text.remarks("Folded", baseline.folded),
        *text.remarks("Lost", baseline.lost),
    ]
    for variant in others:
        new = [f"folded: {line}" for line in variant.folded if line not in baseline.folded]
        new += [f"lost: {line}" for line in variant.lost if line not in baseline.lost]
        change = [variant.shape_change] if variant.shape_change else []
        shown += text.remarks(f"In {variant.name}", [*change, *new])
    return [*shown, *text.remarks("What the .et files simplify", result.export_warnings)]


def astra_report(result: AstraResult) -> list[RenderableType]:
    """Show the cycles of an experiment, and of a job its step."""
    who = "our parity engine" if result.binary is None else result.binary
    table = text.Columns(names=["rank"], numbers=["finish cycles", "exposed cycles"])
    for row in result.per_rank[:_SHOWN]:
        table.row(str(row.rank), str(row.finish_cycles), str(row.exposed_cycles))
    shown = [
        Text(f"{result.trace}: {text.plural(result.ranks, 'rank')}, {_dimensions(result)}"),
        Text(f"computed   {result.backend} of ASTRA-sim, by {who}"),
        Text(f"finish     {result.finish_cycles} cycles ({text.time(result.finish_cycles)})"),
    ]
    if result.step_ns is not None:
        shown.append(
            Text(
                f"step       {text.time(result.step_ns)}, measured "
                f"{text.time(result.measured_step_ns)} (error "
                f"{text.percent(result.error_pct, sign=True)})"
            )
        )
    return [
        *shown,
        *table.titled("Cycles, which are nanoseconds"),
        *text.more(len(result.per_rank) - _SHOWN, "ranks"),
        *text.remarks("Folded for ASTRA-sim", result.folded),
        *text.remarks("Lost on the way to ASTRA-sim", result.lost),
    ]


def _dimensions(variant: AstraVariant | AstraResult) -> str:
    return " x ".join(
        f"{topology} {count}"
        for topology, count in zip(variant.topology, variant.npus_count, strict=True)
    )


def astra_fit_report(config: AstraConfig) -> list[RenderableType]:
    """Show what was fitted for ASTRA-sim, and how well it explains the measured transfers."""
    table = text.Columns(
        names=["collective"],
        numbers=[
            *("size", "ranks", "domains", "count", "measured", "ASTRA-sim", "residual"),
            "all at once",
        ],
    )
    for row in config.rows:
        table.row(
            row.collective,
            text.size(row.size_bytes),
            str(row.ranks),
            str(row.domains),
            str(row.count),
            text.time(row.measured_ns),
            text.time(row.simulated_ns),
            text.percent(row.residual_pct, sign=True),
            text.time(row.alone_ns),
        )
    step = Text(
        f"\nIn ASTRA-sim the step takes {text.time(config.step_ns)}, measured "
        f"{text.time(config.measured_step_ns)} (serial model, error "
        f"{text.percent(config.step_error_pct, sign=True)})"
    )
    return [
        *table.titled("Transfers in ASTRA-sim, arriving as measured, and all at once"),
        *([] if config.step_ns is None else [step]),
        *text.remarks("For ASTRA-sim", config.notes),
    ]
