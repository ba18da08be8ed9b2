"""`check_hypergradient`: compare the estimate with float64 finite differences on the user's problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pactune.checks import check_count, check_seed, check_type
from pactune.errors import GradientError, SettingError
from pactune.gradient_check.anchored import (
    Exact,
    RecordedChain,
    anchored_regularizer,
    anchored_risk,
    path_sums,
    record_chains,
)
from pactune.gradient_check.differences import Derivative, derivative
from pactune.gradient_check.gap import gap_function
from pactune.gradient_check.stationary import StationaryChain, find_stationary, train_gradient_norm_of
from pactune.hypergradient.gradients import check_autograd
from pactune.hypergradient.records import InnerState
from pactune.hypergradient.value_gap import ValueFunctionGap
from pactune.problem.modules import wake
from pactune.rounds.chain_states import ChainStates
from pactune.rounds.inputs import RunInputs
from pactune.rounds.plan import RoundOutcome, RoundPlan, RoundRequest, mean_outcome
from pactune.rounds.round import run_round
from pactune.streams import Streams
from pactune.trees import Params, add, axpy, clone, detach, dot, leaves, norm, scale, split, sub
from pactune.tuning.outer_run import OuterRun
from pactune.tuning.tuner import Tuner

__all__ = ["HypergradientCheck", "check_hypergradient"]

STEP = 2e-5  # the error of the four-point rule is of order h⁴, that of rounding 1e-16/h
STATIONARY_STEP = 2e-4  # larger, since the solution of the training problem has a larger rounding error
TOLERANCE = 1e-5
TRIES = 3  # directions to try for each wanted direction, if kinks are in the way


class HypergradientCheck(NamedTuple):
    """Directional derivatives of J, one per random direction.

    Attributes:
        estimate: the derivatives of the estimator.
        promised: finite differences of the function that the estimator differentiates; iterates that it holds fixed
            are held fixed. For `Implicit` this is the risk at the stationary point that training reaches from θ_T, as a
            function of λ. For an optimizer of `torch.optim` it is the gradient step in place of the optimizer's step.
            NaN without a derivative.
        exact: finite differences of J itself, with nothing held fixed; NaN without a derivative.
        error: ‖estimate − promised‖/‖promised‖; only rounding if the estimator is correct. For `Implicit` the estimate
            at the stationary point is used. NaN if no direction has a derivative.
        truncation: ‖estimate − exact‖/‖exact‖, the error of the truncation; with `Implicit` it includes the error
            because θ_T is not stationary.
        kinks: the number of directions that were left out because of kinks.
        train_gradient_norm: with `Implicit`, ‖∇R_T(θ_T)‖, the mean over chains; else NaN.
        stationary_distance: with `Implicit`, ‖θ_T − θ*‖/‖θ*‖ to the stationary point θ*, the mean over chains; NaN
            if Newton's method finds none.
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
        """Return "passed" if `error` is at most 1e-5, else "failed".

        The outcome is "inconclusive" if no direction has a derivative: there are kinks everywhere near λ, or `Implicit`
        has no stationary point.
        """
        if math.isnan(self.error):
            return "inconclusive"
        return "passed" if self.error <= TOLERANCE else "failed"

    @property
    def passed(self) -> bool:
        """True if the outcome is "passed"."""
        return self.outcome == "passed"


class _TestedGradient(NamedTuple):
    """A λ-gradient, and the function of λ whose gradient it should be."""

    gradient: Params
    function: Callable[[Params], Tensor]
    step: float = STEP

    def along(self, v: Params) -> float:
        return float(dot(self.gradient, v))

    def derivative(self, hyper: Params, v: Params) -> Derivative:
        """Return the derivative of the function along v; its usual size is ‖gradient‖/√n for n hyperparameters."""
        step = self.step * (1.0 + float(norm(hyper)))
        usual = float(norm(self.gradient)) / math.sqrt(sum(value.numel() for value in hyper.values()))
        size = usual if math.isfinite(usual) else 0.0
        return derivative(lambda s: self.function(axpy(s, v, hyper)), step=step, scale=size)


