"""How the λ-gradient of an objective is found: one file per estimator.

`Trajectory` holds the pure functions of one inner step, forwards and backwards. An `Estimator` decides through which
steps it differentiates; `ChainEstimator` does the work on one chain of one round. A new estimator is a file here.
"""

from pactune.hypergradient.base import Estimator
from pactune.hypergradient.forward import ForwardMode
from pactune.hypergradient.implicit import ConjugateGradient, Identity, Implicit, LinearSolver, Neumann
from pactune.hypergradient.truncated import Truncated
from pactune.hypergradient.windowed import Windowed

__all__ = [
    "ConjugateGradient",
    "Estimator",
    "ForwardMode",
    "Identity",
    "Implicit",
    "LinearSolver",
    "Neumann",
    "Truncated",
    "Windowed",
]
