"""Folds: every row trains in some folds and validates in another, all share λ, and a refit trains on all rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import pactune as pt
from pactune.engines.traced import Traced

Make = Callable[..., pt.Tuner]
Data = tuple[Tensor, Tensor]


def rows(count: int = 23, seed: int = 3) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] + 0.5 * torch.randn(count, generator=generator, dtype=torch.float64) > 0).long()


def tuner_on(
    data: Any = None, hyper: Callable[[nn.Module], nn.Module] | None = None, outer_lr: float = 0.3, **given: Any
) -> pt.Tuner:
    problem = {k: given.pop(k) for k in ("folds", "groups", "refit", "batch_size", "loss") if k in given}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = given.pop("model", None) or nn.Linear(4, 2, dtype=torch.float64)
    lambdas = pt.WeightDecay(model, init=0.1) if hyper is None else hyper(model)
    own = pt.Problem(
        model, lambdas, data=rows() if data is None else data, **{"folds": 3, "loss": F.cross_entropy, **problem}
    )
    settings = {"inner": pt.SGD(0.2), "inner_steps": 5, "objective": pt.PACBayes(0.1)}
    outer = torch.optim.SGD(lambdas.parameters(), lr=outer_lr)
    return pt.Tuner(own, outer=outer, **{**settings, **given})


def number_columns(result: pt.Result) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in result.rows]


# Which rows


def test_every_row_validates_once_and_labels_are_stratified() -> None:
    x, y = rows(40)
    folds = pt.Problem(nn.Linear(4, 2).double(), nn.Linear(1, 1).double(), data=(x, y), folds=4, **general()).fold_rows
    assert torch.equal(torch.cat([fold.valid for fold in folds]).sort().values, torch.arange(40))
    shares = [float(y[fold.valid].double().mean()) for fold in folds]
    assert max(shares) - min(shares) <= 0.1 + 1e-12
    for fold in folds:
        assert torch.equal(torch.cat([fold.train, fold.valid]).sort().values, torch.arange(40))


def general() -> dict[str, Any]:
    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1]) + 0 * hyper.weight.sum()

    return {"train_loss": loss, "valid_loss": loss}


def test_five_folds_are_the_default_and_sizes_differ_by_one_row() -> None:
    tuner = tuner_on(folds=None)
    assert sorted(fold.valid.rows for fold in tuner.problem.subproblems) == [4, 4, 5, 5, 5]


def test_splitters_of_scikit_learn() -> None:
    model_selection = pytest.importorskip("sklearn.model_selection")
    groups = torch.arange(23) // 4
    by_group = tuner_on(folds=model_selection.GroupKFold(3), groups=groups).problem.fold_rows
    for fold in by_group:
        assert not set(groups[fold.train].tolist()) & set(groups[fold.valid].tolist())
    in_time = tuner_on(folds=model_selection.TimeSeriesSplit(3)).problem.fold_rows
    assert all(int(fold.train.max()) < int(fold.valid.min()) for fold in in_time)
    stratified = tuner_on(folds=model_selection.StratifiedKFold(3, shuffle=True, random_state=0)).problem.fold_rows
    assert len(stratified) == 3
    pairs = list(model_selection.KFold(2).split(range(23)))
    given = tuner_on(folds=pairs).problem.fold_rows
    assert torch.equal(given[0].valid, torch.as_tensor(pairs[0][1]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"folds": 1}, "folds"),
        ({"folds": 2.5}, "folds"),
        ({"folds": True}, "folds"),
        ({"folds": "five"}, "a number ≥ 2"),
        ({"folds": 24}, "24 folds"),
        ({"folds": []}, "no fold"),
        ({"folds": [(0, 1)]}, "row numbers"),
        ({"folds": [([0, 1], [1, 2])]}, "train and validate"),
        ({"folds": [([0, 1], [99])]}, "row 99"),
        ({"folds": [([0, 1], [3, -1])]}, "row -1"),
        ({"folds": [([0.5], [1.5])]}, "row numbers"),
        ({"folds": [([0, 1], [])]}, "0 validation rows"),
        ({"groups": [1, 2]}, "groups"),
        ({"refit": 1}, "refit"),
        ({"online": True}, "online"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(pt.PactuneError, match=message):
        tuner_on(**given)


@pytest.mark.parametrize(
    "data",
    [
        {"train": rows(), "data": rows()},
        {"valid": rows(), "tasks": [(rows(), rows())]},
        {"train": rows()},
        {"train": rows(), "valid": rows(), "folds": 3},
        {"train": rows(), "valid": rows(), "tasks_per_step": 3},
        {},
    ],
)
def test_data_come_in_one_way(data: dict[str, Any]) -> None:
    model = nn.Linear(4, 2).double()
    with pytest.raises(pt.SettingError):
        pt.Problem(model, pt.WeightDecay(model), loss=F.cross_entropy, **data)


def test_data_sets_and_loaders_have_folds_too() -> None:
    wanted = tuner_on().hypergradient()
    assert tuner_on(TensorDataset(*rows())).hypergradient().total == pytest.approx(wanted.total, rel=1e-12)
    assert tuner_on(DataLoader(TensorDataset(*rows()), batch_size=23)).hypergradient().total == pytest.approx(
        wanted.total, rel=1e-12
    )
    own = DataLoader(TensorDataset(*rows()), batch_size=4, sampler=WeightedRandomSampler([1.0] * 23, 23))
    with pytest.raises(pt.DataError, match="sampler"):
        tuner_on(own)


# What runs


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 6])
@pytest.mark.parametrize("settings", [{}, {"chains": 2}, {"restart": True}, {"inner": pt.Adam(0.05)}])
def test_engines_agree_on_folds_of_unequal_size(settings: dict[str, Any], batch_size: int | None) -> None:
    one, two = (tuner_on(engine=engine, batch_size=batch_size, **settings).fit(3) for engine in ("eager", "traced"))
    for a, b in zip(number_columns(one), number_columns(two), strict=True):
        assert a == pytest.approx(b, rel=1e-9)


def test_the_refit_is_training_on_all_rows_under_the_same_hyperparameters() -> None:
    x, y = rows()
    result = tuner_on(outer_lr=0.0).fit(3, plain_steps=0)
    model = nn.Linear(4, 2, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.reset_parameters()
    for _ in range(15):
        loss = F.cross_entropy(model(x), y) + 0.05 * sum(p.square().sum() for p in model.parameters())
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients, strict=True):
                p -= 0.2 * g
    assert torch.allclose(result.model.weight, model.weight, rtol=1e-10)  # type: ignore[arg-type]
    assert result.rows[-1]["train_risk"] == pytest.approx(float(F.cross_entropy(model(x), y)), rel=1e-10)


def test_the_refit_follows_the_hyperparameters_and_adds_nothing_to_the_objective() -> None:
    with_refit, without = tuner_on().fit(4), tuner_on(refit=False).fit(4)
    for name in ("risk", "regularizer", "objective", "hypergradient_norm", "valid_risk", "valid_accuracy"):
        assert [row[name] for row in with_refit.rows] == pytest.approx([row[name] for row in without.rows], rel=1e-12)
    for a, b in zip(with_refit.hyper.parameters(), without.hyper.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12)
    assert torch.equal(without.model.weight, without.fold_models[0].weight)  # type: ignore[arg-type]
    assert not torch.equal(with_refit.model.weight, without.model.weight)  # type: ignore[arg-type]


def test_out_of_fold_predictions_are_by_the_model_that_did_not_train_on_the_row() -> None:
    x, y = rows()
    tuner = tuner_on()
    result = tuner.fit(3)
    assert result.out_of_fold is not None
    for fold, model in zip(tuner.problem.fold_rows, result.fold_models, strict=True):
        assert torch.allclose(result.out_of_fold[fold.valid], model(x[fold.valid]), rtol=1e-10)
        assert not model.training
    risks = [float(F.cross_entropy(result.out_of_fold[f.valid], y[f.valid])) for f in tuner.problem.fold_rows]
    assert result.rows[-1]["valid_risk"] == pytest.approx(sum(risks) / 3, rel=1e-10)
    assert result.rows[-1]["risk"] == pytest.approx(sum(risks) / 3, rel=1e-10)


def test_a_row_that_never_validates_has_no_prediction_and_one_that_does_twice_has_the_mean() -> None:
    x, _ = rows()
    folds = [(range(5, 23), range(5)), (range(7, 23), [3, 4, 5, 6])]
    result = tuner_on(folds=[(list(a), list(b)) for a, b in folds]).fit(2)
    assert result.out_of_fold is not None
    assert bool(result.out_of_fold[7:].isnan().all())
    first, second = result.fold_models
    assert torch.allclose(result.out_of_fold[:3], first(x[:3]))
    assert torch.allclose(result.out_of_fold[3:5], (first(x[3:5]) + second(x[3:5])) / 2)


def test_a_single_problem_has_no_folds(make: Make) -> None:
    result = make().fit(1)
    assert result.out_of_fold is None
    assert result.fold_models == []


def test_a_weight_acts_where_its_row_trains_and_not_where_it_validates() -> None:
    tuner = tuner_on(hyper=lambda model: pt.ExampleWeights(23).double())
    first = tuner.problem.subproblems[0]
    weights = tuner.problem.hyper
    assert isinstance(weights, pt.ExampleWeights)
    with torch.no_grad():
        before = (float(first_risk(first, "train")), float(first_risk(first, "valid")))
        weights.logits[tuner.problem.fold_rows[0].valid] = 3.0
        assert (float(first_risk(first, "train")), float(first_risk(first, "valid"))) == before
        weights.logits[tuner.problem.fold_rows[0].train] = 3.0
        assert float(first_risk(first, "train")) != before[0]
        assert float(first_risk(first, "valid")) == before[1]
    with pytest.raises(pt.SettingError, match="23 rows"):
        tuner_on(hyper=lambda model: pt.ExampleWeights(22).double())


def first_risk(problem: pt.Problem, role: str) -> Tensor:
    source, risk = (problem.train, problem.train_risk) if role == "train" else (problem.valid, problem.valid_risk)
    return risk(problem.parameters(), problem.hyperparameters(), problem.buffers(), source.first())


def test_the_best_step_by_the_objective_keeps_all_fold_models() -> None:
    steps: list[tuple[float, list[Tensor]]] = []

    class Watch(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
            states = [part.lead.params["weight"].clone() for part in tuner.outer_run.chains.parts if part.lead]
            steps.append((row["objective"], states))

    result = tuner_on(outer_lr=300.0).fit(6, keep="best-objective", callbacks=[Watch()], on_divergence="return")
    best = min(steps, key=lambda step: step[0])[1]
    assert result.kept_step < len(result.rows)
    for model, weight in zip(result.fold_models, best, strict=True):
        assert torch.equal(model.weight, weight)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_check_covers_implicit_gradients_over_folds() -> None:
    estimator = pt.Implicit(pt.ConjugateGradient(50))
    check = pt.check_hypergradient(tuner_on(hypergradient=estimator, inner_steps=60), directions=2)
    assert check.passed
    assert float(check.promised.norm()) > 1e-5


# What surrounds it


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    whole = tuner_on().fit(5, test=rows(10, 9))
    tuner_on().fit(2, test=rows(10, 9), run_dir=tmp_path / "run")
    resumed = tuner_on().fit(5, test=rows(10, 9), run_dir=tmp_path / "run", resume=True)
    assert number_columns(whole) == number_columns(resumed)
    assert whole.plain_rows == resumed.plain_rows
    assert torch.equal(whole.out_of_fold, resumed.out_of_fold)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"folds": 4}, {"refit": False}, {"folds": [([0, 1, 2], [3, 4]), ([3, 4], [0, 1])]}])
def test_a_run_with_other_folds_is_not_resumed(tmp_path: Path, other: dict[str, Any]) -> None:
    tuner_on().fit(1, run_dir=tmp_path / "run")
    with pytest.raises(pt.RunFolderError):
        tuner_on(**other).fit(2, run_dir=tmp_path / "run", resume=True)


def test_ctrl_c_leaves_a_finished_outer_step() -> None:
    class Stop(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
            if row["outer_step"] == 2:
                raise KeyboardInterrupt

    tuner = tuner_on()
    result = tuner.fit(5, callbacks=[Stop()])
    assert (result.status, result.kept_step, len(result.fold_models)) == ("interrupted", 2, 3)
    assert number_columns(tuner_on().fit(2)) == number_columns(result)


def test_a_grid_of_folds_has_the_numbers_of_single_runs() -> None:
    def build(zeta: float) -> pt.Tuner:
        return tuner_on(objective=pt.PACBayes(zeta))

    grid = pt.fit_grid(build, {"zeta": [0.0, 0.2]}, outer_steps=3, engine="traced")
    for zeta, result in zip((0.0, 0.2), grid.results, strict=True):
        for a, b in zip(number_columns(build(zeta).fit(3)), number_columns(result), strict=True):
            assert a == pytest.approx(b, rel=1e-8)


def test_zeta_is_chosen_on_rows_that_no_fold_has() -> None:
    tuner = tuner_on(objective=pt.PACBayes(pt.AutoZeta(folds=2, fractions=(0.0, 1.0))), folds=2)
    result = tuner.fit(2)
    assert result.status == "completed"
    assert {row["candidate"] for row in result.trials} >= {"plain", "ζ = 0"}
    assert len(result.fold_models) == 2
    held = tuner.problem.subset(torch.arange(20), torch.arange(20))
    rows_of_folds = torch.cat([fold.valid.first().numbers for fold in held.subproblems])  # type: ignore[misc]
    assert int(rows_of_folds.max()) < 20
    assert len(rows_of_folds) == 20


def test_buffers_and_random_forwards_have_their_own_values_per_fold() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 2)).double()

    with torch.random.fork_rng():
        torch.manual_seed(3)
        first, second = model(), model()
        second.load_state_dict(first.state_dict())
    one, two = tuner_on(model=first).fit(2), tuner_on(model=second, engine="eager").fit(2)
    for a, b in zip(number_columns(one), number_columns(two), strict=True):
        assert a == pytest.approx(b, rel=1e-9)
    means = [fold[1].running_mean for fold in one.fold_models]  # type: ignore[index]
    assert not torch.equal(means[0], means[1])


def test_a_certificate_sees_that_the_rows_train_and_validate() -> None:
    tuner = tuner_on()
    train, valid = tuner.problem.sample_ids
    assert train.shared(valid) == 23
    assert tuner.fit(1).provenance.touches("hyper", train)


def test_regression_has_folds_without_strata() -> None:
    x, _ = rows()
    tuner = tuner_on((x, x[:, :1] * 2), model=nn.Linear(4, 1, dtype=torch.float64), loss=F.mse_loss)
    assert tuner.fit(2).out_of_fold.shape == (23, 1)  # type: ignore[union-attr]


# The step to keep


def test_the_held_out_step_is_chosen_on_rows_that_no_candidate_has() -> None:
    tuner = tuner_on(folds=4)
    scale = tuner.problem.evaluate(tuner.problem.valid).risk
    result = tuner.fit(4, keep="held-out")
    scores = {(row["candidate"], row["outer_step"]): row["score"] for row in result.trials}
    assert set(scores) == {(name, step) for name in ("plain", "tuned") for step in range(1, 5)}
    wanted = held_out_scores(tuner.problem, scale)
    assert [scores["tuned", step] for step in range(1, 5)] == pytest.approx(wanted, rel=1e-9)
    label, step = min(
        ((name, step) for name in ("plain", "tuned") for step in range(1, 5)), key=lambda key: smooth(scores, *key)
    )
    assert (result.kept_run, result.kept_step) == (label, step)
    assert len(result.rows) == 4


def smooth(scores: dict[tuple[str, int], float], label: str, step: int) -> float:
    around = [scores[label, t] for t in (step - 1, step, step + 1) if (label, t) in scores]
    return sum(around) / len(around)


def held_out_scores(folded: pt.Problem, scale: float) -> list[float]:
    """Return the mean held-out score of every step, by one tuner per fold."""
    x, y = rows()
    sums, folds = [0.0] * 4, folded.fold_rows
    for k, fold in enumerate(folds):
        tune = folds[(k + 1) % 4].valid
        train = torch.tensor(sorted(set(range(23)) - set(fold.valid.tolist()) - set(tune.tolist())))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Linear(4, 2, dtype=torch.float64)
        hyper = pt.WeightDecay(model, init=0.1)
        problem = pt.Problem(model, hyper, train=(x[train], y[train]), valid=(x[tune], y[tune]), loss=F.cross_entropy)
        tuner = pt.Tuner(
            problem,
            inner=pt.SGD(0.2),
            inner_steps=5,
            outer=torch.optim.SGD(hyper.parameters(), lr=0.3),
            objective=pt.PACBayes(0.1),
        )
        held = Held(model, x[fold.valid], y[fold.valid], scale)
        tuner.fit(4, callbacks=[held])
        for step, scores in enumerate(held.scores):
            sums[step] += float(scores.sum()) / 23
    return sums


class Held(pt.Callback):
    """Scores held-out rows after every outer step."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, scale: float) -> None:
        self.given, self.scores = (model, x, y, scale), list[Tensor]()

    @torch.no_grad()
    def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
        model, x, y, scale = self.given
        self.scores.append(1 - torch.exp(-F.cross_entropy(model(x), y, reduction="none") / scale))


