"""From journals and saved results to numbers, figures and pages.

`page` writes one HTML page from sections of words, tables and panels; `page_style` is its style sheet, and `inline_svg`
draws its panels. `runs`, `cells`, `sweep` and `selection_path` read runs, grids, sweeps and feature selection and make
their sections; `folder` finds all of them under a folder. `figure_files` writes panels as PNG and PDF, and `printing`
prints results on the command line. A new page is a function that returns sections.
"""
