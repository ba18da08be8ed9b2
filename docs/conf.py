"""Configuration of the site: `make docs` builds it with warnings as errors."""

from __future__ import annotations

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
]
exclude_patterns = ["_build", "reference/generated/commands.md"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

html_theme = "furo"
html_title = "pactune"
html_static_path = ["assets"]
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
autodoc_default_options = {"exclude-members": "set_fit_request, set_score_request, set_transform_request"}
autosummary_generate = True
autosummary_imported_members = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"


def write_commands(app: Any) -> None:
    """Write the pages of the commands from the parser itself, with typer's own generator."""
    page = Path(app.srcdir) / "reference" / "generated" / "commands.md"
    page.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "typer", "pactune.cli.app", "utils", "docs", "--name", "pactune"]
    subprocess.run([*command, "--title", "Commands", "--output", str(page)], check=True, stdout=subprocess.DEVNULL)


def setup(app: Any) -> None:
    """Run `write_commands` before the pages are read."""
    app.connect("builder-inited", write_commands)
