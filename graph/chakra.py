"""Chakra ``.et`` in and out: `write_et`, `export_warnings` and `read_et`.

The work is done in `chakra_write` (what other tools see is decided in `chakra_plan`),
`chakra_read` (our own files, exactly) and `chakra_foreign` (files by others, as far as they
go); what the files look like is in `chakra_format`. mlc-chakra is imported only when a file is
written or read.
"""

from __future__ import annotations

from .chakra_read import read_et
from .chakra_write import export_warnings, write_et

__all__ = ["export_warnings", "read_et", "write_et"]
