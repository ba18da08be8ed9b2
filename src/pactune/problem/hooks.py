"""The hooks of hyperparameter modules: penalties, proximal steps, factors on the step size, initial parameters.

`pactune.problem.hyper` describes the methods that a user's module may define.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from pactune.checks import shown
from pactune.errors import PactuneError, SettingError
from pactune.trees import Params, map_tree

__all__ = ["Hooks", "StepSizes", "closed_form", "holders", "weigher_of"]

DERIVED = {"penalty_vjp", "penalty_product", "envelope_gradient"}  # no other closed form depends on these
StepSizes = Mapping[str, float | Tensor]  # by parameter name; a tensor is broadcastable to the parameter


def holders(hyper: nn.Module, hook: str) -> list[Any]:
    """Return the outermost modules of `hyper` that define `hook`."""
    found = getattr(hyper, hook, None)
    if callable(found) and not isinstance(found, nn.Module):  # a child module may well be called "penalty"
        return [hyper]
    return [holder for child in hyper.children() for holder in holders(child, hook)]


def weigher_of(hyper: nn.Module) -> Any:
    """Return the module that weighs examples; None if there is none."""
    found = holders(hyper, "weigh")
    if len(found) > 1:
        raise SettingError(f"at most one hyperparameter module may weigh examples, got {len(found)}")
    return found[0] if found else None


def closed_form(module: Any, name: str) -> Any:
    """Return the attribute of a module that states a derivative in closed form; None if the module has none.

    A subclass that overrides a method may change the penalty, and with it the derivatives. So it does not inherit the
    closed forms of the class whose method it overrides: it defines them again, or autograd takes their place.
    """
    return getattr(module, name, None) if _is_valid(type(module), name) else None  # type: ignore[arg-type]


@lru_cache
def _is_valid(kind: type, name: str) -> bool:
    """Return True if no class between `kind` and the one that defines `name` overrides a method of the latter."""
    classes = kind.__mro__
    place = next((i for i, one in enumerate(classes) if name in vars(one)), 0)
    below = {method for one in classes[:place] for method, value in vars(one).items() if hasattr(value, "__get__")}
    return not any(hasattr(classes[place], method) and not hasattr(nn.Module, method) for method in below - DERIVED)


class Hooks:
    """The hooks of all modules inside a hyper module. They are functions of θ; the modules hold λ.

    Attributes:
        penalties: the modules that add a penalty to the training risk.
        proxes: the modules with a proximal step for a penalty that is not smooth, in order.
        rates: the modules that scale the step size.
        initials: the modules that map a draw from P_0 to θ_0, in order.
    """

    def __init__(self, hyper: nn.Module) -> None:
        self.penalties, self.proxes, self.rates, self.initials = (
            holders(hyper, hook) for hook in ("penalty", "prox", "learning_rates", "initial")
        )
        paths = {module: path for path, module in hyper.named_modules()}
        self._prefixes = [f"{path}." if (path := paths[module]) else "" for module in self.penalties]
        first: dict[int, str] = {}
        every = hyper.named_parameters(remove_duplicate=False)
        self._names = {name: first.setdefault(id(p), name) for name, p in every}  # λ has the first name of a shared one

    def penalties_have(self, *hooks: str) -> bool:
        """True if every penalty module has these closed forms."""
        return all(callable(closed_form(module, hook)) for module in self.penalties for hook in hooks)

    @property
    def penalties_are_diagonal(self) -> bool:
        """True if every penalty module says that its penalty is ½ Σ h_i(λ) θ_i²."""
        return all(closed_form(module, "diagonal") is True for module in self.penalties)

    def penalty(self, params: Params) -> Tensor:
        """Return the sum of the penalties."""
        return torch.stack([module.penalty(params) for module in self.penalties]).sum()

    def penalty_gradient(self, params: Params) -> Params:
        """Return the θ-gradient of the penalties, differentiable in θ and λ."""
        return _total(params, [_penalty_gradient(module, params) for module in self.penalties])

    def check(self, params: Params) -> None:
        """Call every hook once and check its value.

        Raises:
            SettingError: a hook fails, or returns a value of the wrong type or shape.
        """
        for module in self.penalties:
            value = _call(module, "penalty", params)
            if not isinstance(value, Tensor) or value.ndim:
                raise SettingError(f"`penalty` of {_kind(module)} must return a scalar tensor, got {shown(value)}")
        for module in self.proxes:
            found = _call(module, "prox", params, dict.fromkeys(params, 1.0))
            _check_tree(module, "prox", found, params, "each parameter that it moves, in its shape", shapes=True)
        for module in self.rates:
            found = _call(module, "learning_rates", params)
            _check_tree(
                module, "learning_rates", found, params, "a factor that fits the shape of each parameter it names"
            )
        for module in self.initials:
            found = _call(module, "initial", params)
            _check_tree(module, "initial", found, params, "every parameter in its shape", shapes=True, whole=True)

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty(θ), c⟩, by the names of λ; a λ without a penalty is left out.

        The parts of a λ that several names or modules share add up.
        """
        total: Params = {}
        for prefix, module in zip(self._prefixes, self.penalties, strict=True):
            for own, value in module.penalty_vjp(params, cotangent).items():
                if prefix + own not in self._names:
                    raise SettingError(f"`penalty_vjp` of {_kind(module)} returned {own!r}, which is none of its λ")
                name = self._names[prefix + own]
                total[name] = total[name] + value if name in total else value
        return total

    def penalty_product(self, params: Params, vector: Params) -> Params:
        """Return ∇²penalty(θ) v."""
        return _total(params, [module.penalty_product(params, vector) for module in self.penalties])

    def prox(self, params: Params, sizes: StepSizes) -> Params:
        """Return the parameters after the proximal steps, differentiable in all arguments and λ."""
        for module in self.proxes:
            params = {**params, **module.prox(params, sizes)}
        return params

    def envelope_gradient(self, params: Params, sizes: StepSizes) -> Params:
        """Return the gradient (θ − prox(θ))/η of the Moreau envelopes of the penalties that have a prox."""
        return _total(params, [_envelope_gradient(module, params, sizes) for module in self.proxes])

    def learning_rates(self, params: Params) -> Params:
        """Return the factors on the step size by parameter name; a parameter without a factor is left out."""
        total: Params = {}
        for module in self.rates:
            part = module.learning_rates(params)
            total |= {name: total[name] * value if name in total else value for name, value in part.items()}
        return total

    def initial(self, params: Params) -> Params:
        """Return θ_0 from a draw from P_0."""
        for module in self.initials:
            params = module.initial(params)
        return params


