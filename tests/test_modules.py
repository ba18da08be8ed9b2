"""Models that are not plain modules: compiled ones are run without the compiler, others are refused with a remedy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import pactune as pt


class Net(nn.Module):
    """A net of its own class, since torch does not compile the forward of an `nn.Sequential` in place."""

    def __init__(self, first: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(4, 5) if first is None else first
        self.norm, self.last = nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(self.norm(self.first(x)), 0.2, self.training))  # type: ignore[no-any-return]


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def inside(model: Net) -> nn.Module:
    model.first = torch.compile(model.first, backend="aot_eager")  # type: ignore[assignment]
    return model


COMPILED: dict[str, Callable[[Any], Any]] = {
    "the model": lambda model: torch.compile(model, backend="aot_eager"),
    "the model in place": in_place,
    "a part of the model": inside,
}


def drawn(kind: Callable[[], Any] = Net) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind()


def objectives(make: Any, model: nn.Module, hyper: nn.Module, **settings: Any) -> list[float]:
    settings = {"hypergradient": pt.Truncated(2), "path_hypergradient": pt.Truncated(1), "batch_size": 4} | settings
    result = make(model, hyper, **settings).fit(2, progress=False)
    return [row["objective"] for row in result.rows]


@pytest.fixture
def never_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail when a compiled function is called."""
    from torch._dynamo import convert_frame

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the compiler was called")

    monkeypatch.setattr(convert_frame, "_compile", refuse)
    with pytest.raises(AssertionError, match="the compiler was called"):  # the fixture works
        torch.compile(Net(), backend="eager")(torch.zeros(2, 4))


@pytest.mark.usefixtures("never_compiled")
@pytest.mark.parametrize("engine", ["eager", "auto"])
@pytest.mark.parametrize("what", COMPILED)
def test_tuning_runs_a_compiled_model_without_the_compiler(make: Any, what: str, engine: str) -> None:
    plain = drawn()
    expected = objectives(make, plain, pt.WeightDecay(plain, init=0.1), engine=engine)
    model = COMPILED[what](drawn())
    with pytest.warns(UserWarning, match="the model is compiled by torch.compile; tuning calls the module without"):
        assert objectives(make, model, pt.WeightDecay(model, init=0.1), engine=engine) == expected
    found = [value.detach() for value in model.parameters()]
    torch.testing.assert_close(found, [value.detach() for value in plain.parameters()], rtol=0, atol=0)
    with pytest.raises(AssertionError, match="the compiler was called"):  # the user's own calls are compiled as before
        model(torch.zeros(2, 4))


@pytest.mark.usefixtures("never_compiled")
def test_hyperparameters_may_belong_to_the_module_inside(make: Any) -> None:
    first, second = drawn(), drawn()
    hypers = [pt.WeightDecay(first, init=0.1), pt.WeightDecay(second, init=0.1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = objectives(make, torch.compile(second), hypers[1], restart=True)
    assert found == objectives(make, first, hypers[0], restart=True)


@pytest.mark.usefixtures("never_compiled")
@pytest.mark.parametrize("loss", [torch.compile(F.cross_entropy), torch.compile(nn.CrossEntropyLoss())])
def test_a_compiled_loss_is_called_without_the_compiler(make: Any, loss: Any) -> None:
    model, again = drawn(), drawn()
    expected = objectives(make, model, pt.WeightDecay(model))
    assert objectives(make, again, pt.WeightDecay(again), loss=loss) == expected


@pytest.mark.usefixtures("never_compiled")
def test_a_compiled_model_can_be_checked(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = drawn()
        tuner = make(torch.compile(model), pt.WeightDecay(model), hypergradient=pt.Truncated(4), batch_size=6)
        assert pt.check_hypergradient(tuner).error < 1e-5


# Refused


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.Linear(5, 3))


HYPERS: list[Callable[[nn.Module], Any]] = [pt.WeightDecay, pt.LearningRates, pt.Initialization]


@pytest.mark.parametrize("kind", HYPERS)
def test_lazy_modules_are_refused_until_they_have_shapes(make: Any, kind: Callable[[nn.Module], Any]) -> None:
    model = lazy()
    with pytest.raises(pt.SettingError, match=r"got uninitialised 0\.weight, .* call the model on one batch first"):
        kind(model)
    with pytest.raises(pt.SettingError, match="call the model on one batch first"):
        make(model, pt.ExampleWeights(12))
    model(torch.zeros(2, 4))
    assert len(objectives(make, model, pt.WeightDecay(model))) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("way", ["scripted", "traced", "a scripted part"])
def test_torchscript_is_refused(make: Any, way: str) -> None:
    model = drawn(lambda: nn.Linear(4, 3))
    found = torch.jit.trace(model, torch.zeros(2, 4)) if way == "traced" else torch.jit.script(model)
    found = nn.Sequential(found) if way == "a scripted part" else found
    with pytest.raises(pt.SettingError, match="pass the module that was scripted or traced"):
        make(found, pt.ExampleWeights(12))
    with pytest.raises(pt.SettingError, match="pass the module that was scripted or traced"):
        pt.WeightDecay(found)
    with pytest.raises(pt.SettingError, match="pass the module that was scripted or traced"):
        pt.CoherenceMonitor(found, F.cross_entropy)
