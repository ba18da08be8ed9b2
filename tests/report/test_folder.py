"""`pactune report` shows everything under a folder, first in a summary; its pages are small, and fit every screen."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.drawing import COLORS, MOST_POINTS, Line, Panel, draw_panels
from pactune.paper.contents import study_contents
from pactune.paper.intervals import bootstrap_interval, bootstrap_intervals
from pactune.report.cells import read_cell, tables_of
from pactune.report.folder import folders_under, write_report
from pactune.report.page import MOST_BYTES, Section, Table, write_page
from pactune.report.page_style import DARK_COLORS
from pactune.report.sweep import sweep_sections
from pactune.tracking import Journal
from pactune.tuning.cells import unique_cell_name

_spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
assert _spec is not None
assert _spec.loader is not None
browser = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(browser)

RESULTS = Path(__file__).parents[2] / "results"


def rows(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=draw)
    return x, (x[:, 0] + 0.5 * torch.randn(count, generator=draw) > 0).long()


def build(zeta: float = 1e-3, seed: int = 0) -> pt.Tuner:
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=rows(12, 1), valid=rows(12, 2), loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=2, outer=outer, objective=pt.PACBayes(zeta), seed=seed)


@pytest.fixture(scope="module", name="home")
def home_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, an unfinished one, a saved result, a grid, a sweep, and a run of `pt.tune`."""
    home: Path = tmp_path_factory.mktemp("home")
    test = rows(40, 3)
    result = build().fit(4, test=test, run_dir=home / "decay", progress=False)
    result.save(home / "kept" / "model")
    build().fit(2, run_dir=home / "deep" / "er" / "cut", progress=False)
    journal = home / "deep" / "er" / "cut" / "journal.jsonl"
    journal.write_text("".join(line for line in journal.open() if '"kind": "end"' not in line))
    pt.fit_grid(build, {"zeta": [0.0, 0.1], "seed": [0, 1]}, outer_steps=3, test=test, run_dir=home / "grid")
    (home / "sweep" / "cells").mkdir(parents=True)
    with Journal(home / "sweep") as lines:
        lines.append("sweep", grid={"zeta": [0.0, 0.5]}, fit={}, resources={}, versions={})
        lines.append("cell", name="zeta=0.5", status="failed", error="ValueError: no")
    build(zeta=0.0).fit(2, run_dir=home / "sweep" / "cells" / unique_cell_name({"zeta": 0.0}), progress=False)
    (home / "sweep" / "cells" / "zeta=0.5").mkdir()
    tuned = pt.tune(nn.Linear(4, 2), rows(40, 5), loss=cross_entropy, run_dir=home / "tuned", engine="eager", folds=3)
    tuned.save(home / "tuned result")
    return home


def table_of(page: Path) -> list[dict[str, str]]:
    """Return the first table of a page."""
    text = re.search(r"<table.*?</table>", page.read_text(encoding="utf-8"), re.DOTALL)
    assert text is not None
    cells = r'<td[^>]*data-title="([^"]*)"[^>]*>(.*?)</td>'
    return [dict(re.findall(cells, row)) for row in re.findall(r"<tr>(.*?)</tr>", text[0])[1:]]


def test_the_summary_has_everything_in_the_users_metric(home: Path, tmp_path: Path) -> None:
    found = {row["name"]: row for row in table_of(write_report(home, tmp_path / "page.html"))}
    kinds = {name: row["kind"] for name, row in found.items()}
    assert kinds == {
        "decay": "run",
        "grid": "grid of 4 runs",
        "sweep": "sweep of 2 runs",
        "tuned": "pt.tune",
        "tuned result": "saved result",
        "kept/model": "saved result",
        "deep/er/cut": "run",
    }
    assert re.fullmatch(r"\d+\.\d %", found["decay"]["kept"])
    assert (found["decay"]["measured"], found["decay"]["kept step"]) == ("test accuracy", "4 of 4")
    assert found["decay"] == {**found["kept/model"], "name": "decay", "kind": "run"}
    assert found["deep/er/cut"]["status"] == "not finished"
    assert found["sweep"]["status"] == "1 failed, 1 completed" or found["sweep"]["status"] == "1 completed, 1 failed"
    assert found["tuned"]["measured"] == "accuracy, held-out rows"
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d % \((the tuned model|one decay|plain training)\)", found["tuned"]["kept"])
    assert found["tuned"] == {**found["tuned result"], "name": "tuned", "kind": "pt.tune"}
    assert found["grid"]["tuning pays"].endswith(" of 4")


