"""`Tuner.suggest`: one round that is thrown away, and what its gradients say about ζ and the outer learning rate."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.columns import Row
from pactune.engines import Eager
from pactune.errors import SettingError
from pactune.parallel import Ranks
from pactune.stacking.lockstep import RequestGenerator, run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.trees import Params
from pactune.tuning.outer_run import FinishedRound, OuterRun
from pactune.tuning.plain_run import evaluations
from pactune.tuning.settings import TunerSettings

__all__ = ["HyperScale", "Suggestion", "suggest"]

SHARE = 0.1  # of the scale of λ, which the suggested learning rate moves in the first outer step
STILL, FAR = 0.01, 0.5  # shares of the risk: a round that moves it less, or more, gets a remark


@dataclass(frozen=True)
class HyperScale:
    """The scales of some hyperparameters: those of one name in one parameter group of the outer optimizer.

    Attributes:
        name: the first part of their names.
        count: how many numbers they are.
        scale: the size of a change of λ that matters: the root mean square of λ, 1 if λ is 0. For a penalty it is at
            least the λ that changes θ by its own size over the run.
        risk_norm: the norm of the gradient of the risk.
        risk_median: the median of |gradient of the risk| where it is not 0.
        path_norm: the norm of the gradient of the regularizer, without ζ.
        path_median: the median of its size where it is not 0.
        balance: ζ at which both gradients are equally long; None if one of them is 0.
        lr: the present learning rate of the group.
        move: the first outer step of λ at this rate, as a root mean square, in units of `scale`.
        suggested_lr: the learning rate whose first step is a tenth of `scale`; None if λ does not move.
    """

    name: str
    count: int
    scale: float
    risk_norm: float
    risk_median: float
    path_norm: float
    path_median: float
    balance: float | None
    lr: float | None
    move: float
    suggested_lr: float | None

    def __str__(self) -> str:
        numbers = f"{self.name} ({self.count} numbers of scale {self.scale:.2g})"
        risk = f"gradient of the risk: norm {self.risk_norm:.2g}, median {self.risk_median:.2g}"
        path = f"of the regularizer: norm {self.path_norm:.2g}, median {self.path_median:.2g}"
        balance = "" if self.balance is None else f"; equally long at ζ = {self.balance:.2g}"
        if self.suggested_lr is None:
            step = "the first outer step does not move them"
        else:
            step = (
                f"the first outer step at lr={self.lr:.2g} moves them by {self.move:.0%} of their scale; "
                f"lr={self.suggested_lr:.2g} would by {SHARE:.0%}"
            )
        return f"{numbers}\n    {risk}; {path}{balance}\n    {step}"


@dataclass(frozen=True)
class Suggestion:
    """What one round says about ζ, the outer learning rates and the number of inner steps. Rules of thumb.

    Attributes:
        scales: an entry for every kind of hyperparameter.
        zeta: the present ζ; None if `fit` is to choose it.
        balance: ζ at which both gradients of J are equally long; None if one of them is 0. The best ζ is often far
            below it.
        inner_steps: T.
        risk_before: the training risk at the start of the round, or the validation risk without training rows.
        risk_after: the same at its end.
        advice: a sentence about `inner_steps`.
    """

    scales: tuple[HyperScale, ...]
    zeta: float | None
    balance: float | None
    inner_steps: int
    risk_before: float
    risk_after: float
    advice: str

    def __str__(self) -> str:
        now = "" if self.zeta is None else f" (now {self.zeta:.2g})"
        equal = "one of them is 0" if self.balance is None else f"they are equally long at ζ = {self.balance:.2g}{now}"
        return "\n".join(
            [
                f"both gradients of J: {equal}",
                *map(str, self.scales),
                f"inner_steps={self.inner_steps}: the risk goes from {self.risk_before:.3g} to {self.risk_after:.3g} "
                f"in a round; {self.advice}",
            ]
        )


class _TriedRound(NamedTuple):
    before: Row
    found: FinishedRound
    after: Row


def suggest(settings: TunerSettings, ranks: Ranks, *, outer_steps: int) -> Suggestion:
    """Run one round from the present θ and λ on a run of its own, and compare the gradients.

    Raises:
        SettingError: the tuner runs on several processes.
        GradientError: the gradient of a hyperparameter is identically zero.
        DivergenceError: the round diverges.
    """
    if ranks.count > 1:
        raise SettingError("`suggest` runs in one process; make the tuner without `parallel`")
    run = OuterRun(replace(settings, online=False), ranks, Runner(Eager()))
    with run.problem.training_mode():
        run.check(1.0)
        tried = run_in_lockstep([_try_round(run)], run.runner)[0]
    zeta = None if settings.chooses_zeta else settings.zeta
    outcome = tried.found.outcome
    gradients = outcome.risk_gradient, outcome.path_gradient or {}
    column = "train_risk" if "train_risk" in tried.after else "valid_risk"
    before, after = tried.before[column], tried.after[column]
    return Suggestion(
        scales=_hyper_scales(run, gradients, outcome.gradient(zeta or 0.0), outer_steps),
        zeta=zeta,
        balance=_ratio(*(_norm(gradient.values()) for gradient in gradients)),
        inner_steps=settings.inner_steps,
        risk_before=before,
        risk_after=after,
        advice=_advice(before, after, restart=settings.restart),
    )


def _try_round(run: OuterRun) -> RequestGenerator[_TriedRound]:
    """Request a round, and the risks before and after it."""
    hyper = run.problem.hyperparameters()
    before = yield from evaluations(run.chains, hyper, None)
    found = yield from run.round(run.plan(1.0))
    _ = found.objective  # raises if the round diverged
    after = yield from evaluations(found.chains, hyper, None)
    return _TriedRound(before, found, after)


class _KindTensors(NamedTuple):
    """The tensors of the hyperparameters of one kind."""

    hyper: list[Tensor]
    risk: list[Tensor]
    path: list[Tensor]
    move: list[Tensor]


def _hyper_scales(
    run: OuterRun, gradients: tuple[Params, Params], whole: Params, outer_steps: int
) -> tuple[HyperScale, ...]:
    """Return the scales of every kind: hyperparameters of one first name in one group of the optimizer."""
    groups = run.settings.outer.param_groups
    group_of = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
    kinds: dict[tuple[str, int], list[str]] = {}
    for name, leaf in run.problem.hyper_leaves().items():
        kinds.setdefault((name.partition(".")[0], group_of[id(leaf)]), []).append(name)
    trees = run.problem.hyperparameters(), *gradients, _first_step(run, whole)
    natural, found = _natural_scales(run, outer_steps), list[HyperScale]()
    for (kind, index), names in kinds.items():
        tensors = _KindTensors(*([tree[name] for name in names if name in tree] for tree in trees))
        known = [natural[name] for name in names if name in natural]
        found.append(_scale_of(kind, tensors, known, groups[index].get("lr")))
    return tuple(found)


def _scale_of(kind: str, parts: _KindTensors, natural: list[float], lr: float | Tensor | None) -> HyperScale:
    size, risk, path = _rms(parts.hyper), _norm(parts.risk), _norm(parts.path)
    scale = max(size, *natural) if natural else size or 1.0
    move = _rms(parts.move, moving=True) / scale
    return HyperScale(
        name=kind,
        count=sum(value.numel() for value in parts.hyper),
        scale=scale,
        risk_norm=float(risk),
        risk_median=_median(parts.risk),
        path_norm=float(path),
        path_median=_median(parts.path),
        balance=_ratio(risk, path),
        lr=None if lr is None else float(lr),
        move=move,
        suggested_lr=float(lr) * SHARE / move if lr is not None and move > 0 else None,
    )


def _first_step(run: OuterRun, gradient: Params) -> Params:
    """Return the step that a copy of the outer optimizer takes; nothing if it cannot step by a gradient alone."""
    hyper, outer = copy.deepcopy((run.problem.hyper, run.settings.outer))
    copies = dict(hyper.named_parameters())
    start = {name: copies[name].detach().clone() for name in gradient}
    for name, value in gradient.items():
        copies[name].grad = value.detach().clone()
    try:
        outer.step()
    except TypeError:  # an optimizer of the user's own that needs a closure
        return {}
    return {name: copies[name].detach() - start[name] for name in gradient}


def _natural_scales(run: OuterRun, outer_steps: int) -> dict[str, float]:
    """Return, for every λ of a penalty, the change that alters θ by its own size over the steps of the run.

    A penalty moves θ by η ∂p/∂θ in each of N steps. A decay of 1/(ηN) shrinks θ by a factor e, and −1/(ηN) blows it up
    as much.
    """
    problem, settings = run.problem, run.settings
    if not problem.has_penalty:
        return {}
    steps = settings.inner_steps * (1 if settings.restart else outer_steps)
    params, hyper = problem.parameters(), problem.hyperparameters()
    before, found = problem.penalty_gradient(params, hyper), dict[str, float]()
    for name, value in hyper.items():
        shifted = problem.penalty_gradient(params, {**hyper, name: value + 1})
        changed = [key for key in shifted if not torch.equal(shifted[key], before[key])]
        if changed:
            share = _norm([params[key] for key in changed]) / _norm([shifted[key] - before[key] for key in changed])
            found[name] = float(share) / (settings.inner.learning_rate(0) * steps)
    return {name: value for name, value in found.items() if 0 < value < math.inf}


def _advice(before: float, after: float, *, restart: bool) -> str:
    change = (after - before) / abs(before) if before else 0.0
    if change > STILL:
        return "it rises, so lower the inner learning rate"
    if abs(change) <= STILL:
        return "it hardly moves, so λ sees little of its effect: take more inner steps or a higher inner learning rate"
    if not restart and change < -FAR:
        return "it falls fast, and λ waits for the end of the round: fewer inner steps let λ follow"
    return "that is a fair distance"


def _norm(values: Iterable[Tensor]) -> Tensor:
    return _numbers(values).square().sum().sqrt()


def _rms(values: Iterable[Tensor], *, moving: bool = False) -> float:
    """Return the root mean square of all numbers; with `moving`, of those that are not 0."""
    flat = _numbers(values)
    flat = flat[flat != 0] if moving else flat
    return float(flat.square().mean().sqrt()) if len(flat) else 0.0


def _median(values: Iterable[Tensor]) -> float:
    """Return the median of the sizes of the numbers that are not 0."""
    flat = _numbers(values)
    flat = flat[flat != 0].abs()
    return float(flat.median()) if len(flat) else 0.0


def _numbers(values: Iterable[Tensor]) -> Tensor:
    """Return all numbers of some tensors in one vector."""
    empty = torch.zeros(0, dtype=torch.float64, device="cpu")
    return torch.cat([empty, *(value.detach().double().flatten().cpu() for value in values)])


def _ratio(risk: Tensor, path: Tensor) -> float | None:
    return float(risk) / float(path) if float(risk) > 0 and float(path) > 0 else None