def test_the_held_out_step_resumes(tmp_path: Path) -> None:
    whole = tuner_on().fit(4, keep="held-out")
    with pytest.raises(ZeroDivisionError):
        tuner_on().fit(4, keep="held-out", run_dir=tmp_path / "run", callbacks=[Fail()])
    resumed = tuner_on().fit(4, keep="held-out", run_dir=tmp_path / "run", resume=True, callbacks=[pt.Callback()])
    assert number_columns(whole) == number_columns(resumed)
    assert whole.trials == resumed.trials
    assert whole.kept_step == resumed.kept_step


class Fail(pt.Callback):
    def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
        if row["outer_step"] == 2:
            raise ZeroDivisionError


def test_a_held_out_step_needs_folds(make: Make) -> None:
    with pytest.raises(pt.SettingError, match="folds"):
        make().fit(1, keep="held-out")
    with pytest.raises(pt.SettingError, match="more folds"):
        tuner_on(folds=2).fit(1, keep="held-out")
    with pytest.raises(pt.SettingError, match="in a grid"):
        pt.fit_grid(lambda zeta: make(), {"zeta": [0.1]}, outer_steps=1, keep="held-out")


def test_folds_go_on_one_by_one_when_their_loss_cannot_be_stacked_any_more() -> None:
    class Loss:
        reads_numbers = False

        def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
            value = nn.functional.cross_entropy(prediction, target)
            return 2 * value if self.reads_numbers and value.item() > 0 else value

    def objectives(engine: Any) -> list[float]:
        torch.manual_seed(0)
        x, loss, model = torch.randn(30, 4).double(), Loss(), nn.Linear(4, 2).double()
        decay = pt.WeightDecay(model, init=0.1)
        problem = pt.Problem(model, decay, data=(x, (x[:, 0] > 0).long()), folds=3, loss=loss)
        outer = torch.optim.Adam(decay.parameters(), lr=1e-2)
        tuner = pt.Tuner(
            problem, inner=pt.SGD(lr=0.1), inner_steps=8, outer=outer, objective=pt.PACBayes(0.01), engine=engine
        )
        found = []
        for step in range(4):
            loss.reads_numbers = step > 1
            found.append(tuner.hypergradient().total)
            outer.step()
        return found

    assert objectives(Traced()) == pytest.approx(objectives("eager"), rel=1e-9)
