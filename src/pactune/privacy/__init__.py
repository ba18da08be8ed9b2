"""The private prior: DP-SGLD, its exact (ε, δ), and an audit that can disprove them.

`dp_sgld` runs the chains, `gaussian` and `accounting` compute the privacy, `audit` attacks the outputs. Changes of the
privacy mathematics belong in `gaussian`; they need no model and no data.
"""

from pactune.privacy.accounting import FrontierPoint, LargestStep, Privacy, frontier, largest_step
from pactune.privacy.audit import epsilon_lower_bound, membership_audit
from pactune.privacy.dp_sgld import DPSGLD, PrivateRun, secret_generator
from pactune.privacy.gaussian import classical_epsilon, compose, delta_of, epsilon_of, mu_of
from pactune.privacy.plots import FrontierCurves, draw_frontier, frontier_curves

__all__ = [
    "DPSGLD",
    "FrontierCurves",
    "FrontierPoint",
    "LargestStep",
    "Privacy",
    "PrivateRun",
    "classical_epsilon",
    "compose",
    "delta_of",
    "draw_frontier",
    "epsilon_lower_bound",
    "epsilon_of",
    "frontier",
    "frontier_curves",
    "largest_step",
    "membership_audit",
    "mu_of",
    "secret_generator",
]
