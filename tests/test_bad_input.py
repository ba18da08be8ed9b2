"""Bad input gets a clear error: one row per mistake, with the class of the error and what its message must say."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import pactune as pt
from tests.mistakes import Case, X, Y, check_refused, problem, tuner

NAN = float("nan")


class Sizeless(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Bare(nn.Module):
    """A model that cannot draw its parameters anew."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(2))


def general(train: Callable[..., Any], valid: Callable[..., Any] | None = None, hyper: Any = None) -> pt.Tuner:
    def fine(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return tuner(problem(hyper=hyper, loss=..., train_loss=train, valid_loss=valid or fine))


def mean_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def model_with_rates() -> pt.Problem:
    model = nn.Linear(4, 3)
    return problem(model, pt.LearningRates(model))


def model_with_start() -> pt.Problem:
    model = nn.Linear(4, 3)
    return problem(model, pt.Initialization(model))


def both_weigh() -> nn.Module:
    return nn.ModuleList([pt.ExampleWeights(8), pt.ExampleWeights(8)])


def frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


S, D, G = pt.SettingError, pt.DataError, pt.GradientError
RMSPROP = functools.partial(torch.optim.RMSprop, lr=1e-3)
CASES: dict[str, Case] = {
    # data
    "empty training set": Case(lambda: problem(train=(X[:0], Y[:0])), D, "`train` is empty"),
    "empty validation set": Case(lambda: problem(valid=(X[:0], Y[:0])), D, "`valid` is empty"),
    "empty data set": Case(lambda: problem(valid=TensorDataset(X[:0], Y[:0])), D, "`valid` is empty"),
    "empty loader": Case(lambda: problem(valid=DataLoader(TensorDataset(X[:0], Y[:0]))), D, "empty"),
    "empty iterable": Case(
        lambda: tuner(problem(train=DataLoader(Nothing()))).hypergradient(), D, "yields no batch: it is empty"
    ),
    "unknown data": Case(lambda: problem(train="mnist"), D, "`train` must be a tensor.*got str"),
    "no data": Case(lambda: problem(train=None), D, "`train` must be .*got NoneType"),
    "numpy data": Case(lambda: problem(train=(X.numpy(), Y.numpy())), D, "`train` must be a tensor.*got tuple"),
    "empty tuple": Case(lambda: problem(train=()), D, "`train` must be a tensor"),
    "rows that differ": Case(lambda: problem(train=(X, Y[:5])), D, r"same number of rows.*\(8, 4\), \(5,\)"),
    "scalar data": Case(lambda: problem(train=(X, torch.tensor(1))), D, "same number of rows"),
    "another device": Case(lambda: problem(train=(X.to("meta"), Y.to("meta"))), D, "`train` is on meta and the model"),
    "no length": Case(lambda: problem(train=Sizeless()), D, "must know its length"),
    "bare iterable": Case(
        lambda: problem(train=Nothing()), D, "`train` is an IterableDataset, .*`batch_size` must say"
    ),
    "no target": Case(lambda: tuner(problem(train=X)).hypergradient(), D, r"must be a tuple \(inputs, target\)"),
    "batch size zero": Case(lambda: problem(batch_size=0), S, "`batch_size` must be at least 1"),
    "two batch sizes": Case(
        lambda: problem(train=DataLoader(TensorDataset(X, Y), batch_size=2), batch_size=3), S, "its own batch size"
    ),
    "empty test set": Case(lambda: tuner().fit(1, test=(X[:0], Y[:0])), D, "`test` is empty"),
    "unknown test set": Case(lambda: tuner().fit(1, test=3), D, "`test` must be a tensor"),
    # modules and losses
    "model that is none": Case(lambda: problem(lambda x: x, pt.ExampleWeights(8)), S, "`model` must be an nn.Module"),
    "hyper that is none": Case(lambda: problem(hyper={"decay": 0.1}), S, "`hyper` must be an nn.Module, got dict"),
    "nothing to train": Case(lambda: problem(frozen(), pt.ExampleWeights(8)), S, "no trainable parameter"),
    "nothing to decay": Case(lambda: pt.WeightDecay(frozen()), S, "no trainable parameter"),
    "nothing to tune": Case(lambda: problem(hyper=nn.ReLU()), S, "nothing to tune"),
    "no loss": Case(lambda: problem(loss=...), S, "either `loss`, or both"),
    "half of the general form": Case(lambda: problem(loss=..., train_loss=mean_loss), S, "either `loss`, or both"),
    "both forms": Case(lambda: problem(train_loss=mean_loss, valid_loss=mean_loss), S, "either `loss`, or both"),
    "loss that is none": Case(lambda: problem(loss="mse"), S, "`loss` must be callable, got str"),
    "types that differ": Case(lambda: problem(nn.Linear(4, 3).double(), pt.ExampleWeights(8)), S, "one device and"),
    "two that weigh": Case(lambda: problem(hyper=both_weigh()), S, "at most one .* may weigh"),
    "too few weights": Case(lambda: problem(hyper=pt.ExampleWeights(5)), S, "5 example weights.*8 rows"),
    "no rows to weigh": Case(lambda: pt.ExampleWeights(0), S, "`rows` must be"),
    "unknown granularity": Case(lambda: pt.WeightDecay(nn.Linear(1, 1), per="layer"), S, "`per` must be"),
    "loss of many numbers": Case(
        lambda: general(lambda m, b, h: F.cross_entropy(m(b[0]), b[1], reduction="none")).hypergradient(),
        S,
        r"train loss must be a scalar.*shape \(8,\)",
    ),
    "loss that is no tensor": Case(
        lambda: general(lambda m, b, h: float(mean_loss(m, b, h))).hypergradient(), S, "scalar tensor.*got float"
    ),
    "loss without graph": Case(
        lambda: general(lambda m, b, h: mean_loss(m, b, h).detach()).hypergradient(), G, "does not depend on"
    ),
    "loss that is not finite": Case(
        lambda: general(lambda m, b, h: mean_loss(m, b, h) * NAN).hypergradient(),
        pt.DataError,
        "train loss is nan before",
    ),
    "validation loss that is not finite": Case(
        lambda: general(mean_loss, lambda m, b, h: mean_loss(m, b, h) + math.inf).fit(1),
        pt.DataError,
        "valid loss is inf before",
    ),
    "labels out of range": Case(
        lambda: tuner(problem(valid=(X, Y + 3))).hypergradient(), pt.DataError, "valid loss fails on the first batch"
    ),
    "inputs of another type": Case(
        lambda: tuner(problem(train=(X.double(), Y))).hypergradient(), pt.DataError, "train loss fails on the first"
    ),
    "arrays in place of tensors": Case(
        lambda: problem(train=(X.numpy(), Y.numpy())), pt.DataError, "tuple of .ndarray, ndarray.*torch.as_tensor"
    ),
    "weights of examples with a loss that only knows the mean": Case(
        lambda: tuner(problem(hyper=pt.ExampleWeights(8), loss=lambda p, t: F.cross_entropy(p, t))).hypergradient(),
        S,
        "F.cross_entropy",
    ),
    "a class in place of a dynamics": Case(lambda: tuner(inner=pt.SGD), S, "got the class SGD"),
    "a single callback": Case(lambda: tuner().fit(1, callbacks=pt.Callback()), S, "list of Callback"),
    "callbacks that are none": Case(lambda: tuner().fit(1, callbacks=[print]), S, "list of Callback"),
    # gradients that cannot be
    "hyper that enters nowhere": Case(
        lambda: tuner(problem(hyper=Unused())).hypergradient(), G, "enters neither a loss, a penalty"
    ),
    "learning rates at K = 0": Case(
        lambda: tuner(model_with_rates(), hypergradient=pt.Truncated(0)).fit(1), G, "learning rate.*Truncated.*k ≥ 1"
    ),
    "learning rates and implicit": Case(
        lambda: tuner(model_with_rates(), hypergradient=pt.Implicit(pt.Identity())).fit(1), G, "identically zero"
    ),
    "decay without path at K = 0": Case(
        lambda: tuner(objective=pt.ValidationRisk(), hypergradient=pt.Truncated(0)).fit(1), G, "penalty"
    ),
    "start without restart": Case(
        lambda: tuner(model_with_start(), hypergradient=pt.Truncated(5)).fit(1), G, "initial parameters.*restart=True"
    ),
    # settings of the tuner
    "K beyond T": Case(lambda: tuner(hypergradient=pt.Truncated(6)), S, "between 0 and inner_steps=5, got 6"),
    "K of the path beyond T": Case(lambda: tuner(path_hypergradient=pt.Truncated(9)), S, "`path_hypergradient`.*got 9"),
    "W beyond T": Case(lambda: tuner(hypergradient=pt.Windowed(6)), S, "between 1 and inner_steps=5, got 6"),
    "negative K": Case(lambda: pt.Truncated(-1), S, "`k` must be a whole number ≥ 0, got -1"),
    "fractional K": Case(lambda: pt.Truncated(1.5), S, "`k` must be"),
    "W of zero": Case(lambda: pt.Windowed(0), S, "`w` must be a whole number ≥ 1"),
    "K > 1 through torch.optim": Case(lambda: tuner(inner=RMSPROP, hypergradient=pt.Truncated(2)), S, "use SGD, Adam"),
    "rates through torch.optim": Case(lambda: tuner(model_with_rates(), inner=RMSPROP), S, "learning rates as hyper"),
    "LBFGS": Case(lambda: tuner(inner=torch.optim.LBFGS).hypergradient(), S, "cannot be LBFGS"),
    "inner that is none": Case(lambda: tuner(inner="adam"), S, "`inner` must be SGD, Adam, Langevin.*got str"),
    "factory of something else": Case(lambda: tuner(inner=lambda p: 3).hypergradient(), S, "must make a torch.optim"),
    "no inner steps": Case(lambda: tuner(inner_steps=0), S, "`inner_steps` must be a whole number ≥ 1, got 0"),
    "fractional inner steps": Case(lambda: tuner(inner_steps=2.0), S, "`inner_steps` must be"),
    "no chains": Case(lambda: tuner(chains=0), S, "`chains` must be a whole number"),
    "seed that is none": Case(lambda: tuner(seed="a"), S, "`seed` must be a whole number"),
    "outer LBFGS": Case(lambda: tuner(outer=torch.optim.LBFGS([torch.zeros(1)])), S, "`outer` cannot be LBFGS"),
    "outer that is none": Case(lambda: tuner(outer=0.1), S, "`outer` must be a torch.optim optimizer, got float"),
    "outer of other parameters": Case(
        lambda: tuner(outer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)), S, "must hold hyper.parameters"
    ),
    "objective that is none": Case(lambda: tuner(objective="pac-bayes"), S, "`objective` must be PACBayes"),
    "estimator that is none": Case(lambda: tuner(hypergradient=1), S, "`hypergradient` must be an estimator"),
    "implicit for the path": Case(
        lambda: tuner(path_hypergradient=pt.Implicit(pt.Neumann(2))), S, "cannot differentiate the regularizer"
    ),
    "windows online": Case(lambda: tuner(path_hypergradient=pt.Windowed(2), online=True), S, "online=True needs"),
    "solver that is none": Case(lambda: tuner(hypergradient=pt.Implicit("cg")), S, "solver must be Identity"),
    "too many tangents": Case(lambda: tuner(hypergradient=pt.ForwardMode(limit=3)), S, "limited to 3, got 15"),
    "hypergradient online": Case(lambda: tuner(online=True).hypergradient(), S, "for online=False"),
    "hypergradient of auto": Case(lambda: tuner(objective=pt.PACBayes("auto")).hypergradient(), S, "chosen by `fit`"),
    "problem that is none": Case(lambda: pt.Tuner(3, inner=pt.SGD(0.1), inner_steps=1, outer=None), S, "a Problem"),
    "no way to restart": Case(
        lambda: tuner(problem(Bare()), restart=True).hypergradient(), S, "no `reset_parameters`.*`initial=`"
    ),
    "misshapen start": Case(
        lambda: tuner(initial=lambda g: {"weight": torch.zeros(3, 4)}).hypergradient(), S, "misshapen: .'bias'"
    ),
    # fit
    "no outer steps": Case(lambda: tuner().fit(0), S, "`outer_steps` must be a whole number ≥ 1"),
    "keep what": Case(lambda: tuner().fit(1, keep="best"), S, "`keep` must be one of 'last', 'best-objective'"),
    "negative tolerance": Case(lambda: tuner().fit(1, tolerance=-1.0), S, "`tolerance` must be ≥ 0"),
    "divergence into what": Case(lambda: tuner().fit(1, on_divergence="ignore"), S, "`on_divergence` must be"),
    "no directions": Case(lambda: pt.check_hypergradient(tuner(), directions=0), S, "`directions` must be ≥ 1"),
}


@pytest.mark.parametrize("name", CASES)
def test_mistake_gets_a_clear_error(name: str) -> None:
    check_refused(CASES[name])


def test_a_gradient_of_zero_in_the_regularizer_alone_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="regularizer's gradient is identically zero .* for .*learning rate") as seen:
        tuner(model_with_rates()).hypergradient()
    assert [warning.filename for warning in seen] == [__file__]
