"""A grid at once gives what its cells give one by one."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import pactune as pt
from pactune.engines import Traced
from pactune.engines.joint_gradients import JointGradients
from pactune.stacking import runner
from pactune.stacking.batched import ELEMENTWISE, take_outer_steps
from pactune.stacking.requests import OuterStepRequest
from pactune.stacking.stack import Stack
from pactune.tracking import read_journal

pytestmark = pytest.mark.slow

GRID = {"zeta": [0.0, 0.05], "seed": [0, 1]}
STEPS = 3


def sample(seed: int, rows: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=draw, dtype=torch.float64), torch.randint(0, 3, (rows,), generator=draw)


def build(zeta: float, seed: int, **changes: Any) -> pt.Tuner:
    """Return a tuner whose data depend on the seed."""
    torch.manual_seed(seed)
    model = changes.pop("model", lambda: nn.Linear(6, 3))().double()
    hyper = changes.pop("hyper", pt.WeightDecay)(model).double()
    x, y = sample(seed % 2)
    problem = pt.Problem(
        model,
        hyper,
        train=(x[:20], y[:20]),
        valid=(x[20:], y[20:]),
        batch_size=changes.pop("batch_size", None),
        **changes.pop("losses", {"loss": cross_entropy}),
    )
    settings = {"inner": pt.Adam(lr=1e-2), "inner_steps": 12, "objective": pt.PACBayes(zeta=zeta), **changes}
    return pt.Tuner(problem, outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2), seed=seed, **settings)


def weighted_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1]) * (1 + hyper.values["all"] ** 2)


def general_loss(model: nn.Module, batch: Any, hyper: Any) -> Tensor:
    return cross_entropy(model(batch[0]), batch[1])


CASES: dict[str, dict[str, Any]] = {
    "decay": {},
    "per tensor": {"hyper": lambda model: pt.WeightDecay(model, per="tensor", init=0.01)},
    "positive": {"hyper": lambda model: pt.WeightDecay(model, positive=True, init=0.5)},
    "network, mini-batches": {
        "model": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        "batch_size": 8,
    },
    "chains": {"chains": 3, "inner": pt.Langevin(0.1, 1000.0)},
    "online": {"online": True},
    "restart": {"restart": True},
    "K = 2": {"path_hypergradient": pt.Truncated(2)},
    "windows": {"path_hypergradient": pt.Windowed(4), "hypergradient": pt.Windowed(4)},
    "stride": {"path_stride": 4},
    "BatchNorm": {"model": lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))},
    "dropout": {"model": lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))},
    "general form": {
        "losses": {"train_loss": weighted_loss, "valid_loss": general_loss},
        "hyper": lambda model: pt.WeightDecay(model, per="global", init=0.1),
    },
    "example weights": {"hyper": lambda model: pt.ExampleWeights(20)},
    "rates": {"hyper": lambda model: pt.LearningRates(model, per="tensor"), "path_hypergradient": pt.Truncated(1)},
}


def table(result: pt.Result) -> tuple[list[str], Tensor]:
    frame = result.history.drop(columns="seconds")
    return list(frame.columns), torch.tensor(frame.values)


@pytest.mark.parametrize("case", CASES)
def test_at_once_is_one_by_one(case: str) -> None:
    test = sample(7, 1500)
    found = pt.fit_grid(
        lambda **cell: build(**cell, **CASES[case]),
        GRID,
        outer_steps=STEPS,
        test=test,
        engine=Traced(steps=2),
        progress=False,
    )
    assert found.cells == [{"zeta": z, "seed": s} for z in GRID["zeta"] for s in GRID["seed"]]
    for cell, result in zip(found.cells, found.results, strict=True):
        alone = build(**cell, **CASES[case], engine="eager").fit(STEPS, test=test, progress=False)
        names, values = table(alone)
        grid_names, grid_values = table(result)
        assert grid_names == names
        torch.testing.assert_close(grid_values, values, rtol=1e-9, atol=1e-11)
        plain = torch.tensor(alone.plain.values), torch.tensor(result.plain.values)
        torch.testing.assert_close(*plain, rtol=1e-9, atol=1e-11)
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(result.model.state_dict()[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("case", "stacked"), [("decay", True), ("BatchNorm", False), ("dropout", False)])
def test_what_is_stacked(case: str, stacked: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pactune.engines"):
        pt.fit_grid(
            lambda **cell: build(**cell, **CASES[case]), GRID, outer_steps=1, engine=Traced(steps=2), progress=False
        )
    assert any("not stacked" in message for message in caplog.messages) != stacked


def test_cells_of_different_structure_are_stacked_in_groups(caplog: pytest.LogCaptureFixture) -> None:
    def mixed(zeta: float, seed: int) -> pt.Tuner:
        return build(zeta, seed, inner=pt.Adam(lr=1e-2 * (1 + seed)))

    with caplog.at_level(logging.INFO, "pactune.engines"):
        found = pt.fit_grid(mixed, GRID, outer_steps=2, engine=Traced(steps=2), progress=False)
    assert any(f"in {len(GRID['seed'])} groups: they differ in more than" in message for message in caplog.messages)
    assert not any("not stacked" in message for message in caplog.messages)
    for cell, result in zip(found.cells, found.results, strict=True):
        alone = mixed(**cell).fit(2, progress=False)
        torch.testing.assert_close(table(result)[1], table(alone)[1], rtol=1e-9, atol=1e-11)


def test_groups_that_cannot_be_stacked_are_not_called_stacked(caplog: pytest.LogCaptureFixture) -> None:
    def mixed(zeta: float, seed: int) -> pt.Tuner:
        return build(zeta, seed, inner=pt.Adam(lr=1e-2 * (1 + seed)), **CASES["BatchNorm"])

    with caplog.at_level(logging.INFO, "pactune.engines"):
        pt.fit_grid(mixed, GRID, outer_steps=1, engine=Traced(steps=2), progress=False)
    assert any("not stacked" in message for message in caplog.messages)
    assert not any("are stacked" in message for message in caplog.messages)


def test_runs_that_all_differ_are_not_stacked(caplog: pytest.LogCaptureFixture) -> None:
    def mixed(zeta: float, seed: int) -> pt.Tuner:
        return build(zeta, seed, inner=pt.Adam(lr=1e-2 * (1 + seed)))

    with caplog.at_level(logging.INFO, "pactune.engines"):
        pt.fit_grid(mixed, {"zeta": [0.05], "seed": [0, 1]}, outer_steps=1, engine=Traced(steps=2), progress=False)
    (words,) = (message for message in caplog.messages if "differ in more than" in message)
    assert words.startswith("runs are not stacked")


class Power(nn.Module):
    """λ Σ|θ|^p with a closed gradient: at λ = 0 nothing tells one p from another."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power, self.value = power, nn.Parameter(torch.zeros(()))

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        return self.value * torch.stack([(p.abs() ** self.power).sum() for p in params.values()]).sum()

    def penalty_gradient(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: self.value * self.power * p.sign() * p.abs() ** (self.power - 1) for n, p in params.items()}


