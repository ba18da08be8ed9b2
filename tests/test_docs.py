"""The documentation is true: its code runs, its API page is complete and current, and the site builds."""

from __future__ import annotations

import importlib.util
import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import pactune as pt

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = {"sweeps": "ray"}  # pages that need an optional package
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page with the line each one starts on."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found.group(1)) for found in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.stem)
def test_code_of_the_page_runs(page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    logger = logging.getLogger("pactune")
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))  # a page may add one
    monkeypatch.setattr(logger, "level", logger.level)
    namespace: dict[str, object] = {"__name__": f"page_{page.stem}"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line, code in blocks(page):
            exec(compile("\n" * line + code, str(page), "exec", dont_inherit=True), namespace)


def test_readme_and_pages_have_code() -> None:
    with_code = {page.stem for page in PAGES if blocks(page)}
    assert {"README", "CONTRIBUTING", "index", "hyperparameters", "choosing-k-and-zeta", "faq"} <= with_code


def test_every_public_name_is_on_the_api_page() -> None:
    headings = set(re.findall(r"^### `(\w+)`$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert headings == set(pt.__all__)


def test_api_page_is_what_the_docstrings_say() -> None:
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    make_api = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_api)
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert written == make_api.page(), "run `python docs/make_api.py`"


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").exists()
