"""A run that was stopped and resumed is, bit for bit, the run that was never stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import pactune as pt
from pactune.tracking import read_journal, recorder

STEPS = 5


class Kill(BaseException):
    """Ends a run as a killed process does: nothing is tidied up."""


class KillAt(pt.Callback):
    """Kills when an outer step is done and before it is saved."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
        if row["outer_step"] == self._step:
            raise Kill


class Backwards(Sampler[int]):
    """A sampler of the user's own, of which nothing is known."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __iter__(self) -> Any:
        return iter(torch.randperm(self._rows).flip(0).tolist())

    def __len__(self) -> int:
        return self._rows


def noisy_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))


def opaque(classes: Any) -> DataLoader[Any]:
    data = TensorDataset(*classes(12, 1))
    return DataLoader(data, batch_size=5, sampler=Backwards(12))


CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam, mini-batches": {"inner": pt.Adam(lr=0.05), "batch_size": 5},
    "momentum, chains": {"inner": pt.SGD(lr=0.1, momentum=0.9), "chains": 2},
    "langevin, restart": {"inner": pt.Langevin(lr=0.05, inverse_temperature=50.0), "chains": 2, "restart": True},
    "online": {"online": True},
    "online, restart": {"online": True, "restart": True},
    "batch norm and dropout": {"model": noisy_model, "batch_size": 5},
    "windowed": {"hypergradient": pt.Windowed(2), "path_hypergradient": pt.Windowed(2)},
    "torch.optim inside": {"inner": partial(torch.optim.RMSprop, lr=1e-2), "batch_size": 5},
    "torch.optim.Adam inside": {"inner": partial(torch.optim.Adam, lr=1e-2)},
    "outer RMSprop": {"outer": partial(torch.optim.RMSprop, lr=1e-2, momentum=0.5)},
    "outer Adam": {"outer": partial(torch.optim.Adam, lr=1e-2)},
    "outer SGD with momentum": {"outer": partial(torch.optim.SGD, lr=1e-2, momentum=0.9)},
    "best objective": {"keep": "best-objective", "outer_lr": 5.0},
    "hyper-drift": {"objective": pt.HyperDrift(zeta=0.05), "inner": pt.Adam(lr=0.05)},
    "test set": {"test": True},
    "plain for two steps": {"plain_steps": 2},
    "loader with a sampler of its own": {"train": opaque},
    "auto": {"objective": pt.PACBayes(zeta=pt.AutoZeta(folds=2))},
}
FIT = ("keep", "plain_steps", "test")


@pytest.fixture(name="fit")
def fit_fixture(make: Any, classes: Any) -> Any:
    """Fit a case from the beginning, as a new process would."""

    def fit(case: dict[str, Any], steps: int = STEPS, **options: Any) -> tuple[pt.Tuner, pt.Result]:
        settings = {key: value for key, value in case.items() if key not in FIT}
        if "model" in settings:
            settings["model"] = settings["model"]()
        if "train" in settings:
            settings["train"] = settings["train"](classes)
        outer = settings.pop("outer", None)
        tuner = make(**settings)
        if outer is not None:
            tuner = pt.Tuner(
                tuner.problem,
                inner=tuner.inner,
                inner_steps=4,
                outer=outer(tuner.problem.hyper.parameters()),
                objective=pt.PACBayes(zeta=0.05),
            )
        given = {key: case[key] for key in FIT if key in case}
        if "test" in given:
            given["test"] = classes(30, 3)
        return tuner, tuner.fit(steps, progress=False, **given, **options)

    return fit


def same(a: pt.Result, b: pt.Result) -> None:
    """Compare two results to the last bit, time apart."""
    for one, two in ((a.rows, b.rows), (a.plain_rows, b.plain_rows), (a.trials, b.trials)):
        strip = [[{k: v for k, v in row.items() if k != "seconds"} for row in rows] for rows in (one, two)]
        assert strip[0] == strip[1]
    kept = ("status", "zeta", "kept_run", "kept_step", "verdict", "pays")
    assert [getattr(a, name) for name in kept] == [getattr(b, name) for name in kept]
    for one, two in ((a.model, b.model), (a.hyper, b.hyper)):
        for name, value in one.state_dict().items():
            assert torch.equal(value, two.state_dict()[name]), name


def killed(fit: Any, case: dict[str, Any], folder: Path, step: int) -> None:
    with pytest.raises(Kill):
        fit(case, run_dir=folder, resume=True, callbacks=[KillAt(step)])


@pytest.mark.parametrize("name", CASES)
def test_resumed_is_uninterrupted(name: str, fit: Any, tmp_path: Path) -> None:
    case = CASES[name]
    tuner, reference = fit(case)
    killed(fit, case, tmp_path / "run", 2)
    killed(fit, case, tmp_path / "run", 4)
    again, result = fit(case, run_dir=tmp_path / "run", resume=True)
    same(reference, result)
    if name == "auto":
        return
    same(tuner.fit(2, progress=False), again.fit(2, progress=False))


@pytest.mark.parametrize(("zeta", "calls"), [(0.05, 38), (pt.AutoZeta(folds=2), 190)], ids=["number", "auto"])
def test_killed_inside_the_inner_loop(zeta: Any, calls: int, make: Any, tmp_path: Path) -> None:
    """A process that dies in the midst of a round gets a little further every time: no fold, no step is made again."""
    settings = {"inner": pt.Adam(lr=0.05), "batch_size": 5, "objective": pt.PACBayes(zeta=zeta)}
    left = 0

    def loss(prediction: torch.Tensor, target: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        nonlocal left
        left -= 1
        if left == 0:
            raise Kill
        return nn.functional.cross_entropy(prediction, target, reduction=reduction)

    reference = make(**settings, loss=loss).fit(4, progress=False)
    kills, result = 0, None
    while result is None and kills < 40:
        left = calls
        try:
            result = make(**settings, loss=loss).fit(4, progress=False, run_dir=tmp_path, resume=True)
        except Kill:
            kills += 1
    assert kills >= 3
    assert result is not None
    same(reference, result)


def test_slow_checkpoints_are_rare_and_steps_are_made_again(
    fit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each is slow, only the first and the last are written; the rows of steps made again are written once."""
    monkeypatch.setattr(recorder, "FREE", 0.0)
    monkeypatch.setattr(recorder, "PAUSE", 1e6)
    case = CASES["adam, mini-batches"]
    killed(fit, case, tmp_path, 4)
    assert [path.name for path in sorted(tmp_path.glob("*.safetensors"))] == ["checkpoint-00000000.safetensors"]
    assert [line["kind"] for line in read_journal(tmp_path)].count("row") == 3
    same(fit(case)[1], fit(case, run_dir=tmp_path, resume=True)[1])
    assert [line["outer_step"] for line in read_journal(tmp_path) if line["kind"] == "row"] == [1, 2, 3, 4, 5]
    assert (tmp_path / "checkpoint-00000005.safetensors").exists()


