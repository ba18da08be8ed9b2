"""The reference for implicit estimators: the risk at a stationary point of training, as a function of λ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pactune.gradient_check.anchored import RecordedChain
from pactune.hypergradient.base import ChainContext
from pactune.hypergradient.implicit import Implicit
from pactune.hypergradient.records import InnerState, StepRecord
from pactune.hypergradient.running_implicit import RunningImplicit
from pactune.hypergradient.solvers import Identity, Neumann
from pactune.hypergradient.support import StationarySystem, stationary_system
from pactune.hypergradient.train_risk import MeanTrainRisk, mean_train_risk
from pactune.rounds.plan import RoundPlan
from pactune.streams import forked_rng
from pactune.trees import Params, axpy, detach, dot, norm, scale, sub, zeros_like

__all__ = ["StationaryChain", "find_stationary", "train_gradient_norm_of"]

Operator = Callable[[Params], Params]
NEWTON_STEPS = 200
STATIONARY = 1e-9  # ‖∇R_T‖ relative to 1 + ‖θ‖; Newton's last step goes down to rounding


@dataclass(frozen=True)
class StationaryChain:
    """A chain whose training was continued to a stationary point θ* of the risk that its estimator solves for.

    Attributes:
        plan: the settings of the round; its risk estimator is implicit.
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
        running = self.plan.risk_estimator.start(trajectory, _context(self.plan, self.path, hyper))
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
        """Return θ*(λ): gradient steps from θ* for a solver that is a series, else the nearest stationary point."""
        start, estimator = self.state.params, self.plan.risk_estimator
        solver = estimator.solver if isinstance(estimator, Implicit) else estimator
        damping = float(getattr(solver, "damping", 0.0))
        if not isinstance(solver, Identity | Neumann | RunningImplicit):
            found = _newton(self.plan, self.path, start, hyper, damping)
            return found if found is not None else scale(float("nan"), start)
        eta = self.plan.trajectory.dynamics.learning_rate(self.path.states[-2].step)
        size, params = eta if solver.alpha is None else solver.alpha, start
        problem, sizes = self.plan.trajectory.problem, dict.fromkeys(params, size)
        for _ in range(_steps(solver)):
            slope = axpy(damping, sub(params, start), _gradient(self.plan, self.path, params, hyper))
            params = detach(problem.prox(axpy(-size, slope, params), sizes, hyper))
        return params

    @property
    def _key(self) -> int | None:
        keys = self.path.step_data[-1].keys
        return keys[1] if keys else None


def _steps(solver: Identity | Neumann | RunningImplicit) -> int:
    """Return the number of gradient steps that a series stands for, if it starts at 0."""
    if isinstance(solver, RunningImplicit):
        return solver.steps
    return 1 + (solver.steps if isinstance(solver, Neumann) else 0)


def train_gradient_norm_of(plan: RoundPlan, path: RecordedChain) -> float:
    """Return ‖∇R_T(θ_T)‖ with the penalty; with a prox that of the fixed-point equation."""
    params = path.states[-1].params
    return float(norm(_system(plan, path, params, path.hyper, _gradient(plan, path, params, path.hyper)).residual))


def find_stationary(plan: RoundPlan, path: RecordedChain, hyper: Params) -> StationaryChain | None:
    """Continue training from θ_T to a stationary point; return None if Newton's method finds none."""
    found = _newton(plan, path, path.states[-1].params, hyper, damping=0.0)
    return None if found is None else StationaryChain(plan, path, path.states[-1]._replace(params=found))


def _newton(plan: RoundPlan, path: RecordedChain, start: Params, hyper: Params, damping: float) -> Params | None:
    """Return a stationary point of R_T(θ) + ½ damping ‖θ − start‖² by Newton's method; None if it does not converge.

    The Hessian is shifted by a multiple of the identity if it is not positive definite or a step fails. With a prox the
    method solves the fixed-point equation on the support of the present iterate, which may change from step to step.
    """
    params, shift = start, 0.0

    def system_at(at: Params) -> StationarySystem:
        return _system(plan, path, at, hyper, axpy(damping, sub(at, start), _gradient(plan, path, at, hyper)))

    system = system_at(params)
    for _ in range(NEWTON_STEPS):
        state = path.states[-1]._replace(params=params)
        with forked_rng(plan.trajectory.problem.device):
            hessian = _train_risk(plan, path, hyper).linearize(state).hessian
            step = _solve(system.operator(lambda v: axpy(damping + shift, v, hessian(v))), system.residual)  # noqa: B023
        moved = None if step is None else sub(params, step)
        after = None if moved is None else system_at(moved)
        if moved is not None and after is not None and bool(norm(after.residual) < norm(system.residual)):
            params, system, shift = moved, after, shift / 10 if shift > 1e-8 else 0.0
        elif bool(norm(system.residual) <= STATIONARY * (1 + norm(params))):
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


def _system(plan: RoundPlan, path: RecordedChain, params: Params, hyper: Params, gradient: Params) -> StationarySystem:
    eta = plan.trajectory.dynamics.learning_rate(path.states[-2].step)
    return stationary_system(plan.trajectory.problem, params, hyper, gradient, eta)


def _gradient(plan: RoundPlan, path: RecordedChain, params: Params, hyper: Params) -> Params:
    state = path.states[-1]._replace(params=params)
    with forked_rng(plan.trajectory.problem.device):
        return _train_risk(plan, path, hyper).gradient(state)


def _train_risk(plan: RoundPlan, path: RecordedChain, hyper: Params) -> MeanTrainRisk:
    """Return the training risk whose stationary point the estimator takes θ_T for."""
    assert isinstance(plan.risk_estimator, Implicit | RunningImplicit)
    context = _context(plan, path, hyper)
    return mean_train_risk(plan.trajectory, context, path.step_data[-1], plan.risk_estimator.batches)


def _context(plan: RoundPlan, path: RecordedChain, hyper: Params) -> ChainContext:
    """Return the context of an estimator that remembers nothing yet."""
    return ChainContext(hyper, None, plan.inner_steps, inputs=path.inputs._replace(memory={}))
