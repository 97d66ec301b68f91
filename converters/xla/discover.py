"""Which files of a path are XLA profiles, one for each host of a run.

A run's directory (``plugins/profile/<run>``) holds for each host an xplane.pb and often the
trace.json that was exported from it, beside caches of the viewer. The xplane.pb says more, so the
other is left out. Files are judged by their content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...base.errors import TraceError
from ..chrome.text import read_opening
from .xplane import host_of

if TYPE_CHECKING:
    from pathlib import Path

_XLA_PROCESS = re.compile(rb'"name"\s*:\s*"[^"]{0,200}?/(?:device|host):')
# A key that the exporter writes at the head of its files.
_EXPORTER = re.compile(rb'"highres-ticks"\s*:')
_XSPACE = re.compile(rb"^\x0a")
_PLANE_NAME = re.compile(rb"/(?:host|device):|Task Environment")
_TRACE_EVENTS = re.compile(rb'"traceEvents"\s*:')
_VIEWER = re.compile(rb'"(?:returnedEventsSize|filteredByVisibility)"\s*:')
_NUMBERS = re.compile(r"(\d+)")


@dataclass
class Discovery:
    """Profiles of one run, and the files that are none.

    Attributes
    ----------
    xplanes, jsons : list of Path
        Files of either format, in the order of the numbers in their names.
    ignored : list of (Path, str)
        The others, each with what it is.
    """

    xplanes: list[Path] = field(default_factory=list)
    jsons: list[Path] = field(default_factory=list)
    ignored: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """All profiles."""
        return [*self.xplanes, *self.jsons]


def kind_of(path: Path) -> str:
    """Tell what a file is: ``xplane``, ``json``, or nothing of the kind (an empty string).

    Parameters
    ----------
    path : Path
        A file.
    """
    if path.name.startswith("."):
        return ""
    try:
        opening = read_opening(path)
    except OSError:
        return ""
    # A damaged xplane.pb is still one, and the reader says what is the matter with it.
    named = re.search(r"\.xplane\.pb(\.gz)?$", path.name) is not None
    if _XSPACE.match(opening) and (named or _PLANE_NAME.search(opening[:4096])):
        return "xplane"
    if named and opening and not _is_text(opening):
        return "xplane"
    text = opening.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith((b"{", b"[")) and any(
        sign.search(text) for sign in (_XLA_PROCESS, _VIEWER, _EXPORTER)
    ):
        return "json" if _TRACE_EVENTS.search(text) or text.startswith(b"[") else ""
    return ""


def _is_text(opening: bytes) -> bool:
    return all(byte >= 0x20 or byte in b"\t\r\n" for byte in opening[:512])


def holds_xla(path: Path) -> bool:
    """Whether a path is an XLA profile, or a directory with one and no other traces above it."""
    if path.is_file():
        return bool(kind_of(path))
    if not path.is_dir():
        return False
    return bool(_find(path).files)


def discover(path: Path) -> Discovery:
    """Find the profiles that a path names.

    Parameters
    ----------
    path : Path
        A profile, a directory of profiles of one run (one for each host), or the directory given
        to the profiler, in which the run is found by itself.

    Returns
    -------
    Discovery
        At least one profile.

    Raises
    ------
    TraceError
        There is no such path, no profile in it, or more than one run.
    """
    if path.is_file():
        kind = kind_of(path)
        if not kind:
            raise TraceError("is no XLA profile", file=path)
        return Discovery(*(([path], []) if kind == "xplane" else ([], [path])))
    if not path.is_dir():
        raise TraceError("no such file or directory", file=path)
    found = _find(path)
    if not found.files:
        raise TraceError("no XLA profile in this directory", file=path)
    return found


def _find(path: Path) -> Discovery:
    """Look in a directory, then in the runs below it."""
    found = _sort(path)
    if found.files:
        return found
    for folder in (path / "plugins" / "profile", path / "profile", path):
        if not folder.is_dir():
            continue
        runs = [d for d in sorted(folder.iterdir(), key=_by_numbers) if d.is_dir()]
        with_profile = [(d, inside) for d in runs if (inside := _sort(d)).files]
        if len(with_profile) > 1:
            names = ", ".join(d.name for d, _ in with_profile[:6])
            raise TraceError(
                f"holds {len(with_profile)} runs of the profiler ({names}): give one of them",
                file=folder,
            )
        if with_profile:
            return with_profile[0][1]
    return found


def _sort(directory: Path) -> Discovery:
    found = Discovery()
    for path in sorted(directory.iterdir(), key=_by_numbers):
        if path.is_dir():
            continue
        kind = kind_of(path)
        if kind == "xplane":
            found.xplanes.append(path)
        elif kind == "json":
            found.jsons.append(path)
        else:
            found.ignored.append((path, "not an XLA profile"))
    if found.xplanes:
        hosts = {host_of(path) for path in found.xplanes}
        for path in found.jsons:
            why = (
                "exported from the xplane.pb beside it, with less in it"
                if host_of(path) in hosts
                else "a trace.json among xplane.pb files"
            )
            found.ignored.append((path, why))
        found.jsons = []
    else:
        # JAX writes the same trace a second time for Perfetto.
        twice = [p for p in found.jsons if p.name.startswith("perfetto_trace.json")]
        if len(found.jsons) > len(twice):
            found.ignored += [(p, "the same trace, for Perfetto") for p in twice]
            found.jsons = [p for p in found.jsons if p not in twice]
    return found


def _by_numbers(path: Path) -> tuple[tuple[int, int, str], ...]:
    parts = _NUMBERS.split(path.name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part)
