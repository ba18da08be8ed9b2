"""Windowed reverse mode (Metz et al.): full differentiation inside windows of w steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from pactune.checks import check_count
from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator, pull_back_steps
from pactune.hypergradient.records import Adjoint, InnerState, Observation, StepRecord, ValueAndGradient
from pactune.hypergradient.stored_steps import StoredSteps, check_segment, last_segment, root_segment
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, zeros_like

__all__ = ["Windowed"]


@dataclass(frozen=True)
class Windowed(Estimator):
    """Cut the trajectory into windows of w steps and differentiate fully inside each.

    The first iterate of a window is held fixed. w = inner_steps is the exact gradient in time O(mT). The risk at θ_T is
    differentiated through the last window. Inside a window a state is kept at every `segment`-th step, and the steps
    between are run again: memory O(m√w) for the risk. The regularizer also keeps the summands' derivatives: O(mw).

    Args:
        w: the number of steps per window, at least 1.
        segment: the number of steps between two states that are kept; None for w up to eight steps,
            and for ⌈√w⌉ if there are more; a small problem then keeps all steps in one graph.
    """

    w: int
    segment: int | None = field(default=None, repr=False)

    stackable = True

    def __post_init__(self) -> None:
        check_count("w", self.w)
        check_segment(self.segment)

    def skippable_steps(self, inner_steps: int) -> int:
        """Return the first step of the last window."""
        return self.anchor(inner_steps, inner_steps)

    def reach(self, inner_steps: int) -> int:
        """Return the length of a window."""
        return min(self.w, inner_steps)

    def unrolled_steps(self, inner_steps: int) -> int:
        """Return the length of the last window, unless `segment` is given."""
        return inner_steps - self.skippable_steps(inner_steps) if self.segment is None else 0

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return the first step of the window that holds θ_t; θ_T belongs to the last window."""
        return self.w * ((t - 1 if t == inner_steps else t) // self.w)

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise if w is larger than T, or if the dynamics cannot be differentiated."""
        if self.w > inner_steps:
            raise SettingError(f"`{role}`: w must be between 1 and inner_steps={inner_steps}, got {self.w}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _WindowedChainEstimator(self, trajectory, context)


class _WindowedChainEstimator(ChainEstimator):
    by_params = True

    def __init__(self, settings: Windowed, trajectory: Trajectory, context: ChainContext) -> None:
        self._w, self._context = settings.w, context
        self._sum = zeros_like(context.hyper)
        self._segment = root_segment(settings.segment, settings.w)
        self._window = StoredSteps(trajectory, self._segment)
        self._sources: list[Params] = []
        self._first = True

    def observe(self, record: StepRecord, observation: Observation) -> None:
        assert observation.by_hyper is not None
        assert observation.by_params is not None
        self._close_full_window()
        self._sum = add(self._sum, observation.by_hyper)
        self._sources.append(observation.by_params)

    def skip_summand(self, record: StepRecord) -> None:
        self._close_full_window()
        self._sources.append(zeros_like(record.state.params))

    def skip_steps(self, direct_sum: Params) -> None:
        self._first = False

    def add_step(self, record: StepRecord) -> None:
        if not self._sources:
            self._close_full_window()
        self._window.append(record)

    @property
    def keeps_graph(self) -> bool:
        total = self._context.inner_steps
        window = self._w * ((total - 1) // self._w)
        return self._context.length >= last_segment(window, self._segment, total)

    def path_gradient(self) -> Params:
        if not self._sources:
            return self._sum
        *earlier, last = self._sources
        return add(self._sum, self._pull_back(last, len(earlier), earlier))

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        return add(final.by_hyper, self._pull_back(final.by_params, len(self._window), []))

    def _close_full_window(self) -> None:
        if len(self._window) == self._w:
            self._sum = self.path_gradient()
            self._window.clear()
            self._sources, self._first = [], False

    def _pull_back(self, by_params: Params, count: int, sources: list[Params]) -> Params:
        """Pull a derivative at step `count` of the window back to its start, and add the summands' derivatives."""
        adjoint = Adjoint(by_params, {})
        span, first = range(count), self._first
        return pull_back_steps(self._context, self._window, span, adjoint, to_start=first, sources=sources)
