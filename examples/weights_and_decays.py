"""Weights and decays together
===========================

Two kinds of hyperparameters at once: a weight per example and a decay per parameter, each with its own rate.

The task is that of `example_weights.py`. With one learning rate for all, as in that example, the run diverges. A decay
acts in every inner step: θ ← (1 − ηλ)θ. Over N steps a decay of −1/(ηN) blows θ up by a factor e, and here 1/(ηN) is
0.004. A rate of 0.1 moves λ by 25 times as much in a single outer step. `suggest` shows this before the run: the scale
of every kind of hyperparameter, and the first step at the present rate. Parameter groups give each kind its own.
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
weights, decay = pt.ExampleWeights(200), pt.WeightDecay(model, per="element")
hyper = torch.nn.ModuleDict({"weights": weights, "decay": decay})
problem = pt.Problem(model, hyper, train=(x[:200], noisy), valid=(x[200:400], y[200:400]), loss=F.cross_entropy)


def tuner(outer):
    objective, hypergradient = pt.PACBayes(zeta=1e-3), pt.Truncated(10)
    return pt.Tuner(
        problem, inner=pt.SGD(lr=0.5), inner_steps=20, outer=outer, objective=objective, hypergradient=hypergradient
    )


print("One rate for both:")
print(tuner(torch.optim.Adam(hyper.parameters(), lr=0.1)).suggest(outer_steps=25))

groups = [{"params": weights.parameters(), "lr": 5e-2}, {"params": decay.parameters(), "lr": 1e-4}]
result = tuner(torch.optim.RMSprop(groups)).fit(outer_steps=25, test=(x[400:], y[400:]))

print("\nA rate for each:")
print(result.summary())
final = weights.weights().detach()
print(f"mean weight of clean and corrupted examples: {final[~corrupted].mean():.2f}, {final[corrupted].mean():.2f}")
values = torch.cat([p.detach().flatten() for p in decay.parameters()])
print(f"decays between {values.min():.4f} and {values.max():.4f}")

# %%
# The weights of both kinds of examples.

figure, axes = plt.subplots()
axes.hist([final[~corrupted], final[corrupted]], bins=20, range=(0, 2), label=["clean", "corrupted"])
axes.set(xlabel="weight", ylabel="examples", title="30 % of the labels are wrong")
axes.legend()
plt.show()
