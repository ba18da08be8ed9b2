"""`pt.tune` from a model and its data to a kept model, on tiny data and with a short search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from sklearn.model_selection import GroupKFold, KFold, TimeSeriesSplit
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import pactune as pt
from pactune.search import many
from tests.search.calls import (
    CLASSES,
    HITS,
    NAMES,
    NUMBERS,
    ROWS,
    X,
    keeping,
    network,
    same,
    tune,
    tuning,
    weights,
)

pytestmark = pytest.mark.usefixtures("short_search")


def dropped() -> nn.Module:
    return network(nn.Linear(4, 3), nn.Dropout(0.1))


def check_result(result: pt.Result, metric: str) -> None:
    """Assert what every result of `pt.tune` has."""
    table = result.table
    assert result.status == "completed"
    assert list(table["model"]) == NAMES
    assert int(table["kept"].sum()) == 1
    assert table[[metric, "loss", "standard_error"]].notna().all(axis=None)
    kept = table[table["kept"]].iloc[0]
    assert result.verdict.startswith(f"{kept['model']} is kept")
    assert table["gain"][0] == 0
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


# Problems


def test_classes() -> None:
    check_result(tune(), "accuracy")


def test_rows_without_a_label_are_in_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets that the loss ignores are those of rows 20 to 29, of which folds hold out some or only such rows."""
    targets, seen, original = torch.where(torch.arange(ROWS) < 20, CLASSES, -100), [], tuning.compare

    def compare(procedures: Any, held: Any, wanted: Any, *others: Any) -> Any:
        assert all(len(one.losses) == len(rows) for rows, [one, *_] in zip(held, procedures[0].judged, strict=True))
        assert torch.equal(torch.cat(wanted), targets[torch.cat(held)])
        seen.append(sorted(torch.cat(held).tolist()))
        return original(procedures, held, wanted, *others)

    monkeypatch.setattr(tuning, "compare", compare)
    for folds in (3, KFold(4)):
        result = tune(data=(X, targets), folds=folds)
        check_result(result, "accuracy")
        assert set(seen.pop()) == {*range(20)}


def test_one_logit() -> None:
    check_result(tune(network(outputs=1), (X, HITS), loss=F.binary_cross_entropy_with_logits), "accuracy")


def test_numbers() -> None:
    result = tune(network(outputs=1), (X, NUMBERS), loss=F.mse_loss)
    check_result(result, "loss")
    assert "loss" in result.verdict


@pytest.mark.parametrize(
    ("metric", "data", "loss", "outputs"),
    [
        ("neg_log_loss", CLASSES, F.cross_entropy, 3),
        ("roc_auc", HITS, F.binary_cross_entropy_with_logits, 1),
        ("r2", NUMBERS, F.mse_loss, 1),
    ],
)
def test_scorers(metric: str, data: Tensor, loss: Any, outputs: int) -> None:
    result = tune(network(outputs=outputs), (X, data), loss=loss, metric=metric)
    check_result(result, metric.replace("_", " "))


def test_a_metric_of_which_less_is_better() -> None:
    def distance(predictions: Tensor, targets: Tensor) -> Tensor:
        return (predictions - targets).abs().mean()

    distance.higher_is_better = False  # type: ignore[attr-defined]
    result = tune(network(outputs=1), (X, NUMBERS), loss=F.mse_loss, metric=distance)
    check_result(result, "distance")
    best = result.table["distance"].min()
    kept = result.table[result.table["kept"]].iloc[0]
    assert kept["distance"] <= best + result.table["standard_error"].max()


