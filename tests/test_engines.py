"""Every engine gives the eager result: bit for bit where the kernels are the same, else within a stated tolerance."""

from __future__ import annotations

import copy
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Sampler, TensorDataset

import pactune as pt
from pactune.engines import Captured, Compiled, Eager, Traced, round_end
from pactune.engines import traced as traced_engine
from pactune.hypergradient.gradients import second_order_kernels
from pactune.rounds.engine import Engine

T = 23  # not a multiple of the steps of any recording
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Linear(16, 3)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 4, 3, bias=False),  # a bias would have a gradient of 0 but for rounding, which Adam makes large
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def sample(device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(40, 16, generator=draw, dtype=torch.float64).to(device, dtype)
    return x, torch.randint(0, 3, (40,), generator=draw).to(device)


def tuner(
    engine: str | Engine,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
    model: str = "linear",
    hyper: Callable[[nn.Module], nn.Module] = pt.WeightDecay,
    batch_size: int | None = None,
    inner: Any = None,
    **settings: Any,
) -> pt.Tuner:
    net = network(model).to(device, dtype)
    lambdas = hyper(net).to(device, dtype)
    x, y = sample(device, dtype)
    problem = pt.Problem(
        net, lambdas, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy, batch_size=batch_size
    )
    settings = {"objective": pt.PACBayes(zeta=0.1), **settings}
    return pt.Tuner(
        problem,
        inner=inner or pt.Adam(lr=1e-2),
        inner_steps=T,
        outer=torch.optim.RMSprop(lambdas.parameters(), lr=1e-2),
        engine=engine,
        **settings,
    )


def correlated(net: nn.Module) -> nn.Module:
    return pt.CorrelatedInputs(net, sample("cpu", torch.float64)[0].cumsum(1), init=0.2)


PROBLEMS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mini-batches": {"batch_size": 5, "model": "mlp"},
    "uneven mini-batches": {"batch_size": 8, "model": "mlp"},
    "BatchNorm": {"model": "conv"},
    "per tensor": {"hyper": lambda net: pt.WeightDecay(net, per="tensor", init=0.01)},
    "positive": {"hyper": lambda net: pt.WeightDecay(net, per="element", positive=True)},
    "correlated inputs": {"hyper": correlated, "model": "mlp"},
    "learning rates": {"hyper": pt.LearningRates, "model": "mlp"},
    "example weights": {"hyper": lambda net: pt.ExampleWeights(20), "batch_size": 5},
    "noise": {"inner": pt.Langevin(lr=0.1, inverse_temperature=100.0)},
    "noise, another rate": {"inner": pt.Langevin(lr=0.05, inverse_temperature=100.0)},
    "schedule": {"inner": pt.SGD(lr=lambda t: 0.1 / (1 + t), momentum=0.9)},
    "stride": {"path_stride": 3},
    "clipped": {"objective": pt.PACBayes(zeta=0.1, clip_train=0.5, clip_valid=0.5)},
    "clipped step": {"inner": pt.SGD(lr=0.1, momentum=0.9, clip=0.5)},
    "drift": {"objective": pt.HyperDrift(zeta=0.1, default=0.1)},
    "drift, stride": {"objective": pt.HyperDrift(zeta=0.1, default=0.1), "path_stride": 3, "model": "mlp"},
    "flatness": {"objective": pt.Flatness(zeta=0.1)},
    "validation risk": {"objective": pt.ValidationRisk()},
    "window": {"hypergradient": pt.Windowed(10)},
    "restart": {"restart": True},
    "online": {"online": True},
    "online, positive": {"online": True, "hyper": lambda net: pt.WeightDecay(net, positive=True)},
    "online, BatchNorm": {"online": True, "model": "conv", "path_stride": 2},
    "path through a step": {"path_hypergradient": pt.Truncated(1)},
    "proximal steps": {"hyper": lambda net: pt.L1(net, init=0.01), "inner": pt.Adam(lr=0.05)},
    "proximal steps, online": {"hyper": lambda net: pt.L1(net), "inner": pt.Adam(lr=0.05), "online": True},
}


def histories(one: pt.Tuner, other: pt.Tuner, outer_steps: int = 3) -> tuple[Any, Any]:
    return tuple(each.fit(outer_steps).history.drop(columns="seconds") for each in (one, other))  # type: ignore[return-value]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_traced_steps_are_the_eager_steps_bit_for_bit(problem: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pactune.engines"):
        eager, traced = histories(
            tuner("eager", dtype=torch.float32, **PROBLEMS[problem]),
            tuner(Traced(steps=2), dtype=torch.float32, **PROBLEMS[problem]),
        )
    assert eager.equals(traced)
    assert not caplog.messages  # the steps were recorded, and not run one by one after all


