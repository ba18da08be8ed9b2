"""Every example runs, as a user would run it, says something and draws its figure."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NEEDS = {"optuna_coherence": "optuna"}  # examples that need an optional package
SHOW_INTO_FILE = """
import runpy, sys
import matplotlib.pyplot as plt
plt.show = lambda: plt.savefig(sys.argv[2])
runpy.run_path(sys.argv[1], run_name="__main__")
"""
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 29


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_prints_and_draws(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    picture = tmp_path / "picture.png"
    command = [sys.executable, "-c", SHOW_INTO_FILE, str(path), str(picture)]
    environment = os.environ | {"MPLBACKEND": "agg"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "nan" not in done.stdout.lower()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 2000


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_begins_with_a_title_for_the_gallery(path: Path) -> None:
    title, line, blank = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[:3]
    assert line == "=" * len(title)
    assert not blank


def test_the_gallery_names_every_example() -> None:
    header = (EXAMPLES[0].parent / "GALLERY_HEADER.rst").read_text(encoding="utf-8")
    assert sorted(re.findall(r":doc:`(\w+)`", header)) == [path.stem for path in EXAMPLES]
