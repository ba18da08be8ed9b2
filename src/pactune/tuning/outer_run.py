"""The state of a run between rounds: its chains, λ, and the outer step that λ has yet to take."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from pactune.engines.snapshots import ChangeDetector
from pactune.errors import warn_user
from pactune.hypergradient.entries import GradientSettings, check_entries
from pactune.hypergradient.trajectory import Trajectory
from pactune.interrupts import check_interrupt
from pactune.objectives import RelativeZeta
from pactune.parallel import Ranks, check_shards
from pactune.problem import Problem
from pactune.problem.seen_data import SEEN_DATA
from pactune.results.result import ObjectiveValue
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.forwards import try_forwards
from pactune.rounds.inputs import RunInputs
from pactune.rounds.online import OptimizerStep
from pactune.rounds.plan import RoundOutcome, RoundPlan, mean_outcome
from pactune.rounds.run_states import RunStates
from pactune.stacking.lockstep import RequestGenerator
from pactune.stacking.requests import OuterStepRequest, RoundValue, ValueRequest
from pactune.stacking.runner import Runner
from pactune.streams import Streams
from pactune.trees import Params, clone, norm
from pactune.tuning.settings import TunerSettings

__all__ = ["FinishedRound", "OuterRun", "StartOfRound"]


class StartOfRound(NamedTuple):
    """The state that undoes a round: λ, and the optimizer's state if λ moves inside the round."""

    hyper: Params
    outer: dict[str, Any] | None


class FinishedRound(NamedTuple):
    """A round that the run has not accepted yet.

    Attributes:
        chains: the chains at θ_T.
        outcome: the parts of J with their λ-gradients, as means over the subproblems.
        plan: the settings of the round, with ζ as a number.
        value: J, its gradient and the norm of the gradient.
    """

    chains: RunStates
    outcome: RoundOutcome
    plan: RoundPlan
    value: RoundValue

    @property
    def objective(self) -> ObjectiveValue:
        """J with its parts; raises a `DivergenceError` if one of them is not finite."""
        return ObjectiveValue.of(self.value, self.plan.zeta)

    @property
    def concern(self) -> str | None:
        """A warning of the risk estimator about its gradient, if it has one."""
        notes = self.outcome.notes
        return self.plan.risk_estimator.concern(notes, self.value.risk) if notes else None


