"""The demo's problem: a weight decay for every parameter of a linear classifier, on scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pactune.dynamics import Adam
from pactune.errors import SettingError
from pactune.extras import require
from pactune.objectives import PACBayes
from pactune.objectives.base import Zeta
from pactune.problem import Problem
from pactune.problem.hyper import WeightDecay
from pactune.results.result import Result
from pactune.streams import Streams
from pactune.tuning.tuner import Tuner

__all__ = ["DemoRuns", "DemoSettings", "Digits", "load_digits", "run_demo", "run_one"]

ZETAS: tuple[Zeta, Zeta] = (0.0, "auto")


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo.

    Attributes:
        seed: seed of the draw of images and of the initial weights.
        rows: number of training images, and of validation images.
        inner_steps: T.
        outer_steps: number of updates of λ.
        lr: step size of Adam.
        outer_lr: step size of RMSprop.
    """

    seed: int = 0
    rows: int = 50
    inner_steps: int = 50
    outer_steps: int = 80
    lr: float = 2e-3
    outer_lr: float = 1e-2


class Digits(NamedTuple):
    """Training, validation and test images of digits; pixels in [0, 1]."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


class DemoRuns(NamedTuple):
    """Two runs on the same images from the same start: validation risk alone, and the PAC-Bayes objective."""

    zero: Result
    auto: Result


def load_digits(rows: int, seed: int) -> Digits:
    """Draw training and validation images; all other images are the test set."""
    pixels, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    if not 10 <= rows <= len(pixels) // 4:
        raise SettingError(f"`rows` must be between 10 and {len(pixels) // 4}, got {rows}")
    order = torch.randperm(len(pixels), generator=Streams(seed).generator("digits"), device="cpu")
    x, y = torch.from_numpy(pixels).float()[order] / 16, torch.from_numpy(labels)[order]
    parts = [slice(0, rows), slice(rows, 2 * rows), slice(2 * rows, None)]
    return Digits(*((x[part], y[part]) for part in parts))


def run_one(data: Digits, zeta: Zeta, settings: DemoSettings, *, progress: bool | None = None) -> Result:
    """Tune the decays of a fresh linear classifier at one ζ."""
    model = _linear(settings.seed)
    hyper = WeightDecay(model)
    problem = Problem(model, hyper, train=data.train, valid=data.valid, loss=functional.cross_entropy)
    tuner = Tuner(
        problem,
        inner=Adam(lr=settings.lr),
        inner_steps=settings.inner_steps,
        outer=torch.optim.RMSprop(hyper.parameters(), lr=settings.outer_lr),
        objective=PACBayes(zeta=zeta),
        seed=settings.seed,
    )
    return tuner.fit(settings.outer_steps, test=data.test, progress=progress)


def run_demo(settings: DemoSettings, *, progress: bool | None = None) -> DemoRuns:
    """Run ζ = 0 and ζ chosen by "auto".

    Raises:
        KeyboardInterrupt: a run was interrupted, so there is nothing to compare.
    """
    data = load_digits(settings.rows, settings.seed)
    results = []
    for zeta in ZETAS:
        results.append(run_one(data, zeta, settings, progress=progress))
        if results[-1].status == "interrupted":
            raise KeyboardInterrupt
    return DemoRuns(*results)


def _linear(seed: int) -> nn.Linear:
    """Return a linear classifier whose weights are a function of the seed."""
    model = nn.Linear(64, 10)
    generator = Streams(seed).generator("linear")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.125, 0.125, generator=generator)
    return model
