"""Lightning: a callback that watches a run and logs Eq. 5, for checkpoints, early stopping and studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from pactune.errors import DivergenceError, SettingError
from pactune.integrations.batches import Endless
from pactune.integrations.extras import needed
from pactune.integrations.reading import Zeta
from pactune.monitor import CoherenceMonitor
from pactune.monitor.checks import as_zeta

__all__ = ["CoherenceCallback"]

_Callback: Any = needed("lightning.pytorch.callbacks", extra="lightning").Callback


class CoherenceCallback(_Callback):  # type: ignore[misc]
    """Feeds a `CoherenceMonitor` at every optimizer step; logs `coherence/regularizer` and `coherence/objective`.

    The training gradient is the one that Lightning has just computed, so that a measured step costs one validation
    gradient. Under mixed precision the validation gradient is computed in the same precision, and steps that the
    gradient scaler skips are left out; with several processes it is averaged. Gradient clipping comes after it.

    Args:
        loss: `loss(module(inputs), target)` for batches `(inputs, target)`, without penalty.
        valid: a `DataLoader` (of your own, not the trainer's) or a list of batches.
        zeta: a number ≥ 0, or "theory" for √(lr/4) with the optimizer's first learning rate.
        risk: the metric that the module logs as its validation risk.
        batch_loss: `batch_loss(module, batch)` instead of `loss`.
        weight_decay: as for `CoherenceMonitor`; None reads the optimizer's own.
        settings: further settings of `CoherenceMonitor`: `every`, `penalty`, `clip_train`, `clip_valid`, `seed`.

    Raises:
        SettingError: a setting breaks its rule, there are several optimizers, or the metric is unknown.
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
        self._valid = Endless(valid, seed=settings.get("seed", 0))
        self._settings = {"loss": loss, "batch_loss": batch_loss, "weight_decay": weight_decay, **settings}
        self._state: dict[str, Any] | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the monitor, once the optimizer is known."""
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
        if self._state is not None:
            self.monitor.load_state_dict(self._state)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Measure, when it is due."""
        assert self.monitor is not None
        if not self.monitor.due:
            self.monitor.step()
            return
        batch = trainer.strategy.batch_to_device(self._valid.take())
        with trainer.precision_plugin.forward_context():
            self.monitor.step(None, batch)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the regularizer and the objective; infinite after a divergence."""
        if trainer.sanity_checking or self.monitor is None or not self.monitor.measured:
            return
        if self.risk not in trainer.callback_metrics:
            known = sorted(trainer.callback_metrics)
            raise SettingError(
                f"`risk` must be a metric that the module logs in validation, got {self.risk!r}; {known}"
            )
        for name, value in self._values(trainer.callback_metrics[self.risk]).items():
            pl_module.log(f"coherence/{name}", value)

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's state, for Lightning's checkpoints."""
        return {} if self.monitor is None else dict(self.monitor.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the checkpoint was taken."""
        self._state = state_dict or None

    def _values(self, risk: Tensor) -> dict[str, float]:
        assert self.monitor is not None
        try:
            objective = self.monitor.objective(risk, self.zeta, lr=self._lr)
            return {"regularizer": self.monitor.regularizer, "objective": objective}
        except DivergenceError:
            return {"regularizer": float("inf"), "objective": float("inf")}