def _kind(module: object) -> str:
    return type(module).__name__


def _call(module: Any, hook: str, *arguments: object) -> object:
    try:
        return getattr(module, hook)(*arguments)
    except (PactuneError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # the module may be the user's and may do anything
        reason = f"{type(error).__name__}: {error}"
        raise SettingError(f"`{hook}` of {_kind(module)} fails on the model's parameters: {reason}") from error


def _check_tree(
    module: object, hook: str, found: object, params: Params, rule: str, *, shapes: bool = False, whole: bool = False
) -> None:
    """Raise unless a hook returned tensors by parameter name: in the parameters' shapes, or for the whole model."""
    if not isinstance(found, Mapping):
        raise SettingError(f"`{hook}` of {_kind(module)} must return a dict with {rule}, got {shown(found)}")
    wrong = [name for name in found if name not in params] + [name for name in params if whole and name not in found]
    wrong += [name for name in params if name in found and not _fits(found[name], params[name], shapes=shapes)]
    if wrong:
        names = ", ".join(map(repr, wrong))
        raise SettingError(f"`{hook}` of {_kind(module)} must return {rule}; unknown, missing or misshapen: {names}")


def _fits(value: object, like: Tensor, *, shapes: bool) -> bool:
    if not isinstance(value, Tensor):
        return False
    try:
        return value.shape == like.shape if shapes else value.expand_as(like).shape == like.shape
    except RuntimeError:
        return False


def _total(params: Params, parts: list[Params]) -> Params:
    """Return the sum of trees that may lack some names of `params`."""
    total: Params = {}
    for part in parts:
        total |= {name: total[name] + value if name in total else value for name, value in part.items()}
    return {name: total[name] if name in total else torch.zeros_like(p) for name, p in params.items()}


def _envelope_gradient(module: Any, params: Params, sizes: StepSizes) -> Params:
    """Return the closed form if the module has one. The quotient has a rounding error of eps·θ/η."""
    if closed := closed_form(module, "envelope_gradient"):
        return closed(params, sizes)  # type: ignore[no-any-return]
    return {name: (params[name] - moved) / sizes[name] for name, moved in module.prox(params, sizes).items()}


def _penalty_gradient(module: Any, params: Params) -> Params:
    """Return the closed form if the module has one, else the derivative of its penalty; without a graph in no_grad."""
    if closed := closed_form(module, "penalty_gradient"):
        return closed(params)  # type: ignore[no-any-return]
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = map_tree(lambda p: p if p.requires_grad else p.detach().requires_grad_(), params)
        value = module.penalty(inputs)
        if not value.requires_grad:  # it depends on no parameter
            return {}
        found = torch.autograd.grad(value, list(inputs.values()), create_graph=graph, allow_unused=True)
    return {name: g for name, g in zip(inputs, found, strict=True) if g is not None}
