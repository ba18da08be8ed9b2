"""A run is resumed with the model, losses and optimizers it began with, or refused with what differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import pactune as pt
from pactune.tracking.parts import describe_parts


class Net(nn.Module):
    """A model of the user's own with every kind of setting."""

    slope = 0.1

    def __init__(
        self, activation: Callable[[Tensor], Tensor] = torch.tanh, *, power: float = 1.0, frozen: float = 1.0
    ) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(4, 5), nn.Linear(5, 3)
        self.activation, self.sizes, self.power = activation, (4, 5), power
        self.gain = nn.Parameter(torch.tensor(frozen), requires_grad=False)
        self.calls, self.seen = 0, torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        """Count the calls too, as many models do, and the rows in a tensor."""
        self.calls += 1
        self.seen += len(x)
        return self.outside(F.leaky_relu(self.activation(self.inside(x)), self.slope)) * self.gain * self.power


class Other(Net):
    """The same with another forward."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.outside(F.leaky_relu(self.activation(self.inside(x)), self.slope)) * self.gain


class Steeper(Net):
    """The same with another attribute of its class."""

    slope = 0.2


class Decay(nn.Module):
    """A hyper module of the user's own."""

    def __init__(self, power: int = 2) -> None:
        super().__init__()
        self.strength, self.power = nn.Parameter(torch.zeros(())), power
        self.register_buffer("weight", torch.ones(3) * power)

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        return self.strength * sum((p.abs() ** self.power).sum() for p in params.values())  # type: ignore[return-value]


class Trainer:
    """An object whose method is the loss."""

    tau = 1.0

    def __init__(self, tau: float) -> None:
        self.tau = tau
        self.run_id = os.urandom(4).hex()  # differs from process to process, and no loss reads it

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output / self.tau, target)


def stack(*middle: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3))


def net(kind: type[Net] = Net, *args: Any, **options: Any) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(*args, **options)


