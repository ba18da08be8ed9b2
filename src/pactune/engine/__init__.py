"""How the inner loop is run."""

from pactune.engine.eager import Outcome, Plan, run_round
from pactune.engine.lane import Lane
from pactune.engine.world import Initial, World, consumes_randomness

__all__ = ["Initial", "Lane", "Outcome", "Plan", "World", "consumes_randomness", "run_round"]
