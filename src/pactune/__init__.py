"""Tune hyperparameters by gradient, from a handful to millions, without overfitting the validation set.

The outer objective is a PAC-Bayes bound on the out-of-sample risk (Cherian et al. 2020), not the bare validation risk:

    J(λ) = E[R_V(θ_T)] + ζ √(Σ_t E‖∇R_T(θ_t) − ∇R_V(θ_t)‖²).
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from pactune.bounds.certificate import Certificate, certify
    from pactune.dynamics import SGD, Adam, Averaged, Langevin, TorchOptim
    from pactune.errors import (
        CertificateError,
        DataError,
        DivergenceError,
        GradientError,
        MissingPackageError,
        PactuneError,
        RankError,
        RunFolderError,
        SettingError,
    )
    from pactune.gradient_check.check import check_hypergradient
    from pactune.hypergradient import (
        ConjugateGradient,
        FirstOrder,
        ForwardMode,
        Identity,
        Implicit,
        Neumann,
        Nystrom,
        RunningImplicit,
        Truncated,
        ValueFunctionGap,
        Windowed,
    )
    from pactune.monitor import CoherenceMonitor
    from pactune.objectives import (
        AutoZeta,
        Flatness,
        HyperDrift,
        PACBayes,
        SameDistribution,
        UnequalSteps,
        ValidationRisk,
    )
    from pactune.parallel import Parallel
    from pactune.problem import Problem
    from pactune.problem.correlated_inputs import CorrelatedInputs
    from pactune.problem.data import Stream
    from pactune.problem.hyper import ExampleWeights, Initialization, LearningRates, WeightDecay
    from pactune.problem.l1 import L1
    from pactune.problem.provenance import Provenance
    from pactune.results.callbacks import Callback
    from pactune.results.result import ObjectiveValue, Result
    from pactune.results.saving import load_result
    from pactune.search.tune import tune
    from pactune.sweeps.result import SweepResult
    from pactune.sweeps.run import sweep
    from pactune.tuning.grid import GridResult, fit_grid
    from pactune.tuning.tuner import Tuner

_HOMES = {
    "pactune.bounds.certificate": ["Certificate", "certify"],
    "pactune.results.callbacks": ["Callback"],
    "pactune.gradient_check.check": ["check_hypergradient"],
    "pactune.dynamics": ["SGD", "Adam", "Averaged", "Langevin", "TorchOptim"],
    "pactune.errors": [
        "CertificateError",
        "DataError",
        "DivergenceError",
        "GradientError",
        "MissingPackageError",
        "PactuneError",
        "RankError",
        "RunFolderError",
        "SettingError",
    ],
    "pactune.problem.correlated_inputs": ["CorrelatedInputs"],
    "pactune.search.tune": ["tune"],
    "pactune.problem.hyper": ["ExampleWeights", "Initialization", "LearningRates", "WeightDecay"],
    "pactune.hypergradient": [
        "ConjugateGradient",
        "FirstOrder",
        "ForwardMode",
        "Identity",
        "Implicit",
        "Neumann",
        "Nystrom",
        "RunningImplicit",
        "Truncated",
        "ValueFunctionGap",
        "Windowed",
    ],
    "pactune.monitor": ["CoherenceMonitor"],
    "pactune.objectives": [
        "AutoZeta",
        "Flatness",
        "HyperDrift",
        "PACBayes",
        "SameDistribution",
        "UnequalSteps",
        "ValidationRisk",
    ],
    "pactune.parallel": ["Parallel"],
    "pactune.problem": ["Problem"],
    "pactune.problem.l1": ["L1"],
    "pactune.problem.provenance": ["Provenance"],
    "pactune.results.result": ["ObjectiveValue", "Result"],
    "pactune.results.saving": ["load_result"],
    "pactune.tuning.grid": ["GridResult", "fit_grid"],
    "pactune.sweeps.result": ["SweepResult"],
    "pactune.sweeps.run": ["sweep"],
    "pactune.problem.data": ["Stream"],
    "pactune.tuning.tuner": ["Tuner"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "L1",
    "SGD",
    "Adam",
    "AutoZeta",
    "Averaged",
    "Callback",
    "Certificate",
    "CertificateError",
    "CoherenceMonitor",
    "ConjugateGradient",
    "CorrelatedInputs",
    "DataError",
    "DivergenceError",
    "ExampleWeights",
    "FirstOrder",
    "Flatness",
    "ForwardMode",
    "GradientError",
    "GridResult",
    "HyperDrift",
    "Identity",
    "Implicit",
    "Initialization",
    "Langevin",
    "LearningRates",
    "MissingPackageError",
    "Neumann",
    "Nystrom",
    "ObjectiveValue",
    "PACBayes",
    "PactuneError",
    "Parallel",
    "Problem",
    "Provenance",
    "RankError",
    "Result",
    "RunFolderError",
    "RunningImplicit",
    "SameDistribution",
    "SettingError",
    "Stream",
    "SweepResult",
    "TorchOptim",
    "Truncated",
    "Tuner",
    "UnequalSteps",
    "ValidationRisk",
    "ValueFunctionGap",
    "WeightDecay",
    "Windowed",
    "certify",
    "check_hypergradient",
    "fit_grid",
    "load_result",
    "sweep",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command line starts without torch."""
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
