"""A penalty adds its gradient to the training side of Δ_t, and zeros where it does not look."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pactune as pt
from pactune.monitor.penalties import as_decay, as_penalty
from pactune.trees import Params


def params() -> dict[str, torch.Tensor]:
    return {"weight": torch.tensor([1.0, -2.0]), "bias": torch.tensor([3.0])}


def test_a_penalty_that_ignores_a_parameter_adds_zeros_there() -> None:
    (gradient,) = as_penalty(lambda p: (p["weight"] ** 2).sum())
    found = gradient(params())
    assert torch.equal(found["weight"], torch.tensor([2.0, -4.0]))
    assert torch.equal(found["bias"], torch.zeros(1))


def test_a_penalty_is_differentiated_under_no_grad() -> None:
    (gradient,) = as_penalty(lambda p: (p["weight"] ** 2).sum())
    with torch.no_grad():
        assert torch.equal(gradient(params())["weight"], torch.tensor([2.0, -4.0]))


@pytest.mark.parametrize(
    "penalty",
    [lambda p: 1.0, lambda p: p["weight"] ** 2, lambda p: p["weight"].detach().sum(), lambda p: torch.tensor(1.0)],
)
def test_a_penalty_must_be_a_differentiable_scalar(penalty: object) -> None:
    (gradient,) = as_penalty(penalty)
    with pytest.raises(pt.SettingError, match="scalar tensor"):
        gradient(params())


def test_the_monitor_takes_a_penalty_on_one_layer() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    x, y = torch.randn(4, 2), torch.randn(4, 1)
    penalty = {"penalty": lambda p: 0.5 * (p["weight"] ** 2).sum()}
    monitor = pt.CoherenceMonitor(model, nn.functional.mse_loss, **penalty)
    found = monitor.step((x, y), (x, y))  # equal data: Δ is the penalty's gradient alone
    assert float(found) == pytest.approx(float((model.weight.detach() ** 2).sum()), rel=1e-5)


def test_decay_by_name_leaves_the_others_alone() -> None:
    model = nn.Linear(2, 1)
    (gradient,) = as_decay({"weight": 0.5, "bias": 0.0}, model)
    found = gradient({name: p.detach() for name, p in model.named_parameters()})
    assert set(found) == {"weight"}
    assert torch.allclose(found["weight"].float(), 0.5 * model.weight.detach())


def test_no_decay_adds_nothing() -> None:
    assert as_decay(0.0, nn.Linear(2, 1)) == []
    assert len(as_decay(0.1, nn.Linear(2, 1))) == 1


class Cubic(pt.WeightDecay):
    """Its penalty is not the one that `WeightDecay` differentiates in closed form."""

    def penalty(self, params: Params) -> Tensor:
        return torch.stack([(decay * params[name] ** 3).sum() for name, decay in self.decays(params).items()]).sum()


def test_a_subclass_of_a_decay_has_the_gradient_of_its_own_penalty() -> None:
    model = nn.Linear(2, 1).double()
    (gradient,) = as_penalty(Cubic(model, init=0.5))
    params = {name: value.detach() for name, value in model.named_parameters()}
    for name, value in gradient(params).items():
        torch.testing.assert_close(value, 1.5 * params[name] ** 2)
