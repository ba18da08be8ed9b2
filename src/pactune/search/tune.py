"""`tune`: from a model and its data to a better model in one call, coarse to fine, with the truth about it."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pactune.checks import check_count, check_seed
from pactune.dynamics import SGD, Averaged, Dynamics, as_dynamics
from pactune.engines import Captured, Engine, Traced, as_engine
from pactune.hypergradient.gradients import check_autograd
from pactune.interrupts import deferred_interrupts
from pactune.problem import Problem
from pactune.problem.correlated_inputs import CorrelatedInputs, takes_inputs
from pactune.problem.data import Source
from pactune.problem.folds import targets_of
from pactune.problem.modules import as_module
from pactune.results.callbacks import Progress, progress_for
from pactune.results.result import Result
from pactune.search.comparison import Judgement, Procedure, compare
from pactune.search.decays import MOST_DECAYS, MOST_ROUNDS, ROUNDS, Scalars, candidates, search_scalars, with_decay
from pactune.search.final import (
    FinalRun,
    check_final,
    check_hyper,
    check_resumed,
    final_fit,
    interrupted_result,
    record_comparison,
)
from pactune.search.learning_rate import find_learning_rate
from pactune.search.many import OUTER_STEPS, HeldOutScores, MakeHyper, many_hyperparameters, tune_while_held_out
from pactune.search.metrics import Metric, as_metric
from pactune.search.outcome import SearchOutcome, read_outcome, search_identity, start_of, write_outcome
from pactune.search.rows import HeldOutFold, counted_rows, hold_out_folds, holding, merged
from pactune.search.samples import first_inputs, needs_pull, one_sample, spread_of
from pactune.search.scores import CandidateScores, RoundChoice, scale_of
from pactune.search.training import InnerLoop, RowReader, averaged, start_run
from pactune.stacking.layers import has_stacked_layers
from pactune.stacking.runner import Runner
from pactune.threads import one_thread

__all__ = ["tune"]

PLAIN, ONE_DECAY, TUNED = "plain training", "one decay", "the tuned model"
PLAIN_KIND = Scalars(0.0).kind
NO_DECAY = (0,)  # the number of its candidate
STEPS = 20  # inner steps of a round
SMALL = 10**6  # parameters; of smaller models more are trained, for a surer choice
MOMENTUM = 0.9
LARGE_STEPS = 80  # the same for a larger model on a CUDA device, where a look takes as long as many steps
BETA = 0.995  # of the average over its steps
LARGE_BATCH = 16, 128  # the fewest and the most rows of its mini-batches, which are an eighth of all rows in between
LARGE_DECAYS = 4  # of a larger model


def tune(
    model: nn.Module,
    data: Any,
    *,
    loss: Callable[..., Tensor],
    valid: Any = None,
    folds: Any = None,
    groups: Any = None,
    hyper: nn.Module | None = None,
    metric: Callable[..., Any] | str | None = None,
    inner: Dynamics | Any = None,
    inner_steps: int | None = None,
    batch_size: int | None = None,
    test: Any = None,
    seed: int = 0,
    engine: str | Engine = "auto",
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Result:
    """Train a model, and choose everything else: the learning rate, the steps, one decay, then many by gradient.

    Three procedures are compared on rows that none of them was chosen by: plain training that stops in time, one decay
    for all parameters but the biases, and hyperparameters tuned by gradient from the best scalars on. The best one then
    trains on all rows.

    Args:
        model: any `nn.Module`. It starts at its present parameters and ends as the kept model, in `eval()` mode.
        data: tensors `(x, y)` or a `Dataset`.
        loss: `loss(prediction, target)`, the mean over the rows.
        valid: a validation sample, in the form of `data`. The model then trains on `data` alone.
        folds: the number of folds (5 by default; integer labels are stratified), a scikit-learn splitter, or pairs of
            row numbers `(train, valid)`.
        groups: the group of every row, for a splitter that keeps groups together.
        hyper: hyperparameters of your own, which are tuned by gradient beside one decay. None tunes one decay per
            parameter tensor that is no bias. If the first layer is an `nn.Linear` of more inputs than there are rows,
            it also tunes the strength of `CorrelatedInputs`. A small model of few inputs trains with noise on them.
        metric: a function `metric(predictions, targets)`, for which larger is better unless it has an attribute
            `higher_is_better = False`; or a scikit-learn scorer or its name. None is the accuracy for classes and the
            loss otherwise.
        inner: the dynamics of training, such as `pt.Adam(lr=1e-3)`. None is SGD with momentum and a learning rate that
            a range test finds. For a model of more than a million parameters on a CUDA device it is `Averaged`: the
            model is an average over the last 200 steps or so.
        inner_steps: the steps between two looks at the held-out rows. Training takes 25 to 100 times as many. None is
            20, and 80 for a model of more than a million parameters on a CUDA device.
        batch_size: rows of a mini-batch. None takes all rows at every step, and an eighth of them, at least 16 and at
            most 128, for a model of more than a million parameters on a CUDA device.
        test: a test set. It is evaluated and decides nothing.
        seed: the seed of mini-batches and noise. The model's present parameters are the start of every run.
        engine: executes the inner steps, as for `Tuner`.
        run_dir: a folder for the journal and the checkpoints of the last run; None writes nothing.
        resume: go on with the last run in `run_dir`. The search before it is read from there if nothing has changed.
        progress: show progress on stderr; None does so on a terminal only.

    Returns:
        The result. `result.table` compares the three procedures, `result.verdict` says which one is kept and by how
        much it is better. After Ctrl-C in the search the model is as it was, with status "interrupted". After Ctrl-C
        in the last run it is the model of the last whole step, or as it was if there is none.

    Raises:
        SettingError: a setting breaks its rule.
        DataError: the data are empty, of unknown type, or cannot be split.

    Example:
        >>> import torch, pactune as pt
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(60, 4)
        >>> y = (x[:, 0] > 0).long()
        >>> result = pt.tune(torch.nn.Linear(4, 2), (x, y), loss=torch.nn.functional.cross_entropy, progress=False)
        >>> [str(name) for name in result.table["model"]]
        ['plain training', 'one decay', 'the tuned model']
    """
    check_autograd("tune")
    check_seed("seed", seed)
    if inner_steps is not None:
        check_count("inner_steps", inner_steps)
    model = as_module("model", model)
    start = with_decay(model, None if hyper is None else as_module("hyper", hyper), 0.0)
    sample = one_sample(data, valid, folds, groups, next(model.parameters()).device)
    problem = Problem(model, start, data=sample.data, folds=2, loss=loss, batch_size=batch_size)
    if batch_size is None and trains_long(problem):
        least, most = LARGE_BATCH
        problem = problem.with_mini_batches(min(most, max(least, problem.train.rows // 8)))
    problem.try_losses()
    counted = counted_rows(problem, loss)
    folded = holding(sample.folds, counted)
    problem = problem.with_folds(merged(folded), refit=sample.refit)
    held = hold_out_folds(folded, 2 if is_small(problem) else 1, counted)
    judge = _metric(metric, loss, problem, problem.valid.subset(counted))
    check_final(problem, test, run_dir, resume=resume)
    before = copy.deepcopy(model.state_dict())

    def searched(shown: Progress) -> tuple[SearchOutcome, Callable[[], Result]]:
        """Search, and return what is found and a function that makes the last run."""
        new_runner, steps = partial(_new_runner, engine, problem), inner_steps or _default_steps(problem)
        given = _dynamics(problem, 1.0) if inner is None else as_dynamics(inner)
        stored, identity, beginning = None, "", ""
        begun = start_run(problem, InnerLoop(given, steps, seed), new_runner())
        if run_dir is not None:
            beginning = start_of(begun)
            check_resumed(begun, beginning, test, run_dir)
            identity = search_identity(begun, metric)
            stored = read_outcome(Path(run_dir), identity) if resume else None
        if hyper is not None:
            check_hyper(begun)
        if inner is None:
            at_rate = partial(_dynamics, problem)
            rate = stored.learning_rate if stored else find_learning_rate(problem, at_rate, new_runner(), seed)
            given = at_rate(rate)
        search = _Search(problem, hyper, InnerLoop(given, steps, seed), new_runner, shown)
        found = stored or search.run(held, judge)

        def accepted() -> None:
            if run_dir is not None and not stored:
                write_outcome(Path(run_dir), identity, found)

        def trained() -> Result:
            final = search.final(found)
            shown.begin("last run", final.rounds)
            result = final_fit(
                problem,
                final,
                new_runner(),
                found.comparison.verdict,
                test=test,
                progress=shown,
                run_dir=run_dir,
                resume=resume,
                start=beginning,
                accepted=accepted,
            )
            record_comparison(run_dir, found.comparison.rows, tuned=final.tuned)
            settings = {**result.settings, "learning_rate": found.learning_rate}
            return replace(result, comparison=found.comparison.rows, settings=settings)

        return found, trained

    judged: Judgement | None = None
    with (
        one_thread(takes_one_thread(problem)),
        deferred_interrupts(),
        progress_for(progress, total=ROUNDS + 2 * OUTER_STEPS) as shown,
    ):
        try:
            found, trained = searched(shown)
            judged = found.comparison
            result = trained()
        except KeyboardInterrupt:
            return interrupted_result(problem, before, judged)
    if result.status != "interrupted":
        return result
    if not (result.rows or result.plain_rows):
        return interrupted_result(problem, before, judged)
    return replace(result, verdict=f"interrupted in the last run, so the model is unfinished; {result.verdict}")


class _Search:
    """The search of `tune`: one decay by a grid, many hyperparameters by gradient, and the comparison."""

    def __init__(
        self,
        problem: Problem,
        hyper: nn.Module | None,
        loop: InnerLoop,
        new_runner: Callable[[], Runner],
        progress: Progress,
    ) -> None:
        self._problem, self._new_runner, self._progress = problem, new_runner, progress
        self._own = hyper is not None
        self._loop = loop
        train = problem.train if problem.refit else problem.subproblems[0].train
        inputs = first_inputs(train)
        self._inputs, spread = None, 0.0
        if not self._own and inputs is not None and not needs_pull(inputs) and is_small(problem):
            spread = spread_of(inputs)
        elif not self._own and inputs is not None and needs_pull(inputs) and takes_inputs(problem.model, inputs):
            self._inputs = CorrelatedInputs(problem.model, inputs)
        most = MOST_DECAYS if is_small(problem) else LARGE_DECAYS
        within = loop.steps * (ROUNDS // 2 if trains_long(problem) else MOST_ROUNDS)
        rate = loop.inner.learning_rate(0)
        self._candidates = candidates(rate, within, pulls=self._inputs is not None, most=most, spread=spread)
        self._alone = [number for number, one in enumerate(self._candidates) if one.kind == PLAIN_KIND]
        noisy = [number for number, one in enumerate(self._candidates) if one.noise]
        self._starts = noisy or list(range(len(self._candidates)))
        self._tuning = averaged(loop) if noisy else loop

    def run(self, held: list[HeldOutFold], metric: Metric) -> SearchOutcome:
        """Search, and compare what was found on rows that it was not chosen by."""
        problem = self._problem
        start, reader = problem.row_losses(problem.valid), RowReader(metric.tempered)
        hear = partial(self._hear, "decays", 2 * OUTER_STEPS)
        scalars = search_scalars(
            problem, self._candidates, self._inputs, held, start, reader, self._loop, self._new_runner(), hear
        )
        choices = [scalars.best(k, self._starts) for k in range(len(held))]
        hypers = [self._make(choice) for choice in choices]
        noises = [self._candidates[choice.candidate].noise for choice in choices]
        loop = self._tuning_loop(scalars.longest)
        hear = partial(self._hear, "tuning", OUTER_STEPS)
        tuned = tune_while_held_out(problem, held, hypers, noises, start, reader, loop, self._new_runner(), hear)
        known = targets_of(problem.valid)
        targets = [None if known is None else known[fold.held].cpu() for fold in held]
        procedures = self._procedures(scalars, tuned, len(held))
        return SearchOutcome(
            self._loop.inner.learning_rate(0),
            compare(
                procedures,
                [fold.held for fold in held],
                targets,
                metric,
                scale_of(start, torch.cat([fold.held for fold in held]).unique()),  # type: ignore[no-untyped-call]
            ),
            plain=scalars.best(None, NO_DECAY),
            one=scalars.best(None, self._alone),
            start=scalars.best(None, self._starts),
            rounds=scalars.longest,
            step=tuned.best(),
            noise=self._final_noise(scalars.best(None, self._starts), held),
        )

    def _procedures(self, scalars: CandidateScores, tuned: HeldOutScores, folds: int) -> list[Procedure]:
        """Return what each procedure, chosen without a fold, says about the rows of the fold."""
        found = []
        for name, among in ((PLAIN, NO_DECAY), (ONE_DECAY, self._alone)):
            choice = scalars.best(None, among)
            judged = [scalars.judged(k, scalars.best(k, among)) for k in range(folds)]
            steps = self._loop.steps * (choice.round + 1)
            found.append(Procedure(name, judged, {"decay": self._candidates[choice.candidate].decay, "steps": steps}))
        steps = self._tuning_loop(scalars.longest).steps * (tuned.best() + 1)
        judged = [tuned.judged(k, tuned.best(k)) for k in range(folds)]
        return [*found, Procedure(TUNED, judged, {"decay": None, "steps": steps})]

    def final(self, found: SearchOutcome) -> FinalRun:
        """Return the last run, which trains the kept procedure on all rows."""
        problem, kept = self._problem, found.comparison.kept
        if kept == TUNED:
            hyper = self._make(found.start)(problem.model, problem.hyper)
            loop, decay = self._tuning_loop(found.rounds), self._candidates[found.start.candidate].decay
            return FinalRun(hyper, loop, found.step + 1, tuned=True, decay=decay, noise=found.noise)
        choice = found.plain if kept == PLAIN else found.one
        decay = self._candidates[choice.candidate].decay
        hyper = with_decay(problem.model, self._user_hyper(problem.hyper), decay)
        return FinalRun(hyper, self._loop, choice.round + 1, tuned=False, decay=decay)

    def _final_noise(self, start: RoundChoice, held: list[HeldOutFold]) -> float:
        """Return the noise for all rows. Its variance falls as the rows grow, as the weight of a prior does."""
        trained = statistics.fmean(len(part.train) for fold in held for part in fold.parts)
        problem = self._problem if self._problem.refit else self._problem.subproblems[0]
        return self._candidates[start.candidate].noise * math.sqrt(trained / problem.train.rows)

    def _tuning_loop(self, rounds: int) -> InnerLoop:
        """Return the loop whose outer steps have as many inner steps together as the rounds of the decays."""
        return self._tuning._replace(steps=max(1, -(-rounds * self._loop.steps // OUTER_STEPS)))

    def _make(self, choice: RoundChoice) -> MakeHyper:
        return partial(self._hyper_at, self._candidates[choice.candidate])

    def _hyper_at(self, start: Scalars, model: nn.Module, hyper: nn.Module) -> nn.Module:
        return many_hyperparameters(model, self._user_hyper(hyper), self._inputs, start)

    def _user_hyper(self, hyper: nn.Module) -> nn.Module | None:
        """Return the user's part of the hyper module of the problem, or of a copy of it."""
        return hyper["hyper"] if self._own and isinstance(hyper, nn.ModuleDict) else None

    def _hear(self, stage: str, later: int, left: int) -> None:
        """Show a part of a stage, after which `left` parts of it are left and `later` parts of later stages."""
        self._progress.begin(stage, 1 + left + later)
        self._progress.advance()