def check_hypergradient(tuner: Tuner, *, directions: int = 5, seed: int = 0) -> HypergradientCheck:
    """Compare one round's hypergradient with float64 finite differences along random directions.

    All rounds run on a float64 copy of the tuner's present state, so the user's objects do not change. ReLU,
    max-pooling and abs have kinks, across which a difference is no derivative. The differences to both sides must agree
    at one of four step sizes; a direction in which they never agree is replaced by another.

    Args:
        tuner: the tuner, with a ζ that is a number or "theory".
        directions: the number of random directions. Each costs ten rounds, and more with per-summand truncation or
            kinks.
        seed: the seed of the directions.

    Raises:
        GradientError: a hyperparameter module states another gradient than that of its penalty. The objective takes
            what it states, so finite differences would not show it.

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
    check_autograd("check_hypergradient")
    check_type("tuner", tuner, Tuner, "a Tuner")
    check_count("directions", directions, words="≥ 1, a whole number")
    check_seed("seed", seed)
    if tuner.outer_run.ranks.count > 1:
        raise SettingError("`tuner` must run in one process to be checked; make it without `parallel`")
    parts = _in_double(tuner.outer_run)
    _check_penalty(parts[0])
    outcome = mean_outcome([part.run() for part in parts])
    gradient, estimator = outcome.gradient(parts[0].plan.zeta), parts[0].plan.risk_estimator
    if isinstance(estimator, ValueFunctionGap):
        return _compare(parts, gradient, _TestedGradient(gradient, _gap(parts)), directions, seed)
    if not estimator.stationary:
        return _compare(parts, gradient, _TestedGradient(gradient, _objective(parts)), directions, seed)
    stationary = [[find_stationary(part.plan, path, part.hyper) for path in part.paths] for part in parts]
    found = _compare(parts, gradient, _implicit(parts, outcome, stationary), directions, seed)
    length, distance = _stationarity(parts, stationary)
    return found._replace(train_gradient_norm=length, stationary_distance=distance)


class _RecordedPart(NamedTuple):
    """The recorded round of one subproblem, whose objectives have the mean J."""

    plan: RoundPlan
    paths: list[RecordedChain]

    @property
    def hyper(self) -> Params:
        return self.paths[0].hyper

    def run(self) -> RoundOutcome:
        """Run the recorded round with the estimators."""
        drawn = [path.drawn for path in self.paths if path.drawn is not None]
        starts = [path.states[0] for path in self.paths]
        step_data = [[path.step_data[t] for path in self.paths] for t in range(self.plan.inner_steps)]
        inputs, batches = [path.inputs for path in self.paths], self.paths[0].risk_batches
        request = RoundRequest(
            self.plan,
            starts,
            self.hyper,
            lambda t: step_data[t],
            batches,
            drawn or None,
            estimator_inputs=lambda: inputs,
        )
        return run_round(request)

    def regularizer(self) -> Callable[[Params], Tensor]:
        """Return √Y as a function of λ, to first order; it is 0 without a path term."""
        objective, empty = self.plan.trajectory.objective, torch.zeros(0, device=self.plan.trajectory.problem.device)
        here = path_sums(self.plan, self.paths, self.hyper) if objective.has_path else empty
        return lambda at: anchored_regularizer(self.plan, self.paths, here, at)


def _check_penalty(part: _RecordedPart) -> None:
    """Raise if the closed form `penalty_gradient` is not the θ-gradient of `penalty`."""
    problem, params = part.plan.trajectory.problem, leaves(part.paths[0].states[0].params)
    if not problem.has_penalty:
        return
    stated = detach(problem.penalty_gradient(params, part.hyper))
    with torch.enable_grad():
        value = problem.penalty(params, part.hyper)
    found = torch.autograd.grad(value, list(params.values()), allow_unused=True) if value.requires_grad else []
    wanted = split([*found, *[None] * (len(params) - len(found))], params)[0]
    gap = sub({name: stated.get(name, torch.zeros_like(p)) for name, p in wanted.items()}, wanted)
    if float(norm(gap)) > TOLERANCE * float(norm(wanted)):
        raise GradientError(
            f"`penalty_gradient` of a hyperparameter module is not the gradient of its `penalty`: it differs by "
            f"{float(norm(gap)):.3g}, and the gradient has norm {float(norm(wanted)):.3g}; correct it, or remove it to "
            "let autograd take its place"
        )


def _compare(
    parts: list[_RecordedPart], gradient: Params, promise: _TestedGradient | None, directions: int, seed: int
) -> HypergradientCheck:
    """Compare the estimate with `promised` and with `exact` along the same random directions."""
    hyper = parts[0].hyper
    probes, slopes, kinks = _probe(promise, hyper, directions, Streams(seed))
    exact = [part._replace(plan=replace(part.plan, risk_estimator=Exact(), path_estimator=Exact())) for part in parts]
    whole = _TestedGradient(gradient, _objective(exact))
    truths = [whole.derivative(hyper, v) for v in probes]
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
    promise: _TestedGradient | None, hyper: Params, directions: int, streams: Streams
) -> tuple[list[Params], list[Derivative], int]:
    """Return directions, the promised derivatives, and the number of directions left out because of kinks."""
    nothing = Derivative(math.nan, math.nan)
    if promise is None:
        return [_direction(hyper, streams, i) for i in range(directions)], [nothing] * directions, 0
    probes: list[Params] = []
    slopes: list[Derivative] = []
    tried = 0
    while len(probes) < directions and tried < TRIES * directions:
        v = _direction(hyper, streams, tried)
        found = promise.derivative(hyper, v)
        tried += 1
        if not math.isnan(found.value):
            probes.append(v)
            slopes.append(found)
    kinks = tried - len(probes)
    return (probes, slopes, kinks) if probes else ([_direction(hyper, streams, 0)], [nothing], kinks)


def _error(estimates: list[float], slopes: list[Derivative]) -> float:
    """Return the relative distance over the directions that have a derivative; NaN if none has.

    If the derivatives are smaller than the rounding error, the distance is relative to the rounding error.
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


