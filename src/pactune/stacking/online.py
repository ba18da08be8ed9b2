"""The online algorithm for stacked runs: each run's optimizer moves its own λ, by calls or by one rule for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pactune.rounds.online import OnlineRule, OnlineState, OnlineStep
from pactune.rounds.plan import RoundRequest
from pactune.trees import Params, detach, stack, unstack

__all__ = ["StackedOnlineSteps"]


class StackedOnlineSteps(OnlineStep):
    """Moves the λ of every run, and keeps the stack of them equal to it.

    Args:
        requests: the rounds that are stacked.
        stacked: λ of all chains.
    """

    def __init__(self, requests: Sequence[RoundRequest], stacked: Params) -> None:
        self._requests, self._stacked = requests, stacked
        self._steps = [request.on_step for request in requests if isinstance(request.on_step, OnlineStep)]
        self.rule = self._common_rule()

    def __call__(self, gradient: Params) -> None:
        """Let every run move its λ, by the mean over its chains, and copy it back into the stack."""
        index, parts = 0, unstack(gradient)
        for request in self._requests:
            assert request.on_step is not None
            count = len(request.states)
            request.on_step(request.plan.trajectory.ranks.mean(parts[index : index + count]))
            for name, value in request.hyper.items():
                self._stacked[name][index : index + count] = value
            index += count

    def state(self) -> OnlineState:
        """Return λ and the optimizers' tensors of all runs."""
        states = [step.state() for step in self._steps]
        slots = {slot: stack([state.slots[slot] for state in states]) for slot in states[0].slots}
        return OnlineState(detach(self._stacked), slots, torch.stack([state.zeta for state in states]))

    @torch.no_grad()
    def load(self, state: OnlineState, steps: int) -> None:
        """Continue from a state of all runs."""
        hypers, slots = unstack(state.hyper), {slot: unstack(values) for slot, values in state.slots.items()}
        for index, step in enumerate(self._steps):
            own = {slot: values[index] for slot, values in slots.items()}
            step.load(OnlineState(hypers[index], own, state.zeta[index]), steps)
        for name, value in self._stacked.items():
            value.copy_(state.hyper[name])

    def _common_rule(self) -> OnlineRule | None:
        """Return the rule if all runs have the same one, and if the λ of each depends on one chain alone."""
        alone = all(len(one.states) == 1 and one.plan.trajectory.ranks.count == 1 for one in self._requests)
        rules = [step.rule for step in self._steps]
        same = len(rules) == len(self._requests) and all(rule == rules[0] for rule in rules)
        return rules[0] if alone and same else None
