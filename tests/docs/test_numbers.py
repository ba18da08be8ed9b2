"""Every number on the pages is that of a stored file, and no measured number is tied to nothing."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
numbers: ModuleType = importlib.import_module("make_numbers")
text: ModuleType = importlib.import_module("claims.text")
sys.path.remove(str(ROOT / "docs"))

PAGES = numbers.pages()
GROUPS = {" ".join([*group.pages, str(place)]): group for place, group in enumerate(numbers.NUMBERS)}


@cache
def claims(name: str) -> list[str]:
    return list(numbers.claims_of(name))


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_page_that_is_named_exists() -> None:
    assert {name for group in numbers.NUMBERS for name in group.pages} <= set(PAGES)
    assert {"README.md", "docs/index.md", "docs/start/choosing.md", "docs/evidence/gains.md"} <= set(PAGES)


@pytest.mark.parametrize("group", GROUPS)
def test_numbers_are_those_of_the_files(group: str) -> None:
    pages, of, _ = GROUPS[group]
    found = text.deviations("\n\n".join(map(page, pages)), of())
    assert not found, "run `python docs/make_numbers.py`:\n" + "\n".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_no_measured_number_is_tied_to_nothing(name: str) -> None:
    found = text.untied(page(name), claims(name), numbers.allowed_on(name))
    assert not found, "tie these in docs/claims/ or remove them:\n" + "\n".join(found)


@pytest.mark.parametrize("group", GROUPS)
def test_no_exception_is_stale(group: str) -> None:
    pages, _, allowed = GROUPS[group]
    written = "\n\n".join(map(page, pages))
    assert [fragment for fragment in allowed if not on_page(fragment, written)] == []


def on_page(fragment: str, written: str) -> bool:
    return " ".join(fragment.split()) in " ".join(written.split())


@pytest.mark.parametrize("made", ["make_certificates", "make_decays", "make_reproduction"])
def test_generated_tables_are_those_of_the_files(made: str) -> None:
    module = sys.modules[made]
    written = module.PAGE.read_text(encoding="utf-8")
    assert written == module.page(), "run `python docs/make_numbers.py`"
    for name, table in text.GENERATED.findall(written):
        assert table.count("\n|") >= 2, f"the table {name} is empty"


def certificates_without(what: str) -> str:
    written = page("docs/evidence/certificates.md")
    name, table = next(found for found in text.GENERATED.findall(written) if found[0] == what)
    return written.replace(f"<!-- table {name} -->\n{table}<!-- end -->", "")


@pytest.mark.parametrize("what", ["digits", "mnist", "coverage"])
def test_a_page_without_the_marks_of_a_table_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match=f"marks for the tables.*{what}"):
        text.fill_tables(certificates_without(what), sys.modules["make_certificates"].tables())


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="the table t has no row"):
        text.fill_tables("<!-- table t -->\n<!-- end -->", {"t": "| a |\n| --- |"})


def test_a_table_is_filled_where_its_marks_touch() -> None:
    filled = text.fill_tables("<!-- table t -->\n<!-- end -->\n", {"t": "| a |\n| --- |\n| 1 |"})
    assert filled == "<!-- table t -->\n| a |\n| --- |\n| 1 |\n<!-- end -->\n"


CLAIM = "stays at \x0285\x03 % over all"


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("it stays at 84 % over\nall draws", "the page says"),
        ("it falls to 85 % over all draws", "found 0 times"),
        ("it stays at 85 % over all draws, it stays at 85 % over all draws", "found 2 times"),
    ],
)
def test_a_deviation_is_noticed(written: str, complaint: str) -> None:
    assert text.deviations(written, [CLAIM])[0].startswith(complaint)


def test_a_page_is_rewritten_in_place() -> None:
    assert text.rewrite("it stays at 84 % over\nall draws", [CLAIM]) == "it stays at 85 % over\nall draws"
    assert text.deviations("it stays at 85 % over\nall draws", [CLAIM]) == []


@pytest.mark.parametrize(
    "written",
    [
        "which takes 2.5 times as long",
        "an accuracy of 0.84",
        "after 25 outer steps 85 % remain",
        "better on 11 of 12 draws",
        "it takes 20 ms",
        "| eager | 665 | fast |",
        "| eager | **665** | fast |",
        "the error is 3e-4",
    ],
)
def test_an_untied_number_is_noticed(written: str) -> None:
    assert text.untied(written, [], [])
    assert not text.untied(written, [], [written])


@pytest.mark.parametrize(
    "written",
    [
        "K = 0 and ζ = 1e-5, δ = 0.05",
        "Eq. 5, Theorem A.5 and Figures C.17–C.19",
        "`lr=0.05`",
        "    x = 0.5",
        "50 + 50 images",
    ],
)
def test_settings_and_references_need_no_file(written: str) -> None:
    assert text.untied(written, [], []) == []


@pytest.mark.parametrize(
    ("value", "form", "shown"),
    [(0.145, ".2f", "0.15"), (9.06e-06, ".0e", "9e-6"), (5261, ",.0f", "5,261"), (-1.25, "+.1f", "-1.3")],
)
def test_numbers_are_rendered_as_readers_round(value: float, form: str, shown: str) -> None:
    assert text.n(value, form) == f"\x02{shown}\x03"
