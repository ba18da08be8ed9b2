"""The logic of the captured engine on a CPU, with a graph that runs its body again in the place of a CUDA graph."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import pactune as pt
from pactune.engines import Captured, captured, compiling, cuda_graph
from pactune.engines.graph_options import GraphOptions
from pactune.engines.step_programs import step_program
from tests.cuda_graphs_on_cpu import Graph, emulate, recorded

pytestmark = pytest.mark.slow


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


def tuner(engine: Any, tau: Any, **settings: Any) -> pt.Tuner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double()
    hyper, (x, y) = pt.WeightDecay(model), torch.randn(2, 20, 3, dtype=torch.float64)
    problem = pt.Problem(
        model,
        hyper,
        train=(x[:10], y[:10, :2]),
        valid=(x[10:], y[10:, :2]),
        train_loss=lambda m, b, h: mse_loss(m(b[0]) / float(tau[0]), b[1]),
        valid_loss=lambda m, b, h: mse_loss(m(b[0]), b[1]),
    )
    settings = {"inner": pt.Adam(0.01), "objective": pt.PACBayes(0.01), **settings}
    outer = settings.pop("optim", torch.optim.SGD)(hyper.parameters(), lr=0.1)
    return pt.Tuner(problem, inner_steps=11, outer=outer, engine=engine, **settings)


class Anneal(pt.Callback):
    def __init__(self, tau: Any, factor: float) -> None:
        self._tau, self._factor = tau, factor

    def on_hyper_step(self, tuner: pt.Tuner) -> None:
        self._tau[0] *= self._factor


def histories(factor: float, **settings: Any) -> tuple[Any, Any]:
    engine = Captured(steps=4)
    found = []
    for one in ("eager", engine):
        tau = np.ones(1)
        run = functools.partial(tuner(one, tau, **settings).fit, 4, progress=False)
        found.append(run(callbacks=[Anneal(tau, factor)]).history.drop(columns="seconds"))
    replayed = [segment for check in engine._checks if check.longer for segment in check._segments]
    assert any((segment._online is not None) == settings.get("online", False) for segment in replayed)
    return found[0], found[1]


SETTINGS: dict[str, dict[str, Any]] = {
    "Adam": {},
    "SGD": {"inner": pt.SGD(0.05)},
    "validation risk": {"objective": pt.ValidationRisk()},
    "stride": {"path_stride": 3},
    "averaged": {"inner": pt.Averaged(pt.SGD(0.05, momentum=0.9), beta=0.7)},
    "online": {"online": True},
    "online, RMSprop": {"online": True, "optim": torch.optim.RMSprop},
    "online, stride": {"online": True, "path_stride": 3, "optim": functools.partial(torch.optim.SGD, momentum=0.9)},
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("settings", SETTINGS)
def test_replayed_steps_are_trusted_while_nothing_changes(settings: str, caplog: pytest.LogCaptureFixture) -> None:
    eager, replayed = histories(1.0, **SETTINGS[settings])
    np.testing.assert_allclose(replayed.values, eager.values, rtol=1e-9, atol=1e-12)
    assert not caplog.messages


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_change_that_no_snapshot_sees_is_noticed(settings: str, caplog: pytest.LogCaptureFixture) -> None:
    eager, replayed = histories(0.97, **SETTINGS[settings])
    np.testing.assert_allclose(replayed.values, eager.values, rtol=1e-9, atol=1e-12)
    assert any("one by one from now on" in message for message in caplog.messages)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("free", "collections"), [(100, 0), (49, 1)])
def test_small_models_are_captured_without_a_collection_and_once(
    free: int, collections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"steps": 0, "graphs": 0, "collections": 0}

    def counted(chain: Any, options: GraphOptions, compiled: Any) -> Any:
        counts["graphs"] += 1
        program = recorded(chain, options)

        def run(*tensors: torch.Tensor) -> Any:
            counts["steps"] += chain.size
            return program(*tensors)

        return run

    monkeypatch.setattr(cuda_graph, "step_program", counted)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 100))
    monkeypatch.setattr(gc, "collect", lambda: counts.update(collections=counts["collections"] + 1))
    monkeypatch.setattr(Graph, "replay", lambda self: None)
    monkeypatch.setattr(captured.ReplayedChain, "agrees", lambda self, replayed: True)
    tuner(Captured(steps=6), np.ones(1)).hypergradient()
    # of 11 steps the first is checked, the last differentiated: two warm-ups and the capture of 1, the capture of 3
    # the third graph is that of the end
    assert counts == {"steps": 3 * 1 + 3, "graphs": 2, "collections": 3 * collections}


@pytest.mark.parametrize(
    ("steps", "most", "stride", "size"),
    [(98, 20, 1, 14), (998, 20, 1, 12), (998, 9, 1, 4), (15, 20, 1, 15), (90, 20, 3, 15), (90, 2, 5, 5), (0, 9, 1, 4)],
)
def test_graphs_are_of_the_size_with_the_fewest_captured_steps(steps: int, most: int, stride: int, size: int) -> None:
    assert captured._graph_size(steps, most, stride) == size


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("fuse", ["updates", "steps"])
def test_steps_that_do_not_compile_are_captured_as_they_are(
    fuse: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    captures: list[str | None] = []

    def program(chain: Any, options: GraphOptions, compiled: Any) -> Any:
        captures.append(options.fuse)
        if options.fuse:
            raise AssertionError("a defect of the compiler")
        return recorded(chain, options)

    monkeypatch.setattr(cuda_graph, "step_program", program)
    engine = Captured(steps=4, fuse=fuse)
    found, wanted = (tuner(one, np.ones(1)).fit(3, progress=False).history for one in (engine, "eager"))
    columns = [name for name in wanted.columns if name != "seconds"]
    np.testing.assert_allclose(found[columns], wanted[columns], rtol=1e-9, atol=1e-12)
    assert caplog.messages == [f'without fuse="{fuse}" from now on: AssertionError: a defect of the compiler']
    assert captures.count(fuse) == 1
    assert any(graph.longer for graph in engine._checks)


def compile_nothing(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let graphs with fused kernels be made without a compiler; return a list that receives the recordings."""
    compiled: list[Any] = []

    def program(chain: Any, options: GraphOptions, programs: Any) -> Any:
        return (step_program if options.fuse else recorded)(chain, options, programs)

    monkeypatch.setattr(cuda_graph, "step_program", program)
    monkeypatch.setattr(compiling, "compile_graph", lambda graph, _: compiled.append(graph) or graph)
    return compiled


