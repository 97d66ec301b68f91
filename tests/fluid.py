"""Transfers that share ports, in plain Python and exact fractions, to hold the engine against.

The rules of jobs are those of `programs`; here transfers go through phases, each with a fixed time
and then work that ports carry. At every moment at which anything happens the rates of all
transfers at work are found from scratch, with all ports, by the definition of max-min fairness:
raise the bytes per nanosecond that every transfer moves through its busiest port together, and
settle whoever reaches its full rate or uses a port that is full. Nothing is kept between moments
but what is left of each piece of work.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st
from whatif.graph.columns import SYMMETRIC, Collective, EdgeKind
from whatif.simulator.ports import Ports, PortSets, Transfers
from whatif.simulator.pricing import Prices

from .programs import QUEUE, Job, needed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whatif.graph.columns import Flavour
    from whatif.graph.compress import CompressedGraph

Load = dict[int, Fraction]  # bytes per nanosecond through each port at full rate


@dataclass(frozen=True)
class Phase:
    """A fixed time and then work, which takes as long as it says at full rate."""

    fixed: Fraction
    work: Fraction = Fraction(0)
    load: Load = field(default_factory=dict)


@dataclass
class Traffic:
    """The transfers of a job: their phases, and the transfer of each communicating op."""

    capacity: list[Fraction]
    phases: list[list[Phase]]
    of_op: dict[int, int]

    def alone(self, transfer: int) -> Fraction:
        return sum((p.fixed + p.work for p in self.phases[transfer]), Fraction(0))


@dataclass
class Shared:
    """When everything happened; `transferred` is None for computation."""

    start: list[Fraction]
    release: list[Fraction | None]
    transferred: list[Fraction | None]
    end: list[Fraction]
    slowed: set[int]  # transfers that had to share


def fair_rates(at_work: Mapping[int, Load], capacity: list[Fraction]) -> dict[int, Fraction]:
    """Rate of each transfer at work, between 0 and 1."""
    rates: dict[int, Fraction] = {}
    while len(rates) < len(at_work):
        rising = {t: load for t, load in at_work.items() if t not in rates}
        used = [
            sum((load.get(q, Fraction(0)) * rates[t] for t, load in at_work.items() if t in rates))
            for q in range(len(capacity))
        ]
        grows = [
            sum(load.get(q, Fraction(0)) / max(load.values()) for load in rising.values())
            for q in range(len(capacity))
        ]
        level = min(
            [max(load.values()) for load in rising.values()]
            + [(c - u) / g for c, u, g in zip(capacity, used, grows, strict=True) if g]
        )
        full = {q for q, c in enumerate(capacity) if used[q] + level * grows[q] == c}
        for transfer, load in rising.items():
            if max(load.values()) == level or any(load.get(q) for q in full):
                rates[transfer] = level / max(load.values())
    carried = [
        sum(load.get(q, 0) * rates[t] for t, load in at_work.items()) for q in range(len(capacity))
    ]
    full = {q for q, most in enumerate(capacity) if carried[q] == most}
    assert all(amount <= most for amount, most in zip(carried, capacity, strict=True))
    assert all(rate == 1 or full & set(at_work[t]) for t, rate in rates.items())
    return rates


@dataclass
class _Flow:
    """A transfer under way."""

    phase: int
    until: Fraction  # end of the fixed part
    left: Fraction  # of the work


def execute_shared(
    job: Job, traffic: Traffic, scale: Mapping[Flavour, Fraction] | None = None
) -> Shared:
    """Run a job with transfers that share ports; `scale` multiplies durations of flavours."""
    ops = job.ops
    nothing: list[Fraction | None] = [None] * len(ops)
    ready, taken, start, release, over, end = (nothing.copy() for _ in range(6))
    flows: dict[int, _Flow] = {}
    finished: dict[int, Fraction] = {}
    moved: dict[int, Fraction] = defaultdict(Fraction)
    slowed: set[int] = set()
    now = Fraction(min(job.base))

    def moment_of(i: int, kind: EdgeKind) -> Fraction | None:
        return end[i] if kind == EdgeKind.END else start[i]

    def has_server(i: int) -> bool:
        if ops[i].lane != QUEUE or job.servers == 1:
            return True
        queue = [j for j, o in enumerate(ops) if (o.rank, o.lane) == (ops[i].rank, QUEUE)]
        busy = [j for j in queue if taken[j] is not None and end[j] is None]
        return len(busy) < job.servers and all(taken[j] is not None for j in queue if j < i)

    def next_moment(i: int) -> Fraction | None:
        """When the next thing happens to an op, as far as time alone decides it."""
        op = ops[i]
        if ready[i] is None:
            moments = [moment_of(d, kind) for d, kind, _ in op.deps]
            if None in moments:
                return None
            lags = [Fraction(lag) for _, _, lag in op.deps]
            return max(
                [m + lag for m, lag in zip(moments, lags, strict=True) if m is not None],
                default=Fraction(job.base[op.rank]),
            )
        if taken[i] is None:
            return now if has_server(i) else None
        if start[i] is None:
            return taken[i] + op.gap
        if op.coll == Collective.NONE:
            return start[i] + op.dur * Fraction((scale or {}).get(op.flavour, 1))
        if release[i] is None:
            return None if any(start[m] is None for m in needed(job, i)) else now
        if over[i] is None:
            return finished.get(traffic.of_op[i])
        return over[i] + op.tail_of(traffic.alone(traffic.of_op[i]))

    def happen(i: int) -> None:
        op = ops[i]
        if ready[i] is None:
            ready[i] = now
        elif taken[i] is None:
            taken[i] = now
        elif start[i] is None:
            start[i] = now
        elif op.coll == Collective.NONE:
            end[i] = now
        elif release[i] is None:
            release[i] = now
            transfer = traffic.of_op[i]
            if transfer not in flows and transfer not in finished:
                enter(transfer, 0)
        elif over[i] is None:
            over[i] = now
        else:
            end[i] = now

    def enter(transfer: int, number: int) -> None:
        flows.pop(transfer, None)
        if number == len(traffic.phases[transfer]):
            finished[transfer] = now
        else:
            phase = traffic.phases[transfer][number]
            flows[transfer] = _Flow(number, now + phase.fixed, phase.work)

    def load_of(transfer: int) -> Load:
        return traffic.phases[transfer][flows[transfer].phase].load

    while None in end:
        again = True
        while again:
            again = False
            for i in range(len(ops)):
                when = next_moment(i) if end[i] is None else None
                if when is not None and when <= now:
                    happen(i)
                    again = True
            for transfer, flow in list(flows.items()):
                if flow.until <= now and flow.left == 0:
                    enter(transfer, flow.phase + 1)
                    again = True
        at_work = {t: load_of(t) for t, flow in flows.items() if flow.until <= now}
        rates = {t: Fraction(1) for t in at_work}
        rates |= fair_rates({t: load for t, load in at_work.items() if load}, traffic.capacity)
        slowed |= {t for t, rate in rates.items() if rate < 1}
        moments = [next_moment(i) for i in range(len(ops)) if end[i] is None]
        moments += [now + flows[t].left / rate for t, rate in rates.items()]
        moments += [flow.until for flow in flows.values() if flow.until > now]
        coming = [m for m in moments if m is not None]
        assert coming or None not in end, "the job hangs"
        then = min(coming, default=now)
        for transfer, rate in rates.items():
            flows[transfer].left -= rate * (then - now)
            moved[transfer] += rate * (then - now)
        now = then
    for transfer in finished:
        assert moved[transfer] == sum(p.work for p in traffic.phases[transfer])
    return Shared([*map(Fraction, start)], release, over, [*map(Fraction, end)], slowed)  # type: ignore[arg-type]


def share_one(job: Job, index: int) -> bool:
    """Whether the members of an operation share one transfer, or have one each."""
    members = [job.ops[m] for m in job.ops[index].members]
    coll = members[0].coll
    return coll in SYMMETRIC or (
        coll == Collective.SEND_RECV and not any(op.eager for op in members)
    )


@st.composite
def traffics(draw: st.DrawFn, job: Job) -> Traffic:
    """Phases and ports for the transfers of a job; all of an operation take as long alone."""
    thirds = st.integers(1, 9).map(lambda k: Fraction(k, 3))
    capacity = draw(st.lists(thirds, min_size=1, max_size=3))
    loads = [
        st.integers(1, 4).map(lambda quarters, most=most: most * quarters / 4) for most in capacity
    ]
    load = st.sets(st.sampled_from(range(len(capacity))), min_size=1).flatmap(
        lambda ports: st.fixed_dictionaries({q: loads[q] for q in sorted(ports)})
    )
    fixed, work = st.integers(0, 5).map(Fraction), st.integers(0, 40).map(Fraction)
    phase = st.builds(Phase, fixed, work, st.one_of(load, load, load, st.just({})))
    phases_of = st.lists(phase, min_size=1, max_size=3)
    traffic = Traffic(capacity, [], {})
    for i, op in enumerate(job.ops):
        if op.coll == Collective.NONE or i in traffic.of_op:
            continue
        own = [op.members] if share_one(job, i) else [[m] for m in op.members]
        drawn = [draw(phases_of) for _ in own]
        longest = max(sum((p.fixed + p.work for p in phases), Fraction(0)) for phases in drawn)
        for members, phases in zip(own, drawn, strict=True):
            number = len(traffic.phases)
            traffic.phases.append(phases)
            rest = longest - traffic.alone(number)
            phases.append(Phase(rest))
            traffic.of_op |= dict.fromkeys(members, number)
    return traffic


def shared_prices(compressed: CompressedGraph, traffic: Traffic, node_of: list[int]) -> Prices:
    """What a network would say of this traffic; all that transfers cost is called base."""
    instances = compressed.instances
    node = compressed.node_of[np.array(node_of, dtype=np.int64)]
    transfer = np.full(compressed.graph.num_nodes, -1, dtype=np.int64)
    for op, number in traffic.of_op.items():
        transfer[node[op]] = number
    of_member = transfer[instances.node]
    alone = np.array([float(traffic.alone(t)) for t in range(len(traffic.phases))])
    total = np.zeros(len(instances))
    total[np.repeat(np.arange(len(instances)), np.diff(instances.ptr))] = alone[of_member]

    flat = [phase for phases in traffic.phases for phase in phases]
    loads: list[Load] = [{}]
    for phase in flat:
        if phase.load not in loads:
            loads.append(phase.load)
    capacity = np.array([float(most) for most in traffic.capacity])
    nothing = np.zeros((len(instances), 1))
    return Prices(
        tiers=("scaleup",),
        base_ns=total,
        endpoint_ns=np.zeros(len(instances)),
        latency_ns=nothing,
        bandwidth_ns=nothing,
        wire_bytes=nothing,
        messages=nothing,
        measured=np.zeros(len(instances), dtype=np.bool_),
        warnings=(),
        ports=Ports(
            capacity, np.zeros(len(capacity), np.int64), tuple(map(str, range(len(capacity))))
        ),
        sets=PortSets(
            ptr=np.cumsum([0, *map(len, loads)]),
            port=np.array([q for load in loads for q in load], dtype=np.int64),
            load_gb_s=np.array([float(x) for load in loads for x in load.values()]),
        ),
        transfers=Transfers(
            ptr=np.cumsum([0, *map(len, traffic.phases)]),
            phase_fixed_ns=np.array([float(p.fixed) for p in flat]),
            phase_work_ns=np.array([float(p.work) for p in flat]),
            phase_set=np.array([loads.index(p.load) for p in flat], dtype=np.int64),
            of_member=of_member,
        ),
    )


def without_ports(prices: Prices) -> Prices:
    """The same prices, paid whatever else is in flight."""
    return replace(prices, transfers=None)
