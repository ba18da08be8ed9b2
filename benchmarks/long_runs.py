"""What an outer step costs on long and stochastic problems: CPU time and memory, on one thread.

    python benchmarks/long_runs.py [--outer-steps 100000] [--repeats 9] [--only steps] [--only rows] …

- `steps`: one run with a run folder, by the eager engine. The CPU time per outer step is that of the last thousand
  outer steps before each mark, and the resident memory that at the mark.
- `rows`: T = 1 on 90,000 validation rows, with mini-batches of them and without.
- `evaluation`: `fit(evaluate_every=n)` on the same rows.
- `hypergradient`: a call of `tuner.hypergradient()` on a small problem, as a ratio to the same gradient by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS, interleave, machine, ratio, write
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt

NAME = "long_runs.json"
MARKS = (1_000, 3_000, 10_000, 30_000, 100_000)
BLOCK, BLOCKS = 100, 10  # outer steps per measured block, and blocks before a mark
VALID_ROWS, BATCH = 90_000, 64


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 20, generator=generator), torch.randint(0, 2, (count,), generator=generator)


def make_tuner(valid: int, *, engine: str = "auto", **sizes: int | None) -> pt.Tuner:
    """Return a tuner of a linear model with one decay per parameter and T = 1."""
    torch.manual_seed(0)
    model = nn.Linear(20, 2)
    hyper = pt.WeightDecay(model)
    data: dict[str, Any] = {"train": rows(1000, 1), "valid": rows(valid, 2), "batch_size": BATCH, **sizes}
    problem = pt.Problem(model, hyper, loss=cross_entropy, **data)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.01)
    return pt.Tuner(
        problem, inner=pt.SGD(0.01), inner_steps=1, outer=outer, objective=pt.ValidationRisk(), engine=engine
    )


class Marks(pt.Callback):
    """Measures blocks of outer steps before each mark."""

    def __init__(self, marks: tuple[int, ...]) -> None:
        self.found: dict[int, dict[str, float]] = {}
        self._marks, self._blocks = marks, list[float]()
        self._begun = time.process_time()

    def on_outer_step(self, tuner: Any, row: dict[str, Any]) -> None:
        """Note the time at the end of a block, and everything at a mark."""
        step = row["outer_step"]
        if step % BLOCK:
            return
        now = time.process_time()
        self._blocks.append((now - self._begun) / BLOCK)
        self._begun = now
        if step in self._marks:
            last = self._blocks[-BLOCKS:]
            self.found[step] = {
                "milliseconds": round(1000 * statistics.median(last), 4),
                "megabytes": round(_resident(), 1),
            }
            print(step, self.found[step], flush=True)


def _resident() -> float:
    """Return the resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def steps(outer_steps: int) -> dict[str, Any]:
    """Return the cost of an outer step and the memory along one run, and the time to read it back."""
    marks = Marks(tuple(mark for mark in MARKS if mark <= outer_steps))
    options: dict[str, Any] = {"keep": "best-objective", "plain_steps": 0, "progress": False}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        make_tuner(1000, engine="eager", valid_batch_size=BATCH).fit(
            outer_steps, run_dir=folder, **options, evaluate_every=1000, callbacks=[marks]
        )
        total = time.process_time() - begun
        sizes = [path.stat().st_size for path in Path(folder).glob("*.safetensors")]
        begun = time.process_time()
        make_tuner(1000, engine="eager", valid_batch_size=BATCH).fit(
            outer_steps, run_dir=folder, **options, resume=True
        )
        resumed = time.process_time() - begun
    first, *_, last = marks.found.values()
    return {
        "outer_steps": outer_steps,
        "at": {str(mark): found for mark, found in marks.found.items()},
        "time_last_to_first": round(last["milliseconds"] / first["milliseconds"], 3),
        "memory_last_to_first": round(last["megabytes"] / first["megabytes"], 3),
        "cpu_seconds": round(total, 1),
        "seconds_to_resume": round(resumed, 1),
        "checkpoint_bytes": max(sizes),
    }


