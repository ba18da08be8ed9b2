"""Run one round of T inner steps for every chain, and combine the chains."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext

import torch

from pactune.hypergradient.explain import explaining
from pactune.hypergradient.records import StepData
from pactune.interrupts import check_interrupt
from pactune.problem.tensor_slots import without_cast_cache
from pactune.rounds.chain import Chain, ChainEnd
from pactune.rounds.engine import Engine, RoundChain
from pactune.rounds.online import OnlineStep, half_inverse_root, root_gradients
from pactune.rounds.plan import RoundOutcome, RoundPlan, RoundRequest
from pactune.streams import GLOBAL_STATE, forked_rng
from pactune.trees import Params, clone, scale

__all__ = ["combine", "run_chains", "run_round"]


def run_round(request: RoundRequest, engine: Engine | None = None) -> RoundOutcome:
    """Run T inner steps of every chain; return the parts of J with their λ-gradients."""
    (ends,) = run_chains([request], engine)
    return combine(request.plan, ends, online=request.on_step is not None)


def run_chains(requests: Sequence[RoundRequest], engine: Engine | None) -> list[list[ChainEnd]]:
    """Run the rounds of several requests. The engine may run their first steps and their ends side by side.

    Returns:
        The ends of the chains of each request.
    """
    rounds = [_Round(request) for request in requests]
    plan, problem = requests[0].plan, requests[0].plan.trajectory.problem
    stochastic = any(request.plan.trajectory.stochastic for request in requests)
    forked = forked_rng(problem.device) if stochastic else nullcontext()
    explained = explaining(plan.risk_estimator, plan.path_estimator)
    with GLOBAL_STATE, forked, without_cast_cache(problem.device), explained:
        ends = _run_ends(rounds, engine, 0)
        rest = [one for one in rounds if one not in ends]
        done = _run_first_steps(rest, engine)
        if done:
            ends |= _run_ends([one for one in rest if one.request.plan.skippable_steps == done], engine, done)
        return [ends[one] if one in ends else one.run(done) for one in rounds]


def _run_first_steps(rounds: list[_Round], engine: Engine | None) -> int:
    """Let the engine run the first steps of all rounds; return how many it has run."""
    if engine is None or not rounds:
        return 0
    steps = min(one.skippable_steps for one in rounds)
    round_chains = [round_chain for one in rounds for round_chain in one.round_chains()]
    return engine.run_first_steps(round_chains, steps) if steps else 0


def _run_ends(rounds: list[_Round], engine: Engine | None, first: int) -> dict[_Round, list[ChainEnd]]:
    """Let the engine run the rounds from step `first` on; return the ends of those that it has run."""
    offline = [one for one in rounds if one.request.on_step is None and one.request.plan.derivatives]
    if engine is None or not offline:
        return {}
    round_chains = [one.round_chains() for one in offline]
    found = iter(engine.run_ends([round_chain for own in round_chains for round_chain in own], first))
    ends = [[next(found) for _ in own] for own in round_chains]
    return {
        one: [end for end in own if end is not None]
        for one, own in zip(offline, ends, strict=True)
        if None not in own  # a round goes on as a whole
    }


class _Round:
    """The chains of one request."""

    def __init__(self, request: RoundRequest) -> None:
        assert request.on_step is None or request.plan.online
        self.request = request
        self._last_data: tuple[int, Sequence[StepData]] | None = None
        starts = request.drawn if request.drawn is not None else [None] * len(request.states)
        inputs = [None] * len(request.states) if request.estimator_inputs is None else request.estimator_inputs()
        parts = zip(request.states, starts, inputs, strict=True)
        self._chains = [
            Chain(request.plan, state, request.hyper, start, request.phase, own) for state, start, own in parts
        ]

    @property
    def skippable_steps(self) -> int:
        """The number of first steps that an engine may run. If chains share λ and move it, they run all steps."""
        alone = self.request.on_step is None or self._online is not None
        return self.request.plan.skippable_steps if alone else 0

    @property
    def _online(self) -> OnlineStep | None:
        """The step of λ if it is known as a function, and if it depends on a single chain."""
        known, plan = self.request.on_step, self.request.plan
        alone = len(self._chains) == 1 and plan.trajectory.ranks.count == 1
        return known if isinstance(known, OnlineStep) and known.rule is not None and alone else None

    def round_chains(self) -> list[RoundChain]:
        """Return the chains with their data."""
        request, online = self.request, self._online
        return [
            RoundChain(
                chain, functools.partial(self._step_data_at, index), request.risk_batches, request.position, online
            )
            for index, chain in enumerate(self._chains)
        ]

    def _step_data_at(self, chain: int, t: int) -> StepData:
        """Return the data of one chain; those of all chains are read together, and once."""
        if self._last_data is None or self._last_data[0] != t:
            self._last_data = t, self.request.step_data_at(t)
        return self._last_data[1][chain]

    def run(self, start: int) -> list[ChainEnd]:
        """Run the steps from `start` to T."""
        request = self.request
        keys: list[int | None] = [None] * len(self._chains)
        for t in range(start, request.plan.inner_steps):
            check_interrupt()
            step_data = request.step_data_at(t)
            current = clone(request.hyper) if request.on_step is not None else request.hyper
            measured = [chain.step(data, current) for chain, data in zip(self._chains, step_data, strict=True)]
            if request.on_step is not None and self._chains[0].measures(t):
                parts = root_gradients(request.plan.path_stride, measured, request.hyper)
                request.on_step(request.plan.trajectory.ranks.mean(parts))
            keys = [data.keys[1] if data.keys else None for data in step_data]
        return [chain.finish(request.risk_batches, key) for chain, key in zip(self._chains, keys, strict=True)]


def combine(plan: RoundPlan, ends: Sequence[ChainEnd], *, online: bool) -> RoundOutcome:
    """Combine the chains of all ranks: the mean of the risks, and the mean inside or outside the root."""
    ranks = plan.trajectory.ranks
    risk = ranks.mean_value(torch.stack([end.risk for end in ends]))
    totals = torch.stack([end.total for end in ends])
    outside = plan.trajectory.objective.chain_mean == "outside"
    mean = ranks.mean_value(totals.sqrt() if outside else totals)
    path_gradient: Params = {}
    if not online and ends[0].path_gradient:
        slopes = [half_inverse_root(end.total if outside else mean) for end in ends]
        path_gradient = ranks.mean([scale(slope, end.path_gradient) for slope, end in zip(slopes, ends, strict=True)])
    risk_gradient = ranks.mean([end.risk_gradient for end in ends])
    regularizer = mean if outside else mean.sqrt()
    notes = ranks.mean([dict(end.notes) for end in ends])
    states, memory = [end.state for end in ends], [dict(end.memory) for end in ends]
    return RoundOutcome(states, risk, regularizer, risk_gradient, path_gradient, notes, memory)
