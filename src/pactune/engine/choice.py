"""Which engine a name stands for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pactune.engine.base import Engine
from pactune.engine.captured import Captured
from pactune.engine.eager import Eager
from pactune.engine.traced import Compiled, Traced
from pactune.errors import SettingError
from pactune.problem import Problem

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
        SettingError: for an unknown name.
    """
    if isinstance(engine, Engine):
        return engine
    if engine == "auto" and problem.device.type == "cuda":
        return Captured()
    if engine == "auto":
        small = sum(value.numel() for value in problem.parameters().values()) <= SMALL
        return Traced(after=WARM_UP) if small else Eager()
    if engine not in NAMES:
        raise SettingError(f'`engine` must be "auto", {", ".join(map(repr, NAMES))} or an engine, got {engine!r}')
    return NAMES[engine]()
