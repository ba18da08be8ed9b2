"""The command line: thin commands over the library.

Exit status: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line. Ctrl-C ends it with status 130, also while its packages are imported."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    """Run the command line. If its packages are missing, say how to install them and exit with status 1."""
    from pactune.errors import MissingPackageError
    from pactune.extras import require

    try:
        for package in ("typer", "rich"):
            require(package)
    except MissingPackageError as error:
        sys.exit(f"pactune: {error}")
    from pactune.cli.app import run_command

    run_command()
