"""What the forwards of a step do: if they draw random numbers, and how much they compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from pactune.problem import Problem
from pactune.problem.data import Source
from pactune.rounds.replay import check_replay
from pactune.rounds.stand_ins import check_stand_ins
from pactune.streams import forked_rng, seed_forward
from pactune.trees import clone

__all__ = ["Forwards", "try_forwards"]

PASSES = 100  # operations of the forwards of a step that cost as much as its passes over one element of θ


class Forwards(NamedTuple):
    """What the training and the validation forward of a step do.

    Attributes:
        stochastic: True if they draw random numbers.
        operations: the floating-point operations of both on a mini-batch; infinite if they cannot be counted, or if
            they do not run on the CPU.
        rows: the rows of both mini-batches.
        parameters: the number of elements of θ.
    """

    stochastic: bool
    operations: float = math.inf
    rows: int = 1
    parameters: int = 0

    @property
    def work_of_step(self) -> float:
        """The forwards of a step and the passes over θ, in floating-point operations."""
        return self.operations + PASSES * self.parameters

    def work_on(self, sources: Iterable[Source]) -> float:
        """Return the floating-point operations of a forward of all rows; infinite if their number is unknown."""
        sizes = [source.size for source in sources]
        return sum(math.inf if size is None else self.operations * size / max(self.rows, 1) for size in sizes)


def try_forwards(problem: Problem) -> Forwards:
    """Run each risk once, compare the global generators, and count the operations.

    The function restores the generators and the training flags.

    Raises:
        SettingError: a step gives another result when it is run again, or with other tensors in place of parameters.
    """
    check_replay(problem)
    check_stand_ins(problem)
    device, params, hyper = problem.device, problem.parameters(), problem.hyperparameters()
    train, valid = problem.train.first(), problem.valid.first()
    rows, parameters = train.rows + valid.rows, sum(value.numel() for value in params.values())

    def run() -> None:
        problem.train_risk(params, hyper, clone(problem.buffers()), train)
        problem.valid_risk(params, hyper, clone(problem.buffers()), valid)

    with forked_rng(device), problem.training_mode(), torch.no_grad():
        seed_forward(device, 0)
        before = [generator.get_state() for generator in _generators(device)]
        operations = _counted(run) if device.type == "cpu" else _uncounted(run)
        after = [generator.get_state() for generator in _generators(device)]
    stochastic = any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    # The counter does not know the kernels of recurrent layers. Most models use every parameter for every row.
    return Forwards(stochastic, max(operations, 2 * parameters * rows), rows, parameters)


def _counted(run: Callable[[], None]) -> float:
    """Run a function and return the floating-point operations of its products; infinite if they cannot be counted."""
    try:
        with FlopCounterMode(display=False) as counter:
            run()
    except Exception:  # a user's function may not run under the counter; a mistake in it is raised below
        return _uncounted(run)
    return float(counter.get_total_flops())


def _uncounted(run: Callable[[], None]) -> float:
    run()
    return math.inf


def _generators(device: torch.device) -> list[torch.Generator]:
    extra = [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return [torch.default_generator, *extra]
