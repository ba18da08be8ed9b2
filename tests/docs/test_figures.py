"""The figures of docs/evidence/reproduction.md hold what the stored studies say, recomputed from the JSON here."""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pactune.drawing import Line, Panel
from pactune.paper.weight_decay.records import RunRecord, StudyRecord, export_study, read_studies
from pactune.paper.weight_decay.sections import study_section

images = pytest.importorskip("matplotlib.image")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
made: ModuleType = importlib.import_module("make_figures")
sys.path.remove(str(ROOT / "docs"))

PLAIN, ZERO = "plain training", "ζ = 0"
OFFLINE, ONLINE = "Eq. 5 at the paper's ζ", "Eq. 5 online at the paper's ζ"
ZETAS = {  # the page's table "The paper's values of zeta": offline, online
    "linear-mnist": (1.0e-6, 3.75e-9),
    "resnet18-mnist": (5.8e-6, 2.0e-8),
    "resnet34-mnist": (5.8e-6, 3.0e-8),
    "linear-cifar10": (5.0e-6, 1.0e-7),
    "resnet18-cifar10": (3.35e-6, 1.85e-8),
    "resnet34-cifar10": (5.0e-6, 3.0e-8),
}
NAMES = {
    "linear-mnist": "linear, MNIST",
    "resnet18-mnist": "ResNet-18, MNIST",
    "resnet34-mnist": "ResNet-34, MNIST",
    "linear-cifar10": "linear, CIFAR-10",
    "resnet18-cifar10": "ResNet-18, CIFAR-10",
    "resnet34-cifar10": "ResNet-34, CIFAR-10",
}
PAGE = (ROOT / "docs" / "evidence" / "reproduction.md").read_text(encoding="utf-8")
Document = dict[str, Any]


@pytest.fixture(scope="module")
def studies() -> dict[str, StudyRecord]:
    return {study.name: study for study in read_studies(made.RESULTS)}


@pytest.fixture(scope="module")
def curves(studies: dict[str, StudyRecord]) -> dict[str, Panel]:
    return by_title(made.curves(list(studies.values())))


def by_title(panels: list[Panel]) -> dict[str, Panel]:
    return {panel.title.split("\n")[0]: panel for panel in panels}


def runs_of(file: str) -> list[Document]:
    return list(json.loads((made.RESULTS / f"{file}.json").read_text(encoding="utf-8"))["records"])


def stored(item: str) -> list[str]:
    """Return the pairs of classifier and data set that have a file, as file names have them."""
    return [path.stem.removeprefix(f"{item}-") for path in made.RESULTS.glob(f"{item}-*.json")]


def histories(pair: str) -> dict[str, list[list[float]]]:
    """Return the test accuracies [draw][step] behind the lines of a panel."""
    offline, online = ZETAS[pair]
    wanted = {ZERO: (0.0, False), OFFLINE: (offline, False), ONLINE: (online, True)}
    runs = runs_of(f"table-{pair}")
    found = {
        name: [r["rows"]["test_accuracy"] for r in runs if (r["cell"]["zeta"], r["setting"]["online"]) == key]
        for name, key in wanted.items()
    }
    found[ONLINE] = [values for values in found[ONLINE] if len(values) == 100]
    found[PLAIN] = [r["plain"]["test_accuracy"] for r in runs if r["cell"]["zeta"] == 0 and r["plain"]]
    return {name: values for name, values in found.items() if values}


def means(values: list[list[float]]) -> np.ndarray:
    return 100 * np.mean([own[: min(map(len, values))] for own in values], axis=0)


def line_of(panel: Panel, label: str) -> Line:
    (line,) = (line for line in panel.lines if line.label == label)
    return line


def zeta_in(label: str) -> float:
    return float(label.removeprefix("ζ = "))


def test_every_pair_of_the_paper_has_its_panel_in_order(curves: dict[str, Panel]) -> None:
    assert list(curves) == list(NAMES.values())


@pytest.mark.parametrize("pair", NAMES)
def test_curves_are_the_means_over_the_draws(curves: dict[str, Panel], pair: str) -> None:
    panel, expected = curves[NAMES[pair]], histories(pair)
    assert [line.label for line in panel.lines] == [name for name in (PLAIN, ZERO, OFFLINE, ONLINE) if name in expected]
    for line in panel.lines:
        mean = means(expected[line.label])
        assert list(line.x) == list(range(1, len(mean) + 1))
        assert line.y == pytest.approx(mean, rel=1e-12)
    assert panel.title.endswith(f"\n{len(expected[ZERO])} draws")


