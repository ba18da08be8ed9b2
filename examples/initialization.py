"""Tuning the initial parameters
=============================

A hyperparameter in the initial parameters: a start from which five steps of training suffice.

`Initialization` makes θ_0 itself the hyperparameter, as in meta-learning. Its gradient needs the whole trajectory, so
the estimator is `Windowed(inner_steps)`, and every outer step must start anew: `restart=True`.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]

torch.manual_seed(0)
model = torch.nn.Linear(64, 10)
start = pt.Initialization(model)
problem = pt.Problem(model, start, train=(x[:200], y[:200]), valid=(x[200:400], y[200:400]), loss=F.cross_entropy)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.1),
    inner_steps=5,
    outer=torch.optim.Adam(start.parameters(), lr=0.02),
    objective=pt.PACBayes(zeta=1e-2),
    hypergradient=pt.Windowed(5),
    path_hypergradient=pt.Windowed(5),
    restart=True,
)
result = tuner.fit(outer_steps=40, test=(x[400:], y[400:]))

first, last = result.rows[0], result.rows[-1]
print("after five steps of SGD from the")
print(f"  model's own start: validation risk {first['valid_risk']:.3f}, test accuracy {first['test_accuracy']:.3f}")
print(f"  tuned start:       validation risk {last['valid_risk']:.3f}, test accuracy {last['test_accuracy']:.3f}")

# %%
# The test accuracy after five steps of training, as the start is tuned.

figure, axes = plt.subplots()
axes.plot(result.history["outer_step"], result.history["test_accuracy"])
axes.set(xlabel="outer step", ylabel="test accuracy after five steps", title="A tuned start")
axes.locator_params(axis="x", integer=True)
plt.show()
