"""What the readers make of a profile: devices with lines of events, and compiled programs.

A `Profile` is one file of one host, from whichever format. Times are picoseconds on the clock of
the profile; where a device kept its own clock too, that is beside it. What the events mean
together (runs of programs, pairs of start and done, steps) is for the converter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from .hlo import Program

#: Stands for a number that an event does not have.
ABSENT = np.iinfo(np.int64).min
#: A profile is of minutes; an event of a day or more (in ps) is damage.
LONGEST_PS = 10**17


class Platform(Enum):
    """What the operations run on."""

    TPU = "tpu"
    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What the events of one operation have in common.

    Attributes
    ----------
    name : str
        Name of the instruction, or of whatever else the event shows.
    text : str
        HLO text of the instruction, or an empty string.
    category : str
        ``hlo_category``, or an empty string.
    module : str
        Program that the instruction belongs to, where the event says it.
    instruction : str
        On GPU, where an event is a kernel: the HLO instruction that launched it.
    """

    name: str
    text: str = ""
    category: str = ""
    module: str = ""
    instruction: str = ""


@dataclass
class Line:
    """Events of one line of a device, in the order of the file, N of them.

    Attributes
    ----------
    name : str
        Name of the line, for example ``XLA Ops``.
    op : int32, shape (N,)
        Index into `Device.ops`.
    start_ps, dur_ps : int64, shape (N,)
        Time on the clock of the profile.
    device_start_ps, device_dur_ps : int64, shape (N,)
        Time on the device's own clock, ABSENT where not recorded.
    run : int64, shape (N,)
        Run of the program, ABSENT where not recorded.
    number : int
        Of a GPU stream or a host thread.
    """

    name: str
    op: NDArray[np.int32]
    start_ps: NDArray[np.int64]
    dur_ps: NDArray[np.int64]
    device_start_ps: NDArray[np.int64]
    device_dur_ps: NDArray[np.int64]
    run: NDArray[np.int64]
    number: int = 0

    def __len__(self) -> int:
        return len(self.op)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Line:
        """Some of the events."""
        return Line(
            self.name,
            self.op[rows],
            self.start_ps[rows],
            self.dur_ps[rows],
            self.device_start_ps[rows],
            self.device_dur_ps[rows],
            self.run[rows],
            self.number,
        )


@dataclass
class Device:
    """A chip, a core, or a virtual device of a host.

    Attributes
    ----------
    platform : Platform
        What it is.
    ordinal : int
        Its number on its host.
    kind : str
        Name of the product, or an empty string.
    ops : list of OpInfo
        Table that the lines index.
    lines : list of Line
        Lines of events; those of sparse cores have ``Sparse`` in their names.
    global_id : int
        Its number in the job, -1 if not recorded.
    hbm_gb_s : float
        Bandwidth of its memory, 0 if not recorded.
    """

    platform: Platform
    ordinal: int
    kind: str = ""
    ops: list[OpInfo] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    global_id: int = -1
    hbm_gb_s: float = 0.0

    @property
    def is_global(self) -> bool:
        """Whether the profile says which device of the job it is."""
        return self.global_id >= 0

    def line(self, name: str) -> Line | None:
        """First line of a name."""
        return next((line for line in self.lines if line.name == name), None)


@dataclass(frozen=True, slots=True)
class Annotation:
    """A step that the program marked on the host."""

    name: str
    number: int
    start_ps: int
    end_ps: int


@dataclass
class Profile:
    """One file.

    Attributes
    ----------
    path : Path
        The file.
    host : str
        Name of the host.
    base_ns : int
        When the profile started, nanoseconds of the epoch; 0 if not recorded.
    devices : list of Device
        By platform and ordinal.
    programs : dict of str to Program
        Compiled modules by the name under which events run them.
    annotations : list of Annotation
        Steps marked on the host.
    file_bytes, events_seen : int
        Size (unpacked) and events of the file.
    skipped : dict of (str, str) to int
        Events that no conversion uses: what, why, how many.
    capped_at_ps : int or None
        Where the exporter stopped, if it did.
    warnings : list of str
        Damage survived and oddities seen.
    """

    path: Path
    host: str
    base_ns: int = 0
    devices: list[Device] = field(default_factory=list)
    programs: dict[str, Program] = field(default_factory=dict)
    annotations: list[Annotation] = field(default_factory=list)
    file_bytes: int = 0
    events_seen: int = 0
    skipped: dict[tuple[str, str], int] = field(default_factory=dict)
    capped_at_ps: int | None = None
    warnings: list[str] = field(default_factory=list)

    def skip(self, what: str, why: str, count: int) -> None:
        """Note events that are not used."""
        if count:
            self.skipped[what, why] = self.skipped.get((what, why), 0) + count
