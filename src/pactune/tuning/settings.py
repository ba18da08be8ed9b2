"""The rules that the settings of a `Tuner` keep, checked before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pactune.checks import check_count, check_flag, check_seed, check_type, shown
from pactune.errors import SettingError
from pactune.hypergradient import Estimator
from pactune.objectives import Objective
from pactune.problem import Problem

if TYPE_CHECKING:
    from pactune.tuning.tuner import Tuner

__all__ = ["check_settings"]


def check_settings(tuner: Tuner) -> None:
    """Raise a `SettingError` for the first setting that breaks its rule."""
    if not isinstance(tuner.problem, Problem):
        raise SettingError(f"`problem` must be a Problem, got {type(tuner.problem).__name__}")
    for name in ("inner_steps", "chains", "path_stride"):
        check_count(name, getattr(tuner, name))
    for name in ("restart", "online"):
        check_flag(name, getattr(tuner, name))
    check_seed("seed", tuner.seed)
    check_type("objective", tuner.objective, Objective, "PACBayes(...) or another objective")
    if tuner.initial is not None and not callable(tuner.initial):
        raise SettingError(f"`initial` must be a function of a torch.Generator or None, got {shown(tuner.initial)}")
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
            raise SettingError(f"`{role}` must be an estimator such as Truncated(1), got {shown(estimator)}")
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
