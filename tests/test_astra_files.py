"""ASTRA-sim's own files: what is read, written and refused."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from chakra.schema.protobuf import et_def_pb2
from hypothesis import given
from hypothesis import strategies as st
from whatif.base.errors import GraphError, NetworkError, TraceError
from whatif.simulator.astra.files import (
    MemoryFile,
    NetworkFile,
    SystemFile,
    check_groups,
    check_memory,
    check_network,
    check_system,
    read_groups,
    read_memory,
    read_network,
    read_system,
    write_groups,
    write_memory,
    write_network,
    write_system,
)
from whatif.simulator.astra.names import NodeType
from whatif.simulator.astra.workload import ABSENT, read_workload

if TYPE_CHECKING:
    from pathlib import Path

NETWORK = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50], "latency": [0.5]}
NAMES = st.sampled_from(["ring", "direct", "direct3", "halvingDoubling", "oneRing"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Ring", "Switch", "FullyConnected"]),
            st.integers(2, 1 << 20),
            st.floats(1e-6, 1e6),
            st.floats(0, 1e9),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_network_survives_its_file(folder: Path, dims: list[tuple[Any, ...]]) -> None:
    topology, counts, bandwidth, latency = map(list, zip(*dims, strict=True))
    network = NetworkFile(
        topology=topology, npus_count=counts, bandwidth=bandwidth, latency=latency
    )
    write_network(folder / "network.yml", network)
    assert read_network(folder / "network.yml") == network


@given(st.lists(NAMES, min_size=1, max_size=4), st.integers(1, 64), st.floats(0.1, 1e6))
def test_a_system_survives_its_file(
    folder: Path, names: list[str], splits: int, memory: float
) -> None:
    system = SystemFile(
        preferred_dataset_splits=splits,
        local_mem_bw=memory,
        collective_optimization="localBWAware",
        all_reduce_implementation=names,
    )
    write_system(folder / "system.json", system)
    assert read_system(folder / "system.json") == system


def test_memory_and_groups_survive_their_files(folder: Path) -> None:
    memory = MemoryFile(memory_type="MEMORY_POOL", remote_mem_latency=3, remote_mem_bw=4)
    write_memory(folder / "memory.json", memory)
    assert read_memory(folder / "memory.json") == memory
    groups = {1: (3, 0), 7: (1, 2, 0)}
    write_groups(folder / "groups.json", groups)
    assert read_groups(folder / "groups.json") == groups


def test_integers_and_other_keys_are_taken_as_astra_sim_does(tmp_path: Path) -> None:
    (tmp_path / "network.yml").write_text("topology: [ Ring ]\nnpus_count: [ 4 ]  # ranks\n")
    with (tmp_path / "network.yml").open("a") as file:
        file.write("bandwidth: [ 50 ]\nlatency: [ 5e2 ]\n")
    assert read_network(tmp_path / "network.yml").latency == [500.0]
    system = check_system({"boost-mode": 1, "roofline-enabled": 1, "endpoint-delay": 10.7})
    assert system.roofline_enabled
    assert system.endpoint_delay == 10.7


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"topology": ["Torus"]}, "topology"),
        ({"npus_count": [1]}, "npus_count"),
        ({"npus_count": ["many"]}, "npus_count[0]"),
        ({"bandwidth": [0]}, "bandwidth"),
        ({"bandwidth": [50, 50]}, "bandwidth"),
        ({"latency": [-1]}, "latency"),
        ({"latency": None}, "latency"),
    ],
)
def test_a_network_that_makes_no_sense_is_refused(change: dict[str, Any], place: str) -> None:
    with pytest.raises(NetworkError) as caught:
        check_network(NETWORK | change)
    assert caught.value.place == place


def test_a_missing_key_is_named() -> None:
    with pytest.raises(NetworkError, match="latency"):
        check_network({key: value for key, value in NETWORK.items() if key != "latency"})


@pytest.mark.parametrize(
    ("system", "place"),
    [
        ({"collective-optimization": "fast"}, "collective-optimization"),
        ({"scheduling-policy": "RANDOM"}, "scheduling-policy"),
        ({"all-to-all-implementation": ["rings"]}, "all-to-all-implementation"),
        ({"all-reduce-implementation": "ring"}, "all-reduce-implementation"),
        ({"preferred-dataset-splits": 1.5}, "preferred-dataset-splits"),
        ({"all-reduce-implementation-custom": ["x"]}, "all-reduce-implementation-custom"),
    ],
)
def test_a_system_that_astra_sim_does_not_take_is_refused(
    system: dict[str, Any], place: str
) -> None:
    with pytest.raises(NetworkError) as caught:
        check_system(system)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"0": [0, 1]}, "positive"),
        ({"a": [0, 1]}, "not a number"),
        ({"1": [0, 0]}, "given twice"),
        ({"1": [0, "x"]}, "Expected"),
        ([[0, 1]], "Expected"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups: Any, words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        check_groups(groups)


def test_a_memory_without_bandwidth_is_refused() -> None:
    with pytest.raises(NetworkError, match="remote-mem-bw"):
        check_memory({"memory-type": "MEMORY_POOL"})


@pytest.mark.parametrize("name", ["network.yml", "system.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    read = read_network if name.endswith("yml") else read_system
    with pytest.raises(NetworkError, match="cannot be read"):
        read(file)  # type: ignore[operator]
    file.write_text("{[")
    with pytest.raises(NetworkError, match="is not") as caught:
        read(file)  # type: ignore[operator]
    assert caught.value.file == str(file)


def varint(value: int) -> bytes:
    """As protobuf writes lengths."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def write_et(file: Path, nodes: list[Any], *, version: str, packed: bool = False) -> None:
    data = b""
    for message in (et_def_pb2.GlobalMetadata(version=version), *nodes):
        encoded = message.SerializeToString()
        data += varint(len(encoded)) + encoded
    file.write_bytes(gzip.compress(data) if packed else data)


