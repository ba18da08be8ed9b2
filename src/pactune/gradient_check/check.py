"""`check_hypergradient`: compare the estimate with float64 finite differences on the user's own problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pactune.checks import check_count, check_seed, check_type
from pactune.errors import SettingError
from pactune.gradient_check.differences import Slope, slope
from pactune.gradient_check.frozen import Exact, Path, frozen_regularizer, frozen_risk, path_sums, record_path
from pactune.gradient_check.solved import Solved, solve_training, train_slope
from pactune.hypergradient import Implicit
from pactune.hypergradient.records import InnerState
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.plan import RoundOutcome, RoundPlan, RoundRequest
from pactune.rounds.round import run_round
from pactune.streams import Streams
from pactune.trees import Params, add, axpy, clone, dot, norm, scale
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.tuner import Tuner

__all__ = ["HypergradientCheck", "check_hypergradient"]

STEP = 2e-5  # the four-point rule errs by h⁴, rounding by 1e-16/h
SOLVED_STEP = 2e-4  # solving the training problem rounds more
TOLERANCE = 1e-5
TRIES = 3  # directions to try for each that is asked for, where kinks are in the way


class HypergradientCheck(NamedTuple):
    """Directional derivatives of J, one per random direction.

    Attributes:
        estimate: what the estimator gives.
        promised: finite differences of what it is to give, with everything it holds fixed held fixed. For `Implicit`:
            of the risk at the stationary point that training reaches when it goes on from θ_T, as a function of λ. For
            an optimizer of `torch.optim`: of the gradient step that stands in for its step. NaN without a derivative.
        exact: finite differences of J itself, nothing held fixed; NaN without a derivative.
        error: ‖estimate − promised‖/‖promised‖; rounding only when all is well. The estimate of `Implicit` is taken at
            the stationary point for this. NaN where no direction could be judged.
        truncation: ‖estimate − exact‖/‖exact‖: what the truncation leaves out, and with `Implicit` also what θ_T lacks
            to be stationary.
        kinks: how many directions were left out because of kinks.
        train_gradient_norm: with `Implicit`, ‖∇R_T(θ_T)‖, the mean over chains; else NaN.
        stationary_distance: with `Implicit`, ‖θ_T − θ*‖/‖θ*‖ to the stationary point θ*, the mean over chains; NaN
            where Newton's method finds none.
    """

    estimate: Tensor
    promised: Tensor
    exact: Tensor
    error: float
    truncation: float
    kinks: int = 0
    train_gradient_norm: float = math.nan
    stationary_distance: float = math.nan

    @property
    def outcome(self) -> Literal["passed", "failed", "inconclusive"]:
        """Whether the estimate is what it promises to be, to 1e-5.

        It is "inconclusive" where no direction could be judged: kinks are everywhere near λ, or `Implicit` has no
        stationary point.
        """
        if math.isnan(self.error):
            return "inconclusive"
        return "passed" if self.error <= TOLERANCE else "failed"

    @property
    def passed(self) -> bool:
        """Whether the estimate was judged and is what it promises to be."""
        return self.outcome == "passed"


class _Judged(NamedTuple):
    """A λ-gradient and the function of λ that it is to be the gradient of."""

    gradient: Params
    function: Callable[[Params], Tensor]
    step: float = STEP

    def along(self, v: Params) -> float:
        return float(dot(self.gradient, v))

    def slope(self, hyper: Params, v: Params) -> Slope:
        """Return the derivative of the function along v; its usual size is ‖gradient‖/√n for n hyperparameters."""
        step = self.step * (1.0 + float(norm(hyper)))
        usual = float(norm(self.gradient)) / math.sqrt(sum(value.numel() for value in hyper.values()))
        size = usual if math.isfinite(usual) else 0.0
        return slope(lambda s: self.function(axpy(s, v, hyper)), step=step, scale=size)


def check_hypergradient(tuner: Tuner, *, directions: int = 5, seed: int = 0) -> HypergradientCheck:
    """Compare one round's hypergradient with float64 finite differences along random directions.

    Everything runs on a float64 copy from the tuner's present state; nothing of the user's is changed. ReLU,
    max-pooling, abs and the like have kinks, across which no difference is a derivative. Differences to either side
    must agree at one of four step sizes; a direction in which they never do is replaced by another.

    Args:
        tuner: the tuner, with a ζ that is a number or "theory".
        directions: how many random directions; each costs ten rounds, and more with per-summand truncation or kinks.
        seed: of the directions.

    Example:
        >>> import pactune as pt
        >>> model = torch.nn.Linear(3, 2)
        >>> hyper = pt.WeightDecay(model, init=0.1)
        >>> x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
        >>> problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]),
        ...                      loss=torch.nn.functional.cross_entropy)
        >>> tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=5,
        ...                  outer=torch.optim.SGD(hyper.parameters(), lr=0.1), objective=pt.PACBayes(zeta=0.01))
        >>> pt.check_hypergradient(tuner).outcome
        'passed'
    """
    check_type("tuner", tuner, Tuner, "a Tuner")
    check_count("directions", directions, words="≥ 1, a whole number")
    check_seed("seed", seed)
    if tuner.outer_run.ranks.count > 1:
        raise SettingError("`tuner` must run in one process to be checked; make it without `parallel`")
    plan, chains = _in_double(tuner.outer_run)
    hyper = clone(chains.inputs.problem.hyperparameters())
    paths = record_path(plan, chains, hyper)
    outcome = _run(plan, hyper, paths)
    if not isinstance(plan.risk_estimator, Implicit):
        promise = _Judged(outcome.gradient(plan.zeta), _objective(plan, paths, hyper))
        return _compare(plan, paths, outcome, promise, directions, seed)
    solved = [solve_training(plan, path, hyper) for path in paths]
    found = _compare(plan, paths, outcome, _implicit(plan, paths, outcome, solved), directions, seed)
    slope_there, distance = _stationarity(plan, paths, solved)
    return found._replace(train_gradient_norm=slope_there, stationary_distance=distance)


def _compare(
    plan: RoundPlan, paths: list[Path], outcome: RoundOutcome, promise: _Judged | None, directions: int, seed: int
) -> HypergradientCheck:
    """Judge the promise along random directions, and the truncation along the same ones."""
    hyper = paths[0].hyper
    probes, slopes, kinks = _probe(promise, hyper, directions, Streams(seed))
    exact_plan = replace(plan, risk_estimator=Exact(), path_estimator=Exact())
    whole = _Judged(outcome.gradient(plan.zeta), _objective(exact_plan, paths, hyper))
    truths = [whole.slope(hyper, v) for v in probes]
    estimates = [whole.along(v) for v in probes]
    return HypergradientCheck(
        torch.tensor(estimates, dtype=torch.float64, device="cpu"),
        torch.tensor([found.value for found in slopes], dtype=torch.float64, device="cpu"),
        torch.tensor([found.value for found in truths], dtype=torch.float64, device="cpu"),
        _error([(promise or whole).along(v) for v in probes], slopes),
        _error(estimates, truths),
        kinks,
    )


def _probe(
    promise: _Judged | None, hyper: Params, directions: int, streams: Streams
) -> tuple[list[Params], list[Slope], int]:
    """Return directions with the promised derivatives, and how many directions were left out because of kinks."""
    nothing = Slope(math.nan, math.nan)
    if promise is None:
        return [_direction(hyper, streams, i) for i in range(directions)], [nothing] * directions, 0
    probes: list[Params] = []
    slopes: list[Slope] = []
    tried = 0
    while len(probes) < directions and tried < TRIES * directions:
        v = _direction(hyper, streams, tried)
        found = promise.slope(hyper, v)
        tried += 1
        if not math.isnan(found.value):
            probes.append(v)
            slopes.append(found)
    kinks = tried - len(probes)
    return (probes, slopes, kinks) if probes else ([_direction(hyper, streams, 0)], [nothing], kinks)


def _error(estimates: list[float], slopes: list[Slope]) -> float:
    """Return the relative distance over the directions that have a derivative; NaN where none has.

    A derivative that is lost in rounding is compared with what rounding leaves.
    """
    pairs = [(e, found) for e, found in zip(estimates, slopes, strict=True) if not math.isnan(found.value)]
    if not pairs:
        return math.nan
    if not all(math.isfinite(e) for e, _ in pairs):
        return math.inf
    distance = math.hypot(*(e - found.value for e, found in pairs))
    return distance / max(
        math.hypot(*(found.value for _, found in pairs)), math.hypot(*(found.noise for _, found in pairs)) / TOLERANCE
    )


def _path_sums(plan: RoundPlan, paths: list[Path], hyper: Params) -> Tensor:
    """Return the sums along every path, empty for an objective without a path term."""
    trajectory = plan.trajectory
    empty = torch.zeros(0, device=trajectory.problem.device)
    return path_sums(plan, paths, hyper) if trajectory.objective.has_path else empty


def _objective(plan: RoundPlan, paths: list[Path], hyper: Params) -> Callable[[Params], Tensor]:
    """Return J as the plan's estimators differentiate it, as a function of λ."""
    here = _path_sums(plan, paths, hyper)

    def value(at: Params) -> Tensor:
        return frozen_risk(plan, paths, at) + plan.zeta * frozen_regularizer(plan, paths, here, at)

    return value


