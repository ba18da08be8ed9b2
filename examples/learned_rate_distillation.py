"""Distillation with a learned rate
================================

Dataset distillation with a learned rate: ten images and the step size with which a model learns from them.

Images and step size are one hyper module: the images enter through the training loss, the rate through the hook
`learning_rates`. The only training data are the images, so `train` is left out.
"""

from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

OUTER_STEPS = 60
STEPS, LABELS = 5, torch.arange(10)


class Distilled(nn.Module):
    """One image per class, and the logarithm of a factor on the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.images, self.log_rate = nn.Parameter(torch.rand(10, 64)), nn.Parameter(torch.zeros(()))

    def learning_rates(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the factor on the step size of every parameter."""
        return dict.fromkeys(params, self.log_rate.exp())


def train_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(hyper.images), LABELS)


def valid_loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
torch.manual_seed(0)
model, hyper = nn.Linear(64, 10), Distilled()
tuner = pt.Tuner(
    pt.Problem(model, hyper, valid=(x[:500], y[:500]), train_loss=train_loss, valid_loss=valid_loss),
    inner=pt.SGD(lr=0.1),
    inner_steps=STEPS,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.05),
    objective=pt.ValidationRisk(),
    hypergradient=pt.Windowed(STEPS),
    restart=True,
)
scores = []
for _ in range(OUTER_STEPS):
    tuner.hypergradient()
    scores.append(float((model(x[500:]).argmax(1) == y[500:]).float().mean()))
    tuner.outer.step()
print(f"after {STEPS} steps on ten images: test accuracy {scores[0]:.3f} at first, {scores[-1]:.3f} with tuned images")
print(f"learning rate {0.1 * float(hyper.log_rate.detach().exp()):.3f}, at first 0.1")

# %%
# The ten tuned images.

figure, axes = plt.subplots(1, 10, figsize=(8, 1.2))
for axis, image in zip(axes, hyper.images.detach().reshape(10, 8, 8), strict=True):
    axis.imshow(image, cmap="gray")
    axis.set_axis_off()
plt.show()
