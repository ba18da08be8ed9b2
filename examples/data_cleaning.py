"""Data cleaning with a weight per row
===================================

Data cleaning: half of the labels are wrong, and a weight per row finds out which.

As in the papers on stochastic bilevel optimization: mini-batches, ten inner steps from the last θ, and implicit
differentiation by a short Neumann series. The hook `weigh` receives the losses and the row numbers of a mini-batch.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

OUTER_STEPS = 100
ROWS, RIDGE = 1000, 0.02


class RowWeights(nn.Module):
    """A weight sigmoid(λ_i) per training row, and a fixed penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(ROWS))

    def weigh(self, losses: Tensor, rows: Tensor) -> Tensor:
        """Return the weighted mean of a mini-batch's losses."""
        return (self.logits[rows].sigmoid() * losses).mean()

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        """Return the penalty, which gives the training problem one minimum."""
        return 0.5 * RIDGE * sum((p**2).sum() for p in params.values())


x, y = load_digits(return_X_y=True)
draw = torch.Generator().manual_seed(0)
order = torch.randperm(len(y), generator=draw)
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
noisy = torch.where(torch.rand(ROWS, generator=draw) < 0.5, torch.randint(0, 10, (ROWS,), generator=draw), y[:ROWS])
wrong = noisy != y[:ROWS]

torch.manual_seed(0)
model, hyper = nn.Linear(64, 10), RowWeights()
problem = pt.Problem(
    model,
    hyper,
    train=(x[:ROWS], noisy),
    valid=(x[ROWS : ROWS + 300], y[ROWS : ROWS + 300]),
    loss=F.cross_entropy,
    batch_size=100,
)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.3),
    inner_steps=10,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
    objective=pt.ValidationRisk(),
    hypergradient=pt.Implicit(pt.Neumann(10)),
)
for _ in range(OUTER_STEPS):
    tuner.hypergradient()
    tuner.outer.step()
weights = hyper.logits.detach().sigmoid()
print(f"mean weight of right labels {weights[~wrong].mean():.3f}, of wrong ones {weights[wrong].mean():.3f}")

# %%
# The weights of both kinds of rows, each kind sorted.

figure, axes = plt.subplots()
for label, part in (("right labels", weights[~wrong]), ("wrong labels", weights[wrong])):
    axes.plot(torch.linspace(0, 1, len(part)), part.sort()[0], label=label)
axes.set(xlabel="share of the rows", ylabel="weight, sorted", title="Half of the labels are wrong")
axes.legend()
plt.show()