def _implicit(plan: RoundPlan, paths: list[Path], outcome: RoundOutcome, solved: list[Solved | None]) -> _Judged | None:
    """Return the estimate of `Implicit` at stationary points, and the risk there as a function of λ."""
    chains, hyper = [chain for chain in solved if chain is not None], paths[0].hyper
    if len(chains) < len(solved):
        return None
    here = _path_sums(plan, paths, hyper)
    gradient = scale(1 / len(chains), functools.reduce(add, [chain.gradient(hyper) for chain in chains]))

    def value(at: Params) -> Tensor:
        risk = torch.stack([chain.risk(at) for chain in chains]).mean()
        return risk + plan.zeta * frozen_regularizer(plan, paths, here, at)

    whole = axpy(plan.zeta, outcome.path_gradient, gradient) if outcome.path_gradient else gradient
    return _Judged(whole, value, SOLVED_STEP)


def _stationarity(plan: RoundPlan, paths: list[Path], solved: list[Solved | None]) -> tuple[float, float]:
    """Return ‖∇R_T(θ_T)‖ and the distance to a stationary point, the means over chains."""
    slopes = [train_slope(plan, path) for path in paths]
    gaps = [math.nan if chain is None else chain.distance() for chain in solved]
    return sum(slopes) / len(slopes), sum(gaps) / len(gaps)


