"""How a run is listened to, what it reports, what is kept, and how it may end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt
from pactune.trees import Params, clone

COLUMNS = [
    "outer_step",
    "train_risk",
    "train_accuracy",
    "valid_risk",
    "valid_accuracy",
    "test_risk",
    "test_accuracy",
    "regularizer",
    "objective",
    "hypergradient_norm",
    "weight_norm",
    "seconds",
]


class Log(pt.Callback):
    """Remembers what it heard, and may raise at a step."""

    def __init__(self, at: int = 0, error: type[BaseException] = StopIteration) -> None:
        self.heard: list[str] = []
        self.params: list[Params] = []
        self._at, self._error = at, error

    def on_fit_begin(self, tuner: pt.Tuner, outer_steps: int) -> None:
        self.heard.append(f"begin {outer_steps}")

    def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
        self.heard.append(f"step {row['outer_step']}")
        self.params.append(clone(tuner.problem.parameters()))
        if row["outer_step"] == self._at:
            raise self._error

    def on_fit_end(self, tuner: pt.Tuner, result: pt.Result) -> None:
        self.heard.append(f"end {result.status}")


def test_weight_norm_is_that_of_the_model(make: Any) -> None:
    result = make().fit(2)
    flat = torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])
    assert result.rows[-1]["weight_norm"] == pytest.approx(float(flat.norm()), rel=1e-6)
    assert result.plain_rows[-1]["weight_norm"] != result.rows[-1]["weight_norm"]


def test_history_has_its_columns(make: Any, classes: Any) -> None:
    result = make().fit(3, test=classes(30, 3), progress=False)
    assert set(COLUMNS) <= set(result.history.columns)
    assert result.history["outer_step"].tolist() == [1, 2, 3]
    assert np.isfinite(result.history.to_numpy()).all()
    assert result.history["seconds"].is_monotonic_increasing
    assert {"train_risk", "valid_risk", "test_accuracy"} <= set(result.plain.columns)
    without = make().fit(1, progress=False).history
    assert not any(column.startswith("test") for column in without)


def test_history_is_what_the_model_does(make: Any, classes: Any) -> None:
    tuner, (x, y) = make(), classes(30, 3)
    result = tuner.fit(2, test=(x, y), progress=False)
    with torch.no_grad():
        scores = tuner.problem.model(x)
    assert result.rows[-1]["test_risk"] == pytest.approx(float(F.cross_entropy(scores, y)), rel=1e-6)
    assert result.rows[-1]["test_accuracy"] == pytest.approx(float((scores.argmax(1) == y).float().mean()))


def test_test_data_choose_nothing(make: Any, classes: Any) -> None:
    rows = [make().fit(3, test=test, progress=False, keep="best-objective") for test in (None, classes(30, 3))]
    assert rows[0].kept_step == rows[1].kept_step
    assert [row["objective"] for row in rows[0].rows] == [row["objective"] for row in rows[1].rows]


def test_callbacks_hear_everything_in_order(make: Any) -> None:
    first, second = Log(), Log()
    make().fit(2, callbacks=[first, second], progress=False)
    assert first.heard == second.heard == ["begin 2", "step 1", "step 2", "end completed"]


@pytest.mark.parametrize(("error", "status"), [(StopIteration, "completed"), (KeyboardInterrupt, "interrupted")])
def test_a_callback_may_end_the_run(error: type[BaseException], status: str, make: Any) -> None:
    log = Log(2, error)
    tuner = make()
    result = tuner.fit(5, callbacks=[log], progress=False)
    assert result.status == status
    assert len(result.history) == 2
    assert log.heard[-1] == f"end {status}"
    for name, value in tuner.problem.parameters().items():
        assert torch.equal(value, log.params[1][name])


TRIALS = 26  # calls of the losses before the first round


@pytest.mark.parametrize("calls", range(1, 90, 3))
def test_interrupt_inside_the_loss_loses_nothing(calls: int, make: Any, linear: Any) -> None:
    """Wherever Ctrl-C falls, the model holds the parameters of the last row, and a second fit goes on from there."""
    counter = [0]

    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        counter[0] += 1
        if counter[0] == calls + TRIALS:
            raise KeyboardInterrupt
        return F.cross_entropy(model(batch[0]), batch[1])

    model = linear()
    log = Log()
    tuner = make(model, train_loss=loss, valid_loss=loss, outer_lr=1.0)
    reference = make(linear(), outer_lr=1.0).fit(8, progress=False)
    result = tuner.fit(8, callbacks=[log], progress=False)
    assert result.status == "interrupted"
    assert result.kept_step == len(result.rows) == len(log.params)
    expected = [row["objective"] for row in reference.rows[: len(result.rows)]]
    assert [row["objective"] for row in result.rows] == pytest.approx(expected, rel=1e-6)
    if log.params:
        assert all(torch.equal(v, log.params[-1][n]) for n, v in tuner.problem.parameters().items())
    start = 0.05
    moved = any(bool((value != start).any()) for value in tuner.problem.hyperparameters().values())
    assert moved == (len(result.rows) > 1)
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    (after,) = tuner.fit(1, progress=False).rows
    assert after["objective"] == pytest.approx(reference.rows[after["outer_step"] - 1]["objective"], rel=1e-5)


def test_convergence(make: Any) -> None:
    loose = make().fit(50, tolerance=1e3, progress=False)
    assert (loose.status, len(loose.history)) == ("converged", 1)
    full = make().fit(3, tolerance=0.0, progress=False)
    assert (full.status, len(full.history)) == ("completed", 3)
    between = 1.0001 * float(full.history["hypergradient_norm"].iloc[1])
    stopped = make().fit(3, tolerance=between, progress=False)
    norms = full.history["hypergradient_norm"].tolist()
    assert len(stopped.history) == next(i for i, n in enumerate(norms, 1) if n < between)


def explode(model: nn.Module, after: int) -> Any:
    calls = [0]

    def loss(given: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        calls[0] += 1
        value = F.cross_entropy(given(batch[0]), batch[1])
        return value * float("nan") if calls[0] > after else value

    return loss


def test_divergence_raises_and_keeps_the_history(make: Any, linear: Any) -> None:
    model = linear()
    loss = explode(model, 60)
    log = Log()
    tuner = make(model, train_loss=loss, valid_loss=loss)
    with pytest.raises(pt.DivergenceError, match="not finite") as caught:
        tuner.fit(50, callbacks=[log], progress=False)
    result = caught.value.result
    assert result.status == "diverged"
    assert 0 < len(result.history) < 50
    assert log.heard[-1] == "end diverged"
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert all(bool(p.isfinite().all()) for p in tuner.problem.hyper.parameters())


def test_divergence_is_told_from_an_indefinite_hessian(make: Any, linear: Any) -> None:
    model = linear()
    loss = explode(model, 60)
    solver = pt.Implicit(pt.ConjugateGradient(5, damping=1.0))
    tuner = make(model, train_loss=loss, valid_loss=loss, hypergradient=solver)
    with pytest.raises(pt.DivergenceError, match="not finite"):
        tuner.fit(50, progress=False)


def test_stop_iteration_inside_the_loss_is_an_error(make: Any, linear: Any) -> None:
    calls = iter(range(60))

    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        next(calls)
        return F.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(RuntimeError, match="StopIteration"):
        make(linear(), train_loss=loss, valid_loss=loss).fit(50, progress=False)


def test_divergence_can_be_returned(make: Any) -> None:
    result = make(inner=pt.SGD(1e30)).fit(5, on_divergence="return", progress=False)
    assert result.status == "diverged"
    assert result.kept_step == len(result.rows)


@pytest.mark.parametrize("keep", ["last", "best-objective"])
def test_what_is_kept(keep: Any, make: Any) -> None:
    log = Log()
    tuner = make(restart=True)  # every step starts anew, so the objective goes up and down
    result = tuner.fit(8, keep=keep, callbacks=[log], progress=False)
    objectives = [row["objective"] for row in result.rows]
    best = objectives.index(min(objectives)) + 1
    assert best < 8, "the test needs a run whose best step is not the last"
    assert result.kept_step == (best if keep == "best-objective" else 8)
    assert result.kept["outer_step"] == result.kept_step
    for name, value in tuner.problem.parameters().items():
        assert torch.equal(value, log.params[result.kept_step - 1][name])


def test_plot_has_ink(make: Any, classes: Any) -> None:
    figure = make().fit(3, test=classes(30, 3), progress=False).plot()
    assert isinstance(figure, Figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3]
    assert (pixels < 200).any(axis=-1).mean() > 0.01
    assert [axis.get_title() for axis in figure.axes] == ["accuracy", "risk", "objective and its parts", "gradients"]
    assert all(len(axis.lines) > 1 for axis in figure.axes)
    assert all(axis.get_xlabel() == "outer step" and axis.get_ylabel() for axis in figure.axes)
    assert all(tick == int(tick) for axis in figure.axes for tick in axis.get_xticks())
    labels = [label.get_text() for label in figure.axes[0].get_legend().get_texts()]
    assert labels == [
        *("training, tuned", "validation, tuned", "validation, plain", "test, tuned", "test, plain", "kept: step 3")
    ]


def test_plot_of_a_run_that_never_finished_a_step(make: Any) -> None:
    result = make(inner=pt.SGD(1e30)).fit(2, on_divergence="return", progress=False)
    assert result.rows == []
    figure = result.plot()
    FigureCanvasAgg(figure).draw()
    assert [len(axis.lines) for axis in figure.axes] == [0]


def test_progress_lines_are_throttled(make: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    make().fit(3, progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("pactune.results.callbacks.LINE_SECONDS", 0.0)
    make().fit(3, progress=True)
    assert capsys.readouterr().err.count("outer step") == 3


def test_lambda_that_the_user_changes_between_two_fits_is_respected() -> None:
    model = nn.Linear(3, 2)
    hyper = pt.WeightDecay(model, per="global")
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=1e-3)
    tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.1), inner_steps=3, outer=outer, objective=pt.PACBayes(zeta=0.1))
    tuner.fit(2)
    with torch.no_grad():
        hyper.values["all"].fill_(9.0)
    tuner.fit(1)
    assert hyper.values["all"].item() == pytest.approx(9.0, abs=0.1)  # one outer step of 1e-3 away


def test_initial_parameters_from_hyperparameters_need_no_reset() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.T

    model = Bare()
    hyper = pt.Initialization(model)
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    problem = pt.Problem(model, hyper, train=(x[:6], y[:6]), valid=(x[6:], y[6:]), loss=F.cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    exact = pt.Truncated(3)
    tuner = pt.Tuner(
        problem, inner=pt.SGD(lr=0.1), inner_steps=3, outer=outer, objective=pt.PACBayes(zeta=0.1), restart=True,
        hypergradient=exact, path_hypergradient=exact,
    )  # fmt: skip
    assert tuner.fit(2).status == "completed"
