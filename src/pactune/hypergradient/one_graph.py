"""Short unrolls of small models: the last steps of a round inside one autograd graph, as in a loop by hand."""

from __future__ import annotations

import torch

from pactune.hypergradient.adjoints import pull_back_initial, vjp
from pactune.hypergradient.base import ChainContext
from pactune.hypergradient.records import MOST_NUMBERS, InnerState, StepData
from pactune.hypergradient.trajectory import Trajectory
from pactune.nested import tensors_in
from pactune.trees import Params, add, detach, leaves

__all__ = ["OneGraph", "fits_in_one_graph"]


def fits_in_one_graph(trajectory: Trajectory, state: InnerState, data: StepData, steps: int) -> bool:
    """Return True if some steps are small enough for one graph, and if a graph does not change their numbers.

    The graph keeps the results of every operation of all steps. `StoredSteps` keeps less, and runs every step twice. A
    single step whose loss does not contain λ needs no graph at all.
    """
    if not trajectory.dynamics.same_in_graph or trajectory.ranks.shards > 1 or trajectory.objective.has_path:
        return False
    if steps < 1 or (steps == 1 and not (trajectory.problem.enters_losses or trajectory.problem.has_initial)):
        return False
    tensors = [*state.params.values(), *tensors_in(data.train.data)]
    return steps * sum(tensor.numel() for tensor in tensors) <= MOST_NUMBERS


class OneGraph:
    """The last steps of a chain in one autograd graph.

    Args:
        trajectory: the pure functions.
        context: λ, and the draw from P_0.
        state: the state before the first of the steps.
    """

    def __init__(self, trajectory: Trajectory, context: ChainContext, state: InnerState) -> None:
        self._trajectory, self._context = trajectory, context
        self._into_start = context.length == 0 and context.drawn is not None and trajectory.problem.has_initial
        self._start, self._hyper = leaves(state.params), leaves(context.hyper)
        self._state = state._replace(params=self._start)

    def step(self, data: StepData) -> InnerState:
        """Take a step; return the state after it, outside the graph."""
        with torch.enable_grad():
            self._state = self._trajectory.replay(self._state, self._hyper, data)
        params, slots, buffers, step = self._state
        slots = {slot: detach(values) for slot, values in slots.items()}
        return InnerState(detach(params), slots, detach(buffers), step)  # a forward may assign buffers in the graph

    def pull_back(self, by_params: Params) -> Params:
        """Return the λ-derivative that belongs to a derivative with respect to the last iterate; call it once."""
        wanted = [self._hyper, *([self._start] if self._into_start else [])]
        by_hyper, *by_start = vjp([(self._state.params, by_params)], *wanted)
        if not by_start or self._context.drawn is None:
            return by_hyper
        start = pull_back_initial(self._trajectory.problem, self._context.drawn, self._context.hyper, by_start[0])
        return add(by_hyper, start)