def _in_double(run: OuterRun) -> tuple[RoundPlan, ChainStates]:
    """Return the plan and the chains of a run on a float64 copy of its problem."""
    problem = run.problem.in_type(torch.float64)
    if not problem.model.training:
        problem.model.train()
    plan, chains = run.plan(run.settings.zeta), run.chains
    inputs = replace(run.inputs, problem=problem, reader="check")
    states = [_double_state(state) for state in chains.states] if chains.states is not None else None
    twin = replace(chains, inputs=inputs, params=_double(chains.params), buffers=_double(chains.buffers), states=states)
    default = plan.trajectory.default_hyper
    trajectory = replace(plan.trajectory, problem=problem, default_hyper=None if default is None else _double(default))
    return replace(plan, trajectory=trajectory), twin


def _run(plan: RoundPlan, hyper: Params, paths: list[Path]) -> RoundOutcome:
    drawn = [path.drawn for path in paths if path.drawn is not None]
    starts = [path.states[0] for path in paths]
    step_data = [[path.step_data[t] for path in paths] for t in range(plan.inner_steps)]
    return run_round(RoundRequest(plan, starts, hyper, lambda t: step_data[t], drawn or None))


def _direction(hyper: Params, streams: Streams, index: int) -> Params:
    generator = streams.generator("direction", index)
    drawn = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64, device="cpu").to(value.device)
        for name, value in hyper.items()
    }
    return scale(1 / norm(drawn), drawn)


def _double(tree: Params) -> Params:
    return {name: value.double() if value.is_floating_point() else value for name, value in tree.items()}


def _double_state(state: InnerState) -> InnerState:
    slots = {slot: _double(values) for slot, values in state.slots.items()}
    return InnerState(_double(state.params), slots, _double(state.buffers), state.step)
