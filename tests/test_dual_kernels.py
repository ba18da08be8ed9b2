"""Batch normalisation of dual numbers, against PyTorch's own derivative in forward mode and finite differences."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from pactune.hypergradient import dual_kernels
from pactune.hypergradient.dual_kernels import dual_batch_norms
from pactune.paper.models import GroupedBatchNorm2d

CHANNELS = 5
LAYERS = {
    "images": (nn.BatchNorm2d, {}, (8, CHANNELS, 4, 3)),
    "rows": (nn.BatchNorm1d, {}, (8, CHANNELS)),
    "series": (nn.BatchNorm1d, {}, (8, CHANNELS, 3)),
    "volumes": (nn.BatchNorm3d, {}, (4, CHANNELS, 2, 3, 2)),
    "without weights": (nn.BatchNorm2d, {"affine": False}, (8, CHANNELS, 4, 3)),
    "without statistics": (nn.BatchNorm2d, {"track_running_stats": False}, (8, CHANNELS, 4, 3)),
    "a cumulative average": (nn.BatchNorm2d, {"momentum": None}, (8, CHANNELS, 4, 3)),
    "a large epsilon": (nn.BatchNorm2d, {"eps": 0.5}, (8, CHANNELS, 4, 3)),
}


class Found(NamedTuple):
    value: Tensor
    slope: Tensor | None
    buffers: list[Tensor]


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def run(layer: nn.Module, x: Tensor, params: dict[str, Tensor], slopes: dict[str, Tensor], *, fast: bool) -> Found:
    """Call a copy of a layer twice with dual numbers; `slopes` has "x" and the names of parameters."""
    layer = copy.deepcopy(layer)
    with forward_ad.dual_level(), dual_batch_norms(layer) if fast else nullcontext():
        dual = {name: forward_ad.make_dual(p, slopes[name]) if name in slopes else p for name, p in params.items()}
        given = forward_ad.make_dual(x, slopes["x"]) if "x" in slopes else x
        functional_call(layer, dual, (given,))
        found = forward_ad.unpack_dual(functional_call(layer, dual, (given,)))
    return Found(found.primal, found.tangent, [buffer.clone() for buffer in layer.buffers()])


def assert_same(found: Found, wanted: Found) -> None:
    torch.testing.assert_close(found.value, wanted.value, rtol=1e-13, atol=1e-13)
    assert (found.slope is None) == (wanted.slope is None)
    if wanted.slope is not None:
        torch.testing.assert_close(found.slope, wanted.slope, rtol=1e-11, atol=1e-13)
    for own, other in zip(found.buffers, wanted.buffers, strict=True):
        torch.testing.assert_close(own, other)


def setting(kind: str) -> tuple[Any, Tensor, dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    cls, options, shape = LAYERS[kind]
    layer = cls(CHANNELS, **options).double()
    params = {name: draw(CHANNELS) for name, _ in layer.named_parameters()}
    return layer, 3 * draw(*shape) + 1, params, {"x": draw(*shape), **{name: draw(CHANNELS) for name in params}}


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the dual numbers that the few kernels made."""
    made: list[Any] = []
    make = dual_kernels.make_dual
    monkeypatch.setattr(dual_kernels, "make_dual", lambda *parts: made.append(parts) or make(*parts))
    return made


@pytest.mark.parametrize("kind", LAYERS)
def test_slopes_values_and_statistics_are_pytorchs(kind: str, backwards: list[Any]) -> None:
    layer, x, params, slopes = setting(kind)
    assert_same(run(layer, x, params, slopes, fast=True), run(layer, x, params, slopes, fast=False))
    assert len(backwards) == 2


@pytest.mark.parametrize("kind", ["images", "rows", "without weights"])
def test_slopes_are_finite_differences(kind: str) -> None:
    layer, x, params, slopes = setting(kind)

    def value(step: float) -> Tensor:
        moved = {name: p + step * slopes[name] for name, p in params.items()}
        return functional_call(copy.deepcopy(layer), moved, (x + step * slopes["x"],))

    found = run(layer, x, params, slopes, fast=True)
    torch.testing.assert_close(found.slope, (value(1e-6) - value(-1e-6)) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("moving", [("x",), ("x", "weight"), ("x", "bias"), ("weight", "bias"), ()])
def test_any_part_may_be_constant(moving: tuple[str, ...]) -> None:
    layer, x, params, slopes = setting("images")
    own = {name: slopes[name] for name in moving}
    assert_same(run(layer, x, params, own, fast=True), run(layer, x, params, own, fast=False))


def test_a_weight_of_zero_is_no_obstacle() -> None:
    layer, x, params, slopes = setting("images")
    params["weight"] = torch.zeros(CHANNELS, dtype=torch.float64)
    assert_same(run(layer, x, params, slopes, fast=True), run(layer, x, params, slopes, fast=False))


def test_evaluation_is_left_to_pytorch(backwards: list[Any]) -> None:
    layer, x, params, slopes = setting("images")
    assert_same(run(layer.eval(), x, params, slopes, fast=True), run(layer.eval(), x, params, slopes, fast=False))
    assert backwards == []


def test_values_inside_a_graph_are_left_to_pytorch(backwards: list[Any]) -> None:
    """The second forward pass would need the derivative of the statistics."""
    layer, x, params, slopes = setting("images")
    found = []
    for fast in (True, False):
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        value = run(layer, factor * x, params, slopes, fast=fast)
        assert value.slope is not None
        found.append(torch.autograd.grad((value.slope**2).sum(), factor)[0])
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)
    assert backwards == []


def test_one_value_per_channel_is_still_an_error() -> None:
    layer, _, params, slopes = setting("rows")
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        run(layer, draw(1, CHANNELS), params, slopes | {"x": draw(1, CHANNELS)}, fast=True)
    with pytest.raises(ValueError, match="expected 4D input"):
        run(setting("images")[0], draw(8, CHANNELS), params, slopes | {"x": draw(8, CHANNELS)}, fast=True)


def test_layers_are_restored_and_other_layers_are_untouched() -> None:
    model = nn.Sequential(nn.BatchNorm2d(2), GroupedBatchNorm2d(2, 4), nn.BatchNorm2d(2))
    own = model[2].forward = lambda x: 2 * x
    inside = {}

    def fail() -> None:
        with dual_batch_norms(model):
            inside.update({i: layer.__dict__.get("forward") for i, layer in enumerate(model)})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside[0] is not None
    assert inside[1] is None
    assert inside[2] is own
    assert "forward" not in model[0].__dict__
    assert model[2].forward is own
