"""Examples in docstrings run, on the installed package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import tomllib
from pathlib import Path

import pytest

PYPROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
# Package by package: an editable install does not let `pkgutil.walk_packages` see them all.
MODULES = [
    f"{package}.{module.name}"
    for package in PYPROJECT["tool"]["setuptools"]["packages"]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    if not module.ispkg
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_are_true(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0