def _objective(parts: list[_RecordedPart]) -> Callable[[Params], Tensor]:
    """Return J as a function of λ, with the iterates held fixed that the plans' estimators hold fixed."""
    regularizers = [part.regularizer() for part in parts]

    def value(at: Params) -> Tensor:
        pairs = zip(parts, regularizers, strict=True)
        own = [anchored_risk(part.plan, part.paths, at) + part.plan.zeta * root(at) for part, root in pairs]
        return torch.stack(own).mean()

    return value


def _gap(parts: list[_RecordedPart]) -> Callable[[Params], Tensor]:
    """Return J as a function of λ, with its risk in the penalised form of `ValueFunctionGap` at fixed iterates."""
    risks = [gap_function(part.plan, path) for part in parts for path in part.paths]
    zeta, regularizers = parts[0].plan.zeta, [part.regularizer() for part in parts]

    def value(at: Params) -> Tensor:
        risk = torch.stack([one(at) for one in risks]).mean()
        return risk + zeta * torch.stack([root(at) for root in regularizers]).mean()

    return value


def _implicit(
    parts: list[_RecordedPart], outcome: RoundOutcome, stationary: list[list[StationaryChain | None]]
) -> _TestedGradient | None:
    """Return the estimate of `Implicit` at stationary points, and the risk there as a function of λ."""
    chains = [chain for own in stationary for chain in own if chain is not None]  # every problem has equally many
    if len(chains) < sum(map(len, stationary)):
        return None
    hyper, zeta, regularizers = parts[0].hyper, parts[0].plan.zeta, [part.regularizer() for part in parts]
    gradient = scale(1 / len(chains), functools.reduce(add, [chain.gradient(hyper) for chain in chains]))

    def value(at: Params) -> Tensor:
        risk = torch.stack([chain.risk(at) for chain in chains]).mean()
        return risk + zeta * torch.stack([root(at) for root in regularizers]).mean()

    whole = axpy(zeta, outcome.path_gradient, gradient) if outcome.path_gradient else gradient
    return _TestedGradient(whole, value, STATIONARY_STEP)


def _stationarity(parts: list[_RecordedPart], stationary: list[list[StationaryChain | None]]) -> tuple[float, float]:
    """Return ‖∇R_T(θ_T)‖ and the distance to a stationary point, the means over chains."""
    lengths = [train_gradient_norm_of(part.plan, path) for part in parts for path in part.paths]
    gaps = [math.nan if chain is None else chain.distance() for own in stationary for chain in own]
    return sum(lengths) / len(lengths), sum(gaps) / len(gaps)


def _in_double(run: OuterRun) -> list[_RecordedPart]:
    """Return the next round of every subproblem, recorded on a float64 copy of the problem."""
    plan, chains, inputs = run.plan(run.settings.zeta), run.chains, replace(run.inputs, reader="check")
    run.problem.load_tasks(chains.rounds, inputs.streams)
    problem = run.problem.in_type(torch.float64)
    wake(problem.model)
    hyper, default = clone(problem.hyperparameters()), plan.trajectory.default_hyper
    trajectory = replace(plan.trajectory, default_hyper=None if default is None else _double(default))
    parts = []
    for own, part in zip(chains.parts, problem.subproblems, strict=True):
        there = replace(plan, trajectory=replace(trajectory, problem=part))
        twin = _double_chains(own, replace(inputs, problem=part))
        parts.append(_RecordedPart(there, record_chains(there, twin, hyper)))
    return parts


def _double_chains(chains: ChainStates, inputs: RunInputs) -> ChainStates:
    states = [_double_state(state) for state in chains.states] if chains.states is not None else None
    params, buffers = _double(chains.params), _double(chains.buffers)
    memory = [_double(kept) for kept in chains.memory] if chains.memory is not None else None
    return replace(chains, inputs=inputs, states=states, params=params, buffers=buffers, memory=memory)


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