class Scaled(nn.Module):
    """Factors on the step size that depend on a tensor which is neither a parameter nor a buffer, or is a buffer."""

    def __init__(self, factor: float, *, buffer: bool) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros((), dtype=torch.float64))
        if buffer:
            self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))
        else:
            self.factor = torch.tensor(factor, dtype=torch.float64)

    def learning_rates(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict.fromkeys(params, self.factor * torch.exp(self.value))


def share_above(bound: float) -> Any:
    return lambda model, data: {"above": (model(data[0]).max(1).values > bound).double().mean()}


def hooked(place: int, register: str, hook: Any, **options: Any) -> dict[str, Any]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        getattr(model[place], register)(hook, **options)
        return model

    return {"model": make}


def scaled(scale: float) -> Any:
    return lambda module, gradients, others=None: (scale * gradients[0],)


def bounded(bound: float) -> Any:
    return lambda module, inputs, output: output.clamp(-bound, bound)


def bounded_input(bound: float) -> Any:
    return lambda module, inputs, given: ((inputs[0].clamp(-bound, bound),), given)


HOOKS: dict[str, Any] = {
    "backward hook": lambda value: hooked(1, "register_full_backward_hook", scaled(value)),
    "backward pre-hook": lambda value: hooked(1, "register_full_backward_pre_hook", scaled(value)),
    "forward hook": lambda value: hooked(0, "register_forward_hook", bounded(value)),
    "forward pre-hook": lambda value: hooked(1, "register_forward_pre_hook", bounded_input(value), with_kwargs=True),
}


class Halved(nn.Module):
    """A layer whose forward hook is one of its own methods."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.layer.register_forward_hook(self.halve)

    def halve(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / 2

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


DIFFERENT: dict[str, Any] = {
    **{name: lambda seed, make=make: make(1.9 + seed) for name, make in HOOKS.items()},  # at θ_0, 1.9 bounds nothing
    "setting of a penalty": lambda seed: {"hyper": lambda model: Power(2.0 + 2 * seed)},
    "tensor": lambda seed: {"hyper": lambda model: Scaled(1.0 + seed, buffer=False), "inner": pt.SGD(0.1)},
    "buffer": lambda seed: {"hyper": lambda model: Scaled(1.0 + seed, buffer=True), "inner": pt.SGD(0.1)},
    "metric": lambda seed: {"losses": {"loss": cross_entropy, "metrics": share_above(0.5 * seed)}},
    "loss": lambda seed: {"losses": {"loss": partial(cross_entropy, label_smoothing=0.1 * seed)}},
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_cells_do_not_share_is_not_taken_from_the_first(what: str) -> None:
    def mixed(seed: int) -> pt.Tuner:
        return build(0.05, 0, **DIFFERENT[what](seed), engine="eager")

    found = pt.fit_grid(mixed, {"seed": [0, 1]}, outer_steps=3, engine=Traced(steps=2), progress=False)
    for cell, result in zip(found.cells, found.results, strict=True):
        names, values = table(mixed(**cell).fit(3, progress=False))
        assert table(result)[0] == names
        torch.testing.assert_close(table(result)[1], values, rtol=1e-9, atol=1e-11)
    assert not torch.equal(table(found.results[0])[1], table(found.results[1])[1])


def test_cells_that_agree_stay_stacked() -> None:
    kept, engine = list[pt.Tuner](), Traced(steps=2)

    def keep(zeta: float, seed: int) -> pt.Tuner:
        kept.append(build(zeta, seed))
        return kept[-1]

    pt.fit_grid(keep, GRID, outer_steps=2, engine=engine, progress=False)
    assert not engine.unrecordable


def test_a_cell_that_changes_on_the_way_is_not_stacked_any_more() -> None:
    """A listener gives one cell another slope; the others keep theirs."""

    def build_leaky(zeta: float, seed: int) -> pt.Tuner:
        return build(zeta, seed, model=lambda: nn.Sequential(nn.Linear(6, 4), nn.LeakyReLU(0.01), nn.Linear(4, 3)))

    class Bend(pt.Callback):
        def on_outer_step(self, tuner: pt.Tuner, row: Any) -> None:
            if tuner.seed == 1:
                tuner.problem.model[1].negative_slope += 0.3

    found = pt.fit_grid(build_leaky, GRID, outer_steps=3, callbacks=[Bend()], engine=Traced(steps=2), progress=False)
    for cell, result in zip(found.cells, found.results, strict=True):
        alone = build_leaky(**cell).fit(3, callbacks=[Bend()], progress=False)
        torch.testing.assert_close(table(result)[1], table(alone)[1], rtol=1e-9, atol=1e-11)


def test_losses_of_the_same_making_are_stacked(caplog: pytest.LogCaptureFixture) -> None:
    def own(zeta: float, seed: int) -> pt.Tuner:
        loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        return build(zeta, seed, losses={"loss": loss, "metrics": share_above(0.5)}, inner=pt.SGD(lambda step: 0.1))

    with caplog.at_level(logging.INFO, "pactune.engines"):
        pt.fit_grid(own, GRID, outer_steps=1, engine=Traced(steps=2), progress=False)
    assert not any("not stacked" in message for message in caplog.messages)


@pytest.mark.parametrize("what", [*HOOKS, "method of the model"])
def test_cells_with_the_same_hooks_are_stacked(what: str, caplog: pytest.LogCaptureFixture) -> None:
    def own(zeta: float, seed: int) -> pt.Tuner:
        return build(zeta, seed, **(HOOKS[what](1.9) if what in HOOKS else {"model": Halved}))

    with caplog.at_level(logging.INFO, "pactune.engines"):
        pt.fit_grid(own, GRID, outer_steps=1, engine=Traced(steps=2), progress=False)
    assert not any("not stacked" in message for message in caplog.messages)


def test_history_has_a_column_for_every_key() -> None:
    found = pt.fit_grid(build, GRID, outer_steps=2, progress=False)
    assert list(found.history.columns[:3]) == ["zeta", "seed", "outer_step"]
    assert len(found.history) == len(found.plain) == 8
    assert found.history.groupby(["zeta", "seed"]).size().eq(2).all()


def test_a_grid_goes_on_where_it_stopped(tmp_path: Path) -> None:
    reference = pt.fit_grid(build, GRID, outer_steps=4, progress=False)
    pt.fit_grid(build, GRID, outer_steps=2, run_dir=tmp_path, progress=False)
    resumed = pt.fit_grid(build, GRID, outer_steps=4, run_dir=tmp_path, resume=True, progress=False)
    for one, other in zip(reference.results, resumed.results, strict=True):
        assert table(one)[1].tolist() == table(other)[1].tolist()
    folder = tmp_path / "zeta=0.05,seed=1"
    rows = [line["outer_step"] for line in read_journal(folder) if line["kind"] == "row"]
    assert rows == [1, 2, 3, 4]


def test_a_cell_that_diverges_leaves_the_others_alone() -> None:
    def wild(zeta: float, seed: int) -> pt.Tuner:
        tuner = build(zeta, seed, inner=pt.SGD(0.1))
        if seed == 1:
            with torch.no_grad():
                tuner.problem.model.weight.fill_(1e300)
        return tuner

    found = pt.fit_grid(wild, GRID, outer_steps=3, progress=False)
    status = {
        (cell["zeta"], cell["seed"]): result.status for cell, result in zip(found.cells, found.results, strict=True)
    }
    assert {cell for cell, words in status.items() if words == "diverged"} == {(0.0, 1), (0.05, 1)}
    alone = wild(0.05, 0).fit(3, progress=False)
    torch.testing.assert_close(table(found.results[-2])[1], table(alone)[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"zeta": 1.0, "seed": [0]}, "list of values"),
        ({"zeta": [], "seed": [0]}, "no cell"),
        ([], "no cell"),
        (3, "dict of lists or a list of dicts"),
        ([{"zeta": 0.0, "seed": 0}, {"zeta": 0.0, "seed": 0}], "twice"),
        ({"zeta": ["auto"], "seed": [0]}, "many runs of its own"),
    ],
)
def test_bad_grids_are_named(grid: Any, words: str) -> None:
    with pytest.raises(pt.SettingError, match=words):
        pt.fit_grid(build, grid, outer_steps=1, progress=False)


def test_cells_need_models_of_their_own() -> None:
    shared = build(0.0, 0)
    with pytest.raises(pt.SettingError, match="new model"):
        pt.fit_grid(lambda zeta, seed: shared, GRID, outer_steps=1, progress=False)


def over(part: nn.Module) -> Any:
    """Return a function that makes models whose first layer is the same object."""
    return lambda: nn.Sequential(part, nn.Linear(6, 3))


def normalised() -> nn.Module:
    return nn.BatchNorm1d(6, affine=False)


@pytest.mark.parametrize(("part", "name"), [(nn.Linear(6, 6), "0.weight"), (normalised(), "0.running_mean")])
def test_cells_must_not_share_tensors_that_runs_change(part: nn.Module, name: str) -> None:
    with pytest.raises(pt.SettingError, match=f"two cells share the memory of `model.{name}`"):
        pt.fit_grid(lambda seed: build(0.0, seed, model=over(part)), {"seed": [0, 1]}, outer_steps=1, progress=False)


def test_cells_must_not_share_a_hyperparameter() -> None:
    values = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def hyper(model: nn.Module) -> nn.Module:
        own = Power(2.0)
        own.value = values
        return own

    with pytest.raises(pt.SettingError, match=r"two cells share the memory of `hyper\.value`"):
        pt.fit_grid(lambda seed: build(0.0, seed, hyper=hyper), {"seed": [0, 1]}, outer_steps=1, progress=False)


@pytest.mark.parametrize("part", [nn.Linear(6, 6).requires_grad_(requires_grad=False), normalised().eval()])
def test_cells_may_share_frozen_parts(part: nn.Module) -> None:
    def own(seed: int) -> pt.Tuner:
        return build(0.0, seed, model=over(part))

    found = pt.fit_grid(own, {"seed": [0, 1]}, outer_steps=2, progress=False)
    for cell, result in zip(found.cells, found.results, strict=True):
        alone = own(**cell).fit(2, progress=False)
        torch.testing.assert_close(table(result)[1], table(alone)[1], rtol=1e-9, atol=1e-11)


def test_build_must_return_a_tuner() -> None:
    with pytest.raises(pt.SettingError, match="must return a Tuner"):
        pt.fit_grid(lambda zeta, seed: None, GRID, outer_steps=1, progress=False)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("case", ["decay", "BatchNorm"])
@pytest.mark.parametrize("count", [1, 6])
def test_both_gradients_at_once(case: str, count: int) -> None:
    cells = [(zeta, seed) for zeta in (0.1, 0.0) for seed in (0, 1, 2)][:count]
    tuners = [build(zeta, seed, **CASES[case]) for zeta, seed in cells]
    runs = [tuner.outer_run for tuner in tuners]
    requests = [run.chains.requests(run.plan(0.1), run.problem.hyperparameters())[0] for run in runs]
    joined = Stack(requests).join(requests)
    (state,), (data,), trajectory = joined.states, joined.step_data_at(0), joined.plan.trajectory
    joint = JointGradients.of(trajectory, [data.train], [data.valid])
    assert joint is not None
    found = joint(state, joined.hyper, data._replace(train=joint.batch))
    wanted = trajectory.gradient_pair(state, joined.hyper, data)
    for part, expected in zip(found, wanted, strict=True):
        for name, value in expected.items():
            assert value.abs().max() > 1e-3 or (case, name) == ("BatchNorm", "0.bias")  # a mean that is taken away
            torch.testing.assert_close(part[name], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": pt.ValidationRisk()},
        {"hyper": lambda model: pt.ExampleWeights(20)},
    ],
    ids=["no path", "weights"],
)
def test_gradients_that_differ_in_more_than_rows_are_not_joined(changes: dict[str, Any]) -> None:
    tuners = [build(0.1, seed, **changes) for seed in (0, 1)]
    runs = [tuner.outer_run for tuner in tuners]
    requests = [run.chains.requests(run.plan(0.1), run.problem.hyperparameters())[0] for run in runs]
    joined = Stack(requests).join(requests)
    (data,) = joined.step_data_at(0)
    assert JointGradients.of(joined.plan.trajectory, [data.train], [data.valid]) is None


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_optimizers_move_together_as_alone(kind: Any) -> None:
    def run(*, together: bool) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        lists = [[torch.randn(3, generator=generator).requires_grad_() for _ in range(2)] for _ in range(3)]
        more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizers = [kind(tensors, lr=0.1, **more) for tensors in lists]
        for _ in range(4):
            for tensor in (t for tensors in lists for t in tensors):
                tensor.grad = torch.randn(3, generator=generator)
            moves = [OuterStepRequest(one) for one in optimizers]
            for group in [moves] if together else [[move] for move in moves]:
                take_outer_steps(group)
        assert all(len(one.state_dict()["state"]) == 2 for one in optimizers)
        return [tensor.detach() for tensors in lists for tensor in tensors]

    for found, wanted in zip(run(together=True), run(together=False), strict=True):
        assert torch.equal(found, wanted)


def test_optimizers_with_other_settings_or_schedulers_move_by_themselves() -> None:
    def run(*, together: bool) -> list[Tensor]:
        tensors = [torch.ones(2, requires_grad=True) for _ in range(4)]
        rates = (0.1, 0.2, 0.1, 0.1)
        optimizers = [torch.optim.SGD([t], lr=lr) for t, lr in zip(tensors, rates, strict=True)]
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizers[3], 0.5)
        for _ in range(3):
            for tensor in tensors:
                tensor.grad = torch.ones(2)
            moves = [OuterStepRequest(one) for one in optimizers]
            for group in [moves] if together else [[move] for move in moves]:
                take_outer_steps(group)
            scheduler.step()
        return [tensor.detach() for tensor in tensors]

    assert all(torch.equal(a, b) for a, b in zip(run(together=True), run(together=False), strict=True))


def test_runs_that_fail_together_go_on_alone_and_say_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def short_of_memory(requests: Any, engine: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError("12 MiB are missing\nand much more")

    monkeypatch.setattr(runner, "run_chains", short_of_memory)
    with caplog.at_level("WARNING"):
        found = pt.fit_grid(build, GRID, outer_steps=1, engine="traced", progress=False)
    assert [record.message for record in caplog.records] == [
        "steps are run one by one from now on: run together, the runs failed with RuntimeError: 12 MiB are missing"
    ]
    assert len(found.history) == len(pt.fit_grid(build, GRID, outer_steps=1, engine="eager", progress=False).history)
