"""What makes a run this run: its settings in words, compared before a run is resumed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pactune.data import Source
    from pactune.fitting import FitSettings
    from pactune.trees import Params
    from pactune.tuner import Tuner

__all__ = ["describe_run"]


def describe_run(tuner: Tuner, settings: FitSettings, test: Source | None) -> dict[str, Any]:
    """Return what a resumed run must share with the run it resumes, as JSON can hold it.

    The number of outer steps and the listeners are left out: a run may be resumed for longer and with others. A
    function is known by its name only.
    """
    problem = tuner.problem
    return {
        "inner": _words(tuner.inner),
        "inner_steps": tuner.inner_steps,
        "outer": f"{type(tuner.outer).__name__} {_words(tuner.outer.defaults)}",
        "objective": _words(tuner.objective),
        "hypergradient": _words(tuner.risk_estimator),
        "path_hypergradient": _words(tuner.path_estimator),
        "chains": tuner.chains,
        "restart": tuner.restart,
        "online": tuner.online,
        "seed": tuner.seed,
        "initial": _words(tuner.initial),
        "path_stride": tuner.path_stride,
        "engine": _words(tuner.runner.engine),
        "keep": settings.keep,
        "tolerance": settings.tolerance,
        "plain_steps": settings.plain_steps,
        "losses": _words(problem.losses()),
        "parameters": _shapes(problem.parameters()),
        "buffers": _shapes(problem.buffers()),
        "hyperparameters": _shapes(problem.hyperparameters()),
        "device": problem.device.type,
        "train": problem.train.fingerprint(),
        "valid": problem.valid.fingerprint(),
        "test": None if test is None else test.fingerprint(),
    }


def _words(value: object) -> str:
    """Return the text of a value without addresses in memory, which differ from process to process.

    >>> _words(_words)
    '<function _words>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _shapes(tensors: Params) -> dict[str, str]:
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors.items()}
