"""Start is short, links outside of the site lead somewhere, and the files of the project agree with each other."""

from __future__ import annotations

import re
import tomllib
from itertools import combinations
from pathlib import Path

import pytest

import pactune as pt

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
BUILT = {"_build", "generated", "gallery"}
SITE = sorted(page for page in (ROOT / "docs").rglob("*.md") if not BUILT & set(page.parts))
OUTSIDE = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", ROOT / "results" / "weight-decay" / "README.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")
MOST_WORDS = 2500


def words(page: Path) -> list[str]:
    return page.read_text(encoding="utf-8").split()


def test_start_is_short() -> None:
    start = sorted((ROOT / "docs" / "start").glob("*.md"))
    assert len(start) == 5
    assert sum(len(words(page)) for page in start) <= MOST_WORDS


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_outside_of_the_site_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_files_that_pages_name_exist() -> None:
    named = re.compile(r"`((?:examples|benchmarks|docs|results|src|tests)/[\w./-]+\.(?:py|md|json|toml|rst))`")
    for page in [*SITE, *OUTSIDE]:
        for name in named.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{page.relative_to(ROOT)} names {name}"


def paragraphs(page: Path) -> set[str]:
    """Return the paragraphs of prose with twenty words or more."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = (" ".join(part.split()) for part in re.split(r"\n\n|\n(?=- )", text))
    return {part for part in found if len(part.split()) >= 20}


def test_no_page_repeats_another() -> None:
    pages = {page: paragraphs(page) for page in [*SITE, *OUTSIDE]}
    for (one, own), (other, others) in combinations(pages.items(), 2):
        assert not own & others, (one, other)


def test_the_citation_is_that_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(cited["version"]) == pt.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["license"] == project["license"]
    assert set(cited["keywords"]) == set(project["keywords"])


def test_hooks_and_workflow_call_make() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == ["make lint"]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]
    assert [step["run"] for step in jobs["test"]["steps"] if step.get("run", "").startswith("make")] == ["make test"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert jobs["test"]["strategy"]["matrix"]["python"] == stated


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml", "config.yml"])
def test_issue_templates_are_read(name: str) -> None:
    found = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text(encoding="utf-8"))
    assert name == "config.yml" or {"name", "description", "body"} <= set(found)
