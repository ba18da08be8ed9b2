"""The eager engine: one round of T inner steps for every chain, plain autograd, any model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.hypergradient.base import Estimator, Running, Tape
from pactune.hypergradient.trajectory import InnerState, Record, Tick, Trajectory
from pactune.streams import forked_rng
from pactune.trees import Params, add, axpy, clone, scale, zeros_like

__all__ = ["Outcome", "Plan", "run_round"]

Ticks = Callable[[int], Sequence[Tick]]


@dataclass(frozen=True)
class Plan:
    """How a round is run.

    Attributes:
        trajectory: the pure functions.
        inner_steps: T.
        zeta: ζ as a number; only the online algorithm uses it inside a round.
        risk_estimator: how the risk at θ_T is differentiated.
        path_estimator: how the regularizer is differentiated.
        derivatives: False runs and measures without any λ-derivative.
    """

    trajectory: Trajectory
    inner_steps: int
    zeta: float
    risk_estimator: Estimator
    path_estimator: Estimator
    derivatives: bool = True


class Outcome(NamedTuple):
    """What a round gives.

    Attributes:
        states: the state of every chain at θ_T.
        risk: mean over chains of the risk at θ_T.
        regularizer: √Y, the root of the sum along the trajectory.
        risk_gradient: the λ-gradient of the risk, empty without derivatives.
        path_gradient: the λ-gradient of √Y, empty without derivatives or a path term, and in the online algorithm.
    """

    states: list[InnerState]
    risk: Tensor
    regularizer: Tensor
    risk_gradient: Params
    path_gradient: Params

    def gradient(self, zeta: float) -> Params:
        """Return the λ-gradient of J = risk + ζ√Y."""
        return axpy(zeta, self.path_gradient, self.risk_gradient) if self.path_gradient else self.risk_gradient


class _Chain:
    """One chain of a round."""

    def __init__(self, plan: Plan, state: InnerState, hyper: Params, drawn: Params | None) -> None:
        self.plan, self.state = plan, state
        self.tape = Tape(hyper, drawn, plan.inner_steps)
        self.total = torch.zeros((), dtype=plan.trajectory.problem.dtype, device=plan.trajectory.problem.device)
        self.risk_side: Running | None = None
        self.path_side: Running | None = None
        if plan.derivatives:
            self.risk_side = plan.risk_estimator.start(plan.trajectory, self.tape)
            if plan.trajectory.objective.has_path:
                same = plan.path_estimator == plan.risk_estimator
                self.path_side = self.risk_side if same else plan.path_estimator.start(plan.trajectory, self.tape)

    def step(self, tick: Tick, hyper: Params) -> tuple[Tensor | None, Params | None]:
        """Measure at θ_t, then move; return q_t and its λ-derivative where it is known at once."""
        trajectory, path = self.plan.trajectory, self.path_side
        record = Record(self.state, tick, hyper)
        by_params = path is not None and path.by_params
        if self._keeps_graph:
            linear = trajectory.linearize(record, graph=True)
            record, seen = record._replace(linear=linear), linear.observation()
        else:
            seen = trajectory.observe(self.state, hyper, tick, by_hyper=path is not None, by_params=by_params)
        found = path.observe(record, seen) if path is not None else None
        if seen.summand is not None:
            self.total = self.total + seen.summand
        self.state = trajectory.advance(self.state, hyper, tick, seen)
        self.tape.length += 1
        for side in {id(s): s for s in (self.risk_side, path) if s is not None}.values():
            side.moved(record)
        return seen.summand, found

    @property
    def _keeps_graph(self) -> bool:
        nothing_else = not self.plan.trajectory.objective.has_path
        return nothing_else and self.risk_side is not None and self.risk_side.keeps_graph

    def finish(self, hyper: Params, key: int | None) -> tuple[Tensor, Params]:
        """Return the risk at θ_T and its λ-derivative."""
        final = self.plan.trajectory.final_risk(self.state, hyper, key=key)
        gradient = self.risk_side.risk(final, self.state) if self.risk_side is not None else {}
        return final.value, gradient


def run_round(
    plan: Plan,
    states: Sequence[InnerState],
    hyper: Params,
    ticks: Ticks,
    *,
    drawn: Sequence[Params] | None = None,
    on_step: Callable[[Params], None] | None = None,
) -> Outcome:
    """Run T inner steps of every chain and return J's parts with the λ-gradient.

    Args:
        plan: how the round is run.
        states: where every chain starts.
        hyper: λ, sharing memory with the hyper module when `on_step` changes it.
        ticks: what every chain meets at step t of the round.
        drawn: the draws from P_0 when the chains start anew.
        on_step: the online algorithm: called at every step with the λ-derivative of ζ‖Δ_t‖, it may move λ in place.
    """
    starts = drawn if drawn is not None else [None] * len(states)
    chains = [_Chain(plan, state, hyper, start) for state, start in zip(states, starts, strict=True)]
    with forked_rng(plan.trajectory.problem.device):
        tick_list: Sequence[Tick] = []
        for t in range(plan.inner_steps):
            tick_list = ticks(t)
            current = clone(hyper) if on_step is not None else hyper
            seen = [chain.step(tick, current) for chain, tick in zip(chains, tick_list, strict=True)]
            if on_step is not None:
                on_step(_online_gradient(plan.zeta, seen, hyper))
        ends = [
            chain.finish(hyper, tick.keys[1] if tick.keys else None)
            for chain, tick in zip(chains, tick_list, strict=True)
        ]
    return _combine(plan, chains, ends, online=on_step is not None)


def _online_gradient(zeta: float, seen: Sequence[tuple[Tensor | None, Params | None]], hyper: Params) -> Params:
    """Return the mean over chains of ζ∇_λ‖Δ_t‖ (Algorithm C.2); 0 where Δ_t = 0."""
    total = zeros_like(hyper)
    for summand, gradient in seen:
        if summand is not None and gradient is not None:
            total = add(total, scale(zeta / len(seen) * _half_inverse_root(summand), gradient))
    return total


def _combine(plan: Plan, chains: list[_Chain], ends: list[tuple[Tensor, Params]], *, online: bool) -> Outcome:
    """Put the chains together: the mean of the risks, and the mean inside or outside the root."""
    risk = torch.stack([value for value, _ in ends]).mean()
    totals = torch.stack([chain.total for chain in chains])
    outside = plan.trajectory.objective.chain_mean == "outside"
    regularizer = totals.sqrt().mean() if outside else totals.mean().sqrt()
    risk_gradient = _mean([gradient for _, gradient in ends])
    path_gradient: Params = {}
    if not online:
        sides = [(chain.path_side, chain.total) for chain in chains if chain.path_side is not None]
        slopes = [_half_inverse_root(total if outside else totals.mean()) for _, total in sides]
        path_gradient = _mean([scale(slope, side.path()) for slope, (side, _) in zip(slopes, sides, strict=True)])
    return Outcome([chain.state for chain in chains], risk, regularizer, risk_gradient, path_gradient)


def _mean(trees: list[Params]) -> Params:
    """Return the mean of the trees, empty for none."""
    return scale(1 / len(trees), functools.reduce(add, trees)) if trees else {}


def _half_inverse_root(y: Tensor) -> Tensor:
    """Return the derivative 1/(2√y) of the root, and 0 at y = 0."""
    positive = y > 0
    return torch.where(positive, 0.5 / torch.where(positive, y, torch.ones_like(y)).sqrt(), torch.zeros_like(y))
