"""The attempts at a false certificate, grouped by the mistake that they make, with a correct use of most kinds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from pactune.bounds import BoundedLoss, Claim, ClippedCrossEntropy, HoldOut, TrainSide, ValidationSide, ZeroOne
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.dynamics import SGD
from pactune.hypergradient import Windowed
from pactune.objectives import ValidationRisk
from pactune.paper.certificates.attempts import Attempt, Sample, draw_rows, fit, linear, make_problem, untouched
from pactune.problem import Problem
from pactune.problem.hyper import WeightDecay
from pactune.problem.provenance import DataMark
from pactune.tuning.tuner import Tuner

__all__ = ["ATTEMPTS"]

STEPS = 20  # number of inner steps, of outer steps, and of steps of the chains
CHAIN = CoupledChains(0.3, 1e4, STEPS)
ZEROS = 0.95  # share of the label 0


# A model with one logit, and scores that are not finite


class _Always(nn.Module):
    """A model with the same score for every row."""

    def __init__(self, value: float, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(value, device="cpu"))
        self.columns = shape

    def forward(self, x: Tensor) -> Tensor:
        return self.bias.expand(len(x), *self.columns)


def _always(value: float, shape: tuple[int, ...], loss: BoundedLoss | None = None) -> Callable[[int], Claim]:
    def claim(seed: int) -> Claim:
        x, _ = draw_rows(seed, "fresh", 400)
        y = (torch.rand(400, device="cpu") > ZEROS).long()
        return HoldOut(_Always(value, shape), (x, y), untouched(), loss or ZeroOne())

    return claim


# Training rows presented as fresh rows


def _again(change: Callable[[Tensor, Tensor], Sample]) -> Callable[[int], Claim]:
    def claim(seed: int) -> Claim:
        train, valid = draw_rows(seed, "train"), draw_rows(seed, "valid")
        result = fit(make_problem(linear(), train, valid))
        x, y = change(*train)
        return HoldOut(result.model.to(x.dtype), (x, y), result.provenance)

    return claim


class _Shaken(Dataset[Any]):
    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def __len__(self) -> int:
        return len(self._sample[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self._sample
        return x[index] + 0.05 * torch.randn(x.shape[1], device="cpu"), y[index]


def _augmented(*, identified: bool, fresh: bool) -> Callable[[int], Claim]:
    def claim(seed: int) -> Claim:
        train, valid, new = draw_rows(seed, "train"), draw_rows(seed, "valid"), draw_rows(seed, "fresh")
        data: Any = [_Shaken(train), valid, new if fresh else train]
        if identified:
            numbers = [range(60), range(60, 120), range(120, 180) if fresh else range(60)]
            data = [DataMark("sample", part, rows=ids) for part, ids in zip(data, numbers, strict=True)]
        result = fit(make_problem(linear(), data[0], data[1]))
        return HoldOut(result.model, data[2], result.provenance)

    return claim


def _repeated(noise: float) -> Callable[[int], Claim]:
    def claim(seed: int) -> Claim:
        x, y = draw_rows(seed, "fresh", 12)
        x = x.repeat(100, 1) + noise * torch.randn(1200, x.shape[1], device="cpu")
        return HoldOut(linear(), (x, y.repeat(100)), untouched())

    return claim


def _fresh(seed: int) -> Claim:
    result = fit(make_problem(linear(), draw_rows(seed, "train"), draw_rows(seed, "valid")))
    return HoldOut(result.model, draw_rows(seed, "fresh", 400), result.provenance)


# Parameters and hyperparameters that earlier fits have tuned on the data


def _second_fit(way: Callable[[nn.Module], nn.Module]) -> Callable[[int], Claim]:
    def claim(seed: int) -> Claim:
        first, model = draw_rows(seed, "train"), linear()
        fit(make_problem(model, first, draw_rows(seed, "valid")))
        result = fit(make_problem(way(model), draw_rows(seed, "other"), draw_rows(seed, "more")), lr=0.005)
        return HoldOut(result.model, first, result.provenance)

    return claim


def _loaded(model: nn.Module) -> nn.Module:
    other = linear()
    other.load_state_dict(model.state_dict())
    return other


def _tuned_default(way: str) -> Callable[[int], Claim]:
    """Tune every decay hard on S_V, and present the tuned values as the default λ0."""

    def claim(seed: int) -> Claim:
        model = linear()
        problem = make_problem(
            model, draw_rows(seed, "train"), draw_rows(seed, "valid"), WeightDecay(model, per="element")
        )
        tuner = _hard_tuner(problem)
        provenance = tuner.fit(STEPS, progress=False, plain_steps=0).provenance
        if way == "second tuner":
            tuner = _hard_tuner(problem)
            provenance = tuner.fit(1, progress=False, plain_steps=0).provenance
        default = tuner.start_hyper
        if way == "values":
            default = {name: value.clone() for name, value in problem.hyperparameters().items()}
            provenance = untouched("default hyper", "initial")
        return ValidationSide(problem, CHAIN, provenance, models=2, initial=_zeros(model), default_hyper=default)

    return claim


def _hard_tuner(problem: Problem) -> Tuner:
    """Return a tuner that overfits the decays to S_V."""
    return Tuner(
        problem,
        inner=SGD(0.3),
        inner_steps=STEPS,
        outer=torch.optim.Adam(problem.hyper.parameters(), lr=0.2),
        objective=ValidationRisk(),
        hypergradient=Windowed(STEPS),
        restart=True,
        initial=_zeros(problem.model),
        engine="eager",
    )


def _zeros(model: nn.Module) -> Callable[[torch.Generator], dict[str, Tensor]]:
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    return lambda _generator: zeros


# Parts of the model that were trained before


class _Memory(nn.Module):
    """A network with a layer that was trained on a sample beforehand; `kind` says how it is hidden."""

    def __init__(self, sample: Sample, kind: str) -> None:
        super().__init__()
        expert, head = linear(), nn.Linear(2, 2)
        optimizer = torch.optim.SGD(expert.parameters(), lr=0.5)
        for _ in range(100):
            optimizer.zero_grad()
            functional.cross_entropy(expert(sample[0]), sample[1]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self.head, self.expert = head, expert.requires_grad_(False)
        if kind == "attribute":
            del self.expert
            self.experts = [expert]
        if kind == "reset":
            self.expert.requires_grad_(True)
            start = copy.deepcopy(expert.state_dict())
            self.expert.reset_parameters = lambda: self.expert.load_state_dict(start)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        expert = self.expert if hasattr(self, "expert") else self.experts[0]
        scores: Tensor = expert(x)
        mixed: Tensor = 3 * scores + 0.1 * self.head(scores)
        return mixed


def _pretrained(kind: str, *, on: str = "train", stated: bool = False) -> Callable[[int], Claim]:
    def claim(seed: int) -> Claim:
        train, valid = draw_rows(seed, "train", 200), draw_rows(seed, "valid", 200)
        problem = make_problem(_Memory(train if on == "train" else valid, kind), train, valid)
        provenance = untouched("prior hyper")
        if stated:
            provenance = provenance.touch("features", problem.sample_ids[0 if on == "train" else 1])
        return TrainSide(problem, CoupledChains(0.05, 200.0, 3), provenance, models=2)

    return claim


# A loss whose values leave the stated range


@dataclass(frozen=True)
class _Scaled(BoundedLoss):
    """An unbounded cross-entropy that claims to be at most `largest`."""

    largest: float = 1.0
    shift: float = 0.0
    name = "a loss of one's own"

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(10 * scores, target, reduction="none") + self.shift


@dataclass(frozen=True)
class _Rare(BoundedLoss):
    """A loss of 20 on about 4 % of the rows that claims to be at most 1; its mean is below 1."""

    largest: float = 1.0
    name = "a rare loss"

    def rows(self, scores: Tensor, target: Tensor) -> Tensor:
        return 20 * (scores[:, 0] > 1).to(scores.dtype)


def _unbounded(loss: BoundedLoss) -> Callable[[int], Claim]:
    return lambda seed: HoldOut(linear(), draw_rows(seed, "fresh", 400), untouched(), loss)


SAME = {
    "int32 labels": lambda x, y: (x, y.int()),
    "float64 inputs": lambda x, y: (x.double(), y),
    "scaled by 1 + 2e-7": lambda x, y: (x * (1 + 2e-7), y),
    "rounded to bfloat16": lambda x, y: (x.bfloat16().float(), y),
    "rounded to float16": lambda x, y: (x.half().float(), y),
    "shifted by 1e-7": lambda x, y: (x + 1e-7, y),
    "noise of 1e-5": lambda x, y: (x + 1e-5 * torch.randn(x.shape, device="cpu"), y),
    "in another order": lambda x, y: (x.flip(0), y.flip(0)),
}

ATTEMPTS: tuple[Attempt, ...] = (
    Attempt("10 one logit", "shape (n, 1), always 1", _always(1.0, (1,)), truth=ZEROS),
    Attempt("10 one logit", "shape (n,), always 1", _always(1.0, ()), truth=ZEROS),
    Attempt("10 one logit", "cross-entropy of one column", _always(1.0, (1,), ClippedCrossEntropy()), truth=1.0),
    Attempt("10 one logit", "threshold 0 is said", _always(1.0, (1,), ZeroOne(0.0)), right=True, truth=ZEROS),
    Attempt("11 no numbers", "NaN", _always(float("nan"), (2,)), truth=1.0),
    Attempt("11 no numbers", "infinite", _always(float("inf"), (2,)), truth=1.0),
    *(Attempt("12 training rows", name, _again(change)) for name, change in SAME.items()),
    Attempt("12 training rows", "augmented", _augmented(identified=False, fresh=False)),
    Attempt("12 training rows", "augmented, identified", _augmented(identified=True, fresh=False)),
    Attempt("12 training rows", "augmented, identified, fresh", _augmented(identified=True, fresh=True), right=True),
    Attempt("12 training rows", "fresh rows", _fresh, right=True),
    Attempt("13 repeated rows", "12 rows 100 times", _repeated(0.0)),
    Attempt("13 repeated rows", "with noise of 1e-8", _repeated(1e-8)),
    Attempt("14 earlier fits", "the same model", _second_fit(lambda model: model)),
    Attempt("14 earlier fits", "deepcopy", _second_fit(copy.deepcopy)),
    Attempt("14 earlier fits", "load_state_dict", _second_fit(_loaded)),
    Attempt("14 earlier fits", "λ0 of a second tuner", _tuned_default("second tuner")),
    Attempt("14 earlier fits", "the tuned λ as λ0", _tuned_default("values")),
    Attempt("14 earlier fits", "λ0 of the first tuner", _tuned_default("start"), right=True),
    Attempt("15 given parts", "frozen layer", _pretrained("frozen")),
    Attempt("15 given parts", "plain attribute", _pretrained("attribute")),
    Attempt("15 given parts", "reset_parameters", _pretrained("reset")),
    Attempt("15 given parts", "frozen layer, stated", _pretrained("frozen", stated=True)),
    Attempt("15 given parts", "of S_V, stated", _pretrained("frozen", on="valid", stated=True), right=True),
    Attempt("16 loss out of range", "rarely too large", _unbounded(_Rare())),
    Attempt("16 loss out of range", "often too large", _unbounded(_Scaled())),
    Attempt("16 loss out of range", "negative", _unbounded(_Scaled(20.0, -3.0))),
    Attempt("16 loss out of range", "NaN", _unbounded(_Scaled(shift=float("nan"))), truth=1.0),
    Attempt("16 loss out of range", "clipped", _unbounded(ClippedCrossEntropy(2.0)), right=True),
)