def frozen(seed: int) -> nn.Module:
    """A pretrained layer that is not trained."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        first = nn.Linear(4, 6).requires_grad_(requires_grad=False)
        torch.manual_seed(0)
        return nn.Sequential(first, nn.Linear(6, 3))


def in_eval() -> nn.Module:
    model = stack(nn.BatchNorm1d(6))
    model[1].eval()  # type: ignore[index]
    return model


def hooked() -> nn.Module:
    model = stack(nn.Tanh())
    model[1].register_forward_hook(lambda module, inputs, output: output * 2)  # type: ignore[index]
    return model


def reversed_gradient(scale: float) -> nn.Module:
    model = stack(nn.Tanh())
    model[1].register_full_backward_hook(lambda module, received, sent: (scale * received[0],))  # type: ignore[index]
    return model


def smoothed(amount: float) -> Callable[..., Tensor]:
    return lambda output, target: F.cross_entropy(output, target, label_smoothing=amount)


def named(tau: float) -> Callable[..., Tensor]:
    settings = SimpleNamespace(tau=tau)
    return lambda output, target: F.cross_entropy(output / settings.tau, target)


def model(make: Callable[[], nn.Module]) -> dict[str, Any]:
    return {"model": make}


def loss(value: Any) -> dict[str, Any]:
    return {"loss": value}


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "activation": (model(lambda: stack(nn.Tanh())), model(lambda: stack(nn.ReLU())), "model.1 was 'Tanh', is 'ReLU'"),
    "dropout": (
        model(lambda: stack(nn.Dropout(0.2))),
        model(lambda: stack(nn.Dropout(0.9))),
        "model.1.p was '0.2', is '0.9'",
    ),
    "batch norm": (
        model(lambda: stack(nn.BatchNorm1d(6))),
        model(lambda: stack(nn.BatchNorm1d(6, momentum=0.5))),
        "model.1.momentum was '0.1', is '0.5'",
    ),
    "norm's epsilon": (model(lambda: stack(nn.LayerNorm(6))), model(lambda: stack(nn.LayerNorm(6, eps=0.1))), "1.eps"),
    "slope": (model(lambda: stack(nn.LeakyReLU(0.1))), model(lambda: stack(nn.LeakyReLU(0.3))), "negative_slope"),
    "layer in eval": (model(lambda: stack(nn.BatchNorm1d(6))), model(in_eval), "in evaluation mode"),
    "hook": (model(lambda: stack(nn.Tanh())), model(hooked), "_forward_hooks.0"),
    "backward hook": (
        model(lambda: reversed_gradient(1.0)),
        model(lambda: reversed_gradient(-1.0)),
        "model.1._backward_hooks.0.scale was '1.0', is '-1.0'",
    ),
    "function as an argument": (model(lambda: net()), model(lambda: net(Net, F.relu)), "model.activation was"),
    "lambda as an argument": (
        model(lambda: net(Net, lambda x: x * 2)),
        model(lambda: net(Net, lambda x: x * 3)),
        "model.activation was",
    ),
    "number of a module": (model(lambda: net()), model(lambda: net(power=2.0)), "model.power was '1.0', is '2.0'"),
    "frozen parameter": (model(lambda: net()), model(lambda: net(frozen=2.0)), "model.gain was"),
    "frozen layer": (model(lambda: frozen(1)), model(lambda: frozen(2)), "model.0.weight was"),
    "forward": (model(lambda: net()), model(lambda: net(Other)), "model.class.forward was"),
    "attribute of a class": (
        model(lambda: net()),
        model(lambda: net(Steeper)),
        "model.class.slope was '0.1', is '0.2'",
    ),
    "hyper module": ({"hyper": lambda: Decay(2)}, {"hyper": lambda: Decay(4)}, "hyper.power was '2', is '4'"),
    "partial loss": (
        loss(partial(F.cross_entropy, label_smoothing=0.1)),
        loss(partial(F.cross_entropy, label_smoothing=0.2)),
        "loss.label_smoothing was '0.1', is '0.2'",
    ),
    "weights of a loss": (
        loss(partial(F.cross_entropy, weight=torch.tensor([1.0, 1.0, 1.0]))),
        loss(partial(F.cross_entropy, weight=torch.tensor([1.0, 1.0, 2.0]))),
        "loss.weight was",
    ),
    "closure": (loss(smoothed(0.1)), loss(smoothed(0.2)), "loss.amount was '0.1', is '0.2'"),
    "namespace": (loss(named(1.0)), loss(named(2.0)), "loss.settings was 'namespace"),
    "code of a loss": (
        loss(lambda a, b: F.cross_entropy(a, b) * 2),
        loss(lambda a, b: F.cross_entropy(a, b) * 3),
        "loss was 'function",
    ),
    "module as a loss": (
        loss(nn.CrossEntropyLoss(label_smoothing=0.1)),
        loss(nn.CrossEntropyLoss(label_smoothing=0.2)),
        "loss.label_smoothing",
    ),
    "object of a method": (loss(Trainer(1.0).loss), loss(Trainer(2.0).loss), "loss.object.tau was '1.0', is '2.0'"),
    "schedule": (
        {"inner": pt.SGD(lr=lambda t: 0.1)},
        {"inner": pt.SGD(lr=lambda t: 0.2)},
        "inner.lr was 'function",
    ),
    "outer rate of a group": ({"outer": {"lr": 0.1}}, {"outer": {"lr": 0.2}}, "outer_groups was"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_refused_and_named(name: str, start: Any) -> None:
    before, after, words = CHANGES[name]
    start(before, 1)
    start(before, 1)  # the same again is the same run
    with pytest.raises(pt.RunFolderError, match="holds another run: ") as caught:
        start(after, 2)
    assert words in str(caught.value)
    assert len(start(before, 2).rows) == 2


def test_an_array_of_objects_is_known_by_its_shape() -> None:
    words = []
    for _ in range(2):
        module = nn.Linear(2, 2)
        module.names = np.array([object(), "a"], dtype=object)  # type: ignore[assignment]
        words.append(describe_parts({"model": module}, {})["model.names"])
    assert words == ["array (2,) object"] * 2


@pytest.mark.parametrize("option", ["shuffle", "drop_last"])
def test_the_order_of_a_loader_is_compared(option: str, tmp_path: Path) -> None:
    rows = torch.utils.data.TensorDataset(torch.randn(11, 4), torch.arange(11) % 3)

    def fit(steps: int, **options: Any) -> pt.Result:
        loader = torch.utils.data.DataLoader(rows, batch_size=4, **options)
        model = nn.Linear(4, 3)
        hyper = pt.WeightDecay(model)
        problem = pt.Problem(model, hyper, train=loader, valid=loader, loss=F.cross_entropy)
        tuner = pt.Tuner(
            problem,
            inner=pt.SGD(0.1),
            inner_steps=2,
            outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
            objective=pt.PACBayes(0.1),
        )
        return tuner.fit(steps, run_dir=tmp_path / "run", resume=True, progress=False)

    fit(1)
    with pytest.raises(pt.RunFolderError, match="train was '11 rows in batches of 4"):
        fit(2, **{option: True})


def test_metrics_are_compared(make: Any, tmp_path: Path) -> None:
    def fit(metrics: Any) -> pt.Result:
        tuner = make()
        problem = pt.Problem(
            tuner.problem.model,
            tuner.problem.hyper,
            train=tuner.problem.train,
            valid=tuner.problem.valid,
            loss=F.cross_entropy,
            metrics=metrics,
        )
        twin = pt.Tuner(
            problem,
            inner=tuner.inner,
            inner_steps=tuner.inner_steps,
            outer=tuner.outer,
            objective=pt.PACBayes("theory"),
        )
        return twin.fit(1, run_dir=tmp_path / "run", resume=True, progress=False)

    fit(lambda module, data: {"norm": module.weight.norm()})
    with pytest.raises(pt.RunFolderError, match="metrics was"):
        fit(lambda module, data: {"norm": 2 * module.weight.norm()})


def test_what_training_changes_is_not_compared(make: Any, tmp_path: Path) -> None:
    """A count of calls has moved in this process and begins anew in the next one; a real change is still seen."""
    tuner = make(net())
    tuner.fit(2, run_dir=tmp_path / "run", progress=False)
    assert tuner.problem.model.calls > 0
    assert len(tuner.fit(3, run_dir=tmp_path / "run", resume=True, progress=False).rows) == 3
    assert len(make(net()).fit(4, run_dir=tmp_path / "run", resume=True, progress=False).rows) == 4
    tuner.problem.model.power = 3.0
    with pytest.raises(pt.RunFolderError, match=r"model\.power was '1\.0', is '3\.0'"):
        tuner.fit(5, run_dir=tmp_path / "run", resume=True, progress=False)


def test_a_model_in_eval_is_put_into_training_mode_and_is_the_same_run(start: Any) -> None:
    start(model(lambda: stack(nn.Dropout(0.2))), 1)
    assert len(start(model(lambda: stack(nn.Dropout(0.2)).eval()), 2).rows) == 2


def test_a_scheduler_of_the_outer_rate_is_no_change(make: Any, tmp_path: Path) -> None:
    tuner = make()
    schedule = torch.optim.lr_scheduler.ExponentialLR(tuner.outer, 0.5)

    class Steps(pt.Callback):
        def on_hyper_step(self, tuner: pt.Tuner) -> None:
            schedule.step()

    tuner.fit(3, run_dir=tmp_path / "run", callbacks=[Steps()], progress=False)
    assert len(make().fit(4, run_dir=tmp_path / "run", resume=True, progress=False).rows) == 4


PROGRAM = """
import json, os
import torch
from torch import nn
from pactune.tracking.parts import describe_parts

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tags, self.sizes, self.layer = {"b", "a", "c"}, {"x": (1, 2)}, nn.Linear(2, 2)
        self.made = object()
    def forward(self, x):
        return self.layer(x) if x.shape[0] in {1, 2, 3} and "a" in {"a", "b", "c"} else x

print(json.dumps(describe_parts({"model": Net()}, {"loss": lambda a, b: (a - b) ** 2})))
"""


def test_words_are_the_same_in_every_process() -> None:
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        found.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert found[0] == found[1]
    words = json.loads(found[0])
    assert words["model.tags"] == "set('a', 'b', 'c')"
    assert "0x" not in found[0]


def test_objects_that_hold_themselves_end() -> None:
    module = nn.Linear(2, 2)
    ring: list[Any] = []
    ring.append(ring)
    module.ring = ring  # type: ignore[assignment]
    module.owner = Trainer(1.0)  # type: ignore[assignment]
    assert describe_parts({"model": module}, {})["model.ring.0"] == "the same as model.ring"
