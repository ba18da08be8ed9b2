"""A weight per training example
=============================

A hyperparameter in the training loss: one weight per training example, with 30 % of the labels wrong.

The clean validation set tells which examples help. The weights of the corrupted ones fall below those of the clean
ones, without anybody saying which they are. `Truncated(10)` looks ten inner steps back: a single step is too short a
horizon to see what a mislabelled example does.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]
corrupted = torch.arange(200) < 60
noisy = torch.where(corrupted, (y[:200] + 1 + torch.arange(200) % 9) % 10, y[:200])

torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
weights = pt.ExampleWeights(200)
problem = pt.Problem(model, weights, train=(x[:200], noisy), valid=(x[200:400], y[200:400]), loss=F.cross_entropy)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.5),
    inner_steps=20,
    outer=torch.optim.Adam(weights.parameters(), lr=0.1),
    objective=pt.PACBayes(zeta=1e-3),
    hypergradient=pt.Truncated(10),
)
result = tuner.fit(outer_steps=25, test=(x[400:], y[400:]))

final = weights.weights().detach()
print(f"mean weight of clean examples:     {final[~corrupted].mean():.2f}")
print(f"mean weight of corrupted examples: {final[corrupted].mean():.2f}")
print(f"corrupted among the 60 least:      {int(corrupted[final.argsort()[:60]].sum())}")
print(
    f"test accuracy, tuned / plain:      {result.kept['test_accuracy']:.3f} / {result.plain.test_accuracy.iloc[-1]:.3f}"
)

# %%
# The weights at the end.

figure, axes = plt.subplots()
axes.hist([final[~corrupted], final[corrupted]], bins=20, range=(0, 2), label=["clean", "corrupted"])
axes.set(xlabel="weight", ylabel="examples", title="30 % of the labels are wrong")
axes.legend()
plt.show()
