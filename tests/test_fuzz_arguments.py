"""Every public function with each argument replaced by bad values: it works, or raises a `PactuneError`."""

from __future__ import annotations

import functools
import math
import random
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune import bounds, privacy
from pactune.engines import Captured, Traced
from tests.conftest import shorten_search

pytestmark = pytest.mark.slow

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3

BAD: dict[str, Any] = {
    "None": None,
    "text": "0.05",
    "empty text": "",
    "bytes": b"1",
    "True": True,
    "complex": 1j,
    "NaN": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "minus one": -1,
    "zero": 0,
    "fraction": 1.5,
    "tiny": 1e-320,
    "huge": 1e300,
    "beyond floats": 10**400,
    "beyond int64": 2**64,
    "exact fraction": Fraction(1, 3),
    "NumPy integer": np.int64(2),
    "NumPy float": np.float32(0.25),
    "scalar tensor": torch.tensor(0.25),
    "vector": torch.ones(2),
    "NaN tensor": torch.tensor(math.nan),
    "array": np.ones(2),
    "empty list": [],
    "list of texts": ["a"],
    "list of numbers": [0.1, -1.0],
    "dict": {},
    "dict of texts": {"a": "b"},
    "object": object(),
    "class": int,
    "module": nn.Linear(1, 1),
    "function": lambda *args, **kwargs: None,
    "function of one": lambda value: value,
}


class Target(NamedTuple):
    """A public function with arguments that work; `skip` names those that are not replaced, `also` uses the result."""

    call: Callable[..., Any]
    arguments: dict[str, Any]
    also: Callable[[Any], Any] = lambda made: made
    skip: tuple[str, ...] = ()


def problem(**changes: Any) -> pt.Problem:
    model = nn.Linear(4, 3)
    settings = {"model": model, "hyper": pt.WeightDecay(model), "train": (X, Y), "valid": (X, Y)}
    if not {"train_loss", "valid_loss"} & set(changes):
        settings["loss"] = F.cross_entropy
    return pt.Problem(**(settings | changes))


def tuner(given: Any = ..., **changes: Any) -> pt.Tuner:
    given = problem() if given is ... else given
    held = given.hyper if isinstance(given, pt.Problem) else nn.Linear(1, 1)
    defaults = {
        "inner": pt.SGD(0.1),
        "inner_steps": 2,
        "outer": torch.optim.SGD(held.parameters(), lr=0.1),
        "objective": pt.PACBayes(0.1),
    }
    return pt.Tuner(given, **(defaults | changes))


def built(zeta: float = 0.1) -> pt.Tuner:
    return tuner(objective=pt.PACBayes(zeta))


def tuned(**changes: Any) -> Any:
    return tuner(**changes).fit(1, plain_steps=0)


def with_problem(**changes: Any) -> Any:
    return tuned(given=problem(**changes))


def with_dynamics(kind: Any, **settings: Any) -> Any:
    return tuned(inner=kind(**settings))


def with_objective(kind: Any, **settings: Any) -> Any:
    return tuned(objective=kind(**settings), inner=pt.Langevin(0.1, 100.0))


def with_estimator(kind: Any, **settings: Any) -> Any:
    return tuned(hypergradient=kind(**settings))


def with_solver(kind: Any, **settings: Any) -> Any:
    return tuned(hypergradient=pt.Implicit(kind(**settings)))


def with_engine(kind: Any, **settings: Any) -> Any:
    return tuned(engine=kind(**settings))


def weights(**settings: Any) -> Any:
    return tuned(given=problem(hyper=pt.ExampleWeights(**settings)))


def decayed(kind: Any, per: Any = "tensor", **settings: Any) -> Any:
    model = nn.Linear(4, 3)
    return tuned(given=problem(model=model, hyper=kind(model, per=per, **settings)))


def joined_inputs(inputs: Any = X, **settings: Any) -> Any:
    model = nn.Linear(4, 3)
    return tuned(given=problem(model=model, hyper=pt.CorrelatedInputs(model, inputs, **settings)))


