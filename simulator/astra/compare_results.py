"""What a comparison of the two physics reports, as plain records."""

from __future__ import annotations

import msgspec

# msgspec resolves the annotations when it decodes, so this is needed at run time.
from ..network import Network  # noqa: TC001


class ComparedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation, alone on the network, in the native engine and in ASTRA-sim.

    Attributes
    ----------
    type : str
        ``all-reduce``, ..., ``send-recv``.
    shown_as : str
        What the .et files show in its place; the same where nothing is.
    group : str
        Name of the process group; of a send and receive the two ranks.
    group_size : int
        Ranks in it that the files hold.
    bytes : int
        Input bytes of a rank, as ASTRA-sim gets them.
    count : int
        Operations, each counted once.
    native_ns : int
        Transfer time in the native engine.
    native_tiers_ns : dict of str to int
        What of it is paid to each tier, latency and bandwidth together.
    native_other_ns : int
        What is paid to none: base and endpoint cost, or a measured time that is kept.
    astra_ns : int
        From the moment all members issue it to its end on the last.
    astra_tiers_ns : dict of str to int
        What it would save if the links of a tier cost nothing.
    astra_other_ns : int
        The rest: the waits before messages, reductions, rounding.
    astra_after_last_ns : int
        In the run, from the moment the last member issues it to its end on each, the mean over
        members and operations. Less than alone where arrivals are skewed: ASTRA-sim has no
        barrier, members begin before the last has come and leave one by one.
    rounding_bytes : int
        Bytes that ASTRA-sim sends in excess because chunks are of equal whole size, of at least a
        byte for every rank of the job.
    gib_ns : int
        What it would be shorter by if our numbers were taken for ASTRA-sim's GB/s, which are
        GiB/s.
    slot_wait_ns : int
        How long it was ready in the run, and waited for the only communication slot of its rank;
        the mean over members and operations.
    unpaid : dict of str to int
        Of a group smaller than the job: neighbours in its ring that differ in a tier, and whose
        messages pay an inner one only.
    neighbours : int
        Neighbours in that ring; 0 for other operations.
    why : list of str
        The same in words.
    """

    type: str
    shown_as: str
    group: str
    group_size: int
    bytes: int
    count: int
    native_ns: int
    native_tiers_ns: dict[str, int]
    native_other_ns: int
    astra_ns: int
    astra_tiers_ns: dict[str, int]
    astra_other_ns: int
    astra_after_last_ns: int
    rounding_bytes: int
    gib_ns: int
    slot_wait_ns: int
    unpaid: dict[str, int]
    neighbours: int
    why: list[str]


class ComparedRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank in both physics, over all recorded steps.

    Attributes
    ----------
    rank : int
        Global rank number.
    native_ns, astra_ns : int
        From the first moment of the job to the end of the last node of the rank.
    measured_ns : int or None
        The same as it was measured.
    slot_wait_ns : int
        Time that its operations were ready in ASTRA-sim and waited for the communication slot.
    compute_wait_ns : int
        The same of its computations and gaps, for the slots of computation: summed over nodes,
        of which several can wait at a time.
    """

    rank: int
    native_ns: int
    astra_ns: int
    measured_ns: int | None
    slot_wait_ns: int
    compute_wait_ns: int


class CompareResult(msgspec.Struct, frozen=True, kw_only=True):
    """One job on one network in both physics.

    Attributes
    ----------
    trace : str
        Where the job was read from.
    ranks : int
        Ranks in it.
    steps : list of str
        The recorded steps.
    dependency_model : str
        ``host``, ``stream`` or ``serial``.
    network : Network
        The network.
    placement : str
        Where the ranks sit in it.
    native_step_ns, astra_step_ns : int
        The headline step.
    measured_step_ns : int or None
        The same as it was measured.
    difference_pct : float
        (ASTRA-sim - native) / native x 100.
    unconverted_step_ns : int
        The step in ASTRA-sim if our numbers were taken for its own GB/s, which are GiB/s.
    sharing_ns : int
        Time by which transfers slow each other in the native engine, summed over operations; in
        the congestion-unaware backend they never do.
    stretched_ns : int
        Time that the native engine adds, over all operations, to tails that grow with their
        transfers; in ASTRA-sim they are as measured.
    operations : list of ComparedOperation
        Those that make the largest difference first.
    per_rank : list of ComparedRank
        The ranks.
    summary : list of str
        Where the difference comes from, in words.
    folded, lost : list of str
        What of the network ASTRA-sim gets in another form, and what it does not get.
    warnings : list of str
        What to know before trusting the numbers.
    """

    trace: str
    ranks: int
    steps: list[str]
    dependency_model: str
    network: Network
    placement: str
    native_step_ns: int
    astra_step_ns: int
    measured_step_ns: int | None
    difference_pct: float
    unconverted_step_ns: int
    sharing_ns: int
    stretched_ns: int
    operations: list[ComparedOperation]
    per_rank: list[ComparedRank]
    summary: list[str]
    folded: list[str]
    lost: list[str]
    warnings: list[str]
