"""How the λ-gradient of an objective is found: one file per estimator.

`Trajectory` holds the pure functions of one inner step, forwards and backwards. An `Estimator` decides through which
steps it differentiates; `ChainEstimator` does the work on one chain of one round. A new estimator is a file here.
"""

from pactune.hypergradient.base import Estimator
from pactune.hypergradient.first_order import FirstOrder
from pactune.hypergradient.forward import ForwardMode
from pactune.hypergradient.implicit import Implicit
from pactune.hypergradient.nystrom import Nystrom
from pactune.hypergradient.running_implicit import RunningImplicit
from pactune.hypergradient.solvers import ConjugateGradient, Identity, LinearSolver, LinearSystem, Neumann, Solution
from pactune.hypergradient.truncated import Truncated
from pactune.hypergradient.value_gap import ValueFunctionGap
from pactune.hypergradient.windowed import Windowed

__all__ = [
    "ConjugateGradient",
    "Estimator",
    "FirstOrder",
    "ForwardMode",
    "Identity",
    "Implicit",
    "LinearSolver",
    "LinearSystem",
    "Neumann",
    "Nystrom",
    "RunningImplicit",
    "Solution",
    "Truncated",
    "ValueFunctionGap",
    "Windowed",
]
