"""All devices of a job: their profiles, their numbers, what of their programs is known."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...base.errors import TraceError
from .discover import discover
from .events import Platform
from .ids import DeviceGrid
from .trace_json import read_trace_json
from .xplane import read_xplane

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..nodes import RankNodes
    from ..windows import Windows
    from .chip import Chip, ChipWork
    from .clock import DeviceClock
    from .events import Device, Profile
    from .hlo import Program
    from .leaves import Leaf, Leaves, Meanings
    from .runs import Run

_WORKER = re.compile(r"-w-(\d{1,5})(?:\.|$)")


@dataclass
class JobDevice:
    """One device on its way to become a rank.

    Attributes
    ----------
    rank : int
        Its number in the job.
    device : Device
        What it recorded.
    profile : Profile
        The file it is from.
    clock : DeviceClock
        Its clock.
    meanings : Meanings
        Of its operations.
    runs : list of Run
        Its runs, by time.
    """

    rank: int
    device: Device
    profile: Profile
    clock: DeviceClock
    meanings: Meanings
    runs: list[Run] = field(default_factory=list)


@dataclass
class Executed:
    """A device with what it executed, and what becomes of that.

    Attributes
    ----------
    job : JobDevice
        The device.
    work : ChipWork
        Its operations, with starts and ends joined.
    found : list of Leaves
        What was found on each of its lines.
    nodes : RankNodes
        Its nodes.
    chip : Chip
        Its communication.
    windows : Windows
        The chosen steps.
    step_of : list of int
        Index into them for each of its runs, -1 for those that are left out.
    """

    job: JobDevice
    work: ChipWork
    found: list[Leaves]
    nodes: RankNodes
    chip: Chip
    windows: Windows
    step_of: list[int] = field(default_factory=list)


def read_profiles(
    path: Path, progress: Callable[[int, int], None]
) -> tuple[list[Profile], list[str]]:
    """Read the profiles of all hosts that a path holds.

    Parameters
    ----------
    path : Path
        See `discover`.
    progress : callable
        Called with bytes read and bytes to read.

    Returns
    -------
    list of Profile
        In the order of the hosts' names.
    list of str
        Files left out, each with the reason.

    Raises
    ------
    TraceError
        If there is no profile, one cannot be used, or two are of one host.
    """
    found = discover(path)
    total = sum(file.stat().st_size for file in found.files)
    profiles, before = [], 0
    for file in found.files:

        def on_bytes(done: int, before: int = before) -> None:
            progress(min(before + done, total), total)

        read = read_xplane if file in found.xplanes else read_trace_json
        profiles.append(read(file, on_bytes=on_bytes))
        before += file.stat().st_size
    hosts = Counter(profile.host for profile in profiles)
    twice = next((host for host, count in hosts.items() if count > 1), None)
    if twice is not None:
        files = [p.path.name for p in profiles if p.host == twice]
        raise TraceError(f"two profiles of host {twice} ({', '.join(files[:2])})", file=path)
    platforms = {device.platform for profile in profiles for device in profile.devices}
    if len(platforms) > 1:
        names = ", ".join(sorted(p.value for p in platforms))
        raise TraceError(f"devices of different kinds ({names}) in one job", file=path)
    return profiles, [f"{name.name}: {why}" for name, why in found.ignored]


def number_devices(profiles: list[Profile]) -> tuple[list[tuple[int, Profile, Device]], str]:
    """Give every device its number in the job.

    Parameters
    ----------
    profiles : list of Profile
        Of all hosts, in the order of their names.

    Returns
    -------
    list of (int, Profile, Device)
        By number.
    str
        What the numbers rest on, where the profiles do not say them.

    Raises
    ------
    TraceError
        If two devices claim one number.
    """
    numbered: list[tuple[int, Profile, Device]] = []
    assumption = ""
    workers = [_WORKER.search(profile.host) for profile in profiles]
    per_host = [max((d.ordinal for d in p.devices), default=-1) + 1 for p in profiles]
    for i, profile in enumerate(profiles):
        for device in profile.devices:
            if device.is_global:
                numbered.append((device.global_id, profile, device))
                continue
            match = workers[i] if all(workers) else None
            first = int(match[1]) * max(per_host) if match else sum(per_host[:i])
            numbered.append((first + device.ordinal, profile, device))
            if device.platform is not Platform.CPU or len(profiles) > 1:
                order = "worker numbers in their names" if match else "order of their names"
                assumption = (
                    "devices are numbered host by host, in the "
                    f"{order if len(profiles) > 1 or match else 'order that the file gives them'}"
                )
    count = Counter(number for number, _, _ in numbered)
    twice = next((number for number, n in count.items() if n > 1), None)
    if twice is not None:
        at = [profile for number, profile, _ in numbered if number == twice]
        raise TraceError(
            f"the same device number as in {at[0].path.name}", file=at[1].path, rank=twice
        )
    return sorted(numbered, key=lambda entry: entry[0]), assumption


def check_programs(jobs: list[JobDevice]) -> None:
    """Refuse profiles of which one did not run the program that the other spent its time in.

    All hosts of a job run the same compiled programs, of the same fingerprint.

    Parameters
    ----------
    jobs : list of JobDevice
        All devices with all their runs.

    Raises
    ------
    TraceError
        If the profiles are of different jobs.
    """
    times: dict[Path, Counter[str]] = {}
    for job in jobs:
        time = times.setdefault(job.profile.path, Counter())
        for run in job.runs:
            if run.module:
                time[run.module] += run.end_ps - run.start_ps
    mains = {path: max(sorted(t), key=lambda m: t[m]) for path, t in times.items() if t}
    for path, main in mains.items():
        other = next((p for p, time in times.items() if p in mains and main not in time), None)
        if other is not None:
            raise TraceError(
                f"is of another job: its main program is {main}, which did not run in {other.name} "
                f"(whose main program is {mains[other]}); give the profiles of one job",
                file=path,
            )


def largest_id(devices: list[list[Leaf]]) -> int:
    """Largest id in any replica group or pair of what was executed, -1 if there is none."""
    largest = -1
    for leaves in devices:
        for leaf in leaves:
            spec = leaf.meaning.spec
            if spec is not None:
                for group in spec.groups or ():
                    largest = max(largest, *group, -1)
                for pair in spec.pairs:
                    largest = max(largest, *pair)
    return largest


def grid_of(program: Program | None, world: int, ranks: set[int]) -> DeviceGrid:
    """Which device runs which part of a program.

    The program's own assignment where it has one for the devices that ran it, else one replica
    in as many partitions as there are devices.
    """
    if program is not None and program.devices:
        assigned = {d for row in program.devices for d in row}
        if assigned & ranks and max(assigned) < max(world, len(assigned)):
            return DeviceGrid(program.devices)
    return DeviceGrid.of_partitions(world)
