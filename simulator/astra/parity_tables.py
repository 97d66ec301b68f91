"""The tables that the parity engine plays in: nodes, ranks, chunks, queues, messages, links.

Rows of structured arrays, so that compiled code and Python name their columns alike. Free rows of a
table are a list, each leading to the next. Nothing is compiled here: what happens in the tables is
in `parity_loop`, who fills them is `parity`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    # No type checker knows the fields of records, and to compiled code int64 are integers.
    Records: TypeAlias = Any
    Int = NDArray[Any]
    Float = NDArray[np.float64]

NODE = np.dtype(
    [
        ("kind", np.int64),
        ("slot", np.int64),
        ("rank", np.int64),
        ("duration", np.int64),
        ("computes", np.int64),  # 1 if its duration counts as computation
        ("odd", np.int64),  # 1 if ASTRA-sim's statistics throw on it
        ("plan", np.int64),
        ("place", np.int64),
        ("peer", np.int64),
        ("tag", np.int64),
        ("bytes", np.int64),
        ("pool", np.int64),
    ],
    align=True,
)
RANK = np.dtype(
    [
        ("ready", np.int64),  # nodes that wait for their slot
        ("running", np.int64),
        ("computed", np.int64),  # ns in the slot of computation
        ("finish", np.int64),
        ("odd", np.int64),
        ("unseen", np.int64),  # last of the skipped nodes of a pass
        ("chunks", np.int64),  # created so far
        ("left", np.int64),  # chunks of the collective in progress
        ("entered", np.int64),  # when it was issued
        ("last_ns", np.int64),  # last completion; of those in its ns:
        ("held", np.int64),  # slots that they held, as bits
        ("released", np.int64),  # slots that nodes wait for whom they released
        ("by_message", np.int64),
        ("doubt_ns", np.int64),  # where the order on the agenda is not certain
    ],
    align=True,
)
CHUNK = np.dtype(
    [
        ("node", np.int64),
        ("phase", np.int64),  # row of PHASE
        ("last_phase", np.int64),
        ("first_phase", np.int64),
        ("tag", np.int64),
        ("queue", np.int64),
        ("sign", np.int64),
        ("place", np.int64),  # in the ring of the phase
        ("made", np.int64),  # tokens
        ("latest", np.int64),  # of the tokens that are ready
        ("credits", np.int64),
        ("sent", np.int64),
        ("received", np.int64),
        ("role", np.int64),  # in a tree: height above the leaves, -1 at the root
        ("parent", np.int64),
        ("left", np.int64),
        ("right", np.int64),
        ("next", np.int64),
    ],
    align=True,
)
QUEUE = np.dtype([("running", np.int64), ("first", np.int64), ("last", np.int64)], align=True)
EVENT = np.dtype(
    [
        ("kind", np.int64),
        ("subject", np.int64),
        ("token", np.int64),
        ("since", np.int64),  # when it was put on an agenda
        ("next", np.int64),
    ],
    align=True,
)
LIST = np.dtype(
    [
        ("time", np.int64),
        ("rank", np.int64),  # of an agenda; -1 for the entries of a ns
        ("first", np.int64),
        ("last", np.int64),
        ("next", np.int64),  # in the table
    ],
    align=True,
)
MESSAGE = np.dtype(
    [
        ("src", np.int64),
        ("dst", np.int64),
        ("tag", np.int64),
        ("bytes", np.int64),
        ("kind", np.int64),  # whom it concerns: of a message in flight the sender
        ("subject", np.int64),
        ("device", np.int64),  # where it is, or goes to
        ("next", np.int64),
    ],
    align=True,
)
LINK = np.dtype([("busy", np.int64), ("first", np.int64), ("last", np.int64)], align=True)
JOIN = np.dtype(
    [
        ("plan", np.int64),
        ("base", np.int64),
        ("number", np.int64),
        ("count", np.int64),
        ("next", np.int64),
    ],
    align=True,
)
MEMORY = np.dtype([("busy", np.int64), ("first", np.int64), ("last", np.int64)], align=True)


class Given(NamedTuple):
    """What does not change in a run (R ranks, N nodes, D dimensions)."""

    nodes: Records  # NODE
    next_ptr: Int  # (N + 1,) dependents
    next_node: Int
    ready_ptr: Int  # (SLOTS * R + 1,) room of each rank and slot among the ready nodes
    plans: Records  # PLAN
    phases: Records  # PHASE
    steps: Records  # STEP
    members: Int
    counts: Int  # (D,)
    topology: Int  # (D,)
    bandwidth: Float  # (D,) bytes per ns
    latency: Float  # (D,)
    ranks: int
    queues_per_dim: int
    queue_limit: int
    aware: bool
    rendezvous: bool
    recurrences: bool


class State(NamedTuple):
    """What changes in a run."""

    scalars: Int
    pending: Int  # (N,) dependencies that are not complete
    issued: Int  # (N,) when, or -1
    completed: Int  # (N,)
    unseen: Int  # (N,) the skipped node before it in its pass
    ranks: Records  # RANK
    busy: Int  # (R, SLOTS) node that holds a slot, or -1
    ready: Int  # heaps of nodes that wait, by rank and slot
    ready_count: Int  # (R, SLOTS)
    queues: Records  # QUEUE, (R * D * Q,)
    turns: Int  # (R, D, 3) next queue of ordinary phases, and of both directions of localBWAware
    trees: Int  # (R, 10, D) trees built so far
    group_chunks: Int  # chunks created on each member place of each communicator
    group_at: Int  # (P,) first of them by plan
    chunk_queues: Int  # (chunks, phases) queue and sign of each phase
    chunks: Records
    events: Records
    lists: Records
    messages: Records
    list_table: Int
    message_table: Int
    times: Int  # heap of the ns that have entries
    links: Records
    memories: Records
    joins: Records
    join_table: Int
