"""A gate on every input feature
=============================

A hyperparameter in the model's forward: a gate on every input feature, most of which are noise.

The gates are a module inside the model. The same module is handed to `Problem` as `hyper`; its parameters are then λ
and no longer trained as θ. Training stops after 30 steps, so a feature with a small gate is learned slowly.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

import pactune as pt


class Gates(nn.Module):
    """Multiplies every feature by a number in (0, 1)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated features."""
        return torch.sigmoid(self.logits) * x


torch.manual_seed(0)
x = torch.randn(1060, 20)
y = x[:, :3].sum(1, keepdim=True) + torch.randn(1060, 1)  # three features matter, 17 do not

gates = Gates(20)
model = nn.Sequential(gates, nn.Linear(20, 1))
problem = pt.Problem(model, gates, train=(x[:30], y[:30]), valid=(x[30:60], y[30:60]), loss=F.mse_loss)
tuner = pt.Tuner(
    problem,
    inner=pt.SGD(lr=0.1),
    inner_steps=30,
    outer=torch.optim.Adam(gates.parameters(), lr=0.2),
    objective=pt.PACBayes(zeta=1e-2),
    hypergradient=pt.Windowed(30),
    restart=True,
)
result = tuner.fit(outer_steps=25, test=(x[60:], y[60:]))

opened = torch.sigmoid(gates.logits.detach())
print(f"mean gate of the 3 true features:   {opened[:3].mean():.2f}")
print(f"mean gate of the 17 noise features: {opened[3:].mean():.2f}")
print(f"test risk, tuned / plain:           {result.kept['test_risk']:.3f} / {result.plain.test_risk.iloc[-1]:.3f}")

# %%
# The gates of all features at the end.

figure, axes = plt.subplots()
axes.bar(range(3), opened[:3], label="true features")
axes.bar(range(3, 20), opened[3:], label="noise")
axes.set(xlabel="feature", ylabel="gate", title="Three of twenty features matter")
axes.locator_params(axis="x", integer=True)
axes.legend()
plt.show()
