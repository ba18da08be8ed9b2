"""A learning rate by a range test: short trainings below a limit that the curvature sets, all at once."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable

import torch
from torch import nn

from pactune.dynamics import Averaged, Dynamics
from pactune.errors import SettingError
from pactune.problem import Problem
from pactune.problem.data import Batch
from pactune.problem.hyper import LearningRates
from pactune.rounds.run_states import RunStates
from pactune.search.training import InnerLoop, copied_modules, start_run, train
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.streams import Streams, forked_rng, seed_forward
from pactune.trees import Params, axpy, clone, norm, scale, split, sub
from pactune.tuning.outer_run import OuterRun

__all__ = ["find_learning_rate"]

log = logging.getLogger("pactune.search")
LIMIT = 0.3  # times 1/L, where L is the largest curvature; momentum of 0.9 diverges above 3.8/L
AVERAGED_LIMIT = 3.0  # the same for an average of the iterates, which falls steadily where they jump
SHARES = tuple(10 ** (-exponent / 2) for exponent in range(7))
ROUNDS, STEPS = 10, 4  # of every rate; the training risk is looked at after each round
RISE = 1.05  # at a rate that will do, the risk never rises above this multiple of its least value so far
STILL = 1e-3  # a smaller share is no change of a risk
POWER_STEPS = 10


def find_learning_rate(problem: Problem, at_rate: Callable[[float], Dynamics], runner: Runner, seed: int) -> float:
    """Return a rate for SGD with momentum at which the training risk falls steadily, or stays at a minimum.

    Args:
        problem: the problem; all its rows train.
        at_rate: returns the dynamics with a learning rate.
        runner: runs all trainings together.
        seed: the seed of mini-batches.

    Raises:
        SettingError: at every rate the training risk rises.
    """
    limit = (AVERAGED_LIMIT if isinstance(at_rate(1.0), Averaged) else LIMIT) / largest_curvature(problem)
    loop = InnerLoop(at_rate(limit), STEPS, seed)
    every = torch.arange(problem.train.rows, device="cpu")
    start = problem.subset(every, every)
    runs = [start_run(_at_share(start, share), loop, runner) for share in SHARES]
    before = start.evaluate(start.train).risk
    paths = [[before] for _ in runs]
    run_in_lockstep([train(r, ROUNDS, _reader(r, path)) for r, path in zip(runs, paths, strict=True)], runner)
    tried = [(share * limit, path) for share, path in zip(SHARES, paths, strict=True)]
    rate = next((rate for accepts in (_falls, _stays) for rate, path in tried if accepts(path)), None)
    if rate is None:
        raise SettingError(
            f"the training risk of {before:.4g} falls at no learning rate of SGD from {limit:.3g} down to "
            f"{limit * SHARES[-1]:.3g}; look at the scale of the inputs, or pass `inner`, such as "
            "inner=pt.Adam(lr=1e-3)"
        )
    log.info("learning rate %.3g: the training risk does not rise, and the curvature allows it", rate)
    return rate


def largest_curvature(problem: Problem) -> float:
    """Return the largest eigenvalue of the Hessian of the training risk at the start, by power iterations.

    A product with the Hessian is the difference of two gradients, so no second derivative is needed.
    """
    batch, params = next(iter(problem.train.evaluation())), clone(problem.parameters())
    generator = Streams(0).generator("curvature")
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu").to(p)
        for name, p in params.items()
    }
    here, length, found = _gradient(problem, params, batch), max(1.0, float(norm(params))), 0.0
    for _ in range(POWER_STEPS):
        direction = scale(1 / max(float(norm(direction)), 1e-30), direction)
        far = 1e-3 * length
        direction = scale(1 / far, sub(_gradient(problem, axpy(far, direction, params), batch), here))
        found = float(norm(direction))
        if not (math.isfinite(found) and found > 0):
            break
    return found if math.isfinite(found) and found > 1e-6 else 1.0


def _gradient(problem: Problem, params: Params, batch: Batch) -> Params:
    with problem.training_mode(), torch.enable_grad(), forked_rng(problem.device):
        seed_forward(problem.device, 0)  # the same dropout in every gradient, for their difference is divided by little
        leaves = {name: p.detach().requires_grad_() for name, p in params.items()}
        risk = problem.train_risk(leaves, problem.hyperparameters(), clone(problem.buffers()), batch)
        found = torch.autograd.grad(risk, list(leaves.values()), allow_unused=True)
    return split(found, leaves)[0]


def _reader(run: OuterRun, path: list[float]) -> Callable[[RunStates], None]:
    """Return a listener that adds the training risk after a round to a path."""

    def read(chains: RunStates) -> None:
        run.publish(chains)
        path.append(run.problem.evaluate(run.problem.train).risk)

    return read


def _falls(path: list[float]) -> bool:
    """Return True if a risk falls, and never rises much on the way."""
    return _is_steady(path) and path[-1] < path[0]


def _stays(path: list[float]) -> bool:
    """Return True if a risk neither falls nor rises, as at a minimum, where a model that was trained before may be."""
    return _is_steady(path) and math.isclose(path[-1], path[0], rel_tol=STILL)


def _is_steady(path: list[float]) -> bool:
    """Return True if a risk never rises much. A negative risk may rise by a share of what it has fallen so far."""
    least = itertools.accumulate(path, min)
    most = [low + (RISE - 1) * (low if low >= 0 else path[0] - low) for low in least]
    return all(math.isfinite(risk) and risk <= bound for risk, bound in zip(path, most, strict=True))


def _at_share(problem: Problem, share: float) -> Problem:
    """Return the problem on copies of its modules, with one more hyperparameter: the factor `share` on the step."""
    model, hyper = copied_modules(problem.model, problem.hyper)
    rates = LearningRates(model, per="global")
    with torch.no_grad():
        rates.values["all"].fill_(math.log(share))
    return problem.with_modules(model, nn.ModuleDict({"hyper": hyper, "rate": rates}))
