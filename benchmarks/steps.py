"""What a regularized inner step costs, as ratios to the plain training step of the same model and batch, on a CPU.

    python benchmarks/steps.py [--repeats 15] [--only linear|mlp|grid|resnet18|stride]

The plain step is `torch.optim.Adam` in the usual loop. "literal" is Algorithm 1 as one would first write it: three
forward and backward passes per step and Python loops over the tensors. "by hand" is the regularized step with nothing
around it: two passes, and Δ_t, its sums, Adam and the decay written out in place. Compile time is reported apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measuring import RESULTS, interleave, machine, ratio, write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.demo.digits import load_digits
from pactune.engines import Compiled, Eager, Traced
from pactune.objectives.base import Objective
from pactune.paper.models import make_model
from pactune.rounds.engine import Engine
from pactune.stacking.runner import Runner

NAME = "steps.json"
ZETAS = [0.0, *(10.0**-k for k in range(3, 11))]
SEEDS = range(5)


def sample(shape: tuple[int, ...], seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return 50 training and 50 validation images of noise."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.rand(100, *shape, generator=draw), torch.randint(0, 10, (100,), generator=draw)
    return (x[:50], y[:50]), (x[50:], y[50:])


def tuner(
    model: nn.Module,
    shape: tuple[int, ...],
    steps: int,
    *,
    zeta: float = 1e-6,
    objective: Objective | None = None,
    **settings: Any,
) -> pt.Tuner:
    """Return the paper's setting: Adam, a decay for every parameter, T1–T2, K = 0."""
    hyper = pt.WeightDecay(model)
    train, valid = sample(shape)
    problem = pt.Problem(model, hyper, train=train, valid=valid, loss=cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    inner, objective = pt.Adam(lr=1e-4), objective or pt.PACBayes(zeta=zeta)
    return pt.Tuner(problem, inner=inner, inner_steps=steps, outer=outer, objective=objective, **settings)


def rounds(tuners: list[pt.Tuner], engine: Engine | str) -> Callable[[], Any]:
    """Return what runs one round of every tuner."""
    runner = Runner(engine) if isinstance(engine, Engine) else tuners[0].outer_run.runner
    plans = [one.outer_run.plan(1e-6) for one in tuners]
    pairs = list(zip(tuners, plans, strict=True))

    def run() -> None:
        asked = [one.outer_run.chains.requests(plan, one.problem.hyperparameters()) for one, plan in pairs]
        outcomes = iter(runner.run([request for own in asked for request in own]))
        for (one, _), own in zip(pairs, asked, strict=True):
            one.outer_run.chains.follow(one.outer_run.chains.after([next(outcomes) for _ in own]))

    return run


def plain(model: nn.Module, shape: tuple[int, ...], steps: int) -> Callable[[], None]:
    """Return the usual training loop."""
    (x, y), _ = sample(shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def run() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    return run


def literal(model: nn.Module, shape: tuple[int, ...], steps: int) -> Callable[[], None]:
    """Return Algorithm 1 as it is first written: a step, then both gradients of Δ_t, tensor by tensor."""
    (x, y), (xv, yv) = sample(shape)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    params = list(model.parameters())
    decays = [torch.zeros_like(p, requires_grad=True) for p in params]

    def run() -> None:
        sums, total = [torch.zeros_like(p) for p in params], torch.zeros(())
        for _ in range(steps):
            train = torch.autograd.grad(cross_entropy(model(x), y), params)
            valid = torch.autograd.grad(cross_entropy(model(xv), yv), params)
            square = torch.zeros(())
            for p, g, v, decay in zip(params, train, valid, decays, strict=True):
                square = square + ((g + decay * p.detach() - v) ** 2).sum()
            for accumulated, found in zip(sums, torch.autograd.grad(square, decays), strict=True):
                accumulated += 0.5 * found
            total = total + square.detach()
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            with torch.no_grad():
                for p, decay in zip(params, decays, strict=True):
                    p.sub_(1e-4 * decay * p)

    return run


def by_hand(model: nn.Module, shape: tuple[int, ...], steps: int) -> Callable[[], None]:
    """Return the regularized step as few calls as eager PyTorch allows; the floor of an eager engine."""
    (x, y), (xv, yv) = sample(shape)
    params = list(model.parameters())
    decays, first, second = ([torch.zeros_like(p) for p in params] for _ in range(3))
    taken = 0

    def run() -> None:
        nonlocal taken
        sums, total = [torch.zeros_like(p) for p in params], torch.zeros(())
        for _ in range(steps):
            taken += 1
            size, root = 1e-4 / (1 - 0.9**taken), (1 - 0.999**taken) ** 0.5
            train = torch.autograd.grad(cross_entropy(model(x), y), params)
            valid = torch.autograd.grad(cross_entropy(model(xv), yv), params)
            with torch.no_grad():
                for p, g, v, decay, accumulated, m, s in zip(
                    params, train, valid, decays, sums, first, second, strict=True
                ):
                    v.sub_(g).addcmul_(decay, p, value=-1)  # −Δ_t
                    accumulated.addcmul_(v, p, value=-1)
                    total.add_(torch.dot(v.flatten(), v.flatten()))
                    m.lerp_(g, 0.1)
                    s.mul_(0.999).addcmul_(g, g, value=0.001)
                    p.addcdiv_(m, s.sqrt().div_(root).add_(1e-8), value=-size)
                    p.addcmul_(decay, p, value=-1e-4)

    return run


def linear(repeats: int) -> dict[str, Any]:
    """Compare the engines on a linear classifier of 784 × 10."""
    shape, steps = (784,), 401

    def model() -> nn.Module:
        return nn.Linear(784, 10)

    engines: dict[str, Engine | str] = {"eager": "eager", "traced (auto)": Traced(), "compiled": Compiled()}
    ways = {
        "plain": plain(model(), shape, steps),
        "literal": literal(model(), shape, steps),
        "by hand": by_hand(model(), shape, steps),
    }
    first = {}
    for name, engine in engines.items():
        given = engine if isinstance(engine, str) else "eager"
        ways[name] = rounds([tuner(model(), shape, steps, engine=given)], engine)
        begun = time.perf_counter()
        ways[name]()
        first[name] = round(time.perf_counter() - begun, 1)
    taken = interleave(ways, repeats)
    return {
        "microseconds per step": {name: round(statistics.median(t) / steps * 1e6) for name, t in taken.items()},
        "÷ plain": {name: ratio(t, taken["plain"]) for name, t in taken.items()},
        "÷ literal": {name: ratio(t, taken["literal"]) for name, t in taken.items()},
        "seconds of the first round": first,
    }


def mlp(repeats: int) -> dict[str, Any]:
    """Compare the objectives on an MLP of 784-128-10: what protection costs in plain eager steps."""
    shape, steps = (784,), 401

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))

    objectives = {"ζ = 0": pt.ValidationRisk(), "HyperDrift": pt.HyperDrift(1e-6), "Eq. 5": pt.PACBayes(1e-6)}
    ways = {"plain": plain(model(), shape, steps)}
    for name, objective in objectives.items():
        for engine in (Eager(), Traced()):
            made = tuner(model(), shape, steps, objective=objective, engine="eager")
            ways[f"{name}, {type(engine).__name__.lower()}"] = rounds([made], engine)
    taken = interleave(ways, repeats)
    return {
        "microseconds per step": {name: round(statistics.median(t) / steps * 1e6) for name, t in taken.items()},
        "÷ plain": {name: ratio(t, taken["plain"]) for name, t in taken.items()},
    }


