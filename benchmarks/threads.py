"""What a second thread is worth: rounds in one thread and in all, on an idle machine and beside a busy process.

    python benchmarks/threads.py [--repeats 7] [--output benchmarks/results/threads.json]

The ratios are wall-clock times in all threads over those in one, for a round of eager steps of Eq. 5. `work` is what
`SHORT` of pactune/threads.py is compared with. Run it while nothing else does.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS, interleave, machine, ratio
from torch import nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.rounds.forwards import try_forwards
from pactune.stacking import runner
from pactune.threads import SHORT

STEPS = 40
CASES = [
    ((64, 10), 50),
    ((64, 10), 500),
    ((784, 10), 50),
    ((784, 10), 500),
    ((784, 10), 2000),
    ((3072, 10), 50),
    ((784, 128, 10), 16),
    ((784, 128, 10), 64),
    ((784, 128, 10), 500),
    ((784, 1000, 200, 10), 2),
]


def mlp(widths: tuple[int, ...]) -> nn.Module:
    """Return linear layers with ReLU between them."""
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def tuner(widths: tuple[int, ...], rows: int) -> pt.Tuner:
    """Return a tuner whose batches have so many training and so many validation rows."""
    torch.manual_seed(0)
    model = mlp(widths)
    hyper = pt.WeightDecay(model)
    train, valid = ((torch.randn(rows, widths[0]), torch.randint(0, 10, (rows,))) for _ in range(2))
    problem = pt.Problem(model, hyper, loss=cross_entropy, train=train, valid=valid)
    return pt.Tuner(
        problem,
        inner=pt.Adam(lr=1e-4),
        inner_steps=STEPS,
        outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
        objective=pt.PACBayes(zeta=1e-6),
        engine="eager",
    )


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep a core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measured(widths: tuple[int, ...], rows: int, repeats: int) -> dict[str, float]:
    """Return the ratio of a round in all threads to one in a single thread."""
    made = tuner(widths, rows)
    ways: dict[str, Callable[[], Any]] = {
        name: partial(_round, made, short) for name, short in (("all", -1.0), ("one", math.inf))
    }
    taken = interleave(ways, repeats, time.perf_counter)
    return ratio(taken["all"], taken["one"])


def _round(made: pt.Tuner, short: float) -> None:
    runner.SHORT = short
    made.hypergradient()


def main() -> None:
    """Measure every case, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS / "threads.json")
    options = parser.parse_args()
    cases = []
    for widths, rows in CASES:
        work = try_forwards(tuner(widths, rows).problem).work_of_step
        idle = measured(widths, rows, options.repeats)
        with busy_process():
            busy = measured(widths, rows, options.repeats)
        case = {"model": "-".join(map(str, widths)), "rows": rows, "work": work, "idle": idle, "busy": busy}
        cases.append(case)
        print(f"{case['model']}, {rows} rows: {work:.1e}", idle, busy, flush=True)
    found = {"machine": machine(), "steps": STEPS, "short": SHORT, "cases": cases}
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
