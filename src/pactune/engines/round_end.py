"""The end of a round as one function from tensors to tensors: its last steps, or all of them, and the risk at θ_T."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pactune.engines.layout import TreeLayout, flatten
from pactune.engines.segment import SegmentData, SegmentReader, recording_obstacle
from pactune.hypergradient.records import EstimatorInputs
from pactune.hypergradient.trajectory import Trajectory
from pactune.problem.data import Batch
from pactune.problem.data.joined import first_of_stack
from pactune.rounds.chain import Carry, Chain, ChainEnd
from pactune.rounds.engine import RoundChain
from pactune.rounds.plan import RoundPlan
from pactune.trees import Params, clone, leaves

__all__ = [
    "FEW_STEPS",
    "RoundData",
    "RoundEnd",
    "RoundStart",
    "estimator_obstacle",
    "probe",
    "read_round",
    "round_end_obstacle",
]

FEW_STEPS = 20  # of the longest end that is recorded as soon as the engine records; it takes time in proportion to them
MANY_ROUNDS = 100  # rounds after which a longer end is recorded: recording takes about as long as so many of them
MOST_STEPS = 200  # of the longest end that is recorded
MOST_NUMBERS = 2**22  # of θ and of the rows of all steps; a recorded end keeps all its intermediate results


Graph = tuple[type, ...]  # the kinds of its nodes


class RoundStart(NamedTuple):
    """The place from which the end of a round runs.

    Attributes:
        carry: the state of the chain, and its sums so far.
        drawn: the draw from P_0 if the state is θ_0 and a function of λ; otherwise None.
        memory: the tensors that the estimator kept at the end of the last round.
    """

    carry: Carry
    drawn: Params | None
    memory: Params


class RoundData(NamedTuple):
    """The data of an end: those of its steps, the rows of the risk at θ_T, and the estimator's fresh mini-batches."""

    steps: SegmentData
    final: list[Batch]
    fresh: list[Batch]

    def estimator_inputs(self, memory: Params, round_index: int) -> EstimatorInputs:
        """Return the inputs of an estimator that can be recorded; it draws no random numbers."""
        return EstimatorInputs(
            memory, lambda i, _: (self.fresh[i], None), lambda _: torch.Generator("cpu"), self.final, round_index
        )


class RoundEnd:
    """The end of a round as a pure function of (start, λ, data): the steps from step `first` on and the risk at θ_T.

    A whole round is the end from its step 0 on. The function returns the end of the chain, and the values of `probe`.

    Args:
        plan: the settings of the round.
        first: the step of the round at which the end starts.
        measured: one flag per step of the end, True if Δ_t is measured.
        phase: the first step of the round at which Δ_t is measured.
        round_index: the number of rounds of the run before this one; None if the round belongs to no run.

    Attributes:
        result: the layout of the result; None before the first call.
        probed_graph: the autograd graph of the last eager `probe`.
    """

    def __init__(
        self, plan: RoundPlan, first: int, measured: tuple[bool, ...], phase: int, round_index: int | None = None
    ) -> None:
        self._plan, self._first, self.measured = plan, first, measured
        self._phase, self._round_index = phase, round_index
        self._rows = _rows(plan.trajectory)
        self.result: TreeLayout | None = None
        self.probed_graph: Graph = ()

    @classmethod
    def of(cls, chain: Chain, first: int = 0) -> RoundEnd:
        """Return the end of the round of a chain that stands at step `first` of the round."""
        measured = tuple(chain.measures(t) for t in range(first, chain.plan.inner_steps))
        return cls(chain.plan, first, measured, chain.phase, None if chain.inputs is None else chain.inputs.round_index)

    @property
    def trajectory(self) -> Trajectory:
        """The pure functions of a step."""
        return self._plan.trajectory

    def __call__(self, start: RoundStart, hyper: Params, data: RoundData) -> tuple[ChainEnd, list[Tensor]]:
        """Run the end of the round."""
        end = self.run(start, hyper, data)
        state = end.state._replace(step=start.carry.state.step)  # the engine counts the steps
        found = end._replace(state=state), probe(self.trajectory, start, hyper, data).values
        self.result = flatten(found)[1]
        return found

    def ask(self, start: RoundStart, hyper: Params, data: RoundData) -> list[Tensor]:
        """Probe the present functions; return the values and keep the graph."""
        values, self.probed_graph = probe(self.trajectory, start, hyper, data)
        return values

    def run(self, start: RoundStart, hyper: Params, data: RoundData) -> ChainEnd:
        """Run the steps as Python code; return the end of the chain."""
        inputs = None if self._round_index is None else data.estimator_inputs(start.memory, self._round_index)
        chain = Chain(self._plan, start.carry.state, hyper, start.drawn, self._phase, inputs)
        if self._first:
            sums, squares = clone(start.carry.sums), clone(start.carry.squares)  # steps add to them in place
            chain.continue_from(start.carry._replace(sums=sums, squares=squares), self._first)
        for step_data in data.steps.step_data(len(self.measured)):
            chain.step(step_data, hyper)
        return chain.finish(data.final)

    def is_same_function(self, other: object) -> bool:
        """Return True if two ends compute the same function."""
        if not isinstance(other, RoundEnd):
            return False
        a, b, plan, others = self.trajectory, other.trajectory, self._plan, other._plan
        same = a.problem is b.problem and a.objective is b.objective and a.default_hyper is b.default_hyper
        estimators = (plan.risk_estimator, plan.path_estimator) == (others.risk_estimator, others.path_estimator)
        strides = (plan.inner_steps, plan.path_stride) == (others.inner_steps, others.path_stride)
        flags = (self._first, self.measured, self._rows) == (other._first, other.measured, other._rows)
        return same and a.dynamics == b.dynamics and estimators and strides and flags


