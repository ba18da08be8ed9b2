"""The coarse search over few scalars: one decay, the pull of correlated inputs and the number of steps, all at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from pactune.problem import Problem
from pactune.problem.correlated_inputs import CorrelatedInputs
from pactune.problem.folds import FoldRows
from pactune.problem.hyper import WeightDecay
from pactune.rounds.run_states import RunStates
from pactune.search.rows import HeldOutFold, merged, union
from pactune.search.scores import CandidateScores, smooth
from pactune.search.training import InnerLoop, RowReader, averaged, copied_modules, start_run, train
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner

__all__ = ["MOST_ROUNDS", "ROUNDS", "Scalars", "candidates", "search_scalars", "with_decay"]

log = logging.getLogger("pactune.search")
DECAYS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
MOST_DECAYS = 8
PULLS = (1.0, 5.0)  # of correlated inputs
DECAYS_WITH_PULL = (0.0, 0.03, 0.3)
NOISES = (0.5, 0.7, 1.0)  # on inputs, as shares of their standard deviation
STABLE = 0.4  # the largest ηλ of a candidate; tuning can still enlarge λ four times
ACTS = 0.5  # the least ηλ times the steps, at which a decay shrinks θ to 60 % unless gradients resist
ROUNDS = 25  # before it is looked whether more would help
MOST_ROUNDS = 100
WORTH = 0.98  # more rounds are worth it if the later ones lowered the score to this share


def with_decay(model: nn.Module, hyper: nn.Module | None, decay: float) -> nn.ModuleDict:
    """Return one decay for all parameters of a model but its biases, beside the user's hyperparameters."""
    own = {} if hyper is None else {"hyper": hyper}
    return nn.ModuleDict({"decay": WeightDecay(model, per="global", init=decay, biases=False), **own})


class Scalars(NamedTuple):
    """A candidate of the search: one decay, and what is known of the inputs.

    Attributes:
        decay: the decay of all parameters but the biases.
        pull: the strength of `CorrelatedInputs`, 0 for none.
        noise: the standard deviation of the noise on the inputs, 0 for none.
    """

    decay: float
    pull: float = 0.0
    noise: float = 0.0

    @property
    def kind(self) -> tuple[bool, float]:
        """Equal for candidates that one number orders: decays with a pull, or spreads of noise."""
        return self.noise > 0, self.pull


def candidates(
    learning_rate: float, steps: int, *, pulls: bool, most: int = MOST_DECAYS, spread: float = 0.0
) -> list[Scalars]:
    """Return the candidates: first plain training, then the other decays alone, decays with a pull, and noise.

    A step multiplies θ by 1 − ηλ. So λ far above 1/η makes θ grow and change its sign at every step, and λ far below
    1/η divided by the number of steps does nothing. Such candidates are left out.

    Args:
        learning_rate: η.
        steps: the inner steps within which a decay must act.
        pulls: add candidates with a pull of correlated inputs.
        most: the largest number of decays.
        spread: the standard deviation of the inputs, of which noise is a share; 0 adds no candidates with noise.

    >>> [scalars.decay for scalars in candidates(0.1, 2000, pulls=False)]
    [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    >>> [scalars.decay for scalars in candidates(1e-4, 10_000, pulls=False)]
    [0.0, 1.0, 3.0, 10.0, 30.0, 100.0]
    """
    least = ACTS / (learning_rate * steps)
    alone = [Scalars(decay) for decay in DECAYS if not 0 < decay < least][:most]
    both = [Scalars(decay, pull) for pull in PULLS for decay in DECAYS_WITH_PULL if pulls]
    noisy = [Scalars(0.0, noise=share * spread) for share in NOISES if spread]
    return [one for one in alone + both + noisy if learning_rate * max(one.decay, one.pull) <= STABLE]


def at_scalars(problem: Problem, scalars: Scalars, inputs: CorrelatedInputs | None) -> Problem:
    """Return a problem with the hyperparameters of `with_decay`, on copies of its modules and with other scalars."""
    model, copied = copied_modules(problem.model, problem.hyper)
    hyper = cast(nn.ModuleDict, copied)
    with torch.no_grad():
        cast(WeightDecay, hyper["decay"]).values["all"].fill_(scalars.decay)
    if scalars.pull and inputs is not None:
        hyper["inputs"] = inputs.at_strength(scalars.pull)
    return problem.with_modules(model, hyper).with_noise(scalars.noise)


def search_scalars(
    problem: Problem,
    tried: Sequence[Scalars],
    inputs: CorrelatedInputs | None,
    held: Sequence[HeldOutFold],
    start: Tensor,
    reader: RowReader,
    loop: InnerLoop,
    runner: Runner,
    progress: Callable[[int], None],
) -> CandidateScores:
    """Train every candidate without each pair of folds, and score the rows that did not train.

    The number of rounds doubles while the best candidate still gains by them. Those that no held-out fold would choose
    then stop.

    Args:
        problem: the problem on all rows, whose folds are not used.
        tried: the candidates; the first is plain training.
        inputs: the pull of correlated inputs, if the model can take it.
        held: the folds that are held out in turn.
        start: the loss of every row before training.
        reader: reads what models say about rows.
        loop: how models are trained.
        runner: runs all models together.
        progress: hears after every round how many rounds are left.
    """
    models = _models(held)
    noisy = {number for number, scalars in enumerate(tried) if scalars.noise}
    scores = CandidateScores([scalars.kind for scalars in tried], models, held, start, to_end=noisy)
    base = problem.with_folds(models, refit=False)
    runs = [
        start_run(at_scalars(base, scalars, inputs), averaged(loop) if scalars.noise else loop, runner)
        for scalars in tried
    ]

    def hear(number: int) -> Callable[[RunStates], None]:
        def take(chains: RunStates) -> None:
            hyper = runs[number].start_hyper
            scores.add(number, [reader.read(part, hyper, part.inputs.problem.valid) for part in chains.parts])
            if number == 0:
                progress(planned - chains.rounds)

        return take

    planned, more, kept = 0, ROUNDS, list(range(len(tried)))
    while more:
        planned += more
        run_in_lockstep([train(runs[i], more, hear(i)) for i in kept], runner)
        kept = _worth_more(scores, len(held))
        more = scores.longest if kept and 2 * scores.longest <= MOST_ROUNDS else 0
    log.info("%d candidates trained for %d rounds of %d steps", len(tried), scores.longest, loop.steps)
    return scores


def _models(held: Sequence[HeldOutFold]) -> list[FoldRows]:
    """Return the rows of every model: those that train, and all rows that the model is asked about."""
    return merged(FoldRows(part.train, union(part.valid, fold.held)) for fold in held for part in fold.parts)


def _worth_more(scores: CandidateScores, folds: int) -> list[int]:
    """Return the candidates to train further; none if the later rounds have gained little."""
    tables = [{one: smooth(curve) for one, curve in scores.table(k).items()} for k in range(folds)]
    running = scores.candidates
    mean = {one: torch.stack([table[one] for table in tables]).mean(0) for one in running}
    best = min(mean, key=lambda one: float(mean[one].min()))
    if not _still_falling(mean[best]):
        return []
    nearest = {one for table in tables for one in sorted(running, key=lambda one: float(table[one].min()))[:3]}
    return sorted({0, *nearest})


def _still_falling(curve: Tensor) -> bool:
    """Return True if the last two fifths of the rounds have lowered a score by a share that is worth it."""
    early = curve[: max(1, len(curve) * 3 // 5)]
    return bool(curve.min() < WORTH * early.min())
