"""`certify` returns a bound on the risk with its assumptions, or raises an error that lists the broken conditions."""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pactune.bounds.pac_bayes import hold_out, path_bound
from pactune.bounds.rounding import round_down, round_up
from pactune.checks import PROBABILITY, check_count, check_number, check_type
from pactune.errors import CertificateError
from pactune.problem.provenance import Provenance

__all__ = ["Certificate", "Claim", "Evidence", "certify"]

BELOW_ONE = math.nextafter(1.0, 0.0)  # a confidence of 1 − δ is never 1, however small δ is


@dataclass(frozen=True)
class Certificate:
    """With probability at least `confidence` over the sample and the draws, the risk is at most `value`.

    In the text, the value is rounded up and the confidence down, so that the text is a true statement.

    Attributes:
        value: the bound, in the units of the loss.
        confidence: 1 − δ, where δ is shared over the whole declared grid.
        empirical: the mean loss on the bound sample, in the units of the loss.
        kl: the mean log-ratio of posterior to prior along the kept paths, in nats; 0 for a hold-out.
        n: the number of rows of the bound sample.
        mode: "hold-out", "train side" or "validation side".
        assumptions: the assumptions that could not be checked.
        provenance: which samples touched the model, λ and the prior; this was checked.
        loss: the name of the loss.
        largest: the largest value of the loss.
        models: M, the number of models. The value bounds the mean of their risks, that is, the risk of one of them
            chosen at random.
        grid: the number of certificates that share δ.
    """

    value: float
    confidence: float
    empirical: float
    kl: float
    n: int
    mode: str
    assumptions: tuple[str, ...]
    provenance: Provenance = field(repr=False)
    loss: str = "error rate"
    largest: float = 1.0
    models: int = 1
    grid: int = 1

    @property
    def vacuous(self) -> bool:
        """True if the value is not below the largest value of the loss."""
        return self.value >= self.largest

    def describe(self) -> dict[str, Any]:
        """Return all attributes as plain data."""
        numbers = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "provenance"}
        return {**numbers, "assumptions": list(self.assumptions), "provenance": self.provenance.describe()}

    @property
    def _probability(self) -> str:
        """The confidence as text. One unit in the last place is added, since 1 − δ may have been rounded down."""
        return round_down(min(self.confidence + math.ulp(self.confidence), 1 - 1e-12), 12)

    def __str__(self) -> str:
        who = "the model" if self.models == 1 else f"{self.models} models, one of them chosen at random"
        lines = [
            f"{self.loss} of {who}: at most {round_up(self.value)} with probability {self._probability}"
            + (" (vacuous)" if self.vacuous else ""),
            f"mode {self.mode}; {round_up(self.empirical)} on {self.n} rows, {round_up(self.kl)} nats, "
            f"δ shared by {self.grid}",
            "which holds if",
            *(textwrap.fill(words, 110, initial_indent="- ", subsequent_indent="  ") for words in self.assumptions),
        ]
        return "\n".join(lines)


class Evidence(NamedTuple):
    """The numbers of a claim that enter the bound.

    Attributes:
        empirical: mean loss on the bound sample, scaled to [0, 1].
        log_ratio: mean log dQ/dP of the kept paths; None for a hold-out.
        n: number of rows of the bound sample.
        models: M.
    """

    empirical: float
    log_ratio: float | None
    n: int
    models: int


class Claim(ABC):
    """A statement to certify. It holds settings; `measure` runs the models."""

    mode: str
    loss: Any
    provenance: Provenance

    @abstractmethod
    def broken(self) -> list[str]:
        """Return a sentence for every broken condition of the theorem; an empty list if all conditions hold."""

    @abstractmethod
    def measure(self) -> Evidence:
        """Return the numbers that enter the bound."""

    @abstractmethod
    def assumptions(self) -> list[str]:
        """Return the assumptions that cannot be checked."""


def certify(claim: Claim, *, delta: float = 0.05, grid: int = 1) -> Certificate:
    """Return a certificate, or raise an error with every broken condition.

    Args:
        claim: `bounds.HoldOut`, `bounds.TrainSide` or `bounds.ValidationSide`.
        delta: δ of the whole grid.
        grid: the number of claims that were declared before the result of any was known. The best of them may be
            reported.

    Raises:
        CertificateError: a condition of the theorem does not hold, so that there is no bound.

    Example:
        >>> import torch
        >>> from pactune import bounds
        >>> from pactune.problem.provenance import Provenance
        >>> x, y = torch.randn(400, 3), torch.randint(0, 2, (400,))
        >>> claim = bounds.HoldOut(torch.nn.Linear(3, 2), (x, y), provenance=Provenance().touch("model").touch("hyper"))
        >>> 0.4 < certify(claim, delta=0.05).value < 0.7
        True
    """
    check_type("claim", claim, Claim, "a claim such as bounds.HoldOut(...)")
    check_number("delta", delta, PROBABILITY)
    check_count("grid", grid, words="the number of declared claims, at least 1")
    broken = claim.broken()
    if broken:
        raise CertificateError(broken)
    return issue(claim, claim.measure(), delta=delta, grid=grid)


def _about(loss: Any) -> list[str]:
    """Return the assumption about a loss that the user wrote."""
    if type(loss).__module__.startswith("pactune.bounds"):
        return []
    return [f"the loss is between 0 and {loss.largest:g} on every row, on rows that are not in the sample too"]


def issue(claim: Claim, evidence: Evidence, *, delta: float, grid: int) -> Certificate:
    """Return the certificate of a claim whose conditions were checked."""
    share, largest = delta / grid, claim.loss.largest
    if evidence.log_ratio is None:
        value = hold_out(evidence.empirical, evidence.n, share)
    else:
        value = path_bound(evidence.empirical, evidence.log_ratio, evidence.n, share)
    return Certificate(
        value=min(largest, largest * value + math.ulp(largest)) if largest != 1 else value,
        confidence=min(1 - delta, BELOW_ONE),
        empirical=largest * evidence.empirical,
        kl=evidence.log_ratio or 0.0,
        n=evidence.n,
        mode=claim.mode,
        assumptions=(*claim.assumptions(), *_about(claim.loss), *claim.provenance.stated),
        provenance=claim.provenance,
        loss=claim.loss.name,
        largest=largest,
        models=evidence.models,
        grid=grid,
    )
