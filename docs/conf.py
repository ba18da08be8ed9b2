"""Configuration of the site: `make docs` builds it with warnings as errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pactune

project = "pactune"
author = "The pactune authors"
copyright = author  # noqa: A001 - Sphinx's own name
version = release = pactune.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "reference/generated/commands.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = "pactune"
html_static_path = ["assets"]
html_css_files = ["site.css"]
templates_path = ["templates"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Docstrings write code between single backticks, as Markdown does.
default_role = "py:obj"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
maximum_signature_line_length = 80
# scikit-learn adds these methods; their docstrings link to pages of its own site.
autodoc_default_options = {
    "exclude-members": "set_fit_request, set_score_request, set_transform_request, set_output, get_metadata_routing"
}
autosummary_generate = True
autosummary_imported_members = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "/",  # every script is run
    "plot_gallery": os.environ.get("PACTUNE_GALLERY", "1") != "0",
    "within_subsection_order": "FileNameSortKey",
    "capture_repr": (),  # what a script prints, and its figure
    "remove_config_comments": True,
    "min_reported_time": 1e6,
    "write_computation_times": False,
    "show_signature": False,
}
copybutton_exclude = ".linenos, .gp, .go"


def write_commands(app: Any) -> None:
    """Write the pages of the commands from the parser itself, with typer's own generator."""
    page = Path(app.srcdir) / "reference" / "generated" / "commands.md"
    page.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "typer", "pactune.cli.app", "utils", "docs", "--name", "pactune"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    page.write_text(text[text.index("## ") :], encoding="utf-8")  # the page has its own title and introduction


def setup(app: Any) -> None:
    """Run `write_commands` before the pages are read."""
    app.connect("builder-inited", write_commands)
