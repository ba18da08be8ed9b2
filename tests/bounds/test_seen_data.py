"""What values have seen travels with them: into a second fit, a second tuner, copies and parts of other models."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import TensorDataset

import pactune as pt
from pactune import bounds
from pactune.bounds.coupled_langevin import CoupledChains
from pactune.errors import CertificateError
from pactune.problem.data import as_source
from pactune.problem.provenance import DataMark, Provenance
from pactune.problem.seen_data import MOST_SAMPLES, SEEN_DATA, SeenData

CHAIN = CoupledChains(0.2, 50.0, 3)
NOTHING = Provenance()
for thing in ("model", "hyper", "prior hyper", "default hyper", "initial"):
    NOTHING = NOTHING.touch(thing)


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (60,), generator=generator)
    return torch.randn(60, 4, generator=generator) + 2 * F.one_hot(y, 4), y


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def problem(model: nn.Module, hyper: nn.Module | None = None, *, train: int, valid: int) -> pt.Problem:
    hyper = hyper or pt.WeightDecay(model, per="global", init=0.1)
    return pt.Problem(model, hyper, train=rows(train), valid=rows(valid), loss=F.cross_entropy)


def tune(p: pt.Problem, **settings: Any) -> tuple[pt.Tuner, pt.Result]:
    outer = torch.optim.SGD(p.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(p, inner=pt.SGD(0.1), inner_steps=3, outer=outer, objective=pt.ValidationRisk(), **settings)
    return tuner, tuner.fit(3, progress=False, plain_steps=0)


# θ


def test_values_of_a_fit_that_an_error_ended_are_known_in_copies() -> None:
    class Fails(pt.Callback):
        def on_outer_step(self, *_: Any) -> None:
            raise RuntimeError

    p = problem(linear(), train=1, valid=2)
    outer = torch.optim.SGD(p.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(p, inner=pt.SGD(0.1), inner_steps=3, outer=outer, objective=pt.ValidationRisk())
    with pytest.raises(RuntimeError):
        tuner.fit(3, progress=False, callbacks=[Fails()])
    with pytest.raises(CertificateError, match="which touched the model"):
        pt.certify(bounds.HoldOut(copy.deepcopy(p.model), rows(1), NOTHING))


@pytest.fixture(scope="module")
def trained() -> nn.Linear:
    """A model that a fit trained on the rows 1 and 2."""
    model = linear()
    tune(problem(model, train=1, valid=2))
    return model


def by_file(model: nn.Linear) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return loaded(torch.load(buffer))


def loaded(state: dict[str, Tensor]) -> nn.Linear:
    model = linear(5)
    model.load_state_dict(state)
    return model


COPIES: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "the model itself": lambda model: model,
    "deepcopy": copy.deepcopy,
    "load_state_dict": lambda model: loaded(model.state_dict()),
    "a file": by_file,
    "float64": lambda model: copy.deepcopy(model).double().float(),
    "a part of another model": lambda model: nn.Sequential(model, nn.Tanh(), nn.Linear(3, 3)),
    "copied into a part": lambda model: nn.Sequential(copy.deepcopy(model), nn.Tanh(), nn.Linear(3, 3)),
}


@pytest.mark.parametrize("way", COPIES)
def test_rows_of_an_earlier_fit_are_no_hold_out(trained: nn.Linear, way: str) -> None:
    """Whoever says that nothing touched the model is corrected; the rows 3 are fresh."""
    model = COPIES[way](trained)
    for seen in (1, 2):
        with pytest.raises(CertificateError, match="which touched the model"):
            pt.certify(bounds.HoldOut(model, rows(seen), NOTHING))
    assert pt.certify(bounds.HoldOut(model, rows(3), NOTHING)).n == 60


@pytest.mark.parametrize("way", COPIES)
def test_a_second_fit_remembers_the_first(trained: nn.Linear, way: str) -> None:
    model = copy.deepcopy(COPIES[way](trained))
    _, result = tune(problem(model, train=3, valid=4))
    for seen in (1, 2, 3, 4):
        with pytest.raises(CertificateError, match="fresh sample"):
            pt.certify(bounds.HoldOut(result.model, rows(seen), result.provenance))
    fresh = pt.certify(bounds.HoldOut(result.model, rows(5), result.provenance))
    assert not any("chosen without the data" in words for words in fresh.assumptions)


def test_training_on_by_hand_forgets_nothing() -> None:
    model = linear()
    tune(problem(model, train=1, valid=2))
    with torch.no_grad():
        model.weight.mul_(0.9)
    with pytest.raises(CertificateError, match="which touched the model"):
        pt.certify(bounds.HoldOut(model, rows(2), NOTHING))


def test_a_loop_of_your_own_is_recorded() -> None:
    model = linear()
    p = problem(model, train=1, valid=2)
    outer = torch.optim.SGD(p.hyper.parameters(), lr=0.1)
    tuner = pt.Tuner(p, inner=pt.SGD(0.1), inner_steps=3, outer=outer, objective=pt.ValidationRisk())
    tuner.hypergradient()
    outer.step()
    with pytest.raises(CertificateError, match="which touched the model"):
        pt.certify(bounds.HoldOut(model, rows(2), NOTHING))
    again = pt.Tuner(p, inner=pt.SGD(0.1), inner_steps=3, outer=outer, objective=pt.ValidationRisk())
    assert again.outer_run.start_seen


def test_values_from_before_the_first_fit_are_clean() -> None:
    model = linear()
    start = copy.deepcopy(model.state_dict())
    p = problem(model, train=1, valid=2)
    tuner, _ = tune(p)
    model.load_state_dict(start)
    p.load_hyper(tuner.start_hyper)
    assert pt.certify(bounds.HoldOut(model, rows(2), NOTHING)).n == 60
    assert not tune(p)[0].outer_run.start_seen


# λ


def validation_side(p: pt.Problem, default: dict[str, Tensor], provenance: Provenance = NOTHING) -> bounds.Certificate:
    return pt.certify(bounds.ValidationSide(p, CHAIN, provenance, models=2, default_hyper=default))


def test_a_second_tuner_starts_from_a_tuned_default() -> None:
    p = problem(linear(), train=1, valid=2)
    first, result = tune(p)
    assert validation_side(p, first.start_hyper, result.provenance).n == 60
    second, result = tune(p)
    with pytest.raises(CertificateError, match="independent prior: the default λ0"):
        validation_side(p, second.start_hyper, result.provenance)


def test_a_second_fit_of_one_tuner_keeps_its_default() -> None:
    p = problem(linear(), train=1, valid=2)
    tuner, _ = tune(p)
    result = tuner.fit(2, progress=False, plain_steps=0)
    assert validation_side(p, tuner.start_hyper, result.provenance).n == 60


@pytest.mark.parametrize("per", ["global", "tensor", "element"])
@pytest.mark.parametrize("way", ["values", "load_state_dict", "deepcopy", "number"])
def test_a_tuned_default_is_recognised(way: str, per: Any) -> None:
    model = linear()
    hyper = pt.WeightDecay(model, per=per, init=0.1)
    tune(problem(model, hyper, train=1, valid=2))
    other = linear(3)
    decay = pt.WeightDecay(other, per=per)
    if way == "deepcopy":
        decay = copy.deepcopy(hyper)
    elif way == "number" and per == "global":
        decay = pt.WeightDecay(other, per="global", init=next(hyper.parameters()).item())
    else:
        decay.load_state_dict(hyper.state_dict())
    p = problem(other, decay, train=1, valid=2)
    default = {name: value.clone() for name, value in p.hyperparameters().items()}
    with pytest.raises(CertificateError, match="independent prior: the default λ0"):
        validation_side(p, default)
    with pytest.raises(CertificateError, match="independent prior: the λ of the prior"):
        pt.certify(bounds.TrainSide(p, CHAIN, NOTHING, models=2))
    with pytest.raises(CertificateError, match="independent prior: the λ of the prior"):
        pt.certify(bounds.TrainSide(p, CHAIN, NOTHING, models=2, prior_hyper=default))
    fresh = problem(other, decay, train=3, valid=4)
    assert validation_side(fresh, default).n == 60


# Given parts and starts


class Reset(nn.Linear):
    """A layer that starts from given values."""

    def __init__(self, values: nn.Linear) -> None:
        self.values = [value.detach().clone() for value in (values.weight, values.bias)]
        super().__init__(4, 3)

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(self.values[0])
            self.bias.copy_(self.values[1])


def frozen() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3))


def buffered() -> nn.Module:
    model = linear()
    model.register_buffer("mean", torch.ones(4))
    return model


def hidden() -> nn.Module:
    model = linear()
    model.encoder = [nn.Linear(4, 4)]
    return model


def tabled() -> nn.Module:
    model = linear()
    model.register_buffer("table", torch.arange(6))  # whole numbers, such as labels that were learnt by heart
    return model


def arrayed() -> nn.Module:
    model = linear()
    model.centres = np.zeros((3, 4))
    return model


GIVEN: dict[str, Callable[[], nn.Module]] = {
    "frozen": frozen,
    "buffered": buffered,
    "hidden": hidden,
    "tabled": tabled,
    "arrayed": arrayed,
    "reset": lambda: Reset(linear(7)),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_untrained_parts_have_to_be_spoken_for(kind: str) -> None:
    p = problem(GIVEN[kind](), train=1, valid=2)
    with pytest.raises(CertificateError, match="known features: the model comes with"):
        pt.certify(bounds.TrainSide(p, CHAIN, NOTHING, models=2))
    with pytest.raises(CertificateError, match="the preparation of the features has seen"):
        pt.certify(bounds.TrainSide(p, CHAIN, NOTHING.touch("features", p.sample_ids[0]), models=2))
    stated = pt.certify(bounds.TrainSide(p, CHAIN, NOTHING.touch("features", p.sample_ids[1]), models=2))
    assert any("prepared with valid (60 rows), as was stated" in words for words in stated.assumptions)
    if kind != "reset":
        with pytest.raises(CertificateError, match="known features"):
            pt.certify(bounds.HoldOut(p.model, rows(3), NOTHING))
        with pytest.raises(CertificateError, match="which touched the features"):
            pt.certify(bounds.HoldOut(p.model, rows(3), NOTHING.touch("features", DataMark("before", rows(3)))))


def test_a_model_without_untrained_parts_is_not_asked_for_them() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LayerNorm(3))
    found = pt.certify(bounds.TrainSide(problem(model, train=1, valid=2), CHAIN, NOTHING, models=2))
    assert any("which nobody stated" in words for words in found.assumptions)
    norm = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert pt.certify(bounds.HoldOut(norm, rows(1), NOTHING)).n == 60
    assert pt.certify(bounds.HoldOut(Tagged(), rows(1), NOTHING)).n == 60


class Tagged(nn.Module):
    """Plain attributes that hold no numbers of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.names, self.size, self.again = ["a"], 3, [self.linear]
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out