def _metric(metric: Any, loss: Any, problem: Problem, judging: Source) -> Metric:
    """Return the metric, tried on the predictions of the untrained model, so that a mistake is reported at once."""
    return as_metric(metric, loss, problem.predictions(judging), targets_of(judging))


def _new_runner(engine: str | Engine, problem: Problem) -> Runner:
    """Return a runner without recordings. Each stage has its own, since their recordings take gigabytes on a GPU."""
    return Runner(_engine(engine, problem))


def _engine(engine: str | Engine, problem: Problem) -> Engine:
    """Return the engine. A search makes many steps, so "auto" records stacked runs at once, without a warm-up.

    Runs that are not stacked on a CPU have a recording each, which pays only after many steps. Stacked convolutions are
    products. They may use TF32 if convolutions may, which PyTorch allows by default.
    """
    found = as_engine(engine, problem)
    if engine != "auto":
        return found
    if isinstance(found, Captured) and trains_long(problem):
        return replace(found, tf32=torch.backends.cudnn.allow_tf32 or None, channels_last=True)
    return Traced() if isinstance(found, Traced) and not has_stacked_layers(problem.model) else found


def _dynamics(problem: Problem, rate: float) -> Dynamics:
    """Return SGD with momentum; of a model that trains long, users see an average over the steps."""
    iterates = SGD(lr=rate, momentum=MOMENTUM, decoupled=True)
    return Averaged(iterates, beta=BETA) if trains_long(problem) else iterates


def is_small(problem: Problem) -> bool:
    """Return True if the model of a problem has few parameters."""
    return sum(p.numel() for p in problem.parameters().values()) <= SMALL


def trains_long(problem: Problem) -> bool:
    """Return True for a larger model on a CUDA device, whose rounds have more steps."""
    return problem.device.type == "cuda" and not is_small(problem)


def _default_steps(problem: Problem) -> int:
    return LARGE_STEPS if trains_long(problem) else STEPS


def takes_one_thread(problem: Problem) -> bool:
    """Return True unless a large model trains on the CPU.

    The tensors of a small model are too short for several threads, which would only wait for each other. A model on
    another device leaves short tensors to the CPU as well: the predictions of a few rows.
    """
    return problem.device.type != "cpu" or is_small(problem)
