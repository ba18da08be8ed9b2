"""Lasso and weighted lasso
========================

The lasso and the weighted lasso: how strongly to push weights to 0, tuned by gradient.

`pt.L1` has a proximal step, so that weights become exactly 0. `Implicit` differentiates the trained model on its
non-zero weights only. `elastic_net.py` adds a weight decay.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import pactune as pt

ROWS, FEATURES, TRUE = 80, 100, 5
generator = torch.Generator().manual_seed(0)
x = torch.randn(2 * ROWS + 1000, FEATURES, generator=generator, dtype=torch.float64)
noise = torch.randn(len(x), 1, generator=generator, dtype=torch.float64)
y = x[:, :TRUE].sum(1, keepdim=True) + 0.7 * noise
train, valid = (x[:ROWS], y[:ROWS]), (x[ROWS : 2 * ROWS], y[ROWS : 2 * ROWS])
test = (x[2 * ROWS :], y[2 * ROWS :])

curvature = 2 * torch.linalg.matrix_norm(train[0], 2) ** 2 / ROWS  # the largest eigenvalue of the Hessian of F.mse_loss


def tune(hyper: pt.L1, model: nn.Module, outer_steps: int) -> None:
    tuner = pt.Tuner(
        pt.Problem(model, hyper, train=train, valid=valid, loss=F.mse_loss),
        inner=pt.SGD(lr=1 / float(curvature), momentum=0.8),
        inner_steps=300,
        outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
        objective=pt.ValidationRisk(),
        hypergradient=pt.Implicit(pt.ConjugateGradient(50)),
    )
    tuner.fit(outer_steps=outer_steps, test=test)


weights = {}


def report(name: str, model: nn.Module) -> None:
    with torch.no_grad():
        error, weight = F.mse_loss(model(test[0]), test[1]).item(), model.weight[0]
    found, true = int((weight != 0).sum()), int((weight[:TRUE] != 0).sum())
    if found:
        weights[name] = weight.detach().clone()
    print(f"{name}: test error {error:.3f}, {found} non-zero weights, {true} of the {TRUE} true ones among them")


model = nn.Linear(FEATURES, 1, bias=False, dtype=torch.float64)
nn.init.zeros_(model.weight)
report("no model", model)

lasso = pt.L1(model, per="global", init=0.01)
tune(lasso, model, outer_steps=40)
strength = lasso.strengths(dict(model.named_parameters()))["weight"].item()
report(f"lasso, λ from 0.01 to {strength:.2f}", model)

weighted = pt.L1(model, per="element", init=strength)  # one λ for every weight, from where the lasso stopped
tune(weighted, model, outer_steps=15)
report(f"weighted lasso, {FEATURES} values of λ", model)

# %%
# The weights of both. The true ones are 1, left of the line.

figure, axes = plt.subplots()
for name, values in weights.items():
    axes.plot(values, "o", markersize=4, label=name)
axes.axvline(TRUE - 0.5, color="0.7", linestyle=":")
axes.set(xlabel="weight", ylabel="value", title="Five of a hundred features are true")
axes.legend()
plt.show()
