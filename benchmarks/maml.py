"""The time of an outer step of MAML as a ratio to a hand-written `torch.func.vmap` loop and to `higher`, on a CPU.

    python benchmarks/maml.py [--repeats 25] [--outer-steps 50]

Sinusoids of ten rows, eight tasks per outer step, an MLP 1-40-40-1, T inner steps of SGD, Adam as outer optimizer. All
ways draw the same tasks by the same function and take the same outer steps. The gradients of all ways are compared
first. The library records a round after 1000 inner steps; these first outer steps are not measured. `higher` is left
out where it is not installed (`pip install pactune[bench]`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
from collections.abc import Callable
from typing import Any

import torch
from measuring import interleave, machine, ratio, write
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import mse_loss

import pactune as pt
from pactune.streams import Streams

NAME = "maml.json"
WARM_UP = 1000  # inner steps before the library records
TASKS, ROWS, LR, OUTER_LR = 8, 10, 0.01, 1e-3
BARS = {"vmap by hand": 1.0, "higher": 1.0}

Task = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
OuterStep = Callable[[int], float]


def draw(generator: torch.Generator) -> Task:
    """Return a task: a sinusoid with an amplitude in [0.1, 5] and a phase in [0, π], as in the paper of MAML."""
    amplitude, phase = 0.1 + 4.9 * torch.rand((), generator=generator), math.pi * torch.rand((), generator=generator)
    x = 10 * torch.rand(2 * ROWS, 1, generator=generator) - 5
    y = amplitude * torch.sin(x - phase)
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])


def tasks_of(step: int) -> list[Task]:
    """Return the tasks that the library draws at an outer step with seed 0."""
    return [draw(Streams(0).generator("task", step, place)) for place in range(TASKS)]


def network() -> nn.Module:
    """Return the MLP; every call returns the same numbers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))


def by_library(inner_steps: int, engine: str = "auto") -> tuple[OuterStep, list[Tensor]]:
    """Return an outer step of pactune, and the parameters that it tunes."""
    model = network()
    start = pt.Initialization(model)
    problem = pt.Problem(model, start, tasks=draw, tasks_per_step=TASKS, loss=mse_loss)
    outer = torch.optim.Adam(start.parameters(), lr=OUTER_LR)
    settings: dict[str, Any] = {"inner": pt.SGD(lr=LR), "inner_steps": inner_steps, "outer": outer, "engine": engine}
    settings |= {"objective": pt.ValidationRisk(), "hypergradient": pt.Windowed(inner_steps), "restart": True}
    tuner = pt.Tuner(problem, **settings)

    def outer_step(_: int) -> float:
        value = tuner.hypergradient()
        outer.step()
        return value.risk

    values = {name.replace("/", "."): value for name, value in start.values.items()}
    return outer_step, [values[name] for name, _ in model.named_parameters()]


def by_hand(inner_steps: int) -> tuple[OuterStep, list[Tensor]]:
    """Return an outer step with `torch.func.vmap` over the tasks."""
    model = network()
    params: dict[str, Any] = dict(model.named_parameters())
    outer = torch.optim.Adam(params.values(), lr=OUTER_LR)

    def loss(at: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mse_loss(functional_call(model, at, (x,)), y)

    def after_training(at: dict[str, Tensor], x: Tensor, y: Tensor, xv: Tensor, yv: Tensor) -> Tensor:
        for _ in range(inner_steps):
            gradient = grad(loss)(at, x, y)
            at = {name: p - LR * gradient[name] for name, p in at.items()}
        return loss(at, xv, yv)

    def outer_step(step: int) -> float:
        parts = [(*train, *valid) for train, valid in tasks_of(step)]
        data = [torch.stack(column) for column in zip(*parts, strict=True)]
        outer.zero_grad()
        risk = vmap(after_training, in_dims=(None, 0, 0, 0, 0))(params, *data).mean()
        risk.backward()
        outer.step()
        return float(risk.detach())

    return outer_step, list(params.values())


def by_higher(inner_steps: int) -> tuple[OuterStep, list[Tensor]]:
    """Return an outer step as in the MAML example of `higher`: task by task, with a differentiable SGD."""
    import higher

    model = network()
    inner, outer = torch.optim.SGD(model.parameters(), lr=LR), torch.optim.Adam(model.parameters(), lr=OUTER_LR)

    def outer_step(step: int) -> float:
        risks = []
        outer.zero_grad()
        for (x, y), (xv, yv) in tasks_of(step):
            with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (net, moves):
                for _ in range(inner_steps):
                    moves.step(mse_loss(net(x), y))
                risk = mse_loss(net(xv), yv) / TASKS
                risk.backward()
                risks.append(risk.detach())
        outer.step()
        return float(sum(risks))

    return outer_step, list(model.parameters())


def gap(found: tuple[OuterStep, list[Tensor]], wanted: tuple[OuterStep, list[Tensor]]) -> float:
    """Return the largest difference of the gradients of the first outer step, relative to the largest gradient."""
    for step, _ in (found, wanted):
        step(0)
    grads = [torch.cat([p.grad.flatten() for p in params if p.grad is not None]) for _, params in (found, wanted)]
    return float((grads[0] - grads[1]).abs().max() / grads[1].abs().max())


def repeated(way: tuple[OuterStep, list[Tensor]], count: int) -> Callable[[], None]:
    """Return a function that takes `count` further outer steps."""
    outer_step, position = way[0], 0

    def run() -> None:
        nonlocal position
        for _ in range(count):
            outer_step(position)
            position += 1

    return run


def measure(inner_steps: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the ratios for one T."""
    others = {"vmap by hand": by_hand, "higher": by_higher}
    if importlib.util.find_spec("higher") is None:
        del others["higher"]
    gaps = {name: gap(by_library(inner_steps), way(inner_steps)) for name, way in others.items()}
    library = by_library(inner_steps)
    for step in range(WARM_UP // inner_steps + 1):
        library[0](step)
    ways = {"pactune": repeated(library, options.outer_steps)}
    ways |= {name: repeated(way(inner_steps), options.outer_steps) for name, way in others.items()}
    taken = interleave(ways, options.repeats)
    ratios = {name: ratio(taken["pactune"], taken[name]) for name in others}
    seconds = {name: round(min(found) / options.outer_steps * 1e3, 3) for name, found in taken.items()}
    return {"÷": ratios, "milliseconds per outer step": seconds, "largest gap of gradients": gaps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--outer-steps", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), **vars(options), "tasks": TASKS, "bars": BARS}
    found |= {"T": {str(steps): measure(steps, options) for steps in (5, 1)}}
    write(NAME, found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
