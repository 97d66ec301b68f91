"""An ASTRA-sim experiment without its trace: the settings that a run of ASTRA-sim is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from .files import MemoryFile, NetworkFile, SystemFile

if TYPE_CHECKING:
    from .files import Groups


class Backend(StrEnum):
    """Analytical network backends of ASTRA-sim."""

    UNAWARE = "congestion_unaware"
    AWARE = "congestion_aware"


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Settings of a run.

    Attributes
    ----------
    network : NetworkFile
    system : SystemFile
    groups : dict of int to tuple of int
        Communicators; 0, the world, is not among them.
    memory : MemoryFile
    backend : Backend
    queues_per_dim : int
        ``--num-queues-per-dim``.
    injection_scale : float
        ``--injection-scale``, which multiplies the endpoint delay.
    rendezvous : bool
        ``--rendezvous-protocol``.
    """

    network: NetworkFile
    system: SystemFile
    groups: Groups = field(default_factory=dict)
    memory: MemoryFile = field(default_factory=MemoryFile)
    backend: Backend = Backend.UNAWARE
    queues_per_dim: int = 1
    injection_scale: float = 1.0
    rendezvous: bool = False

    @property
    def endpoint_delay_ns(self) -> int:
        """Before each message and after each receive, of collectives of the world."""
        return int(int(self.system.endpoint_delay) * self.injection_scale)

    @property
    def queue_limit(self) -> int:
        """Chunks of a collective that are in progress in one queue at once."""
        return -(-self.system.active_chunks_per_dimension // self.queues_per_dim)
