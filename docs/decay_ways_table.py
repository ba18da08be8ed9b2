"""Tables of docs/evidence/reproduction.md from results/weight-decay/ways-*.json (benchmarks/ways_gpu.py).

What `pt.tune` and its rivals give with ResNet-18 on the same draws comes from benchmarks/front_door_gpu.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pactune.paper.intervals import Interval, bootstrap_interval
from pactune.paper.weight_decay.facts import DATA, MODELS
from pactune.paper.weight_decay.method_tables import interval_text, markdown
from pactune.report.page import Table

__all__ = ["front_door_draws", "read_ways", "ways_section"]

FORMAT = "decay ways 1"
FRONT_DOOR = Path(__file__).parents[1] / "benchmarks" / "results" / "front_door_resnet18.json"
FRONT_DOOR_WAYS = {
    "plain": "plain training on mini-batches, stopped by folds, all images",
    "one decay": "one decay on mini-batches, by folds, all images",
    "tune": "`pt.tune`, all images",
}
HEADER = ("way", "ζ", "over", "test accuracy, last step, %", "validation accuracy, %", "best step of the mean, %")
OBJECTIVES = {"eq5": "Eq. 5", "drift": "`HyperDrift`", "zero": "ζ = 0"}
SIGNS = {"any": "", "clamped": ", λ ≥ 0 clamped", "softplus": ", λ ≥ 0 by softplus"}


def read_ways(folder: Path) -> list[dict[str, Any]]:
    """Return the documents of a folder."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("ways-*.json"))]
    return [document for document in documents if document["format"] == FORMAT]


def front_door_draws(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what `pt.tune` and its rivals give in the setting of a file; nothing where they were not run."""
    known = (document["model"], document["data"]) == ("resnet18", "mnist")
    return json.loads(FRONT_DOOR.read_text(encoding="utf-8"))["draws"] if known else []


def ways_section(document: dict[str, Any], front_door: Sequence[dict[str, Any]] = ()) -> str:
    """Return the section of one file: a heading and a row per way and ζ, or per fixed decay.

    Args:
        document: the runs of `benchmarks/ways_gpu.py`.
        front_door: the draws of `benchmarks/front_door_gpu.py` in the same setting.
    """
    groups: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for run in document["runs"]:
        groups.setdefault((run["way"], run["zeta"], run.get("decay", 0.0)), []).append(run)
    rows = [_row(runs, document["outer_steps"]) for runs in groups.values()]
    rows += _front_door_rows(front_door)
    heading = f"### Other ways to get decays: {MODELS[document['model']]}, {DATA[document['data']].partition(' ')[0]}"
    return f"{heading}\n\n{markdown(Table(HEADER, rows))}"


def _front_door_rows(draws: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of `pt.tune` and of what it is compared with, which choose their number of steps themselves."""
    over, rows = f"{len(draws)} draws", []
    for way, words in FRONT_DOOR_WAYS.items() if draws else ():
        found = [draw[way] if way == "tune" else draw[way]["accuracy"] for draw in draws]
        rows.append([words, "", over, _interval([value / 100 for value in found]), "", ""])
    return rows


def _row(runs: Sequence[dict[str, Any]], total: int) -> list[str]:
    """Return the row of one way at one ζ. Runs of different lengths are compared at the last step that all have."""
    steps = min(len(run["outer_step"]) for run in runs)
    draws = sorted({run["draw"] for run in runs})
    over = f"{len(draws)} draws" if len(draws) > 1 else f"draw {draws[0]}"
    over += f", after {steps} of {total} outer steps" if steps < total else ""
    curve = [sum(run["test_accuracy"][t] for run in runs) / len(runs) for t in range(steps)]
    best = max(range(steps), key=curve.__getitem__)
    shown = [_percent(runs, name, steps - 1) for name in ("test_accuracy", "valid_accuracy")]
    zeta = "" if "decay" in runs[0] else f"{runs[0]['zeta']:g}"
    return [_words(runs[0]), zeta, over, *shown, f"{100 * curve[best]:.1f}, step {best + 1}"]


def _words(run: dict[str, Any]) -> str:
    """Return a way in words."""
    setting = run["setting"]
    if "decay" in run:
        share = "all" if setting["rows"] == "all" else "half of the"
        return f"one decay of {run['decay']:g}, not tuned, {share} images"
    objective = "zero" if run["zeta"] == 0 else setting["objective"]
    words = OBJECTIVES[objective] + (" online" if setting["online"] else "") + SIGNS[setting["sign"]]
    words += f", {setting['folds']} folds and a model of all images" if setting["rows"] == "folds" else ""
    return words + (f", outer learning rate {setting['outer_lr']:g}" if setting["outer_lr"] != 0.01 else "")


def _percent(runs: Sequence[dict[str, Any]], name: str, step: int) -> str:
    """Return the mean of a column over runs with its interval. Of an interrupted command only some columns are kept."""
    if not all(name in run for run in runs):
        return "not kept"
    return _interval([float(run[name][step]) for run in runs])


def _interval(values: Sequence[float]) -> str:
    """Return the mean of accuracies with its interval, in per cent."""
    interval = bootstrap_interval(list(values))
    return interval_text(Interval(**{part: 100 * interval[part] for part in ("mean", "low", "high")}))  # type: ignore[typeddict-item]