def test_the_first_words_are_true_for_both_kinds_of_runs(home: Path, tmp_path: Path) -> None:
    page = write_report(home, tmp_path / "page.html")
    measured = {row["name"]: row["measured"] for row in table_of(page)}
    _, of_tune, of_others = re.split("Where |Elsewhere ", page.read_text(encoding="utf-8").partition("<table")[0])
    named = re.search("“measured” names (.*?),", of_tune)
    assert named is not None
    assert [name for name in measured if measured[name].endswith(named[1])] == ["tuned", "tuned result"]
    assert "kept step" not in of_tune
    assert "the numbers are those of the kept step" in of_others


def test_every_run_has_its_section(home: Path, tmp_path: Path) -> None:
    text = write_report(home, tmp_path / "page.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings[0] == "Summary"
    assert {"decay", "tuned", "tuned result", "kept/model", "deep/er/cut"} <= set(headings)
    assert [heading for heading in headings if heading.startswith("grid")] == [
        "grid: means over seeds",
        "grid: along the run",
        "grid: all cells",
    ]
    assert "sweep: failed" in headings
    assert "ValueError: no" in text


def test_nothing_is_shown_twice_and_links_lead_nowhere(home: Path, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(home)
    (tmp_path / "inside" / ".hidden").mkdir()
    assert list(folders_under(tmp_path / "inside")) == [tmp_path / "inside"]
    names = [row["name"] for row in table_of(write_report(home, tmp_path / "page.html"))]
    assert len(names) == len(set(names))


def test_a_damaged_result_is_named_and_the_rest_is_shown(home: Path, tmp_path: Path) -> None:
    build().fit(1, run_dir=tmp_path / "all" / "run", progress=False)
    (tmp_path / "all" / "bad").mkdir()
    (tmp_path / "all" / "bad" / "result.json").write_text("{")
    page = write_report(tmp_path / "all")
    assert [row["name"] for row in table_of(page)] == ["run"]
    assert "result.json is damaged" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["status=1,seed=0", "zeta=[1],seed=0", "zeta=None,seed=0", "a=b=c", "zeta=0.0"])
def test_a_strangers_grid_is_shown_or_left_out(name: str, home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "grid", tmp_path / "all" / "grid")
    (tmp_path / "all" / "grid" / "zeta=0.0,seed=0").rename(tmp_path / "all" / "grid" / name)
    end = {
        "kind": "end",
        "status": "\ud800 <script>",
        "kept_step": 2,
        "zeta": {"$float": "nan"},
        "verdict": "$x </svg>",
    }
    with (tmp_path / "all" / "grid" / "zeta=0.1,seed=0" / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps(end) + "\n")
    page = write_report(tmp_path / "all")
    assert "<script" not in page.read_text(encoding="utf-8")


def test_the_bands_of_a_grid_are_those_of_its_table(home: Path) -> None:
    cells = [read_cell(path) for path in sorted((home / "grid").iterdir())]
    means, curves = sweep_sections(tables_of(cells), "grid")[:2]
    (panel,) = [figure for figure in curves.figures if figure.title == "test accuracy"]
    assert panel.band_title == "± one standard error over seeds"
    column = list(means.tables[0].header).index("test accuracy")
    for row, line in zip(means.tables[0].rows, panel.lines, strict=False):
        assert line.band is not None
        low, high = (ends[-1] for ends in line.band)
        mean, error = (float(number) for number in row[column].removesuffix(" %").split(" ± "))
        assert (mean, error) == pytest.approx((line.y[-1], (high - low) / 2), abs=0.051)  # one decimal is printed


def test_bands_of_studies_are_bootstrap_intervals_like_their_tables() -> None:
    table = [[0.1, 0.5], [0.2, 0.4], [0.6, 0.9]]
    assert bootstrap_intervals(table) == [bootstrap_interval(column) for column in zip(*table, strict=True)]


def test_empty_columns_are_left_out(tmp_path: Path) -> None:
    table = Table(["a", "empty", "b"], [["1", "", ""], ["2", "", "x"]])
    text = write_page(tmp_path / "page.html", "t", [Section("s", tables=[table])]).read_text(encoding="utf-8")
    assert re.findall(r"<th>(.*?)</th>", text) == ["a", "b"]


def noisy(count: int) -> list[float]:
    return [math.sin(1000.0 * i) for i in range(count)]


def test_a_page_of_very_many_figures_stays_below_a_megabyte(tmp_path: Path) -> None:
    steps = 5 * MOST_POINTS
    lines = [
        Line(f"line {i}", range(steps), noisy(steps), color=i, band=(noisy(steps), noisy(steps))) for i in range(6)
    ]
    sections = [Section(f"run {i}", figures=[Panel("risk", "outer step", "risk", lines)] * 2) for i in range(20)]
    page = write_page(tmp_path / "page.html", "title", sections)
    assert 0.5 * MOST_BYTES < page.stat().st_size <= MOST_BYTES
    assert "Figures are left out" in page.read_text(encoding="utf-8")


def test_a_page_of_very_many_cells_stays_below_a_megabyte(tmp_path: Path) -> None:
    table = Table([f"column {i}" for i in range(14)], [[f"{row}.25 %"] * 14 for row in range(400)])
    sections = [Section("Summary", tables=[table]), *(Section(f"grid {i}", tables=[table]) for i in range(10))]
    page = write_page(tmp_path / "page.html", "title", sections)
    text = page.read_text(encoding="utf-8")
    assert 0.3 * MOST_BYTES < page.stat().st_size <= MOST_BYTES
    assert text.index("The first 300 of 400 rows are shown") < text.index("Tables are left out")


@pytest.mark.slow
def test_the_page_of_all_committed_studies_is_below_a_megabyte(tmp_path: Path) -> None:
    page = write_report(RESULTS, tmp_path / "page.html", study_contents(RESULTS))
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size <= MOST_BYTES
    assert "Figures are left out" not in text
    assert text.count("<figure>") >= 36


def test_the_page_fits_narrow_and_wide_windows(home: Path, tmp_path: Path) -> None:
    page = write_report(home, tmp_path / "page.html")
    for window in (400, 1280):
        assert browser.width_of(page, tmp_path / "profile", window=window) <= window


def test_the_page_is_light_or_dark(home: Path, tmp_path: Path) -> None:
    page = write_report(home, tmp_path / "page.html")
    look = "getComputedStyle(d.body).backgroundColor + ' ' + getComputedStyle(d.body).color"
    light = browser.look_at(page, tmp_path / "profile", look, 800, "--blink-settings=preferredColorScheme=1")
    dark = browser.look_at(page, tmp_path / "profile", look, 800, "--blink-settings=preferredColorScheme=0")
    assert (light, dark) == ("rgb(255, 255, 255) rgb(28, 36, 48)", "rgb(20, 24, 31) rgb(230, 234, 240)")


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("colors", "page", "least"), [(COLORS, "#ffffff", 2.0), (DARK_COLORS, "#14181f", 4.0)])
def test_lines_can_be_seen_on_their_page(colors: tuple[str, ...], page: str, least: float) -> None:
    """The palette of Okabe and Ito is bright: orange has a contrast of 2.2 on white, so lines are thick and dashed."""
    ground = luminance(page)
    for color in colors:
        low, high = sorted((luminance(color), ground))
        assert (high + 0.05) / (low + 0.05) > least, color


