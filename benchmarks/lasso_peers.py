"""Hypergradients of the lasso, the weighted lasso and the elastic net beside sparse-ho: agreement and CPU time.

    git clone https://github.com/QB3/sparse-ho && pip install numba celer libsvmdata
    python benchmarks/lasso_peers.py --sparse-ho sparse-ho

Every call starts from zero weights and ends with the gradient of the validation error with respect to log λ. Both sides
use their cheapest setting whose gradient has a relative error below 1e-6: a tolerance, or a number of steps and a
momentum. sparse-ho is compiled by numba. pactune runs with its default engine, which needs no compiler. What is done
once is not timed: the compilation, and the first rounds, before pactune has recorded its steps. sparse-ho has had no
release for recent versions of NumPy and SciPy; `load_sparse_ho` says what has to be replaced for it.
"""

from __future__ import annotations

import argparse
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse.linalg
import torch
from measuring import interleave, machine, ratio, write
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

ACCURACY = 1e-6
TOLERANCES = [10.0 ** (-k / 2) for k in range(2, 30)]
STEPS = [*range(25, 100, 5), *range(100, 200, 25), 200, 300, 400, 600, 800, 1200, 1600, 2400]
MOMENTA = (0.4, 0.5, 0.6, 0.7)
SETTINGS = [(steps, momentum) for steps in STEPS for momentum in MOMENTA]  # the fewest steps first
WARM_UP = 101  # rounds; the library records the steps after 1000 of them, and long rounds as a whole after 100 rounds
MODELS = ("lasso", "weighted lasso", "elastic net")
SIZES = [(50, 100), (100, 200), (500, 1000)]


