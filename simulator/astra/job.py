"""A job of ours as ASTRA-sim sees it: its .et files read back, with settings made of a network.

Workload and groups are what `graph.chakra` writes, so that the parity engine, a stock ASTRA-sim
and every comparison are given the same. What becomes of the network is in `export`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...graph import chakra_format as fmt
from ...graph.chakra_write import write_et
from ...graph.steps import headline_ns, step_completions, step_times
from .experiment import Backend, Experiment
from .export import astra_inputs
from .files import read_groups
from .workload import Builder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from ...graph.columns import ExecutionGraph
    from ..network import Network
    from ..placement import Placement
    from .export import AstraInputs
    from .parity import Outcome
    from .workload import Workload

    Int = NDArray[np.int64]

_PREFIX = "job"


class AstraJob(NamedTuple):
    """A job of N nodes for ASTRA-sim.

    Attributes
    ----------
    inputs : AstraInputs
        What the network became.
    workload : Workload
        The nodes of each npu, among them those for gaps, tails and later starts of ranks.
    experiment : Experiment
        The settings.
    node, end : int64, shape (N,)
        Node of the workload that is each node of the graph, and the one that it ends with: its
        tail, or itself.
    origin_ns : int
        Time 0 of ASTRA-sim on the clock of the graph.
    """

    inputs: AstraInputs
    workload: Workload
    experiment: Experiment
    node: Int
    end: Int
    origin_ns: int


def astra_job(
    graph: ExecutionGraph,
    network: Network,
    placement: Placement,
    backend: Backend = Backend.UNAWARE,
) -> AstraJob:
    """Give ASTRA-sim a job on a network.

    Parameters
    ----------
    graph : ExecutionGraph
        The job.
    network, placement
        As for `export.astra_inputs`.
    backend : Backend
        Which of the analytical backends.

    Raises
    ------
    NetworkError
        If ASTRA-sim cannot express the network.
    GraphError
        If the graph is unsound.
    """
    inputs = astra_inputs(graph, network, placement)
    builder = Builder(graph.trace)
    node, end = np.zeros(graph.num_nodes, np.int64), np.zeros(graph.num_nodes, np.int64)
    first = 0
    with tempfile.TemporaryDirectory(prefix="whatif-") as name:
        files = write_et(graph, Path(name), _PREFIX, order=inputs.order)
        for rank, file in zip(inputs.order, files, strict=False):
            reader = _Reader(file)
            builder.add_rank(reader.nodes(), graph.trace)
            nodes = slice(int(graph.rank_ptr[rank]), int(graph.rank_ptr[rank + 1]))
            # Ids are 1, 2, ... in the order of the file.
            node[nodes], end[nodes] = (first - 1 + ids for ids in reader.columns())
            first += reader.count
        groups = read_groups(files[-1])
    experiment = Experiment(
        network=inputs.network,
        system=inputs.system,
        groups=groups,
        memory=inputs.memory,
        backend=backend,
    )
    return AstraJob(inputs, builder.build(), experiment, node, end, int(graph.base_ns.min()))


def step_ns(graph: ExecutionGraph, job: AstraJob, outcome: Outcome) -> int:
    """Headline step of a job in ASTRA-sim, from what the parity engine says of its nodes."""
    completion = step_completions(graph, outcome.completed_ns[job.end] + job.origin_ns)
    return headline_ns(step_times(completion.max(axis=1)))


class _Reader:
    """Reads a file of ours as ASTRA-sim does, and notes which node is which of the graph."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._ids: dict[int, int] = {}  # id of each node of the graph by its place in the rank
        self._tails: dict[int, int] = {}  # id of a tail by the id of what it is of
        self.count = 0

    def nodes(
        self,
    ) -> Iterator[tuple[int, int, str, int, Iterable[int], Mapping[str, Any]]]:
        """Yield the nodes for a `Builder`."""
        from chakra.schema.protobuf import et_def_pb2

        messages = fmt.read_messages(self._file)
        next(messages)
        for offset, message in messages:
            node = fmt.parse(et_def_pb2.Node, message, self._file, offset)
            attributes = fmt.attributes(node)
            part = attributes.get(fmt.PART)
            if part == "tail":
                self._tails[node.data_deps[0]] = node.id
            elif part is None:
                self._ids[attributes.get(fmt.POSITION, len(self._ids))] = node.id
            self.count += 1
            deps = [*node.ctrl_deps, *node.data_deps]
            yield node.id, node.type, node.name, node.duration_micros, deps, attributes

    def columns(self) -> tuple[Int, Int]:
        """Give the id of every node of the rank, and of what it ends with."""
        ids = np.array([self._ids[place] for place in range(len(self._ids))], np.int64)
        ends = np.array([self._tails.get(ident, ident) for ident in ids.tolist()], np.int64)
        return ids, ends
