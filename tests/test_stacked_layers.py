"""Convolutions and batch normalisation of stacked runs, against those of torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

import pactune as pt
from pactune.engines import Captured
from pactune.engines.replayed_chain import static_copies
from pactune.stacking import layers, stack, structure
from pactune.stacking.layers import FEW, StackedLayers, batch_norm, conv2d, layers_for, linear, only_products
from tests.cuda_graphs_on_cpu import emulate

SIZES = (9, 8), (7, 5), (2, 2), (1, 1)
KERNELS = (3, 3), (1, 1), (7, 7), (2, 3)
PLACES = [  # stride, padding, dilation
    *itertools.product((1, 2, (2, 1)), (0, 1, 3, (1, 2)), (1, 2)),
    (1, "same", 1),
    (1, "same", 2),
    (2, "valid", 1),
]


def random(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_convolution_is_the_one_of_torch_with_its_gradients(size: Any, kernel: Any) -> None:
    compared = 0
    for stride, padding, dilation in PLACES:
        x, weight, bias = random(3, 2, *size), random(4, 2, *kernel, seed=1), random(4, seed=2)
        try:
            wanted = F.conv2d(x, weight, bias, stride, padding, dilation)
        except RuntimeError:  # the kernel is larger than the padded image
            continue
        found = conv2d(x, weight, bias, stride, padding, dilation)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        cotangent = torch.randn_like(wanted)
        pairs = zip(*(torch.autograd.grad(y, (x, weight, bias), cotangent) for y in (found, wanted)), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
        compared += 1
    assert compared > 4


def test_a_convolution_can_be_differentiated_twice() -> None:
    inputs = random(2, 2, 4, 4), random(3, 2, 3, 3, seed=1)
    assert torch.autograd.gradgradcheck(lambda x, w: conv2d(x, w, None, 2, 1), inputs)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 2, 2)])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_is_the_one_of_torch(training: bool, shape: tuple[int, ...], affine: bool) -> None:
    x, weight, bias = random(*shape), random(3, seed=1), random(3, seed=2)
    scales = (weight, bias) if affine else (None, None)
    found, statistics = [], []
    for function in (batch_norm, F.batch_norm):
        running = torch.full((3,), 0.5, dtype=torch.float64), torch.full((3,), 2.0, dtype=torch.float64)
        y = function(x, *running, *scales, training=training, momentum=0.3, eps=1e-3)
        leaves = (x, weight, bias) if affine else (x,)
        found.append([y, *torch.autograd.grad((y * random(*shape, seed=3)).sum(), leaves)])
        statistics.append(running)
    for one, other in [*zip(*found, strict=True), *zip(*statistics, strict=True)]:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_a_batch_norm_without_running_statistics_takes_those_of_the_batch() -> None:
    norm = nn.BatchNorm1d(3, track_running_stats=False).double().eval()
    with StackedLayers():
        found = norm(random(5, 3))
    torch.testing.assert_close(found, norm(random(5, 3)), rtol=1e-10, atol=1e-12)


def test_other_convolutions_are_those_of_torch_and_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(1, 2, 4, 4), random(2, 1, 3, 3, seed=1)
    torch.testing.assert_close(conv2d(x, weight, groups=2), F.conv2d(x, weight, groups=2))
    with only_products(), pytest.raises(NotImplementedError, match="is not faster stacked"):
        conv2d(x, weight, groups=2)
    monkeypatch.setattr(layers, "LARGEST", 100)
    whole = random(2, 2, 3, 3, seed=1)
    torch.testing.assert_close(conv2d(x, whole), F.conv2d(x, whole))
    with only_products(), pytest.raises(NotImplementedError, match=r"shape \(1, 2, 4, 4\)"):
        conv2d(x, whole)


def test_models_without_such_layers_have_no_mode() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert not isinstance(layers_for(nn.Linear(2, FEW + 1), cpu), StackedLayers)
    assert isinstance(layers_for(nn.Linear(2, FEW), cpu), StackedLayers)
    assert not isinstance(layers_for(nn.Linear(2, FEW), cuda), StackedLayers)
    assert isinstance(layers_for(nn.Sequential(nn.Conv2d(1, 1, 1)), cuda), StackedLayers)


@pytest.mark.parametrize("shape", [(4,), (6, 4), (2, 3, 4), (2, 3, 5, 4)])
@pytest.mark.parametrize("outputs", [1, 3, FEW + 1])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_the_one_of_torch(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    """So are its first and second derivatives, and models may take views of it."""
    x, weight = random(3, *shape), random(3, outputs, 4, seed=1)
    biases = random(3, outputs, seed=2) if bias else None
    leaves = [x, weight] if biases is None else [x, weight, biases]
    found = []
    for function in (linear, F.linear):
        y = torch.vmap(function, in_dims=(0, 0, 0 if bias else None))(x, weight, biases)
        assert y[0].view(-1).shape == (y[0].numel(),)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((part.square()).sum() for part in first), leaves)
        found.append([y, *first, *second])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_the_weight_gradient_of_a_stacked_narrow_layer_has_few_rows() -> None:
    """XᵀG, which `torch.vmap` makes of it, is several times slower than GᵀX on a CPU."""
    x, weight = random(2, 50, 4), random(2, 3, 4, seed=1)
    products = {}
    for name, function in {"ours": linear, "torch": F.linear}.items():
        y = torch.vmap(function)(x.detach(), weight)
        with Products() as calls:
            torch.autograd.grad(y.sum(), weight)
        products[name] = calls.shapes
    assert products == {"ours": [(2, 3, 4)], "torch": [(2, 4, 3)]}


class Products(TorchDispatchMode):
    """Notes the shapes of batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bmm.default:
            self.shapes.append(tuple(found.shape))
        return found


