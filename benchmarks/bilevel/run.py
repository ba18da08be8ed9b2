"""pactune beside stocBiO, AmIGO and SOBA on the problems of benchmark_bilevel, without network and without benchopt.

    python benchmarks/bilevel/run.py [--problem regularization | cleaning] [--iterations 1000] [--small]

Prints, for every solver, the outer objective on all validation rows at the start and at the end, and the CPU time per
outer step. Writes `benchmarks/results/bilevel_<problem>.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from hand_solvers import SOLVERS
from measuring import machine, write
from pactune_solver import METHODS, Solver
from problems import PROBLEMS, BilevelProblem

SMALL = {"regularization": {"train_rows": 500, "valid_rows": 900}, "cleaning": {"train_rows": 400, "valid_rows": 200}}


def measure(solver: Any, problem: BilevelProblem, iterations: int) -> dict[str, Any]:
    """Return the outer objective at the start and at the end, and the time per outer step."""
    solver.set_objective(problem)
    first = problem.value(solver.get_result()["inner_var"])
    solver.run(2)  # the first steps look at the problem
    start = time.process_time()
    solver.run(iterations)
    seconds = time.process_time() - start
    last = problem.value(solver.get_result()["inner_var"])
    milliseconds = round(seconds / iterations * 1e3, 3)
    return {"first": round(first, 4), "last": round(last, 4), "milliseconds per outer step": milliseconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=[*PROBLEMS], default="regularization")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--small", action="store_true", help="a few rows only, to see that it runs; writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    problem = PROBLEMS[options.problem](**(SMALL[options.problem] if options.small else {}))
    found: dict[str, Any] = {"machine": machine(), "iterations": options.iterations, "solvers": {}}
    for name in METHODS:
        found["solvers"][f"{name} by hand"] = measure(SOLVERS[name](), problem, options.iterations)
        found["solvers"][f"pactune {name}"] = measure(Solver(name), problem, options.iterations)
    if not options.small:
        write(f"bilevel_{options.problem}.json", found)
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
