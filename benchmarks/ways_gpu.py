"""Ways to get decays for ResNet-18 on MNIST, beside those of the paper's table: chosen runs at once on a CUDA device.

    python benchmarks/ways_gpu.py drift:0-2 zero-clamped-0.1:0-2 --export results/weight-decay
    python benchmarks/ways_gpu.py eq5:0,1:0,1e-7,1e-6,1e-5,1e-4 --outer-steps 60 --export results/weight-decay
    python benchmarks/ways_gpu.py one-all:0-2:0,0.1,0.3,1,3,10 --outer-steps 30 --export results/weight-decay
    python benchmarks/ways_gpu.py --tiny --device cpu

A word names runs: WAY, WAY:DRAWS or WAY:DRAWS:VALUES, with draws such as 0-2 or 0,1. The values are ζ, by default the
paper's, or decays where nothing is tuned.

- one-half, one-all: nothing is tuned. One decay for all parameters; 50 images train, or all 100.
- eq5, eq5-0.1, eq5-0.3: Eq. 5, with outer learning rates of 1e-2 (the paper's), 1e-1 and 3e-1.
- drift: `HyperDrift` with λ0 = 0.
- zero-…-0.01, zero-…-0.1: ζ = 0 with λ ≥ 0, clamped after each outer step or by a softplus.
- folds: two folds of all 100 images share λ under `HyperDrift`; the model is trained on all images beside them.
- online: Eq. 5 with λ moved at every inner step too (Algorithm C.2), at the paper's ζ for it.

All runs of a command are one grid. Finished ones are not run again, and interrupted ones go on from their checkpoints,
also with more outer steps. `--minutes` stops a command in time; the same command goes on. The export keeps the runs
that the file has, unless a journal has more steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch
from decay_ways import Scale, Way, builder, inputs
from measuring import machine
from table_gpu import CONNECTIONS, add_run_options

from pactune.columns import Row
from pactune.engines import Captured, Engine
from pactune.paper.data import DataName, Images, load_images
from pactune.paper.models import ModelName
from pactune.paper.weight_decay.setting import paper_zeta
from pactune.problem.data import as_source
from pactune.results.callbacks import Callback
from pactune.storage.files import write_atomically
from pactune.tracking.journal import read_lines
from pactune.tracking.status import journal_is_finished
from pactune.tuning.cells import Cell, cell_name
from pactune.tuning.grid import fit_grid
from pactune.tuning.tuner import Tuner

FORMAT = "decay ways 1"
COLUMNS = (
    "outer_step",
    "train_accuracy",
    "valid_accuracy",
    "valid_risk",
    "test_accuracy",
    "test_risk",
    "weight_norm",
    "regularizer",
)
WAYS = {  # all have a decay per element, so that runs of different ways can be stacked
    "one-half": Way("zero", "half", outer_lr=0.0),
    "one-all": Way("zero", "all", outer_lr=0.0),
    "eq5": Way("eq5"),
    "eq5-0.1": Way("eq5", outer_lr=0.1),
    "eq5-0.3": Way("eq5", outer_lr=0.3),
    "drift": Way("drift"),
    "zero-clamped-0.01": Way("zero", sign="clamped", outer_lr=0.01),
    "zero-clamped-0.1": Way("zero", sign="clamped", outer_lr=0.1),
    "zero-softplus-0.01": Way("zero", sign="softplus", outer_lr=0.01),
    "zero-softplus-0.1": Way("zero", sign="softplus", outer_lr=0.1),
    "folds": Way("drift", "folds", folds=2),
    "online": Way("eq5", online=True),
}
TINY = Scale("digits", 2, 4, 6, 32)
TINY_RUNS = (
    "one-half:0:0,1",
    "one-all:0:1",
    "eq5:0:0,1e-6",
    "drift",
    "zero-clamped-0.1",
    "zero-softplus-0.1",
    "folds",
    "online",
)


class Progress(Callback):
    """Prints a line per run and outer step."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def on_outer_step(self, tuner: Tuner, row: Row) -> None:
        """Print the step, the test accuracy and the seconds so far."""
        name = self._names.get(id(tuner), "")
        print(f"{name} {row['outer_step']} {row.get('test_accuracy', float('nan')):.4f}", flush=True)


