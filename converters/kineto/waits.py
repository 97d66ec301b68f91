"""What streams and host threads waited for: recorded where the trace says so, otherwise inferred.

`streams` reads what is recorded, `inference` works out the rest from all ranks together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .calls import Programs, ordering_calls
from .inference import RankCalls, infer
from .names import Call
from .streams import LaunchOrder, StreamWait, launch_order, recorded_waits, runtime_calls

if TYPE_CHECKING:
    from ..nodes import RankNodes
    from ..windows import Windows
    from .comms import Comms
    from .device import Device
    from .events import KinetoTrace


@dataclass(frozen=True)
class WaitsInput:
    """What is known of one rank before its waits are."""

    trace: KinetoTrace
    comms: Comms
    device: Device
    windows: Windows


@dataclass(frozen=True)
class Waits:
    """What the streams and the host threads of one rank waited for.

    Attributes
    ----------
    order : LaunchOrder
        Device events by launch.
    calls : list of (int, int, Call)
        Runtime calls that order work: begin, row, and what they do.
    recorded : bool
        Whether the trace says what was waited for.
    streams : list of StreamWait
        Streams that wait for streams.
    host : dict of int to list of int
        Device events that synchronising calls (by row) waited for.
    contradicted : int
        Waits left out because the measured times rule them out.
    choices, assumed : int
        Waits between streams with several possible targets, and those of them for which nothing
        told one from the other.
    assumed_calls : frozenset of int
        Synchronising calls (by row) that were never seen to wait: nothing tells what for.
    """

    order: LaunchOrder
    calls: list[tuple[int, int, Call]]
    recorded: bool
    streams: list[StreamWait]
    host: dict[int, list[int]]
    contradicted: int = 0
    choices: int = 0
    assumed: int = 0
    assumed_calls: frozenset[int] = frozenset()


def find_waits(ranks: list[WaitsInput]) -> list[Waits]:
    """Find what streams and the host waited for.

    Parameters
    ----------
    ranks : list of WaitsInput
        All ranks of the job: what one shows is used for the others.

    Returns
    -------
    list of Waits
        By rank, in the order given.
    """
    found: list[Waits | None] = []
    unknown: list[tuple[int, LaunchOrder, list[tuple[int, int, Call]]]] = []
    inputs: list[RankCalls] = []
    programs = Programs()
    for i, rank in enumerate(ranks):
        order = launch_order(rank.trace, rank.device)
        calls = runtime_calls(rank.trace)
        streams, host = recorded_waits(rank.trace, order)
        if streams or host:
            found.append(Waits(order, calls, True, streams, host))
            continue
        found.append(None)
        unknown.append((i, order, calls))
        inputs.append(
            RankCalls(
                rank.trace,
                rank.comms,
                rank.device,
                ordering_calls(
                    rank.trace, rank.comms, rank.device, order, rank.windows, calls, programs
                ),
            )
        )
    for (i, order, calls), result in zip(unknown, infer(inputs), strict=True):
        found[i] = Waits(
            order,
            calls,
            False,
            result.streams,
            result.host,
            result.contradicted,
            result.waits,
            result.assumed,
            frozenset(result.assumed_calls),
        )
    return [waits for waits in found if waits is not None]


def add_stream_waits(nodes: RankNodes, device: Device, waits: Waits) -> None:
    """Add the edges between streams.

    Parameters
    ----------
    nodes : RankNodes
        Nodes of the rank, whose dependencies are extended.
    device : Device
        Its device work.
    waits : Waits
        What its streams waited for.
    """
    what = "waits between streams: recorded"
    if not waits.recorded:
        seen = any(kind is Call.WAIT_EVENT for _, _, kind in waits.calls)
        what = f"waits between streams: inferred from {'runtime calls and ' if seen else ''}times"
    if waits.contradicted:
        nodes.counts[f"{what}: contradicted by the measured times"] += waits.contradicted
    for wait in waits.streams:
        for waiter in device.nodes_of[wait.waiter]:
            for target in device.nodes_of[wait.target]:
                nodes.after(waiter, target, what)
