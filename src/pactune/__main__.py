"""`python -m pactune` is the command `pactune`."""

from pactune.cli import main

main()