def numbers(text: str) -> list[int]:
    """Return the draws that a text such as 0-2 or 0,3 names.

    >>> numbers("0-2,5")
    [0, 1, 2, 5]
    """
    found = list[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def parse_runs(text: str, scale: Scale) -> list[Cell]:
    """Return the runs that a word of the command line names.

    Raises:
        ArgumentTypeError: it is not WAY:DRAWS:VALUES.
    """
    name, _, rest = text.partition(":")
    draws, _, listed = rest.partition(":")
    if name not in WAYS:
        raise argparse.ArgumentTypeError(f"must begin with one of {', '.join(WAYS)}, got {text}")
    way = WAYS[name]
    paper = 0.0 if way.objective == "zero" else paper_zeta(scale.model, scale.data, online=way.online)
    try:
        values = [float(value) for value in listed.split(",")] if listed else [paper]
        pairs = list(itertools.product(numbers(draws or "0"), values))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be WAY, WAY:DRAWS or WAY:DRAWS:VALUES, got {text}") from error
    if way.outer_lr == 0:
        return [{"way": name, "draw": draw, "zeta": 0.0, "decay": value} for draw, value in pairs]
    return [{"way": name, "draw": draw, "zeta": value} for draw, value in pairs]


def build_tuner(cell: Cell, scale: Scale, images: Images, device: torch.device) -> Tuner:
    """Return the tuner of a run. At ζ = 0 the validation risk alone is minimised, which measures no regularizer."""
    way = WAYS[cell["way"]]
    way = way._replace(objective="zero") if cell["zeta"] == 0 and not way.online else way
    return builder(way, scale, images, device)(draw=cell["draw"], zeta=cell["zeta"], decay=cell.get("decay", 0.0))


def run_cells(cells: Sequence[Cell], scale: Scale, options: argparse.Namespace) -> None:
    """Run all cells that are not finished, in one grid."""
    home, device = options.folder, torch.device(options.device)
    left = [cell for cell in cells if not journal_is_finished(read_lines(home / cell_name(cell)), scale.outer_steps)]
    print(f"{len(left)} of {len(cells)} runs at once, {scale.outer_steps} outer steps", flush=True)
    if not left:
        return
    images = load_images(scale.data, options.data_dir)
    assert images is not None  # it was to be downloaded, so that it is there
    x, y = images.test
    pair = inputs(scale.model, x)[: scale.test_rows].to(device), y[: scale.test_rows].to(device)
    test, names = as_source(pair, role="test", device=device), dict[int, str]()

    def build(**cell: Any) -> Tuner:
        tuner = build_tuner(cell, scale, images, device)
        names[id(tuner)] = cell_name(cell)
        return tuner

    engine: str | Engine = options.engine
    if device.type == "cuda" and engine == "fast":
        engine = Captured(steps=9, fuse="steps", tf32=True, channels_last=True)
    begun = time.perf_counter()
    fit_grid(
        build,
        left,
        outer_steps=scale.outer_steps,
        test=test,
        plain_steps=0,
        run_dir=home,
        resume=True,
        progress=False,
        callbacks=[Progress(names)],
        engine="eager" if engine == "fast" else engine,
    )
    print(f"done after {time.perf_counter() - begun:.0f} s", flush=True)


def record(cell: Cell, journal: Sequence[Row]) -> Row:
    """Return a run as the file has it, from its journal. An outer step that was run again counts once."""
    by_step = {line["outer_step"]: line for line in journal if line["kind"] == "row"}
    rows = [by_step[step] for step in sorted(by_step)]
    start = next(line for line in journal if line["kind"] == "start")
    end: Row = next((line for line in reversed(journal) if line["kind"] == "end"), {})
    kept = [name for name in COLUMNS if name in rows[0]]
    way = {name: value for name, value in WAYS[cell["way"]]._asdict().items() if name not in ("zetas", "decays")}
    facts = {"status": end.get("status", "running"), "versions": start["versions"], "time": start.get("time", "")}
    facts |= {"engine": start["settings"].get("engine", ""), "seconds": rows[-1]["seconds"]}
    return {**cell, "setting": way, **facts, **{name: [_short(row[name]) for row in rows] for name in kept}}


def export(cells: Sequence[Cell], scale: Scale, options: argparse.Namespace) -> Path:
    """Write the runs with journals, and those that the file has already, as one small JSON file."""
    folder: Path = options.export or options.folder
    path = folder / f"ways-{scale.model}-{scale.data}.json"
    old: Row = json.loads(path.read_text("utf-8")) if path.exists() else {"runs": []}
    known = {_key(run): run for run in old["runs"]}
    for cell in cells:
        journal = read_lines(options.folder / cell_name(cell))
        if any(line["kind"] == "row" for line in journal):
            found = record(cell, journal)
            known[_key(cell)] = max(known.get(_key(cell), found), found, key=lambda run: len(run["outer_step"]))
    if not known:
        raise SystemExit(f"{options.folder} has no run with an outer step")
    order = list(WAYS)
    runs = sorted(known.values(), key=lambda run: (order.index(run["way"]), *_key(run)[2:], run["draw"]))
    where = options.machine or (torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU")
    document = {"format": FORMAT, "command": "python benchmarks/ways_gpu.py WAY:DRAWS:VALUES", **scale._asdict()}
    whole = TINY if options.tiny else Scale(scale.data)
    document["outer_steps"] = max(whole.outer_steps, scale.outer_steps, old.get("outer_steps", 0))
    document["machine"] = old.get("machine", {**machine(), "device": where})
    text = json.dumps({**document, "runs": runs}, ensure_ascii=False, separators=(",", ":"))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (text.replace('{"way"', '\n{"way"') + "\n").encode())
    return path


def lines(path: Path) -> Iterator[str]:
    """Yield a line per run of a file."""
    for run in json.loads(path.read_text("utf-8"))["runs"]:
        last, steps = 100 * run["test_accuracy"][-1], len(run["outer_step"])
        value = f"λ {run['decay']:g}" if "decay" in run else f"ζ {run['zeta']:g}"
        yield f"{run['way']}, draw {run['draw']}, {value}: {last:.2f} % after {steps} outer steps"


def _key(run: Row) -> tuple[Any, ...]:
    return run["way"], run["draw"], run["zeta"], run.get("decay", 0.0)


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.5g}")