def front_door(**settings: Any) -> Any:
    """Tune in few rounds."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_search(patch)
        return pt.tune(**settings)


def measured() -> pt.CoherenceMonitor:
    monitor = pt.CoherenceMonitor(nn.Linear(4, 3), F.cross_entropy)
    monitor.step((X, Y), (X, Y))
    return monitor


def stepped(monitor: pt.CoherenceMonitor) -> Any:
    return monitor.step((X, Y), (X, Y)), monitor.objective(0.1, 0.1)


def private(**changes: Any) -> Any:
    settings = {"model": nn.Linear(4, 3), "data": (X, Y), "loss": F.cross_entropy, "generator": torch.Generator()}
    return privacy.DPSGLD(lr=0.1, clip=1.0, batch_size=2).run(**(settings | changes))


RISK, PRIVACY = {"risk": 0.1, "n": 100, "delta": 0.05}, {"batch_size": 10, "clip": 1.0, "lr": 0.1}
KL = RISK | {"kl": 1.0}
FIT = {
    "outer_steps": 1,
    "plain_steps": 0,
    "keep": "last",
    "tolerance": 0.0,
    "on_divergence": "raise",
    "progress": False,
}
FIT |= {"resume": False, "callbacks": (), "test": (X, Y)}
TARGETS: dict[str, Target] = {
    "SGD": Target(
        functools.partial(with_dynamics, pt.SGD),
        {"lr": 0.1, "momentum": 0.5, "nesterov": False, "decoupled": False},
    ),
    "Adam": Target(
        functools.partial(with_dynamics, pt.Adam), {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "decoupled": True}
    ),
    "Langevin": Target(functools.partial(with_dynamics, pt.Langevin), {"lr": 0.1, "inverse_temperature": 10.0}),
    "Averaged": Target(functools.partial(with_dynamics, pt.Averaged), {"inner": pt.SGD(0.1), "beta": 0.9}),
    "TorchOptim": Target(
        functools.partial(with_dynamics, pt.TorchOptim),
        {"factory": functools.partial(torch.optim.RMSprop, lr=0.01), "decoupled": False},
    ),
    "PACBayes": Target(
        functools.partial(with_objective, pt.PACBayes),
        {"zeta": 0.1, "clip_train": 1.0, "clip_valid": 1.0, "chain_mean": "inside"},
    ),
    "SameDistribution": Target(functools.partial(with_objective, pt.SameDistribution), {"zeta": 0.1}),
    "Flatness": Target(functools.partial(with_objective, pt.Flatness), {"zeta": 0.1}),
    "HyperDrift": Target(functools.partial(with_objective, pt.HyperDrift), {"zeta": 0.1, "default": 0.0}),
    "UnequalSteps": Target(
        functools.partial(with_objective, pt.UnequalSteps), {"valid_lr": 0.1, "zeta": 0.1, "clip_valid": 1.0}
    ),
    "AutoZeta": Target(pt.AutoZeta, {"folds": 2, "fractions": (0.1,), "judge": "both", "scale": 1.0}),
    "Truncated": Target(functools.partial(with_estimator, pt.Truncated), {"k": 1, "segment": 1}),
    "Windowed": Target(functools.partial(with_estimator, pt.Windowed), {"w": 1, "segment": 1}),
    "ForwardMode": Target(functools.partial(with_estimator, pt.ForwardMode), {"limit": 100}),
    "Implicit": Target(
        functools.partial(with_estimator, pt.Implicit), {"solver": pt.Identity(), "batches": 1, "warm_start": True}
    ),
    "ValueFunctionGap": Target(
        functools.partial(with_estimator, pt.ValueFunctionGap),
        {"gamma": 10.0, "steps": 1, "alpha": 0.1, "batches": 1, "warm_start": True},
    ),
    "FirstOrder": Target(functools.partial(with_estimator, pt.FirstOrder), {"k": 1}),
    "RunningImplicit": Target(
        functools.partial(with_estimator, pt.RunningImplicit), {"alpha": 0.1, "steps": 1, "batches": 1, "damping": 0.1}
    ),
    "Nystrom": Target(functools.partial(with_solver, pt.Nystrom), {"rank": 2, "damping": 0.1}),
    "Identity": Target(functools.partial(with_solver, pt.Identity), {"alpha": 0.1}),
    "Neumann": Target(functools.partial(with_solver, pt.Neumann), {"steps": 1, "alpha": 0.1}),
    "ConjugateGradient": Target(
        functools.partial(with_solver, pt.ConjugateGradient), {"steps": 1, "damping": 0.1, "tolerance": 0.1}
    ),
    "WeightDecay": Target(functools.partial(decayed, pt.WeightDecay), {"per": "tensor", "init": 0.1, "positive": True}),
    "WeightDecay of": Target(pt.WeightDecay, {"model": nn.Linear(4, 3)}),
    "CorrelatedInputs": Target(joined_inputs, {"inputs": X, "neighbours": 2, "init": 0.1}),
    "CorrelatedInputs of": Target(pt.CorrelatedInputs, {"model": nn.Linear(4, 3), "inputs": X}),
    "tune": Target(
        front_door,
        {
            "model": nn.Linear(4, 3),
            "data": (X, Y),
            "loss": F.cross_entropy,
            "valid": None,
            "folds": 4,
            "groups": None,
            "hyper": None,
            "metric": "accuracy",
            "inner": pt.SGD(0.1),
            "inner_steps": 1,
            "batch_size": 4,
            "test": (X, Y),
            "seed": 0,
            "engine": "eager",
            "resume": False,
            "progress": False,
        },
    ),
    "LearningRates": Target(functools.partial(decayed, pt.LearningRates), {"per": "tensor"}),
    "LearningRates of": Target(pt.LearningRates, {"model": nn.Linear(4, 3)}),
    "Initialization": Target(pt.Initialization, {"model": nn.Linear(4, 3)}),
    "ExampleWeights": Target(weights, {"rows": 8}),
    "Parallel": Target(pt.Parallel, {"shards": 1, "timeout": 1.0}),
    "Traced": Target(functools.partial(with_engine, Traced), {"steps": 2, "after": 0}),
    "Captured": Target(
        functools.partial(with_engine, Captured),
        {"steps": 2, "two_streams": True, "fuse": None, "autotune": False, "tf32": None, "autocast": None},
    ),
    "Problem": Target(
        with_problem,
        {
            "model": nn.Linear(4, 3),
            "hyper": pt.ExampleWeights(8),
            "train": (X, Y),
            "valid": (X, Y),
            "loss": F.cross_entropy,
            "batch_size": 4,
            "valid_batch_size": 4,
            "metrics": None,
        },
    ),
    "Problem's own losses": Target(
        with_problem,
        {
            "train_loss": lambda m, b, h: F.cross_entropy(m(b[0]), b[1]),
            "valid_loss": lambda m, b, h: F.cross_entropy(m(b[0]), b[1]),
        },
    ),
    "Tuner": Target(
        tuned,
        {
            "given": problem(),
            "inner": pt.SGD(0.1),
            "inner_steps": 2,
            "objective": pt.PACBayes(0.1),
            "hypergradient": pt.Truncated(1),
            "path_hypergradient": pt.Truncated(0),
            "chains": 1,
            "restart": False,
            "online": False,
            "seed": 0,
            "initial": None,
            "path_stride": 1,
            "roll_back": False,
            "engine": "eager",
            "parallel": None,
        },
    ),
    "Tuner's outer": Target(tuned, {"outer": None}),
    "fit": Target(lambda **settings: tuner().fit(**settings), FIT),
    "fit_grid": Target(
        pt.fit_grid, FIT | {"build": built, "grid": {"zeta": [0.1]}, "engine": "eager"}, skip=("callbacks",)
    ),
    "check_hypergradient": Target(pt.check_hypergradient, {"tuner": tuner(), "directions": 1}),
    "CoherenceMonitor": Target(
        pt.CoherenceMonitor,
        {
            "model": nn.Linear(4, 3),
            "loss": F.cross_entropy,
            "penalty": None,
            "weight_decay": 0.1,
            "every": 1,
            "clip_train": 1.0,
            "clip_valid": 1.0,
            "on_nonfinite": "raise",
            "average": False,
            "seed": 0,
        },
        also=stepped,
    ),
    "CoherenceMonitor.step": Target(
        lambda **settings: measured().step(**settings),
        {"train_batch": (X, Y), "valid_batch": (X, Y), "grad_scale": 1.0},
    ),
    "CoherenceMonitor.objective": Target(
        lambda **settings: measured().objective(**settings),
        {"valid_risk": 0.1, "zeta": "theory", "lr": 0.1, "beta": 1.0},
    ),
    "CoherenceMonitor.load_state_dict": Target(
        lambda **settings: measured().load_state_dict(**settings), {"state": measured().state_dict()}
    ),
    "binary_kl": Target(bounds.binary_kl, {"q": 0.1, "p": 0.2}),
    "kl_inverse": Target(bounds.kl_inverse, {"q": 0.1, "c": 0.2}),
    "kl_inverse_lower": Target(bounds.kl_inverse_lower, {"q": 0.1, "c": 0.2}),
    "hold_out": Target(bounds.hold_out, RISK),
    "maurer_seeger": Target(bounds.maurer_seeger, KL),
    "pinsker": Target(bounds.pinsker, KL),
    "mcallester": Target(bounds.mcallester, KL),
    "catoni": Target(bounds.catoni, KL | {"c": 1.0}),
    "catoni_grid": Target(bounds.catoni_grid, KL | {"grid": [1.0]}),
    "path_bound": Target(bounds.path_bound, RISK | {"log_ratio": 1.0}),
    "path_kl": Target(bounds.path_kl, {"squares": 1.0, "lr": 0.1, "inverse_temperature": 10.0}),
    "path_log_ratio": Target(
        bounds.path_log_ratio, {"squares": 1.0, "products": 1.0, "lr": 0.1, "inverse_temperature": 10.0}
    ),
    "noise_constant": Target(bounds.noise_constant, {"steps": 1, "parameters": 2, "ratio": 1.5}),
    "unequal_path_kl": Target(
        bounds.unequal_path_kl,
        {
            "steps": [bounds.ChainStep(0.1, 0.1, 0.1)],
            "train_tau": 1.0,
            "valid_tau": 1.0,
            "parameters": 2,
            "paper": False,
        },
    ),
    "PrivatePrior": Target(
        bounds.PrivatePrior,
        {"epsilon": 0.1, "delta": 1e-5, "rows": 100, "c1": 1.0, "c2": 1.0, "c_beta": 1.0},
        also=lambda prior: bounds.theorem_2_1(0.1, 1.0, prior),
    ),
    "theorem_2_1": Target(
        bounds.theorem_2_1,
        {
            "risk": 0.1,
            "kl": 1.0,
            "prior": bounds.PrivatePrior(0.1, 1e-5, 100),
            "failure": 0.05,
            "interval": (0.0, 1.0),
            "paper_constant": True,
        },
    ),
    "theorem_a3": Target(
        bounds.theorem_a3,
        {"risk": 0.1, "kl": 1.0, "prior": bounds.PrivatePrior(0.1, 1e-5, 100), "failure": 0.05, "interval": (0.0, 1.0)},
    ),
    "certify": Target(
        pt.certify,
        {"claim": bounds.CountedHoldOut(bounds.Evidence(0.1, None, 100, 1), fresh=True), "delta": 0.05, "grid": 1},
    ),
    "ClippedCrossEntropy": Target(bounds.ClippedCrossEntropy, {"largest": 4.0}, also=lambda loss: loss.name),
    "delta_of": Target(privacy.delta_of, {"epsilon": 1.0, "mu": 1.0}),
    "epsilon_of": Target(privacy.epsilon_of, {"delta": 1e-5, "mu": 1.0}),
    "mu_of": Target(privacy.mu_of, {"epsilon": 1.0, "delta": 1e-5}),
    "compose": Target(privacy.compose, {"mus": [1.0]}),
    "classical_epsilon": Target(privacy.classical_epsilon, {"delta": 1e-5, "mu": 1.0}),
    "Privacy": Target(
        privacy.Privacy, PRIVACY | {"inverse_temperature": 10.0, "chains": 1}, also=lambda found: found.epsilon(1e-5)
    ),
    "frontier": Target(privacy.frontier, {"privacy": privacy.Privacy(10, 1.0, 0.1, 10.0), "deltas": [1e-5]}),
    "largest_step": Target(
        privacy.largest_step, {"epsilon": 0.5, "delta": 1e-6, "rows": 100, "batch_size": 10, "clip": 1.0}
    ),
    "DPSGLD": Target(
        privacy.DPSGLD, PRIVACY | {"inverse_temperature": 10.0}, also=lambda made: made.privacy(100).epsilon(1e-5)
    ),
    "DPSGLD.privacy": Target(privacy.DPSGLD(**PRIVACY).privacy, {"rows": 100, "chains": 1}),
    "DPSGLD.run": Target(
        private,
        {
            "model": nn.Linear(4, 3),
            "data": (X, Y),
            "loss": F.cross_entropy,
            "generator": torch.Generator(),
            "chains": 1,
            "steps": 1,
            "initial": None,
        },
    ),
    "epsilon_lower_bound": Target(
        privacy.epsilon_lower_bound,
        {"hits": 50, "false_alarms": 10, "trials": 100, "delta": 1e-5, "confidence": 0.99},
    ),
    "membership_audit": Target(
        privacy.membership_audit,
        {"with_row": torch.randn(200), "without_row": torch.randn(200), "delta": 1e-5, "confidence": 0.99},
    ),
}


def outcome(target: Target, arguments: dict[str, Any]) -> str | None:
    """Return what came out of a call that should not have, None where all is well."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target.also(target.call(**arguments))
        except pt.PactuneError:
            return None
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("name", TARGETS)
def test_a_good_call_works(name: str) -> None:
    target = TARGETS[name]
    arguments = dict(target.arguments)
    if name in ("Tuner's outer", "Captured"):
        pytest.skip("its defaults are bad on purpose: no optimizer, no CUDA device")
    target.also(target.call(**arguments))


@pytest.mark.parametrize("name", TARGETS)
def test_a_bad_argument_is_taken_or_refused_in_words(name: str) -> None:
    target, order = TARGETS[name], random.Random(0)
    found = []
    for argument in target.arguments:
        if argument in target.skip:
            continue
        for kind, value in order.sample(list(BAD.items()), len(BAD)):
            said = outcome(target, target.arguments | {argument: value})
            if said is not None:
                found.append(f"{argument} = {kind}: {said[:150]}")
    assert not found, "\n".join([f"{len(found)} raw errors", *found])
