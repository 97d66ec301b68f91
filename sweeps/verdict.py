"""What sets a step, in plain words: sentences made from the numbers of an explanation.

Every sentence states what was counted or simulated; none guesses at a cause behind the numbers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ..base.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..simulator.results import Place, RankTime
    from .results import SimulateResult, Worth

# What kinds of segments of the critical path are together; all others are transfers.
_CLASSES = {
    "compute": "computation",
    "host": "host work",
    "copy": "memory copies",
    "gap": "gaps",
    "lag": "launch lags",
    "start_offset": "start offset",
}
_TRANSFERS = "transfers"

# Shares of the step, in percent: from what on one thing sets it, and from what on it is named.
_SETS_PCT = 50
_NAMED_PCT = 1

# A gain is said to fall short of its bound from this many percent of the step on.
_SHORT_PCT = 1

_MOST_NAMED = 3


def verdict(
    result: SimulateResult, places: Sequence[Place], resources: Sequence[Worth]
) -> list[str]:
    """Put an explanation into sentences.

    Parameters
    ----------
    result : SimulateResult
        The simulation.
    places : sequence of Place
        All places of its critical path.
    resources : sequence of Worth
        What each resource could give back.

    Returns
    -------
    list of str
        What sets the step first, then what no resource shrinks, what communication costs off the
        path, and what resources are worth.
    """
    step_ns = result.step_ns
    return [
        _what_sets_it(places, step_ns),
        *_what_stays(places, step_ns),
        *_communication(result.per_rank, places, step_ns),
        *_worth(resources),
    ]


def _what_sets_it(places: Sequence[Place], step_ns: int) -> str:
    classes = _shares((_class(place), place.time_ns) for place in places)
    name, time_ns = classes[0]
    if time_ns / step_ns * 100 < _SETS_PCT:
        parts = [f"{name} {_share(ns, step_ns)}" for name, ns in _named(classes, step_ns)]
        return f"No one thing sets the step: the critical path is {_listed(parts)}."
    owners = _shares((_owner(place), place.time_ns) for place in places if _class(place) == name)
    of_path = f"{format_ns(time_ns)} ({_share(time_ns, step_ns)}) of the critical path"
    if len(owners) == 1:
        return f"The {name} of {owners[0][0]} {_sets(name)} the step: {of_path}."
    parts = [f"{owner}: {_share(ns, step_ns)}" for owner, ns in owners[:_MOST_NAMED]]
    rest = owners[_MOST_NAMED:]
    if rest:
        parts.append(f"{len(rest)} more: {_share(sum(ns for _, ns in rest), step_ns)}")
    return f"{name.capitalize()} {_sets(name)} the step: {of_path} ({', '.join(parts)})."


def _sets(name: str) -> str:
    return "set" if name.endswith("s") else "sets"


def _what_stays(places: Sequence[Place], step_ns: int) -> list[str]:
    """What is on the path and belongs to no resource."""
    sentences = []
    for kind, text in (
        ("start_offset", "pass until {owner} begins its first step, later than the first rank"),
        ("gap", "are gaps of {owner}: time that no dependency explains"),
        ("sharing", "are added to transfers of {owner} by others in flight on their ports{beside}"),
    ):
        of_kind = [place for place in places if place.kind == kind]
        for owner, ns in _named(_shares((_owner(p), p.time_ns) for p in of_kind), step_ns):
            # The places come largest first.
            met = next((p.beside for p in of_kind if _owner(p) == owner and p.beside), None)
            said = text.format(owner=owner, beside=f", mostly {met}" if met else "")
            sentences.append(f"{format_ns(ns)} ({_share(ns, step_ns)}) {said}.")
    return sentences


def _communication(
    per_rank: Sequence[RankTime], places: Sequence[Place], step_ns: int
) -> list[str]:
    exposed = sum(rank.exposed_comm_ns for rank in per_rank) // len(per_rank)
    wait = sum(rank.wait_ns for rank in per_rank) // len(per_rank)
    on_path = sum(place.time_ns for place in places if _class(place) == _TRANSFERS)
    if max(exposed, wait) / step_ns * 100 < _NAMED_PCT:
        return []
    sentence = (
        f"The average rank spends {format_ns(exposed)} ({_share(exposed, step_ns)}) of the step in "
        f"exposed transfers and waits {format_ns(wait)} ({_share(wait, step_ns)}) for other ranks; "
        f"transfers are {format_ns(on_path)} ({_share(on_path, step_ns)}) of the critical path."
    )
    return [sentence]


def _worth(resources: Sequence[Worth]) -> list[str]:
    sentences = []
    for one in resources:
        if one.irrelevant or one.utility_pct is None:
            continue
        text = f"Twice as good, {one.resource} {_changes(one.utility_pct)}"
        if one.unlimited_utility_pct is not None:
            change = _changes(one.unlimited_utility_pct)
            text += f"; unlimited, {change.removeprefix(f'{_verb(one.utility_pct)} the step ')}"
        sentences.append(f"{text}.")
        if one.bound_pct is not None and one.bound_pct - one.utility_pct >= _SHORT_PCT:
            sentences.append(
                f"What {one.resource} owns of the path would allow {one.bound_pct:.2f} % at twice "
                "as good, but then another chain of causes is the longest."
            )
    nothing = [one.resource for one in resources if one.irrelevant]
    if nothing:
        sentences.append(
            f"However good, {_listed(nothing, 'or')} alone changes the step by less than 0.1 %."
        )
    return sentences


def _changes(utility_pct: float) -> str:
    return f"{_verb(utility_pct)} the step by {abs(utility_pct):.2f} %"


def _verb(utility_pct: float) -> str:
    return "lengthens" if utility_pct < 0 else "shortens"


def _class(place: Place) -> str:
    return _CLASSES.get(place.kind, _TRANSFERS)


def _owner(place: Place) -> str:
    return f"rank {place.rank}" if place.group is None else f"group {place.group}"


def _shares(times: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Add up by name, largest first."""
    total: dict[str, int] = defaultdict(int)
    for name, ns in times:
        total[name] += ns
    return sorted(total.items(), key=lambda item: -item[1])


def _named(shares: Sequence[tuple[str, int]], step_ns: int) -> list[tuple[str, int]]:
    return [(name, ns) for name, ns in shares if ns / step_ns * 100 >= _NAMED_PCT][:_MOST_NAMED]


def _share(ns: int, step_ns: int) -> str:
    return f"{ns / step_ns * 100:.2f} %"


def _listed(parts: Sequence[str], word: str = "and") -> str:
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {word} {parts[-1]}"
