"""The outer loop: rounds, measurements, what is kept, and how a run may end."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pactune.columns import Row
from pactune.errors import DivergenceError, RankError, SettingError, warn_user
from pactune.interrupts import check_interrupt, immediate_interrupts, take_interrupt
from pactune.objectives import RelativeZeta
from pactune.problem.data import as_source
from pactune.problem.provenance import DataMark, Provenance
from pactune.problem.seen_data import SEEN_DATA
from pactune.results.callbacks import Callback, report_error
from pactune.results.result import ObjectiveValue, Result, Status
from pactune.results.verdict import judge_run
from pactune.rounds.plan import RoundOutcome, RoundPlan
from pactune.stacking.lockstep import RequestGenerator, run_in_lockstep
from pactune.stacking.requests import RoundValue, ValueRequest
from pactune.tracking.fingerprint import describe_run
from pactune.trees import Params, clone, norm, scale
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.plain_run import Kept, PlainRun, evaluations

if TYPE_CHECKING:
    from pactune.tuning.tuner import Tuner

__all__ = ["Fit"]


class Fit:
    """One run at one ζ."""

    def __init__(self, tuner: Tuner, settings: FitSettings, zeta: float | RelativeZeta) -> None:
        self.tuner, self.settings = tuner, settings
        self._relative = zeta if isinstance(zeta, RelativeZeta) else None
        self.plan = tuner.plan(zeta if isinstance(zeta, (int, float)) else 0.0)
        self.test = (
            None if settings.test is None else as_source(settings.test, role="test", device=tuner.problem.device)
        )
        self._before = SEEN_DATA.samples_of(tuner.problem.tensors())
        SEEN_DATA.begin_fit(tuner.problem.tensors(), tuner.problem.sample_ids)
        if self.test is not None:
            tuner.problem.try_test(self.test)
        self.rows: list[Row] = []
        self.plain = PlainRun(tuner, settings, self.test)
        self.kept: Kept | None = None
        self._warned = False

    def run(self) -> Result:
        """Run to the end, to convergence, to Ctrl-C or to divergence; in each case there is a result."""
        return run_in_lockstep([self.rounds()], self.tuner.runner)[0]

    def rounds(self) -> RequestGenerator[Result]:
        """Do the same, and leave it to the caller to run the rounds."""
        try:
            result, failure = yield from self._recorded_rounds()
            with immediate_interrupts():
                for listener in self.settings.callbacks:
                    listener.on_fit_end(self.tuner, result)
        except BaseException as error:
            SEEN_DATA.end_fit(self.tuner.problem.tensors())
            report_error(self.settings.callbacks, self.tuner, error)
            raise
        if failure is not None and self.settings.on_divergence == "raise":
            raise DivergenceError(str(failure), result) from failure
        return result

    def _recorded_rounds(self) -> RequestGenerator[tuple[Result, DivergenceError | None]]:
        with self.tuner.problem.training_mode():
            self.tuner.prepare(self.plan.zeta if self._relative is None else 1.0)
            self.tuner.check_ranks(
                outer_steps=self.settings.outer_steps, **describe_run(self.tuner, self.settings, self.test)
            )
            with self.settings.recorder as recorder:
                saved = recorder.load(self.tuner.problem.device)
                if saved is not None:
                    self._load_state(saved)
                status, failure = yield from self._loop(resumed=saved is not None)
                result = self._result(status)
                recorder.end(**_ending(result, failure))
        return result, failure

    def _loop(self, *, resumed: bool) -> RequestGenerator[tuple[Status, DivergenceError | None]]:
        begun = time.perf_counter() - (self.rows[-1]["seconds"] if self.rows else 0.0)
        try:
            self._begin(resumed=resumed)
            while len(self.rows) < self.settings.outer_steps and not self._converged():
                check_interrupt()
                stop = self._asked_to_stop((yield from self._outer_step(begun)))
                ended = stop or len(self.rows) >= self.settings.outer_steps or self._converged()
                self.settings.recorder.save(self._state, last=ended)
                if stop:
                    return "completed", None
            check_interrupt()
        except KeyboardInterrupt:
            self.tuner.ranks.hang_up()
            return "interrupted", None
        except DivergenceError as error:
            return "diverged", error
        except RankError:
            if not take_interrupt():
                raise
            self.tuner.ranks.hang_up()  # Ctrl-C also ended the rank that this one was waiting for
            return "interrupted", None
        return ("converged" if self._converged() else "completed"), None

    def _begin(self, *, resumed: bool) -> None:
        with immediate_interrupts():
            for listener in self.settings.callbacks:
                listener.on_fit_begin(self.tuner, self.settings.outer_steps)
                if resumed:
                    listener.on_resume(self.tuner, self.rows)
        if not resumed:
            self.settings.recorder.save(self._state)

    def _converged(self) -> bool:
        return bool(self.rows) and self.rows[-1]["hypergradient_norm"] < self.settings.tolerance

    def _asked_to_stop(self, row: Row) -> bool:
        """Tell the listeners of a row; only their StopIteration ends a run, one of the user's loss is an error."""
        stop = False
        try:
            with immediate_interrupts():
                for listener in self.settings.callbacks:
                    listener.on_outer_step(self.tuner, row)
        except StopIteration:
            stop = True
        return self.tuner.ranks.any(stop)

    def _outer_step(self, begun: float) -> RequestGenerator[Row]:
        """Make one outer step. What it finds is taken over at its end, so that an interrupted one leaves no trace."""
        tuner, problem = self.tuner, self.tuner.problem
        yield from self._move()
        start = _Start.of(tuner)
        try:
            on_step = self._online_step if tuner.online else None
            outcome = yield tuner.lane.request(self.plan, problem.hyperparameters(), on_step)
            arrived, plan = tuner.lane.after(outcome), self._resolved(outcome)
            found: RoundValue = yield ValueRequest(problem, outcome, plan.zeta)
            value = ObjectiveValue.of(found, plan.zeta)
            plain = yield from self.plain.step(arrived)
            tuner.publish(arrived)
            measured = (yield from evaluations(tuner, self.test)) if self.settings.evaluate else {}
        except BaseException:
            start.restore(tuner)
            raise
        row: Row = {
            "outer_step": arrived.rounds,
            **measured,
            "risk": value.risk,
            "regularizer": value.regularizer,
            "objective": value.total,
            "hypergradient_norm": found.length,
            **{name: float(number) for name, number in outcome.notes.items()},
            "seconds": time.perf_counter() - begun,
        }
        row = tuner.ranks.numbers_from_leader(row)
        tuner.lane.follow(arrived)
        tuner.set_pending(found.gradient)
        self.plain.take(plain)
        self.plan, self._relative = plan, None
        self.rows.append(row)
        self._warn_once(outcome)
        self._keep(clone(problem.hyperparameters()) if tuner.online else start.hyper)
        return row

    def _warn_once(self, outcome: RoundOutcome) -> None:
        """Warn in the first outer step whose gradient is far off by what its estimator measured."""
        found = self.plan.risk_estimator.concern(outcome.notes, float(outcome.risk)) if outcome.notes else None
        if found is not None and not self._warned:
            warn_user(found)
            self._warned = True

    def _move(self) -> RequestGenerator[None]:
        """Make the outer step of λ that is pending, and tell the listeners."""
        move = self.tuner.next_move()
        if move is None:
            return
        yield move
        self.tuner.moved()
        with immediate_interrupts():
            for listener in self.settings.callbacks:
                listener.on_hyper_step(self.tuner)

    def _online_step(self, gradient: Params) -> None:
        self.tuner.online_step(scale(self.plan.zeta, gradient))

    def _resolved(self, outcome: RoundOutcome) -> RoundPlan:
        """Return the plan with ζ as a number. At ζ*, which a relative ζ counts in, both gradients are equally long."""
        if self._relative is None:
            return self.plan
        path = float(norm(outcome.path_gradient)) if outcome.path_gradient else 0.0
        balance = float(norm(outcome.risk_gradient)) / path if path > 0 else 0.0
        return replace(self.plan, zeta=self._relative.fraction * balance)

    def _keep(self, hyper: Params) -> None:
        step, choice = self.tuner.lane.rounds, self.settings.choice
        if choice is not None:
            wanted = self.kept is None or step <= choice.step
        elif self.settings.keep == "best-objective":
            wanted = min(self.rows, key=lambda row: float(row["objective"])) is self.rows[-1]
        else:
            wanted = True
        if wanted:
            self.kept = Kept.of(step, self.tuner.lane, hyper)

    def _state(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on."""
        return {
            "rows": self.rows,
            "plain_rows": self.plain.rows,
            "zeta": self.plan.zeta if self._relative is None else None,
            "kept": _as_dict(self.kept),
            "plain_kept": _as_dict(self.plain.kept),
            "tuner": self.tuner.state(),
            "listeners": {name: state for name, one in self._listeners().items() if (state := one.state_dict())},
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that was saved."""
        if len(state["rows"]) > self.settings.outer_steps:
            raise SettingError(
                f"`outer_steps` must be at least {len(state['rows'])}, which the run to resume has done, "
                f"got {self.settings.outer_steps}"
            )
        listeners = self._listeners()
        missing = [name for name in state["listeners"] if name not in listeners]
        if missing and self.tuner.ranks.leader:
            raise SettingError(f"the run to resume had a listener that `callbacks` lacks: {', '.join(missing)}")
        self.tuner.load_state(state["tuner"])
        for name, listener in listeners.items():
            if name in state["listeners"]:
                listener.load_state_dict(state["listeners"][name])
        self.rows, self.plain.rows = state["rows"], state["plain_rows"]
        self.kept, self.plain.kept = _as_kept(state["kept"]), _as_kept(state["plain_kept"])
        if state["zeta"] is not None:
            self._relative = None
        self.plan = self.tuner.plan(self.plan.zeta if state["zeta"] is None else state["zeta"])

    def _listeners(self) -> dict[str, Callback]:
        """Return the listeners by a name that the next process gives them too."""
        named: dict[str, Callback] = {}
        for listener in self.settings.callbacks:
            kind = type(listener).__name__
            named[f"{kind} {sum(name.startswith(f'{kind} ') for name in named)}"] = listener
        return named

    def _result(self, status: Status) -> Result:
        problem, choice = self.tuner.problem, self.settings.choice
        plain = choice is not None and choice.run == "plain" and self.plain.kept is not None
        kept = self.plain.kept if plain else self.kept
        if kept is not None:
            problem.load(kept.params, kept.buffers)
            self.tuner.keep_hyper(kept.hyper)
        SEEN_DATA.end_fit(problem.tensors())
        result = Result(
            model=problem.model,
            hyper=problem.hyper,
            status=status,
            zeta=self.plan.zeta,
            kept_run="plain" if plain else "tuned",
            kept_step=kept.step if kept else 0,
            rows=self.rows,
            plain_rows=self.plain.rows,
            provenance=self._provenance(),
        )
        return replace(
            result, **(self.settings.verdict or judge_run(result, higher_is_better=problem.higher_is_better))._asdict()
        )

    def _provenance(self) -> Provenance:
        """Return what touched what: both samples touched λ and θ, whatever is kept; so did those of earlier fits."""
        train, valid = self.tuner.problem.sample_ids
        found = Provenance().touch("model", train, valid, *self._before).touch("hyper", train, valid, *self._before)
        found = found.touch("default hyper", *self.tuner.start_seen).touch("initial")
        if self.test is not None:
            found = found.touch("report", DataMark("test", self.test))
        if self._before:
            return found
        return found.state("λ and θ started from values chosen without the data")


class _Start(NamedTuple):
    """Where an outer step begins: λ, and the state of its optimizer where λ moves inside the round."""

    hyper: Params
    outer: dict[str, Any] | None

    @classmethod
    def of(cls, tuner: Tuner) -> _Start:
        return cls(
            clone(tuner.problem.hyperparameters()), copy.deepcopy(tuner.outer.state_dict()) if tuner.online else None
        )

    def restore(self, tuner: Tuner) -> None:
        """Undo the outer step."""
        tuner.publish(tuner.lane)
        tuner.problem.load_hyper(self.hyper)
        if self.outer is not None:
            tuner.outer.load_state_dict(self.outer)


def _as_dict(kept: Kept | None) -> dict[str, Any] | None:
    return None if kept is None else kept._asdict()


def _as_kept(found: dict[str, Any] | None) -> Kept | None:
    return None if found is None else Kept(**found)


def _ending(result: Result, failure: DivergenceError | None) -> Row:
    """Return what the journal says of the end of a run."""
    ending: Row = {"status": result.status, "outer_steps_done": len(result.rows), "zeta": result.zeta}
    ending |= {"kept_run": result.kept_run, "kept_step": result.kept_step, "verdict": result.verdict}
    return ending if failure is None else {**ending, "error": str(failure)}
