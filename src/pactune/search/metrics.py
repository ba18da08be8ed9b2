"""The user's metric: a function, a scikit-learn scorer or its name, or by default the accuracy or the loss."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
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
        metric: a function of predictions and targets, a scikit-learn scorer or its name, or None.
        loss: the loss of the problem, by which classes are known.
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
        found = _scorer(metric, scorer_named(metric), classes)
    elif _is_scorer(metric):
        found = _scorer(_own_name(metric), metric, classes)
    elif callable(metric):
        name = getattr(metric, "__name__", type(metric).__name__).replace("_", " ").strip("<>")
        name = f"metric {name}" if name in COLUMNS else name
        found = Metric(name, getattr(metric, "higher_is_better", None) is not False, _checked(metric))
    else:
        raise SettingError(
            "`metric` must be a function of predictions and targets, a scikit-learn scorer or its name, or None, "
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
        scores: returns the outputs as scores: a column per class, or the logit of class 1.
    """

    hits: Callable[[Tensor, Tensor], Tensor]
    tempered: Callable[[Tensor, Tensor], Tensor]
    scores: Callable[[Tensor], Tensor]


def _default(classes: _Classes | None) -> Metric:
    """Return the accuracy for classes, and the loss otherwise."""
    if classes is None:
        return Metric("loss", False, None)
    return Metric("accuracy", True, lambda found, wanted: _share(classes.hits(found, wanted)), classes.tempered)


def _classes(loss: Any, predictions: Tensor, targets: Tensor) -> _Classes | None:
    """Return how the outputs say a class; None if there are no classes."""
    whole = not targets.is_floating_point() and targets.ndim == 1
    if whole and predictions.ndim == 2 and predictions.shape[1] > 1 and _raises_target(loss, predictions, targets):
        return _Classes(lambda found, wanted: found.argmax(1) == wanted, losses_of_classes, lambda found: found)
    logit = _logit(loss, predictions, targets)
    if logit is None:
        return None
    return _Classes(
        lambda found, wanted: (_flat(logit(found)) > 0) == (_flat(wanted) > 0.5),
        lambda found, wanted: losses_of_one_logit(logit(found), wanted),
        logit,
    )


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


def _logit(loss: Any, predictions: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the function from the only output of a model to the logit of class 1; None if there is no such class."""
    if predictions[0].numel() != 1 or not bool(((targets == 0) | (targets == 1)).all()):
        return None
    known = loss.func if isinstance(loss, partial) else loss
    if known is F.binary_cross_entropy or isinstance(known, nn.BCELoss):
        return partial(torch.logit, eps=1e-7)
    if known is F.binary_cross_entropy_with_logits or isinstance(known, nn.BCEWithLogitsLoss):
        return lambda found: found
    return (lambda found: found) if _wants_sign(loss, predictions, targets) else None


def _wants_sign(loss: Callable[..., Tensor], predictions: Tensor, targets: Tensor) -> bool:
    """Return True if a loss falls in the output where the target is 1 and rises where it is 0, as that of a logit does.

    A loss of numbers has its least value at the target, so it has the other slope at the outputs −1 or 1.
    """
    predictions, targets = predictions.cpu(), targets.cpu()
    try:
        for size in (-1.0, 0.0, 1.0):
            outputs = torch.full_like(predictions, size).requires_grad_()
            with torch.enable_grad():
                slope = torch.autograd.grad(loss(outputs, targets), outputs)[0]
            if not torch.equal(_flat(slope).sign(), 1.0 - 2 * _flat(targets).to(slope)):
                return False
    except Exception:  # a loss may refuse outputs or targets that it was not tried on
        return False
    return True


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


def _is_scorer(metric: object) -> bool:
    """Return True for a scorer of scikit-learn, such as one of `make_scorer`."""
    return type(metric).__module__.startswith("sklearn.metrics") and hasattr(metric, "_score_func")


def _own_name(scorer: Any) -> str:
    """Return the name of a scorer's function; that of a loss begins with "neg", as in scikit-learn."""
    name = getattr(scorer._score_func, "__name__", "scorer")
    return f"neg_{name}" if getattr(scorer, "_sign", 1) < 0 else name


def _scorer(name: str, scorer: Any, classes: _Classes | None) -> Metric:
    """Return a scorer of scikit-learn. Scorers of losses are negative, so that larger is always better."""
    from pactune.search.predicted import PredictedClasses, PredictedNumbers

    def score(predictions: Tensor, targets: Tensor) -> float:
        whole = not targets.is_floating_point() and targets.ndim == 1
        rows = torch.arange(len(targets), device="cpu").reshape(-1, 1).numpy()
        wanted = targets.cpu().reshape(len(targets), -1).squeeze(1).numpy()
        if classes is not None:
            return float(scorer(PredictedClasses(classes.scores(predictions)), rows, wanted))
        if whole and predictions.ndim == 2:
            return float(scorer(PredictedClasses(predictions), rows, wanted))
        try:
            return float(scorer(PredictedNumbers(predictions), rows, wanted))
        except (AttributeError, ValueError, TypeError) as error:
            reason = str(error).replace("PredictedNumbers", "the model").rstrip(".")
            raise SettingError(
                f"the scorer {name!r} fails on predictions that are numbers: {reason}. A scorer of classes needs whole "
                "targets and an output per class, or targets 0 and 1 and a loss of one logit, such as "
                "F.binary_cross_entropy_with_logits; otherwise pass a function metric(predictions, targets)"
            ) from error

    return Metric(name.replace("_", " "), True, _checked(score))
