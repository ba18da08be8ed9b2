"""Optuna choosing by the validation loss alone, and by Eq. 5, on real tables with few validation rows.

    pip install 'pactune[optuna]'
    python benchmarks/optuna_coherence.py design digits cancer    # chooses ζ on draws 1000, 1001, …
    python benchmarks/optuna_coherence.py measure digits          # studies on draws 0, 1, …
    python benchmarks/optuna_coherence.py why --draws 4           # what √Y goes with, on draws 1000, 1001, …
    python benchmarks/optuna_coherence.py table

Two rules give ζ, both fixed before any study of the comparison was run:

- "theory": √(lr/4) with the learning rate of the trial;
- "transferred": one number for all trials, the one of a grid with the least mean test error on draws 1000 and up of the
  OTHER data set, where it picks among random trials.

A study is TPE over learning rate, weight decay, width and steps of a two-layer network under SGD. The test rows are all
that are neither training nor validation rows; no rule sees them. "theory, same trials" picks by Eq. 5 among the trials
of the study that went by the validation loss. "oracle" is the one of these with the least test error, which no user
could pick.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.integrations.optuna import CoherenceObjective, best_trial, score
from pactune.paper.intervals import mean_interval

RESULTS = Path(__file__).parent / "results" / "optuna_coherence.json"
ROWS = {"digits": (100, 20), "cancer": (40, 10)}  # training and validation rows
BATCH = 20
GRID = [0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
FIRST_DESIGN_DRAW = 1000
PAIRS = [("valid_risk", "test_error"), ("regularizer", "test_error"), ("regularizer", "steps"), ("regularizer", "lr")]
OTHER = {"digits": "cancer", "cancer": "digits"}


class Table(NamedTuple):
    """One draw of a data set, scaled by its training rows."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def draw(name: str, seed: int) -> Table:
    columns, labels = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    n, m = ROWS[name]
    seen = columns[order[:n]]
    scaled = (columns[order] - seen.mean(0)) / (seen.std(0) + (1.0 if name == "digits" else 1e-9))
    x, y = torch.tensor(scaled, dtype=torch.float32), torch.tensor(labels[order])
    parts = (slice(0, n), slice(n, n + m), slice(n + m, None))
    return Table(*((x[part], y[part]) for part in parts))


def training(table: Table, seed: int) -> Any:
    """Return the training function of the studies on a draw."""
    (x, y), valid = table.train, table.valid
    classes = int(torch.cat([part[1] for part in table]).max()) + 1

    def train(trial: optuna.Trial) -> Iterator[tuple[pt.CoherenceMonitor, float, float]]:
        lr = trial.suggest_float("lr", 1e-2, 1.0, log=True)
        decay = trial.suggest_float("weight_decay", 1e-5, 1e-1, log=True)
        width = trial.suggest_int("width", 4, 128, log=True)
        steps = trial.suggest_int("steps", 20, 400, log=True)
        torch.manual_seed(1000 * seed + trial.number)
        model = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay)
        monitor = pt.CoherenceMonitor(model, F.cross_entropy, weight_decay=optimizer)
        for _ in range(steps):
            rows = torch.randperm(len(x))[:BATCH]
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            monitor.step(None, valid)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            risk = F.cross_entropy(model(valid[0]), valid[1]).item()
            wrong = (model(table.test[0]).argmax(1) != table.test[1]).double().mean().item()
        trial.set_user_attr("test_error", wrong)
        yield monitor, risk, lr

    return train


def study_of(table: Table, seed: int, zeta: Any, trials: int, *, random: bool = False) -> optuna.Study:
    sampler: Any = optuna.samplers.RandomSampler(seed) if random else optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler)
    study.optimize(CoherenceObjective(training(table, seed), zeta=zeta), n_trials=trials)
    return study


def error_of(trial: Any) -> float:
    return float(trial.user_attrs["test_error"])


def design(name: str, draws: int, trials: int) -> dict[str, Any]:
    """Choose ζ among random trials on draws that the comparison never sees."""
    errors: dict[float, list[float]] = {zeta: [] for zeta in GRID}
    for seed in range(FIRST_DESIGN_DRAW, FIRST_DESIGN_DRAW + draws):
        study = study_of(draw(name, seed), seed, 0.0, trials, random=True)
        for zeta in GRID:
            errors[zeta].append(error_of(best_trial(study, zeta=zeta)))
    means = {zeta: float(np.mean(found)) for zeta, found in errors.items()}
    return {"draws": draws, "trials": trials, "mean_test_error": means, "zeta": min(means, key=lambda z: means[z])}


