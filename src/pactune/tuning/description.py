"""A run in words: its settings, its data and the parts of its modules, for the journal and before a resume."""

from __future__ import annotations

import re
from typing import Any

import torch

from pactune.problem.data import Source
from pactune.tracking.optimizers import describe_memory
from pactune.tracking.parts import Parts, describe_parts, name_of
from pactune.trees import Params
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.settings import TunerSettings

__all__ = ["describe_run", "describe_settings", "parts_of", "short_settings"]

# A scheduler writes these entries into the groups of an optimizer.
SCHEDULED = ("params", "initial_lr", "swa_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "lr_scale")


def describe_run(run: OuterRun, settings: FitSettings, test: Source | None) -> dict[str, Any]:
    """Return the words that a resumed run must share with the run it resumes, as JSON can hold them.

    The number of outer steps and the callbacks are left out: a run may be resumed for longer and with others. The parts
    of modules and functions are in `parts_of`, since they may differ from rank to rank.
    """
    problem, tuner = run.problem, run.settings
    return {
        **describe_settings(tuner),
        "engine": _words(run.runner.engine),
        "keep": settings.keep,
        "tolerance": settings.tolerance,
        "plain_steps": settings.plain_steps,
        "losses": [None if loss is None else name_of(loss) for loss in problem.losses()],
        "parameters": _shapes(problem.parameters()),
        "buffers": _shapes(problem.buffers()),
        "hyperparameters": _shapes(problem.hyperparameters()),
        "memory": sorted(tuner.inner.slots({})),
        "outer_memory": describe_memory(tuner.outer),
        "remembers": tuner.risk_estimator.remembers,
        "device": problem.device.type,
        "problems": problem.trained,
        **problem.fingerprints(),
        "test": None if test is None else test.fingerprint(),
    }


def describe_settings(tuner: TunerSettings) -> dict[str, Any]:
    """Return the settings of a tuner, without its problem, as JSON can hold them."""
    return {
        "inner": _words(tuner.inner),
        "inner_steps": tuner.inner_steps,
        "outer": f"{type(tuner.outer).__name__} {_words(tuner.outer.defaults)}",
        "outer_groups": [_group(group) for group in tuner.outer.param_groups],
        "objective": _words(tuner.objective),
        "hypergradient": _words(tuner.risk_estimator),
        "path_hypergradient": _words(tuner.path_estimator),
        "chains": tuner.chains,
        "restart": tuner.restart,
        "online": tuner.online,
        "seed": tuner.seed,
        "initial": _words(tuner.initial),
        "path_stride": tuner.path_stride,
        "roll_back": tuner.roll_back,
    }


def short_settings(tuner: TunerSettings) -> dict[str, Any]:
    """Return the problem and the settings of a tuner in words that fit on a line each, for `repr`."""
    rates = dict.fromkeys(str(group.get("lr")) for group in tuner.outer.param_groups)
    words = {"problem": repr(tuner.problem), **describe_settings(tuner)}
    words["outer"] = f"{type(tuner.outer).__name__}(lr={' and '.join(rates)})"
    left_out = ["outer_groups", *(["initial"] if tuner.initial is None else [])]
    return {name: value for name, value in words.items() if name not in left_out}


def parts_of(run: OuterRun, *, checksums: bool = True) -> Parts:
    """Return the parts of the modules, the losses and the settings of a run."""
    problem, tuner = run.problem, run.settings
    losses = dict(zip(("loss", "train_loss", "valid_loss", "metrics"), problem.losses(), strict=True))
    settings = {"inner": tuner.inner, "objective": tuner.objective, "initial": tuner.initial}
    estimators = {"hypergradient": tuner.risk_estimator, "path_hypergradient": tuner.path_estimator}
    given = {name: value for name, value in {**losses, **settings, **estimators}.items() if value is not None}
    return describe_parts({"model": problem.model, "hyper": problem.hyper}, given, checksums=checksums)


def _group(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group of an optimizer's parameters as it was before any scheduler changed it."""
    started = {**group, "lr": group.get("initial_lr", group.get("lr"))}
    shapes = [f"{tuple(value.shape)} {value.dtype}" for value in group["params"]]
    return {"params": shapes, **{name: _words(value) for name, value in started.items() if name not in SCHEDULED}}


def _words(value: object) -> str:
    """Return the text of a value without addresses in memory, which differ from process to process.

    >>> _words(_words)
    '<function _words>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _shapes(tensors: Params | dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors.items()}
