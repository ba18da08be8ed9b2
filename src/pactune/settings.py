"""The rules that the settings of a `Tuner` keep, checked before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pactune.errors import SettingError
from pactune.hypergradient import Estimator
from pactune.objectives import Objective
from pactune.problem import Problem

if TYPE_CHECKING:
    from pactune.tuner import Tuner

__all__ = ["check_settings"]


def check_settings(tuner: Tuner) -> None:
    """Raise a `SettingError` for the first setting that breaks its rule."""
    if not isinstance(tuner.problem, Problem):
        raise SettingError(f"`problem` must be a Problem, got {type(tuner.problem).__name__}")
    for name in ("inner_steps", "chains", "path_stride"):
        value = getattr(tuner, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(f"`{name}` must be a whole number ≥ 1, got {value!r}")
    if isinstance(tuner.seed, bool) or not isinstance(tuner.seed, int):
        raise SettingError(f"`seed` must be a whole number, got {tuner.seed!r}")
    if not isinstance(tuner.objective, Objective):
        raise SettingError(f"`objective` must be PACBayes(...) or another objective, got {tuner.objective!r}")
    tuner.objective.check(tuner.problem)
    _check_outer(tuner)
    _check_estimators(tuner)


def _check_outer(tuner: Tuner) -> None:
    if not isinstance(tuner.outer, torch.optim.Optimizer):
        raise SettingError(f"`outer` must be a torch.optim optimizer, got {type(tuner.outer).__name__}")
    held = {id(p) for group in tuner.outer.param_groups for p in group["params"]}
    named = dict(tuner.problem.hyper.named_parameters())
    missing = [name for name in tuner.problem.hyperparameters() if id(named[name]) not in held]
    if missing:
        raise SettingError(f"`outer` must hold hyper.parameters(); it lacks {', '.join(missing)}")


def _check_estimators(tuner: Tuner) -> None:
    count = sum(value.numel() for value in tuner.problem.hyperparameters().values())
    roles = {"hypergradient": tuner.risk_estimator, "path_hypergradient": tuner.path_estimator}
    for role, estimator in roles.items():
        if not isinstance(estimator, Estimator):
            raise SettingError(f"`{role}` must be an estimator such as Truncated(1), got {estimator!r}")
        estimator.check(role=role, inner_steps=tuner.inner_steps, dynamics=tuner.inner, count=count)
    if tuner.objective.has_path and not tuner.path_estimator.for_path:
        raise SettingError(
            f"`path_hypergradient={tuner.path_estimator}` cannot differentiate the regularizer; "
            "use Truncated, Windowed or ForwardMode"
        )
    if tuner.online and tuner.objective.has_path and not tuner.path_estimator.online:
        raise SettingError(
            f"`path_hypergradient={tuner.path_estimator}` is not known at every step, which online=True needs; "
            "use Truncated or ForwardMode"
        )
    if not tuner.inner.differentiable and tuner.problem.has_learning_rates:
        raise SettingError("learning rates as hyperparameters need SGD, Adam or Langevin as `inner`")
