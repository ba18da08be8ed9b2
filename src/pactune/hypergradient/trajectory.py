"""The inner trajectory as pure functions: measure at θ_t, move θ_t, and pull adjoints back.

Estimators use only these functions. Chains and engines decide when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from pactune.dynamics.base import Dynamics, Number, Slots
from pactune.hypergradient.adjoints import StepArguments, edge_vjp, pull_back_dynamics, step_inputs, vjp
from pactune.hypergradient.dual_kernels import dual_kernels
from pactune.hypergradient.gradients import on_side_stream, params_gradient, second_order_kernels
from pactune.hypergradient.mixed import MixedDerivative
from pactune.hypergradient.records import (
    Adjoint,
    GradientPair,
    InnerState,
    LinearizedGradient,
    Observation,
    StepData,
    StepRecord,
    ValueAndGradient,
)
from pactune.objectives.base import MeasuredSummand, Objective, PathContext
from pactune.objectives.stacked import measure_runs, summand_of_runs
from pactune.parallel import SINGLE_RANK, Ranks, copy_to_shards, shard_batch, sum_over_shards, sum_trees
from pactune.problem.data import Batch, Source
from pactune.problem.inner_problem import InnerProblem
from pactune.streams import seed_forward
from pactune.trees import Params, add, clone, detach, leaves, zeros_like

__all__ = ["Trajectory"]


@dataclass(frozen=True)
class Trajectory:
    """Problem, dynamics and objective as functions of (θ_t, λ).

    Attributes:
        problem: the two risks.
        dynamics: how θ moves.
        objective: what is measured along the trajectory.
        stochastic: True if forwards draw random numbers, so that they are seeded at every step.
        default_hyper: λ0, for an objective that compares with it.
        ranks: the ranks of the run. Some of them may share every mini-batch.
        side: a CUDA stream that computes the reference gradient while the main stream computes ∇R_T.
        mixed: decides how the mixed derivative of a large step is computed.
    """

    problem: InnerProblem
    dynamics: Dynamics
    objective: Objective
    stochastic: bool = False
    default_hyper: Params | None = None
    ranks: Ranks = SINGLE_RANK
    side: torch.cuda.Stream | None = None
    mixed: MixedDerivative = field(default_factory=MixedDerivative, compare=False, repr=False)

    # Measure at θ_t

    def observe(
        self, state: InnerState, hyper: Params, data: StepData, *, by_hyper: bool, by_params: bool
    ) -> Observation:
        """Return ∇R_T(θ_t), and q_t with the requested derivatives.

        The training gradient is computed once, for Δ_t and for the step. A double backward runs only if the
        θ-derivative is requested or if λ enters the losses; a penalty may have its mixed derivative in closed form.
        """
        if not self.objective.has_path:
            return self.observe_gradient(state, hyper, data)
        if self.pair_suffices(by_hyper=by_hyper) and not by_params:
            return self.measure_pair(state, hyper, data, self.gradient_pair(state, hyper, data), by_hyper=by_hyper)
        graph = self._needs_graph(by_hyper=by_hyper, by_params=by_params)
        params, lambdas = leaves(state.params), leaves(hyper) if by_hyper else hyper
        gradient, reference, buffers = self._gradient_pair(params, lambdas, state.buffers, data, graph=graph)
        with torch.enable_grad():
            context = self._context(state, data, self._factors(params, lambdas))
            train, valid = self._compared(gradient, reference, params, lambdas, context)
        measured = self._measure(detach(train), detach(valid), context.without_graph())
        outputs = [(train, measured.by_train), (valid, measured.by_valid)]
        if self.objective.uses_step_size and context.factors:
            with torch.enable_grad():
                value = self._summand(detach(train), detach(valid), context)
            outputs.append(({"summand": value}, {"summand": torch.ones_like(value)}))
        wanted = {**({"hyper": lambdas} if by_hyper else {}), **({"params": params} if by_params else {})}
        named = dict(zip(wanted, vjp(outputs, *wanted.values()), strict=True))
        return Observation(detach(gradient), buffers, measured.summand, named.get("hyper"), named.get("params"))

    def pair_suffices(self, *, by_hyper: bool) -> bool:
        """True if `observe` equals `gradient_pair` followed by `measure_pair`.

        This holds if no λ-derivative is requested, or if it has a closed form.
        """
        return not (by_hyper and self.objective.has_path) or self.problem.has_penalty_vjp

    def gradient_pair(self, state: InnerState, hyper: Params, data: StepData) -> GradientPair:
        """Return the two gradients at θ_t."""
        found = self._gradient_pair(leaves(state.params), hyper, state.buffers, data, graph=False)
        return GradientPair(detach(found.gradient), detach(found.reference), found.buffers)

    @torch.no_grad()
    def measure_pair(
        self, state: InnerState, hyper: Params, data: StepData, pair: GradientPair, *, by_hyper: bool
    ) -> Observation:
        """Return q_t from the two gradients, and its direct λ-derivative by the closed form."""
        if not self.objective.has_path:
            return Observation(pair.gradient, pair.buffers)
        context = self._context(state, data, self._factors(state.params, hyper))
        train, valid = self._compared(pair.gradient, pair.reference, state.params, hyper, context)
        measured = self._measure(train, valid, context, by_valid=False)
        direct = self.problem.penalty_vjp(state.params, hyper, measured.by_train) if by_hyper else None
        return Observation(pair.gradient, pair.buffers, measured.summand, direct)

    def observe_gradient(self, state: InnerState, hyper: Params, data: StepData) -> Observation:
        """Return ∇R_T(θ_t) without measuring q_t."""
        buffers = clone(state.buffers)
        gradient = self._train_gradient(leaves(state.params), hyper, buffers, data, graph=False)
        return Observation(detach(gradient), buffers)

    # Move, and pull back

    def advance(
        self, state: InnerState, hyper: Params, data: StepData, observation: Observation, *, donated: bool = False
    ) -> InnerState:
        """Return the state after the step.

        Args:
            state: the state before the step.
            hyper: λ.
            data: the data of the step.
            observation: the training gradient and the buffers at θ_t.
            donated: True if nobody needs `state` any more, so that the step may write into its tensors.
        """
        with torch.no_grad():
            params, slots = self._move(self.dynamics, state, hyper, data, observation.gradient, donated=donated)
        return InnerState(params, slots, observation.buffers, state.step + 1)

    def replay(self, state: InnerState, hyper: Params, data: StepData) -> InnerState:
        """Return the state after a step inside an autograd graph; `state` and `hyper` are in it, or dual tensors."""
        buffers = clone(state.buffers)
        gradient = self._train_gradient(state.params, hyper, buffers, data, graph=True)
        params, slots = self._move(self.dynamics.pull_back_form(), state, hyper, data, gradient)
        return InnerState(params, slots if self.dynamics.differentiable else {}, buffers, state.step + 1)

    def linearize(self, record: StepRecord, *, graph: bool) -> LinearizedGradient:
        """Return ∇R_T(θ_t) of a recorded step; with `graph`, inside a new autograd graph."""
        buffers = clone(record.state.buffers)
        params = leaves(record.state.params)
        hyper = leaves(record.hyper) if graph and self.problem.enters_losses else record.hyper
        value = self._train_gradient(params, hyper, buffers, record.data, graph=graph)
        edges = {name: get_gradient_edge(g) for name, g in value.items() if g.requires_grad}
        return LinearizedGradient(params, hyper, detach(value), edges, buffers)

    def without_values(self, linearized: LinearizedGradient) -> LinearizedGradient:
        """Drop the gradient's value if the pull-back needs only its graph. The value is as large as the parameters."""
        closed = self.problem.has_closed_steps and not self.dynamics.pull_back_form().pull_back_needs_gradient
        return linearized._replace(gradient={}) if closed and linearized.edges else linearized

    def pull_back(self, record: StepRecord, adjoint: Adjoint, *, to_state: bool) -> tuple[Params, Adjoint | None]:
        """Pull an adjoint of the state after a step back through the step.

        First the adjoint goes through the operations of the dynamics (`pull_back_dynamics`). Then the training gradient
        costs one Hessian–vector product. It costs nothing if λ does not enter the loss and `to_state` is False.

        Args:
            record: the step.
            adjoint: the derivative with respect to the state after the step.
            to_state: True if the derivative with respect to the state before the step is requested too.

        Returns:
            The λ-derivative, empty if the step does not depend on λ, and the adjoint of the state before the step.
        """
        graph = to_state or self.problem.enters_losses
        state, linearized = record.state, record.linearized
        slopes = not to_state and linearized is not None and not linearized.edges and self.takes_slopes(record)
        if linearized is None or (graph and not linearized.edges and not slopes):
            linearized = self.linearize(record, graph=graph)
        slots, numbers = state.slots if self.dynamics.differentiable else {}, self.numbers(state, record.data)
        arguments = StepArguments(state.params, slots, linearized.gradient, record.hyper, record.data.noise, numbers)
        form = self.dynamics.pull_back_form()
        by_hyper, found = pull_back_dynamics(self.problem, form, arguments, adjoint.params, adjoint.slots)
        if slopes:
            by_loss, before = self._mixed_product(record, found.gradient), None
        else:
            params = [linearized.params] if to_state else []
            lambdas = [linearized.hyper] if self.problem.enters_losses else []
            products = edge_vjp(linearized.edges, found.gradient, *params, *lambdas)
            before = Adjoint(add(found.params, products[0]), found.slots) if to_state else None
            by_loss = products[-1] if self.problem.enters_losses else {}
        return add(by_hyper, by_loss) if by_hyper and by_loss else by_hyper or by_loss, before

    def takes_slopes(self, record: StepRecord) -> bool:
        """Return True if the mixed derivative of a step needs no graph of its gradient."""
        return self.problem.enters_losses and self.ranks.shards == 1 and self.mixed.takes_slopes(record)

    def _mixed_product(self, record: StepRecord, cotangent: Params) -> Params:
        def risk(params: Params, hyper: Params) -> Tensor:
            self._seed(record.data.keys[0] if record.data.keys else None)
            with dual_kernels(self.problem):
                return self.problem.train_risk(params, hyper, clone(record.state.buffers), record.data.train)

        return self.mixed.compute(record, cotangent, risk, partial(self.linearize, graph=True))

    # The risk at θ_T

    @property
    def risk_sample(self) -> Source:
        """The sample on which the risk at θ_T is computed."""
        return self.problem.valid if self.objective.risk_of == "valid" else self.problem.train

    def final_risk(
        self,
        state: InnerState,
        hyper: Params,
        batches: Iterable[Batch],
        *,
        key: int | None = None,
        derivatives: bool = True,
        by_params: bool = True,
        risk: Callable[[Params, Params, Params, Batch], Tensor] | None = None,
    ) -> ValueAndGradient:
        """Return the risk of the objective on some rows of its sample, batch by batch, with its direct derivatives.

        The loss is by default the validation loss, on training rows too: λ could lower the training loss directly.

        Args:
            state: the state at θ_T.
            hyper: λ.
            batches: the rows.
            key: the seed of forwards that draw random numbers.
            derivatives: False computes the value only.
            by_params: False leaves out the θ-derivative, which an estimator that goes back no step does not need.
            risk: another risk of one batch, without penalty.
        """
        params = leaves(state.params) if derivatives and by_params else detach(state.params)
        lambdas = leaves(hyper) if derivatives else detach(hyper)
        found: ValueAndGradient | None = None
        rows = 0
        for batch in batches:
            self._seed(key)
            own, weight = shard_batch(batch, self.ranks.shard, self.ranks.shards)
            with torch.enable_grad():
                part = (risk or self.problem.valid_risk)(params, lambdas, clone(state.buffers), own)
                part = part if weight == 1 else weight * part
            part = part if derivatives else part.detach()  # the forward may have enabled gradients
            gradients = vjp([({"": part}, {"": torch.ones_like(part)})], params if by_params else {}, lambdas)
            rows += batch.rows
            read = ValueAndGradient(part.detach(), *gradients)
            found = read if found is None else found.mean_with(read, batch.rows / rows)
        assert found is not None
        whole, *slopes = sum_trees(self.ranks, {"": found.value}, found.by_params, found.by_hyper)
        return ValueAndGradient(whole[""], *slopes)

    def train_gradient(self, state: InnerState, hyper: Params, data: StepData, *, graph: bool = False) -> Params:
        """Return ∇R_T at θ, penalty included; with `graph`, as functions of the given θ and λ."""
        params = state.params if graph else leaves(state.params)
        with torch.enable_grad():
            gradient = self._train_gradient(params, hyper, clone(state.buffers), data, graph=graph)
            found = self._with_penalty(gradient, params, hyper)
        return found if graph else detach(found)

    # Private parts

    def _train_gradient(self, params: Params, hyper: Params, buffers: Params, data: StepData, *, graph: bool) -> Params:
        self._seed(data.keys[0] if data.keys else None)
        with torch.enable_grad(), second_order_kernels(graph):
            return self._risk_gradient(self.problem.train_risk, (params, hyper, buffers), data.train, graph=graph)

    def _risk_gradient(
        self, risk: Callable[..., Tensor], at: tuple[Params, Params, Params], batch: Batch, *, graph: bool
    ) -> Params:
        """Return the θ-gradient of a risk at (θ, λ, buffers). Ranks that share the mini-batch add up their parts."""
        params, hyper, buffers = at
        if self.ranks.shards == 1:
            return params_gradient(risk(params, hyper, buffers, batch), params, graph=graph)
        part, weight = shard_batch(batch, self.ranks.shard, self.ranks.shards)
        here, lambdas = copy_to_shards(self.ranks, params, hyper) if graph else (params, hyper)
        return sum_over_shards(
            self.ranks, params_gradient(weight * risk(here, lambdas, buffers, part), here, graph=graph)
        )

    def _gradient_pair(
        self, params: Params, hyper: Params, buffers: Params, data: StepData, *, graph: bool
    ) -> GradientPair:
        """Return the two gradients; the reference is computed on the side stream if there is one."""
        after, reference = clone(buffers), Params()
        if self.objective.has_path:
            with on_side_stream(self.side):
                reference = self._reference_gradient(params, hyper, buffers, data, graph=graph)
        gradient = self._train_gradient(params, hyper, after, data, graph=graph)
        if self.side is not None and self.objective.has_path:
            torch.cuda.current_stream().wait_stream(self.side)
        return GradientPair(gradient, reference, after)

    def _needs_graph(self, *, by_hyper: bool, by_params: bool) -> bool:
        """True if the two gradients have to be differentiated."""
        if not self.objective.has_path or self._loss_cancels:
            return False
        return by_params or (by_hyper and self.problem.enters_losses)

    @property
    def _loss_cancels(self) -> bool:
        """True if the two gradients differ only by the penalty, as under λ and λ0 of a weight decay."""
        return self.objective.compares_default and not self.problem.enters_losses

    def _reference_gradient(
        self, params: Params, hyper: Params, buffers: Params, data: StepData, *, graph: bool
    ) -> Params:
        """Return the gradient with which the objective compares ∇R_T, without a penalty."""
        if self.objective.compares_default:
            at = params, self._default, clone(buffers)
            return {} if self._loss_cancels else self._train_gradient(*at, data, graph=graph)
        if not self.objective.uses_valid_gradient:
            return zeros_like(params)
        self._seed(data.keys[1] if data.keys else None)
        with torch.enable_grad(), second_order_kernels(graph):
            at = (params, hyper, clone(buffers))
            return self._risk_gradient(self.problem.valid_risk, at, data.valid, graph=graph)

    def _compared(
        self, first: Params, reference: Params, params: Params, hyper: Params, context: PathContext
    ) -> tuple[Params, Params]:
        """Return the two gradients of the summand, with penalties. Equal parts are left out if they cancel."""
        first = {} if self._loss_cancels else first
        train = self._with_envelope(self._with_penalty(first, params, hyper), params, hyper, context)
        if not self.objective.compares_default:
            return train, reference
        default = self._default
        reference = self._with_envelope(self._with_penalty(reference, params, default), params, default, context)
        return train or zeros_like(params), reference or zeros_like(params)

    @property
    def _default(self) -> Params:
        assert self.default_hyper is not None
        return self.default_hyper

    def _with_penalty(self, gradient: Params, params: Params, hyper: Params) -> Params:
        if not self.problem.has_penalty:
            return gradient
        own = self.problem.penalty_gradient(params, hyper)
        return add(gradient, own) if gradient else own

    def _with_envelope(self, gradient: Params, params: Params, hyper: Params, context: PathContext) -> Params:
        """Add the gradient of the Moreau envelope at step size η_t, in place of a penalty that is not smooth."""
        if not self.problem.has_prox:
            return gradient
        eta, least = context.learning_rate, torch.finfo(self.problem.dtype).eps  # a schedule may reach 0
        sizes = dict.fromkeys(params, eta.clamp_min(least) if isinstance(eta, Tensor) else max(eta, least))
        own = self.problem.envelope_gradient(params, sizes, hyper)
        return add(gradient, own) if gradient else own

    def _factors(self, params: Params, hyper: Params) -> Params:
        return self.problem.learning_rates(params, hyper) if self.problem.has_learning_rates else {}

    def numbers(self, state: InnerState, data: StepData) -> Mapping[str, Number]:
        """Return the dynamics' numbers at a step. They are tensors in a recording."""
        return self.dynamics.numbers(state.step) if data.numbers is None else data.numbers

    def _measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> MeasuredSummand:
        """Return q_t with its derivatives by both gradients, of every run if runs are stacked."""
        if self.problem.runs:
            return measure_runs(self.objective, train, valid, context, by_valid=by_valid)
        return self.objective.measure(train, valid, context, by_valid=by_valid)

    def _summand(self, train: Params, valid: Params, context: PathContext) -> Tensor:
        """Return q_t, of every run if runs are stacked."""
        if self.problem.runs:
            return summand_of_runs(self.objective, train, valid, context)
        return self.objective.summand(train, valid, context)

    def _context(self, state: InnerState, data: StepData, factors: Params) -> PathContext:
        eta = self.numbers(state, data)["lr"]
        tau = self.dynamics.inverse_temperature_or_none()
        needed, problem = self.objective.uses_step_size, self.problem
        return PathContext(eta, factors, problem.train.count(needed=needed), problem.valid.count(needed=needed), tau)

    def _move(
        self,
        dynamics: Dynamics,
        state: InnerState,
        hyper: Params,
        data: StepData,
        gradient: Params,
        *,
        donated: bool = False,
    ) -> tuple[Params, Slots]:
        numbers = self.numbers(state, data)
        arguments = StepArguments(state.params, state.slots, gradient, hyper, data.noise, numbers)
        return dynamics.step(state.params, state.slots, step_inputs(self.problem, arguments, donated=donated))

    def _seed(self, key: int | None) -> None:
        if self.stochastic and key is not None:
            seed_forward(self.problem.device, key)
