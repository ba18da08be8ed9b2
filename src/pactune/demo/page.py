"""The page of the demo: the effect in one table and four figures."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from pactune import __version__
from pactune.columns import Row
from pactune.demo.digits import DemoRuns, DemoSettings
from pactune.drawing import BLUE, GREY, RED, Panel, history_line
from pactune.report.page import Section, Table, write_page
from pactune.results.result import Result

__all__ = ["DemoRow", "demo_rows", "write_demo_page"]


class DemoRow(NamedTuple):
    """One row of the demo's table."""

    name: str
    step: int
    valid_accuracy: float
    test_accuracy: float
    regularizer: float | None

    def cells(self) -> list[str]:
        """Return the row as text."""
        regularizer = "" if self.regularizer is None else f"{self.regularizer:.4g}"
        numbers = [f"{100 * self.valid_accuracy:.1f} %", f"{100 * self.test_accuracy:.1f} %", regularizer]
        return [self.name, str(self.step), *numbers]


HEADER = ("run", "step", "validation", "test", "regularizer √Y")


def demo_rows(runs: DemoRuns) -> list[DemoRow]:
    """Return the rows of the demo's table; only they look at the test set."""
    zero, auto = runs.zero, runs.auto
    chosen = f"{auto.zeta:.2g}" if auto.kept_run == "tuned" else "plain training"
    best = max(zero.rows, key=lambda row: float(row["test_accuracy"]))
    return [
        _demo_row("plain training", zero.plain_rows[-1]),
        _demo_row("ζ = 0, last step", zero.rows[-1]),
        _demo_row(f'ζ = "auto": {chosen}', auto.kept),
        _demo_row("ζ = 0, best step by test", best),
    ]


def write_demo_page(runs: DemoRuns, settings: DemoSettings, path: Path) -> Path:
    """Write the page to `path`."""
    rows = [row.cells() for row in demo_rows(runs)]
    words = [
        "A linear classifier with a weight decay of its own for each of its 650 parameters, trained on "
        f"{settings.rows} images and tuned on {settings.rows} others; "
        f"{settings.inner_steps} inner steps of Adam per outer step.",
        'ζ = 0 minimises the validation risk alone. "auto" adds the PAC-Bayes regularizer where cross-validation '
        "asks for it, and chooses the outer step to keep. No choice was made by the test set.",
        "Validation and test are accuracies. The last row looks at the test set to find its step; no user could.",
        f"Verdict: {runs.auto.verdict}.",
    ]
    figures = [_curves(runs, column, title) for column, title in CURVES]
    sections = [Section("The effect", words, [Table(HEADER, rows)], figures)]
    if runs.auto.trials:
        sections.append(Section("How ζ and the step were chosen", [TRIALS], figures=[_trials(runs.auto)]))
    footer = f"pactune {__version__}, seed {settings.seed}, {runs.zero.rows[-1]['seconds']:.1f} s for the run at ζ = 0"
    return write_page(path, "pactune demo: scikit-learn digits", sections, footer)


CURVES = (
    ("test_accuracy", "test accuracy"),
    ("valid_accuracy", "validation accuracy"),
    ("regularizer", "regularizer √Y"),
)
TRIALS = (
    "Held-out score of every candidate at every outer step: the mean of 1 − exp(−loss/scale) over images that the "
    "fold neither trained nor tuned on. The least one decides."
)


def _curves(runs: DemoRuns, column: str, title: str) -> Panel:
    dash = "dash" if runs.auto.zeta == 0 else "solid"  # at ζ = 0 both lines are the same
    lines = [
        history_line("ζ = 0", runs.zero.rows, column, RED),
        history_line(f"ζ = {runs.auto.zeta:.3g}", runs.auto.rows, column, BLUE, dash),
        history_line("plain training", runs.zero.plain_rows, column, GREY, "dot"),
    ]
    kept = runs.auto.kept
    marks = [(kept["outer_step"], kept[column], "kept")] if column in kept else []
    return Panel(title, "outer step", title, [line for line in lines if line.x], marks, log_y=column == "regularizer")


def _trials(result: Result) -> Panel:
    names = list(dict.fromkeys(str(row["candidate"]) for row in result.trials))
    styles = {"plain": (GREY, "dot"), "ζ = 0": (RED, "solid")}
    lines = []
    for name in names:
        rows = [row for row in result.trials if row["candidate"] == name]
        lines.append(history_line(name, rows, "score", *styles.get(name, (BLUE, "solid"))))
    return Panel("held-out score", "outer step", "score (smaller is better)", lines)


def _demo_row(name: str, row: Row) -> DemoRow:
    return DemoRow(name, row["outer_step"], row["valid_accuracy"], row["test_accuracy"], row.get("regularizer"))
