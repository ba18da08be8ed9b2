"""One decay for several data sets
===============================

Several data sets with one λ: the decay of every layer is tuned on five small samples at once.

A fixed list of tasks needs no `restart`: each task has its own model, which goes on from outer step to outer step. The
objective is the mean over the tasks. `weight_decay.py` tunes on a single sample.
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
parts = list(zip(x[:500].split(50), y[:500].split(50), strict=True))
tasks = list(zip(parts[::2], parts[1::2], strict=True))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
hyper = pt.WeightDecay(model, per="tensor")
problem = pt.Problem(model, hyper, tasks=tasks, loss=F.cross_entropy)
tuner = pt.Tuner(
    problem,
    inner=pt.Adam(lr=1e-2),
    inner_steps=30,
    outer=torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
    objective=pt.PACBayes(zeta=1e-4),
)
result = tuner.fit(outer_steps=15)

first, last = result.rows[0], result.rows[-1]
print(f"mean over {len(tasks)} data sets: validation risk {first['valid_risk']:.3f} at first, {last['valid_risk']:.3f}")
print("decays:", ", ".join(f"{name} {float(value.detach()):.3f}" for name, value in hyper.named_parameters()))

# %%
# The mean validation risk over the five data sets.

figure, axes = plt.subplots()
axes.plot(result.history["outer_step"], result.history["valid_risk"], label="tuned")
axes.plot(result.plain["outer_step"], result.plain["valid_risk"], "--", color="0.5", label="plain training")
axes.set(xlabel="outer step", ylabel="validation risk", title="Five samples share one decay per tensor")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
