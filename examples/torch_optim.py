"""An optimizer of torch.optim inside
==================================

Any optimizer of `torch.optim` as the inner dynamics: here RMSprop with momentum.

Its step cannot be differentiated, so K ≤ 1: T1–T2 uses the plain gradient step of the same learning rate in its place.
The regularizer at K = 0 does not look at the step at all. A larger K is refused with an error that names the choices.
"""

from functools import partial

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
problem = pt.Problem(model, hyper, train=(x[:50], y[:50]), valid=(x[50:100], y[50:100]), loss=F.cross_entropy)
settings = {
    "inner": partial(torch.optim.RMSprop, lr=1e-3, momentum=0.5),
    "inner_steps": 50,
    "outer": torch.optim.RMSprop(hyper.parameters(), lr=1e-2),
    "objective": pt.PACBayes(zeta=1e-5),
}
result = pt.Tuner(problem, **settings).fit(outer_steps=20, test=(x[100:], y[100:]))
print(f"test accuracy, tuned / plain: {result.kept['test_accuracy']:.3f} / {result.plain.test_accuracy.iloc[-1]:.3f}")

try:
    pt.Tuner(problem, hypergradient=pt.Truncated(5), **settings)
except pt.SettingError as error:
    print(f"with K = 5: {error}")

# %%
# The test accuracy after each outer step.

figure, axes = plt.subplots()
axes.plot(result.history["outer_step"], result.history["test_accuracy"], label="tuned")
axes.plot(result.plain["outer_step"], result.plain["test_accuracy"], "--", color="0.5", label="plain training")
axes.set(xlabel="outer step", ylabel="test accuracy", title="RMSprop with momentum as inner dynamics")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
