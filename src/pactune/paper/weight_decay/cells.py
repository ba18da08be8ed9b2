"""Many runs of one setting, each from a plain description (a cell), in one folder each; finished ones stay finished."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pactune.columns import Row
from pactune.results.result import Result
from pactune.tracking.journal import JOURNAL, read_lines
from pactune.tuning.grid import cell_name, fit_grid
from pactune.tuning.tuner import Tuner

__all__ = ["Cell", "Execution", "find_cells", "is_finished", "parse_name", "run_cells"]

Cell = dict[str, Any]
ENDED = ("diverged", "converged")  # however few outer steps there are


@dataclass(frozen=True)
class Execution:
    """How runs are executed; it changes numbers by rounding only.

    Attributes:
        device: "cpu", "cuda" or another name that torch knows.
        engine: "auto", "eager", "traced", "compiled", "captured" or "fused".
        progress: show progress on stderr; None does so on a terminal only.
        report: told, in words, what begins.
    """

    device: str = "cpu"
    engine: str = "auto"
    progress: bool | None = None
    report: Callable[[str], None] = lambda _: None


def run_cells(
    build: Callable[..., Tuner],
    cells: Sequence[Cell],
    folder: Path,
    *,
    outer_steps: int,
    test: Any,
    plain_steps: int | None,
    execution: Execution,
) -> None:
    """Run every cell that is not finished yet, in a run folder of its own under `folder`.

    Cells go together in one grid where their ζ are numbers, one after the other where ζ is "auto".

    Args:
        build: returns a tuner for the values of a cell.
        cells: the runs.
        folder: of all runs.
        outer_steps: how often λ is to move, counted from the beginning of a run.
        test: a test set to report on.
        plain_steps: for how many outer steps plain training runs beside each.
        execution: where and how they run.

    Raises:
        KeyboardInterrupt: a run was interrupted; the same call goes on from there.
    """
    open_cells = [cell for cell in cells if not is_finished(read_lines(folder / cell_name(cell)), outer_steps)]
    execution.report(f"{folder.name}: {len(cells) - len(open_cells)} of {len(cells)} runs are finished")
    arguments: dict[str, Any] = {
        "outer_steps": outer_steps,
        "test": test,
        "plain_steps": plain_steps,
        "progress": execution.progress,
        "on_divergence": "return",
        "resume": True,
    }
    together = [cell for cell in open_cells if cell["zeta"] != "auto"]
    if together:
        execution.report(f"{len(together)} runs at once")
        _stop_if_interrupted(fit_grid(build, together, run_dir=folder, engine=execution.engine, **arguments).results)
    alone = [cell for cell in open_cells if cell["zeta"] == "auto"]
    for number, cell in enumerate(alone, start=1):
        execution.report(f"run {number} of {len(alone)}: {cell_name(cell)}")
        _stop_if_interrupted([build(**cell).fit(run_dir=folder / cell_name(cell), **arguments)])


def parse_name(name: str) -> Cell:
    """Return the cell of a folder's name.

    >>> parse_name("zeta=auto,draw=0")
    {'zeta': 'auto', 'draw': 0}
    """
    parts = [part.partition("=") for part in name.split(",")]
    return {key: _value(text) for key, sign, text in parts if sign}


def find_cells(folder: Path, cells: Sequence[Cell]) -> list[tuple[Cell, Path]]:
    """Return the cells that have a journal, with their folders."""
    present = [path.parent for path in folder.glob(f"*/{JOURNAL}")]
    by_cell = [(parse_name(path.name), path) for path in sorted(present)]
    return [(cell, path) for cell in cells for found, path in by_cell if found == cell]


def is_finished(lines: Sequence[Row], outer_steps: int) -> bool:
    """Whether a journal says that a run is over: as many outer steps and an end, or an end that nothing follows."""
    endings = [line["status"] for line in lines if line["kind"] == "end"]
    if not endings:
        return False
    done = len({line["outer_step"] for line in lines if line["kind"] == "row"})
    return endings[-1] in ENDED or (endings[-1] == "completed" and done >= outer_steps)


def _stop_if_interrupted(results: Sequence[Result]) -> None:
    if any(result.status == "interrupted" for result in results):
        raise KeyboardInterrupt


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # whatever a folder may be called
        return text
