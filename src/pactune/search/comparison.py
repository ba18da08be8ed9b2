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

__all__ = ["Judgement", "Procedure", "compare"]

RESAMPLES = 100
CLEAR = 2.0  # standard errors, above which a difference is called one


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
    procedures: Sequence[Procedure], targets: Sequence[Tensor | None], metric: Metric, scale: float = 1.0
) -> Judgement:
    """Compare procedures, the simplest first, by a metric on held-out rows.

    The kept one has the best metric. Of those within one standard error of it, it has the least score; of equal scores,
    it is the simplest.

    Args:
        procedures: the procedures; the first is plain training.
        targets: the targets of the rows of every fold; None where they are not known.
        metric: the user's metric.
        scale: the mean loss before training.
    """
    judged = [_Judged(one, targets, metric, scale) for one in procedures]
    sign = 1 if metric.higher_is_better else -1
    best = max(judged, key=lambda one: sign * one.value if math.isfinite(one.value) else -math.inf)
    near = [one for one in judged if one is best or sign * (best.value - one.value) <= best.error_of_gain(one)]
    kept = min(near, key=lambda one: one.score)
    rows = [_row(one, judged[0], kept, metric) for one in judged]
    return Judgement(kept.name, rows, _verdict(kept, judged, metric))


class _Judged:
    """The value of a metric on all held-out rows, its loss and score, and its values on resampled rows."""

    def __init__(self, procedure: Procedure, targets: Sequence[Tensor | None], metric: Metric, scale: float) -> None:
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
        rows = len(self._losses[0])
        self.value = self._value(torch.arange(rows, device="cpu"))
        generator = Streams(0).generator("resamples")  # the same rows for all procedures
        draws = [torch.randint(rows, (rows,), generator=generator, device="cpu") for _ in range(RESAMPLES)]
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
    def error(self) -> float:
        """The standard error of the value."""
        return _deviation(self.resampled)

    def error_of_gain(self, other: _Judged) -> float:
        """The standard error of the difference to another procedure, on the same rows."""
        return _deviation([a - b for a, b in zip(self.resampled, other.resampled, strict=True)])


def _joined(parts: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([part for part in parts if part is not None])


def _deviation(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.stdev(known) if len(known) > 1 else math.nan


def _row(one: _Judged, plain: _Judged, kept: _Judged, metric: Metric) -> Row:
    gain, error = one.value - plain.value, one.error_of_gain(plain)
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
    words = [f"{kept.name} is kept: {metric.name} {metric.shown(kept.value)} on held-out rows"]
    for other in judged:
        if other is not kept:
            gain, error = kept.value - other.value, kept.error_of_gain(other)
            words.append(f"{metric.shown_difference(gain, error)} against {other.name}")
    sentence = ", ".join(words)
    if any(sign * (other.value - kept.value) > 0 for other in judged):
        sentence += "; it is within one standard error of the best and has the least score of those"
    if kept is plain:
        return Verdict(False, f"{sentence}; tuning does not pay here")
    gain, error = sign * (kept.value - plain.value), kept.error_of_gain(plain)
    if gain > CLEAR * error:
        return Verdict(True, sentence)
    return Verdict(None, f"{sentence}; a difference within two standard errors (±) is not clear")
