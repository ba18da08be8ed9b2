"""`pt.tune` from a model and its data to a kept model, on tiny data and with a short search."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from sklearn.model_selection import GroupKFold, TimeSeriesSplit
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import IterableDataset, TensorDataset

import pactune as pt
from pactune.search import many
from pactune.search.training import RowReader
from tests.mistakes import Case, check_refused
from tests.test_interrupts import Press

pytestmark = pytest.mark.usefixtures("short_search")
tuning = importlib.import_module("pactune.search.tune")  # the package has a function of this name

ROWS = 30
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
NOISE = torch.randn(ROWS, generator=torch.Generator().manual_seed(1))
CLASSES = (X[:, 0] + X[:, 1] > 0).long() + (X[:, 2] > 0.7).long()
HITS = (X[:, :1] + NOISE[:, None] > 0).float()
NUMBERS = X[:, :1] + 0.3 * NOISE[:, None]
NAMES = ["plain training", "one decay", "the tuned model"]


def network(*layers: nn.Module, outputs: int = 3) -> nn.Module:
    """Return a linear classifier, or the layers, with parameters that depend on nothing else."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(*layers) if layers else nn.Linear(4, outputs)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        return model


def tune(model: nn.Module | None = None, data: Any = None, **changes: Any) -> pt.Result:
    settings: dict[str, Any] = {"loss": F.cross_entropy, "folds": 3, "inner": pt.SGD(0.3, momentum=0.5)}
    settings |= {"inner_steps": 2, "engine": "eager", "progress": False} | changes
    given = {name: value for name, value in settings.items() if value is not ...}
    return pt.tune(network() if model is None else model, (X, CLASSES) if data is None else data, **given)