@pytest.mark.parametrize("way", ["initial", "reset", "frozen"])
def test_trained_values_in_the_prior_are_recognised_whatever_is_said(trained: nn.Linear, way: str) -> None:
    said = NOTHING.touch("features")
    values = {name: value.detach().clone() for name, value in trained.named_parameters()}
    model: nn.Module = Reset(trained) if way == "reset" else linear(2)
    if way == "frozen":
        model = nn.Sequential(copy.deepcopy(trained).requires_grad_(False), nn.Linear(3, 3))
    initial = (lambda _: values) if way == "initial" else None
    match = "independent prior: the " + ("preparation of the features" if way == "frozen" else "distribution of θ_0")
    p = problem(model, train=2, valid=3)
    with pytest.raises(CertificateError, match=match):
        pt.certify(bounds.TrainSide(p, CHAIN, said, models=2, initial=initial))
    p = problem(model, train=3, valid=2)
    assert pt.certify(bounds.TrainSide(p, CHAIN, said, models=2, initial=initial)).n == 60


# The record itself


def test_plain_starts_of_other_models_are_never_recorded() -> None:
    """Zeros, ones and values that a fit did not change say nothing of the data."""
    record = SeenData()
    mark = DataMark("train", rows(1))
    zeros, ones, same, moved = torch.ones(3), torch.zeros(3), torch.arange(3.0), torch.arange(3.0) + 1
    record.begin_fit([zeros, ones, same, moved, torch.arange(3)], [mark])
    zeros.zero_(), ones.fill_(1.0), moved.mul_(2.0)
    record.end_fit([zeros, ones, same, moved, torch.arange(3)])
    copies = [torch.zeros(3), torch.ones(3), torch.arange(3.0), torch.arange(3)]
    assert record.samples_of(copies) == ()
    assert record.samples_of([moved.clone()]) == (mark,)


