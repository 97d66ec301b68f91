"""Real XLA profiles: what their authors and the files themselves say is what the graph has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from whatif.base.errors import TraceError
from whatif.converters.xla.convert import convert_xla
from whatif.graph.columns import Collective
from whatif.graph.steps import step_times
from whatif.graph.validate import validate
from whatif.simulator.run import simulate

import whatif

if TYPE_CHECKING:
    from pathlib import Path

VLLM = "traces/tpu/vllm_tpu_tp2_2026_01_1{}.trace.json.gz"
FIRST, SECOND = VLLM.format("1_21_26_41"), VLLM.format("2_00_26_20")
V6E = "traces/tpu/xprof_v6e_4tpu_of8.xplane.pb.gz"


@pytest.mark.parametrize(
    ("name", "step_ms", "all_to_alls"), [(FIRST, 66.98, 0), (SECOND, 65.56, 128)]
)
def test_vllm_on_two_chips(shared_data: Path, name: str, step_ms: float, all_to_alls: int) -> None:
    graph = convert_xla(shared_data / name)
    validate(graph)
    for rank in range(2):
        mine = graph.rank_index == rank
        reduces = np.flatnonzero(mine & (graph.coll == Collective.ALL_REDUCE))
        assert len(reduces) == 129
        # bf16[1024,5120], whatever the operation is called.
        assert {graph.names[n] for n in graph.dtype[reduces].tolist()} == {"bfloat16"}
        assert set(graph.size_bytes[reduces].tolist()) == {1024 * 5120 * 2}
        exchanges = np.flatnonzero(mine & (graph.coll == Collective.ALL_TO_ALL))
        assert len(exchanges) == all_to_alls
    assert {group.ranks for group in graph.groups} == {(0, 1)}
    names = {graph.names[n].split(".")[0] for n in graph.name[graph.coll == Collective.ALL_REDUCE]}
    assert "all-reduce" in names
    assert "psum" in names or name == FIRST
    assert graph.coverage.collectives_matched == graph.coverage.collectives_seen
    # A step ends with the run of the model; the sampling that follows leads to another.
    assert step_times(graph.steps.completion_ns)[0] / 1e6 == pytest.approx(step_ms, abs=0.15)
    assert ("runs of jit_sample", 2) in [(d.what, d.count) for d in graph.coverage.dropped]
    replay = simulate(graph, measured=True)
    assert replay.completion_ns.max(axis=1).tolist() == graph.steps.completion_ns.tolist()
    transfers = graph.transfer_ns[graph.coll == Collective.ALL_REDUCE]
    assert 24_000 < np.median(transfers) < 28_000


def test_v6e_of_which_half_the_members_were_not_captured(shared_data: Path) -> None:
    path = shared_data / V6E
    with pytest.raises(
        TraceError, match=r"group '0,4' \[0, 4\] has members that were not traced"
    ) as raised:
        convert_xla(path)
    assert (raised.value.file, raised.value.rank) == (str(path), 4)
    graph = convert_xla(path, assume_missing=True)
    validate(graph)
    assert graph.world_size == 8
    # The planes' core details say which chips these are, and the compiled program agrees.
    assert graph.ranks.tolist() == [4, 5, 6, 7]
    reduces = np.flatnonzero(graph.coll == Collective.ALL_REDUCE)
    assert set(graph.size_bytes[reduces].tolist()) == {5 * 1024 * 1024 * 256 * 4}
    members = sorted(graph.groups[g].ranks for g in graph.group[reduces])
    assert members == [pair for pair in ((0, 4), (1, 5), (2, 6), (3, 7)) for _ in range(3)]
    assert graph.coverage.assumed_members >= 12
    assert any("every figure rests on that" in text for text in graph.coverage.warnings)
    transfers = graph.transfer_ns[reduces] / 1e6
    assert transfers.min() > 121.68
    assert transfers.max() < 121.73
    # A step is 784 ms on the chips' own clocks; the profile's own times jump by 100 ms and more.
    steps = step_times(graph.steps.completion_ns)
    assert len(steps) == 100
    # The first begins with the programs that made its data, the all-reduces among them.
    assert np.ptp(steps[1:]) < 2_000_000
    assert any("the device's clock is used" in text for text in graph.coverage.warnings)


def test_jax_on_gpus_without_collectives_says_so(shared_data: Path) -> None:
    graph = whatif.load(shared_data / "traces/tpu/jax_mi300x8_no_coll.xplane.pb.gz")
    assert graph.source == "xla-gpu"
    assert graph.num_ranks == 8
    assert "no communication between devices in this trace" in graph.coverage.warnings


def test_a_profile_that_was_treated_as_text_is_refused(shared_data: Path) -> None:
    with pytest.raises(TraceError, match="was treated as text at some point"):
        whatif.load(shared_data / "traces/bad/utf8_mangled.xplane.pb.gz")


def test_tpus_and_gpus_stand_in_one_table_with_the_same_columns(shared_data: Path) -> None:
    table = whatif.utility([shared_data / FIRST, shared_data / "traces/gpu/megatron_tp8_a100x8"])
    tpu, gpu = table.jobs
    assert {row.resource for row in (*tpu.results, *tpu.refused)} == {
        row.resource for row in (*gpu.results, *gpu.refused)
    }
    assert abs(tpu.baseline_error_pct or 0) < 0.1
    assert {row.resource for row in tpu.results} == {"scaleup_bw", "scaleup_latency", "compute"}
