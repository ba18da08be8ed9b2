"""Optuna: Eq. 5 as a study's objective, with pruning, and as a score of finished trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pactune.errors import DivergenceError, SettingError
from pactune.extras import require
from pactune.integrations.reading import RiskReading, Score, Zeta, as_reading
from pactune.monitor.checks import as_zeta

__all__ = ["CoherenceObjective", "best_trial", "report", "score"]

ATTRIBUTE = "coherence"  # a trial's user attribute: the parts of Eq. 5 at every report


def report(trial: Any, reading: RiskReading, *, zeta: Zeta, step: int) -> Score:
    """Report Eq. 5 of a running trial, store its parts in the trial's user attributes, and prune if Optuna says so.

    Args:
        trial: an `optuna.Trial`.
        reading: monitor, validation risk and, for "theory", the learning rate.
        zeta: a number ≥ 0, or "theory".
        step: the epoch, or another number by which the pruner compares trials.

    Raises:
        optuna.TrialPruned: the pruner ends the trial, or training diverged.
    """
    optuna = require("optuna")
    try:
        found = reading.score(zeta)
    except DivergenceError as error:
        raise optuna.TrialPruned(str(error)) from error
    rows = [*trial.user_attrs.get(ATTRIBUTE, []), {"step": step, "lr": reading.lr, **found._asdict()}]
    trial.set_user_attr(ATTRIBUTE, rows)
    trial.report(found.objective, step)
    if trial.should_prune():
        raise optuna.TrialPruned(f"objective {found.objective:.4g} at step {step}")
    return found


@dataclass(frozen=True)
class CoherenceObjective:
    """Turns a training function into the objective of a study that minimises Eq. 5.

    `train(trial)` is a generator: it suggests hyperparameters, trains, and yields `(monitor, valid_risk)` or
    `(monitor, valid_risk, lr)` whenever the model was validated. Each yield is reported; the pruner may end the trial
    there. A run that diverges is pruned.

    Args:
        train: the training function.
        zeta: a number ≥ 0, or "theory" for √(lr/4), for which the function yields the learning rate too.
        keep: "last" returns Eq. 5 of the finished run; "best" the least along the run, where you keep that epoch's
            model. Its number is `score(trial)`'s `step`.

    Raises:
        SettingError: a setting breaks its rule.

    Example:
        >>> def train(trial):
        ...     lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
        ...     model, monitor = build(lr)
        ...     for epoch in range(10):
        ...         valid_risk = train_one_epoch(model, monitor)  # calls monitor.step(None, valid_batch)
        ...         yield monitor, valid_risk, lr
        >>> objective = CoherenceObjective(train, zeta="theory")
        >>> optuna.create_study().optimize(objective, n_trials=50)  # doctest: +SKIP
    """

    train: Callable[[Any], Iterable[Any]]
    zeta: Zeta
    keep: Literal["last", "best"] = "last"

    def __post_init__(self) -> None:
        if not callable(self.train):
            raise SettingError(f"`train` must be a generator function of a trial, got {type(self.train).__name__}")
        if self.keep not in ("last", "best"):
            raise SettingError(f'`keep` must be "last" or "best", got {self.keep!r}')
        as_zeta(self.zeta, 1.0, 1.0)

    def __call__(self, trial: Any) -> float:
        """Run one trial and return the value that the study minimises."""
        values: list[float] = []
        for step, given in enumerate(self.train(trial)):
            values.append(report(trial, as_reading(given), zeta=self.zeta, step=step).objective)
        if not values:
            raise SettingError("`train` yielded nothing: it must yield (monitor, valid_risk) after each validation")
        return values[-1] if self.keep == "last" else min(values)


def score(trial: Any, *, zeta: Zeta, keep: Literal["last", "best"] = "last") -> dict[str, float]:
    """Return Eq. 5 of a finished trial at any ζ, from the parts that `report` stored. No training is repeated.

    Args:
        trial: an `optuna.trial.FrozenTrial`.
        zeta: a number ≥ 0, or "theory", for which the learning rate must have been reported.
        keep: the last report of the trial, or the one of the least Eq. 5.

    Returns:
        `objective`, `valid_risk`, `regularizer`, `zeta` and the `step`.

    Raises:
        SettingError: the trial has no parts of Eq. 5.
    """
    rows: Sequence[dict[str, Any]] = trial.user_attrs.get(ATTRIBUTE, [])
    if not rows:
        raise SettingError(f"trial {trial.number} has no notes of Eq. 5: run it with CoherenceObjective or `report`")
    found = [_rescored(row, zeta) for row in (rows[-1:] if keep == "last" else rows)]
    return min(found, key=lambda row: row["objective"])


def best_trial(study: Any, *, zeta: Zeta, keep: Literal["last", "best"] = "last") -> Any:
    """Return the completed trial with the least Eq. 5 at ζ. The study may have minimised another value.

    Raises:
        SettingError: no trial was completed.
    """
    done = [trial for trial in study.trials if trial.state.name == "COMPLETE"]
    if not done:
        raise SettingError("the study has no completed trial to choose from")
    return min(done, key=lambda trial: score(trial, zeta=zeta, keep=keep)["objective"])


def _rescored(row: dict[str, Any], zeta: Zeta) -> dict[str, float]:
    factor = as_zeta(zeta, row["lr"], 1.0)
    total = row["valid_risk"] + factor * row["regularizer"]
    parts = {"valid_risk": row["valid_risk"], "regularizer": row["regularizer"]}
    return {"objective": total, **parts, "zeta": factor, "step": row["step"]}
