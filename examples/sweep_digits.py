"""A cell of a sweep
=================

What `pactune sweep examples/sweep_digits.toml` runs: ζ × seed × model on scikit-learn's digits.

`build(**cell)` makes the tuner of one cell on the worker. Run as a script, this file fits a single cell, which is the
way to see that `build` works before a hundred of them start.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import pactune as pt

MODELS = {
    "linear": lambda: nn.Linear(64, 10),
    "hidden": lambda: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
}
ROWS = 50  # to train on, and as many to validate on


def load() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]


def test_set() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load()
    return x[1000:], y[1000:]


def build(zeta: float, seed: int, model: str) -> pt.Tuner:
    x, y = load()
    first = 2 * ROWS * seed  # every seed has images of its own; there are enough for ten
    train, valid = slice(first, first + ROWS), slice(first + ROWS, first + 2 * ROWS)
    torch.manual_seed(seed)
    net = MODELS[model]()
    hyper = pt.WeightDecay(net)
    problem = pt.Problem(net, hyper, train=(x[train], y[train]), valid=(x[valid], y[valid]), loss=F.cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    objective = pt.PACBayes(zeta)
    return pt.Tuner(problem, inner=pt.Adam(lr=2e-3), inner_steps=50, outer=outer, objective=objective, seed=seed)


if __name__ == "__main__":
    result = build(zeta=1e-5, seed=0, model="linear").fit(3, test=test_set(), progress=False)
    print(result.history[["outer_step", "valid_accuracy", "test_accuracy", "objective"]].to_string(index=False))

    figure, axes = plt.subplots()
    axes.plot(result.history["outer_step"], result.history["test_accuracy"], "o-")
    axes.set(xlabel="outer step", ylabel="test accuracy", title="One cell: ζ = 1e-5, seed 0, linear")
    axes.locator_params(axis="x", integer=True)
    plt.show()