class Data(NamedTuple):
    """Training rows, then as many validation rows."""

    x: np.ndarray
    y: np.ndarray
    log_alpha: float

    @classmethod
    def draw(cls, rows: int, features: int, seed: int = 0) -> Data:
        """Return rows whose target depends on a fiftieth of the features, and a third of the largest useful α."""
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(2 * rows, features))
        true = max(5, features // 50)
        y = x[:, :true].sum(1) + 0.5 * np.sqrt(true) * generator.normal(size=2 * rows)
        return cls(np.asfortranarray(x), y, float(np.log(0.3 * np.abs(x[:rows].T @ y[:rows]).max() / rows)))

    @property
    def half(self) -> int:
        """The number of training rows."""
        return len(self.x) // 2


def load_sparse_ho(folder: str | None) -> Any:
    """Import sparse-ho; replace names that NumPy and SciPy have removed since its last release, and hyperopt."""
    if folder:
        sys.path.insert(0, folder)
    np.float = float  # type: ignore[attr-defined]
    sys.modules.setdefault("hyperopt", types.ModuleType("hyperopt"))
    for name in ("hp", "fmin", "tpe", "rand", "Trials", "STATUS_OK"):
        sys.modules["hyperopt"].__dict__.setdefault(name, None)
    own = scipy.sparse.linalg.cg
    solvers: Any = scipy.sparse.linalg
    solvers.cg = lambda a, b, x0=None, tol=1e-5, maxiter=None: own(a, b, x0=x0, rtol=tol, maxiter=maxiter)
    sys.modules["coverage"] = None  # type: ignore[assignment]  # numba would find the benchmark of this name
    import sparse_ho
    import sparse_ho.criterion
    import sparse_ho.models

    return sparse_ho


def values(model: str, data: Data) -> Any:
    """Return log α as sparse-ho takes it."""
    if model == "lasso":
        return np.array(data.log_alpha)
    if model == "weighted lasso":
        return data.log_alpha + np.linspace(-0.2, 0.2, data.x.shape[1])
    return np.array([data.log_alpha, data.log_alpha - 1])


def peer(sparse_ho: Any, model: str, way: str, data: Data, tolerance: float) -> Callable[[], np.ndarray]:
    """Return a function that computes the gradient with sparse-ho."""
    kinds = {"lasso": "Lasso", "weighted lasso": "WeightedLasso", "elastic net": "ElasticNet"}
    half, log_alpha = data.half, values(model, data)
    ways = {
        "implicit": lambda: sparse_ho.Implicit(max_iter_lin_sys=5000, tol_lin_sys=tolerance),
        "forward": sparse_ho.Forward,
        "unrolled": sparse_ho.Backward,
    }

    def run() -> np.ndarray:
        estimator, algorithm = getattr(sparse_ho.models, kinds[model])(), ways[way]()
        criterion = sparse_ho.criterion.HeldOutMSE(np.arange(half), np.arange(half, 2 * half))
        found = criterion.get_val_grad(
            estimator, data.x, data.y, log_alpha, algorithm.compute_beta_grad, tol=tolerance, max_iter=100_000
        )
        return np.ravel(found[1])

    return run


def own(model: str, way: str, data: Data, steps: int, momentum: float) -> Callable[[], np.ndarray]:
    """Return a function that computes the gradient with pactune. F.mse_loss is twice sparse-ho's training risk."""
    half, features = data.half, data.x.shape[1]
    linear = nn.Linear(features, 1, bias=False, dtype=torch.float64)
    l1 = pt.L1(linear, per="element" if model == "weighted lasso" else "global", init=2 * np.exp(data.log_alpha))
    decay = pt.WeightDecay(linear, per="global", init=2 * np.exp(data.log_alpha - 1))
    if model == "weighted lasso":
        with torch.no_grad():
            l1.values["weight"].copy_(torch.from_numpy(np.log(2) + values(model, data)))
    hyper = nn.ModuleDict({"l1": l1, "decay": decay}) if model == "elastic net" else l1
    x, y = torch.from_numpy(np.ascontiguousarray(data.x)), torch.from_numpy(data.y)[:, None]
    curvature = 2 * float(torch.linalg.matrix_norm(x[:half], 2)) ** 2 / half
    estimators = {
        "implicit": pt.Implicit(pt.ConjugateGradient(5000, tolerance=0.1 * ACCURACY)),
        "forward": pt.ForwardMode(),
        "unrolled": pt.Windowed(steps),
    }
    tuner = pt.Tuner(
        pt.Problem(linear, hyper, train=(x[:half], y[:half]), valid=(x[half:], y[half:]), loss=F.mse_loss),
        inner=pt.SGD(1 / curvature, momentum=momentum),
        inner_steps=steps,
        restart=True,
        initial=lambda _: {"weight": torch.zeros(1, features, dtype=torch.float64)},
        outer=torch.optim.SGD(hyper.parameters(), lr=0.1),
        objective=pt.ValidationRisk(),
        hypergradient=estimators[way],
    )

    def run() -> np.ndarray:
        hyper.zero_grad()
        tuner.hypergradient()
        found = [next(iter(l1.parameters())).grad.flatten().numpy()]  # type: ignore[union-attr]
        if model == "elastic net":
            found.append((decay.values["all"].grad * decay.values["all"].detach()).reshape(1).numpy())
        return np.concatenate(found).copy()

    return run


def error(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def cheapest(make: Callable[[Any], Callable[[], np.ndarray]], settings: list[Any], truth: np.ndarray) -> Any:
    """Return the first setting that is accurate enough, with its function and its error; None if there is none."""
    for setting in settings:
        run = make(setting)
        found = error(run(), truth)
        if found <= ACCURACY:
            return setting, run, found
    return None


def compare(sparse_ho: Any, model: str, way: str, data: Data, repeats: int) -> dict[str, Any]:
    truth = peer(sparse_ho, model, "implicit", data, 1e-15)()
    row: dict[str, Any] = {"model": model, "way": way, "rows": data.half, "features": data.x.shape[1]}
    theirs = cheapest(lambda tol: peer(sparse_ho, model, way, data, tol), TOLERANCES, truth)
    ours = cheapest(lambda setting: own(model, way, data, *setting), SETTINGS, truth)
    row |= {"tolerance": theirs and theirs[0], "steps": ours and ours[0][0], "momentum": ours and ours[0][1]}
    if theirs is None or ours is None:
        return row
    for _ in range(WARM_UP):
        ours[1]()
    taken = interleave({"pactune": ours[1], "sparse-ho": theirs[1]}, repeats)
    row |= {"error": ours[2], "error_sparse_ho": theirs[2], "ratio": ratio(taken["pactune"], taken["sparse-ho"])}
    return row | {f"ms_{name}": round(1e3 * float(np.median(times)), 3) for name, times in taken.items()}


def reference_gradients(sparse_ho: Any) -> list[dict[str, Any]]:
    """Return the gradients of sparse-ho on the problem of the tests, which compare pactune's with them."""
    sys.path.append(str(Path(__file__).parents[1]))
    from tests.lasso_reference import Regression

    given = Regression.draw(30, 12, seed=3)
    data = Data(
        np.asfortranarray(np.vstack([given.x, given.x_valid])), np.hstack([given.y, given.y_valid]), np.log(0.15)
    )
    found = []
    for model in MODELS:
        for way in ("implicit", "forward", "unrolled"):
            gradient = peer(sparse_ho, model, way, data, 1e-15)()
            log_alpha = np.ravel(values(model, data)).tolist()
            found.append({"model": model, "way": way, "log_alpha": log_alpha, "gradient": gradient.tolist()})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sparse-ho", help="a folder with the sources of sparse-ho")
    parser.add_argument("--repeats", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sparse_ho = load_sparse_ho(arguments.sparse_ho)
    gradients, rows = reference_gradients(sparse_ho), []
    for rows_features in SIZES:
        data = Data.draw(*rows_features)
        for model in MODELS:
            for way in ("implicit", "unrolled", "forward"):
                if way == "forward" and model == "weighted lasso":
                    continue  # one tangent per feature: neither side is meant for it
                if way != "implicit" and rows_features == SIZES[-1]:
                    continue
                rows.append(compare(sparse_ho, model, way, data, arguments.repeats))
                print(rows[-1], flush=True)
    write(
        "lasso-peers.json",
        {
            "accuracy": ACCURACY,
            "rows": rows,
            "gradients": gradients,
            "machine": machine(),
        },
    )


if __name__ == "__main__":
    main()
