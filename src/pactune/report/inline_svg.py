"""A panel as SVG inside a page: small, of the width of its place, and in the colors of a light or a dark page."""

from __future__ import annotations

import html
import re

from pactune.drawing import COLORS, GRID, INK, Panel, draw_panels, encode_figure

__all__ = ["inline_svg"]

# The style sheet of the page gives these variables their colors.
VARIABLES = {INK: "currentColor", GRID: "var(--grid)"}
VARIABLES |= {color: f"var(--line-{number})" for number, color in enumerate(COLORS)}
HEAD = re.compile(r'^.*?<svg[^>]*viewBox="([^"]*)"[^>]*>', re.DOTALL)
UNUSED = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style.*?</style>", re.DOTALL),  # it would hold for the whole page
    re.compile(r" font-family: [^;]*;"),
    re.compile(r' transform="rotate\(-0 [^)]*\)"'),
    re.compile(r" ?stroke-linecap: square;?"),
    re.compile(r"<!--.*?-->", re.DOTALL),
)
TAG = re.compile(r"<[^>]*>")
NUMBER = re.compile(r"(?<![#\w])-?\d+\.\d{2,}")
STRAIGHT = re.compile(r'(?<= d=")[^"C]*(?=")')  # a path without curves, in which the letter L may be left out
NAME = re.compile(r'(?<= id=")[^"]*(?=")|(?<=url\(#)[^)]*|(?<=href="#)[^"]*')


def inline_svg(panel: Panel, name: str) -> str:
    """Return a panel as an `<svg>` element.

    Args:
        panel: what is drawn.
        name: unique in the page; the names inside the element begin with it.
    """
    text = encode_figure(draw_panels([panel._replace(title="")]), ".svg").decode()
    found = HEAD.match(text)
    assert found is not None
    text = text[found.end() :]
    for pattern in UNUSED:
        text = pattern.sub("", text)
    text = TAG.sub(_shortened, _without_unused_names(text, name))
    text = re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", text))
    text = STRAIGHT.sub(lambda path: path[0].replace(" L ", " ").replace("M ", "M"), text)
    label = html.escape(f"{panel.title}: {panel.y_title} against {panel.x_title}")
    return f'<svg id="{name}" viewBox="{found[1]}" role="img" aria-label="{label}">{text.strip()}'


def _shortened(tag: re.Match[str]) -> str:
    """Return a tag with rounded numbers and with variables for colors."""
    text = tag[0]
    for color, variable in VARIABLES.items():
        text = text.replace(color, variable)
    return NUMBER.sub(lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), text)


def _without_unused_names(text: str, prefix: str) -> str:
    """Remove the names to which nothing refers, and put a prefix before the others."""
    used = set(re.findall(r"url\(#([^)]*)\)|href=\"#([^\"]*)\"", text))
    wanted = {name for pair in used for name in pair if name}
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", text)
    return NAME.sub(lambda found: f"{prefix}-{found[0]}", text)
