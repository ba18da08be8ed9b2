"""Checking a hypergradient
========================

Is the hypergradient right on your own problem? `check_hypergradient` compares it with finite differences in float64.

Two numbers come back. `error` compares with what the estimator promises (everything it holds fixed is held fixed) and
should be rounding. `truncation` compares with the derivative of J itself: it is what a small K leaves out.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import pactune as pt

torch.manual_seed(0)
x, y = torch.randn(60, 5), torch.randint(0, 3, (60,))
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
hyper = pt.WeightDecay(model, per="tensor", init=0.1)
problem = pt.Problem(model, hyper, train=(x[:30], y[:30]), valid=(x[30:], y[30:]), loss=F.cross_entropy)
outer = torch.optim.SGD(hyper.parameters(), lr=0.1)

checks = []
print("risk / regularizer         steps back  passed  error    truncation")
for risk, path in (
    (pt.Truncated(1), pt.Truncated(0)),
    (pt.Windowed(8), pt.Windowed(8)),
    (pt.ForwardMode(), pt.ForwardMode()),
):
    tuner = pt.Tuner(
        problem,
        inner=pt.SGD(lr=0.2, momentum=0.5),
        inner_steps=8,
        outer=outer,
        objective=pt.PACBayes(zeta=0.1),
        hypergradient=risk,
        path_hypergradient=path,
    )
    found = pt.check_hypergradient(tuner, directions=2)
    name = f"{type(risk).__name__} / {type(path).__name__}"
    checks.append((type(risk).__name__, found))
    reach = f"{risk.reach(8)} / {path.reach(8)} of 8"
    print(f"{name:<26} {reach:<12}{found.passed!s:<7} {found.error:<8.0e} {found.truncation:.0e}")

# %%
# An exact estimator leaves nothing out; a truncated one does, and its own promise still holds to rounding.

figure, axes = plt.subplots()
names = [name for name, _ in checks]
axes.plot(names, [check.error for _, check in checks], "o", label="error")
axes.plot(names, [check.truncation for _, check in checks], "s", label="truncation")
axes.set(yscale="log", ylabel="relative difference", title="Estimators against finite differences")
axes.legend()
plt.show()
