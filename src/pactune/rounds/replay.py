"""Check that a step gives the same result when it is run again. Estimators that go back rely on this."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pactune.errors import SettingError
from pactune.problem import Problem
from pactune.streams import forked_rng, seed_forward
from pactune.trees import Params, clone

__all__ = ["check_replay", "hook_functions", "same_values"]

CALLS = 3  # calls of each function; with a private generator two results may still agree by chance
REMEDY = (
    "draw with torch's functions and without a `generator` of your own, since pactune seeds torch for every step, or "
    "draw in the data set, whose batches are kept"
)


def check_replay(problem: Problem) -> None:
    """Call both risks and the hooks of the hyperparameters several times, and compare the results.

    A risk may draw from torch's global generators, which are seeded at every step. It must not draw from Python's or
    NumPy's generators or from a private one, and it must not change from call to call. A hook must draw nothing.

    Raises:
        SettingError: a step gives another result when it is run again.
    """
    params, hyper = problem.parameters(), problem.hyperparameters()
    sides = (("training", problem.train_risk, problem.train), ("validation", problem.valid_risk, problem.valid))
    with forked_rng(problem.device), _restored_generators(), problem.training_mode(), torch.no_grad():
        for role, risk, source in sides:
            batch = source.first()

            def value(risk: Callable[..., Tensor] = risk, batch: object = batch) -> Params:
                return {"": risk(params, hyper, clone(problem.buffers()), batch)}

            _check_repeatable(problem, f"the {role} loss", value, seeds=[0] * CALLS)
        for name, hook in hook_functions(problem, params, hyper).items():
            _check_repeatable(problem, f"`{name}` of a hyperparameter module", hook, seeds=range(CALLS))


def hook_functions(problem: Problem, params: Params, hyper: Params) -> dict[str, Callable[[], Params]]:
    """Return the functions of θ and λ that a step calls in addition to the risks."""
    known: dict[str, tuple[bool, Callable[[], Params]]] = {
        "penalty": (problem.has_penalty, lambda: problem.penalty_gradient(params, hyper)),
        "prox": (problem.has_prox, lambda: problem.prox(params, dict.fromkeys(params, 1.0), hyper)),
        "learning_rates": (problem.has_learning_rates, lambda: problem.learning_rates(params, hyper)),
        "initial": (problem.has_initial, lambda: problem.initial(params, hyper)),
    }
    return {name: hook for name, (exists, hook) in known.items() if exists}


def _check_repeatable(problem: Problem, what: str, function: Callable[[], Params], *, seeds: range | list[int]) -> None:
    """Call a function once per seed of torch; raise if it uses another generator or if its results differ."""
    before, results = _generator_states(), []
    for seed in seeds:
        seed_forward(problem.device, seed)
        results.append({name: value.detach() for name, value in function().items()})
    moved = [name for name, state in _generator_states().items() if state != before[name]]
    if moved:
        raise SettingError(
            f"{what} draws random numbers from {' and '.join(moved)}, which cannot be replayed; {REMEDY}"
        )
    if not all(same_values(results[0], other) for other in results[1:]):
        raise SettingError(
            f"{what} gives another result when it is called again on the same tensors, so that its steps cannot be "
            f"replayed: it draws random numbers where it may not, or changes from call to call; {REMEDY}"
        )


def same_values(a: Params, b: Params) -> bool:
    """Compare bit for bit on a CPU, and with a tolerance on an accelerator, whose kernels may sum in any order."""
    return all(
        torch.equal(value, b[name]) or bool(value.isnan().any())
        if value.device.type == "cpu"
        else torch.allclose(value, b[name], rtol=torch.finfo(value.dtype).eps ** 0.5, atol=0, equal_nan=True)
        for name, value in a.items()
    )


def _generator_states() -> dict[str, bytes]:
    import numpy as np

    return {
        "Python's `random`": pickle.dumps(random.getstate()),
        "NumPy's `np.random`": pickle.dumps(np.random.get_state()),
    }


@contextmanager
def _restored_generators() -> Iterator[None]:
    """Restore the global generators of Python and NumPy on exit."""
    import numpy as np

    ours, theirs = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)
