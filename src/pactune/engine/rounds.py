"""One round of T inner steps for every chain, and how the chains are put together."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from pactune.engine.base import Engine, Track
from pactune.engine.chain import Chain, ChainEnd
from pactune.engine.eager import Eager
from pactune.engine.plan import Job, Outcome, Plan
from pactune.hypergradient.explain import explaining
from pactune.hypergradient.records import Tick
from pactune.interrupts import check_interrupt
from pactune.streams import GLOBAL_STATE, forked_rng
from pactune.trees import Params, clone, scale, zeros_like

__all__ = ["combine", "run_chains", "run_round"]


def run_round(job: Job, engine: Engine | None = None) -> Outcome:
    """Run T inner steps of every chain and return J's parts with the λ-gradient."""
    (ends,) = run_chains([job], engine or Eager())
    return combine(job.plan, ends, online=job.on_step is not None)


def run_chains(jobs: Sequence[Job], engine: Engine) -> list[list[ChainEnd]]:
    """Run the rounds of several jobs, whose first steps the engine may run side by side.

    Returns:
        The ends of every chain, job by job.
    """
    rounds = [_Round(job) for job in jobs]
    plan, problem = jobs[0].plan, jobs[0].plan.trajectory.problem
    stochastic = any(job.plan.trajectory.stochastic for job in jobs)
    forked = forked_rng(problem.device) if stochastic else nullcontext()
    with GLOBAL_STATE, forked, explaining(plan.risk_estimator, plan.path_estimator):
        done = _run_ahead(rounds, engine)
        return [one.run(done) for one in rounds]


def _run_ahead(rounds: list[_Round], engine: Engine) -> int:
    steps = min(0 if one.job.on_step is not None else one.job.plan.ahead for one in rounds)
    return engine.run_ahead([track for one in rounds for track in one.tracks()], steps) if steps else 0


class _Round:
    """The chains of one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        starts = job.drawn if job.drawn is not None else [None] * len(job.states)
        pairs = zip(job.states, starts, strict=True)
        self._chains = [Chain(job.plan, state, job.hyper, start, job.phase) for state, start in pairs]

    def tracks(self) -> list[Track]:
        """Return the chains with what each of them meets."""
        ticks = [functools.partial(self._tick, index) for index in range(len(self._chains))]
        return [Track(chain, tick, self.job.position) for chain, tick in zip(self._chains, ticks, strict=True)]

    def _tick(self, chain: int, t: int) -> Tick:
        return self.job.ticks(t)[chain]

    def run(self, start: int) -> list[ChainEnd]:
        """Run the steps from `start` on."""
        job = self.job
        keys: list[int | None] = [None] * len(self._chains)
        for t in range(start, job.plan.inner_steps):
            check_interrupt()
            ticks = job.ticks(t)
            current = clone(job.hyper) if job.on_step is not None else job.hyper
            seen = [chain.step(tick, current) for chain, tick in zip(self._chains, ticks, strict=True)]
            if job.on_step is not None and self._chains[0].measures(t):
                job.on_step(_online_gradient(job.plan, seen, job.hyper))
            keys = [tick.keys[1] if tick.keys else None for tick in ticks]
        return [chain.finish(key) for chain, key in zip(self._chains, keys, strict=True)]


def _online_gradient(plan: Plan, seen: Sequence[tuple[Tensor | None, Params | None]], hyper: Params) -> Params:
    """Return the mean over chains of ∇_λ‖Δ_t‖ (Algorithm C.2); 0 where Δ_t = 0."""
    parts = [
        scale(plan.path_stride * half_inverse_root(summand), gradient)
        if summand is not None and gradient is not None
        else zeros_like(hyper)
        for summand, gradient in seen
    ]
    return plan.trajectory.team.mean(parts)


def combine(plan: Plan, ends: Sequence[ChainEnd], *, online: bool) -> Outcome:
    """Put the chains of all ranks together: the mean of the risks, and the mean inside or outside the root."""
    team = plan.trajectory.team
    risk = team.mean_value(torch.stack([end.risk for end in ends]))
    totals = torch.stack([end.total for end in ends])
    outside = plan.trajectory.objective.chain_mean == "outside"
    mean = team.mean_value(totals.sqrt() if outside else totals)
    path_gradient: Params = {}
    if not online and ends[0].path_gradient:
        slopes = [half_inverse_root(end.total if outside else mean) for end in ends]
        path_gradient = team.mean([scale(slope, end.path_gradient) for slope, end in zip(slopes, ends, strict=True)])
    risk_gradient = team.mean([end.risk_gradient for end in ends])
    regularizer = mean if outside else mean.sqrt()
    notes = team.mean([dict(end.notes) for end in ends])
    return Outcome([end.state for end in ends], risk, regularizer, risk_gradient, path_gradient, notes)


def half_inverse_root(y: Tensor) -> Tensor:
    """Return the derivative 1/(2√y) of the root, and 0 at y = 0."""
    positive = y > 0
    return torch.where(positive, 0.5 / torch.where(positive, y, torch.ones_like(y)).sqrt(), torch.zeros_like(y))
