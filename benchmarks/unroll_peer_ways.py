"""The same hypergradient as `unroll_peers.py` measures, written with other libraries and by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Run = Callable[[], list[Tensor]]
LEARNING_RATES = {"sgd": 0.05, "adam": 1e-3}
adam_eps = 1e-4  # with a small ε the first steps are signs of gradients, and their derivatives rounding errors


class Case(NamedTuple):
    """T, K, the inner dynamics, the type of the numbers, and the decay."""

    steps: int
    k: int
    inner: str
    dtype: torch.dtype
    decay: float = 1e-3

    @property
    def lr(self) -> float:
        """Return η."""
        return LEARNING_RATES[self.inner]


def data(dtype: torch.dtype) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return 50 training and 50 validation rows of the size of MNIST images."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 784, generator=generator).to(dtype)
    y = torch.randint(0, 10, (100,), generator=generator)
    return (x[:50], y[:50]), (x[50:], y[50:])


def network(dtype: torch.dtype) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers).to(dtype)


def decays(model: nn.Module, case: Case) -> list[Tensor]:
    return [torch.full_like(p, case.decay).requires_grad_() for p in model.parameters()]


def penalized(scores: Tensor, target: Tensor, params: Sequence[Tensor], decay: Sequence[Tensor]) -> Tensor:
    penalty = sum((0.5 * (d * p * p).sum() for d, p in zip(decay, params, strict=True)), start=scores.new_zeros(()))
    return F.cross_entropy(scores, target) + penalty


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, decay: list[Tensor], case: Case) -> None:
    """Make the T − K steps that are not differentiated."""
    (x, y), _ = data(case.dtype)
    fixed = [d.detach() for d in decay]
    for _ in range(case.steps - case.k):
        optimizer.zero_grad()
        penalized(model(x), y, list(model.parameters()), fixed).backward()
        optimizer.step()


def stock(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    if case.inner == "sgd":
        return torch.optim.SGD(model.parameters(), lr=case.lr)
    return torch.optim.Adam(model.parameters(), lr=case.lr, eps=adam_eps)


def higher_way(case: Case) -> Run:
    import higher

    (x, y), (xv, yv) = data(case.dtype)
    start = network(case.dtype).state_dict()

    def run() -> list[Tensor]:
        model = network(case.dtype)
        model.load_state_dict(start)
        decay, optimizer = decays(model, case), stock(model, case)
        train_plainly(model, optimizer, decay, case)
        with higher.innerloop_ctx(model, optimizer) as (functional, differentiable):
            for _ in range(case.k):
                differentiable.step(penalized(functional(x), y, list(functional.parameters()), decay))
            return list(torch.autograd.grad(F.cross_entropy(functional(xv), yv), decay))

    return run


def torchopt_way(case: Case) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchopt

    (x, y), (xv, yv) = data(case.dtype)

    def run() -> list[Tensor]:
        model = network(case.dtype)
        decay = decays(model, case)
        names = [name for name, _ in model.named_parameters()]
        train_plainly(model, stock(model, case), decay, case)
        adam = case.inner == "adam"
        optimizer = torchopt.MetaAdam(model, lr=case.lr, eps=adam_eps) if adam else torchopt.MetaSGD(model, lr=case.lr)
        for _ in range(case.k):
            params = [getattr(model.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in names]
            optimizer.step(penalized(model(x), y, params, decay))
        return list(torch.autograd.grad(F.cross_entropy(model(xv), yv), decay))

    return run


def hand_way(case: Case) -> Run:
    """Write one autograd graph over K steps, as a careful person would without a library."""
    (x, y), (xv, yv) = data(case.dtype)

    def run() -> list[Tensor]:
        model = network(case.dtype)
        decay = decays(model, case)
        names = [name for name, _ in model.named_parameters()]
        train_plainly(model, stock(model, case), decay, case)
        params = [p.detach().requires_grad_() for p in model.parameters()]
        first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
        for t in range(case.k):
            scores = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (x,))
            found = torch.autograd.grad(F.cross_entropy(scores, y), params, create_graph=True)
            gradient = [g + d * p for g, d, p in zip(found, decay, params, strict=True)]
            if case.inner == "sgd":
                params = [p - case.lr * g for p, g in zip(params, gradient, strict=True)]
                continue
            first = [0.9 * m + 0.1 * g for m, g in zip(first, gradient, strict=True)]
            second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradient, strict=True)]
            scale = case.lr / (1 - 0.9 ** (t + 1))
            roots = [v.sqrt() / (1 - 0.999 ** (t + 1)) ** 0.5 + adam_eps for v in second]
            params = [p - scale * m / r for p, m, r in zip(params, first, roots, strict=True)]
        scores = torch.func.functional_call(model, dict(zip(names, params, strict=True)), (xv,))
        return list(torch.autograd.grad(F.cross_entropy(scores, yv), decay))

    return run


PEERS: dict[str, tuple[Callable[[Case], Run], str | None]] = {
    "one graph by hand": (hand_way, None),
    "higher": (higher_way, "higher"),
    "torchopt": (torchopt_way, "torchopt"),
}


def implicit_peers() -> dict[tuple[str, int], Callable[[Case], Run]]:
    """Return Betty's solvers by name and number of Hessian products.

    They are called as its engine calls them, without the engine, after one step of gradient descent. Its conjugate
    gradients are no longer conjugate from the second product on (each direction is built on the residual before
    last), so only the first can be compared.
    """
    cases = [("neumann", 5), ("neumann", 20), ("cg", 1), ("cg", 5)]
    return {(method, n): partial(betty_way, method=method, products=n) for method, n in cases}


def betty_way(case: Case, method: str, products: int) -> Run:
    from betty.hypergradient.cg import cg
    from betty.hypergradient.neumann import neumann

    (x, y), (xv, yv) = data(case.dtype)
    config = SimpleNamespace(neumann_iterations=products, neumann_alpha=0.1, cg_iterations=products, cg_alpha=1.0)

    def run() -> list[Tensor]:
        model = network(case.dtype)
        decay = decays(model, case)
        params = list(model.parameters())
        penalized(model(x), y, params, [d.detach() for d in decay]).backward()
        torch.optim.SGD(params, lr=case.lr).step()
        vector = torch.autograd.grad(F.cross_entropy(model(xv), yv), params)
        inner: Any = SimpleNamespace(
            paths=[],
            config=config,
            cur_batch=(x, y),
            training_step_exec=lambda batch: penalized(model(batch[0]), batch[1], params, decay),
            trainable_parameters=lambda: params,
            parameters=lambda: params,
        )
        outer: Any = SimpleNamespace(trainable_parameters=lambda: decay)
        solve = neumann if method == "neumann" else cg
        return list(solve(vector, inner, outer))

    return run
