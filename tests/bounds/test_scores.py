"""Scores, labels and losses that no certificate may be about: refused, in every way in which a model is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.errors import CertificateError
from pactune.problem.provenance import Provenance

FREE = Provenance()
for thing in ("model", "hyper", "prior hyper", "initial", "features"):
    FREE = FREE.touch(thing)
ROWS = 200


def sample(zeros: float = 0.95) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(ROWS, generator=generator) > zeros).long()
    return torch.randn(ROWS, 3, generator=generator), y


class Fixed(nn.Module):
    """A model whose scores are given."""

    def __init__(self, scores: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.scores = scores

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(x)


def judge(scores: Callable[[Tensor], Tensor], loss: bounds.BoundedLoss | None = None) -> bounds.Certificate:
    return pt.certify(bounds.HoldOut(Fixed(scores), sample(), FREE, loss or bounds.ZeroOne()))


@pytest.mark.parametrize("loss", [bounds.ZeroOne(), bounds.ClippedCrossEntropy()], ids=str)
@pytest.mark.parametrize(
    "shape", [(1,), (), (2, 1), (1, 1), (2, 2)], ids=lambda shape: f"(n{''.join(f', {k}' for k in shape)})"
)
def test_scores_without_one_column_per_class_are_refused(shape: tuple[int, ...], loss: bounds.BoundedLoss) -> None:
    """A model of one logit that always says 1 was certified by `argmax`, which always says 0."""
    with pytest.raises(CertificateError, match="known prediction"):
        judge(lambda x: torch.ones(len(x), *shape), loss)


@pytest.mark.parametrize("shape", [(1,), ()])
def test_one_score_per_row_is_judged_by_a_threshold_that_is_said(shape: tuple[int, ...]) -> None:
    always_one = judge(lambda x: torch.ones(len(x), *shape), bounds.ZeroOne(threshold=0.0))
    truth = float((sample()[1] == 0).double().mean())
    assert truth > 0.9
    assert always_one.value >= always_one.empirical == pytest.approx(truth)
    assert "above 0" in always_one.loss
    probability = judge(lambda x: torch.full((len(x), *shape), 0.4), bounds.ZeroOne(threshold=0.5))
    assert probability.empirical == pytest.approx(1 - truth)
    with pytest.raises(CertificateError, match="one score per row"):
        judge(lambda x: torch.ones(len(x), 2), bounds.ZeroOne(threshold=0.0))
    with pytest.raises(pt.SettingError, match="threshold"):
        bounds.ZeroOne(threshold=float("nan"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("loss", [bounds.ZeroOne(), bounds.ClippedCrossEntropy()], ids=str)
@pytest.mark.parametrize("share", ["all", "one row"])
def test_scores_that_are_no_numbers_are_refused(value: float, loss: bounds.BoundedLoss, share: str) -> None:
    def scores(x: Tensor) -> Tensor:
        found = torch.zeros(len(x), 2)
        found[-1 if share == "one row" else slice(None), 1] = value
        return found

    with pytest.raises(CertificateError, match="finite scores"):
        judge(scores, loss)


def test_integer_scores_are_refused() -> None:
    with pytest.raises(CertificateError, match="floating-point"):
        judge(lambda x: torch.ones(len(x), 2, dtype=torch.long))


def labelled(target: Tensor, loss: bounds.BoundedLoss | None = None) -> bounds.Certificate:
    x, _ = sample()
    return pt.certify(bounds.HoldOut(nn.Linear(3, 2), (x, target), FREE, loss or bounds.ZeroOne()))


@pytest.mark.parametrize("loss", [bounds.ZeroOne(), bounds.ClippedCrossEntropy()], ids=str)
@pytest.mark.parametrize("label", [2, -1, -100, 0.5, float("nan")])
def test_labels_that_no_score_stands_for_are_refused(label: float, loss: bounds.BoundedLoss) -> None:
    y = sample()[1].double() if isinstance(label, float) else sample()[1]
    y[3] = label
    with pytest.raises(CertificateError, match="labels that fit"):
        labelled(y, loss)


@pytest.mark.parametrize("loss", [bounds.ZeroOne(), bounds.ClippedCrossEntropy()], ids=str)
def test_soft_labels_are_refused_and_columns_and_types_of_labels_do_not_matter(loss: bounds.BoundedLoss) -> None:
    y = sample()[1]
    with pytest.raises(CertificateError, match="one label per row"):
        labelled(F.one_hot(y, 2).float(), loss)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    kinds = [y, y[:, None], y.int(), y.double(), y.bool()]
    claims = [bounds.HoldOut(model, (sample()[0], target), FREE, loss) for target in kinds]
    assert len({pt.certify(claim).value for claim in claims}) == 1


@dataclass(frozen=True)
class Given(bounds.BoundedLoss):
    """A loss of somebody's own."""

    value: float = 0.0
    largest: float = 1.0
    columns: tuple[int, ...] = ()
    name = "a loss of my own"

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        found = torch.zeros(len(scores), *self.columns)
        found[0] = self.value
        return found