@pytest.mark.slow
@COMPILER
@pytest.mark.parametrize("problem", ["linear"])
def test_compiled_steps_agree_to_rounding(problem: str) -> None:
    eager, compiled = histories(tuner("eager", **PROBLEMS[problem]), tuner(Compiled(steps=2), **PROBLEMS[problem]))
    torch.testing.assert_close(torch.tensor(compiled.values), torch.tensor(eager.values), rtol=1e-9, atol=1e-12)


@CUDA
@pytest.mark.parametrize("problem", PROBLEMS)
def test_captured_steps_agree_to_rounding(problem: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pactune.engines"):
        eager, captured = histories(
            tuner("eager", device="cuda", **PROBLEMS[problem]),
            tuner(Captured(steps=4), device="cuda", **PROBLEMS[problem]),
        )
    torch.testing.assert_close(torch.tensor(captured.values), torch.tensor(eager.values), rtol=1e-9, atol=1e-12)
    uneven = problem == "uneven mini-batches"
    assert bool(caplog.messages) == uneven, caplog.messages


SINGLE = "linear", "mini-batches", "uneven mini-batches", "BatchNorm", "example weights", "learning rates", "noise"
ENDS = [
    *((problem, 1) for problem in (*SINGLE, "flatness", "validation risk", "restart", "path through a step")),
    *((problem, 11) for problem in PROBLEMS if "online" not in problem),
]


@CUDA
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize(("problem", "steps"), ENDS)
def test_captured_ends_agree_to_rounding(
    problem: str, steps: int, chains: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "T", steps)
    engine, several = Captured(steps=4), {"chains": chains, "restart": True} if chains > 1 else {}
    settings = {**PROBLEMS[problem], **several}
    with caplog.at_level(logging.INFO, "pactune.engines"):
        eager, captured = histories(
            tuner("eager", device="cuda", **settings), tuner(engine, device="cuda", **settings), outer_steps=4
        )
    torch.testing.assert_close(torch.tensor(captured.values), torch.tensor(eager.values), rtol=1e-9, atol=1e-12)
    assert not any("ends of rounds" in message for message in caplog.messages), caplog.messages
    assert not engine.unrecordable
    assert engine._ends._graphs or problem == "uneven mini-batches"


@CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 11])
def test_the_ends_of_runs_side_by_side_are_one_captured_graph(
    steps: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "T", steps)
    settings: dict[str, Any] = {"device": "cuda", "dtype": dtype, "inner": pt.SGD(0.1), "batch_size": 5}

    def build(run: int) -> pt.Tuner:
        return tuner("eager", model=("linear", "mlp", "conv")[run], seed=run, **settings)

    engine = Captured(steps=4)
    found, wanted = (
        pt.fit_grid(build, {"run": [0, 1, 2]}, outer_steps=4, engine=one, progress=False).history
        for one in (engine, "eager")
    )
    (graph,) = engine._ends._graphs
    assert len(graph.functions) == 3
    rtol = 1e-9 if dtype == torch.float64 else 1e-3  # the runs are short, so that rounding stays small
    columns = [name for name in found.columns if found[name].dtype == np.float64 and name != "seconds"]
    np.testing.assert_allclose(found[columns], wanted[columns], rtol=rtol, atol=1e-6 if rtol > 1e-9 else 1e-12)