def grid(repeats: int) -> dict[str, Any]:
    """Compare 9 ζ × 5 seeds at once with the same runs one after the other."""
    shape, steps = (784,), 101

    def build(zeta: float, seed: int, **settings: Any) -> pt.Tuner:
        torch.manual_seed(seed)
        return tuner(nn.Linear(784, 10), shape, steps, zeta=zeta, seed=seed, **settings)

    cells = [(zeta, seed) for zeta in ZETAS for seed in SEEDS]
    single = [rounds([build(*cell, engine=Traced())], Traced()) for cell in cells]
    eager = [rounds([build(*cell, engine="eager")], "eager") for cell in cells]
    at_once = rounds([build(*cell) for cell in cells], Traced())
    compiled = rounds([build(*cell) for cell in cells], Compiled())
    ways = {
        "one by one, eager": lambda: [run() for run in eager],
        "one by one, traced": lambda: [run() for run in single],
        "at once, traced": at_once,
        "at once, compiled": compiled,
    }
    taken = interleave(ways, repeats)
    return {
        "milliseconds per step of all": {n: round(statistics.median(t) / steps * 1e3, 2) for n, t in taken.items()},
        "÷ one by one, eager": {n: ratio(t, taken["one by one, eager"]) for n, t in taken.items()},
        "÷ one by one, traced": {n: ratio(t, taken["one by one, traced"]) for n, t in taken.items()},
    }


