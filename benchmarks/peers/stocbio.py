"""The problems of benchmark_bilevel with stocBiO, against a loop by hand: 20,000 row weights, 91,701 validation rows.

    python benchmarks/peers/stocbio.py [--problem cleaning | regularization]

Ten inner steps and ten products of a Neumann series per outer step, on mini-batches of 64 rows. Where this version of
pactune computes the validation risk on all rows, its gradient is another one and is not compared.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "bilevel"))

from comparing import Comparison, Way, peer, risk_is_stochastic
from hand_solvers import StocBiO
from pactune_solver import make_tuner
from problems import PROBLEMS, BilevelProblem


class Tuned:
    """What a hand-written solver tunes, with the gradient of its last outer step."""

    def __init__(self, solver: StocBiO) -> None:
        self._solver = solver

    @property
    def grad(self) -> Tensor:
        return self._solver.gradient


def by_hand(problem: BilevelProblem) -> Way:
    solver = StocBiO()
    solver.set_objective(problem)
    return Way(solver.outer_step, [Tuned(solver)])  # type: ignore[list-item]


def comparison(name: str) -> Comparison:
    problem, stochastic = PROBLEMS[name](), risk_is_stochastic()
    peers = {"by hand": peer(lambda: by_hand(problem), tolerance=1e-3 if stochastic else float("inf"))}
    notes = {"risk of pactune": "a mini-batch" if stochastic else "all validation rows"}
    bars = {"by hand": 1.3, "fit": 1.6}
    make = lambda engine: make_tuner(problem, "stocBiO", engine)  # noqa: E731
    return Comparison(f"stocbio_{name}", make, peers, outer_steps=5, bars=bars, notes=notes)


if __name__ == "__main__":
    at = sys.argv.index("--problem") if "--problem" in sys.argv else None
    chosen = sys.argv[at + 1] if at is not None else "cleaning"
    if at is not None:
        del sys.argv[at : at + 2]
    comparison(chosen).main()
