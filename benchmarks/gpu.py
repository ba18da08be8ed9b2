"""What a regularized inner step costs on a CUDA device: ResNet-18 alone and ten at once, and a grid of linear models.

    python benchmarks/gpu.py [--output gpu.json] [--only "ten runs"] [--kernels]
    python benchmarks/gpu.py --tiny --device cpu --output FILE

Each line is measured in one run with the plain eager training step (`torch.optim.Adam`) as its unit. A round includes
its end, in which the last step is differentiated (T1–T2). The time to compile and capture is what the first round takes
beyond a later one. A second run of the command finds the compiled kernels on disk, and says so. All rows but the first
two have TF32 and channels last.

An engine that cannot record or compile steps runs slower ones and says so. Its words are kept beside the times.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measuring import RESULTS, machine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

import pactune as pt
from pactune.engines import Captured, Eager
from pactune.objectives.base import Objective
from pactune.paper.models import ModelName, make_model
from pactune.rounds.engine import Engine
from pactune.rounds.engine import log as engine_log
from pactune.rounds.plan import RoundOutcome
from pactune.stacking.runner import Runner

FAST: dict[str, Any] = {"tf32": True, "channels_last": True}
ZETA = 1e-6
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"  # hardware queues: with more of them, more runs are side by side


class Scale(NamedTuple):
    """How large the runs are."""

    model: ModelName = "resnet18"
    shape: tuple[int, ...] = (1, 28, 28)
    most_steps: int = 1001  # of a round
    outer_steps: int = 100  # of the linear grid


TINY = Scale("linear", (1, 8, 8), 6, 1)


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
    ALONE + "steps fused, bfloat16": Case(Captured(fuse="steps", autocast="bfloat16", **FAST)),
    TEN + "captured": Case(Captured(steps=10, **FAST), 10),
    TEN + "updates fused": Case(Captured(steps=10, fuse="updates", **FAST), 10),
    TEN + "steps fused": Case(Captured(steps=10, fuse="steps", **FAST), 10),
    TEN + "steps fused, bfloat16": Case(Captured(steps=10, fuse="steps", autocast="bfloat16", **FAST), 10),
}


def images(scale: Scale, rows: int, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Return images of noise with labels, in the form that the model takes."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, *scale.shape, generator=draw).to(device)
    y = torch.randint(0, 10, (rows,), generator=draw).to(device)
    return (x.flatten(1) if scale.model == "linear" else x), y


def tuner(
    model: nn.Module, scale: Scale, steps: int, seed: int, objective: Objective, device: torch.device
) -> pt.Tuner:
    """Return the paper's setting on 50 + 50 images of noise."""
    x, y = images(scale, 100, device, seed)
    hyper = pt.WeightDecay(model)
    problem = pt.Problem(model, hyper, train=(x[:50], y[:50]), valid=(x[50:], y[50:]), loss=cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    inner = pt.Adam(lr=1e-4)
    return pt.Tuner(problem, inner=inner, inner_steps=steps, outer=outer, objective=objective, seed=seed)


def wait(device: torch.device) -> None:
    """Wait until everything on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Return the wall-clock time of a call, with everything on the device done."""
    wait(device)
    begun = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - begun


@contextmanager
def kept_words() -> Iterator[list[str]]:
    """Give a list that receives what engines say meanwhile, each sentence once. They speak only of slower ways."""
    words: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            words.extend({record.getMessage()}.difference(words))

    keeper = Keeper()
    engine_log.addHandler(keeper)
    try:
        yield words
    finally:
        engine_log.removeHandler(keeper)


def compiled_programs() -> int:
    """Return how many programs this process has compiled, without those whose kernels were on disk."""
    return int(torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"])


def plain_step(scale: Scale, device: torch.device) -> float:
    """Return the milliseconds of a plain eager training step."""
    model = make_model(scale.model, scale.shape, seed=0).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x, y = images(scale, 50, device, 0)

    def run() -> None:
        for _ in range(30):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()

    run()
    return min(seconds(run, device) for _ in range(3)) / 30 * 1e3


def rounds_of(case: Case, scale: Scale, device: torch.device, outcomes: list[RoundOutcome]) -> Callable[[], None]:
    """Return a function that runs a round of every run of a case, and keeps the outcomes."""
    models = [make_model(scale.model, scale.shape, seed=i).to(device) for i in range(case.runs)]
    tuners = [tuner(model, scale, case.steps, i, case.objective, device) for i, model in enumerate(models)]
    pairs = [(one, one.outer_run.plan(one.settings.zeta)) for one in tuners]
    runner = Runner(case.engine)

    def run() -> None:
        asked = [one.outer_run.chains.requests(plan, one.problem.hyperparameters()) for one, plan in pairs]
        outcomes[:] = runner.run([request for own in asked for request in own])

    return run


def networks(only: str, scale: Scale, device: torch.device) -> Iterator[tuple[str, Any]]:
    """Measure engines on networks: those whose names contain a text. Yield a name and a row at a time."""
    unit = plain_step(scale, device)
    for name, case in chosen(only, scale).items():
        outcomes: list[RoundOutcome] = []
        run = rounds_of(case, scale, device, outcomes)
        before = compiled_programs()
        with kept_words() as words:
            first, later = seconds(run, device), seconds(run, device)
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
            "what the engine said": words,
        }
        yield name, found
        del run, outcomes
        gc.collect()
        torch.cuda.empty_cache()


def chosen(only: str, scale: Scale) -> dict[str, Case]:
    """Return the cases whose names contain a text, with rounds that are not longer than the scale allows."""
    return {
        name: case._replace(steps=min(case.steps, scale.most_steps)) for name, case in CASES.items() if only in name
    }


def print_kernels(only: str, scale: Scale, device: torch.device, most: int = 40) -> None:
    """Print the kernels of a short round by their time, for every case whose name contains a text."""
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    for name, case in chosen(only, scale._replace(most_steps=SHORT)).items():
        run = rounds_of(case, scale, device, [])
        run()
        with profile(activities=[activity]) as found:
            seconds(run, device)
        kernels: dict[str, list[float]] = {}
        for event in found.events():
            if event.device_type.name == activity.name:
                kernels.setdefault(event.name, []).append(event.device_time or event.cpu_time)
        print(f"{name}: a round of {case.steps} steps, its first one and its end eager or checked", flush=True)
        for kernel, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))[:most]:
            print(f"{sum(times) / 1e3:9.3f} ms {len(times):6d} × {kernel[:100]}", flush=True)


