"""`zeta="auto"`: what it chooses, what it never sees, and what it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import pactune as pt
from pactune.demo.digits import DemoSettings, load_digits, run_one
from pactune.rounds.round import run_round
from pactune.tracking import read_journal
from pactune.tuning.auto_zeta import _folds

pytestmark = pytest.mark.slow

OUTER = 6


def _tuner(zeta="auto", *, seed: int = 0, rows: int = 20, shift: float = 1.0, losses=None, **options) -> pt.Tuner:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2 * rows, 6, generator=generator)
    y = (x[:, 0] * shift + 0.5 * torch.randn(2 * rows, generator=generator) > 0).long()
    model = nn.Linear(6, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    hyper = pt.WeightDecay(model)
    train, valid = (x[:rows], y[:rows]), (x[rows:], y[rows:])
    problem = pt.Problem(model, hyper, train=train, valid=valid, **(losses or {"loss": functional.cross_entropy}))
    settings = {
        "inner": pt.Adam(lr=1e-2),
        "inner_steps": 8,
        "outer": torch.optim.RMSprop(hyper.parameters(), lr=1e-1),
        "objective": pt.PACBayes(zeta=zeta),
        "seed": seed,
    }
    return pt.Tuner(problem, **(settings | options))


def test_the_least_held_out_score_is_kept() -> None:
    tuner = _tuner()
    result = tuner.fit(OUTER)
    best = min(result.trials, key=lambda row: row["score"])
    expected = "plain" if best["candidate"] == "plain" else "tuned"
    assert (result.kept_run, result.kept_step) == (expected, best["outer_step"])
    assert {row["candidate"] for row in result.trials} == {"plain", "ζ = 0", "ζ = 0.1 ζ*"}
    assert len(result.trials) == 3 * OUTER
    assert len(result.history) == len(result.plain) == OUTER


def test_the_kept_model_is_the_one_of_the_kept_row() -> None:
    tuner = _tuner(seed=3)
    result = tuner.fit(OUTER)
    assert tuner.problem.evaluate(tuner.problem.valid).risk == pytest.approx(result.kept["valid_risk"], rel=1e-6)


def test_the_test_set_decides_nothing() -> None:
    x, y = torch.randn(10, 6), torch.randint(0, 2, (10,))
    without, given = _tuner().fit(OUTER), _tuner().fit(OUTER, test=(x, y))
    assert without.trials == given.trials
    assert (without.zeta, without.kept_run, without.kept_step) == (given.zeta, given.kept_run, given.kept_step)
    assert without.verdict == given.verdict


def test_same_seed_same_choice_and_no_global_seed() -> None:
    tuners = [_tuner(), _tuner()]
    before = torch.random.get_rng_state()
    first, second = (tuner.fit(OUTER) for tuner in tuners)
    assert first.trials == second.trials
    assert first.history.drop(columns="seconds").equals(second.history.drop(columns="seconds"))
    assert torch.equal(before, torch.random.get_rng_state())


def test_folds_hold_every_row_once_and_never_train_on_it() -> None:
    tuner = _tuner(rows=23)
    folds = _folds(tuner.settings, pt.AutoZeta(folds=4))
    for side, source in enumerate((tuner.problem.train, tuner.problem.valid)):
        held = [next(fold.held[side].epoch()).numbers for fold in folds]
        assert torch.cat(held).sort().values.tolist() == list(range(source.rows))
        for fold, rows in zip(folds, held, strict=True):
            kept = fold.train if side == 0 else fold.valid
            assert not set(rows.tolist()) & set(kept.tolist())
            assert len(rows) + len(kept) == source.rows


def test_judge_valid_trains_on_all_training_rows() -> None:
    tuner = _tuner()
    folds = _folds(tuner.settings, pt.AutoZeta(judge="valid"))
    assert all(len(fold.train) == tuner.problem.train.rows and len(fold.held) == 1 for fold in folds)
    assert _tuner(pt.AutoZeta(judge="valid", folds=2)).fit(2).status == "completed"


def test_relative_zeta_balances_the_two_gradients() -> None:
    result = _tuner(pt.AutoZeta(folds=2, fractions=(1.0,))).fit(2)
    twin = _tuner(result.zeta)
    plan = twin.outer_run.plan(result.zeta)
    outcome = run_round(twin.outer_run.chains.request(plan, twin.problem.hyperparameters()))
    risk = math.sqrt(sum(float(g.square().sum()) for g in outcome.risk_gradient.values()))
    path = math.sqrt(sum(float(g.square().sum()) for g in outcome.path_gradient.values()))
    assert result.zeta * path == pytest.approx(risk, rel=1e-5)


def test_losses_that_only_know_means_are_judged_row_by_row() -> None:
    short = _tuner().problem
    general = _tuner(losses={"train_loss": _mean_loss, "valid_loss": _mean_loss}).problem
    assert torch.allclose(short.row_losses(short.valid), general.row_losses(general.valid), atol=1e-6)


def _mean_loss(model, batch, hyper):
    return functional.cross_entropy(model(batch[0]), batch[1])


def test_noise_labels_do_not_pay() -> None:
    """Labels that have nothing to do with the inputs: at most 2 of 6 draws may look as if tuning paid.

    Under the rule each draw says "pays" when a mean of zero exceeds one standard error, probability about 0.16 plus
    the optimism of the best step; 3 or more of 6 at 0.25 each has probability 0.17.
    """
    verdicts = [_tuner(seed=seed, shift=0.0).fit(OUTER).pays for seed in range(6)]
    assert sum(verdict is True for verdict in verdicts) <= 2


def test_interrupt_in_a_fold_gives_everything_back() -> None:
    tuner = _tuner()
    start = {name: value.clone() for name, value in tuner.problem.parameters().items()}

    result = _interrupted(tuner)
    assert (result.status, result.kept_step, result.rows) == ("interrupted", 0, [])
    for name, value in tuner.problem.parameters().items():
        assert torch.equal(value, start[name])
    assert all(float(value.abs().sum()) == 0 for value in tuner.problem.hyperparameters().values())


def _interrupted(tuner: pt.Tuner) -> pt.Result:
    """Interrupt the fifth evaluation of held rows, in the first fold."""
    problem, seen = type(tuner.problem), []
    original = problem.row_losses

    def row_losses(self, source):
        seen.append(source)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return original(self, source)

    problem.row_losses = row_losses
    try:
        return tuner.fit(OUTER)
    finally:
        problem.row_losses = original


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"online": True}, "online=False"),
        ({"objective": pt.PACBayes(zeta="auto"), "rows": 3}, "at least folds=5"),
    ],
)
def test_what_auto_refuses(options: dict, message: str) -> None:
    with pytest.raises(pt.SettingError, match=message):
        _tuner(**options).fit(2)


def test_a_second_fit_is_refused() -> None:
    tuner = _tuner()
    tuner.fit(2)
    with pytest.raises(pt.SettingError, match="make a new one"):
        tuner.fit(2)


def test_the_demo_shows_the_effect() -> None:
    """ζ = 0 loses at least ten points of test accuracy from its best step to its last; a good ζ loses at most three."""
    settings = DemoSettings()
    data = load_digits(settings.rows, settings.seed)
    accuracy = {zeta: [row["test_accuracy"] for row in run_one(data, zeta, settings).rows] for zeta in (0.0, 2.7e-5)}
    assert accuracy[0.0][-1] < max(accuracy[0.0]) - 0.10
    assert accuracy[2.7e-5][-1] > max(accuracy[2.7e-5]) - 0.03


def test_a_start_without_risk_needs_a_scale() -> None:
    """A validation risk below 0 before training cannot scale the score; a number can."""
    losses = {"train_loss": _mean_loss, "valid_loss": _negative_loss}
    tuners = [_tuner(losses=losses), _tuner(pt.AutoZeta(folds=2, scale=1.0), losses=losses)]
    with pytest.raises(pt.SettingError, match="scale="):
        tuners[0].fit(2)
    assert tuners[1].fit(2).status == "completed"


def _negative_loss(model, batch, hyper):
    """A loss below 0 at the start, as a log-density may be."""
    return _mean_loss(model, batch, hyper) - 5.0


def test_the_journal_ends_with_the_verdict_of_the_held_out_rows(tmp_path: Path) -> None:
    result = _tuner(pt.AutoZeta(folds=2)).fit(2, run_dir=tmp_path, progress=False)
    ends = [line for line in read_journal(tmp_path) if line["kind"] == "end"]
    assert [line["verdict"] for line in ends] == [result.verdict]
    assert "held-out rows" in result.verdict
