"""Windowed reverse mode (Metz et al.): full differentiation inside windows of w steps."""

from __future__ import annotations

from dataclasses import dataclass

from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.base import Estimator, Running, Tape
from pactune.hypergradient.trajectory import Adjoint, InnerState, Observation, Record, Trajectory, ValueAndGradient
from pactune.trees import Params, add, zeros_like

__all__ = ["Windowed"]


@dataclass(frozen=True)
class Windowed(Estimator):
    """Cut the trajectory into windows of w steps and differentiate fully inside each.

    The first iterate of a window is held fixed. w = inner_steps is the exact gradient in time O(mT); memory O(mw).
    The risk at θ_T is differentiated through the last window.

    Args:
        w: steps per window, at least 1.
    """

    w: int

    stackable = True

    def __post_init__(self) -> None:
        if isinstance(self.w, bool) or not isinstance(self.w, int) or self.w < 1:
            raise SettingError(f"`w` must be a whole number ≥ 1, got {self.w!r}")

    def unseen(self, inner_steps: int) -> int:
        """Return the start of the last window."""
        return self.anchor(inner_steps, inner_steps)

    def reach(self, inner_steps: int) -> int:
        """Return the length of a window."""
        return min(self.w, inner_steps)

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return the start of the window; θ_T belongs to the last one."""
        return self.w * ((t - 1 if t == inner_steps else t) // self.w)

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise where w is larger than T, or the dynamics cannot be differentiated."""
        if self.w > inner_steps:
            raise SettingError(f"`{role}`: w must be between 1 and inner_steps={inner_steps}, got {self.w}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, tape: Tape) -> Running:
        """Return the estimator at work."""
        return _Running(self.w, trajectory, tape)


class _Running(Running):
    by_params = True

    def __init__(self, w: int, trajectory: Trajectory, tape: Tape) -> None:
        self._w, self._trajectory, self._tape = w, trajectory, tape
        self._sum = zeros_like(tape.hyper)
        self._window: list[Record] = []
        self._sources: list[Params] = []
        self._first = True

    def observe(self, record: Record, seen: Observation) -> None:
        assert seen.by_hyper is not None
        assert seen.by_params is not None
        self._close_full_window()
        self._sum = add(self._sum, seen.by_hyper)
        self._sources.append(seen.by_params)

    def skipped(self, record: Record) -> None:
        self._close_full_window()
        self._sources.append(zeros_like(record.state.params))

    def jumped(self, direct: Params) -> None:
        self._first = False

    def moved(self, record: Record) -> None:
        if not self._sources:
            self._close_full_window()
        self._window.append(record)

    def path(self) -> Params:
        if not self._sources:
            return self._sum
        *earlier, last = self._sources
        return add(self._sum, self._sweep(Adjoint(last, {}), self._window[: len(earlier)], earlier))

    def risk(self, final: ValueAndGradient, state: InnerState) -> Params:
        return add(final.by_hyper, self._sweep(Adjoint(final.by_params, {}), self._window, []))

    def _close_full_window(self) -> None:
        if len(self._window) == self._w:
            self._sum = self.path()
            self._window, self._sources, self._first = [], [], False

    def _sweep(self, adjoint: Adjoint, records: list[Record], sources: list[Params]) -> Params:
        """Go back over `records`; at each iterate its own summand's derivative joins the adjoint."""
        total = zeros_like(self._tape.hyper)
        to_start = self._first and self._tape.drawn is not None and self._trajectory.problem.has_initial
        for i in reversed(range(len(records))):
            by_hyper, before = self._trajectory.pull_back(records[i], adjoint, to_state=i > 0 or to_start)
            total = add(total, by_hyper)
            if before is not None:
                joined = add(before.params, sources[i]) if sources else before.params
                adjoint = Adjoint(joined, before.slots)
        if to_start and self._tape.drawn is not None:
            start = self._trajectory.pull_back_initial(self._tape.drawn, self._tape.hyper, adjoint.params)
            total = add(total, start)
        return total
