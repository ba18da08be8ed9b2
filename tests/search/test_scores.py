"""Scores of candidates: which rows enter a choice, and that the choice is the least smoothed score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from pactune.problem.folds import FoldRows
from pactune.search.many import HeldOutScores
from pactune.search.rows import hold_out_folds, merged, union
from pactune.search.scores import CandidateScores, RoundChoice, likely, scale_of, smooth
from pactune.search.temperatures import FACTORS, losses_of_classes, losses_of_one_logit
from pactune.search.training import RowScores, row_scores

ROWS, FOLDS = 12, 4
PAIRS = [
    FoldRows(torch.tensor([i for i in range(ROWS) if i % FOLDS != k]), torch.arange(k, ROWS, FOLDS))
    for k in range(FOLDS)
]
HELD = hold_out_folds(PAIRS, reach=2)
MODELS = merged(FoldRows(part.train, union(part.valid, fold.held)) for fold in HELD for part in fold.parts)
START = torch.ones(ROWS, dtype=torch.float64)


def filled(losses: Tensor, kinds: Sequence[float] | None = None, to_end: Sequence[int] = ()) -> CandidateScores:
    """Return scores by losses of every candidate, round and row. A model's prediction is the number of the row."""
    scores = CandidateScores(kinds or [0.0] * len(losses), MODELS, HELD, START, to_end)
    for candidate, rounds in enumerate(losses):
        for values in rounds:
            scores.add(candidate, [RowScores(values[model.valid], model.valid.double()) for model in MODELS])
    return scores


def random(seed: int = 0, candidates: int = 3, rounds: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(candidates, rounds, ROWS, generator=generator, dtype=torch.float64) + 0.5


def test_a_pair_of_folds_shares_a_model() -> None:
    assert len(MODELS) == FOLDS * (FOLDS - 1) // 2


def test_a_score_is_the_mean_over_the_rows_that_choose() -> None:
    losses = random()
    for k, fold in enumerate(HELD):
        rows = [i for i in range(ROWS) if i not in fold.held]
        for one, curve in filled(losses).table(k).items():
            torch.testing.assert_close(curve, (1 - torch.exp(-losses[one][:, rows])).mean(1))


@pytest.mark.parametrize("fold", range(FOLDS))
def test_the_choice_for_a_fold_does_not_depend_on_its_rows(fold: int) -> None:
    losses = random()
    changed = losses.clone()
    changed[..., HELD[fold].held] = 100 * random(1)[..., HELD[fold].held]
    one, other = filled(losses), filled(changed)
    assert one.best(fold) == other.best(fold)
    assert all(torch.equal(curve, other.table(fold)[key]) for key, curve in one.table(fold).items())
    assert not torch.equal(one.table((fold + 1) % FOLDS)[0], other.table((fold + 1) % FOLDS)[0])


def test_clear_scores_choose_the_least_smoothed_one() -> None:
    losses = torch.full((3, 7, ROWS), 9.0, dtype=torch.float64)
    losses[1, 3] = 0.1  # one lucky round
    losses[2, 4:7] = 0.2
    scores = filled(losses)
    assert scores.best(0) == scores.best(None) == RoundChoice(2, 5)
    assert (scores.rounds, scores.longest, scores.candidates) == (7, 7, [0, 1, 2])


def test_scores_that_the_rows_cannot_tell_apart_choose_the_middle() -> None:
    losses = torch.full((5, 7, ROWS), 1.0, dtype=torch.float64)
    losses[4, 6] = 0.999
    assert filled(losses).best(None) == RoundChoice(2, 3)
    assert filled(losses).best(None, [0]) == RoundChoice(0, 3)


def test_a_kind_is_chosen_first_and_then_its_middle() -> None:
    losses = torch.full((5, 3, ROWS), 2.0, dtype=torch.float64)
    losses[2:] = 0.1  # of the second kind
    assert filled(losses, [0.0, 0.0, 1.0, 1.0, 1.0]).best(None) == RoundChoice(3, 1)


def test_many_rows_need_a_smaller_difference() -> None:
    scores = torch.tensor([0.5, 0.5, 0.5, 0.5, 0.49])
    assert (likely(scores, 10), likely(scores, 1000)) == (2, 4)


def test_a_candidate_that_stopped_early_can_be_the_best() -> None:
    scores = filled(random(rounds=4) + torch.tensor([0.0, 5.0, 5.0])[:, None, None])
    scores.add(1, [RowScores(torch.ones(len(model.valid)), None) for model in MODELS])
    assert (scores.rounds, scores.longest, scores.candidates) == (4, 5, [1])
    assert scores.best(None).candidate == 0


def test_judged_are_the_held_out_rows_of_every_model() -> None:
    losses = random()
    for k, fold in enumerate(HELD):
        judged = filled(losses).judged(k, RoundChoice(1, 2))
        assert len(judged) == len(fold.parts)
        for found in judged:
            assert torch.equal(found.losses, losses[1, 2, fold.held])
            assert found.predictions is not None
            assert torch.equal(found.predictions, fold.held.double())


def test_no_single_row_decides() -> None:
    losses = torch.tensor([0.0, 2.0, 1e9, math.inf, math.nan], dtype=torch.float64)
    wanted = [0.0, 1 - math.exp(-1), 1.0, 1.0, 1.0]
    assert row_scores([RowScores(losses, None)], 2.0).tolist() == pytest.approx(wanted)
    assert scale_of(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([0, 1])) == 2.0
    assert scale_of(torch.zeros(3), torch.tensor([0])) > 0


def test_classes_are_scored_at_the_temperature_that_is_best_for_all_rows() -> None:
    logits = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.cat([logits[:30].argmax(1), (logits[30:].argmax(1) + 1) % 3])
    unsure = losses_of_classes(logits, targets)
    assert torch.equal(unsure[:, FACTORS.index(1.0)], F.cross_entropy(logits.double(), targets, reduction="none"))
    halves = [RowScores(torch.zeros(20), None, unsure[:20]), RowScores(torch.zeros(20), None, unsure[20:])]
    found = row_scores(halves, 1.0)
    assert float(found.mean()) == pytest.approx(float(unsure.mean(0).min()))
    sure = losses_of_classes(FACTORS[16] * logits, targets)  # the grid of factors holds the inverse too
    assert float(row_scores([RowScores(torch.zeros(40), None, sure)], 1.0).mean()) == pytest.approx(float(found.mean()))


def test_one_logit_is_scored_like_two() -> None:
    logits = torch.randn(9, 1, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])
    two = losses_of_classes(torch.cat([torch.zeros(9, 1), logits], dim=1), targets)
    torch.testing.assert_close(losses_of_one_logit(logits, targets[:, None].float()), two)


