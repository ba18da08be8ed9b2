"""How the λ-gradient of an objective is found: one file per estimator."""

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
