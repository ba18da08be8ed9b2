"""Which engine a name stands for."""

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

SMALL = 200_000  # parameters below which what stands between the kernels outweighs the kernels
WARM_UP = 1000  # inner steps before "auto" records anything

NAMES: dict[str, Callable[[], Engine]] = {
    "eager": Eager,
    "traced": Traced,
    "compiled": Compiled,
    "captured": Captured,
    "fused": partial(Captured, steps=50, fuse="steps"),
}


def as_engine(engine: str | Engine, problem: Problem) -> Engine:
    """Return the engine of a name.

    "auto" captures on a CUDA device. On a CPU small models are traced, which is the eager engine bit for bit, and
    others run eagerly; compiling changes the last bits and takes a minute, so it has to be asked for.

    Raises:
        SettingError: for an unknown name, or an engine that needs a CUDA device where the model is on another.
    """
    if isinstance(engine, Engine):
        return _checked(engine, problem)
    if not isinstance(engine, str) or engine not in ("auto", *NAMES):
        raise SettingError(f'`engine` must be "auto", {", ".join(map(repr, NAMES))} or an engine, got {shown(engine)}')
    if engine == "auto" and problem.device.type == "cuda":
        return Captured()
    if engine == "auto":
        small = sum(value.numel() for value in problem.parameters().values()) <= SMALL
        return Traced(after=WARM_UP) if small else Eager()
    return _checked(NAMES[engine](), problem)


def _checked(engine: Engine, problem: Problem) -> Engine:
    """Return an engine; raise where its settings break their rules or the model is on the wrong device."""
    if isinstance(engine, Captured) and problem.device.type != "cuda":
        raise SettingError(
            f'`engine`: "captured" and "fused" replay CUDA graphs, and the model is on {problem.device}; move model, '
            'hyper and data to a CUDA device, or use "auto"'
        )
    for name, least in (("steps", 1), ("after", 0)):
        if hasattr(engine, name):
            check_count(name, getattr(engine, name), least)
    return engine
