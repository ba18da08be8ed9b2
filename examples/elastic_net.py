"""The elastic net
===============

An L1 penalty and a weight decay side by side, both tuned by gradient.

The features come in groups of nearly equal columns. The lasso picks one of a group; the decay keeps them together.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import pactune as pt

ROWS, GROUPS, COPIES = 40, 30, 4
generator = torch.Generator().manual_seed(1)


def draw(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    common = torch.randn(rows, GROUPS, generator=generator, dtype=torch.float64)
    own = torch.randn(rows, GROUPS * COPIES, generator=generator, dtype=torch.float64)
    x = common.repeat_interleave(COPIES, 1) + 0.3 * own
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return x, (x[:, : 3 * COPIES].sum(1) / COPIES + noise)[:, None]


train, valid, test = draw(ROWS), draw(ROWS), draw(1000)
curvature = 2 * torch.linalg.matrix_norm(train[0], 2) ** 2 / ROWS

weights = {}
for name in ("lasso", "elastic net"):
    model = nn.Linear(GROUPS * COPIES, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    hyper = nn.ModuleDict({"l1": pt.L1(model, per="global", init=0.1)})
    if name == "elastic net":
        hyper["decay"] = pt.WeightDecay(model, per="global", init=0.1, positive=True)
    tuner = pt.Tuner(
        pt.Problem(model, hyper, train=train, valid=valid, loss=F.mse_loss),
        inner=pt.SGD(lr=1 / float(curvature), momentum=0.9),
        inner_steps=400,
        outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
        objective=pt.ValidationRisk(),
        hypergradient=pt.Implicit(pt.ConjugateGradient(60)),
    )
    tuner.fit(outer_steps=30)
    params = dict(model.named_parameters())
    weights[name] = model.weight[0].detach()
    found = {"L1": hyper["l1"].strengths(params)["weight"].item()}
    if name == "elastic net":
        found["decay"] = hyper["decay"].decays(params)["weight"].item()
    with torch.no_grad():
        error, kept = F.mse_loss(model(test[0]), test[1]).item(), int((model.weight != 0).sum())
    values = ", ".join(f"{key} {value:.3f}" for key, value in found.items())
    print(f"{name}: {values}; test error {error:.3f} with {kept} of {GROUPS * COPIES} weights")

# %%
# Twelve weights in three groups are true. The elastic net keeps more of each group.

figure, axes = plt.subplots()
for name, values in weights.items():
    axes.plot(values, "o", markersize=4, label=name)
axes.axvline(3 * COPIES - 0.5, color="0.7", linestyle=":")
axes.set(xlabel="weight; the true ones are left of the line", ylabel="value", title="Groups of four equal features")
axes.legend()
plt.show()
