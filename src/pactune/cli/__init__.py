"""The command line: thin commands over the library.

Exit status: 0 done, 1 failed, 2 wrong usage. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pactune import __version__
from pactune.cli import certify
from pactune.cli.demo import demo
from pactune.cli.report import report
from pactune.cli.select import select
from pactune.cli.sweep import sweep
from pactune.errors import PactuneError, SettingError
from pactune.paper.commands import reproduce

__all__ = ["app", "main"]

app = typer.Typer(
    help="Tune hyperparameters by gradient without overfitting the validation set.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(demo)
app.command()(select)
app.command()(sweep)
app.command()(report)
app.add_typer(certify.app, name="certify")
app.add_typer(reproduce.app, name="reproduce")

_debug = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pactune {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    global _debug
    _debug = debug


def main() -> None:
    """Run the command line; without `--debug`, errors of pactune and of the file system are one line on stderr."""
    try:
        app()
    except (PactuneError, OSError) as error:
        if _debug:
            raise
        typer.echo(f"pactune: {error}", err=True)
        sys.exit(2 if isinstance(error, SettingError) else 1)
