"""The rows, the start and the damping of the linear system of implicit differentiation."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import pactune as pt
from pactune.hypergradient import LinearSystem
from pactune.hypergradient.train_risk import MeanTrainRisk
from pactune.storage.schema import SchemaError
from pactune.tracking import recorder
from pactune.trees import Params

DOUBLE, ROWS, SIZE, BATCH = torch.float64, 24, 3, 6
EXACT = pt.ConjugateGradient(SIZE)
NEVER = "ignore::UserWarning"  # θ_T is far from stationary in most of these tests, which is a warning
pytestmark = pytest.mark.filterwarnings(NEVER)


def rows(seed: int, count: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, SIZE, generator=generator, dtype=DOUBLE)
    return x, x.sum(1, keepdim=True) + torch.randn(count, 1, generator=generator, dtype=DOUBLE)


class Curved(nn.Module):
    """The penalty ½ Σ λ_i θ_i², with λ of any sign."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values, dtype=DOUBLE))

    def penalty(self, params: Params) -> Tensor:
        return 0.5 * (self.values * params["weight"][0] ** 2).sum()


def tuner(
    estimator: Any, hyper: nn.Module | None = None, *, steps: int = 3, lr: float = 0.05, **changes: Any
) -> pt.Tuner:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(SIZE, 1, bias=False, dtype=DOUBLE)
    hyper = hyper if hyper is not None else pt.ExampleWeights(ROWS).double()
    data = changes.pop("data", {"train": rows(0), "valid": rows(1), "batch_size": BATCH})
    problem = pt.Problem(model, hyper, **data, loss=F.mse_loss)
    settings = {"inner": pt.SGD(lr), "objective": pt.ValidationRisk(), "outer_lr": 0.1, **changes}
    outer = torch.optim.SGD(hyper.parameters(), lr=settings.pop("outer_lr"))
    return pt.Tuner(problem, inner_steps=steps, outer=outer, hypergradient=estimator, **settings)


def dense_gradient(found: pt.Tuner) -> Tensor:
    """Return the implicit gradient of example weights at the present θ on all rows, by dense matrices."""
    (x, y), (xv, yv) = rows(0), rows(1)
    theta, logits = found.problem.model.weight.detach()[0], found.problem.hyper.logits.detach()

    def risk(theta: Tensor, logits: Tensor) -> Tensor:
        return (2 * torch.sigmoid(logits) * (x @ theta - y[:, 0]) ** 2).mean()

    hessian = torch.func.hessian(risk)(theta, logits)
    mixed = torch.func.jacrev(torch.func.grad(risk), argnums=1)(theta, logits)
    b = torch.func.grad(lambda t: ((xv @ t - yv[:, 0]) ** 2).mean())(theta)
    return -torch.linalg.solve(hessian, b) @ mixed


def gradient(found: pt.Tuner) -> Tensor:
    found.hypergradient()
    return next(iter(found.problem.hyper.parameters())).grad.clone()


# Rows


