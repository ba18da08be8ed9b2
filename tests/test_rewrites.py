"""Rewrites of recorded operations: fewer operations, the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pactune.engines.rewrites import DIRECT, MOST_HELD, call_directly, hold_constants, hold_numbers
from pactune.engines.tracing import trace

aten = torch.ops.aten
A, B = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).double().unbind()


def targets(function: Callable[..., list[Tensor]], *example: Tensor, **settings: bool) -> list[object]:
    """Return the operations of a recording, after a comparison with the function itself, bit for bit."""
    graph = trace(function, list(example), **settings)
    for found, wanted in zip(graph.forward(*example), function(*example), strict=True):
        assert torch.equal(found, wanted)
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


def test_equal_operations_are_computed_once() -> None:
    twice = lambda a, b: [(a * b).sum(), (a * b).exp()]  # noqa: E731
    assert targets(twice, A, B).count(aten.mul.Tensor) == 2
    assert targets(twice, A, B, merge=True).count(aten.mul.Tensor) == 1


def test_equal_operations_stay_apart_if_a_view_of_one_is_changed() -> None:
    def changed(a: Tensor, b: Tensor) -> list[Tensor]:
        first, second = a * b, a * b
        first.view(-1).add_(1)
        return [first, second]

    assert targets(changed, A, B, merge=True).count(aten.mul.Tensor) == 2


def test_lists_that_foreach_operations_change_stay_apart() -> None:
    def changed(a: Tensor, b: Tensor) -> list[Tensor]:
        lists = [torch._foreach_mul([a, b], 0.9) for _ in range(2)]
        for one in lists:
            torch._foreach_add_(one, [b, a])
        return [tensor for one in lists for tensor in one]

    assert targets(changed, A, B, merge=True).count(aten._foreach_mul.Scalar) == 2


def test_statistics_of_a_batch_norm_stay_apart() -> None:
    def normalised(a: Tensor, mean: Tensor, var: Tensor) -> list[Tensor]:
        copies = [(mean.clone(), var.clone()) for _ in range(2)]
        outputs = [nn.functional.batch_norm(a, *copy, training=True) for copy in copies]
        return [*outputs, *(part for copy in copies for part in copy)]

    targets(normalised, A, torch.zeros(3).double(), torch.ones(3).double(), merge=True)


def test_a_loss_that_only_starts_a_backward_is_left_out() -> None:
    def gradient(a: Tensor, b: Tensor) -> list[Tensor]:
        a = a.detach().requires_grad_()
        with torch.enable_grad():
            return list(torch.autograd.grad((a * b).sum(), a))

    assert aten.sum.default in targets(gradient, A, B)
    assert aten.sum.default not in targets(gradient, A, B, merge=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("reduction", "half"), [("mean", False), ("mean", True), ("sum", False)])
def test_the_gradient_of_a_squared_error_starts_with_a_difference(
    dtype: torch.dtype, reduction: str, half: bool
) -> None:
    def gradient(a: Tensor, b: Tensor) -> list[Tensor]:
        a = a.detach().requires_grad_()
        with torch.enable_grad():
            error = nn.functional.mse_loss(a, b, reduction=reduction)
            return list(torch.autograd.grad(error / 2 if half else error, a))

    found = targets(gradient, A.to(dtype), B.to(dtype), merge=True)
    shorter = reduction == "mean" and not half and dtype != torch.float16
    assert (aten.mse_loss_backward.default not in found) is shorter


def test_sums_with_zeros_and_two_transposes_are_left_out() -> None:
    def empty(a: Tensor) -> list[Tensor]:
        total = torch.zeros_like(a)
        total.add_(a * 2)
        return [total.transpose(0, 1).transpose(0, 1).t().t() + 1]

    assert targets(empty, A, merge=True) == [aten.mul.Tensor, aten.add.Tensor]


@pytest.mark.parametrize(("classes", "axis"), [(5, 1), (40, 2)])
def test_a_softmax_over_a_short_axis_is_transposed(classes: int, axis: int) -> None:
    def gradients(x: Tensor, w: Tensor, y: Tensor) -> list[Tensor]:
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            risks = torch.vmap(lambda x, w, y: cross_entropy(x @ w.T, y))(x, w, y)
            return list(torch.autograd.grad(risks.sum(), w))

    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=draw).double() for shape in ((3, 60, 4), (3, classes, 4)))
    example = [x, w, torch.randint(0, classes, (3, 60), generator=draw)]
    graph = trace(gradients, example, transpose=True, merge=True)
    softmax = graph.graph.find_nodes(op="call_function", target=aten._log_softmax.default)
    assert [node.args[1] for node in softmax] == [axis]
    assert torch.allclose(graph.forward(*example)[0], gradients(*example)[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_held_numbers_give_the_same_numbers(dtype: torch.dtype) -> None:
    def step(a: Tensor, b: Tensor) -> list[Tensor]:
        return [0.7 * a, a * 2, 0.1 * b.sum(), (a > 0) * 0.3, a.to(torch.float32) * 1e-3]

    a, b = A.to(dtype), B.to(dtype)
    graph = trace(step, [a, b])
    hold_numbers(graph)
    graph.recompile()
    assert graph.graph.find_nodes(op="get_attr")
    for found, wanted in zip(graph.forward(a, b), step(a, b), strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)


def test_direct_calls_give_the_same_numbers() -> None:
    def step(a: Tensor, b: Tensor) -> list[Tensor]:
        total = (a * b).sum(0, keepdim=True).expand(4, 3) - a.t().t() / 3
        moved = torch._foreach_mul([a, total], torch.tensor(0.5))
        torch._foreach_div_(moved, [b, b])
        bounded = torch.maximum(torch.minimum(a.exp(), b.sigmoid()), a.abs().sqrt().log().tanh())
        scalars = torch.stack([(a @ b[0]).pow(2).sum(), b.sum().clamp_min(0.1), torch.zeros((), dtype=a.dtype)])
        errors = nn.functional.mse_loss(a, b), (a - b).square().mean(0)
        return [total.relu().view(12), *moved, torch.log_softmax(total, 1), bounded.div_(2), scalars, *errors]

    graph = trace(step, [A, B])
    before = [node.target for node in graph.graph.nodes]
    call_directly(graph)
    after = [node.target for node in graph.graph.nodes]
    assert any(a is not b for a, b in zip(before, after, strict=True))
    assert not set(DIRECT).intersection(after)
    for found, wanted in zip(graph.forward(A, B), step(A, B), strict=True):
        assert torch.equal(found, wanted)


def test_constants_are_kept_unless_they_are_changed_or_returned() -> None:
    def steps(a: Tensor) -> list[Tensor]:
        start = torch.ones((), dtype=a.dtype).expand(4, 3) / 4
        sums, total = torch.zeros(4, 3, dtype=a.dtype), torch.zeros(4, dtype=a.dtype)
        sums.add_(a * start)
        return [sums, total.view(2, 2)]

    graph = trace(steps, [A])
    hold_constants(graph)
    graph.recompile()
    left = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert left.count(aten.zeros.default) == 2
    assert aten.expand.default not in left
    assert aten.div.Tensor not in left
    for _ in range(2):  # the second call must not read what the first one has changed
        for found, wanted in zip(graph.forward(A), steps(A), strict=True):
            assert torch.equal(found, wanted)
            found.add_(1)


def test_large_constants_are_not_kept() -> None:
    def shifted(a: Tensor) -> list[Tensor]:
        return [a + torch.full((MOST_HELD + 1,), 2.0, dtype=a.dtype)]

    graph = trace(shifted, [A.new_zeros(1)])
    hold_constants(graph)
    assert any(node.target is aten.full.default for node in graph.graph.nodes)


def test_a_sum_drops_its_axes_without_a_view() -> None:
    found = targets(lambda a: [a.sum(1, keepdim=True).view(4), a.sum(0, keepdim=True).view(3, 1)], A, merge=True)
    assert found.count(aten.view.default) == 1  # the second one does more than drop an axis


def test_a_sum_stays_before_a_change_of_its_tensor() -> None:
    def changed(a: Tensor) -> list[Tensor]:
        copy = a.clone()
        total = copy.sum(1, keepdim=True)
        copy.add_(1)
        return [copy, total.view(4)]

    targets(changed, A, merge=True)