def test_old_samples_keep_their_rows_and_not_their_data() -> None:
    record = SeenData()
    tensors = [torch.full((2,), float(i)) for i in range(MOST_SAMPLES + 3)]
    for i, tensor in enumerate(tensors):
        record.begin_fit([tensor], [DataMark(f"sample {i}", rows(i))])
        tensor.add_(0.5)
        record.end_fit([tensor])
    (oldest,), (newest,) = record.samples_of([tensors[0].clone()]), record.samples_of([tensors[-1].clone()])
    assert oldest.source is None
    assert newest.source is not None
    assert oldest.shared(DataMark("again", rows(0))) == 60
    assert oldest.shared(newest) == 0


def test_the_record_does_not_keep_a_model_alive() -> None:
    import gc
    import weakref

    model = linear()
    tune(problem(model, train=1, valid=2))
    gone = weakref.ref(model.weight)
    assert SEEN_DATA.samples_of([model.weight])
    del model
    gc.collect()
    assert gone() is None


def test_an_old_data_set_is_kept_without_its_cache() -> None:
    data = TensorDataset(*rows(1))
    source = as_source(data, role="train", device=torch.device("cpu"))
    for kept in (source, source.subset(torch.arange(10))):
        mark = DataMark("train", kept)
        next(kept.epoch())
        light = mark.without_data()
        assert kept.__dict__["_full"] is not None
        assert light.source.__dict__["_full"] is None
        assert light.shared(DataMark("again", rows(1))) == kept.rows
