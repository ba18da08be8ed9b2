"""What `CoherenceMonitor` costs: CPU time of a training step with and without it, as a ratio.

python benchmarks/monitor_cost.py [--steps 60] [--output benchmarks/results/monitor_cost.json]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear 64-10": (lambda: nn.Linear(64, 10), (64,)),
    "two layers 64-512-10": (lambda: nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)), (64,)),
    "three convolutions, BatchNorm": (
        lambda: nn.Sequential(
            *(layer for n in (1, 32, 32) for layer in (nn.Conv2d(n, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        ),
        (1, 8, 8),
    ),
}
BATCH = 64


def seconds(model: nn.Module, shape: tuple[int, ...], steps: int, settings: dict[str, Any] | None) -> float:
    """Return the CPU time of a step; process time is that of this process alone, however busy the machine is."""
    x, y = torch.randn(2 * BATCH, *shape), torch.randint(0, 10, (2 * BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    watch = dict(settings or {})
    stored = watch.pop("stored", True)
    monitor = pt.CoherenceMonitor(model, F.cross_entropy, **watch)
    start = 0.0
    for t in range(steps + 5):
        if t == 5:  # warm
            start = time.process_time()
        optimizer.zero_grad()
        F.cross_entropy(model(x[:BATCH]), y[:BATCH]).backward()
        if settings is not None:
            monitor.step(None if stored else (x[:BATCH], y[:BATCH]), (x[BATCH:], y[BATCH:]))
        optimizer.step()
    return (time.process_time() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "monitor_cost.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ways = {"alone": None, ".grad": {}, "train batch": {"stored": False}, ".grad, every=10": {"every": 10}}
    results: dict[str, Any] = {}
    for name, (make, shape) in MODELS.items():
        least = {
            way: min(seconds(make(), shape, options.steps, given) for _ in range(options.repeats))
            for way, given in ways.items()
        }
        ratios = {way: round(value / least["alone"], 2) for way, value in least.items()}
        results[name] = {"milliseconds_alone": round(1000 * least["alone"], 3), "ratio": ratios}
        print(name, results[name], flush=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
