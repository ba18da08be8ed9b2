"""`TunedClassifier` and `TunedRegressor`: `pt.tune` behind the interface of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, _fit_context
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from pactune.checks import shown
from pactune.errors import DataError
from pactune.problem.data import Source, as_source
from pactune.problem.folds import FoldRows, make_folds
from pactune.search.tune import tune
from pactune.sklearn.modules import first_parameter, make_module, try_module
from pactune.sklearn.targets import TargetForm, TargetMetric, loss_for

__all__ = ["TunedClassifier", "TunedRegressor"]

Array = NDArray[Any]
FOLDS, MIN_ROWS = 5, 6
ROWS_AT_ONCE = 8192  # of a prediction
_CONSTANT = 1e-12  # a column whose deviation is below this share of its size is constant up to rounding


class TrainingRows(NamedTuple):
    """The rows with a positive weight.

    Attributes:
        X: the inputs. Shape (rows, features).
        y: the target.
        weights: their weights with mean 1; None if all are equal.
        kept: the numbers of these rows among all rows.
        rows: the number of all rows.
    """

    X: Array
    y: Array
    weights: Array | None
    kept: Array
    rows: int


class _TunedEstimator(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "standardize": ["boolean"],
        "inner_steps": [None, Interval(Integral, 1, None, closed="left")],
        "batch_size": [None, Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "progress": [None, "boolean"],
    }

    def __init__(
        self,
        module: Any = None,
        *,
        folds: Any = FOLDS,
        metric: Any = None,
        standardize: bool = True,
        loss: Callable[..., Tensor] | None = None,
        inner: Any = None,
        inner_steps: int | None = None,
        batch_size: int | None = None,
        engine: Any = "auto",
        random_state: int | np.random.RandomState | None = None,
        progress: bool | None = False,
    ) -> None:
        self.module = module
        self.folds = folds
        self.metric = metric
        self.standardize = standardize
        self.loss = loss
        self.inner = inner
        self.inner_steps = inner_steps
        self.batch_size = batch_size
        self.engine = engine
        self.random_state = random_state
        self.progress = progress

    def _kept_rows(self, X: Any, y: Array, sample_weight: Any) -> TrainingRows:
        """Leave out rows of weight 0. Equal weights are no weights.

        Raises:
            DataError: a weight is negative.
        """
        numbers, weights = np.arange(len(X)), None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
            if (weights < 0).any():
                raise DataError(f"`sample_weight` must hold numbers ≥ 0, got {shown(float(weights.min()))}")
            numbers = np.flatnonzero(weights)
            weights = weights[numbers] / weights[numbers].mean() if len(numbers) else None
        equal = weights is not None and np.ptp(weights) <= _CONSTANT
        return TrainingRows(X[numbers], y[numbers], None if equal else weights, numbers, len(X))

    def _check_rows(self, data: TrainingRows) -> None:
        if len(data.y) < MIN_ROWS:
            weighted = " with a positive weight" if len(data.y) < data.rows else ""
            raise DataError(
                f"{type(self).__name__} needs at least {MIN_ROWS} rows{weighted}, since three folds train, choose and "
                f"judge, got n_samples = {len(data.y)}"
            )

    def _tune(self, data: TrainingRows, values: Array, form: TargetForm, loss: Any, classes: int | None) -> None:
        """Train the module on the rows: set `result_` and `module_`."""
        metric, loss = TargetMetric(self.metric, form), loss_for(loss, form)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.mean_, self.scale_ = self._location(data)
        module = make_module(self.module, data.X.shape[1], classes or 1, seed)
        inputs = self._inputs(data.X, module)
        targets = form.write(values, data.weights, try_module(module, inputs[:2], classes))
        result = tune(
            module,
            (inputs, targets),
            loss=loss,
            folds=self._folds(data, values, form),
            metric=metric,
            inner=self.inner,
            inner_steps=None if self.inner_steps is None else int(self.inner_steps),
            batch_size=self.batch_size,
            seed=seed,
            engine=self.engine,
            progress=self.progress,
        )
        if result.status == "interrupted":
            raise KeyboardInterrupt
        self.result_, self.module_ = result, result.model

    def _folds(self, data: TrainingRows, values: Array, form: TargetForm) -> tuple[FoldRows, ...]:
        """Return the folds of the kept rows. Classes are dealt out to them, so every fold has its share of a class.

        A number of folds is lowered to one per two rows. Pairs of row numbers count all rows.
        """
        labels = torch.as_tensor(values, device="cpu") if form.classes else torch.zeros(len(values), device="cpu")
        number = isinstance(self.folds, Integral) and not isinstance(self.folds, bool)
        folds = min(int(self.folds), max(3, len(values) // 2)) if number else self.folds
        if number or folds is None or hasattr(folds, "split"):
            return make_folds(_source(labels), folds, None, refit=True, least=3).folds
        found = make_folds(_source(torch.zeros(data.rows, device="cpu")), folds, None, refit=True, least=3)
        return found.within(torch.as_tensor(data.kept, device="cpu")).folds

    def _location(self, data: TrainingRows) -> tuple[Array, Array]:
        """Return the mean and the deviation of every column, 0 and 1 without `standardize`."""
        columns = data.X.shape[1]
        if not self.standardize:
            return np.zeros(columns), np.ones(columns)
        return _mean_and_deviation("X", data.X, data.weights)

    def _inputs(self, X: Array, module: nn.Module) -> Tensor:
        """Return rows as the module takes them.

        Raises:
            DataError: a number is too large.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = torch.as_tensor((X - self.mean_) / self.scale_, device="cpu").to(first_parameter(module))
        if not bool(found.isfinite().all()):
            raise DataError(f"`X` has numbers that are too large, up to {np.abs(X).max():.3g}")
        return found.detach()

    def _outputs(self, X: ArrayLike) -> Array:
        """Return what the module says about rows."""
        check_is_fitted(self)
        rows = self._inputs(validate_data(self, X, dtype=np.float64, reset=False), self.module_)
        with torch.no_grad():
            found = [self.module_(part).double().cpu() for part in torch.split(rows, ROWS_AT_ONCE)]
        outputs: Array = torch.cat(found).numpy()
        return outputs


