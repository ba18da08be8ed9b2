"""`Problem`: the two risks as pure functions of (params, hyper, batch)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pactune.data import Batch, Source, as_source, in_type
from pactune.errors import DataError, SettingError
from pactune.hyper import holders
from pactune.trees import Params, map_tree

__all__ = ["Evaluation", "Problem"]

Closure = Callable[[nn.Module, Any, nn.Module], Tensor]
T = TypeVar("T")
Metrics = Callable[[nn.Module, Any], Mapping[str, Tensor | float]]


class Evaluation(NamedTuple):
    """The risk of a data set in `eval()` mode, and whatever metrics the problem knows (accuracy)."""

    risk: float
    metrics: dict[str, float]

    def columns(self, prefix: str) -> dict[str, float]:
        """Return the values as columns of a history, `valid_risk` and so on."""
        return {f"{prefix}_risk": self.risk, **{f"{prefix}_{name}": value for name, value in self.metrics.items()}}


class _Pair(nn.Module):
    """Model and hyper under one roof, so that one functional call replaces the tensors of both."""

    def __init__(self, model: nn.Module, hyper: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.hyper = hyper

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.model, self.hyper, *args)


class Problem:
    """A bilevel problem: a model, its hyperparameters, and the training and validation risk.

    Short form: `loss(model(x), y)` on both sides. General form: `train_loss(model, batch, hyper)` and
    `valid_loss(model, batch, hyper)`, where `model` is called as usual and `hyper` is any module.

    Args:
        model: any `nn.Module`. Its trainable parameters are θ; frozen ones stay as they are.
        hyper: an `nn.Module` whose parameters are λ. It may also be a part of the model.
        train: tensors `(x, y)`, a `Dataset` or a `DataLoader`.
        valid: the same, for the validation set.
        loss: `loss(prediction, target)`, the mean over the rows.
        train_loss: the general form, instead of `loss`.
        valid_loss: the general form, instead of `loss`.
        batch_size: rows of a training mini-batch; None takes all rows at every step.
        valid_batch_size: rows of a validation mini-batch; None takes all rows.
        metrics: `metrics(model, batch)` returns further numbers to report, averaged over the rows. By default the
            accuracy, where the target is a class number.

    Raises:
        DataError: for empty, unknown or ill-fitting data.
        SettingError: for a wrong combination of losses, or parameters that do not fit.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> from pactune.hyper import WeightDecay
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
        _check_modules(model, hyper)
        _check_losses(loss, train_loss, valid_loss)
        self.model, self.hyper = model, hyper
        self._pair = _Pair(model, hyper)
        self._names = _Names(model, hyper)
        self.device, self.dtype = self._names.place()
        self.train = as_source(train, role="train", device=self.device, batch_size=batch_size)
        self.valid = as_source(valid, role="valid", device=self.device, batch_size=valid_batch_size)
        self._loss, self._train_loss, self._valid_loss = loss, train_loss, valid_loss
        self._metrics = metrics or (_accuracy if loss is not None else None)
        self._penalties: list[Any] = [*holders(hyper, "penalty")]
        self._rates: list[Any] = [*holders(hyper, "learning_rates")]
        self._initials: list[Any] = [*holders(hyper, "initial")]
        self._weighers = holders(hyper, "weigh") if loss is not None else []
        if len(self._weighers) > 1:
            raise SettingError(f"at most one hyperparameter module may weigh examples, got {len(self._weighers)}")

    # The state of the modules, as dictionaries

    def parameters(self) -> Params:
        """Return θ, the model's trainable parameters that are not hyperparameters, sharing their memory."""
        return self._names.parameters()

    def hyperparameters(self) -> Params:
        """Return λ, sharing its memory with the hyper module."""
        return self._names.hyperparameters()

    def buffers(self) -> Params:
        """Return the model's buffers, sharing their memory."""
        return dict(self.model.named_buffers())

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
            loss=self._loss,
            train_loss=self._train_loss,
            valid_loss=self._valid_loss,
            metrics=self._metrics,
        )

    # Structure

    @property
    def has_penalty(self) -> bool:
        """Whether a penalty is added to the training risk."""
        return bool(self._penalties)

    @property
    def has_learning_rates(self) -> bool:
        """Whether hyperparameters scale the step size."""
        return bool(self._rates)

    @property
    def has_initial(self) -> bool:
        """Whether the initial parameters depend on hyperparameters."""
        return bool(self._initials)

    @property
    def enters_losses(self) -> bool:
        """Whether λ may enter the losses themselves; if not, no double backward is ever needed for λ alone."""
        return self._loss is None or bool(self._weighers) or self._names.hyper_inside_model

    # The risks

    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T without the penalty; a training forward writes its statistics into `buffers`."""
        return self._call(self._train_closure, params, hyper, buffers, batch, "train")

    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V; hand in copies of the buffers, since the forward may write into them."""
        return self._call(self._valid_closure, params, hyper, buffers, batch, "valid")

    def penalty(self, params: Params, hyper: Params) -> Tensor:
        """Return the sum of the modules' penalties."""
        return self._with_hyper(hyper, lambda: torch.stack([m.penalty(params) for m in self._penalties]).sum())

    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of the penalty, differentiable in θ and λ."""

        def gradient() -> Params:
            total: Params = {}
            for module in self._penalties:
                part = _penalty_gradient(module, params)
                total = {name: total[name] + part[name] if name in total else part[name] for name in part}
            return total

        found = self._with_hyper(hyper, gradient)
        return {name: found[name] if name in found else torch.zeros_like(p) for name, p in params.items()}

    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return the factors on the step size by parameter name; a name that has none is left out."""

        def factors() -> Params:
            total: Params = {}
            for module in self._rates:
                part = module.learning_rates(params)
                total |= {name: total[name] * value if name in total else value for name, value in part.items()}
            return total

        return self._with_hyper(hyper, factors)

    def initial(self, params: Params, hyper: Params) -> Params:
        """Return θ_0 as a function of λ, given a draw `params` from P_0."""

        def passed() -> Params:
            value = params
            for module in self._initials:
                value = module.initial(value)
            return value

        return self._with_hyper(hyper, passed)

    # Evaluation of the user's own model

    @torch.no_grad()
    def evaluate(self, source: Source) -> Evaluation:
        """Evaluate the model as it stands on a whole data set, in `eval()` mode and without the penalty."""
        flags = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            return self._average(source.evaluation())
        finally:
            for module, flag in flags.items():
                module.training = flag

    def _average(self, batches: Iterator[Batch]) -> Evaluation:
        rows, risk, sums = 0, 0.0, dict[str, float]()
        for batch in batches:
            rows += batch.rows
            risk += batch.rows * float(self._valid_closure(self.model, self.hyper, batch))
            found = self._metrics(self.model, batch.data) if self._metrics else {}
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + batch.rows * float(value)
        return Evaluation(risk / rows, {name: value / rows for name, value in sums.items()})

    # Inner workings

    def _train_closure(self, model: nn.Module, hyper: nn.Module, batch: Batch) -> Tensor:
        if self._train_loss is not None:
            return self._train_loss(model, batch.data, hyper)
        if not self._weighers:
            return self._short(model, batch)
        if batch.numbers is None:
            raise DataError("example weights need rows known by number: pass tensors or a Dataset as `train`")
        weigher: Any = self._weighers[0]
        weighed: Tensor = weigher.weigh(self._short(model, batch, reduction="none"), batch.numbers)
        return weighed

    def _valid_closure(self, model: nn.Module, hyper: nn.Module, batch: Batch) -> Tensor:
        if self._valid_loss is not None:
            return self._valid_loss(model, batch.data, hyper)
        return self._short(model, batch)

    def _short(self, model: nn.Module, batch: Batch, **options: str) -> Tensor:
        assert self._loss is not None
        *inputs, target = _inputs_and_target(batch.data)
        return self._loss(model(*inputs), target, **options)

    def _call(
        self, closure: Callable[..., Tensor], params: Params, hyper: Params, buffers: Params, batch: Batch, role: str
    ) -> Tensor:
        tensors = self._names.tensors(params, hyper, buffers)
        value = functional_call(self._pair, tensors, (closure, batch), tie_weights=False)
        if not isinstance(value, Tensor) or value.ndim != 0:
            what = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise SettingError(f"the {role} loss must be a scalar tensor, the mean over the rows, got {what}")
        return value

    def _with_hyper(self, hyper: Params, function: Callable[[], T]) -> T:
        """Call a function while the hyper module holds `hyper`."""
        tensors = self._names.tensors({}, hyper, {})
        value: T = functional_call(self._pair, tensors, (lambda _model, _hyper: function(),), tie_weights=False)
        return value