def convolutions(seed: int, online: bool = False) -> pt.Tuner:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(18, 3))
    x, y = torch.randn(8, 1, 4, 4), torch.randint(0, 3, (8,))
    hyper = pt.WeightDecay(model, init=0.1)
    problem = pt.Problem(model, hyper, train=(x[:4], y[:4]), valid=(x[4:], y[4:]), loss=cross_entropy)
    outer = torch.optim.RMSprop(hyper.parameters(), lr=0.01) if online else torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings = {"inner": pt.Adam(1e-2), "inner_steps": 8, "outer": outer, "objective": pt.PACBayes(0.1)}
    return pt.Tuner(problem, online=online, **settings)


def test_runs_of_one_structure_share_their_compiled_updates(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile_nothing(monkeypatch)
    engines = Captured(steps=3, fuse="updates", two_streams=False), "eager"
    found, wanted = (
        pt.fit_grid(convolutions, {"seed": [0, 1, 2]}, outer_steps=2, plain_steps=0, engine=engine).history
        for engine in engines
    )
    assert len(compiled) == 1
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), wanted.drop(columns="seconds"), rtol=1e-4)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("model_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("data_format", [torch.contiguous_format, torch.channels_last])
def test_graphs_run_on_the_memory_formats_of_the_user(
    model_format: torch.memory_format, data_format: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another format, other kernels run, and the check of a graph against an eager step fails in float32."""
    met: list[set[tuple[int, ...]]] = []

    def program(chain: Any, options: GraphOptions, programs: Any) -> Any:
        run = recorded(chain, options)

        def noted(*tensors: torch.Tensor) -> Any:
            met.append({tensor.stride() for tensor in tensors if tensor.shape in ((2, 3, 2, 2), (4, 3, 4, 4))})
            return run(*tensors)

        return noted

    monkeypatch.setattr(cuda_graph, "step_program", program)
    model = nn.Sequential(nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(18, 3)).to(memory_format=model_format)
    x, y = torch.randn(8, 3, 4, 4).to(memory_format=data_format), torch.randint(0, 3, (8,))
    problem = pt.Problem(
        model, hyper := pt.WeightDecay(model), train=(x[:4], y[:4]), valid=(x[4:], y[4:]), loss=cross_entropy
    )
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings = {"inner": pt.SGD(0.1), "inner_steps": 8, "outer": outer, "objective": pt.ValidationRisk()}
    run = pt.Tuner(problem, engine=Captured(steps=3), **settings)
    for _ in range(2):
        run.hypergradient()
    kernel, images = torch.empty(2, 3, 2, 2), torch.empty(4, 3, 4, 4)
    wanted = {kernel.to(memory_format=model_format).stride(), images.to(memory_format=data_format).stride()}
    assert met
    assert all(strides == wanted for strides in met)


@pytest.mark.parametrize("fuse", ["updates", "steps"])
def test_online_and_offline_runs_share_a_graph_with_fused_kernels(
    fuse: Any, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_nothing(monkeypatch)
    cells = [{"seed": seed, "online": online} for seed, online in ((0, True), (1, False), (2, True))]
    engine = Captured(steps=3, fuse=fuse, two_streams=False)
    found, wanted = (
        pt.fit_grid(convolutions, cells, outer_steps=3, plain_steps=0, engine=one).history for one in (engine, "eager")
    )
    (check,) = engine._checks
    assert check.longer
    assert sum(segment._online is not None for segment in check._segments) == 2
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), wanted.drop(columns="seconds"), rtol=1e-4)


def test_steps_of_one_kind_are_compiled_once(on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of 1 × 1 in channels last has other strides after a step than before it, in equal memory."""
    compiled = compile_nothing(monkeypatch)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(48, 3))
    x, y = torch.randn(8, 2, 4, 4), torch.randint(0, 3, (8,))
    hyper = pt.WeightDecay(model, init=0.1)
    problem = pt.Problem(model, hyper, train=(x[:4], y[:4]), valid=(x[4:], y[4:]), loss=cross_entropy)
    outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
    settings = {"inner": pt.Adam(1e-2), "inner_steps": 15, "outer": outer, "objective": pt.PACBayes(0.1)}
    engine = Captured(steps=6, fuse="steps", channels_last=True)
    pt.Tuner(problem, engine=engine, **settings).hypergradient()
    (check,) = engine._checks
    assert len(check.longer) == 2  # of three steps and of the one that is left
    assert len(compiled) == 1


@pytest.mark.usefixtures("on_cpu")
def test_a_run_that_diverges_does_not_make_those_beside_it_slow(caplog: pytest.LogCaptureFixture) -> None:
    def build(decay: float) -> pt.Tuner:
        torch.manual_seed(0)
        model, x = nn.Linear(3, 3), torch.randn(20, 3)
        hyper = pt.WeightDecay(model, init=decay)
        problem = pt.Problem(model, hyper, train=(x[:10], x[:10]), valid=(x[10:], x[10:]), loss=mse_loss)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        return pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=9, outer=outer, objective=pt.PACBayes(0.01))

    engine = Captured(steps=3)
    histories = [
        pt.fit_grid(
            build, {"decay": [0.0, 1e25, 1.0]}, outer_steps=3, plain_steps=0, engine=one, progress=False
        ).history
        for one in (engine, "eager")
    ]
    found, wanted = (history[history["decay"] < 2].drop(columns="seconds") for history in histories)
    assert len(found) == 6
    pd.testing.assert_frame_equal(found.reset_index(drop=True), wanted.reset_index(drop=True), rtol=1e-4)
    assert not engine.unrecordable
    assert not any("one by one" in message for message in caplog.messages)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("fuse", [None, "updates", "steps"])