class TunedClassifier(ClassifierMixin, _TunedEstimator):  # type: ignore[misc]
    """A classifier trained by `pt.tune`: steps, decay and hyperparameters are chosen by folds.

    Args:
        module: None for a linear model that starts at zero; a module, which is copied and starts at its present
            parameters; or a function `factory(inputs, outputs)` that returns one. It returns a score per class.
        folds: the number of folds, at least 3; a scikit-learn splitter; or pairs of row numbers `(train, valid)`. With
            few rows there are fewer folds, of at least two rows.
        metric: the name of a scikit-learn scorer, or a function `metric(scores, class_numbers)` of tensors; None is the
            accuracy. The comparison of `result_.table` is in this metric.
        standardize: subtract the mean of every column of the training rows and divide by its deviation.
        loss: a function of scores and class numbers; None is the cross-entropy.
        inner: the dynamics of training, as for `pt.tune`; None chooses SGD and its learning rate.
        inner_steps: the steps between two looks at the held-out rows, as for `pt.tune`.
        batch_size: rows of a mini-batch; None takes all rows at every step.
        engine: executes the steps, as for `Tuner`.
        random_state: the seed of mini-batches and of a factory's parameters. The linear model depends on no seed unless
            there are mini-batches.
        progress: show progress on stderr; None does so on a terminal only.

    Attributes:
        classes_: the labels.
        result_: the `Result` of `pt.tune`, with `table` and `verdict`.
        module_: the trained module, on standardized inputs.
        mean_: the mean of every column, 0 without `standardize`.
        scale_: the deviation of every column, 1 without `standardize`.
        n_features_in_: the number of columns.
        feature_names_in_: the names of the columns of a `DataFrame`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((40, 3))
        >>> y = np.where(X[:, 0] > 0, "high", "low")
        >>> model = TunedClassifier(folds=3, inner_steps=5).fit(X, y)
        >>> model.predict(X[:2]).shape, model.predict_proba(X[:2]).shape
        ((2,), (2, 2))
    """

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the module.

        Args:
            X: the features. Shape (rows, features).
            y: the labels, of any type.
            sample_weight: the weight of every row in training, in choosing and in the metric. A row of weight 0 is
                left out.

        Returns:
            The fitted classifier.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        rows = self._kept_rows(X, column_or_1d(y, warn=True), sample_weight)
        self.classes_, numbers = np.unique(rows.y, return_inverse=True)
        if len(self.classes_) == 1:
            raise DataError(
                f"{type(self).__name__} needs at least two classes in `y`, got 1 class: {self.classes_[0]!r}"
            )
        self._check_rows(rows)
        form = TargetForm(classes=True, weighted=rows.weights is not None)
        self._tune(rows, numbers, form, F.cross_entropy if self.loss is None else self.loss, len(self.classes_))
        return self

    def decision_function(self, X: ArrayLike) -> Array:
        """Return the scores of all classes; with two classes, that of the second minus that of the first."""
        scores = self._outputs(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of every class, in the order of `classes_`. Shape (rows, classes)."""
        scores = self._outputs(X)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        found: Array = powers / powers.sum(1, keepdims=True)
        return found

    def predict(self, X: ArrayLike) -> Array:
        """Return the label with the largest score."""
        numbers = self._outputs(X).argmax(1)
        labels: Array = self.classes_[numbers]
        return labels


class TunedRegressor(RegressorMixin, _TunedEstimator):  # type: ignore[misc]
    """A regressor trained by `pt.tune`: steps, decay and hyperparameters are chosen by folds.

    The target is standardized inside, so a loss is in units of its variance. The metric is in the user's units.

    Args:
        module: None for a linear model that starts at zero; a module, which is copied and starts at its present
            parameters; or a function `factory(inputs, outputs)` that returns one. It returns one number per row.
        folds: as for `TunedClassifier`.
        metric: the name of a scikit-learn scorer, or a function `metric(predictions, targets)` of tensors; None is R².
        standardize: standardize the columns, as for `TunedClassifier`.
        loss: a function of predictions and targets, both standardized; None is the mean squared error.
        inner: as for `TunedClassifier`.
        inner_steps: as for `TunedClassifier`.
        batch_size: as for `TunedClassifier`.
        engine: as for `TunedClassifier`.
        random_state: as for `TunedClassifier`.
        progress: as for `TunedClassifier`.

    Attributes:
        result_: the `Result` of `pt.tune`, with `table` and `verdict`.
        module_: the trained module, from standardized inputs to the standardized target.
        mean_: the mean of every column, 0 without `standardize`.
        scale_: the deviation of every column, 1 without `standardize`.
        target_mean_: the mean of the target.
        target_scale_: the deviation of the target.
        n_features_in_: the number of columns.
        feature_names_in_: the names of the columns of a `DataFrame`.
    """

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Train the module.

        Args:
            X: the features. Shape (rows, features).
            y: the target, numbers.
            sample_weight: the weight of every row, as for `TunedClassifier`.

        Returns:
            The fitted regressor.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        rows = self._kept_rows(X, column_or_1d(y, warn=True).astype(np.float64), sample_weight)
        self._check_rows(rows)
        if np.ptp(rows.y) == 0.0:
            raise DataError(f"`y` is constant ({rows.y[0]:g}); there is nothing to predict")
        mean, scale = _mean_and_deviation("y", rows.y[:, None], rows.weights)
        self.target_mean_, self.target_scale_ = float(mean[0]), float(scale[0])
        form = TargetForm(False, rows.weights is not None, self.target_mean_, self.target_scale_)
        self._tune(rows, rows.y, form, F.mse_loss if self.loss is None else self.loss, None)
        return self

    def predict(self, X: ArrayLike) -> Array:
        """Return the predictions, in the units of the target."""
        found: Array = self._outputs(X).reshape(-1) * self.target_scale_ + self.target_mean_
        return found


def _source(labels: Tensor) -> Source:
    """Return rows of which only the labels are known, to be split."""
    return as_source((labels, labels), role="data", device=labels.device)


def _mean_and_deviation(name: str, columns: Array, weights: Array | None) -> tuple[Array, Array]:
    """Return the weighted mean and deviation of columns. That of a constant column is 1.

    Raises:
        DataError: numbers are so large that a deviation overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(columns, axis=0, weights=weights)
        deviation = np.sqrt(np.average((columns - mean) ** 2, axis=0, weights=weights))
    if not np.isfinite(deviation).all():
        raise DataError(
            f"`{name}` has numbers that are too large to be standardized, up to {np.abs(columns).max():.3g}"
        )
    return mean, np.where(deviation > _CONSTANT * np.abs(columns).max(axis=0), deviation, 1.0)
