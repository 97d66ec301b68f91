"""A run of a real ASTRA-sim counts only when every rank has reported, and always ends.

The binaries that behave badly are small programs of our own, run for real. The tests at the end
need a real ASTRA-sim and skip where none is found.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from chakra.schema.protobuf import et_def_pb2 as schema
from chakra.src.third_party.utils.protolib import encodeMessage
from whatif.base.errors import EngineError, GraphError, TraceError, UsageError
from whatif.graph.columns import Collective
from whatif.simulator.astra import external
from whatif.simulator.astra.binary import VARIABLE, find_binary
from whatif.simulator.astra.external import ExperimentFiles, Limits, run_binary
from whatif.simulator.network import Network, Tier, save_network

import whatif

from .transfers import program as program_of
from .transfers import traced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXAMPLE = Path(__file__).parent.parent / "examples" / "ddp_gloo_2ranks"

RANKS = 2
REPORT = (
    "[2026-03-25 17:20:47.000] [workload] [info] sys[{}] finished, {} cycles, "
    "exposed communication {} cycles."
)


@pytest.fixture
def files(tmp_path: Path) -> ExperimentFiles:
    """An experiment whose files are there; the programs below do not read them."""
    for name in ("network.yml", "system.json", "memory.json", "w.0.et", "w.1.et"):
        (tmp_path / name).write_text("")
    return ExperimentFiles(
        workload=tmp_path / "w",
        network=tmp_path / "network.yml",
        system=tmp_path / "system.json",
        memory=tmp_path / "memory.json",
    )


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Path]:
    """Make an executable of lines of Python; `report(rank, finish, exposed)` is there for them."""

    def made(*lines: str) -> Path:
        path = tmp_path / "AstraSim_Analytical_Congestion_Unaware"
        path.write_text(
            "\n".join(
                [
                    f"#!{sys.executable}",
                    "import os, signal, subprocess, sys, time",
                    "def report(rank, finish, exposed):",
                    f"    print({REPORT!r}.format(rank, finish, exposed), flush=True)",
                    *lines,
                    "",
                ]
            )
        )
        path.chmod(0o755)
        return path

    return made


def test_reports_are_read_in_any_order_and_remarks_kept(
    program: Callable[..., Path], files: ExperimentFiles
) -> None:
    binary = program(
        "print('[2026-03-25 17:20:47.000] [system::topology::RingTopology] [info] ring of node 0')",
        "report(1, 12, 2)",
        "print('[2026-03-25 17:20:47.000] [statistics] [info] sys[1], Wall time: 12')",
        "print('[2026-03-25 17:20:47.000] [workload] [critical] something odd')",
        "report(0, 11, 2**64 - 5)",
    )
    run = run_binary(binary, files, RANKS)
    assert run.finish_cycles == (11, 12)
    assert run.exposed_cycles == (2**64 - 5, 2)
    assert run.warnings == ["ASTRA-sim said: [workload] [critical] something odd"]


def test_it_is_given_absolute_paths_and_options(
    program: Callable[..., Path],
    tmp_path: Path,
    files: ExperimentFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    groups = tmp_path / "empty_groups.json"
    groups.write_text('{"1": [0, 1]}')
    relative = ExperimentFiles(
        *(
            Path(os.path.relpath(path))
            for path in (files.workload, files.network, files.system, files.memory, groups)
        )
    )
    binary = program(
        "given = dict(part[2:].split('=', 1) for part in sys.argv[1:])",
        "assert os.path.isfile(given['workload-configuration'] + '.1.et')",
        "assert os.path.isfile(given['network-configuration'])",
        # A path with this word would mean no groups at all.
        "assert 'empty' not in given['comm-group-configuration']",
        "assert open(given['comm-group-configuration']).read() == '{\"1\": [0, 1]}'",
        "assert given['num-queues-per-dim'] == '2'",
        "report(0, 1, 1); report(1, 1, 1)",
    )
    assert run_binary(binary, relative, RANKS, options={"num-queues-per-dim": "2"}).warnings == []


def test_a_rank_that_does_not_report_is_named_whatever_the_exit_status(
    program: Callable[..., Path], files: ExperimentFiles
) -> None:
    binary = program(
        "report(0, 11, 2)",
        "said = '[t] [HardwareResource] [critical] '",
        "print(said + '!!!Hardware Resource sys.id=1 has unreleased nodes!!!')",
        "print(said + 'GPU comm node id: 7')",
    )
    with pytest.raises(EngineError) as error:
        run_binary(binary, files, RANKS)
    assert error.value.rank == 1
    assert "exit status 0; 1 of 2 ranks had reported, not rank 1" in str(error.value)
    assert "rank 1 waits in its GPU comm node 7" in str(error.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("report(0, 11, 2)", "rank 0 reported twice"),
        ("report(2, 11, 2)", "rank 2 of 2 reported"),
    ],
)
def test_contradictory_reports_are_refused(
    program: Callable[..., Path], files: ExperimentFiles, line: str, said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        run_binary(program("report(0, 11, 2)", "report(1, 11, 2)", line), files, RANKS)


def test_a_crash_names_the_signal_and_what_was_said(
    program: Callable[..., Path], files: ExperimentFiles
) -> None:
    binary = program(
        'print("EventQueue.cpp:33: Assertion `time > now\' failed.", file=sys.stderr, flush=True)',
        "os.kill(os.getpid(), signal.SIGABRT)",
    )
    with pytest.raises(EngineError, match=r"SIGABRT; 0 of 2 .* it said: .*Assertion `time > now'"):
        run_binary(binary, files, RANKS)


def test_a_crash_after_the_last_report_is_a_warning(
    program: Callable[..., Path], files: ExperimentFiles
) -> None:
    binary = program("report(0, 11, 2); report(1, 12, 3)", "os.kill(os.getpid(), signal.SIGSEGV)")
    run = run_binary(binary, files, RANKS)
    assert run.finish_cycles == (11, 12)
    assert run.warnings == ["all ranks had reported before ASTRA-sim was ended by SIGSEGV"]


def test_silence_is_stopped_with_all_that_was_started(
    program: Callable[..., Path], files: ExperimentFiles, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    binary = program(
        "report(0, 11, 2)",
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])",
        f"open({str(pid)!r}, 'w').write(str(child.pid))",
        "time.sleep(600)",
    )
    with pytest.raises(EngineError, match=r"said nothing for 0\.8 s .* not rank 1"):
        run_binary(binary, files, RANKS, limits=Limits(time_s=60, silence_s=0.8))
    child = Path("/proc", pid.read_text())
    if child.parent.exists():
        deadline = time.monotonic() + 10
        while _runs(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not _runs(child)


def _runs(process: Path) -> bool:
    """Whether a process is more than an entry that nobody has waited for yet."""
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_binary_that_talks_for_ever_is_stopped(
    program: Callable[..., Path], files: ExperimentFiles
) -> None:
    binary = program("while True: print('still there', flush=True); time.sleep(0.01)")
    with pytest.raises(EngineError, match=r"took longer than 0\.7 s and was stopped; 0 of 2"):
        run_binary(binary, files, RANKS, limits=Limits(time_s=0.7, silence_s=60))


def test_a_binary_that_goes_on_without_output_is_stopped(
    program: Callable[..., Path], files: ExperimentFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "_LAST_BREATH_S", 0.3)
    binary = program("report(0, 1, 1)", "os.close(1); os.close(2)", "time.sleep(600)")
    with pytest.raises(EngineError, match="closed its output and went on and was stopped"):
        run_binary(binary, files, RANKS)


def test_a_trace_too_few_is_named(program: Callable[..., Path], files: ExperimentFiles) -> None:
    with pytest.raises(TraceError, match="the network has 3 ranks") as error:
        run_binary(program("report(0, 1, 1)"), files, 3)
    assert error.value.rank == 2


def test_a_missing_file_is_named(program: Callable[..., Path], files: ExperimentFiles) -> None:
    files.system.unlink()
    with pytest.raises(UsageError, match=r"system\.json: there is no such file"):
        run_binary(program("report(0, 1, 1)"), files, RANKS)


def test_compressed_traces_are_unpacked(
    program: Callable[..., Path], files: ExperimentFiles, tmp_path: Path
) -> None:
    (tmp_path / "w.1.et").unlink()
    with gzip.open(tmp_path / "w.1.et.gz", "wb") as file:
        file.write(b"content")
    binary = program(
        "(prefix,) = (a.split('=')[1] for a in sys.argv if a.startswith('--workload'))",
        "assert open(prefix + '.1.et').read() == 'content'",
        "report(0, 1, 1); report(1, 1, 1)",
    )
    assert run_binary(binary, files, RANKS).finish_cycles == (1, 1)
    packed = (tmp_path / "w.1.et.gz").read_bytes()
    (tmp_path / "w.1.et.gz").write_bytes(packed[:-4])
    with pytest.raises(TraceError, match="truncated"):
        run_binary(binary, files, RANKS)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_limit_that_makes_no_sense_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="limit"):
        Limits(time_s=seconds)


def test_the_binary_is_found_where_upstream_builds_it(
    program: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "checkout" / "build" / "astra_analytical" / "build" / "bin"
    built.mkdir(parents=True)
    binary = Path(shutil.move(program("report(0, 1, 1)"), built))
    assert find_binary(tmp_path / "checkout", "congestion_unaware", {}) == binary
    environ = {VARIABLE: str(tmp_path / "checkout")}
    assert find_binary(None, "congestion_unaware", environ) == binary
    assert find_binary(binary, "congestion_unaware", {}) == binary
    with pytest.raises(UsageError, match="holds no congestion_aware binary"):
        find_binary(None, "congestion_aware", environ)
    with pytest.raises(UsageError, match="is the congestion_unaware binary"):
        find_binary(binary, "congestion_aware", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "third_party").mkdir()
    (tmp_path / "third_party" / "astra-sim").symlink_to(tmp_path / "checkout")
    assert find_binary(None, "congestion_unaware", {}).resolve() == binary.resolve()


def test_what_is_no_binary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist \\(from --astra-sim-bin\\)"):
        find_binary(tmp_path / "no", "congestion_unaware", {})
    with pytest.raises(UsageError, match=f"does not exist \\(from {VARIABLE}\\)"):
        find_binary(None, "congestion_unaware", {VARIABLE: str(tmp_path / "no")})
    (tmp_path / "text").write_text("")
    with pytest.raises(UsageError, match="not an executable file"):
        find_binary(tmp_path / "text", "congestion_unaware", {})
    (tmp_path / "text").chmod(0o755)
    (tmp_path / "text").write_bytes(b"\x7fELFnonsense")
    files = ExperimentFiles(*[tmp_path / "text"] * 4)
    (tmp_path / "text.0.et").write_text("")
    with pytest.raises(UsageError, match="cannot be started"):
        run_binary(tmp_path / "text", files, 1)


# From here on with a real ASTRA-sim.


@pytest.fixture(scope="session")
def astra_sim() -> Callable[[str], Path]:
    """Find the real binary of a backend, or skip where there is none."""

    def found(backend: str) -> Path:
        try:
            return find_binary(None, backend)
        except UsageError as error:
            pytest.skip(f"needs a real ASTRA-sim: {error}")

    found("congestion_unaware")
    return found


def write_case(case: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Write a reference case as ASTRA-sim's files; arguments for `simulate_astra`."""
    (place / "network.yml").write_text(yaml.safe_dump(case["network"]))
    (place / "system.json").write_text(json.dumps(case["system"]))
    arguments: dict[str, Any] = {
        "et": place / "case",
        "astra_network": place / "network.yml",
        "astra_system": place / "system.json",
        "backend": case["backend"],
        "options": {name: str(value).lower() for name, value in (case.get("cli") or {}).items()},
    }
    for key, name in (("comm_groups", "astra_groups"), ("memory", "astra_memory")):
        if case.get(key):
            arguments[name] = place / f"{name}.json"
            arguments[name].write_text(json.dumps(case[key]))
    for rank, nodes in enumerate(case["ranks"]):
        with (place / f"case.{rank}.et").open("wb") as file:
            encodeMessage(file, schema.GlobalMetadata(version="0.0.4"))
            for node in nodes:
                encodeMessage(file, _message(node))
    return arguments


