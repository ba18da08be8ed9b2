"""Batches that are dicts, other mappings, dataclasses or NamedTuples give the numbers of tuples everywhere."""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, Dataset, SequentialSampler

import pactune as pt
from pactune.nested import flatten, map_tensors
from pactune.problem.provenance import DataMark
from tests.conftest import classes, linear


class Encoding(UserDict[str, Any]):
    """A mapping like the `BatchEncoding` of Hugging Face: entries in `data`, and other attributes beside them."""

    def __init__(
        self, data: dict[str, Any] | None = None, encodings: Any = None, n_sequences: int | None = None
    ) -> None:
        super().__init__(data)
        self._encodings, self._n_sequences = encodings, n_sequences

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed."""

    def __init__(self, entries: dict[str, Any]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Example:
    x: Tensor
    y: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class FrozenExample:
    x: Tensor
    y: Tensor
    rows: str = field(init=False, default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if not isinstance(self.x, Tensor):
            raise TypeError("a tensor is wanted")


@dataclass
class Labelled:
    x: Tensor
    y: Tensor


class Form(NamedTuple):
    """How a batch is made from (x, y), and how a loss reads it."""

    make: Callable[[Tensor, Tensor], Any]
    read: Callable[[Any], tuple[Tensor, Tensor]] = lambda batch: (batch["x"], batch["y"])


FORMS = {
    "dict": Form(lambda x, y: {"x": x, "y": y}),
    "ordered dict": Form(lambda x, y: OrderedDict(y=y, x=x)),
    "default dict": Form(lambda x, y: defaultdict(list, {"x": x, "y": y})),
    "nested dict": Form(lambda x, y: {"in": {"x": [x]}, "y": y}, lambda b: (b["in"]["x"][0], b["y"])),
    "encoding": Form(lambda x, y: Encoding({"x": x, "y": y}, n_sequences=1), lambda b: (b.x, b["y"])),
    "mapping": Form(lambda x, y: Frozen({"x": x, "y": y})),
    "named tuple": Form(Pair, lambda b: (b.x, b.y)),
    "dataclass": Form(Example, lambda b: (b.x, b.y)),
    "frozen dataclass": Form(FrozenExample, lambda b: (b.x, b.y)),
    "dataclass of dicts": Form(lambda x, y: Example({"x": x}, y), lambda b: (b.x["x"], b.y)),  # type: ignore[arg-type]
}
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
TRAIN, VALID, TEST = classes(12, 1), classes(10, 2), classes(9, 3)


class Rows(Dataset[Any]):
    """Rows of a form, one by one."""

    def __init__(self, form: Form, x: Tensor, y: Tensor) -> None:
        self.form, self.x, self.y = form, x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.form.make(self.x[row], self.y[row])


def tuner(form: Form | None, engine: str = "traced", seed: int = 0, outer_lr: float = 0.1, **data: Any) -> pt.Tuner:
    """Return a tuner whose losses read batches of a form; None for tuples (x, y)."""

    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        x, y = batch if form is None else form.read(batch)
        return F.cross_entropy(model(x), y)

    model = linear()
    hyper = pt.WeightDecay(model, init=0.05)
    problem = pt.Problem(model, hyper, train_loss=loss, valid_loss=loss, **data)
    outer = torch.optim.SGD(hyper.parameters(), lr=outer_lr)
    settings = {"inner": pt.SGD(lr=0.1), "inner_steps": 5, "objective": pt.PACBayes(zeta=0.05)}
    return pt.Tuner(problem, outer=outer, engine=engine, seed=seed, **settings)


def numbers(given: pt.Tuner, test: Any = None) -> pd.DataFrame:
    return given.fit(2, test=test, progress=False).history.drop(columns="seconds")


WAYS: dict[str, Callable[[Callable[[Tensor, Tensor], Any]], dict[str, Any]]] = {
    "tensors": lambda make: {"train": make(*TRAIN), "valid": make(*VALID)},
    "mini-batches": lambda make: {
        "train": make(*TRAIN), "valid": make(*VALID), "batch_size": 4, "valid_batch_size": 5
    },
    "folds": lambda make: {"data": make(*TRAIN), "folds": 3},
    "tasks": lambda make: {
        "tasks": [(make(*TRAIN), make(*VALID)), (make(*classes(12, 4)), make(*classes(10, 5)))], "tasks_per_step": 2
    },
}  # fmt: skip


@EACH
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_every_structure_gives_the_numbers_of_tuples(
    form: Form, way: str, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pactune")
    test = None if way == "tasks" else form.make(*TEST)
    found = numbers(tuner(form, engine, **WAYS[way](form.make)), test)
    assert "one by one" not in caplog.text  # the steps were recorded
    assert "not stacked" not in caplog.text
    pd.testing.assert_frame_equal(found, of_tuples(way, engine), check_exact=True)


@functools.cache
def of_tuples(way: str, engine: str) -> pd.DataFrame:
    return numbers(tuner(None, engine, **WAYS[way](lambda x, y: (x, y))), None if way == "tasks" else TEST)


@EACH
@pytest.mark.parametrize("way", ["data set", "loader", "own sampler"])
def test_rows_and_loaders_of_every_structure(form: Form, way: str) -> None:
    def data(form: Form, x: Tensor, y: Tensor) -> Any:
        rows = Rows(form, x, y)
        if way == "data set":
            return rows
        sampler = list(range(len(rows))) if way == "own sampler" else SequentialSampler(rows)
        collate = lambda rows: form.make(*map(torch.stack, zip(*map(form.read, rows), strict=True)))  # noqa: E731
        return DataLoader(rows, 4, sampler=sampler, collate_fn=collate)  # type: ignore[arg-type]

    sizes = {"batch_size": 4, "valid_batch_size": 4} if way == "data set" else {}
    pair = Form(lambda x, y: (x, y), lambda batch: batch)
    parts = [{"train": data(one, *TRAIN), "valid": data(one, *VALID), **sizes} for one in (form, pair)]
    found, wanted = numbers(tuner(form, "eager", **parts[0])), numbers(tuner(None, "eager", **parts[1]))
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)


@EACH
def test_runs_of_every_structure_are_stacked(form: Form, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pactune")

    def histories(form: Form | None) -> pd.DataFrame:
        make = form.make if form is not None else lambda x, y: (x, y)
        sets = {seed: (make(*classes(12, seed)), make(*VALID)) for seed in (1, 2, 3)}

        def build(seed: int) -> pt.Tuner:
            return tuner(form, seed=seed, train=sets[seed][0], valid=sets[seed][1], batch_size=4)

        grid = pt.fit_grid(build, {"seed": [1, 2, 3]}, outer_steps=2)
        return grid.history.drop(columns="seconds")

    found = histories(form)
    assert "not stacked" not in caplog.text
    pd.testing.assert_frame_equal(found, histories(None), check_exact=True)


@EACH
def test_a_rebuilt_batch_has_its_type_and_shares_nothing(form: Form) -> None:
    given = form.make(*TRAIN)
    rebuilt = map_tensors(given, lambda tensor: tensor + 1)
    assert type(rebuilt) is type(given)
    assert torch.equal(form.read(rebuilt)[0], TRAIN[0] + 1)
    assert torch.equal(form.read(given)[0], TRAIN[0])  # the original keeps its tensors
    assert flatten(rebuilt)[1] == flatten(given)[1]


def test_attributes_of_a_mapping_are_kept() -> None:
    words = ["a", "b"]
    given = Encoding({"x": torch.ones(2)}, encodings=words, n_sequences=2)
    rebuilt = map_tensors(given, lambda tensor: 2 * tensor)
    assert rebuilt._encodings == words
    assert rebuilt._n_sequences == 2
    other = Encoding({"x": torch.ones(2)}, n_sequences=3)
    assert flatten(other)[1] != flatten(Encoding({"x": torch.ones(2)}, n_sequences=2))[1]


def test_a_type_that_torch_knows_is_taken_apart_by_torch() -> None:
    from torch.utils import _pytree as pytree

    class Registered:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor

    pytree.register_pytree_node(Registered, lambda v: ([v.tensor], None), lambda parts, _: Registered(*parts))
    assert torch.equal(map_tensors({"x": Registered(torch.ones(2))}, torch.neg)["x"].tensor, -torch.ones(2))


# More than tensors


def test_batches_with_texts_run_step_by_step_and_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The text of a batch decides its weight, so a recording or a stack that kept one text would be wrong."""
    caplog.set_level(logging.INFO, "pactune")

    class Texts(Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, row: int) -> Any:
            return {"x": TRAIN[0][row], "y": TRAIN[1][row], "text": "a" * (row % 5)}

    def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
        weight = torch.tensor([1.0 + len(text) for text in batch["text"]])
        return (weight * F.cross_entropy(model(batch["x"]), batch["y"], reduction="none")).mean()

    def build(seed: int, engine: str = "traced") -> pt.Tuner:
        model = linear()
        hyper = pt.WeightDecay(model, init=0.05)
        problem = pt.Problem(
            model, hyper, train=Texts(), valid=Texts(), train_loss=loss, valid_loss=loss, batch_size=4,
            valid_batch_size=4,
        )  # fmt: skip
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        return pt.Tuner(
            problem,
            inner=pt.SGD(0.1),
            inner_steps=5,
            outer=outer,
            objective=pt.PACBayes(0.05),
            seed=seed,
            engine=engine,
        )

    together = pt.fit_grid(build, {"seed": [0, 1]}, outer_steps=2).history
    assert "a batch holds more than tensors" in caplog.text
    alone = [numbers(build(seed, engine="eager")) for seed in (0, 1)]
    for seed, wanted in enumerate(alone):
        own = together[together["seed"] == seed]
        assert own["risk"].tolist() == wanted["risk"].tolist()


