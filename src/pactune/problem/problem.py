"""`Problem`: the two risks as pure functions of (params, hyper, batch)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pactune.errors import DataError, SettingError, warn_user
from pactune.problem.data import Batch, Source, as_source, in_type
from pactune.problem.evaluation import Evaluation, average
from pactune.problem.hooks import Hooks, holders
from pactune.problem.hyper import ExampleWeights, check_values
from pactune.problem.losses import Closure, Losses, Metrics, inputs_and_target
from pactune.problem.modules import Names, as_ordinary, evaluating, mode, uncompiled, warn_if_compiled
from pactune.problem.provenance import DataMark
from pactune.problem.tensor_slots import call_with
from pactune.problem.trials import as_risk, failing_on, is_sum, structure
from pactune.streams import forked_rng
from pactune.trees import Params, clone

__all__ = ["Evaluation", "Problem"]

T = TypeVar("T")

MOST_BLOCKS = 256  # calls of a loss that only knows means, when single rows are judged


class Problem:
    """A bilevel problem: a model, its hyperparameters, and the training and validation risk.

    Short form: `loss(model(x), y)` on both sides. General form: `train_loss(model, batch, hyper)` and
    `valid_loss(model, batch, hyper)`, where `model` is called as usual and `hyper` is any module.

    Args:
        model: any `nn.Module`. Its trainable parameters are θ; frozen ones stay as they are. Of a model that
            `torch.compile` returned, tuning uses the module inside, without compiled code.
        hyper: an `nn.Module` whose parameters are λ. It may also be a part of the model.
        train: tensors `(x, y)`, a `Dataset` or a `DataLoader`; or a `DataMark` of one, whose rows have identifiers.
        valid: the same, for the validation set.
        loss: `loss(prediction, target)`, the mean over the rows; a sum over them is refused.
        train_loss: the general form, instead of `loss`.
        valid_loss: the general form, instead of `loss`.
        batch_size: rows of a training mini-batch; None takes all rows at every step.
        valid_batch_size: rows of a validation mini-batch; None takes all rows.
        metrics: `metrics(model, batch)` returns further numbers to report, by name, averaged over the rows. By default
            the accuracy, where the target is a class number and there are two scores or more. Every batch must have
            the same names; "risk" is taken. The first number decides the verdict on a test set: larger is better,
            unless the function has an attribute `higher_is_better = False`.

    Raises:
        DataError: for empty, unknown or ill-fitting data.
        SettingError: for a wrong combination of losses, or parameters that do not fit.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> from pactune.problem.hyper import WeightDecay
        >>> problem = Problem(model, WeightDecay(model), train=(x, y), valid=(x, y), loss=nn.functional.cross_entropy)
        >>> sorted(problem.parameters())
        ['bias', 'weight']
    """

    def __init__(
        self,
        model: nn.Module,
        hyper: nn.Module,
        *,
        train: Any,
        valid: Any,
        loss: Callable[..., Tensor] | None = None,
        train_loss: Closure | None = None,
        valid_loss: Closure | None = None,
        batch_size: int | None = None,
        valid_batch_size: int | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        warn_if_compiled(model)
        model, hyper = as_ordinary("model", model), as_ordinary("hyper", hyper)
        weigher = _weigher(hyper) if loss is not None else None
        loss, train_loss, valid_loss, metrics = map(uncompiled, (loss, train_loss, valid_loss, metrics))
        self._losses = Losses(loss, train_loss, valid_loss, metrics, weigher)
        self.model, self.hyper = model, hyper
        self._names, self._hooks = Names(model, hyper), Hooks(hyper)
        self.device, self.dtype = self._names.place()
        self._identifiers = tuple(data.rows if isinstance(data, DataMark) else None for data in (train, valid))
        train, valid = (data.source if isinstance(data, DataMark) else data for data in (train, valid))
        self.train = as_source(train, role="train", device=self.device, batch_size=batch_size)
        self.valid = as_source(valid, role="valid", device=self.device, batch_size=valid_batch_size)
        check_values(hyper, self.parameters())
        if isinstance(weigher, ExampleWeights):
            weigher.check_rows(self.train.rows)

    runs: tuple[int, ...] = ()
    """The leading axes of risks and parameters: none, or one where many runs are one problem."""

    @property
    def members(self) -> list[Problem]:
        """The problems that this one stands for: itself, or those that are stacked in it."""
        return [self]

    # The state of the modules, as dictionaries

    def parameters(self) -> Params:
        """Return θ, the model's trainable parameters that are not hyperparameters, sharing their memory."""
        return self._names.parameters()

    def hyperparameters(self) -> Params:
        """Return λ, sharing its memory with the hyper module."""
        return self._names.hyperparameters()

    def hyper_leaves(self) -> Params:
        """Return λ as the hyper module itself holds it, with `.grad`."""
        return self._names.hyper_leaves()

    def buffers(self) -> Params:
        """Return the model's buffers, sharing their memory."""
        return self._names.buffers.tensors()

    def tensors(self) -> list[Tensor]:
        """Return the parameters and buffers of both modules, as the modules hold them."""
        modules = (self.model, self.hyper)
        return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]

    @torch.no_grad()
    def load_hyper(self, values: Params) -> None:
        """Copy λ into the user's own hyper module."""
        for name, value in self.hyperparameters().items():
            value.copy_(values[name])

    @torch.no_grad()
    def load(self, params: Params, buffers: Params) -> None:
        """Copy θ and the buffers into the user's own model."""
        for name, value in self.parameters().items():
            value.copy_(params[name])
        for name, value in self.buffers().items():
            value.copy_(buffers[name])

    def in_type(self, dtype: torch.dtype) -> Problem:
        """Return the same problem on copies of model and hyper in another floating-point type."""
        model, hyper = copy.deepcopy((self.model, self.hyper))
        return Problem(
            model.to(dtype),
            hyper.to(dtype),
            train=in_type(self.train, dtype),
            valid=in_type(self.valid, dtype),
            **self._losses.given(),
        )

    def subset(self, train_rows: Tensor, valid_rows: Tensor) -> Problem:
        """Return the problem on some rows only; model and hyper are shared."""
        twin = copy.copy(self)
        twin.__dict__.pop("sample_ids", None)  # those of the whole samples
        twin.train, twin.valid = self.train.subset(train_rows), self.valid.subset(valid_rows)
        chosen = zip(self._identifiers, (train_rows, valid_rows), strict=True)
        twin._identifiers = tuple(None if ids is None else [ids[i] for i in rows.tolist()] for ids, rows in chosen)
        return twin

    def losses(self) -> tuple[object, ...]:
        """Return the losses and metrics as they were given."""
        return tuple(self._losses.given().values())

    # Structure

    @property
    def has_penalty(self) -> bool:
        """Whether a penalty is added to the training risk."""
        return bool(self._hooks.penalties)

    @property
    def has_learning_rates(self) -> bool:
        """Whether hyperparameters scale the step size."""
        return bool(self._hooks.rates)

    @property
    def has_initial(self) -> bool:
        """Whether the initial parameters depend on hyperparameters."""
        return bool(self._hooks.initials)

    @property
    def enters_losses(self) -> bool:
        """Whether λ may enter the losses themselves; if not, no double backward is ever needed for λ alone."""
        return self._losses.general or self._losses.weighs or self._names.hyper_inside_model

    @property
    def replayable(self) -> bool:
        """Whether the mini-batches of a step can be asked for again."""
        return self.train.replayable and self.valid.replayable

    @property
    def steady(self) -> bool:
        """Whether every step meets the same mini-batches."""
        return self.train.steady and self.valid.steady

    @property
    def predicts_with_hyper(self) -> bool:
        """Whether λ is a part of the model, so that a prediction depends on it."""
        return self._names.hyper_inside_model

    @cached_property
    def sample_ids(self) -> tuple[DataMark, DataMark]:
        """The identities of the training and of the validation sample."""
        train, valid = self._identifiers
        return DataMark("train", self.train, train), DataMark("valid", self.valid, valid)

    # The risks

    def predict(self, params: Params, batch: Batch) -> tuple[Any, Any]:
        """Return the model's output at θ, and the target."""
        *inputs, target = inputs_and_target(batch.data)
        return call_with([(self._names.params, params)], lambda: self.model(*inputs)), target

    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T without the penalty; a training forward writes its statistics into `buffers`."""
        return self._call(self._losses.train, params, hyper, buffers, batch, "train")

    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V; hand in copies of the buffers, since the forward may write into them."""
        return self._call(self._losses.valid, params, hyper, buffers, batch, "valid")

    def penalty(self, params: Params, hyper: Params) -> Tensor:
        """Return the sum of the modules' penalties."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty(params))

    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of the penalty, differentiable in θ and λ."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty_gradient(params))

    @cached_property
    def has_penalty_vjp(self) -> bool:
        """Whether λ enters through penalties alone, and all of them know their derivative in closed form."""
        alone = not (self.enters_losses or self.has_learning_rates or self.has_initial)
        return self.has_penalty and alone and self._hooks.penalties_know("penalty_vjp")

    def penalty_vjp(self, params: Params, hyper: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty(θ), c⟩ by the modules' closed forms; zeros for a λ without a penalty."""
        found = self._hooks.penalty_vjp(params, cotangent)
        return {name: found[name] if name in found else torch.zeros_like(value) for name, value in hyper.items()}

    @cached_property
    def has_closed_steps(self) -> bool:
        """Whether λ enters a step, other than through ∇R_T, by penalties alone that know all their derivatives."""
        return not self.has_learning_rates and self._hooks.penalties_know("penalty_vjp", "penalty_product")

    def penalty_product(self, params: Params, hyper: Params, vector: Params) -> Params:
        """Return ∇²penalty(θ) v by the modules' closed forms."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty_product(params, vector))

    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return the factors on the step size by parameter name; a name that has none is left out."""
        return self._with_hyper(hyper, lambda: self._hooks.learning_rates(params))

    def initial(self, params: Params, hyper: Params) -> Params:
        """Return θ_0 as a function of λ, given a draw `params` from P_0."""
        return self._with_hyper(hyper, lambda: self._hooks.initial(params))

    def try_losses(self) -> None:
        """Call losses, metrics and hooks once on first batches, so that a mistake is reported before anything runs.

        Raises:
            DataError: a loss fails on its data, or is not finite.
            SettingError: a loss is a sum over the rows, or metrics or hooks break their rules.
        """
        self._with_hyper(self.hyperparameters(), lambda: self._hooks.try_on(self.parameters()))
        for role, source, risk in (("train", self.train, self.train_risk), ("valid", self.valid, self.valid_risk)):
            batch = source.first()
            with failing_on(f"the {role} loss", role), forked_rng(self.device), torch.no_grad():
                value = risk(self.parameters(), self.hyperparameters(), clone(self.buffers()), batch)
            if not bool(torch.isfinite(value)):
                raise DataError(
                    f"the {role} loss is {float(value)} before the first step; look for NaN or Inf in `{role}` "
                    "and in the model"
                )
            self._try_rows(role, batch)

    def _try_rows(self, role: str, batch: Batch) -> None:
        """Try the metrics, and whether the loss of a role is a mean over the rows."""
        closure = self._losses.train if role == "train" else self._losses.valid
        with evaluating(self.model, self.device):
            with failing_on("`metrics`", role):
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
        """Evaluate a test set's first batch, so that a mistake is reported before anything runs.

        Raises:
            DataError: it is not of the validation set's structure, or the validation loss fails on it.
        """
        batch, wanted = next(source.evaluation()), structure(self.valid.first().data)
        if structure(batch.data) != wanted:
            raise DataError(f"`test` must be made like `valid`, {wanted}, got {structure(batch.data)}")
        with evaluating(self.model, self.device), failing_on("the valid loss", "test"):
            as_risk("the valid loss", self._losses.valid(self.model, self.hyper, batch))
            self._losses.metrics(self.model, batch)

    @property
    def higher_is_better(self) -> bool:
        """The direction of the first metric, by which the verdict on a test set is given."""
        return self._losses.higher_is_better

    def metric_names(self) -> set[str]:
        """Return the names of the metrics, found on the validation set's first batch."""
        with evaluating(self.model, self.device), failing_on("`metrics`", "valid"):
            return set(self._losses.metrics(self.model, self.valid.first()))

    # Evaluation of the user's own model

    def evaluate(self, source: Source) -> Evaluation:
        """Evaluate the model as it stands on a whole data set, in `eval()` mode and without the penalty.

        In the general form the training set is evaluated by `train_loss`, whose batches may be of another structure.
        """
        closure = self._losses.train if self.is_general(source) else self._losses.valid
        with evaluating(self.model, self.device):
            return average(
                source.evaluation(),
                lambda batch: closure(self.model, self.hyper, batch),
                lambda batch: self._losses.metrics(self.model, batch),
            )

    def readings(self, params: Params, hyper: Params, buffers: Params, batch: Batch, *, general: bool) -> Params:
        """Return what `evaluate` averages, for one batch at given tensors; `general` asks for the training loss.

        A pure function, for many runs at once. The model must be in `eval()` mode.
        """
        closure = self._losses.train if general else self._losses.valid

        def read() -> Params:
            found = {"": closure(self.model, self.hyper, batch), **self._losses.metrics(self.model, batch)}
            return {name: torch.as_tensor(value, device=self.device) for name, value in found.items()}

        names = self._names
        return call_with([(names.params, params), (names.hyper, hyper), (names.buffers, buffers)], read)

    def is_general(self, source: Source) -> bool:
        """Whether a data set is evaluated by the training loss: the training set in the general form."""
        return source is self.train and self._losses.general

    def row_losses(self, source: Source) -> Tensor:
        """Return the validation loss of every row, in `eval()` mode; float64 on the CPU.

        A loss of `torch.nn.functional` is asked for `reduction="none"`. Any other is called on one row at a time, or
        on blocks of rows where there are more than `MOST_BLOCKS`.
        """
        with evaluating(self.model, self.device):
            if self._losses.knows_rows:
                parts = [self._losses.rows(self.model, batch) for batch in source.evaluation()]
                return torch.cat(parts).double().cpu()
            blocks = torch.arange(source.rows, device="cpu").tensor_split(min(source.rows, MOST_BLOCKS))
            batches = (next(source.subset(block).epoch()) for block in blocks)
            return torch.stack([self._losses.valid(self.model, self.hyper, b) for b in batches]).double().cpu()

    def training_mode(self) -> AbstractContextManager[None]:
        """Put a model that is in `eval()` into training mode, and every flag back on exit.

        A model in training mode is left alone, since parts of it may be in `eval()` on purpose.
        """
        return nullcontext() if self.model.training else mode(self.model, training=True)

    # Inner workings

    def _call(
        self, closure: Callable[..., Tensor], params: Params, hyper: Params, buffers: Params, batch: Batch, role: str
    ) -> Tensor:
        names = self._names
        parts = [(names.params, params), (names.hyper, hyper), (names.buffers, buffers)]
        value = call_with(parts, lambda: closure(self.model, self.hyper, batch), collect=names.buffers)
        return as_risk(f"the {role} loss", value)

    def _with_hyper(self, hyper: Params, function: Callable[[], T]) -> T:
        """Call a function while the hyper module holds `hyper`."""
        return call_with([(self._names.hyper, hyper)], function)


def _weigher(hyper: nn.Module) -> Any:
    """Return the module that weighs examples, None where there is none."""
    found = holders(hyper, "weigh")
    if len(found) > 1:
        raise SettingError(f"at most one hyperparameter module may weigh examples, got {len(found)}")
    return found[0] if found else None