_ATTRIBUTES = {
    "size": "comm_size",
    "src": "comm_src",
    "dst": "comm_dst",
    "tag": "comm_tag",
    "num_ops": "num_ops",
    "tensor_size": "tensor_size",
    "comm_priority": "comm_priority",
}


def _message(node: Mapping[str, Any]) -> Any:
    message = schema.Node(
        id=node["id"],
        name=node.get("name", ""),
        type=schema.NodeType.Value(node["type"]),
        ctrl_deps=node.get("deps", []),
        data_deps=node.get("data_deps", []),
        duration_micros=node.get("duration_us", 0),
    )
    add = message.attr.add
    for key, name in _ATTRIBUTES.items():
        if key in node:
            add(name=name, int64_val=node[key])
    if "is_cpu_op" in node:
        add(name="is_cpu_op", bool_val=node["is_cpu_op"])
    if "comm_type" in node:
        add(name="comm_type", int64_val=schema.CollectiveCommType.Value(node["comm_type"]))
    if "pg" in node:
        add(name="pg_name", string_val=node["pg"])
    if "involved_dim" in node:
        add(name="involved_dim", bool_list=schema.BoolList(values=node["involved_dim"]))
    return message


def cases(shared_data: Path, name: str) -> list[dict[str, Any]]:
    text = (shared_data / "astra" / f"{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_real_one_and_ours_agree_on_every_example(
    astra_sim: Callable[[str], Path], shared_data: Path, tmp_path: Path
) -> None:
    for case in cases(shared_data, "examples"):
        place = tmp_path / case["name"].replace("/", "_")
        place.mkdir()
        arguments = write_case(case, place)
        binary = astra_sim(case["backend"])
        there = whatif.simulate_astra(**arguments, engine="astra-sim", astra_sim_bin=binary)
        here = whatif.simulate_astra(**arguments)
        assert there.per_rank == here.per_rank, case["name"]
        assert [row.finish_cycles for row in there.per_rank] == case["finish"], case["name"]
        assert [row.exposed_cycles for row in there.per_rank] == case["exposed"], case["name"]
        assert (there.engine, here.engine) == ("astra-sim", "whatif")


