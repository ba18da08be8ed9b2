"""A Lightning run is watched, logged, checkpointed, and otherwise as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import pactune as pt
from pactune.integrations.batches import Endless

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 4, generator=GENERATOR), torch.arange(48) % 3


def loader(part: slice, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X[part], Y[part]), batch_size=8, **settings)


class TestBatches:
    def test_a_loader_is_read_over_and_over_without_a_trace(self) -> None:
        before = torch.get_rng_state()
        endless = Endless(loader(slice(0, 24), shuffle=True), seed=1)
        taken = [endless.take()[0] for _ in range(6)]
        assert torch.equal(before, torch.get_rng_state())
        assert {tuple(row) for batch in taken[:3] for row in batch.tolist()} == {tuple(row) for row in X[:24].tolist()}
        assert not torch.equal(taken[0], taken[3])  # shuffled anew
        again = Endless(loader(slice(0, 24), shuffle=True), seed=1)
        assert all(torch.equal(again.take()[0], batch) for batch in taken)

    @pytest.mark.parametrize("given", [3, "batches", iter([1, 2])])
    def test_what_cannot_be_read_again_is_refused(self, given: Any) -> None:
        with pytest.raises(pt.DataError, match="`valid` must be a DataLoader or a list of batches"):
            Endless(given)

    def test_an_empty_one_is_refused(self) -> None:
        with pytest.raises(pt.DataError, match="`valid` yields no batch"):
            Endless([]).take()


class TestWithLightning:
    @pytest.fixture(autouse=True)
    def _lightning(self, tmp_path: Path) -> None:
        self.lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
        self.folder = tmp_path

    def module(self) -> Any:
        lightning = self.lightning

        class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))

            def forward(self, x: Tensor) -> Tensor:
                return self.net(x)  # type: ignore[no-any-return]

            def training_step(self, batch: Any, index: int) -> Tensor:
                return F.cross_entropy(self(batch[0]), batch[1])

            def validation_step(self, batch: Any, index: int) -> None:
                self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

            def configure_optimizers(self) -> Any:
                return torch.optim.AdamW(self.parameters(), lr=0.04, weight_decay=0.1)

        torch.manual_seed(0)
        return Module()

    def fit(self, module: Any, callbacks: list[Any], **settings: Any) -> Any:
        trainer = self.lightning.Trainer(
            **{
                "max_epochs": 3,
                "accelerator": "cpu",
                "callbacks": callbacks,
                "default_root_dir": self.folder,
                "logger": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "enable_checkpointing": False,
                **settings,
            }
        )
        path = settings.pop("ckpt_path", None)
        torch.manual_seed(1)
        trainer.fit(module, loader(slice(0, 24), shuffle=True), loader(slice(24, 48)), ckpt_path=path)
        return trainer

    def callback(self, **settings: Any) -> Any:
        from pactune.integrations.lightning import CoherenceCallback

        given = {"valid": loader(slice(24, 48), shuffle=True), "zeta": "theory", **settings}
        return CoherenceCallback(None if "batch_loss" in given else F.cross_entropy, **given)

    def test_logs_equation_5(self) -> None:
        watch = self.callback()
        trainer = self.fit(self.module(), [watch])
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        assert watch.monitor.steps == watch.monitor.measured == 9
        assert metrics["coherence/regularizer"] == pytest.approx(watch.monitor.regularizer, rel=1e-6)
        expected = metrics["val_loss"] + 0.1 * watch.monitor.regularizer  # √(0.04/4)
        assert metrics["coherence/objective"] == pytest.approx(expected, rel=1e-6)

    def test_the_run_is_bit_for_bit_the_same(self) -> None:
        alone, watched = self.module(), self.module()
        self.fit(alone, [])
        state = torch.get_rng_state()
        self.fit(watched, [self.callback(every=2)])
        assert torch.equal(state, torch.get_rng_state())
        torch.testing.assert_close(dict(watched.state_dict()), dict(alone.state_dict()), rtol=0, atol=0)

    def test_the_optimizer_s_decay_is_read(self) -> None:
        found = []
        for settings in ({}, {"weight_decay": 0.1}, {"weight_decay": 0.0}):
            watch = self.callback(**settings)
            self.fit(self.module(), [watch])
            found.append(watch.monitor.total)
        assert found[0] == found[1] != found[2]

    def test_early_stopping_and_checkpoints_see_the_objective(self) -> None:
        callbacks = self.lightning.callbacks
        stop = callbacks.EarlyStopping("coherence/objective", patience=0, min_delta=1e9)  # no gain is enough
        best = callbacks.ModelCheckpoint(self.folder, monitor="coherence/objective", filename="best")
        trainer = self.fit(self.module(), [self.callback(), stop, best], enable_checkpointing=True, max_epochs=9)
        assert trainer.current_epoch == 2
        assert float(best.best_model_score) > 0

    def test_a_resumed_run_goes_on_counting(self) -> None:
        keep = self.lightning.callbacks.ModelCheckpoint(self.folder, filename="half", save_on_train_epoch_end=True)
        first = self.callback()
        self.fit(self.module(), [first, keep], enable_checkpointing=True, max_epochs=1)
        second = self.callback()
        trainer = self.lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=[second],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=self.folder,
        )
        data = loader(slice(0, 24), shuffle=True), loader(slice(24, 48))
        trainer.fit(self.module(), *data, ckpt_path=str(self.folder / "half.ckpt"), weights_only=False)
        assert (first.monitor.steps, second.monitor.steps) == (3, 6)
        assert second.monitor.total > first.monitor.total

    def test_mixed_precision(self) -> None:
        watch = self.callback()
        self.fit(self.module(), [watch], precision="bf16-mixed")
        assert watch.monitor.total > 0

    def test_an_unknown_metric_is_named(self) -> None:
        with pytest.raises(pt.SettingError, match=r"got 'valid_loss'; \['val_loss'\]"):
            self.fit(self.module(), [self.callback(risk="valid_loss")])

    def test_several_optimizers_are_refused(self) -> None:
        module = self.module()
        module.automatic_optimization = False
        module.configure_optimizers = lambda: [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2)]
        with pytest.raises(pt.SettingError, match="needs one optimizer, this run has 2"):
            self.fit(module, [self.callback()])
