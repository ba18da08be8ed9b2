"""Find where each hyperparameter enters the problem, and check that the estimators have a gradient for it there."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pactune.errors import GradientError, SettingError, warn_user
from pactune.hypergradient.base import Estimator
from pactune.hypergradient.explain import explaining, is_cut, second_order_message
from pactune.hypergradient.implicit import Implicit
from pactune.objectives.base import Objective
from pactune.problem import Problem
from pactune.streams import forked_rng
from pactune.trees import Params, clone, leaves

__all__ = ["Entry", "GradientSettings", "check_entries", "entries"]

SMOOTH = "use a smooth loss (softplus for relu), or let it enter `valid_loss`"
Entry = Literal["training loss", "validation loss", "penalty", "learning rate", "initial parameters"]


class GradientSettings(NamedTuple):
    """The settings that decide if a derivative is identically zero.

    Attributes:
        objective: the objective.
        risk_estimator: the estimator of the risk at θ_T.
        path_estimator: the estimator of the regularizer.
        inner_steps: T.
        restart: True if every round starts from θ_0.
        zeta: ζ.
        fresh: True before the first round. Second derivatives are tried only then.
    """

    objective: Objective
    risk_estimator: Estimator
    path_estimator: Estimator
    inner_steps: int
    restart: bool
    zeta: float
    fresh: bool = True


def entries(problem: Problem) -> dict[str, set[Entry]]:
    """Return the ways in which every hyperparameter tensor enters the problem.

    >>> from torch import nn
    >>> from pactune.problem.hyper import WeightDecay
    >>> model, x = nn.Linear(1, 1), torch.ones(2, 1)
    >>> found = entries(Problem(model, WeightDecay(model), train=(x, x), valid=(x, x), loss=nn.functional.mse_loss))
    >>> found["values.weight"]
    {'penalty'}
    """
    return {name: set(found) for name, found in _derivatives(problem).items()}


def _derivatives(problem: Problem) -> dict[str, dict[Entry, Tensor]]:
    """Return a derivative for every hyperparameter tensor and every way in which it enters."""
    hyper, params = leaves(problem.hyperparameters()), leaves(problem.parameters())
    with torch.enable_grad(), forked_rng(problem.device), sdpa_kernel(SDPBackend.MATH):
        reached: dict[Entry, Tensor | None] = {
            "training loss": _train_probe(problem, params, hyper),
            "validation loss": _valid_probe(problem, params, hyper),
            "penalty": _sum(problem.penalty_gradient(params, hyper)) if problem.has_penalty else None,
            "learning rate": _sum(problem.learning_rates(params, hyper)) if problem.has_learning_rates else None,
            "initial parameters": _sum(problem.initial(params, hyper)) if problem.has_initial else None,
        }
    found: dict[str, dict[Entry, Tensor]] = {name: {} for name in hyper}
    for entry, probe in reached.items():
        if probe is None or not probe.requires_grad:
            continue
        derivatives = torch.autograd.grad(probe, list(hyper.values()), allow_unused=True)
        for name, derivative in zip(hyper, derivatives, strict=True):
            if derivative is not None:
                found[name][entry] = derivative
    return found


def check_entries(problem: Problem, settings: GradientSettings) -> list[str]:
    """Check before the run that every hyperparameter has a gradient under the chosen truncation.

    Returns:
        The hyperparameters that have no gradient through the regularizer, if the objective has one.

    Raises:
        GradientError: a hyperparameter's gradient would be identically zero.
        SettingError: the first term of the objective cannot be computed.
    """
    if settings.objective.risk_of == "train":
        _try_first_term(problem, settings.objective)
    without_path: list[str] = []
    if settings.fresh:
        _check_second_order(problem, settings)
    with explaining(settings.risk_estimator, settings.path_estimator):
        derivatives, in_training = _derivatives(problem), _in_training_loss(problem)
    for name, found in derivatives.items():
        ways = set(found)
        in_risk = any(_seen_by_risk(way, settings) for way in ways)
        in_path = any(_seen_by_path(way, settings) for way in ways)
        if not (in_risk or in_path):
            zero = not ways and name in in_training
            raise GradientError(f"{_zero_mixed_derivative(name)}; {SMOOTH}" if zero else _message(name, ways, settings))
        if ways == {"training loss"} and not bool(found["training loss"].any()):
            warn_user(
                f"{_zero_mixed_derivative(name)} on the first batch; where that stays so, it does not move; {SMOOTH}"
            )
        wants_path = settings.objective.has_path and settings.zeta > 0
        if wants_path and not in_path:
            without_path.append(f"`{name}` ({_join(ways)})")
    return without_path


def _try_first_term(problem: Problem, objective: Objective) -> None:
    """Raise if the validation loss cannot read a batch of the training set."""
    batch = problem.train.first()
    try:
        with torch.no_grad(), forked_rng(problem.device):
            problem.valid_risk(problem.parameters(), problem.hyperparameters(), clone(problem.buffers()), batch)
    except (RuntimeError, IndexError, TypeError, ValueError, KeyError) as error:
        raise SettingError(
            f"the first term of {type(objective).__name__} is the validation loss of the training rows, but "
            f"`valid_loss` fails on a batch of `train`: {error}; let it accept such a batch, or use PACBayes"
        ) from error


def _check_second_order(problem: Problem, settings: GradientSettings) -> None:
    """Raise if the training gradient is differentiated and torch would take a missing derivative as zero."""
    long_risk = isinstance(settings.risk_estimator, Implicit) or settings.risk_estimator.reach(settings.inner_steps) > 1
    long_path = settings.objective.has_path and settings.path_estimator.reach(settings.inner_steps) > 0
    if not (long_risk or long_path or problem.enters_losses):
        return
    params, hyper = leaves(problem.parameters()), leaves(problem.hyperparameters())
    with torch.enable_grad(), forked_rng(problem.device), sdpa_kernel(SDPBackend.MATH):
        risk = problem.train_risk(params, hyper, clone(problem.buffers()), problem.train.first())
        if not risk.requires_grad:
            return
        found = torch.autograd.grad(risk, list(params.values()), create_graph=True, allow_unused=True)
    if is_cut(value for value in found if value is not None):
        words = "an operation is marked as differentiable once (once_differentiable)"
        raise GradientError(second_order_message(settings.risk_estimator, settings.path_estimator, words))


def _seen_by_risk(way: Entry, settings: GradientSettings) -> bool:
    reach = settings.risk_estimator.reach(settings.inner_steps)
    if way == "validation loss":
        return True
    if way == "initial parameters":
        return settings.restart and reach >= settings.inner_steps
    if isinstance(settings.risk_estimator, Implicit):
        return way in ("training loss", "penalty")
    return reach >= 1


def _seen_by_path(way: Entry, settings: GradientSettings) -> bool:
    if not settings.objective.has_path or settings.zeta == 0:
        return False
    reach = settings.path_estimator.reach(settings.inner_steps)
    if way == "learning rate":
        return settings.objective.uses_step_size or (reach >= 1 and settings.inner_steps > 1)
    if way == "initial parameters":
        return settings.restart and reach >= 1
    return way != "validation loss" or settings.objective.uses_valid_gradient


def _message(name: str, ways: set[Entry], settings: GradientSettings) -> str:
    if not ways:
        return (
            f"`{name}` enters neither a loss, a penalty, the step size nor the initial parameters, so it has no "
            "gradient; use it in `train_loss` or `valid_loss`, or give its module one of the hooks"
        )
    remedy = "use Truncated(k) with k ≥ 1 or Windowed(w)"
    if ways == {"initial parameters"}:
        remedy = "use restart=True with Truncated(inner_steps), Windowed(inner_steps) or ForwardMode()"
    return (
        f"`{name}` enters through the {_join(ways)}, where its gradient is identically zero at "
        f"hypergradient={settings.risk_estimator}, path_hypergradient={settings.path_estimator}; {remedy}"
    )


def _zero_mixed_derivative(name: str) -> str:
    return (
        f"`{name}` enters the training loss, but the training gradient does not depend on it: the mixed derivative "
        "∂²R_T/∂θ∂λ is zero, as it is for the margin of a hinge, so no estimator has a gradient for it"
    )


def _in_training_loss(problem: Problem) -> set[str]:
    """Return the hyperparameters that the value of the training loss depends on."""
    if not problem.enters_losses:
        return set()
    hyper = leaves(problem.hyperparameters())
    with torch.enable_grad(), forked_rng(problem.device):
        risk = problem.train_risk(problem.parameters(), hyper, clone(problem.buffers()), problem.train.first())
    if not risk.requires_grad:
        return set()
    found = torch.autograd.grad(risk, list(hyper.values()), allow_unused=True)
    return {name for name, derivative in zip(hyper, found, strict=True) if derivative is not None}


def _join(ways: set[Entry]) -> str:
    return " and the ".join(sorted(ways))


def _train_probe(problem: Problem, params: Params, hyper: Params) -> Tensor | None:
    if not problem.enters_losses:
        return None
    risk = problem.train_risk(params, hyper, clone(problem.buffers()), problem.train.first())
    if not risk.requires_grad:
        return None
    found = torch.autograd.grad(risk, list(params.values()), create_graph=True, allow_unused=True)
    generator = torch.Generator(device="cpu").manual_seed(0)  # plain sums cancel: those of a softmax are zero
    weights = [
        torch.randn(p.shape, generator=generator, dtype=p.dtype, device="cpu").to(p.device) for p in params.values()
    ]
    pairs = zip(weights, found, strict=True)
    return sum(((w * g).sum() for w, g in pairs if g is not None), start=risk.new_zeros(()))


def _valid_probe(problem: Problem, params: Params, hyper: Params) -> Tensor | None:
    if not problem.enters_losses:
        return None
    return problem.valid_risk(params, hyper, clone(problem.buffers()), problem.valid.first())


def _sum(tree: Params) -> Tensor:
    return torch.stack([value.sum() for value in tree.values()]).sum()
