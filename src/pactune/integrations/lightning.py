"""Lightning: a callback that monitors a run and logs Eq. 5, for checkpoints, early stopping and studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from pactune.errors import DivergenceError, SettingError
from pactune.extras import require
from pactune.integrations.batches import EndlessBatches
from pactune.integrations.reading import Zeta
from pactune.monitor import CoherenceMonitor
from pactune.monitor.checks import as_zeta

__all__ = ["CoherenceCallback"]

PREFIX = "coherence/"  # of the names under which values are logged
_Callback: Any = require("lightning.pytorch.callbacks").Callback


class CoherenceCallback(_Callback):  # type: ignore[misc]
    """Calls a `CoherenceMonitor` at every optimizer step, and logs `coherence/regularizer` and `coherence/objective`.

    The training gradient is the one that Lightning has just computed, so that a measured step costs one validation
    gradient. The validation gradient is computed in the trainer's precision, and steps that the gradient scaler skips
    are left out; with several processes it is averaged. Gradient clipping comes after it. Nothing is logged before the
    first measured step.

    Args:
        loss: `loss(module(inputs), target)` for batches `(inputs, target)`, without penalty.
        valid: a `DataLoader` (of your own, not the trainer's) or a list of batches. Its position is in the state.
        zeta: a number ≥ 0, or "theory" for √(lr/4) with the optimizer's first learning rate.
        risk: the metric that the module logs as its validation risk, in `validation_step` or at the epoch's end.
        batch_loss: `batch_loss(module, batch)` instead of `loss`.
        weight_decay: as for `CoherenceMonitor`; None reads the optimizer's own.
        settings: further settings of `CoherenceMonitor`: `every`, `penalty`, `clip_train`, `clip_valid`, `seed`.

    Raises:
        SettingError: a setting breaks its rule, there are several optimizers, the metric is unknown, or `every` is more
            than the steps before a validation at which `EarlyStopping`, say, reads a value.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor] | None = None,
        *,
        valid: Iterable[Any],
        zeta: Zeta,
        risk: str = "val_loss",
        batch_loss: Callable[..., Tensor] | None = None,
        weight_decay: float | Mapping[str, float] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        as_zeta(zeta, 1.0, 1.0)
        self.zeta, self.risk = zeta, risk
        self.monitor: CoherenceMonitor | None = None
        self._lr: float | None = None
        self._valid = EndlessBatches(valid, seed=settings.get("seed", 0))
        self._settings = {"loss": loss, "batch_loss": batch_loss, "weight_decay": weight_decay, **settings}
        self._state: dict[str, Any] | None = None
        self._seen = -1  # the optimizer step that was counted last

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the monitor for the optimizer of the run, and load the state of a checkpoint."""
        if len(trainer.optimizers) != 1:
            raise SettingError(f"CoherenceCallback needs one optimizer, this run has {len(trainer.optimizers)}")
        (optimizer,) = trainer.optimizers
        self._lr = float(optimizer.param_groups[0]["lr"])
        settings = {"average": trainer.world_size > 1, **self._settings}
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            settings.setdefault("on_nonfinite", "skip")
        if settings["weight_decay"] is None:
            settings["weight_decay"] = optimizer if "weight_decay" in optimizer.param_groups[0] else 0.0
        self.monitor = CoherenceMonitor(pl_module, **settings)
        self._valid.restart()
        self._seen = -1
        if self._state is not None:
            self.monitor.load_state_dict(self._state["monitor"])
            self._valid.load_state_dict(self._state["valid"])
            self._state = None
        self._check_stride(trainer, _steps_to_validation(trainer))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Count an optimizer step, and measure when it is due.

        LBFGS computes the gradient several times in a step; the first time is that of θ_t. A `training_step` that
        returned None left no gradient, and the parameters do not move.
        """
        assert self.monitor is not None
        if trainer.global_step == self._seen or all(p.grad is None for p in pl_module.parameters()):
            return
        self._seen = trainer.global_step
        batch = _prepared(trainer, self._valid.take()) if self.monitor.due else None
        with trainer.precision_plugin.forward_context():
            self.monitor.step(None, batch, grad_scale=loss_scale(trainer, optimizer))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the regularizer and the objective after the module's own hook, in which it may log its risk."""
        _call_after(pl_module, "on_validation_epoch_end", lambda: self._log(pl_module))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the monitor and the position in `valid`, for Lightning's checkpoints."""
        if self._state is not None or self.monitor is None:
            return self._state or {}
        return {"monitor": self.monitor.state_dict(), "valid": self._valid.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of a checkpoint until training starts.

        Raises:
            SettingError: the state is not that of a CoherenceCallback.
        """
        if state_dict and set(state_dict) != {"monitor", "valid"}:
            raise SettingError(f"`state_dict` must have monitor and valid, got {sorted(state_dict)}")
        self._state = state_dict or None

    def _log(self, module: Any) -> None:
        """Log Eq. 5; the values are infinite after a divergence."""
        trainer, monitor = module.trainer, self.monitor
        if trainer.sanity_checking or monitor is None:
            return
        if not monitor.measured:
            self._check_stride(trainer, monitor.steps)
            return
        if self.risk not in trainer.callback_metrics:
            known = sorted(trainer.callback_metrics)
            raise SettingError(
                f"`risk` must be a metric that the module logs in validation, got {self.risk!r}; {known}"
            )
        for name, value in self._values(trainer.callback_metrics[self.risk]).items():
            module.log(f"{PREFIX}{name}", value)

    def _check_stride(self, trainer: Any, steps: float) -> None:
        """Raise if a callback or scheduler reads the values at a validation before the first measured step."""
        assert self.monitor is not None
        readers = _readers(trainer)
        if readers and not self.monitor.measured and steps < self.monitor.every:
            raise SettingError(
                f"`every` must be at most the optimizer steps before the first validation, {steps} here, since "
                f"{', '.join(readers)} reads {PREFIX}… there, got {self.monitor.every}; lower `every` or validate later"
            )

    def _values(self, risk: Tensor) -> dict[str, float]:
        assert self.monitor is not None
        try:
            objective = self.monitor.objective(risk, self.zeta, lr=self._lr)
            return {"regularizer": self.monitor.regularizer, "objective": objective}
        except DivergenceError:
            return {"regularizer": float("inf"), "objective": float("inf")}


def _prepared(trainer: Any, batch: Any) -> Any:
    """Return a batch as Lightning passes it to the module: converted, after the hooks, and on the device."""
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.lightning_module._on_before_batch_transfer(batch)
    return trainer.strategy.batch_to_device(batch)


def loss_scale(trainer: Any, optimizer: Any) -> float:
    """Return the factor on `.grad`: Lightning divides by the scaler's, unless a fused optimizer does so itself."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    if scaler is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return 1.0
    return float(scaler.get_scale())


def _readers(trainer: Any) -> list[str]:
    """Return the names of the callbacks and schedulers that read one of our values at every validation."""
    if trainer.fast_dev_run:
        return []
    named = [(type(one).__name__, getattr(one, "monitor", None)) for one in trainer.callbacks]
    named += [(type(one.scheduler).__name__, one.monitor) for one in trainer.lr_scheduler_configs]
    return [name for name, key in named if isinstance(key, str) and key.startswith(PREFIX)]


def _steps_to_validation(trainer: Any) -> float:
    """Return the largest possible number of optimizer steps before the first validation; infinite if unknown."""
    if trainer.val_check_batch is None:  # validation after a time, not after a number of batches
        return math.inf
    epochs = trainer.check_val_every_n_epoch or 1
    batches = (epochs - 1) * trainer.num_training_batches + trainer.val_check_batch
    return math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else math.inf


def _call_after(module: Any, name: str, then: Callable[[], None]) -> None:
    """Call `then` once, after the module's hook `name`. Lightning calls that hook after the hooks of callbacks."""
    own, attributes = getattr(module, name), vars(module)
    before = {name: attributes[name]} if name in attributes else {}

    def once() -> None:
        del attributes[name]
        attributes.update(before)
        own()
        then()

    attributes[name] = once
