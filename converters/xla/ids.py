"""From the ids of replicas and partitions in a program to the devices of the job.

Reference: xla/xla_data.proto, CollectiveOpGroupMode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .collectives import Ids
from .hlo import HloError

if TYPE_CHECKING:
    from .collectives import CommSpec


@dataclass(frozen=True)
class DeviceGrid:
    """Which device runs which replica and partition of a program.

    Attributes
    ----------
    devices : tuple of tuple of int
        Global device ids by replica and partition.
    """

    devices: tuple[tuple[int, ...], ...]

    @classmethod
    def of_partitions(cls, count: int) -> DeviceGrid:
        """One replica in so many partitions, in the order of the devices (what JAX compiles)."""
        return cls((tuple(range(count)),))

    @property
    def count(self) -> int:
        """Number of devices."""
        return sum(len(row) for row in self.devices)

    def members(self, spec: CommSpec, device: int) -> tuple[int, ...]:
        """Find the devices that take part in a collective with a device, in group order.

        Returns
        -------
        tuple of int
            Global ids; empty if the device is in no group.

        Raises
        ------
        HloError
            If a group names an id that the program does not have.
        """
        place = self._place(device)
        if place is None or spec.groups is None:
            return ()
        replica, partition = place
        ids = self._ids(spec)
        if ids is Ids.FLAT:
            flat = [d for row in self.devices for d in row]
            return self._pick(spec, flat, replica * len(self.devices[0]) + partition)
        if ids is Ids.PARTITION:
            return self._pick(spec, list(self.devices[replica]), partition)
        column = [row[partition] for row in self.devices]
        if ids is Ids.REPLICA:
            return self._pick(spec, column, replica)
        replicas = self._pick(spec, list(range(len(self.devices))), replica)
        return tuple(d for r in replicas for d in self.devices[r])

    def pairs(self, spec: CommSpec, device: int) -> tuple[list[int], list[int]]:
        """Find the devices that a device sends to, and those that it receives from.

        Raises
        ------
        HloError
            If a pair names an id that the program does not have.
        """
        place = self._place(device)
        if place is None:
            return [], []
        replica, partition = place
        if self._ids(spec) is Ids.PARTITION:
            line, own = list(self.devices[replica]), partition
        else:
            line, own = [row[partition] for row in self.devices], replica
        largest = max((max(pair) for pair in spec.pairs), default=0)
        if largest >= len(line):
            raise HloError(f"a pair with {largest} where there are {len(line)}")
        targets = [line[t] for s, t in spec.pairs if s == own and t != own]
        sources = [line[s] for s, t in spec.pairs if t == own and s != own]
        return targets, sources

    def _ids(self, spec: CommSpec) -> Ids:
        # Channels get lost when a program is stored; where there is one replica (or partition),
        # the ids can only be of the other.
        if spec.ids in (Ids.REPLICA, Ids.PARTITION):
            if len(self.devices) == 1 and len(self.devices[0]) > 1:
                return Ids.PARTITION
            if len(self.devices[0]) == 1 and len(self.devices) > 1:
                return Ids.REPLICA
        if spec.ids is Ids.REPLICA_ALL and spec.groups and len(self.devices) == 1:
            largest = max(max(group, default=0) for group in spec.groups)
            return Ids.FLAT if largest else Ids.REPLICA_ALL
        return spec.ids

    def _place(self, device: int) -> tuple[int, int] | None:
        for replica, row in enumerate(self.devices):
            if device in row:
                return replica, row.index(device)
        return None

    @staticmethod
    def _pick(spec: CommSpec, line: list[int], own: int) -> tuple[int, ...]:
        if not spec.groups:
            return tuple(line)
        for group in spec.groups:
            if own in group:
                if max(group) >= len(line) or min(group) < 0:
                    raise HloError(f"a replica group with {max(group)} where there are {len(line)}")
                if len(set(group)) != len(group):
                    raise HloError(f"a replica group with the same member twice: {group}")
                return tuple(line[i] for i in group)
        return ()