def why(name: str, draws: int, trials: int) -> dict[str, Any]:
    """Return mean rank correlations among random trials of some design draws: what does √Y go with?"""
    found: dict[str, list[float]] = {}
    for seed in range(FIRST_DESIGN_DRAW, FIRST_DESIGN_DRAW + draws):
        study = study_of(draw(name, seed), seed, 0.0, trials, random=True)
        scores = [score(trial, zeta=0.0) for trial in study.trials]
        columns = {
            "valid_risk": [row["valid_risk"] for row in scores],
            "regularizer": [row["regularizer"] for row in scores],
            "test_error": [error_of(trial) for trial in study.trials],
            "steps": [trial.params["steps"] for trial in study.trials],
            "lr": [trial.params["lr"] for trial in study.trials],
        }
        for a, b in PAIRS:
            found.setdefault(f"{a}, {b}", []).append(float(spearmanr(columns[a], columns[b]).statistic))
    return {"draws": draws, "trials": trials, "rank_correlation": {pair: mean_interval(v) for pair, v in found.items()}}


def measure(table: Table, seed: int, trials: int, transferred: float) -> dict[str, dict[str, float]]:
    """Return test error and steps of each rule's choice on one draw, from one study per ζ."""
    rules: dict[str, Any] = {"validation loss": 0.0, "theory": "theory", "transferred": transferred}
    studies = {zeta: study_of(table, seed, zeta, trials) for zeta in dict.fromkeys(rules.values())}
    chosen = {rule: studies[zeta].best_trial for rule, zeta in rules.items()}
    first = studies[0.0]
    chosen["theory, same trials"] = best_trial(first, zeta="theory")
    chosen["oracle"] = min((trial for trial in first.trials if trial.state.name == "COMPLETE"), key=error_of)
    return {
        rule: {"test_error": round(error_of(trial), 4), "steps": trial.params["steps"]}
        for rule, trial in chosen.items()
    }


def summary(draws: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Return means with 95 % intervals over the draws, and of the differences to the validation loss's choice."""
    rules = list(next(iter(draws.values())))
    errors = {rule: np.array([row[rule]["test_error"] for row in draws.values()]) for rule in rules}
    base = errors["validation loss"]
    return {
        rule: {
            "test_error": mean_interval(found),
            "difference": mean_interval(found - base),
            "better": int((found < base).sum()),
            "worse": int((found > base).sum()),
            "median_steps": float(np.median([row[rule]["steps"] for row in draws.values()])),
        }
        for rule, found in errors.items()
    }


def table_of(results: dict[str, Any]) -> str:
    """Return the table of the documentation."""
    heads = ["data", "chosen by", "test error, %", "minus validation loss's, %", "better · worse", "median steps"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, found in results["measured"].items():
        for rule, row in found["summary"].items():
            against = [interval(row["difference"]), f"{row['better']} · {row['worse']}"]
            cells = [name, rule, interval(row["test_error"]), *(against if rule != "validation loss" else ["", ""])]
            cells.append(f"{row['median_steps']:.0f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(found: dict[str, Any]) -> str:
    return f"{100 * found['mean']:.1f} ({100 * found['low']:.1f} to {100 * found['high']:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["design", "why", "measure", "table"])
    parser.add_argument("data", nargs="*", default=list(ROWS), help=f"of {list(ROWS)}; all by default")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    for name in options.data if options.what != "table" else []:
        if options.what == "design":
            write(options.output, "design", name, design(name, options.draws, options.trials))
        elif options.what == "why":
            write(options.output, "why", name, why(name, options.draws, options.trials))
        else:
            compare(name, options)
    print(table_of(read(options.output)))


def compare(name: str, options: argparse.Namespace) -> None:
    """Measure the draws that the file does not have yet, and write after each."""
    results = read(options.output)
    zeta = results["design"][OTHER[name]]["zeta"]
    draws = results["measured"].get(name, {}).get("draws", {})
    for seed in range(options.draws):
        if str(seed) not in draws:
            draws[str(seed)] = measure(draw(name, seed), seed, options.trials, zeta)
            rows = dict(zip(("train_rows", "valid_rows"), ROWS[name], strict=True))
            found = {
                **rows,
                "trials": options.trials,
                "transferred_zeta": zeta,
                "summary": summary(draws),
                "draws": draws,
            }
            write(options.output, "measured", name, found)
            print(name, seed, draws[str(seed)], flush=True)


def write(path: Path, part: str, name: str, found: dict[str, Any]) -> None:
    results = read(path)
    results.setdefault(part, {})[name] = found
    path.write_text(json.dumps(results, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"design": {}, "why": {}, "measured": {}}


if __name__ == "__main__":
    main()
