"""What is installed is what lies in the tree: packages, modules, presets, the command."""

from __future__ import annotations

import gzip
import importlib
import json
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
# Folder in the tree -> import name: {"graph": "whatif.graph", ...}.
FOLDERS = {folder: package for package, folder in SETUPTOOLS["package-dir"].items()}
PACKAGES: list[str] = SETUPTOOLS["packages"]
NOT_INSTALLED = {"benchmarks", "examples", "tests", "third_party"}
EXAMPLE = ROOT / "examples" / "ddp_gloo_2ranks"


def folder_of(package: str) -> Path:
    """Folder of the tree that holds a package."""
    top = max((p for p in FOLDERS.values() if f"{package}.".startswith(f"{p}.")), key=len)
    folder = next(folder for folder, name in FOLDERS.items() if name == top)
    return ROOT.joinpath(folder, *package.removeprefix(top).split("."))


def package_of(folder: Path) -> str:
    top, *rest = folder.relative_to(ROOT).parts
    return ".".join([FOLDERS.get(top, f"({top} is not in package-dir)"), *rest])


def test_every_folder_with_code_is_installed() -> None:
    tops = [
        top
        for top in ROOT.iterdir()
        if top.is_dir() and top.name not in {*NOT_INSTALLED, "build", "dist"} and top.name[0] != "."
    ]
    folders = {file.parent for top in tops for file in top.rglob("*.py")}
    assert sorted(map(package_of, folders)) == sorted(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_a_folder_with_a_docstring(package: str) -> None:
    assert (folder_of(package) / "__init__.py").is_file()
    assert importlib.import_module(package).__doc__


def test_python_in_the_root_of_a_checkout_finds_the_subpackages() -> None:
    """There the folder of the face comes before the installed package."""
    script = (
        "import sys, whatif, whatif.graph.columns as c; sys.exit(f'{whatif.__file__} {c.__file__}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    where = f"{ROOT / 'whatif' / '__init__.py'} {ROOT / 'graph' / 'columns.py'}"
    assert done.stderr.strip() == where


@pytest.mark.parametrize("package", PACKAGES)
def test_installed_modules_are_those_of_the_tree(package: str) -> None:
    """Fails on leftovers of an old build, and where `make dev` has not seen a new file."""
    file = importlib.import_module(package).__file__
    assert file is not None
    installed = {path.name for path in Path(file).parent.glob("*.py")}
    assert installed == {path.name for path in folder_of(package).glob("*.py")}


@pytest.mark.parametrize("package", PACKAGES)
def test_data_files_are_installed(package: str) -> None:
    in_tree = {
        path.name
        for path in folder_of(package).iterdir()
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    }
    assert {name for name in in_tree if not resources.files(package).joinpath(name).is_file()} == (
        set()
    )


def test_presets_are_readable_from_the_installed_package() -> None:
    folder = resources.files("whatif.configs.network")
    presets = [path for path in folder.iterdir() if path.name.endswith(".yaml")]
    assert presets
    assert all(path.read_text() for path in presets)


def test_the_command_is_installed() -> None:
    (command,) = metadata.entry_points(group="console_scripts", name="whatif")
    assert callable(command.load())


def test_the_recorded_example_is_complete_and_names_no_machine() -> None:
    truth = json.loads((EXAMPLE / "truth.json").read_text())
    files = sorted(EXAMPLE.glob("*.json.gz"))
    assert len(files) == truth["settings"]["ranks"]
    for rank, file in enumerate(files):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["host_name"] == "localhost"
        assert trace["traceName"] == f"rank{rank}_trace.json"
        steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
        assert len(steps) == truth["settings"]["steps"]


def test_the_recorded_example_overlaps_communication_with_the_backward_pass() -> None:
    trace = json.loads(gzip.decompress((EXAMPLE / "rank0_trace.json.gz").read_bytes()))
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    reduces = [e for e in events if e["name"] == "gloo:all_reduce"]
    steps = [e for e in events if e["name"].startswith("ProfilerStep#")]
    products = [e for e in events if e["name"] == "aten::mm"]
    assert len(reduces) >= 4 * len(steps)
    assert {e["tid"] for e in reduces}.isdisjoint(e["tid"] for e in products)
    for step in steps:
        of_step = [e for e in reduces if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
        overlapped = [
            e
            for e in of_step
            if any(p["ts"] < e["ts"] + e["dur"] and e["ts"] < p["ts"] + p["dur"] for p in products)
        ]
        assert len(overlapped) > len(of_step) / 2
