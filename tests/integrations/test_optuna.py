"""Eq. 5 as a study's objective: reports, pruning, divergence, and scores of finished trials."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.integrations.optuna import CoherenceObjective, best_trial, report, score
from pactune.integrations.reading import RiskReading

X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
TRAIN, VALID = (X[:8], Y[:8]), (X[8:], Y[8:])


def loop(trial: Any, lr: float, epochs: int = 4) -> Iterator[tuple[pt.CoherenceMonitor, float, float]]:
    torch.manual_seed(trial.number)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy)
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(TRAIN[0]), TRAIN[1]).backward()
        monitor.step(None, VALID)
        optimizer.step()
        yield monitor, F.cross_entropy(model(VALID[0]), VALID[1]).item(), lr


def train(trial: Any) -> Iterator[tuple[pt.CoherenceMonitor, float, float]]:
    yield from loop(trial, trial.suggest_float("lr", 1e-2, 1.0, log=True))


class Always:
    """A trial of no study: it stores what it is told."""

    number = 0

    def __init__(self, prune_at: int | None = None) -> None:
        self.user_attrs: dict[str, Any] = {}
        self.reported: dict[int, float] = {}
        self._prune_at = prune_at

    def set_user_attr(self, name: str, value: Any) -> None:
        self.user_attrs[name] = value

    def report(self, value: float, step: int) -> None:
        self.reported[step] = value

    def should_prune(self) -> bool:
        return self._prune_at is not None and max(self.reported) >= self._prune_at

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        return math.sqrt(low * high)


BAD = {
    "no function": (lambda: CoherenceObjective("train", zeta=0.1), "`train` must be a generator function"),
    "zeta negative": (lambda: CoherenceObjective(train, zeta=-1.0), "`zeta` must be a finite number"),
    "zeta auto": (lambda: CoherenceObjective(train, zeta="auto"), "`zeta` must be a finite number"),
    "keep": (lambda: CoherenceObjective(train, zeta=0.1, keep="first"), '`keep` must be "last" or "best"'),
    "no notes": (lambda: score(Always(), zeta=0.1), "trial 0 has no notes of Eq. 5"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(pt.SettingError, match=message):
        call()


class TestWithOptuna:
    @pytest.fixture(autouse=True)
    def _optuna(self) -> None:
        self.optuna = pytest.importorskip("optuna", reason="optuna is not installed")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)

    def study(self, objective: Any, trials: int = 6, **settings: Any) -> Any:
        study = self.optuna.create_study(sampler=self.optuna.samplers.RandomSampler(0), **settings)
        study.optimize(objective, n_trials=trials)
        return study

    def test_the_study_minimises_equation_5(self) -> None:
        study = self.study(CoherenceObjective(train, zeta=0.2))
        for trial in study.trials:
            found = score(trial, zeta=0.2)
            assert trial.value == pytest.approx(found["valid_risk"] + 0.2 * found["regularizer"], rel=1e-12)
            assert len(trial.intermediate_values) == 4
        assert best_trial(study, zeta=0.2).number == study.best_trial.number

    def test_theory_uses_the_trial_s_learning_rate(self) -> None:
        study = self.study(CoherenceObjective(train, zeta="theory"), trials=2)
        for trial in study.trials:
            found = score(trial, zeta="theory")
            assert found["zeta"] == pytest.approx(math.sqrt(trial.params["lr"] / 4), rel=1e-12)
            assert trial.value == pytest.approx(found["objective"], rel=1e-12)

    def test_finished_trials_are_scored_at_another_zeta(self) -> None:
        study = self.study(CoherenceObjective(train, zeta=0.0))
        again = self.study(CoherenceObjective(train, zeta=5.0))
        assert best_trial(study, zeta=0.0).number == study.best_trial.number
        assert best_trial(study, zeta=5.0).number == again.best_trial.number

    def test_the_best_epoch_can_be_kept(self) -> None:
        study = self.study(CoherenceObjective(train, zeta=0.5, keep="best"))
        for trial in study.trials:
            found = score(trial, zeta=0.5, keep="best")
            assert trial.value == pytest.approx(min(trial.intermediate_values.values()), rel=1e-12)
            assert trial.intermediate_values[int(found["step"])] == pytest.approx(trial.value, rel=1e-12)

    def test_the_pruner_ends_trials(self) -> None:
        pruner = self.optuna.pruners.ThresholdPruner(upper=0.0)  # every objective is larger
        study = self.study(CoherenceObjective(train, zeta=0.1), trials=3, pruner=pruner)
        assert {trial.state.name for trial in study.trials} == {"PRUNED"}
        assert all(len(trial.intermediate_values) == 1 for trial in study.trials)
        with pytest.raises(pt.SettingError, match="no completed trial"):
            best_trial(study, zeta=0.1)

    def test_divergence_prunes_and_the_study_goes_on(self) -> None:
        def wild(trial: Any) -> Iterator[Any]:
            for monitor, risk, lr in loop(trial, 0.1):
                yield monitor, float("nan") if trial.number == 0 else risk, lr

        study = self.study(CoherenceObjective(wild, zeta=0.1), trials=2)
        assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]

    def test_report_in_a_loop_of_your_own(self) -> None:
        trial = Always(prune_at=1)
        readings = [RiskReading(*found) for found in loop(trial, 0.1)]
        first = report(trial, readings[0], zeta=0.1, step=0)
        assert trial.reported == {0: first.objective}
        with pytest.raises(self.optuna.TrialPruned, match="at step 1"):
            report(trial, readings[1], zeta=0.1, step=1)

    @pytest.mark.parametrize(
        ("generator", "message"),
        [
            (lambda trial: iter(()), "`train` yielded nothing"),
            (lambda trial: iter([0.3]), "must yield"),
            (lambda trial: iter([(0.3, 0.1)]), "must yield"),
        ],
    )
    def test_what_a_training_function_must_yield(self, generator: Any, message: str) -> None:
        with pytest.raises(pt.SettingError, match=message):
            CoherenceObjective(generator, zeta=0.1)(Always())
