"""The losses of a problem: one for both sides (the short form) or one for each (the general form), and the metrics."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pactune.checks import shown
from pactune.columns import RISK
from pactune.errors import DataError, PactuneError, SettingError
from pactune.problem.data import Batch
from pactune.problem.model_inputs import inputs_and_target

__all__ = ["Closure", "Losses", "Metrics", "accuracy", "losses_of_rows"]

NO_GRAPH = "does not require grad"  # in the error of `torch.autograd.grad` where no graph was made
Closure = Callable[[nn.Module, Any, nn.Module], Tensor]
Metrics = Callable[[nn.Module, Any], Mapping[str, Tensor | float]]


class Losses:
    """The user's losses and metrics, called on a batch with the present values of the model and the hyper module.

    Args:
        loss: `loss(prediction, target)`, the short form.
        train_loss: `train_loss(model, data, hyper)`, the general form.
        valid_loss: the same for the validation set.
        metrics: `metrics(model, data)`; the short form has the accuracy by default.
        weigher: the module that weighs the examples of the training set, in the short form.

    Attributes:
        knows_rows: True if `rows` can return the losses of single rows.
        reduction: "mean" or "sum" if the loss of the short form has such a setting, else None.

    Raises:
        SettingError: the losses are of neither form, or one of them cannot be called.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor] | None,
        train_loss: Closure | None,
        valid_loss: Closure | None,
        metrics: Metrics | None,
        weigher: Any = None,
    ) -> None:
        _check(loss, train_loss, valid_loss)
        if metrics is not None and not callable(metrics):
            raise SettingError(f"`metrics` must be a function of the model and a batch, got {shown(metrics)}")
        self._given, self._loss = loss, with_reduction(loss)
        self._train_loss, self._valid_loss = train_loss, valid_loss
        self._metrics = metrics or (accuracy if loss is not None else None)
        self._weigher = weigher
        self._differentiates = False  # True once a loss failed for want of a graph
        self.knows_rows = knows_reduction(self._loss)
        self.reduction = stated_reduction(self._loss)

    @property
    def general(self) -> bool:
        """True for the general form: one loss for training, another for validation."""
        return self._loss is None

    @property
    def weighs(self) -> bool:
        """True if a hyperparameter module weighs the training examples."""
        return self._weigher is not None

    @property
    def higher_is_better(self) -> bool:
        """False if the metrics say, as torchmetrics do, that a smaller number is better."""
        return getattr(self._metrics, "higher_is_better", None) is not False

    def arguments(self) -> dict[str, Any]:
        """Return the losses and metrics by the names of `Problem`'s arguments."""
        return {
            "loss": self._given,
            "train_loss": self._train_loss,
            "valid_loss": self._valid_loss,
            "metrics": self._metrics,
        }

    def train(self, model: nn.Module, hyper: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss of a batch, without a penalty."""
        if self._train_loss is not None:
            return self._called(partial(self._train_loss, model, batch.data, hyper))
        if self._weigher is None:
            return self._short(model, batch)
        if not self.knows_rows:
            raise SettingError('example weights need a loss that knows reduction="none", such as F.cross_entropy')
        if batch.numbers is None:
            raise DataError("example weights need rows known by number: pass tensors or a Dataset as `train`")
        weighed: Tensor = self._weigher.weigh(self._short(model, batch, reduction="none"), batch.numbers)
        return weighed

    def valid(self, model: nn.Module, hyper: nn.Module, batch: Batch) -> Tensor:
        """Return the validation loss of a batch."""
        if self._valid_loss is not None:
            return self._called(partial(self._valid_loss, model, batch.data, hyper))
        return self._short(model, batch)

    def rows(self, model: nn.Module, batches: Iterable[Batch]) -> Tensor | None:
        """Return the validation loss of every row of some batches, shape (rows,); None if that needs calls per row."""
        found = list[Tensor]()
        for batch in () if self.general else batches:
            part = self._rows(model, batch)
            if part is None:
                return None
            found.append(part)
        return torch.cat(found) if found else None

    def _rows(self, model: nn.Module, batch: Batch) -> Tensor | None:
        assert self._loss is not None
        parts = inputs_and_target(batch.data)
        both = outputs, target = parts.apply(model), parts.target
        if not self.knows_rows and not all(_has_rows(one, batch.rows) for one in both):
            return None
        return losses_of_rows(self._loss, outputs, target)

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor | float]:
        """Return the metrics of a batch.

        Raises:
            SettingError: the user's function fails, or does not return a dict of numbers.
        """
        if self._metrics is None:
            return {}
        try:
            found = self._metrics(model, batch.data)
        except (PactuneError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the user's code may raise anything
            raise SettingError(
                f"`metrics` fails with {type(error).__name__}: {error}; it is called as metrics(model, batch) on the "
                "batches of every data set"
            ) from error
        return _checked_metrics(found)

    def _short(self, model: nn.Module, batch: Batch, **options: str) -> Tensor:
        loss, parts = self._loss, inputs_and_target(batch.data)
        assert loss is not None
        return self._called(lambda: loss(parts.apply(model), parts.target, **options))

    def _called(self, loss: Callable[[], Tensor]) -> Tensor:
        """Call a loss. One that takes gradients itself, such as a gradient penalty, needs a graph in `no_grad` too."""
        if torch.is_grad_enabled():
            return loss()
        if not self._differentiates:
            try:
                return loss()
            except RuntimeError as error:
                if NO_GRAPH not in str(error):
                    raise
        with torch.enable_grad():
            value = loss()
        self._differentiates = True
        return value.detach() if isinstance(value, Tensor) else value


def _has_rows(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and len(value) == rows


def losses_of_rows(loss: Callable[..., Tensor], outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of every row of some outputs, shape (rows,); 0 for a row that the loss ignores."""
    loss = with_reduction(loss)
    if knows_reduction(loss):
        return loss(outputs, target, reduction="none").reshape(len(target), -1).mean(1)
    return _loss_of_rows(loss, outputs, target)


def _loss_of_rows(loss: Callable[..., Tensor], outputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of every row by a loss that returns means: of all rows at once, or row by row if vmap fails."""

    def of_row(output: Tensor, wanted: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), wanted.unsqueeze(0)).reshape(())

    try:
        found: Tensor = torch.func.vmap(of_row)(outputs, target)
    except Exception:  # the user's code may look at numbers, or be no code of torch
        found = torch.stack([of_row(*row) for row in zip(outputs, target, strict=True)])
    counts_nothing = found.isnan() & outputs.reshape(len(outputs), -1).isfinite().all(1)  # all its targets are ignored
    return found.masked_fill(counts_nothing, 0.0)


def with_reduction(loss: Any) -> Any:
    """Return a loss module of torch as a function that has an argument `reduction`, as those of torch have."""
    if type(loss).__module__ != nn.modules.loss.__name__ or not hasattr(loss, "reduction"):
        return loss
    return partial(_reduced, loss, reduction=loss.reduction)


def _reduced(module: Any, output: Tensor, target: Tensor, *, reduction: str) -> Tensor:
    if reduction != module.reduction:
        module = copy.copy(module)
        module.reduction = reduction
    found: Tensor = module(output, target)
    return found


def stated_reduction(loss: object) -> str | None:
    """Return the `reduction` of a loss, "mean" or "sum"; None if it has no such argument or attribute.

    >>> stated_reduction(nn.functional.mse_loss), stated_reduction(nn.MSELoss(reduction="sum"))
    ('mean', 'sum')
    """
    found = getattr(loss, "reduction", None)
    if knows_reduction(loss):
        found = inspect.signature(loss).parameters["reduction"].default  # type: ignore[arg-type]
    return found if isinstance(found, str) else None


def knows_reduction(loss: object) -> bool:
    """True if a loss has an argument `reduction`, so that it can return the losses of single rows."""
    try:
        return callable(loss) and "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # some callables, of C for instance, have no signature
        return False


def accuracy(model: nn.Module, data: Any) -> dict[str, Tensor]:
    """Return the share of right answers; an empty dict if the target is no class number."""
    parts = inputs_and_target(data)
    target = parts.target
    if not isinstance(target, Tensor) or target.is_floating_point() or target.ndim != 1:
        return {}
    scores = parts.apply(model)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] < 2:
        return {}  # the largest of one score is always the first: that is no classification
    return {"accuracy": (scores.argmax(1) == target).double().mean()}


def _checked_metrics(found: object) -> Mapping[str, Tensor | float]:
    """Return the metrics; raise unless each has an allowed name and is one real number."""
    if not isinstance(found, Mapping):
        raise SettingError(f"`metrics` must return a dict of numbers by name, got {shown(found)}")
    for name, value in found.items():
        if not isinstance(name, str) or not name or name == RISK:
            raise SettingError(f"`metrics` must return names that are texts other than {RISK!r}, got {shown(name)}")
        if isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex():
            continue
        if isinstance(value, Tensor) or getattr(value, "shape", None) or not _is_float(value):
            raise SettingError(f"`metrics` must return one number per name, for {name!r} it returned {shown(value)}")
    return found


def _is_float(value: Any) -> bool:
    """True if a value is no text and can be a float."""
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, (str, bytes))


def _check(loss: object, train_loss: object, valid_loss: object) -> None:
    """Raise unless there is one loss of the short form, or both losses of the general form."""
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