@pytest.mark.parametrize("text", ["$x_1", "_hidden", "a < b & c", "0.123456", "#0072b2"])
def test_texts_of_users_are_shown_as_they_are(text: str, tmp_path: Path) -> None:
    from html import escape

    panel = Panel(text, text, text, [Line(text, [1, 2], [0.1, 0.2])], [(1, 0.1, text)])
    page = write_page(tmp_path / "page.html", "t", [Section("s", figures=[panel])]).read_text(encoding="utf-8")
    assert page.count(f"{escape(text)}</text>") == 4  # both axes, the line, the mark
    draw_panels([panel]).savefig(tmp_path / "x.png")


def test_one_step_is_drawn(tmp_path: Path) -> None:
    figure = draw_panels([Panel("a", "outer step", "risk", [Line("one", [1], [0.5])])])
    (axes,) = figure.axes
    assert axes.lines[0].get_marker() == "o"
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_a_run_of_the_front_door_is_compared_in_its_plot(home: Path) -> None:
    result: Any = pt.load_result(home / "tuned result")
    first = result.plot().axes[0]
    assert first.get_title() == "accuracy on held-out rows"
    assert [label.get_text() for label in first.get_xticklabels()] == ["plain training", "one decay", "tuned model"]
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["kept", "bar: ± one standard error"]
