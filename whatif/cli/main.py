"""The command `whatif`: its sub-commands, and the one place where errors become exit codes.

Nothing that is slow to import is imported here or by the modules of the commands before a
command runs, so that ``whatif --help`` answers at once.
"""

from __future__ import annotations

import os
import sys

import typer

from ..base.errors import WhatIfError
from .astra import app as astra
from .calibrate import calibrate
from .clusters import clusters
from .compare import compare
from .convert import convert
from .explain import explain
from .inspect import inspect
from .output import say
from .simulate import simulate
from .sweep import sweep
from .utility import utility
from .validate import validate

app = typer.Typer(
    name="whatif",
    help="What would the step time of a traced job be on another network?",
    epilog="Exit codes: 0 done, 1 the input cannot be used, 2 the command line is wrong, 3 done "
    "but beyond a limit under --strict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(inspect, convert, simulate, explain, sweep, utility, clusters, calibrate),
    compare,
    validate,
):
    app.command()(command)
app.add_typer(astra, name="astra")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"whatif {version('whatif-sim')}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """What would the step time of a traced job be on another network?"""


def run() -> None:
    """Run the command line; what a user's input causes is one line on stderr and an exit code."""
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # it is None where the shell closed it
                sys.stdout.flush()
    except WhatIfError as error:
        say(f"error: {error}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # Whoever read the output has seen enough; the interpreter must not try to flush it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        say(f"error: {error.filename or 'output'}: {error.strerror}")
        sys.exit(1)