def test_finished_run_is_not_run_again(fit: Any, tmp_path: Path) -> None:
    case = CASES["adam, mini-batches"]
    _, first = fit(case, run_dir=tmp_path)
    _, second = fit(case, run_dir=tmp_path, resume=True, callbacks=[KillAt(1)])
    same(first, second)
    assert first.rows == second.rows  # seconds too: they are those of the first run
    kinds = [line["kind"] for line in read_journal(tmp_path)]
    assert kinds.count("row") == kinds.count("plain row") == STEPS


def test_finished_run_can_be_made_longer(fit: Any, tmp_path: Path) -> None:
    case = CASES["adam, mini-batches"]
    fit(case, steps=2, run_dir=tmp_path)
    same(fit(case)[1], fit(case, run_dir=tmp_path, resume=True)[1])
    with pytest.raises(pt.SettingError, match="`outer_steps` must be at least 5"):
        fit(case, steps=2, run_dir=tmp_path, resume=True)


@pytest.mark.parametrize("objective", [pt.PACBayes(0.05), pt.HyperDrift(0.05), pt.PACBayes(pt.AutoZeta(folds=2))])
def test_a_start_that_was_not_seeded_is_remembered(objective: Any, make: Any, linear: Any, tmp_path: Path) -> None:
    class DieInTheFirstRound(pt.Callback):
        def on_fit_begin(self, tuner: pt.Tuner, outer_steps: int) -> None:
            tuner.problem.train.batch = lambda *_: (_ for _ in ()).throw(Kill())  # type: ignore[method-assign]

    def tuner(seed: int) -> pt.Tuner:
        model = linear(seed)
        return make(model=model, hyper=pt.WeightDecay(model, init=0.1 * seed), objective=objective)

    reference = tuner(1).fit(3, progress=False)
    with pytest.raises(Kill):
        tuner(1).fit(3, run_dir=tmp_path, progress=False, callbacks=[DieInTheFirstRound()])
    same(reference, tuner(2).fit(3, run_dir=tmp_path, resume=True, progress=False))


