"""A learning rate per tensor
==========================

A hyperparameter in the dynamics: one factor on the learning rate for every tensor of a small network.

Learning rates enter through the inner step and not through a loss. `ForwardMode` carries the derivative along the whole
trajectory, which is exact, and cheap for four hyperparameters. Each outer step trains from a fresh draw of θ_0, so the
learning rates are those that train well in 15 steps.
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

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
rates = pt.LearningRates(model, per="tensor")
problem = pt.Problem(model, rates, train=(x[:200], y[:200]), valid=(x[200:400], y[200:400]), loss=F.cross_entropy)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.05),
    inner_steps=15,
    outer=torch.optim.Adam(rates.parameters(), lr=0.4),
    objective=pt.PACBayes(zeta=1e-3),
    hypergradient=pt.ForwardMode(),
    path_hypergradient=pt.ForwardMode(),
    restart=True,
)
result = tuner.fit(outer_steps=8, test=(x[400:], y[400:]))

for name, value in rates.values.items():
    print(f"learning rate of {name:<9} {0.05 * value.exp().item():.3f}")
print(f"validation risk after 15 steps: {result.rows[0]['valid_risk']:.3f} -> {result.rows[-1]['valid_risk']:.3f}")
print(
    f"test accuracy after 15 steps:   {result.rows[0]['test_accuracy']:.3f} -> {result.rows[-1]['test_accuracy']:.3f}"
)

# %%
# The test accuracy after 15 steps of training, as the rates are tuned.

figure, axes = plt.subplots()
axes.plot(result.history["outer_step"], result.history["test_accuracy"], "o-")
axes.set(xlabel="outer step", ylabel="test accuracy after 15 steps", title="Four learning rates")
axes.locator_params(axis="x", integer=True)
plt.show()
