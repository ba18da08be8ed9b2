"""Panels inside a page: names that no other panel has, colours of the page's style sheet, and no style of their own."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from pactune.drawing import BLUE, COLORS, INK, Line, Panel
from pactune.report.inline_svg import inline_svg

PANEL = Panel("accuracy & loss", "outer step", "accuracy, %", [Line("tuned", [1, 2, 3], [0.1, 0.25, 0.3], color=BLUE)])


def test_a_panel_is_one_element_whose_names_are_its_own() -> None:
    first, second = inline_svg(PANEL, "figure-1"), inline_svg(PANEL, "figure-2")
    ElementTree.fromstring(first.replace("xlink:href", "href"))  # HTML knows the prefix
    names = [set(re.findall(r' id="([^"]*)"', text)) for text in (first, second)]
    assert names[0]
    assert not names[0] & names[1]
    for text, own in zip((first, second), names, strict=True):
        assert set(re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", text)) <= {(n, "") for n in own} | {
            ("", n) for n in own
        }


def test_colours_follow_the_page() -> None:
    text = inline_svg(PANEL, "figure")
    assert f"var(--line-{BLUE})" in text
    assert COLORS[BLUE] not in text
    assert INK not in text
    assert "<style" not in text


def test_readers_of_the_page_hear_what_is_drawn() -> None:
    assert 'aria-label="accuracy &amp; loss: accuracy, % against outer step"' in inline_svg(PANEL, "figure")
