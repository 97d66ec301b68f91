"""What a conversion of XLA profiles saw, used, took for granted and left out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ...graph.coverage import Dropped, Inference
from ..reporting import report_matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.coverage import Coverage
    from ..match import Matched
    from .events import Profile
    from .job import Executed


def report_conversion(
    coverage: Coverage,
    profiles: Sequence[Profile],
    ranks: Sequence[Executed],
    matched: Matched,
    until_needed: int,
) -> None:
    """Report what became of everything.

    Parameters
    ----------
    coverage : Coverage
        Extended.
    profiles : sequence of Profile
        What was read.
    ranks : sequence of Executed
        What became of it on each device.
    matched : Matched
        The communication, joined.
    until_needed : int
        Transfers that are taken to have lasted until they were needed.
    """
    dropped: Counter[tuple[str, str]] = Counter()
    evidence: Counter[str] = Counter()
    assumed: Counter[str] = Counter()
    for profile in profiles:
        coverage.events_seen += profile.events_seen
        dropped.update(profile.skipped)
        coverage.warnings += [f"{profile.path.name}: {text}" for text in profile.warnings]
    for rank in ranks:
        for op in rank.chip.ops:
            coverage.collectives_seen += 1
            evidence[op.evidence] += 1
            if op.size_bytes >= 0:
                coverage.bytes_known += op.size_bytes
            else:
                coverage.bytes_unknown_nodes += 1
        assumed += rank.chip.assumed
        assumed += rank.job.meanings.doubts
        if rank.chip.alone:
            what = "communication of a device with itself"
            dropped[what, "moves no data: kept as computation"] += rank.chip.alone
        for leaves in rank.found:
            used = sum(1 for leaf in leaves.leaves if rank.step_of[leaf.run] >= 0)
            coverage.events_used += used
            dropped["events of runs", "that are left out"] += len(leaves.leaves) - used
            dropped[
                "events of loops, calls and what else contains others",
                "what they contain is counted",
            ] += leaves.containers
            dropped["events inside communication", "parts of it"] += leaves.hidden
            assumed["events outside every run of a program: taken as of the run before"] += (
                leaves.outside
            )
            assumed["events without a name: taken as computation"] += leaves.unnamed
        assumed["operations whose end was not recorded: until the end of their run"] += (
            rank.work.unended
        )
        assumed["ends of operations whose start was not recorded: kept as gaps"] += (
            rank.work.unstarted
        )
        outside = sum(1 for run in rank.job.runs if run.kept) - len(
            {rank.work.leaves[i].run for i in range(len(rank.work.leaves))}
        )
        dropped["runs of programs", "without any operation recorded"] += max(outside, 0)
    coverage.inferred += [
        Inference("collective type, size and group", count, text)
        for text, count in sorted(evidence.items())
        if text not in ("HLO text", "Hlo Proto")
    ]
    if until_needed:
        assumed["transfers that nobody waited for: until they were needed"] += until_needed
    coverage.warnings += [
        f"{count} {text}; if it communicates, no other network changes what it takes"
        for text, count in sorted(assumed.items())
        if count and text.endswith(": taken as computation")
    ]
    coverage.assumed += [f"{count} {text}" for text, count in sorted(assumed.items()) if count]
    coverage.dropped += [
        Dropped(what, count, why) for (what, why), count in sorted(dropped.items()) if count
    ]
    report_matches(coverage, matched)
    if not coverage.collectives_seen:
        coverage.warnings.append("no communication between devices in this trace")
