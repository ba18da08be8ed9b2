"""Wheel and sdist install into an empty environment and run the demo; minutes long, so only on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import pactune

ROOT = Path(__file__).parents[1]
LARGEST_MB = 5.0  # a source distribution holds sources, not results


def test_version_is_written_in_one_place() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in declared
    assert pactune.__version__ not in declared
    assert f"[Unreleased] {pactune.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("PACTUNE_TEST_BUILD") != "1", reason="minutes long; set PACTUNE_TEST_BUILD=1")
def test_distributions_run_in_an_empty_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    wheel, sdist = tmp_path / f"pactune-{pactune.__version__}-py3-none-any.whl", next(tmp_path.glob("*.tar.gz"))
    assert sdist.name == f"pactune-{pactune.__version__}.tar.gz"
    assert sdist.stat().st_size < LARGEST_MB * 1e6
    names = zipfile.ZipFile(wheel).namelist()
    assert "pactune/py.typed" in names
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)
    with tarfile.open(sdist) as archive:
        assert f"pactune-{pactune.__version__}/src/pactune/__init__.py" in archive.getnames()
    venv.create(tmp_path / "empty", with_pip=True)
    binaries = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin")
    for number, distribution in enumerate((wheel, sdist)):
        constraints = ("-c", ROOT / "constraints.txt", "--force-reinstall", *(("--no-deps",) if number else ()))
        wanted = f"{distribution}[cli,report,sklearn]"
        run(binaries / "python", "-m", "pip", "install", "--quiet", *constraints, wanted, cwd=tmp_path)
        shown = run(binaries / "pactune", "demo", "--output", f"demo-{number}", cwd=tmp_path)
        assert "report:" in shown
        assert (tmp_path / f"demo-{number}" / "report.html").stat().st_size > 10_000
