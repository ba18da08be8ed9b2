"""Training with fixed hyperparameters, over folds, in lockstep: the runs that a search compares."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pactune.dynamics import Averaged, Dynamics
from pactune.errors import SettingError
from pactune.hypergradient import Truncated
from pactune.interrupts import check_interrupt
from pactune.objectives import Objective, ValidationRisk
from pactune.parallel import SINGLE_RANK
from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.problem.folds import targets_of
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.run_states import RunStates
from pactune.stacking.lockstep import RequestGenerator
from pactune.stacking.runner import Runner
from pactune.trees import Params
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.settings import TunerSettings

__all__ = [
    "InnerLoop",
    "RowReader",
    "RowScores",
    "averaged",
    "copied_modules",
    "row_scores",
    "start_run",
    "train",
    "tune",
]

BETA = 0.98  # of the average over the steps of a model that trains with noise on its inputs


class InnerLoop(NamedTuple):
    """How the models are trained.

    Attributes:
        inner: the inner dynamics.
        steps: the inner steps of a round. Models are looked at between rounds.
        seed: the seed of mini-batches and noise.
    """

    inner: Dynamics
    steps: int
    seed: int


class RowScores(NamedTuple):
    """What a model says about some rows, on the CPU.

    Attributes:
        losses: the loss of every row, in float64.
        predictions: the model's outputs; None if a batch is no tuple (inputs, target).
        tempered: for classes, the loss of every row at several temperatures, shape (rows, temperatures).
    """

    losses: Tensor
    predictions: Tensor | None
    tempered: Tensor | None = None

    def at(self, places: Tensor) -> RowScores:
        """Return the rows at some places."""
        return RowScores(*(None if part is None else part[places] for part in self))  # type: ignore[arg-type]


def row_scores(found: Sequence[RowScores], scale: float) -> Tensor:
    """Return the numbers that choices are made by, one for every row of some models; smaller is better.

    With classes, this is the loss at the temperature that is best for all these rows together. Otherwise it is
    1 − exp(−loss/scale), which no single row can dominate; of a negative loss, minus that of its size.
    """
    tempered = [one.tempered for one in found if one.tempered is not None]
    if len(tempered) == len(found):
        joined = torch.cat(tempered)
        return joined[:, int(joined.mean(0).argmin())]
    losses = torch.cat([one.losses for one in found])
    return (losses.sign() * (1 - torch.exp(-losses.abs() / scale))).nan_to_num(nan=1.0)


class RowReader(NamedTuple):
    """Reads what models say about rows.

    Attributes:
        tempered: returns the losses of rows at several temperatures, from predictions and targets; None without
            classes.
    """

    tempered: Callable[[Tensor, Tensor], Tensor] | None = None

    def read(self, chains: ChainStates, hyper: Params, source: Source) -> RowScores:
        """Return what a model says about the rows of a source."""
        problem, state = chains.inputs.problem, chains.lead
        assert state is not None
        return problem.at(state.params, hyper, state.buffers, lambda: self._read(problem, source))

    def _read(self, problem: Problem, source: Source) -> RowScores:
        predictions, losses = problem.predictions(source), problem.row_losses(source)
        targets = targets_of(source) if self.tempered is not None else None
        if self.tempered is None or predictions is None or targets is None:
            return RowScores(losses, None if predictions is None else predictions.cpu())
        return RowScores(losses, predictions.cpu(), self.tempered(predictions.cpu(), targets.cpu()))


def copied_modules(*modules: nn.Module) -> tuple[nn.Module, ...]:
    """Return copies of modules, which share with each other what the originals share.

    Raises:
        SettingError: the modules cannot be copied.
    """
    try:
        return copy.deepcopy(modules)
    except Exception as error:  # a module may do anything when it is copied
        raise SettingError(
            f"`model` and `hyper` must be modules that copy.deepcopy can copy; it fails with {type(error).__name__}: "
            f"{error}"
        ) from error


def averaged(loop: InnerLoop) -> InnerLoop:
    """Return the loop with an average over the last steps, which noise on the inputs does not shake."""
    if isinstance(loop.inner, Averaged) or not loop.inner.differentiable:
        return loop
    return loop._replace(inner=Averaged(loop.inner, beta=BETA))


def start_run(
    problem: Problem,
    loop: InnerLoop,
    runner: Runner,
    outer: torch.optim.Optimizer | None = None,
    objective: Objective | None = None,
) -> OuterRun:
    """Return a run of a problem at its start. Without `outer` its hyperparameters stay where they are."""
    settings = TunerSettings(
        problem=problem,
        inner=loop.inner,
        inner_steps=loop.steps,
        outer=outer or torch.optim.SGD(problem.hyper.parameters(), lr=0.0),
        objective=objective or ValidationRisk(),
        risk_estimator=Truncated(1),
        path_estimator=Truncated(0),
        seed=loop.seed,
    )
    return OuterRun(settings, SINGLE_RANK, runner)


def train(run: OuterRun, rounds: int, hear: Callable[[RunStates], None]) -> RequestGenerator[None]:
    """Train for some more rounds with the hyperparameters of the start; `hear` is called after each."""
    plan = run.plan(0.0).training_only()
    with run.problem.training_mode():
        for _ in range(rounds):
            check_interrupt()
            run.chains.follow(run.chains.after((yield run.chains.requests(plan, run.start_hyper))))
            hear(run.chains)


def tune(run: OuterRun, steps: int, hear: Callable[[RunStates], None]) -> RequestGenerator[None]:
    """Move λ for some outer steps; `hear` is called after the inner steps of each, while λ is the one that trained."""
    plan = run.plan(run.settings.zeta)
    with run.problem.training_mode():
        for _ in range(steps):
            check_interrupt()
            yield from run.take_outer_step()
            run.accept((yield from run.round(plan)), pending=True)
            hear(run.chains)
