"""The scores of held-out rows by candidate, round and model, and the choices that are made by them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.problem.folds import FoldRows
from pactune.search.rows import HeldOutFold
from pactune.search.training import RowScores, row_scores

__all__ = ["CandidateScores", "RoundChoice", "likely", "scale_of", "smooth"]

WINDOW = 3  # rounds over which a score is averaged, since that of a single round is noisy on few rows


def scale_of(start: Tensor, rows: Tensor) -> float:
    """Return the mean size of the losses before training of the rows that choose; no other row may enter a choice."""
    return max(float(start[rows].abs().mean()), 1e-12)


def smooth(scores: Tensor) -> Tensor:
    """Average scores over the rounds around each, in the last dimension.

    >>> smooth(torch.tensor([3.0, 0.0, 3.0, 6.0])).tolist()
    [1.5, 2.0, 3.0, 4.5]
    """
    reach = WINDOW // 2
    found = [scores[..., max(0, r - reach) : r + reach + 1].mean(-1) for r in range(scores.shape[-1])]
    return torch.stack(found, dim=-1)


def likely(scores: Tensor, rows: int) -> int:
    """Return the median place under the Gibbs posterior, which gives a place the weight exp(−rows · score).

    A clear minimum is chosen as it is. Among scores that the rows cannot tell apart, the place in the middle is a surer
    choice than the least score, which is then a matter of chance.

    >>> likely(torch.tensor([1.0, 0.1, 1.0, 1.0, 1.0]), 100), likely(torch.tensor([0.5, 0.4999, 0.5, 0.5, 0.5]), 100)
    (1, 2)
    """
    total = torch.exp(-rows * (scores - scores.min())).cumsum(0)
    return int((total >= total[-1] / 2).nonzero()[0])


class RoundChoice(NamedTuple):
    """A candidate and the round after which its model is kept, counted from 0."""

    candidate: int
    round: int


class CandidateScores:
    """What the models of several candidates say about rows that they did not train on, round by round.

    Args:
        kinds: the kind of every candidate. Those of one kind are ordered by one number.
        models: the rows that train each model, and the rows that it is scored on.
        held: the folds that are held out in turn.
        start: the loss of every row before training, by whose mean losses are divided.
        to_end: the candidates whose last round counts alone, since more steps do not make them overfit.
    """

    def __init__(
        self,
        kinds: Sequence[Hashable],
        models: Sequence[FoldRows],
        held: Sequence[HeldOutFold],
        start: Tensor,
        to_end: Collection[int] = (),
    ) -> None:
        self._to_end = to_end
        self._kinds, self._models, self._held, self._start = kinds, models, held, start
        self._found: dict[int, list[list[RowScores]]] = {}
        self._number = {tuple(model.train.tolist()): number for number, model in enumerate(models)}

    @property
    def rounds(self) -> int:
        """The number of rounds that all candidates have finished."""
        return min(map(len, self._found.values()), default=0)

    @property
    def candidates(self) -> list[int]:
        """The candidates that have run for all rounds."""
        return sorted(one for one, rounds in self._found.items() if len(rounds) == self.longest)

    @property
    def longest(self) -> int:
        """The largest number of rounds of a candidate."""
        return max(map(len, self._found.values()), default=0)

    def add(self, candidate: int, scores: list[RowScores]) -> None:
        """Add a round of a candidate: the scores of all models."""
        self._found.setdefault(candidate, []).append(scores)

    def table(self, k: int) -> dict[int, Tensor]:
        """Return, for every candidate, the score of each round by the rows that choose while fold k is held out."""
        return {one: self._curve(one, self._held[k].parts) for one in sorted(self._found)}

    def _curve(self, candidate: int, parts: list[FoldRows]) -> Tensor:
        scale = scale_of(self._start, torch.cat([part.valid for part in parts]))
        rounds = self._found[candidate]
        return torch.stack([row_scores([self._asked(one, p, p.valid) for p in parts], scale).mean() for one in rounds])

    def _asked(self, found: list[RowScores], part: FoldRows, rows: Tensor) -> RowScores:
        """Return what the model of a part says about some rows."""
        number = self._number[tuple(part.train.tolist())]
        return found[number].at(torch.searchsorted(self._models[number].valid, rows))

    def best(self, k: int | None, among: Sequence[int] | None = None) -> RoundChoice:
        """Return a candidate and a round by the rows that choose while fold k is held out; None takes all rows.

        The kind has the largest mean weight under the Gibbs posterior; candidate and round are its medians.
        """
        folds = range(len(self._held)) if k is None else [k]
        tables, rows = [self.table(fold) for fold in folds], self._rows(folds)
        curves = {one: smooth(torch.stack([table[one] for table in tables]).mean(0)) for one in among or tables[0]}
        curves |= {one: curves[one][-1:] for one in curves if one in self._to_end}
        least = {one: float(curve.min()) for one, curve in curves.items()}
        weights = {one: math.exp(-rows * (score - min(least.values()))) for one, score in least.items()}
        kinds: dict[Hashable, list[int]] = {}
        for one in sorted(curves):
            kinds.setdefault(self._kinds[one], []).append(one)
        kind = max(kinds.values(), key=lambda members: statistics.fmean(weights[one] for one in members))
        chosen = kind[likely(torch.tensor([least[one] for one in kind], dtype=torch.float64, device="cpu"), rows)]
        return RoundChoice(chosen, len(self._found[chosen]) - len(curves[chosen]) + likely(curves[chosen], rows))

    def _rows(self, folds: Sequence[int]) -> int:
        """Return the number of rows that choose while each of the folds is held out."""
        return len({int(row) for k in folds for part in self._held[k].parts for row in part.valid})

    def judged(self, k: int, choice: RoundChoice) -> list[RowScores]:
        """Return what the models say about the held-out rows of fold k, one `RowScores` per model."""
        held, found = self._held[k], self._found[choice.candidate][choice.round]
        return [self._asked(found, part, held.held) for part in held.parts]
