"""Bad input to the monitor gets a clear error: one row per mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
NAN, INF = float("nan"), float("inf")


class Case(NamedTuple):
    call: Callable[[], Any]
    error: type[Exception]
    message: str


def monitor(model: Any = None, loss: Any = F.cross_entropy, **settings: Any) -> pt.CoherenceMonitor:
    return pt.CoherenceMonitor(nn.Linear(4, 3) if model is None else model, loss, **settings)


def measured() -> pt.CoherenceMonitor:
    found = monitor()
    found.step((X, Y), (X, Y))
    return found


def general(loss: Callable[..., Any]) -> Any:
    return monitor(loss=None, batch_loss=loss).step((X, Y), (X, Y))


def loaded(**changes: Any) -> None:
    state: dict[str, Any] = measured().state_dict() | changes
    monitor().load_state_dict({name: value for name, value in state.items() if value is not ...})


S, D, G, V = pt.SettingError, pt.DataError, pt.GradientError, pt.DivergenceError
STEP = (X, Y)
CASES: dict[str, Case] = {
    # settings
    "no module": Case(lambda: monitor("linear"), S, "`model` must be an nn.Module, got str"),
    "frozen model": Case(lambda: monitor(nn.Linear(4, 3).requires_grad_(False)), S, "no trainable parameter"),
    "complex model": Case(lambda: monitor(nn.Linear(4, 3).to(torch.complex64)), S, "`model` must have real trainable"),
    "complex penalty": Case(
        lambda: monitor(penalty=nn.Linear(4, 3).to(torch.complex64)), S, "`penalty` must have real trainable"
    ),
    "no loss": Case(lambda: monitor(loss=None), S, "pass either `loss"),
    "two losses": Case(lambda: monitor(batch_loss=lambda m, b: m(b)), S, "pass either `loss"),
    "loss not callable": Case(lambda: monitor(loss="mse"), S, "`loss` must be callable, got str"),
    "batch loss not callable": Case(lambda: monitor(loss=None, batch_loss=1), S, "`batch_loss` must be callable"),
    "every zero": Case(lambda: monitor(every=0), S, "`every` must be a whole number ≥ 1, got 0"),
    "every a fraction": Case(lambda: monitor(every=2.5), S, "`every` must be a whole number"),
    "every True": Case(lambda: monitor(every=True), S, "`every` must be a whole number"),
    "seed None": Case(lambda: monitor(seed=None), S, "`seed` must be a whole number"),
    "unknown policy": Case(lambda: monitor(on_nonfinite="ignore"), S, '`on_nonfinite` must be "raise" or "skip"'),
    "clip zero": Case(lambda: monitor(clip_train=0.0), S, "`clip_train` must be a positive norm"),
    "clip negative": Case(lambda: monitor(clip_valid=-1.0), S, "`clip_valid` must be a positive norm"),
    "decay NaN": Case(lambda: monitor(weight_decay=NAN), S, "`weight_decay` must be a finite number"),
    "decay a string": Case(lambda: monitor(weight_decay="0.1"), S, "`weight_decay` must be a finite number"),
    "decay None": Case(lambda: monitor(weight_decay=None), S, "`weight_decay` must be a finite number"),
    "decay of unknown name": Case(lambda: monitor(weight_decay={"wight": 0.1}), S, r"names \['wight'\]"),
    "decay infinite by name": Case(lambda: monitor(weight_decay={"weight": INF}), S, "finite number"),
    "optimizer of another model": Case(
        lambda: monitor(weight_decay=torch.optim.AdamW(nn.Linear(1, 1).parameters())), S, "none of the model's"
    ),
    "penalty a number": Case(lambda: monitor(penalty=0.1), S, "`penalty` must be a module or a function"),
    "penalty module without hook": Case(lambda: monitor(penalty=nn.Linear(1, 1)), S, "must have a method `penalty"),
    "penalty of another model": Case(
        lambda: monitor(penalty=pt.WeightDecay(nn.Sequential(nn.Linear(4, 3)), per="tensor")).step(STEP, STEP),
        S,
        "knows none of the model's parameters",
    ),
    "penalty not a scalar": Case(
        lambda: monitor(penalty=lambda params: params["weight"]).step(STEP, STEP), S, "must return a scalar tensor"
    ),
    "penalty free of parameters": Case(
        lambda: monitor(penalty=lambda params: torch.tensor(1.0)).step(STEP, STEP), S, "depends on the parameters"
    ),
    "average without processes": Case(lambda: monitor(average=True).step(STEP, STEP), S, "needs torch.distributed"),
    # steps
    "no gradient yet": Case(lambda: monitor().step(None, STEP), G, "no parameter has one; call `step` after backward"),
    "no validation batch": Case(lambda: monitor().step(STEP), D, "`valid_batch` must be a validation mini-batch"),
    "bare tensor": Case(lambda: monitor().step(STEP, X), D, r"must be a tuple \(inputs, target\)"),
    "empty tuple": Case(lambda: monitor().step(STEP, ()), D, r"must be a tuple \(inputs, target\)"),
    "wrong width": Case(lambda: monitor().step((X[:, :3], Y), STEP), D, "the loss fails on `train_batch`"),
    "wrong rows": Case(lambda: monitor().step(STEP, (X, Y[:2])), D, "the loss fails on `valid_batch`"),
    "wrong type": Case(lambda: monitor().step(STEP, (X.double(), Y)), D, "the loss fails on `valid_batch`"),
    "wrong device": Case(lambda: monitor().step(STEP, (X.to("meta"), Y.to("meta"))), D, "the loss fails on|meta"),
    "label out of range": Case(lambda: monitor().step(STEP, (X, Y + 9)), D, "the loss fails on `valid_batch`"),
    "loss per row": Case(lambda: general(lambda m, b: m(b[0]).sum(1)), S, r"scalar tensor.*got shape \(8,\)"),
    "loss a float": Case(lambda: general(lambda m, b: m(b[0]).sum().item()), S, "scalar tensor.*got float"),
    "loss detached": Case(lambda: general(lambda m, b: m(b[0]).sum().detach()), G, "does not depend on the model"),
    "scale zero": Case(lambda: monitor().step(STEP, STEP, grad_scale=0.0), S, "`grad_scale` must be a positive"),
    "scale NaN": Case(lambda: monitor().step(STEP, STEP, grad_scale=NAN), S, "`grad_scale` must be a positive"),
    # the objective
    "risk a string": Case(lambda: measured().objective("0.3", 0.1), S, "`valid_risk` must be a number, got str"),
    "risk a vector": Case(lambda: measured().objective(torch.ones(2), 0.1), S, "`valid_risk` must be a number"),
    "risk NaN": Case(lambda: measured().objective(NAN, 0.1), V, "`valid_risk` is nan"),
    "zeta negative": Case(lambda: measured().objective(0.3, -0.1), S, "`zeta` must be a finite number ≥ 0"),
    "zeta NaN": Case(lambda: measured().objective(0.3, NAN), S, "`zeta` must be a finite number ≥ 0"),
    "zeta auto": Case(lambda: measured().objective(0.3, "auto"), S, "`zeta` must be .* or \"theory\", got 'auto'"),
    "theory without lr": Case(lambda: measured().objective(0.3, "theory"), S, "`lr` must be a positive number"),
    "theory with lr 0": Case(lambda: measured().objective(0.3, "theory", lr=0), S, "`lr` must be a positive number"),
    "theory with beta 0": Case(
        lambda: measured().objective(0.3, "theory", lr=1, beta=0), S, "`beta` must be a positive"
    ),
    "nothing measured": Case(lambda: monitor().objective(0.3, 0.1), S, "no step was measured: call `monitor.step"),
    # the state
    "state a list": Case(lambda: monitor().load_state_dict([]), S, "`state` must be the state_dict of a monitor"),
    "state without total": Case(lambda: loaded(total=...), S, "`state` must be the state_dict"),
    "state with more": Case(lambda: loaded(zeta=1.0), S, "`state` must be the state_dict"),
    "total negative": Case(lambda: loaded(total=-1.0), S, "total must be a number ≥ 0"),
    "total a string": Case(lambda: loaded(total="1"), S, "total must be a number ≥ 0"),
    "more measured than steps": Case(lambda: loaded(measured=9), S, "0 ≤ measured ≤ steps"),
    "steps a float": Case(lambda: loaded(steps=1.5), S, "0 ≤ measured ≤ steps"),
    "another stride": Case(lambda: loaded(every=4), S, "monitor with every=4; this one has every=1"),
    "another seed": Case(lambda: loaded(seed=4), S, "monitor with seed=4; this one has seed=0"),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(name: str) -> None:
    call, error, message = CASES[name]
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, pt.PactuneError)


def test_rows_are_many() -> None:
    assert len(CASES) >= 50


class Sharded(nn.Linear):
    """Has the name that sharded models have."""


Sharded.__name__ = "FullyShardedDataParallel"


def test_sharded_models_are_refused() -> None:
    with pytest.raises(pt.SettingError, match="must not be sharded"):
        pt.CoherenceMonitor(Sharded(2, 2), F.mse_loss)


def test_decay_needs_an_optimizer_that_has_one() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(pt.SettingError, match="LBFGS has no weight decay"):
        monitor(model, weight_decay=torch.optim.LBFGS(model.parameters()))


def test_a_parameter_frozen_on_the_way_is_left_out() -> None:
    model = nn.Linear(4, 3)
    watch = monitor(model)
    before: Tensor | None = watch.step((X[:4], Y[:4]), (X[4:], Y[4:]))
    model.bias.requires_grad_(False)
    after: Tensor | None = watch.step((X[:4], Y[:4]), (X[4:], Y[4:]))
    assert before is not None
    assert after is not None
    assert float(after) < float(before)
