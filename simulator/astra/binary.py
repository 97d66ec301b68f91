"""Where a real ASTRA-sim is: its analytical binary, as the user names it or has put it.

Nothing here builds or downloads one. How a found binary is run and watched is in `external`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The environment variable that names a binary, or a directory that holds one.
VARIABLE = "WHATIF_ASTRA_SIM"

#: Where a checkout or a binary is looked for last, from the root of a checkout of this project
#: and from the current directory.
FOLDER = Path("third_party", "astra-sim")

#: What ASTRA-sim's own build calls the binaries; the second names are its older ones.
NAMES: Mapping[str, tuple[str, ...]] = {
    "congestion_unaware": ("AstraSim_Analytical_Congestion_Unaware", "AnalyticalAstra"),
    "congestion_aware": ("AstraSim_Analytical_Congestion_Aware", "AstraCongestion"),
}

# Where its build puts them, seen from the root of a checkout and from folders inside it.
_BUILD = Path("build", "astra_analytical", "build")
_PLACES = (
    Path(),
    Path("bin"),
    _BUILD / "bin",
    _BUILD / "AnalyticalAstra" / "bin",
    _BUILD / "AstraCongestion" / "bin",
)


def find_binary(
    given: str | Path | None, backend: str, environ: Mapping[str, str] | None = None
) -> Path:
    """Find the analytical binary of a backend.

    Parameters
    ----------
    given : str or Path, optional
        A binary, or a directory: a checkout of ASTRA-sim, or what holds the binary. By default
        the environment variable WHATIF_ASTRA_SIM says it, else ``third_party/astra-sim``.
    backend : str
        ``congestion_unaware`` or ``congestion_aware``.
    environ : mapping of str to str, optional
        The environment; by default that of the process.

    Returns
    -------
    Path
        Absolute.

    Raises
    ------
    UsageError
        If what is named holds no such binary, is of the other backend, or cannot be run; or if
        nothing is named and nothing found.
    """
    environ = os.environ if environ is None else environ
    if given is not None:
        return _named(Path(given), backend, "--astra-sim-bin")
    if environ.get(VARIABLE):
        return _named(Path(environ[VARIABLE]), backend, VARIABLE)
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        found = _first(root / FOLDER, backend)
        if found is not None:
            return _runnable(found)
    raise UsageError(
        f"there is no {backend} binary of ASTRA-sim: name one with --astra-sim-bin or {VARIABLE}, "
        f"or put it, or a checkout with its build, into {FOLDER}; --semantics astra computes the "
        "same cycles without one"
    )


def _named(path: Path, backend: str, source: str) -> Path:
    if not path.exists():
        raise UsageError(f"does not exist (from {source})", file=path)
    if path.is_dir():
        found = _first(path, backend)
        if found is None:
            raise UsageError(
                f"holds no {backend} binary (from {source}); looked for {NAMES[backend][0]} in it "
                "and in build/astra_analytical/build/bin",
                file=path,
            )
        return _runnable(found)
    other = next(name for name in NAMES if name != backend)
    if {path.name, path.resolve().name} & set(NAMES[other]):
        found = _first(path.resolve().parent, backend)
        if found is None:
            raise UsageError(
                f"is the {other} binary (from {source}), and the backend is {backend}", file=path
            )
        return _runnable(found)
    return _runnable(path)


def _first(directory: Path, backend: str) -> Path | None:
    return next((path for path in _candidates(directory, backend) if path.is_file()), None)


def _candidates(directory: Path, backend: str) -> Iterator[Path]:
    for place in _PLACES:
        for name in NAMES[backend]:
            yield directory / place / name


def _runnable(path: Path) -> Path:
    if not os.access(path, os.X_OK):
        raise UsageError("is not an executable file", file=path)
    return path.absolute()
