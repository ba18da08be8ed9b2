"""K-truncated reverse mode (Shaban et al.), exactly per summand."""

from __future__ import annotations

from dataclasses import dataclass

from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.base import Estimator, Running, Tape, sweep
from pactune.hypergradient.trajectory import Adjoint, InnerState, Observation, Record, Trajectory, ValueAndGradient
from pactune.trees import Params, add, zeros_like

__all__ = ["Truncated"]


@dataclass(frozen=True)
class Truncated(Estimator):
    """Differentiate through the last k inner steps and hold θ_{t−k} fixed.

    k = 0 keeps the direct dependence on λ only; k = 1 is T1–T2 (Luketina et al.); k = inner_steps is exact. For the
    regularizer every summand is truncated on its own, at a cost of k steps each: time O(mkT), memory O(mk). Only the
    iterates are kept; each step is computed again on the way back.

    Args:
        k: the number of steps.
    """

    k: int

    online = True
    stackable = True

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 0:
            raise SettingError(f"`k` must be a whole number ≥ 0, got {self.k!r}")

    @property
    def direct(self) -> bool:  # type: ignore[override]
        """Whether k = 0."""
        return self.k == 0

    def unseen(self, inner_steps: int) -> int:
        """Return T − k: only the last k steps matter to the risk at θ_T."""
        return inner_steps - self.k

    def reach(self, inner_steps: int) -> int:
        """Return k."""
        return self.k

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return t − k, or the start of the round."""
        return max(0, t - self.k)

    def memory(self, inner_steps: int) -> int:
        """Return k: as many past iterates are kept."""
        return self.k

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise where k is larger than T, or the dynamics cannot be differentiated."""
        if self.k > inner_steps:
            raise SettingError(f"`{role}`: k must be between 0 and inner_steps={inner_steps}, got {self.k}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, tape: Tape) -> Running:
        """Return the estimator at work."""
        return _Running(self.k, trajectory, tape)


class _Running(Running):
    def __init__(self, k: int, trajectory: Trajectory, tape: Tape) -> None:
        self._k, self._trajectory, self._tape = k, trajectory, tape
        self._sum = zeros_like(tape.hyper)
        self.by_params = k > 0

    def observe(self, record: Record, seen: Observation) -> Params:
        assert seen.by_hyper is not None
        found = seen.by_hyper
        if self._k:
            assert seen.by_params is not None
            found = add(found, sweep(self._trajectory, self._tape, Adjoint(seen.by_params, {}), self._k))
        for name, value in self._sum.items():
            value.add_(found[name])
        return found

    def jumped(self, direct: Params) -> None:
        if direct:
            self._sum = direct

    def path(self) -> Params:
        return self._sum

    def risk(self, final: ValueAndGradient, state: InnerState) -> Params:
        if not self._k:
            return final.by_hyper
        return add(final.by_hyper, sweep(self._trajectory, self._tape, Adjoint(final.by_params, {}), self._k))
