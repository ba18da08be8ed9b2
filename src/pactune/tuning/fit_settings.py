"""The arguments of `Tuner.fit`, with their rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pactune.checks import NOT_NEGATIVE, Rule, check_choice, check_count, check_number, shown
from pactune.errors import SettingError
from pactune.results.verdict import Verdict
from pactune.tracking.recorder import Recorder

__all__ = ["Choice", "FitSettings", "Keep"]

Keep = Literal["last", "best-objective", "held-out"]
KEEP: tuple[Keep, ...] = ("last", "best-objective", "held-out")


class Choice(NamedTuple):
    """The outer step to keep, of the tuned run or of plain training, whatever its objective."""

    run: Literal["tuned", "plain"]
    step: int


@dataclass(frozen=True)
class FitSettings:
    """The arguments of `Tuner.fit`, and three fields that the choice of ζ and the recording set.

    Attributes:
        choice: the step to keep, if a rule has chosen it.
        verdict: the verdict of that rule; None compares the tuned run with plain training.
        recorder: writes the journal and the checkpoints.
    """

    outer_steps: int
    test: Any = None
    keep: Keep = "last"
    tolerance: float = 0.0
    plain_steps: int | None = None
    evaluate_every: int = 1
    on_divergence: str = "raise"
    choice: Choice | None = None
    verdict: Verdict | None = None
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        check_count("outer_steps", self.outer_steps)
        if not isinstance(self.keep, str) or self.keep not in KEEP:
            raise SettingError(f"`keep` must be one of {', '.join(map(repr, KEEP))}, got {shown(self.keep)}")
        check_number("tolerance", self.tolerance, Rule("≥ 0 and finite", NOT_NEGATIVE.holds))
        check_choice("on_divergence", self.on_divergence, ("raise", "return"))
        check_count("plain_steps", self.plain_steps, 0, words="≥ 0, a whole number,", none="for the default")
        check_count("evaluate_every", self.evaluate_every, 0, words="≥ 0, a whole number")

    def evaluates(self, step: int, *, last: bool) -> bool:
        """Return True if the models of an outer step are evaluated on the data sets; `last` is True for the last."""
        return self.evaluate_every > 0 and (last or step % self.evaluate_every == 0)
