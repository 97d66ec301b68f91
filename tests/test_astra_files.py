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
from whatif.graph.chakra import read_et
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
    unknown_keys,
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
        ({"npus_count": [10**400]}, "npus_count"),
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


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"latency": [1e300]}, "latency: 1e+300 is more than the 1,000,000,000,000 ns"),
        ({"latency": [1e19]}, "latency: 1e+19 is more than"),
        ({"latency": ["nan"]}, "latency: nan is no number"),
        ({"latency": [float("inf")]}, "latency: inf is not finite"),
        ({"latency": [10**400]}, "is too large|latency"),
        ({"bandwidth": [1e-300]}, "bandwidth: 1e-300 is less than the 1e-06 GiB/s"),
        ({"bandwidth": [1e10]}, "bandwidth: 10000000000.0 is more than"),
        ({"bandwidth": [float("nan")]}, "bandwidth: nan is no number"),
        ({"bandwidth": [-1]}, "bandwidth: -1.0 is negative"),
    ],
)
def test_numbers_of_a_network_have_limits(change: dict[str, Any], words: str) -> None:
    with pytest.raises(NetworkError) as caught:
        check_network(NETWORK | change)
    assert any(part in str(caught.value) for part in words.split("|"))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("endpoint-delay", "NaN", "nan is no number"),
        ("endpoint-delay", "Infinity", "inf is not finite"),
        ("endpoint-delay", "1e300", "is more than the 1,000,000,000,000 ns"),
        ("endpoint-delay", "1e19", "is more than"),
        ("endpoint-delay", "-10", "-10.0 is negative"),
        ("local-mem-bw", "NaN", "nan is no number"),
        ("local-mem-bw", "1e-300", "is less than the 1e-06 GB/s"),
        ("local-mem-bw", "-1", "-1.0 is negative"),
        ("local-mem-bw", "Infinity", "inf is not finite"),
        ("peak-perf", "1e300", "is more than"),
        ("preferred-dataset-splits", str(1 << 70), "is more than the 1,000,000"),
        ("preferred-dataset-splits", "1000000000", "is more than the 1,000,000"),
        ("preferred-dataset-splits", "-1", "-1 is negative"),
        ("active-chunks-per-dimension", str(1 << 70), "is more than the 1,000,000"),
        ("all-reduce-implementation", f'["direct{"1" * 5000}"]', "knows no algorithm 'direct111"),
    ],
)
def test_numbers_of_a_system_have_limits(tmp_path: Path, key: str, value: str, words: str) -> None:
    file = tmp_path / "system.json"
    file.write_text(f'{{"{key}": {value}}}')
    with pytest.raises(NetworkError) as caught:
        read_system(file)
    assert (caught.value.file, caught.value.place) == (str(file), key)
    assert words in caught.value.message
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("key", ["remote-mem-latency", "remote-mem-bw", "num-npus-per-node"])
@pytest.mark.parametrize("value", [int("9" * 30), 1 << 70, -1])
def test_numbers_of_a_memory_have_limits(key: str, value: int) -> None:
    memory = {"memory-type": "MEMORY_POOL", "remote-mem-bw": 1} | {key: value}
    with pytest.raises(NetworkError, match=r"is more than|is negative") as caught:
        check_memory(memory)
    assert caught.value.place == key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"1": []}', "group 1: has no member"),
        ('{"01": [0, 1]}', "group 01: is not written as 1"),
        ('{"1_0": [0, 1]}', "group 1_0: is not written as 10"),
        ('{"1": [0, 1], "1": [2, 3]}', "'1' is given twice"),
        ('{"1": [0, -1]}', "rank -1 is one that the network does not have"),
        ('{"1": [0, 1180591620717411303424]}', "that the network does not have"),
        ('{"99999999999": [0, 1]}', "is more than"),
        (DEEP, "nested too deeply"),
    ],
)
def test_groups_that_could_be_misread_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "groups.json"
    file.write_text(text)
    with pytest.raises(NetworkError) as caught:
        read_groups(file)
    assert str(caught.value).startswith(f"{file}")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("network.yml", f"topology: {DEEP}", "nested too deeply"),
        ("network.yml", "latency: [1]\nlatency: [2]\n", "'latency' is given twice"),
        ("system.json", DEEP, "nested too deeply"),
        ("system.json", '{"endpoint-delay": 1, "endpoint-delay": 2}', "'endpoint-delay' is given"),
        ("memory.json", '{"memory-type": 1, "memory-type": 2}', "'memory-type' is given"),
    ],
)
def test_nesting_and_keys_given_twice_are_refused(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    read = {"network.yml": read_network, "system.json": read_system, "memory.json": read_memory}
    with pytest.raises(NetworkError) as caught:
        read[name](file)  # type: ignore[operator]
    assert caught.value.file == str(file)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (DEEP, "nested too deeply"),
        ('{"1": [0, 1e999]}', "inf is no rank"),
        ('{"1": [0.9, 1]}', "0.9 is no rank"),
        ('{"1": [true, 0]}', "True is no rank"),
        ('{"1": "01"}', "'01' is no list"),
        ('{"01": [0, 1]}', "group '01' is not written as 1"),
        ('{"1": [0, 1], "1": [1, 0]}', "'1' is given twice"),
    ],
)
def test_groups_beside_the_traces_of_others_are_read_strictly(
    tmp_path: Path, text: str, words: str
) -> None:
    node = collective("int64_val", "bool_val")
    compute = et_def_pb2.Node(id=3, name="c", type=et_def_pb2.COMP_NODE, duration_micros=9)
    for rank in range(2):
        write_et(tmp_path / f"job.{rank}.et", [node, compute], version="0.0.4")
    file = tmp_path / "job.comm_groups.json"
    file.write_text(text)
    with pytest.raises(TraceError, match="communicator groups") as caught:
        read_et(tmp_path)
    assert caught.value.file == str(file)
    assert words in str(caught.value)


