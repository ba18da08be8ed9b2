"""`pt.tune` with and without noise on the inputs, on the same draws of the tables: test accuracy in percent.

    python benchmarks/input_noise.py [--settings digits breast-cancer wine] [--first 200] [--draws 22 10 10]

The rows and models are those of front_door.py. The noise was designed on draws from 100 on.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import time
from typing import Any

import torch
from front_door import TABLES, Draw, draw_rows, make_model, percent
from measuring import RESULTS, machine, write
from torch.nn import functional as F  # noqa: N812

import pactune as pt

NAME = "input_noise.json"
decays: Any = importlib.import_module("pactune.search.decays")


def tuned(setting: str, rows: Draw, number: int, noises: tuple[float, ...]) -> dict[str, Any]:
    """Return the test accuracy of `pt.tune` with these noises among its candidates, the kept procedure and CPU time."""
    before, decays.NOISES = decays.NOISES, noises
    try:
        model, begun = make_model(setting, rows, number), time.process_time()
        result = pt.tune(model, (rows.x, rows.y), loss=F.cross_entropy, seed=number, progress=False)
        seconds = time.process_time() - begun
    finally:
        decays.NOISES = before
    kept = next(row["model"] for row in result.comparison if row["kept"])
    return {"accuracy": percent(model, rows), "kept": kept, "seconds": round(seconds, 1)}


def summarized(draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the means of both, and the mean difference with its standard error."""
    gaps = [draw["noise"]["accuracy"] - draw["none"]["accuracy"] for draw in draws]
    means = {name: round(statistics.fmean(draw[name]["accuracy"] for draw in draws), 2) for name in ("noise", "none")}
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.nan
    slowest = max(draw["noise"]["seconds"] for draw in draws)
    return {**means, "gain": round(statistics.fmean(gaps), 2), "error": round(error, 2), "slowest": slowest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=list(TABLES), default=["digits", "breast-cancer", "wine"])
    parser.add_argument("--first", type=int, default=200)
    parser.add_argument("--draws", nargs="+", type=int, default=[22, 10, 10], help="one number per setting")
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / NAME
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    found["machine"] = machine()
    for setting, count in zip(options.settings, options.draws, strict=True):
        draws = []
        for number in range(options.first, options.first + count):
            rows = draw_rows(setting, number, None)
            both = {name: tuned(setting, rows, number, way) for name, way in (("noise", decays.NOISES), ("none", ()))}
            draws.append({"draw": number, **both})
            found[f"{setting}, draws from {options.first}"] = {"summary": summarized(draws), "draws": draws}
            write(NAME, found)
            print(setting, json.dumps(draws[-1]), flush=True)
        print(setting, json.dumps(found[f"{setting}, draws from {options.first}"]["summary"]), flush=True)


if __name__ == "__main__":
    main()