def mini_batches(repeats: int) -> dict[str, Any]:
    """Return the CPU time of an outer step on many validation rows."""
    ways = {
        "all rows": make_tuner(VALID_ROWS),
        "valid_batch_size=64": make_tuner(VALID_ROWS, valid_batch_size=BATCH),
        "valid_batch_size=64, risk_batch_size=None": make_tuner(
            VALID_ROWS, valid_batch_size=BATCH, risk_batch_size=None
        ),
        "1000 rows, valid_batch_size=64": make_tuner(1000, valid_batch_size=BATCH),
    }
    taken = interleave({name: tuner.hypergradient for name, tuner in ways.items()}, repeats)
    medians = {name: round(1000 * statistics.median(seconds), 3) for name, seconds in taken.items()}
    against = ratio(taken["valid_batch_size=64"], taken["1000 rows, valid_batch_size=64"])
    return {"milliseconds": medians, "ratio_of_90000_to_1000_rows": against}


def evaluation(repeats: int, count: int = 20) -> dict[str, Any]:
    """Return the CPU time of an outer step of `fit` by how often the models are evaluated on all rows."""

    def fit(every: int) -> Callable[[], Any]:
        tuner = make_tuner(VALID_ROWS, valid_batch_size=BATCH)
        return lambda: tuner.fit(count, evaluate_every=every, progress=False)

    taken = interleave({f"evaluate_every={every}": fit(every) for every in (0, 1, 100)}, repeats)
    return {name: round(1000 * statistics.median(seconds) / count, 3) for name, seconds in taken.items()}


def by_hand() -> Callable[[], Any]:
    """Return a function that does what a call of `hypergradient()` does here, written with torch alone."""
    torch.manual_seed(0)
    model = nn.Linear(20, 2)
    params, decay = list(model.parameters()), [torch.zeros_like(p, requires_grad=True) for p in model.parameters()]
    (x, y), (xv, yv), step = rows(1000, 1), rows(1000, 2), [0]

    def call() -> float:
        order = torch.randint(0, 1000, (2, BATCH))
        step[0] += 1
        gradient = torch.autograd.grad(cross_entropy(model(x[order[0]]), y[order[0]]), params)
        with torch.no_grad():
            before = [p.clone() for p in params]
            for p, g, d in zip(params, gradient, decay, strict=True):
                p.sub_(0.01 * (g + d * p))
        risk = cross_entropy(model(xv[order[1]]), yv[order[1]])
        for d, g, start in zip(decay, torch.autograd.grad(risk, params), before, strict=True):
            d.grad = -0.01 * g * start
        return risk.item()

    return call


def hypergradient(repeats: int, count: int = 200) -> dict[str, Any]:
    """Return the cost of a call, and that of the same gradient by hand."""

    def many(call: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                call()

        return run

    eager, recorded = (make_tuner(1000, engine=engine, valid_batch_size=BATCH) for engine in ("eager", "auto"))
    for _ in range(1200):  # "auto" records after 1000 inner steps
        recorded.hypergradient()
    ways = {"by hand": by_hand(), "eager": eager.hypergradient, "recorded": recorded.hypergradient}
    taken = interleave({name: many(call) for name, call in ways.items()}, repeats)
    medians = {name: round(1000 * statistics.median(seconds) / count, 3) for name, seconds in taken.items()}
    ratios = {name: ratio(taken[name], taken["by hand"]) for name in ("eager", "recorded")}
    return {"milliseconds": medians, "ratio_to_by_hand": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outer-steps", type=int, default=MARKS[-1])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", action="append", choices=["steps", "rows", "evaluation", "hypergradient"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "steps": lambda: steps(options.outer_steps),
        "rows": lambda: mini_batches(options.repeats),
        "evaluation": lambda: evaluation(options.repeats),
        "hypergradient": lambda: hypergradient(options.repeats),
    }
    path = RESULTS / NAME
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in options.only or parts:
        results[name] = parts[name]()
        print(name, json.dumps(results[name], indent=1), flush=True)
        write(NAME, {"machine": machine(), **results})


if __name__ == "__main__":
    main()
