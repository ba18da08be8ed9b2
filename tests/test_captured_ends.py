"""The ends of rounds in CUDA graphs, emulated on a CPU: they give the eager results and are captured once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import pactune as pt
from pactune.engines import Captured, end_graph, round_end
from pactune.engines.replayed_end import ends_agree, probes_agree
from pactune.hypergradient.records import InnerState
from pactune.rounds.chain import Carry, ChainEnd
from tests import test_engines
from tests.cuda_graphs_on_cpu import emulate, recorded_end

pytestmark = pytest.mark.slow


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Emulate CUDA graphs; return a list with the number of chains of every captured end."""
    emulate(monkeypatch)
    counts: list[int] = []
    capture = end_graph.capture_side_by_side

    def counted(parts: Any, *settings: Any) -> Any:
        counts.append(len(parts))
        return capture(parts, *settings)

    monkeypatch.setattr(end_graph, "capture_side_by_side", counted)
    return counts


def make_tuner(engine: Any, tau: Any = (1.0,), *, batch_size: int | None = None, seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    middle = nn.BatchNorm1d(4) if settings.pop("norm", True) else nn.Identity()
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Tanh(), nn.Linear(4, 2)).double()
    hyper, (x, y) = settings.pop("hyper", pt.WeightDecay)(model), torch.randn(2, 24, 3, dtype=torch.float64)
    data = {"train": (x[:12], y[:12, :2]), "valid": (x[12:], y[12:, :2])}
    if folds := settings.pop("folds", None):
        data = {"data": (x, y[:, :2]), "folds": folds}
    problem = pt.Problem(
        model,
        hyper.double(),
        train_loss=lambda m, b, h: mse_loss(m(b[0]) / float(tau[0]), b[1]),
        valid_loss=lambda m, b, h: mse_loss(m(b[0]), b[1]),
        batch_size=batch_size,
        **data,
    )
    settings = {"inner": pt.Adam(0.01), "inner_steps": 1, "objective": pt.PACBayes(0.01), **settings}
    return pt.Tuner(problem, outer=torch.optim.SGD(hyper.parameters(), lr=0.1), engine=engine, **settings)


def history(tuner: Any, callbacks: Any = ()) -> Any:
    return tuner.fit(4, progress=False, callbacks=callbacks).history.drop(columns="seconds")


def check_equal(**settings: Any) -> Captured:
    """Compare a run of the captured engine with one of the eager engine; return the captured engine."""
    engine = Captured(steps=4)
    eager, found = (history(make_tuner(one, **settings)) for one in ("eager", engine))
    np.testing.assert_allclose(found.values, eager.values, rtol=1e-9, atol=1e-12)
    return engine


ROUNDS: dict[str, dict[str, Any]] = {
    "one step": {},
    "one step, validation risk": {"objective": pt.ValidationRisk()},
    "one step, drift": {"objective": pt.HyperDrift(0.01)},
    "one step, mini-batches": {"batch_size": 4},
    "one step, restart": {"restart": True},
    "two steps": {"inner_steps": 2},
    "eleven steps": {"inner_steps": 11},
    "eleven steps, validation risk": {"inner_steps": 11, "objective": pt.ValidationRisk()},
    "eleven steps, drift": {"inner_steps": 11, "objective": pt.HyperDrift(0.01)},
    "eleven steps, mini-batches": {"inner_steps": 11, "batch_size": 4},
    "three last steps": {"inner_steps": 11, "hypergradient": pt.Truncated(3)},
    "three last steps in one graph": {
        "inner_steps": 11,
        "hypergradient": pt.Truncated(3),
        "objective": pt.ValidationRisk(),
        "batch_size": 4,
    },
    "learning rates": {"inner_steps": 3, "hyper": pt.LearningRates, "inner": pt.SGD(0.05, momentum=0.9)},
    "path through a step": {"inner_steps": 3, "path_hypergradient": pt.Truncated(1)},
    "noise": {"inner": pt.Langevin(0.05, inverse_temperature=100.0)},
    "schedule": {"inner": pt.SGD(lambda t: 0.1 / (1 + t)), "inner_steps": 3},
}