@pytest.mark.parametrize(
    "split",
    [{"folds": TimeSeriesSplit(3)}, {"folds": GroupKFold(3), "groups": [i // 5 for i in range(ROWS)]}, {"folds": 4}],
    ids=["time", "groups", "four"],
)
def test_splitters(split: dict[str, Any]) -> None:
    check_result(tune(**split), "accuracy")


def test_a_validation_sample_does_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept model is the one that trains on `data` alone, with the kept decay, for the kept steps."""
    monkeypatch.setattr(tuning, "compare", keeping("one decay"))
    result = tune(data=(X[:20], CLASSES[:20]), valid=(X[20:], CLASSES[20:]), folds=...)
    check_result(result, "accuracy")
    rows = [row for row in result.comparison if row["kept"]]
    model, steps = network(), int(rows[0]["steps"])
    speed = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(steps):
        loss = F.cross_entropy(model(X[:20]), CLASSES[:20])
        penalty = 0.5 * rows[0]["decay"] * (model.get_parameter("weight") ** 2).sum()  # a bias has no decay
        for (name, p), g in zip(
            model.named_parameters(), torch.autograd.grad(loss + penalty, list(model.parameters())), strict=True
        ):
            speed[name] = 0.5 * speed[name] + g
            with torch.no_grad():
                p -= 0.3 * speed[name]
    for name, value in model.named_parameters():
        torch.testing.assert_close(result.model.get_parameter(name), value)


def test_a_dataset() -> None:
    from_tensors, from_dataset = tune(), tune(data=TensorDataset(X, CLASSES))
    check_result(from_dataset, "accuracy")
    pd.testing.assert_frame_equal(from_tensors.table, from_dataset.table)


def test_a_range_test_finds_the_learning_rate() -> None:
    check_result(tune(inner=None), "accuracy")


def test_batch_norm_dropout_and_mini_batches() -> None:
    model = network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))
    result = tune(model, batch_size=8)
    check_result(result, "accuracy")
    assert int(model[1].num_batches_tracked) > 0  # type: ignore[index]


@pytest.mark.slow
def test_recorded_steps_choose_what_eager_steps_choose() -> None:
    eager, traced = tune(), tune(engine="auto")
    # The outer optimizer divides a gradient by its size, and so it enlarges rounding where the gradient is nearly 0.
    pd.testing.assert_frame_equal(eager.table, traced.table, rtol=2e-3)
    torch.testing.assert_close(weights(traced.model), weights(eager.model), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), lambda p, t: F.cross_entropy(p, t)], ids=["module", "own"])
def test_a_loss_that_returns_means_has_the_choices_of_one_that_knows_rows(loss: Any) -> None:
    x = torch.randn(800, 4, generator=torch.Generator().manual_seed(2))
    data = x, (x[:, 0] > 0).long()
    pd.testing.assert_frame_equal(tune(data=data, loss=loss).table, tune(data=data).table, rtol=1e-4)


# Hyperparameters of one's own


class Scaled(nn.Module):
    """A linear model of inputs whose scales are hyperparameters."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last = Scale(), network()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x * self.scale.value)  # type: ignore[no-any-return]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(4))


@pytest.mark.parametrize("kind", ["example weights", "learning rates", "a part of the model"])
def test_hyperparameters_of_ones_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "compare", keeping("the tuned model"))
    model = Scaled() if kind == "a part of the model" else network()
    hyper = {
        "example weights": lambda: pt.ExampleWeights(ROWS),
        "learning rates": lambda: pt.LearningRates(model),
        "a part of the model": lambda: model.scale,
    }[kind]()
    monkeypatch.setattr(many.HeldOutScores, "best", lambda *_: 2)  # λ does not move before the first outer step
    before = weights(hyper)
    result = tune(model, hyper=hyper)
    check_result(result, "accuracy")
    assert result.hyper["hyper"] is hyper
    assert not same(weights(hyper), before)


# What the user gets


@pytest.mark.parametrize("name", NAMES)
def test_the_users_model_is_the_kept_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "compare", keeping(name))
    model = dropped()
    before = weights(model)
    result = tune(model)
    assert result.model is model
    assert not any(module.training for module in model.modules())
    assert not same(weights(model), before)
    assert result.kept_run == ("tuned" if name == "the tuned model" else "plain")
    steps = {row["model"]: row["steps"] for row in result.comparison}[name]
    history = result.rows if name == "the tuned model" else result.plain_rows
    assert len(history) == result.kept_step
    assert steps % result.kept_step == 0


def test_the_same_call_has_the_same_result() -> None:
    one, other = tune(batch_size=8, seed=3), tune(batch_size=8, seed=3)
    pd.testing.assert_frame_equal(one.table, other.table)
    assert one.verdict == other.verdict
    assert same(weights(one.model), weights(other.model))
    assert not same(weights(one.model), weights(tune(batch_size=8, seed=4).model))


@pytest.mark.parametrize("engine", ["eager", "auto"])
def test_global_state_is_untouched(engine: str) -> None:
    model, before, random = dropped(), torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        tune(model, engine=engine, batch_size=8)
        assert torch.equal(random, torch.get_rng_state())
        assert torch.get_num_threads() == 2
        with pytest.raises(pt.SettingError):
            tune(metric="unknown")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_callers_data_are_untouched() -> None:
    x, y = X.clone(), CLASSES.clone()
    tune(data=(x, y))
    assert torch.equal(x, X)
    assert torch.equal(y, CLASSES)


def test_a_test_set_decides_nothing() -> None:
    alone = tune()
    results = [tune(test=(X[:9], (CLASSES[:9] + shift) % 3)) for shift in (0, 1)]
    for result in results:
        pd.testing.assert_frame_equal(result.table, alone.table)
        assert result.verdict == alone.verdict
        assert same(weights(result.model), weights(alone.model))
    shown = [(result.rows or result.plain_rows)[-1]["test_accuracy"] for result in results]
    assert shown[0] != shown[1]


def test_a_result_is_saved_with_its_table(tmp_path: Path) -> None:
    result = tune()
    result.save(tmp_path / "result")
    loaded = pt.load_result(tmp_path / "result", network(), None)
    pd.testing.assert_frame_equal(loaded.table, result.table)
    assert loaded.verdict == result.verdict
    assert same(weights(loaded.model), weights(result.model))


def refused(*arguments: Any, **settings: Any) -> Any:
    raise AssertionError("a resumed call searches again")


def hits(factor: float) -> Callable[[Tensor, Tensor], float]:
    def metric(predictions: Tensor, targets: Tensor) -> float:
        return factor * float((predictions.argmax(1) == targets).double().mean())

    return metric


def test_a_metric_of_the_same_name_searches_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(run_dir=tmp_path / "run", metric=hits(1.0))
    monkeypatch.setattr(tuning, "search_scalars", refused)
    tune(run_dir=tmp_path / "run", metric=hits(1.0), resume=True)
    with pytest.raises(AssertionError, match="searches again"):
        tune(run_dir=tmp_path / "run", metric=hits(2.0), resume=True)


def test_a_changed_call_searches_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(run_dir=tmp_path / "run")
    monkeypatch.setattr(tuning, "search_scalars", refused)
    tune(run_dir=tmp_path / "run", resume=True)
    for changed in ({"metric": "f1_macro"}, {"inner_steps": 3}):
        with pytest.raises(AssertionError, match="searches again"):
            tune(run_dir=tmp_path / "run", resume=True, **changed)
    (tmp_path / "run" / "search.json").write_text("{")
    with pytest.raises(pt.PactuneError, match=r"search\.json is damaged"):
        tune(run_dir=tmp_path / "run", resume=True)


@pytest.mark.parametrize("name", ["plain training", "the tuned model"])
def test_a_folder_of_another_run_is_refused_before_the_search(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "compare", keeping(name))
    tune(run_dir=tmp_path / "run")
    monkeypatch.setattr(tuning, "find_learning_rate", refused)
    for changed in ({"seed": 1}, {"folds": 4}, {"test": (X, CLASSES)}, {"data": (X, HITS[:, 0].long())}):
        with pytest.raises(pt.RunFolderError, match="holds another run"):
            tune(run_dir=tmp_path / "run", resume=True, **{"inner": None, **changed})


@pytest.mark.parametrize("changed", ["parameters", "buffers", "hyperparameters"])
def test_a_folder_of_another_start_is_refused_before_the_search(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(**settings: Any) -> pt.Result:
        model, hyper = network(nn.BatchNorm1d(4), nn.Linear(4, 3)), pt.ExampleWeights(ROWS)
        tensors = {"parameters": model[1].weight, "buffers": model[0].running_mean, "hyperparameters": hyper.logits}
        with torch.no_grad():
            tensors[changed].add_(0.1 if settings.pop("moved", False) else 0)
        return tune(model, hyper=hyper, run_dir=tmp_path / "run", **settings)

    first = call()
    monkeypatch.setattr(tuning, "search_scalars", refused)
    assert same(weights(call(resume=True).model), weights(first.model))
    with pytest.raises(pt.RunFolderError, match=r"other values of the parameters, the buffers or λ.*same random seed"):
        call(resume=True, moved=True)


def test_a_folder_whose_model_has_another_decay_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another metric can keep another procedure, and the model in the folder is not that of this procedure."""
    original = tuning.compare
    monkeypatch.setattr(tuning, "compare", keeping("plain training"))
    tune(run_dir=tmp_path / "run")
    monkeypatch.setattr(tuning, "compare", original)
    monkeypatch.setattr(tuning, "compare", keeping("one decay"))
    with pytest.raises(pt.RunFolderError, match=r"holds another run: decay was 0\.0"):
        tune(run_dir=tmp_path / "run", resume=True, metric=hits(1.0))


def test_the_search_of_a_run_stays_where_another_run_is_refused(tmp_path: Path) -> None:
    """The steps of a round depend on the search, so they can be compared only after it."""
    tune(run_dir=tmp_path / "run")
    before = (tmp_path / "run" / "search.json").read_bytes()
    with pytest.raises(pt.RunFolderError, match="holds another run: inner_steps"):
        tune(run_dir=tmp_path / "run", resume=True, inner_steps=3)
    assert (tmp_path / "run" / "search.json").read_bytes() == before


@pytest.mark.parametrize("name", ["plain training", "the tuned model"])
def test_the_last_run_is_recorded_and_resumed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "compare", keeping(name))
    whole = tune()
    original, fits = tuning.final_fit, []

    def killed(*arguments: Any, progress: Any, **settings: Any) -> Any:
        class Killed(pt.Callback):
            def on_outer_step(self, tuner: Any, row: Any) -> None:
                raise ZeroDivisionError

            on_plain_step = on_outer_step

        fits.append(1)
        return original(*arguments, progress=Killed(), **settings)

    monkeypatch.setattr(tuning, "final_fit", killed)
    with contextlib.suppress(ZeroDivisionError):
        tune(run_dir=tmp_path / "run")
    monkeypatch.setattr(tuning, "final_fit", original)
    assert fits
    monkeypatch.setattr(tuning, "search_scalars", refused)
    monkeypatch.setattr(tuning, "find_learning_rate", refused)
    resumed = tune(run_dir=tmp_path / "run", resume=True)
    assert same(weights(resumed.model), weights(whole.model))
    pd.testing.assert_frame_equal(resumed.table, whole.table)
