"""Tuners in several threads: each gives what it gives alone, and torch's global state is left as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt

pytestmark = pytest.mark.slow


class Attention(nn.Module):
    """One head over four positions, which forces the plain kernel in second-order code."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.queries(x)[:, None, :, None].expand(-1, 1, 4, 2)
        mixed = nn.functional.scaled_dot_product_attention(rows, rows, rows)
        return self.out(mixed.mean((1, 3)))  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "linear": lambda: nn.Linear(4, 3),
    "attention": Attention,
}


def build(kind: str, seed: int) -> pt.Tuner:
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[kind]()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
    hyper = pt.WeightDecay(model)
    x, y = torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy, batch_size=7)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(
        problem,
        inner=pt.SGD(0.05),
        inner_steps=4,
        outer=outer,
        objective=pt.PACBayes(0.1),
        hypergradient=pt.Truncated(2),
        seed=seed,
        chains=2,
    )


@pytest.mark.parametrize("kind", MODELS)
def test_threads_give_what_each_gives_alone(kind: str) -> None:
    def history(tuner: pt.Tuner) -> Any:
        return tuner.fit(3, progress=False).history.drop(columns="seconds")

    alone = [history(build(kind, seed)) for seed in range(4)]
    flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    tuners, found = [build(kind, seed) for seed in range(4)], dict[int, Any]()
    before = torch.get_rng_state()
    threads = [threading.Thread(target=lambda n=n, t=t: found.update({n: history(t)})) for n, t in enumerate(tuners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[n].equals(expected) for n, expected in enumerate(alone))
    assert torch.equal(torch.get_rng_state(), before)
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()) == flags
