"""Bounds on the out-of-sample risk: pure functions of numbers, and certificates that list their assumptions.

A claim (`HoldOut`, `TrainSide`, `ValidationSide`) checks the conditions of its theorem and measures what the theorem
needs; `certify` turns it into a `Certificate`. A new bound belongs in `pac_bayes`, a new kind of certificate is a new
`Claim`.
"""

from pactune.bounds.certificate import Certificate, Claim, Evidence, certify
from pactune.bounds.claims import HoldOut, TrainSide, ValidationSide
from pactune.bounds.counts import CountedHoldOut
from pactune.bounds.data_dependent import DataDependentBound, PrivatePrior, theorem_2_1, theorem_a3
from pactune.bounds.kl import binary_kl, kl_inverse, kl_inverse_lower
from pactune.bounds.langevin_kl import ChainStep, noise_constant, path_kl, path_log_ratio, unequal_path_kl
from pactune.bounds.losses import BoundedLoss, ClippedCrossEntropy, ZeroOne, mean_losses
from pactune.bounds.pac_bayes import catoni, catoni_grid, hold_out, maurer_seeger, mcallester, path_bound, pinsker

__all__ = [
    "BoundedLoss",
    "Certificate",
    "ChainStep",
    "Claim",
    "ClippedCrossEntropy",
    "CountedHoldOut",
    "DataDependentBound",
    "Evidence",
    "HoldOut",
    "PrivatePrior",
    "TrainSide",
    "ValidationSide",
    "ZeroOne",
    "binary_kl",
    "catoni",
    "catoni_grid",
    "certify",
    "hold_out",
    "kl_inverse",
    "kl_inverse_lower",
    "maurer_seeger",
    "mcallester",
    "mean_losses",
    "noise_constant",
    "path_bound",
    "path_kl",
    "path_log_ratio",
    "pinsker",
    "theorem_2_1",
    "theorem_a3",
    "unequal_path_kl",
]
