"""`Tuner`: the offline and online algorithms over problem, dynamics, objective and estimators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pactune.checks import check_count
from pactune.dynamics import Dynamics, as_dynamics
from pactune.engines import Engine, as_engine
from pactune.errors import SettingError
from pactune.hypergradient import Estimator, Truncated
from pactune.hypergradient.gradients import check_autograd
from pactune.objectives import AutoZeta, Objective
from pactune.objectives.base import REQUIRED
from pactune.parallel import Parallel, Ranks, as_ranks
from pactune.problem import Problem
from pactune.results.callbacks import Callback, as_callbacks, progress_for
from pactune.results.result import ObjectiveValue, Result
from pactune.rounds.inputs import Initial
from pactune.stacking.lockstep import run_in_lockstep
from pactune.stacking.runner import Runner
from pactune.trees import Params
from pactune.tuning.auto_zeta import fit_auto, runs_of
from pactune.tuning.description import short_settings
from pactune.tuning.fit import Fit
from pactune.tuning.fit_settings import FitSettings, Keep
from pactune.tuning.held_out_step import fit_held_out_step
from pactune.tuning.listeners import Listeners
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.recording import recorded_in
from pactune.tuning.settings import TunerSettings
from pactune.tuning.suggestion import Suggestion, suggest

__all__ = ["Tuner"]


class Tuner:
    """Tunes the hyperparameters of a `Problem` by gradient.

    A tuner holds settings. The argument `hypergradient` chooses the estimator of the gradient; the method
    `hypergradient()` runs one round with it and leaves the gradient in `.grad`, for a loop that you write yourself.
    `fit` runs the whole outer loop.

    Args:
        problem: model, hyperparameters and data.
        inner: the inner dynamics: `SGD`, `Adam`, `Langevin`, or a `torch.optim` factory while K ≤ 1.
        inner_steps: T, the inner steps per outer step.
        outer: a `torch.optim` optimizer over the parameters of the hyper module.
        objective: `PACBayes(zeta)` (Eq. 5), `ValidationRisk()` (Eq. 4), `HyperDrift`, `Flatness`, `SameDistribution` or
            `UnequalSteps`. It must be given.
        hypergradient: the estimator that differentiates the risk at θ_T; the default `Truncated(1)` is T1–T2.
        path_hypergradient: the estimator that differentiates the regularizer; the default `Truncated(0)` is the paper's
            K = 0.
        chains: C, the number of trajectories that estimate the expectations.
        restart: draw θ_0 anew at every outer step (the algorithm); False keeps θ going (the experiments).
        online: move λ also at every inner step by ζ∇‖Δ_t‖ (Algorithm C.2).
        seed: the seed of all mini-batches, noise and draws of θ_0. No global seed is touched.
        initial: P_0, a function from a `torch.Generator` to a dict of parameters. By default a single chain without
            restart starts at the model's present parameters; otherwise the modules' `reset_parameters` are used.
        path_stride: measure Δ_t only at every so many steps, from a random first one, and rescale the sum. The estimate
            stays unbiased.
        roll_back: look ahead, as DARTS does: the inner steps of an outer step only find the gradient. Then θ goes back
            to where it was, λ moves, and θ takes the same steps, with the same mini-batches, under the new λ. So the
            columns of an outer step are those of the model before its inner steps. It costs twice the steps.
        engine: executes the inner steps: "auto", "eager", "traced", "compiled", "captured", "fused", or an engine
            object.
        parallel: `Parallel()` spreads the chains over the ranks of `torch.distributed`, `Parallel(shards=s)` the rows
            of each mini-batch too. None runs in this process alone.

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
        objective: Objective = REQUIRED,
        hypergradient: Estimator | None = None,
        path_hypergradient: Estimator | None = None,
        chains: int = 1,
        restart: bool = False,
        online: bool = False,
        seed: int = 0,
        initial: Initial | None = None,
        path_stride: int = 1,
        roll_back: bool = False,
        engine: str | Engine = "auto",
        parallel: Parallel | None = None,
    ) -> None:
        self.settings = TunerSettings(
            problem=problem,
            inner=as_dynamics(inner),
            inner_steps=inner_steps,
            outer=outer,
            objective=objective,
            risk_estimator=hypergradient if hypergradient is not None else Truncated(1),
            path_estimator=path_hypergradient if path_hypergradient is not None else Truncated(0),
            chains=chains,
            restart=restart,
            online=online,
            seed=seed,
            initial=initial,
            path_stride=path_stride,
            roll_back=roll_back,
        )
        runner = Runner(as_engine(engine, problem))
        self.outer_run = OuterRun(self.settings, as_ranks(parallel, chains, problem.device), runner)

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
        check_autograd("hypergradient")
        if self.settings.online:
            raise SettingError("`hypergradient()` is for online=False: the online algorithm moves λ inside the round")
        return run_in_lockstep([self.outer_run.hypergradient()], self.outer_run.runner)[0]

    def suggest(self, *, outer_steps: int = 100) -> Suggestion:
        """Look at the scales of both gradients before a run: print the result.

        One round runs from the present model and λ, and is thrown away: θ, λ, `.grad`, the optimizers and all random
        numbers stay as they are. The numbers are rules of thumb, from one round.

        Args:
            outer_steps: the length of the planned run. A penalty acts in every inner step of it, so its λ has a
                smaller scale in a longer run.

        Returns:
            For every kind of hyperparameter the scales of λ and of both gradients, and the learning rate of `outer`
            whose first step moves λ by a tenth of its scale; ζ at which both gradients are equally long; and how far a
            round moves the risk.

        Raises:
            GradientError: the gradient of a hyperparameter is identically zero.
            DivergenceError: the round diverges.
        """
        check_autograd("suggest")
        check_count("outer_steps", outer_steps)
        return suggest(self.settings, self.ranks, outer_steps=outer_steps)

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
        evaluate_every: int = 1,
        on_divergence: str = "raise",
        run_dir: str | Path | None = None,
        resume: bool = False,
    ) -> Result:
        """Tune for `outer_steps` outer steps. A second call goes on where the first one ended.

        Args:
            outer_steps: how often λ is to move.
            test: a test set to report on; nothing is ever chosen by it.
            keep: which outer step's parameters are kept: "last"; "best-objective", that of the least J; or, with folds,
                "held-out": one more run per fold holds the fold out, and the step with the best score on held-out
                rows is kept, of the tuned run or of plain training. With `zeta="auto"` the rule chooses the step
                too and this is ignored.
            tolerance: stop with status "converged" when the norm of the hypergradient falls below this; 0 never does.
            callbacks: listeners with `on_fit_begin`, `on_outer_step`, `on_fit_end`.
            progress: show progress on stderr; None does so on a terminal only.
            plain_steps: for how many outer steps plain training (λ fixed where it started) runs beside the tuned
                run; by default as many, or one with `restart`.
            evaluate_every: evaluate the models on all rows of every data set at each outer step whose number this
                divides, and at the last one; 0 never does. Other rows of the history lack the columns of the data
                sets, and a verdict by the test set needs them at the kept step.
            on_divergence: "raise" a `DivergenceError` that carries the result, or "return" the result so far.
            run_dir: a folder for the journal and the checkpoints of this run; None writes nothing.
            resume: go on with the run in `run_dir`, bit for bit as if it had never stopped; `outer_steps` then counts
                from its beginning. Where there is no run yet, one starts.

        Returns:
            The result. After Ctrl-C it is the result so far, with status "interrupted". The model is in `eval()` mode;
            another `fit` trains it in training mode again.

        Raises:
            SettingError: a setting breaks its rule.
            DivergenceError: the objective or its gradient is not finite.
            GradientError: the estimator cannot compute the gradient of a hyperparameter.
            RunFolderError: `run_dir` holds another run, is damaged or in use, or cannot be written.
        """
        check_autograd("fit")
        settings = FitSettings(
            outer_steps=outer_steps,
            test=test,
            keep=keep,
            tolerance=tolerance,
            plain_steps=plain_steps,
            evaluate_every=evaluate_every,
            on_divergence=on_divergence,
        )
        zeta, run = self.settings.objective.zeta, self.outer_run
        rule = AutoZeta() if zeta == "auto" else zeta
        held_out = keep == "held-out" and not isinstance(rule, AutoZeta)
        runs = runs_of(rule) if isinstance(rule, AutoZeta) else 1 + held_out * len(run.problem.fold_rows)
        listeners = Listeners(self, as_callbacks(callbacks))
        shown = progress if run.ranks.leader else False
        with run.ranks.session(), progress_for(shown, total=outer_steps * runs) as bar:
            settings = recorded_in(run_dir, run, settings, resume=resume)
            if isinstance(rule, AutoZeta):
                return fit_auto(run, settings, rule, listeners, bar)
            if held_out:
                return fit_held_out_step(run, settings, listeners, bar)
            return Fit(run, settings, self.settings.zeta, listeners.with_another(bar)).result()

    def __repr__(self) -> str:
        words = {**short_settings(self.settings), "engine": type(self.outer_run.runner.engine).__name__}
        return "Tuner(\n" + "".join(f"    {name}={value},\n" for name, value in words.items()) + ")"

    # Read-only: a tuner runs with the settings it was made with.

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.settings.problem

    @property
    def inner(self) -> Dynamics:
        """The inner dynamics."""
        return self.settings.inner

    @property
    def inner_steps(self) -> int:
        """T, the inner steps per outer step."""
        return self.settings.inner_steps

    @property
    def outer(self) -> torch.optim.Optimizer:
        """The optimizer of λ."""
        return self.settings.outer

    @property
    def objective(self) -> Objective:
        """The objective that λ minimises."""
        return self.settings.objective

    @property
    def chains(self) -> int:
        """C, the number of chains."""
        return self.settings.chains

    @property
    def restart(self) -> bool:
        """True if every outer step draws θ_0 anew."""
        return self.settings.restart

    @property
    def online(self) -> bool:
        """True if λ also moves at every inner step."""
        return self.settings.online

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.settings.seed

    @property
    def zeta(self) -> float:
        """ζ as a number; `zeta="auto"` has none before `fit`."""
        return self.settings.zeta

    @property
    def start_hyper(self) -> Params:
        """λ at the start of the run, which plain training keeps."""
        return self.outer_run.start_hyper

    @property
    def ranks(self) -> Ranks:
        """The processes of the run."""
        return self.outer_run.ranks
