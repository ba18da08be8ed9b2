"""`fit_grid`: a whole grid of runs at once on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pactune.checks import check_count, check_flag
from pactune.columns import Row, column_names
from pactune.engines import as_engine
from pactune.errors import SettingError
from pactune.hypergradient.gradients import check_autograd
from pactune.problem import Problem
from pactune.problem.data import as_source
from pactune.problem.modules import frozen_parts
from pactune.results.callbacks import Callback, as_callbacks, progress_for
from pactune.results.result import Result
from pactune.rounds.engine import Engine
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.storage.files import as_folder, folder_inside
from pactune.tracking.recorder import CheckpointSchedule, resume_together
from pactune.tuning.cells import Cell, cell_name, check_key, grid_cells
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import FitSettings, Keep
from pactune.tuning.listeners import Listeners
from pactune.tuning.recording import recorded_in
from pactune.tuning.tuner import Tuner

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GridResult", "fit_grid"]


@dataclass(frozen=True)
class GridResult:
    """The outcome of `fit_grid`.

    Attributes:
        cells: the grid's cells, in the order of the results.
        results: the result of every cell, as `Tuner.fit` gives it.
    """

    cells: list[Cell]
    results: list[Result] = field(repr=False)

    @property
    def history(self) -> pd.DataFrame:
        """A row per cell and outer step, with a column for every key of the grid."""
        return self._frame([result.rows for result in self.results])

    @property
    def plain(self) -> pd.DataFrame:
        """The same for plain training, with λ fixed at its start."""
        return self._frame([result.plain_rows for result in self.results])

    def _frame(self, tables: Sequence[Sequence[Row]]) -> pd.DataFrame:
        import pandas as pd

        pairs = zip(self.cells, tables, strict=True)
        joined = [{**cell, **row} for cell, rows in pairs for row in rows]
        return pd.DataFrame(joined, columns=column_names(joined))


def fit_grid(
    build: Callable[..., Tuner],
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    *,
    outer_steps: int,
    test: Any = None,
    keep: Keep = "last",
    tolerance: float = 0.0,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    plain_steps: int | None = None,
    evaluate_every: int = 1,
    on_divergence: str = "return",
    run_dir: str | Path | None = None,
    resume: bool = False,
    engine: str | Engine = "auto",
) -> GridResult:
    """Train a whole grid at once, with the numbers that one run after the other gives, up to rounding.

    Runs of one structure become one run with a leading axis in every tensor; they may differ in data, seed, ζ and the
    values of θ, λ and buffers, and in nothing else that modules and losses hold. Models that are no faster so
    (convolutions, BatchNorm) run side by side in one CUDA graph, or one after the other on a CPU. Chains are runs too.

    Args:
        build: `build(**cell)` returns a `Tuner` with a new model and hyper module; cells may share frozen parameters.
            Seed what it draws.
        grid: values by name, of which every combination is a cell; or the cells themselves. No name may be that of a
            metric or of a column of the history, such as "objective" or "test_risk".
        outer_steps: as for `Tuner.fit`, like all that follow.
        test: a test set, or a function `test(**cell)` that returns one.
        keep: which outer step's parameters are kept.
        tolerance: a cell stops when the norm of its hypergradient falls below this.
        callbacks: listeners; each hears all cells.
        progress: show progress on stderr; None does so on a terminal only.
        plain_steps: for how many outer steps plain training runs beside each cell.
        evaluate_every: evaluate at every so many outer steps and at the last one; 0 never does.
        on_divergence: "return" keeps what a cell has reached and goes on with the others, "raise" ends all.
        run_dir: a folder with one run folder per cell; None writes nothing.
        resume: go on with the cells in `run_dir`; finished ones are not run again.
        engine: how inner steps are run; the tuners' own engines are not used.

    Raises:
        SettingError: a setting breaks its rule, or two cells share a model or a tensor that a run changes.

    Example:
        >>> import torch, pactune as pt
        >>> x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> def build(zeta, seed):
        ...     torch.manual_seed(seed)
        ...     model = torch.nn.Linear(3, 2)
        ...     hyper = pt.WeightDecay(model)
        ...     problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]),
        ...                          loss=torch.nn.functional.cross_entropy)
        ...     return pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=5, seed=seed,
        ...                     outer=torch.optim.SGD(hyper.parameters(), lr=0.1), objective=pt.PACBayes(zeta=zeta))
        >>> found = pt.fit_grid(build, {"zeta": [0.0, 0.01], "seed": [0, 1, 2]}, outer_steps=3)
        >>> len(found.history), [str(name) for name in found.history.columns[:3]]
        (18, ['zeta', 'seed', 'outer_step'])
    """
    check_autograd("fit_grid")
    if isinstance(keep, str) and keep == "held-out":
        raise SettingError('`keep="held-out"` makes runs of its own; in a grid keep "last" or "best-objective"')
    root = None if run_dir is None else as_folder("run_dir", run_dir, none=True)
    check_flag("resume", resume)
    cells = grid_cells(grid)
    tuners = [_built(build, cell) for cell in cells]
    _check_apart(tuners)
    for tuner in tuners:
        for key in {key for cell in cells for key in cell}:
            check_key(key, reserved=tuner.problem.metric_names())
    runner = Runner(as_engine(engine, tuners[0].problem))
    if test is not None and not callable(test):
        test = as_source(test, role="test", device=tuners[0].problem.device)  # one for all, so that it is read once
    check_count("outer_steps", outer_steps)
    with progress_for(progress, total=outer_steps * len(cells)) as shown:
        listeners = (*as_callbacks(callbacks), shown)
        fits, schedule = list[Fit](), CheckpointSchedule()
        for cell, tuner in zip(cells, tuners, strict=True):
            settings = FitSettings(
                outer_steps=outer_steps,
                test=_called("test", test, cell) if callable(test) else test,
                keep=keep,
                tolerance=tolerance,
                plain_steps=plain_steps,
                evaluate_every=evaluate_every,
                on_divergence=on_divergence,
            )
            folder = None if root is None else folder_inside(root, cell_name(cell))
            run = tuner.outer_run
            run.share(runner)
            settings = recorded_in(folder, run, settings, resume=resume, schedule=schedule)
            fits.append(Fit(run, settings, run.settings.zeta, Listeners(tuner, listeners)))
        resume_together([fit.settings.recorder for fit in fits])
        runs = [fit.requests() for fit in fits]
        results = run_in_lockstep(runs, runner, interrupted=lambda result: result.status == "interrupted")
    return GridResult(cells, results)


def _built(build: Callable[..., Tuner], cell: Cell) -> Tuner:
    if not callable(build):
        raise SettingError(f"`build` must be a function from a cell to a Tuner, got {type(build).__name__}")
    tuner = _called("build", build, cell)
    if not isinstance(tuner, Tuner):
        raise SettingError(f"`build` must return a Tuner, it returned {type(tuner).__name__} for {cell_name(cell)}")
    if tuner.settings.chooses_zeta:
        raise SettingError('`zeta="auto"` makes many runs of its own; in a grid pass numbers or "theory"')
    if tuner.outer_run.ranks.count > 1:
        raise SettingError("a grid runs in one process; `build` must make its tuners without `parallel`")
    return tuner


def _called(name: str, function: Callable[..., Any], cell: Cell) -> Any:
    """Call a function of the user with the values of a cell."""
    try:
        return function(**cell)
    except TypeError as error:
        raise SettingError(
            f"`{name}` must be a function of {', '.join(cell)}, the keys of `grid`; it fails with TypeError: {error}"
        ) from error


def _check_apart(tuners: Sequence[Tuner]) -> None:
    """Raise if two cells would train the same model or move the same λ, or share a tensor that a run changes."""
    seen: set[int] = set()
    taken: set[tuple[torch.device, int]] = set()
    for tuner in tuners:
        parts = {id(tuner.problem.model), id(tuner.problem.hyper), id(tuner.outer)}
        if parts & seen:
            raise SettingError("`build` must make a new model, hyper module and outer optimizer for every cell")
        seen |= parts
        own = _changed_memory(tuner.problem)
        if shared := [name for key, name in own.items() if key in taken]:
            raise SettingError(
                f"`build` must make new tensors for every cell, and two cells share the memory of {shared[0]}; clone "
                "the tensor, or take a copy.deepcopy of its module. Cells may share frozen parameters, with "
                "requires_grad=False, and buffers of modules in `eval()` mode inside a model in training mode"
            )
        taken |= own.keys()


def _changed_memory(problem: Problem) -> dict[tuple[torch.device, int], str]:
    """Return the names of the tensors that a run may change, by device and address of their memory.

    They are θ, λ and the model's buffers, except those of the parts that stay in `eval()` mode.
    """
    frozen = {id(buffer) for part in frozen_parts(problem.model) for buffer in part.buffers(recurse=False)}
    buffers = {name: buffer for name, buffer in problem.buffers().items() if id(buffer) not in frozen}
    trees = {"model": problem.leaves() | buffers, "hyper": problem.hyper_leaves()}
    return {
        (value.device, _address(value)): f"`{root}.{name}`"
        for root, tree in trees.items()
        for name, value in tree.items()
        if value.numel()
    }


def _address(value: torch.Tensor) -> int:
    """Return the address of a tensor's memory; that of the object if the tensor is sparse."""
    return value.untyped_storage().data_ptr() if value.layout == torch.strided else id(value)