@CUDA
@pytest.mark.parametrize(
    "engine",
    [
        Captured(steps=4, channels_last=True),
        Captured(steps=4, two_streams=False),
        Captured(fuse="updates", steps=2),
        Captured(fuse="steps", steps=2),
    ],
)
def test_options_of_the_captured_engine_keep_the_numbers(engine: Engine) -> None:
    eager, captured = histories(tuner("eager", device="cuda", model="conv"), tuner(engine, device="cuda", model="conv"))
    torch.testing.assert_close(torch.tensor(captured.values), torch.tensor(eager.values), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_chains_at_once_are_chains_one_by_one(problem: str) -> None:
    setting = {"restart": True, "chains": 3, **PROBLEMS[problem]}
    eager, stacked = histories(tuner("eager", **setting), tuner(Traced(steps=2), **setting), outer_steps=2)
    torch.testing.assert_close(torch.tensor(stacked.values), torch.tensor(eager.values), rtol=1e-9, atol=1e-12)


def test_recording_is_used_and_not_the_fallback(caplog: pytest.LogCaptureFixture) -> None:
    engine = Traced(steps=2)
    with caplog.at_level(logging.INFO, "pactune.engines"):
        tuner(engine).fit(2)
    assert not caplog.messages
    assert engine._recordings
    assert all(one.program is not None for checked in engine._recordings for one in (checked, *checked.longer))


class Chooser(nn.Module):
    """A model whose code looks at its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.map(x)
        return out if float(out.detach().sum()) > 0 else 2 * out


def with_model(net: nn.Module, engine: str, inner: Any = pt.SGD(0.1)) -> pt.Tuner:  # noqa: B008
    hyper = pt.WeightDecay(net)
    x, y = sample("cpu", torch.float64)
    problem = pt.Problem(net, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner=inner, inner_steps=T, outer=outer, objective=pt.PACBayes("theory"), engine=engine)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Chooser, "recording them failed"),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 3)), "random numbers"),
    ],
    ids=["looks at its numbers", "dropout"],
)
def test_what_cannot_be_recorded_is_run_step_by_step_with_its_reason(
    make: Callable[[], nn.Module], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    net = make().double()
    with caplog.at_level(logging.INFO, "pactune.engines"):
        eager, traced = histories(with_model(copy.deepcopy(net), "eager"), with_model(net, "traced"))
    assert eager.equals(traced)
    assert any(reason in message for message in caplog.messages)


def test_a_recording_that_fails_leaves_the_start_of_the_round_alone() -> None:
    """Plain training starts each round where the tuned run shares its state at first."""
    torch.manual_seed(0)
    net = Chooser().double()
    eager, traced = (with_model(copy.deepcopy(net), engine, pt.Adam(1e-2)).fit(3) for engine in ("eager", "traced"))
    assert eager.plain.equals(traced.plain)


class Backwards(Sampler[int]):
    """A sampler of the user's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(19, -1, -1))

    def __len__(self) -> int:
        return 20


@pytest.mark.parametrize("chains", [1, 2])
def test_data_that_can_only_be_read_in_order_are_read_once(chains: int, caplog: pytest.LogCaptureFixture) -> None:
    def build(engine: str) -> pt.Tuner:
        torch.manual_seed(0)
        net = nn.Linear(16, 3).double()
        hyper = pt.WeightDecay(net)
        x, y = sample("cpu", torch.float64)
        train = DataLoader(TensorDataset(x[:20], y[:20]), batch_size=5, sampler=Backwards())
        problem = pt.Problem(net, hyper, train=train, valid=(x[20:], y[20:]), loss=cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        return pt.Tuner(
            problem,
            inner=pt.SGD(0.1),
            inner_steps=T,
            outer=outer,
            objective=pt.PACBayes("theory"),
            engine=engine,
            chains=chains,
        )

    with caplog.at_level(logging.INFO, "pactune.engines"):
        eager, traced = histories(build("eager"), build("traced"))
    assert eager.equals(traced)
    assert any("in order" in message for message in caplog.messages)


def test_auto_records_nothing_in_a_short_run() -> None:
    chosen = tuner("auto")
    chosen.fit(2)
    engine = chosen.outer_run.runner.engine
    assert isinstance(engine, Traced)
    assert not engine._recordings


def test_auto_leaves_a_large_model_eager() -> None:
    net = nn.Linear(1000, 300)
    hyper = pt.WeightDecay(net, per="global")
    x, y = torch.randn(4, 1000), torch.zeros(4, dtype=torch.long)
    problem = pt.Problem(net, hyper, train=(x, y), valid=(x, y), loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    assert isinstance(
        pt.Tuner(
            problem, inner=pt.SGD(0.1), inner_steps=2, outer=outer, objective=pt.PACBayes("theory")
        ).outer_run.runner.engine,
        Eager,
    )


@pytest.mark.parametrize("engine", ["fast", 3, None])
def test_an_unknown_engine_is_named(engine: Any) -> None:
    with pytest.raises(pt.SettingError, match="`engine` must be"):
        tuner(engine)


def annealed(engine: str | Engine, what: str, device: str = "cpu") -> tuple[pt.Tuner, pt.Callback]:
    """Return a tuner and a listener that changes after every outer step what its steps are made of."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 6), nn.LeakyReLU(0.01), nn.Linear(6, 3)).double().to(device)
    hyper, smoothing, module = pt.WeightDecay(model), [0.0], nn.CrossEntropyLoss()
    losses: dict[str, Any] = {
        "loss module": module,
        "closure": lambda prediction, target: cross_entropy(prediction, target, label_smoothing=smoothing[0]),
        "model": cross_entropy,
    }
    x, y = sample(device, torch.float64)
    problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=losses[what])

    class Anneal(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
            smoothing[0] += 0.1
            if what == "loss module":
                module.label_smoothing += 0.1
            elif what == "model":
                model[1].negative_slope *= 3

    outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
    return pt.Tuner(
        problem, inner=pt.SGD(0.1), inner_steps=T, outer=outer, objective=pt.PACBayes("theory"), engine=engine
    ), Anneal()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["loss module", "closure", "model"])
@pytest.mark.parametrize("kind", ["traced", pytest.param("captured", marks=CUDA)])
def test_what_changes_between_rounds_is_noticed(what: str, kind: str) -> None:
    device, engine = ("cpu", Traced(steps=2)) if kind == "traced" else ("cuda", Captured(steps=2))
    pairs = [annealed(one, what, device) for one in ("eager", engine)]
    eager, other = (
        tuner.fit(4, callbacks=[listener], progress=False).history.drop(columns="seconds") for tuner, listener in pairs
    )
    torch.testing.assert_close(torch.tensor(other.values), torch.tensor(eager.values), rtol=1e-9, atol=1e-12)
    still = annealed("eager", what, device)[0].fit(4, progress=False).history
    assert not np.allclose(still["objective"], eager["objective"], rtol=1e-3)  # the change matters


class Counting(nn.Linear):
    """A model that counts its forwards."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.slow
def test_a_model_that_never_stays_the_same_is_run_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    def made(engine: str | Engine) -> pt.Tuner:
        torch.manual_seed(0)
        model = Counting(16, 3).double()
        hyper, (x, y) = pt.WeightDecay(model), sample("cpu", torch.float64)
        problem = pt.Problem(model, hyper, train=(x[:20], y[:20]), valid=(x[20:], y[20:]), loss=cross_entropy)
        outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
        return pt.Tuner(
            problem, inner=pt.SGD(0.1), inner_steps=T, outer=outer, objective=pt.PACBayes("theory"), engine=engine
        )

    with caplog.at_level(logging.INFO, "pactune.engines"):
        eager, traced = histories(made("eager"), made(Traced(steps=2)), outer_steps=6)
    assert eager.equals(traced)
    assert sum("one by one from now on" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("recording_wins", [True, False])
def test_a_recorded_round_is_used_only_if_it_is_faster(recording_wins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [2.0, 1.0] if recording_wins else [1.0, 2.0]  # of the round, then of its recording
    monkeypatch.setattr(traced_engine, "least_seconds", lambda *runs: times)
    monkeypatch.setattr(sys.modules[__name__], "T", 3)
    settings = {"objective": pt.ValidationRisk(), "hypergradient": pt.Windowed(3), "restart": True}
    one, two = tuner("eager", **settings), tuner(Traced(only_if_faster=True), **settings)
    one.hypergradient(), two.hypergradient()
    gradients = [[p.grad for p in each.problem.hyper.parameters()] for each in (one, two)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    engine = two.outer_run.runner.engine
    assert isinstance(engine, Traced)
    assert (bool(engine._recordings), bool(engine._slower)) == (recording_wins, not recording_wins)


@pytest.mark.parametrize("numbers", [2**22, 10])
def test_a_long_round_is_recorded_after_many_rounds(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_end, "MANY_ROUNDS", 2)
    monkeypatch.setattr(round_end, "MOST_NUMBERS", numbers)
    settings = {"objective": pt.ValidationRisk(), "hypergradient": pt.Windowed(T), "restart": True}
    one, two = tuner("eager", **settings), tuner(Traced(), **settings)
    engine = two.outer_run.runner.engine
    assert isinstance(engine, Traced)
    for step in range(4):
        assert one.hypergradient() == two.hypergradient()
        for a, b in zip(one.problem.hyper.parameters(), two.problem.hyper.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        assert bool(engine._recordings) == (step >= 2 and numbers > 10)
        one.outer.step(), two.outer.step()


STATIONARY: dict[str, dict[str, Any]] = {
    "Neumann": {"hypergradient": pt.Implicit(pt.Neumann(4, alpha=0.1))},
    "Neumann, schedule": {"hypergradient": pt.Implicit(pt.Neumann(4)), "inner": pt.SGD(lambda t: 0.1 / (1 + t))},
    "Neumann, fresh rows": {"hypergradient": pt.Implicit(pt.Neumann(4, alpha=0.1), batches=2), "batch_size": 5},
    "Neumann, warm start": {"hypergradient": pt.Implicit(pt.Neumann(2, alpha=0.1), warm_start=True)},
    "running, BatchNorm": {"hypergradient": pt.RunningImplicit(), "model": "conv"},
    "Identity": {"hypergradient": pt.Implicit(pt.Identity()), "model": "mlp"},
    "running": {"hypergradient": pt.RunningImplicit(alpha=0.1), "batch_size": 5},
    "running, schedule": {"hypergradient": pt.RunningImplicit(), "inner": pt.SGD(lambda t: 0.1 / (1 + t))},
    "value gap": {"hypergradient": pt.ValueFunctionGap(10.0, steps=2, warm_start=True), "model": "mlp"},
}


def gradients(one: pt.Tuner, rounds: int) -> list[Tensor]:
    """Return the gradients of a loop of one's own."""
    found = []
    for _ in range(rounds):
        one.hypergradient()
        found += [p.grad.clone() for p in one.problem.hyper.parameters() if p.grad is not None]
        one.outer.step()
    return found


@pytest.mark.filterwarnings("ignore::UserWarning")  # these rounds are too short to converge
@pytest.mark.parametrize("case", STATIONARY)
def test_the_linear_solve_of_a_short_round_is_recorded_with_its_steps(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "T", 4)
    settings = {"dtype": torch.float32, "objective": pt.ValidationRisk(), "inner": pt.SGD(0.1), **STATIONARY[case]}
    eager, traced = tuner("eager", **settings), tuner(Traced(), **settings)
    for one, other in zip(gradients(eager, 7), gradients(traced, 7), strict=True):
        assert torch.equal(one, other)
    engine = traced.outer_run.runner.engine
    assert isinstance(engine, Traced)
    assert any(isinstance(one.segment, round_end.RoundEnd) and one.program for one in engine._recordings)


@pytest.mark.slow
@COMPILER
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_round_agrees_to_rounding_and_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "T", 8)
    estimator = pt.Implicit(pt.Neumann(2, alpha=0.1))
    settings: dict[str, Any] = {
        "objective": pt.ValidationRisk(),
        "hypergradient": estimator,
        "inner": pt.SGD(0.1),
        "dtype": torch.float32,
        "model": "mlp",
    }
    eager, compiled = tuner("eager", **settings), tuner(Compiled(), **settings)
    for one, other in zip(gradients(eager, 6), gradients(compiled, 6), strict=True):  # rounds 3, 5 and 6 are recorded
        torch.testing.assert_close(one, other)
    assert not compiled.outer_run.runner.engine.unrecordable


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("estimator", "batch_size"),
    [
        (pt.Implicit(pt.ConjugateGradient(3)), None),  # looks at residuals
        (pt.Implicit(pt.Nystrom(3)), None),  # draws columns
        (pt.Implicit(pt.Neumann(3), batches="all"), 5),  # reads rows that are not an input of the recording
        (pt.Implicit(pt.Neumann(3)), 8),  # 20 rows give batches of 8, 8 and 4
    ],
)
def test_a_round_that_looks_at_numbers_or_reads_other_rows_is_not_recorded_as_a_whole(
    estimator: pt.Estimator, batch_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "T", 4)
    settings: dict[str, Any] = {"objective": pt.ValidationRisk(), "hypergradient": estimator, "batch_size": batch_size}
    eager, traced = tuner("eager", **settings), tuner(Traced(), **settings)
    for one, other in zip(gradients(eager, 3), gradients(traced, 3), strict=True):
        assert torch.equal(one, other)
    engine = traced.outer_run.runner.engine
    assert isinstance(engine, Traced)
    assert not any(isinstance(one.segment, round_end.RoundEnd) for one in engine._recordings)


def test_attention_kernels_are_restored_after_a_graph() -> None:
    before = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    with second_order_kernels(True):
        assert torch.backends.cuda.math_sdp_enabled()
        assert not torch.backends.cuda.mem_efficient_sdp_enabled()
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(before[0])
    assert (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()) == before