@pytest.mark.parametrize("pair", [pair for pair in NAMES if pair.startswith("resnet")])
def test_the_band_of_two_or_three_draws_is_their_range(curves: dict[str, Panel], pair: str) -> None:
    """One of 27 resamples, more than 2.5 %, has the least draw three times, so that the interval ends there."""
    for label, values in histories(pair).items():
        band = line_of(curves[NAMES[pair]], label).band
        if len(values) == 1:
            assert band is None
            continue
        assert len(values) <= 3
        draws = 100 * np.array([own[: min(map(len, values))] for own in values])
        assert list(band[0]) == pytest.approx(draws.min(0), rel=1e-12)
        assert list(band[1]) == pytest.approx(draws.max(0), rel=1e-12)


def cut(study: StudyRecord, rows: Callable[[RunRecord], int], plain: int) -> StudyRecord:
    runs = [run._replace(rows=run.rows[: rows(run)], plain=run.plain[:plain], end={}) for run in study.records]
    return study._replace(records=runs)


def read_again(folder: Path, *made_up: StudyRecord) -> list[StudyRecord]:
    for study in made_up:
        export_study(study, folder)
    return read_studies(folder)


def test_a_partial_study_is_drawn_as_far_as_it_goes(studies: dict[str, StudyRecord], tmp_path: Path) -> None:
    def rows(run: RunRecord) -> int:
        draw, zeta = run.cell["draw"], run.cell["zeta"]
        if run.setting["online"]:
            return 100 if draw < 2 else 70  # two of twelve are finished
        return 100 if zeta == 0 else 40 + draw

    (panel,) = made.curves(read_again(tmp_path, cut(studies["table-linear-mnist"], rows, plain=64)))
    expected = histories("linear-mnist")
    lengths = {PLAIN: 64, ZERO: 100, OFFLINE: 40, ONLINE: 100}
    assert {line.label: len(line.y) for line in panel.lines} == lengths
    expected[ONLINE] = expected[ONLINE][:2]
    for line in panel.lines:
        assert line.y == pytest.approx(means(expected[line.label])[: len(line.y)], rel=1e-12)


def test_online_runs_that_are_not_finished_are_not_drawn(studies: dict[str, StudyRecord], tmp_path: Path) -> None:
    (panel,) = made.curves(read_again(tmp_path, cut(studies["table-linear-mnist"], lambda run: 30, plain=0)))
    assert [(line.label, len(line.y)) for line in panel.lines] == [(ZERO, 30), (OFFLINE, 30)]


@pytest.mark.parametrize("pair", stored("scan"))
def test_scans_are_the_means_after_the_last_outer_step(studies: dict[str, StudyRecord], pair: str) -> None:
    panel = by_title(made.scans(list(studies.values())))[NAMES[pair]]
    ends: dict[float, list[float]] = {}
    for run in runs_of(f"scan-{pair}"):
        ends.setdefault(run["cell"]["zeta"], []).append(100 * run["rows"]["test_accuracy"][-1])
    level = np.mean(ends.pop(0.0))
    zetas = sorted(ends)
    tuned, bare = line_of(panel, "Eq. 5"), line_of(panel, ZERO)
    assert list(tuned.x) == zetas
    assert tuned.y == pytest.approx([np.mean(ends[zeta]) for zeta in zetas], rel=1e-12)
    assert (list(bare.x), bare.dash) == ([zetas[0], zetas[-1]], "dot")
    assert bare.y == pytest.approx([level, level], rel=1e-12)
    assert panel.log_x
    assert [x for x, _ in panel.verticals] == [ZETAS[pair][0]]


@pytest.mark.parametrize("pair", stored("correlation"))
def test_correlations_have_a_point_for_every_run(studies: dict[str, StudyRecord], pair: str) -> None:
    panel = by_title(made.correlations(list(studies.values())))[NAMES[pair]]
    expected = []
    for run in runs_of(f"correlation-{pair}"):
        rows = run["rows"]
        last = [test - valid for test, valid in zip(rows["test_risk"][-5:], rows["valid_risk"][-5:], strict=True)]
        root = math.sqrt(sum(value**2 for value in rows["regularizer"]))
        expected.append((run["cell"]["zeta"], root, sum(last) / 5))
    found = [(zeta_in(line.label), x, y) for line in panel.lines for x, y in zip(line.x, line.y, strict=True)]
    assert np.array(sorted(found)) == pytest.approx(np.array(sorted(expected)), rel=1e-9)
    assert panel.log_x
    assert panel.log_y == (min(error for *_, error in expected) > 0)


