"""A whole round of a chain as one function from tensors to tensors, for rounds that estimators follow step by step."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.engines.layout import TreeLayout, flatten
from pactune.engines.segment import SegmentData, SegmentReader, recording_obstacle
from pactune.hypergradient.records import EstimatorInputs, InnerState
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.data import Batch
from pactune.problem.data.joined import first_of_stack
from pactune.rounds.chain import Chain, ChainEnd
from pactune.rounds.engine import RoundChain
from pactune.rounds.plan import RoundPlan
from pactune.trees import Params, clone

__all__ = ["RoundData", "RoundStart", "WholeRound", "estimator_obstacle", "probe", "read_round", "whole_round_obstacle"]

FEW_STEPS = (
    20  # T of the longest round that is recorded as soon as the engine records; it takes time in proportion to T
)
MANY_ROUNDS = 100  # rounds after which a longer one is recorded: recording takes about as long as so many of them
MOST_STEPS = 200  # T of the longest round that is recorded as a whole
MOST_NUMBERS = 2**22  # of θ and of the rows of all steps; a recorded round keeps all its intermediate results


class RoundStart(NamedTuple):
    """Where a round starts: the state of the chain, the draw from P_0 if it is θ_0, and the estimator's memory."""

    state: InnerState
    drawn: Params | None
    memory: Params


class RoundData(NamedTuple):
    """The data of a round: those of its steps, the rows of the risk at θ_T, and the estimator's fresh mini-batches."""

    steps: SegmentData
    final: list[Batch]
    fresh: list[Batch]

    def estimator_inputs(self, memory: Params, round_index: int) -> EstimatorInputs:
        """Return the inputs of an estimator that can be recorded; it draws no random numbers."""
        return EstimatorInputs(
            memory, lambda i, _: (self.fresh[i], None), lambda _: torch.Generator("cpu"), self.final, round_index
        )


class WholeRound:
    """A round as a pure function of (start, λ, data). It returns the end of the chain, and the values of `probe`.

    Args:
        plan: the settings of the round.
        measured: one flag per step, True if Δ_t is measured.
        phase: the first step at which Δ_t is measured.
        round_index: the number of rounds of the run before this one; None if the round belongs to no run.

    Attributes:
        result: the layout of the result; None before the first call.
    """

    def __init__(self, plan: RoundPlan, measured: tuple[bool, ...], phase: int, round_index: int | None = None) -> None:
        self._plan, self.measured, self._phase, self._round_index = plan, measured, phase, round_index
        self._rows = _rows(plan.trajectory)
        self.result: TreeLayout | None = None

    @classmethod
    def of(cls, chain: Chain) -> WholeRound:
        """Return the round of a chain that stands at its start."""
        measured = tuple(chain.measures(t) for t in range(chain.plan.inner_steps))
        return cls(chain.plan, measured, chain.phase, None if chain.inputs is None else chain.inputs.round_index)

    @property
    def trajectory(self) -> Trajectory:
        """The pure functions of a step."""
        return self._plan.trajectory

    def __call__(self, start: RoundStart, hyper: Params, data: RoundData) -> tuple[ChainEnd, list[Tensor]]:
        """Run the round."""
        end = self.run(start, hyper, data)
        state = end.state._replace(step=start.state.step)  # the engine counts the steps
        found = end._replace(state=state), probe(self.trajectory, start, hyper, data)
        self.result = flatten(found)[1]
        return found

    def run(self, start: RoundStart, hyper: Params, data: RoundData) -> ChainEnd:
        """Run the steps as Python code; return the end of the chain."""
        inputs = None if self._round_index is None else data.estimator_inputs(start.memory, self._round_index)
        chain = Chain(self._plan, start.state, hyper, start.drawn, self._phase, inputs)
        for step_data in data.steps.step_data(len(self.measured)):
            chain.step(step_data, hyper)
        return chain.finish(data.final)

    def is_same_function(self, other: object) -> bool:
        """Return True if two rounds compute the same function."""
        if not isinstance(other, WholeRound):
            return False
        a, b, plan, others = self.trajectory, other.trajectory, self._plan, other._plan
        same = a.problem is b.problem and a.objective is b.objective and a.default_hyper is b.default_hyper
        estimators = (plan.risk_estimator, plan.path_estimator) == (others.risk_estimator, others.path_estimator)
        flags = (self.measured, self._phase, self._rows) == (other.measured, other._phase, other._rows)
        return same and a.dynamics == b.dynamics and estimators and flags


