"""What streams and the host waited for where the trace does not say so.

The runtime's calls show that some stream was made to wait, or that the host waited, but not for
which event. Three kinds of evidence, taken together over all ranks and steps that run the same
program (`calls.Place`), tell:

- a wait in the host scope that launches a collective is that of the collective's stream, and one in
  the scope of ``Work.wait()`` is for a collective;
- a kernel that nothing else explains and that starts just as something ends on another stream
  waited for that; a synchronisation that returns just as something ends waited for that;
- what ended only after the kernel started (or the call returned) cannot be what was waited for.

A wait that held nothing up on one rank may have on another or in another step: what was seen at
one place holds at the same place everywhere. Where nothing was seen anywhere, a wait that follows
a collective without a launch in between is for that one, and else collectives are waited for in
the order of their issue. How often that had to be assumed is counted.

What then starts just as something on another stream ends, and for no other reason, waited for that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .calls import OrderingCall, Place, What
from .names import Call
from .streams import StreamWait

if TYPE_CHECKING:
    from .comms import Comms
    from .device import Device
    from .events import KinetoTrace

#: A kernel that starts within this of another's end is taken to have waited for it, if nothing
#: else explains its start; so is a synchronisation that returns within this of it.
BOUND_NS = 10_000
#: A start is explained by its stream or launch if it comes within this after them.
EXPLAINED_NS = 3_000
#: How far a device clock may be off the host's within one trace before a recorded end is
#: impossible: device times are converted by the driver and round to microseconds.
CLOCK_NS = 2_000
#: Events of a stream, last recorded first, that a stream or the host may have been waiting for.
STREAM_CHOICES, HOST_CHOICES = 64, 512
#: Times that the evidence of all ranks is gathered anew, as what is waited for becomes clearer.
ROUNDS = 3


class Target(NamedTuple):
    """What a wait may be for, in terms that hold on all ranks and steps of a program.

    Attributes
    ----------
    program, thread, number : int
        Place of the call that recorded the event, or -1 and the stream for a stream's latest.
    steps_ago : int
        Steps between that call and the wait.
    """

    program: int
    thread: int
    number: int
    steps_ago: int


@dataclass
class Evidence:
    """What all ranks and steps show of the waits at each place.

    Attributes
    ----------
    bound : dict of Place to Counter of Target
        How often each target ended just as what waited went on.
    late : dict of Place to Counter of Target
        How often each ended only after.
    """

    bound: dict[Place, Counter[Target]] = field(default_factory=lambda: defaultdict(Counter))
    late: dict[Place, Counter[Target]] = field(default_factory=lambda: defaultdict(Counter))


@dataclass
class Inferred:
    """Waits of one rank.

    Attributes
    ----------
    streams : list of StreamWait
        Streams that wait for streams: the fewest that imply all.
    host : dict of int to list of int
        Device events that each synchronising call (by row) waited for.
    contradicted : int
        Waits that the measured times rule out, left out.
    waits, assumed : int
        Waits between streams that had several possible targets, and those of them for which
        nothing anywhere told one from the other.
    assumed_calls : set of int
        Synchronising calls (by row) that were never seen to wait: nothing tells what for.
    """

    streams: list[StreamWait] = field(default_factory=list)
    host: dict[int, list[int]] = field(default_factory=dict)
    contradicted: int = 0
    waits: int = 0
    assumed: int = 0
    assumed_calls: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class RankCalls:
    """What the inference needs to know of one rank."""

    trace: KinetoTrace
    comms: Comms
    device: Device
    calls: list[OrderingCall]


@dataclass(frozen=True)
class _Record:
    """An event recorded on a stream: what it stands for, and where it was recorded."""

    targets: tuple[int, ...]
    place: Place
    step: int
    order: int


class _Option(NamedTuple):
    """A possible target of a wait on this rank."""

    target: Target
    events: tuple[int, ...]
    end_ns: int
    order: int
    collective: bool


def infer(ranks: list[RankCalls]) -> list[Inferred]:
    """Infer what streams and the host waited for.

    Parameters
    ----------
    ranks : list of RankCalls
        All ranks of the job.

    Returns
    -------
    list of Inferred
        By rank, in the order given.
    """
    walks = [_Walk(rank) for rank in ranks]
    known = Evidence()
    for _ in range(ROUNDS):
        seen = Evidence()
        for walk in walks:
            walk.run(known, seen)
        known = seen
    return [walk.run(known, Evidence()) for walk in walks]


class _Walk:
    """Goes through the calls of one rank in order, keeping what each stream comes after."""

    def __init__(self, rank: RankCalls) -> None:
        self.trace, self.device, self.calls = rank.trace, rank.device, rank.calls
        streams = rank.device.streams
        self.stream_of = {e: s for s, events in streams.items() for e in events}
        self.place = {e: i for events in streams.values() for i, e in enumerate(events)}
        self.comm_events = {op.event for op in rank.comms.ops} | set(rank.comms.alone)
        self.number = {stream: i for i, stream in enumerate(streams)}
        self.has_records = any(call.what is What.RECORD for call in rank.calls)
        self.has_marks = any(call.collective for call in rank.calls)

    def run(self, known: Evidence, seen: Evidence) -> Inferred:
        """Walk through all calls.

        Parameters
        ----------
        known : Evidence
            What all ranks have shown before.
        seen : Evidence
            What this walk shows, extended.
        """
        self.known, self.seen, self.out = known, seen, Inferred()
        #: Per stream, the furthest place on each stream that its next event comes after.
        self.clock: dict[int, dict[int, int]] = defaultdict(dict)
        self.clock_of: dict[int, dict[int, int]] = {}
        self.last: dict[int, int] = {}
        self.pending: dict[int, list[int]] = defaultdict(list)
        self.records: dict[int, list[_Record]] = defaultdict(list)
        #: Per thread, the number of the last call that launched work other than communication.
        self.worked: dict[int, int] = {}
        for order, call in enumerate(self.calls):
            if call.what is What.LAUNCH:
                self.launch(call, order)
            elif call.what is What.RECORD:
                if call.stream is not None:
                    self.record(call.stream, call, order)
            elif call.what is What.WAIT:
                self.wait(call)
            elif call.kind is not Call.SYNC_DEVICE:
                self.synchronise(call)
        self.from_times()
        return self.out

    # -- streams ------------------------------------------------------------------------------

    def end(self, event: int) -> int:
        """Measured end of a device event."""
        return int(self.trace.start_ns[event] + self.trace.dur_ns[event])

    def explained_by_itself(self, event: int) -> bool:
        """Whether stream order or launch explains when an event started."""
        start = int(self.trace.start_ns[event])
        events = self.device.streams[self.stream_of[event]]
        at = self.place[event]
        latest = self.end(events[at - 1]) + self.device.stream_lag_ns if at else -(1 << 62)
        call = self.device.call_of.get(event)
        if call is not None:
            latest = max(latest, int(self.trace.start_ns[call]) + self.device.launch_lag_ns)
        return start - latest <= EXPLAINED_NS

    def is_new(self, stream: int, target: int) -> bool:
        """Whether what a stream runs next does not come after an event anyway."""
        other = self.stream_of[target]
        return other != stream and self.clock[stream].get(other, -1) < self.place[target]

    def frontier(self, stream: int) -> tuple[int, ...]:
        """Device events that the next event of a stream comes after."""
        mine = (self.last[stream],) if stream in self.last else ()
        return (*mine, *self.pending[stream])

    def order_after(self, stream: int, targets: tuple[int, ...]) -> None:
        """Make a stream wait for device events."""
        for target in targets:
            if self.is_new(stream, target):
                self.pending[stream].append(target)
                clock = self.clock[stream]
                for other, place in self.clock_of[target].items():
                    clock[other] = max(clock.get(other, -1), place)

    def launch(self, call: OrderingCall, order: int) -> None:
        """Launch an event, which comes after all that its stream was told to wait for."""
        event = call.item
        stream = self.stream_of[event]
        waited = self.pending.pop(stream, [])
        start = int(self.trace.start_ns[event])
        for target in waited:
            place, other = self.place[target], self.stream_of[target]
            if any(self.clock_of[t].get(other, -1) >= place for t in waited if t != target):
                continue
            if self.end(target) > start:
                self.out.contradicted += 1
            else:
                self.out.streams.append(StreamWait(event, target))
        clock = self.clock[stream]
        clock[stream] = max(clock.get(stream, -1), self.place[event])
        self.clock_of[event] = dict(clock)
        self.last[stream] = event
        if event not in self.comm_events:
            self.worked[call.place.thread] = order
        if not self.has_records:
            # Nothing recorded which moments can be waited for: each stream's latest event.
            self.record(stream, call, order)
            if len(self.records[stream]) > 2 * HOST_CHOICES:
                del self.records[stream][:HOST_CHOICES]

    def record(self, stream: int, call: OrderingCall, order: int) -> None:
        """Record an event on a stream."""
        targets = self.frontier(stream)
        mine = self.records[stream]
        if mine and mine[-1].targets == targets:
            mine.pop()
        if targets:
            mine.append(_Record(targets, call.place, call.step, order))

    def option(self, call: OrderingCall, record: _Record, events: tuple[int, ...]) -> _Option:
        """Describe an event that a call may be waiting for."""
        place = record.place
        return _Option(
            Target(place.program, place.thread, place.number, call.step - record.step),
            events,
            max(self.end(e) for e in events),
            record.order,
            record.targets[0] in self.comm_events,
        )

    def wait(self, call: OrderingCall) -> None:
        """Make a stream wait: for the current one if it is a collective's, else choose."""
        if call.stream is not None:
            if call.current is not None:
                self.order_after(call.stream, self.frontier(call.current))
            return
        if call.waiter < 0:
            return
        stream = self.stream_of[call.waiter]
        options: list[_Option] = []
        for other, mine in self.records.items():
            if other == stream:
                continue
            for record in mine[: -STREAM_CHOICES - 1 : -1]:
                events = tuple(t for t in record.targets if self.is_new(stream, t))
                if not events:
                    break  # what was recorded before stands for less
                options.append(self.option(call, record, events))
                if not self.has_records:
                    break
        if call.collective and any(o.collective for o in options):
            options = [o for o in options if o.collective]
        chosen = self.choose(call, options)
        if chosen is not None:
            self.order_after(stream, chosen.events)

    def choose(self, call: OrderingCall, options: list[_Option]) -> _Option | None:
        """Pick what a stream was made to wait for just before it runs an event."""
        start = int(self.trace.start_ns[call.waiter])
        possible = [o for o in options if o.end_ns <= start]
        late = self.seen.late[call.place]
        late.update(o.target for o in options if o.end_ns > start)
        if not possible:
            self.out.contradicted += bool(options)
            return None
        if not self.explained_by_itself(call.waiter):
            latest = max(o.end_ns for o in possible)
            if start - latest <= BOUND_NS:
                bound = self.seen.bound[call.place]
                bound.update(o.target for o in possible if o.end_ns == latest)
        self.out.waits += len(possible) > 1
        ruled_out = self.known.late[call.place]
        left = [o for o in possible if o.target not in ruled_out] or possible
        votes = self.known.bound[call.place]
        if any(votes[o.target] for o in left):
            return max(left, key=lambda o: (votes[o.target], o.order))
        self.out.assumed += len(left) > 1
        return self.assume(call, left)

    def assume(self, call: OrderingCall, options: list[_Option]) -> _Option:
        """Pick by custom what nothing was seen of."""
        newest = max(options, key=lambda o: o.order)
        if not call.collective and self.has_marks:
            # Waits for collectives are marked: this is rather one for other work.
            return max(options, key=lambda o: (not o.collective, o.order))
        collectives = [o for o in options if o.collective]
        if not collectives or newest.order > self.worked.get(call.place.thread, -1):
            return max(collectives, key=lambda o: o.order, default=newest)
        return min(collectives, key=lambda o: o.order)

    # -- the host -----------------------------------------------------------------------------

    def synchronise(self, call: OrderingCall) -> None:
        """Pick what a call that waits for a stream or an event waited for."""
        options: list[_Option] = []
        if call.kind is Call.SYNC_STREAM:
            for stream in self.last:
                targets = self.frontier(stream)
                current = stream == call.current
                place = Place(-1, -1 if current else self.number[stream], 0, 0)
                record = _Record(targets, place, call.step, int(current))
                options.append(self.option(call, record, targets))
        else:
            for mine in self.records.values():
                options += [self.option(call, r, r.targets) for r in mine[-HOST_CHOICES:]]
        possible = [o for o in options if o.end_ns <= call.end_ns + CLOCK_NS]
        late = self.seen.late[call.place]
        late.update(o.target for o in options if o.end_ns > call.end_ns + CLOCK_NS)
        if not possible:
            return
        ruled_out = self.known.late[call.place]
        possible = [o for o in possible if o.target not in ruled_out] or possible
        if call.end_ns - call.begin_ns > BOUND_NS:
            # It waited: for one of what ended just before, and hardly for what ended just after.
            bound = self.seen.bound[call.place]
            for o in possible:
                if max(call.begin_ns, call.end_ns - BOUND_NS) < o.end_ns:
                    bound[o.target] += 1 if o.end_ns <= call.end_ns else -1
        votes = self.known.bound[call.place]
        chosen = max(possible, key=lambda o: (votes[o.target], o.order))
        if votes[chosen.target] <= 0:
            running = [o for o in possible if o.end_ns > call.begin_ns]
            if running and call.end_ns - call.begin_ns > BOUND_NS:
                chosen = max(running, key=lambda o: o.end_ns)
            elif len(possible) > 1:
                # What was recorded last includes what was before.
                chosen = max(possible, key=lambda o: o.order)
                self.out.assumed_calls.add(call.item)
        self.out.host[call.item] = list(chosen.events)

    # -- times only ---------------------------------------------------------------------------

    def from_times(self) -> None:
        """Find the waits that only the measured times show."""
        explained = {
            wait.waiter
            for wait in self.out.streams
            if int(self.trace.start_ns[wait.waiter]) - self.end(wait.target) <= BOUND_NS
        }
        ends = sorted((self.end(e), e) for e in self.stream_of)
        joined: dict[tuple[int, int], int] = {}
        for event in sorted(self.stream_of, key=lambda e: int(self.trace.start_ns[e])):
            if event in explained or self.explained_by_itself(event):
                continue
            start = int(self.trace.start_ns[event])
            stream = self.stream_of[event]
            at = bisect_right(ends, (start, 1 << 62))
            for end, other in reversed(ends[max(0, at - 16) : at]):
                if start - end > BOUND_NS:
                    break
                pair = stream, self.stream_of[other]
                if pair[0] != pair[1] and {event, other} & self.comm_events:
                    if joined.get(pair, -1) < self.place[other]:
                        joined[pair] = self.place[other]
                        self.out.streams.append(StreamWait(event, other))
                    break
