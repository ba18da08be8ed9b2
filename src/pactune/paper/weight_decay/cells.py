"""Many runs of one setting, each described by a cell such as {"zeta": 1e-6, "draw": 0, "init": 3}.

Each run has its run folder. A run that is finished is not run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pactune.results.result import Result
from pactune.tracking.journal import read_lines
from pactune.tracking.status import journal_is_finished
from pactune.tuning.cells import Cell, cell_name
from pactune.tuning.grid import fit_grid
from pactune.tuning.tuner import Tuner

__all__ = ["Execution", "run_cells"]


@dataclass(frozen=True)
class Execution:
    """How runs are executed; another choice changes numbers by rounding only.

    Attributes:
        device: "cpu", "cuda" or another name that torch knows.
        engine: "auto", "eager", "traced", "compiled", "captured" or "fused".
        progress: show progress on stderr; None does so on a terminal only.
        report: called with a line of text when something begins.
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
    """Run every cell that is not finished yet, each in its run folder under `folder`.

    Cells whose ζ is a number run together in one grid; cells whose ζ is "auto" run one after the other.

    Args:
        build: returns a tuner for the values of a cell.
        cells: the runs.
        folder: the folder of all runs.
        outer_steps: number of outer steps, counted from the beginning of a run.
        test: a test set to report on.
        plain_steps: number of outer steps of plain training beside each run; None leaves it to `fit`.
        execution: where and how they run.

    Raises:
        KeyboardInterrupt: a run was interrupted; the same call continues it.
    """
    open_cells = [cell for cell in cells if not journal_is_finished(read_lines(folder / cell_name(cell)), outer_steps)]
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


def _stop_if_interrupted(results: Sequence[Result]) -> None:
    if any(result.status == "interrupted" for result in results):
        raise KeyboardInterrupt
