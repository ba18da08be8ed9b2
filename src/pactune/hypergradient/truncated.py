"""K-truncated reverse mode (Shaban et al.), exactly per summand."""

from __future__ import annotations

from dataclasses import dataclass, field

from pactune.checks import check_count
from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.base import ChainContext, ChainEstimator, Estimator, pull_back_steps
from pactune.hypergradient.records import Adjoint, InnerState, Observation, StepRecord, ValueAndGradient
from pactune.hypergradient.stored_steps import StoredSteps, check_segment, last_segment, root_segment
from pactune.hypergradient.trajectory import Trajectory
from pactune.trees import Params, add, add_, zeros_like

__all__ = ["Truncated"]


@dataclass(frozen=True)
class Truncated(Estimator):
    """Differentiate through the last k inner steps and hold θ_{t−k} fixed.

    k = 0 keeps only the direct dependence on λ; k = 1 is T1–T2 (Luketina et al.); k = inner_steps is exact. For the
    regularizer every summand is truncated separately, at a cost of k steps each: time O(mkT), memory O(mk). For the
    risk at θ_T a state is kept at every `segment`-th step, and the steps between are run again: memory O(m√k).

    Args:
        k: the number of steps.
        segment: the number of steps between two states that are kept; None for k up to eight steps,
            and for ⌈√k⌉ if there are more; a small problem then keeps all steps in one graph. The regularizer keeps
            every state.
    """

    k: int
    segment: int | None = field(default=None, repr=False)

    online = True
    stackable = True

    def __post_init__(self) -> None:
        check_count("k", self.k, 0)
        check_segment(self.segment)

    @property
    def direct(self) -> bool:  # type: ignore[override]
        """True if k = 0."""
        return self.k == 0

    def skippable_steps(self, inner_steps: int) -> int:
        """Return T − k: the risk at θ_T needs only the last k steps."""
        return inner_steps - self.k

    def reach(self, inner_steps: int) -> int:
        """Return k."""
        return self.k

    def unrolled_steps(self, inner_steps: int) -> int:
        """Return k, unless `segment` is given."""
        return self.k if self.segment is None else 0

    def anchor(self, t: int, inner_steps: int) -> int:
        """Return t − k, or the start of the round."""
        return max(0, t - self.k)

    def check(self, *, role: str, inner_steps: int, dynamics: Dynamics, count: int) -> None:
        """Raise if k is larger than T, or if the dynamics cannot be differentiated."""
        if self.k > inner_steps:
            raise SettingError(f"`{role}`: k must be between 0 and inner_steps={inner_steps}, got {self.k}")
        super().check(role=role, inner_steps=inner_steps, dynamics=dynamics, count=count)

    def start(self, trajectory: Trajectory, context: ChainContext) -> ChainEstimator:
        """Return the estimator for one chain of one round."""
        return _TruncatedChainEstimator(self, trajectory, context)


class _TruncatedChainEstimator(ChainEstimator):
    def __init__(self, settings: Truncated, trajectory: Trajectory, context: ChainContext) -> None:
        self._k, self._trajectory, self._context = settings.k, trajectory, context
        self._sum = zeros_like(context.hyper)
        self._segment = root_segment(settings.segment, settings.k)
        self._steps = StoredSteps(trajectory, self._segment, settings.k)
        self.by_params = settings.k > 0

    def observe(self, record: StepRecord, observation: Observation) -> Params:
        assert observation.by_hyper is not None
        if not self._steps:  # every summand goes back k steps, which is cheapest if every state is kept
            self._steps = StoredSteps(self._trajectory, 1, self._k)
        found = observation.by_hyper
        if self._k:
            assert observation.by_params is not None
            found = add(found, self._pull_back(observation.by_params))
        add_(self._sum, found)
        return found

    def skip_steps(self, direct_sum: Params) -> None:
        if direct_sum:
            self._sum = direct_sum

    def add_step(self, record: StepRecord) -> None:
        if self._k:
            self._steps.append(record)

    @property
    def keeps_graph(self) -> bool:
        total = self._context.inner_steps
        return self._context.length >= max(total - self._k, last_segment(0, self._segment, total))

    def path_gradient(self) -> Params:
        return self._sum

    def risk_gradient(self, final: ValueAndGradient, state: InnerState) -> Params:
        return add(final.by_hyper, self._pull_back(final.by_params)) if self._k else final.by_hyper

    def _pull_back(self, by_params: Params) -> Params:
        """Pull a derivative at the current iterate back through the last k steps."""
        kept = len(self._steps)
        span = range(max(0, kept - self._k), kept)
        to_start = self._k >= self._context.length
        return pull_back_steps(self._context, self._steps, span, Adjoint(by_params, {}), to_start=to_start)
