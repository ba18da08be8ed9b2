"""How θ moves: one file per inner dynamics.

A dynamics is a pure function from the state, the training gradient and the noise to the next state. A new one is a file
here with a class that implements `step`.
"""

from __future__ import annotations

from pactune.dynamics.adam import Adam
from pactune.dynamics.averaged import Averaged
from pactune.dynamics.base import Dynamics, Schedule, Slots, StepInputs
from pactune.dynamics.langevin import Langevin
from pactune.dynamics.sgd import SGD
from pactune.dynamics.torch_optim import TorchOptim
from pactune.errors import SettingError

__all__ = [
    "SGD",
    "Adam",
    "Averaged",
    "Dynamics",
    "Langevin",
    "Schedule",
    "Slots",
    "StepInputs",
    "TorchOptim",
    "as_dynamics",
]


def as_dynamics(inner: object) -> Dynamics:
    """Return `inner` itself, or a `torch.optim` factory as a dynamics."""
    if isinstance(inner, Dynamics):
        return inner
    if isinstance(inner, type) and issubclass(inner, Dynamics):
        raise SettingError(
            f"`inner` must be an object such as {inner.__name__}(lr=0.1), got the class {inner.__name__}"
        )
    if callable(inner):
        return TorchOptim(inner)
    raise SettingError(
        f"`inner` must be SGD, Adam, Langevin or a torch.optim factory such as "
        f"functools.partial(torch.optim.RMSprop, lr=1e-3), got {type(inner).__name__}"
    )
