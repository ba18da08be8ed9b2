"""`torch.set_default_device` and `torch.set_default_dtype` are the user's: no number depends on them.

The default device "meta" holds no numbers. A tensor that the library makes without naming its device therefore fails,
on a machine without a GPU too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._device import _device_constructors
from torch.utils.data import DataLoader, TensorDataset

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.integrations.batches import EndlessBatches
from pactune.privacy import DPSGLD, membership_audit
from pactune.problem.provenance import Provenance
from pactune.streams import Streams
from tests.conftest import shorten_search
from tests.quadratic import Quadratic

ROOT = Path(pt.__file__).parent
FACTORIES = {function.__name__ for function in _device_constructors()}


@contextmanager
def default(value: Any) -> Iterator[None]:
    """Set the default device, or the default type."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(value) if isinstance(value, torch.dtype) else torch.set_default_device(value)
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_default_device(None)


def unplaced(source: str) -> list[str]:
    """Return the calls of torch's factories that name no device."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    made = [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "torch"
        and call.func.attr in FACTORIES
    ]
    return [ast.unparse(call) for call in made if "device" not in {word.arg for word in call.keywords}]


def test_every_new_tensor_names_its_device() -> None:
    found = {str(path.relative_to(ROOT)): unplaced(path.read_text(encoding="utf-8")) for path in ROOT.rglob("*.py")}
    assert len(found) > 100
    assert not {path: calls for path, calls in found.items() if calls}


def test_the_search_finds_factories() -> None:
    assert {"zeros", "arange", "randperm", "as_tensor", "tensor", "linspace", "eye", "randn"} <= FACTORIES
    assert unplaced("torch.zeros(3)\nx.zeros(3)\ntorch.ones(2, device=d)\ntorch.arange(n, dtype=t)") == [
        "torch.zeros(3)",
        "torch.arange(n, dtype=t)",
    ]


# The same numbers


def net(linear: Any) -> nn.Module:
    return nn.Sequential(linear(), nn.BatchNorm1d(3), nn.Dropout(0.3))


SETTINGS: dict[str, dict[str, Any]] = {
    "all rows": {},
    "mini-batches, K = 2": {"batch_size": 4, "hypergradient": pt.Truncated(2), "path_hypergradient": pt.Truncated(2)},
    "eager": {"batch_size": 4, "engine": "eager"},
    "several chains": {"inner": pt.Langevin(0.05, 1000.0), "chains": 3, "restart": True, "batch_size": 4},
    "schedule": {"inner": pt.SGD(lr=lambda t: 0.1 / (1 + t)), "engine": "traced"},
    "torch.optim": {"inner": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)},
    "implicit": {"hypergradient": pt.Implicit(pt.Neumann(3))},
    "windowed": {"path_hypergradient": pt.Windowed(2)},
    "online": {"online": True},
    "hyper drift": {"objective": pt.HyperDrift(0.05)},
    "chosen ζ": {"objective": pt.PACBayes("auto")},
}


DEFAULTS = [(name, value) for name in SETTINGS for value in ("meta", torch.float64)]


@pytest.mark.parametrize(("name", "value"), [*DEFAULTS, ("eager", "cpu"), ("eager", torch.bfloat16)], ids=str)
def test_a_fit_is_bit_for_bit_the_same(make: Any, classes: Any, linear: Any, name: str, value: Any) -> None:
    found = []
    for other in (None, value):
        model = net(linear)
        hyper = pt.WeightDecay(model, init=0.05)
        parts, test = {"train": classes(12, 1), "valid": classes(10, 2)}, classes(9, 3)
        with default(other):
            result = make(model, hyper, **parts, **SETTINGS[name]).fit(2, progress=False, test=test)
        values = [{k: v for k, v in row.items() if k != "seconds"} for row in (*result.rows, *result.plain_rows)]
        found.append((values, dict(model.state_dict()), dict(hyper.state_dict())))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def _dataset(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, data = linear(), TensorDataset(*classes(12, 1))
    hyper, valid = pt.WeightDecay(model), classes(10, 2)
    return lambda: make(model, hyper, train=data, valid=valid, batch_size=4).fit(2, progress=False).rows[-1]["risk"]


def _loader(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, data = linear(), DataLoader(TensorDataset(*classes(12, 1)), batch_size=4, shuffle=True)
    hyper, valid = pt.WeightDecay(model), classes(10, 2)
    return lambda: make(model, hyper, train=data, valid=valid).fit(2, progress=False).rows[-1]["risk"]


def _grid(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    parts = {seed: (linear(seed), classes(12, 1), classes(10, 2)) for seed in (0, 1)}
    hypers = {seed: pt.WeightDecay(model) for seed, (model, _, _) in parts.items()}

    def build(seed: int) -> pt.Tuner:
        model, train, valid = parts[seed]
        found: pt.Tuner = make(model, hypers[seed], train=train, valid=valid, batch_size=4, seed=seed)
        return found

    return lambda: pt.fit_grid(build, {"seed": [0, 1]}, outer_steps=2, progress=False).history["objective"].tolist()


def _check(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, train, valid = linear(), classes(12, 1), classes(10, 2)
    hyper = pt.WeightDecay(model)
    return lambda: pt.check_hypergradient(make(model, hyper, train=train, valid=valid)).estimate.tolist()


def _row_losses(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, train, valid = linear(), classes(12, 1), classes(10, 2)
    loss = lambda p, y: F.cross_entropy(p, y)  # noqa: E731 - not one of torch's own, so that rows are asked for singly
    problem = pt.Problem(model, pt.WeightDecay(model), train=train, valid=valid, loss=loss)
    return lambda: problem.row_losses(problem.valid).tolist()


def _certificates(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, train, valid, fresh = linear(), classes(60, 1), classes(60, 2), classes(50, 3)
    problem = pt.Problem(model, pt.WeightDecay(model), train=train, valid=valid, loss=F.cross_entropy)
    free = Provenance().touch("prior hyper").touch("default hyper").touch("initial").touch("model").touch("hyper")
    sides = [
        lambda: bounds.HoldOut(model, fresh, provenance=free),
        lambda: bounds.TrainSide(problem, CoupledChains(0.2, 50.0, 5), provenance=free, models=2),
    ]
    return lambda: [pt.certify(side()).value for side in sides]


def _privacy(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, data = linear(), classes(12, 1)
    scores = torch.linspace(0, 1, 400), torch.linspace(0.1, 1.1, 400)

    def run() -> Any:
        generator = torch.Generator().manual_seed(0)
        private = DPSGLD(lr=0.1, clip=0.5, batch_size=4).run(model, data, loss=F.cross_entropy, generator=generator)
        return private.params["weight"].tolist(), membership_audit(*scores, delta=0.1)

    return run


def _monitor(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, batches = net(linear), [(classes(6, t), classes(5, 50 + t)) for t in range(4)]

    def run() -> float:
        monitor = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=0.1, on_nonfinite="skip")
        endless = EndlessBatches([valid for _, valid in batches])
        for train, _ in batches:
            monitor.step(train, endless.take())
        again = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=0.1)
        again.load_state_dict(monitor.state_dict())
        return again.regularizer

    return run


def _quadratic(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    return lambda: Quadratic.draw(3, Streams(0).generator("A")).A.tolist()


def _tune(make: Any, classes: Any, linear: Any) -> Callable[[], Any]:
    model, (x, y) = linear(), classes(24, 1)
    data, settings = (x.cumsum(1), y), {"folds": 3, "inner_steps": 2, "engine": "eager", "progress": False}

    def run() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            shorten_search(patch)
            result = pt.tune(model, data, loss=F.cross_entropy, metric="neg_log_loss", test=data, **settings)
        return result.verdict, [p.tolist() for p in result.model.parameters()]

    return run


OTHERS = [_dataset, _loader, _grid, _check, _row_losses, _certificates, _privacy, _monitor, _quadratic, _tune]


@pytest.mark.parametrize("value", ["meta", torch.float64], ids=str)
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__[1:])
def test_other_parts_give_the_same_numbers(make: Any, classes: Any, linear: Any, case: Any, value: Any) -> None:
    expected = case(make, classes, linear)()
    run = case(make, classes, linear)
    with default(value):
        assert run() == expected


def test_a_resumed_run_is_the_same(make: Any, classes: Any, linear: Any, tmp_path: Path) -> None:
    def fit(steps: int, **settings: Any) -> float:
        model = net(linear)
        hyper, train, valid = pt.WeightDecay(model, init=0.05), classes(12, 1), classes(10, 2)
        with default("meta"):
            tuner = make(model, hyper, train=train, valid=valid, batch_size=4)
            value: float = tuner.fit(steps, progress=False, **settings).rows[-1]["objective"]
        return value

    fit(2, run_dir=tmp_path / "run")
    assert fit(4, run_dir=tmp_path / "run", resume=True) == fit(4)


def test_hyperparameters_are_made_where_torch_makes_parameters() -> None:
    with default("meta"):
        assert pt.ExampleWeights(3).logits.device.type == "meta"
    with default(torch.float64):
        assert pt.ExampleWeights(3).logits.dtype == torch.float64
