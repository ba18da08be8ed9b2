"""The time of five folds with a refit as a ratio to one tuned run on all rows, and the time of the rule for the step.

    python benchmarks/folds_time.py [--repeats 2]

"all rows" trains on all 100 rows and validates on all of them, which nobody should do: it is the run that the bars
name. It validates on copies of the rows, so that it computes two gradients per step as every other run does. "50 + 50
rows" splits them. These runs have no plain training beside them. The rule `keep="held-out"` needs plain training, so it
is compared with folds that have it too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from measuring import machine, ratio, write
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt

BARS = {"linear 784-10": 3.0, "MLP 784-128-10": 5.5}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear 784-10": lambda: nn.Linear(784, 10),
    "MLP 784-128-10": lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
}


HALF = (torch.zeros(50, 784), torch.zeros(50, dtype=torch.long))


class Scale(NamedTuple):
    """How long a run is: its outer steps, and T."""

    outer_steps: int
    inner_steps: int


SCALES = {"linear 784-10": Scale(20, 1000), "MLP 784-128-10": Scale(5, 400)}
RULE_SCALE = Scale(5, 200)


def fit(model: str, data: dict[str, Any], options: Scale, **given: Any) -> Callable[[], pt.Result]:
    """Return a function that tunes the decays of a new model."""

    def run() -> pt.Result:
        torch.manual_seed(0)
        net = MODELS[model]()
        hyper = pt.WeightDecay(net)
        problem = pt.Problem(net, hyper, loss=cross_entropy, **data)
        outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
        tuner = pt.Tuner(
            problem,
            inner=pt.Adam(lr=1e-3),
            inner_steps=options.inner_steps,
            outer=outer,
            objective=pt.PACBayes(1e-5),
        )
        return tuner.fit(
            options.outer_steps,
            progress=False,
            plain_steps=given.get("plain_steps", 0),
            keep=given.get("keep", "last"),
        )

    return run


def measure(model: str, repeats: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the seconds of CPU time of the ways to use 100 rows, and of the rule for the step."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 784, generator=draw), torch.randint(0, 10, (100,), generator=draw)
    folds: dict[str, Any] = {"data": (x, y), "folds": 5}
    scale = SCALES[model]
    ways = {
        "all rows": fit(model, {"train": (x, y), "valid": (x.clone(), y.clone())}, scale),
        "50 + 50 rows": fit(model, {"train": (x[:50], y[:50]), "valid": (x[50:], y[50:])}, scale),
        "five folds + refit": fit(model, folds, scale),
    }
    rules = {
        "five folds + refit, with plain": fit(model, folds, RULE_SCALE, plain_steps=RULE_SCALE.outer_steps),
        'keep="held-out"': fit(model, folds, RULE_SCALE, keep="held-out"),
    }
    return _in_turn(ways, repeats), _in_turn(rules, repeats)


def _in_turn(ways: dict[str, Callable[[], pt.Result]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of CPU time of every way. The runs are long, so none of them runs once before."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            start = time.process_time()
            run()
            taken[name].append(time.process_time() - start)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fit("linear 784-10", {"train": HALF, "valid": HALF}, Scale(2, 1100))()  # imports what recordings need
    found: dict[str, Any] = {"machine": machine(), **vars(options), "bars": BARS}
    for model in MODELS:
        taken, rules = measure(model, options.repeats)
        found[model] = {
            "÷ all rows": {name: ratio(own, taken["all rows"]) for name, own in taken.items()},
            "÷ 50 + 50 rows": {name: ratio(own, taken["50 + 50 rows"]) for name, own in taken.items()},
            "÷ five folds + refit, with plain": {
                name: ratio(own, rules["five folds + refit, with plain"]) for name, own in rules.items()
            },
            "seconds, all rows": round(statistics.median(taken["all rows"]), 3),
            "outer steps and T": SCALES[model],
        }
    write("folds_time.json", found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