def _rows(trajectory: Trajectory) -> tuple[int, int]:
    return trajectory.problem.train.rows, trajectory.problem.valid.rows


class Probe(NamedTuple):
    """What the functions of an end give at its first θ.

    Attributes:
        values: both risks, and what the hooks of the hyperparameters return.
        graph: the operations in the autograd graphs of the risks.
    """

    values: list[Tensor]
    graph: Graph


def probe(trajectory: Trajectory, start: RoundStart, hyper: Params, data: RoundData) -> Probe:
    """Return both risks at the first θ of an end with their graphs, and what the hooks of the hyperparameters return.

    An engine compares these values of a recording with those of the present functions. They differ if a loss, a model
    or a hook has come to depend on something else since it was recorded. A part that is detached since then changes no
    value, but the graph. Of stacked runs, the first one is asked.
    """
    problem, stacked = trajectory.problem.members[0], bool(trajectory.problem.runs)
    state, drawn = start.carry.state, start.drawn or {}
    params, buffers, drawn, own = (_first(tree, stacked) for tree in (state.params, state.buffers, drawn, hyper))
    with torch.enable_grad():
        at = leaves(params), leaves(own) if problem.enters_losses else own
        found = [
            problem.train_risk(*at, clone(buffers), first_of_stack(data.steps.train[0])),
            problem.valid_risk(*at, clone(buffers), first_of_stack(data.final[0])),
        ]
        graph = tuple(itertools.chain.from_iterable(map(_operations, found)))
    with torch.no_grad():
        if problem.has_penalty:
            found += problem.penalty_gradient(params, own).values()
        if problem.has_prox:
            found += problem.prox(params, dict.fromkeys(params, 1.0), own).values()
        if problem.has_learning_rates:
            found += problem.learning_rates(params, own).values()
        if problem.has_initial and start.drawn is not None:
            found += problem.initial(drawn, own).values()
    return Probe([value.detach() for value in found], graph)


def _operations(value: Tensor) -> Iterator[type]:
    """Yield the operations in the autograd graph of a tensor, depth first."""
    left, seen = [value.grad_fn], set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield type(node)
            left += [parent for parent, _ in node.next_functions]


def _first(tree: Params, stacked: bool) -> Params:
    return {name: value.select(0, 0) for name, value in tree.items()} if stacked else tree


def read_round(round_chain: RoundChain, first: int = 0) -> tuple[RoundStart, RoundData]:
    """Return the start and the data of the end of a round. The step count of the start is 0, as in a recording.

    Args:
        round_chain: a chain that stands at step `first` of its round.
        first: the first step of the end.
    """
    chain, inputs, count = round_chain.chain, round_chain.chain.inputs, _fresh_batches(round_chain.chain.plan)
    stop = chain.plan.inner_steps
    data = SegmentReader(round_chain, first, stop).read(first, stop - first)
    fresh = [] if inputs is None else [inputs.fresh(i, count)[0] for i in range(count)]
    memory = {} if inputs is None else inputs.memory
    drawn = chain.drawn if first == 0 and chain.plan.trajectory.problem.has_initial else None
    return RoundStart(chain.carry.at_start(), drawn, memory), RoundData(data, list(round_chain.risk_batches), fresh)


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


def round_end_obstacle(round_chain: RoundChain, first: int = 0) -> str | None:
    """Return why the end of a round, from step `first` on, cannot be recorded; None if it can."""
    if round_chain.chain.plan.inner_steps - first > FEW_STEPS and (reason := _long_end_obstacle(round_chain, first)):
        return reason
    if len(list(itertools.islice(round_chain.risk_batches, 2))) > 1:
        return "the risk at θ_T is computed batch by batch"
    return recording_obstacle(round_chain, first)


def _long_end_obstacle(round_chain: RoundChain, first: int) -> str | None:
    """Return why an end of many steps is not recorded; None if it is."""
    chain, steps = round_chain.chain, round_chain.chain.plan.inner_steps - first
    if chain.plan.skippable_steps:
        return f"the first steps of a round of {chain.plan.inner_steps} steps are recorded by themselves"
    if steps > MOST_STEPS or round_chain.position < MANY_ROUNDS * steps:
        return f"an end of {steps} steps takes long to record"
    data = round_chain.step_data_at(first)
    tensors = flatten((chain.carry.state.params, data.train, data.valid))[0]
    if steps * sum(tensor.numel() for tensor in tensors) > MOST_NUMBERS:
        return f"a recorded end of {steps} steps would keep too many intermediate results"
    return None
