"""The documentation is true: its code runs, its API page is complete, and the site builds."""

from __future__ import annotations

import html
import importlib
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import pactune as pt
from pactune.cli.app import app as cli

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
GENERATED = ("_build", "generated", "gallery")  # folders that a build writes
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if not set(GENERATED) & set(page.parts)),
]
LISTED = re.compile(r"currentmodule:: ([\w.]+)\n\n.*?:nosignatures:\n\n((?:   \w+\n)+)", re.DOTALL)
WITH_OUTPUT = [ROOT / "README.md", *(ROOT / "docs" / "start").glob("*.md")]  # tests/docs/test_readme.py runs these
NEEDS = {"sweeps": "ray"}  # pages that need an optional package
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """Return the Python blocks of a page with the line each one starts on."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)), found.group(1)) for found in BLOCK.finditer(text)]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p) and p not in WITH_OUTPUT], ids=lambda page: str(page.relative_to(ROOT))
)
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
    with_code = {str(page.relative_to(ROOT)) for page in PAGES if blocks(page)}
    start = {f"docs/start/{name}.md" for name in ("first-model", "choosing", "results")}
    guides = {f"docs/guides/{name}.md" for name in ("tune", "hyperparameters", "example-weights", "own-loop", "faq")}
    assert {"README.md", "CONTRIBUTING.md"} | start | guides <= with_code


def test_every_public_name_is_on_the_api_page() -> None:
    listed: dict[str, set[str]] = {}
    for module, names in LISTED.findall((ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")):
        listed.setdefault(module, set()).update(names.split())
    assert listed.pop("pactune") == set(pt.__all__)
    assert set(listed) == {f"pactune.{name}" for name in ("sklearn", "selection", "tracking", "bounds", "privacy")}
    for module, names in listed.items():
        assert names == set(importlib.import_module(module).__all__) - set(pt.__all__), module


def build_site(folder: Path) -> Path:
    """Build the site as `make docs` does, without running the gallery."""
    source = shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns(*GENERATED))
    (folder / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(source), str(folder / "html")]
    environment = os.environ | {"PACTUNE_GALLERY": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def words(page: Path, start: str = "<body", end: str = "</body>") -> str:
    """Return the text of a built page between two marks."""
    text = page.read_text(encoding="utf-8")
    first = text.index(start)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text[first : text.index(end, first)])).split())


def test_site_builds_without_a_warning_and_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    site = build_site(tmp_path)  # once for all checks: it takes half a minute
    for part in ("start", "guides", "gallery", "reference", "evidence"):
        assert (site / part / "index.html").exists()
    check_public_names(site / "reference" / "generated")
    check_types(site / "reference" / "generated" / "pactune.tune.html")
    check_commands(site / "reference" / "command-line.html")
    check_notebooks(site)


def check_public_names(folder: Path) -> None:
    for name in pt.__all__:
        assert f'id="pactune.{name}"' in (folder / f"pactune.{name}.html").read_text(encoding="utf-8"), name


def check_types(page: Path) -> None:
    signature = words(page, 'id="pactune.tune"', "</dt>")
    for parameter in inspect.signature(pt.tune).parameters:
        assert re.search(rf"\b{parameter}: \w", signature), parameter
    assert signature.rstrip("¶").endswith("→ Result")


def check_commands(page: Path) -> None:
    commands = [command.name or command.callback.__name__ for command in cli.registered_commands]
    groups = [group.name for group in cli.registered_groups]
    assert {"tune", "report", "sweep"} <= set(commands)
    for name in [*commands, *groups]:
        assert f"pactune {name}" in words(page), name


def check_notebooks(site: Path) -> None:
    for path in sorted((ROOT / "examples").glob("*.py")):
        assert (site / "gallery" / f"{path.stem}.html").exists()
        (notebook,) = site.glob(f"_downloads/*/{path.stem}.ipynb")
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                compile("".join(cell["source"]), str(path), "exec")
