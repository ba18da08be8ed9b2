"""The comparison of procedures: what is kept, and what the verdict may call a gain."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pactune.results.verdict import Verdict
from pactune.search.comparison import Judgement, Procedure, compare
from pactune.search.metrics import Metric, as_metric
from pactune.search.training import RowScores
from tests.search.calls import ROWS, tune

LOSS = Metric("loss", False, None)
ACCURACY = Metric("accuracy", True, lambda found, wanted: float((found == wanted).double().mean()))
NAMES = ("plain training", "one decay", "the tuned model")


def by_losses(*losses: Tensor) -> Judgement:
    """Compare procedures by their losses on one fold."""
    named = zip(NAMES, losses, strict=False)
    procedures = [Procedure(name, [[RowScores(one.double(), None)]], {}) for name, one in named]
    return compare(procedures, [torch.arange(len(losses[0]))], [None], LOSS)


def by_hits(rows: int, *hits: int | range, losses: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Judgement:
    """Compare procedures by the rows that they predict correctly: so many, or these."""
    procedures = []
    for name, count, loss in zip(NAMES, hits, losses, strict=False):
        right = torch.isin(torch.arange(rows), torch.tensor(range(count) if isinstance(count, int) else count)).long()
        procedures.append(Procedure(name, [[RowScores(torch.full((rows,), loss).double(), right)]], {}))
    return compare(procedures, [torch.arange(rows)], [torch.ones(rows, dtype=torch.long)], ACCURACY)


@pytest.mark.parametrize("rows", [2, 10, 100, 997])
def test_one_row_is_no_gain(rows: int) -> None:
    found = by_hits(rows, rows - 1, rows)
    assert found.verdict.pays is not True
    assert found.rows[1]["gain"] == pytest.approx(1 / rows)


def test_equal_procedures_keep_plain_training() -> None:
    found = by_hits(50, 40, 40, 40)
    assert found.kept == "plain training"
    assert found.verdict.pays is False
    assert "tuning does not pay here" in found.verdict.verdict


def test_numbers_that_differ_by_rounding_alone_are_equal() -> None:
    """Means of the same rows in another order differ in their last digit."""
    rows, values = torch.arange(40), (0.6666666666666666, 0.6666666666666667, 2 / 3)
    procedures = [
        Procedure(name, [[RowScores(torch.full((40,), 1 - i * 1e-15, dtype=torch.float64), torch.full((40,), i))]], {})
        for i, name in enumerate(NAMES)
    ]
    judged = compare(procedures, [rows], [rows], Metric("accuracy", True, lambda found, _: values[int(found[0])]))
    assert judged.kept == "plain training"
    assert [row["gain"] for row in judged.rows] == [0, 0, 0]
    assert judged.verdict == Verdict(
        False,
        "plain training is kept: accuracy 66.7 % on held-out rows, +0.0 ± 0.0 points against one decay, "
        "+0.0 ± 0.0 points against the tuned model; tuning does not pay here",
    )


@pytest.mark.parametrize("metric", [LOSS, ACCURACY], ids=["loss", "accuracy"])
def test_no_zero_has_a_sign(metric: Metric) -> None:
    assert "-0" not in metric.shown(-0.0) + metric.shown_difference(-0.0, 0.0)
    assert "-0.0" not in ACCURACY.shown_difference(-1e-4, 1e-3)


def test_a_clear_gain_is_called_one() -> None:
    found = by_hits(200, 120, 180, 150, losses=(1.0, 0.5, 0.8))
    assert (found.kept, found.verdict.pays) == ("one decay", True)
    assert "accuracy 90.0 %" in found.verdict.verdict
    assert "+30.0 ±" in found.verdict.verdict
    assert "points against plain training" in found.verdict.verdict
    assert "within one standard error" not in found.verdict.verdict
    assert [row["kept"] for row in found.rows] == [False, True, False]


def test_of_procedures_within_one_standard_error_the_least_loss_is_kept() -> None:
    near = range(10, 912)  # ten rows are lost and twelve are won: 2 ± √22
    found = by_hits(997, 900, near, losses=(0.3, 0.4))
    assert found.kept == "plain training"
    assert by_hits(997, 900, near, losses=(0.4, 0.3)).kept == "one decay"
    assert by_hits(997, 500, near, losses=(0.3, 0.4)).kept == "one decay"
    assert "within one standard error of the best and has the least score" in found.verdict.verdict


@pytest.mark.parametrize("right", [range(12, 912), range(10, 909)], ids=["as many rows", "fewer rows"])
def test_another_procedure_without_a_gain_does_not_pay(right: range) -> None:
    found = by_hits(997, 900, right, losses=(0.4, 0.3))
    assert (found.kept, found.verdict.pays) == ("one decay", False)
    assert found.rows[1]["gain"] <= 0
    assert found.verdict.verdict.endswith("; tuning does not pay here")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_procedure_that_diverged_is_never_kept(bad: float) -> None:
    good, broken = torch.linspace(1, 2, 40), torch.full((40,), bad)
    assert by_losses(good, broken).kept == "plain training"
    assert by_losses(broken, good).kept == "one decay"
    assert by_hits(40, 30, 30, losses=(bad, 1.0)).kept == "one decay"
    assert by_hits(40, 30, 30, losses=(1.0, bad)).kept == "plain training"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_undefined_metric_leaves_the_choice_to_the_score(bad: float) -> None:
    losses, rows = (1.0, 0.5, 0.8), torch.arange(40)
    procedures = [
        Procedure(name, [[RowScores(torch.full((40,), loss).double(), rows)]], {})
        for name, loss in zip(NAMES, losses, strict=True)
    ]
    found = compare(procedures, [rows], [rows], Metric("my metric", True, lambda *_: bad))
    assert (found.kept, found.verdict.pays) == ("one decay", None)
    assert [row["kept"] for row in found.rows] == [False, True, False]
    assert found.verdict.verdict == (
        "the metric my metric is undefined on held-out rows; one decay is kept by its score, and it is unclear if "
        "tuning pays"
    )


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_procedure_without_a_metric_leaves_the_others_to_be_compared(place: int) -> None:
    losses = [torch.linspace(start, start + 1, 40) for start in (3, 1, 2)]
    losses[place] = torch.full((40,), math.nan)
    found = by_losses(*losses)
    assert found.kept == NAMES[2 if place == 1 else 1]
    assert found.verdict.pays is (None if place == 0 else True)
    assert f", undefined for {NAMES[place]}" in found.verdict.verdict
    assert ("without a number for plain training" in found.verdict.verdict) == (place == 0)


def test_a_loss_that_is_not_finite_leaves_another_metric_as_it_is() -> None:
    found = by_hits(200, 120, 180, losses=(math.nan, 0.5))
    assert (found.kept, found.verdict.pays) == ("one decay", True)
    assert math.isnan(found.rows[0]["loss"])
    assert "undefined" not in found.verdict.verdict


def test_a_metric_of_nan_gets_no_verdict() -> None:
    result = tune(metric=lambda predictions, targets: math.nan)
    assert result.pays is None
    assert "the metric lambda is undefined on held-out rows" in result.verdict


def test_the_error_of_a_mean_is_the_standard_error() -> None:
    losses = torch.randn(500, generator=torch.Generator().manual_seed(0)) + 3
    row = by_losses(losses, losses + 0.5).rows[1]
    wanted = float(losses.std()) / 500**0.5
    # the deviation of 100 resamples has a relative error of 1/√200 = 0.07; three of them
    assert row["standard_error"] == pytest.approx(wanted, rel=0.21)
    assert row["gain"] == pytest.approx(0.5)
    assert row["gain_error"] == pytest.approx(0, abs=1e-7)  # the same rows are drawn for both


@pytest.mark.parametrize("metric", [LOSS, ACCURACY], ids=["loss", "accuracy"])
def test_rows_that_several_folds_hold_out_are_no_new_rows(metric: Metric) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = list(torch.randperm(60, generator=generator).reshape(3, 20))
    losses = torch.rand(2, 60, generator=generator).double()
    hits = torch.randint(2, (2, 60), generator=generator)

    def table(times: int) -> list[dict[str, Any]]:
        procedures = [
            Procedure(name, [[RowScores(loss[fold], hit[fold])] for fold in rows * times], {})
            for name, loss, hit in zip(NAMES, losses, hits, strict=False)
        ]
        return compare(procedures, rows * times, [torch.ones(20)] * 3 * times, metric).rows

    for once, often in zip(table(1), table(5), strict=True):
        assert often == pytest.approx(once, abs=1e-12)


def test_equal_folds_twice_have_the_errors_of_folds_once() -> None:
    rows = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    folds = [(torch.cat([rows[:start], rows[start + 10 :]]), rows[start : start + 10]) for start in (0, 10, 20)]
    _, once, _ = tune(folds=folds).comparison
    _, twice, _ = tune(folds=folds * 2).comparison
    for name in ("standard_error", "gain_error"):
        assert twice[name] == pytest.approx(once[name], rel=1e-6) != 0


def test_a_row_that_more_folds_hold_out_counts_more() -> None:
    """The losses are 0 and 1; the row with 1 is held out twice. A draw has it never, once or twice: 0, 2/3 or 1."""
    judged = [[RowScores(torch.tensor([0.0, 1.0]).double(), None)], [RowScores(torch.tensor([1.0]).double(), None)]]
    held = [torch.tensor([0, 1]), torch.tensor([1])]
    row = compare([Procedure("plain training", judged, {})], held, [None, None], LOSS).rows[0]
    assert row["loss"] == pytest.approx(2 / 3)
    # the deviation of 0, 2/3, 2/3, 1 is 0.363; that of 100 resamples has a relative error of 0.07; three of them
    assert row["standard_error"] == pytest.approx(0.363, rel=0.21)


def test_the_numbers_of_rows_do_not_matter() -> None:
    losses = torch.rand(40, generator=torch.Generator().manual_seed(2)).double()
    order = torch.randperm(90, generator=torch.Generator().manual_seed(3))[:40]
    procedures = [Procedure(NAMES[0], [[RowScores(losses, None)]], {})]
    assert compare(procedures, [order], [None], LOSS) == compare(procedures, [torch.arange(40)], [None], LOSS)


def test_smaller_is_better_for_a_loss() -> None:
    losses = torch.rand(200, generator=torch.Generator().manual_seed(1)) + 1
    found = by_losses(losses, losses * 0.7)
    assert (found.kept, found.verdict.pays) == ("one decay", True)
    assert found.rows[1]["gain"] < 0
    assert by_losses(losses * 0.7, losses).kept == "plain training"


def test_the_models_of_a_fold_count_as_one_on_average() -> None:
    one, other = torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double()
    last = torch.tensor([5.0]).double()
    judged = [[RowScores(one, None), RowScores(other, None)], [RowScores(last, None), RowScores(last, None)]]
    held = [torch.tensor([0, 2]), torch.tensor([1])]
    found = compare([Procedure("plain training", judged, {"decay": 0.0})], held, [None, None], LOSS)
    assert found.rows[0]["loss"] == pytest.approx((8 / 3 + 12 / 3) / 2)
    assert found.rows[0]["decay"] == 0.0


def test_resampled_rows_may_lack_a_class(recwarn: pytest.WarningsRecorder) -> None:
    """A third of the draws of 30 rows has none of one row: then some metrics raise and others warn."""
    targets = (torch.arange(30) == 7).long()
    scores = torch.stack([torch.zeros(30), torch.linspace(-1, 1, 30)], 1)
    for name in ("neg_log_loss", "roc_auc"):
        metric = as_metric(name, None, scores, targets)
        named = [Procedure(one, [[RowScores(torch.ones(30).double(), scores)]], {}) for one in NAMES]
        row = compare(named, [torch.arange(30)], [targets], metric).rows[0]
        assert 0 < row["standard_error"] < 1
    assert not recwarn.list


def test_the_comparison_is_a_function_of_its_inputs(rng_untouched: Any) -> None:
    losses = torch.linspace(1, 2, 30)
    assert by_losses(losses, losses**2) == by_losses(losses, losses**2)
