"""Configuration files for ASTRA-sim, as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import yaml

from ..base.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from ..calibration.results import AstraConfig

#: Names of the files.
NETWORK_FILE, SYSTEM_FILE = "network.yml", "system.json"


def write_astra_config(config: AstraConfig, directory: Path) -> None:
    """Write network.yml, with the notes as comments, and system.json.

    Parameters
    ----------
    config : AstraConfig
        What to write.
    directory : Path
        Where; made if needed.

    Raises
    ------
    UsageError
        If the files cannot be written.
    """
    comments = "".join(f"# {note}\n" for note in config.notes)
    values = yaml.safe_dump(config.network, sort_keys=False, default_flow_style=None)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / NETWORK_FILE).write_text(comments + values, encoding="utf-8")
        system = json.dumps(config.system, indent=2) + "\n"
        (directory / SYSTEM_FILE).write_text(system, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=directory) from error
