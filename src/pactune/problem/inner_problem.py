"""What a trajectory needs of a problem: the risks, the penalty and the hooks as pure functions of (θ, λ)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pactune.problem.data import Batch, Source
from pactune.problem.hooks import StepSizes
from pactune.trees import Params

if TYPE_CHECKING:
    from pactune.problem.problem import Problem

__all__ = ["InnerProblem"]


class InnerProblem(ABC):
    """The inner problem of one run, or of several runs that are stacked along a leading axis.

    Attributes:
        runs: the leading axes of risks and parameters: none, or one of length R for R stacked runs.
        device: the device of θ.
        dtype: the floating-point type of θ.
        train: the training set.
        valid: the validation set.
    """

    runs: tuple[int, ...] = ()
    device: torch.device
    dtype: torch.dtype
    train: Source
    valid: Source

    @property
    @abstractmethod
    def members(self) -> Sequence[Problem]:
        """The problems of the runs, each once. Chains of one run share their problem."""

    @property
    def replayable(self) -> bool:
        """True if the mini-batches of a step can be read again."""
        return self.train.replayable and self.valid.replayable

    @property
    def steady(self) -> bool:
        """True if every step reads the same mini-batches."""
        return self.train.steady and self.valid.steady

    @property
    @abstractmethod
    def has_buffers(self) -> bool:
        """True if the model has buffers."""

    @property
    @abstractmethod
    def has_penalty(self) -> bool:
        """True if a penalty is added to the training risk."""

    @property
    @abstractmethod
    def has_prox(self) -> bool:
        """True if a penalty that is not smooth acts by a proximal step."""

    @property
    @abstractmethod
    def has_learning_rates(self) -> bool:
        """True if hyperparameters scale the step size."""

    @property
    @abstractmethod
    def has_initial(self) -> bool:
        """True if the initial parameters depend on hyperparameters."""

    @property
    @abstractmethod
    def enters_losses(self) -> bool:
        """True if λ may enter the losses themselves; if not, λ alone never needs a double backward."""

    @property
    @abstractmethod
    def has_penalty_vjp(self) -> bool:
        """True if λ enters through penalties alone, and each knows its mixed derivative in closed form."""

    @property
    @abstractmethod
    def has_diagonal_penalty(self) -> bool:
        """True if λ enters through penalties ½ Σ h_i(λ) θ_i² alone, and each knows its mixed derivative."""

    @property
    @abstractmethod
    def has_closed_steps(self) -> bool:
        """True if λ enters a step, other than through ∇R_T, only by penalties that know all their derivatives."""

    @abstractmethod
    def train_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_T without the penalty. A training forward writes its statistics into `buffers`."""

    @abstractmethod
    def valid_risk(self, params: Params, hyper: Params, buffers: Params, batch: Batch) -> Tensor:
        """Return R_V. The forward may write into `buffers`, so pass copies."""

    @abstractmethod
    def penalty(self, params: Params, hyper: Params) -> Tensor:
        """Return the penalty, differentiable in θ and λ."""

    @abstractmethod
    def penalty_gradient(self, params: Params, hyper: Params) -> Params:
        """Return the θ-gradient of the penalty, differentiable in θ and λ."""

    @abstractmethod
    def penalty_vjp(self, params: Params, hyper: Params, cotangent: Params) -> Params:
        """Return the λ-derivative of ⟨∇penalty(θ), c⟩ by the modules' closed forms; zeros for a λ without a penalty."""

    @abstractmethod
    def penalty_product(self, params: Params, hyper: Params, vector: Params) -> Params:
        """Return ∇²penalty(θ) v by the modules' closed forms."""

    @abstractmethod
    def prox(self, params: Params, sizes: StepSizes, hyper: Params) -> Params:
        """Return θ after the proximal steps of these sizes, differentiable in all arguments."""

    @abstractmethod
    def envelope_gradient(self, params: Params, sizes: StepSizes, hyper: Params) -> Params:
        """Return (θ − prox(θ))/η, the gradient of the Moreau envelope of the penalties that have a prox."""

    @abstractmethod
    def learning_rates(self, params: Params, hyper: Params) -> Params:
        """Return the factors on the step size by parameter name. A parameter without a factor is left out."""

    @abstractmethod
    def initial(self, params: Params, hyper: Params) -> Params:
        """Return θ_0 as a function of λ, given a draw `params` from P_0."""
