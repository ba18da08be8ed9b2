"""The commands of `pactune` in one typer application, and the exit status of an error."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pactune import __version__
from pactune.cli import certify
from pactune.cli.demo import demo
from pactune.cli.predict import predict
from pactune.cli.report import report
from pactune.cli.select import select
from pactune.cli.sweep import sweep
from pactune.cli.tune import tune
from pactune.errors import DataError, PactuneError, SettingError
from pactune.paper.commands import reproduce

__all__ = ["app", "run_command"]

app = typer.Typer(
    help="Tune hyperparameters by gradient without overfitting the validation set.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(demo)
app.command()(tune)
app.command()(predict)
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


def run_command() -> None:
    """Run the command of `sys.argv`. Without `--debug`, an expected error prints one line on stderr."""
    try:
        app()
    except (PactuneError, OSError) as error:
        if _debug:
            raise
        typer.echo(f"pactune: {error}", err=True)
        sys.exit(2 if isinstance(error, (SettingError, DataError)) else 1)
