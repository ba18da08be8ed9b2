"""The identity of a run: its settings and the parts of its modules as text. A run is resumed only if they are equal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pactune.tracking.optimizers import describe_memory
from pactune.tracking.parts import Parts, describe_parts, name_of, without_digests

if TYPE_CHECKING:
    import torch

    from pactune.problem.data import Source
    from pactune.trees import Params
    from pactune.tuning.fit_settings import FitSettings
    from pactune.tuning.tuner import Tuner

__all__ = ["PARTS", "changed_parts", "describe_run", "differences", "parts_of"]

PARTS = "parts"  # the key of the modules, losses and settings, with one entry per part
# Keys that a scheduler writes into the groups of an optimizer.
SCHEDULED = ("params", "initial_lr", "swa_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "lr_scale")
DERIVED = ("memory", "outer_memory")  # they follow from the other settings and serve to check a loaded state
SHOWN = 8  # differences that an error names


def describe_run(tuner: Tuner, settings: FitSettings, test: Source | None) -> dict[str, Any]:
    """Return what a resumed run must share with the run it resumes, as JSON can hold it.

    The number of outer steps and the listeners are left out: a run may be resumed for longer and with others. What
    modules and functions are made of is in `parts_of`, since it may differ from rank to rank.
    """
    problem = tuner.problem
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
        "engine": _words(tuner.runner.engine),
        "keep": settings.keep,
        "tolerance": settings.tolerance,
        "plain_steps": settings.plain_steps,
        "losses": [None if loss is None else name_of(loss) for loss in problem.losses()],
        "parameters": _shapes(problem.parameters()),
        "buffers": _shapes(problem.buffers()),
        "hyperparameters": _shapes(problem.hyperparameters()),
        "memory": sorted(tuner.inner.slots({})),
        "outer_memory": describe_memory(tuner.outer),
        "device": problem.device.type,
        "train": problem.train.fingerprint(),
        "valid": problem.valid.fingerprint(),
        "test": None if test is None else test.fingerprint(),
    }


def parts_of(tuner: Tuner, *, checksums: bool = True) -> Parts:
    """Return what the modules, the losses and the settings of a run are made of."""
    problem = tuner.problem
    losses = dict(zip(("loss", "train_loss", "valid_loss", "metrics"), problem.losses(), strict=True))
    settings = {"inner": tuner.inner, "objective": tuner.objective, "initial": tuner.initial}
    estimators = {"hypergradient": tuner.risk_estimator, "path_hypergradient": tuner.path_estimator}
    given = {name: value for name, value in {**losses, **settings, **estimators}.items() if value is not None}
    return describe_parts({"model": problem.model, "hyper": problem.hyper}, given, checksums=checksums)


def differences(
    began: dict[str, Any], now: dict[str, Any], *, ignored: frozenset[str] = frozenset(), versions_differ: bool = False
) -> str:
    """Return in words how two runs differ; an empty text if they are the same.

    Args:
        began: the settings of `describe_run` when the run began.
        now: its settings now.
        ignored: parts that training changes; they are not compared.
        versions_differ: True if the versions of Python or torch differ. Bytecode and attributes may differ then, so
            checksums are not compared, nor parts that only one of the runs has.
    """
    one, two = (_flat(settings, digests=not versions_differ) for settings in (began, now))
    skipped = {*ignored, *DERIVED}
    names = [name for name in {**one, **two} if name not in skipped and one.get(name) != two.get(name)]
    if versions_differ:
        names = [name for name in names if not name.startswith(PARTS) or (name in one and name in two)]
    words = [f"{name.removeprefix(f'{PARTS} ')} was {one.get(name)!r}, is {two.get(name)!r}" for name in names]
    more = f"; and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return "; ".join(words[:SHOWN]) + more


def changed_parts(began: Parts, now: Parts) -> list[str]:
    """Return the names (as in `differences`) of the parts that training has changed, such as a count of calls."""
    one, two = without_digests(began), without_digests(now)
    small = {name for name, words in now.items() if words.startswith("tensor ") and "checksum" in words}
    changed = [name for name in {**one, **two} if one.get(name) != two.get(name) or name in small - _equal(began, now)]
    return [f"{PARTS} {name}" for name in changed]


def _equal(one: Parts, two: Parts) -> set[str]:
    return {name for name in one if one[name] == two.get(name)}


def _flat(settings: dict[str, Any], *, digests: bool) -> dict[str, Any]:
    """Return the settings with one entry per part."""
    parts = settings.get(PARTS)
    if not isinstance(parts, dict):
        return settings
    found = parts if digests else without_digests(parts)
    return {**{k: v for k, v in settings.items() if k != PARTS}, **{f"{PARTS} {k}": v for k, v in found.items()}}


def _group(group: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter group of an optimizer without the changes of a scheduler."""
    started = {**group, "lr": group.get("initial_lr", group.get("lr"))}
    shapes = [f"{tuple(value.shape)} {value.dtype}" for value in group["params"]]
    return {"params": shapes, **{name: _words(value) for name, value in started.items() if name not in SCHEDULED}}


def _words(value: object) -> str:
    """Return the `repr` of a value without memory addresses, which differ between processes.

    >>> _words(_words)
    '<function _words>'
    """
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _shapes(tensors: Params | dict[str, torch.Tensor]) -> dict[str, str]:
    return {name: f"{tuple(value.shape)} {value.dtype}" for name, value in tensors.items()}
