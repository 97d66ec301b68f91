"""A network of its own for a few processes, with links of a chosen bandwidth.

Here are the commands that make it, and the context that takes it down again. Each rank gets a
network namespace; a pair of virtual Ethernet devices (veth) joins it to a bridge, and a token
bucket filter (tc tbf) on both ends of the pair holds both directions to the same rate. The
bridge has a namespace of its own, so the machine's own namespace never sees a device, an address
or a firewall rule of the lab, and nothing in the lab can reach out. What runs on the links is
not decided here: see run_lab.py.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Command = list[str]

DEVICE = "lab0"
BUCKET_NS = 1_000_000
# The filter drops what exceeds its bucket, and a bucket must hold a frame of 1514 bytes.
MIN_MBIT = 20
# Queues of a cluster's lossless network drop nothing. Two senders to one receiver fill a queue
# with what TCP has in flight, tens of megabytes at most (net.ipv4.tcp_rmem).
QUEUE_BYTES = 1 << 27


@dataclass(frozen=True)
class Links:
    """The names of one lab's parts, and the commands that make, shape and remove them.

    Parameters
    ----------
    name : str
        Start of the names of all namespaces; devices have names within them only.
    ranks : int
        How many namespaces to join.
    """

    name: str
    ranks: int

    @property
    def hub(self) -> str:
        """Namespace of the bridge."""
        return f"{self.name}-hub"

    def namespace(self, rank: int) -> str:
        """Namespace of a rank."""
        return f"{self.name}-r{rank}"

    def inside(self, rank: int, command: Command) -> Command:
        """Let a command run where a rank runs."""
        return ["ip", "netns", "exec", self.namespace(rank), *command]

    def connecting(self) -> list[Command]:
        """Join the namespaces, which exist, by a bridge."""
        lines = [
            f"ip -n {self.hub} link add bridge0 type bridge",
            f"ip -n {self.hub} link set bridge0 up",
        ]
        for rank in range(self.ranks):
            here = self.namespace(rank)
            lines += [
                f"ip -n {here} link add {DEVICE} type veth peer name port{rank} netns {self.hub}",
                f"ip -n {self.hub} link set port{rank} master bridge0",
                f"ip -n {self.hub} link set port{rank} up",
                f"ip -n {here} address add 10.213.0.{rank + 1}/24 dev {DEVICE}",
                f"ip -n {here} link set {DEVICE} up",
                f"ip -n {here} link set lo up",
            ]
        return [line.split() for line in lines]

    def shaping(self, mbit: int) -> list[Command]:
        """Set the rate of both directions of every link, in Mbit/s of 1e6 bits a second."""
        bucket_bytes = mbit * 1_000_000 * BUCKET_NS // (8 * 1_000_000_000)
        rate = f"rate {mbit}mbit burst {bucket_bytes} limit {QUEUE_BYTES}"
        ends = [(self.namespace(rank), DEVICE) for rank in range(self.ranks)]
        ends += [(self.hub, f"port{rank}") for rank in range(self.ranks)]
        return [f"tc -n {n} qdisc replace dev {d} root tbf {rate}".split() for n, d in ends]

    @contextmanager
    def opened(self, execute: Callable[[Command], None]) -> Iterator[None]:
        """Make the network and, whatever happens, remove what of it was made.

        A namespace of the same name that somebody else made is left alone: `ip netns add`
        fails then, and only what was made before it is removed.
        """
        with ExitStack() as made:
            for namespace in (self.hub, *map(self.namespace, range(self.ranks))):
                execute(["ip", "netns", "add", namespace])
                made.callback(execute, ["ip", "netns", "delete", namespace])
            for command in self.connecting():
                execute(command)
            yield
