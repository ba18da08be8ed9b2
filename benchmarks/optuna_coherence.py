"""Optuna choosing by the validation loss alone, and by Eq. 5, on real tables with few validation rows.

    pip install 'pactune[optuna]'
    python benchmarks/optuna_coherence.py design digits cancer    # chooses ζ on draws 1000, 1001, …
    python benchmarks/optuna_coherence.py measure digits          # studies on draws 0, 1, …
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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.experiments.intervals import mean_interval
from pactune.integrations.optuna import CoherenceObjective, best_trial, score

RESULTS = Path(__file__).parent / "results" / "optuna_coherence.json"
ROWS = {"digits": (100, 20), "cancer": (40, 10)}  # training and validation rows
BATCH = 20
GRID = [0.0, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
FIRST_DESIGN_DRAW = 1000
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


def measure(name: str, draws: int, trials: int, transferred: float) -> dict[str, Any]:
    """Run one study per rule and draw."""
    rules: dict[str, Any] = {"validation loss": 0.0, "theory": "theory", "transferred": transferred}
    rows: dict[str, list[dict[str, Any]]] = {rule: [] for rule in [*rules, "theory, same trials", "oracle"]}
    same: dict[float, list[float]] = {zeta: [] for zeta in GRID}
    start = time.perf_counter()
    for seed in range(draws):
        table = draw(name, seed)
        studies = {zeta: study_of(table, seed, zeta, trials) for zeta in dict.fromkeys(rules.values())}
        for rule, zeta in rules.items():
            rows[rule].append(described(studies[zeta].best_trial, zeta))
        first = studies[0.0]
        rows["theory, same trials"].append(described(best_trial(first, zeta="theory"), "theory"))
        done = [trial for trial in first.trials if trial.state.name == "COMPLETE"]
        rows["oracle"].append(described(min(done, key=error_of), 0.0))
        for zeta in GRID:
            same[zeta].append(error_of(best_trial(first, zeta=zeta)))
        print(name, seed, {rule: round(found[-1]["test_error"], 4) for rule, found in rows.items()}, flush=True)
    errors = {rule: np.array([row["test_error"] for row in found]) for rule, found in rows.items()}
    base = errors["validation loss"]
    return {
        "rows": dict(zip(("train", "valid"), ROWS[name], strict=True)),
        "draws": draws,
        "trials": trials,
        "transferred_zeta": transferred,
        "seconds": round(time.perf_counter() - start, 1),
        "test_error": {rule: mean_interval(found) for rule, found in errors.items()},
        "against_validation_loss": {
            rule: {
                **mean_interval(found - base),
                "better": int((found < base).sum()),
                "worse": int((found > base).sum()),
            }
            for rule, found in errors.items()
            if rule != "validation loss"
        },
        "same_trials": {zeta: mean_interval(found) for zeta, found in same.items()},
        "chosen": rows,
    }


def described(trial: Any, zeta: Any) -> dict[str, Any]:
    return {**trial.params, **score(trial, zeta=zeta), "test_error": error_of(trial)}


def table_of(results: dict[str, Any]) -> str:
    """Return the table of the documentation."""
    lines = ["| data | chosen by | test error, % | minus validation loss's, % | better · worse |", "|---" * 5 + "|"]
    for name, found in results["measured"].items():
        for rule, error in found["test_error"].items():
            cells = [name, rule, interval(error)]
            against = found["against_validation_loss"].get(rule)
            cells += [interval(against), f"{against['better']} · {against['worse']}"] if against else ["", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(found: dict[str, Any]) -> str:
    return f"{100 * found['mean']:.1f} ({100 * found['low']:.1f} to {100 * found['high']:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["design", "measure", "table"])
    parser.add_argument("data", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    torch.set_num_threads(1)
    for name in options.data if options.what != "table" else []:
        results = read(options.output)
        if options.what == "design":
            found = design(name, options.draws, options.trials)
        else:
            found = measure(name, options.draws, options.trials, results["design"][OTHER[name]]["zeta"])
        results = read(options.output)  # the other data set may have been written meanwhile
        results["design" if options.what == "design" else "measured"][name] = found
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(table_of(read(options.output)))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {"design": {}, "measured": {}}


if __name__ == "__main__":
    main()
