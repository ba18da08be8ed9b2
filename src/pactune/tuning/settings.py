"""The settings of a `Tuner`, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pactune.checks import check_count, check_flag, check_seed, check_type, shown
from pactune.dynamics import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient import Estimator
from pactune.objectives import AutoZeta, Objective
from pactune.problem import Problem
from pactune.rounds.inputs import Initial, check_reset

__all__ = ["TunerSettings"]


@dataclass(frozen=True, kw_only=True)
class TunerSettings:
    """The arguments of `Tuner` that say what is computed. `Tuner` documents each of them.

    Attributes:
        risk_estimator: the argument `hypergradient`. It differentiates the risk at θ_T.
        path_estimator: the argument `path_hypergradient`. It differentiates the regularizer.
    """

    problem: Problem
    inner: Dynamics
    inner_steps: int
    outer: torch.optim.Optimizer
    objective: Objective
    risk_estimator: Estimator
    path_estimator: Estimator
    chains: int = 1
    restart: bool = False
    online: bool = False
    seed: int = 0
    initial: Initial | None = None
    path_stride: int = 1
    roll_back: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.problem, Problem):
            raise SettingError(f"`problem` must be a Problem, got {type(self.problem).__name__}")
        for name in ("inner_steps", "chains", "path_stride"):
            check_count(name, getattr(self, name))
        for name in ("restart", "online", "roll_back"):
            check_flag(name, getattr(self, name))
        check_seed("seed", self.seed)
        self._check_objective()
        if self.initial is not None and not callable(self.initial):
            raise SettingError(f"`initial` must be a function of a torch.Generator or None, got {shown(self.initial)}")
        self._check_sharing()
        self._check_online()
        self._check_roll_back()
        self._check_auto()
        self._check_rows()
        if self.initial is None and (self.restart or self.chains > 1):
            check_reset(self.problem)
        self._check_outer()
        self._check_estimators()

    @property
    def chooses_zeta(self) -> bool:
        """True if `fit` chooses ζ by cross-validation."""
        return self.objective.zeta == "auto" or isinstance(self.objective.zeta, AutoZeta)

    @property
    def zeta(self) -> float:
        """ζ as a number. In that of the theory, η is the learning rate of the first step."""
        if self.chooses_zeta:
            raise SettingError('`zeta="auto"` is chosen by `fit`; for a single round pass a number or "theory"')
        if self.objective.zeta == "theory":
            found = self.objective.theory_zeta(self.inner.learning_rate(0), self.beta)
            if found == 0:
                raise SettingError(
                    '`zeta="theory"` takes the learning rate of the first step, which is 0 in the schedule `lr`; pass '
                    "a number, or a schedule that starts above 0"
                )
            return found
        return float(self.objective.zeta)  # type: ignore[arg-type]

    @property
    def beta(self) -> float:
        """β = τ/n, where n is the size of the sample in the bound; 1 if the dynamics has no temperature."""
        tau = self.inner.inverse_temperature_or_none()
        first = self.problem.subproblems[0]
        source = first.valid if self.objective.risk_of == "valid" else first.train
        return 1.0 if tau is None else tau / source.rows

    def _check_objective(self) -> None:
        if self.objective is None:
            raise SettingError(
                "`objective` must be given: PACBayes(zeta) for Eq. 5, ValidationRisk() for the bare validation risk, "
                "HyperDrift(zeta), Flatness(zeta), SameDistribution(zeta) or UnequalSteps(valid_lr, zeta)"
            )
        check_type("objective", self.objective, Objective, "PACBayes(...) or another objective")
        self.objective.check(self.problem)

    def _check_sharing(self) -> None:
        """Check the settings of a problem with folds or tasks."""
        problem = self.problem
        if self.online and (problem.has_folds or problem.has_tasks):
            raise SettingError(
                "`online=True` moves λ inside the inner loop of one problem; folds and tasks share one λ: use "
                "online=False"
            )
        if problem.draws_tasks and not self.restart:
            raise SettingError(
                "every outer step draws other tasks, so each must start from θ_0: pass restart=True, or a list of all "
                "tasks without `tasks_per_step`"
            )

    def _check_online(self) -> None:
        if self.online and not self.objective.has_path:
            raise SettingError(
                f"`online=True` moves λ by the regularizer at every inner step, and {self.objective} has none; "
                "use online=False"
            )

    def _check_roll_back(self) -> None:
        if self.roll_back and (self.restart or self.online):
            other = "restart" if self.restart else "online"
            why = "draws θ_0 anew at every outer step" if self.restart else "moves λ inside the steps"
            raise SettingError(
                f"`roll_back=True` takes the inner steps back and repeats them under the new λ, and {other}=True "
                f"{why}; use {other}=False"
            )

    def _check_auto(self) -> None:
        if not self.chooses_zeta:
            return
        if self.online:
            raise SettingError('`zeta="auto"` is for online=False; pass a number')
        if not self.objective.has_path:
            raise SettingError(f'`zeta="auto"` needs an objective with a regularizer, got {self.objective}')
        if self.problem.has_tasks:
            raise SettingError('`zeta="auto"` holds rows of one sample out, and tasks have several; pass a number')
        if self.problem.train.size == 0 and getattr(self.objective.zeta, "judge", "both") == "both":
            raise SettingError('`zeta="auto"` holds training rows out, and there are none; use AutoZeta(judge="valid")')

    def _check_rows(self) -> None:
        """Check the settings of a problem without training rows."""
        if self.problem.train.size != 0:
            return
        kind = type(self.objective).__name__
        if self.objective.risk_of == "train":
            raise SettingError(f"`objective={kind}` takes the risk of the training rows, and there are none")
        if self.objective.uses_step_size and self.inner.inverse_temperature_or_none() is None:
            raise SettingError(
                f"`objective={kind}` takes the number of training rows as the inverse temperature of "
                f"{type(self.inner).__name__}, and there are none; use Langevin as `inner`"
            )

    def _check_outer(self) -> None:
        if not isinstance(self.outer, torch.optim.Optimizer):
            raise SettingError(f"`outer` must be a torch.optim optimizer, got {type(self.outer).__name__}")
        if isinstance(self.outer, torch.optim.LBFGS):
            raise SettingError("`outer` cannot be LBFGS: its step evaluates the objective itself; use SGD or Adam")
        held = {id(p) for group in self.outer.param_groups for p in group["params"]}
        named = dict(self.problem.hyper.named_parameters())
        missing = [name for name in self.problem.hyperparameters() if id(named[name]) not in held]
        if missing:
            raise SettingError(f"`outer` must hold hyper.parameters(); it lacks {', '.join(missing)}")

    def _check_estimators(self) -> None:
        count = sum(value.numel() for value in self.problem.hyperparameters().values())
        roles = {"hypergradient": self.risk_estimator, "path_hypergradient": self.path_estimator}
        for role, estimator in roles.items():
            if not isinstance(estimator, Estimator):
                raise SettingError(f"`{role}` must be an estimator such as Truncated(1), got {shown(estimator)}")
            estimator.check(role=role, inner_steps=self.inner_steps, dynamics=self.inner, count=count)
        self._check_memory()
        if self.objective.has_path and not self.path_estimator.for_path:
            raise SettingError(
                f"`path_hypergradient={self.path_estimator}` cannot differentiate the regularizer; "
                "use Truncated, Windowed or ForwardMode"
            )
        if self.online and self.objective.has_path and not self.path_estimator.online:
            raise SettingError(
                f"`path_hypergradient={self.path_estimator}` is not known at every step, which online=True needs; "
                "use Truncated or ForwardMode"
            )
        if self.problem.has_prox and not self.inner.applies_prox:
            raise SettingError(f"a penalty with a `prox` needs SGD or Adam as `inner`, got {type(self.inner).__name__}")
        if self.problem.has_prox and not self.risk_estimator.takes_prox:
            raise SettingError(
                f"`hypergradient={self.risk_estimator}` needs a smooth training risk, and a penalty has a `prox`; "
                "use Truncated, Windowed, ForwardMode or Implicit"
            )
        if not self.inner.differentiable and self.problem.has_learning_rates:
            raise SettingError("learning rates as hyperparameters need SGD, Adam or Langevin as `inner`")

    def _check_memory(self) -> None:
        """Check the estimators that keep tensors from round to round, or read fresh mini-batches."""
        for estimator in (self.risk_estimator, self.path_estimator):
            if estimator.remembers and self.problem.draws_tasks:
                raise SettingError(
                    f"`hypergradient={estimator}` goes on from its solution of the last outer step, and every outer "
                    "step draws other tasks; use Implicit without `warm_start`, or a list of all tasks"
                )
            if estimator.fresh_batches and not all(part.train.replayable for part in self.problem.subproblems):
                raise SettingError(
                    f"`hypergradient={estimator}` draws fresh mini-batches, and a DataLoader with a sampler of its own "
                    'is read in its own order; pass its dataset with `batch_size=`, or use batches="all" or None'
                )
