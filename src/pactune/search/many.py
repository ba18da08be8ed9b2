"""The fine search: many hyperparameters by gradient, from the best decay on, over the same folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pactune.problem import Problem
from pactune.problem.correlated_inputs import CorrelatedInputs
from pactune.problem.data import Source
from pactune.problem.hyper import SMALL_DECAY, Granularity, WeightDecay
from pactune.rounds.run_states import RunStates
from pactune.search.decays import Scalars
from pactune.search.rows import HeldOutFold
from pactune.search.scores import likely, scale_of, smooth
from pactune.search.training import InnerLoop, RowReader, RowScores, copied_modules, row_scores, start_run, tune
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.tuning.outer_run import OuterRun

__all__ = ["OUTER_STEPS", "HeldOutScores", "many_hyperparameters", "outer_optimizer", "tune_while_held_out"]

OUTER_STEPS = 15
SMALL_PULL = 0.05  # where the pull of correlated inputs starts if the search prefers none
RATE = 0.1  # of the outer optimizer, in units of log λ: one step changes λ by at most about a tenth

MakeHyper = Callable[[nn.Module, nn.Module], nn.Module]


def many_hyperparameters(
    model: nn.Module, hyper: nn.Module | None, inputs: CorrelatedInputs | None, start: Scalars
) -> nn.ModuleDict:
    """Return the hyperparameters that are tuned by gradient, at their start.

    A user's `hyper` is tuned beside one decay. Without one, every tensor that is no bias has its decay, and `inputs`
    adds the pull of correlated inputs. All start at the best scalars, and no decay can become negative.
    """
    per: Granularity = "tensor" if hyper is None else "global"
    decay = WeightDecay(model, per=per, init=max(start.decay, SMALL_DECAY), positive=True, biases=False)
    if hyper is not None:
        return nn.ModuleDict({"decay": decay, "hyper": hyper})
    found: dict[str, nn.Module] = {"decay": decay}
    if inputs is not None:
        found["inputs"] = inputs.at_strength(start.pull or SMALL_PULL)
    return nn.ModuleDict(found)


def outer_optimizer(hyper: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of λ. Its steps do not depend on the scale of the gradient."""
    return torch.optim.Adam(hyper.parameters(), lr=RATE, betas=(0.8, 0.95), eps=1e-12)


class HeldOutScores:
    """What tuned models say about the rows of the fold that was held out, by fold and outer step.

    Args:
        held: the rows of every fold.
        start: the loss of every row before training.
        to_end: True if the last outer step counts alone.
    """

    def __init__(self, held: Sequence[Tensor], start: Tensor, *, to_end: bool = False) -> None:
        self._held, self._start, self._to_end = held, start, to_end
        self._found: list[list[list[RowScores]]] = [[] for _ in held]

    def add(self, k: int, scores: list[RowScores]) -> None:
        """Add an outer step of the run without fold k: the scores of its models."""
        self._found[k].append(scores)

    def best(self, without: int | None = None) -> int:
        """Return a likely best outer step, counted from 0. The rows of fold `without` do not count."""
        if self._to_end:
            return len(self._found[0]) - 1
        left_out = self._held[0][:0] if without is None else self._held[without]
        places = [(~torch.isin(own, left_out)).nonzero().flatten() for own in self._held]
        chosen = [k for k in range(len(self._found)) if len(places[k])]
        rows = torch.cat([self._held[k][places[k]] for k in chosen])
        scale = scale_of(self._start, rows)
        curves = [self._curve(k, places[k], scale) for k in chosen]
        return likely(smooth(torch.stack(curves).mean(0)), len({*rows.tolist()}))

    def _curve(self, k: int, places: Tensor, scale: float) -> Tensor:
        steps = ([one.at(places) for one in step] for step in self._found[k])
        return torch.stack([row_scores(step, scale).mean() for step in steps])

    def judged(self, k: int, step: int) -> list[RowScores]:
        """Return what the models say about the rows of fold k after an outer step."""
        return self._found[k][step]


def tune_while_held_out(
    problem: Problem,
    held: Sequence[HeldOutFold],
    hypers: Sequence[MakeHyper],
    noises: Sequence[float],
    start: Tensor,
    reader: RowReader,
    loop: InnerLoop,
    runner: Runner,
    progress: Callable[[int], None],
) -> HeldOutScores:
    """Tune once per held-out fold, by the rows of the others, and score the held-out rows after every outer step.

    Args:
        problem: the problem on all rows.
        held: the folds that are held out in turn.
        hypers: for every fold, a function that makes the hyper module of a run from copies of the problem's modules.
        noises: for every fold, the standard deviation of the noise on the inputs.
        start: the loss of every row before training.
        reader: reads what models say about rows.
        loop: how models are trained.
        runner: runs all models together.
        progress: hears after every outer step how many are left.
    """
    scores, runs = HeldOutScores([fold.held for fold in held], start, to_end=any(noises)), []
    for k, (fold, make, noise) in enumerate(zip(held, hypers, noises, strict=True)):
        model, hyper = copied_modules(problem.model, problem.hyper)
        own = problem.with_modules(model, make(model, hyper)).with_folds(fold.parts, refit=False).with_noise(noise)
        run = start_run(own, loop, runner, outer_optimizer(own.hyper))
        runs.append(tune(run, OUTER_STEPS, _scorer(run, k, reader, problem.valid.subset(fold.held), scores, progress)))
    run_in_lockstep(runs, runner)
    return scores


def _scorer(
    run: OuterRun, k: int, reader: RowReader, held: Source, scores: HeldOutScores, progress: Callable[[int], None]
) -> Callable[[RunStates], None]:
    """Return a listener that scores the held-out rows."""

    def take(chains: RunStates) -> None:
        hyper = run.problem.hyperparameters()
        scores.add(k, [reader.read(part, hyper, held) for part in chains.parts])
        if k == 0:
            progress(OUTER_STEPS - chains.rounds)

    return take
