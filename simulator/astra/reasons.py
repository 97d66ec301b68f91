"""Why the two physics differ, in words: the rules of ASTRA-sim with the numbers of a comparison.

Nothing is worked out here that `compare` has not measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...base.units import format_bytes, format_ns
from .export import ENDPOINT_DELAY_NS

if TYPE_CHECKING:
    from .compare_results import ComparedOperation, CompareResult

# What arrivals have to change of an operation to be worth a word.
_NOTICEABLE = 0.001


class Facts(NamedTuple):
    """What a reason needs besides the numbers of an operation.

    Attributes
    ----------
    note : str or None
        What the .et files simplify of it.
    here, there : str
        How it is done in the native engine and in ASTRA-sim.
    base_ns, endpoint_ns : float
        What it pays to no tier in the native engine.
    """

    note: str | None
    here: str
    there: str
    base_ns: float
    endpoint_ns: float


def reasons(row: ComparedOperation, facts: Facts) -> list[str]:
    """Give the reasons why an operation differs, each with its number."""
    why = [] if facts.note is None else [facts.note]
    why.append(f"{facts.here} here, {facts.there} there")
    if row.shown_as == "broadcast":
        why.append("ASTRA-sim replays a broadcast by its measured duration, waiting included")
    paid = [scope for scope, ns in row.astra_tiers_ns.items() if ns]
    for scope, count in row.unpaid.items():
        what = f"{count} of {row.neighbours} neighbours of its ring are across {scope}"
        if row.shown_as == "send-recv":
            what = f"the message goes across {scope}"
        why.append(
            f"{what}, and ASTRA-sim charges the innermost tier in which two ranks differ alone: "
            f"{' and '.join(paid) or 'none'}"
        )
    if abs(facts.base_ns) >= 1:
        why.append(f"base of {format_ns(facts.base_ns)} here, which has no place there")
    if facts.endpoint_ns >= 1:
        why.append(f"{format_ns(facts.endpoint_ns)} at the ends here, part of the links there")
    if row.astra_other_ns and paid:
        why.append(
            f"{format_ns(row.astra_other_ns)} there are {ENDPOINT_DELAY_NS} ns before each message "
            "and whole nanoseconds"
        )
    if row.rounding_bytes:
        why.append(f"chunks of whole equal size are {format_bytes(row.rounding_bytes)} more there")
    skew_ns = row.astra_ns - row.astra_after_last_ns
    if skew_ns > _NOTICEABLE * row.astra_ns:
        why.append(
            f"{format_ns(skew_ns)} less in the run there, the mean over members: each leaves once "
            "it has all that it needs, and those before the last began to exchange without it"
        )
    if row.slot_wait_ns:
        why.append(
            f"{format_ns(row.slot_wait_ns)} on average in the run it waits there for the only "
            "communication slot of a rank"
        )
    return why


def summary(result: CompareResult) -> list[str]:
    """Say in words where the step differs, from the numbers of the result."""
    ranks, steps = result.ranks, max(len(result.steps), 1)
    price = sum(
        (row.astra_ns - row.native_ns) * row.count * row.group_size for row in result.operations
    ) / (ranks * steps)
    slots = sum(row.slot_wait_ns for row in result.per_rank) / (ranks * steps)
    early = sum(
        (row.astra_ns - row.astra_after_last_ns) * row.count * row.group_size
        for row in result.operations
    ) / (ranks * steps)
    lines = [
        "step: {:.2f} % {} in ASTRA-sim".format(
            abs(result.difference_pct),
            "longer" if result.astra_step_ns >= result.native_step_ns else "shorter",
        ),
        "prices: operations alone take {} {} there, a rank and step".format(
            format_ns(abs(price)), "more" if price >= 0 else "less"
        ),
        f"skew: {format_ns(early)} less a rank and step there, where no collective has a barrier",
        f"slots: {format_ns(slots)} a rank and step wait there for the only communication slot",
    ]
    computing = sum(row.compute_wait_ns for row in result.per_rank) / (ranks * steps)
    if computing:
        lines.append(
            f"queues: {format_ns(computing)} a rank and step, over all nodes, computations and "
            "gaps of several streams or threads wait for each other there"
        )
    if result.sharing_ns:
        lines.append(
            f"sharing: transfers slow each other by {format_ns(result.sharing_ns / ranks / steps)} "
            "a rank and step here, and never there"
        )
    if result.stretched_ns:
        lines.append(
            f"tails: {format_ns(result.stretched_ns / ranks / steps)} a rank and step are added "
            "here to those that grow with their transfers; there all stay as measured"
        )
    unpaid = [row for row in result.operations if row.unpaid]
    if unpaid:
        lines.append(
            f"tiers: {sum(row.count for row in unpaid)} operations cross a tier that ASTRA-sim "
            "does not charge them"
        )
    fast = (result.astra_step_ns - result.unconverted_step_ns) / max(result.astra_step_ns, 1)
    lines.append(
        f"GiB: GB/s are written as GiB/s; the same numbers taken over unchanged would make all "
        f"links 7.4 % faster there and its step {fast:.2%} shorter"
    )
    return lines
