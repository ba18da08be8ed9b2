"""Ready-made hyperparameters, each an `nn.Module`, and the hooks that any module of yours may define.

A hyperparameter module may define any of these five methods:

- `penalty(params) -> Tensor`: a scalar added to the training risk. Three further methods give its derivatives in closed
  form and save time. With `penalty_gradient(params) -> dict`, the θ-gradient, no double backward is needed if the
  module has no other hook. With `penalty_vjp(params, cotangent) -> dict` too, the λ-derivative of ⟨∇penalty, cotangent⟩
  by the module's parameter names, the regularizer's gradient at K = 0 needs no backward at all. With
  `penalty_product(params, vector) -> dict` too, ∇²penalty times a vector, the backward of a step (K ≥ 1) differentiates
  the loss only. A module with `penalty_vjp` whose penalty is ½ Σ h_i(λ) θ_i² may say so by `diagonal = True`: a step
  under `HyperDrift` then only adds θ² to a sum.
- `prox(params, step_sizes) -> dict`: the proximal step of a penalty h that is not smooth, argmin h(z) + ‖z − θ‖²/(2η)
  for the step size η of each parameter: a number, or a tensor that is broadcastable to it. `SGD` and `Adam` call it
  after their step; it must be differentiable in `params`, `step_sizes` and λ. A missing name stays as it is. With
  `envelope_gradient(params, step_sizes) -> dict`, (θ − prox(θ))/η in closed form, Δ_t has no rounding error of this
  quotient.
- `learning_rates(params) -> dict`: factors on the step size of the inner dynamics, one broadcastable tensor per name.
- `initial(params) -> dict`: the initial parameters as a function of the hyperparameters; `params` is the draw from P_0.
- `weigh(losses, index) -> Tensor`: the training risk from per-example losses and the rows they belong to.

A module without hooks acts through the `train_loss` and `valid_loss` of `Problem`, or as a part of the model. To use
several modules, put them into `nn.ModuleDict({"decay": WeightDecay(model), "rates": LearningRates(model)})`: penalties
add up, proximal steps follow one another, learning-rate factors multiply, initial parameters pass from one module to
the next.

A subclass that overrides `penalty`, `penalty_gradient`, `prox` or a method that they call does not inherit the closed
forms of its base class. It defines those that it needs again; autograd takes the place of the others.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from pactune.checks import POSITIVE, Rule, check_choice, check_count, check_flag, check_number
from pactune.errors import SettingError
from pactune.problem.modules import as_module
from pactune.trees import Params, mul

__all__ = ["ExampleWeights", "Initialization", "LearningRates", "WeightDecay"]

Granularity = Literal["element", "tensor", "global"]
SMALL_DECAY = 0.001  # where a positive decay starts, since a softplus is never 0


def inverse_softplus(value: float) -> float:
    """Return the number whose softplus is `value` > 0."""
    return value + math.log(-math.expm1(-value))


def _key(name: str) -> str:
    """Return a parameter's name without dots, which a module may not register."""
    return name.replace(".", "/")


def _is_bias(name: str) -> bool:
    """Return True for the name of a bias, as the modules of PyTorch name theirs.

    >>> [_is_bias(name) for name in ("0.bias", "rnn.bias_ih_l0", "attention.in_proj_bias", "0.weight")]
    [True, True, True, False]
    """
    own = name.rpartition(".")[2]
    return own.startswith("bias") or own.endswith("bias")


def _trainable(model: object) -> Params:
    """Return the trainable parameters of a model; raise if there is none."""
    own = as_module("model", model)
    found = {name: p for name, p in own.named_parameters() if p.requires_grad}
    if not found:
        raise SettingError(f"{type(model).__name__} has no trainable parameter to attach hyperparameters to")
    return cast(Params, found)


def check_values(hyper: nn.Module, params: Params) -> None:
    """Raise if a ready-made module inside `hyper` was made from a model with other parameters."""
    for module in hyper.modules():
        if isinstance(module, (PerParameter, Initialization)):
            module.check_model(params)


def _check_values(module: nn.Module, values: Params, params: Params, *, shapes: bool) -> None:
    """Raise unless every value has the name, and with `shapes` the shape, of a trainable parameter."""
    known = {_key(name): p for name, p in params.items()}
    kind = type(module).__name__
    remedy = f"make it as {kind}(model) from the model of this problem, after its layers are frozen"
    for key, value in values.items():
        if key not in known:
            raise SettingError(
                f"`hyper`: this {kind} has a value for {key.replace('/', '.')!r}, which is no trainable parameter of "
                f"`model`; {remedy}"
            )
        if shapes and value.shape != known[key].shape:
            raise SettingError(
                f"`hyper`: this {kind} has shape {tuple(value.shape)} for {key.replace('/', '.')!r}, which has shape "
                f"{tuple(known[key].shape)} in `model`; {remedy}"
            )


