"""The comparison of plain training, one decay for all, and the tuned model, on rows that none was chosen by."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.columns import Row
from pactune.errors import SettingError
from pactune.results.verdict import Verdict
from pactune.search.metrics import Metric
from pactune.search.training import RowScores, row_scores
from pactune.streams import Streams

__all__ = ["Judgement", "Procedure", "compare", "difference"]

RESAMPLES = 100
CLEAR = 2.0  # standard errors, above which a difference is called one
ROUNDING = 1e-12  # the share of two numbers below which their difference is rounding error


class Procedure(NamedTuple):
    """A way to get a model, and what its models said about held-out rows.

    Attributes:
        name: its name in the table.
        judged: for every fold, the scores of its models for the fold's rows.
        settings: further columns of the table.
    """

    name: str
    judged: Sequence[Sequence[RowScores]]
    settings: Row


class Judgement(NamedTuple):
    """Which procedure is kept, and the numbers behind it.

    Attributes:
        kept: the name of the best procedure.
        rows: the table, a row per procedure.
        verdict: the verdict in words.
    """

    kept: str
    rows: list[Row]
    verdict: Verdict


def compare(
    procedures: Sequence[Procedure],
    held: Sequence[Tensor],
    targets: Sequence[Tensor | None],
    metric: Metric,
    scale: float = 1.0,
) -> Judgement:
    """Compare procedures, the simplest first, by a metric on held-out rows.

    The kept one has the best metric. Of those within one standard error of it, it has the least score; of equal scores,
    it is the simplest. A procedure whose metric is NaN or infinite is not kept; if none has a metric, the least score
    decides.

    Args:
        procedures: the procedures; the first is plain training.
        held: the numbers of the held-out rows of every fold.
        targets: the targets of these rows; None where they are not known.
        metric: the user's metric.
        scale: the mean size of the losses before training.
    """
    draws = _draws(held)
    judged = [_Judged(one, draws, targets, metric, scale) for one in procedures]
    defined = [one for one in judged if one.is_defined]
    near = _near_the_best(defined, metric) if defined else judged
    least = min(one.score for one in near)
    kept = next(one for one in near if difference(one.score, least) == 0)
    rows = [_row(one, judged[0], kept, metric) for one in judged]
    return Judgement(kept.name, rows, _verdict(kept, judged, metric))


def _draws(held: Sequence[Tensor]) -> list[Tensor]:
    """Draw rows with replacement, and return for every draw the places of its rows in the folds put end to end.

    A row that several folds hold out has several places. They are drawn together, since they are one observation.
    """
    places: dict[int, list[int]] = {}
    for place, row in enumerate(torch.cat(list(held)).tolist()):
        places.setdefault(row, []).append(place)
    most = max(map(len, places.values()))
    table = torch.tensor([found + [-1] * (most - len(found)) for found in places.values()], device="cpu")
    generator = Streams(0).generator("resamples")
    draws = []
    for _ in range(RESAMPLES):
        drawn = table[torch.randint(len(table), (len(table),), generator=generator, device="cpu")]
        draws.append(drawn[drawn >= 0])
    return draws


class _Judged:
    """The value of a metric on all held-out rows, its loss and score, and its values on resampled rows."""

    def __init__(
        self,
        procedure: Procedure,
        draws: Sequence[Tensor],
        targets: Sequence[Tensor | None],
        metric: Metric,
        scale: float,
    ) -> None:
        self.name, self.settings = procedure.name, procedure.settings
        models = min(len(fold) for fold in procedure.judged)
        self._losses = [torch.cat([fold[i].losses for fold in procedure.judged]) for i in range(models)]
        self.loss = statistics.fmean(float(one.mean()) for one in self._losses)
        scores = [row_scores([fold[i] for fold in procedure.judged], scale) for i in range(models)]
        self.score = statistics.fmean(float(one.mean()) for one in scores)
        self._metric, self._predictions, self._targets = metric, list[Tensor](), None
        if metric.score is not None:
            self._predictions = [_joined([fold[i].predictions for fold in procedure.judged]) for i in range(models)]
            self._targets = _joined(list(targets))
        self.value = self._value(torch.arange(len(self._losses[0]), device="cpu"))
        self.resampled = [self._value_if_defined(draw) for draw in draws]

    def _value(self, rows: Tensor) -> float:
        if self._metric.score is None:
            return statistics.fmean(float(losses[rows].mean()) for losses in self._losses)
        assert self._targets is not None
        return statistics.fmean(self._metric.score(one[rows], self._targets[rows]) for one in self._predictions)

    def _value_if_defined(self, rows: Tensor) -> float:
        """Return the value, or NaN where a metric has none: resampled rows may lack a class."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return self._value(rows)
            except SettingError:
                return math.nan

    @property
    def is_defined(self) -> bool:
        """True if the metric has a finite value on all held-out rows."""
        return math.isfinite(self.value)

    @property
    def error(self) -> float:
        """The standard error of the value."""
        return _deviation(self.resampled)

    def error_of_gain(self, other: _Judged) -> float:
        """The standard error of the difference to another procedure, on the same rows."""
        return _deviation([difference(a, b) for a, b in zip(self.resampled, other.resampled, strict=True)])


