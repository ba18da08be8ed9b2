"""The time of `zeta="auto"` as a ratio to one tuned run at a fixed ζ, on a CPU.

    python benchmarks/auto_zeta.py [--repeats 5] [--outer-steps 20] [--inner-steps 100]

The rule makes ten tuned runs on folds, five plain ones, and the final run with plain training beside it. The tuned run
at a fixed ζ has plain training beside it too. "one after the other" is the eager engine, which stacks nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

import torch
from measuring import interleave, machine, ratio, write
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt

NAME = "auto_zeta.json"
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear 784-10": lambda: nn.Linear(784, 10),
    "MLP 784-32-10": lambda: nn.Sequential(nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10)),
}


def fit(model: str, zeta: Any, options: argparse.Namespace, engine: str = "auto") -> Callable[[], pt.Result]:
    """Return a function that tunes the decays of a new model on 50 + 50 images of noise."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 784, generator=draw), torch.randint(0, 10, (100,), generator=draw)

    def run() -> pt.Result:
        torch.manual_seed(0)
        net = MODELS[model]()
        hyper = pt.WeightDecay(net)
        problem = pt.Problem(net, hyper, train=(x[:50], y[:50]), valid=(x[50:], y[50:]), loss=cross_entropy)
        outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
        settings = {"inner": pt.Adam(lr=1e-3), "inner_steps": options.inner_steps, "outer": outer, "engine": engine}
        tuner = pt.Tuner(problem, objective=pt.PACBayes(zeta=zeta), **settings)
        return tuner.fit(options.outer_steps, progress=False)

    return run


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the ratios for one model."""
    ways = {
        "fixed ζ": fit(model, 1e-5, options),
        'zeta="auto"': fit(model, "auto", options),
        'zeta="auto", one after the other': fit(model, "auto", options, engine="eager"),
    }
    taken = interleave(ways, options.repeats)
    return {name: ratio(seconds, taken["fixed ζ"]) for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--outer-steps", type=int, default=20)
    parser.add_argument("--inner-steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), **vars(options), "bar": 6.0}
    found |= {"÷ fixed ζ": {model: measure(model, options) for model in MODELS}}
    write(NAME, found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