def test_negative_losses_have_scores_between_minus_1_and_1() -> None:
    losses = torch.tensor([-1e9, -2.0, -1.0, 0.0, 1.0, 2.0, 1e9], dtype=torch.float64)
    start = torch.tensor([-3.0, 1.0, -20.0], dtype=torch.float64)
    assert scale_of(start, torch.tensor([0, 1])) == 2
    scores = row_scores([RowScores(losses, None)], 2.0)
    assert bool((scores.diff() > 0).all())
    torch.testing.assert_close(scores, -scores.flip(0))
    torch.testing.assert_close(scores[3:], 1 - torch.exp(-losses[3:] / 2))


def test_a_diverged_model_has_the_worst_score() -> None:
    logits = torch.tensor([[math.nan, 0.0], [math.inf, 0.0]])
    assert losses_of_classes(logits, torch.tensor([0, 0])).isfinite().all()
    worst = RowScores(torch.zeros(2), None, losses_of_classes(logits, torch.tensor([0, 0])))
    assert float(row_scores([worst], 1.0).min()) > 100


def test_smoothing_keeps_the_length() -> None:
    assert smooth(torch.tensor([5.0])).tolist() == [5.0]
    assert smooth(torch.tensor([[1.0, 3.0], [0.0, 0.0]])).tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_the_step_of_a_tuned_run_is_chosen_by_the_other_folds() -> None:
    """Each fold has its best step: that of fold 0 is not seen when fold 0 is left out."""
    held = [fold.held for fold in HELD]
    scores = HeldOutScores(held, START)
    for k, rows in enumerate(held):
        for step in range(9):
            losses = torch.full((len(rows),), 1.0 if k == 0 else 1.0 + 0.1 * abs(step - 6), dtype=torch.float64)
            tempered = losses[:, None] + torch.tensor([9.0 if k == 0 and abs(step - 3) > 1 else 0.0, 99.0])
            scores.add(k, [RowScores(losses, None, tempered)] * 2)
    assert scores.best(without=0) == 6
    assert scores.best(without=1) == scores.best() == 3
    assert len(scores.judged(2, 3)) == 2


def test_a_row_of_several_folds_has_no_part_in_the_step_of_any_of_them() -> None:
    """So folds that are given twice choose what they choose once."""
    held = [fold.held for fold in HELD]
    generator = torch.Generator().manual_seed(0)
    losses = torch.rand(len(held), 9, len(held[0]), generator=generator, dtype=torch.float64)
    once, twice = HeldOutScores(held, START), HeldOutScores(held * 2, START)
    for scores in (once, twice):
        for k in range(len(held) * (2 if scores is twice else 1)):
            for step in range(9):
                scores.add(k, [RowScores(losses[k % len(held), step], None)])
    for k in (None, *range(len(held))):
        assert twice.best(k) == once.best(k)


def test_of_a_candidate_that_trains_to_the_end_only_the_last_round_counts() -> None:
    losses = torch.ones(2, 7, ROWS, dtype=torch.float64)
    losses[0, 2:5], losses[1, 4:] = 1e-3, 1e-2  # the first is better, but not at the end
    assert filled(losses, [0.0, 1.0]).best(None) == (0, 3)
    assert filled(losses, [0.0, 1.0], to_end=[0, 1]).best(None) == (1, 6)


def test_a_tuned_run_with_noise_takes_its_last_step() -> None:
    held = [fold.held for fold in HELD]
    scores = HeldOutScores(held, START, to_end=True)
    for k, rows in enumerate(held):
        for step in range(5):
            scores.add(k, [RowScores(torch.full((len(rows),), float(step), dtype=torch.float64), None)])
    assert scores.best() == scores.best(without=1) == 4
