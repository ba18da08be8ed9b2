"""`Problem`: the two risks as pure functions of (params, hyper, batch)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pactune.checks import check_flag
from pactune.errors import DataError, SettingError, warn_user
from pactune.problem.data import Batch, BatchSizes, Source, in_type
from pactune.problem.data.changing import NoRows
from pactune.problem.data.noisy import NoisyInputs
from pactune.problem.description import describe_problem
from pactune.problem.evaluation import Evaluation, average, outputs_of
from pactune.problem.folds import FoldRows, Folds, make_folds
from pactune.problem.hooks import weigher_of
from pactune.problem.hyper import ExampleWeights, check_values
from pactune.problem.loss_checks import as_risk, is_sum, naming_failure, structure
from pactune.problem.losses import Closure, Losses, Metrics
from pactune.problem.modules import as_module, copied, evaluating, rest, training, uncompiled, warn_if_compiled
from pactune.problem.provenance import DataMark, UnknownSample
from pactune.problem.risks import ModelRisks
from pactune.problem.tasks import TaskData, Tasks
from pactune.problem.ways import check_ways
from pactune.streams import Streams, forked_rng
from pactune.trees import clone

__all__ = ["Evaluation", "Problem"]

MOST_BLOCKS = 256  # calls of a loss that returns only means, when the losses of single rows are needed


class Problem(ModelRisks):
    """A bilevel problem: a model, its hyperparameters, and the training and validation risk.

    The data come in one of three ways: `train` and `valid`; `data`, whose rows train in some folds and validate in
    another; or `tasks`. Folds and tasks are many problems with one λ: each has its own θ, and J is the mean over them.

    Short form: `loss(model(x), y)` for training and validation. General form: `train_loss(model, batch, hyper)` and
    `valid_loss(model, batch, hyper)`, where `model` is called as usual and `hyper` is any module.

    Args:
        model: any `nn.Module`. Its trainable parameters are θ; frozen ones do not change. For a model that
            `torch.compile` returned, tuning uses the original module, without compiled code.
        hyper: an `nn.Module` whose parameters are λ. It may also be a part of the model.
        train: tensors `(x, y)`, a `Dataset` or a `DataLoader`; or a `DataMark` of one, whose rows have identifiers. In
            the general form None is a problem without training rows: `train_loss` gets an empty batch.
        valid: the same, for the validation set.
        data: the rows of both sets, in the form of `train`.
        folds: the number of folds (5 by default; integer labels are stratified), a scikit-learn splitter, or pairs of
            row numbers `(train, valid)`.
        groups: the group of every row, for a splitter that keeps groups together.
        refit: with folds, one more run trains on all rows under the same λ. It adds nothing to J, and its model is the
            result. False returns the model of the first fold.
        tasks: a function `draw(generator)` that returns a task, a pair `(train, valid)`; or a list of tasks.
        tasks_per_step: the number of tasks that every outer step draws; None takes all tasks of a list.
        loss: `loss(prediction, target)`, the mean over the rows; a sum over the rows is refused.
        train_loss: the general form, instead of `loss`.
        valid_loss: the general form, instead of `loss`.
        batch_size: rows of a training mini-batch; None takes all rows at every step.
        valid_batch_size: rows of a validation mini-batch; None takes all rows.
        risk_batch_size: rows of the mini-batch on which an outer step computes the risk at θ_T, fresh at every outer
            step; "same" takes the size of that sample's mini-batches, None takes all rows. Reported risks and metrics
            are always those of all rows.
        metrics: `metrics(model, batch)` returns a dict of further numbers to report, averaged over the rows. Every
            batch must have the same names, and no name may be "risk". The first number decides the verdict on a test
            set: larger is better, unless the function has an attribute `higher_is_better = False`. By default the
            accuracy is reported if the target is a class number and the model returns at least two scores.

    Raises:
        DataError: the data are empty, of unknown type, or on another device.
        SettingError: the losses are of neither form, the data come in no way or in two ways, or `hyper` does not fit
            the model.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> from pactune.problem.hyper import WeightDecay
        >>> problem = Problem(model, WeightDecay(model), train=(x, y), valid=(x, y), loss=nn.functional.cross_entropy)
        >>> sorted(problem.parameters())
        ['bias', 'weight']
        >>> problem = Problem(model, WeightDecay(model), data=(x, y), folds=3, loss=nn.functional.cross_entropy)
        >>> [(fold.train.rows, fold.valid.rows) for fold in problem.subproblems]
        [(4, 2), (4, 2), (4, 2)]
    """

    def __init__(
        self,
        model: nn.Module,
        hyper: nn.Module,
        *,
        train: Any = None,
        valid: Any = None,
        data: Any = None,
        folds: Any = None,
        groups: Any = None,
        refit: bool = True,
        tasks: Any = None,
        tasks_per_step: int | None = None,
        loss: Callable[..., Tensor] | None = None,
        train_loss: Closure | None = None,
        valid_loss: Closure | None = None,
        batch_size: int | None = None,
        valid_batch_size: int | None = None,
        risk_batch_size: int | Literal["same"] | None = "same",
        metrics: Metrics | None = None,
    ) -> None:
        warn_if_compiled(model)
        model, hyper = as_module("model", model), as_module("hyper", hyper)
        weigher = weigher_of(hyper) if loss is not None else None
        loss, train_loss, valid_loss, metrics = map(uncompiled, (loss, train_loss, valid_loss, metrics))
        super().__init__(model, hyper, Losses(loss, train_loss, valid_loss, metrics, weigher))
        check_flag("refit", refit)
        check_ways(train, valid, data, folds, groups, tasks, tasks_per_step)
        sizes = BatchSizes(batch_size, valid_batch_size, risk_batch_size)
        self._folds: Folds | None = None
        self._tasks: Tasks | None = None
        if data is not None:
            train = valid = data
        self._identifiers = tuple(given.rows if isinstance(given, DataMark) else None for given in (train, valid))
        if tasks is not None:
            self._tasks = Tasks(tasks, tasks_per_step, lambda train, valid: self._sources(train, valid, sizes))
            self.train, self.valid = self._tasks.places[0]
        else:
            self.train, self.valid = self._sources(train, valid, sizes)
        if data is not None:
            self._folds = make_folds(self.valid, folds, groups, refit=refit)
        check_values(hyper, self.parameters())
        if isinstance(weigher, ExampleWeights):
            if tasks is not None:
                raise SettingError("`ExampleWeights` has a weight for every row of one sample; tasks have several")
            weigher.check_rows(self.train.rows)

    def _sources(self, train: Any, valid: Any, sizes: BatchSizes) -> TaskData:
        """Return the two samples as sources of mini-batches."""
        train, valid = (given.source if isinstance(given, DataMark) else given for given in (train, valid))
        if train is None and not self._losses.general:
            raise DataError(
                "`train` must be data with `loss=`, got NoneType; a problem without training rows has a `train_loss`"
            )
        known = NoRows() if train is None else sizes.source(train, "train", self.device)
        return TaskData(known, sizes.source(valid, "valid", self.device))

    def __repr__(self) -> str:
        return describe_problem(self, self.train, self.valid, self._folds, self._tasks)

    @property
    def members(self) -> list[Problem]:
        """This problem alone."""
        return [self]

    # Many problems with one λ

    @property
    def subproblems(self) -> list[Problem]:
        """The problems whose objectives have the mean J: this one, its folds, or the places of its tasks."""
        return [self] if self._folds is None and self._tasks is None else self._parts

    @cached_property
    def _parts(self) -> list[Problem]:
        if self._tasks is not None:
            return [self._on(*place) for place in self._tasks.places]
        return [self._on_rows(fold) for fold in self.fold_rows]

    @property
    def has_folds(self) -> bool:
        """True if the rows train in some folds and validate in another."""
        return self._folds is not None

    @property
    def refit(self) -> bool:
        """True if one more run trains on all rows beside the folds."""
        return self._folds is not None and self._folds.refit

    @property
    def trained(self) -> int:
        """The number of problems that are trained: the subproblems, and the refit if there is one."""
        return len(self.subproblems) + self.refit

    @property
    def has_tasks(self) -> bool:
        """True if the problem has tasks."""
        return self._tasks is not None

    @property
    def draws_tasks(self) -> bool:
        """True if every outer step draws its tasks."""
        return self._tasks is not None and self._tasks.drawn

    @property
    def fold_rows(self) -> tuple[FoldRows, ...]:
        """The rows of every fold; empty without folds."""
        return () if self._folds is None else self._folds.folds

    def load_tasks(self, round_index: int, streams: Streams) -> None:
        """Draw the tasks of an outer step; without tasks, do nothing."""
        if self._tasks is not None:
            self._tasks.load(round_index, streams)

    def fingerprints(self) -> dict[str, Any]:
        """Return texts that differ between the data of problems, as far as they are cheap to compute."""
        if self._tasks is not None:
            return {"tasks": self._tasks.fingerprint()}
        both = {"train": self.train.fingerprint(), "valid": self.valid.fingerprint()}
        if self._folds is None:
            return both
        folds = [(fold.train.fingerprint(), fold.valid.fingerprint()) for fold in self.subproblems]
        return {**both, "folds": [" / ".join(words) for words in folds], "refit": self.refit}

    # The same problem in another form

    def in_type(self, dtype: torch.dtype) -> Problem:
        """Return the same problem in another floating-point type, with copies of the model and the hyper module.

        Tasks that are drawn stay at their present draw.
        """
        model, hyper = copied(self.model, self.hyper)
        train, valid = (in_type(source, dtype) for source in (self.train, self.valid))
        twin = Problem(model.to(dtype), hyper.to(dtype), train=train, valid=valid, **self._losses.arguments())
        return twin._sharing(self._folds, None if self._tasks is None else self._tasks.in_type(dtype), train, valid)

    def with_modules(self, model: nn.Module, hyper: nn.Module) -> Problem:
        """Return the same losses on the same data, with another model and hyper module."""
        twin = Problem(model, hyper, train=self.train, valid=self.valid, **self._losses.arguments())
        return twin._sharing(self._folds, self._tasks, self.train, self.valid)

    def with_mini_batches(self, size: int) -> Problem:
        """Return the same problem with training mini-batches of one size, unless the data bring their own."""
        return copy.copy(self)._sharing(self._folds, self._tasks, self.train.with_mini_batches(size), self.valid)

    def with_noise(self, spread: float) -> Problem:
        """Return the same problem with Gaussian noise on the inputs of its training mini-batches; 0 adds none."""
        train = NoisyInputs(self.train, spread) if spread else self.train
        return copy.copy(self)._sharing(self._folds, self._tasks, train, self.valid)

    def subset(self, train_rows: Tensor, valid_rows: Tensor) -> Problem:
        """Return one problem on some rows, with the same model and hyper module and without folds."""
        return self._on_rows(FoldRows(train_rows, valid_rows))

    def with_folds(self, folds: Sequence[FoldRows], *, refit: bool) -> Problem:
        """Return the problem with other folds of the same rows, with the same model and hyper module."""
        return copy.copy(self)._sharing(Folds(tuple(folds), refit), None, self.train, self.valid)

    def folds_within(self, rows: Tensor) -> Problem:
        """Return the problem with its folds on some rows only, with the same model and hyper module."""
        assert self._folds is not None
        rows = rows.sort().values
        twin = self._on_rows(FoldRows(rows, rows))
        return twin._sharing(self._folds.within(rows), None, twin.train, twin.valid)

    def _on_rows(self, rows: FoldRows) -> Problem:
        twin = self._on(self.train.subset(rows.train), self.valid.subset(rows.valid))
        chosen = zip(self._identifiers, rows, strict=True)
        twin._identifiers = tuple(None if ids is None else [ids[i] for i in own.tolist()] for ids, own in chosen)
        return twin

    def _on(self, train: Source, valid: Source) -> Problem:
        """Return the problem on other data, with the same modules and without folds and tasks."""
        return copy.copy(self)._sharing(None, None, train, valid)

    def _sharing(self, folds: Folds | None, tasks: Tasks | None, train: Source, valid: Source) -> Problem:
        """Set the data of a problem that was just made; return the problem."""
        for cached in ("sample_ids", "_parts"):
            self.__dict__.pop(cached, None)
        self._folds, self._tasks = folds, tasks
        self.train, self.valid = (train, valid) if tasks is None else tasks.places[0]
        return self

    # Checks before training

    @cached_property
    def sample_ids(self) -> tuple[DataMark, DataMark]:
        """The identities of the training and the validation sample."""
        train, valid = self._identifiers
        if self._tasks is not None:
            return UnknownSample("training rows of tasks"), UnknownSample("validation rows of tasks")
        return DataMark("train", self.train, train), DataMark("valid", self.valid, valid)

    @property
    def seen_samples(self) -> tuple[DataMark, ...]:
        """The samples that training and tuning see."""
        return self.sample_ids if self.has_tasks or self.train.size != 0 else self.sample_ids[1:]

    def try_losses(self) -> None:
        """Call losses, metrics and hooks once on the first batches, so that a mistake is reported before training.

        Raises:
            DataError: a loss fails on its data, or is not finite.
            SettingError: a loss is a sum over the rows, or metrics or hooks break their rules.
        """
        self._with_hyper(self.hyperparameters(), lambda: self._hooks.check(self.parameters()))
        for role, source, risk in (("train", self.train, self.train_risk), ("valid", self.valid, self.valid_risk)):
            batch = source.first()
            with naming_failure(f"the {role} loss", role), forked_rng(self.device), torch.no_grad():
                value = risk(self.parameters(), self.hyperparameters(), clone(self.buffers()), batch)
            if not bool(torch.isfinite(value)):
                raise DataError(
                    f"the {role} loss is {float(value)} before the first step; look for NaN or Inf in `{role}` "
                    "and in the model"
                )
            if source.size != 0:
                self._try_rows(role, batch)

    def _try_rows(self, role: str, batch: Batch) -> None:
        """Call the metrics once, and check that the loss is a mean over the rows."""
        closure = self._losses.train if role == "train" else self._losses.valid
        with evaluating(self.model, self.device):
            with naming_failure("`metrics`", role):
                self._losses.metrics(self.model, batch)
            summed = self._losses.reduction == "sum"
            if self._losses.reduction is None and (role == "valid" or self._losses.general):
                summed = is_sum(lambda rows: closure(self.model, self.hyper, rows), batch)
        message = (
            f"the {role} loss must be the mean over the rows, and on twice the rows it is twice as large, as a sum is: "
            'use reduction="mean", or divide by the number of rows'
        )
        if summed and self._losses.general:
            warn_user(message)
        elif summed:
            raise SettingError(message)

    def try_test(self, source: Source) -> None:
        """Evaluate the first batch of a test set, so that a mistake is reported before training.

        Raises:
            DataError: the batch has another structure than the validation set, or the validation loss fails on it.
        """
        batch, wanted = next(source.evaluation()), structure(self.valid.first().data)
        if structure(batch.data) != wanted:
            raise DataError(f"`test` must be made like `valid`, {wanted}, got {structure(batch.data)}")
        with evaluating(self.model, self.device), naming_failure("the valid loss", "test"):
            as_risk("the valid loss", self._losses.valid(self.model, self.hyper, batch))
            self._losses.metrics(self.model, batch)

    @property
    def higher_is_better(self) -> bool:
        """The direction of the first metric, by which the verdict on a test set is given."""
        return self._losses.higher_is_better

    def metric_names(self) -> set[str]:
        """Call the metrics on the first validation batch and return their names."""
        with evaluating(self.model, self.device), naming_failure("`metrics`", "valid"):
            return set(self._losses.metrics(self.model, self.valid.first()))

    # Evaluation of the user's model

    def evaluate(self, source: Source) -> Evaluation:
        """Evaluate the user's model on a whole data set, in `eval()` mode and without the penalty.

        In the general form the training set is evaluated by `train_loss`, since its batches may have another structure.
        """
        closure = self._losses.train if self.is_general(source) else self._losses.valid
        with evaluating(self.model, self.device):
            return average(
                source.evaluation(),
                lambda batch: closure(self.model, self.hyper, batch),
                lambda batch: self._losses.metrics(self.model, batch),
            )

    def is_general(self, source: Source) -> bool:
        """True if `evaluate` uses the training loss for a data set: for the training set in the general form."""
        return source is self.train and self._losses.general

    def predictions(self, source: Source) -> Tensor | None:
        """Return the model's output for every row, in `eval()` mode; None if a batch names no target."""
        with evaluating(self.model, self.device):
            return outputs_of(self.model, source.evaluation())

    def row_losses(self, source: Source) -> Tensor:
        """Return the validation loss of every row, in `eval()` mode; float64 on the CPU.

        Losses of `torch.nn.functional` are called with `reduction="none"`, others on single rows of the model's output.
        A loss of the general form is called on one row at a time, or on at most `MOST_BLOCKS` blocks of rows.
        """
        with evaluating(self.model, self.device):
            if (found := self._losses.rows(self.model, source.evaluation())) is not None:
                return found.double().cpu()
            most = MOST_BLOCKS if self._losses.general else source.rows
            blocks = torch.arange(source.rows, device="cpu").tensor_split(min(source.rows, most))
            batches = (next(source.subset(block).epoch()) for block in blocks)
            return torch.stack([self._losses.valid(self.model, self.hyper, b) for b in batches]).double().cpu()

    def training_mode(self) -> AbstractContextManager[None]:
        """Put the model into training mode and restore every flag on exit.

        Parts that the user put into `eval()` mode inside a model in training mode stay there.
        """
        return training(self.model)

    def rest(self) -> None:
        """Put the model into `eval()` mode; the next training finds its parts as they were."""
        rest(self.model)
