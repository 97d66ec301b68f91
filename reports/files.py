"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import WhatIfError

if TYPE_CHECKING:
    from collections.abc import Callable


def write_whole(path: Path, save: Callable[[str], object]) -> None:
    """Write a file beside its place and move it there once it is complete.

    Parameters
    ----------
    path : Path
        The file.
    save : callable
        Writes the content to the path that it is given.

    Raises
    ------
    WhatIfError
        If it cannot be written; the file is then as it was before.
    """
    name = ""
    path = path.resolve()
    if path.exists() and not path.is_file():
        raise WhatIfError("cannot be written: it is no regular file", file=path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        save(name)
        # mkstemp gives a private file; the result is an ordinary one.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except OSError as error:
        raise WhatIfError(f"cannot be written: {error.strerror}", file=path) from error
    finally:
        if name:
            Path(name).unlink(missing_ok=True)
