"""The solver of benchopt's form takes the steps of stocBiO, and the runner sets it beside the solvers by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

BILEVEL = Path(__file__).parents[1] / "benchmarks" / "bilevel"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    monkeypatch.syspath_prepend(str(BILEVEL.parent / "peers"))
    monkeypatch.syspath_prepend(str(BILEVEL))
    import hand_solvers
    import pactune_solver
    import problems

    return problems, hand_solvers, pactune_solver


@pytest.mark.parametrize("name", ["regularization", "cleaning"])
def test_pactune_takes_the_steps_of_stocbio(name: str, modules: tuple[Any, Any, Any]) -> None:
    problems, hand_solvers, pactune_solver = modules
    problem = problems.PROBLEMS[name](train_rows=64, valid_rows=64)  # mini-batches of all rows: one order for both
    found = []
    for solver in (pactune_solver.Solver("stocBiO"), hand_solvers.StocBiO()):
        solver.set_objective(problem)
        solver.run(3)
        found.append(solver.get_result())
    for variable in ("inner_var", "outer_var"):
        ours, theirs = found[0][variable].detach(), found[1][variable].detach()
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max())), variable
        assert not torch.equal(ours, problem.start()[variable == "outer_var"])


@pytest.mark.slow
def test_the_runner_lowers_the_outer_objective() -> None:
    command = [sys.executable, str(BILEVEL / "run.py"), "--small", "--iterations", "20"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    solvers = json.loads(done.stdout)["solvers"]
    methods = ("stocBiO", "AmIGO", "SOBA")
    assert set(solvers) == {f"{name} by hand" for name in methods} | {f"pactune {name}" for name in methods}
    assert all(one["last"] < one["first"] for one in solvers.values())
