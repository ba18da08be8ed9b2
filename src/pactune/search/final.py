"""The last run of `pt.tune`: the procedure that was kept, on all rows and in the user's own modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from pactune.columns import Row
from pactune.problem import Problem
from pactune.problem.data import as_source
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.results.verdict import Verdict
from pactune.search.many import outer_optimizer
from pactune.search.training import InnerLoop, start_run
from pactune.stacking.runner import Runner
from pactune.tracking.journal import Journal
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import Choice, FitSettings
from pactune.tuning.listeners import Listeners
from pactune.tuning.recording import check_folder, recorded_in

__all__ = ["FinalRun", "check_final", "final_fit", "record_comparison"]


class FinalRun(NamedTuple):
    """What the last run does.

    Attributes:
        hyper: the hyper module, at its start.
        loop: how models are trained.
        rounds: the number of rounds, after which the model is kept.
        tuned: True if λ moves between rounds.
        noise: the standard deviation of the noise on the inputs.
    """

    hyper: nn.Module
    loop: InnerLoop
    rounds: int
    tuned: bool
    noise: float = 0.0


def check_final(problem: Problem, test: Any, run_dir: Any, *, resume: bool) -> None:
    """Raise before the search if the last run would refuse its test set or its folder."""
    if test is not None:
        problem.try_test(as_source(test, role="test", device=problem.device))
    check_folder(run_dir, resume=resume)


def record_comparison(run_dir: str | Path | None, rows: Sequence[Row], *, tuned: bool) -> None:
    """Append the comparison of the procedures to the journal, from which `pactune report` shows it."""
    if run_dir is not None:
        with Journal(Path(run_dir)) as journal:
            journal.append("comparison", rows=list(rows), tuned=tuned)


def final_fit(
    problem: Problem,
    final: FinalRun,
    runner: Runner,
    verdict: Verdict,
    *,
    test: Any,
    progress: Callback,
    run_dir: Any,
    resume: bool,
) -> Result:
    """Run the last run and return its result. A run with fixed λ is plain training."""
    own = problem.with_modules(problem.model, final.hyper).with_noise(final.noise)
    outer = outer_optimizer(final.hyper) if final.tuned else None
    run = start_run(own, final.loop, runner, outer)
    settings = FitSettings(
        outer_steps=final.rounds,
        test=test,
        plain_steps=final.rounds if final.tuned else 0,
        choice=Choice("tuned", final.rounds),
        verdict=verdict,
    )
    settings = recorded_in(run_dir, run, settings, resume=resume)
    result = Fit(run, settings, 0.0, Listeners(None, [progress])).result()
    if final.tuned:
        return result
    return replace(result, rows=[], plain_rows=result.rows, kept_run="plain")
