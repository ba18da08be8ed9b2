"""Forward selection as a scikit-learn estimator."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, _fit_context
from sklearn.feature_selection import SelectorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from pactune.errors import DataError, SettingError
from pactune.selection.calibration import calibrated_beta, theory_zeta
from pactune.selection.criteria import Criterion
from pactune.selection.forward import Step, best_size, forward_path
from pactune.selection.least_squares import Akaike, ExtendedBayes, ValidationScore
from pactune.selection.moments import LangevinPath
from pactune.selection.pac_bayes import PathScore
from pactune.selection.rows import Rows, standardize
from pactune.selection.step_size import UnstableStepError, finer_path
from pactune.selection.targets import target_columns

__all__ = ["ForwardSelector"]

# Steps without a new minimum after which a path of no given length ends.
_PATIENCE = 10


class ForwardSelector(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """Stepwise forward selection on a linear model that stops when the out-of-sample risk stops falling.

    Columns and target are centred and scaled. Starting from no feature, each step adds the one that makes the criterion
    smallest:

    - `"ebic"`: extended BIC of the least-squares fit to all rows. Over ten tables it loses the least score
      (docs/guides/feature-selection.md), and it needs no split, so `random_state` changes nothing;
    - `"pac-bayes"`: E[R_V(θ_T)] + ζ √(Σ_t E‖Δ_t‖²) (Eq. 5) under Langevin dynamics with inverse temperature τ = βn_T;
    - `"validation"`: R_V at the training optimum (Eq. 1), which overfits the validation part when features are many;
    - `"aic"`: 2p + n_V · R_V at the training optimum (the paper's baseline).

    The last three split the rows at random into a training and a validation part and scale by the training part. Their
    choice depends on that split.

    Args:
        criterion: the criterion to minimise, one of the four above.
        n_features_to_select: a number, or `"auto"` to stop at the minimum of the criterion along the path.
        max_features: the length of the path for `"auto"`. With None the path ends ten steps after its minimum.
        min_features: the fewest features that `"auto"` may select. With the default 0 it selects nothing if no feature
            predicts the target; use 1 in front of an estimator that needs at least one feature.
        beta: inverse temperature per training row, or `"auto"` to choose it from the rows (`calibrated_beta`).
        zeta: weight of the regularizer, or `"theory"` for √(βη/4); 0 minimises the expected validation risk only.
        learning_rate: η of the dynamics. If columns are so correlated that ηλ_max ≥ 2, η is reduced, `steps` is raised
            to keep ηT, and a `StepSizeWarning` is issued.
        steps: T of the dynamics.
        method: `"exact"` for the closed-form expectations, `"monte-carlo"` for the mean over chains.
        chains: number of Monte-Carlo chains.
        validation_fraction: share of the rows that is split off for validation if `fit` gets no validation rows.
        task: `"auto"` treats numbers as regression and anything else as classes; `"classification"` treats integers as
            classes. Two classes become one ±1 column, more become one column per class; they are fitted by least
            squares.
        random_state: the seed of the split, the shuffles of `beta="auto"` and the chains; `"ebic"` uses none of them.

    Attributes:
        support_: mask of the selected features, shape `(n_features_in_,)`.
        order_: selected features as column indices, in the order of selection.
        path_: DataFrame with a row per step: step, feature, objective, risk, regularizer, validation_r2. Step 0 is the
            empty model; the path continues after the selected size. Risks are in units of the training target's
            variance. `validation_r2` is that of the least-squares fit to the training rows, for every criterion. The
            validation rows took part in the choice, so it is no estimate for new rows.
        n_features_: number of selected features.
        n_features_in_, feature_names_in_: as in all scikit-learn estimators.
        beta_, zeta_, learning_rate_, steps_: the values that `"pac-bayes"` used.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.standard_normal((200, 50))
        >>> y = X[:, 3] - X[:, 7] + rng.standard_normal(200)
        >>> selector = ForwardSelector().fit(X, y)
        >>> sorted(selector.order_.tolist()), selector.transform(X).shape
        ([3, 7], (200, 2))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "criterion": [StrOptions({"pac-bayes", "validation", "aic", "ebic"})],
        "n_features_to_select": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "max_features": [None, Interval(Integral, 1, None, closed="left")],
        "min_features": [Interval(Integral, 0, None, closed="left")],
        "beta": [StrOptions({"auto"}), Interval(Real, 0, None, closed="right")],
        "zeta": [StrOptions({"theory"}), Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "steps": [Interval(Integral, 1, None, closed="left")],
        "method": [StrOptions({"exact", "monte-carlo"})],
        "chains": [Interval(Integral, 1, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "task": [StrOptions({"auto", "regression", "classification"})],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        *,
        criterion: str = "ebic",
        n_features_to_select: int | str = "auto",
        max_features: int | None = None,
        min_features: int = 0,
        beta: float | str = 0.1,
        zeta: float | str = "theory",
        learning_rate: float = 0.1,
        steps: int = 50,
        method: str = "exact",
        chains: int = 50,
        validation_fraction: float = 0.5,
        task: str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.criterion = criterion
        self.n_features_to_select = n_features_to_select
        self.max_features = max_features
        self.min_features = min_features
        self.beta = beta
        self.zeta = zeta
        self.learning_rate = learning_rate
        self.steps = steps
        self.method = method
        self.chains = chains
        self.validation_fraction = validation_fraction
        self.task = task
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=True)  # type: ignore[untyped-decorator]
    def fit(
        self, X: ArrayLike, y: ArrayLike, X_valid: ArrayLike | None = None, y_valid: ArrayLike | None = None
    ) -> Self:
        """Select features.

        Args:
            X: features of all rows, or of the training rows if validation rows are given.
            y: target, shape `(n,)`.
            X_valid: features of the validation rows; None splits them off `X`.
            y_valid: target of the validation rows.

        Returns:
            The fitted selector.
        """
        # EBIC needs no split. A fixed one keeps the order of the rows, and with it every rounding error, the same.
        random = check_random_state(0 if self.criterion == "ebic" else self.random_state)
        rows = self._rows(X, y, X_valid, y_valid, random)
        longest = self._longest_path()
        path = self._forward_path(rows, longest, random.randint(2**31 - 1))
        self.n_features_ = self._selected_size(path)
        self.order_ = np.array([step.feature for step in path[1 : self.n_features_ + 1]], dtype=np.intp)
        self.support_ = np.isin(np.arange(self.n_features_in_), self.order_)
        self.path_ = self._path_table(path)
        return self

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        mask: NDArray[np.bool_] = self.support_
        return mask

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _rows(self, X: Any, y: Any, X_valid: Any, y_valid: Any, random: np.random.RandomState) -> Rows:
        """Validate the input, split it if needed, and standardise it by the training part."""
        if (X_valid is None) != (y_valid is None):
            raise SettingError("`X_valid` and `y_valid` must be given together, got only one of them")
        X, y = validate_data(self, X, y, dtype=np.float64)
        if X_valid is None:
            targets, classes = target_columns(y, task=self.task)
            first, second = self._split(len(X), classes, random)
            return standardize(X[first], targets[first], X[second], targets[second])
        X_valid, y_valid = validate_data(self, X_valid, y_valid, dtype=np.float64, reset=False)
        targets, _ = target_columns(np.concatenate([y, y_valid]), task=self.task)
        return standardize(X, targets[: len(X)], X_valid, targets[len(X) :])

    def _split(
        self, rows: int, classes: NDArray[np.intp] | None, random: np.random.RandomState
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Split row indices at random; stratify by class if every class has rows for both parts."""
        n_valid = round(self.validation_fraction * rows)
        if n_valid < 1 or rows - n_valid < 2:
            raise DataError(
                f"`X` must have at least 2 training rows and 1 validation row, got n_samples = {rows} with "
                f"validation_fraction={self.validation_fraction:g}"
            )
        strata = None
        if classes is not None:
            counts = np.bincount(classes)
            strata = classes if counts.min() >= 2 and min(n_valid, rows - n_valid) >= len(counts) else None
        first, second = train_test_split(np.arange(rows), test_size=n_valid, random_state=random, stratify=strata)
        return first, second

    def _longest_path(self) -> int:
        if self.n_features_to_select == "auto":
            longest = self.n_features_in_ if self.max_features is None else max(self.max_features, self.min_features)
            return min(longest, int(self.n_features_in_))
        if int(self.n_features_to_select) > self.n_features_in_:
            raise SettingError(
                f"`n_features_to_select` must be at most the number of features {self.n_features_in_}, "
                f"got {self.n_features_to_select}"
            )
        return int(self.n_features_to_select)

    def _patience(self) -> int | None:
        """Return the number of steps without a new minimum that ends the path, or None for a path of given length."""
        if self.max_features is None and self.n_features_to_select == "auto":
            return max(_PATIENCE, self.min_features)
        return None

    def _forward_path(self, rows: Rows, longest: int, seed: int) -> list[Step]:
        """Return the forward path; use smaller steps if the chosen dynamics is unstable."""
        dynamics = LangevinPath(learning_rate=self.learning_rate, steps=self.steps)

        def path() -> list[Step]:
            criterion = self._build_criterion(rows, dynamics, longest, seed)
            return forward_path(rows, criterion, max_features=longest, patience=self._patience())

        try:
            return path()
        except UnstableStepError as error:
            dynamics = finer_path(dynamics, error.largest, longest)
        return path()

    def _build_criterion(self, rows: Rows, dynamics: LangevinPath, longest: int, seed: int) -> Criterion:
        simple: dict[str, Criterion] = {"validation": ValidationScore(), "aic": Akaike(), "ebic": ExtendedBayes()}
        if self.criterion in simple:
            return simple[self.criterion]
        generator = np.random.default_rng(seed)
        self.beta_ = self._chosen_beta(rows, dynamics, longest, generator)
        self.learning_rate_, self.steps_ = dynamics.learning_rate, dynamics.steps
        self.zeta_ = theory_zeta(self.beta_, dynamics.learning_rate) if self.zeta == "theory" else float(self.zeta)
        if not math.isfinite(self.zeta_):
            raise SettingError(f"`zeta` must be a finite number when beta is {self.beta_}, got {self.zeta!r}")
        heated = replace(dynamics, inverse_temperature=self.beta_ * len(rows.train))
        chains = self.chains if self.method == "monte-carlo" else 0
        return PathScore(zeta=self.zeta_, path=heated, chains=chains, seed=int(generator.integers(2**31)))

    def _chosen_beta(self, rows: Rows, path: LangevinPath, longest: int, generator: np.random.Generator) -> float:
        if self.beta == "auto":
            return calibrated_beta(rows, path, generator, max_features=longest, patience=self._patience())
        return float(self.beta)

    def _selected_size(self, path: list[Step]) -> int:
        if self.n_features_to_select == "auto":
            return best_size(path, min_features=self.min_features)
        if len(path) - 1 < int(self.n_features_to_select):
            raise DataError(
                f"`n_features_to_select` must be at most {len(path) - 1} here, got {self.n_features_to_select}: the "
                "other columns are constant on the training rows or linear combinations of those already chosen, or "
                "there are too few rows"
            )
        return len(path) - 1

    def _path_table(self, path: list[Step]) -> pd.DataFrame:
        table = pd.DataFrame([step._asdict() for step in path])
        names = getattr(self, "feature_names_in_", range(self.n_features_in_))
        features = [None if step.feature is None else names[step.feature] for step in path]
        table["feature"] = pd.Series(features, dtype=object)
        table.insert(0, "step", np.arange(len(path)))
        return table
