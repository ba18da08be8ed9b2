"""The runs of one draw: which of its 100 images train, tune and judge each of them, and at which zeta."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

KINDS = "full:0/r0.1/r1/1e-6/3e-6/1e-5/3e-5/5e-3,plain,plain_all,joint5:0/r0.1/r1,plain-joint5,refit:0/r0.1/r1"
RMS_LR = 1e-2


@dataclass(frozen=True)
class Run:
    """One run of every draw: which images train, tune and judge it."""

    kind: str
    fold: int
    zeta: float
    relative: bool
    outer_lr: float
    train: tuple[int, ...]
    valid: tuple[int, ...]
    held: tuple[int, ...]


def folds(images: range, k: int) -> list[tuple[int, ...]]:
    """K consecutive blocks; the images of a draw are already in random order."""
    return [tuple(int(i) for i in block) for block in np.array_split(np.array(images), k)]


def splits(kind: str) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """(train, valid, held) image numbers of every fold of one kind of run."""
    train, valid = range(50), range(50, 100)
    without = lambda images, held: tuple(i for i in images if i not in held)  # noqa: E731
    kind = kind.removeprefix("plain-")
    if kind in ("full", "plain"):
        return [(tuple(train), tuple(valid), ())]
    if kind == "swap":
        return [(tuple(valid), tuple(train), ())]
    if kind in ("plain_all", "refit"):
        return [(tuple(range(100)), tuple(valid), ())]
    if kind.startswith("cv"):
        return [(tuple(train), without(valid, h), h) for h in folds(valid, int(kind[2:]))]
    if kind.startswith("joint"):
        k = int(kind[5:])
        pairs = zip(folds(train, k), folds(valid, k), strict=True)
        return [(without(train, a), without(valid, b), a + b) for a, b in pairs]
    raise ValueError(f"unknown kind of run {kind!r}")


def list_runs(spec: str) -> list[Run]:
    """All runs of one draw from `KIND:ZETA/ZETA,KIND`; the plain kinds keep lambda at 0 and need no zeta.

    Kinds: full (50 + 50 images); cvK (a K-th of the validation images held out); jointK (a K-th of both held out);
    swap (the two parts change roles); plain, plain_all (all 100 images train), plain-jointK; refit (all 100 images
    train under the lambdas of the full run with the same zeta).
    """
    runs = []
    for part in spec.split(","):
        kind, _, zetas = part.partition(":")
        rate = 0.0 if kind.startswith("plain") else RMS_LR
        for zeta in (zetas or "0").split("/"):
            value, relative = float(zeta.removeprefix("r")), zeta.startswith("r")
            runs += [Run(kind, f, value, relative, rate, *split) for f, split in enumerate(splits(kind))]
    return runs


def lambda_sources(runs: list[Run]) -> tuple[list[int], list[int]]:
    """Positions of the refit runs and of the full runs whose lambdas they copy."""
    full = {(run.zeta, run.relative): k for k, run in enumerate(runs) if run.kind == "full"}
    refit = [k for k, run in enumerate(runs) if run.kind == "refit"]
    return refit, [full[runs[k].zeta, runs[k].relative] for k in refit]


def weights(runs: list[Run], part: str, images: int) -> Tensor:
    """[R, N] averaging weights of one part of the images."""
    table = torch.zeros(len(runs), images)
    for row, run in zip(table, runs, strict=True):
        chosen = list(getattr(run, part))
        if chosen:
            row[chosen] = 1.0 / len(chosen)
    return table
