"""Input that once ended in an error of torch or Python, or in no error at all: one row per mistake."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import pactune as pt
from pactune import bounds
from pactune.engines import Captured, Traced
from tests.mistakes import Case, X, Y, check_refused, fit, problem, tuner

S, D, G, R = pt.SettingError, pt.DataError, pt.GradientError, pt.RunFolderError


def of_other(kind: Any, other: nn.Module, **settings: Any) -> pt.Problem:
    return problem(hyper=kind(other, **settings))


def metrics(function: Any) -> pt.Result:
    return fit(given=problem(metrics=function))


class Once(IterableDataset[Any]):
    """A data set that can be read once."""

    def __init__(self) -> None:
        self.rows = iter([(x, y) for x, y in zip(X, Y, strict=True)])

    def __iter__(self) -> Iterator[Any]:
        return self.rows


class Complex(nn.Module):
    """A linear layer with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).abs()


class Hinge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.margin = nn.Parameter(torch.tensor(1.0))


def hinge(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return (hyper.margin - model(batch[0])[:, 0]).clamp(min=0).mean()


def cross_entropy(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def hinged(**changes: Any) -> pt.Tuner:
    given = problem(hyper=Hinge(), loss=..., train_loss=hinge, valid_loss=cross_entropy)
    return tuner(given, hypergradient=pt.Truncated(2), **changes)


def regression(loss: Any, hypergradient: Any, model: Any = None) -> pt.Tuner:
    model = nn.Linear(4, 1) if model is None else model
    data = (X, torch.zeros(8, 1))
    given = problem(model, pt.WeightDecay(model, per="global"), train=data, valid=data, loss=loss)
    return tuner(given, hypergradient=hypergradient, objective=pt.ValidationRisk())


class Sampled(nn.Module):
    """Reads an image at places that the parameters shift: `grid_sample` has no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        places = (x + self.shift).tanh().reshape(len(x), 1, 2, 2)
        return F.grid_sample(x.reshape(len(x), 1, 2, 2), places, align_corners=False).reshape(len(x), -1)[:, :1]


class Square(torch.autograd.Function):
    """x², with one derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad


class Single(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Square.apply(super().forward(x))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x.reshape(len(x), 2, 2).transpose(0, 1))[0][-1]
        return out


class BadPenalty(nn.Module):
    """A penalty of the user's that breaks a rule."""

    def __init__(self, returns: Callable[[Any], Any]) -> None:
        super().__init__()
        self.value, self.returns = nn.Parameter(torch.zeros(())), returns

    def penalty(self, params: Any) -> Any:
        return self.returns(params)


class BadRates(BadPenalty):
    penalty = None  # type: ignore[assignment]

    def learning_rates(self, params: Any) -> Any:
        return self.returns(params)


class BadStart(BadPenalty):
    penalty = None  # type: ignore[assignment]

    def initial(self, params: Any) -> Any:
        return self.returns(params)


DATASET = TensorDataset(X, Y)
SUM = functools.partial(F.cross_entropy, reduction="sum")
HALF = nn.Linear(4, 1)
CASES: dict[str, Case] = {
    # modules of another model
    "decay of another model": Case(
        lambda: of_other(pt.WeightDecay, nn.Sequential(HALF)), S, "no trainable parameter of"
    ),
    "decay of other shapes": Case(lambda: of_other(pt.WeightDecay, HALF), S, r"shape \(1,\) for 'bias', which has"),
    "decay that would broadcast": Case(lambda: of_other(pt.WeightDecay, nn.Linear(1, 3)), S, r"shape \(3, 1\)"),
    "tensor decay of another": Case(
        lambda: of_other(pt.WeightDecay, nn.Sequential(HALF), per="tensor"), S, "'0.bias', which is no trainable"
    ),
    "rates of another model": Case(lambda: of_other(pt.LearningRates, nn.Sequential(HALF)), S, "LearningRates has a"),
    "start of another model": Case(lambda: of_other(pt.Initialization, HALF), S, "Initialization has shape"),
    "one of several modules": Case(
        lambda: problem(hyper=nn.ModuleList([pt.WeightDecay(HALF), pt.ExampleWeights(8)])), S, "WeightDecay has shape"
    ),
    "complex parameters": Case(
        lambda: pt.Problem(Complex(), Hinge(), train=(X, Y), valid=(X, Y), loss=F.cross_entropy),
        S,
        "`model` must have real trainable parameters, got complex weight; register two real .* torch.view_as_complex",
    ),
    "complex hyperparameters": Case(
        lambda: problem(hyper=Complex()), S, "`hyper` must have real trainable parameters, got complex weight"
    ),
    "more weights than rows": Case(lambda: problem(hyper=pt.ExampleWeights(100)), S, "100 example weights .* 8 rows"),
    "penalty that fails": Case(lambda: fit(given=problem(hyper=BadPenalty(lambda p: p["x"]))), S, "`penalty` of Bad"),
    "penalty of many": Case(
        lambda: fit(given=problem(hyper=BadPenalty(lambda p: X))), S, "must return a scalar tensor"
    ),
    "rates of unknown": Case(
        lambda: fit(given=problem(hyper=BadRates(lambda p: {"x": X}))), S, "unknown, missing.*'x'"
    ),
    "rates misshapen": Case(lambda: fit(given=problem(hyper=BadRates(lambda p: {"bias": X}))), S, "misshapen: 'bias'"),
    "start that lacks": Case(lambda: fit(given=problem(hyper=BadStart(lambda p: {}))), S, "missing or misshapen"),
    # losses and metrics
    "sum": Case(lambda: fit(given=problem(loss=SUM)), S, "must be the mean over the rows"),
    "sum of a module": Case(
        lambda: fit(given=problem(loss=nn.CrossEntropyLoss(reduction="sum"))), S, "mean over the rows"
    ),
    "sum of a function": Case(lambda: fit(given=problem(loss=lambda p, y: SUM(p, y))), S, "mean over the rows"),
    "complex loss": Case(lambda: fit(given=problem(loss=lambda p, y: p.mean() * 1j)), S, "got a complex number"),
    "a loss of other errors": Case(
        lambda: fit(given=problem(loss=lambda p, y: {}[0])), D, "train loss fails.*KeyError"
    ),
    "metrics a text": Case(lambda: problem(metrics="accuracy"), S, "`metrics` must be a function"),
    "metrics that fail": Case(lambda: metrics(lambda m, b: b["x"]), S, "`metrics` fails with TypeError"),
    "metrics that divide": Case(
        lambda: metrics(lambda m, b: {"a": 1 / 0}), S, "`metrics` fails with ZeroDivisionError"
    ),
    "metrics of a number": Case(lambda: metrics(lambda m, b: 0.5), S, "must return a dict of numbers by name, got 0.5"),
    "metrics of None": Case(lambda: metrics(lambda m, b: None), S, "must return a dict"),
    "metrics of vectors": Case(lambda: metrics(lambda m, b: {"a": X}), S, "one number per name, for 'a'"),
    "metrics of texts": Case(lambda: metrics(lambda m, b: {"a": "b"}), S, "one number per name, for 'a'"),
    "metrics by number": Case(lambda: metrics(lambda m, b: {1: 0.5}), S, "names that are texts"),
    "metric named risk": Case(lambda: metrics(lambda m, b: {"risk": 0.5}), S, "other than 'risk'"),
    "metrics that come and go": Case(
        lambda: fit(
            given=problem(
                valid=DataLoader(DATASET, batch_sampler=[[0, 1, 2], [3]]),
                metrics=lambda m, b: {"a": 0.5} if len(b[0]) > 1 else {},
            )
        ),
        S,
        "the same names for every batch",
    ),
    # data
    "test of another width": Case(lambda: fit(test=(X[:, :2], Y)), D, "valid loss fails on the first batch of `test`"),
    "test without target": Case(lambda: fit(test=X), D, "`test` must be made like `valid`"),
    "test of three parts": Case(lambda: fit(test=(X, X, Y)), D, "`test` must be made like `valid`"),
    "test target of two dimensions": Case(lambda: fit(test=(X, Y[:, None])), D, r"1 dimension\), got \(.*2 dim"),
    "test labels out of range": Case(lambda: fit(test=(X, Y + 3)), D, "fails on the first batch of `test`"),
    "test loader of nothing": Case(
        lambda: fit(test=DataLoader(DATASET, batch_size=16, drop_last=True)), D, "`test` is an empty DataLoader"
    ),
    "loader that drops all": Case(
        lambda: problem(train=DataLoader(DATASET, batch_size=16, drop_last=True)), D, "8 rows, batch_size=16"
    ),
    "loader that is read once": Case(
        lambda: fit(given=problem(train=DataLoader(Once(), batch_size=4))), D, "`train` .*can be read only once"
    ),
    "validation loader that is read once": Case(
        lambda: fit(given=problem(valid=DataLoader(Once(), batch_size=4))), D, "`valid` .*can be read only once"
    ),
    "compressed columns": Case(lambda: problem(train=(X.to_sparse_csc(), Y)), D, "layout torch.sparse_csc"),
    # engines and estimators
    "captured on a CPU": Case(lambda: tuner(engine="captured"), S, '"captured" and "fused" replay CUDA graphs'),
    "fused on a CPU": Case(lambda: tuner(engine="fused"), S, "the model is on cpu"),
    "an engine for CUDA": Case(lambda: tuner(engine=Captured(steps=4)), S, "the model is on cpu"),
    "an engine of no steps": Case(lambda: tuner(engine=Traced(steps=0)), S, "`steps` must be a whole number ≥ 1"),
    "engine a number": Case(lambda: tuner(engine=3), S, "`engine` must be"),
    "hinge margin": Case(lambda: hinged().fit(1), G, "`margin` enters the training loss, but .* mixed derivative"),
    "huber loss": Case(lambda: regression(F.huber_loss, pt.ForwardMode()).fit(1), G, "ForwardMode needs forward-mode"),
    "grid sample": Case(
        lambda: regression(F.mse_loss, pt.ForwardMode(), Sampled()).fit(1), G, "ForwardMode needs forward-mode"
    ),
    "an operation with one derivative": Case(
        lambda: regression(F.mse_loss, pt.Truncated(2), Single()).fit(1), G, r"Truncated\(k=2\).*no second derivative"
    ),
    "an operation with one derivative, implicitly": Case(
        lambda: regression(F.mse_loss, pt.Implicit(pt.Neumann(2)), Single()).fit(1), G, "no second derivative"
    ),
    "forward mode on an LSTM": Case(
        lambda: regression(F.mse_loss, pt.ForwardMode(), Recurrent()).fit(1), G, "ForwardMode needs forward-mode"
    ),
    # folders
    "a long name": Case(lambda: fit(run_dir="a" * 300), R, "`run_dir`.*cannot be made: File name too long"),
    "a null character": Case(lambda: fit(run_dir="a\0b"), S, "`run_dir` must not hold a null character"),
    "a folder of bytes": Case(lambda: fit(run_dir=b"a"), S, "`run_dir` must be a path or None"),
    "an empty name": Case(lambda: fit(run_dir=""), S, "`run_dir` must be a path or None, got ''"),
    "a file in the way": Case(lambda: fit(run_dir=Path(__file__)), R, "cannot be made: File exists"),
    "a file on the way": Case(lambda: fit(run_dir=Path(__file__) / "x"), R, "cannot be made: Not a directory"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_mistake_gets_a_clear_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(CASES[name])


def test_the_table_is_long() -> None:
    assert len(CASES) >= 50


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(R, match="no permission to write"):
        fit(run_dir=tmp_path / "x")


def test_a_mixed_derivative_that_is_zero_by_number_is_a_warning() -> None:
    def soft(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
        return F.relu(hyper.margin - model(batch[0])[:, 0]).mean()  # torch returns zeros for its second derivative

    given = problem(hyper=Hinge(), loss=..., train_loss=soft, valid_loss=cross_entropy)
    with pytest.warns(UserWarning, match="`margin` enters the training loss, but .* mixed derivative"):
        tuner(given, hypergradient=pt.Truncated(2)).fit(1)


def test_a_weight_of_the_loss_is_no_hinge() -> None:
    def weighed(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
        return hyper.margin * cross_entropy(model, batch, hyper)

    given = problem(hyper=Hinge(), loss=..., train_loss=weighed, valid_loss=cross_entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuner(given, hypergradient=pt.Truncated(2)).fit(1)


def test_the_margin_of_a_hinge_does_not_enter_the_first_term_of_same_distribution() -> None:
    """That term is the validation loss of the training rows, which is free of the margin."""
    with pytest.raises(pt.GradientError, match="`margin` enters the training loss"):
        hinged(objective=pt.SameDistribution(0.1)).hypergradient()


def test_a_sum_in_the_general_form_is_a_warning() -> None:
    given = problem(
        loss=..., train_loss=lambda m, b, h: SUM(m(b[0]), b[1]) + 0 * h.values["weight"].sum(), valid_loss=cross_entropy
    )
    with pytest.warns(UserWarning, match="the train loss must be the mean over the rows"):
        tuner(given).hypergradient()


@pytest.mark.parametrize(
    "loss", [F.cross_entropy, nn.CrossEntropyLoss(), functools.partial(F.cross_entropy, label_smoothing=0.1)]
)
def test_a_mean_is_no_sum(loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(fit(given=problem(loss=loss)).rows) == 1


def test_one_score_has_no_accuracy() -> None:
    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(scores[:, 0], target.float())

    data = (X, Y % 2)
    row = fit(given=problem(nn.Linear(4, 1), train=data, valid=data, loss=loss)).rows[-1]
    assert "valid_risk" in row
    assert "valid_accuracy" not in row


def test_a_loss_may_hold_a_module_that_nobody_froze() -> None:
    """The plain run takes no derivative, and the value of the loss asks for one."""
    teacher = nn.Linear(3, 3)
    result = tuner(problem(loss=lambda output, target: F.cross_entropy(teacher(output), target))).fit(2)
    assert len(result.plain_rows) == 2
    assert teacher.weight.grad is None


def test_a_metric_beyond_all_floats() -> None:
    with pytest.raises(pt.SettingError, match="`metrics` must return one number per name"):
        tuner(problem(metrics=lambda model, data: {"n": 10**400})).fit(1)


IN_INFERENCE_MODE: dict[str, Callable[[pt.Tuner], Any]] = {
    "fit": lambda tuner: tuner.fit(1),
    "hypergradient": lambda tuner: tuner.hypergradient(),
    "suggest": lambda tuner: tuner.suggest(),
    "fit_grid": lambda tuner: pt.fit_grid(lambda seed: tuner, {"seed": [0]}, outer_steps=1),
    "tune": lambda tuner: pt.tune(tuner.problem.model, (X, Y), loss=F.cross_entropy),
    "check_hypergradient": lambda tuner: pt.check_hypergradient(tuner),
    "step": lambda tuner: pt.CoherenceMonitor(tuner.problem.model, F.cross_entropy).step((X, Y), (X, Y)),
}


@pytest.mark.parametrize("name", IN_INFERENCE_MODE)
def test_inference_mode_has_no_gradients(name: str) -> None:
    given = tuner()
    with torch.inference_mode():
        check_refused(Case(lambda: IN_INFERENCE_MODE[name](given), G, f"`{name}` computes gradients, and inside torch"))


def test_no_grad_does_not_matter() -> None:
    with torch.no_grad():
        assert tuner().fit(1).status == "completed"


def test_an_exported_module_is_refused() -> None:
    exported = torch.export.export(nn.Linear(3, 2), (torch.randn(4, 3),)).module()
    with pytest.raises(pt.SettingError, match="pass the module that was exported"):
        pt.WeightDecay(exported)


@pytest.mark.parametrize("evidence", [None, 0.1, (0.1, None, 10, 1)])
def test_counts_need_evidence(evidence: Any) -> None:
    with pytest.raises(pt.SettingError, match="`evidence` must be an Evidence"):
        bounds.CountedHoldOut(evidence=evidence, fresh=True)
