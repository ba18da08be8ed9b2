"""From journals to numbers, figures and pages.

`page` writes one HTML page from sections of words, tables and panels. `runs`, `sweep` and `selection_path` make the
sections and panels of runs, sweeps and feature selection; `folder` writes the page of a folder. `figure_files` writes
panels as PNG and PDF, and `printing` prints results on the command line. A new page is a function that returns
sections.
"""
