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
from pactune.problem.inner_problem import InnerProblem
from pactune.problem.loss_checks import as_risk, is_sum, naming_failure, structure
from pactune.problem.losses import Closure, Losses, Metrics, inputs_and_target
from pactune.problem.modules import ModuleTensors, as_module, evaluating, mode, uncompiled, warn_if_compiled
from pactune.problem.provenance import DataMark
from pactune.problem.tensor_slots import call_with
from pactune.streams import forked_rng
from pactune.trees import Params, clone

__all__ = ["Evaluation", "Problem"]

T = TypeVar("T")

MOST_BLOCKS = 256  # calls of a loss that returns only means, when the losses of single rows are needed


class Problem(InnerProblem):
    """A bilevel problem: a model, its hyperparameters, and the training and validation risk.

    Short form: `loss(model(x), y)` for training and validation. General form: `train_loss(model, batch, hyper)` and
    `valid_loss(model, batch, hyper)`, where `model` is called as usual and `hyper` is any module.

    Args:
        model: any `nn.Module`. Its trainable parameters are θ; frozen ones do not change. For a model that
            `torch.compile` returned, tuning uses the original module, without compiled code.
        hyper: an `nn.Module` whose parameters are λ. It may also be a part of the model.
        train: tensors `(x, y)`, a `Dataset` or a `DataLoader`; or a `DataMark` of one, whose rows have identifiers.
        valid: the same, for the validation set.
        loss: `loss(prediction, target)`, the mean over the rows; a sum over the rows is refused.
        train_loss: the general form, instead of `loss`.
        valid_loss: the general form, instead of `loss`.
        batch_size: rows of a training mini-batch; None takes all rows at every step.
        valid_batch_size: rows of a validation mini-batch; None takes all rows.
        metrics: `metrics(model, batch)` returns a dict of further numbers to report, averaged over the rows. Every
            batch must have the same names, and no name may be "risk". The first number decides the verdict on a test
            set: larger is better, unless the function has an attribute `higher_is_better = False`. By default the
            accuracy is reported if the target is a class number and the model returns at least two scores.

    Raises:
        DataError: the data are empty, of unknown type, or on another device.
        SettingError: the losses are of neither form, or `hyper` does not fit the model.

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
        model, hyper = as_module("model", model), as_module("hyper", hyper)
        weigher = _weigher(hyper) if loss is not None else None
        loss, train_loss, valid_loss, metrics = map(uncompiled, (loss, train_loss, valid_loss, metrics))
        self._losses = Losses(loss, train_loss, valid_loss, metrics, weigher)
        self.model, self.hyper = model, hyper
        self._tensors, self._hooks = ModuleTensors(model, hyper), Hooks(hyper)
        self.device, self.dtype = self._tensors.device_and_dtype()
        self._identifiers = tuple(data.rows if isinstance(data, DataMark) else None for data in (train, valid))
        train, valid = (data.source if isinstance(data, DataMark) else data for data in (train, valid))
        self.train = as_source(train, role="train", device=self.device, batch_size=batch_size)
        self.valid = as_source(valid, role="valid", device=self.device, batch_size=valid_batch_size)
        check_values(hyper, self.parameters())
        if isinstance(weigher, ExampleWeights):
            weigher.check_rows(self.train.rows)

    @property
    def members(self) -> list[Problem]:
        """This problem alone."""
        return [self]

    # The tensors of the modules, as dictionaries

    def parameters(self) -> Params:
        """Return θ, the model's trainable parameters without λ, sharing their memory."""
        return self._tensors.parameters()

    def hyperparameters(self) -> Params:
        """Return λ, sharing its memory with the hyper module."""
        return self._tensors.hyperparameters()

    def hyper_leaves(self) -> Params:
        """Return λ as the parameters of the hyper module, which have `.grad`."""
        return self._tensors.hyper_leaves()

    def buffers(self) -> Params:
        """Return the model's buffers, sharing their memory."""
        return self._tensors.buffers.tensors()

    def tensors(self) -> list[Tensor]:
        """Return all parameters and buffers of both modules."""
        modules = (self.model, self.hyper)
        return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]

    @torch.no_grad()
    def load_hyper(self, values: Params) -> None:
        """Copy λ into the user's hyper module."""
        for name, value in self.hyperparameters().items():
            value.copy_(values[name])

    @torch.no_grad()
    def load(self, params: Params, buffers: Params) -> None:
        """Copy θ and the buffers into the user's model."""
        for name, value in self.parameters().items():
            value.copy_(params[name])
        for name, value in self.buffers().items():
            value.copy_(buffers[name])

    def in_type(self, dtype: torch.dtype) -> Problem:
        """Return the same problem in another floating-point type, with copies of the model and the hyper module."""
        model, hyper = copy.deepcopy((self.model, self.hyper))
        return Problem(
            model.to(dtype),
            hyper.to(dtype),
            train=in_type(self.train, dtype),
            valid=in_type(self.valid, dtype),
            **self._losses.arguments(),
        )

    def with_modules(self, model: nn.Module, hyper: nn.Module) -> Problem:
        """Return the same losses on the same data, with another model and hyper module."""
        return Problem(model, hyper, train=self.train, valid=self.valid, **self._losses.arguments())

    def subset(self, train_rows: Tensor, valid_rows: Tensor) -> Problem:
        """Return the problem on some rows only, with the same model and hyper module."""
        twin = copy.copy(self)
        twin.__dict__.pop("sample_ids", None)  # the cached identities of the whole samples
        twin.train, twin.valid = self.train.subset(train_rows), self.valid.subset(valid_rows)
        chosen = zip(self._identifiers, (train_rows, valid_rows), strict=True)
        twin._identifiers = tuple(None if ids is None else [ids[i] for i in rows.tolist()] for ids, rows in chosen)
        return twin

    def losses(self) -> tuple[object, ...]:
        """Return the user's losses and metrics."""
        return tuple(self._losses.arguments().values())

    # Structure

    @property
    def has_buffers(self) -> bool:
        """True if the model has buffers."""
        return bool(self._tensors.buffers.tensors())

    @property
    def has_penalty(self) -> bool:
        """True if a module adds a penalty to the training risk."""
        return bool(self._hooks.penalties)

    @property
    def has_learning_rates(self) -> bool:
        """True if hyperparameters scale the step size."""
        return bool(self._hooks.rates)

    @property
    def has_initial(self) -> bool:
        """True if the initial parameters depend on hyperparameters."""
        return bool(self._hooks.initials)

    @property
    def enters_losses(self) -> bool:
        """True if the losses may depend on λ; if not, a λ-derivative needs no double backward through a loss."""
        return self._losses.general or self._losses.weighs or self._tensors.hyper_inside_model

    @property
    def predicts_with_hyper(self) -> bool:
        """True if λ is a part of the model, so that a prediction depends on it."""
        return self._tensors.hyper_inside_model

    @cached_property
    def sample_ids(self) -> tuple[DataMark, DataMark]:
        """The identities of the training and the validation sample."""
        train, valid = self._identifiers
        return DataMark("train", self.train, train), DataMark("valid", self.valid, valid)

    # The risks

    def predict(self, params: Params, batch: Batch) -> tuple[Any, Any]:
        """Return the model's output at θ, and the target."""
        *inputs, target = inputs_and_target(batch.data)
        return call_with([(self._tensors.params, params)], lambda: self.model(*inputs)), target

    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T without the penalty. A training forward writes its statistics into `buffers`."""
        return self._call(self._losses.train, params, hyper, buffers, batch, "train")

    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V. Pass copies of the buffers, since the forward may write into them."""
        return self._call(self._losses.valid, params, hyper, buffers, batch, "valid")

    def penalty(self, params: Params, hyper: Params) -> Tensor:
        """Return the sum of the modules' penalties."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty(params))

    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of the penalty, differentiable in θ and λ."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty_gradient(params))

    @cached_property
    def has_penalty_vjp(self) -> bool:
        """True if λ acts through penalties only and every penalty has a `penalty_vjp`."""
        only = not (self.enters_losses or self.has_learning_rates or self.has_initial)
        return self.has_penalty and only and self._hooks.penalties_have("penalty_vjp")

    def penalty_vjp(self, params: Params, hyper: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty(θ), c⟩ in closed form; zeros for a λ without a penalty."""
        found = self._hooks.penalty_vjp(params, cotangent)
        return {name: found[name] if name in found else torch.zeros_like(value) for name, value in hyper.items()}

    @cached_property
    def has_closed_steps(self) -> bool:
        """True if a step depends on λ through ∇R_T and through penalties with closed-form derivatives only."""
        return not self.has_learning_rates and self._hooks.penalties_have("penalty_vjp", "penalty_product")

    def penalty_product(self, params: Params, hyper: Params, vector: Params) -> Params:
        """Return ∇²penalty(θ) v in closed form."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty_product(params, vector))

    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return the factors on the step size by parameter name; a parameter without a factor is left out."""
        return self._with_hyper(hyper, lambda: self._hooks.learning_rates(params))

    def initial(self, params: Params, hyper: Params) -> Params:
        """Return θ_0 as a function of λ, given a draw `params` from P_0."""
        return self._with_hyper(hyper, lambda: self._hooks.initial(params))

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

    def readings(self, params: Params, hyper: Params, buffers: Params, batch: Batch, *, general: bool) -> Params:
        """Return the risk (under the name "") and the metrics of one batch, as `evaluate` averages them.

        A pure function of the tensors, for many runs at once. `general` uses the training loss. The model must be in
        `eval()` mode.
        """
        closure = self._losses.train if general else self._losses.valid

        def read() -> Params:
            found = {"": closure(self.model, self.hyper, batch), **self._losses.metrics(self.model, batch)}
            return {name: torch.as_tensor(value, device=self.device) for name, value in found.items()}

        slots = self._tensors
        return call_with([(slots.params, params), (slots.hyper, hyper), (slots.buffers, buffers)], read)

    def is_general(self, source: Source) -> bool:
        """True if `evaluate` uses the training loss for a data set: for the training set in the general form."""
        return source is self.train and self._losses.general

    def row_losses(self, source: Source) -> Tensor:
        """Return the validation loss of every row, in `eval()` mode; float64 on the CPU.

        A loss of `torch.nn.functional` is called with `reduction="none"`. Any other loss is called on one row at a
        time, or on blocks of rows if there are more than `MOST_BLOCKS` rows.
        """
        with evaluating(self.model, self.device):
            if self._losses.knows_rows:
                parts = [self._losses.rows(self.model, batch) for batch in source.evaluation()]
                return torch.cat(parts).double().cpu()
            blocks = torch.arange(source.rows, device="cpu").tensor_split(min(source.rows, MOST_BLOCKS))
            batches = (next(source.subset(block).epoch()) for block in blocks)
            return torch.stack([self._losses.valid(self.model, self.hyper, b) for b in batches]).double().cpu()

    def training_mode(self) -> AbstractContextManager[None]:
        """Put a model in `eval()` mode into training mode, and restore every flag on exit.

        A model in training mode is left unchanged, since the user may have put parts of it into `eval()` mode.
        """
        return nullcontext() if self.model.training else mode(self.model, training=True)

    # Inner workings

    def _call(
        self, closure: Callable[..., Tensor], params: Params, hyper: Params, buffers: Params, batch: Batch, role: str
    ) -> Tensor:
        slots = self._tensors
        parts = [(slots.params, params), (slots.hyper, hyper), (slots.buffers, buffers)]
        value = call_with(parts, lambda: closure(self.model, self.hyper, batch), collect=slots.buffers)
        return as_risk(f"the {role} loss", value)

    def _with_hyper(self, hyper: Params, function: Callable[[], T]) -> T:
        """Call a function while the hyper module holds `hyper`."""
        return call_with([(self._tensors.hyper, hyper)], function)


def _weigher(hyper: nn.Module) -> Any:
    """Return the module that weighs examples; None if there is none."""
    found = holders(hyper, "weigh")
    if len(found) > 1:
        raise SettingError(f"at most one hyperparameter module may weigh examples, got {len(found)}")
    return found[0] if found else None
