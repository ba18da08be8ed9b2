"""A loop of your own
==================

`Tuner.hypergradient()` fills `.grad`, everything else is yours.

One call runs T inner steps from the present state, fills `.grad` of every hyperparameter and returns J and its parts.
Clipping, schedules, projections and logging then look as in any PyTorch loop. Here the decays are kept ≥ 0.
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
hyper = pt.WeightDecay(model, per="element")
outer = torch.optim.RMSprop(hyper.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(outer, T_max=20)
problem = pt.Problem(model, hyper, train=(x[:50], y[:50]), valid=(x[50:100], y[50:100]), loss=F.cross_entropy)
tuner = pt.Tuner(problem, inner=pt.Adam(lr=1e-3), inner_steps=50, outer=outer, objective=pt.PACBayes(1e-5))

values = []
for step in range(1, 21):
    value = tuner.hypergradient()
    values.append(value)
    torch.nn.utils.clip_grad_norm_(hyper.parameters(), max_norm=1.0)
    outer.step()
    schedule.step()
    with torch.no_grad():
        for decay in hyper.parameters():
            decay.clamp_(min=0.0)
    if step % 10 == 0:
        accuracy = (model(x[100:]).argmax(1) == y[100:]).float().mean()
        print(f"step {step}: risk {value.risk:.3f}, √Y {value.regularizer:.3f}, test accuracy {accuracy:.3f}")

# %%
# The two terms of the objective at every outer step.

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
steps = range(1, len(values) + 1)
left.plot(steps, [value.risk for value in values])
left.set(xlabel="outer step", ylabel="validation risk")
right.plot(steps, [value.regularizer for value in values])
right.set(xlabel="outer step", ylabel="√Y")
plt.show()
