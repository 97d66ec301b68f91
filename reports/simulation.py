"""One simulation as a table: the step, and where it goes on each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from . import text
from .network import network_report
from .steps import category_table, critical_path_table, job_line, mark

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..sweeps.results import SimulateResult


def simulation_report(result: SimulateResult) -> list[RenderableType]:
    """Show a single simulation.

    Parameters
    ----------
    result : SimulateResult
        From `sweeps.single`.

    Returns
    -------
    list of renderable
        To be printed one after the other on a rich console.
    """
    steps = text.Columns(names=["step"], numbers=["measured", "simulated"])
    for step in result.steps:
        steps.row(step.name, text.time(step.measured_ns), text.time(step.step_ns))
    return [
        *simulation_header(result),
        *steps.titled("Steps"),
        *category_table(f"Where the step goes{mark(result)}", result.per_rank),
        *critical_path_table("On the critical path", result.critical_path_ns),
        *network_report(result),
        *text.remarks("Not modelled", result.limits),
    ]


def simulation_header(result: SimulateResult) -> list[RenderableType]:
    """Say what was simulated, and how the step compares with the measured one."""
    where = "measured transfers" if result.network is None else f"network {result.network.name}"
    return [
        Text(job_line(result)),
        Text(f"simulated  {where}" + (f"; {result.placement}" if result.placement else "")),
        Text(f"step       {text.time(result.step_ns)}"),
        Text(
            f"measured   {text.time(result.measured_step_ns)} "
            f"(simulated {text.percent(result.change_pct, sign=True)})"
        ),
        Text(
            f"baseline   {text.time(result.baseline_step_ns)} "
            f"(error {text.percent(result.baseline_error_pct, sign=True)})"
        ),
    ]
