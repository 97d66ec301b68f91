"""A network fitted to benchmark tables: the speeds at which the simulator gives their times.

The shape of the network, its nominal bandwidths and the algorithms of its collectives come from a
preset; base, latency, efficiency and protocols of each tier are moved to where the prices of
`simulator` come closest to the measured times. How rows are priced is in `table_model`, how they
are read in `tables`.

How
---
Residuals are log(model / measured) of each row, so that small and large messages count alike.
Bounded least squares with a soft-l1 loss keep rows that no model of this kind describes from
bending the rest. Weak priors hold each value near the preset, within a factor e or so; what the
rows do not determine stays there and is named. The problem has valleys (two protocols may
exchange roles), so it is solved from several starts, always the same ones.

Libraries move small messages with other protocols than large ones, and no single latency fits
both ends of a table. The names, the order and the bounds of the protocols are those of NCCL [1]_:
LL sends a flag with every word, so it carries at most half of the wire; LL128 120 bytes of 128;
Simple all. Each adds something of its own to the base of the tier.

Where it pays, a collective gets protocols of its own: a library may implement it another way
(all-to-all and send/recv are point-to-point messages with few channels each). It pays where the
Bayesian information criterion says so with what is called very strong evidence [2]_. In the same
way is decided whether all-reduces may use a tree.

A rank also handles the part of the data that it keeps: in all-to-all it copies it, and a ring
that passes n parts on has a step in which nothing comes in and one in which nothing goes out, of
which the pipeline hides only a part. `own_share` is what that costs, over what sending the part
would cost: an all-gather of parts of S bytes takes (n - 1 + own_share) S/B. Without it the
bandwidth of two ranks and that of eight differ by a third in the same table.

In-switch reduction is an algorithm with the bytes S (1 + 1/n) through each port, and a latency
and efficiency of its own; see `simulator.algorithms`. The bus bandwidth that benchmarks print
assumes a ring, and so may exceed the wire.

What a table cannot tell
------------------------
The endpoint cost of a byte and the time of a byte on the wire grow together in every row, so the
fit keeps the endpoint cost of the preset and reports how large it could be: all that the wire
takes longer than at its nominal bandwidth.

References
----------
.. [1] NVIDIA/nccl 5067397c, src/graph/tuning.cc: latencies per message of rings are 0.6, 1.9 and
   3.4 us on NVLink and 2.7, 4 and 14 us between nodes; bandwidths are 0.5, 0.92 and 1 of a link;
   bases are 6.6, 14 and 8.4 us.
.. [2] R. E. Kass, A. E. Raftery, "Bayes factors", J. American Statistical Association 90(430),
   1995: a difference of the criterion above 10.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from ..base.errors import TraceError
from ..base.units import format_bytes
from ..simulator.network import Protocol
from .table_model import Knobs, PricedRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..graph.columns import Collective
    from ..simulator.network import Network, Tier
    from .table_model import Prices
    from .tables import TableRow

    Float = NDArray[np.float64]

#: Relative accuracy that a row is trusted to: the same operation measured twice (in place and
#: not, or with elements of another type) differs by about as much.
ACCURACY = 0.05

#: Residual of a row (log of model over measured) beyond which its pull no longer grows.
OUTLIER = 0.1

#: Share of the knowledge of a value that must come from the rows for it to count as fitted.
DETERMINED = 0.5

#: How much smaller the information criterion must be for more values or a tree to be taken.
EVIDENCE = 10.0

#: Algorithms of NCCL and RCCL, for networks that name none; in-switch reduction where the
#: network has it. All-reduces may also use a tree: whether they do is fitted.
LIBRARY_ALGORITHMS: dict[str, str | list[str]] = {
    "all-reduce": ["ring", "in-switch"],
    "all-gather": ["ring"],
    "reduce-scatter": ["ring"],
    "broadcast": ["ring"],
    "reduce": ["ring"],
    "all-to-all": ["direct"],
}

#: Sizes, as the benchmark counts them, before which a band ends, and its name.
BANDS = (
    (float(1 << 16), "below 64 KiB"),
    (float(1 << 20), "64 KiB to 1 MiB"),
    (float(1 << 26), "1 to 64 MiB"),
    (math.inf, "64 MiB and above"),
)

# Starts of a fit, and how often it is tried to leave the best end of them; a trial, which only
# asks whether more values are worth it, begins where the fit without them ended.
_STARTS, _HOPS, _TRIAL_HOPS = 12, 20, 6
_COARSE, _FINE = 1e-4, 1e-8
_LEAST_EFFICIENCY = 1e-3
_LEAST_LATENCY_NS = 10.0  # light in a few metres of cable


class _Form(NamedTuple):
    """What is known of a protocol beforehand, relative to the tier."""

    name: str
    latency: float
    efficiency: float
    most: float  # efficiency


_LL = _Form("LL", 1.0, 0.5, 0.5)
_LL128 = _Form("LL128", 2.0, 0.92, 120 / 128)
_SIMPLE = _Form("Simple", 5.0, 1.0, 1.0)
_MORE_BASE_NS = 3000.0
_COMMON = (_LL, _LL128, _SIMPLE)
_OWN = (_LL, _SIMPLE)


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """How well a network explains one collective in one band of sizes.

    Attributes
    ----------
    collective : str
        Label of the `Collective`.
    band : str
        Name of the band; sizes are as the benchmark counts them.
    count : int
        Rows.
    median_pct : float
        Median of the absolute errors.
    worst_pct : float
        The error that is largest in absolute value: model over measured, minus 1.
    worst : TableRow
        The row that it is of.
    """

    collective: str
    band: str
    count: int
    median_pct: float
    worst_pct: float
    worst: TableRow


@dataclass(frozen=True)
class TableFit:
    """A network fitted to a table.

    Attributes
    ----------
    network : Network
        What simulations take; its `assumptions` are those of the preset and `notes`.
    notes : tuple of str
        What was fitted to what, and what the rows do not determine.
    own_protocols : tuple of Collective
        Collectives that have protocols of their own.
    most_endpoint_ns_per_byte : tuple of float
        How much of each tier's time per byte may be endpoint cost.
    hosts_per_domain : int
        As given.
    """

    network: Network
    notes: tuple[str, ...]
    own_protocols: tuple[Collective, ...]
    most_endpoint_ns_per_byte: tuple[float, ...]
    hosts_per_domain: int

    def predict_ns(self, rows: Sequence[TableRow]) -> Float:
        """Time of rows, fitted or not; see the function."""
        return predict_ns(rows, self.network, hosts_per_domain=self.hosts_per_domain)

    def residuals(self, rows: Sequence[TableRow]) -> tuple[Residual, ...]:
        """Errors for rows, fitted or not, by collective and band of sizes, in their order."""
        return _residuals(rows, self.predict_ns(rows))


def predict_ns(rows: Sequence[TableRow], network: Network, *, hosts_per_domain: int = 1) -> Float:
    """Time that a network gives for the collectives of a table.

    Parameters
    ----------
    rows : sequence of TableRow
        Of two or more ranks each.
    network : Network
        Any that the ranks fit.
    hosts_per_domain : int
        As for `fit_tables`.

    Returns
    -------
    float64, shape (R,)

    Raises
    ------
    TraceError
        If a row is of a single rank.
    NetworkError
        If the ranks of a row do not fit the network.
    """
    _check_ranks(rows)
    return PricedRows(rows, network, hosts_per_domain).choose(network)[0]


def _residuals(rows: Sequence[TableRow], predicted_ns: Float) -> tuple[Residual, ...]:
    error = (predicted_ns / np.array([row.time_ns for row in rows]) - 1) * 100
    found: dict[tuple[Collective, int], list[int]] = {}
    for number, row in enumerate(rows):
        band = next(i for i, (end, _) in enumerate(BANDS) if row.benchmark_bytes < end)
        found.setdefault((row.collective, band), []).append(number)
    residuals = []
    for (coll, band), index in sorted(found.items()):
        here = error[index]
        at = int(np.argmax(np.abs(here)))
        residuals.append(
            Residual(
                collective=coll.label,
                band=BANDS[band][1],
                count=len(index),
                median_pct=float(np.median(np.abs(here))),
                worst_pct=float(here[at]),
                worst=rows[index[at]],
            )
        )
    return tuple(residuals)


def fit_tables(rows: Sequence[TableRow], preset: Network, *, hosts_per_domain: int = 1) -> TableFit:
    """Fit the speeds of a network to measured collectives of one machine.

    Parameters
    ----------
    rows : sequence of TableRow
        Of two or more ranks each.
    preset : Network
        Tiers and shape of the machine; its speeds are where the fit starts, and what the rows
        do not determine stays near them. Protocols of its own are replaced. Where it names no
        algorithms those of NCCL are used.
    hosts_per_domain : int
        Hosts that share a scale-up domain, where rows say how many hosts they ran on: 18 for a
        rack of 72 in hosts of 4.

    Returns
    -------
    TableFit

    Raises
    ------
    TraceError
        If there are no rows, or if a row is of a single rank.
    NetworkError
        If the ranks of a row do not fit the preset.
    """
    if not rows:
        raise TraceError("there are no rows to fit a network to")
    _check_ranks(rows)
    networks = [preset]
    if preset.algorithm is None and not preset.algorithms:
        tree = {**LIBRARY_ALGORITHMS, "all-reduce": ["ring", "tree", "in-switch"]}
        networks = [
            msgspec.structs.replace(preset, algorithms=algorithms)
            for algorithms in (LIBRARY_ALGORITHMS, tree)
        ]
    problems = [_Problem(PricedRows(rows, n, hosts_per_domain), n, ()) for n in networks]
    best = _best([problem.solve() for problem in problems])
    while True:
        rest = sorted({row.collective for row in rows} - set(best.problem.own))
        if len(rest) == 1:
            return _result(best, preset, hosts_per_domain)
        trials = [best.problem.with_own(coll).solve(best, trial=True) for coll in rest]
        better = _best([best, *trials])
        if better is best:
            return _result(best, preset, hosts_per_domain)
        best = better.problem.solve(better)


def _best(solutions: Sequence[_Solution]) -> _Solution:
    """Take the first solution unless there is strong evidence for another."""
    best = min(solutions, key=lambda one: one.criterion)
    return best if best.criterion < solutions[0].criterion - EVIDENCE else solutions[0]


def _check_ranks(rows: Sequence[TableRow]) -> None:
    alone = sum(row.ranks < 2 for row in rows)
    if alone:
        raise TraceError(f"{alone} of {len(rows)} rows are of a single rank, which uses no network")


def _families(rows: Sequence[TableRow], own: Sequence[Collective]) -> NDArray[np.int64]:
    """Which list of protocols each row uses: 0 the common one."""
    number = {coll: index + 1 for index, coll in enumerate(own)}
    return np.array([number.get(row.collective, 0) for row in rows], dtype=np.int64)


_Kind = Literal[
    "base",
    "added base",
    "latency",
    "efficiency",
    "switch latency",
    "switch efficiency",
    "own share",
]


class _Value(NamedTuple):
    """One of the values that are fitted, as the logarithm of its factor over `prior`.

    The own share is not a factor: it is `prior` plus what is fitted.
    """

    kind: _Kind
    prior: float
    width: float  # standard deviation of the prior
    least: float
    most: float
    tier: int = 0
    family: int = 0
    protocol: int = 0

    def at(self, x: float) -> float:
        return self.prior + x if self.kind == "own share" else self.prior * math.exp(x)

    def bounds(self) -> tuple[float, float]:
        """Smallest and largest x."""
        if self.kind == "own share":
            return self.least - self.prior, self.most - self.prior
        return math.log(self.least / self.prior), math.log(self.most / self.prior)


class _Problem:
    """Rows, the values that are to explain them, and how to find these.

    Parameters
    ----------
    priced : PricedRows
        The rows.
    network : Network
        The preset.
    own : tuple of Collective
        Collectives with protocols of their own.
    """

    def __init__(self, priced: PricedRows, network: Network, own: tuple[Collective, ...]) -> None:
        self.priced, self.network, self.own = priced, network, own
        self.family = _families(priced.rows, own)
        self.forms = [_COMMON, *[_OWN] * len(own)]
        self.values = self._values()
        self._last: tuple[Float, Prices] | None = None

    def with_own(self, coll: Collective) -> _Problem:
        """Make the same problem with protocols of its own for one more collective."""
        return _Problem(self.priced, self.network, (*self.own, coll))

    def _values(self) -> list[_Value]:
        values = []
        for index, tier in enumerate(self.network.tiers):
            latency = max(tier.latency_ns, _LEAST_LATENCY_NS)
            if (self.priced.outermost == index).any():
                base = max(abs(tier.base_ns), latency)
                values.append(_Value("base", base, 1.5, base * 1e-6, base * 1e6, index))
            for family, forms in enumerate(self.forms):
                if not self.priced.tiers[self.family == family, index].any():
                    continue
                outermost = (self.priced.outermost[self.family == family] == index).any()
                for protocol, form in enumerate(forms):
                    where = (index, family, protocol)
                    if outermost and (family or protocol):
                        values.append(_Value("added base", _MORE_BASE_NS, 1.5, 1.0, 1e9, *where))
                    slow, share = latency * form.latency, tier.efficiency * form.efficiency
                    values += [
                        _Value("latency", slow, 1.0, _LEAST_LATENCY_NS, slow * 1e6, *where),
                        _Value("efficiency", share, 1.0, _LEAST_EFFICIENCY, form.most, *where),
                    ]
            if self.priced.may_reduce[:, index].any():
                slow = tier.in_network_latency_ns or latency * _SIMPLE.latency
                share = tier.in_network_efficiency or tier.efficiency
                known = tier.in_network_latency_ns is not None
                values += [
                    _Value(
                        "switch latency",
                        slow,
                        0.3 if known else 1.0,
                        _LEAST_LATENCY_NS,
                        slow * 1e6,
                        index,
                    ),
                    _Value("switch efficiency", share, 0.15, _LEAST_EFFICIENCY, 1.0, index),
                ]
        values.append(_Value("own share", 0.5, 0.5, 0.0, 1.0))
        return values

    def knobs(self, x: Float) -> Knobs:
        """Speeds of the tiers; those that are not fitted are as in the preset."""
        tiers = self.network.tiers
        count, most = len(self.forms), len(_COMMON)
        gb_s = np.array([tier.effective_gb_s for tier in tiers], dtype=np.float64)
        slow = np.array([tier.latency_ns for tier in tiers], dtype=np.float64)
        base = np.array([tier.base_ns for tier in tiers], dtype=np.float64)
        knobs = Knobs(
            base_ns=np.tile(base, (count, most, 1)),
            latency_ns=np.tile(slow, (count, most, 1)),
            gb_s=np.tile(gb_s, (count, most, 1)),
            in_switch_ns=slow.copy(),
            in_switch_gb_s=gb_s.copy(),
            own_share=self.values[-1].at(float(x[-1])),
        )
        # The base of a tier comes before what protocols add to it.
        for one, factor in zip(self.values[:-1], x[:-1].tolist(), strict=True):
            value, nominal = one.at(factor), tiers[one.tier].bandwidth_gb_s
            # A list with fewer protocols than the common one repeats its last.
            last = one.protocol == len(self.forms[one.family]) - 1
            at = slice(one.protocol, None if last else one.protocol + 1)
            if one.kind == "base":
                knobs.base_ns[:, :, one.tier] = value
            elif one.kind == "added base":
                knobs.base_ns[one.family, at, one.tier] += value
            elif one.kind == "latency":
                knobs.latency_ns[one.family, at, one.tier] = value
            elif one.kind == "efficiency":
                knobs.gb_s[one.family, at, one.tier] = nominal * value
            elif one.kind == "switch latency":
                knobs.in_switch_ns[one.tier] = value
            else:
                knobs.in_switch_gb_s[one.tier] = nominal * value
        return knobs

    def price(self, x: Float) -> Prices:
        # Residuals and slopes are asked for at the same place, one after the other.
        if self._last is None or not np.array_equal(self._last[0], x):
            self._last = x.copy(), self.priced.price(self.knobs(x), self.family)
        return self._last[1]

    def errors(self, x: Float) -> Float:
        """Robust residuals of the rows, shape (R,), in units of their accuracy."""
        return _robust(np.log(self.price(x).time_ns / self.priced.measured_ns))[0] / ACCURACY

    def slopes(self, x: Float) -> Float:
        """Derivatives of `errors`, shape (R, V)."""
        prices = self.price(x)
        slope = _robust(np.log(prices.time_ns / self.priced.measured_ns))[1] / ACCURACY
        columns: list[NDArray[np.floating]] = []
        column: NDArray[np.floating]
        for one, factor in zip(self.values, x.tolist(), strict=True):
            here = (self.family == one.family) & (prices.protocol == one.protocol)
            if one.kind == "own share":
                column = prices.per_share_ns
            elif one.kind == "base":
                column = one.at(factor) * prices.has_base[:, one.tier]
            elif one.kind == "added base":
                column = one.at(factor) * (here & prices.has_base[:, one.tier])
            elif one.kind == "switch latency":
                column = prices.in_switch_latency_ns[:, one.tier]
            elif one.kind == "switch efficiency":
                column = -prices.in_switch_bandwidth_ns[:, one.tier]
            else:
                paid = prices.latency_ns if one.kind == "latency" else -prices.bandwidth_ns
                column = np.where(here, paid[:, one.tier], 0.0)
            columns.append(column)
        scaled: Float = np.column_stack(columns) * (slope / prices.time_ns)[:, np.newaxis]
        return scaled

    def solve(self, near: _Solution | None = None, *, trial: bool = False) -> _Solution:
        """Find the values, from where another problem ended and from other starts."""
        width = np.array([one.width for one in self.values])
        lower, upper = np.array([one.bounds() for one in self.values]).T
        random = np.random.default_rng(0)

        def residuals(x: Float) -> Float:
            return np.concatenate([self.errors(x), x / width])

        def jacobian(x: Float) -> Float:
            return np.concatenate([self.slopes(x), np.diag(1 / width)])

        def end(start: Float, tolerance: float) -> tuple[float, Float]:
            inside = np.clip(start, lower + 1e-6, upper - 1e-6)
            found = least_squares(
                residuals,
                inside,
                jac=jacobian,
                bounds=(lower, upper),
                ftol=tolerance,
                max_nfev=200,
            )
            return float(found.cost), np.asarray(found.x, dtype=np.float64)

        starts = [self._origin(near)]
        if not trial:
            starts += [random.normal(0, 0.6, len(width)) for _ in range(_STARTS - 1)]
        cost, x = min((end(start, _COARSE) for start in starts), key=lambda one: one[0])
        for _ in range(_TRIAL_HOPS if trial else _HOPS):
            moved = np.where(random.random(len(x)) < 0.4, random.normal(0, 0.7 * width), 0.0)
            other_cost, other_x = end(x + moved, _COARSE)
            if other_cost < cost:
                cost, x = other_cost, other_x
        return _Solution(self, end(x, _FINE)[1])

    def _origin(self, near: _Solution | None) -> Float:
        """Where a smaller problem ended, or the priors."""
        origin = np.zeros(len(self.values))
        if near is not None:
            known = dict(zip(map(near.problem.key, near.problem.values), near.x, strict=True))
            for index, one in enumerate(self.values):
                kind, tier, family, form = self.key(one)
                # Protocols that a collective gets for its own begin as the common ones.
                common = known.get((kind, tier, 0, form), 0.0)
                origin[index] = known.get((kind, tier, family, form), common)
        return origin

    def key(self, value: _Value) -> tuple[str, int, int, str]:
        """Tell values apart in a way that larger problems share."""
        return value.kind, value.tier, value.family, self.forms[value.family][value.protocol].name


def _robust(error: Float) -> tuple[Float, Float]:
    """Residuals whose square is the soft-l1 loss of the errors, and their derivatives."""
    root = np.sqrt(1 + (error / OUTLIER) ** 2)
    return error * np.sqrt(2 / (1 + root)), np.sqrt((1 + root) / 2) / root


@dataclass(frozen=True)
class _Solution:
    """Values found for a problem."""

    problem: _Problem
    x: Float

    @property
    def criterion(self) -> float:
        """Bayesian information criterion; smaller is better."""
        rows = len(self.problem.priced)
        loss = float((self.problem.errors(self.x) ** 2).mean())
        return rows * math.log(max(loss, 1e-12)) + len(self.x) * math.log(rows)

    def from_rows(self) -> Float:
        """For each value the share of what is known about it that comes from the rows."""
        width = np.array([one.width for one in self.problem.values])
        slopes = self.problem.slopes(self.x) * width
        # The prior adds the identity, so this is always invertible.
        known = np.linalg.inv(slopes.T @ slopes + np.eye(len(width)))
        share: Float = 1 - np.diag(known)
        return share


def _result(solution: _Solution, preset: Network, hosts_per_domain: int) -> TableFit:
    """Put the values into the tiers, and say what they rest on."""
    problem = solution.problem
    knobs = problem.knobs(solution.x)
    names = _names(problem, knobs)
    tiers = [_tier(problem, knobs, names, index) for index in range(len(preset.tiers))]
    notes = _notes(solution, knobs, names)
    network = msgspec.structs.replace(
        problem.network,
        tiers=tiers,
        own_share=float(knobs.own_share),
        assumptions=[*preset.assumptions, *notes],
    )
    spare = [
        max(0.0, 1 / tier.effective_gb_s - 1 / tier.bandwidth_gb_s) + tier.endpoint_ns_per_byte
        for tier in tiers
    ]
    return TableFit(
        network=network,
        notes=tuple(notes),
        own_protocols=problem.own,
        most_endpoint_ns_per_byte=tuple(spare),
        hosts_per_domain=hosts_per_domain,
    )


def _names(problem: _Problem, knobs: Knobs) -> list[list[str]]:
    """Names of the protocols of every list: the slowest is LL, whichever it was to begin with."""
    names = []
    for family, forms in enumerate(problem.forms):
        innermost = next(
            one.tier for one in problem.values if one.family == family and one.kind == "latency"
        )
        order = np.argsort(knobs.gb_s[family, : len(forms), innermost], kind="stable")
        prefix = f"{problem.own[family - 1].label} " if family else ""
        named = [""] * len(forms)
        for form, protocol in zip(forms, order.tolist(), strict=True):
            named[protocol] = prefix + form.name
        names.append(named)
    return names


def _tier(problem: _Problem, knobs: Knobs, names: Sequence[Sequence[str]], index: int) -> Tier:
    """Put the fitted values into a tier; one that no row uses stays as it is."""
    tier = problem.network.tiers[index]
    places = [
        (one.family, one.protocol)
        for one in problem.values
        if one.tier == index and one.kind == "latency"
    ]
    if not places:
        return tier
    top = max(float(knobs.gb_s[*place, index]) for place in places)
    places.sort(key=lambda place: (place[0], float(knobs.gb_s[*place, index])))
    base, latency = (float(of[*places[0], index]) for of in (knobs.base_ns, knobs.latency_ns))
    protocols = [
        Protocol(
            name=names[family][protocol],
            latency=float(knobs.latency_ns[family, protocol, index]) / latency,
            efficiency=float(knobs.gb_s[family, protocol, index]) / top,
            base_ns=float(knobs.base_ns[family, protocol, index]) - base,
            collectives=[problem.own[family - 1].label] if family else [],
        )
        for family, protocol in places
    ]
    changes: dict[str, object] = {
        "base_ns": base,
        "latency_ns": latency,
        "efficiency": min(top / tier.bandwidth_gb_s, 1.0),
        "protocols": protocols,
    }
    if problem.priced.may_reduce[:, index].any():
        share = float(knobs.in_switch_gb_s[index]) / tier.bandwidth_gb_s
        changes["in_network_efficiency"] = min(share, 1.0)
        changes["in_network_latency_ns"] = float(knobs.in_switch_ns[index])
    source = f"{', '.join(changes)}: fitted to measured collectives; {tier.source}"
    return msgspec.structs.replace(tier, **changes, source=source.removesuffix("; "))


def _notes(solution: _Solution, knobs: Knobs, names: Sequence[Sequence[str]]) -> list[str]:
    """Say in plain sentences what the values rest on."""
    problem = solution.problem
    rows = problem.priced.rows
    sizes = [row.benchmark_bytes for row in rows]
    share = solution.from_rows()
    doubt = "" if share[-1] >= DETERMINED else ", which the measured times hardly determine"
    machines = ", ".join(sorted({row.machine for row in rows}))
    ranks = ", ".join(map(str, sorted({row.ranks for row in rows})))
    span = f"{format_bytes(min(sizes))} to {format_bytes(max(sizes))}"
    notes = [
        f"speeds are fitted to {len(rows)} collectives of {span} on {machines} over {ranks} ranks",
        f"a part that a rank keeps costs {knobs.own_share:.2f} of sending it (own_share){doubt}",
    ]
    if problem.own:
        labels = ", ".join(coll.label for coll in problem.own)
        notes.append(f"protocols of their own, because the measured times ask for it: {labels}")
    for index, name in enumerate(problem.network.tier_names):
        here = [pair for pair in zip(problem.values, share, strict=True) if pair[0].tier == index]
        here = [(one, known) for one, known in here if one.kind != "own share"]
        unknown = [_describe(one, names) for one, known in here if known < DETERMINED]
        if not here:
            notes.append(f"{name}: no measured collective uses it; all of it as in the preset")
        elif unknown:
            notes.append(
                f"{name}: the measured times do not determine {', '.join(unknown)}; near the "
                "preset, with the ratios of the protocols of NCCL"
            )
    return notes


def _describe(value: _Value, names: Sequence[Sequence[str]]) -> str:
    if value.kind in ("added base", "latency", "efficiency"):
        return f"{value.kind} of {names[value.family][value.protocol]}"
    return value.kind
