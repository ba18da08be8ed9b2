"""Settings that cannot work together are refused when the tuner is made, each with a sentence; all others are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt

X, Y = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3
TASK = ((X[:8], Y[:8]), (X[8:16], Y[8:16]))


class Bare(nn.Module):
    """A model that cannot draw its parameters anew."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def decay(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return torch.stack([(p**2).sum() for p in model.parameters()]).sum()


def valid(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


SPLIT = {"train": (X[:12], Y[:12]), "valid": (X[12:], Y[12:]), "loss": cross_entropy}
# The first value of every setting is the one that the others are paired with.
VALUES: dict[str, dict[str, Any]] = {
    "objective": {
        "PACBayes": pt.PACBayes(0.1),
        "clipped": pt.PACBayes(0.1, clip_train=1.0, clip_valid=1.0),
        "theory": pt.PACBayes("theory"),
        "auto": pt.PACBayes("auto"),
        "ValidationRisk": pt.ValidationRisk(),
        "Flatness": pt.Flatness(0.1),
        "SameDistribution": pt.SameDistribution(0.1),
        "UnequalSteps": pt.UnequalSteps(0.1, 0.1),
        "HyperDrift": pt.HyperDrift(0.1),
    },
    "hypergradient": {
        "Truncated(1)": pt.Truncated(1),
        "Truncated(3)": pt.Truncated(3),
        "Windowed": pt.Windowed(2),
        "ForwardMode": pt.ForwardMode(),
        "Implicit": pt.Implicit(pt.Neumann(2)),
        "RunningImplicit": pt.RunningImplicit(),
        "FirstOrder": pt.FirstOrder(),
    },
    "path_hypergradient": {
        "Truncated(0)": pt.Truncated(0),
        "Truncated(2)": pt.Truncated(2),
        "Windowed": pt.Windowed(2),
        "ForwardMode": pt.ForwardMode(),
        "Implicit": pt.Implicit(pt.Neumann(2)),
    },
    "inner": {
        "SGD": pt.SGD(0.1),
        "Adam": pt.Adam(0.1),
        "Langevin": pt.Langevin(0.1, 100.0),
        "torch.optim": lambda params: torch.optim.SGD(params, lr=0.1),
    },
    "online": {"no": False, "yes": True},
    "restart": {"no": False, "yes": True},
    "chains": {"1": 1, "2": 2},
    "engine": {"auto": "auto", "eager": "eager", "traced": "traced"},
    "path_stride": {"1": 1, "2": 2},
    "roll_back": {"no": False, "yes": True},
    "data": {
        "split": SPLIT,
        "folds": {"data": (X, Y), "folds": 3, "loss": cross_entropy},
        "tasks": {"tasks": [TASK, TASK], "loss": cross_entropy},
        "drawn tasks": {"tasks": lambda generator: TASK, "tasks_per_step": 2, "loss": cross_entropy},
        "no training rows": {"train": None, "valid": (X, Y), "train_loss": decay, "valid_loss": valid},
    },
    "model": {"linear": lambda: nn.Linear(4, 3), "bare": Bare},
    "hyper": {"decays": pt.WeightDecay, "rates": pt.LearningRates},
}
FIRST = {name: next(iter(values)) for name, values in VALUES.items()}
SETTINGS = [name for name in VALUES if name not in ("data", "model", "hyper")]
FAR = r"differentiates through \d steps, which an optimizer of torch\.optim does not allow; use SGD"
ONE = "folds and tasks share one λ: use online=False"
RESET = "θ_0 has to be drawn anew, but Bare .* pass `initial=`"

# The pairs that are refused, with a part of the sentence that says why.
REFUSED = {
    ("objective=PACBayes", "path_hypergradient=Implicit"): "cannot differentiate the regularizer; use Truncated",
    ("objective=HyperDrift", "hyper=rates"): "here λ changes the step size too; use PACBayes",
    ("objective=ValidationRisk", "online=yes"): "ValidationRisk.* has none; use online=False",
    ("objective=auto", "online=yes"): 'zeta="auto"` is for online=False; pass a number',
    ("objective=auto", "data=tasks"): "holds rows of one sample out, and tasks have several; pass a number",
    ("objective=auto", "data=no training rows"): "holds training rows out, and there are none; use AutoZeta",
    ("objective=SameDistribution", "data=no training rows"): "takes the risk of the training rows, and there are none",
    ("objective=UnequalSteps", "data=no training rows"): "inverse temperature of SGD, and there are none; use Langevin",
    ("hypergradient=Truncated(3)", "inner=torch.optim"): FAR,
    ("hypergradient=Windowed", "inner=torch.optim"): FAR,
    ("hypergradient=ForwardMode", "inner=torch.optim"): FAR,
    ("hypergradient=FirstOrder", "inner=torch.optim"): FAR,
    ("path_hypergradient=Truncated(2)", "inner=torch.optim"): FAR,
    ("path_hypergradient=Windowed", "inner=torch.optim"): FAR,
    ("path_hypergradient=ForwardMode", "inner=torch.optim"): FAR,
    ("path_hypergradient=Windowed", "online=yes"): "not known at every step, which online=True needs; use Truncated",
    ("inner=torch.optim", "hyper=rates"): "learning rates as hyperparameters need SGD, Adam or Langevin",
    ("online=yes", "data=folds"): ONE,
    ("online=yes", "roll_back=yes"): "online=True moves λ inside the steps; use online=False",
    ("restart=yes", "roll_back=yes"): "restart=True draws θ_0 anew at every outer step; use restart=False",
    ("online=yes", "data=tasks"): ONE,
    ("restart=no", "data=drawn tasks"): "each must start from θ_0: pass restart=True",
    ("restart=yes", "model=bare"): RESET,
    ("chains=2", "model=bare"): RESET,
}
ALONE = {"path_hypergradient=Implicit", "data=drawn tasks"}  # refused with the first values of all other settings


def made(*parts: str) -> pt.Tuner:
    chosen = {**FIRST, **dict(part.split("=", 1) for part in parts)}
    value = {name: VALUES[name][chosen[name]] for name in VALUES}
    model = value["model"]()
    hyper = value["hyper"](model)
    problem = pt.Problem(model, hyper, **value["data"])
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner_steps=4, outer=outer, **{name: value[name] for name in SETTINGS})


