"""The last run of `pt.tune`: the procedure that was kept, on all rows and in the user's own modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from pactune.columns import Row
from pactune.errors import GradientError, RunFolderError, SettingError
from pactune.problem import Problem
from pactune.problem.data import as_source
from pactune.results.callbacks import Callback
from pactune.results.result import Result
from pactune.results.verdict import Verdict
from pactune.search.comparison import Judgement
from pactune.search.many import outer_optimizer
from pactune.search.training import InnerLoop, start_run
from pactune.stacking.runner import Runner
from pactune.storage.files import make_folder
from pactune.tracking.journal import Journal, read_lines, starts_of
from pactune.tracking.recorder import FolderRecorder
from pactune.tuning.description import describe_run
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import Choice, FitSettings
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.recording import check_folder, recorded_in

__all__ = [
    "FinalRun",
    "check_final",
    "check_hyper",
    "check_resumed",
    "final_fit",
    "interrupted_result",
    "record_comparison",
]

# The settings of the last run that do not depend on what the search finds.
UNSEARCHED = "seed", "engine", "losses", "parameters", "buffers", "device", "problems", "valid", "refit", "test"


class FinalRun(NamedTuple):
    """What the last run does.

    Attributes:
        hyper: the hyper module, at its start.
        loop: how models are trained.
        rounds: the number of rounds, after which the model is kept.
        tuned: True if λ moves between rounds.
        decay: the decay at its start.
        noise: the standard deviation of the noise on the inputs.
    """

    hyper: nn.Module
    loop: InnerLoop
    rounds: int
    tuned: bool
    decay: float
    noise: float = 0.0


def check_final(problem: Problem, test: Any, run_dir: Any, *, resume: bool) -> None:
    """Raise before the search if the last run would refuse its test set, or if its folder cannot be made."""
    if test is not None:
        problem.try_test(as_source(test, role="test", device=problem.device))
    check_folder(run_dir, resume=resume)
    if run_dir is not None:
        make_folder(Path(run_dir))


def check_hyper(run: OuterRun) -> None:
    """Raise before the search if the last run would refuse the user's hyperparameters.

    Args:
        run: a run of the problem, at its start.

    Raises:
        SettingError: the gradient of a hyperparameter would be identically zero, or cannot be computed.
    """
    try:
        with run.problem.training_mode():
            run.check(0.0)
    except GradientError as error:
        raise SettingError(
            f"`pt.tune` cannot tune this `hyper`; use `pt.Tuner`, whose settings can be chosen: {error}"
        ) from error


def check_resumed(run: OuterRun, start: str, test: Any, run_dir: str | Path) -> None:
    """Raise before the search if the folder holds a run that differs in more than a search can change.

    Args:
        run: a run of the problem, at its start.
        start: the checksum of this start.
        test: the user's test set.
        run_dir: the folder.

    Raises:
        RunFolderError: the folder holds a run with other settings or from another start.
    """
    starts = starts_of(read_lines(run_dir))
    if not starts:
        return
    source = None if test is None else as_source(test, role="test", device=run.problem.device)
    began, now = starts[-1]["settings"], describe_run(run, FitSettings(outer_steps=1), source)
    settings = {**began, **{name: now[name] for name in UNSEARCHED if name in now}}
    FolderRecorder(Path(run_dir), resume=True, settings=settings)  # raises if the folder holds another run
    if began.get("start") != start:
        raise RunFolderError(
            f"{run_dir} holds another run: it began with other values of the parameters, the buffers or λ. Build "
            "`model` and `hyper` as for that run, with the same random seed, or choose another `run_dir`"
        )


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
    start: str,
    accepted: Callable[[], None],
) -> Result:
    """Run the last run and return its result. A run with fixed λ is plain training.

    `start` is the checksum that a resumed call must share. `accepted` is called once the folder has accepted the run,
    and before anything is written.
    """
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
    settings = recorded_in(run_dir, run, settings, resume=resume, decay=final.decay, rounds=final.rounds, start=start)
    accepted()
    result = Fit(run, settings, 0.0, Listeners(None, [progress])).result()
    if final.tuned:
        return result
    return replace(result, rows=[], plain_rows=result.rows, kept_run="plain")


def interrupted_result(problem: Problem, before: Mapping[str, Any], judged: Judgement | None) -> Result:
    """Put the model back to its state before the search, and return the result of a call that Ctrl-C ended.

    Args:
        problem: the problem, with the user's model.
        before: the state of the model before the search.
        judged: the comparison; None if Ctrl-C came in the search.
    """
    verdict = "interrupted in the search: nothing is chosen, and the model is as it was"
    if judged is not None:
        words = judged.verdict.verdict.replace(" is kept", " would be kept", 1)
        verdict = f"interrupted in the last run before its first step, so the model is as it was; {words}"
    problem.model.load_state_dict(before)
    problem.model.eval()
    return Result(
        model=problem.model,
        hyper=problem.hyper,
        status="interrupted",
        zeta=0.0,
        kept_run="plain",
        kept_step=0,
        rows=[],
        plain_rows=[],
        verdict=verdict,
        pays=None if judged is None else judged.verdict.pays,
        comparison=[] if judged is None else judged.rows,
    )
