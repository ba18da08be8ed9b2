"""The reference for `Implicit`: the risk at a stationary point of training, as a function of λ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pactune.gradient_check.anchored import RecordedChain
from pactune.hypergradient.base import ChainContext
from pactune.hypergradient.implicit import ConjugateGradient, Identity, Implicit, Neumann
from pactune.hypergradient.records import InnerState, StepRecord
from pactune.rounds.plan import RoundPlan
from pactune.streams import forked_rng
from pactune.trees import Params, axpy, dot, norm, scale, sub, zeros_like

__all__ = ["StationaryChain", "find_stationary", "train_gradient_norm_of"]

Operator = Callable[[Params], Params]
NEWTON_STEPS = 200
STATIONARY = 1e-9  # ‖∇R_T‖ relative to 1 + ‖θ‖; Newton's last step goes down to rounding


@dataclass(frozen=True)
class StationaryChain:
    """A chain whose training was continued to a stationary point θ* of the risk of its last mini-batch.

    Attributes:
        plan: the settings of the round; its risk estimator is `Implicit`.
        path: the chain.
        state: the state at θ*.
    """

    plan: RoundPlan
    path: RecordedChain
    state: InnerState

    def distance(self) -> float:
        """Return ‖θ_T − θ*‖/‖θ*‖."""
        there = self.state.params
        return float(norm(sub(self.path.states[-1].params, there)) / norm(there))

    def gradient(self, hyper: Params) -> Params:
        """Return the estimate of the risk's λ-gradient at θ*."""
        trajectory, last = self.plan.trajectory, self.path.step_data[-1]
        running = self.plan.risk_estimator.start(trajectory, ChainContext(hyper, None, self.plan.inner_steps))
        with forked_rng(trajectory.problem.device):
            running.add_step(StepRecord(self.state._replace(step=self.path.states[-2].step), last, hyper))
            final = trajectory.final_risk(self.state, hyper, self.path.risk_batches, key=self._key)
            return running.risk_gradient(final, self.state)

    def risk(self, hyper: Params) -> Tensor:
        """Return the risk at λ = `hyper`, at the parameters θ*(λ) that the solver's linear system implies."""
        state = self.state._replace(params=self._params_at(hyper))
        with forked_rng(self.plan.trajectory.problem.device):
            batches = self.path.risk_batches
            return self.plan.trajectory.final_risk(state, hyper, batches, key=self._key, derivatives=False).value

    def _params_at(self, hyper: Params) -> Params:
        """Return θ*(λ): k + 1 gradient steps from θ* for a series of k terms, else the nearest stationary point."""
        assert isinstance(self.plan.risk_estimator, Implicit)
        solver, params = self.plan.risk_estimator.solver, self.state.params
        if isinstance(solver, Identity | Neumann):
            eta = self.plan.trajectory.dynamics.learning_rate(self.path.states[-2].step)
            size = eta if solver.alpha is None else solver.alpha
            for _ in range(1 + (solver.steps if isinstance(solver, Neumann) else 0)):
                params = axpy(-size, _gradient(self.plan, self.path, params, hyper), params)
            return params
        damping = solver.damping if isinstance(solver, ConjugateGradient) else 0.0
        found = _newton(self.plan, self.path, params, hyper, damping)
        return found if found is not None else scale(float("nan"), params)

    @property
    def _key(self) -> int | None:
        keys = self.path.step_data[-1].keys
        return keys[1] if keys else None


def train_gradient_norm_of(plan: RoundPlan, path: RecordedChain) -> float:
    """Return ‖∇R_T(θ_T)‖ with the penalty."""
    return float(norm(_gradient(plan, path, path.states[-1].params, path.hyper)))


def find_stationary(plan: RoundPlan, path: RecordedChain, hyper: Params) -> StationaryChain | None:
    """Continue training from θ_T to a stationary point; return None if Newton's method finds none."""
    found = _newton(plan, path, path.states[-1].params, hyper, damping=0.0)
    return None if found is None else StationaryChain(plan, path, path.states[-1]._replace(params=found))


def _newton(plan: RoundPlan, path: RecordedChain, start: Params, hyper: Params, damping: float) -> Params | None:
    """Return a stationary point of R_T(θ) + ½ damping ‖θ − start‖² by Newton's method; None if it does not converge.

    The Hessian is shifted by a multiple of the identity if it is not positive definite or a step fails.
    """
    params, shift = start, 0.0

    def slope(at: Params) -> Params:
        return axpy(damping, sub(at, start), _gradient(plan, path, at, hyper))

    gradient = slope(params)
    for _ in range(NEWTON_STEPS):
        state = path.states[-1]._replace(params=params)
        with forked_rng(plan.trajectory.problem.device):
            hessian, _ = plan.trajectory.train_products(state, hyper, path.step_data[-1])
            step = _solve(lambda v: axpy(damping + shift, v, hessian(v)), gradient)  # noqa: B023
        moved = None if step is None else sub(params, step)
        after = None if moved is None else slope(moved)
        if moved is not None and after is not None and bool(norm(after) < norm(gradient)):
            params, gradient, shift = moved, after, shift / 10 if shift > 1e-8 else 0.0
        elif bool(norm(gradient) <= STATIONARY * (1 + norm(params))):
            return params
        else:
            shift = max(10 * shift, 1e-6)
    return None


def _solve(operator: Operator, b: Params) -> Params | None:
    """Solve a positive definite system by conjugate gradients; return None if it is not positive definite."""
    v, residual, direction, rho = zeros_like(b), b, b, dot(b, b)
    stop = 1e-28 * rho
    for _ in range(2 * sum(p.numel() for p in b.values()) + 10):
        if not bool(rho > stop):
            break
        image = operator(direction)
        curvature = dot(direction, image)
        if not bool(curvature > 0):
            return None
        alpha = rho / curvature
        v, residual = axpy(alpha, direction, v), axpy(-alpha, image, residual)
        rho, previous = dot(residual, residual), rho
        direction = axpy(rho / previous, direction, residual)
    return v


def _gradient(plan: RoundPlan, path: RecordedChain, params: Params, hyper: Params) -> Params:
    state = path.states[-1]._replace(params=params)
    with forked_rng(plan.trajectory.problem.device):
        return plan.trajectory.train_gradient(state, hyper, path.step_data[-1])
