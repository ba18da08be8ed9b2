"""How inner steps are executed: one by one, from a recording, compiled, or as a CUDA graph.

An engine runs the first steps of a round, which no estimator needs one by one. It gives the same numbers as the eager
engine, and it checks this in every round. A new engine is a file here and a name in `choice`.
"""

from pactune.engines.captured import Captured
from pactune.engines.choice import as_engine
from pactune.engines.eager import Eager
from pactune.engines.traced import Compiled, Traced
from pactune.rounds.engine import Engine

__all__ = ["Captured", "Compiled", "Eager", "Engine", "Traced", "as_engine"]
