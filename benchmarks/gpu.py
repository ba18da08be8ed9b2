"""What a regularized inner step costs on a CUDA device: ResNet-18 alone and ten at once, and a grid of linear models.

    python benchmarks/gpu.py [--output gpu.json] [--only "ten runs"] [--kernels]

Each line is measured in one run with the plain eager training step (`torch.optim.Adam`) as its unit. A round includes
its end, in which the last step is differentiated (T1–T2). The time to compile and capture is what the first round takes
beyond a later one. A second run of the command finds the compiled kernels on disk, and says so. All rows but the first
two have TF32 and channels last.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from measuring import RESULTS, machine, write
from torch import nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import pactune as pt
from pactune.engines import Captured, Eager
from pactune.objectives.base import Objective
from pactune.paper.models import make_model
from pactune.rounds.engine import Engine
from pactune.rounds.plan import RoundOutcome
from pactune.stacking.runner import Runner

FAST = {"tf32": True, "channels_last": True}
ZETA = 1e-6
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # hardware queues: with more of them, more runs are side by side


class Case(NamedTuple):
    """What is measured: an engine, the runs at once, the inner steps of a round, and the objective."""

    engine: Engine
    runs: int = 1
    steps: int = 1001
    objective: Objective = pt.PACBayes(zeta=ZETA)


SHORT = 28  # steps of a round whose kernels are printed
ALONE, TEN = "one run, ", "ten runs, "
CASES = {
    "eager": Case(Eager(), steps=31),
    ALONE + "captured": Case(Captured()),
    ALONE + "updates fused": Case(Captured(fuse="updates", **FAST)),
    ALONE + "updates fused, ζ = 0": Case(Captured(fuse="updates", **FAST), objective=pt.ValidationRisk()),
    ALONE + "updates fused, HyperDrift": Case(Captured(fuse="updates", **FAST), objective=pt.HyperDrift(zeta=ZETA)),
    ALONE + "steps fused": Case(Captured(fuse="steps", **FAST)),
    TEN + "captured": Case(Captured(steps=10, **FAST), 10),
    TEN + "updates fused": Case(Captured(steps=10, fuse="updates", **FAST), 10),
    TEN + "steps fused": Case(Captured(steps=10, fuse="steps", **FAST), 10),
    TEN + "steps fused, bfloat16": Case(Captured(steps=10, fuse="steps", autocast="bfloat16", **FAST), 10),
}


def tuner(model: nn.Module, shape: tuple[int, ...], steps: int, seed: int, objective: Objective) -> pt.Tuner:
    """Return the paper's setting on 50 + 50 images of noise."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(100, *shape, generator=draw).cuda()
    y = torch.randint(0, 10, (100,), generator=draw).cuda()
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=(x[:50], y[:50]), valid=(x[50:], y[50:]), loss=cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    inner = pt.Adam(lr=1e-4)
    return pt.Tuner(problem, inner=inner, inner_steps=steps, outer=outer, objective=objective, seed=seed)