class Endless(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(itertools.cycle(X), itertools.cycle(CLASSES), strict=False)


def dropped() -> nn.Module:
    return network(nn.Linear(4, 3), nn.Dropout(0.1))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


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


def keeping(name: str) -> Any:
    """Return a comparison that keeps a given procedure, whatever the numbers say."""

    def compare(*arguments: Any) -> Any:
        found = original(*arguments)
        rows = [{**row, "kept": row["model"] == name} for row in found.rows]
        return found._replace(kept=name, rows=rows, verdict=found.verdict._replace(verdict=f"{name} is kept"))

    original = tuning.compare
    return compare


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
    for changed in ({"seed": 1}, {"metric": "f1_macro"}, {"inner_steps": 3}, {"folds": 4}):
        with pytest.raises(AssertionError, match="searches again"):
            tune(run_dir=tmp_path / "run", resume=True, **changed)
    (tmp_path / "run" / "search.json").write_text("{")
    with pytest.raises(pt.PactuneError, match=r"search\.json is damaged"):
        tune(run_dir=tmp_path / "run", resume=True)


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


# Ctrl-C


@pytest.mark.parametrize("place", ["find_learning_rate", "search_scalars", "tune_while_held_out", "compare"])
def test_ctrl_c_in_the_search_leaves_the_model_as_it_was(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = getattr(tuning, place)

    def interrupted(*arguments: Any) -> Any:
        found = original(*arguments)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(tuning, place, interrupted)
    model = network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    before = weights(model)
    result = tune(model, inner=None)
    assert result.status == "interrupted"
    assert "nothing is chosen" in result.verdict
    assert result.model is model
    assert same(weights(model), before)
    assert result.table.empty
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_last_run_keeps_its_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    class Impatient(pt.Callback):
        def on_outer_step(self, tuner: Any, row: Any) -> None:
            signal.raise_signal(signal.SIGINT)

    original = tuning.final_fit
    monkeypatch.setattr(
        tuning, "final_fit", lambda *given, **named: original(*given, **{**named, "progress": Impatient()})
    )
    model = network()
    before = weights(model)
    result = tune(model)
    assert (result.status, len(result.rows or result.plain_rows)) == ("interrupted", 1)
    assert result.verdict.startswith("interrupted in the last run, so the model is unfinished; ")
    assert not same(weights(model), before)


@pytest.mark.parametrize("call", [7, 40], ids=["coarse", "fine"])
def test_ctrl_c_between_rounds(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coarse search of three candidates, three models and four rounds reads 36 times."""
    original, calls = RowReader.read, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(RowReader, "read", interrupted)
    model = network()
    before = weights(model)
    assert tune(model).status == "interrupted"
    assert call <= len(calls) < call + 5  # the search ends at once
    assert same(weights(model), before)


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_the_search() -> None:
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(12):
        model = network(nn.Linear(4, 3), nn.Dropout(0.1))
        before, tracing = weights(model), sys.gettrace()
        sys.settrace(Press(int(torch.randint(5_000, 730_000, (), generator=generator))))  # a whole call has 790,000
        try:
            result = tune(model, inner=None)
        finally:
            sys.settrace(tracing)
        found.append("nothing is chosen" in result.verdict)
        assert same(weights(model), before) == found[-1]
        assert not model.training
    assert sum(found) > 6


# No leak


def chosen_for(fold: int, data: tuple[Tensor, Tensor], **changes: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the scores by which a decay is chosen, and λ of the tuned run, while a fold is held out."""
    runs, found = list[Any](), list[Any]()
    tune_run, search = many.tune, tuning.search_scalars

    def noted(run: Any, *arguments: Any) -> Any:
        runs.append(run)
        return tune_run(run, *arguments)

    def kept(*arguments: Any) -> Any:
        found.append(search(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many, "tune", noted)
        patch.setattr(tuning, "search_scalars", kept)
        tune(network(outputs=1), data, loss=F.mse_loss, folds=PAIRS, **changes)
    scores = {str(decay): curve for decay, curve in found[0].table(fold).items()}
    return scores, {name: value.detach().clone() for name, value in runs[fold].problem.hyperparameters().items()}


PAIRS = [(sorted({*range(ROWS)} - {*range(k, ROWS, 5)}), list(range(k, ROWS, 5))) for k in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("fold", [0, 2, 4])
@pytest.mark.parametrize("part", ["targets", "inputs"])
def test_what_is_chosen_for_a_fold_does_not_depend_on_its_rows(part: str, fold: int) -> None:
    x, y = X.clone(), NUMBERS.clone()
    held = torch.tensor(PAIRS[fold][1])
    if part == "targets":
        y[held] = 30 + 10 * NOISE[held, None]
    else:
        x[held] = 0.5 - x[held]
    # CorrelatedInputs reads the inputs of all rows; hyperparameters of the user's own replace it
    own = (lambda: pt.ExampleWeights(ROWS)) if part == "inputs" else (lambda: None)
    for judged in (fold, (fold + 1) % 5):
        before, after = (chosen_for(judged, data, hyper=own()) for data in ((X, NUMBERS), (x, y)))
        for one, other in zip(before, after, strict=True):
            assert same(one, other) == (judged == fold)  # the rows of another fold do choose


# Mistakes


def nan_in(values: Tensor) -> Tensor:
    changed = values.clone()
    changed[3] = float("nan")
    return changed


def frozen() -> nn.Module:
    return network().requires_grad_(False)


S, D = pt.SettingError, pt.DataError
MISTAKES = {
    "model is a function": Case(lambda: tune(lambda x: x), S, "`model` must be"),
    "model without parameters": Case(lambda: tune(nn.Identity()), S, "parameter"),
    "frozen model": Case(lambda: tune(frozen()), S, "trainable parameter"),
    "no data": Case(lambda: pt.tune(network(), None, loss=F.cross_entropy), D, "`data` must be"),
    "empty data": Case(lambda: tune(data=(X[:0], CLASSES[:0])), D, "`data`"),
    "inputs without targets": Case(lambda: tune(data=X), pt.PactuneError, "loss"),
    "rows that do not match": Case(lambda: tune(data=(X, CLASSES[:7])), D, "rows"),
    "NaN in the inputs": Case(lambda: tune(data=(nan_in(X), CLASSES)), pt.PactuneError, "(?i)nan|finite"),
    "NaN in the targets": Case(
        lambda: tune(network(outputs=1), (X, nan_in(NUMBERS)), loss=F.mse_loss), pt.PactuneError, "(?i)nan|finite"
    ),
    "two rows": Case(lambda: tune(data=(X[:2], CLASSES[:2])), D, "2 rows"),
    "two folds": Case(lambda: tune(folds=2), S, "three folds"),
    "folds as text": Case(lambda: tune(folds="five"), S, "folds"),
    "groups without a splitter": Case(lambda: tune(groups=[0] * ROWS), S, "`groups` needs"),
    "hyper is a number": Case(lambda: tune(hyper=3), S, "`hyper`"),
    "weights of other rows": Case(lambda: tune(hyper=pt.ExampleWeights(7)), S, "7 example weights"),
    "unknown scorer": Case(lambda: tune(metric="best"), S, "scikit-learn scorer"),
    "metric is a number": Case(lambda: tune(metric=1), S, "`metric` must be"),
    "metric fails": Case(lambda: tune(metric=lambda p, t: p / "a"), S, "`metric` fails"),
    "loss is a sum": Case(
        lambda: tune(loss=lambda p, t: F.cross_entropy(p, t, reduction="sum")), pt.PactuneError, "sum"
    ),
    "loss is no function": Case(lambda: tune(loss=3), S, "`loss`"),
    "loss fails": Case(lambda: tune(network(outputs=1)), pt.PactuneError, "loss"),
    "unknown engine": Case(lambda: tune(engine="warp"), S, "engine"),
    "no inner steps": Case(lambda: tune(inner_steps=0), S, "`inner_steps`"),
    "inner is text": Case(lambda: tune(inner="adam"), S, "`inner`"),
    "batch size": Case(lambda: tune(batch_size=0), pt.PactuneError, "`batch_size`"),
    "seed": Case(lambda: tune(seed="a"), S, "`seed`"),
    "resume without a folder": Case(lambda: tune(resume=True), pt.PactuneError, "run_dir"),
    "progress": Case(lambda: tune(progress="loud"), S, "`progress`"),
    "data without numbers": Case(lambda: tune(data=Endless()), D, "`data` is an IterableDataset"),
    "valid without numbers": Case(lambda: tune(valid=Endless()), D, "`valid` is an IterableDataset"),
    "test of another width": Case(lambda: tune(test=(X[:, :2], CLASSES)), pt.PactuneError, "test"),
    "valid of another width": Case(lambda: tune(valid=(X[:, :2], CLASSES)), D, "made like"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_a_clear_error(name: str) -> None:
    check_refused(MISTAKES[name])


def test_a_run_folder_that_is_a_file_is_refused_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(tuning, "search_scalars", lambda *_: pytest.fail("the search has begun"))
    check_refused(Case(lambda: tune(run_dir=tmp_path / "file"), pt.RunFolderError, "file"))
