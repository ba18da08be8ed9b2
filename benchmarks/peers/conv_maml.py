"""MAML with four convolutions and BatchNorm, 5-way 1-shot, as in the Omniglot example of `higher`.

    python benchmarks/peers/conv_maml.py

Images are random patterns of 28 × 28 pixels, five steps of SGD, four tasks per outer step. BatchNorm normalises by the
batch in every forward, as in the example.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from comparing import Comparison, Way, peer, tuned_start
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import pactune as pt
from pactune.streams import Streams

CLASSES, SHOTS, QUERIES, TASKS, STEPS, LR, OUTER_LR, WIDTH = 5, 1, 5, 4, 5, 0.1, 1e-3, 16
Task = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def draw(generator: torch.Generator) -> Task:
    """Return five classes: a random image each, and noisy copies of it."""
    centres = torch.randn(CLASSES, 1, 1, 28, 28, generator=generator)
    images = centres + 0.5 * torch.randn(CLASSES, SHOTS + QUERIES, 1, 28, 28, generator=generator)
    labels = torch.arange(CLASSES)[:, None].expand(CLASSES, SHOTS + QUERIES)
    few, others = images[:, :SHOTS].flatten(0, 1), images[:, SHOTS:].flatten(0, 1)
    return (few, labels[:, :SHOTS].flatten()), (others, labels[:, SHOTS:].flatten())


def tasks_of(step: int) -> list[Task]:
    """Return the tasks that pactune draws at an outer step with seed 0."""
    return [draw(Streams(0).generator("task", step, place)) for place in range(TASKS)]


def network() -> nn.Module:
    torch.manual_seed(0)
    widths = [1, WIDTH, WIDTH, WIDTH]
    blocks = [
        part
        for before, after in pairwise(widths)
        for part in (
            nn.Conv2d(before, after, 3),
            nn.BatchNorm2d(after, momentum=1, affine=True),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
        )
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(WIDTH, CLASSES))


def tuner(engine: str) -> pt.Tuner:
    model = network()
    hyper = pt.Initialization(model)
    problem = pt.Problem(model, hyper, tasks=draw, tasks_per_step=TASKS, loss=F.cross_entropy)
    outer = torch.optim.Adam(hyper.parameters(), lr=OUTER_LR)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": pt.Windowed(STEPS), "restart": True}
    return pt.Tuner(problem, inner=pt.SGD(lr=LR), inner_steps=STEPS, outer=outer, engine=engine, **settings)


def by_hand() -> Way:
    model = network().train()
    params: dict[str, Any] = dict(model.named_parameters())
    outer, step = torch.optim.Adam(params.values(), lr=OUTER_LR), 0

    def outer_step() -> None:
        nonlocal step
        outer.zero_grad()
        for (x, y), (xv, yv) in tasks_of(step):
            moved = params
            for _ in range(STEPS):
                loss = F.cross_entropy(functional_call(model, moved, (x,)), y)
                found = torch.autograd.grad(loss, list(moved.values()), create_graph=True)
                moved = {name: p - LR * g for (name, p), g in zip(moved.items(), found, strict=True)}
            (F.cross_entropy(functional_call(model, moved, (xv,)), yv) / TASKS).backward()
        outer.step()
        step += 1

    return Way(outer_step, list(params.values()))


def by_higher() -> Way:
    import higher

    model = network().train()
    inner = torch.optim.SGD(model.parameters(), lr=LR)
    outer, step = torch.optim.Adam(model.parameters(), lr=OUTER_LR), 0

    def outer_step() -> None:
        nonlocal step
        outer.zero_grad()
        for (x, y), (xv, yv) in tasks_of(step):
            with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (net, moves):
                for _ in range(STEPS):
                    moves.step(F.cross_entropy(net(x), y))
                (F.cross_entropy(net(xv), yv) / TASKS).backward()
        outer.step()
        step += 1

    return Way(outer_step, list(model.parameters()))


if __name__ == "__main__":
    peers = {"higher": peer(by_higher, "higher", tolerance=1e-2), "by hand": peer(by_hand, tolerance=1e-2)}
    Comparison("conv_maml", tuner, peers, outer_steps=3, bars={"higher": 1.0, "by hand": 1.0}, hyper=tuned_start).main()
