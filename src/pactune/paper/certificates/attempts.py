"""Attempts to obtain a false certificate, and right uses beside them: each must be refused, or true.

Two classes, x ~ N(±μ, I) in many dimensions and few rows, so that a model knows its training rows by heart. The truth
is measured on rows that nothing else uses. The attempts themselves are in `attempt_cases`.
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

__all__ = ["Attempt", "AttemptOutcome", "Sample", "fit", "linear", "make_problem", "nothing", "rows", "run_attempt"]

Sample = tuple[Tensor, Tensor]
DIMENSIONS, ROWS, TRUTH_ROWS = 60, 60, 4000
SEPARATION = 0.4


@dataclass(frozen=True)
class Attempt:
    """One way to ask for a certificate.

    Attributes:
        item: which mistake it is about.
        name: in words.
        claim: makes the claim of one repetition from its seed.
        right: it is a right use, and must give a certificate.
        truth: the true mean loss; None measures the claim's own loss on fresh rows.
    """

    item: str
    name: str
    claim: Callable[[int], Claim]
    right: bool = False
    truth: float | None = None


class AttemptOutcome(NamedTuple):
    """What came of the repetitions of an attempt.

    Attributes:
        item: which mistake it is about.
        name: in words.
        right: whether it is a right use.
        repetitions: how many.
        refused: how many gave no number.
        false: in how many the truth is above the certificate.
        certificate: the mean certificate of those that gave one.
        truth: their mean true loss.
        words: the refusal of the first repetition.
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
    """Ask for the certificate of every repetition, and compare it with the truth."""
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
    fresh = rows(seed, "truth", TRUTH_ROWS)
    if isinstance(claim, HoldOut):
        with torch.no_grad():
            claim.model.eval()
            like = next(claim.model.parameters())
            return float(claim.loss.rows(claim.model(fresh[0].to(like)), fresh[1]).mean())
    source = as_source(fresh, role="truth", device=torch.device("cpu"))
    chains: Any = claim
    return float(chains.losses(chains.paths(), source).mean()) * float(claim.loss.largest)


# What the attempts are made of


def rows(seed: int, name: str, count: int = ROWS) -> Sample:
    """Draw a sample that no other seed or name has."""
    generator = torch.Generator().manual_seed(sum(1000**i * ord(c) for i, c in enumerate(name[:3])) + seed)
    y = torch.randint(0, 2, (count,), generator=generator, device="cpu")
    x = torch.randn(count, DIMENSIONS, generator=generator, device="cpu")
    x[:, 0] += SEPARATION * (2 * y - 1)
    return x, y


def linear() -> nn.Linear:
    """Return a classifier with more columns than there are rows."""
    return nn.Linear(DIMENSIONS, 2)


def make_problem(model: nn.Module, train: Any, valid: Any, hyper: nn.Module | None = None) -> Problem:
    """Return a problem with one decay for all parameters."""
    hyper = hyper or WeightDecay(model, per="global", init=0.01)
    return Problem(model, hyper, train=train, valid=valid, loss=functional.cross_entropy)


def fit(problem: Problem, lr: float = 0.5) -> Result:
    """Train until the training rows are known by heart; a little only where the step size is small."""
    outer = torch.optim.SGD(problem.hyper.parameters(), lr=0.05)
    tuner = Tuner(problem, inner=SGD(lr), inner_steps=40, outer=outer, objective=ValidationRisk(), engine="eager")
    return tuner.fit(3, progress=False, plain_steps=0)


def nothing(*things: str) -> Provenance:
    """Return the statement that nothing touched these things."""
    found = Provenance()
    for thing in things or ("model", "hyper"):
        found = found.touch(thing)
    return found
