"""`CoherenceMonitor`: measures the regularizer of Eq. 5 inside any training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pactune.checks import check_flag
from pactune.errors import DataError, DivergenceError, SettingError
from pactune.hypergradient.gradients import check_autograd
from pactune.monitor.checks import as_risk, as_zeta, check_modules, check_numbers, check_state, positive
from pactune.monitor.gradients import (
    BatchLoss,
    as_batch_loss,
    buffer_slots,
    forked,
    mean_over_processes,
    precise,
    risk_of,
    stored_gradient,
)
from pactune.monitor.penalties import as_decay, as_penalty
from pactune.objectives.base import check_bound, clip
from pactune.problem.modules import restored_mode, wake
from pactune.problem.tensor_slots import call_with
from pactune.streams import Streams
from pactune.trees import Params, clone, split, sub

__all__ = ["CoherenceMonitor"]

Decay = float | Mapping[str, float] | torch.optim.Optimizer


class CoherenceMonitor:
    """Accumulates Y = Σ_t ‖∇R_T(θ_t) − ∇R_V(θ_t)‖² in a training loop of your own, for Equation 5 as a score.

    Call `step` once per optimizer step, after `backward()` and before `optimizer.step()`, clipping and `zero_grad()`.
    With `train_batch=None` the training gradient is taken from `.grad`, so that the extra cost is one validation
    gradient. Gradients, buffers, generators (CPU and CUDA), mode flags, `requires_grad` and the optimizer stay as they
    are: a run with the monitor is bit for bit the run without it. Choose the monitor if you already have a training
    loop, a Lightning module or a study. Choose `Tuner` to tune hyperparameters by gradient.

    Args:
        model: the model that is trained; its trainable parameters are θ. A `DistributedDataParallel` is unwrapped.
        loss: `loss(prediction, target)`, the mean over the rows, without any penalty.
        batch_loss: `batch_loss(model, batch)` instead of `loss`, for batches that are not `(inputs, target)`.
        penalty: the penalty in the training risk: a module with a `penalty` hook such as `WeightDecay`, or a function
            of a dict of parameters. Leave it out if `.grad` is used and contains it.
        weight_decay: decay that the optimizer applies by itself (AdamW, or `weight_decay=` of any other), so that
            Δ_t contains λθ: a number, a dict by parameter name, or the optimizer, whose groups are read at every step.
        every: measure one step of every `every`, drawn at random in each block and counted `every` times, so that Y is
            unbiased. `due` says whether the next step is measured.
        clip_train: clip ∇R_T to this norm, as in `PACBayes`.
        clip_valid: clip ∇R_V to this norm.
        on_nonfinite: "raise" raises when you read a sum that is not finite; "skip" omits such steps, as `GradScaler`.
        average: average gradients computed here over the processes of `torch.distributed`; `.grad` is taken as it is.
        seed: of the forwards' dropout and of the steps that `every` picks.

    Raises:
        SettingError: a setting breaks its rule.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model, loss = nn.Linear(3, 1), nn.functional.mse_loss
        >>> x, y = torch.randn(8, 3), torch.randn(8, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        >>> monitor = CoherenceMonitor(model, loss, weight_decay=optimizer)
        >>> for _ in range(5):
        ...     optimizer.zero_grad()
        ...     loss(model(x[:4]), y[:4]).backward()
        ...     _ = monitor.step(None, (x[4:], y[4:]))
        ...     optimizer.step()
        >>> monitor.steps, monitor.regularizer > 0
        (5, True)
        >>> risk = loss(model(x[4:]), y[4:]).item()
        >>> monitor.objective(risk, "theory", lr=0.01) == risk + 0.05 * monitor.regularizer
        True
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Tensor] | None = None,
        *,
        batch_loss: BatchLoss | None = None,
        penalty: nn.Module | Callable[[Params], Tensor] | None = None,
        weight_decay: Decay = 0.0,
        every: int = 1,
        clip_train: float | None = None,
        clip_valid: float | None = None,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        average: bool = False,
        seed: int = 0,
    ) -> None:
        check_modules(model, loss, batch_loss)
        check_numbers(every, seed, on_nonfinite)
        check_flag("average", average)
        check_bound("clip_train", clip_train)
        check_bound("clip_valid", clip_valid)
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.every, self.seed = every, seed
        self._risk = as_batch_loss(loss, batch_loss)
        self._penalties = [*as_penalty(penalty), *as_decay(weight_decay, self.model)]
        self._clips = clip_train, clip_valid
        self._skip, self._average = on_nonfinite == "skip", average
        self._streams = Streams(seed)
        self._names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        if not self._names:
            raise SettingError(f"{type(model).__name__} has no trainable parameter: there is no gradient to measure")
        self._total = torch.zeros((), dtype=torch.float64, device=self._home())
        self.steps, self.measured = 0, 0

    # Measuring

    @property
    def due(self) -> bool:
        """True if the next call of `step` measures. If it does not, `step()` needs no batch."""
        block, place = divmod(self.steps, self.every)
        return self.every == 1 or place == self._streams.key("pick", block) % self.every

    def step(self, train_batch: Any = None, valid_batch: Any = None, *, grad_scale: float = 1.0) -> Tensor | None:
        """Count a training step, and add ‖Δ_t‖² when it is due.

        Args:
            train_batch: the step's mini-batch; None takes ∇R_T from `.grad`, which `backward()` has just filled.
            valid_batch: a validation mini-batch on the model's device.
            grad_scale: the factor in `.grad`: `scaler.get_scale()` before `scaler.unscale_(optimizer)`.

        Returns:
            ‖Δ_t‖² as a tensor, without waiting for the device, or None when the step is not measured.

        Raises:
            DataError: a batch is missing or the loss fails on it.
            GradientError: there is no gradient to read, or the loss does not depend on the parameters.
        """
        if not self.due:
            self.steps += 1
            return None
        check_autograd("step")
        if valid_batch is None:
            raise DataError("`valid_batch` must be a validation mini-batch: this step is measured (see `monitor.due`)")
        params, scale = self._parameters(), positive("grad_scale", grad_scale)
        stored = train_batch is None
        train = stored_gradient(params, scale) if stored else self._gradient(params, train_batch, "train")
        valid = self._gradient(params, valid_batch, "valid")
        summand = self._summand(self._with_penalty(train, params), valid)
        counted = torch.where(torch.isfinite(summand), summand, 0.0) if self._skip else summand
        self._total = self._total.to(counted.device) + self.every * counted
        self.steps, self.measured = self.steps + 1, self.measured + 1
        return summand

    @property
    def total(self) -> float:
        """Y, the sum of ‖Δ_t‖² along the steps so far; reading it waits for the device.

        Raises:
            DivergenceError: a gradient was not finite, and `on_nonfinite="raise"`.
        """
        value = float(self._total)
        if not math.isfinite(value):
            raise DivergenceError(
                f"Σ‖Δ_t‖² is {value} after {self.steps} steps: training diverged, or the gradients are those of a "
                'GradScaler that overflowed; lower the learning rate, or use on_nonfinite="skip" for the latter'
            )
        return value

    @property
    def regularizer(self) -> float:
        """√Y, the second term of Eq. 5 without ζ; 0 before the first step. Raises as `total` does."""
        return math.sqrt(self.total)

    def objective(
        self, valid_risk: float | Tensor, zeta: float | Literal["theory"], *, lr: float | None = None, beta: float = 1.0
    ) -> float:
        """Return J = R_V(θ_T) + ζ √Y (Eq. 5).

        Args:
            valid_risk: R_V of the model as it stands, on the whole validation set.
            zeta: a number ≥ 0, or "theory" for √(β·lr/4).
            lr: the learning rate η, for "theory" only.
            beta: inverse temperature per row, for "theory" only; 1 where the dynamics has no temperature.

        Raises:
            SettingError: a setting breaks its rule, or no step was measured and ζ is not 0.
            DivergenceError: the risk or Y is not finite.
        """
        risk, factor = as_risk(valid_risk), as_zeta(zeta, lr, beta)
        if factor and not self.measured:
            raise SettingError("no step was measured: call `monitor.step(...)` in the training loop before `objective`")
        return risk + factor * self.regularizer if factor else risk

    # State

    def reset(self) -> None:
        """Begin a new trajectory: Y = 0 at step 0."""
        self._total = torch.zeros_like(self._total)
        self.steps, self.measured = 0, 0

    def state_dict(self) -> dict[str, float | int]:
        """Return the state as plain numbers, for a checkpoint or JSON."""
        counts = {"steps": self.steps, "measured": self.measured, "every": self.every, "seed": self.seed}
        return {"total": float(self._total), **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state that `state_dict` returned.

        Raises:
            SettingError: the state is not that of a monitor with this `every` and `seed`.
        """
        check_state(state, {"every": self.every, "seed": self.seed})
        self._total = torch.full_like(self._total, state["total"])
        self.steps, self.measured = state["steps"], state["measured"]

    # Inner workings

    def _home(self) -> torch.device:
        """Return the device of Y: that of the model, or the CPU if that device has no float64."""
        device = next(self.model.parameters()).device
        return torch.device("cpu") if device.type == "mps" else device

    def _parameters(self) -> Params:
        """Return the parameters, not copies: compiled models and recurrent layers keep references to them."""
        every = dict(self.model.named_parameters())
        return {name: every[name] for name in self._names if every[name].requires_grad}

    def _gradient(self, params: Params, batch: Any, role: str) -> Params:
        """Return the gradient of a risk. A backward pass may rerun forwards, so it must not change the model either."""

        def gradient() -> Params:
            risk = risk_of(self._risk, self.model, batch, role)
            return split(torch.autograd.grad(risk, list(params.values()), allow_unused=True), params)[0]

        slots, buffers = buffer_slots(self.model)
        key = self._streams.key(f"{role} forward", 0, self.steps)
        with forked(self.model, key), restored_mode(self.model), torch.enable_grad():
            wake(self.model)
            found = call_with([(slots, clone(buffers))], gradient)
        return mean_over_processes(found) if self._average else found

    def _with_penalty(self, gradient: Params, params: Params) -> Params:
        for penalty in self._penalties:
            part = penalty({name: p.detach() for name, p in params.items()})
            gradient = {name: g + part[name] if name in part else g for name, g in gradient.items()}
        return gradient

    def _summand(self, train: Params, valid: Params) -> Tensor:
        """Return ‖clip(∇R_T) − clip(∇R_V)‖²: every tensor in at least float32, their sum in float64."""
        clip_train, clip_valid = self._clips
        difference = sub(clip(precise(train), clip_train), clip(precise(valid), clip_valid))
        home = self._home()
        return torch.stack([torch.sum(value * value).to(home, torch.float64) for value in difference.values()]).sum()
