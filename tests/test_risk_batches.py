"""The rows on which an outer step computes the risk at θ_T: `valid_batch_size` and `risk_batch_size`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import pactune as pt
from pactune.streams import Streams

VALID = 12


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True) + torch.randn(count, 1, generator=generator, dtype=torch.float64)


def problem(**data: Any) -> pt.Problem:
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    hyper = pt.WeightDecay(model, init=0.1).double()
    sizes = {name: data.pop(name) for name in ("batch_size", "valid_batch_size", "risk_batch_size") if name in data}
    data = data or {"train": rows(20, 1), "valid": rows(VALID, 2)}
    return pt.Problem(model, hyper, loss=mse_loss, **data, **sizes)


def tuner(given: pt.Problem | None = None, seed: int = 3, **changes: Any) -> pt.Tuner:
    given = given or problem(valid_batch_size=4)
    settings = {"inner": pt.SGD(0.05), "inner_steps": 3, "objective": pt.PACBayes(zeta=0.1), "engine": "eager"}
    outer = torch.optim.SGD(given.hyper.parameters(), lr=0.1)
    return pt.Tuner(given, outer=outer, seed=seed, **{**settings, **changes})


def risk_on(given: pt.Problem, numbers: Tensor) -> float:
    x, y = rows(VALID, 2)
    with torch.no_grad():
        return float(mse_loss(given.model(x[numbers]), y[numbers]))


@pytest.mark.parametrize(
    "sizes", [{"valid_batch_size": 4}, {"valid_batch_size": 6, "risk_batch_size": 4}, {"risk_batch_size": 4}]
)
def test_the_risk_is_that_of_a_fresh_mini_batch(sizes: dict[str, int]) -> None:
    given = problem(**sizes)
    own, seen = tuner(given), []
    for step in range(6):
        (batch,) = given.valid.risk_batches(step, Streams(3))
        assert batch.rows == 4
        assert batch.numbers is not None
        value = own.hypergradient()
        assert value.risk == pytest.approx(risk_on(given, batch.numbers), rel=1e-12)
        seen.append(batch.numbers)
    assert torch.equal(torch.cat(seen[:3]).sort().values, torch.arange(VALID))  # an epoch reads every row once
    assert not torch.equal(torch.cat(seen[:3]), torch.cat(seen[3:]))


def test_the_mean_over_an_epoch_is_the_risk_on_all_rows() -> None:
    given = problem(valid_batch_size=3)
    parts = [next(iter(given.valid.risk_batches(step, Streams(0)))).numbers for step in range(4)]
    values = [risk_on(given, part) for part in parts if part is not None]
    assert sum(values) / 4 == pytest.approx(risk_on(given, torch.arange(VALID)), rel=1e-12)


def test_an_outer_step_reads_no_more_rows_than_its_mini_batches() -> None:
    read = []

    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        read.append(len(batch[0]))
        return mse_loss(model(batch[0]), batch[1])

    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    plain = lambda m, b, h: mse_loss(m(b[0]), b[1])  # noqa: E731
    data = {"train": rows(20, 1), "valid": rows(VALID, 2)}
    given = pt.Problem(model, pt.WeightDecay(model), **data, train_loss=plain, valid_loss=loss, valid_batch_size=4)
    own = tuner(given, objective=pt.ValidationRisk())
    own.hypergradient()
    read.clear()
    own.hypergradient()
    assert read == [4]


@pytest.mark.parametrize("sizes", [{}, {"valid_batch_size": 5, "risk_batch_size": None}, {"risk_batch_size": 99}])
def test_all_rows_on_request(sizes: dict[str, int | None]) -> None:
    given = problem(**sizes)
    assert tuner(given).hypergradient().risk == pytest.approx(risk_on(given, torch.arange(VALID)), rel=1e-12)


def test_the_training_risk_as_objective_uses_training_mini_batches() -> None:
    given = problem(batch_size=5)
    value = tuner(given, objective=pt.SameDistribution(zeta=0.1)).hypergradient()
    (batch,) = given.train.risk_batches(0, Streams(3))
    x, y = batch.data
    assert batch.rows == 5
    assert value.risk == pytest.approx(mse_loss(given.model(x), y).item(), rel=1e-12)


DATA = {
    "one problem": lambda: problem(batch_size=6, valid_batch_size=5),
    "folds": lambda: problem(data=rows(24, 4), folds=3, valid_batch_size=3, batch_size=5),
    "tasks": lambda: problem(tasks=lambda g: _task(g), tasks_per_step=2, valid_batch_size=3),
}


def _task(generator: torch.Generator) -> Any:
    return rows(8, int(torch.randint(99, (1,), generator=generator))), rows(7, 5)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("estimator", [pt.Truncated(1), pt.Windowed(3), pt.Implicit(pt.Neumann(2))], ids=str)
def test_hypergradients_are_those_of_the_mini_batch(data: str, estimator: Any) -> None:
    own = tuner(DATA[data](), chains=2, restart=True, hypergradient=estimator)
    own.hypergradient()  # the second round reads other rows than the first
    found = pt.check_hypergradient(own, directions=2)
    assert found.passed, found


@pytest.mark.parametrize("estimator", [pt.Truncated(1), pt.Windowed(3)], ids=str)
@pytest.mark.parametrize("data", DATA)
def test_recorded_steps_read_the_same_rows(data: str, estimator: Any) -> None:
    found = []
    for engine in ("eager", pt.engines.Traced()):
        own = tuner(DATA[data](), engine=engine, restart=True, hypergradient=estimator, path_hypergradient=estimator)
        found.append([own.hypergradient() for _ in range(5)])
    for a, b in zip(*found, strict=True):
        assert a.risk == pytest.approx(b.risk, rel=1e-12)
        assert a.regularizer == pytest.approx(b.regularizer, rel=1e-12)


def test_runs_of_a_grid_read_what_they_read_alone() -> None:
    grid = {"zeta": [0.0, 0.2], "seed": [0, 1]}
    build = lambda zeta, seed: tuner(seed=seed, objective=pt.PACBayes(zeta=zeta), engine="traced")  # noqa: E731
    together = pt.fit_grid(build, grid, outer_steps=4).history
    for zeta in grid["zeta"]:
        for seed in grid["seed"]:
            alone = build(zeta, int(seed)).fit(4).history
            own = together[(together.zeta == zeta) & (together.seed == seed)]
            assert own.risk.tolist() == pytest.approx(alone.risk.tolist(), rel=1e-10)


def test_a_resumed_run_reads_on_and_reports_all_rows(tmp_path: Path) -> None:
    whole = tuner().fit(6)
    tuner().fit(3, run_dir=tmp_path)
    resumed = tuner().fit(6, run_dir=tmp_path, resume=True)
    assert resumed.history.drop(columns="seconds").equals(whole.history.drop(columns="seconds"))
    given = whole.model
    x, y = rows(VALID, 2)
    assert whole.history.valid_risk.iloc[-1] == pytest.approx(mse_loss(given(x), y).item(), rel=1e-12)
    assert whole.history.risk.iloc[-1] != pytest.approx(whole.history.valid_risk.iloc[-1], rel=1e-6)


def test_another_risk_batch_size_is_another_run(tmp_path: Path) -> None:
    tuner().fit(1, run_dir=tmp_path)
    with pytest.raises(pt.RunFolderError, match="risk on all rows"):
        tuner(problem(valid_batch_size=4, risk_batch_size=None)).fit(2, run_dir=tmp_path, resume=True)


def loader() -> DataLoader[Any]:
    data = TensorDataset(*rows(VALID, 2))
    return DataLoader(data, batch_size=5, sampler=RandomSampler(data, replacement=True, num_samples=10))


def test_a_loader_with_its_own_sampler_gives_a_batch_or_all() -> None:
    assert [batch.rows for batch in problem(train=rows(9, 1), valid=loader()).valid.risk_batches(0, Streams(0))] == [5]
    whole = problem(train=rows(9, 1), valid=loader(), risk_batch_size=None)
    assert [batch.rows for batch in whole.valid.risk_batches(0, Streams(0))] == [5, 5]
    with pytest.raises(pt.SettingError, match="`risk_batch_size` must be None or left out"):
        problem(train=rows(9, 1), valid=loader(), risk_batch_size=3)


@pytest.mark.parametrize("size", [0, 2.5, "all", True])
def test_a_wrong_size_is_refused(size: Any) -> None:
    with pytest.raises(pt.SettingError, match="`risk_batch_size` must be at least 1"):
        problem(risk_batch_size=size)
