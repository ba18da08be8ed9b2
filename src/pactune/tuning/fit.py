"""One call of `fit`: outer steps, their rows, the step that is kept, and the ways in which a run ends."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from pactune.columns import History, Row
from pactune.errors import DivergenceError, RankError, SettingError, warn_user
from pactune.interrupts import check_interrupt, take_interrupt
from pactune.objectives import RelativeZeta
from pactune.problem.data import as_source
from pactune.problem.provenance import DataMark, Provenance
from pactune.problem.seen_data import SEEN_DATA
from pactune.results.result import Result, Status
from pactune.results.verdict import judge_run
from pactune.stacking.lockstep import RequestGenerator, run_in_lockstep
from pactune.trees import Params, clone
from pactune.tuning.description import describe_run, describe_settings
from pactune.tuning.fit_settings import FitSettings
from pactune.tuning.fold_results import out_of_fold
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import FinishedRound, OuterRun
from pactune.tuning.plain_run import KeptStep, PlainRun, evaluations

__all__ = ["Fit"]


class Fit:
    """Moves a run for some outer steps at one ζ.

    Args:
        run: the run, which goes on where it stands.
        settings: the arguments of `Tuner.fit`.
        zeta: ζ, or its size relative to ζ*, which the first round finds.
        listeners: the callbacks.
    """

    def __init__(self, run: OuterRun, settings: FitSettings, zeta: float | RelativeZeta, listeners: Listeners) -> None:
        self.run, self.settings, self._listeners = run, settings, listeners
        problem = run.problem
        self._relative = zeta if isinstance(zeta, RelativeZeta) else None
        self._plan = run.plan(0.0 if isinstance(zeta, RelativeZeta) else zeta)
        self._test = None if settings.test is None else as_source(settings.test, role="test", device=problem.device)
        self._seen_before = SEEN_DATA.samples_of(problem.tensors())
        SEEN_DATA.begin_fit(problem.tensors(), problem.seen_samples)
        if self._test is not None:
            if problem.has_tasks:
                raise SettingError("`test` needs one model, and tasks have one each; draw test tasks in a callback")
            problem.try_test(self._test)
        self._rows = History()
        self._done, self._seconds, self._hypergradient_norm = 0, 0.0, math.inf
        self._least = math.inf  # the least objective so far
        self._plain = PlainRun(run, settings, self._test, listeners)
        self._kept: KeptStep | None = None
        self._warned = False

    def result(self) -> Result:
        """Run to the end, to convergence, to Ctrl-C or to divergence; return the result in each case."""
        return run_in_lockstep([self.requests()], self.run.runner)[0]

    def requests(self) -> RequestGenerator[Result]:
        """Return the same as a generator, whose requests the caller answers."""
        try:
            result, failure = yield from self._recorded()
            self.run.problem.rest()
            self._listeners.end(result)
        except BaseException as error:
            SEEN_DATA.end_fit(self.run.problem.tensors())
            self._listeners.error(error)
            raise
        if failure is not None and self.settings.on_divergence == "raise":
            raise DivergenceError(str(failure), result) from failure
        return result

    def _recorded(self) -> RequestGenerator[tuple[Result, DivergenceError | None]]:
        run, settings = self.run, self.settings
        with run.problem.training_mode():
            shared = describe_run(run, settings, self._test) if run.ranks.count > 1 else {}
            run.check(self._plan.zeta if self._relative is None else 1.0, outer_steps=settings.outer_steps, **shared)
            with settings.recorder as recorder:
                saved = recorder.load(run.problem.device)
                if saved is not None:
                    self._load_state(saved)
                status, failure = yield from self._outer_steps(resumed=saved is not None)
                result = self._result(status)
                recorder.end(**_ending(result, self._done, failure))
        return result, failure

    def _outer_steps(self, *, resumed: bool) -> RequestGenerator[tuple[Status, DivergenceError | None]]:
        begun = time.perf_counter() - self._seconds
        steps, recorder, ranks = self.settings.outer_steps, self.settings.recorder, self.run.ranks
        try:
            self._listeners.begin(steps, list(self._rows) if resumed else None)
            if not resumed:
                recorder.save(0, self._state, {})
            while self._done < steps and not self._converged:
                check_interrupt()
                row = yield from self._outer_step(begun)
                stop = ranks.any(self._listeners.outer_step(row))
                histories = {"rows": self._rows, "plain_rows": self._plain.rows}
                last = stop or self._done >= steps or self._converged
                recorder.save(self._done, self._state, histories, last=last)
                if stop:
                    return "completed", None
            check_interrupt()
        except KeyboardInterrupt:
            ranks.disconnect()
            return "interrupted", None
        except DivergenceError as error:
            return "diverged", error
        except RankError:
            if not take_interrupt():
                raise
            ranks.disconnect()  # Ctrl-C also ended the rank that this one was waiting for
            return "interrupted", None
        return ("converged" if self._converged else "completed"), None

    @property
    def _converged(self) -> bool:
        return self._hypergradient_norm < self.settings.tolerance

    def _outer_step(self, begun: float) -> RequestGenerator[Row]:
        """Run one outer step. The run accepts it at the end, so an interrupted step leaves no trace."""
        run = self.run
        if (yield from run.take_outer_step()):
            self._listeners.hyper_step()
        start = run.start_of_round()
        try:
            found = yield from run.round(self._plan, self._relative)
            row = _round_columns(found)
            step, last = found.chains.rounds, self._is_last(found)
            plain = yield from self._plain.step(found.chains, last=last)
            run.publish(found.chains)
            measured: Row = {}
            if self.settings.evaluates(step, last=last):
                measured = yield from evaluations(found.chains, run.problem.hyperparameters(), self._test)
        except BaseException:
            run.undo(start)
            raise
        row = {"outer_step": step, **measured, **row, "seconds": time.perf_counter() - begun}
        row = run.ranks.numbers_from_leader(row)
        run.accept(found, pending=True)
        self._plain.accept(plain)
        self._plan, self._relative = found.plan, None
        self._rows.append(row)
        self._done, self._seconds = self._done + 1, row["seconds"]
        self._hypergradient_norm = row["hypergradient_norm"]
        self._warn_once(found)
        self._keep(row["objective"], clone(run.problem.hyperparameters()) if run.settings.online else start.hyper)
        return row

    def _is_last(self, found: FinishedRound) -> bool:
        """True if no outer step follows: all are made, or the run converged."""
        return self._done + 1 >= self.settings.outer_steps or found.value.length < self.settings.tolerance

    def _warn_once(self, found: FinishedRound) -> None:
        if not self._warned and (concern := found.concern):
            warn_user(concern)
            self._warned = True

    def _keep(self, objective: float, hyper: Params) -> None:
        """Keep the last step, or the one that the settings ask for."""
        step, choice = self.run.chains.rounds, self.settings.choice
        least, self._least = self._least, min(self._least, objective)
        if choice is not None:
            wanted = self._kept is None or step <= choice.step
        elif self.settings.keep == "best-objective":
            wanted = objective < least
        else:
            wanted = True
        if wanted:
            self._kept = KeptStep.of(self.run.chains, hyper)

    def _state(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on, without the histories."""
        return {
            "outer_steps": self._done,
            "plain_steps": self._plain.done,
            "seconds": self._seconds,
            "hypergradient_norm": self._hypergradient_norm,
            "least": self._least,
            "zeta": self._plan.zeta if self._relative is None else None,
            "kept": _as_dict(self._kept),
            "plain_kept": _as_dict(self._plain.kept),
            "run": self.run.state(),
            "listeners": self._listeners.state(),
        }

    def _load_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that was saved. Its `rows` and `plain_rows` are the histories so far."""
        if state["outer_steps"] > self.settings.outer_steps:
            raise SettingError(
                f"`outer_steps` must be at least {state['outer_steps']}, which the run to resume has done, "
                f"got {self.settings.outer_steps}"
            )
        self._listeners.load_state(state["listeners"], strict=self.run.ranks.leader)
        self.run.load_state(state["run"])
        self._rows, self._done, self._seconds = History(state["rows"]), state["outer_steps"], state["seconds"]
        self._hypergradient_norm, self._least = state["hypergradient_norm"], state["least"]
        self._kept = _as_kept(state["kept"])
        self._plain.load_state(state["plain_steps"], state["plain_rows"], _as_kept(state["plain_kept"]))
        if state["zeta"] is not None:
            self._relative = None
        self._plan = self.run.plan(self._plan.zeta if state["zeta"] is None else state["zeta"])

    def _result(self, status: Status) -> Result:
        problem, choice = self.run.problem, self.settings.choice
        plain = choice is not None and choice.run == "plain" and self._plain.kept is not None
        kept = self._plain.kept if plain else self._kept
        if kept is not None:
            self.run.keep(kept.params, kept.buffers, kept.hyper)
        SEEN_DATA.end_fit(problem.tensors())
        result = Result(
            model=problem.model,
            hyper=problem.hyper,
            status=status,
            zeta=self._plan.zeta,
            kept_run="plain" if plain else "tuned",
            kept_step=kept.step if kept else 0,
            rows=self._rows,
            plain_rows=self._plain.rows,
            provenance=self._provenance(),
            out_of_fold=None if kept is None or not kept.folds else out_of_fold(problem, kept),
            settings={"problem": repr(problem), **describe_settings(self.run.settings)},
            fold_states=[] if kept is None else [{**params, **buffers} for params, buffers in kept.folds],
        )
        verdict = self.settings.verdict or judge_run(result, higher_is_better=problem.higher_is_better)
        return replace(result, **verdict._asdict())

    def _provenance(self) -> Provenance:
        """Return the samples that λ and θ have seen: both samples of this fit, and those of earlier fits."""
        seen = *self.run.problem.seen_samples, *self._seen_before
        found = Provenance().touch("model", *seen).touch("hyper", *seen)
        found = found.touch("default hyper", *self.run.start_seen).touch("initial")
        if self._test is not None:
            found = found.touch("report", DataMark("test", self._test))
        if self._seen_before:
            return found
        return found.state("λ and θ started from values chosen without the data")


def _round_columns(found: FinishedRound) -> Row:
    """Return the columns of a row that come from the round itself."""
    objective = found.objective
    return {
        "risk": objective.risk,
        "regularizer": objective.regularizer,
        "objective": objective.total,
        "hypergradient_norm": found.value.length,
        **{name: float(number) for name, number in found.outcome.notes.items()},
    }


def _as_dict(kept: KeptStep | None) -> dict[str, Any] | None:
    return None if kept is None else kept._asdict()


def _as_kept(found: dict[str, Any] | None) -> KeptStep | None:
    return None if found is None else KeptStep(**found)


def _ending(result: Result, done: int, failure: DivergenceError | None) -> Row:
    """Return the fields of the journal's last line."""
    ending: Row = {"status": result.status, "outer_steps_done": done, "zeta": result.zeta}
    ending |= {"kept_run": result.kept_run, "kept_step": result.kept_step, "verdict": result.verdict}
    ending["pays"] = result.pays
    return ending if failure is None else {**ending, "error": str(failure)}
