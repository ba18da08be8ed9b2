"""The tables that compare the methods over draws of the images, with the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from pactune.paper.intervals import Interval
from pactune.paper.weight_decay.facts import MODELS, has_papers_settings, pair_name
from pactune.paper.weight_decay.records import StudyRecord
from pactune.paper.weight_decay.rules import METHODS, Comparison, Summary, compare, summarise
from pactune.paper.weight_decay.setting import PAPER
from pactune.report.page import Table

__all__ = ["gain_table", "gains_table", "interval_text", "markdown", "method_table", "methods_table", "ordered"]

COMPARED = (
    ("regularized", "zero"),
    ("regularized", "min_norm"),
    ("online", "zero"),
    ("auto", "zero"),
    ("auto", "plain"),
)
NOT_RUN = "not run"


def methods_table(studies: Sequence[StudyRecord]) -> Table:
    """Return test accuracies in per cent with bootstrap intervals, a row per study."""
    rows = []
    for study in studies:
        found = summarise(study)
        shown = [_cell(found, method) for method in METHODS]
        rows.append([pair_name(study), _over(study, found), *shown, *_paper(study)])
    header = ("classifier, data", "over", *METHODS.values(), "paper: least norm", "paper: Eq. 5")
    return Table(header, rows)


def method_table(study: StudyRecord, *, every: bool = True) -> Table:
    """Return the test accuracies of one study, a row per method; `every=False` leaves out methods that were not run."""
    found, paper = summarise(study), dict(zip(("min_norm", "regularized"), _paper(study), strict=True))
    rows = [[name, _cell(found, method), paper.get(method, "")] for method, name in METHODS.items()]
    rows = rows if every else [row for row in rows if row[1] != NOT_RUN]
    return Table((f"test accuracy, %, over {_over(study, found)}", "ours", "paper"), rows)


def gain_table(study: StudyRecord) -> Table:
    """Return the gains of one study, a row per comparison."""
    header, (row,) = gains_table([study])
    return Table(("points of accuracy, paired", "gain, and on how many"), list(zip(header, row, strict=True))[2:])


def gains_table(studies: Sequence[StudyRecord]) -> Table:
    """Return the gains between methods, paired over draws and starts, in points of accuracy."""
    rows = []
    for study in studies:
        found = summarise(study)
        gains = [_gain(compare(found, *pair)) for pair in COMPARED]
        rows.append([pair_name(study), _over(study, found), *gains])
    names = {"regularized": "Eq. 5", "zero": "ζ = 0", "min_norm": "least norm", "online": "online", "auto": "auto"}
    header = [f"{names[own]} − {names.get(other, other)}" for own, other in COMPARED]
    return Table(("classifier, data", "over", *header), rows)


def ordered(studies: Sequence[StudyRecord]) -> list[StudyRecord]:
    """Return the studies that compare methods in the order of the paper; `table` comes before `weight-decay`."""
    places = {pair: place for place, pair in enumerate(PAPER)}

    def place(study: StudyRecord) -> tuple[int, bool, str]:
        setting = study.records[0].setting
        pair = (setting["model"], setting["data"])
        return places.get(pair, len(places) + list(MODELS).index(pair[0])), study.item != "table", study.name

    return sorted((s for s in studies if s.item in ("table", "weight-decay") and s.records), key=place)


def interval_text(interval: Interval, loss: bool = False) -> str:
    """Return a mean and its interval as the paper prints them.

    >>> interval_text(Interval(mean=64.04, low=63.7, high=64.4))
    '64.0 (63.7, 64.4)'
    """
    digits = 3 if loss else 1
    mean, low, high = (f"{interval[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return mean if low == high else f"{mean} ({low}, {high})"


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(summary: Summary, method: str) -> str:
    interval = summary.interval(method)
    if interval is None:
        return NOT_RUN
    text = interval_text(_percent(interval))
    return f"{text}, ζ {summary.zetas[method]:.3g}" if method in summary.zetas else text


def _gain(found: Comparison | None) -> str:
    if found is None:
        return NOT_RUN
    mean, low, high = (f"{100 * found.gain[key]:+.1f}" for key in ("mean", "low", "high"))
    return f"{mean} ({low}, {high}), {found.wins} of {found.of}"


def _percent(interval: Interval) -> Interval:
    return Interval(mean=100 * interval["mean"], low=100 * interval["low"], high=100 * interval["high"])


def _over(study: StudyRecord, found: Summary) -> str:
    """Return the draws and starts behind the intervals, and the runs and steps that are missing."""
    keys = {key for values in found.values.values() for key in values}
    draws, inits = {draw for draw, _ in keys}, {init for _, init in keys}
    many = f"{len(draws)} draws" if len(draws) != 1 else f"draw {min(draws)}"
    words = [many, f"{len(inits)} starts"] if len(inits) != 1 else [many]
    total = study.settings["outer_steps"]
    words += [f"after {found.steps} of {total} outer steps"] if found.steps < total else []
    words += [f"{study.finished} of {study.asked} runs"] if study.finished < study.asked else []
    words += [f"{found.diverged} diverged"] if found.diverged else []
    return ", ".join(words)


def _paper(study: StudyRecord) -> list[str]:
    """Return the paper's numbers as text; empty texts if the study has other settings."""
    if not has_papers_settings(study):
        return ["", ""]
    setting = study.records[0].setting
    row = PAPER[setting["model"], setting["data"]]
    texts = (Interval(mean=m, low=low, high=high) for m, low, high in (row.min_norm, row.regularized))
    return [interval_text(text) for text in texts]
