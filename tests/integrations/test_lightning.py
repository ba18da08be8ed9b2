"""A Lightning run is watched, logged, checkpointed, and otherwise as it was."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import pactune as pt
from pactune.integrations.batches import EndlessBatches

GENERATOR = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 4, generator=GENERATOR), torch.arange(48) % 3


def loader(part: slice, **settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X[part], Y[part]), batch_size=8, **settings)


class TestBatches:
    def test_a_loader_is_read_over_and_over_without_a_trace(self) -> None:
        before = torch.get_rng_state()
        endless = EndlessBatches(loader(slice(0, 24), shuffle=True), seed=1)
        taken = [endless.take()[0] for _ in range(6)]
        assert torch.equal(before, torch.get_rng_state())
        assert {tuple(row) for batch in taken[:3] for row in batch.tolist()} == {tuple(row) for row in X[:24].tolist()}
        assert not torch.equal(taken[0], taken[3])  # shuffled anew
        again = EndlessBatches(loader(slice(0, 24), shuffle=True), seed=1)
        assert all(torch.equal(again.take()[0], batch) for batch in taken)

    LOADERS: ClassVar = {
        "in order": {},
        "shuffled": {"shuffle": True},
        "with a generator": {"shuffle": True, "generator": "its own"},
        "with a sampler": {"sampler": "its own"},
        "with replacement": {"sampler": "with replacement"},
        "in another process": {"shuffle": True, "num_workers": 1},
    }

    def made(self, name: str) -> DataLoader[Any]:
        settings = dict(self.LOADERS[name])
        if "generator" in settings:
            settings["generator"] = torch.Generator().manual_seed(5)
        if "sampler" in settings:
            generator = torch.Generator().manual_seed(5) if settings["sampler"] == "its own" else None
            settings["sampler"] = WeightedRandomSampler([1.0] * 24, 24, generator=generator)
        return loader(slice(0, 24), **settings)

    @pytest.mark.parametrize("name", LOADERS)
    def test_the_position_is_a_state(self, name: str) -> None:
        """A new process goes on with the batch that the old one would have taken, in the same order."""
        through = EndlessBatches(self.made(name), seed=3)
        taken = [through.take()[0] for _ in range(8)]
        for stop in (0, 2, 3, 4, 6):
            first, second = EndlessBatches(self.made(name), seed=3), EndlessBatches(self.made(name), seed=3)
            for _ in range(stop):
                first.take()
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
            assert all(torch.equal(second.take()[0], batch) for batch in taken[stop:])
            if name == "in another process":
                break  # it takes long, and the others say the same

    def test_a_loader_s_own_generator_does_not_move(self) -> None:
        mine = torch.Generator().manual_seed(5)
        before = mine.get_state()
        endless = EndlessBatches(loader(slice(0, 24), shuffle=True, generator=mine), seed=1)
        orders = [tuple(endless.take()[1].tolist()) for _ in range(6)]
        assert torch.equal(before, mine.get_state())
        assert set(orders[:3]) != set(orders[3:])  # shuffled anew all the same

    @pytest.mark.parametrize("state", [{}, {"taken": 1}, {"taken": 1, "start": 2}, {"taken": "1", "start": 0}, 3])
    def test_a_position_that_is_none_is_refused(self, state: Any) -> None:
        with pytest.raises(pt.SettingError, match="`state` must be a reading position"):
            EndlessBatches([1, 2]).load_state_dict(state)

    @pytest.mark.parametrize("given", [3, "batches", iter([1, 2])])
    def test_what_cannot_be_read_again_is_refused(self, given: Any) -> None:
        with pytest.raises(pt.DataError, match="`valid` must be a DataLoader or a list of batches"):
            EndlessBatches(given)

    def test_an_empty_one_is_refused(self) -> None:
        with pytest.raises(pt.DataError, match="`valid` yields no batch"):
            EndlessBatches([]).take()


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

    def still(self) -> Any:
        """Return a module without dropout, whose training a checkpoint repeats bit for bit."""
        module = self.module()
        module.net[2] = nn.Identity()
        return module

    @property
    def quiet(self) -> dict[str, Any]:
        return {
            "accelerator": "cpu",
            "default_root_dir": self.folder,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }

    def fit(
        self, module: Any, callbacks: list[Any], *, shuffle: bool = True, ckpt_path: Any = None, **more: Any
    ) -> Any:
        settings = {"max_epochs": 3, "enable_checkpointing": False, **self.quiet, **more}
        trainer = self.lightning.Trainer(callbacks=callbacks, **settings)
        torch.manual_seed(1)
        data = loader(slice(0, 24), shuffle=shuffle), loader(slice(24, 48))
        trainer.fit(module, *data, **({"ckpt_path": ckpt_path, "weights_only": True} if ckpt_path else {}))
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

    @pytest.mark.parametrize("stop", [1, 2])
    @pytest.mark.parametrize("every", [1, 2])
    def test_a_resumed_run_is_bit_for_bit_the_same(self, every: int, stop: int) -> None:
        """Three epochs at once, and one or two epochs with the rest in another process, on a shuffled `valid`."""
        settings = {"every": every, "valid": loader(slice(24, 48), shuffle=True)}
        through, first, second = (self.callback(**settings) for _ in range(3))
        keep = [self.lightning.callbacks.ModelCheckpoint(self.folder, filename=f"{n}") for n in ("all", "half")]
        module = self.still
        self.fit(module(), [through, keep[0]], shuffle=False, enable_checkpointing=True)
        self.fit(module(), [first, keep[1]], shuffle=False, enable_checkpointing=True, max_epochs=stop)
        self.fit(module(), [second], shuffle=False, ckpt_path=str(self.folder / "half.ckpt"))
        assert (first.monitor.steps, second.monitor.steps) == (3 * stop, 9)
        assert second.state_dict() == through.state_dict()

    def test_a_second_fit_starts_anew(self) -> None:
        watch = self.callback()
        self.fit(self.module(), [watch])
        first = watch.state_dict()
        self.fit(self.module(), [watch])
        assert watch.state_dict() == first

    @pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
    def test_precision(self, precision: str) -> None:
        """The batches of `valid` come in the trainer's type, and Y is near that of float32."""
        exact, watch = self.callback(), self.callback()
        self.fit(self.module(), [exact])
        trainer = self.fit(self.module(), [watch], precision=precision)
        # bfloat16 has 8 bits: nine steps of rounded training leave the first digit or two of √Y
        assert watch.monitor.regularizer == pytest.approx(exact.monitor.regularizer, rel=0.2)
        assert float(trainer.callback_metrics["coherence/objective"]) > 0

    def test_a_fused_optimizer_s_gradients_are_unscaled(self) -> None:
        """Lightning leaves `.grad` multiplied by the scaler's factor where the optimizer divides by it."""
        from pactune.integrations.lightning import loss_scale

        scaler = SimpleNamespace(get_scale=lambda: 1024.0)
        trainer = SimpleNamespace(precision_plugin=SimpleNamespace(scaler=scaler))
        plain, fused = SimpleNamespace(), SimpleNamespace(_step_supports_amp_scaling=True)
        assert (loss_scale(trainer, plain), loss_scale(trainer, fused)) == (1.0, 1024.0)
        trainer.precision_plugin.scaler = None
        assert loss_scale(trainer, fused) == 1.0

    def test_the_module_s_batch_hooks_are_called(self) -> None:
        """A module may change its batches before or after they are moved; so it must with those of `valid`."""
        module, seen = self.module(), dict[str, set[int]]()
        for name in ("on_before_batch_transfer", "on_after_batch_transfer"):

            def hook(self: Any, batch: Any, index: int, name: str = name) -> Any:
                seen.setdefault(name, set()).add(len(batch[0]))
                return batch

            setattr(type(module), name, hook)
        self.fit(module, [self.callback(valid=[(X[24:44], Y[24:44])])])
        assert seen == {name: {8, 20} for name in ("on_before_batch_transfer", "on_after_batch_transfer")}

    @pytest.mark.parametrize("place", ["module", "instance", "callback"])
    def test_a_risk_logged_at_the_epoch_s_end_is_found(self, place: str) -> None:
        module, watch = self.module(), self.callback(zeta=0.1)
        kind = type(module)
        kind.validation_step = lambda self, batch, index: None
        others = []
        if place == "module":
            kind.on_validation_epoch_end = lambda self: self.log("val_loss", 0.5)
        elif place == "instance":
            module.on_validation_epoch_end = lambda: module.log("val_loss", 0.5)
        else:
            other = self.lightning.callbacks.Callback()
            other.on_validation_epoch_end = lambda trainer, module: module.log("val_loss", 0.5)
            others = [other]
        stop = self.lightning.callbacks.EarlyStopping("coherence/objective")
        own = vars(module).get("on_validation_epoch_end")
        trainer = self.fit(module, [stop, watch, *others])  # who reads may stand before who logs
        expected = 0.5 + 0.1 * watch.monitor.regularizer
        assert float(trainer.callback_metrics["coherence/objective"]) == pytest.approx(expected, rel=1e-6)
        assert float(trainer.logged_metrics["coherence/objective"]) == pytest.approx(expected, rel=1e-6)
        assert vars(module).get("on_validation_epoch_end") is own

    def readers(self) -> dict[str, Any]:
        callbacks = self.lightning.callbacks
        return {
            "EarlyStopping": callbacks.EarlyStopping("coherence/objective", patience=99),
            "ModelCheckpoint": callbacks.ModelCheckpoint(self.folder, monitor="coherence/regularizer"),
        }

    @pytest.mark.parametrize("name", ["EarlyStopping", "ModelCheckpoint", "ReduceLROnPlateau"])
    def test_a_stride_beyond_the_first_validation_is_refused(self, name: str) -> None:
        module, readers = self.module(), self.readers()
        if name == "ReduceLROnPlateau":
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            settings = {"scheduler": plateau, "monitor": "coherence/objective"}
            module.configure_optimizers = lambda: {"optimizer": optimizer, "lr_scheduler": settings}
        others = [readers[name]] if name in readers else []
        with pytest.raises(pt.SettingError, match=rf"`every` must be at most .* 3 here, since {name} reads"):
            self.fit(module, [self.callback(every=100), *others], enable_checkpointing=name == "ModelCheckpoint")

    def test_a_stride_beyond_an_epoch_is_fine_where_nobody_reads(self) -> None:
        watch = self.callback(every=5)
        trainer = self.fit(self.module(), [watch])
        assert (watch.monitor.steps, watch.monitor.measured) == (9, 2)
        assert "coherence/objective" in trainer.callback_metrics
        later = self.callback(every=9)
        stop = self.lightning.callbacks.EarlyStopping("coherence/objective")
        self.fit(self.module(), [later, stop], check_val_every_n_epoch=3)
        assert later.monitor.measured == 1

    def test_an_unknown_number_of_steps_is_said_at_the_validation(self) -> None:
        class Stream(IterableDataset[Any]):
            def __iter__(self) -> Any:
                return iter(zip(X[:24], Y[:24], strict=True))

        stop = self.lightning.callbacks.EarlyStopping("coherence/objective")
        trainer = self.lightning.Trainer(**self.quiet, callbacks=[self.callback(every=100), stop], max_epochs=2)
        with pytest.raises(pt.SettingError, match="3 here, since EarlyStopping reads"):
            trainer.fit(self.module(), DataLoader(Stream(), batch_size=8), loader(slice(24, 48)))

    def test_lbfgs_makes_one_step_per_batch(self) -> None:
        calls = []
        module, watch = self.module(), self.callback(zeta=0.1)
        module.configure_optimizers = lambda: torch.optim.LBFGS(module.parameters(), lr=0.01, max_iter=4)
        step = module.training_step
        module.training_step = lambda batch, batch_idx: calls.append(batch_idx) or step(batch, batch_idx)
        trainer = self.fit(module, [watch])
        assert watch.monitor.steps == watch.monitor.measured == trainer.global_step == 9
        assert len(calls) > 9

    def test_accumulated_batches_are_one_step(self) -> None:
        watch = self.callback()
        trainer = self.fit(self.module(), [watch], accumulate_grad_batches=2)
        assert watch.monitor.steps == trainer.global_step == 6

    def test_manual_optimization(self) -> None:
        module, watch = self.module(), self.callback()
        module.automatic_optimization = False

        def step(batch: Any, batch_idx: int) -> None:
            optimizer = module.optimizers()
            for _ in range(2):
                optimizer.zero_grad()
                module.manual_backward(F.cross_entropy(module(batch[0]), batch[1]))
                optimizer.step()

        module.training_step = step
        trainer = self.fit(module, [watch])
        assert watch.monitor.steps == trainer.global_step == 18

    def test_a_skipped_batch_is_no_step(self) -> None:
        module, watch = self.module(), self.callback()
        step = module.training_step
        module.training_step = lambda batch, batch_idx: step(batch, batch_idx) if batch_idx else None
        self.fit(module, [watch])
        assert watch.monitor.steps == 6

    def test_several_validation_loaders(self) -> None:
        module, watch = self.module(), self.callback(risk="val_loss/dataloader_idx_1", zeta=0.1)
        step = module.validation_step
        module.validation_step = lambda batch, index, dataloader_idx=0: step(batch, index)
        trainer = self.lightning.Trainer(**self.quiet, callbacks=[watch], max_epochs=1, limit_val_batches=1)
        trainer.fit(module, loader(slice(0, 24)), [loader(slice(24, 36)), loader(slice(36, 48))])
        risk = float(trainer.callback_metrics["val_loss/dataloader_idx_1"])
        expected = risk + 0.1 * watch.monitor.regularizer
        assert float(trainer.callback_metrics["coherence/objective"]) == pytest.approx(expected, rel=1e-6)

    def test_a_state_of_something_else_is_refused(self) -> None:
        with pytest.raises(pt.SettingError, match="`state_dict` must have monitor and valid"):
            self.callback().load_state_dict({"total": 1.0})

    def test_an_unknown_metric_is_named(self) -> None:
        with pytest.raises(pt.SettingError, match=r"got 'valid_loss'; \['val_loss'\]"):
            self.fit(self.module(), [self.callback(risk="valid_loss")])

    def test_several_optimizers_are_refused(self) -> None:
        module = self.module()
        module.automatic_optimization = False
        module.configure_optimizers = lambda: [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2)]
        with pytest.raises(pt.SettingError, match="needs one optimizer, this run has 2"):
            self.fit(module, [self.callback()])