def test_stacked_online_runs_are_captured(
    fuse: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compile_nothing(monkeypatch)

    def build(zeta: float, seed: int) -> pt.Tuner:
        torch.manual_seed(seed)
        model = nn.Linear(4, 3).double()
        x, y = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))
        hyper = pt.WeightDecay(model, init=0.1)
        problem = pt.Problem(model, hyper, train=(x[:4], y[:4]), valid=(x[4:], y[4:]), loss=cross_entropy)
        outer, objective = torch.optim.RMSprop(hyper.parameters(), lr=0.01), pt.PACBayes(zeta)
        return pt.Tuner(
            problem, inner=pt.Adam(1e-2), inner_steps=8, outer=outer, objective=objective, online=True, seed=seed
        )

    engine = Captured(steps=3, fuse=fuse, two_streams=False)
    cells = {"zeta": [0.1, 0.3], "seed": [0, 1]}
    found, wanted = (
        pt.fit_grid(build, cells, outer_steps=3, plain_steps=0, engine=one).history for one in (engine, "eager")
    )
    assert not caplog.messages
    (check,) = engine._checks
    assert check.longer
    assert [segment.trajectory.problem.runs for segment in check._segments] == [(4,)]
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), wanted.drop(columns="seconds"), rtol=1e-7)
