"""Compare rules that choose zeta and the outer step without test data, on runs recorded by `simulate_runs.py`.

    python zeta_rules.py recorded/fresh --names mnist,cifar10 --grid 0/r0.1

Every rule sees what a user would see; only the rows that say oracle look at the test set. The chosen rule is
`cross_validated` with the saturating score and the plain run among the candidates (`auto` in the table).
"""

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
STUDENT_95 = {12: 2.201, 24: 2.069, 30: 2.045, 36: 2.030}


class Record(NamedTuple):
    """What was recorded of one data set: metrics [D, R, S, M], single losses and hits [D, S, held images]."""

    metrics: Array
    names: list[str]
    runs: np.ndarray
    initial_risk: Array
    losses: Array
    hits: Array
    run_image: np.ndarray


class Candidates(NamedTuple):
    """Trajectories among which a rule chooses: losses and hits [D, C, S, n] on held images, accuracy [D, C, S]."""

    losses: Array
    hits: Array
    accuracy: Array


def load(folder: Path, name: str) -> Record:
    """Read `NAME.npz` and `NAME_images.npz`."""
    run, image = np.load(folder / f"{name}.npz"), np.load(folder / f"{name}_images.npz")
    hits = np.unpackbits(image["hits"], axis=-1)[..., : len(image["run_image"])]
    draws = len(run["metrics"])
    risk = run["initial_risk"] if "initial_risk" in run.files else np.full(draws, math.log(10))
    return Record(
        run["metrics"].astype(float), list(run["names"]), run["runs"], risk.astype(float),
        image["losses"].astype(float), hits.astype(float), image["run_image"],
    )  # fmt: skip


def positions(record: Record, kind: str, zeta: str) -> np.ndarray:
    """Row numbers of one kind of run at one zeta; `r0.1` is relative to the balancing zeta."""
    runs = record.runs
    chosen = (runs["kind"] == kind) & np.isclose(runs["zeta"], float(zeta.removeprefix("r")), atol=0)
    if "relative" in (runs.dtype.names or ()):
        chosen &= runs["relative"] == zeta.startswith("r")
    return np.flatnonzero(chosen)


def curve(record: Record, metric: str, kind: str = "full", zeta: str = "0") -> Array:
    """[D, S]: one metric of the one run of this kind and zeta."""
    return record.metrics[:, positions(record, kind, zeta)[0], :, record.names.index(metric)]


def last_step(record: Record, zeta: str) -> Array:
    """[D]: test accuracy after the last outer step."""
    return curve(record, "test_acc", zeta=zeta)[:, -1]


def held_out(record: Record, values: Array, kind: str, zeta: str) -> Array:
    """[D, S, n]: values of all folds' held images, in the order of the images."""
    mine = np.isin(record.run_image[:, 0], positions(record, kind, zeta))
    return values[..., np.flatnonzero(mine)[np.argsort(record.run_image[mine, 1])]]


def candidates(record: Record, kind: str, grid: list[str], plain: bool) -> Candidates:
    """The plain run first, then decreasing zeta, so that a tie goes to the simpler one."""
    pairs = [(f"plain-{kind}", "plain", "0")] if plain else []
    pairs += [(kind, "full", zeta) for zeta in reversed(grid)]
    return Candidates(
        np.stack([held_out(record, record.losses, folds, zeta) for folds, _, zeta in pairs], 1),
        np.stack([held_out(record, record.hits, folds, zeta) for folds, _, zeta in pairs], 1),
        np.stack([curve(record, "test_acc", whole, zeta) for _, whole, zeta in pairs], 1),
    )


def saturating(losses: Array, scale: Array) -> Array:
    """1 - exp(-loss / scale), in [0, 1]: a loss as large as the untrained model's counts 0.63, a huge one 1."""
    return 1 - np.exp(-losses / scale.reshape(-1, *[1] * (losses.ndim - 1)))


def scores(record: Record, options: Candidates, score: str) -> Array:
    """[D, C, S, n], smaller is better."""
    if score == "saturating":
        return saturating(options.losses, record.initial_risk)
    return 1 - options.hits if score == "accuracy" else options.losses


def first_minimum(values: Array) -> tuple[np.ndarray, np.ndarray]:
    """Candidate and step of the least value of [D, C, S]; among equals the first candidate, then the first step."""
    best = values.reshape(len(values), -1).argmin(1)
    return np.unravel_index(best, values.shape[1:])


def at(accuracy: Array, candidate: np.ndarray, step: np.ndarray) -> Array:
    """[D]: accuracy of the chosen candidate and step of every draw."""
    chosen: Array = accuracy[np.arange(len(accuracy)), candidate, step]
    return chosen


def cross_validated(record: Record, kind: str, grid: list[str], score: str, plain: bool) -> Array:
    """Least mean score of the held images over all folds; its zeta and step applied to the run on all images."""
    options = candidates(record, kind, grid, plain)
    return at(options.accuracy, *first_minimum(scores(record, options, score).mean(3)))


def least_objective(record: Record, zeta: str, zeta_judge: float) -> Array:
    """Step of one run that minimises R_V + zeta_judge sqrt(Y)."""
    total = curve(record, "valid_loss", zeta=zeta) + zeta_judge * np.sqrt(curve(record, "y", zeta=zeta))
    total = np.nan_to_num(total, nan=np.inf)
    return at(curve(record, "test_acc", zeta=zeta)[:, None], *first_minimum(total[:, None]))