def test_a_real_one_and_ours_agree_on_a_recorded_job(
    astra_sim: Callable[[str], Path],
) -> None:
    graph = whatif.load(EXAMPLE, model="serial", processes=1)
    here = whatif.simulate_astra(graph)
    there = whatif.simulate_astra(
        graph, engine="astra-sim", astra_sim_bin=astra_sim("congestion_unaware")
    )
    assert there.per_rank == here.per_rank
    assert here.step_ns is not None
    assert there.step_ns is None


def test_a_real_one_and_ours_agree_on_a_job_of_eight_gpus(
    astra_sim: Callable[[str], Path], shared_data: Path
) -> None:
    trace = shared_data / "traces" / "gpu" / "megatron_tp8_a100x8"
    graph = whatif.load(trace, model="serial", processes=1)
    for network in (None, "dgx_h100"):
        here = whatif.simulate_astra(graph, network=network)
        there = whatif.simulate_astra(
            graph,
            network=network,
            engine="astra-sim",
            astra_sim_bin=astra_sim("congestion_unaware"),
        )
        assert there.per_rank == here.per_rank


def test_a_real_one_prints_the_cycles_that_an_export_promises(
    astra_sim: Callable[[str], Path], tmp_path: Path
) -> None:
    """Any topology and algorithm, on two tiers and on one."""
    inner = Tier(size=4, bandwidth_gb_s=300, latency_ns=1010)
    outer = Tier(size=2, bandwidth_gb_s=25, latency_ns=5010)
    ring = Tier(topology="ring", size=2, bandwidth_gb_s=50, latency_ns=510)
    mesh = Tier(topology="fully_connected", size=8, bandwidth_gb_s=448, latency_ns=700)
    networks = [
        Network(name="switches", tiers=[inner, outer]),
        Network(name="torus", tiers=[ring, ring, ring]),
        Network(name="mesh", tiers=[mesh]),
        *(
            Network(name=name, tiers=[inner, outer], algorithms={"all-reduce": name})
            for name in ("halving-doubling", "tree", "direct", "hierarchical-pipelined")
        ),
    ]
    for network in networks:
        save_network(network, tmp_path / f"{network.name}.yaml")
    size = 1 << 22
    graph = traced(
        program_of(
            [
                (tuple(range(8)), (Collective.ALL_REDUCE, size, 0)),
                ((0, 1, 2, 3), (Collective.ALL_GATHER, size, 0)),
                ((0, 4), (Collective.REDUCE_SCATTER, size, 0)),
                (tuple(range(8)), (Collective.ALL_TO_ALL, size, 0)),
            ],
            ranks=8,
            steps=2,
        ),
        networks[0],
    )
    result = whatif.astra_export(
        graph,
        tmp_path / "out",
        resources=["scaleup_bw", "scaleout_bw", "scaleup_domain"],
        network=tmp_path / "switches.yaml",
        presets=[tmp_path / f"{network.name}.yaml" for network in networks[1:]],
    )
    assert len(result.variants) == 10
    for variant in result.variants:
        settings = tmp_path / "out" / variant.name
        traces = tmp_path / "out" / variant.traces
        files = ExperimentFiles(
            workload=traces,
            network=settings / "network.yml",
            system=settings / "system.json",
            memory=settings / "memory.json",
            groups=Path(f"{traces}.comm_groups.json"),
        )
        run = run_binary(astra_sim("congestion_unaware"), files, 8)
        assert max(run.finish_cycles) == variant.finish_cycles, variant.name


