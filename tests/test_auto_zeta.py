"""`zeta="auto"`: what it chooses, what it never sees, and what it says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import pactune as pt
from pactune.demo.digits import load_digits
from pactune.engines import Traced
from pactune.rounds.round import run_round
from pactune.tracking import read_journal
from pactune.tuning.auto_zeta import _folds
from pactune.tuning.copies import copied_settings

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
    (request,) = twin.outer_run.chains.requests(plan, twin.problem.hyperparameters())
    outcome = run_round(request)
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


def _digits_accuracies(zeta: float) -> list[float]:
    """Tune 650 decays on 50 + 50 images of digits, and return the test accuracy after every outer step."""
    (x, y), test = load_digits(100, 0)
    model = nn.Linear(64, 10)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.125, 0.125, generator=generator)
    hyper = pt.WeightDecay(model)
    halves = {"train": (x[:50], y[:50]), "valid": (x[50:], y[50:])}
    problem = pt.Problem(model, hyper, **halves, loss=functional.cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    tuner = pt.Tuner(problem, inner=pt.Adam(lr=2e-3), inner_steps=50, outer=outer, objective=pt.PACBayes(zeta=zeta))
    return [row["test_accuracy"] for row in tuner.fit(80, test=test).rows]


def test_the_effect_of_zeta_on_digits() -> None:
    """ζ = 0 loses at least ten points of test accuracy from its best step to its last; a good ζ loses at most three."""
    accuracy = {zeta: _digits_accuracies(zeta) for zeta in (0.0, 2.7e-5)}
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


def _scores(result: pt.Result) -> list[float]:
    return [row["score"] for row in result.trials]


@pytest.mark.parametrize("rows", [20, 23])  # 23 rows make folds of unequal size
@pytest.mark.parametrize("chains", [1, 2])
def test_candidates_in_lockstep_score_as_one_after_the_other(rows: int, chains: int) -> None:
    options = {"rows": rows, "chains": chains, "initial": None if chains == 1 else _initial}
    together = _tuner(**options, engine=Traced(steps=2)).fit(OUTER)
    one_by_one = _tuner(**options, engine="eager").fit(OUTER)
    assert _scores(together) == pytest.approx(_scores(one_by_one), rel=1e-4)
    assert together.zeta == pytest.approx(one_by_one.zeta, rel=1e-4)
    assert (together.kept_run, together.kept_step) == (one_by_one.kept_run, one_by_one.kept_step)


def _initial(generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"weight": 0.1 * torch.randn(2, 6, generator=generator), "bias": torch.zeros(2)}


def test_every_copy_has_modules_and_an_optimizer_of_its_own() -> None:
    tuner = _tuner(engine=Traced(steps=2))
    settings = copied_settings(tuner.settings, 2)
    assert settings is not None
    modules = [one.problem.model for one in settings]
    assert len({id(module) for module in [tuner.problem.model, *modules]}) == 3
    held = {id(p) for group in settings[0].outer.param_groups for p in group["params"]}
    assert held == {id(p) for p in settings[0].problem.hyper.parameters()}


def test_a_loss_that_holds_its_module_is_not_copied() -> None:
    """The closure calls the module that it was defined with, so a copy would train one model and judge another."""
    tuner = _tuner(engine=Traced(steps=2))
    model, hyper = tuner.problem.model, tuner.problem.hyper

    def loss(_model: nn.Module, batch: tuple[torch.Tensor, ...], _hyper: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    problem = pt.Problem(
        model, hyper, train=tuner.problem.train, valid=tuner.problem.valid, train_loss=loss, valid_loss=loss
    )
    settings = {"inner": tuner.inner, "inner_steps": 8, "outer": tuner.outer, "objective": tuner.objective}
    held = pt.Tuner(problem, engine=Traced(steps=2), **settings)
    assert copied_settings(held.settings, 1) is None
    given = {"train_loss": _mean_loss, "valid_loss": _mean_loss}
    expected = _scores(_tuner(losses=given, engine="eager").fit(OUTER))
    assert _scores(held.fit(OUTER)) == pytest.approx(expected, rel=1e-4)


class _HoldsItself(nn.Module):
    """A penalty that reads λ by a function made with the original module: a copy still reads the original λ."""

    def __init__(self) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.zeros(()))
        self.read = lambda: self.strength

    def penalty(self, params: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.read() * sum(value.square().sum() for value in params.values())


def test_a_penalty_that_holds_its_module_is_not_copied() -> None:
    given = _tuner()
    hyper = _HoldsItself()
    problem = pt.Problem(
        given.problem.model, hyper, train=given.problem.train, valid=given.problem.valid, loss=functional.cross_entropy
    )
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=2, outer=outer, objective=pt.PACBayes(zeta="auto"))
    assert copied_settings(given.settings, 1) is not None
    assert copied_settings(tuner.settings, 1) is None


def test_an_optimizer_with_hooks_is_not_copied() -> None:
    tuner = _tuner(engine=Traced(steps=2))
    tuner.outer.register_step_pre_hook(lambda *_: None)
    assert copied_settings(tuner.settings, 1) is None


def test_a_module_that_cannot_be_copied_runs_one_by_one() -> None:
    tuner = _tuner(engine=Traced(steps=2))
    tuner.problem.model.derived = tuner.problem.model.weight * 2  # no leaf: torch refuses to copy it
    assert copied_settings(tuner.settings, 1) is None
    assert _scores(tuner.fit(OUTER)) == pytest.approx(_scores(_tuner(engine="eager").fit(OUTER)), rel=1e-4)


@pytest.mark.parametrize("calls", [31, 64, 90])  # held rows are scored twice per candidate and outer step, plain too
def test_killed_inside_the_folds_and_resumed(calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidates are stacked again as they were, so that every number is the same bit for bit."""
    options = {"engine": Traced(steps=2)}
    reference = _tuner(**options).fit(OUTER)
    seen, original = [], pt.Problem.row_losses

    def row_losses(self: pt.Problem, source: object) -> torch.Tensor:
        seen.append(source)
        if len(seen) == calls:
            raise ArithmeticError("killed")
        return original(self, source)

    monkeypatch.setattr(pt.Problem, "row_losses", row_losses)
    with pytest.raises(ArithmeticError):
        _tuner(**options).fit(OUTER, run_dir=tmp_path / "run", progress=False)
    result = _tuner(**options).fit(OUTER, run_dir=tmp_path / "run", resume=True, progress=False)
    assert result.trials == reference.trials
    assert result.history.drop(columns="seconds").equals(reference.history.drop(columns="seconds"))
