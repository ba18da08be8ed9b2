"""Very many validation rows
=========================

A penalty per feature with very many validation rows: an outer step reads a mini-batch of them.

The shapes are those of benchmark_bilevel's logistic regression, made smaller by `ROWS`. Reading all validation rows
at every outer step would cost more than the training steps; `valid_batch_size` says how many are read.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

ROWS = 20_000
OUTER_STEPS = 200
FEATURES = 22


class Ridge(nn.Module):
    """The penalty ½ Σ exp(λ_j) θ_j², with its gradient, so that no graph is built for it."""

    def __init__(self) -> None:
        super().__init__()
        self.log_strength = nn.Parameter(torch.full((FEATURES,), -1.0))

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        """Return the penalty."""
        return 0.5 * (self.log_strength.exp() * params["weight"] ** 2).sum()

    def penalty_gradient(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return its θ-gradient."""
        return {"weight": self.log_strength.exp() * params["weight"]}


torch.manual_seed(0)
x = torch.randn(2 * ROWS, FEATURES)
y = (x[:, : FEATURES // 2].sum(1) + torch.randn(len(x)) > 0).float()[:, None]
train, valid = (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])
model, hyper, loss = nn.Linear(FEATURES, 1, bias=False), Ridge(), F.binary_cross_entropy_with_logits
tuner = pt.Tuner(
    pt.Problem(model, hyper, train=train, valid=valid, loss=loss, batch_size=64, valid_batch_size=1024),
    inner=pt.SGD(lr=0.3),
    inner_steps=10,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
    objective=pt.ValidationRisk(),
    hypergradient=pt.Truncated(10),
)
risks = []
for step in range(OUTER_STEPS):
    tuner.hypergradient()
    if step % 10 == 0:
        with torch.no_grad():
            risks.append(float(loss(model(valid[0]), valid[1])))
    tuner.outer.step()
print(f"risk of all validation rows {risks[0]:.3f} at first, {risks[-1]:.3f} at last")

# %%
# The risk of all validation rows, at every tenth outer step.

figure, axes = plt.subplots()
axes.plot([10 * index + 1 for index in range(len(risks))], risks)
axes.set(xlabel="outer step", ylabel="risk of all validation rows", title="A penalty per feature")
axes.locator_params(axis="x", integer=True)
plt.show()
