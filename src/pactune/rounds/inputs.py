"""The inputs of a run as functions of (seed, step, chain): mini-batches, noise and initial parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from pactune.dynamics.base import Dynamics
from pactune.errors import SettingError
from pactune.hypergradient.records import EstimatorInputs, InnerState, StepData
from pactune.problem import Problem
from pactune.problem.data import Batch, Source
from pactune.problem.statistics import fresh_statistics
from pactune.rounds.forwards import Forwards
from pactune.streams import Streams, forked_rng, seed_forward
from pactune.trees import Params, clone

__all__ = ["Initial", "RunInputs", "check_reset"]

Initial = Callable[[torch.Generator], Params]


@dataclass(frozen=True)
class RunInputs:
    """The mini-batches and the randomness of a run.

    A step depends only on (seed, step, chain). So a step can be replayed, two chains never share noise, and a resumed
    run needs no generator state.

    Attributes:
        problem: the data.
        dynamics: decides if noise is drawn.
        streams: the seed.
        forwards: what the forwards of a step do.
        initial: P_0 as a function of a generator; None calls `reset_parameters` of the model's modules.
        reader: the name of the run's reading position in sources that can only be read in order.
        compares: True if steps measure Δ_t. If not, no step reads validation rows: all get those of the first step.
    """

    problem: Problem
    dynamics: Dynamics
    streams: Streams
    forwards: Forwards
    initial: Initial | None = None
    reader: str = ""
    compares: bool = True

    def step_data(self, step: int, chains: int, mine: Iterable[int] | None = None) -> list[StepData]:
        """Return the data of each chain at one inner step. All chains get the same mini-batches.

        Args:
            step: the number of the inner step, counted over the whole run.
            chains: C.
            mine: the numbers of the chains of this rank; None for all.
        """
        train = self.problem.train.batch(step, self.streams, "train", self.reader)
        valid = self._valid_batch(step)
        numbers = range(chains) if mine is None else mine
        return [StepData(train, valid, self._noise(step, chain), self._keys(step, chain)) for chain in numbers]

    def for_estimator(
        self, round_index: int, chain: int, memory: Params, risk_batches: Iterable[Batch]
    ) -> EstimatorInputs:
        """Return the inputs of an estimator of one chain. All chains get the same fresh mini-batches."""

        def fresh(i: int, count: int) -> tuple[Batch, int | None]:
            index = round_index * count + i
            key = self.streams.key("fresh forward", chain, index) if self.forwards.stochastic else None
            return self.problem.train.batch(index, self.streams, "fresh", f"{self.reader} fresh"), key

        def generator(name: str) -> torch.Generator:
            return self.streams.generator("estimator", name, round_index, chain)

        return EstimatorInputs(memory, fresh, generator, risk_batches, round_index)

    def risk_batches(self, sample: Source, round_index: int) -> Iterable[Batch]:
        """Return the rows of a sample on which a round computes the risk at θ_T. All chains get the same rows."""
        return sample.risk_batches(round_index, self.streams, self.reader)

    def _valid_batch(self, step: int) -> Batch:
        source = self.problem.valid
        if self.compares or self.problem.has_tasks or source.steady or not source.replayable:
            return source.batch(step, self.streams, "valid", self.reader)
        return self._first_valid

    @cached_property
    def _first_valid(self) -> Batch:
        return self.problem.valid.batch(0, self.streams, "valid", self.reader)

    def draw(self, round_index: int, chain: int) -> Params:
        """Return θ_0 ~ P_0; the model's parameters if hyperparameters give θ_0 without a draw."""
        if not self.problem.draws_initial:
            return clone(self.problem.parameters())
        if self.initial is not None:
            return self._checked(self._drawn(self.streams.generator("initial", round_index, chain)))
        return self._reset(self.streams.key("initial", round_index, chain))

    def begin(self, params: Params, buffers: Params) -> InnerState:
        """Return the state at θ_0."""
        owned = clone(params)
        return InnerState(owned, self.dynamics.slots(owned), clone(buffers), 0)

    def presented(self, state: InnerState) -> InnerState:
        """Return the state that users see: without slots, and at the average if the dynamics keeps one."""
        average = self.dynamics.average(state.slots)
        if average is None:
            return state._replace(slots={}) if state.slots else state
        return InnerState(average, {}, fresh_statistics(self.problem, average, state.buffers), state.step)

    def _noise(self, step: int, chain: int) -> Params | None:
        if not self.dynamics.uses_noise:
            return None
        generator = self.streams.generator("noise", chain, step, device=self.problem.device)
        return {
            name: torch.randn(p.shape, generator=generator, dtype=p.dtype, device=p.device)
            for name, p in self.problem.parameters().items()
        }

    def _keys(self, step: int, chain: int) -> tuple[int, int] | None:
        if not self.forwards.stochastic:
            return None
        return self.streams.key("train forward", chain, step), self.streams.key("valid forward", chain, step)

    def _reset(self, key: int) -> Params:
        """Draw θ_0 by the modules' `reset_parameters`, and leave the model unchanged.

        If a module has no such method and hyperparameters give θ_0, return the model's current parameters.
        """
        model = self.problem.model
        before = clone({**dict(model.named_parameters()), **self.problem.buffers()})
        if not check_reset(self.problem):
            return clone(self.problem.parameters())
        try:
            with forked_rng(self.problem.device):
                seed_forward(self.problem.device, key)
                for module in model.modules():
                    reset = getattr(module, "reset_parameters", None)
                    if callable(reset):
                        reset()
            return clone(self.problem.parameters())
        finally:
            _restore(model, before)

    def _drawn(self, generator: torch.Generator) -> object:
        assert self.initial is not None
        try:
            return self.initial(generator)
        except TypeError as error:
            raise SettingError(f"`initial` must be a function of a torch.Generator; it fails with: {error}") from error

    def _checked(self, drawn: object) -> Params:
        wanted, found = self.problem.parameters(), drawn if isinstance(drawn, Mapping) else {}
        wrong = [name for name in wanted if getattr(found.get(name), "shape", None) != wanted[name].shape]
        if wrong:
            raise SettingError(f"`initial` must return every parameter in its shape; missing or misshapen: {wrong}")
        return {name: found[name].to(value) for name, value in wanted.items()}


@torch.no_grad()
def _restore(model: nn.Module, values: Params) -> None:
    """Restore every parameter and buffer: `reset_parameters` also redraws frozen ones and hyperparameters."""
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        tensor.copy_(values[name])


def check_reset(problem: Problem) -> bool:
    """Return True if the modules' `reset_parameters` can draw θ_0, and False if hyperparameters give it instead.

    Raises:
        SettingError: neither is so.
    """
    missing = _without_reset(problem.model, set(problem.parameters()))
    if missing and not problem.has_initial:
        raise SettingError(
            f"θ_0 has to be drawn anew, but {', '.join(missing)} has no `reset_parameters`; "
            "pass `initial=`, a function from a torch.Generator to a dict of parameters"
        )
    return not missing


def _without_reset(model: nn.Module, names: set[str]) -> list[str]:
    """Return the modules that own some of θ but cannot re-initialise it."""
    return [
        f"{type(module).__name__} ({name or 'the model itself'})"
        for name, module in model.named_modules()
        if any((f"{name}.{own}" if name else own) in names for own, _ in module.named_parameters(recurse=False))
        and not callable(getattr(module, "reset_parameters", None))
    ]