def least_norm(record: Record, zetas: list[str]) -> Array:
    """Least weight norm among the steps of maximal validation accuracy (the paper's baseline for zeta = 0)."""
    hit, norm, test = (
        np.stack([curve(record, m, zeta=z) for z in zetas], 1) for m in ("valid_acc", "theta_norm", "test_acc")
    )
    return at(test, *first_minimum(np.where(hit >= hit.max((1, 2), keepdims=True), norm, np.inf)))


def gain_of_tuning(record: Record, kind: str, grid: list[str]) -> tuple[Array, Array]:
    """Held-out gain of the best tuned over the best plain candidate, and its paired standard error, per draw."""
    tuned, plain = (candidates(record, kind, g, p) for g, p in ((grid, False), ([], True)))
    best = []
    for options in (plain, tuned):
        value = scores(record, options, "saturating")
        candidate, step = first_minimum(value.mean(3))
        best.append(value[np.arange(len(value)), candidate, step])
    gap = best[0] - best[1]
    return gap.mean(1), gap.std(1, ddof=1) / math.sqrt(gap.shape[1])


def every_zeta(record: Record) -> list[str]:
    """All absolute zetas of the full runs."""
    full = record.runs[record.runs["kind"] == "full"]
    keep = ~full["relative"] if "relative" in (full.dtype.names or ()) else np.ones(len(full), bool)
    return [repr(float(z)) for z in np.unique(full["zeta"][keep])]


def rules(record: Record, grid: list[str]) -> dict[str, Callable[[], Array]]:
    """Label (with its cost in runs) to the test accuracy of every draw."""
    kinds = {str(k) for k in np.unique(record.runs["kind"])}
    zetas = every_zeta(record)
    table: dict[str, Callable[[], Array]] = {
        "zeta 0, last step [1]": lambda: curve(record, "test_acc")[:, -1],
        "first outer step [0.01]": lambda: curve(record, "test_acc")[:, 0],
        "plain training, last step [1]": lambda: curve(record, "test_acc", "plain")[:, -1],
        "plain training on all 100, last [1]": lambda: curve(record, "test_acc", "plain_all")[:, -1],
        "plain training on all 100, first [0.01]": lambda: curve(record, "test_acc", "plain_all")[:, 0],
        "zeta 0, least validation loss [1]": lambda: least_objective(record, "0", 0.0),
        "zeta 0, least norm [1]": lambda: least_norm(record, ["0"]),
        f"least norm over {len(zetas)} zetas [{len(zetas)}]": lambda: least_norm(record, zetas),
    }
    for judge in (5e-4, 2e-3, 5e-3, 2e-2):
        table[f"zeta 0, least R_V + {judge:g} sqrt(Y) [1]"] = partial(least_objective, record, "0", judge)
    for zeta in [*zetas, *[g for g in grid if g.startswith("r")]]:
        table[f"zeta {zeta}, last step [1]"] = partial(last_step, record, zeta)
    for kind in sorted(k for k in kinds if k[-1].isdigit() and "plain" not in k):
        plain = f"plain-{kind}" in kinds
        for chosen in ([grid[0]], grid[:2], grid):
            cost = len(chosen) * (int(kind[-1]) + 1)
            for score in ("saturating", "accuracy", "loss"):
                label = f"{kind} {score} {'/'.join(chosen)}{' + plain' if plain else ''} [{cost}]"
                table[label] = partial(cross_validated, record, kind, chosen, score, plain)
    table["oracle step at zeta 0"] = lambda: curve(record, "test_acc").max(1)
    table["oracle zeta and step"] = lambda: np.max([curve(record, "test_acc", zeta=z).max(1) for z in zetas], 0)
    return table


def interval(values: Array, style: str) -> str:
    """Mean with its standard error, or with its 95 % Student interval over draws."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    half = STUDENT_95[len(values)] * error
    if style == "se":
        return f"{values.mean():.3f} ± {error:.3f}"
    return f"{values.mean():.3f} ({values.mean() - half:.3f}, {values.mean() + half:.3f})"


def summary(tables: dict[str, dict[str, Callable[[], Array]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean, standard error and number of draws of every rule on every data set."""

    def numbers(values: Array) -> dict[str, float]:
        error = values.std(ddof=1) / math.sqrt(len(values))
        return {"mean": round(float(values.mean()), 4), "error": round(float(error), 4), "draws": len(values)}

    return {name: {label: numbers(rule()) for label, rule in table.items()} for name, table in tables.items()}


def main() -> None:
    """Print the table of all rules, and what the verdict on tuning would have been."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--names", default="mnist,cifar10-centred,cifar10,digits")
    parser.add_argument("--grid", default="0/r0.1/r1", help="zetas among which the cross-validated rules choose")
    parser.add_argument("--style", choices=["se", "interval"], default="se")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    args = parser.parse_args()
    names, grid = args.names.split(","), args.grid.split("/")
    records = [load(args.recorded, name) for name in names]
    tables = [rules(record, grid) for record in records]
    if args.json is not None:
        args.json.write_text(json.dumps(summary(dict(zip(names, tables, strict=True))), indent=1) + "\n")
    print("| rule [cost in runs] |", " | ".join(names), "|\n|---|" + "---|" * len(names))
    for label in tables[0]:
        print(f"| {label} |", " | ".join(interval(t[label](), args.style) if label in t else "–" for t in tables), "|")
    for name, record in zip(names, records, strict=True):
        if "plain-joint5" in record.runs["kind"]:
            gain, error = gain_of_tuning(record, "joint5", grid[:2])
            n = len(gain)
            print(f"{name}: gain {gain.mean():.3f}; > 0 in {(gain > 0).sum()}, > 1 SE in {(gain > error).sum()}, "
                  f"> 2 SE in {(gain > 2 * error).sum()} of {n}")  # fmt: skip


if __name__ == "__main__":
    main()