@pytest.mark.parametrize(
    "loss",
    [
        Given(3.0),
        Given(-0.5),
        Given(float("nan")),
        Given(largest=0.0),
        Given(largest=float("inf")),
        Given(0.5, 1.0, (1,)),
    ],
    ids=["too large", "negative", "NaN", "largest 0", "largest inf", "two axes"],
)
@pytest.mark.parametrize("side", ["hold-out", "chains"])
def test_a_loss_outside_of_its_range_is_refused(loss: bounds.BoundedLoss, side: str) -> None:
    claim = (
        bounds.HoldOut(nn.Linear(3, 2), sample(), FREE, loss) if side == "hold-out" else chains(nn.Linear(3, 2), loss)
    )
    with pytest.raises(CertificateError, match="bounded loss"):
        pt.certify(claim)


def test_a_loss_at_its_largest_value_is_accepted_up_to_rounding() -> None:
    found = pt.certify(bounds.HoldOut(nn.Linear(3, 2), sample(), FREE, Given(0.1, 0.1)))
    assert 0 < found.empirical <= found.value <= 0.1


# The same for chains


def chains(model: nn.Module, loss: bounds.BoundedLoss) -> bounds.TrainSide:
    x, y = sample(0.5)
    problem = pt.Problem(
        model,
        pt.WeightDecay(model, per="global"),
        train=(x[:100], y[:100]),
        valid=(x[100:], y[100:]),
        train_loss=lambda m, b, h: m(b[0]).square().mean(),
        valid_loss=lambda m, b, h: m(b[0]).square().mean(),
    )
    return bounds.TrainSide(problem, CoupledChains(0.1, 10.0, 2), FREE, models=2, loss=loss)


def test_chains_of_one_logit_are_refused_without_a_threshold() -> None:
    with pytest.raises(CertificateError, match="known prediction"):
        pt.certify(chains(nn.Linear(3, 1), bounds.ZeroOne()))
    assert pt.certify(chains(nn.Linear(3, 1), bounds.ZeroOne(threshold=0.0))).empirical > 0.2


def test_a_prediction_that_needs_other_rows_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False))
    with pytest.raises(CertificateError, match="prediction of single rows"):
        pt.certify(bounds.HoldOut(model, sample(), FREE))
    with pytest.raises(CertificateError, match="prediction of single rows"):
        pt.certify(chains(model, bounds.ZeroOne()))
    assert pt.certify(bounds.HoldOut(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), sample(), FREE)).n == ROWS


def test_a_constant_column_does_not_hide_batch_statistics() -> None:
    """The score of a class that is masked out made the tolerance as large as itself."""

    def scores(x: Tensor) -> Tensor:
        return torch.cat([x[:, :2] - x[:, :2].mean(0), torch.full((len(x), 1), -1e9)], 1)

    with pytest.raises(CertificateError, match="prediction of single rows"):
        judge(scores)
    assert judge(lambda x: torch.cat([x[:, :2], torch.full((len(x), 1), -1e9)], 1)).value > 0


@pytest.mark.parametrize(
    "scores",
    [lambda x: torch.ones(1, len(x)), lambda x: x[0], lambda x: torch.ones(()), lambda x: x[:2] if len(x) > 2 else x],
)
def test_scores_without_one_row_per_input_are_refused(scores: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CertificateError, match="scores of every row"):
        judge(scores)


@dataclass(frozen=True)
class Own(bounds.BoundedLoss):
    """The error rate with a `largest` of any kind."""

    largest: float
    complex: bool = False

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        wrong = (scores.argmax(1) != target).double()
        return wrong + 0j if self.complex else wrong

    @property
    def name(self) -> str:
        return "own"


@pytest.mark.parametrize("largest", ["1", None, torch.tensor(1.0), float("nan"), float("inf"), 0, -1.0, True])
def test_a_largest_loss_that_is_no_positive_number_is_refused(largest: float) -> None:
    with pytest.raises(CertificateError, match="bounded loss: `largest` must be a positive finite number"):
        judge(lambda x: x[:, :2], Own(largest))


def test_a_complex_loss_is_refused() -> None:
    with pytest.raises(CertificateError, match="one real loss"):
        judge(lambda x: x[:, :2], Own(1.0, complex=True))
