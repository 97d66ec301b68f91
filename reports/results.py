"""What a conversion, an inspection and an export report, as plain records.

Their fields are the names that the JSON output promises. The face of the package fills them
from the other subpackages; the records of simulations and sweeps are in `sweeps.results`, those
of several jobs in `utility.results`.
"""

from __future__ import annotations

import msgspec

# msgspec resolves the annotations when it decodes, so these are needed at run time.
from ..graph.coverage import Coverage  # noqa: TC001
from ..simulator.results import RankTime  # noqa: TC001


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that was written as Chakra files.

    Attributes
    ----------
    trace, out : str
        What was read, and the directory that was written.
    files : list of str
        The .et files by rank, then the file of communicator groups.
    ranks, nodes : int
        Ranks traced, and nodes on all of them.
    steps : list of str
        The steps converted.
    dependency_model : str
        ``host``, ``stream`` or ``serial``.
    compression : float
        Nodes per node that is simulated, once chains are contracted.
    coverage : Coverage
        What became of everything in the trace.
    export_warnings : list of str
        What other tools see differently in the files.
    """

    trace: str
    out: str
    files: list[str]
    ranks: int
    nodes: int
    steps: list[str]
    dependency_model: str
    compression: float
    coverage: Coverage
    export_warnings: list[str]


class InspectedRank(msgspec.Struct, frozen=True, kw_only=True):
    """Who a rank is, and how much later than the first it began its first step."""

    rank: int
    host: str
    device: str
    start_offset_ns: int


class InspectedStepOfRank(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one rank.

    Attributes
    ----------
    rank : int
        Global rank number.
    annotation_ns : int
        How long its annotation lasts: the host's view.
    completion_ns : int
        When this rank alone completes the step, on the clock of the graph.
    """

    rank: int
    annotation_ns: int
    completion_ns: int


class InspectedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded step.

    Attributes
    ----------
    name : str
        Its annotation.
    measured_ns : int or None
        Its measured time over all ranks; None where the files carry no measured timeline.
    used : bool
        Whether it is one of the steady steps whose median is the headline.
    per_rank : list of InspectedStepOfRank
        Empty without a measured timeline.
    """

    name: str
    measured_ns: int | None
    used: bool
    per_rank: list[InspectedStepOfRank]


class InspectedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A process group; `operations` counts an operation once, however many ranks took part."""

    name: str
    description: str
    size: int
    ranks: list[int]
    operations: int


class InspectedCollective(msgspec.Struct, frozen=True, kw_only=True):
    """Operations of one type and size in one group.

    Attributes
    ----------
    type : str
        ``all-reduce``, ``all-to-all``, ..., ``send-recv``.
    group : str
        Name of the process group; of a send and receive the two ranks.
    group_size : int
        Ranks in it.
    bytes : int or None
        Input bytes of a rank (the shard of an all-gather, the whole input of a reduce-scatter);
        None where the trace does not say.
    dtype : str or None
        Data type; None where the trace does not say.
    count : int
        Operations, each counted once, however many ranks took part.
    transfer_ns_median : int or None
        Time that the bytes moved, from the last arrival to the end; None where it could not be
        measured.
    wait_ns_median, wait_ns_mean, wait_ns_max : int or None
        Time that a rank waited for others before, over ranks and operations. The last to arrive
        waits for nobody, so among two ranks the median is near 0 whatever the other waits.
    duration_ns_median : int
        Transfer and wait together as a profiler shows them, over ranks and operations.
    bus_gb_s_median : float or None
        Bus bandwidth as nccl-tests defines it, of the transfer alone.
    """

    type: str
    group: str
    group_size: int
    bytes: int | None
    dtype: str | None
    count: int
    transfer_ns_median: int | None
    wait_ns_median: int | None
    wait_ns_mean: int | None
    wait_ns_max: int | None
    duration_ns_median: int
    bus_gb_s_median: float | None


class InspectResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a trace.

    Attributes
    ----------
    trace, source : str
        Where it was read from, and its dialect.
    dependency_model : str
        The richest that it supports, or the one asked for.
    ranks, world_size : int
        Ranks traced, and ranks of the job.
    nodes : int
        Nodes of the graph on all ranks.
    rank_table : list of InspectedRank
        The ranks.
    steps : list of InspectedStep
        The recorded steps.
    measured_step_ns : int or None
        The headline of the measured steps.
    groups : list of InspectedGroup
        Process groups that communicate.
    collectives : list of InspectedCollective
        By total bytes, largest first.
    per_rank : list of RankTime
        Where the headline step goes on each rank, by a replay of the measured transfers.
    critical_path_ns : dict of str to int
        The same along the critical path of that replay.
    coverage : Coverage
        What the trace lacks, and what became of the rest.
    warnings : list of str
        What to know before trusting the numbers, those of the coverage included.
    """

    trace: str
    source: str
    dependency_model: str
    ranks: int
    world_size: int
    nodes: int
    rank_table: list[InspectedRank]
    steps: list[InspectedStep]
    measured_step_ns: int | None
    groups: list[InspectedGroup]
    collectives: list[InspectedCollective]
    per_rank: list[RankTime]
    critical_path_ns: dict[str, int]
    coverage: Coverage
    warnings: list[str]


class AstraVariant(msgspec.Struct, frozen=True, kw_only=True):
    """A network in the terms of ASTRA-sim, written as files.

    Attributes
    ----------
    name : str
        ``baseline``, a resource and a factor, or the name of a network; also its directory.
    resource : str or None
        What is better; None for the baseline and other networks.
    factor : float or None
        How many times.
    shape_change : str or None
        What is different in the shape of the network.
    traces : str
        Prefix of its .et files, from the directory of the export.
    ranks_by_npu : list of int
        Rank of the job that each npu is.
    topology : list of str
        Of each dimension.
    npus_count : list of int
        Ranks along each dimension.
    bandwidth_gib_s, latency_ns : list of float
        Of a link of each dimension, in ASTRA-sim's units.
    all_reduce : list of str
        Algorithm in each dimension.
    finish_cycles : int
        What a stock ASTRA-sim (congestion-unaware) prints of the last rank.
    step_ns : int
        Headline step there.
    utility_pct : float
        (step of the baseline - step) / step of the baseline x 100, both there.
    folded, lost : list of str
        What of the network ASTRA-sim gets in another form, and what it does not get.
    """

    name: str
    resource: str | None
    factor: float | None
    shape_change: str | None
    traces: str
    ranks_by_npu: list[int]
    topology: list[str]
    npus_count: list[int]
    bandwidth_gib_s: list[float]
    latency_ns: list[float]
    all_reduce: list[str]
    finish_cycles: int
    step_ns: int
    utility_pct: float
    folded: list[str]
    lost: list[str]


class AstraExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """A job and variants of its network, written for ASTRA-sim.

    Attributes
    ----------
    trace, out : str
        What was read, and the directory that was written.
    ranks : int
        Ranks in the files.
    steps : list of str
        Steps in the files, one after the other.
    dependency_model : str
        ``host``, ``stream`` or ``serial``.
    baseline_error_pct : float or None
        Of the baseline network under our own engine: (baseline - measured) / measured x 100.
    variants : list of AstraVariant
        The baseline first.
    assumptions : list of str
        What was assumed of the baseline network.
    export_warnings : list of str
        What the .et files simplify.
    warnings : list of str
        What to know before trusting the numbers.
    """

    trace: str
    out: str
    ranks: int
    steps: list[str]
    dependency_model: str
    baseline_error_pct: float | None
    variants: list[AstraVariant]
    assumptions: list[str]
    export_warnings: list[str]
    warnings: list[str]
