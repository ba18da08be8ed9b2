"""Peak memory of a grid whose cells hold the same data, and of folds of one sample.

    python benchmarks/shared_data.py [--cells 400] [--before FOLDER]

Every way runs two outer steps in a process of its own. The number is what `fit_grid` adds to the resident set at its
peak, in megabytes. `--before` names a folder with the sources of another version, which is measured beside this one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from measuring import added_megabytes, machine, write
from torch.nn import functional as F  # noqa: N812

import pactune as pt

ROWS, COLUMNS, CLASSES = 1000, 392, 3  # 1.5 MB in float32
X = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
Y = torch.arange(ROWS) % CLASSES
WAYS: dict[str, Any] = {
    "one tensor": lambda _: {"train": (X, Y), "valid": (X, Y)},
    "views of one tensor": lambda _: {"train": (X[:500], Y[:500]), "valid": (X[500:], Y[500:])},
    "labels of their own": lambda seed: {"train": (X, (Y + seed) % CLASSES), "valid": (X, Y)},
    "folds": lambda _: {"data": (X, Y), "folds": 5, "refit": False},
}


def build(given: Any, seed: int) -> pt.Tuner:
    """Return the tuner of one cell: a linear classifier whose first inputs decide."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(COLUMNS, CLASSES)
    hyper = pt.WeightDecay(model, per="tensor", init=0.01)
    problem = pt.Problem(model, hyper, loss=F.cross_entropy, **given(seed))
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings: dict[str, Any] = {
        "inner": pt.SGD(0.1),
        "inner_steps": 4,
        "objective": pt.PACBayes(0.1),
        "engine": "traced",
    }
    return pt.Tuner(problem, outer=outer, seed=seed, **settings)


def measure(way: str, cells: int) -> float:
    """Return the megabytes that a grid adds."""
    run = lambda count: pt.fit_grid(  # noqa: E731
        lambda seed: build(WAYS[way], seed), {"seed": list(range(count))}, outer_steps=2
    )
    run(2)  # imports and caches
    return added_megabytes(lambda: run(cells))


def in_version(way: str, cells: int, folder: Path | None) -> float:
    """Return the same from a fresh process, with the sources of a folder."""
    environment = os.environ | ({} if folder is None else {"PYTHONPATH": str(folder)})
    command = [sys.executable, __file__, "--way", way, "--cells", str(cells)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return round(float(done.stdout.split()[-1]), 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cells", type=int, default=400)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--way", choices=WAYS)
    arguments = parser.parse_args()
    if arguments.way is not None:
        print(measure(arguments.way, arguments.cells))
        return
    results: dict[str, Any] = {"machine": machine(), "cells": arguments.cells, "megabytes": {}}
    for way in WAYS:
        found = {"now": in_version(way, arguments.cells, None)}
        if arguments.before is not None:
            found["before"] = in_version(way, arguments.cells, arguments.before)
        results["megabytes"][way] = found
        print(way, found)
    write("shared_data.json", results)


if __name__ == "__main__":
    main()