class PerParameter(nn.Module):
    """One value per element, per tensor, or for all of a model's trainable parameters."""

    def __init__(self, model: nn.Module, *, per: Granularity, init: float) -> None:
        super().__init__()
        check_choice("per", per, ("element", "tensor", "global"))
        trainable = _trainable(model)
        largest = min(torch.finfo(p.dtype).max for p in trainable.values())
        check_number("init", init, Rule("a number that the model's type can hold", lambda value: abs(value) <= largest))
        self.per = per
        if per == "global":
            any_parameter = next(iter(trainable.values()))
            values = {"all": torch.full((), init, dtype=any_parameter.dtype, device=any_parameter.device)}
        else:
            values = {
                _key(name): torch.full_like(p, init) if per == "element" else p.new_full((), init)
                for name, p in trainable.items()
            }
        self.values = nn.ParameterDict({name: nn.Parameter(value.detach()) for name, value in values.items()})

    def _matched(self, params: Params) -> Params:
        """Return the value of each parameter that has one, by the parameter's name."""
        if self.per == "global":
            return dict.fromkeys(params, self.values["all"])
        values = cast(Params, self.values._parameters)  # a look-up in the ParameterDict takes longer than a product
        return {name: values[key] for name in params if (key := _key(name)) in values}

    def check_model(self, params: Params) -> None:
        """Raise unless the values belong to a model with these parameters."""
        if self.per != "global":
            _check_values(self, dict(self.values.items()), params, shapes=self.per == "element")

    def extra_repr(self) -> str:
        """Return the granularity, for `repr`."""
        return f"per={self.per!r}"


class WeightDecay(PerParameter):
    """Weight decay, penalty ½ Σ λ θ², with one λ per element, per tensor, or for the whole model.

    By default λ has no sign constraint, as in the paper's experiments. Choose `per="element"` to reproduce them,
    `"tensor"` or `"global"` when the validation set is small and nothing guards against overfitting it. Most of the
    harm that tuning does is done by negative decays. An outer optimizer that clamps λ at 0 after its step rules them
    out, and so does `positive=True`.

    With `positive`, the gradient by this module's parameters is that by λ times 1 − exp(−λ), so a small λ moves slowly.
    From 0.001 it hardly moves where the gradients by λ are of the order of the outer optimizer's ε, as in the paper's
    experiment with RMSprop. A decay that matters over N inner steps in all has the size 1/(ηN).

    Args:
        model: the model whose trainable parameters are decayed.
        per: "element", "tensor" or "global".
        init: the initial value of λ; None is 0, and 0.001 if `positive`.
        positive: λ is the softplus of the parameters of this module, so that no step makes it negative.
        biases: False decays no bias, unless the model trains nothing else. A decay of an intercept pulls predictions
            away from the frequencies of the classes, or from the mean of the targets.

    Example:
        >>> decay = WeightDecay(nn.Linear(3, 2), per="tensor", init=0.1)
        >>> sorted(decay.values.keys())
        ['bias', 'weight']
        >>> round(float(decay.penalty({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})), 6)
        0.3
    """

    diagonal = True

    def __init__(
        self,
        model: nn.Module,
        *,
        per: Granularity = "element",
        init: float | None = None,
        positive: bool = False,
        biases: bool = True,
    ) -> None:
        check_flag("positive", positive)
        check_flag("biases", biases)
        start = (SMALL_DECAY if positive else 0.0) if init is None else init
        if positive:
            check_number("init", start, POSITIVE)
        super().__init__(model, per=per, init=inverse_softplus(start) if positive else start)
        self.positive = positive
        names = list(_trainable(model))
        decayed = [name for name in names if biases or not _is_bias(name)] or names
        self._left_out = frozenset(names) - frozenset(decayed)
        if per != "global":
            for name in self._left_out:
                del self.values[_key(name)]

    def _matched(self, params: Params) -> Params:
        """Return the value of each decayed parameter, by the parameter's name."""
        found = super()._matched(params)
        return {name: value for name, value in found.items() if name not in self._left_out} if self._left_out else found

    def decays(self, params: Params) -> Params:
        """Return λ by parameter name."""
        values = self._matched(params)
        return {name: softplus(value) for name, value in values.items()} if self.positive else values

    def penalty(self, params: Params) -> Tensor:
        """Return ½ Σ λ θ²."""
        terms = [0.5 * (decay * params[name] ** 2).sum() for name, decay in self.decays(params).items()]
        return torch.stack(terms).sum()

    def penalty_gradient(self, params: Params) -> Params:
        """Return λ ⊙ θ, so that ∂∇R_T/∂λ = θ costs no double backward."""
        return mul(self.decays(params), params)

    def penalty_vjp(self, params: Params, cotangent: Params) -> Params:
        """Return θ ⊙ c, the derivative of ⟨λ ⊙ θ, c⟩, summed over the elements that share a λ."""
        values = self._matched(params)
        products = mul({name: params[name] for name in values}, cotangent)
        if self.positive:
            products = {name: value * values[name].sigmoid() for name, value in products.items()}
        if self.per == "global":
            return {"values.all": torch.stack([product.sum() for product in products.values()]).sum()}
        each = self.per == "element"
        return {f"values.{_key(name)}": value if each else value.sum() for name, value in products.items()}

    def penalty_product(self, params: Params, vector: Params) -> Params:
        """Return λ ⊙ v: the penalty's Hessian is diag(λ)."""
        return {name: decay * vector[name] for name, decay in self.decays(params).items()}

    def extra_repr(self) -> str:
        """Return the granularity, the sign constraint and whether biases are left out, for `repr`."""
        return f"{super().extra_repr()}{', positive=True' * self.positive}{', biases=False' * bool(self._left_out)}"