def test_a_stall_of_a_real_one_is_traced_back_to_the_node_at_fault(
    astra_sim: Callable[[str], Path], shared_data: Path, tmp_path: Path
) -> None:
    (case,) = (
        case for case in cases(shared_data, "errors") if case["name"] == "order-mismatch-free-nodes"
    )
    arguments = write_case(case, tmp_path)
    with pytest.raises(EngineError) as error:
        whatif.simulate_astra(
            **arguments, engine="astra-sim", astra_sim_bin=astra_sim(case["backend"])
        )
    text = str(error.value)
    assert "ended with exit status 0; 1 of 3 ranks had reported, not ranks 0, 1" in text
    assert "rank 0 waits in its GPU comm node 1; rank 1 waits in its GPU comm node 2" in text
    assert "the cause in the inputs: " in text


def test_what_would_never_end_is_not_started(
    program: Callable[..., Path], shared_data: Path, tmp_path: Path
) -> None:
    (case,) = (
        case
        for case in cases(shared_data, "errors")
        if case["name"] == "all-gather-smaller-than-splits"
    )
    started = tmp_path / "started"
    arguments = write_case(case, tmp_path)
    with pytest.raises(GraphError, match="for ever"):
        whatif.simulate_astra(
            **arguments,
            engine="astra-sim",
            astra_sim_bin=program(f"open({str(started)!r}, 'w')"),
        )
    assert not started.exists()