@pytest.mark.parametrize("case", ROUNDS)
def test_captured_ends_are_the_eager_ends(case: str, captures: list[int], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pactune.engines"):
        engine = check_equal(**ROUNDS[case])
    assert captures == [1]  # one graph serves all rounds
    assert not caplog.messages
    assert not engine.unrecordable


@pytest.mark.parametrize("faster", ["eager", "captured"])
def test_a_slower_graph_of_an_end_is_measured_once_and_dropped(
    faster: str, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def seconds(*runs: Any) -> list[float]:
        """Run the eager end and its graph, and let the faster one take half the time."""
        asked.extend(run() for run in runs)
        return [1.0, 2.0] if faster == "eager" else [2.0, 1.0]

    replays: list[object] = []
    replay = end_graph.EndGraph.replay
    monkeypatch.setattr(end_graph, "least_seconds", seconds)
    monkeypatch.setattr(end_graph.EndGraph, "replay", lambda self, ends: replays.append(ends) or replay(self, ends))
    eager, found = (history(make_tuner(one)) for one in ("eager", Captured(steps=4, only_if_faster=True)))
    np.testing.assert_allclose(found.values, eager.values, rtol=1e-9, atol=1e-12)
    assert captures == [1]
    assert len(asked) == 2
    assert len(replays) == (2 if faster == "eager" else 2 + 4)  # the check, the measurement, and every round


def test_ends_with_and_without_a_measured_step_are_two_graphs(captures: list[int]) -> None:
    check_equal(inner_steps=11, path_stride=3)
    assert captures == [1, 1]


@pytest.mark.filterwarnings("ignore::UserWarning")  # these rounds are too short to converge
@pytest.mark.parametrize("steps", [1, 5])
def test_the_linear_solve_at_the_end_is_captured(steps: int, captures: list[int]) -> None:
    estimator = pt.Implicit(pt.Neumann(2, alpha=0.1))
    engine = check_equal(inner_steps=steps, hypergradient=estimator, objective=pt.ValidationRisk(), inner=pt.SGD(0.1))
    assert captures == [1]
    assert not engine.unrecordable


@pytest.mark.parametrize("norm", [True, False], ids=["side by side", "stacked"])  # buffers are not stacked
@pytest.mark.parametrize("steps", [1, 11])
@pytest.mark.parametrize("settings", [{"chains": 3, "restart": True}, {"folds": 3}], ids=["chains", "folds"])
def test_the_ends_of_several_chains_are_one_graph(
    steps: int, settings: dict[str, Any], norm: bool, captures: list[int]
) -> None:
    check_equal(inner_steps=steps, norm=norm, **settings)
    assert captures == [3 if norm else 1]


@pytest.mark.parametrize(("problem", "steps"), test_engines.ENDS)
def test_the_ends_of_many_problems_are_the_eager_ends(
    problem: str, steps: int, captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_engines, "T", steps)
    eager, found = test_engines.histories(
        *(test_engines.tuner(engine, **test_engines.PROBLEMS[problem]) for engine in ("eager", Captured(steps=4)))
    )
    torch.testing.assert_close(torch.tensor(found.values), torch.tensor(eager.values), rtol=1e-9, atol=1e-12)
    assert captures or problem == "uneven mini-batches"


@pytest.mark.parametrize("steps", [1, 11])
@pytest.mark.parametrize("widths", [[4, 4, 4], [4, 5, 6]], ids=["stacked", "side by side"])
def test_the_ends_of_a_grid_are_one_graph(steps: int, widths: list[int], captures: list[int]) -> None:
    def build(run: int) -> pt.Tuner:
        torch.manual_seed(run)
        model = nn.Sequential(nn.Linear(3, widths[run]), nn.Tanh(), nn.Linear(widths[run], 3)).double()
        x, y = torch.randn(20, 3, dtype=torch.float64), torch.randint(0, 3, (20,))
        hyper = pt.WeightDecay(model, init=0.1)
        problem = pt.Problem(model, hyper, train=(x[:10], y[:10]), valid=(x[10:], y[10:]), loss=cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        return pt.Tuner(
            problem, inner=pt.Adam(1e-2), inner_steps=steps, outer=outer, objective=pt.PACBayes(0.1), seed=run
        )

    found, wanted = (
        pt.fit_grid(build, {"run": [0, 1, 2]}, outer_steps=3, engine=engine, progress=False).history
        for engine in (Captured(steps=4), "eager")
    )
    assert captures == [1 if len(set(widths)) == 1 else 3]
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), wanted.drop(columns="seconds"), rtol=1e-9)


class Anneal(pt.Callback):
    def __init__(self, tau: Any, factor: float) -> None:
        self._tau, self._factor = tau, factor

    def on_hyper_step(self, tuner: pt.Tuner) -> None:
        self._tau[0] *= self._factor


class Add(pt.Callback):
    """Adds 1 to an array after the second move of λ."""

    def __init__(self, value: Any) -> None:
        self._value, self._moves = value, 0

    def on_hyper_step(self, tuner: pt.Tuner) -> None:
        self._moves += 1
        self._value[0] += self._moves == 2


@pytest.mark.parametrize("objective", [pt.PACBayes(0.01), pt.ValidationRisk()], ids=["path", "risk"])
def test_a_change_that_no_snapshot_sees_is_noticed(
    objective: Any, captures: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for engine in ("eager", Captured()):
        tau = np.ones(1)
        found.append(history(make_tuner(engine, tau, objective=objective), [Anneal(tau, 0.97)]))
    np.testing.assert_allclose(found[1].values, found[0].values, rtol=1e-9, atol=1e-12)
    assert any("one by one from now on" in message for message in caplog.messages)
    assert captures == [1]


@pytest.mark.parametrize("engine", [Captured(), "traced"], ids=["captured", "traced"])
def test_a_part_that_is_detached_later_is_noticed(engine: Any, captures: list[int]) -> None:
    """The values of the risks stay as they are, so only their graphs tell."""

    def tuner(engine: Any, detached: Any) -> pt.Tuner:
        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            bounded = output.tanh()
            return mse_loss(output, target) + mse_loss(output, bounded.detach() if detached[0] else bounded)

        torch.manual_seed(0)
        model, (x, y) = nn.Linear(3, 2).double(), torch.randn(2, 12, 3, dtype=torch.float64)
        hyper = pt.WeightDecay(model)
        problem = pt.Problem(model, hyper, train=(x[:6], y[:6, :2]), valid=(x[6:], y[6:, :2]), loss=loss)
        settings: dict[str, Any] = {"objective": pt.PACBayes(0.1), "hypergradient": pt.Truncated(2)}
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=2, outer=outer, engine=engine, **settings)

    found = []
    for one in ("eager", engine):
        detached = np.zeros(1)  # an array, which snapshots do not look into
        found.append(history(tuner(one, detached), [Add(detached)]))
    np.testing.assert_allclose(found[1].values, found[0].values, rtol=1e-9, atol=1e-12)
    without = history(tuner("eager", np.zeros(1)))
    assert np.abs(without.values - found[0].values).max() > 1e-3


@pytest.mark.parametrize("steps", [1, 11])
def test_ends_whose_capture_fails_run_eagerly(
    steps: int, captures: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fail(end: Any) -> Any:
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(end_graph, "end_program", fail)
    with caplog.at_level(logging.INFO, "pactune.engines"):
        engine = check_equal(inner_steps=steps)
    assert [message for message in caplog.messages if "capturing them failed" in message] == caplog.messages
    assert len(tries) == len(caplog.messages) == 1
    assert not engine.unrecordable


def test_a_wrong_graph_is_never_trusted(
    captures: list[int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(end: Any) -> Any:
        run = recorded_end(end)
        return lambda *tensors: [1.01 * value if value.is_floating_point() else value for value in run(*tensors)]

    monkeypatch.setattr(end_graph, "end_program", wrong)
    check_equal()
    assert captures == [1]
    assert sum("does not give" in message for message in caplog.messages) == 1


def test_mini_batches_of_many_sizes_are_not_captured_again_and_again(
    captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_graph, "MOST_GRAPHS", 1)
    check_equal(batch_size=7)  # 12 rows give batches of 7 and 5
    assert captures == [1]


def test_a_smaller_last_mini_batch_has_a_graph_of_its_own(captures: list[int]) -> None:
    check_equal(batch_size=7)
    assert 2 <= len(captures) <= end_graph.MOST_GRAPHS


def test_long_ends_and_the_risk_alone_run_eagerly(captures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pactune.engines.captured.FEW_STEPS", 2)
    check_equal(inner_steps=11, hypergradient=pt.Truncated(3))
    check_equal(inner_steps=11, hypergradient=pt.Truncated(0))
    assert not captures


def test_results_stay_when_the_graph_is_replayed(captures: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[list[Tensor], list[Tensor]]] = []
    replay = end_graph.EndGraph.replay

    def noted(self: Any, ends: Any) -> Any:
        found = replay(self, ends)
        tensors = round_end.flatten(found)[0]
        kept.append((tensors, [tensor.clone() for tensor in tensors]))
        return found

    monkeypatch.setattr(end_graph.EndGraph, "replay", noted)
    check_equal(inner=pt.SGD(0.05))
    assert len(kept) > 2
    for tensors, copies in kept:
        assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    assert not torch.equal(kept[0][1][0], kept[-1][1][0])  # the rounds differ


def chain_end(value: float, gradient: float, dtype: torch.dtype) -> ChainEnd:
    one = torch.ones((), dtype=dtype)
    state = InnerState({"w": value * torch.ones(3, dtype=dtype)}, {}, {}, 0)
    return ChainEnd(state, one, one, {"λ": gradient * one}, {})


@pytest.mark.parametrize(
    ("dtype", "gap", "noise", "agree"),
    [
        (torch.float32, 5e-3, None, True),
        (torch.float32, 5e-2, None, False),
        (torch.float32, 5e-2, 1e-2, True),  # two eager ends are 1 % apart
        (torch.float64, 5e-7, None, True),
        (torch.float64, 5e-6, None, False),
    ],
)
def test_gradients_are_compared_by_their_norms(
    dtype: torch.dtype, gap: float, noise: float | None, agree: bool
) -> None:
    start = Carry(InnerState({"w": torch.zeros(3, dtype=dtype)}, {}, {}, 0), torch.zeros((), dtype=dtype), {}, {})
    found, wanted = chain_end(1.0, 1 + gap, dtype), chain_end(1.0, 1.0, dtype)
    again = None if noise is None else chain_end(1.0, 1 + noise, dtype)
    assert ends_agree(found, wanted, start, again=again) == agree
    assert not ends_agree(chain_end(1.1, 1.0, dtype), wanted, start, again=again)


@pytest.mark.parametrize(
    ("found", "wanted", "agree"),
    [
        ([1.0, 2.0, 1e-6], [1.0, 2.0, 1e-6], True),
        ([1.0005, 2.0, 1e-6], [1.0, 2.0, 1e-6], True),
        ([1.01, 2.0, 1e-6], [1.0, 2.0, 1e-6], False),
        ([5e-7, 2.0, 1e-6], [0.0, 2.0, 1e-6], True),  # a risk of 0 but for rounding
        ([1.0, 2.0, 1.1e-6], [1.0, 2.0, 1e-6], False),  # a small penalty
        ([np.nan, np.inf, 1.0], [np.nan, np.inf, 1.0], True),  # training diverged
        ([np.nan, 2.0, 1.0], [1.0, 2.0, 1.0], False),
        ([np.inf, 2.0, 1.0], [1.0, 2.0, 1.0], False),
    ],
)
def test_probes_are_compared_by_their_sizes(found: list[float], wanted: list[float], agree: bool) -> None:
    values = [[torch.tensor(value) for value in each] for each in (found, wanted)]
    assert probes_agree([values[0], values[1]], [values[1], values[1]]) == [agree, True]


def test_the_graphs_of_a_round_share_the_tensors_of_the_chain(captures: list[int]) -> None:
    engine = check_equal(inner_steps=13)
    check, plain_check = engine._checks  # of a tuned and of a plain round
    graphs, (end,) = [check, *check.longer], engine._ends._graphs
    assert len(graphs) == 3  # of the step that is checked, of some steps, and of those that are left over
    assert len({id(graph.carries[0][0]) for graph in graphs}) == 1
    assert plain_check.carries[0][0] is not check.carries[0][0]  # a plain round has no sums, so its carry is another
    carry, _, hyper = end._inputs[0]
    assert carry.tensors is check.carries[0]
    assert hyper is check._hypers[0]
