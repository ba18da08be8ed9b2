"""Tune while every optional package is hidden, then use each of them. `test_extras.py` runs this in a new process.

Prints one JSON object: the error that each use of an optional package ends with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pactune.extras import EXTRAS

HIDDEN = {package for package, _ in EXTRAS.values()} | {module.partition(".")[0] for module in EXTRAS} - {"torch"}


def make_tuner() -> Any:
    import pactune as pt

    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(20, 4), torch.randint(0, 3, (20,))
    hyper = pt.WeightDecay(model)
    loss = nn.functional.cross_entropy
    problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]), loss=loss)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=3, outer=outer, objective=pt.PACBayes("theory"))


def tune(folder: Path) -> Any:
    """Use the core: a recorded run with progress, its continuation, and a grid."""
    import pactune as pt
    from pactune.results import callbacks

    sys.stderr.isatty, callbacks.LINE_SECONDS = lambda: True, 0.0  # type: ignore[method-assign]
    make_tuner().fit(1, run_dir=folder / "run", progress=True)
    result = make_tuner().fit(2, run_dir=folder / "run", resume=True)
    assert len(result.history) == 2
    assert len(pt.fit_grid(lambda seed: make_tuner(), {"seed": [0, 1]}, outer_steps=1).history) == 2
    return result


def uses(result: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return a name for every use of an optional package, and the use."""
    from pactune import cli, privacy, sweep, tracking
    from pactune.cli.tables import read_table
    from pactune.demo.digits import load_digits
    from pactune.drawing import Panel
    from pactune.integrations import optuna, ray_tune
    from pactune.problem.provenance import DataMark
    from pactune.report.page import Section, write_page

    rows = DataMark("rows", (torch.randn(20, 4), torch.zeros(20)))
    panel = Panel("figure", "x", "y", [])
    private = privacy.Privacy(batch_size=10, clip=1.0, lr=0.1, inverse_temperature=10.0)
    return {
        "command line: typer": cli.main,
        "estimators: sklearn": lambda: __import__("pactune.sklearn"),
        "feature selection: sklearn": lambda: __import__("pactune.selection"),
        "plot of a result: matplotlib": result.plot,
        "plot of a frontier: scipy": lambda: privacy.draw_frontier(private),
        "page: matplotlib": lambda: write_page(folder / "page.html", "title", [Section("figure", figures=[panel])]),
        "certificate: scipy": lambda: rows.shared(rows),
        "privacy: scipy": lambda: privacy.delta_of(1.0, 1.0),
        "audit: scipy": lambda: privacy.epsilon_lower_bound(10, 1, 100, 1e-5),
        "digits of the demo: sklearn": lambda: load_digits(50, 0),
        "table: pyarrow": lambda: read_table(Path("table.parquet")),
        "sweep: ray": lambda: sweep(make_tuner, {"seed": [0]}, outer_steps=1, run_dir=folder / "sweep"),
        "Ray Tune: ray.tune": lambda: ray_tune.report(None, zeta=0.0),
        "Optuna: optuna": lambda: optuna.report(None, None, zeta=0.0, step=0),
        "Lightning: lightning": lambda: __import__("pactune.integrations.lightning"),
        "TensorBoard: torch.utils.tensorboard": lambda: tracking.TensorBoardLogger(folder),
        "MLflow: mlflow": tracking.MLflowLogger,
        "Weights & Biases: wandb": tracking.WandbLogger,
    }


def error_of(use: Callable[[], Any]) -> str:
    try:
        use()
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(HIDDEN))  # an import of None fails as that of a missing package
    place = Path(sys.argv[1])
    print(json.dumps({name: error_of(use) for name, use in uses(tune(place), place).items()}))
