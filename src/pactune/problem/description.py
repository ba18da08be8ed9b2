"""A problem in one line: its modules, its hyperparameters and its rows."""

from __future__ import annotations

from pactune.problem.data import Source
from pactune.problem.folds import Folds
from pactune.problem.risks import ModelRisks
from pactune.problem.tasks import Tasks
from pactune.trees import Params

__all__ = ["describe_problem"]

MOST = 4  # tensors of hyperparameters that are named


def describe_problem(
    problem: ModelRisks, train: Source, valid: Source, folds: Folds | None, tasks: Tasks | None
) -> str:
    """Return a problem in words, for `repr`."""
    params, hyper = problem.parameters(), problem.hyperparameters()
    sizes = [f"{name}: {value.numel()}" for name, value in hyper.items()]
    named = ", ".join(sizes if len(sizes) <= MOST else [*sizes[:MOST], f"… {len(sizes)} tensors"])
    modules = (
        f"model={type(problem.model).__name__} with {_count(params)} parameters, "
        f"hyper={type(problem.hyper).__name__} with {_count(hyper)} hyperparameters ({named})"
    )
    return f"Problem({modules}, {_data(train, valid, folds, tasks)})"


def _data(train: Source, valid: Source, folds: Folds | None, tasks: Tasks | None) -> str:
    if folds is not None:
        return f"data={_rows(train)} in {len(folds.folds)} folds{' and a refit' if folds.refit else ''}"
    both = f"train={_rows(train)}, valid={_rows(valid)}"
    if tasks is None:
        return both
    return f"tasks={len(tasks.places)}{' drawn at every outer step' if tasks.drawn else ''}, the first with {both}"


def _rows(source: Source) -> str:
    return "a stream of rows" if source.size is None else f"{source.size} rows"


def _count(tensors: Params) -> int:
    return sum(value.numel() for value in tensors.values())
