"""The shape of the repository: which subpackage may import which, and what files may name."""

from __future__ import annotations

import ast
import gzip
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Import name of each top folder that is a subpackage: {"graph": "whatif.graph", ...}.
FOLDERS: dict[str, str] = {
    folder: package for package, folder in PYPROJECT["tool"]["setuptools"]["package-dir"].items()
}

# What each subpackage may import besides itself, `base` and the data files of `configs`.
ARROWS: dict[str, set[str]] = {
    "base": set(),
    "configs": set(),
    "graph": set(),
    "converters": {"graph"},
    "simulator": {"graph"},
    "calibration": {"graph", "simulator"},
    "sweeps": {"graph", "simulator", "calibration"},
    "utility": {"graph", "sweeps"},
    "reports": {"graph"},
}
FLOOR = {"base", "configs"}
# Reports know what an engine returns, never the engine.
RESULT_MODULE = re.compile(r"whatif\.\w+\.(\w+\.)*(\w+_)?results?\b")


def module_name(file: Path) -> str:
    """Name under which a file of the tree is imported once installed."""
    top, *rest = file.relative_to(ROOT).with_suffix("").parts
    parts = [FOLDERS[top], *rest]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, at any depth of its code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def subpackage(name: str) -> str | None:
    """`graph` for anything in `whatif.graph`; `whatif` for the face; None for other packages."""
    if name.split(".")[0] != "whatif":
        return None
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ARROWS else "whatif"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Imports of a module that the arrows forbid."""
    own = subpackage(module)
    assert own is not None
    if own == "whatif":
        return []
    allowed = {own} | FLOOR | ARROWS[own]
    return [
        f"{module}:{line} imports {name}"
        for line, name in imports_of(source, module, is_package=is_package)
        if (target := subpackage(name)) is not None
        and target not in allowed
        and not (own == "reports" and target != "whatif" and RESULT_MODULE.match(name))
    ]


def package_files() -> list[Path]:
    return sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


def test_every_subpackage_has_its_arrows() -> None:
    assert set(FOLDERS) - {"whatif"} == set(ARROWS)


def test_imports_follow_the_arrows() -> None:
    files = package_files()
    assert files
    found = [
        violation
        for file in files
        for violation in violations(
            file.read_text(), module_name(file), is_package=file.name == "__init__.py"
        )
    ]
    assert not found


def test_imports_between_subpackages_are_relative() -> None:
    """Absolute ones resolve only once installed, never for someone reading the tree."""
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in package_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Import) and any(subpackage(a.name) for a in node.names))
        or (isinstance(node, ast.ImportFrom) and not node.level and subpackage(node.module or ""))
    ]
    assert not found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("whatif.graph.columns", "from ..simulator.network import Network"),
        ("whatif.graph.columns", "from .. import simulator"),
        ("whatif.graph.columns", "def f():\n    from ..converters import x"),
        ("whatif.converters.kineto.events", "from ...simulator import network"),
        ("whatif.sweeps.run", "from ..cli.main import run"),
        ("whatif.sweeps.run", "from .. import api"),
        ("whatif.sweeps.run", "import whatif.cli.main"),
        ("whatif.utility.table", "from ..simulator.engine import simulate"),
        ("whatif.reports.table", "from ..simulator.engine import simulate"),
        ("whatif.reports.table", "from ..cli.results import x"),
    ],
)
def test_a_wrong_arrow_is_seen(module: str, source: str) -> None:
    assert violations(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("whatif.converters.kineto.events", "from ...graph.columns import Graph"),
        ("whatif.converters.kineto.events", "from .names import x\nfrom ...base import errors"),
        ("whatif.simulator.network", "from ..configs import network\nimport numpy as np"),
        ("whatif.reports.table", "from ..simulator.results import SimulationResult"),
        ("whatif.cli.main", "from ..simulator.engine import simulate"),
    ],
)
def test_a_right_arrow_is_let_pass(module: str, source: str) -> None:
    assert not violations(source, module)


def test_a_package_resolves_its_own_relative_imports() -> None:
    names = list(imports_of("from .columns import x", "whatif.graph", is_package=True))
    assert names == [(1, "whatif.graph.columns.x")]


# A machine's own folders, and where the larger trace collection lies: only .ci/run may say that.
OUTSIDE = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/|\.\./shared")
MAY_NAME_OUTSIDE = {Path(".ci/run"), Path("tests/test_architecture.py")}
BUILT = {"__pycache__", "build", "dist"}


def repository_texts() -> Iterator[tuple[Path, str]]:
    """Path and text of every file that is neither built nor cached; compressed ones are opened."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [
            name
            for name in folders
            if name == ".ci"
            or not (name.startswith(".") or name in BUILT or name.endswith(".egg-info"))
        ]
        for name in files:
            path = Path(folder, name)
            content = path.read_bytes()
            if name.endswith(".gz"):
                content = gzip.decompress(content)
            if b"\0" not in content:
                yield path.relative_to(ROOT), content.decode()


def test_no_file_names_a_place_outside_the_repository() -> None:
    found = {
        f"{path}: {match.group()}"
        for path, text in repository_texts()
        if path not in MAY_NAME_OUTSIDE and (match := OUTSIDE.search(text))
    }
    assert not found
