"""The setting of the theory
=========================

Langevin dynamics, several chains, a fresh θ_0 at every outer step, ζ from the theory.

The bound is on a random θ_T, so its expectations are estimated by several chains with noise of their own. The
estimators cover the whole trajectory; then ζ = √(βη/4) is on the scale of the risk's gradient. With T1–T2 it would be
far too large.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn import functional as F

import pactune as pt

torch.manual_seed(0)
x = torch.randn(1060, 20)
y = x[:, :2].sum(1, keepdim=True) + torch.randn(1060, 1)

model = torch.nn.Linear(20, 1)
hyper = pt.WeightDecay(model, per="element")
problem = pt.Problem(model, hyper, train=(x[:30], y[:30]), valid=(x[30:60], y[30:60]), loss=F.mse_loss)
histories = {}
for objective in (pt.ValidationRisk(), pt.PACBayes(zeta="theory")):
    for decay in hyper.parameters():
        torch.nn.init.zeros_(decay)
    tuner = pt.Tuner(
        problem,
        inner=pt.Langevin(lr=0.05, inverse_temperature=300.0),
        inner_steps=20,
        outer=torch.optim.Adam(hyper.parameters(), lr=0.1),
        objective=objective,
        hypergradient=pt.Windowed(20),
        path_hypergradient=pt.Windowed(20),
        chains=2,
        restart=True,
    )
    result = tuner.fit(outer_steps=25, test=(x[60:], y[60:]))
    histories[type(objective).__name__] = result.history
    last = result.rows[-1]
    print(f"{type(objective).__name__:<15} ζ = {result.zeta:.3f}: J {last['objective']:.3f}, ", end="")
    print(f"risk on validation {last['valid_risk']:.3f}, on test {last['test_risk']:.3f}")
print(f"plain training: risk on test {result.plain['test_risk'].iloc[-1]:.3f}")

# %%
# The risk on the test rows, with and without the regularizer.

figure, axes = plt.subplots()
for name, history in histories.items():
    axes.plot(history["outer_step"], history["test_risk"], label=name)
axes.plot(result.plain["outer_step"], result.plain["test_risk"], "--", color="0.5", label="plain training")
axes.set(xlabel="outer step", ylabel="test risk", title="20 decays on 30 + 30 rows")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
