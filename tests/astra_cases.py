"""Reference cases of ASTRA-sim as workloads and experiments: inputs, and the cycles it printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from whatif.simulator.astra.experiment import Backend, Experiment
from whatif.simulator.astra.files import check_groups, check_memory, check_network, check_system
from whatif.simulator.astra.names import CommType, NodeType
from whatif.simulator.astra.workload import Builder

if TYPE_CHECKING:
    from pathlib import Path

    from whatif.simulator.astra.workload import Workload

Case = dict[str, Any]

_ATTRIBUTES = {
    "size": "comm_size",
    "src": "comm_src",
    "dst": "comm_dst",
    "tag": "comm_tag",
    "pg": "pg_name",
    "is_cpu_op": "is_cpu_op",
    "num_ops": "num_ops",
    "tensor_size": "tensor_size",
    "involved_dim": "involved_dim",
}


def read_cases(file: Path) -> list[Case]:
    return [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]


def experiment_of(case: Case) -> Experiment:
    options = case.get("cli") or {}
    return Experiment(
        network=check_network(case["network"]),
        system=check_system(case["system"]),
        groups=check_groups(case["comm_groups"] or {}),
        memory=check_memory(case.get("memory") or {}),
        backend=Backend(case["backend"]),
        queues_per_dim=options.get("num-queues-per-dim", 1),
        injection_scale=options.get("injection-scale", 1.0),
        rendezvous=options.get("rendezvous-protocol", False),
    )


def workload_of(case: Case) -> Workload:
    builder = Builder(case["name"])
    for nodes in case["ranks"]:
        rows = []
        for node in nodes:
            attributes = {_ATTRIBUTES[key]: node[key] for key in node.keys() & _ATTRIBUTES.keys()}
            if "comm_type" in node:
                attributes["comm_type"] = int(CommType[node["comm_type"]])
            rows.append(
                (
                    node["id"],
                    int(NodeType[node["type"]]),
                    node["name"],
                    node.get("duration_us", 0),
                    [*node["deps"], *node.get("data_deps", [])],
                    attributes,
                )
            )
        builder.add_rank(rows)
    return builder.build()
