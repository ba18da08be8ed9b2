"""The command line: thin commands over the library.

Exit status: 0 done, 1 failed, 2 wrong usage. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import sys

from pactune.errors import MissingPackageError
from pactune.extras import require

__all__ = ["main"]


def main() -> None:
    """Run the command line. If its packages are missing, say how to install them and exit with status 1."""
    try:
        for package in ("typer", "rich"):
            require(package)
    except MissingPackageError as error:
        sys.exit(f"pactune: {error}")
    from pactune.cli.app import run_command

    run_command()