def network() -> nn.Module:
    torch.manual_seed(0)
    parts = [nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)]
    more = [nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)]
    return nn.Sequential(*parts, *more).double()


def build(zeta: float, draw: int, **settings: Any) -> pt.Tuner:
    data = torch.Generator().manual_seed(draw)
    x = torch.randn(24, 1, 4, 4, generator=data, dtype=torch.float64)
    y = torch.randint(0, 3, (24,), generator=data)
    model = network()
    hyper = pt.WeightDecay(model, init=0.1)
    rows = {"train": (x[:12], y[:12]), "valid": (x[12:], y[12:])}
    problem = pt.Problem(model, hyper, loss=F.cross_entropy, batch_size=settings.pop("batch_size", None), **rows)
    return pt.Tuner(
        problem,
        inner=settings.pop("inner", pt.Adam(lr=1e-2)),
        inner_steps=6,
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.PACBayes(zeta=zeta),
        **settings,
    )


SETTINGS: dict[str, dict[str, Any]] = {
    "Adam": {},
    "mini-batches": {"batch_size": 4},
    "averaged": {"inner": pt.Averaged(pt.SGD(lr=0.05, momentum=0.9), beta=0.8)},
    "online": {"online": True},
    "windows": {"path_hypergradient": pt.Windowed(3)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_stacked_networks_give_the_runs_of_single_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"zeta": [0.0, 0.1], "draw": [0, 1]}

    def run(engine: Any) -> Any:
        return pt.fit_grid(
            lambda **cell: build(**cell, **SETTINGS[name]), grid, outer_steps=3, engine=engine, progress=False
        )

    wanted = run("eager")
    monkeypatch.setattr(structure, "has_stacked_layers", lambda model: False)  # as if on a CUDA device
    stacked: list[int] = []
    join = stack.Stack.join
    monkeypatch.setattr(stack.Stack, "join", lambda own, requests: stacked.append(len(requests)) or join(own, requests))
    emulate(monkeypatch)
    for engine in ("traced", Captured(steps=3, channels_last=True)):
        stacked.clear()
        found = run(engine)
        assert max(stacked) == 4
        for column in ("objective", "regularizer", "valid_risk", "weight_norm"):
            expected = wanted.history[column].to_numpy()
            assert found.history[column].to_numpy() == pytest.approx(expected, rel=1e-7), (engine, column)
        for one, other in zip(found.results, wanted.results, strict=True):
            for key, value in other.model.state_dict().items():
                torch.testing.assert_close(one.model.state_dict()[key], value, rtol=1e-6, atol=1e-9)


def refusal(caplog: pytest.LogCaptureFixture) -> str:
    """Return what is logged when two runs start."""
    grid = {"zeta": [0.0], "draw": [0, 1]}
    with caplog.at_level("INFO"):
        pt.fit_grid(build, grid, outer_steps=1, engine="traced", progress=False)
    return caplog.text


def test_stacked_networks_on_a_cpu_run_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    assert "a model with convolutions or batch normalisation is not faster stacked on a CPU" in refusal(caplog)


def test_networks_whose_convolutions_are_large_are_not_stacked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(structure, "has_stacked_layers", lambda model: False)
    monkeypatch.setattr(layers, "LARGEST", 100)
    assert "runs are not stacked: NotImplementedError: a convolution of images" in refusal(caplog)


def test_wrong_statistics_are_seen_by_the_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(structure, "has_stacked_layers", lambda model: False)
    wrong = lambda x, mean, var, *rest, **more: batch_norm(x, mean.clone(), var, *rest, **more)  # noqa: E731
    monkeypatch.setitem(layers._FORMS, F.batch_norm, wrong)
    assert "do not give the risks that each gives alone" in refusal(caplog)


@pytest.mark.parametrize("layer", [nn.Conv1d(2, 3, 2), nn.ConvTranspose1d(2, 3, 2)])
def test_convolutions_of_other_kinds_are_those_of_torch_and_can_be_refused(layer: nn.Module) -> None:
    x = torch.randn(4, 2, 5)
    wanted = layer(x)
    with StackedLayers():
        torch.testing.assert_close(layer(x), wanted)
        with only_products(), pytest.raises(NotImplementedError, match="is not faster stacked"):
            layer(x)


@pytest.mark.parametrize("axes", [4, 5])
def test_static_copies_are_channels_last_behind_the_axis_of_the_runs(axes: int) -> None:
    tensor = torch.randn(2, 3, 4, 5, 6)[:, : 3 if axes == 5 else 1].flatten(0, 5 - axes)
    (copy,) = static_copies([tensor], torch.device("cpu"), torch.channels_last, axes)
    assert torch.equal(copy, tensor)
    assert copy.stride(axes - 3) == 1
