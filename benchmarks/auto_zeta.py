"""The time of `zeta="auto"` as a ratio to one tuned run at a fixed ζ.

    python benchmarks/auto_zeta.py [--repeats 5] [--outer-steps 20] [--inner-steps 100]
    python benchmarks/auto_zeta.py --device cuda --models 'linear 784-10' --outer-steps 20 5 --inner-steps 100 1000

The rule makes ten tuned runs on folds, five plain ones, and the final run with plain training beside it. The tuned run
at a fixed ζ has plain training beside it too. "one after the other" is the eager engine, which stacks nothing. It is
left out on a CUDA device, where the default engine is the captured one and eager steps take minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from measuring import device_clock, interleave, machine, ratio, write
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt

NAMES = {"cpu": "auto_zeta.json", "cuda": "auto_zeta_cuda.json"}
BARS = {"cpu": 6.0, "cuda": 2.5}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear 784-10": lambda: nn.Linear(784, 10),
    "MLP 784-32-10": lambda: nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10)),
}


class Scale(NamedTuple):
    """How long a run is: its outer steps, and T."""

    outer_steps: int
    inner_steps: int


def fit(model: str, zeta: Any, scale: Scale, device: str, engine: str = "auto") -> Callable[[], pt.Result]:
    """Return a function that tunes the decays of a new model on 50 + 50 images of noise."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 784, generator=draw), torch.randint(0, 10, (100,), generator=draw)
    x, y = x.to(device), y.to(device)

    def run() -> pt.Result:
        torch.manual_seed(0)
        net = MODELS[model]().to(device)
        hyper = pt.WeightDecay(net)
        problem = pt.Problem(net, hyper, train=(x[:50], y[:50]), valid=(x[50:], y[50:]), loss=cross_entropy)
        outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
        settings: dict[str, Any] = {
            "inner": pt.Adam(lr=1e-3),
            "inner_steps": scale.inner_steps,
            "outer": outer,
            "engine": engine,
        }
        tuner = pt.Tuner(problem, objective=pt.PACBayes(zeta=zeta), **settings)
        return tuner.fit(scale.outer_steps, progress=False)

    return run


def measure(model: str, scale: Scale, device: str, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of every way to choose ζ."""
    ways = {"fixed ζ": fit(model, 1e-5, scale, device), 'zeta="auto"': fit(model, "auto", scale, device)}
    if device == "cpu":
        ways['zeta="auto", one after the other'] = fit(model, "auto", scale, device, engine="eager")
    return interleave(ways, repeats, time.process_time if device == "cpu" else device_clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(NAMES), default="cpu")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--outer-steps", type=int, nargs="+", default=[20])
    parser.add_argument("--inner-steps", type=int, nargs="+", default=[100], help="one per number of outer steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), **vars(options), "bar": BARS[options.device]}
    if options.device == "cuda":
        found["machine"]["device"] = torch.cuda.get_device_name()
    scales = [Scale(*pair) for pair in zip(options.outer_steps, options.inner_steps, strict=True)]
    ratios, seconds = found.setdefault("÷ fixed ζ", {}), found.setdefault("seconds at a fixed ζ", {})
    for model, scale in itertools.product(options.models, scales):
        taken = measure(model, scale, options.device, options.repeats)
        label = f"{model}, T = {scale.inner_steps}"
        ratios[label] = {name: ratio(own, taken["fixed ζ"]) for name, own in taken.items()}
        seconds[label] = round(statistics.median(taken["fixed ζ"]), 3)
    write(NAMES[options.device], found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
