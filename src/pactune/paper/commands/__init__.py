"""`pactune reproduce`: one file per study, each importing its study only when the command runs.

A new command is a row of `reproduce.ITEMS` and a function of the same name.
"""
