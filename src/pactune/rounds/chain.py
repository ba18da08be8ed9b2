"""One chain of a round: measure at θ_t, move, and let the estimators see what they need."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.hypergradient.base import ChainContext, ChainEstimator
from pactune.hypergradient.records import InnerState, Linear, Record, StepData
from pactune.rounds.plan import RoundPlan
from pactune.trees import Params

__all__ = ["Carry", "Chain", "ChainEnd"]


class Carry(NamedTuple):
    """All that passes from one inner step to the next where no estimator looks on.

    Attributes:
        state: θ_t with its slots and buffers.
        total: Σ q_t so far.
        sums: Σ of the direct λ-derivatives of q_t so far, empty where none are wanted.
    """

    state: InnerState
    total: Tensor
    sums: Params

    def at_start(self) -> Carry:
        """Return the same with a step count of 0: a recording does not depend on the count."""
        return self._replace(state=self.state._replace(step=0))


class ChainEnd(NamedTuple):
    """What one chain gives at the end of a round; several runs at once have a leading axis in all of it.

    Attributes:
        state: θ_T.
        risk: the risk at θ_T.
        total: Y = Σ q_t.
        risk_gradient: the λ-derivative of the risk, empty without derivatives.
        path_gradient: the λ-derivative of Y, empty without derivatives or a path term.
        notes: the risk estimator's numbers for the history.
    """

    state: InnerState
    risk: Tensor
    total: Tensor
    risk_gradient: Params
    path_gradient: Params
    notes: Mapping[str, Tensor] = MappingProxyType({})


class Chain:
    """One chain of a round.

    Args:
        plan: how the round is run.
        state: θ_0 of the round.
        hyper: λ.
        drawn: the draw from P_0 when the chain starts anew.
        phase: the first step at which Δ_t is measured.
    """

    def __init__(self, plan: RoundPlan, state: InnerState, hyper: Params, drawn: Params | None, phase: int = 0) -> None:
        self.plan, self._phase = plan, phase
        self._context = ChainContext(hyper, drawn, plan.inner_steps)
        self._state, self._owned = state, False  # the state at the start is that of the last round, which is kept
        problem = plan.trajectory.problem
        self._total = torch.zeros(problem.runs, dtype=problem.dtype, device=problem.device)
        self._first_seen = plan.risk_estimator.unseen(plan.inner_steps)
        self._risk_side: ChainEstimator | None = None
        self._path_side: ChainEstimator | None = None
        if plan.derivatives:
            self._risk_side = plan.risk_estimator.start(plan.trajectory, self._context)
            if plan.trajectory.objective.has_path:
                same = plan.path_estimator == plan.risk_estimator
                self._path_side = self._risk_side if same else plan.path_estimator.start(plan.trajectory, self._context)

    def step(self, data: StepData, hyper: Params) -> tuple[Tensor | None, Params | None]:
        """Measure at θ_t, then move; return q_t and its λ-derivative where it is known at once."""
        trajectory, path = self.plan.trajectory, self._path_side
        record = Record(self._state, data, hyper)
        found = None
        if self._keeps_graph:
            linear = trajectory.linearize(record, graph=True)
            record, seen = record._replace(linear=linear), linear.observation()
        elif self.measures(self._context.length):
            by_params = path is not None and path.by_params
            seen = trajectory.observe(self._state, hyper, data, by_hyper=path is not None, by_params=by_params)
            if path is not None:
                found = path.observe(record, seen)
            if seen.summand is not None:
                self._total = self._total + seen.summand
        else:
            seen = trajectory.look(self._state, hyper, data)
            if path is not None:
                path.skipped(record)
        if record.linear is None and self._context.length == self._first_seen:
            known = Linear(self._state.params, hyper, seen.gradient, {}, seen.buffers)
            record = record._replace(linear=known)  # the way back ends here and asks for the value alone
        unseen = self._context.length < self.plan.ahead
        self._state = trajectory.advance(self._state, hyper, data, seen, donated=unseen and self._owned)
        self._owned = True
        self._context.length += 1
        if unseen and self._risk_side is not None:
            self._risk_side.jumped({})
        elif not unseen:
            for side in {id(s): s for s in (self._risk_side, path) if s is not None}.values():
                side.moved(record)
        return seen.summand, found

    @property
    def _keeps_graph(self) -> bool:
        """Whether the step's own gradient is differentiated soon, and nothing else is measured with it."""
        nothing_else = not self.plan.trajectory.objective.has_path
        return nothing_else and self._risk_side is not None and self._risk_side.keeps_graph

    def measures(self, t: int) -> bool:
        """Whether Δ_t is measured at step t of the round."""
        return t % self.plan.path_stride == self._phase

    # For engines that run the first steps in their own way

    @property
    def carry(self) -> Carry:
        """Where the chain is."""
        return Carry(self._state, self._total, self._path_side.path() if self._path_side is not None else {})

    @property
    def hyper(self) -> Params:
        """λ."""
        return self._context.hyper

    def jump(self, carry: Carry, steps: int) -> None:
        """Take up the chain after `steps` steps that no estimator had to see."""
        self._state, self._total = carry.state, carry.total
        self._owned = self._owned or steps > 0  # after no step it is still the state at the start
        self._context.length += steps
        if self._risk_side is not None:
            self._risk_side.jumped({})
        if self._path_side is not None:
            self._path_side.jumped(carry.sums)

    def finish(self, key: int | None) -> ChainEnd:
        """Return the risk at θ_T, Y, and their λ-derivatives."""
        trajectory, stride = self.plan.trajectory, self.plan.path_stride
        final = trajectory.final_risk(self._state, self.hyper, key=key, derivatives=self._risk_side is not None)
        gradient = self._risk_side.risk(final, self._state) if self._risk_side is not None else {}
        path = self._path_side.path() if self._path_side is not None else {}
        notes = self._risk_side.notes if self._risk_side is not None else {}
        if stride == 1:
            return ChainEnd(self._state, final.value, self._total, gradient, path, notes)
        scaled = {n: stride * g for n, g in path.items()}
        return ChainEnd(self._state, final.value, stride * self._total, gradient, scaled, notes)
