"""One chain of a round: measure at θ_t, move, and pass each step to the estimators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.hypergradient.base import ChainContext, ChainEstimator
from pactune.hypergradient.one_graph import OneGraph, fits_in_one_graph
from pactune.hypergradient.records import (
    EstimatorInputs,
    InnerState,
    LinearizedGradient,
    Observation,
    StepData,
    StepRecord,
)
from pactune.hypergradient.summed_squares import measure_squares
from pactune.problem.data import Batch
from pactune.rounds.online import OnlineState
from pactune.rounds.plan import RoundPlan
from pactune.trees import Params, add, add_squares_, zeros_like

__all__ = ["Carry", "Chain", "ChainEnd"]


class Carry(NamedTuple):
    """The values that pass from one inner step to the next while an engine runs the steps, as in `jax.lax.scan`.

    Attributes:
        state: θ_t with its slots and buffers.
        total: Σ q_t so far.
        sums: the sum of the direct λ-derivatives of q_t so far; empty if they are not needed.
        squares: Σ θ_t² so far, if total and sums follow from it at the end of the round; otherwise empty.
        online: λ and its optimizer's tensors in the online algorithm, which moves λ at every step; otherwise None.
    """

    state: InnerState
    total: Tensor
    sums: Params
    squares: Params
    online: OnlineState | None = None

    def at_start(self) -> Carry:
        """Return the carry with a step count of 0, because a recording must not depend on the count."""
        return self._replace(state=self.state._replace(step=0))


class ChainEnd(NamedTuple):
    """The result of one chain at the end of a round. With stacked runs every tensor has a leading axis.

    Attributes:
        state: the state at θ_T.
        risk: the risk at θ_T.
        total: Y = Σ q_t.
        risk_gradient: the λ-derivative of the risk; empty without derivatives.
        path_gradient: the λ-derivative of Y; empty without derivatives or without a path term.
        notes: the risk estimator's numbers for the history.
        memory: the tensors that the risk estimator keeps for the next round.
    """

    state: InnerState
    risk: Tensor
    total: Tensor
    risk_gradient: Params
    path_gradient: Params
    notes: Mapping[str, Tensor] = MappingProxyType({})
    memory: Mapping[str, Tensor] = MappingProxyType({})


class Chain:
    """One chain of a round.

    Args:
        plan: how the round is run.
        state: the state at the start of the round.
        hyper: λ.
        drawn: the draw from P_0 if the chain starts from θ_0; otherwise None.
        phase: the first step at which Δ_t is measured.
        inputs: the memory and the fresh mini-batches of the estimator.
    """

    def __init__(
        self,
        plan: RoundPlan,
        state: InnerState,
        hyper: Params,
        drawn: Params | None,
        phase: int = 0,
        inputs: EstimatorInputs | None = None,
    ) -> None:
        self.plan, self.phase = plan, phase
        self._context = ChainContext(hyper, drawn, plan.inner_steps, inputs=inputs)
        self._state = state
        self._owned = False  # the first state belongs to the last round, so no step may overwrite it
        problem = plan.trajectory.problem
        self._total = torch.zeros(problem.runs, dtype=problem.dtype, device=problem.device)
        self._squares = zeros_like(state.params) if plan.sums_squares else {}
        self._first_needed = plan.risk_estimator.skippable_steps(plan.inner_steps)
        self._graph: OneGraph | None = None

    @cached_property
    def _risk_side(self) -> ChainEstimator | None:
        """The estimator of the risk, if derivatives are needed; a chain that an engine replays never starts it."""
        plan = self.plan
        return plan.risk_estimator.start(plan.trajectory, self._context) if plan.derivatives else None

    @cached_property
    def _path_side(self) -> ChainEstimator | None:
        """The estimator of the path term, if its derivative is needed step by step."""
        plan = self.plan
        if not plan.derivatives or not plan.trajectory.objective.has_path or plan.sums_squares:
            return None
        same = plan.path_estimator == plan.risk_estimator
        return self._risk_side if same else plan.path_estimator.start(plan.trajectory, self._context)

    def step(self, data: StepData, hyper: Params) -> tuple[Tensor | None, Params | None]:
        """Measure at θ_t, then move; return q_t, and its λ-derivative if it is known at once."""
        if self._enters_graph(data):
            self._graph = OneGraph(self.plan.trajectory, self._context, self._state)
        if self._graph is not None:
            self._state, self._owned = self._graph.step(data), True
            self._context.advance(1)
            return None, None
        record = StepRecord(self._state, data, hyper)
        derivative = None
        if self._keeps_graph(record):
            linearized = self.plan.trajectory.linearize(record, graph=True)
            record, observation = record._replace(linearized=linearized), linearized.observation()
        elif self.measures(self._context.length):
            observation, derivative = self._measure(record)
        else:
            observation = self.plan.trajectory.observe_gradient(self._state, hyper, data)
            if self._path_side is not None:
                self._path_side.skip_summand(record)
        ends = self._context.length == self._first_needed
        if record.linearized is None and (ends or self.plan.risk_estimator.first_order):
            # The pull-back ends at this step, or is of first order: it needs the gradient's value, but no graph.
            known = LinearizedGradient(self._state.params, hyper, observation.gradient, {}, observation.buffers)
            record = record._replace(linearized=known)
        self._move(record, observation)
        return observation.summand, derivative

    def _measure(self, record: StepRecord) -> tuple[Observation, Params | None]:
        """Measure q_t and add it to the total; return also its λ-derivative if it is known at once."""
        if self._squares:
            add_squares_(self._squares, record.state.params)
            return self.plan.trajectory.observe_gradient(record.state, record.hyper, record.data), None
        path, derivative = self._path_side, None
        by_hyper, by_params = path is not None, path is not None and path.by_params
        observation = self.plan.trajectory.observe(
            record.state, record.hyper, record.data, by_hyper=by_hyper, by_params=by_params
        )
        if path is not None:
            derivative = path.observe(record, observation)
        if observation.summand is not None:
            self._total = self._total + observation.summand
        return observation, derivative

    def _move(self, record: StepRecord, observation: Observation) -> None:
        """Make the step, and pass it to the estimators unless they can skip it."""
        skippable = self._context.length < self.plan.skippable_steps
        self._state = self.plan.trajectory.advance(
            record.state, record.hyper, record.data, observation, donated=skippable and self._owned
        )
        self._owned = True
        self._context.advance(1)
        if skippable and self._risk_side is not None:
            self._risk_side.skip_steps({})
        elif not skippable:
            for side in {id(s): s for s in (self._risk_side, self._path_side) if s is not None}.values():
                side.add_step(record)

    def _enters_graph(self, data: StepData) -> bool:
        """True if the next step is the first one that the risk estimator needs, and all of them fit in one graph."""
        plan, length = self.plan, self._context.length
        if self._graph is not None or self._risk_side is None or length != self._first_needed:
            return False
        steps = plan.risk_estimator.unrolled_steps(plan.inner_steps)
        return length + steps == plan.inner_steps and fits_in_one_graph(plan.trajectory, self._state, data, steps)

    def _keeps_graph(self, record: StepRecord) -> bool:
        """True if the next step measures nothing and the risk estimator soon differentiates its training gradient.

        The pull-back ends at the first step that the estimator needs. It goes through the gradient of that step only if
        λ is in the loss or in θ_0. The slopes of a large step need no graph.
        """
        trajectory = self.plan.trajectory
        if trajectory.objective.has_path or self._risk_side is None or not self._risk_side.keeps_graph:
            return False
        from_start = self._first_needed == 0 and self.drawn is not None and trajectory.problem.has_initial
        if self._context.length != self._first_needed or from_start:
            return True
        return trajectory.problem.enters_losses and not trajectory.takes_slopes(record)

    def measures(self, t: int) -> bool:
        """Return True if Δ_t is measured at step t of the round."""
        return t % self.plan.path_stride == self.phase

    # For engines that run the first steps

    @property
    def carry(self) -> Carry:
        """The current state and the sums so far."""
        sums = self._path_side.path_gradient() if self._path_side is not None else {}
        return Carry(self._state, self._total, sums, self._squares)

    @property
    def length(self) -> int:
        """The number of finished steps of the round."""
        return self._context.length

    @property
    def hyper(self) -> Params:
        """λ."""
        return self._context.hyper

    @property
    def drawn(self) -> Params | None:
        """The draw from P_0 if the chain starts from θ_0."""
        return self._context.drawn

    @property
    def inputs(self) -> EstimatorInputs | None:
        """The memory and the fresh mini-batches of the estimator."""
        return self._context.inputs

    def continue_from(self, carry: Carry, steps: int) -> None:
        """Continue from `carry`, after an engine has run `steps` steps."""
        self._state, self._total, self._squares = carry.state, carry.total, carry.squares
        self._owned = self._owned or steps > 0  # without a step it is still the state at the start
        risk_side, path_side = self._risk_side, self._path_side  # they start before the first step
        self._context.advance(steps)
        if risk_side is not None:
            risk_side.skip_steps({})
        if path_side is not None:
            path_side.skip_steps(carry.sums)

    def path_sums(self) -> tuple[Tensor, Params]:
        """Return Σ q_t so far and its λ-derivative, which is empty without derivatives or without a path term."""
        if self._squares:
            plan = self.plan
            return measure_squares(plan.trajectory, self._squares, self.hyper, by_hyper=plan.derivatives)
        return self._total, self._path_side.path_gradient() if self._path_side is not None else {}

    def finish(self, batches: Iterable[Batch], key: int | None = None) -> ChainEnd:
        """Return the risk at θ_T, Y, and their λ-derivatives.

        Args:
            batches: the rows for the risk.
            key: the seed of forwards that draw random numbers.
        """
        trajectory, stride, derivatives = self.plan.trajectory, self.plan.path_stride, self._risk_side is not None
        estimator = self.plan.risk_estimator
        by_params = estimator.stationary or estimator.reach(self.plan.inner_steps) > 0
        final = trajectory.final_risk(
            self._state, self.hyper, batches, key=key, derivatives=derivatives, by_params=by_params
        )
        gradient: Params = {}
        if self._graph is not None:
            gradient = add(final.by_hyper, self._graph.pull_back(final.by_params))
        elif self._risk_side is not None:
            gradient = self._risk_side.risk_gradient(final, self._state)
        total, path = self.path_sums()
        notes, memory = (self._risk_side.notes, self._risk_side.memory) if self._risk_side is not None else ({}, {})
        if stride == 1:
            return ChainEnd(self._state, final.value, total, gradient, path, notes, memory)
        scaled = {n: stride * g for n, g in path.items()}
        return ChainEnd(self._state, final.value, stride * total, gradient, scaled, notes, memory)
