"""Small problems that many tests share."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pactune as pt
from pactune.search import comparison, decays, many
from pactune.trees import Params

Make = Callable[..., pt.Tuner]


def classes(rows: int, seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return inputs of four features and labels of three classes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=generator, dtype=dtype)
    return x, torch.randint(0, 3, (rows,), generator=generator)


def linear(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a linear classifier whose start depends on the seed alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(4, 3, dtype=dtype)


def make_tuner(
    model: nn.Module | None = None,
    hyper: nn.Module | None = None,
    *,
    train: Any = None,
    valid: Any = None,
    batch_size: int | None = None,
    outer_lr: float = 0.1,
    **settings: Any,
) -> pt.Tuner:
    """Return a tuner of a small classifier with per-element weight decay; every part can be replaced."""
    model = linear() if model is None else model
    hyper = pt.WeightDecay(model, init=0.05) if hyper is None else hyper
    losses = {k: settings.pop(k) for k in ("train_loss", "valid_loss", "loss") if k in settings}
    problem = pt.Problem(
        model,
        hyper,
        train=classes(12, 1) if train is None else train,
        valid=classes(10, 2) if valid is None else valid,
        batch_size=batch_size,
        **(losses or {"loss": nn.functional.cross_entropy}),
    )
    defaults = {
        "inner": pt.SGD(lr=0.1),
        "inner_steps": 4,
        "outer": torch.optim.SGD(hyper.parameters(), lr=outer_lr),
        "objective": pt.PACBayes(zeta=0.05),
    }
    return pt.Tuner(problem, **(defaults | settings))


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    """Let Ctrl-C raise in every test: Ray leaves a handler of its own behind. pactune must leave none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    after = signal.signal(signal.SIGINT, before)
    assert "pactune" not in str(getattr(after, "__module__", "")), "the test left a handler of Ctrl-C behind"


@pytest.fixture(name="make")
def make_fixture() -> Make:
    """The maker of small tuners."""
    return make_tuner


@pytest.fixture(name="classes")
def classes_fixture() -> Callable[..., tuple[Tensor, Tensor]]:
    """The maker of small data sets."""
    return classes


@pytest.fixture(name="linear")
def linear_fixture() -> Callable[..., nn.Module]:
    """The maker of linear classifiers."""
    return linear


@pytest.fixture
def rng_untouched() -> Any:
    """Fail when the test moves torch's global generator."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(before, torch.get_rng_state()), "the global generator moved"


def flat(tree: Params) -> Tensor:
    """Return all values of a tree in one vector."""
    return torch.cat([value.detach().reshape(-1) for value in tree.values()])


@pytest.fixture(name="flat")
def flat_fixture() -> Callable[[Params], Tensor]:
    """The flattener of trees."""
    return flat


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search of `pt.tune` with a few rounds and outer steps."""
    shorten_search(monkeypatch)


def shorten_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the search of `pt.tune` to a few rounds and outer steps."""
    tuning = importlib.import_module("pactune.search.tune")  # the package has a function of this name
    for name in ("ROUNDS", "MOST_ROUNDS"):
        monkeypatch.setattr(decays, name, 4)
    for module in (many, tuning):
        monkeypatch.setattr(module, "OUTER_STEPS", 3)
    monkeypatch.setattr(comparison, "RESAMPLES", 20)
