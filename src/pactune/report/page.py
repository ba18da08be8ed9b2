"""One self-contained HTML page: headings, words, tables, and figures that readers can zoom."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pactune.drawing import COLORS, INK, Line, Panel
from pactune.extras import require
from pactune.storage.files import make_folder, write_atomically

__all__ = ["Section", "Table", "write_page"]

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1c2430; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .35rem .9rem; border-bottom: 1px solid #d8dee6; }
th { text-align: left; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
table.wide { font-size: .82rem; } table.wide td, table.wide th { padding: .3rem .5rem; vertical-align: top; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); gap: .5rem; }
.figures > div { min-width: 0; } summary { cursor: pointer; color: #66717f; margin: .6rem 0; }
.table { overflow-x: auto; }
@media (max-width: 40rem) { td, th { padding: .35rem .5rem; } }
footer { color: #66717f; font-size: .85rem; margin-top: 3rem; }
"""
NUMERIC = re.compile(r"[-+−]?[\d.]+(e[-+]?\d+)?( %)?")
SUMMARY = "settings, seeds, versions and time"
NUMBER = ' class="number"'
UNUSED = ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d", "sendDataToCloud"]  # they hide narrow titles
CONFIG = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": UNUSED}
WIDE = 6  # a table with more columns is set in smaller type


class Table(NamedTuple):
    """A table as text."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


class Section(NamedTuple):
    """A heading with paragraphs, tables and figures, and tables of details that open on a click."""

    heading: str
    paragraphs: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Panel] = ()
    details: Sequence[Table] = ()


def write_page(path: Path, title: str, sections: Sequence[Section], footer: str = "") -> Path:
    """Write the page; it needs no network and no other file. Only a page with figures needs plotly.

    Raises:
        RunFolderError: the file cannot be written.
    """
    drawn = any(section.figures for section in sections)
    script = f"<script>{require('plotly.offline').get_plotlyjs()}</script>" if drawn else ""
    body = "\n".join(_section(section, number) for number, section in enumerate(sections))
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style>{script}</head>\n'
        f"<body><h1>{html.escape(title)}</h1>\n{body}\n<footer>{html.escape(footer)}</footer></body></html>\n"
    )
    make_folder(path.parent, "the folder")
    write_atomically(path, text.encode(errors="replace"))
    return path


def _section(section: Section, number: int) -> str:
    words = "\n".join(f"<p>{html.escape(text)}</p>" for text in section.paragraphs)
    tables = "\n".join(map(_table, section.tables))
    figures = "\n".join(f"<div>{_figure(f, f'figure-{number}-{i}')}</div>" for i, f in enumerate(section.figures))
    shown = f'{words}\n{tables}\n<div class="figures">{figures}</div>' if section.figures else f"{words}\n{tables}"
    hidden = "\n".join(f"<details><summary>{SUMMARY}</summary>{_table(table)}</details>" for table in section.details)
    return f"<h2>{html.escape(section.heading)}</h2>\n{shown}\n{hidden}"


def _table(table: Table) -> str:
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    numeric = [all(NUMERIC.fullmatch(cell) for cell in column if cell) for column in zip(*table.rows, strict=True)]
    rows = "\n".join("<tr>" + "".join(map(_cell, row, numeric)) + "</tr>" for row in table.rows)
    wide = ' class="wide"' if len(table.header) > WIDE else ""
    return f'<div class="table"><table{wide}><thead><tr>{header}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _cell(text: str, numeric: bool) -> str:
    return f"<td{NUMBER if numeric else ''}>{html.escape(text)}</td>"


def _figure(panel: Panel, name: str) -> str:
    go = require("plotly.graph_objects")
    drawn = go.Figure()
    for line in panel.lines:
        color = COLORS[line.color % len(COLORS)]
        if line.band is not None:
            drawn.add_trace(go.Scatter(**_band(line, color)))
        style = {"color": color, "dash": line.dash, "width": 2}
        trace = {"x": list(line.x), "y": list(line.y), "name": line.label, "mode": line.mode}
        drawn.add_trace(go.Scatter(**trace, legendgroup=line.label, line=style, marker={"color": color, "size": 8}))
    for x, y, label in panel.marks:
        marker = {"size": 11, "symbol": "circle-open", "color": INK, "line": {"width": 2}}
        drawn.add_trace(go.Scatter(x=[x], y=[y], name=label, mode="markers", marker=marker))
    drawn.update_layout(**_layout(panel))
    text: str = drawn.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=CONFIG)
    return text


def _band(line: Line, color: str) -> dict[str, Any]:
    """Return the outline of an interval: along its upper end, then back along its lower end."""
    assert line.band is not None
    low, high = line.band
    outline = {"x": [*line.x, *reversed(line.x)], "y": [*high, *reversed(low)], "fill": "toself", "fillcolor": color}
    quiet = {"opacity": 0.18, "hoverinfo": "skip", "showlegend": False, "legendgroup": line.label}
    return {**outline, **quiet, "mode": "lines", "line": {"width": 0, "color": color}}


def _layout(panel: Panel) -> dict[str, Any]:
    axis = {"showline": True, "linecolor": "#9aa5b1", "gridcolor": "#eceff3", "zeroline": False}
    log = {"type": "log", "exponentformat": "power", "dtick": 1}
    return {
        "title": {"text": panel.title, "font": {"size": 15}},
        "xaxis": {**axis, "title": {"text": panel.x_title}, **(log if panel.log_x else {})},
        "yaxis": {**axis, "title": {"text": panel.y_title}, **(log if panel.log_y else {})},
        "template": "plotly_white",
        "height": 420,
        "margin": {"l": 70, "r": 20, "t": 50, "b": 50},
        "legend": {"orientation": "h", "y": -0.18},
    }