class LearningRates(PerParameter):
    """Positive factors exp(λ) on the learning rate of the inner dynamics; all start at 1.

    A learning rate enters through the step itself, so its gradient is zero at truncation K = 0: use
    `hypergradient=Truncated(k)` with k ≥ 1, `Windowed`, or `ForwardMode` when there are few.

    Args:
        model: the model whose parameters are trained.
        per: "tensor" (default), "element" or "global".

    Example:
        >>> rates = LearningRates(nn.Linear(3, 2), per="global")
        >>> float(rates.learning_rates({"weight": torch.ones(2, 3)})["weight"].detach())
        1.0
    """

    def __init__(self, model: nn.Module, *, per: Granularity = "tensor") -> None:
        super().__init__(model, per=per, init=0.0)

    def learning_rates(self, params: Params) -> Params:
        """Return exp(λ), by parameter name."""
        return {name: value.exp() for name, value in self._matched(params).items()}


class Initialization(nn.Module):
    """The initial parameters θ_0 themselves as hyperparameters (meta-learning); use it with `restart=True`.

    The gradient with respect to θ_0 needs the whole trajectory: `Truncated(inner_steps)`, `Windowed(inner_steps)` or
    `ForwardMode()`.

    Args:
        model: θ_0 starts at its current parameters.

    Example:
        >>> start = Initialization(nn.Linear(3, 2))
        >>> sorted(start.initial({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}))
        ['bias', 'weight']
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        trainable = _trainable(model)
        self.values = nn.ParameterDict({_key(n): nn.Parameter(p.detach().clone()) for n, p in trainable.items()})

    def initial(self, params: Params) -> Params:
        """Return θ_0 = λ for the parameters that have a value here, and the draw from P_0 for the others."""
        values = cast(Params, self.values._parameters)  # a look-up in the ParameterDict takes ten times longer
        return {name: values.get(_key(name), p) for name, p in params.items()}

    def covers(self, params: Params) -> bool:
        """Return True if every parameter has a value here, and no subclass uses the draw from P_0."""
        return type(self).initial is Initialization.initial and all(_key(name) in self.values for name in params)

    def check_model(self, params: Params) -> None:
        """Raise unless the values belong to a model with these parameters."""
        _check_values(self, dict(self.values.items()), params, shapes=True)


class ExampleWeights(nn.Module):
    """A weight 2·sigmoid(λ_i) in (0, 2) for every training example; all start at 1.

    The training risk becomes mean(w_i ℓ_i). In the short form of `Problem` the loss must accept `reduction="none"`, as
    the losses of `torch.nn.functional` do. `train` must be tensors, a `Dataset`, or a `DataLoader` with a standard
    sampler, so that the number of every row is known.

    Args:
        rows: the number of training examples; `Problem` refuses any other number.

    Example:
        >>> weights = ExampleWeights(4)
        >>> float(weights.weigh(torch.tensor([1.0, 3.0]), torch.tensor([0, 2])).detach())
        2.0
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        check_count("rows", rows, words="the number of training examples, at least 1")
        self.logits = nn.Parameter(torch.zeros(rows, device=torch.get_default_device()))

    def check_rows(self, rows: int) -> None:
        """Raise unless there is one weight for each of the training rows."""
        if len(self.logits) != rows:
            raise SettingError(
                f"`hyper` has {len(self.logits)} example weights and `train` {rows} rows; use ExampleWeights({rows})"
            )

    def weights(self, index: Tensor | None = None) -> Tensor:
        """Return the weights of the rows with these numbers, of all rows by default. A subclass may override it."""
        logits = self.logits if index is None else self.logits[index.to(self.logits.device)]
        return 2.0 * torch.sigmoid(logits)

    def weigh(self, losses: Tensor, index: Tensor) -> Tensor:
        """Return mean(w_i ℓ_i) over a mini-batch; a row with several losses counts with their mean."""
        per_row = losses.reshape(len(losses), -1).mean(1)
        return (self.weights(index) * per_row).mean()
