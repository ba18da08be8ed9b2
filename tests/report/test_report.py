"""`pactune report`: one page from journals alone, or from what was exported from them, in a real browser."""

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

import pactune as pt
from pactune.cli import main
from pactune.drawing import Line, Panel
from pactune.errors import DataError
from pactune.paper.contents import study_contents
from pactune.paper.data import load_images
from pactune.paper.weight_decay import studies
from pactune.paper.weight_decay.cells import Execution
from pactune.paper.weight_decay.method_tables import markdown, methods_table
from pactune.paper.weight_decay.records import read_studies
from pactune.paper.weight_decay.sections import study_section
from pactune.paper.weight_decay.setting import PAPER, StudySetting
from pactune.paper.weight_decay.studies import Scale, run_study
from pactune.report.folder import write_report
from pactune.report.page import Section, Table, write_page
from pactune.tracking import RunFolder

_spec = importlib.util.spec_from_file_location("browser", Path(__file__).with_name("browser.py"))
browser = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(browser)

TINY = StudySetting(data="digits", inner_steps=3, lr=1e-2)
SCALE = Scale(outer_steps=4, inits=2)


def report_on(home: Path, output: Path | None = None) -> Path:
    """Write the page of a folder as `pactune report` does."""
    return write_report(home, output, study_contents(home))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with every kind of study, and a run of a user's own."""
    folder = tmp_path_factory.mktemp("home")
    made = [
        studies.curves(TINY, SCALE, [1e-4]),
        studies.table(TINY, SCALE, [1e-4], online=True),
        studies.zeta_grid("correlation", TINY, SCALE, [0.0, 1e-4, 1e-3]),
        studies.zeta_grid("scan", TINY, SCALE, [0.0, 1e-4, 1e-3]),
        studies.truncation(TINY, SCALE),
        studies.restart(TINY, SCALE, [1e-4]),
    ]
    for study in made:
        run_study(study, folder, load_images, Execution(progress=False))
    return folder


@pytest.fixture(scope="module")
def own_run(home, tmp_path_factory):
    from pactune.paper.weight_decay.setting import builder

    folder = tmp_path_factory.mktemp("own") / "decay"
    builder(TINY, load_images("digits"), "cpu")(zeta=1e-4, draw=0, init=0).fit(3, run_dir=folder)
    return folder


def headings(page):
    return re.findall(r"<h2>(.*?)</h2>", page.read_text())


def test_page_has_every_study_from_the_journals_alone(home, tmp_path):
    page = report_on(home, tmp_path / "page.html")
    found = headings(page)
    assert [words.partition(":")[0].partition(" (")[0] for words in found] == [
        "Summary",
        "Methods compared",
        "Curves",
        "Over draws of the images",
        "Generalisation error and regularizer",
        "A scan over ζ",
        "Truncation",
        "Restart",
    ]
    text = page.read_text()
    assert pt.__version__ in text
    for words in ("Adam 0.01, 3 steps", "digits (scikit-learn, enlarged", "torch ", "2 (0–1)", "seconds per run"):
        assert words in text
    assert "http" not in text, "the page needs no network"
    assert "<script" not in text


