"""Attempts to obtain a false certificate, beside correct uses of the same claims.

The library must refuse an attempt, or the certificate must be true. The data have two classes, x ~ N(±μ, I), many
dimensions and few rows, so that a model learns its training rows by heart. The true loss is measured on rows that
nothing else uses. The attempts themselves are in `attempt_cases`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pactune.bounds import Claim, HoldOut, certify
from pactune.dynamics import SGD
from pactune.errors import PactuneError
from pactune.objectives import ValidationRisk
from pactune.problem import Problem
from pactune.problem.data import as_source
from pactune.problem.hyper import WeightDecay
from pactune.problem.provenance import Provenance
from pactune.results.result import Result
from pactune.streams import forked_rng
from pactune.tuning.tuner import Tuner

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Sample",
    "draw_rows",
    "fit",
    "linear",
    "make_problem",
    "run_attempt",
    "untouched",
]

Sample = tuple[Tensor, Tensor]
DIMENSIONS, ROWS, TRUTH_ROWS = 60, 60, 4000
SEPARATION = 0.4


@dataclass(frozen=True)
class Attempt:
    """One way to ask for a certificate.

    Attributes:
        item: the mistake that it makes.
        name: a short description.
        claim: returns the claim of one repetition, given its seed.
        right: True for a correct use, which must give a certificate.
        truth: the true mean loss; None measures the loss of the claim on fresh rows.
    """

    item: str
    name: str
    claim: Callable[[int], Claim]
    right: bool = False
    truth: float | None = None


class AttemptOutcome(NamedTuple):
    """The outcome of an attempt over its repetitions.

    Attributes:
        item: the mistake that it makes.
        name: a short description.
        right: True for a correct use.
        repetitions: their number.
        refused: the number of repetitions that gave no certificate.
        false: the number of repetitions whose true loss is above the certificate.
        certificate: the mean of the certificates that were given.
        truth: the mean true loss of the same repetitions.
        words: the error message of the first refused repetition.
    """

    item: str
    name: str
    right: bool
    repetitions: int
    refused: int
    false: int
    certificate: float | None
    truth: float | None
    words: str


def run_attempt(attempt: Attempt, repetitions: int, delta: float = 0.05) -> AttemptOutcome:
    """Ask for a certificate in every repetition, and compare it with the true loss."""
    values: list[tuple[float, float]] = []
    words: list[str] = []
    for seed in range(repetitions):
        with forked_rng(torch.device("cpu")):
            torch.default_generator.manual_seed(seed)
            try:
                claim = attempt.claim(seed)
                value = certify(claim, delta=delta).value
            except PactuneError as refusal:
                words.append(str(refusal))
                continue
            values.append((value, _truth(claim, seed) if attempt.truth is None else attempt.truth))
    certificate, truth = (_mean([pair[part] for pair in values]) for part in (0, 1))
    return AttemptOutcome(
        item=attempt.item,
        name=attempt.name,
        right=attempt.right,
        repetitions=repetitions,
        refused=len(words),
        false=sum(true > value for value, true in values),
        certificate=certificate,
        truth=truth,
        words=words[0] if words else "",
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _truth(claim: Claim, seed: int) -> float:
    """Return the mean loss of the claim's model, or of its chains, on rows that nothing else uses."""
    fresh = draw_rows(seed, "truth", TRUTH_ROWS)
    if isinstance(claim, HoldOut):
        with torch.no_grad():
            claim.model.eval()
            like = next(claim.model.parameters())
            return float(claim.loss.rows(claim.model(fresh[0].to(like)), fresh[1]).mean())
    source = as_source(fresh, role="truth", device=torch.device("cpu"))
    chains: Any = claim
    return float(chains.losses(chains.paths(), source).mean()) * float(claim.loss.largest)


def draw_rows(seed: int, name: str, count: int = ROWS) -> Sample:
    """Draw a sample that is a function of the seed and of the first three letters of the name."""
    generator = torch.Generator().manual_seed(sum(1000**i * ord(c) for i, c in enumerate(name[:3])) + seed)
    y = torch.randint(0, 2, (count,), generator=generator, device="cpu")
    x = torch.randn(count, DIMENSIONS, generator=generator, device="cpu")
    x[:, 0] += SEPARATION * (2 * y - 1)
    return x, y


def linear() -> nn.Linear:
    """Return a linear classifier; it has as many inputs as there are training rows."""
    return nn.Linear(DIMENSIONS, 2)


def make_problem(model: nn.Module, train: Any, valid: Any, hyper: nn.Module | None = None) -> Problem:
    """Return a problem with one decay for all parameters."""
    hyper = hyper or WeightDecay(model, per="global", init=0.01)
    return Problem(model, hyper, train=train, valid=valid, loss=functional.cross_entropy)


def fit(problem: Problem, lr: float = 0.5) -> Result:
    """Train a classifier; at the default step size it learns the training rows by heart."""
    outer = torch.optim.SGD(problem.hyper.parameters(), lr=0.05)
    tuner = Tuner(problem, inner=SGD(lr), inner_steps=40, outer=outer, objective=ValidationRisk(), engine="eager")
    return tuner.fit(3, progress=False, plain_steps=0)


def untouched(*things: str) -> Provenance:
    """Return the statement that no data touched these things."""
    found = Provenance()
    for thing in things or ("model", "hyper"):
        found = found.touch(thing)
    return found