def resnet18(repeats: int) -> dict[str, Any]:
    """Compare on ResNet-18 with 50 + 50 images of 28 × 28."""
    shape, steps = (1, 28, 28), 4

    def model() -> nn.Module:
        return make_model("resnet18", shape, seed=0)

    ways = {
        "plain": plain(model(), shape, steps),
        "literal": literal(model(), shape, steps),
        "eager": rounds([tuner(model(), shape, steps, engine="eager")], "eager"),
    }
    taken = interleave(ways, max(repeats // 3, 3))
    # A round of T steps has one more gradient for T1–T2 and the risk at θ_T; at T = 1000 they do not count.
    return {
        "milliseconds per step": {name: round(statistics.median(t) / steps * 1e3, 1) for name, t in taken.items()},
        "÷ plain, T = 4 with its end": {name: ratio(t, taken["plain"]) for name, t in taken.items()},
        "regularized step alone ÷ plain": _without_end(model, shape, max(repeats // 3, 3)),
    }


def _without_end(model: Callable[[], nn.Module], shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """Return the ratio from the difference of rounds of 9 and of 1 steps, so that the end of a round drops out."""
    ways = {
        "long": rounds([tuner(model(), shape, 9, engine="eager")], "eager"),
        "short": rounds([tuner(model(), shape, 1, engine="eager")], "eager"),
        "plain": plain(model(), shape, 8),
    }
    taken = interleave(ways, repeats)
    return ratio([a - b for a, b in zip(taken["long"], taken["short"], strict=True)], taken["plain"])


def stride(repeats: int) -> dict[str, Any]:
    """Measure Δ_t at every s-th step: time, and what becomes of a run on digits."""
    shape, steps, strides = (784,), 401, (1, 2, 5, 10)
    ways = {
        str(s): rounds([tuner(nn.Linear(784, 10), shape, steps, path_stride=s, engine="eager")], Traced())
        for s in strides
    }
    taken = interleave(ways, repeats)
    return {
        "time ÷ stride 1": {s: ratio(t, taken["1"]) for s, t in taken.items()},
        "digits, 10 draws": {str(s): _digits(s) for s in strides},
    }


def _digits(s: int, draws: int = 10) -> dict[str, float]:
    """Return test accuracies and regularizers after 40 outer steps of 100 at ζ = 1e-4, mean and standard deviation."""
    accuracies, regularizers = [], []
    for draw in range(draws):
        (x, y), test = load_digits(100, draw)
        halves: dict[str, Any] = {"train": (x[:50], y[:50]), "valid": (x[50:], y[50:])}
        torch.manual_seed(draw)
        model = nn.Linear(64, 10)
        hyper = pt.WeightDecay(model)
        problem = pt.Problem(model, hyper, **halves, loss=cross_entropy)
        outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
        one = pt.Tuner(
            problem,
            inner=pt.Adam(lr=2e-3),
            inner_steps=100,
            outer=outer,
            objective=pt.PACBayes(zeta=1e-4),
            path_stride=s,
            seed=draw,
        )
        row = one.fit(40, test=test, plain_steps=0, progress=False).rows[-1]
        accuracies.append(row["test_accuracy"])
        regularizers.append(row["regularizer"])
    return {
        "test accuracy": round(statistics.mean(accuracies), 4),
        "standard deviation over draws": round(statistics.stdev(accuracies), 4),
        "regularizer": round(statistics.mean(regularizers), 3),
    }


PARTS = {"linear": linear, "mlp": mlp, "grid": grid, "resnet18": resnet18, "stride": stride}


def main() -> None:
    """Run the parts asked for and keep the others' last results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / NAME
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results["machine"] = machine()
    for name in options.only or PARTS:
        results[name] = PARTS[name](options.repeats)
        print(name, json.dumps(results[name], indent=1, ensure_ascii=False))
        write(NAME, results)


if __name__ == "__main__":
    main()