class _Names:
    """Who is θ, who is λ, and under which names the pair of modules knows them (ties included)."""

    def __init__(self, model: nn.Module, hyper: nn.Module) -> None:
        self._model, self._hyper = model, hyper
        hyper_ids = {id(p): name for name, p in hyper.named_parameters() if p.requires_grad}
        own = {name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in hyper_ids}
        if not own:
            raise SettingError(f"{type(model).__name__} has no trainable parameter of its own")
        if not hyper_ids:
            raise SettingError(f"{type(hyper).__name__} has no parameter that requires a gradient: nothing to tune")
        self._own, self._lambda = list(own), list(hyper_ids.values())
        own_ids = {id(p): name for name, p in own.items()}
        every = list(model.named_parameters(remove_duplicate=False))
        self._param_aliases = [(f"model.{n}", own_ids[id(p)]) for n, p in every if id(p) in own_ids]
        inside = [(f"model.{n}", hyper_ids[id(p)]) for n, p in every if id(p) in hyper_ids]
        every_hyper = hyper.named_parameters(remove_duplicate=False)
        self._hyper_aliases = inside + [(f"hyper.{n}", hyper_ids[id(p)]) for n, p in every_hyper if id(p) in hyper_ids]
        self.hyper_inside_model = bool(inside)

    def parameters(self) -> Params:
        every = dict(self._model.named_parameters())
        return {name: every[name].detach() for name in self._own}

    def hyperparameters(self) -> Params:
        every = dict(self._hyper.named_parameters())
        return {name: every[name].detach() for name in self._lambda}

    def tensors(self, params: Params, hyper: Params, buffers: Params) -> Params:
        """Return the replacement of every tensor under its name in the pair."""
        replaced = {alias: params[name] for alias, name in self._param_aliases if name in params}
        replaced |= {alias: hyper[name] for alias, name in self._hyper_aliases}
        replaced |= {f"model.{name}": value for name, value in buffers.items()}
        return replaced

    def place(self) -> tuple[torch.device, torch.dtype]:
        """Return the one device and the one type of all parameters."""
        tensors = self.parameters() | {f"hyper {k}": v for k, v in self.hyperparameters().items()}
        places = {(value.device, value.dtype) for value in tensors.values()}
        if len(places) > 1:
            found = ", ".join(sorted(f"{device}/{dtype}" for device, dtype in places))
            raise SettingError(f"model and hyper must be on one device and of one type, got {found}; use `.to(...)`")
        return places.pop()


