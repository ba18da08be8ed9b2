"""Peak memory against the number of inner steps T: flat for K = 0 and K = 1, growing for a window over all steps.

Every measurement is a process of its own. The number is the peak resident set over the whole process less that before
the first round, so that torch itself does not count. It varies from process to process with what the allocator gives
back, by up to a factor of two, so the median of three is shown and all three are kept: differences of this size between
two settings mean nothing. Run `python benchmarks/memory.py`; it takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import pactune as pt

RESULTS = Path(__file__).parent / "results" / "memory.json"
WIDTH = 1000  # 1.0 million parameters, 4 MB a copy
SETTINGS = ["K=0", "K=1", "window"]
STEPS = [10, 2000]
RUNS = 3
LONGEST_WINDOW = 100  # a window over 2000 steps would need 8 GB


def build(setting: str, steps: int) -> pt.Tuner:
    """Return a tuner of a linear model with a weight decay for every one of its million elements."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    hyper = pt.WeightDecay(model, per="element")
    x, y = torch.randn(8, WIDTH), torch.randint(0, WIDTH, (8,))
    problem = pt.Problem(model, hyper, train=(x, y), valid=(x, y), loss=nn.functional.cross_entropy)
    path = {"K=0": pt.Truncated(0), "K=1": pt.Truncated(1), "window": pt.Windowed(steps)}[setting]
    return pt.Tuner(
        problem,
        inner=pt.SGD(1e-3),
        inner_steps=steps,
        outer=torch.optim.SGD(hyper.parameters(), lr=1e-2),
        objective=pt.PACBayes(zeta=1e-3),
        hypergradient=pt.Truncated(1),
        path_hypergradient=path,
    )


def peak() -> float:
    """Return the peak resident set of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(setting: str, steps: int) -> float:
    """Return by how many MB one round raises the peak."""
    tuner = build(setting, steps)
    before = peak()
    tuner.hypergradient()
    return peak() - before


def in_a_process(setting: str, steps: int) -> float:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--setting", setting, "--steps", str(steps)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=SETTINGS)
    parser.add_argument("--steps", type=int)
    given = parser.parse_args()
    if given.setting:
        print(measure(given.setting, given.steps))
        return
    rows = []
    print(f"{'path':>8} {'T':>6} {'MB over start':>14}")
    for setting in SETTINGS:
        for steps in STEPS if setting != "window" else [STEPS[0], LONGEST_WINDOW]:
            runs = sorted(round(in_a_process(setting, steps), 1) for _ in range(RUNS))
            rows.append({"path": setting, "steps": steps, "megabytes": statistics.median(runs), "runs": runs})
            print(f"{setting:>8} {steps:>6} {rows[-1]['megabytes']:>14}", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    about = {"parameters": WIDTH**2, "megabytes_per_copy": WIDTH**2 * 4 / 2**20, "torch": torch.__version__}
    RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