def test_keys_that_astra_sim_does_not_know_are_named(tmp_path: Path) -> None:
    network, system, memory = (tmp_path / name for name in ("n.yml", "s.json", "m.json"))
    network.write_text("topology: [Ring]\nbandwith: [1]\n")
    system.write_text('{"endpoint_delay": 1, "boost-mode": 1, "endpoint-delay": 2}')
    memory.write_text('{"memory_type": "MEMORY_POOL"}')
    found = [
        *unknown_keys(network, NetworkFile),
        *unknown_keys(system, SystemFile),
        *unknown_keys(memory, MemoryFile),
    ]
    assert [line.split("'")[1] for line in found] == ["bandwith", "endpoint_delay", "memory_type"]


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
        ({"involved_dim": {"int64_val": 1}}, "involved_dim is 1, no list of truth values"),
        ({"involved_dim": {"string_val": "10"}}, "involved_dim is '10', no list"),
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


def test_durations_have_a_limit(tmp_path: Path) -> None:
    node = et_def_pb2.Node(id=1, name="c", type=et_def_pb2.COMP_NODE, duration_micros=1 << 55)
    write_et(tmp_path / "job.0.et", [node], version="0.0.4")
    with pytest.raises(GraphError, match=f"duration_micros is {1 << 55}, more than") as caught:
        read_workload(tmp_path / "job")
    assert (caught.value.rank, caught.value.place) == (0, "node 1 (c)")


def test_files_of_ranks_that_the_network_lacks_are_counted(tmp_path: Path) -> None:
    node = et_def_pb2.Node(id=1, name="c", type=et_def_pb2.COMP_NODE)
    for rank in range(3):
        write_et(tmp_path / f"job.{rank}.et", [node], version="0.0.4")
    assert read_workload(tmp_path / "job", ranks=2).warnings == [
        "1 of 3 .et files are left out: the network has 2 ranks"
    ]
    assert not read_workload(tmp_path / "job", ranks=3).warnings


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
