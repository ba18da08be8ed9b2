"""How the inner loop is run."""

from pactune.engine.base import Engine
from pactune.engine.captured import Captured
from pactune.engine.choice import as_engine
from pactune.engine.drive import Rounds, drive
from pactune.engine.eager import Eager
from pactune.engine.lane import Lane
from pactune.engine.likeness import ChangeDetector
from pactune.engine.paired import Drifts, PairedChains, Paths, run_pairs
from pactune.engine.plan import Job, Move, Outcome, Plan, Question, Reading, Reported
from pactune.engine.rounds import combine, run_chains, run_round
from pactune.engine.runner import Runner
from pactune.engine.traced import Compiled, Traced
from pactune.engine.world import Initial, World, consumes_randomness

__all__ = [
    "Captured",
    "ChangeDetector",
    "Compiled",
    "Drifts",
    "Eager",
    "Engine",
    "Initial",
    "Job",
    "Lane",
    "Move",
    "Outcome",
    "PairedChains",
    "Paths",
    "Plan",
    "Question",
    "Reading",
    "Reported",
    "Rounds",
    "Runner",
    "Traced",
    "World",
    "as_engine",
    "combine",
    "consumes_randomness",
    "drive",
    "run_chains",
    "run_pairs",
    "run_round",
]
