"""What λ minimises: one file per objective.

An objective is a risk at θ_T plus ζ times the root of a sum along the trajectory. A new one is a file here with a class
that implements `summand`.
"""

from pactune.objectives.auto_zeta import AutoZeta, RelativeZeta
from pactune.objectives.base import Objective, PathContext
from pactune.objectives.flatness import Flatness
from pactune.objectives.hyper_drift import HyperDrift
from pactune.objectives.pac_bayes import PACBayes, SameDistribution
from pactune.objectives.unequal_steps import UnequalSteps
from pactune.objectives.validation import ValidationRisk

__all__ = [
    "AutoZeta",
    "Flatness",
    "HyperDrift",
    "Objective",
    "PACBayes",
    "PathContext",
    "RelativeZeta",
    "SameDistribution",
    "UnequalSteps",
    "ValidationRisk",
]
