"""The user's metric: a function, the name of a scikit-learn scorer, or by default the accuracy or the loss."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pactune.checks import shown
from pactune.columns import is_share
from pactune.errors import PactuneError, SettingError
from pactune.extras import require
from pactune.search.temperatures import losses_of_classes, losses_of_one_logit

__all__ = ["Metric", "as_metric", "scorer_named"]

COLUMNS = {"model", "standard_error", "gain", "gain_error", "loss", "decay", "steps", "kept"}  # of the table, beside it


class Metric(NamedTuple):
    """A number that says how good predictions are.

    Attributes:
        name: what the number is called in tables.
        higher_is_better: the direction.
        score: a function of predictions and targets; None is the mean loss of the rows.
        tempered: for classes, returns the losses of the rows at several temperatures.
    """

    name: str
    higher_is_better: bool
    score: Callable[[Tensor, Tensor], float] | None
    tempered: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def percent(self) -> bool:
        """True if the number is shown in percent."""
        return is_share(self.name)

    def shown(self, value: float) -> str:
        """Return a value with its unit.

        >>> Metric("accuracy", True, None).shown(0.7512), Metric("loss", False, None).shown(0.7512)
        ('75.1 %', '0.7512')
        """
        return f"{100 * value:z.1f} %" if self.percent else f"{value:z.4g}"

    def shown_difference(self, value: float, error: float) -> str:
        """Return a difference and its standard error with their unit.

        >>> accuracy = Metric("accuracy", True, None)
        >>> accuracy.shown_difference(0.031, 0.012), accuracy.shown_difference(-0.0001, 0.012)
        ('+3.1 ± 1.2 points', '+0.0 ± 1.2 points')
        """
        if self.percent:
            return f"{100 * value:+z.1f} ± {100 * error:.1f} points"
        return f"{value:+z.3g} ± {error:.2g}"


def as_metric(metric: object, loss: object, predictions: Tensor | None, targets: Tensor | None) -> Metric:
    """Return the argument `metric` as a `Metric`.

    Args:
        metric: a function of predictions and targets, the name of a scikit-learn scorer, or None.
        loss: the loss of the problem, by which a model with one logit is known.
        predictions: the model's outputs for some rows; None if they are not known.
        targets: the targets of these rows.

    Raises:
        SettingError: the metric is none of these, or it fails on the predictions.
    """
    if predictions is None or targets is None:
        if metric is None:
            return Metric("loss", False, None)
        raise SettingError("`metric` needs batches that are tuples (inputs, target) and a model that returns a tensor")
    classes = _classes(loss, predictions, targets)
    if metric is None:
        return _default(classes)
    if isinstance(metric, str):
        found = _scorer(metric, _is_binary(loss, predictions, targets))
    elif callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__).replace("_", " ").strip("<>")
        name = f"metric {name}" if name in COLUMNS else name
        found = Metric(name, getattr(metric, "higher_is_better", None) is not False, _checked(metric))
    else:
        raise SettingError(
            "`metric` must be a function of predictions and targets, the name of a scikit-learn scorer or None, "
            f"got {shown(metric)}"
        )
    assert found.score is not None
    found.score(predictions.cpu(), targets.cpu())
    return found._replace(tempered=classes and classes.tempered)


class _Classes(NamedTuple):
    """How outputs say a class.

    Attributes:
        hits: returns True for the rows whose class is predicted.
        tempered: returns the losses of the rows at several temperatures.
    """

    hits: Callable[[Tensor, Tensor], Tensor]
    tempered: Callable[[Tensor, Tensor], Tensor]


def _default(classes: _Classes | None) -> Metric:
    """Return the accuracy for classes, and the loss otherwise."""
    if classes is None:
        return Metric("loss", False, None)
    return Metric("accuracy", True, lambda found, wanted: _share(classes.hits(found, wanted)), classes.tempered)


def _classes(loss: Any, predictions: Tensor, targets: Tensor) -> _Classes | None:
    """Return how the outputs say a class; None if there are no classes."""
    whole = not targets.is_floating_point() and targets.ndim == 1
    if whole and predictions.ndim == 2 and predictions.shape[1] > 1 and _raises_target(loss, predictions, targets):
        return _Classes(lambda found, wanted: found.argmax(1) == wanted, losses_of_classes)
    if _is_binary(loss, predictions, targets):
        return _Classes(lambda found, wanted: (_flat(found) > 0) == (_flat(wanted) > 0.5), losses_of_one_logit)
    return None


def _raises_target(loss: Callable[..., Tensor], predictions: Tensor, targets: Tensor) -> bool:
    """Return True if a loss raises the output in the column of the target most, so that the largest says the class.

    Whole numbers can be other things than classes: counts, ranks, or the rows of a table of codes. All outputs are
    equal here, so that the answer depends on the loss alone.
    """
    if not bool(((targets >= 0) & (targets < predictions.shape[1])).all()):
        return False
    equal = torch.zeros_like(predictions).requires_grad_()
    try:
        with torch.enable_grad():
            slope = torch.autograd.grad(loss(equal, targets), equal)[0]
    except Exception:  # a loss may refuse outputs or targets that it was not tried on
        return False
    return bool((slope.gather(1, targets[:, None].long()) <= slope.amin(1, keepdim=True)).all())


def _is_binary(loss: object, predictions: Tensor, targets: Tensor) -> bool:
    """Return True for a model with one logit and targets 0 and 1."""
    logits = loss is F.binary_cross_entropy_with_logits or isinstance(loss, nn.BCEWithLogitsLoss)
    return logits and predictions[0].numel() == 1 and bool(((targets == 0) | (targets == 1)).all())


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def _flat(values: Tensor) -> Tensor:
    return values.reshape(len(values))


def _checked(metric: Callable[..., Any]) -> Callable[[Tensor, Tensor], float]:
    """Return a user's metric as a function that returns one float, or raises a `SettingError`."""

    def score(predictions: Tensor, targets: Tensor) -> float:
        try:
            return float(metric(predictions, targets))
        except PactuneError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise SettingError(
                f"`metric` fails with {type(error).__name__}: {error}; it is called as metric(predictions, targets) "
                "and returns one number"
            ) from error

    return score


def scorer_named(name: str) -> Any:
    """Return a scorer of scikit-learn.

    Raises:
        SettingError: scikit-learn has no scorer of this name.
    """
    require("sklearn")
    from sklearn.metrics import get_scorer, get_scorer_names

    try:
        return get_scorer(name)
    except ValueError as error:
        close = get_close_matches(name, get_scorer_names(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "sklearn.metrics.get_scorer_names() lists them"
        raise SettingError(f"`metric` must be the name of a scikit-learn scorer, got {name!r}; {hint}") from error


def _scorer(name: str, binary: bool) -> Metric:
    """Return a scorer of scikit-learn. Scorers of losses are negative, so that larger is always better."""
    scorer = scorer_named(name)
    from pactune.search.predicted import PredictedClasses, PredictedNumbers

    def score(predictions: Tensor, targets: Tensor) -> float:
        whole = not targets.is_floating_point() and targets.ndim == 1
        kind = PredictedClasses if binary or (whole and predictions.ndim == 2) else PredictedNumbers
        rows = torch.arange(len(targets), device="cpu").reshape(-1, 1).numpy()
        return float(scorer(kind(predictions), rows, targets.cpu().reshape(len(targets), -1).squeeze(1).numpy()))

    return Metric(name.replace("_", " "), True, _checked(score))