@pytest.mark.parametrize("pair", REFUSED, ids=" and ".join)
def test_a_pair_that_cannot_work_is_refused_when_the_tuner_is_made(pair: tuple[str, str]) -> None:
    with pytest.raises(pt.SettingError, match=REFUSED[pair]):
        made(*pair)


def parts(name: str) -> list[str]:
    return [f"{name}={value}" for value in VALUES[name] if f"{name}={value}" not in ALONE]


@pytest.mark.parametrize("names", list(itertools.combinations(VALUES, 2)), ids=" and ".join)
def test_every_other_pair_makes_a_tuner(names: tuple[str, str]) -> None:
    pairs = [pair for pair in itertools.product(*map(parts, names)) if pair not in REFUSED]
    assert pairs
    for pair in pairs:
        assert made(*pair).settings.inner_steps == 4


def test_drawn_tasks_run_with_restart() -> None:
    assert made("data=drawn tasks", "restart=yes").hypergradient().risk > 0


MISSING: dict[str, tuple[Callable[[], object], str]] = {
    "objective": (
        lambda: pt.Tuner(made().problem, inner=pt.SGD(0.1), inner_steps=1, outer=made().outer),
        r"`objective` must be given: PACBayes\(zeta\) for Eq. 5, ValidationRisk\(\)",
    ),
    **{
        kind.__name__: (kind, r'`zeta` must be given: a finite number ≥ 0, "theory", or "auto"')
        for kind in (pt.PACBayes, pt.Flatness, pt.SameDistribution, pt.HyperDrift)
    },
    "UnequalSteps": (lambda: pt.UnequalSteps(0.1), "`zeta` must be given"),
}


@pytest.mark.parametrize("name", MISSING)
def test_objective_and_zeta_have_no_default(name: str) -> None:
    call, words = MISSING[name]
    with pytest.raises(pt.SettingError, match=words):
        call()
