"""The outer loop: rounds, measurements, what is kept, and how a run may end."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pactune.callbacks import Callback, progress_for
from pactune.data import Source, as_source
from pactune.engine import Lane, Plan
from pactune.errors import DivergenceError, SettingError
from pactune.objectives import ValidationRisk
from pactune.result import Result, Row, Status
from pactune.trees import Params, clone

if TYPE_CHECKING:
    from pactune.tuner import Tuner

__all__ = ["Fit", "FitSettings", "Keep"]

Keep = Literal["last", "best-objective"]
KEEP: tuple[Keep, ...] = ("last", "best-objective")


@dataclass(frozen=True)
class FitSettings:
    """The arguments of `Tuner.fit`."""

    outer_steps: int
    test: Any = None
    keep: Keep = "last"
    tolerance: float = 0.0
    callbacks: tuple[Callback, ...] = ()
    progress: bool | None = None
    plain_steps: int | None = None
    on_divergence: str = "raise"

    def __post_init__(self) -> None:
        if isinstance(self.outer_steps, bool) or not isinstance(self.outer_steps, int) or self.outer_steps < 1:
            raise SettingError(f"`outer_steps` must be a whole number ≥ 1, got {self.outer_steps!r}")
        if self.keep not in KEEP:
            raise SettingError(f"`keep` must be one of {', '.join(map(repr, KEEP))}, got {self.keep!r}")
        if not self.tolerance >= 0:
            raise SettingError(f"`tolerance` must be ≥ 0, got {self.tolerance!r}")
        if self.on_divergence not in ("raise", "return"):
            raise SettingError(f'`on_divergence` must be "raise" or "return", got {self.on_divergence!r}')
        if self.plain_steps is not None and self.plain_steps < 1:
            raise SettingError(f"`plain_steps` must be ≥ 1 or None, got {self.plain_steps!r}")


class Kept(NamedTuple):
    """A finished outer step: θ, buffers and the λ it was trained with."""

    step: int
    score: float
    params: Params
    buffers: Params
    hyper: Params


class Fit:
    """One run at one ζ."""

    def __init__(self, tuner: Tuner, settings: FitSettings, zeta: float) -> None:
        self.tuner, self.settings = tuner, settings
        self.plan = tuner.plan(zeta)
        self.test = _test_source(tuner, settings.test)
        self.rows: list[Row] = []
        self.plain = _PlainRun(tuner, settings, self.test)
        self.kept: Kept | None = None

    def run(self) -> Result:
        """Run to the end, to convergence, to Ctrl-C or to divergence; in each case there is a result."""
        listeners = [*progress_for(self.settings.progress), *self.settings.callbacks]
        self.tuner.prepare(self.plan.zeta)
        status, failure = self._loop(listeners)
        result = self._result(status)
        for listener in listeners:
            listener.on_fit_end(self.tuner, result)
        if failure is not None and self.settings.on_divergence == "raise":
            raise DivergenceError(str(failure), result) from failure
        return result

    def _loop(self, listeners: list[Callback]) -> tuple[Status, DivergenceError | None]:
        begun = time.perf_counter()
        try:
            for listener in listeners:
                listener.on_fit_begin(self.tuner, self.settings.outer_steps)
            for _ in range(self.settings.outer_steps):
                row = self._outer_step(begun)
                for listener in listeners:
                    listener.on_outer_step(self.tuner, row)
                if row["hypergradient_norm"] <= self.settings.tolerance:
                    return "converged", None
        except KeyboardInterrupt:
            return "interrupted", None
        except StopIteration:
            return "completed", None
        except DivergenceError as error:
            return "diverged", error
        return "completed", None

    def _outer_step(self, begun: float) -> Row:
        tuner, problem = self.tuner, self.tuner.problem
        tuner.move_hyper()
        hyper = clone(problem.hyperparameters())
        try:
            outcome = tuner.lane.run(self.plan, problem.hyperparameters(), tuner.online_step if tuner.online else None)
            value, length = tuner.measure(outcome, self.plan.zeta)
        except BaseException:
            problem.load_hyper(hyper)
            raise
        tuner.set_pending(outcome.gradient)
        self.plain.follow(tuner.lane)
        tuner.publish(tuner.lane)
        row: Row = {
            "outer_step": tuner.lane.rounds,
            **_evaluations(tuner, self.test),
            "risk": value.risk,
            "regularizer": value.regularizer,
            "objective": value.total,
            "hypergradient_norm": length,
            "seconds": time.perf_counter() - begun,
        }
        self.rows.append(row)
        self._keep(row, clone(problem.hyperparameters()) if tuner.online else hyper)
        return row

    def _keep(self, row: Row, hyper: Params) -> None:
        score = float(row["objective"]) if self.settings.keep == "best-objective" else -float(len(self.rows))
        if self.kept is None or score < self.kept.score:
            assert self.tuner.lane.states is not None
            state = self.tuner.lane.states[0]
            self.kept = Kept(len(self.rows), score, state.params, state.buffers, hyper)

    def _result(self, status: Status) -> Result:
        problem = self.tuner.problem
        if self.kept is not None:
            self.tuner.remember_hyper()
            problem.load(self.kept.params, self.kept.buffers)
            problem.load_hyper(self.kept.hyper)
        return Result(
            model=problem.model,
            hyper=problem.hyper,
            status=status,
            zeta=self.plan.zeta,
            kept_step=self.kept.step if self.kept else 0,
            rows=self.rows,
            plain_rows=self.plain.rows,
        )


class _PlainRun:
    """Plain training beside the tuned run: the same start, data and noise, λ fixed where it started."""

    def __init__(self, tuner: Tuner, settings: FitSettings, test: Source | None) -> None:
        default = 1 if tuner.restart else settings.outer_steps
        self._steps = settings.plain_steps if settings.plain_steps is not None else default
        self._tuner, self._test = tuner, test
        self._lane = tuner.plain_lane
        self._plan = _without_path(tuner.plan(0.0))
        self.rows: list[Row] = []

    def follow(self, tuned: Lane) -> None:
        """Make one more outer step, unless there were enough; the first round of an offline run is shared."""
        if len(self.rows) >= self._steps:
            return
        tuner, problem, start = self._tuner, self._tuner.problem, self._tuner.start_hyper
        if tuned.rounds == 1 and not tuner.online:
            self._lane.states, self._lane.rounds = tuned.states, 1
        else:
            self._lane.run(self._plan, start)
        present = clone(problem.hyperparameters())
        problem.load_hyper(start)
        tuner.publish(self._lane)
        self.rows.append({"outer_step": self._lane.rounds, **_evaluations(tuner, self._test)})
        problem.load_hyper(present)


def _without_path(plan: Plan) -> Plan:
    return replace(plan, trajectory=replace(plan.trajectory, objective=ValidationRisk()), derivatives=False)


def _test_source(tuner: Tuner, test: Any) -> Source | None:
    return None if test is None else as_source(test, role="test", device=tuner.problem.device)


def _evaluations(tuner: Tuner, test: Source | None) -> Row:
    """Evaluate the user's model on every data set, in `eval()` mode."""
    problem = tuner.problem
    columns: Row = {}
    for prefix, source in (("train", problem.train), ("valid", problem.valid), ("test", test)):
        if source is not None:
            columns |= problem.evaluate(source).columns(prefix)
    return columns
