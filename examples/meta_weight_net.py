"""Meta-Weight-Net
===============

A small network maps the loss of a training example to its weight; 40 % of the labels are wrong.

A hundred clean rows tune the small network. Every outer step takes one step of SGD on a mini-batch and differentiates
it, so `inner_steps=1` and `Truncated(1)`. The weights of wrong labels fall, although nobody says which they are.
"""

from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

OUTER_STEPS = 300


class WeightNet(nn.Module):
    """The weight of an example as a function of its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1), nn.Sigmoid())

    def forward(self, losses: Tensor) -> Tensor:
        """Return a weight per loss."""
        return self.layers(losses.detach()[:, None]).squeeze(1)


def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (hyper(losses) * losses).mean()


def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


x, y = load_digits(return_X_y=True)
draw = torch.Generator().manual_seed(0)
order = torch.randperm(len(y), generator=draw)
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
wrong = torch.rand(1000, generator=draw) < 0.4
noisy = torch.where(wrong, torch.randint(0, 10, (1000,), generator=draw), y[:1000])

torch.manual_seed(0)
model, hyper = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10)), WeightNet()
problem = pt.Problem(
    model,
    hyper,
    train=(x[:1000], noisy),
    valid=(x[1000:1100], y[1000:1100]),
    train_loss=train_loss,
    valid_loss=valid_loss,
    batch_size=100,
)
outer = torch.optim.Adam(hyper.parameters(), lr=3e-3)
tuner = pt.Tuner(problem, inner=pt.SGD(lr=0.5), inner_steps=1, outer=outer, objective=pt.ValidationRisk())
for _ in range(OUTER_STEPS):
    tuner.hypergradient()
    outer.step()

with torch.no_grad():
    weights = hyper(F.cross_entropy(model(x[:1000]), noisy, reduction="none"))
    accuracy = (model(x[1100:]).argmax(1) == y[1100:]).float().mean()
    losses = torch.linspace(0, 6, 61)
    curve = hyper(losses)
print(f"mean weight of right labels {weights[~wrong].mean():.3f}, of wrong ones {weights[wrong].mean():.3f}")
print(f"test accuracy {accuracy:.3f}")

# %%
# The weight that the small network gives to a loss.

figure, axes = plt.subplots()
axes.plot(losses, curve)
axes.set(xlabel="loss of an example", ylabel="its weight", title="Meta-Weight-Net")
plt.show()
