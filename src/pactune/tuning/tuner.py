"""`Tuner`: the offline and online algorithms over problem, dynamics, objective and estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pactune.dynamics import Dynamics, as_dynamics
from pactune.engines import as_engine
from pactune.engines.snapshots import ChangeDetector
from pactune.errors import SettingError, warn_user
from pactune.hypergradient import Estimator, Truncated
from pactune.hypergradient.entries import Setting, check_entries
from pactune.hypergradient.trajectory import Trajectory
from pactune.interrupts import check_interrupt, deferred_interrupts
from pactune.objectives import AutoZeta, Objective, PACBayes
from pactune.parallel import Parallel, as_ranks, check_shards
from pactune.problem import Problem
from pactune.problem.seen_data import SEEN_DATA
from pactune.results.callbacks import Callback, as_callbacks, progress_for
from pactune.results.result import ObjectiveValue, Result
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.engine import Engine
from pactune.rounds.inputs import Initial, RunInputs, consumes_randomness
from pactune.rounds.plan import RoundPlan
from pactune.stacking.requests import OuterStepRequest, ValueRequest
from pactune.stacking.runner import Runner
from pactune.streams import Streams
from pactune.trees import Params, clone
from pactune.tuning.auto_zeta import fit_auto, runs_of
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import FitSettings, Keep
from pactune.tuning.recording import recorded_in
from pactune.tuning.settings import check_settings

__all__ = ["Tuner"]


class Tuner:
    """Tunes the hyperparameters of a `Problem` by gradient.

    Args:
        problem: model, hyperparameters and data.
        inner: the inner dynamics: `SGD`, `Adam`, `Langevin`, or a `torch.optim` factory while K ≤ 1.
        inner_steps: T, the inner steps per outer step.
        outer: a `torch.optim` optimizer over the parameters of the hyper module.
        objective: `PACBayes(zeta)` (Eq. 5), `ValidationRisk()` (Eq. 4), `Flatness`, `SameDistribution`, `UnequalSteps`,
            `HyperDrift`.
        hypergradient: how the risk at θ_T is differentiated; `Truncated(1)`, the default, is T1–T2.
        path_hypergradient: how the regularizer is differentiated; `Truncated(0)`, the default, is the paper's K = 0.
        chains: C, the number of trajectories that estimate the expectations.
        restart: draw θ_0 anew at every outer step (the algorithm); False keeps θ going (the experiments).
        online: move λ also at every inner step by ζ∇‖Δ_t‖ (Algorithm C.2).
        seed: of all mini-batches, noise and draws of θ_0. No global seed is touched.
        initial: P_0, a function from a `torch.Generator` to a dict of parameters. By default a single chain without
            restart starts at the model's present parameters; otherwise the modules' `reset_parameters` are used.
        path_stride: measure Δ_t at every so many steps only, from a random first one, and rescale the sum; unbiased.
        engine: how inner steps are run: "auto", "eager", "traced", "compiled", "captured", "fused", or an engine with
            settings of its own.
        parallel: `Parallel()` spreads the chains over the ranks of `torch.distributed`, `Parallel(shards=s)` the rows
            of each mini-batch too. None runs by itself, whatever other processes do.

    Raises:
        SettingError: a setting breaks its rule.

    Example:
        >>> import pactune as pt
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(3, 2)
        >>> hyper = pt.WeightDecay(model)
        >>> x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]),
        ...                      loss=torch.nn.functional.cross_entropy)
        >>> tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=5,
        ...                  outer=torch.optim.SGD(hyper.parameters(), lr=0.1), objective=pt.PACBayes(zeta=0.01))
        >>> result = tuner.fit(outer_steps=3)
        >>> result.status, len(result.history)
        ('completed', 3)
    """

    def __init__(
        self,
        problem: Problem,
        *,
        inner: Dynamics | Any,
        inner_steps: int,
        outer: torch.optim.Optimizer,
        objective: Objective | None = None,
        hypergradient: Estimator | None = None,
        path_hypergradient: Estimator | None = None,
        chains: int = 1,
        restart: bool = False,
        online: bool = False,
        seed: int = 0,
        initial: Initial | None = None,
        path_stride: int = 1,
        engine: str | Engine = "auto",
        parallel: Parallel | None = None,
    ) -> None:
        self.problem = problem
        self.inner = as_dynamics(inner)
        self.inner_steps, self.chains, self.seed = inner_steps, chains, seed
        self.outer = outer
        self.objective = objective if objective is not None else PACBayes()
        self.risk_estimator = hypergradient if hypergradient is not None else Truncated(1)
        self.path_estimator = path_hypergradient if path_hypergradient is not None else Truncated(0)
        self.restart, self.online, self.initial = restart, online, initial
        self.path_stride = path_stride
        check_settings(self)
        self.runner = Runner(as_engine(engine, problem))
        self.ranks = as_ranks(parallel, chains, problem.device)
        self.start_hyper = clone(problem.hyperparameters())
        self.start_seen = SEEN_DATA.samples_of(problem.hyper.parameters())
        self._pending = False
        self._last: tuple[Params, Params] | None = None

    def hypergradient(self) -> ObjectiveValue:
        """Run one round of T inner steps from the current state and fill `.grad` of every hyperparameter.

        θ moves on and is copied into the user's model; λ does not move. Step your own optimizer, and call again.
        After a `fit`, the outer step that it left for its next round is made first.

        Returns:
            risk, regularizer √Y, and total = risk + ζ·√Y.

        Raises:
            DivergenceError: the objective or its gradient is not finite.
            GradientError: a hyperparameter's gradient would be identically zero.
            SettingError: with `online=True`, where λ moves inside the round, or `zeta="auto"`.
        """
        if self.online:
            raise SettingError("`hypergradient()` is for online=False: the online algorithm moves λ inside the round")
        with deferred_interrupts():
            value = self._hypergradient()
            check_interrupt()
        return value

    def _hypergradient(self) -> ObjectiveValue:
        plan = self.plan(self.zeta)
        SEEN_DATA.begin_fit(self.problem.tensors(), self.problem.sample_ids)
        if (move := self.next_move()) is not None:
            self.runner.move([move])
            self.moved()
        with self.ranks.session(), self.problem.training_mode():
            self.prepare(plan.zeta)
            self.check_ranks()
            (outcome,) = self.runner.run([self.lane.request(plan, self.problem.hyperparameters())])
            arrived = self.lane.after(outcome)
        (found,) = self.runner.read([ValueRequest(self.problem, outcome, plan.zeta)])
        value = ObjectiveValue.of(found, plan.zeta)
        check_interrupt()
        self.lane.follow(arrived)
        if outcome.notes and (message := self.risk_estimator.concern(outcome.notes, value.risk)):
            warn_user(message)
        self.fill_gradients(found.gradient)
        self.publish(self.lane)
        return value

    def fit(
        self,
        outer_steps: int,
        *,
        test: Any = None,
        keep: Keep = "last",
        tolerance: float = 0.0,
        callbacks: Sequence[Callback] = (),
        progress: bool | None = None,
        plain_steps: int | None = None,
        on_divergence: str = "raise",
        run_dir: str | Path | None = None,
        resume: bool = False,
    ) -> Result:
        """Tune for `outer_steps` outer steps. A second call goes on where the first one ended.

        Args:
            outer_steps: how often λ is to move.
            test: a test set to report on; nothing is ever chosen by it.
            keep: which outer step's parameters are kept: "last", or "best-objective", that of the least J. With
                `zeta="auto"` the rule chooses the step too and this is ignored.
            tolerance: stop with status "converged" when the norm of the hypergradient falls below this; 0 never does.
            callbacks: listeners with `on_fit_begin`, `on_outer_step`, `on_fit_end`.
            progress: show progress on stderr; None does so on a terminal only.
            plain_steps: for how many outer steps plain training (λ fixed where it started) runs beside the tuned
                run; by default as many, or one with `restart`.
            on_divergence: "raise" a `DivergenceError` that carries the result, or "return" the result so far.
            run_dir: a folder for the journal and the checkpoints of this run; None writes nothing.
            resume: go on with the run in `run_dir`, bit for bit as if it had never stopped; `outer_steps` then counts
                from its beginning. Where there is no run yet, one starts.

        Returns:
            The result. After Ctrl-C it is the result so far, with status "interrupted".

        Raises:
            SettingError: a setting breaks its rule.
            DivergenceError: the objective or its gradient is not finite.
            RunFolderError: `run_dir` holds another run, is damaged or in use, or cannot be written.
        """
        settings = FitSettings(
            outer_steps=outer_steps,
            test=test,
            keep=keep,
            tolerance=tolerance,
            callbacks=as_callbacks(callbacks),
            plain_steps=plain_steps,
            on_divergence=on_divergence,
        )
        rule = AutoZeta() if self.objective.zeta == "auto" else self.objective.zeta
        runs = runs_of(rule) if isinstance(rule, AutoZeta) else 1
        progress = progress if self.ranks.leader else False
        with self.ranks.session(), progress_for(progress, total=outer_steps * runs) as shown:
            settings = recorded_in(run_dir, self, settings, resume=resume)
            if isinstance(rule, AutoZeta):
                return fit_auto(self, settings, rule, shown)
            return Fit(self, replace(settings, callbacks=(*settings.callbacks, shown)), self.zeta).run()

    def on(self, problem: Problem) -> Tuner:
        """Return a tuner with the same settings on another problem with the same modules, at its start."""
        twin = Tuner(
            problem,
            inner=self.inner,
            inner_steps=self.inner_steps,
            outer=self.outer,
            objective=self.objective,
            hypergradient=self.risk_estimator,
            path_hypergradient=self.path_estimator,
            chains=self.chains,
            restart=self.restart,
            online=self.online,
            seed=self.seed,
            initial=self.initial,
            path_stride=self.path_stride,
            engine=self.runner.engine,
        )
        twin.ranks = self.ranks
        return twin

    # What a round is made of

    @property
    def zeta(self) -> float:
        """ζ as a number."""
        if self.objective.zeta == "auto" or isinstance(self.objective.zeta, AutoZeta):
            raise SettingError('`zeta="auto"` is chosen by `fit`; for a single round pass a number or "theory"')
        if self.objective.zeta == "theory":
            return self.objective.theory_zeta(self.inner.learning_rate(0), self.beta)
        return float(self.objective.zeta)

    @property
    def beta(self) -> float:
        """β = τ/n with n the size of the sample that the bound is on; 1 when the dynamics has no temperature."""
        tau = self.inner.inverse_temperature_or_none()
        source = self.problem.valid if self.objective.risk_of == "valid" else self.problem.train
        return 1.0 if tau is None else tau / source.rows

    @cached_property
    def inputs(self) -> RunInputs:
        """Mini-batches, noise and draws, as functions of the seed."""
        if ChangeDetector().run(self.problem.try_losses, [self.problem]):
            self.runner.engine.mark_stateful(self.problem)
        stochastic = consumes_randomness(self.problem)
        return RunInputs(self.problem, self.inner, Streams(self.seed), stochastic, self.initial)

    @cached_property
    def lane(self) -> ChainStates:
        """The chains of the tuned run; it starts at the model's parameters and buffers when first asked for."""
        params, buffers = clone(self.problem.parameters()), clone(self.problem.buffers())
        return ChainStates(self.inputs, self.chains, self.restart, params, buffers, ranks=self.ranks)

    @cached_property
    def plain_chains(self) -> ChainStates:
        """The chains of the plain run, which starts where the tuned one does."""
        return replace(self.lane, inputs=replace(self.inputs, reader="plain"))

    def plan(self, zeta: float) -> RoundPlan:
        """Return how a round is run at ζ."""
        default = self.objective.default_hyper(self.start_hyper) if self.objective.compares_default else None
        trajectory = Trajectory(
            self.problem, self.inner, self.objective, self.inputs.stochastic, default, ranks=self.ranks
        )
        return RoundPlan(
            trajectory,
            self.inner_steps,
            zeta,
            self.risk_estimator,
            self.path_estimator,
            path_stride=self.path_stride if self.objective.has_path else 1,
        )

    def prepare(self, zeta: float) -> None:
        """Check, before the first round, that all can be differentiated."""
        kinds = self.objective, self.risk_estimator, self.path_estimator
        setting = Setting(*kinds, self.inner_steps, self.restart, zeta, fresh=self.lane.rounds == 0)
        unseen = check_entries(self.problem, setting)
        if unseen:
            warn_user(
                f"the regularizer's gradient is identically zero at path_hypergradient={self.path_estimator} for "
                f"{', '.join(unseen)}; only the validation risk tunes them"
            )

        check_shards(self.problem, self.ranks.shards, stochastic=self.inputs.stochastic)

    def check_ranks(self, **said: Any) -> None:
        """Check, before the first round, that all ranks are about to do the same.

        Raises:
            SettingError: they differ in their settings, their data or where they start.
        """
        if self.ranks.count > 1:
            here = {"λ": self.problem.hyperparameters(), "θ": self.problem.parameters()}
            self.ranks.check_same({**said, **here, "buffers": self.problem.buffers(), "rounds": self.lane.rounds})

    def publish(self, lane: ChainStates) -> None:
        """Copy the first chain into the user's model; before the first round, where it will start."""
        place = lane.lead or lane
        self.problem.load(place.params, place.buffers)

    def fill_gradients(self, gradient: Params) -> None:
        """Write a λ-gradient into `.grad`."""
        parameters = self.problem.hyper_leaves()
        for name, value in gradient.items():
            parameters[name].grad = value.detach().clone()

    # How λ moves

    def set_pending(self, gradient: Params) -> None:
        """Remember a gradient; λ moves at the beginning of the next round, so that the present one can be kept."""
        self.fill_gradients(gradient)
        self._pending = True

    def next_move(self) -> OuterStepRequest | None:
        """Return the outer step that is pending, with λ where the last round left it; None where there is none."""
        if self._last is not None:
            kept, last = self._last
            present = self.problem.hyperparameters()
            if all(torch.equal(present[name], kept[name]) for name in present):
                self.problem.load_hyper(last)
            self._last = None
        return OuterStepRequest(self.outer) if self._pending else None

    def moved(self) -> None:
        """Note that the outer step has been made."""
        self._pending = False
        self.outer.zero_grad(set_to_none=True)

    def online_step(self, gradient: Params) -> None:
        """Move λ inside a round (Algorithm C.2)."""
        self.fill_gradients(gradient)
        self.outer.step()

    def keep_hyper(self, kept: Params) -> None:
        """Give the user's module the kept λ; the next `fit` goes on from the last one, unless the user changes λ."""
        self._last = (kept, clone(self.problem.hyperparameters()))
        self.problem.load_hyper(kept)

    # What a checkpoint holds

    def state(self) -> dict[str, Any]:
        """Return everything that the next outer step depends on; what is random is a function of the seed."""
        gradients = {name: p.grad for name, p in self.problem.hyper.named_parameters() if p.grad is not None}
        return {
            "hyper": self.problem.hyperparameters(),
            "start_hyper": self.start_hyper,
            "outer": self.outer.state_dict(),
            "pending": gradients if self._pending else None,
            "last": self._last,
            "lane": self.lane.state(),
            "plain_chains": self.plain_chains.state(),
            "stateful": self.problem in self.runner.engine.stateful,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`, whatever happened to this tuner before."""
        self.lane.load_state(state["lane"])
        self.plain_chains.load_state(state["plain_chains"])
        self.publish(self.lane)
        self.problem.load_hyper(state["hyper"])
        self.start_hyper, self._last = state["start_hyper"], state["last"]
        self.outer.load_state_dict(state["outer"])
        self.outer.zero_grad(set_to_none=True)
        self._pending = state["pending"] is not None
        self.fill_gradients(state["pending"] or {})
        if state["stateful"]:
            self.runner.engine.mark_stateful(self.problem)
