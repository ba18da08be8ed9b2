"""Architecture search as in DARTS
===============================

Which activation should each layer have?

Every layer is a mixture of three activations, weighed by a softmax of λ, which enters through the model's forward. One
inner step per outer step. `Truncated(0)` takes the direct derivative of the validation risk (first order), and
`Truncated(1)` also differentiates the step (second order).
"""

from typing import Any

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

OUTER_STEPS = 150
ACTIVATIONS = {"ReLU": torch.relu, "tanh": torch.tanh, "none": lambda x: x}


class Network(nn.Module):
    """Two mixed layers and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 32), nn.Linear(32, 32)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        """Return the scores of the classes under the mixtures of `logits`."""
        for layer, weights in zip(self.layers, logits.softmax(1), strict=True):
            z = layer(x)
            x = sum(w * f(z) for w, f in zip(weights, ACTIVATIONS.values(), strict=True))
        return self.head(x)


class Architecture(nn.Module):
    """The logits of the mixtures."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2, len(ACTIVATIONS)))


def loss(model: nn.Module, batch: Any, hyper: nn.Module) -> Tensor:
    return F.cross_entropy(model(batch[0], hyper.logits), batch[1])


x, y = load_digits(return_X_y=True)
x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
for order in (1, 2):
    torch.manual_seed(0)
    model, hyper = Network(), Architecture()
    data: dict[str, Any] = {"train": (x[:600], y[:600]), "valid": (x[600:900], y[600:900]), "batch_size": 64}
    tuner = pt.Tuner(
        pt.Problem(model, hyper, **data, train_loss=loss, valid_loss=loss),
        inner=pt.SGD(lr=0.3, momentum=0.9),
        inner_steps=1,
        outer=torch.optim.Adam(hyper.parameters(), lr=0.02),
        objective=pt.ValidationRisk(),
        hypergradient=pt.Truncated(order - 1),
    )
    mixtures = []
    for _ in range(OUTER_STEPS):
        tuner.hypergradient()
        tuner.outer.step()
        mixtures.append(hyper.logits.detach().softmax(1)[0].tolist())
    with torch.no_grad():
        accuracy = (model(x[900:], hyper.logits).argmax(1) == y[900:]).float().mean()
    words = ", ".join(f"{name} {share:.2f}" for name, share in zip(ACTIVATIONS, mixtures[-1], strict=True))
    print(f"order {order}: test accuracy {accuracy:.3f}; first layer {words}")

# %%
# The mixture of the first layer, second order.

figure, axes = plt.subplots()
for name, shares in zip(ACTIVATIONS, zip(*mixtures, strict=True), strict=True):
    axes.plot(shares, label=name)
axes.set(xlabel="outer step", ylabel="share", title="First layer, second order")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
