"""Every example runs, as a user would run it, and says something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NEEDS = {"optuna_coherence": "optuna"}  # examples that need an optional package
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 29


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_prints(path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert "nan" not in done.stdout.lower()


DRAWING = [path for path in EXAMPLES if '"--plot"' in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_example_draws_its_picture_when_asked(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    command = [sys.executable, str(path), "--outer-steps", "12", "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 2000