def test_what_was_exported_gives_the_same_tables(home, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["pactune", "report", str(home), "--export", str(tmp_path / "json")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert capsys.readouterr().out.strip() == f"report: {home / 'report.html'}"
    page = report_on(tmp_path / "json")
    tables = [re.findall(r"<table.*?</table>", p.read_text(), re.DOTALL) for p in (home / "report.html", page)]
    assert len(tables[0]) > 10
    assert tables[0][1:] == tables[1][1:]


def test_a_users_own_run_folder(own_run):
    page = report_on(own_run)
    assert headings(page) == ["Summary", "decay"]
    assert "Status: completed" in page.read_text()
    assert "PACBayes(zeta=0.0001" in page.read_text().replace("&#x27;", "'")


def test_the_papers_numbers_stand_beside_ours(home):
    (study,) = [found for found in read_studies(home) if found.item == "table"]
    paper = {"data": "mnist", "inner_steps": 1000, "lr": 1e-4}
    records = [run._replace(setting={**run.setting, **paper}) for run in study.records]
    as_mnist = study._replace(records=records, settings={**study.settings, "outer_steps": 100})
    header, (row,) = methods_table([as_mnist])
    shown = dict(zip(header, row, strict=True))
    assert shown["paper: least norm"] == "56.8 (56.4, 57.2)"
    assert shown["paper: Eq. 5"] == "64.0 (63.7, 64.4)"
    assert shown['ζ = "auto"'] == "not run"
    assert shown["classifier, data"] == "linear, MNIST"
    assert "ζ 3.75e-09" in shown["Eq. 5 online, last step"]
    assert markdown(methods_table([as_mnist])).count("\n") == 2
    assert "after 4 of 100 outer steps" in shown["over"]
    assert len(PAPER) == 6


def test_the_papers_numbers_stand_beside_its_own_settings_only(home):
    (study,) = [found for found in read_studies(home) if found.item == "table"]
    as_mnist = study._replace(records=[r._replace(setting={**r.setting, "data": "mnist"}) for r in study.records])
    header, (row,) = methods_table([as_mnist])
    assert dict(zip(header, row, strict=True))["paper: Eq. 5"] == ""
    assert any("do not compare" in words for words in study_section(as_mnist).paragraphs)


def test_unfinished_studies_say_so(home, tmp_path):
    shutil.copytree(home, tmp_path / "cut")
    shutil.rmtree(tmp_path / "cut" / "cells" / TINY.name / "zeta=0.001,draw=0,init=1")
    text = report_on(tmp_path / "cut").read_text()
    assert "1 of 6 runs are not finished" in text
    assert "5 of 6 finished" in text


def test_a_study_with_figures_of_its_own_is_named(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "freedman")
    with folder.run("freedman", {"seeds": 3}):
        folder.append("seed", seed=0)
    text = report_on(tmp_path / "runs").read_text()
    assert "Status: done. Its figures and numbers are in freedman/." in text
    assert ">seeds</td>" in text


def test_damaged_json_is_named(tmp_path):
    (tmp_path / "table.json").write_text('{"format": ')
    with pytest.raises(DataError, match=r"table\.json is not JSON"):
        report_on(tmp_path)


def test_nothing_to_report_on_is_an_error(tmp_path, monkeypatch, capsys):
    with pytest.raises(DataError, match="nothing to report on"):
        report_on(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pactune", "report", str(tmp_path / "none")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "there is no folder" in capsys.readouterr().err


def test_page_in_a_browser(home, tmp_path):
    """No complaint in the console, and every figure has ink."""
    page = report_on(home, tmp_path / "page.html")
    seen = browser.open_page(page, tmp_path / "profile")
    assert seen.complaints == []
    assert len(seen.figures) == page.read_text().count('<svg id="figure-') >= 14
    assert all(ink >= 2 for ink in seen.figures.values()), seen.figures


def test_the_browser_sees_errors_and_empty_figures(tmp_path):
    full, empty = Line("full", [1.0, 2.0], [1.0, 2.0]), Line("empty", [], [])
    figures = [Panel("a", "x", "y", [full]), Panel("b", "x", "y", [empty])]
    page = write_page(tmp_path / "page.html", "title", [Section("section", figures=figures)])
    page.write_text(page.read_text().replace("</body>", "<script>missing();</script></body>"))
    seen = browser.open_page(page, tmp_path / "profile")
    assert any("missing is not defined" in line for line in seen.complaints)
    assert seen.figures["figure-0-0"] >= 2, "the line, and its entry in the legend"
    assert seen.figures["figure-0-1"] == 0


def test_a_narrow_window_need_not_scroll_sideways(tmp_path):
    """The rows of wide tables become lists, and figures become narrower."""
    wide = Table([f"column_{i}" for i in range(12)], [["123456789"] * 12])
    figures = [Panel("a", "x", "y", [Line("a line", [1.0, 2.0], [1.0, 2.0])])]
    page = write_page(tmp_path / "page.html", "title", [Section("section", tables=[wide], figures=figures)])
    assert browser.width_of(page, tmp_path / "profile", window=400) == 400