def linear_grid(only: str, scale: Scale, device: torch.device) -> Iterator[tuple[str, Any]]:
    """Run 9 ζ × 5 seeds of linear classifiers for outer steps of 1000, of which 100 make the bar. Yield a row each."""
    scale = scale._replace(model="linear")
    steps = min(1000, scale.most_steps)

    def build(zeta: float, seed: int) -> pt.Tuner:
        model = make_model("linear", scale.shape, seed=seed).to(device)
        return tuner(model, scale, steps, seed, pt.PACBayes(zeta=zeta), device)

    cells: dict[str, Any] = {"zeta": [0.0, *(10.0**-k for k in range(3, 11))], "seed": list(range(5))}
    for name, outer_steps in (("fused", scale.outer_steps), ("captured", math.ceil(scale.outer_steps / 5))):
        if only not in f"linear, {name}":
            continue

        def run(outer_steps: int, name: str = name) -> None:
            engine = name if device.type == "cuda" else "auto"
            pt.fit_grid(build, cells, outer_steps=outer_steps, plain_steps=0, engine=engine)

        with kept_words() as words:
            first = seconds(lambda run=run: run(1), device)  # type: ignore[misc]
            whole = seconds(lambda run=run, count=outer_steps: run(count), device)  # type: ignore[misc]
        yield (
            name,
            {
                "outer steps": outer_steps,
                "seconds": round(whole, 1),
                "seconds of one outer step in a new process, compiling included": round(first, 1),
                "what the engine said": words,
            },
        )


def main() -> None:
    """Measure all and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / "gpu.json", help="JSON file; its other rows stay")
    parser.add_argument("--only", default="", help="measure only rows whose names contain this text")
    parser.add_argument(
        "--kernels", action="store_true", help="print the kernels of a short round, and measure nothing"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="linear classifiers and short rounds, in seconds")
    options = parser.parse_args()
    os.environ.setdefault(CONNECTIONS, "32")
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    scale, device = TINY if options.tiny else Scale(), torch.device(options.device)
    if options.kernels:
        print_kernels(options.only, scale, device)
        return
    parts = {"linear 784 × 10, 9 ζ × 5 seeds": linear_grid, "ResNet-18, 50 + 50 images of 28 × 28": networks}
    known = options.output.exists()
    results: dict[str, Any] = json.loads(options.output.read_text("utf-8")) if known else {}
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    results["machine"] = {**machine(), "device": where}
    for part, measure in parts.items():
        for name, row in measure(options.only, scale, device):
            old = results.setdefault(part, {}).get(name, {})
            results[part][name] = {**old, **row}  # the times with and without kernels on disk
            options.output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            print(name, row, flush=True)


if __name__ == "__main__":
    main()
