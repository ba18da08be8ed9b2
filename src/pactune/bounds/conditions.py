"""Conditions that several claims share. Each function returns a sentence for every broken condition."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _NormBase

from pactune.errors import DataError
from pactune.problem import Problem
from pactune.problem.provenance import DataMark, Provenance
from pactune.rounds.forwards import try_forwards

__all__ = ["drift_conditions", "overlap", "prepared", "repeats", "unknown", "unstated"]


def unknown(provenance: Provenance, *things: str) -> list[str]:
    """Require a record of the samples that touched these things."""
    return [
        f"known provenance: it is not recorded what touched the {thing}; say so with Provenance().touch({thing!r}, ...)"
        for thing in things
        if not provenance.knows(thing)
    ]


def unstated(provenance: Provenance, parts: list[str]) -> list[str]:
    """Require a record of the samples that touched the untrained parts of a model, if it has any."""
    if not parts or provenance.knows("features"):
        return []
    return [
        f"known features: the model comes with {', '.join(parts)}; say with .touch('features', ...) which samples had "
        "a part in them, .touch('features') if none had"
    ]


def prepared(provenance: Provenance) -> str:
    """Return the assumption about the inputs and the untrained parts of the model."""
    saw = ", ".join(mark.describe() for mark in provenance.touched.get("features", ()))
    word = "as was stated" if provenance.knows("features") else "which nobody stated"
    return f"the inputs and the given parts of the model were prepared with {saw or 'none of the samples'}, {word}"


def repeats(sample: DataMark) -> list[str]:
    """Require that no row of a sample is repeated, since equal rows are not independent."""
    try:
        count = sample.repeated()
    except DataError as error:
        return [f"known rows: {error}"]
    if not count:
        return []
    return [
        f"independent rows: {count} rows of {sample.describe()} equal another of its rows; leave the repeats out, or "
        "give DataMark(name, data, rows=...) identifiers if they are different observations"
    ]


def overlap(train: DataMark, valid: DataMark) -> list[str]:
    """Require that training and validation sample share no row."""
    try:
        shared = train.shared(valid)
    except DataError as error:
        return [f"disjoint samples: training and validation sample cannot be told apart, since {error}"]
    return [f"disjoint samples: training and validation sample share {shared} rows"] if shared else []


def drift_conditions(problem: Problem) -> list[str]:
    """Require that the drift is a function of θ: no running statistics and no random draws."""
    norms = [
        name
        for name, module in problem.model.named_modules()
        if isinstance(module, _NormBase) and module.track_running_stats
    ]
    if norms:
        return [f"drift as a function of θ: {', '.join(norms)} keeps running statistics; use LayerNorm or GroupNorm"]
    if problem.has_prox:
        return ["drift as a function of θ: a penalty acts by a proximal step, which Langevin dynamics has not"]
    if try_forwards(problem).stochastic:
        return ["drift as a function of θ: the training forward draws random numbers (dropout)"]
    return []