def _rows(trajectory: Trajectory) -> tuple[int, int]:
    return trajectory.problem.train.rows, trajectory.problem.valid.rows


def probe(trajectory: Trajectory, start: RoundStart, hyper: Params, data: RoundData) -> list[Tensor]:
    """Return both risks at θ_0, and what the hooks of the hyperparameters return there.

    An engine compares these values of a recording with those of the present functions. They differ if a loss, a model
    or a hook has come to depend on something else since it was recorded. Of stacked runs, the first one is asked.
    """
    problem, stacked = trajectory.problem.members[0], bool(trajectory.problem.runs)
    params, buffers, drawn, own = (_first(tree, stacked) for tree in (*start.state[:3:2], start.drawn or {}, hyper))
    with torch.no_grad():
        found = [
            problem.train_risk(params, own, clone(buffers), first_of_stack(data.steps.train[0])),
            problem.valid_risk(params, own, clone(buffers), first_of_stack(data.final[0])),
        ]
        if problem.has_penalty:
            found += problem.penalty_gradient(params, own).values()
        if problem.has_prox:
            found += problem.prox(params, dict.fromkeys(params, 1.0), own).values()
        if problem.has_learning_rates:
            found += problem.learning_rates(params, own).values()
        if problem.has_initial and start.drawn is not None:
            found += problem.initial(drawn, own).values()
    return [value.detach() for value in found]


def _first(tree: Params, stacked: bool) -> Params:
    return {name: value.select(0, 0) for name, value in tree.items()} if stacked else tree


def read_round(round_chain: RoundChain) -> tuple[RoundStart, RoundData]:
    """Return the start and the data of the round of a chain. The step count of the start is 0, as in a recording."""
    chain = round_chain.chain
    steps, start = chain.plan.inner_steps, chain.carry.state._replace(step=0)
    data, inputs, count = SegmentReader(round_chain, 0, steps).read(0, steps), chain.inputs, _fresh_batches(chain.plan)
    fresh = [] if inputs is None else [inputs.fresh(i, count)[0] for i in range(count)]
    memory = {} if inputs is None else inputs.memory
    return RoundStart(start, chain.drawn, memory), RoundData(data, list(round_chain.risk_batches), fresh)


def _fresh_batches(plan: RoundPlan) -> int:
    """Return the number of fresh mini-batches that a round reads; with all rows at every step there are none."""
    steady = plan.trajectory.problem.train.steady or not plan.derivatives
    return 0 if steady else plan.risk_estimator.fresh_batches


def estimator_obstacle(chain: Chain) -> str | None:
    """Return why the estimators cannot be recorded in this round; None if they can."""
    plan, problem = chain.plan, chain.plan.trajectory.problem
    index = None if chain.inputs is None else chain.inputs.round_index
    for estimator in (plan.risk_estimator, *([plan.path_estimator] if plan.trajectory.objective.has_path else [])):
        if not estimator.recordable(problem, index):
            return f"{type(estimator).__name__} looks at numbers, and a recording has none"
    return None


def whole_round_obstacle(round_chain: RoundChain) -> str | None:
    """Return why a round cannot be recorded as a whole; None if it can."""
    if round_chain.chain.plan.inner_steps > FEW_STEPS and (reason := _long_round_obstacle(round_chain)):
        return reason
    if len(list(islice(round_chain.risk_batches, 2))) > 1:
        return "the risk at θ_T is computed batch by batch"
    return recording_obstacle(round_chain)


def _long_round_obstacle(round_chain: RoundChain) -> str | None:
    """Return why a round of many steps is not recorded; None if it is."""
    chain, steps = round_chain.chain, round_chain.chain.plan.inner_steps
    if chain.plan.skippable_steps:
        return f"the first steps of a round of {steps} steps are recorded by themselves"
    if steps > MOST_STEPS or round_chain.position < MANY_ROUNDS * steps:
        return f"a round of {steps} steps takes long to record"
    data = round_chain.step_data_at(0)
    tensors = flatten((chain.carry.state.params, data.train, data.valid))[0]
    if steps * sum(tensor.numel() for tensor in tensors) > MOST_NUMBERS:
        return f"a recorded round of {steps} steps would keep too many intermediate results"
    return None
