"""The page of the demo: the comparison of `pt.tune`, its verdict, and the last run in figures."""

from __future__ import annotations

from pathlib import Path

from pactune import __version__
from pactune.demo.digits import ROWS
from pactune.report.comparison import comparison_table
from pactune.report.page import Section, write_page
from pactune.results.plots import history_panels
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
    "The kept procedure trains once more, on all images. Validation numbers are the mean of five models, each on "
    "the fold that it did not train on. The test images decide nothing. An outer step has {} training steps."
)


def write_demo_page(result: Result, seed: int, path: Path) -> Path:
    """Write the page to `path`."""
    panels = history_panels(result)
    sections = [
        Section("Does tuning pay?", [PROBLEM, TABLE], [comparison_table(result.comparison)], panels[:1]),
        Section("Verdict", [f"{result.verdict[:1].upper()}{result.verdict[1:]}.", accuracy_sentence(result)]),
        Section("The three procedures", PROCEDURES),
        Section("The last run", [LAST_RUN.format(result.settings["inner_steps"])], figures=panels[1:]),
    ]
    return write_page(path, "pactune demo: scikit-learn digits", sections, f"pactune {__version__}, seed {seed}")


def accuracy_sentence(result: Result) -> str:
    """Return the accuracy of the kept model on the test set, in words."""
    return f"The kept model has an accuracy of {100 * result.kept['test_accuracy']:.1f} % on all other images."
