"""Weight decays tuned on S_V and certified on S_V: the hyper-drift objective compared with others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from pactune.bounds import ValidationSide, hold_out
from pactune.bounds.certificate import issue
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.columns import Row
from pactune.dynamics import Langevin
from pactune.errors import CertificateError
from pactune.hypergradient import Truncated, Windowed
from pactune.objectives import HyperDrift, Objective, PACBayes, ValidationRisk
from pactune.paper.certificates.grid import start_at_zero
from pactune.paper.certificates.splits import Split
from pactune.problem import Problem
from pactune.problem.data import as_source
from pactune.problem.hyper import WeightDecay
from pactune.tuning.tuner import Tuner

__all__ = ["DIGITS_DRIFT", "MNIST_DRIFT", "MNIST_LARGE_DRIFT", "DriftStudy", "objectives", "quick_study", "run_drift"]


@dataclass(frozen=True)
class DriftStudy:
    """Settings of the tuning and of the certificates; all objectives share δ.

    Attributes:
        name: name of the study.
        train: n_T.
        valid: n_V.
        lr: η of tuning and of the certified chains.
        inverse_temperature: τ.
        inner_steps: T of tuning.
        steps: T of the certified chains.
        outer_steps: number of updates of λ.
        outer_lr: step size of Adam on λ.
        default: λ0.
        per: one decay per element, per tensor, or for all parameters.
        reach: number of steps through which the validation risk is differentiated; None means all.
        names: names of the objectives to compare.
        models: M.
        delta: δ of all objectives together.
        seed: seed of the certified chains; the tuning uses another one.
    """

    name: str
    train: int
    valid: int
    lr: float
    inverse_temperature: float
    inner_steps: int
    steps: int
    outer_steps: int
    outer_lr: float = 0.003
    default: float = 0.0
    per: Literal["element", "tensor", "global"] = "element"
    reach: int | None = None
    names: tuple[str, ...] = ("λ0", "validation risk", "Eq. 5", "hyper-drift")
    models: int = 16
    delta: float = 0.05
    seed: int = 0

    def settings(self) -> Row:
        """Return the study as plain data."""
        return asdict(self)


DIGITS_DRIFT = DriftStudy("digits 60/1000, 650 decays", 60, 1000, 0.5, 300.0, 100, 100, 100)
MNIST_DRIFT = DriftStudy(
    "MNIST 1000/30000, 7850 decays",
    1000,
    30_000,
    0.1,
    3000.0,
    100,
    100,
    60,
    names=("λ0", "validation risk", "hyper-drift", "hyper-drift, 3ζ"),
)
MNIST_LARGE_DRIFT = DriftStudy(
    "MNIST 30000/30000, 7850 decays",
    30_000,
    30_000,
    0.3,
    30_000.0,
    100,
    3000,
    20,
    names=("λ0", "hyper-drift"),
    reach=20,
)


def objectives(study: DriftStudy) -> dict[str, Objective | None]:
    """Return the objectives by name; None means no tuning.

    The theory's ζ assumes a risk in [0, 1]. The cross-entropy, which is minimised, falls faster than the error rate,
    which is certified. So a larger ζ gives lower certificates.
    """
    theory = HyperDrift("theory").theory_zeta(study.lr, study.inverse_temperature / study.valid)
    return {
        "λ0": None,
        "validation risk": ValidationRisk(),
        "Eq. 5": PACBayes("theory"),
        "hyper-drift": HyperDrift("theory"),
        "hyper-drift, 3ζ": HyperDrift(3 * theory),
        "hyper-drift, 10ζ": HyperDrift(10 * theory),
    }


def run_drift(study: DriftStudy, split: Split, *, record: Callable[[Row], None] | None = None) -> list[Row]:
    """Tune under every objective, then certify Langevin chains under the λ found; return a row per objective."""
    rows = []
    for name in study.names:
        begun = time.perf_counter()
        row = {"objective": name, **_one(study, split, objectives(study)[name])}
        rows.append(row | {"seconds": time.perf_counter() - begun})
        if record is not None:
            record(rows[-1])
    return rows


def _one(study: DriftStudy, split: Split, objective: Objective | None) -> Row:
    x, _ = split.train
    model = nn.Linear(x.shape[1], 10).to(x.device)
    hyper = WeightDecay(model, per=study.per, init=study.default)
    problem = Problem(model, hyper, train=split.train, valid=split.valid, loss=functional.cross_entropy)
    tuner = _tuner(study, problem, objective or ValidationRisk())
    result = tuner.fit(
        1 if objective is None else study.outer_steps, progress=False, plain_steps=0, keep="best-objective"
    )
    if objective is None:
        problem.load_hyper(tuner.start_hyper)
    claim = ValidationSide(
        problem,
        CoupledChains(study.lr, study.inverse_temperature, study.steps),
        result.provenance.touch("features", problem.sample_ids[0]),
        models=study.models,
        seed=study.seed,
        initial=start_at_zero(model),
        default_hyper=tuner.start_hyper,
    )
    if broken := claim.broken():
        raise CertificateError(broken)
    paths = claim.paths()
    certificate = issue(claim, claim.evidence(paths), delta=study.delta, grid=len(study.names))
    test = as_source(split.test, role="test", device=problem.device)
    test_error = float(claim.losses(paths, test).mean())
    return {
        "zeta": result.zeta,
        "certificate": certificate.value,
        "valid_error": certificate.empirical,
        "test_error": test_error,
        "log_ratio_per_row": certificate.kl / certificate.n,
        "test_hold_out": hold_out(test_error, test.rows, study.delta),
        "largest_decay": float(max(value.abs().max() for value in problem.hyperparameters().values())),
    }


def _tuner(study: DriftStudy, problem: Problem, objective: Objective) -> Tuner:
    reach = study.reach or study.inner_steps
    whole = reach == study.inner_steps
    return Tuner(
        problem,
        inner=Langevin(study.lr, study.inverse_temperature),
        inner_steps=study.inner_steps,
        outer=torch.optim.Adam(problem.hyper.parameters(), lr=study.outer_lr),
        objective=objective,
        hypergradient=Windowed(reach) if whole else Truncated(reach),
        path_hypergradient=Windowed(reach) if whole else Truncated(0),
        restart=True,
        initial=start_at_zero(problem.model),
        seed=study.seed + 1000,
    )


def quick_study(study: DriftStudy) -> DriftStudy:
    """Return a small version, to see that it works."""
    return replace(study, outer_steps=3, models=4, inner_steps=20, steps=20, reach=None)
