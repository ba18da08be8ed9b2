"""One penalty per feature
=======================

One L2 coefficient per feature of a logistic regression: the penalties of useless features grow.

Five of twenty features are informative. Training converges, so the gradient comes from implicit differentiation with
conjugate gradients. The hook `penalty` is all that the hyper module needs.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pactune as pt

OUTER_STEPS = 60
FEATURES, USEFUL, ROWS = 20, 5, 100


class Ridge(nn.Module):
    """The penalty ½ Σ sigmoid(λ_j) θ_j². Its coefficients are at most 1, so that one step size fits all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((FEATURES,), -4.0))

    def penalty(self, params: dict[str, Tensor]) -> Tensor:
        """Return the penalty."""
        return 0.5 * (self.logits.sigmoid() * params["weight"] ** 2).sum()


torch.manual_seed(0)
x = torch.randn(12 * ROWS, FEATURES)
y = (x[:, :USEFUL].sum(1) + torch.randn(len(x)) > 0).float()[:, None]
model, hyper = nn.Linear(FEATURES, 1, bias=False), Ridge()
loss = F.binary_cross_entropy_with_logits
train, valid = (x[:ROWS], y[:ROWS]), (x[ROWS : 2 * ROWS], y[ROWS : 2 * ROWS])
tuner = pt.Tuner(
    pt.Problem(model, hyper, train=train, valid=valid, loss=loss),
    inner=pt.SGD(lr=0.5, momentum=0.9),
    inner_steps=100,
    outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
    objective=pt.ValidationRisk(),
    hypergradient=pt.Implicit(pt.ConjugateGradient(20)),
)
risks = []
for _ in range(OUTER_STEPS):
    tuner.hypergradient()
    with torch.no_grad():
        risks.append(float(loss(model(x[2 * ROWS :]), y[2 * ROWS :])))
    tuner.outer.step()
strengths = hyper.logits.detach().sigmoid()
print(f"test risk {risks[0]:.3f} at first, {risks[-1]:.3f} at last")
useful, others = (part.median() for part in strengths.split([USEFUL, FEATURES - USEFUL]))
print(f"median penalty of useful features {useful:.1e}, of others {others:.1e}")

# %%
# The coefficients of all features at the end.

figure, axes = plt.subplots()
axes.plot(range(USEFUL), strengths[:USEFUL], "o", label="useful")
axes.plot(range(USEFUL, FEATURES), strengths[USEFUL:], "s", label="others")
axes.set(xlabel="feature", ylabel="coefficient", yscale="log", title="Penalties by gradient")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
