"""The page of the demo: the comparison of `pt.tune`, its verdict, and the last run in figures."""

from __future__ import annotations

from pathlib import Path

from pactune import __version__
from pactune.columns import column_title
from pactune.demo.digits import ROWS
from pactune.drawing import BLUE, GREY, Line, Panel, history_line
from pactune.report.comparison import comparison_table
from pactune.report.page import Section, write_page
from pactune.results.result import Result

__all__ = ["accuracy_sentence", "write_demo_page"]

PROBLEM = (
    f"pt.tune trains a linear classifier on {ROWS} images of scikit-learn's digits. A range test finds the learning "
    "rate. Five folds of these images choose the number of steps and the hyperparameters."
)
TABLE = (
    "The table compares three procedures on held-out rows: images that did not train the model and did not choose its "
    "steps and hyperparameters. ± is one standard error."
)
PROCEDURES = (
    "Plain training: SGD with momentum and without weight decay, which stops at the step that the folds choose.",
    "One decay: the same with one weight decay for all parameters, which the folds choose from a grid.",
    "The tuned model: starts at that decay and tunes by gradient a decay for each parameter tensor, and the strength "
    "of a pull that gives correlated pixels similar weights.",
)
LAST_RUN = (
    "The kept procedure trains once more, on all images. The validation risk is the mean of five models, each on "
    "the fold that it did not train on. The test images decide nothing."
)
CURVES = ("test_accuracy", "test_risk", "valid_risk", "train_risk")


def write_demo_page(result: Result, seed: int, path: Path) -> Path:
    """Write the page to `path`."""
    sections = [
        Section("Does tuning pay?", [PROBLEM, TABLE], [comparison_table(result.comparison)]),
        Section("Verdict", [f"{result.verdict[:1].upper()}{result.verdict[1:]}.", accuracy_sentence(result)]),
        Section("The three procedures", PROCEDURES),
        Section("The last run", [LAST_RUN], figures=[_panel(result, column) for column in CURVES]),
    ]
    return write_page(path, "pactune demo: scikit-learn digits", sections, f"pactune {__version__}, seed {seed}")


def accuracy_sentence(result: Result) -> str:
    """Return the accuracy of the kept model on the test set, in words."""
    return f"The kept model has an accuracy of {100 * result.kept['test_accuracy']:.1f} % on all other images."


def _panel(result: Result, column: str) -> Panel:
    title = column_title(column)
    lines = _lines(result, column)
    marks = [(line.x[-1], line.y[-1], "kept") for line in lines[:1]]
    return Panel(title, "training step", title, lines, marks)


def _lines(result: Result, column: str) -> list[Line]:
    """Return the kept run, and beside a tuned run the same training with its hyperparameters at their start."""
    kept = next(row["model"] for row in result.comparison if row["kept"])
    tuned = result.kept_run == "tuned"
    lines = [history_line(kept, result.rows if tuned else result.plain_rows, column, BLUE)]
    if tuned:
        lines.append(history_line("hyperparameters at their start", result.plain_rows, column, GREY, "dot"))
    steps = result.settings["inner_steps"]
    return [line._replace(x=[steps * x for x in line.x]) for line in lines]
