"""What the benchmarks share: interleaved timing, peak memory in processes of their own, fitted exponents, JSON."""

from __future__ import annotations

import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def interleave(
    ways: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Return the seconds of every way, measured in turn so that a slow minute of the machine meets all of them.

    CPU time of this process is what a busy machine disturbs least; with one thread it is the time on an idle one.
    `device_clock` is the clock for a CUDA device.
    """
    for run in ways.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            start = clock()
            run()
            taken[name].append(clock() - start)
    return taken


def device_clock() -> float:
    """Return the time in seconds after the CUDA device has finished its work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def ratio(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles of the ratios of runs that were neighbours in time."""
    low, middle, high = statistics.quantiles([x / y for x, y in zip(a, b, strict=True)], n=4)
    return {"median": round(middle, 3), "lower_quartile": round(low, 3), "upper_quartile": round(high, 3)}


def added_megabytes(run: Callable[[], Any]) -> float:
    """Return by how much a call raises the resident set of this process at its peak.

    Linux only: the kernel's high-water mark is reset first, since a child begins with its parent's.
    """
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _status("VmRSS")
    run()
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def in_a_process(script: str, *arguments: str) -> float:
    """Return the number that a script prints last, run in a fresh process."""
    command = [sys.executable, script, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of log(value) against log(size) by least squares."""
    x, y = [math.log(s) for s in sizes], [math.log(v) for v in values]
    return round(statistics.linear_regression(x, y).slope, 2)


def machine() -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "processor": platform.machine()}


def write(name: str, results: dict[str, Any]) -> None:
    """Keep the results as JSON."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / name).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
