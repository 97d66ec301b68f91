"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the larger trace collection, or skip where it is not there."""
    value = os.environ.get("WHATIF_TEST_DATA")
    if not value:
        pytest.skip("WHATIF_TEST_DATA is not set: needs the larger trace collection")
    return Path(value)
