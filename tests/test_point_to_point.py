"""Messages between pairs of ranks: eager, rendezvous, batched, and pipelines made of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import pytest
from whatif.base.errors import GraphError
from whatif.graph.build import GraphBuilder
from whatif.graph.columns import Flavour, Kind, LaneKind
from whatif.graph.validate import validate
from whatif.simulator.network import Network, Tier
from whatif.simulator.run import Simulation, simulate

#: A message of 1000 bytes takes 10 ns.
NETWORK = Network(name="any", tiers=[Tier(size=8, bandwidth_gb_s=100.0)])
SIZE = 1_000


class Exchange:
    """Ranks with a stream for kernels and one for messages, both in the order of the calls."""

    def __init__(self, ranks: int) -> None:
        self.build = GraphBuilder()
        self.world = self.build.group("world", range(ranks))
        self.compute, self.comm = [], []
        for rank in range(ranks):
            self.build.rank(rank)
            self.compute.append(self.build.lane(rank, LaneKind.STREAM, 7))
            self.comm.append(self.build.lane(rank, LaneKind.STREAM, 8))
        self.last: dict[int, list[int]] = defaultdict(list)

    def kernel(self, rank: int, ns: int, *after: int) -> int:
        """Run a kernel after the one before it and after messages."""
        before = [node for node in self.last[rank] if node is not None]
        node = self.build.node(self.compute[rank], Flavour.COMPUTE, ns, after=[*before, *after])
        self.last[rank] = [node]
        return node

    def message(
        self, rank: int, kind: Kind, peer: int, *after: int, eager: bool = False, tag: int = 0
    ) -> int:
        """Send or receive when what it comes after is done, whatever other messages do."""
        lane = self.comm[rank]
        return self.build.point_to_point(
            lane, kind, peer, self.world, SIZE, after=after, eager=eager, tag=tag
        )

    def run(self) -> Simulation:
        markers = {
            rank: self.build.node(lane, Flavour.GAP, 0, after=self.last[rank])
            for rank, lane in enumerate(self.compute)
        }
        self.build.step("step", markers)
        return simulate(self.build.build(), network=NETWORK)


# --- one exchange -----------------------------------------------------------------------------


def pair(*, eager: bool, batched: bool) -> GraphBuilder:
    """Each of two ranks sends to the other first and then receives."""
    exchange = Exchange(2)
    for rank in (0, 1):
        ready = exchange.kernel(rank, 50 * rank)
        sent = exchange.message(rank, Kind.SEND, 1 - rank, ready, eager=eager)
        received = exchange.message(rank, Kind.RECV, 1 - rank, ready if batched else sent)
        exchange.kernel(rank, 0, sent, received)
    exchange.run()
    return exchange.build


def test_sends_in_both_directions_before_any_receive_wait_for_ever_unless_batched() -> None:
    with pytest.raises(GraphError, match=r"in a circle.*rank 1.*send.*rank 0.*send"):
        pair(eager=False, batched=False)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_batched_or_eager_does_not(eager: bool, batched: bool) -> None:
    if eager or batched:
        validate(pair(eager=eager, batched=batched).build())


def test_a_batched_pair_in_both_directions_takes_no_longer_than_one_message() -> None:
    exchange = Exchange(2)
    for rank, arrival in enumerate((30, 100)):
        ready = exchange.kernel(rank, arrival)
        batch = [exchange.message(rank, kind, 1 - rank, ready) for kind in (Kind.SEND, Kind.RECV)]
        exchange.kernel(rank, 5, *batch)
    simulation = exchange.run()
    # Ports carry both directions at once; all wait for the later rank.
    assert simulation.completion_ns.tolist() == [[115, 115]]
    assert not simulation.shares_ports


def test_a_ring_of_batched_pairs_turns_at_once() -> None:
    exchange = Exchange(5)
    for rank in range(5):
        ready = exchange.kernel(rank, 10 * rank)
        sent = exchange.message(rank, Kind.SEND, (rank + 1) % 5, ready)
        received = exchange.message(rank, Kind.RECV, (rank - 1) % 5, ready)
        exchange.kernel(rank, 0, sent, received)
    # A rank waits for itself and both neighbours.
    assert exchange.run().completion_ns.tolist() == [[50, 30, 40, 50, 50]]


def test_messages_to_two_ranks_share_the_port_of_the_sender() -> None:
    exchange = Exchange(3)
    ready = exchange.kernel(0, 7)
    sent = [exchange.message(0, Kind.SEND, peer, ready) for peer in (1, 2)]
    exchange.kernel(0, 0, *sent)
    for rank in (1, 2):
        exchange.kernel(rank, 0, exchange.message(rank, Kind.RECV, 0, exchange.kernel(rank, 0)))
    simulation = exchange.run()
    assert simulation.completion_ns.tolist() == [[27, 27, 27]]
    assert simulation.shares_ports


@pytest.mark.parametrize("eager", [False, True])
def test_a_sender_goes_on_when_its_eager_message_is_out(eager: bool) -> None:
    exchange = Exchange(2)
    ready = exchange.kernel(0, 20)
    exchange.kernel(0, 0, exchange.message(0, Kind.SEND, 1, ready, eager=eager))
    exchange.kernel(1, 0, exchange.message(1, Kind.RECV, 0, exchange.kernel(1, 70)))
    assert exchange.run().completion_ns.tolist() == [[30 if eager else 80, 80]]


# --- pipelines --------------------------------------------------------------------------------

Way = Literal["forward", "backward"]


class Pipeline(Exchange):
    """Passes of microbatches through stages; a pass sends what the next stage needs.

    Forward passes take 100 ns divided by the chunks of a rank, backward passes twice that.
    """

    def __init__(self, ranks: int, *, eager: bool, chunks: int = 1) -> None:
        super().__init__(ranks)
        self.eager = eager
        self.chunks = chunks

    def passes(self, rank: int, order: list[tuple[Way, int, list[int]]]) -> None:
        """Add the passes of a rank: way, microbatch, and the ranks of its stages in order.

        Receives are posted before anything runs, as libraries do with a batch of them; a send
        follows its kernel.
        """
        turn: dict[tuple[Way, int, int], int] = defaultdict(int)
        for way, batch, stages in order:
            path = stages if way == "forward" else stages[::-1]
            # The n-th pass of a microbatch over this rank is the n-th of its places on the path.
            places = [i for i, at in enumerate(path) if at == rank]
            place = places[turn[way, batch, stages[0]]]
            turn[way, batch, stages[0]] += 1
            needs = []
            if place > 0:
                tag = self._tag(way, batch, place - 1)
                needs.append(self.message(rank, Kind.RECV, path[place - 1], tag=tag))
            ns = {"forward": 100, "backward": 200}[way] // self.chunks
            done = self.kernel(rank, ns, *needs)
            if place < len(path) - 1:
                tag = self._tag(way, batch, place)
                self.message(rank, Kind.SEND, path[place + 1], done, eager=self.eager, tag=tag)

    def _tag(self, way: Way, batch: int, place: int) -> int:
        return (batch * 2 + (way == "backward")) * 100 + place


def one_forward_one_backward(
    rank: int, stages: list[int], batches: int
) -> list[tuple[Way, int, list[int]]]:
    """The order in which a stage of 1F1B takes its passes."""
    warm_up = min(len(stages) - 1 - rank, batches)
    order: list[tuple[Way, int, list[int]]] = [("forward", i, stages) for i in range(warm_up)]
    for i in range(batches - warm_up):
        order += [("forward", warm_up + i, stages), ("backward", i, stages)]
    return order + [("backward", i, stages) for i in range(batches - warm_up, batches)]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    ("batches", "step"),
    [
        # Rank 0: F0 to 100, F1 to 200, B0 from 420 (F0 and B0 of rank 1 and two messages) to 620,
        # B1 from 720 (rank 1: F1 410 to 510, B1 to 710) to 920.
        (2, 920),
        # F2 of rank 0 ends at 720, so that of rank 1 begins at 730 instead of 710; B2 ends there
        # at 1030, begins here at 1040 and ends at 1240.
        (3, 1240),
        # Rank 0: B1 720 to 920, F3 to 1020, whose message is there just when B2 ends at 1030;
        # B3 of rank 1 ends at 1330, that of rank 0 at 1340 + 200.
        (4, 1540),
    ],
)
def test_one_forward_one_backward(batches: int, step: int, eager: bool) -> None:
    pipeline = Pipeline(2, eager=eager)
    for rank in (0, 1):
        pipeline.passes(rank, one_forward_one_backward(rank, [0, 1], batches))
    assert pipeline.run().step_ns == step


def test_the_bubble_of_a_pipeline_is_that_of_the_formula_when_messages_are_free() -> None:
    """(m + p - 1) (F + B) for m microbatches over p stages."""
    free = Network(name="free", tiers=[Tier(size=8, bandwidth_gb_s=1e9)])
    pipeline = Pipeline(4, eager=False)
    for rank in range(4):
        pipeline.passes(rank, one_forward_one_backward(rank, [0, 1, 2, 3], 8))
    graph = pipeline.run().compressed
    assert simulate(graph, network=free).step_ns == (8 + 3) * 300


@pytest.mark.parametrize("eager", [False, True])
def test_an_interleaved_pipeline(eager: bool) -> None:
    """Two ranks with two chunks each; a microbatch goes over ranks 0, 1, 0, 1."""
    pipeline = Pipeline(2, eager=eager, chunks=2)
    stages = [0, 1, 0, 1]
    # Rank 0 has both chunks of both microbatches forward before anything comes back; rank 1
    # takes its second chunk and the way back in turns.
    forward: list[tuple[Way, int, list[int]]] = [("forward", i, stages) for i in (0, 1, 0, 1)]
    backward: list[tuple[Way, int, list[int]]] = [("backward", i, stages) for i in (0, 1, 0, 1)]
    pipeline.passes(0, forward + backward)
    turns = [*forward[:3], backward[0], forward[3], *backward[1:]]
    pipeline.passes(1, turns)
    # Forward (rank 0 0-50, 50-100; 1 60-110, 110-160; 0 120-170, 170-220; 1 180-230), then on
    # rank 1 B 230-330, F 330-380, B 380-480; on 0 B 340-440, 490-590; on 1 480-580, 600-700; on
    # 0 590-690, 710-810.
    assert pipeline.run().step_ns == 810


@pytest.mark.parametrize("eager", [False, True])
def test_a_bidirectional_pipeline(eager: bool) -> None:
    """Two microbatches start at opposite ends and meet in the middle."""
    pipeline = Pipeline(2, eager=eager)
    down, up = [0, 1], [1, 0]
    for rank, own, other in ((0, down, up), (1, up, down)):
        pipeline.passes(
            rank,
            [
                ("forward", rank, own),
                ("forward", 1 - rank, other),
                ("backward", 1 - rank, other),
                ("backward", rank, own),
            ],
        )
    simulation = pipeline.run()
    # F to 100, messages both ways at once to 110, F to 210, B to 410, messages to 420, B to 620.
    assert simulation.completion_ns.tolist() == [[620, 620]]
    assert not simulation.shares_ports
