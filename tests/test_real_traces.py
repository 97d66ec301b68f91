"""What must hold on real jobs: identity, coverage and the figures known of each trace."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from whatif.base.errors import GraphError, TraceError
from whatif.converters.kineto.convert import convert_kineto
from whatif.graph.columns import Collective, Kind, collect_instances
from whatif.simulator.run import simulate

if TYPE_CHECKING:
    from pathlib import Path

    from whatif.graph.columns import DependencyModel, ExecutionGraph
    from whatif.simulator.run import Simulation

DEVICE_JOBS = ("traces/gpu/megatron_tp8_a100x8", "traces/gpu/dlrm_v100x8")
CPU_JOBS = (
    *(f"lab/ddp-w2/{mbit}mbit" for mbit in (500, 1000, 2000, 4000)),
    *(f"lab/tp-w2/{mbit}mbit" for mbit in (1000, 2000)),
    *(f"lab/moe-w2/{mbit}mbit" for mbit in (500, 2000)),
)
#: Traces of one rank of a larger job, and whether its missing members must be assumed.
SINGLES = {
    "ddp_a100_rank0of2_full_metadata": True,
    "resnet_mi300x_rccl_rank0of8": True,
    "vllm_b200_multimem_rank0of8": True,
    "ns_resolution_ws1": False,
    "cpu_only_gloo_rank34of300": True,
}


def check_identity(graph: ExecutionGraph, simulation: Simulation) -> None:
    """Every step, every rank's completion, and every node, as measured."""
    for step in simulation.steps:
        assert step.measured_ns is not None
        assert step.step_ns == pytest.approx(step.measured_ns, rel=1e-3)
    assert simulation.worst_rank_error_pct == pytest.approx(0, abs=0.1)
    assert simulation.step_ns == simulation.measured_step_ns
    for rank in simulation.per_rank:
        total = (
            rank.compute_ns
            + rank.exposed_comm_ns
            + rank.copy_ns
            + rank.wait_ns
            + rank.host_ns
            + rank.idle_ns
            + rank.start_offset_ns
        )
        assert total == pytest.approx(simulation.step_ns, rel=1e-3)
    assert sum(simulation.critical_split.values()) == pytest.approx(simulation.step_ns, rel=1e-3)


@pytest.mark.parametrize("model", ["host", "stream"])
@pytest.mark.parametrize("job", DEVICE_JOBS)
def test_measured_replay_is_the_measured_timeline_on_device_jobs(
    job: str, model: DependencyModel, shared_data: Path
) -> None:
    graph = convert_kineto(shared_data / job, model=model)
    check_identity(graph, simulate(graph, measured=True))


@pytest.mark.parametrize("job", CPU_JOBS)
def test_measured_replay_is_the_measured_timeline_on_cpu_jobs(job: str, shared_data: Path) -> None:
    graph = convert_kineto(shared_data / job)
    check_identity(graph, simulate(graph, measured=True))
    # One queue a rank, two threads that serve it.
    assert sorted(graph.lanes.servers.tolist()) == [1, 1, 2, 2]


@pytest.mark.parametrize("name", SINGLES)
def test_a_single_rank_of_a_job_is_usable_if_the_others_may_be_assumed(
    name: str, shared_data: Path
) -> None:
    path = shared_data / "traces/gpu/single" / f"{name}.json.gz"
    if SINGLES[name]:
        with pytest.raises(TraceError, match="not traced"):
            convert_kineto(path)
    graph = convert_kineto(path, assume_missing=SINGLES[name])
    check_identity(graph, simulate(graph, measured=True))
    assert bool(graph.coverage.assumed_members) == SINGLES[name]