def difference(one: float, other: float) -> float:
    """Return `one` minus `other`; 0 if they differ by rounding error alone, so that they are equal.

    >>> difference(2 / 3, 0.6666666666666667 - 1e-16), difference(0.75, 0.5), difference(1.0, float("inf"))
    (0.0, 0.25, -inf)
    """
    gap = one - other
    return 0.0 if abs(gap) <= ROUNDING * max(abs(one), abs(other)) < math.inf else gap


def _joined(parts: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([part for part in parts if part is not None])


def _deviation(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.stdev(known) if len(known) > 1 else math.nan


def _near_the_best(judged: list[_Judged], metric: Metric) -> list[_Judged]:
    """Return the procedures within one standard error of the best one."""
    sign = 1 if metric.higher_is_better else -1
    best = max(judged, key=lambda one: sign * one.value)
    gaps = [(one, sign * difference(best.value, one.value)) for one in judged]
    return [one for one, gap in gaps if gap == 0 or gap <= best.error_of_gain(one)]


def _row(one: _Judged, plain: _Judged, kept: _Judged, metric: Metric) -> Row:
    gain, error = difference(one.value, plain.value), one.error_of_gain(plain)
    return {
        "model": one.name,
        metric.name: one.value,
        "standard_error": one.error,
        "gain": gain,
        "gain_error": error,
        "loss": one.loss,
        **one.settings,
        "kept": one is kept,
    }


def _verdict(kept: _Judged, judged: list[_Judged], metric: Metric) -> Verdict:
    """Return the verdict: which model is kept, and by how much it is better than the others."""
    plain, sign = judged[0], 1 if metric.higher_is_better else -1
    if not kept.is_defined:
        unclear = "is kept by its score, and it is unclear if tuning pays"
        return Verdict(None, f"the metric {metric.name} is undefined on held-out rows; {kept.name} {unclear}")
    words = [f"{kept.name} is kept: {metric.name} {metric.shown(kept.value)} on held-out rows"]
    for other in judged:
        if other is not kept:
            gain, error = difference(kept.value, other.value), kept.error_of_gain(other)
            known = f"{metric.shown_difference(gain, error)} against {other.name}"
            words.append(known if other.is_defined else f"undefined for {other.name}")
    sentence = ", ".join(words)
    if any(sign * difference(other.value, kept.value) > 0 for other in judged):
        sentence += "; it is within one standard error of the best and has the least score of those"
    if not plain.is_defined:
        return Verdict(None, f"{sentence}; without a number for plain training it is unclear if tuning pays")
    gain, error = sign * difference(kept.value, plain.value), kept.error_of_gain(plain)
    if gain <= 0:
        return Verdict(False, f"{sentence}; tuning does not pay here")
    if gain > CLEAR * error:
        return Verdict(True, sentence)
    return Verdict(None, f"{sentence}; a difference within two standard errors (±) is not clear")
