"""The inner trajectory as pure functions: what is measured at θ_t, how θ_t moves, and how adjoints come back.

Every estimator is written on these functions alone; engines decide when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from pactune.dynamics.base import Dynamics, Number, Slots, StepInputs
from pactune.errors import GradientError
from pactune.hypergradient.adjoints import StepPoint, edge_vjp, through_step, vjp
from pactune.hypergradient.records import (
    Adjoint,
    GradientPair,
    InnerState,
    Linear,
    Observation,
    Record,
    StepData,
    ValueAndGradient,
)
from pactune.objectives.base import Measured, Objective, PathContext
from pactune.objectives.stacked import measure_runs, summand_of_runs
from pactune.parallel import SINGLE_RANK, Ranks, collect, share, spread, sum_trees
from pactune.problem.data import Batch
from pactune.problem.inner_problem import InnerProblem
from pactune.streams import seed_forward
from pactune.trees import Params, add, clone, leaves, split, zeros_like

__all__ = ["Trajectory"]

Product = Callable[[Params], Params]


@dataclass(frozen=True)
class Trajectory:
    """Problem, dynamics and objective, seen as functions of (θ_t, λ).

    Attributes:
        problem: the two risks.
        dynamics: how θ moves.
        objective: what is measured along the way.
        stochastic: whether forwards draw random numbers and have to be seeded step by step.
        default_hyper: λ0, for an objective that compares with it.
        ranks: the ranks of the run, of which some may share every mini-batch.
        side: a CUDA stream on which the second gradient of a step runs beside the first.
    """

    problem: InnerProblem
    dynamics: Dynamics
    objective: Objective
    stochastic: bool = False
    default_hyper: Params | None = None
    ranks: Ranks = SINGLE_RANK
    side: torch.cuda.Stream | None = None

    # Measuring at θ_t

    def observe(
        self, state: InnerState, hyper: Params, data: StepData, *, by_hyper: bool, by_params: bool
    ) -> Observation:
        """Return ∇R_T(θ_t), and q_t with the derivatives asked for.

        The training gradient is computed once and serves both Δ_t and the step. A double backward is run only when the
        θ-derivative is wanted or λ enters the losses themselves; where a penalty knows its mixed derivative in closed
        form, there is no backward for λ at all.
        """
        if self.parts(by_hyper=by_hyper) and not by_params:
            return self.judge(state, hyper, data, self.pair(state, hyper, data), by_hyper=by_hyper)
        graph = self._needs_graph(by_hyper=by_hyper, by_params=by_params)
        params, lambdas = leaves(state.params), leaves(hyper) if by_hyper else hyper
        gradient, second, buffers = self._pair(params, lambdas, state.buffers, data, graph=graph)
        if not self.objective.has_path:
            return Observation(_plain(gradient), buffers)
        with torch.enable_grad():
            context = self._context(state, data, self._factors(params, lambdas))
            train, valid = self._compared(gradient, second, params, lambdas)
        measured = self._measure(_plain(train), _plain(valid), _without_graph(context))
        detached = _plain(gradient)
        outputs = [(train, measured.by_train), (valid, measured.by_valid)]
        if self.objective.uses_step_size and context.factors:
            with torch.enable_grad():
                value = self._summand(_plain(train), _plain(valid), context)
            outputs.append(({"summand": value}, {"summand": torch.ones_like(value)}))
        wanted = {**({"hyper": lambdas} if by_hyper else {}), **({"params": params} if by_params else {})}
        named = dict(zip(wanted, vjp(outputs, *wanted.values()), strict=True))
        return Observation(detached, buffers, measured.summand, named.get("hyper"), named.get("params"))

    def parts(self, *, by_hyper: bool) -> bool:
        """Whether `observe` is `pair` and then `judge`: no λ-derivative is wanted, or it is known in closed form."""
        return not (by_hyper and self.objective.has_path) or self.problem.has_penalty_vjp

    def pair(self, state: InnerState, hyper: Params, data: StepData) -> GradientPair:
        """Return the two gradients at θ_t."""
        found = self._pair(leaves(state.params), hyper, state.buffers, data, graph=False)
        return GradientPair(_plain(found.gradient), _plain(found.second), found.buffers)

    @torch.no_grad()
    def judge(
        self, state: InnerState, hyper: Params, data: StepData, pair: GradientPair, *, by_hyper: bool
    ) -> Observation:
        """Return q_t from the two gradients, and its direct λ-derivative in closed form."""
        if not self.objective.has_path:
            return Observation(pair.gradient, pair.buffers)
        context = self._context(state, data, self._factors(state.params, hyper))
        train, valid = self._compared(pair.gradient, pair.second, state.params, hyper)
        measured = self._measure(train, valid, context, by_valid=False)
        direct = self.problem.penalty_vjp(state.params, hyper, measured.by_train) if by_hyper else None
        return Observation(pair.gradient, pair.buffers, measured.summand, direct)

    def look(self, state: InnerState, hyper: Params, data: StepData) -> Observation:
        """Return ∇R_T(θ_t) alone, where q_t is not measured."""
        buffers = clone(state.buffers)
        return Observation(
            _plain(self._train_gradient(leaves(state.params), hyper, buffers, data, graph=False)), buffers
        )

    # Moving

    def advance(
        self, state: InnerState, hyper: Params, data: StepData, seen: Observation, *, donated: bool = False
    ) -> InnerState:
        """Return the state after the step, from what was observed at θ_t; in the memory of one that is donated."""
        with torch.no_grad():
            params, slots = self._move(self.dynamics, state, hyper, data, seen.gradient, donated=donated)
        return InnerState(params, slots, seen.buffers, state.step + 1)

    def replay(self, state: InnerState, hyper: Params, data: StepData, *, graph: bool) -> Adjoint:
        """Repeat a step inside an autograd graph; `state` and `hyper` are leaves or dual tensors."""
        gradient = self._train_gradient(state.params, hyper, clone(state.buffers), data, graph=graph)
        params, slots = self._move(self.dynamics.pull_back_form(), state, hyper, data, gradient)
        return Adjoint(params, slots if self.dynamics.differentiable else {})

    def linearize(self, record: Record, *, graph: bool) -> Linear:
        """Return ∇R_T(θ_t) again; with `graph`, inside an autograd graph of its own, ready to be differentiated."""
        buffers = clone(record.state.buffers)
        params = leaves(record.state.params)
        hyper = leaves(record.hyper) if graph and self.problem.enters_losses else record.hyper
        value = self._train_gradient(params, hyper, buffers, record.data, graph=graph)
        edges = {name: get_gradient_edge(g) for name, g in value.items() if g.requires_grad}
        return Linear(params, hyper, _plain(value), edges, buffers)

    def without_values(self, linear: Linear) -> Linear:
        """Forget the gradient's value, a copy of the parameters, where its graph is all that the way back needs."""
        closed = self.problem.has_closed_steps and not self.dynamics.pull_back_form().pull_back_needs_gradient
        return linear._replace(gradient={}) if closed and linear.edges else linear

    def pull_back(self, record: Record, adjoint: Adjoint, *, to_state: bool) -> tuple[Params, Adjoint | None]:
        """Take an adjoint of the state after a step back through the step.

        The step's own operations come first (`through_step`); the training gradient then costs one Hessian–vector
        product, and nothing where only λ is asked for and does not enter the loss.

        Args:
            record: the step.
            adjoint: derivative with respect to the state after it.
            to_state: whether the derivative with respect to the state before the step is wanted too.

        Returns:
            The λ-derivative, and the adjoint of the state before the step.
        """
        graph = to_state or self.problem.enters_losses
        state, linear = record.state, record.linear
        if linear is None or (graph and not linear.edges):
            linear = self.linearize(record, graph=graph)
        slots = state.slots if self.dynamics.differentiable else {}
        met = StepPoint(
            state.params, slots, linear.gradient, record.hyper, record.data.noise, self._numbers(state, record.data)
        )
        form = self.dynamics.pull_back_form()
        by_hyper, found = through_step(self.problem, form, met, adjoint.params, adjoint.slots)
        wanted = ([linear.params] if to_state else []) + ([linear.hyper] if self.problem.enters_losses else [])
        products = edge_vjp(linear.edges, found.gradient, *wanted)
        before = Adjoint(add(found.params, products[0]), found.slots) if to_state else None
        return self._join(by_hyper, products[-1] if self.problem.enters_losses else {}, record.hyper), before

    @staticmethod
    def _join(by_step: Params, by_loss: Params, hyper: Params) -> Params:
        """Add up the two ways of λ into a step; an empty one is zero."""
        if by_step and by_loss:
            return add(by_step, by_loss)
        return by_step or by_loss or zeros_like(hyper)

    def pull_back_initial(self, drawn: Params, hyper: Params, by_params: Params) -> Params:
        """Take an adjoint of θ_0 back to λ, where θ_0 is a function of λ."""
        lambdas = leaves(hyper)
        with torch.enable_grad():
            start = self.problem.initial(drawn, lambdas)
        return vjp([(start, by_params)], lambdas)[0]

    # The risk at θ_T

    def final_risk(
        self, state: InnerState, hyper: Params, *, key: int | None = None, derivatives: bool = True
    ) -> ValueAndGradient:
        """Return the risk of the objective on the whole sample, batch by batch, with its direct derivatives.

        The loss is that of the validation side on either sample: λ shapes the training loss, and could lower it without
        any effect on θ.
        """
        source = self.problem.valid if self.objective.risk_of == "valid" else self.problem.train
        wanted = leaves if derivatives else _plain
        params, lambdas = wanted(state.params), wanted(hyper)
        value, rows = torch.zeros(self.problem.runs, dtype=self.problem.dtype, device=self.problem.device), 0
        by_params, by_hyper = zeros_like(state.params), zeros_like(hyper)
        for batch in source.epoch():
            self._seed(key)
            own, weight = share(batch, self.ranks.shard, self.ranks.shards)
            with torch.enable_grad():
                part = weight * batch.rows * self.problem.valid_risk(params, lambdas, clone(state.buffers), own)
            part = part if derivatives else part.detach()  # a forward may enable gradients for its own inputs
            found_params, found_hyper = vjp([({"": part}, {"": torch.ones_like(part)})], params, lambdas)
            value, rows = value + part.detach(), rows + batch.rows
            by_params, by_hyper = add(by_params, found_params), add(by_hyper, found_hyper)
        whole, by_params, by_hyper = sum_trees(self.ranks, {"": value}, by_params, by_hyper)
        return ValueAndGradient(
            whole[""] / rows, {n: g / rows for n, g in by_params.items()}, {n: g / rows for n, g in by_hyper.items()}
        )

    def train_gradient(self, state: InnerState, hyper: Params, data: StepData) -> Params:
        """Return ∇R_T at θ, penalty included."""
        gradient = self.look(state, hyper, data).gradient
        return _plain(self._with_penalty(gradient, state.params, hyper))

    def train_products(self, state: InnerState, hyper: Params, data: StepData) -> tuple[Product, Product]:
        """Return v ↦ ∇²_θ R_T v and v ↦ vᵀ ∂²R_T/∂θ∂λ at θ, penalty included; one graph serves all products."""
        params, lambdas = leaves(state.params), leaves(hyper)
        with torch.enable_grad():
            gradient = self._train_gradient(params, lambdas, clone(state.buffers), data, graph=True)
            train = self._with_penalty(gradient, params, lambdas)
        return (
            lambda vector: vjp([(train, vector)], params, retain=True)[0],
            lambda vector: vjp([(train, vector)], lambdas, retain=True)[0],
        )

    # Inner workings

    def _train_gradient(self, params: Params, hyper: Params, buffers: Params, data: StepData, *, graph: bool) -> Params:
        self._seed(data.keys[0] if data.keys else None)
        with torch.enable_grad(), _second_order(graph):
            return self._risk_gradient(self.problem.train_risk, (params, hyper, buffers), data.train, graph=graph)

    def _risk_gradient(
        self, risk: Callable[..., Tensor], at: tuple[Params, Params, Params], batch: Batch, *, graph: bool
    ) -> Params:
        """Return the θ-gradient of a risk at (θ, λ, buffers); ranks that share the mini-batch add up their parts."""
        params, hyper, buffers = at
        if self.ranks.shards == 1:
            return _gradient(risk(params, hyper, buffers, batch), params, graph=graph)
        part, weight = share(batch, self.ranks.shard, self.ranks.shards)
        here, lambdas = spread(self.ranks, params, hyper) if graph else (params, hyper)
        return collect(self.ranks, _gradient(weight * risk(here, lambdas, buffers, part), here, graph=graph))

    def _pair(self, params: Params, hyper: Params, buffers: Params, data: StepData, *, graph: bool) -> GradientPair:
        """Return the two gradients, the second on a stream of its own where there is one."""
        after, second = clone(buffers), Params()
        if self.objective.has_path:
            with _beside(self.side):
                second = self._second_gradient(params, hyper, buffers, data, graph=graph)
        gradient = self._train_gradient(params, hyper, after, data, graph=graph)
        if self.side is not None and self.objective.has_path:
            torch.cuda.current_stream().wait_stream(self.side)
        return GradientPair(gradient, second, after)

    def _needs_graph(self, *, by_hyper: bool, by_params: bool) -> bool:
        """Whether the gradients themselves have to be differentiated."""
        if not self.objective.has_path or self._loss_cancels:
            return False
        return by_params or (by_hyper and self.problem.enters_losses)

    @property
    def _loss_cancels(self) -> bool:
        """Whether the two gradients differ by the penalty alone, as under λ and λ0 of a weight decay."""
        return self.objective.compares_default and not self.problem.enters_losses

    def _second_gradient(
        self, params: Params, hyper: Params, buffers: Params, data: StepData, *, graph: bool
    ) -> Params:
        """Return the gradient that ∇R_T is compared with, without a penalty."""
        if self.objective.compares_default and not self._loss_cancels:
            return self._train_gradient(params, self._default, clone(buffers), data, graph=graph)
        if not self.objective.uses_valid_gradient:
            return zeros_like(params)
        self._seed(data.keys[1] if data.keys else None)
        with torch.enable_grad(), _second_order(graph):
            at = (params, hyper, clone(buffers))
            return self._risk_gradient(self.problem.valid_risk, at, data.valid, graph=graph)

    def _compared(self, first: Params, second: Params, params: Params, hyper: Params) -> tuple[Params, Params]:
        """Return the two gradients of the summand; what is the same in both is left out where it cancels."""
        if not self.objective.compares_default:
            return self._with_penalty(first, params, hyper), second
        if self._loss_cancels:
            first = second = zeros_like(params)
        return self._with_penalty(first, params, hyper), self._with_penalty(second, params, self._default)

    @property
    def _default(self) -> Params:
        assert self.default_hyper is not None
        return self.default_hyper

    def _with_penalty(self, gradient: Params, params: Params, hyper: Params) -> Params:
        if not self.problem.has_penalty:
            return gradient
        return add(gradient, self.problem.penalty_gradient(params, hyper))

    def _factors(self, params: Params, hyper: Params) -> Params:
        return self.problem.learning_rates(params, hyper) if self.problem.has_learning_rates else {}

    def _numbers(self, state: InnerState, data: StepData) -> Mapping[str, Number]:
        return self.dynamics.numbers(state.step) if data.numbers is None else data.numbers

    def _measure(self, train: Params, valid: Params, context: PathContext, *, by_valid: bool = True) -> Measured:
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
        eta = self._numbers(state, data)["lr"]
        tau = self.dynamics.inverse_temperature_or_none()
        return PathContext(eta, factors, self.problem.train.rows, self.problem.valid.rows, tau)

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
        penalty = (lambda at: self.problem.penalty_gradient(at, hyper)) if self.problem.has_penalty else None
        factors = self._factors(state.params, hyper)
        numbers = self._numbers(state, data)
        inputs = StepInputs(gradient, penalty, factors, data.noise, numbers, donated=donated)
        return dynamics.step(state.params, state.slots, inputs)

    def _seed(self, key: int | None) -> None:
        if self.stochastic and key is not None:
            seed_forward(self.problem.device, key)


def _gradient(risk: Tensor, params: Params, *, graph: bool) -> Params:
    """Return the gradient of a risk; a parameter that the risk does not use gets zeros."""
    if not risk.requires_grad:
        raise GradientError(
            "a loss does not depend on the model's parameters; compute it from the model's output as a tensor, "
            "without .item(), .detach() or no_grad()"
        )
    whole = risk.sum() if risk.ndim else risk  # the risks of many runs do not depend on each other
    found = torch.autograd.grad(whole, list(params.values()), create_graph=graph, allow_unused=True)
    return split(found, params)[0]


def _plain(tree: Params) -> Params:
    return {name: value.detach() for name, value in tree.items()}


def _without_graph(context: PathContext) -> PathContext:
    return context._replace(factors=_plain(context.factors))


@contextmanager
def _beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Run on a stream that starts where the present one is."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield


def _second_order(graph: bool) -> AbstractContextManager[None]:
    """Fused attention has no double backward: inside second-order code only the plain kernel is allowed."""
    return sdpa_kernel(SDPBackend.MATH) if graph else nullcontext()