def small_study(item: str, studies: dict[str, StudyRecord]) -> StudyRecord:
    """Return a study of ResNet-18 with five ζ, two draws and 26 outer steps, made of other runs."""
    runs = []
    for zeta, other in ((0.0, 0.0), (1e-7, 1e-7), (1e-6, 1e-6), (5.8e-6, 1e-5), (1e-4, 1e-4)):
        for draw in (0, 1):
            run = studies["scan-linear-mnist"].where(zeta=other, init=draw)[0]
            setting, cell = {**run.setting, "model": "resnet18"}, {"zeta": zeta, "draw": draw, "init": 0}
            runs.append(run._replace(setting=setting, cell=cell, rows=run.rows[:26], plain=[]))
    old = studies["scan-linear-mnist"]
    settings = {**old.settings, "outer_steps": 26}
    return old._replace(item=item, name=f"{item}-resnet18-mnist", settings=settings, records=runs, asked=10)


def test_a_small_scan_is_drawn_beside_the_others(studies: dict[str, StudyRecord], tmp_path: Path) -> None:
    others = [studies[f"scan-linear-{data}"] for data in ("mnist", "cifar10")]
    panels = made.scans(read_again(tmp_path, *others, small_study("scan", studies)))
    titles = ["linear, MNIST", "ResNet-18, MNIST", "linear, CIFAR-10"]
    assert [panel.title.split("\n")[0] for panel in panels] == titles
    assert panels[0].title.endswith("\ndraw 0, 5 starts")
    assert panels[1].title.endswith("\n2 draws, after 26 outer steps")
    assert list(line_of(panels[1], "Eq. 5").x) == [1e-7, 1e-6, 5.8e-6, 1e-4]


def test_a_loss_below_zero_makes_the_axis_linear(studies: dict[str, StudyRecord], tmp_path: Path) -> None:
    study = small_study("correlation", studies)
    better = [{**row, "test_risk": row["valid_risk"] - 1} for row in study.records[-1].rows]
    below = study._replace(records=[*study.records[:-1], study.records[-1]._replace(rows=better)])
    ((whole,), (part,)) = (
        made.correlations(read_again(tmp_path / name, s)) for name, s in (("a", study), ("b", below))
    )
    assert (whole.log_x, whole.log_y, part.log_x, part.log_y) == (True, True, True, False)


def test_every_zeta_has_one_color_in_all_panels(studies: dict[str, StudyRecord]) -> None:
    pairs = [studies["correlation-linear-mnist"], small_study("correlation", studies)]
    figure = made.figures(pairs)["weight-decay-correlation"]
    colors: dict[str, set[Any]] = {}
    for line in (line for axes in figure.axes for line in axes.lines):
        colors.setdefault(line.get_label(), set()).add(line.get_color())
    assert {len(own) for own in colors.values()} == {1}
    assert len(set.union(*colors.values())) == len(colors) == 12  # eleven, and the paper's ζ of ResNet-18
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == sorted(colors, key=zeta_in)
    shown = [handle.get_color() for handle in legend.legend_handles]
    assert shown == [next(iter(colors[label])) for label in labels]


def test_plain_training_counts_once_per_draw(studies: dict[str, StudyRecord]) -> None:
    """Runs at other ζ have plain training beside them too, the same or a shorter one. The longest counts, and once."""
    study = studies["table-resnet34-cifar10"]
    longest = {run.cell["draw"]: run.plain for run in study.where(zeta=0.0)}
    for steps in (1, 100):
        runs = [run._replace(plain=longest[run.cell["draw"]][:steps]) for run in study.where(zeta=5e-6)]
        several = study._replace(records=[*runs, *study.where(zeta=0.0)])
        plain, other = (line_of(study_section(s).figures[0], PLAIN) for s in (several, study))
        assert len(plain.y) == 100
        assert (plain.y, plain.band) == (other.y, other.band)


def test_the_page_shows_the_images_that_the_script_writes(studies: dict[str, StudyRecord], tmp_path: Path) -> None:
    files = made.write(list(studies.values()), tmp_path)
    named = re.findall(r"^!\[[^\]]{40,}\]\(images/([\w-]+\.png)\)$", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(file.name for file in files)
    for file in files:
        for image in (images.imread(file), images.imread(made.IMAGES / file.name)):
            assert image.shape[1] >= 900
            assert image.std() > 0.02  # of a white image it is 0
