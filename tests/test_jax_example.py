"""The recorded JAX job: all of its collectives, as the program's sharding implies them.

What is expected is derived from the program in examples/record_jax.py (its settings, its mesh and
how it cuts its arrays), never from the trace.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from whatif.graph.columns import Collective, ExecutionGraph, Kind
from whatif.simulator.run import simulate

import whatif

EXAMPLE = Path(__file__).parent.parent / "examples" / "jax_cpu_8devices"
FLOAT32 = 4

AR, AG, RS = Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER
A2A = Collective.ALL_TO_ALL


class Use(NamedTuple):
    """An operation of one device: what, with whom, and the bytes that it puts in."""

    coll: Collective
    group: tuple[int, ...]
    size_bytes: int


class Message(NamedTuple):
    kind: Kind
    peer: int
    size_bytes: int


TRUTH = json.loads((EXAMPLE / "truth.json").read_text())


def implied(device: int) -> tuple[Counter[Use], Counter[Message]]:
    """What a device sends in one step, by the lines of `layer`, `loss` and their derivatives."""
    s = TRUTH["settings"]
    data, model = s["data"], s["model"]
    # The mesh is (data, model), and devices are numbered along it, the last axis first.
    d, m = divmod(device, model)
    over_model = tuple(d * model + k for k in range(model))
    over_data = tuple(k * model + m for k in range(data))
    # Elements of what a device holds: activations over both axes, weights over both.
    activation = s["batch"] // (data * model) * s["width"]
    weight = s["width"] // data * (s["hidden"] // model)  # of up, and as many of down
    expert = s["width"] // model * (s["width"] // model)
    layer: Counter[Use] = Counter()

    def use(coll: Collective, group: tuple[int, ...], elements: int, times: int = 1) -> None:
        layer[Use(coll, group, elements * FLOAT32)] += times

    use(AG, over_model, activation)  # all_gather(x, "model")
    use(AG, over_data, weight, 2)  # all_gather(up, "data"), all_gather(down, "data")
    use(RS, over_model, activation * model)  # psum_scatter(y, "model"), whose input is gathered
    use(A2A, over_model, activation, 2)  # all_to_all there and back
    # The derivative of a gather scatters sums, that of a scatter of sums gathers, that of an
    # exchange is an exchange; whoever uses a weight that others hold, too, adds up its gradient.
    use(RS, over_model, activation * model)
    use(RS, over_data, weight * data, 2)
    use(AG, over_model, activation)
    use(A2A, over_model, activation, 2)
    use(AR, over_data, expert)
    step = Counter({one: times * s["layers"] for one, times in layer.items()})
    step[Use(AR, tuple(range(data * model)), FLOAT32)] += 1  # the loss

    # ppermute to the next along `model`; its derivative goes the other way.
    after, before = d * model + (m + 1) % model, d * model + (m - 1) % model
    messages: Counter[Message] = Counter()
    for kind, peers in ((Kind.SEND, (after, before)), (Kind.RECV, (before, after))):
        for peer in peers:
            messages[Message(kind, peer, activation * FLOAT32)] += s["layers"]
    return step, messages


@pytest.fixture(scope="module")
def graph() -> ExecutionGraph:
    return whatif.load(EXAMPLE, processes=1)


def test_all_collectives_are_there_with_the_sizes_and_groups_of_the_program(
    graph: ExecutionGraph,
) -> None:
    steps = len(graph.steps)
    assert steps == TRUTH["settings"]["steps"]
    assert graph.world_size == graph.num_ranks == 8
    for device in range(8):
        wanted, wanted_messages = implied(device)
        for step in range(steps):
            found: Counter[Use] = Counter()
            messages: Counter[Message] = Counter()
            mine = (graph.rank_index == device) & (graph.step == step)
            for node in np.flatnonzero(mine & (graph.coll != Collective.NONE)).tolist():
                size = int(graph.size_bytes[node])
                if graph.coll[node] == Collective.SEND_RECV:
                    messages[Message(Kind(graph.kind[node]), int(graph.peer[node]), size)] += 1
                else:
                    ranks = tuple(graph.groups[graph.group[node]].ranks)
                    found[Use(Collective(graph.coll[node]), ranks, size)] += 1
            assert found == wanted
            assert messages == wanted_messages


def test_every_operation_has_met_its_other_members(graph: ExecutionGraph) -> None:
    communicates = graph.coll != Collective.NONE
    assert (graph.instance[communicates] >= 0).all()
    for instance in np.unique(graph.instance[communicates]):
        members = np.flatnonzero(graph.instance == instance)
        if graph.coll[members[0]] == Collective.SEND_RECV:
            assert len(members) == 2
        else:
            assert len(members) == len(graph.groups[graph.group[members[0]]].ranks)
        assert len(set(graph.size_bytes[members].tolist())) == 1


def test_its_replay_is_its_own_timeline(graph: ExecutionGraph) -> None:
    replay = simulate(graph, measured=True)
    assert replay.step_ns == pytest.approx(replay.measured_step_ns, rel=1e-3)
    # What the script's own clock saw, from one end of a step to the next.
    clock = np.array(TRUTH["profiled_step_ns"][1:])
    assert replay.step_ns == pytest.approx(np.median(clock), rel=0.05)


def test_its_baseline_comes_near_though_its_types_differ_by_far(graph: ExecutionGraph) -> None:
    """Its permutes reach a twentieth of the bandwidth of others: eight devices share two cores."""
    result = whatif.sweep(graph, ["compute", "scaleup_bw"])
    assert result.network.name.startswith("host_memory")
    assert result.baseline_error_pct == pytest.approx(0, abs=5)
    assert not result.beyond_limit
    assert all(row.utility_pct > 0 for row in result.results)