def test_every_collective_of_megatron_gets_its_size_and_one_group(shared_data: Path) -> None:
    """The kernels carry no metadata; 81 all-reduces are half, 3 float (data/traces/README)."""
    graph = convert_kineto(shared_data / DEVICE_JOBS[0])
    instances = collect_instances(graph)
    assert len(instances) == 84
    assert set(instances.coll.tolist()) == {Collective.ALL_REDUCE}
    sizes, counts = np.unique(instances.size_bytes, return_counts=True)
    assert dict(zip(sizes.tolist(), counts.tolist(), strict=True)) == {32_768: 3, 67_108_864: 81}
    types = Counter(graph.data_type(int(node)) for node in instances.node)
    assert types == {"float16": 81 * 8, "float32": 3 * 8}
    assert [group.ranks for group in graph.groups] == [tuple(range(8))]
    large = instances.node[instances.ptr[:-1]][instances.size_bytes == 67_108_864]
    assert 570_000 <= np.median(graph.transfer_ns[large]) <= 595_000
    slowest = np.maximum.reduceat(graph.dur_ns[instances.node], instances.ptr[:-1])
    assert np.median(slowest[instances.size_bytes == 67_108_864]) > 3e6
    assert graph.coverage.collectives_matched == graph.coverage.collectives_seen == 672
    assert graph.coverage.bytes_unknown_nodes == 0


def test_dlrm_accounts_for_late_ranks_without_calling_it_communication(shared_data: Path) -> None:
    graph = convert_kineto(shared_data / DEVICE_JOBS[1])
    instances = collect_instances(graph)
    kinds = [Collective(int(c)) for c in instances.coll]
    assert kinds.count(Collective.ALL_TO_ALL) == 5
    assert kinds.count(Collective.ALL_REDUCE) == 3
    assert (instances.size_bytes > 0).all()
    assert graph.start_offset_ns.max() == pytest.approx(7.6e6, rel=0.05)
    simulation = simulate(graph, measured=True)
    times = simulation.per_rank
    assert max(rank.start_offset_ns for rank in times) == graph.start_offset_ns.max()
    # The last rank to come waits least; the first waits for it in the first all-to-all.
    last = int(np.argmax(graph.start_offset_ns))
    first = int(np.argmin(graph.start_offset_ns))
    assert times[first].wait_ns > times[last].wait_ns + 5e6
    assert all(rank.exposed_comm_ns < 0.5e6 for rank in times)


def test_every_communication_kernel_becomes_a_node(shared_data: Path) -> None:
    path = shared_data / "traces/gpu/single/vllm_b200_multimem_rank0of8.json.gz"
    graph = convert_kineto(path, assume_missing=True)
    nodes = graph.kind == Kind.COMM_COLL
    coll = graph.coll[nodes]
    assert (coll == Collective.ALL_REDUCE).sum() == 73
    assert (coll == Collective.ALL_GATHER).sum() == 1
    assert (graph.size_bytes[nodes] > 0).all()


#: What becomes of each file of data/traces/bad that is a trace.
BAD_TRACES = {
    "hta_distinfo_without_rank.json.gz": None,
    "hta_no_distinfo.json.gz": None,
    "hta_non_gpu.json.gz": None,
    "hta_large_integer_rank70.json.gz": "not traced",
    "lfs_pointer.tgz": "Git LFS",
    "symlink_text.pt.trace.json.gz": "link",
    "utf8_mangled.xplane.pb.gz": "XLA",
}


@pytest.mark.parametrize("name", BAD_TRACES)
def test_bad_traces_are_refused_or_converted_as_they_deserve(name: str, shared_data: Path) -> None:
    path, refusal = shared_data / "traces/bad" / name, BAD_TRACES[name]
    if refusal is None:
        graph = convert_kineto(path)
        check_identity(graph, simulate(graph, measured=True))
        assert graph.num_nodes > 0
    else:
        with pytest.raises(TraceError, match=refusal):
            convert_kineto(path)


def test_thinned_ranks_that_do_not_fit_together_are_refused(shared_data: Path) -> None:
    with pytest.raises(TraceError, match="not traced"):
        convert_kineto(shared_data / "traces/gpu/sampled_2of128")
    with pytest.raises(GraphError, match="bytes on rank 0 but"):
        convert_kineto(shared_data / "traces/gpu/sampled_2of128", assume_missing=True)
