"""The page of the certificates: a table of the least certificate of each grid, and a figure per grid."""

from __future__ import annotations

from pathlib import Path

from pactune import __version__
from pactune.bounds.rounding import round_up
from pactune.columns import Row
from pactune.drawing import Line, Panel
from pactune.paper.certificates.studies import summarise
from pactune.report.page import Section, Table, write_page

__all__ = ["HEADER", "certificate_sections", "table_rows", "write_certificate_page"]

HEADER = (
    "study",
    "setting",
    "certificate",
    "on the bound sample",
    "hold-out",
    "test error",
    "nats per row",
    "below 0.9",
)
WORDS = (
    "With probability 0.95 over the bound sample and the draws, the error rate of a model chosen at random from those "
    "that were kept is at most the certificate. The grid of each study was declared beforehand and shares δ = 0.05, so "
    "the least certificate may be reported. Each study holds at 0.95 by itself.",
    "Hold-out is the bound from the other sample where nothing has seen it, at the same δ. It is tighter, and it is "
    "gone as soon as that sample has been used to tune, to centre the images or to start the chains.",
    "Certificates, and what enters them, are rounded up.",
    "The test error is shown for comparison and had no part in anything.",
)


def table_rows(studies: dict[str, Row]) -> list[list[str]]:
    """Return the table as text, a row per study and posterior or objective."""
    return [_cells(line) for line in summarise(studies)]


def write_certificate_page(studies: dict[str, Row], path: Path) -> Path:
    """Write `report.html`."""
    return write_page(path, "Certificates", certificate_sections(studies), f"pactune {__version__}")


def certificate_sections(studies: dict[str, Row]) -> list[Section]:
    """Return the sections of the certificates: the table of all studies, then the figures of each grid."""
    sections = [Section("Certified error rates", WORDS, [Table(HEADER, table_rows(studies))])]
    for name, study in studies.items():
        if study["kind"] == "train side" and len(study["rows"]) > 4:
            words = [
                f"{study['settings']['size']} certificates share δ; M = {study['settings']['models']} models each."
            ]
            figures = [_figure(name, study["rows"], posterior) for posterior in study["settings"]["posteriors"]]
            sections.append(Section(name, words, figures=figures))
    return sections


def _cells(line: Row) -> list[str]:
    if "posterior" in line:
        on = "S_T ∪ S_V" if line["posterior"] == "union" else "S_T"
        setting = f"posterior on {on}; η {line['lr']:g}, β {line['beta']:g}, T {line['steps']}"
        empirical, below = line["train_error"], f"{line['non_vacuous']} of {line['of']}"
    else:
        setting, empirical, below = f"tuned by {line['objective']}", line["valid_error"], ""
        setting = "λ0, not tuned" if line["objective"] == "λ0" else setting
    fresh = "" if line.get("hold_out") is None else round_up(line["hold_out"])
    numbers = [round_up(line["certificate"]), round_up(empirical), fresh, f"{line['test_error']:.4f}"]
    return [line["study"], setting, *numbers, round_up(line["log_ratio_per_row"]), below]


def _figure(name: str, rows: list[Row], posterior: str) -> Panel:
    """Return certificate and test error against the length of the chain: two lines per β, each at its best η."""
    chosen = [row for row in rows if row["posterior"] == posterior]
    rates = sorted({row["lr"] for row in chosen})
    lines = []
    for color, beta in enumerate(sorted({row["beta"] for row in chosen})):
        of_beta = [row for row in chosen if row["beta"] == beta]
        lr = min(rates, key=lambda rate: min(r["certificate"] for r in of_beta if r["lr"] == rate))
        shown = sorted((r for r in of_beta if r["lr"] == lr), key=lambda r: r["steps"])
        x = [row["steps"] for row in shown]
        lines.append(Line(f"certificate, β {beta:g}, η {lr:g}", x, [r["certificate"] for r in shown], "solid", color))
        lines.append(Line(f"test error, β {beta:g}", x, [r["test_error"] for r in shown], "dot", color))
    on = "S_T ∪ S_V" if posterior == "union" else "S_T"
    return Panel(f"{name}: posterior on {on}", "steps T", "error rate", lines)