@pytest.mark.parametrize("batches", ["all", ROWS // BATCH])
def test_all_rows_have_the_gradient_of_dense_matrices(batches: Any) -> None:
    """One epoch of fresh mini-batches has every row once, so it is the whole set too."""
    found = tuner(pt.Implicit(EXACT, batches=batches))
    torch.testing.assert_close(gradient(found), dense_gradient(found), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batches", [None, 1, 2, "all"])
def test_only_the_rows_of_the_solve_have_a_gradient(batches: Any) -> None:
    count = {None: 1, "all": ROWS // BATCH}.get(batches, batches)
    assert int((gradient(tuner(pt.Implicit(EXACT, batches=batches))) != 0).sum()) == count * BATCH


def test_fresh_rows_are_others_than_those_of_the_last_step_and_change_with_the_round() -> None:
    last, fresh = tuner(pt.Implicit(EXACT)), tuner(pt.Implicit(EXACT, batches=1))
    assert not torch.equal(gradient(last) != 0, gradient(fresh) != 0)
    seen = [gradient(fresh) != 0 for _ in range(ROWS // BATCH - 1)]
    assert torch.stack(seen).sum(0).max() == 1  # an epoch of its own order


def test_without_mini_batches_every_choice_is_the_same() -> None:
    data = {"train": rows(0), "valid": rows(1)}
    found = [gradient(tuner(pt.Implicit(EXACT, batches=b), data=data)) for b in (None, 3, "all")]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("batches", [None, 2, "all"])
def test_the_check_covers_the_rows(batches: Any) -> None:
    data = {"train": rows(0), "valid": rows(1), "batch_size": BATCH}
    check = pt.check_hypergradient(tuner(pt.Implicit(pt.ConjugateGradient(50), batches=batches), data=data))
    assert check.passed
    assert float(check.promised.norm()) > 1e-4


def test_rows_of_dropout_have_seeds_of_their_own() -> None:
    """A second tuner gives the same numbers, since every forward is seeded by its mini-batch."""

    def build() -> pt.Tuner:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(SIZE, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
        hyper = pt.WeightDecay(model, per="tensor", init=0.1)
        problem = pt.Problem(model, hyper, train=rows(0), valid=rows(1), batch_size=BATCH, loss=F.mse_loss)
        outer, estimator = torch.optim.SGD(hyper.parameters(), 0.1), pt.Implicit(pt.Neumann(3), batches=2)
        settings = {"objective": pt.ValidationRisk(), "hypergradient": estimator}
        return pt.Tuner(problem, inner=pt.SGD(0.05), inner_steps=3, outer=outer, **settings)

    first, second = build(), build()
    for one in (first, second):
        one.fit(2, progress=False)
    assert first.problem.hyper.state_dict().keys() == second.problem.hyper.state_dict().keys()
    for a, b in zip(first.problem.hyper.parameters(), second.problem.hyper.parameters(), strict=True):
        assert torch.equal(a, b)


# Start


def test_a_warm_start_takes_fewer_products() -> None:
    """At a fixed λ the second solution is the first one, and the solver sees that at once."""
    data = {"train": rows(0), "valid": rows(1)}
    for warm, last in ((False, SIZE), (True, 1)):
        found = tuner(pt.Implicit(pt.ConjugateGradient(20), warm_start=warm), data=data, steps=400, outer_lr=0.0)
        history = found.fit(2, progress=False).rows
        assert history[0]["implicit_products"] == SIZE
        assert history[1]["implicit_products"] == last
        assert history[1]["implicit_residual"] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("solver", [pt.Identity(0.2), pt.Neumann(2, 0.2)], ids=str)
def test_a_short_solver_converges_over_the_outer_steps(solver: Any) -> None:
    data = {"train": rows(0), "valid": rows(1)}
    found = tuner(pt.Implicit(solver, warm_start=True), data=data, steps=200, outer_lr=0.0)
    cold = tuner(pt.Implicit(solver), data=data, steps=200, outer_lr=0.0)
    rows_of = [one.fit(150, progress=False, plain_steps=0).rows[-1]["implicit_residual"] for one in (found, cold)]
    assert rows_of[0] < 1e-6 < 0.1 < rows_of[1]
    torch.testing.assert_close(gradient(found), dense_gradient(found), rtol=1e-5, atol=1e-9)


class StopError(Exception):
    """Ends a run."""


class StopAt(pt.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_outer_step(self, tuner: pt.Tuner, row: dict[str, Any]) -> None:
        if row["outer_step"] == self.step:
            raise StopError


WARM = {
    "one chain": {},
    "chains": {"chains": 2},
    "restart": {"restart": True},
    "folds": {"data": {"data": rows(0), "folds": 3, "batch_size": BATCH}, "hyper": True},
}


@pytest.mark.parametrize("case", WARM)
@pytest.mark.parametrize("batches", [None, 2])
def test_a_resumed_run_has_the_same_bits(case: str, batches: Any, tmp_path: Path) -> None:
    def build() -> pt.Tuner:
        settings = dict(WARM[case])
        hyper = Curved(0.1, 0.2, 0.3) if settings.pop("hyper", False) else None
        return tuner(pt.Implicit(pt.Neumann(2), batches=batches, warm_start=True), hyper, **settings)

    whole, cold = build(), build()
    whole.fit(4, progress=False)
    with pytest.raises(StopError):
        cold.fit(4, progress=False, run_dir=tmp_path, callbacks=[StopAt(3)])
    again = build()
    again.fit(4, progress=False, run_dir=tmp_path, resume=True)
    for a, b in zip(whole.problem.hyper.parameters(), again.problem.hyper.parameters(), strict=True):
        assert torch.equal(a, b)


def test_folds_remember_each_its_own() -> None:
    data = {"data": rows(0), "folds": 3}
    found = tuner(pt.Implicit(EXACT, warm_start=True), Curved(0.1, 0.2, 0.3), data=data)
    found.hypergradient()
    first, second, third, whole = found.outer_run.chains.all()
    kept = [part.memory[0]["weight"] for part in (first, second, third)]
    assert len({tuple(value.ravel().tolist()) for value in kept}) == 3
    assert whole.memory is None


def test_a_checkpoint_without_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    original = recorder.check_state

    def keep(saved: dict[str, Any], settings: dict[str, Any]) -> None:
        seen.update(copy.deepcopy({"saved": saved, "settings": settings}))

    tuner(pt.Implicit(EXACT, warm_start=True)).fit(1, progress=False, run_dir=tmp_path)
    monkeypatch.setattr(recorder, "check_state", keep)
    tuner(pt.Implicit(EXACT, warm_start=True)).fit(2, progress=False, run_dir=tmp_path, resume=True)
    original(**seen)
    del seen["saved"]["state"]["run"]["chains"][0]["chains"][0]["memory"]
    with pytest.raises(SchemaError, match="memory"):
        original(**seen)


# Damping


def indefinite(estimator: Any) -> pt.Tuner:
    """Return a tuner whose training Hessian has one negative eigenvalue; training moves little."""
    data = {"train": rows(0), "valid": rows(1)}
    return tuner(estimator, Curved(0.1, -6.0, 0.1), data=data, steps=1, lr=1e-3)


def hessian_of(found: pt.Tuner) -> Tensor:
    x = rows(0)[0]
    return 2 * x.T @ x / ROWS + torch.diag(found.problem.hyper.values.detach())


def test_conjugate_gradients_raise_their_damping_until_the_curvature_is_positive() -> None:
    found = indefinite(pt.Implicit(pt.ConjugateGradient(50)))
    assert float(torch.linalg.eigvalsh(hessian_of(found))[0]) < -0.5
    with pytest.warns(
        UserWarning, match="not positive definite at θ_T, so ConjugateGradient raised its damping from 0"
    ):
        row = found.fit(1, progress=False, plain_steps=0).rows[0]
    damping = row["implicit_damping"]
    least = -float(torch.linalg.eigvalsh(hessian_of(found))[0])
    assert least < damping < 20 * least
    theta = found.problem.model.weight.detach()[0]
    xv, yv = rows(1)
    b = 2 * xv.T @ (xv @ theta - yv[:, 0]) / ROWS
    v = torch.linalg.solve(hessian_of(found) + damping * torch.eye(SIZE, dtype=DOUBLE), b)
    torch.testing.assert_close(found.problem.hyper.values.grad, -theta * v, rtol=1e-8, atol=1e-10)
    assert row["implicit_products"] > SIZE


def test_enough_damping_is_not_raised() -> None:
    found = indefinite(pt.Implicit(pt.ConjugateGradient(50, damping=8.0)))
    assert found.fit(1, progress=False, plain_steps=0).rows[0]["implicit_damping"] == 8.0


def test_a_positive_definite_hessian_needs_no_damping() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = {"train": rows(0), "valid": rows(1)}
        found = tuner(pt.Implicit(EXACT), Curved(0.1, 0.2, 0.1), data=data, steps=300, lr=0.1)
        assert found.fit(1, progress=False).rows[0]["implicit_damping"] == 0.0


def test_a_damping_that_float32_rounds_is_not_raised() -> None:
    x, y = (part.float() for part in rows(0))
    model = nn.Linear(SIZE, 1)
    hyper = pt.WeightDecay(model, init=0.1)
    problem = pt.Problem(model, hyper, train=(x, y), valid=(x, y), loss=F.mse_loss)
    outer, estimator = torch.optim.SGD(hyper.parameters(), 0.1), pt.Implicit(pt.ConjugateGradient(20, damping=0.1))
    settings = {"objective": pt.ValidationRisk(), "hypergradient": estimator}
    found = pt.Tuner(problem, inner=pt.SGD(0.05), inner_steps=3, outer=outer, **settings)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found.fit(1, progress=False)
    assert not [one for one in seen if "raised its damping" in str(one.message)]


def system(matrix: Tensor, b: Tensor, **changes: Any) -> LinearSystem:
    def hessian(v: Params) -> Params:
        return {"v": matrix @ v["v"]}

    return LinearSystem(hessian, {"v": b}, 0.1, torch.Generator().manual_seed(0), **changes)


def test_a_hessian_of_zeros_is_an_error() -> None:
    zero = torch.zeros(2, 2, dtype=DOUBLE)
    with pytest.raises(pt.GradientError, match="is zero along ∇R_V"):
        pt.ConjugateGradient(5).solve(system(zero, torch.ones(2, dtype=DOUBLE)))


def test_a_curvature_of_zero_along_the_first_direction_raises_the_damping() -> None:
    saddle, b = torch.diag(torch.tensor([1.0, -1.0], dtype=DOUBLE)), torch.ones(2, dtype=DOUBLE)
    found = pt.ConjugateGradient(5).solve(system(saddle, b))  # bᵀHb = 0, and ‖Hb‖ is not
    assert found.damping > 1.0
    torch.testing.assert_close(found.value["v"], torch.linalg.solve(saddle + found.damping * torch.eye(2).to(b), b))


def test_the_curvature_that_ends_conjugate_gradients_is_a_rayleigh_quotient() -> None:
    matrix = torch.diag(torch.tensor([1e-3, 1.0, 30.0, 31.0, -40.0], dtype=DOUBLE))
    b = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.01], dtype=DOUBLE)  # several steps pass before it is met
    found = pt.ConjugateGradient(5)._descend(system(matrix, b), 0.0)
    assert found.products > 2
    assert found.negative is not None
    assert -40.0 <= found.negative < 0.0 < found.largest <= 40.0


@pytest.mark.parametrize("start", [None, {"v": torch.tensor([3.0, 4.0, 1.0], dtype=DOUBLE)}])
def test_a_start_changes_neither_the_solution_nor_the_damping(start: Any) -> None:
    matrix = torch.diag(torch.tensor([2.0, -1.0, 0.5], dtype=DOUBLE))
    found = pt.ConjugateGradient(50).solve(system(matrix, torch.ones(3, dtype=DOUBLE), start=start))
    wanted = torch.linalg.solve(matrix + found.damping * torch.eye(3, dtype=DOUBLE), torch.ones(3, dtype=DOUBLE))
    assert found.damping > 1
    torch.testing.assert_close(found.value["v"], wanted, rtol=1e-9, atol=1e-12)


# Refusals


def test_fresh_rows_need_a_source_that_can_be_read_by_number() -> None:
    backwards = list(reversed(range(ROWS)))
    data = {"train": DataLoader(TensorDataset(*rows(0)), batch_size=BATCH, sampler=backwards), "valid": rows(1)}
    with pytest.raises(pt.SettingError, match="draws fresh mini-batches"):
        tuner(pt.Implicit(EXACT, batches=2), Curved(0.1, 0.2, 0.3), data=data)
    tuner(pt.Implicit(EXACT, batches="all"), Curved(0.1, 0.2, 0.3), data=data).hypergradient()


def test_a_warm_start_needs_the_same_tasks() -> None:
    def draw(generator: torch.Generator) -> Any:
        return rows(0), rows(1)

    with pytest.raises(pt.SettingError, match="draws other tasks"):
        tuner(
            pt.Implicit(EXACT, warm_start=True),
            Curved(0.1, 0.2, 0.3),
            data={"tasks": draw, "tasks_per_step": 2},
            restart=True,
        )


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "some", [2]])
def test_batches_is_checked(value: Any) -> None:
    with pytest.raises(pt.SettingError, match="`batches` must be"):
        pt.Implicit(EXACT, batches=value)


@pytest.mark.parametrize("start", [None, {"v": torch.linspace(-1, 1, SIZE, dtype=DOUBLE)}], ids=["zero", "warm"])
@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_conjugate_gradients_know_their_residual_after_few_steps(damping: float, start: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(SIZE, SIZE, generator=generator, dtype=DOUBLE)
    b = torch.randn(SIZE, generator=generator, dtype=DOUBLE)
    given = system(root @ root.T + torch.eye(SIZE, dtype=DOUBLE), b, start=start)
    for steps in (1, 3):
        found = pt.ConjugateGradient(steps, damping=damping).solve(given)
        assert found.residual is not None
        torch.testing.assert_close(found.residual["v"], b - given.hessian(found.value)["v"], rtol=1e-9, atol=1e-9)
    large = system(torch.diag(torch.linspace(1, 99, 40, dtype=DOUBLE)), torch.ones(40, dtype=DOUBLE))
    assert pt.ConjugateGradient(11).solve(large).residual is None


@pytest.mark.parametrize("batches", [None, 3, "all"])
def test_a_linearization_has_the_gradient_of_the_risk(batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Params, Params]] = []
    original = MeanTrainRisk.linearize

    def linearize(self: MeanTrainRisk, state: Any) -> Any:
        found = original(self, state)
        seen.append((found.gradient(), self.gradient(state)))
        return found

    monkeypatch.setattr(MeanTrainRisk, "linearize", linearize)
    tuner(pt.Implicit(EXACT, batches=batches)).hypergradient()
    assert seen
    for ours, wanted in seen:
        for name, value in wanted.items():
            torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-14)
