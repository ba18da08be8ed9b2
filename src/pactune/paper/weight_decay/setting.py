"""A weight decay for every parameter (section 4.2): the settings of a run, and the tuner built from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from pactune.dynamics import Adam
from pactune.errors import SettingError
from pactune.hypergradient import Estimator, Truncated, Windowed
from pactune.objectives import PACBayes
from pactune.objectives.base import Zeta
from pactune.paper.data import DataName, Images
from pactune.paper.models import ModelName, make_model
from pactune.problem import Problem
from pactune.problem.hyper import WeightDecay
from pactune.rounds.inputs import Initial
from pactune.streams import Streams
from pactune.tuning.tuner import Tuner

__all__ = ["PAPER", "Build", "PaperRow", "Protocol", "Start", "StudySetting", "builder", "evaluation_set", "paper_zeta"]

Protocol = Literal["eval", "paper"]
Start = Literal["kept", "same", "fresh"]
Build = Callable[..., Tuner]


class PaperRow(NamedTuple):
    """The paper's numbers for a classifier and a data set.

    Attributes:
        min_norm: test accuracy of the strategy of least weight norm (Table C.1), in per cent with its interval.
        regularized: test accuracy of Eq. 5, offline, in the same form.
        printed: ζ of the offline runs, as printed under the figures.
        printed_online: ζ of the online runs, as printed under the figures.
        offline: ζ of the offline runs in the scale of Eq. 5.
        online: ζ of the online runs in the scale of Eq. 5.
    """

    min_norm: tuple[float, float, float]
    regularized: tuple[float, float, float]
    printed: float
    printed_online: float
    offline: float
    online: float


PAPER: dict[tuple[str, str], PaperRow] = {
    ("linear", "mnist"): PaperRow((56.8, 56.4, 57.2), (64.0, 63.7, 64.4), 1.41e-3, 6.12e-5, 1.0e-6, 3.75e-9),
    ("linear", "cifar10"): PaperRow((16.2, 15.9, 16.5), (19.7, 19.6, 19.9), 3.17e-3, 3.16e-4, 5.0e-6, 1.0e-7),
    ("resnet18", "mnist"): PaperRow((63.3, 63.0, 63.7), (71.9, 70.7, 73.2), 3.41e-3, 1.41e-4, 5.8e-6, 2.0e-8),
    ("resnet18", "cifar10"): PaperRow((17.2, 16.8, 17.6), (19.3, 18.8, 19.9), 2.59e-3, 1.36e-4, 3.35e-6, 1.85e-8),
    ("resnet34", "mnist"): PaperRow((52.5, 50.6, 54.1), (58.6, 55.9, 60.8), 3.41e-3, 1.73e-4, 5.8e-6, 3.0e-8),
    ("resnet34", "cifar10"): PaperRow((14.4, 13.6, 15.2), (16.1, 15.5, 16.7), 3.17e-3, 1.73e-4, 5.0e-6, 3.0e-8),
}
# Images per test batch of the authors, whose BatchNorm normalises each test batch separately.
PAPER_ROWS = {"mnist": 50, "cifar10": 4}


def paper_zeta(model: str, data: str, *, online: bool = False) -> float:
    """Return the paper's ζ in the scale of Eq. 5; data sets other than CIFAR-10 take that of MNIST."""
    row = PAPER[model, data if data == "cifar10" else "mnist"]
    return row.online if online else row.offline


