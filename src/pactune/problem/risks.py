"""The risks, penalties and hooks of a model and its hyperparameters, as pure functions of (params, hyper, batch)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pactune.problem.data import Batch
from pactune.problem.hooks import Hooks, StepSizes
from pactune.problem.hyper import Initialization
from pactune.problem.inner_problem import InnerProblem
from pactune.problem.loss_checks import as_risk
from pactune.problem.losses import Losses
from pactune.problem.model_inputs import inputs_and_target
from pactune.problem.modules import ModuleTensors
from pactune.problem.tensor_slots import call_with
from pactune.trees import Params, copy_

__all__ = ["ModelRisks"]

T = TypeVar("T")


class ModelRisks(InnerProblem):
    """The risks of a model, and everything else that an inner step computes, without the data.

    Args:
        model: the model. Its trainable parameters are θ.
        hyper: the hyper module. Its parameters are λ.
        losses: the losses and the metrics.
    """

    def __init__(self, model: nn.Module, hyper: nn.Module, losses: Losses) -> None:
        self.model, self.hyper, self._losses = model, hyper, losses
        self._tensors, self._hooks = ModuleTensors(model, hyper), Hooks(hyper)
        self.device, self.dtype = self._tensors.device_and_dtype()

    # The tensors of the modules, as dictionaries

    def parameters(self) -> Params:
        """Return θ, the model's trainable parameters without λ, sharing their memory."""
        return self._tensors.parameters()

    def hyperparameters(self) -> Params:
        """Return λ, sharing its memory with the hyper module."""
        return self._tensors.hyperparameters()

    def leaves(self) -> Params:
        """Return θ as the parameters of the model."""
        return self._tensors.params.tensors()

    def hyper_leaves(self) -> Params:
        """Return λ as the parameters of the hyper module, which have `.grad`."""
        return self._tensors.hyper_leaves()

    def buffers(self) -> Params:
        """Return the model's buffers, sharing their memory."""
        return self._tensors.buffers.tensors()

    def tensors(self) -> list[Tensor]:
        """Return all parameters and buffers of both modules."""
        return self._tensors.every()

    def load_hyper(self, values: Params) -> None:
        """Copy λ into the user's hyper module."""
        copy_(self.hyperparameters(), values)

    def load(self, params: Params, buffers: Params) -> None:
        """Copy θ and the buffers into the user's model."""
        copy_(self.parameters(), params)
        copy_(self.buffers(), buffers)

    def losses(self) -> tuple[object, ...]:
        """Return the user's losses and metrics."""
        return tuple(self._losses.arguments().values())

    # Structure

    @property
    def functions(self) -> tuple[int, ...]:
        """Numbers that are equal for problems with the same modules and losses, which differ in their data only."""
        return id(self.model), id(self.hyper), id(self._losses)

    @property
    def has_buffers(self) -> bool:
        """True if the model has buffers."""
        return bool(self._tensors.buffers.tensors())

    @property
    def has_penalty(self) -> bool:
        """True if a module adds a penalty to the training risk."""
        return bool(self._hooks.penalties)

    @property
    def has_prox(self) -> bool:
        """True if a module has a proximal step."""
        return bool(self._hooks.proxes)

    @property
    def has_learning_rates(self) -> bool:
        """True if hyperparameters scale the step size."""
        return bool(self._hooks.rates)

    @property
    def has_initial(self) -> bool:
        """True if the initial parameters depend on hyperparameters."""
        return bool(self._hooks.initials)

    @cached_property
    def draws_initial(self) -> bool:
        """True if θ_0 may depend on a draw from P_0; an `Initialization` of all parameters does not."""
        covering = [module for module in self._hooks.initials if isinstance(module, Initialization)]
        return not any(module.covers(self.parameters()) for module in covering)

    @property
    def enters_losses(self) -> bool:
        """True if the losses may depend on λ; if not, a λ-derivative needs no double backward through a loss."""
        return self._losses.general or self._losses.weighs or self._tensors.hyper_inside_model

    @property
    def predicts_with_hyper(self) -> bool:
        """True if λ is a part of the model, so that a prediction depends on it."""
        return self._tensors.hyper_inside_model

    # The risks

    def predict(self, params: Params, batch: Batch) -> tuple[Any, Any]:
        """Return the model's output at θ, and the target."""
        parts = inputs_and_target(batch.data)
        return call_with([(self._tensors.params, params)], lambda: parts.apply(self.model)), parts.target

    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T without the penalty. A training forward writes its statistics into `buffers`."""
        return self._call(self._losses.train, params, hyper, buffers, batch, "train")

    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V. Pass copies of the buffers, since the forward may write into them."""
        return self._call(self._losses.valid, params, hyper, buffers, batch, "valid")

    def penalty(self, params: Params, hyper: Params) -> Tensor:
        """Return the sum of the modules' penalties."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty(params))

    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of the penalty, differentiable in θ and λ."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty_gradient(params))

    @cached_property
    def has_penalty_vjp(self) -> bool:
        """True if λ acts through penalties only and every penalty has a `penalty_vjp`."""
        only = not (self.enters_losses or self.has_prox or self.has_learning_rates or self.has_initial)
        return self.has_penalty and only and self._hooks.penalties_have("penalty_vjp")

    @property
    def has_diagonal_penalty(self) -> bool:
        """True if λ acts through penalties ½ Σ h_i(λ) θ_i² only and every penalty has a `penalty_vjp`."""
        return self.has_penalty_vjp and self._hooks.penalties_are_diagonal

    def penalty_vjp(self, params: Params, hyper: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty(θ), c⟩ in closed form; zeros for a λ without a penalty."""
        found = self._with_hyper(hyper, lambda: self._hooks.penalty_vjp(params, cotangent))
        return {name: found[name] if name in found else torch.zeros_like(value) for name, value in hyper.items()}

    @cached_property
    def has_closed_steps(self) -> bool:
        """True if a step depends on λ through ∇R_T and through penalties with closed-form derivatives only."""
        others = self.has_prox or self.has_learning_rates
        return not others and self._hooks.penalties_have("penalty_vjp", "penalty_product")

    def penalty_product(self, params: Params, hyper: Params, vector: Params) -> Params:
        """Return ∇²penalty(θ) v in closed form."""
        return self._with_hyper(hyper, lambda: self._hooks.penalty_product(params, vector))

    def prox(self, params: Params, sizes: StepSizes, hyper: Params) -> Params:
        """Return θ after the proximal steps of these sizes, differentiable in all arguments."""
        return self._with_hyper(hyper, lambda: self._hooks.prox(params, sizes))

    def envelope_gradient(self, params: Params, sizes: StepSizes, hyper: Params) -> Params:
        """Return (θ − prox(θ))/η, the gradient of the Moreau envelope of the penalties that have a prox."""
        return self._with_hyper(hyper, lambda: self._hooks.envelope_gradient(params, sizes))

    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return the factors on the step size by parameter name; a parameter without a factor is left out."""
        return self._with_hyper(hyper, lambda: self._hooks.learning_rates(params))

    def initial(self, params: Params, hyper: Params) -> Params:
        """Return θ_0 as a function of λ, given a draw `params` from P_0."""
        return self._with_hyper(hyper, lambda: self._hooks.initial(params))

    def readings(self, params: Params, hyper: Params, buffers: Params, batch: Batch, *, general: bool) -> Params:
        """Return the risk (under the name "") and the metrics of one batch, as `evaluate` averages them.

        A pure function of the tensors, for many runs at once. `general` uses the training loss. The model must be in
        `eval()` mode.
        """
        closure = self._losses.train if general else self._losses.valid

        def read() -> Params:
            found = {"": closure(self.model, self.hyper, batch), **self._losses.metrics(self.model, batch)}
            return {name: torch.as_tensor(value, device=self.device) for name, value in found.items()}

        return self.at(params, hyper, buffers, read)

    # Inner workings

    def at(self, params: Params, hyper: Params, buffers: Params, function: Callable[[], T]) -> T:
        """Call a function while the modules hold these values."""
        slots = self._tensors
        return call_with([(slots.params, params), (slots.hyper, hyper), (slots.buffers, buffers)], function)

    def _call(
        self, closure: Callable[..., Tensor], params: Params, hyper: Params, buffers: Params, batch: Batch, role: str
    ) -> Tensor:
        slots = self._tensors
        parts = [(slots.params, params), (slots.hyper, hyper), (slots.buffers, buffers)]

        def loss() -> Tensor:
            value = closure(self.model, self.hyper, batch)
            slots.check_shared_buffers()
            return value

        return as_risk(f"the {role} loss", call_with(parts, loss, collect=slots.buffers))

    def _with_hyper(self, hyper: Params, function: Callable[[], T]) -> T:
        """Call a function while the hyper module holds `hyper`."""
        return call_with([(self._tensors.hyper, hyper)], function)
