"""How the inner loop is run."""

from pactune.engine.eager import Outcome, Plan, run_round
from pactune.engine.lane import Lane
from pactune.engine.paired import Drifts, PairedChains, Paths, run_pairs
from pactune.engine.world import Initial, World, consumes_randomness

__all__ = [
    "Drifts",
    "Initial",
    "Lane",
    "Outcome",
    "PairedChains",
    "Paths",
    "Plan",
    "World",
    "consumes_randomness",
    "run_pairs",
    "run_round",
]
