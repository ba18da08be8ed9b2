"""`pactune reproduce` and its subcommands."""