def seconds(run: Callable[[], Any]) -> float:
    """Return the wall-clock time of a call, with everything on the device done."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def compiled_programs() -> int:
    """Return how many programs this process has compiled, without those whose kernels were on disk."""
    return int(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"])


def plain_step() -> float:
    """Return the milliseconds of a plain eager training step of ResNet-18."""
    model = make_model("resnet18", (1, 28, 28), seed=0).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = torch.rand(50, 1, 28, 28).cuda(), torch.randint(0, 10, (50,)).cuda()

    def run() -> None:
        for _ in range(30):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    run()
    return min(seconds(run) for _ in range(3)) / 30 * 1e3


def rounds_of(case: Case, outcomes: list[RoundOutcome]) -> Callable[[], None]:
    """Return a function that runs a round of every run of a case on ResNet-18, and keeps the outcomes."""
    shape = (1, 28, 28)
    models = [make_model("resnet18", shape, seed=i).cuda() for i in range(case.runs)]
    tuners = [tuner(model, shape, case.steps, i, case.objective) for i, model in enumerate(models)]
    pairs = [(one, one.outer_run.plan(one.settings.zeta)) for one in tuners]
    runner = Runner(case.engine)

    def run() -> None:
        asked = [one.outer_run.chains.requests(plan, one.problem.hyperparameters()) for one, plan in pairs]
        outcomes[:] = runner.run([request for own in asked for request in own])

    return run


def resnet18(only: str) -> Iterator[tuple[str, Any]]:
    """Measure engines on ResNet-18: those whose names contain a text. Yield a name and a row at a time."""
    unit = plain_step()
    for name, case in CASES.items():
        if only not in name:
            continue
        outcomes: list[RoundOutcome] = []
        run = rounds_of(case, outcomes)
        before = compiled_programs()
        first, later = seconds(run), seconds(run)
        each = later / (case.steps * case.runs) * 1e3
        fuses = isinstance(case.engine, Captured) and case.engine.fuse is not None
        on_disk = fuses and compiled_programs() == before
        found = {
            "ms per run and step": round(each, 3),
            "÷ plain": round(each / unit, 3),
            "plain eager step, ms": round(unit, 2),
            "seconds to capture" + (", kernels on disk" if on_disk else ""): round(first - later, 1),
            "risk": round(float(outcomes[0].risk), 5),
            "√Y": round(float(outcomes[0].regularizer), 2),
        }
        yield name, found
        del run, outcomes
        gc.collect()
        torch.cuda.empty_cache()


def print_kernels(only: str, most: int = 40) -> None:
    """Print the kernels of a short round by their time, for every case whose name contains a text."""
    for name, case in CASES.items():
        if only not in name:
            continue
        run = rounds_of(case._replace(steps=SHORT), [])
        run()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            seconds(run)
        kernels: dict[str, list[float]] = {}
        for event in found.events():
            if event.device_type == torch.autograd.DeviceType.CUDA:
                kernels.setdefault(event.name, []).append(event.device_time)
        print(f"{name}: a round of {SHORT} steps, its first one and its end eager or checked", flush=True)
        for kernel, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:most]:
            print(f"{sum(times) / 1e3:9.3f} ms {len(times):6d} × {kernel[:100]}", flush=True)


def linear_grid(only: str) -> Iterator[tuple[str, Any]]:
    """Run 9 ζ × 5 seeds of linear classifiers for outer steps of 1000, of which 100 make the bar. Yield a row each."""

    def build(zeta: float, seed: int) -> pt.Tuner:
        torch.manual_seed(seed)
        return tuner(nn.Linear(784, 10).cuda(), (784,), 1000, seed, pt.PACBayes(zeta=zeta))

    cells = {"zeta": [0.0, *(10.0**-k for k in range(3, 11))], "seed": list(range(5))}
    for name, outer_steps in (("fused", 100), ("captured", 20)):
        if only not in f"linear, {name}":
            continue

        def run(outer_steps: int, name: str = name) -> None:
            pt.fit_grid(build, cells, outer_steps=outer_steps, plain_steps=0, engine=name)

        first = seconds(lambda run=run: run(1))  # type: ignore[misc]
        whole = seconds(lambda run=run, count=outer_steps: run(count))  # type: ignore[misc]
        in_a_new_process = "seconds of one outer step in a new process, compiling included"
        yield name, {"outer steps": outer_steps, "seconds": round(whole, 1), in_a_new_process: round(first, 1)}


def main() -> None:
    """Measure all and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default="gpu.json", help="name under benchmarks/results")
    parser.add_argument("--only", default="", help="measure only rows whose names contain this text")
    parser.add_argument(
        "--kernels", action="store_true", help="print the kernels of a short round, and measure nothing"
    )
    options = parser.parse_args()
    os.environ.setdefault(CONNECTIONS, "32")
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")  # an engine says why it is slow
    if options.kernels:
        print_kernels(options.only)
        return
    parts = {"linear 784 × 10, 9 ζ × 5 seeds": linear_grid, "ResNet-18, 50 + 50 images of 28 × 28": resnet18}
    known = RESULTS / options.output
    results: dict[str, Any] = json.loads(known.read_text("utf-8")) if known.exists() else {}
    results["machine"] = {**machine(), "device": torch.cuda.get_device_name()}
    for part, measure in parts.items():
        for name, row in measure(options.only):
            old = results.setdefault(part, {}).get(name)
            both = isinstance(old, dict) and isinstance(row, dict)
            results[part][name] = {**old, **row} if both else row  # the times with and without kernels on disk
            write(options.output, results)
            print(name, row, flush=True)


if __name__ == "__main__":
    main()
