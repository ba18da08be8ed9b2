"""A weight decay per parameter
============================

A hyperparameter in a penalty: 650 weight decays, one per parameter, tuned on 50 images.

Shows the effect that pactune is about. Tuned on the validation risk alone the decays overfit the 50 validation images:
validation accuracy rises and test accuracy falls. The regularizer of Eq. 5 holds them back.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import pactune as pt

x, y = load_digits(return_X_y=True)
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(x, dtype=torch.float32)[order] / 16, torch.tensor(y)[order]

histories = {}
for zeta in (0.0, 1e-5):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    hyper = pt.WeightDecay(model, per="element")
    problem = pt.Problem(model, hyper, train=(x[:50], y[:50]), valid=(x[50:100], y[50:100]), loss=F.cross_entropy)
    tuner = pt.Tuner(
        problem,
        inner=pt.Adam(lr=1e-3),
        inner_steps=40,
        outer=torch.optim.RMSprop(hyper.parameters(), lr=2e-2),
        objective=pt.PACBayes(zeta),
    )
    result = tuner.fit(outer_steps=50, test=(x[100:], y[100:]), plain_steps=None if zeta else 1)
    histories[zeta] = result.history
    shown = ["outer_step", "valid_accuracy", "test_accuracy", "regularizer"]
    print(f"\nζ = {zeta:g}")
    print(result.history[shown].iloc[[0, 24, 49]].to_string(index=False))

print(f"\nplain training, no decay: test accuracy {result.plain['test_accuracy'].iloc[-1]:.3f}")

# %%
# Without the regularizer the validation accuracy (dashed) stays high while the test accuracy falls.

figure, axes = plt.subplots()
for (zeta, history), color in zip(histories.items(), ("C1", "C0"), strict=True):
    axes.plot(history["outer_step"], history["test_accuracy"], color=color, label=f"ζ = {zeta:g}, test")
    axes.plot(history["outer_step"], history["valid_accuracy"], "--", color=color, label=f"ζ = {zeta:g}, validation")
axes.set(xlabel="outer step", ylabel="accuracy", title="650 weight decays tuned on 50 images")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