class OuterRun:
    """One run of the outer loop. It holds the state of the run and moves it from round to round.

    A run goes on from `fit` to `fit`. After a round the gradient waits in `.grad`: λ takes its step at the beginning of
    the next round, so that θ and the λ that trained it can be kept together.

    Args:
        settings: the settings of the tuner.
        ranks: the processes of the run.
        runner: answers the requests of the run.

    Attributes:
        start_hyper: λ at the start of the run, which plain training keeps.
        start_seen: the samples that λ had seen at the start.
    """

    def __init__(self, settings: TunerSettings, ranks: Ranks, runner: Runner) -> None:
        self.settings, self.problem, self.ranks, self.runner = settings, settings.problem, ranks, runner
        self.start_hyper = clone(self.problem.hyperparameters())
        self.start_seen = SEEN_DATA.samples_of(self.problem.hyper.parameters())
        self._pending, self._checked = False, False
        self._last: tuple[Params, Params] | None = None

    def share(self, runner: Runner) -> None:
        """Let a runner that other runs share answer the requests of this run."""
        self.runner = runner

    def start_from(self, hyper: Params) -> None:
        """Take λ as the start of the run, as if the tuner had been made with it."""
        self.start_hyper = clone(hyper)
        self.__dict__.pop("_single_plan", None)

    # The parts of a round

    @cached_property
    def inputs(self) -> RunInputs:
        """Mini-batches, noise and draws of θ_0 as functions of the seed; made after one trial of the losses."""
        settings, problem = self.settings, self.problem
        problem.load_tasks(0, Streams(settings.seed))
        if ChangeDetector().run(problem.try_losses, [problem]):
            self._mark_unrecordable()
        forwards = try_forwards(problem)
        compares = settings.objective.has_path
        return RunInputs(problem, settings.inner, Streams(settings.seed), forwards, settings.initial, compares=compares)

    @cached_property
    def chains(self) -> RunStates:
        """The chains of the tuned run. They start at the model's parameters and buffers of the first use."""
        params, buffers = clone(self.problem.parameters()), clone(self.problem.buffers())
        settings = self.settings
        start = ChainStates(self.inputs, settings.chains, settings.restart, params, buffers, ranks=self.ranks)
        return RunStates.of(self.problem, start)

    @cached_property
    def plain_chains(self) -> RunStates:
        """The chains of plain training, which start where the tuned ones do."""
        return self.chains.read_by("plain")

    def plan(self, zeta: float) -> RoundPlan:
        """Return the settings of a round at ζ."""
        settings = self.settings
        objective = settings.objective
        trajectory = Trajectory(
            self.problem,
            settings.inner,
            objective,
            self.inputs.forwards.stochastic,
            objective.default_hyper(self.start_hyper) if objective.compares_default else None,
            ranks=self.ranks,
        )
        return RoundPlan(
            trajectory,
            settings.inner_steps,
            zeta,
            settings.risk_estimator,
            settings.path_estimator,
            path_stride=settings.path_stride if objective.has_path else 1,
            online=settings.online,
            work=self.inputs.forwards.work_of_step,
        )

    @cached_property
    def _single_plan(self) -> RoundPlan:
        """The settings of the rounds of `hypergradient`: one object, so that recordings are found again."""
        return self.plan(self.settings.zeta)

    def check(self, zeta: float, **said: Any) -> None:
        """Check, before the first round, that λ has a gradient and that all ranks do the same.

        Args:
            zeta: ζ, or any positive number if ζ is not known yet.
            said: further values that must be equal on all ranks.

        Raises:
            GradientError: the gradient of a hyperparameter would be identically zero.
            SettingError: the ranks differ in their settings, their data or their start.
        """
        settings = self.settings
        kinds = settings.objective, settings.risk_estimator, settings.path_estimator
        setting = GradientSettings(*kinds, settings.inner_steps, settings.restart, zeta, fresh=self.chains.rounds == 0)
        if unseen := check_entries(self.problem, setting):
            warn_user(
                f"the regularizer's gradient is identically zero at path_hypergradient={settings.path_estimator} for "
                f"{', '.join(unseen)}; only the validation risk tunes them"
            )
        for problem in self._problems:
            check_shards(problem, self.ranks.shards, stochastic=self.inputs.forwards.stochastic)
        self._check_ranks(**said)

    def _check_ranks(self, **said: Any) -> None:
        """Raise unless all ranks are at the same place."""
        if self.ranks.count > 1:
            here = {"λ": self.problem.hyperparameters(), "θ": self.problem.parameters()}
            self.ranks.check_same({**said, **here, "buffers": self.problem.buffers(), "rounds": self.chains.rounds})

    # Rounds

    def hypergradient(self) -> RequestGenerator[ObjectiveValue]:
        """Run one round and leave the λ-gradient in `.grad`, for a loop that steps the optimizer itself."""
        plan, samples, first = self._single_plan, self.problem.seen_samples, not self._checked
        # λ may come from anywhere, and θ comes from the last round if there was one.
        SEEN_DATA.begin_fit(self.problem.tensors() if first else self.problem.hyper_leaves().values(), samples)
        yield from self.take_outer_step()
        with self.ranks.session(), self.problem.training_mode():
            if first:
                self.check(plan.zeta)
                self._checked = True
            else:
                self._check_ranks()
            arrived, outcome = yield from self._run_round(plan)
        if not first:  # here and not before the round, while a CUDA device still computes it
            SEEN_DATA.go_on(self.problem.leaves().values(), samples)
        found = yield from self._read_round(arrived, outcome, plan)
        objective = found.objective
        check_interrupt()
        self.accept(found)
        if concern := found.concern:
            warn_user(concern)
        self.publish(self.chains)
        check_interrupt()
        return objective

    def take_outer_step(self) -> RequestGenerator[bool]:
        """Let λ take the step that the last round of `fit` left, from the λ of that round; return True if it moved."""
        if self._last is not None:
            kept, last = self._last
            present = self.problem.hyperparameters()
            if all(torch.equal(present[name], kept[name]) for name in present):
                self.problem.load_hyper(last)
            self._last = None
        if not self._pending:
            return False
        yield [OuterStepRequest(self.settings.outer)]
        self._pending = False
        self.settings.outer.zero_grad(set_to_none=True)
        return True

    def round(self, plan: RoundPlan, relative: RelativeZeta | None = None) -> RequestGenerator[FinishedRound]:
        """Run one round. The run stays at its start until `accept`.

        Args:
            plan: the settings of the round.
            relative: ζ in units of ζ*, if it is not a number yet; this round then finds the number.
        """
        arrived, outcome = yield from self._run_round(plan)
        if relative is not None:
            plan = replace(plan, zeta=relative.fraction * _balance(outcome))
        return (yield from self._read_round(arrived, outcome, plan))

    def _run_round(self, plan: RoundPlan) -> RequestGenerator[tuple[RunStates, RoundOutcome]]:
        """Run the chains of a round; return them at θ_T, and the parts of J. A CUDA device may still compute both."""
        online = self.settings.online
        on_step = OptimizerStep(self.settings.outer, self.problem.hyper_leaves(), plan.zeta) if online else None
        chains, hyper = self.chains, self.problem.hyperparameters()
        if self.settings.roll_back:
            chains = yield from self.train_again(chains, plan.training_only(), hyper)
        requests = chains.requests(plan, hyper, on_step)
        outcomes: list[RoundOutcome] = yield requests
        if self.settings.roll_back:
            pairs = zip(outcomes, requests, strict=True)
            outcomes = [outcome._replace(states=list(request.states)) for outcome, request in pairs]
        return chains.after(outcomes), mean_outcome(outcomes[: len(chains.parts)])

    def _read_round(
        self, arrived: RunStates, outcome: RoundOutcome, plan: RoundPlan
    ) -> RequestGenerator[FinishedRound]:
        """Wait for a round, and return it with its numbers."""
        (value,) = yield [ValueRequest(self.problem, outcome, plan.zeta)]
        return FinishedRound(arrived, outcome, plan, value)

    def train_again(self, chains: RunStates, plan: RoundPlan, hyper: Params) -> RequestGenerator[RunStates]:
        """Let θ take the steps of the last round, which were rolled back, under the λ of this round.

        The steps have the mini-batches and the noise of the last round. Before the first round there are none.
        """
        if chains.rounds == 0:
            return chains
        before = chains.counted(-1)
        return before.after((yield before.requests(plan, hyper)))

    def accept(self, found: FinishedRound, *, pending: bool = False) -> None:
        """Go on from the end of a round and fill `.grad`; `pending` leaves the outer step to the next round."""
        self.chains.follow(found.chains)
        self.fill_gradients(found.value.gradient)
        self._pending = pending

    def start_of_round(self) -> StartOfRound:
        """Return the state that `undo` needs."""
        outer = copy.deepcopy(self.settings.outer.state_dict()) if self.settings.online else None
        return StartOfRound(clone(self.problem.hyperparameters()), outer)

    def undo(self, start: StartOfRound) -> None:
        """Put the user's modules and the optimizer back to the start of a round that was not accepted."""
        self.publish(self.chains)
        self.problem.load_hyper(start.hyper)
        if start.outer is not None:
            self.settings.outer.load_state_dict(start.outer)

    # The user's modules

    def publish(self, chains: RunStates) -> None:
        """Copy the first chain into the user's model; before the first round, the parameters it will start from."""
        self.problem.load(chains.place.params, chains.place.buffers)

    def keep(self, params: Params, buffers: Params, hyper: Params) -> None:
        """Load the kept step into the user's modules. The next `fit` goes on from the last step, unless λ changes."""
        self.problem.load(params, buffers)
        self._last = (hyper, clone(self.problem.hyperparameters()))
        self.problem.load_hyper(hyper)

    def fill_gradients(self, gradient: Params) -> None:
        """Copy a λ-gradient into `.grad`."""
        parameters = self.problem.hyper_leaves()
        for name, value in gradient.items():
            parameters[name].grad = value.detach().clone()

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return everything that the next outer step depends on. Randomness is a function of the seed."""
        gradients = {name: p.grad for name, p in self.problem.hyper.named_parameters() if p.grad is not None}
        return {
            "hyper": self.problem.hyperparameters(),
            "start_hyper": self.start_hyper,
            "outer": self.settings.outer.state_dict(),
            "pending": gradients if self._pending else None,
            "last": self._last,
            "chains": self.chains.state(),
            "plain_chains": self.plain_chains.state(),
            "unrecordable": any(problem in self.runner.engine.unrecordable for problem in self._problems),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`, whatever happened to this run before."""
        self.chains.load_state(state["chains"])
        self.plain_chains.load_state(state["plain_chains"])
        self.publish(self.chains)
        self.problem.load_hyper(state["hyper"])
        self.start_hyper, self._last = state["start_hyper"], state["last"]
        self.settings.outer.load_state_dict(state["outer"])
        self.settings.outer.zero_grad(set_to_none=True)
        self._pending = state["pending"] is not None
        self.fill_gradients(state["pending"] or {})
        if state["unrecordable"]:
            self._mark_unrecordable()

    @property
    def _problems(self) -> list[Problem]:
        """The problems that are trained: the subproblems, and all rows together if there is a refit."""
        return [*self.problem.subproblems, *([self.problem] if self.problem.refit else [])]

    def _mark_unrecordable(self) -> None:
        for problem in self._problems:
            self.runner.engine.mark_unrecordable(problem)


def _balance(outcome: RoundOutcome) -> float:
    """Return ζ*, at which both gradients of J are equally long."""
    path = float(norm(outcome.path_gradient)) if outcome.path_gradient else 0.0
    return float(norm(outcome.risk_gradient)) / path if path > 0 else 0.0