def collective(size_field: str, cpu_field: str) -> Any:
    node = et_def_pb2.Node(id=5, name="reduce", type=et_def_pb2.COMM_COLL_NODE)
    node.ctrl_deps.append(3)
    node.attr.add(name="is_cpu_op", **{cpu_field: False if cpu_field == "bool_val" else 0})
    node.attr.add(name="comm_type", int64_val=et_def_pb2.ALL_GATHER)
    node.attr.add(name="comm_size", **{size_field: 1 << 20})
    node.attr.add(name="comm_size", **{size_field: 7})  # the first of a name counts
    node.attr.add(name="pg_name", string_val="2")
    node.attr.add(name="involved_dim").bool_list.values.extend([True, False])
    return node


@pytest.mark.parametrize("size_field", ["int64_val", "uint64_val", "int32_val", "sint64_val"])
@pytest.mark.parametrize("cpu_field", ["bool_val", "int32_val"])
def test_attributes_of_any_integer_type_read_the_same(
    tmp_path: Path, size_field: str, cpu_field: str
) -> None:
    compute = et_def_pb2.Node(id=3, name="c", type=et_def_pb2.COMP_NODE, duration_micros=9)
    nodes = [collective(size_field, cpu_field), compute]
    write_et(tmp_path / "job.0.et", nodes, version="")
    write_et(tmp_path / "job.1.et.gz", nodes, version="0.0.4", packed=True)
    workload = read_workload(tmp_path / "job")
    assert workload.ranks == 2
    assert workload.id.tolist() == [3, 5, 3, 5]  # in the order of ids, not of the file
    assert workload.type[:2].tolist() == [NodeType.COMP_NODE, NodeType.COMM_COLL_NODE]
    assert workload.size.tolist() == [ABSENT, 1 << 20] * 2
    assert workload.group.tolist() == [0, 2] * 2
    assert workload.masks == ((True, False),)
    assert workload.dep.tolist() == [0, 2]
    assert read_workload(tmp_path, ranks=1).ranks == 1


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"pg_name": {"string_val": "da39"}}, "pg_name 'da39' is no number"),
        ({"pg_name": {"string_val": "00"}}, "communicator 0"),
        ({"comm_size": {"double_val": 1.0}}, "takes nothing but integers"),
        ({"comm_size": {"uint64_val": (1 << 64) - 1}}, "more than 62 bits"),
    ],
)
def test_attributes_that_astra_sim_cannot_read_are_refused(
    tmp_path: Path, attributes: dict[str, dict[str, Any]], words: str
) -> None:
    node = et_def_pb2.Node(id=1, name="reduce", type=et_def_pb2.COMM_COLL_NODE)
    for name, value in attributes.items():
        node.attr.add(name=name, **value)
    write_et(tmp_path / "job.0.et", [node], version="0.0.4")
    with pytest.raises(GraphError, match=words) as caught:
        read_workload(tmp_path / "job")
    assert (caught.value.rank, caught.value.place) == (0, "node 1 (reduce)")


def test_a_truncated_trace_is_refused(tmp_path: Path) -> None:
    node = et_def_pb2.Node(id=1, name="c", type=et_def_pb2.COMP_NODE)
    write_et(tmp_path / "job.0.et", [node], version="0.0.4")
    whole = (tmp_path / "job.0.et").read_bytes()
    (tmp_path / "job.0.et").write_bytes(whole[:-2])
    with pytest.raises(TraceError, match="ends inside a message"):
        read_workload(tmp_path / "job")


def test_settings_are_written_as_astra_sim_reads_them(tmp_path: Path) -> None:
    write_system(tmp_path / "s.json", SystemFile(roofline_enabled=True, peak_perf=900.0))
    written = json.loads((tmp_path / "s.json").read_text())
    assert written["roofline-enabled"] == 1
    assert isinstance(written["endpoint-delay"], int)
    assert "local-mem-bw" not in written