# The short form: loss(model(inputs), target)


class TwoInputs(nn.Module):
    """A model whose inputs have names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        scores: Tensor = self.layer(input_ids if attention_mask is None else input_ids * attention_mask)
        return scores


MASK = (torch.arange(48).reshape(12, 4) % 3 > 0).float()
SHORT: dict[str, tuple[Any, Any]] = {
    "one input": ({"input_ids": TRAIN[0], "labels": TRAIN[1]}, TRAIN),
    "two inputs": (
        {"labels": TRAIN[1], "attention_mask": MASK, "input_ids": TRAIN[0]}, (TRAIN[0] * MASK, TRAIN[1])
    ),
    "encoding": (Encoding({"input_ids": TRAIN[0], "target": TRAIN[1]}), TRAIN),
    "named tuple": (Pair(*TRAIN), TRAIN),
    "dataclass": (Labelled(*TRAIN), TRAIN),
}  # fmt: skip


@pytest.mark.parametrize("case", SHORT)
def test_the_short_form_finds_inputs_and_target(case: str) -> None:
    given, pair = SHORT[case]

    def history(train: Any) -> pd.DataFrame:
        model = TwoInputs()
        hyper = pt.WeightDecay(model, init=0.05)
        problem = pt.Problem(model, hyper, data=train, folds=3, loss=F.cross_entropy)
        outer = torch.optim.SGD(hyper.parameters(), lr=0.1)
        made = pt.Tuner(problem, inner=pt.SGD(0.1), inner_steps=4, outer=outer, objective=pt.PACBayes(0.05))
        result = made.fit(2, progress=False)
        assert result.out_of_fold is not None
        return result.history.drop(columns="seconds")

    pd.testing.assert_frame_equal(history(given), history(pair), check_exact=True)


@pytest.mark.parametrize("given", [{"x": TRAIN[0], "z": TRAIN[1]}, {"label": TRAIN[1], "y": TRAIN[1], "x": TRAIN[0]}])
def test_a_mapping_without_one_target_is_refused(given: dict[str, Tensor]) -> None:
    model = linear()
    problem = pt.Problem(model, pt.WeightDecay(model), train=given, valid=given, loss=F.cross_entropy)
    with pytest.raises(pt.DataError, match="a mapping whose target is named one of"):
        problem.try_losses()


def test_a_dict_that_holds_an_array_is_refused() -> None:
    model = linear()
    given = {"x": TRAIN[0].numpy(), "y": TRAIN[1]}
    with pytest.raises(pt.DataError, match=r"got dict of \(x: ndarray, y: Tensor\); turn arrays into tensors"):
        pt.Problem(model, pt.WeightDecay(model), train=given, valid=TRAIN, loss=F.cross_entropy)


def test_a_sample_of_mappings_has_an_identity() -> None:
    mark = DataMark("one", {"x": TRAIN[0], "labels": TRAIN[1]})
    assert mark.shared(DataMark("other", TRAIN)) == 12
