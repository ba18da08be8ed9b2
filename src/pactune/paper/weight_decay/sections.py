"""The sections of the page: words, tables and figures of each study of section 4.2 and its appendix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from pactune.drawing import GREY, Line, Panel
from pactune.extras import require
from pactune.paper.intervals import Interval, bootstrap_interval, bootstrap_intervals
from pactune.paper.weight_decay.facts import fact_table, has_papers_settings, pair_name
from pactune.paper.weight_decay.method_tables import gain_table, interval_text, method_table
from pactune.paper.weight_decay.records import RunRecord, StudyRecord
from pactune.report.page import Section, Table

__all__ = ["SECTION_PARTS", "study_section"]

BAND = "95 % bootstrap interval of the mean"
LAST = 5  # outer steps over which the paper averages the generalisation error
DECADES = 100.0  # the axis is logarithmic if the largest error is this many times the least one
COLUMNS = {
    "test_accuracy": "test accuracy",
    "valid_accuracy": "validation accuracy",
    "test_risk": "test loss",
    "valid_risk": "validation loss",
}
TUNED = (0, 1, 2, 3, 5, 6)  # colors of tuned runs; grey is for plain training
PATHS = {"truncated": "K", "windowed": "W"}
STARTED = ("valid_accuracy", "test_accuracy")
STARTS = {"kept": "θ goes on", "same": "back to one θ_0", "fresh": "θ_0 drawn anew"}


def study_section(study: StudyRecord) -> Section:
    """Return the section of a study: words, tables, figures, and the table of its settings."""
    heading, words, tables, figures = SECTION_PARTS[study.item](study)
    missing = study.asked - study.finished
    notes = [] if not missing else [f"{missing} of {study.asked} runs are not finished; what there is, is shown."]
    if not has_papers_settings(study):
        notes.append(
            "Data, amounts or step sizes are not the paper's (see the settings): do not compare with its numbers."
        )
    named = [_named(study, figure) for figure in figures if figure.lines]
    return Section(f"{heading}: {pair_name(study)}", [*words, *notes], tables, named, [fact_table(study)])


def _named(study: StudyRecord, figure: Panel) -> Panel:
    """Return a figure with the study in its title, accuracies in per cent, and a word about its bands."""
    title = f"{pair_name(study)}: {figure.title}"
    band = BAND if any(line.band for line in figure.lines) else ""
    if not figure.y_title.endswith("accuracy"):
        return figure._replace(title=title, band_title=band)
    lines = [_in_percent(line) for line in figure.lines]
    return figure._replace(title=title, y_title=f"{figure.y_title} (%)", lines=lines, band_title=band)


def _in_percent(line: Line) -> Line:
    low, high = line.band or ((), ())
    scaled = [[100 * value for value in values] for values in (line.y, low, high)]
    return line._replace(y=scaled[0], band=(scaled[1], scaled[2]) if line.band else None)


Parts = tuple[str, list[str], list[Table], list[Panel]]


def _curves(study: StudyRecord) -> Parts:
    words = [
        "A weight decay for every parameter, tuned on the validation images: bare validation risk (ζ = 0, dashed), "
        f"Eq. 5, and plain training with λ fixed at 0. {_interval_note(study)}"
    ]
    columns = {**COLUMNS, "regularizer": "regularizer √Y"}
    figures = [_column_panel(study, column, title) for column, title in columns.items()]
    figures = [figure._replace(log_y=not figure.title.endswith("accuracy")) for figure in figures]
    return "Curves (Figures 4.2 and C.5–C.13)", words, [method_table(study, every=False)], figures


def _table(study: StudyRecord) -> Parts:
    words = [f"The runs behind the row of the table. {_interval_note(study)}"]
    figures = [_column_panel(study, column, COLUMNS[column]) for column in ("test_accuracy", "valid_accuracy")]
    return "Over draws of the images (Table C.1)", words, [method_table(study), gain_table(study)], figures


def _correlation(study: StudyRecord) -> Parts:
    points = [(run.cell["zeta"], *_regularizer_and_error(run)) for run in study.records if run.rows]
    words = [
        "Generalisation error, the mean of test loss minus validation loss over the last "
        f"{LAST} outer steps, against the regularizer over all steps of the run."
    ]
    several = len({zeta for zeta, _, _ in points}) > 1
    tables = [_correlation_table([x for _, x, _ in points], [y for _, _, y in points])] if several else []
    title = "Generalisation error and regularizer (Figures 4.3 and C.14–C.16)"
    return title, words, tables, [_correlation_panel(points)]


def _correlation_panel(points: Sequence[tuple[float, float, float]]) -> Panel:
    """Return the points (ζ, regularizer, error) of all runs, a color per ζ."""
    lines = []
    for color, zeta in enumerate(sorted({zeta for zeta, _, _ in points})):
        own = [(x, y) for value, x, y in points if value == zeta]
        lines.append(Line(f"ζ = {zeta:g}", [x for x, _ in own], [y for _, y in own], color=color, mode="markers"))
    errors = [y for _, _, y in points]
    wide = bool(errors) and 0 < DECADES * min(errors) < max(errors)
    titles = ("generalisation error", "√ΣY over all steps", "test loss − validation loss")
    return Panel(*titles, lines, log_x=True, log_y=wide)


def _correlation_table(regularizers: Sequence[float], errors: Sequence[float]) -> Table:
    stats = require("scipy.stats")
    pearson = stats.pearsonr(np.log(regularizers), np.array(errors)).statistic
    spearman = stats.spearmanr(regularizers, errors).statistic
    row = [str(len(errors)), f"{pearson:+.3f}", f"{spearman:+.3f}"]
    return Table(("runs", "Pearson, log regularizer", "Spearman"), [row])


def _scan(study: StudyRecord) -> Parts:
    words = [f"Test loss and accuracy after the last outer step against ζ; dotted: ζ = 0. {_interval_note(study)}"]
    figures = [_scan_panel(study, "test_risk")._replace(log_y=True), _scan_panel(study, "test_accuracy")]
    rows = [
        [f"{zeta:g}", *(_percent_or_loss(study.where(zeta=zeta), column) for column in ("test_risk", "test_accuracy"))]
        for zeta in sorted({run.cell["zeta"] for run in study.records if run.rows})
    ]
    tables = [Table(("ζ", "test loss", "test accuracy, %"), rows)]
    return "A scan over ζ (Figures C.17–C.19)", words, tables, figures


def _truncation(study: StudyRecord) -> Parts:
    words = [
        "The regularizer alone is minimised, by gradients that go back through fewer or more inner steps. First its "
        f"value in each outer step, then √ΣY over all steps so far. {_interval_note(study)}"
    ]
    paths = list(dict.fromkeys(run.setting["path"] for run in study.records))
    each, running = [], []
    for color, path in enumerate(paths):
        runs, label = study.where(path=path), _path_label(path, study)
        each.append(_mean_line(label, runs, lambda run: run.column("regularizer"), color))
        running.append(_mean_line(label, runs, _running_regularizer, color))
    rows = [[a.label, f"{a.y[-1]:.4g}", f"{b.y[-1]:.4g}"] for a, b in zip(each, running, strict=True) if a.y]
    tables = [Table(("gradient", "√Y in the last outer step", "√ΣY over all steps"), rows)]
    titles = ("regularizer √Y per outer step", "running value √ΣY")
    figures = [
        Panel(t, "outer step", t, [*filter(_has_points, lines)])
        for t, lines in zip(titles, (each, running), strict=True)
    ]
    return "Truncation (Figure B.1)", words, tables, figures


def _restart(study: StudyRecord) -> Parts:
    words = [
        "θ_0 set back (to one value, or to a fresh draw) at every outer step, beside runs that go on; the paper "
        f"mentions this experiment and does not show it. Dashed: ζ = 0. {_interval_note(study)}"
    ]
    figures = [_restart_panel(study, column) for column in ("test_accuracy", "valid_accuracy")]
    rows = [
        [label, f"{zeta:g}", *(_percent_or_loss(study.where(start=start, zeta=zeta), c) for c in STARTED)]
        for start, label in STARTS.items()
        for zeta in sorted({run.cell["zeta"] for run in study.where(start=start) if run.rows})
    ]
    tables = [Table(("every outer step", "ζ", "validation accuracy, %", "test accuracy, %"), rows)]
    return "Restart (mentioned in appendix C.2, not shown there)", words, tables, figures


def _restart_panel(study: StudyRecord, column: str) -> Panel:
    lines = []
    for color, (start, label) in enumerate(STARTS.items()):
        for zeta in sorted({run.cell["zeta"] for run in study.where(start=start)}):
            runs, dash = study.where(start=start, zeta=zeta), "solid" if zeta else "dash"
            lines.append(_mean_line(f"{label}, ζ = {zeta:g}", runs, lambda run: run.column(column), color, dash))
    return Panel(COLUMNS[column], "outer step", COLUMNS[column], [*filter(_has_points, lines)])


SECTION_PARTS: dict[str, Callable[[StudyRecord], Parts]] = {
    "weight-decay": _curves,
    "table": _table,
    "correlation": _correlation,
    "scan": _scan,
    "truncation": _truncation,
    "restart": _restart,
}


def _column_panel(study: StudyRecord, column: str, title: str) -> Panel:
    """Return the curves of a column at every ζ, and those of plain training."""
    keys = list(dict.fromkeys((run.cell["zeta"], run.setting["online"]) for run in study.records))
    lines = []
    for color, (zeta, online) in zip(itertools.cycle(TUNED), keys, strict=False):
        label = f"ζ = {zeta if isinstance(zeta, str) else format(zeta, 'g')}{', online' if online else ''}"
        runs = study.where(zeta=zeta, online=online)
        lines.append(_mean_line(label, runs, lambda run: run.column(column), color, "solid" if zeta else "dash"))
    plain = _plain_runs(study, column)
    lines.append(_mean_line("plain training", plain, lambda run: [row[column] for row in run.plain], GREY, "dot"))
    return Panel(title, "outer step", title, [*filter(_has_points, lines)])


def _plain_runs(study: StudyRecord, column: str) -> list[RunRecord]:
    """Return for each draw and start the run whose plain training went furthest, the first of several.

    Runs of one draw and start at other ζ have the same plain training beside them. It counts once.
    """
    found: dict[tuple[int, int], RunRecord] = {}
    having = [run for run in study.records if run.plain and column in run.plain[0]]
    for run in sorted(having, key=lambda run: -len(run.plain)):
        found.setdefault((run.cell["draw"], run.cell["init"]), run)
    return list(found.values())


def _mean_line(
    label: str,
    runs: Sequence[RunRecord],
    values: Callable[[RunRecord], Sequence[float]],
    color: int,
    dash: str = "solid",
) -> Line:
    """Return the mean curve of several runs with its bootstrap interval, up to the last step that all of them have."""
    rows = [values(run) for run in runs if run.rows]
    length = min(map(len, rows), default=0)
    if not length:
        return Line(label, [], [], dash, color)
    found = bootstrap_intervals([row[:length] for row in rows])
    band = None if len(rows) < 2 else _band(found)
    return Line(label, list(range(1, length + 1)), [i["mean"] for i in found], dash, color, band)


def _band(intervals: Sequence[Interval]) -> tuple[list[float], list[float]]:
    return [i["low"] for i in intervals], [i["high"] for i in intervals]


def _scan_panel(study: StudyRecord, column: str) -> Panel:
    by_zeta: dict[float, list[float]] = {}
    for run in study.records:
        if run.rows:
            by_zeta.setdefault(run.cell["zeta"], []).append(run.rows[-1][column])
    zetas = sorted(zeta for zeta in by_zeta if zeta > 0)
    lines = [_zeta_line("Eq. 5", zetas, [by_zeta[zeta] for zeta in zetas], "solid", 1)]
    if 0 in by_zeta and zetas:
        lines.append(_zeta_line("ζ = 0", [zetas[0], zetas[-1]], [by_zeta[0]] * 2, "dot", 0))
    return Panel(f"{COLUMNS[column]} against ζ", "ζ", COLUMNS[column], lines if zetas else [], log_x=True)


def _zeta_line(label: str, zetas: Sequence[float], values: Sequence[Sequence[float]], dash: str, color: int) -> Line:
    found = [bootstrap_interval(value) for value in values]
    band = _band(found) if found and len(values[0]) > 1 else None
    return Line(label, zetas, [i["mean"] for i in found], dash, color, band)


def _percent_or_loss(runs: Sequence[RunRecord], column: str) -> str:
    """Return mean and bootstrap interval of a column after the last outer step, accuracies in per cent."""
    factor = 100 if column.endswith("accuracy") else 1
    return interval_text(bootstrap_interval([factor * run.rows[-1][column] for run in runs if run.rows]), factor == 1)


def _regularizer_and_error(run: RunRecord) -> tuple[float, float]:
    last = run.rows[-LAST:]
    error = float(np.mean([row["test_risk"] - row["valid_risk"] for row in last]))
    return _running_regularizer(run)[-1], error


def _running_regularizer(run: RunRecord) -> list[float]:
    """Return √ΣY over all steps so far."""
    return [math.sqrt(y) for y in np.cumsum(np.square(run.column("regularizer")))]


def _path_label(path: str, study: StudyRecord) -> str:
    kind, _, size = path.partition("-")
    full = any(run.setting["inner_steps"] == int(size) for run in study.where(path=path))
    return "K = ∞" if full else f"{PATHS[kind]} = {size}"


def _interval_note(study: StudyRecord) -> str:
    """Return the sentence that says what varies within the intervals of bands and tables."""
    draws, inits = ({run.cell[key] for run in study.records} for key in ("draw", "init"))
    if len(draws) * len(inits) == 1:
        return "One run each."
    starts = f"{len(inits)} initial weights" if len(inits) > 1 else "one start each"
    over = f"{len(draws)} draws of the images, {starts}" if len(draws) > 1 else f"{starts}, one draw of the images"
    return f"Bands and brackets: 95 % bootstrap intervals of the mean over {over}."


def _has_points(line: Line) -> bool:
    return bool(line.x)