@dataclass(frozen=True)
class StudySetting:
    """The settings that all runs of a grid share; the defaults are the paper's.

    Attributes:
        model: the classifier.
        data: the data set.
        online: update λ at every inner step too (Algorithm C.2).
        start: where an outer step starts: at the end of the one before ("kept", as in the paper), always at the same
            θ_0 ("same"), or at a new draw ("fresh").
        path: the estimator of the regularizer's gradient, "truncated-K" or "windowed-W".
        alone: minimise the regularizer alone.
        protocol: evaluate in `eval()` mode, or with batch statistics as the authors do ("paper").
        inner_steps: T.
        lr: step size of Adam.
        outer_lr: step size of RMSprop, with α 0.99 and ε 1e-8.
        rows: number of training images, and of validation images.
    """

    model: ModelName = "linear"
    data: DataName = "mnist"
    online: bool = False
    start: Start = "kept"
    path: str = "truncated-0"
    alone: bool = False
    protocol: Protocol = "eval"
    inner_steps: int = 1000
    lr: float = 1e-4
    outer_lr: float = 1e-2
    rows: int = 50

    @property
    def name(self) -> str:
        """The name of the folder of its runs: classifier, data set, and the settings that differ from the paper's."""
        return ",".join([f"model={self.model}", f"data={self.data}", *self.differences()])

    def differences(self) -> list[str]:
        """Return the settings that differ from the paper's."""
        others = [field for field in fields(self) if field.name not in ("model", "data")]
        return [f"{f.name}={getattr(self, f.name)}" for f in others if getattr(self, f.name) != f.default]

    def as_dict(self) -> dict[str, Any]:
        """Return all settings for JSON."""
        return asdict(self)

    def estimator(self) -> Estimator:
        """Return the estimator of the regularizer's gradient."""
        kind, _, size = self.path.partition("-")
        if kind not in ("truncated", "windowed") or not size.isdigit():
            raise SettingError(f"`path` must be truncated-K or windowed-W, got {self.path!r}")
        return Truncated(int(size)) if kind == "truncated" else Windowed(int(size))


def builder(setting: StudySetting, images: Images, device: torch.device | str, engine: str = "auto") -> Build:
    """Return the function `build(zeta, draw, init)`, which makes the tuner of one run.

    Args:
        setting: the settings of all runs.
        images: the data set.
        device: device of all runs.
        engine: how inner steps are run if the tuner runs outside a grid.
    """

    def build(*, zeta: Zeta, draw: int, init: int) -> Tuner:
        chosen = images.draw(draw, setting.rows)
        model = _model(setting, images, Streams(init).key("start", draw)).to(device)
        hyper = WeightDecay(model)
        train, valid = ((_inputs(setting, x).to(device), y.to(device)) for x, y in chosen)
        return Tuner(
            Problem(model, hyper, train=train, valid=valid, loss=functional.cross_entropy),
            inner=Adam(lr=setting.lr),
            inner_steps=setting.inner_steps,
            outer=torch.optim.RMSprop(hyper.parameters(), lr=setting.outer_lr, alpha=0.99, eps=1e-8),
            objective=PACBayes(zeta=zeta),
            # R_V does not depend on λ, so K = 0 removes its gradient and leaves that of the regularizer.
            hypergradient=Truncated(0 if setting.alone else 1),
            path_hypergradient=setting.estimator(),
            restart=setting.start != "kept",
            online=setting.online,
            seed=init,
            initial=_initial(setting, images, model),
            engine=engine,
        )

    return build


def evaluation_set(
    setting: StudySetting, images: Images, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the test set in the shape that the model takes."""
    x, y = images.test
    return _inputs(setting, x).to(device), y.to(device)


def _inputs(setting: StudySetting, x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1) if setting.model == "linear" else x


def _model(setting: StudySetting, images: Images, seed: int) -> nn.Module:
    rows = PAPER_ROWS.get(setting.data, 50) if setting.protocol == "paper" else None
    return make_model(setting.model, images.shape, seed=seed, norm_rows=rows)


def _initial(setting: StudySetting, images: Images, model: nn.Module) -> Initial | None:
    if setting.start == "kept":
        return None
    first = {name: value.detach().clone() for name, value in model.named_parameters()}

    def same(_generator: torch.Generator) -> dict[str, torch.Tensor]:
        return first

    def fresh(generator: torch.Generator) -> dict[str, torch.Tensor]:
        return dict(_model(setting, images, generator.initial_seed()).named_parameters())

    return same if setting.start == "same" else fresh