def test_a_later_fit_of_a_tuner_has_a_folder_of_its_own(make: Any, tmp_path: Path) -> None:
    def continued(**options: Any) -> pt.Result:
        tuner = make(inner=pt.Adam(lr=0.05), batch_size=5)
        tuner.fit(2, progress=False)
        return tuner.fit(3, progress=False, **options)

    reference = continued()
    with pytest.raises(Kill):
        continued(run_dir=tmp_path, callbacks=[KillAt(4)])
    fresh = make(inner=pt.Adam(lr=0.05), batch_size=5)
    result = fresh.fit(3, progress=False, run_dir=tmp_path, resume=True)
    assert [row["outer_step"] for row in result.rows] == [3, 4, 5]
    same(reference, result)


class Schedule(pt.Callback):
    """Steps a scheduler of the outer optimizer."""

    def __init__(self) -> None:
        self.scheduler: Any = None
        self.rows: list[int] = []

    def on_fit_begin(self, tuner: pt.Tuner, outer_steps: int) -> None:
        self.scheduler = self.scheduler or torch.optim.lr_scheduler.StepLR(tuner.outer, step_size=2, gamma=0.5)
        if hasattr(self, "loaded"):
            self.scheduler.load_state_dict(self.loaded)

    def on_resume(self, tuner: pt.Tuner, rows: list[Any]) -> None:
        self.rows = [row["outer_step"] for row in rows]

    def on_hyper_step(self, tuner: pt.Tuner) -> None:
        self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        kept = ("last_epoch", "base_lrs", "_step_count", "_last_lr")
        return {name: value for name, value in self.scheduler.state_dict().items() if name in kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state


def test_listeners_are_remembered(fit: Any, tmp_path: Path) -> None:
    _, reference = fit({}, callbacks=[Schedule()])
    assert reference.rows != fit({})[1].rows
    with pytest.raises(Kill):
        fit({}, run_dir=tmp_path, callbacks=[Schedule(), KillAt(4)])
    schedule = Schedule()
    _, result = fit({}, run_dir=tmp_path, resume=True, callbacks=[schedule])
    assert schedule.rows == [1, 2, 3]
    assert [row["objective"] for row in result.rows] == [row["objective"] for row in reference.rows]
    with pytest.raises(pt.SettingError, match="had a listener that `callbacks` lacks: Schedule"):
        fit({}, run_dir=tmp_path, resume=True)


def test_converged_and_stopped_runs(fit: Any, tmp_path: Path) -> None:
    class Stop(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
            raise StopIteration

    _, converged = fit({}, run_dir=tmp_path / "converged", tolerance=1e6)
    same(converged, fit({}, run_dir=tmp_path / "converged", resume=True, tolerance=1e6)[1])
    assert (converged.status, len(converged.rows)) == ("converged", 1)
    fit({}, run_dir=tmp_path / "stopped", callbacks=[Stop()])
    same(fit({})[1], fit({}, run_dir=tmp_path / "stopped", resume=True)[1])


def test_ctrl_c_and_divergence_are_in_the_journal(make: Any, tmp_path: Path) -> None:
    class Interrupt(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
            raise KeyboardInterrupt

    make().fit(3, progress=False, run_dir=tmp_path / "a", callbacks=[Interrupt()])
    assert read_journal(tmp_path / "a")[-1]["status"] == "interrupted"
    with pytest.raises(pt.DivergenceError):
        make(inner=pt.SGD(lr=1e30)).fit(9, progress=False, run_dir=tmp_path / "b")
    end = read_journal(tmp_path / "b")[-1]
    assert end["status"] == "diverged"
    assert "not finite" in end["error"]
    with pytest.raises(Kill):
        make().fit(3, progress=False, run_dir=tmp_path / "c", callbacks=[KillAt(2)])
    assert read_journal(tmp_path / "c")[-1]["status"] == "failed"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("inner", [pt.Adam(lr=0.05), partial(torch.optim.Adam, lr=1e-2)], ids=["Adam", "torch.optim"])
def test_resumed_is_uninterrupted_on_cuda(inner: Any, make: Any, classes: Any, tmp_path: Path) -> None:
    def fit(**options: Any) -> pt.Result:
        train, valid = ([part.cuda() for part in classes(12, seed)] for seed in (1, 2))
        tuner = make(noisy_model().cuda(), inner=inner, train=train, valid=valid, batch_size=5)
        return tuner.fit(STEPS, progress=False, **options)

    with pytest.raises(Kill):
        fit(run_dir=tmp_path, callbacks=[KillAt(3)])
    same(fit(), fit(run_dir=tmp_path, resume=True))
