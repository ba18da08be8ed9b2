"""Dataset distillation
====================

Ten images, one per class, on which a few steps of training give a good classifier.

The images are the hyperparameters. They are the only training data, so the problem has no training rows: `train` is
left out, and `train_loss` receives an empty batch.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import pactune as pt

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]


class Images(nn.Module):
    """One image per class."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.full((10, 64), 0.5) + 0.1 * torch.randn(10, 64))


def train_loss(model: nn.Module, batch: tuple[()], hyper: Images) -> torch.Tensor:
    return F.cross_entropy(model(hyper.values), torch.arange(10))


def valid_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], hyper: Images) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


torch.manual_seed(0)
model, images = nn.Linear(64, 10), Images()
problem = pt.Problem(
    model,
    images,
    valid=(x[:400], y[:400]),
    train_loss=train_loss,
    valid_loss=valid_loss,
    metrics=lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.2),
    inner_steps=10,
    outer=torch.optim.Adam(images.parameters(), lr=0.05),
    objective=pt.ValidationRisk(),
    hypergradient=pt.Windowed(10),
    restart=True,
)
result = tuner.fit(outer_steps=40, test=(x[400:], y[400:]))

first, last = result.rows[0], result.rows[-1]
print("ten steps of training on ten images, one per class:")
print(f"  images at the start: test accuracy {first['test_accuracy']:.3f}")
print(f"  tuned images:        test accuracy {last['test_accuracy']:.3f}")

# %%
# The ten tuned images.

figure, axes = plt.subplots(1, 10, figsize=(8, 1.2))
for axis, image in zip(axes, images.values.detach().reshape(10, 8, 8), strict=True):
    axis.imshow(image, cmap="gray")
    axis.set_axis_off()
plt.show()