def _penalty_gradient(module: Any, params: Params) -> Params:
    """Return a module's own closed form, or the derivative of its penalty."""
    if hasattr(module, "penalty_gradient"):
        return module.penalty_gradient(params)  # type: ignore[no-any-return]
    with torch.enable_grad():
        inputs = map_tree(lambda p: p if p.requires_grad else p.detach().requires_grad_(), params)
        value = module.penalty(inputs)
        found = torch.autograd.grad(value, list(inputs.values()), create_graph=True, allow_unused=True)
    return {name: g for name, g in zip(inputs, found, strict=True) if g is not None}


def _inputs_and_target(data: Any) -> tuple[Any, ...]:
    if isinstance(data, (tuple, list)) and len(data) >= 2:
        return tuple(data)
    raise DataError(
        "with `loss=` every batch must be a tuple (inputs, target); otherwise pass `train_loss` and `valid_loss`"
    )


def _accuracy(model: nn.Module, data: Any) -> dict[str, Tensor]:
    """Return the share of right answers where the target is a class number, else nothing."""
    *inputs, target = _inputs_and_target(data)
    if target.is_floating_point() or target.ndim != 1:
        return {}
    scores = model(*inputs)
    return {"accuracy": (scores.argmax(1) == target).double().mean()} if scores.ndim == 2 else {}


def _check_modules(model: object, hyper: object) -> None:
    for name, value in (("model", model), ("hyper", hyper)):
        if not isinstance(value, nn.Module):
            raise SettingError(f"`{name}` must be an nn.Module, got {type(value).__name__}")


def _check_losses(loss: object, train_loss: object, valid_loss: object) -> None:
    short, general = loss is not None, (train_loss is not None, valid_loss is not None)
    if short and not any(general):
        wanted = {"loss": loss}
    elif not short and all(general):
        wanted = {"train_loss": train_loss, "valid_loss": valid_loss}
    else:
        raise SettingError("pass either `loss`, or both `train_loss` and `valid_loss`")
    for name, value in wanted.items():
        if not callable(value):
            raise SettingError(f"`{name}` must be callable, got {type(value).__name__}")
