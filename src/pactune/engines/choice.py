"""The names of the engines, and the choice of "auto"."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pactune.checks import check_count, shown
from pactune.engines.captured import Captured
from pactune.engines.eager import Eager
from pactune.engines.traced import Compiled, Traced
from pactune.errors import SettingError
from pactune.problem import Problem
from pactune.rounds.engine import Engine

__all__ = ["as_engine"]

SMALL = 200_000  # parameters; in a smaller model Python takes more time than the kernels
WARM_UP = 1000  # inner steps of a run before "auto" records anything

NAMES: dict[str, Callable[[], Engine]] = {
    "eager": Eager,
    "traced": Traced,
    "compiled": Compiled,
    "captured": Captured,
    "fused": partial(Captured, steps=50, fuse="steps"),
}


def as_engine(engine: str | Engine, problem: Problem) -> Engine:
    """Return the engine with this name.

    "auto" captures on a CUDA device. On a CPU it traces small models, which gives the numbers of the eager engine bit
    for bit, and it runs others eagerly. It never compiles, because compiling changes the last bits and takes a minute.

    Raises:
        SettingError: the name is unknown, or the engine needs a CUDA device and the model is on another one.
    """
    if isinstance(engine, Engine):
        return _checked(engine, problem)
    if not isinstance(engine, str) or engine not in ("auto", *NAMES):
        raise SettingError(f'`engine` must be "auto", {", ".join(map(repr, NAMES))} or an engine, got {shown(engine)}')
    if engine == "auto" and problem.device.type == "cuda":
        return Captured(only_if_faster=True)
    if engine == "auto":
        small = sum(value.numel() for value in problem.parameters().values()) <= SMALL
        return Traced(after=WARM_UP, only_if_faster=True) if small else Eager()
    return _checked(NAMES[engine](), problem)


def _checked(engine: Engine, problem: Problem) -> Engine:
    """Return an engine; raise if its settings are invalid or the model is on the wrong device."""
    if isinstance(engine, Captured) and problem.device.type != "cuda":
        raise SettingError(
            f'`engine`: "captured" and "fused" replay CUDA graphs, and the model is on {problem.device}; move model, '
            'hyper and data to a CUDA device, or use "auto"'
        )
    for name, least in (("steps", 1), ("after", 0)):
        if hasattr(engine, name):
            check_count(name, getattr(engine, name), least)
    return engine