def _scale(options: argparse.Namespace) -> Scale:
    model, _, data = options.row.partition("-")
    if model not in get_args(ModelName) or data not in get_args(DataName):
        raise SystemExit(f"--row must be MODEL-DATA such as resnet18-mnist, got {options.row}")
    scale = TINY if options.tiny else Scale(cast(DataName, data), model=cast(ModelName, model))
    outer, inner = options.outer_steps or scale.outer_steps, options.inner_steps or scale.inner_steps
    return scale._replace(outer_steps=outer, inner_steps=inner)


def main() -> None:
    """Run and export the runs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", help="WAY, WAY:DRAWS or WAY:DRAWS:VALUES; all go into one grid")
    parser.add_argument("--row", default="resnet18-mnist", help="classifier and data set")
    parser.add_argument("--outer-steps", type=int, help="100 by default")
    parser.add_argument("--inner-steps", type=int, help="1000 by default")
    parser.add_argument("--minutes", type=float, help="stop after so many, at the end of an inner step")
    parser.add_argument("--engine", default="fast", help='"fast" is the captured engine with its fast options on CUDA')
    add_run_options(parser, "runs/ways-gpu")
    options = parser.parse_args()
    os.environ.setdefault(CONNECTIONS, "32")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    scale = _scale(options)
    try:
        cells = [cell for text in options.runs or TINY_RUNS for cell in parse_runs(text, scale)]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if options.minutes:
        stop = threading.Timer(60 * options.minutes, os.kill, (os.getpid(), signal.SIGINT))
        stop.daemon = True
        stop.start()
    if not options.export_only:
        run_cells(list({cell_name(cell): cell for cell in cells}.values()), scale, options)
    path = export(cells, scale, options)
    print("\n".join([*lines(path), str(path)]), flush=True)


if __name__ == "__main__":
    main()
