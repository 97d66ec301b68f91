"""What an error consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from whatif.base.errors import GraphError, UsageError
from whatif.simulator.network import Network, Tier, save_network
from whatif.sweeps.anatomy import anatomy
from whatif.sweeps.single import replay_measured, simulate_once

import whatif

from .test_interference import overlap_job

if TYPE_CHECKING:
    from pathlib import Path

    from whatif.graph.columns import ExecutionGraph

MB = 1_000_000


def two(folder: Path, gb_s: float, latency_ns: float = 0) -> Path:
    file = folder / "net.yaml"
    tiers = [Tier(size=2, bandwidth_gb_s=gb_s, latency_ns=latency_ns)]
    save_network(Network(name="test", tiers=tiers), file)
    return file


def parts(graph: ExecutionGraph, truth: ExecutionGraph, network: Path) -> dict[str, float]:
    found = anatomy(simulate_once(graph, network=network), truth)
    for view in (found.path, found.ranks):
        assert sum(part.difference_pct for part in view) == pytest.approx(found.error_pct)
        assert sum(part.true_ns for part in view) == pytest.approx(found.true_step_ns)
        assert sum(part.predicted_ns for part in view) == pytest.approx(found.predicted_step_ns)
    return {part.part: part.predicted_ns - part.true_ns for part in found.path}


def test_what_measured_transfers_take_beyond_their_price_is_sharing(tmp_path: Path) -> None:
    """At 2 GB/s the 1 ms of an all-reduce is priced at 0.5 ms."""
    graph = overlap_job(4, 0.0)
    assert parts(graph, graph, two(tmp_path, 2.0))["sharing"] == -4 * 500_000


def test_what_they_take_less_is_bandwidth(tmp_path: Path) -> None:
    graph = overlap_job(4, 0.0)
    assert parts(graph, graph, two(tmp_path, 0.5))["scaleup_bw"] == 4 * MB


def test_latency_that_was_not_there_is_named(tmp_path: Path) -> None:
    """Two messages of 0.1 ms each, where the wire alone explains the measured time."""
    graph = overlap_job(4, 0.0)
    found = parts(graph, graph, two(tmp_path, 1.0, latency_ns=100_000))
    assert found["scaleup_latency"] + found["scaleup_bw"] == 4 * 200_000


def test_compute_that_takes_longer_in_truth_is_named(tmp_path: Path) -> None:
    graph = overlap_job(4, 0.0)
    slower = overlap_job(4, 2.0)  # beside a transfer 1.2 ms instead of 0.4: longer than it
    found = parts(graph, slower, two(tmp_path, 1.0))
    assert (found["compute"], found["scaleup_bw"]) == (-4 * 1_200_000, 4 * MB)


def test_a_truth_that_cannot_be_compared_with_is_refused(tmp_path: Path) -> None:
    graph = overlap_job(2, 0.0)
    single = simulate_once(graph, network=two(tmp_path, 1.0))
    with pytest.raises(UsageError, match="no error to explain"):
        anatomy(replay_measured(graph), graph)
    with pytest.raises(GraphError, match="has ranks 4, 5, the job has 0, 1"):
        anatomy(single, graph.with_(ranks=np.array([4, 5])))
    others = np.where(graph.coll >= 0, graph.size_bytes * 2, graph.size_bytes)
    with pytest.raises(GraphError, match="it is of another job"):
        anatomy(single, graph.with_(size_bytes=others))


def test_a_trace_of_the_job_on_the_predicted_network_is_a_truth(shared_data: Path) -> None:
    folder = shared_data / "lab/tp-w2"
    result = whatif.explain(
        folder / "1000mbit", against=folder / "2000mbit", network=None, processes=1
    )
    found = result.against
    assert found is not None
    assert found.predicted_step_ns == result.step_ns
    assert found.error_pct > 10  # on the network of its own trace, half as fast
    assert {part.part for part in found.path if part.difference_pct > 10} == {"scaleup_bw"}
